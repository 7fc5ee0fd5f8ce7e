"""Compares the memory of the scheduler's plan with a lower bound, with best fit, and with no reuse.

    python benchmarks/bench_graph_memory.py [--json FILE] [--only NAME ...]

The graphs are those of ``python -m ggml_backend plan NAME``: blocks of a llama, a mixture of experts, the encoder of
whisper, a UNet, an embedding model. Bytes are those of the arena, without weights and inputs.

This program computes best fit itself, node by node with a list of free blocks, as ggml documents its graph allocator.
It shares no code with the package. The lower bound is the most bytes alive at once, by the lifetimes in the plan. The
column "in another order" is the peak of the plan of ``graph.reordered()``. Milliseconds are the shortest processor time
of a whole plan: assignment, splits, lifetimes and offsets.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import ggml_backend as gb
from ggml_backend.cli import examples as _examples
from table import print_table
from timing import PROCESS, once, timed

ALIGNMENT = 32
IN_PLACE = {
    "SCALE", "DIAG_MASK_ZERO", "DIAG_MASK_INF", "ADD", "ADD1", "SUB", "MUL", "DIV", "SQR", "SQRT", "LOG", "ROPE",
    "RMS_NORM", "SOFT_MAX", "ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "GELU", "GELU_QUICK", "SILU",
    "HARDSWISH", "HARDSIGMOID",
}  # fmt: skip
BOTH = {"ADD", "SUB", "MUL", "DIV"}


def padded(t: gb.Tensor) -> int:
    return -(-t.nbytes // ALIGNMENT) * ALIGNMENT


class BestFit:
    """The documented graph allocator: it counts the remaining readers and views of each tensor, node by node."""

    def __init__(self, graph: gb.Graph) -> None:
        self.free = [[0, 1 << 62]]  #: blocks by address; the last one has no end
        self.peak = self.no_reuse = 0
        self.readers = dict.fromkeys(graph.nodes, 0)
        self.views = dict.fromkeys(graph.nodes, 0)
        self.place: dict[gb.Tensor, tuple[int, int]] = {}
        for node in graph.nodes:
            if node.view_of in self.views:
                self.views[node.view_of] += 1
            for source in node.sources:
                if source in self.readers:
                    self.readers[source] += 1
        for node in graph.nodes:
            self.run(node)

    def run(self, node: gb.Tensor) -> None:
        if node.view_of is None:
            size = padded(node)
            self.no_reuse += size
            self.place[node] = self.memory_of_a_source(node) or (self.take(size), size)
        for source in node.sources:
            if source in self.readers:
                self.readers[source] -= 1
        for source in node.sources:
            self.release(source)

    def memory_of_a_source(self, node: gb.Tensor) -> tuple[int, int] | None:
        for source in node.sources[: (2 if node.op in BOTH else 1) if node.op in IN_PLACE else 0]:
            owner = source if source.view_of is None else source.view_of
            alone = (
                self.views.get(source) == 0
                if owner == source
                else self.views.get(owner) == 1 and self.readers[owner] == 0
            )
            alike = (source.dtype.name, source.ne, source.nb) == (node.dtype.name, node.ne, node.nb)
            if alone and alike and self.readers.get(source) == 1 and owner in self.place and not owner.is_output:
                return self.place.pop(owner)
        return None

    def release(self, tensor: gb.Tensor) -> None:
        if self.readers.get(tensor) != 0 or self.views[tensor] != 0 or tensor.is_output:
            return
        if tensor.view_of is not None:
            self.readers[tensor] = -1  # is not freed again
            if tensor.view_of in self.views:
                self.views[tensor.view_of] -= 1
                self.release(tensor.view_of)
        elif tensor in self.place:
            self.give_back(*self.place.pop(tensor))

    def take(self, size: int) -> int:
        fitting = [b for b in self.free[:-1] if b[1] - b[0] >= size]
        block = min(fitting, key=lambda b: b[1] - b[0]) if fitting else self.free[-1]
        offset = block[0]
        block[0] += size
        self.free = [b for b in self.free if b[0] < b[1]]
        self.peak = max(self.peak, offset + size)
        return offset

    def give_back(self, offset: int, size: int) -> None:
        merged: list[list[int]] = []
        for block in sorted([*self.free, [offset, offset + size]]):
            if merged and merged[-1][1] == block[0]:
                merged[-1][1] = block[1]
            else:
                merged.append(block)
        self.free = merged


def load(blocks: tuple[gb.sched.PlanBlock, ...]) -> int:
    """The most bytes alive at once. Blocks that share memory count once."""
    first: dict[int, int] = {}
    spans: dict[int, list[int]] = {}
    for b in sorted(blocks, key=lambda b: b.lower):
        owner = first[b.root] if b.root is not None and b.root in first else b.id
        first[b.id] = owner
        size = -(-b.nbytes // ALIGNMENT) * ALIGNMENT
        span = spans.setdefault(owner, [b.lower, b.upper, size])
        span[:] = [min(span[0], b.lower), max(span[1], b.upper), max(span[2], size)]
    moments = {lower for lower, _, _ in spans.values()}
    return max((sum(size for lower, upper, size in spans.values() if lower <= t < upper) for t in moments), default=0)


def milliseconds_of_a_plan(graph: gb.Graph, backend: gb.Backend) -> float:
    """The shortest processor time of several new schedulers."""
    times = []
    for _ in range(5):
        with gb.Scheduler([backend]) as sched:
            times.append(once(partial(sched.prepare, graph), PROCESS))
    return 1e3 * min(times)


def row(name: str, backend: gb.Backend) -> dict[str, Any]:
    context, graph = _examples.build(name)
    with context:
        seconds, other = timed(graph.reordered, PROCESS)
        reordering = 1e3 * seconds
        peaks = []
        for g in (graph, other):
            with gb.Scheduler([backend]) as sched:
                (arena,) = (a for a in sched.prepare(g).arenas if a.blocks)
                peaks.append((arena.peak, load(arena.blocks), arena.proved))
        fit = BestFit(graph)
        (peak, bound, proved), (peak2, bound2, proved2) = peaks
        return {
            "graph": name, "nodes": len(graph), "no reuse": fit.no_reuse, "best fit": fit.peak, "ours": peak,
            "lower bound": bound, "gap": peak / bound - 1, "proved": proved,
            "ms": milliseconds_of_a_plan(graph, backend), "in another order": peak2,
            "gap there": peak2 / bound2 - 1, "proved there": proved2, "reordering ms": reordering,
        }  # fmt: skip


def cells(r: dict[str, Any]) -> list[str]:
    over = lambda n: f"{n / 1024:.0f} (+{100 * (n / r['lower bound'] - 1):.1f} %)"  # noqa: E731
    return [
        r["graph"], str(r["nodes"]), f"{r['no reuse'] / 1024:.0f}", over(r["best fit"]), f"{r['ours'] / 1024:.0f}",
        f"{r['lower bound'] / 1024:.0f}", f"{100 * r['gap']:.2f} %", "yes" if r["proved"] else "no", f"{r['ms']:.2f}",
        f"{r['in another order'] / 1024:.0f} ({100 * (r['in another order'] / r['ours'] - 1):+.1f} %)",
        f"{r['reordering ms']:.1f}",
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=_examples.NAMES)
    options = parser.parse_args()
    with gb.Backend("CPU") as backend:
        rows = [row(name, backend) for name in options.only or _examples.NAMES]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    table = [
        [
            "graph",
            "nodes",
            "no reuse",
            "best fit",
            "ours",
            "lower bound",
            "gap",
            "proved",
            "ms",
            "in another order",
            "reordering ms",
        ],
        *map(cells, rows),
    ]
    print_table(table)
    print("Sizes are KiB of the arena. Best fit: percent above the lower bound. Another order: percent from ours.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
