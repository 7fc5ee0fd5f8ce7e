"""A rank that waits for data of a cut first waits only for that message (`Transport.catch`)."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cluster import LocalNetwork, _device, _worker, simulated
from ggml_backend.cluster import _messages as m
from ggml_backend.cluster._transport import Killed, LocalTransport
from ranks import alone, placed

TAG = m.tag_of(m.DATA, 5)


def pair(**options):
    network = LocalNetwork(3, **options)
    return network, network.transport(1), network.transport(2)


def catch(transport, seconds=5.0, nbytes=4):
    target = bytearray(b"." * nbytes)
    return transport.catch(1, TAG, memoryview(target), seconds), bytes(target)


@pytest.mark.parametrize("delay", [0.0, 0.01])
def test_a_message_is_received_where_it_belongs(delay):
    _, one, two = pair(delay=delay)
    one.send(2, TAG, b"data")
    assert catch(two) == (4, b"data")
    assert two.poll() is None


def test_a_message_arrives_during_the_wait():
    _, one, two = pair()
    threading.Timer(0.02, one.send, (2, TAG, b"data")).start()
    assert catch(two) == (4, b"data")


def test_a_late_message_is_a_letter():
    _, one, two = pair(delay=0.05)
    one.send(2, TAG, b"data")
    assert catch(two, 0.001) == (None, b"....")
    while (letter := two.poll()) is None:
        time.sleep(0.001)
    assert (letter.peer, letter.channel, letter.mark, bytes(letter.take())) == (1, m.DATA, 5, b"data")


@pytest.mark.parametrize("tag", [m.tag_of(m.DATA, 4), m.tag_of(m.POISON, 5), m.CONTROL])
def test_other_messages_stay_letters(tag):
    _, one, two = pair()
    one.send(2, tag, b"else")
    assert catch(two, 0.01) == (None, b"....")
    letter = two.poll()
    assert (letter.channel, letter.mark) == (tag % m.N_CHANNELS, tag // m.N_CHANNELS)


@pytest.mark.parametrize("data", [b"", b"dat", b"data."])
def test_another_length_is_reported(data):
    _, one, two = pair()
    one.send(2, TAG, data)
    assert catch(two)[0] == len(data)


def test_a_taken_letter_is_not_received_again():
    _, one, two = pair()
    one.send(2, TAG, b"once")
    assert bytes(two.poll().take()) == b"once"
    one.send(2, TAG, b"data")
    assert catch(two) == (4, b"data")
    assert catch(two, 0.001) == (None, b"....")


def test_a_killed_rank_stops_waiting():
    network, _, two = pair()
    threading.Timer(0.02, network.kill, (2,)).start()
    with pytest.raises(Killed):
        catch(two)


@pytest.mark.parametrize("moment", [0.0, _worker._MOMENT, 1.0])
@pytest.mark.parametrize("delay", [0.0, 0.003])
def test_late_and_early_messages_give_the_same_bits(monkeypatch, moment, delay):
    wanted, found, real = alone("embed", range(3)), [], LocalTransport.catch

    def catch(self, peer, tag, target, seconds):
        found.append(real(self, peer, tag, target, seconds) is not None if seconds else False)
        return len(target) if found[-1] else None

    monkeypatch.setattr(LocalTransport, "catch", catch)
    monkeypatch.setattr(_worker, "_MOMENT", moment)
    network = LocalNetwork(4, delay=delay)
    with simulated(4, network=network) as cluster, placed("embed", cluster.backends()) as (model, sched):
        model.run(sched, 0)
        before = {link: count[0] for link, count in network.sent.items() if link[2] == m.DATA and 0 not in link[:2]}
        for seed, want in enumerate(wanted):
            np.testing.assert_array_equal(model.run(sched, seed), want)
        cuts = [network.sent[link][0] - count for link, count in before.items()]
        assert cuts and all(count == len(wanted) for count in cuts), cuts  # one message for each run and cut
    assert found and (any(found) or moment < 1) and not (any(found) and not moment), found


@pytest.mark.parametrize("nbytes", [16383, 16385])
def test_a_message_of_another_length_fails_only_its_run(monkeypatch, nbytes):
    monkeypatch.setattr(_worker, "_MOMENT", 1.0)
    cpu, real, wrong = gb.Backend("CPU", n_threads=1), LocalTransport.send, [True]

    def send(self, peer, tag, data):
        if wrong and self.rank == 1 and peer == 2 and tag % m.N_CHANNELS == m.DATA:
            data = bytes(wrong.pop() * nbytes)
        real(self, peer, tag, data)

    with simulated(3) as cluster, gb.Context() as ctx, gb.Scheduler([*(found := cluster.backends()), cpu]) as sched:
        x = ctx.tensor((4096,), name="x")
        middle = x + 1.0
        y = gb.ops.scale(middle, 2.0)
        graph = ctx.graph(y)
        for node, device in zip((middle, y), found, strict=True):
            sched.set_backend(node, device)
        sched.allocate(graph)
        x.set(np.ones(4096, np.float32))
        monkeypatch.setattr(LocalTransport, "send", send)
        with pytest.raises(gb.errors.DeviceError, match="bytes instead of 16384"):
            sched.compute(graph)
        assert not wrong
        sched.compute(graph)
        np.testing.assert_array_equal(y.numpy(), np.full(4096, 4.0, np.float32))


def test_ranks_record_no_events_for_each_other(monkeypatch):
    """Only a wait on the host needs the position in the queue of a rank."""
    records, real = [], _device.Mark.record

    def record(self):
        records.append(self)
        real(self)

    monkeypatch.setattr(_device.Mark, "record", record)
    cpu = gb.Backend("CPU", n_threads=1)
    with simulated(3) as cluster, gb.Context() as ctx, gb.Scheduler([*(found := cluster.backends()), cpu]) as sched:
        x = ctx.tensor((4,), name="x")
        nodes = [x]
        for _ in range(9):
            nodes.append(gb.ops.scale(nodes[-1], 2.0))
        for n, node in enumerate(nodes[1:8]):
            sched.set_backend(node, found[n % 2])
        for node in nodes[8:]:
            sched.set_backend(node, cpu)
        sched.allocate(graph := ctx.graph(nodes[-1]))
        x.set(np.ones(4, np.float32))
        for _ in range(3):
            records.clear()
            sched.compute(graph)
            np.testing.assert_array_equal(nodes[-1].numpy(), np.full(4, 512.0, np.float32))
        assert sched.n_splits == 8
        assert len(records) == 1, "the host waits for the last rank's result"
        assert sched.stats.waits_queue == 0 < sched.stats.waits_host


def test_old_data_without_a_request_are_dropped(monkeypatch):
    """Transfer numbers repeat after N_MARKS transfers, so old data must not match."""
    monkeypatch.setattr(m, "N_MARKS", 64)
    monkeypatch.setattr(_worker, "_MOMENT", 1.0)
    cpu, network = gb.Backend("CPU", n_threads=1), LocalNetwork(3)
    with (
        simulated(3, network=network) as cluster,
        gb.Context() as ctx,
        gb.Scheduler([*(found := cluster.backends()), cpu]) as sched,
    ):
        x = ctx.tensor((4,), name="x")
        first = gb.ops.scale(x, 2.0)
        last = gb.ops.scale(first, 3.0)
        sched.set_backend(first, found[0])
        sched.set_backend(last, found[1])
        sched.allocate(graph := ctx.graph(last))
        x.set(np.ones(4, np.float32))
        sched.compute(graph)
        network.post(1, 2, m.tag_of(m.DATA, 1), np.full(4, 777, np.float32).tobytes())
        for _ in range(200):
            sched.compute(graph)
            np.testing.assert_array_equal(last.numpy(), np.full(4, 6.0, np.float32))
