"""Fused attention and feed-forward, windows, relative positions and user-defined operations against NumPy."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import sys

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._ffi import ffi, lib
from ggml_backend.tensor.tensor import build
from op_harness import (
    EXACT,
    FLOATS,
    LAYOUTS,
    Built,
    Tolerance,
    both_ways,
    check,
    covers,
    cpus,
    real,
    refuses,
    sim,
    whole,
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------------ attention


def probabilities(q, k, masked):
    """(..., n, m). Head h of q uses head h modulo the number of heads of k."""
    k = k[..., np.arange(q.shape[-3]) % k.shape[-3], :, :]
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    n, m = s.shape[-2:]
    if masked:
        s = np.where(np.arange(m) <= m - n + np.arange(n)[:, None], s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v, masked=False):
    v = v[..., np.arange(q.shape[-3]) % v.shape[-3], :, :]
    return probabilities(q, k, masked) @ v.swapaxes(-1, -2)


def attention_tolerance(d, m):
    """Scores up to 4 sqrt(d) are exponents, so their error of d roundings becomes relative. All
    dtypes are computed in float32."""
    return Tolerance(n=m + d, terms=16 + 4 * math.sqrt(d) * d)


# heads of q, of k, of v; queries, keys, head size, batches
ATTENTION = [
    (1, 1, 1, 1, 1, 1, ()),
    (2, 2, 2, 3, 5, 8, ()),
    (4, 2, 1, 4, 4, 7, (2,)),
    (3, 3, 3, 1, 33, 16, (2,)),
    (2, 1, 1, 7, 70, 64, ()),
    (6, 3, 2, 17, 65, 33, ()),
]


@covers("FLASH_ATTN")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("masked", [False, True])
def test_flash_attn(masked, dtype):
    layouts = itertools.cycle(
        [
            ("whole", "whole", "whole"),
            ("permuted", "permuted", "padded"),
            ("padded", "stepped", "offset"),
            ("stepped", "whole", "permuted"),
        ]
    )
    for (h, hk, hv, n, m, d, batch), (one, two, three) in zip([*ATTENTION, *[ATTENTION[2]] * 4], layouts, strict=False):
        inputs = [
            real(*batch, h, n, d, dtype=dtype, layout=one), real(*batch, hk, m, d, dtype=dtype, layout=two),
            real(*batch, hv, d, m, dtype=dtype, layout=three),
        ]  # fmt: skip
        check(lambda q, k, v: gb.ops.flash_attn(q, k, v, masked), inputs, functools.partial(attention, masked=masked),
         attention_tolerance(d, m),
              magnitude=lambda q, k, v: np.full(q.shape, v.max()), dtype="float32")  # fmt: skip


def attention_gradients(q, k, v, g, masked):
    """The parts for q, k and v, each padded to 16 bytes."""
    h, hk = q.shape[-3], k.shape[-3]
    heads = np.arange(h) % hk
    a = probabilities(q, k, masked)
    vr, kr = v[..., heads, :, :], k[..., heads, :, :]
    dp = g @ vr
    z = a * (dp - (a * dp).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
    dk, dv = np.zeros(k.shape), np.zeros(v.shape)
    for i in range(h):
        dk[..., i % hk, :, :] += z[..., i, :, :].swapaxes(-1, -2) @ q[..., i, :, :]
        dv[..., i % hk, :, :] += g[..., i, :, :].swapaxes(-1, -2) @ a[..., i, :, :]
    parts = [z @ kr, dk, dv]
    return np.concatenate([np.concatenate([p.reshape(-1), np.zeros(-p.size % 4)]) for p in parts])


@covers("FLASH_ATTN_BACK")
@pytest.mark.parametrize("masked", [False, True])
def test_flash_attn_back(masked):
    for h, hk, n, m, d, batch in (
        (1, 1, 1, 1, 1, ()),
        (2, 2, 3, 5, 8, ()),
        (4, 2, 4, 4, 7, (2,)),
        (3, 1, 5, 33, 9, (2,)),
        (6, 3, 17, 65, 32, ()),
    ):
        for one, two in (("whole", "whole"), ("permuted", "padded"), ("padded", "permuted")):
            inputs = [
                real(*batch, h, n, d, layout=one),
                real(*batch, hk, m, d, layout=two),
                real(*batch, hk, d, m, layout=one),
                real(*batch, h, n, d, layout=two),
            ]

            def padding(q, k, v, g):  # between the parts; not specified
                return np.concatenate([np.arange(x.size + -x.size % 4) >= x.size for x in (q, k, v)])

            hole = padding(*(i.values for i in inputs))
            want = attention_gradients(*(i.exact for i in inputs), masked)
            built = Built(lambda q, k, v, g: gb.ops.flash_attn_back(q, k, v, g, masked), inputs, cpus()[0][1])
            # dp is a sum of d products up to 4; z of m more; the gradients of n h / hk more
            size = 4.0 * d * 2 / math.sqrt(d) * (n * h / hk + m) ** 0.5 + 4
            tolerance = Tolerance(n=m + d + n * h // hk, terms=16 + 4 * d**1.5)
            assert built.node.shape == want.shape
            for _, backend in cpus():
                got = built.compute(backend)
                built.untouched()
                allowed = tolerance.allowed(want, np.full(want.shape, size), "float32")
                assert (np.abs(got - want)[~hole] <= allowed[~hole]).all(), (
                    h,
                    hk,
                    n,
                    m,
                    d,
                    batch,
                    np.abs(got - want)[~hole].max(),
                )
            there = Built(lambda q, k, v, g: gb.ops.flash_attn_back(q, k, v, g, masked), inputs, sim())
            np.testing.assert_array_equal(there.compute(sim())[~hole], got[~hole]) if len(cpus()) == 2 else None


def test_flash_attn_back_is_the_derivative():
    """Checks the reference by central differences of the forward reference."""
    q, k, v, g = (real(*s).exact for s in ((2, 3, 4), (2, 5, 4), (2, 4, 5), (2, 3, 4)))
    got = attention_gradients(q, k, v, g, True)
    h, want = 1e-6, []
    for i, x in enumerate((q, k, v)):
        for j in np.ndindex(x.shape):
            up, down = x.copy(), x.copy()
            up[j] += h
            down[j] -= h
            args = [(*(q, k, v)[:i], y, *(q, k, v)[i + 1 :]) for y in (up, down)]
            want.append(((attention(*args[0], masked=True) - attention(*args[1], masked=True)) * g).sum() / (2 * h))
    np.testing.assert_allclose(got, want, atol=1e-7)  # all sizes are multiples of 4: no padding


@covers("FLASH_FF")
def test_flash_ff():
    def gelu(x):
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))

    def reference(a, b0, b1, c0, c1):
        return gelu(a @ b0.swapaxes(-1, -2) + b1) @ c0.swapaxes(-1, -2) + c1

    def magnitude(a, b0, b1, c0, c1):
        return 2 * (a @ b0.swapaxes(-1, -2) + b1) @ c0.swapaxes(-1, -2) + c1

    for batch, n, d, hidden in (((), 1, 1, 1), ((), 3, 8, 6), ((2,), 5, 33, 17), ((2, 3), 4, 7, 9), ((), 40, 64, 130)):
        for layout in ("whole", "padded"):
            inputs = [
                real(*batch, n, d, dtype="float16", layout=layout),
                real(*batch, hidden, d, dtype="float16", layout=layout), real(hidden),
                real(*batch, d, hidden, dtype="float16", layout=layout), real(d),
            ]  # fmt: skip
            check(gb.ops.flash_ff, inputs, reference, Tolerance(16, n=d + hidden), magnitude=magnitude, dtype="float32")


def test_attention_refuses_mixed_dtypes():
    shapes = ((1, 3, 8), (1, 5, 8), (1, 8, 5))
    for dtypes in itertools.product(FLOATS, repeat=3):
        if len(set(dtypes)) > 1:
            refuses(gb.ops.flash_attn, [real(*s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)])
    refuses(gb.ops.flash_attn, [real(1, 3, 8), whole(1, 5, 8, low=0, high=3), real(1, 8, 5)])
    # fewer keys than queries
    refuses(gb.ops.flash_attn, [real(1, 7, 8), real(1, 5, 8), real(1, 8, 5)], gb.errors.InvalidArgumentError)


# ------------------------------------------------------------------------------------------ windows, relative positions


def parted(v, w):
    h, width, c = v.shape
    rows, cols = -(-h // w), -(-width // w)
    full = np.zeros((rows * w, cols * w, c))
    full[:h, :width] = v
    return full.reshape(rows, w, cols, w, c).swapaxes(1, 2).reshape(rows * cols, w, w, c)


@covers("WIN_PART", "WIN_UNPART")
@pytest.mark.parametrize("dtype", FLOATS)
def test_windows(dtype):
    for h, width, c, w in ((1, 1, 1, 1), (4, 5, 2, 3), (6, 6, 3, 3), (5, 4, 7, 9), (14, 15, 33, 7), (3, 50, 64, 4)):
        for layout in ("whole", "offset"):
            x = real(h, width, c, dtype=dtype, layout=layout)
            check(lambda t, w=w: gb.ops.win_part(t, w), [x], lambda v, w=w: parted(v, w), EXACT)
            squares = real(*parted(x.exact, w).shape, dtype=dtype, layout=layout)

            def back(v, h=h, width=width, w=w):
                rows, cols = -(-h // w), -(-width // w)
                return v.reshape(rows, cols, w, w, -1).swapaxes(1, 2).reshape(rows * w, cols * w, -1)[:h, :width]

            check(lambda t, h=h, width=width, w=w: gb.ops.win_unpart(t, width, h, w), [squares], back, EXACT)
    refuses(
        lambda t: gb.ops.win_part(t, 2), [real(3, 4, 5, dtype=dtype, layout="padded")], gb.errors.InvalidArgumentError
    )


@covers("GET_REL_POS")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_get_rel_pos(dtype):
    for k, c in ((1, 1), (3, 4), (7, 33), (20, 64)):
        index = k - 1 - np.arange(k)[None, :] + np.arange(k)[:, None]
        for layout in ("whole", "offset"):
            x = real(2 * k - 1, c, dtype=dtype, layout=layout)
            # ggml's dst[c, i, j]: i runs along axis -2, j along axis 0
            check(lambda t, k=k: gb.ops.get_rel_pos(t, k, k), [x], lambda v, i=index: v[i], EXACT)


@covers("ADD_REL_POS")
def test_add_rel_pos():
    def reference(a, pw, ph):
        k = pw.shape[-1]
        each = ph.reshape(-1, k)[:, :, None] + pw.reshape(-1, k)[:, None, :]
        return a + each.reshape(a.shape)

    for m3, m2, m1, k in ((1, 1, 1, 1), (1, 2, 3, 3), (2, 3, 4, 5), (3, 14, 14, 14)):
        inputs = [real(m3, m2 * m1, k * k), real(m3, m2, m1, k), real(m3, m2, m1, k)]
        both_ways(gb.ops.add_rel_pos, inputs, reference, Tolerance(2), magnitude=lambda a, w, h: np.full(a.shape, 6.0))


# ---------------------------------------------------------------------------------------------- user-defined operations


@covers("MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3")
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("n_tasks", [1, 2, -1])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_map_custom(n, n_tasks, inplace):
    def share(dst, *rest):
        arrays, ith, nth = (rest, 0, 1) if n_tasks == 1 else (rest[:-2], *rest[-2:])
        dst[ith::nth] = sum(a[ith::nth] * (i + 2) for i, a in enumerate(arrays))

    for layouts in (("whole",) * 3, LAYOUTS[1:4], ("permuted", "whole", "padded")):
        inputs = [real(4, 5, 6, layout=y) for y in layouts[:n]]
        check(
            lambda *t: gb.ops.map_custom(share, *t, n_tasks=n_tasks, inplace=inplace),
            inputs,
            lambda *v: sum(a * (i + 2) for i, a in enumerate(v)),
            Tolerance(4),
            magnitude=lambda *v: sum(a * (i + 2) for i, a in enumerate(v)),
            writes=(0,) if inplace else (),
            on_sim=False,
        )


@covers("CUSTOM")
@pytest.mark.parametrize("n_tasks", [1, 2, -1])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_custom(n, n_tasks):
    """A result larger than the sources, which have different layouts."""

    def stack(dst, *rest):
        arrays, ith, nth = (rest, 0, 1) if n_tasks == 1 else (rest[:-2], *rest[-2:])
        for i, a in enumerate(arrays):
            dst[i, ith::nth] = a[ith::nth] * (i + 2)

    for layouts in (("whole",) * 4, LAYOUTS[1:5], ("permuted", "whole", "padded", "permuted")):
        inputs = [real(4, 5, 6, layout=y) for y in layouts[:n]]
        check(
            lambda *t: gb.ops.custom(stack, *t, shape=(n, 4, 5, 6), n_tasks=n_tasks),
            inputs,
            lambda *v: np.stack([a * (i + 2) for i, a in enumerate(v)]),
            Tolerance(4),
            magnitude=lambda *v: np.stack([a * (i + 2) for i, a in enumerate(v)]),
            on_sim=False,
        )


# The forms of early 2024 take a C function and are not part of the Python package. Their builders
# store the function's address at the start of the node's parameters. These tests make such nodes
# from nodes with the right sources.
FLOAT_P = ctypes.POINTER(ctypes.c_float)
SIGNATURES = {
    "MAP_UNARY": (ctypes.c_int, FLOAT_P, FLOAT_P),
    "MAP_BINARY": (ctypes.c_int, FLOAT_P, FLOAT_P, FLOAT_P),
    "MAP_CUSTOM1_F32": (ctypes.c_void_p,) * 2,
    "MAP_CUSTOM2_F32": (ctypes.c_void_p,) * 3,
    "MAP_CUSTOM3_F32": (ctypes.c_void_p,) * 4,
}


def mapped(op, function, *tensors):
    pointers = [t._p for t in tensors]
    node = build(op, lib.ggml_dup, tensors[:1])
    for i, pointer in enumerate(pointers):
        node._p.src[i] = pointer
    node._p.op = getattr(lib, f"GGML_OP_{op}")
    address = ctypes.cast(function, ctypes.c_void_p).value
    ffi.memmove(
        node._p.op_params,
        address.to_bytes(ctypes.sizeof(ctypes.c_void_p), sys.byteorder),
        ctypes.sizeof(ctypes.c_void_p),
    )
    return node


@covers("MAP_UNARY", "MAP_BINARY")
@pytest.mark.parametrize("op", ["MAP_UNARY", "MAP_BINARY"])
def test_map_rows(op):
    """The function is called for each row, with its length."""

    @ctypes.CFUNCTYPE(None, *SIGNATURES[op])
    def function(n, *pointers):
        dst, *sources = (np.ctypeslib.as_array(p, (n,)) for p in pointers)
        dst[:] = sum(a * (i + 2) for i, a in enumerate(sources))

    n = 1 if op == "MAP_UNARY" else 2
    for shape, layout in (((1,), "whole"), ((5, 7), "padded"), ((2, 3, 4, 5), "permuted"), ((3, 33), "stepped")):
        inputs = [real(*shape, layout=y) for y in (layout, "padded")[:n]]
        check(functools.partial(mapped, op, function), inputs, weighted, Tolerance(4), magnitude=weighted, on_sim=False)


def weighted(*arrays):
    return sum(a * (i + 2) for i, a in enumerate(arrays))


@covers("MAP_CUSTOM1_F32", "MAP_CUSTOM2_F32", "MAP_CUSTOM3_F32")
@pytest.mark.parametrize("n", [1, 2, 3])
def test_map_custom_f32(n):
    """The function is called once, with the tensors."""

    @ctypes.CFUNCTYPE(None, *SIGNATURES[f"MAP_CUSTOM{n}_F32"])
    def function(*addresses):
        tensors = [ffi.cast("struct ggml_tensor *", a) for a in addresses]
        dst, *sources = (np.frombuffer(ffi.buffer(ffi.cast("char *", t.data), 4 * 36), np.float32) for t in tensors)
        dst[:] = weighted(*sources)

    inputs = [real(4, 9) for _ in range(n)]
    check(
        functools.partial(mapped, f"MAP_CUSTOM{n}_F32", function),
        inputs,
        weighted,
        Tolerance(4),
        magnitude=weighted,
        on_sim=False,
    )
