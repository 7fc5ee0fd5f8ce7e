"""Models of ONNX as programs: each operator beside ONNX Runtime on random shapes, whole models, and bad files."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._ffi import ffi, lib
from ggml_backend.errors import FileError, InvalidArgumentError, UnsupportedError

onnx = pytest.importorskip("onnx", reason="onnx is not installed; tools/check_torch.sh installs it")
runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; tools/check_torch.sh installs it")

from ggml_backend.program.onnx_operators import OPERATORS  # noqa: E402

DRAWS = 6
KINDS = {"float32": 1, "int64": 7, "bool": 9, "int32": 6}


class Random:
    """Random inputs of operators. A constant is an initializer of the model."""

    def __init__(self, seed):
        self.pick, self.numpy = random.Random(seed), np.random.default_rng(seed)

    def shape(self, least=1, most=4, size=6):
        return tuple(self.pick.randint(1, size) for _ in range(self.pick.randint(least, most)))

    def floats(self, *shape):
        return self.numpy.standard_normal(shape, np.float32)

    def positive(self, *shape):
        return self.numpy.random(shape, np.float32) + 0.1

    def integers(self, low, high, *shape):
        return self.numpy.integers(low, high, shape)

    def truths(self, *shape):
        return self.numpy.random(shape) < 0.5

    def narrower(self, shape):
        kept = [1 if self.pick.random() < 0.4 else n for n in shape]
        return tuple(kept[self.pick.randint(0, len(kept)) :])


class Constant:
    def __init__(self, array, dtype=None):
        self.array = np.asarray(array, dtype)


def pair(r, make):
    shape = r.shape()
    both = [make(*shape), make(*r.narrower(shape))]
    r.pick.shuffle(both)
    return both


def axes_case(name):
    def case(r):
        x = r.floats(*r.shape(2))
        axes = r.pick.sample(range(x.ndim), r.pick.randint(1, x.ndim))
        keep = {"keepdims": r.pick.randint(0, 1)}
        if r.pick.random() < 0.5 and name != "ReduceSum":
            return [x], {"axes": axes, **keep}, 11
        return [x, Constant(axes, np.int64)], keep, 18

    return case


def convolved(r):
    n, groups = r.pick.choice([1, 2, 2]), r.pick.choice([1, 1, 2, 4])
    k = [r.pick.randint(1, 3) for _ in range(n)]
    x = r.floats(r.pick.randint(1, 2), 4, *(r.pick.randint(7, 10) for _ in range(n)))
    a = {"strides": [r.pick.randint(1, 2) for _ in k], "dilations": [r.pick.randint(1, 2) for _ in k], "group": groups}
    if r.pick.random() < 0.5:
        a["pads"] = [r.pick.randint(0, 2) for _ in range(2 * n)]
    elif r.pick.random() < 0.5:
        a["auto_pad"] = r.pick.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
        a["dilations"] = [1] * n
    bias = [Constant(r.floats(8))] if r.pick.random() < 0.5 else []
    return [x, Constant(r.floats(8, 4 // groups, *k)), *bias], a


def transposed(r):
    k, s = r.pick.randint(1, 4), r.pick.randint(1, 3)
    p = r.pick.randint(0, k // 2)
    a = {"strides": [s, s], "pads": [p] * 4, "kernel_shape": [k, k]}
    return [r.floats(1, 3, 5, 6), Constant(r.floats(3, 4, k, k))], a


def pooled(largest):
    def case(r):
        n = r.pick.choice([1, 2, 2])
        k = [r.pick.randint(1, 3) for _ in range(n)]
        p = [m // 2 for m in k]
        a = {"kernel_shape": k, "strides": [r.pick.randint(1, 2) for _ in k], "pads": p * 2}
        if largest and r.pick.random() < 0.5:
            a["pads"] = [*p, *(0 for _ in p)]
        if not largest:
            a["count_include_pad"] = r.pick.randint(0, 1)
        return [r.floats(2, 3, *(r.pick.randint(7, 9) for _ in k))], a

    return case


def sliced(r):
    x = r.floats(*r.shape(2, 4, 7))
    axis = r.pick.randrange(x.ndim)
    n = x.shape[axis]
    start = r.pick.randint(0, n - 1)
    how = r.pick.choice(["some", "rest", "back", "last"])
    bounds = {"some": (start, r.pick.randint(start + 1, n), 1), "rest": (start, 2**62, r.pick.randint(1, 2)),
              "back": (-1, -(2**62), -1), "last": (-r.pick.randint(1, n), 2**62, 1)}[how]  # fmt: skip
    begin, end, step = (Constant([v], np.int64) for v in bounds)
    return [x, begin, end, Constant([axis - x.ndim * (r.pick.random() < 0.5)], np.int64), step], {}


def gathered(r):
    x = r.floats(*r.shape(2, 4))
    axis = r.pick.randrange(x.ndim)
    index = r.integers(0 if axis == 0 and x.ndim == 2 else -x.shape[axis], x.shape[axis], *r.shape(0, 2))
    return [x, index if r.pick.random() < 0.5 and index.ndim else Constant(index)], {"axis": axis}


def padded(r):
    x = r.floats(*r.shape(2, 4, 6))
    mode = r.pick.choice(["constant", "constant", "reflect", "edge"])
    most = min(x.shape) - 1 if mode == "reflect" else 2
    amounts = [r.pick.randint(0, most) for _ in range(2 * x.ndim)]
    value = [Constant(np.float32(1.5))] if mode == "constant" and r.pick.random() < 0.5 else []
    return [x, Constant(amounts, np.int64), *value], {"mode": mode}


def multiplied(r):
    m, k, n = (r.pick.randint(1, 7) for _ in range(3))
    shape = r.shape(0, 2, 3)
    y = r.floats(*r.narrower(shape) if shape else (), k, n)
    return [r.floats(*shape, m, k), Constant(r.floats(k, n)) if r.pick.random() < 0.4 else y], {}


def general_product(r):
    m, k, n, a, b = *(r.pick.randint(1, 7) for _ in range(3)), r.pick.randint(0, 1), r.pick.randint(0, 1)
    x, w = r.floats(*((k, m) if a else (m, k))), r.floats(*((n, k) if b else (k, n)))
    more = {"alpha": 0.5, "beta": 2.0} if r.pick.random() < 0.3 else {}
    bias = [Constant(r.floats(*r.pick.choice([(n,), (1, n), (m, n)])))] if r.pick.random() < 0.7 else []
    return [x, Constant(w), *bias], {"transA": a, "transB": b, **more}


def recurrent(r):
    ways = r.pick.choice(["forward", "reverse", "bidirectional"])
    d, steps, batch, features, hidden = 1 + (ways == "bidirectional"), r.pick.randint(1, 4), r.pick.randint(1, 2), 3, 4
    inputs = [r.floats(steps, batch, features), Constant(r.floats(d, 4 * hidden, features)),
              Constant(r.floats(d, 4 * hidden, hidden)), Constant(r.floats(d, 8 * hidden))]  # fmt: skip
    state = [None, r.floats(d, batch, hidden), r.floats(d, batch, hidden)] if r.pick.random() < 0.5 else []
    return [*inputs, *state], {"direction": ways, "hidden_size": hidden}, 14, 3


def gated(r):
    made, a, _, _ = recurrent(r)
    weights = [Constant(c.array[:, : n * a["hidden_size"]]) for c, n in zip(made[1:4], (3, 3, 6), strict=True)]
    state = [None, made[5]] if len(made) > 4 else []
    return [made[0], *weights, *state], {**a, "linear_before_reset": r.pick.randint(0, 1)}, 14, 2


def rows_of(r, shape, k, *before):
    """Distinct places of the first k axes of a shape."""
    n = int(np.prod(shape[:k]))
    flat = r.numpy.permutation(n)[: r.pick.randint(1, n)]
    return np.stack(np.unravel_index(flat, shape[:k]), -1).astype(np.int64)


def gathered_places(r):
    x = r.floats(*r.shape(2, 4))
    if r.pick.random() < 0.3:
        k = r.pick.randint(1, x.ndim - 1)
        index = r.integers(-x.shape[1], x.shape[1], x.shape[0], 2, 1)
        return [x, index if r.pick.random() < 0.5 else Constant(index)], {"batch_dims": 1}, 13
    k = r.pick.randint(1, x.ndim)
    index = rows_of(r, x.shape, k)
    return [x, index if r.pick.random() < 0.5 else Constant(index)], {}


def scattered(r):
    x = r.floats(*r.shape(1, 4))
    k = r.pick.randint(1, x.ndim)
    index = rows_of(r, x.shape, k)
    new = r.floats(len(index), *x.shape[k:])
    return [x, index if r.pick.random() < 0.5 else Constant(index), new], {}


def summed(r):
    """Random letters, with all sizes equal by letter."""
    size = {c: r.pick.randint(1, 4) for c in "abcdef"}
    terms = ["".join(r.pick.sample("abcde", r.pick.randint(1, 3))) for _ in range(r.pick.randint(1, 3))]
    every = sorted({*"".join(terms)})
    kept = "".join(r.pick.sample(every, r.pick.randint(0, len(every))))
    equation = r.pick.choice([",".join(terms) + "->" + kept, ",".join(terms), "...ab,...bc->...ac", "...a,a->..."])
    if equation.startswith("..."):
        batch = r.shape(0, 2, 3)
        one = [(*batch, size["a"], size["b"]), (*batch, size["b"], size["c"])]
        shapes = one if "c" in equation else [(*batch, size["a"]), (size["a"],)]
    else:
        shapes = [tuple(size[c] for c in term) for term in terms]
    return [r.floats(*s) for s in shapes], {"equation": equation}, 13


def largest(r):
    x = r.floats(*r.shape(1, 4))
    axis = r.pick.randrange(x.ndim)
    k = Constant([r.pick.randint(1, x.shape[axis])], np.int64)
    return [x, k], {"axis": axis - x.ndim * r.pick.randint(0, 1), "largest": r.pick.randint(0, 1)}, 13, 2


def resized(r):
    x = r.floats(1, 2, 4, 5)
    mode = r.pick.choice(["nearest", "linear", "cubic"])
    if mode == "nearest":
        factors = Constant([1, 1, *r.pick.choice([(2, 3), (2, 2)])], np.float32)
        if r.pick.random() < 0.3:
            return [x, factors], {"mode": mode}, 10
        places, rounding = r.pick.choice(
            [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")]
        )
        return [x, None, factors], {"mode": mode, "coordinate_transformation_mode": places, "nearest_mode": rounding}
    a = {"mode": mode, "coordinate_transformation_mode": r.pick.choice(["half_pixel", "align_corners"])}
    return [x, None, None, Constant([1, 2, r.pick.randint(4, 9), r.pick.randint(5, 9)], np.int64)], a


def grouped(r):
    return [r.floats(2, 6, 3, 4), Constant(r.floats(6)), Constant(r.floats(6))], {"num_groups": 3, "epsilon": 1e-4}, 21


def normed(r):
    x = r.floats(*r.shape(2, 4))
    axis = r.pick.randint(-x.ndim, -1)
    shape = x.shape[axis:]
    return [x, Constant(r.floats(*shape)), Constant(r.floats(*shape))], {"axis": axis}


def of_one(r):
    return [r.floats(*r.shape())], {}


def of_positive(r):
    return [r.positive(*r.shape())], {}


def parts(r):
    x = r.floats(r.pick.randint(2, 6), r.pick.randint(2, 6))
    n = x.shape[1]
    sizes = [at := r.pick.randint(1, n - 1), n - at]
    return [x, Constant(sizes, np.int64)], {"axis": 1}, 17, 2


CASES = {
    **dict.fromkeys(["Relu", "Sigmoid", "Tanh", "Exp", "Sin", "Cos", "Floor", "Ceil", "Neg", "Abs", "Sign", "Softplus",
                     "HardSwish", "Mish", "Identity", "Softsign", "Erf", "Selu"], of_one),
    **dict.fromkeys(["Log", "Sqrt", "Reciprocal"], of_positive),
    **dict.fromkeys(["Add", "Sub", "Mul"], lambda r: (pair(r, r.floats), {})),
    "Div": lambda r: ((s := r.shape()) and [r.floats(*s), r.positive(*s)], {}) if r.pick.random() < 0.6 else
    ([r.integers(-9, 9, 4, 5), r.integers(1, 4, 5)], {}),
    "Mod": lambda r: ([r.integers(-9, 9, 4, 5), r.integers(1, 4, 5)], {}),
    "Pow": lambda r: ([r.positive(*r.shape()), Constant(np.float32(r.pick.choice([2, 3, 0.5, -1])))], {}),
    **dict.fromkeys(["Min", "Max", "Sum"], lambda r: ([*pair(r, r.floats), r.floats(1)], {})),
    **dict.fromkeys(["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"],
                    lambda r: (pair(r, lambda *s: r.integers(-2, 3, *s)), {})),
    **dict.fromkeys(["And", "Or", "Xor"], lambda r: (pair(r, r.truths), {})),
    "Not": lambda r: ([r.truths(*r.shape())], {}),
    "Where": lambda r: ((s := r.shape()) and [r.truths(*r.narrower(s)), r.floats(*s), r.floats(*r.narrower(s))], {}),
    "Clip": lambda r: ([r.floats(5, 6), *(Constant(v, np.float32) for v in (-0.5, 1)[: r.pick.randint(1, 2)])], {}),
    "LeakyRelu": lambda r: (*of_one(r)[:1], {"alpha": 0.3}),
    "Elu": lambda r: (*of_one(r)[:1], {"alpha": 0.7}),
    "Gelu": lambda r: (*of_one(r)[:1], {"approximate": r.pick.choice(["none", "tanh"])}, 20),
    "HardSigmoid": lambda r: (*of_one(r)[:1], r.pick.choice([{}, {"alpha": 0.3, "beta": 0.4}, {"alpha": 1 / 6}])),
    "PRelu": lambda r: ([r.floats(2, 3, 4), Constant(r.floats(*r.pick.choice([(1,), (3, 1), (2, 3, 4)])))], {}),
    "Dropout": lambda r: (*of_one(r), 13),
    "Cast": lambda r: ([r.integers(-3, 4, *r.shape())], {"to": r.pick.choice([1, 7, 9])}),
    "CastLike": lambda r: ([r.integers(-3, 4, *r.shape()), r.floats(2)], {}, 15),
    "Reshape": lambda r: ([r.floats(2, 3, 4), Constant(r.pick.choice([(0, -1), (6, 4), [-1]]), np.int64)], {}),
    "Flatten": lambda r: ([r.floats(2, 3, 4)], {"axis": r.pick.randint(-2, 3)}),
    "Squeeze": lambda r: ([r.floats(2, 1, 3, 1), Constant([1], np.int64)], {}),
    "Unsqueeze": lambda r: ([r.floats(2, 3), Constant(r.pick.choice([[0], [-1], [1, 3]]), np.int64)], {}),
    "Transpose": lambda r: ([x := r.floats(*r.shape(2, 4))], {"perm": r.pick.sample(range(x.ndim), x.ndim)}),
    "Expand": lambda r: ((s := r.shape()) and [r.floats(*r.narrower(s)), Constant(s, np.int64)], {}),
    "Tile": lambda r: ([x := r.floats(*r.shape()), Constant([r.pick.randint(1, 3) for _ in x.shape], np.int64)], {}),
    "Concat": lambda r: ([r.floats(2, r.pick.randint(1, 5), 3) for _ in range(r.pick.randint(1, 4))], {"axis": 1}),
    "Split": parts,
    "Slice": sliced,
    "Gather": gathered,
    "GatherElements": lambda r: (
        [r.floats(3, 5), r.pick.choice([r.integers(0, 5, 3, 2), Constant(r.integers(-5, 5, 3, 2))])], {"axis": -1}
    ),
    "Shape": of_one,
    "Size": of_one,
    "ConstantOfShape": lambda r: ([Constant([2, 3], np.int64)],
                                  {"value": onnx.numpy_helper.from_array(np.array([2.5], np.float32))}),
    "Constant": lambda r: ([], {"value_floats": [1.5, 2.5]}),
    "Range": lambda r: ([Constant(np.int64(v)) for v in (1, 9, 3)], {}),
    "Pad": padded,
    "DepthToSpace": lambda r: ([r.floats(2, 8, 3, 4)], {"blocksize": 2, "mode": r.pick.choice(["DCR", "CRD"])}),
    **{name: axes_case(name) for name in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2")},
    "ReduceSum": axes_case("ReduceSum"),
    "ReduceProd": lambda r: ([Constant(r.integers(1, 4, 3))], {"keepdims": 0}),
    **dict.fromkeys(["ArgMax", "ArgMin"],
                    lambda r: ([x := r.floats(*r.shape(2))],
                               {"axis": r.pick.randrange(x.ndim), "keepdims": r.pick.randint(0, 1)})),
    "CumSum": lambda r: ([r.floats(3, 4), Constant(np.int64(r.pick.randint(0, 1)))], {}),
    **dict.fromkeys(["Softmax", "LogSoftmax"],
                    lambda r: ([x := r.floats(*r.shape(2))], {"axis": r.pick.randrange(x.ndim)},
                               r.pick.choice([11, 13]))),
    "MatMul": multiplied,
    "Gemm": general_product,
    "BatchNormalization": lambda r: ([r.floats(2, 5, *r.shape(0, 2)), *(Constant(r.positive(5)) for _ in range(4))],
                                     {"epsilon": 1e-3}),
    "InstanceNormalization": lambda r: ([r.floats(2, 3, 4, 5), Constant(r.floats(3)), Constant(r.floats(3))], {}),
    "GroupNormalization": grouped,
    "LayerNormalization": normed,
    "Conv": convolved,
    "ConvTranspose": transposed,
    "MaxPool": pooled(True),
    "AveragePool": pooled(False),
    "GlobalAveragePool": lambda r: ([r.floats(2, 3, 4, 5)], {}),
    "GlobalMaxPool": lambda r: ([r.floats(2, 3, 4, 5)], {}),
    "Resize": resized,
    "Upsample": lambda r: r.pick.choice([
        ([r.floats(1, 2, 3, 4), Constant([1, 1, 2, 2], np.float32)], {"mode": "nearest"}, 9),
        ([r.floats(1, 2, 3, 4)], {"mode": "nearest", "scales": [1.0, 1.0, 3.0, 2.0]}, 8),
    ]),
    "LSTM": recurrent,
    "GRU": gated,
    "GatherND": gathered_places,
    "ScatterND": scattered,
    "NonZero": lambda r: ([Constant(r.integers(0, 2, *r.shape()))], {}),
    "TopK": largest,
    "Einsum": summed,
}  # fmt: skip
"""Inputs and attributes of each operator, with the operator set and the number of results if these are others."""


def model_of(op, inputs, attributes, opset=18, n_results=1):
    """A model of one operator, and its inputs. Axes have names."""
    names, given, declared, constants = [], {}, [], []
    for i, x in enumerate(inputs):
        name = "" if x is None else f"x{i}"
        names.append(name)
        if isinstance(x, Constant):
            constants.append(onnx.numpy_helper.from_array(x.array, name))
        elif x is not None:
            given[name] = x
            shape = [f"{name}.{axis}" for axis in range(x.ndim)]
            declared.append(onnx.helper.make_tensor_value_info(name, KINDS[x.dtype.name], shape))
    results = [f"y{i}" for i in range(n_results)]
    node = onnx.helper.make_node(op, names, results, name="node", **attributes)
    outputs = [onnx.helper.make_tensor_value_info(name, 0, None) for name in results]
    graph = onnx.helper.make_graph([node], "graph", declared, outputs, constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    for result in model.graph.output:
        kind = result.type.tensor_type
        kind.elem_type = kind.elem_type or KINDS["float32"]
    return model, given


def expected(model, given):
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, given)


def near(ours, theirs, bound=2e-5):
    assert ours.shape == theirs.shape and ours.dtype.kind == theirs.dtype.kind
    if theirs.dtype.kind == "f":
        assert np.abs(ours - theirs).max(initial=0) <= bound * max(np.abs(theirs).max(initial=0), 1)
    else:
        np.testing.assert_array_equal(ours, theirs)


DRAWN = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def test_every_operator_has_a_case():
    assert {*CASES, *DRAWN} == {*OPERATORS}


@pytest.mark.parametrize("op", DRAWN)
def test_random_numbers_are_drawn_once(op):
    like, normal = op.endswith("Like"), "Normal" in op
    a = {"mean": 2.0, "scale": 3.0} if normal else {"low": -1.0, "high": 3.0}
    model, given = model_of(
        op, [np.zeros((40, 50), np.float32)] if like else [], a if like else {**a, "shape": [40, 50]}
    )
    with pytest.raises(UnsupportedError, match=r"draws random numbers; load_onnx\(\.\.\., seed=0\)"):
        gb.load_onnx(model)(**given)
    program = gb.load_onnx(model, seed=1)
    (first,) = program(**given).values()
    assert first.shape == (40, 50) and (first == program(**given)["y0"]).all()
    assert (first != gb.load_onnx(model, seed=2)(**given)["y0"]).any()
    assert abs(first.mean() - (2 if normal else 1)) < 0.3 and abs(first.std() - (3 if normal else 4 / 12**0.5)) < 0.3
    with pytest.raises(InvalidArgumentError, match="seed must be at least 0, not -1"):
        gb.load_onnx(model, seed=-1)


@pytest.mark.parametrize("op", sorted(CASES))
def test_operators_compute_what_onnx_runtime_computes(op):
    for seed in range(DRAWS):
        made = CASES[op](Random(seed))
        model, given = model_of(op, *made)
        program = gb.load_onnx(model, n_threads=1)
        for ours, theirs in zip(program(**given).values(), expected(model, given), strict=True):
            near(ours, theirs)


REFUSED = {
    "Resize by factors that do not give whole sizes": (
        "Resize", [np.ones((1, 1, 5, 5), np.float32), None, Constant([1, 1, 1.5, 2], np.float32)], {"mode": "linear"},
    ),
    "Einsum ij->ii with a letter twice in its result": (
        "Einsum", [np.ones((2, 2), np.float32)], {"equation": "ij->ii"},
    ),
    "Resize with antialias": (
        "Resize", [np.ones((1, 1, 4, 4), np.float32), None, None, Constant([1, 1, 2, 2], np.int64)],
        {"mode": "linear", "antialias": 1},
    ),
    "Resize, mode nearest, with the places half_pixel": (
        "Resize", [np.ones((1, 1, 4, 4), np.float32), None, Constant([1, 1, 2, 2], np.float32)],
        {"nearest_mode": "ceil"},
    ),
    "Resize of some axes": (
        "Resize", [np.ones((1, 1, 4, 4), np.float32), None, Constant([2, 2], np.float32)], {"axes": [2, 3]},
    ),
    "LSTM with other activations": ("LSTM", [np.ones((2, 1, 3), np.float32), *(
        Constant(np.ones(shape, np.float32)) for shape in ((1, 16, 3), (1, 16, 4))
    )], {"hidden_size": 4, "activations": ["Tanh", "Sigmoid", "Tanh"]}, 14),
}  # fmt: skip
"""Models that programs do not have, by the message."""


@pytest.mark.parametrize("message", REFUSED)
def test_attributes_that_programs_do_not_have_are_refused(message):
    model, given = model_of(*REFUSED[message])
    with pytest.raises(UnsupportedError, match=message):
        gb.load_onnx(model)(**given)


def looped(trips, body, state, scans=1):
    """A Loop over one state and x, whose body has these nodes. It returns the last state, and results of each step."""
    helper = onnx.helper
    info = helper.make_tensor_value_info
    body_inputs = [info("t", 7, []), info("go", 9, []), info("s", 1, None)]
    body_outputs = [info("next", 9, []), info("s2", 1, None), info("each", 1, None)][: 2 + scans]
    graph = helper.make_graph(body, "body", body_inputs, body_outputs)
    nodes = [helper.make_node("Loop", ["trips" if trips is not None else "", "", "s0"], ["last", "all"][: 1 + scans],
                              "loop", body=graph)]  # fmt: skip
    constants = [] if trips is None else [onnx.numpy_helper.from_array(np.array(trips, np.int64), "trips")]
    outputs = [info(name, 1, None) for name in ["last", "all"][: 1 + scans]]
    whole = helper.make_graph(nodes, "g", [info("s0", 1, state)], outputs, constants)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def steps(*more):
    node = onnx.helper.make_node
    return [node("Identity", ["go"], ["next"]), node("Cast", ["t"], ["f"], to=1), node("Add", ["s", "f"], ["u"]),
            node("Sin", ["u"], ["s2"]), node("Mul", ["s2", "s2"], ["each"]), *more]  # fmt: skip


def test_a_random_value_of_a_huge_shape_is_refused():
    model, _ = model_of("RandomNormal", [], {"shape": [2**20, 2**20]})
    with pytest.raises(UnsupportedError, match="a random value of the shape"):
        gb.load_onnx(model, seed=0)


def test_optional_results_that_programs_do_not_compute_are_named():
    model, _ = model_of("MaxPool", [np.ones((1, 1, 4, 4), np.float32)], {"kernel_shape": [2, 2]}, n_results=2)
    with pytest.raises(UnsupportedError, match="the model reads 'y1', a result of MaxPool without a rule"):
        gb.load_onnx(model)


@pytest.mark.parametrize("trips", [1, 4])
def test_a_loop_with_a_fixed_number_of_steps_is_unrolled(trips):
    model = looped(trips, steps(), ["n", 3])
    x = np.random.default_rng(0).standard_normal((2, 3), np.float32)
    program = gb.load_onnx(model, n_threads=1)
    for ours, theirs in zip(program(x).values(), expected(model, {"s0": x}), strict=True):
        near(ours, theirs)


def test_a_loop_ends_at_a_known_condition():
    node, of = onnx.helper.make_node, onnx.numpy_helper.from_array
    body = [node("Constant", [], ["limit"], value=of(np.array(2, np.int64))), node("Less", ["t", "limit"], ["next"]),
            *steps()[1:]]  # fmt: skip
    model, x = looped(9, body, [3]), np.ones(3, np.float32)
    for ours, theirs in zip(gb.load_onnx(model)(x).values(), expected(model, {"s0": x}), strict=True):
        near(ours, theirs)


@pytest.mark.parametrize("constant", [False, True])
def test_steps_of_a_loop_share_the_weights_of_its_body(constant):
    node = onnx.helper.make_node
    body = [node("Identity", ["go"], ["next"]), node("Add", ["s", "w"], ["u"]), *steps()[3:]]
    model, x = looped(5, body, [3]), np.ones(3, np.float32)
    (loop,) = model.graph.node
    weight, graph = onnx.numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w"), loop.attribute[0].g
    if constant:
        graph.node.insert(0, node("Constant", [], ["w"], value=weight))
    else:
        graph.initializer.append(weight)
    program = gb.load_onnx(model)
    for ours, theirs in zip(program(x).values(), expected(model, {"s0": x}), strict=True):
        near(ours, theirs)
    assert sum(array.shape == (3,) for array in program.network.arrays.values()) == 1


def test_loops_without_inputs_are_damaged():
    model = looped(4, steps(), [3])
    (loop,) = model.graph.node
    del loop.input[:]
    del loop.attribute[0].g.input[:]
    with pytest.raises(FileError, match="Loop has no body that fits its inputs"):
        gb.load_onnx(model)


@pytest.mark.parametrize(
    ("op", "index", "right"),
    [("GatherND", [[1, 5]], [[1, 4]]), ("GatherND", [[0, -6]], [[0, -5]]), ("ScatterND", [[3, 0]], [[-3, 4]])],
)
def test_indices_out_of_range_are_errors(op, index, right):
    x, more = np.zeros((3, 5), np.float32), [np.ones(1, np.float32)] if op == "ScatterND" else []
    model, given = model_of(op, [x, np.array(right, np.int64), *more], {})
    program = gb.load_onnx(model, n_threads=1)
    near(next(iter(program(**given).values())), expected(model, given)[0])
    wrong = {name: np.array(index, np.int64) if array.dtype == np.int64 else array for name, array in given.items()}
    with pytest.raises(gb.errors.GgmlError, match="index"):
        program(**wrong)
    model, given = model_of(op, [x, Constant(index, np.int64), *more], {})
    with pytest.raises(UnsupportedError, match="is not within"):
        gb.load_onnx(model, n_threads=1)(**given)


def test_loops_that_depend_on_values_are_refused():
    node = onnx.helper.make_node
    body = [node("ReduceMax", ["s"], ["m"], keepdims=0), node("Less", ["m", "m"], ["next"]), *steps()[1:]]
    with pytest.raises(UnsupportedError, match=r"Loop \(loop\): the end depends on the values of the inputs"):
        gb.load_onnx(looped(4, body, [3]))
    with pytest.raises(UnsupportedError, match=r"Loop \(loop\): the loops of the model have more than 4096 steps"):
        gb.load_onnx(looped(None, steps(), [3]))
    with pytest.raises(UnsupportedError, match="has no step, so the shape of its result is unknown"):
        gb.load_onnx(looped(0, steps(), [3]))


def test_results_whose_size_depends_on_values_are_refused():
    model, _ = model_of("NonZero", [np.ones(3, np.float32)], {})
    with pytest.raises(UnsupportedError, match="the size of the result of NonZero depends on the values of the inputs"):
        gb.load_onnx(model)


def test_places_of_all_ones_take_any_size():
    helper, of = onnx.helper, onnx.numpy_helper.from_array
    nodes = [helper.make_node("Shape", ["x"], ["n"]),
             helper.make_node("ConstantOfShape", ["n"], ["ones"], value=of(np.ones(1, np.int64))),
             helper.make_node("NonZero", ["ones"], ["places"]),
             helper.make_node("Transpose", ["places"], ["y"])]  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", 1, ["n"])], [info("y", 7, None)])
    program = gb.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8))
    for n in (3, 5):
        assert program(np.zeros(n, np.float32))["y"].tolist() == [[i] for i in range(n)]


FOLDED = {
    "Mod": ([Constant([-7, 7, -8], np.int64), Constant([3, -3, 5], np.int64)], {"fmod": 1}),
    "Pow": ([Constant([1.5, 3], np.float32), Constant([2, 3], np.int64)], {}),
    "Slice": ([Constant([1, 2, 3], np.int64), Constant([0], np.int64), Constant([-9], np.int64)], {}),
    "Shape": ([Constant(np.ones((2, 3), np.float32))], {}),
}
"""Operators of constants. They are computed while the model is read."""


@pytest.mark.parametrize("op", FOLDED)
def test_operators_of_constants_compute_what_onnx_runtime_computes(op):
    model, _ = model_of(op, *FOLDED[op])
    (ours,), (theirs,) = gb.load_onnx(model)().values(), expected(model, {})
    near(ours, theirs)


def test_weights_of_bfloat16_are_read():
    info, of = onnx.helper.make_tensor_value_info, onnx.helper.make_tensor
    weight = of("w", onnx.TensorProto.BFLOAT16, [3], [1.0, 2.5, -3.0])
    nodes = [onnx.helper.make_node("Cast", ["w"], ["f"], to=1), onnx.helper.make_node("Add", ["x", "f"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, [3])], [info("y", 1, [3])], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    assert gb.load_onnx(model)(np.ones(3, np.float32))["y"].tolist() == [2.0, 3.5, -2.0]


# -------------------------------------------------------------------------------------------------------- whole models


def small_model(opset=17):
    """A convolution, a matrix, and a shape that depends on the batch and on the width."""
    r = np.random.default_rng(0)
    helper, of = onnx.helper, onnx.numpy_helper.from_array
    arrays = {"k": r.standard_normal((8, 3, 3, 3)), "w": r.standard_normal((64, 5)), "b": r.standard_normal(5)}
    constants = [of(a.astype(np.float32), name) for name, a in arrays.items()]
    constants += [of(np.array(0, np.int64), "zero"), of(np.array([64], np.int64), "depth")]
    constants += [of(np.array([-1], np.int64), "rest"), of(np.array([0], np.int64), "first")]
    nodes = [
        helper.make_node("Conv", ["image", "k"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"], "relu"),
        helper.make_node("Shape", ["d"], ["shape"], "shape"),
        helper.make_node("Gather", ["shape", "zero"], ["n"], "batch"),
        helper.make_node("Unsqueeze", ["n", "first"], ["n1"], "unsqueeze"),
        helper.make_node("Concat", ["n1", "rest", "depth"], ["to"], "concat", axis=0),
        helper.make_node("Reshape", ["d", "to"], ["rows"], "reshape"),
        helper.make_node("MatMul", ["rows", "w"], ["p"], "head/MatMul"),
        helper.make_node("Add", ["p", "b"], ["logits"], "head/Add"),
    ]
    declared = [helper.make_tensor_value_info("image", 1, ["batch", 3, 8, "width"])]
    results = [helper.make_tensor_value_info("logits", 1, None)]
    graph = helper.make_graph(nodes, "small", declared, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def picture(batch, width, seed=0):
    return np.random.default_rng(seed).standard_normal((batch, 3, 8, width), np.float32)


def small_case():
    return small_model(), [{"image": picture(*size)} for size in ((1, 8), (2, 16), (3, 24))]


def recurrent_case():
    model, given = model_of("LSTM", *recurrent(Random(3)))
    return model, [given]


RECORDED = {"small": small_case, "recurrent": recurrent_case}
"""Models and inputs that ``tools/record_networks.py`` stores, for tests without the package onnx."""


@pytest.mark.parametrize("opset", [13, 15, 17, 18, 19, 21])
def test_named_axes_take_any_size(opset):
    model = small_model(opset)
    program = gb.load_onnx(model)
    assert program.inputs == {"image": (("batch", 3, 8, "width"), "float32")}
    for size in ((1, 8), (2, 16), (3, 24), (1, 8)):
        x = picture(*size)
        near(program(image=x)["logits"], expected(model, {"image": x})[0])
    assert [v.network.sizes.keys() for v in program._variants] == [{"batch", "width"}]
    assert "head/MatMul/matmul" in {t.name for t in program.graph.nodes}


def test_programs_of_onnx_are_saved(tmp_path):
    model, x = small_model(), picture(2, 16)
    program = gb.load_onnx(model, weights="q8_0", precision="f32")
    assert program(x)["logits"].shape == (2, 16, 5)
    assert program.explain().packed == {"w": "q8_0"}
    program.save(tmp_path / "p.gguf")
    again = gb.load_program(tmp_path / "p.gguf")
    np.testing.assert_array_equal(again(x)["logits"], program(x)["logits"])
    assert again.explain().quantized == program.explain().quantized > 0
    y = picture(1, 24)
    np.testing.assert_array_equal(again(y)["logits"], program(y)["logits"])
    near(again(y)["logits"], expected(model, {"image": y})[0], 0.03)


@pytest.mark.parametrize("names", [["a" * 70, "b" * 70], ["a" * 70, "a" * 71]])
def test_an_exported_graph_has_the_names_that_the_call_returns(names, tmp_path):
    """A tensor's name has at most 63 bytes."""
    helper = onnx.helper
    info = helper.make_tensor_value_info
    nodes = [helper.make_node(op, ["x"], [name]) for op, name in zip(["Relu", "Neg"], names, strict=True)]
    graph = helper.make_graph(nodes, "g", [info("x", 1, [4])], [info(name, 1, [4]) for name in names])
    program = gb.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8))
    if names[0][0] == names[1][0]:
        with pytest.raises(UnsupportedError, match="a result has the name 'aaa"):
            program.export_graph(tmp_path / "graph")
        return
    found = program.export_graph(tmp_path / "graph")
    data, made = ffi.new("struct ggml_context **"), ffi.new("struct ggml_context **")
    graph = lib.ggml_graph_import(bytes(tmp_path / "graph"), data, made)
    assert [*program(np.ones(4, np.float32))] == names
    for name, of in zip(found, (b"RELU", b"NEG"), strict=True):
        tensor = lib.ggml_graph_get_tensor(graph, name.encode())
        assert tensor and of in ffi.string(lib.ggml_op_desc(tensor)).upper()
    lib.ggml_free(data[0])
    lib.ggml_free(made[0])


