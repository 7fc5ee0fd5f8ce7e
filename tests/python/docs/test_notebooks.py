"""The notebooks of the tutorial equal their chapters, and run."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType
from typing import Any

import pytest

from source_tree import in_tree

pytestmark = pytest.mark.slow

LEARN = in_tree("docs/learn/index.md").parent
NOTEBOOKS = in_tree("examples/notebooks/inside.ipynb").parent
NAMES = sorted(p.stem for p in NOTEBOOKS.glob("*.ipynb"))


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_notebooks", in_tree("tools/make_notebooks.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def promised(page: str) -> list[tuple[str, str]]:
    """Code blocks of a page, with their printed output on the page."""
    lines = r"((?:(?!```).*\n)*)"
    blocks = re.findall(rf"^```python\n(?!>>>){lines}```\n\n```text\n{lines}```", page, re.MULTILINE)
    return [(code.strip("\n"), text.strip("\n")) for code, text in blocks]


def printed(cell: Any) -> str:
    return "".join(out["text"] for out in cell["outputs"] if out["output_type"] == "stream").strip("\n")


def test_notebooks_equal_their_chapters() -> None:
    maker = tool()
    assert sorted(maker.CHAPTERS) == NAMES
    for name in NAMES:
        page = (LEARN / f"{name}.md").read_text(encoding="utf-8")
        assert (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8") == maker.notebook_of(page), (
            f"{name}: run tools/make_notebooks.py"
        )
        assert f"(../../examples/notebooks/{name}.ipynb)" in page


def test_links_of_notebooks_lead_to_files() -> None:
    for name in NAMES:
        text = (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
        assert links
        for link in links:
            assert (NOTEBOOKS / link).exists(), (name, link)


@pytest.fixture(scope="module", params=NAMES)
def computed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """The name of a notebook, and the notebook with the output of its cells."""
    nbformat = pytest.importorskip("nbformat", reason="the extra [test] is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the extra [test] is not installed")
    notebook = nbformat.read(NOTEBOOKS / f"{request.param}.ipynb", as_version=4)
    nbformat.validate(notebook)
    place = {"metadata": {"path": str(tmp_path_factory.mktemp(request.param))}}
    # A failing cell without a tag for it raises an exception here.
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=place).execute()
    return request.param, notebook


def code_of(notebook: Any) -> dict[str, Any]:
    return {cell["source"]: cell for cell in notebook["cells"] if cell["cell_type"] == "code"}


def test_notebooks_print_the_output_of_their_chapters(computed: tuple[str, Any]) -> None:
    name, notebook = computed
    cells, answers = code_of(notebook), promised((LEARN / f"{name}.md").read_text(encoding="utf-8"))
    assert answers
    for code, text in answers:
        assert printed(cells[code]) == text
    for cell in cells.values():
        failed = any(out["output_type"] == "error" for out in cell["outputs"])
        assert failed == ("raises-exception" in cell["metadata"].get("tags", [])), cell["source"]


def test_notebooks_show_plans_and_profiles(computed: tuple[str, Any]) -> None:
    name, notebook = computed
    cells = code_of(notebook)
    shows = {"plan": "<svg", "profile": "<table"} if name == "inside" else {}
    for source, what in shows.items():
        (shown,) = [out for out in cells[source]["outputs"] if out["output_type"] == "execute_result"]
        assert what in shown["data"]["text/html"]
