"""Plans of a scheduler: :meth:`Scheduler.prepare <ggml_backend.Scheduler.prepare>` returns a
:class:`Plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .._base.errors import StateError, check, expect, raise_last
from .._base.errors.faults import message_of
from .._base.errors.messages import UnknownKey
from .._base.handles import Local
from .._base.renamed import Renamed
from .._base.text import copies_text, count, size_text
from .._ffi import ffi, lib
from ..backend.buffer import text
from ..dtypes import dtype_of_id
from ..tensor.graph import Graph
from ..tensor.tensor import Tensor

if TYPE_CHECKING:
    from ..profile._pictures.data import Note
    from ._recompute import Recomputation
    from .scheduler import Scheduler

__all__ = ["ArenaPlan", "CopyInfo", "Plan", "PlanBlock", "Split", "computes", "read_plan", "read_splits"]


@dataclass(frozen=True)
class PlanBlock:
    """The memory of one tensor in the arena of a backend, and its lifetime.

    Times are positions in the plan's program: the nodes in order, with the copies between them.
    Ranges are half-open, sizes are bytes.
    """

    id: int  #: unique within its arena
    name: str  #: name of the tensor; ``BACKEND#name`` for a copy
    op: str
    backend: str
    lower: int  #: alive from this position on,
    upper: int  #: up to, not including, this one
    nbytes: int
    offset: int
    chunk: int  #: index of the chunk; more than one only if the backend's largest buffer is too small
    root: int | None  #: the block whose memory this one reuses in place
    step: int = -1  #: the position of its computation or copy
    node: int = -1  #: index of its node in the graph; -1: a copy
    shape: tuple[int, ...] | None = None
    dtype: str = ""

    @property
    def in_place(self) -> bool:
        return self.root is not None

    size: ClassVar[Renamed] = Renamed("nbytes")


@dataclass(frozen=True)
class ArenaPlan:
    """Memory of one backend, in bytes: the arena; with leafs and kept copies (``allocated``); with
    scratch memory, too (``total``)."""

    backend: str
    peak: int  #: bytes of the arena; pictures and tables call it "arena"
    lower_bound: int  #: no plan for these lifetimes needs fewer bytes
    proved: bool  #: no plan needs fewer bytes than ``peak``
    blocks: tuple[PlanBlock, ...]
    leafs: int  #: inputs and other leafs that the scheduler placed; they keep their memory between runs
    replicas: int  #: kept copies of weights
    no_reuse: int  #: bytes of the arena if no tensors shared memory
    #: temporary memory of operators: repacked matrices, sums by thread and others
    scratch: int = 0

    @property
    def gap(self) -> float:
        """How far ``peak`` exceeds the lower bound, as a fraction; 0.0 means optimal."""
        return self.peak / self.lower_bound - 1 if self.lower_bound else 0.0

    @property
    def allocated(self) -> int:
        """Bytes that the scheduler allocates there for this plan."""
        return self.peak + self.leafs + self.replicas

    @property
    def total(self) -> int:
        """All bytes that the plan needs on this backend: ``allocated`` and ``scratch``."""
        return self.allocated + self.scratch


@dataclass(frozen=True)
class Split:
    """Consecutive nodes that run on one backend."""

    index: int
    backend: str  #: name of the backend
    nodes: tuple[str, ...]  #: names of the nodes
    ops: tuple[str, ...]  #: their operators
    node_range: range  #: their indices in ``graph.nodes``
    start: int  #: the first position in the program
    end: int  #: the position behind the last one
    inputs: tuple[str, ...]  #: names of tensors that are copied to the backend before the nodes run
    input_nbytes: int

    @property
    def n_inputs(self) -> int:
        return len(self.inputs)

    input_bytes: ClassVar[Renamed] = Renamed("input_nbytes")
    bytes: ClassVar[Renamed] = Renamed("input_nbytes")

    def __repr__(self) -> str:
        return (
            f"<Split {self.index} on {self.backend}: {count(len(self.nodes), 'node')},"
            f" {count(len(self.inputs), 'input')}, {count(self.input_nbytes, 'byte')}>"
        )


@dataclass(frozen=True)
class CopyInfo:
    """A copy that the plan makes.

    ``reason``: "input" copies an input of the graph or a result of another split in each run
        (:class:`SchedulerStats` counts them separately); "kept" copies only after a write to the
        original; "write-back" copies a result to its own memory.
    """

    name: str
    src_backend: str  #: "host" for memory that the user owns and none of the backends has
    dst_backend: str
    nbytes: int
    split: int  #: index of the split after the copy; for a write-back, before it
    reason: str
    shape: tuple[int, ...] | None = None  #: shape of the tensor; a copy may be of a part
    dtype: str = ""

    size: ClassVar[Renamed] = Renamed("nbytes")


class _ByName(dict[str, ArenaPlan]):
    """Suggests similar names for a missing key."""

    def __missing__(self, name: object) -> ArenaPlan:
        raise UnknownKey(name, self)


class Plan(Local):
    """The decisions of the scheduler about a graph, at the time of :meth:`Scheduler.prepare`.

    You can read it (``memory``, ``splits``, ``copies``, ``arenas``, :meth:`explain`), draw it
    (:meth:`to_html`, :meth:`to_svg`, :meth:`to_png`, :meth:`to_csv`, :meth:`to_text`) and run it. A
    scheduler keeps several plans. Alternating between them needs no planning as long as the graphs
    do not change.
    """

    __slots__ = (
        "_graph",
        "_known",
        "_reasons",
        "_results",
        "_scheduler",
        "arenas",
        "copies",
        "recomputation",
        "splits",
    )

    def __init__(
        self,
        scheduler: Scheduler,
        graph: Graph,
        arenas: tuple[ArenaPlan, ...],
        splits: tuple[Split, ...],
        copies: tuple[CopyInfo, ...],
    ) -> None:
        self._scheduler = scheduler
        self._graph = graph
        self._known: dict[int, Note] | None = None
        self._reasons: dict[Any, str] = {}  # by C tensor, kept for a closed scheduler
        self.arenas: tuple[ArenaPlan, ...] = arenas
        self.splits: tuple[Split, ...] = splits
        self.copies: tuple[CopyInfo, ...] = copies
        #: what is computed again, with ``prepare(graph, max_bytes=...)``; None without a limit
        self.recomputation: Recomputation | None = None
        self._results: dict[Tensor, Tensor] = {}  # with ``max_bytes``: of ``graph``, for each node of the given graph

    @property
    def graph(self) -> Graph:
        return self._graph

    def result(self, tensor: Tensor) -> Tensor:
        """The tensor of ``graph`` with the values of ``tensor``. Only a plan with ``max_bytes`` has
        others than ``tensor`` itself::

            plan = sched.prepare(graph, max_bytes=2**20)
            plan.compute()
            print(plan.result(y).numpy())
        """
        expect(tensor, Tensor, "Plan.result: tensor")
        return self._results.get(tensor, tensor)

    @property
    def memory(self) -> Mapping[str, ArenaPlan]:
        """Memory by name of the backend: ``allocated`` are the bytes that the scheduler allocates
        there for this plan; ``total`` adds the scratch memory of the device."""
        return _ByName((a.backend, a) for a in self.arenas)

    def compute(self) -> bool:
        """Computes the graph, like ``scheduler.compute(graph)``. Returns False if a callback
        stopped it."""
        return self._scheduler.compute(self._graph)

    run: ClassVar[Renamed] = Renamed("compute")

    def explain(self, tensor: Tensor) -> str:
        """The reason why the tensor is on its backend, or that it is not in the graph. Allocates
        nothing, and works after the scheduler is closed."""
        try:
            return self._scheduler._explain_in(self._graph, tensor)
        except StateError:
            known = self._reasons.get(tensor._live())
            if known is None:
                raise
            return known

    def to_csv(self, path: str | PathLike[str] | None = None) -> str:
        """Returns the blocks of all arenas as CSV:
        id,lower,upper,size,offset,name,op,backend,arena,root. Also writes it if ``path`` is
        given."""
        from ..profile import _pictures

        return _pictures.plan_csv(self, path)

    def to_html(self, path: str | PathLike[str] | None = None, title: str = "plan") -> str:
        """Returns a self-contained page with pictures of the plan. Also writes it if ``path`` is
        given."""
        from ..profile import _pictures

        return _pictures.plan_page(self, path, title)

    def to_svg(
        self,
        path: str | PathLike[str] | None = None,
        width: int = 960,
        title: str = "plan",
        theme: Literal["auto", "light", "dark"] = "auto",
    ) -> str:
        """Returns the pictures as one SVG of this width in pixels. ``theme`` "auto" follows the
        reader's system. Also writes it if ``path`` is given."""
        from ..profile import _pictures

        return _pictures.plan_svg(self, path, width, title, theme)

    def to_png(
        self,
        path: str | PathLike[str] | None = None,
        width: int = 960,
        title: str = "plan",
        theme: Literal["light", "dark"] = "light",
        scale: int = 2,
    ) -> bytes:
        """Returns the pictures as PNG, with ``scale`` pixels for each unit of ``width``. Needs the
        extra ``[png]``. Also writes it if ``path`` is given."""
        from ..profile import _pictures

        return _pictures.plan_png(self, path, width, title, theme, scale)

    def to_text(self, width: int = 100, rows: int = 12, largest: int = 8, title: str = "plan") -> str:
        """A map for terminals with this many columns: ``rows`` lines for each arena, and its
        ``largest`` blocks."""
        from ..profile import _pictures

        return _pictures.plan_map(self, width, rows, largest, title)

    def _notes(self) -> Mapping[int, Note]:
        """Facts about the nodes, read once while the graph and the scheduler are open."""
        if self._known is None and self._graph is not None:
            from ..profile._notes import read_notes

            self._known = read_notes(self._graph, self.explain) or None
        return self._known or {}

    def _repr_html_(self) -> str:
        from ..profile import _pictures

        return _pictures.notebook(_pictures.picture_of(self))

    def __repr__(self) -> str:
        """A text with the numbers and names of the pictures."""
        from ..profile import _pictures

        picture = _pictures.picture_of(self, notes=False)
        arenas = ", ".join(
            f"{a.backend}: arena {size_text(a.peak)}{' (optimal)' if a.proved and a.peak else ''}, total"
            f" {size_text(a.total)}"
            for a in self.arenas
        )
        return (
            f"<Plan of {count(picture.n_nodes, 'node')} in {count(picture.n_steps, 'step')}:"
            f" {count(len(self.splits), 'split')}, {copies_text(c.nbytes for c in self.copies)}; {arenas}>"
        )


