"""tools/check_cuda.sh: what cannot be checked on a machine is owed, what fails has failed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from source_tree import in_tree

SCRIPT = in_tree("tools/check_cuda.sh")


def run_memcheck(tree: Path, sanitizer: str | None) -> tuple[int, str]:
    """The step in a tree of its own, with a program that passes and this text of a script as compute-sanitizer."""
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
        ["sh", "tools/check_cuda.sh", "90", "1", "memcheck"],
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
def test_what_cannot_attach_is_owed(tmp_path: Path, sanitizer: str | None) -> None:
    code, text = run_memcheck(tmp_path, sanitizer)
    assert "== owed: memcheck" in text
    assert "== failed: nothing" in text
    assert code == 1


def test_what_it_finds_has_failed(tmp_path: Path) -> None:
    code, text = run_memcheck(tmp_path, 'echo "========= Invalid __global__ read of size 4 bytes"; exit 9')
    assert "== failed: memcheck" in text
    assert code == 1


def test_what_passes_has_passed(tmp_path: Path) -> None:
    code, text = run_memcheck(tmp_path, 'for program in "$@"; do :; done; exec "$program"')
    assert "== passed: memcheck" in text
    assert code == 0
