"""Names that a module or a class does not hold: old ones, and those of modules that are not loaded yet.

An old public name works for one release and warns with a DeprecationWarning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["Renamed", "load", "warn_of"]


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


def load(package: str, names: Mapping[str, Sequence[str]], name: str) -> Any:
    """Looks up a name for the ``__getattr__`` of a package. Returns None if the package does not have it.

    ``names`` lists names by the modules that define them. This function imports the module of ``name``. The names of
    "" are submodules.
    """
    for module, defined in names.items():
        if name in defined:
            if not module:
                return import_module(f".{name}", package)
            value = getattr(import_module(f".{module}", package), name)
            setattr(sys.modules[package], name, value)
            return value
    return None
