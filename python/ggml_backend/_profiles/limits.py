"""What this machine can do at best, measured in loops written in C (``cpu/limits.h``), and the least time that work
takes by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .._errors import InvalidArgumentError, check
from .._ffi import lib
from ..backend import cpu_levels

__all__ = [
    "LIMITS_FORM", "Arithmetic", "MachineLimits", "arithmetic_of", "least_seconds", "limits_from_json",
    "limits_to_json", "measure_limits", "measured_rate",
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


def measure_limits(level: str, threads: int, seconds: float = 0.02) -> MachineLimits:
    """Measures each limit five times, for so long together, and takes the best figure; memory with the best
    instructions there are."""
    highest = [name for name, usable in cpu_levels().items() if usable][-1]

    def best(what: str, size: int = 0) -> float:
        each = max(size // threads, 4096)
        with_level = highest if size else level
        return max(measured_rate(what, with_level, each, threads, seconds / 5) for _ in range(5))

    return MachineLimits(
        level,
        threads,
        {kind: best(kind) for kind in ("f32", "bytes", "bf16")},
        {size: best("read", size) for size in _FOOTPRINTS},
        {size: best("copy", size) for size in _FOOTPRINTS},
    )


def least_seconds(machine: MachineLimits, flops: Any, read: Any, written: Any, way: str) -> Any:
    """The larger of the time for operations and that for bytes, of arrays of work that is computed in this way. Bytes
    count in the smallest memory that holds them."""
    size = read + written
    both = np.minimum(read, written)
    sizes = np.array(sorted(machine.read))
    place = np.minimum(np.searchsorted(sizes, size), len(sizes) - 1)
    reading = np.array([machine.read[int(s)] for s in sizes])[place]
    copying = np.array([machine.copy[int(s)] for s in sizes])[place]
    memory = 2 * both / copying + (size - 2 * both) / reading
    return np.maximum(flops / machine.operations[arithmetic_of(way)], memory)


def limits_to_json(machine: MachineLimits) -> dict[str, Any]:
    """For :func:`limits_from_json`."""
    return {
        "level": machine.level, "threads": machine.threads, "operations": machine.operations,
        "read": {str(k): v for k, v in machine.read.items()}, "copy": {str(k): v for k, v in machine.copy.items()},
    }  # fmt: skip


#: Of :func:`limits_to_json` (``_files.forms``).
LIMITS_FORM: dict[str, Any] = {
    "level": str, "threads": int, "operations": {"f32": float, "bytes": float, "bf16": float},
    "read": {str: float}, "copy": {str: float},
}  # fmt: skip


def limits_from_json(data: dict[str, Any]) -> MachineLimits:
    """What :func:`limits_to_json` gave, which has the form :data:`LIMITS_FORM`. InvalidArgumentError: the parts do not
    fit."""
    by_size = {what: data[what] for what in ("read", "copy")}
    if not all(size.isdecimal() and len(size) < 20 for sizes in by_size.values() for size in sizes):
        raise InvalidArgumentError("limits: read and copy must have sizes in bytes as keys")
    read, copy = ({int(size): float(rate) for size, rate in sizes.items()} for sizes in by_size.values())
    found = MachineLimits(
        data["level"], data["threads"], {k: float(v) for k, v in data["operations"].items()}, read, copy
    )
    rates = [*found.operations.values(), *read.values(), *copy.values()]
    if not read or read.keys() != copy.keys() or not all(rate > 0 for rate in rates):
        raise InvalidArgumentError("limits: rates must be above 0, and read and copy must have the same sizes")
    return found
