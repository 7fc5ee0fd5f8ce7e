"""Results of functions of ``gb.ops.custom`` and ``gb.ops.map_custom`` keep their values, or raise an error."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from test_custom import DEVICES, f32, run, scheduler


@pytest.mark.parametrize(
    ("value", "dtype"),
    [([300], "int8"), ([-129], "int8"), ([2**40], "int32"), ([2**63], "int64"), (np.array([200], np.uint8), "int8")],
)
@pytest.mark.parametrize("names", DEVICES, ids=" ".join)
def test_integers_out_of_range(value, dtype, names, ctx):
    y = gb.ops.custom(lambda out: value, shape=(1,), dtype=dtype, context=ctx)
    with pytest.raises(gb.errors.InvalidArgumentError, match=f"the result must be {dtype}, -.* and has"):
        run(names, ctx, y)


@pytest.mark.parametrize(
    ("value", "dtype"), [([127], "int8"), ([2**40], "int64"), (np.array([200], np.uint8), "int16")]
)
def test_integers_within_range(value, dtype, ctx):
    y = gb.ops.custom(lambda out: value, shape=(1,), dtype=dtype, context=ctx)
    s = run(["CPU"], ctx, y)
    assert y.numpy()[0] == value[0]
    s.close()


class Wrapped:
    """An array of another library over the same memory."""

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def __array__(self, dtype=None, copy=None):
        return self.array


@pytest.mark.parametrize("show", [lambda a: a, memoryview, Wrapped], ids=["ndarray", "memoryview", "other"])
def test_results_that_are_views_of_each_other(show, ctx):
    def swap(out):
        out[0][:] = [1, 2]
        out[1][:] = [3, 4]
        return show(out[1]), show(out[0])

    a, b = gb.ops.custom(swap, shape=[(2,), (2,)], dtype="f32", context=ctx)
    s = run(["CPU"], ctx, a, b)
    assert a.tolist() == [3, 4] and b.tolist() == [1, 2]
    s.close()


@pytest.mark.parametrize("shape", [(1,), ()])
def test_an_array_with_a_wrong_shape_attribute(shape, ctx):
    class Liar:
        shape = (2,)

        def __array__(self, dtype=None, copy=None):
            return np.ones(Liar.real, f32)

    Liar.real = shape
    y = gb.ops.custom(lambda out: Liar(), shape=(2,), dtype="f32", context=ctx)
    with pytest.raises(gb.errors.InvalidArgumentError, match="shape"):
        run(["CPU"], ctx, y)


@pytest.mark.parametrize("value", [np.array([1 + 2j], np.complex64), np.array([1.5]), np.array([np.nan])])
def test_map_custom_refuses_another_kind_of_numbers(value, ctx):
    dtype = np.int32 if value.dtype.kind == "f" else f32
    y = gb.ops.map_custom(lambda out, a: value, ctx.from_numpy(np.ones(1, dtype)))
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"map_custom: .*the result must be"):
        run(["CPU"], ctx, y)


def test_masked_arrays_are_refused(ctx):
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    for use in (
        lambda: ctx.tensor((2,)).set(masked),
        lambda: gb.from_dlpack(masked),
        lambda: run(["CPU"], ctx, gb.ops.custom(lambda out: masked, shape=(2,), dtype="f32", context=ctx)),
    ):
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"masked array.*array\.filled\(value\)"):
            use()


def test_slices_of_whole_blocks_keep_the_format(ctx):
    seen = {}

    def look(out, blocks):
        q = blocks[:, : blocks.shape[2] // 17]  # (34, 2, 34): axes of one size
        seen.update(
            whole=blocks, part=blocks[2:5], copy=blocks.copy(), none=blocks + 1, turned=q.T, mirrored=blocks[..., ::-1],
            sorted=np.sort(blocks, -1), rolled=np.roll(blocks, 1, -1), swapped=q.swapaxes(0, 2), axes=blocks[None],
        )  # fmt: skip
        out[...] = 0

    q = ctx.tensor((34, 64), "q8_0", name="q")
    y = gb.ops.custom(look, q, shape=(1,), dtype="f32")
    graph = ctx.graph(y)
    with scheduler(["CPU"]) as s:
        s.allocate(graph)
        q.set(np.ones((34, 64), f32), quantize=True)
        s.compute(graph)
    formats = {name: getattr(array, "format", None) for name, array in seen.items()}
    assert {name for name, dtype in formats.items() if dtype == gb.dtypes.q8_0} == {"whole", "part", "copy", "axes"}


def test_in_place_on_overlapping_parts(ctx):
    a = ctx.tensor((4, 3), name="a")
    for build in (
        lambda: gb.ops.add(a, a[0:1], inplace=True),
        lambda: gb.ops.add(a[1:], a[:-1], inplace=True),
        lambda: gb.ops.mul(a[:-1], a[1:], inplace=True),
    ):
        with pytest.raises(gb.errors.InvalidArgumentError, match="which partly overlaps it"):
            build()
    gb.ops.add(a, a, inplace=True)
    gb.ops.add(a[:2], a[2:], inplace=True)
    gb.ops.add(a[1:], a[:-1])
