"""Dtypes of safetensors files in GGUF files. Values never change: a dtype that GGUF lacks becomes a wider one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..._base.mapped import reading
from ...dtypes import DType, dtypes
from ...tensor._shapes import MAX_DIMS
from .safetensors import BITS, product, quoted

__all__ = ["NoType", "Values", "as_float", "values_of"]

Array = np.ndarray[Any, Any]

_AS_IT_IS = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64", "I8": "int8", "I16": "int16",
    "I32": "int32", "I64": "int64",
}  # fmt: skip


def _floats(exponent: int, mantissa: int, bias: int, special: str) -> Array:
    """The value of each bit pattern of a small float format: sign, exponent, mantissa.

    special: which bit patterns are not finite. "ieee": those with the largest exponent. "fn": NaN
        where exponent and mantissa are all ones. "fnuz": NaN is the negative zero. "": none
    """
    bits = np.arange(1 << (1 + exponent + mantissa))
    fraction, power = bits & ((1 << mantissa) - 1), (bits >> mantissa) & ((1 << exponent) - 1)
    normal = np.ldexp(1 + fraction / (1 << mantissa), power - bias)
    values = np.where(power == 0, np.ldexp(fraction / (1 << mantissa), 1 - bias), normal)
    largest, full = power == (1 << exponent) - 1, fraction == (1 << mantissa) - 1
    if special == "ieee":
        values = np.where(largest, np.where(fraction == 0, np.inf, np.nan), values)
    elif special == "fn":
        values = np.where(largest & full, np.nan, values)
    values = np.where(bits >> (exponent + mantissa) == 1, -values, values)
    if special == "fnuz":
        values[1 << (exponent + mantissa)] = np.nan
    return values.astype(np.float16)


def _pairs_of(half: Array) -> Array:
    """The two values of each byte that holds two numbers of four bits, the lower bits first."""
    byte = np.arange(256)
    return np.stack([half[byte & 15], half[byte >> 4]], axis=-1)


def _powers() -> Array:
    """The values of F8_E8M0: powers of two, all of which float32 holds."""
    return np.append(np.ldexp(np.float32(1), np.arange(-127, 128)), np.float32(np.nan)).astype(np.float32)


_WIDENED: dict[str, Callable[[], Array]] = {
    "F8_E4M3": partial(_floats, 4, 3, 7, "fn"),
    "F8_E5M2": partial(_floats, 5, 2, 15, "ieee"),
    "F8_E4M3FNUZ": partial(_floats, 4, 3, 8, "fnuz"),
    "F8_E5M2FNUZ": partial(_floats, 5, 2, 16, "fnuz"),
    "F8_E8M0": _powers,
    "F4": lambda: _pairs_of(_floats(2, 1, 1, "")),
}
"""Floats of a byte or less: tables from byte to values, in a type that holds them exactly."""

_WIDER = {"U8": "int16", "U16": "int32", "U32": "int64"}
"""Larger types for unsigned integers that exceed the signed type of the same size."""

_NONE = {
    "C64": "complex numbers",
    "F6_E2M3": "floats of six bits, whose packing no specification fixes",
    "F6_E3M2": "floats of six bits, whose packing no specification fixes",
    "U64": "values above the largest of int64",
}


class NoType(Exception):
    """A GGUF file cannot hold the values. The text describes them."""


@dataclass(frozen=True)
class Values:
    """A tensor as the GGUF file will hold it. ``Writer.add_tensor`` accepts it like a tensor of an open file."""

    dtype: DType
    shape: tuple[int, ...]
    widened: bool  #: the dtype differs from that of the file
    folded: bool  #: the first axes became one
    numpy: Callable[[], Array]  #: the elements: mapped, or made when the file is written

    @property
    def data(self) -> Array:
        """The bytes of the elements."""
        return self.numpy().reshape(-1).view(np.uint8)


def values_of(kind: str, shape: tuple[int, ...], raw: Array, what: str) -> Values:
    """A tensor of a safetensors file.

    kind: its dtype, a key of ``safetensors.BITS``
    raw: its bytes
    what: the tensor in messages
    """
    if 0 in shape and product(n for n in shape if n) >= 1 << 60:
        raise NoType(f"NumPy has no arrays of shape {quoted(shape)}")
    fits = len(shape) <= MAX_DIMS
    folded = shape if fits else (product(shape[: 1 - MAX_DIMS]), *shape[1 - MAX_DIMS :])
    if kind in _AS_IT_IS:
        dtype = dtypes[_AS_IT_IS[kind]]
        return Values(dtype, folded, False, not fits, partial(_mapped, raw, folded, dtype))
    widen: Callable[[], Array]
    if kind in _WIDENED:
        table = _WIDENED[kind]()
        name, widen = str(table.dtype), partial(_looked_up, table, raw, folded, what)
    elif kind == "BOOL" or kind.startswith("U"):
        name, widen = _signed(kind, raw, folded, what)
    else:
        raise NoType(f"{kind}: {_NONE[kind]}")
    return Values(dtypes[name], folded, True, not fits, widen)


def as_float(value: Values) -> Values:
    """The same floats as float32, which all kernels accept."""
    if value.dtype.name == "bfloat16":
        return replace(
            value,
            dtype=dtypes["float32"],
            numpy=lambda: (value.numpy().astype(np.uint32) << 16).view(np.float32).reshape(value.shape),
        )
    return replace(value, dtype=dtypes["float32"], numpy=lambda: value.numpy().astype(np.float32))


def _mapped(raw: Array, shape: tuple[int, ...], dtype: DType) -> Array:
    return np.ndarray(shape, dtype.numpy, raw.data)


def _looked_up(table: Array, raw: Array, shape: tuple[int, ...], what: str) -> Array:
    with reading(raw, what):
        found: Array = table[raw].reshape(shape)
    return found


def _signed(kind: str, raw: Array, shape: tuple[int, ...], what: str) -> tuple[str, Callable[[], Array]]:
    """The smallest signed type that holds all values: of the same size, or the next larger one."""
    given, name = raw.view(f"uint{BITS[kind]}"), f"int{BITS[kind]}"
    with reading(raw, what):
        largest = int(given.max(initial=0))
    if kind != "BOOL" and largest > np.iinfo(name).max:
        if kind not in _WIDER:
            raise NoType(f"{kind}: {_NONE[kind]}")
        name = _WIDER[kind]

    def values() -> Array:
        with reading(raw, what):
            return (given != 0 if kind == "BOOL" else given).astype(name).reshape(shape)

    return name, values
