"""What this machine can do at best, measured in loops written in C (``cpu/limits.h``), and the least time that work
takes by it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .._base.errors import InvalidArgumentError, check
from .._ffi import lib
from ..backend.backend import cpu_levels

__all__ = [
    "LIMITS_FORM", "Arithmetic", "MachineLimits", "Presence", "arithmetic_of", "least_seconds", "limits_from_json",
    "limits_to_json", "measure_limits", "measured_rate", "notes_on",
]  # fmt: skip

Arithmetic = Literal["f32", "bytes", "bf16"]
_WHAT = {"f32": 0, "bytes": 1, "bf16": 2, "read": 3, "copy": 4}
#: Algorithms of products that do not run on multiply-adds of float32 (docs/PERFORMANCE.md).
_ARITHMETIC: dict[str, Arithmetic] = {
    "short_q8_0": "bytes",
    "interleaved": "bytes",
    "byte_dots": "bytes",
    "blocked_bytes": "bytes",
    "blocked_bf16": "bf16",
    "unpacked_bf16": "bf16",
}
#: Bytes of all threads together: in the nearest caches, further away, in no cache.
_FOOTPRINTS = (1 << 16, 1 << 20, 1 << 24, 1 << 28)


def arithmetic_of(algorithm: str) -> Arithmetic:
    """What an algorithm for products multiplies with."""
    return _ARITHMETIC.get(algorithm, "f32")


#: Below this share of the processors, other processes disturbed the measurement.
BUSY_BELOW = 0.9


class Presence:
    """How much processor time this process had while limits were measured. All threads compute all the time, so on an
    idle machine it is all that there is.

    possible: seconds of processor time that there were
    had: seconds of processor time that this process had
    """

    def __init__(self) -> None:
        self.possible = self.had = 0.0

    def measured_rate(
        self, what: str, level: str, bytes_each: int, threads: int, seconds: float, processor_time: bool = False
    ) -> float:
        """As :func:`measured_rate`."""
        start, worked = time.perf_counter(), time.process_time()
        rate = measured_rate(what, level, bytes_each, threads, seconds, processor_time)
        self.possible += threads * (time.perf_counter() - start)
        self.had += time.process_time() - worked
        return rate

    @property
    def share(self) -> float:
        """The share of the processors that this process had, at most 1. It is 1 if nothing was measured."""
        return min(self.had / self.possible, 1.0) if self.possible else 1.0


def notes_on(presence: float, shares: Iterable[float | None]) -> list[str]:
    """Sentences about figures that mean little.

    presence: the share of the processors with which the limits were measured
    shares: of the limits, as a table shows them
    """
    notes = []
    if presence < BUSY_BELOW:
        notes.append(
            f"other processes used this machine: the limits were measured with {presence:.0%} of its processors, "
            "so shares of them mean little"
        )
    if any(share is not None and share > 1 for share in shares):
        notes.append("shares above 100% (!) are impossible: the limits were measured too low, as on a busy machine")
    return notes


def measured_rate(
    what: str, level: str, bytes_each: int, threads: int, seconds: float, processor_time: bool = False
) -> float:
    """Operations or bytes a second of all threads together; bytes are counted in memory of ``bytes_each`` for each."""
    rate: float = lib.gbpy_measure_limit(
        _WHAT[what], level.encode(), bytes_each, threads, int(seconds * 1e9), processor_time
    )
    if rate <= 0:
        check(lib.ggml_last_status(), "measuring limits")
    return rate


@dataclass(frozen=True)
class MachineLimits:
    """What so many threads can do at best, with the kernels of a level of the CPU."""

    level: str
    threads: int
    operations: dict[str, float]
    """A second, by kind of arithmetic: ``"f32"``, ``"bytes"``, ``"bf16"``"""
    read: dict[int, float]
    """Bytes read a second, by the size of the memory that is read again and again"""
    copy: dict[int, float]
    """Bytes read and written a second, together"""
    presence: float = 1.0
    """Share of the processors that measuring had; below 0.9 other processes used the machine"""


def measure_limits(level: str, threads: int, seconds: float = 0.02) -> MachineLimits:
    """Measures each limit five times, for so long together, and takes the best figure; memory with the best
    instructions there are."""
    presence = Presence()
    highest = [name for name, usable in cpu_levels().items() if usable][-1]

    def best(what: str, size: int = 0) -> float:
        each = max(size // threads, 4096)
        with_level = highest if size else level
        return max(presence.measured_rate(what, with_level, each, threads, seconds / 5) for _ in range(5))

    operations = {kind: best(kind) for kind in ("f32", "bytes", "bf16")}
    read = {size: best("read", size) for size in _FOOTPRINTS}
    copy = {size: best("copy", size) for size in _FOOTPRINTS}
    return MachineLimits(level, threads, operations, read, copy, presence.share)


def least_seconds(machine: MachineLimits, flops: Any, read: Any, written: Any, algorithm: str) -> Any:
    """The larger of the times for operations and for bytes, of arrays of work of one algorithm. Bytes count in the
    smallest memory that holds them."""
    size = read + written
    both = np.minimum(read, written)
    sizes = np.array(sorted(machine.read))
    place = np.minimum(np.searchsorted(sizes, size), len(sizes) - 1)
    reading = np.array([machine.read[int(s)] for s in sizes])[place]
    copying = np.array([machine.copy[int(s)] for s in sizes])[place]
    memory = 2 * both / copying + (size - 2 * both) / reading
    return np.maximum(flops / machine.operations[arithmetic_of(algorithm)], memory)


def limits_to_json(machine: MachineLimits) -> dict[str, Any]:
    """For :func:`limits_from_json`."""
    return {
        "level": machine.level, "threads": machine.threads, "operations": machine.operations,
        "read": {str(k): v for k, v in machine.read.items()}, "copy": {str(k): v for k, v in machine.copy.items()},
        "presence": machine.presence,
    }  # fmt: skip


#: Of :func:`limits_to_json` (``_files.forms``).
LIMITS_FORM: dict[str, Any] = {
    "level": str, "threads": int, "operations": {"f32": float, "bytes": float, "bf16": float},
    "read": {str: float}, "copy": {str: float}, "presence?": float,
}  # fmt: skip


def limits_from_json(data: dict[str, Any]) -> MachineLimits:
    """Reads the result of :func:`limits_to_json`, which must have the form :data:`LIMITS_FORM`. InvalidArgumentError if
    its parts do not fit together."""
    by_size = {what: data[what] for what in ("read", "copy")}
    if not all(size.isdecimal() and len(size) < 20 for sizes in by_size.values() for size in sizes):
        raise InvalidArgumentError("limits: read and copy must have sizes in bytes as keys")
    read, copy = ({int(size): float(rate) for size, rate in sizes.items()} for sizes in by_size.values())
    found = MachineLimits(
        data["level"],
        data["threads"],
        {k: float(v) for k, v in data["operations"].items()},
        read,
        copy,
        float(data.get("presence", 1.0)),
    )
    rates = [*found.operations.values(), *read.values(), *copy.values()]
    if not read or read.keys() != copy.keys() or not all(rate > 0 for rate in rates):
        raise InvalidArgumentError("limits: rates must be above 0, and read and copy must have the same sizes")
    return found
