"""Ctrl-C is heard in calls that work long in C without waiting for anything: planning, placing, reordering, copying,
building graphs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from harness_world import SANITIZED

pytestmark = pytest.mark.alone

# seconds; the promise is 0.2, what is asserted leaves room for machines that others use
LATE = 20.0 if SANITIZED else 2.0
BYTES = 1 << 28


@pytest.fixture
def interrupted() -> Iterator[Callable[[Callable[[], object], float], float]]:
    """Calls a function, sends SIGINT after so many seconds, and returns how long after it KeyboardInterrupt came."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are handled on the main thread only")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def call(act: Callable[[], object], after: float) -> float:
        sent: list[float] = []
        main = threading.get_ident()
        over = threading.Event()

        def send() -> None:
            if not over.wait(after):
                sent.append(time.monotonic())
                signal.pthread_kill(main, signal.SIGINT)

        sender = threading.Thread(target=send)
        try:
            sender.start()
            try:
                act()
            finally:  # a call that fails by itself must not leave a signal to the next test
                over.set()
                sender.join()
            raise AssertionError("it ended without an interrupt")
        except KeyboardInterrupt:
            return time.monotonic() - sent[0]

    yield call
    signal.signal(signal.SIGINT, before)


def instance(n: int, span: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    lower = rng.integers(0, 1000 if span == 200 else n, n)
    return lower, lower + rng.integers(1, span, n), rng.integers(1, 1000, n)


def chain(n: int) -> tuple[gb.Context, list[gb.Tensor]]:
    """A graph of n nodes that joins results of different ages."""
    ctx, rng = gb.Context(), np.random.default_rng(1).integers(0, 1 << 30, n)
    live = [ctx.tensor(64)]
    for k in rng.tolist():
        live.append(live[k % len(live)] + live[-1] if k & 1 else gb.relu(live[-1]))
        if len(live) > 30:
            live.pop(k % 20)
    return ctx, live


def search(*, reproducible: bool = False) -> Callable[[], object]:
    numbers = instance(3000, 200)
    return lambda: gb.plan_memory(*numbers, budget_ms=20_000, reproducible=reproducible)


def reorder() -> Callable[[], object]:
    ctx, outputs = chain(60_000)
    graph = ctx.graph(outputs)
    return lambda: [graph.reordered() for _ in range(200)]


def place(policy: Any, n: int) -> Callable[[], object]:
    ctx, outputs = chain(n)
    graph, devices = ctx.graph(outputs), [gb.Backend("SIM", mem="1G"), gb.Backend("SIM", mem="1G"), gb.Backend("CPU")]
    scheduler = gb.Scheduler(devices, policy=policy)
    return lambda: [scheduler.prepare(graph, allocate=False, reorder=True) for _ in range(50)]


def open_again(path: Path) -> Callable[[], object]:
    gb.gguf.Writer(path).add("tokens", [f"token {i}" for i in range(300_000)]).close()
    return lambda: [gb.gguf.open(path).metadata["tokens"] for _ in range(200)]


LONG: dict[str, Callable[[Path], Callable[[], object]]] = {
    "plan_memory": lambda folder: search(),
    "plan_memory, reproducible": lambda folder: search(reproducible=True),
    "Graph.reordered": lambda folder: reorder(),
    "prepare": lambda folder: place("weights", 50_000),
    "prepare by cost": lambda folder: place("cost", 50_000),
    "gguf.open": lambda folder: open_again(folder / "tokens.gguf"),
    "quantize": lambda folder: (
        lambda: gb.quantize(np.ones((6000, 8192), np.float32), "iq2_xs", np.ones(8192, np.float32))
    ),
    "building nodes": lambda folder: lambda: chain(3_000_000),
}


@pytest.mark.parametrize("name", LONG)
def test_long_work_hears_an_interrupt(name: str, interrupted: Callable[..., float], tmp_path: Path) -> None:
    assert interrupted(LONG[name](tmp_path), 0.2) < LATE


@pytest.mark.parametrize("device", ["CPU", "SIM"])
def test_an_interrupted_set_ends_and_the_input_counts_as_not_set(
    device: str, interrupted: Callable[..., float]
) -> None:
    backend, ctx = gb.Backend(device), gb.Context()
    x = ctx.tensor(BYTES // 4, name="x")
    scheduler = gb.Scheduler([backend] if device == "CPU" else [backend, gb.Backend("CPU")])
    graph = ctx.graph(gb.sum_rows(x))
    scheduler.allocate(graph)
    ones = np.ones(BYTES // 4, np.float32)
    unset = False
    for i in range(100):  # an interrupt may also lie in the last piece, or between two calls
        assert interrupted(lambda: [x.set(ones) for _ in range(10_000)], 0.02 + 0.003 * i) < LATE
        try:
            scheduler.compute(graph)
        except gb.StateError as error:
            assert "input 'x' was not set" in str(error)
            unset = True
            break
    assert unset
    x.set(ones)
    assert scheduler.compute(graph)


COPIES: dict[str, Callable[[gb.Tensor, gb.Tensor, Path], object]] = {
    "set with gaps": lambda x, y, folder: x.T.set(np.ones(x.T.shape, np.float32)),
    "copy_from": lambda x, y, folder: x.copy_from(y),
    "numpy(copy=True)": lambda x, y, folder: x.numpy(copy=True),
    "clear": lambda x, y, folder: x.buffer.clear(1),  # type: ignore[union-attr]
    "a file": lambda x, y, folder: gb.gguf.Writer(folder / "new.gguf").add_tensor("x", x.numpy()).close(),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_hear_an_interrupt(name: str, interrupted: Callable[..., float], tmp_path: Path) -> None:
    backend, ctx = gb.Backend("CPU"), gb.Context()
    x, y = ctx.tensor((1 << 13, BYTES >> 15)), ctx.tensor((1 << 13, BYTES >> 15))
    for t in (x, y):
        backend.allocate(t.nbytes).place(t)
        t.set(0.0)
    assert interrupted(lambda: [COPIES[name](x, y, tmp_path) for _ in range(10_000)], 0.3) < LATE
    assert {f.name for f in tmp_path.iterdir()} <= {"new.gguf"}
    x.set(2.0)
    assert x.numpy()[-1, -1] == 2.0


@pytest.mark.parametrize("how", ["alloc", "load"])
def test_memory_of_a_simulated_device_hears_an_interrupt(
    how: str, interrupted: Callable[..., float], tmp_path: Path
) -> None:
    """It is filled before it is handed out; none of it is lost."""
    sim = gb.Backend("SIM", mem=2 * BYTES)
    with gb.gguf.Writer(tmp_path / "x.gguf") as writer:
        writer.add_tensor("x", np.zeros(BYTES // 4 - 1024, np.float32))

    def act() -> None:
        for _ in range(10_000):  # each is given back before the next: two fill the device
            sim.allocate(BYTES) if how == "alloc" else gb.gguf.open(tmp_path / "x.gguf").load(sim)

    for i in range(5):
        assert interrupted(act, 0.02 + 0.05 * i) < LATE
    whole = sim.allocate(2 * BYTES)
    assert whole.size == 2 * BYTES
