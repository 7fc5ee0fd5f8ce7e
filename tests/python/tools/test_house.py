"""tools/house.py measures what its docstring states, on a small tree."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from source_tree import load_tool


@pytest.fixture(scope="module")
def house() -> ModuleType:
    pytest.importorskip("lizard")
    return load_tool("house")


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def function(name: str, lines: int) -> str:
    return f"int {name}(void) {{\n" + "".join(f"    {name}({i});\n" for i in range(lines - 2)) + "}\n"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("int a; // why\n\n// alone\n", (1, 1, 2)),
        ("/* one\n   two\n\n   four */ int a;\n", (1, 3, 4)),  # blank lines within a comment belong to it
        ('char * s = "// no /* comment";\n', (1, 0, 0)),
        ("char c = '\"'; // \"\nint b;\n", (2, 0, 1)),
        ("#define M(a) \\\n    a // b \\\n    c\n", (2, 1, 2)),
        ("", (0, 0, 0)),
    ],
)
def test_comments_of_c(house: ModuleType, text: str, counts: tuple[int, int, int]) -> None:
    assert house.count_c(text) == counts


def test_comments_of_python(house: ModuleType) -> None:
    text = '"""Doc."""\n\n# alone\nx = 1  # why\n\n\ndef f():\n    """Two\n    lines."""\n    return """no\ndoc"""\n'
    assert house.count_python(text) == (4, 4, 5)


def test_quantiles(house: ModuleType) -> None:
    assert [house.quantile(list(range(1, 11)), q) for q in (0.5, 0.9, 1.0)] == [5, 9, 10]
    assert house.quantile([7], 0.9) == 7


def test_table_and_limits(house: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "c/src/base/a.c", "// what it is\n" + function("short_one", 5) + "\n" + function("long_one", 61))
    write(tmp_path, "tests/c/wide.c", "int " + "a" * 120 + ";\n")
    write(tmp_path, "build/left_out.c", "int " + "a" * 120 + ";\n")
    assert house.main([str(tmp_path), "--check"]) == 1
    out = capsys.readouterr().out
    assert "| function length median / p90 / max | 5 / 61 / 61 | -" in out
    assert "| functions over 60 lines | 50.0 % (1) |" in out
    assert "c/src/base/a.c:8: long_one has 61 lines" in out
    assert "C core: the p90 of function lengths is 61" in out
    assert "C core: 1.5 % of the lines are comments" in out
    assert "tests/c/wide.c:1: 125 columns" in out
    assert "left_out" not in out
    assert "limits: 4 broken" in out
    assert "| c/src/base | 1 | 68 | ? | - |" in out


@pytest.mark.parametrize(
    "path", ["tools/x.sh", "Makefile", "c/CMakeLists.txt", "c/x.cmake", "c/x.cmake.in", "python/a/x.html", "x.toml"]
)
def test_every_kind_of_source_is_checked(house: ModuleType, path: str) -> None:
    assert house.is_wide_checked(path)


def test_other_files_may_have_long_lines(house: ModuleType) -> None:
    assert not any(map(house.is_wide_checked, ("docs/x.md", "tests/data/x.json", "tests/fuzz/corpus_gguf/x.gguf")))


def test_limits_that_hold(house: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "c/src/base/a.c", "// what it is\n" + function("f", 7))
    assert house.main([str(tmp_path), "--check"]) == 0
    assert "limits: none broken" in capsys.readouterr().out


def test_repeats(house: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "".join(f"    y{i} = call(x, {i});\n" for i in range(8))
    write(tmp_path, "c/src/base/a.c", f"void a(void) {{\n{body}}}\n")
    write(tmp_path, "c/src/base/b.c", f"// other\nvoid b(void) {{\n    // why\n\n{body.replace('    ', ' ')}}}\n")
    house.main([str(tmp_path), "--repeats"])
    out = capsys.readouterr().out
    assert "C core: 1\n" in out
    assert "8 lines: c/src/base/a.c:2 and c/src/base/b.c:5" in out


def test_repeats_need_a_reason(
    house: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = "c/src/base/a.c", "c/src/base/b.c"
    body = "".join(f"    y{i} = call(x, {i});\n" for i in range(6))
    for path in pair:
        write(tmp_path, path, f"// what it is\n// and why\n{body}void f(void) {{}}\nvoid g(void) {{}}\n")

    def check(allowed: int) -> str:
        monkeypatch.setattr(house, "REPEATS", {pair: (allowed, "a reason")} if allowed else {})
        assert house.main([str(tmp_path), "--check"]) == (allowed != 1)
        return capsys.readouterr().out

    assert "c/src/base/a.c:3: 8 lines that are also at c/src/base/b.c:3" in check(0)
    assert "limits: none broken" in check(1)
    assert "REPEATS allows 2" in check(2)


def test_unneeded_exceptions_are_reported(
    house: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house, "EXCEPTIONS", {("c/src/base/a.c", "f"): "a reason"})
    write(tmp_path, "c/src/base/a.c", "// what it is\n" + function("f", 7))
    assert house.main([str(tmp_path), "--check"]) == 1
    assert "c/src/base/a.c: f needs no exception" in capsys.readouterr().out
