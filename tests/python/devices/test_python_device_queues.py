"""Devices written in Python with a queue: which call raises a failure, and which calls wait."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest

import ggml_backend as gb
from python_devices import HostQueued, Mark, Queued


class OnDemand(gb.devices.Device):
    """A queue that runs during a wait, on the waiting thread."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], None]) -> None:
        self.jobs.append(work)

    def synchronize(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()

    @gb.devices.op("add")
    def add(self, node, out, a, b):
        if a.flat[0] == 5:
            raise ValueError("add fails")
        np.add(a, b, out=out)


class OwnOnDemand(OnDemand):
    memory = "own"

    def allocate(self, nbytes):
        return np.zeros(max(nbytes, 1), np.uint8)


gb.devices.register_device("ONDEMAND", OnDemand)
gb.devices.register_device("OWNONDEMAND", OwnOnDemand)


class Doubles:
    """``y = x + x`` on a device, with another tensor in its memory."""

    def __init__(self, name: str, cpu: gb.Backend, n_copies: int = 1) -> None:
        self.device = gb.Backend(name)
        self.ctx, self.other = gb.Context(), gb.Context()
        self.sched = gb.Scheduler([self.device, cpu], n_copies=n_copies)
        self.x = self.ctx.tensor((4,), name="x").set_input()
        self.y = (self.x + self.x).named("y")
        self.graph = self.ctx.graph(self.y)
        self.z = self.other.tensor((4,), name="z")
        self.buffer = self.other.allocate(self.device)
        self.z.set(0.0)
        self.sched.allocate(self.graph)
        self.x.set(1.0)
        self.sched.compute(self.graph)


ACCESSES = {
    "set": lambda w: w.z.set(3.0),
    "get": lambda w: w.z.numpy(copy=True),
    "clear": lambda w: w.buffer.clear(0),
    "nothing": lambda w: None,
}


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("name", ["ONDEMAND", "OWNONDEMAND"])
def test_a_failed_run_reports_its_failure(name, access, cpu):
    """Calls that use other memory of the device raise nothing, and the run still reports its failure."""
    w = Doubles(name, cpu)
    w.x.set(5.0)
    pending = w.sched.compute_async(w.graph)
    ACCESSES[access](w)
    with pytest.raises(ValueError, match="add fails"):
        pending.wait()
    with pytest.raises(gb.errors.StateError):
        w.y.numpy()
    w.x.set(2.0)
    assert w.sched.compute(w.graph)
    assert np.all(w.y.numpy(copy=True) == 4)


class Cut(OnDemand):
    """A queue whose ``synchronize`` raises once, to the thread that did not queue the work."""

    armed: ClassVar[bool] = False
    entered, raised = threading.Event(), threading.Event()

    def synchronize(self) -> None:
        if self.jobs and threading.current_thread().name == "runs":
            super().synchronize()
            Cut.entered.set()
            assert Cut.raised.wait(30)
        elif Cut.armed:
            Cut.armed = False
            Cut.raised.set()
            raise ConnectionError("the device is gone")
        else:
            super().synchronize()


gb.devices.register_device("CUT", Cut)


@pytest.mark.parametrize("access", ["set", "get", "clear"])
def test_a_failed_wait_for_nothing_fails_no_later_run(access, cpu):
    w = Doubles("CUT", cpu)
    Cut.armed = True
    with pytest.raises(ConnectionError, match="the device is gone"):
        ACCESSES[access](w)
    assert w.sched.compute(w.graph)
    assert np.all(w.y.numpy(copy=True) == 2)


def test_a_failure_that_another_thread_sees_fails_the_run(cpu):
    w = Doubles("CUT", cpu)
    Cut.entered.clear(), Cut.raised.clear()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            w.sched.compute(w.graph)
        except ConnectionError as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="runs")
    thread.start()
    assert Cut.entered.wait(30)
    Cut.armed = True
    with pytest.raises(ConnectionError):
        w.buffer.clear(0)
    thread.join()
    assert len(raised) == 1


def test_a_queue_needs_synchronize():
    class Lost(gb.devices.Device):
        def submit(self, work):
            threading.Thread(target=work).start()

    gb.devices.register_device("LOST", Lost)
    with pytest.raises(gb.errors.InvalidArgumentError, match="Lost overrides submit, so it must override synchronize"):
        gb.Backend("LOST")


