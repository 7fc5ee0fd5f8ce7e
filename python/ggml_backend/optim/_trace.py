"""Finds the node at which NaN or infinity begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import numpy as np

from .._base.errors import GgmlError
from ..sched.scheduler import Scheduler
from ..tensor.graph import Graph
from ..tensor.tensor import Tensor

__all__ = ["first_fault"]

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_VIEWS = ("RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")
_INFINITE = ("DIAG_MASK_INF",)  # operators whose results are infinite by design


def _kind(tensor: Tensor) -> str:
    """ "NaN", "infinity", or "" if all elements are finite."""
    if tensor.dtype.name not in _FLOATS or not tensor.size:
        return ""
    array = tensor.numpy(np.float32, copy=True)
    if np.isfinite(array).all():
        return ""
    return "NaN" if np.isnan(array).any() else "infinity"


def _origin(tensor: Tensor) -> Tensor:
    """The tensor whose elements a view shows."""
    while tensor.op in _VIEWS:
        tensor = tensor.sources[0]
    return tensor


def _walk(start: Tensor, faults: dict[Tensor, str]) -> Tensor:
    """The first node with the fault, found against the direction of the computation."""
    now = _origin(start)
    while True:
        sources = [_origin(s) for s in now.sources]
        before = [s for s in sources if faults.get(s) == "NaN"]
        if not before and faults[now] == "infinity":
            before = [s for s in sources if s in faults and s.op not in _INFINITE]
        if not before:
            return now
        now = before[0]


def first_fault(sched: Scheduler, graph: Graph, norm: Tensor, grads: Iterable[tuple[str, Tensor]]) -> str:
    """Computes the graph up to the norm again, and says where the first fault of a gradient begins.

    grads: each gradient, with a description of its weight
    """
    faults: dict[Tensor, str] = {}
    for leaf in graph.leafs:
        with contextlib.suppress(GgmlError):  # it has no data
            if found := _kind(leaf):
                faults[leaf] = found

    def look(tensor: Tensor) -> bool:
        if found := _kind(tensor):
            faults[tensor] = found
        return tensor != norm

    sched.compute(graph, look)
    wrong = [(weight, g) for weight, g in grads if _origin(g) in faults]
    if not wrong:
        return "the norm of the gradients exceeds float32; a smaller loss gives smaller gradients"
    weight, g = min(wrong, key=lambda pair: faults[_origin(pair[1])] != "NaN")
    cause = _walk(g, faults)
    where = f"the data of {cause.describe()}" if cause.op == "NONE" else f"node {cause.describe()} ({cause.op})"
    infinite = [s.describe() for s in map(_origin, cause.sources) if faults.get(s) == "infinity"]
    reads = f", which reads infinity from {infinite[0]}" if infinite and faults[cause] == "NaN" else ""
    return f"the gradient of {weight} has {faults[_origin(g)]}: it begins in {where}{reads}"
