"""Compares placement by weights and by cost: predicted times beside those of simulated devices.

    python benchmarks/bench_placement.py [--json FILE] [--repeats N]

Small graphs in the shapes of models run on two SIM devices, of which A is the faster. Each split (`delay`), node
(`op_delay`) and copy (`copy_delay`) takes a fixed time, long beside the time of the CPU's kernels. The scheduler gets
the same numbers as costs. So predictions should be right, except for the work of kernels and queues, and for copies
that run beside other work.

Graphs of the size of models follow, with the costs of a graphics processor (800 GB/s, 30 TFLOP/s), a CPU (50 GB/s, 0.5
TFLOP/s) and a bus of 12 GB/s. The benchmark only predicts their times, and measures
how long the placement takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ggml_backend as gb
from ggml_backend.sched import CopyCost, Costs, DeviceCosts, OpCost
from timing import once

SPLIT_MS, COPY_MS, OP_MS = 4.0, 8.0, (1.0, 3.0)


def tensor(ctx: gb.Context, shape: tuple[int, ...], name: str) -> gb.Tensor:
    return ctx.tensor(shape, gb.float32, name=name)


class Placed:
    """Arrays in buffers of chosen devices."""

    def __init__(self, ctx: gb.Context, devices: list[gb.Backend]) -> None:
        self.ctx, self.devices, self.buffers = ctx, devices, []

    def __call__(self, shape: tuple[int, ...], device: int, name: str, usage: str = "weights") -> gb.Tensor:
        t = tensor(self.ctx, shape, name)
        kind = self.devices[device].buffer_type
        buffer = kind.allocate(kind.nbytes_for(t), usage)
        self.buffers.append(buffer)
        return buffer.place(t)


def transformer(
    ctx: gb.Context,
    place: Placed,
    where: Callable[[int], int],
    layers: int,
    d: int,
    rows: int,
    kv: Callable[[int], int],
) -> gb.Tensor:
    """Blocks of attention over given keys and values, and a feed-forward part."""
    x = tensor(ctx, (rows, d), "x")
    for i in range(layers):
        at = where(i)
        keys, values = place((4 * rows, d), kv(i), f"k{i}", "any"), place((d, 4 * rows), kv(i), f"v{i}", "any")
        h = gb.ops.rms_norm(x)
        q = h @ place((d, d), at, f"q{i}").T
        a = gb.ops.soft_max(q @ keys.T) @ values.T
        x = x + a @ place((d, d), at, f"o{i}").T
        h = gb.ops.rms_norm(x)
        x = x + gb.ops.silu(h @ place((2 * d, d), at, f"u{i}").T) @ place((d, 2 * d), at, f"d{i}").T
    return x


def lonely(ctx: gb.Context, place: Placed, n: int, d: int) -> gb.Tensor:
    """Small weights, some of them on the other device."""
    x = tensor(ctx, (d, d), "x")
    for i in range(n):
        x = gb.ops.relu(x @ place((d, d), 0, f"w{i}").T)
        x = x + place((d,), 1, f"b{i}")
    return x


def diamond(ctx: gb.Context, place: Placed, n: int, d: int) -> gb.Tensor:
    """Two branches from each result, with weights on different devices."""
    x = tensor(ctx, (d, d), "x")
    for i in range(n):
        x = x @ place((d, d), 0, f"a{i}").T + gb.ops.relu(x @ place((d, d), 1, f"b{i}").T)
    return x


SIMULATED: dict[str, Callable[[gb.Context, Placed], gb.Tensor]] = {
    "small weights on the other device": lambda c, p: lonely(c, p, 6, 32),
    "branches": lambda c, p: diamond(c, p, 4, 32),
    "half of the layers on each": lambda c, p: transformer(c, p, lambda i: i // 2, 4, 32, 8, lambda i: i // 2),
    "every other layer": lambda c, p: transformer(c, p, lambda i: i % 2, 4, 32, 8, lambda i: i % 2),
    "keys and values on the other device": lambda c, p: transformer(c, p, lambda i: 0, 4, 32, 8, lambda i: 1),
}


def simulate(build: Callable[[gb.Context, Placed], gb.Tensor], policy: str, repeats: int) -> dict[str, Any]:
    """Each round is the first run of a new scheduler, so it includes the copies of weights."""
    params = {"delay": f"{SPLIT_MS}ms", "copy_delay": f"{COPY_MS}ms"}
    times, result = [], {}
    for _ in range(repeats):
        devices = [
            gb.Backend(f"SIM:name={name}", op_delay=f"{ms}ms", **params) for name, ms in zip("AB", OP_MS, strict=True)
        ]
        leg = CopyCost(COPY_MS * 1e3 / 2)
        costs = Costs([DeviceCosts((OpCost(launch_us=ms * 1e3),), leg, leg) for ms in OP_MS], split_us=SPLIT_MS * 1e3)
        with gb.Context() as ctx, gb.Scheduler(devices, policy=policy, costs=costs) as sched:
            place = Placed(ctx, devices)
            graph = ctx.graph(build(ctx, place))
            for buffer in place.buffers:
                buffer.clear()
            sched.allocate(graph)
            for leaf in graph.leafs:
                leaf.set(...)  # times do not depend on values
            times.append(once(partial(sched.compute, graph)) * 1e3)
            splits, copies = sched.splits, sum(len(s.inputs) for s in sched.splits)
            result = {"splits": len(splits), "copies": copies}
            if sched.prediction is not None:
                # the prediction counts a delay for each change of backends, so that of the first split is added
                result |= {
                    "us": sched.prediction.us / 1e3 + SPLIT_MS,
                    "weights_us": sched.prediction.weights_us / 1e3 + SPLIT_MS,
                }
    return result | {"simulated": min(times)}


def simulated_rows(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for name, build in SIMULATED.items():
        weights, cost = simulate(build, "weights", repeats), simulate(build, "cost", repeats)
        for policy, run, predicted in (("weights", weights, cost["weights_us"]), ("cost", cost, cost["us"])):
            row = {"graph": name, "policy": policy, "splits": run["splits"], "copies": run["copies"]}
            rows.append(row | {"predicted ms": predicted, "simulated ms": run["simulated"]})
    return rows


# ---------------------------------------------------------------------------------------------------------- model-sized


GPU = DeviceCosts(
    (OpCost(launch_us=5.0, bytes_per_us=800e3, flops_per_us=30e6),), CopyCost(15.0, 12e3), CopyCost(15.0, 12e3)
)
CPU = DeviceCosts((OpCost(launch_us=1.0, bytes_per_us=50e3, flops_per_us=0.5e6),), CopyCost(), CopyCost(), host=True)


def model(layers: int, on_gpu: int, rows: int, gpus: int, kv_on_host: bool) -> dict[str, Any]:
    """Shapes of a model with d = 512, so that the graphs fit into memory."""
    devices = [gb.Backend(f"SIM:name=GPU{i}") for i in range(gpus)] + [gb.Backend("CPU", n_threads=1)]
    costs = Costs([GPU] * gpus + [CPU], split_us=15.0)
    with gb.Context() as ctx, gb.Scheduler(devices, policy="cost", costs=costs) as sched:
        place = Placed(ctx, devices)
        where = lambda i: i * gpus // max(on_gpu, 1) if i < on_gpu else gpus  # noqa: E731
        out = transformer(ctx, place, where, layers, 512, rows, (lambda i: gpus) if kv_on_host else where)
        graph = ctx.graph(out)
        ms = once(partial(sched.allocate, graph)) * 1e3
        p = sched.prediction
        assert p is not None
        name = (
            f"{on_gpu} of {layers} layers on {gpus} GPU{'s' * (gpus > 1)}, {rows}"
            f" rows{', keys and values on the host' * kv_on_host}"
        )
        return {
            "graph": name, "nodes": len(graph), "weights us": p.weights_us, "cost us": p.us, "gap": p.gap,
            "proved": p.proved,
            "splits": sched.n_splits, "planned ms": ms,
        }  # fmt: skip


def model_rows() -> list[dict[str, Any]]:
    cases = [
        (32, 16, 64, 1, False),
        (32, 16, 1, 1, False),
        (32, 32, 16, 1, True),
        (32, 0, 256, 1, False),
        (24, 16, 64, 2, False),
        (24, 24, 16, 2, True),
    ]
    return [model(*case) for case in cases]


def table(rows: list[dict[str, Any]]) -> str:
    def cell(v: Any) -> str:
        return ("yes" if v else "no") if isinstance(v, bool) else f"{v:.2f}" if isinstance(v, float) else str(v)

    lines = ["| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    return "\n".join(lines + ["| " + " | ".join(cell(v) for v in r.values()) + " |" for r in rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case; the shortest counts (3)")
    options = parser.parse_args()
    result = {"simulated": simulated_rows(options.repeats), "models": model_rows()}
    for rows in result.values():
        print(table(rows) + "\n")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
