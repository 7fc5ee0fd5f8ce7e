"""An independent forward pass of BERT in NumPy with float64: the oracle of the embedding example."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
erf = np.vectorize(math.erf, otypes=[np.float64])


def layer_norm(x: Array, gain: Array, bias: Array, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * gain + bias


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sentence_vector(w: dict[str, Array], ids: list[int], heads: int, eps: float) -> Array:
    """The unit vector of one token sequence, without any padding or batching."""
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, w["embeddings.LayerNorm.weight"], w["embeddings.LayerNorm.bias"], eps)
    size = x.shape[1] // heads
    layer = 0
    while f"encoder.layer.{layer}.output.dense.weight" in w:

        def p(name: str, layer: int = layer) -> Array:
            return w[f"encoder.layer.{layer}.{name}"]

        def dense(name: str, value: Array) -> Array:
            return np.einsum("ti,oi->to", value, p(f"{name}.weight")) + p(f"{name}.bias")

        q, k, v = (dense(f"attention.self.{part}", x) for part in ("query", "key", "value"))
        mixed = np.empty_like(x)
        for h in range(heads):
            s = slice(h * size, (h + 1) * size)
            mixed[:, s] = softmax(q[:, s] @ k[:, s].T / math.sqrt(size)) @ v[:, s]
        x = layer_norm(
            x + dense("attention.output.dense", mixed),
            p("attention.output.LayerNorm.weight"),
            p("attention.output.LayerNorm.bias"),
            eps,
        )
        h1 = dense("intermediate.dense", x)
        h1 = h1 * 0.5 * (1 + erf(h1 / math.sqrt(2)))
        x = layer_norm(x + dense("output.dense", h1), p("output.LayerNorm.weight"), p("output.LayerNorm.bias"), eps)
        layer += 1
    mean = x.mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean))
