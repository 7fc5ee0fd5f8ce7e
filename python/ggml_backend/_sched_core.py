"""The C object behind a scheduler, what its planned graph needs, and the runs that may still be on their way."""

from __future__ import annotations

import atexit
import contextlib
from collections import deque
from typing import Any

from ._callbacks import Run
from ._errors import check, raise_last
from ._ffi import ffi, lib
from ._handles import OwnerCore, address
from .backend import BackendCore
from .graph import ABORTED, GraphCore, finish
from .pending import Flight

__all__ = ["SchedCore"]


class SchedCore(OwnerCore):
    """A ``ggml_backend_sched``, and what the graph that it has planned last needs."""

    __slots__ = (
        "async_run", "dirty", "flights", "graph", "holding", "may_warn", "n_buffers", "n_copies", "n_made", "n_nodes", "versions",
        "written",
    )  # fmt: skip

    def __init__(self, ptr: Any, backends: tuple[BackendCore, ...]) -> None:
        super().__init__(ptr, backends, lib.ggml_backend_sched_free)
        self.memory.scratch = True
        self.n_buffers: int = 0
        self.forget()
        self.async_run: tuple[GraphCore, Run | None] | None = None
        self.flights: deque[Flight] = deque()  # runs that may not be complete
        self.n_copies: int = 1
        self.may_warn: bool = any(not b.is_cpu for b in backends[:-1])  # there is a device that work could fall from
        self.n_made: int = 0

    def forget(self) -> None:
        self.graph: GraphCore | None = None
        self.n_nodes: int = 0
        self.holding: tuple[OwnerCore, ...] = ()  # memory of others that the plan uses
        self.versions: tuple[int, ...] = ()
        self.written: frozenset[int] | None = None  # addresses of the tensors whose memory nodes write
        self.dirty: bool = True

    @property
    def backends(self) -> tuple[BackendCore, ...]:
        return self.parents  # type: ignore[return-value]

    def planned(self, graph: GraphCore) -> bool:
        return (
            not self.dirty
            and self.graph is graph
            and self.n_nodes == graph.ptr.n_nodes
            and self.versions == tuple([o.version for o in self.holding])
        )

    def made_plans(self) -> bool:
        """Has C made a plan since the last call, rather than found one?"""
        stats = ffi.new("struct ggml_backend_sched_stats *")
        check(lib.ggml_backend_sched_get_stats(self.ptr, stats), "Scheduler")
        before, self.n_made = self.n_made, int(stats.n_plans_made + stats.n_plans_replayed)
        return self.n_made != before

    def own_new(self) -> None:
        """Registers the buffers that C has made meanwhile."""
        n = lib.gbpy_sched_n_buffers(self.ptr)
        while self.n_buffers < n:
            self.own(lib.gbpy_sched_buffer(self.ptr, self.n_buffers))
            self.n_buffers += 1

    def hold(self) -> None:
        lib.gbpy_sched_hold(self.ptr, True)

    def has(self, tensor: Any) -> bool:
        return bool(lib.gbpy_sched_has(self.ptr, tensor))

    def make_way(self, graph: GraphCore) -> None:
        """Before another asynchronous run: waits until there may be one more."""
        if self.async_run is None:
            return
        if self.n_copies < 2 or self.async_run[1] is not None or self.async_run[0] is not graph or not self.planned(graph):
            self.synchronize()
        while len(self.flights) >= self.n_copies:
            self.flights[0].wait(self)
            self.flights.popleft()

    def uses(self, owner: OwnerCore) -> bool:
        return self.async_run is not None and owner in self.holding

    def before_set(self, tensor: Any) -> None:
        root, buffer = tensor.view_src or tensor, lib.gbpy_buffer(tensor)
        is_input = lib.ggml_is_input(root) and buffer and lib.ggml_backend_buffer_is_host(buffer)
        if self.async_run is not None and self.n_copies > 1 and is_input:
            if self.written is None:
                graph = self.async_run[0].ptr
                self.written = frozenset(address(n.view_src or n) for n in ffi.unpack(graph.nodes, graph.n_nodes))
            if address(root) not in self.written:
                return  # its content was taken when the run was issued
        self.synchronize()

    def synchronize(self) -> None:
        """Waits for the asynchronous computation, if there is one; raises its failure."""
        if self.async_run is None:
            return
        graph, run = self.async_run
        status = lib.ggml_backend_sched_synchronize(self.ptr)
        self.async_run = None
        for flight in self.flights:
            flight.state = "failed" if status != 0 or flight.state == "failed" else "done"
        self.flights = deque()
        self.entry.keep = None
        self.working.pop(id(self), None)
        for b in self.backends:
            if b.pending is self.ref:
                b.pending = None
        finish(graph, run, self.backends)
        if status not in (0, ABORTED):
            raise_last("Scheduler.synchronize", status)


@atexit.register
def _wait_for_all() -> None:
    """Devices must not compute while the interpreter gives memory back."""
    for ref in list(SchedCore.working.values()):
        core = ref()
        if core is not None:
            with contextlib.suppress(Exception):
                core.synchronize()
