"""Checks of graphs on a device: repeated runs, alternating graphs, scheduling with the CPU, pending
runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np

from .._base.errors import PerformanceWarning
from .._ffi import lib
from ..backend.backend import Backend, backends
from ..backend.event import Event
from ..ops._custom import custom, map_custom
from ..sched.scheduler import Scheduler
from ..tensor._quantize import dequantize
from ..tensor.context import Context
from ..tensor.tensor import Tensor
from ._inputs import Array
from ._operators import Nothing, Wrong
from ._random_graphs import RandomGraph, random_graph

__all__ = ["checks", "unfused"]

Check = Callable[[Backend, Backend, np.random.Generator, bool], None]


@contextmanager
def unfused() -> Iterator[None]:
    """Disables fusion on the CPU: a fused step may round differently."""
    before = lib.ggml_graph_get_fusion()
    lib.ggml_graph_set_fusion(False)
    try:
        yield
    finally:
        lib.ggml_graph_set_fusion(before)


def _same(got: list[Array], want: list[Array], what: str) -> None:
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        wrong = ~((x == y) | (np.isnan(x) & np.isnan(y)))
        if wrong.any():
            at = tuple(int(k) for k in np.argwhere(wrong)[0])
            raise Wrong(f"{what}: output {i}: {np.count_nonzero(wrong)} of {x.size} elements differ; element {at} is"
                        f" {x[at]:.9g} instead of {y[at]:.9g}")  # fmt: skip


def _results(built: RandomGraph) -> list[Array]:
    return [t.numpy(copy=True) for t in built.outputs]


# ---- on the device alone ---------------------------------------------------------------------------------------------


def _alone(backend: Backend, rng: np.random.Generator, bit_identical: bool) -> int:
    """The seed of a graph that the device computes without help."""
    for _ in range(30):
        seed = int(rng.integers(0, 2**31))
        built = random_graph(np.random.default_rng(seed), 20, backend.supports, bit_identical)
        if len(built.outputs) and len(built.computed) > 1:
            return seed
    raise Nothing("the device computes none of the tried graphs without help")


class _Pair:
    """The same graph in memory of the device and of the CPU. scheduled: run the device's graph with
    a scheduler, which keeps compiled nodes between runs."""

    def __init__(self, seed: int, backend: Backend, cpu: Backend, bit_identical: bool, scheduled: bool = False) -> None:
        self.ours, self.theirs = (
            random_graph(np.random.default_rng(seed), 20, backend.supports, bit_identical) for _ in range(2)
        )
        self.backend, self.cpu = backend, cpu
        self.buffers = [self.theirs.ctx.allocate(cpu)]
        self.sched = Scheduler([backend]) if scheduled else None
        if self.sched is not None:
            self.sched.allocate(self.ours.graph)
        else:
            self.buffers.append(self.ours.ctx.allocate(backend))
        self.runs = 0

    def run(self, rng: np.random.Generator) -> None:
        seed = int(rng.integers(0, 2**31))
        for built in (self.ours, self.theirs):
            built.fill(np.random.default_rng(seed), some=self.runs > 0)
        graph = self.ours.graph
        done = self.sched.compute(graph) if self.sched is not None else graph.compute(self.backend)
        if not (done and self.theirs.graph.compute(self.cpu)):
            raise Wrong("compute was aborted")
        self.runs += 1
        _same(_results(self.ours), _results(self.theirs), f"run {self.runs}, with other inputs than the one before")


def _again(backend: Backend, cpu: Backend, rng: np.random.Generator, bit_identical: bool) -> None:
    seed = _alone(backend, rng, bit_identical)
    for scheduled in (False, True):
        pair = _Pair(seed, backend, cpu, bit_identical, scheduled)
        for _ in range(5):
            pair.run(rng)


def _in_turn(backend: Backend, cpu: Backend, rng: np.random.Generator, bit_identical: bool) -> None:
    pairs = [_Pair(_alone(backend, rng, bit_identical), backend, cpu, bit_identical, i == 2) for i in range(3)]
    for i in rng.integers(0, 3, 9):
        pairs[i].run(rng)
    del pairs[1]
    for pair in pairs:
        pair.run(rng)


# ---- beside the CPU --------------------------------------------------------------------------------------------------


Opens = Callable[[], Backend]


def _devices(
    backend: Backend, cpu: Backend, rng: np.random.Generator, stack: ExitStack, another: Opens | None
) -> list[Backend]:
    """The devices by priority, sometimes with a second device of the kind or a simulated one."""
    found = [backend]
    if another is not None and rng.random() < 0.3:
        found.append(stack.enter_context(another()))
    elif rng.random() < 0.3 and "SIM" in backends():
        found.insert(int(rng.integers(0, 2)), stack.enter_context(Backend("SIM", name="OTHER")))
    return [*found, cpu]


def _place_inputs(built: RandomGraph, devices: list[Backend], rng: np.random.Generator, stack: ExitStack) -> None:
    """Gives some inputs their own buffers on random devices."""
    for t in built.inputs:
        if rng.random() < 0.4:
            device = devices[int(rng.integers(0, len(devices)))]
            usage: str = "weights" if rng.random() < 0.5 else "any"
            size = device.buffer_type.nbytes_for(t)
            stack.enter_context(device.allocate(size, usage)).place(t)  # type: ignore[arg-type]


def _assign(built: RandomGraph, sched: Scheduler, rng: np.random.Generator) -> None:
    devices = sched.backends
    for t in built.computed:
        device = devices[int(rng.integers(0, len(devices)))]
        if rng.random() < 0.6 and device.supports(t):
            sched.set_backend(t, device)


def _reference(
    seed: int, cpu: Backend, rounds: bool, n: int = 30, supports: Callable[[Tensor], bool] = lambda t: True
) -> tuple[RandomGraph, Scheduler]:
    built = random_graph(np.random.default_rng(seed), n, supports, rounds)
    sched = Scheduler([cpu], keep_all=True)
    sched.allocate(built.graph)
    return built, sched


_Scheduled = tuple[RandomGraph, Scheduler]


def _runs(ours: _Scheduled, theirs: _Scheduled, rng: np.random.Generator, what: str) -> None:
    """The same graph three times, with other inputs each time."""
    for run in range(3):
        filled = int(rng.integers(0, 2**31))
        for built, sched in (ours, theirs):
            built.fill(np.random.default_rng(filled), some=run > 0)
            if not sched.compute(built.graph):
                raise Wrong("compute was aborted")
        _same(_results(ours[0]), _results(theirs[0]), f"{what}, run {run}")


def _random(
    backend: Backend, cpu: Backend, rng: np.random.Generator, bit_identical: bool, *, another: Opens | None = None
) -> None:
    """A random graph with random assignments. It runs with new inputs, then with new
    assignments."""
    seed = int(rng.integers(0, 2**31))
    with ExitStack() as stack:
        devices = _devices(backend, cpu, rng, stack, another)
        reference, alone = _reference(seed, cpu, bit_identical)
        built = random_graph(np.random.default_rng(seed), 30, rounds=bit_identical)
        stack.enter_context(alone)
        _place_inputs(built, devices, rng, stack)
        checked, copies = bool(rng.random() < 0.5), int(rng.integers(1, 4))
        sched = stack.enter_context(Scheduler(devices, check=checked, n_copies=copies))
        for part in range(2):
            _assign(built, sched, rng)
            sched.allocate(built.graph)
            _runs((built, sched), (reference, alone), rng, f"assignment {part}")


def _async(backend: Backend, cpu: Backend, rng: np.random.Generator, bit_identical: bool, *, n_copies: int = 1) -> None:
    """Several pending runs, each with its own inputs and results."""
    seed = int(rng.integers(0, 2**31))
    reference, alone = _reference(seed, cpu, bit_identical)
    built = random_graph(np.random.default_rng(seed), 30, rounds=bit_identical)
    with alone, Scheduler([backend, cpu], n_copies=n_copies) as sched:
        _assign(built, sched, rng)
        sched.allocate(built.graph)
        pending, wanted = [], []
        for _ in range(6):
            filled = int(rng.integers(0, 2**31))
            for w in (built, reference):
                w.fill(np.random.default_rng(filled))
            pending.append(sched.compute_async(built.graph, results=built.outputs))
            alone.compute(reference.graph)
            wanted.append(_results(reference))
        for i, (run, want) in enumerate(zip(pending, wanted, strict=True)):
            _same(run.results(), want, f"run {i} of 6, {n_copies} of them at once")


def _events(backend: Backend, cpu: Backend, rng: np.random.Generator, bit_identical: bool) -> None:
    """The host and other backends can wait for events of the device."""
    event = Event(backend)
    event.synchronize()
    for waiting in (backend, cpu):
        event.record().wait(waiting)
        event.synchronize()
        waiting.synchronize()


@contextmanager
def _quietly() -> Iterator[None]:
    """Hides warnings about operators that run on the CPU instead."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        yield


