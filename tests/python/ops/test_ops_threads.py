"""Every operation on tensors so large that several threads share it: the same bits as with one thread, again and again.

Values are the business of the other test_ops files; here the shares are: that they cover the result, do not overlap,
and that no thread reads what another one has not yet written. Also with more threads than there are rows.
"""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._ffi import ffi, lib
from op_harness import Built, array, real, whole

POSITIONS = array(np.arange(120) * 3, "int32")


def rows(*shape, dtype="float32", layout="whole"):
    return real(*shape, dtype=dtype, layout=layout)


def probabilities(*shape):
    e = np.exp(real(*shape).values)
    return array(e / e.sum(-1, keepdims=True))


def doubled_share(out, x, ith, nth):
    np.multiply(x[ith::nth], 2, out=out[ith::nth])


# operation: [(builder, inputs)]. Inputs are made when the test runs.
CASES = {
    **{n.upper(): [(getattr(gb, n), lambda: [rows(130, 517, layout="stepped")])] for n in (
        "abs", "sgn", "neg", "step", "tanh", "elu", "relu", "gelu", "gelu_erf", "gelu_quick", "silu", "hardswish",
        "hardsigmoid", "leaky_relu", "sqr", "sqrt", "exp", "sigmoid", "sin", "cos", "softplus",
        "log", "sum_rows", "mean", "norm", "rms_norm", "argsort", "cont", "dup")},
    "ADD": [(gb.add, lambda: [rows(130, 517), rows(517)]), (gb.add, lambda: [rows(1, 70001), rows(1, 70001)]),
     (gb.add, lambda: [rows(3, 30001), rows(3, 1)])],
    "SUB": [(gb.sub, lambda: [rows(130, 517), rows(130, 517, layout="transposed")])],
    "MUL": [(gb.mul, lambda: [rows(130, 517, dtype="float16"), rows(517)])],
    "DIV": [(gb.div, lambda: [rows(130, 517), rows(130, 1)])],
    "COMPARE": [(gb.less, lambda: [rows(130, 517), rows(130, 1)]),
     (gb.equal, lambda: [whole(130, 517, low=0, high=4), whole(517, low=0, high=4)])],
    "WHERE": [(gb.where, lambda: [whole(130, 517, low=0, high=2), rows(130, 517), rows(130, 1)]),
     (gb.where, lambda: [whole(1, 70001, low=0, high=2), rows(1, 70001), rows(1, 70001)])],
    "ADD1": [(gb.add1, lambda: [rows(130, 517), rows(1)])],
    "ACC": [(lambda a, b: gb.acc(a, b, 4 * 517), lambda: [rows(300, 517), rows(280, 517, layout="padded")])],
    "SET": [(lambda a, b: gb.set(a, b, 4 * 517), lambda: [rows(300, 517), rows(280, 517, layout="padded")])],
    "SCALE": [(lambda a: gb.scale(a, 0.3), lambda: [rows(1, 70001)])],
    "CLAMP": [(lambda a: gb.clamp(a, -1, 1), lambda: [rows(130, 517)])],
    "ARGMAX": [(gb.argmax, lambda: [rows(130, 517)])],
    "REPEAT": [(lambda a: gb.repeat(a, (7, 60, 500)), lambda: [rows(20, 125)])],
    "REPEAT_BACK": [(lambda a: gb.repeat_back(a, (1, 60, 100)), lambda: [rows(7, 120, 500)]),
     (lambda a: gb.repeat_back(a, (1, 1)), lambda: [rows(300, 300)])],
    "CONCAT": [(gb.concat, lambda: [rows(7, 60, 100), rows(9, 60, 100, layout="permuted")])],
    "SILU_BACK": [(gb.silu_back, lambda: [rows(130, 517), rows(130, 517)])],
    "RMS_NORM_BACK": [(gb.rms_norm_back, lambda: [rows(130, 517), rows(130, 517)])],
    "GROUP_NORM": [(lambda a: gb.group_norm(a, 5), lambda: [rows(2, 13, 50, 60)])],
    "MUL_MAT": [(gb.mul_mat, lambda: [rows(300, 129), rows(70, 129)]),
     (gb.mul_mat, lambda: [rows(2, 40, 33), rows(6, 50, 33, layout="permuted")]),
                (gb.mul_mat, lambda: [rows(1000, 257, dtype="float16"), rows(1, 257)]),
                (gb.mul_mat, lambda: [rows(1, 257), rows(1000, 257)])],
    "MUL_MAT_ID": [(lambda i, b, *m: gb.mul_mat_id(m, i, 1, b),
     lambda: [whole(90, 2, low=0, high=4), rows(90, 129), *[rows(150, 129) for _ in range(4)]])],
    "OUT_PROD": [(gb.out_prod, lambda: [rows(50, 300), rows(50, 170)])],
    "CPY": [(gb.cpy, lambda: [rows(130, 517), rows(517, 130, dtype="float16", layout="padded")]),
     (lambda a: gb.cast(a, "bfloat16"), lambda: [rows(130, 517)])],
    "GET_ROWS": [(gb.get_rows, lambda: [rows(40, 517, dtype="float16"), whole(300, low=0, high=40)])],
    "GET_ROWS_BACK": [(gb.get_rows_back, lambda: [rows(300, 517), whole(300, low=0, high=40), rows(40, 517)])],
    "DIAG": [(gb.diag, lambda: [rows(3, 1, 200)])],
    "DIAG_MASK_INF": [(lambda a: gb.diag_mask_inf(a, 3), lambda: [rows(3, 100, 300)])],
    "DIAG_MASK_ZERO": [(lambda a: gb.diag_mask_zero(a, 3), lambda: [rows(3, 100, 300)])],
    "SOFT_MAX": [(lambda a, m: gb.soft_max(a, m, 0.5), lambda: [rows(3, 100, 300), rows(50, 300)]),
     (gb.soft_max, lambda: [rows(2, 50001)])],
    "SOFT_MAX_BACK": [(gb.soft_max_back, lambda: [rows(300, 300), probabilities(300, 300)])],
    "ROPE": [(lambda a, p, m=m: gb.rope(a, p, mode=m), lambda: [rows(2, 120, 6, 64), POSITIONS]) for m in (0, 2)],
    "ROPE_BACK": [(gb.rope_back, lambda: [rows(2, 120, 6, 64, layout="permuted"), POSITIONS])],
    "ALIBI": [(lambda a: gb.alibi(a, 0, 6, 8.0), lambda: [rows(6, 100, 150)])],
    "CONV_TRANSPOSE_1D": [(lambda k, x: gb.conv_transpose_1d(k, x, 3),
     lambda: [rows(33, 50, 9, dtype="float16"), rows(33, 150)])],
    "CONV_TRANSPOSE_2D": [(lambda k, x: gb.conv_transpose_2d(k, x, 2),
     lambda: [rows(9, 11, 3, 3, dtype="float16"), rows(2, 9, 30, 31)])],
    "IM2COL": [(lambda k, x: gb.im2col(k, x, 1, 1), lambda: [rows(1, 8, 3, 3, dtype="float16"), rows(2, 8, 30, 31)])],
    "POOL_1D": [(lambda a: gb.pool_1d(a, "avg", 3), lambda: [rows(130, 517)])],
    "POOL_2D": [(lambda a: gb.pool_2d(a, "max", 3, 2, 1), lambda: [rows(7, 100, 120)])],
    "UPSCALE": [(lambda a: gb.upscale(a, 3), lambda: [rows(5, 60, 70)])],
    "PAD": [(lambda a: gb.pad(a, (1, 2, 30, 50)), lambda: [rows(2, 5, 60, 70)])],
    "FLASH_ATTN": [(lambda q, k, v: gb.flash_attn(q, k, v, True),
     lambda: [rows(6, 50, 32), rows(3, 90, 32), rows(3, 32, 90)])],
    "FLASH_ATTN_BACK": [(lambda q, k, v, g: gb.flash_attn_back(q, k, v, g, True),
                         lambda: [rows(2, 6, 30, 32), rows(2, 3, 40, 32), rows(2, 3, 32, 40), rows(2, 6, 30, 32)])],
    "FLASH_FF": [(gb.flash_ff,
     lambda: [rows(90, 64, dtype="float16"), rows(130, 64, dtype="float16"), rows(130), rows(64, 130, dtype="float16"),
      rows(64)])],
    "WIN_PART": [(lambda a: gb.win_part(a, 7), lambda: [rows(40, 45, 33)])],
    "WIN_UNPART": [(lambda a: gb.win_unpart(a, 45, 40, 7), lambda: [rows(42, 7, 7, 33)])],
    "GET_REL_POS": [(lambda a: gb.get_rel_pos(a, 60, 60), lambda: [rows(119, 33, dtype="float16")])],
    "ADD_REL_POS": [(gb.add_rel_pos, lambda: [rows(3, 196, 196), rows(3, 14, 14, 14), rows(3, 14, 14, 14)])],
    "CROSS_ENTROPY_LOSS_BACK": [(gb.cross_entropy_loss_back,
     lambda: [rows(130, 517), probabilities(130, 517), rows(1)])],
    "MAP_CUSTOM1": [(lambda a: gb.map_custom(lambda d, x, i, n: np.multiply(x[i::n], 2, out=d[i::n]), a, n_tasks=-1),
     lambda: [rows(130, 517)])],
    "CUSTOM": [(lambda a: gb.custom(doubled_share, a, n_tasks=-1),
     lambda: [rows(130, 517)])],
    # one number from all rows: how the partial sums are put together is free
    "SUM": [(gb.sum, lambda: [rows(130, 517)])],
    "CROSS_ENTROPY_LOSS": [(gb.cross_entropy_loss, lambda: [rows(130, 517), probabilities(130, 517)])],
}  # fmt: skip

