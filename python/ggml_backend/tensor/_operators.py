"""Operators between tensors: NumPy's rules in terms of ggml's builders."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import InvalidArgumentError, StateError, check
from .._base.errors.messages import broadcast_reason, kind_of, product_hint, tensor_hint
from .._ffi import lib
from ..dtypes import float32
from . import _build as nodes
from ._blocks import Blocks
from ._build import ZEROS, attempt, build, build_1, build_2, context_of, describe
from ._shapes import MAX_DIMS, common_shape, ne_of, refuse_view, region

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = [
    "COMPARISONS", "EPS_OF_2024", "GLU_OPS", "POOLS", "PRECISIONS", "PRECISIONS_OF_PRODUCTS", "ROPE_MODES", "TRIANGLES",
    "binary", "chosen", "coerce", "compared", "indexed", "matmul", "numpy_function", "raw_view", "repeat_to",
]  # fmt: skip

ROPE_MODES: dict[str, int] = {
    "normal": 0,
    "neox": 2,
    "glm": 4,
    "normal_exact": lib.GGML_ROPE_EXACT,
    "neox_exact": 2 | lib.GGML_ROPE_EXACT,
    "mrope": lib.GGML_ROPE_TYPE_MROPE | lib.GGML_ROPE_EXACT,
    "vision": lib.GGML_ROPE_TYPE_VISION | lib.GGML_ROPE_EXACT,
    "imrope": lib.GGML_ROPE_TYPE_IMROPE | lib.GGML_ROPE_EXACT,
}
POOLS: dict[str, int] = {"max": lib.GGML_OP_POOL_MAX, "avg": lib.GGML_OP_POOL_AVG}
GLU_OPS: dict[str, int] = {
    "reglu": lib.GGML_GLU_OP_REGLU,
    "geglu": lib.GGML_GLU_OP_GEGLU,
    "swiglu": lib.GGML_GLU_OP_SWIGLU,
    "swiglu_oai": lib.GGML_GLU_OP_SWIGLU_OAI,
    "geglu_erf": lib.GGML_GLU_OP_GEGLU_ERF,
    "geglu_quick": lib.GGML_GLU_OP_GEGLU_QUICK,
}
TRIANGLES: dict[str, int] = {
    "upper_diag": lib.GGML_TRI_TYPE_UPPER_DIAG,
    "upper": lib.GGML_TRI_TYPE_UPPER,
    "lower_diag": lib.GGML_TRI_TYPE_LOWER_DIAG,
    "lower": lib.GGML_TRI_TYPE_LOWER,
}
PRECISIONS: dict[str, int] = {"default": 0, "f32": lib.GGML_PREC_F32}
PRECISIONS_OF_PRODUCTS: dict[str, int] = {**PRECISIONS, "f16": lib.GGML_PREC_F16}
COMPARISONS: dict[str, int] = {
    "==": lib.GGML_COMPARE_EQUAL,
    "!=": lib.GGML_COMPARE_NOT_EQUAL,
    "<": lib.GGML_COMPARE_LESS,
    "<=": lib.GGML_COMPARE_LESS_EQUAL,
    ">": lib.GGML_COMPARE_GREATER,
    ">=": lib.GGML_COMPARE_GREATER_EQUAL,
}
EPS_OF_2024 = 1e-9
"""The eps of loss nodes that do not store one."""


_broadcast = lib.gbpy_broadcast
_slice = lib.gbpy_slice
_TO_END = 2**63 - 1


def coerce(value: Any, like: Tensor, op: str, label: str) -> Tensor:
    """A number or array as a constant in the context of the result of an operation on ``like``."""
    if isinstance(value, nodes.tensor_class):
        return value
    if like._ctx._core is None:
        raise StateError(f"{op}: the context of {'a' if label == 'b' else 'b'} is closed")
    home = context_of(op, (like,))
    try:
        if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
            return home.constant(float(value), float32)
        if isinstance(value, Blocks):
            raise InvalidArgumentError(
                f"{op}: {label} holds quantized blocks; ctx.constant(blocks) makes a tensor of them"
            )
        if isinstance(value, (np.ndarray, np.generic)):
            if (
                value.dtype.kind in "iuf"
                and value.dtype != np.float32
                and like.dtype.name == "float32"
                and value.dtype.name != "float16"
            ):
                needed = f"where float32 is needed: {label}.astype(np.float32)"
                raise InvalidArgumentError(f"{op}: {label} is an array of {value.dtype}, {needed}")
            return home.constant(value)
        if isinstance(value, (list, tuple)):
            return home.constant(value, like.dtype if not like.dtype.is_quantized else None)
        hint = tensor_hint(value) if not isinstance(value, bool) else ""
        raise TypeError(f"{op}: {label} must be a tensor, a number or an array, not {kind_of(value)}{hint}")
    except OverflowError:
        raise InvalidArgumentError(f"{op}: {label} is too large for a float") from None


def repeat_to(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Tiles a tensor to a shape of which its own sizes are divisors."""
    own = (1,) * (len(shape) - tensor.ndim) + tensor.shape
    if len(own) != len(shape) or any((n % m if m else n) for n, m in zip(shape, own, strict=True)):
        raise InvalidArgumentError(
            f"repeat: a {tensor.describe()} cannot become {shape}: each size must be a multiple of that of a"
        )
    pool = context_of("repeat", (tensor,))
    return build("repeat", lib.ggml_repeat, (tensor,), pool._template(shape, "repeat"), ndim=len(shape))


