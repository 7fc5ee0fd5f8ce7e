"""The builder that rules use: values as tensors, weights, and the node that a rule translates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..backend import Backend
from ..dtypes import DTypeLike, as_dtype, float32, int32
from ..errors import InvalidArgumentError
from ..tensor import Context, Tensor, quantize
from ..tensor._quantize import fallback_dtype
from .folding import alike, moves
from .network import Node, Value

__all__ = ["Build", "NoRule", "Operand", "Val", "Weights", "as_floats"]

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
MAX_DIMS = 4
EXACT = 2**24
"""float32 holds every integer up to this one. Integers and booleans are float32 in graphs."""


class NoRule(Exception):
    """A rule cannot translate this node. The text says why."""


@dataclass(frozen=True, eq=False)
class Val:
    """A value while a graph is built: a tensor, or an array of weights or constants.

    shape, dtype: those of the network. The tensor has the elements of this shape in the same order. If the shape has
    more than four axes, the tensor has other axes, whose product is the same.
    name: of the value; a weight has that of its parameter
    weight: True for a weight, whose tensor all graphs of a program share
    """

    shape: Shape
    dtype: str
    tensor: Tensor | None = None
    array: Array | None = None
    name: str = ""
    weight: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def number(self) -> float | None:
        """The value of a constant with one element and no axes."""
        return float(self.array.item()) if self.array is not None and not self.shape else None

    def axis(self, axis: int) -> int:
        """An axis counted from the front."""
        if not -max(self.ndim, 1) <= axis < max(self.ndim, 1):
            raise NoRule(f"axis {axis} of a value of shape {self.shape}")
        return axis % max(self.ndim, 1)


Operand = Val | float


def as_floats(array: Array, what: str) -> Array:
    """An array of numbers or booleans as float32. Integers that float32 cannot hold raise InvalidArgumentError."""
    if array.dtype == np.float32:
        return array
    if array.dtype.kind in "iu" and array.size and max(-int(array.min()), int(array.max())) > EXACT:
        raise InvalidArgumentError(
            f"{what} has integers from {array.min()} to {array.max()}; integers of a program are at most {EXACT}"
        )
    return array.astype(np.float32)


class Weights:
    """The weights and constants of a program as tensors. Several graphs share them.

    The first backend of the program holds them. A CPU uses the memory of the arrays. Two parameters with the same
    memory are one tensor.

    backend: None makes tensors without memory, for a draft
    formats: quantized formats by the names of weights; None leaves a weight as it is
    """

    def __init__(
        self, backend: Backend | None, formats: Mapping[str, DTypeLike | None], precision: Any = "default"
    ) -> None:
        self.backend: Backend | None = backend
        self.formats: dict[str, DTypeLike | None] = dict(formats)
        self.precision: Any = precision
        self.context: Context = Context(usage="weights")
        self.in_place: bool = backend is None or backend.name.startswith("CPU")
        self.shared: int = 0
        self.copied: int = 0
        self.quantized: int = 0
        self.packed: dict[str, str] = {}
        self._made: dict[tuple[Any, ...], tuple[Tensor, Array]] = {}

    def dense(self, array: Array, name: str, shape: Shape | None = None, format: str | None = None) -> Tensor:
        """The tensor of an array, in its dtype if that is a float."""
        key = (*_memory(array), shape, format)
        if key not in self._made:
            own = array if format is not None else as_floats(array, f"the constant {name}")
            whole = np.ascontiguousarray(own)
            copied = not np.may_share_memory(whole, array)
            self._keep(key, whole.reshape(whole.shape if shape is None else shape), array, name, format, copied)
        return self._made[key][0]

    def matrix(self, val: Val, transposed: bool = False) -> Tensor:
        """The matrix of a product or an embedding, quantized if ``formats`` has its name. transposed: ``array.T``."""
        array = val.array
        assert array is not None
        wanted = self.formats.get(val.name)
        rows = array.T if transposed else array
        if wanted is None:
            return self.dense(rows, val.name)
        element = fallback_dtype(wanted, rows.shape[1])
        key = (*_memory(rows), element.name)
        if key not in self._made:
            if self.backend is None:  # blocks without values
                columns = element.row_nbytes(rows.shape[1]) // element.numpy.itemsize
                blocks = np.empty((rows.shape[0], columns), element.numpy)
            else:
                blocks = quantize(np.ascontiguousarray(as_floats(rows, val.name)), element)
            self._keep(key, blocks, array, val.name, element.name, True)
        self.packed[val.name] = element.name
        return self._made[key][0]

    def blocks(self, array: Array, name: str, format: str) -> Tensor:
        """The tensor of a matrix in bytes of a format."""
        element = as_dtype(format)
        if array.ndim != 2 or array.dtype != np.uint8:
            raise NoRule(f"the matrix is {array.dtype} {array.shape}, not bytes of rows")
        tensor = self.dense(array.view(element.numpy), name, None, element.name)
        self.packed[name] = element.name
        return tensor

    def _keep(
        self, key: tuple[Any, ...], array: Array, source: Array, name: str, format: str | None, copied: bool
    ) -> None:
        # the source stays alive, so that no other array gets its address
        if self.in_place and array.size and array.ctypes.data % array.itemsize == 0:
            tensor = self.context.from_numpy(array, dtype=format)
        else:
            tensor, copied = self.context.constant(array, dtype=format), True
        if format is not None:
            self.quantized += tensor.nbytes
        elif copied:
            self.copied += tensor.nbytes
        else:
            self.shared += tensor.nbytes
        if name:
            tensor.name = name[-63:]
        self._made[key] = tensor, source

    def place(self) -> None:
        """Gives memory to new weights."""
        if self.backend is not None and any(not t.is_placed for t in self.context.tensors()):
            self.context.allocate(self.backend)


def _memory(array: Array) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str


class Build:
    """One graph while rules build it. ``node`` is the one that a rule translates, ``results`` its results."""

    def __init__(self, context: Context, weights: Weights) -> None:
        self.context: Context = context
        self.weights: Weights = weights
        self.node: Node = Node("", {}, ())
        self.results: Sequence[Value] = ()
        self.used: set[str] = set()
        self.replaced: dict[str, str] = {}
        """States that only one node reads, and its result: their new values. A rule may write it into the state."""
        self.written: set[str] = set()
        """States whose new values were written into them."""

    @property
    def result(self) -> Value:
        return self.results[0]

    def wants(self, i: int) -> bool:
        """True if something reads result ``i`` of the node."""
        return self.node.results[i] in self.used

    # ----------------------------------------------------------------------------------------------- values as tensors

    def tensor(self, x: Operand) -> Tensor:
        """The tensor of a value, in its shape if that has at most four axes."""
        if not isinstance(x, Val):
            return self.context.constant(float(x))
        if x.tensor is not None:
            return x.tensor
        assert x.array is not None
        shape = x.shape if x.ndim <= MAX_DIMS else (math.prod(x.shape[:-3]), *x.shape[-3:])
        if x.weight:
            return self.weights.dense(x.array, x.name, shape)
        return self.constant(as_floats(x.array, f"the constant {x.name}").reshape(shape))

    def dense(self, x: Operand) -> Tensor:
        """The tensor of a value, contiguous."""
        return self.tensor(x).contiguous()

    def fold(self, x: Operand, *shape: int) -> Tensor:
        """The elements of a value in another shape of at most four axes. One size may be -1."""
        t = self.tensor(x)
        return t if t.shape == shape else t.reshape(*shape)

    def fold_to_write(self, x: Val, *shape: int) -> Tensor:
        """The elements of a value in another shape, in memory that the rule may write: a state, or a copy."""
        if x.name in self.replaced and self.replaced[x.name] == self.node.results[0]:
            self.written.add(x.name)
            return self.fold(x, *shape)
        return ops.cont(self.fold(x, *shape))

    def array(self, x: Operand | None, what: str) -> Array:
        """A value that must be a constant."""
        if isinstance(x, Val) and x.array is not None:
            return x.array
        raise NoRule(f"{what} depends on the inputs")

    def matrix(self, x: Val, transposed: bool = False) -> Tensor:
        """A matrix as the left operand of ``mul_mat``, a weight as in :meth:`Weights.matrix`. transposed: ``x.T``."""
        if x.array is not None and x.weight:
            return self.weights.matrix(x, transposed)
        t = self.tensor(x)
        return t.transpose(1, 0).contiguous() if transposed else t

    def blocks(self, x: Val, format: str) -> Tensor:
        """A matrix that is stored as rows of bytes, uint8 (rows, bytes of a row)."""
        return self.weights.blocks(self.array(x, "the matrix"), x.name, format)

    def together(self, *operands: Operand) -> list[Any]:
        """Operands in shapes of at most four axes that broadcast as the values do. Numbers stay numbers."""
        values = [x for x in operands if isinstance(x, Val)]
        shapes = alike([x.shape for x in values], self.result.shape)
        if shapes is None:
            flat = [self.repeated(x, self.result.shape).reshape(-1) for x in values]
        elif len(self.result.shape) <= MAX_DIMS and all(x.ndim <= MAX_DIMS for x in values):
            flat = [self.tensor(x) for x in values]
        else:
            flat = [self.fold(x, *shape) for x, shape in zip(values, shapes, strict=True)]
        tensors = iter(flat)
        return [next(tensors) if isinstance(x, Val) else x for x in operands]

    def repeated(self, x: Val, shape: Shape) -> Tensor:
        """The value repeated to a shape with as many or more axes."""
        own = (1,) * (len(shape) - x.ndim) + x.shape
        t = self.tensor(x)
        for axis, (n, m) in enumerate(zip(shape, own, strict=True)):
            if n != m:  # the axes in front have their final size
                before, behind = math.prod(shape[:axis]), math.prod(own[axis + 1 :])
                t = ops.repeat(t.reshape(before, 1, behind), (before, n, behind))
        return t

    def permuted(self, x: Val, order: Sequence[int]) -> Tensor:
        """The value with its axes in another order."""
        if x.ndim <= MAX_DIMS:
            t = self.tensor(x)
            return t if list(order) == [*range(x.ndim)] else t.transpose(*order) if x.ndim > 1 else t
        t = self.tensor(x)
        for shape, axes in moves(x.shape, order):
            t = t.reshape(*shape).transpose(*axes)
        return t

    def last(self, x: Val, axes: Sequence[int]) -> Tensor:
        """The value as rows along these axes: ``(others, product of these)``, contiguous."""
        at = sorted(x.axis(axis) for axis in axes)
        order = [i for i in range(x.ndim) if i not in at] + at
        n = math.prod(x.shape[i] for i in at)
        return self.permuted(x, order).contiguous().reshape(-1, n)

    def indices(self, x: Val, n: int | None = None) -> Tensor:
        """Integers as int32 in one axis. n: size of the axis that they index; negative ones count from its end."""
        if x.array is not None:
            numbers = x.array if n is None else np.where(x.array < 0, x.array + n, x.array)
            return self.context.constant(np.ascontiguousarray(numbers.reshape(-1), np.int32))
        t = self.dense(x).reshape(-1)
        return ops.cast(t if n is None else t + ops.less(t, 0.0) * float(n), int32)

    def constant(self, array: Array) -> Tensor:
        """An array that a rule has made."""
        return self.context.constant(np.asarray(array, np.float32, order="C"), float32)
