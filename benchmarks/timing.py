"""How the benchmarks measure time. ``_base/timing.py`` of the package comes from this tree, so other versions of the
package are measured in the same way. This module adds comparisons.

Sides that are compared alternate (:func:`in_turns`), so that other work on the machine affects all of them. If nothing
is compared within a round, the shortest round counts (:func:`shortest`), because other work only makes it longer.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

_file = Path(__file__).resolve().parents[1] / "python" / "ggml_backend" / "_base" / "timing.py"
_spec = importlib.util.spec_from_file_location("_timing", _file)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

PROCESS, THREAD, WALL = _module.PROCESS, _module.THREAD, _module.WALL
median, once, ratio, series, timed = _module.median, _module.once, _module.ratio, _module.series, _module.timed

Run = Callable[[], Any]
Clock = Callable[[], float]
_Figure = TypeVar("_Figure")


def per_call(run: Run, at_least: float, clock: Clock = WALL, *, pause: float = 0.0) -> float:
    """Seconds of one call: the mean of the calls that fill ``at_least`` seconds, after one call that warms up.

    pause: seconds to wait first, because threads of the side that ran before may still spin
    """
    if pause:
        time.sleep(pause)
    seconds: float = _module.per_call(run, at_least, clock)
    return seconds


def shortest(run: Run, calls: int, rounds: int, clock: Clock = WALL) -> float:
    """Seconds of one call in the shortest of several series."""
    return min(series(run, calls, clock) for _ in range(rounds))


def in_turns(sides: Mapping[str, Callable[[], _Figure]], rounds: int) -> dict[str, list[_Figure]]:
    """The figures of each side, one per round. A round calls every side once, in the same order."""
    found: dict[str, list[_Figure]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, figure in sides.items():
            found[name].append(figure())
    return found
