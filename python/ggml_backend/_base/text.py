"""Escapes text of unknown origin, such as names in model files, for output.

All output of the package uses these functions: HTML and SVG (:func:`markup`), JSON inside a script element
(:func:`script_json`), terminals (:func:`line`, :func:`lines`).

A name must have no effect on its surroundings. It must not add elements, attributes or scripts.
Control characters could move the cursor, change colours or the title, or write to the clipboard of
a terminal. Some characters reverse the direction of text around them.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from itertools import takewhile
from typing import Any

from .errors import InvalidArgumentError
from .errors.messages import close_matches

__all__ = [
    "MAX_NAME", "Patterns", "as_name", "cell", "copies_text", "count", "first_of", "integer", "line", "lines",
    "markup", "nearest", "script_json", "shorter", "size_text", "uncell",
]  # fmt: skip

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_SHOWN = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# control, format (direction), surrogates, private, unassigned, line separators
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def _visible(c: str) -> str:
    if c.isprintable():  # none of the kinds above, and no unusual space
        return c
    if unicodedata.category(c) not in _HIDDEN:
        return " " if unicodedata.category(c) == "Zs" else c
    code = ord(c)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return _SHOWN.get(c) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def line(text: object, width: int | None = None) -> str:
    """Text for one line of a terminal. Unprintable characters become escapes such as ``\\x1b``.
    width: cut longer texts, with ``...`` at the end"""
    shown = str(text)
    if not shown.isprintable():
        shown = "".join(map(_visible, shown))
    return shown if width is None or len(shown) <= width else f"{shown[: width - 3]}..."


def integer(value: Any) -> str:
    """An integer for a message. A very long one is given by its number of digits, because Python
    refuses to print it."""
    number = int(value)
    return str(number) if number.bit_length() <= 200 else f"a number of {int(number.bit_length() * 0.30103) + 1} digits"


def lines(text: object) -> str:
    """Like :func:`line`, for text of several lines. Line ends stay."""
    shown = str(text)
    return "\n".join(map(line, shown.split("\n")))


def markup(text: object) -> str:
    """Text for HTML and SVG, as content and in quoted attributes."""
    import html

    return html.escape(line(text))


def script_json(value: Any) -> str:
    """ASCII JSON for a script element. It cannot end the element or start another one."""
    import json

    text = json.dumps(value, separators=(",", ":"))
    for c in "<>&":
        text = text.replace(c, f"\\u{ord(c):04x}")
    return text


def cell(text: object) -> str:
    """Text for a cell of a CSV file. A text that a spreadsheet would read as a formula gets a
    leading apostrophe, which :func:`uncell` removes."""
    shown = str(text)
    return (
        f"'{shown}"
        if shown.startswith(("=", "+", "-", "@", "\t", "\r", "'")) and not _NUMBER.fullmatch(shown)
        else shown
    )


def uncell(text: str) -> str:
    """The argument of :func:`cell`."""
    return text[1:] if text.startswith("'") and cell(text[1:]) == text else text


def count(n: int, noun: str, plural: str | None = None) -> str:
    """``1 split``, ``2 splits``, ``3 copies``, ``1,000 leafs``. plural: plural of an irregular
    noun"""
    rule = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"
    return f"{n:,} {noun if n == 1 else plural or rule}"


def size_text(n: int) -> str:
    """1536 -> "1.50 KiB"."""
    if abs(n) < 1024:
        return f"{n} B"
    value, unit = n / 1024, "KiB"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}" if value >= 1000 else f"{value:.3g} {unit}" if value >= 10 else f"{value:.2f} {unit}"


def copies_text(sizes: Iterable[int]) -> str:
    """``0 copies``, ``1 copy (64 B)``, ``3 copies (96 KiB in all)``, of copies with so many bytes each."""
    found = list(sizes)
    total = f" ({size_text(sum(found))}{' in all' if len(found) > 1 else ''})" if found else ""
    return count(len(found), "copy") + total


def first_of(names: Iterable[str], most: int) -> str:
    """``a, b, c and 4 more``: the first names, and the number of others."""
    found = list(names)
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + rest


MAX_NAME = 63
"""Largest number of bytes of a tensor's name."""


