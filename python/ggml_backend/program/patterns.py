"""Groups of nodes that one operator computes: norms, GELU, gated units, attention.

A pattern is an expression of operators, as libraries write it. Each pattern has a function that makes the nodes that
take its place. All values are float32, and nodes in the middle have no other reader. The results are the same, except
for rounding, for values whose squares overflow, and for infinities and NaN in keys that a mask hides.
``ggml_backend.torch.verify`` compares the result with PyTorch.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .attention import ROTATION, SHARED_HEADS, WRITTEN_OUT
from .matching import Found, Graph, Make, Of, add, div, mul, number, one, value
from .network import Argument, Network, Node, Ref

__all__ = ["fuse"]


def fuse(network: Network) -> None:
    """Replaces the groups of nodes that fit a pattern."""
    graph = Graph(network)
    nodes: list[Node] = []
    for node in network.nodes:
        made = next((made for pattern, make in _PATTERNS if (made := graph.replaced(pattern, node, make))), [node])
        for new in made:
            graph.add(new)
        nodes += made
    network.nodes = nodes
    network.drop_unread()


_X, _Y, _EPS = value("x"), value("y"), number("eps")


def _square(x: Any) -> Of:
    return Of(("pow.Tensor_Scalar",), {"self": x, "exponent": 2})


def _mean(x: Any) -> Of:
    return Of(("mean.dim",), {"self": x, "dim": [number("axis")], "keepdim": True})


# ---- norms -----------------------------------------------------------------------------------------------------------


def _width(graph: Graph, found: Found) -> int | None:
    """The size of the last axis of x, if the mean is along this axis."""
    sizes = graph.sizes(found["x"])
    last = sizes and found["axis"] in (-1, len(sizes) - 1) and graph.floats(found["x"]) and 0 < found["eps"] < 1
    return sizes[-1] if last and isinstance(sizes[-1], int) else None


def _norm(op: str) -> Make:
    def make(graph: Graph, node: Node, found: Found) -> list[Node] | None:
        n = _width(graph, found)
        arguments: dict[str, Argument] = {"input": found["x"], "normalized_shape": [n or 0], "eps": found["eps"]}
        return None if n is None else [Node(op, arguments, node.results, node.module)]

    return make


def _with(parameter: str, op: str) -> tuple[Of, Make]:
    """A norm, times a weight or plus a bias."""
    norm = Of((op,), {"normalized_shape": [number("n")]}, more=True)

    def make(graph: Graph, node: Node, found: Found) -> list[Node] | None:
        inner = graph.producers[found[""][0]]
        fits = (
            graph.sizes(found["y"]) == (found["n"],) and graph.floats(found["y"]) and parameter not in inner.arguments
        )
        if not fits or (parameter == "weight" and "bias" in inner.arguments):
            return None
        return [replace(inner, arguments={**inner.arguments, parameter: found["y"]}, results=node.results)]

    return (mul if parameter == "weight" else add)(_Y, norm), make


_RMS = add(_mean(_square(_X)), _EPS)
_MINUS_MEAN = Of(("sub.Tensor",), {"self": _X, "other": _mean(_X)})


# ---- activations -----------------------------------------------------------------------------------------------------


def _gelu(approximate: str) -> Make:
    def make(graph: Graph, node: Node, found: Found) -> list[Node] | None:
        arguments: dict[str, Argument] = {"self": found["x"], "approximate": approximate}
        return [Node("gelu", arguments, node.results, node.module)] if graph.floats(found["x"]) else None

    return make


_CUBIC = add(_X, mul(Of(("pow.Tensor_Scalar",), {"self": _X, "exponent": 3}), 0.044715))
_TANH = add(one("tanh", mul(_CUBIC, math.sqrt(2 / math.pi))), 1)
_ERF = add(one("erf", div(_X, math.sqrt(2))), 1)

_GATES = {"silu": "swiglu", "gelu": "geglu_erf"}


def _gated(graph: Graph, node: Node, found: Found) -> list[Node] | None:
    """``f(gate) up``. Halves of one value stay together. Not for relu: ``reglu`` is 0 where PyTorch has ``0 inf``."""
    act = graph.producers[found[""][0]]
    gate, up = found["x"], found["y"]
    tanh = act.arguments.get("approximate") == "tanh"
    known = len(act.arguments) == (2 if "approximate" in act.arguments else 1)
    if not known or graph.sizes(gate) != graph.sizes(up) or not graph.floats(gate, up):
        return None
    arguments: dict[str, Argument] = {"self": gate, "other": up, "op": "geglu" if tanh else _GATES[act.op]}
    split = graph.producers.get(gate.name)
    if split is not None and split.op == "split.Tensor" and split is graph.producers.get(up.name) and gate != up:
        whole, last = split.arguments.get("self"), len(graph.sizes(gate)) - 1
        if len(split.results) == 2 and split.arguments.get("dim", 0) in (-1, last) and isinstance(whole, Ref):
            arguments = {"self": whole, "op": arguments["op"], "swapped": gate.name == split.results[1]}
    return [Node("ggml_backend.glu", arguments, node.results, node.module)]


# The first one that fits decides: a layer norm is the RMS norm of another value, too.
_PATTERNS: tuple[tuple[Of, Make], ...] = (
    (div(_MINUS_MEAN, one("sqrt", add(_mean(_square(_MINUS_MEAN)), _EPS))), _norm("layer_norm")),
    (mul(_X, one("rsqrt", _RMS)), _norm("rms_norm")),
    (div(_X, one("sqrt", _RMS)), _norm("rms_norm")),
    (mul(_X, one("reciprocal", one("sqrt", _RMS))), _norm("rms_norm")),
    _with("weight", "rms_norm"),
    _with("weight", "layer_norm"),
    _with("bias", "layer_norm"),
    (mul(mul(_X, 0.5), _TANH), _gelu("tanh")),
    (mul(mul(_X, _TANH), 0.5), _gelu("tanh")),
    (mul(mul(_X, 0.5), _ERF), _gelu("none")),
    (mul(mul(_X, _ERF), 0.5), _gelu("none")),
    (mul(Of(("silu", "gelu"), {"self": _X}, more=True), _Y), _gated),
    ROTATION,
    SHARED_HEADS,
    WRITTEN_OUT,
)
