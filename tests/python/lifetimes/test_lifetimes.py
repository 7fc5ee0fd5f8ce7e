"""Closing in any order, use after close, arrays over freed memory, and the end of the interpreter."""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
import weakref

import numpy as np
import pytest

import ggml_backend as gb

PARTS = ["context", "weights", "buffer", "scheduler", "cpu", "sim"]


class Scene:
    """A scene with weights in their own context and buffer on a device, a graph over two devices,
    and results in arrays."""

    def __init__(self) -> None:
        self.cpu = gb.Backend("CPU", n_threads=1)
        self.sim = gb.Backend("SIM", mem="16M")
        self.weights = gb.Context()
        self.w = self.weights.tensor((4, 4), name="w")
        self.buffer = self.weights.allocate(self.sim, usage="weights")
        self.w.set(np.eye(4, dtype=np.float32))
        self.context = gb.Context()
        self.x = self.context.tensor((2, 4), name="x")
        self.y = gb.ops.relu(self.x @ self.w.T) + 1.0
        self.graph = self.context.graph(self.y)
        self.scheduler = gb.Scheduler([self.sim, self.cpu])
        self.scheduler.set_backend(self.y, self.cpu)
        self.scheduler.allocate(self.graph)
        self.x.set(2)
        assert self.scheduler.compute(self.graph)
        self.array = self.y.numpy()
        assert (self.array == 3).all()

    def use(self) -> None:
        """Calls every method. Only errors of the package are allowed."""
        acts = [
            lambda: self.scheduler.compute(self.graph), lambda: self.scheduler.allocate(self.graph),
            lambda: self.scheduler.splits,
            self.y.numpy, self.w.numpy, lambda: self.x.set(1), lambda: self.graph.nodes,
            lambda: self.graph.compute(self.cpu),
            lambda: self.graph.compute(self.sim), lambda: gb.ops.relu(self.y), lambda: self.weights.tensor(3),
            lambda: self.buffer.clear(),
            lambda: self.graph.copy(self.cpu), lambda: self.graph.compare(self.sim, self.cpu),
            lambda: self.scheduler.explain(self.y),
            lambda: self.w.buffer, lambda: self.y.location,
            lambda: repr((self.y, self.graph, self.scheduler, self.buffer, self.cpu, self.context)),
            lambda: self.context.allocate(self.cpu), lambda: self.cpu.allocate(64), lambda: self.sim.supports(self.y),
            lambda: self.graph.to_dot(),
            lambda: self.scheduler.memory(self.cpu), lambda: self.scheduler.get_backend(self.y),
            lambda: self.scheduler.reserve(self.graph),
        ]  # fmt: skip
        for act in acts:
            with contextlib.suppress(gb.GgmlError, ValueError):
                act()


@pytest.mark.parametrize("order", list(itertools.permutations(PARTS))[::7], ids="-".join)
def test_closing_in_any_order(order):
    scene = Scene()
    for part in order:
        getattr(scene, part).close()
        scene.use()
        assert np.isfinite(scene.array).all()  # valid, also after `use` computes into it
    for part in order:
        getattr(scene, part).close()  # again
        if hasattr(getattr(scene, part), "closed"):
            assert getattr(scene, part).closed
    with pytest.raises(gb.errors.StateError):
        scene.y.numpy()


@pytest.mark.parametrize("order", list(itertools.permutations(PARTS))[::31], ids="-".join)
def test_dropping_in_any_order(order):
    scene = Scene()
    array = scene.array
    for name in ("x", "y", "w", "graph"):
        delattr(scene, name)
    before = array.copy()
    for part in order:
        delattr(scene, part)
        gc.collect()
        np.testing.assert_array_equal(array, before)


def test_scene_computes_again_and_again():
    for _ in range(20):
        Scene()


