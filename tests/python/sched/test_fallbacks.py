"""Warnings about heavy operators that run on a device of lower priority."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

import ggml_backend as gb


def products(ctx, layers=3, n=256, dtype=gb.float32):
    x = ctx.tensor((128, n), name="x")
    y = x
    for i in range(layers):
        y = gb.ops.relu(y @ ctx.tensor((n, n), dtype, name=f"w{i}").T).named(f"out{i}")
        y.sources[0].named(f"product{i}")
    return x, y, ctx.graph(y)


@pytest.fixture
def weak():
    """A device without matrix products."""
    return gb.Backend("SIM:name=WEAK,noops=mul_mat")


def allocated(sched, *graphs):
    """Allocates graphs and sets their inputs. Ignores warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for graph in graphs:
            sched.allocate(graph)
            for leaf in graph.leafs:
                leaf.set(...)


def caught(act):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [w for w in found if issubclass(w.category, gb.errors.PerformanceWarning)]


def test_the_warning_names_operators_and_reasons(ctx, cpu, weak):
    x, y, graph = products(ctx)
    with gb.Scheduler([weak, cpu]) as sched:
        (warning,) = caught(lambda: sched.allocate(graph))
        message = str(warning.message)
        assert "3 heavy operations" in message
        assert re.search(r"MUL_MAT 'product1' \(17 MFLOP\) runs on CPU, not on WEAK: .*without this operator", message)
        assert "set_backend" in message
        assert "ignore" in message
        assert warning.filename == __file__
        assert issubclass(warning.category, UserWarning)


def test_once_for_each_plan(ctx, cpu, weak):
    x, y, graph = products(ctx)
    with gb.Context() as other, gb.Scheduler([weak, cpu]) as sched:
        _, _, second = products(other, 1)
        assert len(caught(lambda: sched.allocate(graph))) == 1
        allocated(sched, graph)
        acts = [
            lambda: sched.compute(graph),
            lambda: sched.prepare(graph).compute(),
            lambda: sched.allocate(graph),
        ]
        for act in acts:
            assert caught(act) == []
        (warning,) = caught(lambda: sched.prepare(second))
        assert "a heavy operation does not run" in str(warning.message)
        allocated(sched, second)
        for g in (graph, second, graph, second):  # both are known
            assert caught(lambda g=g: sched.compute(g)) == []


def test_once_for_plans_without_allocation(ctx, cpu, weak):
    x, y, graph = products(ctx)
    with gb.Scheduler([weak, cpu]) as sched:
        acts = [
            lambda: sched.prepare(graph, allocate=False, reorder=True),
            lambda: sched.prepare(graph, allocate=False),
            lambda: sched.allocate(graph),
        ]
        (warning,) = [w for act in acts for w in caught(act)]
        assert warning.filename == __file__


def test_no_warning_without_a_loss(ctx, cpu, weak):
    x, y, graph = products(ctx)
    strong = gb.Backend("SIM")
    for backends in ([cpu], [strong, cpu], [strong, weak, cpu], [cpu, gb.Backend("CPU")], [weak]):
        with gb.Scheduler(backends) as sched:
            if backends == [weak]:
                with pytest.raises(gb.errors.UnsupportedError):
                    sched.allocate(graph)
            else:
                assert caught(lambda sched=sched: sched.allocate(graph)) == []
    with gb.Context() as small:
        _, _, graph = products(small, 2, 32)
        with gb.Scheduler([weak, cpu]) as sched:  # too little for a warning
            assert caught(lambda sched=sched, graph=graph: sched.allocate(graph)) == []


def test_no_warning_for_assigned_nodes(ctx, cpu, weak):
    x, y, graph = products(ctx)
    with gb.Scheduler([weak, cpu]) as sched:
        for node in graph.nodes:
            if node.name != "product1":
                sched.set_backend(node, cpu if node.op == "MUL_MAT" else weak)
        (warning,) = caught(lambda: sched.allocate(graph))
        assert "'product1'" in str(warning.message)
        assert "'product0'" not in str(warning.message)


def test_large_copied_results_count(ctx, cpu):
    weak = gb.Backend("SIM:name=WEAK,noops=relu")
    x = ctx.tensor((512, 1024), name="x")
    y = gb.ops.sqr(gb.ops.relu(gb.ops.sqr(x).named("before")).named("middle")).named("after")
    graph = ctx.graph(y)
    with gb.Scheduler([weak, cpu]) as sched:
        (warning,) = caught(lambda: sched.allocate(graph))
        assert re.search(
            r"UNARY 'middle' runs on CPU, not on WEAK: .*; that costs copies of 2 tensors, 4.00 MiB",
            str(warning.message),
        )


