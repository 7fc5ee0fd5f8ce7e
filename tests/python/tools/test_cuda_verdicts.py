"""benchmarks/cuda_verdicts.py: claims that hold, that fail, and that nothing measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import in_tree

SCRIPT = in_tree("benchmarks/cuda_verdicts.py")


def run(
    folder: Path,
    ours: dict[str, float],
    torch: dict[str, float],
    mma: dict[str, float] | None = None,
    waiting: dict[str, float] | None = None,
) -> tuple[int, list[str]]:
    files: list[str] = []
    for option, figures in (("", ours), ("", torch), ("--mma", mma), ("--waiting", waiting)):
        if figures is None:
            continue
        path = folder / f"{len(files)}.json"
        path.write_text(json.dumps({"results": [{"name": k, "unit": v} for k, v in figures.items()]}))
        files += [option, str(path)] if option else [str(path)]
    done = subprocess.run([sys.executable, str(SCRIPT), *files], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def good() -> tuple[dict[str, float], dict[str, float]]:
    ours = {
        "device copy, bytes read and written": 4000.0,
        "1000 nodes, replayed": 0.5,
        "mul_mat f32 m=4096 n=4096 k=4096": 41.0,
        "mul_mat f32 m=4096 n=4096 k=4096 by cuBLAS": 50.0,
        "mul_mat f32 m=4096 n=4096 k=4096 in tf32": 100.0,
        "conv_2d_dw 3x3, bytes read and written": 1700.0,
        "upload of 2 GiB, pinned memory": 50.0,
    }
    torch = {"upload of 2 GiB, pinned memory": 52.0}
    for kind in ("f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_xs"):
        ours[f"mul_mat {kind} m=8192 n=1 k=8192"] = 3500.0
        ours[f"mul_mat {kind} m=2048 n=1 k=2048"] = 2100.0
        ours[f"mul_mat {kind} m=8192 n=8 k=8192"] = ours[f"mul_mat {kind} m=8192 n=16 k=8192"] = 2900.0
        ours[f"mul_mat {kind} m=8192 n=512 k=8192"] = 300.0
        torch[f"dequantize {kind}, then mul_mat m=8192 n=512 k=8192"] = 200.0
    for kind in ("f16", "bf16"):
        product = f"mul_mat {kind} m=8192 n=8192 k=8192"
        ours[product] = torch[f"{product}, float rows made {kind}"] = 500.0
        ours[f"{product}, {kind} rows"] = 600.0
        torch[product] = 700.0
    for case in ("f16 n=4096 heads=32 d=128 causal", "bf16 n=4096 heads=32 d=128"):
        ours[f"flash_attn {case}"] = 300.0
        torch[f"flash_attn {case}"] = 500.0
    return ours, torch


def test_all_hold(tmp_path: Path) -> None:
    code, lines = run(tmp_path, *good())
    assert code == 0
    assert len(lines) == 38
    assert all(line.endswith("holds") for line in lines)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mul_mat q4_K m=8192 n=1 k=8192", 3399.0),
        ("mul_mat q4_K m=2048 n=1 k=2048", 1999.0),
        ("mul_mat q8_0 m=8192 n=16 k=8192", 2799.0),
        ("mul_mat f32 m=4096 n=4096 k=4096", 39.0),
        ("mul_mat bf16 m=8192 n=8192 k=8192, bf16 rows", 489.0),
        ("mul_mat bf16 m=8192 n=8192 k=8192", 349.0),
        ("mul_mat q8_0 m=8192 n=512 k=8192", 199.0),
        ("flash_attn f16 n=4096 heads=32 d=128 causal", 249.0),
        ("1000 nodes, replayed", 1.0),
        ("upload of 2 GiB, pinned memory", 46.0),
    ],
)
def test_one_claim_fails(tmp_path: Path, name: str, value: float) -> None:
    ours, torch = good()
    code, lines = run(tmp_path, {**ours, name: value}, torch)
    assert code == 1
    assert sum(line.endswith("DOES NOT HOLD") for line in lines) == 1


def test_claims_about_kernels_of_all_devices(tmp_path: Path) -> None:
    ours, torch = good()
    for kind in ("f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_xs"):
        for rows in (48, 128, 512):
            ours[f"mul_mat {kind} m=8192 n={rows} k=8192"] = 300.0
        ours[f"mul_mat_id {kind} m=4096 n=2048 k=4096 experts=8"] = 300.0
    code, lines = run(tmp_path, ours, torch, dict.fromkeys(ours, 299.0))
    assert (code, len(lines)) == (0, 38 + 7 * 4)
    slower = {**ours, "mul_mat q4_0 m=8192 n=48 k=8192": 301.0}
    code, lines = run(tmp_path, ours, torch, slower)
    assert code == 1
    assert [line for line in lines if line.endswith("DOES NOT HOLD")] == [
        line for line in lines if line.startswith("48 rows, q4_0, beside mma.sync")
    ]
    assert run(tmp_path, ours, torch, {})[0] == 77


def test_missing_figures_are_owed(tmp_path: Path) -> None:
    ours, torch = good()
    del ours["1000 nodes, replayed"]
    code, lines = run(tmp_path, ours, {})
    assert code == 77
    assert sum("owed" in line for line in lines) == 11
    assert sum(line.endswith("holds") for line in lines) == 27


def test_without_files(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "nothing.json", "nothing.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 77
    assert "holds" not in done.stdout


@pytest.mark.parametrize(
    ("waiting", "code", "says"),
    [
        ({"1000 nodes, replayed": 0.7}, 0, "holds"),
        ({"1000 nodes, replayed": 0.4}, 1, "DOES NOT HOLD"),
        ({}, 77, "owed"),
    ],
)
def test_dependent_launches(tmp_path: Path, waiting: dict[str, float], code: int, says: str) -> None:
    got, lines = run(tmp_path, *good(), waiting=waiting)
    assert got == code
    assert says in lines[-1]


def test_claims_about_mma_and_waiting(tmp_path: Path) -> None:
    ours, torch = good()
    code, lines = run(tmp_path, ours, torch, mma={}, waiting={"1000 nodes, replayed": 0.7})
    assert code == 77
    assert lines[-1].endswith("holds")
    assert sum("beside mma.sync" in line and "owed" in line for line in lines) == 7 * 4
