"""Measures what a profile costs while it records, and what the code for profiles costs while none records.

    python benchmarks/bench_profile.py [--types f16,q4_0] [--layers N] [--prompt N] [--tokens N] [--threads N]
    [--turns N] [--cpu] [--beside FOLDER] [--json FILE]

A Llama-shaped network with random weights reads a prompt and generates tokens. All sides alternate. The ratio of two
sides is the median over the rounds.

--beside: an older version of the package, installed by ``pip install --target FOLDER``. It is compared with this one
    without a profile.
--cpu: measure the processor time of one thread. For busy machines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import IO, Any

from peers.llama import VOCAB, write_model
from timing import THREAD, WALL, in_turns, median, once

SIDES = ("prompt", "prompt, profiled", "tokens", "tokens, profiled")


def work(path: Path, prompt: int, tokens: int, threads: int, cpu: bool) -> None:
    """A process with one version of the package. Each line of input names a side; the answer is its time in seconds."""
    import numpy as np

    import ggml_backend as gb
    from ggml_backend.models import TextModel

    clock = THREAD if cpu else WALL
    model = TextModel(path, n_threads=threads, n_ctx=prompt + tokens + 2)
    model.tokenizer.stops = frozenset()
    ids = [int(i) for i in np.random.default_rng(0).integers(0, VOCAB, prompt)]

    def seconds(side: str) -> float:
        model.cache.forget_idle()
        model.logits(ids[:8])  # the process that ran before has left other things in the caches
        if side.startswith("prompt"):
            model.cache.forget_idle()
            return once(partial(model.logits, ids), clock)
        return once(lambda: list(model.generate(ids[:8], max_tokens=tokens)), clock) / tokens

    seconds("prompt")
    print(gb.__file__, flush=True)
    for line in sys.stdin:
        side = line.strip()
        profile = model._open().profile() if side.endswith("profiled") else contextlib.nullcontext()
        with profile:
            print(seconds(side), flush=True)


class Worker:
    def __init__(self, arguments: list[str], folder: str | None) -> None:
        environment = {**os.environ, **({"PYTHONPATH": folder} if folder else {})}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", *arguments], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.file = self._line()

    def _line(self) -> str:
        out: IO[str] | None = self.process.stdout
        assert out is not None
        found = out.readline().strip()
        if not found:
            raise SystemExit("a process that measures has ended")
        return found

    def seconds(self, side: str) -> float:
        assert self.process.stdin is not None
        print(side, file=self.process.stdin, flush=True)
        return float(self._line())


def compared(rounds: dict[str, list[float]], side: str, with_side: str) -> float:
    return median([a / b for a, b in zip(rounds[side], rounds[with_side], strict=True)])


def measure(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    arguments = [
        str(path),
        str(args.prompt),
        str(args.tokens),
        str(1 if args.cpu else args.threads),
        str(int(args.cpu)),
    ]
    here = Worker(arguments, None)
    sides = {side: partial(here.seconds, side) for side in SIDES}
    if args.beside:
        before = Worker(arguments, str(args.beside))
        assert before.file != here.file, f"both are {here.file}"
        sides |= {f"{side}, before": partial(before.seconds, side) for side in ("prompt", "tokens")}
    rounds = in_turns(sides, args.turns)
    pairs = [("prompt, profiled", "prompt"), ("tokens, profiled", "tokens")]
    if args.beside:
        pairs += [("prompt", "prompt, before"), ("tokens", "tokens, before")]
    return {"seconds": rounds, "ratios": {f"{a} / {b}": compared(rounds, a, b) for a, b in pairs}}


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        path, *numbers = sys.argv[2:]
        work(Path(path), *map(int, numbers[:3]), numbers[3] == "1")
        return
    import ggml_backend as gb

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--types", default="f16,q4_0")
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--dir", type=Path, default=Path("build/bench/llama"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = {}
    for name in args.types.split(","):
        dtype = gb.dtypes.as_dtype(name)
        path = args.dir / f"{dtype.name}-{args.layers}.gguf"
        if not path.exists():
            write_model(path, dtype, args.layers)
        r = results[name] = measure(path, args)
        for side, seconds in r["seconds"].items():
            print(f"{name:>8}: {side:<18} {median(seconds) * 1e3:9.2f} ms")
        for pair, ratio in r["ratios"].items():
            print(f"{name:>8}: {pair:<36} {ratio:.4f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"benchmark": "profile", "results": results}, indent=1))


if __name__ == "__main__":
    main()
