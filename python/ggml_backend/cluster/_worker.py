"""A serving rank: it executes the commands of rank 0 in order until rank 0 leaves.

One thread receives messages and computes. It reports every failure to rank 0 at once. The queue of the failed
command then computes nothing until rank 0 has acknowledged the failure. Data that other ranks wait for are
replaced by the reason (``POISON``), so that no rank waits in vain. Commands outside runs, such as sets and
copies by the program, are still executed. A second, mostly sleeping thread sends heartbeats while the first
one computes.

Large data are lent: sent from their own memory, if a receiver waits. Commands that would change them wait
until they are sent or the receiver is gone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .._base.errors import AllocationError, DeviceLostError, GgmlError, InvalidArgumentError, StateError, check
from .._base.errors.faults import message_of
from .._base.handles import address
from .._ffi import ffi, lib
from ..backend import _registry as registry
from ..backend.backend import Backend, backends
from ..sched._costs import processor_model
from . import _messages as m
from ._memory import Compiled, Piece, expect_supported, fill_from_file, keep
from ._messages import Command, Kind, Message, MessageError, What
from ._nodes import graph_of
from ._transport import Letter, Loan, Transport, start_thread

__all__ = ["Worker", "facts"]

_ERROR: int = lib.GGML_STATUS_DEVICE_ERROR
_ALLOC: int = lib.GGML_STATUS_ALLOC_FAILED
_MAX_DEVICES = 256  # maximum number of open devices
_DONE_EVERY = 4  # messages after which DONE is sent, even if more are waiting
_OF_QUEUE = frozenset((What.TAKE, What.GIVE, What.COPY, What.GRAPH))  # commands whose first field is a queue
_OF_MEMORY = {
    What.FILL: 0,
    What.PUT: 0,
    What.KEEP: 0,
    What.TAKE: 3,
    What.COPY: 1,
}  # index of the field with the memory that is set
_CHANGED = {**_OF_MEMORY, What.FREE: 0, What.FILE: 1}  # index of the field with the memory that changes
_OF_DATA = frozenset((m.DATA, m.POISON))  # channels
_READS = frozenset((
    What.OPEN, What.ALLOC, What.GIVE, What.GRAPH, What.DROP, What.ASK, What.MARK, What.CLEAR, What.KEEP, What.CLOSE,
    What.WORK,
))  # commands that change no memory  # fmt: skip
_LEND = 512 << 10  # smallest number of bytes to lend; a copy of fewer costs no more than the request
_MOMENT = 1e-3  # seconds during which a rank receives only the message that it waits for
_OLD = 16  # number of later transfers after which data without a request are dropped
_HEADERS = 64  # bytes, more than a header needs
_TICK = 0.005  # seconds between two checks of the heartbeat thread


class Ended(Exception):
    """Rank 0 has left or is gone."""


class _Failure(Exception):
    """An earlier failure, here or on another rank. rank: the rank whose end was the cause, or -1"""

    def __init__(self, status: int, rank: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.rank = rank

    def again(self) -> _Failure:
        """A copy without the traceback, which would grow with each raise and keep frames alive."""
        return _Failure(self.status, self.rank, str(self))


class _Broken:
    """Replaces a graph that could not be prepared. Running it raises the reason."""

    def __init__(self, queue: int, failure: _Failure) -> None:
        self.queue = queue
        self.failure = failure

    def run(self) -> None:
        raise self.failure.again()

    def close(self) -> None:
        pass


def memory_of_host() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 1 << 62


def facts(version: str) -> dict[str, Any]:
    """The facts that a rank reports in its greeting."""
    names = [n for n in backends() if n != "SIM" and registry.kind_called(n) is None]
    return {
        "version": version, "byteorder": sys.byteorder, "python": platform.python_version(),
        "machine": platform.machine(), "host": socket.gethostname(), "pid": os.getpid(),
        "cores": len(os.sched_getaffinity(0)), "memory": memory_of_host(), "backends": names,
        "processor": processor_model(), "level": Backend("CPU", n_threads=1).level,
    }  # fmt: skip


def differs(mine: dict[str, Any], other: dict[str, Any], me: str, who: str) -> str:
    """The reason why two ranks cannot work together; "" if they can."""
    for key, what in (("protocol", "protocol"), ("version", "version"), ("byteorder", "byte order")):
        a, b = mine.get(key), other.get(key)
        if a != b:
            return (
                f"{what} {a!r} of ggml_backend on {me}, {b!r} on {who}: install the same version on all hosts"
                if key != "byteorder"
                else f"{what} {a!r} on {me}, {b!r} on {who}: tensors cannot be exchanged between them"
            )
    return ""


class Worker:
    """A rank that serves rank 0. ``options``: those of ``gb.cluster.start()``."""

    def __init__(self, transport: Transport, version: str, options: Any) -> None:
        self.transport = transport
        self.options = options
        self.facts = {**facts(version), "threads": options.n_threads}
        self.devices: dict[int, Backend] = {}
        self.memories: dict[int, Piece] = {}
        self.graphs: dict[int, Compiled | _Broken] = {}
        self.queue: deque[Message] = deque()
        self.data: dict[int, deque[Letter]] = {r: deque() for r in range(transport.size)}
        self.gone: dict[int, str] = {}
        self.failed: dict[int, _Failure] = {}  # by queue
        self.orphans = 0  # number of dropped data messages
        self.asked: dict[int, int] = {}  # by rank: the transfer that it waits for
        self.loans: list[tuple[Loan, int, int]] = []  # loans with their address ranges
        self.body = memoryview(b"")  # body of the message that is being executed
        self.ended = False
        self.received = 0  # number of the last received message
        self.reported = 0  # number of the last message that DONE acknowledged
        self.busy = 0  # number of the message that is being executed
        self.command = 0  # index of its current command
        self.waits = (-1, False, 0.0)  # the rank it waits for; True: to receive, False: for its data; since when
        self._stop = threading.Event()
        self._do: dict[int, Callable[..., None]] = {
            getattr(What, name): getattr(self, f"_{name.lower()}") for name in vars(What) if name.isupper()
        }

    @property
    def me(self) -> str:
        return f"rank {self.transport.rank} ({self.facts['host']})"

    # --------------------------------------------------------------------------------------------------------- greeting

    def greet(self) -> None:
        """Exchanges greetings with rank 0. StateError if rank 0 does not arrive, or is
        incompatible."""
        deadline = time.monotonic() + self.options.deadline
        waited = time.monotonic()
        while True:
            letter = self.transport.poll()
            if letter is not None and letter.peer == 0 and letter.channel == m.HELLO:
                break
            if letter is not None:
                raise MessageError(f"{self.me}: another message arrived before the greeting of rank 0")
            if 0 in self.transport.lost():
                raise StateError(f"{self.me}: rank 0 ended before it called gb.cluster.start()")
            if time.monotonic() > deadline:
                raise StateError(
                    f"{self.me}: rank 0 has not called gb.cluster.start() within {self.options.deadline:g} s. All ranks"
                    " run the same script: start it with mpiexec -n N python script.py"
                )
            self.transport.pause(time.monotonic() - waited)
        other = m.read_hello(letter.take())
        mine = {"protocol": m.PROTOCOL, **self.facts}
        self.transport.send(0, m.HELLO, m.hello(self.facts))
        wrong = differs(mine, other, self.me, "rank 0")
        if wrong:
            raise StateError(f"{self.me}: {wrong}")

    # --------------------------------------------------------------------------------------------------------- messages

    def serve(self) -> None:
        """Executes commands until rank 0 leaves."""
        alive = start_thread(self._say_alive, "ggml_backend cluster")
        try:
            self.greet()
            while True:
                self._wait(lambda: bool(self.queue))
                self._carry_out(self.queue.popleft())
        except Ended:
            pass
        finally:
            self._stop.set()
            if alive is not threading.current_thread():
                alive.join()
            self._give_back()

    def _give_back(self) -> None:
        for graph in self.graphs.values():
            graph.close()
        self.graphs.clear()
        self.memories.clear()

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Receives messages until ``ready()`` is true. Raises Ended if rank 0 is gone."""
        since = 0.0
        while not ready():
            if self._pump():
                since = 0.0
                continue
            if self.ended:
                raise Ended
            gone = self.transport.lost()
            if gone:
                if 0 in gone:
                    raise Ended
                for rank, why in gone.items():
                    self.gone.setdefault(rank, why)
                if ready():
                    return
            now = time.monotonic()
            since = since or now
            self.transport.pause(now - since)

    def _pump(self) -> bool:
        letter = self.transport.poll()
        if letter is None:
            return False
        if letter.channel in _OF_DATA:
            self.data[letter.peer].append(letter)
            return True
        if letter.channel == m.ASKED:
            self.asked[letter.peer] = letter.mark
        if letter.channel != m.CONTROL or letter.peer != 0:
            letter.take()
            return True
        try:
            if letter.nbytes > m.MAX_CONTROL + _HEADERS:
                letter.take()
                raise MessageError(f"a message of {letter.nbytes} bytes is longer than {m.MAX_CONTROL}")
            message = m.read_message(letter.take())
        except MessageError as error:
            self._fail(m.NO_QUEUE, error)
            return True
        if message.kind == Kind.COMMANDS:
            self._received(message)
        elif message.kind == Kind.LOST:
            self.gone.setdefault(message.number, "rank 0 has lost it")
            self.transport.gave_up(message.number, 0)
        elif message.kind == Kind.PING:
            self._report(Kind.PONG, message.number, m.CLOCK.pack(time.monotonic_ns()))
        elif message.kind == Kind.BYE:
            self.ended = True
        return True

    def _received(self, message: Message) -> None:
        """Queues a message. Ignores a repeated one, which rank 0 sends after an interrupt."""
        if message.number <= self.received:
            return
        if message.number != self.received + 1:
            self._fail(m.NO_QUEUE, MessageError(f"message {message.number} has arrived after message {self.received}"))
        self.received = message.number
        self.queue.append(message)

    def _report(self, kind: int, number: int, body: bytes = b"") -> None:
        self.transport.send(0, m.CONTROL, m.message(kind, number, body))

    def _say_alive(self) -> None:
        said = time.monotonic()
        with contextlib.suppress(BaseException):  # the transport may be closing
            while not self._stop.wait(_TICK if self.busy else 10 * _TICK):
                if not self.busy:
                    continue
                self.transport.pulse()
                now = time.monotonic()
                if now - said >= self.options.heartbeat:
                    said = now
                    peer, sends, since = self.waits
                    ns = int((now - since) * 1e9) if since else 0
                    self._report(Kind.BEAT, self.busy, m.BEAT_BODY.pack(peer, sends, ns))

    def _carry_out(self, message: Message) -> None:
        self.busy, self.body = message.number, message.body
        try:
            for self.command, command in enumerate(m.commands_of(message.body)):
                try:
                    if self.loans and command.what not in _READS:
                        self._await_loans(command)
                    self._do[command.what](command)
                except Exception as error:
                    self._fail(self._queue_of(command), error)
        except MessageError as error:
            self._fail(m.NO_QUEUE, error)
        self.busy = 0
        if not self.queue or message.number - self.reported >= _DONE_EVERY:
            self._report_done(message.number)

    def _queue_of(self, command: Command) -> int:
        """The queue that fails with a command."""
        what, fields = command.what, command.fields
        if what in _OF_QUEUE and fields[0] != m.NO_QUEUE:
            return int(fields[0])
        found: Piece | Compiled | _Broken | None = None
        if what == What.RUN:
            found = self.graphs.get(fields[0])
        elif what in _OF_MEMORY:
            found = self.memories.get(fields[_OF_MEMORY[what]])
        return m.NO_QUEUE if found is None else found.queue

    def _report_done(self, number: int) -> None:
        if number > self.reported:
            self.reported = number
            self._report(Kind.DONE, number)

    def _failure(self, error: Exception) -> _Failure:
        if isinstance(error, _Failure):
            return error.again()
        status, text = _status_of(error)
        rank = error.rank if isinstance(error, DeviceLostError) else -1
        return _Failure(status, rank, f"{self.me}: {text}")

    def _fail(self, queue: int, error: Exception) -> None:
        """Reports a failure. Only the first failure of a queue counts, until rank 0 has handled it.
        Without a queue the message is invalid, and rank 0 gives up this rank."""
        if queue in self.failed:
            return
        failure = self._failure(error)
        if queue != m.NO_QUEUE:
            self.failed[queue] = failure
        body = m.LOSS.pack(failure.status, failure.rank, queue, self.command)
        self._report(Kind.FAILED, self.busy, body + m.text_bytes(str(failure)))

    def _answer(self, question: int, body: bytes) -> None:
        self._report(Kind.ANSWER, question, body)

    def _answer_status(self, question: int, work: Callable[[], None], found: Callable[[], bytes] = bytes) -> None:
        """Answers with the status of ``work``. found: returns the body after success"""
        status, answer = 0, b""
        try:
            work()
            answer = found()
        except Exception as error:
            status, text = _status_of(error)
            answer = m.text_bytes(text)
        self._answer(question, m.ANSWER_STATUS.pack(status) + answer)

    # --------------------------------------------------------------------------------------------------------- commands

    def _memory(self, number: int) -> Piece:
        found = self.memories.get(number)
        if found is None:
            raise MessageError(f"there is no memory {number}")
        return found

    def _device(self, number: int) -> Backend:
        found = self.devices.get(number)
        if found is None:
            raise MessageError(f"there is no device {number}")
        return found

    def _open(self, command: Command) -> None:
        question, number = command.fields
        try:
            if number in self.devices or number == m.NO_QUEUE:
                raise MessageError(f"device {number} is already open")
            if len(self.devices) >= _MAX_DEVICES:
                raise InvalidArgumentError(
                    f"{len(self.devices)} devices are open, which is the limit: close() some of them"
                )
            backend = self._opened(m.text_of(command.more))
            self.devices[number] = backend
            reply = m.OPENED.pack(0, backend.alignment, min(backend.max_nbytes, 2**63 - 1)) + backend.name.encode()
        except Exception as error:
            reply = m.OPENED.pack(1, 0, 0) + m.text_bytes(_status_of(error)[1])
        self._answer(question, reply)

    def _opened(self, name: str) -> Backend:
        base = name.partition(":")[0].upper()
        known = (n.upper() for n in backends())
        if base not in known or re.fullmatch(r"MPI\d+", base):
            raise InvalidArgumentError(f"there is no backend {name!r}; there are {', '.join(self.facts['backends'])}")
        if base == "CPU" and ":" not in name:
            return Backend(name, n_threads=self.options.n_threads)
        return Backend(name)

    def _alloc(self, command: Command) -> None:
        question, device, number, nbytes = command.fields

        def allocate() -> None:
            if number in self.memories:
                raise MessageError(f"memory {number} already exists")
            if nbytes > memory_of_host():
                raise AllocationError(f"no memory for {nbytes} bytes: the host has {memory_of_host()}")
            self.memories[number] = Piece(self._device(device), device, nbytes)

        self._answer_status(question, allocate)

    def _free(self, command: Command) -> None:
        self.memories.pop(command.fields[0], None)

    def _set(self, piece: Piece, work: Callable[[], None]) -> None:
        """Sets memory for the program. A failure is reported to the next reader and to the next
        computation."""
        try:
            work()
        except Exception as error:
            piece.spoilt = self._failure(error)
            raise

    def _fill(self, command: Command) -> None:
        number, value = command.fields
        piece = self._memory(number)
        self._set(piece, lambda: piece.fill(value))

    def _put(self, command: Command) -> None:
        number, offset = command.fields
        piece = self._memory(number)
        self._set(piece, lambda: piece.write(offset, command.more))

    def _take(self, command: Command) -> None:
        queue, peer, transfer, number, offset, nbytes = command.fields
        piece = self.memories.get(number)
        if queue == m.NO_QUEUE and piece is not None:
            self._set(piece, lambda: self._receive(peer, transfer, number, offset, nbytes))
        else:
            self._receive(peer, transfer, number, offset, nbytes)

    def _receive(self, peer: int, transfer: int, number: int, offset: int, nbytes: int) -> None:
        if peer >= self.transport.size or peer == self.transport.rank:
            raise MessageError(f"rank {peer} cannot send data")
        box, mark = self.data[peer], transfer % m.N_MARKS
        if peer != 0 and not _has(box, mark):
            if nbytes >= _LEND:
                self.transport.send(peer, m.tag_of(m.ASKED, transfer), b"")
            if self._caught(peer, transfer, number, offset, nbytes):
                self._drop_old(box, mark)
                return
        letter = self._next_of(peer, mark)
        if letter.channel == m.POISON or letter.nbytes != nbytes:
            data = letter.take()
            if letter.channel == m.POISON and len(data) >= m.POISON_BODY.size:
                status, rank = m.POISON_BODY.unpack_from(data)
                raise _Failure(status, rank, m.text_of(data[m.POISON_BODY.size :]))
            raise MessageError(f"rank {peer} sent {letter.nbytes} bytes instead of {nbytes}")
        try:
            memory = self._memory(number)
            target = memory.target(offset, nbytes)
        except Exception:
            letter.take()
            raise
        if target is not None:
            letter.take_into(target)
            memory.written(offset, nbytes)
        else:
            memory.write(offset, letter.take())

    def _caught(self, peer: int, transfer: int, number: int, offset: int, nbytes: int) -> bool:
        """Receives data directly into memory if they arrive within a moment, as usual for a cut.
        `_next_of` handles all other cases."""
        piece = self.memories.get(number)
        if piece is None or not piece.host or not 0 < nbytes <= piece.size - offset or peer in self.gone:
            return False
        self._report_done(self.busy - 1)
        target = piece.target(offset, nbytes)
        assert target is not None
        found = self.transport.catch(peer, m.tag_of(m.DATA, transfer), target, _MOMENT)
        if found is None:
            return False
        if found != nbytes:
            raise MessageError(f"rank {peer} sent {found} bytes instead of {nbytes}")
        piece.written(offset, nbytes)
        return True

    def _next_of(self, peer: int, mark: int) -> Letter:
        """The data of one transfer. After an interrupt of rank 0, data of cancelled transfers may
        arrive first. They are dropped when they are old."""
        box = self.data[peer]
        if not _has(box, mark):
            self._wait_for(peer, False, lambda: _has(box, mark))
        if box and box[0].mark == mark:
            return box.popleft()
        found = next((letter for letter in box if letter.mark == mark), None)
        if found is None:
            text = f"{self.me}: rank {peer} is gone: {self.gone[peer]}"
            raise _Failure(_ERROR, peer, text)
        box.remove(found)
        self._drop_old(box, mark)
        return found

    def _drop_old(self, box: deque[Letter], mark: int) -> None:
        """Drops data that arrived long before the received transfer."""
        while box and _OLD < (mark - box[0].mark) % m.N_MARKS < m.N_MARKS // 2:
            box.popleft().take()
            self.orphans += 1

    def _wait_for(self, peer: int, sends: bool, ready: Callable[[], bool]) -> None:
        """Waits until ``ready()`` is true or the peer is gone."""
        self._report_done(self.busy - 1)  # this may take long
        self.waits = (peer, sends, time.monotonic())
        try:
            self._wait(lambda: ready() or peer in self.gone)
        finally:
            self.waits = (-1, False, 0.0)

    def _give(self, command: Command) -> None:
        queue, peer, transfer, number, offset, nbytes = command.fields
        if peer >= self.transport.size or peer == self.transport.rank:
            raise MessageError(f"rank {peer} cannot receive data")
        failure, data = self.failed.get(queue), None
        if failure is None:
            try:
                piece = self._memory(number)
                if queue == m.NO_QUEUE:
                    piece.expect_whole()
                data = piece.read(offset, nbytes)
            except Exception as error:
                failure = self._failure(error)
                if queue != m.NO_QUEUE:
                    self._fail(queue, failure)
        if peer in self.gone:
            return
        if failure is None:
            assert data is not None
            self._send_data(command, peer, m.tag_of(m.DATA, transfer), data, piece)
        else:
            body = m.POISON_BODY.pack(failure.status, failure.rank) + m.text_bytes(str(failure))
            self.transport.send(peer, m.tag_of(m.POISON, transfer), body)

    def _send_data(self, command: Command, peer: int, tag: int, data: memoryview, piece: Piece) -> None:
        """Sends data. Lends them if the receiver waits and this rank has no other work. Otherwise
        sends a copy, so that this rank can continue. Rank 0 always gets copies, because its program
        decides when it receives."""
        if len(data) < _LEND or peer == 0:
            self.transport.send(peer, tag, data)
        elif not piece.host:  # a private copy
            self.transport.lend(peer, tag, data, data)
        elif self._is_asked(peer, tag) and not self._goes_on(command.end):
            loan = self.transport.lend(peer, tag, data, piece)
            begin = address(ffi.from_buffer(data))
            self.loans = [k for k in self.loans if not self.transport.is_over(k[0])]
            self.loans.append((loan, begin, begin + len(data)))
        else:
            self.transport.send(peer, tag, data)

    def _is_asked(self, peer: int, tag: int) -> bool:
        """True if the peer waits for that transfer. Reads all messages that have come, for `_goes_on`."""
        while self._pump() or self._pump():
            pass  # MPI may report a message only at the second poll
        return self.asked.pop(peer, None) == tag // m.N_CHANNELS

    def _goes_on(self, at: int) -> bool:
        """True if this rank has known work before its next wait for another rank."""
        with contextlib.suppress(MessageError):
            for command in m.commands_of(self.body, at):
                if command.what == What.TAKE:
                    box, mark = self.data.get(command.fields[1], ()), command.fields[2] % m.N_MARKS
                    return any(letter.mark == mark for letter in box)
                if command.what not in _READS:
                    return True
        return bool(self.queue)

    def _await_loans(self, command: Command) -> None:
        """Waits until the memory that a command changes is no longer lent. This cannot deadlock,
        because the receiver of a loan waits for exactly these bytes."""
        for begin, end in self._changed(command):
            for loan, first, last in self.loans:
                if begin < last and first < end and not self.transport.is_over(loan):
                    self._wait_for(loan.peer, True, functools.partial(self.transport.is_over, loan))
        self.loans = [k for k in self.loans if not k[0].is_over and k[0].peer not in self.gone]

    def _changed(self, command: Command) -> Iterator[tuple[int, int]]:
        """The address ranges that a command changes."""
        what, fields = command.what, command.fields
        if what == What.RUN:
            graph = self.graphs.get(fields[0])
            if isinstance(graph, Compiled):
                yield from graph.written
            return
        piece = self.memories.get(fields[_CHANGED[what]])
        if piece is None:
            return
        begin, nbytes = (fields[4], fields[5]) if what == What.TAKE else (0, piece.size)
        yield piece.base + begin, piece.base + begin + nbytes

    def _copy(self, command: Command) -> None:
        queue, to, to_offset, source, offset, nbytes = command.fields
        target, origin = self._memory(to), self._memory(source)

        def copy() -> None:
            if queue == m.NO_QUEUE:
                origin.expect_whole()
            elif origin.queue in self.failed:
                raise self.failed[origin.queue].again()
            target.write(to_offset, origin.read(offset, nbytes))

        if queue == m.NO_QUEUE:
            self._set(target, copy)
        elif queue not in self.failed:
            copy()

    def _graph(self, command: Command) -> None:
        device, number = command.fields
        if number in self.graphs:
            raise MessageError(f"graph {number} already exists")
        try:
            self.graphs[number] = self._prepared(device, command.more)
        except Exception as error:
            self.graphs[number] = _Broken(device, self._failure(error))

    def _prepared(self, device: int, nodes: memoryview) -> Compiled:
        backend = self._device(device)
        used: list[Piece] = []  # stay alive as long as the graph, even if freed before

        def base(memory: int, weights: bool) -> tuple[Any, int, int]:
            piece = self._memory(memory)
            if piece.backend is not backend:
                raise MessageError(f"memory {memory} belongs to another device")
            if weights:
                piece.mark_weights()
            used.append(piece)
            return piece.pointer, piece.base, piece.size

        graph = graph_of(nodes, base)
        graph.keep = (*graph.keep, *used)
        return Compiled(backend, device, graph)

    def _run(self, command: Command) -> None:
        graph = self.graphs.get(command.fields[0])
        if graph is None:
            raise MessageError(f"there is no graph {command.fields[0]}")
        if graph.queue not in self.failed:
            graph.run()

    def _drop(self, command: Command) -> None:
        graph = self.graphs.pop(command.fields[0], None)
        if graph is not None:
            graph.close()

    def _ask(self, command: Command) -> None:
        question, device = command.fields
        core = self._device(device)._live()
        graph = graph_of(command.more, None)
        reason = "no node"
        if graph.ptr.n_nodes == 1:
            found = lib.ggml_backend_unsupported_reason(core.ptr, graph.nodes[0])
            reason = message_of(found)
        self._answer(question, m.text_bytes(reason))

    def _work(self, command: Command) -> None:
        question, device = command.fields
        size = ffi.new("size_t *")

        def measure() -> None:
            graph, backend = graph_of(command.more, None), self._device(device)._live()
            expect_supported(backend.ptr, graph)
            check(lib.gbpy_graph_work_size(backend.ptr, graph.ptr, size))

        self._answer_status(question, measure, lambda: m.CLOCK.pack(size[0]))

    def _mark(self, command: Command) -> None:
        self._answer(command.fields[0], m.CLOCK.pack(time.monotonic_ns()))

    def _file(self, command: Command) -> None:
        question, number, offset, nbytes, at, digest = command.fields
        path = os.fsdecode(bytes(command.more))
        cached = os.path.join(self.options.cache, digest.hex()) if self.options.cache else None

        def fill() -> None:
            piece = self._memory(number)
            if cached is not None and os.path.exists(cached):
                with contextlib.suppress(OSError):
                    fill_from_file(piece, offset, nbytes, cached, 0, digest)
                    return
            fill_from_file(piece, offset, nbytes, path, at, digest)

        self._answer_status(question, fill)

    def _keep(self, command: Command) -> None:
        number, offset, nbytes, digest = command.fields
        piece = self._memory(number)
        if self.options.cache and piece.spoilt is None:
            keep(piece, offset, nbytes, self.options.cache, digest)

    def _clear(self, command: Command) -> None:
        self.failed.pop(command.fields[0], None)

    def _close(self, command: Command) -> None:
        self.failed.pop(command.fields[0], None)
        self.devices.pop(command.fields[0], None)


def _has(box: deque[Letter], mark: int) -> bool:
    return any(letter.mark == mark for letter in box)


def _status_of(error: Exception) -> tuple[int, str]:
    """The status and the text of an exception."""
    if isinstance(error, FileNotFoundError):
        return ABSENT, str(error)
    if isinstance(error, (GgmlError, _Failure)):
        return error.status, str(error) or type(error).__name__
    if isinstance(error, MemoryError):
        return _ALLOC, str(error) or "no memory"
    return _ERROR, f"{type(error).__name__}: {error}"


ABSENT = 1
"""The status of a missing file. Statuses of the library are negative."""
