"""Layers on described clusters: the best of all placements, plans and prices of the scheduler, and
the output of the command.
"""

from __future__ import annotations

import itertools
import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from described import LINK, description, every_placement, table, write_llama
from ggml_backend.cli import main
from ggml_backend.cli.examples.layers import drawn, passes_of, passes_of_file
from ggml_backend.cli.examples.models import Llama, LlamaFile, llama_shapes
from ggml_backend.cluster.planning.layers import LayerModel, Node, Placement, Stage, Unit, place, predict


def random_model(rng: np.random.Generator, n_units: int) -> LayerModel:
    units = []
    for k in range(n_units):
        nodes = tuple(Node("float32", float(rng.integers(1, 100)) * 1e6, 0.0) for _ in range(3))
        units.append(
            Unit(f"u{k}", nodes, int(rng.integers(1, 100)), int(rng.integers(0, 20)), int(rng.integers(1, 10)) << 12)
        )
    return LayerModel("random", tuple(units), 1, int(rng.integers(0, 30)), 4, 4096)


def random_cluster(folder: Path, rng: np.random.Generator, n_devices: int) -> Any:
    """All devices and links differ. The first matching link counts, and the last link matches
    all."""
    devices = {
        f"d{k}": {
            "memory": f"{rng.integers(60, 400)} B",
            "bandwidth": f"{rng.integers(1, 50)} GB/s",
            "flops": "1 TFLOP/s",
        }
        for k in range(n_devices)
    }
    hosts = [{"name": f"h{k}", "devices": [f"d{k}"]} for k in range(n_devices)]
    links = [
        {
            "between": [f"h{a}", f"h{b}"],
            "latency": f"{rng.integers(0, 3000)} us",
            "bandwidth": f"{rng.integers(1, 100)} MB/s",
        }
        for a, b in itertools.combinations(range(n_devices), 2)
    ]
    links.append(dict(LINK))
    data = {"devices": devices, "hosts": hosts, "links": links if n_devices > 1 else [dict(LINK)]}
    return description(folder, data)


def seconds_for_each(model: LayerModel, stages: tuple[Stage, ...], cluster: Any, in_flight: int) -> float:
    """Seconds for each of so many pending passes, added up directly. Infinite if memory is
    insufficient."""
    parts, whole = [], 0.0
    before = None
    for s in stages:
        device = cluster.devices[s.device]
        units = model.units[s.begin : s.end]
        if sum(u.weights + in_flight * u.cache for u in units) + model.scratch > device.kind.memory:
            return float("inf")
        parts.append(sum(n.bytes / device.kind.rates.bandwidth for u in units for n in u.nodes))
        link = cluster.from_rank0(s.device) if before is None else cluster.link(before, s.device)
        size = model.sent if before is None else model.units[s.begin - 1].carry
        whole += link.latency + size / link.bandwidth
        parts.append(size / link.bandwidth)
        before = s.device
    home = cluster.from_rank0(before)
    whole += home.latency + model.returned / home.bandwidth
    parts += [model.returned / home.bandwidth, cluster.issue * len(stages)]
    whole += sum(parts[0:-2:2]) + cluster.issue * len(stages)
    return max(whole / in_flight, max(parts))


@pytest.mark.parametrize("seed", range(24))
def test_the_best_of_all_placements(tmp_path, seed):
    rng = np.random.default_rng(seed)
    n_units, n_devices, in_flight = int(rng.integers(1, 7)), int(rng.integers(1, 5)), int(rng.choice([1, 2, 5]))
    model, cluster = random_model(rng, n_units), random_cluster(tmp_path, rng, n_devices)
    best = min(seconds_for_each(model, s, cluster, in_flight) for s in every_placement(n_units, n_devices))
    if best == float("inf"):
        with pytest.raises(gb.errors.AllocationError, match="missing"):
            place(model, cluster, in_flight)
        return
    found = place(model, cluster, in_flight)
    assert seconds_for_each(model, found.stages, cluster, in_flight) == pytest.approx(best, rel=1e-5)
    rate = predict(model, found, cluster).rate(in_flight)
    assert rate == pytest.approx(1 / best, rel=1e-5)


def test_many_devices_that_differ(tmp_path):
    """If the planner does not try all orders, its result is no worse than each obvious order."""
    rng = np.random.default_rng(0)
    model, cluster = random_model(rng, 12), random_cluster(tmp_path, rng, 9)
    value = seconds_for_each(model, place(model, cluster, 4).stages, cluster, 4)
    few = range(9)
    for order in (tuple(few), tuple(reversed(few)), *(tuple(rng.permutation(9)) for _ in range(5))):
        for cuts in itertools.combinations(range(1, 12), 3):
            borders = (0, *cuts, 12)
            stages = tuple(Stage(int(d), a, b) for d, a, b in zip(order, borders, borders[1:], strict=False))
            assert value <= seconds_for_each(model, stages, cluster, 4) * (1 + 1e-5)


