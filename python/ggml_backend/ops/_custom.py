"""Operations written in Python."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Union, overload

from .._base.errors import InvalidArgumentError, expect_bool, expect_int, raise_last
from .._base.errors.messages import kind_of
from .._base.handles import ContextCore
from .._ffi import ffi, lib
from ..dtypes import DTypeLike, int8
from ..tensor._build import build, context_of
from ..tensor._callbacks import CustomOp
from ..tensor._results import Result, given_results, ne_list
from ..tensor._shapes import MAX_DIMS
from ..tensor.tensor import Tensor
from ._form import BUILDERS

if TYPE_CHECKING:
    from ..tensor.context import Context

__all__ = ["custom", "map_custom"]

Shape = Union[int, "Sequence[int]"]
DTypes = Union["list[DTypeLike | None]", "tuple[DTypeLike | None, ...]"]

MAX_SOURCES: int = lib.GGML_MAX_SRC
_LABELS = tuple(f"sources[{i}]" for i in range(MAX_SOURCES))

_BUILD = {
    (1, False): lib.ggml_map_custom1,
    (2, False): lib.ggml_map_custom2,
    (3, False): lib.ggml_map_custom3,
    (1, True): lib.ggml_map_custom1_inplace,
    (2, True): lib.ggml_map_custom2_inplace,
    (3, True): lib.ggml_map_custom3_inplace,
}
_CALL = {1: lib.gbpy_custom1, 2: lib.gbpy_custom2, 3: lib.gbpy_custom3}


def map_custom(function: Callable[..., Any], *tensors: Tensor, n_tasks: int = 1, inplace: bool = False) -> Tensor:
    """A node that a Python function computes on NumPy arrays.

    It takes one to three tensors. The result has the shape and dtype of the first. :func:`custom` makes
    nodes of any shape and dtype.

    function: called as ``function(dst, a, ...)``. It writes ``dst`` or returns the values to write.
        ``dst`` is filled with NaN before the call, or with zeros if it has integers. A function that
        returns None and leaves ``dst`` filled with NaN is an error. ``a, ...`` are read-only.
        If ``n_tasks`` is not 1, the threads of the backend call it ``nth`` times, as ``function(dst, a,
        ..., ith, nth)`` with ``ith = 0 .. nth - 1``. Each call does its share.
    n_tasks: 1, the maximum number of threads, or -1 for all threads of the backend

    The function runs on the CPU, on the thread that computes the node, or on a device that accepts such
    functions (``Device.computes_custom``). If it raises, the computation stops and ``compute`` raises
    the exception. The function must not use the backend or scheduler that is computing.
    """
    _expect_callable(function, "map_custom", "map_custom(function, tensor, ...)")
    if not 1 <= len(tensors) <= 3:
        raise InvalidArgumentError(f"map_custom: takes one to three tensors, not {len(tensors)}")
    n_tasks, inplace, n = _tasks(n_tasks, "map_custom"), expect_bool(inplace, "map_custom: inplace"), len(tensors)
    op = CustomOp(function, n_tasks, inplace=inplace)
    pool = context_of("map_custom", tensors)
    pool._live().functions.append(op)  # before there is a node that refers to it
    return build(
        "map_custom", _BUILD[n, inplace], tensors, _CALL[n], n_tasks, op.handle, ndim=_ndim(tensors[0]), pool=pool
    )


@overload  # Ints are the sizes of one shape. A list that contains a shape is a list of shapes.
def custom(  # type: ignore[overload-overlap]
    function: Callable[..., Any],
    *sources: Tensor,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    n_tasks: int = 1,
    context: Context | None = None,
) -> Tensor: ...


@overload
def custom(
    function: Callable[..., Any],
    *sources: Tensor,
    shape: Sequence[Shape | None],
    dtype: DTypeLike | DTypes | None = None,
    n_tasks: int = 1,
    context: Context | None = None,
) -> tuple[Tensor, ...]: ...


@overload
def custom(
    function: Callable[..., Any],
    *sources: Tensor,
    shape: Shape | None = None,
    dtype: DTypes,
    n_tasks: int = 1,
    context: Context | None = None,
) -> tuple[Tensor, ...]: ...


def custom(
    function: Callable[..., Any],
    *sources: Tensor,
    shape: Any = None,
    dtype: Any = None,
    n_tasks: int = 1,
    context: Context | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """A node with one or several results that a Python function computes from at most ten tensors.

    function: called as ``function(out, *sources)`` with NumPy arrays. It writes ``out`` or returns the
        values to write: an array of any library (with ``__array__`` or ``__dlpack__``), a list or a
        number. They must have exactly the shape of ``out``. ``out`` is filled with NaN before the call,
        or with zeros if it has integers or a quantized format. A function that returns None and leaves a
        floating ``out`` filled with NaN is an error. Dtypes are converted within a kind of numbers,
        such as float64 to float32. Floats never become integers. If ``n_tasks`` is not 1, the threads
        of the backend call it ``nth`` times in parallel, as ``function(out, *sources, ith, nth)`` with
        ``ith = 0 .. nth - 1``. Each call writes its share of ``out`` and returns None.
    sources: the function gets them as read-only arrays. A bfloat16 source is an array of uint16 bits. A
        quantized source is :class:`Blocks`, which ``gb.dequantize(array)`` converts to float32.
    shape: shape of the result, in NumPy order. Default: the shape of the first source. Pass a list of
        shapes for several results. Then ``out`` is a tuple of arrays, and the function returns None or a
        tuple with an array for each result. None in the tuple stands for a result that it has written
        itself.
    dtype: dtype of the result. Default: the dtype of the first source, or float32 without sources. A list
        of dtypes makes several results, too. A single shape or dtype beside a list applies to all
        results. None in a list stands for the shape or dtype of the first source. A bfloat16 result
        takes floats, which are rounded, or uint16 bits. A quantized result takes the blocks that
        :func:`ggml_backend.quantize` makes.
    n_tasks: 1, the maximum number of threads, or -1 for all threads of the backend
    context: context of the node. Required without sources. Default: as for every operation, see
        :class:`Context`

    Returns a tensor, or a tuple for several results: views of one node, which is computed if a graph needs one.

    The function runs on the CPU, on the thread that computes the node. In a scheduler with a device that accepts such
    functions (``Device.computes_custom``), it runs there, on arrays of that device. If it raises, or returns values
    that do not fit, ``compute`` raises the exception with a note that names the node. The function must not use the
    backend or scheduler that is computing. The node has no derivative, and graphs with it cannot be exported.

    Raises TypeError or :class:`InvalidArgumentError` for results that no tensor can have, and for a
    quantized source that is transposed, because blocks run along the last axis.
    """
    _expect_callable(function, "custom", "custom(function, *tensors, shape=...)")
    if len(sources) > MAX_SOURCES:
        raise InvalidArgumentError(f"custom: takes at most {MAX_SOURCES} tensors, not {len(sources)}")
    n_tasks = _tasks(n_tasks, "custom")
    pool = _pool(sources, context)
    _refuse_transposed(sources)
    like = (sources[0].shape, sources[0].dtype) if sources else None
    results, several = given_results(shape, dtype, like)
    op = CustomOp(function, n_tasks, results, several)
    pool._live().functions.append(op)  # before there is a node that refers to it
    if not several:
        return _node(op, sources, pool, results[0])
    last = results[-1]
    size = last.offset + last.nbytes
    memory = _node(op, sources, pool, Result(int8, (size,), 0, size))
    return _views(op, memory, results)


def _node(op: CustomOp, sources: tuple[Tensor, ...], pool: Context, result: Result) -> Tensor:
    pointers = ffi.new("struct ggml_tensor *[]", [t._p for t in sources]) if sources else ffi.NULL
    ne = ffi.new("int64_t[4]", ne_list(result))
    return build(
        "custom", lib.ggml_custom, sources, result.dtype.id, ne, MAX_DIMS, pointers, len(sources), lib.gbpy_custom,
        op.n_tasks, op.handle, ndim=len(result.shape), labels=_LABELS, array=True, pool=pool,
    )  # fmt: skip


def _views(op: CustomOp, memory: Tensor, results: Sequence[Result]) -> tuple[Tensor, ...]:
    """The results, as views of the node that holds their bytes."""
    core: ContextCore = memory._ctx._live()
    row = memory._p
    pointers = []
    for r in results:
        ne = ffi.new("int64_t[4]", ne_list(r))
        pointer = lib.gbpy_view_bytes(core.ptr, row, r.dtype.id, len(r.shape), ne, r.offset, r.nbytes)
        if not pointer:
            raise_last("custom")
        pointers.append(pointer)
    op.views, op.context = tuple(pointers), weakref.ref(core)
    return tuple(Tensor(memory._ctx, p, core.h) for p in pointers)


def _pool(sources: tuple[Tensor, ...], context: Context | None) -> Context:
    """The context that the node belongs to."""
    from ..tensor.context import Context

    if context is not None and not isinstance(context, Context):
        raise TypeError(f"custom: context must be a Context, not {kind_of(context)}")
    if not sources and context is None:
        raise InvalidArgumentError("custom: without sources the context must be given: custom(function, context=ctx)")
    if context is None:
        return context_of("custom", sources, _LABELS)
    context._building("custom")
    return context


def _refuse_transposed(sources: tuple[Tensor, ...]) -> None:
    for i, t in enumerate(sources):
        if t.dtype.is_quantized and t.nb[0] != t.dtype.itemsize:
            raise InvalidArgumentError(
                f"custom: {_LABELS[i]} {t.describe()} is transposed: blocks must run along the last axis"
            )


def _tasks(n_tasks: int, what: str) -> int:
    n_tasks = expect_int(n_tasks, f"{what}: n_tasks")
    if n_tasks != -1 and not 1 <= n_tasks < 2**31:
        raise InvalidArgumentError(f"{what}: n_tasks must be at least 1, or -1 for all threads, not {n_tasks}")
    return n_tasks


def _expect_callable(function: Any, what: str, form: str) -> None:
    if not callable(function):
        raise TypeError(f"{what}: the first argument must be a function, not {kind_of(function)}: {form}")


def _ndim(tensor: Any) -> int:
    return tensor.ndim if isinstance(tensor, Tensor) else 0


for _i in (1, 2, 3):
    BUILDERS[f"ggml_map_custom{_i}"] = BUILDERS[f"ggml_map_custom{_i}_inplace"] = map_custom
BUILDERS["ggml_custom"] = custom
