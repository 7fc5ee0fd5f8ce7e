"""Ctrl-C and failed allocations at any moment: afterwards everything works, also from another thread.

    python tests/python/harness_interrupts.py --seconds 10 --seed 1               a timer interrupts operations at random moments
    python tests/python/harness_interrupts.py --no-memory                         one allocation of Python's after the other fails

An interrupt is a KeyboardInterrupt that the handler of a signal raises, SIGINT or SIGALRM, sent by a timer 1 us to 5 ms after an operation
began. After every burst of them the world is checked by this thread and by another one. Descriptors and threads must not grow, memory not
by more than a few dozen MB, and a simulated device of 4 MB still has its memory. A lock that is left behind shows as a hang.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import ggml_backend as gb
from harness_world import OPERATIONS, Resources, World, in_thread, out_of_memory, report, shuffled, supervise, watched

AFTER = 30  # interrupted operations between two checks
BOUND = 48.0  # MB


class Timer:
    """Raises KeyboardInterrupt in the main thread once, some time after `start`; never outside of `attempt`."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGALRM, self._fire)
        signal.signal(signal.SIGINT, self._fire)

    def _fire(self, number: int, frame: Any) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def attempt(self, act: Callable[[], object], seconds: float, number: int = signal.SIGALRM) -> bool:
        """Was the act interrupted?"""
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
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False


class _Sender:
    """A thread that sends SIGINT to the main thread, as a terminal does."""

    def __init__(self) -> None:
        self.wanted = threading.Semaphore(0)
        self.seconds = 0.0
        self.thread: threading.Thread | None = None

    def send(self, seconds: float) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, daemon=True)
            self.thread.start()
        self.seconds = seconds
        self.wanted.release()

    def _run(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while True:
            self.wanted.acquire()
            time.sleep(self.seconds)
            signal.pthread_kill(main, signal.SIGINT)


_sender = _Sender()


def new_world_and_close(w: World) -> None:
    World().close()


def by_timer(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, timer, counts = random.Random(seed), Timer(), Counter[str]()
    end = time.monotonic() + seconds
    acts: dict[str, Any] = {**OPERATIONS, "a world": new_world_and_close}
    durations = dict.fromkeys(acts, 0.0)
    with watched():
        world = World()
        for name, act in acts.items():
            began = time.perf_counter()
            attempt(name, act, world)
            durations[name] = time.perf_counter() - began
    before: Resources | None = None
    while time.monotonic() < end:
        for name in shuffled(list(acts), chooser)[:AFTER]:
            # most moments lie within the operation; some come later than it, and may hit what follows
            delay = chooser.choice([chooser.uniform(1e-6, 1.2 * durations[name] + 2e-5), 10 ** chooser.uniform(-6, -2.3)])
            number = signal.SIGINT if chooser.random() < 0.2 else signal.SIGALRM
            with watched():
                try:
                    counts["interrupts"] += timer.attempt(functools.partial(attempt, name, acts[name], world), delay, number)
                except BaseException:
                    print(f"at: {name}", flush=True)
                    raise
            counts["operations"] += 1
        checked(world, counts)
        if chooser.random() < 0.05:
            with watched():
                world.close()
                world = World()
        if counts["checks"] % 10 == 0:
            now = Resources()
            if before is None and (counts["checks"] >= 100 or time.monotonic() > end - seconds / 2):
                before = now
            elif before is not None and (leaks := now.leaked(before, BOUND)):
                raise AssertionError(f"leaked {', '.join(leaks)}")
    return counts


def attempt(name: str, act: Callable[[World], object], world: World) -> None:
    """What was interrupted before may have left results out of date, or inputs unset: StateError. The check that follows finds what is worse."""
    with contextlib.suppress(gb.StateError):
        act(world)


def checked(world: World, counts: Counter[str]) -> None:
    """The world works from this thread and another one."""
    for where, check in (("this thread", world.check), ("another thread", lambda: in_thread(world.check))):
        with watched():
            try:
                check()
            except BaseException:
                print(f"at: the check by {where}", flush=True)
                raise
    world.read_views()
    counts["checks"] += 2
    report(counts)


def without_memory(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    """The n-th allocation of each operation fails, n = 0, 1, ... until none of some dozens in a row makes a difference."""
    try:
        import _testcapi
    except ImportError:
        print("skipped: this Python has no _testcapi", flush=True)
        return Counter()
    chooser, counts = random.Random(seed), Counter[str]()
    end = time.monotonic() + seconds
    acts: dict[str, Any] = {**OPERATIONS, "a world": new_world_and_close}
    world = World()
    for name, act in acts.items():
        attempt(name, act, world)
    world.check()
    gc.collect()
    gc.disable()
    for name in shuffled(list(acts), chooser):
        act, n, quiet = acts[name], 0, 0
        while quiet < 40 and time.monotonic() < end:
            failed = True
            with watched():
                _testcapi.set_nomemory(n, n + 1)
                try:
                    try:
                        attempt(name, act, world)
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
                try:
                    checked(world, counts)
                except BaseException:
                    print(f"at: the check after {name}, allocation {n}", flush=True)
                    raise
            n += 1
        counts["operations"] += 1
        report(counts)
        world.close()
        world = World()
    return counts


def work(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    return (without_memory if options.no_memory else by_timer)(seconds, seed, options)


if __name__ == "__main__":
    sys.exit(supervise(__file__, work, ("--no-memory", {"action": "store_true"})))