def test_equal_devices_get_equal_shares(tmp_path):
    node = Node("float32", 1e9, 0.0)
    model = LayerModel("even", tuple(Unit(f"u{k}", (node,), 1, 0, 4096) for k in range(70)), 1, 0, 4, 4)
    for n, longest in ((2, 35), (8, 9), (35, 2), (64, 2), (70, 1)):
        cluster = description(tmp_path, table(n, issue="0 us"))
        sizes = [s.end - s.begin for s in place(model, cluster, 70).stages]
        assert max(sizes) == longest and sum(sizes) == 70


# ------------------------------------------------------------------------------------------ the scheduler's own figures


def small(tokens: int, context: int) -> LlamaFile:
    c = Llama(64, 6, 4, 2, 128, context, 1e-5, 16, 1e4)
    shapes = llama_shapes(c, 96)
    shapes["output.weight"] = shapes["token_embd.weight"]
    kinds = {n: gb.dtypes.q4_0 if len(s) > 1 else gb.float32 for n, s in shapes.items()}
    return LlamaFile(c, {n: (s, kinds[n]) for n, s in shapes.items()}, tokens, context)


def split_evenly(n_units: int, n: int) -> tuple[Stage, ...]:
    borders = [k * n_units // n for k in range(n + 1)]
    return tuple(Stage(k, a, b) for k, (a, b) in enumerate(itertools.pairwise(borders)))


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_times_are_those_of_the_schedulers_costs(tmp_path, n):
    """The C library counts bytes and operations of each node and copy independently. The pass fills
    the cache, because C counts a write to a part of it with the elements between."""
    cluster = description(tmp_path, table(n, issue="7 us", links=[{**LINK, "bandwidth": "10 MB/s"}]))
    cluster.devices[0].kind.types["q4_0"] = type(cluster.devices[0].kind.rates)(50e9, 1e12)  # type: ignore[index]
    file = small(32, 32)
    passes = passes_of(file, "small")
    model = passes.prompt
    stages = split_evenly(len(model.units), n)
    wanted = predict(model, Placement(stages, 1), cluster)
    backends = [gb.Backend(f"SIM:name=d{k}") for k in range(n)]
    with (
        gb.Context(usage="weights") as held,
        gb.Context() as ctx,
        gb.Scheduler(backends, policy="cost", costs=cluster.costs()) as sched,
    ):
        graph = file.graph(ctx, file.tensors(lambda _: held))
        unit = 0
        names = {u.name: k for k, u in enumerate(model.units)}
        home = {u: backends[s.device] for s in stages for u in range(s.begin, s.end)}
        for node in graph.nodes:
            begins = [u for name, u in names.items() if node.name.startswith(f"{name}.")]
            unit = begins[0] if begins else len(names) - 1 if node.name in ("output_norm", "logits") else unit
            sched.set_backend(node, home[unit])
        sched.prepare(graph, allocate=False)
        found = sched.prediction
    assert found is not None
    with_layers = sum(s.end > 1 and s.begin < len(model.units) - 1 for s in stages)
    positions = (with_layers - 1) * cluster.link(0, n - 1).seconds(
        4 * 32
    )  # from the first stage to the others that read them
    between = sum(wanted.hops[1:-1])
    assert found.us / 1e6 == pytest.approx(sum(wanted.stages) + between + positions + 7e-6 * (n - 1), rel=1e-5)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_cuts_and_memory_are_those_of_a_plan(tmp_path, n):
    cluster = description(tmp_path, table(n))
    passes = passes_of(small(16, 64), "small")
    for model in (passes.step, passes.prompt):
        placement = Placement(split_evenly(len(model.units), n), 1)
        with drawn(passes, model, placement, cluster) as (plan, picture):
            assert [s.backend for s in plan.splits] == [d.name for d in cluster.devices]
            for a, b in itertools.pairwise(placement.stages):
                crossing = [
                    c for c in plan.copies if c.dst_backend == cluster.devices[b.device].name and c.name != "positions"
                ]
                assert sum(c.nbytes for c in crossing) == model.units[a.end - 1].carry
                assert {c.src_backend for c in crossing} == {cluster.devices[a.device].name}
            for stage, arena in zip(placement.stages, plan.arenas, strict=True):
                units = model.units[stage.begin : stage.end]
                inputs = arena.leafs - sum(u.weights + u.cache for u in units)
                assert 0 <= inputs <= 2 * 4 * model.tokens + 64 * 4  # ids and positions, padded to cache lines
                assert arena.peak <= model.scratch + 2 * max(u.carry for u in model.units)
            assert picture.title == f"small: {model.tokens} token{'s' if model.tokens > 1 else ''}"


def test_nothing_is_loaded(tmp_path):
    """A model of 300 GiB is planned in some MiB."""
    c = Llama(16384, 120, 128, 8, 53248, 8192, 1e-5, 128, 1e4)
    shapes = llama_shapes(c, 128256)
    file = LlamaFile(c, {n: (s, gb.dtypes.q8_0 if len(s) > 1 else gb.float32) for n, s in shapes.items()}, 512, 8192)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    passes = passes_of(file, "large")
    cluster = description(tmp_path, table(16))
    placement = place(passes.step, cluster, 4)
    with drawn(passes, passes.prompt, placement, cluster):
        pass
    assert sum(u.weights for u in passes.step.units) > 300 * 2**30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # KiB


# ----------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_llama(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def run(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    status = main([str(w) for w in words])
    out = capsys.readouterr()
    return status, out.out, out.err


def test_command_line(tmp_path, model, capsys):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(table(3)))
    status, out, err = run(capsys, "plan", model, "--cluster", path, "--sequences", 3, "--simulate", "--json")
    assert status == 0, err
    result = json.loads(out)
    assert [d["device"] for d in result["devices"]] == [n for c in result["cuts"][1:] for n in [c["from"]]]
    assert result["devices"][0]["first"] == "embeddings" and result["devices"][-1]["last"] == "head"
    weights = sum(d["weights"] for d in result["devices"])
    with gb.gguf.open(model) as file:
        assert weights == sum(t.nbytes for t in file.tensors.values())
    assert sum(d["caches"] for d in result["devices"]) == 3 * 2 * 4 * 2 * 64 * 16 * 2  # sequences, k and v, layers, ...
    step = result["step"]
    assert step["per_s"] == pytest.approx(min(3 / step["once_s"], 1 / step["slowest_s"]))
    assert set(result["simulated"]) == {"1", "3"}
    status, out, err = run(
        capsys, "plan", model, "--cluster", path, "--sequences", 3, "--simulate", "--map", "--html", tmp_path / "p.html"
    )
    assert status == 0, err
    assert "one sequence: " in out and "simulated" in out and "limit: " in out and "embeddings" in out
    assert "<html" in (tmp_path / "p.html").read_text()


