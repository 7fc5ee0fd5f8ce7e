"""The keys of a GGUF file from ``config.json``, and the tensors that follow from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..._base.errors import FileError, UnsupportedError
from ..._base.errors.messages import kind_of
from .names import Family

__all__ = ["factors_of", "keys_of"]

_COUNTS = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length", "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window", "num_experts": "expert_count", "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
    "local_attention": "attention.sliding_window",
}  # fmt: skip
_REALS = {
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "layer_norm_eps": "attention.layer_norm_epsilon",
    "norm_eps": "attention.layer_norm_epsilon", "rope_theta": "rope.freq_base",
    "global_rope_theta": "rope.freq_base", "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}  # fmt: skip
_NO_WINDOW = ("llama", "qwen2", "qwen3", "qwen3moe", "olmoe")  # the window of their configurations is not used


def _scaling(config: Mapping[str, Any]) -> dict[str, Any]:
    """The scaling of ROPE: ``rope_scaling`` of older files, ``rope_parameters`` of newer ones."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(found, dict) and isinstance(found.get("full_attention"), dict):
        found = found["full_attention"]
    if not isinstance(found, dict):
        raise FileError("config.json: rope_scaling must be an object")
    return found


def keys_of(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys by name. FileError for a configuration without the sizes of the network."""
    a, scaling = family.architecture, _scaling(config)
    given = {**config, **{k: v for k, v in scaling.items() if k == "rope_theta"}}
    keys: dict[str, Any] = {}
    for table, number in ((_COUNTS, int), (_REALS, float)):
        for source, target in table.items():
            value = given.get(source)
            if value is None or (source == "sliding_window" and a in _NO_WINDOW):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise FileError(f"config.json: {source} must be a number, not {kind_of(value)}")
            keys[f"{a}.{target}"] = number(value)
    for source in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        if config.get(source) is None:
            raise FileError(f"config.json has no {source}")
    if f"{a}.attention.key_length" in keys:
        keys[f"{a}.attention.value_length"] = keys[f"{a}.attention.key_length"]
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind == "linear":
        keys |= {f"{a}.rope.scaling.type": "linear", f"{a}.rope.scaling.factor": float(scaling["factor"])}
    elif kind == "yarn":
        original = scaling.get("original_max_position_embeddings", config.get("max_position_embeddings", 0))
        keys |= {f"{a}.rope.scaling.type": "yarn", f"{a}.rope.scaling.factor": float(scaling["factor"]),
                 f"{a}.rope.scaling.original_context_length": int(original)}  # fmt: skip
    elif kind in ("longrope", "su"):
        keys |= _long(a, config)
    elif kind not in ("default", "llama3"):
        raise UnsupportedError(f"config.json: rope_type {kind[:60]!r} is not known")
    return keys


def _long(a: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): two lists of factors, and a factor of the attention."""
    original, most = int(config["original_max_position_embeddings"]), int(config["max_position_embeddings"])
    scale = most / original
    factor = 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(original))
    return {f"{a}.rope.scaling.type": "longrope", f"{a}.rope.scaling.original_context_length": original,
            f"{a}.rope.scaling.attn_factor": factor}  # fmt: skip


def factors_of(config: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors that divide the frequencies of ROPE: those of Llama 3, and the two lists of LongRoPE."""
    scaling = _scaling(config)
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("longrope", "su"):
        return {f"rope_factors_{n}.weight": np.array(scaling[f"{n}_factor"], np.float32) for n in ("long", "short")}
    if kind != "llama3":
        return {}
    head = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    if not 1 <= head <= 1 << 16:
        raise FileError(f"config.json: the size of a head is {head}")
    base = float(scaling.get("rope_theta", config.get("rope_theta", 10000.0)))
    lengths = 2 * np.pi * base ** (np.arange(0, head, 2) / head)
    ratio = scaling["original_max_position_embeddings"] / lengths
    low, high, factor = (float(scaling[k]) for k in ("low_freq_factor", "high_freq_factor", "factor"))
    smooth = (ratio - low) / (high - low)
    mixed = 1 / ((1 - smooth) / factor + smooth)
    found = np.where(ratio < low, factor, np.where(ratio > high, 1.0, mixed))
    return {"rope_freqs.weight": found.astype(np.float32)}
