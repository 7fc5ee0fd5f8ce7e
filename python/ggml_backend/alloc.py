"""Placing tensors by hand: one by one in a buffer, or those of a graph with their memory reused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._errors import InvalidArgumentError, StateError, check, expect, non_null, raise_last
from ._ffi import ffi, lib
from ._handles import Core, Handle, calling, reap
from .backend import Backend
from .buffer import Buffer, BufferType
from .graph import Graph, GraphCore
from .tensor import Tensor

__all__ = ["GraphAllocator", "TensorAllocator"]


def _buffer_type(target: Backend | BufferType, what: str) -> BufferType:
    if type(target) is not BufferType:
        expect(target, Backend, what)
    return target.buffer_type if isinstance(target, Backend) else target


class _TallocrCore(Core):
    __slots__ = ()

    def __init__(self, ptr: Any, parents: tuple[Core, ...]) -> None:
        super().__init__(ptr, parents, calling(lib.ggml_tallocr_free, ptr))


class TensorAllocator(Handle):
    """Places tensors, one by one, in one buffer: in the best-fitting free block.

    target: a :class:`Buffer`; or a backend or buffer type, on which ``size`` bytes are allocated
    measure: with a backend or buffer type: place nothing, only find out how much is needed (see ``max_size``)
    """

    __slots__ = ("__weakref__", "_buffer", "_core")

    def __init__(self, target: Backend | BufferType | Buffer, size: int | None = None, *, measure: bool = False) -> None:
        self._core: _TallocrCore | None = None
        self._buffer: Buffer | None = None
        if measure:
            if isinstance(target, Buffer) or size is not None:
                raise InvalidArgumentError("TensorAllocator: to measure it takes a backend or buffer type, and no size")
            buft = _buffer_type(target, "TensorAllocator: target")
            pointer = non_null(lib.ggml_tallocr_new_measure_from_buft(buft._ptr), "TensorAllocator")
            self._core = _TallocrCore(pointer, (buft._parent,) if buft._parent is not None else ())
            return
        if not isinstance(target, Buffer):
            if size is None:
                raise InvalidArgumentError("TensorAllocator: needs a size, or a Buffer")
            target = _buffer_type(target, "TensorAllocator: target").alloc(size)
        elif size is not None:
            raise InvalidArgumentError("TensorAllocator: the size is that of the buffer")
        owner = target._live()
        pointer = non_null(lib.ggml_tallocr_new_from_buffer(owner.ptr), "TensorAllocator")
        self._core = _TallocrCore(pointer, (owner,))
        self._buffer = target

    def _live(self) -> _TallocrCore:
        if self._core is None:
            raise StateError("the allocator is closed")
        return self._core

    @property
    def buffer(self) -> Buffer | None:
        """None for a measuring allocator."""
        self._live()
        return self._buffer

    @property
    def is_measure(self) -> bool:
        return self._buffer is None

    @property
    def max_size(self) -> int:
        """Bytes needed so far, at the highest, plus a tenth."""
        return int(lib.ggml_tallocr_max_size(self._live().ptr))

    def alloc(self, tensor: Tensor) -> Tensor:
        """Gives the tensor memory (when measuring: only counts). Raises :class:`AllocationError` when the buffer is
        full. Returns the tensor."""
        core = self._live()
        expect(tensor, Tensor, "TensorAllocator.alloc: tensor")
        pointer = tensor._live()
        context = tensor._ctx._live()
        if self._buffer is not None:
            context.add_buffer(self._buffer._live())
        with core.lock, context.lock:
            status = lib.ggml_tallocr_alloc(core.ptr, pointer)
        check(status, f"TensorAllocator.alloc({tensor.describe()})")
        return tensor

    def reset(self) -> None:
        """Forgets all placements: the buffer is used from the start again, also for what tensors still lie in."""
        core = self._live()
        with core.lock:
            check(lib.ggml_tallocr_reset(core.ptr), "TensorAllocator.reset")

    def close(self) -> None:
        """Ends its use. The buffer stays for the tensors in it."""
        self._core = None

    def __repr__(self) -> str:
        if self._core is None:
            return "<TensorAllocator closed>"
        return f"<TensorAllocator {'measuring' if self.is_measure else self._buffer!r} max_size={self.max_size}>"


class GraphAllocator(Handle):
    """Places the tensors of a graph in one buffer, reusing the memory of those no longer needed.

    target: backend or buffer type. The buffer is made, and made larger, as graphs need it.
    """

    __slots__ = ("__weakref__", "_buffer", "_buft", "_core", "_graph")

    def __init__(self, target: Backend | BufferType) -> None:
        self._buft = _buffer_type(target, "GraphAllocator: target")
        self._core: _GallocrCore | None = _GallocrCore(non_null(lib.ggml_gallocr_new(), "GraphAllocator"))
        self._buffer: Buffer | None = None
        self._graph: GraphCore | None = None

    def _live(self) -> _GallocrCore:
        if self._core is None:
            raise StateError("the allocator is closed")
        return self._core

    def set_order(self, order: Sequence[int] | None) -> None:
        """An execution order that is not that of the nodes: indices of nodes, with -1 as a barrier. Memory is reused only across barriers.
        None: the order of the nodes."""
        core = self._live()
        values = list(order or [])
        with core.lock:
            check(lib.ggml_gallocr_set_parse_seq(core.ptr, ffi.new("int[]", values), len(values)), "GraphAllocator.set_order")

    def measure(self, graph: Graph) -> int:
        """Bytes that the graph needs. Its tensors are left alone."""
        core = self._live()
        expect(graph, Graph, "GraphAllocator.measure: graph")
        graph_core = graph._live()
        measuring = TensorAllocator(self._buft, measure=True)._live()
        with core.lock:
            size = lib.ggml_gallocr_alloc_graph(core.ptr, measuring.ptr, graph_core.ptr)
            if size == 0 and lib.gbpy_graph_unplaced(graph_core.ptr):
                raise_last("GraphAllocator.measure")
        return int(size)

    def allocate(self, graph: Graph) -> Buffer | None:
        """Gives every tensor of the graph that has none memory. What this allocator placed before loses its place. Returns the buffer (None
        if the graph needs no memory). Raises :class:`AllocationError` when there is not enough."""
        reap()
        core = self._live()
        expect(graph, Graph, "GraphAllocator.allocate: graph")
        graph_core = graph._live()
        with core.lock:
            self._unplace()
            size = self.measure(graph)
            if size == 0:
                return None
            if self._buffer is None or self._buffer.closed or self._buffer.size < size or self._buffer._live().pinned():
                if self._buffer is not None:
                    self._buffer.close()
                self._buffer = self._buft.alloc(size)
            owner = self._buffer._live()
            owner.memory.scratch = True
            placing = TensorAllocator(self._buffer)._live()
            for c in graph_core.contexts():
                c.add_buffer(owner)
            if lib.ggml_gallocr_alloc_graph(core.ptr, placing.ptr, graph_core.ptr) == 0:
                raise_last("GraphAllocator.allocate")
            self._graph = graph_core
            for c in graph_core.contexts():
                c.upload_constants()
        return self._buffer

    def _unplace(self) -> None:
        if self._graph is not None and self._buffer is not None and not self._buffer.closed:
            self._buffer._live().unplace()
        self._graph = None

    @property
    def buffer(self) -> Buffer | None:
        return self._buffer

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return self._buffer.size if self._buffer is not None and not self._buffer.closed else 0

    def close(self) -> None:
        """Gives the buffer back: the tensors in it lose their place."""
        self._core = None
        self._graph = None
        if self._buffer is not None:
            self._buffer.close()

    def __repr__(self) -> str:
        return "<GraphAllocator closed>" if self._core is None else f"<GraphAllocator {self._buft.name} {self.size} bytes>"


class _GallocrCore(Core):
    __slots__ = ()

    def __init__(self, ptr: Any) -> None:
        super().__init__(ptr, (), calling(lib.ggml_gallocr_free, ptr))


