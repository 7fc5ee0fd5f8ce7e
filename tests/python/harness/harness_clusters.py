"""Attacks on clusters inside one process: interrupts at every place, other operations and closes at
random places, threads, dying ranks, forks.

    python tests/python/harness/harness_clusters.py --mode interrupts
        raises KeyboardInterrupt in each operation, at each place of the package where CPython
        checks for signals. Then everything works from two threads, no rank is lost, and no objects
        are left on the ranks
    python tests/python/harness/harness_clusters.py --mode timer
        signals of a timer interrupt operations at random times, also outside of the package
    python tests/python/harness/harness_clusters.py --mode handlers
        another operation or close runs at a random place of an operation, on the same thread
    python tests/python/harness/harness_clusters.py --mode threads
        threads run random operations. At the end the scene is closed or ranks are killed during the
        operations
    python tests/python/harness/harness_clusters.py --mode fork
        forks at random times. In the child objects of the cluster raise, and a new cluster works.
        The parent continues

All ranks are threads of this process. Only code of rank 0 is interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

import ggml_backend as gb
from ggml_backend.cluster import LocalNetwork, _worker, simulated
from harness_interleave import Places, after_calls, interrupted
from harness_interrupts import Timer
from harness_scene import PATIENCE, Wrong, in_thread, model_file, must, report, shuffled, supervise, valid, watched

SMALL, LARGE = 16, 4096  # elements; LARGE needs a separate data message
Act = Callable[["ClusterScene"], Any]


class Instructions(Places):
    """The places where CPython checks for signals. The line of ``with lock`` appears again before
    the release of the lock, where no signal handler runs."""

    def __init__(self) -> None:
        super().__init__(True)

    def is_place(self, frame: FrameType, event: str) -> bool:
        return event == "opcode" and frame.f_lasti in after_calls(frame.f_code)


class ClusterScene:
    """Two ranks, a scheduler over both with pending runs, and memory on each. All elements of ``x``
    are 2 or 3, those of ``a`` and ``b`` are 1 or 2, for any order of operations."""

    def __init__(self) -> None:
        self.network = LocalNetwork(3)
        self.entered = simulated(3, network=self.network, deadline=PATIENCE)
        self.cluster = self.entered.__enter__()
        self.one, self.two = self.cluster.backends()
        self.cpu = gb.Backend("CPU", n_threads=1)
        self.ctx = gb.Context()
        self.x = self.ctx.tensor((LARGE,), name="x").set_input()
        first = self.x + self.x
        self.y = first * 1.0
        self.graph = self.ctx.graph(self.y)
        self.sched = gb.Scheduler([self.one, self.two, self.cpu], n_copies=2)
        self.sched.set_backend(first, self.one)
        self.sched.set_backend(self.y, self.two)
        self.sched.allocate(self.graph)
        self.here, self.there = gb.Context(), gb.Context()
        self.small, self.a = self.here.tensor((SMALL,), name="small"), self.here.tensor((LARGE,), name="a")
        self.b = self.there.tensor((LARGE,), name="b")
        self.buffer = self.here.allocate(self.one)
        self.other = self.there.allocate(self.two)
        self.event = gb.backend.Event(self.one)
        self.file = gb.gguf.open(model_file())
        self.pending: gb.sched.Pending | None = None
        for t in (self.small, self.a, self.b):
            t.set(1.0)
        self.x.set(2.0)
        self.sched.compute(self.graph)

    def check(self) -> None:
        """Checks that everything works, with right results. Requires that nothing is closed and no
        rank lost."""
        lost = [r.lost for r in self.cluster.ranks if r.lost]
        if lost:
            raise Wrong(lost[0])
        with contextlib.suppress(gb.errors.StateError):  # an interrupt may have stopped a run
            self.sched.synchronize()
        self.sched.allocate(self.graph)
        for value in (3.0, 2.0):
            self.x.set(value)
            must(self.sched.compute(self.graph), "compute")
            valid("y", self.y.numpy(copy=True), 2 * value)
            self.x.set(value)
            valid("y of compute_async", self.sched.compute_async(self.graph, [self.y]).results()[0], 2 * value)
        for value in (2.0, 1.0):
            for t in (self.small, self.a):
                t.set(value)
            self.b.copy_from(self.a)
            for t in (self.small, self.a, self.b):
                valid(t.name, t.numpy(copy=True), value)
        self.event.record().synchronize()
        self.one.synchronize(), self.two.synchronize()
        with gb.Backend("MPI1:SIM,mem=1M") as device:
            device.allocate(900_000).close()

    def check_ranks(self) -> None:
        """Checks that ranks have only objects of this scene, and no unreceived data."""
        gc.collect()
        for device in (self.one, self.two):
            device.synchronize()
        self.cluster.ping(1), self.cluster.ping(2)
        for worker in self.cluster._workers:
            have = len(worker.memories), len(worker.graphs), len(worker.devices)
            if have[0] > 24 or have[1] > 24 or have[2] > 8:
                raise Wrong(f"{have} memories, graphs and devices are left on a rank")

    def close(self) -> None:
        """The thread that closes a cluster waits for its ranks."""
        for closer in CLOSERS.values():
            with contextlib.suppress(gb.GgmlError):
                closer(self)


def _pending(w: ClusterScene) -> None:
    runs = []
    for value in (2.0, 3.0, 2.0):
        w.x.set(value)
        runs.append(w.sched.compute_async(w.graph, [w.y]))
    for run in runs:
        valid("y of a pending run", run.results()[0], 4, 6)


def _start(w: ClusterScene) -> None:
    w.pending = w.sched.compute_async(w.graph, [w.y])


def _finish(w: ClusterScene) -> None:
    pending = w.pending
    if pending is not None:
        valid("y of a run", pending.results()[0], 4, 6)


def _open_scheduler(w: ClusterScene) -> None:
    with gb.Context() as ctx, gb.Scheduler([w.two, w.one, w.cpu]) as scheduler:
        t = ctx.tensor((3, 4))
        y = gb.ops.relu(t + t)
        scheduler.set_backend(y, w.two)
        scheduler.set_backend(y.sources[0], w.one)
        graph = ctx.graph(y)
        scheduler.allocate(graph)
        t.set(1.0)
        if scheduler.compute(graph):
            valid("a new scheduler", y.numpy(copy=True), 2)


def _open_device(w: ClusterScene) -> None:
    with gb.Backend("MPI2:CPU") as device, gb.Context() as ctx:
        t = ctx.tensor(LARGE)
        with device.allocate(4 * LARGE) as buffer:
            buffer.place(t)
            t.set(5.0)
            valid("a new device", t.numpy(copy=True), 5)


def _own(w: ClusterScene) -> None:
    with gb.Context() as ctx:
        t = ctx.tensor((SMALL,))
        y = gb.ops.sqr(t)
        graph = ctx.graph(y)
        with ctx.allocate(w.one):
            t.set(3.0)
            if graph.compute(w.one):
                valid("a graph on a rank", y.numpy(copy=True), 9)


def _load(w: ClusterScene) -> None:
    with w.file.load(w.two) as weights:
        valid("weights of a rank", weights["w"].numpy(copy=True), 0, 1)


OPERATIONS: dict[str, Act] = {
    "compute": lambda w: w.sched.compute(w.graph),
    "read y": lambda w: valid("y", w.y.numpy(copy=True), 4, 6),
    "pending run": _pending,
    "start": _start,
    "finish": _finish,
    "synchronize": lambda w: w.sched.synchronize(),
    "allocate": lambda w: w.sched.allocate(w.graph),
    "set x": lambda w: w.x.set(3.0),
    "set small": lambda w: w.small.set(2.0),
    "set a": lambda w: w.a.set(2.0),
    "set part": lambda w: w.a.set(np.full(2500, 1, np.float32), 100),
    "read small": lambda w: valid("small", w.small.numpy(copy=True), 1, 2),
    "read a": lambda w: valid("a", w.a.numpy(copy=True), 1, 2),
    "read b": lambda w: valid("b", w.b.numpy(copy=True), 1, 2),
    "copy to b": lambda w: w.b.copy_from(w.a),
    "copy to a": lambda w: w.a.copy_from(w.b),
    "device waits": lambda w: (w.one.synchronize(), w.two.synchronize()),
    "event": lambda w: w.event.record().synchronize(),
    "event waits": lambda w: w.event.record().wait(w.two),
    "buffer": lambda w: w.two.allocate(1 << 16).clear(0),
    "open scheduler": _open_scheduler,
    "open device": _open_device,
    "graph of its own": _own,
    "load": _load,
    "backends": lambda w: w.cluster.backends("CPU"),
    "supports": lambda w: (w.one.supports(w.y), w.two.unsupported_reason(w.y)),
    "facts": lambda w: (w.cluster.ranks, w.cluster.bytes_sent, w.cluster.n_ranks, repr(w.cluster), w.cluster.closed),
    "ping": lambda w: w.cluster.ping(1, times=2),
    "clocks": lambda w: w.cluster.set_clocks(),
    "no memory": lambda w: _no_memory(w),
}  # fmt: skip


def _no_memory(w: ClusterScene) -> None:
    with contextlib.suppress(gb.errors.AllocationError):
        w.one.allocate(1 << 60)


CLOSERS: dict[str, Act] = {
    "close event": lambda w: w.event.close(),
    "close buffer": lambda w: w.buffer.close(),
    "close scheduler": lambda w: w.sched.close(),
    "close one": lambda w: w.one.close(),
    "close contexts": lambda w: (w.here.close(), w.ctx.close()),
    "close cluster": lambda w: w.cluster.close(),
    "end": lambda w: w.entered.__exit__(None, None, None),
}
KILLERS: dict[str, Act] = {
    "kill one": lambda w: w.network.kill(1),
    "kill two": lambda w: w.network.kill(2),
}


def attempt(act: Act, scene: ClusterScene) -> None:
    """Tolerates StateError: an earlier interrupt may have left a failed run or outdated results."""
    with contextlib.suppress(gb.errors.StateError):
        act(scene)


def tolerant(act: Act, scene: ClusterScene) -> None:
    with contextlib.suppress(gb.GgmlError):
        act(scene)


def checked(scene: ClusterScene, counts: Counter[str]) -> None:
    with watched():
        scene.check()
        in_thread(scene.check)
    counts["checks"] += 2


def interrupts(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, places, counts = random.Random(seed), Instructions(), Counter[str]()
    end = time.monotonic() + seconds
    scene = ClusterScene()
    for name in shuffled(list(OPERATIONS), chooser):
        first = chooser.randint(1, 12) if not options.complete else 1
        step = 1 if options.complete else chooser.randint(3, 12)
        for k in itertools.count(first, step):
            if time.monotonic() > end and not options.complete:
                scene.close()
                return counts
            if not interrupted(places, name, functools.partial(attempt, OPERATIONS[name], scene), k):
                break
            counts["interrupts"] += 1
            print(f"at: the check after {name}, interrupted at {places.where}", flush=True)
            checked(scene, counts)
        counts["operations"] += 1
        with watched():
            scene.check_ranks()
        report(counts)
    scene.close()
    counts["complete"] += 1
    return counts


def by_timer(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, timer, counts = random.Random(seed), Timer(), Counter[str]()
    end = time.monotonic() + seconds
    scene = ClusterScene()
    while time.monotonic() < end:
        for name in shuffled(list(OPERATIONS), chooser)[:8]:
            print(f"at: {name}", flush=True)
            act = functools.partial(attempt, OPERATIONS[name], scene)
            with watched():
                number = signal.SIGINT if chooser.random() < 0.2 else signal.SIGALRM
                counts["interrupts"] += timer.attempt(act, 10 ** chooser.uniform(-5.5, -2.3), number)
            counts["operations"] += 1
        print("at: the check", flush=True)
        checked(scene, counts)
        report(counts)
    with watched():
        scene.check_ranks()
    scene.close()
    return counts


def handlers(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, places, counts = random.Random(seed), Instructions(), Counter[str]()
    end = time.monotonic() + seconds
    lengths: dict[str, int] = {}
    scene = ClusterScene()
    while time.monotonic() < end:
        name = chooser.choice(list(OPERATIONS))
        ends = chooser.random() < 0.1
        others = {**CLOSERS, **KILLERS} if ends else OPERATIONS
        other = chooser.choice(list(others))
        k = chooser.randint(1, lengths.get(name, 300))
        print(f"at: {name} with {other} at place {k}", flush=True)
        with watched():
            reached = places.run(
                functools.partial(tolerant, OPERATIONS[name], scene), k, lambda other=other, others=others, scene=scene:
                tolerant(others[other], scene)
            )  # fmt: skip
        if not reached:
            lengths[name] = k
        elif ends:
            with watched():
                scene.close()
                scene = ClusterScene()
        else:
            checked(scene, counts)
        counts["re-entries"] += reached
        report(counts)
    scene.close()
    return counts


def threads(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, counts = random.Random(seed), Counter[str]()
    end = time.monotonic() + seconds
    sys.setswitchinterval(1e-5)
    while time.monotonic() < end:
        scene, over, raised = ClusterScene(), threading.Event(), list[BaseException]()

        def user(mine: random.Random, scene: Any = scene, over: Any = over, raised: Any = raised) -> None:
            name = "?"
            try:
                while not over.is_set():
                    name = mine.choice(list(OPERATIONS))
                    tolerant(OPERATIONS[name], scene)
                    counts["operations"] += 1
            except BaseException as error:
                print(f"at: {name}, in a thread", flush=True)
                raised.append(error)
                over.set()

        users = [threading.Thread(target=user, args=(random.Random(chooser.getrandbits(32)),)) for _ in range(3)]
        how = chooser.choice(["nothing", *CLOSERS, *KILLERS])
        with watched():
            for thread in users:
                thread.start()
            over.wait(chooser.choice([0.05, 0.2, 0.5]))
            if how != "nothing":
                tolerant({**CLOSERS, **KILLERS}[how], scene)
                over.wait(0.1)
            over.set()
            for thread in users:
                thread.join()
            if raised:
                raise raised[0]
            if how == "nothing":
                scene.check()
                scene.check_ranks()
            elif how in KILLERS:
                for device in scene.cluster.backends():
                    with gb.Context() as ctx, device.allocate(64) as buffer:
                        t = buffer.place(ctx.tensor(4))
                        t.set(7.0)
                        valid("what is left", t.numpy(copy=True), 7)
            scene.close()
        counts["scenes"] += 1
        report(counts)
    return counts


def child(scene: ClusterScene, chooser: random.Random) -> int:
    for name in shuffled(list(OPERATIONS), chooser):
        with contextlib.suppress(gb.GgmlError):
            OPERATIONS[name](scene)
    scene.close()
    mine = ClusterScene()
    mine.check()
    mine.close()
    return 0


def forks(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    chooser, counts = random.Random(seed), Counter[str]()
    end = time.monotonic() + seconds
    scene = ClusterScene()
    while time.monotonic() < end:
        over, raised = threading.Event(), list[BaseException]()

        def busy(over: Any = over, raised: Any = raised) -> None:
            try:
                while not over.is_set():
                    attempt(OPERATIONS[chooser.choice(list(OPERATIONS))], scene)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=busy)
        thread.start()
        for _ in range(4):
            time.sleep(chooser.choice([0, 1e-3, 1e-2]))
            sys.stdout.flush()
            process = os.fork()
            if process == 0:
                signal.alarm(int(PATIENCE))
                status = 99
                try:
                    status = child(scene, random.Random(chooser.getrandbits(32)))
                except BaseException:
                    import traceback

                    traceback.print_exc()
                    sys.stdout.flush()
                finally:
                    os._exit(status)
            with watched(2 * PATIENCE):
                _, waited = os.waitpid(process, 0)
            counts["children"] += 1
            if waited:
                raise AssertionError(f"a child ended with {os.waitstatus_to_exitcode(waited)}")
        over.set()
        with watched():
            thread.join()
            if raised:
                raise raised[0]
        checked(scene, counts)
        report(counts)
    scene.close()
    return counts


MODES = {"interrupts": interrupts, "timer": by_timer, "handlers": handlers, "threads": threads, "fork": forks}


def work(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    _worker._LEND = 1024  # bytes, so that LARGE data may be lent
    try:
        return MODES[options.mode](seconds, seed, options)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(supervise(
        __file__, work, ("--mode", {"choices": list(MODES), "default": "interrupts"}),
        ("--complete", {"action": "store_true"}),
    ))  # fmt: skip
