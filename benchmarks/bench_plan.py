"""Measures the memory planner on published instances, graphs of models and synthetic graphs.

    python benchmarks/bench_plan.py [--budget-ms N] [--reproducible] [--json FILE] [FILE.csv ...]
    python benchmarks/bench_plan.py --large [--budgets MS,...] [--reproducible] [NAME ...]

By default the program plans tests/data/minimalloc, tests/data/model-graphs, and two graphs of 10,000 buffers.
D and J are also planned for the published capacity, as their lower bound may be out of reach. Percentages are above the
lower bound. "ms" is the wall time of one call, and "cpu ms" the processor time of all threads, for busy machines.

--large: plan synthetic instances (plan_instances.py; NAMES such as transformer-20000) with several budgets, beside
in-order best fit and greedy by size. The program computes greedy by size for up to 20,000 buffers.

--reproducible: counted steps end the search, not the clock.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ggml_backend as gb
from ggml_backend.planning import read_instance
from plan_instances import FAMILIES, make
from table import print_table
from timing import PROCESS, timed

DATA = Path(__file__).parent.parent / "tests" / "data"


def deep_transformer(layers: int = 833) -> tuple[np.ndarray, ...]:
    """About 12 buffers per layer. The input of a layer lives until its end (the residual), one mask throughout."""
    mib = 1 << 20
    spans = [(0, 14 * layers, 4 * mib)]
    for layer in range(layers):
        t = 14 * layer
        spans += [
            (t, t + 9, 8 * mib),
            (t + 1, t + 5, 8 * mib),
            (t + 2, t + 5, 8 * mib),
            (t + 3, t + 5, 2 * mib),
            (t + 4, t + 7, 2 * mib),
        ]
        spans += [(t + 5, t + 6, 64 * mib), (t + 6, t + 8, 64 * mib), (t + 8, t + 9, 8 * mib), (t + 9, t + 14, 8 * mib)]
        spans += [(t + 10, t + 12, 22 * mib), (t + 11, t + 13, 22 * mib), (t + 13, t + 14, 8 * mib)]
    return tuple(np.array(column) for column in zip(*spans, strict=True))


def dense_random(n: int = 10000) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    lower = np.arange(n)
    return lower, lower + 1 + (rng.random(n) * (2 * n - lower)).astype(np.int64), rng.integers(1, 1 << 20, n)


def chain_under_one() -> tuple[np.ndarray, ...]:
    """Eight published instances in sequence, and a buffer that is alive until shortly before the end."""
    spans, t = [], 0
    for letter in "ABCEFGHK":
        lower, upper, size = read_instance(next((DATA / "minimalloc").glob(f"{letter}.*.csv")))[1:]
        begin, end = int(np.min(lower)), int(np.max(upper))
        spans += [(int(a) - begin + t, int(b) - begin + t, int(s)) for a, b, s in zip(lower, upper, size, strict=True)]
        t += end - begin
    spans.append((0, t - (end - begin) // 50, 1 << 20))
    return tuple(np.array(column) for column in zip(*spans, strict=True))


def row(
    name: str, instance: tuple[Any, ...], budget: int, capacity: int | None = None, *, reproducible: bool
) -> dict[str, Any]:
    seconds, plan = timed(
        lambda: gb.planning.plan_memory(*instance, capacity=capacity, budget_ms=budget, reproducible=reproducible),
        PROCESS,
    )
    over = lambda peak: 100 * (peak / plan.lower_bound - 1)  # noqa: E731
    return {
        "instance": name, "buffers": len(instance[0]), "lower bound": plan.lower_bound, "best fit": over(plan.best_fit),
        "peak": plan.peak, "above bound": over(plan.peak), "proved": plan.proved, "ms": plan.milliseconds,
        "cpu ms": 1e3 * seconds,
    }  # fmt: skip


def rows(files: list[Path], budget: int, *, reproducible: bool) -> list[dict[str, Any]]:
    one = partial(row, reproducible=reproducible)
    if files:
        return [one(f.stem, read_instance(f)[1:], budget) for f in files]
    result = []
    for f in sorted((DATA / "minimalloc").glob("*.csv")):
        letter = f.stem.split(".")[0]
        result.append(one(letter, read_instance(f)[1:], budget))
        if letter in "DJ":
            result.append(one(f"{letter}, 1 MiB will do", read_instance(f)[1:], budget, 1 << 20))
    result += [one(f"chain under one, {ms} ms", chain_under_one(), ms) for ms in (200, 2000)]
    result += [one(f.stem, read_instance(f)[1:], 20) for f in sorted((DATA / "model-graphs").glob("*.csv"))]
    result.append(one("deep transformer", deep_transformer(), 20))
    result.append(one("dense random", dense_random(), 20))
    return result


def cells(r: dict[str, Any]) -> list[str]:
    return [
        r["instance"], str(r["buffers"]), str(r["lower bound"]), f"+{r['best fit']:.2f} %", str(r["peak"]),
        f"+{r['above bound']:.3f} %",
        "yes" if r["proved"] else "no", f"{r['ms']:.2f}",
        f"{r['cpu ms']:.2f}",
    ]  # fmt: skip


def greedy_by_size(lower: np.ndarray, upper: np.ndarray, size: np.ndarray) -> int:
    """The peak of first fit by falling size. It compares all pairs: slow, but independent of the package."""
    order = np.lexsort((-upper, lower, -size))
    lower, upper, size = lower[order], upper[order], size[order]
    offset = np.zeros(len(size), np.int64)
    peak = 0
    for k in range(len(size)):
        meets = np.flatnonzero((lower[:k] < upper[k]) & (lower[k] < upper[:k]))
        meets = meets[np.argsort(offset[meets])]
        begins = offset[meets]
        ends = np.maximum.accumulate(np.concatenate([[0], begins + size[meets]]))
        fits = np.flatnonzero(begins - ends[:-1] >= size[k])
        offset[k] = ends[fits[0]] if len(fits) else ends[-1]
        peak = max(peak, int(offset[k] + size[k]))
    return peak


def large_row(name: str, budgets: list[int], *, reproducible: bool) -> list[str]:
    lower, upper, size = make(name)
    cells = []
    for budget in budgets:
        plans = partial(gb.planning.plan_memory, lower, upper, size, budget_ms=budget, reproducible=reproducible)
        seconds, plan = timed(plans, PROCESS)
        mark = " proved" if plan.proved else ""
        cells.append(f"+{100 * plan.gap:.2f} %{mark}, {1e3 * seconds:.0f} ms")
    over = lambda peak: f"+{100 * (peak / plan.lower_bound - 1):.2f} %"  # noqa: E731
    greedy = over(greedy_by_size(lower, upper, size)) if len(lower) <= 20000 else "-"
    return [name, str(len(lower)), over(plan.best_fit), greedy, *cells]


def large(names: list[str], budgets: list[int], *, reproducible: bool) -> None:
    names = names or [f"{family}-{n}" for family in FAMILIES for n in (100, 1000, 10000, 100000)]
    titles = ["instance", "buffers", "best fit", "by size", *(f"{b} ms" for b in budgets)]
    made = (large_row(name, budgets, reproducible=reproducible) for name in names)
    print_table([titles, *made])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--large", action="store_true", help="plan synthetic instances; the files are their names")
    parser.add_argument("--budgets", default="20,200,2000,20000", help="milliseconds, for --large (%(default)s)")
    parser.add_argument("--budget-ms", type=int, default=5000, help="milliseconds, for instances in files (5000)")
    parser.add_argument("--reproducible", action="store_true", help="let steps end the search, not the clock")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.large:
        budgets = [int(b) for b in options.budgets.split(",")]
        names = [str(f) for f in options.files]
        large(names, budgets, reproducible=options.reproducible)
        return 0
    result = rows(options.files, options.budget_ms, reproducible=options.reproducible)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    table = [
        ["instance", "buffers", "lower bound", "best fit", "ours", "above bound", "proved", "ms", "cpu ms"],
        *map(cells, result),
    ]
    print_table(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
