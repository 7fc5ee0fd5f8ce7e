"""The command line, ``python -m ggml_backend``: a module for each command, called like it
(with ``_`` for ``-``).

Each module has ``add_arguments(parser)``, which tells the parser what the command takes, and ``run(options)``, which
does it and returns the exit status. What it does in a line stands here, so that a module is imported only when its
command is chosen: no command waits for the others, and who imports the package for its functions for none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .program import Parser

__all__ = ["main", "parser"]

COMMANDS = {
    "chat": "ask a language model a question, or hold a conversation with it",
    "generate": "let a language model continue a text",
    "transcribe": "write down what a WAV file says",
    "embed": "turn the lines of a text file into vectors",
    "quantize": "store a model in another format, for example Q4_K_M",
    "convert": "make a GGUF file of a model of transformers, CTranslate2 or whisper.cpp",
    "imatrix": "measure with a text which columns of a model matter, for quantize --imatrix",
    "info": "show the version, the kernels and the devices",
    "gguf": "show, check, quantize and make GGUF files",
    "plan": "show how much memory a graph or a model needs, and where its tensors lie",
    "calibrate": "measure what work costs on devices, for the scheduling policy 'cost'",
    "check-device": "compare a device with the CPU: operators, memory, graphs",
    "cluster": "use several machines: show the ranks of an MPI job and their latency, run a script on rank 0",
    "profile": "run a Python script and show how long each operator takes",
    "bench": "measure operators, products and models, as a share of what this machine can do",
    "completion": "print a script with which a shell completes commands, options and files",
}
"""What each command does, in a line."""


def main(argv: list[str] | None = None) -> int:
    """``python -m ggml_backend``. Returns the exit status."""
    from .program import command_of, run_command

    return run_command(parser(), lambda options: command_of(__name__, options.command).run(options), argv)


def parser(prog: str = "python -m ggml_backend") -> Parser:
    """The parser of the whole, whose commands tell of their arguments when they are chosen."""
    from .._ffi import lib
    from ..backend.buffer import text
    from .program import Parser, add_commands

    made = Parser(prog=prog, description="The backend layer of ggml.")
    made.add_argument("--version", action="version", version=text(lib.gbpy_version()))
    add_commands(made, __name__, COMMANDS, "command")
    return made
