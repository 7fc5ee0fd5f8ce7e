"""Each operator on tensors without elements. The result has the shape of the operator, and elements
that are empty sums are zero. An operator that refuses such tensors names itself.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from op_cases import CASES
from op_harness import Built, In, cpus, sim

# Axes, counted from the end, that must not be empty: the function needs an element there, or sizes
# would not match.
REFUSED = {
    "add1": {1}, "argmax": {1}, "alibi": {3}, "cross_entropy_loss_back": {1}, "top_k": {1}, "repeat": {1, 2},
    "diag": {2}, "get_rows": {2, 3}, "get_rows_back": {1, 2}, "mul_mat_id": {1}, "flash_ff": {1, 2}, "im2col": {1, 2},
    "conv_2d": {1, 2}, "conv_depthwise_2d": {1, 2, 3, 4}, "conv_1d": {1}, "conv_transpose_1d": {1, 2, 3},
    "conv_transpose_2d": {1, 2, 3, 4}, "pool_1d": {1}, "pool_2d": {1, 2}, "win_unpart": {2, 3}, "get_rel_pos": {2},
    "add_rel_pos": {3, 4}, "flash_attn": {1, 2, 3}, "flash_attn_back": {1, 2}, "rope": {1, 3}, "rope_back": {1, 3},
    "set_rows": {1, 2}, "mul_mat_experts": {2, 3}, "add_id": {1, 2, 3}, "flash_attn_ext": {1, 2, 3},
    "soft_max": {1, 3}, "conv_3d": {1, 2, 3, 4}, "tri": {1, 2}, "tril": {1, 2}, "triu": {1, 2}, "pad": {1, 2},
    "solve_tri": {1, 2}, "ssm_conv": {1}, "gated_delta_net": {1, 2, 3}, "ssm_scan": {1, 2, 3, 4},
    "interpolate": {1, 2}, "col2im_1d": {1, 2}, "im2col_3d": {1, 2, 3}, "rwkv_wkv6": {2}, "rwkv_wkv7": {2},
    "gated_linear_attn": {2}, "im2col_back": {1, 2, 3, 4}, "opt_step_sgd": {1}, "opt_step_adamw": {1},
}  # fmt: skip
# Functions whose result ends with their last source, the state. Without tokens it is unchanged.
STATE = {"rwkv_wkv6", "rwkv_wkv7", "gated_linear_attn"}
CALLS: dict[str, list[Any]] = {}
for name, build, arrays in CASES:
    if name not in ("arange", "custom", "map_custom", "view", "reshape", "permute_ggml", "transpose", "empty_like"):
        CALLS.setdefault(name, []).append((build, arrays))
# The case of the table also calls other functions, which refuse such tensors first.
CALLS["solve_tri"] = [(gb.ops.solve_tri, CALLS["solve_tri"][0][1])]


def without_axis(array, axis):
    return array[(*[slice(None)] * (array.ndim - axis), slice(0, 0))] if array.ndim >= axis else array


@pytest.mark.parametrize("name", CALLS)
def test_empty_inputs_give_zeros_or_an_error(name):
    refused = set()
    for build, arrays in CALLS[name]:
        for axis in range(1, max(x.ndim for x in arrays) + 1):
            inputs = [In(np.ascontiguousarray(without_axis(x, axis))) for x in arrays]
            for backend in (cpus()[1][1], sim()):
                try:
                    built = Built(build, inputs, backend)
                    got = built.compute(backend)
                except gb.errors.InvalidArgumentError as error:
                    assert name.replace("_", "") in str(error).lower().replace("_", "")
                    refused.add(axis)
                    continue
                assert got.shape == built.node.shape
                nothing = np.nan if name == "mean" and axis == 1 else 0
                want = inputs[-1].values if name in STATE else np.full(got.shape, nothing, got.dtype)
                np.testing.assert_array_equal(got.reshape(-1), want.reshape(-1))
    assert refused == REFUSED.get(name, set())


INDICES = [slice(None), slice(3, 3), slice(0, 0), slice(1, None), slice(None, None, 2), slice(0, 0, 2), 0, -1, None,
           ..., slice(5, 2), slice(-1, None), slice(None, -1), slice(7, 9), slice(-9, -7, 3)]  # fmt: skip
EMPTY_SHAPES = [
    (0,),
    (3,),
    (0, 4),
    (4, 0),
    (2, 3),
    (0, 0),
    (2, 0, 3),
    (0, 3, 2),
    (3, 2, 0),
    (2, 3, 4),
    (0, 2, 0, 3),
    (2, 2, 0, 2),
    (1, 0),
    (0, 1),
]


@pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=str)
def test_slices_of_nothing(shape, ctx):
    """Indexing with few or no elements gives NumPy's shapes and elements."""
    values = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    t = ctx.tensor(shape, gb.float32)
    backend = cpus()[0][1]
    ctx.allocate(backend)
    t.set(values)
    tried = 0
    for items in itertools.chain(*(itertools.product(INDICES, repeat=k) for k in (1, 2, 3))):
        try:
            want = values[items]
        except IndexError:
            with pytest.raises((IndexError, gb.errors.InvalidArgumentError)):
                t[items]
            continue
        if want.ndim > 4 or (want.ndim == 4 and want.size > 0 and items[-1] == slice(None, None, 2)):
            continue  # needs more than four axes, counting one for a step along the last axis
        got = t[items]
        tried += 1
        assert got.shape == want.shape, f"{items}: {got.shape}, not {want.shape}"
        if want.size and got.op == "VIEW":
            np.testing.assert_array_equal(got.numpy(), want)
    assert tried > 100


