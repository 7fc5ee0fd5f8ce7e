"""Groups of nodes that become one: the same results with fewer nodes, and only where the group computes just that."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.program.build import Weights
from ggml_backend.program.network import Network, Node, Ref, Value
from ggml_backend.program.program import Engine, Step
from ggml_backend.program.simplify import simplify

EPS = 1e-6


class Writer:
    """Writes a network with random inputs and weights."""

    def __init__(self, seed, flipped=False):
        self.network, self.arrays = Network(), {}
        self.random, self.flipped = np.random.default_rng(seed), flipped

    def input(self, *shape):
        name = f"input{len(self.arrays)}"
        self.arrays[name] = self.random.standard_normal(shape, np.float32)
        self.network.inputs.append(name)
        self.network.values[name] = Value(shape, "float32")
        return Ref(name)

    def weight(self, *shape):
        name = f"weight{len(self.network.arrays)}"
        self.network.arrays[name] = self.random.standard_normal(shape, np.float32)
        self.network.values[name] = Value(shape, "float32")
        self.network.weights.add(name)
        return Ref(name)

    def shape(self, value):
        return self.network.values[value.name].shape

    def node(writer, op, /, *shape, **arguments):
        name = f"value{len(writer.network.nodes)}"
        writer.network.values[name] = Value(shape, "float32")
        writer.network.nodes.append(Node(op, arguments, (name,), "layer"))
        return Ref(name)

    def both(self, op, a, b, **more):
        """Arithmetic; mul and add with their operands in either order."""
        if self.flipped and op in ("mul", "add") and isinstance(b, Ref):
            a, b = b, a
        shape = np.broadcast_shapes(self.shape(a), self.shape(b) if isinstance(b, Ref) else ())
        return self.node(f"{op}.Tensor", *shape, self=a, other=b, **more)

    def one(self, op, x, **more):
        return self.node(op, *self.shape(x), self=x, **more)

    def mean(self, x, axis=-1):
        shape = [1 if i == axis % len(self.shape(x)) else n for i, n in enumerate(self.shape(x))]
        return self.node("mean.dim", *shape, self=x, dim=[axis], keepdim=True)

    def slice(self, x, begin, end):
        shape = self.shape(x)
        n = min(end, shape[-1]) - begin
        return self.node("slice.Tensor", *shape[:-1], n, self=x, dim=len(shape) - 1, start=begin, end=end)


def results(writer, outputs):
    """The outputs of the network as it is and of the simplified one, and the operators of this."""
    engine = Engine([gb.Backend("CPU", n_threads=2)], {})
    network = writer.network
    network.outputs = [value.name for value in outputs]
    weights = Weights(engine.backends[0], {})
    plain = Step(network.at({}), weights, None)
    weights.place()
    simplified = network.at({})
    simplify(simplified, {})
    simplified.check()
    ops = [node.op for node in simplified.nodes]
    found = engine.run(engine.step(simplified, "test"), writer.arrays)
    return engine.run(plain, writer.arrays), found, ops


def check(writer, outputs, expected, bound=2e-6):
    plain, found, ops = results(writer, outputs)
    assert plain.keys() == found.keys()
    for name in plain:
        largest = np.abs(plain[name]).max(initial=1e-30)
        assert np.abs(plain[name] - found[name]).max(initial=0) <= bound * largest
    assert sorted(ops) == sorted(expected)


def mean_square(w, x, eps=EPS, exponent=2, axis=-1):
    return w.both("add", w.mean(w.one("pow.Tensor_Scalar", x, exponent=exponent), axis), eps)


SHAPES = [(1, 1), (3, 5), (2, 7, 64), (1, 1, 1, 33), (2, 3, 4, 96)]
FORMS = {
    "rsqrt": lambda w, x, m: w.both("mul", x, w.one("rsqrt", m)),
    "sqrt": lambda w, x, m: w.both("div", x, w.one("sqrt", m)),
    "reciprocal": lambda w, x, m: w.both("mul", x, w.one("reciprocal", w.one("sqrt", m))),
}


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norms(shape, form, flipped):
    w = Writer(1, flipped)
    x = w.input(*shape)
    y = FORMS[form](w, x, mean_square(w, x))
    check(w, [w.both("mul", y, w.weight(shape[-1]))], ["rms_norm"])


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_layer_norms(shape, flipped):
    w = Writer(2, flipped)
    x = w.input(*shape)
    centred = w.both("sub", x, w.mean(x))
    y = w.both("div", centred, w.one("sqrt", mean_square(w, centred)))
    check(w, [w.both("add", w.both("mul", y, w.weight(shape[-1])), w.weight(shape[-1]))], ["layer_norm"], 1e-5)


def tanh_form(w, x):
    cube = w.both("mul", w.one("pow.Tensor_Scalar", x, exponent=3.0), 0.044715)
    return w.both("add", w.one("tanh", w.both("mul", w.both("add", x, cube), math.sqrt(2 / math.pi))), 1.0)


def erf_form(w, x):
    return w.both("add", w.one("erf", w.both("div", x, math.sqrt(2))), 1.0)


GELUS = {"tanh": tanh_form, "erf": erf_form}


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("half_first", [False, True])
@pytest.mark.parametrize("form", GELUS)
def test_gelu(form, half_first, flipped):
    w = Writer(3, flipped)
    x = w.input(5, 40)
    if half_first:
        y = w.both("mul", w.both("mul", x, 0.5), GELUS[form](w, x))
    else:
        y = w.both("mul", w.both("mul", x, GELUS[form](w, x)), 0.5)
    check(w, [y], ["gelu"], 1e-5)


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize(("op", "arguments"), [("silu", {}), ("gelu", {}), ("gelu", {"approximate": "tanh"})])
def test_gated_units(op, arguments, flipped):
    w = Writer(4, flipped)
    a, b = w.input(3, 7), w.input(3, 7)
    check(w, [w.both("mul", w.one(op, a, **arguments), b)], ["ggml_backend.glu"], 1e-5)


@pytest.mark.parametrize("gate", [0, 1])
def test_gated_units_of_one_value_need_no_split(gate):
    w = Writer(5)
    x = w.input(2, 3, 10)
    w.network.values |= {"half0": Value((2, 3, 5), "float32"), "half1": Value((2, 3, 5), "float32")}
    w.network.nodes.append(Node("split.Tensor", {"self": x, "split_size": 5, "dim": -1}, ("half0", "half1"), ""))
    halves = Ref("half0"), Ref("half1")
    check(w, [w.both("mul", w.one("silu", halves[gate]), halves[1 - gate])], ["ggml_backend.glu"])


@pytest.mark.parametrize("half", ["half0", "half1"])
def test_a_half_may_be_its_own_gate(half):
    w = Writer(5)
    x = w.input(2, 3, 10)
    w.network.values |= {"half0": Value((2, 3, 5), "float32"), "half1": Value((2, 3, 5), "float32")}
    w.network.nodes.append(Node("split.Tensor", {"self": x, "split_size": 5, "dim": -1}, ("half0", "half1"), ""))
    check(w, [w.both("mul", w.one("silu", Ref(half)), Ref(half))], ["split.Tensor", "ggml_backend.glu"])


@pytest.mark.parametrize("split", [False, True])
def test_gated_units_of_five_axes(split):
    """A tensor has other axes then, which depend on how it was made."""
    w = Writer(5)
    x = w.node("permute", 2, 3, 2, 2, 10, self=w.input(2, 2, 3, 2, 10), dims=[0, 2, 1, 3, 4])
    if split:
        w.network.values |= {name: Value((2, 3, 2, 2, 5), "float32") for name in ("half0", "half1")}
        w.network.nodes.append(Node("split.Tensor", {"self": x, "split_size": 5, "dim": -1}, ("half0", "half1"), ""))
        gate, up = Ref("half1"), Ref("half0")
    else:
        gate, up = w.input(2, 3, 2, 2, 10), x
    check(w, [w.both("mul", w.one("silu", gate), up)], ["permute", "ggml_backend.glu"])


@pytest.mark.parametrize(
    ("op", "arguments"), [("silu", {}), ("relu", {}), ("gelu", {}), ("gelu", {"approximate": "tanh"})]
)
def test_gates_keep_nan_and_infinity(op, arguments):
    w = Writer(4)
    values = [math.nan, math.inf, -math.inf, -1, 0, 1]
    a, b = w.input(6, 6), w.input(6, 6)
    w.arrays[a.name][:] = np.reshape(values, (6, 1))
    w.arrays[b.name][:] = values
    plain, found, _ = results(w, [w.both("mul", w.one(op, a, **arguments), b)])
    for name in plain:
        np.testing.assert_allclose(found[name], plain[name], rtol=1e-5)


def rotated(w, x, cos, sin, half=None, last=None):
    n = w.shape(x)[-1]
    half = n // 2 if half is None else half
    parts = [w.one("neg", w.slice(x, half, 2**63 - 1 if last is None else last)), w.slice(x, 0, half)]
    turned = w.node("cat", *w.shape(x), tensors=parts, dim=-1)
    return w.both("add", w.both("mul", x, cos), w.both("mul", turned, sin))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("flipped", [False, True])
def test_rotations_share_their_angles(flipped, constant):
    w = Writer(6, flipped)
    x, y = w.input(2, 4, 5, 16), w.input(2, 2, 5, 16)
    cos, sin = (w.weight(1, 5, 16) if constant else w.input(2, 1, 5, 16) for _ in range(2))
    outputs = [rotated(w, x, cos, sin), rotated(w, y, cos, sin)]
    plain, found, ops = results(w, outputs)
    assert sorted(ops) == sorted(["mul.Tensor", "roll", "mul.Tensor", "add.Tensor"] * 2 + ["mul.Tensor"])
    for name in plain:
        assert np.abs(plain[name] - found[name]).max() < 1e-6


@pytest.mark.parametrize(("heads", "kv"), [(4, 2), (6, 1), (8, 8)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_finds_the_keys_of_a_group_of_heads(heads, kv, masked):
    w = Writer(7)
    b, t, d, r = 2, 5, 8, heads // kv
    query, mask = w.input(b, heads, t, d), w.input(1, 1, t, t)

    def repeated(x):
        x = w.node("unsqueeze", b, kv, 1, t, d, self=x, dim=2)
        x = w.node("expand", b, kv, r, t, d, self=x, size=[b, kv, r, t, d])
        return w.node("_unsafe_view", b, heads, t, d, self=w.one("clone", x), size=[b, heads, t, d])

    more = {"attn_mask": mask} if masked else {"is_causal": True}
    key, value = (repeated(w.input(b, kv, t, d)) for _ in range(2))
    y = w.node("scaled_dot_product_attention", b, heads, t, d, query=query, key=key, value=value, scale=0.3, **more)
    check(w, [y], ["scaled_dot_product_attention"], 1e-5)


def turned_keys(w, key, axes):
    """(..., tokens, width) with its last two axes exchanged, by one of two operators."""
    shape = w.shape(key)
    n = len(shape)
    if axes == "permute":
        return w.node("permute", *shape[:-2], shape[-1], shape[-2], self=key, dims=[*range(n - 2), n - 1, n - 2])
    return w.node("transpose.int", *shape[:-2], shape[-1], shape[-2], self=key, dim0=axes[0], dim1=axes[1])


def attended(w, query, turned, value, factors=(), cap=None, masks=(), dim=-1, dropout=None):
    """Attention written out. factors: (of what, operator, number)"""
    shape = (*w.shape(query)[:-1], w.shape(turned)[-1])
    for what, op, number in factors:
        if what == "query":
            query = w.both(op, query, number)
        if what == "key":
            turned = w.both(op, turned, number)
    x = w.node("matmul", *shape, self=query, other=turned)
    for what, op, number in factors:
        if what == "scores":
            x = w.both(op, x, number)
    if cap is not None:
        x = w.both("mul", w.one("tanh", w.both("div", x, cap)), cap)
    for mask in masks:
        x = w.both("add", x, mask)
    x = w.one("softmax.int", x, dim=dim)
    if dropout == "dropout":
        x = w.node("dropout", *shape, input=x, p=0.1, train=False)
    elif dropout == "clone":
        x = w.one("clone", x)
    return w.node("matmul", *shape[:-1], w.shape(value)[-1], self=x, other=value)


WRITTEN_OUT = {
    "plain": {},
    "scaled": {"factors": [("scores", "mul", 0.25)]},
    "divided": {"factors": [("scores", "div", 4.0)]},
    "scaled before": {"factors": [("query", "mul", 0.5), ("key", "mul", 0.25)]},
    "all factors": {"factors": [("query", "div", 3.0), ("key", "mul", 2.0), ("scores", "mul", 0.3)]},
    "a negative factor": {"factors": [("scores", "mul", -0.4)], "cap": 5.0},
    "clone": {"factors": [("scores", "mul", 0.25)], "dropout": "clone"},
    "dropout": {"factors": [("scores", "mul", 0.25)], "dropout": "dropout"},
    "capped": {"factors": [("scores", "mul", 0.25)], "cap": 2.0, "dropout": "clone"},
    "capped, no factor": {"cap": 3.0, "dim": 3},
}


@pytest.mark.parametrize("masks", [[], [(1, 1, "n", "m")], [(1, 4, "n", "m"), (2, 1, 1, "m")], [("n", "m")]])
@pytest.mark.parametrize(("n", "m"), [(1, 20), (5, 5), (12, 9), (24, 33)])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_attention_that_is_written_out(name, n, m, masks):
    w = Writer(16, flipped=m % 2)
    query, key, value = w.input(2, 4, n, 8), w.input(2, 4, m, 8), w.input(2, 4, m, 12)
    given = [w.input(*({"n": n, "m": m}.get(size, size) for size in shape)) for shape in masks]
    for mask in given:
        w.arrays[mask.name][..., 1::3] = np.finfo(np.float32).min  # the first key stays
    y = attended(w, query, turned_keys(w, key, (-1, 2)), value, masks=given, **WRITTEN_OUT[name])
    op = "ggml_backend.attention" if "cap" in WRITTEN_OUT[name] else "scaled_dot_product_attention"
    check(w, [y], [op, *["add.Tensor"] * (len(masks) == 2)], 1e-5)


@pytest.mark.parametrize("shape", [(6,), (), (2, 3)])
@pytest.mark.parametrize("axes", ["permute", (-2, -1)])
@pytest.mark.parametrize("cap", [None, 4.0])
def test_written_out_attention_of_other_axes(shape, axes, cap):
    w = Writer(17)
    query, key, value = w.input(*shape, 9, 8), w.input(*shape, 17, 8), w.input(*shape, 17, 8)
    mask = w.input(*shape[-1:], 9, 17)
    y = attended(w, query, turned_keys(w, key, axes), value, cap=cap, masks=[mask])
    check(w, [y], ["ggml_backend.attention" if cap else "scaled_dot_product_attention"], 1e-5)


@pytest.mark.parametrize("n", [1, 12])
def test_keys_that_one_operator_turns_and_splits_into_heads(n):
    """ONNX files permute (batch, tokens, heads, width) to (batch, heads, width, tokens)."""
    w = Writer(18)
    query, key, value = w.input(2, 4, n, 8), w.input(2, 20, 4, 8), w.input(2, 4, 20, 8)
    turned = w.node("permute", 2, 4, 8, 20, self=key, dims=[0, 2, 3, 1])
    y = attended(w, query, turned, value, [("scores", "div", 2.8)])
    check(w, [y], ["permute", "scaled_dot_product_attention"], 1e-5)


@pytest.mark.parametrize("n", [1, 12])
@pytest.mark.parametrize("cap", [None, 4.0])
def test_written_out_attention_finds_the_keys_of_a_group_of_heads(n, cap):
    w = Writer(19)

    def repeated(x):
        x = w.node("unsqueeze", 2, 2, 1, 20, 8, self=x, dim=2)
        x = w.node("expand", 2, 2, 3, 20, 8, self=x, size=[2, 2, 3, 20, 8])
        return w.node("_unsafe_view", 2, 6, 20, 8, self=w.one("clone", x), size=[2, 6, 20, 8])

    query, mask = w.input(2, 6, n, 8), w.input(2, 1, n, 20)
    key, value = (repeated(w.input(2, 2, 20, 8)) for _ in range(2))
    y = attended(w, query, turned_keys(w, key, (2, 3)), value, [("scores", "mul", 0.3)], cap, [mask])
    check(w, [y], ["ggml_backend.attention" if cap else "scaled_dot_product_attention"], 1e-5)


def test_layers_share_the_sum_of_their_masks():
    """As in T5: the bias of positions is that of the first layer."""
    w = Writer(20)
    masks, x = [w.input(1, 4, 9, 9), w.input(2, 1, 1, 9)], w.input(2, 4, 9, 8)
    for _ in range(3):
        x = attended(w, x, turned_keys(w, x, (2, 3)), x, masks=masks)
    check(w, [x], ["add.Tensor", *["scaled_dot_product_attention"] * 3], 1e-5)


def near_attention(change):
    """Attention that differs from the pattern by one thing."""

    def network(w):
        query, key, value = (w.input(2, 4, 9, 8) for _ in range(3))
        turned = turned_keys(w, key, (2, 3))
        if change == "weights":
            y = attended(w, query, turned, value)
            weights = next(node for node in w.network.nodes if node.op == "softmax.int")
            return [y, Ref(weights.results[0])]
        if change == "axis":
            return [attended(w, query, turned, value, dim=2)]
        if change == "cap":
            x = w.both(
                "mul", w.one("tanh", w.both("div", w.node("matmul", 2, 4, 9, 9, self=query, other=turned), 5)), 4
            )
            return [w.node("matmul", 2, 4, 9, 8, self=w.one("softmax.int", x, dim=-1), other=value)]
        if change == "dropout":
            x = w.one("softmax.int", w.node("matmul", 2, 4, 9, 9, self=query, other=turned), dim=-1)
            return [w.node("matmul", 2, 4, 9, 8, self=w.one("relu", x), other=value)]
        return [attended(w, query, turned, w.input(4, 9, 8))]

    return network


def norm_and_square(w):
    """Another reader needs the square, too."""
    x = w.input(3, 8)
    square = w.one("pow.Tensor_Scalar", x, exponent=2)
    return [w.both("mul", x, w.one("rsqrt", w.both("add", w.mean(square), EPS))), square]


def activation_with_two_readers(w):
    a, b = w.input(3, 8), w.input(3, 8)
    act = w.one("silu", a)
    return [w.both("mul", act, b), w.both("add", act, b)]


def other_input(w):
    x, y = w.input(3, 8), w.input(3, 8)
    return [w.both("mul", y, w.one("rsqrt", mean_square(w, x)))]


def heads_of_other_axes(w):
    """Whole groups are repeated, not single heads."""
    b, kv, r, t, d = 2, 2, 3, 4, 8

    def repeated(x):
        x = w.node("unsqueeze", b, 1, kv, t, d, self=x, dim=1)
        x = w.node("expand", b, r, kv, t, d, self=x, size=[b, r, kv, t, d])
        return w.node("_unsafe_view", b, r * kv, t, d, self=w.one("clone", x), size=[b, r * kv, t, d])

    query, key, value = w.input(b, r * kv, t, d), repeated(w.input(b, kv, t, d)), repeated(w.input(b, kv, t, d))
    return [w.node("scaled_dot_product_attention", b, r * kv, t, d, query=query, key=key, value=value)]


def heads_repeated_by(first, second, third, tokens=4, width=8):
    """These repeats of the axes before the heads, behind them and of the last give four heads of two, too."""

    def network(w):
        def repeated(x):
            x = w.node("unsqueeze", 1, 2, 1, tokens, width, self=x, dim=2)
            sizes = [first, 2, second, tokens, width * third]
            x = w.one("clone", w.node("expand", *sizes, self=x, size=sizes))
            return w.node("_unsafe_view", 1, 4, tokens, width, self=x, size=[1, 4, tokens, width])

        query, key, value = w.input(1, 4, tokens, width), *(repeated(w.input(1, 2, tokens, width)) for _ in range(2))
        return [w.node("scaled_dot_product_attention", 1, 4, tokens, width, query=query, key=key, value=value)]

    return network


def relu_of_a_gate(w):
    """``reglu`` is 0 where this is ``0 inf``."""
    return [w.both("mul", w.one("relu", w.input(3, 8)), w.input(3, 8))]


def a_weight_as_epsilon(w):
    """It may change later."""
    x, eps = w.input(3, 8), w.weight(1)
    w.network.arrays[eps.name][:] = EPS
    return [w.both("mul", x, w.one("rsqrt", mean_square(w, x, eps)))]


def a_rotation_that_is_too_wide(w):
    """A file must not make large arrays of signs."""
    return [rotated(w, w.input(1, 8192), w.input(1, 8192), w.input(1, 8192))]


def broadcast_gate(w):
    return [w.both("mul", w.one("silu", w.input(3, 8)), w.input(8))]


def rotation_of_another_value(w):
    x, y, sin = w.input(2, 8), w.input(2, 8), w.input(2, 8)
    turned = w.node("cat", 2, 8, tensors=[w.one("neg", w.slice(x, 4, 8)), w.slice(y, 0, 4)], dim=-1)
    return [w.both("add", w.both("mul", x, sin), w.both("mul", turned, sin))]


NEAR = {
    "the square has another reader": norm_and_square,
    "the activation has another reader": activation_with_two_readers,
    "another value is divided": other_input,
    "the mean of another axis": lambda w: (lambda x: [w.both("mul", x, w.one("rsqrt", mean_square(w, x, axis=0)))])(
        w.input(3, 8)
    ),
    "a cube": lambda w: (lambda x: [w.both("mul", x, w.one("rsqrt", mean_square(w, x, 3.0, exponent=4)))])(
        w.input(3, 8)
    ),
    "an epsilon above 1": lambda w: (lambda x: [w.both("mul", x, w.one("rsqrt", mean_square(w, x, 2.0)))])(
        w.input(3, 8)
    ),
    "alpha": lambda w: (lambda x: [w.both("add", x, w.one("silu", x), alpha=2)])(w.input(3, 8)),
    "a gate that repeats": broadcast_gate,
    "whole groups of heads": heads_of_other_axes,
    "whole groups of heads by the first axis": heads_repeated_by(2, 1, 1),
    "repeated elements": heads_repeated_by(1, 1, 2, width=1),
    "the gate of relu": relu_of_a_gate,
    "a weight as epsilon": a_weight_as_epsilon,
    "a wide rotation": a_rotation_that_is_too_wide,
    "halves of two values": rotation_of_another_value,
    "weights that are read": near_attention("weights"),
    "softmax of another axis": near_attention("axis"),
    "a cap of two numbers": near_attention("cap"),
    "changed weights": near_attention("dropout"),
    "values that repeat": near_attention("values"),
    "unequal parts": lambda w: [rotated(w, w.input(2, 8), w.input(2, 8), w.input(2, 8), half=3)],
}


@pytest.mark.parametrize("name", NEAR)
@pytest.mark.parametrize("flipped", [False, True])
def test_what_is_not_quite_a_pattern_stays(name, flipped):
    w = Writer(8, flipped)
    outputs = NEAR[name](w)
    check(w, outputs, [node.op for node in w.network.nodes])


def test_a_weight_of_another_shape_is_multiplied_behind_the_norm():
    w = Writer(9)
    x = w.input(3, 8)
    y = FORMS["rsqrt"](w, x, mean_square(w, x))
    check(w, [w.both("mul", y, w.weight(3, 8))], ["rms_norm", "mul.Tensor"])


def test_networks_with_named_sizes_are_fused_once():
    w = Writer(10)
    x = w.input(2, 6, 8)
    y = FORMS["rsqrt"](w, x, mean_square(w, x))
    w.network.outputs = [w.both("mul", y, w.weight(8)).name]
    data, arrays = w.network.to_json(), w.network.arrays
    for value in data["values"].values():
        value[0] = ["n" if size == 6 else size for size in value[0]]
    data["sizes"] = {"n": [1, 64]}
    named = Network.from_json(data, arrays)
    simplify(named, {})
    assert [node.op for node in named.nodes] == ["rms_norm"]
    simplify(named, {})
    engine = Engine([gb.Backend("CPU", n_threads=1)], {})
    given = w.random.standard_normal((2, 9, 8), np.float32)
    found = engine.run(engine.step(named.at({"n": 9}), "test"), {x.name: given})
    expected = given / np.sqrt((given.astype(float) ** 2).mean(-1, keepdims=True) + EPS) * arrays["weight0"]
    assert np.abs(found[named.outputs[0]] - expected).max() < 1e-5


LARGE = 10**400


def change(op, **arguments):
    """Changes arguments of the first node of an operator. ...: leaves one out."""

    def changed(data):
        node = next(node for node in data["nodes"] if node["op"] == op)
        node["arguments"] = {k: v for k, v in (node["arguments"] | arguments).items() if v is not ...}

    return changed


def resize(name, shape, dtype="float32"):
    return lambda data: data["values"].update({name: [shape, dtype]})


def damaged_networks():
    w = Writer(11)
    x = w.input(3, 8)
    yield w, [FORMS["rsqrt"](w, x, mean_square(w, x))], [
        change("pow.Tensor_Scalar", exponent=LARGE), change("mean.dim", dim=[LARGE]), change("mean.dim", dim=None),
        change("add.Tensor", other=LARGE), change("mul.Tensor", self=2, other=3), resize(x.name, []),
    ]  # fmt: skip
    w = Writer(12)
    w.network.values |= {"half0": Value((3, 5), "float32"), "half1": Value((3, 5), "float32")}
    w.network.nodes.append(
        Node("split.Tensor", {"self": w.input(3, 10), "split_size": 5, "dim": -1}, ("half0", "half1"), "")
    )
    yield w, [w.both("mul", w.one("silu", Ref("half0")), Ref("half1"))], [
        change("split.Tensor", self=...), change("split.Tensor", dim={"value": "input0"}), resize("half1", []),
        change("mul.Tensor", self=1, other=1.5), resize("half0", [0, 5], "bfloat16"),
    ]  # fmt: skip
    w = Writer(13)
    y = rotated(w, w.input(3, 8), w.input(8), w.input(8))
    yield w, [y], [
        change("slice.Tensor", start=LARGE), change("slice.Tensor", start=4.0), change("slice.Tensor", end=None),
        resize("input0", [2**40, 2**7]), resize("input2", []), change("cat", tensors=[[None]]),
    ]  # fmt: skip
    w = Writer(14)
    yield w, _HEADS(w), [
        resize("value3", []), resize("value1", [4]), change("scaled_dot_product_attention", query=None),
        change("scaled_dot_product_attention", query=...), change("expand", size=LARGE), change("clone", self=7),
    ]  # fmt: skip
    w = Writer(16)
    turned = turned_keys(w, w.input(1, 2, 9, 8), (2, 3))
    y = attended(w, w.input(1, 2, 9, 8), turned, w.input(1, 2, 9, 8), [("scores", "div", 2.0)], 5.0, [w.input(9, 9)])
    yield w, [y], [
        change("transpose.int", dim0=LARGE), change("transpose.int", self=2.0), change("transpose.int", dim1=0.5),
        change("div.Tensor", other=0), change("div.Tensor", other=math.nan), change("mul.Tensor", other=LARGE),
        change("softmax.int", dim=LARGE), change("softmax.int", dim=7), change("softmax.int", dtype="bool"),
        resize("input0", [9, 8]), resize("input0", []), resize("input2", [1, 2, 8]), resize("input3", [2**40, 9, 9]),
        resize("input3", [9, 9], "bool"), resize("input1", [1, 2, 9, 8], "int64"), change("matmul", self=None),
    ]  # fmt: skip
    w = Writer(15)
    x, kernel = w.node("constant_pad_nd", 3, 8, self=w.input(3, 8), pad=[0, 0]), w.weight(4, 8)
    yield w, [w.node("convolution", 3, 4, input=x, weight=kernel, padding=[0])], [
        change("constant_pad_nd", pad=[]), change("constant_pad_nd", pad=[LARGE, LARGE]),
    ]  # fmt: skip


_HEADS = heads_repeated_by(1, 2, 1)


def test_damaged_networks_are_refused_or_run():
    for w, outputs, damages in damaged_networks():
        w.network.outputs = [value.name for value in outputs]
        for damage in damages:
            data = w.network.to_json()
            damage(data)
            try:
                network = Network.from_json(data, w.network.arrays)
                Engine([gb.Backend("CPU", n_threads=1)], {}).step(network, "test")
            except gb.GgmlError:
                pass
