"""The form of commands, and how they end.

Exit status: 0 done; 1 an error, told in one line on stderr, in the form of ``argparse``: ``python -m ggml_backend plan:
error: ...``; 2 used wrongly, told with the usage of the command; 130 Ctrl-C; 141 the reader of the output went away
(``... | head``), told to nobody.
``GGML_TRACEBACK=1`` shows where an error came from.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Protocol, cast

from .._base.errors import InvalidArgumentError
from .._base.terminal import fail
from .._base.text import line

__all__ = ["Command", "Parser", "add_commands", "add_import", "command_of", "complete", "import_named", "run_command"]

BROKEN_PIPE, INTERRUPTED = 141, 130


class Command(Protocol):
    """What the module of each command has."""

    EXAMPLE: str
    """Arguments of a typical call; help and documentation show them behind the command."""

    def add_arguments(self, parser: Parser) -> None:
        """Tells the parser what the command takes."""

    def run(self, options: argparse.Namespace) -> int:
        """Does it, and returns the exit status. ``options.parser`` is the command's parser."""


def command_of(package: str, name: str) -> Command:
    """The module of a command."""
    return cast("Command", import_module(f"{package}.{name.replace('-', '_')}"))


def add_commands(
    parser: Parser,
    package: str,
    commands: Mapping[str, str],
    what: str,
    aliases: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Gives a parser subparsers, one for each command of a package, with what it does in a line; ``options`` have the
    name of the chosen one as ``what``. aliases: other names of commands"""
    parsers = parser.add_subparsers(dest=what, required=True, metavar=what)
    for name, text in commands.items():
        made = parsers.add_parser(name, aliases=(aliases or {}).get(name, ()), help=text, description=text)
        made.set_defaults(**{"parser": made, what: name})
        made.chosen = partial(command_of, package, name)


def complete(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Asks all commands for their arguments, as if each were chosen. Gives the parser and all below it."""
    if isinstance(parser, Parser):
        parser.ask()
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from complete(one)


def add_import(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Gives a command the option that :func:`import_named` follows."""
    parser.add_argument(
        "--import", dest="module", metavar="MODULE", help="import this module of Python first, which registers devices"
    )


def import_named(options: argparse.Namespace) -> None:
    """Imports the module that was named, also where it stands in the current folder, as for ``python -m``."""
    if options.module is None:
        return
    sys.path.insert(0, "")
    try:
        import_module(options.module)
    except ImportError as error:
        raise InvalidArgumentError(f"--import {options.module}: {error}") from error


class Parser(argparse.ArgumentParser):
    """One that asks a command for its arguments when it is chosen, and whose help that cannot be written is an error;
    its subparsers are of this class, too."""

    chosen: Callable[[], Command] | None = None
    """The command whose arguments it does not know yet."""

    def ask(self) -> None:
        """Adds the arguments of the command."""
        if self.chosen is not None:
            command, self.chosen = self.chosen(), None
            command.add_arguments(self)
            self.epilog: str | None = f"example: {self.prog} {command.EXAMPLE}"

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        self.ask()
        return super().parse_known_args(*args, **options)

    def _print_message(self, message: str, file: Any = None) -> None:
        if message and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)


def parse(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """As ``parse_args``, but what a subcommand does not know is told with the usage of the subcommand, its
    ``parser``."""
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        used: argparse.ArgumentParser = getattr(options, "parser", parser)
        used.error(f"unrecognized arguments: {line(' '.join(unknown))}")
    return options


def run_command(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], argv: list[str] | None
) -> int:
    """The exit status of a command, with errors as one line. Its options have its parser."""
    command = parser.prog
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal of another encoding shows what it cannot as escapes
            stream.reconfigure(errors="backslashreplace")
    try:
        options = parse(parser, argv)
        command = options.parser.prog
        status = int(run(options))
        sys.stdout.flush()
    except SystemExit as end:  # of the parser of arguments, whose help may still be buffered
        try:
            sys.stdout.flush()
        except OSError as error:
            fail(command, error)
            _drop_output()
            return 1
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("GGML_TRACEBACK") == "1":
            raise
        fail(command, error)
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # a full disk, say: it would fail once more at the end
            _drop_output()
        return 1
    return status


def _open_streams() -> None:
    """Python has no streams where the shell closed them (``>&-``): then output goes nowhere, and no file that is opened
    later takes their place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def _drop_output() -> None:
    """What is still buffered goes nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