def test_sums_of_empty_slices(ctx):
    """Results of empty slices equal those of NumPy."""
    x = ctx.tensor((4, 3), gb.float32)
    y = ctx.tensor((2, 3), gb.float32)
    nodes = [
        gb.ops.sum(x[2:2]),
        gb.ops.sum(x[:, 3:]),
        x[1:1] * 2.0,
        x[4:] @ y.T,
        gb.ops.concat(gb.ops.cont(x[3:3]), gb.ops.cont(x[3:]), 0),
    ]
    graph = ctx.graph(*nodes)
    backend = cpus()[0][1]
    ctx.allocate(backend)
    x.set(np.ones((4, 3), np.float32))
    y.set(np.ones((2, 3), np.float32))
    graph.compute(backend)
    assert [n.numpy().shape for n in nodes] == [(), (), (0, 3), (0, 2), (1, 3)]
    assert float(nodes[0].numpy()) == 0 and float(nodes[1].numpy()) == 0 and (nodes[4].numpy() == 1).all()


@pytest.mark.parametrize(("shape", "to"),
 [((0,), (0, 3)), ((0, 3), (0,)), ((0, 3), (3, 0)), ((2, 0), (0, 5, 2)), ((0,), (-1,)), ((0, 3), (-1, 3)),
                                       ((0, 3), (3, -1)), ((0,), (0, 0, 0, 0)), ((2, 0, 3), (6, -1))])  # fmt: skip
def test_reshape_of_nothing(shape, to, ctx):
    t = ctx.tensor(shape, gb.float32)
    assert t.reshape(to).shape == gb.ops.reshape(t, to).shape == np.zeros(shape).reshape(to).shape


@pytest.mark.parametrize(("shape", "to"), [((0,), (-1, 0)), ((0, 3), ()), ((0, 3), (3,)), ((2,), (2, 0)), ((0,), (1,))])
def test_reshape_of_empty_tensors_to_other_sizes(shape, to, ctx):
    with pytest.raises(gb.errors.InvalidArgumentError):
        ctx.tensor(shape, gb.float32).reshape(to)


READINGS = {
    "numpy": lambda s, g, y: y.numpy(),
    "a copy": lambda s, g, y: y.numpy(copy=True),
    "tolist": lambda s, g, y: y.tolist(),
    "asarray": lambda s, g, y: np.asarray(y),
    "results": lambda s, g, y: s.compute_async(g, [y]).results(),
    "a callback": lambda s, g, y: s.compute(g, lambda t: t.numpy() is not None),
    "compare": lambda s, g, y: (g.compare(cpus()[0][1], sim()), y.numpy()),
}


@pytest.mark.parametrize("name", READINGS)
@pytest.mark.parametrize("devices", [1, 2])
def test_huge_shapes_with_a_zero_are_refused_by_numpy(name, devices):
    """NumPy refuses shapes with a 0 if the product of the other sizes exceeds the address space."""
    ctx, s = gb.Context(), gb.Scheduler([sim(), cpus()[1][1]][2 - devices :])
    x = ctx.tensor((1 << 62, 0, 4))
    y = gb.ops.relu(x)
    g = ctx.graph(y)
    s.allocate(g)
    x.set(1.0)
    assert s.compute(g)
    with pytest.raises(gb.errors.InvalidArgumentError, match="NumPy cannot show"):
        READINGS[name](s, g, y)


@pytest.mark.parametrize("like", [(1, 1), (1, 4), (5, 1)])
def test_repeat_back_of_rows_without_elements(cpu, like):
    with gb.Context() as ctx:
        x, shape = ctx.tensor((5 << 38, 0)), ctx.tensor(like)
        graph = ctx.graph(y := gb.ops.repeat_back(x, shape))
        ctx.allocate(cpu)
        assert graph.compute(cpu)
        assert y.tolist() == np.zeros(like).tolist()