def test_all_sizes_share_the_weights_of_constant_nodes():
    """The Slice needs the number of rows, so each size reads the model again."""
    helper, of = onnx.helper, onnx.numpy_helper.from_array
    weight = np.random.default_rng(0).standard_normal((4, 64), np.float32)
    nodes = [helper.make_node("Constant", [], ["w"], value=of(weight)),
             *(helper.make_node("Constant", [], [n], value_ints=[v]) for n, v in (("from", 1), ("to", 3), ("axis", 0))),
             helper.make_node("Slice", ["x", "from", "to", "axis"], ["part"]),
             helper.make_node("MatMul", ["part", "w"], ["y"])]  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", 1, ["n", 4])], [info("y", 1, None)])
    program = gb.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8))
    arrays = []
    for n in (3, 5):
        x = np.ones((n, 4), np.float32)
        near(program(x)["y"], x[1:3] @ weight)
        arrays += [array for array in program.network.arrays.values() if array.size == weight.size]
    assert len(arrays) == 2 and np.shares_memory(*arrays)


def test_sizes_can_be_fixed_and_files_can_be_read(tmp_path):
    onnx.save(small_model(), tmp_path / "m.onnx")
    program = gb.load_onnx(tmp_path / "m.onnx", sizes={"batch": 1, "width": 8})
    assert program.graph is not None and program.inputs["image"][0] == (1, 3, 8, 8)
    near(program(picture(1, 8))["logits"], gb.load_onnx((tmp_path / "m.onnx").read_bytes())(picture(1, 8))["logits"])
    with pytest.raises(InvalidArgumentError, match="axis 0 of image must be 1, not 2"):
        program(picture(2, 8))


