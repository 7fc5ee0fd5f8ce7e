"""Faults of devices written in Python raise clear errors, and leave everything usable."""

from __future__ import annotations

import signal
import threading
import time

import numpy as np
import pytest

import ggml_backend as gb
from python_devices import Host, Mark, Own, Queued, notes_of


def scene(device, cpu):
    ctx = gb.Context()
    a = ctx.tensor((3, 4), name="a")
    y = (gb.ops.sqr(a + a).named("middle") * a).named("y")
    graph = ctx.graph(y)
    sched = gb.Scheduler([device, cpu])
    return sched, graph, a, y


def outcome(device, cpu, again):
    """The exception of a computation on a faulty device. ``again`` repairs it, and the same objects
    work."""
    sched, graph, a, y = scene(device, cpu)
    error = None
    try:
        sched.allocate(graph)
        a.set(np.ones((3, 4), np.float32))
        sched.compute(graph)
    except BaseException as e:
        error = e
    again()
    sched.allocate(graph)
    a.set(np.ones((3, 4), np.float32))
    sched.compute(graph)
    assert np.all(y.numpy() == 4)
    return error


@pytest.mark.parametrize("name", ["PYHOST", "PYOWN", "PYQUEUE"])
@pytest.mark.parametrize(
    ("odd", "kind", "message"),
    [
        ("raise", ZeroDivisionError, "on purpose"),
        ("raise_quietly", KeyboardInterrupt, ""),
        (
            "shape",
            gb.errors.InvalidArgumentError,
            r"has shape \(3, 4\), and its function returned an array of shape \(1,\)",
        ),
        ("list", gb.errors.InvalidArgumentError, "its function returned list"),
        ("complex", gb.errors.InvalidArgumentError, "must be float32, not complex128"),
        ("write_source", ValueError, "read-only"),
        ("write_outside", IndexError, "out of bounds"),
    ],
)
def test_methods_that_fail(name, odd, kind, message, cpu):
    device = gb.Backend(name, odd=odd)

    def again():
        device.device.odd = ""

    error = outcome(device, cpu, again)
    assert type(error) is kind
    assert __import__("re").search(message, str(error))
    if kind is not KeyboardInterrupt and hasattr(error, "__notes__"):
        note = error.__notes__[0]
        assert f"the device {name} " in note and "ADD" in note and "'a'" in note


