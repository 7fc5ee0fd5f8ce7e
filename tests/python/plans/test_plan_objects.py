"""A plan describes what the scheduler does."""

import json
import re

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cli.examples import NAMES


def chain(ctx, layers=4, n=16):
    w = ctx.tensor((n, n), name="w")
    x = ctx.tensor((3, n), name="x")
    y = x
    for i in range(layers):
        y = gb.ops.relu(y @ w.T + (y * y if i % 2 else y)).named(f"y{i}")
    return w, x, y, ctx.graph(y)


def test_a_plan_on_one_device(ctx, cpu):
    w, x, y, graph = chain(ctx)
    with gb.Scheduler([cpu]) as sched:
        plan = sched.prepare(graph)
        (arena,) = plan.arenas
        assert arena is plan.memory["CPU"]
        assert arena.proved
        assert arena.peak == arena.lower_bound
        assert arena.gap == 0.0
        assert arena.allocated == sched.memory(cpu).allocated
        assert arena.peak <= arena.no_reuse
        assert plan.copies == ()
        (split,) = plan.splits
        assert split.backend == "CPU"
        assert len(split.nodes) == graph.n_nodes == split.end - split.start
        names = {b.name for b in arena.blocks}
        assert "y3" in names
        assert "w" not in names  # an input has memory outside the arena
        x.set(np.ones((3, 16), np.float32))
        w.set(np.eye(16, dtype=np.float32))
        assert plan.compute()
        expected = np.ones((3, 16), np.float32)
        for i in range(4):
            expected = np.maximum(expected + (expected**2 if i % 2 else expected), 0)
        np.testing.assert_allclose(y.numpy(), expected)
        assert re.fullmatch(
            r"<Plan of \d+ nodes in \d+ steps: 1 split, 0 copies; CPU: arena [\d.]+ \w+ \(optimal\), total .*>",
            repr(plan),
        )


def test_scratch_memory(ctx, sim):
    """A product with several threads needs scratch memory, an addition none. A device without a
    report counts as none."""
    cpu = gb.Backend("CPU", n_threads=2)
    a, b = ctx.tensor((64, 256), gb.float32, name="a"), ctx.tensor((64, 256), gb.dtypes.q8_0, name="b")
    product, total = ctx.graph(a @ b.T), ctx.graph(a + a)
    with gb.Scheduler([sim, cpu]) as sched:
        sched.set_backend(product.nodes[0], cpu)
        sched.set_backend(total.nodes[0], cpu)
        arena = sched.prepare(product).memory["CPU"]
        assert arena.scratch > 0
        assert arena.total == arena.allocated + arena.scratch
        assert sched.prepare(total).memory["CPU"].scratch == 0
        assert sched.prepare(total).memory[sim.name].scratch == 0


def overlaps(a, b):
    in_time = a.lower < b.upper and b.lower < a.upper
    return in_time and a.chunk == b.chunk and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


@pytest.mark.parametrize("devices", [["CPU"], ["SIM", "CPU"], ["SIM", "SIM", "CPU"]])
def test_live_blocks_do_not_overlap(ctx, devices, rng):
    backends = [gb.Backend(d) for d in devices]
    _, _, _, graph = chain(ctx, 9)
    with gb.Scheduler(backends) as sched:
        for node in graph.nodes:
            if node.name.startswith("y"):
                sched.set_backend(node, backends[int(rng.integers(len(backends)))])
        plan = sched.prepare(graph)
        assert [a.backend for a in plan.arenas] == [b.name for b in backends]
        for arena, backend in zip(plan.arenas, backends, strict=True):
            assert arena.allocated == sched.memory(backend).allocated
            for a in arena.blocks:
                root = arena.blocks[a.root] if a.in_place else a
                assert root.offset == a.offset
                for b in arena.blocks:
                    same = (b.root if b.in_place else b.id) == root.id
                    assert same or not overlaps(a, b), (a, b)
            assert max((b.offset + b.nbytes for b in arena.blocks), default=0) <= arena.peak
        assert sum(len(s.nodes) for s in plan.splits) == graph.n_nodes
        assert sum(c.nbytes for c in plan.copies if c.reason != "write-back") == sum(
            s.input_nbytes for s in plan.splits
        )
        assert sum(s.n_inputs for s in plan.splits) == len([c for c in plan.copies if c.reason != "write-back"])
        for copy in plan.copies:
            assert copy.src_backend != copy.dst_backend


