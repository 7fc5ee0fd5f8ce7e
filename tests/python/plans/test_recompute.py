"""Plans with ``max_bytes`` keep the limit, and compute the same bits as plans without one."""

import numpy as np
import pytest

import ggml_backend as gb

DEPTH, WIDTH, ROWS = 6, 24, 64


def network(ctx, attention=False):
    """A chain of layers with residuals, its loss and the gradients of all weights."""
    x = ctx.tensor((ROWS, WIDTH), name="x")
    target = ctx.tensor((ROWS, WIDTH), name="target")
    weights, h = [], x
    for i in range(DEPTH):
        w = ctx.tensor((2 * WIDTH, WIDTH), name=f"w{i}")
        v = ctx.tensor((WIDTH, 2 * WIDTH), name=f"v{i}")
        y = gb.ops.rms_norm(h).named(f"norm{i}")
        if attention:
            y = gb.ops.soft_max(y @ h.T) @ h
        h = h + gb.ops.silu(y @ w.T).named(f"silu{i}") @ v.T
        weights += [w, v]
    loss = gb.ops.sum(gb.ops.sqr(h - target)).named("loss")
    return [x, target, *weights], loss, gb.grad(loss, weights)


def fill(leafs, seed=3):
    rng = np.random.default_rng(seed)
    for t in leafs:
        t.set((rng.standard_normal(t.shape) * 0.3).astype(np.float32))


def computed(sched, plan, leafs, results):
    fill(leafs)
    assert plan.compute()
    return [plan.result(t).numpy().copy() for t in results]


def peak(plan):
    return sum(a.peak for a in plan.arenas)


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()


def beside_no_limit(devices, share, attention=False, placed=lambda sched, graph: {}, **options):
    """The plan with a share of the activations' memory, after its results are compared. ``placed`` assigns nodes, and
    returns the names of their backends."""
    with gb.Context() as ctx:
        leafs, loss, grads = network(ctx, attention)
        graph = ctx.graph(loss, *grads)
        with gb.Scheduler(devices, **options) as sched:
            places = placed(sched, graph)
            without = sched.prepare(graph, allocate=False)
            kept = sum(t.nbytes for t in graph.outputs)
            limit = kept + int((peak(without) - kept) * share)
            plan = sched.prepare(graph, max_bytes=limit)
            assert peak(plan) <= limit < peak(without)
            assert plan.recomputation.peak == peak(plan)
            assert {t: sched.get_backend(plan.result(t)).name for t in places} == places
            found = computed(sched, plan, leafs, [loss, *grads])
        with gb.Scheduler(devices, **options) as sched:
            placed(sched, graph)
            assert_same(found, computed(sched, sched.prepare(graph), leafs, [loss, *grads]))
        return plan


@pytest.mark.usefixtures("node_by_node")
@pytest.mark.parametrize("share", [0.5, 0.25])
@pytest.mark.parametrize("attention", [False, True])
def test_gradients_are_the_same_bits(cpu, share, attention):
    plan = beside_no_limit(cpu, share, attention, check=True)
    again = plan.recomputation
    assert again.nodes
    assert 1 < again.price < (1.2 if share == 0.5 else 1.4)
    assert again.lower_bound <= again.least <= again.peak < again.peak_before
    assert {f"{name} (again)" for name in again.nodes if name} <= {t.name for t in plan.graph.nodes}


@pytest.mark.parametrize("share", [0.7, 0.4])
def test_gradients_of_gradients_are_the_same_bits(ctx, cpu, share):
    leafs, loss, grads = network(ctx)
    again = gb.grad(gb.ops.sum(gb.ops.sqr(grads[0])), leafs[2:4])
    graph, found = ctx.graph(loss, *grads, *again), []
    for within in (False, True):
        with gb.Scheduler(cpu) as sched:
            plan = sched.prepare(graph, allocate=False)
            limit = int(sum(t.nbytes for t in graph.outputs) * (1 - share) + peak(plan) * share)
            plan = sched.prepare(graph, max_bytes=limit if within else None)
            found.append(computed(sched, plan, leafs, [loss, *grads, *again]))
            assert not within or plan.recomputation.nodes
    assert_same(*found)