def test_the_error_for_a_large_model_names_the_missing_memory(tmp_path, model, capsys):
    passes = passes_of_file(str(model), None, None)
    units = passes.step.units
    need = sum(u.weights + 2 * u.cache for u in units)
    largest = max(u.weights + 2 * u.cache for u in units)
    room = largest + units[1].weights // 2  # memory for one layer
    data = table(3, devices={"server": {**table()["devices"]["server"], "memory": f"{room + passes.step.scratch} B"}})
    path = tmp_path / "c.json"
    path.write_text(json.dumps(data))
    status, out, err = run(capsys, "plan", model, "--cluster", path, "--sequences", 2)
    assert (status, out) == (1, "")
    assert "does not fit" in err and "a1:server" in err and "no memory is left for blk." in err and "are missing" in err
    held = [u.weights + 2 * u.cache for u in units]
    at = 0
    for _ in range(3):  # as many units as each device holds
        free = room
        while at < len(held) and held[at] <= free:
            free -= held[at]
            at += 1
    from ggml_backend._base.text import size_text

    assert f"no memory is left for {units[at].name} to head: {size_text(sum(held[at:]))} are missing" in err
    assert sum(held) == need
    data["devices"]["server"]["memory"] = f"{passes.step.scratch + 100} B"
    path.write_text(json.dumps(data))
    status, out, err = run(capsys, "plan", model, "--cluster", path)
    assert status == 1 and "embeddings alone needs" in err and "the largest device, a1:server, has" in err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["model.gguf", "--sequences", "2"], 2, "--sequences needs --cluster"),
        (["model.gguf", "--simulate"], 2, "--simulate needs --cluster"),
        (["model.gguf", "--cluster", "c.json", "--devices", "CPU"], 2, "--devices is not for --cluster"),
        (["model.gguf", "--cluster", "c.json", "--import", "os"], 2, "--import is not for --cluster"),
        (["model.gguf", "--cluster", "c.json", "--capacity", "3"], 2, "--capacity is for FILE.csv"),
        (["model.gguf", "--cluster", "c.json", "--sequences", "0"], 2, "--sequences must be a number from 1"),
        (["llama", "--cluster", "c.json"], 2, "--cluster is for MODEL.gguf"),
        (["t.csv", "--cluster", "c.json"], 2, "--cluster is for graphs"),
        (["model.gguf", "--cluster", "nothing.json"], 1, "nothing.json"),
        (["model.gguf", "--cluster", "c.json", "--tokens", "100"], 1, "100 tokens do not fit a cache of 64"),
    ],
)  # fmt: skip
def test_wrong_arguments(tmp_path, model, capsys, monkeypatch, words, status, message):
    """Wrong usage: status 2 with the usage. Files that do not allow it: status 1, in one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(json.dumps(table(2)))
    (tmp_path / "t.csv").write_text("id,lower,upper,size\na,0,1,1\n")
    got, out, err = run(capsys, "plan", *words)
    assert (got, out) == (status, "") and message in err
    assert err.startswith("usage: ") if status == 2 else len(err.splitlines()) == 1


def test_other_architectures(tmp_path, capsys):
    with gb.gguf.Writer(tmp_path / "m.gguf") as writer:
        writer.add("general.architecture", "bert").add_tensor("x", np.zeros(4, np.float32))
    (tmp_path / "c.json").write_text(json.dumps(table(2)))
    status, _, err = run(capsys, "plan", tmp_path / "m.gguf", "--cluster", tmp_path / "c.json")
    assert status == 1 and "only the architecture 'llama' can be split into layers, and the file has 'bert'" in err
