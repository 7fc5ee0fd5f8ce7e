"""Gradients by ``gb.grad`` against differences in double, on every device, and the errors of wrong calls."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ggml_backend as gb

EPS = 1e-5


def numpy_silu(x):
    return x / (1 + np.exp(-x))


def numpy_softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def numpy_attention(q, k, v):
    """Causal attention with two query heads for each head of keys."""
    n, m = q.shape[-2], k.shape[-2]
    k, v = (np.repeat(t, q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / q.shape[-1] ** 0.5
    scores = np.where(np.arange(m) > np.arange(n)[:, None], -np.inf, scores)
    return (numpy_softmax(scores) @ v).transpose(0, 2, 1, 3)


def attention(q, k, v):
    n, m = q.shape[-2], k.shape[-2]
    mask = np.where(np.arange(m) > np.arange(n)[:, None], -np.inf, 0).astype(np.float16)
    return gb.ops.flash_attn_ext(q, k, v, q.context.constant(mask), scale=q.shape[-1] ** -0.5)


EXPERTS = np.array([[1, 0], [3, 1], [1, 1]], np.int32)


def experts(w, x):
    return gb.ops.mul_mat_experts(w, x, x.context.constant(EXPERTS), prec="f32")


def numpy_experts(w, x):
    return np.array([[w[e] @ x[t, k % x.shape[1]] for k, e in enumerate(ids)] for t, ids in enumerate(EXPERTS)])


def numpy_conv_2d(k, x, stride):
    """Padding 1."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0)] * 2 + [(1, 1)] * 2), k.shape[2:], (2, 3))
    return np.einsum("nihwab,oiab->nohw", windows[:, :, ::stride, ::stride], k)


def numpy_conv_3d(k, x):
    """Stride 2, padding 1; two images of two channels, three kernels."""
    k, x = k.reshape(3, 2, 3, 2, 2), np.pad(x.reshape(2, 2, *x.shape[1:]), [(0, 0)] * 2 + [(1, 1)] * 3)
    windows = np.lib.stride_tricks.sliding_window_view(x, k.shape[2:], (2, 3, 4))[:, :, ::2, ::2, ::2]
    y = np.einsum("nidhwabc,oiabc->nodhw", windows, k)
    return y.reshape(-1, *y.shape[2:])


def numpy_conv_transpose_2d(k, x):
    y = np.zeros((len(x), k.shape[1], 2 * x.shape[2] + 1, 2 * x.shape[3]))
    for i, j in np.ndindex(x.shape[2:]):
        y[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 2] += np.einsum("nc,cohw->nohw", x[:, :, i, j], k)
    return y


CASES = {
    "experts": (experts, numpy_experts, [(4, 5, 6), (3, 2, 6)]),
    "experts of one row": (experts, numpy_experts, [(4, 5, 6), (3, 1, 6)]),
    "conv_2d": (
        lambda k, x: gb.ops.conv_2d(k, x, padding=1), lambda k, x: numpy_conv_2d(k, x, 1), [(3, 2, 3, 2), (2, 2, 5, 4)],
    ),
    "conv_2d with strides": (
        lambda k, x: gb.ops.conv_2d(k, x, 2, 1), lambda k, x: numpy_conv_2d(k, x, 2), [(3, 2, 3, 4), (2, 2, 6, 7)],
    ),
    "conv_3d": (
        lambda k, x: gb.ops.conv_3d(k, x, 2, stride=2, padding=1), numpy_conv_3d, [(6, 3, 2, 2), (4, 4, 5, 4)],
    ),
    "conv_transpose_2d": (
        lambda k, x: gb.ops.conv_transpose_2d(k, x, 2), numpy_conv_transpose_2d, [(3, 4, 3, 2), (2, 3, 2, 3)],
    ),
    "ssm_conv": (
        gb.ops.ssm_conv,
        lambda x, c: np.moveaxis(sum(x[..., j : j + 5] * c[:, j, None] for j in range(3)), -1, -2),
        [(2, 4, 7), (4, 3)],
    ),
    "product": (lambda x, w: x @ w.T, lambda x, w: x @ w.T, [(5, 8), (3, 8)]),
    "layer": (
        lambda x, w, b: gb.ops.silu(x @ w.T + b), lambda x, w, b: numpy_silu(x @ w.T + b), [(5, 8), (3, 8), (3,)],
    ),
    "rms_norm": (
        lambda x, w: gb.ops.rms_norm(x, EPS) * w, lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w,
        [(4, 8), (8,)],
    ),
    "norm": (
        lambda x: gb.ops.norm(x, EPS),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS), [(4, 8)],
    ),
    "softmax": (gb.ops.softmax, numpy_softmax, [(4, 7)]),
    "swiglu": (
        lambda x: gb.ops.glu(x), lambda x: numpy_silu(x[..., :4]) * x[..., 4:], [(3, 8)],
    ),
    "slices": (
        lambda x: x[:, 1:3] * x[:, 4:6], lambda x: x[:, 1:3] * x[:, 4:6], [(4, 7)],
    ),
    "attention": (attention, numpy_attention, [(2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 6)]),
}  # fmt: skip


