"""The largest allowed difference between the results of a device and of the CPU. No other file
defines tolerances.

``u`` is half the distance between 1 and the next number of a dtype: 2^-24 for float32, 2^-11 for
float16, 2^-8 for bfloat16. Both sides compute in float32 or better, so an element may differ by

    2 ((terms + n) u_float32 + rounded u_operand) m  +  2 u_result |y|  +  a denormal of the result

``m`` is a magnitude, and ``n`` the length of the sum for the element. ``terms`` counts roundings
other than those of additions. ``rounded`` counts operands that may be rounded to the narrowest
dtype among the sources: a product with float16 weights may round the other side to float16. The
factor 2 is needed because both sides may be inexact. This is the textbook bound of a sum in any
order (Higham, Accuracy and Stability, section 4.2). It is not fitted to observed results.

=============  ========================================================================================================
class          operators
=============  ========================================================================================================
EXACT          copies, conversions between plain dtypes, integers and indices, functions that only choose: the same
               numbers (-0 is 0, NaN is NaN)
elements       functions of elements: the operator's rule gives ``m``, by default ``|y|``; ``n`` is 0
rows           norms, softmax, losses, attention: the same with ``n``, the length of the row. Attention with quantized
               keys may round its queries to bytes, as below
sums           sums and products: ``m`` is the same operator on the magnitudes of its sources, computed by the CPU
quantized      products with quantized sources: as sums; besides the rows of the other side may be rounded to bytes by
               groups of 32, which is off by 1/254 of the largest of the group for each, and weights to float16
BLOCKS         results that are quantized: after unpacking, within one step of the format at the largest number of the
               row
=============  ========================================================================================================

If the CPU's result is NaN or infinite, the device's must be the same. A finite result of the CPU
within its tolerance of the largest number of the dtype may be infinite on the device.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import DType
from ._inputs import Array

__all__ = ["ABSOLUTE", "BLOCKS", "EXACT", "UNIT", "Rule", "allowance", "block_allowance", "difference", "worst"]

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_STEP = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}  # float32 denormals may be flushed
_LARGEST = {"float32": 3.4028234663852886e38, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}
ABSOLUTE = "absolute"
"""The magnitude of sums: the operator on the magnitudes of its sources."""

Magnitude = Callable[..., Any]


@dataclass(frozen=True)
class Rule:
    """The tolerance of a case, as the head of this file explains.

    magnitude: a function of the arrays of the sources and of the result, which is last
    in_bytes: a function of the same arrays: the error of rounding rows to bytes for quantized sources
    """

    kind: str = "close"
    terms: float = 2.0
    n: int = 0
    rounded: float = 0.0
    magnitude: Magnitude | str | None = None
    in_bytes: Magnitude | None = None


EXACT = Rule("exact")
BLOCKS = Rule("blocks")


def allowance(rule: Rule, want: Array, magnitude: Any, dtype: DType, sources: list[DType]) -> Any:
    """The allowed difference of each element. It broadcasts over ``want``, which is float64."""
    if rule.kind == "exact" or dtype.name not in UNIT:
        return 0.0
    narrow = max([UNIT[s.name] for s in sources if s.name in UNIT], default=UNIT["float32"])
    with np.errstate(all="ignore"):
        computed = 2 * ((rule.terms + rule.n) * UNIT["float32"] + rule.rounded * narrow) * magnitude
        stored = 2 * UNIT[dtype.name] * np.abs(want) if dtype.name != "float32" else 0.0
    return computed + stored + _STEP[dtype.name]


def block_allowance(want: Array, dtype: DType) -> Any:
    """The allowed difference of quantized results. The digit in the name of a format is its number
    of bits."""
    found = re.search(r"\d", dtype.name.replace("nvfp", ""))
    bits = int(found[0]) if found else 4
    return np.abs(want).max(-1, keepdims=True, initial=0.0) * 2.0 ** (2 - bits)


def difference(got: Array, want: Array, allowed: Any, dtype: DType) -> Array:
    """A mask of the wrong elements. got, want: float64"""
    with np.errstate(all="ignore"):
        good = (got == want) | (np.isnan(got) & np.isnan(want))
        good |= np.isfinite(got) & np.isfinite(want) & (np.abs(got - want) <= allowed)
        largest = _LARGEST.get(dtype.name)
        if largest is not None:
            near = np.abs(want) * (1 + 2 * UNIT[dtype.name]) + allowed >= largest
            good |= near & np.isfinite(want) & np.isinf(got) & (np.sign(got) == np.sign(want))
            good |= near & np.isfinite(got) & np.isinf(want) & (np.abs(got) * (1 + 2 * UNIT[dtype.name]) >= largest)
    wrong: Array = ~good
    return wrong


def worst(got: Array, want: Array, allowed: Any, wrong: Array) -> str:
    """A text about the wrong elements and the one with the largest difference."""
    if not got.ndim:
        return f"{got.item():.9g} instead of {want.item():.9g}"
    with np.errstate(all="ignore"):
        gap = np.where(np.isfinite(got) & np.isfinite(want), np.abs(got - want), np.inf)
    at = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(wrong, gap, -1.0)), got.shape))
    limit = np.broadcast_to(allowed, got.shape)[at]
    may = f"; allowed is a difference of {limit:.3g}" if np.isfinite(gap[at]) else ""
    return (
        f"{np.count_nonzero(wrong)} of {got.size} elements differ; element {at} is {got[at]:.9g} instead of"
        f" {want[at]:.9g}{may}"
    )
