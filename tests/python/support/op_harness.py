"""Compares operations with NumPy: `check(build, inputs, reference)`.

An input is an array and a layout. The array has values that are exact in its dtype. The reference gets them as float64.
A layout is "whole", or a view of a larger tensor. The other elements of that tensor are poison (NaN, or an integer far
out of range), which reveals reads and writes outside the view.

`check` builds the graph once. It computes the graph with one and three threads, at every level of
this processor, on the simulated device, on ARRAY, and on a CUDA device if available. Every result
must be within the tolerance of the reference.

Tolerance. u is half the distance between 1 and the next number (2^-24 float32, 2^-11 float16, 2^-8
bfloat16). Operations compute in float32, so an element may differ by (terms + n) u32 |m|. Here `n`
is the length of its sum, `m` the sum of the magnitudes of its terms (`magnitude`, by default the
result), and `terms` the number of roundings other than those of additions. The rounding to the
dtype of the result is added, and `rounded` u_dtype |m| if an operation may round operands to the
dtype of another. This is the textbook bound of a sum in any order (Higham, Accuracy and Stability,
section 4.2). It is not fitted to observed results.

Random values depend only on the id of the test, so a failure is reproducible, alone or with other
tests.
"""

from __future__ import annotations

import functools
import math
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ggml_backend as gb

FLOATS = ("float32", "float16", "bfloat16")
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
STEP = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}  # between neighbouring denormals
LARGEST = {
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max),
}
NUMPY: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16}

LAYOUTS = ("whole", "padded", "offset", "stepped", "permuted")  # rows of adjacent elements
ALL_LAYOUTS = (*LAYOUTS, "transposed")

SHAPES = [(1,), (7,), (1, 1, 1, 1), (5, 3), (1, 33), (3, 1, 17), (2, 3, 4, 5), (2, 1, 3, 64), (3, 2, 129)]
EMPTY = [(0,), (3, 0), (0, 5), (2, 0, 3)]


def numpy_dtype(dtype: str) -> Any:
    return np.dtype(NUMPY.get(dtype, dtype))


def random() -> np.random.Generator:
    """A generator seeded by the running test: its name and the name of its file, not the folder."""
    path, separator, test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0].partition("::")
    name = f"tests/python/{path.rpartition('/')[2]}{separator}{test}"
    return np.random.default_rng(zlib.crc32(name.encode()))


# --------------------------------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True)
class In:
    """An input of an operation. ``values`` are of the NumPy dtype of ``dtype``."""

    values: np.ndarray[Any, Any]
    layout: str = "whole"

    @property
    def dtype(self) -> str:
        return self.values.dtype.name

    @property
    def exact(self) -> np.ndarray[Any, Any]:
        """The values for the reference."""
        return self.values.astype(np.int64 if self.values.dtype.kind == "i" else np.float64)

    def laid(self, layout: str) -> In:
        return replace(self, layout=layout)

    def root(self) -> tuple[np.ndarray[Any, Any], Callable[[Any], Any]]:
        """The array with the whole memory, and the cut that makes the input from it or from a
        tensor."""
        shape, cut = _plan(self.values.shape, self.layout)
        poison: Any = math.nan if self.values.dtype.kind != "i" else np.iinfo(self.values.dtype).min + 7
        memory = np.full(shape, poison, self.values.dtype)
        cut(memory)[...] = self.values
        return memory, cut


def _plan(shape: tuple[int, ...], layout: str) -> tuple[tuple[int, ...], Callable[[Any], Any]]:
    n = len(shape)
    if layout == "padded":
        return (*shape[:-1], shape[-1] + 3), lambda t: t[..., : shape[-1]]
    if layout == "offset":
        return (shape[0] + 2, *shape[1:]), lambda t: t[1 : 1 + shape[0]]
    if layout == "stepped":
        steps = (*[slice(0, 2 * s, 2) for s in shape[:-1]], slice(1, None))
        return (*[2 * s for s in shape[:-1]], shape[-1] + 1), lambda t: t[steps]
    if layout == "permuted" and n > 2:
        order = (*range(n - 1)[::-1], n - 1)
        return tuple(shape[i] for i in order), lambda t: t.transpose(order)
    if layout == "transposed" and n > 1:
        return (*shape[:-2], shape[-1], shape[-2]), lambda t: t.swapaxes(-1, -2)
    return shape, lambda t: t


