"""Tensors, the contexts that they live in, and :func:`build`, through which every operation goes.

A tensor is an element format, up to four dimensions and, once placed, memory. It is also a node: operations on tensors
compute nothing, they make new tensors that know how they are computed. Shapes are in NumPy order; ``ne`` and ``nb`` are
the same numbers in ggml's reversed order.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, Union

import numpy as np

from ._core.handles import ContextCore, Core, Handle, address, fail, new_handle
from ._data.arrays import dtype_of_array, exact_array, to_array
from ._data.shapes import (
    common_shape,
    given_dtype,
    given_shape,
    ne_of,
    refuse_shape,
    refuse_view,
    region,
    resolve_shape,
    shape_tuple,
)
from ._errors import InvalidArgumentError, StateError, expect, expect_int, raise_as, raise_last
from ._errors.messages import (
    UnknownKey,
    broadcast_reason,
    hint_of,
    kind_of,
    plain,
    product_hint,
    reason_of,
    tensor_hint,
)
from ._ffi import ffi, lib
from ._tensor_base import MAX_DIMS, MAX_NAME, TensorInfo
from ._tensor_data import TensorData
from ._text.names import as_name, shorter
from .backend import Backend
from .buffer import Buffer, BufferCore, BufferType, Usage, usage_id
from .dtypes import DTypeLike, as_dtype, float32

__all__ = ["Tensor", "TensorLike"]

_ndim = lib.gbpy_ndim
_set_ndim = lib.gbpy_set_ndim
_settle = lib.gbpy_settle
_broadcast = lib.gbpy_broadcast
_reshape = lib.gbpy_reshape
_transpose = lib.gbpy_transpose
_slice = lib.gbpy_slice

# Instead of a number of dimensions, for `build_1` and `build_2`: as many as ...
OF_MOST: int = lib.GBPY_NDIM_MOST  # the source that has the most
OF_FIRST: int = lib.GBPY_NDIM_FIRST
OF_SECOND: int = lib.GBPY_NDIM_SECOND
OF_PRODUCT: int = lib.GBPY_NDIM_PRODUCT  # a product, where a vector times a matrix is a vector
_TO_END = 2**63 - 1
_ZEROS = ((0, 0, 0, 0), (0, 0, 0), (0, 0), (0,), ())  # what makes n numbers four


def _narrowed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What NumPy made of numbers of Python as float32 or int32."""
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.size and not -(2**31) <= int(array.min()) <= int(array.max()) < 2**31:
        wide = array.min() if array.min() < -(2**31) else array.max()
        raise InvalidArgumentError(
            f"Context.constant: {wide} does not fit into int32; say dtype='int64', or dtype='float32'"
        )
    return array.astype(np.int32)


# ----------------------------------------------------------------------------------------------------------------
# contexts


