"""What the actions on GGUF files share: which tensors patterns name, and how sizes are shown."""

from __future__ import annotations

from ..._errors import InvalidArgumentError
from ..._text.patterns import Patterns, nearest

__all__ = ["byte_count", "fitting"]


def byte_count(n: int) -> str:
    return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.2f} MB" if n >= 1e5 else f"{n} bytes"


def fitting(patterns: list[str], names: list[str], what: str) -> list[str]:
    """The names that a pattern fits, in their order. Each pattern has to fit one."""
    known, chosen = Patterns(names), set[str]()
    for pattern in patterns:
        found = list(known.matching(pattern))
        if not found:
            raise InvalidArgumentError(f"{what} {pattern!r}: no tensor has such a name{nearest(pattern, names)}")
        chosen.update(found)
    return [name for name in names if name in chosen]
