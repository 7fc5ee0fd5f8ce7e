"""Matrix products: weights of every type times activations of 1 to 16 rows, and of many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import ops
from ..._base.errors import GgmlError, non_null
from ..._base.errors.faults import message_of
from ..._ffi import ffi, lib
from ...backend.backend import Backend
from ...backend.buffer import text
from ...dtypes import DType, dtypes, float32
from ...profile._limits import arithmetic_of
from ...tensor._quantize import quantize
from ...tensor.context import Context
from ...tensor.tensor import Tensor
from ._measure import Case, Limits

__all__ = [
    "Algorithm",
    "algorithm_of",
    "algorithm_on",
    "arithmetic_of",
    "explain_products",
    "product_cases",
    "product_types",
    "weights",
]


def product_types(backend: Backend) -> list[DType]:
    """Types that weights of a product can have."""
    found = []
    for dtype in dtypes.values():
        if dtype.name in ("float32", "float16", "bfloat16") or dtype.is_quantized:
            with Context() as ctx:
                try:
                    if backend.supports(ops.mul_mat(ctx.tensor((32, 256), dtype), ctx.tensor((1, 256)))):
                        found.append(dtype)
                except GgmlError:
                    continue
    return found


@dataclass(frozen=True)
class Algorithm:
    """The algorithm that computes a node."""

    name: str
    declined: tuple[tuple[str, str], ...]  #: earlier ones in the table, each with the reason why it was not taken


def _chosen(try_next: Callable[[int], Any], why: Any) -> Algorithm | None:
    declined: list[tuple[str, str]] = []
    while True:
        found = try_next(len(declined))
        if found == ffi.NULL:
            return None
        if not why[0]:
            return Algorithm(text(found), tuple(declined))
        declined.append((text(found), message_of(why[0])))


def algorithm_of(product: Tensor, level: str) -> Algorithm:
    """The algorithm with which the CPU computes ``product`` with the kernels of ``level``.

    product: a result of ``mul_mat``, ``mul_mat_id`` or ``out_prod``
    """
    why = ffi.new("const char **")
    node = product._live()
    found = _chosen(
        lambda i: non_null(lib.gbpy_product_algorithm(node, level.encode(), i, why), "algorithm_of"),
        why,
    )
    assert found is not None
    return found


def algorithm_on(backend: Backend, node: Tensor) -> Algorithm | None:
    """The algorithm with which ``backend`` computes ``node``. None if the backend has only one for
    such nodes."""
    why = ffi.new("const char **")
    core, handle = backend._live(), node._live()
    return _chosen(lambda i: lib.gbpy_backend_algorithm(core.ptr, handle, i, why), why)


def _shape(quick: bool) -> tuple[int, int]:
    """Rows and columns of the weights."""
    return (256, 512) if quick else (4096, 14336)


def _batches(quick: bool) -> tuple[int, ...]:
    return (1, 2, 4, 8, 16, 64 if quick else 512)


def _name(dtype: DType, m: int, k: int, n: int) -> str:
    return f"{dtype.ggml_name.lower()} m={m} k={k} n={n}"


def explain_products(
    types: Sequence[DType], backend: Backend, *, quick: bool = False
) -> Iterator[tuple[str, Algorithm | None]]:
    """Names of the cases of :func:`product_cases`, and the algorithm of ``backend`` for each. Runs
    nothing."""
    m, k = _shape(quick)
    for dtype in types:
        for n in _batches(quick):
            with Context() as ctx:
                product = ops.mul_mat(ctx.tensor((m, k), dtype), ctx.tensor((n, k), float32))
                yield _name(dtype, m, k, n), algorithm_on(backend, product)


def weights(dtype: DType, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Rows of weights in the tensor's format. A few different rows repeat, because values do not
    change the speed."""
    few = np.random.default_rng(0).standard_normal((min(4, rows), columns), dtype=np.float32) / np.float32(columns**0.5)
    if dtype.name in ("float32", "float16"):
        tile: Any = few.astype(dtype.numpy)
    else:
        try:
            tile = quantize(few, dtype, np.ones(columns, np.float32) if dtype.is_quantized else None)
        except GgmlError:  # the format has no quantizer: any bytes do whose scales are finite
            tile = np.full((1, dtype.row_nbytes(columns)), 0x2C, np.uint8)
        if dtype.name == "bfloat16":
            tile = tile.view(np.uint16)
    return np.resize(tile, (rows, tile.shape[1]))


def product_cases(backend: Backend, limits: Limits, types: Sequence[DType], *, quick: bool = False) -> Iterator[Case]:
    """The cases of products. Each matrix of weights is freed before the next is made."""
    m, k = _shape(quick)
    for dtype in types:
        w = weights(dtype, m, k)
        for n in _batches(quick):
            with ExitStack() as stack:
                ctx = stack.enter_context(Context())
                a, x = ctx.tensor((m, k), dtype, name="w"), ctx.tensor((n, k), float32, name="x")
                product = ops.mul_mat(a, x)
                graph = ctx.graph(product)
                stack.enter_context(ctx.allocate(backend))
                a.set(w)
                x.set(np.random.default_rng(1).standard_normal((n, k), dtype=np.float32))
                flops, name = 2.0 * m * k * n, _name(dtype, m, k, n)
                algorithm = algorithm_of(product, limits.level).name
                common: dict[str, Any] = {
                    "memory": float(w.nbytes),
                    "flops": flops,
                    "arithmetic": arithmetic_of(algorithm),
                    "algorithm": algorithm,
                }
                run = lambda graph=graph: graph.compute(backend)  # noqa: E731
                if n <= 16:
                    yield Case(name, "products", "GB/s", float(w.nbytes), run, **common)
                else:
                    yield Case(name, "products", "GFLOP/s", flops, run, **common)
