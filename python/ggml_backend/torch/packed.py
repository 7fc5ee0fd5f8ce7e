"""Packed weights as tensors of PyTorch, and packing the weights of modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from .._base.errors import InvalidArgumentError, expect
from .._base.text import Patterns, nearest
from ..dtypes import DType, DTypeLike, as_dtype
from ..tensor import dequantize
from ..tensor import quantize as quantize_rows
from ..tensor._quantize import fallback_dtype
from ._operators import check_precision, floats_of, layout, rows_of

__all__ = ["PackedTensor", "embedding", "linear", "pack", "pack_"]

Precision = Literal["default", "f16", "f32"]
"""Of products: as :func:`ggml_backend.ops.mul_mat` takes it."""

_ops = torch.ops.ggml_backend
_aten = torch.ops.aten


class PackedTensor(torch.Tensor):
    """A matrix whose values are blocks of a quantized format. :func:`pack` and :func:`from_gguf` make them.

    It is the weight of ``F.linear`` and ``F.embedding``, so also of ``nn.Linear`` and ``nn.Embedding``. With
    ``weight.T`` it is the right operand of ``x @ weight.T``. ``dequantize()`` gives the values as floats. Other
    functions raise NotImplementedError.

    ``blocks``: uint8 (rows, bytes of a row); ``format``: its name, such as ``"q4_k"``; ``precision``: of products
    ``dtype``: the float dtype that the weight stands for: the dtype of embeddings
    ``transposed``: the rows of blocks are the columns of this tensor
    """

    blocks: torch.Tensor
    format: str
    precision: Precision
    transposed: bool

    @staticmethod
    def __new__(
        cls,
        blocks: torch.Tensor,
        format: str,
        precision: Precision = "default",
        dtype: torch.dtype = torch.float32,
        transposed: bool = False,
    ) -> PackedTensor:
        expect(blocks, torch.Tensor, "PackedTensor: blocks")
        element, *shape = layout(blocks, format, "PackedTensor")
        check_precision(precision, "PackedTensor")
        made: PackedTensor = torch.Tensor._make_wrapper_subclass(
            cls, shape[::-1] if transposed else shape, dtype=dtype, device=blocks.device
        )
        made.blocks, made.format, made.precision, made.transposed = blocks, element.name, precision, transposed
        return made

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def _like(self, blocks: torch.Tensor, dtype: torch.dtype | None = None, transposed: bool | None = None) -> Any:
        """Another tensor of the same format."""
        other = self.transposed if transposed is None else transposed
        return type(self)(blocks, self.format, self.precision, self.dtype if dtype is None else dtype, other)

    def dequantize(self) -> torch.Tensor:
        """The values, as a new tensor of ``dtype``."""
        element = as_dtype(self.format)
        values = torch.from_numpy(dequantize(rows_of(self.blocks, element), element))
        return (values.T if self.transposed else values).to(self.dtype)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["blocks"], (self.format, self.precision, self.dtype, self.transposed)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, meta: Any, size: Any, stride: Any) -> PackedTensor:
        return cls(inner["blocks"], *meta)

    def _stable_hash_for_caching(self) -> str:
        """What compiled code depends on, for PyTorch's cache of it."""
        return repr((self.__tensor_flatten__()[1], tuple(self.shape)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        is_parameter = isinstance(self, nn.Parameter)
        return _restored, (is_parameter, self.blocks, self.format, self.precision, self.dtype, self.transposed)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            _, (is_parameter, blocks, *rest) = self.__reduce_ex__(4)
            memo[id(self)] = _restored(is_parameter, blocks.detach().clone(), *rest)
        return memo[id(self)]

    def __repr__(self) -> str:
        how = ", transposed" if self.transposed else ""
        return f"PackedTensor({self.format} {tuple(self.shape)}, {self.blocks.numel()} bytes{how})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = _FUNCTIONS.get(func)
        if found is not None:
            return found(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = _OPERATORS.get(func)
        if found is None:
            raise NotImplementedError(
                f"{func} is not possible with a packed weight: it is for linear and embedding, and w.dequantize() is a"
                " tensor of floats"
            )
        return found(func, *args, **(kwargs or {}))


def _restored(is_parameter: bool, *parts: Any) -> Any:
    """A tensor that was pickled or copied."""
    made = PackedTensor(*parts)
    return nn.Parameter(made, requires_grad=False) if is_parameter else made


def _product(x: torch.Tensor, weight: Any, bias: torch.Tensor | None = None) -> Any:
    if not isinstance(weight, PackedTensor) or weight.transposed:
        raise NotImplementedError("linear: the packed tensor must be the weight, with a row for each output")
    return _ops.linear(x, weight.blocks, bias, weight.format, weight.precision)


def _rows(
    ids: torch.Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if not isinstance(weight, PackedTensor) or weight.transposed or max_norm is not None:
        raise NotImplementedError("embedding: the packed tensor must be the weight, and max_norm None")
    return _ops.embedding(ids, weight.blocks, weight.format, weight.dtype)


def _matmul(x: torch.Tensor, weight: Any) -> Any:
    if not isinstance(weight, PackedTensor) or not weight.transposed:
        raise NotImplementedError("x @ w: of packed weights only the right operand w.T is possible: x @ w.T")
    return _ops.linear(x, weight.blocks, None, weight.format, weight.precision)


def _addmm(bias: torch.Tensor, x: torch.Tensor, weight: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    if not isinstance(weight, PackedTensor) or not weight.transposed or beta != 1 or alpha != 1 or bias.ndim != 1:
        raise NotImplementedError("addmm: a packed weight is the last operand, w.T, without beta and alpha")
    return _ops.linear(x, weight.blocks, bias, weight.format, weight.precision)


_FUNCTIONS: dict[Any, Any] = {
    F.linear: _product,
    F.embedding: _rows,
    torch.addmm: _addmm,
    torch.matmul: _matmul,
    torch.mm: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.Tensor.dequantize: PackedTensor.dequantize,
    torch.dequantize: PackedTensor.dequantize,
}
"""Functions of PyTorch that take a packed weight."""


def _same(func: Any, w: PackedTensor, *args: Any, **options: Any) -> Any:
    return w._like(func(w.blocks, *args, **options))


def _converted(func: Any, w: PackedTensor, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    if dtype is not None and not dtype.is_floating_point:
        raise NotImplementedError(f"a packed weight stands for floats, not {dtype}; w.dequantize() can be converted")
    return w._like(func(w.blocks, **options), dtype)


def _turned(func: Any, w: PackedTensor, *args: Any) -> Any:
    if args and sorted(d % 2 for d in (args[0] if isinstance(args[0], (list, tuple)) else args)) != [0, 1]:
        raise NotImplementedError("a packed weight has two axes")
    swaps = not args or not isinstance(args[0], (list, tuple)) or [d % 2 for d in args[0]] == [1, 0]
    return w._like(w.blocks.detach(), transposed=w.transposed != swaps)


def _copied(func: Any, to: Any, source: Any, non_blocking: bool = False) -> Any:
    """``load_state_dict`` calls it. Floats become blocks of the format."""
    if not isinstance(to, PackedTensor):
        return to.copy_(source.dequantize(), non_blocking)
    if isinstance(source, PackedTensor):
        if (source.format, source.shape, source.transposed) != (to.format, to.shape, to.transposed):
            raise InvalidArgumentError(f"{source!r} cannot be copied into {to!r}: the formats or shapes differ")
        to.blocks.copy_(source.blocks)
    else:
        blocks = _blocks_of(source.T if to.transposed else source, as_dtype(to.format))
        if blocks.shape != to.blocks.shape:
            raise InvalidArgumentError(f"a tensor of shape {tuple(source.shape)} cannot be copied into {to!r}")
        to.blocks.copy_(blocks)
    return to


_OPERATORS: dict[Any, Any] = {
    _aten.detach.default: _same,
    _aten.alias.default: _same,
    _aten.clone.default: _same,
    _aten._to_copy.default: _converted,
    _aten.t.default: _turned,
    _aten.transpose.int: _turned,
    _aten.permute.default: _turned,
    _aten.numpy_T.default: _turned,
    _aten.copy_.default: _copied,
}
"""Operators below autograd."""

torch.serialization.add_safe_globals([PackedTensor, _restored])


def _blocks_of(weight: torch.Tensor, element: DType) -> torch.Tensor:
    rows = quantize_rows(floats_of(weight), element)
    return torch.from_numpy(rows.view("uint8") if not element.is_quantized else rows)


def pack(weight: torch.Tensor, format: DTypeLike, *, precision: Precision = "default") -> PackedTensor:
    """Quantizes a matrix: the weight of :func:`linear` or :func:`embedding`.

    weight: floats (rows, columns), on the CPU
    format: a quantized format (:mod:`ggml_backend.dtypes`), ``"float16"`` or ``"bfloat16"``. If the rows are not whole
        blocks of it, :func:`ggml_backend.gguf.fallback_dtype` chooses another one.
    precision: "default" rounds what quantized weights multiply to 8 bits. "f16" keeps 15 bits. "f32" rounds nothing,
        and is the slowest.
    """
    expect(weight, torch.Tensor, "pack: weight")
    if isinstance(weight, PackedTensor):
        raise InvalidArgumentError(f"pack: {weight!r} is packed; pack(weight.dequantize(), format) packs it again")
    if weight.ndim != 2 or not weight.dtype.is_floating_point or weight.numel() == 0:
        raise InvalidArgumentError(f"pack: takes a matrix of floats, not {weight.dtype} {tuple(weight.shape)}")
    if weight.device.type != "cpu":
        raise InvalidArgumentError(f"pack: the weight is on {weight.device}; packed weights are for the CPU")
    element = fallback_dtype(format, weight.shape[1])
    if not element.is_quantized and element.name not in ("float16", "bfloat16"):
        raise InvalidArgumentError(f"pack: {element.name} is not packed; use a quantized format, float16 or bfloat16")
    return PackedTensor(_blocks_of(weight, element), element.name, precision, weight.dtype)


def linear(x: torch.Tensor, weight: PackedTensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias``, as ``F.linear``. The result has the dtype of x.

    It has gradients for x and bias. The gradient is that of the product without rounding.
    """
    expect(weight, PackedTensor, "linear: weight")
    return _product(x, weight, bias)


def embedding(ids: torch.Tensor, weight: PackedTensor) -> torch.Tensor:
    """Rows of the weight, as ``F.embedding``, in ``weight.dtype``."""
    expect(weight, PackedTensor, "embedding: weight")
    return _rows(ids, weight)


def _is_transposed(module: nn.Module) -> bool:
    """True for the layer of GPT-2 in ``transformers``, whose weight has a column for each output."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _weights(module: nn.Module) -> dict[str, nn.Module]:
    """The modules whose weight can be packed, by the name of the weight."""
    within = {id(m) for a in module.modules() if isinstance(a, nn.MultiheadAttention) for m in a.modules()}
    found = {}
    for name, part in module.named_modules(remove_duplicate=False):
        weight = part._parameters.get("weight")
        fits = isinstance(part, (nn.Linear, nn.Embedding)) or _is_transposed(part)
        if fits and id(part) not in within and weight is not None and weight.ndim == 2:
            found[f"{name}.weight" if name else "weight"] = part
    return found


def pack_(module: nn.Module, formats: Mapping[str, DTypeLike | None], *, precision: Precision = "default") -> nn.Module:
    """Packs weights of a module in place. Returns the module.

    formats: patterns of parameter names (as in a shell: ``*``, ``?``, ``[0-9]``) with their formats, or None to leave
        weights as they are. The first matching pattern decides. Each format must match a weight.
    precision: as for :func:`pack`

    Weights of ``nn.Linear``, ``nn.Embedding``, of classes derived from them, and of ``Conv1D`` of ``transformers`` can
    be packed. Other parameters stay: convolutions, norms, biases, ``nn.MultiheadAttention``. Tied weights stay tied. A
    packed weight needs no gradient. An Embedding with ``max_norm`` stays, too.
    """
    expect(module, nn.Module, "pack_: module")
    if not isinstance(formats, Mapping):
        raise TypeError("pack_: formats must be a dict of patterns and formats, such as {'*.weight': 'q4_k'}")
    weights = {n: m for n, m in _weights(module).items() if getattr(m, "max_norm", None) is None}
    names = Patterns(weights)
    for pattern, format in formats.items():
        if format is not None and next(names.matching(pattern), None) is None:
            raise InvalidArgumentError(
                f"pack_: no weight that can be packed fits {pattern!r}{nearest(pattern, weights)}"
            )
    hidden = names.hidden(formats)
    if hidden is not None:
        raise InvalidArgumentError(
            f"pack_: {hidden[0]!r} decides nothing: {hidden[1]!r} comes first and matches all of its weights; give the"
            " special pattern first"
        )
    made: dict[tuple[int, str, bool], nn.Parameter] = {}
    packed: list[tuple[nn.Module, nn.Parameter]] = []
    for name, pattern in names.first(formats).items():
        part, wanted = weights[name], formats[pattern]
        weight, turned = part._parameters["weight"], _is_transposed(part)
        if wanted is None or weight is None or isinstance(weight, PackedTensor):
            continue
        key = (id(weight), as_dtype(wanted, f"pack_: {pattern!r}").name, turned)
        if key not in made:
            try:
                one = pack(weight.detach().T if turned else weight.detach(), wanted, precision=precision)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"pack_: {name}: {error}") from None
            made[key] = nn.Parameter(one.T if turned else one, requires_grad=False)
        packed.append((part, made[key]))
    for part, parameter in packed:  # nothing changes if one of them fails
        part._parameters["weight"] = parameter
    return module
