"""Small graphs in the shapes of well-known models, for ``python -m ggml_backend plan EXAMPLE``.

They are planned, not computed. Their weights are inputs of the graph, so they have memory outside the arena.
"""

from __future__ import annotations

from collections.abc import Callable

from ... import ops
from ...dtypes import float16, int32
from ...tensor.context import Context
from ...tensor.graph import Graph
from ...tensor.tensor import Tensor

__all__ = ["NAMES", "build"]

TOKENS, EMBD, HEADS, FF, LAYERS = 128, 256, 8, 1024, 4
MELS, FRAMES = 80, 512  # of sound: two frames make a position
LATENT, SIDE, CHANNELS, GROUPS = (
    4,
    32,
    64,
    32,
)  # of a picture: latent channels and side; channels of level 0, groups of its norms


def _linear(ctx: Context, x: Tensor, rows: int, name: str) -> Tensor:
    return ops.mul_mat(ctx.tensor((rows, x.shape[-1]), name=f"{name}.weight"), x).named(name)


def _scaled(ctx: Context, x: Tensor, name: str) -> Tensor:
    return (x * ctx.tensor((x.shape[-1],), name=f"{name}.weight")).named(name)


def _attention(ctx: Context, x: Tensor, name: str, positions: Tensor | None) -> Tensor:
    """Self-attention. With positions it is causal and rotary."""
    n, head = x.shape[0], EMBD // HEADS

    def heads(part: str) -> Tensor:
        return _linear(ctx, x, EMBD, f"{name}.{part}").reshape(n, HEADS, head)

    q, k, v = heads("q"), heads("k"), heads("v")
    if positions is not None:
        q, k = ops.rope(q, positions).named(f"{name}.q_rope"), ops.rope(k, positions).named(f"{name}.k_rope")
    scores = (ops.mul_mat(k.transpose(1, 0, 2), q.transpose(1, 0, 2)).named(f"{name}.scores") * head**-0.5).named(
        f"{name}.scaled"
    )
    if positions is not None:
        scores = ops.diag_mask_inf(scores).named(f"{name}.masked")
    values = ops.cont(v.transpose(1, 2, 0)).named(f"{name}.values")
    mixed = ops.mul_mat(values, ops.soft_max(scores).named(f"{name}.probs")).named(f"{name}.mixed")
    return _linear(
        ctx, ops.cont(mixed.transpose(1, 0, 2)).named(f"{name}.merged").reshape(n, EMBD), EMBD, f"{name}.out"
    )


def _gated(ctx: Context, h: Tensor, name: str) -> Tensor:
    gate = ops.silu(_linear(ctx, h, FF, f"{name}.gate")).named(f"{name}.silu")
    return _linear(ctx, (gate * _linear(ctx, h, FF, f"{name}.up")).named(f"{name}.product"), EMBD, f"{name}.down")


def _experts(ctx: Context, h: Tensor, name: str, n: int = 8, used: int = 2) -> Tensor:
    """A mixture: each token goes through the two experts that its router prefers."""
    chosen = ops.top_k(ops.soft_max(_linear(ctx, h, n, f"{name}.router")).named(f"{name}.preference"), used).named(
        f"{name}.chosen"
    )

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


