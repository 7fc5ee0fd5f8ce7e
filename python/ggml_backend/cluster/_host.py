"""Rank 0's side: what it has sent to each rank, what that has done, and what it waits for.

Nothing is waited for but answers, results, and the end of what was queued. Commands are collected for each rank and
sent as soon as there is something to do for it; they are done in order, and each message is acknowledged, so the number
of the last one tells how far a rank is. Data that were asked for come in the order in which they were asked for, each
into the memory that waits for it.

Why ranks never wait for each other's marks: what one rank has queued touches memory of that rank alone. Bytes go
between two of them by a command to each, ``GIVE`` and ``TAKE``, which are issued together, for all ranks in one order.
So each rank's memory sees the same accesses in the same order as if everything had been done when it was issued.

Each wait has a deadline: a rank that owes something and says nothing for so long is lost. Waits may end by an exception
at any moment, an interrupt too; then nothing that is still on its way is written to memory of the caller.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .._core.handles import address
from .._errors import DeviceError, DeviceLostError, GgmlError, InvalidArgumentError, StateError, error_of
from .._ffi import ffi
from ..backend import Backend
from . import _messages as m
from ._messages import Kind, What
from ._transport import Letter, Transport
from ._worker import ABSENT, differs, facts

__all__ = ["Arrival", "Conductor", "Peer", "failure_of"]

_MAX_ON_ITS_WAY = 256 << 20  # bytes sent to a rank that it has not acknowledged
_FLUSH = 32 << 10  # bytes of commands that are sent at once
_LOOK = 16  # messages after which is looked what has come, also when nobody waits
_TICK, _TICKS = 0.002, 50  # seconds that commands may stay here, and how often is looked before the sender sleeps


class Arrival:
    """Bytes that are to come from a rank, and where they go. ``target``: None when nobody waits any more."""

    __slots__ = ("begin", "done", "nbytes", "target")

    def __init__(self, target: memoryview) -> None:
        self.target: memoryview | None = target
        self.nbytes = len(target)
        self.begin = address(ffi.from_buffer(target)) if len(target) else 0
        self.done = False


def failure_of(status: int, text: str) -> Exception:
    """The exception of what another rank has told."""
    return error_of(status if status < 0 else DeviceError.status, text)


class Peer:
    """Another rank, as rank 0 knows it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.facts: dict[str, Any] = {}
        self.out = bytearray()  # commands that are not sent yet
        self.sent = self.done = 0  # numbers of messages
        self.on_its_way: deque[tuple[int, int]] = deque()  # number, bytes
        self.bytes = 0  # of these
        self.failure: Exception | None = None
        self.lost: DeviceLostError | None = None
        self.died = False  # its process is known to be gone
        self.heard = self.owes_since = time.monotonic()
        self.arrivals: deque[Arrival] = deque()
        self.dropped: deque[bytes] = deque()  # what finalizers want to be sent
        self.gives: dict[int, deque[int]] = {}  # to which rank: the messages with a GIVE that are not done
        self.clock = 0  # ns to be added to its clock
        self.n_devices = 0

    @property
    def who(self) -> str:
        host = self.facts.get("host")
        return f"rank {self.number} ({host})" if host else f"rank {self.number}"

    @property
    def next(self) -> int:
        """The number of the message that carries what was added last."""
        return self.sent + 1 if self.out else self.sent


