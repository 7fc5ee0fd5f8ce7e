"""Copies, conversions, views of the same memory, and rows picked by index."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.errors import InvalidArgumentError, expect_int
from .._ffi import lib
from ..dtypes import DTypeLike, as_dtype
from ..tensor._build import OF_SECOND, build, build_1, build_2, context_of
from ..tensor._operators import raw_view
from ..tensor._shapes import MAX_DIMS, ne_of, resolve_shape, shape_tuple
from ..tensor.tensor import Tensor
from ._form import builds, dims, pick

__all__ = [
    "cast",
    "cont",
    "contiguous",
    "cpy",
    "diag",
    "dup",
    "empty_like",
    "get_rows",
    "get_rows_back",
    "permute_ggml",
    "reshape",
    "set_rows",
    "transpose",
    "view",
]


@builds("ggml_dup", "ggml_dup_inplace")
def dup(a: Tensor, *, inplace: bool = False) -> Tensor:
    """A contiguous copy."""
    return build_1("dup", pick("dup", inplace), a)


@builds("ggml_cpy")
def cpy(a: Tensor, b: Tensor) -> Tensor:
    """Copies ``a`` into the memory of ``b`` and converts the dtype. The result is a view of ``b``.

    Both have the same number of elements, in any layout. The copy happens only if the result is part of
    the graph that runs.
    """
    return build_2("cpy", lib.ggml_cpy, a, b, ndim=OF_SECOND)


@builds("ggml_cast")
def cast(a: Tensor, dtype: DTypeLike) -> Tensor:
    """``a`` as another dtype."""
    return build_1("cast", lib.ggml_cast, a, as_dtype(dtype, "cast").id)


@builds("ggml_cont", "ggml_cont_1d", "ggml_cont_2d", "ggml_cont_3d", "ggml_cont_4d")
def cont(a: Tensor, shape: int | Sequence[int] | None = None) -> Tensor:
    """A contiguous copy, optionally in another shape with the same number of elements."""
    if shape is None:
        return build_1("cont", lib.ggml_cont, a)
    size = shape_tuple(shape, "cont: shape")
    n = max(len(size), 1)
    ne = ne_of(size, "cont")
    function = (lib.ggml_cont_1d, lib.ggml_cont_2d, lib.ggml_cont_3d, lib.ggml_cont_4d)[n - 1]
    return build_1("cont", function, a, *[ne[i] for i in range(n)], ndim=len(size))


contiguous = cont


@builds("ggml_reshape", "ggml_reshape_1d", "ggml_reshape_2d", "ggml_reshape_3d", "ggml_reshape_4d")
def reshape(a: Tensor, shape: Tensor | int | Sequence[int]) -> Tensor:
    """A view of a contiguous tensor with another shape, or with the shape of a tensor. One size may be -1."""
    if isinstance(shape, Tensor):
        return build("reshape", lib.ggml_reshape, (a, shape), ndim=shape.ndim, labels=("a", "shape"))
    context_of("reshape", (a,))
    size = resolve_shape(a, shape_tuple(shape, "reshape: shape"))
    n = len(size) or 1
    ne = ne_of(size, "reshape")
    function = (lib.ggml_reshape_1d, lib.ggml_reshape_2d, lib.ggml_reshape_3d, lib.ggml_reshape_4d)[n - 1]
    return build("reshape", function, (a,), *[ne[i] for i in range(n)], ndim=len(size))


@builds("ggml_view_1d", "ggml_view_2d", "ggml_view_3d", "ggml_view_4d", "ggml_view_tensor")
def view(
    a: Tensor, shape: int | Sequence[int] | None = None, strides: Sequence[int] | None = None, offset: int = 0
) -> Tensor:
    """A view of the memory of ``a``. Without a shape: all of ``a``.

    The view begins ``offset`` bytes in. ``strides`` are bytes in the order of ``shape`` (default:
    contiguous). The last stride is always one element. Slices such as ``a[2:4]`` are the convenient
    form.
    """
    if shape is None:
        if strides is not None or not isinstance(offset, int) or offset != 0:
            raise InvalidArgumentError("view: strides and an offset need a shape")
        return build("view", lib.gbpy_view_all, (a,))
    size = shape_tuple(shape, "view: shape")
    context_of("view", (a,))
    offset, element = expect_int(offset, "view: offset"), a.dtype.itemsize
    strides = None if strides is None else shape_tuple(strides, "view: strides")
    if any(n % element for n in (offset, *(strides or ()))):
        unit = "a block" if a.dtype.is_quantized else "an element"
        wrong = f"offset {offset} and strides {strides}"
        raise InvalidArgumentError(
            f"view: {wrong} must be multiples of the {element} bytes of {unit} of {a.describe()}"
        )
    return raw_view("view", a, size, strides, offset)


@builds("ggml_permute")
def permute_ggml(a: Tensor, axis0: int, axis1: int, axis2: int, axis3: int) -> Tensor:
    """A view with the dimensions permuted as in ggml: dimension ``i`` of ``a`` becomes dimension ``axis_i``.

    Dimensions are in ggml's order: 0 is the last axis of ``shape``. :meth:`Tensor.transpose` follows
    NumPy.
    """
    axes = tuple(expect_int(axis, f"permute_ggml: axis{i}") for i, axis in enumerate((axis0, axis1, axis2, axis3)))
    ndim = max(
        (axes[d] + 1 for d in range(min(dims("permute_ggml", a), MAX_DIMS)) if 0 <= axes[d] < MAX_DIMS), default=1
    )
    return build("permute_ggml", lib.ggml_permute, (a,), *axes, ndim=ndim)


@builds("ggml_transpose")
def transpose(a: Tensor) -> Tensor:
    """A view with the last two axes exchanged."""
    return build("transpose", lib.ggml_transpose, (a,), ndim=max(dims("transpose", a), 2))


@builds("ggml_get_rows")
def get_rows(a: Tensor, b: Tensor) -> Tensor:
    """Rows picked by int32 indices: ``a (rows, n)`` and ``b (k,)`` give ``(k, n)``.

    With batches, ``a (..., rows, n)`` and ``b (..., k)`` give ``(..., k, n)``. The result is int32 if
    ``a`` is, else float32. An index out of range makes the computation fail.
    """
    return build_2("get_rows", lib.ggml_get_rows, a, b, ndim=b.ndim + 1 if isinstance(b, Tensor) else 0)


@builds("ggml_get_rows_back")
def get_rows_back(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Zeros of the shape of ``c``, with row ``i`` of ``a`` added to row ``b[i]``, for all ``i``.

    The error does not grow with the number of rows that are added to one row.
    """
    return build("get_rows_back", lib.ggml_get_rows_back, (a, b, c), ndim=2)


