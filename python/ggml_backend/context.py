"""Contexts: where tensors and graphs are made, and what holds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ._core.handles import ContextCore, Core, Handle, address, fail, new_handle
from ._data.arrays import contiguous, exact_array, is_array
from ._data.exchange import not_shared, share
from ._data.foreign import dtype_of_array, elements_of, elements_over, take_array
from ._data.shapes import MAX_DIMS, given_dtype, given_shape, ne_of, refuse_shape
from ._errors import (
    AllocationError,
    InvalidArgumentError,
    StateError,
    check,
    expect,
    expect_bool,
    expect_int,
    non_null,
    raise_last,
)
from ._errors.messages import UnknownKey, kind_of
from ._ffi import ffi, lib
from ._files.mapped import watch_of
from ._nodes.build import build
from ._text.names import MAX_NAME, as_name, shorter
from .backend import Backend
from .buffer import Buffer, BufferCore, BufferType, Usage, cpu_buffer_type, usage_id
from .dtypes import DType, DTypeLike, as_dtype, float32
from .graph import Graph, GraphCore
from .tensor import Tensor

__all__ = ["Context", "from_dlpack"]

_SMALL_GRAPH = 64  # a graph grows as nodes are added
_set_ndim = lib.gbpy_set_ndim


class Context(Handle):
    """The pool that tensors and graphs live in. It grows as needed.

    mem_size: bytes to begin with; only an estimate
    no_alloc: False gives each tensor memory in the context itself at once (host memory only)

    Tensors of one context may be used by operations with tensors of another (weights in one, each graph in its own):
    the result belongs to the one made last, which keeps the others alive. A context may be used by several threads;
    they wait for each other.
    """

    __slots__ = ("__weakref__", "_core", "_shapes", "_writable")

    def __init__(self, mem_size: int = 0, *, no_alloc: bool = True) -> None:
        mem_size = expect_int(mem_size, "Context: mem_size")
        if mem_size < 0:
            raise InvalidArgumentError(f"Context: mem_size {mem_size} is negative")
        if mem_size >= 2**63:
            raise AllocationError(f"Context: no memory has {mem_size} bytes")
        no_alloc = expect_bool(no_alloc, "Context: no_alloc")
        h = new_handle()
        status = lib.gbpy_open_context(h, mem_size, no_alloc)
        if status:
            fail(status, "Context")
        self._hold(ContextCore(h))

    def _hold(self, core: ContextCore, writable: bool = True) -> None:
        self._core: ContextCore | None = core
        self._writable = writable
        self._shapes: tuple[ContextCore, dict[tuple[int, ...], Any]] | None = None

    @staticmethod
    def _over(core: ContextCore) -> Context:
        """A context of tensors that C made, in which nothing can be built: those of a copied graph."""
        context = Context.__new__(Context)
        context._hold(core, writable=False)
        return context

    def _building(self, what: str) -> ContextCore:
        """The core, of a context in which something can be built."""
        core = self._live()
        if not self._writable:
            raise StateError(f"{what}: the copy of a graph cannot be built on")
        return core

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
        """A tensor over the memory of a C-contiguous array (or memory map) without a copy: NumPy's, or any that NumPy
        can see without one, those of PyTorch, JAX (read-only) and the buffer protocol among them. The array is kept
        alive. :meth:`from_dlpack` also takes arrays with gaps."""
        if name is not None:
            as_name(name, "Context.from_numpy")
        source, element = elements_of(array, "Context.from_numpy")
        dtype = dtype_of_array(source, "Context.from_numpy") if element is None else element
        if source.ndim > MAX_DIMS:
            ne_of(source.shape, "Context.from_numpy")
        if not source.flags.c_contiguous:
            raise InvalidArgumentError(
                "Context.from_numpy: the array is not C-contiguous; np.ascontiguousarray(array) is, and"
                " ctx.from_dlpack(array) takes it as it is"
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

    def from_dlpack(
        self, x: Any, name: str | None = None, usage: Usage = "any", *, copy: bool | None = False
    ) -> Tensor:
        """A tensor over the memory of an array of another library, without a copy: of whatever has ``__dlpack__``
        (NumPy, PyTorch, JAX, CuPy, tensors of other contexts), ``__array_interface__`` or the buffer protocol.

        The tensor has the array's shape and dtype: float32, float16, bfloat16, float64, int8, int16, int32 or int64.
        Its memory is kept, whoever goes first. What the array may not be written through, neither is the tensor: it can
        be computed with, and ``set`` raises :class:`StateError`. So it is with arrays whose library cannot say that
        they may be written (JAX). Of an array with gaps or in another order the tensor is a view.

        copy: False: raise :class:`InvalidArgumentError` rather than copy: for arrays that no tensor's elements lie like
            (negative strides; gaps within all of four axes; addresses that are no multiple of an element's size), and
            for memory of devices. None: copy those. True: copy always, into memory of its own that may be written.
        """
        core = self._live()
        label = None if name is None else as_name(name, "from_dlpack")
        number = usage_id(usage)
        if copy is None or not expect_bool(copy, "from_dlpack: copy"):
            pointer = share(core.h, x, label, number, copy)
            if pointer is not None:
                self._live()  # the array's own code may have closed it
                return Tensor(self, pointer, core.h)
            if copy is False:
                not_shared()
        return self._copied(*elements_over(*take_array(x, "from_dlpack", copy=True)), name, usage)

    def _copied(self, array: np.ndarray[Any, Any], element: DType, name: str | None, usage: Usage) -> Tensor:
        """A tensor with host memory of its own, and the elements of an array (of bfloat16: the bits)."""
        tensor = self.tensor(array.shape, element, name)
        if not tensor._p.data:
            buft = cpu_buffer_type()
            buft.alloc(max(buft.alloc_size(tensor), 1), usage).place(tensor)
        return tensor.set(array)

    def constant(self, value: Any, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
        """A tensor with a fixed value: a number, a list, or an array of any library. The value is written whenever the
        tensor is given memory, and again when its buffer is cleared, so it works on any backend; nothing else writes
        it. Python floats make float32."""
        core = self._live()
        if name is not None:
            as_name(name, "Context.constant")
        array, element = _constant_of(value, dtype)
        tensor = self.tensor(array.shape, element, name)
        lib.ggml_set_input(tensor._p)
        lib.ggml_set_output(tensor._p)
        whole = contiguous(array)
        known = watch_of(whole)  # noqa: F841  for so long C knows which mapped file it lies in
        pointer, data = tensor._live(), whole.tobytes()
        source = ffi.from_buffer(whole.reshape(-1).view(np.uint8)) if whole.size else ffi.NULL
        status = lib.gbpy_set_constant(core.h, pointer, data, len(data), source)
        if status:
            fail(status, "constant")
        return tensor

    def allocate(self, backend: Backend | BufferType, usage: Usage = "any") -> Buffer:
        """Gives every tensor that has none yet memory on ``backend``, in one buffer that the context keeps alive.

        usage: ``"weights"`` for data that operations should be run next to, ``"any"`` for the rest.

        Constants are written. A device that reads files itself (ranks of a cluster) reads those that were made from a
        mapped file, where it has that one; :class:`FileError` if its file is another one.

        Raises :class:`AllocationError` when there is not enough memory; then no tensor was touched.
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

    def graph(
        self, *outputs: Tensor | Sequence[Tensor], keep: Tensor | Sequence[Tensor] = (), keep_inputs: bool = True
    ) -> Graph:
        """The graph that computes these tensors. They become outputs: their memory can be read after the graph has run.

        outputs: tensors, or one list of them
        keep: a result in between that can be read, too, or several. Of others the memory is used again while the graph
            runs, and reading them raises :class:`StateError`
        keep_inputs: tensors without memory that the graph starts from keep theirs from one run to the next; False lets
            a scheduler use it again after their last use, so that they must be set before every run.
        """
        core = self._building("Context.graph")
        tensors = _outputs_of(outputs)
        if not isinstance(keep, (list, tuple)):
            keep = list(keep) if isinstance(keep, Iterable) and not isinstance(keep, (Tensor, str)) else [keep]
        for t in keep:
            expect(t, Tensor, "Context.graph: keep: each")
        for t in (*tensors, *keep):
            other = t._ctx._core
            if other is None:
                raise StateError("Context.graph: the context of an output is closed")
            core.adopt(other)
        size = max(_SMALL_GRAPH, 2 * len(tensors))
        pointer = non_null(lib.ggml_new_graph_custom(core.ptr, size, False), "Context.graph")
        for t in tensors:
            output = t._live()
            check(lib.ggml_build_forward_expand(pointer, output), "Context.graph")
            check(lib.ggml_set_output(output), "Context.graph")
        for t in keep:
            kept = t._live()
            before = pointer.n_nodes + pointer.n_leafs
            check(lib.ggml_build_forward_expand(pointer, kept), "Context.graph")
            if pointer.n_nodes + pointer.n_leafs != before:
                raise InvalidArgumentError(
                    f"Context.graph: keep: {t.describe()} is not computed on the way to the outputs; pass it as an"
                    " output"
                )
            check(lib.ggml_set_output(kept), "Context.graph")
        lib.gbpy_flag_leafs(pointer, expect_bool(keep_inputs, "Context.graph: keep_inputs"))
        return Graph(self, GraphCore(pointer, core), (*tensors, *keep))

    def view(self, tensor: Tensor) -> Tensor:
        """A view of all of a tensor of another context, which belongs to this one, as does then what is made of it
        alone.

        For graphs that come and go over memory that stays, a cache of keys and values, say: slices of the cache itself
        would stay as long as the cache does. The other context must be the older one.
        """
        core, (other, pointer) = self._building("Context.view"), _of(tensor, "Context.view")
        if other.serial > core.serial:
            raise InvalidArgumentError(f"Context.view: the context of {tensor.describe()} was made after this one")
        core.adopt(other)
        found = non_null(lib.ggml_view_tensor(core.ptr, pointer), "Context.view")
        lib.gbpy_set_ndim(found, lib.gbpy_ndim(pointer))
        return Tensor(self, found, core.h)

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order in which they were made."""
        core = self._live()
        found = []
        for pool in core.pools():
            pointer = lib.ggml_get_first_tensor(pool)
            while pointer:
                found.append(Tensor(self, pointer, core.h))
                pointer = lib.ggml_get_next_tensor(pool, pointer)
        return found

    def get(self, name: str) -> Tensor | None:
        """The first tensor of that name."""
        core = self._live()
        wanted = shorter(as_name(name, "Context.get"), MAX_NAME)
        for pool in core.pools():
            pointer = lib.ggml_get_tensor(pool, wanted)
            if pointer:
                return Tensor(self, pointer, core.h)
        return None

    def __getitem__(self, name: str) -> Tensor:
        found = self.get(name)
        if found is None:
            raise UnknownKey(name, [t.name for t in self.tensors()])
        return found

    @property
    def used_bytes(self) -> int:
        """Bytes that the context itself takes, without the memory of its tensors."""
        return sum(int(lib.ggml_used_mem(pool)) for pool in self._live().pools())

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

    def __repr__(self) -> str:
        core = self._core
        if core is None:
            return "<Context closed>"
        if not self._writable:
            return "<Context of a copied graph>"
        return f"<Context {int(lib.ggml_used_mem(core.ptr))} bytes used>"


def _outputs_of(given: tuple[Tensor | Sequence[Tensor], ...]) -> tuple[Tensor, ...]:
    """The tensors that a graph is made for."""
    first = given[0] if len(given) == 1 else None
    items: Sequence[Any] = first if isinstance(first, (list, tuple)) else given
    if not items:
        raise InvalidArgumentError("Context.graph: needs at least one tensor to compute")
    for item in items:
        if not isinstance(item, Tensor):
            raise TypeError(f"Context.graph: each output must be a Tensor, not {kind_of(item)}")
    return tuple(items)


def _of(tensor: Tensor, what: str) -> tuple[ContextCore, Any]:
    """A tensor's context and pointer."""
    expect(tensor, Tensor, f"{what}: tensor")
    return tensor._ctx._live(), tensor._live()


def _narrowed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What NumPy made of numbers of Python as float32 or int32."""
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            narrow = array.astype(np.float32)
        if (lost := np.isinf(narrow) & np.isfinite(array)).any():
            wide = array[lost].reshape(-1)[0]
            raise InvalidArgumentError(f"Context.constant: {wide} does not fit into float32; say dtype='float64'")
        return narrow
    if array.size and not -(2**31) <= int(array.min()) <= int(array.max()) < 2**31:
        wide = array.min() if array.min() < -(2**31) else array.max()
        raise InvalidArgumentError(
            f"Context.constant: {wide} does not fit into int32; say dtype='int64', or dtype='float32'"
        )
    return array.astype(np.int32)


def _constant_of(value: Any, dtype: DTypeLike | None) -> tuple[np.ndarray[Any, Any], DType]:
    """The array and the dtype of a constant."""
    if dtype is not None:
        element = as_dtype(dtype, "Context.constant")
        array = exact_array(value, element, f"Context.constant: {element.name}")
    else:
        array, found = elements_of(value, "Context.constant")
        if found is not None:
            return array, found
        if array.dtype.kind == "O" and isinstance(value, int):
            raise InvalidArgumentError(f"Context.constant: {value:.4g} does not fit into int64; say dtype='float32'")
        if array.dtype.kind not in "biuf":
            raise InvalidArgumentError(f"Context.constant: takes numbers, not {value!r:.60}")
        if not is_array(value):
            array = _narrowed(array)
        element = dtype_of_array(array, "Context.constant")
    return array, element


def from_dlpack(x: Any, name: str | None = None, usage: Usage = "any", *, copy: bool | None = False) -> Tensor:
    """:meth:`Context.from_dlpack` in a context of its own, which the tensor keeps: for what graphs of several contexts
    use, weights, say. A context for each of many small arrays would cost more than the arrays."""
    return Context().from_dlpack(x, name, usage, copy=copy)
