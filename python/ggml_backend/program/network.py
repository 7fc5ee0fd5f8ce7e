"""Networks as data: values, and nodes that compute them.

A reader makes a :class:`Network` from the format of another library. The rules of ``program.rules`` build a graph from
it. So a rule knows no library, and a network can be stored as JSON beside its arrays.

Operators have the names, arguments and meaning of PyTorch's ATen operators, without ``aten.`` and ``.default``:
``relu``, ``add.Tensor``, ``convolution``. The core of ATen is a small documented set with fixed rules for shapes and
dtypes. Formats with other operators are expressed in these.

A reader promises that

- every value has its shape and dtype;
- nodes stand in the order of computation, and have no side effects.

Sizes are integers, or formulas of named sizes (``program.sizes``) in shapes and arguments. :meth:`Network.at` gives the
network for fixed sizes. Two operators make values from sizes alone: ``full`` (size, fill_value) and
``arange.start_step`` (start, end, step). They and all that depends on no input become arrays then.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union

import numpy as np

from ..errors import FileError, InvalidArgumentError
from .sizes import Formula, Size, at, names_in, parsed, text_of

__all__ = ["Argument", "Network", "Node", "Ref", "Value"]

Array = np.ndarray[Any, Any]
Argument = Union["Ref", None, bool, Size, float, str, "list[Argument]"]
"""Of a node. A reader leaves out arguments that have their default."""

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
"""Dtypes of values."""

MOST_AXES = 16
MOST_ELEMENTS = 2**48  # of a value; no size is larger
_DEEPEST = 20  # lists within each other
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt,
}  # fmt: skip
Condition = tuple[Size, str, Size]


@dataclass(frozen=True)
class Ref:
    """A value as an argument."""

    name: str


@dataclass(frozen=True)
class Value:
    """shape: in NumPy order, any number of axes; dtype: one of ``DTYPES``"""

    shape: tuple[int, ...]
    dtype: str

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The shape of a network whose sizes have names."""
        return self.shape


@dataclass(frozen=True)
class Node:
    """An operator, its arguments by name, and the names of its results.

    module: path of the module that the node belongs to, such as ``encoder.layer.0.output``, or ""
    """

    op: str
    arguments: Mapping[str, Argument]
    results: tuple[str, ...]
    module: str = ""

    @property
    def sources(self) -> list[str]:
        """Names of the values that the node reads."""
        return [*_names(list(self.arguments.values()))]


