"""Resizing, padding, rolling."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal, Union

from .._base.errors import InvalidArgumentError, expect_bool
from .._ffi import lib
from ..tensor._build import build
from ..tensor._shapes import MAX_DIMS, shape_tuple
from ..tensor.tensor import Tensor
from ._form import IntPair, builds, choice, dims, pair

__all__ = ["interpolate", "pad", "roll", "upscale"]

SCALE_MODES = {
    "nearest": lib.GGML_SCALE_MODE_NEAREST,
    "bilinear": lib.GGML_SCALE_MODE_BILINEAR,
    "bicubic": lib.GGML_SCALE_MODE_BICUBIC,
}
ScaleMode = Literal["nearest", "bilinear", "bicubic"]
PadMode = Literal["constant", "wrap", "reflect"]
Amounts = Union[int, "Sequence[int | tuple[int, int]]"]


@builds("ggml_upscale", "ggml_upscale_mode")
def upscale(a: Tensor, factor: int, mode: ScaleMode = "nearest") -> Tensor:
    """The last two axes ``factor`` times as long: ``(..., h, w)`` gives ``(..., h f, w f)``.

    mode: as for :func:`interpolate`. "nearest" repeats each element ``factor`` times.
    """
    ndim, number = max(dims("upscale", a), 2), choice("upscale", "mode", mode, SCALE_MODES)
    if number == lib.GGML_SCALE_MODE_NEAREST:
        return build("upscale", lib.ggml_upscale, (a,), factor, ndim=ndim)
    return build("upscale", lib.ggml_upscale_mode, (a,), factor, number, ndim=ndim)


@builds("ggml_interpolate")
def interpolate(
    a: Tensor,
    size: IntPair,
    mode: ScaleMode = "nearest",
    *,
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """The last two axes resized: ``(..., h, w)`` gives ``(..., *size)``, as ``torch.nn.functional.interpolate``.

    size: (height, width), or one int for both
    mode: "nearest" takes an element of any dtype. "bilinear" and "bicubic" mix 2 x 2 or 4 x 4 elements,
        and compute in float32.
    align_corners: the corners of both pictures are the centres of their outermost elements
    antialias: mixes all elements under a result, for smaller pictures. For mode "bilinear" without ``align_corners``.
    """
    height, width = pair("interpolate", "size", size)
    ndim, number = max(dims("interpolate", a), 2), choice("interpolate", "mode", mode, SCALE_MODES)
    if expect_bool(align_corners, "interpolate: align_corners"):
        number |= lib.GGML_SCALE_FLAG_ALIGN_CORNERS
    if expect_bool(antialias, "interpolate: antialias"):
        number |= lib.GGML_SCALE_FLAG_ANTIALIAS
    return build("interpolate", lib.ggml_interpolate, (a,), width, height, a.ne[2], a.ne[3], number, ndim=ndim)


def _amounts(amounts: Amounts) -> list[tuple[int, int]]:
    """Before and behind the elements of each axis, the last axis first."""
    given: Any = (amounts,) if isinstance(amounts, int) or not isinstance(amounts, (tuple, list)) else amounts
    pairs: list[tuple[int, int]] = []
    for amount in given:
        if isinstance(amount, (tuple, list)):
            pairs.append(pair("pad", "amounts", tuple(amount)))
        else:
            pairs.append((0, shape_tuple(amount, "pad: amounts")[0]))
    if len(pairs) > MAX_DIMS:
        raise InvalidArgumentError(f"pad: {len(pairs)} amounts, at most {MAX_DIMS} axes are possible")
    if any(n < 0 for both in pairs for n in both):
        raise InvalidArgumentError(f"pad: amounts must not be negative, are {amounts}")
    return [*reversed(pairs), *[(0, 0)] * (MAX_DIMS - len(pairs))]


@builds("ggml_pad", "ggml_pad_ext", "ggml_pad_circular", "ggml_pad_ext_circular", "ggml_pad_reflect_1d")
def pad(a: Tensor, amounts: Amounts, mode: PadMode = "constant") -> Tensor:
    """Elements before and behind those of the last axes: ``pad(a, ((1, 1), (0, 2)))``.

    amounts: for each of the last axes a pair (before, behind). A number stands for ``(0, number)``:
        ``pad(a, (1, 2))`` appends a row and two columns.
    mode: what the elements are, as in ``np.pad``. "constant": zeros. "wrap": those of the other side.
        "reflect": a mirror image without the outermost element, along the last axis alone; the amounts must be
        below its size.
    """
    pairs = _amounts(amounts)
    ndim = dims("pad", a)
    used = [i for i, both in enumerate(pairs) if both != (0, 0)]
    ndim = max(ndim, len(amounts) if isinstance(amounts, (tuple, list)) else 1)
    number = choice("pad", "mode", mode, {"constant": 0, "wrap": 1, "reflect": 2})
    if number == 2:
        if used not in ([], [0]):
            raise InvalidArgumentError("pad: mode 'reflect' works along the last axis only")
        return build("pad", lib.ggml_pad_reflect_1d, (a,), *pairs[0], ndim=ndim)
    flat = [n for both in pairs for n in both]
    if not any(before for before, _ in pairs):
        form = lib.ggml_pad_circular if number else lib.ggml_pad
        return build("pad", form, (a,), *flat[1::2], ndim=ndim)
    return build("pad", lib.ggml_pad_ext_circular if number else lib.ggml_pad_ext, (a,), *flat, ndim=ndim)


@builds("ggml_roll")
def roll(a: Tensor, shift: int | Sequence[int], axis: int | Sequence[int] = -1) -> Tensor:
    """Elements moved along one or several axes, round the end: ``np.roll`` with the last axis as its default."""
    shifts: list[Any] = [shift] if not isinstance(shift, (tuple, list)) else list(shift)
    axes: list[Any] = [axis] if not isinstance(axis, (tuple, list)) else list(axis)
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(shifts) != len(axes):
        raise InvalidArgumentError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    ndim, by = dims("roll", a), [0] * MAX_DIMS
    for one, moved in zip(axes, shifts, strict=True):
        try:
            i, step = operator.index(one), operator.index(moved)
        except TypeError:
            raise TypeError(f"roll: shift and axis must be ints, not {moved!r:.40} and {one!r:.40}") from None
        if not -ndim <= i < ndim:
            raise InvalidArgumentError(f"roll: axis {i} is out of range for {ndim} dimensions")
        at = ndim - 1 - i % ndim
        by[at] = (by[at] + step) % a.ne[at] if a.ne[at] else 0
    return build("roll", lib.ggml_roll, (a,), *by)
