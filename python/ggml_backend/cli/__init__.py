"""The command line, ``python -m ggml_backend``: a module for each command, called like it.

Each module has ``HELP``, what the command does in a line; ``add_arguments(parser)``, which tells the parser what it
takes; and ``run(options)``, which does it and returns the exit status. Modules of commands are imported when a command
is run: who imports the package for its functions does not wait for them.
"""

from __future__ import annotations

from .info import show_config

__all__ = ["main", "show_config"]


def main(argv: list[str] | None = None) -> int:
    """``python -m ggml_backend``. Returns the exit status."""
    from .._ffi import lib
    from ..buffer import text
    from . import bench, calibrate, gguf, info, plan
    from .program import Command, Parser, add_commands, run_command

    commands: dict[str, Command] = {"info": info, "gguf": gguf, "plan": plan, "calibrate": calibrate, "bench": bench}
    parser = Parser(prog="python -m ggml_backend", description="The backend layer of ggml.")
    parser.add_argument("--version", action="version", version=text(lib.gbpy_version()))
    add_commands(parser, commands, "command")
    return run_command(parser, lambda options: commands[options.command].run(options), argv)
