"""Traces record the work of each device: ``with sched.trace("run.json"): ...``."""

from __future__ import annotations

import json
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .._base.errors import check, expect_path
from .._base.errors.messages import kind_of
from .._base.files import write_text
from .._base.handles import Owner
from .._base.renamed import Renamed
from .._base.text import count
from .._ffi import ffi, lib
from ..backend.buffer import text

if TYPE_CHECKING:
    from ..profile._pictures.chrome import OperatorSlice
    from ..profile._pictures.traces import Record
    from ..profile.profile import Profile
    from .scheduler import Scheduler

__all__ = ["Trace", "TraceEvent", "read_events"]

_KINDS = {
    lib.GGML_BACKEND_SCHED_TRACE_PLAN: "plan",
    lib.GGML_BACKEND_SCHED_TRACE_COPY: "copy",
    lib.GGML_BACKEND_SCHED_TRACE_COMPUTE: "compute",
    lib.GGML_BACKEND_SCHED_TRACE_WRITE_BACK: "write-back",
    lib.GGML_BACKEND_SCHED_TRACE_WAIT: "wait",
}
_REASONS = {
    lib.GGML_BACKEND_SCHED_REASON_NONE: "",
    lib.GGML_BACKEND_SCHED_REASON_WEIGHT: "weight",
    lib.GGML_BACKEND_SCHED_REASON_INPUT: "input",
    lib.GGML_BACKEND_SCHED_REASON_RESULT: "result",
}


@dataclass(frozen=True)
class TraceEvent:
    """A step of a scheduler or of one of its devices. Backends are indices into
    ``Scheduler.backends``; -1: none of them."""

    kind: str
    """``"plan"``: a plan was found or made; ``"copy"``: into a split; ``"compute"``: the nodes of a split;
    ``"write-back"``: a result was copied to its own memory; ``"wait"``: the host waited for a device"""
    reason: str  #: reason of a copy: ``"weight"``, ``"input"`` or ``"result"``; otherwise ``""``
    name: str  #: name of the copied tensor, of the first node, or of the awaited device
    run: int  #: index of the run in this record
    start_ns: int  #: on a monotonic clock
    end_ns: int
    backend: int  #: the backend that computes, or whose memory is written
    source: int  #: for a copy, the backend whose memory is read
    by_host: bool  #: the calling thread does the work, not a queue
    split: int
    node: int  #: index of the first node
    n_nodes: int
    nbytes: int  #: bytes of a copy
    live_nbytes: int  #: most live bytes in the arena of ``backend`` during the event
    arena_nbytes: int

    bytes: ClassVar[Renamed] = Renamed("nbytes")
    live_bytes: ClassVar[Renamed] = Renamed("live_nbytes")
    arena_bytes: ClassVar[Renamed] = Renamed("arena_nbytes")

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) * 1e-9


def read_events(sched: Any) -> tuple[TraceEvent, ...]:
    """Reads the record of a C scheduler."""
    e = ffi.new("struct ggml_backend_sched_trace_event *")
    found = []
    for i in range(lib.ggml_backend_sched_get_n_trace_events(sched)):
        check(lib.ggml_backend_sched_get_trace_event(sched, i, e), "Scheduler.trace")
        what = (_KINDS[e.kind], _REASONS[e.reason], text(e.name))
        when = (int(e.run), int(e.start_ns), int(e.end_ns), int(e.backend), int(e.source))
        which = (int(e.split), int(e.node), int(e.n_nodes))
        found.append(
            TraceEvent(*what, *when, bool(e.by_host), *which, int(e.bytes), int(e.live_bytes), int(e.arena_bytes))
        )
    return tuple(found)


