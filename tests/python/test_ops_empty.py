"""Every operation on tensors without elements: the result has its shape, and what it holds in spite of that is a sum without terms, zero. Or
it is refused by name. Nothing crashes."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import Built, In, cpus, sim
from test_ops_threads import CASES

# The operation needs the axis (counted from the end) that is empty: it has no maximum or no place for a window there, holds an index or
# scalar, or sizes do not fit one another any more because the axis belongs to one of several inputs.
REFUSED = {
    "ADD1": {1}, "ARGMAX": {1}, "REPEAT": {1, 2}, "MUL_MAT_ID": {1}, "GET_ROWS": {2}, "GET_ROWS_BACK": {1, 2}, "DIAG": {2}, "ROPE": {1, 3}, "ROPE_BACK": {1, 3},
    "ALIBI": {3}, "CONV_TRANSPOSE_1D": {1, 2, 3}, "CONV_TRANSPOSE_2D": {1, 2, 3, 4}, "IM2COL": {1, 2}, "POOL_1D": {1}, "POOL_2D": {1, 2},
    "FLASH_ATTN": {1, 2, 3}, "FLASH_ATTN_BACK": {1, 2}, "FLASH_FF": {1, 2}, "WIN_UNPART": {2, 3, 4}, "GET_REL_POS": {2}, "ADD_REL_POS": {3, 4},
    "CROSS_ENTROPY_LOSS_BACK": {1},
}  # fmt: skip


@pytest.mark.parametrize("op", CASES)
def test_empty(op):
    for build, make in CASES[op]:
        whole = make()
        for axis in range(1, max(i.values.ndim for i in whole) + 1):
            inputs = [In(np.ascontiguousarray(i.values[(*[slice(None)] * (i.values.ndim - axis), slice(0, 0))] if i.values.ndim >= axis else i.values))
                      for i in whole]  # fmt: skip
            if axis in REFUSED.get(op, ()):
                with pytest.raises(gb.InvalidArgumentError, match=f"(?i){op}"):
                    Built(build, inputs, cpus()[1][1]).compute(cpus()[1][1])
                continue
            for backend in (cpus()[1][1], sim()):
                if op == "MAP_CUSTOM1" and backend is sim():
                    continue  # not for devices
                built = Built(build, inputs, backend)
                got = built.compute(backend)
                assert got.shape == built.node.shape
                nothing = np.nan if op == "MEAN" and axis == 1 else 0
                np.testing.assert_array_equal(got, np.full(got.shape, nothing, got.dtype))
