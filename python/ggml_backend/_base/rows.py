"""Reads rows of CSV files that users and their programs write. Errors name the file, the line and the column."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence

from .errors import InvalidArgumentError
from .files import read_text
from .text import line

__all__ = ["BUFFER_COLUMNS", "Row", "buffer_of", "read_rows"]

BUFFER_COLUMNS = ("id", "lower", "upper", "size")
"""Required columns of a file of buffers."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DIGITS = 40  # more digits than any 64-bit integer


class Row:
    """The fields of one row, by the names of their columns."""

    __slots__ = ("_fields", "_where")

    def __init__(self, where: str, fields: dict[str, str]) -> None:
        self._where = where
        self._fields = fields

    def text(self, column: str) -> str:
        """An unchanged field; "" without that column."""
        return self._fields.get(column, "")

    def integer(self, column: str, lowest: int, highest: int) -> int:
        """A field that is an integer within limits."""
        text = self.text(column).strip()
        if not _INTEGER.fullmatch(text):
            raise self.error(f"{column} must be an integer, is {line(repr(text), 40)}")
        digits = text.lstrip("+-").lstrip("0")
        value = int(digits[:_DIGITS] or "0") * (-1 if text.startswith("-") else 1)
        if len(digits) > _DIGITS or not lowest <= value <= highest:
            count = f" ({len(digits)} digits)" if len(digits) > _DIGITS else ""
            raise self.error(f"{column} must be from {lowest} to {highest}, is {line(text, 40)}{count}")
        return value

    def error(self, message: str) -> InvalidArgumentError:
        """The error to raise about this row."""
        return InvalidArgumentError(f"{self._where}: {message}")


def _columns(where: str, heading: Sequence[str], needed: Sequence[str], known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in heading]
    missing = sorted(set(needed).difference(names))
    if missing:
        found = f"; the heading is {line(repr(','.join(heading)), 100)}" if names else "; the file has no heading"
        comma = "; separate the columns by commas" if re.search(r"[;\t|]", "".join(names)) else ""
        raise InvalidArgumentError(f"{where}: no column {', '.join(missing)}{found}{comma}")
    for name in known:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"{where}: {names.count(name)} columns are called {name}")
    return names


def read_rows(
    path: str | os.PathLike[str],
    needed: Sequence[str],
    optional: Sequence[str] = (),
    errors: str = "strict",
    changed: Callable[[str], str] = str,
) -> Iterator[Row]:
    """The rows below the heading of a CSV file. Columns may have any order. Unknown columns are
    ignored.

    errors: how to treat bytes that are not UTF-8, as in ``bytes.decode``
    changed: applied to each field
    """
    name = line(os.fsdecode(path))
    where, columns = f"{name}: line 1", None
    with io.StringIO(read_text(path, errors), newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            for fields in reader:
                if not fields:
                    where = f"{name}: line {reader.line_num + 1}"
                    continue
                if columns is None:
                    columns = _columns(name, fields, needed, (*needed, *optional))
                else:
                    if len(fields) != len(columns):
                        message = f"{where}: {len(fields)} fields, the heading has {len(columns)} columns"
                        raise InvalidArgumentError(message)
                    yield Row(where, dict(zip(columns, map(changed, fields), strict=True)))
                where = f"{name}: line {reader.line_num + 1}"
        except csv.Error as error:
            raise InvalidArgumentError(f"{where}: {_said(error)}") from None
    if columns is None:
        _columns(name, [], needed, ())


def _said(error: csv.Error) -> str:
    """An error of the module ``csv`` in the words of the user."""
    text = str(error)
    if "unexpected end" in text:
        return "a quote is not closed"
    if "field limit" in text:
        return f"a field has more than {csv.field_size_limit()} characters: a quote may not be closed"
    if "expected after" in text:
        return "a comma must follow a closed quote"
    return text


def buffer_of(row: Row) -> tuple[int, int, int]:
    """lower, upper and size of a buffer to plan."""
    lower, upper = (row.integer(column, -(2**63), 2**63 - 1) for column in ("lower", "upper"))
    if upper < lower:
        raise row.error(f"the buffer ends at {upper}, before its start {lower}")
    return lower, upper, row.integer("size", 0, 2**64 - 1)
