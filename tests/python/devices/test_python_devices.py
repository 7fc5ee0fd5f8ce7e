"""Devices written in Python: their operators, memory and options."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._base.errors import keep_exception, take_exception
from python_devices import NAMES, Host, Own
from threads import run_threads


def chain(ctx, rng, shape=(5, 7)):
    """A graph whose middle node only the CPU computes; its inputs with values; the result."""
    a, b = ctx.tensor(shape, name="a"), ctx.tensor(shape[-1:], name="b")
    y = (gb.ops.sqr(gb.ops.scale(a + b, 0.5)) * b - a).named("y")
    values = {t: rng.standard_normal(t.shape, dtype=np.float32) for t in (a, b)}
    x, z = values[a], values[b]
    half = (x + z) * np.float32(0.5)
    return y, values, half * half * z - x


@pytest.mark.parametrize("name", NAMES)
def test_a_device_with_the_cpu_gives_the_same_bits(name, ctx, cpu, rng):
    y, values, expected = chain(ctx, rng)
    device = gb.Backend(name)
    graph = ctx.graph(y)
    with gb.Scheduler([device, cpu]) as sched:
        for _ in range(3):  # first with planning, then with the kept plan
            sched.allocate(graph)
            for t, v in values.items():
                t.set(v)
            assert sched.compute(graph)
            assert np.array_equal(y.numpy(), expected)
        assert {s.backend for s in sched.splits} == {name, "CPU"}


def test_memory_of_the_host_is_shared_with_the_cpu(ctx, cpu, rng):
    y, values, expected = chain(ctx, rng)
    graph = ctx.graph(y)
    with gb.Scheduler([gb.Backend("PYHOST"), cpu]) as sched:
        sched.allocate(graph)
        for t, v in values.items():
            t.set(v)
        sched.compute(graph)
        assert np.array_equal(y.numpy(), expected)
        assert len(sched.splits) == 3 and all(not s.inputs for s in sched.splits)


def test_weights_in_a_buffer_of_the_cpu_are_not_copied(ctx, cpu):
    memory = np.arange(16, dtype=np.float32)
    buffer = gb.Buffer.from_array(memory, usage="weights")
    w = ctx.tensor((16,), name="w")
    buffer.place(w)
    x = ctx.tensor((16,), name="x")
    y = x * w
    graph = ctx.graph(y)
    with gb.Scheduler([gb.Backend("PYHOST"), cpu]) as sched:
        sched.allocate(graph)
        x.set(np.full(16, 2, np.float32))
        sched.compute(graph)
        assert np.array_equal(y.numpy(), 2 * memory)
        assert [s.backend for s in sched.splits] == ["PYHOST"]
        assert not sched.splits[0].inputs
        memory *= 2  # read without a copy
        sched.compute(graph)
        assert np.array_equal(y.numpy(), 2 * memory)


def test_memory_of_a_scheduler_is_used_through_copies(ctx, cpu):
    """Results of the CPU, in place and as views, are in memory of a scheduler. No array may keep it
    alive."""
    device = gb.Backend("PYHOST")
    a = ctx.tensor((4, 6), name="a")
    s = gb.ops.sqr(a)
    t = s[1:3] + s[2:4]  # overlapping views of a result of the CPU
    y = gb.ops.sqr(t) - t
    graph = ctx.graph(y)
    with gb.Scheduler(
        [device, cpu], buffer_types=[gb.backend.cpu_buffer_type(), gb.backend.cpu_buffer_type()]
    ) as sched:
        for k in (1, 2):
            sched.allocate(graph)
            value = k * np.arange(24, dtype=np.float32).reshape(4, 6)
            a.set(value)
            sched.compute(graph)
            square = value * value
            both = square[1:3] + square[2:4]
            assert np.array_equal(y.numpy(), both * both - both)
        assert {x.backend for x in sched.splits} == {"PYHOST", "CPU"}
    gone = weakref.ref(sched)
    del sched
    gc.collect()
    assert gone() is None


def test_result_on_a_source_is_computed_from_a_copy_unless_the_method_may():
    class Careless(gb.devices.Device):
        """Reads its source after writing the result."""

        @gb.devices.op("soft_max", "neg")
        def late(self, node, out, a):
            out[...] = 0
            out -= a

    class Careful(Careless):
        @gb.devices.op("soft_max", in_place=True)
        def late(self, node, out, a):
            out[...] = 0
            out -= a

    for kind, expected in ((Careless, -1.0), (Careful, 0.0)):
        gb.devices.register_device("CARELESS", kind, replace=True)
        device = gb.Backend("CARELESS")
        with gb.Context() as ctx:
            a = ctx.tensor((2, 3))
            y = gb.ops.soft_max(a)
            graph = ctx.graph(y)
            buffer = device.allocate(256)
            buffer.place(a, 0)
            buffer.place(y, 0)  # as the memory planner does
            a.set(np.ones((2, 3), np.float32))
            graph.compute(device)
            assert np.all(y.numpy() == expected), kind


def test_nodes_have_names_shapes_and_parameters(ctx):
    seen = {}

    class Looker(gb.devices.Device):
        def supports(self, node):
            seen[node.op] = node
            return "it only looks"

    gb.devices.register_device("LOOKER", Looker, replace=True)
    device = gb.Backend("LOOKER")
    a = ctx.tensor((2, 3, 4, 8), name="a")
    positions = ctx.tensor((3,), gb.int32, name="positions")
    mask = ctx.tensor((3, 3), name="mask")
    nodes = [
        gb.ops.rope(a, positions, 8, "neox", freq_base=5000.0, n_orig_ctx=64),
        gb.ops.soft_max(ctx.tensor((2, 3, 3)), mask, scale=0.25),
    ]
    for node in nodes:
        assert device.unsupported_reason(node) == "it only looks"
    rope = seen["rope"]
    assert rope.sources[0].name == "a" and rope.sources[1].dtype == gb.int32
    assert (rope.shape, rope.strides, rope.ndim, rope.size) == (a.shape, a.strides, 4, 192)
    assert rope.params["n_dims"] == 8 and rope.params["mode"] == "neox" and rope.params["n_orig_ctx"] == 64
    assert rope.params["freq_base"] == 5000.0 and rope.params["freq_scale"] == 1.0 and not rope.params["xpos_down"]
    assert seen["soft_max"].params == {"scale": 0.25, "max_bias": 0.0} and len(seen["soft_max"].sources) == 2
    assert "'a'" in repr(rope) and "ROPE" in str(rope)
    with pytest.raises(TypeError, match="the library makes nodes"):
        gb.devices.Node()
    with pytest.raises(AttributeError):
        rope.nonsense = 1


def test_cast_has_one_source(ctx):
    seen = []

    class Looker(gb.devices.Device):
        def supports(self, node):
            seen.append(node)
            return False

    gb.devices.register_device("LOOKER", Looker, replace=True)
    gb.Backend("LOOKER").supports(gb.ops.cast(ctx.tensor((3, 4), name="a"), gb.float16))
    assert [s.name for s in seen[0].sources] == ["a"]
    assert seen[0].dtype == gb.float16


@pytest.mark.parametrize(
    ("spec", "keywords", "expected"),
    [
        ("OPTIONS", {}, (1, 0.5, "x", False, None)),
        ("options:n=3,rate=2.5,text=y,flag=yes", {}, (3, 2.5, "y", True, None)),
        ("OPTIONS:flag", {}, (1, 0.5, "x", True, None)),
        ("OPTIONS:n=2", {"text": "z", "thing": [1]}, (2, 0.5, "z", False, [1])),
        ("OPTIONS", {"thing": np.float32}, (1, 0.5, "x", False, np.float32)),
    ],
)
def test_options(spec, keywords, expected):
    device = gb.Backend(spec, **keywords).device
    assert (device.n, device.rate, device.text, device.flag, device.thing) == expected
    assert device.name == "OPTIONS"


@gb.devices.register_device("OPTIONS")
class Options(gb.devices.Device):
    def __init__(self, n: int = 1, rate: float = 0.5, text: str = "x", flag: bool = False, thing=None):
        self.n, self.rate, self.text, self.flag, self.thing = n, rate, text, flag, thing


@pytest.mark.parametrize(
    ("spec", "keywords", "message"),
    [
        ("OPTIONS:m=3", {}, "there is no option 'm'; known are n, rate, text, flag, thing"),
        ("OPTIONS:n=three", {}, "option n must be int, not 'three'"),
        ("OPTIONS:flag=maybe", {}, "option flag must be bool, not 'maybe'"),
        ("OPTIONS:n=1", {"n": 2}, "option n is given twice"),
        ("OPTIONS", {"rat": 2}, "did you mean 'rate'"),
        ("PYHOST", {"n_threads": 2}, "there is no option 'n_threads'|n_threads and level are for the CPU"),
    ],
)
def test_wrong_options(spec, keywords, message):
    with pytest.raises(gb.errors.InvalidArgumentError, match=message):
        gb.Backend(spec, **keywords)


def test_registering():
    assert set(NAMES) <= set(gb.backends())
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"the device 'PYHOST' exists already.*replace=True"):
        gb.devices.register_device("pyhost", Own)
    assert gb.devices.register_device("PYHOST", Host) is Host  # the same class again is fine
    for name in ("", "1A", "A:B", "A B", "Ä", "A" * 60):
        with pytest.raises(gb.errors.InvalidArgumentError, match="register_device: name must be"):
            gb.devices.register_device(name, Host)
    for cls in (int, 3, Host(), "Host"):
        with pytest.raises(TypeError, match="register_device: cls must be a subclass of Device"):
            gb.devices.register_device("NEW", cls)
    for name in ("CPU", "cpu", "SIM"):
        with pytest.raises(
            gb.errors.InvalidArgumentError, match=rf"^register_device: the backend '{name}' exists already"
        ):
            gb.devices.register_device(name, Host)


def test_an_unavailable_device_has_a_reason():
    @gb.devices.register_device("ABSENT")
    class Absent(gb.devices.Device):
        @classmethod
        def missing(cls):
            return "the card is not plugged in"

    names = gb.backends()
    assert "ABSENT" not in names and names.missing["ABSENT"] == "the card is not plugged in"
    with pytest.raises(gb.errors.UnsupportedError, match="ABSENT cannot be used here: the card is not plugged in"):
        gb.Backend("ABSENT")
    Absent.missing = classmethod(lambda cls: None)
    assert gb.Backend("ABSENT").name == "ABSENT" and "ABSENT" in gb.backends()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"memory": "gpu"}, "memory must be 'host' or 'own', not 'gpu'"),
        ({"alignment": 3}, "alignment must be a power of two"),
        ({"alignment": 0}, "alignment must be a power of two"),
        ({"alignment": 4}, "alignment must be at least 64 with memory 'host', which the CPU uses, too, not 4"),
        ({"max_nbytes": -1}, "max_nbytes must be a positive number"),
        ({"max_nbytes": 1.5}, "max_nbytes must be a positive number"),
        ({"name": ""}, ""),
        ({"__init__": lambda self: setattr(self, "name", "ä" * 40)}, "name must be a text of at most 63 bytes"),
        ({"__init__": lambda self: setattr(self, "name", 3)}, "name must be a text"),
    ],
)
def test_wrong_classes(attributes, message):
    kind = type("Wrong", (gb.devices.Device,), attributes)
    gb.devices.register_device("WRONG_KEYWORDS", kind, replace=True)
    if message:
        with pytest.raises(gb.errors.InvalidArgumentError, match=message):
            gb.Backend("WRONG_KEYWORDS")
    else:
        assert gb.Backend("WRONG_KEYWORDS").name == "WRONG_KEYWORDS"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: gb.devices.op(),
        lambda: gb.devices.op(3),
        lambda: gb.devices.op("add", when=3),
        lambda: gb.devices.op("add", dtypes="float"),
        lambda: gb.devices.op("add", prepare="yes"),
        lambda: gb.devices.op("add")(3),
        lambda: gb.devices.op("add", in_place=2),
    ],
)
def test_wrong_marks(wrong):
    with pytest.raises((TypeError, gb.errors.InvalidArgumentError), match="op"):
        wrong()


def test_table_is_inherited_and_overridden(ctx):
    class Base(gb.devices.Device):
        @gb.devices.op("add", "mul")
        def both(self, node, out, a, b):
            out[...] = 1

    class Derived(Base):
        @gb.devices.op("mul", dtypes=("f32", "f16"))
        def other(self, node, out, a, b):
            out[...] = 2

    gb.devices.register_device("TABLE", Derived, replace=True)
    device = gb.Backend("TABLE")
    a, h = ctx.tensor((2,)), ctx.tensor((2,), gb.float16)
    total, product = a + a, a * a
    graph = ctx.graph(total, product)
    ctx.allocate(device)
    a.set(np.zeros(2, np.float32))
    graph.compute(device)
    assert total.numpy()[0] == 1 and product.numpy()[0] == 2
    assert device.supports(gb.ops.mul(a, a)) and not device.supports(gb.ops.sqr(a))
    assert device.unsupported_reason(gb.ops.sqr(a)) == "not implemented (the device has add, mul)"
    assert device.unsupported_reason(gb.ops.add(h, h)) == "the result is float16; it computes add of float32"


def test_operands_that_libraries_cannot_broadcast_are_refused(ctx):
    device = gb.Backend("PYHOST")
    a, b = ctx.tensor((6, 4)), ctx.tensor((2, 4))
    reason = "it cannot repeat an operand along an axis of more than one element"
    assert device.unsupported_reason(gb.ops.add(a, b)) == reason
    assert device.supports(gb.ops.add(a, ctx.tensor((4,)))) and device.supports(gb.ops.add(a, ctx.tensor((6, 1))))


def test_comparisons_and_choices_of_a_device(ctx):
    functions = {"<": np.less, ">=": np.greater_equal, "==": np.equal}

    class Choosing(gb.devices.Device):
        @gb.devices.op("compare", when=lambda node: node.params["comparison"] in functions or "another comparison")
        def compare(self, node, out, a, b):
            functions[node.params["comparison"]](a, b, out=out, casting="unsafe")

        @gb.devices.op("where")
        def where(self, node, out, cond, a, b):
            out[...] = np.where(cond != 0, a, b)

    gb.devices.register_device("CHOOSING", Choosing, replace=True)
    device = gb.Backend("CHOOSING")
    x, row, half = ctx.constant(np.arange(6, dtype=np.float32).reshape(2, 3)), ctx.tensor((3,)), ctx.tensor((1, 3))
    assert device.unsupported_reason(gb.ops.not_equal(x, row)) == "another comparison"
    assert device.unsupported_reason(gb.ops.less(ctx.tensor((4, 3)), ctx.tensor((4, 3)))) is None
    chosen = gb.ops.where(x >= 2, x, gb.ops.where(gb.ops.equal(x, 1), -1.0, half))
    with gb.Scheduler([device, gb.Backend("CPU")]) as sched:
        graph = ctx.graph(chosen)
        sched.allocate(graph)
        half.set(np.full((1, 3), 7, np.float32))
        sched.compute(graph)
        assert [s.backend for s in sched.splits] == ["CHOOSING"]
        np.testing.assert_array_equal(chosen.numpy(), [[7, -1, 2], [3, 4, 5]])


@pytest.mark.parametrize(
    ("weights", "x"),
    [
        ((5, 8), (3, 8)), ((5, 8), (8,)), ((5, 8), (4, 3, 8)), ((1, 5, 8), (3, 8)), ((1, 5, 8), (4, 3, 8)),
        ((4, 5, 8), (4, 3, 8)), ((2, 5, 8), (4, 3, 8)), ((2, 1, 5, 8), (4, 6, 3, 8)), ((2, 3, 5, 8), (2, 6, 3, 8)),
        ((8,), (3, 8)), ((8,), (8,)), ((1, 5, 8), (8,)),
    ],
)  # fmt: skip
def test_products_that_numpy_cannot_broadcast_need_repeats(ctx, cpu, rng, weights, x):
    class Multiplies(gb.devices.Device):
        @gb.devices.op("mul_mat")
        def product(self, node, out, w, x):
            np.matmul(x, w.swapaxes(-1, -2), out=out)

    class Repeats(gb.devices.Device):
        @gb.devices.op("mul_mat", repeats=True)
        def product(self, node, out, w, x):
            raise NotImplementedError

    gb.devices.register_device("MULTIPLIES", Multiplies, replace=True)
    gb.devices.register_device("REPEATS", Repeats, replace=True)
    device = gb.Backend("MULTIPLIES")
    w, b = ctx.tensor(weights), ctx.tensor(x)
    y = gb.ops.mul_mat(w, b)
    values = rng.integers(-4, 5, weights).astype(np.float32), rng.integers(-4, 5, x).astype(np.float32)
    try:
        expected = np.matmul(values[1], values[0].swapaxes(-1, -2))
    except ValueError:
        expected = None
    computes = expected is not None and expected.shape == y.shape
    reason = None if computes else "it neither broadcasts matrices of a product nor accepts a vector"
    assert device.unsupported_reason(y) == reason
    assert gb.Backend("REPEATS").supports(y)
    graph = ctx.graph(y)
    with gb.Scheduler([device, cpu]) as sched:
        sched.allocate(graph)
        w.set(values[0])
        b.set(values[1])
        sched.compute(graph)
        assert [s.backend for s in sched.splits] == ["MULTIPLIES" if computes else "CPU"]
        if computes:
            assert np.array_equal(y.numpy(), expected)


def test_a_refusal_without_a_reason_names_the_operator(ctx):
    class Silent(gb.devices.Device):
        @gb.devices.op("add", when=lambda node: False)
        def add(self, node, out, a, b): ...

    gb.devices.register_device("SILENT", Silent, replace=True)
    a = ctx.tensor((4,))
    assert gb.Backend("SILENT").unsupported_reason(a + a) == "it computes add, but refuses this node without a reason"


def test_preparing_once_for_each_plan(ctx, cpu):
    calls = []

    class Prepared(gb.devices.Device):
        @gb.devices.op("add", prepare=True)
        def add(self, node, out, a, b):
            calls.append(node.name)
            return lambda: np.add(a, b, out)

    gb.devices.register_device("PREPARED", Prepared, replace=True)
    a = ctx.tensor((4,), name="a")
    y = (a + a).named("y")
    graph = ctx.graph(y)
    with gb.Scheduler([gb.Backend("PREPARED"), cpu]) as sched:
        sched.allocate(graph)
        for k in range(5):
            a.set(np.full(4, k, np.float32))
            sched.compute(graph)
            assert y.numpy()[0] == 2 * k
    assert calls == ["y"]


@pytest.mark.parametrize("returned", ["function", "nothing"])
def test_preparing_once_with_a_result_on_a_source(returned):
    calls = []

    class Prepared(gb.devices.Device):
        @gb.devices.op("soft_max", prepare=True)
        def late(self, node, out, a):
            calls.append(a)

            def run():
                out[...] = 0
                out[...] -= a

            return run if returned == "function" else None

    gb.devices.register_device("PREPARED", Prepared, replace=True)
    device = gb.Backend("PREPARED")
    with gb.Context() as ctx:
        a = ctx.tensor((2, 3))
        y = gb.ops.soft_max(a)
        graph = ctx.graph(y)
        buffer = device.allocate(256)
        buffer.place(a, 0)
        buffer.place(y, 0)
        if returned == "nothing":
            a.set(0)
            with pytest.raises(TypeError, match="late is marked with prepare=True, and must return a function, not"):
                graph.compute(device)
            return
        with gb.Scheduler([device, gb.Backend("CPU")]) as sched:
            for k in range(5):
                a.set(np.full((2, 3), k, np.float32))
                sched.compute(graph)
                assert np.all(y.numpy() == -k)
        assert len(calls) == 1


def test_compile_sees_the_whole_split(ctx, cpu):
    class Compiler(Host):
        def compile(self, calls):
            self.seen = [(c.node.op, c.shared) for c in calls]
            run = super().compile(calls)

            def program():
                self.runs = getattr(self, "runs", 0) + 1
                run()

            return program

    gb.devices.register_device("COMPILER", Compiler, replace=True)
    a = ctx.tensor((4,), name="a")
    y = gb.ops.scale(a + a, 3.0) * a
    graph = ctx.graph(y)
    device = gb.Backend("COMPILER")
    with gb.Scheduler([device, cpu]) as sched:
        sched.allocate(graph)
        a.set(np.full(4, 2, np.float32))
        sched.compute(graph)
        sched.compute(graph)
        assert y.numpy()[0] == 24
    assert [op for op, _ in device.device.seen] == ["add", "scale", "mul"] and device.device.runs == 2


def test_quantized_sources_are_bytes(ctx, rng):
    class Unpacking(gb.devices.Device):
        @gb.devices.op("get_rows", dtypes=("f32", "q8_0"))
        def rows(self, node, out, table, ids):
            assert table.dtype == np.uint8 and not table.flags.writeable
            return gb.dequantize(np.ascontiguousarray(table), node.sources[0].dtype)[ids]

    gb.devices.register_device("UNPACKING", Unpacking, replace=True)
    device = gb.Backend("UNPACKING")
    table, ids = ctx.tensor((6, 64), "q8_0"), ctx.tensor((3,), gb.int32)
    y = gb.ops.get_rows(table, ids)
    graph = ctx.graph(y)
    ctx.allocate(device)
    values = rng.standard_normal((6, 64), dtype=np.float32)
    table.set(gb.quantize(values, "q8_0"))
    ids.set(np.array([5, 0, 5], np.int32))
    graph.compute(device)
    assert np.array_equal(y.numpy(), gb.dequantize(gb.quantize(values, "q8_0"), "q8_0")[[5, 0, 5]])


def test_copies_between_boxes_stay_on_the_device(ctx):
    device = gb.Backend("PYOWN")
    a, b = ctx.tensor((8,)), ctx.tensor((8,))
    first, second = device.allocate(64), device.allocate(64)
    first.place(a)
    second.place(b)
    a.set(np.arange(8, dtype=np.float32))
    b.copy_from(a)
    assert np.array_equal(b.numpy(), np.arange(8, dtype=np.float32))
    assert sum(box.copied for box in device.device.boxes) == 1
    second.clear(0)
    assert not b.numpy().any()


def test_arrays_that_a_device_keeps_stay_valid(cpu):
    kept = []

    class Keeper(gb.devices.Device):
        @gb.devices.op("add")
        def add(self, node, out, a, b):
            np.add(a, b, out=out)
            kept.extend((out, a))

    gb.devices.register_device("KEEPER", Keeper, replace=True)
    weights = np.full(1 << 16, 3, np.float32)
    with gb.Context() as ctx, gb.Scheduler([gb.Backend("KEEPER"), cpu]) as sched:
        buffer = gb.Buffer.from_array(weights)
        w = ctx.tensor((1 << 16,))
        buffer.place(w)
        graph = ctx.graph(w + w)
        sched.compute(graph)
        buffer.close()
    del sched, graph, w, buffer, ctx
    gc.collect()
    assert np.all(kept[0] == 6) and np.all(kept[1] == 3)


def test_a_device_closes_with_its_backend(cpu):
    device = gb.Backend("PYHOST")
    gone = weakref.ref(device.device)
    with gb.Context() as ctx, gb.Scheduler([device, cpu]) as sched:
        a = ctx.tensor((4,))
        graph = ctx.graph(a + a)
        sched.allocate(graph)
        a.set(np.ones(4, np.float32))
        sched.compute(graph)
        device.close()
        sched.compute(graph)  # the scheduler keeps the device open
    del sched, graph, a, ctx
    gc.collect()
    gc.collect()
    assert gone() is None


def test_exceptions_of_close_are_reported(monkeypatch):
    raised = []

    class Closing(gb.devices.Device):
        def close(self):
            raise RuntimeError("cannot close")

    gb.devices.register_device("CLOSING", Closing, replace=True)
    monkeypatch.setattr(sys, "unraisablehook", lambda args: raised.append(args.exc_value))
    gb.Backend("CLOSING").close()
    gc.collect()
    assert [str(e) for e in raised] == ["cannot close"]


def test_two_threads_with_a_device_each():
    def work(seed):
        rng = np.random.default_rng(seed)
        with gb.Context() as ctx, gb.Scheduler([gb.Backend("PYHOST"), gb.Backend("CPU", n_threads=1)]) as sched:
            y, values, expected = chain(ctx, rng, (33, 17))
            graph = ctx.graph(y)
            sched.allocate(graph)
            for t, v in values.items():
                t.set(v)
            for _ in range(50):
                sched.compute(graph)
                assert np.array_equal(y.numpy(), expected)

    run_threads(4, work)


def test_bytes_are_moved_while_a_method_computes():
    """Bytes can be copied while a method of the table runs, as docs/BACKENDS.md promises."""
    written = threading.Event()

    class Waits(Own):
        @gb.devices.op("add")
        def add(self, node, out, a, b):
            assert written.wait(60)
            np.add(a, b, out=out)

    gb.devices.register_device("WAITS", Waits, replace=True)
    device = gb.Backend("WAITS")
    with gb.Context() as ctx, gb.Context() as other:
        a, b = ctx.tensor((4,)), other.tensor((4,))
        y = a + a
        graph = ctx.graph(y)
        ctx.allocate(device)
        a.set(1)

        def move():
            other.allocate(device).clear(0)
            b.set(3)
            assert b.tolist() == [3] * 4
            written.set()

        thread = threading.Thread(target=move)
        thread.start()
        graph.compute(device)
        thread.join()
        assert y.tolist() == [2] * 4


def test_a_device_computes_in_one_thread_at_a_time():
    busy, overlaps = threading.Lock(), []

    def alone(method):
        @functools.wraps(method)
        def called(self, *arguments):
            free = busy.acquire(blocking=False)
            if not free:
                overlaps.append(method.__name__)
            try:
                time.sleep(0.001)
                return method(self, *arguments)
            finally:
                if free:
                    busy.release()

        return called

    class Alone(Own):
        supports = alone(Own.supports)
        array = alone(Own.array)

        compile = alone(Own.compile)

        @gb.devices.op("add")
        @alone
        def add(self, node, out, a, b):
            np.add(a, b, out=out)

    gb.devices.register_device("ALONE", Alone, replace=True)
    device, results = gb.Backend("ALONE"), []

    def work(k):
        for _ in range(5):
            with gb.Context() as ctx:
                a = ctx.tensor((4,))
                y = a + a
                graph = ctx.graph(y)
                ctx.allocate(device)
                a.set(k)
                graph.compute(device)
                results.append(y.tolist() == [2 * k] * 4)

    run_threads(4, work)
    assert results == [True] * 20 and not overlaps, overlaps


def test_everything_open_at_the_end_of_the_interpreter():
    program = """
