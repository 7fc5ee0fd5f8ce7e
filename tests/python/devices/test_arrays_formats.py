"""ARRAY unpacks quantized formats bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from array_devices import LIBRARIES
from ggml_backend.devices._array.device import opened
from ggml_backend.devices._array.formats import FORMATS, Unpacking

QUANTIZED = [d.name for d in gb.dtypes.dtypes.values() if d.is_quantized]


def test_all_quantized_formats_have_an_unpacker():
    assert sorted(FORMATS) == sorted(QUANTIZED)


def unpacked(library: str, blocks: np.ndarray, dtype: gb.dtypes.DType) -> np.ndarray:
    array = opened(library, None, None, False, False)
    with array.running():
        return np.asarray(Unpacking(array, dtype)(array.adopt(blocks, dtype)))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", QUANTIZED)
def test_any_bytes_give_the_bits_of_dequantize(library, name, rng):
    dtype = gb.dtypes.as_dtype(name)
    blocks = rng.integers(0, 256, (3, 40, 5 * dtype.itemsize), dtype=np.uint8)
    want, got = gb.dequantize(blocks, dtype), unpacked(library, blocks, dtype)
    assert got.dtype == np.float32 and got.shape == want.shape
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~number)
    np.testing.assert_array_equal(got.view(np.uint32)[number], want.view(np.uint32)[number])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["q4_0", "q6_k", "iq1_m", "nvfp4"])
def test_rows_with_gaps(library, name, rng):
    dtype = gb.dtypes.as_dtype(name)
    wide = rng.integers(0, 256, (6, 3 * dtype.itemsize), dtype=np.uint8)
    part = wide[::2, : 2 * dtype.itemsize]
    np.testing.assert_array_equal(unpacked(library, part, dtype), gb.dequantize(part, dtype))


@pytest.mark.parametrize("name", ["iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1"])
def test_codebooks_have_a_row_for_each_index(name):
    from ggml_backend.devices._array.formats import codebook

    rows = {"iq2_xxs": 256, "iq2_xs": 512, "iq2_s": 1024, "iq3_xxs": 256, "iq3_s": 512, "iq1": 2048}[name]
    book = codebook(name)
    assert book.shape == (rows, 4 if name.startswith("iq3") else 8)
    assert len(np.unique(book, axis=0)) == rows
