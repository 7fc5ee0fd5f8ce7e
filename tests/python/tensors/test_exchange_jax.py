"""Exchange with JAX. ``make check-long`` installs JAX for the CPU in its own environment. Without
JAX the tests are skipped.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ggml_backend as gb
from exchanged import DTYPES, SHAPES, numbers

jax = pytest.importorskip("jax", reason="JAX is not installed; make check-long installs it")
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_round_trip(ctx, shape, dtype):
    given = jax.numpy.asarray(numbers(shape).astype(np.float64)).astype(dtype)
    t = ctx.from_dlpack(given)
    assert (t.shape, t.dtype) == (shape, gb.dtypes.as_dtype(dtype))
    assert t.numpy(np.float64).tolist() == given.astype(np.float64).tolist()
    if given.size:
        assert t.numpy().ctypes.data == given.unsafe_buffer_pointer()
        with pytest.raises(gb.errors.StateError, match="read-only"):
            t.set(0)
    own = ctx.from_dlpack(given, copy=True)
    back = jax.dlpack.from_dlpack(own)
    assert back.dtype == given.dtype and back.shape == shape and (back == given).all()
    if given.size:
        own.set(given + 1)
        assert own.numpy(np.float64).tolist() == (given + 1).astype(np.float64).tolist()
        assert (given == jax.numpy.asarray(numbers(shape).astype(np.float64)).astype(dtype)).all()


def test_in_set_and_constants(ctx, cpu):
    given = jax.numpy.arange(6, dtype="bfloat16").reshape(2, 3)
    t, c = ctx.tensor((2, 3), gb.bfloat16), ctx.constant(given)
    shared = ctx.from_numpy(given)
    ctx.allocate(cpu)
    assert t.set(given).tolist() == c.tolist() == shared.tolist() == given.astype(np.float32).tolist()
    assert c.dtype == shared.dtype == gb.bfloat16
    assert shared.numpy().ctypes.data == given.unsafe_buffer_pointer() and not shared.numpy().flags.writeable
    for act in (lambda: ctx.tensor(3) + given, lambda: given * ctx.tensor(3)):
        with pytest.raises(TypeError):
            act()


@pytest.mark.parametrize("first", ["producer", "consumer"])
def test_lifetimes(first):
    given = jax.numpy.arange(4096, dtype="float32")
    ctx = gb.Context()
    t = ctx.from_dlpack(given, copy=True)
    back = jax.dlpack.from_dlpack(t)
    shared = ctx.from_dlpack(given)
    array = shared.numpy()
    if first == "producer":
        del given, t, shared
        ctx.close()
        gc.collect()
        jax.numpy.full(4096, -1.0, "float32").block_until_ready()
        assert back[4095] == 4095 and array[4095] == 4095
    else:
        del back, array, shared
        gc.collect()
        assert t.numpy()[4095] == 4095 and given[4095] == 4095


@pytest.mark.parametrize("program", ["kept = jax.dlpack.from_dlpack(t)", "kept = ctx.from_dlpack(jax.numpy.ones(8))"])
def test_at_the_end_of_the_interpreter(holds, program):
    holds(
        "import jax\nctx = gb.Context(); t = ctx.from_dlpack(np.ones(64, np.float32), copy=True)\n" + program,
        environment={"JAX_PLATFORMS": "cpu"},
    )
