"""tools/check_site.py finds links and pictures without a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from source_tree import load_tool

tool = load_tool("check_site")


@pytest.mark.parametrize("target", ["gone.html", "../gone.svg", "repository:examples/x.py"])
@pytest.mark.parametrize("tag", ['<a href="{}">x</a>', '<img src="{}">'])
def test_a_missing_target_is_reported(
    tmp_path: Path, target: str, tag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "page.html").write_text(tag.format(target), encoding="utf-8")
    assert tool.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"a/page.html: {target}\n"


def test_existing_targets_pass(tmp_path: Path) -> None:
    (tmp_path / "a b.svg").write_text("", encoding="utf-8")
    page = (
        '<img src="a%20b.svg"><a href="#here">x</a><a href="page.html#there">x</a><a href="https://example.org">x</a>'
    )
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    assert tool.main([str(tmp_path)]) == 0


def test_a_folder_without_pages_is_an_error(tmp_path: Path) -> None:
    assert tool.main([str(tmp_path)]) == 2
