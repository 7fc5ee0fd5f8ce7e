"""Simulated passes agree with sums by hand, with the prediction, and with pipelines of real ranks
in threads.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

import ggml_backend as gb
from described import description, pipeline, table
from ggml_backend.cluster import simulated
from ggml_backend.cluster._messages import What
from ggml_backend.cluster.planning.describe import PACKET, Link
from ggml_backend.cluster.planning.layers import LayerModel, Node, Placement, Stage, Unit, predict
from ggml_backend.cluster.planning.simulate import _Clock, _Wire, simulate


def test_one_pass_by_hand(tmp_path):
    model, placement, cluster = pipeline(tmp_path, [0.01, 0.03, 0.02], latency=0.005)
    found = simulate(model, placement, cluster, 1, passes=10, jitter=0.0)
    assert found.once == pytest.approx(0.06 + 4 * 0.005, rel=1e-4)
    assert found.rate == pytest.approx(1 / found.once, rel=1e-9)
    assert found.busy["computing on h1:d1"] == pytest.approx(0.03 / found.once, rel=1e-6)


def test_the_slowest_stage_sets_the_pace(tmp_path):
    model, placement, cluster = pipeline(tmp_path, [0.01, 0.03, 0.02], latency=0.005)
    for sequences, seconds in ((1, 0.08), (2, 0.04), (3, 0.03), (10, 0.03)):
        found = simulate(model, placement, cluster, sequences, passes=40, jitter=0.0)
        assert found.rate == pytest.approx(1 / seconds, rel=0.01)


def test_rank_0_starts_stages_one_after_the_other(tmp_path):
    """With 10 ms for each of three stages, rank 0 limits the rate. A single pass waits only for the
    first stage."""
    model, placement, cluster = pipeline(tmp_path, [0.02, 0.02, 0.02], latency=0.001, issue=0.01)
    assert simulate(model, placement, cluster, 1, jitter=0.0).once == pytest.approx(0.01 + 0.06 + 0.004, rel=1e-4)
    found = simulate(model, placement, cluster, 20, passes=40, jitter=0.0)
    assert found.rate == pytest.approx(1 / 0.03, rel=0.02) and found.busy["rank 0"] > 0.95


def test_the_same_seed_gives_the_same(tmp_path):
    model, placement, cluster = pipeline(tmp_path, [0.01, 0.02], latency=0.005)
    runs = [simulate(model, placement, cluster, 4, passes=50, seed=s).rate for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_commands_are_done_in_order(tmp_path):
    """Passes leave a stage in their starting order, as on a rank of this package. So two stages of
    random times are slower together than the slower stage alone."""
    model, placement, cluster = pipeline(tmp_path, [0.01, 0.01], latency=0.0)
    fixed = simulate(model, placement, cluster, 2, passes=2000, jitter=0.0).rate
    varied = simulate(model, placement, cluster, 2, passes=2000, jitter=0.9, seed=3).rate
    assert fixed == pytest.approx(100, rel=0.01) and varied < 0.9 * fixed


# ---------------------------------------------------------------------------------------------------------------- links


def deliveries(link: Link, sizes: list[int], seed: int = 0) -> list[float]:
    clock, found = _Clock(), []
    wire = _Wire(clock, link, np.random.default_rng(seed))
    for size in sizes:
        wire.send(size, lambda: found.append(clock.now))
    clock.run()
    return found


def test_messages_follow_each_other():
    assert deliveries(Link(1.0, 100.0), [100, 50, 200]) == pytest.approx([2.0, 2.5, 4.5])


def test_losses():
    """Number and delay of late messages follow the probabilities. Messages behind a late one wait
    for it."""
    link, n = Link(1.0, 1e12, 0.02, 10.0), 4000
    size = 3 * PACKET
    late = [deliveries(link, [size], seed)[0] - 1.0 for seed in range(n)]
    once_or_more = 1 - 0.98**3
    assert np.mean(np.array(late) > 5) == pytest.approx(once_or_more, rel=0.15)
    assert np.mean(late) == pytest.approx(10 * link.rounds(size), rel=0.15)
    together = deliveries(link, [size] * 200)
    assert together == sorted(together) and len(set(np.round(together, 6))) < 20


def test_predictions_are_exact_without_losses(tmp_path):
    """The predicted sum equals the simulation event by event."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        n = int(rng.integers(1, 7))
        stages = [float(s) for s in rng.uniform(0.001, 0.05, n)]
        model, placement, cluster = pipeline(tmp_path, stages, latency=float(rng.uniform(0, 0.1)))
        predicted = predict(model, placement, cluster)
        for sequences in (1, 3, predicted.enough, 2 * predicted.enough):
            found = simulate(model, placement, cluster, sequences, passes=60, jitter=0.0).rate
            assert found == pytest.approx(predicted.rate(sequences), rel=0.03)