def weights_of(shape, seed=9):
    """Weights of the sum that makes a result a scalar."""
    return np.random.default_rng(seed).standard_normal(shape)


def scalar(y, context):
    return gb.ops.sum(y * context.constant(weights_of(y.shape).astype(np.float32)))


def differences(function, arrays):
    """The gradient of the weighted sum in double."""
    weights = weights_of(function(*arrays).shape)
    found = []
    for array in arrays:
        slopes = np.zeros(array.shape)
        for at in np.ndindex(array.shape):
            kept, ends = array[at], []
            for step in (1e-5, -1e-5):
                array[at] = kept + step
                ends.append((function(*arrays) * weights).sum())
            array[at] = kept
            slopes[at] = (ends[0] - ends[1]) / 2e-5
        found.append(slopes)
    return found


def elements(array, dtype):
    """The array in a dtype. bfloat16: as bits."""
    if dtype is gb.bfloat16:
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return array.astype(dtype.numpy)


def gradients(build, arrays, backends, assign=None, dtype=gb.float32):
    with gb.Context() as ctx:
        tensors = [ctx.tensor(x.shape, dtype, f"x{i}") for i, x in enumerate(arrays)]
        found = gb.grad(scalar(build(*tensors), ctx), tensors)
        graph, sched = ctx.graph(*found), gb.Scheduler(backends)
        if assign is not None:
            assign(sched, graph)
        sched.allocate(graph)
        for t, x in zip(tensors, arrays, strict=True):
            t.set(elements(x, dtype))
        sched.compute(graph)
        return [t.numpy().copy() for t in found]


def inputs_of(name):
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape) for shape in CASES[name][2]]


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_convolutions_make_no_columns(stride):
    """Columns have nine times the elements of the image."""
    with gb.Context() as ctx:
        kernel, image = ctx.tensor((8, 4, 3, 3)), ctx.tensor((2, 4, 16, 16))
        graph = ctx.graph(*gb.grad(scalar(gb.ops.conv_2d(kernel, image, stride, 1), ctx), [kernel, image]))
        assert max(node.nbytes for node in graph.nodes) < 3 * image.nbytes


