"""Measures quantizing, dequantizing and opening GGUF files, beside the ``gguf`` package.

    python benchmarks/bench_gguf.py [--only NAME ...] [--repeats N] [--cpu] [--json FILE]

GB/s counts the float32 side. Rounds of both sides alternate. The shortest round counts, because other programs can only
make a round longer. The program prints our rate, and the time of the package as a multiple of ours ("-" if it lacks the
format).

--cpu: use one thread and measure its processor time. For busy machines.

Formats that need importances are quantized with importances of one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import ggml_backend as gb
from timing import PROCESS, WALL, in_turns, once

ROWS, COLUMNS = 512, 4096
SMALL_ROWS = 64  # for formats whose search is slow
Run = Callable[[], Any]


def package_can(run: Run) -> bool:
    try:
        run()
    except (NotImplementedError, KeyError):
        return False
    return True


def measure(ours: Run, package: Run | None, repeats: int, cpu: bool) -> tuple[float, float | None]:
    """Our shortest seconds, and those of the package as a multiple of ours."""
    ours()
    clock = PROCESS if cpu else WALL
    sides = {"ours": ours} | ({"package": package} if package is not None else {})
    found = in_turns({name: partial(once, run, clock) for name, run in sides.items()}, repeats)
    shortest = {name: min(seconds) for name, seconds in found.items()}
    return shortest["ours"], shortest["package"] / shortest["ours"] if package is not None else None


def formats(only: list[str]) -> list[gb.dtypes.DType]:
    every = [d for d in gb.dtypes.dtypes.values() if d.is_quantized or d.name == "bfloat16"]
    return [d for d in sorted(set(every), key=lambda d: d.id) if not only or d.name in only]


def bench_format(dtype: gb.dtypes.DType, repeats: int, cpu: bool) -> dict[str, tuple[float, float | None]]:
    kind = gguf.GGMLQuantizationType(dtype.id)
    rng = np.random.default_rng(0)
    threads = 1 if cpu else None
    slow = dtype.name.startswith("iq")
    x = rng.standard_normal((SMALL_ROWS if slow else ROWS, COLUMNS), np.float32)
    weights = np.ones(COLUMNS, np.float32) if dtype.name in ("iq2_xxs", "iq2_xs", "iq1_s") else None
    small = x[:16]
    can = package_can(lambda: gguf.quants.quantize(small, kind))
    time_q, ratio_q = measure(
        lambda: gb.quantize(x, dtype, weights, n_threads=threads),
        (lambda: gguf.quants.quantize(x, kind)) if can else None,
        2 if slow else repeats,
        cpu,
    )
    blocks = np.tile(gb.quantize(small, dtype, weights), (ROWS // 16, 1))
    can = package_can(lambda: gguf.quants.dequantize(blocks[:1], kind))
    time_d, ratio_d = measure(
        lambda: gb.dequantize(blocks, dtype, n_threads=threads),
        (lambda: gguf.quants.dequantize(blocks, kind)) if can else None,
        repeats,
        cpu,
    )
    return {
        f"quantize {dtype.name}": (x.nbytes / time_q / 1e9, ratio_q),
        f"dequantize {dtype.name}": (ROWS * COLUMNS * 4 / time_d / 1e9, ratio_d),
    }


def bench_open(repeats: int, cpu: bool) -> tuple[float, float | None]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.gguf"
        with gb.gguf.Writer(path) as writer:
            writer.add("general.architecture", "test")
            for i in range(100_000):
                writer.add(f"key.number.{i}", i)
        ours, ratio = measure(lambda: gb.gguf.open(path), lambda: gguf.GGUFReader(path), max(1, repeats // 3), cpu)
    return ours * 1e3, ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases: dict[str, dict[str, Any]] = {}

    def report(name: str, value: float, unit: str, ratio: float | None) -> None:
        cases[name] = {"best": value, "unit": unit, "ratio": ratio}
        print(
            f"{name:<24} {value:9.3f} {unit:<5} x {ratio:8.1f}"
            if ratio
            else f"{name:<24} {value:9.3f} {unit:<5} x        -",
            flush=True,
        )

    print(f"{'':<24} {'ours':>15} {'x package':>10}")
    for dtype in formats(options.only):
        for name, (rate, ratio) in bench_format(dtype, options.repeats, options.cpu).items():
            report(name, rate, "GB/s", ratio)
    if not options.only or "open" in options.only:
        value, ratio = bench_open(options.repeats, options.cpu)
        report("open 100000 keys", value, "ms", ratio)
    if options.json:
        config = gb.show_config("dict")
        options.json.write_text(json.dumps({"config": config, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
