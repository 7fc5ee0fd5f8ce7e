"""Every operation with sizes 0 and 1 in every position.

It runs on one thread and two, a simulated device, a scheduler of both, and a CUDA device if
available (GGML_CUDA_MODULE names the emulation), with evaluation callbacks, custom functions,
copies and comparisons of the graph.

    python tests/python/harness/harness_zeros.py --seconds 10 --seed 1

It changes the cases of op_cases.py and some more. One size becomes 0 or 1, everywhere or in one
place. All inputs get a leading axis of 0 or 1. Sizes become huge beside a 0. A graph that
builds must compute, or be refused with an error of the package, equally in all these ways, and all
values must be equal. Shapes must be NumPy's where NumPy has the function. Each array of a tensor,
for the caller, a callback or a custom function, must have the shape and the bytes of the tensor.
The harness reads all bytes, so that the address sanitizer sees them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ggml_backend as gb
import op_cases
from ggml_backend.devices._nodes import op_facts
from harness_scene import Wrong, report, supervise, watched

Array = np.ndarray[Any, Any]
Build = Callable[..., gb.Tensor]
f32, f16, i32 = np.float32, np.float16, np.int32


def ones(*shape: int, dtype: Any = f32) -> Array:
    return np.ones(shape, dtype)


MORE: list[tuple[str, Build, list[Array], Any]] = [
    ("+", lambda x, y: x + y, [ones(3, 4), ones(2, 3, 1)], np.add),
    ("*", lambda x, y: x * y, [ones(2, 1, 4), ones(3, 1)], np.multiply),
    ("-", lambda x: 1.0 - x, [ones(2, 5, 4)], lambda x: 1 - x),
    ("@", lambda x, y: x @ y, [ones(2, 3, 4), ones(2, 4, 5)], np.matmul),
    ("@", lambda x, y: x @ y.T, [ones(3, 4), ones(5, 4)], lambda x, y: x @ y.T),
    ("@", lambda x, y: x @ y, [ones(3, 4), ones(4)], np.matmul),
    ("[]", lambda x: gb.ops.cont(x[1:, :2]), [ones(3, 4)], lambda x: x[1:, :2]),
    ("[]", lambda x: gb.ops.cont(x[..., 0:0]), [ones(3, 4)], lambda x: x[..., 0:0]),
    ("[]", lambda x: gb.ops.cont(x[::2, None]), [ones(3, 4)], lambda x: x[::2, None]),
    ("T", lambda x: gb.ops.cont(x.T), [ones(3, 4)], lambda x: x.T),
    ("transpose", lambda x: gb.ops.cont(x.transpose()), [ones(2, 3, 4)], lambda x: x.transpose()),
    ("swapaxes", lambda x: gb.ops.cont(x.swapaxes(0, 2)), [ones(2, 3, 4)], lambda x: x.swapaxes(0, 2)),
    ("reshape", lambda x: gb.ops.relu(x.reshape(-1)), [ones(2, 3, 4)], lambda x: x.reshape(-1)),
    ("reshape", lambda x: gb.ops.relu(x.reshape(1, *x.shape)), [ones(2, 3, 4)], lambda x: x.reshape(1, *x.shape)),
    ("astype", lambda x: x.astype(gb.float16), [ones(2, 3, 4)], lambda x: x),
    ("in place", lambda x: gb.ops.relu(gb.ops.scale(x, 2.0), inplace=True), [ones(2, 3, 4)], lambda x: x),
    ("attention", lambda q, k,
     v: gb.ops.cont(
         gb.ops.permute_ggml(gb.ops.mul_mat(v, gb.ops.soft_max(gb.ops.mul_mat(k, q), scale=0.5)), 0, 2, 1, 3)),
     [ones(2, 3, 8), ones(2, 5, 8), ones(2, 8, 5)], None),
    ("soft_max", lambda x, m: gb.ops.soft_max(x, m, 0.5, max_bias=8.0), [ones(2, 3, 4), ones(3, 4)], None),
    ("layer", lambda x, w, b: gb.ops.gelu(gb.ops.norm(x @ w.T + b)) + x, [ones(3, 4), ones(4, 4), ones(4)], None),
    ("conv", lambda k, x: gb.ops.relu(gb.ops.conv_2d(k, x)), [ones(4, 3, 3, 3, dtype=f16), ones(2, 3, 20, 20)], None),
    ("rows of halves", gb.ops.get_rows, [ones(6, 8, dtype=f16), np.array([0, 2, 1], i32)], lambda x,
     i: x[np.zeros_like(i)] if len(x) else None),
]  # fmt: skip


def unchanged(x: Array, *others: Array) -> Array:
    return x


# The shape that NumPy gives to functions of the package.
SHAPES: dict[str, Callable[..., Any]] = {
    **{name: unchanged for name, facts in op_facts().items() if facts.elementwise and len(facts.in_place) == 1},
    **dict.fromkeys(("unary", "clamp", "argsort", "dup"), unchanged),
    "sum": np.sum,
    "sum_rows": lambda x: x.sum(-1, keepdims=True),
    "mean": lambda x: x.sum(-1, keepdims=True),
    "mul_mat": lambda w, x: x @ np.swapaxes(w, -1, -2) if x.ndim > 1 or w.ndim < 3 else None,
}
CASES: list[tuple[str, Build, list[Array], Any]] = [
    *(
        (name, build, arrays, SHAPES.get(name))
        for name, build, arrays in op_cases.CASES
        if name not in ("empty_like", "map_custom", "custom")
    ),
    *MORE,
]
SHAPES_KNOWN = {*SHAPES, "+", "*", "-", "@", "[]", "T", "swapaxes", "reshape", "astype", "in place"}
LARGEST = 1 << 23  # bytes of a tensor; each is written many times, and simulated devices have 64 MiB
LOOSE = {"sum", "cross_entropy_loss", "cross_entropy_loss_back", "mean"}


def changed(arrays: Sequence[Array], chooser: random.Random) -> list[tuple[int, ...]]:
    """Shapes with sizes of 0 or 1."""
    shapes = [list(a.shape) for a in arrays]
    for _ in range(chooser.choice([1, 1, 1, 2, 2, 3])):
        new = chooser.choice([0, 0, 1])
        how = chooser.random()
        sizes = sorted({n for s in shapes for n in s})
        if how < 0.55 and sizes:
            old = chooser.choice(sizes)
            shapes = [[new if n == old else n for n in s] for s in shapes]
        elif how < 0.8:
            shape = chooser.choice(shapes)
            if shape:
                shape[chooser.randrange(len(shape))] = new
        elif how < 0.95:
            some = [s for s in shapes if chooser.random() < 0.8]
            for shape in some:
                if len(shape) < 4:
                    shape.insert(0, new)
        else:
            shape = chooser.choice(shapes)
            if len(shape) > 1:
                i = chooser.randrange(len(shape))
                shape[i], shape[i - 1] = 0, chooser.choice([2**20, 2**31, 2**33, 2**40, 2**62])
    if all(len(s) == 0 or 0 not in s for s in shapes) and chooser.random() < 0.8:
        return changed(arrays, chooser)
    return [tuple(s) for s in shapes]


def whole(tensor: gb.Tensor, array: Array, what: str) -> None:
    """Checks that an array has the shape, with all axes, and the bytes of its tensor."""
    if array.shape != tensor.shape and not tensor.dtype.is_quantized:
        raise Wrong(f"{what}: an array of shape {array.shape} for {tensor!r}")
    if array.nbytes > tensor.nbytes:
        raise Wrong(f"{what}: an array of {array.nbytes} bytes for {tensor!r} of {tensor.nbytes} bytes")
    if tensor.size != math.prod(tensor.shape):
        raise Wrong(f"{what}: size {tensor.size} of {tensor!r}")
    array.tobytes()


class Trial:
    """One graph: the operation, with or without custom functions around it."""

    def __init__(self, build: Build, shapes: Sequence[tuple[int, ...]], arrays: Sequence[Array], custom: str) -> None:
        self.ctx = gb.Context()
        self.shapes = shapes
        self.errors: list[Wrong] = []
        self.inputs = [
            self.ctx.tensor(s, a.dtype, name=f"input {i}") for i, (s, a) in enumerate(zip(shapes, arrays, strict=True))
        ]
        given = [self.custom(t) if custom == "before" and t.dtype == gb.float32 else t for t in self.inputs]
        self.node = build(*given)
        self.result = self.custom(self.node) if custom == "after" else self.node
        if custom == "after" and self.node.dtype == gb.float32:
            self.result = gb.ops.relu(self.result)
        self.graph = self.ctx.graph(self.result)

    def custom(self, tensor: gb.Tensor) -> gb.Tensor:
        shape, nbytes = tensor.shape, tensor.size * tensor.dtype.itemsize

        def function(dst: Array, a: Array) -> None:
            for array in (dst, a):
                if array.shape != shape or array.nbytes != nbytes:
                    self.errors.append(Wrong(f"a custom function sees {array.shape} for a tensor of shape {shape}"))
                    return
            np.copyto(dst, a)

        return gb.ops.map_custom(function, tensor)

    def set(self, values: Sequence[Array]) -> None:
        for tensor, value in zip(self.inputs, values, strict=True):
            if tensor.is_placed:  # without memory only the shape is checked
                tensor.set(value if value.shape == tensor.shape else value.item())

    def see(self, tensor: gb.Tensor) -> bool:
        try:
            whole(tensor, tensor.numpy(), "an evaluation callback")
        except Wrong as error:
            self.errors.append(error)
        return True

    def done(self, what: str) -> Array:
        if self.errors:
            raise self.errors[0]
        array = self.result.numpy(copy=True)
        whole(self.result, array, what)
        return array


class Machines:
    def __init__(self) -> None:
        self.one, self.two = gb.Backend("CPU", n_threads=1), gb.Backend("CPU", n_threads=2)
        self.sim = gb.Backend("SIM", mem="64M")
        self.some = gb.Backend("SIM", mem="64M", ops=["mul_mat", "add", "im2col", "relu"])
        self.both = gb.Scheduler([self.sim, self.one])
        self.cuda = gb.Backend("CUDA0") if "CUDA0" in gb.backends() else None

    def graph(self, trial: Trial, values: Sequence[Array], backend: gb.Backend) -> Array:
        with contextlib.suppress(gb.errors.StateError):  # all have memory
            trial.ctx.allocate(backend)
        trial.set(values)
        trial.graph.compute(backend)
        array = trial.done("Graph.compute")
        for node in trial.graph.nodes:  # inner nodes also have their own memory
            whole(node, node.numpy(), "Tensor.numpy")
        return array

    def compared(self, trial: Trial, values: Sequence[Array]) -> Array:
        array = self.graph(trial, values, self.one)

        def see(index: int, a: Array, b: Array) -> bool:
            node = trial.graph.nodes[index]
            whole(node, a, "Graph.compare")
            whole(node, b, "Graph.compare")
            return True

        trial.graph.compare(self.one, self.two, see)
        copied = trial.graph.copy(self.two)
        for node, copy in zip(trial.graph.nodes, copied.nodes, strict=True):
            if node.shape != copy.shape:
                raise Wrong(f"Graph.copy: {copy!r} of {node!r}")
            whole(copy, copy.numpy(), "Graph.copy")
        return array

    def scheduled(self, trial: Trial, values: Sequence[Array], scheduler: gb.Scheduler, callback: bool) -> Array:
        scheduler.allocate(trial.graph)
        trial.set(values)
        scheduler.compute(trial.graph, trial.see if callback else None)
        return trial.done("Scheduler.compute")

    def asynchronous(self, trial: Trial, values: Sequence[Array]) -> Array:
        self.both.allocate(trial.graph)
        trial.set(values)
        array = self.both.compute_async(trial.graph, [trial.result]).results()[0]
        whole(trial.result, array, "results")
        return trial.done("compute_async")

    def all(self) -> dict[str, Callable[[Trial, Sequence[Array]], Array]]:
        cuda = self.cuda
        there: dict[str, Callable[[Trial, Sequence[Array]], Array]] = {} if cuda is None else {
            "CUDA": lambda t, v: self.graph(t, v, cuda),
            "CUDA and CPU": lambda t, v: self.scheduled(t, v, gb.Scheduler([cuda, self.two]), True),
        }  # fmt: skip
        return {
            "one thread": lambda t, v: self.graph(t, v, self.one),
            "two threads": lambda t, v: self.graph(t, v, self.two),
            "SIM": lambda t, v: self.graph(t, v, self.sim),
            "compared": self.compared,
            "SIM and CPU": lambda t, v: self.scheduled(t, v, self.both, False),
            "SIM and CPU with a callback": lambda t, v: self.scheduled(t, v, self.both, True),
            "some of SIM": lambda t, v: self.scheduled(t, v, gb.Scheduler([self.some, self.two]), True),
            "CPU with a callback": lambda t, v: self.scheduled(t, v, gb.Scheduler([self.two]), True),
            "asynchronous": self.asynchronous,
            **there,
        }


def values_of(arrays: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    found = []
    for array, shape in zip(arrays, shapes, strict=True):
        if math.prod(n for n in shape if n) > 1 << 22:
            found.append(np.empty(0, array.dtype))  # huge sizes beside a 0: set as a number
        else:
            value = np.resize(array, shape).astype(array.dtype)
            found.append(np.zeros(shape, array.dtype) if array.dtype.kind == "i" else value)
    return [v if v.shape == s else np.zeros((), v.dtype) for v, s in zip(found, shapes, strict=True)]


def known_shape(
    name: str, reference: Any, values: Sequence[Array], shapes: Sequence[tuple[int, ...]]
) -> tuple[int, ...] | None:
    if reference is None or name not in SHAPES_KNOWN or any(v.shape != s for v, s in zip(values, shapes, strict=True)):
        return None
    try:
        with np.errstate(all="ignore"):
            found = reference(*values)
            return None if found is None else np.shape(found)
    except (ValueError, IndexError, ZeroDivisionError):
        return None


def trial(
    machines: Machines, case: tuple[str, Build, list[Array], Any], chooser: random.Random, counts: Counter[str]
) -> None:
    name, build, arrays, reference = case
    shapes = changed(arrays, chooser)
    values = values_of(arrays, shapes)
    custom = chooser.choice(["", "", "before", "after"])
    print(f"at: {name}{' with a custom function' if custom else ''}", flush=True)
    try:
        first = Trial(build, shapes, arrays, custom)
    except gb.GgmlError:
        counts["refused"] += 1
        return
    # for example one value for each of 2^31 empty rows
    if any(t.nbytes > LARGEST for t in (*first.inputs, *first.graph.nodes)):
        counts["too large"] += 1
        return
    counts["graphs"] += 1
    shape = known_shape(name, reference, values, shapes)
    if shape is not None and first.node.shape != shape:
        raise Wrong(f"{shapes}: the result has the shape {first.node.shape}, NumPy's has {shape}")
    counts["shapes known"] += shape is not None
    if any(math.prod(node.shape) > 1 << 22 for node in first.graph.nodes):  # huge sizes beside a 0 may lose the 0
        counts["too large to compute"] += 1
        return
    results: dict[str, Array | None] = {}
    try:
        for where, compute in machines.all().items():
            if custom and where in ("SIM", "CUDA"):
                continue
            mine = Trial(build, shapes, arrays, custom)
            try:
                with np.errstate(all="ignore"):
                    results[where] = compute(mine, values)
                counts["runs"] += 1
            except gb.errors.UnsupportedError:
                continue
            except gb.GgmlError as error:
                if "NumPy cannot show" in str(error):  # some kinds of computation read every node
                    counts["not shown by NumPy"] += 1
                    continue
                results[where] = None
                counts["refused at run time"] += 1
                if isinstance(error, gb.errors.StateError):
                    raise Wrong(f"{where}: {error}") from error
    except BaseException:
        print(f"shapes {shapes}, custom {custom!r}", flush=True)
        raise
    if not results:
        return
    base, expected = next(iter(results.items()))
    for where, got in results.items():
        if (got is None) != (expected is None):
            raise Wrong(f"{shapes}, custom {custom!r}: refused on only one of {base}, {where}")
        if (
            got is not None
            and expected is not None
            and not same(
                got, expected, 1e-2 if "CUDA" in where else 1e-5 if name in LOOSE or expected.dtype == f32 else 1e-2
            )
        ):
            raise Wrong(
                f"{shapes}, custom {custom!r}: {base} gives {expected.reshape(-1)[:4]}, {where} gives"
                f" {got.reshape(-1)[:4]}"
            )


def same(a: Array, b: Array, rtol: float) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind == "f":
        return np.allclose(a, b, rtol=rtol, atol=1e-6, equal_nan=True)
    return a.tobytes() == b.tobytes()


def zeros(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, counts = random.Random(seed), Counter[str]()
    end, machines = time.monotonic() + seconds, Machines()
    n = 0
    while time.monotonic() < end:
        order = list(CASES)
        chooser.shuffle(order)
        for case in order:
            if time.monotonic() > end:
                break
            with watched():
                trial(machines, case, chooser, counts)
            n += 1
            if n % 50 == 0:
                gc.collect()
                report(counts)
    return counts


if __name__ == "__main__":
    sys.exit(supervise(__file__, zeros))
