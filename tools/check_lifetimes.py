#!/usr/bin/env python3
"""Checks that Python holds what C uses, for as long as C uses it.

    check_lifetimes.py [FILE ...]        default: all of python/ggml_backend

A C call needs its objects until it returns, while other threads, signal handlers and finalizers run. A local variable
keeps its object alive. An attribute does not, because another thread may assign it. Two rules follow:

- Read the pointer (``.ptr``) or the handle (``.h``) of a core from a local variable, or from ``self`` in the class that
  owns it. Do not read it from a call or through another attribute (``self._live().ptr``, ``graph._core.ptr``).
- Call ``ffi.gc`` in ``_base/handles.py`` only, which hides its objects from the collector.

Prints each violation as FILE:LINE. Exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

POINTERS = {"ptr", "h"}  # attributes of cores
ROOT = Path(__file__).resolve().parent.parent / "python" / "ggml_backend"
OWNED = ROOT / "_base" / "handles.py"


def violations(path: Path) -> list[tuple[int, str]]:
    """Line and reason."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in POINTERS and not isinstance(node.value, ast.Name):
            source = ast.unparse(node.value)
            found.append(
                (
                    node.lineno,
                    f"'.{node.attr}' is read from '{source}', which nothing holds: take that in a variable first",
                )
            )
        gc = (
            isinstance(node, ast.Attribute)
            and node.attr == "gc"
            and isinstance(node.value, ast.Name)
            and node.value.id == "ffi"
        )
        if gc and path.resolve() != OWNED:
            found.append((node.lineno, "ffi.gc: use _base.handles.owned"))
    return sorted(found)


def main() -> int:
    paths = [Path(p) for p in sys.argv[1:]] or sorted(ROOT.rglob("*.py"))
    n = 0
    for path in paths:
        for line, reason in violations(path):
            print(f"{path}:{line}: {reason}")
            n += 1
    return 1 if n else 0


if __name__ == "__main__":
    sys.exit(main())
