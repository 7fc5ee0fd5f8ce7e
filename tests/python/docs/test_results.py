"""The figures in benchmarks/results: each file is complete, renders as a table, and names a command that exists."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from source_tree import in_tree

ROOT = in_tree("README.md").parent
FILES = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def renderer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_results", ROOT / "benchmarks" / "render_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_file_of_results_renders(path: Path) -> None:
    tool = renderer()
    found = tool.read(path)
    text = tool.render(found)
    assert text.startswith(f"## {found['title']}\n")
    assert found["command"] in text
    assert len(re.findall(r"(?m)^\| ", text)) == len(found["rows"]) + 2
    assert re.fullmatch(r"[0-9a-f]{8,40}", found["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    program = re.search(r"(benchmarks|tools)/((bench|compare|count|check)_\w+)", found["command"])
    assert program is not None
    assert list((ROOT / program[1]).glob(f"{program[2]}.*"))


def test_all_files_are_on_the_page() -> None:
    page = renderer().render_all()
    assert len(FILES) >= 20
    assert page.count("\n## ") + 1 == len(FILES)


@pytest.mark.parametrize("change", [{"machine": ""}, {"rows": [[1]]}, {"speed": 1}], ids=str)
def test_incomplete_files_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    whole = json.loads(FILES[0].read_text(encoding="utf-8"))
    file = tmp_path / "one.json"
    file.write_text(json.dumps({**whole, **change}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"one\.json: "):
        renderer().read(file)
