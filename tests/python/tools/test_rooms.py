"""tools/rooms.py finds circles and forbidden uses in object files of small trees that the tests
compile.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from source_tree import load_tool

pytestmark = pytest.mark.slow

COMPILERS = [c for c in ("gcc", "clang") if shutil.which(c)]
CLEAN = {
    "base/a.c": "int a_data = 1; int a(void); int a(void) { return a_data; }",
    "base/b.c": "int a(void); int b(void); int b(void) { return a(); }",
    "tensor/t.c": "int b(void); int t(void); static int a(void) { return 2; } int t(void) { return a() + b(); }",
}


@pytest.fixture(scope="module")
def rooms() -> ModuleType:
    if not COMPILERS or not shutil.which("nm"):
        pytest.skip("needs gcc or clang, and nm")
    return load_tool("rooms")


def build(root: Path, files: dict[str, str], compiler: str = "", *options: str) -> Path:
    """A tree with these files in c/src, compiled into build/dev."""
    for name, text in files.items():
        source = root / "c" / "src" / name
        obj = root / "build" / "dev" / "c" / "lib.dir" / "src" / (name + ".o")
        for path in source, obj:
            path.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text + "\n")
        subprocess.run([compiler or COMPILERS[0], *options, "-c", str(source), "-o", str(obj)], check=True)
    return root


@pytest.mark.parametrize("options", [("-O0",), ("-O2", "-fPIC"), ("-O1", "-ffunction-sections", "-g")])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_clean_tree_passes(
    rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], compiler: str, options: tuple[str, ...]
) -> None:
    assert rooms.main([str(build(tmp_path, CLEAN, compiler, *options))]) == 0
    out = capsys.readouterr().out
    assert "VIOLATION" not in out
    assert "3 files; not in this build: none" in out


def ring(n: int) -> dict[str, str]:
    """n files of which each calls the next, the last the first."""
    text = "int f{1}(int x); int f{0}(int x); int f{0}(int x) {{ return x ? f{1}(x - 1) : 0; }}"
    return {f"sched/f{i}.c": text.format(i, (i + 1) % n) for i in range(n)}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_cycle_of_four_is_found(
    rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], compiler: str
) -> None:
    assert rooms.main([str(build(tmp_path, ring(4), compiler))]) == 1
    out = capsys.readouterr().out
    assert "4 files in a circle: sched/f0.c, sched/f1.c, sched/f2.c, sched/f3.c" in out
    assert "sched/f3.c -> sched/f0.c: f0" in out


def test_cycle_of_three_is_allowed(rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rooms.main([str(build(tmp_path, ring(3)))]) == 0
    assert "largest circle 3" in capsys.readouterr().out


def test_cycle_through_data_and_a_subfolder(
    rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "cpu/compute.c": "typedef int (*fn)(void); extern const fn table[2]; int run(void); "
        "int run(void) { return table[0](); }",
        "cpu/look.c": "int run(void); int look(void); int look(void) { return run(); }",
        "cpu/ops/table.c": "typedef int (*fn)(void); int add(void); const fn table[2] = { add, add };",
        "cpu/ops/add.c": "int look(void); int add(void); int add(void) { return look(); }",
    }
    assert rooms.main([str(build(tmp_path, files))]) == 1
    out = capsys.readouterr().out
    assert out.count("VIOLATION") == 1  # none in cpu and in cpu/ops alone
    assert "4 files in a circle: cpu/compute.c, cpu/look.c, cpu/ops/add.c, cpu/ops/table.c" in out
    assert "cpu/compute.c -> cpu/ops/table.c: table" in out


def test_forbidden_use_names_the_symbol(rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "backend/registry.c": "extern int a_data, s_data; int f(void); int f(void) { return a_data + s_data; }",
        "base/b.c": "extern int a_data; int g(void); int g(void) { return a_data; }",
        "cpu/a.c": "int a_data = 1;",
        "sim/s.c": "int s_data = 1;",
    }
    assert rooms.main([str(build(tmp_path, files))]) == 1
    out = capsys.readouterr().out
    assert "layers: 1 violations" in out  # the registry may
    assert "base/b.c -> cpu/a.c: base may not use cpu (a_data)" in out


def test_unused_exceptions_are_reported(rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rooms.main([str(build(tmp_path, {"backend/registry.c": "int f(void); int f(void) { return 0; }"}))]) == 1
    assert "backend/registry.c: its exception for cpu is not used" in capsys.readouterr().out


def test_folder_without_a_row(rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rooms.main([str(build(tmp_path, {**CLEAN, "attic/x.c": "int x(void); int x(void) { return 0; }"}))]) == 1
    assert "attic: has no row in FOLDERS" in capsys.readouterr().out


def test_modules_are_linked_apart(rooms: ModuleType, tmp_path: Path) -> None:
    files = {
        "backend/backend.c": "int name(void); int name(void) { return 1; }",
        "module/forward.c": "int name(void); int name(void) { return 2; }",
        "sched/s.c": "int name(void); int s(void); int s(void) { return name(); }",
        "cuda/c.c": "int name(void); int c(void); int c(void) { return name(); }",
    }
    assert rooms.main([str(build(tmp_path, files))]) == 0


def test_a_folder_report_suggests_moves(rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ring(4)
    for i in range(3):  # one more symbol for each use but that of the last
        files[f"sched/f{i}.c"] += f" int g{i + 1}(void); int h{i}(void); int h{i}(void) {{ return g{i + 1}(); }}"
        files[f"sched/f{i + 1}.c"] += f" int g{i + 1}(void); int g{i + 1}(void) {{ return 0; }}"
    assert rooms.main([str(build(tmp_path, files)), "--folder", "sched"]) == 0
    out = capsys.readouterr().out
    assert "users first: sched/f0.c sched/f1.c sched/f2.c sched/f3.c" in out
    assert out.count("against the order") == 1
    assert "against the order: sched/f3.c -> sched/f0.c: f0" in out


def test_objects_of_deleted_sources_do_not_count(
    rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path, ring(4))
    (tmp_path / "c/src/sched/f2.c").unlink()
    assert rooms.main([str(tmp_path)]) == 0
    assert "3 files; not in this build: none" in capsys.readouterr().out


def test_no_objects(rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rooms.main([str(tmp_path)]) == 2
    assert "no object files" in capsys.readouterr().err
    build(tmp_path, CLEAN)
    assert rooms.main([str(tmp_path), "--folder", "sched"]) == 2


@pytest.mark.parametrize("compiler", COMPILERS)
def test_link_time_optimization_hides_no_cycle(
    rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], compiler: str
) -> None:
    status = rooms.main([str(build(tmp_path, ring(4), compiler, "-flto", "-O1"))])
    printed = capsys.readouterr()
    assert (status == 1 and "4 files in a circle" in printed.out) or (status == 2 and "link-time" in printed.err)


def test_every_row_names_rows(rooms: ModuleType) -> None:
    named = {other for row in rooms.FOLDERS.values() for other in row.split()}
    assert named <= rooms.FOLDERS.keys()
    assert {other for _, other in rooms.ALLOWED} <= rooms.FOLDERS.keys()


def test_system_functions_need_permission(
    rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "#include <stdlib.h>\nvoid * {0}(void); void * {0}(void) {{ return malloc(1); }}"
    files = {"base/mem.c": text.format("m"), "tensor/t.c": text.format("t"), "cuda/c.c": text.format("c")}
    assert rooms.main([str(build(tmp_path, files))]) == 1
    out = capsys.readouterr().out
    assert "VIOLATION: tensor/t.c calls malloc: only base/mem.c may" in out
    assert "functions of the system: 1 violations" in out


def test_forbidden_include_is_found(rooms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Headers count as well as sources, and includes beside the file as well as those by path."""
    root = build(tmp_path, {"base/a.c": "int a(void); int a(void) { return 1; }"})
    for name, text in {
        "base/base.h": '#include "tensor/t.h"',
        "tensor/t.h": '#include "base/base.h"\n#include "quant/q.h"',
        "tensor/quant/q.h": "",
        "sched/types.h": "",
        "sched/plan.h": '#include "sched/run/run.h"',
        "sched/run/run.h": '#include "sched/types.h"\n#include "sched/plan.h"',
    }.items():
        path = root / "c" / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert rooms.main([str(root)]) == 1
    out = capsys.readouterr().out
    assert "included headers: 2 violations" in out
    assert "base/base.h includes tensor/t.h: base may not" in out
    assert "sched/run/run.h includes sched/plan.h: sched/run may not" in out
