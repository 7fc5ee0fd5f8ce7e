"""Counts the instructions of the main loops of CUDA kernels in their disassembly, and computes the bound on speed.

    python tools/count_sass.py                    # compiles for compute capability 9.0 and prints tables
    python tools/count_sass.py --check            # fails if a kernel exceeds its limit
    python tools/count_sass.py --show matvec_quick.*Q4_0     # prints the loop, too

The program needs nvcc and nvdisasm (``disassembly.py``).

The main loop of a kernel is the innermost loop with most of its products. A multiprocessor issues four instructions of
a warp a clock, so a unit of work takes at least `instructions / 4` clocks. The first table has the resulting speed on
all multiprocessors of an H200 (132 at 1.98 GHz), beside the 4.3 TB/s of a copy in its memory. The figures are computed
upper bounds, not measurements. The other tables count the shortest path through the loop that has all products.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from dataclasses import dataclass

from disassembly import (
    FOR_90,
    Instruction,
    disassemble_kernels,
    hot_paths,
    loops_of,
    numbers_of_types,
    read_kernels,
    shortest_path,
    texts,
)

MULTIPROCESSORS, CLOCK, COPY = 132, 1.98e9, 4.3e12
LANES = 128  # fused multiply-adds of a multiprocessor in a clock
PRODUCTS = ("IDP", "IMMA", "HMMA", "HGMMA", "FFMA")


@dataclass(frozen=True)
class Kernel:
    """A kernel to count, its name in the table, and the work of an iteration of its loop."""

    title: str
    call: str  # the name with template arguments, as in the source
    arguments: str  # type of the kernel's argument
    units: int  # stretches of 1,024 elements of a row per iteration
    bytes: int  # read from memory for a unit
    limit: float  # of instructions for a unit


def streaming(name: str, elements: int, size: int, limit: int) -> Kernel:
    return Kernel(name, f"gb_matvec_quick<GGML_TYPE_{name}>", "gb_matvec_group", 4, 1024 // elements * size, limit)


def few_rows(name: str, elements: int, size: int, panels: int, limit: int) -> Kernel:
    """A kernel whose iteration has a quarter of a stretch of 16 rows, for up to 8 or 16 rows of activations."""
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
    few_rows("Q4_0", 32, 18, 2, 96),
    few_rows("Q8_0", 32, 34, 1, 74),
    few_rows("Q8_0", 32, 34, 2, 90),
    few_rows("Q4_K", 256, 144, 1, 77),
    few_rows("Q4_K", 256, 144, 2, 101),
    few_rows("Q6_K", 256, 210, 1, 141),
    few_rows("Q6_K", 256, 210, 2, 183),
    few_rows("IQ4_XS", 256, 136, 1, 115),
    few_rows("IQ4_XS", 256, 136, 2, 138),
)


def tile(name: str, rows: int, limit: int) -> Kernel:
    """A kernel whose iteration has a stage of 64 elements, `rows` rows of dst and 128 columns. GB_HALF_WIDE is 2."""
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
    """A kernel whose iteration has a warp's 16 rows of queries and a tile of keys without an edge."""
    title = f"heads of {heads}, {keys} keys{', a mask' if mask == 'true' else ''}"
    return Kernel(title, f"gb_attention_halves<GB_HALF_F16, {heads}, {keys}, {mask}>", "gb_attention", 1, 0, limit)


ATTENTION = (
    attention(64, 64, "false", 375),
    attention(128, 64, "false", 580),
    attention(256, 32, "false", 655),
    attention(128, 64, "true", 780),
)


def floats(rows: int, limit: int) -> Kernel:
    """An F32 kernel whose iteration has a quarter of a stage of 32 elements, `rows` rows of dst and 128 columns."""
    return Kernel(f"tiles of {rows}", f"gb_gemm_floats<{rows // 16}>", "gb_gemm", 1, 0, limit)


FLOATS = (floats(128, 600), floats(64, 325), floats(32, 185))
QUARTERS = 4  # iterations of the main loop in a stage
ALL = (*KERNELS, *TILES, *ATTENTION, *FLOATS)


def read_all() -> dict[str, list[Instruction]]:
    """The instructions of each kernel, by its ``call``."""
    headers = ["kernels/few_rows.cuh", "kernels/attention.cuh", "kernels/gemm_floats.cuh", "ops/products.h"]
    text, _ = disassemble_kernels(headers, [f"(void (*)({k.arguments})) {k.call}" for k in ALL], FOR_90)
    kernels = read_kernels(text)
    return {call: kernels[name] for call, name in names_of(kernels).items()}


