"""Cases of operators on elements and rows. A case is a call with inputs, and its tolerance.

The families are generators of :class:`Case` in five files: this one, ``_products``, ``_windows``,
``_attention`` and ``_layers``. ``_variants`` adds dtypes, layouts and the memory of results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np

from .. import ops
from ..devices._nodes import op_facts
from ..dtypes import dtypes
from ._inputs import FLOATS, In
from ._tolerance import ABSOLUTE, BLOCKS, EXACT, Rule

__all__ = [
    "COMPARE",
    "VIEWS",
    "Case",
    "Sizes",
    "a",
    "b",
    "call",
    "f16",
    "f32",
    "ids",
    "in_place_sources",
    "of_elements",
    "of_rows",
    "one",
]

VIEWS = frozenset({"reshape", "view", "permute_ggml", "transpose", "empty_like"})
"""Operations that compute nothing. Other operations that use their results are checked."""

COMPARE = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")


def in_place_sources(name: str) -> tuple[int, ...]:
    """The sources that the result of a function may overwrite (docs/PLANNING.md, "In place")."""
    op = {"unary": "silu", **dict.fromkeys(COMPARE, "compare")}.get(name, name)
    return op_facts()[op].in_place if op in op_facts() else ()


@dataclass(frozen=True)
class Case:
    """A call of an operation.

    layouts: also test its sources as views
    inplace: it has a form that overwrites its first source
    """

    name: str
    inputs: tuple[In, ...]
    call: Callable[..., Any]
    rule: Rule
    label: str = ""
    layouts: bool = False
    inplace: bool = False


@dataclass(frozen=True)
class Sizes:
    """The sizes of each operator: one, a few (``"quick"``), all, or large enough for several
    threads (``"large"``)."""

    kind: Literal["one", "quick", "all", "large"]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        every = [(1,), (7,), (3, 5), (2, 33), (5, 64), (2, 256), (2, 3, 4, 33), (70, 17), (0, 3), (2, 0)]
        few = [(1,), (3, 5), (2, 256), (0, 3)]
        found: dict[str, list[tuple[int, ...]]] = {"one": [(3, 5)], "quick": few, "all": every, "large": [(130, 517)]}
        return found[self.kind]

    def some(self, found: Sequence[Any], quick: int, large: Sequence[Any]) -> list[Any]:
        """All sizes; the first one; the first ones; the large ones."""
        n = {"one": 1, "quick": quick, "all": len(found)}
        return list(found[: n[self.kind]] if self.kind in n else large)


def a(*shape: int, low: float = -2.0, high: float = 2.0) -> In:
    return In(shape, "a", low, high)


def b(*shape: int, low: float = -2.0, high: float = 2.0) -> In:
    return In(shape, "b", low, high)


def f32(*shape: int, low: float = -2.0, high: float = 2.0) -> In:
    return In(shape, "float32", low, high)


def f16(*shape: int) -> In:
    return In(shape, "float16", -1.0, 1.0)


def ids(values: Any, dtype: str = "int32") -> In:
    array = np.asarray(values, dtype)
    return In(array.shape, dtype, values=tuple(array.reshape(-1).tolist()))


def call(name: str, rule: Rule, *inputs: In, layouts: bool = False, inplace: bool = False, **options: Any) -> Case:
    label = ",".join(f"{k}={v}" for k, v in options.items()).replace(" ", "")
    return Case(name, inputs, partial(ops.OPERATIONS[name], **options), rule, label, layouts, inplace)


def one(name: str, rule: Rule, inputs: Sequence[In], function: Callable[..., Any], label: str = "") -> Case:
    """A call of a function of tensors."""
    return Case(name, tuple(inputs), function, rule, label)


# ---- elements --------------------------------------------------------------------------------------------------------


def _both(x: Any, y: Any) -> Any:
    return np.abs(x) + np.abs(y)


_SMOOTH = Rule(terms=16, magnitude=_both)
_CHOOSE = ("abs", "sgn", "neg", "step", "relu", "floor", "ceil", "round", "trunc")
_COMPUTE = {
    **dict.fromkeys(["tanh", "gelu", "gelu_erf", "gelu_quick", "silu", "hardswish"], _SMOOTH),
    "elu": Rule(terms=16, magnitude=lambda x, y: 1 + np.abs(x)),
    "hardsigmoid": Rule(terms=4, magnitude=lambda x, y: 1.0),
    "exp": Rule(terms=8),
    "sigmoid": Rule(terms=12),
    **dict.fromkeys(["sin", "cos"], Rule(terms=8, magnitude=lambda x, y: 1.0)),
    "softplus": Rule(terms=16),
    "expm1": Rule(terms=8),
    "sqr": Rule(terms=1),
    "leaky_relu": Rule(terms=1),
}
_FRESH = ("hardswish", "hardsigmoid")  # have no in-place form


def of_elements(sizes: Sizes) -> Iterator[Case]:
    """Functions of one tensor, and arithmetic of two."""
    for shape in [*sizes.shapes, *sizes.some([], 0, [(1, 70001)])]:
        views = len(shape) > 1 and (prod(shape) < 300 or sizes.kind == "large")
        for name in _CHOOSE:
            yield call(name, EXACT, a(*shape), layouts=views, inplace=True)
        for name, rule in _COMPUTE.items():
            yield call(name, rule, a(*shape), layouts=views, inplace=name not in _FRESH)
        yield call("sqrt", Rule(terms=3), a(*shape, low=0.1), layouts=views, inplace=True)
        log = Rule(terms=4, magnitude=lambda x, y: 1 + np.abs(y))
        yield call("log", log, a(*shape, low=0.1), layouts=views, inplace=True)
        yield call("unary", _SMOOTH, a(*shape), op="silu")
        yield call("leaky_relu", Rule(terms=1), a(*shape), negative_slope=0.3)
        yield call("clamp", EXACT, a(*shape), layouts=views, min=-0.5, max=1.0)
        yield call("scale", Rule(terms=1), a(*shape), layouts=views, inplace=True, s=0.37)
        biased = Rule(terms=2, magnitude=lambda x, y: np.abs(x) + 1)
        yield call("scale", biased, a(*shape), layouts=views, inplace=True, s=0.37, bias=-0.7)
        square = Rule(terms=16, magnitude=lambda x, y: 1 + np.abs(x) + x * x)
        yield call("xielu", square, a(*shape), layouts=views, alpha_n=0.3, alpha_p=0.7)
        yield call("fill", EXACT, a(*shape), inplace=True, value=0.5)
        back = Rule(terms=12, magnitude=lambda x, g, y: (1 + np.abs(x)) * (1 + np.abs(g)))
        yield call("silu_back", back, a(*shape), b(*shape), layouts=views)
        yield from _arithmetic(shape, views)
        yield from _choices(shape, views)


def _arithmetic(shape: tuple[int, ...], views: bool) -> Iterator[Case]:
    rules = {"add": Rule(terms=1), "sub": Rule(terms=1), "mul": Rule(terms=1), "div": Rule(terms=3)}
    for name, rule in rules.items():
        yield call(name, rule, a(*shape), b(*shape, low=0.5), layouts=views, inplace=True)
        yield call(name, rule, a(*shape), b(shape[-1], low=0.5))
        yield call(name, rule, a(*shape), b(*shape[:-1], 1, low=0.5))
        yield call(name, rule, a(4, *shape[-3:]), b(2, *shape[-3:], low=0.5), layouts=views and len(shape) == 2)
    yield call("add1", rules["add"], a(*shape), b(1), inplace=True)
    for target in FLOATS:
        yield call("add_cast", rules["add"], a(*shape), b(*shape), dtype=target)
    if len(shape) > 1 and 0 not in shape:
        n = shape[-1]
        region = {"acc": rules["add"], "set": EXACT}
        for name, rule in region.items():
            yield call(name, rule, f32(shape[-2] + 1, n), f32(shape[-2], n), inplace=True, offset=4 * n)


def _choices(shape: tuple[int, ...], views: bool) -> Iterator[Case]:
    for name in COMPARE:
        yield call(name, EXACT, a(*shape), b(*shape), layouts=views)
        yield one(name, EXACT, [a(*shape)], partial(_with_itself, ops.OPERATIONS[name]), "itself")
    yield call("less", EXACT, a(*shape), b(*shape[:-1], 1))
    yield one("less", EXACT, [a(*shape), b(1)], lambda x, y: ops.less(y, x), "mirrored")
    yield call("where", EXACT, b(*shape), a(*shape), a(*shape), layouts=views)
    yield call("where", EXACT, b(*shape[:-1], 1), a(*shape), a(1))
    yield call("where", EXACT, ids(np.arange(prod(shape)).reshape(shape) % 2), a(*shape), a(*shape[-1:]))


def _with_itself(compare: Callable[..., Any], x: Any) -> Any:
    return compare(x, x)


# ---- rows ------------------------------------------------------------------------------------------------------------


def _mean(x: Any) -> Any:
    return x.sum(-1, keepdims=True) / max(x.shape[-1], 1)


def _spread(x: Any, y: Any, eps: float = 1e-5) -> Any:
    x = x.astype(np.float64)
    return (np.abs(x) + _mean(np.abs(x))) / np.sqrt(_mean((x - _mean(x)) ** 2) + eps)


def _norm_back(x: Any, g: Any, y: Any, eps: float = 1e-5) -> Any:
    square = _mean(x.astype(np.float64) ** 2) + eps
    both = _mean(np.abs(x * g))
    return (np.abs(g) + np.abs(x) * both / square) / np.sqrt(square)


def of_rows(sizes: Sizes) -> Iterator[Case]:
    """Sums, norms, softmax, order, copies and conversions."""
    for shape in sizes.shapes:
        n, views = shape[-1], len(shape) > 1 and (prod(shape) < 300 or sizes.kind == "large")
        total = Rule(n=n, magnitude=ABSOLUTE)
        yield call("sum", Rule(n=prod(shape), magnitude=ABSOLUTE), a(*shape), layouts=views)
        yield call("sum_rows", total, a(*shape), layouts=views)
        if n:
            yield call("mean", total, a(*shape), layouts=views)
            yield call("argmax", EXACT, a(*shape), layouts=views)
        yield call("cumsum", Rule(n=n, magnitude=lambda x, y: np.cumsum(np.abs(x), -1)), a(*shape), layouts=views)
        yield call("l2_norm", Rule(terms=8, n=n), a(*shape), layouts=views, inplace=True)
        for name, rule in (("norm", Rule(terms=8, n=n, magnitude=_spread)), ("rms_norm", Rule(terms=8, n=n))):
            yield call(name, rule, a(*shape), layouts=views, inplace=True)
            yield call(name, rule, a(*shape), eps=0.1)
        yield call("rms_norm_back", Rule(terms=12, n=2 * n, magnitude=_norm_back), a(*shape), b(*shape))
        yield from _softmax(shape, views)
        for descending in (False, True):
            yield call("argsort", EXACT, a(*shape), layouts=views, descending=descending)
        if n > 1:
            yield call("top_k", EXACT, a(*shape), k=min(3, n))
        yield call("group_norm", Rule(terms=16, n=2 * prod(shape[-3:]), magnitude=_largest), a(*shape), n_groups=1)
        yield from _moves(shape, views)
        if len(shape) > 1:
            yield from _picks(shape)
    yield from _conversions(sizes)


def _largest(x: Any, y: Any) -> Any:
    return np.abs(y).max(initial=0.0) + np.abs(x).max(initial=0.0)


def _softmax(shape: tuple[int, ...], views: bool) -> Iterator[Case]:
    n = shape[-1]
    rule = Rule(terms=40, n=n)
    yield call("soft_max", rule, a(*shape), layouts=views, inplace=True)
    yield call("soft_max", rule, a(*shape), scale=0.6)
    yield call("soft_max", rule, a(*shape), b(*shape[-2:]), scale=0.5)
    back = Rule(terms=4, n=n, magnitude=lambda g, y, r: np.abs(y) * (np.abs(g) + np.abs(g * y).sum(-1, keepdims=True)))
    yield call("soft_max_back", back, a(*shape), b(*shape), inplace=True)
    yield call("diag_mask_inf", EXACT, a(*shape), layouts=views, inplace=True, n_past=1)
    yield call("diag_mask_zero", EXACT, a(*shape), layouts=views, inplace=True, n_past=0)
    if len(shape) > 1:
        rows = shape[-2:]
        yield call("soft_max", rule, a(4, *rows), b(*rows), scale=0.5, max_bias=8.0)
        biased = Rule(terms=8, magnitude=_both)
        yield call("alibi", biased, a(2, *rows), n_past=0, n_head=2, bias_max=8.0)
        if 0 not in shape:
            loss = Rule(terms=64, n=n)
            yield call("cross_entropy_loss", loss, a(*shape), f32(*shape, low=0.01, high=1.0))
            grad = Rule(terms=32, n=n, magnitude=lambda x, p, c, y: (1 + np.abs(p)) * np.abs(c))
            yield call("cross_entropy_loss_back", grad, a(*shape), f32(*shape, low=0.01), f32(1))


def _moves(shape: tuple[int, ...], views: bool) -> Iterator[Case]:
    n = shape[-1]
    for name in ("dup", "cont"):
        yield call(name, EXACT, a(*shape), layouts=views)
    yield one("cont", EXACT, [a(*shape)], lambda x: ops.cont(x.transpose()), "transposed")
    if 0 not in shape:
        yield call("cont", EXACT, a(*shape), shape=(-1,))
        yield call("repeat", EXACT, a(*shape), layouts=views, like=(2, *shape[-3:-1], 2 * n))
        folded = Rule(n=8, magnitude=ABSOLUTE)
        yield call("repeat_back", folded, a(4, *shape[-3:-1], 2 * n), like=(2, *shape[-3:-1], n))
    yield call("pad", EXACT, a(*shape), layouts=views, amounts=3)
    yield call("upscale", EXACT, a(*shape), layouts=views, factor=2)
    yield call("concat", EXACT, a(*shape), b(*shape), axis=-1)
    yield call("concat", EXACT, a(*shape), b(*shape), axis=0)
    yield call("diag", EXACT, a(*shape[:-1][:2], 1, min(n, 256)))


def _picks(shape: tuple[int, ...]) -> Iterator[Case]:
    rows, n = shape[-2:]
    if rows:
        at = ids(np.arange(5) * 7 % rows)
        yield call("get_rows", _UNPACKED, a(rows, n), at, layouts=True)
        both = ids(np.arange(6).reshape(2, 3) % rows)
        yield call("get_rows", _UNPACKED, a(2, rows, n), both)
        some = np.arange(rows)[::-2]
        yield call("set_rows", _UNPACKED, a(rows, n), b(len(some), n), ids(some), layouts=True)
        planes = ids(np.stack([some, some[::-1]]), "int64")
        yield call("set_rows", _UNPACKED, a(2, 4, rows, n), b(2, 4, len(some), n), planes)
        yield call("get_rows_back", Rule(n=5, magnitude=ABSOLUTE), b(5, n), at, a(rows, n))


_UNPACKED = Rule(terms=6, magnitude=lambda *x: np.abs(x[-1]).max(initial=0.0))
"""The tolerance of quantized values. ``_variants`` replaces it with EXACT for plain values, which
are copied."""


def _conversions(sizes: Sizes) -> Iterator[Case]:
    shapes = sizes.some([(2, 256), (1,), (3, 5), (0, 3), (4, 3, 64)], 2, [(130, 512)])
    for shape in shapes:
        for target in dtypes.values():
            rule = BLOCKS if target.is_quantized else _UNPACKED
            whole = not shape[-1] % target.block_size
            if whole:
                yield call("cast", rule, a(*shape), dtype=target.name)
                yield one("cpy", rule, [a(*shape), In(shape, target.name)], ops.cpy)
    for shape in sizes.some([(3, 5), (2, 3, 33)], 1, [(130, 517)]):
        for target_name in (*FLOATS, "int32"):
            for view in ("padded", "transposed"):
                yield one("cpy", _UNPACKED, [a(*shape), In(shape, target_name)], partial(_into, view), f"into-{view}")


def _into(view: str, x: Any, y: Any) -> Any:
    """A copy into a view: rows with gaps, or transposed axes."""
    if view == "transposed":
        return ops.cpy(x.transpose(), y.transpose())
    return ops.cpy(x[..., 1:], y[..., 1:])
