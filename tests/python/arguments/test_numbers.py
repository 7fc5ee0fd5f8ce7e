"""Numbers of other types than int and float: fractions are no integers, and text is no number."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb

FRACTIONS = [np.float16(2.5), np.float32(2.5), np.float64(2.5), np.longdouble(2.5), np.array(2.5), Decimal("2.5"),
             Fraction(5, 2)]  # fmt: skip
WHOLE = [np.int8(2), np.uint64(2), np.array(2), np.array(2, np.uint8)]
NO_NUMBERS = [np.array("2"), np.array(b"2"), np.str_("2"), np.bytes_(b"2"), np.array(None), np.array(2j),
              np.complex64(2), np.ma.masked, np.array([2]), np.datetime64("2024"), np.timedelta64(2, "s")]  # fmt: skip
INTEGERS: dict[str, Callable[[gb.Tensor, Any], Any]] = {
    "top_k": gb.ops.top_k,
    "pool_1d": lambda x, n: gb.ops.pool_1d(x, "max", n),
    "reshape": lambda x, n: x.reshape(n, 8),
    "permute": lambda x, n: x.reshape(1, 4, 4).permute(n, 0, 1),
    "diag_mask_inf": gb.ops.diag_mask_inf,
    "group_norm": lambda x, n: gb.ops.group_norm(x.reshape(1, 4, 2, 2), n),
    "rope": lambda x, n: gb.ops.rope(x.reshape(1, 4, 4), x.context.tensor(1, "int32"), n),
    "conv_1d": lambda x, n: gb.ops.conv_1d(x.reshape(1, 4, 4), x.reshape(1, 4, 4), n),
}  # fmt: skip
FLOATS: dict[str, Callable[[gb.Tensor, Any], Any]] = {
    "scale": gb.ops.scale,
    "norm": gb.ops.norm,
    "leaky_relu": gb.ops.leaky_relu,
    "clamp": lambda x, low: gb.ops.clamp(x, low, 3),
}  # fmt: skip


def shown(values: list[Any]) -> Any:
    return pytest.mark.parametrize("value", values, ids=[f"{type(v).__name__} {v!r}" for v in values])


@pytest.fixture
def x() -> gb.Tensor:
    return gb.Context().tensor((4, 4))


@pytest.mark.parametrize("name", INTEGERS)
@shown([*FRACTIONS, *NO_NUMBERS])
def test_integer_parameters_accept_only_integers(x: gb.Tensor, name: str, value: Any) -> None:
    with pytest.raises((gb.errors.InvalidArgumentError, TypeError), match="must be") as caught:
        INTEGERS[name](x, value)
    assert "NoneType" not in str(caught.value)


@pytest.mark.parametrize("name", INTEGERS)
@shown(WHOLE)
def test_integers_of_numpy_are_integers(x: gb.Tensor, name: str, value: Any) -> None:
    assert INTEGERS[name](x, value).shape == INTEGERS[name](x, 2).shape


@pytest.mark.parametrize("name", FLOATS)
@shown(NO_NUMBERS)
def test_number_parameters_refuse_text(x: gb.Tensor, name: str, value: Any) -> None:
    with pytest.raises((gb.errors.InvalidArgumentError, TypeError), match="must be a number"):
        FLOATS[name](x, value)


@pytest.mark.parametrize("name", FLOATS)
@shown([*FRACTIONS, *WHOLE])
def test_numbers_of_any_kind_are_numbers(x: gb.Tensor, name: str, value: Any) -> None:
    assert FLOATS[name](x, value).shape == (4, 4)
