"""Numbers as C parameters, and messages about values that C cannot take."""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._ffi import ffi
from .messages import kind_of

__all__ = ["all_plain", "parameter_error", "plain_numbers"]

_PLAIN = frozenset({int, float, bool, str, bytes, type(None), type(ffi.NULL), type(ffi.new("int[1]"))})
all_plain = _PLAIN.issuperset
"""Whether :func:`plain_numbers` changes no argument of these types."""


def plain_numbers(args: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments with an int or a float in the place of every other number.

    cffi calls ``__int__`` of any object, which cuts off fractions and reads text. A float in the place of an integer is
    a TypeError.
    """
    return tuple(value if type(value) in _PLAIN else _plain_number(value) for value in args)


def _plain_number(value: Any) -> Any:
    """None for an array that is no number. Other objects stay unchanged."""
    if isinstance(value, (np.ndarray, np.generic)) and (
        value.ndim != 0 or value.dtype.kind in "SUOMmc" or np.ma.is_masked(value)
    ):
        return None
    if isinstance(value, ffi.CData):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return float(value) if hasattr(type(value), "__float__") else value
    except (TypeError, ValueError, OverflowError):
        return None


def parameter_error(error: Exception, args: Sequence[Any]) -> str:
    """The message of cffi for an argument that C cannot take, in the words of the public function that was called."""
    text = str(error)
    if isinstance(error, TypeError):
        whole = text == "an integer is required"
        kind = (int, ffi.CData) if whole else (int, float, ffi.CData)
        plain = plain_numbers(args)
        wrong = next((v for v, number in zip(args, plain, strict=True) if not isinstance(number, kind)), None)
        return f"{_argument_name(wrong)} must be {'an int' if whole else 'a number'}, not {kind_of(wrong)}"
    if text.startswith("integer ") and "does not fit" in text:
        return f"{text.split()[1]} is too large"
    return text


def _argument_name(value: object) -> str:
    """The name of the parameter with this value, in the function of :mod:`.ops` that is being called."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        module = frame.f_globals.get("__name__", "")
        if module.startswith("ggml_backend.ops.") and not code.co_name.startswith("_"):
            for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
                given = frame.f_locals.get(name)
                if given is value or (isinstance(given, (tuple, list)) and any(v is value for v in given)):
                    return name
        frame = frame.f_back
    return "an argument"
