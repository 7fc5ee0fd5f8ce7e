"""Graphs, allocators and the scheduler."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from conftest import open_device


class Net:
    """A small network and its results."""

    def __init__(self, ctx: gb.Context, rng: np.random.Generator, layers: int = 3) -> None:
        self.x = ctx.tensor((2, 8), name="x")
        self.w = [ctx.tensor((8, 8), name=f"w{i}") for i in range(layers)]
        self.hidden = []
        y = self.x
        for i, w in enumerate(self.w):
            y = gb.ops.relu(y @ w.T).named(f"h{i}")
            self.hidden.append(y)
        self.y = y
        self.graph = ctx.graph(y)
        self.W = [rng.standard_normal((8, 8)).astype(np.float32) for _ in self.w]
        self.X = rng.standard_normal((2, 8)).astype(np.float32)

    def set(self) -> None:
        self.x.set(self.X)
        for t, value in zip(self.w, self.W, strict=True):
            t.set(value)

    @property
    def expected(self) -> np.ndarray:
        y = self.X.astype(np.float64)
        for w in self.W:
            y = np.maximum(y @ w.T, 0)
        return y

    def check(self) -> None:
        np.testing.assert_allclose(self.y.numpy(), self.expected, rtol=1e-4, atol=1e-4)


@pytest.fixture
def net(ctx, rng):
    return Net(ctx, rng)


# --------------------------------------------------------------------------------------------------------------- graphs


def test_graph(net, ctx):
    g = net.graph
    assert len(g) == g.n_nodes == 6
    assert [t.op for t in g.nodes] == ["MUL_MAT", "RELU"] * 3
    assert {t.name for t in g.leafs} == {"x", "w0", "w1", "w2"}
    assert g.outputs == [net.y]
    assert g["h1"] == net.hidden[1]
    assert g.get("nothing") is None
    with pytest.raises(KeyError):
        g["nothing"]
    assert "6 nodes" in repr(g)
    assert g.context is ctx
    assert "<table>" in g._repr_html_()
    assert net.y.is_output
    assert net.x.is_input
    with pytest.raises(gb.errors.InvalidArgumentError):
        ctx.graph()


def test_dot(net):
    dot = net.graph.to_dot()
    assert dot.startswith("digraph")
    assert dot.count("->") >= 9
    for name in ("x", "w0", "h2"):
        assert name in dot


def test_graph_compute_on_one_backend(net, ctx, cpu, sim):
    with pytest.raises(gb.GgmlError):
        net.graph.compute(cpu)  # tensors have no memory
    ctx.allocate(cpu)
    net.set()
    assert net.graph.compute(cpu) is True
    net.check()
    with pytest.raises(gb.GgmlError):  # memory of another backend
        net.graph.compute(sim)


def test_deep_graph(ctx, cpu):
    x = ctx.tensor(4)
    y = x
    for _ in range(50_000):
        y = gb.ops.scale(y, 1.0, inplace=True)
    graph = ctx.graph(y)
    assert len(graph) == 50_000
    scheduler = gb.Scheduler([cpu])
    scheduler.allocate(graph)
    x.set([1, 2, 3, 4])
    scheduler.compute(graph)
    assert y.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("planned", [False, True], ids=["own memory", "scheduler"])
def test_readable_tensors_of_a_copy(ctx, cpu, planned):
    x, z = ctx.tensor((4,), name="x"), ctx.tensor((4,), name="z")
    h = gb.ops.relu(x)
    graph = ctx.graph(y := h + 1.0, w := gb.ops.sqr(z))
    scheduler = gb.Scheduler([cpu])
    if planned:
        scheduler.allocate(graph)
    else:
        ctx.allocate(cpu)

    def readable() -> list[bool]:
        """Reads y and w, in the graph and in a copy."""
        found = []
        for t, value in zip((y, w, *graph.copy(cpu).outputs), (3, 9, 3, 9), strict=True):
            try:
                found.append(t.tolist() == [value] * 4)
            except gb.errors.StateError:
                found.append(False)
        return found

    x.set(2.0)
    z.set(3.0)
    assert readable() == [False] * 4
    scheduler.compute(graph) if planned else graph.compute(cpu)
    assert readable() == [True] * 4
    z.set(3.0)
    assert readable() == [True, False, True, False]
    x.set(2.0)
    copy = graph.copy(cpu)
    assert copy.compute(cpu)
    assert copy.outputs[0].tolist() == [3] * 4
    copy["x"].set(5.0)
    with pytest.raises(gb.errors.StateError, match="out of date"):
        copy.outputs[0].numpy()
    assert copy.outputs[1].tolist() == [9] * 4


@pytest.mark.parametrize("device", ["CPU", "SIM", "CUDA0"])
def test_copy(net, ctx, cpu, device):
    ctx.allocate(cpu)
    net.set()
    backend = open_device(device)
    copy = net.graph.copy(backend)
    net.x.set(0)
    assert copy.compute(backend)
    assert copy.outputs[0].shape == (2, 8)
    np.testing.assert_allclose(copy.outputs[0].numpy(), net.expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(copy["w1"].numpy(), net.W[1])
    array = copy.outputs[0].numpy()
    with pytest.raises(gb.errors.StateError, match="copy"):
        gb.ops.relu(copy.outputs[0])
    before = array.copy()
    del copy
    np.testing.assert_array_equal(array, before)


def test_context_of_a_copy(ctx, cpu):
    x = ctx.tensor((2, 3), name="x")
    graph = ctx.graph(gb.ops.relu(x).named("y"), gb.ops.cont(x.T.named("t")).named("z"))
    ctx.allocate(cpu)
    x.set(1.0)
    graph.compute(cpu)
    copied = graph.copy(cpu).context
    assert {t.name for t in copied.tensors()} == {"x", "y", "t", "z"}
    assert copied["y"].tolist() == [[1.0] * 3] * 2 and copied.get("t") is not None and copied.get("no") is None
    assert copied.used_nbytes > 0
    with pytest.raises(gb.errors.StateError, match="copied graph have their memory"):
        copied.allocate(cpu)
    assert copied["y"].tolist() == [[1.0] * 3] * 2


def test_copy_needs_memory(net, cpu):
    with pytest.raises(gb.errors.StateError, match="no memory"):
        net.graph.copy(cpu)


def test_compare(net, ctx, cpu, sim):
    ctx.allocate(cpu)
    net.set()
    results = net.graph.compare(cpu, sim)
    assert [r.name for r in results if r.name.startswith("h")] == ["h0", "h1", "h2"]
    assert all(r.equal and r.max_abs == 0 and r.nmse == 0 for r in results)
    results = net.graph.compare(sim, cpu)  # the graph is not in memory of SIM, so a copy is compared
    assert len(results) == 6
    seen = []

    def see(index, a, b):
        seen.append((index, a.shape, np.array_equal(a, b)))
        return len(seen) < 2

    assert len(net.graph.compare(cpu, sim, see)) == 2
    assert seen == [(0, (2, 8), True), (1, (2, 8), True)]
    with pytest.raises(ZeroDivisionError):
        net.graph.compare(cpu, sim, lambda i, a, b: 1 / 0)
    net.check()


def test_compare_finds_differences(ctx, cpu):
    """A custom node whose result changes in each run simulates a wrong device."""
    x = ctx.from_numpy(np.ones(4, np.float32))
    calls = []

    def drift(dst, a):
        calls.append(1)
        dst[...] = a + len(calls)

    y = gb.ops.map_custom(drift, x)
    graph = ctx.graph(y)
    ctx.allocate(cpu)
    (result,) = graph.compare(cpu, gb.Backend("CPU", n_threads=1))
    assert (result.max_abs, result.equal) == (1.0, False)
    assert result.nmse > 0


# ----------------------------------------------------------------------------------------------------------- allocators


def test_tensor_allocator(ctx, cpu):
    a, b, c = (ctx.tensor(256, name=n) for n in "abc")
    measure = gb.sched.TensorAllocator(cpu, measure=True)
    for t in (a, b, c):
        measure.allocate(t)
    assert measure.is_measure
    assert not a.is_placed
    assert measure.max_nbytes >= 3 * 1024
    assert measure.buffer is None
    with gb.sched.TensorAllocator(cpu, size=2 * 1024 + 64) as allocator:
        assert allocator.allocate(a) is a
        allocator.allocate(b)
        assert a.buffer == allocator.buffer
        with pytest.raises(MemoryError, match="c"):
            allocator.allocate(c)
        assert not c.is_placed
        with pytest.raises(gb.GgmlError):
            allocator.allocate(a)
        a.set(1)
        b.set(2)
        allocator.reset()
        allocator.allocate(c)
        c.set(3)
        assert a.numpy()[0] == 3  # the same memory
    assert b.numpy()[0] == 2  # the buffer stays for the tensors
    for act in (allocator.reset, lambda: allocator.max_nbytes, lambda: allocator.allocate(c)):
        with pytest.raises(gb.errors.StateError):
            act()


def test_tensor_allocator_arguments(cpu):
    for wrong in (
        {"target": cpu},
        {"target": cpu, "size": 10, "measure": True},
        {"target": cpu.allocate(64), "size": 64},
        {"target": cpu.allocate(64), "measure": True},
    ):
        with pytest.raises(gb.errors.InvalidArgumentError):
            gb.sched.TensorAllocator(**wrong)


@pytest.mark.parametrize("device", ["CPU", "SIM", "CUDA0"])
def test_graph_allocator(net, device):
    backend = open_device(device)
    with gb.sched.GraphAllocator(backend) as allocator:
        size = allocator.measure(net.graph)
        assert size > 0
        assert not net.y.is_placed
        buffer = allocator.allocate(net.graph)
        assert allocator.nbytes == buffer.nbytes >= size
        for _ in range(2):
            net.set()
            assert net.graph.compute(backend)
            net.check()
        assert allocator.allocate(net.graph) == buffer
        net.set()
        assert net.graph.compute(backend)
        array = net.y.numpy()
        before = array.copy()
        allocator.allocate(net.graph)
        net.set()
        net.graph.compute(backend)
        np.testing.assert_array_equal(array, before)  # arrays keep their memory
    with pytest.raises(gb.errors.StateError):
        net.y.numpy()
    with pytest.raises(gb.errors.StateError):
        allocator.measure(net.graph)


def test_graph_allocator_reuses_memory(ctx, cpu):
    x = ctx.tensor((64, 64))
    y = x
    for _ in range(20):
        y = gb.ops.sqr(gb.ops.transpose(gb.ops.cont(gb.ops.transpose(y))))
    graph = ctx.graph(y)
    allocator = gb.sched.GraphAllocator(cpu)
    assert allocator.measure(graph) < 8 * 64 * 64 * 4
    n = len(graph)
    allocator.set_order([*range(n), -1])
    assert allocator.measure(graph) > 8 * 64 * 64 * 4  # without a barrier nothing is reused
    with pytest.raises(gb.GgmlError):  # noqa: PT012 - whichever of the two finds it
        allocator.set_order([n + 5])
        allocator.measure(graph)


# ------------------------------------------------------------------------------------------------------------ scheduler


@pytest.mark.parametrize(
    "devices",
    [
        ["CPU"],
        ["SIM", "CPU"],
        ["SIM", "SIM", "CPU"],
        ["SIM"],
        ["CUDA0", "CPU"],
        ["CUDA0", "CUDA0", "CPU"],
        ["CUDA0", "CUDA1", "CPU"],
        ["SIM", "CUDA0", "CPU"],
    ],
    ids=str,
)
def test_scheduler(net, devices):
    backends = [open_device(d) for d in devices]
    with gb.Scheduler(backends) as scheduler:
        scheduler.allocate(net.graph)
        net.set()
        for _ in range(3):
            assert scheduler.compute(net.graph) is True
            net.check()
        assert scheduler.n_splits == len(scheduler.splits) >= 1
        indices = [i for split in scheduler.splits for i in split.node_range]
        assert indices == [*range(len(net.graph.nodes))]
        names = [name for split in scheduler.splits for name in split.nodes]
        assert names == [t.name for t in net.graph.nodes]
        assert scheduler.backends == backends
        assert sum(scheduler.buffer_nbytes(b) for b in backends) > 0
        for b in backends:
            memory = scheduler.memory(b)
            assert 0 <= memory.allocated <= memory.no_reuse
    with pytest.raises(gb.errors.StateError):
        net.y.numpy()


def test_set_backend_places_nodes(net, cpu):
    a, b = gb.Backend("SIM"), gb.Backend("SIM")
    scheduler = gb.Scheduler([a, b, cpu])
    assert scheduler.get_backend(net.y) is None
    for i, backend in enumerate((a, cpu, b)):
        for t in (net.hidden[i], net.hidden[i].sources[0]):
            scheduler.set_backend(t, backend)
    scheduler.allocate(net.graph)
    net.set()
    assert scheduler.compute(net.graph)
    net.check()
    assert [s.backend for s in scheduler.splits] == [a.name, cpu.name, b.name]
    assert [scheduler.get_backend(h) for h in net.hidden] == [a, cpu, b]
    last = scheduler.splits[-1]
    assert "h1" in last.inputs and last.n_inputs == len(last.inputs)
    assert last.input_nbytes >= 64
    assert "Split 2" in repr(last)
    assert scheduler.explain(net.hidden[0]).startswith("runs on ")
    scheduler.set_backend(net.hidden[1], None)
    scheduler.allocate(net.graph)
    net.set()
    scheduler.compute(net.graph)
    net.check()
    scheduler.reset()
    assert scheduler.get_backend(net.hidden[0]) is None
    with pytest.raises(gb.errors.InvalidArgumentError, match="not one of its"):
        scheduler.set_backend(net.y, gb.Backend("CPU"))


def test_work_runs_on_the_device_of_its_weights(rng, cpu, sim):
    weights, run = gb.Context(), gb.Context()
    w = weights.tensor((8, 8), name="w")
    weights.allocate(sim, usage="weights")
    value = rng.standard_normal((8, 8)).astype(np.float32)
    w.set(value)
    x = run.tensor((2, 8), name="x")
    y = gb.ops.relu(x @ w.T)
    graph = run.graph(y)
    scheduler = gb.Scheduler([cpu, sim])
    scheduler.allocate(graph)
    assert scheduler.get_backend(graph.nodes[0]) is sim
    data = rng.standard_normal((2, 8)).astype(np.float32)
    x.set(data)
    scheduler.compute(graph)
    np.testing.assert_allclose(y.numpy(), np.maximum(data @ value.T, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy", ["weights", "sources"])
def test_policies(net, cpu, sim, policy):
    scheduler = gb.Scheduler([sim, cpu], policy=policy)
    scheduler.allocate(net.graph)
    net.set()
    assert scheduler.compute(net.graph)
    net.check()
    with pytest.raises(gb.errors.InvalidArgumentError, match="policy"):
        gb.Scheduler([cpu], policy="other")


def test_unsupported_operation_names_it(net):
    scheduler = gb.Scheduler([gb.Backend("SIM", ops=["mul_mat"])])
    with pytest.raises(gb.errors.UnsupportedError, match=r"(?i)relu"):
        scheduler.allocate(net.graph)
    with pytest.raises(NotImplementedError):
        scheduler.compute(net.graph)


def test_too_little_memory(ctx):
    x = ctx.tensor((1024, 1024), name="x")
    graph = ctx.graph(x @ x)
    with pytest.raises(MemoryError):
        gb.Scheduler([gb.Backend("SIM", mem="1M")]).allocate(graph)
    assert not x.is_placed


def test_reserve(net, cpu):
    scheduler = gb.Scheduler([cpu])
    scheduler.reserve(net.graph)
    assert scheduler.buffer_nbytes(cpu) > 0
    assert not net.y.is_placed
    scheduler.allocate(net.graph)
    net.set()
    scheduler.compute(net.graph)
    net.check()


def test_two_graphs_alternate(ctx, cpu, rng):
    first, second = Net(ctx, rng), Net(ctx, rng, layers=6)
    scheduler = gb.Scheduler([cpu])
    scheduler.allocate(first.graph)
    first.set()
    scheduler.allocate(second.graph)
    second.set()
    # inputs keep their data
    for net, other in ((first, second), (second, first), (first, second), (first, second), (second, first)):
        assert scheduler.compute(net.graph)
        net.check()
        with pytest.raises(gb.errors.StateError, match="another graph"):
            other.y.numpy()


def test_two_schedulers_compute_one_graph(net, cpu, sim):
    one, two = gb.Scheduler([cpu]), gb.Scheduler([sim, cpu])
    one.allocate(net.graph)
    net.set()
    assert one.compute(net.graph)
    net.check()
    one.close()
    two.allocate(net.graph)
    net.set()
    assert two.compute(net.graph)
    net.check()


def test_arrays_stay_valid_memory_when_the_scheduler_grows(ctx, cpu, rng):
    """Another graph may overwrite the arrays, but they stay valid memory."""
    scheduler = gb.Scheduler([cpu])
    arrays = []
    for layers in (1, 3, 9, 27):
        net = Net(ctx, rng, layers)
        scheduler.allocate(net.graph)
        net.set()
        scheduler.compute(net.graph)
        net.check()
        arrays.append(net.y.numpy())
        arrays.append(net.x.numpy())
    scheduler.reset()
    scheduler.allocate(net.graph)
    scheduler.close()
    for array in arrays:
        array[...] = 1
    assert all((array == 1).all() for array in arrays)


def test_inputs_survive_between_runs(ctx, cpu):
    x = ctx.tensor((64, 64), name="x")
    y = x
    for _ in range(5):
        y = gb.ops.cont(gb.ops.transpose(y)) * 1.0
    kept = ctx.graph(y)
    scheduler = gb.Scheduler([cpu])
    scheduler.allocate(kept)
    assert x.is_input
    assert x.is_output
    x.set(3)
    for _ in range(3):
        scheduler.compute(kept)
        assert (x.numpy() == 3).all()
        assert (y.numpy() == 3).all()
    other = gb.Context()
    x2 = other.tensor((64, 64))
    other.graph(x2 * 1.0, keep_inputs=False)
    assert x2.is_input
    assert not x2.is_output


def test_closed_weights_are_an_error(cpu):
    weights, run = gb.Context(), gb.Context()
    w = weights.tensor((8, 8), name="w")
    buffer = weights.allocate(cpu, usage="weights")
    w.set(1)
    x = run.tensor((2, 8))
    y = x @ w.T
    graph = run.graph(y)
    scheduler = gb.Scheduler([cpu])
    scheduler.allocate(graph)
    x.set(1)
    assert scheduler.compute(graph)
    buffer.close()
    for _ in range(2):
        with pytest.raises(gb.errors.StateError, match=r"closed|'w'.*freed"):
            scheduler.compute(graph)
    weights.allocate(cpu)
    w.set(2)
    assert scheduler.compute(graph)
    assert y.numpy()[0, 0] == 16


def test_sched_moves_inputs_when_a_node_moves(net, cpu, sim):
    scheduler = gb.Scheduler([sim, cpu])
    scheduler.allocate(net.graph)
    net.set()
    assert scheduler.compute(net.graph)
    net.check()
    for i, t in enumerate(net.graph.nodes):
        scheduler.set_backend(t, cpu if i < 2 else sim)
    assert scheduler.compute(net.graph)  # without setting the inputs again
    net.check()
    assert scheduler.n_splits == 2


def test_scheduler_arguments(cpu):
    for wrong in (([],), ([cpu], []), ([cpu, cpu], [cpu.buffer_type])):
        with pytest.raises(gb.errors.InvalidArgumentError):
            gb.Scheduler(*wrong)
    scheduler = gb.Scheduler([cpu], [cpu.buffer_type])
    assert scheduler.splits == []
    scheduler.close()
    scheduler.close()
    assert "closed" in repr(scheduler)


def test_closed_scheduler(net, cpu):
    with gb.Scheduler([cpu]) as scheduler:
        scheduler.allocate(net.graph)
    acts = [
        lambda: scheduler.allocate(net.graph),
        lambda: scheduler.compute(net.graph),
        lambda: scheduler.splits,
        lambda: scheduler.n_splits,
        lambda: scheduler.memory(cpu),
        lambda: scheduler.explain(net.y),
        lambda: scheduler.set_backend(net.y, cpu),
        scheduler.reset,
        lambda: scheduler.reserve(net.graph),
        lambda: scheduler.compute_async(net.graph),
        scheduler.synchronize,
    ]
    for act in acts:
        with pytest.raises(gb.errors.StateError, match="closed"):
            act()


def test_graph_grows_with_a_view_of_a_result(net, cpu):
    """A view made after the allocation points to memory of the scheduler, and loses it with the
    other tensors."""
    scheduler = gb.Scheduler([cpu])
    scheduler.allocate(net.graph)
    net.set()
    scheduler.compute(net.graph)
    row = net.y[1]
    np.testing.assert_array_equal(row.numpy(), net.y.numpy()[1])
    scheduler.reset()
    with pytest.raises(gb.errors.StateError):
        row.numpy()


def test_wrong_types_say_which_argument(net, cpu, sim):
    with gb.Scheduler([sim, cpu]) as sched:
        plan = sched.prepare(net.graph)
        for act in (sched.allocate, sched.prepare, sched.reserve, sched.compute, sched.compute_async):
            for wrong in (None, 7, net.y, "graph", sched):
                with pytest.raises(
                    TypeError, match=rf"Scheduler.{act.__name__}: graph must be a Graph, not {type(wrong).__name__}"
                ):
                    act(wrong)
        for wrong in (None, net.graph, "y", sched):
            for act in (sched.explain, sched.get_backend, plan.explain, lambda t: sched.set_backend(t, cpu)):
                with pytest.raises(TypeError, match=r"(node|tensor) must be a Tensor"):
                    act(wrong)
        for wrong in ("CPU", 0, net.graph):
            for act in (sched.memory, sched.buffer_nbytes, lambda b: sched.set_backend(net.y, b)):
                with pytest.raises(TypeError, match="backend must be a Backend"):
                    act(wrong)
        for leaf in net.graph.leafs:
            leaf.set(...)
        assert sched.compute(net.graph)
    for arguments, options, message in (
        (([1],), {}, "each backend must be a Backend, not int"),
        (([cpu], [None]), {}, "each buffer type must be a BufferType, not NoneType"),
        (([cpu],), {"costs": 3}, "costs must be a Costs, not int"),
        (([cpu],), {"costs": 3, "policy": "cost"}, "costs must be a Costs, not int"),
    ):
        with pytest.raises(TypeError, match=message):
            gb.Scheduler(*arguments, **options)
    for policy in ("best", None, 1, []):
        with pytest.raises(gb.errors.InvalidArgumentError, match="policy must be one of 'weights', 'sources', 'cost'"):
            gb.Scheduler([cpu], policy=policy)


def test_explain_of_a_tensor_without_a_graph(ctx, cpu, sim):
    x, other = ctx.constant(np.ones((2, 3), np.float32), name="x"), ctx.tensor((4, 5), name="other")
    graph = ctx.graph(gb.ops.relu(x))
    with gb.Scheduler([sim, cpu]) as scheduler:
        assert scheduler.explain(x) == "no backend: no graph is allocated"
        plan = scheduler.prepare(graph)
        assert (
            scheduler.explain(other) == "no backend: 'other' float32 (4, 5) is not in the graph that was allocated last"
        )
        assert plan.explain(other) == "no backend: 'other' float32 (4, 5) is not in the graph of the plan"
        assert all(scheduler.explain(t).startswith(("runs on ", "is on ")) for t in (*graph.nodes, *graph.leafs))
        scheduler.reset()
        assert scheduler.explain(x) == "no backend: no graph is allocated"
