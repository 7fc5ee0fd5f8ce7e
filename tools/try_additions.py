#!/usr/bin/env python3
"""Adds a unary function, an operator, a quantized format and a kernel level to copies of the tree, and uses them. Each
addition touches only the files that CONTRIBUTING.md lists.

    try_additions.py [--only NAME]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = "c/src/cpu/kernels"


@dataclass(frozen=True)
class Addition:
    """An addition edits files with (file, anchor, text). The text goes before the anchor, which must occur once in the
    file. Without an anchor, the text is a new file. ``program`` then computes with the installed package."""

    edits: tuple[tuple[str, str | None, str], ...]
    program: str
    all_levels: bool = True

    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _, _ in self.edits))

    def apply(self, root: Path) -> None:
        """Edits the tree at ``root``."""
        for file, anchor, text in self.edits:
            path = root / file
            old = path.read_text(encoding="utf-8") if path.exists() else ""
            if (anchor is None and old) or (anchor is not None and old.count(anchor) != 1):
                raise SystemExit(f"{file}: {'exists' if anchor is None else f'{anchor!r} does not occur once'}")
            path.write_text(old.replace(anchor, text + anchor) if anchor else text, encoding="utf-8")


COMPUTE = """
import numpy as np
import ggml_backend as gb

def compute(build, *arrays, level=None):
    with gb.Backend("CPU", level=level) as cpu, gb.Scheduler([cpu]) as scheduler, gb.Context() as ctx:
        sources = [ctx.tensor(x.shape, dtype) for x, dtype in arrays]
        result = build(*sources)
        with ctx.allocate(cpu):
            for tensor, (x, dtype) in zip(sources, arrays):
                tensor.set(gb.quantize(x, dtype) if gb.dtypes.as_dtype(dtype).is_quantized else x)
            scheduler.compute(ctx.graph(result))
            return result.numpy().copy()

x = np.linspace(-4, 4, 7 * 34, dtype=np.float32).reshape(7, 34)
w, v = (np.random.default_rng(1).standard_normal((rows, 544), dtype=np.float32) for rows in (7, 33))
"""

ADDITIONS = {
    "unary": Addition(
        (
            ("c/include/ggml.h", "    GGML_UNARY_OP_COUNT,\n", "    GGML_UNARY_OP_SOFTSIGN,\n"),
            ("c/src/tensor/ops.def", "\n#undef GB_OP\n", "GB_UNARY_OP(SOFTSIGN, softsign, EXACT, GENERIC, none)\n"),
            (
                f"{KERNELS}/elementwise.tpl.h",
                "ROWS_1(abs_f32, UNARY,",
                "ROWS_1(softsign_f32, UNARY, v_div(a, v_add(v_set(1.0f), v_abs(a))))\n",
            ),
            ("python/ggml_backend/ops/_unary.py", '    "sqr",\n', '    "softsign",\n'),
            (
                "python/ggml_backend/ops/_unary.py",
                '@builds("ggml_leaky_relu")\n',
                "def softsign(a: Tensor, inplace: bool = False) -> Tensor:\n"
                '    """``x / (1 + |x|)``"""\n    return unary(a, "softsign", inplace)\n\n\n',
            ),
        ),
        """
for level in (name for name, usable in gb.backend.cpu_levels().items() if usable):
    for build in (gb.softsign, lambda t: gb.softsign(t, inplace=True), lambda t: gb.ops.unary(t, "softsign")):
        np.testing.assert_array_equal(compute(build, (x, "f32"), level=level), x / (1 + np.abs(x)))
""",
    ),
    "operator": Addition(
        (
            ("c/include/ggml.h", "    GGML_OP_COUNT,\n", "    GGML_OP_PAIR_SUMS,\n"),
            (
                "c/include/ggml-ext.h",
                "GGML_API struct ggml_tensor * ggml_gelu_erf(struct ggml_context * ctx,",
                "GGML_API struct ggml_tensor * ggml_pair_sums(struct ggml_context * ctx, struct ggml_tensor * a);\n",
            ),
            (
                "c/src/tensor/ops.def",
                "\nGB_UNARY_OP(ABS,",
                'GB_OP(PAIR_SUMS, pair_sums, 1, EACH, ROWS, NEVER, ALL, none, "pair_sums(x)")\n',
            ),
            ("c/src/tensor/ops_reduce.c", '#include "tensor/ops.h"\n', '#include "tensor/rule.h"\n'),
            (
                "c/src/tensor/ops_reduce.c",
                "struct ggml_tensor * ggml_mean(",
                """static bool check_pair_sums(const char * func, gb_ct a) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_no_grad(&c) &&
           (a->ne[0] % 2 == 0 || GB_BROKEN(&c, SIZE_ODD, .a = "a", .number = { a->ne[0] }));
}

