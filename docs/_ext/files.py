"""Makes pages of the files that Markdown sources link to, such as examples.

``links.py`` writes such links as ``repository:PATH``. This module replaces them by the address of a page, and makes the
pages: the coloured code of a file, or the list of a folder's files.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import links
from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound


def page_name(path: str) -> str:
    """The name of a file's page for the builder."""
    return f"files/{path}"


def _code(text: str, name: str) -> str:
    try:
        lexer = get_lexer_for_filename(name, text)
    except ClassNotFound:
        lexer = TextLexer()
    return f'<div class="highlight-code notranslate">{highlight(text, lexer, HtmlFormatter())}</div>'


def body(path: Path, root: Path, link: Any) -> str:
    """The content of a page below its title. ``link(path)`` is the address of the page of another file."""
    if path.is_dir():
        items = (
            f'<li><a href="{escape(link(p))}">{escape(p.name)}{"/" * p.is_dir()}</a></li>' for p in links.entries(path)
        )
        return f"<ul>{''.join(items)}</ul>"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return "<p>This file is not text.</p>"
    return _code(text, path.name)


def _pages(app: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    docs = Path(app.srcdir)
    root = docs.parent
    for path in links.linked_files(docs):
        name = str(path.relative_to(root))

        def link(other: Path, name: str = name) -> str:
            to = page_name(str(other.relative_to(root)))
            return str(app.builder.get_relative_uri(page_name(name), to))

        content = f"<section><h1>{escape(name)}</h1>{body(path, root, link)}</section>"
        yield page_name(name), {"title": name, "body": content}, "page.html"


def _resolve(app: Any, doctree: nodes.document, name: str) -> None:
    """Gives links to files of the repository the address of the file's page."""
    for node in doctree.findall(nodes.reference):
        scheme, _, path = node.get("refuri", "").partition(":")
        if scheme == links.SCHEME:
            node["refuri"] = app.builder.get_relative_uri(name, page_name(path))
            node["internal"] = True


def setup(app: Any) -> dict[str, bool]:
    app.connect("html-collect-pages", _pages)
    app.connect("doctree-resolved", _resolve)
    return {"parallel_read_safe": True}
