"""Elements that functions of ``gb.ops.custom`` and ``gb.ops.map_custom`` leave unwritten never show old
memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggml_backend as gb

FLOATS = ["float32", "float16", "bfloat16"]
INTEGERS = ["int8", "int16", "int32", "int64"]


def computed(function: Any, dtype: str, several: bool = False, n_tasks: int = 1, threads: int = 1) -> Any:
    """The result of a function in memory with other old contents."""
    with gb.Context() as ctx, gb.Backend("CPU", n_threads=threads) as cpu:
        x = ctx.constant(np.full((64, 8), 7.0, np.float32))
        junk = gb.ops.relu(gb.ops.scale(x, 3.0))
        shape: Any = [(64, 8), (3,)] if several else (64, 8)
        y = gb.ops.custom(function, x, shape=shape, dtype=dtype, n_tasks=n_tasks)
        graph = ctx.graph(junk, *(y if several else (y,)))
        sched = gb.Scheduler([cpu])
        for _ in range(2):
            sched.compute(graph)
        return [t.numpy(copy=True) for t in y] if several else y.numpy(copy=True)


def numbers(array: Any, dtype: str) -> Any:
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else array


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("returned", ["None", "out"])
def test_an_unwritten_result_is_an_error(dtype, several, returned):
    function = {"None": lambda out, a: None, "out": lambda out, a: out}[returned]
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"custom: .*the function returned None and wrote"):
        computed(function, dtype, several)


def test_one_unwritten_result_of_several_is_an_error():
    def one(out, a):
        out[0][...] = 1

    for function in (one, lambda out, a: (np.ones((64, 8), np.float32), None)):
        with pytest.raises(gb.errors.InvalidArgumentError, match="wrote nothing"):
            computed(function, "float32", several=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n_tasks", [1, 2, -1])
def test_unwritten_floats_are_nan(dtype, n_tasks):
    def half(out, a, ith=0, nth=1):
        out[2 * ith :: 2 * nth] = 0

    found = numbers(computed(half, dtype, n_tasks=n_tasks, threads=2), dtype)
    assert (found == 0).any()
    assert ((found == 0) | np.isnan(found)).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_unwritten_integers_are_zero(dtype):
    def few(out, a):
        out[3] = 5

    found = computed(few, dtype)
    assert (found[3] == 5).all()
    assert (np.delete(found, 3, 0) == 0).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.nan, 0.0, -np.inf])
def test_written_elements_keep_any_value(dtype, value):
    def fill(out, a):
        out[...] = 0x7FC0 if dtype == "bfloat16" and np.isnan(value) else 0 if dtype == "bfloat16" else value

    assert computed(fill, dtype).shape == (64, 8)


def test_a_map_in_place_keeps_unwritten_elements():
    with gb.Context() as ctx, gb.Backend("CPU", n_threads=1) as cpu:
        x = ctx.tensor((4,)).set_input()
        y = gb.ops.map_custom(lambda out, a: None, gb.ops.relu(x), inplace=True)
        z = gb.ops.map_custom(lambda out, a: None, gb.ops.relu(x))
        sched = gb.Scheduler([cpu])
        graph = ctx.graph(y)
        sched.allocate(graph)
        x.set(2.0)
        sched.compute(graph)
        assert y.numpy().tolist() == [2.0] * 4
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"custom: .*the function returned None and wrote"):
            gb.Scheduler([cpu]).compute(ctx.graph(z))


def test_empty_results_are_fine():
    with gb.Context() as ctx, gb.Backend("CPU", n_threads=1) as cpu:
        x = ctx.constant(np.ones(3, np.float32))
        y = gb.ops.custom(lambda out, a: None, x, shape=(0, 4))
        sched = gb.Scheduler([cpu])
        sched.compute(ctx.graph(y))
        assert y.numpy().shape == (0, 4)
