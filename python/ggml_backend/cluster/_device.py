"""A device of another rank, as a device of the scheduler.

All work, copies included, is a command in the queue of the rank (`_host.py`). So only calls that read results
wait. Preparing a split ships its nodes. A run then only sends their number."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from .._base.errors import InvalidArgumentError, StateError, check
from .._base.errors.faults import message_of
from .._ffi import ffi, lib
from ..backend.backend import Backend
from ..devices._nodes import Node
from ..devices.device import Device
from . import _messages as m
from ._host import Conductor, Peer, Place, Question, Queue, arrivals_of
from ._links import Measured
from ._messages import What
from ._nodes import pack

__all__ = ["Mark", "RankDevice", "RemoteMemory", "current"]

current: list[Conductor | None] = [None]
"""The cluster of which this process is rank 0."""


def _left_behind() -> None:
    """After a fork, the child has no cluster. Objects of the parent's cluster raise an error."""
    conductor, current[0] = current[0], None
    if conductor is not None:
        conductor.left_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_left_behind)


class RemoteMemory:
    """Memory on a rank: its number there, and the queue that uses it.

    The object exists before the request, so that the memory is freed even after an interrupt.
    """

    __slots__ = ("__weakref__", "number", "peer", "queue")

    def __init__(self, peer: Peer, number: int, queue: Queue) -> None:
        self.peer = peer
        self.number = number
        self.queue = queue
        weakref.finalize(self, peer.dropped.append, m.command(What.FREE, number)).atexit = False


class _Graph:
    """A graph that a rank has prepared or is about to prepare."""

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
    """A mark in the queue of a rank."""

    def __init__(self, device: RankDevice, timed: bool = False) -> None:
        self._device = device
        self._place: Place = (0, 0)
        self._timed = timed
        self._question: Question | None = None

    def record(self) -> None:
        device = self._device
        conductor, peer = device.conductor, device.peer
        if self._timed:
            self._question = conductor.question(peer, What.MARK)
        with conductor.lock:
            self._place = peer.place

    def synchronize(self) -> None:
        """Waits. Raises earlier failures of the queue, even if another call has raised them."""
        device = self._device
        device.conductor.wait_for(device.peer, device.queue, self._place)

    def wait(self, device: Device) -> None:
        """Makes a device outside the ranks wait, by blocking the host.

        Ranks need not wait for each other's marks (`_host.py`).
        """
        self.synchronize()

    def time(self) -> int:
        """ns on the clock of this process."""
        conductor, question = self._device.conductor, self._question
        if question is None:
            return 0
        found, peer = conductor.answer(question), question.peer
        return int(conductor.fields_of(peer, m.CLOCK, found)[0]) + peer.clock


_SIZES = 256  # node lists whose scratch size a device caches


def _size_here(cpu: Backend, pointers: Sequence[Any]) -> int:
    graph, size = ffi.new("struct ggml_cgraph *"), ffi.new("size_t *")
    nodes = ffi.new("struct ggml_tensor *[]", list(pointers) or 1)
    graph.size = graph.n_nodes = len(pointers)
    graph.nodes = nodes
    core = cpu._live()
    check(lib.gbpy_graph_work_size(core.ptr, graph, size))
    return int(size[0])


_numbers = itertools.count()  # numbers of devices, never reused


