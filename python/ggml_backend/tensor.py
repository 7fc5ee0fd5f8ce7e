"""Tensors, the contexts that they live in, and :func:`build`, through which every operation goes.

A tensor is an element format, up to four dimensions and, once placed, memory. It is also a node: operations on tensors compute
nothing, they make new tensors that know how they are computed. Shapes are in NumPy order; ``ne`` and ``nb`` are the same
numbers in ggml's reversed order.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, Union

import numpy as np

from ._data import array_at, dtype_of_array, exact_array, layout, read_device, write, write_strided
from ._errors import GgmlError, InvalidArgumentError, StateError, check, clear_error, raise_last
from ._ffi import ffi, lib
from ._handles import (
    BufferCore,
    ContextCore,
    Core,
    OwnerCore,
    address,
    find_owner,
    reap,
)
from ._quantize import quantize
from .backend import Backend
from .buffer import Buffer, BufferType, make_buffer, text, usage_id
from .dtypes import DType, DTypeLike, as_dtype, dtype_of_id, float32

__all__ = ["Tensor", "TensorLike"]

MAX_DIMS: int = lib.GGML_MAX_DIMS

_ndim = lib.gbpy_ndim
_set_ndim = lib.gbpy_set_ndim
_unpack = ffi.unpack
_buffer_of = lib.gbpy_buffer
_refresh = lib.gbpy_refresh
_cast = ffi.cast


def ne_of(shape: Sequence[int], what: str) -> Any:
    """A shape in NumPy order as ``int64_t[4]``."""
    if len(shape) > MAX_DIMS:
        raise InvalidArgumentError(f"{what}: {len(shape)} dimensions {tuple(shape)}, at most {MAX_DIMS} are possible")
    try:
        return ffi.new("int64_t[4]", [operator.index(n) for n in reversed(shape)] + [1] * (MAX_DIMS - len(shape)))
    except OverflowError:
        raise InvalidArgumentError(f"{what}: shape {tuple(shape)} is too large") from None


def shape_tuple(shape: Any) -> tuple[int, ...]:
    """An int or a sequence of ints as a tuple."""
    if isinstance(shape, (tuple, list)):
        return tuple(operator.index(n) for n in shape)
    try:
        return (operator.index(shape),)
    except TypeError:
        return tuple(operator.index(n) for n in shape)


# ---------------------------------------------------------------------------------------------------------------- contexts


class TensorPool:
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
        size = shape_tuple(shape)
        element = as_dtype(dtype)
        ne = ne_of(size, "Context.tensor")
        with core.lock:
            pointer = lib.ggml_new_tensor(core.ptr, element.id, MAX_DIMS, ne)
        if not pointer:
            raise_last(f"Context.tensor({size}, {element.name})")
        return self._wrap(pointer, len(size), name)

    def from_numpy(self, array: Any, name: str | None = None, usage: str = "any") -> Tensor:
        """A tensor over the memory of a C-contiguous NumPy array (or memory map), without a copy. The array is kept alive."""
        source: np.ndarray[Any, Any] = np.asanyarray(array)
        buffer = Buffer.from_array(source, usage)
        return buffer.place(self.tensor(source.shape, dtype_of_array(source), name))

    def constant(self, value: Any, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
        """A tensor with a fixed value: a number, list or array. The value is written whenever the tensor is given memory, so it works on
        any backend. Python floats make float32."""
        core = self._live()
        if dtype is not None:
            element = as_dtype(dtype)
            array = exact_array(value, element, f"constant: {element.name}")
        else:
            array = np.asarray(value)
            if not isinstance(value, (np.ndarray, np.generic)):
                array = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
            element = dtype_of_array(array)
        tensor = self.tensor(array.shape, element, name)
        lib.ggml_set_input(tensor._p)
        lib.ggml_set_output(tensor._p)
        core.constants.append((tensor._p, np.ascontiguousarray(array).tobytes()))
        return tensor

    def allocate(self, backend: Backend | BufferType, usage: str = "any") -> Buffer:
        """Gives every tensor that has none yet memory on ``backend``, in one buffer that the context keeps alive.

        usage: ``"weights"`` for data that operations should be run next to, ``"any"`` for the rest. Raises
        :class:`AllocationError` when there is not enough memory; then no tensor was touched.
        """
        reap()
        core = self._live()
        number = usage_id(usage)
        parent: Core | None
        if isinstance(backend, Backend):
            parent = backend._live()
            buft = lib.ggml_backend_get_default_buffer_type(parent.ptr)
        else:
            parent, buft = backend._parent, backend._ptr
        clear_error()
        with core.lock:
            pointer = lib.ggml_backend_alloc_ctx_tensors_from_buft(core.ptr, buft)
        if not pointer:
            if lib.ggml_last_status() == 0:
                raise StateError("Context.allocate: every tensor of the context has memory already")
            raise_last("Context.allocate")
        buffer = make_buffer(pointer, parent, number)
        owner = buffer._live()
        core.add_buffer(owner)
        core.upload_constants()
        return buffer

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order in which they were made."""
        core = self._live()
        found = []
        pointer = lib.ggml_get_first_tensor(core.ptr)
        while pointer:
            found.append(Tensor(self, pointer))
            pointer = lib.ggml_get_next_tensor(core.ptr, pointer)
        return found

    def get(self, name: str) -> Tensor | None:
        """The first tensor of that name."""
        pointer = lib.ggml_get_tensor(self._live().ptr, name.encode())
        return Tensor(self, pointer) if pointer else None

    def __getitem__(self, name: str) -> Tensor:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    @property
    def used_bytes(self) -> int:
        """Bytes that the context itself takes, without the memory of its tensors."""
        return int(lib.ggml_used_mem(self._live().ptr))

    @property
    def closed(self) -> bool:
        return self._core is None

    def close(self) -> None:
        """Ends the use of the context and of its tensors and graphs, which raise :class:`StateError` from now on.

        Arrays and running schedulers keep what they need. Closing twice is fine.
        """
        self._core = None
        self._shapes = None
        reap()

    def _wrap(self, pointer: Any, ndim: int, name: str | None = None) -> Tensor:
        _set_ndim(pointer, ndim)
        if name is not None:
            lib.ggml_set_name(pointer, name.encode())
        return Tensor(self, pointer)

    def _transposed(self, tensor: Tensor) -> Tensor:
        """The transposed view of a matrix, made once: graph after graph writes ``x @ w.T``."""
        core = self._live()
        key = address(tensor._p)
        found = core.transposed.get(key)
        if found is None:
            found = core.transposed[key] = build("transpose", lib.ggml_transpose, (tensor,), ndim=2)._p
        return Tensor(self, found)

    def _template(self, shape: tuple[int, ...], what: str) -> Any:
        """A tensor that only shows a shape to a builder; not in this context, so that nobody gives it memory."""
        core = self._live()
        with core.lock:
            if self._shapes is None:
                params = {"mem_size": 0, "mem_buffer": ffi.NULL, "no_alloc": True}
                pointer = lib.ggml_init(ffi.new("struct ggml_init_params *", params)[0])
                if not pointer:
                    raise_last(what)
                self._shapes = (ContextCore(pointer), {})
                core.keep.append(self._shapes[0])
            pool, cache = self._shapes
            found = cache.get(shape)
            if found is None:
                found = lib.ggml_new_tensor(pool.ptr, lib.GGML_TYPE_F32, MAX_DIMS, ne_of(shape, what))
                if not found:
                    raise_last(what)
                cache[shape] = found
            return found


