#!/usr/bin/env python3
"""Compares two files of sentence vectors: compare_embeddings.py EXPECTED.npy GOT.npy [LEAST]

Prints the smallest cosine of two rows. Exits with 1 if it is below LEAST (default 0.9999) or NaN, or if the
files differ in shape.
"""

from __future__ import annotations

import sys

import numpy as np


def main(arguments: list[str]) -> int:
    expected, got = np.load(arguments[0]), np.load(arguments[1])
    least = float(arguments[2]) if len(arguments) > 2 else 0.9999
    if expected.shape != got.shape:
        print(f"{arguments[1]}: shape {got.shape}, expected {expected.shape}")
        return 1
    cosine = (expected * got).sum(-1) / np.linalg.norm(expected, axis=-1) / np.linalg.norm(got, axis=-1)
    smallest = float(cosine.min())
    print(f"{arguments[1]}: cosine to {arguments[0]} at least {smallest:.7f}")
    return int(not smallest >= least)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