import sys, threading, numpy as np, ggml_backend as gb
sys.path.insert(0, sys.argv[1])
import python_devices
scenes = []
for name in python_devices.NAMES:
    ctx = gb.Context(); a = ctx.tensor((64,)); graph = ctx.graph(gb.ops.sqr(a + a) * a)
    sched = gb.Scheduler([gb.Backend(name), gb.Backend("CPU")])
    sched.allocate(graph); a.set(np.ones(64, np.float32)); sched.compute(graph)
    scenes.append((ctx, a, graph, sched))
def forever():
    ctx, a, graph, sched = scenes[int(sys.argv[2])]
    while True:
        sched.compute(graph)
threading.Thread(target=forever, daemon=True).start()
import time; time.sleep(0.05)
"""
    for which in range(4):
        done = subprocess.run(
            [sys.executable, "-c", program, str(__import__("pathlib").Path(__file__).parent), str(which)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_the_first_of_several_failures_is_raised():
    """A call waits for two devices. Both fail, and C reports the first failure."""
    first, second = ZeroDivisionError("one"), KeyError("two")
    keep_exception(first, "A: device one failed")
    keep_exception(second, "B: device two failed")
    assert take_exception("backend B: something else") is None
    assert take_exception("Pending: A: device one failed: more") is first
    assert take_exception("B: device two failed") is None  # it was attached to the first
