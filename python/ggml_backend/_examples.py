"""Graphs in the shapes of well-known models, small, for looking at their plans: ``python -m ggml_backend plan EXAMPLE``.

Nothing here is ever computed with real weights: weights are inputs of the graph, which keep their memory beside the arena.
"""

from __future__ import annotations

from collections.abc import Callable

from . import ops
from .dtypes import int32
from .graph import Context, Graph
from .tensor import Tensor

__all__ = ["NAMES", "build"]

TOKENS, EMBD, HEADS, FF, LAYERS = 128, 256, 8, 1024, 4


def _linear(ctx: Context, x: Tensor, rows: int, name: str) -> Tensor:
    return ops.mul_mat(ctx.tensor((rows, x.shape[-1]), name=f"{name}.weight"), x).named(name)


def _scaled(ctx: Context, x: Tensor, name: str) -> Tensor:
    return (x * ctx.tensor((x.shape[-1],), name=f"{name}.weight")).named(name)


def _attention(ctx: Context, x: Tensor, name: str, positions: Tensor | None) -> Tensor:
    """Self-attention; causal and with rotary positions if there are any."""
    n, head = x.shape[0], EMBD // HEADS

    def heads(part: str) -> Tensor:
        return _linear(ctx, x, EMBD, f"{name}.{part}").reshape(n, HEADS, head)

    q, k, v = heads("q"), heads("k"), heads("v")
    if positions is not None:
        q, k = ops.rope(q, positions).named(f"{name}.q_rope"), ops.rope(k, positions).named(f"{name}.k_rope")
    scores = (ops.mul_mat(k.transpose(1, 0, 2), q.transpose(1, 0, 2)).named(f"{name}.scores") * head**-0.5).named(f"{name}.scaled")
    if positions is not None:
        scores = ops.diag_mask_inf(scores).named(f"{name}.masked")
    values = ops.cont(v.transpose(1, 2, 0)).named(f"{name}.values")
    mixed = ops.mul_mat(values, ops.soft_max(scores).named(f"{name}.probs")).named(f"{name}.mixed")
    return _linear(ctx, ops.cont(mixed.transpose(1, 0, 2)).named(f"{name}.merged").reshape(n, EMBD), EMBD, f"{name}.out")


def _gated(ctx: Context, h: Tensor, name: str) -> Tensor:
    gate = ops.silu(_linear(ctx, h, FF, f"{name}.gate")).named(f"{name}.silu")
    return _linear(ctx, (gate * _linear(ctx, h, FF, f"{name}.up")).named(f"{name}.product"), EMBD, f"{name}.down")


def _experts(ctx: Context, h: Tensor, name: str, n: int = 8, used: int = 2) -> Tensor:
    """A mixture: each token goes through the two experts that its router prefers."""
    chosen = ops.top_k(ops.soft_max(_linear(ctx, h, n, f"{name}.router")).named(f"{name}.preference"), used).named(f"{name}.chosen")

    def matrices(part: str, rows: int, columns: int) -> list[Tensor]:
        return [ctx.tensor((rows, columns), name=f"{name}.{part}.{e}") for e in range(n)]

    gates, ups, downs = matrices("gate", FF, EMBD), matrices("up", FF, EMBD), matrices("down", EMBD, FF)
    total: Tensor | None = None
    for i in range(used):
        gate = ops.silu(ops.mul_mat_id(gates, chosen, i, h).named(f"{name}.{i}.gate")).named(f"{name}.{i}.silu")
        both = (gate * ops.mul_mat_id(ups, chosen, i, h).named(f"{name}.{i}.up")).named(f"{name}.{i}.product")
        out = ops.mul_mat_id(downs, chosen, i, both).named(f"{name}.{i}.down")
        total = out if total is None else (total + out).named(f"{name}.sum")
    assert total is not None
    return total


def _decoder(ctx: Context, ffn: Callable[[Context, Tensor, str], Tensor]) -> Tensor:
    positions = ctx.tensor((TOKENS,), int32, name="positions")
    x = ctx.tensor((TOKENS, EMBD), name="x")
    for i in range(LAYERS):
        h = _scaled(ctx, ops.rms_norm(x).named(f"{i}.attn_rms"), f"{i}.attn_norm")
        x = (x + _attention(ctx, h, f"{i}.attn", positions)).named(f"{i}.attn_sum")
        h = _scaled(ctx, ops.rms_norm(x).named(f"{i}.ffn_rms"), f"{i}.ffn_norm")
        x = (x + ffn(ctx, h, f"{i}.ffn")).named(f"{i}.out")
    return x


def _encoder(ctx: Context, x: Tensor) -> Tensor:
    for i in range(LAYERS):
        h = _scaled(ctx, ops.norm(x).named(f"{i}.attn_ln"), f"{i}.attn_norm")
        x = (x + _attention(ctx, h, f"{i}.attn", None)).named(f"{i}.attn_sum")
        h = _scaled(ctx, ops.norm(x).named(f"{i}.ffn_ln"), f"{i}.ffn_norm")
        h = ops.gelu(_linear(ctx, h, FF, f"{i}.ffn.up")).named(f"{i}.ffn.gelu")
        x = (x + _linear(ctx, h, EMBD, f"{i}.ffn.down")).named(f"{i}.out")
    return x


def _llama(ctx: Context) -> Tensor:
    return _decoder(ctx, _gated)


def _moe(ctx: Context) -> Tensor:
    return _decoder(ctx, _experts)


def _embed(ctx: Context) -> Tensor:
    return _encoder(ctx, ctx.tensor((TOKENS, EMBD), name="x"))


_BUILDERS: dict[str, Callable[[Context], Tensor]] = {"llama": _llama, "moe": _moe, "embed": _embed}

#: Decoders with a gated feed-forward part ("llama") or a mixture of experts ("moe"), and an encoder ("embed").
NAMES = tuple(_BUILDERS)


def build(name: str) -> tuple[Context, Graph]:
    """The graph of an example, in a context of its own that the caller closes. KeyError: there is none of that name."""
    ctx = Context()
    return ctx, ctx.graph(_BUILDERS[name](ctx))
