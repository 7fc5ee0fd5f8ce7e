"""Arguments of operations that are words, or stand for something else, with the numbers that nodes have for them."""

from __future__ import annotations

from .._ffi import lib

__all__ = ["COMPARISONS", "EPS_OF_2024", "POOLS", "PRECISIONS", "ROPE_MODES"]

ROPE_MODES: dict[str, int] = {
    "normal": 0,
    "neox": 2,
    "glm": 4,
    "normal_exact": lib.GGML_ROPE_EXACT,
    "neox_exact": 2 | lib.GGML_ROPE_EXACT,
}
POOLS: dict[str, int] = {"max": lib.GGML_OP_POOL_MAX, "avg": lib.GGML_OP_POOL_AVG}
PRECISIONS: dict[str, int] = {"default": 0, "f32": lib.GGML_PREC_F32}
COMPARISONS: dict[str, int] = {
    "==": lib.GGML_COMPARE_EQUAL,
    "!=": lib.GGML_COMPARE_NOT_EQUAL,
    "<": lib.GGML_COMPARE_LESS,
    "<=": lib.GGML_COMPARE_LESS_EQUAL,
    ">": lib.GGML_COMPARE_GREATER,
    ">=": lib.GGML_COMPARE_GREATER_EQUAL,
}
EPS_OF_2024 = 1e-9
"""Of losses whose nodes name none."""
