"""The rules: how each operator of a network becomes nodes of a graph.

A rule is a function of the builder and of the operator's arguments, by their names in ATen. It returns a tensor with
the elements of the result in C order, or a tuple of these. Values come as :class:`Val`, numbers as numbers. If a rule
cannot translate a node, it raises :class:`NoRule` with the reason.

Each module has the rules of a theme. Importing this package fills ``RULES``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ...tensor import Tensor
from ..build import EXACT, Build, NoRule, Val
from ..network import Network, Ref

__all__ = ["RULES", "Rule", "matrices", "rule", "translate"]

_F = TypeVar("_F", bound=Callable[..., Any])
FLOATS, INTEGERS = ("float32",), ("int64", "int32", "int16", "int8", "uint8")
_NARROW = INTEGERS[2:]
_UNFIT = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError)
_DTYPES = {"f": FLOATS, "i": INTEGERS, "b": ("bool",), "u": ("uint8",)}


@dataclass(frozen=True)
class Rule:
    """dtypes: that values may have, as arguments of the operator
    parameters: of the function, or None for any
    matrix: the argument that may be a quantized weight, or ""
    arithmetic: True if the rule computes with integers, which float32 must hold
    """

    function: Callable[..., Any]
    dtypes: frozenset[str]
    parameters: frozenset[str] | None
    matrix: str
    arithmetic: bool


RULES: dict[str, Rule] = {}
"""The rules by operator."""


def rule(*operators: str, of: str = "f", matrix: str = "", arithmetic: bool = False) -> Callable[[_F], _F]:
    """Declares the rule of these operators.

    of: what its values may be: f floats, i integers, b booleans, u bytes
    matrix: the argument that may be a quantized weight
    arithmetic: True for arithmetic and comparisons of integers
    """
    dtypes = frozenset(dtype for kind in of for dtype in _DTYPES[kind])

    def register(function: _F) -> _F:
        names = inspect.signature(function).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in names.values())
        parameters = None if takes_any else frozenset([*names][1:])
        for operator in operators:
            if operator in RULES:
                raise ValueError(f"{operator} has two rules")
            RULES[operator] = Rule(function, dtypes, parameters, matrix, arithmetic)
        return function

    return register


def translate(build: Build, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """The results of the builder's node as tensors. NoRule: there is no rule, or it does not cover this case."""
    node = build.node
    found = RULES.get(node.op)
    if found is None:
        raise NoRule("there is no rule")
    unknown = [] if found.parameters is None else sorted({*arguments} - found.parameters)
    if unknown:
        raise NoRule(f"the rule does not know the argument {unknown[0]}={arguments[unknown[0]]!r:.40}")
    values = [*_values([*arguments.values()])]
    for value in values:
        if value.dtype not in found.dtypes:
            raise NoRule(f"it has no rule for {value.dtype}")
    if found.arithmetic:
        _check_integers(build, values, arguments)
    if node.op != "cat" and any(0 in v.shape for v in values):
        raise NoRule("a value has no elements")
    try:
        made = found.function(build, **arguments)
    except _UNFIT as error:  # a file may hold any arguments
        raise NoRule(f"the arguments do not fit the rule: {type(error).__name__}: {error}") from error
    results = made if isinstance(made, tuple) else (made,)
    if not all(t is None or isinstance(t, Tensor) for t in results):
        raise NoRule("all its arguments are numbers")
    return results


def _check_integers(build: Build, values: list[Val], arguments: Mapping[str, Any]) -> None:
    """Raises NoRule if float32 cannot compute these integers."""
    if build.result.dtype in _NARROW:
        raise NoRule(f"{build.result.dtype} wraps around")
    if any(v.dtype in INTEGERS for v in values):
        numbers = [a.number if isinstance(a, Val) else a for a in arguments.values()]
        for number in numbers:
            if isinstance(number, (int, float)) and math.isfinite(number) and abs(number) > EXACT:
                raise NoRule(f"the integer {number:.0f} is above {EXACT}")


def matrices(network: Network) -> set[str]:
    """The weights that may be quantized: matrices that products and rows read."""
    found = set()
    for node in network.nodes:
        known = RULES.get(node.op)
        argument = node.arguments.get(known.matrix) if known is not None and known.matrix else None
        name = argument.name if isinstance(argument, Ref) else ""
        if name in network.weights and len(network.values[name].shape) == 2:
            found.add(name)
    return found


def _values(arguments: list[Any]) -> list[Val]:
    found: list[Val] = []
    for argument in arguments:
        if isinstance(argument, Val):
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            found += _values(list(argument))
    return found


from . import elementwise, joining, norms, products, reductions, rows, shapes, windows  # noqa: E402, F401
