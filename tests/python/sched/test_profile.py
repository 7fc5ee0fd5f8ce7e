"""Profiles against counts by NumPy: sums, threads, failures, forks and files."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from damage import replaced
from ggml_backend._ffi import lib
from test_trace import slices_of, validated
from threads import run_threads

BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int32": 4.0, "q8_0": 34 / 32, "q4_0": 18 / 32}


@pytest.fixture
def one(cpu: gb.Backend) -> Iterator[Callable[..., gb.profile.Profile]]:
    """The profile of one run that computes nodes with zero inputs."""

    def profile(*nodes: gb.Tensor) -> gb.profile.Profile:
        sched = gb.Scheduler([cpu])
        graph = nodes[0].context.graph(*nodes)
        sched.allocate(graph)
        for leaf in graph.leafs:
            leaf.set(...)
        with sched.profile() as p:
            assert sched.compute(graph)
        return p

    return profile


def of(p: gb.profile.Profile, name: str) -> Any:
    """The single record of the step that computes the node."""
    which = [i for i, step in enumerate(p.steps) if name in step.names]
    (record,) = (r for r in p.records if r["step"] in which)
    return record


def step_of(p: gb.profile.Profile, name: str) -> gb.profile.ProfileStep:
    (step,) = (s for s in p.steps if name in s.names)
    return step


def size(t: gb.Tensor) -> float:
    return float(np.prod(t.shape)) * BYTES[t.dtype.name]


def consistent(p: gb.profile.Profile) -> None:
    """Checks that records of a run are consecutive and within the run."""
    runs, records = p.runs, p.records
    assert p.dropped == 0
    for number, run in enumerate(runs):
        mine = records[records["run"] == number]
        assert (mine["start_ns"] >= run["start_ns"]).all()
        assert (mine["end_ns"] <= run["end_ns"]).all()
        assert (mine["start_ns"][1:] >= mine["end_ns"][:-1]).all()
    assert (records["end_ns"] >= records["start_ns"]).all()
    assert (records["waiting_ns"] >= 0).all()
    assert (records["waiting_ns"] <= records["threads"] * (records["end_ns"] - records["start_ns"])).all()
    assert ((records["tasks"] >= 1) & (records["tasks"] <= records["threads"])).all()


# ------------------------------------------------------------------------------------------------------ work, by NumPy


@pytest.mark.usefixtures("node_by_node")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "q8_0", "q4_0"])
def test_work_of_products(ctx, one, dtype):
    w, x = ctx.tensor((3, 48, 64), gb.dtypes.as_dtype(dtype)), ctx.tensor((3, 5, 64))
    y = gb.ops.mul_mat(w, x)
    y.name = "y"
    r = of(one(y), "y")
    assert r["flops"] == 2 * np.prod(y.shape) * 64
    assert (r["bytes_read"], r["bytes_written"]) == (size(w) + size(x), size(y))


@pytest.mark.usefixtures("node_by_node")
def test_work_of_other_operators(ctx, one):
    x, row, table = ctx.tensor((6, 32), name="x"), ctx.tensor((32,), name="row"), ctx.tensor((100, 32), gb.dtypes.q8_0)
    ids = ctx.tensor((4,), gb.int32)
    strided = ctx.tensor((6, 64))[:, :32]
    nodes = {
        "add": (x + row, size(x) + size(row)),
        "square": (x * x, size(x)),  # read once
        "gather": (gb.ops.get_rows(table, ids), 4 * 32 * BYTES["q8_0"] + size(ids)),
        "strided": (gb.ops.relu(strided), 6 * 32 * 4.0),  # without gaps
        "sum": (gb.ops.sum_rows(x), size(x)),
        "norm": (gb.ops.rms_norm(x), size(x)),
        "outer": (gb.ops.out_prod(x, ctx.tensor((6, 8), name="b")), size(x) + 6 * 8 * 4.0),
    }
    for name, (node, _) in nodes.items():
        node.name = name
    p = one(*(node for node, _ in nodes.values()))
    for name, (node, read) in nodes.items():
        r = of(p, name)
        assert r["bytes_read"] == read, name
        assert r["bytes_written"] == size(node), name
        assert r["flops"] == np.prod(node.shape) * (2 * 6 if name == "outer" else 1), name
    consistent(p)


@pytest.mark.usefixtures("node_by_node")
def test_work_of_experts(ctx, one):
    """A matrix counts once for each token that reads it: here three, of eight experts, for three
    tokens with one expert each."""
    experts = [ctx.tensor((16, 32), name=f"e{i}") for i in range(8)]
    ids, x = ctx.tensor((3, 1), gb.int32), ctx.tensor((3, 32))
    y = gb.ops.mul_mat_id(experts, ids, 0, x)
    y.name = "y"
    r = of(one(y), "y")
    assert r["flops"] == 2 * 3 * 16 * 32
    assert r["bytes_read"] == size(ids) + size(x) + 8 * 16 * 32 * 4 * 3 / 8
    assert r["bytes_written"] == size(y)


def chain(ctx: gb.Context) -> gb.Tensor:
    """A product and its successors, which the CPU fuses. The intermediate results are not
    outputs."""
    w, x, b = ctx.tensor((64, 96), name="w"), ctx.tensor((8, 96), name="x"), ctx.tensor((64,), name="bias")
    y = x @ w.T
    y.name = "product"
    y = y + b
    y.name = "sum"
    y = gb.ops.relu(y)
    y.name = "out"
    return y


@pytest.mark.skipif(not lib.ggml_graph_get_fusion(), reason="fusion is off")
def test_fused_steps_name_all_their_nodes(ctx, one):
    p = one(chain(ctx))
    step, r = step_of(p, "out"), of(p, "out")
    assert step == step_of(p, "product")
    assert (step.names, step.ops, step.fusion) == (("product", "sum", "out"), ("MUL_MAT", "ADD", "RELU"), "product")
    assert (step.source, step.source_dtype, step.device) == ("w", "float32", "CPU")
    assert step.shapes == ((8, 64),) * 3
    assert step.name == "w: product + sum + out"
    assert r["flops"] == 2 * 8 * 64 * 96 + 2 * 8 * 64
    assert r["bytes_read"] == 4 * (64 * 96 + 8 * 96 + 64)
    assert r["bytes_written"] == 4 * 8 * 64


@pytest.mark.usefixtures("node_by_node")
def test_without_fusion_each_node_is_a_step(ctx, one):
    p = one(chain(ctx))
    assert {s.names for s in p.steps} == {("product",), ("sum",), ("out",)}
    assert all(s.fusion == "" for s in p.steps)
    assert [s.algorithm != "" for s in p.steps] == [s.ops == ("MUL_MAT",) for s in p.steps]


# ------------------------------------------------------------------------------------------------------------- runs


def test_several_runs_add_up(ctx, cpu):
    sched, graph = gb.Scheduler([cpu]), ctx.graph(chain(ctx))
    sched.allocate(graph)
    for leaf in graph.leafs:
        leaf.set(...)
    with sched.profile() as p:
        for _ in range(7):
            sched.compute(graph)
        assert p.running
        assert len(p.runs) == 7  # also during the recording
    assert not p.running
    sched.compute(graph)  # not recorded
    consistent(p)
    assert len(p.runs) == 7
    assert p.runs["complete"].all()
    (row,) = p.table(["*"], limits=False)
    seconds = (p.records["end_ns"] - p.records["start_ns"]) * 1e-9
    per_run = np.array([seconds[p.records["run"] == i].sum() for i in range(7)])
    assert row.calls == len(p.records)
    assert row.runs == 7
    assert row.seconds == pytest.approx(seconds.sum())
    assert row.median == pytest.approx(np.median(per_run))
    assert row.share == pytest.approx(1.0)
    assert row.flops == p.records["flops"].sum()
    assert row.limit is None
    assert seconds.sum() <= p.seconds


def test_a_graph_is_profiled_with_any_scheduler(ctx, cpu):
    x = ctx.tensor((4, 4), name="x")
    y = gb.ops.relu(x)
    y.name = "y"
    graph, other = ctx.graph(y), ctx.graph(gb.ops.sqr(x))
    ctx.allocate(cpu)
    x.set(np.ones((4, 4), np.float32))
    with graph.profile() as p:
        assert graph.compute(cpu)
        assert other.compute(cpu)
        gb.Scheduler([cpu]).compute(graph)
    consistent(p)
    assert [s.names for s in p.steps] == [("y",)]
    assert len(p.runs) == 2


def test_each_run_is_recorded_by_its_nearest_profile(ctx, cpu):
    graph = ctx.graph(gb.ops.relu(ctx.constant(np.ones(4, np.float32))))
    sched = gb.Scheduler([cpu])
    with gb.profile.Profile.everything() as all_of_it, graph.profile() as of_graph, sched.profile() as of_sched:
        sched.compute(graph)
        of_sched.stop()
        sched.compute(graph)
        of_graph.stop()
        sched.compute(graph)
    assert [len(p.runs) for p in (of_sched, of_graph, all_of_it)] == [1, 1, 1]


def test_threads_share_a_profile():
    with gb.profile.Profile.everything() as p:

        def work(i: int) -> None:
            with gb.Context() as ctx, gb.Scheduler([gb.Backend("CPU", n_threads=2)]) as sched:
                graph = ctx.graph(gb.ops.relu(ctx.constant(np.full(8, i, np.float32))))
                for _ in range(20):
                    assert sched.compute(graph)

        run_threads(4, work)
    assert len(p.runs) == 80
    assert p.runs["complete"].all()
    assert len(set(p.runs["thread"])) == 4
    consistent(p)


@pytest.mark.parametrize("name", ["SIM", "CPU"])
def test_pending_runs_are_profiled(ctx, cpu, name):
    device = gb.Backend(name)
    x = ctx.tensor((16,), name="x")
    y = gb.ops.relu(x)
    sched = gb.Scheduler([device, cpu] if name == "SIM" else [device], n_copies=2)
    sched.set_backend(y, device)
    graph = ctx.graph(y)
    sched.allocate(graph)
    x.set(np.ones(16, np.float32))
    with sched.profile() as p:
        pending = [sched.compute_async(graph, [y]) for _ in range(3)]
        for run in pending:
            assert (run.results()[0] == 1).all()
    assert len(p.runs) == 3
    assert p.runs["complete"].all()
    assert [s.fusion for s in p.steps] == ["split" if name == "SIM" else ""]
    consistent(p)


def test_devices_written_in_python_are_splits(ctx, cpu):
    array = gb.Backend("ARRAY")
    x = ctx.tensor((8, 8), name="x")
    y = gb.ops.relu(gb.ops.sqr(x))
    y.name = "y"
    sched = gb.Scheduler([array, cpu])
    for node in (y, y.sources[0]):
        sched.set_backend(node, array)
    graph = ctx.graph(y)
    sched.allocate(graph)
    x.set(np.ones((8, 8), np.float32))
    with sched.profile() as p:
        sched.compute(graph)
    (step,) = p.steps
    assert (step.fusion, step.n_nodes, step.kind, step.algorithm) == ("split", 2, "split", "")
    assert step.names[-1] == "y"
    assert p.records["flops"].tolist() == [128.0]
    assert p.table().__len__() == 1
    assert p.table()[0].limit is None


# ------------------------------------------------------------------------------------------------------------ failures


def test_failed_and_stopped_runs_are_incomplete(ctx, cpu):
    def broken(out: np.ndarray, a: np.ndarray) -> None:
        raise ValueError("broken")

    x = ctx.constant(np.ones(8, np.float32))
    first = gb.ops.relu(x)
    first.name = "first"
    fails = ctx.graph(gb.ops.map_custom(broken, first))
    works = ctx.graph(gb.ops.sqr(first))
    sched = gb.Scheduler([cpu])
    with sched.profile() as p:
        with pytest.raises(ValueError, match="broken"):
            sched.compute(fails)
        assert not sched.compute(works, callback=lambda t: False)
        assert sched.compute(works)
    assert p.runs["complete"].tolist() == [False, False, True]
    assert (p.runs["end_ns"] > 0).all()
    assert "2 runs did not finish" in str(p.table(limits=False))
    consistent(p)


def test_work_of_a_function_belongs_to_its_node(ctx, cpu):
    inner = gb.Context()
    inside = inner.graph(gb.ops.relu(inner.constant(np.ones(4, np.float32))))
    other = gb.Scheduler([gb.Backend("CPU", n_threads=1)])

    def function(out: np.ndarray, a: np.ndarray) -> None:
        assert other.compute(inside)
        out[:] = a

    y = gb.ops.map_custom(function, ctx.constant(np.ones(4, np.float32)))
    y.name = "mapped"
    with gb.profile.Profile.everything() as p:
        assert gb.Scheduler([cpu]).compute(ctx.graph(y))
    assert [s.names for s in p.steps] == [("mapped",)]
    with other.profile() as own, gb.profile.Profile.everything() as p:  # unless it has its own profile
        assert gb.Scheduler([cpu]).compute(ctx.graph(y))
    assert (len(own.runs), len(p.runs)) == (1, 1)
    consistent(p)
    consistent(own)


def test_wrong_calls_of_profiles(ctx, cpu):
    sched = gb.Scheduler([cpu])
    with sched.profile() as p:
        with pytest.raises(gb.errors.StateError, match="already"):
            sched.profile()
        with (
            gb.profile.Profile.everything(),
            pytest.raises(gb.errors.StateError, match=r"^Profile\.everything: a profile is being"),
        ):
            gb.profile.Profile.everything()
    with pytest.raises(gb.errors.StateError, match="ended"), p:
        pass
    assert p.stop() is p
    with sched.profile() as q:
        sched.close()
        assert not q.running
    with pytest.raises(gb.errors.StateError, match="closed"):
        sched.profile()
    graph = ctx.graph(gb.ops.relu(ctx.constant(np.ones(4, np.float32))))
    with graph.profile():
        ctx.close()
    with pytest.raises(gb.errors.StateError, match="closed"):
        graph.profile()
    with pytest.raises(TypeError, match=r"scheduler\.profile"):
        gb.profile.Profile()
    for n in (0, -1, 1 << 40):
        with pytest.raises(gb.errors.InvalidArgumentError):
            gb.profile.Profile.everything(max_records=n)


def test_a_closed_profile(ctx, cpu):
    sched, graph = one_product(ctx, cpu)
    p = sched.profile()
    sched.compute(graph)
    p.close()
    p.close()
    assert p.closed and not p.running and repr(p) == "<Profile closed>"
    for use in (lambda: p.records, lambda: p.seconds, p.table, p.to_json, p.to_trace, lambda: str(p), p.limits):
        with pytest.raises(gb.errors.StateError, match=r"^Profile: it is closed$"):
            use()
    assert p.stop() is p
    with sched.profile() as q:  # another one can start
        sched.compute(graph)
    assert len(q.records) == 1 and not q.closed
    with pytest.raises(gb.errors.StateError, match="it is closed"):
        q.compare(p)


def test_counts_of_one_are_singular(ctx, cpu):
    sched, graph = one_product(ctx, cpu)
    with sched.profile(max_records=1) as p:
        sched.compute(graph)
        assert str(p).splitlines()[0].endswith("; 1 record") and str(p).startswith("1 run,")
        sched.compute(graph)
    assert repr(p) == "<Profile 1 record>"
    assert str(p).splitlines()[0].endswith("; 1 record; 1 record did not fit")


@pytest.mark.parametrize("method", ["table", "compare"])
def test_a_wrong_grouping_names_the_method(ctx, cpu, method):
    sched, graph = one_product(ctx, cpu)
    with sched.profile() as p:
        sched.compute(graph)
    ask = p.table if method == "table" else lambda by: p.compare(p, by=by)
    with pytest.raises(gb.errors.InvalidArgumentError, match=rf"^Profile\.{method}: by must be one of"):
        ask(by="zz")
    with pytest.raises(TypeError, match=rf"^Profile\.{method}: by: a pattern is a str"):
        ask(by=["a*", 3])


@pytest.mark.parametrize("by", ["*atn*", ["*ffn*", "blk.7.*"], re.compile("atn")])
def test_a_pattern_without_a_match_is_an_error(recorded, by):
    words = r": by: nothing recorded has a name like '(\*atn\*|blk\.7\.\*|atn)'; (did you mean|there are) '"
    with pytest.raises(gb.errors.InvalidArgumentError, match=f"^Profile.table{words}"):
        recorded.table(by, limits=False)
    with pytest.raises(gb.errors.InvalidArgumentError, match=f"^Profile.compare{words}"):
        recorded.compare(recorded, by)


def test_a_printed_profile_has_kinds_unless_a_node_has_a_name(ctx, cpu):
    """Default names such as node_13 are useless to readers."""
    sched, graph = one_product(ctx, cpu)
    with sched.profile() as p:
        sched.compute(graph)
    assert str(p).splitlines()[2].startswith("MUL_MAT")
    named = ctx.graph(gb.ops.relu(ctx.constant(np.ones(4, np.float32))).named("hidden"))
    with sched.profile() as p:
        sched.compute(named)
    assert str(p).splitlines()[2].startswith("hidden")


def one_product(ctx, cpu):
    w, x = ctx.constant(np.ones((8, 8), np.float32)), ctx.constant(np.ones((4, 8), np.float32))
    sched = gb.Scheduler(cpu)
    graph = ctx.graph(gb.ops.mul_mat(w, x))
    sched.compute(graph)
    return sched, graph


def test_a_dropped_profile_ends(ctx, cpu):
    sched, graph = gb.Scheduler([cpu]), ctx.graph(gb.ops.relu(ctx.constant(np.ones(4, np.float32))))
    p = sched.profile()
    sched.compute(graph)
    del p
    gc.collect()
    with sched.profile() as p:
        sched.compute(graph)
    assert len(p.runs) == 1


def test_dropped_records_are_counted(ctx, cpu):
    sched, graph = gb.Scheduler([cpu]), ctx.graph(gb.ops.relu(ctx.constant(np.ones(4, np.float32))))
    with sched.profile(max_records=3) as p:
        for _ in range(5):
            assert sched.compute(graph)
    assert (len(p.records), len(p.runs)) == (3, 3)
    assert p.dropped == 2
    assert "2 records did not fit" in str(p)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_records_its_own_runs(script):
    out = script(
        """
