"""Networks with fewer nodes that compute the same."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import numpy as np

from .network import Argument, Network, Node, Ref, Value
from .patterns import fuse

__all__ = ["Folded", "simplify"]

Array = np.ndarray[Any, Any]
Folded = MutableMapping[tuple[Any, ...], tuple[Array, Array, tuple[Array, ...]]]
"""Kernels and biases that were folded, by the memory of their sources. The sources stay alive."""

_CONVOLUTIONS = ("convolution", "conv1d", "conv2d", "conv3d")
_NORMS = ("_native_batch_norm_legit_no_training", "batch_norm")


def simplify(network: Network, folded: Folded) -> None:
    """Folds batch norms and padding with zeros into convolutions, and fuses groups of nodes.

    folded: what other networks of the same model have folded; they share the arrays
    """
    _fold_batch_norms(network, folded)
    _fold_pads(network)
    fuse(network)


def _fold_batch_norms(network: Network, folded: Folded) -> None:
    """Multiplies the kernel of a convolution by the factors of the batch norm that alone reads its result."""
    readers = network.readers()
    producers = {name: node for node in network.nodes for name in node.results}
    replaced: dict[str, Node] = {}
    for node in network.nodes:
        source = node.arguments.get("input")
        if node.op not in _NORMS or node.arguments.get("training") or not isinstance(source, Ref):
            continue
        conv = producers.get(source.name)
        if conv is None or conv.op not in _CONVOLUTIONS or readers[source.name] > 1 or conv.arguments.get("transposed"):
            continue
        if any(readers[name] for name in node.results[1:]):
            continue
        made = _folded(network, conv, node, folded)
        if made is not None:
            replaced[conv.results[0]] = made
            replaced[node.results[0]] = made
    if not replaced:
        return
    nodes = []
    for node in network.nodes:
        made = replaced.get(node.results[0])
        if made is None:
            nodes.append(node)
        elif made.results[0] == node.results[0]:
            nodes.append(made)
    network.nodes = nodes


def _array(network: Network, node: Node, name: str) -> tuple[bool, Array | None]:
    """The array of an argument. The first part is False if the argument is given, but is no float32 array."""
    argument = node.arguments.get(name)
    if argument is None:
        return True, None
    found = network.arrays.get(argument.name) if isinstance(argument, Ref) else None
    return found is not None and found.dtype == np.float32, found


def _folded(network: Network, conv: Node, norm: Node, folded: Folded) -> Node | None:
    """One convolution for both, or None if something is not constant."""
    parts = [_array(network, conv, "weight"), _array(network, conv, "bias")]
    parts += [_array(network, norm, name) for name in ("weight", "bias", "running_mean", "running_var")]
    if not all(fits for fits, _ in parts) or parts[0][1] is None or parts[4][1] is None or parts[5][1] is None:
        return None
    arrays, eps = [array for _, array in parts], norm.arguments.get("eps", 1e-5)
    if not isinstance(eps, float) or any(a is not None and a.shape != parts[0][1].shape[:1] for a in arrays[1:]):
        return None
    key = (eps, *(None if a is None else (a.ctypes.data, a.shape) for a in arrays))
    if key not in folded:
        folded[key] = (*_multiplied(arrays, eps), tuple(a for a in arrays if a is not None))
    kernel, bias, _ = folded[key]
    named = conv.arguments["weight"]
    assert isinstance(named, Ref)
    names = [f"{named.name} folded into {norm.results[0]}", f"bias folded into {norm.results[0]}"]
    for name, array in zip(names, (kernel, bias), strict=True):
        network.arrays[name], network.values[name] = array, Value(array.shape, "float32")
        network.weights.add(name)
    arguments = {**conv.arguments, "weight": Ref(names[0]), "bias": Ref(names[1])}
    return replace(conv, arguments=arguments, results=(norm.results[0],))


def _multiplied(arrays: list[Any], eps: Any) -> tuple[Array, Array]:
    kernel, bias, weight, shift, mean, variance = arrays
    factor = 1 / np.sqrt(variance.astype(np.float64) + eps)
    if weight is not None:
        factor *= weight
    moved = (0 if bias is None else bias) - mean
    total = moved * factor + (0 if shift is None else shift)
    scaled = kernel * factor.reshape(-1, *(1,) * (kernel.ndim - 1))
    return scaled.astype(np.float32), total.astype(np.float32)


def _fold_pads(network: Network) -> None:
    """Gives a convolution the zeros that a node before it adds on both sides, if nothing else reads that node."""
    readers = network.readers()
    producers = {name: node for node in network.nodes for name in node.results}
    nodes, dropped = [], set()
    for node in network.nodes:
        source = node.arguments.get("input")
        pad = producers.get(source.name) if isinstance(source, Ref) else None
        if pad is None or pad.op != "constant_pad_nd" or node.op not in _CONVOLUTIONS or readers[pad.results[0]] > 1:
            nodes.append(node)
            continue
        made = _with_pad(network, node, pad)
        nodes.append(node if made is None else made)
        if made is not None:
            dropped.add(pad.results[0])
    network.nodes = [node for node in nodes if node.results[0] not in dropped]


def _with_pad(network: Network, conv: Node, pad: Node) -> Node | None:
    amounts, value, kernel = (node.arguments.get(k) for node, k in ((pad, "pad"), (pad, "value"), (conv, "weight")))
    if value or conv.arguments.get("transposed") or not isinstance(amounts, list) or not isinstance(kernel, Ref):
        return None
    if "self" not in pad.arguments:
        return None
    axes = len(network.values[kernel.name].shape) - 2
    befores, behinds = amounts[-2::-2], amounts[-1::-2]  # the first axis first
    own = conv.arguments.get("padding", [0])
    if befores != behinds or axes < 1 or len(befores) > axes or not isinstance(own, list):
        return None
    added = [0] * (axes - len(befores)) + [n for n in befores if isinstance(n, int)]
    given = [n for n in own if isinstance(n, int)] * (axes if len(own) == 1 else 1)
    if len(added) != axes or len(given) != axes or min(added) < 0:
        return None
    padding: list[Argument] = [n + m for n, m in zip(given, added, strict=True)]
    return replace(conv, arguments={**conv.arguments, "input": pad.arguments["self"], "padding": padding})
