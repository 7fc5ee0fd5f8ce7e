"""A failure on a rank belongs to the runs that lost work. Schedulers and threads keep many runs
pending, and any command can fail. Each run gives the right result or raises its own failure.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
import time

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cluster import LocalNetwork, simulated
from ggml_backend.cluster import _messages as m
from ggml_backend.cluster._host import Arrival, Queue
from ggml_backend.cluster._messages import What
from ranks import compute_on
from threads import run_threads

pytestmark = pytest.mark.slow

N_GRAPHS = int(os.environ.get("GGML_TEST_GRAPHS", "60"))
LARGE = 4000  # elements: more bytes than inline data of a command


class Chain:
    """x + 1 + 1 ..., each sum on the next device. It has its own scheduler and devices."""

    def __init__(self, names, copies=1, n=LARGE):
        self.devices = [gb.Backend(name) for name in names]
        self.ctx = gb.Context()
        self.sched = gb.Scheduler([*self.devices, gb.Backend("CPU", n_threads=1)], n_copies=copies)
        self.x = self.ctx.tensor((n,), name="x").set_input()
        node = self.x
        for device in self.devices:
            node = node + 1.0
            self.sched.set_backend(node, device)
        self.y = node
        self.graph = self.ctx.graph(node)
        self.sched.allocate(self.graph)
        self.n = n

    def start(self, value):
        self.x.set(np.full(self.n, value, np.float32))
        return self.sched.compute_async(self.graph, results=self.y)

    def expect(self, run, value):
        np.testing.assert_array_equal(run.results()[0], np.full(self.n, value + len(self.devices), np.float32))

    def run(self, value):
        self.expect(self.start(value), value)


def sent(cluster, rank):
    """Waits until a rank has executed its commands. Raises no failures."""
    conductor = cluster._conductor
    peer = conductor.peers[rank]
    conductor.wait(lambda: not peer.out and peer.done == peer.sent)


class Faults:
    """Makes the commands of a rank fail for which ``fails(command)`` is true."""

    def __init__(self, worker, whats=(What.RUN,)):
        self.fails = lambda command: False
        self.failed = 0
        for what in whats:
            worker._do[what] = self.around(worker._do[what])

    def around(self, real):
        def do(command):
            if self.fails(command):
                self.failed += 1
                raise gb.errors.AllocationError(f"fault {self.failed}")
            real(command)

        return do

    def next(self, n):
        """Makes the n-th command from now on fail."""
        count = itertools.count(1)
        self.fails = lambda command: next(count) == n


NAMES = ["MPI1:CPU", "MPI2:CPU"]


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_a_failure_belongs_to_its_run_and_later_ones(rank, order):
    """The third of four runs fails, and later work in the same queue fails, too, for any order of
    waits. Earlier runs are right if they are waited for first. Otherwise they may count as
    failed."""
    with simulated(3, delay=0.002) as cluster:
        chain = Chain(NAMES, copies=4)
        chain.run(9)
        faults = Faults(cluster._workers[rank - 1])
        faults.next(3)
        runs = [chain.start(value) for value in range(4)]
        for i in order:
            if i < 2 and order[:2] == [0, 1]:
                chain.expect(runs[i], i)
            elif i < 2:
                with contextlib.suppress(gb.errors.StateError):
                    chain.expect(runs[i], i)
            else:
                with pytest.raises(gb.GgmlError):
                    runs[i].results()
        faults.fails = lambda command: False
        chain.run(5)


def test_a_scheduler_does_not_raise_the_failure_of_another():
    """Two schedulers have different devices on the same ranks. One fails, and the other one waits
    first."""
    with simulated(3, delay=0.002) as cluster:
        one, two = Chain(NAMES), Chain(NAMES)
        one.run(1), two.run(1)
        faults = Faults(cluster._workers[0])
        faults.next(1)
        lost, good = one.start(2), two.start(3)
        two.expect(good, 3)
        two.sched.synchronize()
        two.run(4)
        with pytest.raises(gb.errors.AllocationError, match="fault 1"):
            lost.results()
        one.run(5)


def test_an_old_failure_is_still_reported():
    with simulated(3) as cluster:
        chain = Chain(NAMES)
        chain.run(1)
        faults = Faults(cluster._workers[1])
        faults.next(1)
        lost = chain.start(2)
        sent(cluster, 1), sent(cluster, 2)
        with pytest.raises(gb.errors.AllocationError, match="fault 1"):
            lost.results()
        chain.run(3)


@pytest.mark.parametrize("n", [4, LARGE])
def test_sets_copies_and_reads_work_after_a_failed_run(n):
    with simulated(3, delay=0.001) as cluster, gb.Context() as ctx, gb.Context() as other:
        chain = Chain(NAMES)
        chain.run(1)
        here, there = cluster.backends()
        a, b = ctx.tensor((n,), name="a"), other.tensor((n,), name="b")
        ctx.allocate(chain.devices[0]), other.allocate(there)
        faults = Faults(cluster._workers[0])
        faults.next(1)
        lost = chain.start(2)
        for value in range(3):
            a.set(np.full(n, value, np.float32))
            b.copy_from(a)
            np.testing.assert_array_equal(a.numpy(copy=True), np.full(n, value, np.float32))
            np.testing.assert_array_equal(b.numpy(copy=True), np.full(n, value, np.float32))
        with pytest.raises(gb.errors.AllocationError, match="fault 1"):
            lost.results()
        compute_on(here)
        chain.run(3)


@pytest.mark.parametrize(("what", "n"), [(What.PUT, 4), (What.TAKE, LARGE), (What.FILL, 4)])
def test_a_failed_set_is_reported_to_readers_and_to_runs(what, n):
    with simulated(2) as cluster, gb.Context() as ctx:
        device = cluster.backends()[0]
        t, u = ctx.tensor((n,), name="t"), ctx.tensor((n,), name="u")
        buffer = ctx.allocate(device)
        t.set(np.ones(n, np.float32)), u.set(np.ones(n, np.float32))
        device.synchronize()
        worker = cluster._workers[0]
        real = worker._memory

        class Bad:
            def __init__(self, piece):
                self.__dict__["piece"] = piece

            def __getattr__(self, name):
                if name in ("write", "target", "fill"):
                    raise gb.errors.DeviceError("it does not take it")
                return getattr(self.piece, name)

            def __setattr__(self, name, value):
                setattr(self.piece, name, value)

        worker._memory = lambda number: Bad(real(number))
        if what == What.FILL:
            buffer.clear(3)
        else:
            t.set(np.zeros(n, np.float32))
        sent(cluster, 1)
        worker._memory = real
        with pytest.raises(gb.errors.DeviceError, match="it does not take it"):
            t.numpy(copy=True)
        np.testing.assert_array_equal(t.numpy(copy=True), np.ones(n, np.float32))  # the failure was reported before
        with pytest.raises(gb.errors.DeviceError, match="it does not take it"):
            device.synchronize()
        t.set(np.full(n, 7, np.float32))
        np.testing.assert_array_equal(t.numpy(copy=True), np.full(n, 7, np.float32))
        device.synchronize()


def test_a_graph_that_cannot_be_prepared_fails_its_own_runs():
    with simulated(2) as cluster:
        worker = cluster._workers[0]
        chain, real = Chain(NAMES[:1]), worker._prepared

        def prepared(device, nodes):
            raise gb.errors.AllocationError("no plan")

        worker._prepared = prepared
        bad = Chain(NAMES[:1])
        for _ in range(2):  # each run fails until the graph is prepared again
            with pytest.raises(gb.errors.AllocationError, match="no plan"):
                bad.run(1)
        worker._prepared = real
        chain.run(3)


@pytest.mark.parametrize("seed", range(max(N_GRAPHS // 6, 1)))
def test_each_run_is_right_or_raises_its_own_failure(seed):
    """Each thread has a scheduler and pending runs. Random commands of random ranks fail. A failure
    names its fault, and a run without a fault is right."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, 4))
    with simulated(ranks + 1, jitter=0.001, seed=seed) as cluster:
        faults = [Faults(w, (What.RUN,) if seed % 2 else (What.RUN, What.GRAPH)) for w in cluster._workers]
        chains = []
        for _ in range(int(rng.integers(2, 4))):
            names = [f"MPI{1 + int(rng.integers(ranks))}:CPU" for _ in range(int(rng.integers(1, 4)))]
            chains.append(Chain(names, copies=int(rng.integers(1, 5)), n=int(rng.choice([4, LARGE]))))
            chains[-1].run(0)
        counts = [0] * len(chains)

        def work(k):
            random, chain, flying = np.random.default_rng((seed, k)), chains[k], []
            for i in range(25):
                value = 100 * k + i
                try:
                    flying.append((chain.start(value), value))
                except gb.errors.AllocationError as error:
                    assert "fault" in str(error)
                    counts[k] += 1
                while len(flying) > random.integers(0, 5):
                    run, value = flying.pop(int(random.integers(len(flying))))
                    try:
                        chain.expect(run, value)
                    except gb.errors.AllocationError as error:
                        assert "fault" in str(error)
                        counts[k] += 1
                    except gb.errors.StateError as error:
                        assert "failed" in str(error)  # later work in the queue of a reported failure
                        counts[k] += 1

        for fault, r in zip(faults, (np.random.default_rng((seed, 99, i)) for i in range(9)), strict=False):
            fault.fails = lambda command, r=r: r.random() < 0.05
        run_threads(len(chains), work)
        assert sum(f.failed for f in faults) == 0 or sum(counts) > 0
        for fault in faults:
            fault.fails = lambda command: False
        for chain in chains:
            with contextlib.suppress(gb.GgmlError):
                chain.sched.synchronize()
            chain.run(7)
        assert not cluster._conductor.peers[1].lost


