"""Counts the instructions of the main loops of CUDA kernels, from their disassembly, and what bound follows.

    python tools/count_sass.py                    # compiles for compute capability 9.0 and prints three tables
    python tools/count_sass.py --check            # fails where a kernel is over its limit
    python tools/count_sass.py --show matvec_quick.*Q4_0     # the loop itself

Needs nvcc, and nvdisasm: of the toolkit, or of the wheel `nvidia-cuda-nvdisasm` in this Python's environment. No GPU.

The main loop of a kernel is the innermost loop that has most of its products. A multiprocessor issues four instructions
of a warp a clock, so `instructions / 4` clocks is the least that a unit of work takes: the bound is what that gives on
all multiprocessors of an H200 (132 at 1.98 GHz), beside the 4.3 TB/s that its memory gives to a copy. It is an upper
bound, nothing that was measured. Of tiles of quantized weights, and of attention, the other tables have the shortest
way through the loop that has all products.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MULTIPROCESSORS, CLOCK, COPY = 132, 1.98e9, 4.3e12
PRODUCTS = ("IDP", "IMMA", "HMMA", "HGMMA", "FFMA")

LINE = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)")
LABEL = re.compile(r"(\.L_x_\d+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")


@dataclass(frozen=True)
class Kernel:
    """What is counted: a kernel, how it is called in the table, and what an iteration of its loop does."""

    title: str
    call: str  # of the template, as in the source
    arguments: str  # its declaration, for an instantiation
    units: int  # rows and stretches of 1,024 elements that an iteration has
    bytes: int  # that are read of memory for a unit
    limit: float  # instructions for a unit


def streaming(name: str, elements: int, size: int, limit: int) -> Kernel:
    return Kernel(name, f"gb_matvec_quick<GGML_TYPE_{name}>", "gb_matvec", 4, 1024 // elements * size, limit)


def few_rows(name: str, elements: int, size: int, panels: int, limit: int) -> Kernel:
    """An iteration: 16 rows and a quarter of a stretch; for up to 8 rows of activations, or 16."""
    title = f"{name}, {8 * panels} rows"
    call = f"gb_few_rows<GGML_TYPE_{name}, {panels}>"
    return Kernel(title, call, "gb_few", 4, 1024 // elements * size, limit)


KERNELS = (
    streaming("Q4_0", 32, 18, 50),
    streaming("Q8_0", 32, 34, 50),
    streaming("Q4_K", 256, 144, 50),
    streaming("Q6_K", 256, 210, 75),
    streaming("IQ4_XS", 256, 136, 73),
    few_rows("Q4_0", 32, 18, 1, 70),
    few_rows("Q4_0", 32, 18, 2, 88),
    few_rows("Q8_0", 32, 34, 1, 66),
    few_rows("Q8_0", 32, 34, 2, 84),
    few_rows("Q4_K", 256, 144, 1, 77),
    few_rows("Q4_K", 256, 144, 2, 96),
    few_rows("Q6_K", 256, 210, 1, 136),
    few_rows("Q6_K", 256, 210, 2, 173),
    few_rows("IQ4_XS", 256, 136, 1, 115),
    few_rows("IQ4_XS", 256, 136, 2, 134),
)


def tile(name: str, rows: int, limit: int) -> Kernel:
    """An iteration: a stage of 64 elements, `rows` rows of dst and 128 columns. GB_HALF_WIDE is 2."""
    return Kernel(f"{name}, tiles of {rows}", f"gb_gemm_halves<GGML_TYPE_{name}, 2, {rows}>", "gb_gemm", 1, 0, limit)


TILES = (
    tile("Q4_0", 128, 425),
    tile("Q4_0", 256, 512),
    tile("Q8_0", 128, 405),
    tile("Q4_K", 128, 448),
    tile("Q6_K", 128, 530),
    tile("IQ4_XS", 128, 498),
)


def attention(heads: int, keys: int, mask: str, limit: int) -> Kernel:
    """An iteration: a warp's 16 rows of queries and a tile of keys that no edge touches."""
    title = f"heads of {heads}, {keys} keys{', a mask' if mask == 'true' else ''}"
    return Kernel(title, f"gb_attention_halves<GB_HALF_F16, {heads}, {keys}, {mask}>", "gb_attention", 1, 0, limit)


ATTENTION = (
    attention(64, 64, "false", 375),
    attention(128, 64, "false", 580),
    attention(256, 32, "false", 655),
    attention(128, 64, "true", 780),
)
ALL = (*KERNELS, *TILES, *ATTENTION)


