"""Plans within a limit: chooses results that a graph computes again, so that its plan needs less memory.

C finds the graph (``ggml_graph_recompute``). It counts bytes alive. A plan may need more: it has copies, gaps, and one
arena for each device. So the limit for C is lowered until the plan keeps the user's limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._base.errors import AllocationError, StateError, raise_last
from .._base.text import size_text
from .._ffi import ffi, lib
from ..tensor.context import Context
from ..tensor.graph import Graph, GraphCore
from ..tensor.tensor import Tensor

if TYPE_CHECKING:
    from .plan import Plan
    from .scheduler import Scheduler

__all__ = ["Recomputation", "recomputed"]

_TRIALS = 6


@dataclass(frozen=True)
class Recomputation:
    """What a plan with ``max_bytes`` computes again, and what that costs.

    Work counts an operation as 1, and a byte that is read or written as 8.
    """

    nodes: tuple[str, ...]  #: names of the nodes that run again, in the order of running; one may occur several times
    price: float  #: work of the graph, relative to the graph without a limit; 1.0: nothing runs again
    peak: int  #: bytes of all arenas
    peak_before: int  #: bytes of all arenas without a limit
    least: int  #: bytes alive at once at the smallest limit that the search can meet
    lower_bound: int  #: no choice of nodes to compute again has fewer bytes alive at once


def _peak(plan: Plan) -> int:
    return sum(a.peak for a in plan.arenas)


def _must_be_unplaced(graph: Graph) -> None:
    for node in graph.nodes:
        if node.is_placed and not node._p.view_src:
            raise StateError(
                f"Scheduler.prepare: max_bytes: {node.describe()} has memory already: prepare a graph before it is"
                " allocated or computed, or call reset() first"
            )


class _Search:
    """Graphs with the results of ``graph``, and their plans."""

    def __init__(self, sched: Scheduler, graph: Graph, draft: Callable[[Graph], Plan]) -> None:
        self.sched, self.graph, self.draft = sched, graph, draft
        self.peak_before = _peak(draft(graph))
        self.nodes = graph.nodes
        several = len(sched.backends) > 1
        self.backends = [sched.get_backend(t) if several else None for t in self.nodes]

    def find(self, max_bytes: int) -> tuple[Graph | None, Any]:
        """The graph with at most this many bytes alive. None: there is none."""
        core, context, info = self.graph._live(), Context(), ffi.new("struct ggml_recompute_info *")
        fresh = context._live()
        for other in self.graph._ctx._live().family():
            fresh.adopt(other, "Scheduler.prepare")
        pointer = lib.ggml_graph_recompute(fresh.ptr, core.ptr, max_bytes, info)
        if not pointer:
            if not info.least:
                raise_last("Scheduler.prepare")
            return None, info
        made = GraphCore(pointer, fresh)
        origins = list(info.origins[0 : pointer.n_nodes])
        place = {origin: k for k, origin in enumerate(origins)}
        index = {t: i for i, t in enumerate(self.nodes)}
        graph = Graph(context, made)
        nodes = graph.nodes
        graph._outputs = tuple(nodes[place[index[t]]] if t in index else t for t in self.graph._outputs)
        return graph, (info, origins, nodes)

    def pin(self, nodes: list[Tensor], origins: list[int], release: bool = False) -> None:
        """Assigns clones to the backends of their nodes, so that they compute the same bits."""
        for t, origin in zip(nodes, origins, strict=True):
            backend = self.backends[origin]
            if backend is not None and t != self.nodes[origin]:
                self.sched.set_backend(t, None if release else backend)


def recomputed(
    sched: Scheduler, graph: Graph, max_bytes: int, draft: Callable[[Graph], Plan]
) -> tuple[Graph, Recomputation]:
    """A graph whose plan needs at most ``max_bytes``, and what it computes again."""
    search = _Search(sched, graph, draft)
    if search.peak_before <= max_bytes:
        before = search.peak_before
        return graph, Recomputation((), 1.0, before, before, before, 0)
    _must_be_unplaced(graph)
    target, lowest, least = max_bytes, 0, False
    for trial in range(_TRIALS + 1):
        found, about = search.find(target)
        if found is None:
            target, least = int(about.least), True
            continue
        info, origins, nodes = about
        search.pin(nodes, origins)
        peak = _peak(draft(found))
        if peak <= max_bytes:
            seen: set[int] = set()
            again = []
            for t, origin in zip(nodes, origins, strict=True):
                if origin in seen and not t._p.view_src:
                    again.append(search.nodes[origin].name)
                seen.add(origin)
            price = 1 + info.again / info.work if info.work else 1.0
            return found, Recomputation(
                tuple(again), price, peak, search.peak_before, int(info.least), int(info.lower_bound)
            )
        search.pin(nodes, origins, release=True)
        lowest = min(lowest or peak, peak)
        if least:
            break
        least = trial == _TRIALS - 1
        target = int(info.least) if least else min(target - 1, target * max_bytes // peak)
    raise AllocationError(
        f"Scheduler.prepare: max_bytes is {max_bytes} ({size_text(max_bytes)}), and the plan with the least memory that"
        f" was found needs {lowest} bytes ({size_text(lowest)}); no choice of nodes to compute again has fewer than"
        f" {int(info.lower_bound)} bytes alive at once"
    )
