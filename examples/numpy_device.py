"""A device in Python that computes the operators of examples/embed with NumPy, in float32.

    python -m examples.embed --devices NP,CPU
    python -m ggml_backend check-device NP --import examples.numpy_device

The next device computes everything else. docs/BACKENDS.md builds a device step by step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ggml_backend as gb

Array = np.ndarray[Any, Any]
FUNCTIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


@gb.devices.register_device("NP")
class NumPyDevice(gb.devices.Device):
    """A device whose memory is host memory that it shares with the CPU, so nothing is copied between the two."""

    @gb.devices.op("add", "sub", "mul", "div")
    def elements(self, node: gb.devices.Node, out: Array, a: Array, b: Array) -> None:
        FUNCTIONS[node.op](a, b, out=out)

    @gb.devices.op("scale")
    def scale(self, node: gb.devices.Node, out: Array, a: Array) -> None:
        np.multiply(a, np.float32(node.params["s"]), out=out)

    @gb.devices.op("mul_mat")
    def product(self, node: gb.devices.Node, out: Array, weights: Array, x: Array) -> None:
        np.matmul(x, weights.swapaxes(-1, -2), out=out)

    @gb.devices.op("norm", "rms_norm")
    def norm(self, node: gb.devices.Node, out: Array, a: Array) -> Array:
        centred = a - a.mean(-1, keepdims=True) if node.op == "norm" else a
        square: Array = np.square(centred).mean(-1, keepdims=True)
        return np.divide(centred, np.sqrt(square + np.float32(node.params["eps"])), out=out)

    @gb.devices.op("soft_max", when=lambda node: len(node.sources) == 1 or "a mask")
    def soft_max(self, node: gb.devices.Node, out: Array, a: Array) -> Array:
        powers = np.exp((a - a.max(-1, keepdims=True)) * np.float32(node.params["scale"]))
        return np.divide(powers, powers.sum(-1, keepdims=True), out=out)

    @gb.devices.op("get_rows", when=lambda node: node.ndim == 2 or "a table that is no matrix")
    def rows(self, node: gb.devices.Node, out: Array, table: Array, ids: Array) -> None:
        np.take(table, ids, axis=0, out=out, mode="raise")

    @gb.devices.op("cont")
    def cont(self, node: gb.devices.Node, out: Array, a: Array) -> None:
        out[...] = a.reshape(out.shape)
