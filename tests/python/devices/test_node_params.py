"""``Node.params`` are the arguments of the function that builds the node."""

from __future__ import annotations

from typing import Any

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


OTHER_FORM = {
    "arange", "flash_attn_ext", "gated_delta_net", "gated_linear_attn", "glu", "interpolate", "pad_ext",
    "pad_reflect_1d", "roll", "scale_bias", "ssm_scan", "xielu",
}  # fmt: skip
"""Operations whose function takes the parameters in another form, or gives views of the node. This test
does not build them again."""


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
        if node.op in OTHER_FORM or (node.op in ("soft_max", "rope") and tensor._p.src[2] != ffi.NULL):
            seen[node.op] = seen.get(node.op, 0) + 1
            continue
        if node.op == "mul_mat_id":
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
