"""Tokens per second of a Llama-shaped network with random weights: a prompt at once, then one token after another.

    python benchmarks/bench_llama.py [--types f16,q8_0,...] [--layers N] [--prompt N] [--new N] [--threads N] [--repeats
    N] [--at-once N ...] [--json FILE]

The default is the shape of a model of 1.1 billion parameters (embd 2048, 22 layers, 32 heads, 4 of them for keys, ff
5632, vocabulary 32000). Files are made once, in --dir, from random blocks: the time of a product does not depend on
the values. Generating a token reads all weights once. So the speed is compared with the rate at which this machine
reads the same bytes right before and after (an OR over the mapped file by NumPy, one thread for each). Printed are
medians of the ratios of each round. --at-once computes several tokens in a step. They share the reading of weights.
Here they belong to one sequence, and only the last has logits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import ggml_backend as gb
from examples.llama.model import WINDOW, Llama, Span, Window, decoder, graph_of
from timing import median, once, series, timed

EMBD, HEADS, KV_HEADS, FF, VOCAB = 2048, 32, 4, 5632, 32000
USED = 64  # positions before the first token that is generated


def random_rows(shape: tuple[int, int], dtype: gb.dtypes.DType, seed: int) -> Iterator[np.ndarray]:
    """Blocks of float32 rows with the spread that trained weights have, made in pieces; a few hundred different rows,
    repeated."""
    rng = np.random.default_rng(seed)
    piece = rng.standard_normal((256, shape[1]), dtype=np.float32) / np.float32(shape[1] ** 0.5)
    for start in range(0, shape[0], 256):
        yield piece[: min(256, shape[0] - start)]


def write_model(path: Path, dtype: gb.dtypes.DType, layers: int) -> None:
    kv = EMBD // HEADS * KV_HEADS
    matrices = {"token_embd.weight": (VOCAB, EMBD), "output.weight": (VOCAB, EMBD)}
    for i in range(layers):
        parts = {"attn_q": (EMBD, EMBD), "attn_k": (kv, EMBD), "attn_v": (kv, EMBD), "attn_output": (EMBD, EMBD)}
        parts |= {"ffn_gate": (FF, EMBD), "ffn_up": (FF, EMBD), "ffn_down": (EMBD, FF)}
        matrices |= {f"blk.{i}.{name}.weight": shape for name, shape in parts.items()}
    vectors = ["output_norm.weight", *(f"blk.{i}.{n}.weight" for i in range(layers) for n in ("attn_norm", "ffn_norm"))]
    quantized: dict[tuple[int, int], np.ndarray] = {}  # one matrix of each shape

    def blocks(shape: tuple[int, int]) -> np.ndarray:
        if shape not in quantized:
            rows = next(random_rows(shape, dtype, seed=shape[1]))
            tile = (
                rows.astype(np.float16)
                if dtype == gb.float16
                else rows
                if dtype == gb.float32
                else gb.quantize(rows, dtype)
            )
            quantized[shape] = np.resize(tile, (shape[0], tile.shape[1]))
        return quantized[shape]

    path.parent.mkdir(parents=True, exist_ok=True)
    with gb.gguf.Writer(path) as out:
        out.add("general.architecture", "llama").add("llama.context_length", 2048).add("llama.block_count", layers)
        out.add("llama.embedding_length", EMBD).add("llama.feed_forward_length", FF).add(
            "llama.attention.head_count", HEADS
        )
        out.add("llama.attention.head_count_kv", KV_HEADS).add("llama.attention.layer_norm_rms_epsilon", 1e-5)
        out.add("llama.vocab_size", VOCAB).add("tokenizer.ggml.model", "no_vocab")  # what other programs ask for
        for name, shape in matrices.items():
            out.add_tensor(name, blocks(shape), dtype=dtype)
        for name in vectors:
            out.add_tensor(name, np.ones(EMBD, np.float32))


def reader(path: Path, threads: int) -> Callable[[], float]:
    """Measures bytes a second of reading the file from memory: the faster of two passes."""
    mapped = np.memmap(path, np.uint8, "r")
    data = mapped[: mapped.size // (8 * threads) * (8 * threads)].view(np.uint64).reshape(threads, -1)
    pool = ThreadPoolExecutor(threads)

    def rate() -> float:
        return float(data.nbytes) / min(once(lambda: list(pool.map(np.bitwise_or.reduce, data))) for _ in range(2))

    rate()  # fills the page cache, and maps its pages
    return rate


def at_once(model: Llama, tokens: int) -> Callable[[], None]:
    """A step of as many tokens behind the first ``USED`` positions, in a graph that is made once."""
    context = gb.Context()
    ids, positions = (context.tensor((tokens,), gb.int32, name=name) for name in ("ids", "positions"))
    span = Span(model.cache.layers(context), USED, USED + tokens)
    graph = graph_of(context, *decoder(model.weights, model.config, ids, positions, span))

    def step() -> None:
        model.scheduler.allocate(graph)  # does nothing but the first time, and after another graph
        ids.set(np.ones(tokens, np.int32))
        positions.set(np.arange(USED, USED + tokens, dtype=np.int32))
        model.scheduler.compute(graph)

    return step


def graph_costs(model: Llama, rounds: int = 10) -> dict[str, float]:
    """Seconds a node to build and plan a graph of one token, the shortest of some rounds. A window of positions does
    that once."""
    built, planned, nodes = float("inf"), float("inf"), 1
    for _ in range(rounds):
        seconds, window = timed(
            lambda: Window(model.weights, model.config, model.cache, model.scheduler, min(WINDOW, model.cache.length))
        )
        built, planned = min(built, seconds), min(planned, once(partial(model.scheduler.allocate, window.graph)))
        nodes = window.graph.n_nodes
        window.close()
    return {"nodes": nodes, "build_s_per_node": built / nodes, "plan_s_per_node": planned / nodes}


def measure(path: Path, prompt: int, new: int, several: list[int], threads: int, repeats: int) -> dict[str, Any]:
    model = Llama(path, n_threads=threads, context=max(prompt, USED) + max([new, 2, *several]))
    ids = [int(i) for i in np.random.default_rng(0).integers(0, VOCAB, prompt)]
    read = [t for n, t in model.weights.items() if n != "token_embd.weight"]  # of that one a row is read
    weights = sum(t.nbytes for t in read)
    steps = {1: partial(model.logits, [1])} | {n: at_once(model, n) for n in several if n != 1}
    prompt_rates: list[float] = []
    rounds: dict[int, list[tuple[float, float]]] = {n: [] for n in steps}  # steps, and bytes that memory gave, a second
    read_rate = reader(path, threads)
    for _ in range(repeats):
        model.reset()
        prompt_rates.append(prompt / once(partial(model.logits, ids)))
        before = read_rate()
        for n, step in steps.items():
            model.cache.used = USED
            step()
            rate, after = 1 / series(step, max(new - 1, 1)), read_rate()
            rounds[n].append((rate, (before + after) / 2))
            before = after
    return {
        "prompt_tokens_per_s": median(prompt_rates),
        "weights_bytes": weights,
        "at_once": {
            n: {
                "tokens_per_s": median([rate * n for rate, _ in found]),
                "weights_bytes_per_s": median([rate * weights for rate, _ in found]),
                "read_bytes_per_s": median([limit for _, limit in found]),
                "share_of_read_rate": median([rate * weights / limit for rate, limit in found]),
            }
            for n, found in rounds.items()
        },
        **graph_costs(model),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--types", default="f16,q8_0,q4_0,q4_k")
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--at-once", type=int, nargs="*", default=[2, 4], help="tokens of a step, beside one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path("build/bench/llama"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    results = {}
    print(
        f"{args.layers} layers, {args.threads} threads; prompt of {args.prompt} tokens, then {args.new} steps after"
        f" {USED}"
    )
    for name in args.types.split(","):
        dtype = gb.dtypes.as_dtype(name)
        path = args.dir / f"{dtype.name}-{args.layers}.gguf"
        if not path.exists():
            write_model(path, dtype, args.layers)
        r = results[name] = measure(path, args.prompt, args.new, args.at_once, args.threads, args.repeats)
        print(f"{name:>8}: prompt {r['prompt_tokens_per_s']:7.1f} tokens/s", flush=True)
        for n, found in r["at_once"].items():
            print(
                f"          generating, {n} at once: {found['tokens_per_s']:6.2f} tokens/s, weights at"
                f" {found['weights_bytes_per_s'] / 1e9:5.1f} of {found['read_bytes_per_s'] / 1e9:5.1f} GB/s read"
                f" ({found['share_of_read_rate']:.0%})"
            )
        print(
            f"          a graph of {r['nodes']} nodes: built in {r['build_s_per_node'] * 1e6:.2f} us a node, planned in"
            f" {r['plan_s_per_node'] * 1e6:.2f}"
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(
            json.dumps(
                {"benchmark": "llama", "layers": args.layers, "threads": args.threads, "results": results}, indent=1
            )
        )


if __name__ == "__main__":
    main()
