"""The interface of commands, and their exit status.

- 0: done
- 1: an error. Stderr gets one line, ``python -m ggml_backend plan: error: ...``. Set ``GGML_TRACEBACK=1`` for a
  traceback
- 2: wrong arguments. Stderr also gets the usage of the command
- 130: Ctrl-C
- 141: the reader of the output has closed it (``... | head``)
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Protocol, cast

from .._base.errors import InvalidArgumentError
from .._base.terminal import fail
from .._base.text import line

__all__ = [
    "Command",
    "Parser",
    "add_commands",
    "add_import",
    "command_of",
    "complete",
    "import_named",
    "need_input",
    "need_output",
    "plain_warnings",
    "run_command",
]

BROKEN_PIPE, INTERRUPTED = 141, 130


class Command(Protocol):
    """The interface of the module of a command."""

    EXAMPLE: str
    """Arguments of a typical call, shown in the help and the documentation."""

    def add_arguments(self, parser: Parser) -> None:
        """Adds the options of the command."""

    def run(self, options: argparse.Namespace) -> int:
        """Runs the command and returns the exit status. ``options.parser`` is the command's
        parser."""


def command_of(package: str, name: str) -> Command:
    """Imports the module of a command."""
    return cast("Command", import_module(f"{package}.{name.replace('-', '_')}"))


def add_commands(
    parser: Parser,
    package: str,
    commands: Mapping[str, str],
    what: str,
    aliases: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Adds a subparser for each command of a package.

    commands: one-line descriptions by name
    what: the attribute of ``options`` that gets the name of the chosen command
    aliases: other names of commands
    """
    parsers = parser.add_subparsers(dest=what, required=True, metavar=what)
    for name, text in commands.items():
        made = parsers.add_parser(name, aliases=(aliases or {}).get(name, ()), help=text, description=text)
        made.set_defaults(**{"parser": made, what: name})
        made.chosen = partial(command_of, package, name)


def complete(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Adds the options of all commands, as if each were chosen. Yields the parser and all parsers
    below it."""
    if isinstance(parser, Parser):
        parser.add_options()
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from complete(one)


def add_import(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Adds the option --import of :func:`import_named`."""
    parser.add_argument(
        "--import", dest="module", metavar="MODULE", help="first import this Python module, which registers devices"
    )


def import_named(options: argparse.Namespace) -> None:
    """Imports the module of --import. Like ``python -m``, it also looks in the current folder."""
    if options.module is None:
        return
    sys.path.insert(0, "")
    try:
        import_module(options.module)
    except ImportError as error:
        raise InvalidArgumentError(f"--import {options.module}: {error}") from error


class Parser(argparse.ArgumentParser):
    """A parser that adds the options of a command when the command is chosen. Its subparsers have
    the same class. A failure to write the help is an error."""

    chosen: Callable[[], Command] | None = None
    """Imports the command whose options are not added yet."""

    def add_options(self) -> None:
        """Adds the options of the command, once."""
        if self.chosen is not None:
            command, self.chosen = self.chosen(), None
            command.add_arguments(self)
            self.epilog: str | None = f"example: {self.prog} {command.EXAMPLE}"

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        self.add_options()
        return super().parse_known_args(*args, **options)

    def _print_message(self, message: str, file: Any = None) -> None:
        if message and file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)


def parse(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Like ``parse_args``, but an unknown argument is reported with the usage of the subcommand."""
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        used: argparse.ArgumentParser = getattr(options, "parser", parser)
        used.error(f"unrecognized arguments: {line(' '.join(unknown))}")
    return options


def run_command(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], argv: list[str] | None
) -> int:
    """Runs a command and returns its exit status. Prints an error as one line."""
    command = parser.prog
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        options = parse(parser, argv)
        command = options.parser.prog
        status = int(run(options))
        sys.stdout.flush()
    except SystemExit as end:  # from argparse, whose help may still be buffered
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
        except (OSError, ValueError):  # for example a full disk: without this, the flush at exit fails again
            _drop_output()
        return 1
    return status


class _Null(io.TextIOWrapper):
    """The null device in place of a stream that the shell closed."""


def _open_streams() -> None:
    """Opens streams that the shell closed (``>&-``) as null devices. Otherwise the next opened file
    would get their descriptors."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _Null(io.FileIO(os.devnull, "w"), encoding="utf-8"))


@contextlib.contextmanager
def plain_warnings(command: str) -> Iterator[None]:
    """Prints warnings without a line of code, because the user wrote none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        fail(command, warning.message, "warning")


def need_output() -> None:
    """An error if the shell closed the standard output (``>&-``): the result of a long computation would be lost."""
    if isinstance(sys.stdout, _Null):
        raise InvalidArgumentError("the standard output is closed: the result would be lost")


def need_input(instead: str) -> None:
    """An error if the shell closed the standard input (``<&-``). instead: what the user can give"""
    if sys.stdin is None:
        raise InvalidArgumentError(f"the standard input is closed: {instead}")


def _drop_output() -> None:
    """Discards buffered output."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
