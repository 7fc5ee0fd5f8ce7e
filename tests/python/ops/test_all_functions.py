"""All functions of the package: they build and compute their calls, also in place, and report wrong arguments.

The values are compared with NumPy in the files of each family.
"""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend import ops
from ggml_backend.testing._cases import Sizes
from ggml_backend.testing._inputs import values_of
from ggml_backend.testing._variants import all_cases
from op_cases import CASES


def run(cpu, ctx, build, arrays):
    tensors = [ctx.tensor(x.shape, x.dtype) for x in arrays]
    node = build(*tensors)
    graph = ctx.graph(node)
    scheduler = gb.Scheduler([cpu])
    scheduler.allocate(graph)
    for t, x in zip(tensors, arrays, strict=True):
        if t.is_placed:  # tensors without memory: the shape is enough
            t.set(x)
    assert scheduler.compute(graph)
    return node, node.numpy(copy=True)


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_calls_build_and_compute(cpu, ctx, case):
    name, build, arrays = case
    node, result = run(cpu, ctx, build, arrays)
    assert result.shape == node.shape
    assert result.dtype.kind != "f" or np.isfinite(result).all() or name == "diag_mask_inf"


def test_every_function_has_a_call():
    assert set(ops.OPERATIONS) - {name for name, _, _ in CASES} == set()


IN_PLACE = [case for case in all_cases(Sizes("one")) if case.inplace]


@pytest.mark.parametrize("case", IN_PLACE, ids=[f"{i}-{c.name}" for i, c in enumerate(IN_PLACE)])
def test_in_place_overwrites_the_first_source(cpu, ctx, rng, case):
    arrays = [values_of(given.typed("float32", "float32"), rng)[0] for given in case.inputs]
    _, expected = run(cpu, ctx, case.call, arrays)
    node, got = run(cpu, ctx, lambda *t: case.call(*t, inplace=True), arrays)
    np.testing.assert_array_equal(got, expected)
    assert node.view_of is not None


def test_softmax_with_a_mask_in_place(cpu, ctx, rng):
    arrays = [rng.standard_normal((2, 3, 8)).astype(np.float32), rng.standard_normal((3, 8)).astype(np.float32)]
    _, expected = run(cpu, ctx, gb.ops.softmax, arrays)
    node, got = run(cpu, ctx, lambda x, mask: gb.ops.softmax(x, mask, inplace=True), arrays)
    np.testing.assert_array_equal(got, expected)
    assert node.view_of is not None


# --------------------------------------------------------------------------------------------------------------- errors

