"""Expressions of operators in a network: what a pattern is made of, and the search for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from .network import Network, Node, Ref

__all__ = ["Found", "Graph", "Make", "Of", "Wanted", "add", "div", "mul", "number", "one", "value"]

_COMMUTATIVE = ("mul.Tensor", "add.Tensor")
_LARGEST = 2**63  # of an integer


@dataclass(frozen=True)
class Wanted:
    """Any value (``Ref``), any number, or any argument. One name stands for one argument in a pattern."""

    name: str
    kind: str  # "value", "number" or "argument"


@dataclass(frozen=True)
class Of:
    """A node of one of these operators with these arguments: patterns, or tuples of alternatives.

    more: it may have other arguments
    """

    ops: tuple[str, ...]
    arguments: Mapping[str, Any]
    more: bool = False


Found = Mapping[str, Any]
"""The arguments of a match by the names of the pattern. ``""``: the results of all nodes but the last."""
Make = Callable[["Graph", Node, Found], "list[Node] | None"]


class Graph:
    """A network while it changes."""

    def __init__(self, network: Network) -> None:
        self.network: Network = network
        self.readers: dict[str, int] = network.readers()
        self.producers: dict[str, Node] = {}
        self.signed: dict[str, str] = {}  # factors of rotations with their signs
        self.sums: dict[tuple[str, str], str] = {}  # of masks

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

    def replaced(self, pattern: Of, node: Node, make: Make) -> list[Node] | None:
        """The nodes that take the place of a node and of those before it, or None if they do not fit the pattern."""
        for found in self.node_matches(pattern, node, {"": ()}):
            inner: Counter[str] = Counter(found[""])
            floats = self.floats(*map(Ref, (*inner, *node.results)))
            if floats and all(self.readers.get(name, 1) <= n for name, n in inner.items()):
                made = make(self, node, found)
                if made is not None:
                    return made
        return None

    def matches(self, pattern: Any, argument: Any, found: Found) -> Iterator[Found]:
        """All ways in which an argument fits a pattern, as larger ``found``."""
        if isinstance(pattern, Wanted):
            given = self.number(argument) if pattern.kind == "number" else argument
            if pattern.kind == "value" and not isinstance(argument, Ref):
                given = None
            if given is not None and found.get(pattern.name, given) == given:
                yield {**found, pattern.name: given}
        elif isinstance(pattern, tuple):
            for one in pattern:
                yield from self.matches(one, argument, found)
        elif isinstance(pattern, list):
            if isinstance(argument, list) and len(argument) == len(pattern):
                yield from self._all(list(zip(pattern, argument, strict=True)), found)
        elif isinstance(pattern, Of):
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

    def node_matches(self, pattern: Of, node: Node, found: Found) -> Iterator[Found]:
        given, wanted = node.arguments, pattern.arguments
        extra = given.keys() - wanted.keys()
        if node.op not in pattern.ops or len(given) - len(extra) < len(wanted) or (extra and not pattern.more):
            return
        orders = permutations(wanted) if node.op in _COMMUTATIVE else [tuple(wanted)]
        for order in orders:
            yield from self._all([(wanted[name], given[at]) for name, at in zip(wanted, order, strict=True)], found)

    def _all(self, pairs: Sequence[tuple[Any, Any]], found: Found) -> Iterator[Found]:
        if not pairs:
            yield found
            return
        for more in self.matches(*pairs[0], found):
            yield from self._all(pairs[1:], more)


# ---- writing patterns ------------------------------------------------------------------------------------------------


def value(name: str) -> Wanted:
    return Wanted(name, "value")


def number(name: str) -> Wanted:
    return Wanted(name, "number")


def mul(a: Any, b: Any) -> Of:
    return Of(("mul.Tensor",), {"self": a, "other": b})


def add(a: Any, b: Any) -> Of:
    return Of(("add.Tensor",), {"self": a, "other": b})


def div(a: Any, b: Any) -> Of:
    return Of(("div.Tensor",), {"self": a, "other": b})


def one(op: str, x: Any) -> Of:
    return Of((op,), {"self": x})
