"""Convolution, pooling, resampling. Pairs are (height, width); an int stands for both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from .._data.choices import POOLS
from .._data.shapes import MAX_DIMS, shape_tuple
from .._errors import InvalidArgumentError
from .._ffi import lib
from .._nodes.build import build, told_as
from ..tensor import Tensor
from ._form import IntPair, builds, choice, dims, pair

__all__ = [
    "conv_1d",
    "conv_2d",
    "conv_depthwise_2d",
    "conv_transpose_1d",
    "conv_transpose_2d",
    "im2col",
    "pad",
    "pool_1d",
    "pool_2d",
    "upscale",
]


_KERNEL = ("kernel", "data")


@builds("ggml_im2col")
def im2col(
    kernel: Tensor, data: Tensor, stride: IntPair = 1, padding: IntPair = 0, dilation: IntPair = 1, is_2d: bool = True
) -> Tensor:
    """The windows of ``data`` as rows, in float16. 2-D: ``kernel (oc, ic, kh, kw)``, ``data (n, ic, h, w)`` give ``(n,
    oh, ow, ic*kh*kw)``; 1-D: ``kernel (oc, ic, k)``, ``data (n, ic, w)`` give ``(n, ow, ic*k)``. Of the float16 kernel
    only the shape counts."""
    (s1, s0), (p1, p0), (d1, d0) = (
        pair("im2col", name, v) for name, v in (("stride", stride), ("padding", padding), ("dilation", dilation))
    )
    if not is_2d:
        s1, p1, d1 = 0, 0, 0
    ndim = 4 if is_2d else 3
    return build("im2col", lib.ggml_im2col, (kernel, data), s0, s1, p0, p1, d0, d1, is_2d, ndim=ndim, labels=_KERNEL)


@builds("ggml_conv_1d", "ggml_conv_1d_ph")
def conv_1d(
    kernel: Tensor, data: Tensor, stride: int = 1, padding: int | Literal["half"] = 0, dilation: int = 1
) -> Tensor:
    """``kernel (oc, ic, k)`` float16 or float32 over ``data (n, ic, w)``: ``(n, oc, ow)``, a cross-correlation.
    padding="half" is ``k // 2``. The data is rounded to float16 (:func:`im2col`): beyond 65504 it becomes infinite."""
    ndim = max(dims("conv_1d", data, "data"), 2)
    if isinstance(padding, str) and padding == "half":
        return build("conv_1d", lib.ggml_conv_1d_ph, (kernel, data), stride, dilation, ndim=ndim, labels=_KERNEL)
    return build("conv_1d", lib.ggml_conv_1d, (kernel, data), stride, padding, dilation, ndim=ndim, labels=_KERNEL)


@builds("ggml_conv_2d", "ggml_conv_2d_sk_p0", "ggml_conv_2d_s1_ph")
def conv_2d(
    kernel: Tensor,
    data: Tensor,
    stride: IntPair | Literal["kernel"] = 1,
    padding: IntPair | Literal["half"] = 0,
    dilation: IntPair = 1,
) -> Tensor:
    """``kernel (oc, ic, kh, kw)`` float16 or float32 over ``data (n, ic, h, w)`` of such: float32 ``(n, oc, oh,
    ow)``.

    stride="kernel" (with padding 0): windows side by side, as for patches. padding="half" (with stride 1): the size of
    the kernel halved. The data is rounded to float16 (:func:`im2col`): beyond 65504 it becomes infinite.
    """
    ndim = max(dims("conv_2d", data, "data"), 3)
    if isinstance(stride, str) and stride == "kernel":
        if padding != 0 or dilation != 1:
            raise InvalidArgumentError("conv_2d: stride='kernel' needs padding 0 and dilation 1")
        return build("conv_2d", lib.ggml_conv_2d_sk_p0, (kernel, data), ndim=ndim, labels=_KERNEL)
    if isinstance(padding, str) and padding == "half":
        if stride != 1 or dilation != 1:
            raise InvalidArgumentError("conv_2d: padding='half' needs stride 1 and dilation 1")
        return build("conv_2d", lib.ggml_conv_2d_s1_ph, (kernel, data), ndim=ndim, labels=_KERNEL)
    return _conv("conv_2d", lib.ggml_conv_2d, kernel, data, stride, padding, dilation, ndim)


def _conv(
    op: str,
    function: Any,
    kernel: Tensor,
    data: Tensor,
    stride: IntPair,
    padding: IntPair,
    dilation: IntPair,
    ndim: int,
) -> Tensor:
    (s1, s0), (p1, p0), (d1, d0) = (
        pair(op, name, v) for name, v in (("stride", stride), ("padding", padding), ("dilation", dilation))
    )
    return build(op, function, (kernel, data), s0, s1, p0, p1, d0, d1, ndim=ndim, labels=_KERNEL)


