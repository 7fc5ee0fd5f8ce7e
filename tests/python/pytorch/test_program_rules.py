"""Rules of programs: each operator of ATen beside PyTorch, on random shapes, strides, broadcasts and dtypes."""

from __future__ import annotations

import random

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.program.network import Network, Node, Ref, Value
from ggml_backend.program.program import Engine
from ggml_backend.program.rules import RULES

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_torch.sh installs it")
import torch

DRAWS, MANY = 12, 120


class Constant:
    """A tensor that does not depend on the inputs: a weight."""

    def __init__(self, tensor):
        self.tensor = tensor


class Random:
    """Random arguments of operators."""

    def __init__(self, seed):
        self.pick = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)

    def shape(self, least=1, most=5, size=6):
        return tuple(self.pick.randint(1, size) for _ in range(self.pick.randint(least, most)))

    def floats(self, *shape):
        return torch.randn(shape, generator=self.torch)

    def positive(self, *shape):
        return torch.rand(shape, generator=self.torch) + 0.1

    def integers(self, low, high, *shape):
        return torch.randint(low, high, shape, generator=self.torch)

    def booleans(self, *shape):
        return torch.rand(shape, generator=self.torch) < 0.5

    def any(self, *shape):
        """Few values, so that some are equal."""
        kind = self.pick.choice("fib")
        return {"f": self.floats, "b": self.booleans}.get(kind, lambda *s: self.integers(-3, 4, *s))(*shape)

    def broadcast(self, shape):
        """A shape that broadcasts to ``shape`` together with ``shape``."""
        kept = [1 if self.pick.random() < 0.4 else n for n in shape]
        return tuple(kept[self.pick.randint(0, len(kept)) :])

    def pair(self, make=None):
        """Two values that broadcast."""
        make = make or self.floats
        shape = self.shape(most=6)
        pair = [make(*shape), make(*self.broadcast(shape))]
        self.pick.shuffle(pair)
        return pair

    def axis(self, tensor):
        return self.pick.randrange(-tensor.ndim, tensor.ndim)

    def weight(self, *shape):
        return Constant(self.floats(*shape))


def of_one(r):
    return [r.floats(*r.shape(most=6))]


def of_positive(r):
    return [r.positive(*r.shape())]


def exact(r):
    return [r.pick.choice([r.floats, lambda *s: r.integers(-5, 6, *s)])(*r.shape())]


def numbers(r):
    """Floats, or integers."""
    make = r.pick.choice([r.floats, lambda *s: r.integers(-5, 6, *s)])
    return r.pair(make)


def mixed(r):
    a, b = r.pair(r.any)
    return [a, b] if torch.bool not in (a.dtype, b.dtype) else [a.float(), b.float()]


def with_axis(r):
    x = r.floats(*r.shape(most=6))
    return [x, r.axis(x)]


def with_axes(r):
    x = r.floats(*r.shape(most=6))
    n = r.pick.randint(1, x.ndim)
    return [x, r.pick.sample(range(x.ndim), n), r.pick.random() < 0.5]


