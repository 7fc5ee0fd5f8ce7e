"""The operators ``torch.ops.ggml_backend``: what they compute, their shapes for tracing, and their gradients.

``blocks`` is a uint8 tensor (n, bytes of a row) in the format that ``format`` names. Activations are float32 inside.
Other dtypes are converted once, and so is the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .._base.errors import InvalidArgumentError
from ..dtypes import DType, DTypeLike, as_dtype
from ..ops._form import choice
from ..tensor import dequantize
from ..tensor._operators import PRECISIONS_OF_PRODUCTS
from . import _engine

__all__ = ["check_precision", "floats_of", "layout", "memory_of", "rows_of"]

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 22  # elements of the weight that the gradient dequantizes at once

_library = torch.library.Library("ggml_backend", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_library.define(
    'linear(Tensor x, Tensor blocks, Tensor? bias, str format, str precision="default") -> Tensor', tags=_TAGS
)
_library.define("embedding(Tensor ids, Tensor blocks, str format, ScalarType dtype) -> Tensor", tags=_TAGS)
_library.define("linear_gradient(Tensor gradient, Tensor blocks, str format) -> Tensor", tags=_TAGS)


def check_precision(precision: str, what: str) -> None:
    """Raises InvalidArgumentError unless products have this precision."""
    choice(what, "precision", precision, PRECISIONS_OF_PRODUCTS)


def _columns(blocks: torch.Tensor, format: DTypeLike) -> int:
    """Elements of a row of the weight."""
    element = as_dtype(format, "ggml_backend.torch")
    return int(blocks.shape[-1] // element.itemsize * element.block_size)


def layout(blocks: torch.Tensor, format: str, what: str = "ggml_backend.torch") -> tuple[DType, int, int]:
    """Format, rows and columns of the weight.

    what: begins the messages of errors
    """
    element, shape = as_dtype(format, what), blocks.shape
    if blocks.dtype != torch.uint8 or len(shape) != 2 or shape[1] % element.itemsize:
        raise InvalidArgumentError(
            f"{what}: blocks of {element.name} are uint8, (rows, multiple of {element.itemsize}), not"
            f" {blocks.dtype} {tuple(shape)}"
        )
    return element, shape[0], _columns(blocks, element)


def memory_of(x: torch.Tensor) -> Array:
    """The memory of a tensor on the CPU. A tensor with gaps is copied."""
    array: Array = (x.detach() if x.requires_grad else x).contiguous().numpy()
    return array


def floats_of(x: torch.Tensor) -> Array:
    """The memory of a tensor as float32. Other dtypes are converted."""
    return memory_of(x if x.dtype == torch.float32 else x.float())


def rows_of(blocks: torch.Tensor, element: DType) -> Array:
    """The rows of the weight as an array, as :func:`ggml_backend.dequantize` takes them."""
    array = memory_of(blocks)
    return array if element.is_quantized else array.view(element.numpy)


def _refuse(x: torch.Tensor, blocks: torch.Tensor, format: str, what: str) -> str:
    k = _columns(blocks, format)
    return f"{what}: the weight {format} {(blocks.shape[0], k)} does not fit the shape {tuple(x.shape)}"


def _linear(
    x: torch.Tensor, blocks: torch.Tensor, bias: torch.Tensor | None, format: str, precision: str = "default"
) -> Any:
    check_precision(precision, "linear")
    element, n, k = layout(blocks, format)
    if x.ndim == 0 or x.shape[-1] != k:
        raise InvalidArgumentError(_refuse(x, blocks, format, "linear"))
    y = torch.empty((*x.shape[:-1], n), dtype=torch.float32)
    if y.numel():
        _engine.product(
            rows_of(blocks, element),
            floats_of(x).reshape(-1, k),
            None if bias is None else floats_of(bias),
            y.numpy().reshape(-1, n),
            element,
            precision,
        )
    return y if x.dtype == torch.float32 else y.to(x.dtype)


def _embedding(ids: torch.Tensor, blocks: torch.Tensor, format: str, dtype: torch.dtype) -> Any:
    element, n, k = layout(blocks, format)
    y = torch.empty((*ids.shape, k), dtype=torch.float32)
    if y.numel():
        numbers = memory_of(ids).reshape(-1)
        if numbers.dtype.kind not in "iu":
            raise TypeError(f"embedding: ids must be integers, not {ids.dtype}")
        if not 0 <= int(numbers.min()) <= int(numbers.max()) < n:
            raise IndexError(f"embedding: ids are {numbers.min()} to {numbers.max()}, the weight has {n} rows")
        _engine.rows(rows_of(blocks, element), numbers.astype(np.int32), y.numpy().reshape(-1, k), element)
    return y if dtype == torch.float32 else y.to(dtype)


def _gradient(gradient: torch.Tensor, blocks: torch.Tensor, format: str) -> Any:
    """``gradient @ weight``, without rounding. It dequantizes some rows of the weight at a time."""
    element, n, k = layout(blocks, format)
    weight, g = rows_of(blocks, element), gradient.reshape(-1, n).float()
    total = torch.zeros((g.shape[0], k), dtype=torch.float32)
    step = max(1, _CHUNK // k)
    for i in range(0, n, step):
        total.addmm_(g[:, i : i + step], torch.from_numpy(dequantize(weight[i : i + step], element)))
    return total.reshape(*gradient.shape[:-1], k).to(gradient.dtype)


def _linear_shape(x: torch.Tensor, blocks: torch.Tensor, bias: Any, format: str, precision: str = "default") -> Any:
    check_precision(precision, "linear")
    torch._check(x.shape[-1] == _columns(blocks, format), lambda: _refuse(x, blocks, format, "linear"))
    return x.new_empty((*x.shape[:-1], blocks.shape[0]))


def _embedding_shape(ids: torch.Tensor, blocks: torch.Tensor, format: str, dtype: torch.dtype) -> Any:
    return ids.new_empty((*ids.shape, _columns(blocks, format)), dtype=dtype)


def _gradient_shape(gradient: torch.Tensor, blocks: torch.Tensor, format: str) -> Any:
    return gradient.new_empty((*gradient.shape[:-1], _columns(blocks, format)))


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.format, ctx.bias_dtype = inputs[3], None if inputs[2] is None else inputs[2].dtype


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    (blocks,) = ctx.saved_tensors
    of_x = of_bias = None
    if ctx.needs_input_grad[0]:
        of_x = torch.ops.ggml_backend.linear_gradient(gradient, blocks, ctx.format)
    if ctx.needs_input_grad[2]:
        of_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0).to(ctx.bias_dtype)
    return of_x, None, of_bias, None, None


_library.impl("linear", _linear, "CPU")
_library.impl("embedding", _embedding, "CPU")
_library.impl("linear_gradient", _gradient, "CPU")
torch.library.register_fake("ggml_backend::linear", _linear_shape, lib=_library)
torch.library.register_fake("ggml_backend::embedding", _embedding_shape, lib=_library)
torch.library.register_fake("ggml_backend::linear_gradient", _gradient_shape, lib=_library)
torch.library.register_autograd("ggml_backend::linear", _backward, setup_context=_save, lib=_library)
