"""Allocators: place single tensors in a buffer, or all tensors of a graph with reuse of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from .._base.errors import InvalidArgumentError, StateError, check, expect, expect_bool, expect_int, expect_list
from .._base.handles import Core, Handle, fail, new_handle, use
from .._base.renamed import Renamed
from .._ffi import ffi, lib
from ..backend.backend import Backend
from ..backend.buffer import Buffer, BufferType
from ..tensor.graph import Graph, GraphCore
from ..tensor.tensor import Tensor

__all__ = ["GraphAllocator", "TensorAllocator"]


def _buffer_type(target: Backend | BufferType, what: str) -> BufferType:
    if type(target) is not BufferType:
        expect(target, Backend, what)
    return target.buffer_type if isinstance(target, Backend) else target


class _TallocrCore(Core):
    __slots__ = ()

    def __init__(self, buffer: Core | None, target: BufferType | None) -> None:
        h = new_handle()
        parent = target._parent if target is not None else None
        status = lib.gbpy_open_tallocr(
            h,
            buffer.h if buffer is not None else ffi.NULL,
            target._ptr if target is not None else ffi.NULL,
            parent.h if parent is not None else ffi.NULL,
        )
        if status:
            fail(status, "TensorAllocator")
        super().__init__(h, "struct ggml_tallocr *", (buffer,) if buffer is not None else ())


class TensorAllocator(Handle):
    """Places single tensors in one buffer, each in the best-fitting free block.

    target: a :class:`Buffer`; or a backend or buffer type, on which ``size`` bytes are allocated
    measure: with a backend or buffer type: only count the bytes, without placing (see
        ``max_nbytes``)
    """

    __slots__ = ("__weakref__", "_buffer", "_core")

    def __init__(
        self, target: Backend | BufferType | Buffer, size: int | None = None, *, measure: bool = False
    ) -> None:
        self._core: _TallocrCore | None = None
        self._buffer: Buffer | None = None
        if expect_bool(measure, "TensorAllocator: measure"):
            if isinstance(target, Buffer) or size is not None:
                raise InvalidArgumentError("TensorAllocator: measure=True needs a backend or buffer type, and no size")
            self._core = _TallocrCore(None, _buffer_type(target, "TensorAllocator: target"))
            return
        if not isinstance(target, Buffer):
            kind = _buffer_type(target, "TensorAllocator: target")
            if size is None:
                raise InvalidArgumentError("TensorAllocator: needs a size, or a Buffer")
            target = kind.allocate(expect_int(size, "TensorAllocator: size"))
        elif size is not None:
            raise InvalidArgumentError("TensorAllocator: size is not for a Buffer, which has its own size")
        self._core = _TallocrCore(target._live(), None)
        self._buffer = target

    def _live(self) -> _TallocrCore:
        core = self._core  # once: another thread may close it meanwhile
        if core is None:
            raise StateError("the allocator is closed")
        return core

    @property
    def buffer(self) -> Buffer | None:
        """The buffer; None for a measuring allocator."""
        self._live()
        return self._buffer

    @property
    def is_measure(self) -> bool:
        return self._buffer is None

    @property
    def max_nbytes(self) -> int:
        """The most bytes needed so far, plus a tenth."""
        core = self._live()
        return int(lib.ggml_tallocr_max_size(core.ptr))

    def allocate(self, tensor: Tensor) -> Tensor:
        """Allocates memory for the tensor, or only counts it. Returns the tensor. Raises
        :class:`AllocationError` if the buffer is full."""
        core = self._live()
        expect(tensor, Tensor, "TensorAllocator.allocate: tensor")
        pointer = tensor._live()
        buffer = self._buffer._live() if self._buffer is not None else None
        status = lib.gbpy_tallocr_alloc(core.h, buffer.h if buffer is not None else ffi.NULL, tensor._k, pointer)
        if status:
            fail(status, f"TensorAllocator.allocate({tensor.describe()})")
        return tensor

    alloc: ClassVar[Renamed] = Renamed("allocate")
    max_size: ClassVar[Renamed] = Renamed("max_nbytes")

    def reset(self) -> None:
        """Forgets all placements. The buffer is reused from the start, although earlier tensors still
        point to it."""
        core = self._live()
        with use("TensorAllocator.reset", core):
            check(lib.ggml_tallocr_reset(core.ptr), "TensorAllocator.reset")

    def close(self) -> None:
        """Ends the allocator. The buffer stays for the tensors in it."""
        self._core = None

    def __repr__(self) -> str:
        core = self._core
        if core is None:
            return "<TensorAllocator closed>"
        return (
            f"<TensorAllocator {'measuring' if self.is_measure else self._buffer!r}"
            f" max_nbytes={int(lib.ggml_tallocr_max_size(core.ptr))}>"
        )


class GraphAllocator(Handle):
    """Places the tensors of a graph in one buffer, and reuses the memory of tensors that are no longer
    needed.

    target: backend or buffer type. The buffer grows with the graphs.
    """

    __slots__ = ("__weakref__", "_buffer", "_buft", "_core", "_graph")

    def __init__(self, target: Backend | BufferType) -> None:
        self._buft = _buffer_type(target, "GraphAllocator: target")
        self._core: _GallocrCore | None = _GallocrCore()
        self._buffer: Buffer | None = None
        self._graph: GraphCore | None = None  # keeps the memory of its tensors alive

    def _live(self) -> _GallocrCore:
        core = self._core  # once: another thread may close it meanwhile
        if core is None:
            raise StateError("the allocator is closed")
        return core

    def set_order(self, order: Sequence[int] | None) -> None:
        """An execution order other than that of the nodes: indices of nodes, with -1 as a barrier.
        Memory is reused only across barriers.
        None: the order of the nodes."""
        core = self._live()
        given = () if order is None else expect_list(order, "GraphAllocator.set_order: order", "ints")
        values = [expect_int(i, "GraphAllocator.set_order: each of order") for i in given]
        if any(not -1 <= i < 2**31 for i in values):
            raise InvalidArgumentError("GraphAllocator.set_order: each index must be that of a node, or -1")
        with use("GraphAllocator.set_order", core):
            check(
                lib.ggml_gallocr_set_parse_seq(core.ptr, ffi.new("int[]", values), len(values)),
                "GraphAllocator.set_order",
            )

    def measure(self, graph: Graph) -> int:
        """Bytes that the graph needs. Its tensors do not change."""
        core = self._live()
        expect(graph, Graph, "GraphAllocator.measure: graph")
        graph_core = graph._live()
        size = ffi.new("size_t *")
        status = lib.gbpy_gallocr_measure(core.h, self._buft._ptr, graph_core.h, size)
        if status:
            fail(status, "GraphAllocator.measure")
        return int(size[0])

    def allocate(self, graph: Graph) -> Buffer | None:
        """Gives memory to every tensor of the graph that has none. Earlier placements of this
        allocator end. Returns the buffer (None if the graph needs no memory). Raises
        :class:`AllocationError` if there is not enough.

        Results whose memory is reused within the graph cannot be read afterwards: ``ctx.graph(...,
        keep=[...])`` keeps them.
        """
        core = self._live()
        expect(graph, Graph, "GraphAllocator.allocate: graph")
        graph_core = graph._live()
        buffer = self._buffer
        if buffer is not None and not buffer.closed and self._graph is not None:
            self._forget(buffer)
        size = self.measure(graph)
        if size == 0:
            return None
        if buffer is None or not self._serves(buffer, size):
            if buffer is not None:
                buffer.close()
            buffer = self._buffer = self._buft.allocate(size)
        owner = buffer._live()
        self._graph = graph_core
        status = lib.gbpy_gallocr_alloc(core.h, owner.h, graph_core.h)
        if status:
            fail(status, "GraphAllocator.allocate")
        return buffer

    @staticmethod
    def _serves(buffer: Buffer, size: int) -> bool:
        """True if the buffer is large enough and no array uses it."""
        core = buffer._core
        return core is not None and not core.closed and buffer.nbytes >= size and not lib.gbpy_is_pinned(core.h)

    def _forget(self, buffer: Buffer) -> None:
        """Ends earlier placements."""
        owner = buffer._live()
        status = lib.gbpy_unplace_graph(owner.h)
        if status:
            fail(status, "GraphAllocator.allocate")
        self._graph = None

    @property
    def buffer(self) -> Buffer | None:
        return self._buffer

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self._buffer.nbytes if self._buffer is not None and not self._buffer.closed else 0

    size: ClassVar[Renamed] = Renamed("nbytes")

    def close(self) -> None:
        """Frees the buffer: the tensors in it lose their memory."""
        self._core = None
        self._graph = None
        if self._buffer is not None:
            self._buffer.close()

    def __repr__(self) -> str:
        return (
            "<GraphAllocator closed>"
            if self._core is None
            else f"<GraphAllocator {self._buft.name} {self.nbytes} bytes>"
        )


class _GallocrCore(Core):
    __slots__ = ()

    def __init__(self) -> None:
        h = new_handle()
        status = lib.gbpy_open_gallocr(h)
        if status:
            fail(status, "GraphAllocator")
        super().__init__(h, "struct ggml_gallocr *")
