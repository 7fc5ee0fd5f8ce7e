"""Rewrites the links of Markdown sources, which are written for readers of the repository, for the site.

- A link to a page stays a link. Its text becomes the page's title if it was only the name of the file.
- A link to a public header leads to the header's page of the reference.
- A link to any other file or folder of the repository leads to a page with its code, which ``files.py`` makes.
- A picture stays a picture.

A page may include a file of another folder. Links of that file are relative to its folder, so all rewritten targets
start at the root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>(?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]\((?P<to>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
)
_FENCE = re.compile(r"^(?P<mark>`{3,}|~{3,}).*?^(?P=mark)[ \t]*$|`[^`\n]+`", re.M | re.S)
_FILE_NAME = re.compile(r"(?:[\w.]+/)*[A-Z]+(?:\.md)?")

#: The scheme of links to files of the repository. ``files.py`` replaces them by relative addresses.
SCHEME = "repository"

#: Files outside of docs, and their pages.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "about/changelog.md",
    "CONTRIBUTING.md": "about/contributing.md",
    "benchmarks/README.md": "about/benchmarks.md",
}


def page_of(file: Path, docs: Path) -> Path | None:
    """The page of the site that shows a file; None if no page does."""
    root = docs.parent
    name = str(file.relative_to(root)) if file.is_relative_to(root) else ""
    if name in PAGES:
        return docs / PAGES[name]
    if file.parent == root / "c" / "include" and file.suffix == ".h":
        return docs / "reference" / "c" / f"{file.stem}.md"
    return file if file.is_relative_to(docs) and file.suffix == ".md" and file.exists() else None


def _link(match: re.Match[str], base: Path, docs: Path) -> str:
    text, anchor = match["text"], match["anchor"] or ""
    if re.match(r"[a-z]+:", match["to"]):
        return match[0]
    file = (base / match["to"]).resolve()
    if match["image"]:
        return f"![{text}](/{file.relative_to(docs)})" if file.is_relative_to(docs) else match[0]
    text = _LINK.sub(lambda inner: _link(inner, base, docs), text)  # the text may be a picture
    page = page_of(file, docs)
    if page is not None:
        shown = "" if _FILE_NAME.fullmatch(text) else text
        return f"[{shown}](/{page.relative_to(docs)}{anchor})"
    if file.exists() and file.is_relative_to(docs.parent):
        return f"[{text}]({SCHEME}:{file.relative_to(docs.parent)})"
    return match[0]  # the builder warns


def _prose(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a text, each with True for prose, or False for code, which has no links."""
    at = 0
    for code in _FENCE.finditer(text):
        yield text[at : code.start()], True
        yield code[0], False
        at = code.end()
    yield text[at:], True


def rewrite(text: str, base: Path, docs: Path) -> str:
    """Returns the text with links for the site. ``base`` is the folder of the file that has the text."""
    # A link's text may be code, as in [`x`](y). So placeholders hide code from the pattern.
    hidden: list[str] = []

    def hide(part: str) -> str:
        hidden.append(part)
        return f"\0{len(hidden) - 1}\0"

    shown = "".join(part if is_prose else hide(part) for part, is_prose in _prose(text))
    shown = _LINK.sub(lambda match: _link(match, base, docs), shown)
    return re.sub(r"\0(\d+)\0", lambda match: hidden[int(match[1])], shown)


def entries(folder: Path) -> list[Path]:
    """The files and folders that the page of a folder lists."""
    return sorted(p for p in folder.iterdir() if p.name != "__pycache__" and not p.name.startswith("."))


def linked_files(docs: Path) -> list[Path]:
    """The files and folders that need a page: those that a page links to, and the content of such folders."""
    scheme = re.compile(rf"\]\({SCHEME}:([^)\s]+)\)")
    pages = [*docs.rglob("*.md"), *(docs.parent / name for name in PAGES if name != "README.md")]
    left = [
        docs.parent / name
        for page in pages
        for name in scheme.findall(rewrite(page.read_text(encoding="utf-8"), page.parent, docs))
    ]
    found: set[Path] = set()
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += entries(path) if path.is_dir() else []
    return sorted(found)


def _source_read(app: Any, name: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(name))
    source[0] = rewrite(source[0], page.parent, Path(app.srcdir))


def _include_read(app: Any, path: Path, name: str, source: list[str]) -> None:
    file = (Path(app.srcdir) / path).resolve()
    source[0] = rewrite(source[0], file.parent, Path(app.srcdir))


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _source_read)
    app.connect("include-read", _include_read)
    return {"parallel_read_safe": True}