# ---------------------------------------------------------------------------------------------------- reading it from C

_Backends = Sequence[tuple[Any, str]]  # (C backend, name), in the scheduler's order


def read_plan(
    sched: Any, graph: Any, backends: _Backends
) -> tuple[tuple[ArenaPlan, ...], tuple[Split, ...], tuple[CopyInfo, ...]]:
    """Reads the last plan of a C scheduler, for the C graph."""
    names = dict(backends)
    splits = read_splits(sched, graph, names)
    blocks = _blocks(sched, names, _places(graph, splits))
    return _arenas(sched, backends, blocks), splits, _copies(sched, names)


def read_reasons(sched: Any, graph: Any) -> dict[Any, str]:
    """The reasons for backends by C tensor, in the last plan of a C scheduler. Many tensors share
    one text."""
    tensors = [*graph.nodes[0 : graph.n_nodes], *graph.leafs[0 : graph.n_leafs]]
    shared: dict[str, str] = {}
    reasons = ((t, message_of(lib.ggml_backend_sched_explain(sched, t))) for t in tensors)
    return {t: shared.setdefault(words, words) for t, words in reasons if words}


def computes(node: Any) -> bool:
    """True for a step of a program. Views need no step."""
    views = (lib.GGML_OP_NONE, lib.GGML_OP_RESHAPE, lib.GGML_OP_VIEW, lib.GGML_OP_PERMUTE, lib.GGML_OP_TRANSPOSE)
    return node.op not in views