def test_weights_are_kept(ctx, cpu, sim):
    weights = gb.Context()
    w = weights.tensor((8, 8), name="w")
    weights.allocate(cpu, usage="weights")
    x = ctx.tensor((2, 8), name="x")
    y = (x @ w.T).named("y")
    graph = ctx.graph(y)
    with gb.Scheduler([sim, cpu]) as sched:
        sched.set_backend(y, sim)
        plan = sched.prepare(graph)
        kept = {c.name: c for c in plan.copies}["w"]
        assert (kept.reason, kept.src_backend, kept.dst_backend, kept.nbytes) == ("kept", "CPU", sim.name, 256)
        assert plan.memory[sim.name].replicas >= 256
        assert plan.explain(y).startswith(f"runs on {sim.name}, as you assigned it")


def test_several_plans_of_one_scheduler(cpu):
    with gb.Context() as a, gb.Context() as b, gb.Scheduler([cpu]) as sched:
        w1, x1, y1, g1 = chain(a, 2, 8)
        w2, x2, y2, g2 = chain(b, 3, 4)
        p1, p2 = sched.prepare(g1), sched.prepare(g2)
        for _ in range(3):
            for plan, w, x, y in [(p1, w1, x1, y1), (p2, w2, x2, y2)]:
                sched.allocate(plan.graph)
                w.set(np.eye(w.shape[0], dtype=np.float32))
                x.set(np.full(x.shape, 0.5, np.float32))
                plan.compute()
                assert y.numpy()[0, 0] == {8: 1.0 + 1.0, 4: 4.0}[w.shape[0]]


def test_pictures(ctx, cpu, sim, tmp_path):
    _, _, _, graph = chain(ctx, 6)
    with gb.Scheduler([sim, cpu]) as sched:
        plan = sched.prepare(graph)
        page = plan.to_html(tmp_path / "plan.html")
        assert (tmp_path / "plan.html").read_text(encoding="utf-8") == page
        assert "y5" in page
        rows = plan.to_csv().splitlines()
        assert rows[0].startswith("id,lower,upper,size,offset")
        assert len(rows) == 1 + sum(len(a.blocks) for a in plan.arenas)
        assert sim.name in plan.to_text()
        assert "<" in plan._repr_html_()


def test_closed(ctx, cpu):
    _, _, _, graph = chain(ctx)
    sched = gb.Scheduler([cpu])
    plan = sched.prepare(graph)
    sched.close()
    assert plan.arenas[0].blocks  # the plan stays readable
    with pytest.raises(gb.errors.StateError):
        plan.compute()
    with pytest.raises(gb.errors.StateError):
        sched.prepare(graph)


def test_reasons_are_kept_after_closing(ctx, cpu):
    _, x, y, graph = chain(ctx)
    device = gb.Backend("SIM", name="MUL", ops=["mul_mat"])
    sched = gb.Scheduler([device, cpu])
    plan = sched.prepare(graph, allocate=False)
    reasons = {t: plan.explain(t) for t in (x, *graph.nodes)}
    assert "made without this operator" in reasons[y]
    other = gb.ops.relu(y)
    sched.close()
    assert {t: plan.explain(t) for t in reasons} == reasons
    with pytest.raises(gb.errors.StateError):
        plan.explain(other)
    assert "made without this operator" in plan.to_html()
    ctx.close()
    with pytest.raises(gb.errors.StateError, match="closed"):
        plan.explain(y)


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_planned(name, capsys):
    from ggml_backend.cli import main

    assert main(["plan", name, "--devices", "SIM,CPU", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["nodes"] > 60
    for arena in result["arenas"]:
        assert arena["lower_bound"] <= arena["peak"]
        assert arena["allocated"] == arena["peak"] + arena["inputs"] + arena["kept_copies"]
        assert arena["scratch"] >= 0
    assert main(["plan", name]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\n +arena +[0-9,]+\n", text) and re.search(r"\n +CPU\n", text)
    assert main(["plan", "none-of-them"]) != 0
    assert ", ".join(NAMES) in capsys.readouterr().err


def test_devices_of_equal_names_are_numbered() -> None:
    a, b, c = gb.Backend("CPU"), gb.Backend("CPU"), gb.Backend("CPU")
    ctx, scheduler = gb.Context(), gb.Scheduler([a, b, c])
    x = ctx.tensor((64, 64), name="x")
    h, y = gb.ops.relu(x), gb.ops.relu(x) * 2.0
    scheduler.set_backend(h, b)
    scheduler.set_backend(y, c)
    plan = scheduler.prepare(ctx.graph(h, y))
    assert list(plan.memory) == ["CPU", "CPU1", "CPU2"]
    assert {s.backend for s in plan.splits} >= {"CPU1", "CPU2"}
    assert "CPU1" in scheduler.explain(h) and "CPU2" in scheduler.explain(y)
    assert {s.backend for s in scheduler.stats.splits} >= {"CPU1", "CPU2"}
    assert repr(scheduler).startswith("<Scheduler CPU, CPU1, CPU2:")
    x.set(1.0)
    with scheduler.trace() as trace:
        scheduler.compute(plan.graph)
    assert "CPU2" in trace.to_json()
