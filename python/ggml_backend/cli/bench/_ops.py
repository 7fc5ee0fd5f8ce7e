"""Operators on rows, conversions, copies and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from ... import ops
from ...backend.backend import Backend
from ...dtypes import DTypeLike, bfloat16, dtypes, float16, float32, int32
from ...sched.alloc import GraphAllocator
from ...tensor.context import Context
from ...tensor.tensor import Tensor
from ._measure import Case

__all__ = ["op_cases"]

Build = Callable[..., Tensor]


class Bench:
    """Owns the contexts and arrays of the cases."""

    def __init__(self, backend: Backend, stack: ExitStack) -> None:
        self.backend, self.stack = backend, stack
        self.rng = np.random.default_rng(0)

    def compute(
        self, build: Build, *inputs: tuple[tuple[int, ...], DTypeLike, Any]
    ) -> tuple[Callable[[], Any], Tensor]:
        """A case that computes one chain. inputs: (shape, dtype, values); None: random floats"""
        ctx = self.stack.enter_context(Context())
        sources = [ctx.tensor(shape, dtype, name=f"x{i}") for i, (shape, dtype, _) in enumerate(inputs)]
        self.stack.enter_context(ctx.allocate(self.backend))
        result = build(*sources)
        graph = ctx.graph(result)
        # computes results in place where possible
        allocator = self.stack.enter_context(GraphAllocator(self.backend))
        allocator.allocate(graph)
        for tensor, (shape, _, values) in zip(sources, inputs, strict=True):
            tensor.set(self.rng.standard_normal(shape, dtype=np.float32) if values is None else values)
        return lambda: graph.compute(self.backend), result


def _rows(bench: Bench, rows: int, columns: int) -> Iterator[Case]:
    """Operators on rows. Each operand and the result count once as memory."""
    a: tuple[tuple[int, ...], DTypeLike, Any] = ((rows, columns), float32, None)
    row: tuple[tuple[int, ...], DTypeLike, Any] = ((columns,), float32, None)
    index: tuple[tuple[int, ...], DTypeLike, Any] = ((rows,), int32, (np.arange(rows) * 77 % rows).astype(np.int32))
    n, head = rows * columns, min(128, columns)
    third = (rows, columns // head, head)

    def typed(dtype: DTypeLike, size: float) -> Iterator[Case]:
        name = dtypes[str(dtype)].name
        yield case(f"float32 to {name}", lambda x: ops.cast(x, dtype), 4 + size, a)
        if str(dtype) in ("float16", "bfloat16"):
            values = (bench.rng.integers(0, 1 << 12, (rows, columns)) << 2).astype(np.uint16)
            values = values.view(np.float16) if str(dtype) == "float16" else values
            yield case(f"{name} to float32", lambda x: ops.cast(x, float32), 4 + size, ((rows, columns), dtype, values))
        else:
            block = dtypes[str(dtype)]
            values = np.zeros((rows, block.row_nbytes(columns)), np.uint8)
            yield case(f"{name} to float32", lambda x: ops.cast(x, float32), 4 + size, ((rows, columns), dtype, values))

    def case(name: str, build: Build, bytes_each: float, *inputs: Any) -> Case:
        run, _ = bench.compute(build, *inputs)
        traffic: Any = "read" if bytes_each == 4 else "copy"
        return Case(
            f"{name} [{rows} x {columns}]", "ops", "GB/s", bytes_each * n, run, memory=bytes_each * n, traffic=traffic
        )

    yield case("add", lambda x, y: x + y, 12, a, a)
    yield case("add a row", lambda x, y: x + y, 8, a, row)
    yield case("mul", lambda x, y: x * y, 12, a, a)
    yield case("scale", lambda x: x * 0.5, 8, a)
    for name in ("relu", "silu", "gelu", "gelu_quick", "gelu_erf", "tanh", "exp", "sin"):
        yield case(name, getattr(ops, name), 8, a)
    yield case("norm", lambda x: ops.norm(x), 8, a)
    yield case("norm, weight, bias", lambda x, w, b: ops.norm(x) * w + b, 8, a, row, row)
    yield case("rms_norm", lambda x: ops.rms_norm(x), 8, a)
    yield case("rms_norm, weight", lambda x, w: ops.rms_norm(x) * w, 8, a, row)
    yield case("soft_max", lambda x: ops.soft_max(x), 8, a)
    yield case("soft_max, scale, mask", lambda x, m: ops.soft_max(x, m, 0.1), 12, a, a)
    for name in ("sum_rows", "mean", "argmax"):
        yield case(name, getattr(ops, name), 4, a)
    yield case("rope", lambda x, p: ops.rope(x.reshape(*third), p), 8, a, index)
    yield case("get_rows", ops.get_rows, 8, a, index)
    yield case("transposing copy", lambda x: ops.cont(x.T), 8, a)
    yield case("permuting copy", lambda x: ops.cont(x.reshape(*third).transpose(1, 0, 2)), 8, a)
    for dtype in (float16, bfloat16, dtypes["q8_0"], dtypes["q4_0"]):
        yield from typed(dtype, dtype.itemsize / dtype.block_size)


def _attention(bench: Bench, queries: int, keys: int, heads: int, dtype: DTypeLike, d: int = 128) -> Case:
    """Scores, mask, softmax, values. One query is judged by the memory of keys and values, several
    by arithmetic."""

    def build(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return ops.mul_mat(v, ops.soft_max(ops.mul_mat(k, q), mask, d**-0.5))

    def values(shape: tuple[int, ...]) -> Any:
        found = bench.rng.standard_normal(shape, dtype=np.float32)
        return found.astype(np.float16) if str(dtype) == "float16" else found

    k, v, q, mask = (heads, keys, d), (heads, d, keys), (heads, queries, d), np.zeros((queries, keys), np.float32)
    run, _ = bench.compute(
        build, (q, float32, None), (k, dtype, values(k)), (v, dtype, values(v)), (mask.shape, float32, mask)
    )
    flops, cache = 4.0 * queries * keys * d * heads, 2.0 * keys * d * heads * dtypes[str(dtype)].itemsize
    name = f"attention, {queries} to {keys}, {heads} heads of {d}, {dtype}"
    if queries == 1:
        return Case(name, "ops", "GB/s", cache, run, memory=cache, flops=flops)
    return Case(name, "ops", "GFLOP/s", flops, run, memory=cache, flops=flops)


def _overhead(bench: Bench, nodes: int) -> Case:
    def chain(x: Tensor) -> Tensor:
        for _ in range(nodes):
            x = x + x
        return x

    run, _ = bench.compute(chain, ((1,), float32, np.zeros(1, np.float32)))
    return Case(
        f"graph of {nodes} one-element adds" if nodes > 1 else "graph of one node", "ops", "nodes/s", nodes, run
    )


def op_cases(backend: Backend, stack: ExitStack, *, quick: bool = False) -> Iterator[Case]:
    """The operators of docs/PERFORMANCE.md."""
    bench = Bench(backend, stack)
    yield from _rows(bench, 64, 256) if quick else _rows(bench, 512, 4096)
    size = 64 if quick else 512
    yield _attention(bench, size, size, 2 if quick else 32, float32)
    for dtype in (float16, float32):
        yield _attention(bench, 1, 8 * size, 2 if quick else 8, dtype)
    yield _overhead(bench, 1000)
    yield _overhead(bench, 1)
