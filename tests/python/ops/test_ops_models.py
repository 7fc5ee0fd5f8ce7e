"""Operators of language models against NumPy: experts, attention with masks and sinks, rotations with sections."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import LAYOUTS, In, Tolerance, array, both_ways, check, covers, real, refuses, whole

TAKES = [("float32", "float32"), ("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32")]


def of_experts(experts, b, ids):
    """A loop over tokens and their experts."""
    out = np.zeros((*ids.shape, experts.shape[1]))
    for t, u in np.ndindex(*ids.shape):
        out[t, u] = experts[ids[t, u]] @ b[t, u % b.shape[1]]
    return out


@covers("MUL_MAT_EXPERTS")
@pytest.mark.parametrize(("weights", "data"), TAKES)
def test_experts(weights, data):
    """From one to 512 experts, few rows and many, unused experts, and experts that a token uses twice."""
    for e, m, k, tokens, used, rows in (
        (1, 1, 1, 1, 1, 1),
        (2, 5, 7, 3, 1, 1),
        (3, 4, 33, 9, 2, 2),
        (512, 3, 8, 5, 16, 4),
        (8, 17, 64, 30, 4, 1),
        (4, 70, 130, 60, 2, 2),
        (128, 9, 64, 1, 8, 1),
        (3, 4, 8, 0, 2, 1),
    ):
        for layout in ("whole", "padded"):
            ids = whole(tokens, used, low=0, high=max(1, e - e // 3), layout=layout)
            inputs = [
                real(e, m, k, dtype=weights, layout=layout),
                real(tokens, rows, k, dtype=data, layout=layout),
                ids,
            ]
            rounded = 1.0 if (weights, data) == ("bfloat16", "float32") else 0.0
            tolerance = Tolerance(n=k, rounded=rounded, rounded_to="bfloat16")
            check(gb.ops.mul_mat_experts, inputs, of_experts, tolerance, magnitude=of_experts, dtype="float32")


@pytest.mark.parametrize("prec", ["default", "f16"])
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q4_k", "q6_k"])
def test_quantized_experts(name, prec):
    """Within the rounding of activations to bytes; the same bits for every number of threads."""
    rng = np.random.default_rng(3)
    for e, m, k, tokens, used, rows in ((7, 13, 512, 1, 3, 1), (40, 65, 512, 33, 4, 1), (3, 33, 256, 90, 2, 2)):
        blocks = gb.quantize(rng.standard_normal((e, m, k), np.float32), name)
        weights = gb.dequantize(blocks, name).astype(np.float64)
        x = rng.standard_normal((tokens, rows, k), np.float32)
        ids = rng.integers(0, e, (tokens, used)).astype(np.int32)
        results = []
        for threads in (1, 2, 5):
            cpu = gb.Backend("CPU", n_threads=threads)
            with gb.Context() as ctx:
                w, b, i = ctx.tensor((e, m, k), name), ctx.tensor(x.shape), ctx.tensor(ids.shape, gb.int32)
                y = gb.ops.mul_mat_experts(w, b, i, prec)
                graph, memory = ctx.graph(y), ctx.allocate(cpu)
                w.set(blocks)
                b.set(x)
                i.set(ids)
                graph.compute(cpu)
                results.append(y.numpy(copy=True))
                del memory
        steps = np.abs(x).reshape(tokens, rows, k // 32, 32).max(-1) / (254 if prec == "default" else 254 * 254)
        sums = np.abs(weights).reshape(e, m, k // 32, 32).sum(-1)
        allowed = of_experts(sums, steps, ids) * 1.001
        allowed += 4 * k * 2.0**-24 * of_experts(np.abs(weights), np.abs(x), ids)
        assert (np.abs(results[0] - of_experts(weights, x.astype(np.float64), ids)) <= allowed).all()
        assert all(r.tobytes() == results[0].tobytes() for r in results)


@pytest.mark.parametrize("index", [-1, 4, 2**31 - 1])
def test_an_expert_out_of_range(index):
    inputs = [real(4, 5, 8), real(3, 1, 8), array([[0, 1], [2, index], [3, 3]], "int32")]
    refuses(gb.ops.mul_mat_experts, inputs, gb.errors.InvalidArgumentError)
    refuses(gb.ops.add_id, [real(3, 2, 5), real(4, 5), inputs[2]], gb.errors.InvalidArgumentError)


@covers("ADD_ID")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_add_id(dtype):
    for tokens, used, e, m in ((1, 1, 1, 1), (5, 3, 4, 7), (9, 2, 30, 700), (0, 2, 3, 4)):
        for layout in LAYOUTS:
            inputs = [real(tokens, used, m, dtype=dtype, layout=layout), real(e, m), whole(tokens, used, low=0, high=e)]
            check(
                gb.ops.add_id, inputs, lambda a, b, i: a + b[i], Tolerance(terms=1), magnitude=lambda a, b, i: a + b[i]
            )


# ------------------------------------------------------------------------------------------------------------ attention


def slopes(heads, bias):
    power = 1 << (heads.bit_length() - 1)
    h = np.arange(heads)
    return np.where(h < power, 2.0 ** (-bias * (h + 1) / power), 2.0 ** (-bias * (2 * (h - power) + 1) / (2 * power)))


def shares(logits, sinks):
    """softmax of rows with one more logit of each head; zeros for rows that are -inf."""
    top = logits.max(-1, keepdims=True, initial=-np.inf)
    top = top if sinks is None else np.maximum(top, sinks[:, None, None])
    top = np.where(np.isneginf(top), 0, top)
    parts = np.exp(logits - top)
    total = parts.sum(-1, keepdims=True) + (0 if sinks is None else np.exp(sinks[:, None, None] - top))
    return np.divide(parts, total, out=np.zeros_like(parts), where=total != 0)


def masked(logits, mask, bias):
    batch, heads, n, _ = logits.shape
    mask = np.tile(mask, (batch // mask.shape[0], heads // mask.shape[1], 1, 1))[:, :, :n]
    return logits + (slopes(heads, bias)[:, None, None] if bias else 1.0) * mask


def random_mask(*shape, dtype, hidden=0.3):
    values = real(*shape, dtype=dtype).values.copy()
    values[np.random.default_rng(7).random(shape) < hidden] = -np.inf
    return In(values)


@covers("SOFT_MAX")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("bias", [0.0, 8.0])
def test_softmax_with_masks_of_heads_and_sinks(dtype, bias):
    for batch, heads, n, m in ((1, 1, 1, 1), (2, 3, 5, 7), (4, 6, 3, 130), (1, 8, 9, 600)):
        mask = random_mask(2 if batch % 2 == 0 else 1, 1 if heads == 3 else heads, n + 2, m, dtype=dtype)

        def reference(a, mask, sinks):
            return shares(masked(0.7 * a, mask, bias), sinks)

        inputs = [real(batch, heads, n, m), mask, real(heads)]
        tolerance = Tolerance(terms=60, n=m)
        check(lambda a, k, s: gb.ops.softmax(a, k, 0.7, max_bias=bias, sinks=s), inputs, reference, tolerance,
              magnitude=lambda *x: np.ones(x[0].shape))  # fmt: skip
        both_ways(lambda a, k, inplace: gb.ops.softmax(a, k, 0.7, max_bias=bias, inplace=inplace), inputs[:2],
                  lambda a, k: reference(a, k, None), tolerance,
                  magnitude=lambda *x: np.ones(x[0].shape))  # fmt: skip


SHAPES = [  # batch, heads, heads of k, heads of v, queries, keys, dk, dv
    (1, 1, 1, 1, 1, 1, 8, 8),
    (2, 8, 2, 2, 1, 300, 64, 64),
    (1, 4, 2, 1, 20, 70, 64, 32),
    (1, 6, 3, 2, 3, 2100, 32, 64),
    (1, 4, 4, 4, 100, 515, 64, 64),
    (2, 6, 1, 2, 40, 129, 33, 17),
    (1, 2, 1, 1, 5, 0, 32, 32),
]


def attention(q, k, v, mask=None, sinks=None, bias=0.0, cap=0.0):
    heads = q.shape[1]
    k, v = np.repeat(k, heads // k.shape[1], 1), np.repeat(v, heads // v.shape[1], 1)
    logits = np.einsum("bhnd,bhmd->bhnm", q, k) / np.sqrt(q.shape[-1])
    logits = cap * np.tanh(logits / cap) if cap else logits
    logits = logits if mask is None else masked(logits, mask, bias)
    return np.einsum("bhnm,bhmd->bnhd", shares(logits, sinks), v)


@covers("FLASH_ATTN_EXT")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("bias", "cap"), [(0.0, 0.0), (8.0, 0.0), (0.0, 5.0)])
def test_attention(dtype, bias, cap):
    for batch, heads, hk, hv, n, m, dk, dv in SHAPES:
        for layout in ("whole", "permuted"):
            q = real(batch, heads, n, dk, layout=layout)
            k, v = (
                real(batch, hk, m, dk, dtype=dtype, layout=layout),
                real(batch, hv, m, dv, dtype=dtype, layout=layout),
            )
            mask = random_mask(1, heads if bias else 1, n + 1, m, dtype="float16" if cap else "float32")
            mask.values[:, :, 0] = -np.inf  # a query that sees nothing
            sinks, tolerance = real(heads), Tolerance(terms=80, n=dk + m)
            check(lambda q, k, v, k_, s: gb.ops.flash_attn_ext(q, k, v, k_, sinks=s, max_bias=bias, softcap=cap),
                  [q, k, v, mask, sinks], lambda q, k, v, k_, s: attention(q, k, v, k_, s, bias, cap),
                  tolerance, magnitude=largest, dtype="float32")  # fmt: skip
            if not bias:
                check(lambda q, k, v: gb.ops.flash_attn_ext(q, k, v, softcap=cap), [q, k, v],
                      lambda q, k, v: attention(q, k, v, cap=cap), tolerance, magnitude=largest,
                      dtype="float32")  # fmt: skip


def largest(q, k, v, *rest):
    """A bound of the magnitudes of results, for every element."""
    return np.full((q.shape[0], q.shape[2], q.shape[1], v.shape[-1]), 4.0)


def in_bytes(x):
    """Each 32 numbers rounded to multiples of their largest magnitude / 127, as rows of products are."""
    groups = x.reshape(*x.shape[:-1], -1, 32)
    step = np.abs(groups).max(-1, keepdims=True) / 127
    return (np.rint(groups / step) * step).reshape(x.shape)


def attend(x, blocks, name, mask=None, prec="default"):
    """The result of the CPU for queries x and quantized keys and values."""
    dtype = gb.dtypes.as_dtype(name)
    cpu = gb.Backend("CPU", n_threads=2)
    with gb.Context() as ctx:
        q = ctx.tensor(x.shape)
        k, v = (ctx.tensor((*b.shape[:-1], b.shape[-1] // dtype.itemsize * dtype.block_size), name) for b in blocks)
        hidden = None if mask is None else ctx.tensor(mask.shape, "float16")
        y = gb.ops.flash_attn_ext(q, k, v, hidden, prec=prec)
        graph, memory = ctx.graph(y), ctx.allocate(cpu)
        for tensor, value in ((q, x), (k, blocks[0]), (v, blocks[1]), (hidden, mask)):
            if tensor is not None:
                tensor.set(value)
        graph.compute(cpu)
        result = y.numpy().copy()
        del memory
    return result


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q5_1", "q4_k"])
def test_attention_with_quantized_keys_and_values(name):
    rng = np.random.default_rng(5)
    block = gb.dtypes.as_dtype(name).block_size
    shapes = [(1, 4, 2, 1500, block, block), (40, 4, 2, 200, block, block)]
    if block == 32:
        shapes += [(1, 8, 1, 300, 128, 64), (2, 4, 1, 77, 96, 160), (5, 3, 1, 33, 64, 32), (1, 1, 1, 5000, 64, 64)]
    for n, heads, shared, m, dk, dv in shapes:
        values = [rng.standard_normal((1, shared, m, d), np.float32) for d in (dk, dv)]
        blocks = [gb.quantize(x, name) for x in values]
        kv = [gb.dequantize(x, name).astype(np.float64) for x in blocks]
        x = rng.standard_normal((1, heads, n, dk), np.float32)
        exact, rounded = (attention(q, *kv) for q in (x.astype(np.float64), in_bytes(x.astype(np.float64))))
        np.testing.assert_allclose(attend(x, blocks, name, prec="f32"), exact, rtol=0, atol=2e-5)
        found = attend(x, blocks, name)
        if name == "q8_0" and n * heads // shared <= 8 and not np.allclose(found, exact, rtol=0, atol=2e-5):
            np.testing.assert_allclose(found, rounded, rtol=0, atol=2e-5)  # at levels that multiply bytes
        else:
            np.testing.assert_allclose(found, exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("heads", [1, 8, 20])
def test_hidden_blocks_have_no_effect(heads):
    """Unused places of a cache may hold scales that are NaN."""
    rng = np.random.default_rng(8)
    blocks = [gb.quantize(rng.standard_normal((1, 1, 300, 64), np.float32), "q8_0") for _ in range(2)]
    x = rng.standard_normal((1, heads, 1, 64), np.float32)
    mask = np.zeros((1, 1, 1, 300), np.float16)
    mask[..., 150:] = mask[..., 7] = -np.inf
    want = attend(x, blocks, "q8_0", mask)
    for one in blocks:
        raw = np.asarray(one)
        raw[:, :, 150:, :2] = raw[:, :, 7, 34:36] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
    np.testing.assert_array_equal(attend(x, blocks, "q8_0", mask), want)


@pytest.mark.parametrize("n", [1, 30])
def test_hidden_keys_have_no_effect(n):
    """Unused places of a cache may hold NaN and infinity."""
    cpu = gb.Backend("CPU")
    rng = np.random.default_rng(6)
    x, keys, values = (rng.standard_normal((1, 2, m, 32), np.float32) for m in (n, 300, 300))
    mask = np.zeros((1, 1, n, 300), np.float16)
    mask[..., 150:] = mask[..., 7] = -np.inf
    want = attention(*(t.astype(np.float64) for t in (x, keys, values, mask)))
    keys[:, :, 150:], values[:, :, 150:], values[:, :, 7], keys[:, :, 7] = np.nan, np.inf, np.nan, np.inf
    with gb.Context() as ctx:
        tensors = [ctx.tensor(t.shape, t.dtype) for t in (x, keys, values, mask)]
        y = gb.ops.flash_attn_ext(*tensors)
        graph, memory = ctx.graph(y), ctx.allocate(cpu)
        for t, given in zip(tensors, (x, keys, values, mask), strict=True):
            t.set(given)
        graph.compute(cpu)
        np.testing.assert_allclose(y.numpy(), want, rtol=0, atol=1e-5)
        del memory


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_nan_in_a_mask_stays_in_its_row(dtype):
    """A NaN of a mask makes the results of its query NaN, and no others."""
    for heads, n, m in ((2, 1, 300), (4, 3, 70), (2, 40, 150)):
        mask = random_mask(1, 1, n, m, dtype=dtype)
        mask.values[0, 0, n // 2, m // 3] = np.nan
        tolerance = Tolerance(terms=80, n=32 + m)
        check(gb.ops.flash_attn_ext, [real(1, heads, n, 32), real(1, heads, m, 32), real(1, heads, m, 32), mask],
              lambda q, k, v, hidden: attention(q, k, v, hidden), tolerance, magnitude=largest)  # fmt: skip
        check(lambda a, k: gb.ops.softmax(a, k, 0.7), [real(1, heads, n, m), mask],
              lambda a, k: shares(masked(0.7 * a, k, 0), None), tolerance,
              magnitude=lambda *x: np.ones(x[0].shape))  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ rotations

SECTIONS = (2, 1, 3, 1)


def turned(x, positions, mode, n_dims, factors=None, offset=0, back=False, sections=SECTIONS):
    vision, pairs = mode == "vision", n_dims if mode == "vision" else n_dims // 2
    j = np.arange(pairs)
    stream, power = np.zeros(pairs, int), j
    if mode in ("mrope", "vision", "imrope"):
        k = j % sum(sections)
        starts = np.cumsum([0, *sections[:3]])
        stream = np.searchsorted(np.cumsum(sections)[:3], k, side="right")
        power = k - starts[stream] if vision else j
        if mode == "imrope":
            stream = np.where(k < 3 * np.array(sections)[k % 3], k % 3, 3)
    at = positions.reshape(-1, x.shape[1])[stream].T
    angle = at * 10000.0 ** (-2.0 * power / n_dims) / (1 if factors is None else factors[:pairs])
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None] * (-1 if back else 1)
    normal = mode == "normal_exact"
    first = offset + j * (2 if normal else 1)
    second = first + (1 if normal else pairs)
    out = x.copy()
    out[..., first] = x[..., first] * c - x[..., second] * s
    out[..., second] = x[..., first] * s + x[..., second] * c
    return out


@covers("ROPE", "ROPE_BACK")
@pytest.mark.parametrize("mode", ["normal_exact", "neox_exact", "mrope", "imrope", "vision"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rotations_with_factors_positions_and_offsets(mode, dtype):
    """Factors of frequencies, four positions for each token, and an offset of the rotated part."""
    four = mode in ("mrope", "imrope", "vision")
    for shape, n_dims, offset in (((1, 5, 3, 64), 64, 0), ((2, 4, 2, 36), 16, 6), ((1, 3, 1, 32), 32, 0)):
        n, offset = (shape[-1] // 2, 0) if mode == "vision" else (n_dims, offset)
        for layout in ("whole", "padded"):
            x = real(*shape, dtype=dtype, layout=layout)
            positions = whole((4 if four else 1) * shape[1], low=-20, high=300)
            options = {"mode": mode, "n_dims": n, "offset": offset, **({"sections": SECTIONS} if four else {})}
            for function, back in ((gb.ops.rope, False), (gb.ops.rope_back, True)):
                check(lambda x, p, f, call=function, o=options: call(x, p, factors=f, **o),
                      [x, positions, real(n, low=1.0, high=8.0)],
                      lambda x, p, f, n=n, back=back, o=offset: turned(x, p, mode, n, f, o, back),
                      Tolerance(terms=300), magnitude=lambda *x: np.full_like(x[0], 4.0))  # fmt: skip


def test_equal_positions_make_sections_neox():
    x, p = real(1, 4, 2, 32), np.arange(4, dtype=np.int32) * 7
    for mode in ("mrope", "imrope"):
        check(lambda x, p, m=mode: gb.ops.rope(x, p, mode=m, sections=(4, 2, 2, 0)), [x, array(np.tile(p, 4), "int32")],
              lambda x, p: turned(x, p[:4], "neox_exact", 32), Tolerance(terms=200),
              magnitude=lambda *x: np.full_like(x[0], 4.0))  # fmt: skip


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "mrope"}, "need sections"),
        ({"sections": (1, 1, 0, 0)}, "and others take none"),
        ({"mode": "mrope", "sections": (0, 0, 0, 4)}, "one of the first three sections"),
        ({"mode": "mrope", "sections": (9, 9, 9, 9)}, "at most 8 pairs"),
        ({"mode": "mrope", "sections": (1, 2)}, "four numbers"),
        ({"offset": 2}, "n_offs"),
        ({"offset": 1, "n_dims": 4}, "n_offs"),
        ({"mode": "neox", "offset": 2, "n_dims": 4}, "exact mode"),
    ],
)
def test_wrong_rotations(options, reason):
    with gb.Context() as ctx:
        x, p = ctx.tensor((3, 2, 8)), ctx.tensor((12 if "sections" in options and "mode" in options else 3,), gb.int32)
        with pytest.raises(gb.errors.InvalidArgumentError, match=reason):
            gb.ops.rope(x, p, **options)
