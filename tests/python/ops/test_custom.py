"""``gb.ops.custom``: a Python function computes any results from any sources. NumPy is the reference."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.tensor._blocks import as_blocks
from ggml_backend.tensor._callbacks import CustomOp

DEVICES = [["CPU"], ["SIM", "CPU"]]
f32 = np.float32


def scheduler(names):
    return gb.Scheduler([gb.Backend(n) for n in names])


def run(names, ctx, *nodes):
    s = scheduler(names)
    assert s.compute(ctx.graph(*nodes))
    return s


@pytest.fixture
def x(ctx, rng):
    return ctx.constant(rng.random((3, 4)).astype(f32)).named("x")


# ---------------------------------------------------------------------------------------------------- shapes and dtypes

SHAPES = [(), (1,), (7,), (5, 3), (2, 1, 3), (2, 3, 4, 5), (0,), (2, 0, 3)]
DTYPES = ["float32", "float16", "float64", "int8", "int16", "int32", "int64"]


@pytest.mark.parametrize("devices", DEVICES, ids="-".join)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_result_has_any_shape_and_dtype(ctx, x, devices, dtype):
    """Results are larger or smaller than the sources, returned or written in place, and read by the
    CPU or another device."""
    values = {s: np.arange(np.prod(s, dtype=int)).reshape(s).astype(dtype) for s in SHAPES}
    seen = []

    def fill(out, a, *, shape):
        seen.append((a.shape, a.dtype, a.flags.writeable, out.shape, out.dtype, out.flags.writeable))
        if shape and shape[0] % 2:
            return values[shape]
        out[...] = values[shape]
        return None

    nodes = [gb.ops.custom(lambda o, a, s=s: fill(o, a, shape=s), x, shape=s, dtype=dtype) for s in SHAPES]
    readers = [gb.ops.scale(n, 2.0) for n in nodes if dtype == "float32"]
    kept = run(devices, ctx, *nodes, *readers)
    for node, shape in zip(nodes, SHAPES, strict=True):
        assert (node.op, node.shape, node.dtype) == ("CUSTOM", shape, gb.dtypes.dtypes[dtype])
        np.testing.assert_array_equal(node.numpy(), values[shape])
    for reader, shape in zip(readers, SHAPES, strict=False):
        np.testing.assert_array_equal(reader.numpy(), 2 * values[shape])
    assert sorted(map(str, seen)) == sorted(
        str(((3, 4), np.dtype(f32), False, s, np.dtype(dtype), True)) for s in SHAPES
    )
    del kept


def test_shape_and_dtype_are_those_of_the_first_source_by_default(ctx):
    a, b = ctx.tensor((3, 5), "f16"), ctx.tensor((2, 2), "i32")
    for node, shape, dtype in [
        (gb.ops.custom(print, a, b), (3, 5), "f16"),
        (gb.ops.custom(print, b, a, shape=7), (7,), "i32"),
        (gb.ops.custom(print, a, dtype="f64"), (3, 5), "f64"),
        (gb.ops.custom(print, a, dtype=np.int64, shape=[2]), (2,), "i64"),
        (gb.ops.custom(print, shape=(), context=ctx), (), "f32"),
    ]:
        assert (node.shape, node.dtype) == (shape, gb.dtypes.as_dtype(dtype))
    for nodes, wanted in [
        (gb.ops.custom(print, a, shape=[(2,), None, (3, 4)]), [((2,), "f16"), ((3, 5), "f16"), ((3, 4), "f16")]),
        (gb.ops.custom(print, a, shape=(2, 3), dtype=["f32", None]), [((2, 3), "f32"), ((2, 3), "f16")]),
        (gb.ops.custom(print, a, shape=((2,), ()), dtype=("i8", "f64")), [((2,), "i8"), ((), "f64")]),
        (gb.ops.custom(print, a, dtype=["f32"]), [((3, 5), "f32")]),
        (gb.ops.custom(print, a, shape=[(2,), 5]), [((2,), "f16"), ((5,), "f16")]),
    ]:
        assert isinstance(nodes, tuple)
        assert [(n.shape, n.dtype) for n in nodes] == [(s, gb.dtypes.as_dtype(d)) for s, d in wanted]


@pytest.mark.parametrize("n", range(11))
@pytest.mark.parametrize("devices", DEVICES, ids="-".join)
def test_zero_to_ten_sources(ctx, devices, n):
    kinds = [("f32", (2, 3)), ("i32", (4,)), ("f16", (1, 2, 2)), ("i8", ()), ("f64", (3,))]
    arrays = [np.full(s, i + 1, gb.dtypes.as_dtype(d).numpy) for i, (d, s) in zip(range(n), itertools.cycle(kinds))]
    sources = [ctx.constant(a, a.dtype) for a in arrays]
    y = gb.ops.custom(lambda out, *s: sum(float(v.sum()) for v in s), *sources, shape=(), dtype="f64", context=ctx)
    kept = run(devices, ctx, y)
    assert y.numpy() == sum(float(a.sum()) for a in arrays)
    assert y.sources == sources
    del kept


def test_returned_arrays_can_have_any_layout(ctx, x):
    y = gb.ops.custom(lambda out, v: v.T, x, shape=(4, 3))
    z = gb.ops.custom(lambda out, v: v[::-1, ::-1], x.swapaxes(0, 1), shape=(4, 3), dtype="f64")
    q = gb.ops.custom(
        lambda out, v: out[::-1] if out.__setitem__(..., v) is None else None, x
    )  # overlaps its own source
    kept = run(["CPU"], ctx, y, z, q, x + 0.0)
    a = x.numpy()
    np.testing.assert_array_equal(y.numpy(), a.T)
    np.testing.assert_array_equal(z.numpy(), a.T[::-1, ::-1])
    np.testing.assert_array_equal(q.numpy(), a[::-1])
    del kept


def test_nan_and_infinity_pass(ctx):
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1.0], f32)
    nodes = [gb.ops.custom(lambda out: values, shape=5, dtype=d, context=ctx) for d in ("f32", "f16", "f64", "bf16")]
    kept = run(["SIM", "CPU"], ctx, *nodes)
    for n in nodes:
        np.testing.assert_array_equal(n.numpy(f32), values)
        assert np.signbit(n.numpy(f32)[3])
    del kept


# ------------------------------------------------------------------------------------------------------ several results


@pytest.mark.parametrize("devices", DEVICES, ids="-".join)
@pytest.mark.parametrize("how", ["returned", "in place", "mixed"])
def test_several_results_that_different_nodes_read(ctx, rng, devices, how):
    values = rng.standard_normal((5, 33)).astype(f32)
    x = ctx.constant(values)
    calls = []

    def top(out, a):
        calls.append([o.shape for o in out])
        want = (a.max(1), a.argmax(1), np.sort(a, 1))
        if how == "returned":
            return want
        for o, w in zip(out, want, strict=True):
            o[...] = w
        return None if how == "in place" else [None, want[1], out[2]]

    most, where, ordered = gb.ops.custom(top, x, shape=[5, 5, (5, 33)], dtype=["f32", "i32", "f64"])
    picked = gb.ops.get_rows(x.T.contiguous(), where)  # `where` is read as indices
    scaled = gb.ops.relu(most) * 2.0
    kept = run(devices, ctx, scaled, picked, ordered, where)
    np.testing.assert_array_equal(scaled.numpy(), np.maximum(values.max(1), 0) * 2)
    np.testing.assert_array_equal(picked.numpy(), values.T[values.argmax(1)])
    np.testing.assert_array_equal(ordered.numpy(), np.sort(values, 1).astype(np.float64))
    np.testing.assert_array_equal(where.numpy(), values.argmax(1))
    assert calls == [[(5,), (5,), (5, 33)]]  # one call, although three results are read
    assert most.view_of == where.view_of == ordered.view_of
    assert most.view_of.op == "CUSTOM"
    del kept


@pytest.mark.parametrize("check", [False, True], ids=["", "checked"])
@pytest.mark.parametrize("devices", DEVICES, ids="-".join)
def test_live_results_do_not_overlap(ctx, rng, devices, check):
    """Later nodes need memory before each result is read. No two live results may overlap."""
    values = rng.standard_normal((16, 16)).astype(f32)
    x = ctx.tensor((16, 16))
    outs = gb.ops.custom(lambda out, a: tuple(a * (i + 1) for i in range(6)), x, shape=[(16, 16)] * 6)
    y, want = x, values
    for i in (3, 0, 5, 1, 4, 2):
        for _ in range(3):
            y, want = gb.ops.relu(y) - 0.25, np.maximum(want, 0) - f32(0.25)
        y, want = y + outs[i], want + values * f32(i + 1)
    graph = ctx.graph(y)
    s = gb.Scheduler([gb.Backend(n) for n in devices], check=check)
    s.allocate(graph)
    for _ in range(2):
        x.set(values)
        assert s.compute(graph)
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_of_custom_functions(seed):
    """Graphs of custom and other operations over two devices equal NumPy, in reused memory."""
    chooser = np.random.default_rng(seed)
    ctx = gb.Context()
    x = ctx.tensor((6, 32), name="x")
    values = chooser.integers(-9, 9, (6, 32)).astype(f32)
    known = [(x, values)]

    def pick():
        return known[chooser.integers(len(known))]

    for _ in range(25):
        (a, va), (b, vb) = pick(), pick()
        kind = chooser.integers(5)
        if kind == 0:
            known.append((gb.ops.relu(a), np.maximum(va, 0)))
        elif kind == 1:
            known.append((a + b, va + vb))
        elif kind == 2:
            known.append((gb.ops.custom(lambda out, p, q: p - q, a, b), va - vb))
        elif kind == 3:
            n = int(chooser.integers(1, 4))
            outs = gb.ops.custom(lambda out, p: tuple(p + i for i in range(len(out))), a, dtype=[None] * n)
            known += [(t, va + f32(i)) for i, t in enumerate(outs)]
        else:

            def widths(out, p, q):
                out[1][...] = p
                return np.int8(1), None, np.minimum(p, q)

            outs = gb.ops.custom(widths, a, b, shape=[(), None, None], dtype=["i8", None, None])
            known += [(outs[1], va), (outs[2], np.minimum(va, vb))]
    picks = [known[i] for i in chooser.choice(len(known), 3)] + [known[-1]]
    graph = ctx.graph([t for t, _ in picks])
    ops = [["relu"], ["add"], ["relu", "add"], []][seed % 4]
    s = gb.Scheduler([gb.Backend("SIM", ops=ops), gb.Backend("CPU", n_threads=1 + seed % 3)], check=seed % 2 == 0)
    s.allocate(graph)
    for factor in (1, 2):
        x.set(values)
        if factor == 1:
            assert s.compute(graph)
        else:
            s.compute_async(graph)
            s.synchronize()
        for t, want in picks:
            np.testing.assert_array_equal(t.numpy(), want)


@pytest.mark.parametrize("dtype", ["q8_0", "q4_k", "f16", "bf16"])
def test_results_of_several_dtypes_are_aligned(ctx, rng, dtype):
    """Offsets are aligned for every dtype, regardless of the results before."""
    floats = rng.standard_normal((3, 256)).astype(f32)
    rows = gb.quantize(floats, dtype) if dtype != "f16" else floats.astype(np.float16)

    def make(out):
        return np.int8(7), rows if dtype != "bf16" else rows.view(np.uint16), np.full(3, 1.5)

    one, many, last = gb.ops.custom(make, shape=[(), (3, 256), (3,)], dtype=["i8", dtype, "f64"], context=ctx)
    product = gb.ops.custom(lambda out, w: gb.dequantize(w, None if dtype[0] == "q" else dtype), many, dtype="f32")
    kept = run(["SIM", "CPU"], ctx, one, many, last, product)
    assert one.numpy() == 7
    assert (last.numpy() == 1.5).all()
    np.testing.assert_array_equal(product.numpy(), gb.dequantize(rows, dtype))
    del kept


def test_a_graph_can_use_one_of_several_results(ctx):
    a, b = gb.ops.custom(lambda out: (np.ones(3), np.zeros(2)), shape=[(3,), (2,)], context=ctx)
    kept = run(["CPU"], ctx, b + 1.0)
    with pytest.raises(gb.errors.StateError):
        a.numpy()
    kept = run(["CPU"], ctx, a)
    assert a.tolist() == [1, 1, 1]
    del kept


# -------------------------------------------------------------------------------------------------- quantized, bfloat16


@pytest.mark.parametrize("devices", DEVICES, ids="-".join)
@pytest.mark.parametrize("dtype", ["q4_0", "q5_1", "q8_0", "q2_k", "q6_k", "iq4_nl", "tq2_0", "mxfp4", "nvfp4"])
def test_quantized_sources_are_blocks(ctx, rng, devices, dtype):
    element = gb.dtypes.dtypes[dtype]
    w = ctx.tensor((2, 3, 512), dtype, name="w")
    rows = gb.quantize(rng.standard_normal((2, 3, 512)).astype(f32), dtype)
    seen = []

    def widen(out, blocks):
        seen.append((type(blocks), blocks.format, blocks.shape, blocks.dtype, blocks.flags.writeable))
        part = gb.dequantize(blocks[1:, ::2])
        out[0][...] = gb.dequantize(blocks)
        return None, part, blocks[..., 0].astype(f32).sum()

    all_of_it, part, total = gb.ops.custom(widen, w, shape=[(2, 3, 512), (1, 2, 512), ()], dtype="f32")
    graph = ctx.graph(all_of_it, part, total)
    s = scheduler(devices)
    s.allocate(graph)
    w.set(rows)
    s.compute(graph)
    want = gb.dequantize(rows, dtype)
    np.testing.assert_array_equal(all_of_it.numpy(), want)
    np.testing.assert_array_equal(part.numpy(), want[1:, ::2])
    blocks = rows.reshape(2, 3, -1, element.itemsize)
    assert total.numpy() == blocks[..., 0].astype(np.float64).sum()
    assert seen == [(gb.tensor.Blocks, element, (2, 3, 512 // element.block_size, element.itemsize), np.uint8, False)]


def test_arrays_that_are_no_longer_blocks_have_no_format():
    blocks = as_blocks(np.arange(144, dtype=np.uint8).reshape(4, 36), gb.dtypes.q4_0)
    assert blocks.shape == (4, 2, 18)
    for still in (blocks, blocks[1], blocks[:, 1], blocks[2, 1], blocks[::2], blocks.copy()):
        assert still.format is gb.dtypes.q4_0
    for other in (blocks[..., :2], blocks[..., 0], blocks.astype(f32), blocks.view(np.uint16)):
        assert getattr(other, "format", None) is None
    assert type(blocks + 1) is np.ndarray
    assert type(blocks.sum()) is not gb.tensor.Blocks
    assert repr(blocks).startswith("Blocks([") and repr(blocks).endswith(f", dtype=uint8, format={blocks.format.name})")
    assert "format" not in repr(blocks + 1)
    with pytest.raises(TypeError, match="does not say which format"):
        gb.dequantize(blocks[..., :2])
    with pytest.raises(TypeError, match="does not say which format"):
        gb.dequantize(np.zeros(18, np.uint8))


@pytest.mark.parametrize("form", ["rows", "blocks", "in place"])
def test_a_quantized_result(ctx, rng, form):
    floats = rng.standard_normal((4, 64)).astype(f32)
    rows = gb.quantize(floats, "q8_0")

    def make(out, a):
        assert a.shape == (4, 64)
        assert out.shape == (4, 2, 34)
        if form == "in place":
            out[...] = rows.reshape(out.shape)
            return None
        return rows if form == "rows" else rows.reshape(out.shape)

    x = ctx.constant(rng.standard_normal((3, 64)).astype(f32))
    w = gb.ops.custom(make, ctx.constant(floats), dtype="q8_0")
    y = x @ w.T
    kept = run(["SIM", "CPU"], ctx, y, w)
    np.testing.assert_array_equal(w.numpy(), rows)
    want = x.numpy() @ gb.dequantize(rows, "q8_0").T
    np.testing.assert_allclose(y.numpy(), want, atol=0.05 * np.abs(want).max())
    del kept


def test_bfloat16_sources_are_bits_and_results_are_floats_or_bits(ctx, rng):
    floats = rng.standard_normal((3, 5)).astype(f32)
    x = gb.ops.cast(ctx.constant(floats), "bf16")
    seen = []
    y = gb.ops.custom(lambda out, a: seen.append(a.dtype) or a, x)
    z = gb.ops.custom(lambda out, a: floats.astype(np.float64) * 3, x)
    kept = run(["CPU"], ctx, x, y, z)
    assert seen == [np.uint16]
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    rounded = gb.dequantize(gb.quantize(floats * 3, "bf16"), "bf16")
    np.testing.assert_array_equal(z.numpy(f32), rounded)
    del kept


# ------------------------------------------------------------------------------------------------------- foreign arrays


class OnlyArray:
    shape = property(lambda self: self._a.shape)

    def __init__(self, a):
        self._a = a

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._a, dtype)


class OnlyDLPack:
    def __init__(self, a):
        self._a = a

    def __dlpack__(self, **options):
        return self._a.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._a.__dlpack_device__()


class Elsewhere(OnlyDLPack):
    def __dlpack__(self, **options):
        raise BufferError("it is in the memory of a device")


@pytest.mark.parametrize("kind", [OnlyArray, OnlyDLPack, np.ndarray.tolist, np.asfortranarray, memoryview])
def test_results_of_other_libraries(ctx, kind):
    values = np.arange(6, dtype=f32).reshape(2, 3)
    one = gb.ops.custom(lambda out: kind(values), shape=(2, 3), context=ctx)
    two, three = gb.ops.custom(lambda out: (kind(values), kind(values)), shape=[(2, 3)] * 2, dtype="f64", context=ctx)
    kept = run(["CPU"], ctx, one, two, three)
    for t in (one, two, three):
        np.testing.assert_array_equal(t.numpy(), values)
    del kept


# ------------------------------------------------------------------------------------------------------------- refusals

WRONG = [
    (lambda o, a: np.zeros((4, 4)), {}, "must have the shape (3, 4), not (4, 4)"),
    (lambda o, a: np.zeros(4), {}, "must have the shape (3, 4), not (4,); nothing is broadcast: out[...] = value"),
    (lambda o, a: 1.0, {}, "must have the shape (3, 4), not (); nothing is broadcast"),
    (lambda o, a: np.zeros((1, 3, 4)), {}, "must have the shape (3, 4), not (1, 3, 4)"),
    (lambda o, a: a, {"dtype": "i32"}, "must be int32, not float32; array.astype(np.int32) converts it"),
    (lambda o, a: a * 1j, {}, "must be float32, not complex64"),
    (lambda o, a: "text", {}, "cannot be this str"),
    (lambda o, a: {}, {}, "cannot be this dict"),
    (lambda o, a: [[1, 2], [3]], {}, "its lists have different lengths"),
    (lambda o, a: np.full((3, 4), "a"), {}, "must be float32, not <U1"),
    (lambda o, a: Elsewhere(a), {}, "it is in the memory of a device"),
    (lambda o, a: a, {"shape": (3, 32), "dtype": "q8_0"}, "must have the shape (3, 1, 34), not (3, 4)"),
    (lambda o, a: np.zeros((3, 32)), {"shape": (3, 32), "dtype": "q8_0"}, "quantize(value, 'q8_0') makes its blocks"),
    (lambda o, a: np.zeros((3, 34)), {"shape": (3, 32), "dtype": "q8_0"}, "must be blocks as uint8, not float64"),
    (lambda o, a: (a,), {"dtype": ["f32", "f32"]}, "must return a tuple of 2 results, or None, not 1 of them"),
    (lambda o, a: a, {"dtype": ["f32", "f32"]}, "must return a tuple of 2 results, or None, not numpy.ndarray"),
    (lambda o, a: (a, a[0]), {"dtype": ["f32", "f32"]}, "result 1 must have the shape (3, 4), not (4,)"),
    (lambda o, a: (a, a), {"dtype": ["f32", "i8"]}, "result 1 must be int8, not float32"),
    (lambda o, a, i, n: a, {"n_tasks": 2}, "with n_tasks other than 1 the function writes its share of out"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "options", "message"), WRONG, ids=[w[2][:50] for w in WRONG])
def test_wrong_results_are_an_error_with_the_node(ctx, x, function, options, message):
    made = gb.ops.custom(function, x, **options)
    nodes = made if isinstance(made, tuple) else (made,)
    for i, n in enumerate(nodes):
        n.name = f"y{i}"
    s = scheduler(["SIM", "CPU"])
    for _ in range(2):
        with pytest.raises(gb.errors.InvalidArgumentError) as caught:
            s.compute(ctx.graph(*nodes))
        assert str(caught.value).startswith("custom: ")
        assert message in str(caught.value)
        shown = ", ".join(f"'y{i}' {n.dtype.name} {n.shape}" for i, n in enumerate(nodes))
        of = "of 'x' float32 (3, 4)"
        assert caught.value.__notes__ == [f"raised in the function of custom that computes {shown} {of}"]


def test_an_exception_names_node_and_sources(ctx, x):
    y = gb.ops.custom(lambda out, a, b: 1 / 0, x, ctx.constant([1, 2, 3]), shape=2, dtype="i64").named("mine")
    with pytest.raises(ZeroDivisionError) as caught:
        scheduler(["CPU"]).compute(ctx.graph(y))
    note = "raised in the function of custom that computes 'mine' int64 (2,) of 'x' float32 (3, 4), "
    assert caught.value.__notes__[0].startswith(note)


def test_the_note_of_a_copied_graph_without_its_original(cpu):
    ctx = gb.Context()
    a, b = gb.ops.custom(lambda out: 1 / 0, shape=[(2,), (3,)], context=ctx)
    graph = ctx.graph(a.named("first"), b.named("second"))
    ctx.allocate(cpu)
    copy = graph.copy(cpu)
    ctx.close()
    del ctx, a, b, graph
    gc.collect()
    with pytest.raises(ZeroDivisionError) as caught:
        copy.compute(cpu)
    assert "float32 (2,)" in caught.value.__notes__[0]
    assert "float32 (3,)" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((3,), {}, TypeError, "custom: the first argument must be a function, not int"),
        ((print,), {}, gb.errors.InvalidArgumentError, "without sources the context must be given"),
        ((print,), {"context": 3}, TypeError, "context must be a Context, not int"),
        ((print, 3), {}, TypeError, "custom: sources[0] must be a Tensor, not int"),
        ((print, "x", None), {}, TypeError, "custom: sources[1] must be a Tensor, not NoneType"),
        ((print, *["x"] * 11), {}, gb.errors.InvalidArgumentError, "takes at most 10 tensors, not 11"),
        ((print, "x"), {"shape": (2,) * 5}, gb.errors.InvalidArgumentError, "has 5 axes, at most 4"),
        ((print, "x"), {"shape": (-1,)}, gb.errors.InvalidArgumentError, "has a negative size"),
        ((print, "x"), {"shape": "ab"}, TypeError, "custom: shape must be an int or a sequence of ints"),
        ((print, "x"), {"shape": 1.5}, TypeError, "custom: shape must be an int or a sequence of ints, not 1.5"),
        ((print, "x"), {"shape": (2**62, 4)}, gb.errors.InvalidArgumentError, "is too large"),
        ((print, "x"), {"shape": [(2**62,)] * 2}, gb.errors.InvalidArgumentError, "too large"),
        ((print, "x"), {"dtype": "q8_0"}, gb.errors.InvalidArgumentError, "custom: q8_0 stores rows in blocks of 32"),
        ((print, "x"), {"dtype": "q9"}, TypeError, "custom: dtype: there is no dtype 'q9'"),
        ((print, "x"), {"dtype": []}, gb.errors.InvalidArgumentError, "an empty list asks for no result"),
        (
            (print, "x"),
            {"shape": [(2,), (3,)], "dtype": ["f32"]},
            gb.errors.InvalidArgumentError,
            "shape has 2 entries and",
        ),
        ((print,), {"shape": None, "context": "ctx"}, gb.errors.InvalidArgumentError, "custom: needs a shape"),
        ((print, "x"), {"n_tasks": 0}, gb.errors.InvalidArgumentError, "n_tasks must be at least 1, or -1"),
        ((print, "x"), {"n_tasks": 2**40}, gb.errors.InvalidArgumentError, "n_tasks must be at least 1, or -1"),
        ((print, "x"), {"n_tasks": "a"}, TypeError, "custom: n_tasks must be an int, not str"),
    ],
)
def test_wrong_arguments(ctx, x, arguments, options, error, message):
    arguments = [x if isinstance(a, str) else a for a in arguments]
    options = {k: ctx if v == "ctx" else v for k, v in options.items()}
    before = len(ctx.tensors())
    with pytest.raises(error) as caught:
        gb.ops.custom(*arguments, **options)
    assert message in str(caught.value), str(caught.value)
    assert len(ctx.tensors()) == before


def test_a_transposed_quantized_source_is_refused(ctx):
    w = ctx.tensor((64, 64), "q8_0", name="w")
    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"sources\[0\] 'w \(transposed\)' q8_0 \(64, 64\) is transposed"
    ):
        gb.ops.custom(print, w.T)


def test_contexts(ctx, x):
    younger = gb.Context()
    y = gb.ops.custom(lambda out, a: a + 1, x, context=younger)
    assert y.context is younger
    with pytest.raises(gb.errors.InvalidArgumentError, match="cannot use each other's tensors"):
        gb.ops.custom(print, younger.tensor(3), context=ctx)
    kept = run(["CPU"], younger, y)
    np.testing.assert_array_equal(y.numpy(), x.numpy() + 1)
    younger.close()
    with pytest.raises(gb.errors.StateError):
        gb.ops.custom(print, shape=2, context=younger)
    with pytest.raises(gb.errors.StateError):
        gb.ops.custom(print, y)
    del kept


# ------------------------------------------------------------------------------------------------- threads, lifetimes


@pytest.mark.parametrize("n_tasks", [2, 3, -1])
def test_several_tasks(ctx, n_tasks):
    x = ctx.constant(np.arange(100, dtype=f32))
    parts = set()

    def share(out, a, ith, nth):
        parts.add((ith, nth))
        out[0][ith::nth] = a[ith::nth] + 1
        out[1][ith::nth] = a[ith::nth] * 2

    y, z = gb.ops.custom(share, x, shape=[(100,), (100,)], dtype=["f32", "i32"], n_tasks=n_tasks)

    s = gb.Scheduler([gb.Backend("CPU", n_threads=3)])
    s.compute(ctx.graph(y, z))
    nth = 3 if n_tasks < 0 else min(n_tasks, 3)
    assert parts == {(i, nth) for i in range(nth)}
    np.testing.assert_array_equal(y.numpy(), np.arange(100) + 1)
    np.testing.assert_array_equal(z.numpy(), np.arange(100) * 2)


@pytest.mark.parametrize("n_tasks", [1, -1])
@pytest.mark.parametrize("how", ["scheduler", "async", "graph"])
@pytest.mark.parametrize("form", ["map_custom", "custom"])
def test_a_function_that_raises_once(ctx, cpu, how, n_tasks, form):
    after, fail = [], [True]

    def bad(out, a, *task):
        if fail[0]:
            raise KeyError("the message")
        for part in out if isinstance(out, tuple) else (out,):
            part[...] = a

    x = ctx.from_numpy(np.ones(4, f32))
    if form == "custom":
        a, _ = gb.ops.custom(bad, x, dtype=["f32", "f64"], n_tasks=n_tasks)
        y = gb.ops.custom(lambda out, v: after.append(1) or v, a)
    else:
        y = gb.ops.map_custom(lambda out, v: after.append(1) or v, gb.ops.map_custom(bad, x, n_tasks=n_tasks))
    graph = ctx.graph(y)
    s = gb.Scheduler([cpu])
    if how == "graph":
        ctx.allocate(cpu)

    def compute():
        if how == "graph":
            return graph.compute(cpu)
        if how == "async":
            s.compute_async(graph)
            return s.synchronize()
        return s.compute(graph)

    for _ in range(2):
        with pytest.raises(KeyError, match="the message"):
            compute()
    assert after == []
    fail[0] = False
    assert compute() is True
    assert after == [1]
    assert y.tolist() == [1, 1, 1, 1]


FORMS = pytest.mark.parametrize("form", [gb.ops.map_custom, gb.ops.custom], ids=["map_custom", "custom"])


@FORMS
def test_keyboard_interrupt_passes_without_a_note(ctx, x, form):
    def interrupt(out, a):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        scheduler(["CPU"]).compute(ctx.graph(form(interrupt, x)))
    assert not getattr(caught.value, "__notes__", [])


@FORMS
def test_the_function_lives_as_long_as_the_context(cpu, form):
    class Function:
        def __call__(self, out, a):
            return a * 3

    function = Function()
    alive = weakref.ref(function)
    ctx = gb.Context()
    y = form(function, ctx.from_numpy(np.ones(3, f32)))
    del function
    gc.collect()
    s = gb.Scheduler([cpu])
    s.compute(ctx.graph(y))
    assert y.tolist() == [3, 3, 3]
    s.close()
    ctx.close()
    del y, ctx, s
    gc.collect()
    assert alive() is None


@FORMS
def test_arrays_that_escape_stay_valid(ctx, cpu, form):
    kept = []
    x = ctx.tensor(1000)
    s = gb.Scheduler([cpu])
    one = form(lambda out, a: kept.append((out, a)) or a, x)
    two = gb.ops.custom(lambda out, a: kept.append((*out, a)) or (a, a), x, dtype=["f32", "f64"])
    graph = ctx.graph(one, *two)
    s.allocate(graph)
    x.set(7)
    s.compute(graph)
    s.close()
    del s
    gc.collect()
    assert len(kept) == 2 and all((a == 7).all() for arrays in kept for a in arrays)


def test_the_graph_can_be_copied_and_compared(ctx, cpu):
    x = ctx.from_numpy(np.arange(6, dtype=f32))
    a, b = gb.ops.custom(lambda out, v: (np.trunc(v * 2).astype("i4"), v / 3), x, dtype=["i32", "f32"])
    graph = ctx.graph(a, gb.ops.relu(b))
    ctx.allocate(cpu)
    assert graph.compute(cpu)
    assert a.tolist() == [0, 2, 4, 6, 8, 10]
    copy = graph.copy(cpu)
    assert copy.compute(cpu)
    assert [t.tolist() for t in copy.outputs] == [t.tolist() for t in graph.outputs]
    assert [t.shape for t in copy.outputs] == [(6,), (6,)]
    assert all(r.equal for r in graph.compare(cpu, gb.Backend("CPU", n_threads=1)))


def test_using_the_scheduler_that_computes_is_refused(ctx):
    s = scheduler(["CPU"])

    def again(out):
        s.compute(graph)

    graph = ctx.graph(gb.ops.custom(again, shape=1, context=ctx))
    with pytest.raises(gb.errors.StateError):
        s.compute(graph)


def test_stop_while_the_function_runs(ctx, cpu):
    started, release, after = threading.Event(), threading.Event(), []

    def wait(out):
        started.set()
        release.wait(20)
        return np.zeros(2), np.zeros(3)

    a, _ = gb.ops.custom(wait, shape=[(2,), (3,)], context=ctx)
    graph = ctx.graph(gb.ops.custom(lambda out, v: after.append(1) or v, a))
    s = gb.Scheduler([cpu])
    s.allocate(graph)
    results = []
    thread = threading.Thread(target=lambda: results.append(s.compute(graph)))
    thread.start()
    assert started.wait(20)
    cpu.stop()
    release.set()
    thread.join(20)
    assert (results, after) == ([False], [])
    assert s.compute(graph) is True
    assert after == [1]


def test_devices_refuse_it_with_a_reason(ctx):
    sim = gb.Backend("SIM")
    for node in (
        gb.ops.custom(print, shape=3, context=ctx),
        gb.ops.custom(print, shape=[(3,), (4,)], context=ctx)[0].view_of,
    ):
        assert not sim.supports(node)
        assert "custom operators read host memory" in sim.unsupported_reason(node)
    with pytest.raises(gb.errors.UnsupportedError, match="CUSTOM"):
        gb.Scheduler([sim]).compute(ctx.graph(gb.ops.custom(print, shape=3, context=ctx)))


# ---------------------------------------------------------------------------------------------------- custom on devices


def test_a_device_finds_the_function_and_calls_it_with_its_own_arrays(x):
    class Foreign:  # an array of a library that is not NumPy
        def __init__(self, shape):
            self.shape = shape

    got = []

    def function(out, a):
        got.append((out, a))
        return Foreign((3,)), None

    nodes = gb.ops.custom(function, x, shape=[(3,), (2, 2)], dtype=["f32", "i32"])
    op = CustomOp.of_node(nodes[0].view_of._p)
    assert CustomOp.of_node(x._p) is None
    assert [(r.dtype, r.shape, r.offset, r.nbytes) for r in op.results] == [
        (gb.float32, (3,), 0, 12), (gb.int32, (2, 2), 64, 16),
    ]  # fmt: skip
    out, a = (Foreign((3,)), Foreign((2, 2))), Foreign((3, 4))
    first, second = op.compute(out, [a])
    assert (first.shape, second) == ((3,), None)
    assert got == [(out, a)]
    with pytest.raises(gb.errors.InvalidArgumentError, match="result 0 must have the shape"):
        CustomOp(lambda o: (Foreign((4,)), None), 1, op.results, True).compute(out, [])


def test_map_custom_broadcasts_and_shows_quantized_rows_as_bytes(ctx, x):
    y = gb.ops.map_custom(lambda out, a: a[:1], x)
    w = ctx.tensor((2, 32), "q8_0")
    seen = []
    z = gb.ops.map_custom(lambda out, a, b: seen.append((type(b), b.shape)) or a, x, w)
    graph = ctx.graph(y, z)
    s = scheduler(["CPU"])
    s.allocate(graph)
    w.set(...)
    s.compute(graph)
    np.testing.assert_array_equal(y.numpy(), np.broadcast_to(x.numpy()[:1], (3, 4)))
    assert seen == [(np.ndarray, (2, 34))]
    assert CustomOp.of_node(y._p).results is None


@pytest.mark.parametrize("how", ["graph", "scheduler", "copy"])
def test_a_copied_graph_keeps_its_custom_functions(holds, how):
    """This holds after the original and its context are freed."""
    program = """
        def make():
            ctx = gb.Context()
            x = ctx.tensor(4)
            g = ctx.graph(gb.ops.map_custom(lambda out, a: a * 2, x) + 1.0)
            ctx.allocate(cpu); x.set(3.0)
            return g.copy(cpu)
        cpu = gb.Backend("CPU", n_threads=1)
        k = make()
        if HOW == "copy": k = k.copy(cpu)
        run = (lambda: gb.Scheduler([cpu]).compute(k)) if HOW == "scheduler" else (lambda: k.compute(cpu))
        for _ in range(3):
            assert run() and k.outputs[0].tolist() == [7.0] * 4, k.outputs[0].tolist()
            gc.collect(); junk = [gb.Context().tensor(3) for _ in range(20)]
        def boom(out, a): raise ZeroDivisionError
        ctx = gb.Context(); x = ctx.tensor(4); g = ctx.graph(gb.ops.map_custom(boom, x)); ctx.allocate(cpu); x.set(3.0)
        k = g.copy(cpu)
        for _ in range(2):
            try: run()
            except ZeroDivisionError: pass
            else: raise SystemExit("nothing was raised")
    """
    holds(program.replace("HOW", repr(how)))
