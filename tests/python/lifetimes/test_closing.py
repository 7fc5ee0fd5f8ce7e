"""Threads, signal handlers, callbacks and finalizers close and free objects that others use. Copies are refused."""

from __future__ import annotations

import copy
import pickle

import pytest

import ggml_backend as gb

pytestmark = pytest.mark.slow

# name: the call that closes an object, and the calls that use it meanwhile
CLOSES = {
    "context, read": ("w.ctx.close()", "w.y.numpy(copy=True)"),
    "context, shape": ("w.ctx.close()", "w.x.shape, w.x.name, w.x.op, repr(w.x)"),
    "context, set": ("w.ctx.close()", "w.x.set(1.0)"),
    "context, build": ("w.ctx.close()", "gb.ops.relu(w.x), w.ctx.graph(w.y), w.ctx.tensor(3), w.ctx.tensors()"),
    "context of its own, read": ("w.loose.close()", "w.l.numpy(copy=True), w.l.numpy()"),
    "context of its own, facts": (
        "w.loose.close()",
        "w.l.shape, w.l.strides, w.l.name, w.l.op, repr(w.l), w.l.location, w.loose.used_nbytes, repr(w.loose)",
    ),
    "context of its own, set": ("w.loose.close()", "w.l.set(1.0)"),
    "context of its own, build": (
        "w.loose.close()",
        "w.l[1:], gb.ops.relu(w.l), w.l.T, w.loose.tensor(3), w.loose.tensors(), w.loose.get('l')",
    ),
    "context of its own, graph": ("w.loose.close()", "w.loose.graph(gb.ops.relu(w.l)).nodes"),
    "context of its own, copy": ("w.loose.close()", "w.l.copy_from(w.t), w.t.copy_from(w.l)"),
    "buffer, facts": ("w.b.close()", "w.b.name, repr(w.b), w.b.nbytes, w.b.usage, w.b.type.name"),
    "buffer, clear": ("w.b.close()", "w.b.clear()"),
    "buffer, tensors": ("w.b.close()", "w.t.set(1.0), w.t.numpy(copy=True), w.u.copy_from(w.t)"),
    "backend, facts": ("w.cpu.close()", "w.cpu.n_threads, w.cpu.level, repr(w.cpu), w.cpu.alignment"),
    "backend, compute": ("w.cpu.close()", "w.h.compute(w.cpu)"),
    "scheduler, compute": ("w.s.close()", "w.s.compute(w.g)"),
    "scheduler, facts": ("w.s.close()", "w.s.splits, repr(w.s), w.s.stats, w.s.explain(w.y)"),
    "event": ("w.e.close()", "w.e.record(), w.e.synchronize()"),
    "allocator": ("w.a.close()", "w.a.max_nbytes, w.a.reset(), repr(w.a)"),
}

CLOSING = """
class W:
    def __init__(w):
        w.cpu = gb.Backend("CPU", n_threads=1)
        w.ctx, w.x, w.y, w.g, w.s = small(gb.Scheduler([w.cpu]))
        w.own = gb.Context(); w.t = w.own.tensor((64, 64)); w.u = w.own.tensor((64, 64))
        w.loose = gb.Context(1 << 20, allocate=True); w.l = w.loose.tensor((64, 64), name="l"); w.l.set(1.0)
        w.r = gb.ops.relu(w.t); w.h = w.own.graph(w.r)
        w.b = w.own.allocate(w.cpu); w.t.set(1.0)
        w.e = gb.backend.Event(w.cpu); w.a = gb.sched.TensorAllocator(w.cpu, 4096)
"""


@pytest.mark.parametrize("case", CLOSES)
def test_close_in_another_thread(holds, case):
    close, use = CLOSES[case]
    holds(
        CLOSING
        + f"""
sys.setswitchinterval(1e-6)
end = time.monotonic() + LONGER
while time.monotonic() < end:
    w = W(); over = threading.Event()
    users = [thread(again(lambda: ({use}), over)) for _ in range(2)]
    time.sleep(random.uniform(0, 0.004))
    {close}
    time.sleep(random.uniform(0, 0.001))
    over.set()
    for u in users: u.finish()
"""
    )


