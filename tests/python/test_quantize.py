"""quantize and dequantize on arrays, against the ``gguf`` package where it has the format."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

import ggml_backend as gb

QUANTIZED = [d for d in (getattr(gb, n) for n in gb.__all__ if n[0] in "qitmn" and isinstance(getattr(gb, n), gb.DType)) if d.is_quantized]
NEEDS_IMPORTANCE = {"iq2_xxs", "iq2_xs", "iq1_s"}
EXACT = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bfloat16", "tq1_0", "tq2_0", "mxfp4"]


def names(dtypes: list[gb.DType]) -> list[str]:
    return [d.name for d in dtypes]


def reference(name: str) -> tuple[gguf.GGMLQuantizationType, Any]:
    kind = gguf.GGMLQuantizationType(gb.as_dtype(name).id)
    return kind, gguf.quants


def importance(name: str, n: int) -> np.ndarray | None:
    return np.ones(n, np.float32) if name in NEEDS_IMPORTANCE else None


def random_blocks(name: str, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Any bytes, but with scales that are numbers: half floats are made small and finite."""
    d = gb.as_dtype(name)
    x = rng.standard_normal((rows, 8 * d.block_size)).astype(np.float32)
    good = gb.quantize(x, name, importance(name, x.shape[-1]))
    noise = rng.integers(0, 256, good.shape, np.uint8)
    blocks = noise.reshape(-1, d.itemsize)
    whole = good.reshape(-1, d.itemsize)
    where = {"q2_k": (80, 84), "q3_k": (108, 110), "q6_k": (208, 210), "iq1_m": (48, 56), "tq1_0": (52, 54), "tq2_0": (64, 66), "mxfp4": (0, 1), "nvfp4": (0, 0)}
    start, stop = where.get(name, (0, 4 if name in ("q4_1", "q5_1", "q4_k", "q5_k", "q8_1", "q8_k") else 2))
    blocks[:, start:stop] = whole[:, start:stop]
    if name == "q8_1":
        blocks[:, :8] = whole[:, :8]
    return blocks.reshape(good.shape)