import os, numpy as np, ggml_backend as gb
ctx, sched = gb.Context(), gb.Scheduler([gb.Backend("CPU", n_threads=2)])
graph = ctx.graph(gb.ops.relu(ctx.constant(np.ones(4, np.float32))))
with sched.profile() as p:
    sched.compute(graph)
    child = os.fork()
    sched.compute(graph)
    if child == 0:
        sched.compute(graph)
        p.stop()
        os._exit(0 if len(p.runs) == 3 and not p.running else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(len(p.runs))
"""
    )
    assert out.split() == ["0", "2"]


# ------------------------------------------------------------------------------------------------------ tables, files


@pytest.fixture
def recorded(ctx, cpu) -> gb.profile.Profile:
    x = ctx.constant(np.ones((4, 64), np.float32))
    for i in range(3):
        w = ctx.constant(np.ones((64, 64), np.float32) / 64, name=f"blk.{i}.ffn.weight")
        x = gb.ops.soft_max(x @ w.T)
        x.name = f"blk.{i}.out"
    sched, graph = gb.Scheduler([cpu]), ctx.graph(x)
    with sched.profile() as p:
        for _ in range(4):
            sched.compute(graph)
    return p


def test_groups(recorded):
    assert len(recorded.table(limits=False)) == 6
    kinds = recorded.table("kind", limits=False)
    assert {row.name: row.calls for row in kinds} == {"MUL_MAT": 12, "SOFT_MAX": 12}
    assert kinds["MUL_MAT"].flops == 12 * 2 * 4 * 64 * 64
    assert sum(row.share for row in kinds) == pytest.approx(1)
    blocks = recorded.table(re.compile(r"blk\.(\d)"), "name", limits=False)
    assert [(row.name, row.calls) for row in blocks] == [("0", 8), ("1", 8), ("2", 8)]
    some = recorded.table(["blk.0.*", "*.weight"], "name", limits=False)
    assert {row.name: row.calls for row in some} == {"blk.0.*": 8, "*.weight": 8, "(others)": 8}
    assert len(recorded.table(top=2, limits=False)) == 2
    assert [row.name for row in recorded.table("dtype", limits=False)] == ["float32"]
    assert [row.name for row in recorded.table("device", limits=False)] == ["CPU"]
    with pytest.raises(KeyError):
        kinds["ADD"]
    with pytest.raises(gb.errors.InvalidArgumentError, match="'operator'"):
        recorded.table("operators")
    with pytest.raises(gb.errors.InvalidArgumentError, match="'time'"):
        recorded.table(sort="length")
    with pytest.raises(TypeError):
        recorded.table([3])  # type: ignore[list-item]


def test_orders(recorded):
    for sort, key in (("time", "seconds"), ("median", "median"), ("bytes", "bytes"), ("waiting", "waiting")):
        found = [getattr(row, key) for row in recorded.table(sort=sort, limits=False)]
        assert found == sorted(found, reverse=True)
    shares = [row.limit for row in recorded.table(sort="limit")]
    assert all(s is not None and s > 0 for s in shares)
    assert shares == sorted(shares)


def test_shares_of_the_limit(recorded):
    """The least time of each record by the shown limits, computed again, divided by its measured
    time."""
    (machine,) = recorded.limits().values()
    rows = recorded.table("kind")
    for row in rows:
        least = taken = 0.0
        for r in recorded.records:
            step = recorded.steps[r["step"]]
            if step.kind != row.name:
                continue
            size = r["bytes_read"] + r["bytes_written"]
            place = min((s for s in machine.read if s >= size), default=max(machine.read))
            moved = min(r["bytes_read"], r["bytes_written"])
            memory = 2 * moved / machine.copy[place] + (size - 2 * moved) / machine.read[place]
            arithmetic = "bytes" if "byte" in step.algorithm else "bf16" if "bf16" in step.algorithm else "f32"
            least += max(memory, r["flops"] / machine.operations[arithmetic])
            taken += (r["end_ns"] - r["start_ns"]) * 1e-9
        assert row.limit == pytest.approx(least / taken)


def test_two_profiles_are_compared(recorded, ctx, cpu):
    data = json.loads(recorded.to_json(limits=False))
    for record in ("start_ns", "end_ns"):
        data["records"][record] = [2 * ns for ns in data["records"][record]]
        data["runs"][record] = [2 * ns for ns in data["runs"][record]]
    slower = gb.profile.Profile.from_json(json.dumps({**data, "limits": []}))
    found = slower.compare(recorded, "kind")
    assert {row.name for row in found} == {"MUL_MAT", "SOFT_MAX"}
    assert [row.ratio for row in found] == pytest.approx([2.0, 2.0])
    assert found.after / found.before == pytest.approx(2.0)
    assert "ratio 2.000" in str(found)
    assert found["MUL_MAT"].after == pytest.approx(2 * found["MUL_MAT"].before)
    sched, graph = gb.Scheduler([cpu]), ctx.graph(gb.ops.sqr(ctx.constant(np.ones(4, np.float32))))
    with sched.profile() as other:
        sched.compute(graph)
    gone = other.compare(recorded, "kind")
    assert {row.name: row.ratio for row in gone} == {"MUL_MAT": None, "SOFT_MAX": None, "SQR": None}
    with pytest.raises(TypeError):
        recorded.compare(recorded.table())  # type: ignore[arg-type]


def test_profiles_round_trip_through_files(recorded, tmp_path):
    path = tmp_path / "profile.json"
    text = recorded.to_json(path)
    for source in (text, path, str(path)):
        again = gb.profile.Profile.from_json(source)
        assert again.steps == recorded.steps
        assert (again.records == recorded.records).all()
        assert (again.runs == recorded.runs).all()
        assert again.limits() == recorded.limits()
        assert str(again.table("kind")) == str(recorded.table("kind"))
        assert not again.running
        assert again.stop() is again


@pytest.mark.parametrize("damage", [
    "", "{", "[]", "{}", '{"format": 2}', '{"format": 1, "steps": 3}',
    '{"format": 1, "steps": [], "records": {}, "runs": {}, "dropped": 0, "limits": []}',
])  # fmt: skip
def test_other_files_are_refused_as_profiles(damage):
    source = damage if damage.startswith("{") else "{" + damage
    with pytest.raises(gb.errors.InvalidArgumentError, match="profile"):
        gb.profile.Profile.from_json(source)


def test_records_of_a_file_must_name_existing_steps(recorded):
    data = json.loads(recorded.to_json(limits=False))
    for column, value in (("step", 99), ("run", 99), ("step", -1), ("start_ns", "x"), ("flops", None)):
        broken = {**data, "records": {**data["records"], column: [value] * len(recorded.records)}}
        if value is None:
            broken["records"]["flops"] = [*broken["records"]["flops"][:1], 1.0]
        with pytest.raises(gb.errors.InvalidArgumentError):
            gb.profile.Profile.from_json(json.dumps(broken))


LIMITS = {
    "level": "scalar", "threads": 1, "operations": {"f32": 1e9, "bytes": 1e9, "bf16": 1e9},
    "read": {"65536": 1e9, "1048576": 1e8}, "copy": {"65536": 1e9, "1048576": 1e8},
}  # fmt: skip
#: Values that replace another one in a file.
VALUES = [None, True, -1, 0, 1.5, 2**70, -(2**63), math.nan, math.inf, 1e308, "x", "", [], [1], [None], {}, {"a": 1}]


def paths_of(data, path=()):
    """The paths of all parts of a document."""
    yield path
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from paths_of(value, (*path, key))


def use_profile(text):
    """Calls every method of a profile from a file."""
    found = gb.profile.Profile.from_json(text)
    for by in ("operator", "kind", "algorithm", "fusion", "dtype", "device", "*"):
        str(found.table(by)), found.table(by)._repr_html_()
    for sort in ("time", "calls", "median", "limit", "waiting", "bytes", "flops", "name"):
        list(found.table(sort=sort))
    str(found.compare(found)), str(found), repr(found), found.seconds
    json.loads(found.to_trace(), parse_constant=pytest.fail)
    return [(step.name, step.kind, hash(step)) for step in found.steps]


@pytest.mark.filterwarnings("error")
def test_files_with_any_damage_are_refused_or_can_be_used(recorded):
    data = {**json.loads(recorded.to_json(limits=False)), "limits": [LIMITS]}
    assert use_profile(json.dumps(data))
    paths = list(paths_of(data))[1:]
    random, refused = np.random.default_rng(0), 0
    for i in range(5000):
        damaged = data
        for _ in range(1 + i % 2):
            path = paths[random.integers(len(paths))]
            value = VALUES[random.integers(len(VALUES))]
            with contextlib.suppress(KeyError, IndexError, TypeError):  # removed by the first damage
                damaged = replaced(damaged, path, value)
        try:
            use_profile(json.dumps(damaged))
        except gb.errors.InvalidArgumentError as error:
            assert "profile" in str(error)
            refused += 1
    assert 2000 < refused < 5000


def test_errors_name_the_wrong_part_of_a_profile(recorded):
    data = json.loads(recorded.to_json(limits=False))
    for path, value, message in [
        (("steps", 0, "n_nodes"), "x", r"steps\[0\].n_nodes must be a whole number, is x"),
        (("steps", 0, "algorithm"), [], r"steps\[0\].algorithm must be a text"),
        (("steps", 0, "dtypes"), [1], r"steps\[0\].dtypes\[0\] must be a text, is 1"),
        (("records", "step"), [0], r"records.run has \d+ values, records.step 1"),
        (("runs", "thread", 0), -1, r"runs.thread must have values from 0 to 4294967295"),
        (("dropped",), True, r"dropped must be a whole number, is True"),
        (("more",), 1, r"it has the key more, which is unknown"),
    ]:
        with pytest.raises(gb.errors.InvalidArgumentError, match=message):
            gb.profile.Profile.from_json(
                json.dumps({**data, "more": 1} if path == ("more",) else replaced(data, path, value))
            )


def test_lanes_of_operators(recorded, ctx, cpu, tmp_path):
    trace = validated(recorded.to_trace(tmp_path / "operators.json"))
    assert json.loads((tmp_path / "operators.json").read_text()) == trace
    assert len(slices_of(trace)) == len(recorded.records)
    lanes = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert {"CPU: MUL_MAT", "CPU: SOFT_MAX"} <= set(lanes)
    sched, graph = gb.Scheduler([cpu]), ctx.graph(gb.ops.sqr(ctx.constant(np.ones(4, np.float32), name="x")))
    with sched.profile() as p, sched.trace(tmp_path / "run.json") as both:
        sched.compute(graph)
    with sched.trace() as bare:
        sched.compute(graph)
    found = slices_of(validated((tmp_path / "run.json").read_text()))
    (operator,) = (e for e in found if e["cat"] == "operator")
    (split,) = (e for e in found if e["cat"] == "compute")
    assert operator["name"] == p.steps[0].name
    assert split["ts"] <= operator["ts"]
    assert operator["ts"] + operator["dur"] <= split["ts"] + split["dur"] + 0.001
    assert both.events
    assert not [e for e in slices_of(validated(bare.to_json())) if e["cat"] == "operator"]


def test_names_of_any_kind_are_shown_safely(ctx, cpu):
    x = ctx.constant(np.ones(4, np.float32))
    y = gb.ops.relu(x)
    y.name = "<script>\x1b[31m"
    sched = gb.Scheduler([cpu])
    with sched.profile() as p:
        sched.compute(ctx.graph(y))
    assert "<script>" not in p._repr_html_()
    assert "\x1b" not in str(p)
    assert "&lt;script&gt;" in p._repr_html_()
    assert gb.profile.Profile.from_json(p.to_json()).steps == p.steps


def test_a_profile_of_nothing(cpu):
    sched = gb.Scheduler([cpu])
    with sched.profile() as p:
        pass
    assert len(p.table()) == 0
    assert p.seconds == 0
    assert len(p.compare(p)) == 0
    assert "0 runs" in str(p)
    assert p._repr_html_()
    assert validated(p.to_trace())
    assert len(gb.profile.Profile.from_json(p.to_json()).records) == 0


def test_an_invalid_profile_error_names_the_file(recorded, tmp_path):
    wrong = {
        "other.json": ("{}", r"other\.json: it is not a profile"),
        "text.json": ("nothing", r"text\.json: it is not a profile"),
        "old.json": (
            recorded.to_json(limits=False).replace('"format":1', '"format":"zz"'),
            r"old\.json: it is a profile of format",
        ),
    }
    for name, (text, message) in wrong.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(gb.errors.InvalidArgumentError, match=message):
            gb.profile.Profile.from_json(tmp_path / name)
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    with pytest.raises(gb.errors.FileError, match=r"bytes\.json: it is not text"):
        gb.profile.Profile.from_json(tmp_path / "bytes.json")


def test_no_ratio_with_an_empty_profile(recorded, cpu):
    sched = gb.Scheduler([cpu])
    with sched.profile() as nothing:
        pass
    for change in (nothing.compare(recorded), recorded.compare(nothing)):
        assert "ratio" not in str(change).splitlines()[0]


def test_names_are_those_of_the_tensors(cpu):
    """Plans, traces and profiles have the exact names, even bytes that are not UTF-8, which are
    surrogates in Python."""
    name = "a\udcff\udc80"
    with gb.Context() as ctx, gb.Scheduler([cpu]) as sched:
        y = gb.ops.relu(ctx.tensor((4,), name="x")).named(name)
        graph = ctx.graph(y)
        plan = sched.prepare(graph)
        graph["x"].set(1.0)
        with sched.profile() as profile, sched.trace() as trace:
            sched.compute(graph)
        assert y.name == name
        assert [b.name for a in plan.arenas for b in a.blocks] == [name]
        assert [list(s.nodes) for s in plan.splits] == [[name]]
        assert [s.names for s in profile.steps] == [(name,)]
        assert "a\\xff\\x80" in plan.to_html() and trace.to_svg().encode()
        with pytest.raises(gb.GgmlError) as caught:
            gb.ops.mul_mat(y, ctx.tensor((3,)))
        assert str(caught.value).encode()  # can be printed
