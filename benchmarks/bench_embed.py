"""Sentences per second of the embedding example, beside PyTorch if it is installed.

    python benchmarks/bench_embed.py [--threads N] [--repeats N] [--json FILE]

Both sides get the same token sequences (about 34 tokens each), the same weights and the same number of threads. Rounds
alternate. Printed are the median of the rounds, and the median of the ratios of each round. A pause before each round
lets the other side's threads fall asleep.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.embed.model import Embedder, model_dir
from timing import in_turns, median, per_call, ratio

WORDS = [
    "quick",
    "brown",
    "fox",
    "lazy",
    "dog",
    "seven",
    "wizards",
    "box",
    "measure",
    "time",
    "quiet",
    "rooms",
    "near",
    "old",
    "rivers",
]


def token_sequences(embedder: Embedder, count: int, tokens: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, tokens * 2)) for _ in range(count)]
    return [s[: tokens - 1] + s[-1:] for s in embedder.tokenize(texts)]


def torch_model(threads: int, dtype: str = "float32") -> Callable[[list[list[int]]], Any] | None:
    """The same network in PyTorch eager mode with its fused attention; None when it is not installed."""
    try:
        import torch
        import torch.nn.functional as F
        from safetensors.torch import load_file
    except ImportError:
        return None
    torch.set_num_threads(threads)
    w = load_file(str(model_dir() / "model.safetensors"))
    kind = getattr(torch, dtype)
    w = {name: x.to(kind) if x.is_floating_point() else x for name, x in w.items()}
    heads, layers, eps = 12, 6, 1e-12

    def dense(x: Any, name: str) -> Any:
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, (x.shape[-1],), w[name + ".weight"], w[name + ".bias"], eps)

    def run(sequences: list[list[int]]) -> Any:
        with torch.inference_mode():
            lengths = torch.tensor([len(s) for s in sequences])
            t = int(lengths.max())
            ids = torch.zeros((len(sequences), t), dtype=torch.long)
            for i, s in enumerate(sequences):
                ids[i, : len(s)] = torch.tensor(s)
            real = torch.arange(t) < lengths[:, None]
            mask = torch.where(real, 0.0, -torch.inf)[:, None, None, :].to(kind)
            x = (
                F.embedding(ids, w["embeddings.word_embeddings.weight"])
                + w["embeddings.position_embeddings.weight"][:t]
            )
            x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
            b, _, c = x.shape
            for i in range(layers):
                p = f"encoder.layer.{i}."
                q, k, v = (
                    dense(x, p + "attention.self." + n).view(b, t, heads, -1).transpose(1, 2)
                    for n in ("query", "key", "value")
                )
                a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, t, c)
                x = norm(x + dense(a, p + "attention.output.dense"), p + "attention.output.LayerNorm")
                x = norm(
                    x + dense(F.gelu(dense(x, p + "intermediate.dense")), p + "output.dense"), p + "output.LayerNorm"
                )
            pooled = (x * real[..., None]).sum(1) / lengths[:, None]
            return F.normalize(pooled.float()).numpy()

    return run


def sentences_per_second(run: Callable[[], Any], batch: int, seconds: float) -> float:
    return batch / per_call(run, seconds, pause=0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=34)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 32])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    embedder = Embedder(n_threads=args.threads)
    peer = torch_model(args.threads)
    results: dict[str, Any] = {"threads": args.threads, "tokens": args.tokens, "batches": {}}
    if peer is None:
        print("PyTorch is not installed: no comparison (pip install torch)")
    for batch in args.batches:
        sequences = token_sequences(embedder, batch, args.tokens)
        sides: dict[str, Callable[[], Any]] = {"ggml_backend": partial(embedder.embed_tokens, sequences)}
        if peer is not None:
            sides["torch"] = lambda s=sequences: peer(s)  # type: ignore[misc]
            difference = float(np.abs(sides["ggml_backend"]() - sides["torch"]()).max())
            assert difference < 1e-4, f"the two sides disagree by {difference}"
        rounds = in_turns(
            {name: partial(sentences_per_second, run, batch, args.seconds) for name, run in sides.items()}, args.repeats
        )
        row: dict[str, Any] = {name: median(r) for name, r in rounds.items()}
        row["rounds"] = rounds
        line = f"batch {batch:>3}: " + ", ".join(f"{name} {row[name]:.1f} sentences/s" for name in sides)
        if peer is not None:
            row["ratio"] = ratio(rounds["ggml_backend"], rounds["torch"])
            line += f", ratio {row['ratio']:.2f}"
        print(line)
        results["batches"][str(batch)] = row
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
