"""Layers on described clusters: the best of all placements, plans and prices of the scheduler, and
the output of the command.
"""

from __future__ import annotations

import itertools
import json
import math
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
import small_models as sm
from described import LINK, description, every_placement, small_sizes, table, write_llama
from ggml_backend.cli import main
from ggml_backend.cli.examples.layers import drawn, passes_of, passes_of_file
from ggml_backend.cli.examples.models import DecoderFile, Pass
from ggml_backend.cluster.planning.layers import LayerModel, Node, Placement, Stage, Unit, place, predict
from ggml_backend.models import DECODERS
from ggml_backend.models._sizes import Rope, Sizes


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


INPUTS = {"ids", "positions", "rows", "mask", "local_mask", "out"}


def small(tokens: int, context: int) -> DecoderFile:
    return DecoderFile.of_sizes(DECODERS["llama"], small_sizes(6, context), gb.dtypes.q4_0, tokens)


def split_evenly(n_units: int, n: int) -> tuple[Stage, ...]:
    borders = [k * n_units // n for k in range(n + 1)]
    return tuple(Stage(k, a, b) for k, (a, b) in enumerate(itertools.pairwise(borders)))


@pytest.fixture(params=["llama", "qwen3moe", "gemma2", "gpt-oss"])
def file(request: Any, tmp_path: Path) -> Any:
    """Small models of four architectures, whose pass fills the cache: C counts a write to a part of the cache with the
    elements between."""
    path = tmp_path / "model.gguf"
    sm.write(path, sm.SMALL[request.param])
    with gb.gguf.open(path) as file:
        yield DecoderFile.of(file, Pass(32, 32))


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_times_are_those_of_the_schedulers_costs(tmp_path, file, n):
    """The C library counts bytes and operations of each node and copy independently."""
    cluster = description(tmp_path, table(n, issue="7 us", links=[{**LINK, "bandwidth": "10 MB/s"}]))
    cluster.devices[0].kind.types["float32"] = type(cluster.devices[0].kind.rates)(50e9, 1e12)  # type: ignore[index]
    passes = passes_of(file, "small")
    model = passes.prompt
    stages = split_evenly(len(model.units), n)
    wanted = predict(model, Placement(stages, 1), cluster)
    backends = [gb.Backend(f"SIM:name=d{k}") for k in range(n)]
    home = {u: backends[s.device] for s in stages for u in range(s.begin, s.end)}
    names = {**{u.name: k for k, u in enumerate(model.units)}, "output_norm_rms": len(home) - 1}
    with (
        gb.Context(usage="weights") as held,
        gb.Context() as ctx,
        gb.Scheduler(backends, policy="cost", costs=cluster.costs()) as sched,
    ):
        graph, unit = file.graph(ctx, *file.tensors(lambda _: held)), 0
        for node in graph.nodes:  # in the order of the layers; a node without a name follows those with one
            unit = names.get(".".join(node.name.split(".")[: 2 if node.name.startswith("blk.") else 1]), unit)
            sched.set_backend(node, home[unit])
        plan = sched.prepare(graph, allocate=False)
        found = sched.prediction
        copied = sum(cluster.link(0, n - 1).seconds(c.nbytes) for c in plan.copies)
    assert found is not None
    assert found.us / 1e6 == pytest.approx(sum(wanted.stages) + copied + 7e-6 * (n - 1), rel=1e-5)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_cuts_and_memory_are_those_of_a_plan(tmp_path, file, n):
    cluster = description(tmp_path, table(n))
    passes = passes_of(file, "small")
    n_padded = sum(math.prod(shape) * dtype.itemsize % 128 > 0 for shape, dtype in file.weights.values())
    for model in (passes.step, passes.prompt):
        placement = Placement(split_evenly(len(model.units), n), 1)
        with drawn(passes, model, placement, cluster) as (plan, picture):
            assert [s.backend for s in plan.splits] == [d.name for d in cluster.devices]
            for a, b in itertools.pairwise(placement.stages):
                copies = [c for c in plan.copies if c.dst_backend == cluster.devices[b.device].name]
                crossing = [c for c in copies if c.name not in INPUTS]
                rows = 1 if a.end == len(model.units) - 1 else model.tokens  # the last layer has the last row alone
                assert [c.nbytes for c in crossing] == [rows * sm.EMBD * 4]
                assert {c.src_backend for c in crossing} == {cluster.devices[a.device].name}
                carried = model.units[a.end - 1].carry - rows * sm.EMBD * 4
                assert sum(c.nbytes for c in copies if c.name in INPUTS) <= carried <= model.sent
            for stage, arena in zip(placement.stages, plan.arenas, strict=True):
                units = model.units[stage.begin : stage.end]
                inputs = arena.leafs - sum(u.weights + u.cache for u in units)
                assert 0 <= inputs <= model.sent + 128 * (len(INPUTS) + n_padded)
                assert arena.peak <= model.scratch + 2 * max(u.carry for u in model.units)
            assert picture.title == f"small: {model.tokens} token{'s' if model.tokens > 1 else ''}"


@pytest.mark.parametrize("name", sm.SMALL)
def test_layers_of_every_architecture_are_alike(tmp_path, name):
    """Each layer has its own weights, and sends as much as the others to the next one."""
    path = tmp_path / "model.gguf"
    sm.write(path, sm.SMALL[name])
    passes = passes_of_file(str(path), 8, 64)
    with gb.gguf.open(path) as file:
        held = {name: t.nbytes for name, t in file.tensors.items()}
    for model in (passes.step, passes.prompt):
        shared = held.get("rope_freqs.weight", 0)
        for i, unit in enumerate(model.units[1:-1]):
            own = sum(n for name, n in held.items() if name.startswith(f"blk.{i}."))
            assert (unit.name, unit.weights) == (f"blk.{i}", own + shared)
            assert unit.cache == 64 * sm.KV_HEADS * sm.HEAD * 2 * 2  # positions, keys and values, float16
        carried = [unit.carry - model.tokens * sm.EMBD * 4 for unit in model.units[:-2]]  # inputs for later layers
        assert carried == sorted(carried, reverse=True) and 0 < carried[-1] <= carried[0] < model.sent
        assert model.units[-2].carry == sm.EMBD * 4 and len(model.units) == sm.LAYERS + 2
        assert model.units[0].weights == held["token_embd.weight"]
        assert model.units[-1].weights == held["output.weight"] + held["output_norm.weight"]
        assert model.units[-1].carry == 0 and model.returned == sm.VOCAB * 4


def test_nothing_is_loaded(tmp_path):
    """A model of 300 GiB is planned in some MiB."""
    sizes = Sizes(
        vocab=128256, embd=16384, layers=120, heads=128, kv_heads=8, head_k=128, head_v=128, ff=53248, context=8192,
        eps=1e-5, rope=Rope(128, 1e4), scale=128**-0.5, softcap=0.0, final_softcap=0.0, window=0, experts=None,
    )  # fmt: skip
    file = DecoderFile.of_sizes(DECODERS["llama"], sizes, gb.dtypes.q8_0, 512)
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
    """Wrong usage gives status 2 and the usage. Unsuitable files give status 1 and one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(json.dumps(table(2)))
    (tmp_path / "t.csv").write_text("id,lower,upper,size\na,0,1,1\n")
    got, out, err = run(capsys, "plan", *words)
    assert (got, out) == (status, "") and message in err
    assert err.startswith("usage: ") if status == 2 else len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("architecture", "message"),
    [("bert", "--cluster splits language models, and 'bert' is of another kind"), ("gpt2", "Known are bert, gemma2"),
     (7, "the architecture '7' is not known"), ("llama", "no key llama.embedding_length")],
)  # fmt: skip
def test_other_files_are_refused(tmp_path, capsys, architecture, message):
    with gb.gguf.Writer(tmp_path / "m.gguf") as writer:
        writer.add("general.architecture", architecture).add_tensor("x", np.zeros(4, np.float32))
    (tmp_path / "c.json").write_text(json.dumps(table(2)))
    status, out, err = run(capsys, "plan", tmp_path / "m.gguf", "--cluster", tmp_path / "c.json")
    assert (status, out, len(err.splitlines())) == (1, "", 1) and message in err
