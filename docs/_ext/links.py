"""Links to files of the repository that are no pages of the site: only their text stays. On the pages that stand in
other folders (``include``), links to documents are turned round to lead to the site's pages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<to>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")

#: Files that stand elsewhere, and their pages.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "about/changelog.md",
    "CONTRIBUTING.md": "about/contributing.md",
    "benchmarks/README.md": "about/benchmarks.md",
}


def _target(to: str, base: Path, docs: Path) -> Path | None:
    """The page that a link leads to, or None if that is no page; whatever folder it starts from."""
    file = (base / to).resolve()
    root = docs.parent
    if file.is_relative_to(root) and str(file.relative_to(root)) in PAGES:
        return docs / PAGES[str(file.relative_to(root))]
    return file if file.is_relative_to(docs) and file.suffix == ".md" and file.exists() else None


def rewrite(text: str, base: Path, docs: Path) -> str:
    """The text with links as a page needs them; ``base``: the folder that it was written in."""

    def one(match: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", match["to"]):
            return match[0]
        target = _target(match["to"], base, docs)
        if target is None:
            return match["text"]
        return f"[{match['text']}](/{target.relative_to(docs)}{match['anchor'] or ''})"  # from the root of the site

    return _LINK.sub(one, text)


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
