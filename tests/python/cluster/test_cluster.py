"""Clusters inside one process: the same bits as one CPU, and what is sent for that."""

from __future__ import annotations

import os

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._examples import graphs
from ggml_backend.cluster import LocalNetwork, simulated
from ggml_backend.cluster._messages import CONTROL, DATA
from ranks import alone, placed

WORLDS = int(os.environ.get("GGML_TEST_WORLDS", "60"))
ACTIVATION = graphs.TOKENS * graphs.EMBD * 4  # bytes that cross a cut


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["embed", "llama"])
def test_a_model_cut_by_layers_gives_the_same_bits(name, ranks):
    wanted = alone(name, range(3))
    with simulated(ranks + 1) as cluster, placed(name, cluster.backends()) as (model, sched):
        for seed, want in enumerate(wanted):
            np.testing.assert_array_equal(model.run(sched, seed), want)
        homes = list(dict.fromkeys(s.backend.name for s in sched.splits))
        assert homes == [f"MPI{r}:CPU" for r in range(1, ranks + 1)]


def test_a_cut_is_one_message_and_nothing_is_planned_again():
    network = LocalNetwork(4)
    with simulated(4, network=network) as cluster, placed("embed", cluster.backends()) as (model, sched):
        for seed in range(2):
            model.run(sched, seed)
        network.sent.clear()
        shipped = [len(w.graphs) for w in cluster._workers]
        sched.reset_stats()
        for seed in range(5):
            model.run(sched, seed)
        assert [len(w.graphs) for w in cluster._workers] == shipped
        assert sched.stats.plans_made == 0
        assert sched.stats.results == (2 * 5, 2 * 5 * ACTIVATION)
        for a, b in ((1, 2), (2, 3)):
            assert network.sent[a, b, DATA] == [5, 5 * ACTIVATION]
        assert not [key for key in network.sent if key[2] == DATA and key[1] == 0 and key[0] != 3]
        for rank in (1, 2, 3):  # what rank 0 says for a run is small
            n, nbytes = network.sent[0, rank, CONTROL]
            assert nbytes / 5 < 1000 and n / 5 <= 6


def test_cuts_follow_each_other_without_rank_0():
    """Data go from rank to rank; the host waits for the end alone."""
    network = LocalNetwork(4)
    with simulated(4, network=network) as cluster, placed("embed", cluster.backends()) as (model, sched):
        model.run(sched, 0)
        sched.reset_stats()
        model.graph["x"].set(model.x(1))
        sched.compute(model.graph)
        assert sched.stats.waits_host == 0


@pytest.mark.parametrize("device", ["MPI1:CPU", "MPI2:SIM"])
def test_a_rank_is_a_device_like_others(device):
    with simulated(3, jitter=0.0005, seed=1):
        report = gb.testing.check_device(device, quick=True)
    assert report.ok, report


@pytest.mark.parametrize("seed", range(max(WORLDS // 10, 1)))
def test_random_graphs_over_a_network_with_random_delays(seed):
    """check_device's worlds: random graphs, assignments and places, judged by the scheduler's checker in every other
    one."""
    with simulated(3, jitter=0.002, seed=seed):
        report = gb.testing.check_device("MPI1:CPU", seed=seed, quick=True, only="graphs/world/*")
    assert report.ok, report
