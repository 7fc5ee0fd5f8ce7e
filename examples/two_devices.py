"""Two devices share a network. The program shows the scheduler's decisions, their cost, and the order of the work.

    python examples/two_devices.py [FOLDER]

The devices are simulated: each split takes 2 ms, each copy 1 ms. So the program runs anywhere. The first half of the
layers runs on A, the second on B. Several batches are pending, so A computes one batch while B computes the previous
one. The program writes ``plan.html``, a picture of memory and copies, and ``trace.json`` for https://ui.perfetto.dev to
FOLDER.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ggml_backend as gb

LAYERS, WIDTH, BATCH, RUNS = 8, 256, 32, 8


def build(ctx: gb.Context, weights: list[gb.Tensor]) -> tuple[gb.Tensor, gb.Tensor, gb.Graph]:
    x = ctx.tensor((BATCH, WIDTH), name="x").set_input()
    y = x
    for i, w in enumerate(weights):
        y = (y + gb.ops.relu(y @ w.T).named(f"layer{i}.out")).named(f"layer{i}")
    y.set_output()
    return x, y, ctx.graph(y)


def reference(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    for w in weights:
        x = x + np.maximum(x @ w.T, 0)
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="folder for plan.html and trace.json (default: a new temporary folder)",
    )
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="two-devices-"))
    folder.mkdir(parents=True, exist_ok=True)

    a = gb.Backend("SIM:name=A,delay=2ms,copy_delay=1ms")
    b = gb.Backend("SIM:name=B,delay=2ms,copy_delay=1ms")
    cpu = gb.Backend("CPU")
    rng = np.random.default_rng(1)
    values = [(rng.standard_normal((WIDTH, WIDTH)) / WIDTH).astype(np.float32) for _ in range(LAYERS)]

    # Each device holds the weights of its layers, so the scheduler runs the layers there.
    with (
        gb.Context() as first,
        gb.Context() as second,
        gb.Context() as ctx,
        gb.Scheduler([a, b, cpu], n_copies=2) as sched,
    ):
        weights = [
            (first if i < LAYERS // 2 else second).tensor((WIDTH, WIDTH), name=f"layer{i}.weight")
            for i in range(LAYERS)
        ]
        first.allocate(a, usage="weights")
        second.allocate(b, usage="weights")
        for w, value in zip(weights, values, strict=True):
            w.set(value)
        x, y, graph = build(ctx, weights)

        plan = sched.prepare(graph)
        print(plan)
        for copy in plan.copies:
            print(f"  {copy.name}: {copy.nbytes} bytes from {copy.src_backend} to {copy.dst_backend}, {copy.reason}")
        print(f"{y.name}: {plan.explain(y)}")
        plan.to_html(folder / "plan.html")

        batches = [rng.standard_normal((BATCH, WIDTH)).astype(np.float32) for _ in range(RUNS)]
        start = time.perf_counter()
        pending = []
        for batch in batches:  # earlier batches are still pending
            x.set(batch)
            pending.append(sched.compute_async(graph, results=[y]))
        results = [p.results()[0] for p in pending]
        print(f"{RUNS} batches in {(time.perf_counter() - start) * 1e3:.1f} ms")
        for batch, result in zip(batches, results, strict=True):
            np.testing.assert_allclose(result, reference(batch, values), rtol=1e-3, atol=1e-3)

        with sched.trace(folder / "trace.json"):
            for batch in batches[:2]:
                x.set(batch)
                sched.compute(graph)
        print(sched.stats)
    print(f"written: {folder / 'plan.html'}, {folder / 'trace.json'}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, gb.GgmlError) as error:  # for example, the program may not write to the folder
        sys.exit(f"two_devices: {' '.join(str(error).split())}")