class Sly(Host):
    """Faults of supports, compile and allocate, by name."""

    def __init__(self, sly: str) -> None:
        super().__init__()
        self.sly = sly

    def supports(self, node):
        if self.sly == "supports raises":
            raise LookupError("who knows")
        if self.sly == "supports a number":
            return 7
        if self.sly == "supports all":
            return True
        return super().supports(node)

    def compile(self, calls):
        if self.sly == "compile raises":
            raise LookupError("cannot compile")
        if self.sly == "compile gives nothing":
            return None
        return super().compile(calls)

    def allocate(self, nbytes):
        if self.sly == "alloc gives nothing":
            return None
        if self.sly == "alloc too small":
            return np.empty(nbytes // 2, np.uint8)
        if self.sly == "alloc not aligned":
            return super().allocate(nbytes + 1)[1:]
        if self.sly == "alloc of floats":
            return np.empty(nbytes, np.float32)
        if self.sly == "alloc read-only":
            memory = super().allocate(nbytes)
            memory.flags.writeable = False
            return memory
        if self.sly == "alloc is full":
            raise MemoryError("none left")
        return super().allocate(nbytes)


gb.devices.register_device("SLY", Sly, replace=True)


@pytest.mark.parametrize(
    ("sly", "kind", "message"),
    [
        ("supports raises", LookupError, "who knows"),
        ("supports a number", TypeError, "SLY.supports must return True, False or a reason, not int|Sly.supports must"),
        ("compile raises", LookupError, "cannot compile"),
        ("compile gives nothing", TypeError, "SLY: compile must return a function, not None"),
        ("alloc gives nothing", gb.errors.DeviceError, r"allocate\(\d+\) returned None"),
        ("alloc too small", gb.errors.DeviceError, "must return a writable NumPy array of"),
        ("alloc not aligned", gb.GgmlError, "at a multiple of 64"),
        ("alloc of floats", gb.errors.DeviceError, "must return a writable NumPy array of"),
        ("alloc read-only", gb.errors.DeviceError, "must return a writable NumPy array of"),
        ("alloc is full", gb.errors.AllocationError, r"SLY: no memory for a buffer of \d+ bytes: none left"),
    ],
)
def test_wrong_results_of_hooks_are_errors(sly, kind, message, cpu):
    device = gb.Backend("SLY", sly=sly)

    def again():
        device.device.sly = ""

    error = outcome(device, cpu, again)
    assert isinstance(error, kind), error
    assert __import__("re").search(message, str(error)), error


def test_a_supported_node_without_a_method_is_an_error(cpu):
    sched, graph, a, _ = scene(gb.Backend("SLY", sly="supports all"), cpu)
    sched.allocate(graph)
    a.set(np.ones((3, 4), np.float32))
    for _ in range(2):
        with pytest.raises(
            gb.errors.UnsupportedError, match=r"SLY: 'middle' SQR .* no method is marked with @gb.devices.op\('sqr'\)"
        ):
            sched.compute(graph)


def test_arrays_of_another_shape_are_an_error(ctx, cpu):
    class Odd(Host):
        def array(self, memory, offset, node, writable):
            return np.zeros(7, np.float32)

    gb.devices.register_device("ODDARRAY", Odd, replace=True)
    a = ctx.tensor((3,), name="a")
    graph = ctx.graph(a + a)
    with gb.Scheduler([gb.Backend("ODDARRAY"), cpu]) as sched:
        sched.allocate(graph)
        a.set(np.ones(3, np.float32))
        with pytest.raises(
            gb.errors.DeviceError, match=r"must return an array of shape \(3,\), not numpy.ndarray of \(7,\)"
        ):
            sched.compute(graph)


def test_supports_may_answer_with_a_bool_of_numpy(ctx):
    class Answers(Host):
        def supports(self, node):
            return np.bool_(node.op == "add")

    gb.devices.register_device("ANSWERS", Answers, replace=True)
    device, a = gb.Backend("ANSWERS"), ctx.tensor((3,))
    assert device.supports(a + a) and not device.supports(gb.ops.sqr(a))


@pytest.mark.parametrize(("alloc", "kind"), [("none", gb.errors.DeviceError), ("full", gb.errors.AllocationError)])
def test_failed_allocations_of_own_memory(alloc, kind, cpu):
    device = gb.Backend("PYOWN", alloc=alloc)

    def again():
        device.device.odd_alloc = ""

    assert isinstance(outcome(device, cpu, again), kind)


@pytest.mark.parametrize("how", ["alloc", "allocate"])
def test_exhausted_memory_is_an_allocation_error(how, ctx):
    device = gb.Backend("PYOWN", alloc="full")
    ctx.tensor((4,), name="a")
    with pytest.raises(gb.errors.AllocationError, match=r"no memory for a buffer of .* the box is full") as caught:
        device.allocate(4096) if how == "alloc" else ctx.allocate(device)
    assert type(caught.value.__cause__) is MemoryError and str(caught.value.__cause__) == "the box is full"
    assert any("raised by the device" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("method", ["write", "read", "fill", "copy_from"])
def test_memory_that_fails(method, ctx, monkeypatch):
    device = gb.Backend("PYOWN")
    a, b = ctx.tensor((4,), name="a"), ctx.tensor((4,), name="b")
    buffer = ctx.allocate(device)
    a.set(np.ones(4, np.float32))

    def fail(self, *arguments):
        raise OSError(f"no {method} today")

    from python_devices import Box

    with monkeypatch.context() as patched:
        patched.setattr(Box, method, fail)
        with pytest.raises(OSError, match=f"no {method} today") as caught:
            {
                "write": lambda: a.set(np.zeros(4, np.float32)),
                "read": lambda: a.numpy(),
                "fill": lambda: buffer.clear(0),
                "copy_from": lambda: b.copy_from(a),
            }[method]()
    doing = {"write": "wrote 16 bytes at 0", "read": "read 16 bytes at 0", "copy_from": "copied 16 bytes"}
    doing["fill"] = f"filled {buffer.nbytes} bytes"
    assert notes_of(caught.value) == [f"raised by the device PYOWN while it {doing[method]}"]
    b.copy_from(a)
    assert b.numpy()[0] == 1


@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("allocate", "in allocate(8)"),
        ("submit", "in submit(work)"),
        ("synchronize", "in synchronize()"),
        ("event", "in event()"),
        ("record", "in record() of an event"),
        ("wait", "in wait() of an event"),
        ("Mark.synchronize", "in synchronize() of an event"),
    ],
)
def test_notes_name_the_device_and_the_method(method, where, ctx, monkeypatch):
    def fail(*arguments):
        raise OSError("not today")

    device = gb.Backend("PYQUEUE")
    a = ctx.tensor((4,), name="a")
    graph = ctx.graph(a + a)
    ctx.allocate(device)
    a.set(0)
    event = gb.backend.Event(device).record()
    monkeypatch.setattr(*(Mark, method.removeprefix("Mark.")) if where.endswith("an event") else (Queued, method), fail)
    with pytest.raises(OSError, match="not today") as caught:
        {
            "allocate": lambda: device.allocate(8),
            "submit": lambda: graph.compute(device),
            "synchronize": device.synchronize,
            "event": lambda: gb.backend.Event(device),
            "record": event.record,
            "wait": lambda: event.wait(gb.Backend("PYQUEUE")),
            "Mark.synchronize": event.synchronize,
        }[method]()
    monkeypatch.undo()
    assert notes_of(caught.value)[0] == f"raised by the device PYQUEUE {where}"
    a.set(1)
    graph.compute(device)
    assert a.tolist() == [1] * 4


