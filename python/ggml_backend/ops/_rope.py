"""Rotary position embedding."""

from __future__ import annotations

from typing import Literal

from .._base.errors import InvalidArgumentError, expect_bool, expect_int
from .._ffi import lib
from ..tensor._build import OF_FIRST, build, build_2
from ..tensor._operators import ROPE_MODES
from ..tensor.tensor import Tensor
from ._form import are, builds, choice, dims, pick

__all__ = [
    "rope",
    "rope_back",
]


_RopeMode = Literal["normal", "neox", "glm", "normal_exact", "neox_exact"]


def _rope_mode(op: str, mode: int | str) -> int:
    return choice(op, "mode", mode, ROPE_MODES) if isinstance(mode, str) else expect_int(mode, f"{op}: mode")


def _rotated(a: Tensor, n_dims: int | None) -> int:
    """The number of elements of a head that are rotated."""
    if n_dims is not None:
        return n_dims
    return a.shape[-1] if isinstance(a, Tensor) and a.ndim else 0


@builds("ggml_rope", "ggml_rope_inplace", "ggml_rope_custom", "ggml_rope_custom_inplace", "ggml_rope_xpos_inplace")
def rope(
    a: Tensor,
    positions: Tensor,
    n_dims: int | None = None,
    mode: int | _RopeMode = "normal_exact",
    *,
    n_ctx: int = 0,
    n_orig_ctx: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    xpos_base: float | None = None,
    xpos_down: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    ``a (batch, tokens, heads, head size)``, or without the batch, is float32 or float16.

    positions: a tensor, int32 ``(tokens,)``: ``ctx.constant(np.arange(n, dtype=np.int32))``
    n_dims: number of elements of a head to rotate (default: all). The other elements stay.
    mode: ``"normal_exact"`` rotates neighbours (2i, 2i+1). ``"neox_exact"`` pairs i with i + n_dims/2. ``"glm"``
        is the two-part form, which needs n_ctx. ``"normal"`` and ``"neox"`` are older modes, see below.
    freq_base, freq_scale: pair i turns by ``position * freq_scale * freq_base ** (-2 i / n_dims)``
    n_orig_ctx, ext_factor, attn_factor, beta_fast, beta_slow: YaRN scaling (Peng et al. 2023,
        arXiv:2309.00071). ext_factor 0 turns it off.
    xpos_base, xpos_down: xPos scaling (Sun et al. 2022, arXiv:2212.10554). It works only in place, and only
        with whole heads or mode "normal".

    Models made for ggml of early 2024 may need the modes of that time. ``"normal"`` rotates the whole
    head, and n_dims sets only the angles. ``"neox"`` multiplies by freq_scale twice. With ext_factor, it
    uses YaRN's mixture of pair 0 for all pairs. If n_dims is the head size, freq_scale is 1 and
    ext_factor is 0, old and exact modes agree.
    """
    labels = ("a", "positions")
    n = _rotated(a, n_dims)
    number = _rope_mode("rope", mode)
    if xpos_base is not None:
        plain = are((freq_base, freq_scale, ext_factor, attn_factor), (10000.0, 1.0, 0.0, 1.0))
        normal = number == 0 or (number == ROPE_MODES["normal_exact"] and n == _rotated(a, None))
        if not expect_bool(inplace, "rope: inplace") or not normal or not plain:
            raise InvalidArgumentError(
                "rope: xpos needs inplace=True, n_dims of the whole head or mode 'normal', and no other scaling"
            )
        xpos = (n, xpos_base, xpos_down)
        return build("rope", lib.ggml_rope_xpos_inplace, (a, positions), *xpos, ndim=dims("rope", a), labels=labels)
    if are((n_orig_ctx, freq_base, freq_scale, ext_factor, attn_factor), (0, 10000.0, 1.0, 0.0, 1.0)):
        return build_2("rope", pick("rope", inplace), a, positions, n, number, n_ctx, ndim=OF_FIRST, labels=labels)
    scaling = (n_orig_ctx, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    return build_2(
        "rope", pick("rope_custom", inplace), a, positions, n, number, n_ctx, *scaling, ndim=OF_FIRST, labels=labels
    )


@builds("ggml_rope_back")
def rope_back(
    a: Tensor,
    positions: Tensor,
    n_dims: int | None = None,
    mode: int | _RopeMode = "normal_exact",
    *,
    n_ctx: int = 0,
    n_orig_ctx: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    xpos_base: float = 0.0,
    xpos_down: bool = False,
) -> Tensor:
    """Gradient of :func:`rope`, given the gradient ``a`` of its result. Not for mode "glm"."""
    n = _rotated(a, n_dims)
    arguments = (n_orig_ctx, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow, xpos_base, xpos_down)
    number = _rope_mode("rope_back", mode)
    ndim = dims("rope_back", a)
    return build(
        "rope_back",
        lib.ggml_rope_back,
        (a, positions),
        n,
        number,
        n_ctx,
        *arguments,
        ndim=ndim,
        labels=("a", "positions"),
    )