def test_a_failure_in_another_queue_does_not_matter():
    """Only the scheduler of the failed device fails, even if schedulers share ranks."""
    with simulated(2, jitter=0.001) as cluster:
        one, two = Chain(NAMES[:1], copies=3), Chain(NAMES[:1], copies=3)
        one.run(0), two.run(0)
        bad = one.devices[0].device.number
        worker = cluster._workers[0]
        faults = Faults(worker)
        faults.fails = lambda command: worker.graphs[command.fields[0]].queue == bad
        for value in range(10):
            lost, good = one.start(value), two.start(value)
            two.expect(good, value)
            with pytest.raises(gb.errors.AllocationError, match="fault"):
                lost.results()


# ------------------------------------------------------------------------------------------------- devices and memory


def test_closed_devices_give_back_their_number():
    with simulated(2) as cluster:
        for _ in range(300):
            compute = gb.Backend("MPI1:CPU")
            compute.close()
        del compute
        gc.collect()
        assert len(cluster._workers[0].devices) < 256
        device = gb.Backend("MPI1:CPU")
        compute_on(device)
        cluster.ping(1)
        assert len(cluster._workers[0].devices) <= 2


def test_too_many_open_devices():
    with simulated(2) as cluster:
        devices = [gb.Backend("MPI1:CPU") for _ in range(256)]
        with pytest.raises(
            gb.errors.InvalidArgumentError, match=r"rank 1 .*256 devices are open, which is the limit: close\(\) some"
        ):
            gb.Backend("MPI1:CPU")
        del devices
        gc.collect()
        compute_on(cluster.backends()[0])


