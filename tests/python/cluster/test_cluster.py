"""Clusters inside one process compute the bits of one CPU. The tests also count the messages."""

from __future__ import annotations

import gc
import math
import os
import time

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._ffi import ffi, lib
from ggml_backend.cli.examples import graphs
from ggml_backend.cluster import LocalNetwork, simulated
from ggml_backend.cluster._messages import CONTROL, DATA
from ranks import alone, placed

N_GRAPHS = int(os.environ.get("GGML_TEST_GRAPHS", "60"))
ACTIVATION = graphs.TOKENS * graphs.EMBD * 4  # bytes that cross a cut


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["embed", "llama"])
def test_a_model_cut_by_layers_gives_the_same_bits(name, ranks):
    wanted = alone(name, range(3))
    with simulated(ranks + 1) as cluster, placed(name, cluster.backends()) as (model, sched):
        for seed, want in enumerate(wanted):
            np.testing.assert_array_equal(model.run(sched, seed), want)
        homes = list(dict.fromkeys(s.backend for s in sched.splits))
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
        for rank in (1, 2, 3):  # the commands of rank 0 for a run are small
            n, nbytes = network.sent[0, rank, CONTROL]
            assert nbytes / 5 < 1000 and n / 5 <= 6


def test_cuts_follow_each_other_without_rank_0():
    """Data go directly from rank to rank. The host waits only for the end."""
    network = LocalNetwork(4)
    with simulated(4, network=network) as cluster, placed("embed", cluster.backends()) as (model, sched):
        model.run(sched, 0)
        sched.reset_stats()
        model.graph["x"].set(model.x(1))
        sched.compute(model.graph)
        assert sched.stats.waits_host == 0


@pytest.mark.parametrize(("device", "only"), [("MPI1:CPU", None), ("MPI2:SIM", ["memory", "graphs"])])
def test_a_rank_is_a_device_like_others(device, only):
    with simulated(3, jitter=0.0005, seed=1):
        report = gb.testing.check_device(device, quick=True, only=only)
    assert report.ok, str(report)


@pytest.mark.parametrize("seed", range(max(N_GRAPHS // 20, 1)))
def test_random_graphs_over_a_network_with_random_delays(seed):
    """The random graphs of check_device. About half of them run with the scheduler's checks."""
    with simulated(3, jitter=0.002, seed=seed):
        report = gb.testing.check_device("MPI1:CPU", seed=seed, quick=True, only="graphs/random/*")
    assert report.ok, str(report)


def test_pending_runs_are_issued_before_results_arrive():
    """With n_copies = n, a run waits only for the run n before it. Over a slow link all runs start
    before the first result arrives, and results come in order."""
    runs = 8
    wanted = alone("embed", range(runs))
    network = LocalNetwork(3, delay=0.01)
    with (
        simulated(3, network=network) as cluster,
        placed("embed", cluster.backends(), n_copies=runs) as (model, sched),
    ):
        model.run(sched, 0)
        x, pending = model.graph["x"], []
        before = network.sent[2, 0, DATA][0]
        for seed in range(runs):
            x.set(model.x(seed))
            pending.append(sched.compute_async(model.graph, results=model.graph.outputs))
        assert network.sent[2, 0, DATA][0] == before  # no result has arrived
        for run, want in zip(pending, wanted, strict=True):
            np.testing.assert_array_equal(run.results()[0], want)


def test_one_trace_of_all_ranks_on_one_clock():
    """Events of the ranks' devices are between those of the host, and dependent events are in
    order."""
    with simulated(3, delay=0.002) as cluster, placed("embed", cluster.backends()) as (model, sched):
        model.run(sched, 0)
        cluster.set_clocks()
        begin = time.monotonic_ns()
        with sched.trace() as trace:
            for seed in range(3):
                model.run(sched, seed)
        end = time.monotonic_ns()
    for run in range(3):
        first, second = (
            next(e for e in trace.events if (e.kind, e.run, e.backend) == ("compute", run, backend))
            for backend in range(2)
        )
        assert not first.by_host
        assert begin <= first.start_ns <= first.end_ns <= second.start_ns <= second.end_ns <= end


def test_nothing_is_left_on_a_rank():
    """Buffers, graphs and events are freed when no object needs them."""
    with simulated(2) as cluster:
        worker, conductor = cluster._workers[0], cluster._conductor
        device = cluster.backends()[0]
        for _ in range(3):
            with placed("embed", [device]) as (model, sched):
                model.run(sched, 0)
            for buffer in model.buffers:
                buffer.close()
            model.ctx.close()
            del model, sched
            gc.collect()
            device.synchronize()
            cluster.ping(1)
        device.allocate(16).close()
        device.synchronize()
        assert len(worker.memories) <= 1 and not worker.graphs
        assert not any(peer.questions or peer.pings for peer in conductor.peers.values())


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"delay": -1}, gb.errors.InvalidArgumentError), ({"delay": math.inf}, gb.errors.InvalidArgumentError),
        ({"rate": 0}, gb.errors.InvalidArgumentError), ({"jitter": math.nan}, gb.errors.InvalidArgumentError),
        ({"delay": "x"}, TypeError), ({"network": 3}, TypeError),
    ],
)  # fmt: skip
def test_invalid_networks_are_refused(options, kind):
    with pytest.raises(kind, match=next(iter(options))), simulated(2, **options):
        pass


@pytest.mark.parametrize("name", ["embed", "llama"])
@pytest.mark.parametrize("alike", [True, False])
def test_scratch_memory_of_ranks_is_known(name, alike, monkeypatch):
    """A rank needs the scratch memory that a local CPU needs for the same splits. The rank answers,
    or a local CPU if it is equal."""
    if not alike:
        monkeypatch.setattr("ggml_backend.cluster._host.Conductor.cpu_like", lambda self, peer: None)
    with simulated(3, n_threads=2) as cluster:
        devices = cluster.backends()
        with placed(name, devices) as (model, sched):
            memory = sched.prepare(model.graph).memory
            sizes = [memory[d.name].scratch for d in devices]
            names, nodes = [d.name for d in devices], model.graph.nodes
            graphs = [[nodes[i]._p for i in s.node_range] for s in sched.splits if s.backend in names]
            cpu = gb.Backend("CPU", n_threads=2)
            for size, nodes in zip(sizes, graphs, strict=True):
                graph = ffi.new("struct ggml_cgraph *")
                pointers = ffi.new("struct ggml_tensor *[]", nodes)
                graph.nodes, graph.n_nodes, graph.size = pointers, len(nodes), len(nodes)
                found = ffi.new("size_t *")
                assert lib.gbpy_graph_work_size(cpu._live().ptr, graph, found) == 0
                assert size == found[0]
            assert any(sizes)
