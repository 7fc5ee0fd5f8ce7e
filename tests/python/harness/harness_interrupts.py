"""Ctrl-C and failed allocations at random times. Afterwards everything works, also from another
thread.

    python tests/python/harness/harness_interrupts.py --seconds 10 --seed 1
        a timer interrupts operations at random times
    python tests/python/harness/harness_interrupts.py --no-memory
        each allocation of Python fails in turn
    python tests/python/harness/harness_interrupts.py --latency
        measures the time from SIGINT to KeyboardInterrupt while the library works or waits

A signal handler raises KeyboardInterrupt. A timer sends SIGINT or SIGALRM 1 us to 5 ms after an
operation began. After a burst of interrupts, this thread and another one check the scene.
Descriptors and threads must not grow, memory by at most a few dozen MB, and a simulated device of 4
MB must have its memory. A leaked lock appears as a hang.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import queue
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import ggml_backend as gb
from harness_scene import (
    OPERATIONS,
    SANITIZED,
    Resources,
    Scene,
    in_thread,
    lost_by_python,
    out_of_memory,
    report,
    shuffled,
    supervise,
    watched,
    watched_by_alarm,
)

AFTER = 30  # interrupted operations between two checks
BOUND = 48.0  # MB


class Timer:
    """Raises KeyboardInterrupt in the main thread once, some time after `start`, and only within
    `attempt`."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGALRM, self._fire)
        signal.signal(signal.SIGINT, self._fire)

    def _fire(self, number: int, frame: Any) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def attempt(self, act: Callable[[], object], seconds: float, number: int = signal.SIGALRM) -> bool:
        """Earlier interrupts may have left outdated results or unset inputs, which raise
        StateError. The check that follows finds real faults."""
        try:
            try:
                self.armed = True
                if number == signal.SIGALRM:
                    signal.setitimer(signal.ITIMER_REAL, seconds)
                else:
                    _sender.send(seconds)
                act()
            finally:
                self.armed = False
        except KeyboardInterrupt:
            return True
        except SystemError as error:
            if not lost_by_python(error):
                raise
            return True
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False


