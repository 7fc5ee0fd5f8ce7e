#!/usr/bin/env python3
"""Checks that each picture and each link inside a built site leads to a file.

    check_site.py FOLDER

Prints the missing targets. Exits with 0 if none is missing, 1 if some are, 2 if there are no pages.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Targets(HTMLParser):
    """The targets of a page's links and pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"a": "href", "img": "src", "object": "data"}
        self.found += [value for name, value in attrs if tag in names and name == names[tag] and value]


def missing(folder: Path) -> list[str]:
    """``page: target`` for each missing target."""
    found = []
    for page in sorted(folder.rglob("*.html")):
        parser = Targets()
        parser.feed(page.read_text(encoding="utf-8"))
        for target in parser.found:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                known = parts.scheme in ("http", "https", "mailto", "data")
                found += [] if known else [f"{page.relative_to(folder)}: {target}"]
            elif parts.path and not (page.parent / unquote(parts.path)).exists():
                found.append(f"{page.relative_to(folder)}: {target}")
    return found


def main(args: list[str]) -> int:
    folder = Path(args[0])
    if not any(folder.rglob("*.html")):
        print(f"there are no pages in {folder}", file=sys.stderr)
        return 2
    wrong = missing(folder)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
