"""Several Python threads use different objects at once, share objects, and close them while others
work.
"""

from __future__ import annotations

import gc
import random
import threading
import time

import numpy as np
import pytest

import ggml_backend as gb
from threads import run_threads


def small_graph(ctx: gb.Context, factor: float):
    x = ctx.tensor((4, 4), name="x")
    y = gb.ops.relu(x * factor) + 1.0
    return x, y, ctx.graph(y)


@pytest.mark.parametrize("devices", [["CPU"], ["SIM", "CPU"]], ids=str)
def test_each_thread_has_its_own_objects(devices):
    def work(i: int) -> None:
        backends = [gb.Backend(d, n_threads=1) if d == "CPU" else gb.Backend(d) for d in devices]
        with gb.Context() as ctx, gb.Scheduler(backends) as scheduler:
            x, y, graph = small_graph(ctx, i + 1.0)
            scheduler.allocate(graph)
            for k in range(30):
                x.set(float(k))
                assert scheduler.compute(graph)
                assert (y.numpy() == (i + 1) * k + 1).all()

    run_threads(4, work)


def test_threads_share_one_scheduler(cpu):
    ctx = gb.Context()
    scheduler = gb.Scheduler([cpu])
    x, y, graph = small_graph(ctx, 2.0)
    scheduler.allocate(graph)
    x.set(3)

    def work(i: int) -> None:
        for _ in range(100):
            assert scheduler.compute(graph)
            assert y.numpy(copy=True)[0, 0] == 7  # a view would show later results of other threads

    run_threads(4, work)


def test_threads_share_one_backend(cpu):
    def work(i: int) -> None:
        with gb.Context() as ctx:
            x, y, graph = small_graph(ctx, 1.0 + i)
            ctx.allocate(cpu)
            x.set(1)
            for _ in range(100):
                assert graph.compute(cpu)
                assert y.numpy()[0, 0] == i + 2

    run_threads(4, work)


def test_schedulers_that_share_backends_in_different_orders():
    a, b = gb.Backend("SIM"), gb.Backend("CPU", n_threads=1)

    def work(i: int) -> None:
        with gb.Context() as ctx, gb.Scheduler([a, b] if i % 2 else [b, a]) as scheduler:
            x, y, graph = small_graph(ctx, 3.0)
            scheduler.set_backend(y, a)
            scheduler.allocate(graph)
            x.set(1)
            for _ in range(50):
                assert scheduler.compute(graph)
                assert y.numpy()[0, 0] == 4

    run_threads(4, work)


def test_threads_build_in_one_context():
    with gb.Context() as ctx:
        x = ctx.tensor((4, 4))

        def work(i: int) -> None:
            y = x
            for _ in range(300):
                y = gb.ops.relu(y + x)
            assert len(ctx.graph(y)) == 600

        run_threads(4, work)
        assert len(ctx.tensors()) == 1 + 4 * 600


def test_buffers_are_freed_while_other_threads_build(cpu):
    """Freeing a buffer searches all contexts for its tensors, and waits for locked contexts."""
    stop = threading.Event()

    def work(i: int) -> None:
        if i == 0:
            for _ in range(25):
                with gb.Context() as ctx:
                    t = ctx.tensor(64)
                    buffer = ctx.allocate(cpu)
                    t.set(1)
                    array = t.numpy()
                    buffer.close()
                    assert (array == 1).all()
                    del array
                gc.collect()
            stop.set()
        else:
            with gb.Context() as ctx:
                x = ctx.tensor(8)
                while not stop.is_set():
                    x = gb.ops.relu(x)

    run_threads(3, work)


def test_a_waiting_thread_computes_with_the_current_memory(cpu):
    """A thread that waited for the backend computes with the current memory, not with the memory at
    the start of its wait."""
    ctx = gb.Context()
    x, w = ctx.tensor((64, 512)), ctx.tensor((512, 512))
    graph = ctx.graph(gb.ops.relu(x @ w.T))
    end = time.monotonic() + 3
    done = [0, 0, 0]

    def work(i: int) -> None:
        while time.monotonic() < end or (not all(done) and time.monotonic() < end + 120):
            try:
                if i == 0:
                    scheduler = gb.Scheduler([cpu])
                    scheduler.allocate(graph)
                    x.set(1)
                    w.set(1)
                    del scheduler
                else:
                    graph.compute(cpu)
                done[i] += 1
            except gb.GgmlError:
                pass

    run_threads(3, work)
    assert all(done)


