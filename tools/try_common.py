"""What the exercises that add something made-up to a copy of the tree share (try_format.py, try_level.py,
try_operator.py).

CONTRIBUTING.md says which files an addition touches. An exercise proves it: it holds the edits as data, each a file, an
anchor that stands in it exactly once, and what goes before the anchor. No other file of the copy changes; the package
is built from the copy, and a program computes with it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("build", ".git", ".venv", "dist", "__pycache__", ".cache")


@dataclass(frozen=True)
class Edit:
    """``text`` goes before ``anchor``, which stands in the file exactly once. No anchor: a new file."""

    file: str
    anchor: str | None
    text: str


@dataclass(frozen=True)
class Exercise:
    """An addition: what it needs, how many product files that may be, and a program that computes with it. The package
    is built with the scalar level alone, as for a processor that has no other, or with all levels."""

    files: int
    edits: tuple[Edit, ...]
    program: str
    all_levels: bool = False

    def touched(self) -> list[str]:
        """The files of the edits, each once, in their order."""
        return list(dict.fromkeys(edit.file for edit in self.edits))


def apply(edits: Sequence[Edit], root: Path) -> None:
    """Makes the edits in the tree at ``root``."""
    for edit in edits:
        path = root / edit.file
        if edit.anchor is None:
            if path.exists():
                raise SystemExit(f"{edit.file}: is there already")
            path.write_text(edit.text, encoding="utf-8")
            continue
        text = path.read_text(encoding="utf-8")
        if text.count(edit.anchor) != 1:
            raise SystemExit(f"{edit.file}: {edit.anchor!r} stands in it {text.count(edit.anchor)} times, not once")
        path.write_text(text.replace(edit.anchor, edit.text + edit.anchor), encoding="utf-8")


def build(root: Path, site: Path, *, all_levels: bool) -> None:
    """Installs the package of the tree at ``root`` into ``site``."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps"]
    if importlib.util.find_spec("scikit_build_core"):
        command.append("--no-build-isolation")
    command += ["--target", str(site), str(root), "-C", f"build-dir={root / 'build'}"]
    command += ["-C", "cmake.define.CMAKE_C_FLAGS_RELEASE=-O1"]
    if not all_levels:  # what CMake is told of the processor chooses the levels (c/cmake/levels.cmake)
        system = platform.system()
        command += ["-C", f"cmake.define.CMAKE_SYSTEM_NAME={system}", "-C", "cmake.define.CMAKE_SYSTEM_PROCESSOR=plain"]
    subprocess.run(command, check=True)


def attempt(exercise: Exercise, root: Path, *, all_levels: bool) -> None:
    """Copies the tree to ``root``, edits, builds and computes. Raises where one of them fails."""
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    apply(exercise.edits, root)
    build(root, root / "site", all_levels=all_levels or exercise.all_levels)
    paths = {**os.environ, "PYTHONPATH": str(root / "site")}
    program = root / "program.py"
    program.write_text(exercise.program, encoding="utf-8")
    subprocess.run([sys.executable, str(program)], cwd=root / "site", env=paths, check=True)


def run(exercises: Mapping[str, Exercise], description: str | None, arguments: Sequence[str] | None = None) -> int:
    """The command of a file with exercises. 1 where an anchor is missing, an exercise touches more files than it may,
    the build fails, or a result is wrong."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(exercises), help="one of the exercises")
    parser.add_argument("--keep", type=Path, help="a folder: the copies stay there")
    parser.add_argument("--all-levels", action="store_true", help="build every kernel level of this processor")
    options = parser.parse_args(arguments)
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        for name in [options.only] if options.only else list(exercises):
            exercise, began = exercises[name], time.monotonic()
            files = exercise.touched()
            try:
                attempt(exercise, (options.keep or Path(temporary)) / name, all_levels=options.all_levels)
                result = "computes"
            except subprocess.CalledProcessError as error:
                result, failed = f"FAILED: {' '.join(map(str, error.cmd))[:200]}", True
            failed |= len(files) > exercise.files
            seconds = time.monotonic() - began
            print(f"{name}: {result}, {len(files)} product files of at most {exercise.files}, {seconds:.0f} s")
            print("".join(f"    {file}\n" for file in files), end="", flush=True)
    return int(failed)