def test_gradients_of_kernels_over_many_places():
    """The images are divided among several convolutions."""
    rng = np.random.default_rng(5)
    kernel, image = rng.standard_normal((2, 2, 3, 1)), rng.standard_normal((3, 2, 256, 512))
    build = lambda k, x: gb.ops.conv_2d(k, x, padding=1)  # noqa: E731
    found, _ = gradients(build, [kernel, image], [gb.Backend("CPU")])
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(image, [(0, 0)] * 2 + [(1, 1)] * 2), (3, 1), (2, 3))
    expected = np.einsum("nihwab,nohw->oiab", windows, weights_of((3, 2, 256, 514)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05)  # 2e-7 of the sum of magnitudes


def slopes_of_convolution(k, x, slope, stride, padding, dilation):
    """The gradients of kernels and image from that of the result, one element of the kernel after another."""
    image = np.pad(x, [(0, 0)] * 2 + [(p, p) for p in padding])
    of_k, of_image = np.zeros(k.shape), np.zeros(image.shape)
    for i, j in np.ndindex(k.shape[2:]):
        read = [slice(None)] * 2
        for at, d, s, n in zip((i, j), dilation, stride, slope.shape[2:], strict=True):
            read.append(slice(at * d, at * d + s * (n - 1) + 1, s))
        of_k[:, :, i, j] = np.einsum("nohw,nihw->oi", slope, image[tuple(read)])
        of_image[tuple(read)] += np.einsum("nohw,oi->nihw", slope, k[:, :, i, j])
    h, w = (slice(p, n - p) for p, n in zip(padding, image.shape[2:], strict=True))
    return of_k, of_image[:, :, h, w]


def random_convolution(rng):
    """Shapes of kernels and image, and pairs of strides, paddings and dilations, such that the kernel fits."""
    n, channels, kernels = (int(i) for i in rng.integers(1, 6, 3))
    size, stride, dilation = (rng.integers(1, most, 2) for most in (6, 5, 4))
    stride = np.repeat(stride[0], 2) if rng.integers(2) else stride
    dilation = dilation if rng.integers(2) else np.ones(2, int)
    padding = rng.integers(0, 8, 2)
    least = np.maximum(dilation * (size - 1) + 1 - 2 * padding, 1)
    image = least + rng.integers(0, 9, 2)
    return ((kernels, channels, *map(int, size)), (n, channels, *map(int, image)),
            *(tuple(map(int, pair)) for pair in (stride, padding, dilation)))  # fmt: skip


def check_slopes(found, expected, shape):
    for got, slope in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, slope, 2e-5, 2e-5 * max(np.abs(slope).max(), 1), err_msg=str(shape))


