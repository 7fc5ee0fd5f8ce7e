"""The directive ``c-header``: a C header as a page, read when the site is built.

A header consists of blocks with blank lines between them: a comment, and the declarations that it tells of. Rulers
(``// ------ a title``) divide it into sections. Comments become paragraphs, declarations code; every function and type
gets an entry in the index and a target, ``#c-NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import index
from sphinx.util.docutils import SphinxDirective

INCLUDE = Path(__file__).parents[2] / "c" / "include"

_RULER = re.compile(r"// -{20,} (?P<title>.+)")
_NOT_SHOWN = re.compile(r'#(ifndef|ifdef|endif|define GG\w+_H$|include)|extern "C" \{|\}$|// cdef:')
_FUNCTION = r"GGML_(?:API|CALL)\b[^;{]*?\b(\w+)\s*\("
_TYPE = r"^(?:struct|enum|union) (\w+) \{|^typedef .*?(\w+)\)?(?:\(|;)"
_NAME = re.compile(f"{_FUNCTION}|{_TYPE}", re.M)


def blocks_of(text: str) -> Iterator[list[str]]:
    """The blocks of a header that a reader of its declarations needs."""
    block: list[str] = []
    depth = 0
    for line in [*text.splitlines(), ""]:
        depth += line.count("{") - line.count("}") if 'extern "C"' not in line and line != "}" else 0
        if line.strip() or depth > 0:
            if depth > 0 or not _NOT_SHOWN.match(line):
                block.append(line)
        elif block:
            yield block
            block = []


def split_comment(block: list[str]) -> tuple[list[str], list[str]]:
    """The lines of the comment at its head, without slashes, and the others."""
    n = next((i for i, line in enumerate(block) if not line.startswith("//")), len(block))
    return [line[2:].removeprefix(" ") for line in block[:n]], block[n:]


def names_in(code: str) -> list[str]:
    """The functions and types that it declares."""
    return [next(filter(None, match.groups())) for match in _NAME.finditer(code)]


def paragraphs(comment: list[str]) -> Iterator[nodes.Node]:
    """Flowing text as paragraphs, indented lines as they stand."""
    group: list[str] = []
    for line in [*comment, ""]:
        if group and (not line.strip() or line.startswith("  ") != group[0].startswith("  ")):
            if group[0].startswith("  "):
                yield nodes.literal_block("", "\n".join(group), language="text")
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
            ruler = _RULER.fullmatch(block[0])
            if ruler:
                section = nodes.section("", nodes.title("", ruler["title"]), ids=[self._id(ruler["title"])])
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