@pytest.mark.parametrize("odd", ["early", "drops"])
def test_a_synchronize_that_does_not_wait_is_an_error(odd, cpu):
    class Odd(OnDemand):
        def synchronize(self):
            if odd == "drops":
                self.jobs.clear()

    gb.devices.register_device("ODDQUEUE", Odd, replace=True)
    device, ctx = gb.Backend("ODDQUEUE"), gb.Context()
    x = ctx.tensor((4,), name="x")
    graph = ctx.graph(x + x)
    with gb.Scheduler([device, cpu]) as sched:
        sched.allocate(graph)
        x.set(1.0)
        with pytest.raises(gb.errors.DeviceError, match="synchronize returned before submitted work was done"):
            sched.compute(graph)


def test_late_work_of_an_ended_run_does_nothing(cpu):
    """The objects of the run no longer exist."""

    class Late(OnDemand):
        computes_custom = True

        def synchronize(self):
            pass

    called = []

    def function(out, a):
        called.append(1)
        return a * 1

    gb.devices.register_device("LATEQUEUE", Late, replace=True)
    device, ctx = gb.Backend("LATEQUEUE"), gb.Context()
    x = ctx.tensor((4,), name="x")
    graph = ctx.graph(gb.ops.custom(function, x + x))
    with gb.Scheduler([device, cpu]) as sched:
        sched.allocate(graph)
        x.set(1.0)
        pending = sched.compute_async(graph)
        with pytest.raises(gb.errors.DeviceError, match="before submitted work was done"):
            pending.wait()
        del pending
        gc.collect()
        jobs = list(device.device.jobs)
        assert jobs
        for work in jobs:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert not called


@pytest.mark.parametrize("access", ACCESSES)
def test_a_run_reports_lost_work(access, cpu):
    """A run reports lost work even if another access has reported it first."""
    w = Doubles("OWNONDEMAND", cpu)
    jobs = w.device.device
    w.x.set(5.0)
    pending = w.sched.compute_async(w.graph)
    jobs.jobs.clear()
    with contextlib.suppress(gb.errors.DeviceError):
        ACCESSES[access](w)
    with pytest.raises(gb.errors.DeviceError, match="before submitted work was done"):
        pending.wait()
    with pytest.raises(gb.errors.StateError):
        w.y.numpy()


class Counted(Mark):
    waits: ClassVar[list[object]] = []

    def wait(self, device):
        Counted.waits.append(device)
        super().wait(device)


class CountedQueue(HostQueued):
    def event(self):
        return Counted(self)


class OtherQueue(HostQueued):
    """A queue whose marks cannot wait for other queues."""


gb.devices.register_device("COUNTEDQUEUE", CountedQueue)
gb.devices.register_device("OTHERQUEUE", OtherQueue)


def chain(names: list[str], cpu: gb.Backend) -> list[gb.Backend]:
    """Nodes alternate between two devices with host memory. A missing wait reads unfinished results."""
    devices = [gb.Backend(name, delay=0.002) for name in names]
    ctx = gb.Context()
    x = ctx.tensor((1000,), name="x").set_input()
    nodes = [x + x]
    for i in range(7):
        nodes.append(nodes[-1] + nodes[max(0, i - 1)])
    graph = ctx.graph(nodes[-1])
    expected = [2.0]
    for i in range(7):
        expected.append(expected[-1] + expected[max(0, i - 1)])
    with gb.Scheduler([*devices, cpu]) as sched:
        for i, node in enumerate(nodes):
            sched.set_backend(node, devices[i % 2])
        sched.allocate(graph)
        for value in 1.0, 2.0, 3.0:
            x.set(value)
            assert sched.compute(graph)
            assert np.all(nodes[-1].numpy(copy=True) == value * expected[-1])
        assert len(sched.splits) >= 8
    return devices


def test_two_devices_of_one_class_wait_in_their_queues(cpu):
    Counted.waits.clear()
    devices = chain(["COUNTEDQUEUE", "COUNTEDQUEUE"], cpu)
    assert {id(d) for d in Counted.waits} == {id(b.device) for b in devices}


