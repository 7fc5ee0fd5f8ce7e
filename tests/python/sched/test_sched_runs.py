"""Runs of a scheduler: checked runs, several pending runs, their results, events and statistics."""

from __future__ import annotations

import contextlib
import gc
import os
import time

import numpy as np
import pytest

import ggml_backend as gb
from threads import run_threads

unchecked = pytest.mark.skipif(os.environ.get("GGML_SCHED_CHECK") == "1", reason="checked runs wait for every step")


class Line:
    """y = ((x @ w.T) + 1) ** 2 with the product on the first device and the rest on the second."""

    def __init__(self, ctx: gb.Context, weights: gb.Buffer | None = None, n: int = 16) -> None:
        self.x = ctx.tensor((4, n), name="x").set_input()
        self.w = ctx.tensor((n, n), name="w")
        self.h = (self.x @ self.w.T).named("h")
        self.y = gb.ops.sqr(self.h + 1.0).named("y").set_output()
        self.graph = ctx.graph(self.y)
        self.n = n

    def set_weights(self, rng):
        self.W = rng.standard_normal((self.n, self.n)).astype(np.float32)
        self.w.set(self.W)

    def expected(self, X):
        return (X.astype(np.float64) @ self.W.T + 1) ** 2


def batches(rng, count, n=16):
    return [rng.standard_normal((4, n)).astype(np.float32) for _ in range(count)]


@pytest.fixture
def slow():
    return gb.Backend("SIM:name=SLOW,delay=3ms")


@pytest.fixture
def line(ctx):
    return Line(ctx)


# --------------------------------------------------------------------------------------------------------- pending runs


@pytest.mark.parametrize("n_copies", [1, 2, 3])
@pytest.mark.parametrize("on_device", [("h", "y"), ("h",), ()], ids=str)
def test_inputs_are_set_while_the_graph_runs(line, rng, cpu, slow, n_copies, on_device):
    """Each run uses the input that was set before its start, and has its own results."""
    with gb.Scheduler([slow, cpu], n_copies=n_copies) as sched:
        assert sched.n_copies == n_copies
        for node in line.graph.nodes:
            sched.set_backend(node, slow if ("h" if node.name == "h" else "y") in on_device else cpu)
        sched.allocate(line.graph)
        line.set_weights(rng)
        inputs = batches(rng, 7)
        pending = []
        for X in inputs:
            line.x.set(X)
            pending.append(sched.compute_async(line.graph, results=[line.y]))
            assert sum("running" in repr(p) for p in pending) <= n_copies
        for X, p in zip(inputs, pending, strict=True):
            (y,) = p.results()
            np.testing.assert_allclose(y, line.expected(X), rtol=1e-4, atol=1e-4)
            assert p.results()[0] is y
            assert "done" in repr(p)
        np.testing.assert_allclose(line.y.numpy(), line.expected(inputs[-1]), rtol=1e-4, atol=1e-4)


def place_all(sched, line, device, rng):
    """All nodes on one device, with random weights."""
    for node in line.graph.nodes:
        sched.set_backend(node, device)
    sched.allocate(line.graph)
    line.set_weights(rng)


@unchecked
def test_two_copies_do_not_wait(line, rng, cpu):
    """The next set and the next start return while the device works on the first run. A wait for
    the first run does not wait for the second."""
    device = gb.Backend("SIM:delay=500ms")
    with gb.Scheduler([device, cpu], n_copies=2) as sched:
        place_all(sched, line, device, rng)
        line.x.set(0)
        sched.compute(line.graph)
        first, second = batches(rng, 2)
        line.x.set(first)
        one = sched.compute_async(line.graph, [line.y])
        line.x.set(second)
        two = sched.compute_async(line.graph, [line.y])
        assert "running" in repr(one) and "running" in repr(two)
        np.testing.assert_allclose(one.results()[0], line.expected(first), rtol=1e-4, atol=1e-4)
        assert "done" in repr(one) and "running" in repr(two)
        np.testing.assert_allclose(two.results()[0], line.expected(second), rtol=1e-4, atol=1e-4)
        assert "done" in repr(two)


