"""Text of unknown origin (names in model files, messages that hold them) for where it is shown. Everything that the
package shows goes through here: HTML and SVG (:func:`markup`), JSON inside a script element (:func:`script_json`),
terminals (:func:`line`, :func:`lines`).

Nothing of a name may mean anything to its surroundings: no element, attribute or script; no control character, which
could move the cursor, change colours or the title, or write into the clipboard of a terminal; no character that turns
the direction of the text around it.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from typing import Any

__all__ = ["cell", "integer", "line", "lines", "markup", "script_json", "uncell"]

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
    return html.escape(line(text))


def script_json(value: Any) -> str:
    """JSON, in ASCII, for a script element: nothing in it can end the element or begin another."""
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
