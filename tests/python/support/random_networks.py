"""Random networks of operators that have a derivative, as graphs and as functions of NumPy or PyTorch.

A network is a list of layers. A layer reads one or two earlier values, which are matrices, and may have weights. Its
reference is written with functions that NumPy and PyTorch share, so ``m`` is one of the two modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import ggml_backend as gb
from ggml_backend import ops

Array = npt.NDArray[np.float64]
Shape = tuple[int, int]
EPS = 1e-5


@dataclass(frozen=True)
class Layer:
    """``ours`` and ``theirs`` get the inputs, then the weights."""

    name: str
    n_inputs: int
    weights: Sequence[Shape | tuple[int, ...]]
    ours: Callable[..., gb.Tensor]
    theirs: Callable[..., Any]  # its first argument is the module


def _sigmoid(m: Any, x: Any) -> Any:
    return 1 / (1 + m.exp(-x))


def _softmax(m: Any, x: Any) -> Any:
    e = m.exp(x)
    return e / m.sum(e, axis=-1, keepdims=True)


def _normed(m: Any, x: Any) -> Any:
    return x / m.sqrt(m.mean(x * x, axis=-1, keepdims=True) + EPS)


def _gelu(m: Any, x: Any) -> Any:
    return x * _sigmoid(m, 1.5957691216057308 * (x + 0.044715 * x * x * x))


ELEMENTS: dict[str, tuple[Callable[..., gb.Tensor], Callable[..., Any]]] = {
    "tanh": (ops.tanh, lambda m, x: m.tanh(x)),
    "sigmoid": (ops.sigmoid, _sigmoid),
    "silu": (ops.silu, lambda m, x: x * _sigmoid(m, x)),
    "gelu": (ops.gelu, _gelu),
    "sin": (ops.sin, lambda m, x: m.sin(x)),
    "cos": (ops.cos, lambda m, x: m.cos(x)),
    "softplus": (ops.softplus, lambda m, x: m.log(1 + m.exp(x))),
    "exp of tanh": (lambda x: ops.exp(ops.tanh(x)), lambda m, x: m.exp(m.tanh(x))),
    "abs": (ops.abs, lambda m, x: m.abs(x)),
    "relu": (ops.relu, lambda m, x: m.where(x > 0, x, 0 * x)),
    "log": (lambda x: ops.log(ops.sqr(x) + 1.0), lambda m, x: m.log(x * x + 1)),
    "scale": (lambda x: x * -0.75, lambda m, x: x * -0.75),
    "contiguous": (lambda x: x.T.contiguous().T.contiguous(), lambda m, x: x),
    "softmax": (ops.softmax, _softmax),
    "rms_norm": (lambda x: ops.rms_norm(x, EPS), _normed),
    "norm": (lambda x: ops.norm(x, EPS), lambda m, x: _normed(m, x - m.mean(x, axis=-1, keepdims=True))),
    "mean": (lambda x: x - ops.mean(x, axis=-1, keepdims=True), lambda m, x: x - m.mean(x, axis=-1, keepdims=True)),
    "cumsum": (lambda x: ops.cumsum(x) * 0.25, lambda m, x: m.cumsum(x, axis=-1) * 0.25),
    "rows": (
        lambda x: ops.get_rows(x, x.context.constant(np.arange(x.shape[0], dtype=np.int32) // 2)),
        lambda m, x: x[[i // 2 for i in range(len(x))]],
    ),
    "halves": (
        lambda x: x[:, : x.shape[1] // 2] @ x[:, x.shape[1] // 2 :].T @ x * 0.1,
        lambda m, x: x[:, : x.shape[1] // 2] @ x[:, x.shape[1] // 2 :].T @ x * 0.1,
    ),
}
PAIRS: dict[str, tuple[Callable[..., gb.Tensor], Callable[..., Any]]] = {
    "add": (lambda a, b: a + b, lambda m, a, b: a + b),
    "sub": (lambda a, b: a - b, lambda m, a, b: a - b),
    "mul": (lambda a, b: a * ops.tanh(b), lambda m, a, b: a * m.tanh(b)),
    "div": (lambda a, b: a / (ops.sqr(b) + 1.0), lambda m, a, b: a / (b * b + 1)),
    "swiglu": (lambda a, b: ops.glu(a, b, op="swiglu"), lambda m, a, b: a * _sigmoid(m, a) * b),
    "geglu": (lambda a, b: ops.glu(a, b, op="geglu"), lambda m, a, b: _gelu(m, a) * b),
    "where": (
        lambda a, b: ops.where(ops.greater(a, b), a, b * 0.5), lambda m, a, b: m.where(a > b, a, b * 0.5),
    ),
    "attention": (
        lambda a, b: ops.softmax(ops.tanh(a) @ ops.tanh(b).T) @ b,
        lambda m, a, b: _softmax(m, m.tanh(a) @ m.tanh(b).T) @ b,
    ),
}  # fmt: skip


def _experts(rng: np.random.Generator, rows: int, width: int) -> Layer:
    ids = rng.integers(0, 3, (rows, 2)).astype(np.int32)

    def ours(x: gb.Tensor, w: gb.Tensor) -> gb.Tensor:
        chosen = x.context.constant(ids)
        y = ops.mul_mat_experts(w, x.reshape(rows, 1, width), chosen, prec="f32")
        return y[:, 0].contiguous() + y[:, 1].contiguous()

    def theirs(m: Any, x: Any, w: Any) -> Any:
        return sum(m.stack([w[e] @ row for e, row in zip(ids[:, k].tolist(), x, strict=True)]) for k in range(2))

    return Layer("experts", 1, [(3, width, width)], ours, theirs)


def _layer(rng: np.random.Generator, rows: int, width: int) -> Layer:
    kind = rng.integers(10)
    if kind < 4:
        name = rng.choice([*ELEMENTS])
        return Layer(str(name), 1, [], *ELEMENTS[name])
    if kind < 7:
        name = rng.choice([*PAIRS])
        return Layer(str(name), 2, [], *PAIRS[name])
    if kind < 8:
        return _experts(rng, rows, width)
    if kind < 9:
        return Layer("row", 1, [(1, width)], lambda x, w: x * w, lambda m, x, w: x * w)
    return Layer("product", 1, [(width, width)], lambda x, w: x @ w.T, lambda m, x, w: x @ w.T)


@dataclass(frozen=True)
class Network:
    """``arrays`` has the input, then all weights. ``reads`` has the numbers of the values that each layer reads."""

    layers: list[Layer]
    reads: list[list[int]]
    arrays: list[Array]
    factors: Array

    def _run(self, parts: Sequence[Any], call: Callable[..., Any]) -> Any:
        values, rest = [parts[0]], iter(parts[1:])
        for layer, reads in zip(self.layers, self.reads, strict=True):
            weights = [next(rest) for _ in layer.weights]
            values.append(call(layer, [values[i] for i in reads], weights))
        return values[-1] + values[len(values) // 2]

    def build(self, tensors: Sequence[gb.Tensor]) -> gb.Tensor:
        """The loss as a node."""
        y = self._run(tensors, lambda layer, inputs, weights: layer.ours(*inputs, *weights))
        return ops.sum(y * y.context.constant(self.factors.astype(np.float32)))

    def loss(self, m: Any, parts: Sequence[Any], factors: Any) -> Any:
        """The loss with NumPy or PyTorch."""
        y = self._run(parts, lambda layer, inputs, weights: layer.theirs(m, *inputs, *weights))
        return m.sum(y * factors)

    def __str__(self) -> str:
        return ", ".join(f"{layer.name} of {reads}" for layer, reads in zip(self.layers, self.reads, strict=True))


def network(seed: int) -> Network:
    rng = np.random.default_rng(seed)
    rows, width = int(rng.integers(1, 8)), 2 * int(rng.integers(2, 7))
    layers, reads = [], []
    for i in range(int(rng.integers(4, 13))):
        layer = _layer(rng, rows, width)
        layers.append(layer)
        reads.append([i, *map(int, rng.integers(0, i + 1, layer.n_inputs - 1))])  # the last value, and any other one
    shapes = [(rows, width), *(shape for layer in layers for shape in layer.weights)]
    arrays = [rng.standard_normal(shape) * (1 if i == 0 else 0.7) for i, shape in enumerate(shapes)]
    return Network(layers, reads, arrays, rng.standard_normal((rows, width)))


def gradients(
    net: Network, backends: Sequence[gb.Backend], place: Callable[[gb.Scheduler, gb.Graph], None] | None = None
) -> list[npt.NDArray[np.float32]]:
    """The gradients of the loss for all arrays. ``place`` may assign nodes to backends."""
    with gb.Context() as ctx:
        tensors = [ctx.tensor(x.shape, name=f"x{i}") for i, x in enumerate(net.arrays)]
        loss = net.build(tensors)
        found = gb.grad(loss, tensors)
        graph, sched = ctx.graph(loss, *found), gb.Scheduler(backends)
        if place is not None:
            place(sched, graph)
        sched.allocate(graph)
        for t, x in zip(tensors, net.arrays, strict=True):
            t.set(x.astype(np.float32))
        sched.compute(graph)
        return [t.numpy(copy=True) for t in found]
