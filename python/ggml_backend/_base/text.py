"""Text of unknown origin (names in model files, messages that hold them) for where it is shown. Everything that the
package shows goes through here: HTML and SVG (:func:`markup`), JSON inside a script element (:func:`script_json`),
terminals (:func:`line`, :func:`lines`).

Nothing of a name may mean anything to its surroundings: no element, attribute or script; no control character, which
could move the cursor, change colours or the title, or write into the clipboard of a terminal; no character that turns
the direction of the text around it.
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
    if c.isprintable():  # none of the kinds above, nor a space other than the usual
        return c
    if unicodedata.category(c) not in _HIDDEN:
        return " " if unicodedata.category(c) == "Zs" else c
    code = ord(c)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return _SHOWN.get(c) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def line(text: object, width: int | None = None) -> str:
    """For one line of a terminal: what does not print as an escape such as ``\\x1b``. width: longer ones end in
    ``...``"""
    shown = str(text)
    if not shown.isprintable():
        shown = "".join(map(_visible, shown))
    return shown if width is None or len(shown) <= width else f"{shown[: width - 3]}..."


def integer(value: Any) -> str:
    """An integer for a message. Of a very long one only the number of digits is shown, because Python refuses to write
    it."""
    number = int(value)
    return str(number) if number.bit_length() <= 200 else f"a number of {int(number.bit_length() * 0.30103) + 1} digits"


def lines(text: object) -> str:
    """The same for text of several lines: line ends stay."""
    shown = str(text)
    return "\n".join(map(line, shown.split("\n")))


def markup(text: object) -> str:
    """For HTML and SVG, as content and inside quoted attributes."""
    import html

    return html.escape(line(text))


def script_json(value: Any) -> str:
    """JSON, in ASCII, for a script element: nothing in it can end the element or begin another."""
    import json

    text = json.dumps(value, separators=(",", ":"))
    for c in "<>&":
        text = text.replace(c, f"\\u{ord(c):04x}")
    return text


def cell(text: object) -> str:
    """For a cell of a CSV file, as it is, but for what a spreadsheet would take for a formula (numbers are none): that
    gets an apostrophe before it, which :func:`uncell` takes away."""
    shown = str(text)
    return (
        f"'{shown}"
        if shown.startswith(("=", "+", "-", "@", "\t", "\r", "'")) and not _NUMBER.fullmatch(shown)
        else shown
    )


def uncell(text: str) -> str:
    """What :func:`cell` was given."""
    return text[1:] if text.startswith("'") and cell(text[1:]) == text else text


def count(n: int, noun: str, plural: str | None = None) -> str:
    """``1 split``, ``2 splits``, ``3 copies``, ``1,000 leafs``. plural: of a noun that no rule covers"""
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
    """``a, b, c and 4 more``: the first names, and how many others there are."""
    found = list(names)
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + rest


MAX_NAME = 63
"""Bytes of the name of a tensor."""


def as_name(name: object, what: str, label: str = "name") -> bytes:
    """The bytes of a name: UTF-8, surrogates (bytes of a file that were no UTF-8) as they were. TypeError unless it is
    a str, InvalidArgumentError for a NUL and for what UTF-8 cannot hold. what: of which function, and label: which
    argument, for the message"""
    if not isinstance(name, str):
        raise TypeError(f"{what}: {label} must be a str, not {type(name).__name__}")
    if "\0" in name:
        raise InvalidArgumentError(f"{what}: a name cannot hold NUL: {name!r:.60}")
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what}: {name!r:.60} holds half of a surrogate pair, which is no text") from None


def shorter(name: bytes, most: int) -> bytes:
    """At most so many bytes, cut between characters."""
    if len(name) <= most:
        return name
    end = most
    while end > 0 and name[end] & 0xC0 == 0x80:
        end -= 1
    return name[: end if end > most - 4 else most]


_WILD = re.compile(r"[*?\[]")


class Patterns:
    """Names to look in. A pattern without wildcards is looked up; one that begins, or ends, with text is tried on the
    names that begin, or end, with it; only one that has wildcards on both sides is tried on all."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._known = set(self._names)
        self._sorted = sorted(self._names)
        self._backwards: list[str] | None = None  # sorted, each name from its end

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
        """The names that a pattern fits, in no order."""
        found = _WILD.search(pattern)
        if found is None:
            return iter([pattern] if pattern in self._known else [])
        candidates = self._candidates(pattern, found.start())
        if found.start() == len(pattern) - 1 and pattern[-1] == "*":
            return candidates
        return _fitting(pattern, candidates)

    def fitting(self, pattern: str) -> list[str]:
        """The same; one that is a name itself fits that alone."""
        return [pattern] if pattern in self._known else list(self.matching(pattern))

    def first(self, patterns: Iterable[str]) -> dict[str, str]:
        """For each name the first pattern that fits it; names that none fits are left out."""
        chosen: dict[str, str] = {}
        for pattern in patterns:
            if len(chosen) == len(self._known):
                break
            for name in self.matching(pattern):
                chosen.setdefault(name, pattern)
        return chosen

    def hidden(self, patterns: Iterable[str]) -> tuple[str, str] | None:
        """A pattern that is never the first to fit, behind one that fits the same names and more; and that one."""
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
    """The end of a message about a pattern that fits nothing: similar names, or the first ones."""
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
        return  # most of many patterns fit nothing: not worth compiling
    fits = re.compile(translate(pattern)).match
    if fits(head):
        yield head
    yield from (name for name in candidates if fits(name))
