"""Sums, means and argmax along an axis. Repetition, concatenation, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import cast as cast_to
from typing import overload

from .._base.errors import InvalidArgumentError, expect_bool
from .._base.errors.messages import kind_of
from .._ffi import lib
from ..tensor._build import build, build_1, context_of
from ..tensor._operators import repeat_to
from ..tensor._shapes import MAX_DIMS, shape_tuple
from ..tensor.tensor import Tensor
from ._form import Axes, along, are, builds, each_row, reduced

__all__ = [
    "argmax",
    "argsort",
    "concat",
    "cumsum",
    "mean",
    "repeat",
    "repeat_back",
    "sum",
    "sum_rows",
    "top_k",
]


@builds("ggml_sum")
def sum(a: Tensor, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The sum of all elements, of shape ``()`` and the dtype of ``a``: float32, float16 or bfloat16.

    axis: sums along one or several axes, as in NumPy. The result is float32.
    """
    if axis is None and keepdims is False:
        return build("sum", lib.ggml_sum, (a,), ndim=0)
    return reduced("sum", a, axis, expect_bool(keepdims, "sum: keepdims"), sum_rows)


@builds("ggml_sum_rows")
def sum_rows(a: Tensor) -> Tensor:
    """The sum along the last axis, which keeps size 1: ``(..., n)`` gives ``(..., 1)``."""
    return build_1("sum_rows", lib.ggml_sum_rows, a)


