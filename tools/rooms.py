#!/usr/bin/env python3
"""Checks which files of the C library use which, from the object files of a build.

    rooms.py [ROOT] [--build DIR] [--folder FOLDER]        default: this tree, ROOT/build/dev

A file *uses* another if the other's object defines a symbol (function or data) that its object leaves undefined.
Function pointers in tables count. Static functions, and functions inlined from headers, belong to the file that they
are compiled into. Three rules hold:

- **Circles.** In a folder of ``c/src`` at most three files use each other in a circle (a strongly connected component).
  The script checks the files directly in each folder, and those together with all its subfolders ("cpu/**"). Only
  paths between these files count. Between the folders of ``c/src`` the second rule holds.
- **Layers.** A folder uses only the folders in its row of ``FOLDERS`` (``docs/ARCHITECTURE.md`` says why). ``ALLOWED``
  lists exceptions of single files, with reasons. A folder without a row is a violation.
  The same holds for ``#include`` lines of sources and headers. ``HEADERS`` lists further headers that a folder may
  include.
- **System.** ``SYSTEM`` lists functions of the system (memory, environment, the end of the process), each with the only
  files that may call it. Files that are linked into modules are exempt.

``--folder sched`` prints the graph inside one folder with its subfolders: which file uses which by which symbols. For
each circle it prints an order of the files, users first, and the few symbols that are used against it. To break the
circle, move these symbols into files that use nothing of the circle.

The script reads objects of any compiler with ``nm``, or the program in the environment variable ``NM``. That program
reads objects of link-time optimization only with the compiler's plug-in. Objects without a source are ignored. The
script checks the CUDA backend through the object files of its emulation, or of nvcc. Without these the last line says
that it was not checked. The script exits with 0 if all rules hold, with 1 if not, and with 2 if there are no object
files.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAX_CIRCLE = 3

# ---- the rules of this library ---------------------------------------------------------------------------------------

# Folder of c/src -> other folders that it may use. Each subfolder has its own name here.
FOLDERS: dict[str, str] = {
    "base": "",
    "tensor": "base tensor/quant",
    "tensor/quant": "base tensor",
    "backend": "base tensor tensor/quant",
    "alloc": "base tensor backend",
    "plan": "base alloc",
    "plan/search": "base plan",
    # The folders of the scheduler, in the order in which a plan is made and run: each uses only earlier ones. The
    # files of sched itself make, find and keep plans and hold the public functions. They may use all folders.
    "sched/input": "base tensor backend",
    "sched/cost": "base",
    "sched/assign": "base tensor backend sched/input sched/cost",
    "sched/program": "base tensor backend sched/input sched/assign",
    "sched/layout": "base tensor backend alloc plan sched/input sched/assign sched/program",
    "sched/memory": "base tensor backend alloc sched/input sched/program sched/layout",
    "sched/run": "base tensor backend sched/input sched/assign sched/program sched/layout sched/memory",
    "sched/report": "base tensor backend sched/input sched/assign sched/program sched/layout sched/run",
    "sched": "base tensor backend alloc"
    " sched/input sched/assign sched/program sched/layout sched/memory sched/run sched/report",
    "cpu": "base tensor tensor/quant backend cpu/kernels cpu/ops cpu/ops/product cpu/fuse",
    "cpu/fuse": "base tensor backend cpu cpu/kernels cpu/ops cpu/ops/product cpu/ops/conv",
    "cpu/ops": "base tensor tensor/quant cpu cpu/kernels cpu/ops/product cpu/ops/conv",
    "cpu/ops/conv": "base tensor cpu cpu/kernels cpu/ops",
    "cpu/ops/product": "base tensor tensor/quant cpu cpu/kernels cpu/ops",
    "cpu/kernels": "base tensor tensor/quant cpu cpu/kernels/x86 cpu/kernels/arm",
    "cpu/kernels/x86": "base tensor tensor/quant cpu/kernels",
    "cpu/kernels/arm": "base tensor tensor/quant cpu/kernels",
    "sim": "base tensor backend cpu cpu/kernels",
    "gguf": "base tensor backend",
    "opt": "base tensor cpu",
    # Linked into modules: these use only public functions of the library, which "module" forwards.
    "module": "",
    "cuda": "module cuda/ops",
    "cuda/ops": "module cuda",
}

# File -> folder that it may use beyond the row of its own folder, and why.
ALLOWED: dict[tuple[str, str], str] = {
    ("backend/registry.c", "cpu"): "the registry alone names concrete backends",
    ("backend/registry.c", "sim"): "the registry alone names concrete backends",
    ("plan/plan.c", "plan/search"): "plan.c alone names the search, for the function pointer that all others call",
    ("gguf/program.c", "cpu"): "weights that stay in the mapped file are in a buffer of the CPU backend",
    ("backend/module.c", "cpu"): "the table of public functions that a module gets includes those of the CPU backend",
    ("backend/module.c", "cpu/fuse"): "the same: the switch of fusion is a public function",
}

# Headers that files of a folder and its subfolders may include beyond FOLDERS: folder -> paths or folders, and why.
HEADERS: dict[str, tuple[str, str]] = {
    "sched": ("sched/sched.h sched/types.h", "the scheduler itself and shared types; sched/plan.h is for sched alone"),
    "cpu/kernels": ("cpu/kernels/contracts", "types of kernels: headers without objects"),
    "cuda": (
        "cuda cuda/ops cuda/kernels tensor/ops.def tensor/numbers.h tensor/quant",
        "the module includes files that are data alone",
    ),
}

# Circles that may be larger than MAX_CIRCLE: folder -> members, and why.
CIRCLES: dict[str, tuple[str, str]] = {
    "base": (
        "current.c env.c log.c mapped.c mem.c status.c thread.c",
        "a failure is kept per thread and logged, which takes memory, locks and settings, and each of these reports "
        "its own failures; threads also guard what they read of mapped files, and long waits ask whether to give up",
    ),
}

# Function of the system -> the only files that may call it. All others call the functions of these files.
SYSTEM: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign"), ("base/mem.c",)),
    "free": ("base/mem.c", "base/file.c", "base/library.c"),  # the last two free memory of realpath
    **dict.fromkeys(("getenv", "secure_getenv"), ("base/env.c",)),
    **dict.fromkeys(("abort", "exit", "_exit", "quick_exit", "__assert_fail"), ()),
}

# Folders whose objects are linked into modules, separately from the library. Their public functions are in other files.
MODULES = {"module", "cuda"}


# ---- object files ----------------------------------------------------------------------------------------------------


class NothingToSee(Exception):
    """There are no object files, or ``nm`` cannot read them."""


@dataclass
class Graph:
    """Files of ``c/src`` by their path below it. ``uses[a][b]`` are the symbols of b that a leaves undefined."""

    files: set[str] = field(default_factory=set)
    uses: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    system: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # function of SYSTEM -> its callers

    def within(self, files: Iterable[str]) -> Graph:
        """The part of the graph with these files only."""
        part = Graph(set(files))
        for a in part.files & self.uses.keys():
            for b in part.files & self.uses[a].keys():
                part.uses[a][b] |= self.uses[a][b]
        return part

    def edges(self) -> Iterator[tuple[str, str, set[str]]]:
        for a in sorted(self.uses):
            for b in sorted(self.uses[a]):
                yield a, b, self.uses[a][b]


def folder_of(file: str) -> str:
    return file.rpartition("/")[0]


def source_of(obj: Path, build: Path, src: Path) -> str | None:
    """The path below c/src of an object's source. None if it is not a source of the library, or does not exist."""
    parts = obj.relative_to(build).parts
    if "src" not in parts[:-1]:
        return None
    name = "/".join(parts[len(parts) - parts[::-1].index("src") :]).removesuffix(obj.suffix)
    for file in (name, name + ".c", name + ".cu"):
        if (src / file).is_file():
            return file
    return None