def test_results_are_right_for_any_order_of_reads(line, rng, cpu, slow):
    with gb.Scheduler([slow, cpu], n_copies=4) as sched:
        sched.allocate(line.graph)
        line.set_weights(rng)
        inputs = batches(rng, 4)
        pending = []
        for X in inputs:
            line.x.set(X)
            pending.append(sched.compute_async(line.graph, [line.y, line.y]))
        for i in (2, 0, 3, 1):
            a, b = pending[i].results()
            np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(a, line.expected(inputs[i]), rtol=1e-4, atol=1e-4)


def test_results_outlive_the_scheduler(line, rng, cpu, slow):
    sched = gb.Scheduler([slow, cpu], n_copies=2)
    sched.allocate(line.graph)
    line.set_weights(rng)
    (X,) = batches(rng, 1)
    line.x.set(X)
    pending = sched.compute_async(line.graph, [line.y])
    sched.close()
    np.testing.assert_allclose(pending.results()[0], line.expected(X), rtol=1e-4, atol=1e-4)
    del sched
    gc.collect()
    pending.wait()


def test_results_in_other_memory_and_views(ctx, rng, cpu, slow):
    """Results in a buffer of another device, with a write-back; and results that are views."""
    home = gb.Context()
    kept = home.tensor((4, 8), name="kept")
    home.allocate(cpu)
    x = ctx.tensor((4, 8), name="x").set_input()
    with ctx.as_default():
        written = gb.ops.cpy(x * 2.0, kept).set_output()
    view = (x + 1.0).named("z").set_output()[1]
    graph = ctx.graph(written, view)
    with gb.Scheduler([slow, cpu], n_copies=2) as sched:
        sched.allocate(graph)
        for X in batches(rng, 3, 8):
            x.set(X)
            a, b = sched.compute_async(graph, [written, view]).results()
            np.testing.assert_array_equal(a, X * 2)
            np.testing.assert_array_equal(b, X[1] + 1)
            np.testing.assert_array_equal(kept.numpy(), X * 2)


def test_host_memory_waits_for_the_device_that_writes_it(ctx, rng, cpu):
    """numpy() of a tensor in a user's buffer waits for a device that still computes it."""
    device = gb.Backend("SIM:delay=30ms")
    home = gb.Context()
    source, kept = home.tensor((4, 8), name="source"), home.tensor((4, 8), name="kept")
    home.allocate(cpu)
    kept.set(0)
    y = gb.ops.cpy(source * 2.0, kept)
    graph = ctx.graph(y)
    with gb.Scheduler([device, cpu]) as sched:
        for node in graph.nodes:
            sched.set_backend(node, device)
        for X in batches(rng, 3, 8):
            source.set(X)
            sched.compute_async(graph)
            source.set(0)  # also waits, because the device may still read it
            np.testing.assert_array_equal(kept.numpy(), X * 2)


def test_only_outputs_can_be_fetched(line, rng, cpu, slow):
    with gb.Scheduler([slow, cpu]) as sched:
        sched.allocate(line.graph)
        line.set_weights(rng)
        line.x.set(1)
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"keep=\[it\]"):
            sched.compute_async(line.graph, [line.h])
        with gb.Context() as other:
            elsewhere = other.tensor(4, name="elsewhere").set_output()
            with pytest.raises(gb.errors.InvalidArgumentError, match="elsewhere"):
                sched.compute_async(line.graph, [elsewhere])
        assert sched.compute(line.graph)  # still usable


