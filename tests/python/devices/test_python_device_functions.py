"""Custom functions on devices written in Python, with arrays of NumPy and of another library.
Returned arrays keep their values.
"""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from python_devices import Host, Own, notes_of


class Functions(Host):
    computes_custom = True


class OwnFunctions(Own):
    computes_custom = True


gb.devices.register_device("FUNCTIONS", Functions)
gb.devices.register_device("OWNFUNCTIONS", OwnFunctions)


@pytest.mark.parametrize("name", ["FUNCTIONS", "OWNFUNCTIONS"])
def test_custom_functions_run_on_a_device_with_computes_custom(name, ctx, cpu, rng):
    device = gb.Backend(name)
    a = ctx.tensor((3, 4), name="a")
    w = ctx.tensor((2, 64), "q8_0", name="w")
    outer = gb.ops.custom(lambda out, x: np.multiply.outer(x.sum(1), x.sum(0)), a, shape=(3, 4), dtype=gb.float32)
    low, high = gb.ops.custom(
        lambda outs, x: (x.min(keepdims=True)[0], x.max(1)), a, shape=[(1,), (3,)], dtype=[gb.float32, gb.float32]
    )
    wide = gb.ops.custom(lambda out, blocks: gb.dequantize(blocks), w, shape=(2, 64), dtype=gb.float32)
    old = gb.ops.map_custom(lambda out, x: -x, a)
    y = outer + old
    graph = ctx.graph(y, low, high, wide)
    values, weights = rng.standard_normal((3, 4), dtype=np.float32), rng.standard_normal((2, 64), dtype=np.float32)
    with gb.Scheduler([device, cpu]) as sched:
        sched.allocate(graph)
        a.set(values)
        w.set(gb.quantize(weights, "q8_0"))
        for _ in range(2):
            sched.compute(graph)
            assert np.array_equal(y.numpy(), np.multiply.outer(values.sum(1), values.sum(0)) - values)
            assert low.numpy()[0] == values.min() and np.array_equal(high.numpy(), values.max(1))
            assert np.array_equal(wide.numpy(), gb.dequantize(gb.quantize(weights, "q8_0"), "q8_0"))
        assert [s.backend for s in sched.splits] == [name]


def test_custom_functions_run_on_the_cpu_otherwise(ctx, cpu):
    a = ctx.tensor((3,), name="a")
    y = gb.ops.custom(lambda out, x: x + 1, a) + a
    graph = ctx.graph(y)
    with gb.Scheduler([gb.Backend("PYHOST"), cpu]) as sched:
        sched.allocate(graph)
        a.set(np.ones(3, np.float32))
        sched.compute(graph)
        assert np.all(y.numpy() == 3)
        assert [s.backend for s in sched.splits] == ["CPU", "PYHOST"]


def test_a_function_that_raises_on_a_device(ctx, cpu):
    def fail(out, x):
        raise LookupError("not today")

    a = ctx.tensor((3,), name="a")
    graph = ctx.graph(gb.ops.custom(fail, a).named("y"))
    with gb.Scheduler([gb.Backend("FUNCTIONS"), cpu]) as sched:
        sched.allocate(graph)
        a.set(np.ones(3, np.float32))
        with pytest.raises(LookupError, match="not today") as caught:
            sched.compute(graph)
        assert "'y'" in "".join(notes_of(caught.value))


class Array:
    """An array of a library that is not NumPy."""

    def __init__(self, data):
        self.data = data
        self.shape, self.dtype = data.shape, f"library.{data.dtype}"

    def __setitem__(self, key, value):
        self.data[key] = value.data

    def __mul__(self, other):
        return Array(np.asarray(self.data * other, np.result_type(self.data, other)))


class Foreign(Own):
    computes_custom = True

    def array(self, memory, offset, node, writable):
        return Array(super().array(memory, offset, node, writable))


gb.devices.register_device("FOREIGN", Foreign)


def foreign(ctx, cpu, build):
    device = gb.Backend("FOREIGN")
    a, q = ctx.tensor((2, 32), name="a"), ctx.tensor((2, 32), "q8_0", name="q")
    results = build(a, q)
    results = results if isinstance(results, tuple) else (results,)
    graph = ctx.graph(*results)
    with gb.Scheduler([device, cpu]) as sched:
        sched.allocate(graph)
        for t in graph.leafs:
            t.set(np.ones((2, 32), np.float32), quantize=t.dtype.is_quantized)
        sched.compute(graph)
        return [r.numpy(copy=True) for r in results], [s.backend for s in sched.splits]


def test_functions_on_arrays_of_another_library(ctx, cpu):
    (y,), where = foreign(ctx, cpu, lambda a, q: gb.ops.custom(lambda out, x: x * 3.0, a))
    assert np.all(y == 3) and where == ["FOREIGN"]


@pytest.mark.parametrize(
    ("build", "value"),
    [
        (lambda a, q: gb.ops.custom(lambda out, x: (x * 2, x * 3), a, shape=[(2, 32), (2, 32)]), [2, 3]),
        (lambda a, q: gb.ops.custom(lambda out, x: gb.dequantize(x), q, dtype="f32"), [1]),
    ],
)
def test_functions_that_need_numpy_arrays(build, value, ctx, cpu):
    results, where = foreign(ctx, cpu, build)
    assert [round(float(r.flat[0]), 3) for r in results] == value and where == ["CPU"]


@pytest.mark.parametrize(
    ("factor", "dtype", "message"),
    [(1.5, "int32", "must return int32, not float32"), (1j, "float32", "must return float32, not complex64")],
)
def test_numbers_of_another_kind_from_another_library(factor, dtype, message, ctx, cpu):
    with pytest.raises(gb.errors.InvalidArgumentError, match=message):
        foreign(ctx, cpu, lambda a, q: gb.ops.custom(lambda out, x: x * factor, a, dtype=dtype, shape=(2, 32)))


def test_arrays_of_another_library_are_refused(ctx, cpu):
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"must return an array of the device, .*Array, not"):
        foreign(ctx, cpu, lambda a, q: gb.ops.custom(lambda out, x: np.ones((2, 32), np.float32), a))


def test_integers_of_a_device_keep_their_value(ctx, cpu):
    class Wide(gb.devices.Device):
        @gb.devices.op("argmax")
        def argmax(self, node, out, a):
            return np.argmax(a, -1) + 2**40

    gb.devices.register_device("WIDE", Wide)
    x = ctx.tensor((3, 4), name="x")
    graph = ctx.graph(gb.ops.argmax(x))
    with gb.Scheduler([gb.Backend("WIDE"), cpu]) as sched:
        sched.allocate(graph)
        x.set(1.0)
        with pytest.raises(
            gb.errors.InvalidArgumentError, match="must be int32, -2147483648 to 2147483647, and has 1099511"
        ):
            sched.compute(graph)
