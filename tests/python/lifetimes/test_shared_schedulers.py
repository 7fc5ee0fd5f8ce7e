"""One scheduler on several threads: each run ends for its own thread, regardless of calls of other
threads.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from threads import run_threads

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("GB_THREADS_SECONDS", "0.15"))  # for each pair of calls


class Queued(gb.devices.Device):
    """A device with a thread that empties its queue and runs Python functions."""

    in_order = True
    computes_custom = True

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    @gb.devices.op("add")
    def add(self, node: gb.devices.Node, out: Any, a: Any, b: Any) -> None:
        np.add(a, b, out=out)

    def submit(self, work: Callable[[], None]) -> None:
        self.jobs.append(work)

    def synchronize(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                thread = threading.Thread(target=self.jobs.pop(0))
                thread.start()
                thread.join()


@pytest.fixture(scope="module", autouse=True)
def _queued():
    gb.devices.register_device("SHARED_QUEUE", Queued)


class Shared:
    """A scheduler that threads share. ``kind``: its first device. ``function``: a custom function
    in the graph, or None"""

    def __init__(self, kind: str, function: Callable[[Any, Any], Any] | None, n_copies: int = 1) -> None:
        self.cpu = gb.Backend("CPU", n_threads=1)
        self.device = self.cpu if kind == "CPU" else gb.Backend(kind)
        self.ctx = gb.Context()
        self.x = self.ctx.tensor((32, 32), name="x").set_input()
        y = self.x + self.x
        if function is not None:
            y = gb.ops.custom(function, y)
        self.y = y + y
        self.graph = self.ctx.graph(self.y)
        backends = [self.cpu] if kind == "CPU" else [self.device, self.cpu]
        self.sched = gb.Scheduler(backends, n_copies=n_copies)
        self.sched.allocate(self.graph)
        self.x.set(1.0)


def copied(out: Any, a: Any) -> Any:
    return a * 1


def run(s: Shared) -> None:
    (found,) = s.sched.compute_async(s.graph, s.y).results()
    assert (found == 4).all()


def start(s: Shared) -> None:
    s.sched.compute_async(s.graph)


def trace(s: Shared) -> None:
    with contextlib.suppress(gb.errors.StateError):  # another thread records a trace
        with s.sched.trace() as record:
            s.sched.compute(s.graph)
        assert not record.running


def profile(s: Shared) -> None:
    with contextlib.suppress(gb.errors.StateError), s.sched.profile() as record:
        s.sched.compute(s.graph)
        record.stop()


def abort(s: Shared) -> None:
    gb.sched.set_abort_callback(s.cpu, lambda: False)
    gb.sched.set_abort_callback(s.cpu, None)


def reset(s: Shared) -> None:
    with contextlib.suppress(gb.errors.StateError):  # another thread computes
        s.sched.reset()
    s.sched.allocate(s.graph)
    with contextlib.suppress(gb.errors.StateError):
        s.x.set(1.0)


CALLS: dict[str, Callable[[Shared], object]] = {
    "run": run,
    "start": start,
    "synchronize": lambda s: s.sched.synchronize(),
    "trace": trace,
    "profile": profile,
    "compute": lambda s: s.sched.compute(s.graph),
    "compute with callback": lambda s: s.sched.compute(s.graph, lambda t: True),
    "explain": lambda s: s.sched.explain(s.y),
    "allocate": lambda s: s.sched.allocate(s.graph),
    "prepare": lambda s: s.sched.prepare(s.graph).splits,
    "n_copies": lambda s: setattr(s.sched, "n_copies", 3 - s.sched.n_copies),
    "abort callback": abort,
    "device waits": lambda s: (s.device.synchronize(), s.cpu.synchronize()),
    "stats": lambda s: (s.sched.stats, repr(s.sched), s.sched.n_splits),
}
FUNCTIONS = {"function": copied, "operators": None}
KINDS = ["CPU", "SIM", "ARRAY", "SHARED_QUEUE"]


def repeat(acts: list[Callable[[], object]], seconds: float) -> None:
    end = time.monotonic() + seconds

    def work(i: int) -> None:
        while time.monotonic() < end:
            acts[i]()

    run_threads(len(acts), work)


@pytest.mark.parametrize("other", [c for c in CALLS if c != "run"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_runs_are_right_during_a_call_of_another_thread(kind, function, other):
    shared = Shared(kind, FUNCTIONS[function])
    repeat([lambda: run(shared), lambda: CALLS[other](shared)], SECONDS)
    run(shared)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_threads_make_all_calls_on_one_scheduler(kind, function):
    """Each thread makes all calls, beginning with another one. Resets discard results, so the test
    only checks that calls end and that the scheduler works afterwards."""
    shared = Shared(kind, FUNCTIONS[function], n_copies=2)
    calls = {**CALLS, "reset": reset}
    turns = [itertools.cycle([*list(calls)[i:], *list(calls)[:i]]) for i in (0, 4, 8, 12)]

    def act(i: int) -> None:
        with contextlib.suppress(gb.errors.StateError):
            calls[next(turns[i])](shared)

    repeat([lambda i=i: act(i) for i in range(4)], 4 * SECONDS)
    shared.sched.synchronize()
    shared.sched.allocate(shared.graph)
    shared.x.set(1.0)
    run(shared)


@pytest.mark.parametrize("kind", KINDS)
def test_closing_while_other_threads_run_functions(kind):
    for _ in range(5):
        shared = Shared(kind, copied)
        ready = threading.Barrier(4)

        def work(i: int, shared: Shared = shared, ready: threading.Barrier = ready) -> None:
            ready.wait()
            if i == 3:
                time.sleep(0.01)
                shared.sched.close()
                return
            with contextlib.suppress(gb.errors.StateError):
                while True:
                    (run, lambda s: s.sched.synchronize(), trace)[i](shared)
                    if shared.sched.closed:
                        return

        run_threads(4, work)


class Mine(Exception):
    pass


def raises(out: Any, a: Any) -> Any:
    raise Mine


@pytest.mark.parametrize("other", ["synchronize", "trace", "profile", "allocate", "compute with callback", "explain"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_run_raises_its_own_exception(kind, other):
    """Every run of one thread fails. That thread gets all exceptions, the other thread none."""
    shared, heard = Shared(kind, raises), []

    def fails() -> None:
        with pytest.raises(Mine) as caught:
            shared.sched.compute_async(shared.graph, shared.y).results()
        heard.append(caught.value)

    def beside() -> None:
        if other == "compute with callback":
            with pytest.raises(Mine):  # its graph has the same function
                CALLS[other](shared)
        elif other in ("trace", "profile"):
            with contextlib.suppress(gb.errors.StateError), getattr(shared.sched, other)():
                pass
        else:
            CALLS[other](shared)

    repeat([fails, beside], SECONDS)
    assert heard


def started(shared: Shared) -> gb.sched.Pending:
    """A pending run whose function has not been called yet."""
    pending = shared.sched.compute_async(shared.graph)
    assert "running" in repr(pending)
    return pending


def test_a_kept_run_raises_its_exception_after_synchronize():
    shared = Shared("SHARED_QUEUE", raises)
    pending = started(shared)
    with pytest.raises(Mine):
        shared.sched.synchronize()
    with pytest.raises(Mine):
        pending.wait()
    shared.sched.synchronize()


def test_synchronize_does_not_raise_the_exception_of_a_kept_run():
    shared, pending = Shared("SHARED_QUEUE", raises), []
    run_threads(1, lambda i: pending.append(started(shared)))
    shared.sched.synchronize()
    with pytest.raises(Mine):
        pending[0].wait()
    shared.sched.synchronize()


def test_synchronize_raises_the_exception_of_a_dropped_run():
    shared = Shared("SHARED_QUEUE", raises)
    run_threads(1, lambda i: started(shared) and None)
    with pytest.raises(Mine):
        shared.sched.synchronize()
    shared.sched.synchronize()


def test_a_trace_is_stopped_by_its_own_stop_only():
    """Two threads stop one trace while a third thread starts another."""
    shared = Shared("CPU", None)
    for _ in range(50):
        old = shared.sched.trace()
        run_threads(2, lambda i, old=old: old.stop() and None)
        new = shared.sched.trace()
        old.stop()
        shared.sched.compute(shared.graph)
        assert new.running
        assert any(e.kind == "compute" for e in new.stop().events)


def test_the_aborted_call_raises_the_exception_of_an_abort_callback():
    shared = Shared("CPU", None)
    owner = threading.local()

    def asked() -> bool:
        raise Mine(owner.name)

    gb.sched.set_abort_callback(shared.cpu, asked)

    def work(i: int) -> None:
        owner.name = i
        for _ in range(300):
            with pytest.raises(Mine) as caught:
                shared.sched.compute_async(shared.graph).wait() if i == 2 else shared.sched.compute(shared.graph)
            assert caught.value.args == (i,)

    run_threads(3, work)
