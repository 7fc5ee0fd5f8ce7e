"""Networks with fewer nodes that compute the same."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import numpy as np

from .network import Network, Node, Ref, Value

__all__ = ["fold_batch_norms"]

Array = np.ndarray[Any, Any]
Folded = MutableMapping[tuple[Any, ...], tuple[Array, Array, tuple[Array, ...]]]
"""Kernels and biases that were folded, by the memory of their sources. The sources stay alive."""

_CONVOLUTIONS = ("convolution", "conv1d", "conv2d", "conv3d")
_NORMS = ("_native_batch_norm_legit_no_training", "batch_norm")


def fold_batch_norms(network: Network, folded: Folded) -> None:
    """Multiplies the kernel of a convolution by the factors of the batch norm that alone reads its result.

    folded: what other networks of the same model have folded; they share the arrays
    """
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
    """Whether an argument is missing or an array of float32, and the array."""
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
    arrays = [array for _, array in parts]
    eps = norm.arguments.get("eps", 1e-5)
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