def test_devices_are_opened_in_several_threads_at_once():
    with simulated(3, jitter=0.001) as cluster:

        def work(k):
            for _ in range(20):
                compute_on(gb.Backend(f"MPI{1 + k % 2}:CPU"))

        run_threads(4, work)
        assert len(cluster.backends()) == 2


def test_dropped_memory_is_freed_before_an_allocation():
    """A rank has memory for one buffer. A finalizer drops the buffer, and the next one fits."""
    with simulated(2):
        device = gb.Backend("MPI1:SIM,mem=1M")
        for _ in range(20):
            device.allocate(900_000)  # garbage at once
        one = device.allocate(900_000)
        with pytest.raises(gb.errors.AllocationError, match="rank 1"):
            device.allocate(900_000)
        del one
        device.allocate(900_000)


def test_an_idle_process_frees_dropped_memory():
    with simulated(2, deadline=5, heartbeat=0.2) as cluster:
        worker = cluster._workers[0]
        buffer = cluster.backends()[0].allocate(1 << 16)
        time.sleep(0.5)  # the sender sleeps
        assert len(worker.memories) == 1
        del buffer
        until = time.monotonic() + 20
        while worker.memories and time.monotonic() < until:
            time.sleep(0.01)
        assert not worker.memories


def test_a_graph_larger_than_a_message_is_refused(monkeypatch):
    monkeypatch.setattr(m, "MAX_COMMAND", 5000)
    with simulated(2) as cluster, gb.Context() as ctx:
        device = cluster.backends()[0]
        node = x = ctx.tensor((4,), name="x")
        for _ in range(40):
            node = gb.ops.sqr(node)
        graph = ctx.graph(node)
        with gb.Scheduler([device, gb.Backend("CPU", n_threads=1)]) as sched:
            for n in graph.nodes:
                sched.set_backend(n, device)
            sched.allocate(graph)
            x.set(np.ones(4, np.float32))
            with pytest.raises(
                gb.errors.InvalidArgumentError, match=r"40 nodes need a message of \d+ bytes, more than 5000"
            ):
                sched.compute(graph)
        monkeypatch.undo()
        compute_on(device)


def test_a_message_that_is_too_long_for_a_rank_is_an_error():
    with simulated(2, deadline=5) as cluster:
        conductor = cluster._conductor
        conductor.transport.send(1, m.CONTROL, bytes(m.MAX_CONTROL + 100))
        with pytest.raises(gb.errors.DeviceLostError, match=r"rank 1 .*is longer than"):
            cluster._conductor.wait_for(conductor.peers[1], Queue(9), (1 << 40, 0))


def test_frames_of_a_traceback_hold_no_buffer(monkeypatch):
    """CPython's collector reports "memoryview has 1 exported buffer" if an object in the same cycle
    refers to one."""
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: raised.append(str(hook.exc_value)))

    def cycle():
        data, frames = memoryview(bytearray(64)), []  # the collector begins with the oldest object
        sys.settrace(lambda frame, event, arg: frames.append(frame))
        try:
            Arrival(data)
        finally:
            sys.settrace(None)
        frames += [frames, data]
        return [f.f_code.co_name for f in frames[:-2]]

    assert "address" in cycle()
    gc.collect()
    assert not raised


def test_a_network_allocates_only_used_links():
    """A network of many ranks has no memory for each pair of ranks."""
    network = LocalNetwork(1024, jitter=1e-9)
    ends = [network.transport(r) for r in (0, 5, 1023)]
    for sender in ends[1:]:
        sender.send(0, 1, b"x")
    found = []
    while len(found) < 2:
        letter = ends[0].poll()
        if letter is not None:
            found.append(letter.peer)
            letter.finished = True
    assert sorted(found) == [5, 1023]
    assert len(network._random) == 2 and sum(map(len, network.inboxes)) == 2
