"""What the command lines of the examples share: limits of numbers, errors in one line, Ctrl-C, complete files."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np


def count(most: int = 1 << 20) -> Callable[[str], int]:
    """For ``type=`` of an argument: a whole number from 1 on."""

    def whole_number(word: str) -> int:
        value = int(word)
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"{word} is not from 1 to {most}")
        return value

    return whole_number


EXAMPLE_DEVICES = {"NP": "examples.numpy_device"}
"""Devices of the examples, each with the module that registers it."""


def device_list(text: str) -> list[str]:
    """For ``type=`` of an argument: ``"NP,SIM:mem=64M,delay=1ms,CPU"`` as three names with their options."""
    names: list[str] = []
    for item in text.split(","):
        key, sign, _ = item.partition("=")
        if names and sign and ":" not in key:  # a further option of the last name
            names[-1] += f",{item}"
        else:
            names.append(item)
    for name in names:
        module = EXAMPLE_DEVICES.get(name.partition(":")[0].upper())
        if module:
            importlib.import_module(module)
    return names


def module(name: str) -> str:
    """For ``type=`` of an argument: imports a module of Python, which may register devices."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def add_devices(parser: argparse.ArgumentParser) -> None:
    """Adds ``--devices``, and ``--import`` for devices of the user."""
    parser.add_argument(
        "--devices",
        type=device_list,
        default="CPU",
        help="registry names in order of priority, e.g. NP,CPU (default: %(default)s)",
    )
    parser.add_argument(
        "--import",
        dest="module",
        type=module,
        metavar="MODULE",
        help="import this module of Python first, which registers devices of your own",
    )


def plain(text: object) -> str:
    """Text of unknown origin for a terminal, without control characters, which could control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def one_line(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, (LookupError, ArithmeticError)):
        text = f"{type(error).__name__}: {text}"
    return plain(" ".join(text.split()))


def run(main: Callable[[], None], name: str) -> NoReturn:
    """Runs the program and exits. An error prints one line, and the status is 1. If the reader of the output closed it,
    nothing is printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if os.environ.get("GGML_TRACEBACK") == "1":
            raise
        print(f"{name}: {one_line(error)}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def read_text(path: Path) -> str:
    """The text of a file. If it is not UTF-8, the error names the file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not a text in UTF-8: byte {error.start} is {path.read_bytes()[error.start]:#04x}"
        ) from None


class Interrupts:
    """Notes Ctrl-C in a ``with`` block, so that the current step can complete. A second Ctrl-C ends the program."""

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def save_array(path: Path, array: np.ndarray[Any, Any]) -> None:
    """Like ``np.save``, but replaces a file only when the new file is complete."""
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            np.save(file, array)
        return
    target = path.resolve()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, array)
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(file.fileno(), target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~mask)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
