"""What is left behind when an exception comes between two steps of one call, and questions about what another call has
changed meanwhile."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys

import pytest

import ggml_backend as gb
from harness_world import SANITIZED

# An exception before the line that comes after `n` others in a function of the package, as a signal handler's may.
INTERRUPT = """
def interrupted(name, n, act):
    left = [n]
    def trace(frame, event, arg):
        if frame.f_code.co_name == name:
            if event == "line":
                left[0] -= 1
                if left[0] < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace
    sys.settrace(trace)
    try: act()
    except KeyboardInterrupt: return True
    finally: sys.settrace(None)
    return False
"""


# -------------------------------------------------------------------------------------------------------------- custom
# operations


@pytest.mark.parametrize("how", ["graph", "scheduler", "copy"])
def test_a_copied_graph_has_the_custom_operations(holds, how):
    """Also when the original and its context are gone."""
    program = """
        def make():
            ctx = gb.Context()
            x = ctx.tensor(4)
            g = ctx.graph(gb.map_custom(lambda out, a: a * 2, x) + 1.0)
            ctx.allocate(cpu); x.set(3.0)
            return g.copy(cpu)
        cpu = gb.Backend("CPU", n_threads=1)
        k = make()
        if HOW == "copy": k = k.copy(cpu)
        run = (lambda: gb.Scheduler([cpu]).compute(k)) if HOW == "scheduler" else (lambda: k.compute(cpu))
        for _ in range(3):
            assert run() and k.outputs[0].tolist() == [7.0] * 4, k.outputs[0].tolist()
            gc.collect(); junk = [gb.Context().tensor(3) for _ in range(20)]
        def boom(out, a): raise ZeroDivisionError
        ctx = gb.Context(); x = ctx.tensor(4); g = ctx.graph(gb.map_custom(boom, x)); ctx.allocate(cpu); x.set(3.0)
        k = g.copy(cpu)
        for _ in range(2):
            try: run()
            except ZeroDivisionError: pass
            else: raise SystemExit("nothing was raised")
    """
    holds(program.replace("HOW", repr(how)))


def test_a_custom_operation_that_was_interrupted_while_it_was_made_can_be_run(holds):
    holds(
        INTERRUPT
        + """
cpu = gb.Backend("CPU", n_threads=1)
for name in ("map_custom", "build"):
    n = 0
    while True:
        ctx = gb.Context(); x = ctx.tensor(4)
        if not interrupted(name, n, lambda: gb.map_custom(lambda out, a: a * 2, x)): break
        n += 1; gc.collect(); junk = [object() for _ in range(1000)]
        node = ctx.tensors()[-1]
        if node.op == "NONE": continue
        g = ctx.graph(node); ctx.allocate(cpu); x.set(3.0)
        assert g.compute(cpu) and node.tolist() == [6.0] * 4
    assert n > 5
"""
    )


# ------------------------------------------------------------------------------------------------------ abort callbacks


def test_an_abort_callback_that_was_interrupted_while_it_was_set_is_there_or_not(holds):
    holds(
        INTERRUPT
        + """
ctx, x, y, g, s = small()
cpu = s.backends[0]

for first in (None, lambda: False):
    for then in (None, lambda: False):
        n = 0
        while True:
            gb.set_abort_callback(cpu, None)
            gb.set_abort_callback(cpu, first)
            again = interrupted("set_abort_callback", n, lambda: gb.set_abort_callback(cpu, then))
            n += 1; gc.collect(); junk = [object() for _ in range(1000)]
            assert s.compute(g) and s.compute(g)
            if not again: break
        assert n > 4