def test_fused_gradients_are_the_same_bits(cpu):
    beside_no_limit(cpu, 0.3)


def test_arrays_compute_the_same_bits(cpu):
    with gb.Backend("ARRAY") as array:
        beside_no_limit([array, cpu], 0.4)


@pytest.mark.usefixtures("node_by_node")
@pytest.mark.parametrize("seed", range(3))
def test_placements_are_kept(cpu, seed):
    rng = np.random.default_rng(seed)
    with gb.Backend("SIM", mem="64M") as sim:

        def placed(sched, graph):
            choice, places = np.random.default_rng(seed), {}
            for i, node in enumerate(graph.nodes):
                if choice.random() < 0.1 or i == 0:
                    backend = (sim, cpu)[int(choice.integers(2))]
                    sched.set_backend(node, backend)
                    places[node] = backend.name
            return places

        plan = beside_no_limit([sim, cpu], 0.5 + 0.3 * rng.random(), placed=placed, check=True)
        assert len({s.backend for s in plan.splits}) == 2


def test_a_limit_that_is_met_changes_nothing(ctx, cpu):
    _, loss, grads = network(ctx)
    graph = ctx.graph(loss, *grads)
    with gb.Scheduler(cpu) as sched:
        given = sched.prepare(graph, allocate=False)
        assert given.recomputation is None
        assert given.result(loss) is loss
        plan = sched.prepare(graph, max_bytes=peak(given))
        assert plan.graph is graph
        assert plan.recomputation.price == 1
        assert plan.recomputation.nodes == ()


def test_the_least_in_the_message_is_enough(ctx, cpu):
    _, loss, grads = network(ctx)
    graph = ctx.graph(loss, *grads)
    with gb.Scheduler(cpu) as sched:
        for limit in (0, 1000):
            with pytest.raises(
                gb.errors.AllocationError, match=f"max_bytes is {limit} .* needs [0-9]+ bytes"
            ) as caught:
                sched.prepare(graph, max_bytes=limit)
        least = int(str(caught.value).split(" needs ")[1].split()[0])
        plan = sched.prepare(graph, allocate=False, max_bytes=least)
        assert peak(plan) <= least
        assert sched.prepare(graph, allocate=False).graph is graph


def test_graphs_without_gradients_use_it_too(ctx, cpu):
    """A result that is read at once and at the end, with a larger one in between."""
    x = ctx.tensor((64, 64), name="x")
    early = gb.ops.tanh(x).named("early")
    wide = gb.ops.repeat(gb.ops.sum_rows(early), (64, 256))
    y = gb.ops.sum(early * gb.ops.sum(wide))
    graph = ctx.graph(y)
    with gb.Scheduler(cpu) as sched:
        given = sched.prepare(graph, allocate=False)
        plan = sched.prepare(graph, max_bytes=peak(given) - 1)
        assert plan.recomputation.nodes == ("early",)
        value = np.linspace(-1, 2, x.size, dtype=np.float32).reshape(x.shape)
        x.set(value)
        plan.compute()
        expected = 256 * np.tanh(value, dtype=np.float64).sum() ** 2
        np.testing.assert_allclose(plan.result(y).numpy(), expected, rtol=1e-5)


def test_nodes_with_effects_run_once(ctx, cpu):
    calls = []

    def count(dst, a):
        calls.append(1)
        return a * 2

    x = ctx.tensor((32, 32), name="x")
    y = gb.ops.map_custom(count, x).named("custom")
    rows = gb.ops.repeat(y, (32, 256)).named("rows")
    early = gb.ops.tanh(rows).named("early")
    cache = ctx.tensor((32, 256), name="cache")
    stored = gb.ops.cpy(early, cache).named("stored")
    wide = gb.ops.repeat(gb.ops.sum_rows(early), (32, 1024))
    z = gb.ops.sum(early * gb.ops.sum(wide)) + gb.ops.sum(y)
    graph = ctx.graph(z, stored)
    with gb.Scheduler(cpu) as sched:
        given = sched.prepare(graph, allocate=False)
        plan = sched.prepare(graph, max_bytes=peak(given) - 24576)
        assert plan.recomputation.nodes == ("rows", "early")
        x.set(np.ones((32, 32), np.float32))
        cache.set(np.zeros((32, 256), np.float32))
        plan.compute()
        assert len(calls) == 1
        np.testing.assert_allclose(cache.numpy(), np.tanh(np.float32(2)), rtol=1e-6)