@pytest.mark.parametrize("missing", ["write", "read"])
def test_memory_without_methods_is_an_error(missing):
    class Bytes(bytearray):
        """Has only one of the two methods."""

    other = "read" if missing == "write" else "write"
    setattr(Bytes, other, lambda self, offset, data: None)

    class Plain(Own):
        def allocate(self, nbytes):
            return Bytes(nbytes)

    gb.devices.register_device("PLAIN", Plain, replace=True)
    with gb.Context() as ctx:
        a = ctx.tensor((4,))
        ctx.allocate(gb.Backend("PLAIN"))
        words = rf"Plain: allocate returned .*Bytes, so the class needs {missing}\(memory, offset, data\), or that obj"
        if missing == "read":
            a.set(0)
        with pytest.raises(NotImplementedError, match=words) as caught:
            {"write": lambda: a.set(0), "read": a.numpy}[missing]()
        did = {"write": "wrote", "read": "read"}[missing]
        assert notes_of(caught.value) == [f"raised by the device PLAIN while it {did} 16 bytes at 0"]


def test_an_old_exception_is_not_raised_for_a_new_failure(cpu):
    device = gb.Backend("PYHOST", odd="raise")
    sched, graph, a, _ = scene(device, cpu)
    sched.allocate(graph)
    a.set(np.ones((3, 4), np.float32))
    with pytest.raises(ZeroDivisionError):
        sched.compute(graph)
    with pytest.raises(gb.errors.InvalidArgumentError, match="reshape"):
        a.reshape(5, 5)


def test_a_refused_node_is_not_computed(ctx):
    device = gb.Backend("PYHOST")
    a = ctx.tensor((4,), name="a")
    graph = ctx.graph(gb.ops.sqr(a).named("y"))
    ctx.allocate(device)
    a.set(np.ones(4, np.float32))
    with pytest.raises(
        gb.errors.UnsupportedError,
        match=r"PYHOST: 'y' SQR float32 .*: not implemented \(the device has add, div, mul, scale, sub\)",
    ):
        graph.compute(device)


def test_tensors_in_other_memory_are_an_error(ctx, cpu):
    own = gb.Backend("PYOWN")
    a = ctx.tensor((4,), name="a")
    graph = ctx.graph(a + a)
    ctx.allocate(cpu)
    a.set(np.ones(4, np.float32))
    words = r"PYOWN: .* is not in memory of the device: allocate it there, or let a Scheduler copy it"
    with pytest.raises(gb.errors.InvalidArgumentError, match=words):
        graph.compute(own)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="the system has no pthread_kill")
@pytest.mark.parametrize("name", ["PYHOST", "PYQUEUE"])
def test_ctrl_c_ends_a_slow_device(name, cpu):
    device = gb.Backend(name, odd="sleep")
    sched, graph, a, _ = scene(device, cpu)
    sched.allocate(graph)
    main = threading.main_thread().ident
    begun, release, finished = threading.Event(), threading.Event(), []

    def wait(out, a):
        begun.set()
        while not release.wait(0.05):  # Python may miss a signal just before a wait
            pass
        finished.append(True)

    device.device.odd_sleep = wait

    def press():
        assert begun.wait(60)
        signal.pthread_kill(main, signal.SIGINT)

    def compute():
        a.set(np.ones((3, 4), np.float32))
        sched.compute(graph)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        compute()
    assert not finished  # the method itself never ends
    release.set()
    thread.join()


def test_closing_while_it_computes(cpu):
    """Closes from the method itself, and from another thread."""

    class Closer(gb.devices.Device):
        what = None

        @gb.devices.op("add")
        def add(self, node, out, a, b):
            if self.what is not None:
                self.what.close()
            np.add(a, b, out=out)

    gb.devices.register_device("CLOSER", Closer, replace=True)
    for which in ("backend", "sched", "ctx", "graph"):
        device = gb.Backend("CLOSER")
        ctx = gb.Context()
        a = ctx.tensor((4,))
        y = a + a
        graph = ctx.graph(y)
        sched = gb.Scheduler([device, cpu])
        sched.allocate(graph)
        a.set(np.ones(4, np.float32))
        device.device.what = {"backend": device, "sched": sched, "ctx": ctx, "graph": sched}[which]
        sched.compute(graph)
    device = gb.Backend("PYHOST", odd="sleep")
    sched, graph, a, _ = scene(device, cpu)
    sched.allocate(graph)
    a.set(np.ones((3, 4), np.float32))
    begun, results = threading.Event(), []

    def slowly(out, a):
        begun.set()
        time.sleep(0.2)
        np.add(a, a, out=out)

    device.device.odd_sleep = slowly

    def compute():
        try:
            results.append(sched.compute(graph))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=compute)
    thread.start()
    assert begun.wait(60)
    device.close()
    sched.close()
    thread.join()
    assert results == [True]  # close waits for the run


