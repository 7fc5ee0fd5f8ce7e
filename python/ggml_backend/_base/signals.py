"""Ctrl-C while C computes or waits, and while the command line starts.

C calls :func:`gbpy_poll` about every 20 ms on Python's main thread, which runs pending signal
handlers. If a handler raises, the exception is kept here, C stops, and the caller of C raises the
exception.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, NoReturn

from .._ffi import ffi, lib

INTERRUPTED: int = lib.GBPY_INTERRUPTED

_raised: list[BaseException] = []
#: Objects that live as long as the process. C keeps :func:`gbpy_poll`, which keeps the variables of this module.
for_ever: list[Any] = []


def _keep(kind: Any, error: BaseException, traceback: Any) -> None:
    _raised[:] = [error]  # replaces an older unraised exception, which would keep its frames alive
    lib.gbpy_raise_interrupt_later(id(error))


@ffi.def_extern(error=True, onerror=_keep)  # type: ignore[untyped-decorator]
def gbpy_poll(data: Any) -> bool:
    for _ in (0, 1):  # Python checks for signals at the start of a function and at each turn of a loop
        pass
    return False


def keep_interrupt(error: BaseException) -> bool:
    """Keeps an exception from a Python callback of C if it probably came from a signal handler: on
    the main thread, and not an ``Exception``. C then stops, and the caller of C raises it."""
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    _keep(type(error), error, None)
    return True


def raise_interrupt() -> NoReturn:
    """The kept exception of a signal handler."""
    raise _raised.pop() if _raised else KeyboardInterrupt()


def watch() -> None:
    """Makes C poll on the calling thread if that is the main thread, the only one that runs signal
    handlers."""
    if threading.current_thread() is threading.main_thread():
        lib.gbpy_watch_signals(lib.gbpy_poll)


def _end_the_line(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print(file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


def _hide_interrupts() -> None:
    """Leaves out the traceback of an interrupt if this program is ``ggml-backend`` or ``python -m ggml_backend``.

    The package imports NumPy before a function of the command runs, so no function could catch an interrupt of that
    time.
    """
    program = (getattr(sys, "argv", None) or [""])[0]
    if program == "-m":  # Python has not found the file of the module yet
        is_command = "ggml_backend" in sys.orig_argv
    else:
        is_command = os.path.basename(program).removesuffix(".exe") == "ggml-backend"
    if is_command:
        sys.excepthook = _end_the_line


lib.gbpy_begin()
watch()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watch)
_hide_interrupts()