def as_name(name: object, what: str, label: str = "name") -> bytes:
    """The bytes of a name in UTF-8. Surrogates become the original bytes.

    what, label: the function and the argument, for messages

    Raises TypeError unless it is a str, and InvalidArgumentError for a NUL or text that UTF-8 cannot hold.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what}: {label} must be a str, not {type(name).__name__}")
    if "\0" in name:
        raise InvalidArgumentError(f"{what}: a name cannot hold NUL: {name!r:.60}")
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what}: {name!r:.60} holds half of a surrogate pair, which is no text") from None


def shorter(name: bytes, most: int) -> bytes:
    """A text of at most so many bytes, cut between characters."""
    if len(name) <= most:
        return name
    end = most
    while end > 0 and name[end] & 0xC0 == 0x80:
        end -= 1
    return name[: end if end > most - 4 else most]


_WILD = re.compile(r"[*?\[]")


class Patterns:
    """Names to search with patterns. A pattern without wildcards is looked up. A pattern that
    begins or ends with text is tried only on names that begin or end with this text. Patterns with
    wildcards on both ends are tried on all names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._known = set(self._names)
        self._sorted = sorted(self._names)
        self._backwards: list[str] | None = None  # reversed names, sorted

    def _candidates(self, pattern: str, wild: int) -> Iterator[str]:
        if wild:
            return _beginning(self._sorted, pattern[:wild])
        tail = re.split(r"[*?\]]", pattern)[-1]
        if not tail:
            return iter(self._names)
        if self._backwards is None:
            self._backwards = sorted(name[::-1] for name in self._names)
        return (name[::-1] for name in _beginning(self._backwards, tail[::-1]))

    def matching(self, pattern: str) -> Iterator[str]:
        """The names that match a pattern, in any order."""
        found = _WILD.search(pattern)
        if found is None:
            return iter([pattern] if pattern in self._known else [])
        candidates = self._candidates(pattern, found.start())
        if found.start() == len(pattern) - 1 and pattern[-1] == "*":
            return candidates
        return _fitting(pattern, candidates)

    def fitting(self, pattern: str) -> list[str]:
        """Like the above, but a pattern that is a name matches only that name."""
        return [pattern] if pattern in self._known else list(self.matching(pattern))

    def first(self, patterns: Iterable[str]) -> dict[str, str]:
        """The first matching pattern of each name. Names without a match are missing."""
        chosen: dict[str, str] = {}
        for pattern in patterns:
            if len(chosen) == len(self._known):
                break
            for name in self.matching(pattern):
                chosen.setdefault(name, pattern)
        return chosen

    def hidden(self, patterns: Iterable[str]) -> tuple[str, str] | None:
        """A pattern that is never the first match, and an earlier pattern that matches all of its
        names and more."""
        given = list(dict.fromkeys(patterns))
        chosen = self.first(given)
        deciding = set(chosen.values())
        for pattern in given:
            names = set() if pattern in deciding else set(self.matching(pattern))
            before = {chosen[name] for name in names}
            if len(before) == 1 and sum(1 for _ in self.matching(*before)) > len(names):
                return pattern, before.pop()
        return None


def nearest(pattern: str, names: Iterable[str]) -> str:
    """The end of a message about a pattern without a match: similar names, or the first names."""
    known = list(names)
    near = close_matches(pattern, known) or close_matches(pattern.strip("*?."), known)
    if near or not known:
        return near
    return f"; there are {', '.join(map(repr, known[:4]))}{', ...' if len(known) > 4 else ''}"


def _beginning(names: Sequence[str], text: str) -> Iterator[str]:
    at = bisect_left(names, text)
    return takewhile(lambda name: name.startswith(text), (names[i] for i in range(at, len(names))))


def _fitting(pattern: str, candidates: Iterator[str]) -> Iterator[str]:
    head = next(candidates, None)
    if head is None:
        return  # most patterns match nothing, so compiling them is not worthwhile
    fits = re.compile(translate(pattern)).match
    if fits(head):
        yield head
    yield from (name for name in candidates if fits(name))
