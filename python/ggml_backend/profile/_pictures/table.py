"""Plans as CSV: id,lower,upper,size,offset,name,op,backend,arena,root. Solvers of memory planning
read the first five columns.

``arena`` is the backend's name, with ``/1``, ``/2`` for further chunks; offsets are within it.
``root`` is the id of the block whose memory this block reuses in place. Ids are unique in the file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike

from ..._base.files import write_text
from ..._base.rows import BUFFER_COLUMNS, Row, buffer_of, read_rows
from ..._base.text import cell, uncell
from .data import ArenaLike, BareBlock, BlockLike

HEADING = ["id", "lower", "upper", "size", "offset", "name", "op", "backend", "arena", "root"]


def _arena(arena: ArenaLike, block: BlockLike) -> str:
    return f"{arena.backend}/{block.chunk}" if block.chunk else arena.backend


def _line(values: Sequence[object]) -> str:
    """A row that ends with a line feed. Written with the line end CR LF first, so that values with
    either character are quoted."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(values)
    return out.getvalue()[:-2] + "\n"


def write_table(arenas: Sequence[ArenaLike], path: str | PathLike[str] | None = None) -> str:
    """Returns the blocks of all arenas as CSV. Also writes it if ``path`` is given."""
    found = [_line(HEADING)]
    first = 0
    for arena in arenas:
        ids = (
            {b.id: first + i for i, b in enumerate(arena.blocks)}
            if len(arenas) > 1
            else {b.id: b.id for b in arena.blocks}
        )
        for b in arena.blocks:
            root = "" if b.root is None or b.root == b.id else ids.get(b.root, "")
            words = [cell(w) for w in (b.name, b.op, b.backend, _arena(arena, b))]
            found.append(_line([ids[b.id], b.lower, b.upper, b.nbytes, b.offset, *words, root]))
        first += len(arena.blocks)
    result = "".join(found)
    if path is not None:
        write_text(path, result)
    return result


def write_rows(path: str | PathLike[str], arenas: dict[str, list[tuple[str, BareBlock, int]]]) -> None:
    """Writes the rows of :func:`read_table` with offsets. Without names of arenas it writes only
    the first five columns."""
    rows = [(arena, *row) for arena, group in arenas.items() for row in group]
    rows.sort(key=lambda row: row[2].id)
    label = {b.id: text for _, text, b, _ in rows}
    bare = list(arenas) == [""] and not any(
        b.op or b.backend or b.root is not None or b.name != text for _, text, b, _ in rows
    )
    found = [_line(HEADING[:5] if bare else HEADING)]
    for arena, text, b, offset in rows:
        root = "" if b.root is None else label[b.root]
        row = [
            cell(text),
            b.lower,
            b.upper,
            b.nbytes,
            offset,
            cell(b.name),
            cell(b.op),
            cell(b.backend),
            cell(arena),
            cell(root),
        ]
        found.append(_line(row[:5] if bare else row))
    write_text(path, "".join(found))


def read_table(path: str | PathLike[str]) -> dict[str, list[tuple[str, BareBlock]]]:
    """Blocks by arena ("" without that column), each with its id in the file. Needs the columns id,
    lower, upper and size, in any order."""
    found: dict[str, list[tuple[str, BareBlock]]] = {}
    numbers: dict[tuple[str, str], int] = {}
    order: list[tuple[Row, BareBlock]] = []
    for number, row in enumerate(read_rows(path, BUFFER_COLUMNS, HEADING[4:], "surrogateescape", uncell)):
        lower, upper, size = buffer_of(row)
        label, arena = row.text("id"), row.text("arena")
        name, backend = row.text("name") or label, row.text("backend") or arena
        numbers.setdefault((arena, label), number)
        order.append((row, BareBlock(number, lower, upper, size, 0, name, row.text("op"), backend)))
    for row, block in order:
        label, arena, root = (row.text(column) for column in ("id", "arena", "root"))
        if root and (arena, root) not in numbers:
            raise row.error(f"block {label}: its root {root} is not in its arena")
        placed = replace(block, root=numbers[arena, root]) if root else block
        found.setdefault(arena, []).append((label, placed))
    return found
