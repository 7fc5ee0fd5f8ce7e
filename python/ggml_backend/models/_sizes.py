"""Sizes and constants of a decoder, from the keys of its file. The shapes of all tensors are checked against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

from .._base.errors import FileError, UnsupportedError
from ._keys import Keys
from .architectures import Decoder

__all__ = ["Rope", "Shaped", "Sizes", "matrix_rows", "one_for_all"]


class Shaped(Protocol):
    """A tensor of a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Rope:
    """Constants of the rotary embedding. ``factors``: name of the tensor that divides the frequencies, or None."""

    dims: int
    base: float
    scale: float = 1.0
    n_orig_ctx: int = 0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    factors: str | None = None

    @classmethod
    def of(cls, keys: Keys, head: int, tensors: Mapping[str, Shaped], n_ctx: int | None) -> Rope:
        """From ``*.rope.*``. n_ctx: the positions that will be used, which choose one of Phi's tensors of factors."""
        dims = keys.count(".rope.dimension_count", head)
        if dims > head or dims % 2:
            raise FileError(
                f"{keys.name('.rope.dimension_count')} is {dims}: it must be even and at most the head size, {head}"
            )
        kind = keys.word(".rope.scaling.type", "none")
        base = keys.real(".rope.freq_base", 10000.0, least=1e-6)
        trained = keys.count(".context_length", most=1 << 31)
        original = keys.count(".rope.scaling.original_context_length", trained, most=1 << 31)
        attn_factor = keys.real(".rope.scaling.attn_factor", 1.0, least=1e-6)
        factors = "rope_freqs.weight" if "rope_freqs.weight" in tensors else None
        if "rope_factors_long.weight" in tensors:
            long = (n_ctx or trained) > original
            factors = "rope_factors_long.weight" if long else "rope_factors_short.weight"
            return cls(dims, base, attn_factor=attn_factor, factors=factors)
        if kind in ("none", "longrope"):
            return cls(dims, base, factors=factors)
        factor = keys.real(".rope.scaling.factor", 1.0, least=1e-6)
        if kind == "linear":
            return cls(dims, base, 1.0 / factor, factors=factors)
        if kind == "yarn":
            return cls(dims, base, 1.0 / factor, original, 1.0, attn_factor, factors)
        raise UnsupportedError(
            f"{keys.name('.rope.scaling.type')} is {kind[:60]!r}; known are none, linear, yarn, longrope"
        )


@dataclass(frozen=True)
class Experts:
    """``used`` of ``count`` experts for each token, each with ``ff`` rows."""

    count: int
    used: int
    ff: int


@dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder.

    The score of a query and a key is ``softcap * tanh(scale * q k / softcap)``, or ``scale * q k`` if softcap is 0.
    """

    vocab: int
    embd: int
    layers: int
    heads: int
    kv_heads: int
    head_k: int
    head_v: int
    ff: int
    context: int
    eps: float
    rope: Rope
    scale: float
    softcap: float
    final_softcap: float
    window: int
    experts: Experts | None

    @classmethod
    def of(
        cls, name: str, a: Decoder, metadata: Mapping[str, object], tensors: Mapping[str, Shaped], n_ctx: int | None
    ) -> Sizes:
        """The sizes from the keys of an untrusted file. FileError if they do not fit the network."""
        keys = Keys(metadata, name)
        embd, layers = keys.count(".embedding_length"), keys.count(".block_count", most=1 << 16)
        heads = one_for_all(keys, ".attention.head_count", layers)
        kv_heads = one_for_all(keys, ".attention.head_count_kv", layers, heads)
        head_k = keys.count(".attention.key_length", max(1, embd // heads))
        if heads % kv_heads:
            raise FileError(
                f"{keys.name('.attention.head_count')} {heads} is no multiple of"
                f" {keys.name('.attention.head_count_kv')} {kv_heads}"
            )
        n_experts = keys.count(".expert_count", 0, least=0)
        experts = None
        ff = one_for_all(keys, ".feed_forward_length", layers, 0 if n_experts else None)
        if n_experts:
            used = keys.count(".expert_used_count", most=n_experts)
            experts = Experts(n_experts, used, keys.count(".expert_feed_forward_length", ff or None))
        sizes = cls(
            vocab=matrix_rows(tensors, "token_embd.weight"),
            embd=embd,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_k=head_k,
            head_v=keys.count(".attention.value_length", head_k),
            ff=ff,
            context=keys.count(".context_length", most=1 << 31),
            eps=keys.real(".attention.layer_norm_rms_epsilon"),
            rope=Rope.of(keys, head_k, tensors, n_ctx),
            scale=1.0 / sqrt(embd / heads if layers in a.wide_layers else head_k),
            softcap=keys.real(".attn_logit_softcapping", 0.0),
            final_softcap=keys.real(".final_logit_softcapping", 0.0),
            window=keys.count(".attention.sliding_window", 0, least=0, most=1 << 31),
            experts=experts,
        )
        sizes.check(a, tensors)
        return sizes

    def check(self, a: Decoder, tensors: Mapping[str, Shaped]) -> None:
        """FileError unless the file has all tensors in the right shapes."""
        for name, shape in self.shapes(a, tensors):
            found = tensors.get(name)
            if found is None:
                raise FileError(f"the file has no tensor {name}")
            if tuple(found.shape) != shape:
                raise FileError(f"{name} has shape {tuple(found.shape)}; the keys of the file say {shape}")

    def shapes(self, a: Decoder, tensors: Mapping[str, Shaped]) -> Iterator[tuple[str, tuple[int, ...]]]:
        """All tensors that the network uses."""
        yield "token_embd.weight", (self.vocab, self.embd)
        yield "output_norm.weight", (self.embd,)
        if "output.weight" in tensors:
            yield "output.weight", (self.vocab, self.embd)
        if self.rope.factors:
            yield self.rope.factors, (self.rope.dims // 2,)
        parts = {**self._attention(a), **self._feed_forward(a)}
        norms = ["attn_norm", a.ffn_norm, *(("post_attention_norm", "post_ffw_norm") if a.post_norms else ())]
        for i in range(self.layers):
            for part in norms:
                yield f"blk.{i}.{part}.weight", (self.embd,)
            for part, shape in parts.items():
                yield f"blk.{i}.{part}.weight", shape
                bias = f"blk.{i}.{part}.bias"
                if bias in tensors:
                    yield bias, shape[:-1]
            yield from self._optional(f"blk.{i}", tensors)

    def _attention(self, a: Decoder) -> dict[str, tuple[int, ...]]:
        q, k, v = self.heads * self.head_k, self.kv_heads * self.head_k, self.kv_heads * self.head_v
        output = {"attn_output": (self.embd, self.heads * self.head_v)}
        if a.fused:
            return {"attn_qkv": (q + k + v, self.embd), **output}
        return {"attn_q": (q, self.embd), "attn_k": (k, self.embd), "attn_v": (v, self.embd), **output}

    def _feed_forward(self, a: Decoder) -> dict[str, tuple[int, ...]]:
        if self.experts:
            n, ff = self.experts.count, self.experts.ff
            up = (n, ff, self.embd)
            inner = {"ffn_gate_exps": up, "ffn_up_exps": up, "ffn_down_exps": (n, self.embd, ff)}
            return {"ffn_gate_inp": (n, self.embd), **inner}
        if a.fused:
            return {"ffn_up": (2 * self.ff, self.embd), "ffn_down": (self.embd, self.ff)}
        return {"ffn_gate": (self.ff, self.embd), "ffn_up": (self.ff, self.embd), "ffn_down": (self.embd, self.ff)}

    def _optional(self, block: str, tensors: Mapping[str, Shaped]) -> Iterator[tuple[str, tuple[int, ...]]]:
        if f"{block}.attn_sinks.weight" in tensors:
            yield f"{block}.attn_sinks.weight", (self.heads,)
        for part, heads in (("attn_q_norm", self.heads), ("attn_k_norm", self.kv_heads)):
            found = tensors.get(f"{block}.{part}.weight")
            if found is not None:  # for each head, or for all heads together
                whole = tuple(found.shape) == (heads * self.head_k,)
                yield f"{block}.{part}.weight", (heads * self.head_k if whole else self.head_k,)


def matrix_rows(tensors: Mapping[str, Shaped], name: str) -> int:
    """The number of rows of a matrix. FileError if there is none of that name."""
    found = tensors.get(name)
    if found is None or len(found.shape) != 2:
        raise FileError(f"the file has no matrix {name}")
    return found.shape[0]


def one_for_all(keys: Keys, key: str, layers: int, default: int | None = None) -> int:
    """A number that is the same in all layers."""
    if default == 0 and key not in keys:
        return 0
    found = set(keys.counts(key, layers, default))
    if len(found) > 1:
        raise UnsupportedError(
            f"{keys.name(key)} differs from layer to layer; the models of this package need one value"
        )
    return found.pop()
