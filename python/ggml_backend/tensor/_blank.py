"""Fills results before a function writes them, so that old memory is never shown."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from .._base.errors import InvalidArgumentError

__all__ = ["blank", "expect_written"]

_FLOATS = {
    "float16": ("uint16", 0x7E5A), "bfloat16": ("uint16", 0x7FDA), "uint16": ("uint16", 0x7FDA),
    "float32": ("uint32", 0x7FC5A5A5), "float64": ("uint64", 0x7FF85A5A5A5A5A5A),
}  # fmt: skip
"""For each dtype a NaN that no computation makes, as an integer of the same size. uint16 stands for the bits of
bfloat16, because no tensor has such integers."""


@functools.lru_cache(maxsize=64)
def _pattern(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], int] | None:
    """The dtype and value to fill an array of floats with, None for other arrays. They are kept, because NumPy takes
    microseconds to name a dtype."""
    found = _FLOATS.get(dtype.name)
    return None if found is None else (np.dtype(found[0]), found[1])


def blank(out: Any) -> None:
    """Fills an array with NaN, or with zeros if it has integers or blocks. An array of another library is filled if its
    library can assign a number to all elements."""
    if not isinstance(out, np.ndarray):
        with contextlib.suppress(Exception):
            out[...] = float("nan") if "float" in str(out.dtype) else 0
        return
    found = _pattern(out.dtype)
    if found is None:
        out[...] = 0
    else:
        out.view(found[0])[...] = found[1]


def expect_written(outs: Iterable[Any], what: str) -> None:
    """Raises InvalidArgumentError if an array of floats is as :func:`blank` left it. Other arrays, and those of other
    libraries, are not checked."""
    for out in outs:
        found = _pattern(out.dtype) if isinstance(out, np.ndarray) and out.size else None
        if found is not None:
            bits = out.view(found[0])
            if bits.item(0) == found[1] and bool((bits == found[1]).all()):
                raise InvalidArgumentError(
                    f"{what}: the function returned None and wrote nothing: return the result, or write it into the"
                    " first argument, out[...] = result"
                )
