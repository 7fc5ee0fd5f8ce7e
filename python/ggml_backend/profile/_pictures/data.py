"""The data that a picture of a plan shows. Time is counted in steps of the plan's program. Spans are half-open. Sizes
and offsets are bytes.

Each chunk of an arena has its own offsets. A picture stacks the chunks, so that every block has a
height above the bottom of the arena. Blocks that reuse the memory of another block in place
(``root``) are stages of one :class:`Storage`. It lives as long as any of them, has the size of the
largest, and counts once.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple, Protocol


class BlockLike(Protocol):
    """The memory of one tensor in an arena, over its lifetime."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def lower(self) -> int: ...
    @property
    def upper(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def root(self) -> int | None: ...
    @property
    def in_place(self) -> bool: ...
    @property
    def step(self) -> int: ...  # the step that computes it; -1: not known
    @property
    def node(self) -> int: ...  # index in the graph; -1: a copy, or not known
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def dtype(self) -> str: ...


class ArenaLike(Protocol):
    @property
    def backend(self) -> str: ...
    @property
    def peak(self) -> int: ...
    @property
    def lower_bound(self) -> int: ...
    @property
    def proved(self) -> bool: ...
    @property
    def blocks(self) -> Sequence[BlockLike]: ...
    @property
    def leafs(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def scratch(self) -> int: ...


class SplitLike(Protocol):
    @property
    def index(self) -> int: ...
    @property
    def backend(self) -> str: ...
    @property
    def nodes(self) -> Sequence[str]: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def n_inputs(self) -> int: ...


class CopyLike(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def src_backend(self) -> str: ...
    @property
    def dst_backend(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def split(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True)
class Note:
    """A note about a node of the graph."""

    sources: tuple[str, ...]  #: names of the tensors that it reads
    readers: tuple[str, ...]  #: names of the tensors that read it
    reason: str  #: why it runs on its backend


@dataclass(frozen=True)
class Picture:
    """The data of a whole picture."""

    title: str
    n_nodes: int  #: nodes of the graph; 0: no graph
    arenas: Sequence[ArenaLike]
    splits: Sequence[SplitLike] = ()
    copies: Sequence[CopyLike] = ()
    notes: Mapping[int, Note] = field(default_factory=dict)  #: by index of the node

    @cached_property
    def copies_of(self) -> Mapping[int, Sequence[CopyLike]]:
        """The copies of each split that has copies."""
        found: dict[int, list[CopyLike]] = {}
        for c in self.copies:
            found.setdefault(c.split, []).append(c)
        return found

    @cached_property
    def copy_of_block(self) -> Mapping[str, CopyLike]:
        """The first copy that has a block of this name."""
        return {f"{c.dst_backend}#{c.name}": c for c in reversed(self.copies)}

    @property
    def n_steps(self) -> int:
        """Steps of the program: nodes that compute something, and copies."""
        return max((upper for upper in (*(s.end for s in self.splits), *_ends(self.arenas))), default=0)

    @property
    def backends(self) -> list[str]:
        """Backends in the order of their lanes."""
        copies = chain.from_iterable((c.src_backend, c.dst_backend) for c in self.copies)
        return list(dict.fromkeys([*(a.backend for a in self.arenas), *(s.backend for s in self.splits), *copies]))


class Moment(NamedTuple):
    """The state from ``time`` until the next moment."""

    time: int
    live: int  # live bytes
    top: int  # end of the highest live byte


def bases(blocks: Sequence[BlockLike]) -> list[int]:
    """The bottom of each chunk in the stack, and at the end the height of the stack."""
    heights = [0] * (max((b.chunk for b in blocks), default=0) + 1)
    for b in blocks:
        heights[b.chunk] = max(heights[b.chunk], b.offset + b.nbytes)
    found = [0]
    for h in heights:
        found.append(found[-1] + h)
    return found


def chains(blocks: Sequence[BlockLike]) -> list[int]:
    """For each block the index of the block whose memory it shares, or its own index."""
    index = {b.id: i for i, b in enumerate(blocks)}
    found = [index.get(b.root, i) if b.root is not None else i for i, b in enumerate(blocks)]
    for i in range(len(found)):
        seen = {i}
        while found[found[i]] != found[i] and found[i] not in seen:
            seen.add(found[i])
            found[i] = found[found[i]]
    return found


class Stage(NamedTuple):
    """One of the tensors that use a storage one after the other."""

    block: BlockLike
    start: int
    end: int


@dataclass(frozen=True)
class Storage:
    """A piece of memory, drawn as one block."""

    lower: int
    upper: int
    nbytes: int  #: bytes of the largest tensor in it
    bottom: int  #: height above the bottom of the arena
    stages: tuple[Stage, ...]

    @property
    def names(self) -> list[str]:
        return [s.block.name for s in self.stages]


def _stages(members: list[BlockLike], upper: int) -> tuple[Stage, ...]:
    """The stages of a storage. Each lasts from its step to the step of the next one. If steps are
    not known, spans count."""
    order = sorted(members, key=lambda b: (b.step if b.step >= 0 else b.lower, b.id))
    starts = [max(b.lower, min(b.step, upper)) if b.step >= 0 else b.lower for b in order]
    starts[0] = order[0].lower
    return tuple(Stage(b, a, e) for b, a, e in zip(order, starts, [*starts[1:], upper], strict=True))


def storages(blocks: Sequence[BlockLike]) -> list[Storage]:
    """The storages of blocks, in the order of their first use."""
    members: dict[int, list[BlockLike]] = {}
    for b, root in zip(blocks, chains(blocks), strict=True):
        members.setdefault(root, []).append(b)
    base, found = bases(blocks), []
    for group in members.values():
        lower, upper = min(b.lower for b in group), max(b.upper for b in group)
        bottom = min(base[b.chunk] + b.offset for b in group)
        found.append(Storage(lower, upper, max(b.nbytes for b in group), bottom, _stages(group, upper)))
    return sorted(found, key=lambda s: (s.lower, s.bottom))


def curve(pieces: Sequence[Storage]) -> list[Moment]:
    """Live bytes and their top, at each moment when they change."""
    used = [s for s in pieces if s.lower < s.upper and s.nbytes]
    deltas: dict[int, int] = {}
    for s in used:
        deltas[s.lower] = deltas.get(s.lower, 0) + s.nbytes
        deltas[s.upper] = deltas.get(s.upper, 0) - s.nbytes
    starts = sorted((s.lower, s.bottom + s.nbytes, s.upper) for s in used)
    alive: list[tuple[int, int]] = []  # (-top, upper)
    moments: list[Moment] = []
    live = k = 0
    for t in sorted(deltas):
        live += deltas[t]
        while k < len(starts) and starts[k][0] <= t:
            heapq.heappush(alive, (-starts[k][1], starts[k][2]))
            k += 1
        while alive and alive[0][1] <= t:
            heapq.heappop(alive)
        top = -alive[0][0] if alive else 0
        if not moments or moments[-1][1:] != (live, top):
            moments.append(Moment(t, live, top))
    return moments


def copy_steps(picture: Picture) -> list[int]:
    """The step of each copy: the first step of its memory. Copies without memory in an arena (kept
    copies, write-backs) get the remaining steps in order."""
    begins: dict[str, list[int]] = {}
    for b in (b for a in picture.arenas for b in a.blocks if b.op == "copy"):
        begins.setdefault(b.name, []).append(b.step if b.step >= 0 else b.lower)
    taken = {t for s in picture.splits for t in range(s.start, s.end)}.union(*begins.values())
    left = iter(sorted(set(range(picture.n_steps)) - taken))
    starts = {s.index: s.start for s in picture.splits}
    for steps in begins.values():
        steps.sort(reverse=True)
    found = []
    for c in picture.copies:
        own = begins.get(f"{c.dst_backend}#{c.name}") if c.reason == "input" else None
        found.append(own.pop() if own else next(left, starts.get(c.split, 0)))
    return found


def peak_moment(moments: Sequence[Moment]) -> int:
    """The time with the most live bytes, which are a lower bound of every plan. 0 if no bytes are
    ever live."""
    best = max(moments, key=lambda m: (m.live, m.top), default=None)
    return best.time if best is not None else 0


def _ends(arenas: Sequence[ArenaLike]) -> list[int]:
    return [b.upper for a in arenas for b in a.blocks]


def byte_ticks(height: int, most: int = 6) -> list[int]:
    """Multiples of a power of two, from 0 to at most the height."""
    step = 1
    while height // step > most:
        step *= 2
    return list(range(0, height + 1, step))


def next_tick(coarse: int) -> int:
    """The next number in the series 1, 5, 10, 50, 100, ..."""
    return coarse * (5 if str(coarse)[0] == "1" else 2)


def time_tick(t: int) -> int:
    """How coarse the tick of a step is: the largest of 1, 5, 10, 50, 100, ... that divides it."""
    coarse = 1
    while t and (nxt := next_tick(coarse)) <= t and t % nxt == 0:
        coarse = nxt
    return coarse if t else 10**12


def span(picture: Picture) -> tuple[int, int]:
    """First and last step of the time axis."""
    lower = min((b.lower for a in picture.arenas for b in a.blocks), default=0)
    upper = max((b.upper for a in picture.arenas for b in a.blocks), default=1)
    lower, upper = min(lower, 0), max(upper, picture.n_steps)
    return lower, max(upper, lower + 1)


def tick_text(n: int) -> str:
    """1572864 -> "1.5 MiB": a multiple of a power of two, exactly."""
    power = min(max(n.bit_length() - 1, 0) // 10, 4)
    return f"{n / 1024**power:.10g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def verdict(arena: ArenaLike) -> str:
    """A text about the quality of the peak."""
    if not arena.blocks or not arena.peak:
        return "empty"
    if arena.peak <= arena.lower_bound:
        return "optimal: at the lower bound"
    gap = 100 * (arena.peak / arena.lower_bound - 1) if arena.lower_bound else 0.0
    return f"{gap:.2f} % above the lower bound, {'proved optimal' if arena.proved else 'not proved optimal'}"


@dataclass(frozen=True)
class BareBlock:
    """A row of a CSV file."""

    id: int
    lower: int
    upper: int
    nbytes: int
    offset: int = 0
    name: str = ""
    op: str = ""
    backend: str = ""
    chunk: int = 0
    root: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    step: int = -1
    node: int = -1

    @property
    def in_place(self) -> bool:
        return self.root is not None


@dataclass(frozen=True)
class BareArena:
    """Blocks planned without a graph."""

    backend: str
    peak: int
    lower_bound: int
    proved: bool
    blocks: tuple[BlockLike, ...]
    leafs: int = 0
    replicas: int = 0
    scratch: int = 0


def bare_picture(title: str, arenas: Sequence[ArenaLike]) -> Picture:
    """A picture of arenas without a graph."""
    return Picture(title, 0, arenas)