WRONG = [
    (lambda x, y: gb.ops.mul_mat(x, y), (3, 4), (3, 5), ["mul_mat", "'x' float32 (3, 4)", "'y' float32 (3, 5)"]),
    (lambda x, y: gb.ops.add(x, y), (3, 4), (3, 5), ["add", "'x'", "'y'"]),
    (lambda x, y: gb.ops.get_rows(x, y), (3, 4), (3,), ["get_rows", "'y' float32 (3,)"]),
    (lambda x, y: gb.ops.concat(x, y), (2, 3, 4), (2, 3, 5), ["concat", "(2, 3, 5)"]),
    (lambda x, y: gb.ops.concat(x, y, axis=3), (2, 3, 4), (2, 3, 4), ["concat", "axis 3"]),
    (lambda x, y: gb.ops.reshape(x, (5, 5)), (3, 4), (1,), ["reshape", "'x'"]),
    (lambda x, y: gb.ops.cont(x, (5, 5)), (3, 4), (1,), ["cont", "'x'"]),
    (lambda x, y: gb.ops.view(x, (100,)), (3, 4), (1,), ["view", "'x'"]),
    (lambda x, y: gb.ops.view(x, (2, 2), strides=(16, 8)), (3, 4), (1,), ["view", "adjacent"]),
    (lambda x, y: gb.ops.view(x, (2, 2), strides=(4,)), (3, 4), (1,), ["view", "strides"]),
    (lambda x, y: gb.ops.permute_ggml(x, 0, 0, 1, 2), (3, 4), (1,), ["permute", "'x'"]),
    (lambda x, y: gb.ops.soft_max(x, axis=0, inplace=True), (3, 4), (1,), ["softmax", "inplace=True"]),
    (lambda x, y: gb.ops.soft_max(x, y, inplace=True), (3, 4), (2, 5), ["softmax", "mask 'y'"]),
    (lambda x, y: gb.ops.soft_max(x, y), (3, 4), (2, 5), ["softmax", "mask 'y'"]),
    (lambda x, y: gb.ops.rope(x, y), (5, 2, 8), (5,), ["rope", "positions 'y'"]),
    (lambda x, y: gb.ops.rope(x, y, xpos_base=5.0), (5, 2, 8), (5,), ["rope", "xpos"]),
    (lambda x, y: gb.ops.rope(x, y, mode="other"), (5, 2, 8), (5,), ["rope", "mode"]),
    (lambda x, y: gb.ops.conv_2d(x, y), (6, 3, 2, 2), (1, 4, 8, 8), ["conv_2d", "kernel 'x'"]),
    (lambda x, y: gb.ops.conv_2d(x, y, stride="kernel", padding=1), (6, 3, 2, 2), (1, 3, 8, 8), ["conv_2d", "stride"]),
    (lambda x, y: gb.ops.conv_2d(x, y, stride=2, padding="half"), (6, 3, 2, 2), (1, 3, 8, 8), ["conv_2d", "padding"]),
    (lambda x, y: gb.ops.conv_2d(x, y, stride=(1, 2, 3)), (6, 3, 2, 2), (1, 3, 8, 8), ["conv_2d", "pair"]),
    (lambda x, y: gb.ops.pool_2d(x, "median", 2), (2, 4, 4), (1,), ["pool_2d", "'max', 'avg'"]),
    (lambda x, y: gb.ops.top_k(x, 5), (3, 4), (1,), ["top_k"]),
    (lambda x, y: gb.ops.top_k(x, 2**40), (3, 4), (1,), ["top_k"]),
    (lambda x, y: gb.ops.unary(x, "tan"), (3, 4), (1,), ["unary", "'relu'"]),
    (lambda x, y: gb.ops.mul_mat_id([], x, 0, y), (3, 4), (1,), ["mul_mat_id"]),
    (lambda x, y: gb.ops.mul_mat(x, y, prec="f8"), (3, 4), (3, 4), ["prec"]),
    (lambda x, y: gb.ops.pad(x, (1, 1, 1, 1, 1)), (3, 4), (3, 4), ["pad"]),
    (lambda x, y: gb.ops.repeat(x, (4, 4)), (3, 4), (1,), ["repeat", "'x'"]),
    (lambda x, y: gb.ops.diag_mask_inf(x, -1), (3, 4), (1,), ["diag_mask_inf"]),
    (lambda x, y: gb.ops.norm(x, "eps"), (3, 4), (1,), ["norm", "'x'"]),
    (lambda x, y: gb.ops.scale(x, None), (3, 4), (1,), ["scale", "'x'"]),
]  # fmt: skip


@pytest.mark.parametrize(("build", "x", "y", "words"), WRONG, ids=[f"{i}-{w[3][0]}" for i, w in enumerate(WRONG)])
def test_errors_name_the_operation_and_the_tensors(ctx, build, x, y, words):
    x, y = ctx.tensor(x, name="x"), ctx.tensor(y, name="y")
    n = len(ctx.tensors())
    with pytest.raises(gb.errors.InvalidArgumentError) as caught:
        build(x, y)
    assert isinstance(caught.value, ValueError)
    assert caught.value.status < 0
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert len(ctx.tensors()) <= n + 4


@pytest.mark.parametrize(
    "wrong", [None, 1.5, np.zeros(3, np.float32), "x", object()], ids=lambda wrong: type(wrong).__name__
)
def test_other_objects_are_a_type_error(ctx, wrong):
    x = ctx.tensor(3)
    for build in (
        lambda: gb.ops.add(x, wrong),
        lambda: gb.ops.relu(wrong),
        lambda: gb.ops.mul_mat(wrong, x),
        lambda: gb.ops.mul_mat_id([wrong], x, 0, x),
    ):
        with pytest.raises((TypeError, gb.errors.InvalidArgumentError)):
            build()


def test_closed_context_is_a_state_error(ctx):
    with gb.Context() as other:
        t = other.tensor(3)
    x = ctx.tensor(3)
    for build in (lambda: gb.ops.relu(t), lambda: gb.ops.add(x, t), lambda: t + x, lambda: x + t, lambda: t[0],
     lambda: t.reshape(3), lambda: t.T, lambda: t.shape,
                  lambda: other.tensor(3), lambda: other.graph(t), lambda: ctx.graph(t), lambda: t.name,
                  lambda: t.astype("f16"), lambda: other.tensors(),
                  lambda: other.constant(1), lambda: gb.ops.mul_mat_id([t], x, 0, x)):  # fmt: skip
        with pytest.raises(gb.errors.StateError, match="closed"):
            build()
    assert "closed" in repr(t)
    assert "closed" in repr(other)
