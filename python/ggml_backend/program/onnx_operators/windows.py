"""Windows over the data: convolutions, pooling, resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UnsupportedError
from ..onnx_values import (
    Attributes,
    Given,
    NeedsNumbers,
    integers,
    numbers,
    rounded_up,
)
from ..sizes import Formula, Size
from . import (
    OPERATORS,
    Function,
    Inputs,
    at,
    known,
    operator,
    padded,
    reduced,
    viewed,
)

if TYPE_CHECKING:
    from ..onnx import Reader


def _pads(
    a: Attributes, own: Sequence[Size], k: Sequence[int], s: Sequence[int], d: Sequence[int]
) -> list[tuple[int, int]]:
    """Zeros before and behind the data, along each axis of the window."""
    auto, n = a.get("auto_pad", "NOTSET"), len(k)
    if auto in ("NOTSET", ""):
        given = [int(m) for m in a.get("pads", [0] * 2 * n)]
        return list(zip(given[:n], given[n:], strict=True))
    if auto == "VALID":
        return [(0, 0)] * n
    found = []
    for size, window, step, gap in zip(numbers(own, "auto_pad"), k, s, d, strict=True):
        total = max((-(-size // step) - 1) * step + (window - 1) * gap + 1 - size, 0)
        found.append((total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2))
    return found


def _whole(a: Attributes, name: str, n: int) -> list[int]:
    return [int(m) for m in a.get(name, [1] * n)]


@operator("Conv")
def conv(r: Reader, i: Inputs, a: Attributes) -> Any:
    x, kernel = i[0], numbers(r.shape(i[1]), "a kernel")
    n, own = len(kernel) - 2, r.shape(x)
    s, d = _whole(a, "strides", n), _whole(a, "dilations", n)
    pads = _pads(a, own[2:], kernel[2:], s, d)
    if any(p != q for p, q in pads):
        x, pads = padded(r, x, [(0, 0), (0, 0), *pads]), [(0, 0)] * n
    shape: list[Size] = [own[0], kernel[0]]
    for m, (p, q), window, step, gap in zip(r.shape(x)[2:], pads, kernel[2:], s, d, strict=True):
        shape.append((m + p + q - (window - 1) * gap - 1) // step + 1)
    arguments = {
        "input": x, "weight": i[1], "bias": at(i, 2), "stride": s, "padding": [p for p, _ in pads], "dilation": d,
        "groups": int(a.get("group", 1)),
    }  # fmt: skip
    return r.emit("convolution", arguments, shape, "float32")


@operator("ConvTranspose")
def conv_transpose(r: Reader, i: Inputs, a: Attributes) -> Any:
    own, kernel = r.shape(i[0]), numbers(r.shape(i[1]), "a kernel")
    n = len(kernel) - 2
    s, d, more = _whole(a, "strides", n), _whole(a, "dilations", n), [int(m) for m in a.get("output_padding", [0] * n)]
    if "output_shape" in a or a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise UnsupportedError("ConvTranspose with output_shape or auto_pad")
    pads = _pads(a, own[2:], kernel[2:], s, d)
    if any(p != q for p, q in pads):
        raise UnsupportedError("ConvTranspose with pads that differ")
    groups = int(a.get("group", 1))
    shape: list[Size] = [own[0], kernel[1] * groups]
    for m, (p, q), window, step, gap, extra in zip(own[2:], pads, kernel[2:], s, d, more, strict=True):
        shape.append((m - 1) * step + (window - 1) * gap + 1 - p - q + extra)
    arguments = {
        "input": i[0], "weight": i[1], "bias": at(i, 2), "stride": s, "padding": [p for p, _ in pads], "dilation": d,
        "transposed": True, "output_padding": more, "groups": groups,
    }  # fmt: skip
    return r.emit("convolution", arguments, shape, "float32")


def _pooled(largest: bool) -> Function:
    def function(r: Reader, i: Inputs, a: Attributes) -> Any:
        x, k = i[0], [int(m) for m in a["kernel_shape"]]
        n, own = len(k), r.shape(x)
        if n > 2 or {*_whole(a, "dilations", n)} != {1}:
            raise UnsupportedError("pooling with dilations, or of volumes")
        s, up = _whole(a, "strides", n), int(a.get("ceil_mode", 0))
        pads, inside = _pads(a, own[2:], k, s, [1] * n), bool(a.get("count_include_pad", 0))
        if any(p != q for p, q in pads):
            if not largest and not inside:
                raise UnsupportedError("AveragePool with pads that differ")
            x, pads = padded(r, x, [(0, 0), (0, 0), *pads], -math.inf if largest else 0.0), [(0, 0)] * n
        shape = list(own[:2])
        for m, (p, q), window, step in zip(r.shape(x)[2:], pads, k, s, strict=True):
            whole = m + p + q - window
            shape.append((rounded_up(whole, step) if up else whole // step) + 1)
        if n == 1:  # a plane of one row
            x, k, s, pads = viewed(r, x, [*own[:2], 1, r.shape(x)[2]]), [1, *k], [1, *s], [(0, 0), *pads]
        arguments: dict[str, Any] = {"self": x, "kernel_size": k, "stride": s, "padding": [p for p, _ in pads]}
        more = {"ceil_mode": True} if up else {}
        if not largest:
            more["count_include_pad"] = inside
        planes = [*shape[:2], 1, shape[2]] if n == 1 else shape
        y = r.emit("max_pool2d" if largest else "avg_pool2d", {**arguments, **more}, planes, "float32")
        return viewed(r, y, shape) if n == 1 else y

    return function


OPERATORS |= {"MaxPool": _pooled(True), "AveragePool": _pooled(False)}


@operator("GlobalAveragePool")
def global_average(r: Reader, i: Inputs, a: Attributes) -> Any:
    return reduced(r, "mean.dim", i[0], range(2, len(r.shape(i[0]))), True)


@operator("GlobalMaxPool")
def global_max(r: Reader, i: Inputs, a: Attributes) -> Any:
    return reduced(r, "amax", i[0], range(2, len(r.shape(i[0]))), True)


@operator("Resize", "Upsample")
def resize(r: Reader, i: Inputs, a: Attributes) -> Any:
    own, mode = r.shape(i[0]), a.get("mode", "nearest")
    if len(own) != 4 or mode not in _RESIZED:
        raise UnsupportedError(f"Resize of {len(own)} axes, mode {mode}")
    if a.get("antialias") or a.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnsupportedError("Resize with antialias, or with a kept aspect ratio")
    if [*a.get("axes", range(4))] != [*range(4)]:
        raise UnsupportedError("Resize of some axes")
    rounded = False
    if at(i, 3) is not None:
        shape = integers(i[3])
    else:
        given: Given = np.array(a["scales"], np.float32) if "scales" in a else at(i, 1 if r.opset < 11 else 2)
        factors = known(given, "the factors of Resize").reshape(-1)
        shape = []
        for n, factor in zip(own, factors.tolist(), strict=True):
            if isinstance(n, Formula):
                if factor != int(factor):
                    raise NeedsNumbers("Resize by a fraction")
                shape.append(n * int(factor))
            else:
                size = float(np.float32(n * factor))
                rounded = rounded or size != int(size)
                shape.append(int(size))
    if list(shape[:2]) != list(own[:2]):
        numbers(own[:2], "Resize")
        raise UnsupportedError("Resize of the batch or of channels")
    aligned = _alignment(r, a, mode, own, shape)
    if rounded and not aligned:  # the places follow from the factors, and PyTorch takes them from the sizes
        raise UnsupportedError("Resize by factors that do not give whole sizes")
    arguments = {"self": i[0], "output_size": list(shape[2:]), "align_corners": True if aligned else None}
    return r.emit(_RESIZED[mode], arguments, shape, "float32")


_RESIZED = {"nearest": "upsample_nearest2d", "linear": "upsample_bilinear2d", "cubic": "upsample_bicubic2d"}


def _alignment(r: Reader, a: Attributes, mode: str, own: Sequence[Size], shape: Sequence[Size]) -> bool:
    """True for aligned corners, False for PyTorch's places. UnsupportedError: other places"""
    places = a.get("coordinate_transformation_mode", "half_pixel" if r.opset >= 11 else "asymmetric")
    halves = places in ("half_pixel", "pytorch_half_pixel")
    if mode == "nearest":
        rounding = "floor" if r.opset < 11 else a.get("nearest_mode", "round_prefer_floor")
        if places == "asymmetric" and rounding == "floor":
            return False
        if halves and rounding.startswith("round") and all(m % n == 0 for n, m in zip(own, shape, strict=True)):
            return False  # a whole factor: the nearest element is that at the floor
    elif halves or places == "align_corners":
        if mode == "cubic" and (a.get("cubic_coeff_a", -0.75) != -0.75 or a.get("exclude_outside")):
            raise UnsupportedError("Resize with other cubic coefficients")
        return bool(places == "align_corners")
    raise UnsupportedError(f"Resize, mode {mode}, with the places {places}")
