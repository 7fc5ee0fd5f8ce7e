"""Plans predict the allocated memory exactly. Also tests several plans of one scheduler."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._ffi import ffi, lib


def allocated(sched: gb.Scheduler) -> dict[str, int]:
    """Bytes of a scheduler's buffers, by name of their type. Counts the buffers themselves, without
    what a type adds (the CPU's: space for alignment)."""
    core = sched._core
    added = {b.buffer_type.name: b.allocate(4096).nbytes - 4096 for b in sched.backends}
    found: dict[str, int] = {}
    for i in range(lib.gbpy_n_owned(core.h)):
        buffer = lib.gbpy_owned(core.h, i)
        if lib.ggml_backend_buffer_get_size(buffer):  # a freed buffer has size 0
            name = ffi.string(lib.ggml_backend_buft_name(lib.ggml_backend_buffer_get_type(buffer))).decode()
            found[name] = found.get(name, 0) + lib.ggml_backend_buffer_get_size(buffer) - added[name]
    return found


def random_graph(ctx: gb.Context, rng: np.random.Generator, weights: list[gb.Tensor]) -> gb.Graph:
    """Square matrices of several sizes: products, sums, views, in-place results, results that are
    read much later."""
    live = [ctx.tensor((int(rng.integers(1, 40)), 32), name=f"in{i}") for i in range(int(rng.integers(1, 4)))]
    for i in range(int(rng.integers(3, 40))):
        a = live[int(rng.integers(len(live)))]
        match rng.integers(7):
            case 0:
                y = a @ weights[int(rng.integers(len(weights)))].T
            case 1:
                y = a + a
            case 2:
                y = gb.ops.relu(a)
            case 3:
                y = gb.ops.cont(gb.ops.transpose(gb.ops.cont(gb.ops.transpose(a))))
            case 4:
                y = gb.ops.soft_max(a)
            case 5:
                y = gb.ops.concat(a, live[int(rng.integers(len(live)))], axis=0) if a.shape[0] < 200 else gb.ops.sqr(a)
            case _:
                y = gb.ops.scale(a[: max(1, a.shape[0] // 2)], 2.0)
        live.append(y.named(f"n{i}"))
        if len(live) > 6:
            live.pop(int(rng.integers(len(live))))
    return ctx.graph(*live[-3:])


@pytest.mark.parametrize(
    "devices", [["CPU"], ["SIM:name=A", "CPU"], ["SIM:name=A", "SIM:name=B,align=256", "CPU"]], ids=len
)
def test_plans_predict_allocated_memory(devices, rng):
    for _ in range(40):
        backends = [gb.Backend(d) for d in devices]
        names = [b.buffer_type.name for b in backends]
        with gb.Context() as kept, gb.Context() as ctx, gb.Scheduler(backends) as sched:
            weights = [kept.tensor((32, 32), name=f"w{i}") for i in range(3)]
            kept.allocate(backends[-1], usage="weights")
            for w in weights:
                w.set(rng.standard_normal((32, 32)).astype(np.float32))
            graph = random_graph(ctx, rng, weights)
            for node in graph.nodes:
                if rng.random() < 0.3:
                    sched.set_backend(node, backends[int(rng.integers(len(backends)))])
            draft = sched.prepare(graph, allocate=False)
            assert allocated(sched) == {}
            assert not any(t.is_placed for t in graph.nodes)
            plan = sched.prepare(graph)
            assert (draft.arenas, draft.splits, draft.copies) == (plan.arenas, plan.splits, plan.copies)
            said = {name: plan.memory[b.name].allocated for name, b in zip(names, backends, strict=True)}
            assert allocated(sched) == {name: n for name, n in said.items() if n}
            assert sum(said.values()) == sum(sched.buffer_nbytes(b) for b in backends)
            for t in graph.leafs:
                if t.name.startswith("in"):
                    t.set(1)
            for _ in range(2):  # running allocates nothing
                assert plan.compute()
            assert allocated(sched) == {name: n for name, n in said.items() if n}
            for arena in plan.arenas:
                assert arena.lower_bound <= arena.peak <= arena.no_reuse


# --------------------------------------------------------------------------------------------------------- side by side


class Block:
    """A step like that of a language model: tokens, a cache that is written at a position and read
    up to it."""

    def __init__(self, weights: dict[str, gb.Tensor], cache: gb.Tensor, tokens: int, position: int) -> None:
        self.ctx = ctx = gb.Context()
        self.tokens, self.position = tokens, position
        self.x = ctx.tensor((tokens, 16), name="x").set_input()
        k = self.x @ weights["k"].T
        write = gb.ops.cpy(k, cache[position : position + tokens])
        q = self.x @ weights["q"].T
        seen = cache[: position + tokens]
        self.scores = (q @ seen.T).named("scores").set_output()
        self.graph = ctx.graph(write, self.scores)


@pytest.mark.parametrize("devices", [["CPU"], ["SIM:name=A", "CPU"]], ids=len)
def test_plans_of_prompt_and_token_are_kept(rng, devices):
    """The scheduler keeps one plan for the prompt and one for a token. After the first run of each,
    it plans and allocates nothing."""
    backends = [gb.Backend(d) for d in devices]
    values = {n: rng.standard_normal((16, 16)).astype(np.float32) for n in "kq"}
    with gb.Context() as kept, gb.Scheduler(backends) as sched:
        weights = {n: kept.tensor((16, 16), name=n) for n in "kq"}
        cache = kept.tensor((64, 16), name="cache")
        kept.allocate(backends[0], usage="weights")
        for n, w in weights.items():
            w.set(values[n])
        cache.set(0)
        prompt = Block(weights, cache, 8, 0)
        token = Block(weights, cache, 1, 8)
        plans = {step: sched.prepare(step.graph) for step in (prompt, token)}
        known = np.zeros((64, 16))
        memory = None
        for i in range(4):
            for step in (prompt, token):
                X = rng.standard_normal((step.tokens, 16)).astype(np.float32)
                step.x.set(X)
                assert plans[step].compute()
                known[step.position : step.position + step.tokens] = X.astype(np.float64) @ values["k"].T
                expected = X.astype(np.float64) @ values["q"].T @ known[: step.position + step.tokens].T
                np.testing.assert_allclose(step.scores.numpy(), expected, rtol=1e-4, atol=1e-3)
            if i == 0:
                memory = allocated(sched)
                sched.reset_stats()
        stats = sched.stats
        assert (stats.runs, stats.plans_made, stats.plans_replayed) == (6, 0, 0)
        assert stats.weights.n == 0
        assert allocated(sched) == memory


def test_smaller_steps_use_the_reserved_layout(rng, cpu):
    """A pass over fewer tokens with the structure of the reserved one needs no new layout and no
    allocation."""
    values = {n: rng.standard_normal((16, 16)).astype(np.float32) for n in "kq"}
    with gb.Context() as kept, gb.Scheduler([cpu]) as sched:
        weights = {n: kept.tensor((16, 16), name=n) for n in "kq"}
        cache = kept.tensor((64, 16), name="cache")
        kept.allocate(cpu, usage="weights")
        for n, w in weights.items():
            w.set(values[n])
        cache.set(0)
        sched.reserve(Block(weights, cache, 32, 0).graph)
        before = sched.stats
        for tokens in (31, 17, 2):
            step = Block(weights, cache, tokens, 0)
            sched.allocate(step.graph)
            X = rng.standard_normal((tokens, 16)).astype(np.float32)
            step.x.set(X)
            assert sched.compute(step.graph)
            expected = X.astype(np.float64) @ values["q"].T @ (X.astype(np.float64) @ values["k"].T).T
            np.testing.assert_allclose(step.scores.numpy(), expected, rtol=1e-4, atol=1e-3)
        after = sched.stats
        assert after.plans_replayed - before.plans_replayed == 3
        assert after.plans_made == before.plans_made


def test_a_plan_without_allocation_changes_nothing(cpu, sim):
    """``prepare`` and ``explain`` of one graph do not change memory, results or pending runs of
    another graph."""
    with gb.Context() as ctx, gb.Scheduler([sim, cpu]) as sched:
        x, y, graph = chain(ctx, 8)
        big, z, other = chain(ctx, 64)
        sched.set_backend(z, sim)
        plan = sched.prepare(graph)
        x.set(3)
        pending = sched.compute_async(graph, results=[y])
        draft = sched.prepare(other, allocate=False)
        assert draft.explain(z) == f"runs on {sim.name}, as you assigned it"
        assert plan.explain(y)
        assert (pending.results()[0] == 12).all()
        assert not big.is_placed
        np.testing.assert_array_equal(y.numpy(), np.full(y.shape, 12))  # the result is still there
        assert sched.stats.plans_made == 2
        with pytest.raises(gb.errors.StateError, match="not set"):
            draft.compute()
        big.set(1)
        assert draft.compute() is True or pytest.fail("a draft runs when its inputs are set")
        assert sched.stats.plans_made == 2


def test_a_plan_that_does_not_fit_is_made(cpu):
    with gb.Backend("SIM:mem=4K") as small, gb.Context() as ctx, gb.Scheduler([small, cpu]) as sched:
        _, y, graph = chain(ctx, 4096)
        sched.set_backend(y, small)
        need = sched.prepare(graph, allocate=False).memory[small.name].allocated
        assert need >= 4 * 4096 * 4
        with pytest.raises(gb.errors.AllocationError):
            sched.prepare(graph)
        with gb.Backend(f"SIM:mem={need}") as large, gb.Context() as second, gb.Scheduler([large, cpu]) as enough:
            x, y, graph = chain(second, 4096)
            enough.set_backend(y, large)
            plan = enough.prepare(graph)
            assert plan.memory[large.name].allocated == need
            x.set(2)
            assert plan.compute() and (y.numpy() == 6).all()


def chain(ctx, n):
    x = ctx.tensor((4, n), name="x").set_input()
    y = gb.ops.relu(gb.ops.sqr(x) + x).named("y").set_output()
    return x, y, ctx.graph(y)


def test_an_older_plan_still_runs(cpu):
    """This holds even after more graphs than the scheduler caches."""
    with gb.Scheduler([cpu]) as sched:
        contexts = [gb.Context() for _ in range(20)]
        nets = [chain(c, 8 + i) for i, c in enumerate(contexts)]
        plans = [sched.prepare(graph) for _, _, graph in nets]
        for i, ((x, y, graph), plan) in enumerate(zip(nets, plans, strict=True)):
            sched.allocate(graph)
            x.set(i + 1)
            assert plan.compute()
            np.testing.assert_array_equal(y.numpy(), np.full(y.shape, (i + 1) ** 2 + i + 1))
            assert plan.memory["CPU"].blocks
            assert plan.explain(y)


def test_plans_outlive_their_objects(cpu):
    ctx = gb.Context()
    sched = gb.Scheduler([cpu])
    x, y, graph = chain(ctx, 8)
    plan = sched.prepare(graph)
    words = repr(plan)
    ctx.close()
    for act in (plan.compute, lambda: plan.explain(y)):
        with pytest.raises(gb.errors.StateError, match=r"context.*closed"):
            act()
    assert plan.arenas[0].peak > 0
    assert plan.to_csv().count("\n") >= 2
    assert repr(plan) == words
    with gb.Context() as other:
        x, y, graph = chain(other, 8)
        plan = sched.prepare(graph)
        x.set(1)
        reason = plan.explain(y)
        sched.close()
        with pytest.raises(gb.errors.StateError, match=r"scheduler.*closed"):
            plan.compute()
        assert plan.explain(y) == reason
        del sched
        gc.collect()
        with pytest.raises(gb.errors.StateError, match=r"scheduler.*closed"):
            plan.compute()
        assert plan.graph is graph
        assert plan.to_text()


def test_plans_hold_their_scheduler_and_graph(cpu):
    """Only the plan refers to them."""
    ctx = gb.Context()
    x, y, graph = chain(ctx, 8)
    plan = gb.Scheduler([cpu]).prepare(graph)
    del graph
    gc.collect()
    x.set(2)
    assert plan.compute()
    assert (y.numpy() == 6).all()


def test_a_plan_after_reset_of_its_scheduler(cpu):
    with gb.Context() as ctx, gb.Scheduler([cpu]) as sched:
        x, y, graph = chain(ctx, 8)
        plan = sched.prepare(graph)
        sched.reset()
        with pytest.raises(gb.errors.StateError):
            x.set(1)
        sched.allocate(graph)
        x.set(1)
        assert plan.compute()
        assert (y.numpy() == 2).all()


def test_the_peak_covers_buffers_that_are_never_alive(rng):
    for _ in range(300):
        n = int(rng.integers(1, 12))
        lower = rng.integers(0, 10, n)
        upper = lower + rng.integers(0, 4, n)
        size = rng.integers(0, 1000, n)
        alignment = int(2 ** rng.integers(0, 7))
        plan = gb.planning.plan_memory(lower, upper, size, alignment, budget_ms=10)
        padded = -(-size // alignment) * alignment
        ends = plan.offsets + padded.astype(np.uint64)
        assert plan.peak == int(ends.max())
        assert plan.lower_bound <= plan.bound <= plan.peak <= plan.best_fit
        load = max(int(padded[(lower <= t) & (t < upper)].sum()) for t in range(14))
        assert plan.lower_bound == max(load, int(padded[lower == upper].max(initial=0)))
        assert not plan.proved or plan.peak == plan.bound
        again = gb.planning.plan_memory(lower, upper, size, alignment, capacity=max(plan.peak, 1), budget_ms=10)
        assert again.peak <= max(plan.peak, 1)
        if plan.lower_bound > 1:
            with pytest.raises(gb.errors.AllocationError):
                gb.planning.plan_memory(lower, upper, size, alignment, capacity=plan.lower_bound - 1, budget_ms=10)


def test_buffers_that_are_never_alive_and_too_large_for_the_alignment():
    with pytest.raises(gb.errors.InvalidArgumentError, match="overflow"):
        gb.planning.plan_memory([3], [3], [2**64 - 1], alignment=64)
