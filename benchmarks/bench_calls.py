"""What single calls from Python cost: small graphs, setting, reading, making nodes. Microseconds, the best of many short rounds.

    python benchmarks/bench_calls.py [--beside FOLDER] [--turns N] [--json FILE]

--beside: another version of the package, installed by ``pip install --target FOLDER``: both are measured in processes of their own, in turns;
the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable
from pathlib import Path

ROUNDS, CALLS = 40, 2000
VALUES = 16  # 64 bytes


def acts() -> dict[str, Callable[[], object]]:
    import numpy as np

    import ggml_backend as gb

    cpu, ones = gb.Backend("CPU", n_threads=1), np.ones(VALUES, np.float32)
    ctx = gb.Context()
    x = ctx.tensor(VALUES, name="x")
    y = gb.relu(x)
    graph = ctx.graph(y)
    ctx.allocate(cpu)
    other = gb.Context()
    u = other.tensor(VALUES, name="u")
    planned, sched = other.graph(gb.relu(u)), gb.Scheduler([cpu])
    sched.allocate(planned)
    for t in (x, u):
        t.set(ones)
    graph.compute(cpu)
    nodes = gb.Context()
    a, b = nodes.tensor((4, 4)), nodes.tensor((4, 4))
    return {
        "Graph.compute, one node": lambda: graph.compute(cpu),
        "Scheduler.compute, one node": lambda: sched.compute(planned),
        "Tensor.numpy": lambda: y.numpy(),
        "relu(x)": lambda: gb.relu(a),
        "x + y": lambda: a + b,
        "x @ y.T": lambda: gb.mul_mat(b, a),
        "Tensor.set, 64 bytes": lambda: x.set(ones),  # last: y is out of date then
    }


def measure() -> dict[str, float]:
    return {name: min(timeit.repeat(act, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6 for name, act in acts().items()}


def measured_in(folder: str | None) -> dict[str, float]:
    """By a process of its own."""
    env = dict(os.environ) if folder is None else {**os.environ, "PYTHONPATH": folder}
    done = subprocess.run([sys.executable, __file__, "--once"], env=env, check=True, stdout=subprocess.PIPE, text=True)
    return {str(k): float(v) for k, v in json.loads(done.stdout).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", metavar="FOLDER")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        print(json.dumps(measure()))
        return
    here, there = [], []
    for _ in range(args.turns):
        here.append(measured_in(None))
        if args.beside:
            there.append(measured_in(args.beside))
    print("| call | us |" + (" beside, us | ratio |" if there else ""))
    print("| --- | --- |" + (" --- | --- |" if there else ""))
    for name in here[0]:
        ours = statistics.median(turn[name] for turn in here)
        line = f"| {name} | {ours:.3f} |"
        if there:
            theirs = statistics.median(turn[name] for turn in there)
            line += f" {theirs:.3f} | {ours / theirs:.2f} |"
        print(line)
    if args.json:
        args.json.write_text(json.dumps({"here": here, "beside": there}, indent=1))


if __name__ == "__main__":
    main()