def test_losses_cost_more_with_many_pending_passes(tmp_path):
    link = {"between": ["*", "*"], "latency": "40 ms", "bandwidth": "20 MB/s", "loss": 0.002, "retransmit": "280 ms"}
    cluster = description(tmp_path, table(4, links=[link]))
    units = tuple(Unit(f"u{k}", (Node("f32", 2e9, 0.0),), 0, 0, 32768) for k in range(4))
    model, placement = (
        LayerModel("m", units, 1, 0, 4, 128000),
        Placement(tuple(Stage(k, k, k + 1) for k in range(4)), 1),
    )
    predicted = predict(model, placement, cluster)
    alone = simulate(model, placement, cluster, 1, passes=3000)
    assert alone.rate == pytest.approx(predicted.rate(1), rel=0.05) and alone.waits > 100
    many = simulate(model, placement, cluster, 12, passes=400)
    assert many.rate < predicted.rate(12)


@pytest.mark.parametrize("arguments", [{"sequences": 0}, {"passes": True}, {"jitter": 1.0}, {"jitter": float("nan")}])
def test_wrong_arguments(tmp_path, arguments):
    model, placement, cluster = pipeline(tmp_path, [0.01], latency=0.0)
    with pytest.raises(gb.errors.InvalidArgumentError, match=f"simulate: {next(iter(arguments))}"):
        simulate(model, placement, cluster, **arguments)


# ----------------------------------------------------------------------------------------------------- ranks in threads


def measured(stages: list[float], delay: float, in_flight: int, runs: int) -> float:
    """Seconds of runs of a pipeline over ranks in this process, which sleep instead of computing."""
    with simulated(len(stages) + 1, delay=delay) as cluster:
        for worker, seconds in zip(cluster._workers, stages, strict=True):
            real = worker._do[What.RUN]
            worker._do[What.RUN] = lambda command, real=real, s=seconds: (real(command), time.sleep(s))
        devices = cluster.backends()
        with gb.Context() as ctx, gb.Scheduler([*devices, gb.Backend("CPU", n_threads=1)], n_copies=in_flight) as sched:
            node = x = ctx.tensor((4096,), name="x").set_input()
            for device in devices:
                node = gb.ops.sqr(node)
                sched.set_backend(node, device)
            graph = ctx.graph(node)
            sched.allocate(graph)
            data = np.zeros(4096, np.float32)
            x.set(data)
            sched.compute(graph)
            begin, pending = time.perf_counter(), []
            for _ in range(runs):
                x.set(data)
                pending.append(sched.compute_async(graph, results=node))
            for run in pending:
                run.results()
            return time.perf_counter() - begin


@pytest.mark.parametrize("delay", [0.001, 0.02])
def test_real_pipelines_are_never_faster_than_simulated_ones(tmp_path, delay):
    """Sleeps and delays of a simulated network are never shorter than requested. So a real pipeline
    takes at least the simulated time, even on a busy machine. One run at a time takes longest in
    both."""
    stages, runs = [0.02, 0.03, 0.02], 24
    model, placement, cluster = pipeline(tmp_path, stages, latency=delay)
    real, virtual = [], []
    for in_flight in (1, 2, 8):
        virtual.append(simulate(model, placement, cluster, in_flight, passes=runs // in_flight, jitter=0.0).seconds)
        real.append(measured(stages, delay, in_flight, runs))
    assert all(a > 0.99 * b for a, b in zip(real, virtual, strict=True))
    assert real[0] > real[2] and virtual[0] > virtual[1] > virtual[2]
    print(f"delay {delay * 1e3:g} ms, real / simulated: {[f'{a / b:.2f}' for a, b in zip(real, virtual, strict=True)]}")
