"""What a picture of a plan shows. Time is the index of a node; spans are half-open; sizes and offsets are bytes.

Chunks of an arena have offsets of their own; a picture stacks them, so that every block has a height above the arena's
bottom. A block that took over the memory of another (``root``) shares its bytes: a chain of such blocks counts once at
each moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple, Protocol


class BlockLike(Protocol):
    """One tensor's stay in an arena."""

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
    def size(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def root(self) -> int | None: ...
    @property
    def in_place(self) -> bool: ...


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
    def size(self) -> int: ...
    @property
    def split(self) -> int: ...
    @property
    def reason(self) -> str: ...


@dataclass(frozen=True)
class Picture:
    """Everything that is drawn."""

    title: str
    n_nodes: int
    arenas: Sequence[ArenaLike]
    splits: Sequence[SplitLike] = ()
    copies: Sequence[CopyLike] = ()

    @property
    def backends(self) -> list[str]:
        """In the order in which they get their colours."""
        copies = chain.from_iterable((c.src_backend, c.dst_backend) for c in self.copies)
        return list(dict.fromkeys([*(a.backend for a in self.arenas), *(s.backend for s in self.splits), *copies]))


class Moment(NamedTuple):
    """From ``time`` on, until the next moment."""

    time: int
    live: int  # bytes that are alive
    top: int  # where the highest of them ends


def bases(blocks: Sequence[BlockLike]) -> list[int]:
    """Where each chunk begins when they are stacked; one more at the end: the height of all."""
    heights = [0] * (max((b.chunk for b in blocks), default=0) + 1)
    for b in blocks:
        heights[b.chunk] = max(heights[b.chunk], b.offset + b.size)
    found = [0]
    for h in heights:
        found.append(found[-1] + h)
    return found


def chains(blocks: Sequence[BlockLike]) -> list[int]:
    """For each block the index of the block whose memory it shares; its own if it shares none."""
    index = {b.id: i for i, b in enumerate(blocks)}
    found = [index.get(b.root, i) if b.root is not None else i for i, b in enumerate(blocks)]
    for i in range(len(found)):
        seen = {i}
        while found[found[i]] != found[i] and found[i] not in seen:
            seen.add(found[i])
            found[i] = found[found[i]]
    return found


def _shared(members: list[BlockLike]) -> list[tuple[int, int, int]]:
    """(lower, upper, bytes) of blocks that share memory: at each moment the largest one that is alive counts."""
    times = sorted({t for b in members for t in (b.lower, b.upper)})
    spans = []
    for t, after in pairwise(times):
        size = max((b.size for b in members if b.lower <= t < b.upper), default=0)
        if size:
            spans.append((t, after, size))
    return spans


def curve(blocks: Sequence[BlockLike]) -> list[Moment]:
    """Live bytes and the top of what is alive, at each moment at which something changes."""
    members: dict[int, list[BlockLike]] = {}
    for b, root in zip(blocks, chains(blocks), strict=True):
        if b.lower < b.upper and b.size:
            members.setdefault(root, []).append(b)
    deltas: dict[int, int] = {}
    for group in members.values():
        spans = [(b.lower, b.upper, b.size) for b in group] if len(group) == 1 else _shared(group)
        for lower, upper, size in spans:
            deltas[lower] = deltas.get(lower, 0) + size
            deltas[upper] = deltas.get(upper, 0) - size
    base = bases(blocks)
    starts = sorted((b.lower, base[b.chunk] + b.offset + b.size, b.upper) for group in members.values() for b in group)
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


def peak_moment(moments: Sequence[Moment]) -> int:
    """When the most bytes are alive: what no plan can do without. 0 if nothing ever is."""
    best = max(moments, key=lambda m: (m.live, m.top), default=None)
    return best.time if best is not None else 0


def span(picture: Picture) -> tuple[int, int]:
    """The time axis."""
    lower = min((b.lower for a in picture.arenas for b in a.blocks), default=0)
    upper = max((b.upper for a in picture.arenas for b in a.blocks), default=1)
    lower, upper = min(lower, 0), max(upper, picture.n_nodes)
    return lower, max(upper, lower + 1)


def size_text(n: int) -> str:
    """1536 -> "1.50 KiB"."""
    if abs(n) < 1024:
        return f"{n} B"
    value, unit = n / 1024, "KiB"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}" if value >= 1000 else f"{value:.3g} {unit}" if value >= 10 else f"{value:.2f} {unit}"


def verdict(arena: ArenaLike) -> str:
    """How good the peak is, in words."""
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
    size: int
    offset: int = 0
    name: str = ""
    op: str = ""
    backend: str = ""
    chunk: int = 0
    root: int | None = None

    @property
    def in_place(self) -> bool:
        return self.root is not None


@dataclass(frozen=True)
class BareArena:
    """Blocks that were planned without a graph."""

    backend: str
    peak: int
    lower_bound: int
    proved: bool
    blocks: tuple[BlockLike, ...]


def bare_picture(title: str, arenas: Sequence[ArenaLike]) -> Picture:
    """Of arenas without a graph around them."""
    return Picture(title, max((b.upper for a in arenas for b in a.blocks), default=0), arenas)
