"""Python functions that C calls: custom functions, and eval, abort and log callbacks, also if they
raise.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading

import numpy as np
import pytest

import ggml_backend as gb


def chain(ctx, n=5):
    x = ctx.tensor((4, 4), name="x")
    y = x
    for i in range(n):
        y = gb.ops.scale(y, 2.0).named(f"n{i}")
    return x, y, ctx.graph(y)


# ----------------------------------------------------------------------------------------------------------- custom ops


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("how", ["scheduler", "graph"])
def test_custom_operation(ctx, cpu, n, how):
    tensors = [ctx.from_numpy(np.full((2, 3), i + 1.0, np.float32)) for i in range(n)]
    seen = []

    def function(dst, *sources):
        seen.append((dst.shape, dst.flags.writeable, [s.flags.writeable for s in sources]))
        dst[...] = sum(sources) * 10

    y = gb.ops.map_custom(function, *tensors)
    graph = ctx.graph(y)
    assert y.op == f"MAP_CUSTOM{n}"
    if how == "scheduler":
        scheduler = gb.Scheduler([cpu])
        assert scheduler.compute(graph)
    else:
        ctx.allocate(cpu)
        assert graph.compute(cpu)
    assert (y.numpy() == sum(range(1, n + 1)) * 10).all()
    assert seen == [((2, 3), True, [False] * n)]


def test_custom_operation_in_place_and_between_others(ctx, cpu):
    x = ctx.tensor(4)
    y = gb.ops.map_custom(lambda d, a: np.negative(a), x * 2.0, inplace=True) + 1.0
    scheduler = gb.Scheduler([cpu])
    graph = ctx.graph(y)
    scheduler.allocate(graph)
    x.set([1, 2, 3, 4])
    scheduler.compute(graph)
    assert y.tolist() == [-1, -3, -5, -7]


def test_custom_operation_with_several_tasks(ctx):
    x = ctx.from_numpy(np.arange(100, dtype=np.float32))
    parts = set()

    def function(dst, a, ith, nth):
        parts.add((ith, nth))
        dst[ith::nth] = a[ith::nth] + 1

    y = gb.ops.map_custom(function, x, n_tasks=-1)
    gb.Scheduler([gb.Backend("CPU", n_threads=3)]).compute(graph := ctx.graph(y))
    del graph
    assert parts == {(0, 3), (1, 3), (2, 3)}


def test_custom_operation_over_devices(ctx, cpu, sim):
    x = ctx.tensor(4)
    y = gb.ops.relu(gb.ops.map_custom(lambda d, a: a - 2, x * 2.0))
    scheduler = gb.Scheduler([sim, cpu])
    graph = ctx.graph(y)
    scheduler.allocate(graph)
    x.set([0, 1, 2, 3])
    for _ in range(2):
        scheduler.compute(graph)
        assert y.tolist() == [0, 0, 2, 4]


@pytest.mark.parametrize("devices", [["CPU"], ["SIM", "CPU"]], ids="-".join)
@pytest.mark.parametrize("how", ["graph", "compute", "async", "callback", "abort"])
def test_handled_errors_of_a_callback_do_not_fail_the_run(ctx, how, devices):
    """This includes the same graph on another backend: the inner call is refused, and the outer one
    completes."""
    backends = [gb.Backend(d) for d in devices]
    host = backends[-1]
    never = gb.ops.relu(ctx.from_numpy(np.ones(3, np.float32)))
    refused = []

    def fail() -> None:
        for attempt in (
            never.numpy,
            lambda: graph.compute(gb.Backend("CPU", n_threads=1)),
            lambda: scheduler.compute(graph),
            lambda: ctx.tensor((2,) * 5),
        ):
            try:
                attempt()
            except gb.GgmlError as error:
                refused.append(str(error))

    def add(dst: np.ndarray, a: np.ndarray) -> None:
        if how not in {"callback", "abort"}:
            fail()
        dst[...] = a + 1

    x = ctx.tensor(4, name="x")
    y = x
    for _ in range(3):
        y = gb.ops.map_custom(add, gb.ops.relu(y))
    graph = ctx.graph(y)
    scheduler = gb.Scheduler(backends)
    if how == "graph":
        ctx.allocate(host)
    else:
        scheduler.allocate(graph)
    x.set(1.0)
    if how == "graph":
        assert graph.compute(host) is True
    elif how == "async":
        (result,) = scheduler.compute_async(graph, [y]).results()
        assert result.tolist() == [4, 4, 4, 4]
    elif how == "callback":
        assert scheduler.compute(graph, lambda t: fail()) is True
    else:
        if how == "abort":
            gb.sched.set_abort_callback(host, lambda: bool(fail()))
        assert scheduler.compute(graph) is True
    gb.sched.set_abort_callback(host, None)
    assert len(refused) >= 4, refused
    assert y.numpy().tolist() == [4, 4, 4, 4]


def test_custom_operation_that_raises_in_compare(ctx, cpu):
    y = gb.ops.map_custom(lambda d, a: 1 / 0, ctx.from_numpy(np.ones(4, np.float32)))
    graph = ctx.graph(y)
    ctx.allocate(cpu)
    with pytest.raises(ZeroDivisionError):
        graph.compare(cpu, gb.Backend("CPU"))


def test_custom_arguments(ctx):
    x = ctx.tensor(3)
    for wrong, error in [
        ((3, x), TypeError),
        ((print,), ValueError),
        ((print, x, x, x, x), ValueError),
        ((print, 3), TypeError),
    ]:
        with pytest.raises(error):
            gb.ops.map_custom(*wrong)
    with pytest.raises(gb.errors.InvalidArgumentError):
        gb.ops.map_custom(print, x, n_tasks=0)


# -------------------------------------------------------------------------------------------------------- eval callback


@pytest.mark.parametrize("devices", [["CPU"], ["SIM", "CPU"]], ids=str)
def test_a_callback_reads_results_of_a_run_that_plans_again(ctx, devices):
    """A graph made after the allocation makes a node an output, so the run needs another plan."""
    x = ctx.tensor((4,), name="x")
    h = gb.ops.silu(x)
    y = gb.ops.sum(h).named("y")
    graph, scheduler = ctx.graph(y * h), gb.Scheduler([gb.Backend(name) for name in devices])
    scheduler.allocate(graph)
    ctx.graph(h)
    x.set(np.full(4, 2, np.float32))
    seen = []
    assert scheduler.compute(graph, lambda t: seen.append(t.item()) is None, [y])
    np.testing.assert_allclose(seen, [8 / (1 + np.exp(-2))], rtol=1e-6)


@pytest.mark.parametrize("devices", [["CPU"], ["SIM", "CPU"]], ids=str)
def test_eval_callback(ctx, devices):
    x, _, graph = chain(ctx)
    scheduler = gb.Scheduler([gb.Backend(d) for d in devices])
    scheduler.allocate(graph)
    x.set(1)
    seen = []

    def see(t):
        seen.append((t.name, float(t.numpy()[0, 0])))

    assert scheduler.compute(graph, callback=see) is True
    assert seen == [(f"n{i}", 2.0 ** (i + 1)) for i in range(5)]
    for wanted, names in [
        ("n[13]", ["n1", "n3"]),
        (["n2"], ["n2"]),
        ([graph["n4"]], ["n4"]),
        (lambda t: t.name > "n2", ["n3", "n4"]),
        ([], []),
    ]:
        seen.clear()
        assert scheduler.compute(graph, callback=see, wanted=wanted)
        assert [name for name, _ in seen] == names
    seen.clear()
    scheduler.set_eval_callback(see, "n0")
    scheduler.compute(graph)
    assert [name for name, _ in seen] == ["n0"]
    scheduler.set_eval_callback(None)
    scheduler.compute(graph)
    assert len(seen) == 1


@pytest.mark.parametrize("devices", [["CPU"], ["SIM", "CPU"]], ids=str)
def test_eval_callback_stops(ctx, devices):
    x, y, graph = chain(ctx)
    scheduler = gb.Scheduler([gb.Backend(d) for d in devices])
    scheduler.allocate(graph)
    x.set(1)
    seen = []
    assert scheduler.compute(graph, callback=lambda t: seen.append(t.name) or len(seen) < 2) is False
    assert seen == ["n0", "n1"]
    assert scheduler.compute(graph) is True
    assert y.numpy()[0, 0] == 32


@pytest.mark.parametrize("where", ["callback", "wanted"])
def test_eval_callback_that_raises(ctx, cpu, where):
    x, y, graph = chain(ctx)
    scheduler = gb.Scheduler([cpu])
    scheduler.allocate(graph)
    x.set(1)
    seen = []

    def bad(t):
        seen.append(t.name)
        raise LookupError(t.name)

    with pytest.raises(LookupError, match="n0"):
        scheduler.compute(
            graph, callback=bad if where == "callback" else seen.append, wanted=bad if where == "wanted" else None
        )
    assert seen == ["n0"]
    assert scheduler.compute(graph) is True
    assert y.numpy()[0, 0] == 32


def test_reentering_is_refused(ctx, cpu):
    x, _, graph = chain(ctx)
    scheduler = gb.Scheduler([cpu])
    ctx.allocate(cpu)
    x.set(0.0)
    acts = [
        lambda: scheduler.compute(graph),
        lambda: scheduler.allocate(graph),
        scheduler.reset,
        lambda: graph.compute(cpu),
        cpu.synchronize,
    ]
    for act in acts:
        with pytest.raises(gb.errors.StateError, match="callback"):
            scheduler.compute(graph, callback=lambda t, act=act: act())
    assert scheduler.compute(graph)


def test_closing_everything_in_a_callback(cpu):
    ctx = gb.Context()
    x, y, graph = chain(ctx)
    scheduler = gb.Scheduler([cpu])
    scheduler.allocate(graph)
    x.set(1)
    result = []

    def close(t):
        result.append(t.numpy())
        scheduler.close()
        ctx.close()
        cpu.close()

    with contextlib.suppress(gb.errors.StateError):
        scheduler.compute(graph, callback=close, wanted=["n4"])
    assert scheduler.closed
    del x, y, graph
    gc.collect()
    assert (result[0] == 32).all()


# ---------------------------------------------------------------------------------------------------------------- abort


@pytest.mark.parametrize("how", ["scheduler", "graph"])
def test_abort_callback(ctx, cpu, how):
    x, _, graph = chain(ctx, 50)
    scheduler = gb.Scheduler([cpu])
    if how == "graph":
        ctx.allocate(cpu)
    else:
        scheduler.allocate(graph)
    run = (lambda: graph.compute(cpu)) if how == "graph" else (lambda: scheduler.compute(graph))
    x.set(0)
    asked = []
    gb.sched.set_abort_callback(cpu, lambda: asked.append(1) or len(asked) > 3)
    assert run() is False
    assert 3 < len(asked) < 50

    def bad():
        raise OSError("from the callback")

    gb.sched.set_abort_callback(cpu, bad)
    with pytest.raises(OSError, match="from the callback"):
        run()
    gb.sched.set_abort_callback(cpu, None)
    assert run() is True
    with pytest.raises(gb.errors.InvalidArgumentError):
        gb.sched.set_abort_callback(gb.Backend("SIM"), None)


def test_stop_from_another_thread(ctx, cpu):
    started = threading.Event()
    release = threading.Event()

    def wait(dst, a):
        started.set()
        release.wait(20)
        dst[...] = a

    after = []
    y = gb.ops.map_custom(
        lambda d, a: after.append(1) or a, gb.ops.map_custom(wait, ctx.from_numpy(np.ones(4, np.float32)))
    )
    graph = ctx.graph(y)
    scheduler = gb.Scheduler([cpu])
    scheduler.allocate(graph)
    results = []
    thread = threading.Thread(target=lambda: results.append(scheduler.compute(graph)))
    thread.start()
    assert started.wait(20)
    cpu.stop()
    release.set()
    thread.join(20)
    assert results == [False]
    assert after == []
    assert scheduler.compute(graph) is True
    cpu.stop()  # no effect without a computation
    assert scheduler.compute(graph) is True


# ------------------------------------------------------------------------------------------------------------------ log


def test_log(ctx):
    messages = []
    gb.set_log(lambda level, text: messages.append((level, text)))
    try:
        with pytest.raises(gb.errors.InvalidArgumentError):
            gb.ops.mul_mat(ctx.tensor((2, 3)), ctx.tensor((2, 4)))
    finally:
        gb.set_log(None)
    assert any("mul_mat" in text and not text.endswith("\n") for _, text in messages)
    n = len(messages)
    with pytest.raises(gb.errors.InvalidArgumentError):
        gb.ops.mul_mat(ctx.tensor((2, 3)), ctx.tensor((2, 4)))
    assert len(messages) == n


def test_log_to_a_logger(ctx, caplog):
    gb.set_log(logging.getLogger("ggml_backend"))
    try:
        with caplog.at_level(logging.DEBUG, "ggml_backend"), pytest.raises(gb.errors.InvalidArgumentError):
            gb.ops.mul_mat(ctx.tensor((2, 3)), ctx.tensor((2, 4)))
    finally:
        gb.set_log(None)
    assert [r.levelno for r in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("shape", [(2, 2), (0,), (4, 4, 1), (5,)])
def test_a_wrong_result_of_a_map_names_both_shapes(ctx, cpu, shape):
    x = ctx.constant(np.ones((4, 4), np.float32))
    mapped = gb.ops.map_custom(lambda out, a: np.ones(shape, np.float32), x)
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"must have the shape \(4, 4\)"):
        gb.Scheduler([cpu]).compute(ctx.graph(mapped))
