#!/usr/bin/env python3
"""Adds a made-up kernel level to a copy of the tree, builds the package from it, and computes with it.

    try_level.py [--keep FOLDER]

The level is `wide`: sixteen lanes, as AVX-512 has, without an instruction of its own (the compiler's vectors). The
program compares it with the scalar level in functions, reductions, rows, conversions and products (see try_common.py).
"""

from __future__ import annotations

import sys

from try_common import Edit, Exercise, run

VEC = """// vec_wide.h - the vector operations of the templates on sixteen lanes, with the compiler's own vectors.
#ifndef GB_CPU_KERNELS_VEC_H
#define GB_CPU_KERNELS_VEC_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/fp16.h"

#define HAVE_SCALE2 1
#include "cpu/kernels/isa.h"

#define V_N            16
#define V_REGISTERS    32
#define V_GEMM_MR      4
#define V_GEMM_NV      1
#define V_BYTES_MR     4
#define V_BYTES_NV     1
#define V_CHAINS       4
#define V_ASM_REGISTER "m"

typedef float   vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef vi      vm;
typedef double  vd __attribute__((vector_size(128)));
typedef uint8_t vb __attribute__((vector_size(64)));

#define EACH(T, value)               \\
    T r;                             \\
    for (int i = 0; i < V_N; i++) {  \\
        r[i] = (value);              \\
    }                                \\
    return r
#define PART(T, p, n)                \\
    T part[V_N] = { 0 };             \\
    memcpy(part, p, (size_t) (n) * sizeof(T))

static inline vf v_set(float x) { return x - (vf) { 0 }; }
static inline vf v_load(const float * p) { vf r; memcpy(&r, p, sizeof(r)); return r; }
static inline vf v_load_n(const float * p, int n) { PART(float, p, n); return v_load(part); }
static inline void v_store(float * p, vf a) { memcpy(p, &a, sizeof(a)); }
static inline void v_store_n(float * p, vf a, int n) { memcpy(p, &a, (size_t) n * sizeof(float)); }
static inline vf v_first(vf a, int n, vf rest) { EACH(vf, i < n ? a[i] : rest[i]); }
static inline vi v_bits(vf a) { vi r; memcpy(&r, &a, sizeof(r)); return r; }
static inline vf v_from_bits(vi a) { vf r; memcpy(&r, &a, sizeof(r)); return r; }
static inline vf v_from_int(vi a) { EACH(vf, (float) a[i]); }
static inline vi vi_set(int32_t x) { return x - (vi) { 0 }; }
static inline vm v_gt(vf a, vf b) { return a > b; }
static inline vm v_lt(vf a, vf b) { return a < b; }
static inline vm v_eq(vf a, vf b) { return a == b; }
static inline vm v_not_lt(vf a, vf b) { return ~(a < b); }
static inline vm v_ordered(vm m, vf a, vf b) { return m & (a == a) & (b == b); }
static inline bool vm_all(vm a) { bool all = true; for (int i = 0; i < V_N; i++) { all &= a[i] != 0; } return all; }
static inline vf v_sel(vm m, vf a, vf b) { return v_from_bits((m & v_bits(a)) | (~m & v_bits(b))); }
static inline vf v_keep(vm m, vf a) { return v_from_bits(m & v_bits(a)); }
static inline vf v_mul_where(vm m, vf a, vf b) { return v_keep(m, a) * b; }
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline vf v_sqrt(vf a) { EACH(vf, sqrtf(a[i])); }
static inline vf v_fma(vf a, vf b, vf c) { EACH(vf, fmaf(a[i], b[i], c[i])); }
static inline vf v_fnma(vf a, vf b, vf c) { EACH(vf, fmaf(-a[i], b[i], c[i])); }
static inline vf v_min(vf a, vf b) { return v_sel(a < b, a, b); }
static inline vf v_max(vf a, vf b) { return v_sel(a > b, a, b); }
static inline vf v_abs(vf a) { return v_from_bits(v_bits(a) & 0x7fffffff); }
static inline vf v_neg(vf a) { return v_from_bits(v_bits(a) ^ INT32_MIN); }
static inline vf v_copysign(vf a, vf sign) {
    return v_from_bits((v_bits(a) & 0x7fffffff) | (v_bits(sign) & INT32_MIN));
}
static inline vi vi_add(vi a, vi b) { EACH(vi, (int32_t) ((uint32_t) a[i] + (uint32_t) b[i])); }
static inline vi vi_sub(vi a, vi b) { EACH(vi, (int32_t) ((uint32_t) a[i] - (uint32_t) b[i])); }
static inline vi vi_and(vi a, vi b) { return a & b; }
static inline vi vi_or(vi a, vi b) { return a | b; }
static inline vi vi_xor(vi a, vi b) { return a ^ b; }
static inline vi vi_shl(vi a, int n) { EACH(vi, (int32_t) ((uint32_t) a[i] << n)); }
static inline vi vi_shr(vi a, int n) { EACH(vi, (int32_t) ((uint32_t) a[i] >> n)); }
static inline vi vi_half(vi a) { return a >> 1; }
static inline vi vi_exponent(vi a) { return a >> 23; }
static inline vi v_load_u16(const uint16_t * p) { EACH(vi, p[i]); }
static inline vi v_load_u16_n(const uint16_t * p, int n) { PART(uint16_t, p, n); return v_load_u16(part); }
static inline void v_store_u16_n(uint16_t * p, vi a, int n) {
    for (int i = 0; i < n; i++) { p[i] = (uint16_t) a[i]; }
}
static inline void v_store_u16(uint16_t * p, vi a) { v_store_u16_n(p, a, V_N); }
static inline vf v_load_f16(const uint16_t * p) { EACH(vf, gb_f16_to_f32(p[i])); }
static inline vf v_load_f16_n(const uint16_t * p, int n) { PART(uint16_t, p, n); return v_load_f16(part); }
static inline void v_store_f16_n(uint16_t * p, vf a, int n) {
    for (int i = 0; i < n; i++) { p[i] = gb_f32_to_f16(a[i]); }
}
static inline void v_store_f16(uint16_t * p, vf a) { v_store_f16_n(p, a, V_N); }
static inline float v_sum(vf a) { float s = 0; for (int i = 0; i < V_N; i++) { s += a[i]; } return s; }
static inline float v_largest(vf a) {
    float m = a[0];
    for (int i = 1; i < V_N; i++) { m = a[i] > m ? a[i] : m; }
    return m;
}
static inline vd vd_zero(void) { return (vd) { 0 }; }
static inline vd vd_add(vd s, vf a) { EACH(vd, s[i] + (double) a[i]); }
static inline vd vd_mad(vd s, vf a, vf b) { EACH(vd, s[i] + (double) a[i] * (double) b[i]); }
static inline vd vd_join(vd a, vd b) { return a + b; }
static inline double vd_sum(vd a) { double s = 0; for (int i = 0; i < V_N; i++) { s += a[i]; } return s; }
static inline void v_transpose(vf t[V_N]) {
    for (int i = 0; i < V_N; i++) {
        for (int j = 0; j < i; j++) { const float x = t[i][j]; t[i][j] = t[j][i]; t[j][i] = x; }
    }
}
static inline vf v_recip(vf a) { return 1.0f / a; }
static inline vf v_scale2(vf p, vf n) { EACH(vf, (float) ldexp((double) p[i], (int) n[i])); }
static inline vf v_swap_pairs(vf a) { EACH(vf, a[i ^ 1]); }
static inline vb vb_load(const void * p) { vb r; memcpy(&r, p, sizeof(r)); return r; }
static inline vb vb_set4(const void * p) {
    vb r;
    for (int i = 0; i < V_N; i++) { memcpy((char *) &r + 4 * i, p, 4); }
    return r;
}
static inline vi vi_lookup16(vi index, const uint8_t * table) {
    vb v; memcpy(&v, &index, sizeof(v));
    for (int i = 0; i < 4 * V_N; i++) { v[i] = table[v[i] & 15]; }
    memcpy(&index, &v, sizeof(v)); return index;
}
static inline vi vi_dot4(vi c, vb u, vb s) {
    for (int i = 0; i < 4 * V_N; i++) { c[i / 4] += u[i] * (int8_t) s[i]; }
    return c;
}
static inline vi vi_dot4w(vi c, vb u, vb s) { return vi_dot4(c, u, s); }

#endif // GB_CPU_KERNELS_VEC_H
"""

