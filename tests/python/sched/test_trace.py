"""Events of traces, and the Chrome trace JSON, which an independent validator reads."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.profile._pictures.chrome import chrome_trace
from source_tree import in_tree

unchecked = pytest.mark.skipif(os.environ.get("GGML_SCHED_CHECK") == "1", reason="checked runs wait for every step")

# --------------------------------------------------------------------------------------------- an independent validator


def slices_of(trace: dict) -> list[dict]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X"]


def validated(text: str) -> dict:
    """Checks that `text` follows the Trace Event Format and the needs of Perfetto's importer.
    Returns the data."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    trace = json.loads(text, parse_constant=refuse)
    assert isinstance(trace["traceEvents"], list)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named, last = set(), -math.inf
    for e in trace["traceEvents"]:
        assert e["ph"] in set("XMCstf"), e
        assert type(e["pid"]) is int
        assert type(e["tid"]) is int
        assert isinstance(e["name"], str)
        if e["ph"] == "M":
            assert last == -math.inf, "metadata comes first"
            assert e["name"] in ("process_name", "thread_name", "thread_sort_index")
            if e["name"] == "thread_name":
                named.add((e["pid"], e["tid"]))
            continue
        assert isinstance(e["ts"], (int, float))
        assert e["ts"] >= last >= -math.inf, "ordered by time"
        assert e["ts"] >= 0
        last = e["ts"]
        if e["ph"] == "X":
            assert e["dur"] > 0
            assert isinstance(e["cat"], str)
            assert (e["pid"], e["tid"]) in named
        if e["ph"] == "C":
            assert e["args"]
            assert all(type(v) is int and v >= 0 for v in e["args"].values())
            assert e["args"]["live bytes"] <= e["args"]["arena bytes"]
    validate_nesting(slices_of(trace))
    validate_arrows(trace["traceEvents"])
    return trace


def nanoseconds(us: float) -> int:
    n = round(us * 1000)
    assert abs(n - us * 1000) < 1e-3
    return n


def validate_nesting(slices: list[dict]) -> None:
    """Checks that two slices of a lane are disjoint or nested."""
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for e in slices:
        start = nanoseconds(e["ts"])
        lanes.setdefault((e["pid"], e["tid"]), []).append((start, start + nanoseconds(e["dur"])))
    for spans in lanes.values():
        spans.sort(key=lambda s: (s[0], -s[1]))
        for (a0, a1), (b0, b1) in itertools.pairwise(spans):
            assert b0 >= a1 or (a0 <= b0 and b1 <= a1), "slices overlap"


def validate_arrows(events: list[dict]) -> None:
    """Checks that arrows start and end once, in order of time, and that each of their points is in a
    slice of its lane."""
    flows: dict[object, list[dict]] = {}
    for e in events:
        if e["ph"] in "stf":
            flows.setdefault((e["cat"], e["id"]), []).append(e)
            around = [
                x
                for x in events
                if x["ph"] == "X"
                and (x["pid"], x["tid"]) == (e["pid"], e["tid"])
                and x["ts"] <= e["ts"] <= x["ts"] + x["dur"]
            ]
            assert around, "an arrow that binds to nothing"
    for flow in flows.values():
        assert [e["ph"] for e in flow] == ["s", *["t"] * (len(flow) - 2), "f"]
        assert flow[-1]["bp"] == "e"
        assert len({e["name"] for e in flow}) == 1
        assert all(a["ts"] <= b["ts"] for a, b in itertools.pairwise(flow))


# ------------------------------------------------------------------------------------------------------------- fixtures


class Zigzag:
    """A chain of layers that changes between the devices."""

    def __init__(self, ctx: gb.Context, devices: list[gb.Backend], layers: int = 4) -> None:
        self.x = ctx.tensor((8, 32), name="x")
        self.w = ctx.tensor((32, 32), name="w")
        y = self.x
        self.layers = []
        for i in range(layers):
            y = (y @ self.w.T).named(f"h{i}")
            self.layers.append(y)
        self.graph = ctx.graph(y)
        self.y = y
        self.sched = gb.Scheduler(devices)
        for i, node in enumerate(self.layers):
            self.sched.set_backend(node, devices[i % (len(devices) - 1)])
        self.sched.allocate(self.graph)
        self.fill()

    def fill(self) -> None:
        self.x.set(np.ones((8, 32), np.float32))
        self.w.set(np.eye(32, dtype=np.float32))


