"""Kept graphs that compute in the memory of PyTorch.

A graph belongs to a size: format, precision, rows and columns. All weights of that size share it, because weights,
activations and results are arguments of its function (:meth:`ggml_backend.Graph.function`). So a weight has no state
here, and nothing is copied.

Every call uses as many threads as PyTorch, ``torch.get_num_threads()``. The calling thread waits for them. So within
one thread of Python, threads of PyTorch and of this package never compute at the same time. Calls of several threads of
Python wait for each other. A small product runs in the calling thread, because waking others takes longer.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .. import ops
from .._base.errors import StateError
from ..backend import Backend
from ..dtypes import DType, float32, int32
from ..tensor import Context, Function

__all__ = ["product", "rows"]

Array = np.ndarray[Any, Any]

_SMALL = 1 << 20  # multiply-adds; a product with fewer of them runs in the calling thread
_KEPT = 256  # graphs; a model has a few sizes of weights, each with a few numbers of rows


class _Engine:
    """The backends and the kept graphs of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.alone = Backend("CPU", n_threads=1)
        self.team = Backend("CPU", n_threads=torch.get_num_threads())
        self.functions: OrderedDict[tuple[Any, ...], Function] = OrderedDict()

    def backend(self, work: int) -> Backend:
        """The backend for so many multiply-adds."""
        n = torch.get_num_threads()
        if work < _SMALL or n == 1:
            return self.alone
        if self.team.n_threads != n:
            self.team.n_threads = n
        return self.team

    def function(self, key: tuple[Any, ...], make: Callable[[], Function]) -> Function:
        """The function of this key, made on first use. The least recently used ones are dropped."""
        with self.lock:
            found = self.functions.get(key)
            if found is not None:
                self.functions.move_to_end(key)
                return found
        found = make()
        with self.lock:
            self.functions[key] = found
            if len(self.functions) > _KEPT:
                self.functions.popitem(last=False)
        return found


_engine: _Engine | None = None
_making = threading.Lock()


def _current() -> _Engine:
    global _engine
    found = _engine
    if found is None:
        with _making:
            found = _engine = _engine or _Engine()
    return found


def _forget() -> None:
    """In a forked child: other threads of the parent may have held locks on graphs and backends."""
    global _engine, _making
    _engine, _making = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _run(function: Function, *arrays: Array) -> None:
    if not function(*arrays):
        raise StateError("ggml_backend.torch: the computation was stopped")


def product(weight: Array, x: Array, bias: Array | None, y: Array, dtype: DType, precision: Any) -> None:
    """Writes ``x @ weight.T + bias`` to y.

    weight: blocks of the format ``dtype``, (n, bytes of a row)
    x, bias, y: float32 (rows, k), (n,) and (rows, n), C-contiguous
    """
    engine, n, (count, k) = _current(), weight.shape[0], x.shape
    backend = engine.backend(count * k * n)

    def make() -> Function:
        ctx = Context()
        w, a = ctx.tensor((n, k), dtype, name="weight"), ctx.tensor((count, k), float32, name="x")
        result = ops.mul_mat(w, a, prec=precision).named("y")
        if bias is None:
            return ctx.graph(result).function(backend, w, a, result)
        b = ctx.tensor((n,), float32, name="bias")
        return ctx.graph(ops.add(result, b, inplace=True)).function(backend, w, a, result, b)

    key = (dtype.id, precision, count, k, n, bias is None, backend is engine.alone)
    function = engine.function(key, make)
    if bias is None:
        _run(function, weight, x, y)
    else:
        _run(function, weight, x, y, bias)


def rows(weight: Array, ids: Array, y: Array, dtype: DType) -> None:
    """Writes rows of the weight to y, dequantized to float32.

    weight: as for :func:`product`; ids: int32 (count,); y: float32 (count, k), C-contiguous
    """
    engine, n, (count, k) = _current(), weight.shape[0], y.shape
    backend = engine.backend(count * k)

    def make() -> Function:
        ctx = Context()
        w, i = ctx.tensor((n, k), dtype, name="weight"), ctx.tensor((count,), int32, name="ids")
        result = ops.get_rows(w, i).named("y")
        return ctx.graph(result).function(backend, w, i, result)

    key = (dtype.id, count, k, n, backend is engine.alone)
    _run(engine.function(key, make), weight, ids, y)
