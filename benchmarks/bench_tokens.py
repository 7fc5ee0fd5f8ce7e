"""Tokens per second of a model file, one token after another, by this package or by xllamacpp.

    python benchmarks/bench_tokens.py FILE.gguf [--side ggml_backend|xllamacpp] [--threads N] [--tokens N] [--rounds N]

Prints medians over the rounds: tokens per second, and processor time of a token, which other processes hardly change.
Run both sides in turns, each in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ggml_backend.models import TextModel

CONTEXT = 512


def ours(path: Path, threads: int) -> Callable[[int], None]:
    model = TextModel(path, n_threads=threads, n_ctx=CONTEXT)
    model.tokenizer.stops = frozenset()

    def generate(tokens: int) -> None:
        for _ in model.generate(list(range(8)), max_tokens=tokens):
            pass

    return generate


def peer(path: Path, threads: int) -> Callable[[int], None]:
    lib: Any = importlib.import_module("xllamacpp")
    params = lib.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel = CONTEXT, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = lib.Server(params)

    def generate(tokens: int) -> None:
        server.handle_completions({"prompt": "Hello", "n_predict": tokens, "ignore_eos": True, "temperature": 0})

    return generate


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--side", choices=["ggml_backend", "xllamacpp"], default="ggml_backend")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    generate = (ours if args.side == "ggml_backend" else peer)(args.file, args.threads)
    generate(2)
    rates, costs = [], []
    for _ in range(args.rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        generate(args.tokens)
        rates.append(args.tokens / (time.perf_counter() - wall))
        costs.append((time.process_time() - cpu) / args.tokens)
    print(
        f"{args.side}, {args.threads} threads: {statistics.median(rates):.1f} tokens/s,"
        f" {statistics.median(costs) * 1e3:.2f} ms of processor time a token"
    )


if __name__ == "__main__":
    main()