def _checked(check: Check, backend: Backend, cpu: Backend, rng: np.random.Generator, bit_identical: bool) -> None:
    with _quietly():
        check(backend, cpu, rng, bit_identical)


def _two(
    backend: Backend, cpu: Backend, rng: np.random.Generator, bit_identical: bool, *, another: Opens | None
) -> None:
    """A random graph whose nodes alternate between two devices of the kind, so that each waits for
    the other."""
    if another is None:
        raise Nothing("a second device cannot be opened, because the call passed a backend")
    seed = _alone(backend, rng, bit_identical)
    reference, alone = _reference(seed, cpu, bit_identical, 20, backend.supports)
    built = random_graph(np.random.default_rng(seed), 20, backend.supports, bit_identical)
    with alone, another() as second, Scheduler([backend, second, cpu]) as sched:
        for i, t in enumerate(built.computed):
            device = (backend, second)[i % 2]
            if device.supports(t):
                sched.set_backend(t, device)
        sched.allocate(built.graph)
        _runs((built, sched), (reference, alone), rng, "two devices")


def _share(out: Array, a: Array, ith: int, nth: int) -> None:
    out[ith::nth] = a[ith::nth] * 2


def _customs(ctx: Context) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
    """Inputs, and nodes of custom functions, which work on arrays of any library."""
    a, q = ctx.tensor((5, 7), name="a"), ctx.tensor((4, 64), "q8_0", name="q")
    shapes = [(5, 7), (5, 7)]
    return [a, q], {
        "custom": [custom(lambda out, x: x * 2 + 1, a)],
        "map_custom": [map_custom(lambda out, x: x * 3, a)],
        "several": list(custom(lambda outs, x: (x + 1, x * 2), a, shape=shapes)),
        "quantized": [custom(lambda out, blocks: dequantize(blocks), q, shape=(4, 64), dtype="f32")],
        "shares": [custom(_share, a, n_tasks=3)],
    }


