"""Measures the same work with this package and with NumPy, PyTorch, ONNX Runtime and llama.cpp, in one process.

    python benchmarks/compare_peers.py [products|small|ops|conv|attention|model|llama ...] [--threads N]
    [--only TEXT ...] [--sizes 16K 512K 8M 256M] [--rounds N] [--seconds S] [--compile] [--cpu] [--quick]
    [--json FILE]

The program names the libraries that are missing; install them with ``pip install torch onnxruntime onnx
llama-cpp-python``. All sides get the same inputs and the same number of threads. NumPy uses the threads of its BLAS.
The program compares the results before it measures. In every round each side runs for a while. A pause before each
side lets the threads of the previous side fall asleep. The table has medians of the rounds, and medians of the ratios
of all rounds. Above 1, we are faster.

Each library makes its outputs in its own way: PyTorch and NumPy allocate, ONNX Runtime copies, ours are in a buffer.

--sizes: the bytes that one operator of ``ops`` reads and writes
--compile: also measure torch.compile, which needs a C++ compiler and some seconds
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers import processor  # isort: skip  # before NumPy, which ggml_backend imports

import ggml_backend as gb
from peers.attention import attention
from peers.convolutions import convolutions
from peers.elements import operators
from peers.embedding import model
from peers.llama import llama
from peers.measure import measure
from peers.products import products, small_products
from peers.sides import PEERS, Scope, Sides, Work, openblas_core
from timing import PROCESS, WALL, median

SUITES: dict[str, Callable[[Sides, Scope], Iterator[Work]]] = {
    "products": products,
    "small": small_products,
    "ops": operators,
    "conv": convolutions,
    "attention": attention,
    "model": model,
    "llama": llama,
}


def row(name: str, result: dict[str, Any]) -> str:
    cells = [f"{result['median']:.4g} {result['unit']}"]
    for peer in PEERS:
        if peer in result["ratios"]:
            cells.append(f"{median(result['rounds'][peer]):.4g}, {result['ratios'][peer]:.2f} x")
        else:
            cells.append("-")
    return line(name, *cells)


def line(name: str, ours: str, *peers: str) -> str:
    return f"{name:<44} {ours:>20}   " + "   ".join(f"{peer:>18}" for peer in peers)


def count(kind: type[int] | type[float]) -> Callable[[str], Any]:
    def parse(word: str) -> Any:
        value = kind(word)
        if not 0 < value < 10000:
            raise argparse.ArgumentTypeError(f"{word} is not above 0 and below 10000")
        return value

    return parse


def size(word: str) -> int:
    found = re.fullmatch(r"(\d{1,4})([KM])", word)
    if found is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{word} is no size from 1K to 9999M")
    return int(found[1]) << {"K": 10, "M": 20}[found[2]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="|".join(SUITES), help="what to compare (all)")
    parser.add_argument("--threads", type=count(int), default=gb.Backend("CPU").n_threads)
    parser.add_argument("--only", nargs="+", help="measure only work whose name contains one of these")
    parser.add_argument("--sizes", nargs="+", type=size, help="bytes that an operator reads and writes", metavar="SIZE")
    parser.add_argument("--rounds", type=count(int), default=5)
    parser.add_argument("--seconds", type=count(float), default=0.2, help="seconds of each side in a round")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of rest before each side")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile")
    parser.add_argument("--cpu", action="store_true", help="use one thread and measure processor time")
    parser.add_argument("--quick", action="store_true", help="use tiny sizes, to check that the program works")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    for name in args.suites:
        if name not in SUITES:
            parser.error(f"{name!r} is none of {', '.join(SUITES)}")
    args.threads = 1 if args.cpu else args.threads
    if args.sizes is None:
        args.sizes = [1 << 14] if args.quick else [1 << 14, 1 << 19, 1 << 23, 1 << 28]
    return args


def main() -> None:
    args = arguments()
    s = Sides(args.threads, compiled=args.compile)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else -1.0
    versions = {name: getattr(module, "__version__", "?") for name, module in s.modules.items()}
    print(f"processor: {processor()[0]}; OpenBLAS for {openblas_core()}")
    print(
        f"{'processor time, ' if args.cpu else ''}{args.threads} threads, level {s.backend.level}, load average"
        f" {load:.2f}; beside " + ", ".join(f"{n} {v}" for n, v in versions.items())
    )
    for name, why in s.absent.items():
        print(f"absent: {name} ({why})")
    results: dict[str, Any] = {
        "benchmark": "peers",
        "processor": processor()[0],
        "openblas": openblas_core(),
        "level": s.backend.level,
        "threads": args.threads,
        "processor_time": args.cpu,
        "load": load,
        "versions": versions,
        "absent": s.absent,
        "cases": {},
    }
    print(line(f"{args.threads} threads", "ours", *(f"{peer}, ratio" for peer in PEERS)))
    clock = PROCESS if args.cpu else WALL
    left_out = []
    for name in args.suites or SUITES:
        for work in SUITES[name](s, Scope(args.quick, args.sizes)):
            if args.only and not any(o in work.name for o in args.only):
                continue
            result = results["cases"][work.name] = measure(s, work, args.rounds, args.seconds, args.pause, clock)
            print(row(work.name, result), flush=True)
            left_out += [f"{work.name}: {peer} left out: {why}" for peer, why in result["left_out"].items()]
    print("\n".join(left_out))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