class TensorPool(Handle):
    """What :class:`Context` is for this module: the pool in which tensors are made. See there."""

    __slots__ = ("__weakref__", "_core", "_shapes", "_writable")

    def __init__(self, core: ContextCore, writable: bool = True) -> None:
        self._core: ContextCore | None = core
        self._writable = writable
        self._shapes: tuple[ContextCore, dict[tuple[int, ...], Any]] | None = None

    def _live(self) -> ContextCore:
        core = self._core
        if core is None:
            raise StateError("the context is closed")
        return core

    def tensor(self, shape: int | Sequence[int], dtype: DTypeLike = float32, name: str | None = None) -> Tensor:
        """A new tensor without memory. ``shape`` is in NumPy order: ``(64, 128)`` is 64 rows of 128.

        It gets memory from ``Context.allocate``, ``Buffer.place``, an allocator, or the scheduler that runs its graph.
        """
        core = self._live()
        size = given_shape(shape)
        element = given_dtype(dtype, size)
        ne = ne_of(size, "Context.tensor")
        label = None if name is None else as_name(name, "Context.tensor")
        pointer = lib.ggml_new_tensor(core.ptr, element.id, MAX_DIMS, ne)
        if not pointer:
            if not self._writable:
                raise StateError("Context.tensor: the copy of a graph cannot be built on")
            refuse_shape("Context.tensor", size, element)
            raise_last(f"Context.tensor({size}, {element.name})")
        if label is not None:
            lib.ggml_set_name(pointer, label)
        _set_ndim(pointer, len(size))
        return Tensor(self, pointer, core.h)

    def from_numpy(self, array: Any, name: str | None = None, usage: Usage = "any") -> Tensor:
        """A tensor over the memory of a C-contiguous NumPy array (or memory map), without a copy. The array is kept
        alive."""
        if name is not None:
            as_name(name, "Context.from_numpy")
        source = to_array(array, "Context.from_numpy")
        dtype = dtype_of_array(source, "Context.from_numpy")
        if source.ndim > MAX_DIMS:
            ne_of(source.shape, "Context.from_numpy")
        if not source.flags.c_contiguous:
            raise InvalidArgumentError(
                "Context.from_numpy: the array is not C-contiguous; np.ascontiguousarray(array) is"
            )
        if source.size == 0:
            raise InvalidArgumentError(
                f"Context.from_numpy: the array of shape {source.shape} is empty: there is no memory to use"
            )
        buffer = Buffer.from_array(source, usage)
        tensor = self.tensor(source.shape, dtype, name)
        if tensor._p.data:
            raise StateError(
                "Context.from_numpy: with no_alloc=False each tensor of the context gets memory of its own; use"
                " gb.Context()"
            )
        return buffer.place(tensor)

    def constant(self, value: Any, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
        """A tensor with a fixed value: a number, list or array. The value is written whenever the tensor is given
        memory, and again when its buffer is cleared, so it works on any backend; nothing else writes it. Python floats
        make float32."""
        core = self._live()
        if name is not None:
            as_name(name, "Context.constant")
        if dtype is not None:
            element = as_dtype(dtype, "Context.constant")
            array = exact_array(value, element, f"Context.constant: {element.name}")
        else:
            array = to_array(value, "Context.constant")
            if array.dtype.kind == "O" and isinstance(value, int):
                raise InvalidArgumentError(
                    f"Context.constant: {value:.4g} does not fit into int64; say dtype='float32'"
                )
            if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
                raise InvalidArgumentError(f"Context.constant: takes numbers, not {value!r:.60}")
            if not isinstance(value, (np.ndarray, np.generic)):
                array = _narrowed(array)
            element = dtype_of_array(array, "Context.constant")
        tensor = self.tensor(array.shape, element, name)
        lib.ggml_set_input(tensor._p)
        lib.ggml_set_output(tensor._p)
        data = np.ascontiguousarray(array).tobytes()
        pointer = tensor._live()
        status = lib.gbpy_set_constant(core.h, pointer, data, len(data))
        if status:
            fail(status, "constant")
        return tensor

    def allocate(self, backend: Backend | BufferType, usage: Usage = "any") -> Buffer:
        """Gives every tensor that has none yet memory on ``backend``, in one buffer that the context keeps alive.

        usage: ``"weights"`` for data that operations should be run next to, ``"any"`` for the rest. Raises
        :class:`AllocationError` when there is not enough memory; then no tensor was touched.
        """
        core = self._live()
        number = usage_id(usage)
        parent: Core | None
        if isinstance(backend, Backend):
            parent = backend._live()
            buft = lib.ggml_backend_get_default_buffer_type(parent.ptr)
        else:
            if type(backend) is not BufferType:
                expect(backend, Backend, "Context.allocate: backend")
            parent, buft = backend._parent, backend._ptr
        h = new_handle()
        status = lib.gbpy_open_context_buffer(h, core.h, buft, number, parent.h if parent is not None else ffi.NULL)
        if status:
            if status == lib.GGML_STATUS_INVALID_STATE and lib.ggml_last_status() == 0:
                raise StateError("Context.allocate: every tensor of the context has memory already")
            fail(status, "Context.allocate")
        return Buffer(BufferCore(h))

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order in which they were made."""
        core = self._live()
        found = []
        pointer = lib.ggml_get_first_tensor(core.ptr)
        while pointer:
            found.append(Tensor(self, pointer, core.h))
            pointer = lib.ggml_get_next_tensor(core.ptr, pointer)
        return found

    def get(self, name: str) -> Tensor | None:
        """The first tensor of that name."""
        core = self._live()
        pointer = lib.ggml_get_tensor(core.ptr, shorter(as_name(name, "Context.get"), MAX_NAME))
        return Tensor(self, pointer, core.h) if pointer else None

    def __getitem__(self, name: str) -> Tensor:
        found = self.get(name)
        if found is None:
            raise UnknownKey(name, [t.name for t in self.tensors()])
        return found

    @property
    def used_bytes(self) -> int:
        """Bytes that the context itself takes, without the memory of its tensors."""
        core = self._live()
        return int(lib.ggml_used_mem(core.ptr))

    def close(self) -> None:
        """Ends the use of the context and of its tensors and graphs, which raise :class:`StateError` from now on.

        Arrays and running schedulers keep what they need. Closing twice is fine.
        """
        self._core = None
        self._shapes = None

    def _transposed(self, tensor: Tensor) -> Tensor:
        """The transposed view of a matrix, made once: graph after graph writes ``x @ w.T``."""
        core = self._live()
        key = address(tensor._p)
        found = core.transposed.get(key)
        if found is None:
            found = core.transposed[key] = build("transpose", lib.ggml_transpose, (tensor,), ndim=2)._p
        return Tensor(self, found, core.h)

    def _template(self, shape: tuple[int, ...], what: str) -> Any:
        """A tensor that only shows a shape to a builder; not in this context, so that nobody gives it memory."""
        shapes = self._shapes
        if shapes is None:
            h = new_handle()
            status = lib.gbpy_open_context(h, 0, True)
            if status:
                fail(status, what)
            core = self._live()
            if not lib.gbpy_need(core.h, h):  # nodes may refer to its tensors
                raise_last(what)
            shapes = self._shapes = (ContextCore(h), {})
        pool, cache = shapes
        found = cache.get(shape)
        if found is None:
            found = lib.ggml_new_tensor(pool.ptr, lib.GGML_TYPE_F32, MAX_DIMS, ne_of(shape, what))
            if not found:
                raise_last(what)
            cache[shape] = found
        return found


# -------------------------------------------------------------------------------------------------------------------
# building


def describe(label: str, tensor: Tensor | None) -> str:
    return f"{label} None" if tensor is None else f"{label} {tensor.describe()}"


_LABELS = "abcdefgh"


def _fail(
    op: str, tensors: Sequence[Tensor | None], labels: Sequence[str], error: Exception | None, args: Sequence[Any] = ()
) -> NoReturn:
    status, marked = lib.ggml_last_status(), ffi.string(lib.gbpy_last_reason()).decode("utf-8", "replace")
    message = ffi.string(lib.ggml_last_error()).decode("utf-8", "replace")
    newest(op, tensors, labels)  # a context that cannot be built on is the better reason
    named = [(label, t) for label, t in zip(labels, tensors, strict=False) if t is not None]
    prefix = f"{op}: {', '.join([describe(label, t) for label, t in named])}"
    if error is not None:
        hint = "; mul multiplies by a tensor" if op == "scale" and "Tensor" in str(error) else ""
        raise InvalidArgumentError(f"{prefix}: {_parameter_error(error, args)}{hint}") from None
    if not marked:
        raise_as(status, plain(message), prefix)
    names = [label for label, _ in named]
    reason = reason_of(marked, op, names, [t.ndim for _, t in named])
    raise_as(status, reason + hint_of(op, marked, names, [t.shape for _, t in named]), prefix)


def _parameter_error(error: Exception, args: Sequence[Any]) -> str:
    """What cffi says of an argument that C cannot take, without its terms; with its name, as the public function that
    was called has it."""
    text = str(error)
    if isinstance(error, TypeError):
        whole = text == "an integer is required"
        kind = (int, np.integer) if whole else (int, float, np.integer, np.floating)
        wrong = next((v for v in args if not isinstance(v, (*kind, ffi.CData))), None)
        return f"{_argument_name(wrong)} must be {'an int' if whole else 'a number'}, not {kind_of(wrong)}"
    if text.startswith("integer ") and "does not fit" in text:
        return f"{text.split()[1]} is too large"
    return text


def _argument_name(value: object) -> str:
    """What the parameter is called that was given this value: of the function of :mod:`.ops` that is being called."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if frame.f_globals.get("__name__") in (
            "ggml_backend.ops",
            "ggml_backend.custom",
        ) and not code.co_name.startswith("_"):
            for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
                given = frame.f_locals.get(name)
                if given is value or (isinstance(given, (tuple, list)) and any(v is value for v in given)):
                    return name
        frame = frame.f_back
    return "an argument"


