"""Exceptions, one for each kind of ``enum ggml_status``, and how a C failure becomes one.

Every C function that fails leaves a status and a message for the calling thread; :func:`raise_last` turns them into the
exception of that status. All exceptions are a :class:`GgmlError` and also the built-in exception that a Python
programmer would expect (``ValueError``, ``MemoryError``, ...).

An exception of a Python function that C calls cannot pass through C. :func:`keep_exception` keeps it for its thread and
gives C a text as the message. If :func:`raise_last` finds that text in the message of a failure, it raises the kept
exception.
"""

from __future__ import annotations

import operator
import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

from ..._ffi import ffi, lib
from ..signals import raise_interrupt
from .faults import Fault, last_message, node_refused, spoken
from .messages import kind_of, maker_hint

__all__ = [
    "AllocationError",
    "DeviceError",
    "DeviceLostError",
    "FileError",
    "GgmlError",
    "InvalidArgumentError",
    "NonFiniteError",
    "PerformanceWarning",
    "StateError",
    "UnsupportedError",
]


class GgmlError(Exception):
    """Base of all errors of this package. ``status`` is the C status, a negative ``enum ggml_status``. ``fault`` says
    which rule of an operator is broken, as values: a named tuple of kind, operator, operands, axes, numbers, dtypes and
    parameter. It is None for other errors."""

    status: int = lib.GGML_STATUS_FAILED
    fault: Fault | None = None


class InvalidArgumentError(GgmlError, ValueError):
    """A wrong type, shape, size or value."""

    status: int = lib.GGML_STATUS_INVALID_ARGUMENT


class AllocationError(GgmlError, MemoryError):
    """No memory, on the host or on a device."""

    status: int = lib.GGML_STATUS_ALLOC_FAILED


class UnsupportedError(GgmlError, NotImplementedError):
    """Valid, but not implemented for this type, operation or backend."""

    status: int = lib.GGML_STATUS_UNSUPPORTED


class DeviceError(GgmlError, RuntimeError):
    """A device or its driver reported a failure."""

    status: int = lib.GGML_STATUS_DEVICE_ERROR


class DeviceLostError(DeviceError):
    """A rank of a cluster has ended or does not answer. ``rank`` is its number, ``host`` its host. You can use the
    other ranks in a new scheduler."""

    def __init__(self, text: str, rank: int = -1, host: str = "") -> None:
        super().__init__(text)
        self.rank = rank
        self.host = host


class StateError(GgmlError, RuntimeError):
    """The object cannot do that now: it is closed, or has no memory yet."""

    status: int = lib.GGML_STATUS_INVALID_STATE


class NonFiniteError(GgmlError, ArithmeticError):
    """A result is NaN or infinite where the computation cannot go on."""


class FileError(GgmlError, OSError):
    """A file could not be opened, read or written, or its content is malformed."""

    status: int = lib.GGML_STATUS_IO_ERROR


class PerformanceWarning(UserWarning):
    """A heavy operation runs on a slower device, because the faster ones do not support it.

    A scheduler warns once for each plan. ``warnings.filterwarnings`` silences the warning or makes it
    an error.
    """


_BY_STATUS: dict[int, type[GgmlError]] = {
    c.status: c
    for c in (InvalidArgumentError, AllocationError, UnsupportedError, DeviceError, StateError, FileError, GgmlError)
}


class _Kept(threading.local):
    """The last exceptions of a thread. C reports the first of several failures, and a call that waits for several
    devices may see each of them fail."""

    def __init__(self) -> None:
        self.errors: deque[tuple[str, BaseException]] = deque(maxlen=4)


_kept = _Kept()


def keep_exception(error: BaseException, text: str) -> None:
    """Keeps an exception for the failure whose message has this text."""
    _kept.errors.append((text, error))


def take_exception(message: str) -> BaseException | None:
    """The exception of the failure with this message, if it has one. Forgets all exceptions up to it: C has handled
    their failures, or they came with this one."""
    for text, error in reversed(_kept.errors):
        if text in message:
            _kept.errors.clear()
            return error
    return None