"""
    )


def test_abort_callbacks_do_not_keep_their_backend():
    backend = gb.Backend("CPU", n_threads=1)
    gb.set_abort_callback(backend, lambda backend=backend: backend.closed)
    core = backend._core.__class__
    before = sum(isinstance(o, core) for o in gc.get_objects())
    del backend
    gc.collect()
    assert sum(isinstance(o, core) for o in gc.get_objects()) == before - 1


# ----------------------------------------------------------------------------------------------------------- schedulers


def test_splits_are_of_the_graph_that_was_computed_last_whatever_its_callback_raises(cpu):
    scheduler = gb.Scheduler([cpu])
    graphs = []
    for n in (1, 500):
        ctx = gb.Context()
        y = x = ctx.tensor(4, name="x")
        for _ in range(n):
            y = gb.relu(y)
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


def test_splits_while_threads_compute_graphs_of_other_sizes(holds):
    holds("""
        s = gb.Scheduler([cpu])
        def graph(n):
            ctx = gb.Context(); y = x = ctx.tensor(4)
            for _ in range(n): y = gb.relu(y)
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


def test_closing_a_scheduler_that_is_interrupted_closes_it(holds):
    holds("""
        slow = gb.Backend("SIM:delay=3s")
        s = gb.Scheduler([slow, cpu]); ctx, x, y, g, s = small(s)
        s.compute_async(g)
        threading.Timer(.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try: s.close()
        except KeyboardInterrupt: pass
        else: raise SystemExit("nothing was raised")
        assert s.closed and repr(s) == "<Scheduler closed>"
        s.close()
        try: s.compute(g)
        except gb.StateError as e: assert "closed" in str(e)
        else: raise SystemExit("it computes")
    """)


def test_a_trace_that_was_interrupted_when_it_began_is_off(holds):
    holds(
        INTERRUPT
        + """
from ggml_backend._ffi import lib
ctx, x, y, g, s = small()
n = 0
while True:
    trace = []
    again = interrupted("trace", n, lambda: trace.append(s.trace()))
    before = lib.ggml_backend_sched_get_n_trace_events(s._core.ptr)
    assert s.compute(g)
    assert (lib.ggml_backend_sched_get_n_trace_events(s._core.ptr) == before) == again, n
    if not again: break
    n += 1
    with s.trace() as other: s.compute(g)
    assert other.events
assert n > 5
"""
    )


def test_an_event_can_be_recorded_behind_a_run_that_is_on_its_way():
    cpu, sim = gb.Backend("CPU", n_threads=1), gb.Backend("SIM:delay=300ms")
    scheduler = gb.Scheduler([sim, cpu], n_copies=2)
    ctx = gb.Context()
    x = ctx.tensor(4)
    y = gb.relu(x)
    graph = ctx.graph(y)
    scheduler.allocate(graph)
    x.set(1.0)
    first = scheduler.compute_async(graph)
    event = gb.Event(sim).record()
    assert "running" in repr(first)
    second = scheduler.compute_async(graph)
    event.synchronize()  # behind the first, not behind the second
    assert "running" in repr(second)
    second.wait()
    assert y.tolist() == [1.0] * 4


# ----------------------------------------------------------------------------------------------------------- interrupts


@pytest.mark.parametrize(
    "question", ["t.is_placed", "t.buffer", "t.location", "t.is_host", "repr(t)", "ctx.allocate(cpu)"]
)
def test_an_interrupt_of_a_question_that_waits_is_heard(holds, question):
    """The tensor's place, or its context, is in use by another thread."""
    holds(f"""
        from ggml_backend._base.handles import use
        ctx = gb.Context(no_alloc={question.startswith("ctx")}) if {question.startswith("ctx")} else gb.Context()
        t = ctx.tensor(4)
        if {not question.startswith("ctx")}: ctx.allocate(cpu)
        held, done = threading.Event(), threading.Event()
        def work():
            with use("test", ctx._core, *([t.buffer._core] if t.buffer else [])):
                held.set(); done.wait(10)
        thread = threading.Thread(target=work); thread.start(); held.wait()
        threading.Timer(.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try: {question}
        except KeyboardInterrupt: pass
        else: raise SystemExit("nothing was raised")
        finally: done.set()
        thread.join()
    """)


# ------------------------------------------------------------------------------------------------------ cleared buffers


