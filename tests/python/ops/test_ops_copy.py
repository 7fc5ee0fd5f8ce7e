"""Copies, conversions, gathers and diagonals against NumPy."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

import ggml_backend as gb
from op_harness import (
    ALL_LAYOUTS,
    EMPTY,
    EXACT,
    FLOATS,
    LAYOUTS,
    SHAPES,
    Built,
    Tolerance,
    array,
    check,
    covers,
    cpus,
    numpy_dtype,
    real,
    refuses,
    whole,
)  # fmt: skip

PLAIN = [*FLOATS, "int8", "int16", "int32", "int64", "float64"]


def values(*shape, dtype, layout="whole"):
    if dtype.startswith("int"):
        return whole(*shape, low=-99, high=99, dtype=dtype, layout=layout)
    return real(*shape, dtype=dtype, layout=layout)


def same(v):
    return v


@covers("DUP", "CONT")
@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("name", ["dup", "cont"])
def test_copies(name, dtype):
    for shape, layout in [
        *itertools.product(SHAPES, ALL_LAYOUTS),
        *((s, "whole") for s in EMPTY),
        ((131, 1030), "transposed"),
        ((131, 1030), "padded"),
    ]:
        node = check(
            getattr(gb.ops, name), [values(*shape, dtype=dtype, layout=layout)], same, EXACT, on_sim=layout == "padded"
        )
        assert node.is_contiguous


@covers("DUP")
def test_dup_in_place_is_the_tensor():
    node = check(lambda t: gb.ops.dup(t, inplace=True), [real(3, 5, layout="padded")], same, EXACT)
    assert node.view_of is not None


@covers("CONT")
@pytest.mark.parametrize("layout", ALL_LAYOUTS)
def test_cont_to_another_shape(layout):
    """Elements keep their logical order."""
    for shape, new in (
        ((3, 4, 5), (60,)),
        ((3, 4, 5), (5, 12)),
        ((2, 3, 4, 5), (4, 5, 6)),
        ((60,), (2, 3, 2, 5)),
        ((1, 7), (7, 1)),
    ):
        check(lambda t, s=new: gb.ops.cont(t, s), [real(*shape, layout=layout)], lambda v, s=new: v.reshape(s), EXACT)


@covers("RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "CONT")
def test_views():
    x = real(2, 3, 4, 5)
    check(lambda t: gb.ops.reshape(t, (6, 20)), [x], lambda v: v.reshape(6, 20), EXACT)
    check(
        lambda t: gb.ops.view(t, (3, 4), strides=(80, 4), offset=40), [x], lambda v: v.reshape(6, 20)[:3, 10:14], EXACT
    )
    check(lambda t: gb.ops.cont(gb.ops.transpose(t)), [x], lambda v: v.swapaxes(-1, -2), EXACT)
    check(gb.ops.transpose, [x], lambda v: v.swapaxes(-1, -2), EXACT)
    for axes in itertools.permutations(range(4)):
        # ggml: dimension d moves to position axes[d]; dimension d is axis 3 - d
        order = [0] * 4
        for d, to in enumerate(axes):
            order[3 - to] = 3 - d
        check(lambda t, a=axes: gb.ops.permute_ggml(t, *a), [x], lambda v, o=order: v.transpose(o), EXACT)
        check(
            lambda t, a=axes: gb.ops.cont(gb.ops.permute_ggml(t, *a)),
            [x],
            lambda v, o=order: v.transpose(o),
            EXACT,
            on_sim=False,
        )


# ---------------------------------------------------------------------------------------------------------- conversions

CONVERSIONS = [*itertools.permutations([*FLOATS, "int32"], 2)]


def converted(v, dtype):
    if dtype == "int32":
        return np.trunc(v).astype(np.int64)
    if dtype == "bfloat16":
        return v.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)  # float32 inputs: one rounding
    return v.astype(numpy_dtype(dtype)).astype(np.float64)


@covers("CPY")
@pytest.mark.parametrize(("source", "target"), CONVERSIONS)
def test_cast(source, target):
    """Conversions round exactly to nearest, ties to even."""
    for shape, layout in [
        *zip(SHAPES, itertools.cycle(ALL_LAYOUTS), strict=False),
        *(((3, 4, 5), y) for y in ALL_LAYOUTS),
        ((131, 1030), "padded"),
    ]:
        x = values(*shape, dtype=source, layout=layout)
        check(lambda t: gb.ops.cast(t, target), [x], lambda v: converted(v, target), EXACT, dtype=target)
        check(lambda t: t.astype(target), [x], lambda v: converted(v, target), EXACT, dtype=target, on_sim=False)


@covers("CPY")
@pytest.mark.parametrize("target", ["float16", "bfloat16"])
def test_cast_of_every_kind_of_number(target):
    bits = np.concatenate(
        [
            np.arange(0, 2**32, 65537 * 3, dtype=np.uint64),
            np.arange(0x33000000, 0x48000000, 4093),
            np.arange(0xB3000000, 0xC8000000, 8191),
        ]
    )
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 65504, 65519.99, 65520, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25]
    x = np.concatenate([bits.astype(np.uint32).view(np.float32), np.array(special, np.float32)])
    with np.errstate(all="ignore"):
        want = x.astype(numpy_dtype(target))
    built = Built(lambda t: gb.ops.cast(t, target), [array(x)], cpus()[0][1])
    for label, backend in cpus():
        got = built.compute(backend)
        number = ~np.isnan(x)
        np.testing.assert_array_equal(got[number].view(np.uint16), want[number].view(np.uint16), err_msg=label)
        assert np.isnan(got[~number].astype(np.float32)).all(), label


@covers("CPY")
@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_cast_of_all_65536_values(source):
    x = np.arange(65536, dtype=np.uint16).view(numpy_dtype(source))
    want = x.astype(np.float32)
    built = Built(lambda t: gb.ops.cast(t, "float32"), [array(x, source)], cpus()[0][1])
    for label, backend in cpus():
        got = built.compute(backend)
        np.testing.assert_array_equal(got, want, err_msg=label)
        np.testing.assert_array_equal(
            np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]), err_msg=label
        )


@covers("CPY")
@pytest.mark.parametrize(("source", "target"), [*CONVERSIONS, *((d, d) for d in PLAIN)])
def test_cpy(source, target):
    """Copies into any layout and another shape."""
    for one, two in itertools.product(ALL_LAYOUTS, ALL_LAYOUTS):
        for shape, into in (((3, 4, 5), (3, 4, 5)), ((3, 4, 5), (5, 12)), ((2, 3, 2, 5), (60,)), ((7, 3), (3, 7))):
            x, y = values(*shape, dtype=source, layout=one), values(*into, dtype=target, layout=two)
            check(gb.ops.cpy, [x, y], lambda v,
             w: converted(v.reshape(w.shape), target) if source != target else v.reshape(w.shape), EXACT, dtype=target,
                  writes=(1,), on_sim=one == two)  # fmt: skip


CONVERSIONS_REFUSED = [
    (a, b) for a, b in itertools.permutations(PLAIN, 2) if (a, b) not in CONVERSIONS
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), CONVERSIONS_REFUSED)
def test_missing_conversions_are_refused(source, target):
    refuses(lambda t: gb.ops.cast(t, target), [values(3, 4, dtype=source)])


# -------------------------------------------------------------------------------------------------------------- gathers


def rows_of(a, b):
    """a (..., rows, n), b (..., k)"""
    a = a.reshape((1,) * (4 - a.ndim) + a.shape)
    i = b.reshape((1,) * (3 - b.ndim) + b.shape)
    out = np.stack([np.stack([a[p, q][i[p, q]] for q in range(i.shape[1])]) for p in range(i.shape[0])])
    return out.reshape(*b.shape, a.shape[-1])


@covers("GET_ROWS")
@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_get_rows(dtype):
    result = "int32" if dtype == "int32" else "float32"
    for shape, index in (
        ((1, 1), (1,)),
        ((5, 3), (9,)),
        ((3, 33), (1,)),
        ((2, 4, 7), (2, 5)),
        ((2, 3, 4, 5), (2, 3, 6)),
        ((300, 129), (700,)),
    ):
        for one, two in zip(itertools.chain(LAYOUTS, LAYOUTS), itertools.chain(LAYOUTS, LAYOUTS[::-1]), strict=True):
            inputs = [values(*shape, dtype=dtype, layout=one), whole(*index, low=0, high=shape[-2], layout=two)]
            check(gb.ops.get_rows, inputs, rows_of, EXACT, dtype=result, on_sim=one == two)
    check(
        gb.ops.get_rows,
        [values(4, 6, dtype=dtype, layout="transposed"), array([3, 0, 3], "int32")],
        rows_of,
        EXACT,
        dtype=result,
    )
    check(gb.ops.get_rows, [values(4, 6, dtype=dtype), array([], "int32")], lambda a, b: a[:0], EXACT, dtype=result)


@pytest.mark.parametrize("index", [-1, 4, 2**31 - 1, -(2**31)])
def test_get_rows_out_of_range(index):
    """The computation raises an error, and the backend stays usable."""
    refuses(gb.ops.get_rows, [real(4, 6), array([0, index, 1], "int32")], gb.errors.InvalidArgumentError)
    refuses(
        gb.ops.get_rows_back, [real(3, 6), array([0, index, 1], "int32"), real(4, 6)], gb.errors.InvalidArgumentError
    )
    check(gb.ops.get_rows, [real(4, 6), array([0, 3, 1], "int32")], rows_of, EXACT)


def four(x):
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def rows_written(a, b, c):
    """a (..., rows, n), b (..., k, n), c (..., k), whose leading sizes divide those of b."""
    out, b, c = four(a).copy(), four(b), four(c)[0]
    for p, q in np.ndindex(*out.shape[:2]):
        out[p, q, c[p % c.shape[0], q % c.shape[1]]] = b[p, q]
    return out.reshape(a.shape)


def distinct(shape, n, dtype="int32", layout="whole"):
    """Different indices below n along the last axis."""
    rng = np.random.default_rng(n)
    drawn = np.stack([rng.permutation(n)[: shape[-1]] for _ in range(math.prod(shape[:-1]))])
    return array(drawn.reshape(shape).astype(dtype), dtype, layout)


@covers("SET_ROWS")
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("target", [*FLOATS, "int32"])
def test_set_rows(source, target):
    def reference(a, b, c):
        return rows_written(a, converted(b, target), c)

    for shape, k, index in (
        ((1, 1), 1, ()),
        ((5, 3), 4, ()),
        ((33, 1), 33, ()),
        ((2, 4, 7), 3, (2,)),
        ((4, 6, 5, 3), 5, (2, 3)),
        ((4, 6, 5, 3), 2, (1, 1)),
        ((300, 129), 200, ()),
        ((5, 3), 0, ()),
    ):
        for one, two in zip(itertools.chain(LAYOUTS, LAYOUTS), itertools.chain(LAYOUTS, LAYOUTS[::-1]), strict=True):
            a = values(*shape, dtype=target, layout=one)
            b = real(*shape[:-2], k, shape[-1], dtype=source, layout=two)
            c = distinct((*index, k), shape[-2], "int64" if one == two else "int32", two)
            check(gb.ops.set_rows, [a, b, c], reference, EXACT, dtype=target, writes=(0,), on_sim=one == two)


@pytest.mark.parametrize("index", [-1, 4, 2**31 - 1, 2**32])
def test_set_rows_out_of_range(index):
    """The error names the operator, the tensors and the place of the index. The other rows keep their values."""
    inputs = [real(4, 6), real(3, 6), array([0, index, 1], "int64")]
    refuses(gb.ops.set_rows, inputs, gb.errors.InvalidArgumentError)
    with gb.Context() as ctx:
        cache, rows = ctx.tensor((4, 6), name="cache"), ctx.tensor((3, 6), name="rows")
        places = ctx.tensor((3,), gb.dtypes.int64, name="places")
        graph = ctx.graph(gb.ops.set_rows(cache, rows, places))
        cpu = gb.Backend("CPU")
        memory = ctx.allocate(cpu)
        cache.set(np.zeros((4, 6), np.float32))
        rows.set(np.ones((3, 6), np.float32))
        places.set(np.array([0, index, 1]))
        with pytest.raises(
            gb.errors.InvalidArgumentError, match=rf"SET_ROWS .*'rows'.*index {index} at \(1,\) is out of range"
        ):
            graph.compute(cpu)
        assert not cache.numpy()[2:].any()
        del memory


def test_one_plan_writes_at_every_position():
    """A cache whose places are an input, on two devices: planned once, run for each token."""
    rng = np.random.default_rng(1)
    n, width = 12, 8
    for names in (["CPU"], ["SIM", "CPU"]):
        backends = [gb.Backend(name) for name in names]
        with gb.Context() as held, gb.Context() as ctx:
            cache = held.tensor((n, width), gb.float16, name="cache")
            memory = held.allocate(backends[0])
            x, place = ctx.tensor((1, width), name="x"), ctx.tensor((1,), gb.dtypes.int64, name="place")
            with ctx.as_default():
                y = gb.ops.mul_mat(gb.ops.set_rows(cache, gb.ops.sqr(x), place), x + 1.0)
            sched, graph = gb.Scheduler(backends), ctx.graph(y)
            sched.allocate(graph)
            cache.set(np.zeros((n, width), np.float16))
            want = np.zeros((n, width), np.float16)
            for position in rng.permutation(n):
                value = rng.standard_normal((1, width)).astype(np.float32)
                x.set(value)
                place.set(np.array([position]))
                sched.compute(graph)
                want[position] = (value * value)[0]
                product = (value.astype(np.float64) + 1) @ want.astype(np.float64).T
                np.testing.assert_allclose(y.numpy(), product, rtol=2e-3, atol=2e-3)
                np.testing.assert_array_equal(cache.numpy(), want)
            assert sched.stats.plans_made == 1
            del memory


@covers("GET_ROWS_BACK")
@pytest.mark.parametrize("dtype", FLOATS)
def test_get_rows_back(dtype):
    def reference(g, i, c):
        out = np.zeros(c.shape)
        np.add.at(out, i, g)
        return out

    for n, width, rows in ((1, 1, 1), (5, 3, 4), (9, 33, 2), (300, 257, 64)):
        for layout in LAYOUTS:
            inputs = [real(n, width, dtype=dtype, layout=layout), whole(n, low=0, high=rows), real(rows, width)]
            check(gb.ops.get_rows_back, inputs, reference, Tolerance(n=n), magnitude=reference, dtype="float32")


@covers("DIAG")
@pytest.mark.parametrize("dtype", FLOATS)
def test_diag(dtype):
    for shape in ((1, 1), (1, 7), (3, 1, 5), (2, 3, 1, 33), (1, 300)):
        for layout in ("whole", "padded", "stepped"):
            check(gb.ops.diag, [real(*shape, dtype=dtype, layout=layout)], lambda v: v * np.eye(v.shape[-1]), EXACT)
