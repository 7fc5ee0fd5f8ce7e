"""An addition touches the files that CONTRIBUTING.md lists, and a row of a table without a column does not compile.

``make check-long`` builds and runs the additions (tools/try_additions.py).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from source_tree import ROOT, in_tree, load_tool

OPS, FORMATS = "c/src/tensor/ops.def", "c/src/tensor/quant/formats.def"
ADDITIONS = load_tool("try_additions").ADDITIONS
HEADS = {
    "unary": "A function of UNARY, 4 files:",
    "operator": "An operator of its own, 6 files:",
    "format": "A quantized type, 6 files:",
    "level": "An instruction-set level, 4 files",
}


@pytest.mark.parametrize("name", ADDITIONS)
def test_edits_find_their_anchors(tmp_path: Path, name: str) -> None:
    for file in ADDITIONS[name].files():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, tmp_path / file)
    ADDITIONS[name].apply(tmp_path)
    compile(ADDITIONS[name].program, "program.py", "exec")
    if name != "level":  # its first file exists; the other additions do not find their first anchor
        (tmp_path / ADDITIONS[name].edits[0][0]).write_text("")
    with pytest.raises(SystemExit):
        ADDITIONS[name].apply(tmp_path)


@pytest.mark.parametrize("name", ADDITIONS)
def test_the_guide_lists_the_files(name: str) -> None:
    guide = in_tree("CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = re.split(r"\n\n(?!1\. )", guide.partition(HEADS[name])[2])[0]
    files = ADDITIONS[name].files()
    assert f"\n{len(files)}. " in steps and f"\n{len(files) + 1}. " not in steps
    for file in files:
        last = re.sub("again|q8_x", "<stem>", re.sub(r"^(ops_|_)?reduce", r"\1<family>", Path(file).name))
        listed = re.findall(r"`[^`]*/([^`/]+)`", steps)
        assert last in {re.sub("<isa>|<name>", "<stem>", entry) for entry in listed} | {Path(f).name for f in listed}, (
            file
        )


COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
ROW = 'GB_FORMAT(Q4_0,    q4_0,    "q4_0",     32,  18,  32,   8,  15, WEIGHTS,     Q8_0, DIRECT,   REPEATED,'
FIELDS = "\n    d[2], qs[16])"
COLUMNS = ROW.rstrip(",").split(",")
OP_FIELD = "GB_OP(DUP,                dup,                1, "


def compiles(folder: Path, table: str, text: str, source: str) -> bool:
    """True if ``source`` compiles with ``text`` instead of ``table``."""
    assert COMPILER
    file = folder / table.removeprefix("c/src/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    includes = [f"-I{folder}", f"-I{ROOT / 'c/src'}", f"-I{ROOT / 'c/include'}"]
    command = [COMPILER, "-std=c11", "-D_GNU_SOURCE", "-fsyntax-only", *includes, str(ROOT / "c/src/tensor" / source)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(COMPILER is None, reason="no C compiler on the path")
def test_a_format_without_a_column_does_not_compile(tmp_path: Path) -> None:
    text = in_tree(FORMATS).read_text(encoding="utf-8")
    assert compiles(tmp_path, FORMATS, text, "types.c")
    rows = [",".join(COLUMNS[:i] + COLUMNS[i + 1 :]) + "," + FIELDS for i in range(len(COLUMNS))]
    for row in (*rows, ROW + "\n    d[2], qs[17])", ROW + "\n    d[2])", ROW + ")"):
        assert text.count(ROW + FIELDS) == 1
        assert not compiles(tmp_path, FORMATS, text.replace(ROW + FIELDS, row), "types.c"), row


@pytest.mark.skipif(COMPILER is None, reason="no C compiler on the path")
def test_an_operator_without_a_field_or_a_row_does_not_compile(tmp_path: Path) -> None:
    text = in_tree(OPS).read_text(encoding="utf-8")
    assert compiles(tmp_path, OPS, text, "op_info.c")
    for damaged in (
        text.replace(OP_FIELD, OP_FIELD.removesuffix("1, ")),
        text.replace(OP_FIELD + "EACH,", OP_FIELD + "EACHH,"),
        re.sub(r"\nGB_OP\(SQR, .*", "", text),
        re.sub(r"\nGB_UNARY_OP\(GELU_ERF,.*", "", text),
        re.sub(r"\n(GB_OP\(SQR,.*)\n(GB_OP\(SQRT,.*)", r"\n\2\n\1", text),
    ):
        assert damaged != text
        assert not compiles(tmp_path, OPS, damaged, "op_info.c")


def test_the_guide_to_plans_lists_the_operators_in_place() -> None:
    """The table of docs/PLANNING.md has exactly the operators of the column `inplace`."""
    column: dict[str, set[str]] = {"0": set(), "0 or 1": set()}
    for row in re.findall(
        r"^GB_OP\((\w+),.*?(?:PLAN|ANY)_(AB?),", in_tree(OPS).read_text(encoding="utf-8"), re.MULTILINE
    ):
        column["0" if row[1] == "A" else "0 or 1"].add(row[0].replace("UNARY", "unary functions"))
    table = in_tree("docs/PLANNING.md").read_text(encoding="utf-8").partition("| operators | over source |")[2]
    for operators, sources in re.findall(r"^\| ([^|]+) \| (0|0 or 1) \|$", table, re.MULTILINE):
        assert set(operators.split(", ")) == column.pop(sources)
    assert not column
