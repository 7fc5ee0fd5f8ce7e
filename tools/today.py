#!/usr/bin/env python3
"""Writes the tables of ``docs/TODAY.md`` about ggml's interface of today, between its marks.

    tools/today.py [--check]        --check writes nothing, and exits with 1 if the tables are out of date

The tables follow from the headers in ``c/include`` and from ``tests/data/today-api.txt``, a list of facts about that
interface. So they change with the headers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

TREE = Path(__file__).resolve().parents[1]
PAGE = TREE / "docs" / "TODAY.md"
FACTS = TREE / "tests" / "data" / "today-api.txt"
HEADERS = TREE / "c" / "include"
BEGIN, END = "<!-- tools/today.py: begin -->\n", "<!-- tools/today.py: end -->\n"


def facts(kind: str) -> list[str]:
    """The words of all lines of the list that begin with this word."""
    lines = [line.split() for line in FACTS.read_text().splitlines() if line.startswith(f"{kind} ")]
    return [word for _, *words in lines for word in words]


def builders() -> list[str]:
    """The names of all prototypes of the list."""
    return [m[1] for m in re.finditer(r"^(?!#|op |unary |gone )\S.*?\b(ggml_\w+)\(", FACTS.read_text(), re.M)]


class Here:
    """What the headers declare."""

    def __init__(self) -> None:
        text = "\n".join(re.sub(r"//[^\n]*", "", (HEADERS / f"{name}.h").read_text()) for name in ("ggml", "ggml-ext"))
        today = (HEADERS / "ggml-today.h").read_text()
        self.functions = set(re.findall(r"GGML_API[^;(]*?\b(ggml_\w+)\(", text + today))
        self.enumerators = set(re.findall(r"\b(GGML_\w+)\b(?= *[=,])", text))
        self.names = dict(re.findall(r"^#define ((?:ggml|GGML)_\w+) ((?:ggml|GGML)_\w+)$", today, re.M))

    def function(self, name: str) -> str | None:
        """The function that a program calls by this name, with ggml-today.h."""
        return self.names.get(name, name if name in self.functions else None)

    def operator(self, name: str) -> str | None:
        """The operator, or the function of UNARY, that computes today's operator."""
        found = self.names.get(f"GGML_OP_{name}", f"GGML_OP_{name}")
        if found in self.enumerators:
            return found.removeprefix("GGML_OP_")
        return f"UNARY {name}" if f"GGML_UNARY_OP_{name}" in self.enumerators else None

    def unary(self, name: str) -> str | None:
        """The function of UNARY, or the operator, that computes today's function of UNARY."""
        if f"GGML_UNARY_OP_{name}" in self.enumerators:
            return f"UNARY {name}"
        return name if f"GGML_OP_{name}" in self.enumerators else None


def wrapped(words: list[str]) -> Iterator[str]:
    """The words as a wrapped list with commas and a period."""
    line = ""
    for word in [f"{w}," for w in words[:-1]] + [f"{words[-1]}."]:
        if len(line) + len(word) > 99:
            yield line
            line = ""
        line += f" {word}" if line else word
    yield line


def section(found: dict[str, str | None], kind: str, head: str) -> Iterator[str]:
    """A sentence with counts, a table of other names, and the missing ones."""
    same = sum(here == today for today, here in found.items())
    missing = [f"`{today}`" for today, here in found.items() if here is None]
    yield f"{same} of {len(found)} {kind} have the same name here. These have another one:\n"
    yield f"| {head} | here |\n| --- | --- |"
    yield from (f"| `{today}` | `{here}` |" for today, here in found.items() if here not in (None, today))
    yield f"\nThese {len(missing)} {kind} do not exist here:"
    yield from wrapped(missing)
    yield ""


def tables() -> str:
    """The text between the marks."""
    here = Here()
    operators = {name: here.operator(name) for name in facts("op")}
    operators |= {f"UNARY {name}": here.unary(name) for name in facts("unary")}
    lines = [
        *section(operators, "operators and functions of UNARY", "operator of today"),
        *section({name: here.function(name) for name in builders()}, "new or changed builders", "builder of today"),
        "A program that includes `ggml-today.h` calls the builders on the right by the names on the left. All",
        "other builders of today are those of early 2024, without these:",
        *wrapped([f"`{name}`" for name in facts("gone")]),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Compares or writes the page."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    new = f"{before}{BEGIN}\n{tables()}\n{END}{after}"
    if "--check" in sys.argv[1:]:
        if new != page:
            print("docs/TODAY.md: the tables of today's interface are out of date. Run tools/today.py")
        return int(new != page)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
