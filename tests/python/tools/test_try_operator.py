"""The files that an operator touches are those that CONTRIBUTING.md lists, and ops.def without a field does not
compile. tools/try_operator.py builds and runs what is only looked at here (make check-long)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from source_tree import ROOT, in_tree, load_tool

OPS = "c/src/tensor/ops.def"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.fixture
def tool() -> ModuleType:
    return load_tool("try_operator")


@pytest.fixture
def common() -> ModuleType:
    return load_tool("try_common")


@pytest.mark.parametrize("name", ["unary", "own"])
def test_edits_fit_the_tree(tool: ModuleType, common: ModuleType, tmp_path: Path, name: str) -> None:
    exercise = tool.EXERCISES[name]
    assert len(exercise.touched()) <= exercise.files
    for file in exercise.touched():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    common.apply(exercise.edits, tmp_path)
    with pytest.raises(SystemExit, match="0 times"):
        common.apply([common.Edit(OPS, "no such row", "")], tmp_path)


@pytest.mark.parametrize("name", ["unary", "own"])
def test_files_are_those_of_the_guide(tool: ModuleType, name: str) -> None:
    guide = in_tree("CONTRIBUTING.md").read_text(encoding="utf-8")
    begin = {"unary": "A function of UNARY, 4 files:", "own": "An operator of its own, 6 files:"}[name]
    steps = guide.partition(begin)[2].partition("\n\nA ")[0]
    files = tool.EXERCISES[name].touched()
    assert steps.count("\n1. ") == 1 and f"\n{len(files)}. " in steps and f"\n{len(files) + 1}. " not in steps
    for file in files:
        folder, _, last = file.rpartition("/")
        prefix = re.match("ops_|_|", last)[0]
        listed = {file, f"{folder}/{prefix}<family>{Path(last).suffix}"}
        assert any(f"`{entry}`" in steps for entry in listed), file


def compiles(folder: Path) -> str:
    """What the compiler says of op_info.c with the ops.def of `folder`."""
    assert COMPILER
    includes = [f"-I{folder}", f"-I{ROOT / 'c/src'}", f"-I{ROOT / 'c/include'}"]
    source = str(ROOT / "c/src/tensor/op_info.c")
    return subprocess.run(
        [COMPILER, "-std=c11", "-D_GNU_SOURCE", "-fsyntax-only", *includes, source],
        capture_output=True,
        text=True,
        check=False,
    ).stderr


FIELD = "GB_OP(DUP,                dup,                1, "
ROW = "GB_OP(SQR, "


def without_field(text: str) -> str:
    return text.replace(FIELD, FIELD.removesuffix("1, "))


def without_row(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(ROW)) + "\n"


def unknown_word(text: str) -> str:
    return text.replace(FIELD + "EACH,", FIELD + "EACHH,")


def swapped(text: str) -> str:
    return (
        text.replace("GB_OP(SQR,", "GB_OP(?,").replace("GB_OP(SQRT,", "GB_OP(SQR,").replace("GB_OP(?,", "GB_OP(SQRT,")
    )


def unary_without_row(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("GB_UNARY_OP(GELU_ERF,")) + "\n"


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize("damage", [without_field, without_row, unknown_word, swapped, unary_without_row])
def test_what_is_missing_does_not_compile(tmp_path: Path, damage: Callable[[str], str]) -> None:
    rows = in_tree(OPS).read_text(encoding="utf-8")
    (tmp_path / "tensor").mkdir()
    (tmp_path / "tensor" / "ops.def").write_text(rows, encoding="utf-8")
    assert "error" not in compiles(tmp_path)
    assert damage(rows) != rows
    (tmp_path / "tensor" / "ops.def").write_text(damage(rows), encoding="utf-8")
    assert "error" in compiles(tmp_path)


def test_the_guide_to_plans_lists_what_may_be_in_place() -> None:
    """The table of docs/PLANNING.md has the operators of the column `inplace`, no others."""
    column: dict[str, set[str]] = {"0": set(), "0 or 1": set()}
    for row in re.findall(
        r"^GB_OP\((\w+),.*?(?:PLAN|ANY)_(AB?),", in_tree(OPS).read_text(encoding="utf-8"), re.MULTILINE
    ):
        column["0" if row[1] == "A" else "0 or 1"].add(row[0].replace("UNARY", "unary functions"))
    table = in_tree("docs/PLANNING.md").read_text(encoding="utf-8").partition("| operators | over source |")[2]
    for operators, sources in re.findall(r"^\| ([^|]+) \| (0|0 or 1) \|$", table, re.MULTILINE):
        assert set(operators.split(", ")) == column.pop(sources)
    assert not column