def _places(graph: Any, splits: Sequence[Split]) -> dict[Any, tuple[int, int]]:
    """For each node that computes: its step, and its index in the graph."""
    found, first = {}, 0
    for s in splits:
        computing = [i for i in range(first, first + len(s.nodes)) if computes(graph.nodes[i])]
        known = len(computing) == s.end - s.start
        found.update({graph.nodes[i]: (s.start + k if known else -1, i) for k, i in enumerate(computing)})
        first += len(s.nodes)
    return found


def _shape(tensor: Any) -> tuple[tuple[int, ...], str]:
    n = int(lib.gbpy_ndim(tensor))
    return tuple(int(tensor.ne[k]) for k in reversed(range(n))), dtype_of_id(tensor.type).name


def _blocks(sched: Any, names: dict[Any, str], places: dict[Any, tuple[int, int]]) -> dict[str, list[PlanBlock]]:
    n = lib.ggml_backend_sched_get_blocks(sched, ffi.NULL, 0)
    blocks = ffi.new("struct ggml_backend_sched_block[]", max(n, 0))
    if n < 0 or (n and lib.ggml_backend_sched_get_blocks(sched, blocks, n) < 0):
        raise_last("Scheduler.prepare")
    found: dict[str, list[PlanBlock]] = {name: [] for name in names.values()}
    number: list[int] = []  # index of each block in its arena
    for i, b in enumerate(blocks):
        backend = names[b.backend]
        number.append(len(found[backend]))
        name = text(b.tensor.name)
        op = text(lib.ggml_op_desc(b.tensor))
        what = (f"{backend}#{name}", "copy") if b.is_copy else (name, op)
        where = (int(b.lower), int(b.upper), int(b.size), int(b.offset), int(b.chunk))
        root = None if b.root == i else number[b.root]
        place = (int(b.lower), -1) if b.is_copy else places.get(b.tensor, (-1, -1))
        found[backend].append(PlanBlock(number[i], *what, backend, *where, root, *place, *_shape(b.tensor)))
    return found


