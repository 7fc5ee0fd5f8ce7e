"""Texts about a block, a copy, a split and a whole picture: a title, then lines ``word: text``."""

from __future__ import annotations

from collections.abc import Sequence

from ..._base.text import copies_text, count, size_text
from .data import ArenaLike, CopyLike, Picture, SplitLike, Storage
from .palette import KINDS, kind

__all__ = [
    "COPY_REASONS", "about_copy", "about_split", "about_stage", "facts", "memory_columns",
    "memory_parts", "shape_text",
]  # fmt: skip

_NAMES = 6  # names of sources and readers that a text lists
_LETTERS = 200  # letters of a reason

#: Texts for the reasons of copies.
COPY_REASONS = {
    "input": "made in each run: the split reads data of another device",
    "kept": "a weight that the split reads: kept, and copied again only after a write to the original",
    "write-back": "made in each run: the result belongs in memory of the other device",
}


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(n or "(no name)" for n in names[:_NAMES])
    return f"{shown} and {len(names) - _NAMES} more" if len(names) > _NAMES else shown


def shape_text(shape: tuple[int, ...] | None, dtype: str) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''}) {dtype}" if shape is not None else ""


def _bytes(n: int) -> str:
    return f"{n:,}" if n < 1024 else f"{n:,} ({size_text(n)})"


def _lines(title: str, lines: Sequence[tuple[str, str]]) -> str:
    return "\n".join([" ".join(title.split()) or "(no name)"] + [f"{a}: {' '.join(b.split())}" for a, b in lines if b])


def about_stage(picture: Picture, storage: Storage, k: int) -> str:
    """A text about stage k of a storage."""
    stage = storage.stages[k]
    b = stage.block
    note = picture.notes.get(b.node) if b.node >= 0 else None
    sources, readers = (note.sources, note.readers) if note else ((), ())
    reason = note.reason if note else ""
    if b.op == "copy":
        copy = picture.copy_of_block.get(b.name)
        if copy is not None:
            sources, readers = (f"{copy.name} on {copy.src_backend}",), (f"split {copy.split} on {copy.dst_backend}",)
            reason = COPY_REASONS.get(copy.reason, copy.reason)
    where = f", chunk {b.chunk}" if b.chunk else ""
    chain = " → ".join(storage.names) if len(storage.stages) <= 8 else f"{len(storage.stages)} tensors"
    alive = f"from step {storage.lower} up to {storage.upper - 1}"
    if stage.start > storage.lower:
        alive = f"from step {stage.start} on, in memory that is held {alive}"
    return _lines(
        b.name,
        [
            ("operator", f"{b.op} ({KINDS[kind(b.op)]})" if b.op else ""),
            ("shape", shape_text(b.shape, b.dtype)),
            ("bytes", f"{_bytes(b.nbytes)} at offset {b.offset:,}{where}"),
            ("alive", alive),
            ("from", _names(sources)),
            ("to", _names(readers)),
            ("in place", f"{chain} use the same memory in turn" if len(storage.stages) > 1 else ""),
            ("reason", reason[:_LETTERS]),
        ],
    )


def about_copy(c: CopyLike, step: int) -> str:
    return _lines(
        f"copy of {c.name or '(no name)'}",
        [
            ("operator", "copy"),
            ("shape", shape_text(c.shape, c.dtype)),
            ("bytes", _bytes(c.nbytes)),
            ("from", c.src_backend),
            ("to", f"{c.dst_backend}, {'behind' if c.reason == 'write-back' else 'for'} split {c.split}"),
            ("step", str(step)),
            ("reason", COPY_REASONS.get(c.reason, c.reason)),
        ],
    )


def about_split(picture: Picture, s: SplitLike, first: int) -> str:
    """A text about a split. ``first``: the index of its first node in the graph."""
    arriving = [c for c in picture.copies_of.get(s.index, ()) if c.reason != "write-back"]
    notes = [n for n in (picture.notes.get(first + i) for i in range(len(s.nodes))) if n is not None]
    ends = " … ".join(n or "(no name)" for n in dict.fromkeys((s.nodes[0], s.nodes[-1]))) if s.nodes else ""
    copied = copies_text(c.nbytes for c in arriving)
    return _lines(
        f"split {s.index} on {s.backend}",
        [
            ("nodes", f"{len(s.nodes):,}: {ends}" if s.nodes else "0"),
            ("steps", f"{s.start} to {s.end - 1}" if s.end > s.start else "none: views only"),
            ("copies before it", copied),
            ("from", _names(list(dict.fromkeys(c.src_backend for c in arriving)))),
            ("reason", notes[0].reason[:_LETTERS] if notes else ""),
        ],
    )


def memory_parts(arena: ArenaLike) -> list[tuple[str, int]]:
    """Bytes of a device by purpose, with the sums. All pictures and tables use these names."""
    allocated = arena.peak + arena.leafs + arena.replicas
    return [
        ("arena", arena.peak), ("leafs", arena.leafs), ("kept copies", arena.replicas), ("allocated", allocated),
        ("scratch", arena.scratch), ("total", allocated + arena.scratch),
    ]  # fmt: skip


def memory_columns(arenas: Sequence[ArenaLike]) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """:func:`memory_parts` of several devices: names of the columns, the last one for all, and rows
    with their names."""
    columns = [dict(memory_parts(a)) for a in arenas]
    names = [a.backend for a in arenas]
    if len(columns) > 1:
        columns.append({part: sum(c[part] for c in columns) for part in columns[0]})
        names.append("all")
    signs = {"arena": "  ", "allocated": "= ", "total": "= "}
    parts = list(columns[0]) if columns else []
    return names, [(signs.get(part, "+ ") + part, [c[part] for c in columns]) for part in parts]


def facts(picture: Picture) -> str:
    """One line about the whole picture."""
    n, found = picture.n_steps, []
    if picture.n_nodes:
        found.append(count(picture.n_nodes, "node"))
    found.append(count(n, "step"))
    if picture.splits:
        where = f" on {picture.splits[0].backend}" if len(picture.splits) == 1 else ""
        found += [count(len(picture.splits), "split") + where, copies_text(c.nbytes for c in picture.copies)]
    return " · ".join(found)