def test_tensors_are_not_moved_during_a_computation(cpu):
    computing, closed = threading.Event(), threading.Event()

    def slow(result, a):
        computing.set()
        closed.wait(60)
        np.copyto(result, a)

    with gb.Context() as ctx:
        x = ctx.tensor((1000,), name="x")
        y = gb.ops.relu(gb.ops.map_custom(slow, x)) + 1.0
        graph = ctx.graph(y)
        buffer = ctx.allocate(cpu)
        x.set(np.full(1000, 3, np.float32))
        done: list[bool] = []

        def work(i: int) -> None:
            if i == 0:
                done.append(graph.compute(cpu))
            elif i == 1:
                computing.wait(60)
                buffer.close()
                threading.Timer(0.2, closed.set).start()
                ctx.allocate(cpu)  # waits for the computation that uses the tensors
                done.append(closed.is_set())

        run_threads(2, work)
        assert done == [True, True]
        with pytest.raises(gb.errors.StateError, match="not computed"):
            y.numpy()
        x.set(np.full(1000, 4, np.float32))
        graph.compute(cpu)
        assert y.numpy()[0] == 5.0


def test_random_use_and_closing(cpu, sim):
    """Threads use and close the same objects. Only errors of the package are allowed."""
    lock = threading.Lock()
    shared: dict[str, object] = {}

    def renew() -> None:
        weights, ctx = gb.Context(), gb.Context()
        w = weights.tensor((8, 8), name="w")
        buffer = weights.allocate(random.choice((cpu, sim)), usage="weights")
        w.set(1)
        x = ctx.tensor((2, 8))
        y = gb.ops.relu(x @ w.T)
        scheduler = gb.Scheduler([sim, cpu])
        shared.update(weights=weights, ctx=ctx, w=w, buffer=buffer, x=x, y=y, graph=ctx.graph(y), scheduler=scheduler)

    renew()
    acts = [
        lambda s: s["scheduler"].compute(s["graph"]), lambda s: s["scheduler"].allocate(s["graph"]),
        lambda s: s["y"].numpy().sum(),
        lambda s: s["x"].set(1), lambda s: s["w"].numpy().sum(), lambda s: s["buffer"].close(),
        lambda s: s["scheduler"].close(),
        lambda s: s["ctx"].close(), lambda s: s["weights"].close(), lambda s: s["scheduler"].splits,
        lambda s: s["graph"].nodes,
        lambda s: gb.ops.relu(s["y"]), lambda s: s["graph"].compute(cpu),
        lambda s: s["scheduler"].compute_async(s["graph"]),
        lambda s: s["scheduler"].synchronize(), lambda s: s["y"][0].numpy(), lambda s: s["graph"].copy(cpu),
        lambda s: s["w"].set(2),
        lambda s: s["scheduler"].reset(),
        lambda s: s["scheduler"].compute(s["graph"], callback=lambda t: t.numpy().sum() > -1),
    ]  # fmt: skip
    weight = [20, 10, 20, 20, 5, 1, 1, 1, 1, 5, 5, 5, 5, 10, 10, 5, 2, 5, 2, 5]
    end = time.monotonic() + 6

    def work(i: int) -> None:
        choose = random.Random(i)
        arrays = []
        while time.monotonic() < end:
            with lock:
                if choose.random() < 0.05:
                    renew()
                mine = dict(shared)
            try:
                (act,) = choose.choices(acts, weight)
                with np.errstate(all="ignore"):  # x may be unset
                    act(mine)
                if choose.random() < 0.2:
                    arrays.append(mine["y"].numpy())
            except gb.GgmlError:
                pass
            if len(arrays) > 20:
                for a in arrays:
                    a.tobytes()
                arrays.clear()

    run_threads(4, work)


def test_computing_releases_the_gil():
    slow = gb.Backend("SIM", delay="200ms")
    with gb.Context() as ctx:
        x = ctx.tensor(4)
        graph = ctx.graph(x * 2.0)
        ctx.allocate(slow)
        x.set(1)
        ticks = []
        done = threading.Event()

        def tick() -> None:
            while not done.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.005)

        thread = threading.Thread(target=tick)
        thread.start()
        graph.compute(slow)
        done.set()
        thread.join()
        assert len(ticks) > 8


def test_errors_belong_to_their_thread():
    def work(i: int) -> None:
        with gb.Context() as ctx:
            a, b = ctx.tensor((2, 3 + i), name=f"a{i}"), ctx.tensor((2, 9), name=f"b{i}")
            for _ in range(200):
                with pytest.raises(gb.errors.InvalidArgumentError, match=f"'a{i}'.*'b{i}'"):
                    gb.ops.mul_mat(a, b)

    run_threads(4, work)


