"""Networks with their weights in the formats that a file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..dtypes import DTypeLike
from ..tensor import quantize
from ..tensor._quantize import fallback_dtype
from .build import as_floats
from .network import Argument, Network, Node, Ref, Value
from .rules import RULES, matrices

__all__ = ["Packed", "packed"]

Array = np.ndarray[Any, Any]
_TRANSPOSED = ("addmm", "mm", "matmul")
"""Operators that multiply a matrix whose rows are columns of the product's weight."""


class Packed(dict[tuple[Any, ...], Array]):
    """Matrices that were converted, by their source and format. Networks of one model share them.

    formats: by the name of an array of blocks
    """

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[Array] = []  # stay alive, so that no other array gets their address
        self.formats: dict[str, str] = {}


def packed(
    network: Network, formats: Mapping[str, DTypeLike | None], precision: str, done: Packed
) -> Network:  # fmt: skip
    """The network with quantized matrices as blocks, and transposed ones as rows.

    formats: by the names of weights; None leaves a weight as it is
    """
    fit = matrices(network)
    made = replace(network, arrays=dict(network.arrays), values=dict(network.values), weights={*network.weights})
    made.nodes = [_packed(made, node, fit, formats, precision, done) for node in network.nodes]
    made.drop_unread()
    return made


def _packed(
    network: Network,
    node: Node,
    fit: set[str],
    formats: Mapping[str, DTypeLike | None],
    precision: str,
    done: Packed,
) -> Node:
    rule = RULES.get(node.op)
    given = node.arguments.get(rule.matrix) if rule is not None and rule.matrix else None
    if not isinstance(given, Ref) or given.name not in fit:
        return node
    if node.arguments.get("alpha", 1) != 1 or node.arguments.get("beta", 1) != 1:
        return node
    turned, wanted = node.op in _TRANSPOSED, formats.get(given.name)
    if wanted is None and not turned:
        return node
    rows = network.arrays[given.name].T if turned else network.arrays[given.name]
    format = None if wanted is None else fallback_dtype(wanted, rows.shape[1]).name
    blocks = _blocks(rows, format, given.name, done)
    name = given.name + (" transposed" if turned else "") + (f" as {format}" if format else "")
    network.arrays[name], network.values[name] = blocks, Value(blocks.shape, str(blocks.dtype))
    network.weights.add(name)
    if format is not None:
        done.formats[name] = format
    return _replaced(node, Ref(name), format, precision)


def _replaced(node: Node, weight: Ref, format: str | None, precision: str) -> Node:
    given = node.arguments
    if node.op == "embedding":
        arguments: dict[str, Argument] = {"ids": given["indices"], "blocks": weight, "format": format}
        return replace(node, op="ggml_backend.embedding", arguments=arguments)
    bias = given.get("self") if node.op == "addmm" else given.get("bias")
    x = given["input"] if node.op == "linear" else given["mat1"] if node.op == "addmm" else given["self"]
    added: dict[str, Argument] = {} if bias is None else {"bias": bias}
    if format is None:
        return replace(node, op="linear", arguments={"input": x, "weight": weight, **added})
    arguments = {"x": x, "blocks": weight, **added, "format": format, "precision": precision}
    return replace(node, op="ggml_backend.linear", arguments=arguments)


def _blocks(rows: Array, format: str | None, name: str, done: Packed) -> Array:
    """The rows as float32, or as bytes of a format."""
    key = (rows.__array_interface__["data"][0], rows.shape, rows.strides, format)
    if key not in done:
        floats = np.ascontiguousarray(as_floats(rows, name))
        done[key] = floats if format is None else np.asarray(quantize(floats, format)).view(np.uint8)
        done.sources.append(rows)
    return done[key]
