"""A device of another rank, as a device of the scheduler.

Everything is a command in the queue of the rank (`_host.py`), also what moves bytes, so nothing waits but what reads
results. A split's nodes are shipped when it is prepared; a run is a number then."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from .._devices.files import FileFill
from .._devices.nodes import Node
from .._devices.state import Memory, object_of
from .._errors import InvalidArgumentError, StateError
from .._ffi import ffi, lib
from ..device import Device
from . import _messages as m
from ._host import Arrival, Conductor, Peer, Place, Queue
from ._links import Measured
from ._messages import What
from ._nodes import pack

__all__ = ["Mark", "RankDevice", "RemoteMemory", "current"]

current: list[Conductor | None] = [None]
"""The cluster that this process is rank 0 of."""


def _left_behind() -> None:
    """A child has no cluster; what it has of its parent's says so."""
    conductor, current[0] = current[0], None
    if conductor is not None:
        conductor.left_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_left_behind)


class RemoteMemory:
    """Memory on a rank: its number there, and the queue that uses it. Made before it is asked for, so that it is given
    back whatever comes between."""

    __slots__ = ("__weakref__", "number", "peer", "queue")

    def __init__(self, peer: Peer, number: int, queue: Queue) -> None:
        self.peer = peer
        self.number = number
        self.queue = queue
        weakref.finalize(self, peer.dropped.append, m.command(What.FREE, number)).atexit = False


class _Graph:
    """A graph that a rank has prepared, or will."""

    __slots__ = ("__weakref__", "_add", "_peer", "_run")

    def __init__(self, conductor: Conductor, peer: Peer, number: int) -> None:
        self._add = conductor.add
        self._peer = peer
        self._run = m.command(What.RUN, number)
        weakref.finalize(self, peer.dropped.append, m.command(What.DROP, number)).atexit = False

    def __call__(self) -> None:
        self._add(self._peer, self._run, True)


def _closed(peer: Peer, number: int) -> None:
    peer.queues.pop(number, None)
    peer.dropped.append(m.command(What.CLOSE, number))


class Mark:
    """A place in the queue of a rank."""

    _question = -1  # of one that is not made yet

    def __init__(self, device: RankDevice, timed: bool = False) -> None:
        self._device = device
        self._place: Place = (0, 0)
        self._question = 0 if timed else -1

    def record(self) -> None:
        device = self._device
        conductor, peer = device.conductor, device.peer
        if self._question >= 0:
            self._forget()
            self._question = conductor.question(peer, What.MARK)
        with conductor.lock:
            self._place = peer.place

    def _forget(self) -> None:
        self._device.conductor.answers.pop(self._question, None)

    def __del__(self) -> None:
        if self._question > 0:
            self._forget()

    def synchronize(self) -> None:
        """Raises what failed before it, whoever was told of that."""
        device = self._device
        device.conductor.wait_for(device.peer, device.queue, self._place)

    def wait(self, device: Device) -> None:
        """Devices of ranks need not wait for each other (`_host.py`); others wait with the host."""
        if not isinstance(device, RankDevice) or device.conductor is not self._device.conductor:
            self.synchronize()

    def time(self) -> int:
        """ns on the clock of this process."""
        conductor, peer = self._device.conductor, self._device.peer
        if self._question <= 0:
            return 0
        found = conductor.answers.get(self._question)
        if found is None:
            conductor.wait(lambda: conductor.answers.get(self._question) is not None or peer.lost is not None)
            found = conductor.answers.get(self._question)
        if found is None:
            raise peer.lost or StateError(f"{peer.who} has not answered")
        return int(conductor.fields_of(peer, m.CLOCK, found)[0]) + peer.clock


_numbers = itertools.count()  # of devices; none is used twice