def test_log_from_many_threads():
    messages: list[str] = []
    gb.set_log(lambda level, text: messages.append(text))
    try:
        test_errors_belong_to_their_thread()
    finally:
        gb.set_log(None)
    assert len(messages) == 4 * 200


def test_arrays_are_shared_between_threads(cpu):
    ctx = gb.Context()
    t = ctx.tensor(1000)
    ctx.allocate(cpu)
    array = t.numpy()

    def work(i: int) -> None:
        array[i::4] = i

    run_threads(4, work)
    assert (t.numpy() == np.tile(np.arange(4), 250)).all()


def test_graphs_and_schedulers_share_a_backend(cpu):
    """Each computation has exclusive use of the backend, through a graph or a scheduler."""

    def work(i: int) -> None:
        with gb.Context() as ctx:
            x, y, graph = small_graph(ctx, i + 1.0)
            ctx.allocate(cpu)
            scheduler = gb.Scheduler([cpu]) if i % 2 else None
            for k in range(200):
                x.set(float(k))
                assert scheduler.compute(graph) if scheduler else graph.compute(cpu)
                assert (y.numpy() == (i + 1) * k + 1).all()
                if k % 50 == 0:
                    cpu.n_threads = 1 + k // 50 % 2
                    cpu.synchronize()

    run_threads(4, work)


def test_a_backend_is_not_used_from_its_own_callbacks(cpu):
    with gb.Context() as ctx, gb.Scheduler([cpu]) as scheduler:
        x, y, graph = small_graph(ctx, 2.0)
        ctx.allocate(cpu)
        x.set(1.0)
        attempts = []

        def callback(tensor: gb.Tensor) -> bool:
            for use in (
                lambda: graph.compute(cpu),
                cpu.synchronize,
                lambda: scheduler.compute(graph),
                lambda: setattr(cpu, "n_threads", 1),
            ):
                with pytest.raises(gb.errors.StateError, match="called from one of its own callbacks"):
                    use()
                attempts.append(1)
            return True

        assert scheduler.compute(graph, callback)
        assert len(attempts) == 4 * graph.n_nodes
        assert graph.compute(cpu)  # the lock was released
        assert (y.numpy() == 3).all()


# deadlocks
def test_copy_from_a_scheduled_tensor_during_reset(holds):
    holds("""
    sys.setswitchinterval(1e-5)
    own = gb.Context(allocate=True); t = own.tensor((4, 4)); t.set(1.0)
    for i in range(6):  # either of the two may be made first
        ctx, x, y, g, s = small()
        if i % 2: own = gb.Context(allocate=True); t = own.tensor((4, 4)); t.set(1.0)
        over = threading.Event()
        copier = thread(again(lambda: t.copy_from(x), over))
        other = thread(again(lambda: x.copy_from(t), over)) if i > 2 else copier
        for _ in range(400):
            s.reset(); s.allocate(g); x.set(1.0)
        over.set(); copier.finish(); other.finish()
    """)


def test_copy_from_a_scheduled_tensor_while_callbacks_read_the_target(holds):
    holds("""
    sys.setswitchinterval(1e-5)
    for i in range(6):
        own = gb.Context(); w = own.tensor((4, 4)); b = own.allocate(cpu); w.set(1.0)
        ctx, x, y, g, s = small()
        if i % 2: own = gb.Context(); w = own.tensor((4, 4)); b = own.allocate(cpu); w.set(1.0)
        over = threading.Event()
        copier = thread(again(lambda: w.copy_from(y), over))
        other = thread(again(lambda: x.copy_from(w), over)) if i > 2 else copier
        for _ in range(1500):
            try: s.compute(g, lambda t: w.numpy() is not None)
            except gb.errors.StateError: pass
        over.set(); copier.finish(); other.finish()
    """)


def test_callbacks_that_read_schedulers_of_each_other_end(holds):
    """One of them may be refused, but both end."""
    holds("""
    first = small(gb.Scheduler([gb.Backend("CPU", n_threads=1)]))
    second = small(gb.Scheduler([gb.Backend("CPU", n_threads=1)]))
    meet = threading.Barrier(2)
    def compute(mine, other):
        def callback(t):
            try: meet.wait(0.05)
            except threading.BrokenBarrierError: pass
            other[1].numpy()
        for _ in range(20):
            meet.reset()
            try: mine[4].compute(mine[3], callback)
            except OURS: pass
    threads = [thread(lambda a=a, b=b: compute(a, b)) for a, b in ((first, second), (second, first))]
    for t in threads: t.finish()
    for ctx, x, y, g, s in (first, second):
        x.set(1.0); s.compute(g)
        assert (y.numpy() == 3).all()
    """)
