"""Attention and feed-forward blocks in one node, windows of images, relative positions."""

from __future__ import annotations

import math
from typing import Literal

from .._base.errors import check
from .._ffi import lib
from ..tensor._build import build, context_of
from ..tensor._operators import PRECISIONS
from ..tensor.tensor import Tensor
from ._form import builds, choice, dims, pick

__all__ = [
    "add_rel_pos",
    "flash_attn",
    "flash_attn_back",
    "flash_attn_ext",
    "flash_ff",
    "get_rel_pos",
    "win_part",
    "win_unpart",
]


@builds("ggml_flash_attn")
def flash_attn(q: Tensor, k: Tensor, v: Tensor, masked: bool = False) -> Tensor:
    """``softmax(q k^T / sqrt(d)) v`` in one node (Dao et al. 2022, arXiv:2205.14135).

    ``q (..., heads, n, d)``, ``k (..., heads_kv, m, d)``, and ``v`` with its last two axes exchanged,
    ``(..., heads_kv, d, m)``. All are float32 or all are float16. The result is float32 ``(..., heads,
    n, d)``. Head ``h`` uses ``k`` and ``v`` of head ``h % heads_kv``. ``m >= n`` must hold.

    masked: causal, with ``m - n`` earlier positions. Query ``i`` attends to keys 0 to ``m - n + i``. The
        other keys have no effect, even if they are NaN.
    """
    return build("flash_attn", lib.ggml_flash_attn, (q, k, v), masked, labels="qkv")


@builds("ggml_flash_attn_back")
def flash_attn_back(q: Tensor, k: Tensor, v: Tensor, d: Tensor, masked: bool = False) -> Tensor:
    """Gradients of :func:`flash_attn` with respect to q, k and v, given the gradient ``d`` of its result.

    The result is one vector that holds the three gradients in this order. Each starts at a multiple of
    16 bytes.
    """
    return build("flash_attn_back", lib.ggml_flash_attn_back, (q, k, v, d), masked, ndim=1, labels="qkvd")


@builds("ggml_flash_attn_ext")
def flash_attn_ext(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    *,
    max_bias: float = 0.0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    prec: Literal["default", "f32"] = "default",
) -> Tensor:
    """Attention of today's models in one node: ``softmax(cap(scale q k^T) + mask) v``.

    q: ``(batch, heads, n, dk)``, float32, float16 or bfloat16
    k: ``(batch, heads_k, m, dk)``, and v: ``(batch, heads_v, m, dv)``, floats or quantized. Consecutive heads of
        ``q`` share one of ``k`` and of ``v``.
    mask: float32 or float16 ``(..., n or more, m)``. Heads and batches repeat. A key that is hidden by -inf has no
        effect, even if it or its value is NaN.
    scale: of the scores, by default ``1 / sqrt(dk)``
    max_bias: if above 0, the mask is multiplied by the slope of the head, as in :func:`softmax`
    softcap: if above 0, ``cap(s) = softcap tanh(s / softcap)``
    sinks: float32 ``(heads,)``, as in :func:`softmax`

    The result is float32 ``(batch, n, heads, dv)``: queries before heads. A query that sees no key gives zeros.

    prec: "f32" asks devices for full precision. By default the CPU rounds up to eight queries to bytes for keys
        of Q8_0, as :func:`mul_mat` rounds activations.
    """
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1]) if isinstance(q, Tensor) and q.ndim and q.shape[-1] else 1.0
    labels = ("q", "k", "v", "mask")
    if sinks is not None:
        context_of("flash_attn_ext", (q, sinks), ("q", "sinks"))
    numbers = (scale, max_bias, softcap)
    y = build("flash_attn_ext", lib.ggml_flash_attn_ext, (q, k, v, mask), *numbers, ndim=4, labels=labels)
    if sinks is not None:
        check(lib.ggml_flash_attn_ext_add_sinks(y._p, sinks._live()), "flash_attn_ext")
    if not isinstance(prec, str) or prec != "default":
        number = choice("flash_attn_ext", "prec", prec, PRECISIONS)
        check(lib.ggml_flash_attn_ext_set_prec(y._p, number), "flash_attn_ext")
    return y


@builds("ggml_flash_ff")
def flash_ff(a: Tensor, b0: Tensor, b1: Tensor, c0: Tensor, c1: Tensor) -> Tensor:
    """A feed-forward block in one node: ``gelu(a @ b0.T + b1) @ c0.T + c1``.

    ``a (..., n, d)``, ``b1 (h,)`` and ``c1 (d,)`` are float32. ``b0 (..., h, d)`` and ``c0 (..., d, h)``
    are float16.
    """
    return build(
        "flash_ff",
        lib.ggml_flash_ff,
        (a, b0, b1, c0, c1),
        ndim=dims("flash_ff", a),
        labels=("a", "b0", "b1", "c0", "c1"),
    )


@builds("ggml_win_part")
def win_part(a: Tensor, window: int) -> Tensor:
    """Cuts ``(h, w, c)`` into square windows: ``(squares, window, window, c)``. Pads with zeros."""
    return build("win_part", lib.ggml_win_part, (a,), window, ndim=4)


@builds("ggml_win_unpart")
def win_unpart(a: Tensor, width: int, height: int, window: int) -> Tensor:
    """Joins the windows of :func:`win_part` again: ``(height, width, c)``."""
    return build("win_unpart", lib.ggml_win_unpart, (a,), width, height, window, ndim=3)


@builds("ggml_get_rel_pos")
def get_rel_pos(a: Tensor, qh: int, kh: int) -> Tensor:
    """Rows of ``a (2 kh - 1, c)``, float16, by relative position: ``(qh, kh, c)``.

    Row ``(i, j)`` is ``a[kh - 1 - j + i]``. ``qh`` must equal ``kh``.
    """
    return build("get_rel_pos", lib.ggml_get_rel_pos, (a,), qh, kh, ndim=3)


@builds("ggml_add_rel_pos", "ggml_add_rel_pos_inplace")
def add_rel_pos(a: Tensor, pw: Tensor, ph: Tensor, *, inplace: bool = False) -> Tensor:
    """Adds decomposed relative positions to ``a (b, q, k*k)``.

    Element ``y k + x`` gets ``ph[.., y] + pw[.., x]``. ``pw`` and ``ph`` have the shape ``(b, qh, qw,
    k)``.
    """
    return build(
        "add_rel_pos",
        pick("add_rel_pos", inplace),
        (a, pw, ph),
        ndim=dims("add_rel_pos", a),
        labels=("a", "pw", "ph"),
    )
