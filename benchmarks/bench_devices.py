"""Measures the cost of the device ARRAY beside the array library itself. Both alternate.

    python benchmarks/bench_devices.py [nodes|embed ...] [--nodes N] [--threads N] [--repeats N] [--cpu] [--json FILE]

nodes: microseconds a node of a planned graph of 1,000 sums and products of 64 x 64 numbers, beside the same calls of
    NumPy and of PyTorch in a Python loop that writes into existing arrays
embed: milliseconds of all-MiniLM-L6-v2 in float32 with batch 32 on ARRAY with PyTorch, beside the network written in
    PyTorch (peers/embedding.py) with the same number of threads, and their ratio
--cpu: measure the processor time of the process. Use it on busy machines.

PyTorch is left out if it is not installed. The goals are at most 2 us a node more than the library, and a ratio of at
most 1.1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import ggml_backend as gb
from timing import PROCESS, WALL, Clock, in_turns, median, per_call, ratio

SIDE = 64


def planned(library: str, n: int) -> Callable[[], Any]:
    """A graph of which ARRAY computes every node."""
    context = gb.Context()
    x = context.tensor((SIDE, SIDE), gb.float32, name="x")
    y = x
    for i in range(n):
        y = gb.ops.mul(y, x) if i % 2 else gb.ops.add(y, x)
    graph = context.graph(y)
    scheduler = gb.Scheduler([gb.Backend("ARRAY", library=library)])
    scheduler.allocate(graph)
    x.set(np.full((SIDE, SIDE), 0.5, np.float32))
    return lambda: scheduler.compute(graph)


def plain(library: str, n: int) -> Callable[[], Any]:
    """The same calls without a graph. Results go to two arrays in turns."""
    if library == "numpy":
        x, out = np.full((SIDE, SIDE), 0.5, np.float32), [np.empty((SIDE, SIDE), np.float32) for _ in range(2)]
        add: Any = np.add
        mul: Any = np.multiply
        return partial(loop, add, mul, x, out, n)
    import torch

    with torch.inference_mode():
        given, there = torch.full((SIDE, SIDE), 0.5), [torch.empty(SIDE, SIDE) for _ in range(2)]

    def run() -> None:
        with torch.inference_mode():
            loop(torch.add, torch.mul, given, there, n)

    return run


def loop(add: Any, mul: Any, x: Any, out: Any, n: int) -> None:
    y = x
    for i in range(n):
        y = mul(y, x, out=out[1]) if i % 2 else add(y, x, out=out[0])


def nodes(args: argparse.Namespace, clock: Clock) -> Iterator[dict[str, Any]]:
    for library in ("numpy", "torch"):
        if find_spec(library) is None:
            print(f"nodes, {library}: not installed")
            continue
        sides = {"ARRAY": planned(library, args.nodes), "plain": plain(library, args.nodes)}
        rounds = in_turns({k: partial(per_call, run, 0.2, clock) for k, run in sides.items()}, args.repeats)
        each = {k: 1e6 * median(r) / args.nodes for k, r in rounds.items()}
        above = median([1e6 * (a - b) / args.nodes for a, b in zip(rounds["ARRAY"], rounds["plain"], strict=True)])
        print(f"nodes, {library}: ARRAY {each['ARRAY']:.2f} us, plain {each['plain']:.2f} us, above it {above:.2f} us")
        yield {"what": "nodes", "library": library, "above_us": above, "rounds": rounds}


def embed(args: argparse.Namespace, clock: Clock) -> Iterator[dict[str, Any]]:
    from examples.embed.model import Embedder, model_dir
    from peers.embedding import token_sequences, torch_model

    peer = torch_model(model_dir(), args.threads)
    if peer is None:
        print("embed: PyTorch is not installed")
        return
    embedder = Embedder(("ARRAY:library=torch", "CPU"), n_threads=args.threads)
    for batch in args.batches:
        sequences = token_sequences(embedder, batch)
        difference = float(np.abs(embedder.embed_tokens(sequences) - peer(sequences)).max())
        assert difference < 1e-4, f"the two sides disagree by {difference}"
        sides = {"ARRAY": partial(embedder.embed_tokens, sequences), "torch": partial(peer, sequences)}
        rounds = in_turns({k: partial(per_call, run, 1.0, clock) for k, run in sides.items()}, args.repeats)
        found = ratio(rounds["ARRAY"], rounds["torch"])
        milliseconds = ", ".join(f"{k} {1e3 * median(r):.1f} ms" for k, r in rounds.items())
        print(f"embed, batch {batch}: {milliseconds}, ratio {found:.2f}")
        yield {"what": "embed", "batch": batch, "ratio": found, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="nodes|embed", help="default: both")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="*", default=[32])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu", action="store_true", help="measure processor time")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if find_spec("torch") is not None:
        import torch

        torch.set_num_threads(args.threads)
    parts = {"nodes": nodes, "embed": embed}
    if unknown := set(args.parts) - set(parts):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    clock = PROCESS if args.cpu else WALL
    results = [row for name in args.parts or parts for row in parts[name](args, clock)]
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
