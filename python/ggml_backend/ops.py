"""Every operation as a function, with ggml's meaning.

Shapes and axes are in NumPy order in this module: a tensor of shape ``(rows, columns)`` has ``ne = (columns, rows, 1,
1)``; "row" means the last axis. Leading dots stand for batch axes. Unless said otherwise tensors are float32 and the
result is a new node. With
``inplace=True`` the result is a view of the first tensor, whose memory is overwritten when the graph runs.

"b repeats over a": every size of ``a`` is a multiple of that of ``b`` (missing axes count as 1), the result has the
shape of
``a``. The operators ``+ - * /`` follow NumPy's rules instead.

NaN in an element gives NaN in every result that depends on it, but for comparisons, which say so; elementwise functions
have their limits at infinity (``silu(-inf)`` is -0).

All functions raise :class:`InvalidArgumentError` (a ValueError) for shapes and dtypes that do not fit, naming the
operation and the tensors, TypeError for what is no tensor, and :class:`StateError` if the context is closed. Nothing is
computed here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce, wraps
from typing import Any, Literal, TypeVar, Union, overload
from typing import cast as cast_to

from ._data.shapes import MAX_DIMS, ne_of, resolve_shape, shape_tuple
from ._errors import InvalidArgumentError, check, expect_bool, expect_int, expect_list
from ._errors.messages import close_matches, kind_of
from ._ffi import ffi, lib
from ._nodes.build import OF_FIRST, OF_PRODUCT, OF_SECOND, build, build_1, build_2, newest
from ._nodes.operators import raw_view, repeat_to
from .dtypes import DTypeLike, as_dtype
from .tensor import Tensor

# Written out, so that type checkers and editors see it; a test compares it with `OPERATIONS`.
__all__ = [
    "abs", "acc", "add", "add1", "add_cast", "add_rel_pos", "alibi", "argmax", "argsort", "cast", "clamp", "concat",
    "cont", "conv_1d",
    "conv_2d", "conv_depthwise_2d", "conv_transpose_1d", "conv_transpose_2d", "cpy", "cross_entropy_loss",
    "cross_entropy_loss_back",
    "diag", "diag_mask_inf", "diag_mask_zero", "div", "dup", "elu", "empty_like", "flash_attn", "flash_attn_back",
    "flash_ff", "gelu",
    "gelu_erf", "gelu_quick", "get_rel_pos", "get_rows", "get_rows_back", "group_norm", "hardsigmoid", "hardswish",
    "im2col", "leaky_relu",
    "log", "mean", "mul", "mul_mat", "mul_mat_id", "neg", "norm", "out_prod", "pad", "permute", "pool_1d", "pool_2d",
    "relu", "repeat",
    "repeat_back", "reshape", "rms_norm", "rms_norm_back", "rope", "rope_back", "scale", "set", "sgn", "silu",
    "silu_back", "soft_max",
    "soft_max_back", "sqr", "sqrt", "step", "sub", "sum", "sum_rows", "tanh", "top_k", "transpose", "unary", "upscale",
    "view", "win_part",
    "win_unpart",
]  # fmt: skip

_F = TypeVar("_F", bound=Callable[..., Any])
IntPair = Union[int, "tuple[int, int]"]
MAX_MATRICES = 8
"""Of :func:`mul_mat_id`."""

BUILDERS: dict[str, Callable[..., Any]] = {}
"""The Python function through which each C builder is reached."""


def builds(*names: str) -> Callable[[_F], _F]:
    """Declares the C builders behind a function, and exports it."""

    def register(function: _F) -> _F:
        for name in names:
            if not hasattr(lib, name):
                raise AttributeError(name)
            BUILDERS[name] = function
        return function

    return register


_AXES = ("axis", "dim", "keepdim", "keepdims")
_LAST_AXIS = "it works along the last axis, which x.swapaxes(axis, -1).contiguous() makes of another one"


def without(names: Sequence[str] = _AXES, hint: str = _LAST_AXIS) -> Callable[[_F], _F]:
    """Declares a function that does not have what functions of its kind have elsewhere, and says so to who gives it."""

    def wrap(function: _F) -> _F:
        name, most = function.__name__, function.__code__.co_argcount

        @wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            try:
                return function(*args, **options)
            except TypeError:
                for wrong in names:
                    if wrong in options:
                        raise TypeError(f"{name}: there is no {wrong}; {hint}") from None
                if len(args) > most:
                    raise TypeError(
                        f"{name}: takes {most} argument{'s'[: most > 1]} by position, not {len(args)}; {hint}"
                    ) from None
                raise

        return cast_to("_F", checked)

    return wrap


#: C builders that come in two forms: ``(ggml_x, ggml_x_inplace)`` by the name ``x``.
_FORMS: dict[str, tuple[Any, Any]] = {
    name[5:-8]: (getattr(lib, name[:-8]), getattr(lib, name))
    for name in dir(lib)
    if name.startswith("ggml_") and name.endswith("_inplace") and hasattr(lib, name[:-8])
}


def _pick(name: str, inplace: bool) -> Any:
    form = _FORMS[name]
    if inplace is False:
        return form[0]
    return form[
        expect_bool(inplace, f"{name.removesuffix('_custom').removesuffix('_1d').removesuffix('_2d')}: inplace")
    ]


def _pair(op: str, name: str, value: IntPair) -> tuple[int, int]:
    """An int or (height, width) as (height, width)."""
    if isinstance(value, int):
        return value, value
    pair: Any = value if isinstance(value, (tuple, list)) else (value, value)
    try:
        first, second = pair
        return operator.index(first), operator.index(second)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{op}: {name} must be an int or a pair of ints, not {value!r:.60}") from None


def _are(given: tuple[Any, ...], defaults: tuple[Any, ...]) -> bool:
    """Are the arguments the defaults? What is no number is none of them, and C refuses it."""
    try:
        return given == defaults
    except ValueError:  # of an array
        return False


def _dims(op: str, t: Any, label: str = "a") -> int:
    """``t.ndim``; TypeError if it is no tensor."""
    if not isinstance(t, Tensor):
        newest(op, (t,), (label,))
    return int(t.ndim)


def _choice(op: str, name: str, value: str, choices: dict[str, int]) -> int:
    try:
        return choices[value]
    except (KeyError, TypeError):
        guess = close_matches(value, choices) if isinstance(value, str) else ""
        raise InvalidArgumentError(
            f"{op}: {name} must be one of {', '.join(map(repr, choices))}, not {value!r}{guess}"
        ) from None


# --------------------------------------------------------------------------------------------------- elementwise, unary


def _unary(name: str, a: Tensor, inplace: bool) -> Tensor:
    return build_1(name, _FORMS[name][0] if inplace is False else _pick(name, inplace), a)


_UNARY = {
    constant.removeprefix("GGML_UNARY_OP_").lower(): getattr(lib, constant)
    for constant in dir(lib)
    if constant.startswith("GGML_UNARY_OP_") and not constant.endswith("_COUNT")
}


@builds("ggml_unary", "ggml_unary_inplace")
def unary(a: Tensor, op: str, inplace: bool = False) -> Tensor:
    """An elementwise function by its name: ``"abs"``, ``"relu"``, ``"gelu"``, ..."""
    return build(op, _pick("unary", inplace), (a,), _choice("unary", "op", op, _UNARY))


@builds("ggml_abs", "ggml_abs_inplace")
def abs(a: Tensor, inplace: bool = False) -> Tensor:
    """``|x|``"""
    return _unary("abs", a, inplace)


@builds("ggml_sgn", "ggml_sgn_inplace")
def sgn(a: Tensor, inplace: bool = False) -> Tensor:
    """1, -1, or 0 for zero and NaN."""
    return _unary("sgn", a, inplace)


@builds("ggml_neg", "ggml_neg_inplace")
def neg(a: Tensor, inplace: bool = False) -> Tensor:
    """``-x``"""
    return _unary("neg", a, inplace)


@builds("ggml_step", "ggml_step_inplace")
def step(a: Tensor, inplace: bool = False) -> Tensor:
    """``1 if x > 0 else 0``; 0 for NaN."""
    return _unary("step", a, inplace)


@builds("ggml_tanh", "ggml_tanh_inplace")
def tanh(a: Tensor, inplace: bool = False) -> Tensor:
    """Hyperbolic tangent."""
    return _unary("tanh", a, inplace)


@builds("ggml_elu", "ggml_elu_inplace")
def elu(a: Tensor, inplace: bool = False) -> Tensor:
    """``x if x > 0 else exp(x) - 1``"""
    return _unary("elu", a, inplace)


@builds("ggml_relu", "ggml_relu_inplace")
def relu(a: Tensor, inplace: bool = False) -> Tensor:
    """``0 if x < 0 else x``: NaN and -0 stay."""
    return _unary("relu", a, inplace)


@builds("ggml_gelu", "ggml_gelu_inplace")
def gelu(a: Tensor, inplace: bool = False) -> Tensor:
    """``x/2 (1 + tanh(sqrt(2/pi) x (1 + 0.044715 x^2)))``, the tanh form (Hendrycks and Gimpel 2016,
    arXiv:1606.08415)."""
    return _unary("gelu", a, inplace)


@builds("ggml_gelu_erf", "ggml_gelu_erf_inplace")
def gelu_erf(a: Tensor, inplace: bool = False) -> Tensor:
    """``x/2 (1 + erf(x / sqrt(2)))``, the exact form (arXiv:1606.08415)."""
    return _unary("gelu_erf", a, inplace)


@builds("ggml_gelu_quick", "ggml_gelu_quick_inplace")
def gelu_quick(a: Tensor, inplace: bool = False) -> Tensor:
    """``x sigmoid(1.702 x)`` (arXiv:1606.08415)."""
    return _unary("gelu_quick", a, inplace)


@builds("ggml_silu", "ggml_silu_inplace")
def silu(a: Tensor, inplace: bool = False) -> Tensor:
    """``x sigmoid(x)``"""
    return _unary("silu", a, inplace)


@builds("ggml_hardswish")
def hardswish(a: Tensor, inplace: bool = False) -> Tensor:
    """``x min(1, max(0, (x + 3) / 6))``"""
    if expect_bool(inplace, "hardswish: inplace"):
        return unary(a, "hardswish", True)
    return build_1("hardswish", lib.ggml_hardswish, a)


@builds("ggml_hardsigmoid")
def hardsigmoid(a: Tensor, inplace: bool = False) -> Tensor:
    """``min(1, max(0, (x + 3) / 6))``"""
    if expect_bool(inplace, "hardsigmoid: inplace"):
        return unary(a, "hardsigmoid", True)
    return build_1("hardsigmoid", lib.ggml_hardsigmoid, a)


@builds("ggml_leaky_relu")
def leaky_relu(a: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """``max(x, 0) + negative_slope min(x, 0)``"""
    return build_1("leaky_relu", lib.ggml_leaky_relu, a, negative_slope, expect_bool(inplace, "leaky_relu: inplace"))


@builds("ggml_sqr", "ggml_sqr_inplace")
def sqr(a: Tensor, inplace: bool = False) -> Tensor:
    """``x^2``"""
    return _unary("sqr", a, inplace)


@builds("ggml_sqrt", "ggml_sqrt_inplace")
def sqrt(a: Tensor, inplace: bool = False) -> Tensor:
    """Square root."""
    return _unary("sqrt", a, inplace)


@builds("ggml_log", "ggml_log_inplace")
def log(a: Tensor, inplace: bool = False) -> Tensor:
    """Natural logarithm."""
    return _unary("log", a, inplace)


@builds("ggml_clamp")
def clamp(a: Tensor, min: float, max: float) -> Tensor:
    """``max(min(x, max), min)``. Always in place: a node that overwrites the memory of ``a``."""
    return build_1("clamp", lib.ggml_clamp, a, min, max)


@builds("ggml_scale", "ggml_scale_inplace")
def scale(a: Tensor, s: float, inplace: bool = False) -> Tensor:
    """``s x``"""
    return build_1("scale", _pick("scale", inplace), a, s)


# -------------------------------------------------------------------------------------------------- elementwise, binary


def _binary(name: str, a: Tensor, b: Tensor, inplace: bool) -> Tensor:
    return build_2(name, _FORMS[name][0] if inplace is False else _pick(name, inplace), a, b)


@builds("ggml_add", "ggml_add_inplace")
def add(a: Tensor, b: Tensor, inplace: bool = False) -> Tensor:
    """``a + b``; b repeats over a. float32; or float16 a with float16 or float32 b of the same shape, giving
    float16."""
    return _binary("add", a, b, inplace)


@builds("ggml_add_cast")
def add_cast(a: Tensor, b: Tensor, dtype: DTypeLike) -> Tensor:
    """``a + b`` as another dtype, for float16 or quantized ``a``."""
    return build("add_cast", lib.ggml_add_cast, (a, b), as_dtype(dtype, "add_cast").id)


@builds("ggml_add1", "ggml_add1_inplace")
def add1(a: Tensor, b: Tensor, inplace: bool = False) -> Tensor:
    """``a + b`` with a tensor ``b`` of one element."""
    return _binary("add1", a, b, inplace)


@builds("ggml_sub", "ggml_sub_inplace")
def sub(a: Tensor, b: Tensor, inplace: bool = False) -> Tensor:
    """``a - b``; b repeats over a."""
    return _binary("sub", a, b, inplace)


@builds("ggml_mul", "ggml_mul_inplace")
def mul(a: Tensor, b: Tensor, inplace: bool = False) -> Tensor:
    """``a * b``, elementwise; b repeats over a."""
    return _binary("mul", a, b, inplace)


@builds("ggml_div", "ggml_div_inplace")
def div(a: Tensor, b: Tensor, inplace: bool = False) -> Tensor:
    """``a / b``; b repeats over a."""
    return _binary("div", a, b, inplace)


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
    """``a`` with ``b`` added to a region: the one with the shape of ``b`` that begins ``offset`` bytes into ``a`` and
    has ggml's byte strides ``nb1, nb2, nb3`` (default: those of ``a``). Contiguous."""
    return build("acc", _pick("acc", inplace), (a, b), *_region(a, nb1, nb2, nb3), offset, ndim=_dims("acc", a))


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
    """``a`` with a region replaced by ``b``; the region as for :func:`acc`."""
    if nb2 is None and nb3 is None:
        if nb1 is None:
            return build("set", _pick("set_1d", inplace), (a, b), offset, ndim=_dims("set", a))
        return build("set", _pick("set_2d", inplace), (a, b), nb1, offset, ndim=_dims("set", a))
    return build("set", _pick("set", inplace), (a, b), *_region(a, nb1, nb2, nb3), offset, ndim=_dims("set", a))


