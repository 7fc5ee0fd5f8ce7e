"""Elementwise arithmetic of two tensors. Adding to, or replacing, a region of a tensor."""

from __future__ import annotations

from typing import Any

from .._base.errors import InvalidArgumentError
from .._ffi import lib
from ..dtypes import DTypeLike, as_dtype
from ..tensor._build import build, build_2
from ..tensor.tensor import Tensor
from ._form import FORMS, builds, dims, pick

__all__ = [
    "acc",
    "add",
    "add1",
    "add_cast",
    "div",
    "divide",
    "mul",
    "multiply",
    "set",
    "sub",
    "subtract",
]


def _expect_apart(name: str, a: Any, b: Any) -> None:
    """Raises if ``a`` and ``b`` overlap in memory without being the same region.

    In place, the result would overwrite elements of ``b`` that are still to be read. How many differs
    between devices.
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return
    p, q = a._live(), b._live()
    if (p.view_src or p) != (q.view_src or q) or not (a.is_contiguous and b.is_contiguous):
        return
    first, second = int(p.view_offs), int(q.view_offs)
    same = first == second and a.nbytes == b.nbytes
    if not same and first < second + b.nbytes and second < first + a.nbytes:
        raise InvalidArgumentError(
            f"{name}: {a.describe()} is overwritten while {b.describe()}, which partly overlaps it, is read:"
            " inplace=False, or gb.ops.cont(b)"
        )


def _binary(name: str, a: Tensor, b: Tensor, inplace: bool) -> Tensor:
    if inplace is not False:
        _expect_apart(name, a, b)
    return build_2(name, FORMS[name][0] if inplace is False else pick(name, inplace), a, b)


@builds("ggml_add", "ggml_add_inplace")
def add(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """``a + b``; b repeats over a. Each is float32, float16 or bfloat16. The result has the dtype of a."""
    return _binary("add", a, b, inplace)


@builds("ggml_add_cast")
def add_cast(a: Tensor, b: Tensor, dtype: DTypeLike) -> Tensor:
    """``a + b`` as another dtype; ``a`` is float16, bfloat16 or quantized."""
    return build("add_cast", lib.ggml_add_cast, (a, b), as_dtype(dtype, "add_cast").id)


@builds("ggml_add1", "ggml_add1_inplace")
def add1(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """``a + b`` with a tensor ``b`` of one element."""
    return _binary("add1", a, b, inplace)


@builds("ggml_sub", "ggml_sub_inplace")
def sub(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """``a - b``; b repeats over a."""
    return _binary("sub", a, b, inplace)


subtract = sub


@builds("ggml_mul", "ggml_mul_inplace")
def mul(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """``a * b``, elementwise; b repeats over a."""
    return _binary("mul", a, b, inplace)


multiply = mul


@builds("ggml_div", "ggml_div_inplace")
def div(a: Tensor, b: Tensor, *, inplace: bool = False) -> Tensor:
    """``a / b``; b repeats over a."""
    return _binary("div", a, b, inplace)


divide = div


def _region(a: Tensor, nb1: int | None, nb2: int | None, nb3: int | None) -> tuple[int, int, int]:
    nb = a.nb if isinstance(a, Tensor) else (0, 0, 0, 0)
    return nb1 if nb1 is not None else nb[1], nb2 if nb2 is not None else nb[2], nb3 if nb3 is not None else nb[3]


@builds("ggml_acc", "ggml_acc_inplace")
def acc(
    a: Tensor,
    b: Tensor,
    offset: int = 0,
    *,
    nb1: int | None = None,
    nb2: int | None = None,
    nb3: int | None = None,
    inplace: bool = False,
) -> Tensor:
    """A copy of ``a`` with ``b`` added to a region of it. Contiguous.

    The region has the shape of ``b`` and begins ``offset`` bytes into ``a``. Its byte strides, in ggml's
    order, are ``nb1, nb2, nb3`` (default: the strides of ``a``).
    """
    return build("acc", pick("acc", inplace), (a, b), *_region(a, nb1, nb2, nb3), offset, ndim=dims("acc", a))


@builds("ggml_set", "ggml_set_inplace", "ggml_set_1d", "ggml_set_1d_inplace", "ggml_set_2d", "ggml_set_2d_inplace")
def set(
    a: Tensor,
    b: Tensor,
    offset: int = 0,
    *,
    nb1: int | None = None,
    nb2: int | None = None,
    nb3: int | None = None,
    inplace: bool = False,
) -> Tensor:
    """A copy of ``a`` with a region replaced by ``b``. The region is defined as for :func:`acc`."""
    if nb2 is None and nb3 is None:
        if nb1 is None:
            return build("set", pick("set_1d", inplace), (a, b), offset, ndim=dims("set", a))
        return build("set", pick("set_2d", inplace), (a, b), nb1, offset, ndim=dims("set", a))
    return build("set", pick("set", inplace), (a, b), *_region(a, nb1, nb2, nb3), offset, ndim=dims("set", a))
