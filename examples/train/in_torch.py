"""The network of ``model.py`` in PyTorch, with the same weights. Tests and benchmarks compare both."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from .model import Config, Floats
from .text import Tokens


def logits(config: Config, w: Mapping[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    n, width = len(tokens), config.width
    x = F.embedding(tokens, w["characters"]) + w["positions"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (width,), w[name], 1e-5)

    for i in range(config.layers):
        b = f"block{i}"
        y = norm(x, f"{b}.norm1")
        q, k, v = (
            F.linear(y, w[f"{b}.{part}"]).view(n, config.context, config.heads, -1).transpose(1, 2) for part in "qkv"
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(seen.transpose(1, 2).reshape(n, config.context, width), w[f"{b}.out"])
        y = norm(x, f"{b}.norm2")
        x = x + F.linear(F.silu(F.linear(y, w[f"{b}.gate"])) * F.linear(y, w[f"{b}.up"]), w[f"{b}.down"])
    return F.linear(norm(x, "norm"), w["characters"])


class Peer:
    """Trains with PyTorch, with the hyperparameters of ``Trainer``."""

    def __init__(self, config: Config, values: Mapping[str, Floats]) -> None:
        self.config = config
        self.weights = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=1.0, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)

    def step(self, inputs: Tokens, targets: Tokens, rate: float) -> float:
        """One step. Returns its loss."""
        self.optimizer.param_groups[0]["lr"] = rate
        found = logits(self.config, self.weights, torch.from_numpy(inputs).long())
        loss = F.cross_entropy(found.flatten(0, 1), torch.from_numpy(targets).long().flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        self.optimizer.step()
        return float(loss.detach())
