"""``python -m ggml_backend completion SHELL``: prints the completion script of a shell.

ggml-backend completion bash > ~/.local/share/bash-completion/completions/ggml-backend
"""

from __future__ import annotations

import argparse

from .._base.errors import InvalidArgumentError
from .program import complete

SHELLS = ("bash", "zsh", "tcsh")
PROGRAM = "ggml-backend"

EXAMPLE = "bash"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="your shell")


def run(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise InvalidArgumentError("it needs shtab: pip install 'ggml_backend[completion]'") from None
    from . import parser

    whole = parser(PROGRAM)
    for one in complete(whole):
        for action in one._actions:
            if action.nargs != 0 and action.choices is None:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(whole, shell=options.shell))
    return 0
