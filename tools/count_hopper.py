"""Counts the instructions of the kernels that need compute capability 9.0, and computes the bounds on their speed.

    python tools/count_hopper.py             # compiles for 9.0a and prints tables
    python tools/count_hopper.py --check     # fails if ptxas serialized wgmma, or a loop has too many instructions
    python tools/count_hopper.py --show      # prints the loops, too

The program needs nvcc and nvdisasm (``disassembly.py``). It computes the figures; nothing is measured.

- Products: a stage is 64 elements of depth of a tile. Its loop has four HGMMA, whose 64 x NT x 16 products take NT / 2
  clocks of a multiprocessor. So both groups of warps take 4 NT clocks. Shared memory gives 128 bytes a clock. Each
  HGMMA reads its 64 rows and all NT, and the copies write a stage once. Other instructions of a warp run beside the
  products: each of four schedulers issues one instruction a clock, for two of the eight warps.
- Quantized weights: the loop has 128 elements of depth, two stages. A group of warps reads the second operand and the
  words of its weights from shared memory. Two rows of words hit the same bank, so a load of a warp takes two clocks.
  Three warps copy the bytes of 128 rows for 256 elements, twelve rows at a time. The pipe that permutes, converts and
  does logic takes an instruction of a warp every other clock.
- Attention: a tile of keys and 128 rows of queries, of which a warp has 16. Both products take KEYS x D / 8 clocks.
  The exponentials, KEYS for each row, run at 16 a clock. The table counts the shortest path: a tile without an edge.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass

from disassembly import (
    FOR_90A,
    Instruction,
    disassemble_kernels,
    hot_paths,
    loops_of,
    numbers_of_types,
    opcode_of,
    read_kernels,
    shortest_path,
    texts,
)

TILES, TILE_M, DEPTH, MOST_BESIDE = (256, 128, 64), 128, 64, 80
# D, keys of a tile, whether a mask is added: maximum of instructions of a warp for a tile
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
    """Kernels of F16 products by rows of a tile, of attention, and of products of quantized weights."""

    products: dict[int, list[Instruction]]
    attention: dict[tuple[int, int, str], list[Instruction]]
    packed: dict[tuple[str, int], list[Instruction]]


def read_all() -> Kernels:
    """Compiles the kernels. Exits if ptxas serialized wgmma."""
    calls = [f"(void (*)(gb_gemm_tiles)) gb_gemm_hopper<GB_HALF_F16, {nt}>" for nt in TILES]
    calls += [
        f"(void (*)(gb_attention_tiles)) gb_attention_tall<GB_HALF_F16, {d}, {keys}, {mask}>"
        for d, keys, mask in ATTENTION
    ]
    calls += [
        f"(void (*)(gb_gemm_packed)) gb_gemm_packed_hopper<GGML_TYPE_{name}, {nt}>"
        for name in PACKED
        for nt in PACKED_ROWS
    ]
    headers = [f"kernels/{name}_hopper.cuh" for name in ("gemm", "gemm_packed", "attention")]
    text, said = disassemble_kernels(headers, calls, FOR_90A)
    if "serialized" in said:
        raise SystemExit(said)
    kernels = read_kernels(text)

    def find(part: str) -> list[Instruction]:
        return next(code for name, code in kernels.items() if part in name)

    types = numbers_of_types()
    return Kernels(
        {nt: find(f"gb_gemm_hopperILi0ELi{nt}E") for nt in TILES},
        {
            (d, keys, mask): find(f"gb_attention_tallILi0ELi{d}ELi{keys}ELb{int(mask == 'true')}E")
            for d, keys, mask in ATTENTION
        },
        {(name, nt): find(f"gb_gemm_packed_hopperILi{types[name]}ELi{nt}E") for name in PACKED for nt in PACKED_ROWS},
    )


def _loops_with(code: list[Instruction], opcode: str) -> list[set[int]]:
    return [a for a in loops_of(hot_paths(code)) if any(code[i].opcode.startswith(opcode) for i in a)]


def tile_loop(code: list[Instruction]) -> list[str]:
    """The smallest loop with wgmma."""
    return texts(code, min(_loops_with(code, "HGMMA"), key=len))


def stage_loop(code: list[Instruction]) -> list[str]:
    """The loop without its inner loops, which only wait."""
    outer = min(_loops_with(code, "HGMMA"), key=len)
    inside = {i for a in loops_of(hot_paths(code)) if a < outer for i in a}
    return texts(code, outer - inside)


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


def attention_row(kind: tuple[int, int, str], loop: list[str], each: int) -> str:
    d, keys, mask = kind
    clocks, exponentials = keys * d // 8, TALL_ROWS * keys // 16
    issue = 2 * each
    # a product reads its 64 rows and all of the second operand's, or the second alone, for two groups of warps
    reads = 2 * (d // 16 * (64 + keys) + keys // 16 * d) * 16 * 2
    shared = (reads + 2 * keys * d * 2) // 128
    most = max(clocks, exponentials, issue, shared)
    added = ", a mask" if mask == "true" else ""
    products = sum("HGMMA" in text for text in loop)
    return (
        f"| {d}{added} | {keys} | {products} | {each - products} | {clocks} | {exponentials} | {shared} | {issue} "
        f"| {clocks / most:.0%} |"
    )


def copy_path(code: list[Instruction]) -> int:
    """Instructions of a warp that copies whole pieces of the rows for which it has lanes."""
    loops = _loops_with(code, "LDGSTS")
    rows = min((a for a in loops if any(b < a for b in loops)), key=len)
    return shortest_path(code, texts(code, rows), ("LDGSTS",))


def packed_row(name: str, nt: int, loop: list[str], copies: int) -> str:
    size = PACKED[name][0]
    opcodes = [opcode_of(text).split(".")[0] for text in loop]
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
    parser.add_argument("--check", action="store_true", help="exit with 1 if a loop has too many instructions")
    parser.add_argument("--show", action="store_true", help="print the loops")
    arguments = parser.parse_args()
    if shutil.which("nvcc") is None:
        print("skipped: nvcc is missing", file=sys.stderr)
        return 77
    all_kernels = read_all()
    kernels, attention = all_kernels.products, all_kernels.attention
    over = []
    print("| tile | wgmma | beside | clocks | KiB of shared memory | clocks for them | of the peak | of issue |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for nt in TILES:
        loop = stage_loop(kernels[nt])
        print(row(nt, loop))
        if arguments.show:
            print("\n".join(loop))
        if sum("HGMMA" not in text for text in loop) > MOST_BESIDE:
            over.append(f"128 x {nt}: {len(loop)} instructions, at most {MOST_BESIDE} beside wgmma")
    print("\n| heads | keys | wgmma | beside | clocks | exponentials | shared memory | issue | of the peak |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind, most in ATTENTION.items():
        loop = tile_loop(attention[kind])
        each = shortest_path(attention[kind], loop, ("HGMMA",))
        print(attention_row(kind, loop, each))
        if arguments.show:
            print("\n".join(loop))
        if each > most:
            over.append(f"attention {kind}: {each} instructions, at most {most}")
    print("\n| weights, rows | instructions | of a copy | clocks | issue | half rate | shared memory | of the peak |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (name, nt), code in all_kernels.packed.items():
        loop = stage_loop(code)
        print(packed_row(name, nt, loop, copy_path(code)))
        if arguments.show:
            print("\n".join(loop))
        limit = PACKED[name][1] if nt == 256 else PACKED[name][2]
        if len(loop) > limit and nt != 64:
            over.append(f"{name}, {nt} rows: {len(loop)} instructions, at most {limit}")
    print("\n".join(over), end="\n" if over else "")
    return 1 if arguments.check and over else 0


if __name__ == "__main__":
    raise SystemExit(main())