@pytest.mark.parametrize("dtype", [gb.float32, gb.float16], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_random_convolutions(cpu, seed, dtype):
    rng = np.random.default_rng(seed)
    for _ in range(12):
        kernels, image, *pairs = shape = random_convolution(rng)
        k, x = (rng.integers(-16, 17, size) / 8 for size in (kernels, image))
        found = gradients(lambda k, x, pairs=pairs: gb.ops.conv_2d(k, x, *pairs), [k, x], [cpu], dtype=dtype)
        size = [(n + 2 * p - d * (m - 1) - 1) // s + 1
                for n, m, s, p, d in zip(image[2:], kernels[2:], *pairs, strict=True)]  # fmt: skip
        check_slopes(found, slopes_of_convolution(k, x, weights_of((len(x), len(k), *size)), *pairs), shape)


@pytest.mark.parametrize("dtype", [gb.float32, gb.float16, gb.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_gradients_of_random_transposed_convolutions(cpu, seed, dtype):
    """The image's gradient is a convolution of the result's gradient. The gradient of the kernels is that of this
    convolution."""
    rng = np.random.default_rng(seed)
    for _ in range(12):
        n, channels, kernels, kh, kw, stride = (int(i) for i in rng.integers(1, 6, 6))
        k = rng.integers(-16, 17, (channels, kernels, kh, kw)) / 8
        x = rng.integers(-16, 17, (n, channels, *map(int, rng.integers(1, 8, 2)))) / 8
        found = gradients(lambda k, x, s=stride: gb.ops.conv_transpose_2d(k, x, s), [k, x], [cpu], dtype=dtype)
        slope = weights_of(
            (n, kernels, *((m - 1) * stride + size for m, size in zip(x.shape[2:], (kh, kw), strict=True)))
        )
        windows = np.lib.stride_tricks.sliding_window_view(slope, (kh, kw), (2, 3))[:, :, ::stride, ::stride]
        of_k, _ = slopes_of_convolution(k, slope, x, (stride, stride), (0, 0), (1, 1))
        check_slopes(found, [of_k, np.einsum("nohwab,ioab->nihw", windows, k)], (k.shape, x.shape, stride))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("kernels", "channels", "images"), [(0, 2, 1), (4, 0, 1), (4, 2, 0), (0, 2, 0)])
def test_gradients_of_convolutions_without_kernels_channels_or_images(cpu, kernels, channels, images, stride):
    k = np.ones((kernels, channels, 3, 3))
    for build, depth in (
        (lambda k, x: gb.ops.conv_2d(k, x, stride, 1), channels),
        (lambda k, x: gb.ops.conv_transpose_2d(k, x, stride), kernels),
    ):
        arrays = k, np.ones((images, depth, 5, 5))
        for found, array in zip(gradients(build, arrays, [cpu]), arrays, strict=True):
            assert found.shape == array.shape and not found.any()


@pytest.mark.parametrize("device", ["CPU", "SIM", "ARRAY"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_differences(name, device):
    build, reference, _ = CASES[name]
    arrays = inputs_of(name)
    want = differences(reference, arrays)
    backends = [gb.Backend(device), *([] if device == "CPU" else [gb.Backend("CPU")])]
    for got, expected in zip(gradients(build, arrays, backends), want, strict=True):
        assert got.dtype == np.float32 and got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", CASES)
def test_random_placements_give_the_same_bits(name):
    build, arrays = CASES[name][0], inputs_of(name)
    want = gradients(build, arrays, [gb.Backend("CPU", n_threads=1)])
    rng = np.random.default_rng(11)
    for _ in range(3):
        backends = [gb.Backend("SIM"), gb.Backend("CPU", n_threads=1)]

        def place(sched, graph, backends=backends):
            for node in graph.nodes:
                if rng.integers(2):
                    sched.set_backend(node, backends[rng.integers(2)])

        for got, expected in zip(gradients(build, arrays, backends, place), want, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_a_step_changes_what_the_next_run_reads():
    """A linear regression. One run of the graph is one step, and the weights equal NumPy's for 50 steps."""
    rng = np.random.default_rng(5)
    x, target = rng.standard_normal((32, 4)), rng.standard_normal((32, 3))
    w = rng.standard_normal((3, 4)).astype(np.float32)
    for names, usage in itertools.product((["CPU"], ["SIM", "CPU"]), ("any", "weights")):
        with gb.Context(usage=usage) as held, gb.Context() as ctx:
            weights = held.tensor(w.shape, name="w")
            backends = [gb.Backend(name) for name in names]
            memory = held.allocate(backends[0])
            data, wanted = ctx.constant(x.astype(np.float32)), ctx.constant(target.astype(np.float32))
            params = ctx.constant(np.array([0.05, 0.01], np.float32))
            with ctx.as_default():
                error = data @ weights.T - wanted
                loss = gb.ops.mean(error * error, axis=(0, 1))
                (slope,) = gb.grad(loss, [weights])
                graph = ctx.graph(loss, slope, gb.ops.opt_step_sgd(weights, slope, params))
            sched = gb.Scheduler(backends)
            sched.allocate(graph)
            weights.set(w)
            expected = w.astype(np.float64)
            for _ in range(50):
                sched.compute(graph)
                missed = x @ expected.T - target
                assert abs(loss.numpy().item() - (missed**2).mean()) < 1e-5
                expected -= 0.05 * (2 / missed.size * missed.T @ x + 0.01 * expected)
            np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-4, atol=1e-5)
            del memory


def test_gradients_of_gradients(cpu):
    with gb.Context() as ctx:
        x = ctx.constant(np.array([2.0, -1.0, 0.5], np.float32))
        (first,) = gb.grad(gb.ops.sum(gb.ops.sqr(gb.ops.sqr(x))), [x])
        (second,) = gb.grad(gb.ops.sum(first), [x])
        graph = ctx.graph(second)
        memory = ctx.allocate(cpu)
        graph.compute(cpu)
        np.testing.assert_allclose(second.numpy(), 12 * np.array([4, 1, 0.25]), rtol=1e-6)
        assert second.shape == x.shape and first.name.endswith("(grad)") == bool(x.name)
        del memory


def test_wrong_calls_say_what_is_wrong(ctx):
    x, other = ctx.tensor((3, 4), name="x"), ctx.tensor((2,), name="other")
    loss = gb.ops.sum(x * x)
    with pytest.raises(TypeError, match=r"a sequence of tensors, not a?.*Tensor: use \[w\]"):
        gb.grad(loss, x)
    with pytest.raises(TypeError, match=r"params\[1\] must be a Tensor, not int"):
        gb.grad(loss, [x, 1])
    with pytest.raises(TypeError, match="loss must be a Tensor"):
        gb.grad(None, [x])
    with pytest.raises(TypeError, match="allow_unused must be True or False"):
        gb.grad(loss, [x], allow_unused=1)
    with pytest.raises(gb.errors.InvalidArgumentError, match="loss must be a scalar"):
        gb.grad(x, [x])
    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"does not depend on params\[1\].*'other'.*allow_unused=True"
    ):
        gb.grad(loss, [x, other])
    found = gb.grad(loss, [other, x], allow_unused=True)
    assert found[0] is None and found[1].shape == (3, 4)
    assert gb.grad(loss, []) == []
    quantized = ctx.tensor((2, 32), "q8_0", name="q")
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"params\[0\] 'q' q8_0 \(2, 32\) has no gradient"):
        gb.grad(gb.ops.sum(ctx.tensor((1, 32)) @ quantized.T), [quantized])
    with pytest.raises(gb.errors.UnsupportedError, match=r"DIAG 'matrix' .* the operator has no derivative"):
        gb.grad(gb.ops.sum(gb.ops.diag(x[:1]).named("matrix")), [x])


@pytest.mark.parametrize("device", ["CPU", "ARRAY"])
def test_gradients_pass_through_quantized_experts(device):
    """The gradient of the rows is that for the dequantized stack."""
    rng = np.random.default_rng(8)
    w, x = rng.standard_normal((4, 5, 32)).astype(np.float32), rng.standard_normal((3, 2, 32)).astype(np.float32)
    blocks = gb.quantize(w, "q8_0")
    with gb.Context() as ctx:
        stack, rows = ctx.tensor(w.shape, "q8_0", name="stack"), ctx.tensor(x.shape, name="rows")
        loss = scalar(experts(stack, rows), ctx)
        (found,) = gb.grad(loss, [rows])
        graph, sched = ctx.graph(loss, found), gb.Scheduler([gb.Backend(d) for d in dict.fromkeys((device, "CPU"))])
        sched.allocate(graph)
        stack.set(blocks)
        rows.set(x)
        sched.compute(graph)
        slopes = np.einsum("tum,tumk->tuk", weights_of((3, 2, 5)), gb.dequantize(blocks, "q8_0")[EXPERTS])
        np.testing.assert_allclose(found.numpy(), slopes, rtol=1e-4, atol=1e-5)


def test_results_in_place_are_not_mistaken(ctx):
    x = ctx.tensor((4,), name="x")
    y = gb.ops.exp(x)
    with pytest.raises(gb.errors.UnsupportedError, match=r"the gradients need .* overwrites"):
        gb.grad(gb.ops.sum(gb.ops.scale(y, 2.0, inplace=True)), [x])


def test_a_gradient_that_cannot_be_built_names_its_node(ctx):
    """The offsets of ACC have 32 bits. Neither the loss nor its operator breaks this rule."""
    x = ctx.tensor((3, 2**30), name="x")
    loss = gb.ops.sum(x[2:3].named("part")).named("total")
    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"the gradient of VIEW 'part' .* offset 8589934592"
    ) as caught:
        gb.grad(loss, [x])
    assert "loss 'node" not in str(caught.value)


@pytest.mark.parametrize("max_bias", [0.0, 4.0])
def test_the_gradient_of_a_mask_over_no_heads_is_zero(ctx, computed, max_bias):
    x, mask = ctx.tensor((1, 0, 3, 5)), ctx.constant(np.ones((3, 5), np.float32))
    q, k = ctx.tensor((1, 0, 3, 4)), ctx.tensor((1, 0, 5, 4))
    attention = gb.ops.flash_attn_ext(q, k, k, mask=gb.ops.cast(mask, gb.float16), max_bias=max_bias)
    for y in (gb.ops.softmax(x, mask=mask, max_bias=max_bias), attention):
        (slope,) = gb.grad(gb.ops.sum(y), [mask])
        np.testing.assert_array_equal(computed(slope), np.zeros((3, 5), np.float32))