def newest(op: str, tensors: Sequence[Any], labels: Sequence[str] = _LABELS) -> TensorPool:
    """The context that an operation on these tensors belongs to: the one made last. None is possible for "mask"
    only."""
    pool: TensorPool | None = None
    serial = -1
    for i, t in enumerate(tensors):
        if not isinstance(t, Tensor):
            label = labels[i] if i < len(labels) else f"argument {i}"
            if t is None and label == "mask":
                continue
            raise TypeError(f"{op}: {label} must be a Tensor, not {kind_of(t)}{tensor_hint(t)}")
        core = t._ctx._core
        if core is None:
            raise StateError(f"{op}: the context of {labels[i] if i < len(labels) else 'a tensor'} is closed")
        if core.serial > serial:
            pool, serial = t._ctx, core.serial
    if pool is None:
        raise TypeError(f"{op}: needs a tensor")
    if not pool._writable:
        raise StateError(f"{op}: the copy of a graph cannot be built on")
    return pool


def build(
    op: str,
    function: Any,
    tensors: Sequence[Tensor | None],
    *args: Any,
    ndim: int | None = None,
    labels: Sequence[str] = _LABELS,
    array: bool = False,
) -> Tensor:
    """Calls a C builder and wraps its result.

    ndim: dimensions of the result as Python shows them; default: the most that a source has
    array: the first tensors are passed as the last argument's array (mul_mat_id passes its own pointers through
    ``args``)
    """
    pool = newest(op, tensors, labels)
    core = pool._live()
    pointers = []
    dims = 0
    for t in tensors:
        if t is None:
            pointers.append(ffi.NULL)
            continue
        other = t._ctx._core
        if other is not core:
            if other is None:
                raise StateError(f"{op}: the context of a tensor is closed")
            core.adopt(other)
        pointers.append(t._p)
        if ndim is None:
            dims = max(dims, _ndim(t._p))
    try:
        pointer = function(core.ptr, *args) if array else function(core.ptr, *pointers, *args)
    except (OverflowError, TypeError) as error:
        _fail(op, tensors, labels, error, args)
    if not pointer:
        _fail(op, tensors, labels, None)
    _settle(pointer, dims if ndim is None else ndim)
    return Tensor(pool, pointer, core.h)


