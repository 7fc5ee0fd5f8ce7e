"""Elements picked by index."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UnsupportedError
from ..onnx_values import Attributes, Given, integers, numbers
from ..sizes import Size
from . import FOLDED_ELEMENTS, Inputs, front, operator, viewed

if TYPE_CHECKING:
    from ..onnx import Reader


@operator("Gather")
def gather(r: Reader, i: Inputs, a: Attributes) -> Any:
    x, index = i[0], i[1]
    own = r.shape(x)
    axis = front(int(a.get("axis", 0)), len(own))
    if isinstance(x, np.ndarray) and isinstance(index, np.ndarray) and index.size <= FOLDED_ELEMENTS:
        return np.take(x, np.array(numbers(integers(index), "Gather")).reshape(index.shape), axis)
    if isinstance(index, np.ndarray):
        if not index.shape:
            return r.emit("select.int", {"self": x, "dim": axis, "index": int(index)},
                          [*own[:axis], *own[axis + 1 :]], r.dtype(x))  # fmt: skip
        index = _from_front(index, own[axis])
    shape = [*own[:axis], *r.shape(index), *own[axis + 1 :]]
    if axis == 0 and len(own) == 2 and r.dtype(x) == "float32":
        return r.emit("embedding", {"weight": x, "indices": index}, shape, r.dtype(x))
    return r.emit("index.Tensor", {"self": x, "indices": [None] * axis + [index]}, shape, r.dtype(x))


def _from_front(index: Given, n: Size) -> Given:
    """Indices of an axis with n elements. Known negative ones become positive."""
    if not isinstance(index, np.ndarray) or index.dtype == object or not (index < 0).any():
        return index
    return np.where(index < 0, index + numbers([n], "an axis with negative indices")[0], index)


@operator("GatherElements")
def gather_elements(r: Reader, i: Inputs, a: Attributes) -> Any:
    own = r.shape(i[0])
    axis = front(int(a.get("axis", 0)), len(own))
    index = _from_front(i[1], own[axis])
    return r.emit("gather", {"self": i[0], "dim": axis, "index": index}, r.shape(index), r.dtype(i[0]))


@operator("GatherND")
def gather_nd(r: Reader, i: Inputs, a: Attributes) -> Any:
    x, index, batch = i[0], i[1], int(a.get("batch_dims", 0))
    own, places = r.shape(x), r.shape(index)
    k = numbers(places[-1:], "GatherND")[0]
    if not batch:
        shape = [*places[:-1], *own[k:]]
        return r.emit("index.Tensor", {"self": x, "indices": _columns(r, index, k)}, shape, r.dtype(x))
    n, middle = math.prod(numbers(own[:batch], "GatherND with batch_dims")), places[batch:-1]
    flat, rows = viewed(r, x, [n, *own[batch:]]), viewed(r, index, [n, *middle, k])
    which = np.arange(n).reshape(-1, *(1,) * len(middle))
    arguments = {"self": flat, "indices": [which, *_columns(r, rows, k)]}
    made = r.emit("index.Tensor", arguments, [n, *middle, *own[batch + k :]], r.dtype(x))
    return viewed(r, made, [*own[:batch], *middle, *own[batch + k :]])


def _columns(r: Reader, index: Given, k: int) -> list[Given]:
    """The indices of each of the k axes, from tuples of indices."""
    if isinstance(index, np.ndarray):
        return [np.ascontiguousarray(index[..., j]) for j in range(k)]
    shape = r.shape(index)[:-1]
    return [r.emit("select.int", {"self": index, "dim": len(shape), "index": j}, shape, "int64") for j in range(k)]


@operator("ScatterND")
def scatter_nd(r: Reader, i: Inputs, a: Attributes) -> Any:
    if a.get("reduction", "none") != "none":
        raise UnsupportedError(f"ScatterND with the reduction {a['reduction']}")
    x, index, new = i
    k = numbers(r.shape(index)[-1:], "ScatterND")[0]
    if isinstance(x, np.ndarray) and isinstance(index, np.ndarray) and isinstance(new, np.ndarray):
        whole = x.copy()
        whole[tuple(index[..., j] for j in range(k))] = new
        return whole
    arguments = {"self": x, "indices": _columns(r, index, k), "values": new}
    return r.emit("index_put", arguments, r.shape(x), r.dtype(x))


@operator("NonZero")
def non_zero(r: Reader, i: Inputs, a: Attributes) -> Any:
    """Of a known value, and of a value that is filled with one number."""
    x = i[0]
    if isinstance(x, np.ndarray):
        return np.array(np.nonzero(x)).astype(np.int64)
    assert x is not None
    makers = [node for node in r.network.nodes if node.op == "full" and node.results == (x.name,)]
    if len(r.shape(x)) != 1 or not makers or not makers[0].arguments.get("fill_value"):
        raise UnsupportedError("the size of the result of NonZero depends on the values of the inputs")
    n = r.shape(x)[0]
    return viewed(r, r.emit("arange.start_step", {"start": 0, "end": n, "step": 1}, (n,), "int64"), (1, n))


@operator("TopK")
def top_k(r: Reader, i: Inputs, a: Attributes) -> Any:
    own = list(r.shape(i[0]))
    axis = front(int(a.get("axis", -1)), len(own))
    k = numbers(integers(i[1]), "TopK")[0] if len(i) > 1 else int(a["k"])
    own[axis] = k
    arguments = {"self": i[0], "k": k, "dim": axis, "largest": bool(a.get("largest", 1))}
    values, places = r.emit_all("topk", arguments, [own, own], r.dtype(i[0]))
    r.network.values[places.name] = replace(r.network.values[places.name], dtype="int64")
    return [values, places]
