"""The files that a quantized type touches are those that CONTRIBUTING.md lists, and formats.def without a column does
not compile. tools/try_format.py builds and runs what is only looked at here (make check-long)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from source_tree import ROOT, in_tree, load_tool

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
FORMATS = "c/src/tensor/quant/formats.def"


@pytest.fixture
def tool() -> ModuleType:
    return load_tool("try_format")


@pytest.fixture
def common() -> ModuleType:
    return load_tool("try_common")


def test_edits_fit_the_tree(tool: ModuleType, common: ModuleType, tmp_path: Path) -> None:
    exercise = tool.EXERCISES["format"]
    assert len(exercise.touched()) <= exercise.files
    for file in exercise.touched():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, tmp_path / file)
    common.apply(exercise.edits, tmp_path)
    compile(exercise.program, "program.py", "exec")
    with pytest.raises(SystemExit, match="is there already"):
        common.apply([common.Edit(FORMATS, None, "")], tmp_path)


def test_files_are_those_of_the_guide(tool: ModuleType) -> None:
    guide = in_tree("CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = guide.partition("A quantized type, 6 files:")[2].partition("\n\nTests ")[0]
    files = tool.EXERCISES["format"].touched()
    assert f"\n{len(files)}. " in steps and f"\n{len(files) + 1}. " not in steps
    for file in files:
        assert f"`{file.replace('q8_x', '<stem>')}`" in steps, file


ROW = 'GB_FORMAT(Q4_0,    q4_0,    "q4_0",     32,  18,  32,   8,  15, WEIGHTS,     Q8_0, DIRECT,   REPEATED,'


def accepted(folder: Path, text: str) -> bool:
    """Does types.c compile with these rows?"""
    assert COMPILER
    row = folder / "tensor" / "quant"
    row.mkdir(parents=True, exist_ok=True)
    (row / "formats.def").write_text(text, encoding="utf-8")
    includes = [f"-I{folder}", f"-I{ROOT / 'c/src'}", f"-I{ROOT / 'c/include'}"]
    source = str(ROOT / "c/src/tensor/types.c")
    command = [COMPILER, "-std=c11", "-D_GNU_SOURCE", "-fsyntax-only", *includes, source]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(COMPILER is None, reason="no C compiler on the path")
def test_a_row_without_a_column_does_not_compile(tmp_path: Path) -> None:
    text = in_tree(FORMATS).read_text(encoding="utf-8")
    assert text.count(ROW) == 1
    assert accepted(tmp_path, text)
    columns = ROW.rstrip(",").split(",")
    for i in range(len(columns)):
        without = ",".join(columns[:i] + columns[i + 1 :]) + ","
        assert not accepted(tmp_path, text.replace(ROW, without)), without
    fields = ROW + "\n    d[2], qs[16])"
    assert fields in text
    for other in ("d[2], qs[17])", "d[2])", ")"):
        assert not accepted(tmp_path, text.replace(fields, ROW + f"\n    {other}")), other
