"""Random combinations of shapes, repetitions, dtypes and layouts against NumPy, reduced to the
smallest failure.
"""

from __future__ import annotations

import functools
import math
import operator

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ggml_backend as gb
from op_harness import ALL_LAYOUTS, EXACT, FLOATS, LAYOUTS, Tolerance, array, check, real, reseed, whole

examples = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
sizes = st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33])
shapes = st.lists(sizes, min_size=1, max_size=4).filter(lambda s: math.prod(s) <= 20000).map(tuple)
layouts = st.sampled_from(ALL_LAYOUTS)
row_layouts = st.sampled_from(LAYOUTS)
dtypes = st.sampled_from(FLOATS)
seeds = st.integers(0, 2**32)


@st.composite
def repeated(draw):
    """A shape, and a shape that repeats to it."""
    small = draw(st.lists(st.sampled_from([1, 1, 2, 3, 5, 9]), min_size=1, max_size=4))
    large = [n * draw(st.sampled_from([1, 1, 2, 3, 7])) for n in small]
    lead = draw(st.integers(0, 4 - len(small)))
    return (*[draw(st.sampled_from([1, 2, 3])) for _ in range(lead)], *large), tuple(small)


def tiled(v, shape):
    v = v.reshape((1,) * (len(shape) - v.ndim) + v.shape)
    return np.tile(v, [n // m for n, m in zip(shape, v.shape, strict=True)])


@examples
@given(
    repeated(), st.sampled_from(["add", "sub", "mul", "div"]), dtypes, dtypes, layouts, layouts, st.booleans(), seeds
)
def test_binary(pair, name, first, second, one, two, inplace, seed):
    reseed(seed)
    shape, small = pair
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
    inputs = [real(*shape, dtype=first, layout=one), real(*small, dtype=second, low=0.5, layout=two)]
    check(
        lambda a, b: getattr(gb.ops, name)(a, b, inplace=inplace),
        inputs,
        lambda x, y: function(x, tiled(y, shape)),
        Tolerance(1),
        writes=(0,) if inplace else (),
    )


@examples
@given(repeated(), dtypes, layouts, seeds)
def test_repeat_and_back(pair, dtype, layout, seed):
    reseed(seed)
    shape, small = pair
    check(
        lambda t: gb.ops.repeat(t, shape), [real(*small, dtype=dtype, layout=layout)], lambda v: tiled(v, shape), EXACT
    )
    full = (1,) * (len(shape) - len(small)) + small
    if full != shape:

        def folded(v):
            return v.reshape([m for n, s in zip(shape, full, strict=True) for m in (n // s, s)]).sum(
                tuple(range(0, 2 * len(shape), 2))
            )

        x = real(*shape, dtype=dtype, layout=layout)
        check(
            lambda t: gb.ops.repeat_back(t, full),
            [x],
            folded,
            Tolerance(n=math.prod(shape) // math.prod(full)),
            magnitude=folded,
        )


@st.composite
def broadcast(draw):
    full = draw(st.lists(st.sampled_from([1, 2, 3, 5, 9]), min_size=0, max_size=4))

    def part():
        cut = draw(st.integers(0, len(full)))
        return tuple(n if draw(st.booleans()) else 1 for n in full[cut:])

    return part(), part()


@examples
@given(broadcast(), st.sampled_from([operator.add, operator.sub, operator.mul, operator.truediv]), seeds)
def test_operators(pair, op, seed):
    reseed(seed)
    check(op, [real(*pair[0], low=0.5), real(*pair[1], low=0.5)], op, Tolerance(1))


@examples
@given(
    shapes,
    st.sampled_from([*FLOATS, "int32"]),
    st.sampled_from([*FLOATS, "int32"]),
    layouts,
    layouts,
    st.randoms(use_true_random=False),
    seeds,
)
def test_copies(shape, source, target, one, two, random, seed):
    """Copies into another shape of the same size, another dtype and another layout."""
    reseed(seed)
    factors = list(shape) + [1] * (4 - len(shape))
    random.shuffle(factors)
    into = tuple(factors[: random.randint(1, 4)])
    into = (*into[:-1], math.prod(shape) // math.prod(into[:-1]))
    values = np.arange(math.prod(shape)).reshape(shape) % 201 - 100  # exact in every dtype
    inputs = [array(values, source, one), array(np.zeros(into), target, two)]
    check(gb.ops.cpy, inputs, lambda v, w: v.reshape(into), EXACT, dtype=target, writes=(1,))
    check(lambda t: gb.ops.cont(t, into), inputs[:1], lambda v: v.reshape(into), EXACT)
    check(lambda t: gb.ops.cast(t, target), inputs[:1], lambda v: v, EXACT, dtype=target)


@examples
@given(
    st.sampled_from([("float32", "float32"), ("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32"),
     ("bfloat16", "bfloat16")]),
    st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3])), max_size=2), sizes, sizes,
    st.sampled_from([1, 3, 8, 15, 16, 31, 64, 65, 130]),
    row_layouts, row_layouts, seeds,
)  # fmt: skip
def test_mul_mat(pair, batches, m, n, k, one, two, seed):
    reseed(seed)
    a = real(*[b for b, _ in batches], m, k, dtype=pair[0], layout=one)
    b = real(*[b * r for b, r in batches], n, k, dtype=pair[1], layout=two)

    def reference(x, y):
        for axis, (_, r) in enumerate(batches):
            x = np.repeat(x, r, axis)
        return y @ x.swapaxes(-1, -2)

    rounds = pair == ("bfloat16", "float32")  # b is rounded to the precision of a
    check(
        gb.ops.mul_mat,
        [a, b],
        reference,
        Tolerance(n=k, rounded=float(rounds), rounded_to="bfloat16"),
        magnitude=reference,
        dtype="float32",
    )


@examples
@given(shapes, dtypes, layouts, seeds)
def test_rows(shape, dtype, layout, seed):
    reseed(seed)
    n = shape[-1]
    x = real(*shape, dtype=dtype, layout=layout)

    def total(v):
        return v.sum(-1, keepdims=True)

    check(gb.ops.sum_rows, [x], total, Tolerance(n=n), magnitude=total)
    check(gb.ops.rms_norm, [x], lambda v: v / np.sqrt(total(v * v) / n + 1e-5), Tolerance(6 + n**0.5))
    spread = np.sqrt(x.exact.var(-1, keepdims=True) + 1e-5)
    check(
        gb.ops.norm,
        [x],
        lambda v: (v - total(v) / n) / spread,
        Tolerance(8),
        magnitude=lambda v: (v + total(v) / n) / spread,
    )
    check(gb.ops.argsort, [x], lambda v: np.argsort(v, -1, kind="stable"), EXACT, dtype="int32")
    y = x.laid("whole")
    check(gb.ops.soft_max, [y], lambda v: np.exp(v) / total(np.exp(v)), Tolerance(20, n=n))


@st.composite
def gathers(draw):
    """ggml: a (.., .., rows, n), b (.., .., k)."""
    batch = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2))
    return tuple(batch), draw(sizes), draw(sizes), draw(sizes)


