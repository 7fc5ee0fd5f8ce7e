"""Blocks that know their format: the results of ``quantize``, in each function that takes them."""

from __future__ import annotations

import copy
import pickle

import gguf
import numpy as np
import pytest

import ggml_backend as gb

CPU = gb.Backend("CPU", n_threads=1)
FORMATS = [d for d in gb.dtypes.dtypes.values() if d.is_quantized and d.name not in ("q8_1", "q8_k")]
IMPORTANCE = np.ones(512, np.float32)


def floats(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def blocks_of(dtype, *shape):
    return gb.quantize(floats(*shape), dtype, IMPORTANCE[: shape[-1]])


def by_custom(rows, dtype, shape):
    """Blocks of the same bytes, as functions of gb.ops.custom get them."""
    seen = []
    ctx = gb.Context()
    t = ctx.constant(rows, dtype)

    def keep(out, blocks):
        seen.append(blocks.copy())
        out[...] = 0

    y = gb.ops.custom(keep, t, shape=(1,), dtype="f32")
    gb.Scheduler(CPU).compute(ctx.graph(y))
    assert gb.dequantize(seen[0]).shape == shape
    return seen[0]


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_quantize_returns_blocks_that_know_their_format(dtype):
    blocks = blocks_of(dtype, 3, 512)
    assert type(blocks) is gb.tensor.Blocks
    assert blocks.format == dtype
    assert (blocks.dtype, blocks.shape) == (np.uint8, (3, dtype.row_nbytes(512)))
    assert blocks.nbytes == 3 * dtype.row_nbytes(512) == len(blocks.tobytes())
    assert type(np.asarray(blocks)) is np.ndarray


def test_rows_of_bfloat16_know_their_format_and_floats_are_plain_arrays():
    assert gb.quantize(floats(2, 8), "bf16").format == gb.bfloat16
    assert type(gb.quantize(floats(2, 8), "f16")) is np.ndarray


WAYS = [
    *((d, given) for d in FORMATS for given in ("blocks", "bytes", "custom")),
    (gb.bfloat16, "blocks"), (gb.bfloat16, "bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "given"), WAYS, ids=str)
@pytest.mark.parametrize("shape", [(512,), (3, 512), (2, 3, 512)], ids=str)
def test_all_constructors_accept_blocks(dtype, shape, given):
    rows = blocks_of(dtype, *shape)
    expected = gb.dequantize(np.asarray(rows), dtype)
    if given == "custom":
        value, options = by_custom(rows, dtype, shape), {}
    else:
        value, options = (rows, {}) if given == "blocks" else (np.asarray(rows), {"dtype": dtype})
    ctx = gb.Context()
    made = [ctx.constant(value, **options), ctx.from_numpy(value, **options)]
    filled = ctx.tensor(shape, dtype)
    if given != "bytes":
        made.append(ctx.from_dlpack(value))
    ctx.allocate(CPU)
    if dtype.is_quantized or given == "blocks":
        made.append(filled.set(value))
    for t in made:
        assert (t.dtype, t.shape) == (dtype, shape)
        np.testing.assert_array_equal(gb.dequantize(t), expected)
    np.testing.assert_array_equal(gb.dequantize(value, **options), expected)


def test_from_numpy_shares_the_memory_of_blocks():
    blocks = blocks_of("q8_0", 2, 64)
    t = gb.Context().from_numpy(blocks)
    blocks[:] = 0
    assert not t.numpy().any()


def test_a_product_with_blocks_equals_the_product_with_floats():
    ctx = gb.Context()
    w, x = floats(16, 256), floats(3, 256)
    blocks = gb.quantize(w, "q4_k")
    y = gb.ops.matmul(ctx.constant(x), ctx.constant(blocks).T, prec="f32")
    with gb.Scheduler(CPU) as scheduler:
        scheduler.compute(ctx.graph(y))
        found = y.numpy(copy=True)
    np.testing.assert_allclose(found, x @ gb.dequantize(blocks).T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_blocks_of_another_format_are_an_error_everywhere(layout):
    """q4_0 and iq4_nl have blocks of the same size. Only the format distinguishes them."""
    blocks = blocks_of("q4_0", 2, 64)
    if layout == "blocks":
        blocks = by_custom(blocks, "q4_0", (2, 64))
    ctx = gb.Context()
    t = ctx.tensor((2, 64), "iq4_nl")
    ctx.allocate(CPU)
    for wrong in (
        lambda: t.set(blocks),
        lambda: ctx.constant(blocks, "iq4_nl"),
        lambda: ctx.constant(blocks, "f32"),
        lambda: ctx.from_numpy(blocks, dtype="iq4_nl"),
        lambda: gb.dequantize(blocks, "iq4_nl"),
        lambda: gb.dequantize(ctx.constant(blocks), "iq4_nl"),
        lambda: gb.gguf.Writer("/nowhere").add_tensor("t", blocks, "iq4_nl"),
    ):
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"q4_0, not (of )?(iq4_nl|float32)"):
            wrong()


def test_a_custom_result_of_another_format_is_an_error():
    ctx = gb.Context()
    x = ctx.constant(floats(2, 64))
    y = gb.ops.custom(lambda out, a: gb.quantize(a, "q4_0"), x, dtype="iq4_nl")
    with pytest.raises(gb.errors.InvalidArgumentError, match="blocks of q4_0, not of iq4_nl"):
        gb.Scheduler(CPU).compute(ctx.graph(y))


def test_the_writer_uses_the_format_of_blocks(tmp_path):
    blocks = blocks_of("q5_1", 2, 64)
    with gb.gguf.Writer(tmp_path / "m.gguf") as writer:
        writer.add_tensor("t", blocks)
    read = next(t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors if t.name == "t")
    assert read.tensor_type == gguf.GGMLQuantizationType.Q5_1
    np.testing.assert_array_equal(read.data, np.asarray(blocks))
    with gb.gguf.open(tmp_path / "m.gguf") as file:
        np.testing.assert_array_equal(gb.dequantize(file.tensors["t"]), gb.dequantize(blocks))


WHOLE = {
    "rows[1:]": lambda rows: rows[1:],
    "rows[1]": lambda rows: rows[1],
    "rows[::2]": lambda rows: rows[::2],
    "rows[None]": lambda rows: rows[None],
    "rows.reshape": lambda rows: rows.reshape(3, 1, 36),
    "rows.copy": lambda rows: rows.copy(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda rows: pickle.loads(pickle.dumps(rows)),
}
OTHERS = {
    "rows[:, 18:]": lambda rows: rows[:, 18:],
    "rows[:, 1:19]": lambda rows: rows[:, 1:19],
    "rows[:, ::2]": lambda rows: rows[:, ::2],
    "rows.T": lambda rows: rows.T,
    "rows + 0": lambda rows: rows + 0,
    "rows.view": lambda rows: rows.view(np.uint16),
    "rows.astype": lambda rows: rows.astype(np.int32),
    "rows[:, 0]": lambda rows: rows[:, 0],
    "sort": np.sort,
    "roll": lambda rows: np.roll(rows, 1),
    "sum": np.sum,
}


@pytest.mark.parametrize("part", WHOLE)
def test_whole_rows_keep_the_format(part):
    found = WHOLE[part](blocks_of("q4_0", 3, 64))
    assert found.format == gb.dtypes.q4_0
    np.testing.assert_array_equal(gb.dequantize(found), gb.dequantize(np.asarray(found), "q4_0"))


@pytest.mark.parametrize("part", OTHERS)
def test_other_views_have_no_format(part):
    assert getattr(OTHERS[part](blocks_of("q4_0", 3, 64)), "format", None) is None


def test_partial_blocks_are_an_error():
    ctx = gb.Context()
    for name, wrong in (
        ("Context.constant", ctx.constant),
        ("Context.from_numpy", ctx.from_numpy),
        ("dequantize", gb.dequantize),
    ):
        words = f"^{name}: rows of 35 bytes are not whole blocks of q4_0, of 18 bytes$"
        with pytest.raises(gb.errors.InvalidArgumentError, match=words):
            wrong(np.zeros((2, 35), np.uint8), dtype="q4_0")


def test_unaligned_bytes_are_copied_or_refused():
    """A buffer of bytes can have any address."""
    rows = np.zeros(1 + 18 * 4, np.uint8)[1:].reshape(2, 36)
    rows[:] = np.asarray(blocks_of("q4_0", 2, 64))
    fixed = gb.Context(allocate=True).constant(rows, "q4_0")
    np.testing.assert_array_equal(gb.dequantize(fixed), gb.dequantize(rows, "q4_0"))
    try:
        t = gb.Context().from_numpy(rows, dtype="q4_0")
    except gb.errors.InvalidArgumentError as error:
        assert "align" in str(error) or "multiple" in str(error)
    else:
        np.testing.assert_array_equal(gb.dequantize(t), gb.dequantize(rows, "q4_0"))
