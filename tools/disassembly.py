"""Compiles and disassembles CUDA kernels, and finds their loops, for ``check_waits.py``, ``count_sass.py`` and
``count_hopper.py``.

The module needs nvcc, and nvdisasm from the toolkit or from the wheel ``nvidia-cuda-nvdisasm`` in this Python's
environment. It needs no GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOR_90 = ("-arch=sm_90",)
FOR_90A = ("-gencode", "arch=compute_90a,code=sm_90a", "-DGB_HOPPER_CODE")

_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_LABEL = re.compile(r"([.$\w]+):\s*$")
_TARGET = re.compile(r"`\(([.$\w]+)\)")
_SECTION = "//--------------------- .text."


@dataclass(frozen=True)
class Instruction:
    """An instruction. ``target`` is the index to which it jumps, if that is in the same kernel."""

    opcode: str
    text: str
    target: int | None

    @property
    def is_conditional(self) -> bool:
        return "@" in self.text or re.search(r" !?U?P\d", self.text) is not None


def find_disassembler() -> str:
    """The path of nvdisasm."""
    found = shutil.which("nvdisasm")
    if found is None:
        folder = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
        found = next((str(path) for path in sorted(folder.glob("**/bin/nvdisasm"))), None)
    if found is None:
        raise SystemExit("nvdisasm is missing: pip install nvidia-cuda-nvdisasm")
    return found


def disassemble(source: Path, options: tuple[str, ...]) -> tuple[str, str]:
    """Compiles a file as the module's build does. Returns its disassembly, and the messages of the compiler."""
    include = [f"-I{ROOT / path}" for path in ("c/src", "c/include")]
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "code.cubin"
        command = ["nvcc", "-std=c++17", "-O3", "-Xcudafe", "--diag_suppress=177", *options, *include]
        said = subprocess.run(
            [*command, "-cubin", "-o", str(code), str(source)], check=True, capture_output=True, text=True
        )
        shown = subprocess.run([find_disassembler(), "-c", str(code)], check=True, capture_output=True, text=True)
    return shown.stdout, said.stdout + said.stderr


def disassemble_kernels(headers: list[str], kernels: list[str], options: tuple[str, ...]) -> tuple[str, str]:
    """Does the same for kernels from headers of c/src/cuda, each written as ``(type) name<arguments>``."""
    lines = [f'#include "cuda/{header}"' for header in headers]
    lines += ["const void * kernels[] = {", *[f"    (const void *) {kernel}," for kernel in kernels], "};"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.cu"
        source.write_text("\n".join(lines) + "\n")
        return disassemble(source, options)


def read_kernels(disassembly: str) -> dict[str, list[Instruction]]:
    """The instructions of each kernel, by its mangled name."""
    kernels = {}
    for section in disassembly.split(_SECTION)[1:]:
        name, _, body = section.partition("\n")
        kernels[name.split()[0]] = _read_code(body.splitlines())
    return kernels


def _read_code(lines: list[str]) -> list[Instruction]:
    found: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in lines:
        if instruction := _INSTRUCTION.match(line):
            found.append((instruction.group(1), line.strip()))
        elif label := _LABEL.match(line):
            labels[label.group(1)] = len(found)
    code = []
    for opcode, text in found:
        target = _TARGET.search(text)
        code.append(Instruction(opcode, text, labels.get(target.group(1)) if target else None))
    return code


def numbers_of_types() -> dict[str, int]:
    """The number of each GGML_TYPE_*, by its name without the prefix. Mangled names contain these numbers."""
    header = (ROOT / "c/include/ggml.h").read_text()
    return {name: int(value) for name, value in re.findall(r"GGML_TYPE_(\w+)\s*=\s*(\d+)", header)}


# ---- loops -----------------------------------------------------------------------------------------------------------


def hot_paths(code: list[Instruction]) -> list[list[int]]:
    """The instructions that may follow each instruction, without BRA.DIV, which a warp takes only after its lanes have
    diverged."""
    after = []
    for i, instruction in enumerate(code):
        ends = instruction.opcode in ("BRA", "EXIT", "RET.REL.NODEC")
        always = ends and "@" not in instruction.text and " UP" not in instruction.text
        following = [] if always else [i + 1]
        if instruction.opcode == "BRA" and instruction.target is not None:
            following.append(instruction.target)
        after.append([j for j in following if j < len(code)])
    return after


def dominators(after: list[list[int]]) -> list[int]:
    """For each instruction, the set of instructions on every path to it, as bits. 0: no path leads there."""
    before: list[list[int]] = [[] for _ in after]
    for i, following in enumerate(after):
        for j in following:
            before[j].append(i)
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
    """The instructions of each natural loop."""
    dominating = dominators(after)
    before: list[list[int]] = [[] for _ in after]
    for i, following in enumerate(after):
        for j in following:
            before[j].append(i)
    loops: dict[int, set[int]] = {}
    for i, following in enumerate(after):
        for head in following:
            if dominating[i] >> head & 1:
                body = loops.setdefault(head, {head})
                todo = [i]
                while todo:
                    at = todo.pop()
                    if at not in body and dominating[at]:
                        body.add(at)
                        todo += before[at]
    return list(loops.values())


def opcode_of(text: str) -> str:
    instruction = _INSTRUCTION.match(text)
    assert instruction is not None, text
    return instruction.group(1)


def texts(code: list[Instruction], indices: set[int]) -> list[str]:
    """Instructions as text, without NOP."""
    return [code[i].text for i in sorted(indices) if code[i].opcode != "NOP"]


def shortest_path(code: list[Instruction], loop: list[str], all_of: tuple[str, ...]) -> int:
    """The smallest number of instructions of an iteration that has all instructions of the kinds ``all_of``. The path
    excludes code for edges, and code that runs once in several iterations."""
    after = hot_paths(code)
    inside = {i for i, instruction in enumerate(code) if instruction.text in set(loop) or instruction.opcode == "NOP"}
    dominating = dominators(after)
    head = next(i for i in sorted(inside) if all(dominating[j] >> i & 1 for j in inside if code[j].opcode != "NOP"))
    best: dict[int, tuple[int, int]] = {}  # from here to the head: products, and minus the number of instructions

    todo = [head]
    while todo:
        i = todo[-1]
        following = [j for j in after[i] if j != head and j in inside and not dominating[i] >> j & 1]
        missing = [j for j in following if j not in best]
        if missing:
            todo += missing
            continue
        found = [best[j] for j in following] + ([(0, 0)] if head in after[i] else [])
        products, less = max(found, default=(-1, 0))
        own = code[i].opcode.startswith(all_of)
        best[todo.pop()] = (products + own if products >= 0 else -1, less - (code[i].opcode != "NOP"))
    return -best[head][1]
