"""docs/CONFIGURATION.md lists every environment variable that the sources read, and every option of the build."""

from __future__ import annotations

import re
from pathlib import Path

from source_tree import ROOT, in_tree

GUIDE = in_tree("docs/CONFIGURATION.md")
# The dynamic loader reads it; the page mentions it below the table.
OTHERS = {"LD_LIBRARY_PATH"}


def rows(title: str) -> set[str]:
    """The first column of the table below a heading."""
    section = GUIDE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


def found(pattern: str, files: list[Path]) -> set[str]:
    return {name for f in files for name in re.findall(pattern, f.read_text(encoding="utf-8", errors="replace"))}


def test_every_environment_variable_has_a_row() -> None:
    sources = [f for folder in ("c/src", "python") for f in (ROOT / folder).rglob("*")]
    code = [f for f in sources if f.suffix in {".c", ".h", ".cu", ".cuh", ".py"}]
    read = found(r"""(?:getenv|gb_env_get)\("(\w+)"\)""", code)
    names = read | found(r"""environ(?:\.get\(|\[)"(\w+)\"""", code)
    assert len(names) >= 9, "the pattern finds what the sources read"
    assert names - OTHERS == rows("Environment variables")


def test_every_option_of_the_build_has_a_row() -> None:
    declared = found(r"(?m)^option\((\w+) ", [ROOT / "CMakeLists.txt", ROOT / "c/CMakeLists.txt"])
    assert len(declared) >= 6
    assert declared == rows("Options of the build")