def test_every_format_of_the_package_is_here() -> None:
    assert {"q4_0", "q8_1", "q2_k", "q6_k", "iq2_xxs", "iq4_xs", "iq1_m", "tq2_0", "mxfp4", "nvfp4"} <= set(names(QUANTIZED))
    assert len(QUANTIZED) == 25


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("shape", [(256,), (3, 512), (2, 1, 5, 256), (700, 256)])
def test_quantized_bytes_are_those_of_the_package(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> None:
    kind, package = reference(name)
    for array in (rng.standard_normal(shape), rng.standard_normal(shape) * 1e-6, np.zeros(shape), rng.integers(-3, 4, shape) * 0.5):
        x = array.astype(np.float32)
        ours = gb.quantize(x, name)
        expected = package.quantize(x, kind)
        assert ours.dtype == np.uint8
        assert ours.shape == expected.shape
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("name", names(QUANTIZED))
def test_dequantized_values_are_those_of_the_package(rng: np.random.Generator, name: str) -> None:
    kind, package = reference(name)
    blocks = random_blocks(name, 6, rng)
    ours = gb.dequantize(blocks, name)
    try:
        expected = package.dequantize(blocks, kind)
    except NotImplementedError:
        assert name in ("q8_1", "q8_k")
        return
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("name", names(QUANTIZED))
def test_any_bytes_are_blocks(rng: np.random.Generator, name: str) -> None:
    d = gb.as_dtype(name)
    for row in (rng.integers(0, 256, (40, 4 * d.itemsize), np.uint8), np.full((1, d.itemsize), 255, np.uint8), np.zeros((1, d.itemsize), np.uint8)):
        assert gb.dequantize(row, name).shape == (len(row), row.shape[1] // d.itemsize * d.block_size)


@pytest.mark.parametrize("name", names(QUANTIZED))
def test_threads_and_shapes_do_not_matter(rng: np.random.Generator, name: str) -> None:
    x = rng.standard_normal((17, 2, 1280), np.float32)
    weights = importance(name, 1280)
    whole = gb.quantize(x, name, weights, n_threads=4)
    np.testing.assert_array_equal(whole, gb.quantize(x, name, weights, n_threads=1))
    np.testing.assert_array_equal(whole[3, 1], gb.quantize(x[3, 1], name, weights))
    np.testing.assert_array_equal(whole[:, ::-1], gb.quantize(x[:, ::-1], name, weights))
    floats = gb.dequantize(whole, name, n_threads=3)
    np.testing.assert_array_equal(floats[5:7], gb.dequantize(whole[5:7], name, n_threads=1))
    np.testing.assert_array_equal(floats[:, :1], gb.dequantize(whole[:, :1], name))


@pytest.mark.parametrize("name", [n for n in names(QUANTIZED) if n not in ("q8_0", "q8_1", "q8_k", "tq1_0", "tq2_0", "mxfp4")])
def test_importance_lowers_the_weighted_error(rng: np.random.Generator, name: str) -> None:
    x = rng.standard_normal((32, 1024), np.float32)
    weights = np.exp(2 * rng.standard_normal(1024)).astype(np.float32)

    def error(blocks: np.ndarray) -> float:
        return float((weights * (gb.dequantize(blocks, name) - x) ** 2).mean())

    plain = gb.quantize(x, name, np.ones(1024) if name in NEEDS_IMPORTANCE else None)
    assert error(gb.quantize(x, name, weights)) < error(plain)


def test_importance_of_each_matrix(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 8, 512), np.float32)
    weights = np.exp(rng.standard_normal((3, 512))).astype(np.float32)
    whole = gb.quantize(x, "q4_k", weights)
    for i in range(3):
        np.testing.assert_array_equal(whole[i], gb.quantize(x[i], "q4_k", weights[i]))
    np.testing.assert_array_equal(gb.quantize(x, "q4_k", weights[0])[2], gb.quantize(x[2], "q4_k", weights[0]))


def test_more_bits_are_better(rng: np.random.Generator) -> None:
    x = rng.standard_normal((64, 1024), np.float32)
    errors = [float(((gb.dequantize(gb.quantize(x, n), n) - x) ** 2).mean()) for n in ("q8_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k")]
    assert errors == sorted(errors)
    assert errors[0] < 1e-4 < errors[-1] < 0.15


def test_plain_formats(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 5)).astype(np.float32)
    assert gb.quantize(x, "f16").dtype == np.float16
    np.testing.assert_array_equal(gb.quantize(x, gb.float16), x.astype(np.float16))
    np.testing.assert_array_equal(gb.dequantize(x.astype(np.float16), "f16"), x.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(gb.dequantize(x, "f32"), x)
    bits = gb.quantize(x, gb.bfloat16)
    assert bits.shape == (3, 10)
    np.testing.assert_array_equal(gb.dequantize(bits, gb.bfloat16), gb.dequantize(bits.view(np.uint16), gb.bfloat16))


def test_what_is_taken() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.linspace(-2, 2, 64)
    expected = gb.quantize(x.astype(np.float32), "q8_0")
    np.testing.assert_array_equal(gb.quantize(x, "q8_0"), expected)
    np.testing.assert_array_equal(gb.quantize(x.tolist(), "q8_0"), expected)
    for kind in (np.float16, ml_dtypes.bfloat16):
        np.testing.assert_array_equal(gb.quantize(x.astype(kind), "q8_0"), gb.quantize(x.astype(kind).astype(np.float32), "q8_0"))
    assert gb.quantize(np.zeros((0, 64), np.float32), "q8_0").shape == (0, 68)
    assert gb.dequantize(np.zeros((0, 68), np.uint8), "q8_0").shape == (0, 64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gb.quantize(np.zeros(31, np.float32), "q4_0"), "whole blocks of 32"),
        (lambda: gb.quantize(np.zeros(32, np.int32), "q4_0"), "int32"),
        (lambda: gb.quantize(np.float32(1), "q4_0"), "rows"),
        (lambda: gb.quantize(np.zeros(32, np.float32), "i32"), "int32"),
        (lambda: gb.quantize(np.zeros(256, np.float32), "iq2_xs"), "importance matrix"),
        (lambda: gb.quantize(np.zeros(256, np.float32), "q4_k", np.ones(255)), "importance of shape"),
        (lambda: gb.quantize(np.zeros(256, np.float32), "q4_k", -np.ones(256)), "not negative"),
        (lambda: gb.quantize(np.zeros(256, np.float32), "q4_k", np.full(256, np.nan)), "finite"),
        (lambda: gb.quantize(np.zeros(32, np.float32), "q4_0", n_threads=0), "n_threads"),
        (lambda: gb.dequantize(np.zeros(17, np.uint8), "q4_0"), "whole blocks of 18"),
        (lambda: gb.dequantize(np.zeros(18, np.float32), "q4_0"), "uint8"),
        (lambda: gb.dequantize(np.zeros(4, np.uint8), "i32"), "int32"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises((gb.InvalidArgumentError, gb.UnsupportedError), match=message):
        call()
    with pytest.raises(TypeError):
        gb.quantize(np.zeros(32, np.float32), "q99")


@pytest.mark.parametrize("name", ["q4_0", "q6_k", "iq4_xs", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("device", ["CPU", "SIM"])
def test_set_quantizes_on_the_way_in(rng: np.random.Generator, name: str, device: str) -> None:
    x = rng.standard_normal((3, 256))
    with gb.Context() as ctx:
        tensor = ctx.tensor(x.shape, name)
        ctx.allocate(gb.Backend(device))
        tensor.set(x, quantize=True)
        np.testing.assert_array_equal(gb.dequantize(tensor.numpy(), name), gb.dequantize(gb.quantize(x, name), name))
        with pytest.raises(gb.InvalidArgumentError, match="shape"):
            tensor.set(x[0], quantize=True)
        if name == "q4_0":
            with pytest.raises(gb.InvalidArgumentError):
                tensor.set(x)


@pytest.mark.parametrize(
    ("asked", "n", "given"),
    [("q4_k", 384, "q5_0"), ("q5_k", 384, "q5_1"), ("q6_k", 384, "q8_0"), ("q3_k", 384, "iq4_nl"), ("iq2_xs", 384, "iq4_nl"), ("q4_k", 512, "q4_k"),
     ("q8_0", 384, "q8_0"), ("q8_0", 33, "float16"), ("tq1_0", 64, "iq4_nl")],
)  # fmt: skip
def test_fallback(asked: str, n: int, given: str) -> None:
    assert gb.gguf.fallback_dtype(asked, n).name == given
