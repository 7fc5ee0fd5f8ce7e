"""Tables of the page, as HTML. The last row is the sum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..._base.text import markup, size_text
from .about import COPY_REASONS, memory_columns, shape_text
from .data import Moment, Picture, Storage
from .maps import ArenaDrawn

__all__ = ["alive_table", "copies_table", "memory_table", "moment_words", "splits_table"]

_MOST = 2000  # rows
_Cell = tuple[str, str]  # class, text
_Row = tuple[str, Sequence[_Cell]]  # attributes, cells


def _num(n: int) -> _Cell:
    return "num", f"{n:,}"


def _bytes(n: int) -> _Cell:
    """The exact number, and a rounded one below it."""
    return "num", f"{n:,}\n{size_text(n)}"


def _row(cells: Sequence[_Cell], tag: str, attributes: str = "") -> str:
    parts = []
    for name, words in cells:
        begin = f"<{tag}" + (f' class="{name}"' if name else "") + (' scope="col"' if tag == "th" else "")
        first, *more = words.split("\n") if name == "num" else [words]
        small = f"<small>{markup(more[0])}</small>" if more else ""
        parts.append(f"{begin}>{markup(first)}{small}</{tag}>")
    return f"<tr{attributes}>{''.join(parts)}</tr>"


def _table(label: str, head: Sequence[_Cell], rows: Iterable[_Row], foot: Sequence[_Row], name: str = "") -> str:
    body = "".join(_row(cells, "td", attributes) for attributes, cells in rows)
    end = "".join(_row(cells, "td", attributes) for attributes, cells in foot)
    return (
        f'<div class="list {name}" tabindex="0" role="region" aria-label="{markup(label)}">'
        f"<table><thead>{_row(head, 'th')}</thead><tbody>{body}</tbody><tfoot>{end}</tfoot></table></div>"
    )


def memory_table(picture: Picture) -> str:
    """Bytes of each device: arena, leafs and kept copies are allocated memory; scratch makes the
    total."""
    names, found = memory_columns(picture.arenas)
    rows: list[_Row] = [
        (f' data-part="{part[2:]}"', [("", part.strip()), *(_bytes(n) for n in numbers)]) for part, numbers in found
    ]
    return _table("Memory by device", [("", "Bytes"), *(("num", n) for n in names)], rows[:-1], rows[-1:], "few")


def splits_table(picture: Picture) -> str:
    rows: list[_Row] = []
    sums = [0, 0, 0, 0]
    for s in picture.splits:
        sizes = [c.nbytes for c in picture.copies_of.get(s.index, ())]
        numbers = [len(s.nodes), s.end - s.start, len(sizes), sum(sizes)]
        sums = [a + b for a, b in zip(sums, numbers, strict=True)]
        ends = " … ".join(dict.fromkeys(s.nodes[k] or "(no name)" for k in (0, -1))) if s.nodes else ""
        cells = [_num(s.index), ("", s.backend), ("wide", ends), *map(_num, numbers[:3]), _bytes(numbers[3])]
        rows.append(("", cells))
    head = [("num", "Split"), ("", "Device"), ("wide", "Nodes from … to"), ("num", "Nodes"), ("num", "Steps"),
            ("num", "Copies"), ("num", "Copied")]  # fmt: skip
    foot: list[_Cell] = [("num", ""), ("", "all"), ("wide", ""), *map(_num, sums[:3]), _bytes(sums[3])]
    shown = rows[:_MOST] + ([("", [("wide", f"and {len(rows) - _MOST:,} more")])] if len(rows) > _MOST else [])
    return _table("Splits", head, shown, [("", foot)])


def copies_table(picture: Picture) -> str:
    order = sorted(picture.copies, key=lambda c: -c.nbytes)
    rows: list[_Row] = [
        ("", [("wide", c.name or "(no name)"), ("", c.src_backend), ("", c.dst_backend),
              ("", shape_text(c.shape, c.dtype)), _bytes(c.nbytes), _num(c.split),
              ("wide", COPY_REASONS.get(c.reason, c.reason))])
        for c in order[:_MOST]
    ]  # fmt: skip
    if rest := order[_MOST:]:
        rows.append(
            (
                "",
                [
                    ("wide", f"{len(rest):,} smaller ones"),
                    ("", ""),
                    ("", ""),
                    ("", ""),
                    _bytes(sum(c.nbytes for c in rest)),
                ],
            )
        )
    total = sum(c.nbytes for c in order)
    head = [("wide", "Tensor"), ("", "From"), ("", "To"), ("", "Shape"), ("num", "Bytes"), ("num", "Split"),
            ("wide", "Reason")]  # fmt: skip
    foot: list[_Cell] = [("", "all"), *[("", "")] * 3, _bytes(total), ("", ""), ("", "")]
    return _table("Copies, the largest first", head, rows, [("", foot)])


def moment_words(m: Moment) -> list[object]:
    """The step, live bytes, bytes of gaps, and the top, which is the sum of the two."""
    return [m.time, size_text(m.live), size_text(m.top - m.live), size_text(m.top)]


def _cells(s: Storage) -> list[_Cell]:
    stages = s.stages if len(s.stages) <= 6 else (*s.stages[:2], *s.stages[-2:])
    names = " → ".join(t.block.name or "(no name)" for t in stages)
    if len(stages) < len(s.stages):
        names += f" ({len(s.stages)} tensors)"
    last = s.stages[-1].block
    return [
        ("wide", names), ("mid", " → ".join(dict.fromkeys(t.block.op for t in stages if t.block.op))),
        ("", shape_text(last.shape, last.dtype)), _bytes(s.nbytes), _num(s.bottom),
        ("num", f"{s.lower:,} to {s.upper - 1:,}"),
    ]  # fmt: skip


def alive_table(d: ArenaDrawn) -> str:
    """All blocks, the largest first. Blocks that are not alive at the moment are hidden."""
    order = sorted(range(len(d.pieces)), key=lambda i: (-d.pieces[i].nbytes, i))

    def alive(s: Storage) -> bool:
        return s.lower <= d.moment < s.upper

    rows: list[_Row] = [
        (f' data-i="{i}"' + ("" if alive(d.pieces[i]) else " hidden"), _cells(d.pieces[i])) for i in order[:_MOST]
    ]
    if len(order) > _MOST:
        rest = [d.pieces[i] for i in order[_MOST:]]
        words = f"and {len(rest):,} smaller blocks, of which {sum(map(alive, rest)):,} are alive at the step of most"
        rows.append(("", [("wide", words)]))
    now = next((m for m in d.moments if m.time == d.moment), Moment(0, 0, 0))
    head = [("wide", "Block: its tensors in turn"), ("mid", "Operator"), ("", "Shape"), ("num", "Bytes"),
            ("num", "Offset"), ("num", "Alive in steps")]  # fmt: skip

    def total(key: str, words: str, n: int) -> _Row:
        return f' data-total="{key}"', [("wide", words), ("", ""), ("", ""), _bytes(n), ("", ""), ("", "")]

    foot = [total("live", "alive", now.live), total("gaps", "+ gaps below them", now.top - now.live),
            total("top", "= top of the highest live block", now.top)]  # fmt: skip
    return _table("Blocks that are alive at the moment", head, rows, foot)