def test_memory_is_freed_without_garbage_collection():
    """A device of 1 MiB holds one buffer of 0.6 MiB at a time."""
    gc.disable()
    try:
        device = gb.Backend("SIM", mem="1M")
        for _ in range(5):
            with gb.Context() as ctx:
                ctx.tensor(150_000)
                ctx.allocate(device)
        for _ in range(5):
            buffer = device.allocate(600_000)
            buffer.close()
        for _ in range(5):
            with gb.Context() as ctx, gb.Scheduler([device]) as scheduler:
                graph = ctx.graph(ctx.tensor(80_000) * 2.0)
                scheduler.allocate(graph)
        for _ in range(5):
            ctx = gb.Context()
            graph = ctx.graph(ctx.tensor(80_000) * 2.0)
            scheduler = gb.Scheduler([device])
            scheduler.allocate(graph)
            graph.leafs[0].set(1)
            with pytest.raises(ZeroDivisionError):
                scheduler.compute(graph, callback=lambda t: 1 / 0)
            del ctx, graph, scheduler
    finally:
        gc.enable()


def test_tensors_in_a_closed_buffer(ctx, cpu):
    a, b = ctx.tensor(8, name="a"), ctx.tensor(8, name="b")
    buffer = ctx.allocate(cpu)
    view, array = a[2:4], b.numpy()
    array[:] = 5
    buffer.close()
    for act in (a.numpy, lambda: a.set(1), view.numpy, lambda: b.numpy(), lambda: a.copy_from(b), buffer.clear):
        with pytest.raises(gb.errors.StateError):
            act()
    assert (array == 5).all()
    del array
    again = ctx.allocate(cpu)
    a.set(1)
    assert view.tolist() == [1, 1]
    assert a.buffer == again


def test_a_reused_address_is_not_the_old_buffer(ctx, cpu):
    old = ctx.tensor(1000, name="old")
    for _ in range(20):
        buffer = cpu.allocate(8192)
        new = ctx.tensor(1000)
        buffer.place(new)
        new.set(1)
        buffer.close()
        with pytest.raises(gb.errors.StateError):
            new.numpy()
    assert not old.is_placed


def test_arrays_keep_their_memory_alive(cpu):
    def array_of(kind):
        ctx = gb.Context()
        t = ctx.tensor((100, 100))
        if kind == "buffer":
            ctx.allocate(cpu)
            t.set(4)
            return t.numpy()
        y = t * 2.0
        scheduler = gb.Scheduler([cpu])
        graph = ctx.graph(y)
        scheduler.allocate(graph)
        t.set(2)
        scheduler.compute(graph)
        return y.numpy()[10:20, ::3]

    for kind in ("buffer", "scheduler"):
        arrays = [array_of(kind) for _ in range(10)]
        gc.collect()
        for a in arrays:
            assert (a == 4).all()
            a[...] = 7


def test_a_backend_lives_as_long_as_its_users(ctx):
    backend = gb.Backend("SIM")
    t = ctx.tensor(4)
    ctx.allocate(backend)
    scheduler = gb.Scheduler([backend])
    graph = ctx.graph(t * 2.0)
    backend.close()
    t.set(3)
    assert scheduler.compute(graph)
    assert graph.outputs[0].tolist() == [6, 6, 6, 6]
    with pytest.raises(gb.errors.StateError, match="closed"):
        graph.compute(backend)


def test_objects_are_freed_by_reference_counting():
    gc.collect()
    gc.disable()
    try:
        scene = Scene()
        cores = [weakref.ref(c) for c in (scene.cpu._core, scene.sim._core, scene.weights._core, scene.context._core,
         scene.scheduler._core,
                                          scene.buffer._core, scene.graph._core)]  # fmt: skip
        del scene
        assert [r() for r in cores] == [None] * len(cores)
    finally:
        gc.enable()


def test_exporter_is_kept_and_released():
    data = np.ones(16, np.float32)
    alive = weakref.ref(data)
    ctx = gb.Context()
    t = ctx.from_numpy(data)
    del data
    gc.collect()
    assert alive() is not None
    array = t.numpy()
    ctx.close()
    del t, ctx
    gc.collect()
    assert (array == 1).all()
    del array
    gc.collect()
    assert alive() is None


