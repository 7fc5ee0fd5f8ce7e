"""How messages get from rank to rank: the interface, and a network inside one process.

A transport delivers whole messages, in order between any two ranks, and says which ranks are gone. It neither waits
nor knows what is in a message. :class:`LocalNetwork` joins ranks that are threads of this process. It can delay what is
sent, limit the rate, cut links, stop and kill ranks; which message is late by how much follows from a seed, for each
pair of ranks by itself, so that what comes from different ranks arrives in other orders.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import threading
import time
from typing import Any

from .._errors import StateError

__all__ = ["Killed", "Letter", "LocalNetwork", "Transport"]


class Letter:
    """A message that has arrived, perhaps without its bytes having been read."""

    __slots__ = ("channel", "nbytes", "peer")
    channel: int
    nbytes: int
    peer: int

    def __init__(self, peer: int, channel: int, nbytes: int) -> None:
        self.peer = peer
        self.channel = channel
        self.nbytes = nbytes

    def take(self) -> memoryview:
        """The bytes, in memory of their own. Once."""
        raise NotImplementedError

    def take_into(self, target: memoryview) -> None:
        """Puts the bytes into ``target``, which has as many. Once, instead of :meth:`take`."""
        target[:] = self.take()


class Transport:
    """One rank's way to the others. Used by one thread at a time, but for :meth:`pulse`."""

    rank: int
    size: int
    name: str  #: what it goes over, for messages

    def send(self, peer: int, channel: int, data: Any) -> None:
        """Sends bytes, which are the caller's again when this returns. To a rank that is gone: nothing happens."""
        raise NotImplementedError

    def poll(self) -> Letter | None:
        """What has arrived next, if anything has."""
        raise NotImplementedError

    def pause(self, waited: float) -> None:
        """Lets a little time pass, at most some milliseconds, or less if something arrives. waited: seconds since
        there was something; the longer, the less attention is paid."""
        raise NotImplementedError

    def lost(self) -> dict[int, str]:
        """Ranks that are known to be gone, and why."""
        return {}

    def way(self, source: int, target: int) -> str:
        """What lies between two ranks, in a word that tells links apart that cost differently beside their hosts."""
        return self.name

    def gave_up(self, peer: int, pid: int) -> None:
        """Rank 0 will not hear of a rank any more; it may be alive. pid: of its process, if that is on this host,
        else 0."""

    def pulse(self) -> None:
        """Called now and then, from any thread, while nobody polls: lets what is on its way go on."""

    def close(self) -> None:
        """Ends the use of it."""


class Killed(BaseException):
    """Raised in a rank of a :class:`LocalNetwork` that was killed."""


class _Bytes(Letter):
    __slots__ = ("data",)
    data: bytes

    def __init__(self, peer: int, channel: int, data: bytes) -> None:
        super().__init__(peer, channel, len(data))
        self.data = data

    def take(self) -> memoryview:
        return memoryview(self.data)