static struct gb_shape shape_pair_sums(gb_ct a) { return gb_shape_of(a->ne[0] / 2, a->ne[1], a->ne[2], a->ne[3]); }

struct ggml_tensor * ggml_pair_sums(struct ggml_context * ctx, struct ggml_tensor * a) {
    if (!check_pair_sums(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_PAIR_SUMS, a->type, shape_pair_sums(a));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

bool gb_built_pair_sums(gb_ct t) {
    return check_pair_sums(NULL, t->src[0]) && gb_is_shape(t, shape_pair_sums(t->src[0]));
}

""",
            ),
            (
                "c/src/cpu/ops/reduce.c",
                "const struct gb_cpu_op gb_cpu_op_mean = {",
                """static void run_pair_sums(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    int64_t first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t r = first; r < last && !gb_cpu_stopped(call, a->ne[0]); r++) {
        const struct gb_row at = gb_row_at(node, r);
        const char * x = gb_row_of(a, at);
        char * y = gb_row_of(node, at);
        for (int64_t i = 0; i < node->ne[0]; i++, x += 2 * a->nb[0], y += node->nb[0]) {
            gb_set(node->type, y, gb_get(a->type, x) + gb_get(a->type, x + a->nb[0]));
        }
    }
}

const struct gb_cpu_op gb_cpu_op_pair_sums = {
    .unsupported = float_unsupported, .n_tasks = gb_tasks_src_rows, .run = run_pair_sums
};
""",
            ),
            ("python/ggml_backend/ops/_reduce.py", '    "repeat",\n', '    "pair_sums",\n'),
            (
                "python/ggml_backend/ops/_reduce.py",
                '@builds("ggml_mean")\n',
                '@builds("ggml_pair_sums")\n@without()\ndef pair_sums(a: Tensor) -> Tensor:\n'
                '    """Sums of neighbours: ``(..., 2 n)`` gives ``(..., n)``."""\n'
                '    return build_1("pair_sums", lib.ggml_pair_sums, a)\n\n\n',
            ),
        ),
        """
np.testing.assert_array_equal(compute(gb.pair_sums, (x, "f32")), x.reshape(7, 17, 2).sum(-1))
try:
    compute(gb.pair_sums, (x[:, :33], "f32"))
except gb.errors.InvalidArgumentError as error:
    assert "even" in str(error) and "33" in str(error), error
else:
    raise SystemExit("pair_sums accepted a row of 33 elements")
""",
        all_levels=False,
    ),
    "format": Addition(
        (
            ("c/include/ggml.h", "    GGML_TYPE_COUNT,\n", "    GGML_TYPE_Q8_X,\n"),
            (
                "c/src/tensor/quant/formats.def",
                "GB_FORMAT(Q2_K, ",
                'GB_FORMAT(Q8_X, q8_x, "q8_x", 32, 36, 32, 128, 255, WEIGHTS, Q8_0, UNPACKED, UNPACKED,\n'
                "    d[4], qs[32])\n",
            ),
            (
                "c/src/tensor/quant/q8_x.c",
                None,
                """// q8_x.c - 32 elements in 36 bytes: f32 d, 32 signed bytes; y = q d. Importance is ignored.
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
""",
            ),
            (
                f"{KERNELS}/unpack.tpl.h",
                "#define IQ4_LEVEL(v)",
                """static void unpack_q8_x(int64_t k, uint8_t * restrict u, float * restrict d, float * restrict m,
    const void * restrict x) {
    const uint8_t * block = x;
    for (int64_t i = 0; i < k / 32; i++, block += GB_BYTES(q8_x), u += 32) {
        memcpy(d + i, block + GB_AT(q8_x, d), sizeof(*d));
        m[i] = d[i] * (float) -GB_ZERO(q8_x);
        b32_store(u, b32_xor(b32_load(block + GB_AT(q8_x, qs)), GB_ZERO(q8_x)));
    }
}

""",
            ),
            (
                "c/src/cuda/kernels/unpack.cuh",
                "GB_UNPACK(Q8_K) {\n",
                "GB_UNPACK(Q8_X) {\n    gb_bytes(p + GB_AT(q8_x, qs), o);\n"
                "    gb_scales(o, gb_read_f32(p + GB_AT(q8_x, d)), 0);\n}\n\n",
            ),
            ("python/ggml_backend/dtypes.py", '    "tq2_0",\n', '    "q8_x",\n'),
            ("python/ggml_backend/dtypes.py", 'q2_k: DType = dtypes["q2_k"]\n', 'q8_x: DType = dtypes["q8_x"]\n'),
        ),
        """
blocks = gb.quantize(w, "q8_x")
values = gb.dequantize(blocks, "q8_x")
d = np.abs(w.reshape(7, 17, 32)).max(-1) / np.float32(127)
assert np.array_equal(blocks.reshape(7, 17, 36)[..., :4].view(np.float32)[..., 0], d)
assert (np.abs(values - w) <= 0.5001 * np.repeat(d, 32, -1)).all()
bound = np.repeat(np.abs(v).reshape(33, -1, 32).max(-1) / 254, 32, axis=-1) @ np.abs(values).T  # activations round
for level in (name for name, usable in gb.backend.cpu_levels().items() if usable):
    error = np.abs(compute(gb.ops.mul_mat, (w, "q8_x"), (v, "f32"), level=level) - v.astype(float) @ values.T)
    assert (error <= 1.001 * bound + 1e-4).all(), (level, (error / bound).max())
""",
    ),
    "level": Addition(
        (
            (f"{KERNELS}/vec_again.h", None, '#include "cpu/kernels/vec_scalar.h"\n'),
            (
                f"{KERNELS}/level_again.c",
                None,
                '#include "vec_again.h"\n\n#define LEVEL_KERNELS gb_kernels_again\n#include "level.tpl.h"\n',
            ),
            (
                f"{KERNELS}/levels.def",
                "#ifdef GB_HAVE_LEVEL_AVX2\n",
                "#ifdef GB_HAVE_LEVEL_AGAIN\nGB_LEVEL(again, true)\n#endif\n",
            ),
            (
                "c/cmake/levels.cmake",
                'string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" processor)\n',
                "ggml_backend_level(again .)\n",
            ),
        ),
        """
assert gb.backend.cpu_levels() == {"scalar": True, "again": True}, gb.backend.cpu_levels()
products = (gb.ops.mul_mat, (w, "q4_0"), (v, "f32"))
for build, *arrays in ((gb.ops.silu, (x, "f32")), (gb.ops.soft_max, (x, "f32")), products):
    np.testing.assert_array_equal(*(compute(build, *arrays, level=level) for level in gb.backend.cpu_levels()))
""",
        all_levels=False,
    ),
}


def attempt(addition: Addition, root: Path) -> None:
    """Copies the tree to ``root``, edits it, builds the package and runs the program. Raises if a step fails."""
    left_out = shutil.ignore_patterns("build", ".git", ".venv", "dist", "__pycache__", ".cache")
    shutil.copytree(ROOT, root, ignore=left_out, symlinks=True)
    addition.apply(root)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps", str(root)]
    command += ["--target", str(root / "site"), "-C", f"build-dir={root / 'build'}"]
    command += ["-C", "cmake.define.CMAKE_C_FLAGS_RELEASE=-O1"]
    if not addition.all_levels:  # an unknown processor has the scalar level alone
        command += ["-C", f"cmake.define.CMAKE_SYSTEM_NAME={platform.system()}"]
        command += ["-C", "cmake.define.CMAKE_SYSTEM_PROCESSOR=plain"]
    subprocess.run(command, check=True)
    environment = {**os.environ, "PYTHONPATH": str(root / "site")}
    subprocess.run([sys.executable, "-c", COMPUTE + addition.program], cwd=root / "site", env=environment, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Add made-up parts to copies of the tree and use them.")
    parser.add_argument("--only", choices=list(ADDITIONS), help="one of the additions")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name in [options.only] if options.only else list(ADDITIONS):
            try:
                attempt(ADDITIONS[name], Path(folder) / name)
                print(f"{name}: computes, with edits of {', '.join(ADDITIONS[name].files())}", flush=True)
            except subprocess.CalledProcessError as error:
                print(f"{name}: FAILED: {' '.join(map(str, error.cmd))[:200]}", flush=True)
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
