"""Groups of nodes that one operator computes: norms, GELU, gated units, rotations of positions, repeated heads.

A pattern is an expression of operators, as libraries write it. Each pattern has a function that makes the nodes that
take its place. All values are float32, and nodes in the middle have no other reader. So fewer nodes compute
the same, but for rounding and for values whose squares overflow. ``ggml_backend.torch.verify`` compares the result with
PyTorch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from .network import Argument, Network, Node, Ref, Value

__all__ = ["fuse"]

_COMMUTATIVE = ("mul.Tensor", "add.Tensor")
_WIDEST = 4096  # rows that are rotated
_LARGEST = 2**63  # of an integer


@dataclass(frozen=True)
class _Any:
    """Any value (``Ref``), any number, or any argument. One name stands for one argument in a pattern."""

    name: str
    kind: str  # "value", "number" or "argument"


@dataclass(frozen=True)
class _Of:
    """A node of one of these operators with these arguments. more: it may have others."""

    ops: tuple[str, ...]
    arguments: Mapping[str, Any]
    more: bool = False


_Found = Mapping[str, Any]
"""The arguments of a match by the names of the pattern. ``""``: the results of all nodes but the last."""
_Make = Callable[["_Graph", Node, _Found], "list[Node] | None"]


class _Graph:
    """A network while it changes."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.readers = network.readers()
        self.producers: dict[str, Node] = {}
        self.signed: dict[str, str] = {}  # factors of rotations with their signs

    def add(self, node: Node) -> None:
        self.producers.update(dict.fromkeys(node.results, node))

    def sizes(self, value: Any) -> tuple[Any, ...]:
        return tuple(self.network.values[value.name].sizes)

    def source(self, value: Any) -> Any:
        """The argument ``self`` of the node that makes a value."""
        return self.producers[value.name].arguments["self"]

    def fresh(self, name: str) -> str:
        """A name that no value has."""
        while name in self.network.values:
            name += "'"
        return name

    def floats(self, *values: Any) -> bool:
        return all(self.network.values[v.name].dtype == "float32" for v in values)

    def number(self, argument: Any) -> float | None:
        """A number, or the only element of a constant. A weight is none: it may change."""
        if isinstance(argument, Ref):
            array = None if argument.name in self.network.weights else self.network.arrays.get(argument.name)
            return float(array.item()) if array is not None and array.size == 1 else None
        known = isinstance(argument, (int, float)) and not isinstance(argument, bool)
        return argument if known and not (isinstance(argument, int) and abs(argument) > _LARGEST) else None

    def replaced(self, pattern: _Of, node: Node, make: _Make) -> list[Node] | None:
        """The nodes that take the place of a node and of those before it, or None if they do not fit the pattern."""
        for found in self.node_matches(pattern, node, {"": ()}):
            inner: Counter[str] = Counter(found[""])
            floats = self.floats(*map(Ref, (*inner, *node.results)))
            if floats and all(self.readers.get(name, 1) <= n for name, n in inner.items()):
                made = make(self, node, found)
                if made is not None:
                    return made
        return None

    def matches(self, pattern: Any, argument: Any, found: _Found) -> Iterator[_Found]:
        """All ways in which an argument fits a pattern, as larger ``found``."""
        if isinstance(pattern, _Any):
            given = self.number(argument) if pattern.kind == "number" else argument
            if pattern.kind == "value" and not isinstance(argument, Ref):
                given = None
            if given is not None and found.get(pattern.name, given) == given:
                yield {**found, pattern.name: given}
        elif isinstance(pattern, list):
            if isinstance(argument, list) and len(argument) == len(pattern):
                yield from self._all(list(zip(pattern, argument, strict=True)), found)
        elif isinstance(pattern, _Of):
            node = self.producers.get(argument.name) if isinstance(argument, Ref) else None
            if node is not None and len(node.results) == 1:
                for more in self.node_matches(pattern, node, found):
                    yield {**more, "": (*more[""], node.results[0])}
        elif isinstance(pattern, bool):
            if argument is pattern:
                yield found
        else:
            number = self.number(argument)
            if number is not None and math.isclose(number, pattern, rel_tol=1e-6):
                yield found

    def node_matches(self, pattern: _Of, node: Node, found: _Found) -> Iterator[_Found]:
        given, wanted = node.arguments, pattern.arguments
        extra = given.keys() - wanted.keys()
        if node.op not in pattern.ops or len(given) - len(extra) < len(wanted) or (extra and not pattern.more):
            return
        orders = permutations(wanted) if node.op in _COMMUTATIVE else [tuple(wanted)]
        for order in orders:
            yield from self._all([(wanted[name], given[at]) for name, at in zip(wanted, order, strict=True)], found)

    def _all(self, pairs: Sequence[tuple[Any, Any]], found: _Found) -> Iterator[_Found]:
        if not pairs:
            yield found
            return
        for more in self.matches(*pairs[0], found):
            yield from self._all(pairs[1:], more)