@builds("ggml_mean")
def mean(a: Tensor, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The mean along one or several axes, as in NumPy.

    Without an axis: along the last one, which keeps size 1, as in ggml.
    """
    if axis is None:
        if expect_bool(keepdims, "mean: keepdims"):
            raise InvalidArgumentError("mean: keepdims=True needs an axis; without an axis the last one keeps size 1")
        return _mean_of_rows(a)
    return reduced("mean", a, axis, expect_bool(keepdims, "mean: keepdims"), _mean_of_rows)


def _mean_of_rows(a: Tensor) -> Tensor:
    return build_1("mean", lib.ggml_mean, a)


@builds("ggml_argmax")
def argmax(a: Tensor, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """Index of the maximum of each row of a matrix: ``(rows, n)`` gives int32 ``(rows,)``.

    Of equal maxima, the last one counts. NaN counts as the largest value.

    axis: searches along this axis. The tensor may then have any number of axes.
    """
    if axis is None:
        if expect_bool(keepdims, "argmax: keepdims"):
            raise InvalidArgumentError("argmax: keepdims=True needs an axis")
        return _argmax_of_rows(a)
    given: object = axis
    if isinstance(given, (tuple, list)):
        raise TypeError("argmax: axis must be an int; gb.ops.argmax(x.reshape(-1), axis=0) looks at all elements")
    expect_bool(keepdims, "argmax: keepdims")
    return reduced("argmax", a, axis, keepdims, lambda rows: _argmax_of_rows(each_row(rows)))


def _argmax_of_rows(a: Tensor) -> Tensor:
    return build("argmax", lib.ggml_argmax, (a,), ndim=1)


@builds("ggml_repeat")
def repeat(a: Tensor, like: Tensor | Sequence[int]) -> Tensor:
    """Tiles ``a`` to a shape, or to the shape of a tensor. Its sizes are multiples of those of ``a``.

    Any dtype without blocks.
    """
    if isinstance(like, Tensor):
        return build("repeat", lib.ggml_repeat, (a, like), ndim=like.ndim, labels=("a", "like"))
    context_of("repeat", (a,))
    return repeat_to(a, shape_tuple(like, "repeat: like"))


@builds("ggml_repeat_back")
def repeat_back(a: Tensor, like: Tensor | Sequence[int]) -> Tensor:
    """The gradient of :func:`repeat`: the sum of the tiles of ``a`` that have the given shape."""
    pool = context_of("repeat_back", (a, like) if isinstance(like, Tensor) else (a,), ("a", "like"))
    shape = like.shape if isinstance(like, Tensor) else shape_tuple(like, "repeat_back: like")
    if a.shape != shape and a.ne == (*reversed(shape), *[1] * (4 - len(shape))):
        return a.reshape(shape)  # one tile: C returns a itself, which keeps its shape
    if isinstance(like, Tensor):
        return build("repeat_back", lib.ggml_repeat_back, (a, like), ndim=like.ndim, labels=("a", "like"))
    template = pool._template(shape, "repeat_back")
    return build("repeat_back", lib.ggml_repeat_back, (a,), template, ndim=len(shape))


@overload
def concat(a: Tensor, b: Tensor, axis: int = -3) -> Tensor: ...
@overload
def concat(a: Sequence[Tensor], b: int | None = None, *, axis: int = -3) -> Tensor: ...
@builds("ggml_concat")
def concat(a: Tensor | Sequence[Tensor], b: Tensor | int | None = None, axis: int = -3) -> Tensor:
    """``a`` and ``b`` one after the other along an axis. All other sizes are equal. Any dtype without blocks.

    A list works, too: ``concat([a, b, c], axis=0)``.

    The default is ggml's axis -3 (its dimension 2), which stacks matrices. Along another axis the
    tensors are first rearranged with copies.
    """
    if isinstance(a, (list, tuple)):
        if not a:
            raise InvalidArgumentError("concat: needs at least one tensor")
        along = axis if b is None else b
        if not isinstance(along, int):
            raise TypeError(f"concat: after a list of tensors comes the axis, not {kind_of(along)}")
        context_of("concat", a, labels=[f"tensors[{i}]" for i in range(len(a))])
        n = max(max(t.ndim for t in a), 1)
        from_end = along if along < 0 else along - n  # the same axis, also after a result of more axes
        if not -n <= from_end < 0 and from_end != -3:
            raise InvalidArgumentError(f"concat: {', '.join([t.describe() for t in a])}: there is no axis {along}")
        joined: Tensor = reduce(lambda first, second: _concat(first, second, from_end), a)
        return joined
    context_of("concat", (a, b))
    return _concat(cast_to(Tensor, a), cast_to(Tensor, b), axis)


def _concat(a: Tensor, b: Tensor, axis: int) -> Tensor:
    n = max(a.ndim, b.ndim)
    from_end = axis if axis < 0 else axis - n
    named = f"concat: a {a.describe()}, b {b.describe()}"
    if not -n <= from_end < 0 and from_end != -3:
        raise InvalidArgumentError(f"{named}: there is no axis {axis}")
    if a.dtype != b.dtype:
        raise InvalidArgumentError(f"{named}: a and b must have the same dtype; b.astype({a.dtype.name!r}) converts")
    differ = [d for d in range(-1, -MAX_DIMS - 1, -1) if d != from_end and a.ne[-1 - d] != b.ne[-1 - d]]
    if differ:
        d = differ[0]
        others = [e for e in range(-n, 0) if all(a.ne[-1 - o] == b.ne[-1 - o] for o in range(-MAX_DIMS, 0) if o != e)]
        hint = f"; axis={others[0] + n} would do" if others else ""
        sizes = f"axis {d} has {a.ne[-1 - d]} and {b.ne[-1 - d]} elements"
        raise InvalidArgumentError(f"{named}: along axis {from_end} all other axes must be equal, but {sizes}{hint}")
    if from_end == -3:
        return build("concat", lib.ggml_concat, (a, b), ndim=max(n, 3))
    to = list(range(MAX_DIMS))
    d = -from_end - 1
    to[d], to[2] = 2, d
    a2, b2 = (
        build("concat", lib.ggml_cont, (build("concat", lib.ggml_permute, (t,), *to, ndim=MAX_DIMS),)) for t in (a, b)
    )
    joined = build("concat", lib.ggml_concat, (a2, b2))
    return build("concat", lib.ggml_cont, (build("concat", lib.ggml_permute, (joined,), *to, ndim=n),), ndim=n)


@builds("ggml_argsort")
def argsort(a: Tensor, descending: bool = False, *, axis: int = -1) -> Tensor:
    """The int32 permutation that sorts each row.

    Equal values keep their order. NaN comes last in both directions.

    axis: sorts along this axis. If it is not the last, the result is a view.
    """
    order = lib.GGML_SORT_DESC if expect_bool(descending, "argsort: descending") else lib.GGML_SORT_ASC
    if not are((axis,), (-1,)):
        return along("argsort", a, axis, lambda rows: argsort(rows, descending))
    return build_1("argsort", lib.ggml_argsort, a, order)


@builds("ggml_top_k", "ggml_top_k_unsorted")
def top_k(a: Tensor, k: int, *, sorted: bool = True) -> Tensor:
    """Indices of the ``k`` largest elements of each row, largest first.

    ``(..., n)`` gives int32 ``(..., k)``, a view. NaN counts as the smallest value.

    sorted: False finds them in any order, without sorting the row
    """
    if not expect_bool(sorted, "top_k: sorted"):
        return build("top_k", lib.ggml_top_k_unsorted, (a,), k)
    return build("top_k", lib.ggml_top_k, (a,), k)


@builds("ggml_cumsum")
def cumsum(a: Tensor, axis: int = -1) -> Tensor:
    """The sums of the elements along an axis up to each one, that one included."""
    return along("cumsum", a, axis, lambda rows: build("cumsum", lib.ggml_cumsum, (rows,)))