@pytest.fixture
def zigzag(ctx):
    return Zigzag(ctx, [gb.Backend("SIM:name=A,delay=1ms"), gb.Backend("SIM:name=B,delay=1ms"), gb.Backend("CPU")])


# ---------------------------------------------------------------------------------------------------------------- tests


def test_events_describe_the_run(zigzag):
    with zigzag.sched.trace() as trace:
        assert trace.running
        assert "running" in repr(trace)
        for _ in range(3):
            assert zigzag.sched.compute(zigzag.graph)
    assert not trace.running
    events = trace.events
    assert "events" in repr(trace)
    assert {e.run for e in events} == {0, 1, 2}
    for run in range(3):
        computes = sorted((e for e in events if e.run == run and e.kind == "compute"), key=lambda e: e.start_ns)
        assert [e.name for e in computes] == ["h0", "h1", "h2", "h3"]  # a chain, in order
        assert [e.backend for e in computes] == [0, 1, 0, 1]
        assert all(e.seconds >= 0.9e-3 for e in computes)  # delay of the device
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(computes))
        assert all(e.n_nodes == 1 and e.live_nbytes <= e.arena_nbytes for e in computes)
        moved = {(e.name, e.backend) for e in events if e.run == run and e.kind == "copy" and e.reason == "result"}
        assert moved == {("h0", 1), ("h1", 0), ("h2", 1)}
        for e in events:
            assert e.start_ns <= e.end_ns
            if e.kind == "copy":
                assert e.nbytes > 0
                assert (e.reason == "result") == e.name.startswith("h")
    np.testing.assert_array_equal(zigzag.y.numpy(), np.ones((8, 32), np.float32))
    times = zigzag.sched.stats.splits
    assert [s.runs for s in times] == [3] * 4
    assert all(s.seconds >= 3 * 0.9e-3 and s.mean == pytest.approx(s.seconds / 3) for s in times)
    assert [s.backend for s in times] == ["A", "B", "A", "B"]


def test_file(zigzag, tmp_path):
    path = tmp_path / "run.json"
    with zigzag.sched.trace(path) as trace:
        zigzag.sched.compute(zigzag.graph)
        zigzag.sched.compute(zigzag.graph)
    text = path.read_text()
    assert text == trace.to_json()
    made = validated(text)
    lanes = {e["tid"]: e["args"]["name"] for e in made["traceEvents"] if e["name"] == "thread_name"}
    assert list(lanes.values())[:3] == ["host", "A", "B"]
    assert "CPU" in lanes.values()
    computes = [e for e in slices_of(made) if e["cat"] == "compute"]
    assert [lanes[e["tid"]] for e in computes] == ["A", "B", "A", "B"] * 2
    assert [e["args"]["name"] for e in computes] == ["h0", "h1", "h2", "h3"] * 2
    flows = [e for e in made["traceEvents"] if e["ph"] == "s"]
    crossing = [e for e in flows if e["name"].startswith("h")]
    assert len(crossing) == 6
    for start in crossing:  # from the split that computes the tensor to the split that reads it
        points = [e for e in made["traceEvents"] if e["ph"] in "stf" and e["id"] == start["id"]]
        assert len(points) == 3
        (first,), (last,) = (
            [x for x in computes if x["tid"] == p["tid"] and x["ts"] <= p["ts"] <= x["ts"] + x["dur"]]
            for p in (points[0], points[-1])
        )
        assert start["name"].startswith(first["args"]["name"])
        assert last["args"]["split"] == first["args"]["split"] + 1
    counters = {e["name"] for e in made["traceEvents"] if e["ph"] == "C"}
    assert counters == {"memory A", "memory B"}
    peaks = {e["name"]: e["args"]["arena bytes"] for e in made["traceEvents"] if e["ph"] == "C"}
    plan = zigzag.sched.prepare(zigzag.graph)
    assert peaks == {f"memory {n}": plan.memory[n].peak for n in "AB"}


