"""``gguf info``: keys, values and a summary of the tensors of a GGUF file."""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

from ..._base.terminal import print_json
from ..._base.text import count, line
from ...gguf import GGUFFile, NestedArray
from ...gguf import open as open_gguf
from .common import add_part_argument, byte_count

EXAMPLE = "MODEL.gguf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="the GGUF file")
    parser.add_argument("--json", action="store_true", help="print everything but the data, as JSON")
    add_part_argument(parser)


def _plain(value: Any, kind: str) -> Any:
    """A metadata value for JSON. float32 values get the fewest digits that identify them, as
    1e-05."""
    if isinstance(value, NestedArray):
        return str(value)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(v, kind) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return float(str(np.float32(value))) if kind in ("f32", "arr[f32]") else value


def _short(value: Any, kind: str) -> str:
    if isinstance(value, (list, np.ndarray)):
        head = ", ".join(repr(_plain(v, kind)) for v in value[:4])
        return f"[{head}{', ...' if len(value) > 4 else ''}] ({len(value)})"
    text = repr(_plain(value, kind) if isinstance(value, float) and math.isfinite(value) else value)
    return text if len(text) <= 100 else f"{text[:100]}... ({len(value)} characters)"


def _summary(file: GGUFFile) -> dict[str, Any]:
    by_type: dict[str, dict[str, int]] = {}
    for tensor in file.tensors.values():
        row = by_type.setdefault(tensor.dtype.name, {"tensors": 0, "elements": 0, "bytes": 0})
        row["tensors"] += 1
        row["elements"] += tensor.size
        row["bytes"] += tensor.nbytes
    return {
        "file": file.name, "version": file.version, "alignment": file.alignment, "parts": file.n_parts,
        "bytes": file.nbytes,
        "keys": len(file.metadata), "tensors": len(file.tensors), "types": by_type,
    }  # fmt: skip


def run(options: argparse.Namespace) -> int:
    with open_gguf(options.file, part=options.part) as file:
        summary = _summary(file)
        if options.json:
            summary["metadata"] = {
                k: {"type": file.metadata.type(k), "value": _plain(v, file.metadata.type(k))}
                for k, v in file.metadata.items()
            }
            summary["tensor list"] = [
                {"name": t.name, "dtype": t.dtype.name, "shape": list(t.shape), "bytes": t.nbytes, "offset": t.offset}
                for t in file.tensors.values()
            ]
            print_json(summary)
            return 0
        sizes = f"{byte_count(file.nbytes)}, {count(len(file.metadata), 'key')}, {count(len(file.tensors), 'tensor')}"
        print(f"{line(file.name)}: GGUF version {file.version}, {sizes}")
        for name, row in summary["types"].items():
            size = byte_count(row["bytes"])
            noun = "tensor" if row["tensors"] == 1 else "tensors"
            print(f"  {name:<10} {row['tensors']:>5} {noun:<7} {row['elements']:>14,} elements {size:>12}")
        for key, value in file.metadata.items():
            kind = file.metadata.type(key)
            print(f"{line(key)} ({kind}) = {_short(value, kind)}")
    return 0
