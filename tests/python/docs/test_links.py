"""Each link of a document leads to a file of the tree and, after ``#``, to a heading.

``make docs`` checks the pages of the site only. People also read the documents in the repository.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from source_tree import in_tree

ROOT = in_tree("README.md").parent
FOLDERS = ("docs", "benchmarks", "tools", "examples")
PAGES = sorted([*ROOT.glob("*.md"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.md"))])
#: Other sites in documents. Their pages are not checked, so add a site deliberately.
SITES = {"github.com/ggml-org/ggml", "keepachangelog.com", "semver.org", "ui.perfetto.dev"}
TOP = ("benchmarks", "c", "docs", "examples", "python", "tests", "tools")


def prose_of(page: Path) -> str:
    """A document without code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def headings_of(page: Path) -> set[str]:
    """The anchors of headings, by GitHub's rule: small letters, no punctuation, hyphens for spaces."""
    titles = re.findall(r"^#+ +(.*?) *$", prose_of(page), re.MULTILINE)
    anchors: set[str] = set()
    for title in titles:
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        anchors.add(next(a for a in (anchor, *(f"{anchor}-{i}" for i in range(1, 100))) if a not in anchors))
    return anchors


def links_of(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose_of(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    wrong = []
    for link in links_of(page):
        if match := re.match(r"https?://(.*?)/?$", link):
            wrong += [link] if match[1] not in SITES else []
            continue
        name, _, anchor = link.partition("#")
        file = (page.parent / name) if name else page
        if not file.exists() or (anchor and anchor not in headings_of(file)):
            wrong.append(link)
    assert wrong == []


def test_the_check_sees_wrong_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `title`, twice!\n\n# A title twice\n\n[a](gone.md) [b](page.md#a-title-twice) [c](#none)\n")
    assert headings_of(page) == {"a-title-twice", "a-title-twice-1"}
    for link in ("gone.md", "#none"):
        page.write_text(f"# One\n\n[text]({link})\n")
        with pytest.raises(AssertionError, match=re.escape(link)):
            test_links_have_targets(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    """Texts in backquotes that begin like a path of the tree, with or without a suffix."""
    named = re.findall(rf"`((?:{'|'.join(TOP)})/[\w./*-]+)`", prose_of(page))
    patterns = {name: name.rstrip("/") for name in named if not name.endswith("...")}
    gone = [name for name, pattern in patterns.items() if not any((*ROOT.glob(pattern), *ROOT.glob(f"{pattern}.*")))]
    assert gone == []
