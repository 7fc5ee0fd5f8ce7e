"""The directive ``c-header``: a C header as a page, read when the site is built.

Comments become paragraphs and lists. Declarations become code. Rulers become titles of sections (``header_text.py``).
Every function and type gets an entry in the index and a target, ``#c-NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from header_text import blocks_of, names_in, split_comment, title_of
from sphinx.addnodes import index
from sphinx.util.docutils import SphinxDirective

INCLUDE = Path(__file__).parents[2] / "c" / "include"


_ENTRY = re.compile(r"  (?P<term>\w[\w ().]*?) {2,}(?P<text>\S.*)")


def _definitions(group: list[str]) -> nodes.definition_list:
    """Lines of two spaces, a term, two or more spaces, and a text. Further lines of the text are indented more."""
    result = nodes.definition_list()
    for line in group:
        entry = _ENTRY.fullmatch(line)
        if entry:
            text = nodes.paragraph("", entry["text"])
            term = nodes.term("", "", nodes.literal("", entry["term"]))
            result += nodes.definition_list_item("", term, nodes.definition("", text))
        else:
            text += nodes.Text(f" {line.strip()}")
    return result


def _indented(group: list[str]) -> nodes.Node:
    if all(line.startswith("    ") for line in group):
        code = "\n".join(line[4:] for line in group)
        return nodes.literal_block(code, code, language="c")
    if _ENTRY.fullmatch(group[0]):
        return _definitions(group)
    return nodes.paragraph("", " ".join(map(str.strip, group)))


def paragraphs(comment: list[str]) -> Iterator[nodes.Node]:
    """Text as paragraphs, indented terms as definitions, indented code as code. A capitalized line alone, directly
    above indented lines, becomes their title.
    """
    group: list[str] = []
    for line in [*comment, ""]:
        if group and (not line.strip() or line.startswith("  ") != group[0].startswith("  ")):
            if group[0].startswith("  "):
                yield _indented(group)
            elif len(group) == 1 and line.startswith("  ") and re.fullmatch(r"[A-Z][\w ]*", group[0]):
                yield nodes.rubric("", group[0])
            else:
                yield nodes.paragraph("", " ".join(group))
            group = []
        if line.strip():
            group.append(line)


class Header(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = INCLUDE / self.arguments[0]
        self.env.note_dependency(str(path))
        top: list[nodes.Node] = []
        into = top
        for block in blocks_of(path.read_text(encoding="utf-8")):
            title = title_of(block)
            if title is not None:
                section = nodes.section("", nodes.title("", title), ids=[self._id(title)])
                self.state.document.note_explicit_target(section)
                top.append(section)
                into = section.children
                block = block[1:]
            comment, code = split_comment(block)
            into += paragraphs(comment)
            if code:
                into += self._declarations("\n".join(code))
        return top

    def _id(self, title: str) -> str:
        return nodes.make_id(f"{self.arguments[0]}-{title}")

    def _declarations(self, code: str) -> list[nodes.Node]:
        names = names_in(code)
        entries = [("single", f"{name} (C)", f"c-{name}", "", None) for name in names]
        targets = [nodes.target("", "", ids=[f"c-{name}"]) for name in names]
        shown = re.sub(r"GGML_(?:API|CALL) +", "", code)
        return [index(entries=entries), *targets, nodes.literal_block(shown, shown, language="c")]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("c-header", Header)
    return {"parallel_read_safe": True}
