"""Graphs of models split by layers, with reference results of one CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

import ggml_backend as gb
from ggml_backend.cli.examples import graphs


class Model:
    """An example graph with random weights. Weights are on the device of their layer, as in a real
    placement."""

    def __init__(self, name: str, devices: Sequence[gb.Backend], seed: int = 0) -> None:
        self.ctx, self.graph = graphs.build(name)
        self.devices = list(devices)
        self.rng = np.random.default_rng(seed)
        self.buffers = []
        weights = [t for t in self.graph.leafs if t.name not in ("x", "positions")]
        for t in weights:
            device = self.devices[self.layer(t.name) * len(self.devices) // graphs.LAYERS]
            buffer = device.allocate(device.buffer_type.nbytes_for(t), "weights")
            buffer.place(t)
            self.buffers.append(buffer)
            t.set(self.rng.standard_normal(t.shape).astype(np.float32) / np.float32(t.shape[-1] ** 0.5))

    @staticmethod
    def layer(name: str) -> int:
        found = re.match(r"(\d+)\.", name)
        return int(found[1]) if found else 0

    def allocate(self, sched: gb.Scheduler) -> None:
        layer = 0
        for node in self.graph.nodes:  # also nodes without weights: one tensor crosses each cut
            layer = max(layer, self.layer(node.name))
            sched.set_backend(node, self.devices[layer * len(self.devices) // graphs.LAYERS])
        sched.allocate(self.graph)
        positions = self.graph.get("positions")
        if positions is not None:
            positions.set(np.arange(graphs.TOKENS, dtype=np.int32))

    def x(self, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal((graphs.TOKENS, graphs.EMBD)).astype(np.float32)

    def run(self, sched: gb.Scheduler, seed: int) -> np.ndarray:
        self.graph["x"].set(self.x(seed))
        assert sched.compute(self.graph)
        return self.graph.outputs[0].numpy(copy=True)


def alone(name: str, seeds: Sequence[int]) -> list[np.ndarray]:
    """The results in one process."""
    cpu = gb.Backend("CPU", n_threads=1)
    model = Model(name, [cpu])
    with gb.Scheduler([cpu]) as sched:
        model.allocate(sched)
        return [model.run(sched, s) for s in seeds]


@contextmanager
def placed(name: str, devices: Sequence[gb.Backend], **options: object) -> Iterator[tuple[Model, gb.Scheduler]]:
    model = Model(name, devices)
    with gb.Scheduler([*devices, gb.Backend("CPU", n_threads=1)], **options) as sched:  # type: ignore[arg-type]
        model.allocate(sched)
        yield model, sched


def compute_on(device: gb.Backend) -> None:
    """A small graph on a device gives NumPy's result."""
    x = np.arange(12, dtype=np.float32)
    with gb.Context() as ctx, gb.Scheduler([device, gb.Backend("CPU", n_threads=1)]) as sched:
        t = ctx.tensor((12,), name="t")
        y = gb.ops.sqr(t)
        graph = ctx.graph(y)
        sched.set_backend(y, device)
        sched.allocate(graph)
        t.set(x)
        sched.compute(graph)
        np.testing.assert_array_equal(y.numpy(), x * x)
