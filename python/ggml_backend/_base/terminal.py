"""Printing to terminals: lines, errors, JSON, and bars of progress."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from .text import line, lines

__all__ = ["Bar", "fail", "print_json", "reason", "say", "step_bar"]


def say(text: object) -> None:
    """Prints lines with parts that may come from files."""
    print(lines(text))


def fail(command: str, error: object, kind: str = "error") -> None:
    """Prints an error or warning as one line on stderr. Does not repeat a prefix of the message."""
    text = reason(error) if isinstance(error, Exception) else str(error)
    text = text.removeprefix(f"{command.rpartition(' ')[2]}: ")
    print(f"{command}: {kind}: {line(text) if kind == 'error' else lines(text)}", file=sys.stderr)


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)  # ASCII, so any text is safe
    print()


class Bar:
    """A progress bar on stderr if that is a terminal. Call it with the amount done and the
    total."""

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
    """A progress bar for steps, also called with the name of the next step."""
    shown = sys.stderr.isatty()

    def show(done: int, total: int, what: str) -> None:
        if shown:
            filled = 30 * done // total
            text = f"\r{line(label)} [{'#' * filled}{'.' * (30 - filled)}] {100 * done // total:3d} % {line(what):24}"
            print(text, end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show


def reason(error: BaseException) -> str:
    """The message of an exception, with its type if the message alone is not enough."""
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