# ---------------------------------------------------------------------- reductions, repetition, concatenation, ordering


@builds("ggml_sum")
@without(hint="it adds all elements, gb.sum_rows(x) those of each row")
def sum(a: Tensor) -> Tensor:
    """The sum of all elements, shape ``()``. float32 or float16."""
    return build("sum", lib.ggml_sum, (a,), ndim=0)


@builds("ggml_sum_rows")
@without()
def sum_rows(a: Tensor) -> Tensor:
    """The sum along the last axis, which stays with size 1: ``(..., n)`` gives ``(..., 1)``."""
    return build_1("sum_rows", lib.ggml_sum_rows, a)


@builds("ggml_mean")
@without()
def mean(a: Tensor) -> Tensor:
    """The mean along the last axis, which stays with size 1."""
    return build_1("mean", lib.ggml_mean, a)


@builds("ggml_argmax")
@without()
def argmax(a: Tensor) -> Tensor:
    """Index of the maximum of each row of a matrix: ``(rows, n)`` gives int32 ``(rows,)``. Of equal maxima the last
    one; NaN counts as the largest of all."""
    return build("argmax", lib.ggml_argmax, (a,), ndim=1)


@builds("ggml_repeat")
def repeat(a: Tensor, like: Tensor | Sequence[int]) -> Tensor:
    """``a`` tiled to a shape (or to the shape of a tensor) whose sizes are multiples of its own. float32, float16,
    int32, int16."""
    if isinstance(like, Tensor):
        return build("repeat", lib.ggml_repeat, (a, like), ndim=like.ndim, labels=("a", "like"))
    newest("repeat", (a,))
    return repeat_to(a, shape_tuple(like, "repeat: like"))


