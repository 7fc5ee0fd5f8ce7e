"""Control messages of a cluster, damaged in transit: every wait ends.

    python tests/python/harness/harness_messages.py --seconds 60 --seed 1

In each round a cluster of three simulated ranks, with a short deadline, computes, copies and loads.
One to three of its control messages are changed, lost or repeated. Each call must end within a few
deadlines, and only errors of the package are allowed. Results may be wrong: a payload has no
checksum.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ggml_backend as gb
from ggml_backend.cluster import LocalNetwork, _transport, _worker, simulated
from ggml_backend.cluster import _messages as m
from harness_scene import model_file, report, supervise, watched

DEADLINE = 0.5
MOST = 40 * DEADLINE + 20  # seconds for a round, whose calls may each wait for the deadline on a busy machine
HEADER = 20  # bytes of a message
SIZE = 1000


class Damage:
    """Changes some control messages of the ranks, by their numbers."""

    def __init__(self, chooser: random.Random) -> None:
        self.chooser = chooser
        self.numbers = {chooser.randint(1, chooser.choice([10, 30, 100])) for _ in range(chooser.choice([1, 1, 3]))}
        self.rank = chooser.randrange(3)
        self.sent = 0
        self.damages: list[str] = []

    def __call__(self, rank: int, data: bytes) -> list[bytes]:
        if rank != self.rank:
            return [data]
        self.sent += 1
        if self.sent not in self.numbers:
            return [data]
        how = self.chooser.choice(["lost", "twice", *["bits"] * 10])
        self.damages.append(f"rank {rank}, message {self.sent}: {how}")
        if how != "bits":
            return [] if how == "lost" else [data, data]
        changed = bytearray(data)
        for _ in range(self.chooser.choice([1, 1, 2])):
            near = self.chooser.random() < 0.8
            at = self.chooser.randrange(min(len(data), HEADER + 48) if near else len(data))
            changed[at] ^= 1 << self.chooser.randrange(8)
            self.damages[-1] += f" of byte {at}"
        return [bytes(changed)]


@contextlib.contextmanager
def damaged(damage: Damage) -> Iterator[None]:
    original = _transport.LocalTransport.send

    def send(transport: Any, peer: int, tag: int, data: Any) -> None:
        for changed in damage(transport.rank, bytes(data)) if tag == m.CONTROL else [data]:
            original(transport, peer, tag, changed)

    _transport.LocalTransport.send = send  # type: ignore[method-assign]
    try:
        yield
    finally:
        _transport.LocalTransport.send = original  # type: ignore[method-assign]


class Calls:
    """A model on two ranks, and calls that use it."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.one, self.two = cluster.backends()
        self.cpu = gb.Backend("CPU", n_threads=1)
        self.ctx, self.here = gb.Context(), gb.Context()
        self.x = self.ctx.tensor(SIZE, name="x").set_input()
        first = self.x + self.x
        self.y = gb.ops.relu(first) + self.x
        self.graph = self.ctx.graph(self.y)
        self.sched = gb.Scheduler([self.one, self.two, self.cpu], n_copies=2)
        self.sched.set_backend(first, self.one)
        self.sched.set_backend(self.y, self.two)
        self.a, self.b = self.here.tensor(5000), self.here.tensor(5000)
        self.wrong = 0

    def see(self, array: Any, value: float) -> None:
        self.wrong += not (array == value).all()

    def place(self) -> None:
        self.one.allocate(20000).place(self.a)
        self.two.allocate(20000).place(self.b)

    def compute(self) -> None:
        self.sched.allocate(self.graph)
        self.x.set(1.0)
        self.sched.compute(self.graph)
        self.see(self.y.numpy(), 3)

    def compute_async(self) -> None:
        for pending in [self.sched.compute_async(self.graph, self.y) for _ in range(3)]:
            self.see(pending.results()[0], 3)

    def copy(self) -> None:
        self.a.set(2.0)
        self.b.copy_from(self.a)
        self.see(self.b.numpy(), 2)
        self.a.set(np.ones(100, np.float32), 50)

    def trace(self) -> None:
        with self.sched.trace():
            self.sched.compute(self.graph)

    def load(self) -> None:
        with gb.gguf.open(model_file()) as file, file.load(self.two) as weights:
            weights["w"].numpy()

    def ask(self) -> None:
        self.one.supports(self.y)
        self.cluster.ping(1, times=2)
        self.cluster.set_clocks()
        self.cluster.backends("CPU")

    def wait(self) -> None:
        self.sched.synchronize()
        self.one.synchronize()
        self.two.synchronize()

    def all(self) -> list[Callable[[], object]]:
        return [
            self.place, self.compute, self.copy, self.compute_async, self.trace, self.load, self.ask, self.wait,
        ]  # fmt: skip


def one_round(chooser: random.Random, counts: Counter[str]) -> None:
    network = LocalNetwork(3, jitter=chooser.choice([0, 0.0005]), seed=chooser.randrange(99))
    damage = Damage(chooser)
    with (
        contextlib.suppress(gb.GgmlError),
        simulated(3, deadline=DEADLINE, network=network) as cluster,
        damaged(damage),
    ):
        print(f"at: {damage.numbers} of rank {damage.rank}", flush=True)
        calls: Calls | None = None
        with contextlib.suppress(gb.GgmlError):
            calls = Calls(cluster)
        for _ in range(2) if calls is not None else ():
            for call in calls.all():  # type: ignore[union-attr]
                begin = time.monotonic()
                try:
                    call()
                    counts["calls that succeeded"] += 1
                except gb.errors.DeviceLostError:
                    counts["calls that found a rank lost"] += 1
                except gb.GgmlError:
                    counts["calls that failed"] += 1
                counts["slowest call, ms"] = max(
                    counts["slowest call, ms"], int(1000 * (time.monotonic() - begin))
                )  # fmt: skip
                if damage.damages:
                    print(f"at: {call.__name__}, {damage.damages}", flush=True)
        counts["wrong results"] += calls.wrong if calls is not None else 0
    counts["damaged messages"] += len(damage.damages)


def work(seconds: float, seed: int, options: argparse.Namespace) -> Counter[str]:
    _worker.memory_of_host = lambda: 1 << 28  # limits allocations of a damaged size
    _worker._LEND = 1024
    chooser, counts = random.Random(seed), Counter[str]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with watched(MOST):
            one_round(chooser, counts)
        counts["clusters"] += 1
        report(counts)
    return counts


if __name__ == "__main__":
    sys.exit(supervise(__file__, work))