def fuse(network: Network) -> None:
    """Replaces the groups of nodes that fit a pattern."""
    graph = _Graph(network)
    nodes: list[Node] = []
    for node in network.nodes:
        made = next((made for pattern, make in _PATTERNS if (made := graph.replaced(pattern, node, make))), [node])
        for one in made:
            graph.add(one)
        nodes += made
    network.nodes = nodes
    network.drop_unread()


# ---- writing patterns ------------------------------------------------------------------------------------------------


def _value(name: str) -> _Any:
    return _Any(name, "value")


def _number(name: str) -> _Any:
    return _Any(name, "number")


def _mul(a: Any, b: Any) -> _Of:
    return _Of(("mul.Tensor",), {"self": a, "other": b})


def _add(a: Any, b: Any) -> _Of:
    return _Of(("add.Tensor",), {"self": a, "other": b})


def _div(a: Any, b: Any) -> _Of:
    return _Of(("div.Tensor",), {"self": a, "other": b})


def _one(op: str, x: Any) -> _Of:
    return _Of((op,), {"self": x})


def _square(x: Any) -> _Of:
    return _Of(("pow.Tensor_Scalar",), {"self": x, "exponent": 2})


def _mean(x: Any) -> _Of:
    return _Of(("mean.dim",), {"self": x, "dim": [_number("axis")], "keepdim": True})


_X, _Y, _EPS = _value("x"), _value("y"), _number("eps")


# ---- norms -----------------------------------------------------------------------------------------------------------


def _width(graph: _Graph, found: _Found) -> int | None:
    """The size of the last axis of x, if the mean is along this axis."""
    sizes = graph.sizes(found["x"])
    last = sizes and found["axis"] in (-1, len(sizes) - 1) and graph.floats(found["x"]) and 0 < found["eps"] < 1
    return sizes[-1] if last and isinstance(sizes[-1], int) else None


def _norm(op: str) -> _Make:
    def make(graph: _Graph, node: Node, found: _Found) -> list[Node] | None:
        n = _width(graph, found)
        arguments: dict[str, Argument] = {"input": found["x"], "normalized_shape": [n or 0], "eps": found["eps"]}
        return None if n is None else [Node(op, arguments, node.results, node.module)]

    return make


def _with(parameter: str, op: str) -> tuple[_Of, _Make]:
    """A norm, times a weight or plus a bias."""
    norm = _Of((op,), {"normalized_shape": [_number("n")]}, more=True)

    def make(graph: _Graph, node: Node, found: _Found) -> list[Node] | None:
        inner = graph.producers[found[""][0]]
        fits = (
            graph.sizes(found["y"]) == (found["n"],) and graph.floats(found["y"]) and parameter not in inner.arguments
        )
        if not fits or (parameter == "weight" and "bias" in inner.arguments):
            return None
        return [replace(inner, arguments={**inner.arguments, parameter: found["y"]}, results=node.results)]

    return (_mul if parameter == "weight" else _add)(_Y, norm), make


_RMS = _add(_mean(_square(_X)), _EPS)
_MINUS_MEAN = _Of(("sub.Tensor",), {"self": _X, "other": _mean(_X)})


# ---- activations -----------------------------------------------------------------------------------------------------


def _gelu(approximate: str) -> _Make:
    def make(graph: _Graph, node: Node, found: _Found) -> list[Node] | None:
        arguments: dict[str, Argument] = {"self": found["x"], "approximate": approximate}
        return [Node("gelu", arguments, node.results, node.module)] if graph.floats(found["x"]) else None

    return make


_CUBIC = _add(_X, _mul(_Of(("pow.Tensor_Scalar",), {"self": _X, "exponent": 3}), 0.044715))
_TANH = _add(_one("tanh", _mul(_CUBIC, math.sqrt(2 / math.pi))), 1)
_ERF = _add(_one("erf", _div(_X, math.sqrt(2))), 1)

_GATES = {"silu": "swiglu", "gelu": "geglu_erf"}


def _gated(graph: _Graph, node: Node, found: _Found) -> list[Node] | None:
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


# ---- attention -------------------------------------------------------------------------------------------------------


def _part(begin: Any, end: Any) -> _Of:
    return _Of(("slice.Tensor",), {"self": _X, "dim": _number("axis"), "start": begin, "end": end})


_TURNED = _Of(("cat",), {
    "tensors": [_one("neg", _part(_number("half"), _number("end"))), _part(0, _number("half"))],
    "dim": _number("cat"),
})  # fmt: skip


