"""Kinds of devices by name."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .._base.errors import InvalidArgumentError, check
from .._ffi import ffi, lib

__all__ = ["Kind", "kind_called", "kinds", "missing", "register"]

kinds: dict[str, Kind] = {}
"""Kinds by name in capitals."""

_LATER = {"ARRAY": "ggml_backend.devices._array"}
"""Device kinds of this package. Each is a package with ``missing()``. Its module ``device`` registers the
class and is imported on first use."""


class Kind:
    """A device class under a name. C keeps its handle for the life of the process."""

    __slots__ = ("_cls", "handle", "name")

    def __init__(self, name: str, cls: type[Any] | None) -> None:
        self.name = name
        self._cls = cls  # None until its module is imported
        self.handle = ffi.new_handle(self)

    @property
    def cls(self) -> type[Any]:
        if self._cls is None:
            import_module(f"{_LATER[self.name]}.device")  # registers the class
        assert self._cls is not None
        return self._cls

    @cls.setter
    def cls(self, cls: type[Any]) -> None:
        self._cls = cls

    def load(self) -> None:
        """Imports the class, and the hooks that C calls. Call it before C opens a device of this kind."""
        _ = self.cls

    def missing(self) -> object:
        """The reason why devices of this kind are unavailable; None if they are available."""
        return (import_module(_LATER[self.name]) if self._cls is None else self._cls).missing()


class _Given(threading.local):
    keywords: Mapping[str, Any] | None = None


given = _Given()
"""The keyword objects of the ``Backend(...)`` call of this thread, which a text cannot hold."""


def register(name: str, cls: type[Any], replace: bool) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,47}", name):
        raise InvalidArgumentError(
            f"register_device: name must be a letter and then letters, digits or _, at most 48, not {name!r}"
        )
    known = kinds.get(name.upper())
    if known is not None:
        if not replace and known.cls is not cls:
            raise InvalidArgumentError(
                f"register_device: the device {known.name!r} exists already, {known.cls.__qualname__}; replace=True"
                " replaces it for devices opened from now on"
            )
        known.cls = cls
        return
    if lib.ggml_backend_reg_find_by_name(name.encode()) < lib.ggml_backend_reg_get_count():
        raise InvalidArgumentError(f"register_device: the backend {name!r} exists already, written in C")
    _add(Kind(name, cls))


def _add(kind: Kind) -> None:
    check(lib.gbpy_register_device(kind.name.encode(), kind.handle), "register_device")
    kinds[kind.name.upper()] = kind


def kind_called(name: str) -> Kind | None:
    return kinds.get(name.upper())


def missing() -> dict[str, str]:
    """The unavailable kinds, each with the reason."""
    reasons = {kind.name: _reason(kind) for kind in kinds.values()}
    return {name: str(reason) for name, reason in reasons.items() if reason}


def _reason(kind: Kind) -> object:
    """The reason that the class gives. An exception there becomes the reason, so other kinds stay usable."""
    try:
        return kind.missing()
    except Exception as error:
        return f"{kind.cls.__qualname__}.missing raised {type(error).__name__}: {error}"


for _name in _LATER:
    _add(Kind(_name, None))
