"""Recurrent layers, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UnsupportedError
from ..network import Ref
from ..onnx_values import Attributes, Given, Known, numbers
from ..sizes import Size
from . import Inputs, at, binary, filled, known, operator, unary, viewed

if TYPE_CHECKING:
    from ..onnx import Reader

_MOST_STEPS = 1024  # of a recurrent layer; the graph has the nodes of every step


@operator("LSTM")
def lstm(r: Reader, i: Inputs, a: Attributes) -> Any:
    """The result of the layer, the last state, and the last cell."""
    if at(i, 7) is not None or a.get("input_forget"):
        raise UnsupportedError("LSTM with peepholes or input_forget")
    return _layer(r, i, a, _Layer("LSTM", ["Sigmoid", "Tanh", "Tanh"], 2, _lstm_step, True))


@operator("GRU")
def gru(r: Reader, i: Inputs, a: Attributes) -> Any:
    """The result of the layer, and the last state."""
    step = _gru_step_before if a.get("linear_before_reset") else _gru_step
    return _layer(r, i, a, _Layer("GRU", ["Sigmoid", "Tanh"], 1, step, False))


@dataclass
class _Weights:
    """Of one direction. w, u: (gates * hidden, n), for the input and for the state; b, c: their biases, or None"""

    w: Known
    u: Known
    b: Known | None
    c: Known | None

    @cached_property
    def parts(self) -> list[tuple[Known, Known | None]]:
        """Weights and biases of the state: of all gates but the last, and of the last."""
        n = self.u.shape[0] - self.u.shape[1]
        return [(self.u[part], None if self.c is None else self.c[part]) for part in (slice(n), slice(n, None))]


Step = Callable[["Reader", Ref, Sequence[Any], _Weights], "list[Any]"]
"""The new states from the products with the input, the states and the weights. The first state is the result."""


@dataclass(frozen=True)
class _Layer:
    """functions: the activations; n_states: of a step; summed: True if both biases are added in one place"""

    name: str
    functions: list[str]
    n_states: int
    step: Step
    summed: bool


def _layer(r: Reader, i: Inputs, a: Attributes, layer: _Layer) -> list[Any]:
    """Both directions of a layer, step by step."""
    what, n_states = layer.name, layer.n_states
    activations = a.get("activations", [])
    if activations != layer.functions * (len(activations) // len(layer.functions)) or a.get("clip") or a.get("layout"):
        raise UnsupportedError(f"{what} with other activations, clip or layout")
    if at(i, 4) is not None:
        raise UnsupportedError(f"{what} with lengths")
    steps, batch, _ = r.shape(i[0])
    n, hidden, direction = numbers([steps], what)[0], int(a["hidden_size"]), a.get("direction", "forward")
    if n > _MOST_STEPS:
        raise UnsupportedError(f"{what} of {n} steps")
    ways = 2 if direction == "bidirectional" else 1
    outputs: list[list[Any]] = []
    last: list[list[Any]] = [[] for _ in range(n_states)]
    for way in range(ways):
        backwards = direction == "reverse" or way == 1
        states = [_state(r, at(i, 5 + j), way, (batch, hidden)) for j in range(n_states)]
        rows, weights = [], _weights_of(i, way, layer)
        products = _products(r, i[0], weights)
        for t in range(n)[:: -1 if backwards else 1]:
            own = r.emit("select.int", {"self": products, "dim": 0, "index": t}, r.shape(products)[1:], "float32")
            states = layer.step(r, own, states, weights)
            rows.append(states[0])
        outputs.append(rows[::-1] if backwards else rows)
        for j, state in enumerate(states):
            last[j].append(state)
    whole = r.stacked([way[t] for t in range(n) for way in outputs])
    return [viewed(r, whole, (n, ways, batch, hidden)), *(r.stacked(state) for state in last)]


def _weights_of(i: Inputs, way: int, layer: _Layer) -> _Weights:
    w, u = (np.ascontiguousarray(known(i[j], f"a weight of {layer.name}")[way]) for j in (1, 2))
    if at(i, 3) is None:
        return _Weights(w, u, None, None)
    both = known(i[3], f"the bias of {layer.name}")[way].reshape(2, -1)
    return _Weights(w, u, both.sum(0), None) if layer.summed else _Weights(w, u, both[0], both[1])


def _products(r: Reader, x: Given, weights: _Weights) -> Ref:
    """The products of all steps with the input."""
    shape = (*r.shape(x)[:2], weights.w.shape[0])
    return r.emit("linear", {"input": x, "weight": weights.w, "bias": weights.b}, shape, "float32")


def _state(r: Reader, given: Given, way: int, shape: Sequence[Size]) -> Any:
    if given is None:
        return filled(r, shape, 0.0, "float32")
    return r.emit("select.int", {"self": given, "dim": 0, "index": way}, shape, "float32")


def _of_state(r: Reader, h: Given, u: Known, bias: Known | None) -> Ref:
    return r.emit("linear", {"input": h, "weight": u, "bias": bias}, (r.shape(h)[0], u.shape[0]), "float32")


def _gates(r: Reader, x: Given, n: int) -> list[Ref]:
    batch, width = r.shape(x)
    hidden = numbers([width], "a gate")[0] // n
    arguments = {"self": x, "split_sizes": [hidden] * n, "dim": 1}
    return r.emit_all("split_with_sizes", arguments, [(batch, hidden)] * n, "float32")


def _lstm_step(r: Reader, own: Ref, states: Sequence[Any], weights: _Weights) -> list[Any]:
    h, c = states
    i, o, f, g = _gates(r, binary(r, "add.Tensor", own, _of_state(r, h, weights.u, weights.c)), 4)
    i, o, f, g = *(unary(r, "sigmoid", gate) for gate in (i, o, f)), unary(r, "tanh", g)
    c = binary(r, "add.Tensor", binary(r, "mul.Tensor", f, c), binary(r, "mul.Tensor", i, g))
    return [binary(r, "mul.Tensor", o, unary(r, "tanh", c)), c]


def _gru_step(r: Reader, own: Ref, states: Sequence[Any], weights: _Weights) -> list[Any]:
    """The reset gate multiplies the state before its product."""
    (h,), (first, second) = states, weights.parts
    z, reset, g = _gates(r, own, 3)
    of_z, of_reset = _gates(r, _of_state(r, h, *first), 2)
    z, reset = (unary(r, "sigmoid", binary(r, "add.Tensor", x, y)) for x, y in ((z, of_z), (reset, of_reset)))
    kept = binary(r, "mul.Tensor", reset, h)
    return [_mixed(r, h, z, binary(r, "add.Tensor", g, _of_state(r, kept, *second)))]


def _gru_step_before(r: Reader, own: Ref, states: Sequence[Any], weights: _Weights) -> list[Any]:
    """The reset gate multiplies the product of the state, as PyTorch does."""
    (h,) = states
    z, reset, g = _gates(r, own, 3)
    of_z, of_reset, of_g = _gates(r, _of_state(r, h, weights.u, weights.c), 3)
    z, reset = (unary(r, "sigmoid", binary(r, "add.Tensor", x, y)) for x, y in ((z, of_z), (reset, of_reset)))
    return [_mixed(r, h, z, binary(r, "add.Tensor", g, binary(r, "mul.Tensor", reset, of_g)))]


def _mixed(r: Reader, h: Given, z: Given, new: Given) -> Ref:
    """``(1 - z) * tanh(new) + z * h``"""
    g = unary(r, "tanh", new)
    return binary(r, "add.Tensor", g, binary(r, "mul.Tensor", z, binary(r, "sub.Tensor", h, g)))
