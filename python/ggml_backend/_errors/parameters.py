"""What is wrong with a parameter that C cannot take, by the name that the function that was called gives it."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._ffi import ffi
from .messages import kind_of

__all__ = ["parameter_error"]


def parameter_error(error: Exception, args: Sequence[Any]) -> str:
    """What cffi says of an argument that C cannot take, without its terms; with its name, as the public function that
    was called has it."""
    text = str(error)
    if isinstance(error, TypeError):
        whole = text == "an integer is required"
        kind = (int, np.integer) if whole else (int, float, np.integer, np.floating)
        wrong = next((v for v in args if not isinstance(v, (*kind, ffi.CData))), None)
        return f"{_argument_name(wrong)} must be {'an int' if whole else 'a number'}, not {kind_of(wrong)}"
    if text.startswith("integer ") and "does not fit" in text:
        return f"{text.split()[1]} is too large"
    return text


def _argument_name(value: object) -> str:
    """What the parameter is called that was given this value: of the function of :mod:`.ops` that is being called."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        module = frame.f_globals.get("__name__", "")
        if module.startswith(("ggml_backend.ops.", "ggml_backend.custom")) and not code.co_name.startswith("_"):
            for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
                given = frame.f_locals.get(name)
                if given is value or (isinstance(given, (tuple, list)) and any(v is value for v in given)):
                    return name
        frame = frame.f_back
    return "an argument"
