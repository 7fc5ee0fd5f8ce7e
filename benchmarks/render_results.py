"""Renders the figures in ``benchmarks/results`` as tables in Markdown.

    python benchmarks/render_results.py            all files
    python benchmarks/render_results.py NAME...    some, such as zen4-peers-llama

A file holds one benchmark on one machine: title, machine, commit, date, command, columns, rows. A note is optional: a
list of lines. The commit is the one that recorded the figures. The site shows all files (``docs/_ext/results.py``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
FIELDS = ("title", "machine", "commit", "date", "command", "columns", "rows")


def read(path: Path) -> dict[str, Any]:
    """Reads a file. Raises ValueError if a field is missing or unknown, or a row does not have one cell per column."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    missing = [field for field in FIELDS if not found.get(field)]
    unknown = sorted(set(found) - {*FIELDS, "note"})
    if missing or unknown:
        raise ValueError(f"{path.name}: missing fields {missing}, unknown fields {unknown}")
    width = len(found["columns"])
    for number, row in enumerate(found["rows"]):
        if len(row) != width:
            raise ValueError(f"{path.name}: row {number} has {len(row)} cells, {width} columns")
    return found


def table(columns: list[str], rows: list[list[Any]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


def render(found: dict[str, Any]) -> str:
    """The Markdown of one file, below a heading of the second level."""
    lines = [f"## {found['title']}", "", f"{found['machine']}; {found['date']}, commit {found['commit']}.", ""]
    lines += ["```sh", found["command"], "```", ""]
    if found.get("note"):
        lines += [*found["note"], ""]
    return "\n".join([*lines, *table(found["columns"], found["rows"]), ""])


def render_all() -> str:
    return "\n".join(render(read(path)) for path in sorted(FOLDER.glob("*.json")))


def main(names: list[str]) -> int:
    print("\n".join(render(read(FOLDER / f"{name}.json")) for name in names) if names else render_all())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
