"""The installed array libraries as devices, for the tests of ARRAY."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import Built, In, Tolerance, compare

NO_TORCH = pytest.mark.skipif(
    find_spec("torch") is None, reason="PyTorch is not installed; tools/check_torch.sh (make check-long) installs it"
)
LIBRARIES = [pytest.param("numpy", id="numpy"), pytest.param("torch", id="torch", marks=NO_TORCH)]
TEXTS = [
    pytest.param("ARRAY", id="numpy"),
    pytest.param("ARRAY:memory=own", id="numpy-own"),
    pytest.param("ARRAY:library=torch", id="torch", marks=NO_TORCH),
    pytest.param("ARRAY:library=torch,memory=own", id="torch-own", marks=NO_TORCH),
]
"""Private memory on the CPU is treated like memory of other devices."""


FEW = Tolerance()


@functools.cache
def opened(text: str) -> gb.Backend:
    return gb.Backend(text)


def check(
    text: str,
    build: Callable[..., gb.Tensor],
    inputs: Sequence[In],
    reference: Callable[..., Any],
    tolerance: Tolerance = FEW,
    magnitude: Callable[..., Any] | None = None,
    writes: Sequence[int] = (),
) -> None:
    """Checks that the device computes all of ``build(*tensors)``, that results equal
    ``reference(*arrays)`` in float64, and that it writes nothing else."""
    device = opened(text)
    with np.errstate(all="ignore"):
        want = np.asarray(reference(*(i.exact for i in inputs)))
        sizes = [np.abs(i.exact) for i in inputs]
        size = np.abs(want) if magnitude is None else np.broadcast_to(magnitude(*sizes), want.shape)
    built = Built(build, inputs, device)
    assert all(device.supports(t) for t in built.graph.nodes), device.unsupported_reason(built.node)
    compare(built.compute(device), want, size, tolerance, text)
    built.untouched(writes)


def check_wrong_index(device: gb.Backend) -> None:
    """Waiting for a run raises the error of a wrong index. The next run succeeds."""
    with gb.Context() as ctx:
        table, ids = ctx.tensor((9, 4), name="table"), ctx.tensor((3,), gb.int32, name="ids")
        y = gb.ops.get_rows(table, ids)
        graph, memory = ctx.graph(y), ctx.allocate(device)
        table.set(np.arange(36, dtype=np.float32).reshape(9, 4))
        ids.set(np.array([0, 9, -1], np.int32))

        def waited() -> None:
            graph.compute(device)
            device.synchronize()

        with pytest.raises(gb.errors.InvalidArgumentError, match=r"out of range"):
            waited()
        ids.set(np.array([0, 8, 3], np.int32))
        waited()
        np.testing.assert_array_equal(y.numpy()[1], [32, 33, 34, 35])
        del memory