def test_use_after_close_in_every_class(cpu):
    ctx = gb.Context()
    t = ctx.tensor(3)
    graph = ctx.graph(t * 1.0)
    allocator = gb.sched.TensorAllocator(cpu, 64)
    galloc = gb.sched.GraphAllocator(cpu)
    for thing in (ctx, allocator, galloc):
        thing.close()
        thing.close()
        with pytest.raises(gb.errors.StateError), thing:
            pass
        assert "closed" in repr(thing)
    for act in (
        lambda: t.ne,
        lambda: graph.nodes,
        lambda: len(graph),
        graph.to_dot,
        lambda: graph.compute(cpu),
        lambda: galloc.allocate(graph),
    ):
        with pytest.raises(gb.errors.StateError, match="closed"):
            act()
    assert "closed" in repr(graph)


def test_finalizers_in_a_cycle_can_use_everything():
    """Python calls the finalizers of a cycle in any order, so memory must stay valid until the last
    one."""
    done = []

    class Last:
        def __init__(self, scene):
            self.scene, self.array, self.me = scene, scene.array, self

        def __del__(self):
            self.array += 1
            done.append(float(self.array[0, 0]))
            self.scene.use()
            self.scene.scheduler.close()
            self.scene.context.close()
            self.array += 1

    for _ in range(5):
        scene = Scene()
        scene.first, scene.cycle = Last(scene), scene
        scene.last = Last(scene)
        del scene
        gc.collect()
    assert len(done) == 10


@pytest.mark.parametrize("has", ["operation", "every callback"])
def test_cycles_through_functions_are_collected(has):
    """A model whose methods are functions of custom nodes and callbacks, so references form cycles."""

    class Model:
        def __init__(self) -> None:
            self.cpu, self.ctx = gb.Backend("CPU", n_threads=1), gb.Context()
            self.x = self.ctx.tensor(4)
            self.y = gb.ops.map_custom(self.twice, gb.ops.map_custom(self.twice, self.x))
            self.graph, self.scheduler = self.ctx.graph(self.y), gb.Scheduler(self.cpu)
            if has == "every callback":
                self.scheduler.set_eval_callback(self.shown)
                gb.sched.set_abort_callback(self.cpu, self.ends)
            self.scheduler.allocate(self.graph)
            self.x.set(1.0)

        def twice(self, out, a):
            out[...] = a + a if self.ctx is not None else 0

        def shown(self, t):
            return self.ctx is not None

        def ends(self):
            return self.ctx is None

        def __del__(self):  # all objects are still usable here
            assert self.scheduler.compute(self.graph)
            results.append(self.y.tolist())

    results, models = [], [Model() for _ in range(3)]
    assert models[0].scheduler.compute(models[0].graph)
    seen = [weakref.ref(o) for m in models for o in (m, m.ctx, m.graph, m.scheduler, m.cpu)]
    del models
    gc.collect()
    assert [s() for s in seen] == [None] * len(seen)
    assert results == [[4.0] * 4] * 3


def test_a_dropped_scheduler_finishes_its_work():
    for _ in range(3):
        device = gb.Backend("SIM", delay="20ms")
        ctx = gb.Context()
        x = ctx.tensor(64)
        graph = ctx.graph(gb.ops.relu(x * 2.0))
        scheduler = gb.Scheduler([device])
        scheduler.allocate(graph)
        x.set(1)
        scheduler.compute_async(graph)
        alive = weakref.ref(scheduler._core)
        del device, ctx, x, graph, scheduler
        assert alive() is None


# ----------------------------------------------------------------------------------------------------- interpreter exit

