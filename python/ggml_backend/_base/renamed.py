"""Old public names. Each works for one release and warns with a DeprecationWarning."""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["Renamed", "warn_of"]


def warn_of(old: str, new: str, stacklevel: int = 3) -> None:
    """Warns that ``old`` is deprecated. The warning points to the caller of the caller, or as ``stacklevel`` says."""
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=stacklevel)


class Renamed:
    """The old name of an attribute or a method of a class."""

    def __init__(self, new: str) -> None:
        self.new: str = new
        self.owner: str = ""
        self.old: str = ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.owner, self.old = owner.__name__, name

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        warn_of(f"{self.owner}.{self.old}", f"{self.owner}.{self.new}")
        return getattr(instance, self.new)
