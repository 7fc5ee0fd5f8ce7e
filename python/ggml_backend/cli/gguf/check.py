"""``gguf check``: checks that GGUF files are valid and that all their numbers are finite."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from ..._base.errors import GgmlError
from ..._base.terminal import Bar, fail, reason
from ..._base.text import first_of, line
from ...gguf import UnknownType
from ...gguf import open as open_gguf
from ...tensor._quantize import dequantize
from .common import add_part_argument, has_floats

EXAMPLE = "MODEL.gguf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="file", help="the GGUF files")
    add_part_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Opens the files, which checks their structure, then checks each number of each tensor."""
    bad = 0
    for path in options.files:
        faults, unknown = [], []
        try:
            with open_gguf(path, part=options.part) as file:
                dict(file.metadata)
                bar, done, total = Bar("checking"), 0, sum(t.nbytes for t in file.tensors.values())
                for tensor in file.tensors.values():
                    if isinstance(tensor.dtype, UnknownType):
                        unknown.append(f"{line(tensor.name)} ({tensor.dtype.name})")
                    fault = _not_finite(tensor)
                    faults += [fault] if fault else []
                    done += tensor.nbytes
                    bar(done, total)
        except (GgmlError, OSError) as error:
            faults = [reason(error)]
        for fault in faults:
            fail(options.parser.prog, f"{path}: {fault}" if str(path) not in fault else fault)
        if not faults:
            print(f"{line(path)}: ok{_but(unknown)}")
        bad += bool(faults)
    return 1 if bad else 0


def _but(unknown: list[str]) -> str:
    """The end of a line that names unchecked tensors: values of unknown types cannot be read."""
    if not unknown:
        return ""
    return f", but the values of tensors of unknown types were not checked: {first_of(unknown, 3)}"


def _not_finite(tensor: Any) -> str | None:
    if not has_floats(tensor.dtype) or tensor.size == 0:
        return None
    n = tensor.shape[-1] if tensor.shape else 1
    rows = tensor.data.reshape(-1, tensor.dtype.row_nbytes(n))  # of bytes: NumPy has fewer axes than files
    step = max(1, (1 << 22) // n)
    parts = (rows[i : i + step] for i in range(0, len(rows), step))
    if tensor.dtype.name == "float64":
        count = sum(int((~np.isfinite(np.frombuffer(part, np.float64))).sum()) for part in parts)
    else:
        count = sum(int((~np.isfinite(dequantize(part, tensor.dtype))).sum()) for part in parts)
    return f"tensor {tensor.name!r} has {count} values that are infinite or no numbers" if count else None
