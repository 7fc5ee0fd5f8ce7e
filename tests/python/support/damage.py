"""JSON values in which one part is replaced."""

from __future__ import annotations

from typing import Any


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of nested lists and tables with another value at a path of keys."""
    if not path:
        return value
    copy = list(tree) if isinstance(tree, list) else dict(tree)
    copy[path[0]] = replaced(tree[path[0]], path[1:], value)
    return copy
