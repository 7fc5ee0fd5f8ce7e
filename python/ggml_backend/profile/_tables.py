"""Records of a profile in groups: tables, and comparisons of two profiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, ClassVar, Generic, Protocol, TypeVar, Union

import numpy as np

from .._base.errors import InvalidArgumentError, expect_int, expect_list
from .._base.errors.messages import UnknownKey
from .._base.renamed import Renamed
from .._base.text import count, line, markup, nearest
from ._limits import MachineLimits, least_seconds, notes_on
from ._records import ProfileStep, Recorded

__all__ = ["By", "ProfileChange", "ProfileComparison", "ProfileRow", "ProfileTable", "compare_rows", "make_table"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_R = TypeVar("_R", bound=_Named)
By = Union[str, "re.Pattern[str]", Sequence[Union[str, "re.Pattern[str]"]]]
OTHERS = "(others)"
_GIVEN = re.compile(r"((node|leaf)_\d+)?( \(.*\))?")  # default names of nodes and views
_WIDTH = 44  # maximum width of a name in a terminal
_BY: dict[str, Callable[[ProfileStep], str]] = {
    "operator": lambda step: step.name,
    "kind": lambda step: step.kind,
    "algorithm": lambda step: step.algorithm or "(one algorithm)",
    "fusion": lambda step: step.fusion or "(one operator)",
    "dtype": lambda step: step.source_dtype or "(none)",
    "device": lambda step: step.device,
}
_SORT = ("time", "calls", "median", "limit", "waiting", "bytes", "flops", "name")


@dataclass(frozen=True)
class ProfileRow:
    """The records of one group."""

    name: str  #: name of the group
    kind: str  #: operators; several, joined by ``", "``
    device: str
    algorithm: str  #: algorithm of products
    calls: int  #: records
    runs: int  #: complete runs in which it was computed
    seconds: float  #: sum over all records
    median: float  #: seconds a run: the median over those runs
    share: float  #: share of the time of all records of the profile
    flops: float  #: operations
    bytes: float  #: least number of bytes read and written
    limit: float | None
    """Share of the machine's limit: the least possible time divided by the measured time; None: unknown"""
    waiting: float
    """Share of the time of all threads during which they waited for others or were idle"""
    threads: int  #: largest size of the team

    way: ClassVar[Renamed] = Renamed("algorithm")

    @property
    def gflops(self) -> float:
        """10^9 operations a second."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbytes(self) -> float:
        """10^9 bytes a second."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


_HEAD = ("name", "operators", "algorithm", "calls", "ms", "%", "ms a run", "GFLOP/s", "GB/s", "of limit", "waiting")