@pytest.mark.parametrize("case", CLOSES)
def test_close_in_a_signal_handler(holds, case):
    close, use = CLOSES[case]
    holds(
        CLOSING
        + f"""
end = time.monotonic() + 0.6 * LONGER
def fire(number, frame):
    global closed
    {close}
    closed = True
signal.signal(signal.SIGALRM, fire)
while time.monotonic() < end:
    w = W(); closed = False
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
    while not closed:
        try: {use}
        except OURS: pass
    try: {use}
    except OURS: pass
"""
    )


@pytest.mark.parametrize("what", ["ctx", "b", "s", "cpu", "loose"])
def test_close_inside_the_conversion_of_an_argument(holds, what):
    holds(
        CLOSING
        + f"""
class A:
    def __init__(self, shape): self.shape = shape
    def __array__(self, dtype=None, copy=None):
        w.{what}.close()
        for thing in (w.ctx, w.s): repr(thing)
        gc.collect()
        return np.ones(self.shape, np.float32)
calls = [
    lambda: w.x.set(A((4, 4))), lambda: w.t.set(A((64, 64))), lambda: w.l.set(A((64, 64))), lambda: w.x + A((4,)),
    lambda: w.l + A((64,)), lambda: w.own.constant(A((3,))), lambda: w.loose.constant(A((3,))),
    lambda: w.l.set(A((2,)), 1), lambda: w.x.set(A((2,)), 1),
]
for call in calls:
    for _ in range(12):
        w = W()
        try: call()
        except (OURS, TypeError): pass
"""
    )


def test_close_in_a_callback_ends_the_run(holds):
    """Otherwise a later call on its devices would wait forever for a run that no thread can
    finish."""
    holds("""
    slow = gb.Backend("SIM", delay="20ms"); s = gb.Scheduler([slow, cpu])
    ctx = gb.Context(); x = ctx.tensor((4, 4))
    def close(d, a):
        s.close(); d[...] = a
    y = gb.ops.relu(gb.ops.map_custom(close, x)); g = ctx.graph(y)
    s.set_backend(y, slow); s.allocate(g); x.set(2.0)
    p = s.compute_async(g, [y])
    assert s.closed
    both(lambda: gb.backend.Event(slow).record().synchronize())
    assert (p.results()[0] == 2).all()
    """)


def test_close_while_another_thread_starts_runs(holds):
    holds("""
    sys.setswitchinterval(1e-6)
    slow = gb.Backend("SIM", delay="200us")
    end = time.monotonic() + LONGER
    while time.monotonic() < end:
        ctx, x, y, g, s = small(gb.Scheduler([slow, cpu])); kept = []; over = threading.Event()
        starter = thread(again(lambda: kept.append(s.compute_async(g, [y])), over))
        time.sleep(random.uniform(0, 0.002))
        s.close()
        over.set(); starter.finish()
        gb.backend.Event(slow).record(); cpu.synchronize()
        for p in kept[-3:]:
            try: assert (p.results()[0] == 3).all()
            except OURS: pass
    """)


def test_dot_reads_no_freed_memory(holds):
    """DOT output contains the values of small constants."""
    holds("""
    sys.setswitchinterval(1e-6)
    end = time.monotonic() + LONGER
    while time.monotonic() < end:
        ctx, s, over = gb.Context(), gb.Scheduler([cpu]), threading.Event()
        x = ctx.tensor(3, name="x"); c = ctx.constant([4.25]); g = ctx.graph(gb.ops.relu(x) + c)
        s.allocate(g); x.set(2.5); s.compute(g)
        assert "2.5" in g.to_dot() and "4.25" in g.to_dot()
        pictures = []
        drawer = thread(again(lambda: pictures.append(g.to_dot()), over))
        for _ in range(10):
            s.reset(); s.allocate(g); x.set(2.5)
        s.close(); over.set(); drawer.finish()
        for dot in pictures:
            values = [line.split("|(")[1].split(")")[0].split(", ") for line in dot.splitlines() if "|(" in line]
            allowed = {"2.5", "2.50", "2.500", "4.25", "4.250", "0", "0.0", "0.000"}
            assert {v for group in values for v in group} <= allowed, values
    """)


def test_a_callback_can_write_dot(ctx, cpu):
    with gb.Scheduler([cpu]) as scheduler:
        x = ctx.tensor(3, name="x")
        graph = ctx.graph(gb.ops.relu(x))
        scheduler.allocate(graph)
        x.set(2.5)
        seen = []
        assert scheduler.compute(graph, lambda t: bool(seen.append(graph.to_dot())) or True)
        assert seen
        assert "2.5" in seen[0]