def binary(op: str, function: Any, a: Any, b: Any, commutes: bool = False) -> Tensor:
    """Builds a binary operation with NumPy's broadcasting.

    ggml repeats only b over a. To repeat a, the operands are swapped, or a is repeated first.
    """
    if not isinstance(a, nodes.tensor_class):
        a = coerce(a, b, op, "a")
    elif not isinstance(b, nodes.tensor_class):
        b = coerce(b, a, op, "b")
    core_a, core_b = a._ctx._core, b._ctx._core  # local references keep them open
    if core_a is None or core_b is None:
        raise StateError(f"{op}: the context of {'a' if core_a is None else 'b'} is closed")
    how = _broadcast(a._p, b._p)
    if how > MAX_DIMS:
        if how < lib.GBPY_REPEAT and commutes:
            a, b = b, a
        else:
            a = repeat_to(a, common_shape(a.shape, b.shape))
    elif how < 0:
        reason = broadcast_reason(op[2], a.shape, b.shape)
        raise InvalidArgumentError(f"{op}: {describe('a', a)}, {describe('b', b)}: {reason}")
    return build_2(op, function, a, b, ndim=how & 7)


_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The comparison of ``b`` and ``a`` that equals a comparison of ``a`` and ``b``."""


def _alike(value: Any, like: Tensor, op: str, label: str) -> Tensor:
    """A number or array as a constant of the dtype of ``like``. Raises if the dtype cannot hold it."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if is_number and like._ctx._core is not None and like.dtype.name in ("int32", "float16", "bfloat16"):
        if like.dtype.name != "int32":
            return context_of(op, (like,)).constant(float(value), like.dtype)
        if isinstance(value, (int, np.integer)):
            if not -(2**31) <= int(value) < 2**31:
                raise InvalidArgumentError(f"{op}: {label} is {value}, which an int32 cannot be")
            return context_of(op, (like,)).constant(np.int32(value))
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and like.dtype.name == "int32":
        narrow = value.astype(np.int32)
        if not np.array_equal(narrow, value):
            raise InvalidArgumentError(f"{op}: {label} is an array of {value.dtype} with numbers that no int32 can be")
        return context_of(op, (like,)).constant(narrow)
    return coerce(value, like, op, label)


