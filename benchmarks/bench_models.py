"""Measures whole models with this package, xllamacpp and CTranslate2, in turns.

    python benchmarks/bench_models.py MODEL.gguf [--whisper WHISPER.gguf FOLDER] [--threads N] [--rounds N]

MODEL.gguf is a language model, such as SmolLM2. WHISPER.gguf is a model that `ggml-backend convert` made of FOLDER, a
model of CTranslate2. Each side runs in a process of its own, and the sides take turns, round by round. The program
prints medians of wall time and of processor time, which other processes hardly change, and the median of the ratios of
all rounds: their time divided by ours. `chat` asks one question from the shell, and measures the seconds to the first
character of the answer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from timing import PROCESS, WALL, in_turns, median, ratio

PROMPT, NEW, CONTEXT = 512, 24, 1024
QUESTION = "What is the capital of France?"

Round = Callable[[int], object]


def vocabulary_of(path: str) -> int:
    """The number of tokens of a language model."""
    from ggml_backend import gguf

    with gguf.open(path) as file:
        return len(file.metadata["tokenizer.ggml.tokens"])


def ids_of(i: int, n_vocab: int) -> list[int]:
    """A prompt whose first token differs in each round, so that no side finds the prompt in a cache."""
    found: list[int] = np.random.default_rng(i).integers(100, n_vocab, PROMPT).tolist()
    return [(1000 + i) % n_vocab, *found[1:]]


def ours_text(path: str, threads: int, kind: str, precision: str) -> Round:
    from ggml_backend.models import TextModel

    model = TextModel(path, n_threads=threads, n_ctx=CONTEXT, precision=precision)  # type: ignore[arg-type]
    n_vocab = len(model.tokenizer)
    if kind == "prompt":
        return lambda i: model.logits(ids_of(i, n_vocab))

    def write(i: int) -> None:
        tokens = ids_of(i, n_vocab)
        for k in range(8, 8 + NEW):
            model.logits(tokens[:k])

    return write


def xllamacpp_text(path: str, threads: int, kind: str, _: str) -> Round:
    lib: Any = importlib.import_module("xllamacpp")
    params = lib.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.n_batch, params.n_ubatch = CONTEXT, 1, PROMPT, PROMPT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = lib.Server(params)
    n, n_vocab = PROMPT if kind == "prompt" else 8, vocabulary_of(path)

    def run(i: int) -> None:
        new = 1 if kind == "prompt" else NEW
        request = {"prompt": ids_of(i, n_vocab)[:n], "n_predict": new, "ignore_eos": True, "temperature": 0}
        server.handle_completions({**request, "cache_prompt": False})

    return run


def mel() -> Any:
    return np.random.default_rng(0).standard_normal((80, 3000)).astype(np.float32)


def ours_encoder(path: str, threads: int, kind: str, _: str) -> Round:
    from ggml_backend.models import SpeechModel

    model, window = SpeechModel(path, n_threads=threads), mel()
    return lambda i: model._encode(window)


def ctranslate2_encoder(path: str, threads: int, kind: str, _: str) -> Round:
    lib: Any = importlib.import_module("ctranslate2")
    model = lib.models.Whisper(path, device="cpu", intra_threads=threads)
    window = lib.StorageView.from_array(mel()[None])
    return lambda i: np.array(model.encode(window))


SIDES = {
    "ggml_backend": ours_text, "xllamacpp": xllamacpp_text, "ggml_backend encoder": ours_encoder,
    "ctranslate2 encoder": ctranslate2_encoder,
}  # fmt: skip


def work(side: str, path: str, threads: int, kind: str, precision: str) -> None:
    """Is the process of one side: runs a round for each line of input, and prints wall and processor time."""
    run = SIDES[side](path, threads, kind, precision)
    for line in sys.stdin:
        wall, cpu = WALL(), PROCESS()
        run(int(line))
        print(f"RESULT {WALL() - wall} {PROCESS() - cpu}", flush=True)


class Side:
    """One side's process."""

    def __init__(self, side: str, path: str, threads: int, kind: str, precision: str = "f16") -> None:
        arguments = ["--work", side, kind, precision, "--threads", str(threads), path]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.rounds = 0

    def round(self) -> tuple[float, float]:
        """Wall and processor seconds of the next round."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(self.rounds, file=self.process.stdin, flush=True)
        self.rounds += 1
        for line in self.process.stdout:
            if line.startswith("RESULT "):
                wall, cpu = line.split()[1:]
                return float(wall), float(cpu)
        raise RuntimeError("a side ended")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def rounds_of(sides: dict[str, Side], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Wall and processor seconds of each round, after a round that only warms up."""
    try:
        found = in_turns({name: side.round for name, side in sides.items()}, rounds + 1)
    finally:
        for side in sides.values():
            side.close()
    return {name: seconds[1:] for name, seconds in found.items()}


def chat(path: str, threads: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds from the start of the command to its first character, and processor seconds of the whole command."""
    found = []
    command = [sys.executable, "-m", "ggml_backend", "chat", path, QUESTION, "-n", "1", "--quiet", "--threads"]
    for i in range(rounds + 1):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), WALL()
        process = subprocess.Popen([*command, str(threads)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        seconds = WALL() - begin
        process.stdout.close()
        process.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if i > 0:
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found.append((seconds, cpu))
    return {"ggml_backend": found}


def summary(name: str, unit: str, per: float, found: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Prints and returns medians. Seconds are divided by ``per``."""
    result: dict[str, Any] = {"unit": unit}
    first = next(iter(found))
    for side, rounds in found.items():
        wall, cpu = (median(r[k] / per for r in rounds) for k in (0, 1))
        ratios = [ratio([r[k] for r in rounds], [r[k] for r in found[first]]) for k in (0, 1)]
        result[side] = {"wall": wall, "processor": cpu, "wall_by_ours": ratios[0], "processor_by_ours": ratios[1]}
        print(
            f"{name:<10} {side:<24} {1e3 * wall:9.2f} ms wall, {1e3 * cpu:9.2f} ms processor; by ours {ratios[0]:.2f},"
            f" {ratios[1]:.2f}", flush=True,
        )  # fmt: skip
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a language model, MODEL.gguf")
    parser.add_argument("--whisper", nargs=2, metavar=("WHISPER.gguf", "FOLDER"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        side, kind, precision = args.work
        work(side, args.model, args.threads, kind, precision)
        return
    n, results = args.threads, {}
    for kind, per in (("prompt", PROMPT), ("tokens", NEW)):
        sides = {
            "ggml_backend": Side("ggml_backend", args.model, n, kind),
            "ggml_backend, 8 bits": Side("ggml_backend", args.model, n, kind, "default"),
            "xllamacpp": Side("xllamacpp", args.model, n, kind),
        }
        results[kind] = summary(kind, "seconds a token", per, rounds_of(sides, args.rounds))
    if args.whisper:
        sides = {
            "ggml_backend": Side("ggml_backend encoder", args.whisper[0], n, "encoder"),
            "ctranslate2": Side("ctranslate2 encoder", args.whisper[1], n, "encoder"),
        }
        results["encoder"] = summary("encoder", "seconds a window of 30 s", 1, rounds_of(sides, args.rounds))
    results["chat"] = summary("chat", "seconds to the first character", 1, chat(args.model, n, args.rounds))
    if args.json:
        args.json.write_text(json.dumps({"benchmark": "models", "threads": n, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
