"""benchmarks/cuda_streams.py: shares of the copy rate, and the fastest file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from source_tree import in_tree

SCRIPT = in_tree("benchmarks/cuda_streams.py")
COPY = "device copy, bytes read and written"


def run(folder: Path, *files: dict[str, float]) -> tuple[int, list[str]]:
    paths = []
    for i, figures in enumerate(files):
        path = folder / f"cuda-stream-{i}.json"
        path.write_text(json.dumps({"results": [{"name": k, "GB_per_s": v} for k, v in figures.items()]}))
        paths.append(str(path))
    done = subprocess.run([sys.executable, str(SCRIPT), *paths], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_rates_are_compared_with_the_copy_rate_of_their_file(tmp_path: Path) -> None:
    code, lines = run(tmp_path, {COPY: 4000, "a": 2000, "b": 1000}, {COPY: 2000, "a": 1600, "b": 800})
    assert code == 0
    assert lines[2:] == [
        "| a | 50% | 80% |",
        "| b | 25% | 40% |",
        "| geometric mean | 35.4% | 56.6% |",
        "fastest: cuda-stream-1",
    ]


def test_products_that_a_file_lacks_are_left_out_and_fail(tmp_path: Path) -> None:
    code, lines = run(tmp_path, {COPY: 100, "a": 50, "b": 40}, {COPY: 100, "a": 40})
    assert code == 1
    assert not any("| b |" in line for line in lines)
    assert lines[-1] == "fastest: cuda-stream-0"


def test_without_files_the_script_says_how_to_use_it(tmp_path: Path) -> None:
    code, lines = run(tmp_path)
    assert code == 2
    assert any("cuda-stream-*.json" in line for line in lines)
