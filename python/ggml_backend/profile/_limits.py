"""Limits of this machine, measured with loops in C (``cpu/limits.h``), and the least time of work
that follows."""

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
#: Algorithms of products that do not multiply float32 (docs/PERFORMANCE.md).
_ARITHMETIC: dict[str, Arithmetic] = {
    "short_q8_0": "bytes",
    "interleaved": "bytes",
    "byte_dots": "bytes",
    "blocked_bytes": "bytes",
    "blocked_bf16": "bf16",
    "unpacked_bf16": "bf16",
}
#: Total bytes of all threads: within the nearest caches, within farther caches, larger than all
#: caches.
_FOOTPRINTS = (1 << 16, 1 << 20, 1 << 24, 1 << 28)


def arithmetic_of(algorithm: str) -> Arithmetic:
    """The arithmetic of an algorithm for products."""
    return _ARITHMETIC.get(algorithm, "f32")


#: Below this share of the processors, a measurement counts as disturbed by other processes.
BUSY_BELOW = 0.9


class Presence:
    """The processor time of this process while limits were measured. On an idle machine the process
    gets all of it.

    possible: available seconds of processor time
    had: seconds that this process got
    """

    def __init__(self) -> None:
        self.possible = self.had = 0.0

    def measured_rate(
        self, what: str, level: str, bytes_each: int, threads: int, seconds: float, processor_time: bool = False
    ) -> float:
        """Like :func:`measured_rate`, and adds up the processor time."""
        start, worked = time.perf_counter(), time.process_time()
        rate = measured_rate(what, level, bytes_each, threads, seconds, processor_time)
        self.possible += threads * (time.perf_counter() - start)
        self.had += time.process_time() - worked
        return rate

    @property
    def share(self) -> float:
        """The share of the processors that this process got, at most 1; 1 before the first
        measurement."""
        return min(self.had / self.possible, 1.0) if self.possible else 1.0


def notes_on(presence: float, shares: Iterable[float | None]) -> list[str]:
    """Warnings about unreliable figures.

    presence: the share of the processors that the measurement got
    shares: shares of the limits, as a table shows them
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
    """Operations or bytes a second of all threads together. bytes_each: size of the memory of each
    thread"""
    rate: float = lib.gbpy_measure_limit(
        _WHAT[what], level.encode(), bytes_each, threads, int(seconds * 1e9), processor_time
    )
    if rate <= 0:
        check(lib.ggml_last_status(), "measuring limits")
    return rate


@dataclass(frozen=True)
class MachineLimits:
    """Limits of a number of threads with the kernels of one CPU level."""

    level: str
    threads: int
    operations: dict[str, float]
    """Operations a second, by kind of arithmetic: ``"f32"``, ``"bytes"``, ``"bf16"``"""
    read: dict[int, float]
    """Bytes read a second, by the size of the working set"""
    copy: dict[int, float]
    """Bytes read plus bytes written a second, by the size of the working set"""
    presence: float = 1.0
    """Share of the processors that the measurement got. Below 0.9 other processes used the
    machine"""


def measure_limits(level: str, threads: int, seconds: float = 0.02) -> MachineLimits:
    """Measures each limit five times and takes the best figure. Memory is measured with the
    processor's best instructions.

    seconds: time of the five measurements of a limit
    """
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
    """The larger of the times for operations and for bytes. Takes arrays of work of one algorithm.
    The rate for bytes is that of the smallest memory that holds them."""
    size = read + written
    both = np.minimum(read, written)
    sizes = np.array(sorted(machine.read))
    place = np.minimum(np.searchsorted(sizes, size), len(sizes) - 1)
    reading = np.array([machine.read[int(s)] for s in sizes])[place]
    copying = np.array([machine.copy[int(s)] for s in sizes])[place]
    memory = 2 * both / copying + (size - 2 * both) / reading
    return np.maximum(flops / machine.operations[arithmetic_of(algorithm)], memory)


def limits_to_json(machine: MachineLimits) -> dict[str, Any]:
    """The limits as JSON data, for :func:`limits_from_json`."""
    return {
        "level": machine.level, "threads": machine.threads, "operations": machine.operations,
        "read": {str(k): v for k, v in machine.read.items()}, "copy": {str(k): v for k, v in machine.copy.items()},
        "presence": machine.presence,
    }  # fmt: skip


#: The form of the result of :func:`limits_to_json`.
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
