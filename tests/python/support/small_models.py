"""Small decoders with random weights as GGUF files, and their networks in NumPy and float64.

The reference follows the papers: no cache, no batches, a loop over positions and experts. It shares no code with the
package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ggml_backend as gb

VOCAB, EMBD, LAYERS, HEADS, KV_HEADS, HEAD, FF, EXPERTS, USED, WINDOW = 96, 64, 6, 4, 2, 32, 96, 8, 3, 9
PIECES = [*(f"<0x{b:02X}>" for b in range(32)), *(chr(0x4E00 + i) for i in range(VOCAB - 32))]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[{% endif %}"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Small:
    """The hyperparameters of an architecture, by their names in the reference."""

    architecture: str
    interleaved: bool = False
    experts: str = ""
    gelu: bool = False
    oai: bool = False
    fused: bool = False
    post_norms: bool = False
    embedding_scale: float = 1.0
    biases: tuple[str, ...] = ()
    qk_norm: str = ""
    sinks: bool = False
    windowed: tuple[int, ...] = ()
    softcap: float = 0.0
    final_softcap: float = 0.0
    base: float = 10000.0
    local_base: float | None = None
    factors: bool = False
    norm_2: str = "ffn_norm"
    keys: dict[str, Any] = field(default_factory=dict)


EVERY = tuple(range(LAYERS))
SMALL = {
    "llama": Small("llama", interleaved=True),
    "llama 3": Small("llama", interleaved=True, base=5e5, factors=True),
    "mixtral": Small("llama", interleaved=True, experts="normalized"),
    "qwen2": Small("qwen2", biases=("attn_q", "attn_k", "attn_v")),
    "qwen3": Small("qwen3", qk_norm="head"),
    "qwen3moe": Small("qwen3moe", qk_norm="head", experts="normalized"),
    "olmoe": Small("olmoe", qk_norm="row", experts="all"),
    "phi3": Small("phi3", fused=True, windowed=EVERY),
    "gemma2": Small("gemma2", gelu=True, post_norms=True, embedding_scale=EMBD**0.5, windowed=(0, 2, 4), softcap=50.0,
                    final_softcap=30.0),
    "gemma3": Small("gemma3", gelu=True, post_norms=True, embedding_scale=EMBD**0.5, windowed=(0, 1, 2, 3, 4),
                    qk_norm="head", base=1e6, local_base=1e4),
    "gpt-oss": Small("gpt-oss", oai=True, experts="used", sinks=True, windowed=(0, 2, 4), norm_2="post_attention_norm",
                     biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", "ffn_gate_exps",
                             "ffn_up_exps", "ffn_down_exps")),
}  # fmt: skip


def weights_of(s: Small, seed: int = 0, dtype: type = np.float32) -> dict[str, Array]:
    """Random weights by the names of a file."""
    rng = np.random.default_rng(seed)
    q, kv = HEADS * HEAD, KV_HEADS * HEAD
    parts: dict[str, tuple[int, ...]] = {"attn_output": (EMBD, q)}
    parts |= (
        {"attn_qkv": (q + 2 * kv, EMBD)}
        if s.fused
        else {"attn_q": (q, EMBD), "attn_k": (kv, EMBD), "attn_v": (kv, EMBD)}
    )
    if s.experts:
        up = (EXPERTS, FF, EMBD)
        parts |= {
            "ffn_gate_inp": (EXPERTS, EMBD),
            "ffn_gate_exps": up,
            "ffn_up_exps": up,
            "ffn_down_exps": (EXPERTS, EMBD, FF),
        }
    else:
        parts |= {"ffn_up": (2 * FF, EMBD)} if s.fused else {"ffn_gate": (FF, EMBD), "ffn_up": (FF, EMBD)}
        parts["ffn_down"] = (EMBD, FF)
    norms = {"attn_norm": EMBD, s.norm_2: EMBD}
    if s.post_norms:
        norms |= {"post_attention_norm": EMBD, "post_ffw_norm": EMBD}
    if s.qk_norm:
        norms |= {"attn_q_norm": HEAD if s.qk_norm == "head" else q, "attn_k_norm": HEAD if s.qk_norm == "head" else kv}
    w: dict[str, Array] = {"token_embd.weight": rng.standard_normal((VOCAB, EMBD))}
    w["output.weight"] = rng.standard_normal((VOCAB, EMBD)) * 0.25
    w["output_norm.weight"] = 1 + 0.1 * rng.standard_normal(EMBD)
    for i in range(LAYERS):
        for name, shape in parts.items():
            w[f"blk.{i}.{name}.weight"] = rng.standard_normal(shape) * 0.2
            if name in s.biases:
                w[f"blk.{i}.{name}.bias"] = rng.standard_normal(shape[:-1]) * 0.1
        for name, n in norms.items():
            w[f"blk.{i}.{name}.weight"] = 1 + 0.1 * rng.standard_normal(n)
        if s.sinks:
            w[f"blk.{i}.attn_sinks.weight"] = rng.standard_normal(HEADS)
    if s.factors:
        w["rope_freqs.weight"] = np.linspace(1, 8, HEAD // 2)
    return {name: x.astype(dtype) for name, x in w.items()}


def keys_of(s: Small) -> dict[str, Any]:
    """Metadata of the file."""
    a = s.architecture
    found: dict[str, Any] = {
        "general.architecture": a, "general.name": "small", f"{a}.context_length": 512, f"{a}.embedding_length": EMBD,
        f"{a}.block_count": LAYERS, f"{a}.feed_forward_length": FF, f"{a}.attention.head_count": HEADS,
        f"{a}.attention.head_count_kv": KV_HEADS, f"{a}.attention.key_length": HEAD,
        f"{a}.attention.value_length": HEAD, f"{a}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{a}.rope.freq_base": s.base,
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": PIECES,
        "tokenizer.ggml.scores": np.zeros(VOCAB, np.float32),
        "tokenizer.ggml.token_type": np.array([6] * 32 + [1] * (VOCAB - 32), np.int32),
        "tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": TEMPLATE,
    }  # fmt: skip
    if s.experts:
        found |= {f"{a}.expert_count": EXPERTS, f"{a}.expert_used_count": USED, f"{a}.expert_feed_forward_length": FF}
    if s.windowed:
        found[f"{a}.attention.sliding_window"] = WINDOW
    if s.softcap:
        found |= {f"{a}.attn_logit_softcapping": s.softcap, f"{a}.final_logit_softcapping": s.final_softcap}
    return {**found, **s.keys}


def write(path: Any, s: Small, seed: int = 0, dtype: str = "f32", **changes: Any) -> None:
    """A file of this architecture. dtype: of its matrices. changes: metadata to replace, with ``__`` for dots in keys;
    None leaves a key out."""
    with gb.gguf.Writer(path) as writer:
        keys = {**keys_of(s), **{k.replace("__", "."): v for k, v in changes.items()}}
        for key, value in keys.items():
            if value is not None:
                writer.add(key, value)
        for name, x in weights_of(s, seed).items():
            writer.add_tensor(name, x, dtype=gb.dtypes.as_dtype(dtype) if x.ndim > 1 else gb.float32)


def rms(x: Array, w: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rotated(s: Small, x: Array, base: float, factors: Array | None) -> Array:
    """x (T, heads, HEAD) at positions 0, 1, ..."""
    half, n = HEAD // 2, x.shape[0]
    angle = np.arange(n)[:, None] * base ** (-2 * np.arange(half) / HEAD) / (1 if factors is None else factors)
    c, d = np.cos(angle)[:, None], np.sin(angle)[:, None]
    if s.interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * c - b * d, a * d + b * c], -1).reshape(x.shape)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * d, a * d + b * c], -1)


class Reference:
    """The network in float64."""

    def __init__(self, s: Small, seed: int = 0) -> None:
        self.s, self.w = s, {k: v.astype(np.float64) for k, v in weights_of(s, seed).items()}

    def linear(self, name: str, x: Array) -> Array:
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def act(self, gate: Array, up: Array) -> Array:
        if self.s.oai:
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return (up + 1) * gate / (1 + np.exp(-1.702 * gate))
        if self.s.gelu:
            return 0.5 * gate * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3))) * up
        return gate / (1 + np.exp(-gate)) * up

    def attention(self, i: int, x: Array) -> Array:
        s, b, n = self.s, f"blk.{i}", len(x)
        q_width, kv = HEADS * HEAD, KV_HEADS * HEAD
        if s.fused:
            q, k, v = np.split(self.linear(f"{b}.attn_qkv", x), [q_width, q_width + kv], axis=1)
        else:
            q, k, v = (self.linear(f"{b}.attn_{p}", x) for p in "qkv")
        if s.qk_norm == "row":
            q, k = rms(q, self.w[f"{b}.attn_q_norm.weight"]), rms(k, self.w[f"{b}.attn_k_norm.weight"])
        q, k, v = (t.reshape(n, -1, HEAD) for t in (q, k, v))
        if s.qk_norm == "head":
            q, k = rms(q, self.w[f"{b}.attn_q_norm.weight"]), rms(k, self.w[f"{b}.attn_k_norm.weight"])
        local = i in s.windowed
        base = s.local_base if local and s.local_base else s.base
        factors = self.w.get("rope_freqs.weight")
        q, k = rotated(s, q, base, factors), rotated(s, k, base, factors)
        out = np.empty((n, HEADS, HEAD))
        for t in range(n):
            first = max(0, t - WINDOW + 1) if local else 0
            for h in range(HEADS):
                group = h // (HEADS // KV_HEADS)
                scores = k[first : t + 1, group] @ q[t, h] / HEAD**0.5
                if s.softcap:
                    scores = s.softcap * np.tanh(scores / s.softcap)
                if s.sinks:
                    scores = np.append(scores, self.w[f"{b}.attn_sinks.weight"][h])
                out[t, h] = softmax(scores)[: t + 1 - first] @ v[first : t + 1, group]
        return self.linear(f"{b}.attn_output", out.reshape(n, -1))

    def experts(self, b: str, x: Array) -> Array:
        scores = self.linear(f"{b}.ffn_gate_inp", x)
        out = np.zeros_like(x)
        for t, row in enumerate(scores):
            p = row if self.s.experts == "used" else softmax(row)
            chosen = np.argsort(-p)[:USED]
            share = softmax(p[chosen]) if self.s.experts == "used" else p[chosen]
            if self.s.experts == "normalized":
                share = share / share.sum()
            for e, weight in zip(chosen, share, strict=True):

                def one(name: str, y: Array, e: int = e) -> Array:
                    z = self.w[f"{b}.{name}.weight"][e] @ y
                    return z + self.w[f"{b}.{name}.bias"][e] if f"{b}.{name}.bias" in self.w else z

                inner = self.act(one("ffn_gate_exps", x[t]), one("ffn_up_exps", x[t]))
                out[t] += weight * one("ffn_down_exps", inner)
        return out

    def feed_forward(self, b: str, x: Array) -> Array:
        if self.s.experts:
            return self.experts(b, x)
        if self.s.fused:
            gate, up = np.split(self.linear(f"{b}.ffn_up", x), 2, axis=1)
        else:
            gate, up = self.linear(f"{b}.ffn_gate", x), self.linear(f"{b}.ffn_up", x)
        return self.linear(f"{b}.ffn_down", self.act(gate, up))

    def logits(self, ids: list[int]) -> Array:
        """The logits of the token after the last one."""
        s, w = self.s, self.w
        x = w["token_embd.weight"][ids] * s.embedding_scale
        for i in range(LAYERS):
            b = f"blk.{i}"
            y = self.attention(i, rms(x, w[f"{b}.attn_norm.weight"]))
            x = x + (rms(y, w[f"{b}.post_attention_norm.weight"]) if s.post_norms else y)
            y = self.feed_forward(b, rms(x, w[f"{b}.{s.norm_2}.weight"]))
            x = x + (rms(y, w[f"{b}.post_ffw_norm.weight"]) if s.post_norms else y)
        found = rms(x[-1], w["output_norm.weight"]) @ w["output.weight"].T
        return s.final_softcap * np.tanh(found / s.final_softcap) if s.final_softcap else found


WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "a",
    "cat",
    "sits",
    "on",
    "mat",
    "the",
    ".",
    "##s",
    "kitten",
    "lies",
    "rug",
]


def encoder_weights(seed: int = 0) -> dict[str, Array]:
    """Random weights of a BERT of two layers."""
    rng = np.random.default_rng(seed)
    e, ff = 32, 64
    w: dict[str, Array] = {
        "token_embd.weight": rng.standard_normal((len(WORDS), e)), "position_embd.weight": rng.standard_normal((64, e)),
        "token_types.weight": rng.standard_normal((2, e)),
    }  # fmt: skip
    shapes = {
        "attn_q": (e, e),
        "attn_k": (e, e),
        "attn_v": (e, e),
        "attn_output": (e, e),
        "ffn_up": (ff, e),
        "ffn_down": (e, ff),
    }
    norms = ["token_embd_norm"]
    for i in range(2):
        for name, shape in shapes.items():
            w[f"blk.{i}.{name}.weight"] = rng.standard_normal(shape) * 0.3
            w[f"blk.{i}.{name}.bias"] = rng.standard_normal(shape[0]) * 0.1
        norms += [f"blk.{i}.attn_output_norm", f"blk.{i}.layer_output_norm"]
    for name in norms:
        w[f"{name}.weight"], w[f"{name}.bias"] = 1 + 0.1 * rng.standard_normal(e), 0.1 * rng.standard_normal(e)
    return {name: x.astype(np.float32) for name, x in w.items()}


def write_encoder(path: Any, seed: int = 0, **changes: Any) -> None:
    """A BERT with a WordPiece vocabulary."""
    keys: dict[str, Any] = {
        "general.architecture": "bert", "general.name": "small encoder", "bert.context_length": 64,
        "bert.embedding_length": 32, "bert.block_count": 2, "bert.feed_forward_length": 64,
        "bert.attention.head_count": 4, "bert.attention.layer_norm_epsilon": 1e-12, "bert.pooling_type": 1,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [w if w[0] == "[" else w[2:] if w[:2] == "##" else "\u2581" + w for w in WORDS],
        "tokenizer.ggml.token_type": np.array([3] * 4 + [1] * (len(WORDS) - 4), np.int32),
        "tokenizer.ggml.unknown_token_id": 1, "tokenizer.ggml.cls_token_id": 2, "tokenizer.ggml.seperator_token_id": 3,
    }  # fmt: skip
    with gb.gguf.Writer(path) as writer:
        for key, value in {**keys, **{k.replace("__", "."): v for k, v in changes.items()}}.items():
            if value is not None:
                writer.add(key, value)
        for name, x in encoder_weights(seed).items():
            writer.add_tensor(name, x)


def encoder_states(ids: list[int], seed: int = 0) -> Array:
    """The last states (tokens, width) of that BERT, in float64."""
    from math import erf

    w = {k: v.astype(np.float64) for k, v in encoder_weights(seed).items()}

    def norm(name: str, x: Array) -> Array:
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(name: str, x: Array) -> Array:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["token_embd.weight"][ids] + w["position_embd.weight"][: len(ids)] + w["token_types.weight"][0]
    x = norm("token_embd_norm", x)
    for i in range(2):
        b = f"blk.{i}"
        q, k, v = (linear(f"{b}.attn_{p}", x).reshape(len(ids), 4, 8).swapaxes(0, 1) for p in "qkv")
        mixed = softmax(q @ k.swapaxes(1, 2) / 8**0.5) @ v
        x = norm(f"{b}.attn_output_norm", x + linear(f"{b}.attn_output", mixed.swapaxes(0, 1).reshape(len(ids), 32)))
        up = linear(f"{b}.ffn_up", x)
        gelu = 0.5 * up * (1 + np.vectorize(erf)(up / 2**0.5))
        x = norm(f"{b}.layer_output_norm", x + linear(f"{b}.ffn_down", gelu))
    return x