@builds("ggml_conv_depthwise_2d")
def conv_depthwise_2d(
    kernel: Tensor, data: Tensor, stride: IntPair = 1, padding: IntPair = 0, dilation: IntPair = 1
) -> Tensor:
    """A kernel for each channel: ``kernel (c, 1, kh, kw)`` float16 over ``data (n, c, h, w)``: ``(n, c, oh, ow)``. The
    data is rounded to float16 (:func:`im2col`): beyond 65504 it becomes infinite."""
    ndim = max(dims("conv_depthwise_2d", data, "data"), 3)
    return _conv("conv_depthwise_2d", lib.ggml_conv_depthwise_2d, kernel, data, stride, padding, dilation, ndim)


@builds("ggml_conv_transpose_1d")
def conv_transpose_1d(kernel: Tensor, data: Tensor, stride: int = 1, padding: int = 0, dilation: int = 1) -> Tensor:
    """``kernel (ic, oc, k)`` float16 or float32, ``data (ic, w)``: ``(oc, (w - 1) stride + k)``. Padding 0 and dilation
    1 only."""
    ndim = max(dims("conv_transpose_1d", data, "data"), 2)
    return build(
        "conv_transpose_1d",
        lib.ggml_conv_transpose_1d,
        (kernel, data),
        stride,
        padding,
        dilation,
        ndim=ndim,
        labels=_KERNEL,
    )


@builds("ggml_conv_transpose_2d_p0")
def conv_transpose_2d(kernel: Tensor, data: Tensor, stride: int = 1) -> Tensor:
    """``kernel (ic, oc, kh, kw)`` float16, ``data (n, ic, h, w)``: ``(n, oc, (h - 1) stride + kh, (w - 1) stride +
    kw)``."""
    ndim = max(dims("conv_transpose_2d", data, "data"), 3)
    return build("conv_transpose_2d", lib.ggml_conv_transpose_2d_p0, (kernel, data), stride, ndim=ndim, labels=_KERNEL)


@builds("ggml_pool_1d")
def pool_1d(a: Tensor, op: Literal["max", "avg"], kernel: int, stride: int | None = None, padding: int = 0) -> Tensor:
    """Maxima or means of windows of each row: ``(..., w)`` gives ``(..., ow)``. stride: default the kernel. Windows
    with NaN give NaN."""
    number = choice("pool_1d", "op", op, POOLS)
    step = kernel if stride is None else stride
    if dims("pool_1d", a) < 3:
        return build("pool_1d", lib.ggml_pool_1d, (a,), number, kernel, step, padding)
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    with told_as("pool_1d", a):
        pooled = build("pool_1d", lib.ggml_pool_1d, (rows,), number, kernel, step, padding)
    return pooled.reshape(*a.shape[:-1], pooled.shape[-1])


@builds("ggml_pool_2d")
def pool_2d(
    a: Tensor,
    op: Literal["max", "avg"],
    kernel: IntPair,
    stride: IntPair | None = None,
    padding: float | tuple[float, float] = 0,
) -> Tensor:
    """Maxima or means of windows: ``(n, c, h, w)`` gives ``(n, c, oh, ow)``; n may be left out. stride: default the
    kernel. Means count the padding as zeros; the maximum of a window of padding alone is -inf. Windows with NaN give
    NaN."""
    number = choice("pool_2d", "op", op, POOLS)
    k1, k0 = pair("pool_2d", "kernel", kernel)
    s1, s0 = (k1, k0) if stride is None else pair("pool_2d", "stride", stride)
    p1, p0 = padding if isinstance(padding, (tuple, list)) else (padding, padding)
    if dims("pool_2d", a) < 4 or a.shape[0] == 1:
        return build("pool_2d", lib.ggml_pool_2d, (a,), number, k0, k1, s0, s1, p0, p1)
    n, c, h, w = a.shape
    images = a.reshape(n * c, h, w)
    with told_as("pool_2d", a):
        channels = build("pool_2d", lib.ggml_pool_2d, (images,), number, k0, k1, s0, s1, p0, p1)
    return channels.reshape(n, c, *channels.shape[-2:])


@builds("ggml_upscale")
def upscale(a: Tensor, factor: int) -> Tensor:
    """Each element of the last two axes ``factor`` times, in both directions: ``(..., h, w)`` gives ``(..., h f, w
    f)``."""
    return build("upscale", lib.ggml_upscale, (a,), factor, ndim=max(dims("upscale", a), 2))


@builds("ggml_pad")
def pad(a: Tensor, amounts: int | Sequence[int]) -> Tensor:
    """Zeros appended at the end of the last axes: ``pad(a, (1, 2))`` adds a row and two columns."""
    size = shape_tuple(amounts, "pad: amounts")
    if len(size) > MAX_DIMS:
        raise InvalidArgumentError(f"pad: {len(size)} amounts, at most {MAX_DIMS} axes are possible")
    if any(amount < 0 for amount in size):
        raise InvalidArgumentError(f"pad: amounts are not negative, but {size}")
    p = [*reversed(size), *[0] * (MAX_DIMS - len(size))]
    return build("pad", lib.ggml_pad, (a,), *p, ndim=max(dims("pad", a), len(size)))
