"""A rank can send data without a copy. A rank that waits announces that, and the sender then lends its
memory. Lent memory stays unchanged until the receiver has it. The simulated network reads lent
bytes as late as any MPI may.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cluster import LocalNetwork, _worker, simulated
from ggml_backend.cluster import _messages as m
from ggml_backend.cluster._transport import LocalTransport
from ggml_backend.cluster._worker import _LEND
from ranks import alone, compute_on, placed

pytestmark = pytest.mark.slow

N = 2 * _LEND // 4  # elements of lent data
SLOW = 0.15  # seconds from rank 1 to rank 2
PATIENCE = 20.0


class Pair:
    """``other`` and ``a`` on rank 1, ``x`` and ``b`` on rank 2, and a graph that changes ``a``."""

    def __init__(self, cluster, network, n=N):
        self.cluster, self.network, self.n = cluster, network, n
        self.one, self.two = cluster.backends()
        self.here, self.there = gb.Context(), gb.Context()
        self.other, self.a = self.here.tensor((n,), name="other"), self.here.tensor((n,), name="a")
        self.x = self.there.tensor((n,), name="x")
        self.b = self.there.tensor((n,), name="b")
        self.memory = self.here.allocate(self.one)
        self.there.allocate(self.two)
        self.c = gb.ops.scale(self.a, 5.0, inplace=True)
        self.graph = self.here.graph(self.c)
        self.sched = gb.Scheduler([self.one, gb.Backend("CPU", n_threads=1)])
        self.sched.set_backend(self.c, self.one)
        self.sched.allocate(self.graph)
        self.sched.compute(self.graph)
        for tensor, value in ((self.a, 1.0), (self.b, 0.0), (self.other, 0.0), (self.x, 3.0)):
            self.fill(tensor, value)
        self.one.synchronize(), self.two.synchronize()

    def fill(self, tensor, value):
        tensor.set(np.full(self.n, value, np.float32))

    def flush(self):
        conductor = self.cluster._conductor
        with conductor.lock:
            conductor.flush(conductor.peers[1])

    @property
    def worker(self):
        return self.cluster._workers[0]

    def lend(self):
        """Rank 1 sends ``a`` to ``b`` on rank 2, which waits for it. The transfer is pending."""
        self.network.stop(1)  # so that rank 2 announces its wait before rank 1 sends
        self.b.copy_from(self.a)
        self.wait(lambda: self.network.sent.get((2, 1, m.ASKED)))
        self.network.go_on(1)
        self.wait(lambda: self.worker.loans)

    @staticmethod
    def wait(ready):
        until = time.monotonic() + PATIENCE
        while not ready():
            assert time.monotonic() < until
            time.sleep(0.001)

    def expect(self, value=1.0):
        np.testing.assert_array_equal(self.b.numpy(copy=True), np.full(self.n, value, np.float32))


@contextlib.contextmanager
def pair(**options):
    network = LocalNetwork(3)
    with simulated(3, network=network, **options) as cluster:
        found = Pair(cluster, network)
        network.link(1, 2, delay=SLOW)
        yield found


CHANGES = {
    "set": lambda p: p.fill(p.a, 2.0),
    "set a part": lambda p: p.a[:8].set(np.full(8, 2.0, np.float32)),
    "clear": lambda p: p.memory.clear(7),
    "copy": lambda p: p.a.copy_from(p.other),
    "take": lambda p: p.a.copy_from(p.x),
    "compute": lambda p: p.sched.compute_async(p.graph),
    "free": lambda p: (p.sched.close(), p.here.close(), p.memory.close(), gc.collect()),
}


def lent(monkeypatch):
    """The sizes of all loans."""
    found, real = [], LocalTransport.lend

    def lend(self, peer, tag, data, keep):
        found.append(len(data))
        return real(self, peer, tag, data, keep)

    monkeypatch.setattr(LocalTransport, "lend", lend)
    return found


@pytest.mark.parametrize(("n", "times"), [(_LEND // 4 - 1, 0), (_LEND // 4, 1)])
def test_large_data_are_lent_to_a_waiting_rank(monkeypatch, n, times):
    sizes, network = lent(monkeypatch), LocalNetwork(3)
    with simulated(3, network=network) as cluster:
        p = Pair(cluster, network, n)
        network.stop(1)
        p.b.copy_from(p.a)
        if times:
            p.wait(lambda: network.sent.get((2, 1, m.ASKED)))
        network.go_on(1)
        p.expect()
        assert sizes == [n * 4] * times
        assert network.sent[1, 2, m.DATA] == [1, n * 4]
        assert network.sent.get((2, 1, m.ASKED), [0, 0]) == [times, 0]


def test_data_without_a_waiting_rank_are_copied(monkeypatch):
    """A busy rank has not announced a wait, so the sender copies and continues at once."""
    sizes = lent(monkeypatch)
    with pair() as p:
        p.network.stop(2)
        p.b.copy_from(p.a)
        p.fill(p.a, 2.0)
        p.one.synchronize()
        p.network.go_on(2)
        p.expect()
        assert not sizes


@pytest.mark.parametrize("asks_first", [True, False])
@pytest.mark.parametrize("after", ["set", "copy", "clear"])
def test_a_sender_with_more_commands_makes_a_copy(monkeypatch, after, asks_first):
    """A stage of a pipeline computes while its last result is on a slow link, for any order of
    messages."""
    sizes = lent(monkeypatch)
    with pair() as p:
        p.network.stop(1)
        if not asks_first:
            p.network.link(2, 1, delay=SLOW)
        p.b.copy_from(p.a)
        if asks_first:
            p.wait(lambda: p.network.sent.get((2, 1, m.ASKED)))
        CHANGES[after](p)
        p.flush()
        p.wait(lambda: p.network.sent.get((2, 1, m.ASKED)))
        p.network.go_on(1)
        p.expect()
        assert not sizes


@pytest.mark.parametrize("how", CHANGES)
def test_lent_memory_does_not_change(how):
    with pair() as p:
        p.lend()
        CHANGES[how](p)
        p.one.synchronize()
        assert not p.worker.loans
        p.expect()
        p.two.synchronize()
        compute_on(p.one)


def test_other_memory_is_usable_during_a_loan():
    with pair() as p:
        p.network.link(1, 2, delay=PATIENCE)
        p.lend()
        compute_on(p.one)
        with gb.Context() as ctx:
            tensor = ctx.tensor((p.n,), name="tensor")
            memory = ctx.allocate(p.one)
            p.fill(tensor, 3.0)
            np.testing.assert_array_equal(tensor.numpy(copy=True), np.full(p.n, 3.0, np.float32))
            memory.close()
        assert p.worker.loans and not p.worker.loans[0][0].is_over
        p.network.kill(2)  # so that closing does not wait for the slow link


@pytest.mark.parametrize("how", ["kill", "stop", "cut"])
def test_a_lender_survives_the_loss_of_the_receiver(how):
    """The lender gets its memory back, and no rank waits for the bytes."""
    with pair(deadline=0.4) as p:
        if how == "cut":
            p.network.cut(1, 2)
        p.lend()
        if how != "cut":
            getattr(p.network, how)(2)
        p.fill(p.a, 2.0)
        np.testing.assert_array_equal(p.a.numpy(copy=True), np.full(p.n, 2.0, np.float32))
        compute_on(p.one)
        assert not p.worker.loans
        with pytest.raises(gb.errors.DeviceLostError) as caught:
            p.b.numpy()
        assert caught.value.rank == 2 and [r.number for r in p.cluster.ranks if r.lost] == [2]


def test_a_receiver_survives_the_loss_of_the_lender():
    """Its data arrived completely or not at all. The other rank continues."""
    with pair(deadline=1.0) as p:
        p.lend()
        p.network.kill(1)
        with contextlib.suppress(gb.errors.DeviceLostError):
            p.expect()
        with contextlib.suppress(gb.errors.DeviceLostError):  # a failed copy is also reported to the next computation
            p.two.synchronize()
        compute_on(p.two)
        assert [r.number for r in p.cluster.ranks if r.lost] == [1]


def test_a_cluster_closes_during_transfers():
    with pair() as p:
        p.lend()


@pytest.fixture
def all_lent(monkeypatch):
    """Data of any size are lent."""
    monkeypatch.setattr(_worker, "_LEND", 1)
    return lent(monkeypatch)


@pytest.mark.parametrize("name", ["embed", "llama"])
def test_models_give_the_same_bits_if_all_data_are_lent(all_lent, name):
    wanted = alone(name, range(5))
    with simulated(4) as cluster, placed(name, cluster.backends()) as (model, sched):
        for seed, want in enumerate(wanted):
            np.testing.assert_array_equal(model.run(sched, seed), want)
    assert all_lent


def copy_at_random(seed):
    """Sets, copies, runs and reads in any order, over links of any delay, against NumPy."""
    rng, network = np.random.default_rng(seed), LocalNetwork(4, delay=0.0005, jitter=0.002, seed=seed)
    with simulated(4, network=network) as cluster:
        devices = cluster.backends()
        contexts = [gb.Context() for _ in devices]
        tensors = [[c.tensor((64,), name=f"{i}.{k}") for k in range(3)] for i, c in enumerate(contexts)]
        for c, device in zip(contexts, devices, strict=True):
            c.allocate(device)
        values = [[np.zeros(64, np.float32) for _ in range(3)] for _ in devices]
        for i, k in itertools.product(range(3), range(3)):
            tensors[i][k].set(values[i][k])
        for _ in range(150):
            (i, a), (j, b) = rng.integers(0, 3, (2, 2))
            act = rng.choice(["set", "copy", "copy", "copy", "read"])
            if act == "set":
                values[i][a] = rng.standard_normal(64).astype(np.float32)
                tensors[i][a].set(values[i][a])
            elif act == "copy" and (i, a) != (j, b):
                tensors[i][a].copy_from(tensors[j][b])
                values[i][a] = values[j][b]
            elif act == "read":
                np.testing.assert_array_equal(tensors[i][a].numpy(copy=True), values[i][a])
        for i, k in itertools.product(range(3), range(3)):
            np.testing.assert_array_equal(tensors[i][k].numpy(copy=True), values[i][k])


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_random_copies(all_lent, first):
    for seed in range(first, first + 5):
        copy_at_random(seed)
    assert all_lent  # one run alone may lend nothing if the machine is busy
