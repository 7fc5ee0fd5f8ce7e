"""Tensors: shapes, data, indexing and operators, against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ggml_backend as gb


def evaluate(cpu, ctx, *outputs):
    """Computes tensors from inputs with data, and returns copies of the results."""
    graph = ctx.graph(*outputs)
    with gb.Scheduler([cpu]) as scheduler:
        assert scheduler.compute(graph)
        arrays = [t.numpy(copy=True) for t in outputs]
    return arrays[0] if len(arrays) == 1 else arrays


# ---------------------------------------------------------------------------------------------------------- description


def test_shape_order(ctx):
    t = ctx.tensor((2, 3, 4), gb.float16, name="t")
    assert (t.shape, t.ndim, t.size, t.nbytes) == ((2, 3, 4), 3, 24, 48)
    assert t.ne == (4, 3, 2, 1)
    assert t.nb == (2, 8, 24, 48)
    assert t.strides == (24, 8, 2)
    assert (t.dtype, t.name, t.op) == (gb.float16, "t", "NONE")
    assert not t.is_placed
    assert t.context is ctx
    assert repr(t) == "<Tensor 't' float16 (2, 3, 4)>"


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5), (1, 1, 1), (3, 1, 1, 2), (0, 3), (2, 0)])
def test_shapes_keep_axes_of_size_1(ctx, shape):
    t = ctx.tensor(shape)
    assert t.shape == shape
    assert gb.ops.relu(t).shape == shape
    assert ctx.tensors()[0].shape == shape  # another handle of the same tensor
    assert t.size == int(np.prod(shape))


def test_bad_shapes_are_refused(ctx):
    for shape in [(1, 2, 3, 4, 5), (-1,), (2**40, 2**40), (2**63,)]:
        with pytest.raises(gb.errors.InvalidArgumentError):
            ctx.tensor(shape)
    with pytest.raises(TypeError):
        ctx.tensor((1.5,))
    with pytest.raises(gb.errors.InvalidArgumentError):
        ctx.tensor((33,), gb.dtypes.q4_0)


def test_names(ctx):
    t = ctx.tensor(3)
    t.name = "größe"
    assert t.name == "größe"
    assert ctx.get("größe") == t
    assert ctx["größe"] == t
    assert ctx.get("nothing") is None
    with pytest.raises(KeyError):
        ctx["nothing"]
    assert t.named("x" * 100) is t
    assert t.name == "x" * 63


def test_identity(ctx):
    a, b = ctx.tensor(3), ctx.tensor(3)
    assert a == a
    assert a != b
    assert len({a, b, ctx.tensors()[0]}) == 2
    with pytest.raises(TypeError, match="truth"):
        bool(a)
    assert a in [a, b]


# ----------------------------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("name", ["float32", "float16", "float64", "int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("device", ["CPU", "SIM"])
def test_data_round_trip(ctx, name, device, rng):
    dtype = getattr(gb.dtypes, name)
    t = ctx.tensor((3, 4, 5), dtype)
    ctx.allocate(gb.Backend(device))
    data = (rng.standard_normal((3, 4, 5)) * 50).astype(name)
    assert t.set(data) is t
    np.testing.assert_array_equal(t.numpy(), data)
    assert t.numpy().dtype == np.dtype(name)
    assert t.is_host == (device == "CPU")
    t.set(0)
    assert not t.numpy().any()


def test_host_data_is_a_view_and_device_data_a_copy(ctx, cpu, sim):
    other = gb.Context()
    t, u = ctx.tensor(4), other.tensor(4)
    ctx.allocate(cpu)
    other.allocate(sim)
    t.set([1, 2, 3, 4])
    u.set([1, 2, 3, 4])
    t.numpy()[0] = 9
    assert t.tolist() == [9, 2, 3, 4]
    u.numpy()[0] = 9
    assert u.tolist() == [1, 2, 3, 4]
    copy = t.numpy(copy=True)
    copy[0] = 0
    assert t.numpy()[0] == 9
    with pytest.raises(gb.errors.StateError, match="copy"):
        u.numpy(copy=False)


@pytest.mark.parametrize(
    ("dtype", "most", "over"),
    [("float16", 65504.0, 65520.0), ("bfloat16", 3.3895e38, 3.4e38), ("float32", 3.4028e38, 3.41e38)],
)
def test_set_and_constant_refuse_overflow(ctx, cpu, dtype, most, over):
    t = ctx.tensor((2,), dtype, name="t")
    ctx.allocate(cpu)
    for sign in (1, -1):
        for value in (sign * over, [0.0, sign * over]):
            with pytest.raises(gb.errors.InvalidArgumentError, match=rf"'t' {dtype}.*too large for {dtype}"):
                t.set(value)
            with pytest.raises(gb.errors.InvalidArgumentError, match=f"too large for {dtype}"):
                ctx.constant(value, dtype)
        assert np.isfinite(t.set(sign * most).numpy(np.float32)).all()
        assert np.isinf(t.set([0.0, sign * float("inf")]).numpy(np.float32)[1])
    assert np.isnan(t.set(float("nan")).numpy(np.float32)).all()
    with pytest.raises(gb.errors.InvalidArgumentError, match="does not fit into float32"):
        ctx.constant([1.0, 1e300])
    assert ctx.constant(1e300, "float64").dtype == gb.dtypes.float64


def test_set_takes_lists_and_numbers(ctx, cpu):
    t, i = ctx.tensor((2, 2), name="t"), ctx.tensor(3, gb.int32)
    ctx.allocate(cpu)
    t.set([[1, 2], [3, 4.5]])
    assert t.tolist() == [[1, 2], [3, 4.5]]
    t.set(7)
    assert t.tolist() == [[7, 7], [7, 7]]
    t.set(...)
    assert t.tolist() == [[0, 0], [0, 0]]
    i.set([1, 2, 3])
    assert i.tolist() == [1, 2, 3]
    t.set(np.float32(3))
    assert t.numpy()[1, 1] == 3


@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 2)), np.zeros((2, 2), np.int32), np.zeros((2, 3), np.float32), np.zeros((4,), np.float32),
     [[1, 2, 3]], "text", [["a"]],
     np.zeros((2, 2), ">f4"), [1, 2, 3, 4], np.zeros((1, 2, 2), np.float32), None, 1 + 2j],
)  # fmt: skip
def test_set_refuses_wrong_shapes_and_dtypes(ctx, cpu, value):
    t = ctx.tensor((2, 2), name="weight")
    ctx.allocate(cpu)
    t.set([[1, 2], [3, 4]])
    with pytest.raises(gb.errors.InvalidArgumentError, match="weight"):
        t.set(value)
    assert t.tolist() == [[1, 2], [3, 4]]


def test_set_names_the_conversion(ctx, cpu):
    t = ctx.tensor(3, name="t")
    ctx.allocate(cpu)
    with pytest.raises(ValueError, match=r"float64.*astype\(np.float32\)"):
        t.set(np.zeros(3))


def test_integers_are_not_truncated(ctx, cpu):
    t = ctx.tensor(2, gb.dtypes.int8)
    ctx.allocate(cpu)
    for value in ([1.5, 2], [300, 1], 1.5):
        with pytest.raises(gb.errors.InvalidArgumentError):
            t.set(value)


@pytest.mark.parametrize("device", ["CPU", "SIM"])
def test_set_with_an_offset(ctx, device):
    t = ctx.tensor((3, 4))
    ctx.allocate(gb.Backend(device))
    t.set(np.arange(12, dtype=np.float32).reshape(3, 4))
    t.set(np.full(5, -1, np.float32), offset=2)
    expected = np.arange(12.0)
    expected[2:7] = -1
    np.testing.assert_array_equal(t.numpy().ravel(), expected)
    for offset in (-1, 8, 100):
        with pytest.raises(gb.errors.InvalidArgumentError):
            t.set(np.zeros(5, np.float32), offset=offset)
    with pytest.raises(gb.errors.InvalidArgumentError):
        t.T.set(np.zeros(2, np.float32), offset=0)


@pytest.mark.parametrize("device", ["CPU", "SIM"])
def test_strided_tensors_are_read_and_written(ctx, device, rng):
    t = ctx.tensor((4, 5, 6))
    ctx.allocate(gb.Backend(device))
    data = rng.standard_normal((4, 5, 6)).astype(np.float32)
    t.set(data)
    part = t[1:3, ::2, 1:4]
    np.testing.assert_array_equal(part.numpy(), data[1:3, ::2, 1:4])
    new = rng.standard_normal(part.shape).astype(np.float32)
    part.set(new)
    data[1:3, ::2, 1:4] = new
    np.testing.assert_array_equal(t.numpy(), data)
    turned = t.transpose(2, 0, 1)
    np.testing.assert_array_equal(turned.numpy(), data.transpose(2, 0, 1))
    turned.set(np.ascontiguousarray(data.transpose(2, 0, 1)) + 1)
    np.testing.assert_array_equal(t.numpy(), data + 1)


def test_non_contiguous_arrays_are_taken(ctx, cpu, rng):
    t = ctx.tensor((3, 4))
    ctx.allocate(cpu)
    data = rng.standard_normal((8, 6)).astype(np.float32)
    for a in (data[::3, 1:5], data.T[::2, ::2][:3, :4], np.asfortranarray(data[:3, :4]), data[::-3, :4]):
        t.set(a)
        np.testing.assert_array_equal(t.numpy(), a)


def test_bfloat16(ctx, cpu):
    t = ctx.tensor(4, gb.bfloat16)
    ctx.allocate(cpu)
    t.set([1.0, -2.5, 3.00390625, 1e30])
    bits = t.numpy()
    assert bits.dtype == np.uint16
    assert list(bits[:3]) == [0x3F80, 0xC020, 0x4040]  # 3.0039.. is a tie, rounded to even
    np.testing.assert_allclose(t.numpy(np.float32), [1, -2.5, 3, 1e30], rtol=4e-3)
    t.set(np.array([0x3F80] * 4, np.uint16))
    assert t.tolist() == [1, 1, 1, 1]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    t.set(np.array([1, 2, 3, 4], ml_dtypes.bfloat16))
    assert t.tolist() == [1, 2, 3, 4]
    assert t.numpy(ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16
    with pytest.raises(gb.errors.InvalidArgumentError):
        t.set(np.zeros(4, np.float32))


def test_quantized_tensors_are_bytes(ctx, cpu, rng):
    t = ctx.tensor((3, 64), gb.dtypes.q8_0)
    ctx.allocate(cpu)
    assert t.shape == (3, 64)
    assert t.nbytes == 3 * 2 * 34
    rows = rng.integers(0, 256, (3, 68), np.uint8)
    t.set(rows)
    np.testing.assert_array_equal(t.numpy(), rows)
    for wrong in (np.zeros((3, 64), np.float32), np.zeros((3, 64), np.uint8), [1.0]):
        with pytest.raises(gb.errors.InvalidArgumentError):
            t.set(wrong)
    with pytest.raises(gb.GgmlError):
        t.numpy(np.float32)


def test_without_memory(ctx):
    t = ctx.tensor(3, name="lonely")
    for act in (t.numpy, lambda: t.set([1, 2, 3]), t.tolist, lambda: np.asarray(t), lambda: t.is_host):
        with pytest.raises(gb.errors.StateError, match="lonely"):
            act()
    assert t.buffer is None
    assert t.location == ""


def test_memory_of_the_context_itself():
    with gb.Context(allocate=True) as ctx:
        t = ctx.tensor((2, 3))
        t.set(np.arange(6, dtype=np.float32).reshape(2, 3))
        view = t.numpy()
        t.T.set(np.ones((3, 2), np.float32))
        assert view.sum() == 6
        assert t.buffer is None
    assert view.sum() == 6  # the array keeps the context


def test_numpy_interop(ctx, cpu, rng):
    t = ctx.tensor((2, 3))
    ctx.allocate(cpu)
    data = rng.standard_normal((2, 3)).astype(np.float32)
    t.set(data)
    np.testing.assert_array_equal(np.asarray(t), data)
    np.testing.assert_array_equal(np.array(t, np.float64), data.astype(np.float64))
    assert np.shares_memory(np.asarray(t), t.numpy())
    assert not np.shares_memory(np.array(t, copy=True), t.numpy())
    np.testing.assert_array_equal(np.from_dlpack(t), data)
    assert t.__dlpack_device__() == (1, 0)
    assert np.mean(t) == np.mean(data)
    assert ctx.tensor(()).shape == ()


def test_dlpack_of_device_memory_is_a_buffer_error(ctx, sim):
    t = ctx.tensor(3)
    ctx.allocate(sim)
    t.set(0.0)
    with pytest.raises(BufferError):
        np.from_dlpack(t)
    assert np.asarray(t).shape == (3,)


def test_item(ctx, cpu):
    t = ctx.tensor(())
    u = ctx.tensor(3)
    ctx.allocate(cpu)
    t.set(2.5)
    assert t.item() == 2.5
    assert isinstance(t.item(), float)
    with pytest.raises(gb.errors.InvalidArgumentError):
        u.item()


def test_copy_from(ctx, cpu, sim, rng):
    a, b = ctx.tensor((2, 3), name="a"), ctx.tensor((2, 3), name="b")
    wrong = ctx.tensor((3, 2), name="wrong")
    other = gb.Context()
    c = other.tensor((2, 3))
    ctx.allocate(cpu)
    other.allocate(sim)
    data = rng.standard_normal((2, 3)).astype(np.float32)
    a.set(data)
    b.copy_from(c.copy_from(a))
    np.testing.assert_array_equal(b.numpy(), data)
    with pytest.raises(gb.errors.InvalidArgumentError, match="wrong"):
        a.copy_from(wrong)


def test_from_numpy_shares_memory(ctx, cpu, rng):
    data = rng.standard_normal((3, 4)).astype(np.float32)
    t = ctx.from_numpy(data, name="x")
    assert np.shares_memory(t.numpy(), data)
    t.numpy()[0, 0] = 5
    assert data[0, 0] == 5
    np.testing.assert_array_equal(evaluate(cpu, ctx, t * 2.0), data * 2)
    with pytest.raises(gb.errors.InvalidArgumentError, match="contiguous"):
        ctx.from_numpy(data.T)
    with pytest.raises(gb.errors.InvalidArgumentError):
        ctx.from_numpy(np.zeros(3, np.complex64))


# -------------------------------------------------------------------------------------------------------- shapes, views


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3), (1, 2, 3, 4)])
def test_T_and_swapaxes(ctx, shape, cpu):
    t = ctx.tensor(shape)
    ctx.allocate(cpu)
    data = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    t.set(data)
    np.testing.assert_array_equal(t.T.numpy(), data.T)
    if len(shape) > 1:
        np.testing.assert_array_equal(t.swapaxes(0, -1).numpy(), data.swapaxes(0, -1))
    for bad in ([0] * (len(shape) + 1), list(range(1, len(shape) + 1)) or [0]):
        with pytest.raises(gb.errors.InvalidArgumentError):
            t.transpose(bad)
    with pytest.raises(gb.errors.InvalidArgumentError):
        t.swapaxes(0, 7)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_indexing(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    index = []
    for n in shape:
        start, stop = data.draw(st.integers(-n, n)), data.draw(st.integers(-n, n + 1))
        index.append(
            data.draw(
                st.sampled_from(
                    [slice(None), slice(start, stop), slice(start, stop, data.draw(st.integers(1, 3))), start % n]
                )
            )
        )
    with gb.Context() as ctx:
        t = ctx.from_numpy(array)
        try:
            view = t[tuple(index)]
        except gb.errors.InvalidArgumentError as error:
            assert "five dimensions" in str(error)
            return
        expected = array[tuple(index)]
        assert view.shape == expected.shape
        np.testing.assert_array_equal(evaluate(gb.Backend("CPU", n_threads=1), ctx, gb.ops.cont(view)), expected)


def test_rows_are_indexed_and_iterated(ctx):
    t = ctx.tensor((3, 4), name="t")
    with pytest.raises(gb.errors.InvalidArgumentError):
        ctx.tensor((2, 64), gb.dtypes.q4_0)[:, :32]
    assert ctx.tensor((2, 64), gb.dtypes.q4_0)[1].shape == (64,)
    assert len(t) == 3
    assert [row.shape for row in t] == [(4,)] * 3
    with pytest.raises(TypeError):
        len(ctx.tensor(()))


def test_views_share_memory(ctx, cpu):
    t = ctx.tensor((3, 4))
    ctx.allocate(cpu)
    t.set(0)
    t[1].set([1, 2, 3, 4])
    t[:, 1:3][2].set([8, 9])
    assert t.tolist() == [[0, 0, 0, 0], [1, 2, 3, 4], [0, 8, 9, 0]]
    assert t[1].view_of == t


# ------------------------------------------------------------------------------------------------------------ operators


def test_operators_refuse_shapes_that_numpy_refuses(ctx):
    a, b = ctx.tensor((3, 4), name="a"), ctx.tensor((2, 4), name="b")
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"'a' float32 \(3, 4\).*'b' float32 \(2, 4\)"):
        a + b
    with pytest.raises(gb.errors.InvalidArgumentError):  # ggml would repeat b, NumPy does not
        ctx.tensor((4, 4)) + ctx.tensor((2, 4))
    assert gb.ops.add(ctx.tensor((4, 4)), ctx.tensor((2, 4))).shape == (4, 4)


@pytest.mark.parametrize("devices", [["CPU"], ["SIM", "CPU"], ["SIM"]], ids=str)
def test_numbers_and_arrays_as_operands(ctx, rng, devices):
    x = ctx.tensor((3, 4), name="x")
    array = rng.random(4).astype(np.float32)
    formulas = ["x + 1.5", "1.5 + x", "x - 2", "2 - x", "x * 3", "3.0 * x", "x / 4", "1 / x", "-x", "+x",
     "abs(x - 0.5)", "x ** 2", "x ** 0.5",
                "x + v", "v - x", "v * x", "x / v", "x + [1, 2, 3, 4]", "x * np.float32(2)"]  # fmt: skip
    results = [eval(f, {"x": x, "v": array, "np": np}) for f in formulas]
    graph = ctx.graph(*results)
    scheduler = gb.Scheduler([gb.Backend(d) for d in devices])
    scheduler.allocate(graph)
    data = (rng.random((3, 4)) + 0.1).astype(np.float32)
    x.set(data)
    for _ in range(2):  # constants survive a run
        scheduler.compute(graph)
        for formula, result in zip(formulas, results, strict=True):
            expected = eval(formula, {"x": data, "v": array, "np": np})
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6, err_msg=formula)


def test_operators_refuse_other_things(ctx):
    x = ctx.tensor(3)
    for wrong in ("a", None, object(), True):
        with pytest.raises(TypeError):
            x + wrong
    with pytest.raises(TypeError):
        x**3
    with pytest.raises(gb.errors.InvalidArgumentError):
        x + np.zeros(3, np.complex64)
    with pytest.raises(gb.errors.InvalidArgumentError):
        np.zeros(4, np.float32) + x


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (5, 4)), ((3,), (4,)), ((2, 3, 4), (3, 4, 5)), ((), (3,)), ((5,), (4, 5)), ((2, 5), (2,))],
)
def test_matmul_refuses(ctx, a, b):
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"^a @ b: "):
        ctx.tensor(a) @ ctx.tensor(b)


def test_errors_of_products_use_the_order_of_the_caller(ctx):
    with pytest.raises(
        gb.errors.InvalidArgumentError,
        match=(
            r"^a @ b: a 'x' float32 \(16, 128\), b 'v \(transposed\)' float32 \(100, 64\): the last axis of a \(128\)"
        ),
    ):
        ctx.tensor((16, 128), name="x") @ ctx.tensor((64, 100), name="v").T


def test_repeated_w_T_makes_one_transposed_view(ctx):
    w, x = ctx.tensor((8, 8)), ctx.tensor((2, 8))
    n = len(ctx.tensors())
    for _ in range(10):
        x @ w.T
    assert len(ctx.tensors()) == n + 1 + 10


def test_transposed_products_copy_nothing(ctx):
    q, k = ctx.tensor((2, 7, 3, 4)), ctx.tensor((2, 7, 3, 4))
    scores = q.transpose(0, 2, 1, 3) @ k.transpose(0, 2, 1, 3).transpose(0, 1, 3, 2)
    assert "CONT" not in [t.op for t in ctx.graph(scores).nodes]
    assert scores.shape == (2, 3, 7, 7)


def test_astype(ctx, cpu, rng):
    data = rng.standard_normal((3, 4)).astype(np.float32)
    t = ctx.from_numpy(data)
    assert t.astype(gb.float32) is t
    half = t.astype("f16")
    assert half.dtype == gb.float16
    np.testing.assert_array_equal(evaluate(cpu, ctx, half), data.astype(np.float16))


def test_results_keep_the_closed_context_of_their_weights(cpu, rng):
    weights, run = gb.Context(usage="weights"), gb.Context()
    w = weights.from_numpy(rng.standard_normal((4, 4)).astype(np.float32))
    x = run.tensor((2, 4))
    y = gb.ops.mul_mat(w, x)
    assert y.context is run
    weights.close()  # the other context keeps its sources
    graph = run.graph(y)
    scheduler = gb.Scheduler([cpu])
    scheduler.allocate(graph)
    x.set(1)
    assert scheduler.compute(graph)
    with pytest.raises(gb.errors.StateError):
        w.numpy()
    assert [t.shape for t in graph.leafs] == [(4, 4), (2, 4)]


def test_constants(ctx, cpu):
    c = ctx.constant([[1, 2], [3, 4]], name="c")
    assert (c.dtype, c.shape) == (gb.int32, (2, 2))
    h = ctx.constant([1.5], gb.float16)
    assert h.dtype == gb.float16
    with pytest.raises(gb.errors.StateError):
        c.numpy()
    ctx.allocate(cpu)
    assert c.tolist() == [[1, 2], [3, 4]]
    assert h.item() == 1.5


# --------------------------------------------------------------------------------------- views as methods and functions

_BOUNDS = st.one_of(
    st.none(), st.integers(-6, 6), st.integers(-3, 3).map(np.int64), st.sampled_from([-(2**70), 2**63, 2**70])
)


@settings(max_examples=200, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    index=st.lists(st.builds(slice, _BOUNDS, _BOUNDS), min_size=1, max_size=4).map(tuple),
)
def test_slices_are_those_of_numpy(shape, index):
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with gb.Context(allocate=True) as ctx:
        t = ctx.tensor(shape).set(data)
        if len(index) > len(shape):
            with pytest.raises(gb.errors.InvalidArgumentError, match="too many indices"):
                t[index]
            return
        view = t[index]
        assert view.shape == data[index].shape
        np.testing.assert_array_equal(view.numpy(), data[index])


@pytest.mark.parametrize("order", [o for n in (2, 3, 4) for o in itertools.permutations(range(n))])
def test_transpositions_are_those_of_numpy(order):
    shape = (2, 3, 4, 5)[: len(order)]
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with gb.Context(allocate=True) as ctx:
        t = ctx.tensor(shape).set(data)
        for axes in (order, [np.int64(a) for a in order], [a - len(order) for a in order]):
            np.testing.assert_array_equal(t.transpose(*axes).numpy(), data.transpose(order))
            np.testing.assert_array_equal(t.permute(tuple(axes)).numpy(), data.transpose(order))


def test_errors_of_wrong_views_name_the_fault(ctx):
    t = ctx.tensor((2, 3, 4), name="t")
    for axes in [(0, 1), (0, 1, 1), (0, 1, 3), (0, 1, 2, 3), (0, -1, 2)]:
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"transpose: .* is no order of the 3 axes of 't'"):
            t.transpose(*axes)
    for shape in [(5, 5), (-1, -1), (2, 3, 5), (7, -1), (0, -1), (2**40, 2**40), (24, 0), (1, 1, 1, 1, 24)]:
        with pytest.raises(gb.errors.InvalidArgumentError, match="reshape"):
            t.reshape(*shape)
    for wrong in [(1.5, 2, 3), (0.0, 1, 2), ("0", 1, 2)]:
        with pytest.raises(TypeError):
            t.transpose(*wrong)
        with pytest.raises(TypeError):
            t.reshape(*wrong)
        with pytest.raises(TypeError):
            t[wrong[0] : 2]
    view = t.transpose(2, 1, 0)
    assert view.reshape(4, 6).op == "CONT"  # not contiguous: a copy
    ctx.close()
    for use in (
        lambda: t.transpose(2, 1, 0),
        lambda: t.reshape(24),
        lambda: t[:1],
        lambda: t + t,
        lambda: gb.ops.relu(t),
        lambda: gb.ops.mul_mat(t, t),
    ):
        with pytest.raises(gb.errors.StateError, match="closed"):
            use()


def test_numbers_of_dimensions_follow_the_sources(ctx):
    row, wide = ctx.tensor((1, 1, 4)), ctx.tensor(4)
    assert (row + wide).shape == (wide + row).shape == (1, 1, 4)
    assert gb.ops.add(row, wide).shape == gb.ops.add(wide, row).shape == (1, 1, 4)
    assert gb.ops.soft_max(row, ctx.tensor((1, 4)), 0.5).shape == (1, 1, 4)
    assert gb.ops.cast(row, gb.float16).shape == (1, 1, 4)
    assert gb.ops.cpy(row, ctx.tensor((2, 2))).shape == (2, 2)
    w, ids = ctx.tensor((3, 4)), ctx.tensor((1,), gb.int32)
    assert gb.ops.mul_mat(w, wide).shape == (3,)
    assert gb.ops.mul_mat(w, ctx.tensor((1, 4))).shape == (1, 3)
    assert gb.ops.mul_mat(wide, row).shape == (1, 1, 1)
    assert gb.ops.get_rows(w, ids).shape == (1, 4)
    column, both = ctx.tensor((5, 1)), ctx.tensor((5, 4))
    for a, b in [(column, wide), (wide, column), (column, both), (both, wide), (wide, both)]:
        for result in (a + b, a - b, a * b, a / b):
            assert result.shape == (5, 4)


@pytest.mark.parametrize("like", [(3, 4), "tensor"])
def test_repeat_back_to_fewer_axes_leaves_its_argument_alone(like):
    """With one tile ggml returns the argument itself, which keeps its number of axes."""
    with gb.Context() as ctx:
        x = ctx.tensor((1, 3, 4))
        y = gb.ops.repeat_back(x, ctx.tensor((3, 4)) if like == "tensor" else like)
        assert x.shape == (1, 3, 4) and y.shape == (3, 4)
        ctx.allocate(gb.Backend("CPU"))
        x.set(np.arange(12, dtype=np.float32).reshape(1, 3, 4))
        ctx.graph(y).compute(gb.Backend("CPU"))
        np.testing.assert_array_equal(y.numpy(), np.arange(12, dtype=np.float32).reshape(3, 4))


@pytest.mark.parametrize(
    ("shape", "other", "both"),
    [((2**62, 0), (1,), (2**62, 0)), ((2**40, 1, 0), (3, 1), (2**40, 3, 0)), ((0, 1), (1, 5), (0, 5))],
)
def test_huge_empty_tensors_broadcast(shape, other, both):
    """NumPy refuses some of these shapes."""
    with gb.Context() as ctx:
        for node in (ctx.tensor(shape) * ctx.tensor(other), ctx.tensor(other) - ctx.tensor(shape)):
            assert node.shape == both and node.size == 0