@unchecked
def test_failure_of_a_run(line, rng, cpu):
    bad = gb.Backend("SIM:delay=200ms,fail_op=sqr")
    with gb.Scheduler([bad, cpu], n_copies=2) as sched:
        place_all(sched, line, bad, rng)
        line.x.set(1)
        pending = [sched.compute_async(line.graph, [line.y]) for _ in range(2)]
        with pytest.raises(gb.errors.DeviceError):
            pending[0].results()
        for p in pending:
            with pytest.raises(gb.errors.StateError, match="failed"):
                p.results()
            assert "failed" in repr(p)
        for node in line.graph.nodes:
            sched.set_backend(node, cpu)
        line.x.set(0)
        assert sched.compute(line.graph)
        np.testing.assert_array_equal(line.y.numpy(), np.ones((4, 16), np.float32))


def test_number_of_copies(line, rng, cpu, slow):
    for wrong in (0, -1, 65):
        with pytest.raises(gb.errors.InvalidArgumentError):
            gb.Scheduler([cpu], n_copies=wrong)
    with gb.Scheduler([slow, cpu]) as sched:
        assert sched.n_copies == 1
        sched.allocate(line.graph)
        line.set_weights(rng)
        for n in (1, 3, 2, 1):
            sched.n_copies = n
            assert sched.n_copies == n
            for X in batches(rng, 3):
                line.x.set(X)
                y = sched.compute_async(line.graph, [line.y]).results()[0]
                np.testing.assert_allclose(y, line.expected(X), rtol=1e-4, atol=1e-4)
        with pytest.raises(gb.errors.InvalidArgumentError):
            sched.n_copies = 0
        assert sched.n_copies == 1


# --------------------------------------------------------------------------------------------------------- checked runs


def test_checked_runs(line, rng, cpu, slow):
    with gb.Scheduler([slow, cpu], check=True, n_copies=2) as sched:
        sched.set_backend(line.h, slow)
        sched.allocate(line.graph)
        line.set_weights(rng)
        for X in batches(rng, 3):
            line.x.set(X)
            assert sched.compute(line.graph)
            np.testing.assert_allclose(line.y.numpy(), line.expected(X), rtol=1e-4, atol=1e-4)
            y = sched.compute_async(line.graph, [line.y]).results()[0]
            np.testing.assert_allclose(y, line.expected(X), rtol=1e-4, atol=1e-4)


@unchecked
def test_checked_runs_poison_dead_memory(ctx, cpu):
    """Checked runs fill the memory of an intermediate result with NaN after its last use."""
    x = ctx.tensor((8, 8), name="x")
    h = (x @ x).named("h")
    k = (h @ h).named("k")
    y = (k @ x).named("y")
    graph = ctx.graph(y)
    for check in (False, True):
        with gb.Scheduler([cpu], check=check) as sched:
            sched.allocate(graph)
            x.set(np.eye(8, dtype=np.float32))
            sched.compute(graph)
            np.testing.assert_array_equal(y.numpy(), np.eye(8))
            assert np.isnan(h.numpy()).all() == check


# --------------------------------------------------------------------------------------------------------------- events


def test_events(line, rng, cpu, slow):
    with gb.backend.Event(slow) as event, gb.Scheduler([slow, cpu]) as sched:
        event.synchronize()  # never recorded: complete
        assert event.backend is slow
        place_all(sched, line, slow, rng)
        line.x.set(1)
        start = time.perf_counter()
        sched.compute_async(line.graph)
        assert event.record() is event
        event.wait(cpu)  # the host waits: the CPU has no queue
        assert time.perf_counter() - start >= 2.9e-3
        event.wait(slow)  # its own queue is in order: no wait
        event.synchronize()
        sched.synchronize()
    assert event.closed
    assert "closed" in repr(event)
    for act in (event.record, event.synchronize, lambda: event.wait(cpu), event.__enter__):
        with pytest.raises(gb.errors.StateError, match="closed"):
            act()
    event.close()