@pytest.mark.parametrize("how", ["weights", "own", "allocator"])
def test_results_of_and_in_a_cleared_buffer_cannot_be_read(cpu, how):
    """A clear writes all that lies in the buffer: inputs are set by it, results are results no more."""
    weights, ctx = gb.Context(), gb.Context()
    x = weights.tensor(4, name="x")
    buffer = weights.allocate(cpu)
    y = gb.scale(gb.relu(ctx.view(x)), 2.0)
    graph = ctx.graph(y)
    if how == "weights":
        scheduler = gb.Scheduler([cpu])
        run = lambda: scheduler.compute(graph)  # noqa: E731
    else:
        own = ctx.allocate(cpu) if how == "own" else gb.GraphAllocator(cpu).allocate(graph)
        run = lambda: graph.compute(cpu)  # noqa: E731
        x.set(3.0)
        assert run()
        own.clear()
        with pytest.raises(gb.StateError, match="its buffer was cleared"):
            y.numpy()
        with pytest.raises(gb.StateError, match="its buffer was cleared"):
            y.copy_from(y)
        if how == "own":
            copied = graph.copy(cpu).outputs[0]
            with pytest.raises(gb.StateError):
                copied.numpy()
    x.set(3.0)
    assert run() and y.tolist() == [6.0] * 4
    copied = graph.copy(cpu).outputs[0]
    assert copied.tolist() == [6.0] * 4
    buffer.clear()
    assert x.tolist() == [0.0] * 4
    with pytest.raises(gb.StateError, match="'x' was cleared with its buffer after the last computation"):
        y.numpy()
    assert copied.tolist() == [6.0] * 4
    assert run() and y.tolist() == [0.0] * 4
    x.set(5.0)
    with pytest.raises(gb.StateError, match="'x' was set after"):
        y.numpy()
    assert run() and y.tolist() == [10.0] * 4


@pytest.mark.parametrize(
    "work", ["gb.Scheduler(cpu).prepare(large, allocate=False)", "slow.compute(cpu)"], ids=["planning", "computing"]
)
def test_what_a_signal_handler_plans_is_looked_at(holds, work):
    """What the interrupted call has looked at already, or need not look at, says nothing of the handler's own graph."""
    holds(f"""
        ctx, weights = gb.Context(), gb.Context()
        x = y = ctx.tensor(4)
        for _ in range(20_000): y = gb.relu(y)
        large = ctx.graph(y)
        w = weights.tensor((1024, 1024)); slow = weights.graph(w @ w); weights.allocate(cpu); w.set(1.0)
        damaged = gb.Context(); d = damaged.tensor(4); graph = damaged.graph(gb.relu(d))
        d._p.ne[0] = 1 << 62
        scheduler, seen, at = gb.Scheduler(gb.Backend("CPU")), [], []
        def handler(number, frame):
            if at: return
            at.append(1)
            try: scheduler.prepare(graph, allocate=False); seen.append("planned")
            except gb.InvalidArgumentError: seen.append("refused")
            finally: at.clear()
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, .005, .005)
        end = time.monotonic() + 1
        while time.monotonic() < end: {work}
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert len(seen) > 10 and set(seen) == {{"refused"}}, seen
    """)


# -------------------------------------------------------------------------------------------------------- log functions


def test_what_a_log_function_raises_is_raised_and_not_printed(holds):
    holds("""
        ctx = gb.Context()
        a, b = ctx.tensor((2, 3)), ctx.tensor((2, 4))
        def log(level, text): raise ZeroDivisionError(text)
        gb.set_log(log)
        for _ in range(100):
            try: gb.mul_mat(a, b); time.sleep(.01)
            except ZeroDivisionError as e: assert "mul_mat" in str(e)
            else: raise SystemExit("nothing was raised")
        def log(level, text): os.kill(os.getpid(), signal.SIGINT); time.sleep(.01)
        gb.set_log(log)
        for _ in range(100):
            try: gb.Backend("SIM:mem=nonsense"); time.sleep(.01)
            except KeyboardInterrupt: pass
            else: raise SystemExit("nothing was raised")
        def log(level, text): raise ZeroDivisionError(text)
        gb.set_log(log)
        refused = []
        def work():
            try: gb.mul_mat(a, b)
            except gb.InvalidArgumentError: refused.append(1)
        try:
            thread = threading.Thread(target=work); thread.start(); thread.join()
            time.sleep(.01)
        except ZeroDivisionError as e: assert "mul_mat" in str(e)
        else: raise SystemExit("nothing was raised")
        thread.join()
        assert refused
        gb.set_log(None)
        try: gb.mul_mat(a, b)
        except gb.InvalidArgumentError: pass
        # the exception, and what its frames refer to, goes
        import weakref
        class Thing: pass
        thing = Thing(); seen = weakref.ref(thing)
        def log(level, text, thing=thing): raise ZeroDivisionError(thing)
        gb.set_log(log); del thing
        try: gb.mul_mat(a, b); time.sleep(.01)
        except ZeroDivisionError: pass
        gb.set_log(None); del log; gc.collect()
        assert seen() is None
    """)


