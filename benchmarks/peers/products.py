"""Products of matrices: large ones with weights of each type, and chains of small ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import ggml_backend as gb

from .sides import Run, Scope, Sides, Work

# Rows, and the two dimensions of weights between which a chain of products alternates.
SMALL = [
    (16, 16, 16), (32, 32, 32), (64, 64, 64), (128, 128, 128), (256, 256, 256), (512, 512, 512),
    (16, 256, 256), (256, 16, 16), (512, 64, 64), (64, 512, 512), (16, 512, 64), (512, 32, 512),
]  # fmt: skip
SMALL_FLOPS, SMALL_MOST = 1 << 28, 32  # of a chain, about; pairs of products at most


def int_weights(m: int, k: int, bits: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers 0 .. 2^bits - 1 in blocks of 32 with a scale each, as MatMulNBits takes them, and what they mean (zero
    in the middle)."""
    q = rng.integers(0, 1 << bits, (m, k // 32, 32), dtype=np.uint8)
    scales = ((rng.random((m, k // 32), dtype=np.float32) + 0.5) / 64).astype(np.float16).astype(np.float32)
    if bits == 8:
        q = np.maximum(q, 1)  # Q8_0 holds -127 .. 127
    packed = q if bits == 8 else q[..., ::2] | q[..., 1::2] << 4
    return packed, scales, ((q.astype(np.float32) - (1 << bits - 1)) * scales[..., None]).reshape(m, k)


def blocks_of(q: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    """The same weights as Q4_0 or Q8_0: a scale in float16, then 32 values; Q4_0 has the second half of a block in the
    upper bits."""
    d = scales.astype(np.float16)[..., None].view(np.uint8)
    if bits == 8:
        values = (q ^ 0x80).view(np.uint8)
    else:
        plain = np.stack([q & 15, q >> 4], -1).reshape(*q.shape[:2], 32)
        values = plain[..., :16] | plain[..., 16:] << 4
    return np.ascontiguousarray(np.concatenate([d, values], -1)).reshape(q.shape[0], -1)


def torch_linear(s: Sides, w: np.ndarray, x: np.ndarray, dtype: str) -> Run:
    torch = s.modules["torch"]
    a, b = torch.from_numpy(w).to(getattr(torch, dtype)), torch.from_numpy(x).to(getattr(torch, dtype))

    def run() -> Any:
        with torch.inference_mode():
            return torch.nn.functional.linear(b, a)

    return run


def products(s: Sides, scope: Scope) -> Iterator[Work]:
    rng = np.random.default_rng(0)
    m, k = (256, 512) if scope.quick else (4096, 14336)
    for n in (16,) if scope.quick else (512, 1):
        unit, x = ("GB/s" if n == 1 else "GFLOP/s"), rng.standard_normal((n, k), dtype=np.float32)
        flops = 2.0 * m * k * n
        w = rng.standard_normal((m, k), dtype=np.float32) / np.float32(k**0.5)
        wt = np.ascontiguousarray(w.T)

        yield Work(
            f"f32 m={m} k={k} n={n}", unit, w.nbytes if n == 1 else flops,
            s.graph(gb.ops.mul_mat, ((m, k), gb.float32, w), ((n, k), gb.float32, x)),
            {
                "numpy": lambda x=x, w=w: lambda: x @ w.T,
                "torch": lambda x=x, w=w, f=torch_linear: f(s, w, x, "float32"),
                "onnxruntime": lambda x=x, wt=wt: s.onnx([s.node("MatMul", ["x", "w"])], {"x": x}, {"w": wt}),
            },
            1e-4,
        )  # fmt: skip
        h = w.astype(np.float16)
        yield Work(
            f"f16 m={m} k={k} n={n}", unit, h.nbytes if n == 1 else flops,
            s.graph(gb.ops.mul_mat, ((m, k), gb.float16, h), ((n, k), gb.float32, x)),
            {"torch": lambda x=x, w=w, f=torch_linear: f(s, w, x, "float16")}, 1e-2,
        )  # fmt: skip
        bf = gb.quantize(w, gb.bfloat16).view(np.uint16)
        yield Work(
            f"bf16 m={m} k={k} n={n}", unit, bf.nbytes if n == 1 else flops,
            s.graph(gb.ops.mul_mat, ((m, k), gb.bfloat16, bf), ((n, k), gb.float32, x)),
            {"torch": lambda x=x, w=w, f=torch_linear: f(s, w, x, "bfloat16")}, 3e-2,
        )  # fmt: skip
        for bits, dtype in ((4, gb.dtypes.q4_0), (8, gb.dtypes.q8_0)):
            q, scales, meant = int_weights(m, k, bits, rng)
            blocks = blocks_of(q, scales, bits)
            assert np.abs(gb.dequantize(blocks, dtype) - meant).max() < 1e-6, (
                "the two sides do not have the same weights"
            )
            attributes = {"K": k, "N": m, "bits": bits, "block_size": 32, "accuracy_level": 4}
            parts = {"q": q, "d": scales.reshape(-1) if bits == 4 else scales.reshape(m, -1)}
            yield Work(
                f"{dtype} m={m} k={k} n={n}", unit, blocks.nbytes if n == 1 else flops,
                s.graph(gb.ops.mul_mat, ((m, k), dtype, blocks), ((n, k), gb.float32, x)),
                {"onnxruntime": lambda x=x, a=attributes,
                 p=parts: s.onnx([s.node("MatMulNBits", ["x", "q", "d"], **a)], {"x": x}, p)},
                3e-2,
            )  # fmt: skip


def small_products(s: Sides, scope: Scope) -> Iterator[Work]:
    """Each product of a chain takes the result of the one before. The figure includes the cost of a call and of
    packing operands."""
    rng = np.random.default_rng(0)
    for n, m, k in SMALL[:2] if scope.quick else SMALL:
        pairs = min(max(SMALL_FLOPS // (4 * n * m * k), 1), SMALL_MOST)
        x = rng.standard_normal((n, k), dtype=np.float32)
        w = [rng.standard_normal(shape, dtype=np.float32) / np.float32(shape[1] ** 0.5) for shape in ((m, k), (k, m))]

        def ours(x: gb.Tensor, v: gb.Tensor, w: gb.Tensor, pairs: int = pairs) -> gb.Tensor:
            for _ in range(pairs):
                x = gb.ops.mul_mat(w, gb.ops.mul_mat(v, x))
            return x

        def numpy_chain(x: np.ndarray = x, w: list[np.ndarray] = w, pairs: int = pairs) -> Run:
            def run() -> np.ndarray:
                y = x
                for _ in range(pairs):
                    y = (y @ w[0].T) @ w[1].T
                return y

            return run

        def torch_chain(x: np.ndarray = x, w: list[np.ndarray] = w, pairs: int = pairs) -> Run:
            torch = s.modules["torch"]
            first, v, u = (torch.from_numpy(a) for a in (x, *w))

            def run() -> Any:
                with torch.inference_mode():
                    y = first
                    for _ in range(pairs):
                        y = torch.nn.functional.linear(torch.nn.functional.linear(y, v), u)
                    return y

            return run

        def onnx_chain(x: np.ndarray = x, w: list[np.ndarray] = w, pairs: int = pairs) -> Run:
            names = ["x", *(f"y{i}" for i in range(1, 2 * pairs)), "y"]
            nodes = [s.node("MatMul", [names[i], "vu"[i % 2]], to_name=names[i + 1]) for i in range(2 * pairs)]
            return s.onnx(nodes, {"x": x}, {"v": np.ascontiguousarray(w[0].T), "u": np.ascontiguousarray(w[1].T)})

        yield Work(
            f"f32 m={m} k={k} n={n}, {2 * pairs} in a row", "GFLOP/s", 4.0 * pairs * m * k * n,
            s.graph(ours, *((a.shape, gb.float32, a) for a in (x, *w))),
            {"numpy": numpy_chain, "torch": torch_chain, "onnxruntime": onnx_chain}, 1e-3,
        )  # fmt: skip