class Trace(Owner):
    """A record that :meth:`Scheduler.trace` has started. It ends with :meth:`stop`, with the
    ``with`` block, or with the scheduler. Then ``events`` has the record, and it is written to the
    file if you named one."""

    __slots__ = ("_names", "_operators", "_path", "_queueless", "_scheduler", "events")

    def __init__(self, scheduler: Scheduler, path: str | os.PathLike[str] | None) -> None:
        self._scheduler: weakref.ref[Scheduler] | None = weakref.ref(
            scheduler
        )  # weak, because the scheduler holds its trace
        self._names = scheduler._live().names
        self._queueless = tuple(i for i, b in enumerate(scheduler.backends) if b.is_cpu)
        self._path = path
        self._operators: tuple[OperatorSlice, ...] = ()  # operators of a profile that was recorded at the same time
        self.events: tuple[TraceEvent, ...] = ()

    @property
    def running(self) -> bool:
        """True while it records."""
        return self._scheduler is not None and self._scheduler() is not None

    def stop(self) -> Trace:
        """Ends the record and writes the file. Stopping twice is allowed."""
        scheduler = self._scheduler() if self._scheduler is not None else None
        if scheduler is not None:
            scheduler._stop_trace(self)
        return self

    def _end(self, events: tuple[TraceEvent, ...]) -> None:
        self.events = events
        self._scheduler = None

    def _complete(self, profile: Profile | None) -> None:
        """Adds the operators of a profile, and writes the file."""
        events = self.events
        begin, end = min((e.start_ns for e in events), default=0), max((e.end_ns for e in events), default=0)
        if profile is not None:
            self._operators = tuple(s for s in profile._slices() if begin <= s.start_ns and s.end_ns <= end)
        if self._path is not None:
            self.to_json(self._path)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Chrome trace JSON, for ui.perfetto.dev: a lane for each device, copies with flow arrows,
        counters of live and arena bytes. A profile recorded at the same time
        (:meth:`Scheduler.profile`) adds a lane for each kind of operator. Also writes it if
        ``path`` is given."""
        from ..profile._pictures.chrome import chrome_trace

        trace = chrome_trace(self.events, self._names, self._queueless, self._operators)
        result = json.dumps(trace, separators=(",", ":"))
        if path is not None:
            expect_path(path, "Trace.to_json: path")
            write_text(path, result)
        return result

    def _record(self, title: object, what: str) -> Record:
        if not isinstance(title, str):
            raise TypeError(f"{what}: title must be a str, not {kind_of(title)}")
        from ..profile._pictures.traces import Record

        return Record(title, self.events, self._names, self._queueless, self._operators)

    def to_html(self, path: str | os.PathLike[str] | None = None, title: str = "trace") -> str:
        """Returns a self-contained page with a picture of the record: a lane for each device, with
        its steps and copies. Also writes it if ``path`` is given."""
        from ..profile._pictures.traces import trace_page

        return trace_page(self._record(title, "Trace.to_html"), path, "Trace.to_html")

    def to_svg(
        self,
        path: str | os.PathLike[str] | None = None,
        width: int = 960,
        title: str = "trace",
        theme: Literal["auto", "light", "dark"] = "auto",
    ) -> str:
        """The picture as SVG of this width in pixels, like :meth:`Plan.to_svg`."""
        from ..profile._pictures.traces import trace_svg

        return trace_svg(self._record(title, "Trace.to_svg"), path, width, theme, "Trace.to_svg")

    def to_png(
        self,
        path: str | os.PathLike[str] | None = None,
        width: int = 960,
        title: str = "trace",
        theme: Literal["light", "dark"] = "light",
        scale: int = 2,
    ) -> bytes:
        """The picture as PNG, with ``scale`` pixels for each unit of ``width``, like
        :meth:`Plan.to_png`."""
        from ..profile._pictures.traces import trace_png

        return trace_png(self._record(title, "Trace.to_png"), path, width, theme, scale, "Trace.to_png")

    def _repr_html_(self) -> str:
        return f"<div>{self.to_svg(width=880)}</div>"

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Trace {'running' if self.running else count(len(self.events), 'event')}>"
