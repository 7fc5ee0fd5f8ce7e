"""The tables of docs/TODAY.md about ggml's interface of today."""

from __future__ import annotations

from source_tree import load_tool

tool = load_tool("today")


def test_tables_follow_from_the_headers() -> None:
    assert tool.tables() in tool.PAGE.read_text(), "run tools/today.py"


def test_the_list_has_all_operators_of_today() -> None:
    assert len(tool.facts("op")) == len(set(tool.facts("op"))) == 101
    assert len(tool.facts("unary")) == len(set(tool.facts("unary"))) == 22
    assert len(tool.builders()) == len(set(tool.builders())) > 100


def test_names_are_found_in_the_headers() -> None:
    here = tool.Here()
    assert here.function("ggml_set_rows") == "ggml_set_rows"
    assert here.function("ggml_mul_mat_id") == "ggml_mul_mat_experts"
    assert here.function("ggml_lightning_indexer") is None
    assert here.operator("SIN") == "UNARY SIN"
    assert here.operator("MUL_MAT_ID") == "MUL_MAT_EXPERTS"
    assert here.operator("LIGHTNING_INDEXER") is None
    assert here.unary("XIELU") == "XIELU"
    called = {name for name in here.names.values() if name.startswith("ggml_") and not name.endswith("_t")}
    assert called <= here.functions
