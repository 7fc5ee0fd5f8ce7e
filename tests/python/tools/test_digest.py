"""tools/digest.py: equal runs are equal, and a difference is reported with its label."""

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


@pytest.mark.parametrize("group", ["quantize/q4*", "op/add1"])
def test_equal_and_different(tmp_path: Path, group: str) -> None:
    kept = tmp_path / "digest.json"
    first = digest("--only", group, "--json", str(kept))
    assert first.returncode == 0, first.stderr
    found = json.loads(kept.read_text())
    n = len(found["groups"])
    assert n == (3 if "q4" in group else 1)
    again = digest("--only", group, "--compare", str(kept))
    assert again.returncode == 0, again.stdout
    assert f"{n} of {n} groups are equal; only one package has 0 results" in again.stdout
    name, parts = sorted(found["groups"].items())[0]
    part, labels = sorted(parts.items())[0]
    label, other, *_ = sorted(labels)
    labels[label] = "0" * 16
    del labels[other]
    kept.write_text(json.dumps(found))
    changed = digest("--only", group, "--compare", str(kept))
    assert changed.returncode == 1
    assert f"DIFFERENT  {name}\n    {part}: {label}\n" in changed.stdout
    assert f"{n - 1} of {n} groups are equal; only one package has 1 results" in changed.stdout