def _functions(backend: Backend, cpu: Backend, rng: np.random.Generator, bit_identical: bool) -> None:
    """Custom functions, on a device that runs them."""
    found: list[dict[str, list[Array]]] = []
    values, rows = rng.standard_normal((5, 7), np.float32), rng.standard_normal((4, 64), np.float32)
    for device in (backend, cpu):
        with Context() as ctx:
            inputs, nodes = _customs(ctx)
            taken = {k: made for k, made in nodes.items() if all(map(backend.supports, _makers(made)))}
            if not taken:
                raise Nothing("the device runs no custom functions")
            graph = ctx.graph([t for made in taken.values() for t in made])
            with Scheduler([device] if device is cpu else [device, cpu]) as sched:
                sched.allocate(graph)
                for t, value in zip(inputs, (values, rows), strict=True):
                    if t.is_placed:
                        t.set(value, quantize=t.dtype.is_quantized)
                sched.compute(graph)
                found.append({k: [t.numpy(copy=True) for t in made] for k, made in taken.items()})
    for name, got in found[0].items():
        _same(got, found[1][name], name)


def _makers(results: list[Tensor]) -> list[Tensor]:
    """The nodes of results. With several results each is a view of the node."""
    return [t if t.view_of is None else t.view_of for t in results]


def checks(quick: bool, another: Opens | None) -> dict[str, Check]:
    """The checks by name. A check raises :class:`Wrong` or :class:`Nothing`.

    another: opens a second device with the same options
    """
    few = 2 if quick else 6
    found: dict[str, Check] = {f"again/{i}": _again for i in range(few)}
    found |= {f"in turn/{i}": _in_turn for i in range(few)}
    found |= {f"async/{n} copies/{i}": partial(_async, n_copies=n) for n in (1, 2, 3) for i in range(few // 2)}
    found["events"] = _events
    found["functions"] = _functions
    found |= {f"two/{i}": partial(_two, another=another) for i in range(few)}
    found |= {f"random/{i}": partial(_random, another=another) for i in range(12 if quick else 100)}
    return {name: partial(_checked, check) for name, check in found.items()}
