"""Each operator of ggml.h is compared with NumPy by some test."""

from __future__ import annotations

import importlib
import pathlib

import op_harness
from ggml_backend._ffi import ffi, lib

# Not compared: leaves, and UNARY, whose functions are compared one by one.
NOT_OPERATIONS = {"NONE", "UNARY"}


def test_every_operation_is_compared_with_numpy():
    for path in pathlib.Path(__file__).parent.glob("test_ops_*.py"):
        importlib.import_module(path.stem)
    ops = {ffi.string(lib.ggml_op_name(i)).decode() for i in range(lib.GGML_OP_COUNT)} - NOT_OPERATIONS
    unary = {ffi.string(lib.ggml_unary_op_name(i)).decode() for i in range(lib.GGML_UNARY_OP_COUNT)}
    assert len(ops) == lib.GGML_OP_COUNT - len(NOT_OPERATIONS)
    assert len(unary) == lib.GGML_UNARY_OP_COUNT
    assert (ops | unary) - op_harness.COVERED == set()
    assert op_harness.COVERED - (ops | unary) == set()
