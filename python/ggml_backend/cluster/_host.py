"""Rank 0's side: commands sent to each rank, their progress, and pending answers.

Rank 0 waits only for answers, results, and the end of queued work. It collects commands for each rank and
sends them as soon as the rank is idle. A rank executes commands in order and acknowledges each message. So
the number of the last acknowledged message gives its progress. Requested data arrive in the order of the
requests, each in the memory that waits for it.

Ranks never wait for each other's marks. The queue of one rank touches memory of that rank alone. A copy
between two ranks is one command to each, ``GIVE`` and ``TAKE``. Rank 0 issues both together, in one order
for all ranks. So each rank's memory sees the same accesses in the same order as if each command ran when it
was issued.

Failures belong to the queue of a device (:class:`Queue`). A call that waits for a place behind the failed
command raises the failure. A call that waits for the whole queue also clears it, and the rank continues with
later commands.

Each wait has a deadline: a rank that owes an answer or data and is silent for that long is lost. A rank owes
an answer until the answer to that question has arrived. A rank is lost at once if it acknowledges a
message without answering its question, answers a question twice, or answers an unknown question.

Interrupts. An exception may be raised at any line of rank 0's main thread. CPython checks for signals where
a call returns, where a function begins and where a loop repeats. So an assignment without a call is atomic,
and values that change together are assigned together. Longer updates can be repeated by the next caller
without harm. A message stays in ``outbox`` until it was sent, and a rank accepts each number once. A letter
stays the next one until it is finished. The same holds for signal handlers and finalizers, which may run in
the middle of an update on the same thread. A wait for bytes that ends by an exception releases the target, so
nothing is written to memory of a caller that has returned.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import queue
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

from .._base.errors import DeviceError, DeviceLostError, GgmlError, InvalidArgumentError, StateError, error_of
from .._base.handles import address
from .._ffi import ffi, lib
from ..backend.backend import Backend
from . import _messages as m
from ._messages import Kind, What
from ._transport import Letter, Transport, start_thread
from ._worker import ABSENT, differs, facts

__all__ = ["Arrival", "Conductor", "Loss", "Peer", "Place", "Question", "Queue", "arrivals_of", "failure_of"]

_MAX_INLINE = 8192  # bytes that a command carries itself
_MAX_UNACKNOWLEDGED = 256 << 20  # bytes sent to a rank and not yet acknowledged
_FLUSH = 32 << 10  # bytes of commands to send at once
_LOOK = 16  # messages between two polls without a waiting caller
_SOON = 50e-6  # seconds after which the next message follows, if it has commands
_TICK, _TICKS = 0.002, 50  # seconds that commands may stay here; number of checks before the sender sleeps
_ALL = 1 << 62  # larger than the number of commands of any message

Place = tuple[int, int]
"""A position in the commands for a rank: the number of a message, and of a command in it."""


class Loss:
    """A failure on a rank, and the place from which work was skipped."""

    __slots__ = ("begin", "rank", "status", "text")

    def __init__(self, begin: Place, status: int, rank: int, text: str) -> None:
        self.begin = begin
        self.status = status
        self.rank = rank  # the rank whose end was the cause, or -1
        self.text = text


class Queue:
    """The queue of a device of a rank.

    ``loss``: its failure, until a call that waits for the queue has raised it. ``reported``: the
        place of the last raised failure.
    """

    __slots__ = ("loss", "number", "reported")

    def __init__(self, number: int) -> None:
        self.number = number
        self.loss: Loss | None = None
        self.reported: Place = (0, 0)


class Arrival:
    """Bytes expected from a rank, and their target.

    ``target``: None if the caller no longer waits. ``queue``: None if the bytes belong to no run.
    """

    __slots__ = ("begin", "done", "loss", "message", "nbytes", "queue", "target")

    def __init__(self, target: memoryview, queue: Queue | None = None) -> None:
        self.target: memoryview | None = target
        self.nbytes = len(target)
        self.begin = _address_of(target) if len(target) else 0
        self.queue = queue
        self.message = 0  # number of the message that requests the bytes
        self.done = False
        self.loss: Loss | None = None


def arrivals_of(target: memoryview, queue: Queue | None = None) -> list[Arrival]:
    """One arrival for each message that will carry a part of the bytes."""
    return [Arrival(target[at : at + n], queue) for at, n in m.pieces_of(len(target))]


class Question:
    """A question to a rank. The rank owes the answer until ``body`` has come, even if the caller was interrupted."""

    __slots__ = ("asked", "body", "message", "peer")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.message = 0  # number of the message with the question
        self.asked = math.inf  # time of a ping
        self.body: memoryview | None = None


def _address_of(data: memoryview) -> int:
    """The address of a buffer, without a reference to it.

    Frames in a traceback could keep such a reference, and CPython cannot collect a referenced memoryview.
    """
    with ffi.from_buffer(data) as pointer:
        return address(pointer)


def failure_of(status: int, text: str) -> Exception:
    """The exception for a failure that another rank has reported."""
    return error_of(status if status < 0 else DeviceError.status, text)


class Peer:
    """Another rank, as rank 0 knows it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.facts: dict[str, Any] = {}
        self.out = b""  # commands that wait for the next message
        self.count = 0  # number of commands in ``out``
        self.outbox: tuple[tuple[int, bytes], ...] = ()  # messages that may not have been sent yet
        self.sent = self.done = 0  # numbers of messages
        self.total = self.acknowledged = 0  # bytes sent, and bytes of acknowledged messages
        self.unacknowledged: deque[tuple[int, int]] = deque()  # number of each message, and ``total`` after it
        self.queues: dict[int, Queue] = {}
        self.lost: str | None = None  # the reason, if the rank is lost
        self.announced = False  # True once the other ranks know of the loss
        self.died = False  # True if its process has ended
        self.heard = self.owes_since = self.flushed = time.monotonic()
        self.arrivals: dict[int, Arrival] = {}  # expected data by number of the transfer, in order
        self.arrived = -1  # number of the last transfer that has arrived
        self.questions: dict[int, Question] = {}  # open questions by number, in the order of their messages
        self.pings: dict[int, Question] = {}
        self.answer: Letter | None = None  # the last answer
        self.stuck_on = -1  # the rank for which it waits longer than the deadline
        self.dropped: deque[bytes] = deque()  # commands of finalizers, not yet in ``out``
        self.clock = 0  # ns from its clock to the clock of rank 0

    @property
    def who(self) -> str:
        host = self.facts.get("host")
        return f"rank {self.number} ({host})" if host else f"rank {self.number}"

    def loss(self) -> DeviceLostError:
        """The error of a lost rank. Each call makes a new one: raising one again extends its traceback."""
        return DeviceLostError(f"{self.lost}", self.number, str(self.facts.get("host", "")))

    @property
    def place(self) -> Place:
        """The place behind the last added command. Call it under the lock."""
        return (self.sent + 1, self.count) if self.out else (self.sent, _ALL)

    @property
    def bytes(self) -> int:
        """Bytes that are sent and not yet acknowledged."""
        return self.total - self.acknowledged


