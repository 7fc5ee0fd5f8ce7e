"""Convolution and pooling. Pairs are (height, width). An int stands for both."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Literal, Union

from .._base.errors import InvalidArgumentError, expect_bool, expect_int
from .._ffi import lib
from ..dtypes import DTypeLike, as_dtype, float16, float32
from ..tensor._build import build, reported_as
from ..tensor._operators import POOLS
from ..tensor._shapes import ne_of, shape_tuple
from ..tensor.tensor import Tensor
from ._form import IntPair, builds, choice, dims, pair

__all__ = [
    "col2im_1d",
    "conv_1d",
    "conv_2d",
    "conv_3d",
    "conv_depthwise_2d",
    "conv_transpose_1d",
    "conv_transpose_2d",
    "im2col",
    "im2col_3d",
    "im2col_back",
    "pool_1d",
    "pool_2d",
]


_KERNEL = ("kernel", "data")
IntTriple = Union[int, "tuple[int, int, int]"]


def _rows(op: str, data: Tensor) -> int:
    """The dtype id of the im2col rows: float16 for float16 data, else float32. So nothing is rounded."""
    dims(op, data, "data")
    return float16.id if data.dtype.name == "float16" else float32.id


@contextlib.contextmanager
def _ordered(op: str, kernel: Tensor, data: Tensor, axes: int) -> Iterator[None]:
    """Adds "are they swapped?" to errors of this block if the shapes of kernel and data suggest it."""
    try:
        yield
    except InvalidArgumentError as error:
        k, x = ((1,) * 4 + t.shape for t in (kernel, data))
        fits = all(n <= m for n, m in zip(x[-axes:], k[-axes:], strict=True)) and x[-axes:] != k[-axes:]
        if not fits or not (x[-axes - 1] == k[-axes - 1] or op == "conv_depthwise_2d"):
            raise
        raise InvalidArgumentError(f"{error}; the order is {op}(kernel, data): are they swapped?") from None


@builds("ggml_im2col", "ggml_im2col_as")
def im2col(
    kernel: Tensor,
    data: Tensor,
    stride: IntPair = 1,
    padding: IntPair = 0,
    dilation: IntPair = 1,
    is_2d: bool = True,
    dtype: DTypeLike = float16,
) -> Tensor:
    """The windows of ``data`` as rows.

    2-D: ``kernel (oc, ic, kh, kw)`` and ``data (n, ic, h, w)`` give ``(n, oh, ow, ic*kh*kw)``.
    1-D: ``kernel (oc, ic, k)`` and ``data (n, ic, w)`` give ``(n, ow, ic*k)``.
    The kernel is float16 or float32. Only its shape is used.

    dtype: dtype of the rows: float32, or float16, to which the data is rounded
    """
    element = as_dtype(dtype, "im2col: dtype")
    if element.name not in ("float16", "float32"):
        raise InvalidArgumentError(f"im2col: dtype must be float16 or float32, not {element.name}")
    (s1, s0), (p1, p0), (d1, d0) = (
        pair("im2col", name, v) for name, v in (("stride", stride), ("padding", padding), ("dilation", dilation))
    )
    is_2d = expect_bool(is_2d, "im2col: is_2d")
    if not is_2d:
        s1, p1, d1 = 0, 0, 0
    ndim = 4 if is_2d else 3
    sizes = (s0, s1, p0, p1, d0, d1, is_2d, element.id)
    return build("im2col", lib.ggml_im2col_as, (kernel, data), *sizes, ndim=ndim, labels=_KERNEL)


@builds("ggml_im2col_back")
def im2col_back(
    kernel: Tensor,
    rows: Tensor,
    shape: Sequence[int],
    stride: IntPair = 1,
    padding: IntPair = 0,
    dilation: IntPair = 1,
    is_2d: bool = True,
) -> Tensor:
    """Adds the rows of :func:`im2col` to the places from which they came: the gradient of ``data``, as float32.

    rows: float32, float16 or bfloat16, of the shape of the result of :func:`im2col`
    shape: that of ``data``, ``(n, ic, h, w)`` or ``(n, ic, w)``
    """
    is_2d = expect_bool(is_2d, "im2col_back: is_2d")
    size = shape_tuple(shape, "im2col_back: shape")
    if len(size) != 3 + is_2d:
        raise InvalidArgumentError(f"im2col_back: shape must have {3 + is_2d} sizes, not {size}")
    (s1, s0), (p1, p0), (d1, d0) = (
        pair("im2col_back", name, v) for name, v in (("stride", stride), ("padding", padding), ("dilation", dilation))
    )
    if not is_2d:
        s1, p1, d1 = 0, 0, 0
    sizes = (ne_of(size, "im2col_back"), s0, s1, p0, p1, d0, d1, is_2d)
    return build("im2col_back", lib.ggml_im2col_back, (kernel, rows), *sizes, ndim=len(size), labels=("kernel", "rows"))


@builds("ggml_conv_1d", "ggml_conv_1d_ph", "ggml_conv_1d_as", "ggml_conv_1d_grouped")
def conv_1d(
    kernel: Tensor,
    data: Tensor,
    stride: int = 1,
    padding: int | Literal["half"] = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """``kernel (oc, ic / groups, k)`` over ``data (n, ic, w)``: float32 ``(n, oc, ow)``, a cross-correlation.

    kernel: float16 or float32
    data: float32, float16 or bfloat16. Nothing is rounded (see :func:`conv_2d`)
    padding: "half" stands for ``k // 2``
    groups: divides the channels of ``data`` and the kernels; ``groups=ic`` is a depthwise convolution
    """
    ndim = max(dims("conv_1d", data, "data"), 2)
    dims("conv_1d", kernel, "kernel")
    if isinstance(padding, str) and padding == "half":
        padding = kernel.ne[0] // 2
    sizes = (stride, padding, dilation, groups)
    with _ordered("conv_1d", kernel, data, 1):
        return build("conv_1d", lib.ggml_conv_1d_grouped, (kernel, data), *sizes, ndim=ndim, labels=_KERNEL)


@builds("ggml_conv_2d", "ggml_conv_2d_sk_p0", "ggml_conv_2d_s1_ph", "ggml_conv_2d_as", "ggml_conv_2d_direct",
        "ggml_conv_2d_grouped")  # fmt: skip
def conv_2d(
    kernel: Tensor,
    data: Tensor,
    stride: IntPair | Literal["kernel"] = 1,
    padding: IntPair | Literal["half"] = 0,
    dilation: IntPair = 1,
    groups: int = 1,
) -> Tensor:
    """``kernel (oc, ic / groups, kh, kw)`` over ``data (n, ic, h, w)``: float32 ``(n, oc, oh, ow)``, a
    cross-correlation.

    kernel: float16 or float32
    data: float32, float16 or bfloat16. Nothing is rounded. Products and sums are float32.
    stride: "kernel" (with padding 0) places windows side by side, as for patches
    padding: "half" (with stride 1) stands for half the size of the kernel
    groups: divides the channels of ``data`` and the kernels; kernels of a group see only its channels
    """
    ndim = max(dims("conv_2d", data, "data"), 3)
    dims("conv_2d", kernel, "kernel")
    if isinstance(stride, str) and stride == "kernel":
        if padding != 0 or dilation != 1:
            raise InvalidArgumentError("conv_2d: stride='kernel' needs padding 0 and dilation 1")
        stride = kernel.ne[1], kernel.ne[0]
    if isinstance(padding, str) and padding == "half":
        if stride != 1 or dilation != 1:
            raise InvalidArgumentError("conv_2d: padding='half' needs stride 1 and dilation 1")
        padding = kernel.ne[1] // 2, kernel.ne[0] // 2
    sizes = (*_sizes("conv_2d", stride, padding, dilation), groups)
    with _ordered("conv_2d", kernel, data, 2):
        return build("conv_2d", lib.ggml_conv_2d_grouped, (kernel, data), *sizes, ndim=ndim, labels=_KERNEL)


def _sizes(op: str, stride: IntPair, padding: IntPair, dilation: IntPair) -> tuple[int, ...]:
    """Strides, paddings and dilations in the order of C: width first."""
    (s1, s0), (p1, p0), (d1, d0) = (
        pair(op, name, v) for name, v in (("stride", stride), ("padding", padding), ("dilation", dilation))
    )
    return s0, s1, p0, p1, d0, d1


@builds("ggml_conv_depthwise_2d", "ggml_conv_depthwise_2d_as", "ggml_conv_2d_dw_direct")
def conv_depthwise_2d(
    kernel: Tensor, data: Tensor, stride: IntPair = 1, padding: IntPair = 0, dilation: IntPair = 1
) -> Tensor:
    """One kernel for each channel: ``kernel (c, 1, kh, kw)`` over ``data (n, c, h, w)``.

    The result is float32 ``(n, c, oh, ow)``. Operands have the dtypes of :func:`conv_2d`. Nothing is
    rounded.
    """
    ndim = max(dims("conv_depthwise_2d", data, "data"), 3)
    dims("conv_depthwise_2d", kernel, "kernel")
    sizes = _sizes("conv_depthwise_2d", stride, padding, dilation)
    with _ordered("conv_depthwise_2d", kernel, data, 2):
        if kernel.ne[2] == 1 and kernel.ne[3] == data.ne[2]:
            function = lib.ggml_conv_2d_dw_direct
        else:  # kernels repeat over the channels
            function, sizes = lib.ggml_conv_depthwise_2d_as, (*sizes, _rows("conv_depthwise_2d", data))
        return build("conv_depthwise_2d", function, (kernel, data), *sizes, ndim=ndim, labels=_KERNEL)


def _triple(op: str, name: str, value: IntTriple) -> tuple[int, int, int]:
    if isinstance(value, (tuple, list)):
        if len(value) != 3:
            raise InvalidArgumentError(f"{op}: {name} must be an int or (depth, height, width), not {value!r}")
        return tuple(value)  # type: ignore[return-value]
    return value, value, value


@builds("ggml_conv_3d_direct", "ggml_conv_3d_grouped")
def conv_3d(
    kernel: Tensor,
    data: Tensor,
    channels: int,
    stride: IntTriple = 1,
    padding: IntTriple = 0,
    dilation: IntTriple = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution along three axes. Tensors have four, so images and channels share the first one.

    ``kernel (oc * ic / groups, kd, kh, kw)`` over ``data (n * ic, d, h, w)`` gives float32 ``(n * oc, od, oh,
    ow)``. Channels of an image, and those of a kernel, lie next to each other. Triples are (depth, height,
    width). Operands have the dtypes of :func:`conv_2d`. Nothing is rounded.

    channels: ``ic``, of all groups
    """
    dims("conv_3d", data, "data")
    dims("conv_3d", kernel, "kernel")
    channels, groups = (expect_int(v, f"conv_3d: {n}") for n, v in (("channels", channels), ("groups", groups)))
    if channels < 1 or groups < 1 or channels % groups or data.ne[3] % channels or kernel.ne[3] % (channels // groups):
        raise InvalidArgumentError(
            f"conv_3d: {channels} channels in {groups} groups do not fit data {data.shape} and kernel {kernel.shape}"
        )
    sizes = [
        v
        for name, triple in (("stride", stride), ("padding", padding), ("dilation", dilation))
        for v in reversed(_triple("conv_3d", name, triple))
    ]
    counts = (channels, data.ne[3] // channels, kernel.ne[3] // (channels // groups), groups)
    return build("conv_3d", lib.ggml_conv_3d_grouped, (kernel, data), *sizes, *counts, ndim=4, labels=_KERNEL)


@builds("ggml_conv_transpose_1d")
def conv_transpose_1d(kernel: Tensor, data: Tensor, stride: int = 1, padding: int = 0, dilation: int = 1) -> Tensor:
    """``kernel (ic, oc, k)``, ``data (ic, w)``: float32 ``(oc, (w - 1) stride + k)``.

    Only padding 0 and dilation 1 are supported. Operands are float32, float16 or bfloat16, and are
    multiplied in float32.
    """
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
    """``kernel (ic, oc, kh, kw)``, ``data (n, ic, h, w)``: float32 ``(n, oc, (h - 1) stride + kh, (w -
    1) stride + kw)``.

    Operands are float32, float16 or bfloat16, and are multiplied in float32.
    """
    ndim = max(dims("conv_transpose_2d", data, "data"), 3)
    return build("conv_transpose_2d", lib.ggml_conv_transpose_2d_p0, (kernel, data), stride, ndim=ndim, labels=_KERNEL)


@builds("ggml_pool_1d")
def pool_1d(a: Tensor, op: Literal["max", "avg"], kernel: int, stride: int | None = None, padding: int = 0) -> Tensor:
    """Maximum or mean of the windows of each row: ``(..., w)`` gives ``(..., ow)``.

    A window with NaN gives NaN.

    stride: default: the kernel size
    """
    number = choice("pool_1d", "op", op, POOLS)
    step = kernel if stride is None else stride
    if dims("pool_1d", a) < 3:
        return build("pool_1d", lib.ggml_pool_1d, (a,), number, kernel, step, padding)
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    with reported_as("pool_1d", a):
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
    """Maximum or mean of windows: ``(n, c, h, w)`` gives ``(n, c, oh, ow)``. You may omit n.

    Means count the padding as zeros. The maximum of a window that holds only padding is -inf. A window
    with NaN gives NaN.

    stride: default: the kernel size
    """
    number = choice("pool_2d", "op", op, POOLS)
    k1, k0 = pair("pool_2d", "kernel", kernel)
    s1, s0 = (k1, k0) if stride is None else pair("pool_2d", "stride", stride)
    p1, p0 = padding if isinstance(padding, (tuple, list)) else (padding, padding)
    if dims("pool_2d", a) < 4 or a.shape[0] == 1:
        return build("pool_2d", lib.ggml_pool_2d, (a,), number, k0, k1, s0, s1, p0, p1)
    n, c, h, w = a.shape
    images = a.reshape(n * c, h, w)
    with reported_as("pool_2d", a):
        channels = build("pool_2d", lib.ggml_pool_2d, (images,), number, k0, k1, s0, s1, p0, p1)
    return channels.reshape(n, c, *channels.shape[-2:])


@builds("ggml_im2col_3d")
def im2col_3d(
    kernel: Tensor,
    data: Tensor,
    channels: int,
    stride: IntTriple = 1,
    padding: IntTriple = 0,
    dilation: IntTriple = 1,
    dtype: DTypeLike = float32,
) -> Tensor:
    """The windows of volumes as rows.

    ``kernel (oc * channels, kd, kh, kw)`` and ``data (n * channels, d, h, w)`` give
    ``(n * od, oh, ow, channels * kd * kh * kw)``. Only the shape of the kernel is used. Triples are (depth, height,
    width).

    dtype: dtype of the rows: float32, or float16, to which the data is rounded
    """
    element = as_dtype(dtype, "im2col_3d: dtype")
    if element.name not in ("float16", "float32"):
        raise InvalidArgumentError(f"im2col_3d: dtype must be float16 or float32, not {element.name}")
    named = (("stride", stride), ("padding", padding), ("dilation", dilation))
    sizes = [n for name, value in named for n in reversed(_triple("im2col_3d", name, value))]
    function = lib.ggml_im2col_3d
    return build("im2col_3d", function, (kernel, data), channels, *sizes, element.id, ndim=4, labels=_KERNEL)


@builds("ggml_col2im_1d")
def col2im_1d(columns: Tensor, channels: int, stride: int, padding: int = 0) -> Tensor:
    """Adds overlapping pieces: ``columns (t, channels * k)`` gives ``(channels, (t - 1) stride + k - 2 padding)``.

    A transposed convolution is a product followed by this. Both ends are cut by ``padding``.
    """
    return build("col2im_1d", lib.ggml_col2im_1d, (columns,), stride, channels, padding, ndim=2, labels=("columns",))
