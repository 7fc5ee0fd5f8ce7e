"""Costs of work on other ranks: measured over a simulated network, stored, and used by the policy
"cost".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cli import main
from ggml_backend.cluster import Description, LocalNetwork, simulated
from ggml_backend.cluster._messages import DATA
from ggml_backend.sched import CopyCost, Costs, DeviceCosts, OpCost
from ggml_backend.sched._costs import file_of

FAST, SLOW = {"delay": 0.0005, "rate": 1e9}, {"delay": 0.02, "rate": 1e7}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ggml_backend"


def linked(slow: tuple[int, int]) -> LocalNetwork:
    """Three ranks with one slow link."""
    network = LocalNetwork(3, **FAST)
    for a, b in (slow, slow[::-1]):
        network.link(a, b, **SLOW)
    return network


def device(bytes_per_us: float = 1e4) -> DeviceCosts:
    return DeviceCosts((OpCost(bytes_per_us=bytes_per_us),), CopyCost(1.0, 1e6), CopyCost(1.0, 1e6))


def computes(flops_per_us: float) -> DeviceCosts:
    return DeviceCosts((OpCost(flops_per_us=flops_per_us),), CopyCost(1.0, 1e6), CopyCost(1.0, 1e6))


def test_links_are_measured_between_ranks():
    """A link takes at least its delay, and the slow one is found. No measured data pass through
    rank 0."""
    for slow in ((1, 2), (0, 1)):
        network = linked(slow)
        with simulated(3, network=network) as cluster:
            one, two = (b.device for b in cluster.backends())
            between, back = one.measure_link(two)
            assert not [key for key in network.sent if key[2] == DATA and 0 in key[:2]]
            there, home = one._measure_copies()
            other, _ = two._measure_copies()
        limits = {True: (20_000, 10.0), False: (500, 1000.0)}
        for found, pair in ((between, (1, 2)), (back, (1, 2)), (there, (0, 1)), (home, (0, 1)), (other, (0, 2))):
            us, rate = limits[pair == slow]
            assert found.launch_us >= us and found.bytes_per_us > 0
            if pair == slow:
                assert found.bytes_per_us < 3 * rate
        quick = other if slow == (0, 1) else there
        worst = there if slow == (0, 1) else between
        assert worst.launch_us > 3 * quick.launch_us and worst.bytes_per_us < quick.bytes_per_us / 3


def test_copies_between_devices_of_a_rank_take_no_link():
    with simulated(2, **SLOW) as cluster:
        a, b = gb.Backend("MPI1:CPU").device, gb.Backend("MPI1:SIM,name=X").device
        assert cluster.n_ranks == 2
        found = [*a.measure_link(b)]
    assert all(c.launch_us < 20_000 and c.bytes_per_us > 10 for c in found)


def test_measured_once_and_kept(cache):
    steps: list[tuple[int, int, str]] = []
    network = linked((1, 2))
    with simulated(3, network=network) as cluster:
        backends = [*cluster.backends(), gb.Backend("CPU", n_threads=1)]
        assert Costs.cached(backends) is None
        first = cluster.calibrate(backends, size=64, progress=lambda *s: steps.append(s))
        assert [s[0] for s in steps] == list(range(steps[0][1] + 1))
        assert sorted(first.copies) == [(0, 1), (1, 0)]
        found = Costs.cached(backends)
        assert found is not None and list(found.devices) == list(first.devices) and found.copies == first.copies
        sent = cluster.bytes_sent
        steps.clear()
        assert cluster.calibrate(backends, size=64, progress=lambda *s: steps.append(s)) == first
        assert cluster.bytes_sent - sent < 4096 and steps[0][1] == 3
        with gb.Scheduler(backends, policy="cost") as sched:
            assert sched.prediction is None  # no graph yet; the scheduler has accepted the costs
    assert len(list(cache.glob("links-*.json"))) == 1


def test_names_of_links_identify_equal_ranks(cache):
    """The names contain host, processor, cores, threads and connection, but no rank number."""
    with simulated(3, n_threads=1, **FAST) as cluster:
        one, two = cluster.backends()
        assert file_of(one) == file_of(two)
        names = {one.device._cost_name, one.device.link_name(two.device)}
        rank = cluster.ranks[1]
        assert all(rank.host in n and f"{rank.cores} cores, 1 threads" in n for n in names)
        before = file_of(one)
    for options in ({"n_threads": 2, **FAST}, {"n_threads": 1, **SLOW}):
        with simulated(3, **options) as cluster:  # type: ignore[arg-type]
            one, two = cluster.backends()
            assert file_of(one) != before
            assert one.device.link_name(two.device) not in names


def test_links_beyond_the_time_limit_are_not_measured():
    with simulated(3, **FAST) as cluster:
        backends = cluster.backends()
        found = cluster.calibrate(backends, size=64, seconds=1e-9)
        assert found.copies == {}
        here, away = found.devices[0].to_host, found.devices[1].from_host
        assert found.copy(0, 1).launch_us == pytest.approx(here.launch_us + away.launch_us)


@pytest.mark.parametrize(
    "damage", ["", "[]", '{"links": 3}', '{"links": {"x": {"launch_us": -1, "bytes_per_us": 1}}}', "\0"]
)
def test_damaged_files_are_not_read(cache, damage):
    with simulated(3, **FAST) as cluster:
        backends = cluster.backends()
        cluster.calibrate(backends, size=64)
        (path,) = cache.glob("links-*.json")
        path.write_text(damage)
        with pytest.warns(RuntimeWarning, match="is invalid and ignored"):
            found = Costs.cached(backends)
        assert found is not None and found.copies == {}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"size": 65}, gb.errors.InvalidArgumentError), ({"seconds": 0}, gb.errors.InvalidArgumentError),
        ({"seconds": "x"}, gb.errors.InvalidArgumentError), ({"force": 3}, TypeError), ({"progress": 3}, TypeError),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments, error):
    with simulated(2) as cluster, pytest.raises(error, match="calibrate"):
        cluster.calibrate(cluster.backends(), **arguments)
    with simulated(2) as cluster, pytest.raises(TypeError, match=r"Cluster\.calibrate"):
        cluster.calibrate([3])  # type: ignore[list-item]


def test_a_rank_lost_during_calibration():
    network = LocalNetwork(3)
    with simulated(3, network=network, deadline=2.0) as cluster:
        backends = cluster.backends()
        network.kill(2)
        with pytest.raises(gb.errors.DeviceLostError):
            cluster.calibrate(backends, size=64)
        assert len(cluster.calibrate(cluster.backends(), size=64).devices) == 1


# ----------------------------------------------------------------------------------------------------------- the policy


def homes(backends: list[gb.Backend], costs: Costs, x_on: int, n: int = 4) -> list[str]:
    """The devices that run the products of a chain. Its input is on device ``x_on``. Checks the
    result."""
    rng = np.random.default_rng(0)
    with gb.Context() as leaf, gb.Context() as ctx, gb.Scheduler(backends, policy="cost", costs=costs) as sched:
        x = leaf.tensor((8, 64), name="x")
        leaf.allocate(backends[x_on])
        y, weights = x, []
        for i in range(n):
            weights.append(ctx.tensor((64, 64), name=f"w{i}"))
            with ctx.as_default():
                y = gb.ops.relu(y @ weights[-1].T)
        graph = ctx.graph(y)
        sched.allocate(graph)
        values = rng.standard_normal((8, 64)).astype(np.float32)
        x.set(values)
        for w in weights:
            data = rng.standard_normal((64, 64)).astype(np.float32) / 8
            w.set(data)
            values = np.maximum(values @ data.T, 0)
        sched.compute(graph)
        np.testing.assert_allclose(y.numpy(), values, rtol=1e-4, atol=1e-5)
        return [b.name for node in graph.nodes if (b := sched.get_backend(node)) is not None]


def test_work_does_not_cross_a_slow_link():
    """The second rank is thirty times as fast, but the scheduler uses it only over a fast link."""
    for slow, wanted in (((1, 2), "MPI1:CPU"), ((0, 1), "MPI2:CPU")):
        with simulated(3, network=linked(slow)) as cluster:
            one, two = cluster.backends()
            there, back = one.device.measure_link(two.device)
            costs = Costs([device(10.0), device(300.0)], {(0, 1): there, (1, 0): back})
            found = homes([one, two], costs, x_on=0)
            assert set(found) == {wanted}, (slow, there, found)


def test_the_scheduler_prefers_the_rank_with_the_fast_link():
    """Rank 1 has the input and is slow. Ranks 2 and 3 are equally fast, but one of them has a slow
    link."""
    for far, near in ((2, 3), (3, 2)):
        network = LocalNetwork(4, **FAST)
        for a, b in ((1, far), (far, 1)):
            network.link(a, b, **SLOW)
        with simulated(4, network=network) as cluster:
            backends = cluster.backends()
            devices = [b.device for b in backends]
            copies: dict[tuple[int, int], CopyCost] = {}
            for i, j in ((0, 1), (0, 2), (1, 2)):
                copies[i, j], copies[j, i] = devices[i].measure_link(devices[j])
            found = homes(backends, Costs([device(10.0), device(300.0), device(300.0)], copies), x_on=0)
            assert set(found) == {f"MPI{near}:CPU"}


def test_memory_spreads_work_over_ranks():
    """Six products with weights of 256 KiB each, on a fast rank and a slow one. If the fast rank
    cannot hold all weights, it keeps those with most work for each byte."""
    with simulated(3, **FAST) as cluster:
        backends = cluster.backends()
        there, back = backends[0].device.measure_link(backends[1].device)
        for limit in (0, 3 << 19):
            costs = Costs([computes(3e3), computes(1e3)], {(0, 1): there, (1, 0): back}, max_bytes=[limit, 0])
            with gb.Context() as ctx, gb.Scheduler(backends, policy="cost", costs=costs) as sched:
                products = []
                for i in range(6):
                    x, w = ctx.tensor((16 << i, 256), name=f"x{i}"), ctx.tensor((256, 256), name=f"w{i}")
                    products.append(gb.ops.sum(x @ w.T).named(f"y{i}"))
                sched.allocate(ctx.graph(*products))
                fast = [p.name for p in products if sched.get_backend(p) == backends[0]]
                assert limit == 0 or sched.buffer_nbytes(backends[0]) <= limit
            assert "y5" in fast and (limit == 0) == (len(fast) == 6), fast


def test_equal_ranks_share_weights_that_one_cannot_hold():
    """Six layers, each with an unallocated weight of 256 KiB. One rank can hold all of them, or
    two."""
    with simulated(4, **FAST) as cluster:
        backends = cluster.backends()
        devices = [b.device for b in backends]
        copies: dict[tuple[int, int], CopyCost] = {}
        for i, j in ((0, 1), (0, 2), (1, 2)):
            copies[i, j], copies[j, i] = devices[i].measure_link(devices[j])
        rng = np.random.default_rng(0)
        for limit, n_used in ((0, 1), (600 << 10, 3)):
            costs = Costs([device()] * 3, copies, max_bytes=[limit] * 3)
            with gb.Context() as ctx, gb.Scheduler(backends, policy="cost", costs=costs) as sched:
                x = y = ctx.tensor((8, 256), name="x")
                weights = [ctx.tensor((256, 256), name=f"w{i}") for i in range(6)]
                for w in weights:
                    y = gb.ops.relu(y @ w.T)
                graph = ctx.graph(y)
                sched.allocate(graph)
                assert len(sched.splits) == len({s.backend for s in sched.splits}) == n_used
                assert limit == 0 or all(0 < sched.buffer_nbytes(b) <= limit for b in backends)
                values = rng.standard_normal((8, 256)).astype(np.float32)
                x.set(values)
                for w in weights:
                    data = rng.standard_normal((256, 256)).astype(np.float32) / 16
                    w.set(data)
                    values = np.maximum(values @ data.T, 0)
                sched.compute(graph)
                np.testing.assert_allclose(y.numpy(), values, rtol=1e-3, atol=1e-4)


# --------------------------------------------------------------------------------------------------------- descriptions


def test_a_measured_cluster_is_described(tmp_path):
    with simulated(3, network=linked((1, 2))) as cluster:
        backends = [*cluster.backends(), gb.Backend("CPU", n_threads=1)]
        costs = cluster.calibrate(backends, size=64)
        found = cluster.describe(backends, costs)
        memory = cluster.ranks[0].memory
    assert [d.host for d in found.devices] == ["rank1", "rank2", "rank0"] and found.rank0 == "rank0"
    assert all(d.kind.memory == memory // 3 for d in found.devices)  # three ranks of one host
    link, near = found.link(0, 1), found.from_rank0(0)
    assert link.latency == pytest.approx(max(costs.copies[p].launch_us for p in costs.copies) / 1e6)
    assert near.latency == pytest.approx(costs.devices[0].to_host.launch_us / 1e6)
    assert link.latency > near.latency
    product = next(op for op in costs.devices[0].ops if op.dtype == "q8_0")
    assert found.devices[0].kind.types["q8_0"].bandwidth == pytest.approx(product.bytes_per_us * 1e6)
    found.write(tmp_path / "c.toml")
    again = Description.read(tmp_path / "c.toml")
    assert [d.name for d in again.devices] == [d.name for d in found.devices]
    assert again.link(0, 1).bandwidth == pytest.approx(link.bandwidth, rel=1e-5)


def test_command_line_without_ranks(tmp_path, capsys):
    out = tmp_path / "c.toml"
    assert main(["cluster", "calibrate", "--size", "64", "--threads", "1", "--json", "--out", str(out)]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [d["device"] for d in result["devices"]] == ["rank 0"] and result["links"] == []
    assert [d.host for d in Description.read(out).devices] == ["rank0"]
    assert main(["cluster", "calibrate"]) == 0
    assert "rank 0: products of float32" in capsys.readouterr().out


def test_a_missing_script_is_an_error(tmp_path, capsys):
    assert main(["cluster", "run", str(tmp_path / "none.py")]) == 1
    err = capsys.readouterr().err
    assert err.endswith(f"error: there is no file {tmp_path / 'none.py'}\n") and "Traceback" not in err
