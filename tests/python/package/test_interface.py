"""The public interface equals its record, so that each change is intended."""

from __future__ import annotations

import difflib

import pytest

from source_tree import in_tree, load_tool

HOW = """
The public interface has changed. If that is meant: write it into CHANGELOG.md ("Added", or "Changed" where programs
must change), and run  python tools/record_interface.py  (docs/reference/versions.md says what may change when).
"""


@pytest.fixture(scope="module")
def record():
    return load_tool("record_interface")


@pytest.mark.parametrize("name", ["interface_python.txt", "interface_c.txt", "interface_torch.txt"])
def test_the_interface_equals_its_record(record, name):
    path = in_tree(f"tests/data/{name}")
    interfaces = {p.name: lines for p, lines in record.interfaces().items()}
    if name not in interfaces:
        pytest.skip("PyTorch is not installed; tools/check_torch.sh installs it")
    now = interfaces[name]
    change = list(difflib.unified_diff(path.read_text().splitlines(), now, "recorded", "now", lineterm="", n=0))
    assert not change, HOW + "\n".join(change)


def test_declarations_of_a_header(record):
    header = """
    #ifndef A_H
    #define A_H            // a guard
    #define TWO(x) \\
        ((x) + 2)
    #ifdef __cplusplus
    extern "C" {
    #endif
    /* int old(void); */
    struct a { int b; void (*c)(int); }; // int d;
    API int f(struct a * a,
              int n);
    #ifdef __cplusplus
    }
    #endif
    #endif
    """
    assert list(record.declarations(header)) == [
        "#define A_H", "#define TWO(x) ((x) + 2)", "struct a { int b; void (*c)(int); }",
        "API int f(struct a * a, int n)",
    ]  # fmt: skip


def test_a_changed_signature_is_a_change(record, monkeypatch):
    import ggml_backend as gb

    def relu(a, b=3):
        return a

    before = record.python_lines()
    monkeypatch.setattr(gb.ops, "relu", relu)
    gone = set(before) - set(record.python_lines())
    assert gone == {line for line in before if line.startswith("ggml_backend.ops.relu(")} != set()
