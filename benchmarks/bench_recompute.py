"""Measures how much more a training step computes if its plan has less memory.

    python benchmarks/bench_recompute.py [--json FILE]

The graphs are the loss and gradients of a transformer with twelve layers, and of the UNet of
``python -m ggml_backend plan unet``, with CONV_2D in place of columns. They have the gradients of all weights. For the
UNet, these outputs need more memory than activations. So one more row has the gradients of its biases only.

Outputs stay alive to the end of a run, so a limit is their memory plus a share of the rest of the peak. The price is
the work of a run, relative to a run without a limit. Seconds are the processor time of the whole plan.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import ggml_backend as gb  # noqa: E402
from examples.train.model import Config, logits, loss_of  # noqa: E402
from ggml_backend.cli.examples import graphs  # noqa: E402
from table import print_table  # noqa: E402

SHARES = (0.75, 0.5, 0.4, 0.35, 0.25)
COLUMNS = ["graph", "limit, MiB", "share of activations", "price", "run again", "least, MiB", "bound, MiB", "seconds"]


def transformer() -> gb.Graph:
    config = Config(vocabulary=64, width=128, layers=12, heads=4, context=128)
    context = gb.Context()
    weights = {name: context.tensor(shape, name=name) for name, shape in config.shapes().items()}
    tokens, targets = (context.tensor((2, config.context), gb.int32, name=name) for name in ("tokens", "targets"))
    loss = loss_of(config, logits(config, weights, tokens), targets)
    return context.graph(loss, *gb.grad(loss, list(weights.values())))


def convolution(
    context: gb.Context, x: gb.Tensor, channels: int, name: str, size: int = 3, stride: int = 1
) -> gb.Tensor:
    kernel = context.tensor((channels, x.shape[-3], size, size), name=f"{name}.weight")
    y = gb.ops.conv_2d(kernel, x, stride, size // 2).named(name)
    return y.reshape(*y.shape[-3:]) + context.tensor((channels, 1, 1), name=f"{name}.bias")


def unet(ends: str | tuple[str, ...]) -> gb.Graph:
    context = gb.Context()
    y = graphs.unet(context, convolution)
    weights = [t for t in context.graph(y).leafs if t.name.endswith(ends)]
    return context.graph(loss := gb.ops.sum(gb.ops.sqr(y)), *gb.grad(loss, weights))


def measured(name: str, graph: gb.Graph, cpu: gb.Backend) -> list[list[str]]:
    with gb.Scheduler(cpu) as sched:
        peak = sched.prepare(graph, allocate=False).memory["CPU"].peak
        outputs = sum(t.nbytes for t in graph.outputs)
        rows = []
        for share in SHARES:
            limit = outputs + int((peak - outputs) * share)
            start = time.process_time()
            try:
                again = sched.prepare(graph, allocate=False, max_bytes=limit).recomputation
            except gb.errors.AllocationError:
                again = None
            seconds = f"{time.process_time() - start:.1f}"
            found = (
                ["impossible", "", "", ""]
                if again is None
                else [
                    f"{again.price:.3f}",
                    str(len(again.nodes)),
                    f"{again.least / 2**20:.1f}",
                    f"{again.lower_bound / 2**20:.1f}",
                ]
            )
            rows.append([f"{name}, {len(graph)} nodes", f"{limit / 2**20:.1f}", f"{share:.2f}", *found, seconds])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", type=Path)
    options = parser.parse_args()
    with gb.Backend("CPU") as cpu:
        rows = [*measured("transformer", transformer(), cpu), *measured("UNet", unet(("weight", "bias")), cpu)]
        rows += measured("UNet, biases", unet("bias"), cpu)
    print_table([COLUMNS, *rows])
    if options.json:
        options.json.write_text(json.dumps({"columns": COLUMNS, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
