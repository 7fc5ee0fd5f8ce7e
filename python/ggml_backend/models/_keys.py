"""Checked access to the metadata of an untrusted file.

A missing value, or one of the wrong type or out of its limits, raises :class:`FileError` with its key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._base.errors import FileError

__all__ = ["Keys"]

_LARGEST = 1 << 24


def _shown(value: Any) -> str:
    if isinstance(value, (list, np.ndarray)):
        return f"a list of {len(value)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else repr(str(value)[:60])


class Keys:
    """Values by key. ``prefix`` stands before each key that begins with a dot: ``".block_count"``."""

    def __init__(self, metadata: Mapping[str, Any], prefix: str = "") -> None:
        self.metadata = metadata
        self.prefix = prefix

    def name(self, key: str) -> str:
        """The whole key."""
        return self.prefix + key if key.startswith(".") else key

    def __contains__(self, key: str) -> bool:
        return self.name(key) in self.metadata

    def _value(self, key: str, default: Any) -> Any:
        value = self.metadata.get(self.name(key), default)
        if value is None:
            raise FileError(f"the file has no key {self.name(key)}")
        return value

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int = _LARGEST) -> int:
        """A whole number."""
        value = self._value(key, default)
        if type(value) is not int or not least <= value <= most:
            raise FileError(f"{self.name(key)} is {_shown(value)}: it must be a whole number from {least} to {most}")
        return value

    def counts(self, key: str, n: int, default: int | None = None) -> list[int]:
        """A whole number for each of ``n`` layers: a list, or one number for all."""
        value = self.metadata.get(self.name(key))
        if not isinstance(value, np.ndarray):
            return [self.count(key, default)] * n
        found: list[int] = value.tolist()
        if len(found) != n or not all(type(v) is int and 1 <= v <= _LARGEST for v in found):
            raise FileError(f"{self.name(key)} is {_shown(value)}: it must be {n} whole numbers, one for each layer")
        return found

    def real(self, key: str, default: float | None = None, *, least: float = 0.0, most: float = 1e30) -> float:
        """A finite number."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
            raise FileError(f"{self.name(key)} is {_shown(value)}: it must be a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise FileError(f"{self.name(key)} is {_shown(value)}: it must be true or false")
        return value

    def word(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self._value(key, default)
        if type(value) is not str:
            raise FileError(f"{self.name(key)} is {_shown(value)}: it must be a text")
        return value

    def words(self, key: str) -> list[str]:
        """A list of texts, at least one."""
        value = self._value(key, None)
        if not isinstance(value, list) or not value or not all(type(v) is str for v in value):
            raise FileError(f"{self.name(key)} is {_shown(value)}: it must be a list of texts")
        return value

    def numbers(self, key: str, default: float, n: int) -> list[float]:
        """A number for each of ``n`` tokens."""
        value = self.metadata.get(self.name(key))
        if value is None:
            return [default] * n
        found = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(found, list) or len(found) != n or not all(type(v) in (int, float) and v == v for v in found):
            raise FileError(
                f"{self.name(key)} is {_shown(value)}: it must be a list of {n} numbers, one for each token"
            )
        return [float(v) for v in found]