ONE_NUMBER = {"SUM", "CROSS_ENTROPY_LOSS"}
# Views, which compute nothing; user-defined functions, which are called as the user says; and what is one of the
# functions above.
WITHOUT = {"NONE", "UNARY", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "MAP_UNARY", "MAP_BINARY", "MAP_CUSTOM1_F32",
 "MAP_CUSTOM2_F32",
           "MAP_CUSTOM3_F32", "MAP_CUSTOM2", "MAP_CUSTOM3"}  # fmt: skip


def test_every_operation_is_here():
    ops = {ffi.string(lib.ggml_op_name(i)).decode() for i in range(lib.GGML_OP_COUNT)}
    unary = {ffi.string(lib.ggml_unary_op_name(i)).decode() for i in range(lib.GGML_UNARY_OP_COUNT)}
    assert (ops | unary) - WITHOUT == set(CASES)


@pytest.fixture(scope="module")
def teams():
    return [gb.Backend("CPU", n_threads=n) for n in (2, 3, 5, 8)]


@pytest.mark.parametrize("op", CASES)
def test_threads_share(op, teams):
    alone = gb.Backend("CPU", n_threads=1)
    for build, inputs in CASES[op]:
        built = Built(build, inputs(), alone)
        assert op in {t.op for t in built.graph.nodes}
        want = built.compute(alone)
        for team in teams * 2:
            got = built.compute(team)
            if op in ONE_NUMBER:
                np.testing.assert_allclose(got, want, rtol=1e-6)
            else:
                assert got.tobytes() == want.tobytes(), (
                    f"{team.n_threads} threads: {np.count_nonzero(got != want)} of {got.size} differ"
                )
