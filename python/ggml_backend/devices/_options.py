"""Parses the options of a device."""

from __future__ import annotations

import contextlib
import inspect
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from .._base.errors import InvalidArgumentError
from .._base.errors.messages import close_matches
from ..backend._registry import Kind, given

__all__ = ["options_of"]

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _bool(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError
    return text.lower() in _TRUE


_READERS: dict[Any, Callable[[str], Any]] = {int: int, float: float, bool: _bool, Path: Path, str: str}
_UNIONS = (Union, types.UnionType)


def _members(hint: Any) -> list[Any]:
    """The types that an annotation allows, without None. For a literal: its values."""
    if get_origin(hint) in _UNIONS:
        return [m for one in get_args(hint) for m in _members(one)]
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return [*get_args(hint)]
    return [] if hint is type(None) else [hint]


class _Option:
    """Converts the text of an option by its annotation, or by its default.

    Of several types the first match in ``_READERS`` counts. An option with only other types takes no text.
    """

    def __init__(self, hint: Any, default: Any) -> None:
        if hint is inspect.Parameter.empty:
            hint = type(default) if type(default) in _READERS else str
        members = _members(hint)
        self.values = [m for m in members if not isinstance(m, type) and isinstance(m, (str, int, bool))]
        self.kinds = [kind for kind in _READERS if kind in members or (kind is str and Any in members)]
        self.is_flag = self.kinds == [bool]
        self.what = " or ".join([*map(repr, self.values), *(k.__name__ for k in self.kinds)])

    def read(self, text: str) -> Any:
        for value in self.values:
            if text == str(value):
                return value
        for kind in self.kinds:
            with contextlib.suppress(ValueError):
                return _READERS[kind](text)
        raise ValueError


def _hints(cls: type[Any]) -> Mapping[str, Any]:
    """The annotations of ``__init__`` as types. Annotations written as text are resolved."""
    try:
        return get_type_hints(cls.__init__, include_extras=True)
    except Exception:  # for example a name that only type checkers import
        return {}


def _option(kind: Kind, parameter: inspect.Parameter | None) -> _Option:
    if parameter is None:  # an option of **options
        return _Option(str, None)
    hint = _hints(kind.cls).get(parameter.name, parameter.annotation)
    if isinstance(hint, str):  # an unresolved annotation: use the type names in it
        words = re.findall(r"\w+", hint)
        named = tuple(k for k in _READERS if k.__name__ in words)
        hint = Union[named] if named else inspect.Parameter.empty  # noqa: UP007
    return _Option(hint, parameter.default)


def options_of(kind: Kind, params: str) -> dict[str, Any]:
    """The options of ``NAME:key=value,...`` and the keywords of this thread's ``Backend(...)``, as arguments
    for the class."""
    signature = inspect.signature(kind.cls)
    accepted = {n: p for n, p in signature.parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    any_name = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    options: dict[str, Any] = {}
    for pair in filter(None, params.split(",")):
        key, sign, text = pair.partition("=")
        _expect_known(kind, key, accepted, any_name)
        if key in options:
            raise InvalidArgumentError(f"{kind.name}: option {key} is given twice")
        option = _option(kind, accepted.get(key))
        if not sign and option.is_flag:
            text = "1"  # a name without a value
        if not option.what:
            raise InvalidArgumentError(f"{kind.name}: option {key} has no text: give it as a keyword, Backend(...,"
                                       f" {key}=...)")  # fmt: skip
        try:
            options[key] = option.read(text)
        except ValueError:
            raise InvalidArgumentError(f"{kind.name}: option {key} must be {option.what}, not {text!r}") from None
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