# ------------------------------------------------------------------------------------------------------------------- building


def describe(label: str, tensor: Tensor | None) -> str:
    return f"{label} None" if tensor is None else f"{label} {tensor.describe()}"


def _fail(op: str, tensors: Sequence[Tensor | None], labels: Sequence[str], error: Exception | None) -> None:
    parts = [describe(label, t) for label, t in zip(labels, tensors, strict=False)]
    prefix = f"{op}: {', '.join(parts)}"
    if error is not None:
        raise InvalidArgumentError(f"{prefix}: {error}") from None
    raise_last(prefix)


def newest(op: str, tensors: Sequence[Any], labels: Sequence[str] = "abcdefgh") -> TensorPool:
    """The context that an operation on these tensors belongs to: the one made last. None is possible for "mask" only."""
    pool: TensorPool | None = None
    serial = -1
    for i, t in enumerate(tensors):
        if not isinstance(t, Tensor):
            label = labels[i] if i < len(labels) else f"argument {i}"
            if t is None and label == "mask":
                continue
            hint = "; ctx.constant or ctx.from_numpy makes one" if isinstance(t, (np.ndarray, float, int)) else ""
            raise TypeError(f"{op}: {label} must be a Tensor, not {type(t).__name__}{hint}")
        core = t._ctx._core
        if core is None:
            raise StateError(f"{op}: the context of a tensor is closed")
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
    labels: Sequence[str] = "abcdefgh",
    array: bool = False,
) -> Tensor:
    """Calls a C builder and wraps its result.

    ndim: dimensions of the result as Python shows them; default: the most that a source has
    array: the first tensors are passed as the last argument's array (mul_mat_id passes its own pointers through ``args``)
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
        with core.lock:
            pointer = function(core.ptr, *args) if array else function(core.ptr, *pointers, *args)
    except (OverflowError, TypeError) as error:
        _fail(op, tensors, labels, error)
    if not pointer:
        _fail(op, tensors, labels, None)
    _set_ndim(pointer, dims if ndim is None else ndim)
    return Tensor(pool, pointer)


# -------------------------------------------------------------------------------------------------------------------- tensors

TensorLike = Union["Tensor", int, float, "np.ndarray[Any, Any]", "np.generic"]


class Tensor:
    """A tensor, or node of a graph, in a context. Made by ``Context.tensor`` and by operations.

    Operators mean what they mean in NumPy: ``+ - * / @``, unary ``-``, ``abs``, ``x[...]`` with slices. They compute nothing
    until the graph is run.
    """

    __slots__ = ("__weakref__", "_ctx", "_p")
    __array_ufunc__ = None  # array + tensor is the tensor's business

    def __init__(self, ctx: TensorPool, pointer: Any) -> None:
        self._ctx = ctx
        self._p = pointer

    def _live(self) -> Any:
        if self._ctx._core is None:
            raise StateError("the context of the tensor is closed")
        return self._p

    # ------------------------------------------------------------------------------------------------------------ what it is

    @property
    def context(self) -> TensorPool:
        return self._ctx

    @property
    def name(self) -> str:
        """At most 63 bytes; longer names are cut."""
        return text(lib.ggml_get_name(self._live()))

    @name.setter
    def name(self, name: str) -> None:
        lib.ggml_set_name(self._live(), name.encode())

    def named(self, name: str) -> Tensor:
        """Sets the name and returns the tensor."""
        self.name = name
        return self

    @property
    def ndim(self) -> int:
        return int(_ndim(self._live()))

    @property
    def shape(self) -> tuple[int, ...]:
        p = self._live()
        return tuple(_unpack(p.ne, MAX_DIMS)[: _ndim(p)][::-1])

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes, in the order of ``shape``."""
        p = self._live()
        return tuple(_unpack(p.nb, MAX_DIMS)[: _ndim(p)][::-1])

    @property
    def ne(self) -> tuple[int, int, int, int]:
        """The four sizes in ggml's order: ``ne[0]`` is the fastest dimension, the last axis of ``shape``."""
        return tuple(_unpack(self._live().ne, MAX_DIMS))

    @property
    def nb(self) -> tuple[int, int, int, int]:
        """The four byte strides in ggml's order."""
        return tuple(_unpack(self._live().nb, MAX_DIMS))

    @property
    def dtype(self) -> DType:
        return dtype_of_id(self._live().type)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(lib.ggml_nelements(self._live()))

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element, gaps between strided elements included."""
        return int(lib.ggml_nbytes(self._live()))

    @property
    def is_contiguous(self) -> bool:
        return bool(lib.ggml_is_contiguous(self._live()))

    @property
    def op(self) -> str:
        """How it is computed: ``"NONE"``, ``"MUL_MAT"``, ... and for elementwise functions their name, ``"RELU"``."""
        p = self._live()
        return text(lib.ggml_op_name(p.op)) if p.op == lib.GGML_OP_NONE else text(lib.ggml_op_desc(p))

    @property
    def sources(self) -> list[Tensor]:
        """The tensors that it is computed from."""
        return [Tensor(self._ctx, s) for s in self._live().src if s]

    @property
    def view_of(self) -> Tensor | None:
        """The tensor whose memory this one looks into; None if it has its own."""
        source = self._live().view_src
        return Tensor(self._ctx, source) if source else None

    def set_input(self) -> Tensor:
        """Keeps its memory from the start of the graph, so that it can be set before the graph runs. Returns the tensor."""
        check(lib.ggml_set_input(self._live()), "set_input")
        return self

    def set_output(self) -> Tensor:
        """Keeps its memory until the end of the graph, so that it can be read afterwards. Returns the tensor."""
        check(lib.ggml_set_output(self._live()), "set_output")
        return self

    @property
    def is_input(self) -> bool:
        return bool(lib.ggml_is_input(self._live()))

    @property
    def is_output(self) -> bool:
        return bool(lib.ggml_is_output(self._live()))

    # ----------------------------------------------------------------------------------------------------------------- memory

    def _owner(self) -> Core:
        """Who owns the memory of this tensor. Raises StateError if it has none."""
        p = self._live()
        buffer = _buffer_of(p)
        if buffer:
            owner = find_owner(buffer)
            if owner is None or owner.closed:
                raise StateError(f"the memory of {self.describe()} was freed")
            return owner
        if p.data or (p.view_src and p.view_src.data):
            return self._ctx._live()
        if lib.gbpy_is_lost(p):
            raise StateError(f"the memory of {self.describe()} was freed")
        raise StateError(f"{self.describe()} has no memory: give it some with Context.allocate, Buffer.place or Scheduler.allocate")

    def _lock(self, setting: bool = False) -> Core:
        """Locks the owner of the memory and makes sure that the data is there. Returns the owner; the caller releases its lock."""
        while True:
            owner = self._owner()
            if OwnerCore.working and isinstance(owner, OwnerCore):
                owner.wait_for_users(self._p, setting)
            owner.lock.acquire()
            try:
                if self._owner() is owner:  # not moved meanwhile
                    if isinstance(owner, OwnerCore):
                        if setting:
                            owner.before_set(self._p)
                        else:
                            owner.synchronize()
                        if not owner.has(self._p):
                            raise StateError(
                                f"the scheduler has used the memory of {self.describe()} for another graph, or was reset"
                            )
                    if not _refresh(self._p):
                        raise_last(f"{self.describe()}")
                    return owner
            except BaseException:
                owner.lock.release()
                raise
            owner.lock.release()

    def _is_host(self, owner: Core) -> bool:
        if not isinstance(owner, OwnerCore):
            return True
        return owner.is_host(_buffer_of(self._p))

    @property
    def is_placed(self) -> bool:
        """Does it have memory?"""
        self._live()
        try:
            self._lock().lock.release()
        except StateError:
            return False
        return True

    @property
    def is_host(self) -> bool:
        """Is its memory readable by NumPy without a copy?"""
        return self._is_host(self._owner())

    @property
    def buffer(self) -> Buffer | None:
        """The buffer that it lies in; None if it has no memory or memory of a scheduler or context."""
        p = self._live()
        buffer = _buffer_of(p)
        owner = find_owner(buffer) if buffer else None
        return Buffer(owner) if isinstance(owner, BufferCore) and not owner.closed else None

    @property
    def location(self) -> str:
        """Name of the buffer that it lies in, "" if none."""
        buffer = _buffer_of(self._live())
        return text(lib.ggml_backend_buffer_name(buffer)) if buffer and find_owner(buffer) is not None else ""

    def numpy(self, dtype: Any = None, *, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The data as an array.

        Host memory: a view; it keeps the buffer alive, writing to it writes the tensor, and the next computation overwrites what
        a scheduler placed. Device memory: a copy. Waits for a computation in progress.

        dtype: convert to this NumPy dtype (a copy). Without it bfloat16 comes as uint16 bits, quantized formats as the
            bytes of their rows.
        copy: True: always a copy; False: raise :class:`StateError` rather than copy.
        """
        owner = self._lock()
        try:
            if self._is_host(owner):
                readonly = isinstance(owner, OwnerCore) and owner.readonly
                pin = owner.pin() if isinstance(owner, OwnerCore) else owner.token
                array = array_at(self._p, pin, readonly)
                if copy:
                    array = array.copy()
            else:
                if copy is False:
                    raise StateError(f"numpy: {self.describe()} is in device memory, which takes a copy")
                array = read_device(self._p)
        finally:
            owner.lock.release()
        if dtype is not None:
            array = self._converted(array, np.dtype(dtype), copy)
        return array

    def _converted(self, array: np.ndarray[Any, Any], dtype: np.dtype[Any], copy: bool | None) -> np.ndarray[Any, Any]:
        element = self.dtype
        if element.name == "bfloat16" and dtype != array.dtype and dtype.name != "bfloat16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        elif element.name == "bfloat16" and dtype.name == "bfloat16":
            return array.view(dtype)
        if element.is_quantized and dtype != array.dtype:
            raise GgmlError(f"numpy: {element.name} cannot be converted to {dtype}")
        if copy is False and array.dtype != dtype:
            raise StateError(f"numpy: {element.name} as {dtype} takes a copy")
        return array.astype(dtype, copy=False)

    def set(self, value: Any, offset: int | None = None, *, quantize: bool = False) -> Tensor:
        """Writes data. Returns the tensor.

        value: an array of exactly this tensor's shape and dtype; or a list, converted where nothing is lost; or a number, which
            fills the tensor; or ``...`` for zeros. bfloat16 takes ml_dtypes.bfloat16 or uint16 bits, quantized formats
            take the bytes of their rows.
        offset: write ``value``, of any shape, from this flat element index on, and leave the rest as it is.
        quantize: take floats of this tensor's shape and convert them to its dtype, with :func:`ggml_backend.quantize`.
        """
        dtype = self.dtype
        if quantize:
            value = self._quantized(value, dtype)
        if value is ...:
            value = 0
        if type(value) is np.ndarray and value.dtype == dtype.numpy and value.dtype.isnative:
            array = value
        else:
            array = exact_array(value.numpy() if isinstance(value, Tensor) else value, dtype, f"set: {self.describe()}")
        shape, _ = layout(self._p, dtype)
        owner = self._lock(setting=True)
        try:
            if isinstance(owner, OwnerCore) and owner.readonly:
                raise StateError(f"set: {self.describe()} is in a read-only buffer")
            if offset is not None:
                self._write_flat(array, operator.index(offset), dtype)
                return self
            if array.shape != shape:
                if array.ndim or isinstance(value, np.ndarray):
                    raise InvalidArgumentError(f"set: {self.describe()} cannot take an array of shape {array.shape}")
                array = np.broadcast_to(array, shape)
            if self._is_host(owner) and not lib.ggml_is_contiguous(self._p):
                array_at(self._p, None, False)[...] = array
            elif lib.ggml_is_contiguous(self._p):
                write(self._p, np.ascontiguousarray(array), 0)
            else:
                write_strided(self._p, array)
        finally:
            owner.lock.release()
        return self

    def _quantized(self, value: Any, dtype: DType) -> np.ndarray[Any, Any]:
        array = np.asarray(value.numpy() if isinstance(value, Tensor) else value)
        if array.shape != self.shape:
            raise InvalidArgumentError(f"set: {self.describe()} cannot take an array of shape {array.shape}")
        blocks = quantize(array, dtype)
        return blocks.view(np.uint16) if dtype.name == "bfloat16" else blocks

    def _write_flat(self, array: np.ndarray[Any, Any], offset: int, dtype: DType) -> None:
        if dtype.is_quantized or not lib.ggml_is_contiguous(self._p):
            raise InvalidArgumentError(f"set: an offset needs a contiguous tensor of a plain dtype, not {self.describe()}")
        if offset < 0 or offset + array.size > self.size:
            raise InvalidArgumentError(
                f"set: elements {offset} to {offset + array.size} are outside of {self.describe()}, which has {self.size}"
            )
        write(self._p, np.ascontiguousarray(array), offset * dtype.itemsize)

    def copy_from(self, source: Tensor) -> Tensor:
        """Copies the data of a tensor of the same dtype and layout, wherever the two are. Returns this tensor."""
        first, second = sorted((self, source), key=lambda t: id(t._owner()))
        locked: list[Core] = []
        try:
            locked += (first._lock(), second._lock())
            if any(o is self._owner() and isinstance(o, OwnerCore) and o.readonly for o in locked):
                raise StateError(f"copy_from: {self.describe()} is in a read-only buffer")
            status = lib.ggml_backend_tensor_copy(source._live(), self._live())
        finally:
            for o in locked:
                o.lock.release()
        check(status, f"copy_from: {source.describe()} to {self.describe()}")
        return self

    def item(self) -> Any:
        """The value of a tensor with one element."""
        if self.size != 1:
            raise InvalidArgumentError(f"item: {self.describe()} has {self.size} elements")
        dtype = np.float32 if self.dtype.name == "bfloat16" else None
        return self.numpy(dtype).reshape(-1)[0].item()

    def tolist(self) -> Any:
        return self.numpy(np.float32 if self.dtype.name == "bfloat16" else None).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        if not self.is_host:
            raise BufferError(f"{self.describe()} is in device memory; use numpy() for a copy")
        if self.dtype.is_quantized or self.dtype.name == "bfloat16":
            raise BufferError(f"DLPack through NumPy has no {self.dtype.name}")
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        if not self.is_host:
            raise BufferError(f"{self.describe()} is in device memory; use numpy() for a copy")
        return (1, 0)

    # -------------------------------------------------------------------------------------------------- shapes and operators

    def reshape(self, *shape: SupportsIndex | Sequence[int]) -> Tensor:
        """Same elements, another shape; one size may be -1. A view if the tensor is contiguous, else a copy node."""
        new = shape_tuple(shape[0] if len(shape) == 1 else shape)
        if -1 in new:
            known = math.prod(n for n in new if n != -1)
            if new.count(-1) > 1 or known == 0 or self.size % known:
                raise InvalidArgumentError(f"reshape: {self.describe()} cannot become {new}")
            new = tuple(self.size // known if n == -1 else n for n in new)
        ne = ne_of(new, "reshape")
        function = lib.ggml_reshape_4d if self.is_contiguous else lib.ggml_cont_4d
        return build("reshape", function, (self,), *ne, ndim=len(new))

    def transpose(self, *axes: SupportsIndex | Sequence[int] | None) -> Tensor:
        """A view with the axes in another order; axis ``i`` of the result is axis ``axes[i]`` of this tensor. Without axes the order is
        reversed, as in NumPy. (:func:`ggml_backend.permute` counts axes the way ggml does.)"""
        n = self.ndim
        if not axes or axes[0] is None:
            order = tuple(range(n))[::-1]
        else:
            order = shape_tuple(axes[0] if len(axes) == 1 else axes)
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
        return self if self.is_contiguous else build("cont", lib.ggml_cont, (self,))

    def astype(self, dtype: DTypeLike) -> Tensor:
        """A node of another dtype."""
        element = as_dtype(dtype)
        return self if element.id == self.dtype.id else build("cast", lib.ggml_cast, (self,), element.id)

    def __getitem__(self, index: Any) -> Tensor:
        """Integers, slices, ``...`` and ``None`` as in NumPy: a view. Where ggml cannot express the view (a step or an integer on the
        last axis) a copy node follows it. Index arrays: see :func:`ggml_backend.get_rows`."""
        return _index(self, index)

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise TypeError("len() of a tensor without axes")
        return shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __add__(self, other: TensorLike) -> Tensor:
        return _binary("add", lib.ggml_add, self, other, commutes=True)

    __radd__ = __add__

    def __mul__(self, other: TensorLike) -> Tensor:
        if isinstance(other, (int, float)) and not isinstance(other, bool):
            return build("scale", lib.ggml_scale, (self,), other)
        return _binary("mul", lib.ggml_mul, self, other, commutes=True)

    __rmul__ = __mul__

    def __sub__(self, other: TensorLike) -> Tensor:
        return _binary("sub", lib.ggml_sub, self, other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        if isinstance(other, (int, float)):
            return -self + other
        return _binary("sub", lib.ggml_sub, other, self)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return _binary("div", lib.ggml_div, self, other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return _binary("div", lib.ggml_div, other, self)

    def __neg__(self) -> Tensor:
        return build("neg", lib.ggml_neg, (self,))

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return build("abs", lib.ggml_abs, (self,))

    def __pow__(self, exponent: float) -> Tensor:
        if exponent == 2:
            return build("sqr", lib.ggml_sqr, (self,))
        if exponent == 0.5:
            return build("sqrt", lib.ggml_sqrt, (self,))
        return NotImplemented

    def __matmul__(self, other: TensorLike) -> Tensor:
        """The matrix product as in NumPy. ``x @ w.T`` costs no transposition: it is ``mul_mat(w, x)``."""
        return _matmul(self, _coerce(other, self, "matmul"))

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return _matmul(_coerce(other, self, "matmul"), self)

    def __bool__(self) -> bool:
        raise TypeError("a tensor has no truth value: its data is known only after its graph has run")

    def __eq__(self, other: object) -> bool:
        """Is it the same tensor? (Not a comparison of elements.)"""
        return isinstance(other, Tensor) and bool(self._p == other._p)

    def __hash__(self) -> int:
        return hash(self._p)

    def describe(self) -> str:
        """``'w' float32 (64, 128)``, for messages."""
        if self._ctx._core is None:
            return "a tensor of a closed context"
        name = self.name
        return f"{name!r} {self.dtype.name} {self.shape}" if name else f"{self.dtype.name} {self.shape}"

    def __repr__(self) -> str:
        if self._ctx._core is None:
            return "<Tensor closed>"
        how = "" if self.op == "NONE" else f" = {self.op}"
        where = f" on {self.location}" if self.location else ""
        return f"<Tensor {self.describe()}{how}{where}>"


# ------------------------------------------------------------------------------------------------------ what operators mean


def _coerce(value: Any, like: Tensor, op: str) -> Tensor:
    """A number or array as a constant in the context of ``like``."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (bool, str, bytes)) or value is None:
        raise TypeError(f"{op}: cannot take {type(value).__name__}")
    if isinstance(value, (int, float)):
        return like._ctx.constant(float(value), float32)
    if isinstance(value, (np.ndarray, np.generic)):
        return like._ctx.constant(value)
    if isinstance(value, (list, tuple)):
        return like._ctx.constant(value, like.dtype if not like.dtype.is_quantized else None)
    raise TypeError(f"{op}: cannot take {type(value).__name__}")


def _broadcast_shape(op: str, a: Tensor, b: Tensor) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise InvalidArgumentError(f"{op}: {describe('a', a)} and {describe('b', b)} do not broadcast") from None


def repeat_to(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Tiles a tensor to a shape of which its own sizes are divisors."""
    pool = newest("repeat", (tensor,))
    return build("repeat", lib.ggml_repeat, (tensor,), pool._template(shape, "repeat"), ndim=len(shape))


def _binary(op: str, function: Any, a: Any, b: Any, commutes: bool = False) -> Tensor:
    """ggml repeats b over a only; where NumPy would repeat a, the operands change places or a is repeated first."""
    if not isinstance(a, Tensor):
        a = _coerce(a, b, op)
    elif not isinstance(b, Tensor):
        b = _coerce(b, a, op)
    shape = _broadcast_shape(op, a, b)
    if a.ne != ne_tuple(shape):
        if commutes and b.ne == ne_tuple(shape):
            a, b = b, a
        else:
            a = repeat_to(a, shape)
    return build(op, function, (a, b), ndim=len(shape))


def ne_tuple(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[::-1] + (1,) * (MAX_DIMS - len(shape))


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b: ggml multiplies rows by rows, mul_mat(B, A) = A B^T, so B is the transposed b."""
    n_a, n_b = a.ndim, b.ndim
    if n_a == 0 or n_b == 0:
        raise InvalidArgumentError(f"matmul: {describe('a', a)}, {describe('b', b)}: needs at least one axis")
    inner = b.shape[-2] if n_b > 1 else b.shape[0]
    if a.shape[-1] != inner and n_b == 2 and b.op == "TRANSPOSE":
        return build("mul_mat", lib.ggml_mul_mat, (b.sources[0], a))  # says why not, in terms of what was transposed
    if a.shape[-1] != inner:
        raise InvalidArgumentError(
            f"matmul: {describe('a', a)}, {describe('b', b)}: the last axis of a and the "
            f"{'last but one' if n_b > 1 else 'only'} axis of b differ"
        )
    if n_b == 1:
        rows = b
    elif b.op == "TRANSPOSE" or (b.op == "PERMUTE" and b.nb[1] == b.dtype.itemsize):
        source = b.sources[0]
        rows = source if b.op == "TRANSPOSE" else b.swapaxes(-1, -2)
        rows = rows if rows.nb[0] == rows.dtype.itemsize and rows.nb[0] <= rows.nb[1] else rows.contiguous()
    else:
        rows = b.swapaxes(-1, -2)
        rows = build("cont", lib.ggml_cont, (rows,))
    if a.nb[0] != a.dtype.itemsize:
        a = build("cont", lib.ggml_cont, (a,))
    batch_a, batch_b = a.shape[:-2], b.shape[:-2]
    try:
        batch = np.broadcast_shapes(batch_a, batch_b)
    except ValueError:
        raise InvalidArgumentError(f"matmul: {describe('a', a)}, {describe('b', b)}: the batch axes do not broadcast") from None
    if n_a == 1 and n_b > 2:
        a = a.reshape(*(1,) * (n_b - 1), a.shape[0])
        batch_a = a.shape[:-2]
    if math.prod(batch_a) != math.prod(batch):
        a = repeat_to(a, (*batch, *a.shape[-2:]))
    ndim = len(batch) + (n_a > 1) + (n_b > 1)
    y = build("mul_mat", lib.ggml_mul_mat, (rows, a), ndim=ndim)
    if n_b == 1 and n_a > 1:
        return y.reshape(*batch, a.shape[-2])
    if n_a == 1 and n_b > 2:
        return y.reshape(*batch, b.shape[-1])
    return y


def _index(t: Tensor, index: Any) -> Tensor:
    items = index if isinstance(index, tuple) else (index,)
    shape, strides = list(t.shape), list(t.strides)
    item_bytes = t.dtype.itemsize
    used = sum(1 for i in items if i is not None and i is not ...)
    if used > len(shape):
        raise InvalidArgumentError(f"index: too many indices for {t.describe()}")
    if sum(1 for i in items if i is ...) > 1:
        raise InvalidArgumentError("index: only one ... is possible")
    if not any(i is ... for i in items):
        items = (*items, ...)
    new_shape: list[int] = []
    new_strides: list[int] = []
    offset = 0
    axis = 0
    for item in items:
        if item is None:
            new_shape.append(1)
            new_strides.append(0)
            continue
        if item is ...:
            rest = len(shape) - used
            new_shape += shape[axis : axis + rest]
            new_strides += strides[axis : axis + rest]
            axis += rest
            continue
        n, stride = shape[axis], strides[axis]
        last_quantized = t.dtype.is_quantized and axis == len(shape) - 1
        if isinstance(item, slice):
            start, stop, step = item.indices(n)
            if step < 0:
                raise InvalidArgumentError(f"index: a negative step is not possible ({t.describe()})")
            count = max(0, -(-(stop - start) // step))
            if last_quantized and (start, count) != (0, n):
                raise InvalidArgumentError(f"index: blocks of {t.dtype.name} cannot be cut")
            offset += start * stride if count else 0
            new_shape.append(count)
            new_strides.append(stride * step)
        else:
            try:
                position = operator.index(item)
            except TypeError:
                raise TypeError(
                    f"a tensor is indexed by integers, slices, ... and None, not by {type(item).__name__}; see get_rows"
                ) from None
            if not -n <= position < n or last_quantized:
                raise IndexError(f"index {position} is out of range for axis {axis} of {t.describe()}")
            offset += (position % n) * stride
        axis += 1
    return _strided_view(t, new_shape, new_strides, offset, item_bytes)


def _strided_view(t: Tensor, shape: list[int], strides: list[int], offset: int, item_bytes: int) -> Tensor:
    """ggml views have adjacent elements on the last axis; others get an extra axis, and are then copied together."""
    direct = not shape or strides[-1] == item_bytes or shape[-1] == 1
    if direct:
        if shape and shape[-1] == 1:
            strides = [*strides[:-1], item_bytes]
        return raw_view("index", t, shape or [1], strides or [item_bytes], offset, ndim=len(shape))
    if len(shape) == MAX_DIMS:
        keep = [i for i, n in enumerate(shape) if n != 1]
        if len(keep) == MAX_DIMS:
            raise InvalidArgumentError(f"index: a step on the last axis of {t.describe()} would take five dimensions")
        packed_shape, packed_strides = [shape[i] for i in keep], [strides[i] for i in keep]
    else:
        packed_shape, packed_strides = shape, strides
    view = raw_view("index", t, [*packed_shape, 1], [*packed_strides, item_bytes], offset, ndim=len(packed_shape) + 1)
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
    return build(op, function, (t,), *[ne[i] for i in range(n)], *nb, offset, ndim=n if ndim is None else ndim)
