"""Attention: many queries with each kind of mask, few queries to a cache, and heads that share keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import ggml_backend as gb

from .sides import COMPILED, Run, Scope, Sides, Work


@dataclass
class Shape:
    queries: int
    keys: int
    heads: int
    key_heads: int  # heads / key_heads heads of queries share one
    head_size: int
    mask: str  # "no mask", "causal", "scattered -inf", "slopes"

    def __str__(self) -> str:
        shared = f" on {self.key_heads}" if self.key_heads < self.heads else ""
        return f"attention {self.queries} to {self.keys}, {self.heads} heads{shared} of {self.head_size}, {self.mask}"


SHAPES = [
    *(Shape(512, 512, 32, 32, 128, mask) for mask in ("no mask", "causal", "scattered -inf", "slopes")),
    Shape(512, 512, 32, 8, 128, "causal"),
    Shape(128, 128, 12, 12, 32, "no mask"),
    *(Shape(queries, 4096, 32, 32, 128, "no mask") for queries in (1, 4)),
    *(Shape(queries, 4096, 32, 8, 128, "no mask") for queries in (1, 4)),
]
QUICK = [Shape(16, 32, 2, 2, 64, "scattered -inf"), Shape(2, 32, 4, 2, 64, "no mask")]


def mask_of(shape: Shape, rng: np.random.Generator) -> np.ndarray | None:
    between = np.arange(shape.keys) - np.arange(shape.queries)[:, None] - (shape.keys - shape.queries)
    masks = {
        "no mask": lambda: None,
        "causal": lambda: np.where(between > 0, -np.inf, 0).astype(np.float32),
        "scattered -inf": lambda: np.where(rng.random(between.shape) < 0.1, -np.inf, 0).astype(np.float32),
        "slopes": lambda: (-0.1 * np.abs(between)).astype(np.float32),
    }
    return masks[shape.mask]()


def attention(s: Sides, scope: Scope) -> Iterator[Work]:
    rng = np.random.default_rng(0)
    for shape in QUICK if scope.quick else SHAPES:
        scale = shape.head_size**-0.5
        q = rng.standard_normal((shape.heads, shape.queries, shape.head_size), dtype=np.float32)
        k, v = (rng.standard_normal((shape.key_heads, shape.keys, shape.head_size), dtype=np.float32) for _ in range(2))
        mask = mask_of(shape, rng)
        vt, kt = np.ascontiguousarray(v.transpose(0, 2, 1)), np.ascontiguousarray(k.transpose(0, 2, 1))
        masks = [] if mask is None else [mask]

        def ours(q: gb.Tensor, k: gb.Tensor, vt: gb.Tensor, *m: gb.Tensor, scale: float = scale) -> gb.Tensor:
            return gb.ops.mul_mat(vt, gb.ops.soft_max(gb.ops.mul_mat(k, q), *(m or (None,)), scale))

        def torch_attention(
            parts: tuple[np.ndarray, ...] = (q, k, v, *(m[None] for m in masks)),
            grouped: bool = shape.key_heads < shape.heads, causal: bool = shape.mask == "causal",
            *, compiled: bool = False,
        ) -> Run:  # fmt: skip
            t = s.modules["torch"]
            tensors = [t.from_numpy(x)[None] for x in parts]
            query, key, value = tensors[:3]
            mask = tensors[3] if len(tensors) > 3 and not causal else None  # its own option for causal masks is faster

            def attend() -> Run:
                return t.nn.functional.scaled_dot_product_attention(
                    query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=grouped
                )

            each = t.compile(attend) if compiled else attend

            def compute() -> Run:
                with t.inference_mode():
                    return each()[0]

            return compute

        def onnx_attention(
            shape: Shape = shape, q: np.ndarray = q, kt: np.ndarray = kt, v: np.ndarray = v,
            mask: np.ndarray | None = mask, scale: float = scale,
        ) -> Run:  # fmt: skip
            times = shape.heads // shape.key_heads
            kt, v = np.repeat(kt, times, 0), np.repeat(v, times, 0)
            masked = [] if mask is None else [s.node("Add", ["scaled", "mask"], to_name="masked")]
            nodes = [
                s.node("MatMul", ["q", "kt"], to_name="scores"), s.node("Mul", ["scores", "scale"], to_name="scaled"),
                *masked, s.node("Softmax", ["masked" if masked else "scaled"], to_name="probs"),
                s.node("MatMul", ["probs", "v"]),
            ]  # fmt: skip
            given = {"q": q, "kt": kt, "v": v} | ({} if mask is None else {"mask": mask})
            return s.onnx(nodes, given, {"scale": np.array(scale, np.float32)})

        flops = 4.0 * shape.queries * shape.keys * shape.head_size * shape.heads
        run = s.graph(ours, *((x.shape, gb.float32, x) for x in (q, k, vt, *masks)))
        yield Work(
            str(shape), "GFLOP/s", flops, run,
            {"torch": torch_attention, COMPILED: lambda f=torch_attention: f(compiled=True),
             "onnxruntime": onnx_attention}, 1e-3,
        )  # fmt: skip
