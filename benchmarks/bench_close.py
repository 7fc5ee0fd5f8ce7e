"""Measures opening, computing and closing beside many other objects, as ratios to the same without them.

    python benchmarks/bench_close.py [--rounds N] [--json FILE]

Cases: a scheduler of one node, a context, a buffer, ``Scheduler.reset``. Others: many tensors in one context, many
contexts, many buffers. Each round makes the others, measures, closes them, and measures again. The ratio is the median
over the rounds. The others are unrelated, so it should be 1 (aim: below 1.1 on a quiet machine).
``tests/python/lifetimes/test_lifetimes.py`` counts the objects that a call looks at: the others do not matter.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from pathlib import Path

import ggml_backend as gb
from timing import median, shortest

CPU = gb.Backend("CPU", n_threads=1)


def scheduler_of_one_node() -> None:
    with gb.Context() as ctx, gb.Scheduler([CPU]) as scheduler:
        x = ctx.tensor(4)
        graph = ctx.graph(x * 2.0)
        scheduler.allocate(graph)
        x.set(1.0)
        scheduler.compute(graph)


def context_and_buffer() -> None:
    with gb.Context() as ctx:
        t = ctx.tensor(4)
        buffer = ctx.allocate(CPU)
        t.set(1.0)
        buffer.close()


def resetter() -> Callable[[], None]:
    ctx, scheduler = gb.Context(), gb.Scheduler([CPU])
    x = ctx.tensor(4)
    graph = ctx.graph(x * 2.0)

    def reset() -> None:
        scheduler.allocate(graph)
        x.set(1.0)
        scheduler.reset()

    return reset


def many_tensors(n: int) -> object:
    ctx = gb.Context()
    for _ in range(n):
        ctx.tensor(4)
    return ctx


def many_contexts(n: int) -> object:
    contexts = []
    for _ in range(n):
        contexts.append(gb.Context())
        contexts[-1].tensor(4)
    return contexts


def many_buffers(n: int) -> object:
    contexts = []
    for _ in range(n):
        contexts.append(gb.Context())
        contexts[-1].tensor(4)
        contexts[-1].allocate(CPU)
    return contexts


def seconds(act: Callable[[], None], repeats: int) -> float:
    return shortest(act, repeats, rounds=5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of other objects")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    acts = {
        "scheduler of one node": scheduler_of_one_node,
        "context and buffer": context_and_buffer,
        "reset": resetter(),
    }
    neighbours = {
        "500,000 tensors": lambda: many_tensors(max(1, int(500_000 * options.scale))),
        "3,000 contexts": lambda: many_contexts(max(1, int(3_000 * options.scale))),
        "3,000 buffers": lambda: many_buffers(max(1, int(3_000 * options.scale))),
    }
    for act in acts.values():
        seconds(act, 20)
    gc.disable()  # Python's collector looks at all objects that there are, ours or not
    found: dict[str, list[dict[str, float]]] = {}
    for name, make_others in neighbours.items():
        for _ in range(options.rounds):
            others = make_others()
            row = {}
            beside = {act: seconds(f, 3 if options.scale >= 1 else 1) for act, f in acts.items()}
            del others
            gc.collect()
            for act, f in acts.items():
                row[act] = beside[act] / seconds(f, 20)
            found.setdefault(name, []).append(row)
        for act in acts:
            ratio = median(row[act] for row in found[name])
            print(f"{act:24} beside {name:16} {ratio:8.2f} x")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
