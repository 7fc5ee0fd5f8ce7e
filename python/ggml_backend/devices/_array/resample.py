"""Operators that pick elements by their place: resizing, padding, rolling."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np

from .._nodes import Node
from ..device import op
from .family import FLOAT_NAMES, Family, then
from .layout import axes, ne
from .library import Step

_NEAREST, _BILINEAR = 0, 1
_ALIGN_CORNERS, _ANTIALIAS = 1 << 8, 1 << 9


def _same(node: Node) -> bool | str:
    return node.dtype == node.sources[0].dtype or "a result of another dtype"


def _picked(device: Family, out: Any, a: Any, places: Sequence[Any]) -> Step:
    """Copies the elements at places along four axes; None: all of an axis."""
    library = device.library
    a, out = (axes(library, array, 4) for array in (a, out))
    at = [(axis, library.constant(p)) for axis, p in enumerate(places) if p is not None]

    def picked() -> Any:
        found = a
        for axis, p in at:
            found = library.xp.take(found, p, axis=axis)
        return found

    return library.assign_from(out, picked)


def _scaled(node: Node) -> list[Any]:
    """The nearest places below, for each axis that is resized."""
    sizes = zip(ne(node.shape), ne(node.sources[0].shape), strict=True)
    return [None if to == of else np.arange(to) * of // to for to, of in sizes]


@op("upscale", dtypes="dense", when=_same, prepare=True)
def upscale(device: Family, node: Node, out: Any, a: Any) -> Step:
    return _picked(device, out, a, _scaled(node))


@op("pad", "pad_ext", dtypes="dense", when=_same, prepare=True)
def pad(device: Family, node: Node, out: Any, a: Any) -> Step:
    """PAD only appends zeros. Its node has no amounts, because the shapes show them."""
    library = device.library
    a, out = (axes(library, array, 4) for array in (a, out))
    before = [first for first, _ in node.params.get("amounts", ((0, 0),) * 4)]
    if node.params.get("circular"):
        sizes = zip(before, out.shape, a.shape, strict=True)
        return _picked(device, out, a, [None if n == to else (np.arange(to) - b) % n for b, to, n in sizes])
    inner = out[tuple(slice(b, b + n) for b, n in zip(before, a.shape, strict=True))]
    return then(library.clear(out), library.assign(inner, a))


@op("pad_reflect_1d", dtypes="dense", when=_same, prepare=True)
def pad_reflect_1d(device: Family, node: Node, out: Any, a: Any) -> Step:
    p, n = node.params, node.sources[0].shape[-1]
    places = np.pad(np.arange(n), (p["before"], p["behind"]), mode="reflect")
    return _picked(device, out, a, [None, None, None, places])


@op("roll", dtypes="dense", when=_same, prepare=True)
def roll(device: Family, node: Node, out: Any, a: Any) -> Step:
    shifts = zip(node.params["shifts"], ne(node.shape), strict=True)
    return _picked(device, out, a, [(np.arange(n) - s) % n if s % n else None for s, n in shifts])


def _is_mode(node: Node) -> bool | str:
    mode, source = node.params["mode"], node.sources[0]
    if mode & 0xFF == _NEAREST:
        return _same(node)
    floats = all(t.dtype.name in FLOAT_NAMES for t in (node, source))
    return floats or f"smooth resizing of {source.dtype.name}"


@op("interpolate", dtypes="dense", when=_is_mode, prepare=True)
def interpolate(device: Family, node: Node, out: Any, a: Any) -> Step:
    """Planes are resized along their rows, then along their columns. The other axes take the nearest below."""
    library, mode = device.library, node.params["mode"]
    places = _scaled(node)
    if mode & 0xFF == _NEAREST:
        if mode & _ALIGN_CORNERS:
            places = [*places[:2], *(_aligned(to, of) for to, of in _planes(node))]
        return _picked(device, out, a, places)
    a, out = (axes(library, array, 4) for array in (a, out))
    outer = [(axis, library.constant(p)) for axis, p in enumerate(places[:2]) if p is not None]
    taps = [[(library.constant(at), library.constant(w)) for at, w in _taps(to, of, mode)] for to, of in _planes(node)]
    xp = library.xp

    def resized(x: Any) -> Any:
        for axis, p in outer:
            x = xp.take(x, p, axis=axis)
        x = sum((xp.take(x, at, axis=3) * w for at, w in taps[1]), start=0.0)
        return sum((xp.take(x, at, axis=2) * w[:, None] for at, w in taps[0]), start=0.0)

    return device.value_of(resized, node, out, (a,))


def _planes(node: Node) -> list[tuple[int, int]]:
    """The sizes of the last two axes of the result and of the source."""
    return list(zip(ne(node.shape)[2:], ne(node.sources[0].shape)[2:], strict=True))


def _aligned(to: int, of: int) -> Any:
    """The nearest places below if the outermost elements coincide."""
    if to < 2 or of < 2:
        return np.arange(to) * of // to
    return np.arange(to) * (of - 1) // (to - 1)


def _taps(to: int, of: int, mode: int) -> list[tuple[Any, Any]]:
    """Places and weights: each result is a weighted sum of elements along an axis."""
    aligned = mode & _ALIGN_CORNERS and to > 1 and of > 1
    ratio = (to - 1) / (of - 1) if aligned else to / of
    half = 0.0 if mode & _ALIGN_CORNERS else 0.5
    centre = (np.arange(to) + half) / ratio - half
    if mode & _ANTIALIAS:
        reach = max(1.0, 1 / ratio)
        first = np.ceil(centre - reach)
        steps = range(min(2 * ceil(reach) + 1, of + 2 * ceil(reach)))
        weights = [np.clip(1 - np.abs(first + k - centre) / reach, 0, None) for k in steps]
        weights = [np.where((first + k >= 0) & (first + k < of), w, 0) for k, w in zip(steps, weights, strict=True)]
        weights = list(np.array(weights) / np.sum(weights, axis=0))
    elif mode & 0xFF == _BILINEAR:
        first = np.floor(np.maximum(centre, 0))
        t = np.maximum(centre, 0) - first
        weights = [1 - t, t]
    else:  # Keys's kernel with a = -0.75
        first = np.floor(centre) - 1
        weights = [_cubic(np.abs(first + k - centre)) for k in range(4)]
    places = [np.clip(first + k, 0, of - 1).astype(np.int64) for k in range(len(weights))]
    return [(at, w.astype(np.float32)) for at, w in zip(places, weights, strict=True)]


def _cubic(u: Any) -> Any:
    near, far = (1.25 * u - 2.25) * u * u + 1, -0.75 * (((u - 5) * u + 8) * u - 4)
    return np.where(u <= 1, near, far)
