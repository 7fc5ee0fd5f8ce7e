"""Measures the resident memory of ``examples.train.lora`` beside its model file.

    PYTHONPATH=. python benchmarks/bench_lora.py MODEL.gguf TEXT.txt [--threads N] [--steps N] [--runs N]
                                                                 [--json FILE]

A process imports the package and NumPy's random numbers, makes the tokenizer and encodes the text. A second process
does the same and then trains. Training needs the largest resident memory of the second process minus that of the first:
the mapped file, the plan, adapters with their state, and the objects of the graphs. A figure is the median of all
runs. Linux only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

import ggml_backend as gb
from examples.train.lora import LoraTrainer, pieces_of
from ggml_backend.models import tokenizer_of
from table import print_table

TOKENS, PIECES, RATE = 64, 4, 1e-3  # the defaults of the example


def status(name: str) -> int:
    """A number of bytes of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def one_side(args: argparse.Namespace) -> list[float]:
    """The resident memory before training. For training also the largest one, the plan, and the losses."""
    rng = np.random.default_rng(1)
    with gb.gguf.open(args.model) as file:
        tokens = np.array(tokenizer_of(file.metadata).encode(args.text.read_text(encoding="utf-8")), np.int32)
    if args.side == "imports":
        return [status("VmRSS")]
    trainer = LoraTrainer(args.model, gb.Backend("CPU", n_threads=args.threads), n_tokens=TOKENS)
    training, validation = pieces_of(tokens, TOKENS)
    before = trainer.loss_on(validation[:4])
    for _ in range(args.steps):
        trainer.step([training[i] for i in rng.integers(0, len(training), PIECES)], RATE)
    after = trainer.loss_on(validation[:4])
    return [status("VmHWM"), trainer.nbytes, trainer.memory(), before, after]


def asked(args: argparse.Namespace, side: str) -> list[float]:
    command = [sys.executable, __file__, str(args.model), str(args.text), "--side", side]
    command += ["--threads", str(args.threads), "--steps", str(args.steps)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    numbers: list[float] = json.loads(found)
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1, help="pairs of processes (default: 1)")
    parser.add_argument("--side", choices=["imports", "training"], help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", type=Path)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(one_side(args)))
        return 0
    runs = [(*asked(args, "imports"), *asked(args, "training")) for _ in range(args.runs)]
    imports, most, file, plan, before, after = (statistics.median(figures) for figures in zip(*runs, strict=True))
    ratios = [(run[1] - run[0]) / run[2] for run in runs]
    rows = [
        ["file, MiB", f"{file / 2**20:.1f}"],
        ["plan, scratch, activations and adapters, MiB", f"{plan / 2**20:.1f}"],
        ["resident with imports and tokenizer, MiB", f"{imports / 2**20:.1f}"],
        ["largest resident memory of training, MiB", f"{most / 2**20:.1f}"],
        ["largest resident memory without imports / file", f"{statistics.median(ratios):.3f}"],
        ["validation loss before", f"{before:.4f}"],
        [f"validation loss after {args.steps} steps", f"{after:.4f}"],
    ]
    print_table([["what", "value"], *rows])
    if args.json:
        table = {"columns": ["what", "value"], "rows": rows, "ratios": [round(ratio, 4) for ratio in ratios]}
        args.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
