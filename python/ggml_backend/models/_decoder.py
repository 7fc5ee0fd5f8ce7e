"""The network of decoders: shared blocks that follow :mod:`ggml_backend.models.architectures`.

Shapes are in NumPy order: ``T`` tokens, ``N`` cells of the cache, ``E`` the width of embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .. import ops
from ..dtypes import DType, float16, int32
from ..tensor.context import Context
from ..tensor.tensor import Tensor
from ._sizes import Rope, Sizes
from .architectures import Decoder

__all__ = ["Inputs", "Observed", "Precision", "decode"]

Precision = Literal["default", "f16", "f32"]
"""The ``prec`` of :func:`ggml_backend.ops.mul_mat` in all products."""

Layer = tuple[Tensor, Tensor]
"""Keys (N, kv_heads * head_k) and values (N, kv_heads * head_v) of one layer."""


@dataclass(frozen=True)
class Inputs:
    """What changes from step to step.

    ids, positions: int32 (T,)
    rows: int32 (T,), the cells of the cache that the tokens write
    mask, local_mask: float16 (T, n), 0 or -inf for each of the first n cells. ``local_mask`` is for layers with a
        window, ``mask`` for the others. None: no layer needs it.
    out: int32, the tokens whose logits are computed
    """

    ids: Tensor
    positions: Tensor
    rows: Tensor
    mask: Tensor | None
    local_mask: Tensor | None
    out: Tensor

    @classmethod
    def make(cls, context: Context, a: Decoder, s: Sizes, n_tokens: int, n_cells: int, n_out: int) -> Inputs:
        """Input tensors of a graph for ``n_tokens`` tokens, which see the first ``n_cells`` cells of the cache."""

        def make_input(name: str, dtype: DType, *shape: int) -> Tensor:
            x = context.tensor(shape, dtype, name=name)
            x.set_input()
            return x

        windowed = {s.window > 0 and a.windowed(i) for i in range(s.layers)}
        return cls(
            make_input("ids", int32, n_tokens),
            make_input("positions", int32, n_tokens),
            make_input("rows", int32, n_tokens),
            make_input("mask", float16, n_tokens, n_cells) if False in windowed else None,
            make_input("local_mask", float16, n_tokens, n_cells) if True in windowed else None,
            make_input("out", int32, n_out),
        )

    @property
    def tensors(self) -> list[Tensor]:
        """ids, positions, rows, out, then the masks."""
        masks = [m for m in (self.mask, self.local_mask) if m is not None]
        return [self.ids, self.positions, self.rows, self.out, *masks]

    def windows(self, window: int) -> list[int]:
        """The window of each mask of ``tensors``. 0: none."""
        return [w for m, w in ((self.mask, 0), (self.local_mask, window)) if m is not None]


@dataclass(frozen=True)
class Observed:
    """The rows that one matrix multiplies.

    rows: (T, columns). A matrix for each expert: (T, 1, columns), or (T, used, columns) if each expert has its own row.
    experts: int32 (T, used), the experts that multiply the rows of each token. None: a matrix without experts.
    """

    weight: str
    rows: Tensor
    experts: Tensor | None = None


class _Network:
    """One pass. ``w``: weights by name. ``observed``: a list that gets the rows which matrices multiply, or None.

    ``order``: a list that gets the queries, keys and values of each layer. If the graph computes them one after the
    other, backends can compute them in one step.
    """

    def __init__(
        self,
        w: Mapping[str, Tensor],
        a: Decoder,
        s: Sizes,
        inputs: Inputs,
        precision: Precision,
        observed: list[Observed] | None,
        order: list[Tensor],
    ) -> None:
        self.w, self.a, self.s, self.inputs = w, a, s, inputs
        self.precision, self.observed, self.order = precision, observed, order

    def norm(self, name: str, x: Tensor) -> Tensor:
        # The name says to which layer a node without a weight belongs: ``plan --cluster`` splits the graph by layers.
        return ops.rms_norm(x, eps=self.s.eps).named(f"{name}_rms") * self.w[f"{name}.weight"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        if self.observed is not None:
            self.observed.append(Observed(f"{name}.weight", x))
        y = ops.mul_mat(self.w[f"{name}.weight"], x, prec=self.precision)
        bias = self.w.get(f"{name}.bias")
        return y if bias is None else y + bias

    def rotate(self, x: Tensor, local: bool) -> Tensor:
        """x (T, heads, head)."""
        r = self.s.rope
        if local and self.a.local_rope_base is not None:
            r = Rope(r.dims, self.a.local_rope_base)
        return ops.rope(
            x,
            self.inputs.positions,
            r.dims,
            "normal_exact" if self.a.rope == "normal" else "neox_exact",
            factors=self.w[r.factors] if r.factors else None,
            n_orig_ctx=r.n_orig_ctx,
            freq_base=r.base,
            freq_scale=r.scale,
            ext_factor=r.ext_factor,
            attn_factor=r.attn_factor,
        )

    def heads(self, name: str, x: Tensor, n_heads: int, head: int) -> Tensor:
        """x (T, n_heads * head) as (T, n_heads, head), normalized if the file has a norm of that name."""
        tokens, weight = x.shape[0], f"{name}.weight"
        if weight not in self.w:
            return x.reshape(tokens, n_heads, head)
        if self.w[weight].shape[-1] == head:
            return self.norm(name, x.reshape(tokens, n_heads, head))
        return self.norm(name, x).reshape(tokens, n_heads, head)

    def projections(self, block: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (T, heads * head size)."""
        if not self.a.fused:
            q, k, v = (self.linear(f"{block}.attn_{part}", x) for part in "qkv")
            self.order += [q, k, v]
            return q, k, v
        s = self.s
        qkv, i, j = self.linear(f"{block}.attn_qkv", x), s.heads * s.head_k, (s.heads + s.kv_heads) * s.head_k
        return ops.cont(qkv[:, :i]), ops.cont(qkv[:, i:j]), ops.cont(qkv[:, j:])

    def attention(self, i: int, x: Tensor, layer: Layer) -> Tensor:
        """Writes the keys and values of x (T, E) to the cache, then attends to the cells of the cache."""
        s, block, tokens = self.s, f"blk.{i}", x.shape[0]
        local = s.window > 0 and self.a.windowed(i)
        mask = self.inputs.local_mask if local else self.inputs.mask
        assert mask is not None
        q, k, v = self.projections(block, x)
        q = self.rotate(self.heads(f"{block}.attn_q_norm", q, s.heads, s.head_k), local)
        k = self.rotate(self.heads(f"{block}.attn_k_norm", k, s.kv_heads, s.head_k), local)
        k = k.reshape(tokens, s.kv_heads * s.head_k)
        n = mask.shape[-1]
        keys = ops.set_rows(layer[0], k, self.inputs.rows)[:n].reshape(n, s.kv_heads, s.head_k)
        values = ops.set_rows(layer[1], v, self.inputs.rows)[:n].reshape(n, s.kv_heads, s.head_v)
        mixed = ops.flash_attn_ext(
            q.transpose(1, 0, 2),
            keys.transpose(1, 0, 2),
            values.transpose(1, 0, 2),
            mask,
            scale=s.scale,
            softcap=s.softcap,
            sinks=self.w.get(f"{block}.attn_sinks.weight"),
            prec="f32" if self.precision == "f32" else "default",
        )
        return self.linear(f"{block}.attn_output", mixed.reshape(tokens, s.heads * s.head_v))

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.a.activation == "swiglu_oai":
            return ops.swiglu_oai(gate, up, alpha=1.702, limit=7.0)
        return (ops.silu(gate) if self.a.activation == "silu" else ops.gelu(gate)) * up

    def feed_forward(self, block: str, x: Tensor) -> Tensor:
        if self.s.experts:
            return self.experts(block, x)
        if self.a.fused:
            both = self.linear(f"{block}.ffn_up", x)
            gate, up = ops.cont(both[:, : self.s.ff]), ops.cont(both[:, self.s.ff :])
        else:
            gate, up = self.linear(f"{block}.ffn_gate", x), self.linear(f"{block}.ffn_up", x)
        return self.linear(f"{block}.ffn_down", self.gated(gate, up))

    def experts(self, block: str, x: Tensor) -> Tensor:
        """A mixture of experts (arXiv:1701.06538): each token uses the experts that its router prefers."""
        assert self.s.experts is not None
        tokens, embd, used = x.shape[0], x.shape[1], self.s.experts.used
        scores = self.linear(f"{block}.ffn_gate_inp", x)  # (T, experts)
        if self.a.experts != "used":
            scores = ops.soft_max(scores)
        chosen = ops.top_k(scores, used)  # (T, used)
        weights = ops.get_rows(scores.reshape(tokens, self.s.experts.count, 1), chosen).reshape(tokens, used)
        if self.a.experts == "used":
            weights = ops.soft_max(weights)
        elif self.a.experts == "normalized":
            weights = weights / ops.sum_rows(weights)

        def each(name: str, rows: Tensor) -> Tensor:  # (T, used, outputs)
            if self.observed is not None:
                self.observed.append(Observed(f"{block}.{name}.weight", rows, chosen))
            y = ops.mul_mat_experts(self.w[f"{block}.{name}.weight"], rows, chosen, prec=self.precision)
            bias = self.w.get(f"{block}.{name}.bias")
            return y if bias is None else ops.add_id(y, bias, chosen)

        rows = x.reshape(tokens, 1, embd)
        inner = self.gated(each("ffn_gate_exps", rows), each("ffn_up_exps", rows))
        mixed = each("ffn_down_exps", inner) * weights.reshape(tokens, used, 1)
        total = mixed[:, 0]
        for i in range(1, used):
            total = total + mixed[:, i]
        return total

    def block(self, i: int, x: Tensor, layer: Layer, last: bool) -> Tensor:
        name = f"blk.{i}"
        y = self.attention(i, self.norm(f"{name}.attn_norm", x), layer)
        if self.a.post_norms:
            y = self.norm(f"{name}.post_attention_norm", y)
        if last:  # the other tokens have written their keys and values, and are not needed any more
            x = ops.get_rows(x, self.inputs.out).named(f"{name}.residual_out")
            y = ops.get_rows(y, self.inputs.out)
        x = x + y
        y = self.feed_forward(name, self.norm(f"{name}.{self.a.ffn_norm}", x))
        return x + (self.norm(f"{name}.post_ffw_norm", y) if self.a.post_norms else y)

    def run(self, layers: Sequence[Layer]) -> Tensor:
        x = ops.get_rows(self.w["token_embd.weight"], self.inputs.ids)
        if self.a.scale_embedding:
            x = x * float(self.s.embd**0.5)
        for i, layer in enumerate(layers):
            x = self.block(i, x, layer, i == len(layers) - 1)
        head = "output" if "output.weight" in self.w else "token_embd"
        logits = self.linear(head, self.norm("output_norm", x))
        cap = self.s.final_softcap
        return ops.tanh(logits * (1.0 / cap)) * cap if cap else logits


def decode(
    w: Mapping[str, Tensor],
    a: Decoder,
    s: Sizes,
    inputs: Inputs,
    layers: Sequence[Layer],
    precision: Precision = "f16",
    observed: list[Observed] | None = None,
    order: list[Tensor] | None = None,
) -> Tensor:
    """Logits (len(out), vocabulary) of the tokens ``out``, after the writes into the cache ``layers``.

    observed: gets the rows that each matrix multiplies.
    order: gets tensors that the graph should compute first, in this order.
    """
    return _Network(w, a, s, inputs, precision, observed, [] if order is None else order).run(layers)