class RankDevice(Measured, Device):
    """A backend of another rank. Made by :meth:`Cluster.backends`, or ``gb.Backend("MPI1:CPU")``."""

    memory = "own"
    in_order = True
    rank = 0
    _ordered = True  # the cluster orders events of ranks, so no rank waits for an event of another one
    _at_once = True  # submit calls the work at once, and the work only queues commands
    _bounded = True  # after a cancelled call, its functions return soon

    def __init__(self, **backend: Any) -> None:
        conductor = current[0]
        kind = f"MPI{self.rank}"
        if conductor is None or self.rank not in conductor.peers:
            raise StateError(f"{kind}: no open cluster has this rank; gb.cluster.start() starts a cluster")
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
        self.alignment, largest, name = conductor.open(
            peer, self.number, f"{names[0]}:{options}" if options else names[0]
        )
        self.max_nbytes = largest if largest < 2**63 - 1 else None
        self.name = f"{kind}:{name}"[:63]
        self._is_cpu = name == "CPU"
        self._answers: dict[bytes, str] = {}
        self._sizes: dict[bytes, int] = {}  # bytes of scratch memory by node list

    @classmethod
    def missing(cls) -> str | None:
        conductor = current[0]
        if conductor is None or cls.rank not in conductor.peers:
            return "no open cluster has this rank; gb.cluster.start() starts a cluster"
        return conductor.peers[cls.rank].lost

    # -------------------------------------------------------------------------------------------------------- operators

    def refuses_at(self, pointer: Any, node: Node) -> str | None:
        """The reason why the rank does not compute a C node; None if it does.

        The answer is cached for equal nodes. For a CPU rank, this process's CPU answers, because it has the
        same version.
        """
        if node._function is not None or node.op.startswith("map_"):
            return "a Python function cannot run on another rank"
        if self._is_cpu:
            core = self.conductor.cpu._live()
            found = lib.ggml_backend_unsupported_reason(core.ptr, pointer)
            return message_of(found) or None
        question = pack([pointer], ffi.NULL)
        answer = self._answers.get(question)
        if answer is None:
            body = self.conductor.ask(self.peer, What.ASK, self.number, more=question)
            answer = self._answers[question] = m.text_of(body)
        return answer or None

    def work_size_at(self, pointers: Sequence[Any]) -> int:
        """Bytes of scratch memory that the rank needs for C nodes.

        The answer is cached for equal lists. If the rank's CPU equals this one, the rank is not asked.
        """
        question = pack(pointers, ffi.NULL)
        size = self._sizes.get(question)
        if size is None:
            alike = self.conductor.cpu_like(self.peer) if self._is_cpu else None
            size = self._asked_size(question) if alike is None else _size_here(alike, pointers)
            self._sizes[question] = size
            if len(self._sizes) > _SIZES:
                self._sizes.pop(next(iter(self._sizes)))
        return size

    def _asked_size(self, question: bytes) -> int:
        if len(question) > m.MAX_COMMAND:
            return 0  # compile_at raises the error: the list is too long
        conductor, peer = self.conductor, self.peer
        body = conductor.ask(peer, What.WORK, self.number, more=question)
        conductor.expect_ok(peer, body)
        return int(conductor.fields_of(peer, m.CLOCK, body[m.ANSWER_STATUS.size :])[0])

    def compile_at(self, pointers: Sequence[Any]) -> Callable[[], object]:
        """Ships C nodes to the rank. Returns the function that runs them there."""
        number = next(self.conductor.numbers)
        graph = _Graph(self.conductor, self.peer, number)
        nodes = pack(pointers, ffi.cast("void *", self._state.handle))
        if len(nodes) > m.MAX_COMMAND:
            raise InvalidArgumentError(
                f"{self.name}: {len(pointers)} nodes need a message of {len(nodes)} bytes, more than {m.MAX_COMMAND}:"
                " split the graph, or assign some nodes to other devices"
            )
        self.conductor.add(self.peer, m.command(What.GRAPH, self.number, number, more=nodes))
        return graph

    # ----------------------------------------------------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> RemoteMemory:
        number = next(self.conductor.numbers)
        memory = RemoteMemory(self.peer, number, self.queue)
        self.conductor.allocate(self.peer, self.number, number, nbytes)
        return memory

    @staticmethod
    def memory_number(memory: RemoteMemory) -> int:
        return memory.number

    def write(self, memory: RemoteMemory, offset: int, data: memoryview) -> None:
        self.conductor.to_rank(self.peer, memory.number, offset, data)

    def read(self, memory: RemoteMemory, offset: int, data: memoryview) -> None:
        """Raises only failures of work that this read depends on. The calls that wait for runs raise others."""
        conductor, peer = self.conductor, self.peer
        if not len(data):
            return
        arrivals = arrivals_of(data)
        try:
            conductor.to_host(peer, memory.number, offset, arrivals)
            conductor.wait(lambda: all(a.done for a in arrivals) or peer.lost is not None)
        finally:
            if not all(a.done for a in arrivals):
                conductor.let_go(*arrivals)
        for arrival in arrivals:
            if arrival.loss is not None:
                raise conductor.error_of(arrival.loss)
        if not all(a.done for a in arrivals):
            conductor.expect_there(peer)

    def fill(self, memory: RemoteMemory, value: int) -> None:
        self.conductor.add(self.peer, m.command(What.FILL, memory.number, value))

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> bool:
        """A copy outside any run. Failures of runs do not prevent it."""
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
            into, out_of = (to.queue.number, to.number, to_offset), (source.queue.number, source.number, offset)
            conductor.between(here, into, there, out_of, nbytes)
        elif here is not None and isinstance(source, memoryview):
            conductor.to_rank(here, to.number, to_offset, source)
        elif there is not None and isinstance(to, memoryview):
            conductor.to_host(there, source.number, offset, arrivals_of(to, source.queue))
        else:
            return False
        return True

    def _peer_of(self, content: Any) -> Peer | None:
        if isinstance(content, RemoteMemory) and self.conductor.peers.get(content.peer.number) is content.peer:
            return content.peer
        return None

    def fill_from_file(
        self, memory: RemoteMemory, offset: int, path: str, at: int, nbytes: int, digest: bytes
    ) -> Callable[[], bool]:
        """Asks the rank to read bytes of its own file. Waiting raises FileError if that file differs."""
        conductor, peer = self.conductor, self.peer
        question = conductor.question(
            peer, What.FILE, memory.number, offset, nbytes, at, digest, more=_path_bytes(path)
        )

        def wait() -> bool:
            if lib.gbpy_device_given_up():
                raise StateError(f"{peer.who}: reading {path} was interrupted")
            return conductor.expect_ok(peer, conductor.answer(question), of_file=True)

        return wait

    def keep_file(self, memory: RemoteMemory, offset: int, nbytes: int, digest: bytes) -> None:
        self.conductor.add(self.peer, m.command(What.KEEP, memory.number, offset, nbytes, digest))

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
