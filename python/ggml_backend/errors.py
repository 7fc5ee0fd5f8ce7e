"""Exceptions and warnings of the package.

Each exception is a :class:`GgmlError` and the built-in exception that fits, such as ``ValueError``.
Its ``fault`` is a :class:`Fault` if a call breaks a rule of an operator.
"""

from __future__ import annotations

from ._base.errors import (
    AllocationError,
    DeviceError,
    DeviceLostError,
    FileError,
    GgmlError,
    InvalidArgumentError,
    NonFiniteError,
    PerformanceWarning,
    StateError,
    UnsupportedError,
)
from ._base.errors.faults import Fault
from ._base.errors.messages import UnknownKey

__all__ = [
    "AllocationError", "DeviceError", "DeviceLostError", "Fault", "FileError", "GgmlError", "InvalidArgumentError",
    "NonFiniteError", "PerformanceWarning", "StateError", "UnknownKey", "UnsupportedError",
]  # fmt: skip

for _public in (Fault, UnknownKey, PerformanceWarning, GgmlError, *GgmlError.__subclasses__(), DeviceLostError):
    _public.__module__ = __name__  # where users find it, and what tracebacks and pickles name
