"""Counts the instructions of the kernels for compute capability 9.0 alone, from their disassembly, and what bound
follows.

    python tools/count_hopper.py             # compiles for 9.0a and prints a table
    python tools/count_hopper.py --check     # fails where wgmma was serialized, or a warp has too much beside it
    python tools/count_hopper.py --show      # the loops, too

Needs what count_sass.py needs. Of products: a stage is 64 elements of depth of a tile: the loop has four HGMMA, whose
64 x NT x 16 products take NT / 2 clocks of a multiprocessor; both groups of warps take 4 NT clocks. Shared memory
gives 128 bytes a clock: each HGMMA reads its 64 rows and all NT, and the copies write a stage once. What a warp issues
beside it runs while products go on: four schedulers issue one instruction a clock each, and each has two of the eight
warps.

Of quantized weights: the loop has 128 elements of depth, two stages. Groups of warps read only the second operand from
shared memory for their products, and the words of their weights, for which two rows meet in a bank: two clocks for each
load of a warp. Three warps copy the bytes of 128 rows for 256 elements, twelve rows at a time; what they issue counts,
too. An unpacked element also takes the half of a clock of the pipe that permutes, converts and does logic, which takes
an instruction of a warp every other clock.

Of attention: a tile of keys and 128 rows of queries, of which a warp has 16. Both products take KEYS x D / 8 clocks;
the exponentials, KEYS for each row, 16 a clock. Instructions are those of the shortest way: a tile that no edge
touches.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from count_sass import LINE, ROOT, find_disassembler, loops_of, read_code, shortest_way

TILES, TILE_M, DEPTH, MOST_BESIDE = (256, 128, 64), 128, 64, 80
# D, keys of a tile, whether a mask is added: the most instructions of a warp and a tile
ATTENTION = {
    (64, 128, "false"): 500,
    (128, 128, "false"): 580,
    (256, 64, "false"): 570,
    (64, 128, "true"): 775,
    (128, 128, "true"): 855,
    (256, 64, "true"): 730,
}
TALL_ROWS = 128
# weights, their bytes for 256 elements: the most instructions of a warp and 128 elements, for tiles of 256 rows and 128
PACKED = {
    "Q4_0": (144, 440, 420),
    "Q8_0": (272, 430, 410),
    "Q4_K": (144, 520, 495),
    "Q6_K": (210, 615, 595),
    "IQ4_XS": (136, 575, 560),
}
PACKED_ROWS = (256, 128, 64)
COPIERS, ROWS_AT_ONCE = 3, 12
# opcodes of the pipe that takes an instruction of a warp every other clock
HALF_RATE = ("PRMT", "LOP3", "SHF", "F2FP", "IADD3", "VIADD", "ISETP", "LEA", "SEL", "FSEL", "MOV", "I2FP", "PLOP3")


@dataclass(frozen=True)
class Kernels:
    """The lines of the kernels of F16: of products for each number of rows of a tile, of attention, and of products of
    quantized weights."""

    products: dict[int, list[str]]
    attention: dict[tuple[int, int, str], list[str]]
    packed: dict[tuple[str, int], list[str]]


def disassemble(folder: Path) -> Kernels:
    """Compiles them. What ptxas says about wgmma ends the script."""
    source, code = folder / "kernels.cu", folder / "kernels.cubin"
    lines = [f'#include "cuda/kernels/{name}_hopper.cuh"' for name in ("gemm", "gemm_packed", "attention")]
    lines += ["const void * kernels[] = {"]
    lines += [f"    (const void *) (void (*)(gb_gemm_tiles)) gb_gemm_hopper<GB_HALF_F16, {nt}>," for nt in TILES]
    lines += [
        f"    (const void *) (void (*)(gb_attention_tiles)) gb_attention_tall<GB_HALF_F16, {d}, {keys}, {mask}>,"
        for d, keys, mask in ATTENTION
    ]
    lines += [
        f"    (const void *) (void (*)(gb_gemm_packed)) gb_gemm_packed_hopper<GGML_TYPE_{name}, {nt}>,"
        for name in PACKED
        for nt in PACKED_ROWS
    ]
    source.write_text("\n".join([*lines, "};"]) + "\n")
    include = [f"-I{ROOT / path}" for path in ("c/src", "c/include")]
    options = ["-std=c++17", "-O3", "-gencode", "arch=compute_90a,code=sm_90a", "-Xcudafe", "--diag_suppress=177"]
    command = ["nvcc", *options, *include, "-cubin", "-o", str(code), str(source)]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    if "serialized" in said.stdout + said.stderr:
        raise SystemExit(said.stdout + said.stderr)
    text = subprocess.run([find_disassembler(), "-c", str(code)], check=True, capture_output=True, text=True).stdout
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith("//--------------------- .text."):
            current = sections.setdefault(line.split(".text.", 1)[1].split()[0], [])
        current.append(line)

    def find(part: str) -> list[str]:
        return next(lines for name, lines in sections.items() if part in name)

    products = {nt: find(f"gb_gemm_hopperILi0ELi{nt}E") for nt in TILES}
    attention = {
        (d, keys, mask): find(f"gb_attention_tallILi0ELi{d}ELi{keys}ELb{int(mask == 'true')}E")
        for d, keys, mask in ATTENTION
    }
    types = dict(re.findall(r"GGML_TYPE_(\w+)\s*=\s*(\d+)", (ROOT / "c/include/ggml.h").read_text()))
    packed = {
        (name, nt): find(f"gb_gemm_packed_hopperILi{types[name]}ELi{nt}E") for name in PACKED for nt in PACKED_ROWS
    }
    return Kernels(products, attention, packed)


def tile_loop(lines: list[str]) -> list[str]:
    """The smallest loop with wgmma."""
    code, after = read_code(lines)
    loop = min((a for a in loops_of(after) if any(code[i][0].startswith("HGMMA") for i in a)), key=len)
    return [code[i][1] for i in sorted(loop) if code[i][0] != "NOP"]


def stage_loop(lines: list[str]) -> list[str]:
    """The smallest loop with wgmma, without the loops inside of it, which wait."""
    code, after = read_code(lines)
    loops = loops_of(after)
    outer = min((a for a in loops if any(code[i][0].startswith("HGMMA") for i in a)), key=len)
    inside = {i for a in loops if a < outer for i in a}
    return [code[i][1] for i in sorted(outer - inside) if code[i][0] != "NOP"]


def row(nt: int, loop: list[str]) -> str:
    products = sum("HGMMA" in text for text in loop)
    clocks = 2 * products * nt // 2
    reads = 2 * products * (64 + nt) * 16 * 2
    writes = (TILE_M + nt) * DEPTH * 2
    shared = (reads + writes) / 128
    beside = len(loop) - products
    return (
        f"| 128 x {nt} | {products} | {beside} | {clocks} | {reads / 1024:.0f} + {writes / 1024:.0f} | {shared:.0f} "
        f"| {clocks / max(shared, clocks):.0%} | {2 * len(loop) / clocks:.0%} |"
    )


def attention_row(kind: tuple[int, int, str], loop: list[str], way: int) -> str:
    d, keys, mask = kind
    clocks, exponentials = keys * d // 8, TALL_ROWS * keys // 16
    issue = 2 * way
    # a product reads its 64 rows and all of the second operand's, or the second alone, for two groups of warps
    reads = 2 * (d // 16 * (64 + keys) + keys // 16 * d) * 16 * 2
    shared = (reads + 2 * keys * d * 2) // 128
    most = max(clocks, exponentials, issue, shared)
    added = ", a mask" if mask == "true" else ""
    products = sum("HGMMA" in text for text in loop)
    return (
        f"| {d}{added} | {keys} | {products} | {way - products} | {clocks} | {exponentials} | {shared} | {issue} "
        f"| {clocks / most:.0%} |"
    )


def copy_way(lines: list[str]) -> int:
    """Instructions of a warp that copies whole pieces of as many rows as it has lanes for."""
    code, after = read_code(lines)
    loops = [a for a in loops_of(after) if any(code[i][0].startswith("LDGSTS") for i in a)]
    rows = min((a for a in loops if any(b < a for b in loops)), key=len)
    return shortest_way(lines, [code[i][1] for i in sorted(rows)], ("LDGSTS",))


def packed_row(name: str, nt: int, loop: list[str], copies: int) -> str:
    size = PACKED[name][0]
    opcodes = [LINE.match(text).group(2).split(".")[0] for text in loop]  # type: ignore[union-attr]
    clocks = 4 * nt
    copying = COPIERS * -(-TILE_M // ROWS_AT_ONCE) * copies / 4  # of a stage
    issue = (8 * len(loop) / 2 + copying) / 4
    pipe = 2 * 8 / 4 * sum(opcode in HALF_RATE for opcode in opcodes) / 2
    loads = 8 * opcodes.count("LDS") / 2
    shared = 2 * nt + nt + TILE_M * size / 4 / 128 + 2 * loads
    most = max(clocks, issue, pipe, shared)
    return (
        f"| {name}, {nt} | {len(loop)} | {copies} | {clocks} | {issue:.0f} | {pipe:.0f} | {shared:.0f} "
        f"| {clocks / most:.0%} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a stage has too much beside wgmma")
    parser.add_argument("--show", action="store_true", help="print the loops")
    arguments = parser.parse_args()
    if shutil.which("nvcc") is None:
        print("skipped: nvcc is missing", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory() as folder:
        all_kernels = disassemble(Path(folder))
    kernels, attention = all_kernels.products, all_kernels.attention
    over = []
    print("| tile | wgmma | beside | clocks | KiB of shared memory | clocks for them | of the peak | of issue |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for nt in TILES:
        loop = stage_loop(kernels[nt])
        print(row(nt, loop))
        if arguments.show:
            print("\n".join(loop))
        if sum(not re.search("HGMMA", text) for text in loop) > MOST_BESIDE:
            over.append(f"128 x {nt}: {len(loop)} instructions, at most {MOST_BESIDE} beside wgmma")
    print("\n| heads | keys | wgmma | beside | clocks | exponentials | shared memory | issue | of the peak |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind, most in ATTENTION.items():
        loop = tile_loop(attention[kind])
        way = shortest_way(attention[kind], loop, ("HGMMA",))
        print(attention_row(kind, loop, way))
        if arguments.show:
            print("\n".join(loop))
        if way > most:
            over.append(f"attention {kind}: {way} instructions, at most {most}")
    print("\n| weights, rows | instructions | of a copy | clocks | issue | half rate | shared memory | of the peak |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (name, nt), lines in all_kernels.packed.items():
        loop = stage_loop(lines)
        print(packed_row(name, nt, loop, copy_way(lines)))
        if arguments.show:
            print("\n".join(loop))
        limit = PACKED[name][1] if nt == 256 else PACKED[name][2]
        if len(loop) > limit and nt != 64:
            over.append(f"{name}, {nt} rows: {len(loop)} instructions, at most {limit}")
    print("\n".join(over), end="\n" if over else "")
    return 1 if arguments.check and over else 0


if __name__ == "__main__":
    raise SystemExit(main())
