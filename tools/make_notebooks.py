"""Writes chapters of the tutorial as notebooks: the same text, each block of code a cell, nothing computed yet.

    python tools/make_notebooks.py            writes examples/notebooks/<chapter>.ipynb for each of CHAPTERS

The chapter in docs/learn is what is edited; ``tests/python/docs/test_notebooks.py`` fails when a notebook differs from
it, and runs each. What a chapter says that a block prints (```` ```text ````) is left out: running the cell prints it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[1]
SOURCE, TARGET = TREE / "docs" / "learn", TREE / "examples" / "notebooks"
CHAPTERS = ("tensors", "inside")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#]+)(#[^)]*)?\)")
#: A line of a chapter that only its page has, the link to its notebook.
_OWN_LINK = re.compile(r"^This chapter is a \[notebook\].*\n\n?", re.MULTILINE)


def _from_notebooks(match: re.Match[str]) -> str:
    """A link of a chapter, as it is from the notebooks' folder."""
    file = (SOURCE / match[1]).resolve().relative_to(TREE)
    return f"](../../{file}{match[2] or ''})"


def _without_prompts(block: str) -> tuple[str, bool]:
    """The code of ``>>>`` lines, and whether it ends in an exception."""
    code = [line[4:] for line in block.splitlines() if line.startswith((">>> ", "... "))]
    return "\n".join(code), "\nTraceback " in block


def cells_of(page: str) -> list[dict[str, Any]]:
    """The cells (nbformat 4.5) of a page in Markdown."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str, **more: Any) -> None:
        if text.strip():
            lines = text.strip("\n").splitlines(keepends=True)
            cells.append({"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": lines, **more})

    page, end = _OWN_LINK.sub("", page), 0
    for fence in _FENCE.finditer(page):
        add("markdown", _LINK.sub(_from_notebooks, page[end : fence.start()]))
        end = fence.end()
        if fence[1] != "python":
            assert fence[1] == "text", f"a block of {fence[1]!r} is neither code nor what it prints"
            continue
        conversation = fence[2].startswith(">>> ")
        code, raises = _without_prompts(fence[2]) if conversation else (fence[2], False)
        add("code", code, execution_count=None, outputs=[])
        if raises:
            cells[-1]["metadata"] = {"tags": ["raises-exception"]}
    add("markdown", _LINK.sub(_from_notebooks, page[end:]))
    return cells


def notebook_of(page: str) -> str:
    """The text of the notebook's file."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells_of(page), "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    for chapter in CHAPTERS:
        page = (SOURCE / f"{chapter}.md").read_text(encoding="utf-8")
        (TARGET / f"{chapter}.ipynb").write_text(notebook_of(page), encoding="utf-8")


if __name__ == "__main__":
    main()