def branched():
    """y = x + 1 or x * 2, as a number says."""
    helper = onnx.helper
    one = onnx.numpy_helper.from_array(np.array(1, np.float32), "one")
    two = onnx.numpy_helper.from_array(np.array(2, np.float32), "two")
    info = helper.make_tensor_value_info
    then = helper.make_graph([helper.make_node("Add", ["x", "one"], ["t"])], "then", [], [info("t", 1, None)], [one])
    other = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["e"])], "else", [], [info("e", 1, None)], [two])
    limit = onnx.numpy_helper.from_array(np.array(16000, np.int64), "limit")
    nodes = [helper.make_node("Equal", ["rate", "limit"], ["c"]),
             helper.make_node("If", ["c"], ["y"], "choice", then_branch=then, else_branch=other)]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [info("x", 1, ["n"]), info("rate", 7, [])], [info("y", 1, None)], [limit])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def test_a_fixed_input_decides_a_branch():
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(gb.load_onnx(branched(), fixed={"rate": 16000})(x)["y"], x + 1)
    np.testing.assert_array_equal(gb.load_onnx(branched(), fixed={"rate": 8000})(x=x)["y"], x * 2)
    with pytest.raises(UnsupportedError, match=r"If \(choice\) depends on the values of the inputs"):
        gb.load_onnx(branched())
    with pytest.raises(InvalidArgumentError, match="fixed: there is no input 'rat'; did you mean 'rate'"):
        gb.load_onnx(branched(), fixed={"rat": 16000})