@examples
@given(gathers(), st.sampled_from([*FLOATS, "int32"]), row_layouts, layouts, seeds)
def test_get_rows(case, dtype, one, two, seed):
    reseed(seed)
    batch, rows, n, k = case
    a = (
        whole(*batch, rows, n, low=-9, high=9, layout=one)
        if dtype == "int32"
        else real(*batch, rows, n, dtype=dtype, layout=one)
    )
    check(gb.ops.get_rows, [a, whole(*batch, k, low=0, high=rows, layout=two)], lambda x,
     i: np.take_along_axis(x, i[..., None], -2), EXACT,
          dtype="int32" if dtype == "int32" else "float32")  # fmt: skip


@st.composite
def basic_index(draw, shape):
    items = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["slice", "slice", "integer", "all"]))
        if kind == "integer":
            items.append(draw(st.integers(-n, n - 1)))
        elif kind == "slice":
            bound = st.none() | st.integers(-n - 1, n + 1)
            items.append(slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 3]))))
        else:
            items.append(slice(None))
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
    return tuple(items)


@examples
@given(st.data(), st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=3).map(tuple), layouts, seeds)
def test_indexing(data, shape, layout, seed):
    reseed(seed)
    index = data.draw(basic_index(shape))
    check(lambda t: gb.ops.cont(t[index]), [real(*shape, layout=layout)], lambda v: v[index], EXACT)


@examples
@given(st.data(), seeds)
def test_matmul(data, seed):
    reseed(seed)
    m, n, k = (data.draw(st.sampled_from([1, 2, 5, 9])) for _ in range(3))
    one, two = data.draw(broadcast().filter(lambda p: len(p[0]) < 3 and len(p[1]) < 3))
    a = (k,) if data.draw(st.integers(0, 4)) == 0 else (*one, m, k)
    b = (k,) if data.draw(st.integers(0, 4)) == 0 else (*two, k, n)
    inputs = [real(*a, layout=data.draw(layouts)), real(*b, layout=data.draw(layouts))]
    check(operator.matmul, inputs, np.matmul, Tolerance(n=k), magnitude=np.matmul)


@examples
@given(st.data(), seeds)
def test_pad_concat_upscale(data, seed):
    reseed(seed)
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=4).map(tuple))
    x = real(*shape, dtype=data.draw(dtypes), layout=data.draw(layouts))
    amounts = tuple(data.draw(st.integers(0, 4)) for _ in shape)
    check(lambda t: gb.ops.pad(t, amounts), [x], lambda v: np.pad(v, [(0, n) for n in amounts]), EXACT)
    factor = data.draw(st.integers(1, 3))
    check(lambda t: gb.ops.upscale(t, factor), [x], lambda v: v.repeat(factor, -1).repeat(factor, -2), EXACT)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    other = list(shape)
    other[axis] = data.draw(st.sampled_from([1, 2, 4]))
    y = real(*other, dtype=x.dtype, layout=data.draw(layouts))
    check(functools.partial(gb.ops.concat, axis=axis), [x, y], lambda v, w: np.concatenate([v, w], axis), EXACT)