class Conductor:
    """Rank 0 of a cluster."""

    def __init__(self, transport: Transport, version: str, options: Any) -> None:
        self.transport = transport
        self.options = options
        self.version = version
        self.facts = facts(version)
        self._crowded = transport.crowded
        self.lock = threading.RLock()
        self.peers = {r: Peer(r) for r in range(1, transport.size)}
        self.numbers = itertools.count(1)
        # counters by two ranks; a factory in C makes the look-up and insertion atomic under the GIL
        self.transfers: defaultdict[tuple[int, int], Iterator[int]] = defaultdict(functools.partial(itertools.count, 1))
        self.cpu = Backend("CPU", n_threads=1)  # answers which nodes CPU ranks compute
        self._alike: dict[int, Backend] = {}  # answers how much scratch memory they need, by number of threads
        self.closed = False
        self.forked = False  # True in a fork of the process with the cluster
        self._sender_is_awake = False
        self._wake_sender: queue.SimpleQueue[None] = queue.SimpleQueue()
        start_thread(self._send_later, "ggml_backend cluster")

    @property
    def sent_bytes(self) -> int:
        return sum(p.total for p in self.peers.values())

    def left_behind(self) -> None:
        """Marks this process as a fork: it must not use the cluster."""
        self.forked = True
        self.lock = threading.RLock()
        self.transport.left_behind()

    # --------------------------------------------------------------------------------------------------------- greeting

    def greet(self) -> None:
        """Exchanges greetings with all ranks, at once."""
        for peer in self.peers.values():
            self.transport.send(peer.number, m.HELLO, m.hello(self.facts))
        deadline = time.monotonic() + self.options.deadline
        waited = time.monotonic()
        while not all(p.facts for p in self.peers.values()):
            letter = self.transport.poll()
            if letter is not None:
                data, letter.finished = letter.take(), True
                if letter.channel == m.HELLO and letter.peer in self.peers:
                    self._met(self.peers[letter.peer], m.read_hello(data))
                continue
            missing = [p for p in self.peers.values() if not p.facts]
            gone = [p for p in missing if p.number in self.transport.lost()]
            if gone:
                raise DeviceLostError(f"{gone[0].who} ended before it called gb.cluster.start()", gone[0].number, "")
            if time.monotonic() > deadline:
                names = ", ".join(str(p.number) for p in missing)
                raise DeviceLostError(
                    f"rank {names} has not called gb.cluster.start() within {self.options.deadline:g} s: every rank"
                " must run the same script and reach that line; gb.cluster.start(deadline=...) waits longer",
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
        if not all(type(other.get(key)) is int for key in ("pid", "cores", "memory")):
            raise m.MessageError(f"rank {peer.number} ({host}) does not report its pid, cores and memory")
        peer.facts = other
        if host == self.facts["host"]:
            self.transport.processes[peer.number] = other["pid"]

    def cpu_like(self, peer: Peer) -> Backend | None:
        """A local CPU that plans like the CPU of a rank; None if the rank's processor differs."""
        mine, other = self.facts, peer.facts
        if any(mine[key] != other.get(key) for key in ("processor", "machine", "level")):
            return None
        threads = other.get("threads")
        if type(threads) is not int or not 1 <= threads <= 4096:
            return None
        found = self._alike.get(threads)
        if found is None:
            found = self._alike[threads] = Backend("CPU", n_threads=threads)
        return found

    # --------------------------------------------------------------------------------------------------------- messages

    def add(self, peer: Peer, command: bytes, begin: bool = False) -> None:
        """Queues a command for a rank. begin: send it in its own message if the rank is idle."""
        with self.lock:
            self.prepare(peer, len(command))
            peer.out, peer.count = peer.out + command, peer.count + 1
            self.added(peer, begin)

    def prepare(self, peer: Peer, nbytes: int) -> None:
        """Prepares for adding commands. Call it under the lock."""
        if self.closed or self.forked or peer.lost is not None:
            self.expect_there(peer)
        if nbytes > m.MAX_COMMAND + 128:
            raise InvalidArgumentError(f"{peer.who}: a command of {nbytes} bytes; a message holds {m.MAX_CONTROL}")
        if peer.dropped:
            self._collect(peer)
        if len(peer.out) + nbytes > m.MAX_CONTROL:
            self.flush(peer)

    def added(self, peer: Peer, begin: bool) -> None:
        """Sends added commands, now or soon.

        A rank starts while the rest of a run is still being issued, unless it would take the core from the
        issuing thread.
        """
        now = begin and (peer.sent == peer.done or (not self._crowded and time.monotonic() > peer.flushed + _SOON))
        if now or len(peer.out) >= _FLUSH:
            self.flush(peer)
        elif not self._sender_is_awake:
            self._sender_is_awake = True
            self._wake_sender.put(None)

    @staticmethod
    def _collect(peer: Peer) -> None:
        """Puts commands of finalizers first. An interrupt may repeat one of them, which has no effect."""
        while peer.dropped:
            command = peer.dropped[0]
            peer.out, peer.count = peer.out + command, peer.count + 1
            if peer.dropped and peer.dropped[0] is command:
                peer.dropped.popleft()

    def _send_later(self) -> None:
        """Sends queued commands without a waiting caller after some milliseconds.

        Commands that finalizers leave in an idle process are sent within a heartbeat.
        """
        idle = 0
        while True:
            time.sleep(_TICK)
            idle += 1
            with self.lock, contextlib.suppress(GgmlError):
                if self.closed:
                    return
                for peer in self.peers.values():
                    if peer.out or peer.dropped or peer.outbox:
                        idle = 0
                        self.flush(peer)
                self.transport.pulse()
                self._sender_is_awake = idle <= _TICKS
            if not self._sender_is_awake:
                with contextlib.suppress(queue.Empty):
                    self._wake_sender.get(timeout=self.options.heartbeat)
                    idle = 0

    def expect_there(self, peer: Peer) -> None:
        if self.forked:
            raise StateError(f"{peer.who}: the cluster belongs to the parent process of this fork")
        if self.closed:
            raise StateError(f"{peer.who}: the cluster is closed")
        if peer.lost is not None:
            raise peer.loss()

    def flush(self, peer: Peer) -> None:
        """Sends queued commands."""
        if peer.lost is not None or self.closed or self.forked:
            return
        self._collect(peer)
        if peer.out:
            if peer.sent == peer.done:
                peer.owes_since = time.monotonic()
            nbytes = len(peer.out)
            peer.flushed = time.monotonic()
            peer.outbox, peer.sent, peer.total, peer.out, peer.count = (
                (*peer.outbox, (peer.sent + 1, peer.out)), peer.sent + 1, peer.total + nbytes, b"", 0,
            )  # fmt: skip
            peer.unacknowledged.append((peer.sent, peer.total))
        while peer.outbox:
            first = peer.outbox[0]
            self.transport.send(peer.number, m.CONTROL, m.message(Kind.COMMANDS, *first))
            peer.outbox = peer.outbox[1:] if peer.outbox and peer.outbox[0] is first else peer.outbox
            if first[0] % _LOOK == 0:
                self.pump()

    def pump(self) -> bool:
        """Receives all messages that have arrived. Call it under the lock."""
        some = False
        while (letter := self.transport.poll()) is not None:
            some = True
            self._taken(letter)
            letter.finished = True
        for rank, why in self.transport.lost().items():
            if rank in self.peers and self.peers[rank].lost is None:
                self.peers[rank].died = True
                self.lose(self.peers[rank], why)
        return some

    def _taken(self, letter: Letter) -> None:
        peer = self.peers.get(letter.peer)
        try:
            if peer is None or peer.lost is not None or letter.channel not in (m.DATA, m.POISON, m.CONTROL):
                letter.take()
            elif letter.channel == m.CONTROL:
                self._heard(peer, m.read_message(letter.take()), letter)
            else:
                peer.heard = time.monotonic()
                self._arrived(peer, letter)
        except (m.MessageError, struct.error, ValueError) as error:
            assert peer is not None
            self.lose(peer, f"it has sent an invalid message: {error}")
        except DeviceError as error:  # of the transport: the message may have arrived in part
            assert peer is not None
            self.lose(peer, str(error))

    def _arrived(self, peer: Peer, letter: Letter) -> None:
        number, arrival = 0, None
        for number, arrival in peer.arrivals.items():  # noqa: B007  no call, so nothing comes between
            break
        if letter.finished:
            return  # another caller has handled this letter since it was polled
        if arrival is None or number % m.N_MARKS != letter.mark:
            again = letter.mark == peer.arrived % m.N_MARKS  # an interrupted call has already received it
            letter.take()
            if not again:
                self.lose(peer, "it has sent data without a request")
            return
        if arrival.done:
            letter.take()  # an interrupted call has already handled it
        elif letter.channel == m.POISON:
            data = letter.take()
            status, rank = m.POISON_BODY.unpack_from(data)
            arrival.loss = Loss((0, 0), status, rank, m.text_of(data[m.POISON_BODY.size :]))
        elif letter.nbytes != arrival.nbytes:
            letter.take()
            self.lose(peer, f"it has sent {letter.nbytes} bytes instead of {arrival.nbytes}")
        elif arrival.target is None:
            letter.take()
        else:
            letter.take_into(arrival.target)
        if peer.lost is None:
            latest = number if number > peer.arrived else peer.arrived
            arrival.done, arrival.target, peer.arrived = True, None, latest
            peer.arrivals.pop(number, None)

    def _heard(self, peer: Peer, message: m.Message, letter: Letter) -> None:
        kind, number, body = message
        if kind != Kind.PONG:  # a PONG is no sign of progress
            peer.heard = time.monotonic()
        if kind == Kind.DONE:
            self._done(peer, number)
        elif kind == Kind.FAILED:
            self._failed(peer, number, body)
        elif kind == Kind.ANSWER:
            self._answered(peer, peer.questions, number, body, letter)
        elif kind == Kind.PONG:
            self._answered(peer, peer.pings, number, body, letter)
        elif kind == Kind.BEAT:
            other, sends, ns = m.BEAT_BODY.unpack(body)
            self._waits(peer, other, bool(sends), ns / 1e9)
        else:
            self.lose(peer, f"it has sent a message of kind {kind}, which only rank 0 sends")

    def _done(self, peer: Peer, number: int) -> None:
        number = min(number, peer.sent)
        peer.done = number if number > peer.done else peer.done
        while peer.unacknowledged and peer.unacknowledged[0][0] <= peer.done:
            first = peer.unacknowledged[0]
            peer.acknowledged = first[1] if first[1] > peer.acknowledged else peer.acknowledged
            if peer.unacknowledged and peer.unacknowledged[0] is first:
                peer.unacknowledged.popleft()
        peer.owes_since, peer.stuck_on = time.monotonic(), -1
        for question in list(peer.questions.values()):
            if question.body is None and question.message <= number:
                self.lose(peer, f"it has executed message {question.message} without answering the question in it")
        for arrival in list(peer.arrivals.values()):
            if not arrival.done and arrival.message <= number:
                self.lose(peer, f"it has executed message {arrival.message} without sending the requested data")

    def _answered(self, peer: Peer, asked: dict[int, Question], number: int, body: memoryview, letter: Letter) -> None:
        try:
            question = asked[number]  # not a call, so it is atomic
        except KeyError:
            question = None
        if letter.finished or letter is peer.answer:  # another thread, or this one before an interrupt, has handled it
            asked.pop(number, None)
            return
        if question is None:
            self.lose(peer, f"it has answered question {number}, which is not open")
            return
        question.body, peer.answer = body, letter
        asked.pop(number, None)

    def _failed(self, peer: Peer, number: int, body: memoryview) -> None:
        status, rank, at, command = m.LOSS.unpack_from(body)
        text = m.text_of(body[m.LOSS.size :])
        if at == m.NO_QUEUE:
            self.lose(peer, f"it cannot execute a command: {text}")
            return
        found = peer.queues.get(at)  # None: the queue is closed
        if found is not None and found.loss is None and (number, command) > found.reported:
            found.loss = Loss((number, command), status, rank, text)

    def _waits(self, peer: Peer, other: int, sends: bool, seconds: float) -> None:
        """Handles a rank's report that it waits for data, or for a receiver of its data.

        The rank is lost if the sender has sent everything, and the deadline has passed since. A receiver is
        lost if it has not received the data within the deadline.
        """
        now = time.monotonic()
        peer.stuck_on = other if seconds > self.options.deadline else -1
        if not sends and self._waits_for_itself(peer):  # in a cycle with a sender, the receiver is lost
            self.lose(peer, f"it has waited for {seconds:.1f} s for rank {other}, which waits for it")
            return
        gone = self.peers.get(other)
        if gone is not None and gone.lost is not None:  # it does not know yet that the other rank is lost
            self.transport.send(peer.number, m.CONTROL, m.message(Kind.LOST, other))
            return
        if sends:
            target = self.peers.get(other)
            if target is not None and seconds > self.options.deadline:
                self.lose(target, f"it has not received data of {peer.who} within {seconds:.1f} s")
            return
        if other == 0:  # rank 0 sends data before the command to receive them
            if self.transport.is_sending(peer.number):
                peer.owes_since = now
            seconds, who = min(seconds, now - peer.owes_since), "rank 0"
        else:
            source = self.peers.get(other)
            if source is None or source.done < source.sent or source.out:
                return
            seconds, who = min(seconds, now - source.owes_since), source.who
        if seconds > self.options.deadline:
            self.lose(peer, f"it has received nothing from {who} for {seconds:.1f} s, although {who} has sent data")

    def _waits_for_itself(self, peer: Peer) -> bool:
        """True if the rank waits for itself through a cycle of waiting ranks."""
        at = peer
        for _ in self.peers:
            following = self.peers.get(at.stuck_on)
            if following is None or following is peer:
                return following is peer
            at = following
        return False

    def lose(self, peer: Peer, why: str) -> None:
        """Marks a rank as lost and reports it to the other ranks."""
        with self.lock:
            if peer.lost is None:
                peer.lost = f"{peer.who} is lost: {why}"
            if peer.announced:
                return
            self.transport.gave_up(peer.number, self.transport.processes.get(peer.number, 0))
            for arrival in list(peer.arrivals.values()):
                arrival.target = None
            peer.out, peer.count, peer.outbox = b"", 0, ()
            peer.questions.clear()
            peer.pings.clear()
            peer.dropped.clear()
            for other in self.peers.values():
                if other.lost is None:
                    self.transport.send(other.number, m.CONTROL, m.message(Kind.LOST, peer.number))
            peer.announced = True

    # ------------------------------------------------------------------------------------------------------------ waits

    def wait(self, ready: Callable[[], bool]) -> None:
        """Waits until ``ready`` is true.

        A rank that owes an answer and is silent for too long is lost, which ``ready`` must check. Raises
        StateError if the cluster is closed.
        """
        since = time.monotonic()
        while True:
            with self.lock:
                for peer in self.peers.values():
                    if peer.lost is not None and not peer.announced:
                        self.lose(peer, "")
                    self.flush(peer)
                if not self.closed and not self.forked and self.pump():
                    since = time.monotonic()
                if ready():
                    return
                if self.closed or self.forked:
                    self.expect_there(next(iter(self.peers.values())))
                self._look_at_clocks()
                if ready():
                    return
            self.transport.pause(time.monotonic() - since)

    def _look_at_clocks(self) -> None:
        now = time.monotonic()
        for peer in self.peers.values():
            owes = peer.sent > peer.done or peer.arrivals or peer.questions
            silent = bool(owes) and now - max(peer.heard, peer.owes_since) > self.options.deadline
            for ping in list(peer.pings.values()):
                silent = silent or now - ping.asked > self.options.deadline
            if peer.lost is None and silent:
                self.lose(peer, f"it has not answered for {self.options.deadline:g} s")

    def wait_for(self, peer: Peer, at: Queue, place: Place) -> None:
        """Waits until a rank has passed a place. Raises earlier failures of the queue."""
        if peer.done < place[0] or peer.lost is not None or self.closed or self.forked:
            self.wait(lambda: peer.done >= place[0] or peer.lost is not None)
        if peer.lost is not None:
            raise peer.loss()
        loss = at.loss
        if loss is not None and loss.begin < place:
            raise self.error_of(loss)

    def error_of(self, loss: Loss) -> Exception:
        """The exception for a failure. If another rank's end caused it, the exception names that rank."""
        gone = self.peers.get(loss.rank)
        if gone is None:
            return failure_of(loss.status, loss.text)
        if gone.lost is None:
            self.lose(gone, loss.text)
        return gone.loss()

    def settle(self, peer: Peer, at: Queue) -> None:
        """Waits until a rank is idle and all data that a queue requested have arrived.

        Raises a failure of the queue, which then continues.
        """
        mine: list[Arrival] = []

        def ready() -> bool:
            return peer.lost is not None or (peer.done >= wanted and all(a.done for a in mine))

        try:
            with self.lock:
                self.flush(peer)
                wanted = peer.place[0]
                mine += [a for a in list(peer.arrivals.values()) if a.queue is at]
            if lib.gbpy_device_given_up() and not ready():
                self._abandon(peer, at)
                raise StateError(f"{peer.who}: the run was interrupted")
            if not ready() or self.closed or self.forked:
                self.wait(ready)
        finally:
            if not all(a.done for a in mine):
                self.let_go(*mine)
        if peer.lost is not None:
            raise peer.loss()
        if at.loss is not None:
            self._raise_loss(peer, at)

    def _abandon(self, peer: Peer, at: Queue) -> None:
        """Ignores the outcome of all work in a queue."""
        with self.lock:
            clear = m.command(What.CLEAR, at.number)
            self.prepare(peer, len(clear))
            at.loss, at.reported, peer.out, peer.count = (
                None,
                (peer.sent + 1, peer.count),
                peer.out + clear,
                peer.count + 1,
            )

    def let_go(self, *arrivals: Arrival) -> None:
        """Releases the targets: nothing is written to them any more."""
        with self.lock:
            for arrival in arrivals:
                arrival.target = None

    def _raise_loss(self, peer: Peer, at: Queue) -> None:
        """Raises a failure of a queue and lets the rank continue."""
        with self.lock:
            loss, clear = at.loss, m.command(What.CLEAR, at.number)
            if loss is None or peer.lost is not None:
                return
            self._collect(peer)
            at.loss, at.reported, peer.out, peer.count = None, loss.begin, peer.out + clear, peer.count + 1
            self.added(peer, True)
        raise self.error_of(loss)

    # -------------------------------------------------------------------------------------------------------- questions

    def ask(self, peer: Peer, what: int, *fields: Any, more: bytes = b"") -> memoryview:
        """Adds a command whose first field is the number of a question, and waits for the answer."""
        return self.answer(self.question(peer, what, *fields, more=more))

    def question(self, peer: Peer, what: int, *fields: Any, more: bytes = b"") -> Question:
        number, question = next(self.numbers), Question(peer)
        asks = m.command(what, number, *fields, more=more)
        with self.lock:
            self.prepare(peer, len(asks))
            peer.out, peer.count, peer.questions[number], question.message = (
                peer.out + asks, peer.count + 1, question, peer.sent + 1,
            )  # fmt: skip
            self.added(peer, what == What.FILE)
        return question

    def answer(self, question: Question) -> memoryview:
        peer = question.peer
        self.wait(lambda: question.body is not None or peer.lost is not None)
        if question.body is None:
            raise peer.loss()
        return question.body

    def fields_of(self, peer: Peer, fields: struct.Struct, body: memoryview) -> tuple[Any, ...]:
        """The fields at the start of an answer. A rank whose answer is too short is lost."""
        if len(body) < fields.size:
            self.lose(peer, f"it has sent an answer of {len(body)} bytes, which is too short")
            self.expect_there(peer)
        return fields.unpack_from(body)

    def expect_ok(self, peer: Peer, body: memoryview, *, of_file: bool = False) -> bool:
        """Raises the error in an answer with a status. Returns False if the rank lacks the requested file."""
        (status,) = self.fields_of(peer, m.ANSWER_STATUS, body)
        if status == ABSENT and of_file:
            return False
        if status:
            raise failure_of(status, f"{peer.who}: {m.text_of(body[4:])}")
        return True

    def ping(self, peer: Peer) -> tuple[float, int]:
        """Seconds of a round trip, and the offset of its clock from this one in ns, at the middle
        of the trip."""
        number, question = next(self.numbers), Question(peer)
        with self.lock:
            self.expect_there(peer)
            peer.pings[number] = question
            begin = time.monotonic_ns()
            self.transport.send(peer.number, m.CONTROL, m.message(Kind.PING, number))
            question.asked = time.monotonic()  # the rank owes the answer from now on
        (clock,) = self.fields_of(peer, m.CLOCK, self.answer(question))
        end = time.monotonic_ns()
        return (end - begin) / 1e9, (begin + end) // 2 - int(clock)

    def set_clocks(self, times: int = 5) -> None:
        """Measures the clock offset of each rank, from the shortest of several round trips."""
        for peer in self.living():
            peer.clock = min(self.ping(peer) for _ in range(times))[1]

    def living(self) -> Iterator[Peer]:
        return (p for p in self.peers.values() if p.lost is None)

    # -------------------------------------------------------------------------------------------------------- transfers

    def to_rank(self, peer: Peer, memory: int, offset: int, data: memoryview) -> None:
        """Copies host bytes to memory of a rank. You may change them when the call returns."""
        self._wait_for_host(data)
        if len(data) <= _MAX_INLINE:
            self.add(peer, m.command(What.PUT, memory, offset, more=data))
            return
        for at, nbytes in m.pieces_of(len(data)):
            self._piece_to_rank(peer, memory, offset + at, data[at : at + nbytes])

    def _piece_to_rank(self, peer: Peer, memory: int, offset: int, data: memoryview) -> None:
        nbytes = len(data)
        if peer.bytes > _MAX_UNACKNOWLEDGED:
            self.wait(lambda: peer.bytes <= _MAX_UNACKNOWLEDGED // 2 or peer.lost is not None)
        with self.lock:
            self.expect_there(peer)
            number = next(self.transfers[0, peer.number])
            # send the bytes first: bytes without a command are harmless, a command without bytes
            # would wait
            self.transport.send(peer.number, m.tag_of(m.DATA, number), data)
            peer.total = peer.total + nbytes
            peer.unacknowledged.append((peer.sent + 1, peer.total))
            self.add(peer, m.command(What.TAKE, m.NO_QUEUE, 0, number, memory, offset, nbytes), begin=True)

    def _wait_for_host(self, data: memoryview) -> None:
        """Waits for pending data that a rank delivers into these host bytes."""
        with self.lock:
            waiting = [a for p in self.peers.values() for a in list(p.arrivals.values()) if a.target is not None]
        if not waiting or not len(data):
            return
        begin = _address_of(data)
        end = begin + len(data)
        behind = [a for a in waiting if a.begin < end and begin < a.begin + a.nbytes]
        if behind:
            self.wait(lambda: all(a.target is None for a in behind))

    def to_host(self, peer: Peer, memory: int, offset: int, arrivals: list[Arrival]) -> None:
        """Requests bytes for ``arrivals_of``. They are in the target once the arrivals are done and their queue
        is settled."""
        for arrival in arrivals:
            if arrival.target is not None:
                self._wait_for_host(arrival.target)
        with self.lock:
            for arrival in arrivals:
                number = next(self.transfers[peer.number, 0])
                at = m.NO_QUEUE if arrival.queue is None else arrival.queue.number
                give = m.command(What.GIVE, at, 0, number, memory, offset, arrival.nbytes)
                self.prepare(peer, len(give))
                peer.out, peer.count, peer.arrivals[number], arrival.message = (
                    peer.out + give, peer.count + 1, arrival, peer.sent + 1,
                )  # fmt: skip
                self.added(peer, True)
                offset += arrival.nbytes

    def between(
        self, to: Peer, into: tuple[int, int, int], source: Peer, out_of: tuple[int, int, int], nbytes: int
    ) -> None:
        """Copies bytes between ranks or within one. Each side is a queue, a memory and an offset."""
        with self.lock:
            if to is source:
                self.add(to, m.command(What.COPY, *into, *out_of[1:], nbytes))
                return
            for at, n in m.pieces_of(nbytes):
                self._piece_between(to, into, source, out_of, at, n)

    def _piece_between(
        self, to: Peer, into: tuple[int, int, int], source: Peer, out_of: tuple[int, int, int], at: int, nbytes: int
    ) -> None:
        """Sends ``nbytes`` bytes of a copy between ranks, from its byte ``at``. Under the lock."""
        number = next(self.transfers[source.number, to.number])
        give = m.give(out_of[0], to.number, number, out_of[1], out_of[2] + at, nbytes)
        take = m.take(into[0], source.number, number, into[1], into[2] + at, nbytes)
        if source.lost is not None:
            self.expect_there(source)
        self.prepare(to, len(take))
        self.prepare(source, len(give))
        source.out, source.count, to.out, to.count = (
            source.out + give, source.count + 1, to.out + take, to.count + 1,
        )  # fmt: skip
        self.added(source, True)
        self.added(to, False)

    def open(self, peer: Peer, number: int, name: str) -> tuple[int, int, str]:
        """Opens a device of a rank. Returns its alignment, largest buffer and name."""
        body = self.ask(peer, What.OPEN, number, more=m.text_bytes(name))
        wrong, alignment, largest = self.fields_of(peer, m.OPENED, body)
        text = m.text_of(body[m.OPENED.size :])
        if wrong:
            raise InvalidArgumentError(f"{peer.who}: {text}")
        if not 1 <= alignment <= 65536 or alignment & (alignment - 1) or not text or "\0" in text or not largest:
            self.lose(peer, f"it has opened {text!r:.80} with alignment {alignment} and buffers of {largest} bytes")
            self.expect_there(peer)
        return alignment, largest, text

    def allocate(self, peer: Peer, device: int, number: int, nbytes: int) -> None:
        """Allocates memory on a rank. If that fails and finalizers have freed some meanwhile, it tries again."""
        for again in (True, False):
            body = self.ask(peer, What.ALLOC, device, number, nbytes)
            (status,) = self.fields_of(peer, m.ANSWER_STATUS, body)
            if status != lib.GGML_STATUS_ALLOC_FAILED or not peer.dropped or not again:
                break
        self.expect_ok(peer, body)

    def close(self) -> None:
        """Makes the ranks exit."""
        if self.forked:
            self.closed = True
            return
        with self.lock:
            if self.closed:
                return
            for peer in self.peers.values():  # also to lost ranks, which may be alive
                peer.dropped.clear()
                if peer.died:
                    continue
                try:
                    self.transport.send(peer.number, m.CONTROL, m.message(Kind.BYE, 0))
                except (GgmlError, OSError):
                    continue
            self.closed = True
            self._wake_sender.put(None)
