"""The command line, ``python -m ggml_backend``: a module for each command, called like it
(with ``_`` for ``-``).

Each module has ``add_arguments(parser)``, which tells the parser what the command takes, and ``run(options)``, which
does it and returns the exit status. What it does in a line stands here, so that a module is imported only when its
command is chosen: no command waits for the others, and who imports the package for its functions for none.
"""

from __future__ import annotations

from .info import show_config

__all__ = ["main", "show_config"]

COMMANDS = {
    "info": "what this build has and what it found on this machine",
    "gguf": "look at, check, quantize and make GGUF files",
    "plan": "where tensors lie in memory: of a CSV file with lifetimes, of an example graph, of a model",
    "calibrate": "measure what work costs on devices, for the scheduling policy 'cost'",
    "check-device": "whether a device computes what the CPU computes: every operator, memory, graphs",
    "cluster": "the ranks of an MPI job: what they have, how far they are; scripts that rank 0 runs",
    "profile": "how long each operator takes that a script of Python computes",
    "bench": "how fast operators, products and models are, as a share of what this machine can do",
}
"""What each command does, in a line."""


def main(argv: list[str] | None = None) -> int:
    """``python -m ggml_backend``. Returns the exit status."""
    from .._ffi import lib
    from ..buffer import text
    from .program import Parser, add_commands, command_of, run_command

    parser = Parser(prog="python -m ggml_backend", description="The backend layer of ggml.")
    parser.add_argument("--version", action="version", version=text(lib.gbpy_version()))
    add_commands(parser, __name__, COMMANDS, "command")
    return run_command(parser, lambda options: command_of(__name__, options.command).run(options), argv)
