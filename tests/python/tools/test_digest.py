"""tools/digest.py: equal runs are equal, a difference is reported, and no function is left out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import in_tree

pytestmark = pytest.mark.slow


def digest(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(in_tree("tools/digest.py")), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)


def test_equal_and_different(tmp_path: Path) -> None:
    kept = tmp_path / "digest.json"
    first = digest("--only", "quantize/q4*", "--json", str(kept))  # also checks that each operation has a case
    assert first.returncode == 0, first.stderr
    assert len([line for line in first.stdout.splitlines() if " quantize/" in line]) == 3
    again = digest("--only", "quantize/q4*", "--compare", str(kept))
    assert again.returncode == 0, again.stdout
    assert "3 of 3 groups are equal" in again.stdout
    parts = json.loads(kept.read_text())
    parts["groups"]["quantize/q4_1"]["quantized"] = "0" * 64
    kept.write_text(json.dumps(parts))
    other = digest("--only", "quantize/q4*", "--compare", str(kept))
    assert other.returncode == 1
    assert "DIFFERENT  quantize/q4_1: quantized" in other.stdout


def test_cases_are_listed() -> None:
    lines = digest("--only", "op/add1", "--cases").stdout.splitlines()
    assert any("op/add1 [default, 1 threads] add1  float32[3, 5] float32[1] whole" in line for line in lines)