def _biased(ctx: Context, x: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    return (x + ctx.tensor(shape, name=f"{name}.bias")).named(f"{name}.biased")


def _conv_1d(ctx: Context, x: Tensor, channels: int, stride: int, name: str) -> Tensor:
    y = ops.conv_1d(ctx.tensor((channels, x.shape[-2], 3), float16, name=f"{name}.weight"), x, stride, 1).named(name)
    return ops.gelu(_biased(ctx, y, (channels, 1), name)).named(f"{name}.gelu")


def _whisper(ctx: Context) -> Tensor:
    """The encoder of a speech recognizer: two convolutions over the spectrogram, then transformer layers."""
    x = _conv_1d(ctx, ctx.tensor((MELS, FRAMES), name="mel"), EMBD, 1, "conv1")
    x = _conv_1d(ctx, x, EMBD, 2, "conv2")
    x = (ops.cont(x.transpose(1, 0)).named("frames") + ctx.tensor((FRAMES // 2, EMBD), name="positions")).named(
        "embedded"
    )
    return _scaled(ctx, ops.norm(_encoder(ctx, x)).named("out_ln"), "out_norm")


Convolution = Callable[..., Tensor]
"""A function of a context, x, the number of channels, a name, and optionally the kernel's size and the stride."""


def _conv(ctx: Context, x: Tensor, channels: int, name: str, size: int = 3, stride: int = 1) -> Tensor:
    """(channels, height, width). Rows of windows are rounded to float16, as in ggml of early 2024."""
    kernel = ctx.tensor((channels, x.shape[-3], size, size), float16, name=f"{name}.weight")
    rows = ops.im2col(kernel, x, stride, size // 2)
    _, height, width, length = rows.shape
    y = ops.mul_mat(rows.reshape(height * width, length), kernel.reshape(channels, length))
    return _biased(ctx, y.reshape(channels, height, width).named(name), (channels, 1, 1), name)


def _normed(ctx: Context, x: Tensor, name: str) -> Tensor:
    h = (ops.group_norm(x, GROUPS).named(name) * ctx.tensor((x.shape[-3], 1, 1), name=f"{name}.weight")).named(
        f"{name}.scaled"
    )
    return _biased(ctx, h, (x.shape[-3], 1, 1), name)


def _residual(ctx: Context, conv: Convolution, x: Tensor, time: Tensor, channels: int, name: str) -> Tensor:
    h = conv(ctx, ops.silu(_normed(ctx, x, f"{name}.norm1")).named(f"{name}.silu1"), channels, f"{name}.conv1")
    moment = _linear(ctx, ops.silu(time).named(f"{name}.time_silu"), channels, f"{name}.time").reshape(channels, 1, 1)
    h = (h + moment).named(f"{name}.timed")
    h = conv(ctx, ops.silu(_normed(ctx, h, f"{name}.norm2")).named(f"{name}.silu2"), channels, f"{name}.conv2")
    skip = x if x.shape[-3] == channels else conv(ctx, x, channels, f"{name}.skip", 1)
    return (h + skip).named(f"{name}.out")


def _look_around(ctx: Context, x: Tensor, name: str) -> Tensor:
    """Attention of one head among the pixels."""
    c, height, width = x.shape
    flat = ops.cont(_normed(ctx, x, f"{name}.norm").reshape(c, height * width).transpose(1, 0)).named(f"{name}.pixels")
    q, k, v = (_linear(ctx, flat, c, f"{name}.{part}") for part in "qkv")
    probs = ops.soft_max((ops.mul_mat(k, q).named(f"{name}.scores") * c**-0.5).named(f"{name}.scaled")).named(
        f"{name}.probs"
    )
    mixed = ops.mul_mat(ops.cont(v.transpose(1, 0)).named(f"{name}.values"), probs).named(f"{name}.mixed")
    out = ops.cont(_linear(ctx, mixed, c, f"{name}.out").transpose(1, 0)).named(f"{name}.merged")
    return (x + out.reshape(c, height, width)).named(f"{name}.sum")


def unet(ctx: Context, conv: Convolution = _conv) -> Tensor:
    """The denoiser of a picture generator: down three levels and up again, with skip connections at each level.

    conv: makes the convolutions, for graphs of other operators
    """
    time = _linear(
        ctx,
        ops.silu(_linear(ctx, ctx.tensor((CHANNELS,), name="time"), EMBD, "time1")).named("time_silu"),
        EMBD,
        "time2",
    )
    x = conv(ctx, ctx.tensor((LATENT, SIDE, SIDE), name="noisy"), CHANNELS, "in")
    skips = [x]
    for level, width in enumerate((1, 2, 4)):
        for block in range(2):
            x = _residual(ctx, conv, x, time, width * CHANNELS, f"down{level}.{block}")
            skips.append(x)
        if level < 2:
            x = conv(ctx, x, width * CHANNELS, f"down{level}.smaller", stride=2)
            skips.append(x)
    x = _residual(
        ctx, conv, _look_around(ctx, _residual(ctx, conv, x, time, x.shape[0], "mid0"), "mid"), time, x.shape[0], "mid1"
    )
    for level, width in reversed(list(enumerate((1, 2, 4)))):
        for block in range(3):
            x = ops.concat(x, skips.pop()).named(f"up{level}.{block}.joined")
            x = _residual(ctx, conv, x, time, width * CHANNELS, f"up{level}.{block}")
        if level > 0:
            x = conv(ctx, ops.upscale(x, 2).named(f"up{level}.larger"), width * CHANNELS, f"up{level}.smooth")
    return conv(ctx, ops.silu(_normed(ctx, x, "out_norm")).named("out_silu"), LATENT, "out")


_BUILDERS: dict[str, Callable[[Context], Tensor]] = {
    "llama": _llama,
    "moe": _moe,
    "whisper": _whisper,
    "unet": unet,
    "embed": _embed,
}

#: Decoders with a gated feed-forward part ("llama") or a mixture of experts ("moe"), the encoder of speech ("whisper"),
#: the denoiser of pictures ("unet") and an encoder of text ("embed").
NAMES = tuple(_BUILDERS)


def build(name: str) -> tuple[Context, Graph]:
    """The graph of an example, in a new context that the caller closes. KeyError for an unknown
    name."""
    ctx = Context()
    return ctx, ctx.graph(_BUILDERS[name](ctx))
