"""Matrix products. Their sums run along the last axis of both tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .._base.errors import InvalidArgumentError, check, expect_list
from .._ffi import ffi, lib
from ..tensor._build import OF_PRODUCT, build, build_2, context_of
from ..tensor._operators import PRECISIONS_OF_PRODUCTS
from ..tensor._operators import matmul as multiplied
from ..tensor.tensor import Tensor, TensorLike
from ._form import builds, choice, dims

__all__ = [
    "add_id",
    "matmul",
    "mul_mat",
    "mul_mat_experts",
    "mul_mat_id",
    "out_prod",
]


MAX_MATRICES = 8
"""Maximum number of matrices of :func:`mul_mat_id`."""


@builds("ggml_mul_mat")
def mul_mat(a: Tensor, b: Tensor, prec: Literal["default", "f16", "f32"] = "default") -> Tensor:
    """Rows times rows: ``a (..., m, k)`` and ``b (..., n, k)`` give float32 ``b @ a.T``, ``(..., n, m)``.

    ``a`` is float32, float16, bfloat16 or quantized (typically the weights). ``b`` is float32 or has the
    dtype of ``a``. Batch sizes of ``b`` are multiples of those of ``a``: consecutive batches of ``b``
    share one batch of ``a``.

    If ``a`` is quantized, a float32 ``b`` is rounded to bytes by groups of 32 values. The error of a
    result is at most the sum over groups of (largest ``|b|`` / 254) times (sum of ``|a|``). Groups
    below 2^-100 in magnitude count as zeros. A row with a value of 2^100 or more, infinite or NaN has
    results that are NaN.

    prec: "f32" asks devices for full precision: nothing is rounded, and infinity stays infinity. "f16" asks for
        activations of 15 bits: the error is 254 times smaller than by default. On the CPU it costs less than "f32".
        Other devices may take it as the default.
    """
    y = build_2("mul_mat", lib.ggml_mul_mat, a, b, ndim=OF_PRODUCT)
    if not isinstance(prec, str) or prec != "default":
        number = choice("mul_mat", "prec", prec, PRECISIONS_OF_PRODUCTS)
        check(lib.ggml_mul_mat_set_prec(y._p, number), "mul_mat")
    return y


def matmul(a: TensorLike, b: TensorLike, prec: Literal["default", "f16", "f32"] = "default") -> Tensor:
    """The matrix product ``a @ b`` in float32, with the precision that you choose.

    Axes before the last two broadcast. ``matmul(x, w.T)`` is ``mul_mat(w, x)`` and transposes nothing.

    prec: "f32" asks devices for full precision. By default devices may round ``a`` if ``b`` is quantized
        (see :func:`mul_mat`). Expect differences of about one percent of the largest result.
    """
    context_of("matmul", [t for t in (a, b) if isinstance(t, Tensor)] or [a])
    return multiplied(a, b, "matmul", choice("matmul", "prec", prec, PRECISIONS_OF_PRODUCTS))


@builds("ggml_mul_mat_id")
def mul_mat_id(matrices: Sequence[Tensor], ids: Tensor, id: int, b: Tensor) -> Tensor:
    """:func:`mul_mat` with one of several matrices for each row of ``b``, as in a mixture of experts.

    matrices: 1 to 8 tensors ``(m, k)``
    ids: int32 ``(n, choices)``
    b: ``(..., n, k)``

    The result is ``(..., n, m)``. Row ``(..., i)`` is ``matrices[ids[i, id]] @ b[..., i]``. Every batch
    uses the same ids.
    """
    if isinstance(matrices, Tensor):
        raise TypeError("mul_mat_id: matrices must be a list of tensors, not one Tensor")
    matrices = expect_list(matrices, "mul_mat_id: matrices", "tensors")
    if not 1 <= len(matrices) <= MAX_MATRICES:
        raise InvalidArgumentError(f"mul_mat_id: takes 1 to {MAX_MATRICES} matrices, not {len(matrices)}")
    tensors = (*matrices, ids, b)
    labels = (*(f"matrices[{i}]" for i in range(len(matrices))), "ids", "b")
    context_of("mul_mat_id", tensors, labels)
    pointers = ffi.new("struct ggml_tensor *[]", [m._live() for m in matrices])
    arguments = (pointers, len(matrices), ids._live(), id, b._live())
    return build("mul_mat_id", lib.ggml_mul_mat_id, tensors, *arguments, ndim=b.ndim, labels=labels, array=True)


@builds("ggml_mul_mat_experts")
def mul_mat_experts(
    experts: Tensor, b: Tensor, ids: Tensor, prec: Literal["default", "f16", "f32"] = "default"
) -> Tensor:
    """:func:`mul_mat` with matrices that each token chooses, as in a mixture of experts.

    experts: ``(e, m, k)``, any number of matrices, of any dtype that :func:`mul_mat` takes
    b: ``(tokens, rows, k)``. ``rows`` divides the number of experts that a token uses: 1 if they share a row.
    ids: int32 ``(tokens, used)``: the experts of each token, from 0 to ``e - 1``

    The result is float32 ``(tokens, used, m)``. Row ``(t, u)`` is ``experts[ids[t, u]] @ b[t, u % rows]``.
    Experts that no token uses are not read. An index out of range makes the computation fail.

    prec: as for :func:`mul_mat`
    """
    y = build("mul_mat_experts", lib.ggml_mul_mat_experts, (experts, b, ids), ndim=3, labels=("experts", "b", "ids"))
    if not isinstance(prec, str) or prec != "default":
        number = choice("mul_mat_experts", "prec", prec, PRECISIONS_OF_PRODUCTS)
        check(lib.ggml_mul_mat_set_prec(y._p, number), "mul_mat_experts")
    return y


@builds("ggml_add_id")
def add_id(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """Adds to each row of ``a`` the row of ``b`` that ``ids`` names, as the biases of :func:`mul_mat_experts`.

    a: ``(tokens, used, m)``
    b: ``(e, m)``
    ids: int32 ``(tokens, used)``

    Row ``(t, u)`` of the result is ``a[t, u] + b[ids[t, u]]``. An index out of range makes the computation
    fail.
    """
    return build("add_id", lib.ggml_add_id, (a, b, ids), ndim=dims("add_id", a), labels=("a", "b", "ids"))


@builds("ggml_out_prod")
def out_prod(a: Tensor, b: Tensor) -> Tensor:
    """Columns times columns: ``a (..., k, m)`` and ``b (..., k, n)`` give ``b.T @ a``, ``(..., n, m)``."""
    return build("out_prod", lib.ggml_out_prod, (a, b))
