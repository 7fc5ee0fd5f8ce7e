"""Random graphs whose results are the same numbers on every device that computes right, in whatever order it adds up.

All values are small integers, and products are cut where they grow, so that each number is exact in float32, and in
float16 where it passes through it. Where a device says that its results are those of the CPU, bit by bit, functions
that round are among the operators, too.
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

__all__ = ["World", "random_world"]

_D = 8  # rows and columns
_LARGEST = 2048.0  # every integer up to it is a float16
_START = 3  # of inputs
Step = Callable[["World", np.random.Generator], "tuple[Tensor, float] | None"]


@dataclass
class World:
    """A graph without memory, with inputs to be filled and values to build on."""

    allowed: Callable[[Tensor], bool]
    ctx: Context = field(default_factory=Context)
    inputs: list[Tensor] = field(default_factory=list)
    values: list[tuple[Tensor, float]] = field(default_factory=list)
    """Matrices, with what their numbers do not exceed."""
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
        """The last value, taken away, if nothing reads it: it may be overwritten."""
        t, limit = self.values[-1]
        if t in self.used or t in self.inputs or t.view_of is not None or not t.is_contiguous:
            return None
        self.values.pop()
        return t, limit

    def accepts(self, t: Tensor) -> bool:
        """May all that is new behind this value be computed?"""
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
        """Other inputs. some: only about half of them"""
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
    def step(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
        x, m = world.pick(rng)
        return ops.OPERATIONS[name](x), limit(m)

    return step


def _binary(name: str, limit: Callable[[float, float], float]) -> Step:
    def step(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
        (x, m), (y, n) = world.pick(rng), world.pick(rng)
        return ops.OPERATIONS[name](x, y), limit(m, n)

    return step


def _mul_mat(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
    (x, m), (y, n) = world.pick(rng), world.pick(rng)
    x = x if x.nb[0] == x.dtype.itemsize else ops.cont(x)
    return ops.mul_mat(x, y), _D * m * n


def _scale(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = world.pick(rng)
    factor = float(rng.choice([-1.0, 2.0, -2.0]))
    return ops.scale(x, factor), abs(factor) * m


def _transposed(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = world.pick(rng)
    return ops.cont(ops.transpose(x)) if rng.random() < 0.7 else ops.transpose(x), m


def _halves(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
    """Rows of one behind rows of another, both through views."""
    (x, m), (y, n) = world.pick(rng), world.pick(rng)
    at = int(rng.integers(1, _D))
    return ops.concat(ops.relu(x[:at]), ops.neg(y[at:]), axis=0), max(m, n)


def _narrow(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = world.pick(rng)
    return ops.cast(ops.cast(x, "float16"), "float32"), m


def _rows(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = world.pick(rng)
    index = next(t for t in world.inputs if t.dtype == int32)
    return ops.get_rows(x.contiguous(), index), m


def _sums(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
    (x, m), (y, n) = world.pick(rng), world.pick(rng)
    return ops.add(x, ops.sum_rows(y)), m + _D * n


def _row(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = world.pick(rng)
    return ops.mul(x, world.inputs[1]), m * _START


def _mask(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
    x, m = world.pick(rng)
    return ops.diag_mask_zero(x.contiguous(), int(rng.integers(0, 4))), m


def _over(world: World, rng: np.random.Generator) -> tuple[Tensor, float] | None:
    """In place of a value that nothing else reads."""
    found = world.fresh()
    if found is None:
        return None
    (x, m), kind = found, int(rng.integers(0, 3))
    if kind == 0:
        return ops.relu(x, inplace=True), m
    if kind == 1:
        return ops.scale(x, -1.0, inplace=True), m
    y, n = world.pick(rng)
    return ops.add(x, y, inplace=True), m + n


def _cache(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
    """Into a part of memory that stays, and out of it."""
    x, m = world.pick(rng)
    into = world.leaf(2 * _D, _D)
    at = int(rng.integers(0, _D + 1))
    return ops.add(ops.cpy(x, into[at : at + _D]), world.pick(rng)[0]), 2 * max(m, _LARGEST)


def _of_rows(name: str, limit: float) -> Step:
    def step(world: World, rng: np.random.Generator) -> tuple[Tensor, float]:
        return ops.OPERATIONS[name](world.pick(rng)[0].contiguous()), limit

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


def random_world(
    rng: np.random.Generator, steps: int, allowed: Callable[[Tensor], bool] = lambda t: True, rounds: bool = False
) -> World:
    """A graph of about so many operations. allowed: which nodes it may have. rounds: results may be rounded. The same
    numbers make the same graph."""
    world = World(allowed)
    world.values = [(world.leaf(_D, _D), float(_START))]
    world.leaf(_D)
    world.leaf(_D, dtype=int32)
    world.values += [(world.leaf(_D, _D), float(_START)) for _ in range(2)]
    world.known.update(world.inputs)
    palette = (*_EXACT, *_ROUNDED) if rounds else _EXACT
    for _ in range(steps):
        before = list(world.values)
        n_inputs = len(world.inputs)
        found = palette[int(rng.integers(0, len(palette)))](world, rng)
        if found is not None and world.accepts((found := _bounded(found))[0]):
            world.values.append(found)
        else:  # as if it had never been tried
            world.values = before
            del world.inputs[n_inputs:]
    made = [t for t, _ in world.values if t not in world.inputs and t.op not in _NO_WORK]
    world.outputs = made[-1:] + [t for t in made[:-1] if rng.random() < 0.15]
    if made:
        world.graph = world.ctx.graph(world.outputs)
        inside = set(world.graph.leafs)
        world.inputs = [t for t in world.inputs if t in inside]
    return world
