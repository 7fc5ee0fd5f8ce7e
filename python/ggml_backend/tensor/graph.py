"""Graphs: nodes in execution order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import (
    NOT_GIVEN,
    InvalidArgumentError,
    StateError,
    check,
    expect,
    expect_function,
    expect_path,
    non_null,
    raise_last,
)
from .._base.errors.messages import UnknownKey, kind_of, made_by
from .._base.files import read_text
from .._base.handles import ContextCore, Core, Holders, Local, fail, handles_of, new_handle, owned
from .._base.text import MAX_NAME, as_name, count, markup, shorter
from .._ffi import ffi, lib
from ..backend.backend import Backend, BackendCore
from ._arrays import layout, read_device, widened
from ._callbacks import Compare, CustomOp, Run, customs_of, raise_abort_errors, raise_kept
from .tensor import Tensor

if TYPE_CHECKING:
    from ..profile.profile import Profile
    from .context import Context

__all__ = ["Comparison", "Context", "Function", "Graph"]

_SHOWN = 50  # nodes shown at each end of a graph in a notebook
ABORTED: int = lib.GGML_STATUS_ABORTED
_compute = lib.gbpy_graph_compute
_compute_in = lib.gbpy_graph_compute_in
_from_buffer = ffi.from_buffer
_NULL = ffi.NULL


class GraphCore(Core):
    """A ``ggml_cgraph`` in the memory of its context. ``parents``: all contexts whose tensors it uses."""

    __slots__ = ("customs",)

    def __init__(self, ptr: Any, context: ContextCore) -> None:
        family = context.family()
        h = new_handle()
        status = lib.gbpy_open_graph(h, ptr, handles_of(family), len(family))
        if status:
            fail(status, "Context.graph")
        super().__init__(h, "struct ggml_cgraph *", family)
        self.customs: list[CustomOp] = customs_of(self.ptr)


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


def _difference(index: int, pool: Context, holder: Holders, t1: Any, t2: Any) -> Comparison:
    tensor = Tensor(pool, t1, holder(t1))
    bf16 = tensor.dtype.name == "bfloat16"
    # Flat, because NumPy refuses float64 of an empty float32 array whose other sizes are huge.
    a, b = (read_device(t).reshape(-1) for t in (t1, t2))
    equal = a.tobytes() == b.tobytes() or (a.dtype.kind == "f" and bool(np.array_equal(a, b, equal_nan=True)))
    x, y = ((widened(v) if bf16 else v).astype(np.float64) for v in (a, b))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    gap = np.where(np.isnan(gap), np.inf, gap)
    finite = np.isfinite(x)
    power = float(np.mean(np.square(x, where=finite, out=np.zeros_like(x)))) if x.size else 0.0
    error = float(np.mean(np.square(gap))) if x.size else 0.0
    return Comparison(
        index,
        tensor.name,
        tensor.op,
        tensor.shape,
        float(gap.max(initial=0.0)),
        error / power if power else error,
        equal,
    )


class Graph(Local):
    """Nodes in execution order. ``Context.graph`` makes graphs.

    You can run a graph any number of times, on several backends or schedulers.
    """

    __slots__ = ("__weakref__", "_core", "_ctx", "_outputs")

    def __init__(self, ctx: Context = NOT_GIVEN, core: GraphCore = NOT_GIVEN, outputs: tuple[Tensor, ...] = ()) -> None:
        made_by(core, Core, "Graph", "ctx.graph(tensor)")
        self._ctx = ctx
        self._core = core
        self._outputs = outputs

    def _live(self) -> GraphCore:
        if self._ctx._core is None:
            raise StateError("the context of the graph is closed")
        return self._core

    @property
    def context(self) -> Context:
        return self._ctx

    @property
    def outputs(self) -> list[Tensor]:
        """The output tensors of the graph."""
        self._live()
        return list(self._outputs)

    @property
    def nodes(self) -> list[Tensor]:
        """The computed tensors, in execution order."""
        core = self._live()
        g, holder = core.ptr, Holders(core.h)
        return [Tensor(self._ctx, p, holder(p)) for p in g.nodes[0 : g.n_nodes]]

    @property
    def leafs(self) -> list[Tensor]:
        """The tensors that the graph starts from: inputs, weights, constants."""
        core = self._live()
        g, holder = core.ptr, Holders(core.h)
        return [Tensor(self._ctx, p, holder(p)) for p in g.leafs[0 : g.n_leafs]]

    @property
    def n_nodes(self) -> int:
        core = self._live()
        return int(core.ptr.n_nodes)

    def __len__(self) -> int:
        return self.n_nodes

    if not TYPE_CHECKING:  # hidden from type checkers

        def __iter__(self):
            raise TypeError("a graph is not iterable: graph.nodes lists its computed tensors, graph.leafs its inputs")

    def get(self, name: str) -> Tensor | None:
        """The node or leaf with this name; None if the graph has none."""
        core = self._live()
        pointer = lib.ggml_graph_get_tensor(core.ptr, shorter(as_name(name, "Graph.get"), MAX_NAME))
        return Tensor(self._ctx, pointer, Holders(core.h)(pointer)) if pointer else None

    def __getitem__(self, name: str) -> Tensor:
        if not isinstance(name, str):
            raise TypeError(
                f"graph[...]: name must be a str, not {kind_of(name)}; graph.nodes and graph.leafs are lists"
            )
        found = self.get(name)
        if found is None:
            raise UnknownKey(name, [t.name for t in (*self.leafs, *self.nodes)])
        return found

    def compute(self, backend: Backend) -> bool:
        """Runs the graph on one backend, on which all its tensors must have memory.

        Returns True, or False if :meth:`Backend.stop` or an abort callback ended the run early.
        """
        core = self._core
        try:
            device = backend._core
            plain = device.abort is None and not core.customs  # type: ignore[union-attr]
        except AttributeError:
            expect(backend, Backend, "Graph.compute: backend")
            backend._live()  # raises the exact error if it is closed
            raise
        if self._ctx._core is None:
            self._live()
        if plain:
            status = _compute(core.h, device.h, _NULL)  # type: ignore[union-attr]
            if status == ABORTED:
                raise_abort_errors((device,))  # type: ignore[arg-type]
        else:
            status = _compute_with_callbacks(core, device)  # type: ignore[arg-type]
        if status == 0:
            return True
        if status == ABORTED:
            return False
        unplaced = (
            [t for t in (*self.leafs, *self.nodes) if not t.is_placed]
            if status == lib.GGML_STATUS_INVALID_STATE
            else []
        )
        if unplaced:
            raise StateError(
                f"Graph.compute: {unplaced[0].describe()} has no memory; Scheduler.compute(graph) gives each tensor"
                " some"
            )
        raise_last("Graph.compute", status)

    def function(self, backend: Backend, *tensors: Tensor) -> Function:
        """The graph as a function of arrays, in whose memory it computes. Nothing is copied::

            f = graph.function(cpu, x, y)
            f(array, result)  # computes y from x, in these two arrays

        backend: a CPU backend
        tensors: inputs and results of the graph that have no memory, and are no views or constants. The
            function takes an array for each. Other tensors of the graph must have memory when you call it.
        """
        return Function(self, backend, tensors)

    def profile(self, *, max_records: int = 1 << 20) -> Profile:
        """Starts a profile of the runs of this graph by :meth:`compute`, or by a scheduler without its own profile.

        Otherwise it works as :meth:`Scheduler.profile`.
        """
        from ..profile.profile import begin

        return begin(self._live(), max_records, "Graph.profile")

    def to_dot(self) -> str:
        """The graph in Graphviz's DOT language."""
        core = self._live()
        # TemporaryDirectory closes a descriptor twice if a signal handler raises while it cleans up.
        import tempfile

        folder = tempfile.mkdtemp()
        path = os.path.join(folder, "graph.dot")
        try:
            check(lib.gbpy_graph_dump_dot(core.h, os.fsencode(path)), "Graph.to_dot")
            return read_text(path, "replace")
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes the graph with the values of its leafs to a file, which ``ggml_graph_import`` reads in C.

        All tensors must have memory that the host can read, and no node may call a function of Python. The file has
        the byte order of this machine.
        """
        expect_path(path, "Graph.export: path")
        core = self._live()
        check(lib.gbpy_graph_export(core.h, os.fsencode(path)), "Graph.export")

    def _message(self, leafs: Sequence[Tensor]) -> bytes:
        """The nodes as bytes without data, for program files. leafs: all leafs, in the order of their numbers."""
        core = self._live()
        graph = core.ptr
        listed = ffi.new("struct ggml_tensor *[]", [t._live() for t in leafs] or 1)
        made = owned(ffi.new("struct gbpy_bytes *"), lib.gbpy_bytes_free)
        check(lib.gbpy_graph_write(graph.nodes, graph.n_nodes, listed, len(leafs), made), "Graph")
        return bytes(ffi.buffer(made.data, made.size))

    def _repr_html_(self) -> str:
        core = self._live()
        graph, holder = core.ptr, Holders(core.h)
        n = graph.n_nodes
        shown = [*range(min(n, _SHOWN)), *range(max(n - _SHOWN, _SHOWN), n)]
        rows = []
        for i in shown:
            if i == n - _SHOWN and n > 2 * _SHOWN:
                rows.append(f'<tr><td colspan="6">... {n - 2 * _SHOWN} more ...</td></tr>')
            t = Tensor(self._ctx, graph.nodes[i], holder(graph.nodes[i]))
            cells = (i, t.name, t.op, t.dtype.name, t.shape, t.location)
            rows.append(f"<tr>{''.join(f'<td>{markup(c)}</td>' for c in cells)}</tr>")
        head = "".join(f"<th>{h}</th>" for h in ("", "name", "op", "dtype", "shape", "buffer"))
        return f"<table><tr>{head}</tr>{''.join(rows)}</table>"

    def reordered(self) -> Graph:
        """A graph of the same tensors in a node order that needs less memory.

        The order stays if no better one is found. Each node still runs after everything that it depends
        on, writes to shared memory included. So results are bit-identical. Only nodes that the CPU fuses
        may round differently. Only tensors without memory count, so call it before the graph is run or
        allocated. It takes about a second for ten thousand nodes.
        """
        core, context = self._live(), self._ctx._live()
        if not self._ctx._writable:
            raise StateError("Graph.reordered: a copy of a graph cannot be built on")
        pointer = non_null(lib.ggml_graph_reorder(context.ptr, core.ptr), "Graph.reordered")
        return Graph(self._ctx, GraphCore(pointer, context), self._outputs)

    def copy(self, backend: Backend) -> Graph:
        """A deep copy, with data, on ``backend``, of a graph whose tensors have memory.

        The copy can be run and read. Nothing can be built on it. Before it is computed, you can read
        the same tensors as in this graph. In memory of a scheduler or graph allocator these are inputs
        and outputs.
        """
        core = self._live()
        expect(backend, Backend, "Graph.copy: backend")
        device = backend._live()
        h = new_handle()
        status = lib.gbpy_open_copy(h, core.h, device.h)
        if status:
            fail(status, "Graph.copy")
        owner = CopyCore(h, (device,))
        copy, original = owner.ptr, core.ptr
        pool = self._ctx._over(CopyContext(owner))
        graph_core = GraphCore(copy, pool._live())
        position = {int(ffi.cast("uintptr_t", original.nodes[i])): i for i in range(original.n_nodes)}
        outputs = []
        for t in self._outputs:
            i = position.get(int(ffi.cast("uintptr_t", t._p)))
            if i is not None:
                outputs.append(Tensor(pool, copy.nodes[i], h))
        for i in range(original.n_nodes):
            lib.gbpy_set_ndim(copy.nodes[i], lib.gbpy_ndim(original.nodes[i]))
        return Graph(pool, graph_core, tuple(outputs))

    def compare(
        self,
        backend1: Backend,
        backend2: Backend,
        callback: Callable[[int, np.ndarray[Any, Any], np.ndarray[Any, Any]], bool | None] | None = None,
    ) -> list[Comparison]:
        """Computes the graph on two backends, node by node, and compares the results.

        All tensors must have memory. ``backend1`` works on the graph itself if it can use that memory,
        else on a copy. ``backend2`` always works on a copy.

        callback: called with the node's index and both results as arrays. False ends the comparison.
        """
        core = self._live()
        pool, holder = self._ctx, Holders(core.h)
        expect(backend1, Backend, "Graph.compare: backend1")
        expect(backend2, Backend, "Graph.compare: backend2")
        if callback is not None:
            expect_function(callback, "Graph.compare: callback")
        first = backend1._live()
        reach = ffi.new("bool *")
        status = lib.gbpy_graph_is_within_reach(core.h, first.h, reach)
        if status:
            fail(status, "Graph.compare")
        if not reach[0]:
            return self.copy(backend1).compare(backend1, backend2, callback)
        results: list[Comparison] = []

        def see(index: int, t1: Any, t2: Any) -> bool:
            results.append(_difference(index, pool, holder, t1, t2))
            return callback is None or callback(index, read_device(t1), read_device(t2)) is not False

        state = Compare(see)
        a, b = first, backend2._live()
        run, handle = Run((a, b), core, core.customs), ffi.new_handle(state)
        status = lib.gbpy_graph_compare(core.h, a.h, b.h, run.c, lib.gbpy_compare, handle)
        run.finish()
        raise_abort_errors((a, b))
        if state.error:
            raise_kept(state.error)
        if status != 0 and not (callback is not None and results and status == ABORTED):
            raise_last("Graph.compare", status)
        return results

    def __repr__(self) -> str:
        core = self._core
        if self._ctx._core is None:
            return "<Graph closed>"
        outputs = ", ".join(t.describe() for t in self._outputs)
        return f"<Graph {count(core.ptr.n_nodes, 'node')}, {count(core.ptr.n_leafs, 'leaf')}, outputs: {outputs}>"


class Function(Local):
    """A graph as a function of arrays. :meth:`Graph.function` makes functions.

    Each array has the shape and dtype that ``Tensor.numpy()`` gives: bfloat16 as uint16 bits, quantized
    formats as uint8 rows. It is C-contiguous, and writable if the graph writes its tensor. During a call the
    tensors lie in the arrays. Afterwards they have no memory.

    Several threads may call a function. They wait for each other.
    """

    __slots__ = ("_backend", "_graph", "_pointers", "_tensors", "_type", "_wanted")

    def __init__(
        self, graph: Graph = NOT_GIVEN, backend: Backend = NOT_GIVEN, tensors: tuple[Tensor, ...] = ()
    ) -> None:
        made_by(graph, Graph, "Function", "graph.function(backend, x, y)")
        core = graph._live()
        expect(backend, Backend, "Graph.function: backend")
        backend._cpu()
        if core.customs:
            raise InvalidArgumentError("Graph.function: the graph has an operation in Python (gb.ops.custom)")
        for t in tensors:
            expect(t, Tensor, "Graph.function: each tensor")
        n = len(tensors)
        self._graph, self._backend, self._tensors = graph, backend, tensors
        self._pointers: Any = ffi.new("struct ggml_tensor *[]", [t._live() for t in tensors])
        self._type: Any = ffi.typeof(f"void *[{n}]")
        written = ffi.new("bool[]", n)
        status = lib.gbpy_graph_check_lent(core.h, self._pointers, written, n)
        if status:
            raise_last("Graph.function", status)
        self._wanted: list[tuple[tuple[int, ...], np.dtype[Any], bool]] = [
            (layout(t._p, t.dtype)[0], t.dtype.numpy, bool(writes)) for t, writes in zip(tensors, written, strict=True)
        ]

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> bool:
        """Computes. Returns True, or False if :meth:`Backend.stop` ended the run early."""
        if len(arrays) != len(self._wanted):
            raise TypeError(f"Graph.function: takes {count(len(self._wanted), 'array')}, not {len(arrays)}")
        data = ffi.new(self._type)
        for i, (shape, dtype, writes) in enumerate(self._wanted):
            array = arrays[i]
            if (
                type(array) is not np.ndarray
                or array.shape != shape
                or array.dtype != dtype
                or not (array.flags.carray if writes else array.flags.c_contiguous)
            ):
                raise self._refuse(i, array)
            data[i] = _from_buffer(array)
        core, device = self._graph._live(), self._backend._live()
        status = _compute_in(core.h, device.h, self._pointers, data, len(arrays))
        if status == 0:
            return True
        if status == ABORTED:
            return False
        raise_last("Graph.function", status)

    def _refuse(self, i: int, array: object) -> Exception:
        """The reason why an array cannot be the memory of tensor ``i``."""
        shape, dtype, _ = self._wanted[i]
        what = f"Graph.function: {self._tensors[i].describe()}"
        if type(array) is not np.ndarray:
            return TypeError(f"{what} takes a NumPy array, not {kind_of(array)}")
        if array.shape != shape or array.dtype != dtype:
            return InvalidArgumentError(
                f"{what} takes an array of {dtype} and shape {shape}, not of {array.dtype} and shape {array.shape}"
            )
        why = "C-contiguous" if not array.flags.c_contiguous else "aligned" if array.flags.writeable else "writable"
        return InvalidArgumentError(f"{what}: the array is not {why}")

    def __repr__(self) -> str:
        if self._graph._ctx._core is None:
            return "<Function closed>"
        return f"<Function of {', '.join(t.describe() for t in self._tensors)}>"


class CopyCore(Core):
    """The result of ``ggml_backend_graph_copy``."""

    __slots__ = ()

    def __init__(self, h: Any, parents: tuple[Core, ...]) -> None:
        super().__init__(h, "struct ggml_cgraph *", parents)


class CopyContext(ContextCore):
    """The contexts of a copied graph. The copy owns them."""

    __slots__ = ("owner",)
    ptr: Any
    owner: CopyCore

    def __init__(self, owner: CopyCore) -> None:
        super().__init__(owner.h, (owner,))
        self.ptr = ffi.NULL
        self.owner = owner

    def pools(self) -> tuple[Any, ...]:
        return tuple(p for p in (lib.gbpy_copy_context(self.h, True), lib.gbpy_copy_context(self.h, False)) if p)


def _compute_with_callbacks(graph: GraphCore, device: BackendCore) -> int:
    run = Run((device,), graph, graph.customs)
    status = int(_compute(graph.h, device.h, run.c))
    run.finish()
    raise_abort_errors((device,))
    return status


if not TYPE_CHECKING:

    def __getattr__(name):
        if name == "Context":  # its module imports this one
            from .context import Context

            return Context
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
