"""Checked access to the metadata of an untrusted file. A missing value, or one of the wrong kind or out of limits,
raises ValueError with its key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def _kind(value: Any) -> str:
    return f"a list of {len(value)}" if isinstance(value, (list, np.ndarray)) else f"{str(value)[:60]!r}"


class Keys:
    """Values by name. Without a default a missing one is an error."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata

    def _value(self, name: str, default: Any) -> Any:
        value = self.metadata.get(name, default)
        if value is None:
            raise ValueError(f"the file has no key {name}")
        return value

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = 1 << 24) -> int:
        value = self._value(name, default)
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{name} is {_kind(value)}: it must be a whole number from {least} to {most}")
        return value

    def real(self, name: str, default: float | None = None, *, least: float = 0.0, most: float = 1e30) -> float:
        value = self._value(name, default)
        if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
            raise ValueError(f"{name} is {_kind(value)}: it must be a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if type(value) is not bool:
            raise ValueError(f"{name} is {_kind(value)}: it must be true or false")
        return value

    def word(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if type(value) is not str:
            raise ValueError(f"{name} is {_kind(value)}: it must be a text")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._value(name, None)
        if not isinstance(value, list) or not value or not all(type(v) is str for v in value):
            raise ValueError(f"{name} is {_kind(value)}: it must be a list of texts")
        return value

    def numbers(self, name: str, default: float, n: int) -> list[float]:
        """One for each of n."""
        value = self.metadata.get(name)
        if value is None:
            return [default] * n
        found = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(found, list) or len(found) != n or not all(type(v) in (int, float) and v == v for v in found):
            raise ValueError(f"{name} is {_kind(value)}: it must be a list of {n} numbers, one for each token")
        return [float(v) for v in found]
