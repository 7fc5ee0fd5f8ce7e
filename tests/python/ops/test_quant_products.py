"""Products with quantized weights against float64 on the dequantized weights: batches from 1 to 70,
any number of threads, tails and strides.

Full precision has the bound of a float sum. By default the library may round activations to bytes in
groups of 32. The error is at most half a step, where a step is the largest magnitude of the group / 127. With
"f16" the remainder is rounded to bytes, too, so the bound is 254 times smaller.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

import ggml_backend as gb

pytestmark = pytest.mark.slow

FORMATS = [d.name for d in gb.dtypes.dtypes.values() if d.is_quantized and d.name not in ("q8_1", "q8_k")]
Precision = Literal["default", "f16", "f32"]
PRECISIONS: tuple[Precision, ...] = ("default", "f16", "f32")
NEED_WEIGHTS = ("iq2_xxs", "iq2_xs", "iq1_s")
THREADS = 6
ROWS = 37


def blocks_of(name: str, rows: int, k: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    x = rng.standard_normal((rows, k), np.float32) * np.exp2(rng.integers(-3, 3, (rows, 1))).astype(np.float32)
    return gb.quantize(x, name, np.ones(k, np.float32) if name in NEED_WEIGHTS else None)


def bound(weights: np.ndarray[Any, Any], x: np.ndarray[Any, Any], prec: Precision) -> np.ndarray[Any, Any]:
    w, a = np.abs(weights), np.abs(x)
    k = x.shape[-1]
    allowed = 4 * k * 2.0**-24 * (a @ w.T)
    if prec != "f32":
        steps = a.reshape(len(a), k // 32, 32).max(axis=2) / (254 if prec == "default" else 254 * 254)
        allowed += steps @ w.reshape(len(w), k // 32, 32).sum(axis=2).T * (1 + 1e-4)
    return allowed


@pytest.fixture(scope="module")
def backends() -> list[gb.Backend]:
    return [gb.Backend("CPU", n_threads=n) for n in range(1, THREADS + 1)]


def product(
    backend: gb.Backend,
    blocks: np.ndarray[Any, Any],
    name: str,
    x: np.ndarray[Any, Any],
    prec: Precision,
    padded: bool,
) -> np.ndarray[Any, Any]:
    d = gb.dtypes.as_dtype(name)
    k = x.shape[1]
    with gb.Context() as ctx:
        a = ctx.tensor((len(blocks), k), d)
        memory = ctx.tensor((len(x), k + 24 if padded else k), gb.float32)
        node = gb.ops.mul_mat(a, memory[:, 8 : 8 + k] if padded else memory, prec)
        graph = ctx.graph(node)
        ctx.allocate(backend)
        a.set(blocks)
        poison = np.full(memory.shape, np.nan, np.float32)
        poison[:, 8 if padded else 0 :][:, :k] = x
        memory.set(poison)
        assert graph.compute(backend)
        return node.numpy().copy()


@pytest.mark.parametrize("name", FORMATS)
def test_all_batches(name: str, backends: list[gb.Backend], rng: np.random.Generator) -> None:
    d = gb.dtypes.as_dtype(name)
    made: dict[int, Any] = {}
    for batch in range(1, 71):
        k = d.block_size * (1 + batch % 3) * (3 if d.block_size < 256 and batch % 2 else 1)
        blocks = made[k] = made[k] if k in made else blocks_of(name, ROWS, k, rng)
        weights = gb.dequantize(blocks, name).astype(np.float64)
        x = rng.standard_normal((batch, k), np.float32)
        prec = PRECISIONS[batch // 2 % 3]
        backend = backends[batch // 10 % THREADS] if batch % 10 == 0 else backends[batch % 2]
        got = product(backend, blocks, name, x, prec, padded=batch % 4 == 3)
        error = np.abs(got - x.astype(np.float64) @ weights.T)
        assert (error <= bound(weights, x.astype(np.float64), prec)).all(), (
            f"batch {batch}, k {k}, {prec}: off by {error.max()}"
        )


@pytest.mark.parametrize("name", FORMATS)
def test_threads_change_no_bits(name: str, backends: list[gb.Backend], rng: np.random.Generator) -> None:
    k = gb.dtypes.as_dtype(name).block_size * (2 if gb.dtypes.as_dtype(name).block_size == 256 else 7)
    blocks = blocks_of(name, 131, k, rng)
    for batch in (1, 9, 33, 130):
        x = rng.standard_normal((batch, k), np.float32)
        for prec in PRECISIONS[:2]:
            results = [product(backend, blocks, name, x, prec, padded=False) for backend in backends]
            for result in results[1:]:
                np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("name", FORMATS)
def test_invalid_scales_affect_only_their_row(name: str, backends: list[gb.Backend], rng: np.random.Generator) -> None:
    """Infinite or NaN scales do not crash, and do not affect results of other rows."""
    k = max(256, gb.dtypes.as_dtype(name).block_size)
    blocks = blocks_of(name, ROWS, k, rng)
    bad = [0, 5, 6, 20, ROWS - 1]
    for row, value in zip(bad, (0xFF, 0x7C, None, 0x7F, None), strict=True):
        blocks[row] = rng.integers(0, 256, blocks.shape[1]) if value is None else value
    good = [i for i in range(ROWS) if i not in bad]
    weights = gb.dequantize(blocks, name).astype(np.float64)[good]
    for batch in (1, 3, 40):
        x = rng.standard_normal((batch, k), np.float32)
        for backend in backends[:2]:
            got = product(backend, blocks, name, x, "default", padded=False)[:, good]
            error = np.abs(got - x.astype(np.float64) @ weights.T)
            assert (error <= bound(weights, x.astype(np.float64), "default")).all()