@dataclass
class Network:
    """inputs, outputs: names of values; an output may be an input or an array
    values: shape and dtype of every value by its name
    arrays: weights and constants by the name of their value
    weights: which of the arrays are weights. They have the names of their parameters. Graphs share them.
    sizes: the smallest and the largest value of each named size
    conditions: what must hold for the named sizes
    states: inputs that a program keeps from call to call, and the outputs that are their new values
    """

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)

    @property
    def results(self) -> list[str]:
        """The outputs for users: those that are no new values of states."""
        found = list(self.outputs)
        for name in self.states.values():
            found.remove(name)
        return found

    def readers(self) -> dict[str, int]:
        """How often each value is read, by nodes and as an output."""
        count = dict.fromkeys(self.values, 0)
        for name in [*self.outputs, *(s for node in self.nodes for s in node.sources)]:
            count[name] += 1
        return count

    def drop_unread(self) -> None:
        """Removes nodes whose results nothing reads, unread arrays, and the values of both."""
        read, kept = {*self.outputs}, []
        for node in reversed(self.nodes):
            if read & {*node.results}:
                kept.append(node)
                read |= {*node.sources}
        self.nodes = kept[::-1]
        self.arrays = {name: array for name, array in self.arrays.items() if name in read}
        self.weights = self.weights & {*self.arrays}
        known = {*self.inputs, *self.arrays, *(name for node in self.nodes for name in node.results)}
        self.values = {name: value for name, value in self.values.items() if name in known}

    # --------------------------------------------------------------------------------------------------- named sizes

    def named(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """The named sizes of inputs with these shapes. InvalidArgumentError: the network is not for these shapes."""
        sizes: dict[str, int] = {}
        first: dict[str, str] = {}
        for name, shape in shapes.items():
            declared = self.values[name].sizes
            if len(shape) != len(declared):
                raise InvalidArgumentError(f"{name} must have {len(declared)} axes, not {len(shape)}")
            for size, n in zip(declared, shape, strict=True):
                label = text_of(size) if isinstance(size, Formula) else ""
                if label in self.sizes and sizes.setdefault(label, n) != n:
                    raise InvalidArgumentError(
                        f"{label} is {sizes[label]} in {first[label]}, and {n} in {name}; both must be equal"
                    )
                first.setdefault(label, name)
        self._check_sizes(sizes)
        for name, shape in shapes.items():
            for axis, (size, n) in enumerate(zip(self.values[name].sizes, shape, strict=True)):
                if at(size, sizes) != n:
                    raise InvalidArgumentError(f"axis {axis} of {name} must be {size}, not {n}")
        return sizes

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        for name, (low, high) in self.sizes.items():
            if name not in sizes:
                raise InvalidArgumentError(f"no input has an axis of the size {name}")
            if not low <= sizes[name] <= high:
                limits = f"{low} to {high}" if high < MOST_ELEMENTS else f"at least {low}"
                raise InvalidArgumentError(f"{name} must be {limits}, not {sizes[name]}")
        for left, compared, right in self.conditions:
            if not _COMPARED[compared](at(left, sizes), at(right, sizes)):
                raise InvalidArgumentError(f"the model is for sizes with {left} {compared} {right}, not for {sizes}")

    def at(self, sizes: Mapping[str, int]) -> Network:
        """The network for these sizes. It shares the arrays.

        InvalidArgumentError: the sizes are out of range; FileError: a value has an impossible size
        """
        self._check_sizes(sizes)

        def fixed(argument: Argument) -> Argument:
            if isinstance(argument, list):
                return [fixed(item) for item in argument]
            return at(argument, sizes) if isinstance(argument, Formula) else argument

        try:
            network = Network(
                list(self.inputs),
                list(self.outputs),
                [replace(n, arguments={k: fixed(v) for k, v in n.arguments.items()}) for n in self.nodes],
                {name: replace(v, shape=tuple(at(n, sizes) for n in v.sizes)) for name, v in self.values.items()},
                dict(self.arrays),
                set(self.weights),
                states=dict(self.states),
            )
        except ArithmeticError as error:
            raise FileError(f"the network has no size for {dict(sizes)}: {error}") from None
        network.check()
        return network

    # ---------------------------------------------------------------------------------------------------------- as data

    def to_json(self) -> dict[str, Any]:
        """The network without its arrays, for ``json.dumps``."""
        named = {
            "sizes": {name: list(limits) for name, limits in self.sizes.items()},
            "conditions": [[text_of(left), compared, text_of(right)] for left, compared, right in self.conditions],
        }
        return {
            "version": 1,
            "inputs": self.inputs,
            "outputs": self.outputs,
            **(named if self.sizes else {}),
            "values": {name: [[_plain_size(n) for n in v.sizes], v.dtype] for name, v in self.values.items()},
            "arrays": sorted(self.arrays),
            **({"states": self.states} if self.states else {}),
            "weights": sorted(self.weights),
            "nodes": [
                {
                    "op": node.op,
                    "arguments": {name: _plain(value) for name, value in node.arguments.items()},
                    "results": list(node.results),
                    "module": node.module,
                }
                for node in self.nodes
            ],
        }

    @staticmethod
    def from_json(data: Any, arrays: Mapping[str, Array]) -> Network:
        """The network of :meth:`to_json`. FileError: the data is no such network, or does not fit the arrays."""
        try:
            network = Network(
                inputs=[_text(name) for name in _of(data["inputs"], list)],
                outputs=[_text(name) for name in _of(data["outputs"], list)],
                values={
                    _text(name): value_of(shape, dtype) for name, (shape, dtype) in _of(data["values"], dict).items()
                },
                arrays={_text(name): arrays[name] for name in _of(data["arrays"], list)},
                weights={_text(name) for name in _of(data["weights"], list)},
                nodes=[
                    Node(
                        _text(node["op"]),
                        {_text(name): _argument(value) for name, value in _of(node["arguments"], dict).items()},
                        tuple(_text(name) for name in _of(node["results"], list)),
                        _text(node["module"], empty=True),
                    )
                    for node in _of(data["nodes"], list)
                ],
                sizes={_text(n): (_of(low, int), _of(high, int)) for n, (low, high) in data.get("sizes", {}).items()},
                conditions=[(_size(p), _text(c), _size(q)) for p, c, q in data.get("conditions", [])],
                states={_text(old): _text(new) for old, new in _of(data.get("states", {}), dict).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise FileError(f"the network is damaged: {type(error).__name__}: {error}") from None
        network.check()
        return network

    def check(self) -> None:
        """Raises FileError unless every value is known, has a size, and is computed before it is read."""
        known = {*self.inputs, *self.arrays}
        if len(known) != len(self.inputs) + len(self.arrays):
            raise FileError("the network is damaged: two values have one name")
        for name, value in self.values.items():
            self._check_value(name, value)
        for node in self.nodes:
            missing = [name for name in node.sources if name not in known]
            if missing:
                raise FileError(f"the network is damaged: {node.op} reads {missing[0]!r} before it is computed")
            twice = [name for name in node.results if name in known]
            if twice or not node.results or len({*node.results}) != len(node.results):
                raise FileError(f"the network is damaged: {node.op} has the results {list(node.results)!r:.80}")
            known |= {*node.results}
        missing = [name for name in (*known, *self.outputs) if name not in self.values or name not in known]
        if missing:
            raise FileError(f"the network is damaged: the value {missing[0]!r} is unknown")
        for name, array in self.arrays.items():
            if array.shape != self.values[name].shape:
                raise FileError(f"the network is damaged: {name!r} is {self.values[name].shape}, not {array.shape}")
        self._check_states()
        self._check_names()

    def _check_states(self) -> None:
        left = list(self.outputs)
        for old, new in self.states.items():
            if old not in self.inputs or new not in left or self.values[old] != self.values[new]:
                raise FileError(f"the network is damaged: {new!r} is no new value of the state {old!r}")
            left.remove(new)

    def _check_value(self, name: str, value: Value) -> None:
        numbers = [n for n in value.sizes if isinstance(n, int)]
        if (
            value.dtype not in DTYPES
            or len(value.shape) > MOST_AXES
            or any(n < 0 for n in numbers)
            or math.prod(n for n in numbers if n) >= MOST_ELEMENTS
        ):
            raise FileError(f"the network is damaged: value {name!r} is {value.dtype} {value.shape}")

    def _check_names(self) -> None:
        """Raises FileError if a formula has an unknown name."""
        used = {name for value in self.values.values() for size in value.sizes for name in names_in(size)}
        used |= {name for node in self.nodes for name in _sizes_in([*node.arguments.values()])}
        used |= {name for p, _, q in self.conditions for name in names_in(p) | names_in(q)}
        declared = {text_of(n) for name in self.inputs for n in self.values[name].sizes}
        unknown = sorted((used - {*self.sizes}) | ({*self.sizes} - declared))
        if unknown:
            raise FileError(f"the network is damaged: no input has an axis of the size {unknown[0]!r}")
        if any(c not in _COMPARED for _, c, _ in self.conditions) or any(p > q for p, q in self.sizes.values()):
            raise FileError("the network is damaged: its sizes have a condition that cannot be met")


def _of(data: Any, kind: type) -> Any:
    if not isinstance(data, kind) or isinstance(data, bool):
        raise TypeError(f"a {type(data).__name__} stands for a {kind.__name__}")
    return data


def _text(data: Any, empty: bool = False) -> str:
    if not isinstance(data, str) or not (data or empty) or not data.isprintable():
        raise TypeError(f"{data!r:.60} is no name")
    return data


def value_of(shape: Any, dtype: Any) -> Value:
    """A value of JSON: its sizes are integers or texts."""
    sizes: Any = tuple(_size(n) for n in _of(shape, list))
    return Value(sizes, _text(dtype))


def _plain_size(size: Size) -> int | str:
    return text_of(size) if isinstance(size, Formula) else int(size)


def _size(data: Any) -> Size:
    return parsed(data) if isinstance(data, str) else _of(data, int)


def _sizes_in(arguments: Sequence[Argument]) -> Iterator[str]:
    for argument in arguments:
        if isinstance(argument, Formula):
            yield from names_in(argument)
        elif isinstance(argument, list):
            yield from _sizes_in(argument)


def _names(arguments: Sequence[Argument]) -> Iterator[str]:
    for argument in arguments:
        if isinstance(argument, Ref):
            yield argument.name
        elif isinstance(argument, list):
            yield from _names(argument)


def _plain(argument: Argument) -> Any:
    if isinstance(argument, Ref):
        return {"value": argument.name}
    if isinstance(argument, list):
        return [_plain(item) for item in argument]
    if isinstance(argument, Formula):
        return {"size": text_of(argument)}
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": repr(argument)}
    return argument


def _argument(data: Any, depth: int = 0) -> Argument:
    if isinstance(data, dict):
        if "size" in data:
            return parsed(_text(data["size"]))
        return Ref(_text(data["value"])) if "value" in data else float(_text(data["float"]))
    if isinstance(data, list) and depth < _DEEPEST:
        return [_argument(item, depth + 1) for item in data]
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    raise ValueError(f"{type(data).__name__} is no argument")
