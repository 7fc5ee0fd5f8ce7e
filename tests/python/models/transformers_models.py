"""Small networks of ``transformers`` with random weights, and GGUF files of them.

``transformers`` is the oracle: its networks were written by others. The names in a file are those of the package
``gguf``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

torch.set_num_threads(1)

VOCAB, EMBD, LAYERS, HEADS, KV_HEADS, HEAD, FF = 96, 64, 7, 4, 2, 16, 96
PIECES = [*(f"<0x{b:02X}>" for b in range(32)), *(chr(0x4E00 + i) for i in range(VOCAB - 32))]

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """A network: its configuration in ``transformers``, the keys of a file, and how tensors get their names."""

    architecture: str
    config: Callable[[], Any]
    keys: dict[str, Any] = field(default_factory=dict)
    rename: dict[str, str] = field(default_factory=dict)
    change: Callable[[str, np.ndarray[Any, Any]], Arrays] | None = None
    seed: int = 0
    """Of the weights. With a seed that makes two experts equally good for a token, rounding would choose."""


COMMON = {
    "vocab_size": VOCAB, "hidden_size": EMBD, "intermediate_size": FF, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 512, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
PARTS = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up", "self_attn.sinks": "attn_sinks.weight",
}  # fmt: skip
GEMMA = {
    **PARTS, "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


def neighbours(name: str, x: np.ndarray[Any, Any]) -> Arrays:
    """Llama's files hold queries and keys so that ROPE rotates neighbours."""
    heads = HEADS if "attn_q." in name else KV_HEADS
    if "attn_q." in name or "attn_k." in name:
        x = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    return experts(name, x)


def experts(name: str, x: np.ndarray[Any, Any]) -> Arrays:
    """Gate and up of experts are one matrix in ``transformers``."""
    block = name.partition(".mlp")[0]
    if name.endswith("mlp.experts.gate_up_proj"):
        half = x.shape[1] // 2
        return {f"{block}.ffn_gate_exps.weight": x[:, :half], f"{block}.ffn_up_exps.weight": x[:, half:]}
    if name.endswith("mlp.experts.down_proj"):
        return {f"{block}.ffn_down_exps.weight": x}
    return {name: x}


def gpt_oss(name: str, x: np.ndarray[Any, Any]) -> Arrays:
    """Gate and up alternate, and matrices are transposed."""
    block, _, part = name.partition(".mlp.experts.")
    kind = "bias" if part.endswith("bias") else "weight"
    if kind == "weight" and part:
        x = x.swapaxes(1, 2)
    if part.startswith("gate_up"):
        return {f"{block}.ffn_gate_exps.{kind}": x[:, ::2], f"{block}.ffn_up_exps.{kind}": x[:, 1::2]}
    return {f"{block}.ffn_down_exps.{kind}": x} if part else {name: x}


def one_more(name: str, x: np.ndarray[Any, Any]) -> Arrays:
    """Gemma multiplies by 1 + weight."""
    return {name: x + 1 if "norm" in name else x}


LLAMA_3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 128}  # fmt: skip
MOE = {"moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 3}
MOE_KEYS = {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 48}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}