def test_a_device_waits_for_the_event_of_another(cpu):
    a, b = gb.Backend("SIM:name=A,delay=40ms"), gb.Backend("SIM:name=B")
    with gb.Context() as left, gb.Context() as right, gb.Scheduler([a, cpu]) as one, gb.Scheduler([b, cpu]) as two:
        graphs = []
        for ctx, sched, device in ((left, one, a), (right, two, b)):
            x = ctx.tensor((4, 4), name="x")
            graph = ctx.graph(gb.ops.relu(x))
            sched.set_backend(graph.nodes[0], device)
            sched.allocate(graph)
            x.set(1)
            sched.compute(graph)
            graphs.append(graph)
        start = time.perf_counter()
        one.compute_async(graphs[0])
        mark = gb.backend.Event(a).record()
        mark.wait(b)
        b.synchronize()
        assert time.perf_counter() - start >= 39e-3


def test_events_in_any_order_of_closing():
    a = gb.Backend("SIM")
    event = gb.backend.Event(a)
    a.close()
    with pytest.raises(gb.errors.StateError):
        gb.backend.Event(a)
    event.record().synchronize()
    event.close()
    with gb.backend.Event(gb.Backend("CPU")) as on_cpu:
        on_cpu.record().synchronize()
    assert "Event of CPU" in repr(gb.backend.Event(gb.Backend("CPU")))


# ----------------------------------------------------------------------------------------------------------- statistics


def test_stats(cpu, slow):
    with gb.Context() as weights, gb.Context() as ctx, gb.Scheduler([slow, cpu]) as sched:
        w = weights.tensor((16, 16), name="w")
        weights.allocate(cpu, usage="weights")
        w.set(np.eye(16, dtype=np.float32))
        x = ctx.tensor((4, 16), name="x").set_input()
        h = (x @ w.T).named("h")
        y = gb.ops.relu(h + 1.0).named("y").set_output()
        graph = ctx.graph(y)
        fresh = sched.stats
        assert fresh.runs == fresh.nbytes_copied == fresh.plans_made == 0
        for node in graph.nodes:
            sched.set_backend(node, slow if node is h or node.name == "h" else cpu)
        sched.allocate(graph)
        x.set(1)
        for _ in range(4):
            sched.compute(graph)
        s = sched.stats
        assert s.runs == 4
        assert (s.plans_made, s.plans_replayed) == (1, 0)
        assert s.plan_hits >= 3
        assert s.weights == (1, 16 * 16 * 4)  # one copy
        assert s.up_to_date == (3, 3 * 16 * 16 * 4)
        assert s.results == (4, 4 * 4 * 16 * 4)  # h in each run
        assert s.inputs.n in (0, 4)  # x, unless it is on the device that reads it
        assert s.write_backs == (0, 0)
        assert s.nbytes_copied == s.weights.nbytes + s.inputs.nbytes + s.results.nbytes
        assert s.run_seconds > 0
        assert s.plan_seconds > 0
        assert s.run_seconds + s.wait_seconds >= 4 * 2.9e-3
        assert s.waits_host >= 4  # the CPU has no queue
        assert [t.runs for t in s.splits] == [0, 0]
        assert [t.mean for t in s.splits] == [0.0, 0.0]
        for word in ("4 runs", "1 made", "1,024 bytes in 1 copy", "waits"):
            assert word in str(s), word
        assert "runs=4" in repr(s)
        with pytest.raises(AttributeError):
            s.runs = 5
        w.set(np.eye(16, dtype=np.float32) * 2)  # the kept copy is outdated
        sched.reset_stats()
        assert sched.stats.runs == 0
        sched.compute(graph)
        assert sched.stats.weights == (1, 1024)
        assert (y.numpy() == 3).all()
        w.numpy()[...] = np.eye(16, dtype=np.float32) * 4  # the scheduler cannot notice this write
        sched.compute(graph)
        assert (y.numpy() == 3).all()
        w.buffer.changed()
        sched.compute(graph)
        assert sched.stats.weights == (2, 2048)
        assert (y.numpy() == 5).all()
    for act in (lambda: sched.stats, sched.reset_stats, lambda: sched.n_copies):
        with pytest.raises(gb.errors.StateError, match="closed"):
            act()


