"""``Node.params`` are the arguments of the function that builds the node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._ffi import ffi, lib
from ggml_backend.devices._nodes import PARAMS, node_at
from op_cases import CASES

SAID = {"VIEW", "PERMUTE", "TRANSPOSE", "UNARY"}
"""Operators whose ``op_params`` follow from shapes and strides of the result, or from
``Node.op``."""


def parameters_of(node: gb.devices.Node) -> dict[str, Any]:
    """The parameters, and those that follow from the shape of the result."""
    if node.op == "win_unpart":
        height, width = node.shape[:2]
        return {"width": width, "height": height, **node.params}
    if node.op == "rope" and node.params["xpos_base"]:
        return {"inplace": True, **node.params}
    return node.params


MORE = [
    lambda x, y, ids, p, k, d: gb.ops.rope(x, p, 4, "glm", n_ctx=3, freq_base=500.0),
    lambda x, y, ids, p, k, d: gb.ops.rope(x, p, 6, "neox_exact", freq_scale=0.5, ext_factor=1.0, n_orig_ctx=9),
    lambda x, y, ids, p, k, d: gb.ops.rope(x, p, 6, 0, beta_fast=3.0, beta_slow=2.0, attn_factor=0.25),
    lambda x, y, ids, p, k, d: gb.ops.rope_back(x, p, 6, "neox", freq_scale=0.5, xpos_base=7.0, xpos_down=True),
    lambda x, y, ids, p, k, d: gb.ops.im2col(k, d, (2, 1), (1, 3), (1, 2)),
    lambda x, y, ids, p, k, d: gb.ops.pool_2d(d[0], "max", (2, 3), (4, 5), (0, 1)),
    lambda x, y, ids, p, k, d: gb.ops.pool_1d(x[0, 0], "avg", 3, 2, 1),
    lambda x, y, ids, p, k, d: gb.ops.argsort(x, descending=True),
    lambda x, y, ids, p, k, d: gb.ops.flash_attn(y, y, y, masked=True),
    lambda x, y, ids, p, k, d: gb.ops.cross_entropy_loss(y, y, eps=0),
    lambda x, y, ids, p, k, d: gb.ops.cross_entropy_loss_back(y, y, gb.ops.sum(y), eps=0.125),
    lambda x, y, ids, p, k, d: gb.ops.mul_mat_id([y, y, y], ids, 1, y),
    lambda x, y, ids, p, k, d: gb.ops.soft_max(x[0], x[0, 0], 0.5, max_bias=8.0),
    lambda x, y, ids, p, k, d: gb.ops.alibi(gb.ops.cont(x[0, :2]), 1, 2, 4.0),
    lambda x, y, ids, p, k, d: gb.ops.acc(y, y[:2], 16),
    lambda x, y, ids, p, k, d: gb.ops.set(y, y[1:3], 16, nb1=32),
]


def rebuilt(op: str, sources: list[gb.Tensor], p: dict[str, Any], tensor: gb.Tensor) -> gb.Tensor | None:
    """Builds the node of an operation whose function takes the parameters in another form. Else None."""
    o, a = gb.ops, sources[0] if sources else tensor
    mask, extra = (tensor._p.src[i] != ffi.NULL for i in ((3, 4) if op == "flash_attn_ext" else (1, 2)))
    behind = sources[3:] if op == "flash_attn_ext" else sources[1:]
    named = dict(zip([n for n, there in (("mask", mask), ("sinks", extra)) if there], behind, strict=False))
    if op == "flash_attn_ext":
        return o.flash_attn_ext(*sources[:3], **named, **p)
    if op == "soft_max" and extra:
        return o.softmax(a, **named, **p)
    if op == "rope" and extra:
        return o.rope(a, sources[1], factors=sources[2], **p)
    if op == "scale_bias":
        return o.scale(a, **p)
    if op == "glu":
        given = {"alpha": p["alpha"], "limit": p["limit"]} if p["op"] == "swiglu_oai" else {"swapped": p["swapped"]}
        if p["op"] == "swiglu_oai":
            return o.swiglu_oai(*sources, **given)
        return o.glu(*sources, op=p["op"], **(given if len(sources) == 1 else {}))
    if op == "roll":
        axes = tuple(range(-a.ndim, 0))
        return o.roll(a, p["shifts"][-a.ndim :], axes)
    if op == "pad_ext":
        return o.pad(a, p["amounts"][-a.ndim :], "wrap" if p["circular"] else "constant")
    if op == "pad_reflect_1d":
        return o.pad(a, [(0, 0)] * (a.ndim - 1) + [(p["before"], p["behind"])], "reflect")
    if op == "interpolate":
        mode, flags = ("nearest", "bilinear", "bicubic")[p["mode"] & 255], p["mode"] >> 8
        return o.interpolate(a, tensor.shape[-2:], mode, align_corners=bool(flags & 1), antialias=bool(flags & 2))
    if op == "im2col_back":
        return o.im2col_back(*sources, tensor.shape, **p)
    if op == "opt_step_adamw":
        y = o.opt_step_adamw(a, a, a, a, sources[-1])
        return (y.sources[1], y.sources[2], y)[p["part"]]
    if op == "arange":
        return o.arange(**p, context=tensor.context)
    if op in ("gated_delta_net", "ssm_scan", "gated_linear_attn"):
        return getattr(o, op)(*sources, **p)[0].view_of
    return None


def test_parameters_build_the_node_again(ctx):
    """The function of each operation accepts its parameters, and makes a node with the same
    ``op_params``."""
    x, y = ctx.tensor((2, 3, 2, 8)), ctx.tensor((4, 4))
    ids, p = ctx.tensor((4, 2), gb.int32), ctx.tensor((3,), gb.int32)
    kernel, data = ctx.tensor((6, 3, 2, 2), gb.float16), ctx.tensor((2, 3, 16, 18))
    made = [build(*[ctx.tensor(array.shape, array.dtype) for array in arrays]) for _, build, arrays in CASES]
    made += [build(x, y, ids, p, kernel, data) for build in MORE]
    seen: dict[str, int] = {}
    for tensor in ctx.graph(*made).nodes:
        node = node_at(tensor._p)
        words = bytes(ffi.buffer(tensor._p.op_params, 64))
        if node.op not in PARAMS:  # name, dtype and shapes determine the node
            if node._function is not None:  # op_params are addresses of functions
                continue
            assert not any(words) or ffi.string(lib.ggml_op_name(tensor._p.op)).decode() in SAID, (node, words)
            continue
        sources = list(tensor.sources)
        if node.op == "xielu":  # its parameters are functions of those of the call, so they agree within rounding
            p = node.params
            alphas = np.log(np.expm1([p["n"] - p["beta"], p["p"]]))
            again = gb.ops.xielu(sources[0], *map(float, alphas), p["beta"], p["eps"])
            assert node_at(again._p).params == pytest.approx(p, rel=1e-5)
            seen["xielu"] = 1
            continue
        given = rebuilt(node.op, sources, node.params, tensor)
        if given is not None:
            pass
        elif node.op == "mul_mat_id":
            given = gb.ops.mul_mat_id(sources[2:], sources[0], b=sources[1], **node.params)
        elif node.op == "compare":
            by_sign = {"==": gb.ops.equal, "!=": gb.ops.not_equal, "<": gb.ops.less, "<=": gb.ops.less_equal}
            by_sign |= {">": gb.ops.greater, ">=": gb.ops.greater_equal}
            given = by_sign[node.params["comparison"]](*sources)
        elif node.op == "conv_2d_dw":
            given = gb.ops.conv_depthwise_2d(*sources, **node.params)
        else:
            given = gb.ops.OPERATIONS[node.op](*sources, **parameters_of(node))
        assert given.shape == tensor.shape
        mine = bytes(ffi.buffer(given._p.op_params, 64))
        if node.op in ("acc", "set"):  # the fifth word is the in-place flag in another form
            mine, words = mine[:16], words[:16]
        assert mine == words, (node, node.params)
        seen[node.op] = seen.get(node.op, 0) + 1
    assert seen.keys() == PARAMS.keys()
    assert node_at(gb.ops.cross_entropy_loss(y, y)._p).params == {"eps": 1e-9}
    assert node_at(gb.ops.im2col(kernel, data, (2, 1), (1, 3), (1, 2))._p).params == {
        "stride": (2, 1), "padding": (1, 3), "dilation": (1, 2), "is_2d": True,
    }  # fmt: skip