def compared(how: str, a: Any, b: Any, op: str | None = None) -> Tensor:
    """A comparison such as ``a < b``, as 1 and 0. To repeat a, operands are swapped, or a is repeated first."""
    op = f"a {how} b" if op is None else op
    if not isinstance(a, nodes.tensor_class) and not isinstance(b, nodes.tensor_class):
        context_of(op, (a, b))
    a = a if isinstance(a, nodes.tensor_class) else _alike(a, b, op, "a")
    b = b if isinstance(b, nodes.tensor_class) else _alike(b, a, op, "b")
    core_a, core_b = a._ctx._core, b._ctx._core  # local references keep them open
    if core_a is None or core_b is None:
        raise StateError(f"{op}: the context of {'a' if core_a is None else 'b'} is closed")
    shapes = _broadcast(a._p, b._p)
    if shapes < 0:
        reason = broadcast_reason(how, a.shape, b.shape)
        raise InvalidArgumentError(f"{op}: {describe('a', a)}, {describe('b', b)}: {reason}")
    labels = "ab"
    if shapes >= lib.GBPY_REPEAT:
        a = repeat_to(a, common_shape(a.shape, b.shape))
    elif shapes > MAX_DIMS:
        a, b, how, labels = b, a, _MIRRORED[how], "ba"
    return build_2(op, lib.ggml_compare, a, b, COMPARISONS[how], ndim=shapes & 7, labels=labels)


def _as_mask(cond: Any) -> Any:
    """An array of numbers or booleans as a mask. Other values are returned unchanged."""
    if isinstance(cond, (list, tuple)):
        with contextlib.suppress(ValueError):  # of different lengths
            cond = np.asarray(cond)
    if isinstance(cond, (np.ndarray, np.generic)) and cond.dtype.kind in "biuf":
        return (cond != 0).astype(np.float32)
    return cond


def chosen(cond: Any, a: Any, b: Any) -> Tensor:
    """``np.where(cond, a, b)`` as a node."""
    op = "where"
    like = next((t for t in (a, b, cond) if isinstance(t, nodes.tensor_class)), None)
    if like is None:
        context_of(op, (cond, a, b), ("cond", "a", "b"))
        raise AssertionError("context_of raises")
    if not isinstance(cond, nodes.tensor_class):
        cond = coerce(_as_mask(cond), like, op, "cond")
    if isinstance(a, nodes.tensor_class) or isinstance(b, nodes.tensor_class):
        a = a if isinstance(a, nodes.tensor_class) else _alike(a, b, op, "a")
        b = b if isinstance(b, nodes.tensor_class) else _alike(b, a, op, "b")
    else:  # as float32
        a = context_of(op, (like,)).constant(float(a)) if isinstance(a, (int, float)) else coerce(a, like, op, "a")
        b = _alike(b, a, op, "b")
    return build(op, lib.ggml_where, (cond, a, b), labels=("cond", "a", "b"))