def test_stats_of_results_written_back(ctx, cpu, slow):
    home = gb.Context()
    kept = home.tensor((4, 8), name="kept")
    home.allocate(cpu)
    kept.set(1)
    y = gb.ops.cpy(kept * 2.0, kept)
    graph = ctx.graph(y)
    with gb.Scheduler([slow, cpu]) as sched:
        for node in graph.nodes:
            sched.set_backend(node, slow)
        for i in range(3):
            sched.compute(graph)
            assert (kept.numpy() == 2.0 ** (i + 1)).all()
        assert sched.stats.write_backs == (3, 3 * 4 * 8 * 4)


# -------------------------------------------------------------------------------------------------------------- threads


def test_threads_share_the_devices(cpu):
    """Each thread has a scheduler and pending runs. One thread reads arrays while others compute."""
    a, b = gb.Backend("SIM:name=A,delay=1ms"), gb.Backend("SIM:name=B,copy_delay=1ms")

    def work(i):
        own = np.random.default_rng(i)
        with gb.Context() as ctx, gb.Scheduler([(a, b)[i % 2], (b, a)[i % 2], cpu], n_copies=1 + i % 3) as sched:
            line = Line(ctx)
            sched.set_backend(line.h, (a, b)[i % 2])
            sched.allocate(line.graph)
            line.set_weights(own)
            for _ in range(5):
                inputs = batches(own, 3)
                pending = []
                for X in inputs:
                    line.x.set(X)
                    pending.append(sched.compute_async(line.graph, [line.y]))
                np.testing.assert_allclose(line.y.numpy(), line.expected(inputs[-1]), rtol=1e-4, atol=1e-4)
                for X, p in zip(inputs, pending, strict=True):
                    np.testing.assert_allclose(p.results()[0], line.expected(X), rtol=1e-4, atol=1e-4)

    run_threads(6, work)


def test_threads_wait_for_one_run(line, rng, cpu, slow):
    with gb.Scheduler([slow, cpu]) as sched:
        sched.allocate(line.graph)
        line.set_weights(rng)
        (X,) = batches(rng, 1)
        line.x.set(X)
        pending = sched.compute_async(line.graph, [line.y])
        got = []
        run_threads(4, lambda _: got.append(pending.results()[0]))
        for y in got:
            np.testing.assert_allclose(y, line.expected(X), rtol=1e-4, atol=1e-4)


def test_objects_of_pending_runs_can_be_dropped(rng, cpu):
    """All objects are dropped while devices still write into their arrays."""
    for delay in ("0", "1ms", "5ms"):
        for keep in range(3):
            device = gb.Backend(f"SIM:delay={delay}")
            ctx = gb.Context()
            line = Line(ctx)
            sched = gb.Scheduler([device, cpu], n_copies=3)
            sched.allocate(line.graph)
            line.set_weights(rng)
            line.x.set(1)
            pending = [sched.compute_async(line.graph, [line.y]) for _ in range(3)]
            if keep == 0:
                del pending, sched
            elif keep == 1:
                ctx.close()
                del sched, line
                pending[2].wait()
                pending[0].results()
            else:
                device.close()
                sched.close()
            gc.collect()


