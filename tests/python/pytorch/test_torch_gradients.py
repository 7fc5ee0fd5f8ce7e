"""Gradients of layers and of a small decoder block, beside PyTorch's autograd."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from random_networks import gradients, network

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_torch.sh installs it")
import torch
from torch.nn import functional as F

UNARY = {
    "relu": F.relu, "silu": F.silu, "gelu": lambda x: F.gelu(x, approximate="tanh"), "gelu_erf": F.gelu,
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x), "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "exp": torch.exp, "elu": F.elu, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "softplus": F.softplus,
    "sin": torch.sin, "cos": torch.cos, "expm1": torch.expm1,
}  # fmt: skip


def compare(build, theirs, shapes, low=-2.0, high=2.0, limit=2e-5):
    """Both gradients of a weighted sum, for all inputs; on the CPU, and on ARRAY with PyTorch."""
    rng = np.random.default_rng(4)
    arrays = [(rng.random(s) * (high - low) + low).astype(np.float32) for s in shapes]
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    y = theirs(*leaves)
    weights = rng.standard_normal(tuple(y.shape))
    wanted = torch.autograd.grad((y * torch.tensor(weights)).sum(), leaves)
    for devices in (["CPU"], ["ARRAY:library=torch", "CPU"]):
        with gb.Context() as ctx:
            tensors = [ctx.constant(x) for x in arrays]
            loss = gb.ops.sum(build(*tensors) * ctx.constant(weights.astype(np.float32)))
            found = gb.grad(loss, tensors)
            graph, sched = ctx.graph(*found), gb.Scheduler([gb.Backend(d) for d in devices])
            sched.compute(graph)
            for got, want in zip(found, wanted, strict=True):
                want = want.numpy()
                np.testing.assert_allclose(got.numpy(), want, rtol=limit, atol=limit * np.abs(want).max())


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_elements(name):
    compare(getattr(gb.ops, name), UNARY[name], [(40, 50)], -6, 6)


@pytest.mark.parametrize("gate", ["reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick"])
def test_gates(gate):
    names = {"reglu": "relu", "swiglu": "silu"}
    f = UNARY[names.get(gate, gate.replace("geglu", "gelu"))]
    compare(lambda x: gb.ops.glu(x, op=gate), lambda x: f(x[..., :8]) * x[..., 8:], [(5, 16)])
    compare(lambda x, g: gb.ops.glu(x, g, op=gate), lambda x, g: f(x) * g, [(5, 16), (5, 16)])


def test_norms():
    compare(lambda x: gb.ops.norm(x, 1e-5), lambda x: F.layer_norm(x, (32,), eps=1e-5), [(7, 32)])
    compare(lambda x: gb.ops.rms_norm(x, 1e-5), lambda x: F.rms_norm(x, (32,), eps=1e-5), [(7, 32)])
    compare(lambda x: gb.ops.group_norm(x, 3), lambda x: F.group_norm(x, 3, eps=1e-6), [(2, 6, 4, 5)])
    compare(lambda x: gb.ops.l2_norm(x, 1e-12), lambda x: F.normalize(x, dim=-1), [(7, 32)])


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1)])
def test_convolutions(stride, padding):
    shapes = [(6, 4, 3, 3), (2, 4, 9, 8)]
    options = {"stride": stride, "padding": padding}
    compare(lambda k, x: gb.ops.conv_2d(k, x, **options), lambda k, x: F.conv2d(x, k, **options), shapes)
    compare(
        lambda k, x: gb.ops.conv_2d(k, x, groups=4, **options), lambda k, x: F.conv2d(x, k, groups=4, **options),
        [(4, 1, 3, 3), (2, 4, 9, 8)],
    )  # fmt: skip


def test_pools_and_resizing():
    compare(lambda x: gb.ops.pool_2d(x, "avg", 2), lambda x: F.avg_pool2d(x, 2), [(3, 8, 7)])
    compare(lambda x: gb.ops.pool_2d(x, "max", 2), lambda x: F.max_pool2d(x, 2), [(3, 8, 7)])
    compare(lambda x: gb.ops.upscale(x, 2), lambda x: F.interpolate(x, scale_factor=2), [(2, 3, 4, 5)])


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    n = 9
    mask = np.triu(np.full((n, n), -np.inf, np.float16), 1)

    def ours(q, k, v):
        hidden = q.context.constant(mask) if causal else None
        return gb.ops.flash_attn_ext(q, k, v, hidden, scale=0.25)

    def theirs(q, k, v):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.25, enable_gqa=True)
        return y.transpose(1, 2)

    compare(ours, theirs, [(2, 4, n, 16), (2, 2, n, 16), (2, 2, n, 16)])


@pytest.mark.parametrize("heads", [4, 6])
def test_masks_with_slopes(heads):
    """ALiBi's slopes as in its paper: the powers of 2 ** (-8 / 4), and then every other power of its root."""
    n = 5
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3][:heads]).reshape(heads, 1, 1)
    compare(
        lambda x, mask: gb.ops.soft_max(x, mask, max_bias=8.0),
        lambda x, mask: F.softmax(x + slopes * mask, -1), [(2, heads, n, n), (n, n)],
    )  # fmt: skip
    compare(
        lambda q, k, mask: gb.ops.flash_attn_ext(q, k, k, mask, scale=0.25, max_bias=8.0),
        lambda q, k, mask: F.scaled_dot_product_attention(q, k, k, slopes * mask, scale=0.25).transpose(1, 2),
        [(2, heads, n, 16), (2, heads, n, 16), (n, n)],
    )  # fmt: skip


def test_losses():
    target = np.random.default_rng(1).integers(0, 11, 6)
    hot = np.eye(11, dtype=np.float32)[target]
    compare(
        lambda x: gb.ops.cross_entropy_loss(x, x.context.constant(hot), eps=0.0),
        lambda x: F.cross_entropy(x, torch.tensor(target)).reshape(1), [(6, 11)],
    )  # fmt: skip


def test_convolutions_of_three_dimensions():
    options = {"stride": (2, 1, 2), "padding": (0, 2, 1)}
    compare(
        lambda k, x: gb.ops.conv_3d(k, x, 4, **options),
        lambda k, x: F.conv3d(x.reshape(2, 4, 5, 6, 7), k.reshape(6, 4, 2, 3, 2), **options).flatten(0, 1),
        [(24, 2, 3, 2), (8, 5, 6, 7)],
    )


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_transposed_convolutions(stride):
    compare(
        lambda k, x: gb.ops.conv_transpose_2d(k, x, stride),
        lambda k, x: F.conv_transpose2d(x, k, stride=stride), [(4, 6, 3, 2), (2, 4, 5, 6)],
    )  # fmt: skip
    compare(
        lambda k, x: gb.ops.conv_transpose_1d(k, x, stride),
        lambda k, x: F.conv_transpose1d(x, k, stride=stride), [(4, 6, 3), (4, 7)],
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_random_networks(seed):
    net = network(seed)
    leaves = [torch.tensor(x.astype(np.float32), dtype=torch.float64, requires_grad=True) for x in net.arrays]
    wanted = torch.autograd.grad(net.loss(torch, leaves, torch.tensor(net.factors)), leaves)
    largest = max(float(w.abs().max()) for w in wanted)
    for got, want in zip(gradients(net, [gb.Backend("CPU")]), wanted, strict=True):
        bound = 5e-5 * (float(want.abs().max()) + 0.1 * largest)
        np.testing.assert_allclose(got, want.numpy(), rtol=2e-4, atol=bound, err_msg=str(net))
