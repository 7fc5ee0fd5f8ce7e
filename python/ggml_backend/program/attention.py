"""Patterns of attention: rotations of positions, repeated heads, and attention that is written out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .matching import Found, Graph, Of, Wanted, add, div, mul, number, one, value
from .network import Argument, Node, Ref, Value

__all__ = ["ROTATION", "SHARED_HEADS", "WRITTEN_OUT"]

_WIDEST = 4096  # rows that are rotated
_X, _Y = value("x"), value("y")


def _part(begin: Any, end: Any) -> Of:
    return Of(("slice.Tensor",), {"self": _X, "dim": number("axis"), "start": begin, "end": end})


_TURNED = Of(("cat",), {
    "tensors": [one("neg", _part(number("half"), number("end"))), _part(0, number("half"))],
    "dim": number("cat"),
})  # fmt: skip


def _rotation(graph: Graph, node: Node, found: Found) -> list[Node] | None:
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


def _with_signs(graph: Graph, node: Node, sin: Ref, half: int) -> Node:
    """``(-sin1, sin2)``, which all rotations by these angles share."""
    network, signs, signed = graph.network, graph.fresh(f"{sin.name}, signs"), graph.fresh(f"{sin.name} with signs")
    network.arrays[signs] = np.repeat(np.array([-1, 1], np.float32), half)
    network.values[signs] = Value((2 * half,), "float32")
    network.values[signed] = network.values[sin.name]
    graph.signed[sin.name] = signed
    return Node("mul.Tensor", {"self": sin, "other": Ref(signs)}, (signed,), node.module)


def _repeated(name: str) -> Of:
    """Heads of keys or values, each repeated for several heads of queries."""
    single = Of(("unsqueeze",), {"self": value(name), "dim": 2})
    wide = Of(("expand",), {"self": single, "size": Wanted(f"{name}, expanded", "argument")})
    return Of(
        ("_unsafe_view", "view", "reshape"),
        {"self": one("clone", wide), "size": Wanted(f"{name}, joined", "argument")},
    )


def _shared_heads(graph: Graph, node: Node, found: Found) -> list[Node] | None:
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


ROTATION = add(_Y, mul(_TURNED, value("sin"))), _rotation
SHARED_HEADS = (
    Of(
        ("scaled_dot_product_attention", "ggml_backend.attention"),
        {"key": _repeated("key"), "value": _repeated("value")},
        more=True,
    ),
    _shared_heads,
)

# ---- attention that is written out -----------------------------------------------------------------------------------

_CAP = number("cap")
_TURNS = ("transpose.int", "permute")
_SOFTMAX = ("softmax.int", "_softmax")
_FACTORS = ("query", "key", "scores")


def _scaled(x: Any, name: str) -> tuple[Any, ...]:
    """x, with a factor or without one."""
    return mul(x, number(f"{name} times")), div(x, number(f"{name} by")), x


def _written_out() -> Of:
    """``softmax(cap tanh(scale q k^T / cap) + mask) v``. The cap, factors and up to two masks may be missing."""
    products = Of(("matmul",), {
        "self": _scaled(value("query"), "query"),
        "other": _scaled(Of(_TURNS, {"self": value("key")}, more=True), "key"),
    })  # fmt: skip
    scaled = _scaled(products, "scores")
    scores = mul(one("tanh", div(scaled, _CAP)), _CAP), *scaled
    masked = add(add(scores, value("mask")), value("bias")), add(scores, value("mask")), *scores
    weights = Of(_SOFTMAX, {"self": masked, "dim": number("dim")}, more=True)
    dropped = one("clone", weights), Of(("dropout",), {"input": weights, "train": False}, more=True), weights
    return Of(("matmul",), {"self": dropped, "other": value("value")})


def _attends(graph: Graph, node: Node, found: Found) -> list[Node] | None:
    """One operator for all of it, and before it the turned keys and the sum of two masks if need be."""
    inner = {made.op: made for made in (graph.producers[name] for name in found[""])}
    softmax, turn = (next(inner[op] for op in ops if op in inner) for ops in (_SOFTMAX, _TURNS))
    scale, cap = _scale(found), found.get("cap", 1)
    query, values = found["query"], found["value"]
    masks = [found[name] for name in ("mask", "bias") if name in found]
    q, v, turned = graph.sizes(query), graph.sizes(values), graph.sizes(Ref(turn.results[0]))
    if not 2 <= len(q) <= 4 or not graph.floats(query, found["key"], values, *masks):
        return None
    fits = len(q) == len(turned) == len(v) and q[:-2] == turned[:-2] == v[:-2]
    if not fits or q[-1:] != turned[-2:-1] or turned[-1:] != v[-2:-1]:
        return None
    if found["dim"] not in (-1, len(q) - 1) or graph.sizes(Ref(softmax.results[0])) != (*q[:-1], turned[-1]):
        return None
    other = {name for name in softmax.arguments if softmax.arguments[name] not in (False, "float32")}
    if other - {"self", "dim"} or not 1e-9 < abs(scale) < 1e9 or not 1e-9 < cap < 1e9:
        return None
    made, keys = _keys(graph, turn, node.results[0])
    if keys is None:
        return None
    arguments: dict[str, Argument] = {"query": query, "key": keys, "value": values, "scale": scale}
    if masks:
        added, mask = _mask(graph, node, masks)
        if mask is None:
            return None
        made, arguments["attn_mask"] = made + added, mask
    if "cap" in found:
        arguments["softcap"] = float(cap)
    op = "ggml_backend.attention" if "cap" in found else "scaled_dot_product_attention"
    whole = Node(op, arguments, node.results, node.module)
    return [*made, *(graph.replaced(SHARED_HEADS[0], whole, SHARED_HEADS[1]) or [whole])]


def _scale(found: Found) -> float:
    """The product of all factors, or 0 if one of them is of no use."""
    scale = 1.0
    for name in _FACTORS:
        divisor = found.get(f"{name} by", 1)
        scale *= found.get(f"{name} times", 1) / divisor if divisor else 0
    return scale


def _keys(graph: Graph, turn: Node, name: str) -> tuple[list[Node], Ref | None]:
    """The keys as rows, from the node that turns them."""
    source = turn.arguments["self"]
    assert isinstance(source, Ref)
    n = len(graph.sizes(source))
    order = _order(turn, n)
    if sorted(order) != [*range(n)] or n < 2:
        return [], None
    order[-2:] = order[:-3:-1]
    if order == [*range(n)]:
        return [], source
    sizes, keys = graph.sizes(source), graph.fresh(f"{name}, keys")
    graph.network.values[keys] = Value(tuple(sizes[axis] for axis in order), "float32")
    return [Node("permute", {"self": source, "dims": [*order]}, (keys,), turn.module)], Ref(keys)


def _order(turn: Node, n: int) -> list[int]:
    """The axes of the result of a node that turns its source of n axes. Empty: unknown."""
    if turn.op == "permute":
        dims = turn.arguments.get("dims")
        return [d % n for d in dims if isinstance(d, int)] if isinstance(dims, list) and n else []
    p, q = (turn.arguments.get(name) for name in ("dim0", "dim1"))
    if not isinstance(p, int) or not isinstance(q, int) or not -n <= min(p, q) <= max(p, q) < n:
        return []
    order = [*range(n)]
    order[p], order[q] = order[q], order[p]
    return order


def _mask(graph: Graph, node: Node, masks: list[Ref]) -> tuple[list[Node], Ref | None]:
    """The mask, and the node that adds two of them. All layers share their sum. None: their sum has no shape."""
    if len(masks) == 1:
        return [], masks[0]
    names = masks[0].name, masks[1].name
    if names in graph.sums:
        return [], Ref(graph.sums[names])
    p, q = (graph.sizes(mask) for mask in masks)
    n = max(len(p), len(q))
    pairs = [*zip((1,) * (n - len(p)) + p, (1,) * (n - len(q)) + q, strict=True)]
    if not all(a == b or 1 in (a, b) for a, b in pairs):
        return [], None
    total = graph.sums[names] = graph.fresh(" + ".join(names))
    graph.network.values[total] = Value(tuple(b if a == 1 else a for a, b in pairs), "float32")
    return [Node("add.Tensor", {"self": masks[0], "other": masks[1]}, (total,), node.module)], Ref(total)


WRITTEN_OUT = _written_out(), _attends
