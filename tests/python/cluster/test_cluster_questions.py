"""Each question to a rank ends with its answer, or with DeviceLostError within a small multiple of
the deadline, even if messages are damaged.
"""

from __future__ import annotations

import struct
import threading
import time

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cluster import _messages as m
from ggml_backend.cluster import _transport, simulated

pytestmark = pytest.mark.slow

DEADLINE = 0.5
QUESTION = 28  # offset of the number of a question in a message whose first command asks it
NUMBER = 8  # offset of the number of a message


class Damage:
    """Changes one message of a rank: the first for which ``wanted(message, data)`` is true."""

    def __init__(self, monkeypatch, rank, wanted, change):
        self.done = False
        original = _transport.LocalTransport.send

        def send(transport, peer, tag, data):
            if transport.rank == rank and tag == m.CONTROL and not self.done:
                message = m.read_message(bytes(data))
                if wanted(message, bytes(data)):
                    self.done = True
                    for changed in change(bytearray(data)):
                        original(transport, peer, tag, bytes(changed))
                    return
            original(transport, peer, tag, data)

        monkeypatch.setattr(_transport.LocalTransport, "send", send)


def flipped(at, bit=0x40):
    def change(data):
        data[at] ^= bit
        return [data]

    return change


def with_kind(kind):
    def change(data):
        struct.pack_into("<H", data, 6, kind)
        return [data]

    return change


def asks(what):
    return lambda message, data: message.kind == m.Kind.COMMANDS and len(data) > QUESTION and data[20] == what


def is_of(kind):
    return lambda message, data: message.kind == kind


def lost_in_time(act):
    """Checks that ``act`` raises DeviceLostError within a few deadlines. It runs in a thread, so
    that an endless wait fails the test."""
    raised = []

    def run():
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20 * DEADLINE)
    assert not thread.is_alive(), "it waits for ever"
    assert raised, "it ended as if nothing had been damaged"
    assert isinstance(raised[0], gb.errors.DeviceLostError), raised[0]
    return str(raised[0])


def use(device, cpu):
    """Asks a rank questions of most kinds."""
    with gb.Context() as ctx, gb.Scheduler([device, cpu]) as sched:
        x = ctx.tensor((4, 5), name="x")
        y = gb.ops.relu(x) * 2.0
        sched.set_backend(y, device)
        graph = ctx.graph(y)
        sched.allocate(graph)
        x.set(1.0)
        sched.compute(graph)
        assert (y.numpy() == 2).all()
        with sched.trace():
            sched.compute(graph)


def twice(data):
    return [data, data]


def nothing(data):
    return []


