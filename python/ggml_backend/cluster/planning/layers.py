"""Places the layers of a model on a described cluster, and predicts memory and time.

A model is a sequence of *units*: embeddings, layers, head. Each has the work of its nodes. A *placement* splits the
sequence into stages, each on its own device. Times follow the scheduler's costs. A node takes its launch, plus the
longer of its memory traffic and its arithmetic. A cut takes the time of its link. :func:`place` finds the stages,
:func:`predict` their times.

For one order of the devices the stages are optimal, by dynamic programming. ``best[j, d]`` is the
least time of the first ``j`` units if device ``d`` has the last of them. It follows from fewer
units and earlier devices. With several pending runs the same recurrence bounds the slowest part of
a pass, and bisection finds the bound. Up to five devices, all orders are tried. Else the orders of
the file, of speed and of memory are improved by moving one device at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._base.errors import AllocationError
from ..._base.text import size_text
from .describe import Description, Link

__all__ = ["LayerModel", "Node", "Placement", "Prediction", "Stage", "Unit", "place", "predict"]

_ALL_ORDERS = 5  # devices
_TRIES = 500  # solutions for orders of 64 devices; more for fewer devices

Floats = NDArray[np.float64]
_Value = tuple[float, float]


@dataclass(frozen=True)
class Node:
    """The work of one node: type of the first source, bytes of memory traffic, operations."""

    dtype: str
    bytes: float
    flops: float


@dataclass(frozen=True)
class Unit:
    """A layer, the embeddings, or the head. A unit is never split."""

    name: str
    nodes: tuple[Node, ...]
    weights: int  #: bytes
    cache: int  #: bytes of keys and values, for each sequence
    carry: int  #: bytes sent to the next unit


@dataclass(frozen=True)
class LayerModel:
    """The units of a model, and other needs of one pass."""

    title: str
    units: tuple[Unit, ...]
    tokens: int  #: tokens of one pass
    scratch: int  #: bytes of inputs and results that a device holds while it computes
    sent: int  #: bytes that rank 0 sends to the first stage
    returned: int  #: bytes that come back from the last one

    def memory(self, begin: int, end: int, sequences: int) -> int:
        """Bytes that a device needs for units from ``begin`` up to, not including, ``end``."""
        units = self.units[begin:end]
        return sum(u.weights for u in units) + sequences * sum(u.cache for u in units) + self.scratch


@dataclass(frozen=True)
class Stage:
    """Consecutive units on one device."""

    device: int
    begin: int
    end: int


_Found = tuple[_Value, tuple[Stage, ...]]
"""A value to minimize, and its stages."""


@dataclass(frozen=True)
class Placement:
    """Stages in the order in which a pass goes through them."""

    stages: tuple[Stage, ...]
    sequences: int  #: number of sequences whose caches fit


@dataclass(frozen=True)
class Prediction:
    """Predicted times of a placement, in seconds. ``hops``: from rank 0 to the first stage, between
    stages, and back to rank 0."""

    stages: tuple[float, ...]
    hops: tuple[float, ...]  #: expected time until a message has arrived
    busy: tuple[float, ...]  #: time for which a message occupies its link
    issue: float  #: time of rank 0 for one pass
    names: tuple[str, ...]  #: names of the devices

    @property
    def once(self) -> float:
        """Time of one pass without other pending passes."""
        return self.issue + sum(self.stages) + sum(self.hops)

    @cached_property
    def slowest(self) -> tuple[str, float]:
        """The part that limits the rate of many pending passes, and the time for which each pass
        occupies it."""
        whole = [*(f"computing on {n}" for n in self.names), *self._links(), "rank 0"]
        times = [*self.stages, *self.busy, self.issue]
        worst = max(range(len(times)), key=times.__getitem__)
        return whole[worst], times[worst]

    def _links(self) -> Iterator[str]:
        for a, b in itertools.pairwise(["rank 0", *self.names, "rank 0"]):
            yield f"the link from {a} to {b}"

    def rate(self, pending: int) -> float:
        """Passes a second with ``pending`` passes at once."""
        return min(pending / self.once, 1 / self.slowest[1])

    @property
    def enough(self) -> int:
        """The number of pending passes that reaches the highest rate."""
        return max(1, math.ceil(self.once / self.slowest[1] - 1e-9))

    def limit(self, pending: int) -> str:
        """The reason why the rate is not higher."""
        if pending >= self.enough:
            return self.slowest[0]
        on_links = sum(self.hops) / self.once
        return f"the number of sequences: each waits for its own pass, which spends {on_links:.0%} of its time on links"


# ---------------------------------------------------------------------------------------------------------- predicting


def predict(model: LayerModel, placement: Placement, cluster: Description) -> Prediction:
    """Predicts the times of a placement."""
    stages = placement.stages
    kinds = [cluster.devices[s.device].kind for s in stages]
    times = [
        sum(kind.seconds(n.dtype, n.bytes, n.flops) for u in model.units[s.begin : s.end] for n in u.nodes)
        for s, kind in zip(stages, kinds, strict=True)
    ]
    hops = [(cluster.from_rank0(stages[0].device), model.sent)]
    hops += [(cluster.link(a.device, b.device), model.units[a.end - 1].carry) for a, b in itertools.pairwise(stages)]
    hops += [(cluster.from_rank0(stages[-1].device), model.returned)]
    return Prediction(
        tuple(times), tuple(link.seconds(n) for link, n in hops), tuple(link.busy(n) for link, n in hops),
        cluster.issue * len(stages), tuple(cluster.devices[s.device].name for s in stages),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- placing


class _Problem:
    """Arrays of one model on one cluster. ``spend[d, u]``: seconds of the first ``u`` units on
    device ``d``. ``need[u]``: bytes of the first ``u`` units."""

    def __init__(self, model: LayerModel, cluster: Description, sequences: int) -> None:
        self.model, self.cluster = model, cluster
        units = model.units
        self.n = len(units)
        self.solved = 0  # number of calls of solve
        self.capacity = [d.kind.memory - model.scratch for d in cluster.devices]
        self.need = np.cumsum([0, *(u.weights + sequences * u.cache for u in units)], dtype=np.float64)
        kinds = {d.kind.name: d.kind for d in cluster.devices}
        by_kind = {}
        for name, kind in kinds.items():
            known: dict[int, float] = {}  # equal layers share their nodes
            for u in units:
                if id(u.nodes) not in known:
                    known[id(u.nodes)] = sum(kind.seconds(n.dtype, n.bytes, n.flops) for n in u.nodes)
            by_kind[name] = np.cumsum([0.0, *(known[id(u.nodes)] for u in units)])
        self.spend: list[Floats] = [by_kind[d.kind.name] for d in cluster.devices]
        carries = [0, *(u.carry for u in units[:-1]), 0]  # before unit u
        n = len(cluster.devices)
        links = [[cluster.link(a, b) if a != b else None for b in range(n)] for a in range(n)]
        numbers: dict[Link | None, int] = {}
        self._which = np.array([[numbers.setdefault(k, len(numbers)) for k in row] for row in links])
        self._hop = np.array([[k.seconds(c) if k else math.inf for c in carries] for k in numbers])
        self._busy = np.array([[k.busy(c) if k else math.inf for c in carries] for k in numbers])
        self._hop[:, 0] = math.inf  # only the first stage begins at the first unit
        self._later = np.tri(self.n + 1, k=-1, dtype=bool).T  # [begin, end]

    def solve(self, order: Sequence[int], longest: float = math.inf) -> tuple[float, tuple[Stage, ...]] | None:
        """The least time of one pass over devices in this order, and the stages. Devices may stay
        empty. None if memory is insufficient, or if each solution has a stage or link that is busy
        for more than ``longest``."""
        self.solved += 1
        n, model, alike = self.n, self.model, self.cluster.alike
        best = np.full((len(order), n + 1), math.inf)
        before = np.zeros((len(order), n + 1), np.intp)  # first unit of the last stage
        whence = np.full((len(order), n + 1), -1)  # index in the order of the stage before it
        for place, d in enumerate(order):
            reached = np.full(n + 1, math.inf)
            first = place - 1 if alike else 0  # no need to skip one of equal devices
            if place:
                which = self._which[np.asarray(order[first:place]), d]
                through = np.where(self._busy[which] <= longest, best[first:place] + self._hop[which], math.inf)
                whence[place] = through.argmin(axis=0) + first
                reached = through.min(axis=0)
            home = self.cluster.from_rank0(d)
            reached[0] = home.seconds(model.sent) if home.busy(model.sent) <= longest else math.inf
            time = self.spend[d][None, :] - self.spend[d][:, None]  # [begin, end]
            fits = (self.need[None, :] - self.need[:, None] <= self.capacity[d]) & (time <= longest) & self._later
            total = np.where(fits, reached[:, None] + time + self.cluster.issue, math.inf)
            before[place], best[place] = total.argmin(axis=0), total.min(axis=0)
        ends = [self._end(best[p][n], d, longest) for p, d in enumerate(order)]
        last = min(range(len(order)), key=ends.__getitem__)
        if math.isinf(ends[last]):
            return None
        return float(ends[last]), self._stages(order, last, before, whence)

    def _end(self, time: Any, device: int, longest: float) -> float:
        home = self.cluster.from_rank0(device)
        return time + home.seconds(self.model.returned) if home.busy(self.model.returned) <= longest else math.inf

    def _stages(self, order: Sequence[int], place: int, before: Any, whence: Any) -> tuple[Stage, ...]:
        found, end = [], self.n
        while end > 0:
            begin = int(before[place][end])
            found.append(Stage(order[place], begin, end))
            place, end = int(whence[place][begin]), begin
        return tuple(reversed(found))

    def fastest(self, order: Sequence[int], pending: int, below: float = math.inf) -> _Found | None:
        """The stages with the highest rate of ``pending`` passes, and the value to minimize.

        The value is seconds for each pass, then seconds of a single pass.

        Seconds for each pass are the larger of two: time of a pass divided by ``pending``, and time
        of its slowest part. A looser bound on the slowest part allows shorter passes. Bisection
        finds the bound where both are equal. None if memory is insufficient, or if no solution is
        below ``below``.
        """
        found = self.solve(order, below)
        if found is None or found[0] / pending >= below:
            return None
        best = (max(found[0] / pending, self._slowest(found[1])), found[0]), found[1]
        low, high = found[0] / pending, best[0][0]
        while pending > 1 and high - low > 1e-6 * high:
            middle = (low + high) / 2
            found = self.solve(order, middle)
            if found is None or found[0] / pending > middle:
                low = middle
            else:
                high = middle
            if found is not None:
                value = (max(found[0] / pending, self._slowest(found[1])), found[0])
                best = min(best, (value, found[1]), key=itemgetter(0))
        return best

    def _slowest(self, stages: tuple[Stage, ...]) -> float:
        return predict(self.model, Placement(stages, 1), self.cluster).slowest[1]


def place(model: LayerModel, cluster: Description, sequences: int = 1) -> Placement:
    """Splits the units into stages for the highest rate of passes, with one pending pass for each
    sequence. With one sequence this is the least time of a pass. Raises :class:`AllocationError` if
    memory is insufficient."""
    problem = _Problem(model, cluster, sequences)
    found = [f for order in _orders(problem) if (f := problem.fastest(order, sequences)) is not None]
    if not found:
        raise AllocationError(_missing(model, cluster, problem, sequences))
    best = min(found, key=itemgetter(0))
    if len(cluster.devices) > _ALL_ORDERS and not cluster.alike:
        best = _improved(best, problem, sequences)
    return Placement(best[1], sequences)


def _orders(problem: _Problem) -> Iterator[Sequence[int]]:
    cluster = problem.cluster
    plain = list(range(len(cluster.devices)))
    if len(plain) <= _ALL_ORDERS and not cluster.alike:
        yield from itertools.permutations(plain)
        return
    yield plain
    near = [d for d in plain if cluster.devices[d].host == cluster.rank0]
    yield [*(d for d in plain if d not in near), *near]
    if not cluster.alike:
        yield sorted(plain, key=lambda d: float(problem.spend[d][-1]))
        yield sorted(plain, key=lambda d: -problem.capacity[d])


def _improved(best: _Found, problem: _Problem, pending: int) -> _Found:
    """Moves one device at a time to another position, as long as that helps and tries are left."""
    n = len(problem.capacity)
    order = [s.device for s in best[1]]
    order += [d for d in range(n) if d not in order]
    until, moved = problem.solved + _TRIES * 64 // n, True
    while moved and problem.solved < until:
        moved = False
        for source, target in itertools.permutations(range(n), 2):
            other = list(order)
            other.insert(target, other.pop(source))
            found = problem.fastest(other, pending, best[0][0])
            if found is not None and found[0] < best[0]:
                best, order, moved = found, other, True
            if problem.solved >= until:
                break
    return best


def _missing(model: LayerModel, cluster: Description, problem: _Problem, sequences: int) -> str:
    """The error text for a model that does not fit: the units that each device takes, and the
    missing memory."""
    largest = max(range(len(cluster.devices)), key=problem.capacity.__getitem__)
    for k, unit in enumerate(model.units):
        need = model.memory(k, k + 1, sequences)
        if need > cluster.devices[largest].kind.memory:
            device = cluster.devices[largest]
            return (
                f"{model.title}: {unit.name} alone needs {size_text(need)}, but the largest device, {device.name}, has"
                f" {size_text(device.kind.memory)}: {size_text(need - device.kind.memory)} are missing"
            )
    at, filled = 0, []
    for d in sorted(range(len(cluster.devices)), key=lambda d: -problem.capacity[d]):
        end = int(np.searchsorted(problem.need, problem.need[at] + problem.capacity[d], side="right")) - 1
        if end > at:
            names = _span(model, at, end)
            filled.append(f"{cluster.devices[d].name} ({size_text(cluster.devices[d].kind.memory)}) takes {names}")
        at = max(at, end)
    short = int(problem.need[-1] - problem.need[at])
    parts = "; ".join(filled if len(filled) <= 6 else [*filled[:3], f"{len(filled) - 4} more", filled[-1]])
    weights, caches = sum(u.weights for u in model.units), sequences * sum(u.cache for u in model.units)
    return (
        f"{model.title} does not fit: weights {size_text(weights)}, caches of {sequences}"
        f" sequence{'s' if sequences > 1 else ''} {size_text(caches)}, and {size_text(model.scratch)} of results on"
        f" each device. {parts}; no memory is left for {_span(model, at, problem.n)}: {size_text(short)} are missing"
    )


def _span(model: LayerModel, begin: int, end: int) -> str:
    first, last = model.units[begin].name, model.units[end - 1].name
    return first if end - begin == 1 else f"{first} to {last}"
