"""Random graphs with the same results on every correct device, in any order of additions.

All values are small integers, and large products are clamped. So each number is exact in float32,
and in float16 where a graph casts to it. If a device promises the bits of the CPU, the graphs also
have operators that round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import ops
from ..dtypes import float32, int32
from ..tensor.context import Context
from ..tensor.graph import Graph
from ..tensor.tensor import Tensor
from ._inputs import Array
from ._operators import _NO_WORK

__all__ = ["RandomGraph", "random_graph"]

_D = 8  # rows and columns
_LARGEST = 2048.0  # every integer up to it is a float16
_START = 3  # largest magnitude of inputs
Step = Callable[["RandomGraph", np.random.Generator], "tuple[Tensor, float] | None"]


@dataclass
class RandomGraph:
    """A graph without memory, with its inputs and the values that it can extend."""

    allowed: Callable[[Tensor], bool]
    ctx: Context = field(default_factory=Context)
    inputs: list[Tensor] = field(default_factory=list)
    values: list[tuple[Tensor, float]] = field(default_factory=list)
    """Matrices, with the largest possible magnitude of their elements."""
    used: set[Tensor] = field(default_factory=set)
    known: set[Tensor] = field(default_factory=set)
    outputs: list[Tensor] = field(default_factory=list)
    graph: Graph = field(init=False)

    def leaf(self, *shape: int, dtype: Any = float32) -> Tensor:
        t = self.ctx.tensor(shape, dtype, name=f"in{len(self.inputs)}").set_input()
        self.inputs.append(t)
        return t

    def pick(self, rng: np.random.Generator) -> tuple[Tensor, float]:
        """A value, mostly a recent one."""
        n = len(self.values)
        at = max(n - 1 - int(rng.integers(0, 5)), 0) if rng.random() < 0.7 else int(rng.integers(0, n))
        self.used.add(self.values[at][0])
        return self.values[at]

    def fresh(self) -> tuple[Tensor, float] | None:
        """Removes and returns the last value if no node reads it, so that it may be overwritten.
        Else None."""
        t, limit = self.values[-1]
        if t in self.used or t in self.inputs or t.view_of is not None or not t.is_contiguous:
            return None
        self.values.pop()
        return t, limit

    def accepts(self, t: Tensor) -> bool:
        """True if all new nodes that this value needs are allowed."""
        left, new = [t], set()
        while left:
            node = left.pop()
            if node in self.known or node in new:
                continue
            new.add(node)
            if node.op not in _NO_WORK and not self.allowed(node):
                return False
            left += node.sources
        self.known |= new
        return True

    def fill(self, rng: np.random.Generator, some: bool = False) -> None:
        """Sets new random inputs. some: only about half of them"""
        for t in self.inputs:
            data: Array
            if t.dtype == int32:
                data = rng.permutation(_D).astype(np.int32)
            else:
                data = rng.integers(-_START, _START + 1, t.shape).astype(np.float32)
            if not some or rng.random() < 0.5:
                t.set(data)

    @property
    def computed(self) -> list[Tensor]:
        return [t for t in self.graph.nodes if t.op not in _NO_WORK]


# ---- steps -----------------------------------------------------------------------------------------------------------


def _unary(name: str, limit: Callable[[float], float] = lambda m: m) -> Step:
    def step(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
        x, m = built.pick(rng)
        return ops.OPERATIONS[name](x), limit(m)

    return step


def _binary(name: str, limit: Callable[[float, float], float]) -> Step:
    def step(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
        (x, m), (y, n) = built.pick(rng), built.pick(rng)
        return ops.OPERATIONS[name](x, y), limit(m, n)

    return step


def _mul_mat(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
    (x, m), (y, n) = built.pick(rng), built.pick(rng)
    x = x if x.nb[0] == x.dtype.itemsize else ops.cont(x)
    return ops.mul_mat(x, y), _D * m * n


def _scale(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = built.pick(rng)
    factor = float(rng.choice([-1.0, 2.0, -2.0]))
    return ops.scale(x, factor), abs(factor) * m


def _transposed(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = built.pick(rng)
    return ops.cont(ops.transpose(x)) if rng.random() < 0.7 else ops.transpose(x), m


def _halves(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
    """Concatenates rows of two values, both through views."""
    (x, m), (y, n) = built.pick(rng), built.pick(rng)
    at = int(rng.integers(1, _D))
    return ops.concat(ops.relu(x[:at]), ops.neg(y[at:]), axis=0), max(m, n)


def _narrow(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = built.pick(rng)
    return ops.cast(ops.cast(x, "float16"), "float32"), m


def _rows(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = built.pick(rng)
    index = next(t for t in built.inputs if t.dtype == int32)
    return ops.get_rows(x.contiguous(), index), m


def _sums(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
    (x, m), (y, n) = built.pick(rng), built.pick(rng)
    return ops.add(x, ops.sum_rows(y)), m + _D * n


def _row(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = built.pick(rng)
    return ops.mul(x, built.inputs[1]), m * _START


def _mask(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = built.pick(rng)
    return ops.diag_mask_zero(x.contiguous(), int(rng.integers(0, 4))), m


def _over(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float] | None:
    """An in-place operation on a value that no other node reads."""
    found = built.fresh()
    if found is None:
        return None
    (x, m), kind = found, int(rng.integers(0, 3))
    if kind == 0:
        return ops.relu(x, inplace=True), m
    if kind == 1:
        return ops.scale(x, -1.0, inplace=True), m
    y, n = built.pick(rng)
    return ops.add(x, y, inplace=True), m + n


def _cache(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
    """Writes into a part of an input, like a cache, and reads it again."""
    x, m = built.pick(rng)
    into = built.leaf(2 * _D, _D)
    at = int(rng.integers(0, _D + 1))
    return ops.add(ops.cpy(x, into[at : at + _D]), built.pick(rng)[0]), 2 * max(m, _LARGEST)


def _of_rows(name: str, limit: float) -> Step:
    def step(built: RandomGraph, rng: np.random.Generator) -> tuple[Tensor, float]:
        return ops.OPERATIONS[name](built.pick(rng)[0].contiguous()), limit

    return step


_EXACT: tuple[Step, ...] = (
    *(_unary("relu"), _unary("abs"), _unary("neg"), _unary("sgn", lambda m: 1.0), _unary("step", lambda m: 1.0)),
    *(_unary("sqr", lambda m: m * m), _binary("add", lambda m, n: m + n), _binary("sub", lambda m, n: m + n)),
    *(_binary("mul", lambda m, n: m * n), _binary("add", lambda m, n: m + n), _mul_mat, _mul_mat, _scale),
    *(_transposed, _halves, _narrow, _rows, _sums, _row, _mask, _over, _over, _cache),
)
_ROUNDED: tuple[Step, ...] = (
    *(_unary("tanh", lambda m: 1.0), _unary("silu"), _unary("gelu")),
    *(_of_rows("soft_max", 1.0), _of_rows("rms_norm", 3.0), _of_rows("norm", 3.0)),
)


def _bounded(found: tuple[Tensor, float]) -> tuple[Tensor, float]:
    t, limit = found
    return found if limit <= _LARGEST else (ops.clamp(t, -8.0, 8.0), 8.0)


def random_graph(
    rng: np.random.Generator, steps: int, allowed: Callable[[Tensor], bool] = lambda t: True, rounds: bool = False
) -> RandomGraph:
    """A graph of about ``steps`` operations. Equal random numbers make equal graphs.

    allowed: whether the graph may have a node
    rounds: the graph may have operators that round
    """
    built = RandomGraph(allowed)
    built.values = [(built.leaf(_D, _D), float(_START))]
    built.leaf(_D)
    built.leaf(_D, dtype=int32)
    built.values += [(built.leaf(_D, _D), float(_START)) for _ in range(2)]
    built.known.update(built.inputs)
    palette = (*_EXACT, *_ROUNDED) if rounds else _EXACT
    for _ in range(steps):
        before = list(built.values)
        n_inputs = len(built.inputs)
        found = palette[int(rng.integers(0, len(palette)))](built, rng)
        if found is not None and built.accepts((found := _bounded(found))[0]):
            built.values.append(found)
        else:  # undo the step
            built.values = before
            del built.inputs[n_inputs:]
    made = [t for t, _ in built.values if t not in built.inputs and t.op not in _NO_WORK]
    built.outputs = made[-1:] + [t for t in made[:-1] if rng.random() < 0.15]
    if made:
        built.graph = built.ctx.graph(built.outputs)
        inside = set(built.graph.leafs)
        built.inputs = [t for t in built.inputs if t in inside]
    return built