@unchecked
@pytest.mark.parametrize("n_copies", [1, 2, 3])
@pytest.mark.parametrize("delay", ["0ms", "1ms", "5ms"])
@pytest.mark.parametrize("pause", [0, 0.003])
@pytest.mark.parametrize("asks_first", [True, False])
def test_a_failed_run_never_returns_results(cpu, n_copies, delay, pause, asks_first):
    """The device fails while a later run is issued, or before. Some call reports it, and no run
    returns results that it did not compute."""
    bad = gb.Backend(f"SIM:delay={delay},fail_op=sqr")
    ctx = gb.Context()
    x = ctx.tensor(4)
    y = gb.ops.sqr(x) + 1.0
    graph = ctx.graph(y)
    other = ctx.graph(gb.ops.relu(x))
    with gb.Scheduler([bad, cpu], n_copies=n_copies) as sched:
        sched.allocate(graph)
        x.set(2.0)
        pending = []
        for _ in range(4):
            with contextlib.suppress(gb.errors.DeviceError):
                pending.append(sched.compute_async(graph, [y]))
            time.sleep(pause)
        if not asks_first:  # planning another graph waits for all runs, and may raise their failures
            with contextlib.suppress(gb.errors.DeviceError):
                sched.compute(other)
        assert pending
        for p in pending:
            with pytest.raises((gb.errors.DeviceError, gb.errors.StateError)):
                p.results()
            assert "failed" in repr(p)
        with contextlib.suppress(gb.errors.DeviceError):
            sched.synchronize()
        assert sched.compute(other)
        np.testing.assert_array_equal(other.outputs[0].numpy(), np.full(4, 2, np.float32))
        with pytest.raises(gb.errors.DeviceError):
            sched.compute(graph)
        with pytest.raises(gb.errors.StateError):
            y.numpy()


def test_splits_describe_the_last_graph_after_an_exception(cpu):
    scheduler = gb.Scheduler([cpu])
    graphs = []
    for n in (1, 500):
        ctx = gb.Context()
        y = x = ctx.tensor(4, name="x")
        for _ in range(n):
            y = gb.ops.relu(y)
        graphs.append(ctx.graph(y))
        scheduler.allocate(graphs[-1])
        x.set(1.0)
    few, many = graphs

    def boom(t: gb.Tensor) -> None:
        assert len(scheduler.splits[0].nodes) == 500
        raise ZeroDivisionError

    assert scheduler.compute(few)
    assert len(scheduler.splits[0].nodes) == len(few.nodes)
    with pytest.raises(ZeroDivisionError):
        scheduler.compute(many, boom)
    assert len(scheduler.splits[0].nodes) == len(many.nodes)
    assert scheduler.compute(few)
    assert len(scheduler.splits[0].nodes) == len(few.nodes)


def test_splits_while_threads_compute_other_graphs(holds):
    holds("""
        s = gb.Scheduler([cpu])
        def graph(n):
            ctx = gb.Context(); y = x = ctx.tensor(4)
            for _ in range(n): y = gb.ops.relu(y)
            g = ctx.graph(y); s.allocate(g); x.set(1.0)
            return g
        few, many = graph(1), graph(3000)
        stop = []
        def work(g):
            while not stop: s.compute(g)
        threads = [threading.Thread(target=work, args=(g,)) for g in (few, many)]
        for t in threads: t.start()
        seen = set()
        try:
            for _ in range(20):
                nodes = s.splits[0].ops
                assert [*nodes] == ["RELU"] * len(nodes)
                seen.add(len(nodes))
        finally:
            stop.append(1)
        for t in threads: t.join()
        assert seen <= {1, 3000}, seen
    """)


def test_an_event_can_follow_a_pending_run():
    cpu, sim = gb.Backend("CPU", n_threads=1), gb.Backend("SIM:delay=300ms")
    scheduler = gb.Scheduler([sim, cpu], n_copies=2)
    ctx = gb.Context()
    x = ctx.tensor(4)
    y = gb.ops.relu(x)
    graph = ctx.graph(y)
    scheduler.allocate(graph)
    x.set(1.0)
    first = scheduler.compute_async(graph)
    event = gb.backend.Event(sim).record()
    assert "running" in repr(first)
    second = scheduler.compute_async(graph)
    event.synchronize()  # behind the first run, not behind the second
    assert "running" in repr(second)
    second.wait()
    assert y.tolist() == [1.0] * 4