LEVEL = """// level_wide.c - a level of sixteen lanes without an instruction of its own.
#include "vec_wide.h"

#define LEVEL_KERNELS gb_kernels_wide
#include "level.tpl.h"
"""

PROGRAM = """
import os, subprocess, sys

import numpy as np
import ggml_backend as gb

if len(sys.argv) == 1:
    assert gb.cpu_levels() == {"scalar": True, "wide": True}, gb.cpu_levels()
    for level in gb.cpu_levels():
        env = {**os.environ, "GGML_CPU_LEVEL": level}
        subprocess.run([sys.executable, __file__, level], env=env, check=True)
    one, other = (np.load(level + ".npz") for level in gb.cpu_levels())
    for name in one.files:
        a, b = one[name].astype(np.float64), other[name].astype(np.float64)
        assert a.shape == b.shape and np.abs(a - b).max() <= 2e-5 * np.abs(a).max(), (name, np.abs(a - b).max())
    print(f"level wide: {len(one.files)} results, as the scalar level says")
    raise SystemExit

rng = np.random.default_rng(1)
results = {}
with gb.Backend("CPU") as cpu, gb.Scheduler([cpu]) as scheduler:
    def compute(name, make, *arrays):
        with gb.Context() as ctx:
            sources = [ctx.tensor(x.shape, t) for x, t in arrays]
            product = make(*sources)
            with ctx.allocate(cpu):
                for tensor, (x, t) in zip(sources, arrays):
                    tensor.set(gb.quantize(x, t) if gb.as_dtype(t).is_quantized else x)
                scheduler.compute(ctx.graph(product))
                results[name] = product.numpy().copy()

    for n in (5, 16, 77, 1024):
        x = rng.standard_normal((3, n), dtype=np.float32)
        for op in (gb.silu, gb.gelu, gb.tanh, gb.relu, gb.sqr, gb.soft_max, gb.rms_norm, gb.norm):
            compute(f"{op.__name__} {n}", op, (x, "f32"))
        compute(f"add {n}", gb.add, (x, "f32"), (x[::-1].copy(), "f32"))
    for t in ("f32", "q4_0", "q5_1", "q8_0", "mxfp4", "q2_k", "q4_k", "q6_k", "iq4_xs", "tq2_0"):
        for k, n in ((256, 1), (768, 5), (512, 70)):
            w, x = (rng.standard_normal((rows, k), dtype=np.float32) for rows in (37, n))
            compute(f"mul_mat {t} {k} {n}", gb.mul_mat, (w, t), (x, "f32"))
np.savez(sys.argv[1] + ".npz", **results)
"""

FOLDER = "c/src/cpu/kernels"

EXERCISES = {
    "level": Exercise(
        files=4,
        edits=(
            Edit(f"{FOLDER}/vec_wide.h", None, VEC),
            Edit(f"{FOLDER}/level_wide.c", None, LEVEL),
            Edit(
                f"{FOLDER}/levels.def",
                "#ifdef GB_HAVE_LEVEL_AVX2\n",
                "#ifdef GB_HAVE_LEVEL_WIDE\nGB_LEVEL(wide, true)\n#endif\n",
            ),
            Edit(
                "c/cmake/levels.cmake",
                'string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" processor)\n',
                "ggml_backend_level(wide . -Wno-psabi)\n",
            ),
        ),
        program=PROGRAM,
    ),
}

if __name__ == "__main__":
    sys.exit(run(EXERCISES, __doc__))