@pytest.mark.usefixtures("node_by_node")
def test_graphs_with_memory_get_another_plan(ctx, cpu):
    leafs, loss, grads = network(ctx)
    graph = ctx.graph(loss, *grads)
    with gb.Scheduler(cpu) as sched:
        before = sched.prepare(graph)
        expected = computed(sched, before, leafs, [loss, *grads])
        for _ in range(2):
            plan = sched.prepare(graph, max_bytes=peak(before) * 2 // 3)
            assert peak(plan) <= peak(before) * 2 // 3
            assert_same(computed(sched, plan, leafs, [loss, *grads]), expected)
            sched.reset()
        assert_same(computed(sched, sched.prepare(graph), leafs, [loss, *grads]), expected)


def test_plans_whose_bytes_cannot_be_saved_name_the_least(ctx, cpu, sim):
    """A plan of copies alone, and one of results without elements, which take a place in the arena."""
    x = ctx.tensor((64, 64), name="x")
    h = gb.ops.tanh(x)
    y = gb.ops.exp(h)
    copied = ctx.graph(y)
    ctx.allocate(sim)
    empty = gb.Context()
    none = gb.ops.tanh(empty.tensor((0, 4))) @ empty.tensor((4, 4)).T
    with gb.Scheduler([sim, cpu]) as sched:
        sched.set_backend(h, sim)
        sched.set_backend(y, cpu)
        for graph in (copied, empty.graph(none)):
            least = peak(sched.prepare(graph, allocate=False))
            assert least > 0
            with pytest.raises(gb.errors.AllocationError, match=f"needs {least} bytes .* fewer than 0 bytes alive"):
                sched.prepare(graph, max_bytes=0)
            assert sched.prepare(graph, max_bytes=least).recomputation.peak == least


def test_refused(ctx, cpu):
    _, loss, grads = network(ctx)
    graph = ctx.graph(loss, *grads)
    with gb.Scheduler(cpu) as sched:
        for wrong in (-1, -(2**70)):
            with pytest.raises(gb.errors.InvalidArgumentError, match=f"max_bytes {wrong} is negative"):
                sched.prepare(graph, max_bytes=wrong)
        for wrong in ("1", 1.5, [1], float("nan"), float("inf")):
            with pytest.raises(TypeError, match="max_bytes must be an int"):
                sched.prepare(graph, max_bytes=wrong)
        with pytest.raises(
            gb.errors.AllocationError, match=r"max_bytes is 0 \(0 B\), and the plan with the least memory"
        ):
            sched.prepare(graph, max_bytes=0)
        assert sched.prepare(graph, allocate=False, max_bytes=2**80).graph is graph
        plan = sched.prepare(graph)
        with pytest.raises(TypeError, match=r"Plan\.result: tensor must be a Tensor"):
            plan.result("loss")
    with gb.Scheduler(cpu) as sched:
        copy = graph.context.graph(loss)
        ctx.close()
        with pytest.raises(gb.errors.StateError, match="closed"):
            sched.prepare(copy, max_bytes=1)


@pytest.mark.parametrize("attention", [False, True])
def test_a_higher_limit_never_costs_more(ctx, cpu, attention):
    _, loss, grads = network(ctx, attention)
    graph = ctx.graph(loss, *grads)
    prices = []
    with gb.Scheduler(cpu) as sched:
        given = sched.prepare(graph, allocate=False)
        kept = sum(t.nbytes for t in graph.outputs)
        for share in np.linspace(0.2, 1, 12):
            limit = kept + int((peak(given) - kept) * share)
            plan = sched.prepare(graph, allocate=False, max_bytes=limit)
            assert peak(plan) <= limit
            prices.append(plan.recomputation.price)
    assert prices == sorted(prices, reverse=True)
    assert prices[0] > 1.05
    assert prices[-1] == 1
