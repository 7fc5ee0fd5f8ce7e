"""The network: a transformer over characters with the blocks of Llama, and learned positions.

``initial`` makes the values of the weights, ``logits`` builds the network, and ``loss_of`` the loss. This module does
not depend on the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import ggml_backend as gb
from ggml_backend import ops

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Config:
    """Sizes of the network. ``context`` is the number of characters that the network sees."""

    vocabulary: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    context: int = 128

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"a width of {self.width} is no multiple of {self.heads} heads")

    @property
    def hidden(self) -> int:
        """Width of the gated layer: 8/3 of the width, as a multiple of 32."""
        return -(-8 * self.width // 3 // 32) * 32

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all weights by name."""
        c, h = self.width, self.hidden
        block = {
            "norm1": (c,), "q": (c, c), "k": (c, c), "v": (c, c), "out": (c, c),
            "norm2": (c,), "gate": (h, c), "up": (h, c), "down": (c, h),
        }  # fmt: skip
        return {
            "characters": (self.vocabulary, c),
            "positions": (self.context, c),
            **{f"block{i}.{name}": shape for i in range(self.layers) for name, shape in block.items()},
            "norm": (c,),
        }


def initial(config: Config, seed: int) -> dict[str, Floats]:
    """Values to begin with: normal numbers of deviation 0.02, ones for norms. Sums over layers are scaled down."""
    rng = np.random.default_rng(seed)
    values: dict[str, Floats] = {}
    for name, shape in config.shapes().items():
        last = name.rpartition(".")[2]
        deviation = 0.02 / np.sqrt(2 * config.layers) if last in ("out", "down") else 0.02
        values[name] = (
            np.ones(shape, np.float32)
            if last.startswith("norm")
            else (deviation * rng.standard_normal(shape)).astype(np.float32)
        )
    return values


def _attention(config: Config, w: Mapping[str, gb.Tensor], name: str, x: gb.Tensor, n: int) -> gb.Tensor:
    """Causal attention of ``n`` sequences. ``x`` has a row for each character of all sequences."""
    heads, size = config.heads, config.width // config.heads

    def split(part: str) -> gb.Tensor:
        return (x @ w[f"{name}.{part}"].T).reshape(n, config.context, heads, size)

    q, k = (split(part).transpose(0, 2, 1, 3) for part in "qk")
    v = split("v").transpose(0, 2, 3, 1).contiguous()
    scores = ops.diag_mask_inf(ops.mul_mat(k, q) * (1 / np.sqrt(size)), 0)
    y = ops.mul_mat(v, ops.soft_max(scores))
    return y.transpose(0, 2, 1, 3).contiguous().reshape(n * config.context, config.width) @ w[f"{name}.out"].T


def logits(config: Config, w: Mapping[str, gb.Tensor], tokens: gb.Tensor) -> gb.Tensor:
    """For each character of ``tokens (n, context)``, the logits of the next one: ``(n * context, vocabulary)``."""
    n = tokens.shape[0]
    rows = n * config.context
    x = ops.get_rows(w["characters"], tokens.reshape(rows)).reshape(n, config.context, config.width)
    x = (x + w["positions"]).reshape(rows, config.width)
    for i in range(config.layers):
        b = f"block{i}"
        x = x + _attention(config, w, b, ops.rms_norm(x) * w[f"{b}.norm1"], n)
        y = ops.rms_norm(x) * w[f"{b}.norm2"]
        x = x + (ops.silu(y @ w[f"{b}.gate"].T) * (y @ w[f"{b}.up"].T)) @ w[f"{b}.down"].T
    return (ops.rms_norm(x) * w["norm"]) @ w["characters"].T


def loss_of(config: Config, found: gb.Tensor, targets: gb.Tensor) -> gb.Tensor:
    """The mean cross entropy of logits, for the characters ``targets (n, context)`` that follow."""
    each = targets.context.constant(np.eye(config.vocabulary, dtype=np.float32))
    wanted = ops.get_rows(each, targets.reshape(targets.size))
    return ops.cross_entropy_loss(found, wanted, 0.0).named("loss")
