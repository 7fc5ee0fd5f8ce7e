"""The command line, ``ggml-backend`` or ``python -m ggml_backend``. Each command has a module of the same name (with
``_`` for ``-``).

Each module has ``EXAMPLE``, the arguments of a typical call, which the help and the documentation
show; ``add_arguments(parser)``, which adds the options of the command; and ``run(options)``, which
runs it and returns the exit status. The one-line descriptions are here, so that only the module of
the chosen command is imported.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .program import Parser

__all__ = ["main", "parser"]

COMMANDS = {
    "chat": "ask a language model a question, or hold a conversation with it",
    "generate": "let a language model continue a text",
    "transcribe": "turn the speech of a WAV file into text",
    "embed": "turn the lines of a text file into vectors",
    "quantize": "store a model in another format, for example Q4_K_M",
    "convert": "make a GGUF file of a model of transformers, CTranslate2 or whisper.cpp",
    "imatrix": "measure with a text which columns of a model matter, for quantize --imatrix",
    "info": "show the version, the kernels and the devices",
    "gguf": "show, check, quantize and make GGUF files",
    "plan": "show how much memory a graph or a model needs, and how it is laid out",
    "calibrate": "measure the cost of operators and copies on devices, for the scheduling policy 'cost'",
    "check-device": "compare a device with the CPU: operators, memory, graphs",
    "cluster": "use several machines: show the ranks of an MPI job and their latency, run a script on rank 0",
    "profile": "run a Python script and show how long each operator takes",
    "bench": "measure operators, products and models, as a share of what this machine can do",
    "completion": "print a script with which a shell completes commands, options and files",
}
"""One-line descriptions of the commands."""


def main(argv: list[str] | None = None) -> int:
    """Runs ``ggml-backend`` or ``python -m ggml_backend`` and returns the exit status."""
    from .program import command_of, run_command

    script = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    made = parser(script) if script == "ggml-backend" else parser()
    return run_command(made, lambda options: command_of(__name__, options.command).run(options), argv)


def parser(prog: str = "python -m ggml_backend") -> Parser:
    """The parser of all commands. It adds the options of a command when that command is chosen."""
    from .._ffi import lib
    from ..backend.buffer import text
    from .program import Parser, add_commands

    made = Parser(prog=prog, description="The backend layer of ggml.")
    made.add_argument("--version", action="version", version=text(lib.gbpy_version()))
    add_commands(made, __name__, COMMANDS, "command")
    return made
