"""Costs of work on other ranks: measured for links and devices, cached on disk, and found by ``Costs.cached``.

Links are measured between devices, with the commands that runs use. So the time of a device to read
and write its memory counts. Round trips of small messages give the latency. Bursts of large
messages give the rate of each direction: the receiver's clock measures the time between the first
and the last. These messages do not pass through rank 0. Ranks of one host, and devices of one kind,
count as equal: one pair of each two kinds is measured.

The costs are in one file for each version, beside the costs of devices. The key of a link is its
two ends and the kind of connection.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .._base.errors import InvalidArgumentError, expect, expect_bool, expect_function, expect_list
from .._base.files import read_text, write_text
from .._base.text import line
from .._base.timing import median
from .._ffi import lib
from ..backend.backend import Backend
from ..backend.buffer import text
from ..sched._calibrate import calibrate
from ..sched._costs import CopyCost, Costs, DeviceCosts, cache_folder, copy_of, read_costs
from ._host import Conductor, Peer

__all__ = ["Measured", "calibrate_cluster"]

FORMAT = 1
_SMALL, _FIRST, _LARGEST = 16, 64 << 10, 4 << 20  # bytes of messages
_BURST, _BURSTS = 8, 3  # large messages in a burst, and number of bursts
_LONG = 0.02  # seconds that a large message should take; after a round trip of this length, few round trips are made

Seconds = Callable[[int], float]
"""Seconds of one message in a sequence of messages of so many bytes."""


class Measured:
    """The part of ``RankDevice`` that measures costs."""

    conductor: Conductor
    peer: Peer
    name: str
    _remote = True  #: work is timed on the clock of the rank

    @property
    def end(self) -> str:
        """The key of devices with equal costs."""
        facts = self.peer.facts
        cores, threads = facts.get("cores"), facts.get("threads")
        kind = self.name.partition(":")[2]
        return f"{kind} of {facts.get('host')}, {facts.get('processor')}, {cores} cores, {threads or cores} threads"

    @property
    def _cost_name(self) -> str:
        """The key of its file of costs, which include copies from and to rank 0."""
        connection = self.conductor.transport.connection(0, self.peer.number)
        return f"{self.end}; from {self.conductor.facts.get('host')}, {connection}"

    def link_name(self, other: Measured) -> str:
        """The key of the link to another device."""
        return f"{self.end} -> {other.end}; {self.conductor.transport.connection(self.peer.number, other.peer.number)}"

    def _kept_links(self) -> dict[str, CopyCost]:
        """Known costs by names of links."""
        return read_links()

    def _measure_copies(self) -> tuple[CopyCost, CopyCost]:
        """Costs of copies from memory of rank 0 and to it: the time of several copies without the
        round trip at their end."""
        trips = [self.conductor.ping(self.peer)[0] for _ in range(3)]
        trips = trips if median(trips) > _LONG else [self.conductor.ping(self.peer)[0] for _ in range(15)]
        trip, memory, data = median(trips), self._device.allocate(_LARGEST), memoryview(bytearray(_BURST * _LARGEST))

        def seconds(copy: Callable[[int, int], object]) -> Seconds:
            def taken(nbytes: int) -> float:
                begin = time.perf_counter()
                for k in range(_BURST):
                    copy(k, nbytes)
                self._device.synchronize()
                took = time.perf_counter() - begin
                return max(took - trip, took / 100) / _BURST

            return taken

        there = seconds(lambda k, n: self._device.transfer(memory, 0, data[:n], 0, n))
        back = seconds(lambda k, n: self._device.transfer(data[k * n : (k + 1) * n], 0, memory, 0, n))
        return CopyCost(trip / 2 * 1e6, _rate(there)), CopyCost(trip / 2 * 1e6, _rate(back))

    def measure_link(self, other: Measured) -> tuple[CopyCost, CopyCost]:
        """Costs of copies to another device and back."""
        mine, its = self._device.allocate(_LARGEST), other._device.allocate(_LARGEST)

        def trips(count: int) -> list[float]:
            marks = [self._mark()]
            for _ in range(count):
                self._device.transfer(its, 0, mine, 0, _SMALL)
                self._device.transfer(mine, 0, its, 0, _SMALL)
                marks.append(self._mark())
            return [(b - a) / 1e9 for a, b in itertools.pairwise([mark.time() for mark in marks])]

        def seconds(end: Measured, to: Any, source: Any) -> Seconds:
            def taken(nbytes: int) -> float:
                marks = []
                for _ in range(_BURST):
                    self._device.transfer(to, 0, source, 0, nbytes)
                    marks.append(end._mark())
                return float(max(marks[-1].time() - marks[0].time(), 1)) / 1e9 / (_BURST - 1)

            return taken

        found = trips(3)
        found = found if median(found) > _LONG else trips(21)
        us = median(found) / 2 * 1e6
        costs = CopyCost(us, _rate(seconds(other, its, mine))), CopyCost(us, _rate(seconds(self, mine, its)))
        for device in (self._device, other._device):
            device.synchronize()  # raises failures
        return costs

    def _mark(self) -> Any:
        mark = self._device.timed_event()
        mark.record()
        return mark

    @property
    def _device(self) -> Any:
        return self


def _rate(seconds: Seconds) -> float:
    """Bytes a microsecond. If the link is fast, it is measured again with larger messages."""
    nbytes = _FIRST
    while True:
        rate = nbytes / median(seconds(nbytes) for _ in range(_BURSTS))
        size = min(_LARGEST, 1 << max(0, int(math.log2(max(rate * _LONG, 1)))))
        if size <= 2 * nbytes:
            return rate / 1e6
        nbytes = size


# ------------------------------------------------------------------------------------------------------------- the file


def links_file() -> Path:
    key = hashlib.sha256(f"{FORMAT}\n{text(lib.gbpy_version())}".encode()).hexdigest()[:16]
    return cache_folder() / f"links-{key}.json"


def read_links() -> dict[str, CopyCost]:
    """Cached link measurements by name. Invalid entries are ignored with a warning."""
    path = links_file()
    try:
        data = json.loads(read_text(path))
        if not isinstance(data, dict) or not isinstance(data.get("links"), dict):
            raise ValueError("it holds no links")
        return {name: copy_of(value, "links") for name, value in data["links"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        message = f"{line(path)} is invalid and ignored: {line(error, 200)}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return {}


def write_links(links: dict[str, CopyCost]) -> None:
    path = links_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {k: {"launch_us": c.launch_us, "bytes_per_us": c.bytes_per_us} for k, c in sorted(links.items())}
    data = {"format": FORMAT, "version": text(lib.gbpy_version()), "links": plain}
    write_text(path, json.dumps(data, indent=1), regular=True)


# ----------------------------------------------------------------------------------------------------------- a cluster


def calibrate_cluster(
    backends: Sequence[Backend],
    size: int,
    seconds: float,
    force: bool,
    progress: Callable[[int, int, str], None] | None,
) -> Costs:
    """Implements :meth:`Cluster.calibrate`."""
    given = expect_list(backends, "Cluster.calibrate: backends", "backends")
    for b in given:
        expect(b, Backend, "Cluster.calibrate: each backend")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise InvalidArgumentError(f"Cluster.calibrate: seconds must be more than 0, not {seconds!r:.40}")
    force = expect_bool(force, "Cluster.calibrate: force")
    if progress is not None:
        expect_function(progress, "Cluster.calibrate: progress")
    tell = progress or (lambda done, total, what: None)
    until = time.monotonic() + seconds
    links = _Links(given, force)
    steps = len(given) + len(links.open)
    devices: list[DeviceCosts] = []
    done: dict[str, DeviceCosts] = {}
    for i, backend in enumerate(given):
        tell(i, steps, backend.name)
        name = getattr(backend.device, "_cost_name", backend.name)
        if name not in done:
            kept = None if force else read_costs(backend)
            done[name] = kept or calibrate(backend, size=size)
        devices.append(done[name])
    for i, what in enumerate(links.measure(until)):
        tell(len(given) + i, steps, what)
    tell(steps, steps, "")
    return Costs(devices, links.copies())


class _Links:
    """The links between devices of ranks. ``open``: names of the links to measure, with a pair of
    devices for each."""

    def __init__(self, backends: Sequence[Backend], force: bool) -> None:
        self.devices: list[tuple[int, Measured]] = [
            (i, b.device) for i, b in enumerate(backends) if isinstance(b.device, Measured)
        ]
        self.known = {} if force or not self.devices else read_links()
        self.open: dict[str, tuple[Measured, Measured]] = {}
        for (_, a), (_, b) in self._pairs():
            name = a.link_name(b)
            if name not in self.known and b.link_name(a) not in self.open:
                self.open.setdefault(name, (a, b))

    def _pairs(self) -> Iterator[Any]:
        """The order of pairs: neighbours first, because work passes from each device to the next."""
        n = len(self.devices)
        for step in range(1, n):
            for k in range(n):
                yield self.devices[k], self.devices[(k + step) % n]

    def measure(self, until: float) -> Iterator[str]:
        """Measures, and stores the results even if it is interrupted. Pairs beyond the time limit are skipped."""
        found: dict[str, CopyCost] = {}
        try:
            for a, b in list(self.open.values()):
                if time.monotonic() > until:
                    break
                yield f"{a.name} - {b.name}"
                found[a.link_name(b)], found[b.link_name(a)] = a.measure_link(b)
        finally:
            self.known.update(found)
            if found:
                with contextlib.suppress(OSError):
                    write_links({**read_links(), **found})

    def copies(self) -> dict[tuple[int, int], CopyCost]:
        """The costs by positions of the backends, without pairs that were not measured."""
        return {(i, j): self.known[name] for (i, a), (j, b) in self._pairs() if (name := a.link_name(b)) in self.known}