@pytest.mark.parametrize("waits", ["sched.synchronize()", "pending.wait()", "x.set(2.0)", "sched.close()"])
def test_a_log_function_on_a_devices_thread_asks_who_waits_for_it(holds, waits):
    """Another thread has the scheduler, and waits for the device whose thread is in the log function."""
    holds(f"""
        failing = gb.Backend("SIM:delay=100ms,fail_op=sqr")
        sched = gb.Scheduler([failing, cpu])
        ctx = gb.Context(); x = ctx.tensor(4); graph = ctx.graph(gb.sqr(x + x))
        said = set()
        def log(level, text):
            if not threading.current_thread().name.startswith("Dummy"): return
            try: sched.n_splits; x.tolist(); gb.Event(failing).synchronize(); said.add("answer")
            except gb.StateError as e: said.add(str(e).partition(": ")[2])
        sched.allocate(graph); x.set(1.0)
        gb.set_log(log)
        for _ in range(3):
            pending = sched.compute_async(graph)
            def act():
                try: {waits}
                except OURS: pass
            thread(act).finish()
            if sched.closed: break
            try: sched.synchronize()
            except gb.DeviceError: pass
        gb.set_log(None)
        waits = "called from a callback of a computation, it would wait for somebody who waits for that computation"
        assert said and said <= {{"answer", waits}}, said
    """)


@pytest.mark.parametrize("act", [
    "y.numpy()", "x.set(2.0)", "sched.compute(graph)", "sched.synchronize()", "sched.close()", "sched.n_splits",
    "failing.synchronize()",
    "gb.Event(failing).record().synchronize()", "pending.wait()"])  # fmt: skip
def test_a_log_function_on_a_devices_thread_does_not_wait_for_itself(holds, act):
    holds(f"""
        failing = gb.Backend("SIM:delay=50ms,fail_op=sqr")
        sched = gb.Scheduler([failing, cpu])
        ctx = gb.Context(); x = ctx.tensor(4); y = gb.sqr(x + x); graph = ctx.graph(y)
        said, ended = [], threading.Event()
        def log(level, text):
            if not threading.current_thread().name.startswith("Dummy") or ended.is_set(): return
            try: {act}
            except gb.StateError as e: said.append(str(e))
            ended.set()
        sched.allocate(graph); x.set(1.0)
        gb.set_log(log)
        pending = sched.compute_async(graph)
        assert ended.wait(20)
        gb.set_log(None)
        assert said and "called from a callback of a computation, it would wait for that computation" in said[0], said
        try: sched.synchronize()
        except gb.DeviceError: pass
    """)


def test_a_log_function_on_a_devices_thread_is_not_who_started_the_run(holds):
    """It reads a tensor while that one sets it: all of one set, or all of the other."""
    holds("""
        failing = gb.Backend("SIM:delay=20ms,fail_op=sqr")
        big = gb.Context(); b = big.tensor(1 << 21); big.allocate(cpu); b.set(0.0)
        sched = gb.Scheduler([failing, cpu])
        ctx = gb.Context(); x = ctx.tensor(4); graph = ctx.graph(gb.sqr(x + x))
        sched.allocate(graph); x.set(1.0)
        seen = []
        def log(level, text):
            if not threading.current_thread().name.startswith("Dummy"): return
            for _ in range(10):
                a = b.numpy(copy=True); seen.append(a.min() == a.max())
        gb.set_log(log)
        values = [np.full(1 << 21, i, np.float32) for i in range(3)]
        for _ in range(6):
            sched.compute_async(graph)
            for i in range(40): b.set(values[i % 3])
            try: sched.synchronize()
            except gb.DeviceError: pass
        gb.set_log(None)
        assert seen and all(seen), (len(seen), seen.count(False))
    """)


