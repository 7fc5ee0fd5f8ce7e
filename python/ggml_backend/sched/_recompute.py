"""Plans within a limit: chooses results that a graph computes again, so that its plan needs less memory.

The first step is another order of the nodes, which costs nothing and shortens lifetimes. Then C finds graphs with
fewer bytes alive, for all limits (``ggml_recompute_new``). A plan may need more: it has copies, gaps, and one arena
for each device. So graphs are planned from the cheapest one on, until a plan keeps the user's limit. The order of the
graphs does not depend on the limit, so a higher limit never costs more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._base.errors import AllocationError, raise_last
from .._base.handles import owned, use
from .._base.text import size_text
from .._ffi import ffi, lib
from ..tensor.context import Context
from ..tensor.graph import Graph, GraphCore
from ..tensor.tensor import Tensor

if TYPE_CHECKING:
    from .plan import Plan
    from .scheduler import Scheduler

__all__ = ["Recomputation", "recomputed"]

_PLAN_BUDGET_MS = 300  # gaps of a plan are bytes that the search for repetitions has saved in vain
_ORDERS = 3  # each search for an order begins with the order that the search before it found
Found = tuple[Graph, "Recomputation", dict[Tensor, Tensor]]


@dataclass(frozen=True)
class Recomputation:
    """Says which nodes a plan with ``max_bytes`` computes again, and how much work that is.

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
        self.core = core = graph._live()  # the search reads its nodes
        search = lib.ggml_recompute_new(core.ptr, self.counted)
        if not search:
            raise_last("Scheduler.prepare")
        self.search = owned(search, lib.ggml_recompute_free)

    def find(self, max_bytes: int) -> tuple[Graph | None, Any]:
        """The graph with at most this many bytes alive. None: there is none."""
        context, info = Context(), ffi.new("struct ggml_recompute_info *")
        fresh = context._live()
        for other in self.graph._ctx._live().family():
            fresh.adopt(other, "Scheduler.prepare")
        pointer = lib.ggml_recompute_graph(self.search, fresh.ptr, max_bytes, info)
        if not pointer:
            if max_bytes >= info.least:  # the limit is not why it failed
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
        """The cheapest graph whose plan keeps the limit."""
        target, lowest, bound = max_bytes, 0, 0
        while True:
            found, about = self.find(target)
            if found is None:  # no graph has fewer bytes alive
                lowest = lowest or self.planned(int(about.least))
                bound = int(about.lower_bound)
                break
            info, origins, nodes = about
            self.pin(nodes, origins)
            peak = _peak(self.draft(found))
            if peak <= max_bytes:
                price = 1 + info.again / info.work if info.work else 1.0
                numbers = peak, peak_before, int(info.least), int(info.lower_bound)
                made = {self.nodes[origin]: t for t, origin in zip(nodes, origins, strict=True)}
                return found, Recomputation(self.again(nodes, origins), price, *numbers), made
            self.pin(nodes, origins, release=True)
            lowest, bound = min(lowest or peak, peak), int(info.lower_bound)
            if not info.after:  # the plan has only copies, or results without elements
                break
            target = int(info.after) - 1
        raise AllocationError(
            f"Scheduler.prepare: max_bytes is {max_bytes} ({size_text(max_bytes)}), and the plan with the least memory"
            f" that was found needs {lowest} bytes ({size_text(lowest)}); no choice of nodes to compute again has fewer"
            f" than {bound} bytes alive at once"
        )

    def planned(self, max_bytes: int) -> int:
        """The memory of the plan with at most this many bytes alive."""
        found, (_, origins, nodes) = self.find(max_bytes)
        assert found is not None
        self.pin(nodes, origins)
        peak = _peak(self.draft(found))
        self.pin(nodes, origins, release=True)
        return peak


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
    core = sched._live()
    # The budget stays. A plan that the scheduler has dropped is made again later, and must then keep the limit, too.
    with use("Scheduler.prepare", core):
        if lib.ggml_backend_sched_set_plan_budget(core.ptr, _PLAN_BUDGET_MS):
            raise_last("Scheduler.prepare")
    return _Search(sched, graph, plan, draft).fit(max_bytes, before)