DAMAGED = {
    "the number of a question": (0, asks(m.What.ALLOC), flipped(QUESTION)),
    "the number of a question about an operator": (0, asks(m.What.OPEN), flipped(QUESTION)),
    "the number of an answer": (1, is_of(m.Kind.ANSWER), flipped(NUMBER)),
    "the kind of an answer": (1, is_of(m.Kind.ANSWER), with_kind(m.Kind.DONE)),
    "an answer that comes twice": (1, is_of(m.Kind.ANSWER), twice),
    "an answer that is lost": (1, is_of(m.Kind.ANSWER), nothing),
    "a message that is done and was not answered": (1, is_of(m.Kind.ANSWER), with_kind(m.Kind.BEAT)),
    "a message that is lost": (0, is_of(m.Kind.COMMANDS), nothing),
    "a message that comes as an old one": (0, asks(m.What.ALLOC), lambda d: (struct.pack_into("<Q", d, 8, 0), [d])[1]),
    "a message that comes as a later one": (0, asks(m.What.ALLOC), flipped(NUMBER)),
    "a message that comes as a farewell": (0, asks(m.What.ALLOC), with_kind(m.Kind.BYE)),
    "a message that comes as a ping": (0, asks(m.What.ALLOC), with_kind(m.Kind.PING)),
    "a kind that only rank 0 sends": (1, is_of(m.Kind.DONE), with_kind(m.Kind.LOST)),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_question_ends_for_any_damaged_message(what, monkeypatch, cpu):
    with simulated(2, deadline=DEADLINE) as cluster:
        damage = Damage(monkeypatch, *DAMAGED[what])
        lost_in_time(lambda: use(cluster.backends()[0], cpu))
        assert damage.done


@pytest.mark.parametrize(("rank", "kind"), [(0, m.Kind.PING), (1, m.Kind.PONG)])
@pytest.mark.parametrize("change", [flipped(NUMBER), nothing, with_kind(m.Kind.BEAT)], ids=["number", "lost", "kind"])
def test_a_ping_ends_for_any_damaged_message(rank, kind, change, monkeypatch):
    with simulated(2, deadline=DEADLINE) as cluster:
        damage = Damage(monkeypatch, rank, is_of(kind), change)
        lost_in_time(lambda: cluster.ping(1, 1))
        assert damage.done


def test_a_second_pong_is_an_error_of_the_rank(monkeypatch):
    with simulated(2, deadline=DEADLINE) as cluster:
        Damage(monkeypatch, 1, is_of(m.Kind.PONG), twice)
        assert "which is not open" in lost_in_time(lambda: [cluster.ping(1, 1) for _ in range(50)])


def test_misdirected_data_are_noticed_at_once(monkeypatch):
    """A rank that sends data to the wrong rank still answers other questions."""
    with simulated(3, deadline=30) as cluster, gb.Context() as ctx:
        device = cluster.backends()[0]
        t = ctx.tensor(1000)
        buffer = device.allocate(4000)
        buffer.place(t)
        t.set(1.0)
        device.synchronize()
        to = QUESTION + 4  # behind the queue: the receiving rank
        Damage(monkeypatch, 0, lambda message, d: len(d) > to and d[20] == m.What.GIVE, flipped(to, 2))
        begin = time.monotonic()
        with pytest.raises(gb.errors.DeviceLostError, match="has executed message"):
            t.numpy()
        assert time.monotonic() - begin < 15  # without waiting for a deadline


def test_ranks_that_wait_for_each_other_are_lost():
    """Each of two ranks waits for data of the other, and neither sends any."""
    with simulated(3, deadline=DEADLINE) as cluster:
        conductor = cluster._conductor
        one, two = (conductor.peers[r] for r in (1, 2))
        for device in cluster.backends():
            device.allocate(64)
        conductor.add(one, m.command(m.What.TAKE, m.NO_QUEUE, 2, 1, 1, 0, 64), True)
        conductor.add(two, m.command(m.What.TAKE, m.NO_QUEUE, 1, 1, 2, 0, 64), True)
        lost_in_time(lambda: conductor.ask(one, m.What.MARK) and None)
        assert any("which waits for it" in str(peer.lost) for peer in (one, two))


def test_a_rank_that_waits_for_a_lost_rank_is_informed_again(monkeypatch):
    """The message about the lost rank may be lost itself."""
    with simulated(3, deadline=DEADLINE) as cluster:
        conductor = cluster._conductor
        one, two = (conductor.peers[r] for r in (1, 2))
        for device in cluster.backends():
            device.allocate(64)
        damage = Damage(monkeypatch, 0, is_of(m.Kind.LOST), lambda data: [])
        conductor.add(one, m.command(m.What.TAKE, m.NO_QUEUE, 2, 1, 1, 0, 64), True)
        conductor.add(two, m.command(m.What.TAKE, m.NO_QUEUE, 0, 1, 2, 0, 64), True)  # it also owes an answer
        conductor.lose(two, "it is lost for this test")
        assert damage.done
        lost_in_time(lambda: conductor.ask(one, m.What.MARK) and None)


def test_an_abandoned_question_does_not_end_the_rank():
    """The answer arrives later, and rank 0 still knows the question."""
    with simulated(2, deadline=5) as cluster:
        conductor, peer = cluster._conductor, cluster._conductor.peers[1]
        for _ in range(20):
            conductor.question(peer, m.What.MARK)  # no call waits for the answer
        conductor.ask(peer, m.What.MARK)
        assert not peer.questions and peer.lost is None
        assert isinstance(np.float64(cluster.ping(1)), np.floating)
