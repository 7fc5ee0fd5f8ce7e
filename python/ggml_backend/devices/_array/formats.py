"""Quantized rows as float32, with functions that every array library has.

A format is a function from bytes ``(blocks, bytes of a block)`` to float32 ``(blocks, elements)``.
Its result equals ``gb.dequantize`` bit by bit. docs/QUANTIZATION.md lists the formats. Codebooks of
the IQ formats are read from blocks that ``gb.dequantize`` unpacks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import numpy as np

from ...dtypes import DType
from ...tensor._quantize import dequantize

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # values of 4-bit floats, times 2

Array = Any


class Unpacking:
    """Unpacks rows of one format with one library. Keeps its tables on the library's device."""

    def __init__(self, library: Any, dtype: DType) -> None:
        self._library = library
        self.xp = library.xp
        self._dtype = dtype
        self._format = FORMATS[dtype.name]
        self._tables: dict[str, Array] = {}

    def __call__(self, rows: Array) -> Array:
        """Converts bytes ``(..., bytes of a row)`` to float32 ``(..., n)``."""
        xp, dtype = self.xp, self._dtype
        shape = tuple(rows.shape)
        n = shape[-1] // dtype.itemsize
        blocks = xp.reshape(rows, (prod(shape[:-1]) * n, dtype.itemsize))
        return xp.reshape(self._format(self, blocks), (*shape[:-1], n * dtype.block_size))

    # building blocks of formats

    def table(self, name: str, make: Callable[[], np.ndarray[Any, Any]]) -> Array:
        if name not in self._tables:
            self._tables[name] = self._library.constant(make())
        return self._tables[name]

    def floats(self, array: Array) -> Array:
        return self.xp.astype(array, self.xp.float32)

    def ints(self, array: Array) -> Array:
        return self.xp.astype(array, self.xp.int32)

    def seen(self, part: Array, dtype: str) -> Array:
        """Bytes ``(blocks, n)`` as numbers of another dtype. Floats become float32."""
        view = self._library.contiguous(part).view(getattr(self.xp, dtype))
        return self.floats(view) if dtype.startswith("float") else view

    def shifts(self, *by: int, axes: int = 1) -> Array:
        """Amounts to shift bytes by, along an axis before ``axes`` others."""
        return self.table(f"shifts {by} {axes}", lambda: np.array(by, np.uint8).reshape(-1, *[1] * axes))

    def nibbles(self, bytes_: Array) -> Array:
        """The lower halves of ``(..., n)`` bytes, then the upper ones: ``(..., 2 n)``."""
        return self.xp.concat([bytes_ & 15, bytes_ >> 4], axis=-1)

    def flags(self, bytes_: Array) -> Array:
        """The bits of ``(..., n)`` bytes, lowest first: ``(..., 8 n)``."""
        eight = self.table("eight", lambda: np.arange(8, dtype=np.uint8))
        found = (bytes_[..., None] >> eight) & 1
        return self.xp.reshape(found, (*bytes_.shape[:-1], 8 * bytes_.shape[-1]))

    def values(self, name: str, values: tuple[int, ...], index: Array) -> Array:
        """The values of levels, as float32."""
        return self.look(self.table(name, lambda: np.array(values, np.float32)), index)

    def look(self, table: Array, index: Array) -> Array:
        """Rows of a table, by indices of any shape."""
        rows = self.xp.take(table, self.xp.reshape(self.ints(index), (-1,)), axis=0)
        return self.xp.reshape(rows, (*index.shape, *table.shape[1:]))

    def words(self, bytes_: Array, size: int) -> Array:
        """Little-endian integers of ``size`` bytes each, as int32 (the highest bit becomes the
        sign)."""
        parts = self.xp.reshape(self.ints(bytes_), (bytes_.shape[0], bytes_.shape[1] // size, size))
        found = parts[..., 0]
        for i in range(1, size):
            found = found | (parts[..., i] << 8 * i)
        return found

    def two_bits(self, bytes_: Array) -> Array:
        """Levels of 2 bits. 32 bytes hold 128 levels; each pair of bits holds 32 of them."""
        n = bytes_.shape[1]
        found = (self.xp.reshape(bytes_, (-1, n // 32, 1, 32)) >> self.shifts(0, 2, 4, 6)) & 3
        return self.xp.reshape(found, (-1, 4 * n))

    def four_bits(self, bytes_: Array) -> Array:
        """Levels of 4 bits. 32 bytes hold 64 levels, the first 32 in the lower halves."""
        n = bytes_.shape[1]
        return self.xp.reshape(self.nibbles(self.xp.reshape(bytes_, (-1, n // 32, 32))), (-1, 2 * n))

    def bit_planes(self, bytes_: Array) -> Array:
        """Bit ``i`` of 32 bytes belongs to elements ``32 i`` to ``32 i + 31``."""
        found = (bytes_[:, None, :] >> self.shifts(*range(8))) & 1
        return self.xp.reshape(found, (-1, 256))

    def scaled(self, scales: Array, levels: Array) -> Array:
        """Levels ``(blocks, elements)`` times the scales of their groups, ``(blocks, groups)``."""
        groups = scales.shape[1]
        levels = self.xp.reshape(levels, (-1, groups, levels.shape[1] // groups))
        return self.xp.reshape(scales[..., None] * levels, (levels.shape[0], -1))

    def shifted(self, scaled: Array, minima: Array) -> Array:
        """Subtracts the minimum of each group."""
        groups = minima.shape[1]
        parts = self.xp.reshape(scaled, (-1, groups, scaled.shape[1] // groups))
        return self.xp.reshape(parts - minima[..., None], (scaled.shape[0], -1))


# ---------------------------------------------------------------------------------------------------- blocks of 32, 64


def q4_0(u: Unpacking, b: Array) -> Array:
    return (u.floats(u.nibbles(b[:, 2:18])) - 8) * u.seen(b[:, 0:2], "float16")


def q4_1(u: Unpacking, b: Array) -> Array:
    return u.floats(u.nibbles(b[:, 4:20])) * u.seen(b[:, 0:2], "float16") + u.seen(b[:, 2:4], "float16")


def q5_0(u: Unpacking, b: Array) -> Array:
    level = u.nibbles(b[:, 6:22]) | u.flags(b[:, 2:6]) << 4
    return (u.floats(level) - 16) * u.seen(b[:, 0:2], "float16")


def q5_1(u: Unpacking, b: Array) -> Array:
    level = u.nibbles(b[:, 8:24]) | u.flags(b[:, 4:8]) << 4
    return u.floats(level) * u.seen(b[:, 0:2], "float16") + u.seen(b[:, 2:4], "float16")


def q8_0(u: Unpacking, b: Array) -> Array:
    return u.floats(u.seen(b[:, 2:34], "int8")) * u.seen(b[:, 0:2], "float16")


def q8_1(u: Unpacking, b: Array) -> Array:
    return u.floats(u.seen(b[:, 8:40], "int8")) * u.seen(b[:, 0:4], "float32")


def iq4_nl(u: Unpacking, b: Array) -> Array:
    return u.values("iq4", IQ4, u.nibbles(b[:, 2:18])) * u.seen(b[:, 0:2], "float16")


def mxfp4(u: Unpacking, b: Array) -> Array:
    scales = u.table("powers", lambda: np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32))
    return u.values("e2m1", E2M1, u.nibbles(b[:, 1:17])) * u.look(scales, b[:, 0:1])


def _halves_of_e4m3() -> np.ndarray[Any, Any]:
    """Half of the value of each unsigned 8-bit float, and 0 for NaN."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    normal = np.ldexp((8.0 + mantissa), exponent - 11)
    value = np.where(exponent == 0, np.ldexp(1.0 * mantissa, -10), normal)
    value[0x7F] = 0
    halves: np.ndarray[Any, Any] = value.astype(np.float32)
    return halves


def nvfp4(u: Unpacking, b: Array) -> Array:
    level = u.xp.reshape(u.nibbles(u.xp.reshape(b[:, 4:36], (-1, 4, 8))), (-1, 64))
    return u.scaled(u.look(u.table("e4m3", _halves_of_e4m3), b[:, 0:4]), u.values("e2m1", E2M1, level))


def q1_0(u: Unpacking, b: Array) -> Array:
    return (2 * u.floats(u.flags(b[:, 2:18])) - 1) * u.seen(b[:, 0:2], "float16")


def q2_0(u: Unpacking, b: Array) -> Array:
    level = u.xp.reshape((b[:, 2:18, None] >> u.shifts(0, 2, 4, 6, axes=0)) & 3, (-1, 64))
    return (u.floats(level) - 1) * u.seen(b[:, 0:2], "float16")


# ------------------------------------------------------------------------------------------------------ blocks of 256


def q2_k(u: Unpacking, b: Array) -> Array:
    d, least = u.seen(b[:, 80:82], "float16"), u.seen(b[:, 82:84], "float16")
    scaled = u.scaled(d * u.floats(b[:, 0:16] & 15), u.floats(u.two_bits(b[:, 16:80])))
    return u.shifted(scaled, least * u.floats(b[:, 0:16] >> 4))


def q3_k(u: Unpacking, b: Array) -> Array:
    scales, xp = b[:, 96:108], u.xp
    upper = xp.reshape((scales[:, None, 8:12] >> u.shifts(0, 2, 4, 6)) & 3, (-1, 16))
    scale = u.floats(u.nibbles(scales[:, 0:8]) | upper << 4) - 32
    level = u.floats(u.two_bits(b[:, 32:96]) + (u.bit_planes(b[:, 0:32]) << 2)) - 4
    return u.scaled(u.seen(b[:, 108:110], "float16") * scale, level)


def _six_bits(u: Unpacking, b: Array) -> tuple[Array, Array]:
    """Scales and minima of 8 groups, 6 bits each, in 12 bytes."""
    first, second, rest = b[:, 0:4], b[:, 4:8], b[:, 8:12]
    scale = u.xp.concat([first & 63, rest & 15 | (first >> 6) << 4], axis=1)
    least = u.xp.concat([second & 63, rest >> 4 | (second >> 6) << 4], axis=1)
    return u.floats(scale), u.floats(least)


def _affine(u: Unpacking, b: Array, level: Array) -> Array:
    scale, least = _six_bits(u, b[:, 4:16])
    scaled = u.scaled(u.seen(b[:, 0:2], "float16") * scale, u.floats(level))
    return u.shifted(scaled, u.seen(b[:, 2:4], "float16") * least)


def q4_k(u: Unpacking, b: Array) -> Array:
    return _affine(u, b, u.four_bits(b[:, 16:144]))


def q5_k(u: Unpacking, b: Array) -> Array:
    return _affine(u, b, u.four_bits(b[:, 48:176]) | u.bit_planes(b[:, 16:48]) << 4)


def q6_k(u: Unpacking, b: Array) -> Array:
    halves = u.xp.reshape(b[:, 0:128], (-1, 2, 1, 64)) >> u.shifts(0, 4)
    lower = u.xp.reshape(halves & 15, (-1, 256))
    level = u.floats(lower | u.two_bits(b[:, 128:192]) << 4) - 32
    scale = u.floats(u.seen(b[:, 192:208], "int8"))
    return u.scaled(u.seen(b[:, 208:210], "float16") * scale, level)


def q8_k(u: Unpacking, b: Array) -> Array:
    return u.seen(b[:, 0:4], "float32") * u.floats(u.seen(b[:, 4:260], "int8"))


def iq4_xs(u: Unpacking, b: Array) -> Array:
    xp = u.xp
    lower = xp.reshape((b[:, 4:8, None] >> u.shifts(0, 4, axes=0)) & 15, (-1, 8))
    upper = xp.reshape((b[:, 2:4, None] >> u.shifts(0, 2, 4, 6, axes=0)) & 3, (-1, 8))
    scale = u.floats(lower | upper << 4) - 32
    level = xp.reshape(u.nibbles(xp.reshape(b[:, 8:136], (-1, 8, 16))), (-1, 256))
    return u.scaled(u.seen(b[:, 0:2], "float16") * scale, u.values("iq4", IQ4, level))


def tq1_0(u: Unpacking, b: Array) -> Array:
    """A byte holds five digits of base 3 as a fraction of 256. The integer part of three times the
    fraction is the first digit."""
    powers = u.table("powers of 3", lambda: np.array([1, 3, 9, 27, 81], np.int32).reshape(-1, 1))
    parts = []
    for begin, end, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        rest = (u.ints(b[:, None, begin:end]) * powers[:digits]) & 255
        parts.append(u.xp.reshape((3 * rest) >> 8, (-1, digits * (end - begin))))
    return u.seen(b[:, 52:54], "float16") * (u.floats(u.xp.concat(parts, axis=1)) - 1)


def tq2_0(u: Unpacking, b: Array) -> Array:
    return u.seen(b[:, 64:66], "float16") * (u.floats(u.two_bits(b[:, 0:64])) - 1)


# ------------------------------------------------------------------------------------------------ blocks with codebooks

ONE_EIGHTH = np.float16(8).view(np.uint16)  # the scale d = 8, so d / 8 is 1


def _bytes_of(word: int) -> list[int]:
    return [word & 255, word >> 8]


def _levels(name: str, rows: int, size: int, block: Callable[[int], list[int]]) -> np.ndarray[Any, Any]:
    """A codebook: unpacks blocks whose groups select the rows in order, with scale 1 and positive
    signs."""
    per = 256 // size
    blocks = np.array([block(first) for first in range(0, rows, per)], np.uint8)
    return dequantize(blocks, name).reshape(rows, size)


@cache
def codebook(name: str) -> np.ndarray[Any, Any]:
    d = _bytes_of(int(ONE_EIGHTH))
    if name == "iq2_xxs":
        return _levels(
            name, 256, 8, lambda i: d + [b for g in range(i, i + 32, 4) for b in (*range(g, g + 4), *[0] * 4)]
        )
    if name == "iq2_xs":
        return _levels(name, 512, 8, lambda i: d + [b for r in range(i, i + 32) for b in _bytes_of(r)] + [0] * 8)
    if name == "iq2_s":
        return _levels(
            name, 1024, 8, lambda i: d + [r & 255 for r in range(i, i + 32)] + [0] * 32 + [(i >> 8) * 85] * 8 + [0] * 8
        )
    if name == "iq3_xxs":
        half = _bytes_of(int(np.float16(4).view(np.uint16)))
        return _levels(name, 256, 4, lambda i: half + list(range(i, i + 64)) + [0] * 32)
    if name == "iq3_s":
        one = _bytes_of(int(np.float16(1).view(np.uint16)))
        return _levels(
            name, 512, 4,
            lambda i: one + [r & 255 for r in range(i, i + 64)] + [(i >> 8) * 255] * 8 + [0] * 32 + [0] * 4,
        )  # fmt: skip
    upper = [[(i >> 8) * 0b001001001001] * 8 for i in range(0, 2048, 32)]
    rows = [d + [r & 255 for r in range(i, i + 32)] for i in range(0, 2048, 32)]
    found = _levels("iq1_s", 2048, 8, lambda i: rows[i // 32] + [b for w in upper[i // 32] for b in _bytes_of(w)])
    return found - 1  # the offset of groups without a sign


def _signed(u: Unpacking, level: Array, signs: Array) -> Array:
    """Levels ``(blocks, 256)``, negated where a bit of the 32 bytes of signs is set."""
    return level * (1 - 2 * u.floats(u.flags(signs)))


def _even_signs(u: Unpacking, codes: Array) -> Array:
    """Eight signs for each seven stored. The eighth makes the number of negative signs even."""
    table = u.table("signs", lambda: np.array([c | (bin(c).count("1") & 1) << 7 for c in range(128)], np.uint8))
    return u.look(table, codes)


def _grid(u: Unpacking, name: str, rows: Array) -> Array:
    return u.xp.reshape(u.look(u.table(name, lambda: codebook(name)), rows), (rows.shape[0], 256))


def _odd(u: Unpacking, scales: Array) -> Array:
    return 2 * u.floats(scales) + 1


def _pairs_of_four(u: Unpacking, bytes_: Array) -> Array:
    """Scales of 4 bits, two a byte, the lower first."""
    return u.xp.reshape((bytes_[:, :, None] >> u.shifts(0, 4, axes=0)) & 15, (-1, 2 * bytes_.shape[1]))


def _seven_bits(u: Unpacking, words: Array) -> Array:
    """Four codes of 7 bits in each word."""
    by = u.table("sevens", lambda: np.array([0, 7, 14, 21], np.int32))
    return u.xp.reshape((words[:, :, None] >> by) & 127, (-1, 4 * words.shape[1]))


def iq2_xxs(u: Unpacking, b: Array) -> Array:
    groups = u.xp.reshape(b[:, 2:66], (-1, 8, 8))
    rows = u.xp.reshape(groups[:, :, 0:4], (-1, 32))
    words = u.words(u.xp.reshape(groups[:, :, 4:8], (-1, 32)), 4)
    scale = u.seen(b[:, 0:2], "float16") * 0.125 * _odd(u, words >> 28 & 15)
    return u.scaled(scale, _signed(u, _grid(u, "iq2_xxs", rows), _even_signs(u, _seven_bits(u, words))))


def iq2_xs(u: Unpacking, b: Array) -> Array:
    words = u.words(b[:, 2:66], 2)
    scale = u.seen(b[:, 0:2], "float16") * 0.125 * _odd(u, _pairs_of_four(u, b[:, 66:74]))
    return u.scaled(scale, _signed(u, _grid(u, "iq2_xs", words & 511), _even_signs(u, words >> 9)))


def iq2_s(u: Unpacking, b: Array) -> Array:
    upper = u.xp.reshape((b[:, 66:74, None] >> u.shifts(0, 2, 4, 6, axes=0)) & 3, (-1, 32))
    rows = u.ints(b[:, 2:34]) | u.ints(upper) << 8
    scale = u.seen(b[:, 0:2], "float16") * 0.125 * _odd(u, _pairs_of_four(u, b[:, 74:82]))
    return u.scaled(scale, _signed(u, _grid(u, "iq2_s", rows), b[:, 34:66]))


def iq3_xxs(u: Unpacking, b: Array) -> Array:
    words = u.words(b[:, 66:98], 4)
    scale = u.seen(b[:, 0:2], "float16") * 0.25 * _odd(u, words >> 28 & 15)
    return u.scaled(scale, _signed(u, _grid(u, "iq3_xxs", b[:, 2:66]), _even_signs(u, _seven_bits(u, words))))


def iq3_s(u: Unpacking, b: Array) -> Array:
    rows = u.ints(b[:, 2:66]) | u.ints(u.flags(b[:, 66:74])) << 8
    scale = u.seen(b[:, 0:2], "float16") * _odd(u, _pairs_of_four(u, b[:, 106:110]))
    return u.scaled(scale, _signed(u, _grid(u, "iq3_s", rows), b[:, 74:106]))


def _offset(u: Unpacking, level: Array, negative: Array) -> Array:
    """Levels plus an offset of 1, or of -1 in negative groups of 8."""
    groups = u.xp.reshape(level, (-1, 32, 8))
    return u.xp.reshape(groups + (1 - 2 * u.floats(negative))[:, :, None], (-1, 256))


def iq1_s(u: Unpacking, b: Array) -> Array:
    words = u.words(b[:, 34:50], 2)
    by = u.table("threes", lambda: np.array([0, 3, 6, 9], np.int32))
    upper = u.xp.reshape((words[:, :, None] >> by) & 7, (-1, 32))
    level = _grid(u, "iq1", u.ints(b[:, 2:34]) | upper << 8)
    none = u.table("four zeros", lambda: np.zeros(4, np.int32))
    negative = u.xp.reshape((words >> 15 & 1)[:, :, None] | none, (-1, 32))
    scale = u.seen(b[:, 0:2], "float16") * 0.125 * _odd(u, words >> 12 & 7)
    return u.scaled(scale, _offset(u, level, negative))


def iq1_m(u: Unpacking, b: Array) -> Array:
    words = u.words(b[:, 48:56], 2)
    d = words[:, 0] >> 12 & 15
    for i in range(1, 4):
        d = d | (words[:, i] >> 12 & 15) << 4 * i
    scale16 = u.seen(u.xp.astype(u.xp.stack([d & 255, d >> 8], axis=1), u.xp.uint8), "float16")
    by = u.table("threes", lambda: np.array([0, 3, 6, 9], np.int32))
    small = u.xp.reshape((words[:, :, None] >> by) & 7, (-1, 16))
    bits = u.ints(_pairs_of_four(u, b[:, 32:48]))
    level = _grid(u, "iq1", u.ints(b[:, 0:32]) | (bits & 7) << 8)
    return u.scaled(scale16 * 0.125 * _odd(u, small), _offset(u, level, bits >> 3))


FORMATS: dict[str, Callable[[Unpacking, Array], Array]] = {
    f.__name__: f
    for f in (
        q4_0, q4_1, q5_0, q5_1, q8_0, q8_1, q2_k, q3_k, q4_k, q5_k, q6_k, q8_k, iq4_nl, iq4_xs, mxfp4, nvfp4, q1_0,
        q2_0, tq1_0, tq2_0, iq1_s, iq1_m, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s,
    )
}  # fmt: skip
