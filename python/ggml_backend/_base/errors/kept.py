"""Exceptions that functions called by C raise.

An exception cannot pass through C. The function keeps it here, on its thread, with the text that it gives to C as its
message. The caller of C finds that text in the message of the failure, and raises the exception itself.
"""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["keep", "take"]


_MOST = 4
"""Exceptions of one thread: of several failures C reports the first, and a call that waits for several devices may see
each of them fail."""


class _Kept(threading.local):
    def __init__(self) -> None:
        self.errors: deque[tuple[str, BaseException]] = deque(maxlen=_MOST)


_kept = _Kept()


def keep(error: BaseException, text: str) -> None:
    """Those before are kept, too, as far as there is room."""
    _kept.errors.append((text, error))


def take(message: str) -> BaseException | None:
    """The exception that a failure with this message stands for, if there is one. Those before it belong to failures
    that C has coped with, or that came with this one; they are forgotten."""
    for text, error in reversed(_kept.errors):
        if text in message:
            _kept.errors.clear()
            return error
    return None