def test_all_operators_without_a_rule_are_listed_at_once():
    model = small_model()
    model.graph.node[1].op_type = "Bernoulli"
    model.graph.node[8].op_type, model.graph.node[8].domain = "Magic", "com.example"
    with pytest.raises(
        UnsupportedError, match=r"operators without a rule: Bernoulli \(1 times\), com.example.Magic \(1 times\)"
    ):
        gb.load_onnx(model)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": "q9"}, TypeError, "there is no dtype 'q9'"),
        ({"sizes": {"batch": 0}}, InvalidArgumentError, "sizes: batch must be a positive integer, not 0"),
        ({"sizes": {"bach": 1}}, InvalidArgumentError, "sizes: no axis is called 'bach'; did you mean 'batch'"),
        ({"sizes": 3}, TypeError, "sizes must be a dict, not int"),
        ({"fixed": [1]}, TypeError, "fixed must be a dict, not list"),
        ({"weights": {"v*": "q8_0"}}, InvalidArgumentError, "no weight that can be quantized fits 'v*'"),
    ],
)
def test_wrong_options_are_named(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        gb.load_onnx(small_model(), **options)


def test_files_that_are_no_model_are_refused(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(FileError, match=r"m\.onnx is no ONNX file"):
        gb.load_onnx(tmp_path / "m.onnx")
    with pytest.raises(FileNotFoundError):
        gb.load_onnx(tmp_path / "none.onnx")
    with pytest.raises(TypeError, match=r"source must be a path, bytes or an onnx\.ModelProto, not int"):
        gb.load_onnx(3)
    with pytest.raises(UnsupportedError, match="the operator set 99; 7 to 21 are known"):
        gb.load_onnx(small_model(99))


def test_damaged_files_are_refused_or_run():
    whole, r, refused = small_model().SerializeToString(), random.Random(0), 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(r.randint(1, 3)):
            data[r.randrange(len(data))] = r.randrange(256)
        try:
            program = gb.load_onnx(bytes(data), n_threads=1)
            program(*[picture(1, 8)] * len(program.inputs))
        except (gb.GgmlError, TypeError):
            refused += 1
    assert refused > 30