def test_the_host_waits_for_the_mark_of_another_class(cpu):
    Counted.waits.clear()
    chain(["COUNTEDQUEUE", "OTHERQUEUE"], cpu)
    assert Counted.waits == []
    event = gb.backend.Event(gb.Backend("COUNTEDQUEUE"))
    event.record().wait(gb.Backend("OTHERQUEUE"))
    assert Counted.waits == []


class Reentrant(Queued):
    """Its operator, on the queue's thread, makes a call that waits for its own run."""

    act: Callable[[], object] | None = None
    caught: ClassVar[list[BaseException]] = []

    @gb.devices.op("sqr")
    def sqr(self, node, out, a):
        if self.act is not None:
            try:
                self.act()
            except gb.errors.StateError as error:
                self.caught.append(error)
        np.multiply(a, a, out=out)


gb.devices.register_device("REENTRANTQUEUE", Reentrant)


@pytest.mark.parametrize("what", ["compute", "synchronize"])
def test_a_call_that_waits_for_its_own_run_is_an_error(what, cpu):
    device, ctx = gb.Backend("REENTRANTQUEUE"), gb.Context()
    x = ctx.tensor((4,), name="x").set_input()
    y = gb.ops.sqr(x)
    graph = ctx.graph(y)
    sched = gb.Scheduler([device, cpu])
    sched.allocate(graph)
    x.set(3.0)
    device.device.caught.clear()
    device.device.act = {"compute": lambda: sched.compute(graph), "synchronize": lambda: sched.synchronize()}[what]
    done = threading.Event()

    def run():
        sched.compute(graph)
        done.set()

    threading.Thread(target=run, daemon=True).start()
    assert done.wait(30)
    assert len(device.device.caught) == 1
    assert np.all(y.numpy(copy=True) == 9)


def test_empty_buffers_free_their_addresses():
    device = gb.Backend("PYOWN")
    device.allocate(0).close()

    def pages() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0])

    try:
        before = pages()
    except OSError:
        pytest.skip("this system does not say how many addresses a process has (/proc/self/statm)")
    for _ in range(5000):
        device.allocate(0).close()
    assert pages() - before < 1000


def test_compile_can_read_memory(cpu):
    seen = []

    class Looks(gb.devices.Device):
        def compile(self, calls):
            seen.extend(np.array(a) for call in calls for a in call.sources)
            return super().compile(calls)

        @gb.devices.op("sqr")
        def sqr(self, node, out, a):
            np.multiply(a, a, out=out)

    gb.devices.register_device("LOOKS", Looks)
    ctx = gb.Context()
    x = ctx.tensor((4,), name="x")
    y = gb.ops.sqr(x)
    graph = ctx.graph(y)
    with gb.Scheduler(cpu) as sched:  # a plan must not keep its memory alive
        sched.allocate(graph)
        x.set(3.0)
        graph.compute(gb.Backend("LOOKS"))
    assert len(seen) == 1 and np.all(seen[0] == 3)


class InterruptedAfter(OwnOnDemand):
    """Ctrl-C arrives when work is queued. With ``_bounded`` it waits nevertheless, like ranks of a
    cluster."""

    _bounded = True
    armed: ClassVar[bool] = False
    waited: ClassVar[int] = 0

    def submit(self, work):
        super().submit(work)
        if InterruptedAfter.armed:
            raise KeyboardInterrupt

    def synchronize(self):
        for _ in range(3):  # Python checks for signals at each turn of a loop
            InterruptedAfter.waited += InterruptedAfter.armed
        super().synchronize()


gb.devices.register_device("INTERRUPTEDAFTER", InterruptedAfter)


def test_an_interrupt_waits_for_a_bounded_device(cpu):
    """An interrupted run waits for such a device before it ends, because memory may be freed after
    the run."""
    w = Doubles("INTERRUPTEDAFTER", cpu)
    w.x.set(2.0)
    InterruptedAfter.armed, InterruptedAfter.waited = True, 0
    try:
        with pytest.raises(KeyboardInterrupt):
            w.sched.compute(w.graph)
        assert InterruptedAfter.waited >= 3 and not w.device.device.jobs
    finally:
        InterruptedAfter.armed = False
    w.x.set(3.0)
    w.sched.compute(w.graph)
    assert np.all(w.y.numpy(copy=True) == 6)
