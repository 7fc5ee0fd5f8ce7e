"""Lists of files in documents and headers are complete."""

from __future__ import annotations

import re

from source_tree import in_tree

FORMATS = in_tree("c/src/tensor/quant/formats.def")


def test_every_tool_has_a_row() -> None:
    guide = in_tree("tools/README.md")
    rows = "".join(line.split("|")[1] for line in guide.read_text().splitlines() if line.startswith("| `"))
    files = {f.name for f in guide.parent.iterdir() if f.suffix in {".py", ".sh"}}
    assert set(re.findall(r"`(\w+\.\w+)`", rows)) == files


def test_every_header_of_the_base_has_a_row() -> None:
    section = in_tree("docs/design/base.md").read_text()
    rows = "".join(line.split("|")[1] for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+\.h)`", rows)) == {f.name for f in in_tree("c/src/base").glob("*.h")}


def test_headers_of_folders_name_their_files() -> None:
    """A name such as ops_<family>.c or <stem>.c means all files of that form."""
    for door in ("c/src/tensor/tensor.h", "c/src/tensor/quant/quant.h", "c/src/backend/backend.h"):
        path = in_tree(door)
        head = path.read_text().partition("#ifndef")[0]
        formats = re.findall(r"^GB_FORMAT\(\w+, +(\w+),", FORMATS.read_text(), re.MULTILINE)
        stems = formats if "<stem>" in head else []
        for file in {f.name for f in path.parent.iterdir() if f.suffix == ".c"}:
            family = file.startswith("ops_") and "ops_<family>.c" in head
            assert file in head or family or file[:-2] in stems, f"{door} does not name {file}"
