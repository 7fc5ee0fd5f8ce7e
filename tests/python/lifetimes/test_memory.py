"""Memory changes its owner or content: tensors, constants and arrays stay valid, or their use is an
error."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import sys
import threading
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from threads import run_threads

N = 64


def others(scheduler: gb.Scheduler, n: int = 40) -> list[tuple[Any, ...]]:
    """Graphs that get memory which the scheduler gave to earlier graphs."""
    found = []
    for i in range(n):
        ctx = gb.Context()
        a, b = ctx.tensor(N, name=f"a{i}"), ctx.tensor(N, name=f"b{i}")
        y = a * 1.0 + b
        graph = ctx.graph(y)
        scheduler.allocate(graph)
        a.set(1.0 + i)
        b.set(0.0)
        scheduler.compute(graph)
        found.append((a, b, y, graph, ctx))
    return found


def readable(tensors) -> dict[str, float]:
    found = {}
    for t in tensors:
        try:
            found[t.name] = float(t.numpy()[0])
        except gb.errors.StateError:
            continue
    return found


def test_constants_are_written_to_their_own_memory_only(cpu):
    with gb.Scheduler([cpu]) as scheduler, gb.Context() as ctx:
        x = ctx.tensor(N, name="x")
        graph = ctx.graph(y := x + ctx.constant(np.full(N, -777, np.float32)))
        scheduler.allocate(graph)
        x.set(5.0)
        scheduler.compute(graph)
        scenes = others(scheduler)
        before = readable(t for w in scenes for t in w[:2])
        ctx.tensor(3)
        ctx.allocate(cpu)
        assert readable(t for w in scenes for t in w[:2]) == before
        scheduler.allocate(graph)
        x.set(5.0)
        scheduler.compute(graph)
        assert y.numpy()[0] == -772


def test_constants_are_made_while_other_threads_place_them(cpu):
    """The other thread gives memory to new constants, and closes every second buffer."""
    ctx = gb.Context()
    constants = [ctx.constant(np.full(N, -1, np.float32))]
    buffers = []
    stop = threading.Event()

    def make() -> None:
        try:
            constants.extend(ctx.constant(np.full(N, i, np.float32)) for i in range(3000))
        finally:
            stop.set()

    def place() -> None:
        with contextlib.suppress(gb.errors.StateError):  # all have memory
            buffers.append(ctx.allocate(cpu))
            if len(buffers) % 2:
                buffers[-1].close()

    thread = threading.Thread(target=make)
    thread.start()
    while not stop.is_set():
        place()
    thread.join()
    for i in (3000, 3001):  # one of two buffers stays open
        constants.append(ctx.constant(np.full(N, i, np.float32)))
        place()
    assert len(constants) == 3003
    right = 0
    for i, t in enumerate(constants, -1):
        with contextlib.suppress(gb.errors.StateError):  # its buffer is closed
            assert (t.numpy() == i).all()
            right += 1
    assert right > 0


def test_constants_in_read_only_memory_are_refused(monkeypatch):
    """Another thread may place a tensor before it becomes a constant. Here the conversion of the array does it."""
    memory = bytes(range(256)) * 2
    buffer, ctx = gb.Buffer.from_array(memory), gb.Context()

    def place(array):
        buffer.place(ctx.tensors()[-1], 0)
        return np.ascontiguousarray(array)

    monkeypatch.setattr("ggml_backend.tensor.context.contiguous", place)
    with pytest.raises(gb.errors.StateError, match="read-only"):
        ctx.constant(np.ones(N, np.float32))
    assert memory == bytes(range(256)) * 2


VALUE = np.arange(N, dtype=np.float32) - 7


@pytest.mark.parametrize("device", ["CPU", "SIM"])
@pytest.mark.parametrize(
    "place",
    [
        lambda ctx, c, on: ctx.allocate(on),
        lambda ctx, c, on: (b := on.allocate(1 << 16), b.clear(1), b.place(c))[0],
        lambda ctx, c, on: (b := on.allocate(1 << 16), b.clear(1), gb.sched.TensorAllocator(b).allocate(c))[0],
        lambda ctx, c, on: gb.sched.GraphAllocator(on).allocate(ctx.graph(c + c)),
    ],
    ids=["allocate", "place", "tensors", "graph"],
)
def test_a_constant_keeps_its_value_in_cleared_memory(device, place):
    on, ctx = gb.Backend(device), gb.Context()
    c = ctx.constant(VALUE, name="c")
    other = gb.Context()
    y = other.view(c) + other.constant(VALUE)
    buffer = place(ctx, c, on)
    assert (c.numpy(copy=True) == VALUE).all()
    own = other.allocate(on)
    graph = other.graph(y)
    assert graph.compute(on) and (y.numpy() == 2 * VALUE).all()
    buffer.clear(1)
    assert (c.numpy(copy=True) == VALUE).all()
    assert (y.numpy() == 2 * VALUE).all()  # no source has changed
    own.clear(1)
    with pytest.raises(gb.errors.StateError, match="its buffer was cleared"):
        y.numpy()
    assert graph.compute(on) and (y.numpy() == 2 * VALUE).all()
    ctx.close()
    buffer.clear(2)
    assert graph.compute(on) and (y.numpy() == 2 * VALUE).all()  # through the other context


def test_interrupted_clear_keeps_constants(holds):
    holds("""
        ctx = gb.Context(); c = ctx.constant(np.arange(4, dtype=np.float32)); x = ctx.tensor(1 << 26)
        buffer = ctx.allocate(cpu)
        timer, ended = Interrupts(), 0
        for i in range(40):
            ended += timer.attempt(lambda: buffer.clear(i + 1), .0005 * i)
            assert c.tolist() == [0, 1, 2, 3], i
        assert ended
    """)


@pytest.mark.parametrize("how", ["set", "array", "cpy", "inplace", "scheduler", "read-only"])
def test_nothing_writes_a_constant(ctx, cpu, how):
    c, x = ctx.constant(VALUE, name="c"), ctx.tensor(N)
    if how == "read-only":
        for place in (lambda b: b.place(c), lambda b: gb.sched.TensorAllocator(b).allocate(c)):
            with pytest.raises(
                gb.errors.StateError,
                match="'c' is a constant, whose value is written when it is placed; the buffer is read-only",
            ):
                place(gb.Buffer.from_array(bytes(1 << 16)))
        assert not c.is_placed
        return
    graph = ctx.graph(gb.ops.cpy(x, c[:]) if how == "cpy" else gb.ops.sqr(c, inplace=True))
    if how == "scheduler":
        with pytest.raises(gb.errors.StateError, match="would write to a constant"):
            gb.Scheduler(cpu).compute(graph)
        return
    ctx.allocate(cpu)
    x.set(1.0)
    if how == "set":
        with pytest.raises(gb.errors.StateError, match="is a constant"):
            c.set(1.0)
    elif how == "array":
        with pytest.raises(ValueError, match="read-only"):
            c.numpy()[...] = 1.0
    else:
        with pytest.raises(gb.errors.StateError, match="would write to a constant"):
            graph.compute(cpu)
    assert (c.numpy() == VALUE).all()


def test_an_input_whose_memory_another_scheduler_reused_is_an_error(cpu):
    with gb.Scheduler([cpu]) as first, gb.Scheduler([cpu]) as second, gb.Context() as ctx:
        x = ctx.tensor(N, name="x")
        graph = ctx.graph(y := x + 1.0)
        first.allocate(graph)
        x.set(5.0)
        scenes = others(first)
        with pytest.raises(gb.errors.StateError, match="'x'"):
            second.compute(graph)
        second.allocate(graph)
        with pytest.raises(gb.errors.StateError, match="'x' was not set"):
            second.compute(graph)
        x.set(5.0)
        second.compute(graph)
        assert y.numpy()[0] == 6
        assert scenes[-1][2].numpy()[0] == 40


@pytest.mark.parametrize("how", ["allocate", "place", "host", "allocator"])
def test_inputs_that_were_never_set(cpu, how):
    with gb.Context(allocate=how == "host") as ctx:
        w, x = ctx.tensor((4, 4), name="w"), ctx.tensor((4,), name="x")
        graph = ctx.graph(y := x @ w)
        if how == "allocator":
            gb.sched.GraphAllocator(cpu).allocate(graph)
        elif how == "place":
            buffer = cpu.allocate(4096)
            for i, t in enumerate([*graph.leafs, *(n for n in graph.nodes if n.view_of is None)]):
                buffer.place(t, 256 * i)
        elif how == "allocate":
            ctx.allocate(cpu)
        x.set(1.0)
        with pytest.raises(gb.errors.StateError, match="'w' was not set"):
            graph.compute(cpu)
        with pytest.raises(gb.errors.StateError, match="was not set"):
            w.tolist()
        w.numpy()[...] = 2.0
        assert graph.compute(cpu)
        assert y.tolist() == [8.0] * 4


@pytest.mark.parametrize("how", ["allocate", "scheduler", "host", "dlpack", "view", "python device"])
def test_an_array_over_an_input_that_was_never_set_begins_with_zeros(cpu, how):
    for _ in range(8):  # so that the next memory is not zero
        with gb.Context() as before:
            t = before.tensor((4, 64))
            before.allocate(cpu)
            t.set(7.0)
    with gb.Context(allocate=how == "host") as ctx, gb.Scheduler([cpu]) as sched:
        x = ctx.tensor((4, 64), name="x")
        graph = ctx.graph(y := x + 1.0)
        if how in ("scheduler", "dlpack"):
            sched.allocate(graph)
        elif how == "python device":
            gb.devices.register_device("HOSTMEM", gb.devices.Device, replace=True)
            ctx.allocate(gb.Backend("HOSTMEM"))
        elif how != "host":
            ctx.allocate(cpu)
        for copied in (lambda: x.numpy(copy=True), x.tolist, x[0, 0].item):
            with pytest.raises(gb.errors.StateError, match="was not set"):
                copied()
        if how == "view":
            assert not x[1:].numpy().any()  # the rest of the input is also zero
        array = np.from_dlpack(x) if how == "dlpack" else x.numpy()
        assert not array.any() and x.tolist() == [[0.0] * 64] * 4
        array[1] = 2.0
        assert sched.compute(graph) if how in ("scheduler", "dlpack") else graph.compute(cpu)
        assert y.numpy().tolist() == [[1.0] * 64, [3.0] * 64, [1.0] * 64, [1.0] * 64]
        assert x.numpy()[1].tolist() == [2.0] * 64, "zeros were given once"


def test_first_arrays_of_an_input_on_several_threads_lose_no_write(cpu):
    with gb.Context() as ctx:
        tensors = [ctx.tensor((1 << 14,)) for _ in range(50)]
        ctx.allocate(cpu)
        gate = threading.Barrier(4)

        def write(k):
            for t in tensors:
                gate.wait()
                t.numpy()[k] = k + 1

        run_threads(4, write)
        for t in tensors:
            array = t.numpy()
            assert array[:4].tolist() == [1, 2, 3, 4] and not array[4:].any()


def test_an_array_keeps_the_memory_of_its_creation(cpu):
    with gb.Context() as ctx:
        t = ctx.tensor(1 << 18, name="t")
        buffers = [ctx.allocate(cpu)]
        t.set(1.0)

        def trace(frame: Any, event: str, arg: Any) -> Any:
            between = frame.f_code.co_name in ("array_at", "__dlpack__")  # between the look-up and the array
            if between and event == "call":  # acts like another thread or a signal handler
                sys.settrace(None)
                buffers[0].close()
                buffers.append(ctx.allocate(cpu))
                t.set(2.0)
            return trace

        sys.settrace(trace)
        try:
            array = t.numpy()
        finally:
            sys.settrace(None)
        assert len(buffers) == 2
        buffers[1].close()
        del buffers[:]
        assert array.sum() == 1 << 18


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_custom_function_keeps_its_array(cpu, scheduled):
    kept = []

    def run() -> None:
        ctx = gb.Context(allocate=True)
        x = ctx.tensor(1 << 20)
        x.set(7.0)

        def keep(out: Any, a: Any) -> Any:
            kept.append(a)
            return a

        graph = ctx.graph(gb.ops.map_custom(keep, x))
        if scheduled:
            with gb.Scheduler([cpu]) as scheduler:
                scheduler.compute(graph)
        else:
            graph.compute(cpu)

    run()
    gc.collect()
    for _ in range(2):
        gb.Context(allocate=True).tensor(1 << 20).set(0.0)
    assert kept[0].sum() == 7 << 20


@pytest.mark.parametrize("way", ["leafs", "get", "sources", "view_of"])
def test_tensors_found_through_others_belong_to_their_own_context(cpu, way):
    ctx = gb.Context()
    x = ctx.tensor(4, name="x")
    young = gb.Context()
    with young.as_default():
        y = gb.ops.relu(x[:2]) + young.tensor(2)
    graph = young.graph(y)
    view = y.sources[0].sources[0]
    if way == "leafs":
        found = next(t for t in graph.leafs if t.name == "x")
    else:
        found = graph["x"] if way == "get" else view.sources[0] if way == "sources" else view.view_of
    assert found is not None and found.name == "x"
    buffer = cpu.allocate(1024)
    buffer.place(found)
    del found, graph, view, y
    young.close()
    gc.collect()
    gb.Context().tensor(3)
    x.set(3.0)
    assert x.tolist() == [3.0] * 4
    buffer.close()
    with pytest.raises(gb.errors.StateError):
        x.numpy()


def test_a_log_function_can_call_the_package(ctx):
    x, y = ctx.tensor(3, name="x"), ctx.tensor(3, name="y")
    said = []
    gb.set_log(lambda level, text: said.append((text, y.is_placed)))
    faulthandler.dump_traceback_later(30, exit=True)
    try:
        with pytest.raises(gb.errors.StateError, match="no memory"):
            x.numpy()
    finally:
        faulthandler.cancel_dump_traceback_later()
        gb.set_log(None)
    assert any("no memory" in text for text, _ in said)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("drop", [False, True])
def test_a_child_uses_the_backend_of_a_pending_run(cpu, drop):
    sim = gb.Backend("SIM:delay=300ms")
    scheduler = gb.Scheduler([sim, cpu])
    ctx = gb.Context()
    x = ctx.tensor(4, name="x")
    graph = ctx.graph(y := gb.ops.relu(x))
    scheduler.allocate(graph)
    x.set(1.0)
    pending = scheduler.compute_async(graph)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            faulthandler.dump_traceback_later(20, exit=True)
            if drop:
                del scheduler, pending
            else:
                for act in (pending.wait, y.numpy, lambda: scheduler.compute(graph)):
                    with pytest.raises(gb.errors.StateError):
                        act()
            with gb.Scheduler([cpu]) as own, gb.Context() as new:
                z = new.tensor(4)
                h = new.graph(r := gb.ops.relu(z))
                own.allocate(h)
                z.set(2.0)
                own.compute(h)
                code = int(r.tolist() != [2.0] * 4)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    pending.wait()
    assert y.tolist() == [1.0] * 4


def test_a_tensor_can_have_thousands_of_owners(cpu):
    with gb.Context() as ctx, gb.Scheduler([cpu]) as scheduler:
        total = ctx.tensor(2, name="x")
        x = total
        for i in range(600):
            total = total + ctx.from_numpy(np.full(2, i, np.float32))
        graph = ctx.graph(total)
        scheduler.allocate(graph)
        x.set(1.0)
        made = scheduler.stats.plans_made
        for _ in range(3):
            scheduler.compute(graph)
        assert total.tolist() == [1.0 + 600 * 599 / 2] * 2
        assert scheduler.stats.plans_made == made
