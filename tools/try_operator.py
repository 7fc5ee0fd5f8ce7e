#!/usr/bin/env python3
"""Adds made-up operators to a copy of the tree, builds the package from it, and computes with them.

    try_operator.py [--only NAME] [--keep FOLDER] [--all-levels]

- ``unary``: softsign, x / (1 + |x|), a function of UNARY with a kernel of its own.
- ``own``: pair_sums, the sums of neighbours in each row, an operator with a rule and a shape of its own.

How they are tried is in try_common.py.
"""

from __future__ import annotations

import sys

from try_common import Edit, Exercise, run

START = """
import numpy as np
import ggml_backend as gb

x = np.linspace(-4, 4, 7 * 34, dtype=np.float32).reshape(7, 34)

def compute(build):
    with gb.Backend("CPU") as cpu, gb.Scheduler([cpu]) as scheduler, gb.Context() as ctx:
        source = ctx.tensor(x.shape, name="x")
        result = build(source)
        with ctx.allocate(cpu):
            source.set(x)
            scheduler.compute(ctx.graph(result))
            return result.numpy().copy()
"""

BUILDER = """struct ggml_tensor * ggml_pair_sums(struct ggml_context * ctx, struct ggml_tensor * a) {
    if (!check_pair_sums(__func__, a)) {
        return NULL;
    }
    struct ggml_tensor * node = gb_op_new(ctx, __func__, GGML_OP_PAIR_SUMS, a->type, shape_pair_sums(a));
    return gb_op_sources(ctx, node, GB_GRAD_NONE, a, NULL, NULL);
}

bool gb_built_pair_sums(gb_ct t) {
    return check_pair_sums(NULL, t->src[0]) && gb_is_shape(t, shape_pair_sums(t->src[0]));
}

"""

RULE = """static bool check_pair_sums(const char * func, gb_ct a) {
    const struct gb_call c = GB_CALL_1(func, a);
    return gb_rule_given(&c) && gb_rule_no_grad(&c) &&
           (a->ne[0] % 2 == 0 || gb_rule_broken(&c, "{a.0} must be even, is %lld", (long long) a->ne[0]));
}

static struct gb_shape shape_pair_sums(gb_ct a) { return gb_shape_of(a->ne[0] / 2, a->ne[1], a->ne[2], a->ne[3]); }

"""

DRIVER = """static void run_pair_sums(const struct gb_cpu_call * call, struct ggml_tensor * node) {
    const struct ggml_tensor * a = node->src[0];
    int64_t                    first, last;
    gb_cpu_share(call, gb_rows(node), &first, &last);
    for (int64_t r = first; r < last && !gb_cpu_stopped(call, a->ne[0]); r++) {
        const struct gb_row at = gb_row_at(node, r);
        const char *        x  = gb_row_of(a, at);
        char *              y  = gb_row_of(node, at);
        for (int64_t i = 0; i < node->ne[0]; i++, x += 2 * a->nb[0], y += node->nb[0]) {
            gb_set(node->type, y, gb_get(a->type, x) + gb_get(a->type, x + a->nb[0]));
        }
    }
}

const struct gb_cpu_op gb_cpu_op_pair_sums = {
    .unsupported = float_unsupported, .n_tasks = gb_tasks_src_rows, .run = run_pair_sums
};
"""

EXERCISES = {
    "unary": Exercise(
        files=4,
        edits=(
            Edit("c/include/ggml.h", "    GGML_UNARY_OP_COUNT,\n", "    GGML_UNARY_OP_SOFTSIGN,\n"),
            Edit(
                "c/src/tensor/ops.def",
                "\n#undef GB_OP\n",
                "GB_UNARY_OP(SOFTSIGN, softsign, EXACT, GENERIC, none)\n",
            ),
            Edit(
                "c/src/cpu/kernels/elementwise.tpl.h",
                "ROWS_1(abs_f32, UNARY,",
                "ROWS_1(softsign_f32, UNARY, v_div(a, v_add(v_set(1.0f), v_abs(a))))\n",
            ),
            Edit("python/ggml_backend/ops/_unary.py", '    "sqr",\n', '    "softsign",\n'),
            Edit(
                "python/ggml_backend/ops/_unary.py",
                '@builds("ggml_leaky_relu")\n',
                "def softsign(a: Tensor, inplace: bool = False) -> Tensor:\n"
                '    """``x / (1 + |x|)``"""\n'
                '    return unary(a, "softsign", inplace)\n\n\n',
            ),
        ),
        program=START
        + """
want = x / (1 + np.abs(x))
np.testing.assert_array_equal(compute(gb.softsign), want)
np.testing.assert_array_equal(compute(lambda t: gb.softsign(t, inplace=True)), want)
np.testing.assert_array_equal(compute(lambda t: gb.unary(t, "softsign")), want)
np.testing.assert_array_equal(compute(lambda t: gb.softsign(t * 2.0) + t), 2 * x / (1 + np.abs(2 * x)) + x)
""",
    ),
    "own": Exercise(
        files=8,
        edits=(
            Edit("c/include/ggml.h", "    GGML_OP_COUNT,\n", "    GGML_OP_PAIR_SUMS,\n"),
            Edit(
                "c/include/ggml-ext.h",
                "GGML_API struct ggml_tensor * ggml_gelu_erf(struct ggml_context * ctx,",
                "GGML_API struct ggml_tensor * ggml_pair_sums(struct ggml_context * ctx, struct ggml_tensor * a);\n",
            ),
            Edit(
                "c/src/tensor/ops.def",
                "\nGB_UNARY_OP(ABS,",
                'GB_OP(PAIR_SUMS, pair_sums, 1, EACH, ROWS, NEVER, ALL, none, "pair_sums(x)")\n',
            ),
            Edit("c/src/tensor/ops_reduce.c", '#include "tensor/ops.h"\n', '#include "tensor/rule.h"\n'),
            Edit("c/src/tensor/ops_reduce.c", "struct ggml_tensor * ggml_mean(", RULE + BUILDER),
            Edit("c/src/cpu/ops/reduce.c", "const struct gb_cpu_op gb_cpu_op_mean = {", DRIVER),
            Edit("python/ggml_backend/ops/_reduce.py", '    "repeat",\n', '    "pair_sums",\n'),
            Edit(
                "python/ggml_backend/ops/_reduce.py",
                '@builds("ggml_mean")\n',
                '@builds("ggml_pair_sums")\n'
                "@without()\n"
                "def pair_sums(a: Tensor) -> Tensor:\n"
                '    """Sums of neighbours: ``(..., 2 n)`` gives ``(..., n)``."""\n'
                '    return build_1("pair_sums", lib.ggml_pair_sums, a)\n\n\n',
            ),
        ),
        program=START
        + """
want = x.reshape(7, 17, 2).sum(-1)
np.testing.assert_array_equal(compute(gb.pair_sums), want)
np.testing.assert_array_equal(compute(lambda t: gb.pair_sums(t * 2.0) * 3.0), 2 * want * 3)
try:
    compute(lambda t: gb.pair_sums(t[:, :33]))
except gb.InvalidArgumentError as error:
    assert "even" in str(error) and "33" in str(error), error
else:
    raise SystemExit("a row of 33 elements was taken")
""",
    ),
}


if __name__ == "__main__":
    sys.exit(run(EXERCISES, __doc__))
