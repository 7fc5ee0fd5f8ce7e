"""Measures time for calibration and ``ggml-backend bench``.

After a warm-up call, calls repeat until they fill a given time, because one call may be shorter
than the resolution of the clock. The median over rounds counts. Comparisons use the median of the
ratios of each round (:func:`ratio`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["PROCESS", "THREAD", "WALL", "Clock", "median", "once", "per_call", "ratio", "series", "timed"]

Run = Callable[[], Any]
Clock = Callable[[], float]
"""The current time in seconds: elapsed time, or processor time of this thread or process."""
WALL: Clock = time.perf_counter
THREAD: Clock = time.thread_time
PROCESS: Clock = time.process_time

median = statistics.median


def timed(run: Run, clock: Clock = WALL) -> tuple[float, Any]:
    """Seconds of a single call, and its result."""
    start = clock()
    result = run()
    return clock() - start, result


def series(run: Run, calls: int, clock: Clock = WALL) -> float:
    """Seconds of one call: the mean of ``calls`` consecutive calls."""
    start = clock()
    for _ in range(calls):
        run()
    return (clock() - start) / calls


def once(run: Run, clock: Clock = WALL) -> float:
    """Seconds of a single call, for calls that are slow or cannot be repeated."""
    return timed(run, clock)[0]


def per_call(run: Run, at_least: float, clock: Clock = WALL) -> float:
    """Seconds of one call: the mean of as many calls as fill ``at_least`` seconds, after a warm-up
    call."""
    run()
    count, start = 0, clock()
    batch = 1
    while (elapsed := clock() - start) < at_least or count == 0:
        for _ in range(batch):
            run()
        count += batch
        batch = max(1, min(count, math.ceil((at_least - elapsed) / max(elapsed / count, 1e-9) / 4)))
    return elapsed / count


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of ours / theirs over the rounds."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))
