"""Measures single calls from Python: small graphs, setting, reading, making nodes.

    python benchmarks/bench_calls.py [--cpu] [--weights N ...] [--beside FOLDER] [--turns N] [--json FILE]

The program prints microseconds: the best of many short rounds. It prints medians for products after a rest, in which
the other thread falls asleep, and for bursts of products after such rests.

--beside: another version of the package, installed by ``pip install --target FOLDER``. Each version has a process of
    its own, and they alternate. The ratio is the ratio of their medians.
--cpu: measure the processor time of the calling thread, and no products after a rest. Use it on busy machines.
--weights: also measure the first plan of N products whose matrices are copied to a device. The time should grow like N.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from timing import THREAD, WALL, median, once, shortest

ROUNDS, CALLS = 40, 2000
VALUES = 16  # 64 bytes
RESTED = (256, 256, 1), (128, 128, 32), (128, 128, 128)  # columns, terms, rows
REST, RESTS = 0.0005, 400
BURSTS, BURST = 5, 100


def acts() -> dict[str, Callable[[], object]]:
    import numpy as np

    import ggml_backend as gb

    cpu, ones = gb.Backend("CPU", n_threads=1), np.ones(VALUES, np.float32)
    ctx = gb.Context()
    x = ctx.tensor(VALUES, name="x")
    y = gb.ops.relu(x)
    graph = ctx.graph(y)
    ctx.allocate(cpu)
    other = gb.Context()
    u = other.tensor(VALUES, name="u")
    planned, sched = other.graph(gb.ops.relu(u)), gb.Scheduler([cpu])
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
        "relu(x)": lambda: gb.ops.relu(a),
        "x + y": lambda: a + b,
        "x @ y.T": lambda: gb.ops.mul_mat(b, a),
        **exchanged(gb, np, x),
        "Tensor.set, 64 bytes": lambda: x.set(ones),  # last, because y is stale afterwards
    }


def exchanged(gb: Any, np: Any, t: Any) -> dict[str, Callable[[], object]]:
    """Arrays as tensors and tensors as arrays, without copies; also with PyTorch if it is installed."""
    if not hasattr(gb.Context, "from_dlpack"):  # an older version
        return {}

    def taken(array: Any, how: str) -> Callable[[], object]:
        contexts = [gb.Context(), 0]

        def take() -> object:  # a hundred arrays share the cost of a context
            contexts[1] += 1
            if contexts[1] % 100 == 0:
                contexts[0] = gb.Context()
            return getattr(contexts[0], how)(array)

        return take

    ones = np.ones(VALUES, np.float32)
    found: dict[str, Callable[[], object]] = {
        "Context.from_dlpack of NumPy": taken(ones, "from_dlpack"),
        "Context.from_numpy": taken(ones, "from_numpy"),
        "np.from_dlpack": lambda: np.from_dlpack(t),
        "np.asarray": lambda: np.asarray(t),
    }
    if importlib.util.find_spec("torch"):
        import torch

        found["Context.from_dlpack of PyTorch"] = taken(torch.ones(VALUES), "from_dlpack")
        found["torch.from_dlpack"] = lambda: torch.from_dlpack(t)
        found["torch.from_numpy, of NumPy's array"] = lambda: torch.from_numpy(ones)
    return found


def rested() -> dict[str, Callable[[], object]]:
    """Products of a planned graph by two threads."""
    import numpy as np

    import ggml_backend as gb

    found: dict[str, Callable[[], object]] = {}
    for columns, terms, rows in RESTED:
        ctx, sched = gb.Context(), gb.Scheduler([gb.Backend("CPU", n_threads=2)])
        inputs = [ctx.tensor((n, terms)) for n in (columns, rows)]
        graph = ctx.graph(gb.ops.mul_mat(*inputs))
        sched.allocate(graph)
        for x in inputs:
            x.set(np.ones(x.shape, np.float32))
        found[f"{rows} x {terms} by {columns}"] = partial(sched.compute, graph)
    return found


def after_rest(act: Callable[[], object]) -> float:
    def rest_and_act() -> float:
        time.sleep(REST)
        return once(act)

    return median([rest_and_act() for _ in range(RESTS)])


def in_bursts(act: Callable[[], object]) -> float:
    """Seconds of a call in a series without rests, which follows calls with rests."""

    def burst() -> float:
        after_rest(act)
        return once(lambda: [act() for _ in range(BURST)]) / BURST

    return median([burst() for _ in range(BURSTS)])


def measure(cpu: bool) -> dict[str, float]:
    found = {name: shortest(act, CALLS, ROUNDS, THREAD if cpu else WALL) * 1e6 for name, act in acts().items()}
    for name, act in () if cpu else rested().items():
        found[f"{name} after {REST * 1e3:g} ms of rest"] = after_rest(act) * 1e6
        found[f"{name} in a burst after rests"] = in_bursts(act) * 1e6
    return found


def plan_with_weights(n: int) -> float:
    import ggml_backend as gb

    cpu, sim = gb.Backend("CPU"), gb.Backend("SIM", mem="1G")
    ctx, others = gb.Context(), gb.Context()
    weights = [others.tensor((4, 4)) for _ in range(n)]
    others.allocate(cpu, usage="weights")
    y = ctx.tensor((2, 4), name="x")
    for w in weights:
        y = y @ w.T
    graph, sched = ctx.graph(y), gb.Scheduler([sim, cpu])
    for node in graph.nodes:
        sched.set_backend(node, sim)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the scheduler warns that it copies weights
        return once(lambda: sched.prepare(graph)) * 1e6


def measured_in(folder: str | None, weights: list[int], cpu: bool) -> dict[str, float]:
    """Measures in a process of its own."""
    env = dict(os.environ) if folder is None else {**os.environ, "PYTHONPATH": folder}
    command = [sys.executable, __file__, "--once", *(["--cpu"] if cpu else []), "--weights", *map(str, weights)]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return {str(k): float(v) for k, v in json.loads(done.stdout).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", metavar="FOLDER")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--weights", metavar="N", type=int, nargs="*", default=[])
    parser.add_argument("--cpu", action="store_true", help="measure processor time, for busy machines")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        gc.disable()  # it scans all objects from time to time
        plans = {f"Scheduler.prepare, {n} weights copied": plan_with_weights(n) for n in args.weights}
        print(json.dumps({**measure(args.cpu), **plans}))
        return
    here, there = [], []
    for _ in range(args.turns):
        here.append(measured_in(None, args.weights, args.cpu))
        if args.beside:
            there.append(measured_in(args.beside, args.weights, args.cpu))
    print("| call | us |" + (" beside, us | ratio |" if there else ""))
    print("| --- | --- |" + (" --- | --- |" if there else ""))
    for name in here[0]:
        ours = median(turn[name] for turn in here)
        line = f"| {name} | {ours:.3f} |"
        if there and name in there[0]:
            theirs = median(turn[name] for turn in there)
            line += f" {theirs:.3f} | {ours / theirs:.2f} |"
        print(line)
    if args.json:
        args.json.write_text(json.dumps({"here": here, "beside": there}, indent=1))


if __name__ == "__main__":
    main()
