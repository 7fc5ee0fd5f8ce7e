"""Fills results before a function writes them, so that old memory is never shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from .._errors import InvalidArgumentError

__all__ = ["blank", "expect_written"]

#: A NaN that no computation makes, for each dtype.
_FLOATS: dict[str, tuple[Any, int]] = {
    "float16": (np.uint16, 0x7E5A), "bfloat16": (np.uint16, 0x7FDA), "uint16": (np.uint16, 0x7FDA),
    "float32": (np.uint32, 0x7FC5A5A5), "float64": (np.uint64, 0x7FF85A5A5A5A5A5A),
}  # fmt: skip
"""By NumPy's dtype. uint16 stands for the bits of bfloat16, because no tensor has such integers."""


def blank(out: Any) -> None:
    """Fills an array with NaN, or with zeros if it has integers or blocks. An array of another library is filled if its
    library can assign a number to all elements."""
    if not isinstance(out, np.ndarray):
        with contextlib.suppress(Exception):
            out[...] = float("nan") if "float" in str(out.dtype) else 0
    elif out.dtype.name in _FLOATS:
        kind, pattern = _FLOATS[out.dtype.name]
        out.view(kind)[...] = pattern
    else:
        out[...] = 0


def expect_written(outs: Iterable[Any], what: str) -> None:
    """Raises InvalidArgumentError if an array of floats is as :func:`blank` left it. Other arrays, and those of other
    libraries, are not checked."""
    for out in outs:
        if isinstance(out, np.ndarray) and out.size and out.dtype.name in _FLOATS:
            kind, pattern = _FLOATS[out.dtype.name]
            bits = out.view(kind)
            if bits.flat[0] == pattern and bool((bits == pattern).all()):
                raise InvalidArgumentError(
                    f"{what}: the function returned None and wrote nothing: return the result, or write it into the"
                    " first argument, out[...] = result"
                )