class LocalNetwork:
    """Ranks inside one process.

    delay: seconds from rank to rank; rate: bytes per second of each link, None: no limit; jitter: up to so many seconds
    more, by ``seed``
    """

    def __init__(
        self, size: int, *, delay: float = 0.0, rate: float | None = None, jitter: float = 0.0, seed: int = 0
    ) -> None:
        self.size: int = size
        self.delay: float = delay
        self.rate: float | None = rate
        self.jitter: float = jitter
        self.changed: threading.Condition = threading.Condition()
        self.inboxes: list[list[tuple[float, int, _Bytes]]] = [[] for _ in range(size)]
        self.sent: dict[tuple[int, int, int], list[int]] = {}  #: (from, to, channel): messages and bytes
        self._free: dict[tuple[int, int], float] = {}  # when a link has sent all
        self._latest: dict[tuple[int, int], float] = {}  # when its last message arrives
        self._random = {(a, b): random.Random(f"{seed}/{a}/{b}") for a in range(size) for b in range(size)}
        self._number = itertools.count()
        self._links: dict[tuple[int, int], tuple[float, float | None]] = {}  # with delay and rate of their own
        self._cut: set[tuple[int, int]] = set()
        self._stopped: set[int] = set()
        self._dead: set[int] = set()

    def transport(self, rank: int) -> LocalTransport:
        return LocalTransport(self, rank)

    def link(self, source: int, target: int, *, delay: float = 0.0, rate: float | None = None) -> None:
        """Gives what is sent that way from now on a delay and a rate of its own."""
        self._links[source, target] = delay, rate

    def of_link(self, source: int, target: int) -> tuple[float, float | None]:
        """Delay and rate."""
        return self._links.get((source, target), (self.delay, self.rate))

    def cut(self, source: int, target: int) -> None:
        """What is sent that way from now on is lost, and nobody is told."""
        with self.changed:
            self._cut.add((source, target))

    def stop(self, rank: int) -> None:
        """The rank does nothing more, until :meth:`go_on`; nobody is told."""
        with self.changed:
            self._stopped.add(rank)
            self.changed.notify_all()

    def go_on(self, rank: int) -> None:
        with self.changed:
            self._stopped.discard(rank)
            self.changed.notify_all()

    def kill(self, rank: int) -> None:
        """The rank ends where it is; the others can know."""
        with self.changed:
            self._dead.add(rank)
            self._stopped.discard(rank)
            self.inboxes[rank].clear()
            self.changed.notify_all()

    def alive(self, rank: int) -> None:
        """Raises :class:`Killed` in a rank that was, and holds one that is stopped. Under the lock."""
        while rank in self._stopped and rank not in self._dead:
            self.changed.wait()
        if rank in self._dead:
            raise Killed

    def post(self, source: int, target: int, channel: int, data: bytes) -> None:
        link = (source, target)
        with self.changed:
            self.alive(source)
            count = self.sent.setdefault((source, target, channel), [0, 0])
            count[0] += 1
            count[1] += len(data)
            if link in self._cut or target in self._dead:
                return
            now = time.monotonic()
            start = max(now, self._free.get(link, 0.0))
            delay, rate = self.of_link(source, target)
            self._free[link] = start = start + (len(data) / rate if rate else 0.0)
            due = start + delay + (self._random[link].random() * self.jitter if self.jitter else 0.0)
            due = self._latest[link] = max(due, self._latest.get(link, 0.0))
            heapq.heappush(self.inboxes[target], (due, next(self._number), _Bytes(source, channel, data)))
            self.changed.notify_all()

    def dead(self) -> set[int]:
        return self._dead

    def stopped(self) -> set[int]:
        return set(self._stopped)


class LocalTransport(Transport):
    """One rank of a :class:`LocalNetwork`."""

    def __init__(self, network: LocalNetwork, rank: int) -> None:
        self.network: LocalNetwork = network
        self.rank: int = rank
        self.size: int = network.size
        self.name: str = "one process"
        self.closed: bool = False

    def send(self, peer: int, channel: int, data: Any) -> None:
        if self.closed:
            raise StateError("the transport is closed")
        self.network.post(self.rank, peer, channel, bytes(data))

    def poll(self) -> Letter | None:
        network = self.network
        inbox = network.inboxes[self.rank]
        with network.changed:
            network.alive(self.rank)
            if inbox and inbox[0][0] <= time.monotonic():
                return heapq.heappop(inbox)[2]
        return None

    def pause(self, waited: float) -> None:
        network = self.network
        inbox = network.inboxes[self.rank]
        with network.changed:
            network.alive(self.rank)
            due = inbox[0][0] - time.monotonic() if inbox else 0.01
            if due > 0:
                network.changed.wait(min(due, 0.01))

    def way(self, source: int, target: int) -> str:
        delay, rate = self.network.of_link(source, target)
        return f"{self.name}, {delay:g} s, {rate or math.inf:g} bytes a second, jitter {self.network.jitter:g} s"

    def lost(self) -> dict[int, str]:
        return dict.fromkeys(self.network.dead(), "its process is gone")

    def close(self) -> None:
        self.closed = True