def _arenas(sched: Any, backends: _Backends, blocks: dict[str, list[PlanBlock]]) -> tuple[ArenaPlan, ...]:
    arena = ffi.new("struct ggml_backend_sched_arena *")
    found = []
    for ptr, name in backends:
        check(lib.ggml_backend_sched_get_arena(sched, ptr, arena), "Scheduler.prepare")
        sizes = (int(arena.peak), int(arena.bound), bool(arena.proved), tuple(blocks[name]))
        scratch = int(lib.ggml_backend_sched_get_work_size(sched, ptr))
        found.append(ArenaPlan(name, *sizes, int(arena.leafs), int(arena.replicas), int(arena.no_reuse), scratch))
    return tuple(found)


def read_splits(sched: Any, graph: Any, names: dict[Any, str]) -> tuple[Split, ...]:
    """The splits of the graph that a C scheduler planned last. ``names``: names of C backends"""
    info, span = ffi.new("struct ggml_backend_sched_split_info *"), ffi.new("int64_t[2]")
    found = []
    for i in range(lib.ggml_backend_sched_get_n_splits(sched)):
        check(lib.ggml_backend_sched_get_split(sched, i, info), "Scheduler.splits")
        check(lib.ggml_backend_sched_get_split_span(sched, i, span, span + 1), "Scheduler.splits")
        indices = range(info.i_start, info.i_end)
        nodes = tuple(text(graph.nodes[j].name) for j in indices)
        ops = tuple(text(lib.ggml_op_desc(graph.nodes[j])) for j in indices)
        sources = (lib.ggml_backend_sched_get_split_input(sched, i, j) for j in range(info.n_inputs))
        inputs = tuple(text(source.name) for source in sources)
        where = (indices, int(span[0]), int(span[1]))
        found.append(Split(i, names[info.backend], nodes, ops, *where, inputs, int(info.input_bytes)))
    return tuple(found)


def _copies(sched: Any, names: dict[Any, str]) -> tuple[CopyInfo, ...]:
    t = ffi.new("struct ggml_backend_sched_transfer *")
    found = []
    for i in range(lib.ggml_backend_sched_get_n_transfers(sched)):
        check(lib.ggml_backend_sched_get_transfer(sched, i, t), "Scheduler.prepare")
        reason = "write-back" if t.is_write_back else "kept" if t.is_kept else "input"
        src, dst = names.get(t.source, "host"), names.get(t.target, "host")
        found.append(CopyInfo(text(t.tensor.name), src, dst, int(t.size), int(t.split), reason, *_shape(t.tensor)))
    return tuple(found)
