"""Values that depend on no input: each network computes them once, when its sizes are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from .network import Network, Node

__all__ = ["MAKERS", "constant_part", "replace_constants"]

Array = np.ndarray[Any, Any]
MAKERS = ("full", "arange.start_step")
"""Operators that make values from sizes and numbers alone."""

_MOST_ELEMENTS = 2**28


def constant_part(network: Network, without: frozenset[str] = frozenset()) -> Network:
    """The nodes that depend on no input. Those in MAKERS become arrays of both networks.

    without: results of nodes to leave out, with all nodes that depend on them
    """
    _make(network)
    variable = {*network.inputs} | without
    part = Network(values=network.values, arrays=network.arrays, weights=network.weights)
    for node in network.nodes:
        if variable & {*node.results, *node.sources} or any(
            network.values[r].dtype == "bfloat16" for r in node.results
        ):
            variable |= {*node.results}
        else:
            part.nodes.append(node)
    made = {name for node in part.nodes for name in node.results}
    others = [s for node in network.nodes if variable & {*node.results} for s in node.sources]
    part.outputs = [name for name in dict.fromkeys([*others, *network.outputs]) if name in made]
    return part


def _make(network: Network) -> None:
    kept = []
    for node in network.nodes:
        array = _made(node, network) if node.op in MAKERS and not node.sources and len(node.results) == 1 else None
        if array is None:
            kept.append(node)
        else:
            network.arrays[node.results[0]] = array
    network.nodes = kept


def _made(node: Node, network: Network) -> Array | None:
    """The array of a node, or None if its arguments do not fit its shape and dtype."""
    value, arguments = network.values[node.results[0]], node.arguments
    n = math.prod(value.shape)
    if n > _MOST_ELEMENTS:
        raise UnsupportedError(f"{node.op} makes {n} elements, and the limit is {_MOST_ELEMENTS}")
    if value.dtype == "bfloat16":
        return None
    if node.op == "full":
        fill = arguments.get("fill_value")
        if not isinstance(fill, (bool, int, float)):
            return None
        try:
            return np.full(value.shape, fill, value.dtype)
        except (OverflowError, ValueError):
            return None
    start, step = arguments.get("start", 0), arguments.get("step", 1)
    if not isinstance(start, (int, float)) or not isinstance(step, (int, float)) or len(value.shape) != 1:
        return None
    limit = 2**53
    if not abs(start) <= limit or not abs(step) * max(n, 1) <= limit:
        return None
    return (start + step * np.arange(n)).astype(value.dtype)


def replace_constants(network: Network, part: Network, found: Mapping[str, Array]) -> None:
    """Replaces the nodes of a part by the arrays of its outputs."""
    gone = {node.results[0] for node in part.nodes}
    network.nodes = [node for node in network.nodes if node.results[0] not in gone]
    network.arrays.update(found)
