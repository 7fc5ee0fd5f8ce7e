"""Two builds of the package, case by case in turns: is one slower?

    python benchmarks/compare_builds.py BEFORE AFTER [--turns N] [--seconds S] [--processes N] [options of `bench`]

BEFORE and AFTER are folders that the package was installed into (``pip install --no-deps --target FOLDER .``). Each is
loaded by a process of its own, and both hold the same case at the same time. They compute it alternately, for
``--seconds`` each, so that what else happens on the machine meets both. The ratio of a case is the median over the
turns of AFTER's rate over BEFORE's in the same turn: above 1 AFTER is faster. Where memory lies differs from process to
process, and moves single cases by some percent: ``--processes`` repeats all with new ones, and the median is over all
turns. Cases that only one build has are left out and counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from typing import IO

WORKER = """
import sys, time
from contextlib import ExitStack
try:
    from ggml_backend.cli import bench
except ImportError:  # of 2026
    from ggml_backend import cli_bench as bench
from ggml_backend import Backend
import argparse

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
limits = bench.Limits(backend, options.seconds)
with ExitStack() as stack:
    for case in bench._cases(options, backend, limits, stack):
        if options.only and not any(text in case.name for text in options.only):
            continue
        case.run()
        print("case", case.name, flush=True)
        for line in sys.stdin:
            if line.strip() == "next":
                break
            count, start = 0, time.perf_counter()
            while time.perf_counter() - start < options.seconds:
                case.run()
                count += 1
            print(count / (time.perf_counter() - start), flush=True)
print("end", flush=True)
"""


class Build:
    def __init__(self, folder: str, options: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": os.path.abspath(folder)}
        command = [sys.executable, "-c", WORKER, *options]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=os.path.abspath(folder),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to: IO[str] = self.process.stdin
        self.of: IO[str] = self.process.stdout

    def read(self) -> str:
        line = self.of.readline().strip()
        if not line:
            raise SystemExit("a worker has ended")
        return line

    def say(self, word: str) -> None:
        print(word, file=self.to, flush=True)

    def case(self) -> str | None:
        """The name of the next case; None: there are no more."""
        line = self.read()
        return None if line == "end" else line.removeprefix("case ")

    def rate(self) -> float:
        self.say("go")
        return float(self.read())


def compare(builds: list[Build], turns: int) -> tuple[dict[str, list[float]], int]:
    """Ratios of each case, and how many cases only one build has."""
    found: dict[str, list[float]] = {}
    single = 0
    names = [b.case() for b in builds]
    seen: list[set[str]] = [set(), set()]
    while names[0] is not None and names[1] is not None:
        if names[0] != names[1]:  # leave out the one that the other has passed or will never have
            i = 0 if names[0] in seen[1] or names[1] not in seen[0] else 1
            seen[i].add(names[i] or "")
            single += 1
            builds[i].say("next")
            names[i] = builds[i].case()
            continue
        name = names[0]
        ratios = []
        for turn in range(turns):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            rates = {i: builds[i].rate() for i in order}
            ratios.append(rates[1] / rates[0])
        found[name] = ratios
        print(f"{statistics.median(ratios):.3f}  {name}", flush=True)
        for i, b in enumerate(builds):
            seen[i].add(name)
            b.say("next")
            names[i] = b.case()
    return found, single


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--processes", type=int, default=3, help="pairs of them, one after the other")
    parser.add_argument("--seconds", type=float, default=0.02, help="of a turn, at least one call")
    parser.add_argument("--slow", type=float, default=0.98, help="cases below this ratio are listed again at the end")
    options, rest = parser.parse_known_args()
    rest += ["--seconds", str(options.seconds)]
    found: dict[str, list[float]] = {}
    single = 0
    for _ in range(options.processes):
        ratios, single = compare([Build(options.before, rest), Build(options.after, rest)], options.turns)
        for name, of_turns in ratios.items():
            found.setdefault(name, []).extend(of_turns)
    if not found:
        print("no case that both have")
        return 1
    medians = {name: statistics.median(ratios) for name, ratios in found.items()}
    overall = statistics.median(medians.values())
    print(f"\n{len(found)} cases, {single} of one build alone; median of all ratios {overall:.3f}")
    for name in sorted(medians, key=lambda n: medians[n]):
        if medians[name] < options.slow:
            quartiles = statistics.quantiles(found[name], n=4) if len(found[name]) > 1 else found[name] * 3
            print(f"{medians[name]:.3f} (quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f})  {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