def _rotation(graph: _Graph, node: Node, found: _Found) -> list[Node] | None:
    """``y + (-x2, x1) sin`` is ``y + (x2, x1) (-sin1, sin2)``: exchanging the halves is one operator."""
    x, y, sin, half = found["x"], found["y"], found["sin"], found["half"]
    sizes = graph.sizes(x)
    last = len(sizes) - 1
    if not isinstance(half, int) or not 0 < 2 * half <= _WIDEST or sizes[-1:] != (2 * half,):
        return None
    fits = found["end"] >= 2 * half and {found["axis"], found["cat"]} <= {-1, last}
    if not fits or graph.sizes(y) != sizes or graph.sizes(sin)[-1:] != sizes[-1:] or not graph.floats(x, y, sin):
        return None
    if graph.sizes(Ref(node.results[0])) != sizes:
        return None
    made = [] if sin.name in graph.signed else [_with_signs(graph, node, sin, half)]
    rolled, turned = (graph.fresh(f"{node.results[0]}, {what}") for what in ("halves exchanged", "times sin"))
    graph.network.values[rolled] = graph.network.values[turned] = graph.network.values[x.name]
    return [
        *made,
        Node("roll", {"self": x, "shifts": [half], "dims": [last]}, (rolled,), node.module),
        Node("mul.Tensor", {"self": Ref(rolled), "other": Ref(graph.signed[sin.name])}, (turned,), node.module),
        replace(node, arguments={"self": y, "other": Ref(turned)}),
    ]


def _with_signs(graph: _Graph, node: Node, sin: Ref, half: int) -> Node:
    """``(-sin1, sin2)``, which all rotations by these angles share."""
    network, signs, signed = graph.network, graph.fresh(f"{sin.name}, signs"), graph.fresh(f"{sin.name} with signs")
    network.arrays[signs] = np.repeat(np.array([-1, 1], np.float32), half)
    network.values[signs] = Value((2 * half,), "float32")
    network.values[signed] = network.values[sin.name]
    graph.signed[sin.name] = signed
    return Node("mul.Tensor", {"self": sin, "other": Ref(signs)}, (signed,), node.module)


def _repeated(name: str) -> _Of:
    """Heads of keys or values, each repeated for several heads of queries."""
    single = _Of(("unsqueeze",), {"self": _value(name), "dim": 2})
    wide = _Of(("expand",), {"self": single, "size": _Any(f"{name}, expanded", "argument")})
    return _Of(
        ("_unsafe_view", "view", "reshape"),
        {"self": _one("clone", wide), "size": _Any(f"{name}, joined", "argument")},
    )


def _shared_heads(graph: _Graph, node: Node, found: _Found) -> list[Node] | None:
    """Attention finds the keys and values of a head of queries itself."""
    shared: dict[str, Argument] = {name: found[name] for name in ("key", "value")}
    query = node.arguments.get("query")
    heads = graph.sizes(query) if isinstance(query, Ref) else ()
    for name in shared:
        own, more = graph.sizes(found[name]), graph.sizes(node.arguments[name])
        expanded = graph.sizes(graph.source(graph.source(node.arguments[name])))
        if len(own) != 4 or len(more) != 4 or not all(isinstance(n, int) and n > 0 for n in (*own[1:2], *more[1:2])):
            return None
        repeats = more[1] // own[1]
        if more != (own[0], repeats * own[1], *own[2:]) or expanded != (*own[:2], repeats, *own[2:]):
            return None
        if len(heads) != 4 or heads[:2] != more[:2]:
            return None
    if node.arguments.get("enable_gqa") or graph.sizes(found["key"])[1] != graph.sizes(found["value"])[1]:
        return None
    return [replace(node, arguments={**node.arguments, **shared, "enable_gqa": True})]


# The first one that fits decides: a layer norm is the RMS norm of another value, too.
_PATTERNS: tuple[tuple[_Of, _Make], ...] = (
    (_div(_MINUS_MEAN, _one("sqrt", _add(_mean(_square(_MINUS_MEAN)), _EPS))), _norm("layer_norm")),
    (_mul(_X, _one("rsqrt", _RMS)), _norm("rms_norm")),
    (_div(_X, _one("sqrt", _RMS)), _norm("rms_norm")),
    (_mul(_X, _one("reciprocal", _one("sqrt", _RMS))), _norm("rms_norm")),
    _with("weight", "rms_norm"),
    _with("weight", "layer_norm"),
    _with("bias", "layer_norm"),
    (_mul(_mul(_X, 0.5), _TANH), _gelu("tanh")),
    (_mul(_mul(_X, _TANH), 0.5), _gelu("tanh")),
    (_mul(_mul(_X, 0.5), _ERF), _gelu("none")),
    (_mul(_mul(_X, _ERF), 0.5), _gelu("none")),
    (_mul(_Of(("silu", "gelu"), {"self": _X}, more=True), _Y), _gated),
    (_add(_Y, _mul(_TURNED, _value("sin"))), _rotation),
    (
        _Of(("scaled_dot_product_attention",), {"key": _repeated("key"), "value": _repeated("value")}, more=True),
        _shared_heads,
    ),
)
