"""The files that a kernel level touches are those that CONTRIBUTING.md lists, and the templates compile for a set of
vector operations that states no more than isa.h asks for. tools/try_level.py builds and runs it (make check-long)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from source_tree import ROOT, in_tree, load_tool

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
KERNELS = "c/src/cpu/kernels"


@pytest.fixture
def tool() -> ModuleType:
    return load_tool("try_level")


def test_edits_fit_the_tree(tool: ModuleType, tmp_path: Path) -> None:
    exercise = tool.EXERCISES["level"]
    assert len(exercise.touched()) <= exercise.files
    for file in exercise.touched():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, tmp_path / file)
    load_tool("try_common").apply(exercise.edits, tmp_path)
    compile(exercise.program, "program.py", "exec")


def test_files_are_those_of_the_guide(tool: ModuleType) -> None:
    guide = in_tree("CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = guide.partition("An instruction-set level, 4 files")[2].partition("\n\nAll templates")[0]
    files = tool.EXERCISES["level"].touched()
    assert f"\n{len(files)}. " in steps and f"\n{len(files) + 1}. " not in steps
    for file in files:
        name = Path(file).name.replace("vec_wide", "vec_<isa>").replace("level_wide", "level_<name>")
        assert f"/{name}`" in steps, file


def compiles(folder: Path, vec: str, level: str) -> bool:
    assert COMPILER
    (folder / "vec_wide.h").write_text(vec, encoding="utf-8")
    (folder / "level_wide.c").write_text(level.replace('"level.tpl.h"', '"cpu/kernels/level.tpl.h"'), encoding="utf-8")
    includes = [f"-I{ROOT / 'c/src'}", f"-I{ROOT / 'c/include'}"]
    command = [COMPILER, "-std=gnu11", "-D_GNU_SOURCE", "-Wundef", "-Werror", "-Wno-psabi", "-fsyntax-only", *includes]
    return subprocess.run([*command, str(folder / "level_wide.c")], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(COMPILER is None, reason="no C compiler on the path")
def test_sixteen_lanes_need_not_be_avx512(tool: ModuleType, tmp_path: Path) -> None:
    assert compiles(tmp_path, tool.VEC, tool.LEVEL)
    for name in ("V_N  ", "V_REGISTERS", "V_GEMM_MR", "V_GEMM_NV", "V_BYTES_MR", "V_BYTES_NV", "V_CHAINS"):
        lines = tool.VEC.splitlines(keepends=True)
        without = "".join(line for line in lines if not line.startswith(f"#define {name}"))
        assert len(without) < len(tool.VEC) and not compiles(tmp_path, without, tool.LEVEL), name