def test_custom_functions_get_empty_tensors(holds):
    holds("""
    c = gb.Context(); x = c.tensor((0, 512, 512)); seen = []
    s = gb.Scheduler([sim, cpu])
    def double(d, a):
        seen.extend([d.shape, a.shape]); return a * 2
    y = gb.ops.map_custom(double, gb.ops.relu(x))
    s.allocate(g := c.graph(y)); x.set(1.0); s.compute(g)
    assert set(seen) == {(0, 512, 512)}, seen
    assert y.numpy().shape == (0, 512, 512)
    """)


@pytest.mark.parametrize(
    "shape", [(1, 8), (1, 1, 8), (8, 1), (1,), (1, 1, 1, 1), (), (0, 3), (3, 0), (1, 0, 2)], ids=str
)
@pytest.mark.parametrize("devices", [["CPU"], ["SIM", "CPU"]], ids="-".join)
def test_custom_functions_get_every_axis(shape, devices):
    backends = [gb.Backend(d) for d in devices]
    seen = []

    def function(dst, a, b):
        seen.append((dst.shape, a.shape, b.shape, dst.size))
        dst[...] = a + b

    with gb.Context() as ctx, gb.Scheduler(backends) as scheduler:
        x = ctx.tensor(shape, name="x")
        y = gb.ops.map_custom(function, gb.ops.relu(x), gb.ops.neg(x))
        graph = ctx.graph(gb.ops.sqr(y))
        scheduler.allocate(graph)
        x.set(2.0)
        scheduler.compute(graph)
        assert set(seen) <= {(shape, shape, shape, int(np.prod(shape)))}
        assert seen or 0 in shape


def test_arrays_of_inner_nodes_have_the_shape_and_bytes_of_the_node(ctx, cpu):
    kernel, image = ctx.tensor((4, 3, 3, 3), gb.float16), ctx.tensor((0, 3, 200, 200))
    graph = ctx.graph(gb.ops.conv_2d(kernel, image))
    ctx.allocate(cpu)
    kernel.set(1.0)
    image.set(1.0)
    assert graph.compute(cpu)
    for node in graph.nodes:
        array = node.numpy()
        assert array.nbytes <= node.nbytes
        assert array.shape == node.shape
        assert node.size == np.prod(node.shape)


def test_compare_accepts_empty_tensors(holds):
    holds("""
    c = gb.Context(); k, d = c.tensor((4, 3, 3, 3), gb.float16), c.tensor((0, 3, 200, 200))
    g = c.graph(gb.ops.relu(gb.ops.conv_2d(k, d)))
    c.allocate(cpu); k.set(1.0)
    found = []
    g.compare(cpu, sim, lambda i, a, b: found.append((i, a.nbytes, b.nbytes)))
    assert found
    for i, a, b in found:
        assert a <= g.nodes[i].nbytes and b <= g.nodes[i].nbytes, (g.nodes[i], a, b)
    assert [t.shape for t in g.copy(cpu).nodes] == [t.shape for t in g.nodes]
    """)


@pytest.mark.parametrize("shape", [(0, 2**31), (0, 2**40, 2**20)], ids=str)
def test_empty_tensors_can_have_huge_axes(ctx, cpu, shape):
    t = ctx.tensor(shape)
    ctx.allocate(cpu)
    assert t.set(1.0).numpy().shape == shape


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2**62, 0), "NumPy cannot show"),
        ((0, 2**62, 2), "the size of .* overflows"),
        ((2**31, 2**31, 0, 2**31), "NumPy cannot show"),
    ],
    ids=str,
)
def test_empty_tensors_beyond_the_address_space_are_refused(ctx, cpu, shape, words):
    with pytest.raises(gb.errors.InvalidArgumentError, match=words):  # noqa: PT012 - any of the three calls
        t = ctx.tensor(shape)
        ctx.allocate(cpu)
        t.set(1.0).numpy()


@pytest.mark.parametrize("shape", [(2**40, 2**20, 0), (2**40, 0, 2**20), (0, 2**20)])
def test_compare_accepts_empty_tensors_with_huge_axes(ctx, cpu, shape):
    """NumPy can hold them as float32. As float64 they exceed the address space."""
    graph = ctx.graph(gb.ops.relu(ctx.tensor(shape)))
    ctx.allocate(cpu)
    (found,) = graph.compare(cpu, gb.Backend("CPU", n_threads=2))
    assert (found.shape, found.equal, found.max_abs, found.nmse) == (shape, True, 0.0, 0.0)
