"""Compares the files that ``sh tools/check_cuda.sh 90 16 streams`` writes, one for each value of GB_STREAM.

    python benchmarks/cuda_streams.py build/bench/cuda-stream-*.json

Prints each product's share of the copy rate of the same run, and the value with the largest geometric mean.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path


def shares(path: str) -> dict[str, float]:
    """Of each product, by name: its rate as a share of the file's copy rate."""
    results = {r["name"]: r["GB_per_s"] for r in json.loads(Path(path).read_text())["results"]}
    copy = results.pop("device copy, bytes read and written")
    return {name: rate / copy for name, rate in results.items()}


def main(paths: list[str]) -> int:
    if not paths:
        print(__doc__)
        return 2
    columns = [shares(path) for path in paths]
    names = [name for name in columns[0] if all(name in column for column in columns)]
    print("| product | " + " | ".join(Path(path).stem for path in paths) + " |")
    print("| --- " * (len(paths) + 1) + "|")
    for name in names:
        print(f"| {name} | " + " | ".join(f"{column[name]:.0%}" for column in columns) + " |")
    means = [math.exp(sum(math.log(column[name]) for name in names) / len(names)) for column in columns]
    print("| geometric mean | " + " | ".join(f"{mean:.1%}" for mean in means) + " |")
    print(f"fastest: {Path(paths[means.index(max(means))]).stem}")
    return 0 if len(names) == max(map(len, columns)) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
