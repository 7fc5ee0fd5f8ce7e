"""Convolutions, and the windows of images as rows.

Tensors have four axes, so three-dimensional images and their channels share one. :func:`cut` takes them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ...dtypes import DType
from .._nodes import Node
from ..device import op
from .family import FLOAT_NAMES, Family
from .layout import axes, cut
from .library import F32, Library, Step

Sizes = Sequence[int]


class Windows:
    """The windows of images ``(n, channels, ...)``, as a view ``(n, channels, places ..., kernel ...)`` of a padded
    copy, or of the images themselves."""

    def __init__(
        self, library: Library, x: Any, dtype: DType, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes,
        outside: float = 0.0, places: Sizes | None = None,
    ) -> None:  # fmt: skip
        """places: numbers of windows, if they are not those that fit into the padded images"""
        self._copy: Step | None = None
        room = [n + 2 * p for n, p in zip(x.shape[2:], padding, strict=True)]
        if places is not None:
            reach = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in zip(places, kernel, stride, dilation, strict=True)]
            room = [max(sizes) for sizes in zip(room, reach, strict=True)]
        if room != list(x.shape[2:]):
            padded = library.empty((*x.shape[:2], *room), dtype)
            library.clear(padded)()
            if outside:
                padded += outside
            inner = tuple(slice(p, p + n) for n, p in zip(x.shape[2:], padding, strict=True))
            self._copy = library.assign(padded[(slice(None), slice(None), *inner)], x)
            x = padded
        steps = list(zip(x.shape[2:], kernel, stride, dilation, strict=True))
        self.places = list(places or [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in steps])
        apart = library.strides(x)
        strides = [(a * s, a * d) for a, (_, _, s, d) in zip(apart[2:], steps, strict=True)]
        shape = (*x.shape[:2], *self.places, *kernel)
        self.view = library.strided(x, shape, (*apart[:2], *(s for s, _ in strides), *(d for _, d in strides)))

    def fill(self) -> Any:
        """Copies the images into the padded copy again, and returns the view."""
        if self._copy is not None:
            self._copy()
        return self.view


def _convolution(device: Family, node: Node, out: Any, w: Any, x: Any, groups: int) -> Step:
    """Images ``(n, channels, ...)`` and kernels ``(kernels, channels / groups, ...)``."""
    library, p = device.library, node.params
    stride, padding, dilation = (p[name] for name in ("stride", "padding", "dilation"))
    dtypes = [node.sources[1].dtype, node.sources[0].dtype]
    if not prod(w.shape) or not prod(x.shape):
        return library.clear(out)

    def convolved(x: Any, w: Any) -> Any:
        found = library.convolve(x, w, stride, padding, dilation, groups)
        return _product_of_windows(library, x, w, (stride, padding, dilation), groups) if found is None else found

    return device.value_of(convolved, node, out, (x, w), dtypes)


def _product_of_windows(library: Library, x: Any, w: Any, sizes: Sequence[Sizes], groups: int) -> Any:
    """A product of kernels with windows as columns."""
    xp, n, (kernels, channels, *kernel) = library.xp, x.shape[0], w.shape
    stride, padding, dilation = sizes
    windows = Windows(library, x, F32, kernel, stride, padding, dilation)
    k = len(kernel)
    columns = xp.permute_dims(windows.fill(), (0, 1, *range(2 + k, 2 + 2 * k), *range(2, 2 + k)))
    columns = xp.reshape(columns, (n, groups, channels * prod(kernel), prod(windows.places)))
    rows = xp.reshape(w, (groups, kernels // groups, channels * prod(kernel)))
    return xp.reshape(xp.matmul(rows, columns), (n, kernels, *windows.places))


@op("conv_2d", "conv_2d_dw", dtypes=FLOAT_NAMES, prepare=True)
def conv_2d(device: Family, node: Node, out: Any, w: Any, x: Any) -> Step:
    w, x, out = (axes(device.library, array, 4) for array in (w, x, out))
    groups = w.shape[0] if node.op == "conv_2d_dw" else node.params["groups"]
    return _convolution(device, node, out, w, x, groups)


@op("conv_3d", dtypes=FLOAT_NAMES, prepare=True)
def conv_3d(device: Family, node: Node, out: Any, w: Any, x: Any) -> Step:
    library, p = device.library, node.params
    w, x, out = (axes(library, array, 4) for array in (w, x, out))
    groups, channels = p["groups"], p["channels"]
    kernels = w.shape[0] * groups // channels
    w, x, out = (
        cut(library, array, [[array.shape[0] // n, n], *([m] for m in array.shape[1:])])
        for array, n in ((w, channels // groups), (x, channels), (out, kernels))
    )
    return _convolution(device, node, out, w, x, groups)


def _rows_of_windows(device: Family, node: Node, out: Any, windows: Windows) -> Step:
    """Stores windows as rows: all channels of a place, each with all its elements under the kernel. out: (n,
    places ..., channels, kernel ...)"""
    k = len(windows.places)
    view = device.library.xp.permute_dims(windows.view, (0, *range(2, 2 + k), 1, *range(2 + k, 2 + 2 * k)))
    store = device.conversion(out, node.dtype, view, node.sources[1].dtype)

    def run() -> None:
        windows.fill()
        store()

    return run


@op("im2col", dtypes=FLOAT_NAMES, prepare=True)
def im2col(device: Family, node: Node, out: Any, w: Any, x: Any) -> Step:
    """Uses only the shape of the kernel."""
    library, p = device.library, node.params
    n = 4 if p["is_2d"] else 3
    w, x, out = (axes(library, array, n) for array in (w, x, out))
    stride, padding, dilation = (v if p["is_2d"] else (v,) for v in (p["stride"], p["padding"], p["dilation"]))
    windows = Windows(library, x, node.sources[1].dtype, w.shape[2:], stride, padding, dilation)
    out = cut(library, out, [*([m] for m in out.shape[:-1]), [x.shape[1], *w.shape[2:]]])
    return _rows_of_windows(device, node, out, windows)


@op("im2col_3d", dtypes=FLOAT_NAMES, prepare=True)
def im2col_3d(device: Family, node: Node, out: Any, w: Any, x: Any) -> Step:
    """Uses only the shape of the kernel."""
    library, p = device.library, node.params
    w, x, out = (axes(library, array, 4) for array in (w, x, out))
    channels = p["channels"]
    images = x.shape[0] // channels
    x = cut(library, x, [[images, channels], *([m] for m in x.shape[1:])])
    windows = Windows(library, x, node.sources[1].dtype, w.shape[1:], p["stride"], p["padding"], p["dilation"])
    parts = [[images, windows.places[0]], *([m] for m in out.shape[1:3]), [channels, *w.shape[1:]]]
    return _rows_of_windows(device, node, cut(library, out, parts), windows)


def _spread(
    library: Library, columns: Any, stride: Sizes, dilation: Sizes | None = None, sizes: Sizes | None = None
) -> Any:
    """Adds overlapping pieces: ``columns (n, channels, kernel ..., places ...)`` give ``(n, channels, ...)``.

    sizes: of the result; without them, those that the pieces cover
    """
    k = len(stride)
    kernel, places = columns.shape[2 : 2 + k], columns.shape[2 + k :]
    dilation = dilation or (1,) * k
    sizes = sizes or tuple(
        (m - 1) * s + (n - 1) * d + 1 for n, m, s, d in zip(kernel, places, stride, dilation, strict=True)
    )
    found = library.empty((*columns.shape[:2], *sizes))
    library.clear(found)()
    for at in np.ndindex(*kernel):
        spots = (
            slice(a * d, a * d + (m - 1) * s + 1, s) for a, m, s, d in zip(at, places, stride, dilation, strict=True)
        )
        found[(slice(None), slice(None), *spots)] += columns[(slice(None), slice(None), *at)]
    return found


@op("im2col_back", dtypes=FLOAT_NAMES, prepare=True)
def im2col_back(device: Family, node: Node, out: Any, w: Any, rows: Any) -> Step:
    """Adds rows to a padded image, also where no window reaches. Uses only the shape of the kernel."""
    library, p = device.library, node.params
    n = 4 if p["is_2d"] else 3
    w, rows, out = (axes(library, array, n) for array in (w, rows, out))
    stride, padding, dilation = (v if p["is_2d"] else (v,) for v in (p["stride"], p["padding"], p["dilation"]))
    kernel, places, k = tuple(w.shape[2:]), tuple(rows.shape[1:-1]), n - 2
    sizes = tuple(m + 2 * q for m, q in zip(out.shape[2:], padding, strict=True))
    inner = tuple(slice(q, q + m) for m, q in zip(out.shape[2:], padding, strict=True))

    def added(rows: Any) -> Any:
        cut_rows = library.xp.reshape(rows, (rows.shape[0], *places, out.shape[1], *kernel))
        order = (0, 1 + k, *range(2 + k, 2 + 2 * k), *range(1, 1 + k))  # (n, channels, kernel ..., places ...)
        found = _spread(library, library.xp.permute_dims(cut_rows, order), stride, dilation, sizes)
        return found[(slice(None), slice(None), *inner)]

    return device.value_of(added, node, out, (rows,), [node.sources[1].dtype])


@op("col2im_1d", dtypes=FLOAT_NAMES, prepare=True)
def col2im_1d(device: Family, node: Node, out: Any, a: Any) -> Step:
    """Rows are the pieces of a place. Both ends of the result are cut."""
    library, p = device.library, node.params
    a, out = axes(library, a, 2), axes(library, out, 2)
    channels, first, end = p["channels"], p["padding"], p["padding"] + out.shape[1]

    def added(a: Any) -> Any:
        columns = library.xp.reshape(library.xp.permute_dims(a, (1, 0)), (1, channels, -1, a.shape[0]))
        return _spread(library, columns, (p["stride"],))[0, :, first:end]

    return device.value_of(added, node, out, (a,))


@op("conv_transpose_1d", dtypes=FLOAT_NAMES, prepare=True)
def conv_transpose_1d(device: Family, node: Node, out: Any, w: Any, x: Any) -> Step:
    library = device.library
    w, x, out = axes(library, w, 3), axes(library, x, 2)[None], axes(library, out, 2)[None]
    return _transposed(device, node, out, w, x, (node.params["stride"],))


@op("conv_transpose_2d", dtypes=FLOAT_NAMES, prepare=True)
def conv_transpose_2d(device: Family, node: Node, out: Any, w: Any, x: Any) -> Step:
    w, x, out = (axes(device.library, array, 4) for array in (w, x, out))
    return _transposed(device, node, out, w, x, (node.params["stride"],) * 2)


def _transposed(device: Family, node: Node, out: Any, w: Any, x: Any, stride: Sizes) -> Step:
    """A product of images ``(n, channels, ...)`` with kernels ``(channels, kernels, ...)``, whose pieces are added."""
    library, xp = device.library, device.library.xp
    (channels, kernels, *kernel), (n, _, *places) = w.shape, x.shape

    def transposed(w: Any, x: Any) -> Any:
        rows = xp.permute_dims(xp.reshape(w, (channels, -1)), (1, 0))
        columns = xp.matmul(rows, xp.reshape(x, (n, channels, -1)))
        return _spread(library, xp.reshape(columns, (n, kernels, *kernel, *places)), stride)

    return device.value_of(transposed, node, out, (w, x))


def _pools(node: Node) -> bool | str:
    return node.params["op"] in ("max", "avg") or "an unknown kind of pooling"


@op("pool_1d", "pool_2d", dtypes=FLOAT_NAMES, when=_pools, prepare=True)
def pool(device: Family, node: Node, out: Any, a: Any) -> Step:
    """Means count the padding as zeros, and maxima ignore it. The node stores a padding without its fraction, so the
    number of windows follows from the shape of the result."""
    library, xp, p = device.library, device.library.xp, node.params
    n = 1 if node.op == "pool_1d" else 2
    kernel, stride, padding = (
        tuple(int(v) for v in p[name]) if n == 2 else (p[name],) for name in ("kernel", "stride", "padding")
    )
    a, out = (axes(library, array, 2 + n) for array in (a, out))
    places = tuple(out.shape[2:])
    is_max, last = p["op"] == "max", tuple(range(2 + n, 2 + 2 * n))

    def pooled(x: Any) -> Any:
        outside = -np.inf if is_max else 0.0
        windows = Windows(library, x, F32, kernel, stride, padding, (1,) * n, outside, places).fill()
        return xp.max(windows, axis=last) if is_max else xp.mean(windows, axis=last)

    return device.value_of(pooled, node, out, (a,))
