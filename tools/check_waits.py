"""Proves from the machine code that every kernel waits for the kernels before it: what c/src/cuda/launch.cuh asks for
where a kernel may begin while the one before it ends.

    python tools/check_waits.py                   # compiles the module's sources for compute capability 9.0
    python tools/check_waits.py --check           # exits with 1 where a kernel does not wait
    python tools/check_waits.py norm rope         # only files with this in their names
    python tools/check_waits.py --registers       # prints registers and spills of each kernel, too

Needs what count_sass.py needs. Of each kernel, on every way through its code: no instruction reads or writes global
memory before ACQBULK (`griddepcontrol.wait`), no thread ends without it, and PREEXIT
(`griddepcontrol.launch_dependents`) comes after it. Ways are those of the code: conditions count as if both could be,
jumps to computed places as if they touched memory.
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

from count_sass import LINE, ROOT, find_disassembler

WAIT, NEXT = "ACQBULK", "PREEXIT"
# what reads or writes memory that other blocks have, or might (generic addresses)
GLOBAL = re.compile(
    r"(LD|ST|LDG|STG|LDGSTS|ATOM|ATOMG|RED|REDG|REDAS|UBLKCP|UBLKRED|UTMALDG|UTMASTG|UTMAREDG|BLKCP|TEX|TLD|SULD|SUST"
    r"|SUATOM|SURED|LD_LDU|LDU)(\.|$)"
)
LABEL = re.compile(r"([.$\w]+):\s*$")
TARGET = re.compile(r"`\(([.$\w]+)\)")
COMPUTED = ("BRX", "BRXU", "JMX", "JMXU", "CALL.ABS", "JMP")
RESOURCES = re.compile(
    r"Compiling entry function '(\w+)' for|(\d+) bytes spill stores, (\d+) bytes spill loads|Used (\d+) reg"
)


@dataclass(frozen=True)
class Kernel:
    """A kernel's code: opcodes, and which instructions may come after each; None: a place that nobody knows."""

    name: str
    code: list[tuple[str, str]]
    after: list[list[int | None]]


def sources(patterns: list[str]) -> list[Path]:
    folder = ROOT / "c/src/cuda"
    found = [*sorted(folder.glob("*.cu")), *sorted(folder.glob("ops/*.cu"))]
    return [f for f in found if not patterns or any(p in f.name for p in patterns)]


def compile_one(source: Path, folder: Path, compiler: str) -> tuple[str, str]:
    """The disassembly of a file, compiled as for the module, and what ptxas says about registers."""
    hopper = source.name.endswith("_hopper.cu")
    code = folder / f"{source.stem}.cubin"
    include = [f"-I{ROOT / path}" for path in ("c/src", "c/include")]
    options = ["-std=c++17", "-O3", "-Xcudafe", "--diag_suppress=177", "-Xptxas", "-v"]
    options += ["-gencode", "arch=compute_90a,code=sm_90a", "-DGB_HOPPER_CODE"] if hopper else ["-arch=sm_90"]
    command = [compiler, *options, *include, "-cubin", "-o", str(code), str(source)]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    shown = subprocess.run([find_disassembler(), "-c", str(code)], check=True, capture_output=True, text=True)
    code.unlink()
    return shown.stdout, said.stdout + said.stderr


def kernels_of(text: str) -> list[Kernel]:
    kernels: list[Kernel] = []
    for section in text.split("//--------------------- .text.")[1:]:
        name, _, body = section.partition("\n")
        kernels.append(read_kernel(name.split()[0], body.splitlines()))
    return kernels


def read_kernel(name: str, lines: list[str]) -> Kernel:
    code: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in lines:
        if found := LINE.match(line):
            code.append((found.group(2), line.strip()))
        elif label := LABEL.match(line):
            labels[label.group(1)] = len(code)
    after: list[list[int | None]] = []
    for i, (opcode, text) in enumerate(code):
        target = TARGET.search(text)
        sure = "@" not in text and not re.search(r" U?P\d|!U?P\d", text)
        ways: list[int | None] = []
        if opcode.startswith("CALL.REL"):  # and comes back
            ways = [labels.get(target.group(1)) if target else None, i + 1]
        elif opcode.startswith("BRA"):
            ways = [labels.get(target.group(1)) if target else None, *([] if sure else [i + 1])]
        elif opcode.startswith("RET") or opcode == "EXIT":
            ways = [] if sure else [i + 1]
        elif opcode.startswith(COMPUTED):
            ways = [None]
        else:
            ways = [i + 1]
        after.append([way for way in ways if way is None or way < len(code)])
    return Kernel(name, code, after)


def faults(kernel: Kernel) -> list[str]:
    """What a thread may do without having waited, and should not."""
    found: list[str] = []
    seen, todo = {0}, [0]
    while todo:
        at = todo.pop()
        opcode, text = kernel.code[at]
        if opcode == WAIT and "@" not in text:
            continue
        if opcode == NEXT or opcode == "EXIT" or GLOBAL.match(opcode):
            found.append(f"without a wait: {text}")
        for way in kernel.after[at]:
            if way is None:
                found.append(f"without a wait, to anywhere: {text}")
            elif way not in seen:
                seen.add(way)
                todo.append(way)
    return found


def resources(said: str) -> dict[str, tuple[int, int, int]]:
    """Of each kernel: registers, bytes that are spilled and read again."""
    found: dict[str, tuple[int, int, int]] = {}
    name, spills = "", (0, 0)
    for entry, stores, loads, registers in RESOURCES.findall(said):
        if entry:
            name = entry
        elif stores and name:
            spills = (int(stores), int(loads))
        elif registers and name:
            found[name] = (int(registers), *spills)
            name = ""
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of files; without, all of the module")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a kernel does not wait")
    parser.add_argument("--registers", action="store_true", help="print registers and spills of each kernel")
    parser.add_argument("--compiler", default="nvcc")
    arguments = parser.parse_args()
    if shutil.which(arguments.compiler) is None:
        print("skipped: nvcc is missing", file=sys.stderr)
        return 77
    wrong = []
    n_kernels = n_touches = 0
    for source in sources(arguments.names):
        with tempfile.TemporaryDirectory() as folder:
            text, said = compile_one(source, Path(folder), arguments.compiler)
        kernels = kernels_of(text)
        wrong += [f"{source.name}: {kernel.name}: {fault}" for kernel in kernels for fault in faults(kernel)]
        touches = sum(bool(GLOBAL.match(opcode)) for kernel in kernels for opcode, _ in kernel.code)
        n_kernels, n_touches = n_kernels + len(kernels), n_touches + touches
        if kernels:
            print(f"{source.name}: {len(kernels)} kernels, {touches} instructions of global memory", flush=True)
        for name, (registers, stores, loads) in sorted(resources(said).items()) if arguments.registers else ():
            print(f"    {registers:3} registers, spills {stores:3} {loads:3}  {name}", flush=True)
    print(f"{n_kernels} kernels, {n_touches} instructions of global memory, {len(wrong)} faults")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if arguments.check and wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
