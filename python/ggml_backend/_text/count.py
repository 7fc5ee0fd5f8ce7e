"""A number with its noun."""

from __future__ import annotations

__all__ = ["count"]


def count(n: int, noun: str) -> str:
    """``1 split``, ``2 splits``, ``3 copies``, ``1,000 leafs``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"
    return f"{n:,} {noun if n == 1 else many}"