def names_of(kernels: dict[str, list[Instruction]]) -> dict[str, str]:
    """The mangled name of each kernel: a template's first argument is the number of the type."""
    mangled_as = {f"GGML_TYPE_{name}": f"Li{value}E" for name, value in numbers_of_types().items()}
    mangled_as |= {"GB_HALF_F16": "Li0E", "false": "Lb0E", "true": "Lb1E"}
    names = {}
    for kernel in ALL:
        function, *values = re.findall(r"\w+", kernel.call)
        mangled = "".join(mangled_as.get(value, f"Li{value}E") for value in values)
        names[kernel.call] = next(n for n in kernels if f"{function}I{mangled}E" in n)
    return names


def main_loop(code: list[Instruction]) -> list[str]:
    """The innermost loop with most products, as text. Of equal loops (a loop and its remainder), the shortest."""

    def products(loop: set[int]) -> tuple[int, int]:
        return sum(code[i].opcode.startswith(PRODUCTS) for i in loop), -len(loop)

    loops = [loop for loop in loops_of(hot_paths(code)) if products(loop)[0] > 0]
    innermost = [a for a in loops if not any(b < a for b in loops)]
    if not innermost:
        raise SystemExit("a kernel has no loop")
    return texts(code, max(innermost, key=products))


def stage_of_floats(code: list[Instruction]) -> tuple[int, int]:
    """The instructions of a stage, and the products among them. A stage is the main loop and the copy ahead."""
    main = main_loop(code)
    around = [loop for loop in loops_of(hot_paths(code)) if set(main) < set(texts(code, loop))]
    copies = min(map(len, around)) - len(main)
    return QUARTERS * len(main) + copies, QUARTERS * sum("FFMA" in text for text in main)


def row(kernel: Kernel, loop: list[str]) -> str:
    each = len(loop) / kernel.units
    bound = kernel.bytes / (each / 4) * MULTIPROCESSORS * CLOCK
    memory = f"{COPY / 1e12:.1f} (memory)" if bound > COPY else f"{bound / 1e12:.1f} (issue)"
    share = kernel.bytes and COPY / bound
    return f"| {kernel.title} | {each:.1f} | {kernel.bytes} | {bound / 1e12:.1f} | {memory} | {share:.0%} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a kernel exceeds its limit")
    parser.add_argument("--show", metavar="PATTERN", help="print the loops of the kernels that match")
    arguments = parser.parse_args()
    if shutil.which("nvcc") is None:
        print("skipped: nvcc is missing", file=sys.stderr)
        return 77
    kernels = read_all()
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
    others = (
        (
            "weights, rows of a tile",
            "a stage | the copy in one stage of four, edges",
            TILES,
            (*PRODUCTS, "LD.", "LDG."),
        ),
        ("attention", "a tile of keys | the copy of the next, edges", ATTENTION, ("HMMA",)),
    )
    for title, unit, group, all_of in others:
        print(f"\n| {title} | instructions of a warp and {unit} |\n| --- | --- | --- |")
        for kernel in group:
            loop = main_loop(kernels[kernel.call])
            each = shortest_path(kernels[kernel.call], loop, all_of)
            print(f"| {kernel.title} | {each} | {len(loop) - each} |")
            if each > kernel.limit:
                over.append(f"{kernel.title}: {each} instructions, at most {kernel.limit}")
            if arguments.show and re.search(arguments.show, kernel.call):
                print("\n".join(loop))
    print("\n| F32, rows of a tile | instructions of a warp and a stage | products | issue allows, TFLOP/s |")
    print("| --- | --- | --- | --- |")
    for kernel in FLOATS:
        whole, products = stage_of_floats(kernels[kernel.call])
        bound = products / whole * LANES * 2 * MULTIPROCESSORS * CLOCK
        print(f"| {kernel.title} | {whole} | {products} | {bound / 1e12:.1f} |")
        loop = main_loop(kernels[kernel.call])
        if len(loop) > kernel.limit:
            over.append(f"{kernel.title}: {len(loop)} instructions, at most {kernel.limit}")
        if arguments.show and re.search(arguments.show, kernel.call):
            print("\n".join(loop))
    print("\n".join(over), end="\n" if over else "")
    return 1 if arguments.check and over else 0


if __name__ == "__main__":
    raise SystemExit(main())
