"""A Whisper model of two layers with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np

import ggml_backend as gb
from ggml_backend.models._whisper import Sizes

E, HEADS, LAYERS, VOCAB = 32, 4, 2, 51864
SIZES = Sizes(VOCAB, E, HEADS, LAYERS, LAYERS, 80, 1500, 448)
KEYS = {
    "vocab_size": VOCAB, "embedding_length": E, "attention.head_count": HEADS, "encoder.block_count": LAYERS,
    "decoder.block_count": LAYERS, "encoder.mel_count": 80, "encoder.context_length": 1500, "context_length": 448,
}  # fmt: skip
PIECES = [chr(c) for c in range(0x21, 0x7F)]


def weights(dtype=np.float32):
    """Random weights that float16 holds exactly. Norm weights are near 1."""
    rng = np.random.default_rng(0)
    return {
        name: (
            rng.standard_normal(shape) * (0.05 if len(shape) > 1 else 0.1) + ("ln" in name and name[-6:] == "weight")
        )
        .astype(np.float16)
        .astype(dtype)
        for name, shape in SIZES.shapes().items()
    }


def write_whisper(path: Any) -> None:
    """Writes the model as a GGUF file."""
    with gb.gguf.Writer(path) as writer:
        writer.add("general.architecture", "whisper").add("tokenizer.ggml.model", "gpt2")
        for key, value in KEYS.items():
            writer.add(f"whisper.{key}", value, "u32")
        writer.add("tokenizer.ggml.tokens", PIECES)
        for name, x in weights().items():
            writer.add_tensor(name, x)
