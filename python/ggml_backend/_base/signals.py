"""Ctrl-C while C computes or waits.

C asks :func:`gbpy_poll` about every 20 ms, on Python's main thread. Python's signal handlers run as soon as it is
entered; what one of them raises is kept here, C gives up, and who called it raises it again.
"""

from __future__ import annotations

import os
import threading
from typing import Any, NoReturn

from .._ffi import ffi, lib

INTERRUPTED: int = lib.GBPY_INTERRUPTED

_raised: list[BaseException] = []
#: Objects that live as long as the process. C keeps :func:`gbpy_poll`, which keeps the variables of this module.
for_ever: list[Any] = []


def _keep(kind: Any, error: BaseException, traceback: Any) -> None:
    _raised[:] = [error]  # an older one that nobody raised would keep the objects of its frames
    lib.gbpy_raise_interrupt_later(id(error))


@ffi.def_extern(error=True, onerror=_keep)  # type: ignore[untyped-decorator]
def gbpy_poll(data: Any) -> bool:
    for _ in (0, 1):  # an interpreter looks for signals where a function begins and where a loop goes on
        pass
    return False


def keep_interrupt(error: BaseException) -> bool:
    """Keeps what ended a function of Python that C called, if a signal handler raised it, as far as one can tell: on
    the main thread, and no ``Exception``. C gives up, and who called it raises that again."""
    if isinstance(error, Exception) or threading.current_thread() is not threading.main_thread():
        return False
    _keep(type(error), error, None)
    return True


def raise_interrupt() -> NoReturn:
    """What the signal handler raised."""
    raise _raised.pop() if _raised else KeyboardInterrupt()


def watch() -> None:
    """From now on C asks on the calling thread, if it is the main one: the only one on which signal handlers run."""
    if threading.current_thread() is threading.main_thread():
        lib.gbpy_watch_signals(lib.gbpy_poll)


lib.gbpy_begin()
watch()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=watch)
