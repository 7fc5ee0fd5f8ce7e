"""Exceptions that functions called by C raise.

An exception cannot pass through C. The function keeps it here, on its thread, with the text that it gives to C as its
message; whoever called C finds that text in the message of the failure and raises the exception itself.
"""

from __future__ import annotations

import threading

__all__ = ["keep", "take"]


class _Kept(threading.local):
    error: BaseException | None = None
    text: str = ""


_kept = _Kept()


def keep(error: BaseException, text: str) -> None:
    """The last one counts: an older one that nobody raised belongs to a failure that C has coped with."""
    _kept.error, _kept.text = error, text


def take(message: str) -> BaseException | None:
    """The exception that a failure with this message stands for, if there is one."""
    error = _kept.error
    if error is None or _kept.text not in message:
        return None
    _kept.error = None
    return error
