"""Compares two builds of the package case by case, in turns.

    python benchmarks/compare_builds.py BEFORE AFTER [--turns N] [--seconds S] [--processes N] [options of `bench`]

BEFORE and AFTER are folders with an installed package (``pip install --no-deps --target FOLDER .``). Each is loaded by
a process of its own. Both processes compute the same case alternately, for ``--seconds`` each, so other work on the
machine affects both. The ratio is the median of rate(AFTER) / rate(BEFORE) over turns. Above 1, AFTER is faster.

Addresses differ from process to process, which changes single cases by some percent. So ``--processes`` repeats all
cases with new processes, and the median is over all turns. The program skips and counts cases of one build alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import IO

from timing import in_turns, median

# Runs the cases in order. Each line on stdin asks for one timing; `next` goes to the next case.
# The process measures with timing.py of this tree, whichever build it has loaded.
WORKER = """
import argparse, sys
from contextlib import ExitStack

sys.path.append(sys.argv.pop(1))
from timing import per_call
from ggml_backend import Backend
try:
    from ggml_backend.cli import bench
except ImportError:  # in builds before November 2026 it is outside of `cli`
    from ggml_backend import cli_bench as bench

parser = argparse.ArgumentParser()
parser.add_argument("suites", nargs="*")
parser.add_argument("--types", nargs="*")
parser.add_argument("--only", nargs="*", default=[])
parser.add_argument("--threads", type=int)
parser.add_argument("--level")
parser.add_argument("--quick", action="store_true")
parser.add_argument("--seconds", type=float)
options = parser.parse_args()
backend = Backend("CPU", n_threads=options.threads, level=options.level)
with ExitStack() as stack:
    for case in bench._cases(options, backend, bench.Limits(backend, options.seconds), stack):
        if options.only and not any(text in case.name for text in options.only):
            continue
        print("case", case.name, flush=True)
        for line in sys.stdin:
            if line.strip() == "next":
                break
            print(per_call(case.run, options.seconds, pause=0.001), flush=True)
        else:
            sys.exit()  # the parent has ended
print("end", flush=True)
"""


class Build:
    """A process with one of the builds."""

    def __init__(self, folder: str, options: list[str]) -> None:
        path = str(Path(folder).resolve())
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(Path(__file__).resolve().parent), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            cwd=path,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to: IO[str] = self.process.stdin
        self.of: IO[str] = self.process.stdout
        self.seen: set[str] = set()
        self.case = self._case()  # the name of the current case; None: there are no more

    def _read(self) -> str:
        line = self.of.readline().strip()
        if not line:
            raise SystemExit("a worker has ended")
        return line

    def _case(self) -> str | None:
        line = self._read()
        return None if line == "end" else line.removeprefix("case ")

    def next(self) -> None:
        self.seen.add(self.case or "")
        print("next", file=self.to, flush=True)
        self.case = self._case()

    def seconds(self) -> float:
        """Seconds of one call of the case."""
        print("measure", file=self.to, flush=True)
        return float(self._read())


def compare(before: Build, after: Build, turns: int) -> tuple[dict[str, list[float]], int]:
    """The ratios of each case, and the number of cases that only one build has."""
    found: dict[str, list[float]] = {}
    single = 0
    while before.case is not None and after.case is not None:
        if before.case != after.case:  # skip a case that only one build has
            (before if before.case in after.seen or after.case not in before.seen else after).next()
            single += 1
            continue
        taken = in_turns({"before": before.seconds, "after": after.seconds}, turns)
        ratios = [b / a for b, a in zip(taken["before"], taken["after"], strict=True)]
        found[before.case] = ratios
        print(f"{median(ratios):.3f}  {before.case}", flush=True)
        before.next()
        after.next()
    return found, single


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--processes", type=int, default=3, help="number of pairs of processes, one pair after another")
    parser.add_argument("--seconds", type=float, default=0.02, help="seconds of a turn, at least one call")
    parser.add_argument("--slow", type=float, default=0.98, help="cases below this ratio are listed again at the end")
    options, rest = parser.parse_known_args()
    rest += ["--seconds", str(options.seconds)]
    found: dict[str, list[float]] = {}
    single = 0
    for _ in range(options.processes):
        ratios, single = compare(Build(options.before, rest), Build(options.after, rest), options.turns)
        for name, of_turns in ratios.items():
            found.setdefault(name, []).extend(of_turns)
    if not found:
        print("no case that both have")
        return 1
    medians = {name: median(ratios) for name, ratios in found.items()}
    overall = median(medians.values())
    print(f"\n{len(found)} cases, {single} of one build alone; median of all ratios {overall:.3f}")
    for name in sorted(medians, key=lambda n: medians[n]):
        if medians[name] < options.slow:
            quartiles = statistics.quantiles(found[name], n=4) if len(found[name]) > 1 else found[name] * 3
            print(f"{medians[name]:.3f} (quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f})  {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
