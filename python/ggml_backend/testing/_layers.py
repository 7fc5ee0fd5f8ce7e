"""Cases of gates, optimizers, moved rows, triangles, recurrent layers and resized pictures."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from .. import ops
from ._cases import Case, Sizes, a, call, f32, ids, one
from ._tolerance import ABSOLUTE, EXACT, Rule

__all__ = ["of_layers"]

_GATES = ("reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick")


def of_layers(sizes: Sizes) -> Iterator[Case]:
    for shape in sizes.some([(3, 6), (1, 2), (2, 3, 64), (70, 34), (0, 4)], 2, [(130, 1024)]):
        yield from _gates(shape)
        yield from _rows(shape)
        yield from _steps(shape)
    yield one("arange", Rule(terms=1), [f32(1)], lambda x: ops.arange(0.5, 3.0, 0.25, context=x.context))
    embedding = Rule(terms=2, magnitude=lambda t, y: 1.0)
    yield call("timestep_embedding", embedding, f32(3, low=0, high=100), dim=9)
    for n, outer in sizes.some([(5, ()), (33, (2, 3)), (1, ())], 1, [(130, (4,))]):
        yield from _triangles(n, outer)
    yield from _recurrent(sizes)
    for h, w in sizes.some([(5, 7), (1, 9), (16, 33)], 1, [(130, 200)]):
        yield from _pictures(h, w)


def _gates(shape: tuple[int, ...]) -> Iterator[Case]:
    half = shape[-1] // 2
    alone = Rule(terms=24, magnitude=lambda x, y: np.abs(x[..., :half] * x[..., half:]))
    paired = Rule(terms=24, magnitude=lambda x, g, y: np.abs(x * g))
    for name in _GATES:
        yield call(name, alone, a(*shape), layouts=len(shape) == 2)
        yield call(name, alone, a(*shape), swapped=True)
        yield call(name, paired, a(*shape), a(*shape), layouts=len(shape) == 2)
        yield call("glu", paired, a(*shape), a(*shape), op=name)
    oai = Rule(terms=24, magnitude=lambda x, g, y: np.abs(x) * (np.abs(g) + 1) + 1)
    yield call("swiglu_oai", oai, f32(*shape), f32(*shape), limit=1.5)


def _steps(shape: tuple[int, ...]) -> Iterator[Case]:
    """Steps of optimizers. They overwrite copies, so a case can be computed again."""
    tensors, params = [f32(*shape), f32(*shape), f32(*shape)], f32(7, low=0.1, high=0.9)
    stepped = Rule(terms=8, magnitude=lambda x, g, p, y: np.abs(x) + np.abs(g))
    yield one("opt_step_sgd", stepped, [*tensors[:2], f32(2, low=0.1, high=0.9)], _stepped)
    moved = Rule(terms=24, magnitude=lambda *x: sum(np.abs(t) + t * t for t in x[:4]) + 1)
    yield one("opt_step_adamw", moved, [*tensors, f32(*shape, low=0.0), params], _moved)


def _stepped(x: Any, g: Any, params: Any) -> Any:
    return ops.opt_step_sgd(ops.dup(x), g, params)


def _moved(x: Any, g: Any, m: Any, v: Any, params: Any) -> Any:
    """The sum of the weights and of both means."""
    y = ops.opt_step_adamw(ops.dup(x), g, ops.dup(m), ops.dup(v), params)
    return ops.add(y, ops.add(y.sources[1], y.sources[2]))


def _rows(shape: tuple[int, ...]) -> Iterator[Case]:
    n = shape[-1]
    if n > 2:
        yield one("top_k", EXACT, [f32(*shape)], partial(_largest_rows, k=3))
    yield call("roll", EXACT, a(*shape), layouts=True, shift=(1, 2), axis=(0, -1))
    yield call("pad", EXACT, a(*shape), layouts=True, amounts=((1, 0), (2, 3)))
    if 0 not in shape:
        yield call("pad", EXACT, a(*shape), amounts=((0, 1), (5, 3)), mode="wrap")
        yield call("pad", EXACT, a(*shape), amounts=((n - 1, n // 2),), mode="reflect")


def _largest_rows(x: Any, k: int) -> Any:
    """The values of the unsorted indices, sorted: devices may give them in any order."""
    at = ops.top_k(x, k, sorted=False)
    rows = x.reshape(-1, x.shape[-1], 1)
    found = ops.get_rows(rows, at.reshape(-1, k)).reshape(-1, k)
    return ops.get_rows(found.reshape(-1, k, 1), ops.argsort(found)).reshape(-1, k)


def _triangles(n: int, outer: tuple[int, ...]) -> Iterator[Case]:
    for kind in ("upper_diag", "upper", "lower_diag", "lower"):
        yield call("tri", EXACT, a(*outer, n, n), layouts=True, kind=kind)
    yield call("tril", EXACT, a(*outer, n, n), k=-1)
    yield call("triu", EXACT, a(*outer, n, n), k=1)
    solved = Rule(terms=64, n=8 * n, magnitude=lambda m, r, y: 8 + 8 * np.abs(y).max(initial=0.0))
    yield one("solve_tri", solved, [f32(*outer, n, n, low=0.0, high=0.2), f32(*outer, n, 3)], _solved)


def _solved(m: Any, b: Any) -> Any:
    unit = ops.diag(ops.fill(m[..., :1, :], 1.5))
    return ops.solve_tri(ops.add(m, unit), b)


_STATE = Rule(terms=400, magnitude=lambda *x: 1 + np.abs(x[-1]).max(initial=0.0))


def _packed(function: Any, *tensors: Any, **options: Any) -> Any:
    """Outputs and states in one tensor, as C has them."""
    return function(*tensors, **options)[0].view_of


def _recurrent(sizes: Sizes) -> Iterator[Case]:
    yield call("ssm_conv", Rule(n=4, magnitude=ABSOLUTE), f32(2, 40, 8), f32(40, 4))
    for size, tokens in sizes.some([(64, 5), (5, 2), (33, 9)], 1, [(128, 20)]):
        decays = f32(1, tokens, 4, 1, low=-2.0, high=0.0)
        keys = f32(1, tokens, 2, size, low=-0.1, high=0.1)
        beta = f32(1, tokens, 4, 1, low=0.0, high=1.0)
        net = [keys, keys, f32(1, tokens, 4, size), decays, beta, f32(1, 4, size, size)]
        yield one("gated_delta_net", _STATE, net, partial(_packed, ops.gated_delta_net, n_states=2))
        scan = [
            f32(3, 4, 6, size), f32(2, tokens, 4, 6), f32(2, tokens, 4), f32(4, 1, low=-2.0, high=0.0),
            f32(2, tokens, 2, size), f32(2, tokens, 2, size), ids([2, 0]),
        ]  # fmt: skip
        yield one("ssm_scan", _STATE, scan, partial(_packed, ops.ssm_scan))
        token, small = f32(tokens, 3, size, low=-1.0, high=1.0), f32(tokens, 3, size, low=-0.1, high=0.0)
        decay, state = f32(tokens, 3, size, low=0.0, high=1.0), f32(1, 3 * size * size)
        wkv6 = [token, token, token, f32(3, size), decay, state]
        yield one("rwkv_wkv6", _STATE, wkv6, partial(_packed, ops.rwkv_wkv6))
        wkv7 = [token, decay, token, token, small, decay, state]
        yield one("rwkv_wkv7", _STATE, wkv7, partial(_packed, ops.rwkv_wkv7))
        linear = [token, token, token, decay, state]
        yield one("gated_linear_attn", _STATE, linear, partial(_packed, ops.gated_linear_attn, scale=0.25))


def _pictures(h: int, w: int) -> Iterator[Case]:
    near = Rule(terms=64, magnitude=lambda x, y: 1 + np.abs(x).max(initial=0.0))
    for size in ((2 * h, 2 * w), (h // 2 + 1, w + 3)):
        yield call("interpolate", EXACT, a(2, h, w), layouts=True, size=size)
        yield call("interpolate", near, a(2, h, w), layouts=True, size=size, mode="bilinear")
        yield call("interpolate", near, a(2, h, w), size=size, mode="bicubic", align_corners=True)
        yield call("interpolate", near, a(2, h, w), size=size, mode="bilinear", antialias=True)
    yield call("upscale", near, a(2, h, w), factor=2, mode="bicubic")
    yield call("col2im_1d", Rule(n=4, magnitude=ABSOLUTE), f32(h, 3 * 4), channels=3, stride=2, padding=1)
    yield call("im2col_3d", EXACT, f32(2, 1, 1, 3), f32(4, 3, h, w), channels=2, padding=(0, 0, 1))
