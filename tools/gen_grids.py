#!/usr/bin/env python3
"""Writes c/src/tensor/quant/grids.c: the codebooks of the IQ formats.

The codebooks are data of the file format, like the numbers of its types. This script reads them from the PyPI package
``gguf`` (any version from 0.10 on) and packs each row into 16 bits. Run it again only when a format with a new codebook
is added:

    pip install gguf && python tools/gen_grids.py > c/src/tensor/quant/grids.c
"""

import numpy as np
from gguf import quants

# name, class of gguf.quants
GRIDS = [
    ("iq2_xxs", quants.IQ2_XXS),
    ("iq2_xs", quants.IQ2_XS),
    ("iq2_s", quants.IQ2_S),
    ("iq3_xxs", quants.IQ3_XXS),
    ("iq3_s", quants.IQ3_S),
    ("iq1", quants.IQ1_S),
]

HEAD = """\
// grids.c - the codebooks of the IQ formats. Made by tools/gen_grids.py from the PyPI package gguf {version}; do not
// edit.
//
// A row of 8 values is 8 codes of 2 bits, a row of 4 values is 4 codes of 4 bits. The first value has the lowest bits.
// grid.c has the values of the codes. Rows ascend. The array `first` finds rows by their upper byte. In rows of 4 each
// half of this byte is one code (0 to 7): 8 cases. In rows of 8 it is two codes (0 to 2): 9 cases. If the lower half is
// case i and the upper half case j, the rows are first[8 j + i] (or 9 j + i) up to the next entry of `first`.
#ifndef GB_GRID_TABLE // a file that includes this one for tables in other memory defines their declaration
#include "tensor/quant/grid.h"
#define GB_GRID_TABLE const
#endif
"""


def rows_of(cls: type) -> np.ndarray:
    """The codebook as codes: (rows, values a row)."""
    cls.init_grid()
    values = cls.grid.reshape(cls.grid_shape)
    return np.searchsorted(np.array(cls.grid_map), values)


def packed(codes: np.ndarray) -> np.ndarray:
    bits = 16 // codes.shape[1]
    return (codes.astype(np.uint32) << (bits * np.arange(codes.shape[1], dtype=np.uint32))).sum(axis=1)


def print_table(name: str, entries: list[str]) -> None:
    print(f"\nGB_GRID_TABLE uint16_t {name}[{len(entries)}] = {{")
    for i in range(0, len(entries), 14):
        print("    " + " ".join(entries[i : i + 14]))
    print("};")


def main() -> None:
    from importlib.metadata import version

    print(HEAD.format(version=version("gguf")), end="")
    for name, cls in GRIDS:
        codes = rows_of(cls)
        rows = packed(codes)
        assert (np.diff(rows.astype(int)) > 0).all()
        print_table(f"gb_grid_rows_{name}", [f"0x{row:04x}," for row in rows])
        cases = np.arange(8) if codes.shape[1] == 4 else (np.arange(9) % 3 + 4 * (np.arange(9) // 3))
        upper = (cases[:, None] * 16 + cases[None, :]).reshape(-1)
        print_table(f"gb_grid_first_{name}", [f"{i:4}," for i in [*np.searchsorted(rows >> 8, upper), len(rows)]])


main()
