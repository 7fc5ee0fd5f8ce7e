"""Constants, ranges, and triangles of matrices."""

from __future__ import annotations

from typing import Literal

from .._base.errors import InvalidArgumentError, expect
from .._ffi import lib
from ..tensor._build import build
from ..tensor._operators import TRIANGLES
from ..tensor.context import Context
from ..tensor.tensor import Tensor
from ._form import builds, choice, pick

__all__ = ["arange", "fill", "solve_tri", "timestep_embedding", "tri", "tril", "triu"]


@builds("ggml_fill", "ggml_fill_inplace")
def fill(a: Tensor, value: float, *, inplace: bool = False) -> Tensor:
    """A tensor of the shape and dtype of ``a`` with ``value`` everywhere. ``a`` is not read."""
    return build("fill", pick("fill", inplace), (a,), value)


@builds("ggml_arange")
def arange(start: float, stop: float | None = None, step: float = 1.0, *, context: Context) -> Tensor:
    """``start``, ``start + step``, ... below ``stop``, as float32. At least one value.

    stop: above it if ``step`` is negative. ``arange(n)`` counts from 0.
    context: the context of the result
    """
    expect(context, Context, "arange: context")
    if stop is None:
        start, stop = 0.0, start
    return build("arange", lib.ggml_arange, (), start, stop, step, ndim=1, pool=context)


@builds("ggml_timestep_embedding")
def timestep_embedding(timesteps: Tensor, dim: int, max_period: int = 10000) -> Tensor:
    """Sinusoidal embeddings of times, as diffusion models use them: ``(n,)`` gives float32 ``(n, dim)``.

    The cosines come first. If ``dim`` is odd, the last column is 0.
    """
    function = lib.ggml_timestep_embedding
    return build("timestep_embedding", function, (timesteps,), dim, max_period, ndim=2, labels=("timesteps",))


@builds("ggml_tri")
def tri(a: Tensor, kind: Literal["upper_diag", "upper", "lower_diag", "lower"]) -> Tensor:
    """Square matrices with zeros outside of a triangle. Without ``_diag`` the diagonal becomes 0, too."""
    return build("tri", lib.ggml_tri, (a,), choice("tri", "kind", kind, TRIANGLES))


def _triangle(op: str, a: Tensor, k: int, kinds: dict[int, str]) -> Tensor:
    kind = kinds.get(k) if isinstance(k, int) else None
    if kind is None:
        raise InvalidArgumentError(f"{op}: k must be one of {', '.join(map(str, kinds))}, not {k!r:.60}")
    return build(op, lib.ggml_tri, (a,), TRIANGLES[kind])


@builds("ggml_tri")
def tril(a: Tensor, k: int = 0) -> Tensor:
    """The lower triangle of square matrices, as ``np.tril``. ``k`` is 0, or -1 without the diagonal."""
    return _triangle("tril", a, k, {0: "lower_diag", -1: "lower"})


@builds("ggml_tri")
def triu(a: Tensor, k: int = 0) -> Tensor:
    """The upper triangle of square matrices, as ``np.triu``. ``k`` is 0, or 1 without the diagonal."""
    return _triangle("triu", a, k, {0: "upper_diag", 1: "upper"})


@builds("ggml_solve_tri")
def solve_tri(a: Tensor, b: Tensor) -> Tensor:
    """``x`` with ``tril(a) @ x = b``: ``a (..., n, n)`` and ``b (..., n, m)`` give ``(..., n, m)``.

    Elements above the diagonal of ``a`` are not read. A 0 on the diagonal gives infinities or NaN.
    """
    return build("solve_tri", lib.ggml_solve_tri, (a, b), True, True, False)
