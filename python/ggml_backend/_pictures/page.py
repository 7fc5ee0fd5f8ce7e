"""The page: ``page.html`` with the plan inside it as JSON. Nothing of a plan becomes markup: its names stay in JSON
strings in which no character means anything to an HTML parser, and the script puts them on the page as text."""

from __future__ import annotations

from functools import cache
from importlib import resources
from os import PathLike
from typing import Any

from .._files import write_text
from .._text.escape import markup, script_json
from .data import ArenaLike, Picture, bases, chains, curve, peak_moment, span, verdict


@cache
def _template() -> str:
    return resources.files(__package__).joinpath("page.html").read_text("utf-8")


def _arena(arena: ArenaLike) -> dict[str, Any]:
    """Columns rather than rows: a third of the bytes for many blocks."""
    blocks = arena.blocks
    base, moments = bases(blocks), curve(blocks)
    ops = list(dict.fromkeys(b.op for b in blocks))
    number = {op: i for i, op in enumerate(ops)}
    return {
        "backend": arena.backend, "peak": arena.peak, "bound": arena.lower_bound, "verdict": verdict(arena),
        "bases": base,
        "tight": arena.peak <= arena.lower_bound or arena.proved,
        "sum": sum(b.size for b in blocks if b.root is None or b.root == b.id),
        "ops": ops, "op": [number[b.op] for b in blocks], "name": [b.name for b in blocks],
        "lower": [b.lower for b in blocks],
        "upper": [b.upper for b in blocks], "size": [b.size for b in blocks], "offset": [b.offset for b in blocks],
        "chunk": [b.chunk for b in blocks], "root": [-1 if r == i else r for i, r in enumerate(chains(blocks))],
        "moment": peak_moment(moments), "t": [m.time for m in moments], "live": [m.live for m in moments],
        "top": [m.top for m in moments],
    }  # fmt: skip


def content(picture: Picture) -> dict[str, Any]:
    """What the page's script reads."""
    t0, t1 = span(picture)
    names: dict[int, str] = {}
    for s in picture.splits:
        names.update(enumerate(s.nodes, s.start))
    return {
        "title": picture.title, "nodes": picture.n_nodes, "t0": t0, "t1": t1, "backends": picture.backends,
        "names": [names.get(i, "") for i in range(picture.n_nodes)] if names else [],
        "arenas": [_arena(a) for a in picture.arenas],
        "splits": [[s.index, s.backend, s.start, s.end, s.n_inputs] for s in picture.splits],
        "copies": [[c.name, c.src_backend, c.dst_backend, c.size, c.split, c.reason] for c in picture.copies],
    }  # fmt: skip


def page(picture: Picture, path: str | PathLike[str] | None = None) -> str:
    """One self-contained HTML page: returned, and written to ``path`` if there is one."""
    head, body = _template().split("@TITLE@")
    before, after = body.split("@DATA@")
    result = f"{head}{markup(picture.title)}{before}{script_json(content(picture))}{after}"
    if path is not None:
        write_text(path, result)
    return result