def test_a_generator_is_freed_while_its_scheduler_computes(holds):
    holds("""
    def suspended():
        with gb.Context() as ctx, gb.Scheduler([cpu]) as s:
            x = ctx.tensor(3); g = ctx.graph(x * 2.0); s.allocate(g); x.set(1.0)
            yield 1
    ctx, x, y, g, s = small()
    kept = []
    def callback(t):
        kept.append(suspended())
        try: next(kept[-1])
        except OURS: pass
        kept.clear(); gc.collect()
        return True
    for _ in range(5):
        outside = suspended(); next(outside)
        kept.append(outside); del outside
        def drop(t):
            kept.clear(); gc.collect(); return True
        assert s.compute(g, drop)
        s.compute(g, callback)
    """)


@pytest.mark.parametrize("what", ["s", "b", "ctx", "cpu", "e", "a", "g", "x"])
def test_copies_of_objects_are_refused_or_are_the_object(holds, what):
    holds(
        CLOSING
        + f"""
import copy
w = W()
thing = w.{what}
for make in (copy.copy, copy.deepcopy):
    try: other = make(thing)
    except (TypeError, OURS): continue
    if hasattr(thing, "close"):
        thing.close()
        assert other.closed, "one half is open"
        for use in (lambda: repr(other), lambda: other.__enter__()):
            try: use()
            except OURS: pass
        break
    else:
        repr(other)
"""
    )


def test_objects_that_close_cannot_be_copied(tmp_path, cpu):
    """Includes every class with ``close`` or ``stop``: a copy would use what the original has closed."""
    path = tmp_path / "model.gguf"
    writer = gb.gguf.Writer(path)
    writer.add("general.architecture", "test")
    writer.close()
    closable = {
        kind
        for module in (gb, gb.gguf)
        for kind in vars(module).values()
        if isinstance(kind, type) and (hasattr(kind, "close") or hasattr(kind, "stop"))
    } - {gb.devices.Device}  # an object of the user, closed by its backend
    with gb.gguf.open(path) as file, gb.Context() as ctx, gb.Scheduler([cpu]) as scheduler, scheduler.trace() as trace:
        things = [
            file,
            writer,
            ctx,
            scheduler,
            trace,
            cpu,
            cpu.allocate(64),
            gb.backend.Event(cpu),
            gb.sched.TensorAllocator(cpu, 4096),
            gb.sched.GraphAllocator(cpu),
            gb.cluster.start(),
            scheduler.profile(),
        ]
        kinds = {type(thing) for thing in things}
        assert {kind.__name__ for kind in closable - kinds} <= {"Weights"}, (
            "whose copy shares its memory, and closes it for both"
        )
        for thing in things:
            for make in (copy.copy, copy.deepcopy):
                with pytest.raises(
                    TypeError, match=f"{type(thing).__name__} cannot be copied: both would close the same thing"
                ):
                    make(thing)
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(thing)


def test_finalizers_can_use_a_file_of_their_cycle(holds, tmp_path):
    """Python's collector calls finalizers in any order, so the file must outlive its users."""
    holds(f"""
    path = {str(tmp_path / "model.gguf")!r}
    with gb.gguf.Writer(path) as writer:
        writer.add("general.architecture", "test"); writer.add_tensor("w", np.eye(8, dtype=np.float32))
    done = []
    class Last:
        def __del__(self):
            assert self.file.metadata["general.architecture"] == "test"
            assert (self.file.tensors["w"].numpy() == np.eye(8)).all()
            assert (self.file.load(cpu)["w"].numpy() == np.eye(8)).all()
            self.writer.add(f"key {{len(done)}}", 1); repr(self.writer)
            done.append(1)
    sys.unraisablehook = lambda hook: (print(repr(hook.exc_value), file=sys.stderr), os._exit(3))
    for i in range(60):
        things = [Last(), gb.gguf.open(path), gb.gguf.Writer(path), Last()]
        random.Random(i).shuffle(things)
        file, = [t for t in things if isinstance(t, gb.gguf.GGUFFile)]
        writer, = [t for t in things if isinstance(t, gb.gguf.Writer)]
        for t in things:
            if isinstance(t, Last): t.file, t.writer, t.all = file, writer, things
        things.append(things)
        del file, writer, t, things
        gc.collect()
    assert len(done) == 120, len(done)
    """)
