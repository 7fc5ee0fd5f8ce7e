"""The record of a scheduler as Chrome trace JSON, which Perfetto (ui.perfetto.dev) and ``chrome://tracing`` open.

The trace has one process, with a lane (thread) for the host and one for each backend. Slices of a
lane are disjoint or nested, because viewers misplace others. A slice that partly overlaps another
one goes to another lane of the same name. Flow arrows connect a copy with the split that made the
bytes and with the split that reads them. Counters show the live bytes and the size of each arena.
Operators of a profile have their own lanes below, one for each kind on each device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

__all__ = [
    "HOST", "EventLike", "OperatorSlice", "Slice", "arguments_of", "chrome_trace", "lane_of", "named", "packed",
    "title_of",
]  # fmt: skip

HOST = -1  # the lane of the calling thread
_PID = 1


class EventLike(Protocol):
    """An event from ``start_ns`` to ``end_ns``."""

    @property
    def kind(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def run(self) -> int: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def backend(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def by_host(self) -> bool: ...
    @property
    def split(self) -> int: ...
    @property
    def node(self) -> int: ...
    @property
    def n_nodes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def live_nbytes(self) -> int: ...
    @property
    def arena_nbytes(self) -> int: ...


@dataclass(frozen=True)
class OperatorSlice:
    """One execution of operators. ``lane``: slices with the same lane are drawn together."""

    lane: str
    name: str
    start_ns: int
    end_ns: int
    args: dict[str, Any]


class Slice:
    """An event and its position in the trace."""

    __slots__ = ("end", "event", "index", "start", "tid")

    def __init__(self, event: EventLike, index: int, origin: int) -> None:
        self.event = event
        self.index = index
        self.start = event.start_ns - origin
        # viewers cannot show a slice without length, or attach an arrow to it
        self.end = max(event.end_ns - origin, self.start + 1)
        self.tid = 0


def lane_of(event: EventLike, queueless: Collection[int]) -> int:
    """The backend whose lane shows an event, or HOST."""
    if event.kind == "compute":
        return event.backend
    if event.by_host or event.kind in ("plan", "wait"):
        return HOST
    return event.source if event.kind == "write-back" or event.backend in queueless else event.backend


def packed(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Rows in which slices are disjoint or nested."""
    rows: list[tuple[list[int], list[Slice]]] = []  # ends of the open slices, innermost last
    for s in sorted(slices, key=lambda s: (s.start, -s.end, s.index)):
        for open_ends, row in rows:
            while open_ends and open_ends[-1] <= s.start:
                open_ends.pop()
            if not open_ends or s.end <= open_ends[-1]:
                open_ends.append(s.end)
                row.append(s)
                break
        else:
            rows.append(([s.end], [s]))
    return [row for _, row in rows]


def _us(ns: int) -> float:
    return ns / 1000