def llama_3_factors() -> np.ndarray[Any, Any]:
    """The divisors of frequencies that Llama 3.1 defines."""
    r = LLAMA_3
    lengths = 2 * np.pi * r["rope_theta"] ** (np.arange(0, HEAD, 2) / HEAD)
    ratio = r["original_max_position_embeddings"] / lengths
    smooth = (ratio - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
    mixed = 1 / ((1 - smooth) / r["factor"] + smooth)
    return np.where(ratio < r["low_freq_factor"], r["factor"], np.where(ratio > r["high_freq_factor"], 1.0, mixed))


T = transformers
CASES: dict[str, Case] = {
    "llama": Case("llama", lambda: T.LlamaConfig(**COMMON), change=neighbours),
    "llama 3": Case("llama", lambda: T.LlamaConfig(**COMMON, rope_parameters=LLAMA_3), {"factors": llama_3_factors,
                    "rope.freq_base": 5e5}, change=neighbours),
    "llama linear": Case("llama", lambda: T.LlamaConfig(**COMMON, rope_parameters=LINEAR),
                         {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, change=neighbours),
    "mistral": Case("llama", lambda: T.MistralConfig(**COMMON, head_dim=24, sliding_window=None), {"head": 24},
                    change=neighbours),
    "mixtral": Case("llama", lambda: T.MixtralConfig(**COMMON, num_local_experts=8, num_experts_per_tok=3),
                    {"expert_count": 8, "expert_used_count": 3, "rope.freq_base": 1e6}, change=neighbours, seed=1),
    "qwen2": Case("qwen2", lambda: T.Qwen2Config(**COMMON)),
    "qwen3": Case("qwen3", lambda: T.Qwen3Config(**COMMON, head_dim=32), {"head": 32}),
    "qwen3moe": Case("qwen3moe", lambda: T.Qwen3MoeConfig(**COMMON, head_dim=32, norm_topk_prob=True, **MOE),
                     {"head": 32, **MOE_KEYS}, change=experts),
    "olmoe": Case("olmoe", lambda: T.OlmoeConfig(**COMMON, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False),
                  {"expert_count": 8, "expert_used_count": 3}, change=experts),
    "phi3": Case("phi3", lambda: T.Phi3Config(**COMMON, sliding_window=9), {"attention.sliding_window": 9}),
    "gemma2": Case("gemma2", lambda: T.Gemma2Config(**COMMON, head_dim=32, query_pre_attn_scalar=32, sliding_window=9),
                   {"head": 32, "attention.sliding_window": 9, "attn_logit_softcapping": 50.0,
                    "final_logit_softcapping": 30.0}, GEMMA, one_more),
    "gemma3": Case("gemma3", lambda: T.Gemma3TextConfig(**COMMON, head_dim=32, query_pre_attn_scalar=32,
                   sliding_window=9, rope_parameters={
                       "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                       "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
                   {"head": 32, "attention.sliding_window": 9, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
                    "rope.scaling.factor": 4.0}, GEMMA, one_more),
    "gpt-oss": Case("gpt-oss", lambda: T.GptOssConfig(**COMMON, head_dim=32, num_local_experts=8,
                    num_experts_per_tok=3, sliding_window=9, rope_parameters=YARN),
                    {"head": 32, "attention.sliding_window": 9, "expert_count": 8, "expert_used_count": 3,
                     "expert_feed_forward_length": FF, "rope.freq_base": 150000.0, "rope.scaling.type": "yarn",
                     "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128},
                    {**PARTS, "post_attention_layernorm": "post_attention_norm"}, gpt_oss),
}  # fmt: skip


BERT_LAYER = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
MODERN_LAYER = {"attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "mlp_norm": "ffn_norm",
                "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down"}  # fmt: skip
NOMIC_LAYER = {
    **PARTS, "post_attention_layernorm": "attn_output_norm", "post_mlp_layernorm": "layer_output_norm",
}  # fmt: skip
ENCODER = {"vocab_size": VOCAB, "hidden_size": EMBD, "intermediate_size": FF, "num_hidden_layers": LAYERS,
               "num_attention_heads": HEADS, "max_position_embeddings": 128, "pad_token_id": 0}  # fmt: skip
ENCODERS: dict[str, Case] = {
    "bert": Case("bert", lambda: T.BertConfig(**ENCODER), {}, BERT_LAYER),
    "nomic-bert": Case("nomic-bert", lambda: T.NomicBertConfig(**ENCODER), {"rope.freq_base": 1000.0}, NOMIC_LAYER),
    "modern-bert": Case("modern-bert", lambda: T.ModernBertConfig(
        **ENCODER, local_attention=12, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2),
        {"attention.sliding_window": 12, "rope.freq_base": 160000.0}, MODERN_LAYER),
}  # fmt: skip
TABLES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm", "final_norm": "output_norm",
}  # fmt: skip


def encoder(case: Case) -> Any:
    """A network of :data:`ENCODERS` in float64."""
    torch.manual_seed(0)
    made = transformers.AutoModel.from_config(case.config(), dtype=torch.float64, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in made.named_parameters():
            norm = "norm" in name.lower()
            p.copy_(torch.randn_like(p) * (0.1 if norm or p.ndim < 2 else 0.15) + (norm and name.endswith("weight")))
    return made


def write_encoder(case: Case, made: Any, path: Path) -> None:
    """Stores an encoder as a GGUF file in float32."""
    a = case.architecture
    w = gguf.GGUFWriter(path, a)
    w.add_context_length(128)
    w.add_embedding_length(EMBD)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FF)
    w.add_head_count(HEADS)
    w.add_layer_norm_eps(getattr(made.config, "layer_norm_eps", None) or made.config.norm_eps)
    for key, value in case.keys.items():
        (w.add_uint32 if isinstance(value, int) else w.add_float32)(f"{a}.{key}", value)
    add_tokens(w)
    for name, parameter in made.state_dict().items():
        part, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"(?:encoder\.layer|layers)\.(\d+)\.(.*)", part)
        if layer and layer[2] in case.rename:
            target = f"blk.{layer[1]}.{case.rename[layer[2]]}.{kind}"
        elif part in TABLES:
            target = f"{TABLES[part]}.{kind}"
        else:
            continue  # the head of another task
        w.add_tensor(target, np.ascontiguousarray(parameter.numpy(), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def states_of(made: Any, ids: list[int]) -> np.ndarray[Any, Any]:
    """The last hidden states (tokens, width) of an encoder, in float64."""
    with torch.no_grad():
        return made(torch.tensor([ids])).last_hidden_state[0].numpy()


def network(case: Case) -> Any:
    """The network in float64, with weights that make logits differ."""
    torch.manual_seed(case.seed)
    config = case.config()
    made = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    )
    made.eval()
    with torch.no_grad():
        for name, p in made.named_parameters():
            if "norm" in name:
                p.copy_(torch.randn_like(p) * 0.1 + (0.0 if case.architecture.startswith("gemma") else 1.0))
            else:
                p.copy_(torch.randn_like(p) * (1.0 if "embed" in name else 0.25 if p.ndim > 1 else 0.1))
    return made


def renamed(case: Case, name: str) -> str:
    """The name in a GGUF file."""
    known = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}  # fmt: skip
    if name in known:
        return known[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    parts = case.rename or PARTS
    if rest in parts:
        return f"blk.{layer}.{parts[rest]}"
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{parts[part]}.{kind}" if part in parts else f"blk.{layer}.{rest}"


def write(case: Case, made: Any, path: Path) -> None:
    """Stores a network as a GGUF file in float32."""
    a, keys = case.architecture, dict(case.keys)
    factors, head = keys.pop("factors", None), keys.pop("head", None)
    w = gguf.GGUFWriter(path, a)
    w.add_context_length(512)
    w.add_embedding_length(EMBD)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FF)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_layer_norm_rms_eps(made.config.rms_norm_eps)
    if head:
        w.add_key_length(head)
        w.add_value_length(head)
    for key, value in keys.items():
        add = w.add_string if isinstance(value, str) else w.add_uint32 if isinstance(value, int) else w.add_float32
        add(f"{a}.{key}", value)
    add_tokens(w)
    for name, parameter in made.state_dict().items():
        x = parameter.numpy()
        for target, part in (case.change or (lambda n, t: {n: t}))(renamed(case, name), x).items():
            w.add_tensor(target, np.ascontiguousarray(part, np.float32))
    if factors:
        w.add_tensor("rope_freqs.weight", factors().astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def add_tokens(w: Any) -> None:
    """A vocabulary of bytes and characters."""
    w.add_tokenizer_model("llama")
    w.add_token_list(PIECES)
    w.add_token_scores([0.0] * VOCAB)
    w.add_token_types([6] * 32 + [1] * (VOCAB - 32))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)


def logits_of(made: Any, ids: list[int]) -> np.ndarray[Any, Any]:
    """Logits (tokens, vocabulary) after each token, in float64."""
    with torch.no_grad():
        return made(torch.tensor([ids]), use_cache=False).logits[0].numpy()
