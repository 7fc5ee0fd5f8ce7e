"""``python -m ggml_backend profile``: runs a script, a module or a model file, and prints how long its operators
took."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import runpy
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

from .._base.errors import InvalidArgumentError
from .._base.files import can_write
from .._base.terminal import say
from ..profile.profile import Profile
from .program import INTERRUPTED, Parser

__all__ = ["add_arguments", "run"]

_BY = ("operator", "kind", "algorithm", "fusion", "dtype", "device")


@contextlib.contextmanager
def _as_program(argv: list[str], folder: str) -> Iterator[None]:
    """Sets ``sys.argv``, ``sys.path`` and ``__main__`` as for a script that Python starts
    itself."""
    before = sys.argv, list(sys.path)
    sys.argv, sys.path[:] = argv, [folder, *sys.path]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


def _of_the_script(error: BaseException) -> BaseException:
    """The error without the frames of this module and ``runpy``."""
    frames = error.__traceback__
    while frames is not None and (
        frames.tb_frame.f_code.co_filename == __file__ or "runpy" in frames.tb_frame.f_code.co_filename
    ):
        frames = frames.tb_next
    return error.with_traceback(frames)


def _call(name: str, is_module: bool) -> int:
    """Runs the script and returns its exit status."""
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # an error of the script: the profile up to it is still printed
        traceback.print_exception(_of_the_script(error))
        return 1
    return 0


def _wait_for_threads() -> None:
    """Joins the threads of the script, as Python does at exit: they may still compute."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _check(options: argparse.Namespace) -> str:
    """Checks that the script exists, and returns the folder from which it imports."""
    if options.script[:1] == ["--"]:
        del options.script[0]
    if not options.script:
        options.parser.error("the following arguments are required: SCRIPT")
    name: str = options.script[0]
    if options.m:
        return os.getcwd()
    if not os.path.isfile(name):
        raise InvalidArgumentError(f"profile: there is no file {name}; a module is run with -m")
    return os.path.dirname(os.path.abspath(name))


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _by(options: argparse.Namespace) -> Any:
    if sum(map(bool, (options.by, options.pattern, options.regex))) > 1:
        options.parser.error("--by, --pattern and --regex exclude each other")
    if options.pattern:
        return options.pattern
    if options.regex:
        try:
            return re.compile(options.regex)
        except re.error as error:
            options.parser.error(f"argument --regex: {error}")
    return options.by


def _run_model(path: str, arguments: list[str]) -> int:
    """Runs each kind of work of a model file: once to build its graphs, and once more."""
    from .bench._files import work_of

    if arguments:
        raise InvalidArgumentError(f"profile: {arguments[0]}: a model file takes no arguments; put options before it")
    with work_of(path) as (_, kinds):
        for i in range(2):
            for _, work in kinds.values():
                work(i)
    return 0


def run(options: argparse.Namespace) -> int:
    by, folder = _by(options), _check(options)
    is_model = not options.m and options.script[0].lower().endswith(".gguf")
    for path in filter(None, (options.json, options.trace)):
        can_write(path)
    old = Profile.from_json(options.compare) if options.compare else None
    with _as_program(options.script, folder):
        name = options.script[0]
        if options.m and not _has_module(name):
            raise InvalidArgumentError(f"profile: there is no module {name}")
        with Profile.everything(max_records=options.records) as profile:
            status = _run_model(name, options.script[1:]) if is_model else _call(name, options.m)
            if status != INTERRUPTED:
                _wait_for_threads()
    sys.stdout.flush()
    limits = not options.no_limits
    say(profile.table(by, options.sort, options.top, limits=limits))
    if old is not None:
        print()
        say(f"compared with {options.compare}:")
        say(profile.compare(old, by, options.top))
    if options.json:
        profile.to_json(options.json, limits=limits)
    if options.trace:
        profile.to_trace(options.trace)
    return status


def _number(word: str) -> int:
    if not word.isdigit() or not 0 < int(word) <= 1 << 26:
        raise argparse.ArgumentTypeError(f"{word!r} is no number above 0")
    return int(word)


EXAMPLE = "--by kind SCRIPT.py"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("-m", action="store_true", help="SCRIPT is a module, as for 'python -m'")
    parser.add_argument(
        "--by", choices=_BY, help="what a row of the table is (default: operator if nodes have names, else kind)"
    )
    parser.add_argument(
        "--pattern",
        action="append",
        metavar="TEXT",
        help="group nodes whose names match, such as '*attn*'; may be repeated",
    )
    parser.add_argument(
        "--regex",
        metavar="TEXT",
        help=r"group nodes by a regular expression whose groups name the rows, such as 'layer(\d+)'",
    )
    parser.add_argument(
        "--sort", default="time", metavar="COLUMN",
        choices=("time", "calls", "median", "limit", "waiting", "bytes", "flops", "name"),
        help="time, calls, median, limit (furthest from it first), waiting, bytes, flops or name (default: time)",
    )  # fmt: skip
    parser.add_argument("--top", type=_number, default=30, metavar="N", help="number of rows (default: 30)")
    parser.add_argument("--no-limits", action="store_true", help="do not measure the limits of this machine")
    parser.add_argument(
        "--records", type=_number, default=1 << 20, metavar="N", help="capacity of the profile (default: a million)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the profile to a file")
    parser.add_argument("--trace", metavar="FILE", help="write the profile as Chrome trace JSON, for ui.perfetto.dev")
    parser.add_argument("--compare", metavar="FILE", help="compare the profile with one that --json wrote")
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT ...",
        help="the script and its arguments; or a model, MODEL.gguf",
    )
