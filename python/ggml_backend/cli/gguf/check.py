"""``gguf check``: whether GGUF files are valid, and all their numbers finite."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from ..._data.quantize import FLOATS, dequantize
from ..._errors import GgmlError
from ..._text.escape import line
from ..._text.terminal import Bar, fail, reason
from ...gguf import open as open_gguf

EXAMPLE = "MODEL.gguf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="file", help="the GGUF files")


def run(options: argparse.Namespace) -> int:
    """Opening checks the structure; then every number of every tensor is looked at."""
    bad = 0
    for path in options.files:
        faults = []
        try:
            with open_gguf(path) as file:
                dict(file.metadata)
                bar, done, total = Bar("checking"), 0, sum(t.nbytes for t in file.tensors.values())
                for tensor in file.tensors.values():
                    fault = _not_finite(tensor)
                    faults += [fault] if fault else []
                    done += tensor.nbytes
                    bar(done, total)
        except (GgmlError, OSError) as error:
            faults = [reason(error)]
        for fault in faults:
            fail(options.parser.prog, f"{path}: {fault}" if str(path) not in fault else fault)
        if not faults:
            print(f"{line(path)}: ok")
        bad += bool(faults)
    return 1 if bad else 0


def _not_finite(tensor: Any) -> str | None:
    if tensor.dtype.name == "float64":
        count = int((~np.isfinite(tensor.numpy())).sum())
    elif tensor.dtype.is_quantized or tensor.dtype in FLOATS:
        rows = tensor.numpy().reshape(-1, tensor.numpy().shape[-1])
        step = max(1, (1 << 22) // tensor.shape[-1])
        count = sum(
            int((~np.isfinite(dequantize(rows[i : i + step], tensor.dtype))).sum()) for i in range(0, len(rows), step)
        )
    else:
        return None
    return f"tensor {tensor.name!r} has {count} values that are infinite or no numbers" if count else None