@unchecked
def test_devices_overlap_in_the_record(ctx):
    """Two branches on two devices take 20 ms each. The record shows them in parallel."""
    a, b, cpu = gb.Backend("SIM:name=A,delay=20ms"), gb.Backend("SIM:name=B,delay=20ms"), gb.Backend("CPU")
    x = ctx.tensor((4, 4), name="x")
    left, right = gb.ops.relu(x).named("left"), gb.ops.sqr(x).named("right")
    graph = ctx.graph(left, right)
    with gb.Scheduler([a, b, cpu]) as sched:
        sched.set_backend(left, a)
        sched.set_backend(right, b)
        sched.allocate(graph)
        x.set(1)
        with sched.trace() as trace:
            sched.compute(graph)
        one, two = sorted((e for e in trace.events if e.kind == "compute"), key=lambda e: e.start_ns)
        assert {one.backend, two.backend} == {0, 1}
        assert two.start_ns < one.end_ns
        made = validated(trace.to_json())
        assert len({e["tid"] for e in slices_of(made) if e["cat"] == "compute"}) == 2


def test_the_end_of_a_trace(zigzag, tmp_path):
    sched = zigzag.sched
    trace = sched.trace(tmp_path / "a.json")
    with pytest.raises(gb.errors.StateError, match="another trace is recording"):
        sched.trace(tmp_path / "b.json")
    sched.compute(zigzag.graph)
    assert trace.stop() is trace
    assert trace.stop() is trace
    n = len(trace.events)
    sched.compute(zigzag.graph)
    assert len(trace.events) == n
    with sched.trace() as second:  # empty at first
        pass
    assert second.events == ()
    validated(second.to_json())
    third = sched.trace(tmp_path / "c.json")
    sched.compute(zigzag.graph)
    sched.close()  # ends the trace
    assert not third.running
    assert slices_of(validated((tmp_path / "c.json").read_text()))
    with pytest.raises(gb.errors.StateError, match="closed"):
        sched.trace()


def test_closing_ends_a_dropped_trace(zigzag, tmp_path):
    zigzag.sched.trace(tmp_path / "run.json")
    zigzag.sched.compute(zigzag.graph)
    zigzag.sched.close()
    assert slices_of(validated((tmp_path / "run.json").read_text()))


def test_a_trace_outlives_its_scheduler(ctx, cpu):
    x = ctx.tensor((4, 4), name="x")
    graph = ctx.graph(gb.ops.relu(x))
    sched = gb.Scheduler([cpu])
    sched.allocate(graph)
    x.set(1)
    trace = sched.trace()
    sched.compute(graph)
    del sched
    assert not trace.running
    assert trace.stop().events == ()


