"""Prints what kernels that hipcc compiled take of a device: registers, LDS, scratch memory and spills.

    python tools/count_hip.py MODULE            # libggml_backend_hip.so: a table of groups of kernels
    python tools/count_hip.py MODULE --all      # every kernel
    python tools/count_hip.py MODULE --check    # fails where one cannot be launched as the backend does

Reads the notes of the code objects in the module's bundles by llvm-readelf. No device. A kernel fails the check when
its wavefronts do not have 32 lanes, or its own LDS is over 64 KiB.
"""

from __future__ import annotations

import argparse
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
LDS_MAX, LANES = 65536, 32
FIELDS = (
    "sgpr_count",
    "vgpr_count",
    "sgpr_spill_count",
    "vgpr_spill_count",
    "group_segment_fixed_size",
    "private_segment_fixed_size",
    "wavefront_size",
)


@dataclass(frozen=True)
class Kernel:
    """A kernel of one architecture, as its metadata have it; `name` is without arguments."""

    architecture: str
    name: str
    sgpr_count: int
    vgpr_count: int
    sgpr_spill_count: int
    vgpr_spill_count: int
    group_segment_fixed_size: int  # LDS
    private_segment_fixed_size: int  # scratch memory of a lane
    wavefront_size: int


def code_objects(module: bytes) -> list[tuple[str, bytes]]:
    """Target and content of each code object for a device: after the magic of a bundle come the number of entries, and
    of each entry where it begins, its size and its name."""
    found = []
    at = module.find(MAGIC)
    while at >= 0:
        (count,) = struct.unpack_from("<Q", module, at + len(MAGIC))
        place = at + len(MAGIC) + 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", module, place)
            target = module[place + 24 : place + 24 + length].decode()
            place += 24 + length
            if size and not target.startswith("host"):
                found.append((target, module[at + offset : at + offset + size]))
        at = module.find(MAGIC, at + 1)
    return found


def find_tool(name: str) -> str | None:
    """The path of a tool of LLVM: by its name, or with the version that distributions append, the newest."""
    versions = ["", *(f"-{version}" for version in range(30, 12, -1))]
    return next((path for path in (shutil.which(name + version) for version in versions) if path), None)


def read_kernels(module: Path) -> list[Kernel]:
    """All kernels of a module, but those that several files have, which count once."""
    readelf, demangle = find_tool("llvm-readelf"), find_tool("llvm-cxxfilt")
    if readelf is None or demangle is None:
        raise FileNotFoundError("llvm-readelf and llvm-cxxfilt")
    kernels = {}
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "code"
        for target, content in code_objects(module.read_bytes()):
            code.write_bytes(content)
            notes = subprocess.run([readelf, "--notes", str(code)], check=True, capture_output=True, text=True).stdout
            names = subprocess.run([demangle], input=notes, check=True, capture_output=True, text=True).stdout
            for entry in re.split(r"\n  - \.a", names)[1:]:
                numbers = {
                    field: int(found[1]) for field in FIELDS if (found := re.search(rf"\.{field}:\s+(\d+)", entry))
                }
                name = re.search(r"\.name:\s+'?(.*?)'?\n(?:    \.)", entry)
                if name is None or len(numbers) != len(FIELDS):
                    raise SystemExit(f"{module}: metadata that are not understood:\n{entry}")
                kernel = Kernel(target.rsplit("-", 1)[1], short(name[1]), **numbers)
                kernels[kernel.architecture, name[1]] = kernel
    return list(kernels.values())


def short(name: str) -> str:
    """A kernel without its return type and its parameters: `gb_gemm_exact<true, 4>`."""
    found = re.search(r"([\w:]+(?:<[^(]*>)?)\(", name.replace("(anonymous namespace)::", "").replace("(int)", ""))
    return found[1] if found else name


def row(title: str, kernels: list[Kernel]) -> str:
    def span(values: list[int]) -> str:
        low, high = min(values), max(values)
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"

    spills = sum(k.vgpr_spill_count > 0 for k in kernels)
    return (
        f"| {title} | {len(kernels)} | {span([k.vgpr_count for k in kernels])} | "
        f"{span([k.sgpr_count for k in kernels])} | {span([k.group_segment_fixed_size for k in kernels])} | "
        f"{span([k.private_segment_fixed_size for k in kernels])} | {spills} |"
    )


def wrong_with(kernel: Kernel) -> str | None:
    """Why the kernel cannot be launched; None: it can."""
    if kernel.wavefront_size != LANES:
        return f"wavefronts of {kernel.wavefront_size} lanes"
    return f"{kernel.group_segment_fixed_size} bytes of LDS" if kernel.group_segment_fixed_size > LDS_MAX else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path)
    parser.add_argument("--all", action="store_true", help="print every kernel, not groups by name")
    parser.add_argument("--check", action="store_true", help="exit with 1 where one cannot be launched")
    arguments = parser.parse_args()
    try:
        kernels = read_kernels(arguments.module)
    except FileNotFoundError as error:
        print(f"skipped: {error} missing", file=sys.stderr)
        return 77
    groups: dict[str, list[Kernel]] = {}
    for kernel in sorted(kernels, key=lambda k: (k.architecture, k.name)):
        title = kernel.name if arguments.all else kernel.name.split("<")[0]
        groups.setdefault(f"{kernel.architecture} `{title}`", []).append(kernel)
    print("| kernels | number | VGPRs | SGPRs | LDS, bytes | scratch memory of a lane, bytes | with spills |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for title, members in groups.items():
        print(row(title, members))
    for architecture in sorted({k.architecture for k in kernels}):
        print(row(f"{architecture}, all", [k for k in kernels if k.architecture == architecture]))
    wrong = [f"{k.architecture} {k.name}: {why}" for k in kernels if (why := wrong_with(k))]
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if arguments.check and (wrong or not kernels) else 0


if __name__ == "__main__":
    raise SystemExit(main())
