"""Costs: the policy "cost" with given costs, measured costs, and their files."""

from __future__ import annotations

import json
import os
import resource
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from damage import replaced
from ggml_backend.cli import main
from ggml_backend.sched import CopyCost, Costs, DeviceCosts, OpCost, calibrate
from ggml_backend.sched._costs import read_costs, write_costs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ggml_backend"


def device(bytes_per_us: float, **fields: Any) -> DeviceCosts:
    return DeviceCosts((OpCost(bytes_per_us=bytes_per_us),), CopyCost(1.0, 1000.0), CopyCost(1.0, 1000.0), **fields)


def test_the_cheaper_device_computes() -> None:
    a, b = gb.Backend("SIM:name=A"), gb.Backend("SIM:name=B")
    for fast, costs in ((0, Costs([device(100), device(1)])), (1, Costs([device(1), device(100)]))):
        with gb.Context() as ctx, gb.Scheduler([a, b], policy="cost", costs=costs) as sched:
            x = ctx.tensor((4, 64), gb.float32, name="x")
            y = gb.ops.relu(x + x)
            graph = ctx.graph(y)
            sched.allocate(graph)
            x.set(np.full((4, 64), -1.5 + 3 * fast, np.float32))
            sched.compute(graph)
            assert np.array_equal(y.numpy(), np.full((4, 64), 3 * fast, np.float32))
            backend = sched.get_backend(y)
            assert backend is not None and backend.name == "AB"[fast]
            assert f"runs on {'AB'[fast]}, because that saves " in sched.explain(y)
            prediction = sched.prediction
            assert prediction is not None and prediction.proved and prediction.gap == 0.0
            assert prediction.us == pytest.approx((2 + 2) * 1024 / 100 + 0.0, rel=0.3)  # add reads x once or twice


def test_no_prediction_without_costs() -> None:
    with gb.Context() as ctx, gb.Scheduler([gb.Backend("SIM"), gb.Backend("CPU", n_threads=1)], policy="cost") as sched:
        graph = ctx.graph(gb.ops.relu(ctx.tensor((4,), gb.float32)))
        sched.allocate(graph)
        assert sched.prediction is None


def test_memory_limits() -> None:
    a, b = gb.Backend("SIM:name=A"), gb.Backend("SIM:name=B")
    for limits in ([1, 0], [1, 1]):
        with (
            gb.Context() as ctx,
            gb.Scheduler([a, b], policy="cost", costs=Costs([device(100), device(1)], max_bytes=limits)) as sched,
        ):
            y = gb.ops.relu(ctx.tensor((1024,), gb.float32))
            graph = ctx.graph(y)
            if limits == [1, 1]:
                with pytest.raises(gb.errors.AllocationError, match="1 are allowed"):
                    sched.allocate(graph)
            else:
                sched.allocate(graph)
                assert sched.memory(a).allocated == 0
                assert sched.get_backend(y) is not None and sched.get_backend(y).name == "B"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (Costs([device(1)]), "1 devices, the scheduler has 2"),
        (Costs([device(1), DeviceCosts(())]), "has no entry for ops of any class"),
        (Costs([device(1), device(1)], max_bytes=[1]), "max_bytes has 1"),
        (Costs([device(1), DeviceCosts((OpCost("nothing"),))]), "unknown class 'nothing'"),
        (Costs([device(1), DeviceCosts((OpCost(dtype="float31"),))]), "or type 'float31'"),
        (Costs([device(1), device(-1)]), "rates above 0"),
        (Costs([device(1), device(1)], split_us=float("nan")), "split_us"),
    ],
)  # fmt: skip
def test_bad_costs(costs: Costs, message: str) -> None:
    with pytest.raises(gb.errors.InvalidArgumentError, match=message):
        gb.Scheduler([gb.Backend("SIM"), gb.Backend("SIM")], policy="cost", costs=costs)


def test_copies_go_through_the_host() -> None:
    costs = Costs([device(1), device(1), device(1, host=True)], copies={(2, 0): CopyCost(7.0, 3.0)})
    assert costs.copy(0, 1) == CopyCost(2.0, 500.0)
    assert costs.copy(0, 2) == CopyCost(1.0, 1000.0)
    assert costs.copy(2, 0) == CopyCost(7.0, 3.0)