@builds("ggml_set_rows")
def set_rows(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Writes rows into ``a``: row ``i`` of ``b`` becomes row ``c[i]`` of ``a``. The result is a view of ``a``.

    Use it for a cache whose places are an input: one graph then serves every position.

    a: ``(..., rows, n)``, float32, float16, bfloat16, int32 or a quantized dtype that :func:`cpy` can write
    b: ``(..., k, n)``, float32, float16 or bfloat16. It is converted to the dtype of ``a``.
    c: ``(..., k)``, int32 or int64. Its leading sizes divide those of ``b``.

    Rows that ``c`` does not name keep their values. If ``c`` names a row twice, the CPU keeps the later row of
    ``b``; other devices may keep either. An index out of range makes the computation fail. The rows are
    written only if the result is part of the graph that runs.
    """
    return build("set_rows", lib.ggml_set_rows, (a, b, c), ndim=dims("set_rows", a))


@builds("ggml_diag")
def diag(a: Tensor) -> Tensor:
    """``(..., n, n)`` with ``a (..., 1, n)`` on the diagonal and zeros elsewhere."""
    return build("diag", lib.ggml_diag, (a,), ndim=max(dims("diag", a), 2))


@builds("ggml_dup_tensor")
def empty_like(a: Tensor) -> Tensor:
    """A new tensor with the dtype and shape of ``a``, without memory."""
    return build("empty_like", lib.ggml_dup_tensor, (a,))