NOT_GIVEN: Any = None
"""The default of parameters that only this package gives."""

_INTERRUPTED: int = lib.GBPY_INTERRUPTED
_outcome = lib.gbpy_outcome
_last_status = lib.ggml_last_status
_string = ffi.string
clear_error = lib.ggml_clear_error


def raise_last(prefix: str = "", status: int | None = None) -> NoReturn:
    """Raises the exception for this thread's last C failure. ``prefix`` is put before its message."""
    if status is None:
        status = _last_status()
    if _outcome(status) == _INTERRUPTED:
        raise_interrupt()
    message = last_message()
    kept = take_exception(message)
    if kept is not None:
        raise kept
    fault, hint = node_refused(message) or (None, "")
    raise_as(status, spoken(message) + hint, prefix, fault)


def raise_as(status: int, message: str, prefix: str = "", fault: Fault | None = None) -> NoReturn:
    """Raises the exception of a status. A message that already names the call, with or without the class, gets no
    second prefix."""
    called, _, method = prefix.partition(".")
    if prefix and message.startswith((f"{called}.", f"{prefix}: ")):
        prefix = ""
    elif method:
        message = message.removeprefix(f"{method}: ").removeprefix(f"{method} ")
    if not message:
        message = "failed with status " + _string(lib.ggml_status_to_string(status)).decode()
    # A variable for the error would make a cycle with the frame in its traceback.
    raise error_of(status, f"{prefix}: {message}" if prefix else message, fault)


def error_of(status: int, message: str, fault: Fault | None = None) -> GgmlError:
    """The exception of a status."""
    error = _BY_STATUS.get(status, GgmlError)(message)
    error.status, error.fault = status, fault
    return error


def check(status: int, prefix: str = "") -> None:
    """Raises unless ``status`` is SUCCESS."""
    if status != 0:
        raise_last(prefix, status)


def non_null(pointer: Any, prefix: str = "") -> Any:
    """``pointer``, unless it is NULL: then raises."""
    if not pointer:
        raise_last(prefix)
    return pointer


def expect_int(value: Any, what: str) -> int:
    """TypeError unless the argument is an integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, not {kind_of(value)}") from None


def expect_bool(value: Any, what: str) -> bool:
    """TypeError unless the argument is true or false: a bool, of NumPy too, or 0 or 1."""
    if value is True or value is False:
        return value
    if kind_of(value) in ("numpy.bool", "numpy.bool_") or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{what} must be a bool, not {kind_of(value)}")


def expect_path(value: object, what: str) -> None:
    """TypeError unless the argument is a path."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise TypeError(f"{what} must be a path, not {kind_of(value)}")
    name = os.fsdecode(value)
    if not name:
        raise InvalidArgumentError(f"{what} is empty")
    if "\0" in name:
        raise InvalidArgumentError(f"{what}: a path cannot hold NUL: {name!r:.60}")


def expect_list(value: Any, what: str, of: str) -> tuple[Any, ...]:
    """The argument as a tuple; TypeError unless it is a list or the like."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return tuple(value)
    except TypeError:
        raise TypeError(f"{what} must be a list of {of}, not {kind_of(value)}") from None


def expect_choice(value: Any, what: str, choices: Sequence[str]) -> None:
    """InvalidArgumentError unless the argument is one of these texts."""
    if not isinstance(value, str) or value not in choices:
        shown = repr(value) if isinstance(value, str) else kind_of(value)
        raise InvalidArgumentError(f"{what} must be one of {', '.join(map(repr, choices))}, not {shown:.60}")


def expect_function(value: object, what: str, hint: str = "") -> None:
    """TypeError unless the argument can be called."""
    if not callable(value):
        raise TypeError(f"{what} must be a function, not {kind_of(value)}{hint}")


def expect(value: object, kind: type, what: str) -> None:
    """TypeError unless the argument is one."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a {kind.__name__}, not {kind_of(value)}{maker_hint(kind.__name__, value)}")
