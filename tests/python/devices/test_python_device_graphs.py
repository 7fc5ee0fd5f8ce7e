"""Random graphs on devices in Python, a simulated device and the CPU give the bits of NumPy, for
any placement.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import ggml_backend as gb
from python_devices import NAMES

pytestmark = pytest.mark.slow

DEVICES = {
    **{name: {} for name in NAMES if "QUEUE" not in name},
    **{name: {"delay": 0.0002} for name in NAMES if "QUEUE" in name},
    "SIM": {"delay": "100us"},
}
N_GRAPHS = int(os.environ.get("GGML_TEST_GRAPHS", "60"))


class RandomGraph:
    """A random graph with NumPy's results. Every operator rounds once, so the bits are
    determined."""

    def __init__(self, rng: np.random.Generator, ctx: gb.Context) -> None:
        self.rng = rng
        self.shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 4)))
        self.inputs = [ctx.tensor(self.shape, name=f"x{i}") for i in range(3)]
        self.values = [(t, lambda data, i=i: data[i]) for i, t in enumerate(self.inputs)]
        for _ in range(int(rng.integers(3, 18))):
            self.values.append(self.node(*self.pick()))
        self.outputs = [self.values[-1], *(self.values[int(rng.integers(3, len(self.values)))] for _ in range(2))]
        self.graph = ctx.graph(*dict.fromkeys(t for t, _ in self.outputs))

    def pick(self):
        known = self.values[-8:]
        return known[int(self.rng.integers(len(known)))], known[int(self.rng.integers(len(known)))]

    def node(self, first, second):
        (a, x), (b, y) = first, second
        which = int(self.rng.integers(7))
        if which == 3:
            return gb.ops.scale(a, 0.5), lambda d: x(d) * np.float32(0.5)
        if which == 4:
            return gb.ops.sqr(a), lambda d: x(d) * x(d)
        if which == 5:  # a row for all rows
            at = (0,) * (len(self.shape) - 1)
            return a + (b[at] if at else b), lambda d: x(d) + y(d)[at]
        if which == 6 and self.shape[0] > 1:  # overlapping views, also of results of other devices
            n = self.shape[0]
            part = a[1:n] - b[0 : n - 1]
            return gb.ops.repeat(part[0:1], self.shape), lambda d: np.broadcast_to(
                (x(d)[1:] - y(d)[:-1])[:1], self.shape
            )
        build, function = [(gb.ops.add, np.add), (gb.ops.sub, np.subtract), (gb.ops.mul, np.multiply)][which % 3]
        return build(a, b), lambda d: function(x(d), y(d))

    def fresh(self):
        return [self.rng.uniform(-1, 1, self.shape).astype(np.float32) for _ in self.inputs]


@pytest.mark.parametrize("seed", range(N_GRAPHS))
def test_random_graphs_equal_numpy(seed, node_by_node):
    rng = np.random.default_rng(seed)
    names = list(rng.permutation(list(DEVICES)))[: int(rng.integers(1, 4))]
    backends = [gb.Backend(n, **DEVICES[n]) for n in names] + [gb.Backend("CPU", n_threads=1)]
    copies = int(rng.integers(1, 4))
    with gb.Context() as ctx:
        built = RandomGraph(rng, ctx)
        with gb.Scheduler(backends, n_copies=copies) as sched:
            for node in built.graph.nodes:
                able = [b for b in backends if b.supports(node)]
                if rng.random() < 0.6:
                    sched.set_backend(node, able[int(rng.integers(len(able)))])
            sched.allocate(built.graph)
            for _ in range(3):
                data = built.fresh()
                for t, value in zip(built.inputs, data, strict=True):
                    if t in built.graph.leafs:
                        t.set(value)
                if rng.random() < 0.5:
                    sched.compute(built.graph)
                    found = [t.numpy() for t, _ in built.outputs]
                else:
                    found = sched.compute_async(built.graph, [t for t, _ in built.outputs]).results()
                for got, (_, expected) in zip(found, built.outputs, strict=True):
                    assert np.array_equal(got, expected(data)), names
