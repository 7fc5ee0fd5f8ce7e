"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .._base.errors import InvalidArgumentError, check, expect_bool, expect_int, expect_list
from .._ffi import ffi, lib
from ..tensor._build import OF_FIRST, build, build_2
from ..tensor._operators import ROPE_MODES
from ..tensor.tensor import Tensor
from ._form import are, builds, choice, dims, pick

__all__ = [
    "rope",
    "rope_back",
]


_RopeMode = Literal["normal", "neox", "glm", "normal_exact", "neox_exact", "mrope", "vision", "imrope"]


def _rope_mode(op: str, mode: int | str) -> int:
    return choice(op, "mode", mode, ROPE_MODES) if isinstance(mode, str) else expect_int(mode, f"{op}: mode")


def _rotated(a: Tensor, n_dims: int | None) -> int:
    """The number of elements of a head that are rotated."""
    if n_dims is not None:
        return n_dims
    return a.shape[-1] if isinstance(a, Tensor) and a.ndim else 0


_SECTIONED = ("mrope", "vision", "imrope")
_TODAY = {
    "rope": (lib.ggml_rope_ext, lib.ggml_rope_ext_inplace, lib.ggml_rope_multi, lib.ggml_rope_multi_inplace),
    "rope_back": (lib.ggml_rope_ext_back, None, lib.ggml_rope_multi_back, None),
}


def _is_of_today(mode: int | str, factors: object, sections: object, offset: object) -> bool:
    modes = (*_SECTIONED, *(ROPE_MODES[name] for name in _SECTIONED))
    return factors is not None or sections is not None or not are((offset,), (0,)) or mode in modes


def _rope_of_today(
    op: str,
    a: Tensor,
    positions: Tensor,
    factors: Tensor | None,
    n_dims: int,
    number: int,
    sections: Sequence[int] | None,
    offset: int,
    scaling: tuple[object, ...],
    inplace: bool = False,
) -> Tensor:
    mode = number & ~lib.GGML_ROPE_EXACT
    sectioned = number in [ROPE_MODES[name] for name in _SECTIONED]
    if not number & lib.GGML_ROPE_EXACT:
        raise InvalidArgumentError(f"{op}: factors and an offset need an exact mode, such as 'normal_exact'")
    if sectioned != (sections is not None):
        modes = ", ".join(map(repr, _SECTIONED))
        raise InvalidArgumentError(f"{op}: the modes {modes} need sections, and others take none")
    forms = _TODAY[op][2 if sectioned else 0 :]
    function = forms[1 if expect_bool(inplace, f"{op}: inplace") else 0]
    pairs = () if sections is None else (_four(op, sections),)
    tensors, labels = (a, positions, factors), ("a", "positions", "factors")
    y = build(op, function, tensors, n_dims, *pairs, mode, *scaling, ndim=dims(op, a), labels=labels)
    if not are((offset,), (0,)):
        found = lib.ggml_rope_set_offset(y._p, expect_int(offset, f"{op}: offset"))
        check(lib.ggml_last_status() if found == ffi.NULL else lib.GGML_STATUS_SUCCESS, op)
    return y


def _four(op: str, sections: Sequence[int]) -> object:
    given = [expect_int(s, f"{op}: sections") for s in expect_list(sections, f"{op}: sections", "ints")]
    if len(given) != 4:
        raise InvalidArgumentError(f"{op}: sections must be four numbers, not {len(given)}")
    return ffi.new("int[4]", given)


def _rope_xpos(
    a: Tensor,
    positions: Tensor,
    n: int,
    number: int,
    base: float,
    down: bool,
    scaling: tuple[object, ...],
    inplace: bool,
) -> Tensor:
    plain = are(scaling, (10000.0, 1.0, 0.0, 1.0))
    normal = number == 0 or (number == ROPE_MODES["normal_exact"] and n == _rotated(a, None))
    if not expect_bool(inplace, "rope: inplace") or not normal or not plain:
        raise InvalidArgumentError(
            "rope: xpos needs inplace=True, n_dims of the whole head or mode 'normal', and no other scaling"
        )
    function, labels = lib.ggml_rope_xpos_inplace, ("a", "positions")
    return build("rope", function, (a, positions), n, base, down, ndim=dims("rope", a), labels=labels)


