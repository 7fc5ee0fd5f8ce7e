"""Values that are made of sizes and numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UnsupportedError
from ..onnx_values import Attributes, NeedsNumbers, integers, numbers, rounded_up
from ..sizes import Formula
from . import OPERATORS, Function, Inputs, filled, known, operator

if TYPE_CHECKING:
    from ..onnx import Reader

_MOST_PLACES = 2**24  # of Range and random values; a small file could ask for any size


@operator("Constant")
def constant(r: Reader, i: Inputs, a: Attributes) -> Any:
    ((kind, value),) = ((key, value) for key, value in a.items() if not key.startswith("_"))
    if kind not in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        raise UnsupportedError(f"a constant of the kind {kind}")
    return value if kind == "value" else np.array(value, np.float32 if "float" in kind else np.int64)


@operator("ConstantOfShape")
def constant_of_shape(r: Reader, i: Inputs, a: Attributes) -> Any:
    value = a.get("value", np.zeros(1, np.float32))
    return filled(r, integers(i[0]), value.reshape(-1)[0].item(), value.dtype.name)


@operator("Range")
def range_of(r: Reader, i: Inputs, a: Attributes) -> Any:
    start, limit, delta = (known(x, "a limit of Range").reshape(-1)[0] for x in i[:3])
    dtype = r.dtype(i[0])
    if all(not isinstance(n, Formula) for n in (start, limit, delta)):
        if delta == 0 or (limit - start) / delta > _MOST_PLACES:
            raise UnsupportedError(f"Range from {start} to {limit} by {delta}")
        return np.arange(start, limit, delta).astype(dtype)
    if isinstance(delta, Formula) or delta <= 0:
        raise NeedsNumbers("Range with a step that depends on sizes")
    n = rounded_up(limit - start, int(delta))
    return r.emit("arange.start_step", {"start": start, "end": limit, "step": int(delta)}, (n,), dtype)


def _random(uniform: bool) -> Function:
    """Numbers that are drawn once, if the caller of ``load_onnx`` gave a seed."""

    def function(r: Reader, i: Inputs, a: Attributes) -> Any:
        if r.random is None:
            raise UnsupportedError(
                "the model draws random numbers; load_onnx(..., seed=0) draws them once, when it reads the model"
            )
        shape = numbers(r.shape(i[0]) if i else [int(n) for n in a["shape"]], "a random value")
        if math.prod(shape) > _MOST_PLACES:
            raise UnsupportedError(f"a random value of the shape {tuple(shape)}")
        if uniform:
            return r.random.uniform(a.get("low", 0.0), a.get("high", 1.0), shape).astype(np.float32)
        return r.random.normal(a.get("mean", 0.0), a.get("scale", 1.0), shape).astype(np.float32)

    return function


OPERATORS |= {"RandomNormal": _random(False), "RandomNormalLike": _random(False)}
OPERATORS |= {"RandomUniform": _random(True), "RandomUniformLike": _random(True)}
