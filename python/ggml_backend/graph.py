"""Graphs: nodes in execution order; and :class:`Context`, which makes them."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._callbacks import Compare, CustomOp, Run, customs_of, raise_abort_errors, raise_kept
from ._data import read_device
from ._errors import InvalidArgumentError, StateError, check, expect, expect_int, non_null, raise_last
from ._ffi import ffi, lib
from ._handles import AGAIN, ContextCore, Core, OwnerCore, Use, buffers_of, find_owner, reap
from ._messages import kind_of
from ._tensor_base import name_bytes
from .backend import Backend, BackendCore
from .buffer import text
from .tensor import Tensor, TensorPool

__all__ = ["Comparison", "Context", "Graph"]

ABORTED: int = lib.GGML_STATUS_ABORTED
MOVED: int = lib.GBPY_MOVED


class GraphCore(Core):
    """A ``ggml_cgraph``; it lives in the memory of its context. ``parents``: all contexts whose tensors it uses."""

    __slots__ = ("customs", "held")

    def __init__(self, ptr: Any, context: ContextCore) -> None:
        super().__init__(ptr, context.family())
        self.customs: list[CustomOp] = customs_of(ptr)
        self.held: tuple[int, tuple[weakref.ref[OwnerCore], ...]] = (-1, ())  # an epoch, and the owners as of then

    def contexts(self) -> Iterator[ContextCore]:
        return (p for p in self.parents if isinstance(p, ContextCore))

    def hold(self) -> list[OwnerCore]:
        """Strong references to all buffers that the graph's tensors lie in, for the duration of a computation.

        StateError if one of them is being freed, or would be written to and is read-only.
        """
        return self.hold_at()[1]

    def hold_at(self) -> tuple[int, list[OwnerCore]]:
        """The same, and the epoch up to which nothing else is needed: who waits for a device afterwards has to look again."""
        epoch, refs = self.held
        if epoch == OwnerCore.epoch:
            found = [owner for ref in refs if (owner := ref()) is not None and not owner.closed]
            if len(found) == len(refs):
                return epoch, found
        epoch = OwnerCore.epoch = lib.gbpy_epoch()
        lost = lib.gbpy_graph_lost(self.ptr)
        if lost:
            raise StateError(f"the graph uses {text(lib.ggml_get_name(lost))!r}, whose memory was freed")
        held: dict[int, OwnerCore] = {}
        for b in buffers_of(self.ptr):
            owner = find_owner(b)
            if owner is None or owner.closed:
                raise StateError("the graph uses tensors in a buffer that is closed")
            held[id(owner)] = owner
            writer = lib.gbpy_graph_writer(self.ptr, b) if owner.readonly else None
            if writer:
                name, op = text(lib.ggml_get_name(writer)), text(lib.ggml_op_desc(writer))
                raise StateError(f"the node {name!r} ({op}) would write to a read-only buffer")
        self.held = (epoch, tuple([o.ref for o in held.values()]))
        return epoch, list(held.values())


class Context(TensorPool):
    """The pool that tensors and graphs live in. It grows as needed.

    mem_size: bytes to begin with; only an estimate
    no_alloc: False gives each tensor memory in the context itself at once (host memory only)

    Tensors of one context may be used by operations with tensors of another (weights in one, each graph in its own): the result belongs
    to the one made last, which keeps the others alive. A context may be used by several threads; they wait for each other.
    """

    __slots__ = ()

    def __init__(self, mem_size: int = 0, *, no_alloc: bool = True) -> None:
        reap()
        mem_size = expect_int(mem_size, "Context: mem_size")
        if mem_size < 0:
            raise InvalidArgumentError(f"Context: mem_size {mem_size} is negative")
        params = ffi.new("struct ggml_init_params *", {"mem_size": mem_size, "mem_buffer": ffi.NULL, "no_alloc": no_alloc})
        super().__init__(ContextCore(non_null(lib.ggml_init(params[0]), "Context")))

    def graph(self, *outputs: Tensor | Sequence[Tensor], keep_inputs: bool = True) -> Graph:
        """The graph that computes these tensors. They become outputs: their memory can be read after the graph has run.

        outputs: tensors, or one list of them
        keep_inputs: tensors without memory that the graph starts from keep theirs from one run to the next; False lets a scheduler
            use it again after their last use, so that they must be set before every run.
        """
        core = self._live()
        tensors = _outputs_of(outputs)
        for t in tensors:
            other = t._ctx._core
            if other is None:
                raise StateError("Context.graph: the context of an output is closed")
            core.adopt(other)
        with core.lock:
            pointer = non_null(lib.ggml_new_graph_custom(core.ptr, lib.GGML_DEFAULT_GRAPH_SIZE, False), "Context.graph")
            for t in tensors:
                check(lib.ggml_build_forward_expand(pointer, t._live()), "Context.graph")
                check(lib.ggml_set_output(t._live()), "Context.graph")
            lib.gbpy_flag_leafs(pointer, keep_inputs)
        return Graph(self, GraphCore(pointer, core), tensors)

    def view(self, tensor: Tensor) -> Tensor:
        """A view of all of a tensor of another context, which belongs to this one, as does then what is made of it alone.

        For graphs that come and go over memory that stays, a cache of keys and values, say: slices of the cache itself would stay as
        long as the cache does. The other context must be the older one.
        """
        core, (other, pointer) = self._live(), _of(tensor, "Context.view")
        if other.serial > core.serial:
            raise InvalidArgumentError(f"Context.view: the context of {tensor.describe()} was made after this one")
        core.adopt(other)
        with core.lock:
            found = non_null(lib.ggml_view_tensor(core.ptr, pointer), "Context.view")
        lib.gbpy_set_ndim(found, lib.gbpy_ndim(pointer))
        return Tensor(self, found)

    def __repr__(self) -> str:
        core = self._core
        if core is None:
            return "<Context closed>"
        return f"<Context {self.used_bytes} bytes used>"


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


@dataclass(frozen=True)
class Comparison:
    """One node computed by two backends."""

    index: int
    name: str
    op: str
    shape: tuple[int, ...]
    max_abs: float
    """Largest absolute difference; infinite if one side is NaN where the other is not."""
    nmse: float
    """Mean squared difference relative to the mean square of the first result."""
    equal: bool
    """Bit-identical (NaN counts as equal to NaN)."""


def _difference(index: int, pool: TensorPool, t1: Any, t2: Any) -> Comparison:
    tensor = Tensor(pool, t1)
    bf16 = tensor.dtype.name == "bfloat16"
    a, b = read_device(t1), read_device(t2)
    equal = a.tobytes() == b.tobytes() or (a.dtype.kind == "f" and bool(np.array_equal(a, b, equal_nan=True)))
    x, y = ((_bits(v) if bf16 else v).astype(np.float64) for v in (a, b))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    gap = np.where(np.isnan(gap), np.inf, gap)
    finite = np.isfinite(x)
    power = float(np.mean(np.square(x, where=finite, out=np.zeros_like(x)))) if x.size else 0.0
    error = float(np.mean(np.square(gap))) if x.size else 0.0
    return Comparison(
        index, tensor.name, tensor.op, tensor.shape, float(gap.max(initial=0.0)), error / power if power else error, equal
    )


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (array.astype(np.uint32) << 16).view(np.float32)


class Graph:
    """Nodes in execution order. Made by ``Context.graph``; the same graph may be run any number of times, by several backends or
    schedulers."""

    __slots__ = ("__weakref__", "_core", "_ctx", "_outputs")

    def __init__(self, ctx: TensorPool, core: GraphCore, outputs: tuple[Tensor, ...]) -> None:
        self._ctx = ctx
        self._core = core
        self._outputs = outputs

    def _live(self) -> GraphCore:
        if self._ctx._core is None:
            raise StateError("the context of the graph is closed")
        return self._core

    @property
    def context(self) -> TensorPool:
        return self._ctx

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors that it was made for."""
        self._live()
        return list(self._outputs)

    @property
    def nodes(self) -> list[Tensor]:
        """What is computed, in order."""
        g = self._live().ptr
        return [Tensor(self._ctx, g.nodes[i]) for i in range(g.n_nodes)]

    @property
    def leafs(self) -> list[Tensor]:
        """What it starts from: inputs, weights, constants."""
        g = self._live().ptr
        return [Tensor(self._ctx, g.leafs[i]) for i in range(g.n_leafs)]

    @property
    def n_nodes(self) -> int:
        return int(self._live().ptr.n_nodes)

    def __len__(self) -> int:
        return self.n_nodes

    def get(self, name: str) -> Tensor | None:
        """The node or leaf of that name."""
        pointer = lib.ggml_graph_get_tensor(self._live().ptr, name_bytes(name, "Graph.get: name"))
        return Tensor(self._ctx, pointer) if pointer else None

    def __getitem__(self, name: str) -> Tensor:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def compute(self, backend: Backend) -> bool:
        """Runs the graph on one backend, where all its tensors must have memory.

        Returns True; or False when :meth:`Backend.stop` or an abort callback ended it early.
        """
        device = backend._core if isinstance(backend, Backend) else None
        if device is None or self._ctx._core is None:
            expect(backend, Backend, "Graph.compute: backend")
            self._live()
            device = backend._live()
        if device.pending is not None and (pending := device.pending()) is not None:
            with pending.lock:
                pending.synchronize()
        core = self._core
        if core.customs or device.abort is not None:
            status = _compute_with_callbacks(core, device)
        else:
            status = MOVED
        while status == MOVED:  # by another thread, while this one waited for the device
            memory: Any = None
            epoch, refs = core.held
            if len(refs) == 1 and epoch == OwnerCore.epoch:
                memory = refs[0]()
            if memory is None or memory.closed:
                epoch, memory = core.hold_at()
            status = device.run(core.ptr, epoch)
            if status == MOVED:
                OwnerCore.epoch = lib.gbpy_epoch()
        memory = None
        if status == 0:
            return True
        if status == lib.GBPY_AGAIN:
            raise StateError(f"Graph.compute: {AGAIN}")
        if status != ABORTED:
            unplaced = lib.gbpy_graph_unplaced(core.ptr)
            if status == lib.GGML_STATUS_INVALID_STATE and unplaced:
                shown = Tensor(self._ctx, unplaced).describe()
                raise StateError(f"Graph.compute: {shown} has no memory; Scheduler.compute(graph) gives each tensor some")
            raise_last("Graph.compute", status)
        return False

    def to_dot(self) -> str:
        """The graph in the language of Graphviz."""
        core = self._live()
        handle, path = tempfile.mkstemp(suffix=".dot")
        os.close(handle)
        try:
            check(lib.ggml_graph_dump_dot(core.ptr, ffi.NULL, os.fsencode(path)), "Graph.to_dot")
            with open(path, encoding="utf-8", errors="replace") as f:
                return f.read()
        finally:
            os.unlink(path)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{i}</td><td>{t.name}</td><td>{t.op}</td><td>{t.dtype.name}</td><td>{t.shape}</td><td>{t.location}</td></tr>"
            for i, t in enumerate(self.nodes)
        )
        head = "".join(f"<th>{h}</th>" for h in ("", "name", "op", "dtype", "shape", "buffer"))
        return f"<table><tr>{head}</tr>{rows}</table>"

    def reordered(self) -> Graph:
        """The same tensors as a graph that needs less memory, because its nodes run in another order; in the same order if none is found.

        Results are the same bits (what the CPU computes together may round differently): each node still comes after all that it needs,
        writes into memory that others use included. Only what
        has no memory yet counts, so this comes before the graph is run or allocated. Takes about a second for ten thousand nodes.
        """
        core, context = self._live(), self._ctx._live()
        if not self._ctx._writable:
            raise StateError("Graph.reordered: a copy of a graph cannot be built on")
        with context.lock:
            pointer = non_null(lib.ggml_graph_reorder(context.ptr, core.ptr), "Graph.reordered")
        return Graph(self._ctx, GraphCore(pointer, context), self._outputs)

    def copy(self, backend: Backend) -> Graph:
        """A deep copy of a graph whose tensors have memory, with their data, on ``backend``. It can be run and read, not built on."""
        reap()
        core = self._live()
        expect(backend, Backend, "Graph.copy: backend")
        device = backend._live()
        unplaced = lib.gbpy_graph_unplaced(core.ptr)
        if unplaced:
            raise StateError(f"Graph.copy: {Tensor(self._ctx, unplaced).describe()} has no memory")
        memory = core.hold()
        copy = lib.ggml_backend_graph_copy(device.ptr, core.ptr)
        del memory
        if not copy.graph:
            raise_last("Graph.copy")
        owner = CopyCore(copy, (device,))
        pool = TensorPool(CopyContext(owner), writable=False)
        graph_core = GraphCore(copy.graph, pool._live())
        position = {int(ffi.cast("uintptr_t", core.ptr.nodes[i])): i for i in range(core.ptr.n_nodes)}
        outputs = []
        for t in self._outputs:
            i = position.get(int(ffi.cast("uintptr_t", t._p)))
            if i is not None:
                outputs.append(Tensor(pool, copy.graph.nodes[i]))
        for i in range(core.ptr.n_nodes):
            lib.gbpy_set_ndim(copy.graph.nodes[i], lib.gbpy_ndim(core.ptr.nodes[i]))
        return Graph(pool, graph_core, tuple(outputs))

    def compare(
        self,
        backend1: Backend,
        backend2: Backend,
        callback: Callable[[int, np.ndarray[Any, Any], np.ndarray[Any, Any]], bool | None] | None = None,
    ) -> list[Comparison]:
        """Computes the graph, whose tensors have memory, on two backends, node by node, and compares the results.

        ``backend1`` works on the graph itself if it can use that memory, else on a copy; ``backend2`` always on a copy.

        callback: called with the node's index and both results as arrays; False ends the comparison
        """
        core = self._live()
        pool = self._ctx
        expect(backend1, Backend, "Graph.compare: backend1")
        expect(backend2, Backend, "Graph.compare: backend2")
        first = backend1._live()
        if not all(
            lib.ggml_backend_buft_supports_backend(lib.ggml_backend_buffer_get_type(buffer), first.ptr)
            for buffer in buffers_of(core.ptr)
        ):
            return self.copy(backend1).compare(backend1, backend2, callback)
        results: list[Comparison] = []

        def see(index: int, t1: Any, t2: Any) -> bool:
            results.append(_difference(index, pool, t1, t2))
            return callback is None or callback(index, read_device(t1), read_device(t2)) is not False

        state = Compare(see)
        a, b = first, backend2._live()
        with Use("Graph.compare", a, b):
            memory = core.hold()
            run = start(core, (a, b), a)
            ok = lib.ggml_backend_compare_graph_backend(a.ptr, b.ptr, core.ptr, lib.gbpy_compare, state.handle)
            status = 0 if ok else lib.ggml_last_status()
            finish(core, run, (a, b))
            del memory
        if state.error:
            raise_kept(state.error)
        if not ok and not (callback is not None and results and status >= 0):
            raise_last("Graph.compare")
        return results

    def __repr__(self) -> str:
        if self._ctx._core is None:
            return "<Graph closed>"
        outputs = ", ".join(t.describe() for t in self._outputs)
        return f"<Graph {self.n_nodes} nodes, {self._core.ptr.n_leafs} leafs, outputs: {outputs}>"


