"""Plans within a limit: chooses results that a graph computes again, so that its plan needs less memory.

The first step is another order of the nodes, which costs nothing and shortens lifetimes. Then C finds a graph with
fewer bytes alive (``ggml_graph_recompute``). A plan may need more: it has copies, gaps, and one arena for each device.
So the limit for C is lowered until the plan keeps the user's limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._base.errors import AllocationError, raise_last
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
_ORDERS = 3  # searches for an order; each begins with the order that the search before it found
Found = tuple[Graph, "Recomputation", dict[Tensor, Tensor]]


@dataclass(frozen=True)
class Recomputation:
    """The nodes that a plan with ``max_bytes`` computes again, and the price.

    Work counts an operation as 1, and a byte that is read or written as 8.
    """

    nodes: tuple[str, ...]  #: names of the nodes that run again, in the order of running; one may occur several times
    price: float  #: work of the graph, relative to the graph without a limit; 1.0: nothing runs again
    peak: int  #: bytes of all arenas
    peak_before: int  #: bytes of all arenas without a limit
    least: int  #: bytes alive at once at the smallest limit that the search can meet; without a search, ``peak``
    lower_bound: int  #: no choice of nodes to compute again has fewer bytes alive at once; 0: there was no search


def _peak(plan: Plan) -> int:
    return sum(a.peak for a in plan.arenas)


class _Search:
    """Finds graphs that compute the same results as ``graph`` with less memory."""

    def __init__(self, sched: Scheduler, graph: Graph, plan: Plan, draft: Callable[[Graph], Plan]) -> None:
        self.sched, self.graph, self.draft = sched, graph, draft
        self.nodes = graph.nodes
        self.counted = ffi.new("bool[]", max(len(self.nodes), 1))  # nodes in arenas
        for block in (b for a in plan.arenas for b in a.blocks if b.node >= 0):
            self.counted[block.node] = True
        several = len(sched.backends) > 1
        self.backends = [sched.get_backend(t) if several else None for t in self.nodes]

    def find(self, max_bytes: int) -> tuple[Graph | None, Any]:
        """The graph with at most this many bytes alive. None: there is none."""
        core, context, info = self.graph._live(), Context(), ffi.new("struct ggml_recompute_info *")
        fresh = context._live()
        for other in self.graph._ctx._live().family():
            fresh.adopt(other, "Scheduler.prepare")
        pointer = lib.ggml_graph_recompute(fresh.ptr, core.ptr, max_bytes, self.counted, info)
        if not pointer:
            if max_bytes >= info.least:  # the limit is not the reason of the failure
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

    def again(self, nodes: list[Tensor], origins: list[int]) -> tuple[str, ...]:
        """Names of the nodes that run again."""
        seen: set[int] = set()
        names = []
        for t, origin in zip(nodes, origins, strict=True):
            if origin in seen and not t._p.view_src:
                names.append(self.nodes[origin].name)
            seen.add(origin)
        return tuple(names)

    def fit(self, max_bytes: int, peak_before: int) -> Found:
        """The graph whose plan keeps the limit."""
        target, lowest, is_least = max_bytes, 0, False
        for trial in range(_TRIALS):
            found, about = self.find(target)
            if found is None:  # no graph needs so little
                target, is_least = int(about.least), True
                found, about = self.find(target)
                assert found is not None
            info, origins, nodes = about
            self.pin(nodes, origins)
            peak = _peak(self.draft(found))
            if peak <= max_bytes:
                price = 1 + info.again / info.work if info.work else 1.0
                numbers = peak, peak_before, int(info.least), int(info.lower_bound)
                made = {self.nodes[origin]: t for t, origin in zip(nodes, origins, strict=True)}
                return found, Recomputation(self.again(nodes, origins), price, *numbers), made
            self.pin(nodes, origins, release=True)
            lowest = min(lowest or peak, peak)
            if is_least:
                break
            target = 0 if trial == _TRIALS - 2 else min(target - 1, target * max_bytes // peak)
        raise AllocationError(
            f"Scheduler.prepare: max_bytes is {max_bytes} ({size_text(max_bytes)}), and the plan with the least memory"
            f" that was found needs {lowest} bytes ({size_text(lowest)}); no choice of nodes to compute again has fewer"
            f" than {int(info.lower_bound)} bytes alive at once"
        )


def recomputed(
    sched: Scheduler,
    graph: Graph,
    max_bytes: int,
    draft: Callable[[Graph], Plan],
    better_order: Callable[[Graph], Graph],
) -> Found:
    """A graph whose plan needs at most ``max_bytes``, what it computes again, and its tensor for each node."""
    before = _peak(draft(graph))
    if before <= max_bytes:
        return graph, Recomputation((), 1.0, before, before, before, 0), {}
    for _ in range(_ORDERS):
        graph = better_order(graph)
    plan = draft(graph)
    if _peak(plan) <= max_bytes:
        return graph, Recomputation((), 1.0, _peak(plan), before, _peak(plan), 0), {}
    return _Search(sched, graph, plan, draft).fit(max_bytes, before)
