"""Simulates passes through a placement on a described cluster, event by event.

The simulation follows the actions of the ranks. It shares no formulas with ``layers.py``. Rank 0
starts a pass: it needs some time for each stage, and sends the stage a command. A rank executes
commands in order of arrival, even if data of a later command arrive first. It computes for the time
of its nodes, with random jitter, and sends the result to the next stage. A link carries one message
at a time and delivers in order, so a lost packet delays later messages. When the result is back at
rank 0, the next pass of the sequence begins.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._base.errors import InvalidArgumentError
from .describe import PACKET, Description, Link
from .layers import LayerModel, Placement

__all__ = ["Simulated", "simulate"]

COMMAND = 300  # bytes of the command that runs a graph on a rank


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation."""

    rate: float  #: passes a second over all sequences
    once: float  #: mean seconds of a pass
    seconds: float  #: seconds from the first start to the last end
    busy: dict[str, float]  #: share of the time for which each part worked
    waits: int  #: messages with retransmitted packets


class _Clock:
    """The event queue."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = itertools.count()

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._heap, (when, next(self._number), what, arguments))

    def run(self) -> None:
        while self._heap:
            self.now, _, what, arguments = heapq.heappop(self._heap)
            what(*arguments)


class _Wire:
    """One direction of a link."""

    def __init__(self, clock: _Clock, link: Link, random: np.random.Generator) -> None:
        self.clock, self.link, self.random = clock, link, random
        self.free = self.latest = self.worked = 0.0
        self.waits = 0

    def send(self, nbytes: int, arrived: Callable[..., None], *arguments: Any) -> None:
        start = max(self.clock.now, self.free)
        self.free = start + nbytes / self.link.bandwidth
        self.worked += self.free - start
        late, lost = 0.0, math.ceil(nbytes / PACKET) if self.link.loss else 0
        while lost and (lost := int(self.random.binomial(lost, self.link.loss))):
            late += self.link.retransmit
        self.waits += late > 0
        self.latest = max(self.latest, self.free + self.link.latency + late)
        self.clock.at(self.latest, arrived, *arguments)


class _Rank:
    """A rank that computes a stage."""

    def __init__(self, clock: _Clock, seconds: float, spread: Callable[[], float], done: Callable[[int], None]) -> None:
        self.clock, self.seconds, self.spread, self.done = clock, seconds, spread, done
        self.commands: deque[int] = deque()
        self.there: set[int] = set()
        self.works = False
        self.worked = 0.0

    def command(self, number: int) -> None:
        self.commands.append(number)
        self.look()

    def data(self, number: int) -> None:
        self.there.add(number)
        self.look()

    def look(self) -> None:
        if self.works or not self.commands or self.commands[0] not in self.there:
            return
        self.works = True
        seconds = self.seconds * self.spread()
        self.worked += seconds
        self.clock.at(self.clock.now + seconds, self.finish)

    def finish(self) -> None:
        number = self.commands.popleft()
        self.there.discard(number)
        self.works = False
        self.done(number)
        self.look()


class _Run:
    """A pipeline with several sequences, each of which makes ``passes`` passes."""

    def __init__(
        self, model: LayerModel, placement: Placement, cluster: Description, passes: int, jitter: float, seed: int
    ) -> None:
        self.clock, self.random = _Clock(), np.random.default_rng(seed)
        self.model, self.placement, self.cluster, self.passes, self.jitter = model, placement, cluster, passes, jitter
        stages = placement.stages
        self.sizes = [model.sent, *(model.units[s.end - 1].carry for s in stages[:-1]), model.returned]
        home = [cluster.from_rank0(s.device) for s in stages]
        between = [cluster.link(a.device, b.device) for a, b in itertools.pairwise(stages)]
        self.wires = [self._wire(link) for link in (home[0], *between, home[-1])]
        self.commands = [self.wires[0], *(self._wire(link) for link in home[1:])]
        self.ranks = [_Rank(self.clock, self._seconds(k), self._spread, self._sender(k)) for k in range(len(stages))]
        self.issued_until = self.issued = 0.0
        self.begun: dict[int, float] = {}  # start times of pending passes
        self.left: dict[int, int] = {}  # passes left of each sequence
        self.sequence_of: dict[int, int] = {}
        self.ends: list[tuple[float, float]] = []  # start and end times of passes
        self._numbers = itertools.count()

    def _wire(self, link: Link) -> _Wire:
        return _Wire(self.clock, link, self.random)

    def _seconds(self, stage: int) -> float:
        s = self.placement.stages[stage]
        kind = self.cluster.devices[s.device].kind
        return sum(kind.seconds(n.dtype, n.bytes, n.flops) for u in self.model.units[s.begin : s.end] for n in u.nodes)

    def _spread(self) -> float:
        return 1.0 if not self.jitter else float(self.random.uniform(1 - self.jitter, 1 + self.jitter))

    def begin(self, sequence: int) -> None:
        """Rank 0 starts the next pass of a sequence."""
        number = next(self._numbers)
        self.begun[number], self.sequence_of[number] = self.clock.now, sequence
        self.issued_until = max(self.issued_until, self.clock.now)
        for stage in range(len(self.ranks)):
            self.issued_until += self.cluster.issue
            self.issued += self.cluster.issue
            self.clock.at(self.issued_until, self._issue, stage, number)

    def _issue(self, stage: int, number: int) -> None:
        self.commands[stage].send(COMMAND, self.ranks[stage].command, number)
        if stage == 0:
            self.wires[0].send(self.sizes[0], self.ranks[0].data, number)

    def _sender(self, stage: int) -> Callable[[int], None]:
        def send(number: int) -> None:
            last = stage + 1 == len(self.ranks)
            self.wires[stage + 1].send(self.sizes[stage + 1], self._end if last else self.ranks[stage + 1].data, number)

        return send

    def _end(self, number: int) -> None:
        self.ends.append((self.begun.pop(number), self.clock.now))
        sequence = self.sequence_of.pop(number)
        self.left[sequence] -= 1
        if self.left[sequence]:
            self.begin(sequence)

    def run(self, sequences: int) -> Simulated:
        self.left = dict.fromkeys(range(sequences), self.passes)
        for sequence in range(sequences):
            self.clock.at(0.0, self.begin, sequence)
        self.clock.run()
        ends = [e for _, e in self.ends]
        count = len(ends)
        first, last = (count // 4, count - sequences) if count >= 4 * sequences else (0, count - 1)
        counted = ends[first : last + 1]  # without the passes that fill and drain the pipeline
        rate = (len(counted) - 1) / (counted[-1] - counted[0]) if len(counted) > 1 else count / ends[-1]
        names = [self.cluster.devices[s.device].name for s in self.placement.stages]
        parts = {f"computing on {n}": r.worked for n, r in zip(names, self.ranks, strict=True)}
        for (a, b), wire in zip(itertools.pairwise(["rank 0", *names, "rank 0"]), self.wires, strict=True):
            parts[f"the link from {a} to {b}"] = wire.worked
        parts["rank 0"] = self.issued
        busy = {name: worked / ends[-1] for name, worked in parts.items()}
        once = sum(e - b for b, e in self.ends) / count
        return Simulated(rate, once, ends[-1], busy, sum(w.waits for w in {*self.wires, *self.commands}))


def simulate(
    model: LayerModel,
    placement: Placement,
    cluster: Description,
    sequences: int = 1,
    *,
    passes: int = 20,
    jitter: float = 0.05,
    seed: int = 0,
) -> Simulated:
    """Simulates passes through the stages.

    sequences: number of sequences, each with one pending pass
    passes: number of passes of each sequence
    jitter: largest relative deviation of the time of a stage
    seed: seed of jitter and losses
    """
    for name, value in (("sequences", sequences), ("passes", passes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidArgumentError(f"simulate: {name} must be a number from 1 up, not {value!r:.40}")
    if not 0 <= jitter < 1:
        raise InvalidArgumentError(f"simulate: jitter must be a share, 0 or more and less than 1, not {jitter!r:.40}")
    return _Run(model, placement, cluster, passes, jitter, seed).run(sequences)
