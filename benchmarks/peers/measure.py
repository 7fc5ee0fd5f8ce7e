"""Measures a piece of work on all sides that give the same result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from timing import in_turns, median, per_call, ratio

from .sides import Run, Sides, Work


def as_array(x: Any) -> np.ndarray:
    if getattr(x, "dtype", None) == np.uint16:  # bfloat16 of ours
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(x.float() if hasattr(x, "float") else x, np.float32)


def prepared(s: Sides, work: Work) -> tuple[dict[str, Run], dict[str, str]]:
    """The sides that give the same result, and for the others the reason why they do not."""
    runs, reasons = {"ours": work.ours}, {}
    expected = np.array(as_array(work.ours()))
    for name, prepare in work.peers.items():
        if name not in s.modules:
            continue
        try:
            run = prepare()
            found = as_array(run())
        except Exception as error:  # any of another library's
            reasons[name] = str(error).splitlines()[0][:100] if str(error) else repr(error)
            continue
        difference = float(np.abs(found.reshape(expected.shape) - expected).max() / np.abs(expected).max())
        if difference <= work.tolerance:
            runs[name] = run
        else:
            reasons[name] = f"another result, by {difference:.2g}"
    return runs, reasons


def rate(work: Work, run: Run, seconds: float, pause: float, clock: Callable[[], float]) -> float:
    return work.amount / per_call(run, seconds, clock, pause=pause) / (1e9 if work.unit in ("GB/s", "GFLOP/s") else 1)


def measure(
    s: Sides, work: Work, rounds: int, seconds: float, pause: float, clock: Callable[[], float]
) -> dict[str, Any]:
    runs, reasons = prepared(s, work)
    found = in_turns({name: partial(rate, work, run, seconds, pause, clock) for name, run in runs.items()}, rounds)
    ratios = {name: ratio(found["ours"], theirs) for name, theirs in found.items() if name != "ours"}
    return {
        "unit": work.unit,
        "median": median(found["ours"]),
        "rounds": found,
        "ratios": ratios,
        "left_out": reasons,
    }
