"""Forms of JSON files. Each file declares its form once. All values are checked before use."""

from __future__ import annotations

import math
from typing import Any

from .errors import InvalidArgumentError
from .text import line

__all__ = ["expect_form"]

_NAMES: dict[Any, str] = {str: "a text", int: "a whole number", float: "a finite number", bool: "true or false"}
_LARGEST = 2**63


def _is(value: Any, form: Any) -> bool:
    if form is int:
        return type(value) is int and -_LARGEST <= value < _LARGEST
    if form is float:
        return (type(value) is float and math.isfinite(value)) or _is(value, int)
    return type(value) is form


def expect_form(value: Any, form: Any, where: str = "") -> None:
    """Checks a value of :func:`json.loads`. Raises InvalidArgumentError, which names the first
    wrong part.

    form: ``str``, ``int`` (64 bits), ``float`` (finite, also an integer) or ``bool``; ``[form]``: a
        list of such values; ``{"key": form}``: a table with exactly these keys, of which ``"key?"``
        may be missing; ``{str: form}``: a table with any keys
    """
    if isinstance(form, list):
        if not isinstance(value, list):
            raise InvalidArgumentError(f"{where or 'it'} must be a list, is {line(value, 40)}")
        for i, item in enumerate(value):
            expect_form(item, form[0], f"{where}[{i}]")
    elif isinstance(form, dict):
        if not isinstance(value, dict):
            raise InvalidArgumentError(f"{where or 'it'} must be a table, is {line(value, 40)}")
        parts = dict.fromkeys(value, form[str]) if str in form else {k.removesuffix("?"): form[k] for k in form}
        for key, part in parts.items():
            at = f"{where}.{line(key, 40)}" if where else line(key, 40)
            if key in value:
                expect_form(value[key], part, at)
            elif f"{key}?" not in form:
                raise InvalidArgumentError(f"{at} is missing")
        for key in value:
            if key not in parts:
                raise InvalidArgumentError(f"{where or 'it'} has the key {line(key, 40)}, which is unknown")
    elif not _is(value, form):
        raise InvalidArgumentError(f"{where or 'it'} must be {_NAMES[form]}, is {line(value, 40)}")
