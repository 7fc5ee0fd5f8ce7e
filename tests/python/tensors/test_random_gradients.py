"""Gradients of random networks: against differences in double, and in random placements."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from random_networks import Network, gradients, network

QUICK = range(12)
MANY = [pytest.param(range(i, i + 40), marks=pytest.mark.slow) for i in range(12, 252, 40)]
LIMIT = 2e-4  # relative to the length of the gradient of an array, and to that of all


def check(net: Network, found: list[np.ndarray], seed: int) -> None:
    """The slope of the loss along random changes of each array."""
    rng = np.random.default_rng(seed)
    arrays = [x.astype(np.float32).astype(np.float64) for x in net.arrays]
    whole = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in found))
    for i, slope in enumerate(found):
        change, ends = rng.standard_normal(slope.shape), []
        for step in (1e-6, -1e-6):
            moved = [x + step * change if i == k else x for k, x in enumerate(arrays)]
            ends.append(net.loss(np, moved, net.factors))
        expected, got = (ends[0] - ends[1]) / 2e-6, (slope * change).sum(dtype=np.float64)
        bound = LIMIT * (np.linalg.norm(slope) + 0.1 * whole) * np.sqrt(slope.size) + 1e-6
        assert abs(got - expected) < bound, f"seed {seed}, array {i}: {got} instead of {expected}: {net}"


@pytest.mark.parametrize("seeds", [QUICK, *MANY], ids=str)
@pytest.mark.parametrize("device", ["CPU", "ARRAY"])
def test_gradients_are_those_of_differences(device: str, seeds: range) -> None:
    backends = [gb.Backend(name) for name in dict.fromkeys((device, "CPU"))]
    for seed in seeds:
        net = network(seed)
        check(net, gradients(net, backends), seed)


@pytest.mark.parametrize("seeds", [QUICK, *MANY], ids=str)
def test_placements_give_the_same_bits(seeds: range) -> None:
    for seed in seeds:
        net, rng = network(seed), np.random.default_rng(seed)
        backends = [gb.Backend("SIM"), gb.Backend("CPU", n_threads=1)]

        def place(
            sched: gb.Scheduler, graph: gb.Graph, backends: list[gb.Backend] = backends, rng: np.random.Generator = rng
        ) -> None:
            for node in graph.nodes:
                if rng.integers(2):
                    sched.set_backend(node, backends[rng.integers(2)])

        want = gradients(net, [gb.Backend("CPU", n_threads=1)])
        for got, expected in zip(gradients(net, backends, place), want, strict=True):
            np.testing.assert_array_equal(got, expected, err_msg=f"seed {seed}: {net}")
