"""How everything here measures time: calls long enough for the clock, in turns, and what counts of the rounds.

A call is timed after one that warms up, and as often as fills a given time, because one may be shorter than the clock's
step. Sides that are compared run in turns (:func:`in_turns`): what others do on the machine meets all of them. Of the
rounds the median counts, and of two sides the median of the ratios round by round (:func:`ratio`). Where other work can
only make a figure worse, and nothing is compared within a round, the shortest counts (:func:`shortest`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = [
    "PROCESS", "THREAD", "WALL", "Clock",
    "in_turns", "median", "once", "per_call", "ratio", "series", "shortest", "timed",
]  # fmt: skip

Run = Callable[[], Any]
Clock = Callable[[], float]
"""Seconds: of the time that passes, or that the processor worked for this process or this thread."""
WALL: Clock = time.perf_counter
PROCESS: Clock = time.process_time
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


def per_call(run: Run, at_least: float, clock: Clock = WALL, *, pause: float = 0.0) -> float:
    """Seconds of one call: the mean of as many as fill ``at_least`` seconds, after one that warms up.

    pause: seconds before that, for threads of the side that ran before, which may still spin
    """
    time.sleep(pause)
    run()
    count, start = 0, clock()
    batch = 1
    while (elapsed := clock() - start) < at_least or count == 0:
        for _ in range(batch):
            run()
        count += batch
        batch = max(1, min(count, math.ceil((at_least - elapsed) / max(elapsed / count, 1e-9) / 4)))
    return elapsed / count


def shortest(run: Run, calls: int, rounds: int, clock: Clock = WALL) -> float:
    """Seconds of one call in the shortest of several series."""
    return min(series(run, calls, clock) for _ in range(rounds))


def in_turns(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """The figures of each side, one of each round; a round asks every side once, in the same order."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, figure in sides.items():
            found[name].append(figure())
    return found


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of ours / theirs, round by round."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))
