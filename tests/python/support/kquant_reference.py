"""The K formats quantized in NumPy: float32, each product rounded before its addition, sums in
order.

It shares no code with the library. Rows are sub-blocks. Elements are added one after another, in
all sub-blocks at once, so sums have the same order as in the library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
F = np.float32


def _sum(terms: Array) -> Array:
    total = np.zeros(terms.shape[0], F)
    for i in range(terms.shape[1]):
        total = total + terms[:, i]
    return total


def _levels(factor: Array, x: Array, low: int, high: int) -> Array:
    return np.clip(np.rint(factor[:, None] * x), low, high).astype(F)


def affine(n_levels: int, x: Array, w: Array, start: float, steps: int, absolute: bool) -> tuple[Array, Array, Array]:
    """Scales, minima and levels with x ~ scale * level - minimum. Trials after a better one use its
    offset."""
    n = F(n_levels)
    low, high = np.minimum(F(0), x.min(axis=1)), x.max(axis=1)
    flat = high == low

    def error(scale: Array, offset: Array, levels: Array) -> Array:
        d = scale[:, None] * levels + offset[:, None] - x
        return _sum(w * (np.abs(d) if absolute else d * d))

    with np.errstate(all="ignore"):
        sw, swx = _sum(w), _sum(w * x)
        factor = n / (high - low)
        scale, offset = 1 / factor, low
        levels = _levels(factor, x - low[:, None], 0, n_levels)
        best = error(scale, offset, levels)
        for t in range(steps + 1):
            factor = (F(start) + F(0.1) * F(t) + n) / (high - offset)
            trial = _levels(factor, x - offset[:, None], 0, n_levels)
            wl = w * trial
            s1, s2, sx = _sum(wl), _sum(wl * trial), _sum(wl * x)
            det = sw * s2 - s1 * s1
            new_scale, new_offset = (sw * sx - swx * s1) / det, (s2 * swx - s1 * sx) / det
            above = new_offset > 0
            new_scale, new_offset = np.where(above, sx / s2, new_scale), np.where(above, F(0), new_offset)
            new_error = error(new_scale, new_offset, trial)
            better = (det > 0) & (new_error < best)
            scale, offset, best = (
                np.where(better, new_scale, scale),
                np.where(better, new_offset, offset),
                np.where(better, new_error, best),
            )
            levels = np.where(better[:, None], trial, levels)
    scale, offset, levels = (
        np.where(flat, F(0), scale),
        np.where(flat, low, offset),
        np.where(flat[:, None], F(0), levels),
    )
    return scale, -offset, levels


def _spread(values: Array, n_levels: int) -> tuple[Array, Array]:
    """Non-negative values of a super-block as integers times a half-float step."""
    most = np.maximum(values.max(axis=1), F(0))
    with np.errstate(all="ignore"):
        factor = np.where(most > 0, F(n_levels) / most, F(0))
    return np.clip(np.rint(factor[:, None] * values), 0, n_levels).astype(F), (most / F(n_levels)).astype(np.float16)


def _requantized(x: Array, d: Array, dmin: Array, sc: Array, mn: Array, fitted: Array, n_levels: int) -> Array:
    scale, minimum = d.astype(F)[:, None] * sc, dmin.astype(F)[:, None] * mn
    with np.errstate(all="ignore"):
        found = np.clip(np.rint((x + minimum[:, :, None]) / scale[:, :, None]), 0, n_levels)
    return np.where(scale[:, :, None] != 0, found, fitted).astype(np.uint8)


def _halves(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), 2)


def _two_bits(levels: Array) -> Array:
    parts = levels.reshape(-1, 2, 4, 32)
    return (parts[:, :, 0] | parts[:, :, 1] << 2 | parts[:, :, 2] << 4 | parts[:, :, 3] << 6).reshape(-1, 64)


def q2_k(x: Array) -> Array:
    parts = x.reshape(-1, 16)
    scale, minimum, fitted = affine(3, parts, np.abs(parts), -0.5, 15, True)
    (sc, d), (mn, dmin) = _spread(scale.reshape(-1, 16), 15), _spread(minimum.reshape(-1, 16), 15)
    levels = _requantized(x.reshape(-1, 16, 16), d, dmin, sc, mn, fitted.reshape(-1, 16, 16), 3).reshape(-1, 256)
    scales = sc.astype(np.uint8) | mn.astype(np.uint8) << 4
    return np.concatenate([scales, _two_bits(levels), _halves(d), _halves(dmin)], axis=1)


def _q45(x: Array, n_levels: int, start: float, steps: int) -> tuple[Array, Array]:
    parts = x.reshape(-1, 32)
    w = np.sqrt(_sum(parts * parts) / F(32))[:, None] + np.abs(parts)
    scale, minimum, fitted = affine(n_levels, parts, w, start, steps, False)
    (sc, d), (mn, dmin) = _spread(scale.reshape(-1, 8), 63), _spread(minimum.reshape(-1, 8), 63)
    levels = _requantized(x.reshape(-1, 8, 32), d, dmin, sc, mn, fitted.reshape(-1, 8, 32), n_levels)
    s, m = sc.astype(np.uint8), mn.astype(np.uint8)
    packed = np.concatenate(
        [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4], axis=1
    )
    return np.concatenate([_halves(d), _halves(dmin), packed], axis=1), levels


def _four_bits(levels: Array) -> Array:
    pairs = levels.reshape(-1, 4, 2, 32)
    return (pairs[:, :, 0] & 15 | (pairs[:, :, 1] & 15) << 4).reshape(-1, 128)


def q4_k(x: Array) -> Array:
    head, levels = _q45(x, 15, -1, 20)
    return np.concatenate([head, _four_bits(levels)], axis=1)


def q5_k(x: Array) -> Array:
    head, levels = _q45(x, 31, -0.5, 15)
    fifth = np.zeros((len(head), 32), np.uint8)
    for g in range(8):
        fifth |= levels[:, g] >> 4 << g
    return np.concatenate([head, fifth, _four_bits(levels)], axis=1)


def _extreme(x: Array) -> Array:
    return np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]


def symmetric(n: int, x: Array, w: Array) -> tuple[Array, Array]:
    """The best of 19 trials for x ~ scale * level, with levels from -n to n - 1."""
    extreme = _extreme(x)
    wx = w * x

    def fit(factor: Array) -> tuple[Array, Array, Array]:
        levels = _levels(factor, x, -n, n - 1)
        return _sum(wx * levels), _sum(w * levels * levels), levels

    with np.errstate(all="ignore"):
        p, q, found = fit(F(-n) / extreme)
        scale = p / q
        best = scale * p
        for t in range(-9, 10):
            if t:
                p, q, levels = fit(-(F(n) + F(0.1) * F(t)) / extreme)
                better = (q > 0) & (p * p > best * q)
                scale = np.where(better, p / q, scale)
                best = np.where(better, scale * p, best)
                found = np.where(better[:, None], levels, found)
    return np.where(np.abs(extreme) < 1e-30, F(0), scale), found


def q6_k(x: Array) -> Array:
    parts = x.reshape(-1, 16)
    scale, fitted = symmetric(32, parts, parts * parts)
    scale = scale.reshape(-1, 16)
    with np.errstate(all="ignore"):
        factor = F(-128) / _extreme(scale)
        stored = np.minimum(np.rint(factor[:, None] * scale), 127).astype(F)
        d = (1 / factor).astype(np.float16)
        step = (d.astype(F)[:, None] * stored)[:, :, None]
        found = np.clip(np.rint(x.reshape(-1, 16, 16) / step), -32, 31)
    levels = (np.where(step != 0, found, fitted.reshape(-1, 16, 16)) + 32).astype(np.uint8).reshape(-1, 256)
    halves = levels.reshape(-1, 2, 2, 64)  # half, low or high nibbles, 64 bytes
    low = (halves[:, :, 0] & 15 | (halves[:, :, 1] & 15) << 4).reshape(-1, 128)
    return np.concatenate([low, _two_bits(levels >> 4), stored.astype(np.int8).view(np.uint8), _halves(d)], axis=1)


def descent(n: int, x: Array) -> tuple[Array, Array]:
    """Scale and levels with weights x^2, by five sweeps. A sweep sets each level to its optimum for
    the other levels."""
    extreme, w = _extreme(x), x * x
    with np.errstate(all="ignore"):
        levels = _levels(F(-n) / extreme, x, -n, n - 1)
        p, q = _sum(w * x * levels), _sum(w * levels * levels)
        for _ in range(5):
            for i in range(x.shape[1]):
                wi, xi, li = w[:, i], x[:, i], levels[:, i]
                p1, q1 = p - wi * xi * li, q - wi * li * li
                new = np.clip(np.rint(xi * q1 / p1), -n, n - 1)
                p2, q2 = p1 + wi * xi * new, q1 + wi * new * new
                take = (p1 > 0) & (new != li) & (q2 > 0) & (p2 * p2 * q > p * p * q2)
                levels[:, i] = np.where(take, new, li)
                p, q = np.where(take, p2, p), np.where(take, q2, q)
        return np.where(extreme == 0, F(0), p / q), levels


def q3_k(x: Array) -> Array:
    scale, fitted = descent(4, x.reshape(-1, 16))
    scale = scale.reshape(-1, 16)
    with np.errstate(all="ignore"):
        factor = F(-32) / _extreme(scale)
        stored = np.clip(np.rint(factor[:, None] * scale), -32, 31).astype(F)
        d = (1 / factor).astype(np.float16)
        step = (d.astype(F)[:, None] * stored)[:, :, None]
        found = np.clip(np.rint(x.reshape(-1, 16, 16) / step), -4, 3)
    levels = (np.where(step != 0, found, fitted.reshape(-1, 16, 16)) + 4).astype(np.uint8).reshape(-1, 256)
    mask = np.zeros((len(levels), 32), np.uint8)
    for g in range(8):
        mask |= (levels[:, 32 * g : 32 * g + 32] > 3).astype(np.uint8) << g
    s = (stored + 32).astype(np.uint8)
    low = s[:, :8] & 15 | (s[:, 8:] & 15) << 4
    high = s[:, :4] >> 4 | s[:, 4:8] >> 4 << 2 | s[:, 8:12] >> 4 << 4 | s[:, 12:] >> 4 << 6
    return np.concatenate([mask, _two_bits(levels & 3), low, high, _halves(d)], axis=1)


QUANTIZE: dict[str, Callable[[Array], Array]] = {"q2_k": q2_k, "q3_k": q3_k, "q4_k": q4_k, "q5_k": q5_k, "q6_k": q6_k}