SETUP = """
import numpy as np, ggml_backend as gb, sys, threading
cpu, sim = gb.Backend("CPU", n_threads=2), gb.Backend("SIM")
ctx = gb.Context()
x = ctx.tensor((8, 8), name="x")
y = gb.ops.map_custom(lambda d, a: a + 1, gb.ops.relu(x @ x.T)) * 2.0
graph = ctx.graph(y)
sched = gb.Scheduler([sim, cpu])
sched.allocate(graph)
x.set(1)
gb.set_log(lambda level, text: None)
sched.compute(graph)
array = y.numpy()
"""

ENDINGS = {
    "open": "",
    "exit": "sys.exit(0)",
    "cycle": "class C: pass\nc = C(); c.c = c; c.all = (cpu, sim, ctx, x, y, graph, sched, array)",
    "function": "def f(): return cpu, sim, ctx, x, y, graph, sched, array",
    "atexit": "import atexit; atexit.register(lambda: (sched.compute(graph), y.numpy().sum(), ctx.close()))",
    "module": "sys.modules['keep'] = type(sys)('keep'); sys.modules['keep'].all = [cpu, sim, ctx, graph, sched, array]",
    "deleter": "class D:\n    def __del__(self): self.s.close(); self.a[0, 0] += 1\nd = D(); d.s = sched; d.a = array",
    "builtins": "import builtins; builtins.everything = (cpu, sim, ctx, graph, sched, array)",
    "async": "sched.compute_async(graph)",
    "unloaded": "for m in [m for m in sys.modules if m.startswith('ggml_backend')]: del sys.modules[m]",
    "thread": "t = threading.Thread(target=lambda: [sched.compute(graph) for _ in range(50)]); t.start()",
    "daemon": (
        """
event = threading.Event()
def loop():
    event.set()
    while True: sched.compute(graph)
threading.Thread(target=loop, daemon=True).start(); event.wait()
"""
    ),
    "async memory": (
        "w = gb.Context(); t = w.from_numpy(np.ones((1000, 1000), np.float32)); g = w.graph(t @ t)\n"
        "s = gb.Scheduler([cpu]); s.compute_async(g)"
    ),
    "exception": (
        "cpu.stop()\ntry: sched.compute(graph, callback=lambda t: 1 / 0)\nexcept ZeroDivisionError as e: kept = e"
    ),
}


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_interpreter_exit_with_everything_open(script, ending):
    script(SETUP + ENDINGS[ending])


