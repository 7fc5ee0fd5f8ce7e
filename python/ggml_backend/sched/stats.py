"""Counts of a scheduler: ``Scheduler.stats`` returns a :class:`SchedulerStats`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from .._base.errors import check
from .._base.renamed import Renamed, warn_of
from .._base.text import count
from .._ffi import ffi, lib

__all__ = ["SchedulerStats", "SplitTime", "Traffic", "read_stats"]


class Traffic(NamedTuple):
    """Copies of one kind."""

    n: int
    nbytes: int

    @property
    def bytes(self) -> int:
        """The old name of ``nbytes``."""
        warn_of("Traffic.bytes", "Traffic.nbytes")
        return self.nbytes

    def __str__(self) -> str:
        return f"{count(self.nbytes, 'byte')} in {count(self.n, 'copy')}"


@dataclass(frozen=True)
class SplitTime:
    """Time of a split of the last graph on its backend, in traced runs."""

    index: int
    backend: str
    runs: int
    seconds: float  #: sum over these runs

    @property
    def mean(self) -> float:
        """Seconds per run; 0.0 if no run was traced."""
        return self.seconds / self.runs if self.runs else 0.0


@dataclass(frozen=True)
class SchedulerStats:
    """Counts since the scheduler was made, or since :meth:`Scheduler.reset_stats`.

    Copies are counted by their reason. ``up_to_date`` counts kept copies that were still valid and
    not made.
    """

    runs: int
    plans_found: int  #: plans of unchanged graphs, used again
    plans_bound: int  #: plans of known graphs whose tensors had lost their memory, bound again
    plans_replayed: int  #: plans for other sizes, with the offsets of a plan of the same structure
    plans_made: int  #: new plans
    weights: Traffic  #: kept copies, made for the first time or after a write to the original
    up_to_date: Traffic  #: kept copies that were still valid and not made
    inputs: Traffic  #: copies of inputs, made in each run
    results: Traffic  #: copies of results of other splits
    write_backs: Traffic  #: copies of results to their own memory
    waits_host: int  #: events that the host waited for
    waits_queue: int  #: events of another device's queue that a queue waited for
    plan_seconds: float  #: finding and making plans
    run_seconds: float  #: issuing runs, including the work of the host itself
    wait_seconds: float  #: the host waiting for devices
    splits: tuple[SplitTime, ...]  #: splits of the last graph; times are those of traced runs

    @property
    def nbytes_copied(self) -> int:
        """Bytes of all kinds of copies."""
        return self.weights.nbytes + self.inputs.nbytes + self.results.nbytes + self.write_backs.nbytes

    bytes_copied: ClassVar[Renamed] = Renamed("nbytes_copied")

    @property
    def plan_hits(self) -> int:
        """Number of times that no plan had to be made."""
        return self.plans_found + self.plans_bound

    def __str__(self) -> str:
        lines = [
            f"{count(self.runs, 'run')}: {self.run_seconds * 1e3:.3f} ms issuing,"
            f" {self.wait_seconds * 1e3:.3f} ms waiting",
            f"plans: {self.plans_found:,} found, {self.plans_bound:,} bound again, {self.plans_replayed:,} replayed, "
            f"{self.plans_made:,} made, {self.plan_seconds * 1e3:.3f} ms",
            f"weights: {self.weights}; up to date: {self.up_to_date}",
            f"inputs: {self.inputs}",
            f"results: {self.results}; written back: {self.write_backs}",
            f"waits: {self.waits_host:,} of the host, {self.waits_queue:,} between queues",
        ]
        lines += [
            f"split {s.index} on {s.backend}: {s.mean * 1e6:.1f} us a run ({s.runs:,} traced)"
            for s in self.splits
            if s.runs
        ]
        return "\n".join(lines)


def _traffic(t: Any) -> Traffic:
    return Traffic(int(t.n), int(t.bytes))


def _split_times(sched: Any, names: dict[Any, str]) -> tuple[SplitTime, ...]:
    info, runs, ns = ffi.new("struct ggml_backend_sched_split_info *"), ffi.new("uint64_t *"), ffi.new("uint64_t *")
    found = []
    for i in range(lib.ggml_backend_sched_get_n_splits(sched)):
        check(lib.ggml_backend_sched_get_split(sched, i, info), "Scheduler.stats")
        check(lib.ggml_backend_sched_get_split_time(sched, i, runs, ns), "Scheduler.stats")
        found.append(SplitTime(i, names[info.backend], int(runs[0]), int(ns[0]) * 1e-9))
    return tuple(found)


def read_stats(sched: Any, backends: Sequence[tuple[Any, str]]) -> SchedulerStats:
    """Reads the counts of a C scheduler. backends: pairs (C backend, name)"""
    s = ffi.new("struct ggml_backend_sched_stats *")
    check(lib.ggml_backend_sched_get_stats(sched, s), "Scheduler.stats")
    return SchedulerStats(
        runs=int(s.n_runs), plans_found=int(s.n_plans_found), plans_bound=int(s.n_plans_bound),
        plans_replayed=int(s.n_plans_replayed), plans_made=int(s.n_plans_made), weights=_traffic(s.weights),
        up_to_date=_traffic(s.up_to_date), inputs=_traffic(s.inputs), results=_traffic(s.results),
        write_backs=_traffic(s.write_backs), waits_host=int(s.n_waits_host), waits_queue=int(s.n_waits_queue),
        plan_seconds=int(s.plan_ns) * 1e-9, run_seconds=int(s.run_ns) * 1e-9, wait_seconds=int(s.wait_ns) * 1e-9,
        splits=_split_times(sched, dict(backends)),
    )  # fmt: skip
