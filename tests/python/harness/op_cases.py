"""Each operation with inputs, the shape that it promises and, where NumPy has it, the values.

What tests of all operations have in common: each computes the cases (test_op_smoke.py), and changes their sizes
(harness_zeros.py, which as a program sees only what lies beside it).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ggml_backend as gb

f32, f16, i32 = np.float32, np.float16, np.int32


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _product(w: Any, x: Any) -> Any:
    if x.ndim == 1 and w.ndim > 2:
        raise ValueError("a vector stays a row beside a stack of matrices: no rule of NumPy's")
    return x @ np.swapaxes(w, -1, -2)


R = np.random.default_rng(3)


def a(*shape: int, dtype: Any = f32) -> Any:
    return (R.random(shape) + 0.25).astype(dtype)


X, Y, V = a(3, 4), a(3, 4), a(4)
IDS = np.array([2, 0], i32)
POS = np.arange(5, dtype=i32)
K2, IMG = a(6, 3, 2, 2, dtype=f16), a(2, 3, 8, 9)

# Name of the operation, builder, inputs, shape of the result, its values by NumPy or None.
CASES: list[tuple[str, Any, list[Any], tuple[int, ...], Any]] = [
    ("unary", lambda x: gb.unary(x, "neg"), [X], (3, 4), lambda x: -x),
    ("abs", gb.abs, [X - 1], (3, 4), np.abs),
    ("sgn", gb.sgn, [X - 1], (3, 4), np.sign),
    ("neg", gb.neg, [X], (3, 4), np.negative),
    ("step", gb.step, [X - 1], (3, 4), lambda x: (x > 0).astype(f32)),
    ("tanh", gb.tanh, [X], (3, 4), np.tanh),
    ("elu", gb.elu, [X - 1], (3, 4), lambda x: np.where(x > 0, x, np.expm1(x))),
    ("relu", gb.relu, [X - 1], (3, 4), lambda x: np.maximum(x, 0)),
    ("gelu", gb.gelu, [X], (3, 4), lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * x * (1 + 0.044715 * x * x)))),
    ("gelu_erf", gb.gelu_erf, [X], (3, 4), None),
    ("gelu_quick", gb.gelu_quick, [X], (3, 4), lambda x: x / (1 + np.exp(-1.702 * x))),
    ("silu", gb.silu, [X], (3, 4), lambda x: x / (1 + np.exp(-x))),
    ("hardswish", gb.hardswish, [X], (3, 4), lambda x: x * np.clip((x + 3) / 6, 0, 1)),
    ("hardsigmoid", gb.hardsigmoid, [X], (3, 4), lambda x: np.clip((x + 3) / 6, 0, 1)),
    ("leaky_relu", lambda x: gb.leaky_relu(x, 0.1), [X - 1], (3, 4), lambda x: np.where(x > 0, x, 0.1 * x)),
    ("exp", gb.exp, [X - 1], (3, 4), np.exp),
    ("sigmoid", gb.sigmoid, [X - 1], (3, 4), lambda x: 1 / (1 + np.exp(-x))),
    ("softplus", gb.softplus, [X - 1], (3, 4), lambda x: np.log1p(np.exp(x))),
    ("sin", gb.sin, [9 * X], (3, 4), np.sin),
    ("cos", gb.cos, [9 * X], (3, 4), np.cos),
    ("sqr", gb.sqr, [X], (3, 4), np.square),
    ("sqrt", gb.sqrt, [X], (3, 4), np.sqrt),
    ("log", gb.log, [X], (3, 4), np.log),
    ("clamp", lambda x: gb.clamp(x, 0.5, 1.0), [X], (3, 4), lambda x: np.clip(x, 0.5, 1)),
    ("scale", lambda x: gb.scale(x, 2.5), [X], (3, 4), lambda x: 2.5 * x),
    ("add", gb.add, [X, V], (3, 4), np.add),
    ("add_cast", lambda x, y: gb.add_cast(x, y, gb.float32), [a(3, 4, dtype=f16), Y], (3, 4), lambda x,
     y: x.astype(f32) + y),
    ("add1", gb.add1, [X, a(1)], (3, 4), np.add),
    ("sub", gb.sub, [X, Y], (3, 4), np.subtract),
    ("mul", gb.mul, [X, V], (3, 4), np.multiply),
    ("div", gb.div, [X, V], (3, 4), np.divide),
    ("equal", gb.equal, [POS, np.array([0, 2, 2, 2, 4], i32)], (5,), lambda x, y: (x == y).astype(f32)),
    ("not_equal", gb.not_equal, [POS, np.array([3], i32)], (5,), lambda x, y: (x != y).astype(f32)),
    ("less", gb.less, [X, V], (3, 4), lambda x, y: (x < y).astype(f32)),
    ("less_equal", gb.less_equal, [X, Y], (3, 4), lambda x, y: (x <= y).astype(f32)),
    ("greater", gb.greater, [X, V], (3, 4), lambda x, y: (x > y).astype(f32)),
    ("greater_equal", gb.greater_equal, [V, X], (3, 4), lambda x, y: (x >= y).astype(f32)),
    ("where", gb.where, [(X > 0.7).astype(f32), X, V], (3, 4), lambda c, x, y: np.where(c != 0, x, y)),
    ("acc", lambda x, y: gb.acc(x, y, offset=16), [X, a(2, 4)], (3, 4), lambda x,
     y: np.concatenate([x[:1], x[1:] + y])),
    ("set", lambda x, y: gb.set(x, y, offset=16), [X, a(2, 4)], (3, 4), lambda x, y: np.concatenate([x[:1], y])),
    ("set", lambda x, y: gb.set(x, y, nb1=16), [X, a(2, 4)], (3, 4), lambda x, y: np.concatenate([y, x[2:]])),
    ("set", lambda x, y: gb.set(x, y, nb1=16, nb2=48, nb3=48), [X, a(2, 4)], (3, 4), lambda x,
     y: np.concatenate([y, x[2:]])),
    ("sum", gb.sum, [X], (), np.sum),
    ("sum_rows", gb.sum_rows, [X], (3, 1), lambda x: x.sum(-1, keepdims=True)),
    ("mean", gb.mean, [X], (3, 1), lambda x: x.mean(-1, keepdims=True)),
    ("argmax", gb.argmax, [X], (3,), lambda x: x.argmax(-1)),
    ("repeat", lambda x: gb.repeat(x, (2, 6, 4)), [X], (2, 6, 4), lambda x: np.tile(x, (2, 2, 1))),
    ("repeat", gb.repeat, [X, a(6, 8)], (6, 8), lambda x, y: np.tile(x, (2, 2))),
    ("repeat_back", lambda x: gb.repeat_back(x, (1, 4)), [X], (1, 4), lambda x: x.sum(0, keepdims=True)),
    ("concat", gb.concat, [a(2, 3, 4), a(5, 3, 4)], (7, 3, 4), lambda x, y: np.concatenate([x, y], -3)),
    ("concat", lambda x, y: gb.concat(x, y, axis=-1), [a(3, 4), a(3, 2)], (3, 6), lambda x,
     y: np.concatenate([x, y], -1)),
    ("concat", lambda x, y: gb.concat(x, y, axis=0), [a(3, 4), a(2, 4)], (5, 4), lambda x,
     y: np.concatenate([x, y], 0)),
    ("concat", lambda x, y: gb.concat(x, y, axis=0), [a(1, 2, 3, 4), a(2, 2, 3, 4)], (3, 2, 3, 4), lambda x,
     y: np.concatenate([x, y], 0)),
    ("argsort", gb.argsort, [X], (3, 4), lambda x: np.argsort(x, -1, kind="stable")),
    ("argsort", lambda x: gb.argsort(x, descending=True), [X], (3, 4), lambda x: np.argsort(-x, -1, kind="stable")),
    ("top_k", lambda x: gb.top_k(x, 2), [X], (3, 2), lambda x: np.argsort(-x, -1, kind="stable")[:, :2]),
    ("norm", gb.norm, [X], (3, 4),
     lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)),
    ("rms_norm", gb.rms_norm, [X], (3, 4), lambda x: x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5)),
    ("group_norm", lambda x: gb.group_norm(x, 2), [a(4, 3, 3)], (4, 3, 3), None),
    ("rms_norm_back", gb.rms_norm_back, [X, Y], (3, 4), None),
    ("silu_back", gb.silu_back, [X, Y], (3, 4), None),
    ("mul_mat", gb.mul_mat, [a(5, 4), X], (3, 5), _product),
    ("mul_mat", lambda w, x: gb.mul_mat(w, x, prec="f32"), [a(5, 4), V], (5,), _product),
    ("matmul", lambda x, w: gb.matmul(x, w, prec="f32"), [X, a(4, 5)], (3, 5), np.matmul),
    ("mul_mat_id", lambda p, q, ids, b: gb.mul_mat_id([p, q], ids, 0, b),
     [a(5, 4), a(5, 4), np.array([[1], [0], [1]], i32), X], (3, 5),
     lambda p, q, ids, b: np.stack([(p, q)[i] @ row for i, row in zip(ids[:, 0], b, strict=True)])),
    ("out_prod", gb.out_prod, [a(3, 4), a(3, 5)], (5, 4), lambda x, y: y.T @ x),
    ("dup", gb.dup, [X], (3, 4), lambda x: x),
    ("cpy", gb.cpy, [X, a(3, 4, dtype=f16)], (3, 4), lambda x, y: x.astype(f16)),
    ("cast", lambda x: gb.cast(x, "f16"), [X], (3, 4), lambda x: x.astype(f16)),
    ("cont", lambda x: gb.cont(gb.transpose(x)), [X], (4, 3), np.transpose),
    ("cont", lambda x: gb.cont(x, (2, 6)), [X], (2, 6), lambda x: x.reshape(2, 6)),
    ("reshape", lambda x: gb.cont(gb.reshape(x, (2, -1))), [X], (2, 6), lambda x: x.reshape(2, -1)),
    ("reshape", lambda x, y: gb.cont(gb.reshape(x, y)), [X, a(2, 6)], (2, 6), lambda x, y: x.reshape(y.shape)),
    ("view", lambda x: gb.cont(gb.view(x, (2, 2), strides=(16, 4), offset=4)), [X], (2, 2), lambda x: x[:2, 1:3]),
    ("view", lambda x: gb.cont(gb.view(x)), [X], (3, 4), lambda x: x),
    ("view", lambda x: gb.cont(gb.view(x, (2, 4), offset=16)), [X], (2, 4), lambda x: x[1:]),
    ("permute", lambda x: gb.cont(gb.permute_ggml(x, 1, 2, 0, 3)), [a(2, 3, 4)], (3, 4, 2), lambda x: x.transpose(1, 2, 0)),
    ("transpose", lambda x: gb.cont(gb.transpose(x)), [a(2, 3, 4)], (2, 4, 3), lambda x: x.swapaxes(-1, -2)),
    ("get_rows", gb.get_rows, [X, IDS], (2, 4), lambda x, i: x[i]),
    ("get_rows", gb.get_rows, [a(2, 3, 4), np.array([[0, 2], [1, 1]], i32)], (2, 2, 4), lambda x,
     i: np.stack([x[k][i[k]] for k in (0, 1)])),
    ("get_rows_back", gb.get_rows_back, [a(2, 4), IDS, X], (3, 4), lambda g, i,
     x: np.stack([g[1], np.zeros(4, f32), g[0]])),
    ("diag", gb.diag, [a(1, 4)], (4, 4), lambda x: np.diag(x[0])),
    ("empty_like", lambda x: gb.cpy(x, gb.empty_like(x)), [X], (3, 4), lambda x: x),  # it holds anything before
    ("diag_mask_inf", lambda x: gb.diag_mask_inf(x, 1), [a(3, 5)], (3, 5),
     lambda x: np.where(np.tri(3, 5, 1) > 0, x, -np.inf)),
    ("diag_mask_zero", gb.diag_mask_zero, [a(3, 5)], (3, 5), np.tril),
    ("soft_max", gb.soft_max, [X], (3, 4), _softmax),
    ("soft_max", lambda x, m: gb.soft_max(x, m, 0.5), [X, Y], (3, 4), lambda x, m: _softmax(0.5 * x + m)),
    ("soft_max", lambda x: gb.soft_max(x, scale=2.0), [X], (3, 4), lambda x: _softmax(2 * x)),
    ("soft_max_back", gb.soft_max_back, [X, Y], (3, 4), lambda g, y: y * (g - (y * g).sum(-1, keepdims=True))),
    ("alibi", lambda x: gb.alibi(x, 0, 2, 8.0), [a(2, 3, 4)], (2, 3, 4), None),
    ("rope", gb.rope, [a(5, 2, 8), POS], (5, 2, 8), None),
    ("rope", lambda x, p: gb.rope(x, p, 4, "neox", freq_scale=0.5, n_ctx=64), [a(5, 2, 8), POS], (5, 2, 8), None),
    ("rope", lambda x, p: gb.rope(x, p, xpos_base=512.0, xpos_down=True, inplace=True), [a(5, 2, 8), POS], (5, 2, 8),
     None),
    ("rope_back", gb.rope_back, [a(5, 2, 8), POS], (5, 2, 8), None),
    ("im2col", lambda k, x: gb.im2col(k, x), [K2, IMG], (2, 7, 8, 12), None),
    ("im2col", lambda k, x: gb.im2col(k, x, padding=1, is_2d=False), [a(6, 3, 3, dtype=f16), a(2, 3, 9)], (2, 9, 9),
     None),
    ("conv_1d", gb.conv_1d, [a(6, 3, 3, dtype=f16), a(3, 9)], (6, 7), None),
    ("conv_1d", lambda k, x: gb.conv_1d(k, x, stride=2, padding="half"), [a(6, 3, 3, dtype=f16), a(3, 9)], (6, 5),
     None),
    ("conv_2d", lambda k, x: gb.conv_2d(k, x, stride=(2, 1), padding=(1, 0)), [K2, a(1, 3, 8, 9)], (1, 6, 5, 8), None),
    ("conv_2d", lambda k, x: gb.conv_2d(k, x, stride="kernel"), [K2, a(1, 3, 8, 10)], (1, 6, 4, 5), None),
    ("conv_2d", lambda k, x: gb.conv_2d(k, x, padding="half"), [a(6, 3, 3, 3, dtype=f16), a(1, 3, 8, 9)], (1, 6, 8, 9),
     None),
    ("conv_depthwise_2d", gb.conv_depthwise_2d, [a(3, 1, 2, 2, dtype=f16), a(1, 3, 8, 9)], (1, 3, 7, 8), None),
    ("conv_transpose_1d", lambda k, x: gb.conv_transpose_1d(k, x, 2), [a(3, 6, 4, dtype=f16), a(3, 5)], (6, 12), None),
    ("conv_transpose_2d", lambda k, x: gb.conv_transpose_2d(k, x, 2), [a(3, 6, 2, 2, dtype=f16), a(1, 3, 4, 5)],
     (1, 6, 8, 10), None),
    ("pool_1d", lambda x: gb.pool_1d(x, "max", 2), [X], (3, 2), lambda x: x.reshape(3, 2, 2).max(-1)),
    ("pool_2d", lambda x: gb.pool_2d(x, "avg", (2, 3)), [a(2, 4, 6)], (2, 2, 2),
     lambda x: x.reshape(2, 2, 2, 2, 3).mean((2, 4))),
    ("upscale", lambda x: gb.upscale(x, 2), [X], (6, 8), lambda x: x.repeat(2, 0).repeat(2, 1)),
    ("pad", lambda x: gb.pad(x, (1, 2)), [X], (4, 6), lambda x: np.pad(x, ((0, 1), (0, 2)))),
    ("flash_attn", gb.flash_attn, [a(2, 3, 8), a(2, 5, 8), a(2, 8, 5)], (2, 3, 8),
     lambda q, k, v: _softmax(q @ k.swapaxes(-1, -2) / np.sqrt(8)) @ v.swapaxes(-1, -2)),
    ("flash_attn_back", gb.flash_attn_back, [a(2, 3, 8), a(2, 5, 8), a(2, 8, 5), a(2, 3, 8)], (208,), None),
    ("flash_ff", gb.flash_ff, [a(3, 8, dtype=f16), a(6, 8, dtype=f16), a(6), a(8, 6, dtype=f16), a(8)], (3, 8), None),
    ("win_part", lambda x: gb.win_part(x, 3), [a(4, 5, 2)], (4, 3, 3, 2), None),
    ("win_unpart", lambda x: gb.win_unpart(gb.win_part(x, 3), 5, 4, 3), [a(4, 5, 2)], (4, 5, 2), lambda x: x),
    ("get_rel_pos", lambda x: gb.get_rel_pos(x, 3, 3), [a(5, 4, dtype=f16)], (3, 3, 4), None),
    ("add_rel_pos", gb.add_rel_pos, [a(1, 6, 9), a(1, 2, 3, 3), a(1, 2, 3, 3)], (1, 6, 9), None),
    ("cross_entropy_loss", gb.cross_entropy_loss, [X, _softmax(Y)], (), lambda x,
     p: -(p * np.log(_softmax(x))).sum(-1).mean()),
    ("cross_entropy_loss_back", gb.cross_entropy_loss_back, [X, _softmax(Y), a(1)], (3, 4), None),
    ("map_custom", lambda x: gb.map_custom(lambda d, s: s * 2, x), [X], (3, 4), lambda x: x * 2),
    ("map_custom", lambda x, y: gb.map_custom(lambda d, s, t: s * t, x, y), [X, Y], (3, 4), lambda x, y: x * y),
    ("map_custom", lambda x, y, z: gb.map_custom(lambda d, s, t, u: s * t + u, x, y, z), [X, Y, X], (3, 4), lambda x, y,
     z: x * y + z),
    ("custom", lambda x: gb.custom(lambda out, s: s.sum(0), x, shape=4), [X], (4,), lambda x: x.sum(0)),
    ("custom", lambda x, v: gb.custom(lambda out, s, t: (s @ t, s), x, v, shape=[(3,), (3, 4)])[0], [X, V], (3,),
     np.matmul),
    ("custom", lambda x, y: gb.custom(lambda out, s, t: np.stack([s, t, s, t]), x, y, shape=(4, 3, 4), dtype="f64"),
     [X, Y], (4, 3, 4), lambda x, y: np.stack([x, y, x, y])),
]  # fmt: skip