def is_view(layout: str, shape: Sequence[int]) -> bool:
    """True if the layout differs from "whole" for this shape."""
    return len(shape) > {"permuted": 2, "transposed": 1}.get(layout, 0) and layout != "whole"


def real(*shape: int, dtype: str = "float32", low: float = -2.0, high: float = 2.0, layout: str = "whole") -> In:
    """Uniform random numbers. Each call in a test gives new ones."""
    return In((_next().random(shape) * (high - low) + low).astype(numpy_dtype(dtype)), layout)


def whole(*shape: int, low: int, high: int, dtype: str = "int32", layout: str = "whole") -> In:
    """Random integers, ``low <= i < high``."""
    return In(_next().integers(low, high, shape).astype(dtype), layout)


def array(values: Any, dtype: str = "float32", layout: str = "whole") -> In:
    return In(np.asarray(values).astype(numpy_dtype(dtype)), layout)


_running: tuple[str, np.random.Generator] = ("", np.random.default_rng())


def reseed(seed: int) -> None:
    """Uses other random numbers from here to the end of the test."""
    global _running
    _running = (os.environ.get("PYTEST_CURRENT_TEST", ""), np.random.default_rng(seed))


def _next() -> np.random.Generator:
    global _running
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if _running[0] != test:
        _running = (test, random())
    return _running[1]


# ------------------------------------------------------------------------------------------------------------- machines


@functools.cache
def cpus() -> tuple[tuple[str, gb.Backend], ...]:
    """One and three threads at the best level, one thread at each other level."""
    usable = [name for name, ok in gb.backend.cpu_levels().items() if ok]
    best = gb.Backend("CPU", n_threads=1)
    found = [("1 thread", best), ("3 threads", gb.Backend("CPU", n_threads=3))]
    return (*found, *((f"level {n}", gb.Backend("CPU", n_threads=1, level=n)) for n in usable if n != best.level))


@functools.cache
def sim() -> gb.Backend:
    return gb.Backend("SIM", mem="64M")


OTHER = os.environ.get("GB_TEST_DEVICE", "CUDA0")
"""The name of an extra device, as for ``gb.Backend``. Default: the first CUDA device, or the emulated one of the
module that GGML_CUDA_MODULE names."""


@functools.cache
def others() -> dict[str, gb.Backend]:
    """ARRAY with NumPy, and the extra device, as far as they are available. They compute what they support."""
    found = gb.backends()
    absent = {*found.missing, *({"CUDA0"} - set(found))}
    return {name: gb.Backend(name) for name in ("ARRAY", OTHER) if name not in absent}


# ------------------------------------------------------------------------------------------------------------- coverage

COVERED: set[str] = set()
"""The operations, as in ``Tensor.op``, that tests declare to compare with NumPy."""

REFUSED = "refused"
_seen: set[str] = set()


def covers(*ops: str) -> Callable[[Any], Any]:
    """Lists the operators that a test compares with NumPy. The test fails if it compared none of them."""
    COVERED.update(ops)

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        def checked(*args: Any, **kwargs: Any) -> None:
            _seen.clear()
            test(*args, **kwargs)
            assert _seen & {*ops, REFUSED}, f"no graph of this test had any of {ops}, but {sorted(_seen)}"

        return checked

    return decorate


# ------------------------------------------------------------------------------------------------------------- checking