class RankDevice(Measured, Device):
    """A backend of another rank. Made by :meth:`Cluster.backends`, or ``gb.Backend("MPI1:CPU")``."""

    memory = "own"
    in_order = True
    rank = 0
    _bounded = True

    def __init__(self, **backend: Any) -> None:
        conductor = current[0]
        kind = f"MPI{self.rank}"
        if conductor is None or self.rank not in conductor.peers:
            raise StateError(f"{kind}: there is no such rank now: gb.cluster() makes ranks devices, until it is closed")
        self.conductor = conductor
        self.peer = peer = conductor.peers[self.rank]
        names = list(backend) or ["CPU"]
        if not backend or backend[names[0]] not in ("", None):
            raise InvalidArgumentError(
                f"{kind}: say which backend of the rank: {kind}:CPU; {peer.who} has {', '.join(peer.facts['backends'])}"
            )
        options = ",".join(f"{k}={backend[k]}" for k in names[1:])
        self.number = next(_numbers)
        self.queue = peer.queues[self.number] = Queue(self.number)
        weakref.finalize(self, _closed, peer, self.number).atexit = False
        self.alignment, largest, told = conductor.open(
            peer, self.number, f"{names[0]}:{options}" if options else names[0]
        )
        self.max_size = largest if largest < 2**63 - 1 else None
        self.name = f"{kind}:{told}"[:63]
        self._is_cpu = told == "CPU"
        self._answers: dict[bytes, str] = {}
        self._handle, self._offset = ffi.new("void **"), ffi.new("size_t *")

    @classmethod
    def missing(cls) -> str | None:
        conductor = current[0]
        if conductor is None or cls.rank not in conductor.peers:
            return "there is no cluster with this rank now: gb.cluster()"
        lost = conductor.peers[cls.rank].lost
        return str(lost) if lost is not None else None

    # ------------------------------------------------------------------------------------------------ what it computes

    def refuses_at(self, pointer: Any, node: Node) -> str | None:
        """Why the rank does not compute a node of C. Asked once for all nodes that are alike; of a CPU, not even that:
        that of this process, which has the same version, knows."""
        if node._function is not None or node.op.startswith("map_"):
            return "a function of this program cannot be called on another rank"
        if self._is_cpu:
            core = self.conductor.cpu._live()
            found = lib.ggml_backend_unsupported_reason(core.ptr, pointer)
            return ffi.string(found).decode("utf-8", "replace") if found else None
        question = pack([pointer], None)
        answer = self._answers.get(question)
        if answer is None:
            body = self.conductor.ask(self.peer, What.ASK, self.number, more=question)
            answer = self._answers[question] = m.text_of(body)
        return answer or None

    def compile_at(self, pointers: Sequence[Any]) -> Callable[[], object]:
        """Ships nodes of C; what runs them there."""
        number = next(self.conductor.numbers)
        graph = _Graph(self.conductor, self.peer, number)
        nodes = pack(pointers, self._place)
        if len(nodes) > m.MAX_COMMAND:
            raise InvalidArgumentError(
                f"{self.name}: {len(pointers)} nodes are a message of {len(nodes)} bytes, and {m.MAX_COMMAND} are"
                " allowed: cut the graph, or give some nodes to other devices"
            )
        self.conductor.add(self.peer, m.command(What.GRAPH, self.number, number, more=nodes))
        return graph

    def _place(self, pointer: Any) -> tuple[int, int]:
        if lib.gbpy_device_place(pointer, self._handle, self._offset):
            memory = object_of(self._handle[0], Memory)
            if memory.state.device is self:
                return memory.content.number, int(self._offset[0])
        if lib.ggml_nbytes(pointer) == 0:
            return 0, 0
        name = ffi.string(pointer.name).decode("utf-8", "replace")
        raise InvalidArgumentError(
            f"{self.name}: {name!r} does not lie in memory of the device: allocate it there, or let a Scheduler copy it"
        )

    # ----------------------------------------------------------------------------------------------------------- memory

    def alloc(self, nbytes: int) -> RemoteMemory:
        number = next(self.conductor.numbers)
        memory = RemoteMemory(self.peer, number, self.queue)
        self.conductor.alloc(self.peer, self.number, number, nbytes)
        return memory

    def write(self, memory: RemoteMemory, offset: int, data: memoryview) -> None:
        self.conductor.to_rank(self.peer, memory.number, offset, data)

    def read(self, memory: RemoteMemory, offset: int, data: memoryview) -> None:
        """What failed in runs is not told here, but to who waits for these; what this needs and has failed is."""
        conductor, peer = self.conductor, self.peer
        if not len(data):
            return
        arrival = Arrival(data)
        try:
            conductor.to_host(peer, memory.number, offset, arrival)
            conductor.wait(lambda: arrival.done or peer.lost is not None)
        finally:
            if not arrival.done:
                conductor.let_go(arrival)
        if arrival.loss is not None:
            raise conductor.error_of(arrival.loss)
        if not arrival.done:
            conductor.expect_there(peer)

    def fill(self, memory: RemoteMemory, value: int) -> None:
        self.conductor.add(self.peer, m.command(What.FILL, memory.number, value))

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> bool:
        """Of no run: it is made whatever else failed."""
        here, there = self._peer_of(to), self._peer_of(source)
        if here is None or there is None:
            return False
        into, out_of = (m.NO_QUEUE, to.number, to_offset), (m.NO_QUEUE, source.number, offset)
        self.conductor.between(here, into, there, out_of, nbytes)
        return True

    def transfer(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> bool:
        conductor = self.conductor
        here, there = self._peer_of(to), self._peer_of(source)
        if here is not None and there is not None:
            into = (to.queue.number, to.number, to_offset)
            conductor.between(here, into, there, (source.queue.number, source.number, offset), nbytes)
        elif here is not None and isinstance(source, memoryview):
            conductor.to_rank(here, to.number, to_offset, source)
        elif there is not None and isinstance(to, memoryview):
            conductor.to_host(there, source.number, offset, Arrival(to, source.queue))
        else:
            return False
        return True

    def _peer_of(self, content: Any) -> Peer | None:
        if isinstance(content, RemoteMemory) and self.conductor.peers.get(content.peer.number) is content.peer:
            return content.peer
        return None

    def fill_from_file(
        self, memory: RemoteMemory, offset: int, path: str, at: int, nbytes: int, digest: bytes
    ) -> FileFill:
        """Asks the rank to read bytes of a file of its own. Waiting raises FileError where that is another file."""
        conductor, peer = self.conductor, self.peer
        where = memory.number, offset, nbytes
        question = conductor.question(peer, What.FILE, *where, at, digest, more=_path_bytes(path))

        def wait() -> bool:
            try:
                conductor.expect_ok(peer, conductor.answer(peer, question))
            except FileNotFoundError:
                return False
            return True

        fill = FileFill(wait, lambda: conductor.add(peer, m.command(What.KEEP, *where, digest)))
        weakref.finalize(fill, conductor.answers.pop, question, None).atexit = False
        return fill

    # ------------------------------------------------------------------------------------------------------------ queue

    def submit(self, work: Callable[[], None]) -> None:
        work()

    def synchronize(self) -> None:
        self.conductor.settle(self.peer, self.queue)

    def event(self) -> Mark:
        return Mark(self)

    def timed_event(self) -> Mark:
        return Mark(self, timed=True)


def _path_bytes(path: str) -> bytes:
    encoded = path.encode("utf-8", "surrogateescape")
    if len(encoded) > m.MAX_TEXT:
        raise InvalidArgumentError(f"a path of {len(encoded)} bytes is too long for another rank")
    return encoded
