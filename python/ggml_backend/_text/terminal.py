"""What the commands share: printing, progress, and how they end.

Exit status: 0 done; 1 an error, told in one line on stderr, in the form of ``argparse``: ``python -m ggml_backend plan:
error: ...``; 2 used wrongly, told with the usage of the command; 130 Ctrl-C; 141 the reader of the output went away
(``... | head``), told to nobody.
``GGML_TRACEBACK=1`` shows where an error came from.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from .escape import line, lines

__all__ = ["Bar", "fail", "print_json", "reason", "run_command", "say", "step_bar"]

BROKEN_PIPE, INTERRUPTED = 141, 130


def say(text: object) -> None:
    """Prints lines, of which parts may come from files."""
    print(lines(text))


def fail(command: str, error: object, kind: str = "error") -> None:
    """An error, in one line, or a warning on stderr. What the message begins with is not said twice."""
    text = reason(error) if isinstance(error, Exception) else str(error)
    text = text.removeprefix(f"{command.rpartition(' ')[2]}: ")
    print(f"{command}: {kind}: {line(text) if kind == 'error' else lines(text)}", file=sys.stderr)


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)  # ASCII: whatever is in it
    print()


class Bar:
    """A progress bar on stderr, if that is a terminal: called with what is done and what there is in all."""

    def __init__(self, label: str, unit: str = "MB", scale: float = 1e6) -> None:
        self.label = line(label)
        self.unit = unit
        self.scale = scale
        self.shown = sys.stderr.isatty()
        self.start = self.last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self.shown or (done < total and now - self.last < 0.1):
            return
        self.last = now
        part = done / total if total else 1.0
        filled = int(30 * part)
        rate = done / max(now - self.start, 1e-6) / self.scale
        amount = f"{done / self.scale:.0f} {self.unit}, {rate:.0f} {self.unit}/s"
        text = f"\r{self.label} [{'#' * filled}{'.' * (30 - filled)}] {100 * part:3.0f} % {amount}"
        print(text, end="\n" if done >= total else "", file=sys.stderr, flush=True)


def step_bar(label: str) -> Callable[[int, int, str], None]:
    """The same for steps: also called with what comes next."""
    shown = sys.stderr.isatty()

    def show(done: int, total: int, what: str) -> None:
        if shown:
            filled = 30 * done // total
            text = f"\r{line(label)} [{'#' * filled}{'.' * (30 - filled)}] {100 * done // total:3d} % {line(what):24}"
            print(text, end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show


def reason(error: BaseException) -> str:
    """An exception's message; of those whose message alone says nothing, with their kind."""
    text = str(error)
    if isinstance(error, KeyError) and error.args:
        text = str(error.args[0])
    if isinstance(error, OSError) and error.strerror:
        name = error.filename
        if name is None:
            return error.strerror
        return f"{os.fsdecode(name) if isinstance(name, (str, bytes)) else name}: {error.strerror}"
    if not text or isinstance(error, (ArithmeticError, LookupError, AttributeError, UnicodeError, RecursionError)):
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text


class Parser(argparse.ArgumentParser):
    """One whose help that cannot be written is an error; its subparsers are of this class, too."""

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


def run_command(parser: argparse.ArgumentParser, argv: list[str] | None) -> int:
    """The exit status of a command, with errors as one line. Its options have the function to run, and its parser."""
    command = parser.prog
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal of another encoding shows what it cannot as escapes
            stream.reconfigure(errors="backslashreplace")
    try:
        options = parse(parser, argv)
        command = options.parser.prog
        status = int(options.run(options))
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
