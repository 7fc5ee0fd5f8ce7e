"""Measures costs of operators and copies: :func:`calibrate`, for ``Scheduler(policy="cost")``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .. import ops
from .._base.errors import InvalidArgumentError, UnsupportedError, expect, expect_bool, expect_function, expect_int
from .._base.timing import median, once, series
from ..backend.backend import Backend
from ..dtypes import dtypes
from ..tensor.context import Context
from ..tensor.graph import Graph
from ._costs import CopyCost, DeviceCosts, OpCost, write_costs
from .scheduler import Scheduler

__all__ = ["calibrate", "check_size"]

_ROUND = 2e-4  # seconds; shortest round


def _median_us(run: Callable[[], Any], repeats: int = 5) -> float:
    """Warms up twice, then takes the median of rounds that are long enough for the clock."""
    run()
    calls = max(1, math.ceil(_ROUND / max(once(run), 1e-9)))
    return median(series(run, calls) * 1e6 for _ in range(repeats))


Build = Callable[[Context, Any, int], Callable[[], Any]]
_AWAY = 7  # number of runs for the median on devices with round trips
_CHAIN = 8  # nodes of a graph, so that the overhead of a graph counts little


def _graph_us(backend: Backend, sched: Scheduler, graph: Graph) -> float:
    """Microseconds of a run. For a device of another rank, on that rank's clock, so the link does
    not count."""
    if not getattr(backend.device, "_remote", False):
        return _median_us(lambda: sched.compute(graph))
    sched.compute(graph)
    with sched.trace() as trace:
        for _ in range(_AWAY):
            sched.compute(graph)
    runs: dict[int, float] = {}
    for event in trace.events:
        if event.kind == "compute":
            runs[event.run] = runs.get(event.run, 0.0) + event.seconds
    return median(runs.values()) * 1e6


def _time_op(backend: Backend, build: Build, dtype: str, n: int) -> float:
    """Microseconds of one node. ``build(ctx, dtype, n)`` makes tensors and returns a function that
    builds an operator on them."""
    times = []
    for count in (1, _CHAIN + 1):
        with Context() as ctx, Scheduler([backend]) as sched:
            make = build(ctx, dtypes[dtype], n)
            graph = ctx.graph(*[make() for _ in range(count)])
            sched.allocate(graph)
            for leaf in graph.leafs:
                leaf.set(...)
            times.append(_graph_us(backend, sched, graph))
    return max((times[1] - times[0]) / _CHAIN, 1e-3)


def _matmul(ctx: Context, dtype: Any, n: int, rows: int) -> Callable[[], Any]:
    w, x = ctx.tensor((n, n), dtype), ctx.tensor((rows, n), dtypes["float32"])
    return lambda: x @ w.T


def _elements(ctx: Context, dtype: Any, n: int) -> Callable[[], Any]:
    a, b = ctx.tensor((n, n), dtype), ctx.tensor((n, n), dtype)
    return lambda: a + b


def _rows(ctx: Context, dtype: Any, n: int) -> Callable[[], Any]:
    a = ctx.tensor((n, n), dtype)
    return lambda: ops.soft_max(a)


def _moves(ctx: Context, dtype: Any, n: int) -> Callable[[], Any]:
    a = ctx.tensor((n, n), dtype)
    return lambda: ops.cont(ops.transpose(a))


def _fit(launch: float, us: float, work: float) -> float:
    """The rate of `work` in the time without the launch."""
    return work / max(us - launch, 1e-3)


def _jobs(backend: Backend, size: int) -> list[tuple[str, Callable[[], OpCost]]]:
    """The measurements, in order."""

    def matmul(dtype: str) -> OpCost:
        def product(rows: int, n: int) -> float:
            return _time_op(backend, lambda c, t, n: _matmul(c, t, n, rows), dtype, n)

        launch = product(1, 32)
        return OpCost(
            "matmul", dtype, launch, _fit(launch, product(1, size), float(size * dtypes[dtype].row_nbytes(size))),
            _fit(launch, product(64, size), 2.0 * 64 * size * size),
        )  # fmt: skip

    def plain(op_class: str, build: Build, n_arrays: int) -> OpCost:
        launch = _time_op(backend, build, "float32", 32)
        return OpCost(
            op_class,
            None,
            launch,
            _fit(launch, _time_op(backend, build, "float32", size), 4.0 * n_arrays * size * size),
        )

    types = ("float32", "float16", "q8_0", "q4_0")
    jobs: list[tuple[str, Callable[[], OpCost]]] = [(f"matmul {t}", partial(matmul, t)) for t in types]
    others: list[tuple[str, Build, int]] = [("elements", _elements, 3), ("rows", _rows, 2), ("moves", _moves, 2)]
    return [*jobs, *((op_class, partial(plain, op_class, build, n)) for op_class, build, n in others)]


def _measure_copy(backend: Backend, *, read: bool) -> CopyCost:
    """Least squares over sizes from 4 KiB to 16 MiB, with equal relative weights."""
    sizes, times = [1 << k for k in range(12, 25, 3)], []
    for size in sizes:
        with Context() as ctx:
            t = ctx.tensor((size,), dtypes["int8"])
            with backend.buffer_type.allocate(size + 4096) as buffer:
                buffer.place(t)
                data = np.zeros(size, np.int8)
                t.set(data)
                copy = partial(t.numpy, copy=True) if read else partial(t.set, data)
                times.append(_median_us(copy, 3))
    weights = 1 / np.array(times)
    a = np.stack([np.ones(len(sizes)), np.array(sizes, float)], 1) * weights[:, None]
    launch, per_byte = np.linalg.lstsq(a, np.ones(len(sizes)), rcond=None)[0]
    return CopyCost(max(float(launch), 0.0), 1 / max(float(per_byte), 1e-9))


def _measure_copies(backend: Backend) -> tuple[CopyCost, CopyCost]:
    """Costs of copies to the device and from it."""
    of_device: Callable[[], tuple[CopyCost, CopyCost]] | None = getattr(backend.device, "_measure_copies", None)
    if of_device is not None:
        return of_device()
    return _measure_copy(backend, read=False), _measure_copy(backend, read=True)


def check_size(size: int) -> None:
    if expect_int(size, "calibrate: size") < 64 or size % 32:
        raise InvalidArgumentError(f"calibrate: size must be a multiple of 32, at least 64, not {size}")


def calibrate(
    backend: Backend, *, size: int = 768, write: bool = True, progress: Callable[[int, int, str], None] | None = None
) -> DeviceCosts:
    """Measures costs of operators and copies on an otherwise idle device, and caches them on disk.

    size: matrices have ``size`` x ``size`` elements, a multiple of 32
    progress: called with the number of measurements done, their total, and the name of the next one
    """
    expect(backend, Backend, "calibrate: backend")
    check_size(size)
    write = expect_bool(write, "calibrate: write")
    if progress is not None:
        expect_function(progress, "calibrate: progress")
    jobs = _jobs(backend, size)
    tell = progress or (lambda done, total, what: None)
    found: list[OpCost] = []
    for i, (what, job) in enumerate(jobs):
        tell(i, len(jobs) + 1, what)
        with contextlib.suppress(UnsupportedError):
            found.append(job())
    if not found:
        raise UnsupportedError(f"calibrate: {backend.name} supports none of the measured operators")
    # for operators without a measurement
    found.append(OpCost("any", None, max(op.launch_us for op in found), min(op.bytes_per_us for op in found)))
    tell(len(jobs), len(jobs) + 1, "copies to the device and from it")
    from_host, to_host = _measure_copies(backend)
    device = DeviceCosts(tuple(found), from_host, to_host, backend.buffer_type.is_host)
    if write:
        write_costs(backend, device)
    tell(len(jobs) + 1, len(jobs) + 1, "")
    return device
