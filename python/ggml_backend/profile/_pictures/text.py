"""A plan for terminals: a map of each arena (time to the right, offsets upwards), its largest blocks by letter, splits
and copies."""

from __future__ import annotations

import string
from collections.abc import Sequence

from ..._base.text import copies_text, count, line, size_text
from .about import facts
from .data import ArenaLike, Picture, Storage, bases, curve, peak_moment, span, storages, verdict

_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_FREE, _SMALL = ".", "+"


def _clean(name: str, width: int = 40) -> str:
    return line(name, width)


def _overlap(lower: float, upper: float, cells: int) -> list[tuple[int, float]]:
    """The cells that a span covers, and the covered share of each. lower, upper: in units of
    cells"""
    first, last = max(0, int(lower)), min(cells, int(upper) + 1)
    return [(k, share) for k in range(first, last) if (share := min(upper, k + 1) - max(lower, k)) > 0]


def _map(
    pieces: Sequence[Storage], height: int, t0: int, t1: int, width: int, rows: int, marks: dict[int, str]
) -> list[str]:
    """The lines of a map. A cell shows the block that covers most of it, if blocks cover at least a
    third."""
    best = [[0.0] * width for _ in range(rows)]
    used = [[0.0] * width for _ in range(rows)]
    shown = [[_FREE] * width for _ in range(rows)]
    for i, s in enumerate(pieces):
        columns = _overlap((s.lower - t0) * width / (t1 - t0), (s.upper - t0) * width / (t1 - t0), width)
        for r, high in _overlap(s.bottom * rows / height, (s.bottom + s.nbytes) * rows / height, rows):
            for c, wide in columns:
                area = high * wide
                used[r][c] += area
                if area > best[r][c]:
                    best[r][c] = area
                    shown[r][c] = marks.get(i, _SMALL)
    for r in range(rows):
        for c in range(width):
            if used[r][c] < 1 / 3:
                shown[r][c] = _FREE
    return ["".join(row) for row in reversed(shown)]


def _line(s: Storage) -> str:
    """A line about a block, with its tensors in order."""
    first = s.stages[0].block
    where = f"chunk {first.chunk} at {first.offset}" if first.chunk else f"at {first.offset}"
    stages = s.stages if len(s.stages) <= 3 else (s.stages[0], s.stages[-1])
    names = f" {'->' if len(stages) == len(s.stages) else '...'} ".join(
        f"{_clean(t.block.name)} {_clean(t.block.op, 20)}".rstrip() for t in stages
    )
    return f"{size_text(s.nbytes):>10}  steps {s.lower}..{s.upper - 1}  {where}  {names}".rstrip()


def _arena(arena: ArenaLike, t0: int, t1: int, width: int, rows: int, largest: int) -> list[str]:
    pieces = storages(arena.blocks)
    title = (
        f"{_clean(arena.backend) or 'arena'}: arena {size_text(arena.peak)}, lower bound {size_text(arena.lower_bound)}"
    )
    lines = [f"{title} ({verdict(arena)}), {count(len(arena.blocks), 'tensor')} in {count(len(pieces), 'block')}"]
    height = max(bases(arena.blocks)[-1], arena.peak)
    if not pieces or not height:
        return lines
    order = sorted(range(len(pieces)), key=lambda i: (-pieces[i].nbytes * (pieces[i].upper - pieces[i].lower), i))
    marks = {i: letter for letter, i in zip(_LETTERS, order, strict=False)}
    labels = [size_text(height), *[""] * (rows - 2), size_text(height // rows)]
    for label, cells in zip(labels, _map(pieces, height, t0, t1, width, rows, marks), strict=True):
        lines.append(f"{label:>10} |{cells}|")
    moments = curve(pieces)
    moment = peak_moment(moments)
    at = min(width - 1, max(0, int((moment - t0) * width / (t1 - t0))))
    live = max((m.live for m in moments), default=0)
    lines.append(f"{'':10}  {' ' * at}^ most alive: step {moment}, {size_text(live)}")
    lines += [f"  {letter} {_line(pieces[i])}" for letter, i in zip(_LETTERS[:largest], order, strict=False)]
    if len(pieces) > largest:
        lines.append(
            f"  ... and {len(pieces) - largest} more; '{_SMALL}' is a block without a letter, '{_FREE}' is free"
        )
    return lines


def _strip(picture: Picture, t0: int, t1: int, width: int) -> list[str]:
    backends = picture.backends
    cells = [" "] * width
    for s in picture.splits:
        mark = string.digits[backends.index(s.backend) % 10]
        for c, _ in _overlap((s.start - t0) * width / (t1 - t0), (s.end - t0) * width / (t1 - t0), width):
            cells[c] = mark
    used = dict.fromkeys(s.backend for s in picture.splits)
    legend = ", ".join(f"{backends.index(name) % 10} {_clean(name)}" for name in used)
    return [f"{'splits':>10} |{''.join(cells)}|", f"{'':10}  {count(len(picture.splits), 'split')}: {legend}"]


def _copies(picture: Picture, largest: int) -> list[str]:
    lines = [copies_text(c.nbytes for c in picture.copies)]
    for c in sorted(picture.copies, key=lambda c: -c.nbytes)[:largest]:
        route = f"{_clean(c.src_backend)} -> {_clean(c.dst_backend)}"
        lines.append(
            f"    {size_text(c.nbytes):>10}  {route}  split {c.split}  {_clean(c.name)}"
            f"  {_clean(c.reason, 60)}".rstrip()
        )
    if len(picture.copies) > largest:
        lines.append(f"    ... and {len(picture.copies) - largest} more")
    return lines


def text_map(picture: Picture, width: int = 100, rows: int = 12, largest: int = 8) -> str:
    """The whole plan as ASCII, except names. ``width``: columns of the terminal; ``rows``: rows of
    each map."""
    t0, t1 = span(picture)
    inner, rows = max(16, width - 13), max(2, rows)
    sections = [[f"{_clean(picture.title, 80)}: {line(facts(picture)).replace(' · ', ', ')}"]]
    sections += [_arena(a, t0, t1, inner, rows, largest) for a in picture.arenas]
    if picture.splits:
        sections.append(_strip(picture, t0, t1, inner))
        sections.append(_copies(picture, largest))
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"
