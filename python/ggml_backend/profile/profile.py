"""Profiles: run time, bytes and operations of each operator. ``with sched.profile() as p: ...``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base.errors import NOT_GIVEN, InvalidArgumentError, StateError, expect, expect_bool, expect_int, expect_path
from .._base.errors.messages import made_by
from .._base.files import read_text, without_mark, write_text
from .._base.forms import expect_form
from .._base.handles import Core, Owner, fail, owned
from .._base.text import count, line
from .._ffi import ffi, lib
from ._limits import LIMITS_FORM, MachineLimits, limits_from_json, limits_to_json, measure_limits
from ._pictures.chrome import OperatorSlice, chrome_trace
from ._records import FORM, FORMAT, RECORD, RUN, ProfileStep, Recorded, is_behind, read_profile
from ._tables import (
    By,
    ProfileChange,
    ProfileComparison,
    ProfileRow,
    ProfileTable,
    compare_rows,
    make_table,
    median_run,
)

__all__ = [
    "MachineLimits", "Profile", "ProfileChange", "ProfileComparison", "ProfileRow", "ProfileStep", "ProfileTable",
    "begin",
]  # fmt: skip

_MOST = 1 << 26  # records; the limit of C
_SHOWN = 30  # rows of a printed profile
#: Limits that this process has measured.
_measured: dict[tuple[str, int], MachineLimits] = {}


class ProfileCore(Core):
    """Owns a ``ggml_profile``."""

    __slots__ = ()

    def __init__(self, max_records: int) -> None:
        h = owned(ffi.new("struct gbpy_handle *"), lib.gbpy_release_profile)
        status = lib.gbpy_open_profile(h, max_records)
        if status:
            fail(status, "Profile")
        super().__init__(h, "struct ggml_profile *")


class Profile(Owner):
    """A record for each execution of each operator, or of several fused operators.

    ``Scheduler.profile``, ``Graph.profile`` and ``Profile.everything`` start a profile. It ends with
    :meth:`stop`, with the ``with`` block, or when it is garbage-collected. You can read its contents at any
    time until it is closed. ``str()`` and notebooks show :meth:`table`.

    On the CPU it records operators. On devices with their own queue it records whole splits. It covers runs
    that begin while it is recording, on any thread, and waits for each of them. Work of your functions
    inside a node counts as part of the node.

    Times are measured on the calling thread of a run, from operator to operator. They add up to the time of
    the run, except for work before and between splits. Bytes and operations are the minimum that shapes
    and dtypes require.
    """

    __slots__ = ("__weakref__", "_closed", "_core", "_data", "_limits")

    def __init__(self, core: ProfileCore | None = NOT_GIVEN, data: Recorded | None = None) -> None:
        if data is None:
            made_by(core, Core, "Profile", "scheduler.profile(), graph.profile() or Profile.everything()")
        self._core = core
        self._data = data  # from a file, or the last read
        self._limits: dict[str, MachineLimits] | None = None  # from a file
        self._closed = False

    @classmethod
    def everything(cls, *, max_records: int = 1 << 20) -> Profile:
        """Starts a profile of all schedulers and graphs of this process that have no profile of their own."""
        return begin(None, max_records, "Profile.everything")

    # -------------------------------------------------------------------------------------------------------- recording

    @property
    def running(self) -> bool:
        """True while it is recording."""
        core = self._core
        return core is not None and bool(lib.gbpy_is_attached(core.h))

    def stop(self) -> Profile:
        """Ends the recording. Runs of other threads that have begun are still recorded. Stopping twice is fine."""
        core = self._core
        if core is not None:
            lib.gbpy_detach_profile(core.h)
        return self

    def close(self) -> None:
        """Ends the recording and frees its memory. The contents are then gone. Closing twice is fine."""
        self.stop()
        self._closed = True
        self._core = self._data = self._limits = None

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Profile:
        if not self.running:
            raise StateError("Profile: it has ended; start a new one")
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # --------------------------------------------------------------------------------------------------------- contents

    def _read(self) -> Recorded:
        """The current contents. They are read from C only if there are new records."""
        core, data = self._core, self._data
        if self._closed:
            raise StateError("Profile: it is closed")
        if core is None:
            return data or Recorded((), np.zeros(0, RECORD), np.zeros(0, RUN), 0)
        if data is None or is_behind(data, core.ptr):
            self._data = data = read_profile(core.ptr)
        return data

    @property
    def steps(self) -> tuple[ProfileStep, ...]:
        """The computed steps. Records refer to them by number."""
        return self._read().steps

    @property
    def records(self) -> np.ndarray[Any, Any]:
        """A structured array with a record for each execution of a step.

        Fields: ``step``, ``run``, ``start_ns``, ``end_ns`` (on the clock of :class:`TraceEvent`),
        ``waiting_ns`` (sum over all threads), ``flops``, ``bytes_read``, ``bytes_written``, ``threads`` (size of
        the team), and ``tasks`` (number of threads that took part).
        """
        return self._read().records

    @property
    def runs(self) -> np.ndarray[Any, Any]:
        """A structured array with a record for each run of a graph.

        Fields: ``start_ns``, ``end_ns`` (0: not finished), ``thread``, ``complete``.
        """
        return self._read().runs

    @property
    def dropped(self) -> int:
        """Number of records that did not fit."""
        return self._read().dropped

    @property
    def seconds(self) -> float:
        """Total time of all complete runs."""
        runs = self._read().runs
        done = runs[runs["complete"]] if len(runs) else runs
        return float((done["end_ns"] - done["start_ns"]).sum()) * 1e-9 if len(done) else 0.0

    def limits(self, *, measure: bool = True) -> dict[str, MachineLimits]:
        """The limits of this machine, by kernel level, for the recorded numbers of threads.

        measure: measure unknown limits, once for each process, which takes some tenths of a second
        """
        measure = expect_bool(measure, "Profile.limits: measure")
        if self._limits is not None:  # from the file
            return dict(self._limits)
        data, found = self._read(), {}
        threads = int(data.records["threads"].max(initial=1))
        for level in dict.fromkeys(step.level for step in data.steps if step.level):
            if measure and (level, threads) not in _measured:
                _measured[level, threads] = measure_limits(level, threads)
            if (level, threads) in _measured:
                found[level] = _measured[level, threads]
        return found

    # ------------------------------------------------------------------------------------------------------------ shown

    def table(
        self, by: By | None = None, sort: str = "time", top: int | None = None, *, limits: bool = True
    ) -> ProfileTable:
        """Records in groups.

        by: how to group the records. ``"operator"``: by name; ``"kind"``: by operators (``"MUL_MAT+ADD"`` was
            fused); ``"algorithm"`` (of products); ``"fusion"``; ``"dtype"`` (of weights); ``"device"``. Or one
            or several patterns for names of nodes and matrices: as in a shell (``"*attn*"``), or compiled
            expressions, whose groups name the row. A step belongs to the first match. Default:
            ``"operator"`` if nodes have names, else ``"kind"``
        sort: ``"time"``, ``"calls"``, ``"median"``, ``"limit"`` (furthest from its limit first), ``"waiting"``,
            ``"bytes"``, ``"flops"``, ``"name"``
        top: maximum number of rows
        limits: add shares of the machine's limits, and measure unknown limits
        """
        _check_top(top, "Profile.table")
        found = self.limits() if expect_bool(limits, "Profile.table: limits") else {}
        return make_table(self._read(), found, by, sort, top, self._title())

    def _title(self) -> str:
        data = self._read()
        n = int(data.runs["complete"].sum()) if len(data.runs) else 0
        each = f", {median_run(data) * 1e3:.3f} ms each (median)" if n else ""
        text = f"{count(n, 'run')}{each}; {count(len(data.records), 'record')}"
        others = len(data.runs) - n
        text += f"; {count(others, 'run')} did not finish" if others else ""
        return text + (f"; {count(data.dropped, 'record')} did not fit" if data.dropped else "")

    def compare(self, before: Profile, by: By | None = None, top: int | None = None) -> ProfileComparison:
        """Compares this profile with an earlier one.

        For each group it gives the median over runs, and the ratio. Below 1 this profile is faster. ``by`` is
        that of :meth:`table`.
        """
        expect(before, Profile, "Profile.compare: before")
        _check_top(top, "Profile.compare")
        return compare_rows(before._read(), self._read(), by, top)

    def __str__(self) -> str:
        return str(self.table(top=_SHOWN))

    def _repr_html_(self) -> str:
        return self.table(top=_SHOWN)._repr_html_()

    def __repr__(self) -> str:
        if self._closed:
            return "<Profile closed>"
        state = "running" if self.running else count(len(self._read().records), "record")
        return f"<Profile {state}>"

    # ------------------------------------------------------------------------------------------------------------ files

    def to_json(self, path: str | os.PathLike[str] | None = None, *, limits: bool = True) -> str:
        """The whole profile as JSON for :meth:`from_json`. Also writes it if ``path`` is given.

        limits: include the machine's limits, as in :meth:`limits`
        """
        found = self.limits() if expect_bool(limits, "Profile.to_json: limits") else {}
        data = {**self._read().to_json(), "limits": [limits_to_json(found[level]) for level in found]}
        result = json.dumps(data, separators=(",", ":"))
        if path is not None:
            expect_path(path, "Profile.to_json: path")
            write_text(path, result)
        return result

    @classmethod
    def from_json(cls, source: str | os.PathLike[str]) -> Profile:
        """Loads the output of :meth:`to_json`: the text, or the path of a file."""
        where = "Profile.from_json: the text"
        if isinstance(source, str):
            source = without_mark(source)
        if not isinstance(source, str) or not source.lstrip().startswith("{"):
            expect_path(source, "Profile.from_json: source")
            where = line(os.fsdecode(source))
            source = read_text(source)
        try:
            data = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{where}: it is not a profile that to_json wrote: {line(error, 100)}") from None
        made = data.get("format") if isinstance(data, dict) else None
        if made is not None and made != FORMAT:
            raise InvalidArgumentError(f"{where}: it is a profile of format {line(repr(made), 40)}, needs {FORMAT}")
        try:
            expect_form(data, {**FORM, "limits": [LIMITS_FORM]})
            profile = cls(None, Recorded.from_json(data))
            profile._limits = {m.level: m for m in map(limits_from_json, data["limits"])}
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{where}: it is not a profile that to_json wrote: {error}") from None
        return profile

    def to_trace(self, path: str | os.PathLike[str] | None = None) -> str:
        """Chrome trace JSON, for ui.perfetto.dev. Also writes it if ``path`` is given.

        It has a lane for each kind of operator on each device. If a trace of the same scheduler was recorded at
        the same time, ``Trace.to_json`` has these lanes below its own.
        """
        result = json.dumps(chrome_trace((), (), (), self._slices()), separators=(",", ":"))
        if path is not None:
            expect_path(path, "Profile.to_trace: path")
            write_text(path, result)
        return result

    def _slices(self) -> Sequence[OperatorSlice]:
        data = self._read()
        found = []
        for r in data.records:
            step = data.steps[r["step"]]
            args = {
                "run": int(r["run"]), "operators": step.kind, "algorithm": step.algorithm, "fusion": step.fusion,
                "threads": int(r["threads"]), "waiting us": int(r["waiting_ns"]) / 1000,
                "operations": float(r["flops"]), "bytes read": float(r["bytes_read"]),
                "bytes written": float(r["bytes_written"]),
            }  # fmt: skip
            lane = f"{step.device}: {step.kind}"
            found.append(OperatorSlice(lane, step.name, int(r["start_ns"]), int(r["end_ns"]), args))
        return found


def _check_top(top: int | None, what: str) -> None:
    if top is not None and expect_int(top, f"{what}: top") < 0:
        raise InvalidArgumentError(f"{what}: top must not be negative, is {top}")


def begin(where: Core | None, max_records: int, what: str) -> Profile:
    """Starts a profile of a scheduler, a graph, or with None of the process."""
    if not 1 <= expect_int(max_records, f"{what}: max_records") <= _MOST:
        raise InvalidArgumentError(f"{what}: max_records must be 1 to {_MOST}, not {max_records}")
    core = ProfileCore(max_records)
    profile = Profile(core)
    status = lib.gbpy_attach_profile(core.h, where.h if where is not None else ffi.NULL)
    if status:
        fail(status, what)
    return profile
