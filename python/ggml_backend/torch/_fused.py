"""Functions of PyTorch for nodes that fusions make. They run where a rule refuses such a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["FUSED", "operator_of"]

_GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "swiglu": F.silu,
    "geglu": lambda x: F.gelu(x, approximate="tanh"),
    "geglu_erf": F.gelu,
}


def _glu(self: torch.Tensor, other: torch.Tensor | None = None, op: str = "swiglu", swapped: bool = False) -> Any:
    gate, up = self.chunk(2, -1) if other is None else (self, other)
    if swapped:
        gate, up = up, gate
    return _GATES[op](gate) * up


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    softcap: float = 1.0,
    enable_gqa: bool = False,
) -> Any:
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = softcap * torch.tanh(query @ key.mT * (scale / softcap))
    return F.softmax(scores if attn_mask is None else scores + attn_mask, -1) @ value


FUSED: dict[str, Callable[..., Any]] = {"ggml_backend.glu": _glu, "ggml_backend.attention": _attention}
"""The operators that ATen does not have."""


def operator_of(name: str) -> Any:
    """The operator of ATen with the name of a node."""
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")