@dataclass(frozen=True)
class Tolerance:
    """A tolerance, as the head of this file explains. ``exact``: no difference allowed"""

    terms: float = 2.0
    n: int = 0
    rounded: float = 0.0
    rounded_to: str = "float32"
    exact: bool = False

    def allowed(self, want: np.ndarray[Any, Any], magnitude: np.ndarray[Any, Any], dtype: str) -> Any:
        if self.exact or dtype not in UNIT:
            return np.zeros_like(want)
        computed = ((self.terms + self.n) * UNIT["float32"] + self.rounded * UNIT[self.rounded_to]) * magnitude
        stored = UNIT[dtype] * (np.abs(want) + computed) if dtype != "float32" else 0.0
        return computed + stored + STEP[dtype] + self.terms * STEP["float32"]


EXACT = Tolerance(exact=True)


class Built:
    """A graph of one operation whose tensors have memory on one backend."""

    def __init__(self, build: Callable[..., gb.Tensor], inputs: Sequence[In], backend: gb.Backend) -> None:
        self.ctx = gb.Context()
        self.inputs = inputs
        self.memory = []
        self.roots = []
        views = []
        for given in inputs:
            memory, cut = given.root()
            root = self.ctx.tensor(memory.shape, memory.dtype)
            self.memory.append(memory)
            self.roots.append(root)
            views.append(cut(root))
        self.node = build(*views)
        self.views = views
        self.graph = self.ctx.graph(self.node)
        _seen.update(t.op for t in self.graph.nodes)
        self.buffer = self.ctx.allocate(backend)

    def compute(self, backend: gb.Backend) -> np.ndarray[Any, Any]:
        self.buffer.clear(0xFF)  # elements that the backend does not write are NaN, not results of another backend
        for root, memory in zip(self.roots, self.memory, strict=True):
            root.set(memory)
        assert self.graph.compute(backend)
        return read(self.node)

    def untouched(self, but: Sequence[int] = ()) -> None:
        """The memory of the inputs is unchanged. Inputs in ``but`` may change inside their view."""
        for i, (root, memory, given) in enumerate(zip(self.roots, self.memory, self.inputs, strict=True)):
            now = np.ascontiguousarray(read(root))
            if i in but:
                _, cut = given.root()
                cut(now)[...] = given.values
            assert now.tobytes() == memory.tobytes(), f"input {i} ({given.layout}) was written to"


def read(tensor: gb.Tensor) -> np.ndarray[Any, Any]:
    if tensor.dtype.name == "bfloat16":
        return tensor.numpy(ml_dtypes.bfloat16).copy()
    return tensor.numpy(copy=True)


def check(
    build: Callable[..., gb.Tensor],
    inputs: Sequence[In],
    reference: Callable[..., Any],
    tolerance: Tolerance = Tolerance(),
    *,
    magnitude: Callable[..., Any] | None = None,
    dtype: str | None = None,
    writes: Sequence[int] = (),
    on_sim: bool = True,
    on_cuda: bool = True,
) -> gb.Tensor:
    """Fails unless ``build(*tensors)`` computes ``reference(*arrays)`` everywhere. Returns the node.

    magnitude: like the reference, the sum of the magnitudes of the terms of each element
    dtype: required dtype of the result; default: that of the first input
    writes: the inputs that may be overwritten (in-place operations)
    on_sim, on_cuda: also compute on the simulated device; on the extra device (:data:`OTHER`) if it
        supports all nodes
    """
    with np.errstate(all="ignore"):
        want = np.asarray(reference(*(i.exact for i in inputs)))
        size = (
            np.abs(want)
            if magnitude is None
            else np.broadcast_to(magnitude(*(np.abs(i.exact) for i in inputs)), want.shape)
        )
    built = Built(build, inputs, cpus()[0][1])
    node = built.node
    assert node.dtype.name == (dtype or inputs[0].dtype)
    assert node.shape == want.shape, f"the shape is {node.shape}, not {want.shape}"
    for label, backend in cpus():
        compare(built.compute(backend), want, size, tolerance, label)
        built.untouched(writes)
    if on_sim:
        there = Built(build, inputs, sim())
        compare(there.compute(sim()), want, size, tolerance, "SIM")
    for label, device in others().items():
        if (label == OTHER and not on_cuda) or not all(device.supports(t) for t in built.graph.nodes):
            continue
        there = Built(build, inputs, device)
        allowed = on_tensor_cores(there, tolerance) if label.startswith("CUDA") else tolerance
        compare(there.compute(device), want, size, allowed, label)
        there.untouched(writes)
    return node


