"""Shared by the actions on GGUF files: the option --part, sizes as text, patterns of tensor names,
kinds of dtypes."""

from __future__ import annotations

import argparse

from ..._base.errors import InvalidArgumentError
from ..._base.text import Patterns, nearest
from ...dtypes import DType
from ...tensor._quantize import FLOATS

__all__ = ["add_part_argument", "byte_count", "fitting", "has_floats"]


def add_part_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", action="store_true", help="look at one part of a split model alone")


def has_floats(dtype: DType) -> bool:
    """True for formats of floating-point numbers, quantized ones among them."""
    return dtype.is_quantized or dtype in FLOATS or dtype.name == "float64"


def byte_count(n: int) -> str:
    return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.2f} MB" if n >= 1e5 else f"{n} bytes"


def fitting(patterns: list[str], names: list[str], what: str) -> list[str]:
    """The names that match a pattern, in their order. A pattern that is a name matches only that
    name. Each pattern must match."""
    known, chosen = Patterns(names), set[str]()
    for pattern in patterns:
        found = known.fitting(pattern)
        if not found:
            raise InvalidArgumentError(f"{what} {pattern!r}: no tensor has such a name{nearest(pattern, names)}")
        chosen.update(found)
    return [name for name in names if name in chosen]