def test_many_fallbacks_are_summarized(ctx, cpu, weak):
    x, y, graph = products(ctx, 20)
    with gb.Scheduler([weak, cpu]) as sched:
        (warning,) = caught(lambda: sched.allocate(graph))
        message = str(warning.message)
        assert "20 heavy operations" in message
        assert "and 17 more" in message
        assert message.count("MUL_MAT 'product") == 3


def test_the_warning_as_an_error_leaves_objects_usable(ctx, cpu, weak, rng):
    x, y, graph = products(ctx, 1)
    with gb.Scheduler([weak, cpu]) as sched:
        with warnings.catch_warnings():
            warnings.simplefilter("error", gb.errors.PerformanceWarning)
            with pytest.raises(gb.errors.PerformanceWarning):
                sched.allocate(graph)
            sched.allocate(graph)  # the warning was given before
            X, W = (rng.standard_normal(s).astype(np.float32) for s in ((128, 256), (256, 256)))
            x.set(X)
            graph["w0"].set(W)
            assert sched.compute(graph)
        np.testing.assert_allclose(y.numpy(), np.maximum(X @ W.T, 0), rtol=1e-3, atol=1e-3)


def test_reset_statistics_repeat_no_warning(ctx, cpu, weak):
    x, y, graph = products(ctx)
    with gb.Scheduler([weak, cpu]) as sched:
        assert len(caught(lambda: sched.allocate(graph))) == 1
        sched.reset_stats()
        allocated(sched, graph)
        assert caught(lambda: sched.compute(graph)) == []
        sched.reset()  # discards placements, so the graph is planned again
        assert len(caught(lambda: sched.allocate(graph))) == 1


def placed(ctx, backend, usage, n=512):
    """A product with weights in a user's buffer."""
    w, x = ctx.tensor((n, n), name="w"), ctx.tensor((4, n), name="x")
    buffer = backend.allocate(w.nbytes, usage)
    buffer.place(w)
    w.set(2.0)
    y = x @ w.T
    return x, w, y, ctx.graph(y), buffer


@pytest.mark.parametrize("where", ["SIM", "CPU"])
def test_warning_about_weights_without_usage(ctx, cpu, sim, where):
    """Without usage "weights" they are copied to the device of highest priority. With it, their
    readers run on their device."""
    home, other = (sim, cpu) if where == "SIM" else (cpu, sim)
    x, _, y, graph, buffer = placed(ctx, home, "any")
    with gb.Scheduler([other, home]) as sched:
        (warning,) = caught(lambda: sched.allocate(graph))
        message = str(warning.message)
        names = [b.name for b in (home, other)]
        assert re.search(
            r"'w' \(1.00 MiB\) from {} to {}".format(*(n.rstrip("0123456789") + r"\d*" for n in names)), message
        ), message
        assert "usage='weights'" in message
        assert warning.filename == __file__
        x.set(1.0)
        assert caught(lambda: sched.compute(graph)) == []
        assert sched.splits[0].backend == other.name
        assert (y.numpy() == 1024).all()
    buffer.usage = "weights"
    with gb.Scheduler([other, home]) as sched:
        assert caught(lambda: sched.allocate(graph)) == []
        x.set(1.0)
        assert caught(lambda: sched.compute(graph)) == []
        assert [s.backend for s in sched.splits] == [home.name]
        assert sched.stats.weights.nbytes == 0
        assert (y.numpy() == 1024).all()


@pytest.mark.parametrize("how", ["lookup", "view", "experts"])
def test_warnings_name_weights_of_each_operator(ctx, cpu, sim, how):
    _, w, _, _, _ = placed(ctx, sim, "any", 1024)
    if how == "lookup":
        y = gb.ops.get_rows(w, ctx.tensor(3, gb.int32, name="ids"))
    elif how == "view":
        y = ctx.tensor((4, 1024)) @ w[:512].T
    else:
        y = gb.ops.mul_mat_id([w, w], ctx.tensor((4, 1), gb.int32), 0, ctx.tensor((4, 1024)))
    with gb.Scheduler([cpu, sim]) as sched:
        (warning,) = caught(lambda: sched.allocate(ctx.graph(y)))
        assert ("'w (view)' (" if how == "view" else "'w' (") in str(warning.message)


def test_copied_tensors_other_than_weights(ctx, cpu, sim):
    """Inputs and results in the user's memory, small weights, and tensors in memory of the
    scheduler."""
    x, w, y, graph, _ = placed(ctx, sim, "any", 128)
    with gb.Scheduler([cpu, sim]) as sched:
        assert caught(lambda: sched.allocate(graph)) == []
    with gb.Context() as other, gb.Scheduler([sim, cpu]) as sched:
        a = other.tensor((2048, 512), name="a")
        other.allocate(cpu)
        a.set(1.0)
        b = other.tensor((64, 512), name="b")
        assert caught(lambda: sched.allocate(other.graph(gb.ops.relu(a) @ b.T))) == []
