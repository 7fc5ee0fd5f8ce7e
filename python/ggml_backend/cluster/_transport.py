"""The transport of messages between ranks: the interface, and a network inside one process.

A transport delivers whole messages, in order between any two ranks, and reports ranks that are gone. It neither
waits nor reads the contents. In a :class:`LocalNetwork` the ranks are threads of this process. It can delay
messages, limit the rate, cut links, and stop and kill ranks. A seed determines the delay of each message, for each
pair of ranks independently, so messages of different ranks arrive in varying order.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .._base.errors import AllocationError, GgmlError, InvalidArgumentError, StateError
from ._messages import N_CHANNELS, expect_short

__all__ = ["Killed", "Letter", "Loan", "LocalNetwork", "Transport", "no_raw_errors", "start_thread"]


@contextlib.contextmanager
def no_raw_errors(what: str) -> Iterator[None]:
    """Turns system errors in this block into AllocationError: threads, processes, files or memory
    are exhausted."""
    try:
        yield
    except (GgmlError, RecursionError):
        raise
    except (RuntimeError, OSError, MemoryError) as error:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise AllocationError(
            f"{what}: the system has no resources left ({message}): use fewer ranks or threads, or raise the"
            " limits of the process (ulimit -a)"
        ) from error


def start_thread(target: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """Starts a thread. Raises AllocationError if the system has none left."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    with no_raw_errors(f"cluster: no thread for {name!r}"):
        thread.start()
    return thread


class Letter:
    """A message that has arrived. Its bytes may not be read yet. ``mark``: lowest bits of the
    number of its transfer."""

    __slots__ = ("channel", "finished", "mark", "nbytes", "peer")
    channel: int
    mark: int
    nbytes: int
    peer: int
    finished: bool

    def __init__(self, peer: int, tag: int, nbytes: int) -> None:
        self.peer = peer
        self.mark, self.channel = divmod(tag, N_CHANNELS)
        self.nbytes = nbytes
        self.finished = False

    def take(self) -> memoryview:
        """The bytes, as a copy."""
        raise NotImplementedError

    def take_into(self, target: memoryview) -> None:
        """Copies the bytes into ``target`` of the same length. Call it instead of :meth:`take`."""
        target[:] = self.take()


class Loan:
    """Memory from which bytes are being sent. ``keep``: the owner of the memory, kept alive until
    the loan ``is_over``."""

    __slots__ = ("data", "is_over", "keep", "peer", "request")
    data: memoryview
    is_over: bool
    keep: object
    peer: int
    request: Any  # state of the transport

    def __init__(self, peer: int, data: memoryview, keep: object) -> None:
        self.peer = peer
        self.data = data
        self.keep = keep
        self.is_over = False
        self.request = None

    def end(self) -> None:
        self.is_over, self.keep = True, None


class Transport:
    """The connection of one rank to the others. Only one thread uses it at a time, except for :meth:`pulse`.

    Rank 0 may be interrupted anywhere. So :meth:`poll` returns the same letter until its ``finished`` is set. Work
    on a letter can be repeated without harm. An interrupted :meth:`send` has sent the whole message or
    nothing.
    """

    rank: int
    size: int
    name: str  #: name of the transport, for messages
    processes: dict[int, int]  #: for rank 0: processes of ranks on this host
    crowded: bool = False  #: this host has more ranks than cores, so a busy rank delays another one

    def send(self, peer: int, tag: int, data: Any) -> None:
        """Sends bytes. The caller may change them afterwards. Ignores ranks that are gone.

        tag: a channel, and perhaps a transfer (``tag_of``)

        Raises DeviceError for too many bytes (``expect_short``).
        """
        raise NotImplementedError

    def lend(self, peer: int, tag: int, data: memoryview, keep: object) -> Loan:
        """Sends bytes without a copy. They may change once the loan `is_over`.

        This depends on the receiver, and may never happen if the receiver is gone. ``keep`` stays alive as long.
        Rank 0 does not use this.
        """
        raise NotImplementedError

    def is_over(self, loan: Loan) -> bool:
        """True if all bytes are sent."""
        return loan.is_over

    def poll(self) -> Letter | None:
        """The next message that has arrived; None without one."""
        raise NotImplementedError

    def catch(self, peer: int, tag: int, target: memoryview, seconds: float) -> int | None:
        """Waits a moment for one message that `poll` has not returned, and receives it directly into ``target``.

        Returns its length, or None if it has not arrived and nothing was written. If the length differs from that of
        ``target``, which ranks of this package never send, the target is undefined or DeviceError is raised. No other
        message is received meanwhile, so ``seconds`` is at most some milliseconds. Rank 0 does not use this.
        """
        return None

    def pause(self, waited: float) -> None:
        """Sleeps for at most some milliseconds, or until something arrives. waited: seconds since
        the last message; the longer, the less often it polls"""
        raise NotImplementedError

    def lost(self) -> dict[int, str]:
        """Ranks that are gone, with the reason."""
        return {}

    def connection(self, source: int, target: int) -> str:
        """The kind of connection between two ranks. Links of one pair of hosts with different costs
        differ in it."""
        return self.name

    def gave_up(self, peer: int, pid: int) -> None:
        """Reports that rank 0 has given up a rank, which may be alive. pid: its process if it is on
        this host, else 0"""

    def pulse(self) -> None:
        """Advances transfers. Any thread calls it regularly while no thread polls."""

    def is_sending(self, peer: int) -> bool:
        """True if a message to a rank may still be in transfer over a slow link."""
        return False

    def left_behind(self) -> None:
        """Marks this process as a fork of a rank. It must not reach the other ranks."""

    def close(self) -> None:
        """Closes the transport."""