def on_tensor_cores(built: Built, tolerance: Tolerance) -> Tolerance:
    """The tolerance on CUDA. CUDA rounds the other factor of 16-bit products, and the weights of
    attention, to the 16-bit dtype (docs/CUDA.md)."""
    halves = [t.dtype.name for t in built.roots if t.dtype.name in ("float16", "bfloat16")]
    if not halves or not {"MUL_MAT", "MUL_MAT_ID", "MUL_MAT_EXPERTS", "FLASH_ATTN"} & {t.op for t in built.graph.nodes}:
        return tolerance
    return replace(tolerance, rounded=tolerance.rounded + 2, rounded_to=halves[0])


def compare(got: Any, want: Any, magnitude: Any, tolerance: Tolerance, label: str) -> None:
    dtype = got.dtype.name
    assert got.shape == want.shape, f"{label}: the shape is {got.shape}, not {want.shape}"
    if dtype not in UNIT:
        np.testing.assert_array_equal(got, want, err_msg=label)
        return
    got = got.astype(np.float64)
    with np.errstate(all="ignore"):
        allowed = tolerance.allowed(want, magnitude, dtype)
        allowed = np.where(np.isnan(allowed), 0.0, allowed)
        good = (got == want) | (np.isnan(got) & np.isnan(want))
        good |= np.isfinite(want) & np.isfinite(got) & (np.abs(got - want) <= allowed)
        # above the largest number the result must be infinite; just below it, rounding may make it
        # infinite
        beyond = np.abs(want) * (1 + 2 * UNIT[dtype]) + allowed >= LARGEST[dtype]
        good |= beyond & np.isfinite(want) & np.isinf(got) & (np.sign(got) == np.sign(want))
    if not good.all():
        i = tuple(int(v) for v in np.argwhere(~good)[0])
        raise AssertionError(
            f"{label}: {np.count_nonzero(~good)} of {good.size} elements differ; the first at {i}: {got[i]!r}, not"
            f" {want[i]!r} (difference {abs(got[i] - want[i]):.3g}, allowed"
            f" {np.broadcast_to(allowed, want.shape)[i]:.3g})"
        )


def refuses(
    build: Callable[..., gb.Tensor],
    inputs: Sequence[In],
    error: Any = (gb.errors.UnsupportedError, gb.errors.InvalidArgumentError),
) -> None:
    """Checks that building or computing the operation raises a clear error."""
    with pytest.raises(error) as caught:
        Built(build, inputs, cpus()[0][1]).compute(cpus()[0][1])
    assert str(caught.value)
    _seen.add(REFUSED)


def both_ways(
    build: Callable[..., gb.Tensor],
    inputs: Sequence[In],
    reference: Callable[..., Any],
    tolerance: Tolerance,
    **options: Any,
) -> None:
    """Checks ``inplace=False`` and ``inplace=True``. The latter must write to the memory of the
    first input."""
    check(functools.partial(build, inplace=False), inputs, reference, tolerance, **options)
    node = check(functools.partial(build, inplace=True), inputs, reference, tolerance, writes=(0,), **options)
    assert node.view_of is not None
    built = Built(functools.partial(build, inplace=True), inputs, cpus()[0][1])
    result = built.compute(cpus()[0][1])
    np.testing.assert_array_equal(result.view(np.uint8), read(built.views[0]).copy().view(np.uint8))