def find_disassembler() -> str:
    """The path of nvdisasm."""
    found = shutil.which("nvdisasm")
    if found is None:
        folder = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
        found = next((str(path) for path in sorted(folder.glob("**/bin/nvdisasm"))), None)
    if found is None:
        raise SystemExit("nvdisasm is missing: pip install nvidia-cuda-nvdisasm")
    return found


def disassemble(architecture: str, folder: Path) -> dict[str, list[str]]:
    """The lines of each kernel, by the call that made it."""
    source, code = folder / "kernels.cu", folder / "kernels.cubin"
    lines = [f'#include "cuda/{name}"' for name in ("kernels/few_rows.cuh", "kernels/attention.cuh", "ops/products.h")]
    lines += ["const void * kernels[] = {"]
    lines += [f"    (const void *) (void (*)({k.arguments})) {k.call}," for k in ALL] + ["};"]
    source.write_text("\n".join(lines) + "\n")
    include = [f"-I{ROOT / path}" for path in ("c/src", "c/include")]
    options = ["-std=c++17", "-O3", f"-arch=sm_{architecture}", "-Xcudafe", "--diag_suppress=177"]
    subprocess.run(["nvcc", *options, *include, "-cubin", "-o", str(code), str(source)], check=True)
    text = subprocess.run([find_disassembler(), "-c", str(code)], check=True, capture_output=True, text=True).stdout
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("//--------------------- .text."):
            current = sections.setdefault(line.split(".text.", 1)[1].split()[0], [])
        current.append(line)
    return {call: sections[name] for call, name in names_of(sections).items()}


def names_of(sections: dict[str, list[str]]) -> dict[str, str]:
    """The mangled name of each kernel: a template's first argument is the number of the type."""
    known = dict(re.findall(r"(GGML_TYPE_\w+)\s*=\s*(\d+)", (ROOT / "c/include/ggml.h").read_text()))
    mangled_as = {name: f"Li{value}E" for name, value in known.items()}
    mangled_as |= {"GB_HALF_F16": "Li0E", "false": "Lb0E", "true": "Lb1E"}
    names = {}
    for kernel in ALL:
        function, *values = re.findall(r"\w+", kernel.call)
        mangled = "".join(mangled_as.get(value, f"Li{value}E") for value in values)
        names[kernel.call] = next(n for n in sections if f"{function}I{mangled}E" in n)
    return names


def read_code(lines: list[str]) -> tuple[list[tuple[str, str]], list[list[int]]]:
    """Opcode and text of each instruction, and which may come after it. The way for lanes that do not come together
    (BRA.DIV) is left out: a warp takes it only where its lanes went different ways before."""
    code: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in lines:
        if label := LABEL.match(line):
            labels[label.group(1)] = len(code)
        elif found := LINE.match(line):
            code.append((found.group(2), line.strip()))
    after: list[list[int]] = []
    for i, (opcode, text) in enumerate(code):
        target = TARGET.search(text)
        always = opcode in ("BRA", "EXIT", "RET.REL.NODEC") and "@" not in text and " UP" not in text
        ways = [] if always else [i + 1]
        if opcode == "BRA" and target:
            ways.append(labels[target.group(1)])
        after.append([way for way in ways if way < len(code)])
    return code, after


def dominators(after: list[list[int]]) -> list[int]:
    """Of each instruction, the set of those that every way to it passes, as bits; 0: no way leads there."""
    before: list[list[int]] = [[] for _ in after]
    for i, ways in enumerate(after):
        for way in ways:
            before[way].append(i)
    everything = (1 << len(after)) - 1
    found = [1] + [everything] * (len(after) - 1)
    changed = True
    while changed:
        changed = False
        for i in range(1, len(after)):
            common = everything
            for b in before[i]:
                common &= found[b]
            common |= 1 << i
            changed |= common != found[i]
            found[i] = common
    return [0 if bits == everything else bits for bits in found]


def loops_of(after: list[list[int]]) -> list[set[int]]:
    """The instructions of each loop: what leads back to its head without passing it."""
    dominating = dominators(after)
    before: list[list[int]] = [[] for _ in after]
    for i, ways in enumerate(after):
        for way in ways:
            before[way].append(i)
    loops: dict[int, set[int]] = {}
    for i, ways in enumerate(after):
        for head in ways:
            if dominating[i] >> head & 1:
                body = loops.setdefault(head, {head})
                todo = [i]
                while todo:
                    at = todo.pop()
                    if at not in body and dominating[at]:
                        body.add(at)
                        todo += before[at]
    return list(loops.values())


