"""Convolutions, pooling, resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ... import ops
from ...tensor import Tensor
from ..build import Build, NoRule, Val
from . import rule


def _all(values: Sequence[int], n: int) -> tuple[int, ...]:
    """One number for each axis."""
    return tuple(values) * n if len(values) == 1 else tuple(values)


@rule("convolution", "conv1d", "conv2d", "conv3d")
def convolution(
    b: Build,
    input: Val,
    weight: Val,
    bias: Val | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    transposed: bool = False,
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
) -> Tensor:
    n = weight.ndim - 2
    if input.ndim != n + 2 or not 1 <= n <= 3:
        raise NoRule(f"data of {input.ndim} axes and a kernel of {weight.ndim}")
    s, p, d = _all(stride, n), _all(padding, n), _all(dilation, n)
    if transposed:
        y = _transposed(b, input, weight, s, p, d, groups)
    elif n == 1:
        y = ops.conv_1d(b.dense(weight), b.dense(input), s[0], p[0], d[0], groups)
    elif n == 2:
        y = _planes(b, input, weight, s, p, d, groups)
    else:
        y = _volumes(b, input, weight, s, p, d, groups)
    if bias is None:
        return y
    c = bias.shape[0]
    if n == 3:
        return y.reshape(input.shape[0], c, -1) + b.fold(bias, 1, c, 1)
    return y + b.fold(bias, *(c if i == 1 else 1 for i in range(n + 2)))


def _planes(b: Build, x: Val, w: Val, s: Any, p: Any, d: Any, groups: int) -> Tensor:
    kernel, data = b.dense(w), b.dense(x)
    if groups == x.shape[1] == w.shape[0] and groups > 1:
        return ops.conv_depthwise_2d(kernel, data, s, p, d)
    return ops.conv_2d(kernel, data, s, p, d, groups)


def _volumes(b: Build, x: Val, w: Val, s: Any, p: Any, d: Any, groups: int) -> Tensor:
    kernel, data = b.fold(w, -1, *w.shape[2:]), b.fold(x, -1, *x.shape[2:])
    return ops.conv_3d(kernel.contiguous(), data.contiguous(), x.shape[1], s, p, d, groups)


def _transposed(b: Build, x: Val, w: Val, s: Any, p: Any, d: Any, groups: int) -> Tensor:
    """The full result, cut to that of the node."""
    if groups != 1 or {*d} != {1} or len({*s}) != 1:
        raise NoRule("groups, dilation, or strides that differ")
    size = b.result.shape[2:]
    full = [(n - 1) * s[0] + k for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    if any(at + n > m for at, n, m in zip(p, size, full, strict=True)):
        raise NoRule("output_padding above the padding")
    if x.ndim == 4:
        y = ops.conv_transpose_2d(b.dense(w), b.dense(x), s[0])
        return y[:, :, p[0] : p[0] + size[0], p[1] : p[1] + size[1]]
    if x.ndim != 3 or x.shape[0] != 1:
        raise NoRule("a batch of rows, or volumes")
    y = ops.conv_transpose_1d(b.dense(w), b.fold(x, *x.shape[1:]).contiguous(), s[0])
    return y[:, p[0] : p[0] + size[0]]


# ------------------------------------------------------------------------------------------------------------- pooling


def _windows(x: Val, kernel: Any, stride: Any, padding: Any) -> tuple[Any, Any, Any]:
    """Kernel, stride and padding of both axes. With ceil_mode a kernel may be larger than the padded plane."""
    k, p = _all(kernel, 2), _all(padding, 2)
    s = _all(stride, 2) if stride else k
    return tuple(min(m, n + 2 * q) for m, n, q in zip(k, x.shape[-2:], p, strict=True)), s, p


def _pool(b: Build, x: Val, how: Literal["max", "avg"], kernel: Any, stride: Any, padding: Any) -> Tensor:
    k, s, p = _windows(x, kernel, stride, padding)
    size = [(n + 2 * q - m) // t + 1 for n, q, m, t in zip(x.shape[-2:], p, k, s, strict=True)]
    if size != [*b.result.shape[-2:]]:
        raise NoRule("ceil_mode with windows beyond the padding")
    planes = b.fold(x, math.prod(x.shape[:-2]), *x.shape[-2:]).contiguous()
    return ops.pool_2d(planes, how, (k[0], k[1]), (s[0], s[1]), (p[0], p[1]))


@rule("max_pool2d_with_indices", "max_pool2d")
def max_pool(
    b: Build,
    self: Val,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor | None, ...]:
    if {*dilation} != {1}:
        raise NoRule(f"dilation {dilation}")
    return (_pool(b, self, "max", kernel_size, stride, padding), None)[: len(b.results)]


@rule("avg_pool2d")
def avg_pool(
    b: Build,
    self: Val,
    kernel_size: Sequence[int],
    divisor_override: int | None = None,
    count_include_pad: bool = True,
    ceil_mode: bool = False,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
) -> Tensor:
    if divisor_override is not None:
        raise NoRule("divisor_override")
    y = _pool(b, self, "avg", kernel_size, stride, padding)
    if count_include_pad or not any(padding):
        return y
    k, s, p = _windows(self, kernel_size, stride, padding)
    inside = [
        np.minimum(begin + k[i], self.shape[i - 2]) - np.maximum(begin, 0)
        for i in range(2)
        for begin in [np.arange(b.result.shape[i - 2]) * s[i] - p[i]]
    ]
    return y * b.constant(k[0] * k[1] / np.multiply.outer(*inside)[None])


def _rows_as_planes(b: Build, x: Val, how: Literal["max", "avg"], k: int, s: int, p: int) -> Tensor:
    if (x.shape[-1] + 2 * p - k) // s + 1 != b.result.shape[-1]:
        raise NoRule("ceil_mode with windows beyond the padding")
    return ops.pool_1d(b.fold(x, -1, x.shape[-1]).contiguous(), how, k, s, p)


@rule("avg_pool1d")
def avg_pool_1d(
    b: Build,
    self: Val,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    count_include_pad: bool = True,
    ceil_mode: bool = False,
) -> Tensor:
    if not count_include_pad and any(padding):
        raise NoRule("count_include_pad=False")
    return _rows_as_planes(b, self, "avg", kernel_size[0], (stride or kernel_size)[0], padding[0])


@rule("_adaptive_avg_pool2d", "adaptive_avg_pool2d")
def adaptive_avg_pool(b: Build, self: Val, output_size: Sequence[int]) -> Tensor:
    h, w = self.shape[-2:]
    if tuple(output_size) == (1, 1):
        return ops.mean(b.last(self, (-2, -1)))
    if h % output_size[0] or w % output_size[1]:
        planes = _averaged(b, b.fold(self, -1, h, w).contiguous(), output_size[1])
        return _averaged(b, planes.swapaxes(1, 2).contiguous(), output_size[0]).swapaxes(1, 2).contiguous()
    k = h // output_size[0], w // output_size[1]
    return _pool(b, self, "avg", k, k, (0,))


def _averaged(b: Build, x: Tensor, m: int) -> Tensor:
    """The means of m windows along the last axis, as a product. The windows may overlap and differ in size."""
    n = x.shape[-1]
    matrix = np.zeros((m, n), np.float32)
    for i in range(m):
        first, stop = i * n // m, -(-(i + 1) * n // m)
        matrix[i, first:stop] = 1 / (stop - first)
    return ops.mul_mat(b.constant(matrix), x)


@rule("adaptive_avg_pool1d")
def adaptive_avg_pool_1d(b: Build, self: Val, output_size: Sequence[int]) -> Tensor:
    n, m = self.shape[-1], output_size[0]
    if n % m:
        return _averaged(b, b.fold(self, -1, n).contiguous(), m)
    return _rows_as_planes(b, self, "avg", n // m, n // m, 0)


# ------------------------------------------------------------------------------------------------------------ resizing


@rule(
    "upsample_nearest2d", "upsample_nearest2d.vec", "upsample_bilinear2d", "upsample_bilinear2d.vec",
    "upsample_bicubic2d", "upsample_bicubic2d.vec",
)  # fmt: skip
def resize(
    b: Build,
    self: Val | None = None,
    output_size: Sequence[int] | None = None,
    align_corners: bool = False,
    scales_h: float | None = None,
    scales_w: float | None = None,
    input: Val | None = None,
    scale_factors: Sequence[float] | None = None,
) -> Tensor:
    x = self if self is not None else input
    assert x is not None
    h, w = b.result.shape[-2:]
    for n, m, scale in zip(x.shape[-2:], (h, w), scale_factors or (scales_h, scales_w), strict=True):
        if scale is not None and abs(n * scale - m) > 1e-6 * m:  # PyTorch computes places from the factors
            raise NoRule(f"{n} elements times {scale} are not {m}")
    mode: Any = b.node.op.partition("_")[2].partition("2d")[0]
    return ops.interpolate(b.dense(x), (h, w), mode, align_corners=align_corners)