def test_measured_once_and_kept(cache: Path) -> None:
    backend = gb.Backend("SIM:name=measured")
    steps: list[tuple[int, int, str]] = []
    assert Costs.cached([backend]) is None
    found = calibrate(backend, size=64, progress=lambda *step: steps.append(step))
    assert [s[0] for s in steps] == list(range(steps[0][1] + 1))
    assert {op.op_class for op in found.ops} == {"any", "matmul", "rows", "elements", "moves"}
    assert all(op.launch_us > 0 and op.bytes_per_us > 0 and op.flops_per_us > 0 for op in found.ops)
    costs = Costs.cached([backend, backend], weight_runs=5.0)
    assert costs is not None and list(costs.devices) == [found, found] and costs.weight_runs == 5.0
    assert [f.suffix for f in cache.iterdir()] == [".json"]  # no partial files are left


@pytest.mark.parametrize(
    "damage", ["", "[]", '{"format": 1', "null", "1e999", "[" * 200_000, '{"a":' * 200_000, '"\\ud800"', "\xff"]
)
def test_damaged_files_are_not_read(cache: Path, damage: str) -> None:
    backend = gb.Backend("SIM:name=measured")
    path = write_costs(backend, device(2.0))
    assert read_costs(backend) == device(2.0)
    path.write_bytes(damage.encode("latin-1"))
    with pytest.warns(RuntimeWarning, match="is invalid and ignored"):
        assert read_costs(backend) is None


WRONG: list[Any] = [None, True, 0, -1, 1.5, 10**400, float("nan"), "", "x", [], {}, [[]], {"x": 1}, [None], "\ud800"]


def paths_in(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at, *(path for key, value in items for path in paths_in(value, (*at, key)))]


def test_valid_json_with_wrong_values(cache: Path) -> None:
    """For any value at any key the file is accepted, with finite usable costs, or ignored."""
    backend = gb.Backend("SIM:name=measured")
    path = write_costs(backend, device(2.0))
    data = json.loads(path.read_text())
    taken = 0
    for where in paths_in(data):
        for value in WRONG:
            path.write_text(json.dumps(replaced(data, where, value)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                found = Costs.cached([backend])
                gb.Scheduler([backend], policy="cost").close()
            if found is not None:
                taken += 1
                assert all(
                    0 <= op.launch_us < np.inf and op.bytes_per_us > 0 and op.flops_per_us > 0
                    for op in found.devices[0].ops
                )
    assert taken > 0


def test_a_pipe_as_the_file_of_costs_is_ignored(cache: Path) -> None:
    backend = gb.Backend("SIM:name=measured")
    path = write_costs(backend, device(2.0))
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(RuntimeWarning, match="not a regular file"):
        assert read_costs(backend) is None
    with pytest.raises(gb.errors.FileError, match="not a regular file"):
        write_costs(backend, device(2.0))


def test_copies_without_a_rate() -> None:
    with pytest.raises(gb.errors.InvalidArgumentError, match="above 0"):
        Costs([device(1.0), DeviceCosts(from_host=CopyCost(1.0, 0.0))]).copy(0, 1)


def test_another_version_is_not_read(cache: Path) -> None:
    backend = gb.Backend("SIM:name=measured")
    path = write_costs(backend, device(2.0))
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "version": "0.0.0"}))
    assert read_costs(backend) is None


def test_a_failed_write_leaves_the_old_file(cache: Path) -> None:
    backend = gb.Backend("SIM:name=measured")
    write_costs(backend, device(2.0))

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))  # simulates a full disk; Python ignores the signal
    try:
        with pytest.raises(OSError, match="too large"):
            write_costs(backend, device(3.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_costs(backend) == device(2.0)
    assert len(list(cache.iterdir())) == 1


def test_command_line(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    for measured in (True, False):
        assert main(["calibrate", "--size", "64", "--json", "SIM:name=line"]) == 0
        (result,) = json.loads(capsys.readouterr().out)
        assert result["measured"] is measured and Path(result["file"]).parent == cache
    assert main(["calibrate", "SIM:name=line"]) == 0
    assert "matmul" in capsys.readouterr().out
    assert main(["calibrate", "NOTHING"]) == 1
    assert "NOTHING" in capsys.readouterr().err


def test_devices_without_ops() -> None:
    with pytest.raises(gb.errors.UnsupportedError, match="supports none of the measured"):
        calibrate(gb.Backend("SIM:name=none,ops="), size=64)
    with pytest.raises(gb.errors.InvalidArgumentError, match="multiple of 32"):
        calibrate(gb.Backend("SIM"), size=65)
