"""Element formats and their NumPy dtypes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import ggml_backend as gb

PLAIN = ["float32", "float16", "float64", "int8", "int16", "int32", "int64"]


@pytest.mark.parametrize("name", PLAIN)
def test_plain_dtypes_are_numpy_dtypes(name):
    dtype = getattr(gb.dtypes, name)
    numpy = np.dtype(name)
    assert np.dtype(dtype) == numpy
    assert dtype.itemsize == numpy.itemsize
    assert dtype.block_size == 1
    assert not dtype.is_quantized
    assert np.zeros(3, dtype).dtype == numpy
    for spelling in (dtype, name, numpy, getattr(np, name), name.upper()):
        assert gb.dtypes.as_dtype(spelling) is dtype


@pytest.mark.parametrize(
    ("name", "block", "size"),
    [("q4_0", 32, 18), ("q4_1", 32, 20), ("q5_0", 32, 22), ("q5_1", 32, 24), ("q8_0", 32, 34), ("q2_k", 256, 84),
     ("q3_k", 256, 110),
     ("q4_k", 256, 144), ("q5_k", 256, 176), ("q6_k", 256, 210)],
)  # fmt: skip
def test_quantized_dtypes_have_blocks(name, block, size):
    dtype = getattr(gb.dtypes, name)
    assert (dtype.block_size, dtype.itemsize, dtype.is_quantized) == (block, size, True)
    assert dtype.row_nbytes(4 * block) == 4 * size
    with pytest.raises(gb.errors.InvalidArgumentError, match="blocks"):
        dtype.row_nbytes(block + 1)
    with pytest.raises((AttributeError, TypeError)):
        np.dtype(dtype)


def test_ggml_names_and_equality():
    assert gb.dtypes.as_dtype("f32") is gb.float32
    assert gb.dtypes.as_dtype("Q4_K") is gb.dtypes.q4_k
    assert gb.float32 == np.float32 == gb.float32
    assert gb.float32 == "f32"
    assert gb.float32 != gb.float16
    assert gb.float32 != 3
    assert len({gb.float32, gb.dtypes.as_dtype("f32"), gb.float16}) == 2
    assert repr(gb.dtypes.q8_0) == "ggml_backend.dtypes.q8_0"
    assert pickle.loads(pickle.dumps(gb.dtypes.q8_0)) is gb.dtypes.q8_0


@pytest.mark.parametrize("wrong", ["float31", np.complex64, np.bool_, object, None, 3, ">f4", float])
def test_unknown_dtypes_are_type_errors(wrong):
    with pytest.raises(TypeError, match="float32"):
        gb.dtypes.as_dtype(wrong)


def test_bfloat16_is_bits_in_numpy():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert gb.dtypes.as_dtype(ml_dtypes.bfloat16) is gb.bfloat16
    assert gb.bfloat16.numpy == np.uint16
    assert gb.bfloat16.itemsize == 2
