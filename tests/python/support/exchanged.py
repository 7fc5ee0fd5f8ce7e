"""Dtypes, shapes and numbers that all array libraries can exchange."""

from __future__ import annotations

import numpy as np

DTYPES = ["float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64"]
SHAPES = [(), (1,), (5,), (2, 3), (2, 3, 4, 5), (0,), (2, 0, 3)]


def numbers(shape):
    """Numbers from -20 to 79, exact in every dtype of ``DTYPES``."""
    return (np.arange(int(np.prod(shape))) % 100 - 20).reshape(shape)
