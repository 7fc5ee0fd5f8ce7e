"""tools/check_cuda.sh counts a check that a machine cannot run as owed, and a failing check as
failed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import in_tree

SCRIPT = in_tree("tools/check_cuda.sh")


def run_sanitizer(tree: Path, sanitizer: str | None, step: str = "memcheck") -> tuple[int, str]:
    """Runs the step in its own tree, with a passing program and this script as compute-sanitizer."""
    (tree / "tools").mkdir()
    shutil.copy(SCRIPT, tree / "tools")
    programs = tree / "build/cuda/tests/cuda"
    programs.mkdir(parents=True)
    commands = tree / "bin"
    commands.mkdir()
    scripts = {programs / "test_cuda_dialect_device": "exit 0", programs / "test_cuda_ops_device": "exit 0"}
    if sanitizer is not None:
        scripts[commands / "compute-sanitizer"] = sanitizer
    for path, text in scripts.items():
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    done = subprocess.run(
        ["sh", "tools/check_cuda.sh", "90", "1", step],
        cwd=tree,
        env={"PATH": f"{commands}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "sanitizer",
    [
        None,
        'echo "========= Error: Target application terminated before first instrumented API call"; exit 9',
        'echo "========= Error: Device not supported. Please refer to the documentation."; exit 9',
        'echo "========= Error: Unable to attach to process"; exit 255',
    ],
)
def test_a_check_that_cannot_attach_is_owed(tmp_path: Path, sanitizer: str | None) -> None:
    code, text = run_sanitizer(tmp_path, sanitizer)
    assert "== owed: memcheck" in text
    assert "== failed: nothing" in text
    assert code == 1


def test_a_check_with_findings_fails(tmp_path: Path) -> None:
    code, text = run_sanitizer(tmp_path, 'echo "========= Invalid __global__ read of size 4 bytes"; exit 9')
    assert "== failed: memcheck" in text
    assert code == 1


def test_a_check_without_findings_passes(tmp_path: Path) -> None:
    code, text = run_sanitizer(tmp_path, 'for program in "$@"; do :; done; exec "$program"')
    assert "== passed: memcheck" in text
    assert code == 0


def test_a_check_beyond_the_time_limit_is_owed(tmp_path: Path) -> None:
    code, text = run_sanitizer(tmp_path, "case $* in *ops*) exit 124;; esac")
    assert "test_cuda_ops_device: memcheck: not finished" in text
    assert "== owed: memcheck" in text
    assert "== failed: nothing" in text
    assert code == 1


def test_racecheck_skips_one_kernel(tmp_path: Path) -> None:
    script = 'for program in "$@"; do :; done; echo "called: $*"; exec "$program"'
    code, text = run_sanitizer(tmp_path, script, "racecheck")
    calls = [line for line in text.splitlines() if line.startswith("called:")]
    assert len(calls) == 2
    for call in calls:
        assert "--tool racecheck --kernel-regex-exclude kernel_substring=gb_gemm_packed_hopper " in call
    assert "== passed: racecheck" in text
    assert code == 0


def run_demo(tree: Path, wrong: str) -> tuple[int, str]:
    """Runs the step with examples that write vectors. On the device they differ for the type ``wrong``."""
    (tree / "tools").mkdir()
    shutil.copy(SCRIPT, tree / "tools")
    shutil.copy(in_tree("tools/compare_embeddings.py"), tree / "tools")
    examples = tree / "examples"
    examples.mkdir()
    (examples / "__init__.py").touch()
    (examples / "embed.py").write_text(
        f"""
import sys
import numpy as np
options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
vectors = np.eye(3, 8, dtype=np.float32)
if options["--devices"] != "CPU" and options["--type"] == {wrong!r}:
    vectors[1] = vectors[1, ::-1]
np.save(options["--out"], vectors)
"""
    )
    (tree / "ggml_backend.py").write_text("def backends(): return ['CPU', 'CUDA0']")
    python = tree / "build/cuda-venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\n[ "$2" = pip ] && exit 0\nPYTHONPATH=. exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["sh", "tools/check_cuda.sh", "90", "1", "demo"], cwd=tree, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("wrong", ["f32", "f16", "q8_0", "q4_k"])
def test_the_demo_compares_each_type(tmp_path: Path, wrong: str) -> None:
    code, text = run_demo(tmp_path, wrong)
    assert f"build/embed-cuda-{wrong}.npy: cosine to build/embed-cpu-{wrong}.npy at least 0.0" in text
    assert "== failed: demo" in text
    assert code == 1


def test_the_demo_passes_if_vectors_agree(tmp_path: Path) -> None:
    code, text = run_demo(tmp_path, "none")
    assert text.count("at least 1.0") == 4
    assert "== passed: demo" in text
    assert code == 0