def test_views_in_another_context_live_with_it(cpu):
    """Graphs over a cache in another context leave nothing in that context."""
    home = gb.Context()
    cache = home.tensor((2, 3, 4), name="cache")
    home.allocate(cpu)
    cache.set(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    used = home.used_nbytes
    for i in range(3):
        with gb.Context() as ctx:
            view = ctx.view(cache)
            assert (view.shape, view.dtype, view.view_of, view.context) == (cache.shape, cache.dtype, cache, ctx)
            doubled = gb.ops.scale(gb.ops.cont(view[:, i : i + 1]), 2.0)
            scheduler = gb.Scheduler([cpu])
            assert scheduler.compute(ctx.graph(doubled))
            np.testing.assert_array_equal(doubled.numpy(), cache.numpy()[:, i : i + 1] * 2)
    assert home.used_nbytes == used
    ctx = gb.Context()
    view = ctx.view(cache)
    home.close()
    np.testing.assert_array_equal(view.numpy().reshape(-1), np.arange(24))  # the view keeps its base alive
    with pytest.raises(gb.errors.StateError, match="closed"):
        ctx.view(cache)
    with pytest.raises(TypeError, match=r"Context.view: tensor must be a Tensor"):
        ctx.view(np.zeros(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_context_is_freed_before_the_contexts_of_its_views(cpu, order):
    """For any order of drops, views are freed before their base. Sanitizers check this."""
    homes = [gb.Context() for _ in range(3)]
    stay = [home.tensor((2, 3)) for home in homes]
    for home in homes:
        home.allocate(cpu)
    ctx = gb.Context()
    with ctx.as_default():
        nodes = [gb.ops.cpy(ctx.tensor((2, 3)), stay[i]) for i in order]
    nodes += [gb.ops.scale(ctx.view(stay[i]), 2.0, inplace=True) for i in order]
    graph = ctx.graph(*nodes)
    del homes, home, stay, nodes, ctx
    assert len(graph._core.parents) == 4
    del graph


@pytest.mark.parametrize("first", [0, 1])
def test_views_of_older_and_newer_contexts(cpu, first):
    """A view keeps its memory alive for any order of drops."""
    contexts = [gb.Context(), gb.Context()]
    home, ctx = contexts[first], contexts[1 - first]
    t = home.tensor(3)
    home.allocate(cpu)
    t.set(2.0)
    view = ctx.view(t)
    del t, home, ctx, contexts
    gc.collect()
    assert view.tolist() == [2.0] * 3


def test_contexts_that_use_each_other_are_freed():
    first, second = gb.Context(), gb.Context()
    cores = [weakref.ref(first._core), weakref.ref(second._core)]
    a = first.tensor(3)
    with second.as_default():
        b = a + second.tensor(3)
    graph = first.graph(b)  # the first uses a tensor of the second
    del first, second, a, b, graph
    gc.collect()
    assert [r() for r in cores] == [None, None]


def life_of_a_scheduler(cpu) -> None:
    with gb.Context() as ctx, gb.Scheduler([cpu]) as scheduler:
        x = ctx.tensor(4)
        graph = ctx.graph(x * 2.0)
        scheduler.allocate(graph)
        x.set(1.0)
        assert scheduler.compute(graph)
        assert scheduler.compute_async(graph, [graph.outputs[0]]).results()[0].tolist() == [2, 2, 2, 2]
        scheduler.reset()
        scheduler.allocate(graph)


def life_of_a_buffer(cpu) -> None:
    with gb.Context() as ctx:
        t = ctx.tensor(4)
        buffer = ctx.allocate(cpu)
        t.set(1.0)
        buffer.close()
        ctx.allocate(cpu)


def many_tensors(cpu):
    ctx = gb.Context(1 << 28)
    for _ in range(500_000):
        ctx.tensor(4)
    return ctx


def many_contexts(cpu):
    contexts = [gb.Context() for _ in range(20_000)]
    return contexts, [ctx.tensor(4) for ctx in contexts], [ctx.allocate(cpu) for ctx in contexts]


def many_graphs(cpu):
    """A waiting scheduler, a scheduler with a plan, and a context after many graphs."""
    ctx, waiting, planned = gb.Context(), gb.Scheduler([gb.Backend("SIM", delay="1ms")]), gb.Scheduler([cpu])
    x = ctx.tensor(4)
    graph = ctx.graph(x * 2.0)
    for _ in range(100):
        with gb.Scheduler([cpu]) as scheduler:
            scheduler.allocate(graph)
    planned.allocate(graph)
    other = gb.Context()
    y = other.tensor(4)
    sleeping = other.graph(y * 2.0)
    waiting.allocate(sleeping)
    y.set(1.0)
    waiting.compute(sleeping)
    return ctx, waiting, planned, graph, other, sleeping


def fastest(life, cpu) -> float:
    """Seconds of processor time, which other processes hardly change."""
    times = []
    for _ in range(60):
        start = time.thread_time()
        life(cpu)
        times.append(time.thread_time() - start)
    return min(times)


@pytest.mark.parametrize("life", [life_of_a_scheduler, life_of_a_buffer])
@pytest.mark.parametrize("many", [many_tensors, many_contexts, many_graphs])
def test_open_and_close_take_constant_time(life, many, cpu):
    """A walk over all objects would take several times as much processor time."""
    gc.collect()
    gc.disable()  # collections are slow with many objects
    try:
        alone = fastest(life, cpu)
        others = many(cpu)
        assert fastest(life, cpu) < 2.5 * alone + 5e-5
        del others
    finally:
        gc.enable()
