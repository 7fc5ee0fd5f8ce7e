"""How calibration and ``ggml-backend bench`` measure time: calls long enough for the clock, and what counts of the
rounds.

A call is timed after one that warms up, and as often as fills a given time, because one may be shorter than the clock's
step. Of the rounds the median counts, and of two sides that are compared the median of the ratios round by round
(:func:`ratio`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["THREAD", "WALL", "Clock", "median", "once", "per_call", "ratio", "series", "timed"]

Run = Callable[[], Any]
Clock = Callable[[], float]
"""Seconds: of the time that passes, or that the processor worked for this thread."""
WALL: Clock = time.perf_counter
THREAD: Clock = time.thread_time

median = statistics.median


def timed(run: Run, clock: Clock = WALL) -> tuple[float, Any]:
    """Seconds of a single call, and what it gave."""
    start = clock()
    result = run()
    return clock() - start, result


def series(run: Run, calls: int, clock: Clock = WALL) -> float:
    """Seconds of one call: the mean of ``calls`` that follow each other."""
    start = clock()
    for _ in range(calls):
        run()
    return (clock() - start) / calls


def once(run: Run, clock: Clock = WALL) -> float:
    """Seconds of a single call, for what cannot be called again or takes long."""
    return timed(run, clock)[0]


def per_call(run: Run, at_least: float, clock: Clock = WALL) -> float:
    """Seconds of one call: the mean of as many as fill ``at_least`` seconds, after one that warms up."""
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
    """The median of ours / theirs, round by round."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))
