"""``gguf dump``: the tensors of a GGUF file, and their values."""

from __future__ import annotations

import argparse

import numpy as np

from ..._base.errors import UnsupportedError
from ..._base.text import line
from ...gguf import open as open_gguf
from ...tensor._quantize import FLOATS
from .common import add_part_argument, fitting

EXAMPLE = "MODEL.gguf 'blk.0.*' --values 4"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [-h] file [PATTERN ...] [--values [N]] [--part]"
    parser.add_argument("file", help="the GGUF file")
    parser.add_argument(
        "tensors", nargs="*", metavar="PATTERN", help="only tensors whose names match, as in a shell: blk.0.*"
    )
    parser.add_argument(
        "--values",
        type=int,
        nargs="?",
        const=20,
        default=0,
        metavar="N",
        help="show values too: all of a tensor with at most N values, the ends of others (default: 20)",
    )
    add_part_argument(parser)


def run(options: argparse.Namespace) -> int:
    with open_gguf(options.file, part=options.part) as file:
        for name in fitting(options.tensors, list(file.tensors), "PATTERN") if options.tensors else file.tensors:
            tensor = file.tensors[name]
            print(f"{line(tensor.name)} {tensor.dtype.name} {tensor.shape} {tensor.nbytes} bytes at {tensor.offset}")
            if options.values:
                try:
                    floats = tensor.dtype.is_quantized or tensor.dtype in FLOATS
                    values = tensor.dequantize() if floats else tensor.numpy()
                except UnsupportedError as why:  # more axes than an array may have
                    print(f"no values: {line(why, 200)}")
                    continue
                print(np.array2string(values, threshold=options.values, edgeitems=3))
    return 0
