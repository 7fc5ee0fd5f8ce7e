"""Writes the functions of a module of ``ggml_backend.ops`` where a page has ``<!-- operations: MODULE -->``."""

from __future__ import annotations

import importlib
import re
from typing import Any

_MARK = re.compile(r"^<!-- operations: (\w+) -->$", re.MULTILINE)


def names_of(module: str) -> list[str]:
    """The names of the public functions of a module, without aliases."""
    family = importlib.import_module(f"ggml_backend.ops.{module}")
    return [name for name in family.__all__ if getattr(family, name).__name__ == name]


def expand(page: str) -> str:
    def directives(mark: re.Match[str]) -> str:
        functions = "\n".join(f".. autofunction:: {name}" for name in names_of(mark[1]))
        return f"```{{eval-rst}}\n.. currentmodule:: ggml_backend.ops\n\n{functions}\n```"

    return _MARK.sub(directives, page)


def _source_read(app: Any, name: str, source: list[str]) -> None:
    source[0] = expand(source[0])


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _source_read)
    return {"parallel_read_safe": True}
