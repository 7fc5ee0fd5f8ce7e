"""The command line's parser with every command, for the page of the command line."""

from __future__ import annotations

import argparse

from ggml_backend import cli
from ggml_backend.cli.program import Parser, add_commands


def _complete(parser: argparse.ArgumentParser) -> None:
    """Commands tell of their arguments when they are chosen; here all are."""
    if isinstance(parser, Parser) and parser.chosen is not None:
        command, parser.chosen = parser.chosen(), None
        command.add_arguments(parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                _complete(one)


def parser() -> argparse.ArgumentParser:
    whole = Parser(prog="python -m ggml_backend", description="The backend layer of ggml.")
    add_commands(whole, cli.__name__, cli.COMMANDS, "command")
    _complete(whole)
    return whole