def convolved(axes, transposed=False):
    def make(r):
        groups = r.pick.choice([1, 1, 2, 4]) if axes != 3 else r.pick.choice([1, 2])
        ic, oc = 4, r.pick.choice([4, 8])
        if transposed:
            groups = 1
        k = [r.pick.randint(1, 3) for _ in range(axes)]
        n = 1 if transposed and axes == 1 else r.pick.randint(1, 2)
        x = r.floats(n, ic, *(r.pick.randint(7, 10) for _ in range(axes)))
        w = r.weight(*((ic, oc) if transposed else (oc, ic // groups)), *k)
        bias = r.weight(oc) if r.pick.random() < 0.5 else None
        s = [r.pick.randint(1, 2)] * axes if transposed else [r.pick.randint(1, 2) for _ in range(axes)]
        p = [0 if k[i] == 1 else 1 for i in range(axes)]
        d = [1] * axes if transposed else [r.pick.randint(1, 2) for _ in range(axes)]
        return x, w, bias, s, p, d, groups

    def core(r):
        x, w, bias, s, p, d, groups = make(r)
        return [x, w, bias, s, p, d, transposed, [0] * axes, groups]

    def simple(r):
        return [*make(r)]

    return simple, core


def any_convolution(r):
    return convolved(*r.pick.choice([(1, False), (2, False), (3, False), (1, True), (2, True)]))[1](r)


def view_arguments(r):
    x = r.any(*r.shape(most=6))
    n, shape = x.numel(), []
    while n > 1 and len(shape) < 5:
        part = r.pick.choice([d for d in range(1, n + 1) if n % d == 0])
        shape.append(part)
        n //= part
    return [x, [*shape, n]]


def attended(r):
    b, h, n, m, d = r.pick.randint(1, 2), 4, r.pick.randint(1, 5), r.pick.randint(1, 6), 8
    grouped = r.pick.random() < 0.3
    kv = 2 if grouped else h
    q, k, v = r.floats(b, h, n, d), r.floats(b, kv, m, d), r.floats(b, kv, m, d)
    mask, causal = None, False
    how = r.pick.choice(["none", "causal", "float", "bool", "row"])
    if how == "causal":
        causal = True
    elif how == "float":
        mask = r.floats(b, 1, n, m)
    elif how == "bool":
        mask = r.booleans(b, 1, n, m) | (torch.arange(m) == 0)
    elif how == "row":
        mask = r.floats(n, m)
    if mask is not None and r.pick.random() < 0.5:
        mask = Constant(mask)
    if mask is None and not grouped and r.pick.random() < 0.5:
        q, k, v = (torch.stack([x, x.flip(0)]) for x in (q, k, v))
    return [q, k, v, mask, 0.0, causal], {"scale": r.pick.choice([None, 0.3]), "enable_gqa": grouped}


def capped(r):
    arguments, options = attended(r)
    return arguments, {**options, "softcap": r.pick.choice([0.5, 3.0])}


def normed(r):
    x = r.floats(*r.shape(least=2))
    n = r.pick.randint(1, x.ndim)
    shape = x.shape[-n:]
    return x, [*shape], r.weight(*shape), r.weight(*shape)


def grouped_norm(r):
    groups = r.pick.choice([1, 2, 3])
    return r.floats(2, 6, *r.shape(1, 3)), groups, r.weight(6), r.weight(6)


def batch_normed(r):
    x = r.floats(*r.pick.choice([(2, 5), (2, 5, 7), (2, 5, 3, 4)]))
    return [x, r.weight(5), r.weight(5), r.weight(5), Constant(r.positive(5))]


def pooled(r):
    k = [r.pick.randint(1, 3) for _ in range(2)]
    return [r.floats(*r.pick.choice([(3,), (2, 3)]), 8, 9), k, [r.pick.randint(1, 2)] * 2, [k[0] // 2, k[1] // 2]]


def over_pooled(r):
    """One window that is larger than the plane."""
    return [r.floats(2, 3, 2, 3), [4, 3], [4, 3], [0, 0], True]


def resized(r, *more):
    return [r.floats(2, 3, 5, 6), [r.pick.randint(2, 12), r.pick.randint(2, 12)], *more]


def indexed(r):
    x = r.any(*r.shape(least=2, most=4))
    n = r.pick.randint(1, min(2, x.ndim))
    first = r.pick.randint(0, x.ndim - n)
    shape = r.shape(0, 2)
    picked = [r.integers(-x.shape[first + i], x.shape[first + i], *shape) for i in range(n)]
    return [x, [None] * first + [p if r.pick.random() < 0.5 else Constant(p) for p in picked]]


def gathered(r):
    x = r.floats(*r.shape(most=4))
    index = r.integers(0, x.shape[-1], *x.shape[:-1], r.pick.randint(1, 7))
    return [x, -1, index]


def padded(r):
    x = r.floats(*r.shape(least=2))
    n = r.pick.randint(1, x.ndim)
    amounts = [r.pick.randint(-1 if x.shape[-1 - i // 2] > 2 else 0, 2) for i in range(2 * n)]
    return [x, amounts, r.pick.choice([0, 0.0, 2.5, -float("inf")])]


def joined(r):
    shape = list(r.shape(least=1, most=5))
    axis = r.pick.randrange(len(shape))
    empty = [r.floats(*shape[:axis], 0, *shape[axis + 1 :])] if r.pick.random() < 0.2 else []
    parts = empty + [
        r.floats(*shape[:axis], r.pick.randint(1, 20), *shape[axis + 1 :]) for _ in range(r.pick.randint(1, 4))
    ]
    return [parts, axis]


def multiplied(r):
    m, k, n = (r.pick.randint(1, 9) for _ in range(3))
    return r.floats(m, k), r.floats(k, n), m, n


def of_batches(r):
    m, k, n = (r.pick.randint(1, 7) for _ in range(3))
    shape = r.shape(0, 3, 3)
    a, b = r.floats(*shape, m, k), r.floats(*r.broadcast(shape), k, n)
    how = r.pick.randint(0, 5)
    if how == 0:
        return [r.floats(k), b]
    if how == 1:
        return [a, r.floats(k)]
    return [a, r.weight(k, n)] if how == 2 else [a, b]


def linear(r):
    k, n = r.pick.randint(1, 9), r.pick.randint(1, 9)
    return [r.floats(*r.shape(0, 4), k), r.weight(n, k), r.weight(n) if r.pick.random() < 0.5 else None]


def chosen(r):
    shape = r.shape(most=6)
    condition, x, y = r.booleans(*r.broadcast(shape)), r.floats(*shape), r.floats(*r.broadcast(shape))
    return [condition, x, y]


def sliced(r):
    x = r.any(*r.shape(most=6))
    axis = r.axis(x)
    n = x.shape[axis]
    start = r.pick.randrange(n)
    return [x, axis, start, r.pick.choice([n, 2**62, r.pick.randint(start + 1, n)]), r.pick.randint(1, 2)]


def shuffled(r):
    """Different numbers, and an axis."""
    shape = r.shape(most=6, size=4)
    x = torch.randperm(int(np.prod(shape)), generator=r.torch).reshape(shape)
    return [x.float() / 7 if r.pick.random() < 0.5 else x, r.axis(x)]


def put(r):
    x = r.any(*r.shape(most=6, size=4))
    k = r.pick.randint(1, min(x.ndim, 3))
    added = x.dtype != torch.bool and r.pick.random() < 0.5
    if r.pick.random() < 0.4:
        return [x, [r.booleans(*x.shape[:k])], r.any(1).to(x.dtype).reshape(()), added]
    n = int(np.prod(x.shape[:k]))
    flat = torch.randperm(n, generator=r.torch)[: r.pick.randint(1, 5)]
    if added:
        flat = r.integers(0, n, r.pick.randint(1, 9))  # some are equal
    places = [torch.from_numpy(p) for p in np.unravel_index(flat.numpy(), x.shape[:k])]
    if r.pick.random() < 0.5:
        places[0] = places[0] - x.shape[0]
    values = r.any(len(flat), *x.shape[k:]).to(x.dtype)
    return [x, places, values if r.pick.random() < 0.5 else values[:1], added]


def copied(r):
    x = r.any(*r.shape(most=6))
    axis = r.axis(x)
    places = torch.randperm(x.shape[axis], generator=r.torch)[: r.pick.randint(1, 3)]
    return [x, axis, places, x.flip(0).index_select(axis, places.flip(0)).clone()]


def part_of(r):
    x, axis, start, end, _ = sliced(r)
    part = x.narrow(axis, start, min(end, x.shape[axis]) - start)
    return [x, part.flip(0).clone(), axis, start, end]


def place_of(r):
    x = r.any(*r.shape(2, 6))
    axis = r.axis(x)
    at = r.pick.randrange(-x.shape[axis], x.shape[axis])
    return [x, x.flip(0).select(axis, at).clone(), axis, at]


def ordered(r):
    x = r.any(*r.shape(most=6))
    return [x, r.pick.sample(range(x.ndim), x.ndim)]


def expanded(r):
    shape = r.shape(most=6)
    return [r.any(*r.broadcast(shape)), [*shape]]


def like(r):
    shape = r.shape(most=5)
    return [r.any(*r.broadcast(shape)), r.floats(*shape)]


def parts(r):
    x = r.any(*r.shape(most=5))
    return x, r.axis(x)


def sizes_of_parts(r):
    x, axis = parts(r)
    at = r.pick.randint(1, x.shape[axis])
    return [x, [at, x.shape[axis] - at] if at < x.shape[axis] else [at], axis]


def flattened(r):
    x = r.any(*r.shape(least=2, most=6))
    start = r.pick.randrange(x.ndim - 1)
    return [x, start, r.pick.randrange(start + 1, x.ndim)]


def packed(r):
    import ggml_backend.torch as gbt

    weight = gbt.pack(r.floats(8, 64), r.pick.choice(["q8_0", "q4_0"]), precision="f32")
    return weight


def some_of(r, x):
    return r.pick.sample(range(x.ndim), r.pick.randint(1, x.ndim))


def squeezable(r):
    return r.any(*(n if r.pick.random() < 0.5 else 1 for n in r.shape(most=6)))


def gated(r):
    op, shape = r.pick.choice(["swiglu", "geglu", "geglu_erf"]), r.shape()
    if r.pick.random() < 0.5:
        return [r.floats(*shape), r.floats(*shape), op, False]
    return [r.floats(*shape[:-1], 2 * shape[-1]), None, op, r.pick.random() < 0.5]


CASES = {
    **dict.fromkeys(["relu", "sigmoid", "tanh", "exp", "expm1", "sin", "cos", "floor", "ceil", "trunc", "silu",
                     "hardswish", "hardsigmoid", "mish", "log_sigmoid", "relu6", "elu", "leaky_relu", "gelu",
                     "softplus", "isnan", "isinf", "hardtanh", "erf"], of_one),
    **dict.fromkeys(["log", "sqrt", "rsqrt", "reciprocal", "log1p"], of_positive),
    **dict.fromkeys(["neg", "abs", "sign", "sgn"], exact),
    **dict.fromkeys(["add.Tensor", "sub.Tensor", "mul.Tensor", "rsub.Tensor", "maximum", "minimum"], numbers),
    **dict.fromkeys(["eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor"], mixed),
    **dict.fromkeys(["eq.Scalar", "ne.Scalar", "lt.Scalar", "le.Scalar", "gt.Scalar", "ge.Scalar"],
                    lambda r: [r.any(*r.shape()), r.pick.choice([0, 1, 1.5])]),
    **dict.fromkeys(["add.Scalar", "sub.Scalar", "rsub.Scalar"], lambda r: [*exact(r), 3, r.pick.choice([1, 2])]),
    "mul.Scalar": lambda r: [*exact(r), 3],
    "div.Scalar": lambda r: [*exact(r), 3],
    "div.Tensor": lambda r: [r.floats(2, 3, 4), r.positive(*r.broadcast((2, 3, 4)))],
    "div.Tensor_mode": lambda r: ([r.integers(-9, 9, 4, 5), r.integers(1, 4, 5)],
                                  {"rounding_mode": r.pick.choice(["floor", "trunc"])}),
    "div.Scalar_mode": lambda r: ([r.integers(-9, 9, 4, 5), 3], {"rounding_mode": r.pick.choice(["floor", "trunc"])}),
    "floor_divide": lambda r: [r.integers(-9, 9, 4, 5), r.integers(1, 4, 5)],
    "remainder.Tensor": lambda r: [r.integers(-9, 9, 4, 5), r.integers(1, 4, 5)],
    "remainder.Scalar": lambda r: [r.integers(-9, 9, 4, 5), 4],
    "pow.Tensor_Scalar": lambda r: [r.positive(*r.shape()), r.pick.choice([2, 3, 4, 0.5, -1, -0.5, -2, 1])],
    "pow.Scalar": lambda r: [2.5, *of_one(r)],
    **dict.fromkeys(["clamp"], lambda r: [*exact(r), *r.pick.choice([(-1, 1), (None, 1), (0, None), (-2, None)])]),
    "clamp_min": lambda r: [*exact(r), 0],
    "clamp_max": lambda r: [*exact(r), 1],
    "prelu": lambda r: [r.floats(2, 5, *r.shape(0, 4)), r.weight(r.pick.choice([1, 5]))],
    "_prelu_kernel": lambda r: [r.floats(2, 5, 3), r.weight(1, 5, 1)],
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor", "bitwise_and.Tensor", "bitwise_or.Tensor",
                     "bitwise_xor.Tensor", "__and__.Tensor", "__or__.Tensor"], lambda r: r.pair(r.booleans)),
    "logical_not": lambda r: [r.any(*r.shape())],
    "bitwise_not": lambda r: [r.booleans(*r.shape())],
    "where.self": chosen,
    "where.ScalarOther": lambda r: [r.booleans(3, 4), r.floats(2, 3, 4), -1.5],
    "where.ScalarSelf": lambda r: [r.booleans(3, 4), -1.5, r.floats(2, 3, 4)],
    "where.Scalar": lambda r: [r.booleans(3, 4), 1.5, 2.5],
    "masked_fill.Scalar": lambda r: [r.floats(2, 3, 4), r.booleans(*r.broadcast((2, 3, 4))), -float("inf")],
    "masked_fill.Tensor": lambda r: [r.floats(2, 3, 4), r.booleans(*r.broadcast((2, 3, 4))), torch.tensor(7.0)],
    **dict.fromkeys(["clone", "alias", "detach", "contiguous", "lift_fresh_copy"], lambda r: [r.any(*r.shape())]),
    "dropout": lambda r: [*of_one(r), 0.5, False],
    "_to_copy": lambda r: ([r.any(*r.shape())], {"dtype": r.pick.choice([torch.float32, torch.int64, torch.bool])}),
    "to.dtype": lambda r: [r.any(*r.shape()), r.pick.choice([torch.float32, torch.int64, torch.bool])],
    "fill.Scalar": lambda r: [*of_one(r), 2.5],
    **dict.fromkeys(["view", "reshape", "_unsafe_view"], view_arguments),
    "unsqueeze": lambda r: [r.any(*r.shape()), 0],
    "squeeze": lambda r: [squeezable(r)],
    "squeeze.dim": lambda r: [squeezable(r), 0],
    "squeeze.dims": lambda r: [squeezable(r)[None], [0, -1]],
    "flatten.using_ints": flattened,
    "unflatten.int": lambda r: [r.any(3, 12, 2), 1, [3, -1]],
    "view_as": lambda r: [r.any(3, 8), r.floats(2, 3, 4)],
    "permute": ordered,
    "transpose.int": lambda r: [x := r.any(*r.shape(most=6)), r.axis(x), r.axis(x)],
    "t": lambda r: [r.any(*r.shape(1, 2))],
    "numpy_T": lambda r: [r.any(*r.shape(2, 5))],
    "movedim.intlist": lambda r: [r.any(*r.shape(2, 6)), [0, 1], [-1, 0]],
    "expand": expanded,
    "broadcast_to": expanded,
    "expand_as": like,
    "copy": lambda r: (lambda make, s: [make(*s), make(*r.broadcast(s))])(
        r.pick.choice([r.floats, r.booleans]), r.shape()
    ),
    "repeat": lambda r: [x := r.any(*r.shape()), [r.pick.randint(1, 3) for _ in range(r.pick.randint(x.ndim, 6))]],
    "repeat_interleave.self_int": lambda r: [x := r.any(*r.shape()), 2, r.pick.choice([None, r.axis(x)])],
    "slice.Tensor": sliced,
    "select.int": lambda r: [x := r.any(*r.shape(most=6)), a := r.axis(x), r.pick.randrange(-x.shape[a], x.shape[a])],
    "unbind.int": lambda r: [*parts(r)],
    "split.Tensor": lambda r: (lambda x, axis: [x, r.pick.randint(1, x.shape[axis]), axis])(*parts(r)),
    "chunk": lambda r: (lambda x, axis: [x, 2, axis])(*parts(r)),
    "split_with_sizes": sizes_of_parts,
    "split.sizes": sizes_of_parts,
    "flip": lambda r: [x := r.any(*r.shape()), some_of(r, x)],
    "roll": lambda r: [x := r.any(*r.shape()), [1] * len(a := some_of(r, x)), a] if r.pick.random() < 0.8
    else [r.any(*r.shape()), [2]],
    "constant_pad_nd": padded,
    "pixel_shuffle": lambda r: [r.floats(2, 8, 3, 5), 2],
    "unfold": lambda r: [r.any(3, 8, 2), 1, 4, 4],
    "cat": joined,
    "slice_scatter": part_of,
    "select_scatter": place_of,
    "stack": lambda r: [[r.floats(*s) for _ in range(r.pick.randint(1, 3))] if (s := r.shape()) else [], -1],
    "linear": linear,
    "addmm": lambda r: (lambda a, b, m, n: [r.weight(n), a, Constant(b)])(*multiplied(r)),
    "mm": lambda r: (lambda a, b, m, n: [a, r.pick.choice([b, Constant(b)])])(*multiplied(r)),
    "bmm": lambda r: [r.floats(3, 4, 5), r.floats(3, 5, 2)],
    "matmul": of_batches,
    "baddbmm": lambda r: ([r.floats(*r.broadcast((3, 4, 2))), r.floats(3, 4, 5), r.floats(3, 5, 2)],
                          {"beta": r.pick.choice([0, 1, 2]), "alpha": r.pick.choice([1, 0.5])}),
    "scaled_dot_product_attention": attended,
    "layer_norm": lambda r: [*normed(r)],
    "native_layer_norm": lambda r: [*normed(r), 1e-5],
    "rms_norm": lambda r: [*normed(r)[:3], r.pick.choice([None, 1e-3])],
    "_fused_rms_norm": lambda r: [*normed(r)[:3], 1e-3],
    "group_norm": lambda r: [*grouped_norm(r)],
    "native_group_norm": lambda r: (lambda x, g, w, c: [x, w, c, 2, 6, x[0, 0].numel(), g, 1e-5])(*grouped_norm(r)),
    "batch_norm": lambda r: [*batch_normed(r), False, 0.1, 1e-3, False],
    "_native_batch_norm_legit_no_training": lambda r: [*batch_normed(r), 0.1, 1e-3],
    "_softmax": lambda r: [*with_axis(r), False],
    "softmax.int": with_axis,
    "_safe_softmax": with_axis,
    "_log_softmax": lambda r: [*with_axis(r), False],
    "log_softmax.int": with_axis,
    "cumsum": lambda r: [x := r.any(*r.shape()), r.axis(x)],
    **dict.fromkeys(["sum.dim_IntList", "mean.dim", "amax", "amin"], with_axes),
    **dict.fromkeys(["sum", "mean", "max", "min"], of_one),
    "any": lambda r: [r.any(*r.shape())],
    "all": lambda r: [r.any(*r.shape())],
    **dict.fromkeys(["any.dim", "all.dim"], lambda r: [x := r.any(*r.shape()), r.axis(x), r.pick.random() < 0.5]),
    **dict.fromkeys(["any.dims", "all.dims"], lambda r: [x := r.any(*r.shape()), some_of(r, x), False]),
    **dict.fromkeys(["var.correction", "std.correction"],
                    lambda r: ([x := r.floats(3, 4, 5), some_of(r, x)], {"correction": r.pick.choice([0, 1])})),
    "var.dim": lambda r: [x := r.floats(3, 4, 5), some_of(r, x), r.pick.random() < 0.5],
    "linalg_vector_norm": lambda r: [x := r.floats(*r.shape()), r.pick.choice([2, 1, float("inf")]), some_of(r, x)],
    "norm.ScalarOpt_dim": lambda r: [x := r.floats(*r.shape()), r.pick.choice([2, 1]), some_of(r, x)],
    **dict.fromkeys(["argmax", "argmin"],
                    lambda r: [x := r.floats(*r.shape()), r.pick.choice([None, r.axis(x)]), False]),
    "embedding": lambda r: [r.weight(9, 5), r.integers(0, 9, *r.shape(0, 4))],
    "index_select": lambda r: [x := r.any(*r.shape()), a := r.axis(x), r.integers(0, x.shape[a], 5)],
    "gather": gathered,
    "index_put": put,
    "index_copy": copied,
    "topk": lambda r: (lambda x, axis: [x, r.pick.randint(1, x.shape[axis]), axis, r.pick.random() < 0.5])(
        *shuffled(r)
    ),
    **dict.fromkeys(["max.dim", "min.dim"], lambda r: [*shuffled(r), r.pick.random() < 0.5]),
    "sort": lambda r: [*shuffled(r), r.pick.random() < 0.5],
    "sort.stable": lambda r: ([x := r.any(*r.shape()).long()], {"stable": True, "dim": r.axis(x)}),
    "index.Tensor": indexed,
    "conv1d": convolved(1)[0],
    "conv2d": convolved(2)[0],
    "conv3d": convolved(3)[0],
    "convolution": any_convolution,
    "max_pool2d": pooled,
    "max_pool2d_with_indices": pooled,
    "avg_pool2d": lambda r: over_pooled(r) if r.pick.random() < 0.2 else [*pooled(r), False, r.pick.random() < 0.5],
    "avg_pool1d": lambda r: [r.floats(2, 3, 9), [3], [2], [1]],
    "adaptive_avg_pool2d": lambda r: [r.floats(2, 3, 6, 8), r.pick.choice([[1, 1], [3, 2], [6, 8], [4, 5], [7, 9]])],
    "_adaptive_avg_pool2d": lambda r: [r.floats(2, 3, 6, 8), r.pick.choice([[1, 1], [3, 2], [4, 3]])],
    "adaptive_avg_pool1d": lambda r: [r.floats(2, 3, 6), [r.pick.choice([1, 2, 3, 4, 7])]],
    "upsample_nearest2d": resized,
    "upsample_nearest2d.vec": lambda r: [r.floats(2, 3, 5, 6), None, [2.0, 3.0]],
    "upsample_bilinear2d": lambda r: resized(r, r.pick.random() < 0.5),
    "upsample_bilinear2d.vec": lambda r: resized(r, r.pick.random() < 0.5, None),
    "upsample_bicubic2d": lambda r: resized(r, r.pick.random() < 0.5),
    "upsample_bicubic2d.vec": lambda r: resized(r, r.pick.random() < 0.5, None),
    "ggml_backend.glu": gated,
    "ggml_backend.attention": capped,
    "ggml_backend.linear": lambda r: [r.floats(*r.shape(0, 3), 64), (w := packed(r)), r.weight(8), w.format, "f32"],
    "ggml_backend.embedding": lambda r: [r.integers(0, 8, *r.shape(0, 3)), (w := packed(r)), w.format, torch.float32],
}  # fmt: skip
"""Random arguments of each operator that has a rule: a list, or a list and options."""


@torch.library.custom_op("gb_test::glu", mutates_args=())
def glu(self: torch.Tensor, other: torch.Tensor | None, op: str, swapped: bool) -> torch.Tensor:
    """What ``patterns.py`` replaces by ``ggml_backend.glu``."""
    gate, up = self.chunk(2, -1) if other is None else (self, other)
    gate, up = (up, gate) if swapped else (gate, up)
    if op == "swiglu":
        return torch.nn.functional.silu(gate) * up
    return torch.nn.functional.gelu(gate, approximate="tanh" if op == "geglu" else "none") * up


@torch.library.custom_op("gb_test::attention", mutates_args=())
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float = 0.0,
) -> torch.Tensor:
    """What ``attention.py`` replaces by ``ggml_backend.attention``."""
    q, k, v = query.double(), key.double(), value.double()
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -torch.inf)
    return (torch.softmax(scores if attn_mask is None else scores + attn_mask, -1) @ v).float()


def operator_of(name):
    if name in ("ggml_backend.glu", "ggml_backend.attention"):
        return getattr(torch.ops.gb_test, name.partition(".")[2]).default
    library, dot, rest = name.partition(".")
    if library == "ggml_backend":
        return getattr(torch.ops.ggml_backend, rest).default
    return getattr(getattr(torch.ops.aten, library), rest if dot else "default")


class OneNode:
    """A network of one operator. Random inputs come in another order of axes, and a node restores it."""

    def __init__(self, name, r):
        self.network, self.arrays, self.r = Network(), {}, r
        self.target = operator_of(name)
        self.name = name

    def value(self, tensor):
        import ggml_backend.torch as gbt

        n = self.network
        key = f"v{len(n.values)}"
        if isinstance(tensor, gbt.PackedTensor):
            n.values[key] = Value(tuple(tensor.blocks.shape), "uint8")
            n.arrays[key] = tensor.blocks.numpy()
            n.weights.add(key)
            return Ref(key), tensor.blocks
        fixed = isinstance(tensor, Constant)
        if fixed:
            tensor = tensor.tensor
        n.values[key] = Value(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if fixed:
            n.arrays[key] = tensor.numpy()
            n.weights.add(key)
            return Ref(key), tensor
        if tensor.ndim >= 2 and self.r.pick.random() < 0.5:
            order = self.r.pick.sample(range(tensor.ndim), tensor.ndim)
            turned = tensor.permute(*order).contiguous()
            n.values["t" + key] = Value(tuple(turned.shape), n.values[key].dtype)
            n.inputs.append("t" + key)
            self.arrays["t" + key] = turned.numpy()
            back = [order.index(i) for i in range(tensor.ndim)]
            n.nodes.append(Node("permute", {"self": Ref("t" + key), "dims": back}, (key,)))
        else:
            n.inputs.append(key)
            self.arrays[key] = tensor.numpy()
        return Ref(key), tensor

    def argument(self, x):
        if isinstance(x, (torch.Tensor, Constant)):
            return self.value(x)
        if isinstance(x, (list, tuple)):
            both = [self.argument(item) for item in x]
            return [ours for ours, _ in both], [theirs for _, theirs in both]
        return (str(x).removeprefix("torch.") if isinstance(x, torch.dtype) else x), x

    def run(self, args, options):
        """Our results and PyTorch's."""
        schema = [p.name for p in self.target._schema.arguments]
        ours, given = {}, []
        for parameter, x in zip(schema, args, strict=False):
            own, theirs = self.argument(x)
            given.append(theirs)
            if x is not None:
                ours[parameter] = own
        for key, x in options.items():
            if x is not None:
                ours[key] = self.argument(x)[0]
        made = self.target(*given, **options)
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        names = tuple(f"y{i}" for i in range(len(made)))
        for key, tensor in zip(names, made, strict=True):
            self.network.values[key] = Value(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        self.network.nodes.append(Node(self.name, ours, names))
        whole = self.name in SEVERAL
        self.network.outputs = [*names] if whole else [names[0]]
        self.network.check()
        engine = Engine([gb.Backend("CPU", n_threads=1)], {})
        step = engine.step(self.network, "test")
        found = engine.run(step, self.arrays)
        return [found[key] for key in self.network.outputs], [t.numpy() for t in made][: len(self.network.outputs)]


SEVERAL = ("unbind.int", "split.Tensor", "chunk", "split_with_sizes", "split.sizes", "topk", "sort", "sort.stable",
           "max.dim", "min.dim")  # fmt: skip
"""Rules of which all results are compared. The others are compared by the first."""


def close(ours, theirs):
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if ours.dtype.kind in "ib":
        np.testing.assert_array_equal(ours, theirs)
        return
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(ours[~finite], theirs[~finite])
    scale = np.abs(theirs[finite]).max(initial=1)
    np.testing.assert_allclose(ours[finite], theirs[finite], rtol=0, atol=2e-5 * scale)


def test_every_rule_has_a_case():
    assert {*CASES} == {*RULES}


@pytest.mark.parametrize("draws", [range(DRAWS), pytest.param(range(DRAWS, MANY), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(CASES))
def test_rules_compute_what_pytorch_computes(name, draws):
    for seed in draws:
        r = Random(seed)
        made = CASES[name](r)
        args, options = made if isinstance(made, tuple) else (made, {})
        ours, theirs = OneNode(name, r).run(args, options)
        for a, b in zip(ours, theirs, strict=True):
            close(a, b)