def main_loop(lines: list[str]) -> list[str]:
    """The instructions of the innermost loop that has most products, as text, without what fills gaps. Where several
    have as many (a loop and what is left for after it), the shortest. Loops in it that have none count once."""
    code, after = read_code(lines)

    def products(loop: set[int]) -> tuple[int, int]:
        return sum(code[i][0].startswith(PRODUCTS) for i in loop), -len(loop)

    loops = [loop for loop in loops_of(after) if products(loop)[0] > 0]
    innermost = [a for a in loops if not any(b < a for b in loops)]
    if not innermost:
        raise SystemExit("a kernel has no loop")

    best = innermost[0]
    for loop in innermost:
        if products(loop) > products(best):
            best = loop
    return [code[i][1] for i in sorted(best) if code[i][0] != "NOP"]


def shortest_way(lines: list[str], loop: list[str], all_of: tuple[str, ...] = (*PRODUCTS, "LD.", "LDG.")) -> int:
    """How many of the loop's instructions an iteration takes at least that has all of its products and reads weights
    (`all_of`): what is for edges, or done once in several iterations, is left out."""
    code, after = read_code(lines)
    inside = {i for i, (opcode, text) in enumerate(code) if text in set(loop) or opcode == "NOP"}
    dominating = dominators(after)
    head = next(i for i in sorted(inside) if all(dominating[j] >> i & 1 for j in inside if code[j][0] != "NOP"))
    best: dict[int, tuple[int, int]] = {}  # products, and less instructions, from here to the head

    todo = [head]
    while todo:
        i = todo[-1]
        ways = [way for way in after[i] if way != head and way in inside and not dominating[i] >> way & 1]
        missing = [way for way in ways if way not in best]
        if missing:
            todo += missing
            continue
        found = [best[way] for way in ways] + ([(0, 0)] if head in after[i] else [])
        products, less = max(found, default=(-1, 0))
        own = code[i][0].startswith(all_of)
        best[todo.pop()] = (products + own if products >= 0 else -1, less - (code[i][0] != "NOP"))
    return -best[head][1]


def row(kernel: Kernel, loop: list[str]) -> str:
    each = len(loop) / kernel.units
    bound = kernel.bytes / (each / 4) * MULTIPROCESSORS * CLOCK
    memory = f"{COPY / 1e12:.1f} (memory)" if bound > COPY else f"{bound / 1e12:.1f} (issue)"
    share = kernel.bytes and COPY / bound
    return f"| {kernel.title} | {each:.1f} | {kernel.bytes} | {bound / 1e12:.1f} | {memory} | {share:.0%} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="90", help="compute capability to compile for")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a kernel is over its limit")
    parser.add_argument("--show", metavar="PATTERN", help="print the loops of the kernels that match")
    arguments = parser.parse_args()
    if shutil.which("nvcc") is None:
        print("skipped: nvcc is missing", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory() as folder:
        kernels = disassemble(arguments.architecture, Path(folder))
    over = []
    print("| weights | instructions for a row and a stretch | bytes | issue allows, TB/s | bound, TB/s | of issue |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kernel in KERNELS:
        loop = main_loop(kernels[kernel.call])
        print(row(kernel, loop))
        if len(loop) > kernel.limit * kernel.units:
            over.append(f"{kernel.title}: {len(loop) / kernel.units:.1f} instructions, at most {kernel.limit}")
        if arguments.show and re.search(arguments.show, kernel.call):
            print("\n".join(loop))
    print("\n| weights, rows of a tile | instructions of a warp and a stage | the copy in one stage of four, edges |")
    print("| --- | --- | --- |")
    for kernel in TILES:
        loop = main_loop(kernels[kernel.call])
        each = shortest_way(kernels[kernel.call], loop)
        print(f"| {kernel.title} | {each} | {len(loop) - each} |")
        if each > kernel.limit:
            over.append(f"{kernel.title}: {each} instructions, at most {kernel.limit}")
        if arguments.show and re.search(arguments.show, kernel.call):
            print("\n".join(loop))
    print("\n| attention | instructions of a warp and a tile of keys | the copy of the next, edges |")
    print("| --- | --- | --- |")
    for kernel in ATTENTION:
        loop = main_loop(kernels[kernel.call])
        each = shortest_way(kernels[kernel.call], loop, ("HMMA",))
        print(f"| {kernel.title} | {each} | {len(loop) - each} |")
        if each > kernel.limit:
            over.append(f"{kernel.title}: {each} instructions, at most {kernel.limit}")
        if arguments.show and re.search(arguments.show, kernel.call):
            print("\n".join(loop))
    print("\n".join(over), end="\n" if over else "")
    return 1 if arguments.check and over else 0


if __name__ == "__main__":
    raise SystemExit(main())
