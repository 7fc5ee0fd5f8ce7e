"""Cases, the limits of the machine, and rounds that measure both alternately.

A case states its work: bytes of memory to read, or to read and write, and operations of a kind.
Each round measures the limits beside the case, with loops in C (``cpu/limits.h``). The least
possible time is the larger of the memory's time and the arithmetic's time. The share of a case is
this least time divided by its measured time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from ..._base.timing import THREAD, WALL, median, per_call, ratio
from ...backend.backend import Backend, cpu_levels
from ...profile._limits import Arithmetic, Presence

__all__ = ["Arithmetic", "Case", "Limits", "Result", "measure"]

_TRAFFIC: dict[str, Literal["read", "copy"]] = {"reading": "read", "copying": "copy"}
_NAMES: dict[Literal["f32", "bytes", "bf16"], str] = {
    "f32": "f32 multiply-adds",
    "bytes": "products of bytes",
    "bf16": "products of bfloat16",
}
#: A size that no cache holds, for all threads together.
_LARGEST = 256 << 20


@dataclass(frozen=True)
class Case:
    """Something to measure.

    work: bytes, operations or items of one call; the figure is work per second, divided by 1e9 for "GB/s" and
        "GFLOP/s"
    memory: smallest number of bytes that one call moves; 0: not counted
    traffic: whether these bytes are read, or read and written
    footprint: bytes of the working set, which decide the cache; default: ``memory``
    flops: operations of one call; 0: not counted
    algorithm: the one that computes a product; "" for other cases
    """

    name: str
    group: str
    unit: str
    work: float
    run: Callable[[], Any]
    memory: float = 0.0
    traffic: Literal["read", "copy"] = "read"
    footprint: float = 0.0
    flops: float = 0.0
    arithmetic: Arithmetic = "f32"
    algorithm: str = ""

    def figure(self, seconds: float) -> float:
        scale = 1e9 if self.unit in ("GB/s", "GFLOP/s") else 1.0
        return self.work / seconds / scale


@dataclass
class Result:
    """For each round of a case: the measured figure, and the highest that the limits of that round allow."""

    case: Case
    rounds: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    bounds: list[str] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def limit(self) -> float | None:
        return median(self.limits) if self.limits else None

    @property
    def share(self) -> float | None:
        """The median share of the limit over the rounds; None without a limit."""
        return ratio(self.rounds, self.limits) if self.limits else None

    @property
    def bound(self) -> str:
        """The resource that sets the limit."""
        return max(set(self.bounds), key=self.bounds.count) if self.bounds else ""

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.case.group, "unit": self.case.unit, "median": self.median, "limit": self.limit,
            "share": self.share,
            "bound": self.bound, "algorithm": self.case.algorithm, "rounds": self.rounds, "limit_rounds": self.limits,
        }  # fmt: skip


def _size(n: float) -> str:
    for unit, scale in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if n >= scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n:.0f} bytes"


class Limits:
    """Measures limits with the backend's threads: arithmetic at its level, memory with the
    processor's best instructions.

    processor_time: measure processor time instead of elapsed time; for one thread only
    """

    def __init__(self, backend: Backend, seconds: float, *, processor_time: bool = False) -> None:
        self.threads = backend.n_threads
        self.processor_time = processor_time
        self.level = backend.level
        self.best_level = [name for name, usable in cpu_levels().items() if usable][-1]
        self.seconds = seconds
        self.presence = Presence()

    def _rate(self, what: str, level: str, bytes_each: int = 0) -> float:
        return self.presence.measured_rate(what, level, bytes_each, self.threads, self.seconds, self.processor_time)

    def arithmetic(self, kind: Arithmetic) -> float:
        """Operations a second."""
        return self._rate(kind, self.level)

    def memory(self, traffic: Literal["read", "copy"], footprint: float) -> float:
        """Bytes a second, for a working set of ``footprint`` bytes over all threads."""
        each = min(footprint, _LARGEST) / self.threads
        return self._rate(traffic, self.best_level, max(int(each), 4096))

    def least_seconds(self, case: Case) -> tuple[float, str]:
        """The least possible time of a case, and its reason. 0 if the case has neither operations nor bytes."""
        least, why = 0.0, ""
        if case.flops:
            least, why = case.flops / self.arithmetic(case.arithmetic), _NAMES[case.arithmetic]
        if case.memory:
            footprint = case.footprint or case.memory
            seconds = case.memory / self.memory(case.traffic, footprint)
            if seconds > least:
                least, why = seconds, f"{'reading' if case.traffic == 'read' else 'copying'} {_size(footprint)}"
        return least, why

    def table(self, sizes: dict[str, int], rounds: int = 3) -> dict[str, float]:
        """All limits, each the best of a few rounds: operations and bytes a second."""
        jobs: dict[str, Callable[[], float]] = {_NAMES[k]: partial(self.arithmetic, k) for k in _NAMES}
        for name, size in sizes.items():
            for word, traffic in _TRAFFIC.items():
                jobs[f"{word}, {name}"] = partial(self.memory, traffic, size)
        found = dict.fromkeys(jobs, 0.0)
        for _ in range(rounds):
            for name, job in jobs.items():
                found[name] = max(found[name], job())
        return found


def measure(case: Case, limits: Limits, rounds: int, seconds: float) -> Result:
    """Measures the limits and the case alternately."""
    result = Result(case)
    clock = THREAD if limits.processor_time else WALL
    case.run()
    for _ in range(rounds):
        least, why = limits.least_seconds(case)
        result.rounds.append(case.figure(per_call(case.run, seconds, clock)))
        if least > 0:
            result.limits.append(case.figure(least))
            result.bounds.append(why)
    return result