def test_using_the_scheduler_from_a_method_is_an_error(cpu):
    box = []

    class Reentrant(gb.devices.Device):
        @gb.devices.op("add")
        def add(self, node, out, a, b):
            sched, graph = box
            sched.compute(graph)

    gb.devices.register_device("REENTRANT", Reentrant, replace=True)
    with gb.Context() as ctx, gb.Scheduler([gb.Backend("REENTRANT"), cpu]) as sched:
        a = ctx.tensor((4,))
        graph = ctx.graph(a + a)
        box[:] = sched, graph
        sched.allocate(graph)
        a.set(np.ones(4, np.float32))
        with pytest.raises(gb.errors.StateError):
            sched.compute(graph)


def test_handled_failures_of_a_method_do_not_fail_the_run(cpu):
    class Coping(gb.devices.Device):
        @gb.devices.op("add")
        def add(self, node, out, a, b):
            with gb.Context() as inner, pytest.raises(gb.GgmlError):
                inner.tensor((2, 3)).reshape(7)
            np.add(a, b, out=out)

    gb.devices.register_device("COPING", Coping, replace=True)
    with gb.Context() as ctx, gb.Scheduler([gb.Backend("COPING"), cpu]) as sched:
        a = ctx.tensor((4,))
        y = a + a
        graph = ctx.graph(y)
        sched.allocate(graph)
        a.set(np.ones(4, np.float32))
        assert sched.compute(graph)
        assert y.numpy()[0] == 2


def test_a_wait_raises_the_failure_of_queued_work():
    device = gb.Backend("PYQUEUE", odd="raise")
    ctx = gb.Context()
    a = ctx.tensor((4,), name="a")
    y = a + a
    graph = ctx.graph(y)
    sched = gb.Scheduler([device])
    sched.allocate(graph)
    a.set(np.ones(4, np.float32))
    sched.compute_async(graph)
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        sched.synchronize()
    device.device.odd = ""
    sched.compute(graph)
    assert y.numpy()[0] == 2


@pytest.mark.parametrize("kind", [Host, Own, Queued])
def test_an_exception_keeps_nothing_alive(kind, cpu):
    """A kept exception would keep the frames of the device's method."""
    import gc
    import weakref

    name = {Host: "PYHOST", Own: "PYOWN", Queued: "PYQUEUE"}[kind]
    device = gb.Backend(name, odd="raise")
    gone = weakref.ref(device.device)
    sched, graph, a, _ = scene(device, cpu)
    sched.allocate(graph)
    a.set(np.ones((3, 4), np.float32))
    with pytest.raises(ZeroDivisionError):
        sched.compute(graph)
    sched.close()
    device.close()
    del sched, graph, a, _, device
    for _ in range(3):
        gc.collect()
        time.sleep(0.01)
    assert gone() is None


@pytest.mark.parametrize("wrong", ["half", "list", "bytes", "number", "nothing"])
def test_memory_of_the_wrong_kind_is_not_kept(wrong):
    """After the failure the next allocation asks the device again, with and without a reset."""
    made = {"half": lambda n: np.zeros(n // 2, np.uint8), "list": lambda n: [0] * n, "bytes": lambda n: bytes(n),
            "number": lambda n: 7, "nothing": lambda n: None}[wrong]  # fmt: skip

    class Once(gb.devices.Device):
        memory = "own"
        faults = 1

        def allocate(self, nbytes):
            if Once.faults > 0:
                Once.faults -= 1
                return made(nbytes)
            return np.zeros(nbytes, np.uint8)

        @gb.devices.op("relu")
        def relu(self, node, out, a):
            np.maximum(a, 0, out=out)

    gb.devices.register_device("ONCE", Once, replace=True)
    for reset in (False, True):
        Once.faults = 1
        with gb.Context() as ctx, gb.Backend("ONCE") as once, gb.Backend("CPU", n_threads=1) as cpu:
            x = ctx.tensor((4, 4)).set_input()
            y = gb.ops.relu(x)
            graph, sched = ctx.graph(y), gb.Scheduler([once, cpu])
            with pytest.raises((gb.GgmlError, NotImplementedError)):
                sched.allocate(graph)
            if reset:
                sched.reset()
            sched.allocate(graph)
            x.set(-1.0)
            sched.compute(graph)
            assert not y.numpy(copy=True).any()
