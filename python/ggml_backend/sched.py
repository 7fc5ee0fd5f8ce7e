"""The scheduler: one graph over several backends."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ._callbacks import Eval, Run, Wanted
from ._errors import InvalidArgumentError, StateError, expect, non_null, raise_last
from ._errors import check as _check
from ._fallbacks import heavy_fallbacks, warn_of
from ._ffi import ffi, lib
from ._handles import ContextCore, Handle, OwnerCore, Use, address, reap
from ._messages import plain
from ._sched_core import SchedCore
from .backend import Backend, BackendCore
from .buffer import BufferType, text
from .graph import ABORTED, Graph, GraphCore, finish, start
from .pending import Flight, Pending
from .plan import Plan, read_plan
from .stats import SchedulerStats, read_stats
from .tensor import Tensor
from .trace import Trace, read_events

if TYPE_CHECKING:
    from ._calibrate import Costs, Prediction

__all__ = ["Memory", "Scheduler", "Split"]

_POLICIES = {name: getattr(lib, f"GGML_BACKEND_SCHED_POLICY_{name.upper()}") for name in ("weights", "sources", "cost")}
MAX_COPIES = 64  # as C has it
_graph_compute = lib.ggml_backend_sched_graph_compute


class Memory(NamedTuple):
    """Bytes that the plan of a graph needs on one backend."""

    peak: int
    """The size of the compute buffer."""
    no_reuse: int
    """What the same tensors would take if none shared memory."""


@dataclass(frozen=True)
class Split:
    """A run of nodes on one backend."""

    index: int
    backend: Backend
    nodes: list[Tensor]
    inputs: list[Tensor]
    """Tensors of other backends, copied to this one before the nodes run."""
    input_bytes: int

    @property
    def bytes(self) -> int:
        """``input_bytes``"""
        return self.input_bytes

    def __repr__(self) -> str:
        return f"<Split {self.index} on {self.backend.name}: {len(self.nodes)} nodes, {len(self.inputs)} inputs, {self.input_bytes} bytes>"


class Scheduler(Handle):
    """Runs graphs on several backends: assigns nodes to them, cuts the graph into splits, gives tensors memory, copies what crosses.

    backends: one; or several in order of priority, the highest first: the last is the fallback, usually the CPU
    buffer_types: one for each backend; default: the backend's own
    policy: where nodes go that ``set_backend`` says nothing about: ``"weights"``: to where their weights are, and their neighbours with
        them; ``"sources"``: to where their best source is; ``"cost"``: so that the graph takes the least time, without costs as
        ``"weights"`` (docs/PLACEMENT.md)
    costs: for the policy ``"cost"``; default: what ``python -m ggml_backend calibrate`` measured, if it did for each backend
    n_copies: how many runs of a graph may be on their way at once (:meth:`compute_async`), 1 to 64
    check: judge each run: is every access ordered behind those that it must not meet, does every read find the content that is meant? A
        violation is an error that names the two. Slow: one step after the other, and dead memory is filled with NaN

    ``allocate`` gives every tensor of a graph that has none memory; then inputs can be set, and ``compute`` runs the graph as often as
    wanted. Several graphs may take turns: inputs keep their data, results are there until another graph is allocated or computed.
    (The last 16 graphs are remembered. What must survive for good belongs into a buffer of its own: ``Context.allocate``.) Only outputs of
    the graph keep their data to its end; the memory of other results is used again while it runs.

    Arrays from ``Tensor.numpy()`` stay valid memory whatever happens; the next computation overwrites them.

    Calls from several threads wait for each other.
    """

    __slots__ = ("__weakref__", "_assigned", "_backends", "_buffer_types", "_core", "_eval", "_graph", "_lock", "_trace")

    def __init__(
        self,
        backends: Backend | Sequence[Backend],
        buffer_types: Sequence[BufferType] | None = None,
        *,
        policy: Literal["weights", "sources", "cost"] = "weights",
        costs: Costs | None = None,
        n_copies: int = 1,
        check: bool = False,
    ) -> None:
        reap()
        self._core: SchedCore | None = None
        self._backends = (backends,) if isinstance(backends, (Backend, str)) else tuple(backends)
        if not self._backends:
            raise InvalidArgumentError("Scheduler: needs at least one backend")
        if buffer_types is not None and len(buffer_types) != len(self._backends):
            raise InvalidArgumentError(f"Scheduler: {len(self._backends)} backends, {len(buffer_types)} buffer types")
        self._buffer_types = None if buffer_types is None else tuple(buffer_types)
        self._assigned: dict[int, tuple[Any, weakref.ref[ContextCore]]] = {}
        self._eval: Eval | None = None
        self._graph: Graph | None = None  # allocated last
        self._lock: tuple[SchedCore, Use] | None = None
        self._trace: Trace | None = None  # that is being recorded
        for b in self._backends:
            expect(b, Backend, "Scheduler: each backend")
        for t in self._buffer_types or ():
            expect(t, BufferType, "Scheduler: each buffer type")
        if policy not in tuple(_POLICIES):
            raise InvalidArgumentError(f"Scheduler: policy must be one of {', '.join(map(repr, _POLICIES))}, not {policy!r}")
        self._core = self._make(tuple(b._live() for b in self._backends))
        _check(lib.ggml_backend_sched_set_policy(self._core.ptr, _POLICIES[policy]), "Scheduler")
        if check:  # else the environment decides
            _check(lib.ggml_backend_sched_set_check(self._core.ptr, True), "Scheduler")
        if n_copies != 1:
            self.n_copies = n_copies
        if policy == "cost" or costs is not None:
            from ._calibrate import Costs  # it uses this module

            costs = Costs.cached(self._backends) if costs is None else costs
            if costs is not None:
                expect(costs, Costs, "Scheduler: costs")
        if costs is not None:
            costs._set(self._core.ptr, len(self._backends))

    def _make(self, backends: tuple[BackendCore, ...]) -> SchedCore:
        pointers = ffi.new("ggml_backend_t[]", [b.ptr for b in backends])
        bufts = ffi.NULL
        if self._buffer_types is not None:
            bufts = ffi.new("ggml_backend_buffer_type_t[]", [t._ptr for t in self._buffer_types])
        size = lib.GGML_DEFAULT_GRAPH_SIZE
        return SchedCore(non_null(lib.ggml_backend_sched_new(pointers, bufts, len(backends), size), "Scheduler"), backends)

    @staticmethod
    def _graph_of(graph: Graph, what: str) -> GraphCore:
        expect(graph, Graph, what)
        return graph._live()

    def _live(self) -> SchedCore:
        core = self._core
        if core is None:
            raise StateError("the scheduler is closed")
        return core

    def _use(self, core: SchedCore) -> Use:
        """The locks of the scheduler and its backends."""
        lock = self._lock
        if lock is None or lock[0] is not core:
            self._lock = lock = (core, Use("Scheduler", core, *core.backends))
        return lock[1]

    # ----------------------------------------------------------------------------------------------------------------- planning

    def _plan(self, core: SchedCore, front: Graph, graph: GraphCore) -> None:
        """Makes `graph` the planned one: all its tensors have memory afterwards. Called while `core` is in use."""
        core.forget()
        self._graph = front
        self._ready(core)
        holding = tuple(o for o in graph.hold() if o is not core)
        _check(lib.ggml_backend_sched_alloc_graph(core.ptr, graph.ptr), "Scheduler.allocate")
        core.own_new()
        OwnerCore.epoch = lib.gbpy_moved()
        for c in graph.contexts():
            c.upload_constants()
        core.graph = graph
        core.n_nodes = graph.ptr.n_nodes
        core.holding = holding
        core.versions = tuple([o.version for o in core.holding])
        core.dirty = False
        self._warn(core)

    def _warn(self, core: SchedCore) -> None:
        if core.may_warn and core.made_plans():
            warn_of(heavy_fallbacks(core.ptr, [(b.ptr, b.name, b.is_cpu) for b in core.backends]))

    def _ready(self, core: SchedCore) -> None:
        """Before C may move its buffers."""
        if not core.pinned():
            lib.gbpy_sched_hold(core.ptr, False)
        for key, (tensor, context) in list(self._assigned.items()):
            if context() is None:  # the address may serve another tensor by now
                del self._assigned[key]
                _check(lib.ggml_backend_sched_set_node_backend(core.ptr, tensor, ffi.NULL), "Scheduler")

    def allocate(self, graph: Graph) -> None:
        """Assigns the graph's nodes to backends and gives memory to every tensor that has none.

        Warns (:class:`PerformanceWarning`), once for each plan, of heavy operations that a device of higher priority does not take.
        Raises :class:`UnsupportedError` if no backend can run a node, :class:`AllocationError` if memory is short.
        """
        reap()
        core, graph_core = self._live(), self._graph_of(graph, "Scheduler.allocate: graph")
        with self._use(core):
            core.synchronize()
            if not core.planned(graph_core):
                self._plan(core, graph, graph_core)

    def prepare(self, graph: Graph, *, allocate: bool = True, reorder: bool = False) -> Plan:
        """Allocates the graph, as :meth:`allocate` does, and returns what was decided: memory, splits, copies, reasons, pictures.

        allocate: False only decides: no tensor is placed and no memory of a device is taken. What the plan says then is what allocating
            the graph takes, also where that would not fit
        reorder: the plan is that of :meth:`Graph.reordered`, if the bound of its memory is lower, with no more splits and copies;
            ``plan.graph`` is then that graph. Nothing of the graph may have memory yet that the scheduler gives
        """
        self._live()
        self._graph_of(graph, "Scheduler.prepare: graph")
        if reorder:
            graph = self._better_order(graph)
        if not allocate:
            return self._draft(graph)
        self.allocate(graph)
        core, graph_core = self._live(), graph._live()
        with self._use(core):
            core.synchronize()
            if not core.planned(graph_core):  # another thread was faster
                self._plan(core, graph, graph_core)
            return self._plan_object(core, graph, graph_core)

    def _better_order(self, graph: Graph) -> Graph:
        other = graph.reordered()

        def needs(plan: Plan) -> tuple[int, int, int]:
            return sum(a.lower_bound for a in plan.arenas), len(plan.splits), sum(c.size for c in plan.copies)

        before, after = (needs(self._draft(g, warn=False)) for g in (graph, other))
        return other if after[0] < before[0] and after[1] <= before[1] and after[2] <= before[2] else graph

    def _plan_object(self, core: SchedCore, graph: Graph, graph_core: GraphCore) -> Plan:
        return Plan(self, graph, *read_plan(core.ptr, graph_core.ptr, [(b.ptr, b.name) for b in core.backends]))

    def _decide(self, core: SchedCore, graph: Graph, warn: bool = True) -> GraphCore:
        """Makes `graph` the one that questions are about, without memory for it if it has none. Called while `core` is in use."""
        graph_core = graph._live()
        core.synchronize()
        if not core.planned(graph_core):
            core.forget()
            self._ready(core)
            holding = graph_core.hold()  # nobody frees what the tensors lie in meanwhile
            _check(lib.ggml_backend_sched_plan_graph(core.ptr, graph_core.ptr), "Scheduler.prepare")
            del holding
            if warn:  # else the next one does
                self._warn(core)
        return graph_core

    def _draft(self, graph: Graph, warn: bool = True) -> Plan:
        reap()
        core = self._live()
        graph._live()
        with self._use(core):
            return self._plan_object(core, graph, self._decide(core, graph, warn))

    def _explain_in(self, graph: Graph, node: Tensor) -> str:
        """As :meth:`explain`, in the plan of this graph."""
        core = self._live()
        expect(node, Tensor, "Plan.explain: tensor")
        graph._live()
        with self._use(core):
            self._decide(core, graph)
            return plain(text(lib.ggml_backend_sched_explain(core.ptr, node._live())))

    def reserve(self, graph: Graph) -> None:
        """Allocates what the graph needs, inputs included, and touches no tensor. Graphs of the same structure whose tensors are no larger
        take the places that were planned for this one: nothing is planned or allocated for them any more."""
        reap()
        core, graph_core = self._live(), self._graph_of(graph, "Scheduler.reserve: graph")
        with self._use(core):
            core.synchronize()
            core.forget()
            self._ready(core)
            _check(lib.ggml_backend_sched_reserve(core.ptr, graph_core.ptr), "Scheduler.reserve")

    def reset(self) -> None:
        """Forgets assignments and placements; tensors that it placed lose their place. The compute buffers are kept."""
        core = self._live()
        with self._use(core):
            core.synchronize()
            core.forget()
            self._assigned.clear()
            _check(lib.ggml_backend_sched_reset(core.ptr), "Scheduler.reset")
            core.unplace()

    # --------------------------------------------------------------------------------------------------------------- computing

    def compute(self, graph: Graph, callback: Callable[[Tensor], bool | None] | None = None, wanted: Wanted = None) -> bool:
        """Runs the graph; allocates it first if that was not done.

        callback: called with each tensor as soon as it is computed; it may read it with ``numpy()``; returning False ends the computation
        wanted: which tensors: a name pattern (``"layer.*"``), names or tensors, or a function of the tensor; default: all. The fewer, the
            faster, because the others are computed together

        Returns True; or False when the callback, :meth:`Backend.stop` or an abort callback ended it early. An exception in a callback
        ends the computation and is raised here.
        """
        core, graph_core = self._live(), self._graph_of(graph, "Scheduler.compute: graph")
        state = Eval(callback, wanted) if callback is not None else self._eval
        with self._use(core):
            if core.async_run is not None:
                core.synchronize()
            if not core.planned(graph_core):
                self._plan(core, graph, graph_core)
            if state is None and not graph_core.customs:
                status = _graph_compute(core.ptr, graph_core.ptr)
                for b in core.backends:
                    if b.stop.stop or b.abort is not None:
                        finish(graph_core, None, core.backends)
            else:
                status = self._compute_with_callbacks(core, graph_core, graph, state)
            core.own_new()
        if status == 0:
            return True
        if status == ABORTED:
            return False
        raise_last("Scheduler.compute", status)

    def _compute_with_callbacks(self, core: SchedCore, graph_core: GraphCore, graph: Graph, state: Eval | None) -> int:
        run = start(graph_core, core.backends, core) or Run(core.backends, core)
        if state is not None:
            state.run, state.pool, state.stopped = run, graph._ctx, False
            _check(lib.ggml_backend_sched_set_eval_callback(core.ptr, lib.gbpy_eval, state.handle), "Scheduler.compute")
        try:
            status = int(_graph_compute(core.ptr, graph_core.ptr))
        finally:
            if state is not None:
                lib.ggml_backend_sched_set_eval_callback(core.ptr, ffi.NULL, ffi.NULL)
                state.run = state.pool = None
        finish(graph_core, run, core.backends)
        run.finish()
        if state is not None and state.stopped and status >= 0:
            status = ABORTED
        return status

    def compute_async(self, graph: Graph, results: Tensor | Sequence[Tensor] = ()) -> Pending:
        """Starts the computation and returns. ``synchronize`` waits for it, and so does whatever needs its results.

        results: outputs of the graph to be fetched behind this run: ``pending.results()`` returns them

        With ``n_copies`` of 2 or more, the same graph may be started again before it is complete. Inputs in host memory may be set as soon
        as this call returns, because what they held was taken; whatever else is set waits. Results of each run are in its
        ``results``; ``numpy()`` waits for all runs and shows the last one's. With ``n_copies`` runs on their way this waits for the first.
        """
        core, graph_core = self._live(), self._graph_of(graph, "Scheduler.compute_async: graph")
        results = (results,) if isinstance(results, Tensor) else tuple(results)
        for t in results:
            expect(t, Tensor, "Scheduler.compute_async: each result")
        with self._use(core):
            core.make_way(graph_core)
            if not core.planned(graph_core):
                self._plan(core, graph, graph_core)
            flight = Flight(core, results)
            run = start(graph_core, core.backends, core)
            status = lib.ggml_backend_sched_graph_compute_async(core.ptr, graph_core.ptr)
            core.own_new()
            core.async_run = (graph_core, run)
            core.flights.append(flight)
            # The work goes on even if everything is dropped now, until the scheduler is freed.
            tokens = [o.token for o in core.holding]
            kept = ([c.token for c in graph_core.contexts()], tokens, run, graph_core.customs, [b.abort for b in core.backends])
            core.entry.keep = (*kept, core.flights)
            SchedCore.working[id(core)] = core.ref
            for b in core.backends:
                b.pending = core.ref
            if status != 0:
                flight.state = "failed"
                core.synchronize()
                raise_last("Scheduler.compute_async", status)
            flight.issued(core)
            return Pending(core, flight)

    def synchronize(self) -> bool:
        """Waits for ``compute_async``; raises its failure."""
        core = self._live()
        with self._use(core):
            core.synchronize()
        return True

    def set_eval_callback(self, callback: Callable[[Tensor], bool | None] | None, wanted: Wanted = None) -> None:
        """The callback of every ``compute`` that is given none. None removes it."""
        self._live()
        self._eval = Eval(callback, wanted) if callback is not None else None

    # --------------------------------------------------------------------------------------------------------------- placement

    def _device(self, backend: Backend) -> BackendCore:
        expect(backend, Backend, "Scheduler: backend")
        core = backend._live()
        if core not in self._live().backends:
            own = ", ".join([b.name for b in self._backends])
            raise InvalidArgumentError(f"Scheduler: {backend.name} is not one of its backends, which are {own}")
        return core

    def set_backend(self, node: Tensor, backend: Backend | None) -> None:
        """Runs ``node`` on ``backend``; None: where the scheduler thinks best. It counts from the next ``allocate`` or ``compute`` on."""
        core = self._live()
        expect(node, Tensor, "Scheduler.set_backend: node")
        pointer = node._live()
        device = self._device(backend) if backend is not None else None
        with self._use(core):
            core.synchronize()
            target = device.ptr if device is not None else ffi.NULL
            _check(lib.ggml_backend_sched_set_node_backend(core.ptr, pointer, target), f"Scheduler.set_backend({node.describe()})")
            if device is None:
                self._assigned.pop(address(pointer), None)
            else:
                self._assigned[address(pointer)] = (pointer, weakref.ref(node._ctx._live()))
            core.dirty = True

    def get_backend(self, node: Tensor) -> Backend | None:
        """Where ``node`` is, by ``set_backend`` or by the last ``allocate``; None if it is not assigned."""
        core = self._live()
        expect(node, Tensor, "Scheduler.get_backend: node")
        with core.lock:
            pointer = lib.ggml_backend_sched_get_node_backend(core.ptr, node._live())
        return self._backend_of(pointer) if pointer else None

    def _backend_of(self, pointer: Any) -> Backend:
        for backend, core in zip(self._backends, self._live().backends, strict=True):
            if core.ptr == pointer:
                return backend
        raise StateError("Scheduler: a backend that is not one of its own")

    def explain(self, node: Tensor) -> str:
        """Why the node is where it is, in words; "" if it is not assigned."""
        core = self._live()
        expect(node, Tensor, "Scheduler.explain: node")
        with core.lock:
            return plain(text(lib.ggml_backend_sched_explain(core.ptr, node._live())))

    # ------------------------------------------------------------------------------------------------------ what it does, in numbers

    @property
    def stats(self) -> SchedulerStats:
        """What it has done since it was made, or since :meth:`reset_stats`: runs, plans, bytes by reason, waits, times."""
        core = self._live()
        with core.lock:
            return read_stats(core.ptr, [(b.ptr, b.name) for b in core.backends])

    def reset_stats(self) -> None:
        """Counts from zero again."""
        core = self._live()
        with core.lock:
            _check(lib.ggml_backend_sched_reset_stats(core.ptr), "Scheduler.reset_stats")
            core.n_made = 0

    def trace(self, path: str | os.PathLike[str] | None = None) -> Trace:
        """Begins a record of what runs when on which device. The end of the ``with`` block, ``stop()``, or ``close`` of the scheduler, ends
        it and writes it as Chrome trace JSON, which https://ui.perfetto.dev opens::

            with sched.trace("run.json") as trace:
                sched.compute(graph)
            print(trace.events[0])

        While it is on, each run is waited for; within a run devices overlap as ever. A run that fails is not in it.
        """
        core = self._live()
        with self._use(core):
            if self._trace is not None:
                raise StateError("Scheduler.trace: a trace is being recorded already; stop() it first")
            if path is not None:
                with open(path, "w", encoding="utf-8"):
                    pass  # fails now rather than when everything is done
            core.synchronize()
            _check(lib.ggml_backend_sched_set_trace(core.ptr, True), "Scheduler.trace")
            self._trace = Trace(self, path)
            return self._trace

    def _stop_trace(self, trace: Trace) -> None:
        core = self._live()
        with self._use(core):
            core.synchronize()
            _check(lib.ggml_backend_sched_set_trace(core.ptr, False), "Scheduler.trace")
            events = read_events(core.ptr)
            self._trace = None
        trace._ended(events)

    @property
    def n_copies(self) -> int:
        """How many runs of a graph may be on their way at once. It counts from the next allocation on."""
        return self._live().n_copies

    @n_copies.setter
    def n_copies(self, n: int) -> None:
        core = self._live()
        if not 1 <= operator.index(n) <= MAX_COPIES:
            raise InvalidArgumentError(f"Scheduler: n_copies must be 1 to {MAX_COPIES}, not {n}")
        with self._use(core):
            core.synchronize()
            _check(lib.ggml_backend_sched_set_n_copies(core.ptr, n), "Scheduler.n_copies")
            core.n_copies = int(lib.ggml_backend_sched_get_n_copies(core.ptr))
            core.dirty = True

    @property
    def prediction(self) -> Prediction | None:
        """What the last graph takes by the costs; None if it was not placed by them."""
        from ._calibrate import Prediction

        core, out = self._live(), ffi.new("struct ggml_backend_sched_prediction *")
        with core.lock:
            _check(lib.ggml_backend_sched_get_prediction(core.ptr, out), "Scheduler.prediction")
        return None if out.us < 0 else Prediction(out.us, out.weights_us, out.bound_us, bool(out.proved))

    @property
    def backends(self) -> list[Backend]:
        return list(self._backends)

    @property
    def n_splits(self) -> int:
        """Of the last graph."""
        core = self._live()
        with core.lock:
            return int(lib.ggml_backend_sched_get_n_splits(core.ptr))

    @property
    def splits(self) -> list[Split]:
        """Of the graph allocated last, in the order in which they run."""
        core = self._live()
        with core.lock:
            graph, front = core.graph, self._graph
            if graph is None or front is None:
                return []
            info = ffi.new("struct ggml_backend_sched_split_info *")
            found = []
            for i in range(self.n_splits):
                _check(lib.ggml_backend_sched_get_split(core.ptr, i, info), "Scheduler.splits")
                nodes = [Tensor(front._ctx, graph.ptr.nodes[j]) for j in range(info.i_start, info.i_end)]
                inputs = [Tensor(front._ctx, lib.ggml_backend_sched_get_split_input(core.ptr, i, j)) for j in range(info.n_inputs)]
                found.append(Split(i, self._backend_of(info.backend), nodes, inputs, int(info.input_bytes)))
            return found

    def buffer_size(self, backend: Backend) -> int:
        """Bytes of the compute buffer on a backend."""
        core, device = self._live(), self._device(backend)
        with core.lock:
            return int(lib.ggml_backend_sched_get_buffer_size(core.ptr, device.ptr))

    def memory(self, backend: Backend) -> Memory:
        """What the last graph needs on a backend."""
        core, device = self._live(), self._device(backend)
        out = ffi.new("size_t[2]")
        with core.lock:
            _check(lib.ggml_backend_sched_get_memory(core.ptr, device.ptr, out, out + 1), "Scheduler.memory")
        return Memory(int(out[0]), int(out[1]))

    # ---------------------------------------------------------------------------------------------------------------- lifetime

    def close(self) -> None:
        """Gives the compute buffers back (arrays keep them until they are gone): tensors in them lose their place. Closing twice is
        fine."""
        try:
            if self._trace is not None and self._core is not None and not self._core.busy:
                self._trace.stop()
        finally:
            self._close()

    def _close(self) -> None:
        core, self._core = self._core, None
        if core is None:
            return
        self._graph = None
        try:
            if not core.busy:
                with self._use(core):
                    core.synchronize()
                    _check(lib.ggml_backend_sched_reset(core.ptr), "Scheduler.close")
                    core.unplace()
        finally:
            core.closed = True
            core.version += 1
            self._lock = None
            del core
            reap()

    def __repr__(self) -> str:
        names = ", ".join(b.name for b in self._backends)
        return "<Scheduler closed>" if self._core is None else f"<Scheduler {names}: {self.n_splits} splits>"

