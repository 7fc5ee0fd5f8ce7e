#!/usr/bin/env python3
"""Measures the form of the sources: lengths of functions and lines, comments, sizes of folders, circles of calls.

    house.py [ROOT] [--build DIR] [--check] [--repeats]        default: this tree, objects of ROOT/build/dev

The measures:

- *Sources* are the files that git tracks or would add; without git, all files below ROOT except build/. The parts are
  "C core" (c/src without c/src/cuda: .c, .h, .def), "headers" (c/include), "CUDA" (c/src/cuda: .cu, .cuh, .h, .def),
  "Python" (python/ggml_backend: .py) and "extension" (python/core and python/*.h: .c, .h).
- *Function length* in lines, from the line of the name to the closing brace (or last line), with comments and blank
  lines. lizard finds the functions, except those made by macros. Nine tenths of all functions have at most p90 lines.
- *Line width* is in characters without the line break. "All" are the tracked C, C++, CUDA, .def, Python, CMake,
  shell, HTML, TOML and JSON sources and makefiles of the whole tree with its tests, but without tests/data.
- *Comment share*: lines that are only a comment, divided by these plus the lines with code. Blank lines do not count.
  In Python docstrings count as comments. *Lines with a comment* also counts lines of code that end in a comment.
- *Circles* are files that use each other (rooms.py). Without object files that column says "?".
- *Repeats* are runs of REPEAT lines or more that occur twice within the C core, CUDA or Python, white space aside.
  The program skips blank lines, comments, lines without a letter, and lines of #include or import.

``--check`` also prints the broken limits, and exits with 1 if there are any. ``--repeats`` lists the repeats. The
program needs the package lizard (``pip install lizard``; the extras dev and test have it).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import math
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import rooms

# ---- limits ----------------------------------------------------------------------------------------------------------

MAX_LENGTH = 60
MAX_MEDIAN = 7
MAX_P90 = 20
MAX_WIDTH = 120
COMMENTS = 12.0, 20.0  # percent, of the C core
REPEAT = 6

# Functions that may be longer: file and name -> why.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("c/src/cuda/kernels/gemm.cuh", "gb_gemm_halves"): "a product: copies, steps and the rest are interleaved by hand",
    ("c/src/cuda/kernels/attention.cuh", "gb_attention_floats"): "two products around a running soft_max, in registers",
    ("c/src/cuda/kernels/attention.cuh", "gb_attention_halves"): "two products around a running soft_max, in registers",
}

# Allowed repeats: two files (the same file twice if it has both places) -> number of repeats, and reason.
REPEATS: dict[tuple[str, str], tuple[int, str]] = {
    ("c/src/cpu/kernels/convolution.tpl.h", "c/src/cpu/kernels/gemm.tpl.h"): (
        1,
        "each clears a tile",
    ),
    ("c/src/cuda/ops/attention_ext.cu", "c/src/cuda/ops/attention_few.cu"): (1, "each launches its kernel by the type"),
    ("c/src/cpu/cpu_backend.c", "c/src/sim/sim_backend.c"): (1, "each fills in the table of hooks of its backend"),
    ("c/src/tensor/quant/iq2_xs.c", "c/src/tensor/quant/iq2_xxs.c"): (1, "each fills in the numbers of its format"),
    ("python/ggml_backend/models/embedding.py", "python/ggml_backend/models/text.py"): (
        1,
        "each opens a file",
    ),
    ("python/ggml_backend/models/embedding.py", "python/ggml_backend/models/speech.py"): (1, "each frees what it has"),
    ("python/ggml_backend/ops/_conv.py", "python/ggml_backend/ops/_conv.py"): (1, "named parameters for editors"),
    ("python/ggml_backend/ops/_binary.py", "python/ggml_backend/ops/_binary.py"): (1, "named parameters for editors"),
    ("python/ggml_backend/ops/_rope.py", "python/ggml_backend/ops/_rope.py"): (1, "named parameters for editors"),
}

# Files that must keep MAX_WIDTH: suffixes, and names of files without one.
WIDE = {
    ".c", ".h", ".cpp", ".hpp", ".cu", ".cuh", ".def", ".py", ".pyi", ".cmake", ".sh", ".html", ".toml", ".json",
    ".supp",
}  # fmt: skip
WIDE_NAMES = {"CMakeLists.txt", "Makefile", "run", ".clang-format", ".editorconfig"}

# ---- sources ---------------------------------------------------------------------------------------------------------


def tracked(root: Path) -> list[str]:
    """Paths of the sources, below root."""
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        found = set(subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0"))
    else:
        found = {p.relative_to(root).as_posix() for p in root.rglob("*")}
        found = {p for p in found if not p.startswith("build/")}
    return sorted(p for p in found if p and (root / p).is_file())


def is_wide_checked(path: str) -> bool:
    if path.startswith("tests/data/"):
        return False
    name = Path(path)
    return name.suffix in WIDE or name.name in WIDE_NAMES or path.endswith(".cmake.in")


def below(*starts: str) -> Callable[[str], bool]:
    return lambda path: path.startswith(starts)


PARTS: dict[str, tuple[Callable[[str], bool], set[str]]] = {
    "C core": (lambda p: p.startswith("c/src/") and not p.startswith("c/src/cuda/"), {".c", ".h", ".def"}),
    "headers": (below("c/include/"), {".h", ".def"}),
    "CUDA": (below("c/src/cuda/"), {".cu", ".cuh", ".h", ".def"}),
    "Python": (below("python/ggml_backend/"), {".py"}),
    "extension": (lambda p: bool(re.match(r"python/(core/)?[^/]*$", p)), {".c", ".h"}),
}
LIMITED = ("C core", "CUDA", "Python")  # parts whose functions keep MAX_MEDIAN and MAX_P90


def parts_of(paths: Iterable[str]) -> dict[str, list[str]]:
    paths = list(paths)
    return {
        name: [p for p in paths if belongs(p) and Path(p).suffix in suffixes]
        for name, (belongs, suffixes) in PARTS.items()
    }


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


# ---- functions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    length: int
    file: str
    name: str
    line: int


def functions(root: Path, files: Iterable[str]) -> list[Function]:
    try:
        lizard = importlib.import_module("lizard")
    except ModuleNotFoundError:
        raise SystemExit("house.py: needs the package lizard: pip install lizard") from None
    found = []
    for file in files:
        if Path(file).suffix == ".def":
            continue
        for f in lizard.analyze_file(str(root / file)).function_list:
            found.append(Function(f.end_line - f.start_line + 1, file, f.name, f.start_line))
    return found


def quantile(values: list[int], part: float) -> int:
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)] if values else 0


# ---- comments --------------------------------------------------------------------------------------------------------

C_TOKEN = re.compile(r"""//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\S""", re.DOTALL)


