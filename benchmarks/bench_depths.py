"""Measures products with few rows by the number of terms of a sum, in gigabytes of weights a second.

    python benchmarks/bench_depths.py [--types q4_0,...] [--depths 32,...] [--rows N] [--json FILE]

A depth whose figure is below that of its neighbours wastes time. The program measures the processor time of one thread
with weights of about 4 million elements. Each figure is the second best of seven rounds. To compare two builds, run
this with each of them in PYTHONPATH, in turns.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import ggml_backend as gb

ELEMENTS = 1 << 22
ROUNDS, RUNS = 7, 4
TYPES = "q4_0,q4_1,q5_0,q5_1,q8_0,q4_k,q5_k,iq4_nl,iq4_xs,mxfp4"
DEPTHS = "32,64,96,128,192,256,288,384,480,512,544,576,640,704,768,800,896,960,992,1024,1280,1536,2048,2080,3072,4096"


def rate(backend: gb.Backend, dtype: gb.dtypes.DType, k: int, rows: int) -> float | None:
    """GB/s of weights, or None if rows of k elements are no whole number of blocks."""
    if k % dtype.block_size:
        return None
    m = max(16, ELEMENTS // k // 16 * 16)
    some = np.random.default_rng(0).standard_normal((64, k), dtype=np.float32)
    blocks = np.asarray(gb.quantize(some, dtype))
    with gb.Context() as context:
        w, x = context.tensor((m, k), dtype), context.tensor((rows, k), gb.float32)
        graph = context.graph(gb.ops.mul_mat(w, x))
        scheduler = gb.Scheduler([backend])
        scheduler.allocate(graph)
        w.set(np.resize(blocks, (m, blocks.shape[1])))
        x.set(np.ones((rows, k), np.float32))
        scheduler.compute(graph)
        times = []
        for _ in range(ROUNDS):
            start = time.process_time_ns()
            for _ in range(RUNS):
                scheduler.compute(graph)
            times.append((time.process_time_ns() - start) / RUNS)
        return w.nbytes / sorted(times)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--depths", default=DEPTHS)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    backend = gb.Backend("CPU", n_threads=1)
    found: dict[str, dict[int, float]] = {}
    for name in args.types.split(","):
        found[name] = {}
        for k in map(int, args.depths.split(",")):
            value = rate(backend, gb.dtypes.as_dtype(name), k, args.rows)
            if value is not None:
                found[name][k] = value
        print(f"{name:>8}: " + ", ".join(f"{k} {v:.1f}" for k, v in found[name].items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"benchmark": "depths", "rows": args.rows, "gb_per_s": found}, indent=1))


if __name__ == "__main__":
    main()
