"""Operators on the CPU backend, beside NumPy where it has the same operation.

    python benchmarks/bench_ops.py [--threads N] [--only NAME ...] [--repeats N] [--json FILE]

Every row is one graph of one operator, computed again and again through ``Graph.compute``. GB/s counts each operand
read once and the result written once; GFLOP/s counts two per multiply-add. Rounds of both sides alternate; the median
of the rounds and of the ratio round by round is printed. NumPy uses as many threads as it likes for products and one
for everything else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ggml_backend as gb
from timing import in_turns, median, per_call, ratio

Run = Callable[[], Any]


@dataclass
class Case:
    name: str
    work: float  # bytes or floating-point operations of one call
    unit: str  # "GB/s" or "GFLOP/s" or "us/node"
    ours: Run
    numpy: Run | None = None


class Suite:
    """Makes cases; keeps contexts and buffers alive."""

    def __init__(self, backend: gb.Backend) -> None:
        self.backend = backend
        self.rng = np.random.default_rng(0)
        self.keep: list[Any] = []

    def graph(self, build: Callable[..., gb.Tensor], *arrays: np.ndarray) -> Run:
        ctx = gb.Context()
        inputs = [ctx.tensor(a.shape, a.dtype, name=f"x{i}") for i, a in enumerate(arrays)]
        graph = ctx.graph(build(*inputs))
        self.keep += [ctx, ctx.allocate(self.backend)]
        for tensor, array in zip(inputs, arrays, strict=True):
            tensor.set(array)
        return lambda: graph.compute(self.backend)

    def f32(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def elementwise(self, rows: int, cols: int) -> list[Case]:
        a, b = self.f32(rows, cols), self.f32(rows, cols)
        one, two = 2.0 * a.nbytes, 3.0 * a.nbytes
        h = a.astype(np.float16)

        def case(
            name: str,
            work: float,
            build: Callable[..., gb.Tensor],
            arrays: tuple[np.ndarray, ...],
            peer: Run | None = None,
        ) -> Case:
            return Case(f"{name} [{rows} x {cols}]", work, "GB/s", self.graph(build, *arrays), peer)

        def softmax() -> np.ndarray:
            e = np.exp(a - a.max(axis=-1, keepdims=True))
            return e / e.sum(axis=-1, keepdims=True)

        return [
            case("add", two, lambda x, y: x + y, (a, b), lambda: a + b),
            case("mul", two, lambda x, y: x * y, (a, b), lambda: a * b),
            case("scale", one, lambda x: x * 0.5, (a,), lambda: a * np.float32(0.5)),
            case("relu", one, gb.ops.relu, (a,), lambda: np.maximum(a, 0)),
            case("silu", one, gb.ops.silu, (a,), lambda: a / (1 + np.exp(-a))),
            case("gelu", one, gb.ops.gelu, (a,)),
            case("gelu_erf", one, gb.ops.gelu_erf, (a,)),
            case("tanh", one, gb.ops.tanh, (a,), lambda: np.tanh(a)),
            case("exp", one, gb.ops.exp, (a,), lambda: np.exp(a)),
            case("sigmoid", one, gb.ops.sigmoid, (a,), lambda: 1 / (1 + np.exp(-a))),
            case("softplus", one, gb.ops.softplus, (a,), lambda: np.logaddexp(a, np.float32(0))),
            case("sin", one, gb.ops.sin, (a,), lambda: np.sin(a)),
            case("cos", one, gb.ops.cos, (a,), lambda: np.cos(a)),
            case("sin far", one, lambda x: gb.ops.sin(x * 1e5), (a,), lambda: np.sin(a * np.float32(1e5))),
            case("less", two, lambda x, y: x < y, (a, b), lambda: (a < b).astype(np.float32)),
            case("where", two, lambda x, y: gb.ops.where(x, x, y), (a, b), lambda: np.where(a != 0, a, b)),
            case(
                "norm",
                one,
                lambda x: gb.ops.norm(x, eps=1e-5),
                (a,),
                lambda: (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5),
            ),
            case(
                "rms_norm",
                one,
                lambda x: gb.ops.rms_norm(x, eps=1e-5),
                (a,),
                lambda: a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5),
            ),
            case("soft_max", one, gb.ops.soft_max, (a,), softmax),
            case("sum_rows", a.nbytes, gb.ops.sum_rows, (a,), lambda: a.sum(axis=-1)),
            case(
                "f32 -> f16", 1.5 * a.nbytes, lambda x: gb.ops.cast(x, gb.float16), (a,), lambda: a.astype(np.float16)
            ),
            case(
                "f16 -> f32", 1.5 * a.nbytes, lambda x: gb.ops.cast(x, gb.float32), (h,), lambda: h.astype(np.float32)
            ),
            case("transpose copy", one, lambda x: gb.ops.cont(x.T), (a,), lambda: np.ascontiguousarray(a.T)),
        ]

    def products(self) -> list[Case]:
        cases = []
        for m, k, n in ((1024, 1024, 512), (384, 384, 34), (1536, 384, 1088), (4096, 4096, 1)):
            w, x = self.f32(m, k), self.f32(n, k)
            flops = 2.0 * m * k * n
            cases.append(
                Case(
                    f"mul_mat f32 m={m} k={k} n={n}",
                    flops,
                    "GFLOP/s",
                    self.graph(lambda a, b: b @ a.T, w, x),
                    lambda w=w, x=x: x @ w.T,
                )
            )
            h = w.astype(np.float16)
            cases.append(
                Case(f"mul_mat f16 m={m} k={k} n={n}", flops, "GFLOP/s", self.graph(lambda a, b: b @ a.T, h, x))
            )
        return cases

    def overhead(self, nodes: int = 1000) -> list[Case]:
        def chain(x: gb.Tensor) -> gb.Tensor:
            for _ in range(nodes):
                x = x + x
            return x

        one = np.zeros(1, np.float32)
        return [
            Case(f"{nodes} one-element adds", nodes, "us/node", self.graph(chain, one)),
            Case("one-element graph", 1, "us/node", self.graph(lambda x: x + x, one)),
        ]


def rate(case: Case, run: Run, seconds: float) -> float:
    taken = per_call(run, seconds, pause=0.2)
    return taken / case.work * 1e6 if case.unit == "us/node" else case.work / taken / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--level", help="kernel level (default: the best the processor has)")
    parser.add_argument("--only", nargs="*", help="names to run (substrings)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each round")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    backend = gb.Backend("CPU", n_threads=args.threads, level=args.level)
    suite = Suite(backend)
    cases = suite.elementwise(512, 4096) + suite.products() + suite.overhead()
    results: dict[str, Any] = {"threads": args.threads, "level": backend.level, "cases": {}}
    for case in cases:
        if args.only and not any(o in case.name for o in args.only):
            continue
        sides = {"ours": case.ours} | ({"numpy": case.numpy} if case.numpy is not None else {})
        rounds = in_turns({name: partial(rate, case, run, args.seconds) for name, run in sides.items()}, args.repeats)
        row: dict[str, Any] = {"unit": case.unit, "median": median(rounds["ours"]), "rounds": rounds["ours"]}
        line = f"{case.name:<36} {row['median']:10.2f} {case.unit}"
        if "numpy" in rounds:
            row["numpy"] = median(rounds["numpy"])
            row["ratio"] = ratio(rounds["ours"], rounds["numpy"])
            line += f"   numpy {row['numpy']:10.2f}   ratio {row['ratio']:6.2f}"
        print(line, flush=True)
        results["cases"][case.name] = row
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