def count_c(text: str) -> tuple[int, int, int]:
    """The number of lines with code, of lines with only comments, and of lines with a comment."""
    code: set[int] = set()
    comment: set[int] = set()
    for token in C_TOKEN.finditer(text):
        first = text.count("\n", 0, token.start())
        rows = range(first, first + token.group().count("\n") + 1)
        (comment if token.group().startswith(("//", "/*")) else code).update(rows)
    return len(code), len(comment - code), len(comment)


def docstring_rows(tree: ast.AST) -> set[int]:
    rows = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                rows |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return rows


def count_python(text: str) -> tuple[int, int, int]:
    """The same numbers for Python, where docstrings are comments."""
    docs = docstring_rows(ast.parse(text))
    code, comment = set(), set(docs)
    blank = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        rows = set(range(token.start[0], token.end[0] + 1))
        if token.type == tokenize.COMMENT:
            comment |= rows
        elif token.type not in blank:
            code |= rows - docs
    filled = {i for i, line in enumerate(text.splitlines(), 1) if line.strip()}
    return len(code & filled), len((comment - code) & filled), len(comment & filled)


def count(path: Path) -> tuple[int, int, int]:
    text = path.read_text(encoding="utf-8", errors="replace")
    return count_python(text) if path.suffix == ".py" else count_c(text)


# ---- repeats ---------------------------------------------------------------------------------------------------------

PASSED_OVER = re.compile(r"\W*$|//|/?\*|#\s*(include|pragma|endif|else)|#[^a-z]|import |from .* import ")


def significant(path: Path) -> list[tuple[int, str]]:
    """Line numbers and texts without white space of the lines that count for repeats."""
    found = []
    for number, line in enumerate(lines_of(path), 1):
        text = line.strip().rstrip("\\").strip()
        if not PASSED_OVER.match(text):
            found.append((number, re.sub(r"\s+", "", text)))
    return found


Place = tuple[str, int]  # file, index into its significant lines