def _cells(row: ProfileRow) -> tuple[str, ...]:
    return (
        row.name, row.kind, row.algorithm, f"{row.calls:,}", f"{row.seconds * 1e3:.3f}", f"{row.share:.1%}",
        f"{row.median * 1e3:.3f}", f"{row.gflops:.1f}", f"{row.gbytes:.1f}",
        "" if row.limit is None else f"{row.limit:.0%}{'!' * (row.limit > 1)}", f"{row.waiting:.0%}",
    )  # fmt: skip


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]], n_text: int) -> list[str]:
    """Lines of a table for a terminal. The first ``n_text`` columns are left-aligned, the others
    right-aligned."""
    cells = [tuple(line(c, _WIDTH) for c in row) for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        "  ".join(c.ljust(w) if i < n_text else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        .rstrip()
        for row in cells
    ]  # fmt: skip


def _html(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], n_text: int, bars: Sequence[float]) -> str:
    """An HTML table with a bar behind each name, in a colour for light and dark notebooks."""
    top = "".join(f"<th>{markup(h)}</th>" for h in head)
    body = []
    for row, bar in zip(rows, bars, strict=True):
        shade = f"background:linear-gradient(to right,rgba(66,133,244,.3) {bar:.1%},transparent {bar:.1%})"
        cells = [
            f'<td style="text-align:{"left" if i < n_text else "right"}{";" + shade if i == 0 else ""}">'
            f"{markup(c)}</td>"
            for i, c in enumerate(row)
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<p>{markup(title)}</p><table><tr>{top}</tr>{''.join(body)}</table>"


class _Rows(Generic[_R]):
    """The base of tables."""

    __slots__ = ("_rows", "notes", "title")

    def __init__(self, rows: Sequence[_R], title: str, notes: Sequence[str] = ()) -> None:
        self._rows: tuple[_R, ...] = tuple(rows)
        self.title: str = title
        self.notes: tuple[str, ...] = tuple(notes)
        """Warnings about the figures, such as that the machine was busy"""

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[_R]:
        return iter(self._rows)

    def __getitem__(self, which: int | str) -> _R:
        """A row by its number or name."""
        if isinstance(which, str):
            for row in self._rows:
                if row.name == which:
                    return row
            raise UnknownKey(which, [row.name for row in self._rows])
        return self._rows[expect_int(which, f"{type(self).__name__}[...]: which")]

    def _cells(self) -> tuple[Sequence[str], list[tuple[str, ...]], int, list[float]]:
        """Heading, rows, number of text columns, and length of the bar of each row."""
        raise NotImplementedError

    def __str__(self) -> str:
        head, rows, n_text, _ = self._cells()
        notes = (f"note: {line(note)}" for note in self.notes)
        return "\n".join([line(self.title), *_aligned(head, rows, n_text), *notes])

    def _repr_html_(self) -> str:
        head, rows, n_text, bars = self._cells()
        notes = "".join(f"<p>Note: {markup(note)}</p>" for note in self.notes)
        return _html(self.title, head, rows, n_text, bars) + notes


class ProfileTable(_Rows[ProfileRow]):
    """Rows of a profile, each a :class:`ProfileRow`, by number or name. ``str()`` and notebooks show a table."""

    __slots__ = ()

    def _cells(self) -> tuple[Sequence[str], list[tuple[str, ...]], int, list[float]]:
        largest = max((row.share for row in self._rows), default=0.0) or 1.0
        rows, bars = [_cells(row) for row in self._rows], [row.share / largest for row in self._rows]
        if all(row.kind == row.name for row in self._rows):  # both columns would be equal
            return (_HEAD[0], *_HEAD[2:]), [(row[0], *row[2:]) for row in rows], 2, bars
        return _HEAD, rows, 3, bars

    def __repr__(self) -> str:
        return f"<ProfileTable {count(len(self._rows), 'row')}>"


@dataclass(frozen=True)
class ProfileChange:
    """One group of two profiles."""

    name: str
    before: float | None  #: seconds a run: the median over runs; None: not in this profile
    after: float | None

    @property
    def ratio(self) -> float | None:
        """``after`` / ``before``. Below 1: faster."""
        return self.after / self.before if self.before and self.after is not None else None


class ProfileComparison(_Rows[ProfileChange]):
    """A comparison of two profiles. Rows are :class:`ProfileChange`, by number or name, the largest
    differences first."""

    __slots__ = ("after", "before")
    before: float
    """Seconds of a complete run (median)"""
    after: float

    def _cells(self) -> tuple[Sequence[str], list[tuple[str, ...]], int, list[float]]:
        def ms(seconds: float | None) -> str:
            return "" if seconds is None else f"{seconds * 1e3:.3f}"

        rows: list[tuple[str, ...]] = [
            (r.name, ms(r.before), ms(r.after), f"{((r.after or 0) - (r.before or 0)) * 1e3:+.3f}",
             "" if r.ratio is None else f"{r.ratio:.3f}") for r in self._rows
        ]  # fmt: skip
        gaps = [abs((r.after or 0) - (r.before or 0)) for r in self._rows]
        largest = max(gaps, default=0.0) or 1.0
        return ("name", "ms before", "ms after", "difference", "ratio"), rows, 1, [g / largest for g in gaps]

    def __repr__(self) -> str:
        return f"<ProfileComparison {count(len(self._rows), 'row')}, {self.title}>"


# ------------------------------------------------------------------------------------------------------------ grouping


def _pattern_namer(patterns: Sequence[Any], what: str, steps: Sequence[ProfileStep]) -> Callable[[ProfileStep], str]:
    """Names a step by the first pattern that matches the name of one of its nodes or of its source.
    Each pattern must match a step."""
    compiled: list[tuple[str, re.Pattern[str]]] = []
    for p in patterns:
        if not isinstance(p, (str, re.Pattern)):
            raise TypeError(f"{what}: by: a pattern is a str or a compiled expression, not {type(p).__name__}")
        compiled.append((p, re.compile(translate(p))) if isinstance(p, str) else (p.pattern, p))
    known = list(dict.fromkeys(one for step in steps for one in (*step.names, step.source) if one))
    for text, pattern in compiled:
        if steps and not any(map(pattern.search, known)):
            raise InvalidArgumentError(f"{what}: by: nothing recorded has a name like {text!r}{nearest(text, known)}")

    def name(step: ProfileStep) -> str:
        for text, pattern in compiled:
            for one in (*step.names, step.source):
                found = pattern.search(one)
                if found is not None:
                    return " ".join(g for g in found.groups() if g is not None) if pattern.groups else text
        return OTHERS

    return name


def _namer(by: Any, what: str, steps: Sequence[ProfileStep]) -> Callable[[ProfileStep], str]:
    if isinstance(by, str) and by in _BY:
        return _BY[by]
    if isinstance(by, str) and not re.search(r"[*?\[]", by):
        raise InvalidArgumentError(
            f"{what}: by must be one of {', '.join(map(repr, _BY))}, or patterns for names, not {by!r}"
        )
    if isinstance(by, (str, re.Pattern)):
        return _pattern_namer([by], what, steps)
    return _pattern_namer(expect_list(by, f"{what}: by", "patterns"), what, steps)


def _joined(values: Any) -> str:
    found = list(dict.fromkeys(v for v in values if v))
    return ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")


def _index(numbers: Any) -> Any:
    """Numbers as an index. Converted here, because NumPy 2.4 crashes if its own conversion runs out
    of memory."""
    return numbers.astype(np.intp)


class _Groups:
    """Records by group.

    what: the function that messages name
    steps: the steps of which each pattern must match one
    """

    def __init__(self, data: Recorded, by: Any, what: str, steps: Sequence[ProfileStep]) -> None:
        name = _namer(by, what, steps)
        names = [name(step) for step in data.steps]
        self.names = list(dict.fromkeys(names))
        number = {n: i for i, n in enumerate(self.names)}
        self.of_step = np.array([number[n] for n in names], np.intp)
        self.records = data.records
        self.of = self.of_step[_index(self.records["step"])]
        self.seconds = (self.records["end_ns"] - self.records["start_ns"]) * 1e-9
        self.data = data

    def sums(self, values: Any) -> Any:
        return np.bincount(self.of, values, len(self.names))

    def medians(self) -> tuple[list[float], list[int]]:
        """Seconds a run and number of runs, by group. Incomplete runs count only if there are no
        complete ones."""
        complete = self.data.runs["complete"]
        counts = complete[_index(self.records["run"])] if complete.any() else np.ones(len(self.records), bool)
        n_runs = max(len(self.data.runs), 1)
        keys, inverse = np.unique(
            self.of[counts] * n_runs + self.records["run"][counts].astype(np.intp), return_inverse=True
        )
        sums = np.bincount(inverse, self.seconds[counts], len(keys))
        parts = np.split(sums, np.searchsorted(keys // n_runs, np.arange(1, len(self.names))))
        return [float(np.median(p)) if len(p) else 0.0 for p in parts], [len(p) for p in parts]

    def least(self, limits: dict[str, MachineLimits]) -> tuple[Any, Any]:
        """Least possible seconds by group, and measured seconds of the records with a known
        limit."""
        least, known = np.zeros(len(self.records)), np.zeros(len(self.records), bool)
        alike: dict[tuple[str, str], list[int]] = {}
        for i, step in enumerate(self.data.steps):
            alike.setdefault((step.level, step.algorithm), []).append(i)
        for (level, algorithm), steps in alike.items():
            if level in limits:
                mine = np.isin(self.records["step"], steps)
                r = self.records[mine]
                least[mine] = least_seconds(limits[level], r["flops"], r["bytes_read"], r["bytes_written"], algorithm)
                known |= mine
        return self.sums(least), self.sums(np.where(known, self.seconds, 0.0))


def _rows(groups: _Groups, limits: dict[str, MachineLimits]) -> list[ProfileRow]:
    r, seconds = groups.records, groups.sums(groups.seconds)
    calls = np.bincount(groups.of, minlength=len(groups.names))
    flops, size = groups.sums(r["flops"]), groups.sums(r["bytes_read"] + r["bytes_written"])
    waiting, working = groups.sums(r["waiting_ns"] * 1e-9), groups.sums(r["threads"] * groups.seconds)
    (medians, runs), (least, known), total = groups.medians(), groups.least(limits), float(seconds.sum())
    threads, found = np.zeros(len(groups.names), np.int64), []
    np.maximum.at(threads, groups.of, r["threads"])
    steps_of: list[list[ProfileStep]] = [[] for _ in groups.names]
    for step, g in zip(groups.data.steps, groups.of_step, strict=True):
        steps_of[g].append(step)
    for g, (name, steps) in enumerate(zip(groups.names, steps_of, strict=True)):
        found.append(
            ProfileRow(
                name, _joined(s.kind for s in steps), _joined(s.device for s in steps),
                _joined(s.algorithm for s in steps),
                int(calls[g]), runs[g], float(seconds[g]), medians[g], float(seconds[g] / total) if total else 0.0,
                float(flops[g]), float(size[g]), float(least[g] / known[g]) if known[g] > 0 else None,
                float(waiting[g] / working[g]) if working[g] > 0 else 0.0,
                int(threads[g]),
            )
        )  # fmt: skip
    return found


def _sorted(rows: list[ProfileRow], sort: str) -> list[ProfileRow]:
    if not isinstance(sort, str) or sort not in _SORT:
        raise InvalidArgumentError(f"Profile.table: sort must be one of {', '.join(map(repr, _SORT))}, not {sort!r}")
    if sort == "name":
        return sorted(rows, key=lambda row: row.name)
    if sort == "limit":  # furthest from the limit first
        return sorted(rows, key=lambda row: 2.0 if row.limit is None else row.limit)
    key = {"time": "seconds"}.get(sort, sort)
    return sorted(rows, key=lambda row: -float(getattr(row, key)))


def make_table(
    data: Recorded, limits: dict[str, MachineLimits], by: Any, sort: str, top: int | None, title: str
) -> ProfileTable:
    """The table of a profile. limits: by level of kernels"""
    by = default_by(data) if by is None else by
    rows: list[ProfileRow] = []
    if data.steps:
        rows = _rows(_Groups(data, by, "Profile.table", data.steps), limits)
    rows = _sorted(rows, sort)
    rows = rows if top is None else rows[:top]
    presence = min((machine.presence for machine in limits.values()), default=1.0)
    return ProfileTable(rows, title, notes_on(presence, [row.limit for row in rows]))


def default_by(data: Recorded) -> str:
    """``"operator"`` if the user named a node or a matrix, ``"kind"`` if all names are default
    names (node_3)."""
    named = any(not _GIVEN.fullmatch(name) for step in data.steps for name in (*step.names, step.source))
    return "operator" if named else "kind"


def median_run(data: Recorded) -> float:
    """Median seconds of a complete run."""
    done = data.runs[data.runs["complete"]]
    return float(np.median(done["end_ns"] - done["start_ns"])) * 1e-9 if len(done) else 0.0


def compare_rows(before: Recorded, after: Recorded, by: Any, top: int | None) -> ProfileComparison:
    """Compares the medians of two profiles by group."""
    by = default_by(after) if by is None else by
    of = []
    for data in (before, after):
        groups = _Groups(data, by, "Profile.compare", [*before.steps, *after.steps])
        of.append(dict(zip(groups.names, groups.medians()[0], strict=True)) if data.steps else {})
    rows = [ProfileChange(name, of[0].get(name), of[1].get(name)) for name in dict.fromkeys([*of[0], *of[1]])]
    rows.sort(key=lambda r: -abs((r.after or 0.0) - (r.before or 0.0)))
    was, now = median_run(before), median_run(after)
    ratio = f", ratio {now / was:.3f}" if was and now else ""
    title = f"{was * 1e3:.3f} ms -> {now * 1e3:.3f} ms a run (median){ratio}"
    found = ProfileComparison(rows if top is None else rows[:top], title)
    found.before, found.after = was, now
    return found
