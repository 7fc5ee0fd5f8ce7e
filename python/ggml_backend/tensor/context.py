"""Contexts. A context holds tensors and graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NoReturn

import numpy as np

from .._base.errors import (
    AllocationError,
    InvalidArgumentError,
    StateError,
    check,
    expect,
    expect_bool,
    expect_int,
    expect_list,
    non_null,
    raise_last,
)
from .._base.errors.messages import UnknownKey, kind_of
from .._base.handles import ContextCore, Core, Handle, address, fail, new_handle
from .._base.mapped import watch_of
from .._base.renamed import Renamed, warn_of
from .._base.text import MAX_NAME, as_name, shorter
from .._ffi import ffi, lib
from ..backend.backend import Backend
from ..backend.buffer import Buffer, BufferCore, BufferType, Usage, cpu_buffer_type, usage_id
from ..dtypes import DType, DTypeLike, as_dtype, float32
from ._arrays import cast, contiguous, dtype_of_array, elements_of, elements_over, exact_array, is_array, take_array
from ._blocks import Blocks, rows_of
from ._build import DefaultContext, build
from ._exchange import not_shared, share
from ._shapes import MAX_DIMS, given_dtype, given_shape, ne_of, refuse_shape
from .graph import Graph, GraphCore
from .tensor import Tensor, add_largest

__all__ = ["Context", "from_dlpack"]

_SMALL_GRAPH = 64  # a graph grows as nodes are added
_set_ndim = lib.gbpy_set_ndim


class Context(Handle):
    """The pool that tensors and graphs live in. It grows as needed.

    mem_size: bytes to begin with, an estimate
    allocate: True allocates host memory for each new tensor in the context itself
    usage: ``"weights"`` for a context whose tensors are weights. :meth:`allocate` and :meth:`from_numpy` then
        use it by default. ``allocate(usage="weights")`` also makes a context a weight context.

    An operation may have sources from several contexts, for example weights in one and each graph in its
    own. Its result belongs to

    1. the context that ``with ctx.as_default():`` names;
    2. else the context that all sources share;
    3. else the context that all sources except the weights share.

    Otherwise an error asks you to name the context. Weights are the tensors of weight contexts, such as
    those that ``file.load`` makes, and tensors in weight buffers. The order in which contexts were made
    does not matter. The context of a result keeps the contexts of its sources alive. Two contexts cannot
    use tensors of each other.

    Several threads may use a context. They wait for each other.
    """

    __slots__ = ("__weakref__", "_core", "_shapes", "_writable")

    def __init__(
        self, mem_size: int = 0, *, allocate: bool = False, usage: Usage = "any", no_alloc: bool | None = None
    ) -> None:
        mem_size = expect_int(mem_size, "Context: mem_size")
        if mem_size < 0:
            raise InvalidArgumentError(f"Context: mem_size {mem_size} is negative")
        if mem_size >= 2**63:
            raise AllocationError(f"Context: {mem_size} bytes exceed the address space")
        if no_alloc is not None:
            warn_of("Context: no_alloc=False", "allocate=True")
            allocate = not expect_bool(no_alloc, "Context: no_alloc")
        allocate = expect_bool(allocate, "Context: allocate")
        of_weights = usage_id(usage) != 0
        h = new_handle()
        status = lib.gbpy_open_context(h, mem_size, not allocate)
        if status:
            fail(status, "Context")
        core = ContextCore(h)
        core.of_weights = of_weights
        self._hold(core)

    def _hold(self, core: ContextCore, writable: bool = True) -> None:
        self._core: ContextCore | None = core
        self._writable = writable
        self._shapes: tuple[ContextCore, dict[tuple[int, ...], Any]] | None = None

    @staticmethod
    def _over(core: ContextCore) -> Context:
        """A read-only context of tensors that C made: the tensors of a copied graph."""
        context = Context.__new__(Context)
        context._hold(core, writable=False)
        return context

    def as_default(self) -> AbstractContextManager[Context]:
        """``with ctx.as_default():`` makes ``ctx`` the owner of everything built in the block.

        This covers results of operations, views, and constants that operators make of numbers and
        arrays. It applies to this thread or asyncio task. It does not close ``ctx``.
        """
        self._building("Context.as_default")
        return DefaultContext(self)

    def _counts(self, tensor: Tensor) -> bool:
        """True if this tensor decides which context a result belongs to; weights do not."""
        core, source = self._live(), tensor._p.view_src
        held = core.of_weights or (core.weights and address(source or tensor._p) in core.weights)
        return self._writable and not held

    def _usage(self, usage: Usage | None) -> Usage:
        """The default usage for the memory of its tensors."""
        return usage if usage is not None else "weights" if self._live().of_weights else "any"

    def _building(self, what: str) -> ContextCore:
        """The core. Raises if nothing can be built in the context."""
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
        size = given_shape(shape)
        return self._tensor(size, given_dtype(dtype, size), name, "Context.tensor")

    def _tensor(self, size: tuple[int, ...], element: DType, name: str | None, what: str) -> Tensor:
        """A new tensor without memory. ``what`` names the called function in messages."""
        core = self._live()
        ne = ne_of(size, what)
        label = None if name is None else as_name(name, what)
        pointer = lib.ggml_new_tensor(core.ptr, element.id, MAX_DIMS, ne)
        if not pointer:
            if not self._writable:
                raise StateError(f"{what}: the copy of a graph cannot be built on")
            refuse_shape(what, size, element)
            raise_last(f"{what}({size}, {element.name})" if what == "Context.tensor" else what)
        if label is not None:
            lib.ggml_set_name(pointer, label)
        _set_ndim(pointer, len(size))
        return Tensor(self, pointer, core.h)

    def from_numpy(
        self, array: Any, name: str | None = None, usage: Usage | None = None, *, dtype: DTypeLike | None = None
    ) -> Tensor:
        """A tensor over the memory of a C-contiguous array (or memory map), without a copy.

        The array is NumPy's, or of a library that NumPy can read without a copy: PyTorch, JAX
        (read-only), the buffer protocol. The tensor keeps the array alive. :meth:`from_dlpack` also takes
        arrays with gaps.

        array: for :class:`Blocks` (``gb.quantize(array, "q4_k")``) the tensor has the format and the shape of
            the elements
        dtype: the format of a uint8 array that holds the bytes of blocks, ``(..., bytes of a row)``, or
            bfloat16 for an array of uint16 bits. An array of another dtype must have this dtype.
        """
        what = "Context.from_numpy"
        if name is not None:
            as_name(name, what)
        source, element, shape = _memory_of(array, dtype, what)
        if source.ndim > MAX_DIMS:
            ne_of(source.shape, what)
        if not source.flags.c_contiguous:
            raise InvalidArgumentError(
                "Context.from_numpy: the array is not C-contiguous; np.ascontiguousarray(array) is, and"
                " ctx.from_dlpack(array) takes it as it is"
            )
        if source.size == 0:
            raise InvalidArgumentError(
                f"Context.from_numpy: the array of shape {source.shape} is empty: there is no memory to use"
            )
        buffer = Buffer.from_array(source, self._usage(usage))
        tensor = self._tensor(shape, element, name, what)
        if tensor._p.data:
            raise StateError(
                "Context.from_numpy: with allocate=True each tensor of the context gets memory of its own; use"
                " gb.Context()"
            )
        return buffer.place(tensor)

    def from_dlpack(
        self, x: Any, name: str | None = None, usage: Usage | None = None, *, copy: bool | None = False
    ) -> Tensor:
        """A tensor over the memory of an array of another library, without a copy.

        It takes every object with ``__dlpack__`` (NumPy, PyTorch, JAX, CuPy, tensors of other contexts),
        ``__array_interface__`` or the buffer protocol.

        The tensor has the array's shape and dtype: float32, float16, bfloat16, float64, int8, int16, int32
        or int64. The memory lives until array and tensor are both gone. The tensor of a read-only array is
        read-only: it can be computed with, and ``set`` raises :class:`StateError`. An array whose
        library cannot say that it is writable (JAX) counts as read-only. For an array with gaps or in
        another order, the tensor is a view.

        copy: False: raise :class:`InvalidArgumentError` rather than copy. This happens for device memory and
            for layouts that no tensor has: negative strides, four axes with gaps in each, addresses that
            are not aligned to an element. None: copy those. True: always copy, into own, writable
            memory.
        """
        core = self._live()
        label = None if name is None else as_name(name, "from_dlpack")
        usage = self._usage(usage)
        number = usage_id(usage)
        if isinstance(x, Blocks) and x.format is not None:
            return self.from_numpy(x.copy() if copy else x, name, usage)
        if copy is None or not expect_bool(copy, "from_dlpack: copy"):
            pointer = share(core.h, x, label, number, copy)
            if pointer is not None:
                self._live()  # code of the array may have closed it
                if number:
                    core.weights.add(address(pointer))
                return Tensor(self, pointer, core.h)
            if copy is False:
                not_shared()
        return self._copied(*elements_over(*take_array(x, copy=True)), name, usage)

    def _copied(self, array: np.ndarray[Any, Any], element: DType, name: str | None, usage: Usage) -> Tensor:
        """A tensor with its own host memory, and a copy of an array's elements (bfloat16: of the bits)."""
        tensor = self._tensor(array.shape, element, name, "from_dlpack")
        if not tensor._p.data:
            buft = cpu_buffer_type()
            buft.allocate(max(buft.nbytes_for(tensor), 1), usage).place(tensor)
        return tensor.set(array)

    def constant(self, value: Any, dtype: DTypeLike | None = None, name: str | None = None) -> Tensor:
        """A tensor with a fixed value: a number, a list, or an array of any library.

        The value is written when the tensor gets memory, and again when its buffer is cleared. So
        constants work on any backend. Nothing else writes to them. Python floats become float32.

        value: :class:`Blocks` (``gb.quantize(array, "q4_k")``) make a tensor of their format, with the shape of
            the elements
        dtype: dtype for a number or a list. An array must already have it. For a uint8 array with the bytes
            of blocks, ``(..., bytes of a row)``: the format of these blocks.
        """
        core = self._live()
        if name is not None:
            as_name(name, "Context.constant")
        array, element, shape = _constant_of(value, dtype)
        tensor = self._tensor(shape, element, name, "Context.constant")
        lib.ggml_set_input(tensor._p)
        lib.ggml_set_output(tensor._p)
        whole = contiguous(array)
        known = watch_of(whole)  # noqa: F841  while it lives, C knows the mapped file of the data
        pointer, data = tensor._live(), whole.tobytes()
        source = ffi.from_buffer(whole.reshape(-1).view(np.uint8)) if whole.size else ffi.NULL
        status = lib.gbpy_set_constant(core.h, pointer, data, len(data), source)
        if status:
            fail(status, "constant")
        return tensor

    def allocate(self, backend: Backend | BufferType, usage: Usage | None = None) -> Buffer:
        """Allocates memory on ``backend`` for every tensor that has none, in one buffer.

        The context keeps the buffer alive. Constants are written.

        usage: ``"weights"`` for data that operations should run next to. The context is then a weight
            context. ``"any"`` for other data. Default: the usage of the context.

        A device that reads files itself (ranks of a cluster) reads constants over a mapped file from its
        own copy of that file. It raises :class:`FileError` if its copy differs.

        Raises :class:`AllocationError` if memory is insufficient. Tensors are then unchanged.
        """
        core = self._live()
        number = usage_id(self._usage(usage))
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
            self._refuse_allocation(status)
        core.of_weights = core.of_weights or usage == "weights"
        return Buffer(BufferCore(h))

    def _refuse_allocation(self, status: int) -> NoReturn:
        """Raises an error that names the largest tensor, because its shape may be wrong."""
        try:
            fail(status, "Context.allocate")
        except AllocationError as error:
            add_largest(error, self.tensors())
            raise

    def graph(
        self,
        *outputs: Tensor | Sequence[Tensor],
        keep: Tensor | Sequence[Tensor] = (),
        keep_inputs: bool = True,
        first: Sequence[Tensor] = (),
    ) -> Graph:
        """The graph that computes these tensors. They become outputs: you can read them after a run.

        outputs: tensors, or one list of tensors
        keep: one or several intermediate results that you can read after a run. Memory of other
            intermediate results is reused during the run, and reading them raises :class:`StateError`.
        keep_inputs: True: input tensors that the graph allocates keep their data between runs. False: a
            scheduler may reuse their memory after their last use. Set them before every run.
        first: tensors that the graph computes in this order, with what they need, before all others.
            Backends can compute neighbouring nodes together. Default: the order follows from the outputs.
        """
        core = self._building("Context.graph")
        tensors = _outputs_of(outputs)
        if not isinstance(keep, (list, tuple)):
            keep = list(keep) if isinstance(keep, Iterable) and not isinstance(keep, (Tensor, str)) else [keep]
        for t in keep:
            expect(t, Tensor, "Context.graph: keep: each")
        first = expect_list(first, "Context.graph: first", "tensors")
        for t in first:
            expect(t, Tensor, "Context.graph: first: each")
        for t in (*first, *tensors, *keep):
            other = t._ctx._core
            if other is None:
                raise StateError("Context.graph: the context of an output is closed")
            core.note_listed(other)
        size = max(_SMALL_GRAPH, 2 * len(tensors))
        pointer = non_null(lib.ggml_new_graph_custom(core.ptr, size, False), "Context.graph")
        for t in first:
            check(lib.ggml_build_forward_expand(pointer, t._live()), "Context.graph")
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
        """A view, in this context, of a whole tensor of another context.

        Results of operations on the view alone belong to this context, too. Use it for short-lived
        graphs over long-lived memory, such as a cache of keys and values. Slices of the cache itself
        would live as long as the cache. The other context must not use tensors of this one.
        """
        core, (other, pointer) = self._building("Context.view"), _of(tensor, "Context.view")
        core.adopt(other, "Context.view")
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
        """The first tensor with this name; None if the context has none."""
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
    def used_nbytes(self) -> int:
        """Bytes of the context itself, without the memory of its tensors."""
        return sum(int(lib.ggml_used_mem(pool)) for pool in self._live().pools())

    used_bytes: ClassVar[Renamed] = Renamed("used_nbytes")

    def close(self) -> None:
        """Closes the context. Its tensors and graphs then raise :class:`StateError`.

        Arrays and running schedulers keep what they need. Closing twice is fine.
        """
        self._core = None
        self._shapes = None

    def _transposed(self, tensor: Tensor) -> Tensor:
        """The transposed view of a matrix, made once, because many graphs use the same ``w.T``."""
        core = self._live()
        if (other := tensor._ctx._live()) is not core:
            core.adopt(other, "transpose")
        key = address(tensor._p)
        found = core.transposed.get(key)
        if found is None:
            found = core.transposed[key] = build("transpose", lib.ggml_transpose, (tensor,), ndim=2, pool=self)._p
        return Tensor(self, found, core.h)

    def _template(self, shape: tuple[int, ...], what: str) -> Any:
        """A tensor that passes a shape to a builder. Outside this context, so it never gets memory."""
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
    """The output tensors of a graph."""
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
    """A NumPy array of Python numbers as float32 or int32."""
    if array.dtype.kind == "f":
        narrow = cast(array, np.float32)
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


