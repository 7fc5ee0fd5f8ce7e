"""What a scheduler decided about a graph: :meth:`Scheduler.prepare <ggml_backend.Scheduler.prepare>` returns a :class:`Plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._pictures import PlanPictures
from .graph import Graph
from .tensor import Tensor

if TYPE_CHECKING:
    from .sched import Scheduler

__all__ = ["ArenaPlan", "CopyInfo", "Plan", "PlanBlock", "SplitInfo"]


@dataclass(frozen=True)
class PlanBlock:
    """One tensor's stay in the arena of a backend.

    Times are positions in the plan's program: the nodes in order, with the copies between them. Spans are half-open, sizes are bytes.
    """

    id: int  #: within its arena
    name: str  #: of the tensor; of a copy ``BACKEND#name``
    op: str
    backend: str
    lower: int
    upper: int
    size: int
    offset: int
    chunk: int  #: chunks have offsets of their own; more than one only where the backend's largest buffer is too small
    root: int | None  #: the block whose memory this one takes over in place

    @property
    def in_place(self) -> bool:
        return self.root is not None


@dataclass(frozen=True)
class ArenaPlan:
    """The memory of one backend, in bytes."""

    backend: str
    peak: int  #: of the arena
    lower_bound: int  #: no plan for these lifetimes needs less
    proved: bool  #: nor than ``peak``
    blocks: tuple[PlanBlock, ...]
    leafs: int  #: inputs and the like that the scheduler placed; they keep their memory from run to run
    replicas: int  #: kept copies of weights
    no_reuse: int  #: the arena, if no tensors shared memory

    @property
    def gap(self) -> float:
        """By how much ``peak`` exceeds the lower bound; 0.0 means optimal."""
        return self.peak / self.lower_bound - 1 if self.lower_bound else 0.0

    @property
    def total(self) -> int:
        """All that the plan needs on this backend."""
        return self.peak + self.leafs + self.replicas


@dataclass(frozen=True)
class SplitInfo:
    """A run of nodes on one backend. ``start`` and ``end`` are positions in the program, ``nodes`` the names."""

    index: int
    backend: str
    nodes: tuple[str, ...]
    start: int
    end: int
    n_inputs: int
    input_bytes: int


@dataclass(frozen=True)
class CopyInfo:
    """A copy that the plan makes.

    ``reason``: "input" is made each run, "kept" only when the original was written since, "write-back" brings a result home.
    """

    name: str
    src_backend: str  #: "host" for memory of the user that belongs to none of the backends
    dst_backend: str
    size: int
    split: int  #: before which it is made; a write-back: after which
    reason: str


class Plan(PlanPictures):
    """What the scheduler decided about a graph, as it was when it was prepared.

    It can be looked at (``memory``, ``splits``, ``copies``, ``arenas``, :meth:`explain`), drawn (:meth:`to_html`, :meth:`to_csv`,
    :meth:`to_text`) and run. Several plans of a scheduler live side by side: running one after the other plans nothing again, while each
    graph stays as it is.
    """

    __slots__ = ("_graph", "_scheduler", "arenas", "copies", "splits")

    def __init__(
        self, scheduler: Scheduler, graph: Graph, arenas: tuple[ArenaPlan, ...], splits: tuple[SplitInfo, ...], copies: tuple[CopyInfo, ...]
    ) -> None:
        self._scheduler = scheduler
        self._graph = graph
        self.arenas = arenas
        self.splits = splits
        self.copies = copies

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def memory(self) -> Mapping[str, ArenaPlan]:
        """By name of the backend. ``total`` is what the scheduler allocates there for this plan."""
        return {a.backend: a for a in self.arenas}

    def run(self) -> bool:
        """Computes the graph; False if a callback stopped it. The same as ``scheduler.compute(graph)``."""
        return self._scheduler.compute(self._graph)

    def explain(self, tensor: Tensor) -> str:
        """Why the tensor is where it is, in words."""
        self._scheduler.allocate(self._graph)
        return self._scheduler.explain(tensor)

    def __repr__(self) -> str:
        arenas = ", ".join(f"{a.backend} {a.total} bytes{' (optimal)' if a.proved and a.peak else ''}" for a in self.arenas)
        copied = sum(c.size for c in self.copies if c.reason != "kept")
        return f"<Plan of {self._graph.n_nodes} nodes: {len(self.splits)} splits, {copied} bytes copied a run, {arenas}>"
