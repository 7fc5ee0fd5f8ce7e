"""Prints the ratios new / old of two JSON files from ``ggml-backend bench`` or ``bench_gguf.py``.

python benchmarks/compare.py OLD.json NEW.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def figures(path: str) -> dict[str, tuple[float, str]]:
    data: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    key = "median" if all("median" in row for row in data["cases"].values()) else "best"
    return {name: (row[key], row["unit"]) for name, row in data["cases"].items()}


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    old, new = figures(sys.argv[1]), figures(sys.argv[2])
    for name in old.keys() | new.keys():
        if name not in old or name not in new:
            print(f"{name:<36} only in the {'new' if name in new else 'old'} file")
    for name, (value, unit) in old.items():
        if name in new:
            print(f"{name:<36} {value:10.2f} -> {new[name][0]:10.2f} {unit:<12} ratio {new[name][0] / value:6.2f}")


if __name__ == "__main__":
    main()
