"""The formats of weights, as users choose them by patterns of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

from .._base.errors.messages import kind_of
from .._base.text import Patterns, nearest
from ..dtypes import DTypeLike, as_dtype
from ..errors import InvalidArgumentError
from .network import Network
from .rules import matrices

__all__ = ["Formats", "check_formats", "chosen_formats"]

Formats = Union[None, DTypeLike, "Mapping[str, DTypeLike | None]"]


def _rules_of(weights: Formats) -> dict[str, DTypeLike | None]:
    """Formats by patterns of names."""
    return {} if weights is None else dict(weights) if isinstance(weights, Mapping) else {"*": weights}


def _parameters(network: Network) -> dict[str, str]:
    """The parameters of weights that can be quantized."""
    return {name: name.partition(" as ")[0] for name in sorted(matrices(network))}


def chosen_formats(weights: Formats, network: Network) -> dict[str, DTypeLike | None]:
    """The formats of weights by name. The first matching pattern decides."""
    given, base = _rules_of(weights), _parameters(network)
    chosen = Patterns([*dict.fromkeys(base.values())]).first(given)
    return {name: given[chosen[short]] for name, short in base.items() if short in chosen}


def check_formats(weights: Formats, network: Network, what: str) -> None:
    """Raises if a format matches no weight, or if an earlier pattern matches all of its weights."""
    given, base = _rules_of(weights), _parameters(network)
    names = Patterns([*dict.fromkeys(base.values())])
    for pattern, wanted in given.items():
        if not isinstance(pattern, str):
            raise TypeError(f"{what}: weights: each pattern must be a str, not {kind_of(pattern)}")
        if wanted is not None:
            as_dtype(wanted, f"{what}: weights")
            if next(names.matching(pattern), None) is None:
                raise InvalidArgumentError(
                    f"{what}: no weight that can be quantized fits {pattern!r}{nearest(pattern, [*base.values()])}"
                )
    hidden = names.hidden(given)
    if hidden is not None:
        raise InvalidArgumentError(
            f"{what}: {hidden[0]!r} decides nothing: {hidden[1]!r} comes first and matches all of its weights; give the"
            " special pattern first"
        )