class Conductor:
    """Rank 0 of a cluster."""

    def __init__(self, transport: Transport, version: str, options: Any) -> None:
        self.transport = transport
        self.options = options
        self.version = version
        self.facts = facts(version)
        self.lock = threading.RLock()
        self.peers = {r: Peer(r) for r in range(1, transport.size)}
        self.answers: dict[int, memoryview | None] = {}
        self.numbers = itertools.count(1)
        self.sent_bytes = 0
        self.cpu = Backend("CPU", n_threads=1)  # knows what CPUs of other ranks compute
        self.closed = False
        self._sender_is_awake = False
        self._wake_sender = threading.Event()
        threading.Thread(target=self._send_later, name="ggml_backend cluster", daemon=True).start()

    # --------------------------------------------------------------------------------------------------- the first word

    def greet(self) -> None:
        """Exchanges greetings with all ranks, at once."""
        for peer in self.peers.values():
            self.transport.send(peer.number, m.HELLO, m.hello(self.facts))
        deadline = time.monotonic() + self.options.deadline
        waited = time.monotonic()
        while not all(p.facts for p in self.peers.values()):
            letter = self.transport.poll()
            if letter is not None and letter.channel == m.HELLO and letter.peer in self.peers:
                self._met(self.peers[letter.peer], m.read_hello(letter.take()))
                continue
            missing = [p for p in self.peers.values() if not p.facts]
            gone = [p for p in missing if p.number in self.transport.lost()]
            if gone:
                raise DeviceLostError(f"{gone[0].who} has ended before it has called gb.cluster()", gone[0].number, "")
            if time.monotonic() > deadline:
                names = ", ".join(str(p.number) for p in missing)
                raise DeviceLostError(
                    f"rank {names} has not called gb.cluster() within {self.options.deadline:g} s: does every rank run"
                    " the same script, up to that line? gb.cluster(deadline=...) waits longer",
                    missing[0].number, "",
                )  # fmt: skip
            self.transport.pause(time.monotonic() - waited)

    def _met(self, peer: Peer, other: dict[str, Any]) -> None:
        mine = {"protocol": m.PROTOCOL, **self.facts}
        host = str(other.get("host", ""))
        wrong = differs(mine, other, f"rank 0 ({self.facts['host']})", f"rank {peer.number} ({host})")
        if wrong:
            raise StateError(f"cluster: {wrong}")
        names = other.get("backends")
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise m.MessageError(f"rank {peer.number} lists no backends")
        peer.facts = other

    # --------------------------------------------------------------------------------------------------------- messages

    def add(self, peer: Peer, command: bytes, begin: bool = False) -> None:
        """Queues a command for a rank. begin: it is worth a message of its own, if the rank has nothing to do."""
        with self.lock:
            self.expect_there(peer)
            peer.out += command
            if len(peer.out) >= _FLUSH or (begin and peer.sent == peer.done):
                self.flush(peer)
            elif not self._sender_is_awake:
                self._sender_is_awake = True
                self._wake_sender.set()

    def _send_later(self) -> None:
        """What was queued, and nobody waits for, is sent all the same, after some milliseconds."""
        idle = 0
        while True:
            time.sleep(_TICK)
            idle += 1
            with self.lock, contextlib.suppress(GgmlError):
                if self.closed:
                    return
                for peer in self.peers.values():
                    if peer.out or peer.dropped:
                        idle = 0
                        self.flush(peer)
                self.transport.pulse()
                self._sender_is_awake = idle <= _TICKS
            if not self._sender_is_awake:
                self._wake_sender.wait()
                self._wake_sender.clear()
                idle = 0

    def expect_there(self, peer: Peer) -> None:
        if self.closed:
            raise StateError(f"{peer.who}: the cluster is closed")
        if peer.lost is not None:
            raise peer.lost

    def flush(self, peer: Peer) -> None:
        """Sends what is queued."""
        while peer.dropped:
            peer.out += peer.dropped.popleft()
        if not peer.out or peer.lost is not None:
            return
        if peer.sent == peer.done:
            peer.owes_since = time.monotonic()
        peer.sent += 1
        body, peer.out = peer.out, bytearray()
        self._sent(peer, len(body))
        self.transport.send(peer.number, m.CONTROL, m.message(Kind.COMMANDS, peer.sent, body))
        if peer.sent % _LOOK == 0:
            self.pump()

    def _sent(self, peer: Peer, nbytes: int) -> None:
        peer.on_its_way.append((peer.sent, nbytes))
        peer.bytes += nbytes
        self.sent_bytes += nbytes

    def send_data(self, peer: Peer, data: memoryview) -> None:
        """Bytes of the host for the TAKE that was added last; they are the caller's again at once."""
        with self.lock:
            peer.on_its_way.append((peer.next, len(data)))
            peer.bytes += len(data)
            self.sent_bytes += len(data)
            self.transport.send(peer.number, m.DATA, data)
        if peer.bytes > _MAX_ON_ITS_WAY:
            self.wait(lambda: peer.bytes <= _MAX_ON_ITS_WAY // 2 or peer.lost is not None)
            self.expect_there(peer)

    def pump(self) -> bool:
        """Takes all that has come. Under the lock."""
        some = False
        while (letter := self.transport.poll()) is not None:
            some = True
            peer = self.peers.get(letter.peer)
            if peer is None or peer.lost is not None:
                letter.take()
                continue
            peer.heard = time.monotonic()
            if letter.channel in (m.DATA, m.POISON):
                self._arrived(peer, letter)
            elif letter.channel == m.CONTROL:
                self._told(peer, letter.take())
            else:
                letter.take()
        for rank, why in self.transport.lost().items():
            if rank in self.peers and self.peers[rank].lost is None:
                self.peers[rank].died = True
                self.lose(self.peers[rank], why)
        return some

    def _arrived(self, peer: Peer, letter: Letter) -> None:
        if not peer.arrivals:
            letter.take()
            self.lose(peer, "it has sent data that nobody asked for")
            return
        arrival = peer.arrivals.popleft()
        if letter.channel == m.POISON:
            data = letter.take()
            self._failed(peer, data)
        elif letter.nbytes != arrival.nbytes:
            letter.take()
            self.lose(peer, f"it has sent {letter.nbytes} bytes instead of {arrival.nbytes}")
        elif arrival.target is None:
            letter.take()
        else:
            letter.take_into(arrival.target)
        arrival.done = True

    def _failed(self, peer: Peer, body: memoryview) -> None:
        if peer.failure is None and len(body) >= 4:
            status = m.ANSWER_STATUS.unpack_from(body)[0]
            peer.failure = failure_of(status, m.text_of(body[4:]))

    def _told(self, peer: Peer, data: memoryview) -> None:
        try:
            message = m.read_message(data)
            self._heard(peer, message)
        except (m.MessageError, ValueError) as error:
            self.lose(peer, f"it has sent what is no message: {error}")

    def _heard(self, peer: Peer, message: m.Message) -> None:
        kind, number, body = message
        if kind == Kind.DONE:
            peer.done = max(peer.done, min(number, peer.sent))
            while peer.on_its_way and peer.on_its_way[0][0] <= peer.done:
                peer.bytes -= peer.on_its_way.popleft()[1]
            peer.owes_since = time.monotonic()
        elif kind == Kind.FAILED:
            self._failed(peer, body)
        elif kind in (Kind.ANSWER, Kind.PONG):
            if number in self.answers:
                self.answers[number] = body
        elif kind == Kind.BEAT and len(body) == m.BEAT_BODY.size:
            waits_for, ns = m.BEAT_BODY.unpack(body)
            self._waits(peer, waits_for, ns / 1e9)

    def _waits(self, peer: Peer, other: int, seconds: float) -> None:
        """A rank says that it waits for data. If the other one has long sent all that it was told to, these are
        lost."""
        source = self.peers.get(other)
        if source is None or source.done < source.sent or source.out:
            return
        seconds = min(seconds, time.monotonic() - source.owes_since)
        if seconds > self.options.deadline:
            self.lose(peer, f"nothing has come to it from {source.who} for {seconds:.1f} s, though that has sent it")

    def lose(self, peer: Peer, why: str) -> None:
        """Gives a rank up; the others hear of it."""
        with self.lock:
            if peer.lost is not None:
                return
            host = str(peer.facts.get("host", ""))
            peer.lost = DeviceLostError(f"{peer.who} is lost: {why}", peer.number, host)
            same = host == self.facts["host"]
            self.transport.gave_up(peer.number, int(peer.facts.get("pid", 0)) if same else 0)
            self._let_go(peer)
            peer.out.clear()
            peer.dropped.clear()
            for other in self.peers.values():
                if other.lost is None:
                    self.transport.send(other.number, m.CONTROL, m.message(Kind.LOST, peer.number))

    @staticmethod
    def _let_go(peer: Peer) -> None:
        """Nobody waits for what is still to come from a rank."""
        for arrival in peer.arrivals:
            arrival.target = None
            arrival.done = arrival.done or peer.lost is not None

    # ------------------------------------------------------------------------------------------------------------ waits

    def wait(self, ready: Callable[[], bool]) -> None:
        """Until something is so, or a rank that owes an answer has been silent for too long: then that is lost, and
        ``ready`` has to see it."""
        since = time.monotonic()
        try:
            while True:
                with self.lock:
                    for peer in self.peers.values():
                        self.flush(peer)
                    if self.pump():
                        since = time.monotonic()
                    if ready():
                        return
                    self._look_at_clocks()
                    if ready():
                        return
                self.transport.pause(time.monotonic() - since)
        except BaseException:
            with self.lock:
                for peer in self.peers.values():
                    self._let_go(peer)
            raise

    def _look_at_clocks(self) -> None:
        now = time.monotonic()
        for peer in self.peers.values():
            owes = peer.sent > peer.done or any(not a.done for a in peer.arrivals)
            if peer.lost is None and owes and now - max(peer.heard, peer.owes_since) > self.options.deadline:
                self.lose(peer, f"it has not answered for {self.options.deadline:g} s")

    def wait_for(self, peer: Peer, number: int) -> None:
        """Until a rank has done all messages up to that one. Raises what failed in it."""
        self.wait(lambda: peer.done >= number or peer.lost is not None)
        self.raise_failure(peer)

    def raise_failure(self, peer: Peer) -> None:
        if peer.lost is not None:
            raise peer.lost
        failure, peer.failure = peer.failure, None
        if failure is None:
            return
        self.add(peer, m.command(What.CLEAR), begin=True)
        for other in self.peers.values():
            if other.lost is not None and f"nothing comes from rank {other.number} " in str(failure):
                raise DeviceLostError(f"{other.lost}", other.lost.rank, other.lost.host)
        raise failure

    def settle(self, peer: Peer) -> None:
        """Until a rank has done everything, and all data have come. Raises what failed."""
        with self.lock:
            self.flush(peer)
            wanted = peer.sent

        def ready() -> bool:
            return peer.lost is not None or (peer.done >= wanted and all(a.done for a in peer.arrivals))

        if not ready():
            self.wait(ready)
        self.raise_failure(peer)

    # -------------------------------------------------------------------------------------------------------- questions

    def ask(self, peer: Peer, what: int, *fields: Any, more: bytes = b"") -> memoryview:
        """Adds a command whose first field is the number of a question, and waits for the answer."""
        return self.answer(peer, self.question(peer, what, *fields, more=more))

    def question(self, peer: Peer, what: int, *fields: Any, more: bytes = b"") -> int:
        number = next(self.numbers)
        with self.lock:
            self.answers[number] = None
            self.add(peer, m.command(what, number, *fields, more=more), begin=what == What.FILE)
        return number

    def answer(self, peer: Peer, number: int) -> memoryview:
        try:
            self.wait(lambda: self.answers[number] is not None or peer.lost is not None)
            found = self.answers[number]
        finally:
            self.answers.pop(number, None)
        if found is None:
            self.expect_there(peer)
            raise StateError(f"{peer.who} has not answered")
        return found

    def expect_ok(self, peer: Peer, body: memoryview) -> None:
        """Raises what an answer with a status says."""
        if len(body) < 4:
            self.lose(peer, "it has sent an answer that is none")
            self.expect_there(peer)
        status = m.ANSWER_STATUS.unpack_from(body)[0]
        if status == ABSENT:
            raise FileNotFoundError(m.text_of(body[4:]))
        if status:
            raise failure_of(status, f"{peer.who}: {m.text_of(body[4:])}")

    def ping(self, peer: Peer) -> tuple[float, int]:
        """Seconds of a round trip, and its clock against ours in ns, from when the message was on its way back."""
        number = next(self.numbers)
        with self.lock:
            self.expect_there(peer)
            self.answers[number] = None
            begin = time.monotonic_ns()
            self.transport.send(peer.number, m.CONTROL, m.message(Kind.PING, number))
        body = self._pong(peer, number)
        end = time.monotonic_ns()
        return (end - begin) / 1e9, (begin + end) // 2 - int(m.CLOCK.unpack(body)[0])

    def _pong(self, peer: Peer, number: int) -> memoryview:
        deadline = time.monotonic() + self.options.deadline
        try:
            self.wait(lambda: self.answers[number] is not None or peer.lost is not None or time.monotonic() > deadline)
            found = self.answers[number]
        finally:
            self.answers.pop(number, None)
        if found is None and peer.lost is None:
            self.lose(peer, f"it has not answered for {self.options.deadline:g} s")
        self.expect_there(peer)
        assert found is not None
        return found

    def set_clocks(self, times: int = 5) -> None:
        """Compares the clocks of all ranks with ours, by the shortest of some round trips."""
        for peer in self.living():
            peer.clock = min(self.ping(peer) for _ in range(times))[1]

    def living(self) -> Iterator[Peer]:
        return (p for p in self.peers.values() if p.lost is None)

    # -------------------------------------------------------------------------------------------------------- transfers

    def to_rank(self, peer: Peer, memory: int, offset: int, data: memoryview, inline: int = 8192) -> None:
        """Bytes of the host to memory of a rank; they are taken at once."""
        with self.lock:
            self._wait_for_host(data)
            if len(data) <= inline:
                self.add(peer, m.command(What.PUT, memory, offset, more=data))
                return
            self.add(peer, m.command(What.TAKE, 0, memory, offset, len(data)), begin=True)
            self.send_data(peer, data)

    def _wait_for_host(self, data: memoryview) -> None:
        """What is read on the host may still have to come from a rank."""
        waiting = [a for p in self.peers.values() for a in p.arrivals if not a.done and a.target is not None]
        if not waiting or not len(data):
            return
        begin = address(ffi.from_buffer(data))
        end = begin + len(data)
        behind = [a for a in waiting if a.begin < end and begin < a.begin + a.nbytes]
        if behind:
            self.wait(lambda: all(a.done or a.target is None for a in behind))

    def to_host(self, peer: Peer, memory: int, offset: int, target: memoryview) -> Arrival:
        """Asks for bytes; they are in ``target`` when the arrival is done, and when the rank is settled."""
        with self.lock:
            self._wait_for_host(target)
            self.expect_there(peer)
            arrival = Arrival(target)
            peer.arrivals.append(arrival)
            self.add(peer, m.command(What.GIVE, 0, memory, offset, len(target)), begin=True)
            return arrival

    def between(self, to: Peer, into: tuple[int, int], source: Peer, out_of: tuple[int, int], nbytes: int) -> None:
        """Bytes from rank to rank, or within one."""
        with self.lock:
            self.expect_there(to)
            self.expect_there(source)
            if to is source:
                self.add(to, m.command(What.COPY, *into, *out_of, nbytes))
                return
            self.add(source, m.command(What.GIVE, to.number, *out_of, nbytes), begin=True)
            self.add(to, m.command(What.TAKE, source.number, *into, nbytes))

    def open(self, peer: Peer, name: str) -> tuple[int, int, int, str]:
        """A device of a rank: its number, alignment, largest buffer, name."""
        number = peer.n_devices
        body = self.ask(peer, What.OPEN, number, more=m.text_bytes(name))
        if len(body) < m.OPENED.size:
            self.lose(peer, "it has sent an answer that is none")
            self.expect_there(peer)
        wrong, alignment, largest = m.OPENED.unpack_from(body)
        text = m.text_of(body[m.OPENED.size :])
        if wrong:
            raise InvalidArgumentError(f"{peer.who}: {text}")
        peer.n_devices += 1
        return number, alignment, largest, text

    def close(self) -> None:
        """Lets the ranks end."""
        with self.lock:
            if self.closed:
                return
            for peer in self.peers.values():  # also to one that was given up: it may be there
                peer.dropped.clear()
                if peer.died:
                    continue
                try:
                    self.transport.send(peer.number, m.CONTROL, m.message(Kind.BYE, 0))
                except (GgmlError, OSError):
                    continue
            self.closed = True
            self._wake_sender.set()