def _memory_of(value: Any, dtype: DTypeLike | None, what: str) -> tuple[np.ndarray[Any, Any], DType, tuple[int, ...]]:
    """The array that provides the memory of a new tensor, with the tensor's dtype and shape."""
    blocks = rows_of(value, dtype, what)
    if blocks is not None:
        return blocks
    source, element = elements_of(value, what)
    if dtype is not None:
        element = as_dtype(dtype, what)
        source = exact_array(value, element, f"{what}: {element.name}")
    return source, dtype_of_array(source, what) if element is None else element, source.shape


def _constant_of(value: Any, dtype: DTypeLike | None) -> tuple[np.ndarray[Any, Any], DType, tuple[int, ...]]:
    """The array, the dtype and the shape of a constant."""
    blocks = rows_of(value, dtype, "Context.constant")
    if blocks is not None:
        return blocks
    if dtype is not None:
        element = as_dtype(dtype, "Context.constant")
        array = exact_array(value, element, f"Context.constant: {element.name}")
    else:
        array, found = elements_of(value, "Context.constant")
        if found is not None:
            return array, found, array.shape
        if array.dtype.kind == "O" and isinstance(value, int):
            raise InvalidArgumentError(f"Context.constant: {value:.4g} does not fit into int64; say dtype='float32'")
        if array.dtype.kind not in "biuf":
            raise InvalidArgumentError(f"Context.constant: takes numbers, not {value!r:.60}")
        if not is_array(value):
            array = _narrowed(array)
        element = dtype_of_array(array, "Context.constant")
    return array, element, array.shape


def from_dlpack(x: Any, name: str | None = None, usage: Usage = "any", *, copy: bool | None = False) -> Tensor:
    """:meth:`Context.from_dlpack` in a new context, which the tensor keeps alive.

    Use it for tensors that graphs of several contexts share, such as weights. For many small arrays, use
    one context: each context costs more memory than a small array.
    """
    usage_id(usage)
    context = Context(usage="weights")
    return context.from_dlpack(x, name, usage, copy=copy)
