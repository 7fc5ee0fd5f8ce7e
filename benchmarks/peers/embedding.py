"""The embedding example: all-MiniLM-L6-v2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .sides import Run, Scope, Sides, Work

WORDS = ["quick", "brown", "fox", "lazy", "dog", "measure", "time", "quiet", "rooms", "near", "old", "rivers"]


def token_sequences(embedder: Any, count: int) -> list[list[int]]:
    """Token numbers of random texts, 34 of each."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 68)) for _ in range(count)]
    return [s[:33] + s[-1:] for s in embedder.tokenize(texts)]


def torch_model(folder: Path, threads: int, dtype: str = "float32") -> Callable[[list[list[int]]], Any] | None:
    """The same network in PyTorch eager mode with its fused attention; None when it is not installed."""
    try:
        import torch
        import torch.nn.functional as F
        from safetensors.torch import load_file
    except ImportError:
        return None
    torch.set_num_threads(threads)
    w = load_file(str(folder / "model.safetensors"))
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


def onnx_bert(s: Sides, config: Any, folder: Path) -> Callable[[list[list[int]]], Run]:
    """The embedding model as ONNX Runtime runs it fastest: its fused attention, skip and bias operators, made by
    hand."""
    from safetensors.numpy import load_file

    file = load_file(str(folder / "model.safetensors"))
    w: dict[str, np.ndarray] = {n: file[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position")}
    w["type"] = file["embeddings.token_type_embeddings.weight"][0]

    def norm(name: str) -> list[str]:
        for part in ("weight", "bias"):
            w[f"{name}.{part}"] = file[f"{name}.{part}"]
        return [f"{name}.weight", f"{name}.bias"]

    def matrix(name: str) -> str:
        w[f"{name}.w"], w[f"{name}.b"] = np.ascontiguousarray(file[f"{name}.weight"].T), file[f"{name}.bias"]
        return f"{name}.w"

    n, eps = s.node, config.eps
    nodes = [
        n("Gather", ["word", "ids"], to_name="e0"), n("Gather", ["position", "places"], to_name="e1"),
        n("Add", ["e0", "e1"], to_name="e2"),
        n("Add", ["e2", "type"], to_name="e3"),
        n("LayerNormalization", ["e3", *norm("embeddings.LayerNorm")], epsilon=eps, to_name="x"),
    ]  # fmt: skip
    x = "x"
    for i in range(config.layers):
        p = f"encoder.layer.{i}."
        for part in ("weight", "bias"):
            joined = np.concatenate([file[f"{p}attention.self.{q}.{part}"] for q in ("query", "key", "value")])
            w[f"{p}qkv.{part}"] = np.ascontiguousarray(joined.T)
        attn, inner, out = f"{p}attention.output.dense", f"{p}intermediate.dense", f"{p}output.dense"
        nodes += [
            n("Attention", [x, f"{p}qkv.weight", f"{p}qkv.bias", "mask"], num_heads=config.heads, to_name=f"{p}a"),
            n("MatMul", [f"{p}a", matrix(attn)], to_name=f"{p}b"),
            n(
                "SkipLayerNormalization",
                [f"{p}b", x, *norm(f"{p}attention.output.LayerNorm"), f"{attn}.b"],
                epsilon=eps,
                to_name=f"{p}c",
            ),
            n("MatMul", [f"{p}c", matrix(inner)], to_name=f"{p}d"),
            n("BiasGelu", [f"{p}d", f"{inner}.b"], to_name=f"{p}e"),
            n("MatMul", [f"{p}e", matrix(out)], to_name=f"{p}f"),
            n(
                "SkipLayerNormalization",
                [f"{p}f", f"{p}c", *norm(f"{p}output.LayerNorm"), f"{out}.b"],
                epsilon=eps,
                to_name=f"{p}g",
            ),
        ]
        x = f"{p}g"
    nodes += [n("MatMul", ["pool", x], to_name="mean"), n("LpNormalization", ["mean"], axis=-1, p=2)]

    def prepare(sequences: list[list[int]]) -> Run:
        lengths = np.array([len(t) for t in sequences])
        tokens = int(lengths.max())
        real = np.arange(tokens) < lengths[:, None]
        ids = np.zeros(real.shape, np.int32)
        ids[real] = np.concatenate(sequences)
        inputs = {
            "ids": ids,
            "places": np.broadcast_to(np.arange(tokens, dtype=np.int32), ids.shape).copy(),
            "mask": real.astype(np.int32),
        }
        inputs["pool"] = (real / lengths[:, None]).astype(np.float32)[:, None]
        run = s.onnx(nodes, inputs, w)
        return lambda: run()[:, 0]

    return prepare


def model(s: Sides, scope: Scope) -> Iterator[Work]:
    try:
        from examples.embed.model import Embedder, model_dir

        folder = model_dir()
        embedder = Embedder(n_threads=s.threads)
    except (ImportError, SystemExit) as error:
        print(f"embedding model: left out, {error}")
        return
    half = Embedder(n_threads=s.threads, dtype="bf16")
    for batch in (2,) if scope.quick else (1, 8, 32, 128):
        sequences = token_sequences(embedder, batch)

        def torch_run(q: list[list[int]] = sequences, dtype: str = "float32") -> Run:
            peer = torch_model(folder, s.threads, dtype)
            if peer is None:
                raise RuntimeError("needs torch and safetensors")
            return lambda: peer(q)

        name = f"34 tokens, batch {batch}"
        peers: dict[str, Callable[[], Run]] = {
            "onnxruntime": lambda q=sequences: onnx_bert(s, embedder.config, folder)(q),
            "torch": torch_run,
        }
        ours = partial(embedder.embed_tokens, sequences)
        yield Work(f"all-MiniLM-L6-v2 f32, {name}", "sentences/s", batch, ours, peers, 1e-4)
        ours, peers = partial(half.embed_tokens, sequences), {"torch": partial(torch_run, dtype="bfloat16")}
        yield Work(f"all-MiniLM-L6-v2 bf16, {name}", "sentences/s", batch, ours, peers, 0.02)