@builds("ggml_rope", "ggml_rope_inplace", "ggml_rope_custom", "ggml_rope_custom_inplace", "ggml_rope_xpos_inplace")
@builds("ggml_rope_ext", "ggml_rope_ext_inplace", "ggml_rope_multi", "ggml_rope_multi_inplace")
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
    factors: Tensor | None = None,
    sections: Sequence[int] | None = None,
    offset: int = 0,
    inplace: bool = False,
) -> Tensor:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    ``a (batch, tokens, heads, head size)``, or without the batch, is float32 or float16.

    positions: a tensor, int32 ``(tokens,)``: ``ctx.constant(np.arange(n, dtype=np.int32))``
    n_dims: number of elements of a head to rotate (default: all). The other elements stay.
    mode: ``"normal_exact"`` rotates neighbours (2i, 2i+1). ``"neox_exact"`` pairs i with i + n_dims/2. ``"glm"``
        is the two-part form, which needs n_ctx. ``"mrope"``, ``"imrope"`` and ``"vision"`` have sections, see
        below. ``"normal"`` and ``"neox"`` are older modes, see the end.
    freq_base, freq_scale: pair i turns by ``position * freq_scale * freq_base ** (-2 i / n_dims)``
    n_orig_ctx, ext_factor, attn_factor, beta_fast, beta_slow: YaRN scaling (Peng et al. 2023,
        arXiv:2309.00071). ext_factor 0 turns it off.
    xpos_base, xpos_down: xPos scaling (Sun et al. 2022, arXiv:2212.10554). It works only in place, and only
        with whole heads or mode "normal".
    factors: float32, one for each pair: its angle is divided by the factor, as in Llama 3
    sections: for the modes "mrope", "imrope" and "vision": four numbers of pairs. ``positions`` then has ``4 *
        tokens`` elements: all times, then all heights, widths and extras. A pair of section i turns by position i.
        Sections repeat until every pair has one. ``"imrope"`` takes the first three positions in turn.
        ``"vision"`` pairs i with i + n_dims in heads of ``2 * n_dims``, and its frequencies begin anew in each
        section.
    offset: first element that is rotated, even. The elements before it stay.

    Models made for ggml of early 2024 may need the modes of that time. ``"normal"`` rotates the whole
    head, and n_dims sets only the angles. ``"neox"`` multiplies by freq_scale twice. With ext_factor, it
    uses YaRN's mixture of pair 0 for all pairs. If n_dims is the head size, freq_scale is 1 and
    ext_factor is 0, old and exact modes agree.
    """
    n = _rotated(a, n_dims)
    number = _rope_mode("rope", mode)
    scaling = (n_orig_ctx, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    if _is_of_today(mode, factors, sections, offset) and xpos_base is None:
        half = n // 2 if n_dims is None and number == ROPE_MODES["vision"] else n
        return _rope_of_today("rope", a, positions, factors, half, number, sections, offset, scaling, inplace)
    if xpos_base is not None:
        return _rope_xpos(a, positions, n, number, xpos_base, xpos_down, scaling[1:5], inplace)
    plain = are(scaling[:5], (0, 10000.0, 1.0, 0.0, 1.0))
    function = pick("rope" if plain else "rope_custom", inplace)
    numbers = (n, number, n_ctx, *(() if plain else scaling))
    return build_2("rope", function, a, positions, *numbers, ndim=OF_FIRST, labels=("a", "positions"))


@builds("ggml_rope_back", "ggml_rope_ext_back", "ggml_rope_multi_back")
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
    factors: Tensor | None = None,
    sections: Sequence[int] | None = None,
    offset: int = 0,
) -> Tensor:
    """Gradient of :func:`rope`, given the gradient ``a`` of its result. Not for mode "glm"."""
    n = _rotated(a, n_dims)
    arguments = (n_orig_ctx, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow, xpos_base, xpos_down)
    number = _rope_mode("rope_back", mode)
    if _is_of_today(mode, factors, sections, offset):
        half = n // 2 if n_dims is None and number == ROPE_MODES["vision"] else n
        return _rope_of_today("rope_back", a, positions, factors, half, number, sections, offset, arguments[:7])
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
