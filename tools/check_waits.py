"""Proves from the machine code that every kernel waits for the kernels before it (c/src/cuda/launch.cuh has the rule).

    python tools/check_waits.py                   # compiles the module's sources for compute capability 9.0
    python tools/check_waits.py --check           # exits with 1 if a kernel does not wait
    python tools/check_waits.py norm rope         # only files whose names contain one of these
    python tools/check_waits.py --registers       # prints registers and spills of each kernel, too

The program needs nvcc and nvdisasm (``disassembly.py``). It follows every path through a kernel, with both outcomes of
each condition. Before ACQBULK (`griddepcontrol.wait`), no instruction may read or write global memory, and no PREEXIT
(`griddepcontrol.launch_dependents`) may run. No thread may end without ACQBULK. A prefetch into the L2 cache (CCTL.PF2)
gives the kernel no data, so it may come before ACQBULK. A jump to a computed address is a fault.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

from disassembly import FOR_90, FOR_90A, ROOT, Instruction, disassemble, read_kernels

WAIT, NEXT = "ACQBULK", "PREEXIT"
# instructions that read or write memory of other blocks, or can do so (generic addresses)
GLOBAL = re.compile(
    r"(LD|ST|LDG|STG|LDGSTS|ATOM|ATOMG|RED|REDG|REDAS|UBLKCP|UBLKRED|UTMALDG|UTMASTG|UTMAREDG|BLKCP|TEX|TLD|SULD|SUST"
    r"|SUATOM|SURED|LD_LDU|LDU)(\.|$)"
)
COMPUTED = ("BRX", "BRXU", "JMX", "JMXU", "CALL.ABS", "JMP")
RESOURCES = re.compile(
    r"Compiling entry function '(\w+)' for|(\d+) bytes spill stores, (\d+) bytes spill loads|Used (\d+) reg"
)


def sources(patterns: list[str]) -> list[Path]:
    folder = ROOT / "c/src/cuda"
    found = [*sorted(folder.glob("*.cu")), *sorted(folder.glob("ops/*.cu"))]
    return [f for f in found if not patterns or any(p in f.name for p in patterns)]


def paths(code: list[Instruction]) -> list[list[int | None]]:
    """The instructions that may follow each instruction, for both outcomes of conditions. None: an unknown address."""
    after: list[list[int | None]] = []
    for i, instruction in enumerate(code):
        opcode = instruction.opcode
        following: list[int | None] = [i + 1]
        if opcode.startswith("CALL.REL"):  # returns to the next instruction
            following = [instruction.target, i + 1]
        elif opcode.startswith("BRA"):
            following = [instruction.target, *([i + 1] if instruction.is_conditional else [])]
        elif opcode.startswith("RET") or opcode == "EXIT":
            following = [i + 1] if instruction.is_conditional else []
        elif opcode.startswith(COMPUTED):
            following = [None]
        after.append([j for j in following if j is None or j < len(code)])
    return after


def faults(code: list[Instruction]) -> list[str]:
    """Instructions that a thread must not reach without a wait, but can reach."""
    found: list[str] = []
    after = paths(code)
    seen, todo = {0}, [0]
    while todo:
        at = todo.pop()
        opcode, text = code[at].opcode, code[at].text
        if opcode == WAIT and "@" not in text:
            continue
        if opcode == NEXT or opcode == "EXIT" or GLOBAL.match(opcode):
            found.append(f"without a wait: {text}")
        for j in after[at]:
            if j is None:
                found.append(f"without a wait, to an unknown address: {text}")
            elif j not in seen:
                seen.add(j)
                todo.append(j)
    return found


def resources(said: str) -> dict[str, tuple[int, int, int]]:
    """The registers, bytes of spill stores and bytes of spill loads of each kernel, by name."""
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
    parser.add_argument("names", nargs="*", help="parts of file names; default: all files of the module")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a kernel does not wait")
    parser.add_argument("--registers", action="store_true", help="print registers and spills of each kernel")
    arguments = parser.parse_args()
    if shutil.which("nvcc") is None:
        print("skipped: nvcc is missing", file=sys.stderr)
        return 77
    wrong = []
    n_kernels = n_touches = 0
    for source in sources(arguments.names):
        options = FOR_90A if source.name.endswith("_hopper.cu") else FOR_90
        text, said = disassemble(source, (*options, "-Xptxas", "-v"))
        kernels = read_kernels(text)
        wrong += [f"{source.name}: {name}: {fault}" for name, code in kernels.items() for fault in faults(code)]
        touches = sum(bool(GLOBAL.match(i.opcode)) for code in kernels.values() for i in code)
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
