"""Example graphs and orders of nodes: results are the same bits with memory of its own for each tensor, with shared memory, in another order."""

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend import _examples


def fill(graph, seed=1):
    rng = np.random.default_rng(seed)
    for leaf in graph.leafs:
        if leaf.dtype.name == "int32":
            leaf.set(np.arange(leaf.size, dtype=np.int32).reshape(leaf.shape))
        else:
            leaf.set((rng.standard_normal(leaf.shape, np.float32) * 0.1).astype(leaf.dtype.name))


def apart(name, cpu):
    context, graph = _examples.build(name)
    with context, context.allocate(cpu):
        fill(graph)
        graph.compute(cpu)
        return graph.outputs[0].numpy().copy()


@pytest.mark.parametrize("name", _examples.NAMES)
def test_examples_compute_the_same(name, cpu):
    expected = apart(name, cpu)
    assert np.isfinite(expected).all()
    assert expected.std() > 0
    context, graph = _examples.build(name)
    with context, gb.Scheduler([cpu]) as sched:
        for run in (graph, graph.reordered()):
            sched.allocate(run)
            fill(run)
            sched.compute(run)
            np.testing.assert_array_equal(run.outputs[0].numpy(), expected)
            sched.reset()


def peak(graph, cpu):
    with gb.Scheduler([cpu]) as sched:
        return sched.prepare(graph).arenas[0].peak


def test_less_memory(ctx, cpu):
    x = ctx.tensor((16,), name="x")
    large = [gb.repeat(x, (64, 16)).named(f"large{i}") for i in range(4)]
    y = sum((gb.sum_rows(t).named(f"small{i}") for i, t in enumerate(large[1:])), gb.sum_rows(large[0]))
    graph = ctx.graph(y)
    nodes = [t.name for t in graph.nodes]
    better = graph.reordered()
    assert [t.name for t in graph.nodes] == nodes
    assert sorted(t.name for t in better.nodes) == sorted(nodes)
    assert better.outputs == graph.outputs
    assert better.context is graph.context
    assert peak(better, cpu) <= peak(graph, cpu)


def test_the_unet_needs_less_in_another_order(cpu):
    context, graph = _examples.build("unet")
    with context:
        assert peak(graph.reordered(), cpu) < 0.95 * peak(graph, cpu)


def test_refused(ctx, cpu):
    x = ctx.tensor((4,), name="x")
    graph = ctx.graph(gb.sqr(x))
    with ctx.allocate(cpu):
        copy = graph.copy(cpu)
        with pytest.raises(gb.StateError):
            copy.reordered()
    ctx.close()
    with pytest.raises(gb.StateError):
        graph.reordered()