def objects(build: Path, src: Path) -> dict[Path, str]:
    """Object file -> source. A source may have several: it is compiled once per target and per kernel level."""
    found = {}
    for suffix in ("*.o", "*.obj"):
        for obj in sorted(build.rglob(suffix)):
            source = source_of(obj, build, src)
            if source:
                found[obj] = source
    if not found:
        raise NothingToSee(f"no object files of {src} under {build}: build the library first")
    return found


def symbols(objs: Iterable[Path]) -> Iterator[tuple[Path, str, bool]]:
    """Yields object, symbol, and whether the object defines the symbol."""
    command = [os.environ.get("NM", "nm"), "-P", "-g", "-A", *map(str, objs)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as e:
        raise NothingToSee(f"cannot run {command[0]}: {e}") from e
    if run.returncode:
        reason = run.stderr.strip() or "failed"
        raise NothingToSee(f"{command[0]}: {reason} (built with link-time optimization?)")
    for line in run.stdout.splitlines():
        path, _, rest = line.rpartition(": ")
        name, kind = rest.split()[:2]
        if name.startswith("__gnu_lto"):
            raise NothingToSee(f"{path} was built with link-time optimization: build without it")
        yield Path(path), name, kind not in "Uvw"


def read(objs: dict[Path, str]) -> Graph:
    """The graph of all files. A module and the library do not see each other's symbols."""
    graph = Graph(set(objs.values()))
    defines: dict[tuple[bool, str], set[str]] = defaultdict(set)
    lacks: dict[tuple[bool, str], set[str]] = defaultdict(set)
    for obj, name, defined in symbols(objs):
        file = objs[obj]
        (defines if defined else lacks)[file.split("/")[0] in MODULES, name].add(file)
    for key, files in lacks.items():
        if key[1] in SYSTEM and not key[0]:
            graph.system[key[1]] |= files
        for a in files:
            for b in defines.get(key, set()) - files:
                graph.uses[a][b].add(key[1])
    return graph


# ---- circles ---------------------------------------------------------------------------------------------------------


def reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    stack = [start]
    while stack:
        for b in graph.uses.get(stack.pop(), {}):
            if b not in seen:
                seen.add(b)
                stack.append(b)
    return seen


def circles(graph: Graph) -> list[frozenset[str]]:
    """Strongly connected components of two files or more, the largest first."""
    reach = {a: reachable(graph, a) for a in graph.files}
    found = {frozenset(b for b in reach[a] if a in reach[b]) for a in graph.files}
    return sorted((c for c in found if len(c) > 1), key=lambda c: (-len(c), sorted(c)))


def against(graph: Graph, order: list[str]) -> set[str]:
    """Symbols used against an order in which users come first."""
    at = {f: i for i, f in enumerate(order)}
    return {s for a, b, names in graph.edges() if at[a] > at[b] for s in names}


def best_order(graph: Graph) -> list[str]:
    """An order of a circle's files, users first, with few symbols used against it. Moves files while that helps."""
    order = sorted(graph.files, key=lambda f: (sum(map(len, graph.uses[f].values())) == 0, -len(graph.uses[f]), f))
    best = len(against(graph, order))
    moved = True
    while moved:
        moved = False
        for f in sorted(graph.files):
            rest = [x for x in order if x != f]
            trials = [[*rest[:i], f, *rest[i:]] for i in range(len(order))]
            n, i = min((len(against(graph, t)), i) for i, t in enumerate(trials))
            if n < best:
                best, order, moved = n, trials[i], True
    return order


def folders_of(files: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder with its own files, and 'folder/**' with those of its subfolders, too, if it has any."""
    files = sorted(files)
    folders = {folder_of(f) for f in files}
    folders |= {"/".join(f.split("/")[:i]) for f in folders for i in range(1, f.count("/") + 1)}
    for folder in sorted(folders - {""}):
        own = [f for f in files if folder_of(f) == folder]
        below = [f for f in files if f.startswith(folder + "/")]
        yield folder, own
        if len(below) > len(own):
            yield folder + "/**", below


def largest_circles(graph: Graph) -> dict[str, int]:
    """Folder -> number of files in its largest circle, 0 without one."""
    return {folder: max(map(len, circles(graph.within(files))), default=0) for folder, files in folders_of(graph.files)}


def allowed_circle(folders: str, circle: frozenset[str]) -> str | None:
    """The reason why a circle may be so large; None without a reason."""
    folder = folders.removesuffix("/**")
    members, reason = CIRCLES.get(folder, ("", ""))
    return reason if circle <= {f"{folder}/{file}" for file in members.split()} else None


# ---- layers ----------------------------------------------------------------------------------------------------------


def layer_violations(graph: Graph) -> list[str]:
    found = [
        f"{folder}: has no row in FOLDERS" for folder in sorted({folder_of(f) for f in graph.files} - FOLDERS.keys())
    ]
    found += unused_exceptions(graph)
    for a, b, names in graph.edges():
        mine, other = folder_of(a), folder_of(b)
        if mine == other or mine not in FOLDERS or other in FOLDERS[mine].split() or (a, other) in ALLOWED:
            continue
        found.append(f"{a} -> {b}: {mine} may not use {other} ({listed(names)})")
    return found


def may_include(file: str, header: str) -> bool:
    mine, other = folder_of(file), folder_of(header)
    allowed = {mine, *FOLDERS.get(mine, "").split(), *(o for a, o in ALLOWED if a == file)}
    allowed |= {name for f in HEADERS if f"{mine}/".startswith(f"{f}/") for name in HEADERS[f][0].split()}
    return other in allowed or header in allowed


def include_violations(src: Path) -> list[str]:
    """Includes of all sources and headers in folders, by path below ``src`` or beside the file."""
    found = []
    for path in sorted(p for s in ("*.c", "*.h", "*.cu", "*.cuh") for p in src.rglob(s) if p.parent != src):
        file = path.relative_to(src).as_posix()
        for header in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8"), re.M):
            header = header if (src / header).is_file() else f"{folder_of(file)}/{header}"
            if (src / header).is_file() and not may_include(file, header):
                found.append(f"{file} includes {header}: {folder_of(file)} may not")
    return found


def system_violations(graph: Graph) -> list[str]:
    return [
        f"{file} calls {name}: only {listed(SYSTEM[name]) or 'no file'} may"
        for name in sorted(graph.system)
        for file in sorted(graph.system[name].difference(SYSTEM[name]))
    ]


def unused_exceptions(graph: Graph) -> list[str]:
    """Exceptions that no file needs."""
    used = {(a, folder_of(b)) for a, b, _ in graph.edges()}
    return [
        f"{a}: its exception for {other} is not used: remove it"
        for a, other in ALLOWED
        if a in graph.files and (a, other) not in used
    ]


# ---- output ----------------------------------------------------------------------------------------------------------


def listed(names: Iterable[str], most: int = 0) -> str:
    names = sorted(names)
    more = f" and {len(names) - most} more" if most and len(names) > most else ""
    return ", ".join(names[:most] if more else names) + more


def print_circles(graph: Graph) -> int:
    """The number of violations."""
    bad = 0
    for room, files in folders_of(graph.files):
        inside = graph.within(files)
        found = circles(inside)
        print(f"{room:<24} {len(files):>3} files, largest circle {max(map(len, found), default=0)}")
        for circle in (c for c in found if len(c) > MAX_CIRCLE):
            reason = allowed_circle(room, circle)
            bad += reason is None
            print(f"    {'allowed' if reason else 'VIOLATION'}: {len(circle)} files in a circle: {listed(circle)}")
            if reason:
                print(f"        {reason}")
            else:
                for a, b, names in inside.within(circle).edges():
                    print(f"        {a} -> {b}: {listed(names, 4)}")
    return bad


def print_folder(graph: Graph, folder: str) -> None:
    inside = graph.within(f for f in graph.files if f.startswith(folder + "/"))
    if not inside.files:
        raise NothingToSee(f"no objects of c/src/{folder}: there are {listed({folder_of(f) for f in graph.files})}")
    for a in sorted(inside.files):
        print(a)
        for b in sorted(inside.uses.get(a, {})):
            print(f"    -> {b}: {listed(inside.uses[a][b])}")
    for circle in circles(inside):
        part = inside.within(circle)
        order = best_order(part)
        print(f"\ncircle of {len(circle)}, users first: {' '.join(order)}")
        at = {f: i for i, f in enumerate(order)}
        for a, b, names in part.edges():
            if at[a] > at[b]:
                print(f"    against the order: {a} -> {b}: {listed(names)}")


def report(graph: Graph, src: Path) -> int:
    print(f"circles of calls (at most {MAX_CIRCLE} files)")
    bad = print_circles(graph)
    found = layer_violations(graph)
    print(f"\nlayers: {len(found) or 'no'} violations")
    for line in found:
        print(f"    VIOLATION: {line}")
    includes = include_violations(src)
    print(f"\nincluded headers: {len(includes) or 'no'} violations")
    for line in includes:
        print(f"    VIOLATION: {line}")
    calls = system_violations(graph)
    print(f"\nfunctions of the system: {len(calls) or 'no'} violations")
    for line in calls:
        print(f"    VIOLATION: {line}")
    sources = {f.relative_to(src).as_posix() for s in ("*.c", "*.cu") for f in src.rglob(s)}
    missing = sorted(sources - graph.files)
    others = listed(f for f in missing if not f.startswith("cuda/"))
    print(f"\n{len(graph.files)} files; not in this build: {others or 'none'}")
    if any(f.startswith("cuda/") for f in missing):
        print("CUDA was not checked: the build has no object files of it (its emulation needs a C++ compiler)")
    return 1 if bad or found or includes or calls else 0


def warn_of_old(objs: dict[Path, str], src: Path) -> None:
    old = sorted({f for o, f in objs.items() if o.stat().st_mtime < (src / f).stat().st_mtime})
    if old:
        print(f"rooms: older than their sources, build again: {listed(old, 5)}", file=sys.stderr)


def load(root: Path, build: Path) -> tuple[Graph, Path]:
    """The graph of a tree, from the objects of one of its builds, and the tree's c/src."""
    src = root / "c" / "src"
    objs = objects(build, src)
    warn_of_old(objs, src)
    return read(objs), src


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Which files of the C library call which: circles and layers.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--build", type=Path, help="folder with the object files (default: ROOT/build/dev)")
    parser.add_argument("--folder", help="print the graph inside this folder of c/src, such as sched or cpu/ops")
    options = parser.parse_args(args)
    try:
        graph, src = load(options.root, options.build or options.root / "build" / "dev")
        if options.folder:
            print_folder(graph, options.folder.strip("/"))
            return 0
        return report(graph, src)
    except NothingToSee as e:
        print(f"rooms: {e}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