@builds("ggml_repeat_back")
def repeat_back(a: Tensor, like: Tensor | Sequence[int]) -> Tensor:
    """The reverse of :func:`repeat`: the sum of the tiles of ``a`` that have the given shape."""
    pool = newest("repeat_back", (a, like) if isinstance(like, Tensor) else (a,), ("a", "like"))
    shape = like.shape if isinstance(like, Tensor) else shape_tuple(like, "repeat_back: like")
    if a.shape != shape and a.ne == (*reversed(shape), *[1] * (4 - len(shape))):
        return a.reshape(shape)  # one tile: C gives a itself, which keeps its shape
    if isinstance(like, Tensor):
        return build("repeat_back", lib.ggml_repeat_back, (a, like), ndim=like.ndim, labels=("a", "like"))
    template = pool._template(shape, "repeat_back")
    return build("repeat_back", lib.ggml_repeat_back, (a,), template, ndim=len(shape))


@overload
def concat(a: Tensor, b: Tensor, axis: int = -3) -> Tensor: ...
@overload
def concat(a: Sequence[Tensor], b: int | None = None, *, axis: int = -3) -> Tensor: ...
@builds("ggml_concat")
@without(("dim",), "axis is its name here")
def concat(a: Tensor | Sequence[Tensor], b: Tensor | int | None = None, axis: int = -3) -> Tensor:
    """``a`` and ``b`` one after the other along an axis; all other sizes are equal. float32 or int32. Also ``concat([a,
    b, c], axis=0)``.

    ggml concatenates along axis -3 (its dimension 2), the default here: matrices are stacked. Along another axis the
    tensors are rearranged first, with copies.
    """
    if isinstance(a, (list, tuple)):
        if not a:
            raise InvalidArgumentError("concat: needs at least one tensor")
        along = axis if b is None else b
        if not isinstance(along, int):
            raise TypeError(f"concat: after a list of tensors comes the axis, not {kind_of(along)}")
        newest("concat", a, labels=[f"tensors[{i}]" for i in range(len(a))])
        n = max(max(t.ndim for t in a), 1)
        from_end = along if along < 0 else along - n  # the same axis, also after a result of more axes
        if not -n <= from_end < 0 and from_end != -3:
            raise InvalidArgumentError(f"concat: {', '.join([t.describe() for t in a])}: there is no axis {along}")
        joined: Tensor = reduce(lambda first, second: _concat(first, second, from_end), a)
        return joined
    newest("concat", (a, b))
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
@without()
def argsort(a: Tensor, descending: bool = False) -> Tensor:
    """For each row the int32 permutation that sorts it; equal values keep their order, and NaN comes last in either
    direction."""
    order = lib.GGML_SORT_DESC if expect_bool(descending, "argsort: descending") else lib.GGML_SORT_ASC
    return build_1("argsort", lib.ggml_argsort, a, order)


@builds("ggml_top_k")
@without()
def top_k(a: Tensor, k: int) -> Tensor:
    """Indices of the ``k`` largest elements of each row, largest first: ``(..., n)`` gives int32 ``(..., k)``, a view.
    NaN counts as the smallest."""
    return build("top_k", lib.ggml_top_k, (a,), k)


# -------------------------------------------------------------------------------------------------------- normalisation


@builds("ggml_norm", "ggml_norm_inplace")
@without()
def norm(a: Tensor, eps: float = 1e-5, inplace: bool = False) -> Tensor:
    """``(x - mean) / sqrt(variance + eps)`` of each row (Ba et al. 2016, arXiv:1607.06450, without gain and bias)."""
    return build_1("norm", _pick("norm", inplace), a, eps)


