"""A training step of ``examples/train`` beside the same network in PyTorch.

    PYTHONPATH=. python benchmarks/bench_train.py [--threads N] [--rounds N] [--rows N] [--json FILE]

The program trains the same weights on the same batches with this package and with PyTorch, in turns, in one process. It
prints medians over the rounds, and the median of the ratios of each round. It also prints the bytes of the plan of a
step, with and without reuse of memory. A process for each side measures how much its largest resident memory grows in
three steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import ggml_backend as gb
from examples.train.in_torch import Peer
from examples.train.model import Config, initial
from examples.train.text import Text, batch, read
from examples.train.trainer import Trainer
from table import print_table
from timing import PROCESS, WALL, in_turns, median, ratio

RATE = 1e-3


def sides(args: argparse.Namespace) -> tuple[Trainer, Peer, Text]:
    torch.set_num_threads(args.threads)
    known = Text.of(read("topics"), args.context)
    config = Config(len(known.characters), args.width, args.layers, args.heads, args.context)
    trainer = Trainer(config, known, [gb.Backend("CPU", n_threads=args.threads)], args.rows)
    return trainer, Peer(config, initial(config, 1)), known


def largest() -> int:
    """The largest resident memory of this process so far, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def growth(side: str, args: argparse.Namespace) -> int:
    """Bytes by which the largest resident memory grows in three steps of one side."""
    trainer, peer, known = sides(args)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the largest becomes the present one
    before = largest()
    for k in range(3):
        if side == "ours":
            trainer.step(RATE)
        else:
            peer.step(*batch(known.training, args.rows, args.context, (1, k)), RATE)
    return largest() - before


def measured(args: argparse.Namespace) -> dict[str, Any]:
    trainer, peer, known = sides(args)
    clock, losses = PROCESS if args.cpu else WALL, [0.0, 0.0]

    def ours() -> float:
        begin = clock()
        losses[0] = trainer.step(RATE)
        return clock() - begin

    def theirs() -> float:
        pieces = batch(known.training, args.rows, args.context, (1, peer_steps[0]))
        peer_steps[0] += 1
        begin = clock()
        losses[1] = peer.step(*pieces, RATE)
        return clock() - begin

    peer_steps = [0]
    in_turns({"ours": ours, "PyTorch": theirs}, 3)
    found = in_turns({"ours": ours, "PyTorch": theirs}, args.rounds)
    memory = trainer.scheduler.prepare(trainer.optimizer.graph, allocate=False).memory["CPU"]
    return {
        "ours, ms": 1e3 * median(found["ours"]),
        "PyTorch, ms": 1e3 * median(found["PyTorch"]),
        "PyTorch / ours": ratio(found["PyTorch"], found["ours"]),
        "loss, ours": losses[0],
        "loss, PyTorch": losses[1],
        "weights": sum(w.size for w in trainer.weights.values()),
        "plan, MiB": memory.peak / 2**20,
        "without reuse, MiB": memory.no_reuse / 2**20,
        "scratch, MiB": memory.scratch / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, default=16)
    for name in ("width", "layers", "heads", "context"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Config(1), name))
    parser.add_argument("--cpu", action="store_true", help="processor time of the process, for busy machines")
    parser.add_argument("--growth", choices=["ours", "PyTorch"], help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.growth:
        print(growth(args.growth, args))
        return
    found = measured(args)
    for side in ("ours", "PyTorch"):
        command = [sys.executable, __file__, *sys.argv[1:], "--growth", side]
        grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        found[f"resident growth, {side}, MiB"] = grown / 2**20
    columns, rows = ["what", "value"], [[name, f"{value:.4g}"] for name, value in found.items()]
    print_table([columns, *rows])
    if args.json is not None:
        args.json.write_text(json.dumps({"columns": columns, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