def build_1(op: str, function: Any, a: Tensor, *args: Any, ndim: int = OF_MOST) -> Tensor:
    """:func:`build` for a node of one source, in half the time. ``function`` makes a node whose first source is
    ``a``."""
    if not isinstance(a, Tensor) or (core := a._ctx._core) is None:
        newest(op, (a,))  # says what is wrong
        raise StateError(f"{op}: the context of a tensor is closed")
    try:
        pointer = function(core.ptr, a._p, *args)
    except (OverflowError, TypeError) as error:
        _fail(op, (a,), _LABELS, error, args)
    if not pointer:
        _fail(op, (a,), _LABELS, None)
    _settle(pointer, ndim)
    return Tensor(a._ctx, pointer, core.h)


def build_2(
    op: str, function: Any, a: Tensor, b: Tensor, *args: Any, ndim: int = OF_MOST, labels: Sequence[str] = _LABELS
) -> Tensor:
    """:func:`build` for a node of two sources, in half the time. ``function`` makes a node whose first sources are
    ``a`` and ``b``."""
    core = a._ctx._core if isinstance(a, Tensor) else None
    other = b._ctx._core if isinstance(b, Tensor) else None
    if core is None or other is None:
        newest(op, (a, b), labels)  # says what is wrong
        raise StateError(f"{op}: the context of a tensor is closed")
    pool = a._ctx
    if core is not other:
        if other.serial > core.serial:
            pool, core, other = b._ctx, other, core
        if other.serial not in core.adopted:
            core.adopt(other)
    try:
        pointer = function(core.ptr, a._p, b._p, *args)
    except (OverflowError, TypeError) as error:
        _fail(op, (a, b), labels, error, args)
    if not pointer:
        _fail(op, (a, b), labels, None)
    _settle(pointer, ndim)
    return Tensor(pool, pointer, core.h)