class _Sender:
    """A thread that sends SIGINT to the main thread, like a terminal."""

    def __init__(self) -> None:
        # SimpleQueue is in C: an interrupt of `put` leaks no Python lock
        self.wanted: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.sent = 0.0  # time of the signal
        self.thread: threading.Thread | None = None

    def send(self, seconds: float) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, daemon=True)
            self.thread.start()
        self.wanted.put(seconds)

    def _run(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while True:
            time.sleep(self.wanted.get())
            self.sent = time.monotonic()
            signal.pthread_kill(main, signal.SIGINT)


_sender = _Sender()


def new_scene_and_close(w: Scene) -> None:
    Scene().close()


def by_timer(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, timer, counts = random.Random(seed), Timer(), Counter[str]()
    end = time.monotonic() + seconds
    acts: dict[str, Any] = {**OPERATIONS, "a scene": new_scene_and_close}
    durations = dict.fromkeys(acts, 0.0)
    with watched():
        scene = Scene()
        for name, act in acts.items():
            began = time.perf_counter()
            attempt(name, act, scene)
            durations[name] = time.perf_counter() - began
    before: Resources | None = None
    while time.monotonic() < end:
        for name in shuffled(list(acts), chooser)[:AFTER]:
            # most times are within the operation; some are later, and may hit the next code
            delay = chooser.choice(
                [chooser.uniform(1e-6, 1.2 * durations[name] + 2e-5), 10 ** chooser.uniform(-6, -2.3)]
            )
            number = signal.SIGINT if chooser.random() < 0.2 else signal.SIGALRM
            with watched():
                try:
                    counts["interrupts"] += timer.attempt(
                        functools.partial(attempt, name, acts[name], scene), delay, number
                    )
                except BaseException:
                    print(f"at: {name}", flush=True)
                    raise
            counts["operations"] += 1
        print("at: the check", flush=True)
        checked(scene, counts)
        if chooser.random() < 0.05:
            with watched():
                scene.close()
                scene = Scene()
        if counts["checks"] % 10 == 0:
            now = Resources()
            if before is None and (counts["checks"] >= 100 or time.monotonic() > end - seconds / 2):
                before = now
            elif before is not None and (leaks := now.leaked(before, BOUND)):
                raise AssertionError(f"leaked {', '.join(leaks)}")
    return counts


def attempt(name: str, act: Callable[[Scene], object], scene: Scene) -> None:
    """Earlier interrupts may have left outdated results or unset inputs, which raise StateError.
    The check that follows finds real faults."""
    with contextlib.suppress(gb.errors.StateError):
        act(scene)


def checked(scene: Scene, counts: Counter[str]) -> None:
    """Checks the scene from this thread and another one."""
    for where, check in (("this thread", scene.check), ("another thread", lambda: in_thread(scene.check))):
        with watched():
            try:
                check()
            except BaseException:
                print(f"by {where}", flush=True)
                raise
    scene.read_views()
    counts["checks"] += 2
    report(counts)


def without_memory(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    """Allocation n of each operation fails, for n = 0, 1, ... until dozens of failures in a row
    have no effect."""
    try:
        import _testcapi
    except ImportError:
        print("skipped: this Python has no _testcapi", flush=True)
        return Counter()
    chooser, counts = random.Random(seed), Counter[str]()
    end = time.monotonic() + seconds
    acts: dict[str, Any] = {**OPERATIONS, "a scene": new_scene_and_close}
    scene = Scene()
    for name, act in acts.items():
        attempt(name, act, scene)
    scene.check()
    gc.collect()
    gc.disable()
    for name in shuffled(list(acts), chooser):
        act, n, quiet = acts[name], 0, 0
        while quiet < 40 and time.monotonic() < end:
            failed = True
            with watched_by_alarm():
                _testcapi.set_nomemory(n, n + 1)
                try:
                    try:
                        attempt(name, act, scene)
                        failed = False
                    finally:
                        _testcapi.remove_mem_hooks()
                except BaseException as error:
                    if not out_of_memory(error):
                        print(f"at: {name}, allocation {n}", flush=True)
                        raise
            counts["failed allocations"] += failed
            quiet = 0 if failed else quiet + 1
            if failed:
                print(f"at: the check after {name}, allocation {n}", flush=True)
                checked(scene, counts)
            n += 1
        counts["operations"] += 1
        report(counts)
        scene.close()
        scene = Scene()
    return counts


def _product(devices: list[gb.Backend], n: int = 6144) -> Callable[[], object]:
    """One node that takes a second or more, longer than any wait before the interrupt."""
    ctx, scheduler = gb.Context(), gb.Scheduler(devices)
    a = ctx.tensor((n, n))
    graph = ctx.graph(a @ a)
    scheduler.allocate(graph)
    a.set(0.0)
    return lambda: scheduler.compute(graph)


def _slow_device(how: str) -> Callable[[], object]:
    device = gb.Backend("SIM", delay="3s")
    ctx, scheduler = gb.Context(), gb.Scheduler([device])
    x = ctx.tensor(4)
    y = x * 2.0
    graph = ctx.graph(y)
    scheduler.allocate(graph)
    x.set(1.0)
    return {
        "compute": lambda: scheduler.compute(graph),
        "results": lambda: scheduler.compute_async(graph, [y]).results(),
        "numpy": lambda: (scheduler.compute_async(graph), y.numpy()),
        "synchronize": lambda: (scheduler.compute_async(graph), device.synchronize()),
    }[how]


def _behind_another_thread() -> Callable[[], object]:
    cpu = gb.Backend("CPU", n_threads=1)
    ctx = gb.Context()
    x, y = ctx.tensor(4), ctx.tensor(4)
    slow = ctx.graph(gb.ops.map_custom(lambda dst, a: time.sleep(3), x))
    quick = ctx.graph(y * 2.0)
    ctx.allocate(cpu)
    x.set(1.0)
    y.set(1.0)
    others: list[threading.Thread] = []

    def act() -> None:
        if not others or not others[0].is_alive():
            others[:] = [threading.Thread(target=lambda: slow.compute(cpu), daemon=True)]
            others[0].start()
            time.sleep(0.1)
        quick.compute(cpu)

    return act


LATENCY: dict[str, Callable[[], Callable[[], object]]] = {
    "a product on one thread": lambda: _product([gb.Backend("CPU", n_threads=1)]),
    "a product on two threads": lambda: _product([gb.Backend("CPU", n_threads=2)]),
    "a product on a simulated device": lambda: _product([gb.Backend("SIM", mem="512M")]),
    **{
        f"a slow device, {how}": lambda how=how: _slow_device(how)
        for how in ("compute", "results", "numpy", "synchronize")
    },  # type: ignore[misc]
    "another thread's computation": _behind_another_thread,
}


def latency(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    """Milliseconds from SIGINT to KeyboardInterrupt. The documents promise 200. The limit allows
    for a busy machine."""
    chooser, timer, counts = random.Random(seed), Timer(), Counter[str]()
    acts = {name: make() for name, make in LATENCY.items()}
    late: dict[str, list[float]] = {name: [] for name in acts}
    end = time.monotonic() + seconds
    while time.monotonic() < end or not all(late.values()):
        for name, act in acts.items():
            with watched():
                if not timer.attempt(act, chooser.uniform(0.12, 0.4), signal.SIGINT):
                    print(f"at: {name}", flush=True)
                    raise AssertionError("it ended before it was interrupted")
            late[name].append(1000 * (time.monotonic() - _sender.sent))
            counts["interrupts"] += 1
            counts[f"ms until heard: {name} (median)"] = round(statistics.median(late[name]))
            counts[f"ms until heard: {name} (worst)"] = round(max(late[name]))
            report(counts)
            if late[name][-1] > (20_000 if SANITIZED else 2_000):
                print(f"at: {name}", flush=True)
                raise AssertionError("heard too late")
    return counts


def work(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    try:
        return (without_memory if options.no_memory else latency if options.latency else by_timer)(
            seconds, seed, options
        )
    finally:  # a signal may be pending, and Python removes its handlers before the process ends
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(
        supervise(__file__, work, ("--no-memory", {"action": "store_true"}), ("--latency", {"action": "store_true"}))
    )
