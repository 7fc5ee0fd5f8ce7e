"""Ranks of an MPI job as devices of the scheduler.

Every rank runs the same script. ``gb.cluster.start()`` returns on rank 0. The other ranks serve in it until rank 0
leaves, and then exit::

    with gb.cluster.start() as cluster:
        remote = cluster.backends()                   # [<Backend 'MPI1:CPU'>, <Backend 'MPI2:CPU'>]
        sched = gb.Scheduler([*remote, gb.Backend("CPU")])

Without ``mpiexec`` the same script runs, without remote devices. docs/CLUSTER.md begins with a five-minute
tutorial on one machine.

The modules describe the implementation: ``_messages.py`` and ``_nodes.py`` the format of messages,
``_transport.py`` and ``_mpi.py`` their transport, ``_host.py`` and ``_device.py`` rank 0, and ``_worker.py`` the
other ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .._base.errors import DeviceLostError, GgmlError, InvalidArgumentError, StateError, expect_path
from .._base.errors.messages import made_by
from .._base.handles import Owner
from .._base.renamed import Renamed, warn_of
from .._ffi import ffi, lib
from ..backend.backend import Backend
from ..devices.device import register_device
from ..sched._calibrate import check_size
from ..sched._costs import Costs
from ._device import RankDevice, current
from ._host import Conductor, Peer
from ._links import calibrate_cluster
from ._transport import Killed, LocalNetwork, Transport, no_raw_errors, start_thread
from ._worker import Worker, facts

if TYPE_CHECKING:
    from .planning.describe import Description

__all__ = [
    "Cluster", "Description", "LocalNetwork", "Options", "Rank", "dismiss", "rank_of_process", "simulated", "start",
]  # fmt: skip

_version: str = ffi.string(lib.gbpy_version()).decode()


@dataclass(frozen=True)
class Options:
    """The options of a cluster; see ``gb.cluster.start()``."""

    deadline: float = 30.0
    heartbeat: float = 1.0
    cache: str | None = None
    n_threads: int | None = None


@dataclass(frozen=True)
class Rank:
    """One process of a cluster: a snapshot of its state."""

    number: int
    host: str
    pid: int
    cores: int  #: processor cores that the process may use
    memory: int  #: bytes of memory of its host
    backends: tuple[str, ...]
    version: str
    lost: str | None  #: the reason why it is unusable; None if it is usable


class Cluster(Owner):
    """The other ranks and their devices. ``gb.cluster.start()`` returns it on rank 0.

    It is a context manager. At the end of the block, or on :meth:`close`, the other ranks exit.
    """

    def __init__(self, conductor: Any = None) -> None:
        if conductor is not None:
            made_by(conductor, Conductor, "Cluster", "gb.cluster.start()")
        self._conductor: Conductor | None = conductor
        self._workers: list[Worker] = []  # of a simulated cluster
        self._closed = False  # for a cluster without other ranks
        self._facts: dict[str, Any] = facts(_version) if conductor is None else conductor.facts

    @property
    def n_ranks(self) -> int:
        """The number of ranks, this one included."""
        return 1 if self._conductor is None else self._conductor.transport.size

    size: ClassVar[Renamed] = Renamed("n_ranks")

    @property
    def ranks(self) -> list[Rank]:
        """All ranks. This rank is the first."""
        peers = [] if self._conductor is None else list(self._conductor.peers.values())
        return [_rank(0, self._facts, None), *(_rank(p.number, p.facts, p) for p in peers)]

    def backends(self, kind: str | None = None) -> list[Backend]:
        """The usable devices of the other ranks, ``MPI<rank>:<backend>``, in rank order.

        By default these are the accelerators of a rank, or its CPU if it has none.

        kind: only the backends of this name, for example ``"CPU"``
        """
        self._expect_open()
        found = []
        for peer in self._living():
            names = peer.facts["backends"]
            if kind is None:
                chosen = [n for n in names if n != "CPU"] or names
            else:
                chosen = [n for n in names if n.upper() == kind.upper()]
            found += [Backend(f"MPI{peer.number}:{name}") for name in chosen]
        if kind is not None and not found and self.n_ranks > 1:
            known = sorted({n for p in self._living() for n in p.facts["backends"]})
            raise InvalidArgumentError(f"cluster: no rank has a backend {kind!r}; there are {', '.join(known)}")
        return found

    def _living(self) -> list[Peer]:
        return [] if self._conductor is None else list(self._conductor.living())

    def _lost(self, rank: int) -> bool:
        return self._conductor is None or self._conductor.peers[rank].lost is not None

    def ping(self, rank: int, times: int = 20) -> float:
        """The shortest of several round-trip times to a rank, in seconds."""
        conductor, peer = self._peer(rank)
        return min(conductor.ping(peer)[0] for _ in range(times))

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent to the other ranks: commands, graphs and data."""
        return 0 if self._conductor is None else self._conductor.sent_bytes

    def calibrate(
        self,
        backends: Sequence[Backend],
        *,
        size: int = 768,
        seconds: float = 300.0,
        force: bool = False,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> Costs:
        """Measures devices and the links between ranks, and caches the results on disk.

        Cached results are not measured again. Pass the result to ``Scheduler(backends, policy="cost",
        costs=...)``. Later schedulers find it in the cache. The cluster should be idle meanwhile.

        backends: backends of ranks, and others of this process
        size: size of the matrices to measure, as in :func:`calibrate`
        seconds: time limit. Links that are not measured by then cost as much as a copy through rank 0
        force: measure again, ignoring the cache
        progress: called with the number of measurements done, their total, and the next one
        """
        check_size(size)
        return calibrate_cluster(backends, size, seconds, force, progress)

    def describe(self, backends: Sequence[Backend], costs: Costs) -> Description:
        """A description of the cluster, for planning models without the cluster:
        ``describe(...).write("c.toml")``.

        backends, costs: the arguments and the result of :meth:`calibrate`. Each rank becomes a
        host, ``rank1``. The slower direction of a link counts. The memory of a host is divided
        among its ranks and their devices.
        """
        from .planning.measured import described

        return described(backends, costs, self._facts)

    def set_clocks(self) -> None:
        """Synchronizes the clocks of the ranks with this rank's clock, for traces.

        The cluster does this once at its start. Clocks drift by some microseconds per second.
        """
        if self._conductor is not None:
            self._conductor.set_clocks()

    def _peer(self, rank: int) -> tuple[Conductor, Peer]:
        self._expect_open()
        conductor = self._conductor
        if conductor is None or rank not in conductor.peers:
            raise InvalidArgumentError(
                f"cluster: there is no rank {rank} beside this one; ranks are 0 to {self.n_ranks - 1}"
            )
        return conductor, conductor.peers[rank]

    def close(self) -> None:
        """Makes the other ranks exit. Their devices are then unusable. Closing twice is fine."""
        conductor = self._conductor
        self._closed = True
        if conductor is None or conductor.closed:
            return
        if current[0] is conductor:
            current[0] = None
        conductor.close()
        conductor.transport.close()

    @property
    def closed(self) -> bool:
        return self._closed if self._conductor is None else self._conductor.closed

    def _expect_open(self) -> None:
        if self.closed:
            raise StateError("the cluster is closed")

    def __enter__(self) -> Cluster:
        self._expect_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<Cluster closed>"
        return f"<Cluster of {self.n_ranks} rank{'s' if self.n_ranks > 1 else ''}>"


def _rank(number: int, facts: dict[str, Any], peer: Peer | None) -> Rank:
    lost = None if peer is None else peer.lost
    return Rank(
        number, str(facts.get("host")), int(facts.get("pid", 0)), int(facts.get("cores", 0)),
        int(facts.get("memory", 0)), tuple(facts.get("backends", ())), str(facts.get("version")), lost,
    )  # fmt: skip


def _started(transport: Transport, options: Options) -> Cluster:
    """Starts rank 0. The other ranks serve, or start to serve at the same time."""
    if current[0] is not None:
        raise StateError("cluster: a cluster is already open; close() it first")
    conductor = Conductor(transport, _version, options)
    try:
        conductor.greet()
        for rank in conductor.peers:
            register_device(f"MPI{rank}", type(f"Rank{rank}", (RankDevice,), {"rank": rank}), replace=True)
        conductor.set_clocks()
    except BaseException:
        conductor.close()
        raise
    current[0] = conductor
    return Cluster(conductor)


def _options(
    deadline: float,
    heartbeat: float | None,
    cache: str | os.PathLike[str] | None,
    n_threads: int | None,
    threads: int | None,
) -> Options:
    if threads is not None:
        warn_of("cluster: threads", "n_threads", stacklevel=4)
        n_threads = threads
    for name, value in (("deadline", deadline), ("heartbeat", heartbeat)):
        if (value is not None or name == "deadline") and (
            isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0
        ):
            raise InvalidArgumentError(f"cluster: {name} must be seconds, more than 0, not {value!r}")
    if n_threads is not None and (isinstance(n_threads, bool) or not isinstance(n_threads, int) or n_threads < 1):
        raise InvalidArgumentError(f"cluster: n_threads must be a number from 1 up, not {n_threads!r}")
    if cache is not None:
        expect_path(cache, "cluster: cache")
        cache = os.path.abspath(os.fsdecode(cache))
    if heartbeat is None:
        heartbeat = min(1.0, deadline / 4)
    if heartbeat > deadline / 2:
        raise InvalidArgumentError(
            f"cluster: heartbeat, {heartbeat} s, must be at most half of the deadline, {deadline} s"
        )
    return Options(float(deadline), float(heartbeat), cache, n_threads)


def start(
    *,
    deadline: float = 30.0,
    heartbeat: float | None = None,
    cache: str | os.PathLike[str] | None = None,
    n_threads: int | None = None,
    threads: int | None = None,
) -> Cluster:
    """Starts the cluster of the MPI job of this process.

    On rank 0 it returns a :class:`Cluster`. Every other rank serves in this call, and exits with status 0
    when rank 0 has left. Without ``mpiexec``, or with one process, the cluster has no other ranks, and
    MPI need not be installed.

    deadline: a rank that owes an answer and is silent for this many seconds is lost
    heartbeat: seconds between two heartbeats of a busy rank; default: a quarter of the deadline, at most 1
    cache: folder in which ranks keep received weights by their hash; default: no cache
    n_threads: CPU threads of each rank; default: its cores, divided among the ranks of its host
    threads: the old name of ``n_threads``

    Raises :class:`UnsupportedError` if ``mpiexec`` started the job and MPI is unusable,
    :class:`StateError` for a rank of another version or byte order, and :class:`DeviceLostError` for a rank that
    does not arrive.
    """
    options = _options(deadline, heartbeat, cache, n_threads, threads)
    from . import _mpi

    with no_raw_errors("cluster"):
        transport = _mpi.connect(options.deadline)
    if transport is None:
        return Cluster(None)
    if options.n_threads is None:
        cores = len(os.sched_getaffinity(0))
        options = Options(options.deadline, options.heartbeat, options.cache, max(1, cores // transport.ranks_of_host))
    if transport.rank == 0:
        try:
            with no_raw_errors("cluster"):
                found = _started(transport, options)
        except BaseException:
            transport.close()
            raise
        atexit.register(found.close)  # without this, ranks would wait for a script that does not close the cluster
        return found
    with no_raw_errors(f"rank {transport.rank}"):
        worker = Worker(transport, _version, options)
    _mpi.serve(worker)
    raise SystemExit(0)


def rank_of_process(deadline: float = 30.0) -> int:
    """The rank of this process in its MPI job; 0 without a job.

    The process ends if MPI has not started within ``deadline`` seconds.
    """
    from . import _mpi

    return _mpi.rank(deadline)


def dismiss() -> None:
    """Ends waiting ranks. Call it on a rank 0 that has not called ``gb.cluster.start()`` and never will."""
    from . import _mpi

    _mpi.dismiss()


@contextlib.contextmanager
def simulated(
    ranks: int,
    *,
    deadline: float = 30.0,
    heartbeat: float | None = None,
    cache: str | os.PathLike[str] | None = None,
    n_threads: int | None = 1,
    delay: float = 0.0,
    rate: float | None = None,
    jitter: float = 0.0,
    seed: int = 0,
    network: LocalNetwork | None = None,
    threads: int | None = None,
) -> Iterator[Cluster]:
    """A cluster inside this process, with threads as the other ranks. Use it for tests and network experiments.

    ranks: number of ranks, rank 0 included
    delay: seconds from rank to rank; rate: bytes per second of each link; jitter: maximum random extra delay in
        seconds, by ``seed``
    network: your own network, whose links you can cut and whose ranks you can stop (:class:`LocalNetwork`)

    Other options are those of ``gb.cluster.start()``. Raises :class:`AllocationError` if the system cannot
    start a thread for a rank.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= 1024:
        raise InvalidArgumentError(f"simulated: ranks must be 1 to 1024, not {ranks!r}")
    options = _options(deadline, heartbeat, cache, n_threads, threads)
    if network is not None and not isinstance(network, LocalNetwork):
        raise TypeError(f"simulated: network must be a LocalNetwork, not {type(network).__name__}")
    network = network or LocalNetwork(ranks, delay=delay, rate=rate, jitter=jitter, seed=seed)
    running: list[threading.Thread] = []
    failures: list[GgmlError] = []  # of ranks that could not start
    found: Cluster | None = None
    try:
        with no_raw_errors(f"simulated({ranks})"):
            workers = [Worker(network.transport(r), _version, options) for r in range(1, ranks)]
            for worker in workers:
                running.append(start_thread(_serve, f"rank {worker.transport.rank}", worker, network, failures))
            try:
                found = _started(network.transport(0), options)
            except DeviceLostError:
                if failures:
                    raise failures[0] from None
                raise
        found._workers = workers
        yield found
    finally:
        if found is not None:
            found.close()
        _end(running, network, found, options.deadline)


def _end(running: list[threading.Thread], network: LocalNetwork, found: Cluster | None, seconds: float) -> None:
    """Waits for simulated ranks. Kills lost ranks, and ranks that do not end within ``seconds``."""
    for thread in running:
        thread.join(0.0 if found is None else 0.5)
    for rank, thread in enumerate(running, 1):
        if thread.is_alive() and (found is None or found._lost(rank)):
            network.kill(rank)  # a lost rank receives no messages
    until = time.monotonic() + seconds
    for rank, thread in enumerate(running, 1):
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            network.kill(rank)
            thread.join(10)


def _serve(worker: Worker, network: LocalNetwork, failures: list[GgmlError]) -> None:
    rank = worker.transport.rank
    try:
        with no_raw_errors(f"rank {rank}"):
            worker.serve()
    except (Killed, StateError):
        pass
    except GgmlError as error:
        failures.append(error)
        network.kill(rank)  # so that rank 0 does not wait for it


if not TYPE_CHECKING:

    def __getattr__(name):
        if name == "Description":
            from .planning.describe import Description

            return Description
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    class _Module(types.ModuleType):
        """Until the next release, ``gb.cluster()`` starts a cluster as well."""

        def __call__(self, **options):
            warn_of("gb.cluster()", "gb.cluster.start()")
            return start(**options)

    sys.modules[__name__].__class__ = _Module