def _attempt(a: Tensor, function: Any, n: int, *args: Any) -> Tensor | None:
    """A view of ``a`` by one of the functions of ffi_build.h; None if the caller has to look closer."""
    core = a._ctx._core
    if core is None:
        raise StateError("the context of the tensor is closed")
    try:
        pointer = function(core.ptr, a._p, n, *args)
    except (OverflowError, TypeError):
        return None
    return Tensor(a._ctx, pointer, core.h) if pointer else None


# --------------------------------------------------------------------------------------------------------------------
# tensors

TensorLike = Union["Tensor", int, float, "np.ndarray[Any, Any]", "np.generic"]


class Tensor(TensorData):
    """A tensor, or node of a graph, in a context. Made by ``Context.tensor`` and by operations.

    Operators mean what they mean in NumPy: ``+ - * / @``, unary ``-``, ``abs``, ``x[...]`` with slices. They compute
    nothing until the graph is run.
    """

    __slots__ = ()
    if not TYPE_CHECKING:  # for checkers there is no such thing

        def __array_ufunc__(self, ufunc, method, *inputs, **options):
            """``array + tensor`` and ``np.add(tensor, array)`` are nodes; other functions of NumPy compute at once, on
            data."""
            return _numpy_function(ufunc, method, inputs, options)

        def __setitem__(self, index, value):
            raise TypeError(
                "x[...] = value: a tensor has no item assignment; x[...].set(value) writes its data, gb.set(x, b) is a"
                " node"
            )

        def __lt__(self, other):
            raise TypeError(
                "a tensor has no order: its data is known only after its graph has run; gb.step(x - b) is 1 where x > b"
            )

        __le__ = __gt__ = __ge__ = __lt__

    def reshape(self, *shape: SupportsIndex | Sequence[int]) -> Tensor:
        """Same elements, another shape; one size may be -1. A view if the tensor is contiguous, else a copy node."""
        if (
            0 < len(shape) <= MAX_DIMS
            and (found := _attempt(self, _reshape, len(shape), *shape, *_ZEROS[len(shape)])) is not None
        ):
            return found
        new = shape_tuple(shape[0] if len(shape) == 1 else shape, "reshape: shape")
        new = resolve_shape(self, new)
        ne = ne_of(new, "reshape")
        function = lib.ggml_reshape_4d if self.is_contiguous else lib.ggml_cont_4d
        return build("reshape", function, (self,), *ne, ndim=len(new))

    def transpose(self, *axes: SupportsIndex | Sequence[int] | None) -> Tensor:
        """A view with the axes in another order; axis ``i`` of the result is axis ``axes[i]`` of this tensor. Without
        axes the order is reversed, as in NumPy. (:func:`ggml_backend.permute` counts axes the way ggml does.)"""
        if (
            2 < len(axes) <= MAX_DIMS
            and (found := _attempt(self, _transpose, len(axes), *axes, *_ZEROS[len(axes)])) is not None
        ):
            return found
        n = self.ndim
        if not axes or axes[0] is None:
            order = tuple(range(n))[::-1]
        else:
            order = shape_tuple(axes[0] if len(axes) == 1 else axes, "transpose: axes")
        order = tuple(a + n if a < 0 else a for a in order)
        if sorted(order) != list(range(n)):
            raise InvalidArgumentError(f"transpose: {order} is no order of the {n} axes of {self.describe()}")
        if n == 2 and order == (1, 0):
            return self._ctx._transposed(self)
        to = list(range(MAX_DIMS))
        for new, old in enumerate(order):
            to[n - 1 - old] = n - 1 - new
        return build("transpose", lib.ggml_permute, (self,), *to, ndim=n)

    permute = transpose

    def swapaxes(self, a: int, b: int) -> Tensor:
        """A view with two axes exchanged."""
        n = self.ndim
        order = list(range(n))
        a, b = expect_int(a, "swapaxes: a"), expect_int(b, "swapaxes: b")
        try:
            order[a], order[b] = order[b], order[a]
        except IndexError:
            raise InvalidArgumentError(f"swapaxes: {self.describe()} has no axes {a} and {b}") from None
        return self.transpose(order)

    @property
    def T(self) -> Tensor:
        """The tensor with its axes reversed, a view."""
        return self.transpose()

    def contiguous(self) -> Tensor:
        """The tensor itself if it is contiguous, else a copy node that is."""
        return self if self.is_contiguous else build_1("cont", lib.ggml_cont, self)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """A node of another dtype."""
        element = as_dtype(dtype, "astype")
        return self if element.id == self.dtype.id else build_1("cast", lib.ggml_cast, self, element.id)

    def __getitem__(self, index: Any) -> Tensor:
        """Integers, slices, ``...`` and ``None`` as in NumPy: a view. Where ggml cannot express the view (a step or an
        integer on the last axis) a copy node follows it. Index arrays: see :func:`ggml_backend.get_rows`."""
        return _index(self, index)

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise TypeError("len() of a tensor without axes")
        return shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __add__(self, other: TensorLike) -> Tensor:
        return _binary("a + b", lib.ggml_add, self, other, commutes=True)

    def __radd__(self, other: TensorLike) -> Tensor:
        return _binary("a + b", lib.ggml_add, other, self, commutes=True)

    def __mul__(self, other: TensorLike) -> Tensor:
        if isinstance(other, (int, float)) and not isinstance(other, bool):
            return build_1("scale", lib.ggml_scale, self, other)
        return _binary("a * b", lib.ggml_mul, self, other, commutes=True)

    def __rmul__(self, other: TensorLike) -> Tensor:
        if isinstance(other, (int, float)) and not isinstance(other, bool):
            return build_1("scale", lib.ggml_scale, self, other)
        return _binary("a * b", lib.ggml_mul, other, self, commutes=True)

    def __sub__(self, other: TensorLike) -> Tensor:
        return _binary("a - b", lib.ggml_sub, self, other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        if isinstance(other, (int, float)) and not isinstance(other, bool):
            return -self + other
        return _binary("a - b", lib.ggml_sub, other, self)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return _binary("a / b", lib.ggml_div, self, other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return _binary("a / b", lib.ggml_div, other, self)

    def __neg__(self) -> Tensor:
        return build_1("neg", lib.ggml_neg, self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return build_1("abs", lib.ggml_abs, self)

    def __pow__(self, exponent: float) -> Tensor:
        if exponent == 2:
            return build_1("sqr", lib.ggml_sqr, self)
        if exponent == 0.5:
            return build_1("sqrt", lib.ggml_sqrt, self)
        if isinstance(exponent, (int, float)):
            hint = "1 / a is a power of -1" if exponent == -1 else "a * a * a is a third power"
            raise TypeError(f"a ** b: the exponents 2 and 0.5 are possible, not {exponent}; {hint}")
        return NotImplemented

    def __matmul__(self, other: TensorLike) -> Tensor:
        """The matrix product as in NumPy. ``x @ w.T`` costs no transposition: it is ``mul_mat(w, x)``."""
        return _matmul(self, _coerce(other, self, "a @ b", "b"))

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return _matmul(_coerce(other, self, "a @ b", "a"), self)

    def __bool__(self) -> bool:
        raise TypeError("a tensor has no truth value: its data is known only after its graph has run")


for _base, _public in ((TensorInfo, "Tensor"), (TensorData, "Tensor"), (TensorPool, "Context")):
    for _member in vars(_base).values():
        if isinstance(_member, types.FunctionType):
            _member.__qualname__ = f"{_public}.{_member.__name__}"  # as Python's own messages name it


# ------------------------------------------------------------------------------------------------------ what operators
# mean


_NUMPY_BINARY = {
    np.add: ("__add__", "__radd__"), np.subtract: ("__sub__", "__rsub__"), np.multiply: ("__mul__", "__rmul__"),
    np.true_divide: ("__truediv__", "__rtruediv__"), np.matmul: ("__matmul__", "__rmatmul__"),
}  # fmt: skip
_NUMPY_UNARY = {np.negative: "__neg__", np.positive: "__pos__", np.absolute: "__abs__"}


def _numpy_function(ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What NumPy's elementwise functions do with tensors: the operators are the tensors', the rest is refused."""
    if method == "__call__" and not options:
        if ufunc in _NUMPY_BINARY:
            forward, reflected = _NUMPY_BINARY[ufunc]
            a, b = inputs
            return getattr(a, forward)(b) if isinstance(a, Tensor) else getattr(b, reflected)(a)
        if ufunc in _NUMPY_UNARY:
            return getattr(inputs[0], _NUMPY_UNARY[ufunc])()
        if ufunc in (np.equal, np.not_equal):  # as of tensors: is it the same one?
            same = isinstance(inputs[0], Tensor) and inputs[0] == inputs[1]
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


def _coerce(value: Any, like: Tensor, op: str, label: str) -> Tensor:
    """A number or array as a constant in the context of ``like``."""
    if isinstance(value, Tensor):
        return value
    if like._ctx._core is None:
        raise StateError(f"{op}: the context of {'a' if label == 'b' else 'b'} is closed")
    try:
        if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
            return like._ctx.constant(float(value), float32)
        if isinstance(value, (np.ndarray, np.generic)):
            if (
                value.dtype.kind in "iuf"
                and value.dtype != np.float32
                and like.dtype.name == "float32"
                and value.dtype.name != "float16"
            ):
                needed = f"where float32 is needed: {label}.astype(np.float32)"
                raise InvalidArgumentError(f"{op}: {label} is an array of {value.dtype}, {needed}")
            return like._ctx.constant(value)
        if isinstance(value, (list, tuple)):
            return like._ctx.constant(value, like.dtype if not like.dtype.is_quantized else None)
        hint = tensor_hint(value) if not isinstance(value, bool) else ""
        raise TypeError(f"{op}: {label} must be a tensor, a number or an array, not {kind_of(value)}{hint}")
    except StateError:
        newest(op, (like,))  # is it of a copied graph?
        raise
    except OverflowError:
        raise InvalidArgumentError(f"{op}: {label} is too large for a float") from None


def repeat_to(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Tiles a tensor to a shape of which its own sizes are divisors."""
    own = (1,) * (len(shape) - tensor.ndim) + tensor.shape
    if len(own) != len(shape) or any((n % m if m else n) for n, m in zip(shape, own, strict=True)):
        raise InvalidArgumentError(
            f"repeat: a {tensor.describe()} cannot become {shape}: each size must be a multiple of that of a"
        )
    pool = newest("repeat", (tensor,))
    return build("repeat", lib.ggml_repeat, (tensor,), pool._template(shape, "repeat"), ndim=len(shape))


def _binary(op: str, function: Any, a: Any, b: Any, commutes: bool = False) -> Tensor:
    """ggml repeats b over a only; where NumPy would repeat a, the operands change places or a is repeated first."""
    if not isinstance(a, Tensor):
        a = _coerce(a, b, op, "a")
    elif not isinstance(b, Tensor):
        b = _coerce(b, a, op, "b")
    core_a, core_b = a._ctx._core, b._ctx._core  # in these variables they stay open
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


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b: ggml multiplies rows by rows, mul_mat(B, A) = A B^T, so B is the transposed b."""
    if a._ctx._core is None or b._ctx._core is None:
        newest("a @ b", (a, b))
    n_a, n_b = a.ndim, b.ndim
    if n_a == 0 or n_b == 0:
        raise InvalidArgumentError(
            f"a @ b: {describe('a', a)}, {describe('b', b)}: a tensor without axes has no products of rows; use *"
        )
    inner = b.shape[-2] if n_b > 1 else b.shape[0]
    if a.shape[-1] != inner:
        which = f"the {'last but one' if n_b > 1 else 'only'} axis of b ({inner})"
        raise InvalidArgumentError(
            f"a @ b: {describe('a', a)}, {describe('b', b)}: the last axis of a ({a.shape[-1]}) and {which} differ"
            + product_hint(a.shape, b.shape)
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
        batch = common_shape(batch_a, batch_b)
    except ValueError:
        reason = f"the batch axes {batch_a} and {batch_b} do not broadcast"
        raise InvalidArgumentError(f"a @ b: {describe('a', a)}, {describe('b', b)}: {reason}") from None
    if n_a == 1 and n_b > 2:
        a = a.reshape(*(1,) * (n_b - 1), a.shape[0])
        batch_a = a.shape[:-2]
    if math.prod(batch_a) != math.prod(batch):
        a = repeat_to(a, (*batch, *a.shape[-2:]))
    ndim = len(batch) + (n_a > 1) + (n_b > 1)
    y = build_2("mul_mat", lib.ggml_mul_mat, rows, a, ndim=ndim)
    if n_b == 1 and n_a > 1:
        return y.reshape(*batch, a.shape[-2])
    if n_a == 1 and n_b > 2:
        return y.reshape(*batch, b.shape[-1])
    return y


def _sliced(t: Tensor, items: tuple[Any, ...]) -> Tensor | None:
    """The view, if all indices are plain slices."""
    bounds: list[Any] = []
    for item in items:
        if type(item) is not slice or item.step is not None:
            return None
        start, stop = item.start, item.stop
        bounds += (0 if start is None else start, _TO_END if stop is None else stop)
    n = len(items)
    return _attempt(t, _slice, n, *bounds, *_ZEROS[n], *_ZEROS[n]) if n <= MAX_DIMS else None


def _index(t: Tensor, index: Any) -> Tensor:
    items = index if isinstance(index, tuple) else (index,)
    found = _sliced(t, items)
    return _strided_view(t, *region(t, items)) if found is None else found


def _strided_view(t: Tensor, shape: list[int], strides: list[int], offset: int) -> Tensor:
    """ggml views have adjacent elements on the last axis; others get an extra axis, and are then copied together."""
    item_bytes = t.dtype.itemsize
    if 0 in shape:  # of no memory: offset and strides, which may lie outside, do not matter
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
    """The C view builder of the right number of dimensions; NumPy order, strides in bytes, the last one is implied."""
    n = len(shape)
    ne = ne_of(shape, op)
    if n == 0:
        shape, strides, n = [1], None, 1
    if strides is None:
        row = t.dtype.row_size(shape[-1])
        strides = [row * math.prod(shape[i + 1 : -1]) for i in range(n - 1)] + [t.dtype.itemsize]
    if len(strides) != n:
        raise InvalidArgumentError(f"{op}: {len(strides)} strides for the shape {tuple(shape)}")
    if strides[-1] != t.dtype.itemsize and shape[-1] > 1:
        raise InvalidArgumentError(
            f"{op}: the stride of the last axis is {strides[-1]} bytes; elements of {t.dtype.name} must be adjacent"
        )
    nb: list[int] = []
    for i in range(n - 2, -1, -1):  # a stride of an axis of size 1 is never used: make it plausible
        below = nb[-1] * ne[len(nb)] if nb else t.dtype.row_size(ne[0])
        nb.append(strides[i] if strides[i] > 0 or shape[i] > 1 else below)
    function = (lib.ggml_view_1d, lib.ggml_view_2d, lib.ggml_view_3d, lib.ggml_view_4d)[n - 1]
    try:
        return build(op, function, (t,), *[ne[i] for i in range(n)], *nb, offset, ndim=n if ndim is None else ndim)
    except InvalidArgumentError:
        refuse_view(op, t, tuple(shape), strides, offset)
        raise
