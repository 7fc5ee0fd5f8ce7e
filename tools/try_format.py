#!/usr/bin/env python3
"""Adds a made-up quantized format to a copy of the tree, builds the package from it, and computes with it.

    try_format.py [--keep FOLDER]

The format is Q8_X, 32 signed bytes with a float32 scale. The program quantizes, dequantizes and multiplies with it at
every kernel level of this processor, and compares with NumPy (see try_common.py).
"""

from __future__ import annotations

import sys

from try_common import Edit, Exercise, run

FORMAT = """// q8_x.c - 32 elements in 36 bytes: f32 d, 32 signed bytes; y = q d. Importance is ignored.
#include "tensor/quant/legacy.h"

static void quantize_block(const float * x, const float * w, uint8_t * block, uint8_t * levels) {
    (void) w;
    const float d = gb_quantize_bytes(x, (int8_t *) block + GB_AT(q8_x, qs));
    memcpy(block + GB_AT(q8_x, d), &d, sizeof(d));
    memset(levels, 0, GB_BLOCK); // no histogram
}

static void unpack_block(const uint8_t * block, struct gb_block * b) {
    memcpy(&b->d, block + GB_AT(q8_x, d), sizeof(b->d));
    memcpy(b->level, block + GB_AT(q8_x, qs), GB_BLOCK);
}

GB_BLOCK_FORMAT(q8_x, 0, 1e38f, GB_NAN_F32)
"""

UNPACK_CPU = """static void unpack_q8_x(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    const uint8_t * block = x;
    for (int64_t i = 0; i < k / 32; i++, block += GB_BYTES(q8_x), u += 32) {
        memcpy(d + i, block + GB_AT(q8_x, d), sizeof(*d));
        m[i] = d[i] * (float) -GB_ZERO(q8_x);
        b32_store(u, b32_xor(b32_load(block + GB_AT(q8_x, qs)), GB_ZERO(q8_x)));
    }
}

"""

UNPACK_CUDA = """GB_UNPACK(Q8_X) {
    gb_bytes(p + GB_AT(q8_x, qs), o);
    gb_scales(o, gb_read_f32(p + GB_AT(q8_x, d)), 0);
}

"""

PROGRAM = """
import os, subprocess, sys

import numpy as np
import ggml_backend as gb

if len(sys.argv) == 1:
    for level, usable in gb.cpu_levels().items():
        if usable:
            env = {**os.environ, "GGML_CPU_LEVEL": level}
            subprocess.run([sys.executable, __file__, level], env=env, check=True)
    raise SystemExit

assert (gb.q8_x.block_size, gb.q8_x.itemsize, gb.q8_x.is_quantized) == (32, 36, True)
assert "q8_x" in gb.dtypes.__all__ and gb.as_dtype("Q8_X") is gb.q8_x
rng = np.random.default_rng(1)

def oracle(x):  # levels and scales; a level is rounded half away from zero
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    d = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    v = blocks * (np.float32(1) / d)
    return np.trunc(v + np.copysign(np.float32(0.5), v)).astype(np.int8), d

for rows, columns, n in ((1, 32, 1), (7, 544, 3), (40, 1024, 33), (5, 4128, 1)):
    w = rng.standard_normal((rows, columns), dtype=np.float32)
    x = rng.standard_normal((n, columns), dtype=np.float32)
    levels, d = oracle(w)
    values = (levels * d).reshape(w.shape)
    blocks = gb.quantize(w, "q8_x")
    assert blocks.shape == (rows, columns // 32 * 36)
    want = np.concatenate([d.view(np.uint8), levels.view(np.uint8)], -1).reshape(blocks.shape)
    np.testing.assert_array_equal(blocks, want)
    np.testing.assert_array_equal(gb.dequantize(blocks, "q8_x"), values)
    with gb.Backend("CPU") as cpu, gb.Scheduler([cpu]) as scheduler, gb.Context() as ctx:
        a, b = ctx.tensor(w.shape, gb.q8_x), ctx.tensor(x.shape)
        product, back = gb.mul_mat(a, b), gb.get_rows(a, ctx.constant(np.arange(rows, dtype=np.int32)))
        with ctx.allocate(cpu):
            a.set(blocks)
            b.set(x)
            scheduler.compute(ctx.graph(product, back))
            got, floats = product.numpy().copy(), back.numpy().copy()
    np.testing.assert_array_equal(floats, values)
    # activations are rounded to 1/254 of the largest magnitude of 32
    bound = np.repeat(np.abs(x).reshape(n, -1, 32).max(-1) / 254, 32, axis=-1) @ np.abs(values).T
    error = np.abs(got - x.astype(np.float64) @ values.T.astype(np.float64))
    assert (error <= 1.001 * bound + 1e-4).all(), (sys.argv[1], rows, columns, n, (error / bound).max())
try:
    gb.quantize(np.array([[1.0] * 31 + [np.inf]], np.float32), "q8_x")
except gb.InvalidArgumentError:
    pass
else:
    raise SystemExit("an infinity was quantized")
print(f"q8_x at level {sys.argv[1]}: as NumPy says")
"""

EXERCISES = {
    "format": Exercise(
        files=6,
        edits=(
            Edit("c/include/ggml.h", "    GGML_TYPE_COUNT,\n", "    GGML_TYPE_Q8_X = 41,\n"),
            Edit(
                "c/src/tensor/quant/formats.def",
                "GB_FORMAT(Q2_K, ",
                'GB_FORMAT(Q8_X, q8_x, "q8_x", 32, 36, 32, 128, 255, WEIGHTS, Q8_0, UNPACKED, UNPACKED,\n'
                "    d[4], qs[32])\n",
            ),
            Edit("c/src/tensor/quant/q8_x.c", None, FORMAT),
            Edit("c/src/cpu/kernels/unpack.tpl.h", "#define IQ4_LEVEL(v)", UNPACK_CPU),
            Edit("c/src/cuda/kernels/unpack.cuh", "GB_UNPACK(Q8_K) {\n", UNPACK_CUDA),
            Edit("python/ggml_backend/dtypes.py", '"tq1_0", "tq2_0",\n', '"q8_x", '),
            Edit("python/ggml_backend/dtypes.py", 'q2_k: DType = dtypes["q2_k"]\n', 'q8_x: DType = dtypes["q8_x"]\n'),
        ),
        program=PROGRAM,
        all_levels=True,
    ),
}

if __name__ == "__main__":
    sys.exit(run(EXERCISES, __doc__))
