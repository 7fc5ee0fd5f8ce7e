"""Small calls of each function of the package: those of the package's own table, and some that the
table lacks.

Tests of all functions use these calls. harness_zeros.py changes their sizes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ggml_backend as gb
from ggml_backend.testing._cases import Sizes
from ggml_backend.testing._inputs import values_of
from ggml_backend.testing._variants import all_cases

Array = np.ndarray[Any, Any]
Build = Callable[..., gb.Tensor]
CPU = gb.Backend("CPU", n_threads=1)


def a(*shape: int, dtype: Any = np.float32) -> Array:
    rng = np.random.default_rng(zlib.crc32(repr(shape).encode()))
    return (rng.random(shape) + 0.25).astype(dtype)


def _computes(build: Build, arrays: list[Array]) -> bool:
    """True if the CPU computes the call, and its result has elements of their own."""
    with gb.Context() as ctx:
        try:
            node = build(*[ctx.tensor(x.shape, x.dtype) for x in arrays])
        except gb.errors.InvalidArgumentError:
            return False
        return not node.dtype.is_quantized and CPU.supports(node)


def _calls() -> Iterator[tuple[str, Build, list[Array]]]:
    """The calls of the table without duplicates, with float32 if possible, else float16."""
    seen = set()
    for case in all_cases(Sizes("one")):
        for dtype in ("float32", "float16"):
            inputs = [given.typed(dtype, "float32") for given in case.inputs]
            if not all(i.fits and i.element.numpy.kind in "fi" and i.dtype != "bfloat16" for i in inputs):
                continue
            label = f"{case.name} {case.label} {inputs}"
            rng = np.random.default_rng(zlib.crc32(label.encode()))
            arrays = [values_of(given, rng)[0] for given in inputs]
            if label not in seen and _computes(case.call, arrays):
                seen.add(label)
                yield case.name, case.call, arrays
                break


# Name of the function, a builder, inputs.
CASES: list[tuple[str, Build, list[Array]]] = [
    *_calls(),
    ("unary", lambda x: gb.ops.unary(x, "neg"), [a(3, 4)]),
    ("repeat", gb.ops.repeat, [a(3, 4), a(6, 8)]),
    ("mul_mat", lambda w, x: gb.ops.mul_mat(w, x, prec="f32"), [a(5, 4), a(4)]),
    ("set", lambda x, y: gb.ops.set(x, y, nb1=16, nb2=48, nb3=48), [a(3, 4), a(2, 4)]),
    ("reshape", lambda x: gb.ops.cont(gb.ops.reshape(x, (2, -1))), [a(3, 4)]),
    ("reshape", lambda x, y: gb.ops.cont(gb.ops.reshape(x, y)), [a(3, 4), a(2, 6)]),
    ("view", lambda x: gb.ops.cont(gb.ops.view(x, (2, 2), strides=(16, 4), offset=4)), [a(3, 4)]),
    ("view", lambda x: gb.ops.cont(gb.ops.view(x)), [a(3, 4)]),
    ("permute_ggml", lambda x: gb.ops.cont(gb.ops.permute_ggml(x, 1, 2, 0, 3)), [a(2, 3, 4)]),
    ("transpose", lambda x: gb.ops.cont(gb.ops.transpose(x)), [a(2, 3, 4)]),
    ("empty_like", lambda x: gb.ops.cpy(x, gb.ops.empty_like(x)), [a(3, 4)]),
    ("im2col", lambda k, x: gb.ops.im2col(k, x, padding=1, is_2d=False), [a(6, 3, 3), a(2, 3, 9)]),
    ("map_custom", lambda x: gb.ops.map_custom(lambda d, s: s * 2, x), [a(3, 4)]),
    ("map_custom", lambda x, y: gb.ops.map_custom(lambda d, s, t: s * t, x, y), [a(3, 4), a(3, 4)]),
    ("map_custom", lambda x, y, z: gb.ops.map_custom(lambda d, s, t, u: s * t + u, x, y, z), [a(3, 4)] * 3),
    ("custom", lambda x: gb.ops.custom(lambda out, s: s.sum(0), x, shape=4), [a(3, 4)]),
    (
        "custom",
        lambda x, v: gb.ops.custom(lambda out, s, t: (s @ t, s), x, v, shape=[(3,), (3, 4)])[0],
        [a(3, 4), a(4)],
    ),
]
