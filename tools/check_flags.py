"""Compiles the library with CFLAGS that change arithmetic and compares it with the normal build.

    python tools/check_flags.py            # a few sources, all flags at once
    python tools/check_flags.py --all      # each flag alone, every source, all kernel levels; takes an hour on one core

The program checks three things for each set of flags. Every compile command has the options of c/cmake/exact.cmake
behind the flags of the environment. The assembly of a source equals that of the normal build, so its results are equal,
too. No shared library is linked with the code of fast math that makes a process flush denormal numbers to zero.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMON = [
    "-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-ffinite-math-only", "-fassociative-math",
    "-freciprocal-math", "-fno-signed-zeros", "-ffp-contract=fast", "-frounding-math", "-fshort-enums",
]  # fmt: skip
TOGETHER = ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]  # the first needs the others
OF_GCC = ["-fsingle-precision-constant", "-mrecip", "-mfpmath=387", "-fno-trapping-math"]
FEW = ["c/src/tensor/quant/fit.c", "c/src/tensor/quant/mxfp4.c", "c/src/plan/search/plan_passes.c",
       "c/src/cpu/kernels/self_check.c"]  # fmt: skip
LAST = "-fno-fast-math"
FLUSHES = "crtfastmath"


def flags_of(compiler: str) -> list[str]:
    """The flags that this compiler and processor have."""
    empty = ["-x", "c", "-c", os.devnull, "-o", os.devnull, "-Werror"]
    return [
        flag
        for flag in COMMON + OF_GCC
        if subprocess.run([compiler, flag, *empty], capture_output=True, check=False).returncode == 0
    ]


class Build:
    """A configured build, which compiles single sources to assembly."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        self.folder, self.flags = folder, flags
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_BACKEND_TESTS=OFF", "-DBUILD_SHARED_LIBS=ON"]
        environment = {**os.environ, "CFLAGS": " ".join(flags), "CMAKE_GENERATOR": "Unix Makefiles"}
        done = subprocess.run(
            ["cmake", "-S", str(ROOT), "-B", str(folder), *options],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        entries = json.loads((folder / "compile_commands.json").read_text())
        self.commands = {
            str(Path(entry["file"]).relative_to(ROOT)): (shlex.split(entry["command"]), entry["directory"])
            for entry in entries
        }

    def misplaced(self) -> list[str]:
        """Sources whose command lacks options that undo the flags."""
        return [
            source
            for source, (command, _) in self.commands.items()
            if LAST not in command or any(f in command and command.index(f) > command.index(LAST) for f in self.flags)
        ]

    def assembly(self, source: str) -> str:
        command, directory = self.commands[source]
        at = command.index("-o")
        done = subprocess.run(
            [*command[:at], *command[at + 2 :], "-S", "-o", "-"],
            cwd=directory, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    def flushing(self) -> list[str]:
        """Shared libraries whose link would change how the process computes."""
        found = []
        for script in sorted(self.folder.rglob("link.txt")):
            for command in script.read_text().splitlines():
                if "-shared" in command:
                    tried = subprocess.run(
                        [*shlex.split(command), "-###"],
                        cwd=script.parent.parent.parent, capture_output=True, text=True, check=False,
                    )  # fmt: skip
                    found += [str(script)] if FLUSHES in tried.stdout + tried.stderr else []
        return found


def check(normal: Build, other: Build, sources: list[str], jobs: int) -> list[str]:
    """The differences as text."""
    faults = [f"{source}: the options that undo the flags are missing or misplaced" for source in other.misplaced()]
    faults += [f"{script}: links {FLUSHES}" for script in other.flushing()]

    def same(source: str) -> bool:
        return normal.assembly(source) == other.assembly(source)

    with ThreadPoolExecutor(jobs) as pool:
        for source, equal in zip(sources, pool.map(same, sources), strict=True):
            if not equal:
                faults.append(f"{source}: other code")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="compile every source with each flag alone")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    compiler = os.environ.get("CC", "cc")
    flags = flags_of(compiler)
    together = [f for f in flags if not re.fullmatch("-mfpmath=387", f)]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        normal = Build(Path(folder, "normal"), [])
        for i, some in enumerate([together, *([TOGETHER, *([f] for f in flags)] if options.all else [])]):
            other = Build(Path(folder, str(i)), some)
            sources = sorted(other.commands) if options.all else FEW
            faults = check(normal, other, sources, options.jobs)
            checked = f"{len(other.commands)} commands, {len(sources)} sources compiled"
            print(f"{' '.join(some)}: {checked}, {len(faults)} faults")
            print("".join(f"    {fault}\n" for fault in faults), end="")
            failed += len(faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