@builds("ggml_rms_norm", "ggml_rms_norm_inplace")
@without()
def rms_norm(a: Tensor, eps: float = 1e-5, inplace: bool = False) -> Tensor:
    """``x / sqrt(mean(x^2) + eps)`` of each row (Zhang and Sennrich 2019, arXiv:1910.07467, without gain)."""
    return build_1("rms_norm", _pick("rms_norm", inplace), a, eps)


@builds("ggml_group_norm", "ggml_group_norm_inplace")
def group_norm(a: Tensor, n_groups: int, inplace: bool = False) -> Tensor:
    """``(..., channels, height, width)``: :func:`norm` over groups of ``ceil(channels / n_groups)`` channels, eps 1e-6
    (Wu and He 2018, arXiv:1803.08494)."""
    return build_1("group_norm", _pick("group_norm", inplace), a, n_groups)


@builds("ggml_rms_norm_back")
def rms_norm_back(a: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    """Gradient of :func:`rms_norm` at ``a``, given the gradient ``b`` of its result."""
    return build("rms_norm_back", lib.ggml_rms_norm_back, (a, b), eps)


@builds("ggml_silu_back")
def silu_back(a: Tensor, b: Tensor) -> Tensor:
    """Gradient of :func:`silu` at ``a``, given the gradient ``b`` of its result."""
    return build("silu_back", lib.ggml_silu_back, (a, b))


# ------------------------------------------------------------------------------------------------------ matrix products


@builds("ggml_mul_mat")
def mul_mat(a: Tensor, b: Tensor, prec: Literal["default", "f32"] = "default") -> Tensor:
    """Rows times rows: ``a (..., m, k)`` and ``b (..., n, k)`` give ``(..., n, m)``, which is ``b @ a.T``, in float32.

    ``a`` is float32, float16 or quantized (typically the weights), ``b`` float32 or what suits ``a``. Batch sizes of
    ``b`` are multiples of those of ``a``: consecutive batches of ``b`` share one of ``a``.

    Where ``a`` is quantized, a float32 ``b`` is rounded to bytes by groups of 32 values: a result is off by at most the
    sum over groups of (largest ``|b|`` / 254) times (sum of ``|a|``), groups below 2^-100 in magnitude count as zeros,
    and rows with a value of 2^100 or more, infinite or NaN have results that are NaN. prec="f32" asks devices for full
    precision: nothing is rounded then, and infinity is one.
    """
    y = build_2("mul_mat", lib.ggml_mul_mat, a, b, ndim=OF_PRODUCT)
    if not isinstance(prec, str) or prec != "default":
        number = _choice("mul_mat", "prec", prec, {"default": 0, "f32": lib.GGML_PREC_F32})
        check(lib.ggml_mul_mat_set_prec(y._p, number), "mul_mat")
    return y


@builds("ggml_mul_mat_id")
def mul_mat_id(matrices: Sequence[Tensor], ids: Tensor, id: int, b: Tensor) -> Tensor:
    """:func:`mul_mat` with one of several matrices for each row of ``b``, as in a mixture of experts.

    matrices: 1 to 8 tensors ``(m, k)``; ids: int32 ``(n, choices)``; ``b (..., n, k)``; the result is ``(..., n, m)``:
        row ``(..., i)`` is ``matrices[ids[i, id]] @ b[..., i]``, in every batch with the same ids.
    """
    if isinstance(matrices, Tensor):
        raise TypeError("mul_mat_id: matrices must be a list of tensors, not one Tensor")
    matrices = expect_list(matrices, "mul_mat_id: matrices", "tensors")
    if not 1 <= len(matrices) <= MAX_MATRICES:
        raise InvalidArgumentError(f"mul_mat_id: takes 1 to {MAX_MATRICES} matrices, not {len(matrices)}")
    tensors = (*matrices, ids, b)
    labels = (*(f"matrices[{i}]" for i in range(len(matrices))), "ids", "b")
    newest("mul_mat_id", tensors, labels)
    pointers = ffi.new("struct ggml_tensor *[]", [m._live() for m in matrices])
    arguments = (pointers, len(matrices), ids._live(), id, b._live())
    return build("mul_mat_id", lib.ggml_mul_mat_id, tensors, *arguments, ndim=b.ndim, labels=labels, array=True)


@builds("ggml_out_prod")
def out_prod(a: Tensor, b: Tensor) -> Tensor:
    """Columns times columns: ``a (..., k, m)`` and ``b (..., k, n)`` give ``(..., n, m)``, which is ``b.T @ a``."""
    return build("out_prod", lib.ggml_out_prod, (a, b))


# ------------------------------------------------------------------------------------------------ copies, views, gather


@builds("ggml_dup", "ggml_dup_inplace")
def dup(a: Tensor, inplace: bool = False) -> Tensor:
    """A contiguous copy."""
    return build_1("dup", _pick("dup", inplace), a)


@builds("ggml_cpy")
def cpy(a: Tensor, b: Tensor) -> Tensor:
    """Copies ``a`` into the memory of ``b`` (same number of elements, any layout), converting the dtype. The result is
    a view of ``b``; the copy happens only if it is part of the graph."""
    return build_2("cpy", lib.ggml_cpy, a, b, ndim=OF_SECOND)


@builds("ggml_cast")
def cast(a: Tensor, dtype: DTypeLike) -> Tensor:
    """``a`` as another dtype."""
    return build_1("cast", lib.ggml_cast, a, as_dtype(dtype, "cast").id)


@builds("ggml_cont", "ggml_cont_1d", "ggml_cont_2d", "ggml_cont_3d", "ggml_cont_4d")
def cont(a: Tensor, shape: int | Sequence[int] | None = None) -> Tensor:
    """A contiguous copy, optionally with another shape of as many elements."""
    if shape is None:
        return build_1("cont", lib.ggml_cont, a)
    size = shape_tuple(shape, "cont: shape")
    n = max(len(size), 1)
    ne = ne_of(size, "cont")
    function = (lib.ggml_cont_1d, lib.ggml_cont_2d, lib.ggml_cont_3d, lib.ggml_cont_4d)[n - 1]
    return build_1("cont", function, a, *[ne[i] for i in range(n)], ndim=len(size))


@builds("ggml_reshape", "ggml_reshape_1d", "ggml_reshape_2d", "ggml_reshape_3d", "ggml_reshape_4d")
def reshape(a: Tensor, shape: Tensor | int | Sequence[int]) -> Tensor:
    """A view of a contiguous tensor with another shape (or that of a tensor). One size may be -1."""
    if isinstance(shape, Tensor):
        return build("reshape", lib.ggml_reshape, (a, shape), ndim=shape.ndim, labels=("a", "shape"))
    newest("reshape", (a,))
    size = resolve_shape(a, shape_tuple(shape, "reshape: shape"))
    n = len(size) or 1
    ne = ne_of(size, "reshape")
    function = (lib.ggml_reshape_1d, lib.ggml_reshape_2d, lib.ggml_reshape_3d, lib.ggml_reshape_4d)[n - 1]
    return build("reshape", function, (a,), *[ne[i] for i in range(n)], ndim=len(size))


@builds("ggml_view_1d", "ggml_view_2d", "ggml_view_3d", "ggml_view_4d", "ggml_view_tensor")
def view(
    a: Tensor, shape: int | Sequence[int] | None = None, strides: Sequence[int] | None = None, offset: int = 0
) -> Tensor:
    """A view of the memory of ``a``: ``offset`` bytes in, with byte ``strides`` in the order of ``shape`` (default:
    contiguous). The last stride is always one element. Without a shape: all of ``a``. Slices, ``a[2:4]``, are the
    convenient form."""
    if shape is None:
        if strides is not None or not isinstance(offset, int) or offset != 0:
            raise InvalidArgumentError("view: strides and an offset need a shape")
        return build("view", lib.gbpy_view_all, (a,))
    size = shape_tuple(shape, "view: shape")
    newest("view", (a,))
    offset, element = expect_int(offset, "view: offset"), a.dtype.itemsize
    strides = None if strides is None else shape_tuple(strides, "view: strides")
    if any(n % element for n in (offset, *(strides or ()))):
        unit = "a block" if a.dtype.is_quantized else "an element"
        wrong = f"offset {offset} and strides {strides}"
        raise InvalidArgumentError(
            f"view: {wrong} must be multiples of the {element} bytes of {unit} of {a.describe()}"
        )
    return raw_view("view", a, size, strides, offset)


@builds("ggml_permute")
def permute(a: Tensor, axis0: int, axis1: int, axis2: int, axis3: int) -> Tensor:
    """ggml's permutation, in ggml's order of dimensions (0 is the last axis of ``shape``): dimension ``i`` of ``a``
    becomes dimension ``axis_i`` of the view. :meth:`Tensor.transpose` is NumPy's."""
    axes = tuple(expect_int(axis, f"permute: axis{i}") for i, axis in enumerate((axis0, axis1, axis2, axis3)))
    ndim = max((axes[d] + 1 for d in range(min(_dims("permute", a), MAX_DIMS)) if 0 <= axes[d] < MAX_DIMS), default=1)
    return build("permute", lib.ggml_permute, (a,), *axes, ndim=ndim)


@builds("ggml_transpose")
def transpose(a: Tensor) -> Tensor:
    """A view with the last two axes exchanged."""
    return build("transpose", lib.ggml_transpose, (a,), ndim=max(_dims("transpose", a), 2))


@builds("ggml_get_rows")
def get_rows(a: Tensor, b: Tensor) -> Tensor:
    """Rows picked by int32 indices: ``a (rows, n)`` and ``b (k,)`` give ``(k, n)``; with batches ``a (..., rows, n)``
    and ``b (..., k)`` give ``(..., k, n)``. float32 (int32 for int32 ``a``). An index out of range is an error of the
    computation."""
    return build_2("get_rows", lib.ggml_get_rows, a, b, ndim=b.ndim + 1 if isinstance(b, Tensor) else 0)


@builds("ggml_get_rows_back")
def get_rows_back(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Zeros of the shape of ``c`` to whose row ``b[i]`` row ``i`` of ``a`` is added, for all ``i``: as exact as a sum
    of few, however many are added to a row."""
    return build("get_rows_back", lib.ggml_get_rows_back, (a, b, c), ndim=2)


@builds("ggml_diag")
def diag(a: Tensor) -> Tensor:
    """``(..., 1, n)`` as the diagonal of ``(..., n, n)``, zeros elsewhere."""
    return build("diag", lib.ggml_diag, (a,), ndim=max(_dims("diag", a), 2))


@builds("ggml_dup_tensor")
def empty_like(a: Tensor) -> Tensor:
    """A new tensor without memory, of the dtype and shape of ``a``."""
    return build("empty_like", lib.ggml_dup_tensor, (a,))


# ------------------------------------------------------------------------------------------------------- masks, softmax


@builds("ggml_diag_mask_inf", "ggml_diag_mask_inf_inplace")
def diag_mask_inf(a: Tensor, n_past: int = 0, inplace: bool = False) -> Tensor:
    """-inf above the diagonal: element ``(..., i, j)`` with ``j > n_past + i``."""
    return build_1("diag_mask_inf", _pick("diag_mask_inf", inplace), a, n_past)


@builds("ggml_diag_mask_zero", "ggml_diag_mask_zero_inplace")
def diag_mask_zero(a: Tensor, n_past: int = 0, inplace: bool = False) -> Tensor:
    """0 above the diagonal: element ``(..., i, j)`` with ``j > n_past + i``."""
    return build_1("diag_mask_zero", _pick("diag_mask_zero", inplace), a, n_past)


@builds("ggml_soft_max", "ggml_soft_max_inplace", "ggml_soft_max_ext", "ggml_soft_max_bias")
@without()
def soft_max(
    a: Tensor, mask: Tensor | None = None, scale: float = 1.0, inplace: bool = False, *, max_bias: float = 0.0
) -> Tensor:
    """``softmax(scale a + mask)`` of each row. ``mask (m, n)`` repeats over the rows of ``a (..., n)``. Contiguous.

    max_bias: above 0 the mask is multiplied by the slope of the head, the axis before the last two of ``a``: a mask of
        negative distances gives the linear biases of ALiBi (Press et al. 2022, arXiv:2108.12409), for h of 8 heads ``2
        ** (-max_bias (h + 1) / 8)``.

    A row that is -inf everywhere gives zeros; one with NaN or +inf, at a masked place too, is NaN everywhere.
    """
    if mask is None and _are((scale, max_bias), (1.0, 0.0)):
        return build_1("soft_max", _pick("soft_max", inplace), a)
    if expect_bool(inplace, "soft_max: inplace"):
        raise InvalidArgumentError("soft_max: with a mask or scale it cannot work in place")
    given: Any = mask
    if type(given) is int:  # an axis, elsewhere
        raise TypeError(f"soft_max: mask must be a Tensor, not int; {_LAST_AXIS}")
    if mask is None:
        if not _are((max_bias,), (0.0,)):
            raise InvalidArgumentError("soft_max: max_bias needs a mask, which it multiplies")
        return build("soft_max", lib.ggml_soft_max_ext, (a, mask), scale, labels=("a", "mask"))
    if not _are((max_bias,), (0.0,)):
        return build_2(
            "soft_max", lib.ggml_soft_max_bias, a, mask, scale, max_bias, ndim=OF_FIRST, labels=("a", "mask")
        )
    return build_2("soft_max", lib.ggml_soft_max_ext, a, mask, scale, ndim=OF_FIRST, labels=("a", "mask"))


@builds("ggml_soft_max_back", "ggml_soft_max_back_inplace")
def soft_max_back(a: Tensor, b: Tensor, inplace: bool = False) -> Tensor:
    """Gradient of :func:`soft_max`, given the gradient ``a`` of its result and the result ``b``."""
    return build("soft_max_back", _pick("soft_max_back", inplace), (a, b))


@builds("ggml_alibi")
def alibi(a: Tensor, n_past: int, n_head: int, bias_max: float) -> Tensor:
    """Adds linear biases to ``a (n_head, rows, n)``: ``j`` times the slope of the head (Press et al. 2022,
    arXiv:2108.12409). Always in place."""
    return build("alibi", lib.ggml_alibi, (a,), n_past, n_head, bias_max)


# ----------------------------------------------------------------------------------------------------- rotary embedding

_ROPE_MODES = {
    "normal": 0,
    "neox": 2,
    "glm": 4,
    "normal_exact": lib.GGML_ROPE_EXACT,
    "neox_exact": 2 | lib.GGML_ROPE_EXACT,
}
_RopeMode = Literal["normal", "neox", "glm", "normal_exact", "neox_exact"]


def _rope_mode(op: str, mode: int | str) -> int:
    return _choice(op, "mode", mode, _ROPE_MODES) if isinstance(mode, str) else expect_int(mode, f"{op}: mode")


@builds("ggml_rope", "ggml_rope_inplace", "ggml_rope_custom", "ggml_rope_custom_inplace", "ggml_rope_xpos_inplace")
def rope(
    a: Tensor,
    positions: Tensor,
    n_dims: int | None = None,
    mode: int | _RopeMode = "normal",
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
    inplace: bool = False,
) -> Tensor:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) of ``a (batch, tokens, heads, head size)``, float32
    or float16.

    positions: int32 ``(tokens,)``
    n_dims: how many elements of a head are rotated (default: all), the others stay
    mode: ``"normal"`` rotates neighbours (2i, 2i+1); ``"neox"`` pairs i with i + n_dims/2; ``"glm"`` is the two-part
        form, with n_ctx freq_base, freq_scale: pair i turns by ``position * freq_scale * freq_base ** (-2 i / n_dims)``
    n_orig_ctx, ext_factor, attn_factor, beta_fast, beta_slow: YaRN scaling (Peng et al. 2023, arXiv:2309.00071), off
        while ext_factor is 0

    So it is in the modes ``"normal_exact"`` and ``"neox_exact"``, which are the ones to use for models of today. Two
    modes differ from this as ggml of early 2024 does: ``"normal"`` rotates all of a head, whatever n_dims (which sets
    the angles only); ``"neox"`` multiplies by freq_scale twice, and with ext_factor takes YaRN's mixture of pair 0 for
    all pairs. With n_dims of the whole head, freq_scale 1 and ext_factor 0 there is no difference.
    xpos_base, xpos_down: xPos scaling (Sun et al. 2022, arXiv:2212.10554); only in place, only mode normal
    """
    labels = ("a", "positions")
    n = n_dims if n_dims is not None else a.shape[-1] if isinstance(a, Tensor) and a.ndim else 0
    number = _rope_mode("rope", mode)
    if xpos_base is not None:
        plain = _are((freq_base, freq_scale, ext_factor, attn_factor), (10000.0, 1.0, 0.0, 1.0))
        if not expect_bool(inplace, "rope: inplace") or number != 0 or not plain:
            raise InvalidArgumentError("rope: xpos needs inplace=True, mode 'normal' and no other scaling")
        return build(
            "rope",
            lib.ggml_rope_xpos_inplace,
            (a, positions),
            n,
            xpos_base,
            xpos_down,
            ndim=_dims("rope", a),
            labels=labels,
        )
    if _are((n_orig_ctx, freq_base, freq_scale, ext_factor, attn_factor), (0, 10000.0, 1.0, 0.0, 1.0)):
        return build_2("rope", _pick("rope", inplace), a, positions, n, number, n_ctx, ndim=OF_FIRST, labels=labels)
    scaling = (n_orig_ctx, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)
    return build_2(
        "rope", _pick("rope_custom", inplace), a, positions, n, number, n_ctx, *scaling, ndim=OF_FIRST, labels=labels
    )


@builds("ggml_rope_back")
def rope_back(
    a: Tensor,
    positions: Tensor,
    n_dims: int | None = None,
    mode: int | _RopeMode = "normal",
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
) -> Tensor:
    """Gradient of :func:`rope`, given the gradient ``a`` of its result. Not for mode "glm"."""
    n = n_dims if n_dims is not None else a.shape[-1] if isinstance(a, Tensor) and a.ndim else 0
    arguments = (n_orig_ctx, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow, xpos_base, xpos_down)
    number = _rope_mode("rope_back", mode)
    ndim = _dims("rope_back", a)
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


# ------------------------------------------------------------------------------------- convolution, pooling, resampling
# Pairs are (height, width); an int stands for both.

_KERNEL = ("kernel", "data")


@builds("ggml_im2col")
def im2col(
    kernel: Tensor, data: Tensor, stride: IntPair = 1, padding: IntPair = 0, dilation: IntPair = 1, is_2d: bool = True
) -> Tensor:
    """The windows of ``data`` as rows, in float16. 2-D: ``kernel (oc, ic, kh, kw)``, ``data (n, ic, h, w)`` give ``(n,
    oh, ow, ic*kh*kw)``; 1-D: ``kernel (oc, ic, k)``, ``data (n, ic, w)`` give ``(n, ow, ic*k)``. Of the float16 kernel
    only the shape counts."""
    (s1, s0), (p1, p0), (d1, d0) = (
        _pair("im2col", name, v) for name, v in (("stride", stride), ("padding", padding), ("dilation", dilation))
    )
    if not is_2d:
        s1, p1, d1 = 0, 0, 0
    ndim = 4 if is_2d else 3
    return build("im2col", lib.ggml_im2col, (kernel, data), s0, s1, p0, p1, d0, d1, is_2d, ndim=ndim, labels=_KERNEL)


@builds("ggml_conv_1d", "ggml_conv_1d_ph")
def conv_1d(
    kernel: Tensor, data: Tensor, stride: int = 1, padding: int | Literal["half"] = 0, dilation: int = 1
) -> Tensor:
    """``kernel (oc, ic, k)`` float16 over ``data (n, ic, w)``: ``(n, oc, ow)`` (cross-correlation, as in deep
    learning). padding="half" is ``k // 2``. The data is rounded to float16 (:func:`im2col`): beyond 65504 it becomes
    infinite."""
    ndim = max(_dims("conv_1d", data, "data"), 2)
    if isinstance(padding, str) and padding == "half":
        return build("conv_1d", lib.ggml_conv_1d_ph, (kernel, data), stride, dilation, ndim=ndim, labels=_KERNEL)
    return build("conv_1d", lib.ggml_conv_1d, (kernel, data), stride, padding, dilation, ndim=ndim, labels=_KERNEL)


@builds("ggml_conv_2d", "ggml_conv_2d_sk_p0", "ggml_conv_2d_s1_ph")
def conv_2d(
    kernel: Tensor,
    data: Tensor,
    stride: IntPair | Literal["kernel"] = 1,
    padding: IntPair | Literal["half"] = 0,
    dilation: IntPair = 1,
) -> Tensor:
    """``kernel (oc, ic, kh, kw)`` float16 over ``data (n, ic, h, w)``: ``(n, oc, oh, ow)``.

    stride="kernel" (with padding 0): windows side by side, as for patches. padding="half" (with stride 1): the size of
    the kernel halved. The data is rounded to float16 (:func:`im2col`): beyond 65504 it becomes infinite.
    """
    ndim = max(_dims("conv_2d", data, "data"), 3)
    if isinstance(stride, str) and stride == "kernel":
        if padding != 0 or dilation != 1:
            raise InvalidArgumentError("conv_2d: stride='kernel' needs padding 0 and dilation 1")
        return build("conv_2d", lib.ggml_conv_2d_sk_p0, (kernel, data), ndim=ndim, labels=_KERNEL)
    if isinstance(padding, str) and padding == "half":
        if stride != 1 or dilation != 1:
            raise InvalidArgumentError("conv_2d: padding='half' needs stride 1 and dilation 1")
        return build("conv_2d", lib.ggml_conv_2d_s1_ph, (kernel, data), ndim=ndim, labels=_KERNEL)
    return _conv("conv_2d", lib.ggml_conv_2d, kernel, data, stride, padding, dilation, ndim)


def _conv(
    op: str,
    function: Any,
    kernel: Tensor,
    data: Tensor,
    stride: IntPair,
    padding: IntPair,
    dilation: IntPair,
    ndim: int,
) -> Tensor:
    (s1, s0), (p1, p0), (d1, d0) = (
        _pair(op, name, v) for name, v in (("stride", stride), ("padding", padding), ("dilation", dilation))
    )
    return build(op, function, (kernel, data), s0, s1, p0, p1, d0, d1, ndim=ndim, labels=_KERNEL)


@builds("ggml_conv_depthwise_2d")
def conv_depthwise_2d(
    kernel: Tensor, data: Tensor, stride: IntPair = 1, padding: IntPair = 0, dilation: IntPair = 1
) -> Tensor:
    """A kernel for each channel: ``kernel (c, 1, kh, kw)`` float16 over ``data (n, c, h, w)``: ``(n, c, oh, ow)``. The
    data is rounded to float16 (:func:`im2col`): beyond 65504 it becomes infinite."""
    ndim = max(_dims("conv_depthwise_2d", data, "data"), 3)
    return _conv("conv_depthwise_2d", lib.ggml_conv_depthwise_2d, kernel, data, stride, padding, dilation, ndim)


@builds("ggml_conv_transpose_1d")
def conv_transpose_1d(kernel: Tensor, data: Tensor, stride: int = 1, padding: int = 0, dilation: int = 1) -> Tensor:
    """``kernel (ic, oc, k)`` float16 or float32, ``data (ic, w)``: ``(oc, (w - 1) stride + k)``. Padding 0 and dilation
    1 only."""
    ndim = max(_dims("conv_transpose_1d", data, "data"), 2)
    return build(
        "conv_transpose_1d",
        lib.ggml_conv_transpose_1d,
        (kernel, data),
        stride,
        padding,
        dilation,
        ndim=ndim,
        labels=_KERNEL,
    )


@builds("ggml_conv_transpose_2d_p0")
def conv_transpose_2d(kernel: Tensor, data: Tensor, stride: int = 1) -> Tensor:
    """``kernel (ic, oc, kh, kw)`` float16, ``data (n, ic, h, w)``: ``(n, oc, (h - 1) stride + kh, (w - 1) stride +
    kw)``."""
    ndim = max(_dims("conv_transpose_2d", data, "data"), 3)
    return build("conv_transpose_2d", lib.ggml_conv_transpose_2d_p0, (kernel, data), stride, ndim=ndim, labels=_KERNEL)


_POOL = {"max": lib.GGML_OP_POOL_MAX, "avg": lib.GGML_OP_POOL_AVG}


@builds("ggml_pool_1d")
def pool_1d(a: Tensor, op: Literal["max", "avg"], kernel: int, stride: int | None = None, padding: int = 0) -> Tensor:
    """Maxima or means of windows of each row: ``(rows, w)`` gives ``(rows, ow)``. stride: default the kernel. Windows
    with NaN give NaN."""
    number = _choice("pool_1d", "op", op, _POOL)
    return build("pool_1d", lib.ggml_pool_1d, (a,), number, kernel, kernel if stride is None else stride, padding)


@builds("ggml_pool_2d")
def pool_2d(
    a: Tensor,
    op: Literal["max", "avg"],
    kernel: IntPair,
    stride: IntPair | None = None,
    padding: float | tuple[float, float] = 0,
) -> Tensor:
    """Maxima or means of windows: ``(c, h, w)`` gives ``(c, oh, ow)``. stride: default the kernel. Means count the
    padding as zeros; the maximum of a window of padding alone is -inf. Windows with NaN give NaN."""
    number = _choice("pool_2d", "op", op, _POOL)
    k1, k0 = _pair("pool_2d", "kernel", kernel)
    s1, s0 = (k1, k0) if stride is None else _pair("pool_2d", "stride", stride)
    p1, p0 = padding if isinstance(padding, (tuple, list)) else (padding, padding)
    return build("pool_2d", lib.ggml_pool_2d, (a,), number, k0, k1, s0, s1, p0, p1)


@builds("ggml_upscale")
def upscale(a: Tensor, factor: int) -> Tensor:
    """Each element of the last two axes ``factor`` times, in both directions: ``(..., h, w)`` gives ``(..., h f, w
    f)``."""
    return build("upscale", lib.ggml_upscale, (a,), factor, ndim=max(_dims("upscale", a), 2))


@builds("ggml_pad")
def pad(a: Tensor, amounts: int | Sequence[int]) -> Tensor:
    """Zeros appended at the end of the last axes: ``pad(a, (1, 2))`` adds a row and two columns."""
    size = shape_tuple(amounts, "pad: amounts")
    if len(size) > MAX_DIMS:
        raise InvalidArgumentError(f"pad: {len(size)} amounts, at most {MAX_DIMS} axes are possible")
    if any(amount < 0 for amount in size):
        raise InvalidArgumentError(f"pad: amounts are not negative, but {size}")
    p = [*reversed(size), *[0] * (MAX_DIMS - len(size))]
    return build("pad", lib.ggml_pad, (a,), *p, ndim=max(_dims("pad", a), len(size)))


# ------------------------------------------------------------------------------- attention, windows, relative positions


@builds("ggml_flash_attn")
def flash_attn(q: Tensor, k: Tensor, v: Tensor, masked: bool = False) -> Tensor:
    """``softmax(q k^T / sqrt(d)) v`` in one node (Dao et al. 2022, arXiv:2205.14135).

    ``q (..., heads, n, d)``, ``k (..., heads_kv, m, d)``, and ``v`` with its last two axes exchanged, ``(..., heads_kv,
    d, m)``; all float32 or all float16; the result is ``(..., heads, n, d)`` float32. Head ``h`` uses ``k`` and ``v``
    of head ``h % heads_kv``.
    masked: causal, with ``m - n`` earlier positions: query ``i`` sees keys 0 to ``m - n + i``, and the others do not
    count, NaN or not. Masked or not, there are no fewer keys than queries: ``m >= n``.
    """
    return build("flash_attn", lib.ggml_flash_attn, (q, k, v), masked, labels="qkv")


@builds("ggml_flash_attn_back")
def flash_attn_back(q: Tensor, k: Tensor, v: Tensor, d: Tensor, masked: bool = False) -> Tensor:
    """Gradients of :func:`flash_attn` with respect to q, k and v one after the other in one vector, each start padded
    to 16 bytes, given the gradient ``d`` of its result."""
    return build("flash_attn_back", lib.ggml_flash_attn_back, (q, k, v, d), masked, ndim=1, labels="qkvd")


@builds("ggml_flash_ff")
def flash_ff(a: Tensor, b0: Tensor, b1: Tensor, c0: Tensor, c1: Tensor) -> Tensor:
    """A feed-forward block in one node: ``gelu(a @ b0.T + b1) @ c0.T + c1``. ``a (..., n, d)``, ``b0 (..., h, d)``,
    ``c0 (..., d, h)`` float16, ``b1 (h,)``, ``c1 (d,)`` float32."""
    return build(
        "flash_ff",
        lib.ggml_flash_ff,
        (a, b0, b1, c0, c1),
        ndim=_dims("flash_ff", a),
        labels=("a", "b0", "b1", "c0", "c1"),
    )


@builds("ggml_win_part")
def win_part(a: Tensor, window: int) -> Tensor:
    """``(h, w, c)`` cut into squares, padded with zeros: ``(squares, window, window, c)``."""
    return build("win_part", lib.ggml_win_part, (a,), window, ndim=4)


@builds("ggml_win_unpart")
def win_unpart(a: Tensor, width: int, height: int, window: int) -> Tensor:
    """The reverse of :func:`win_part`: ``(height, width, c)``."""
    return build("win_unpart", lib.ggml_win_unpart, (a,), width, height, window, ndim=3)


@builds("ggml_get_rel_pos")
def get_rel_pos(a: Tensor, qh: int, kh: int) -> Tensor:
    """``a (2 kh - 1, c)`` float16 as ``(qh, kh, c)``: row ``(i, j)`` is ``a[kh - 1 - j + i]``. ``qh == kh``."""
    return build("get_rel_pos", lib.ggml_get_rel_pos, (a,), qh, kh, ndim=3)


@builds("ggml_add_rel_pos", "ggml_add_rel_pos_inplace")
def add_rel_pos(a: Tensor, pw: Tensor, ph: Tensor, inplace: bool = False) -> Tensor:
    """Adds decomposed relative positions to ``a (b, q, k*k)``: ``ph[.., y] + pw[.., x]`` to element ``y k + x``; ``pw,
    ph (b, qh, qw, k)``."""
    return build(
        "add_rel_pos",
        _pick("add_rel_pos", inplace),
        (a, pw, ph),
        ndim=_dims("add_rel_pos", a),
        labels=("a", "pw", "ph"),
    )


# --------------------------------------------------------------------------------------------------------------- losses

_EPS_OF_2024 = 1e-9


@builds("ggml_cross_entropy_loss", "ggml_cross_entropy_loss_eps")
def cross_entropy_loss(a: Tensor, b: Tensor, eps: float = 1e-9) -> Tensor:
    """``-mean over rows of sum(b log(p (1 - eps) + eps))`` with ``p = softmax(a)``, shape ``()``; ``b`` holds the
    target probabilities.

    eps: 0 gives the cross entropy itself, for logits however far apart: ``-mean of sum(b log_softmax(a))``, where an
        element whose ``b`` is 0 adds nothing. The default is what ggml of early 2024 computes: it cannot see
        probabilities below 1e-9 (no element costs more than 20.7), and is off by 5 % for 100,000 classes. Below 1.

    The gradient for the default is that of early 2024 too, ``(p (1 - eps) + eps - b) / rows``, right for rows of ``b``
    that add up to 1; for any other eps it is the derivative, ``(p sum(b) - b) / rows`` for 0.
    """
    if _are((eps,), (_EPS_OF_2024,)):
        return build("cross_entropy_loss", lib.ggml_cross_entropy_loss, (a, b), ndim=0)
    return build("cross_entropy_loss", lib.ggml_cross_entropy_loss_eps, (a, b), eps, ndim=0)


@builds("ggml_cross_entropy_loss_back", "ggml_cross_entropy_loss_eps_back")
def cross_entropy_loss_back(a: Tensor, b: Tensor, c: Tensor, eps: float = 1e-9) -> Tensor:
    """Gradient of :func:`cross_entropy_loss` with respect to ``a``, given the gradient ``c`` (one element) of its
    result."""
    if _are((eps,), (_EPS_OF_2024,)):
        return build("cross_entropy_loss_back", lib.ggml_cross_entropy_loss_back, (a, b, c))
    return build("cross_entropy_loss_back", lib.ggml_cross_entropy_loss_eps_back, (a, b, c), eps)


# Made by Context.tensor (all sizes at once) and Context.constant.
for _name in ("", "_1d", "_2d", "_3d", "_4d"):
    BUILDERS[f"ggml_new_tensor{_name}"] = Tensor
BUILDERS["ggml_new_i32"] = BUILDERS["ggml_new_f32"] = Tensor

OPERATIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in BUILDERS.values() if f is not Tensor}
"""The public operations by name."""