def _meta(what: str, tid: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": _PID, "tid": tid, "args": args}


def named(index: int, names: Sequence[str]) -> str:
    return names[index] if 0 <= index < len(names) else "host"


def title_of(event: EventLike, names: Sequence[str]) -> str:
    if event.kind == "compute":
        return f"split {event.split}: {event.name}" + (f" +{event.n_nodes - 1}" if event.n_nodes > 1 else "")
    if event.kind == "plan":
        return f"plan: {event.name}" if event.name else "plan"
    if event.kind == "wait":
        return f"wait for {event.name}" if event.name else "wait"
    return f"{event.kind} {event.name} to {named(event.backend, names)}"


def arguments_of(event: EventLike, names: Sequence[str]) -> dict[str, Any]:
    args: dict[str, Any] = {"run": event.run}
    if event.split >= 0:
        args["split"] = event.split
    if event.kind == "compute":
        args.update(backend=named(event.backend, names), first_node=event.node, nodes=event.n_nodes, name=event.name)
    elif event.kind in ("copy", "write-back"):
        source, target = named(event.source, names), named(event.backend, names)
        args.update({"bytes": event.nbytes, "reason": event.reason, "from": source, "to": target, "tensor": event.name})
    return args


def _slice(s: Slice, names: Sequence[str]) -> dict[str, Any]:
    return {
        "name": title_of(s.event, names), "cat": s.event.kind, "ph": "X", "ts": _us(s.start),
        "dur": _us(s.end - s.start), "pid": _PID,
        "tid": s.tid, "args": arguments_of(s.event, names),
    }  # fmt: skip


def _arrow(ph: str, at: Slice, ts: int, number: int, name: str) -> dict[str, Any]:
    arrow = {"name": name, "cat": "flow", "ph": ph, "id": number, "ts": _us(ts), "pid": _PID, "tid": at.tid}
    return {**arrow, "bp": "e"} if ph == "f" else arrow


class _Ended:
    """Finds the last slice of a list that has ended by a given time."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        order = sorted(range(len(slices)), key=lambda i: slices[i].end)
        self._ends = [slices[i].end for i in order]
        self._last = [
            slices[i] for i in accumulate(order, max)
        ]  # by order of ends: the last slice among those up to here

    def by(self, time: int) -> list[Slice]:
        n = bisect_right(self._ends, time)
        return [self._last[n - 1]] if n else []


def _arrows(slices: Sequence[Slice], names: Sequence[str]) -> list[dict[str, Any]]:
    """Arrows from the split that made the bytes of a copy, if one did, to the copy and on to the
    split that reads it."""
    computes: dict[tuple[int, int], list[Slice]] = {}  # by run and backend
    readers: dict[tuple[int, int, int], list[Slice]] = {}  # also by split
    for s in slices:
        if s.event.kind == "compute":
            computes.setdefault((s.event.run, s.event.backend), []).append(s)
            readers.setdefault((s.event.run, s.event.backend, s.event.split), []).append(s)
    ended = {key: _Ended(those) for key, those in computes.items()}
    found = []
    for number, s in enumerate(slices):
        e = s.event
        if e.kind not in ("copy", "write-back"):
            continue
        before = ended.get((e.run, e.source)) if e.reason not in ("input", "weight") else None
        reader = [c for c in readers.get((e.run, e.backend, e.split), ()) if c.start >= s.end]
        stops = [*(before.by(s.start) if before else ()), s, *(reader[:1] if e.kind == "copy" else ())]
        if len(stops) > 1:
            phases = ["s", *["t"] * (len(stops) - 2), "f"]
            name = f"{e.name} to {named(e.backend, names)}"
            times = [stop.end - 1 if ph == "s" else stop.start for ph, stop in zip(phases, stops, strict=True)]
            found += [_arrow(ph, stop, ts, number, name) for ph, stop, ts in zip(phases, stops, times, strict=True)]
    return found


def _counters(slices: Sequence[Slice], names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"name": f"memory {named(s.event.backend, names)}", "ph": "C", "ts": _us(s.start), "pid": _PID, "tid": 0,
         "args": {"live bytes": s.event.live_nbytes, "arena bytes": s.event.arena_nbytes}}
        for s in slices if s.event.backend >= 0 and s.event.arena_nbytes and s.event.kind not in ("plan", "wait")
    ]  # fmt: skip


def _operator_lanes(
    operators: Sequence[OperatorSlice], origin: int, tid: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Names of lanes, from number ``tid`` on, and their slices. A lane whose steps overlap in time
    has several rows."""
    lanes: dict[str, list[list[OperatorSlice]]] = {}
    for s in sorted(operators, key=lambda s: s.start_ns):
        rows = lanes.setdefault(s.lane, [])
        row = next((row for row in rows if row[-1].end_ns <= s.start_ns), None)
        rows.append([s]) if row is None else row.append(s)
    names, slices = [], []
    for lane, rows in lanes.items():
        for row in rows:
            names += [_meta("thread_name", tid, name=lane), _meta("thread_sort_index", tid, sort_index=tid)]
            for s in row:
                slices.append(
                    {"name": s.name, "cat": "operator", "ph": "X", "ts": _us(s.start_ns - origin),
                     "dur": _us(max(s.end_ns - s.start_ns, 1)), "pid": _PID, "tid": tid, "args": s.args}
                )  # fmt: skip
            tid += 1
    return names, slices


def chrome_trace(
    events: Sequence[EventLike],
    names: Sequence[str],
    queueless: Collection[int] = (),
    operators: Sequence[OperatorSlice] = (),
) -> dict[str, Any]:
    """The trace as JSON data.

    names: names of the backends, in the scheduler's order
    queueless: indices of backends without a queue; the host or another backend copies to them
    """
    starts = [*(e.start_ns for e in events), *(s.start_ns for s in operators)]
    origin = min(starts, default=0)
    lanes: dict[int, list[Slice]] = {lane: [] for lane in (HOST, *range(len(names)))}
    for i, e in enumerate(events):
        lanes[lane_of(e, queueless)].append(Slice(e, i, origin))
    written: list[dict[str, Any]] = [_meta("process_name", 0, name="ggml_backend")]
    tid = 0
    for lane, members in lanes.items():
        for row in packed(members) or [[]]:
            for s in row:
                s.tid = tid
            written += [
                _meta("thread_name", tid, name=named(lane, names)),
                _meta("thread_sort_index", tid, sort_index=tid),
            ]
            tid += 1
    slices = sorted((s for members in lanes.values() for s in members), key=lambda s: (s.start, -s.end, s.index))
    lanes_below, below = _operator_lanes(operators, origin, tid)
    written += lanes_below
    timed = [*below, *(_slice(s, names) for s in slices), *_arrows(slices, names), *_counters(slices, names)]
    timed.sort(key=lambda e: e["ts"])  # slices stay before the arrows that bind to them
    return {"traceEvents": written + timed, "displayTimeUnit": "ms", "otherData": {"backends": list(names)}}
