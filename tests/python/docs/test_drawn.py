"""The pictures of README and docs equal those that the package draws."""

from __future__ import annotations

import pytest

from source_tree import ROOT, load_tool

tool = load_tool("draw_docs")


def test_pictures_are_current():
    now = tool.drawn()
    assert {f.name for f in tool.FOLDER.glob("*.svg")} == set(now)
    for name, text in now.items():
        if (tool.FOLDER / name).read_text("utf-8") != text:
            pytest.fail(f"docs/pictures/{name} is no longer what is drawn: run tools/draw_docs.py")
        pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
        assert any(f"pictures/{name}" in p.read_text("utf-8") for p in pages), f"no page shows docs/pictures/{name}"
