"""Graphs of programs in files, for ``ggml_program_load`` in C (``c/include/ggml-program.h``).

A file holds each graph as a message of its nodes, without data, and the names of the tensors that the graph reads.
``c/src/gguf/program.c`` lists the keys. Python does not read them: it builds graphs for all sizes from the network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tensor import Graph, Tensor

__all__ = ["PREFIX", "STATES", "StoredGraph", "StoredGraphs", "state_label"]

Array = np.ndarray[Any, Any]
PREFIX = "program.graph."
"""Begins the names of the tensors that hold graphs and their constants."""

STATES = "state."
"""Begins the names of the tensors that hold the first values of states."""

_NAME = 63  # bytes of a tensor's name


@dataclass(frozen=True)
class StoredGraph:
    """A graph for a file.

    inputs, outputs: tensors by the names of users
    sizes: of the named axes
    states: tensors by the names of tensors of the file, which have their first values
    """

    graph: Graph
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    states: Mapping[str, Tensor]


class StoredGraphs:
    """Graphs as keys and tensors of a file. Leafs with equal bytes are one tensor.

    arrays: other tensors of the file, with their formats. Leafs that equal one of them are that tensor.
    """

    def __init__(self, graphs: Sequence[StoredGraph], arrays: Mapping[str, tuple[Array, str | None]]) -> None:
        self.keys: list[tuple[str, Any, str]] = []
        self.tensors: dict[str, Array | Tensor] = {}
        self._known: dict[tuple[str, bytes], str] = {}
        if graphs:
            self.keys.append(("program.graphs", len(graphs), "u32"))
            for name, (array, format) in arrays.items():
                if name.startswith(STATES):
                    continue
                self._known.setdefault((format or str(array.dtype), _digest(array)), name)
        for i, one in enumerate(graphs):
            self._add(f"{PREFIX}{i}", one)

    def _add(self, name: str, one: StoredGraph) -> None:
        inputs = {*one.inputs.values()}
        leafs = [t for t in one.graph.leafs if t not in inputs]
        states = {t: label for label, t in one.states.items()}  # two of them may have equal bytes
        names = [states.get(t) or self._named(t) for t in leafs]
        message = one.graph._message([*leafs, *one.inputs.values()])
        numbers = {t: i for i, t in enumerate(one.graph.nodes)}
        places = [numbers[t] for t in one.outputs.values()]
        self.tensors[name] = np.frombuffer(message, np.int8)
        lists: list[tuple[str, list[Any], str]] = [
            ("tensors", names, "str"), ("inputs", [*one.inputs], "str"),
            ("outputs", [*one.outputs], "str"), ("output_nodes", places, "i32"),
            ("axes", [*one.sizes], "str"), ("sizes", [*one.sizes.values()], "i64"),
        ]  # fmt: skip
        self.keys += [(f"{name}.{key}", values, kind) for key, values, kind in lists if values]

    def _named(self, leaf: Tensor) -> str:
        """The name of the tensor of the file that has the type and the bytes of a leaf."""
        key = leaf.dtype.name, _digest(leaf.numpy())
        if key not in self._known:
            self._known[key] = f"{PREFIX}constant.{len(self.tensors)}"
            self.tensors[self._known[key]] = leaf
        return self._known[key]


def state_label(name: str) -> str:
    """The name of the tensor of a file that has the first value of a state."""
    short = f"{STATES}{name}"
    return short if len(short.encode()) <= _NAME else STATES + hashlib.blake2b(name.encode()).hexdigest()[:32]


def _digest(array: Array) -> bytes:
    content: Any = np.ascontiguousarray(array).reshape(-1)
    return hashlib.blake2b(content.view(np.uint8) if content.size else b"", digest_size=32).digest()
