"""Names of tensors in ``transformers`` and in GGUF files, by model type, and other differences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..._base.errors import FileError, UnsupportedError
from ..gguf.elements import Values, as_float

__all__ = ["FAMILIES", "Family", "family_of", "gguf_name", "translated"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Family:
    """A model type.

    whole, parts: names outside of layers, and within a layer, without ``.weight`` and ``.bias``
    neighbours: ROPE rotates neighbours in the GGUF file, and elements half a head apart in ``transformers``
    norm_plus_1: norms multiply by 1 + weight
    optional: tensors that are left out, because they belong to another task or follow from others
    expect: values of ``config.json`` that the architecture of the GGUF file takes for granted
    """

    architecture: str
    whole: Mapping[str, str]
    parts: Mapping[str, str]
    neighbours: bool = False
    norm_plus_1: bool = False
    optional: tuple[str, ...] = (r".*rotary_emb\.inv_freq", r".*position_ids", r".*\.masked_bias")
    expect: Mapping[str, Any] = field(default_factory=dict)


_DECODER = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}  # fmt: skip
_MIXTRAL = {
    "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w3": "ffn_up_exps", "block_sparse_moe.experts.w2": "ffn_down_exps",
}  # fmt: skip
_GEMMA = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_BERT = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
_TABLES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
}  # fmt: skip
_MODERN = {
    "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down",
}  # fmt: skip
_OTHER_TASKS = (r"(cls|pooler|head|decoder|classifier)\..*", r".*position_ids")

_llama = Family("llama", _DECODER, {**_LAYER, **_MIXTRAL}, neighbours=True)
_qwen = Family("qwen2", _DECODER, _LAYER)
_gemma = Family("gemma2", _DECODER, {**_LAYER, **_GEMMA}, norm_plus_1=True)

FAMILIES: Mapping[str, Family] = {
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _llama,
    "qwen2": _qwen,
    "qwen3": replace(_qwen, architecture="qwen3"),
    "qwen3_moe": replace(_qwen, architecture="qwen3moe", expect={"norm_topk_prob": True, "mlp_only_layers": []}),
    "olmoe": replace(_qwen, architecture="olmoe", expect={"norm_topk_prob": False, "clip_qkv": None}),
    "gemma2": _gemma,
    "gemma3_text": replace(_gemma, architecture="gemma3"),
    "phi3": Family("phi3", _DECODER, {**_LAYER, "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}),
    "bert": Family("bert", _TABLES, _BERT, optional=_OTHER_TASKS, expect={"position_embedding_type": "absolute"}),
    "modernbert": Family(
        "modern-bert",
        {"embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm", "final_norm": "output_norm"},
        _MODERN,
        optional=_OTHER_TASKS,
    ),
}
"""By ``model_type`` of ``config.json``."""

_OUTER = re.compile(r"^(model|bert|language_model)\.")
_IN_LAYER = re.compile(r"^(?:encoder\.layer|layers)\.(\d+)\.(.*)$")
_EXPERT = re.compile(r"experts\.(\d+)\.")


def family_of(config: Mapping[str, Any]) -> Family:
    """The entry of a model. UnsupportedError if there is none, or if its configuration has another network."""
    kind = config.get("model_type")
    if kind is None:
        raise FileError("config.json has no model_type")
    found = FAMILIES.get(str(kind))
    if found is None:
        raise UnsupportedError(
            f"config.json: model_type {str(kind)[:60]!r} is not known; known are {', '.join(FAMILIES)}, whisper"
        )
    for key, value in found.expect.items():
        if config.get(key, value) != value:
            raise UnsupportedError(
                f"config.json: {key} is {json.dumps(config[key]):.60}; GGUF files of {found.architecture} mean"
                f" {json.dumps(value)}"
            )
    return found


def gguf_name(family: Family, name: str) -> tuple[str, int | None] | None:
    """The name in a GGUF file, and the number of the expert. None if the tensor is left out."""
    plain = _OUTER.sub("", name)
    if any(re.fullmatch(pattern, plain) for pattern in family.optional):
        return None
    expert = _EXPERT.search(plain)
    if expert is not None:
        plain = plain.replace(expert[0], "experts.", 1)
    stem, _, kind = plain.rpartition(".")
    kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
    layer = _IN_LAYER.match(stem)
    part = family.whole.get(stem) if layer is None else family.parts.get(layer[2])
    if part is None or kind not in ("weight", "bias"):
        raise UnsupportedError(
            f"tensor {name!r} has no name in GGUF files of {family.architecture}; --skip leaves it out"
        )
    target = f"{part}.{kind}" if layer is None else f"blk.{layer[1]}.{part}.{kind}"
    return target, None if expert is None else int(expert[1])


def translated(family: Family, config: Mapping[str, Any], values: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
    """All tensors under their new names. Experts of one matrix become one tensor."""
    experts: dict[str, dict[int, Values]] = {}
    for name, value in values.items():
        found = gguf_name(family, name)
        if found is None:
            continue
        target, expert = found
        if expert is not None:
            experts.setdefault(target, {})[expert] = value
            continue
        yield target, _changed(family, config, target, value)
    for target, parts in experts.items():
        yield target, _stacked(target, [parts[i] for i in sorted(parts)], sorted(parts))


def _changed(family: Family, config: Mapping[str, Any], name: str, value: Values) -> Values:
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    part = name.split(".")[2] if name.startswith("blk.") else ""
    if family.neighbours and part in heads:
        n = int(config.get(heads[part]) or config["num_attention_heads"])
        if n < 1 or value.shape[0] % (2 * n):
            raise FileError(f"config.json: {heads[part]} is {n}, and {name} has {value.shape[0]} rows, not 2 for each")
        return _made(value, lambda x: _interleaved(x, n))
    if family.norm_plus_1 and "norm" in name:
        return _made(as_float(value), lambda x: x + np.float32(1))
    if len(value.shape) == 1 or name in ("token_types.weight", "position_embd.weight"):
        return as_float(value)
    return value


def _interleaved(x: Array, heads: int) -> Array:
    """Rows i and i + half of each head become neighbours."""
    rows = x.shape[0] // heads // 2
    return np.ascontiguousarray(x.reshape(heads, 2, rows, *x.shape[1:]).swapaxes(1, 2)).reshape(x.shape)


def _made(value: Values, change: Any) -> Values:
    return replace(value, numpy=lambda: change(value.numpy()))


def _stacked(name: str, parts: list[Values], numbers: list[int]) -> Values:
    if numbers != list(range(len(numbers))):
        raise UnsupportedError(f"{name}: the experts {numbers[:8]} are not numbered from 0 on")
    if len({(p.shape, p.dtype.name) for p in parts}) > 1:
        raise UnsupportedError(f"{name}: the experts have different shapes or dtypes")
    return replace(parts[0], shape=(len(parts), *parts[0].shape), numpy=lambda: np.stack([p.numpy() for p in parts]))
