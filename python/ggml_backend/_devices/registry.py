"""Kinds of devices by name, and what one is opened with."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from .._errors import InvalidArgumentError, check
from .._errors.messages import close_matches
from .._ffi import ffi, lib

__all__ = ["Kind", "kind_called", "kinds", "missing", "register"]

kinds: dict[str, Kind] = {}
"""By name in capitals."""


class Kind:
    """A class of devices under a name. C refers to it by its handle, for ever."""

    __slots__ = ("cls", "handle", "name")

    def __init__(self, name: str, cls: type[Any]) -> None:
        self.name = name
        self.cls = cls
        self.handle = ffi.new_handle(self)


class _Given(threading.local):
    keywords: Mapping[str, Any] | None = None


given = _Given()
"""The keywords of the ``Backend(...)`` that this thread is in: objects, which no text could hold."""


def register(name: str, cls: type[Any], replace: bool) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,47}", name):
        raise InvalidArgumentError(
            f"register_device: name must be a letter and then letters, digits or _, at most 48, not {name!r}"
        )
    known = kinds.get(name.upper())
    if known is not None:
        if not replace and known.cls is not cls:
            raise InvalidArgumentError(
                f"register_device: there is a device {known.name!r} already, {known.cls.__qualname__}; replace=True"
                " puts this one in its place for devices that are opened from now on"
            )
        known.cls = cls
        return
    if lib.ggml_backend_reg_find_by_name(name.encode()) < lib.ggml_backend_reg_get_count():
        raise InvalidArgumentError(f"register_device: there is a backend {name!r} already, written in C")
    kind = Kind(name, cls)
    check(lib.gbpy_register_device(name.encode(), kind.handle), "register_device")
    kinds[name.upper()] = kind


def kind_called(name: str) -> Kind | None:
    return kinds.get(name.upper())


def missing() -> dict[str, str]:
    """Of kinds that cannot be used here, why."""
    reasons = {kind.name: kind.cls.missing() for kind in kinds.values()}
    return {name: str(reason) for name, reason in reasons.items() if reason}


# ------------------------------------------------------------------------------------------------------------- options

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _bool(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError
    return text.lower() in _TRUE


_READERS: dict[Any, Callable[[str], Any]] = {bool: _bool, int: int, float: float}


def _reader(parameter: inspect.Parameter) -> tuple[str, Callable[[str], Any]]:
    """How the text of an option becomes a value: by its annotation, or else by its default."""
    hint = parameter.annotation
    words = set(re.findall(r"\w+", hint)) if isinstance(hint, str) else {getattr(hint, "__name__", "")}
    for kind, read in _READERS.items():
        if kind.__name__ in words or (hint is parameter.empty and type(parameter.default) is kind):
            return kind.__name__, read
    return "str", str


def options_of(kind: Kind, params: str) -> dict[str, Any]:
    """The options of ``NAME:key=value,...`` and the keywords of this thread's ``Backend(...)``, as its class takes
    them."""
    signature = inspect.signature(kind.cls)
    accepted = {n: p for n, p in signature.parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    any_name = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    options: dict[str, Any] = {}
    for pair in filter(None, params.split(",")):
        key, sign, text = pair.partition("=")
        _expect_known(kind, key, accepted, any_name)
        what, read = _reader(accepted[key]) if key in accepted else ("str", str)
        if not sign and what == "bool":
            text = "1"  # the name alone
        try:
            options[key] = read(text)
        except ValueError:
            raise InvalidArgumentError(f"{kind.name}: option {key} must be {what}, not {text!r}") from None
    for key, value in (given.keywords or {}).items():
        _expect_known(kind, key, accepted, any_name)
        if key in options:
            raise InvalidArgumentError(f"{kind.name}: option {key} is given twice")
        options[key] = value
    return options


def _expect_known(kind: Kind, key: str, accepted: Mapping[str, object], any_name: bool) -> None:
    if key not in accepted and not any_name:
        known = f"known are {', '.join(accepted)}" if accepted else "it takes none"
        raise InvalidArgumentError(f"{kind.name}: there is no option {key!r}; {known}{close_matches(key, accepted)}")
