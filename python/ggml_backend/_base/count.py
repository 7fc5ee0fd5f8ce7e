"""Numbers with their nouns, and lists that end in a number."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["count", "first_of"]


def count(n: int, noun: str, plural: str | None = None) -> str:
    """``1 split``, ``2 splits``, ``3 copies``, ``1,000 leafs``. plural: of a noun that no rule covers"""
    rule = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural or rule}"


def first_of(names: Iterable[str], most: int) -> str:
    """``a, b, c and 4 more``: the first names, and how many others there are."""
    found = list(names)
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + rest