def test_path_that_cannot_be_written(zigzag, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        zigzag.sched.trace(tmp_path / "nowhere" / "run.json")
    with pytest.raises(IsADirectoryError):
        zigzag.sched.trace(tmp_path)
    with zigzag.sched.trace() as trace:  # no trace was started
        zigzag.sched.compute(zigzag.graph)
    with pytest.raises(OSError, match="nowhere"):
        trace.to_json(tmp_path / "nowhere" / "run.json")


def test_an_exception_in_the_block_ends_the_trace(zigzag, tmp_path):
    path = tmp_path / "run.json"

    def fail(tensor):
        raise ZeroDivisionError

    def two_runs():
        with zigzag.sched.trace(path):
            assert zigzag.sched.compute(zigzag.graph)
            zigzag.sched.compute(zigzag.graph, fail)

    with pytest.raises(ZeroDivisionError):
        two_runs()
    assert slices_of(validated(path.read_text()))
    assert zigzag.sched.compute(zigzag.graph)


def test_failed_runs_are_not_in_a_trace(ctx, cpu):
    bad = gb.Backend("SIM:name=A,fail_op=sqr")
    x = ctx.tensor((4, 4), name="x")
    y = gb.ops.sqr(gb.ops.relu(x))
    graph = ctx.graph(y)
    with gb.Scheduler([bad, cpu]) as sched:
        for node in graph.nodes:
            sched.set_backend(node, bad)
        sched.allocate(graph)
        x.set(1)
        with sched.trace() as trace, pytest.raises(gb.GgmlError):
            sched.compute(graph)
        assert [e for e in trace.events if e.kind == "compute"] == []
        validated(trace.to_json())


def test_special_names_in_a_trace(ctx, cpu):
    sim = gb.Backend("SIM")
    x = ctx.tensor((4, 4), name='x"\\</script>\x01\u2028')
    y = gb.ops.relu(x).named("\u00fc\U0001f600'y")
    graph = ctx.graph(y)
    with gb.Scheduler([sim, cpu]) as sched:
        sched.set_backend(y, sim)
        sched.allocate(graph)
        x.set(1)
        with sched.trace() as trace:
            sched.compute(graph)
    made = validated(trace.to_json())
    assert any(e["args"].get("name") == y_name for e in slices_of(made) for y_name in ["\u00fc\U0001f600'y"])
    assert trace.to_json().isascii()


class Made:
    """An event with the given fields."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


def test_example(tmp_path):
    run = subprocess.run(
        [sys.executable, in_tree("examples/two_devices.py"), tmp_path], capture_output=True, text=True, check=True
    )
    assert "2 splits" in run.stdout
    made = validated((tmp_path / "trace.json").read_text())
    assert {e["args"]["run"] for e in slices_of(made)} == {0, 1}
    assert "layer3" in (tmp_path / "plan.html").read_text()


def test_any_events_make_a_valid_file(rng):
    """Events may overlap within a device, take no time, or name a missing split."""
    kinds, reasons = ["plan", "copy", "compute", "write-back", "wait"], ["", "weight", "input", "result"]
    for n in [0, 1, 2, 5, 40, 200]:
        for _ in range(10):
            events = []
            for _ in range(n):
                start = int(rng.integers(0, 300)) + 10**15
                arena = int(rng.integers(0, 1000))
                events.append(
                    Made(kind=kinds[rng.integers(5)], reason=reasons[rng.integers(4)], name="n",
                     run=int(rng.integers(2)), start_ns=start,
                         end_ns=start + int(rng.integers(0, 40)), backend=int(rng.integers(0, 3)),
                         source=int(rng.integers(-1, 3)),
                         by_host=bool(rng.integers(2)), split=int(rng.integers(-1, 4)), node=0, n_nodes=2, nbytes=7,
                         live_nbytes=int(rng.integers(0, arena + 1)), arena_nbytes=arena)
                )  # fmt: skip
            made = validated(json.dumps(chrome_trace(events, ["A", "B", "C"], [2])))
            assert len(slices_of(made)) == n


def test_the_validator_can_fail():
    """The validator finds each kind of error."""
    meta = {"name": "thread_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "x"}}
    slice_ = {"name": "a", "cat": "c", "ph": "X", "pid": 1, "tid": 0, "ts": 1.0, "dur": 4.0, "args": {}}
    arrow = {"name": "a", "cat": "flow", "ph": "s", "id": 1, "pid": 1, "tid": 0, "ts": 4.5}
    wrong = [
        [meta, {**slice_, "tid": 3}],
        [meta, slice_, {**slice_, "ts": 3.0}],
        [meta, {**slice_, "ts": 9.0}, slice_],
        [meta, slice_, arrow],
        [meta, slice_, {**arrow, "ts": 9.0}],
        [meta, {**slice_, "dur": 0}],
        [slice_, meta],
        [meta, {**slice_, "ph": "B"}],
    ]
    for events in wrong:
        with pytest.raises((AssertionError, KeyError)):
            validated(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    validated(json.dumps({"traceEvents": [meta, slice_, {**slice_, "ts": 2.0, "dur": 1.0}], "displayTimeUnit": "ms"}))