class CopyCore(OwnerCore):
    """What ``ggml_backend_graph_copy`` returns."""

    __slots__ = ()

    def __init__(self, copy: Any, parents: tuple[Core, ...]) -> None:
        super().__init__(copy, parents, lib.ggml_backend_graph_copy_free)
        if copy.buffer:
            self.own(copy.buffer)


class CopyContext(ContextCore):
    """The contexts of a copied graph; they are the copy's."""

    __slots__ = ("owner",)
    owner: CopyCore
    buffers: tuple[OwnerCore, ...]

    def __init__(self, owner: CopyCore) -> None:
        super().__init__(ffi.NULL, (owner,))
        self.owner = owner
        self.buffers = (owner,)


def _compute_with_callbacks(graph: GraphCore, device: BackendCore) -> int:
    with Use("Graph.compute", device):
        memory = graph.hold()
        run = start(graph, (device,), device)
        status = int(device.run_inside(graph.ptr))
        finish(graph, run, (device,))
        del memory
    return status


def start(graph: GraphCore, backends: tuple[BackendCore, ...], memory: Core) -> Run | None:
    """Prepares the Python functions that a computation may call. Cheap when there are none."""
    if not graph.customs:
        return None
    run = Run(backends, memory)
    for op in graph.customs:
        op.run = run
    return run


def finish(graph: GraphCore, run: Run | None, backends: tuple[BackendCore, ...]) -> None:
    """After a computation: raises what its callbacks raised."""
    for b in backends:
        b.stop.stop = 0
    if run is not None:
        for op in graph.customs:
            op.run = None
        run.finish()
    raise_abort_errors(backends)