class Killed(BaseException):
    """Raised in a rank of a :class:`LocalNetwork` that was killed."""


class _Bytes(Letter):
    __slots__ = ("data",)
    data: bytes

    def __init__(self, peer: int, tag: int, data: bytes) -> None:
        super().__init__(peer, tag, len(data))
        self.data = data

    def take(self) -> memoryview:
        return memoryview(self.data)


class _Lent(_Bytes):
    """Lent bytes, read only when the receiver takes them, which is as late as a transport may
    read."""

    __slots__ = ("_loan",)

    def __init__(self, peer: int, tag: int, loan: Loan) -> None:
        super().__init__(peer, tag, b"")
        self.nbytes = len(loan.data)
        self._loan = loan

    def take(self) -> memoryview:
        if not self._loan.is_over:
            self.data = bytes(self._loan.data)
            self._loan.end()
        return memoryview(self.data)


class LocalNetwork:
    """Ranks inside one process.

    delay: seconds from rank to rank
    rate: bytes per second of each link; None: no limit
    jitter: maximum extra delay in seconds, random by ``seed``
    """

    # Rank 0 may be interrupted by a signal handler that waits for other ranks. So rank 0 holds no
    # lock here: threads share lists, and one C call makes each change.

    def __init__(
        self, size: int, *, delay: float = 0.0, rate: float | None = None, jitter: float = 0.0, seed: int = 0
    ) -> None:
        self._check(delay, rate)
        self._check(jitter, None, "jitter")
        self.size: int = size
        self.delay: float = delay
        self.rate: float | None = rate
        self.jitter: float = jitter
        self._sending = [threading.Lock() for _ in range(size)]  # guards the two threads of a serving rank
        # by receiver, then by sender: letters in transfer with their arrival times
        self.inboxes: list[dict[int, deque[tuple[float, _Bytes]]]] = [{} for _ in range(size)]
        self.bells: list[threading.Lock] = [threading.Lock() for _ in range(size)]  # unlocked when a letter has arrived
        self.sent: dict[tuple[int, int, int], list[int]] = {}  #: (from, to, channel): messages and bytes
        self._free: dict[tuple[int, int], float] = {}  # time when a link becomes free
        self._latest: dict[tuple[int, int], float] = {}  # time when the last message of a link arrives
        self._seed = seed
        self._random: dict[tuple[int, int], random.Random] = {}
        self._links: dict[tuple[int, int], tuple[float, float | None]] = {}  # links with their own delay and rate
        self._cut: set[tuple[int, int]] = set()
        self._stopped: set[int] = set()
        self._dead: set[int] = set()

    @staticmethod
    def _check(delay: Any, rate: Any, name: str = "delay") -> None:
        for what, value, least in ((name, delay, "not below 0"), ("rate", rate, "above 0")):
            if value is None and what == "rate":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"LocalNetwork: {what} must be a number, not {type(value).__name__}")
            if not math.isfinite(value) or value < 0 or (value == 0 and what == "rate"):
                raise InvalidArgumentError(f"LocalNetwork: {what} must be finite and {least}, is {value}")

    def transport(self, rank: int) -> LocalTransport:
        """The end of the network that a rank uses."""
        return LocalTransport(self, rank)

    def link(self, source: int, target: int, *, delay: float = 0.0, rate: float | None = None) -> None:
        """Sets delay and rate of one link for messages sent from now on."""
        self._check(delay, rate)
        self._links[source, target] = delay, rate

    def of_link(self, source: int, target: int) -> tuple[float, float | None]:
        """Delay and rate of a link."""
        return self._links.get((source, target), (self.delay, self.rate))

    def cut(self, source: int, target: int) -> None:
        """Drops messages sent on this link from now on, without an error."""
        self._cut.add((source, target))

    def stop(self, rank: int) -> None:
        """Stops the rank until :meth:`go_on`, without a report."""
        self._stopped.add(rank)

    def go_on(self, rank: int) -> None:
        self._stopped.discard(rank)

    def kill(self, rank: int) -> None:
        """Ends the rank at once. The other ranks can detect it."""
        self._dead.add(rank)
        self._stopped.discard(rank)
        for other in range(self.size):
            self._ring(other)

    def _ring(self, rank: int) -> None:
        with contextlib.suppress(RuntimeError):  # already unlocked
            self.bells[rank].release()

    def alive(self, rank: int) -> None:
        """Raises :class:`Killed` in a killed rank, and blocks a stopped rank."""
        while rank in self._stopped and rank not in self._dead:
            time.sleep(0.001)
        if rank in self._dead:
            raise Killed

    def post(self, source: int, target: int, tag: int, data: bytes) -> None:
        self._post_letter(target, tag, _Bytes(source, tag, data))

    def _post_letter(self, target: int, tag: int, letter: _Bytes) -> None:
        source = letter.peer
        expect_short(tag, letter.nbytes)
        self.alive(source)
        if source == 0:
            self._post(source, target, tag, letter)
        else:
            with self._sending[source]:
                self._post(source, target, tag, letter)

    def _post(self, source: int, target: int, tag: int, letter: _Bytes) -> None:
        link, nbytes = (source, target), letter.nbytes
        count = self.sent.setdefault((source, target, tag % N_CHANNELS), [0, 0])
        count[0] += 1
        count[1] += nbytes
        if link in self._cut or target in self._dead:
            return
        delay, rate = self.of_link(source, target)
        start = max(time.monotonic(), self._free.get(link, 0.0)) + (nbytes / rate if rate else 0.0)
        due = max(start + delay + self._late(link), self._latest.get(link, 0.0))
        self._free[link], self._latest[link] = start, due
        self.inboxes[target].setdefault(source, deque()).append((due, letter))
        self._ring(target)

    def _late(self, link: tuple[int, int]) -> float:
        if not self.jitter:
            return 0.0
        chance = self._random.get(link)
        if chance is None:
            chance = self._random.setdefault(link, random.Random(f"{self._seed}/{link[0]}/{link[1]}"))
        return chance.random() * self.jitter

    def arrives_at(self, source: int, target: int) -> float:
        """The time when the last message on a link arrives."""
        return self._latest.get((source, target), 0.0)

    def dead(self) -> set[int]:
        return self._dead.copy()

    def stopped(self) -> set[int]:
        return set(self._stopped)


