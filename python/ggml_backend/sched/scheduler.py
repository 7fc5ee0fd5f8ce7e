"""The scheduler: one graph over several backends."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from .._base.errors import (
    AllocationError,
    InvalidArgumentError,
    StateError,
    expect,
    expect_bool,
    expect_function,
    expect_int,
    expect_list,
    expect_path,
    raise_last,
)
from .._base.errors import check as _check
from .._base.errors.faults import message_of
from .._base.files import can_write
from .._base.handles import Core, Handle, fail, handles_of, new_handle, use
from .._base.renamed import Renamed
from .._base.text import count
from .._ffi import ffi, lib
from ..backend.backend import Backend, BackendCore
from ..backend.buffer import BufferType, text
from ..tensor._callbacks import Eval, Run, RunState, Wanted, raise_abort_errors, wanted_function
from ..tensor.graph import ABORTED, Graph, GraphCore
from ..tensor.tensor import Tensor, add_largest
from .pending import Fetch, Pending, fetch_arrays
from .plan import Plan, Split, read_plan, read_reasons, read_splits

if TYPE_CHECKING:
    from ..profile.profile import Profile
    from ._costs import Costs, Prediction
    from .stats import SchedulerStats
    from .trace import Trace

__all__ = ["Memory", "Scheduler"]

_POLICIES = {name: getattr(lib, f"GGML_BACKEND_SCHED_POLICY_{name.upper()}") for name in ("weights", "sources", "cost")}
MAX_COPIES = 64  # the limit of C
_compute = lib.gbpy_sched_compute
_PLANNED: int = lib.GBPY_PLANNED
_A = TypeVar("_A")
_NULL = ffi.NULL
_new = ffi.new
_how_type: Any = ffi.typeof("int *")


class SchedCore(Core):
    """Owns a ``ggml_backend_sched``. C keeps its plans and its pending runs."""

    __slots__ = ("failures", "may_warn", "names")
    may_warn: bool
    names: tuple[str, ...]

    def __init__(self, backends: tuple[BackendCore, ...], buffer_types: Sequence[BufferType] | None) -> None:
        h = new_handle()
        bufts: Any = _NULL
        if buffer_types is not None:
            bufts = ffi.new("ggml_backend_buffer_type_t[]", [t._ptr for t in buffer_types])
        else:
            bufts = _shared_host_types(backends)
        status = lib.gbpy_open_sched(h, handles_of(backends), bufts, len(backends))
        if status:
            fail(status, "Scheduler")
        super().__init__(h, "struct ggml_backend_sched *", backends)
        # numbers several CPUs: CPU, CPU1
        self.names = tuple(text(lib.gbpy_sched_device_name(h, i)) for i in range(len(backends)))
        # true if a device other than a CPU exists
        self.may_warn = len(backends) > 1 and any(not b.is_cpu for b in backends)
        # the last pending run whose callback has raised, until its Pending or synchronize() raises the exception
        self.failures: deque[RunState] = deque(maxlen=1)

    @property
    def backends(self) -> tuple[BackendCore, ...]:
        return self.parents  # type: ignore[return-value]

    @property
    def may_abort(self) -> bool:
        """True if a backend has an abort callback."""
        return any(b.abort is not None for b in self.backends)

    @property
    def named(self) -> list[tuple[Any, str]]:
        """C backends with their public names."""
        return [(b.ptr, name) for b, name in zip(self.backends, self.names, strict=True)]

    def synchronize(self) -> None:
        """Waits for pending runs. Raises failures of runs that this thread started, or whose
        ``Pending`` is gone."""
        status = lib.gbpy_sched_wait(self.h, _NULL)
        with contextlib.suppress(IndexError):
            self.failures.pop().raise_unheard()
        raise_abort_errors(self.backends)
        if status not in (0, ABORTED):
            raise_last("Scheduler.synchronize", status)


def _shared_host_types(backends: tuple[BackendCore, ...]) -> Any:
    """Buffer types that let the CPU write results into host memory of a device in Python, so that
    neither copies results of the other. NULL without such a device."""
    shared = next((t for t in (lib.gbpy_device_host_type(b.h) for b in backends) if t), None)
    if shared is None:
        return _NULL
    return ffi.new("ggml_backend_buffer_type_t[]", [shared if b.is_cpu else _NULL for b in backends])


def _unassigned(node: Tensor, graph: Graph | None, which: str) -> str:
    """A text about the reason why a tensor has no backend."""
    if graph is None:
        return "no backend: no graph is allocated"
    with contextlib.suppress(StateError):  # its context is closed
        if any(t == node for t in (*graph.nodes, *graph.leafs)):
            return f"no backend: {node.describe()} needs none"
    return f"no backend: {node.describe()} is not in {which}"


class Memory(NamedTuple):
    """Bytes that the plan of a graph needs on one backend, by the names of :class:`ArenaPlan`."""

    allocated: int
    """The arena (``plan.memory[...].peak``), inputs that the scheduler places, and kept copies."""
    no_reuse: int
    """Bytes of these tensors without sharing of memory."""


class Scheduler(Handle):
    """Runs one graph on several backends.

    The scheduler assigns each node to a backend, copies tensors between backends, and plans memory.

    backends: one backend, or several, fastest first. The last one runs what the others cannot,
        usually the CPU
    buffer_types: one for each backend; default: the backend's own
    policy: how to assign nodes that you did not assign yourself. ``"weights"``: run a node where
        its weights are; ``"sources"``: run a node where its largest input is; ``"cost"``: minimize
        the predicted run time (docs/PLACEMENT.md), or ``"weights"`` without costs
    costs: for the policy ``"cost"``; default: what ``python -m ggml_backend calibrate`` measured,
        if it measured every backend
    n_copies: number of runs that ``compute_async`` may keep pending, 1 to 64
    keep_all: keep every intermediate result readable. Uses more memory; for debugging. The tensors
        of a planned graph are then kept by other schedulers, too
    check: verify each run for races and reads of stale memory. Slow; for debugging

    ``allocate`` gives memory to every tensor of a graph that has none. Then you can set inputs, and
    call ``compute`` as often as you want::

        sched = Scheduler([Backend("SIM"), Backend("CPU")])
        sched.allocate(graph)
        x.set(array)
        sched.compute(graph)
        print(y.numpy())

    Inputs keep their data. Results are valid until another graph is allocated or computed. Only
    outputs of the graph are kept to its end; other results lose their memory while it runs, unless
    you keep them (``ctx.graph(y, keep=[h])``, or ``keep_all``).

    A scheduler remembers the last 16 graphs. Inputs of older graphs lose their data and must be set
    again. Use ``Context.allocate`` for data that must stay.

    Reading or computing with missing data raises :class:`StateError`: results that were not
    computed since an input was set, results whose memory was reused, and inputs that were not set.
    ``x.numpy()`` sets an unset input in host memory to zeros.

    Arrays from ``Tensor.numpy()`` stay valid memory; the next computation overwrites them.

    Calls from several threads wait for each other.
    """

    __slots__ = (
        "__weakref__",
        "_backends",
        "_buffer_types",
        "_core",
        "_eval",
        "_graph",
        "_n_copies",
        "_profile",
        "_trace",
    )

    def __init__(
        self,
        backends: Backend | Sequence[Backend],
        buffer_types: Sequence[BufferType] | None = None,
        *,
        policy: Literal["weights", "sources", "cost"] = "weights",
        costs: Costs | None = None,
        n_copies: int = 1,
        keep_all: bool = False,
        check: bool = False,
    ) -> None:
        self._core: SchedCore | None = None
        given: Any = backends
        self._backends: tuple[Backend, ...] = (
            tuple(given) if isinstance(given, Iterable) and not isinstance(given, (str, Graph)) else (given,)
        )
        if not self._backends:
            raise InvalidArgumentError("Scheduler: needs at least one backend")
        if isinstance(buffer_types, Backend):
            raise TypeError("Scheduler: several backends are a list: Scheduler([a, b])")
        types = None if buffer_types is None else expect_list(buffer_types, "Scheduler: buffer_types", "buffer types")
        if types is not None and len(types) != len(self._backends):
            raise InvalidArgumentError(f"Scheduler: {len(self._backends)} backends, {len(types)} buffer types")
        self._buffer_types: tuple[BufferType, ...] | None = types
        self._eval: tuple[Callable[[Tensor], bool | None], Callable[[Tensor], bool]] | None = None
        self._graph: Graph | None = None  # the graph of the last call
        self._n_copies = 1
        self._profile: Callable[[], Profile | None] = lambda: None  # the last one that was started
        self._trace: Trace | None = None  # the one being recorded
        for b in self._backends:
            expect(b, Backend, "Scheduler: each backend")
        for t in self._buffer_types or ():
            expect(t, BufferType, "Scheduler: each buffer type")
        if not isinstance(policy, str) or policy not in _POLICIES:
            raise InvalidArgumentError(
                f"Scheduler: policy must be one of {', '.join(map(repr, _POLICIES))}, not {policy!r}"
            )
        keep_all, check = expect_bool(keep_all, "Scheduler: keep_all"), expect_bool(check, "Scheduler: check")
        n_copies = expect_int(n_copies, "Scheduler: n_copies")
        self._core = core = SchedCore(tuple(b._live() for b in self._backends), self._buffer_types)
        _check(lib.ggml_backend_sched_set_policy(core.ptr, _POLICIES[policy]), "Scheduler")
        if keep_all:
            lib.gbpy_sched_keep_all(core.h, True)
        if check:  # otherwise the environment decides
            _check(lib.ggml_backend_sched_set_check(core.ptr, True), "Scheduler")
        if n_copies != 1:
            self.n_copies = n_copies
        if policy == "cost" or costs is not None:
            from ._costs import Costs

            costs = Costs.cached(self._backends) if costs is None else costs
            if costs is not None:
                expect(costs, Costs, "Scheduler: costs")
        if costs is not None:
            costs._set(core.ptr, len(self._backends))

    @staticmethod
    def _graph_of(graph: Graph, what: str) -> GraphCore:
        expect(graph, Graph, what)
        return graph._live()

    def _live(self) -> SchedCore:
        core = self._core
        if core is None:
            raise StateError("the scheduler is closed")
        return core

    # --------------------------------------------------------------------------------------------------------- planning

    def _plan(
        self, core: SchedCore, graph: Graph, graph_core: GraphCore, kind: int, what: str, warn: bool = True
    ) -> None:
        how = _new(_how_type, 0 if warn else lib.GBPY_QUIET)
        self._graph = graph
        status = lib.gbpy_sched_plan(core.h, graph_core.h, kind, how)
        if how[0]:
            self._planned(core, how[0])
        if status:
            try:
                raise_last(what, status)
            except AllocationError as error:
                add_largest(error, [*graph.leafs, *graph.nodes])
                raise

    @staticmethod
    def _planned(core: SchedCore, how: int) -> None:
        """Warns if a plan was made."""
        if how & _PLANNED and core.may_warn:
            from ._fallbacks import heavy_fallbacks, unmarked_weights, warn_of, warn_of_weights

            with use("Scheduler", core, nested=True):
                found = heavy_fallbacks(
                    core.ptr, [(ptr, name, b.is_cpu) for b, (ptr, name) in zip(core.backends, core.named, strict=True)]
                )
                weights = unmarked_weights(core.ptr, dict(core.named))
            warn_of(found)
            warn_of_weights(weights)

    def allocate(self, graph: Graph) -> None:
        """Assigns the graph's nodes to backends and gives memory to every tensor that has none.

        Warns (:class:`PerformanceWarning`), once per plan, about heavy operations that a faster
        device does not support, and about weights that are copied because the usage of their buffer
        is ``"any"``. Raises :class:`UnsupportedError` if no backend can run a node,
        :class:`AllocationError` if memory is short.
        """
        core, graph_core = self._live(), self._graph_of(graph, "Scheduler.allocate: graph")
        self._plan(core, graph, graph_core, lib.GBPY_PLAN_ALLOCATE, "Scheduler.allocate")

    def prepare(
        self, graph: Graph, *, allocate: bool = True, reorder: bool = False, max_bytes: int | None = None
    ) -> Plan:
        """Allocates the graph, as :meth:`allocate` does, and returns the plan: memory, splits, copies,
        reasons, pictures.

        allocate: False makes the plan only. No memory is allocated, and graphs that do not fit can
            be planned
        reorder: use :meth:`Graph.reordered` if that lowers the bound of the memory without more
            splits or copies; ``plan.graph`` is then that graph. The scheduler must not have placed
            tensors of the graph yet
        max_bytes: the most bytes for the arenas of all backends together (``peak``). Some results are
            dropped after a use, and computed again before the next one (gradient checkpointing).
            ``plan.graph`` is then another graph with the same results: read ``plan.result(y)`` instead
            of ``y``. ``plan.recomputation`` has the price. Raises :class:`AllocationError`, with the
            least that was found, if no choice fits
        """
        self._live()
        self._graph_of(graph, "Scheduler.prepare: graph")
        limit = None if max_bytes is None else expect_int(max_bytes, "Scheduler.prepare: max_bytes")
        if limit is not None and limit < 0:
            raise InvalidArgumentError(f"Scheduler.prepare: max_bytes {limit} is negative")
        if expect_bool(reorder, "Scheduler.prepare: reorder"):
            graph = self._better_order(graph)
        allocate = expect_bool(allocate, "Scheduler.prepare: allocate")
        again, results = None, dict[Tensor, Tensor]()
        if limit is not None:
            from ._recompute import recomputed

            graph, again, results = recomputed(self, graph, limit, self._plan_object, self._better_order)
        plan = self._plan_object(graph, lib.GBPY_PLAN_ALLOCATE if allocate else lib.GBPY_PLAN_ONLY, warn=True)
        plan.recomputation, plan._results = again, results
        return plan

    def _asked(self, graph: Graph, kind: int, answer: Callable[[SchedCore, GraphCore], _A], warn: bool = True) -> _A:
        """Reads the plan of this graph. Makes it again if it is not the last plan."""
        core, graph_core = self._live(), graph._live()
        while True:
            self._plan(core, graph, graph_core, kind, "Scheduler.prepare", warn)
            with use("Scheduler.prepare", core):
                if lib.gbpy_sched_is_about(core.h, graph_core.h):  # otherwise another thread has planned another graph
                    return answer(core, graph_core)

    def _better_order(self, graph: Graph) -> Graph:
        other = graph.reordered()

        def needs(plan: Plan) -> tuple[int, int, int]:
            return sum(a.lower_bound for a in plan.arenas), len(plan.splits), sum(c.nbytes for c in plan.copies)

        before, after = (needs(self._plan_object(g)) for g in (graph, other))
        return other if after[0] < before[0] and after[1] <= before[1] and after[2] <= before[2] else graph

    def _plan_object(self, graph: Graph, kind: int = lib.GBPY_PLAN_ONLY, warn: bool = False) -> Plan:
        def read(core: SchedCore, graph_core: GraphCore) -> Plan:
            plan = Plan(self, graph, *read_plan(core.ptr, graph_core.ptr, core.named))
            plan._reasons = read_reasons(core.ptr, graph_core.ptr)
            return plan

        return self._asked(graph, kind, read, warn)

    def _explain_in(self, graph: Graph, node: Tensor) -> str:
        """Like :meth:`explain`, for the plan of this graph."""
        expect(node, Tensor, "Plan.explain: tensor")
        pointer = node._live()
        reason = self._asked(
            graph,
            lib.GBPY_PLAN_ONLY,
            lambda core, _: message_of(lib.ggml_backend_sched_explain(core.ptr, pointer)),
        )
        return reason or _unassigned(node, graph, "the graph of the plan")

    def reserve(self, graph: Graph) -> None:
        """Allocates memory for the graph and its inputs, without changing tensors. Later graphs of
        the same structure, with tensors of at most these sizes, reuse the memory and need no
        planning."""
        core, graph_core = self._live(), self._graph_of(graph, "Scheduler.reserve: graph")
        self._plan(core, graph, graph_core, lib.GBPY_PLAN_RESERVE, "Scheduler.reserve")

    def reset(self) -> None:
        """Discards assignments and placements. Tensors in memory of the scheduler lose it. The
        compute buffers are kept."""
        core = self._live()
        status = lib.gbpy_sched_reset(core.h)
        self._graph = None
        if status:
            raise_last("Scheduler.reset", status)

    # -------------------------------------------------------------------------------------------------------- computing

    def compute(
        self, graph: Graph, callback: Callable[[Tensor], bool | None] | None = None, wanted: Wanted = None
    ) -> bool:
        """Runs the graph. Allocates it first if necessary.

        callback: called with each tensor after it is computed. It may read the tensor with
            ``numpy()``. If it returns False, the computation ends
        wanted: tensors for the callback: a name pattern (``"layer.*"``), names or tensors, or a
            function of the tensor; default: all. Fewer are faster, because the other nodes can be
            fused

        Returns True, or False if the callback, :meth:`Backend.stop` or an abort callback ended it
        early. An exception in a callback ends the computation and is raised here.
        """
        core, graph_core = self._live(), self._graph_of(graph, "Scheduler.compute: graph")
        wish = self._eval
        if callback is not None:
            expect_function(callback, "Scheduler.compute: callback", "; inputs are set with x.set(array) before")
            wish = (callback, wanted_function(wanted, "Scheduler.compute", graph))
        how = _new(_how_type)
        self._graph = graph
        if wish is None and not graph_core.customs and not core.may_abort:
            status = _compute(core.h, graph_core.h, _NULL, _NULL, _NULL, how)
            if status == ABORTED:
                raise_abort_errors(core.backends)
        else:
            status = self._compute_with_callbacks(core, graph_core, graph, wish, how)
        if how[0]:
            self._planned(core, how[0])
        if status == 0:
            return True
        if status == ABORTED:
            return False
        raise_last("Scheduler.compute", status)

    @staticmethod
    def _compute_with_callbacks(core: SchedCore, graph_core: GraphCore, graph: Graph, wish: Any, how: Any) -> int:
        run = Run(core.backends, graph_core, graph_core.customs)
        if wish is None:
            status = int(_compute(core.h, graph_core.h, run.c, _NULL, _NULL, how))
        else:
            handle = ffi.new_handle(Eval(wish[0], wish[1], run.state, graph._ctx, graph_core.h))
            status = int(_compute(core.h, graph_core.h, run.c, lib.gbpy_eval, handle, how))
        run.finish()
        raise_abort_errors(core.backends)
        return status

    def compute_async(self, graph: Graph, results: Tensor | Sequence[Tensor] = ()) -> Pending:
        """Starts the computation and returns. ``synchronize``, and every call that needs its
        results, waits for it.

        results: outputs of the graph that ``pending.results()`` returns

        With ``n_copies`` of 2 or more, you can start the same graph again while a run is pending.
        You can set inputs in host memory as soon as this call returns; setting other tensors waits.
        ``results`` has the results of each run; ``numpy()`` waits for all runs and shows those of
        the last one. If ``n_copies`` runs are pending, this call waits for the first.
        """
        core, graph_core = self._live(), self._graph_of(graph, "Scheduler.compute_async: graph")
        results = (
            (results,)
            if isinstance(results, Tensor)
            else expect_list(results, "Scheduler.compute_async: results", "tensors")
        )
        for t in results:
            expect(t, Tensor, "Scheduler.compute_async: each result")
        fetches = [Fetch(t) for t in results]
        calls_python = graph_core.customs or core.may_abort
        run = Run(core.backends, graph_core, graph_core.customs, core.failures) if calls_python else None
        tensors, where = fetch_arrays(fetches)
        how, outcome = _new(_how_type), _new("struct gbpy_run_outcome *", {"held": True})
        # the run continues even if all objects are dropped now
        kept = (fetches, run, outcome, graph_core, [b.asked for b in core.backends])
        self._graph = graph
        status = lib.gbpy_sched_start(
            core.h,
            graph_core.h,
            run.c if run is not None else _NULL,
            id(kept),
            tensors,
            where,
            len(fetches),
            outcome,
            how,
        )
        if how[0]:
            self._planned(core, how[0])
        if status:
            if run is not None:
                run.finish()
            raise_abort_errors(core.backends)
            raise_last("Scheduler.compute_async", status)
        return Pending(core, outcome, fetches, run)

    def synchronize(self) -> bool:
        """Waits for all runs that ``compute_async`` started. Raises failures of runs that this thread
        started, or whose :class:`Pending` is gone. Other failures are raised by their
        :class:`Pending`."""
        core = self._live()
        core.synchronize()
        return True

    def set_eval_callback(self, callback: Callable[[Tensor], bool | None] | None, wanted: Wanted = None) -> None:
        """Sets the callback of every ``compute`` without its own. None removes it."""
        self._live()
        if callback is not None:
            expect_function(callback, "Scheduler.set_eval_callback: callback")
        self._eval = (
            (callback, wanted_function(wanted, "Scheduler.set_eval_callback")) if callback is not None else None
        )

    # -------------------------------------------------------------------------------------------------------- placement

    def _device(self, backend: Backend) -> BackendCore:
        expect(backend, Backend, "Scheduler: backend")
        core = backend._live()
        if core not in self._live().backends:
            own = ", ".join(self._live().names)
            raise InvalidArgumentError(f"Scheduler: {backend.name} is not one of its backends, which are {own}")
        return core

    def set_backend(self, node: Tensor, backend: Backend | None) -> None:
        """Assigns ``node`` to ``backend``. None: the scheduler decides. Takes effect with the next
        ``allocate`` or ``compute``."""
        core = self._live()
        expect(node, Tensor, "Scheduler.set_backend: node")
        pointer = node._live()
        device = self._device(backend) if backend is not None else None
        status = lib.gbpy_sched_set_backend(core.h, node._k, pointer, device.h if device is not None else _NULL)
        if status:
            raise_last(f"Scheduler.set_backend({node.describe()})", status)

    def get_backend(self, node: Tensor) -> Backend | None:
        """The backend of ``node``, from ``set_backend`` or the last ``allocate``; None if it is not
        assigned."""
        core = self._live()
        expect(node, Tensor, "Scheduler.get_backend: node")
        with use("Scheduler", core, nested=True):
            pointer = lib.ggml_backend_sched_get_node_backend(core.ptr, node._live())
        return self._backend_of(pointer) if pointer else None

    def _backend_of(self, pointer: Any) -> Backend:
        for backend, core in zip(self._backends, self._live().backends, strict=True):
            if core.ptr == pointer:
                return backend
        raise StateError("Scheduler: a backend that is not one of its own")

    def explain(self, node: Tensor) -> str:
        """The reason why the node is on its backend, or why it has none."""
        core = self._live()
        expect(node, Tensor, "Scheduler.explain: node")
        graph = self._graph
        with use("Scheduler", core, nested=True):
            reason = message_of(lib.ggml_backend_sched_explain(core.ptr, node._live()))
        return reason or _unassigned(node, graph, "the graph that was allocated last")

    # ----------------------------------------------------------------------------------------- what it does, in numbers

    @property
    def stats(self) -> SchedulerStats:
        """Counts since the scheduler was made, or since :meth:`reset_stats`: runs, plans, bytes by
        reason, waits, times."""
        from .stats import read_stats

        core = self._live()
        with use("Scheduler", core, nested=True):
            return read_stats(core.ptr, core.named)

    def reset_stats(self) -> None:
        """Sets all counts to zero."""
        core = self._live()
        status = lib.gbpy_sched_reset_stats(core.h)
        if status:
            raise_last("Scheduler.reset_stats", status)

    def trace(self, path: str | os.PathLike[str] | None = None) -> Trace:
        """Starts a record of the work of each device. It ends with the ``with`` block, ``stop()``,
        or ``close`` of the scheduler. It is then written as Chrome trace JSON, which
        https://ui.perfetto.dev opens::

            with sched.trace("run.json") as trace:
                sched.compute(graph)
            print(trace.events[0])

        While it records, each call waits for its run. Within a run devices overlap as usual. Failed
        runs are not recorded.
        """
        core = self._live()
        from .trace import Trace

        trace = Trace(self, path)
        try:
            with use("Scheduler.trace", core, *core.backends):
                if self._trace is not None:
                    raise StateError("Scheduler.trace: another trace is recording; stop() it first")
                if path is not None:
                    expect_path(path, "Scheduler.trace: path")
                    can_write(path)  # fails before the work, not after it
                _check(lib.gbpy_sched_finish(core.h), "Scheduler.trace")
                self._trace = trace
                _check(lib.ggml_backend_sched_set_trace(core.ptr, True), "Scheduler.trace")
                return trace
        except BaseException:
            if self._trace is trace:  # a signal handler has raised, and no other code can end the trace
                trace._path = None
                self._stop_trace(trace)
            raise

    def profile(self, *, max_records: int = 1 << 20) -> Profile:
        """Starts a profile: the time, work and algorithm of each operator. It ends with the
        ``with`` block, ``stop()``, or ``close`` of the scheduler::

            with sched.profile() as p:
                for _ in range(10):
                    sched.compute(graph)
            print(p.table(by="kind"))

        It records runs of this scheduler on any thread. Each call waits for its run. There is room
        for ``max_records`` records, about 100 bytes each, which take memory only as they come.
        ``Profile.dropped`` counts further records.
        """
        from ..profile.profile import begin

        profile = begin(self._live(), max_records, "Scheduler.profile")
        self._profile = weakref.ref(profile)
        return profile

    def _stop_trace(self, trace: Trace) -> None:
        """Does nothing if another thread has stopped the trace."""
        from .trace import read_events

        core = self._live()
        with use("Scheduler.trace", core, *core.backends):
            if self._trace is not trace:
                return
            _check(lib.gbpy_sched_finish(core.h), "Scheduler.trace")
            _check(lib.ggml_backend_sched_set_trace(core.ptr, False), "Scheduler.trace")
            trace._end(read_events(core.ptr))  # with the lock: a second thread that stops it finds it ended
            self._trace = None
        trace._complete(self._profile())

    @property
    def n_copies(self) -> int:
        """Number of runs of a graph that may be pending. Takes effect with the next allocation."""
        self._live()
        return self._n_copies

    @n_copies.setter
    def n_copies(self, n: int) -> None:
        core = self._live()
        if not 1 <= expect_int(n, "Scheduler: n_copies") <= MAX_COPIES:
            raise InvalidArgumentError(f"Scheduler: n_copies must be 1 to {MAX_COPIES}, not {n}")
        status = lib.gbpy_sched_set_n_copies(core.h, n)
        if status:
            raise_last("Scheduler", status)
        self._n_copies = n

    @property
    def prediction(self) -> Prediction | None:
        """Predicted time of the last graph; None if costs did not place it."""
        core, out = self._live(), ffi.new("struct ggml_backend_sched_prediction *")
        with use("Scheduler", core, nested=True):
            _check(lib.ggml_backend_sched_get_prediction(core.ptr, out), "Scheduler.prediction")
        from ._costs import Prediction

        return None if out.us < 0 else Prediction(out.us, out.weights_us, out.bound_us, bool(out.proved))

    @property
    def backends(self) -> list[Backend]:
        return list(self._backends)

    @property
    def n_splits(self) -> int:
        """Number of splits of the last graph."""
        core = self._live()
        with use("Scheduler", core, nested=True):
            return int(lib.ggml_backend_sched_get_n_splits(core.ptr))

    @property
    def splits(self) -> list[Split]:
        """Splits of the last graph, in order of execution."""
        core, graph = self._live(), self._graph
        if graph is None:
            return []
        graph_core, inside = graph._core, lib.gbpy_is_mine(core.h)
        with use("Scheduler", core, nested=True):
            if lib.gbpy_sched_has_splits_of(core.h, graph_core.h):
                return self._splits_of(core, graph_core)
        if inside:
            raise StateError("Scheduler.splits: another graph is being computed")
        return self._asked(
            graph, lib.GBPY_PLAN_ONLY, lambda core, graph_core: self._splits_of(core, graph_core), warn=False
        )

    def _splits_of(self, core: SchedCore, graph_core: GraphCore) -> list[Split]:
        """Reads splits with the scheduler's lock held. The last plan must be that of the graph."""
        return [*read_splits(core.ptr, graph_core.ptr, dict(core.named))]

    def buffer_nbytes(self, backend: Backend) -> int:
        """Bytes of the compute buffer on a backend."""
        core, device = self._live(), self._device(backend)
        with use("Scheduler", core, nested=True):
            return int(lib.ggml_backend_sched_get_buffer_size(core.ptr, device.ptr))

    buffer_size: ClassVar[Renamed] = Renamed("buffer_nbytes")

    def memory(self, backend: Backend) -> Memory:
        """Memory that the last graph needs on a backend."""
        core, device = self._live(), self._device(backend)
        out = ffi.new("size_t[2]")
        with use("Scheduler", core, nested=True):
            _check(lib.ggml_backend_sched_get_memory(core.ptr, device.ptr, out, out + 1), "Scheduler.memory")
        return Memory(int(out[0]), int(out[1]))

    # --------------------------------------------------------------------------------------------------------- lifetime

    def close(self) -> None:
        """Frees the compute buffers, or leaves them to the arrays that use them. Tensors in them lose
        their memory. Closing twice is allowed."""
        core = self._core
        if core is None:
            return
        try:
            profile = self._profile()
            if profile is not None:
                profile.stop()
            trace = self._trace  # once: another thread may stop it meanwhile
            if trace is not None and not lib.gbpy_is_mine(core.h):
                trace.stop()
        finally:
            status = lib.gbpy_sched_close(core.h)
            if core.closed:  # otherwise an interrupt came first
                self._core = self._graph = None
            if status:
                raise_last("Scheduler.close", status)

    @property
    def closed(self) -> bool:
        core = self._core  # once: another thread may close it meanwhile
        return core is None or core.closed

    def __repr__(self) -> str:
        core = self._core
        if core is None or core.closed:
            return "<Scheduler closed>"
        names = ", ".join(core.names)
        if lib.gbpy_is_busy(core.h):
            return f"<Scheduler {names}: in use>"
        return f"<Scheduler {names}: {count(self.n_splits, 'split')}>"
