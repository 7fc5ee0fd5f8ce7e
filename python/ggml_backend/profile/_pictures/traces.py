"""Pictures of a record: a lane for the host and one for each backend, time to the right.

Bars are events, arrows are copies. Operators of a profile that was recorded at the same time have lanes below, coloured
by kind. Splits of that profile are not drawn, because the record has them.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from os import PathLike
from typing import NamedTuple

from ..._base.errors import expect_int, expect_path
from ..._base.files import write_text
from ..._base.text import copies_text, count, size_text
from .chrome import HOST, EventLike, OperatorSlice, Slice, arguments_of, lane_of, named, packed, title_of
from .data import time_tick
from .draw import Sheet, Tick, plot_width
from .lanes import Arrow, Bar, Lanes
from .page import lanes_page
from .palette import KINDS, kind
from .svg import check_look, lanes_drawing, pixels

__all__ = ["Record", "trace_page", "trace_svg"]

_MOST = 4000  # maximum number of bars; the longest are drawn
_COLOURS = {"compute": "bar", "copy": "k4", "write-back": "k4", "plan": "tip", "wait": "live"}
_WORDS = {"compute": "split", "copy": "copy", "write-back": "copy", "plan": "plan", "wait": "the host waits"}


class Record(NamedTuple):
    """The contents of a trace."""

    title: str
    events: Sequence[EventLike]
    names: Sequence[str]  #: names of the backends
    queueless: Collection[int]
    operators: Sequence[OperatorSlice]


def _time(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns:.0f} ns"


def _about(s: Slice, names: Sequence[str]) -> str:
    arguments = arguments_of(s.event, names)
    if "bytes" in arguments:
        arguments["bytes"] = f"{arguments['bytes']:,} ({size_text(arguments['bytes'])})"
    lines = [
        f"start: {_time(s.start)}",
        f"takes: {_time(s.end - s.start)}",
        *(f"{k}: {v}" for k, v in arguments.items()),
    ]
    return "\n".join([" ".join(title_of(s.event, names).split()), *(" ".join(line.split()) for line in lines if line)])


def _texts(s: Slice) -> list[str]:
    e = s.event
    if e.kind == "plan":  # no text is legible on the colour of plans
        return []
    return [f"split {e.split}: {e.name}", f"split {e.split}", str(e.split)] if e.kind == "compute" else [e.name, e.kind]


def _bars(record: Record, origin: int) -> tuple[list[str], list[Bar], list[Arrow]]:
    members: dict[int, list[Slice]] = {lane: [] for lane in (HOST, *range(len(record.names)))}
    longest = sorted(record.events, key=lambda e: e.start_ns - e.end_ns)[:_MOST]
    for i, e in enumerate(sorted(longest, key=lambda e: e.start_ns)):
        members[lane_of(e, record.queueless)].append(Slice(e, i, origin))
    names: list[str] = []
    bars: list[Bar] = []
    arrows = []
    rows = {}
    for lane, slices in members.items():
        rows[lane] = len(names)
        for row in packed(slices) or [[]]:
            bars += [
                Bar(len(names), s.start, s.end, _texts(s), _about(s, record.names), _COLOURS.get(s.event.kind, "bar"))
                for s in row
            ]
            names.append(named(lane, record.names))
    for s in (s for slices in members.values() for s in slices):
        if s.event.kind in ("copy", "write-back") and s.event.source != s.event.backend:
            source, target = rows.get(s.event.source, rows[HOST]), rows.get(s.event.backend, rows[HOST])
            arrows.append(Arrow((s.start + s.end) / 2, source, target, _about(s, record.names)))
    return names, bars, arrows


def _operator_bars(record: Record, origin: int, first: int) -> tuple[list[str], list[Bar], set[int]]:
    """One or more lanes for each device, from number ``first`` on, their bars, and the kinds that
    occur."""
    ends: dict[str, list[list[int]]] = {}  # by device: rows of (lane, end of its last bar)
    names: list[str] = []
    bars, kinds = [], set()
    own = [o for o in record.operators if not o.lane.endswith(": split")]
    longest = sorted(own, key=lambda o: o.start_ns - o.end_ns)[:_MOST]
    for o in sorted(longest, key=lambda o: o.start_ns):
        device, _, operators = o.lane.partition(": ")
        rows = ends.setdefault(device, [])
        row = next((r for r in rows if r[1] <= o.start_ns), None)
        if row is None:
            row = [first + len(names), 0]
            rows.append(row)
            names.append(f"{device} ops")
        row[1] = o.end_ns
        kinds.add(kind(operators))
        lines = [f"start: {_time(o.start_ns - origin)}", f"takes: {_time(o.end_ns - o.start_ns)}"]
        lines += [f"{k}: {v}" for k, v in o.args.items()]
        about = "\n".join([" ".join(o.name.split()) or "(no name)", *(" ".join(line.split()) for line in lines)])
        start = o.start_ns - origin
        bars.append(Bar(row[0], start, max(o.end_ns - origin, start + 1), [o.name, operators.lower()], about,
                        f"k{kind(operators)}"))  # fmt: skip
    return names, bars, kinds


def _lanes(record: Record) -> tuple[Lanes, int]:
    """The lanes, and the duration in nanoseconds."""
    spans = [(e.start_ns, e.end_ns) for e in record.events] + [(o.start_ns, o.end_ns) for o in record.operators]
    origin = min((start for start, _ in spans), default=0)
    names, bars, arrows = _bars(record, origin)
    below, operators, kinds = _operator_bars(record, origin, len(names))
    used = dict.fromkeys(_COLOURS[e.kind] for e in record.events)
    legend = [(c, next(_WORDS[k] for k, own in _COLOURS.items() if own == c)) for c in used]
    legend += [("copy", "from one device to another")] if arrows else []
    legend += [(f"k{k}", f"operators: {KINDS[k]}") for k in sorted(kinds)]
    end = max((end for _, end in spans), default=origin) - origin
    return Lanes([*names, *below], [*bars, *operators], arrows, legend), max(end, 1)


def _ticks(end: int) -> tuple[list[Tick], str]:
    """Ticks at multiples of a power of ten, and their unit."""
    fine = 1
    while end // fine > 700:
        fine *= 10
    unit, size = next((u, s) for u, s in (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1)) if end >= s)
    return [(k * fine, f"{k * fine / size:g}", time_tick(k) * fine) for k in range(end // fine + 1)], unit


def _facts(record: Record) -> str:
    n = len(record.events)
    runs = len({e.run for e in record.events})
    copied = copies_text(e.nbytes for e in record.events if e.kind in ("copy", "write-back"))
    facts = [count(runs, "run"), count(n, "event"), copied]
    if record.operators:
        facts.append(count(len(record.operators), "operator"))
    if max(n, len(record.operators)) > _MOST:
        facts.append(f"of each the {_MOST:,} longest are drawn")
    return " · ".join(facts)


def trace_svg(record: Record, path: str | PathLike[str] | None, width: int, theme: str, what: str) -> str:
    if path is not None:
        expect_path(path, f"{what}: path")
    check_look(expect_int(width, f"{what}: width"), theme, what)
    lanes, end = _lanes(record)
    ticks, unit = _ticks(end)
    ident = f"t{zlib.crc32(f'{record.title}{width}{theme}{end}'.encode('utf-8', 'replace')):08x}"
    sheet = Sheet(0, end, plot_width(width), theme, "kind", ident)
    result = lanes_drawing(record.title, f"{_facts(record)} · {_time(end)}", lanes, ticks, unit, sheet, width)
    if path is not None:
        write_text(path, result + "\n")
    return result


def trace_png(
    record: Record, path: str | PathLike[str] | None, width: int, theme: str, scale: int, what: str
) -> bytes:  # fmt: skip
    if path is not None:
        expect_path(path, f"{what}: path")
    scale = expect_int(scale, f"{what}: scale")
    return pixels(lambda: trace_svg(record, None, width, theme, what), path, theme, scale, what)


def trace_page(record: Record, path: str | PathLike[str] | None, what: str) -> str:
    if path is not None:
        expect_path(path, f"{what}: path")
    lanes, end = _lanes(record)
    ticks, unit = _ticks(end)
    result = lanes_page(record.title, f"{_facts(record)} · {_time(end)}", lanes, ticks, unit, Sheet(0, end))
    if path is not None:
        write_text(path, result)
    return result
