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
    """A node computed by a Python function on NumPy views; it has the shape and dtype of the first of one to three
    tensors. :func:`custom` makes nodes of any shape and dtype.

    function: called as ``function(dst, a, ...)``; it writes ``dst``, or returns what is to be written. ``dst`` begins
        with NaN, of integers with zeros; it is an error to return None and leave it so. ``a, ...`` are read-only.
        With ``n_tasks`` other than 1 it is called ``nth`` times, as ``function(dst, a, ..., ith, nth)`` with
        ``ith = 0 .. nth - 1``, by the threads of the backend, and does its share each time.
    n_tasks: 1; or at most how many threads; or -1 for as many as the backend has

    The function runs on the CPU, on whatever thread computes the node, or on a device that takes such functions
    (``Device.computes_custom``). If it raises, the computation stops and the exception is raised to who called
    ``compute``. It must not use the backend or scheduler that is computing.
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


@overload  # sizes alone are one shape, sizes among shapes are shapes
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
    """A node, or several results, computed by a Python function from any number of tensors of any dtype, at most ten.

    function: called as ``function(out, *sources)`` with arrays of NumPy. It writes ``out``, or returns what is to be
        written: an array of any library (with ``__array__`` or ``__dlpack__``), a list or a number, of exactly the
        shape of ``out``. ``out`` begins with NaN, of integers and quantized formats with zeros; it is an error to
        return None and leave a floating ``out`` as it was. Dtypes are converted within a kind of numbers, float64 to
        float32, say; no float becomes an integer. With ``n_tasks`` other than 1 it is called ``nth`` times, as
        ``function(out, *sources, ith, nth)`` with ``ith = 0 .. nth - 1``, by the threads of the backend at the same
        time; each call writes its share of ``out`` and returns None.
    sources: the function's arrays of them are read-only. bfloat16 comes as uint16 bits, a quantized format as
        :class:`Blocks`, of which ``gb.dequantize(array)`` makes float32.
    shape: of the result, in NumPy order; default: that of the first source. A list of shapes asks for several results:
        then ``out`` is a tuple of arrays, and the function returns None or a tuple with an array for each, None for
        those that it has written itself
    dtype: of the result; default: that of the first source, float32 without sources. A list of dtypes asks for several
        results, too; a single shape or dtype beside a list, and None in one, is that of all or of the first source. A
        bfloat16 result takes floats, which are rounded, or uint16 bits; a quantized one the blocks that
        :func:`ggml_backend.quantize` makes.
    n_tasks: 1; or at most how many threads; or -1 for as many as the backend has
    context: where the node is made; needed without sources, else default: as for every operation, see
        :class:`Context`

    Returns a tensor; of several results a tuple of tensors. These are views of one node, which is computed as a whole
    if a graph needs one of them.

    The function runs on the CPU, on whatever thread computes the node, wherever sources and readers are; in a scheduler
    with a device that takes such functions (``Device.computes_custom``), there, on that device's arrays. If it raises,
    or returns what does not fit, the computation stops and the exception is raised to who called ``compute``, with a
    note that names the node. It must not use the backend or scheduler that is computing. The node has no derivative,
    and graphs with it cannot be exported.

    Raises TypeError or :class:`InvalidArgumentError` for results that no tensor can have, and for a quantized source
    that is transposed: blocks run along the last axis.
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
