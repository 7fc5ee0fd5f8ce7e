"""Access to the source tree. Other tests need the installed package and this folder only."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def in_tree(path: str) -> Path:
    """A file or folder of the tree. If it is missing, the test or module is skipped."""
    if not (ROOT / path).exists():
        pytest.skip(f"needs the source tree around the tests: no {path}", allow_module_level=True)
    return ROOT / path


def load_tool(name: str) -> ModuleType:
    """A program of ``tools/`` as a module. It can import its neighbours."""
    folder = str(in_tree(f"tools/{name}.py").parent)
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