def _in_groups(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """True if the batch axes of a are multiples of those of b."""
    return len(a) >= len(b) and all(m > 0 and n % m == 0 for n, m in zip(a[::-1], b[::-1], strict=False))


def _reversed_hint(a: Tensor, b: Tensor) -> str:
    """A hint for ``a @ k.T`` with more than two axes."""
    if b.ndim < 3 or b.op != "PERMUTE":
        return ""
    k = b.sources[0]
    if k.shape != b.shape[::-1] or k.shape[-1] != a.shape[-1]:
        return ""
    called = k.name if k.name.isidentifier() else "k"
    shown = k.describe() if k.name.isidentifier() else f"that tensor k, {k.describe()}"
    return f"; b is the transpose of {shown}, and .T reverses all axes: did you mean a @ {called}.swapaxes(-1, -2)?"


def matmul(a: Any, b: Any, op: str = "a @ b", prec: int = 0) -> Tensor:
    """Builds ``a @ b``.

    ggml multiplies rows by rows, mul_mat(B, A) = A B^T, so B is the transposed b. This extends NumPy: if a
    has a multiple of b's matrices along a batch axis, consecutive matrices share one, as grouped heads
    do (Ainslie et al. 2023, arXiv:2305.13245).
    """
    a = a if isinstance(a, nodes.tensor_class) else coerce(a, b, op, "a")
    b = b if isinstance(b, nodes.tensor_class) else coerce(b, a, op, "b")
    if a._ctx._core is None or b._ctx._core is None:
        context_of(op, (a, b))
    n_a, n_b = a.ndim, b.ndim
    if n_a == 0 or n_b == 0:
        raise InvalidArgumentError(
            f"{op}: {describe('a', a)}, {describe('b', b)}: a tensor without axes has no products of rows; use *"
        )
    inner = b.shape[-2] if n_b > 1 else b.shape[0]
    if a.shape[-1] != inner:
        which = f"the {'last but one' if n_b > 1 else 'only'} axis of b ({inner})"
        raise InvalidArgumentError(
            f"{op}: {describe('a', a)}, {describe('b', b)}: the last axis of a ({a.shape[-1]}) and {which} differ"
            + (_reversed_hint(a, b) or product_hint(a.shape, b.shape))
        )
    if n_b == 1:
        rows = b
    elif b.op == "TRANSPOSE" or (b.op == "PERMUTE" and b.nb[1] == b.dtype.itemsize):
        source = b.sources[0]
        rows = source if b.op == "TRANSPOSE" else b.swapaxes(-1, -2)
        rows = rows if rows.nb[0] == rows.dtype.itemsize and rows.nb[0] <= rows.nb[1] else rows.contiguous()
    else:
        rows = b.swapaxes(-1, -2)
        rows = build_1("cont", lib.ggml_cont, rows)
    if a.nb[0] != a.dtype.itemsize:
        a = build_1("cont", lib.ggml_cont, a)
    batch_a, batch_b = a.shape[:-2], b.shape[:-2]
    try:
        batch = batch_a if _in_groups(batch_a, batch_b) else common_shape(batch_a, batch_b)
    except ValueError:
        reason = f"the batch axes {batch_a} and {batch_b} do not broadcast"
        raise InvalidArgumentError(f"{op}: {describe('a', a)}, {describe('b', b)}: {reason}") from None
    if n_a == 1 and n_b > 2:
        a = a.reshape(*(1,) * (n_b - 1), a.shape[0])
        batch_a = a.shape[:-2]
    if math.prod(batch_a) != math.prod(batch):
        a = repeat_to(a, (*batch, *a.shape[-2:]))
    ndim = len(batch) + (n_a > 1) + (n_b > 1)
    y = build_2(op, lib.ggml_mul_mat, rows, a, ndim=ndim, labels="ba")
    if prec:
        check(lib.ggml_mul_mat_set_prec(y._p, prec), op)
    if n_b == 1 and n_a > 1:
        return y.reshape(*batch, a.shape[-2])
    if n_a == 1 and n_b > 2:
        return y.reshape(*batch, b.shape[-1])
    return y


def _sliced(t: Tensor, items: tuple[Any, ...]) -> Tensor | None:
    """The view if all indices are plain slices, else None."""
    bounds: list[Any] = []
    for item in items:
        if type(item) is not slice or item.step is not None:
            return None
        start, stop = item.start, item.stop
        bounds += (0 if start is None else start, _TO_END if stop is None else stop)
    n = len(items)
    return attempt(t, _slice, n, *bounds, *ZEROS[n], *ZEROS[n]) if n <= MAX_DIMS else None


def indexed(t: Tensor, index: Any) -> Tensor:
    items = index if isinstance(index, tuple) else (index,)
    found = _sliced(t, items)
    return _strided_view(t, *region(t, items)) if found is None else found


def _strided_view(t: Tensor, shape: list[int], strides: list[int], offset: int) -> Tensor:
    """A view with any strides. ggml views have adjacent elements on the last axis. Other views get an extra
    axis, and are then copied."""
    item_bytes = t.dtype.itemsize
    if 0 in shape:  # without elements, offset and strides do not matter and may be out of range
        return raw_view("index", t, shape, None, 0, ndim=len(shape))
    direct = not shape or strides[-1] == item_bytes or shape[-1] == 1
    if direct:
        if shape and shape[-1] == 1:
            strides = [*strides[:-1], item_bytes]
        return raw_view("x[...]", t, shape or [1], strides or [item_bytes], offset, ndim=len(shape))
    if len(shape) == MAX_DIMS:
        keep = [i for i, n in enumerate(shape) if n != 1]
        if len(keep) == MAX_DIMS:
            raise InvalidArgumentError(f"x[...]: a step on the last axis of {t.describe()} would take five dimensions")
        packed_shape, packed_strides = [shape[i] for i in keep], [strides[i] for i in keep]
    else:
        packed_shape, packed_strides = shape, strides
    view = raw_view("x[...]", t, [*packed_shape, 1], [*packed_strides, item_bytes], offset, ndim=len(packed_shape) + 1)
    return view.reshape(shape)


def raw_view(
    op: str, t: Tensor, shape: Sequence[int], strides: Sequence[int] | None, offset: int, ndim: int | None = None
) -> Tensor:
    """Calls the C view builder for this number of axes. NumPy order. Byte strides without the last one."""
    n = len(shape)
    ne = ne_of(shape, op)
    if n == 0:
        shape, strides, n = [1], None, 1
    if strides is None:
        row = t.dtype.row_nbytes(shape[-1])
        strides = [row * math.prod(shape[i + 1 : -1]) for i in range(n - 1)] + [t.dtype.itemsize]
    if len(strides) != n:
        raise InvalidArgumentError(f"{op}: {len(strides)} strides for the shape {tuple(shape)}")
    if strides[-1] != t.dtype.itemsize and shape[-1] > 1:
        raise InvalidArgumentError(
            f"{op}: the stride of the last axis is {strides[-1]} bytes; elements of {t.dtype.name} must be adjacent"
        )
    nb: list[int] = []
    for i in range(n - 2, -1, -1):  # the stride of an axis of size 1 is unused: replace it by a valid one
        below = nb[-1] * ne[len(nb)] if nb else t.dtype.row_nbytes(ne[0])
        nb.append(strides[i] if strides[i] > 0 or shape[i] > 1 else below)
    function = (lib.ggml_view_1d, lib.ggml_view_2d, lib.ggml_view_3d, lib.ggml_view_4d)[n - 1]
    try:
        return build(op, function, (t,), *[ne[i] for i in range(n)], *nb, offset, ndim=n if ndim is None else ndim)
    except InvalidArgumentError:
        refuse_view(op, t, tuple(shape), strides, offset)
        raise


_NUMPY_BINARY = {
    np.add: ("__add__", "__radd__"), np.subtract: ("__sub__", "__rsub__"), np.multiply: ("__mul__", "__rmul__"),
    np.true_divide: ("__truediv__", "__rtruediv__"), np.matmul: ("__matmul__", "__rmatmul__"),
}  # fmt: skip
_NUMPY_COMPARE = {
    np.less: ("__lt__", "__gt__"), np.less_equal: ("__le__", "__ge__"), np.greater: ("__gt__", "__lt__"),
    np.greater_equal: ("__ge__", "__le__"),
}  # fmt: skip
_NUMPY_UNARY = {np.negative: "__neg__", np.positive: "__pos__", np.absolute: "__abs__"}
_NUMPY_FUNCTIONS = {
    np.exp: lib.ggml_exp, np.log: lib.ggml_log, np.sin: lib.ggml_sin, np.cos: lib.ggml_cos, np.tanh: lib.ggml_tanh,
    np.sqrt: lib.ggml_sqrt, np.square: lib.ggml_sqr,
}  # fmt: skip


def numpy_function(kind: type, ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Implements NumPy's elementwise functions for tensors (objects of ``kind``).

    Functions that an operation computes make nodes. Others raise TypeError.
    """
    if method == "__call__" and not options:
        operators = _NUMPY_BINARY.get(ufunc) or _NUMPY_COMPARE.get(ufunc)
        if operators is not None:
            forward, reflected = operators
            a, b = inputs
            return getattr(a, forward)(b) if isinstance(a, kind) else getattr(b, reflected)(a)
        if ufunc in _NUMPY_UNARY:
            return getattr(inputs[0], _NUMPY_UNARY[ufunc])()
        if ufunc in _NUMPY_FUNCTIONS:
            return build_1(ufunc.__name__, _NUMPY_FUNCTIONS[ufunc], inputs[0])
        if ufunc in (np.equal, np.not_equal):  # identity, as ``==`` between tensors
            same = isinstance(inputs[0], kind) and inputs[0] == inputs[1]
            return same if ufunc is np.equal else not same
    name = f"np.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    if "out" in options:
        raise TypeError(
            f"{name}: the result for a tensor is a node, which an array cannot take; write a = a + b, not a += b"
        )
    raise TypeError(
        f"{name}: NumPy computes at once, a tensor has data when its graph has run: use the functions of gb, or"
        " x.numpy()"
    )
