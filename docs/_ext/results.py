"""Appends the tables of all files in ``benchmarks/results`` to the page ``results``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import render_results

PAGE = "results"


def _source_read(app: Any, name: str, source: list[str]) -> None:
    if name == PAGE:
        app.env.note_dependency(str(render_results.FOLDER))
        source[0] += "\n" + render_results.render_all()


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _source_read)
    return {"parallel_read_safe": True}