def repeats(root: Path, files: Iterable[str]) -> list[tuple[int, list[str]]]:
    """Maximal runs that occur more than once: number of lines, and positions as FILE:LINE."""
    rows = {f: significant(root / f) for f in files}
    seen: dict[tuple[str, ...], list[Place]] = defaultdict(list)
    for f, lines in rows.items():
        for i in range(len(lines) - REPEAT + 1):
            seen[tuple(t for _, t in lines[i : i + REPEAT])].append((f, i))
    found = []
    covered: set[tuple[Place, Place]] = set()
    for places in seen.values():
        for n, a in enumerate(places):
            for b in places[n + 1 :]:
                if (a, b) in covered or (a[0] == b[0] and b[1] - a[1] < REPEAT):
                    continue
                length = 0
                while same_at(rows, a, b, length):
                    covered.add(((a[0], a[1] + length), (b[0], b[1] + length)))
                    length += 1
                found.append((length, [f"{f}:{rows[f][i][0]}" for f, i in (a, b)]))
    return sorted(found, key=lambda r: (-r[0], r[1]))


def unlisted(root: Path, files: dict[str, list[str]]) -> list[str]:
    """Repeats without a reason in REPEATS, and reasons without a repeat."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in LIMITED:
        for length, (a, b) in repeats(root, files[name]):
            first, second = sorted(place.rsplit(":", 1)[0] for place in (a, b))
            found[first, second].append(f"{a}: {length} lines that are also at {b}")
    wrong = []
    for pair, runs in found.items():
        if len(runs) > REPEATS.get(pair, (0, ""))[0]:
            wrong += runs
    for (a, b), (n, _) in REPEATS.items():
        if len(found[a, b]) < n and (root / a).is_file() and (root / b).is_file():
            wrong.append(f"{a}: {len(found[a, b])} runs of lines are also in {b}, and REPEATS allows {n}")
    return wrong


def same_at(rows: dict[str, list[tuple[int, str]]], a: Place, b: Place, offset: int) -> bool:
    i, j = a[1] + offset, b[1] + offset
    return i < len(rows[a[0]]) and j < len(rows[b[0]]) and rows[a[0]][i][1] == rows[b[0]][j][1]


# ---- table -----------------------------------------------------------------------------------------------------------


@dataclass
class Part:
    """The measurements of one part."""

    name: str
    files: int
    lines: int
    functions: list[Function]
    wide100: int
    wide120: int
    widest: int
    comments: float  # percent
    commented: float

    @property
    def lengths(self) -> list[int]:
        return [f.length for f in self.functions]

    @property
    def median(self) -> int:
        return quantile(self.lengths, 0.5)

    @property
    def p90(self) -> int:
        return quantile(self.lengths, 0.9)


def measure(root: Path, name: str, files: list[str]) -> Part:
    widths = [len(line) for f in files for line in lines_of(root / f)]
    counts = [count(root / f) for f in files]
    code, comment, commented = (sum(c[i] for c in counts) for i in range(3))
    filled = max(1, code + comment)
    return Part(
        name,
        len(files),
        len(widths),
        functions(root, files) if name != "headers" else [],
        sum(w > 100 for w in widths),
        sum(w > MAX_WIDTH for w in widths),
        max(widths, default=0),
        100 * comment / filled,
        100 * commented / filled,
    )


def rows_of(p: Part) -> list[str]:
    over = sum(n > MAX_LENGTH for n in p.lengths)
    share = f"{100 * over / len(p.lengths):.1f} % ({over})" if p.functions else "-"
    length = f"{p.median} / {p.p90} / {max(p.lengths)}" if p.functions else "-"
    width100 = f"{100 * p.wide100 / max(1, p.lines):.1f} % ({p.wide100})"
    width120 = f"{p.wide120} (widest {p.widest})"
    comments = [f"{p.comments:.1f} %", f"{p.commented:.1f} %"]
    return [str(p.files), str(p.lines), str(len(p.functions)), length, share, width100, width120, *comments]


ROWS = (
    "files",
    "lines",
    "functions",
    "function length median / p90 / max",
    f"functions over {MAX_LENGTH} lines",
    "lines over 100 columns",
    f"lines over {MAX_WIDTH} columns",
    "comment share",
    "lines with a comment",
)


def print_parts(parts: list[Part]) -> None:
    print("|  | " + " | ".join(p.name for p in parts) + " |")
    print("| --- |" + " --- |" * len(parts))
    columns = [rows_of(p) for p in parts]
    for i, row in enumerate(ROWS):
        print(f"| {row} | " + " | ".join(c[i] for c in columns) + " |")


def print_long(parts: list[Part]) -> None:
    print(f"\nfunctions over {MAX_LENGTH} lines")
    for f in sorted((f for p in parts for f in p.functions), key=lambda f: -f.length):
        if f.length > MAX_LENGTH:
            reason = EXCEPTIONS.get((f.file, f.name))
            print(f"    {f.length:>4} {f.file}:{f.line} {f.name}{': allowed, ' + reason if reason else ''}")


def print_folders(root: Path, paths: list[str], build: Path) -> None:
    try:
        circles = rooms.largest_circles(rooms.load(root, build)[0])
    except rooms.NothingToSee as e:
        print(f"\n{e}")
        circles = {}
    files, lines = Counter[str](), Counter[str]()
    for p in paths:
        if p.startswith(("c/src/", "python/ggml_backend/", "python/core/")):
            files[rooms.folder_of(p)] += 1
            lines[rooms.folder_of(p)] += len(lines_of(root / p))
    print("\n| folder | files | lines | largest circle | with its subfolders |\n| --- | --- | --- | --- | --- |")
    for folder in sorted(files):
        room = folder.removeprefix("c/src/") if folder.startswith("c/src/") else ""
        alone = circles.get(room, "?" if room else "-")
        print(f"| {folder} | {files[folder]} | {lines[folder]} | {alone} | {circles.get(room + '/**', '-')} |")


# ---- check -----------------------------------------------------------------------------------------------------------


def broken(root: Path, paths: list[str], parts: list[Part]) -> list[str]:
    """Messages about the broken limits."""
    found = unlisted(root, parts_of(paths))
    for p in (p for p in parts if p.name in LIMITED):
        if p.median > MAX_MEDIAN:
            found.append(f"{p.name}: the median of function lengths is {p.median}, more than {MAX_MEDIAN}")
        if p.p90 > MAX_P90:
            found.append(f"{p.name}: the p90 of function lengths is {p.p90}, more than {MAX_P90}")
    for f in (f for p in parts for f in p.functions if f.length > MAX_LENGTH):
        if (f.file, f.name) not in EXCEPTIONS:
            found.append(f"{f.file}:{f.line}: {f.name} has {f.length} lines, more than {MAX_LENGTH}")
    long = {(f.file, f.name) for p in parts for f in p.functions if f.length > MAX_LENGTH}
    for file, name in EXCEPTIONS.keys() - long:
        if (root / file).is_file():
            found.append(f"{file}: {name} needs no exception: it is not longer than {MAX_LENGTH} lines, or not there")
    core = parts[0]
    if not COMMENTS[0] <= core.comments <= COMMENTS[1]:
        found.append(
            f"{core.name}: {core.comments:.1f} % of the lines are comments, not {COMMENTS[0]} to {COMMENTS[1]} %"
        )
    for path in filter(is_wide_checked, paths):
        for number, line in enumerate(lines_of(root / path), 1):
            if len(line) > MAX_WIDTH:
                found.append(f"{path}:{number}: {len(line)} columns, more than {MAX_WIDTH}")
    return found


def print_broken(found: list[str], most: int = 40) -> None:
    print(f"\nlimits: {len(found) or 'none'} broken")
    for line in found[:most]:
        print(f"    {line}")
    if len(found) > most:
        print(f"    and {len(found) - most} more")


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measures the form of the sources.")
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--build", type=Path, help="folder with object files for the circles (default: ROOT/build/dev)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is broken")
    parser.add_argument("--repeats", action="store_true", help=f"list runs of {REPEAT} lines that occur twice")
    options = parser.parse_args(args)
    root: Path = options.root
    paths = tracked(root)
    files = parts_of(paths)
    parts = [measure(root, name, files[name]) for name in PARTS]
    print_parts(parts)
    print_long(parts)
    print_folders(root, paths, options.build or root / "build" / "dev")
    wide = sum(len(line) > MAX_WIDTH for p in filter(is_wide_checked, paths) for line in lines_of(root / p))
    print(f"\nlines over {MAX_WIDTH} columns in all sources, tests included: {wide}")
    for name in LIMITED:
        runs = repeats(root, files[name])
        print(f"repeated runs of {REPEAT} lines or more, {name}: {len(runs)}")
        for length, places in runs if options.repeats else []:
            reason = REPEATS.get(tuple(sorted(p.rsplit(":", 1)[0] for p in places)), (0, ""))[1]
            print(f"    {length} lines: {places[0]} and {places[1]}{': allowed, ' + reason if reason else ''}")
    if not options.check:
        return 0
    found = broken(root, paths, parts)
    print_broken(found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