class LocalTransport(Transport):
    """One rank of a :class:`LocalNetwork`."""

    def __init__(self, network: LocalNetwork, rank: int) -> None:
        self.network: LocalNetwork = network
        self.rank: int = rank
        self.size: int = network.size
        self.name: str = "one process"
        self.crowded: bool = True
        self.processes: dict[int, int] = {}
        self.closed: bool = False
        self._nap = 0.01 if rank else 0.002  # several threads of rank 0 may wait, and only one wakes up

    def send(self, peer: int, tag: int, data: Any) -> None:
        if self.closed:
            raise StateError("the transport is closed")
        self.network.post(self.rank, peer, tag, bytes(data))

    def lend(self, peer: int, tag: int, data: memoryview, keep: object) -> Loan:
        if self.closed:
            raise StateError("the transport is closed")
        loan = Loan(peer, data, keep)
        self.network._post_letter(peer, tag, _Lent(self.rank, tag, loan))
        return loan

    def poll(self) -> Letter | None:
        network = self.network
        network.alive(self.rank)
        first = self._first()
        if first is None or first[0] > time.monotonic():
            return None
        if self.rank:  # a serving rank receives in one thread, so it takes each letter once
            first[1].finished = True
        return first[1]

    def catch(self, peer: int, tag: int, target: memoryview, seconds: float) -> int | None:
        network, until = self.network, time.monotonic() + seconds
        box = network.inboxes[self.rank].setdefault(peer, deque())
        while True:
            network.alive(self.rank)
            now = time.monotonic()
            due, letter = box[0] if box else (math.inf, None)
            if letter is not None and (letter.finished or due <= now):
                if letter.finished:
                    box.popleft()
                    continue
                if letter.channel + N_CHANNELS * letter.mark != tag:
                    return None
                letter.finished = True
                data = letter.take()
                if len(data) == len(target):
                    target[:] = data
                return len(data)
            if now >= until:
                return None
            network.bells[self.rank].acquire(timeout=min(due, until) - now)

    def _first(self) -> tuple[float, _Bytes] | None:
        """The unfinished letter that arrives first. Only senders append to a box, so its head
        cannot change before it is removed."""
        found: tuple[float, _Bytes] | None = None
        for box in list(self.network.inboxes[self.rank].values()):
            while box and box[0][1].finished:
                box.popleft()
            if box and (found is None or box[0][0] < found[0]):
                found = box[0]
        return found

    def pause(self, waited: float) -> None:
        network = self.network
        network.alive(self.rank)
        first = self._first()
        due = self._nap if first is None else first[0] - time.monotonic()
        if due > 0:
            network.bells[self.rank].acquire(timeout=min(due, self._nap))

    def is_sending(self, peer: int) -> bool:
        return self.network.arrives_at(self.rank, peer) > time.monotonic()

    def connection(self, source: int, target: int) -> str:
        delay, rate = self.network.of_link(source, target)
        return f"{self.name}, {delay:g} s, {rate or math.inf:g} bytes a second, jitter {self.network.jitter:g} s"

    def lost(self) -> dict[int, str]:
        return dict.fromkeys(self.network.dead(), "its process is gone")

    def left_behind(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True
