"""Networks as data: values, and nodes that compute them.

A reader makes a :class:`Network` from the format of another library. The rules of ``program.rules`` build a graph from
it. So a rule knows no library, and a network can be stored as JSON beside its arrays.

Operators have the names, arguments and meaning of PyTorch's ATen operators, without ``aten.`` and ``.default``:
``relu``, ``add.Tensor``, ``convolution``. The core of ATen is a small documented set with fixed rules for shapes and
dtypes. Formats with other operators are expressed in these.

A reader promises that

- shapes are numbers, and every value has its shape and dtype;
- nodes stand in the order of computation, and have no side effects;
- every node depends on an input. The reader computes everything else, and stores it as an array.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import numpy as np

from ..errors import FileError

__all__ = ["Argument", "Network", "Node", "Ref", "Value"]

Array = np.ndarray[Any, Any]
Argument = Union["Ref", None, bool, int, float, str, "list[Argument]"]
"""Of a node. A reader leaves out arguments that have their default."""

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
"""Dtypes of values."""


@dataclass(frozen=True)
class Ref:
    """A value as an argument."""

    name: str


@dataclass(frozen=True)
class Value:
    """shape: in NumPy order, any number of axes; dtype: one of ``DTYPES``"""

    shape: tuple[int, ...]
    dtype: str


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
    """

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)

    def readers(self) -> dict[str, int]:
        """How often each value is read, by nodes and as an output."""
        count = dict.fromkeys(self.values, 0)
        for name in [*self.outputs, *(s for node in self.nodes for s in node.sources)]:
            count[name] += 1
        return count

    def to_json(self) -> dict[str, Any]:
        """The network without its arrays, for ``json.dumps``."""
        return {
            "version": 1,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "values": {name: [list(v.shape), v.dtype] for name, v in self.values.items()},
            "arrays": sorted(self.arrays),
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
                inputs=[str(name) for name in data["inputs"]],
                outputs=[str(name) for name in data["outputs"]],
                values={
                    str(name): Value(tuple(int(n) for n in shape), str(dtype))
                    for name, (shape, dtype) in data["values"].items()
                },
                arrays={str(name): arrays[name] for name in data["arrays"]},
                weights={str(name) for name in data["weights"]},
                nodes=[
                    Node(
                        str(node["op"]),
                        {str(name): _argument(value) for name, value in node["arguments"].items()},
                        tuple(str(name) for name in node["results"]),
                        str(node["module"]),
                    )
                    for node in data["nodes"]
                ],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"the network is damaged: {type(error).__name__}: {error}") from None
        network.check()
        return network

    def check(self) -> None:
        """Raises FileError unless every value is known, has a size, and is computed before it is read."""
        known = {*self.inputs, *self.arrays}
        for name, value in self.values.items():
            if value.dtype not in DTYPES or any(n < 0 for n in value.shape) or math.prod(value.shape) >= 2**48:
                raise FileError(f"the network is damaged: value {name!r} is {value.dtype} {value.shape}")
        for node in self.nodes:
            missing = [name for name in node.sources if name not in known]
            if missing:
                raise FileError(f"the network is damaged: {node.op} reads {missing[0]!r} before it is computed")
            known |= {*node.results}
        missing = [name for name in (*known, *self.outputs) if name not in self.values or name not in known]
        if missing:
            raise FileError(f"the network is damaged: the value {missing[0]!r} is unknown")
        for name, array in self.arrays.items():
            if array.shape != self.values[name].shape:
                raise FileError(f"the network is damaged: {name!r} is {self.values[name].shape}, not {array.shape}")


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
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": repr(argument)}
    return argument


def _argument(data: Any) -> Argument:
    if isinstance(data, dict):
        return Ref(str(data["value"])) if "value" in data else float(data["float"])
    if isinstance(data, list):
        return [_argument(item) for item in data]
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    raise ValueError(f"{type(data).__name__} is no argument")