# -------------------------------------------------------------------------------------------------------------- failed
# allocations

# malloc, calloc and realloc fail once: in the nth call from the package's module.
FAILING = r"""
#include <stddef.h>
#include <stdint.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static uintptr_t begin, end;
static long left;
int failing_hit;
void failing_set(uintptr_t b, uintptr_t e, long n) {
    begin = b; end = e; left = n; failing_hit = n > 0 ? 0 : failing_hit;
}
static int fails(void * from) {
    uintptr_t at = (uintptr_t) from;
    return left > 0 && at >= begin && at < end && --left == 0 ? (failing_hit = 1) : 0;
}
void * malloc(size_t n) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(n); }
void * calloc(size_t n, size_t size) { return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size); }
void * realloc(void * p, size_t n) { return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(p, n); }
"""


@pytest.fixture(scope="session")
def failing(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if (
        not sys.platform.startswith("linux")
        or os.confstr("CS_GNU_LIBC_VERSION") is None
        or compiler is None
        or SANITIZED
    ):
        pytest.skip("needs glibc, a C compiler, and malloc for itself")
    folder = tmp_path_factory.mktemp("failing")
    (folder / "failing.c").write_text(FAILING)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", folder / "failing.so", folder / "failing.c"], check=True)
    return str(folder / "failing.so")


FAIL = """
import ctypes
from ggml_backend._ffi import ffi
with open("/proc/self/maps") as maps:
    spans = [[int(a, 16) for a in line.split()[0].split("-")] for line in maps if "_ffi." in line]
this = ctypes.CDLL(None)
hit = ctypes.c_int.in_dll(this, "failing_hit")
def fail(n):
    begin, end = min(a for a, _ in spans), max(b for _, b in spans)
    this.failing_set(ctypes.c_size_t(begin), ctypes.c_size_t(end), ctypes.c_long(n))
"""


@pytest.mark.parametrize("build", ["new.view(w)", "x + w"])
def test_a_context_has_noted_what_it_needs_or_the_call_has_failed(holds, failing, build):
    holds(
        FAIL
        + f"""
def act():
    old, new = gb.Context(usage="weights"), gb.Context()
    w, x = old.tensor((8, 8), name="w"), new.tensor((8, 8))
    fail(attempt)
    try: t = {build}
    except MemoryError: return None
    finally: fail(0)
    return t._k, t._p
for attempt in range(1, 400):
    made = act()
    gc.collect(); junk = [gb.Context().tensor(3) for _ in range(20)]
    if made is not None:
        kept, p = made
        while p.view_src or any(p.src): p = p.view_src or [s for s in p.src if s][-1]
        assert ffi.string(p.name) == b"w", (attempt, ffi.string(p.name))
    if not hit.value: break
assert 1 < attempt < 399
""",
        {"LD_PRELOAD": failing},
    )


@pytest.mark.parametrize("call", ["measure", "allocate"])
def test_an_allocator_without_memory_says_so(holds, failing, call):
    holds(
        FAIL
        + f"""
for attempt in range(1, 400):
    ctx = gb.Context(); x = ctx.tensor((8, 8)); g = ctx.graph(gb.relu(x @ x)); allocator = gb.GraphAllocator(cpu)
    fail(attempt)
    try: needs = allocator.{call}(g)
    except MemoryError: needs = 1
    finally: fail(0)
    assert needs, attempt
    if not hit.value: break
    allocator.allocate(g); x.set(1.0)
    assert g.compute(cpu)
assert 1 < attempt < 399
""",
        {"LD_PRELOAD": failing},
    )
