"""Log functions may call the package, on any thread, without deadlocks."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


def test_exceptions_of_log_functions_are_raised(holds):
    holds("""
        ctx = gb.Context()
        a, b = ctx.tensor((2, 3)), ctx.tensor((2, 4))
        def log(level, text): raise ZeroDivisionError(text)
        gb.set_log(log)
        for _ in range(100):
            try: gb.ops.mul_mat(a, b); time.sleep(.01)
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
            try: gb.ops.mul_mat(a, b)
            except gb.errors.InvalidArgumentError: refused.append(1)
        try:
            thread = threading.Thread(target=work); thread.start(); thread.join()
            time.sleep(.01)
        except ZeroDivisionError as e: assert "mul_mat" in str(e)
        else: raise SystemExit("nothing was raised")
        thread.join()
        assert refused
        gb.set_log(None)
        try: gb.ops.mul_mat(a, b)
        except gb.errors.InvalidArgumentError: pass
        # the exception and the objects of its frames are freed
        import weakref
        class Thing: pass
        thing = Thing(); seen = weakref.ref(thing)
        def log(level, text, thing=thing): raise ZeroDivisionError(thing)
        gb.set_log(log); del thing
        try: gb.ops.mul_mat(a, b); time.sleep(.01)
        except ZeroDivisionError: pass
        gb.set_log(None); del log; gc.collect()
        assert seen() is None
    """)


@pytest.mark.parametrize("waits", ["sched.synchronize()", "pending.wait()", "x.set(2.0)", "sched.close()"])
def test_a_log_function_of_a_device_cannot_deadlock_with_another_thread(holds, waits):
    """Another thread holds the scheduler, and waits for the device whose thread is in the log
    function."""
    holds(f"""
        failing = gb.Backend("SIM:delay=100ms,fail_op=sqr")
        sched = gb.Scheduler([failing, cpu])
        ctx = gb.Context(); x = ctx.tensor(4); graph = ctx.graph(gb.ops.sqr(x + x))
        said = set()
        def log(level, text):
            if not threading.current_thread().name.startswith("Dummy"): return
            try: sched.n_splits; x.tolist(); gb.backend.Event(failing).synchronize(); said.add("answer")
            except gb.errors.StateError as e: said.add(str(e).partition(": ")[2])
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
            except gb.errors.DeviceError: pass
        gb.set_log(None)
        waits = "called from a callback of a computation, it would wait for a call that waits for that computation"
        assert said and said <= {{"answer", waits}}, said
    """)


@pytest.mark.parametrize("act", [
    "y.numpy()", "x.set(2.0)", "sched.compute(graph)", "sched.synchronize()", "sched.close()", "sched.n_splits",
    "failing.synchronize()",
    "gb.backend.Event(failing).record().synchronize()", "pending.wait()"])  # fmt: skip
def test_a_log_function_of_a_device_cannot_wait_for_its_own_run(holds, act):
    holds(f"""
        failing = gb.Backend("SIM:delay=50ms,fail_op=sqr")
        sched = gb.Scheduler([failing, cpu])
        ctx = gb.Context(); x = ctx.tensor(4); y = gb.ops.sqr(x + x); graph = ctx.graph(y)
        said, ended = [], threading.Event()
        def log(level, text):
            if not threading.current_thread().name.startswith("Dummy") or ended.is_set(): return
            try: {act}
            except gb.errors.StateError as e: said.append(str(e))
            ended.set()
        sched.allocate(graph); x.set(1.0)
        gb.set_log(log)
        pending = sched.compute_async(graph)
        assert ended.wait(20)
        gb.set_log(None)
        assert said and "called from a callback of a computation, it would wait for that computation" in said[0], said
        try: sched.synchronize()
        except gb.errors.DeviceError: pass
    """)


def test_a_log_function_of_a_device_needs_its_own_locks(holds):
    """It reads a tensor while another thread sets it, and sees the value before or after, never a
    mixture."""
    holds("""
        failing = gb.Backend("SIM:delay=20ms,fail_op=sqr")
        big = gb.Context(); b = big.tensor(1 << 21); big.allocate(cpu); b.set(0.0)
        sched = gb.Scheduler([failing, cpu])
        ctx = gb.Context(); x = ctx.tensor(4); graph = ctx.graph(gb.ops.sqr(x + x))
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
            except gb.errors.DeviceError: pass
        gb.set_log(None)
        assert seen and all(seen), (len(seen), seen.count(False))
    """)
