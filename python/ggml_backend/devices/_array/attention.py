"""Softmax with masks, biases and sinks, and attention in one node."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from .._nodes import Node
from ..device import op
from .family import FLOAT_NAMES, Family
from .layout import axes, ne, repeats, repetition
from .library import FLOATS, Library, Step

Shape = tuple[int, ...]


def _source(node: Node, slot: int) -> Node | None:
    return node.sources[node.slots.index(slot)] if slot in node.slots else None


def _fits(mask: Node | None, scores: Shape) -> bool | str:
    """A mask repeats over batches and heads. It may have more rows than there are queries, or fewer, which repeat."""
    if mask is None:
        return True
    if mask.dtype not in FLOATS:
        return f"a mask of {mask.dtype.name}"
    batches, heads, rows, n = ne(mask.shape)
    fits = n == scores[3] and repeats((batches, heads, min(rows, scores[2]), n), scores)
    return fits or "a mask whose rows do not repeat to the rows of each matrix"


def _masks(node: Node) -> bool | str:
    return _fits(_source(node, 1), ne(node.shape))


class Biases:
    """Adds a mask, times a slope for each head, to scores (batches, heads, queries, keys)."""

    def __init__(self, library: Library, mask: Any, scores: Shape, bias: float) -> None:
        self.library = library
        self.mask = axes(library, mask, 4)[:, :, : scores[2]]
        self.slopes: Any = None
        self.shape: Shape = tuple(self.mask.shape)
        if bias > 0:
            self.shape = (self.shape[0], scores[1], *self.shape[2:])
            self.slopes = library.constant(_slopes(scores[1], bias).reshape(-1, self.mask.shape[1], 1, 1))
        whole, part = repetition(scores, self.shape)
        self.scores = scores
        self.whole, self.part = ([n for parts in sizes for n in parts] for sizes in (whole, part))

    def add(self, scores: Any, mask: Any, hide: bool) -> Any:
        """The scores with the mask. mask: in float32; hide: a hidden score is -inf, also if it was NaN"""
        xp = self.library.xp
        mask = xp.reshape(self.whole_mask(mask), self.part)
        found = xp.reshape(scores, self.whole) + mask
        return xp.reshape(xp.where(mask == -np.inf, mask, found) if hide else found, self.scores)

    def whole_mask(self, mask: Any) -> Any:
        """The mask with the heads of the scores."""
        xp = self.library.xp
        return mask if self.slopes is None else xp.reshape(mask[:, None] * self.slopes, self.shape)


def _soft_max(library: Library, scores: Any, sinks: Any) -> Any:
    """A sink is one more score of each row, whose weight is left out."""
    if sinks is None:
        return library.soft_max(scores)
    xp = library.xp
    column = xp.broadcast_to(xp.reshape(sinks, (-1, 1, 1)), (*scores.shape[:3], 1))
    return library.soft_max(xp.concat([scores, column], axis=-1))[..., :-1]


@op("soft_max", in_place=True, dtypes=FLOAT_NAMES, when=_masks, prepare=True)
def soft_max(device: Family, node: Node, out: Any, a: Any, mask: Any = None, sinks: Any = None) -> Step:
    library = device.library
    scale, soft_max = node.params["scale"], library.soft_max
    if mask is None and sinks is None and scale == 1:
        return device.step_of(soft_max, node, out, (a,))
    a, out = (axes(library, array, 4) for array in (a, out))
    biases = None if mask is None else Biases(library, mask, tuple(a.shape), node.params["max_bias"])

    def weights(x: Any, *more: Any) -> Any:
        if scale != 1:  # in double if a product may leave the range of float32
            x = (x if abs(scale) <= 1 else library.xp.astype(x, library.double)) * scale
        x = x if biases is None else biases.add(x, more[0], False)
        return _soft_max(library, x, None if sinks is None else more[-1])

    given = [a, *([] if biases is None else [biases.mask]), *([] if sinks is None else [sinks])]
    return device.value_of(weights, node, out, given)


def _attends(node: Node) -> bool | str:
    q, k, v = node.sources[:3]
    for i, tensor in enumerate((q, k, v)):
        if tensor.dtype not in FLOATS and not (i and tensor.dtype.is_quantized):
            return f"source {i} is {tensor.dtype.name}"
    sinks = _source(node, 4)
    if node.dtype not in FLOATS or (sinks is not None and sinks.dtype not in FLOATS):
        return "a result or sinks that are no floats"
    return _fits(_source(node, 3), (*ne(q.shape)[:3], ne(k.shape)[2]))


@op("flash_attn_ext", dtypes="all", when=_attends, prepare=True)
def flash_attn_ext(
    device: Family, node: Node, out: Any, q: Any, k: Any, v: Any, mask: Any = None, sinks: Any = None
) -> Step:
    """Consecutive heads share a head of keys, and a head of values. Keys that are hidden from all queries are not
    used, so they may be NaN."""
    library, p = device.library, node.params
    q, k, v, out = (axes(library, array, 4) for array in (q, k, v, out))
    shape = (*tuple(q.shape)[:3], k.shape[2])
    biases = None if mask is None else Biases(library, mask, shape, p["max_bias"])
    attend: Callable[..., Any] = _fused if _is_simple(library, node, biases, shape) else _attention

    def attended(q: Any, k: Any, v: Any, *more: Any) -> Any:
        m = None if biases is None else more[0]
        if m is not None:
            k, v = _seen(library, m, k, v)
        result = attend(library, p, shape, biases, (q, k, v), m, None if sinks is None else more[-1])
        return library.xp.permute_dims(result, (0, 2, 1, 3))

    given = [q, k, v, *([] if biases is None else [biases.mask]), *([] if sinks is None else [sinks])]
    return device.value_of(attended, node, out, given, [s.dtype for s in node.sources])


def _seen(library: Library, mask: Any, *rows: Any) -> list[Any]:
    """Keys and values, with zeros in place of those that the mask hides from all queries of all heads and batches."""
    xp = library.xp
    hidden = xp.all(xp.reshape(mask == -np.inf, (prod(mask.shape[:-1]), mask.shape[-1])), axis=0)[:, None]
    return [xp.where(hidden, xp.zeros_like(array), array) for array in rows]


def _attention(
    library: Library, p: dict[str, Any], shape: Shape, biases: Biases | None, qkv: Any, mask: Any, sinks: Any
) -> Any:
    """(batches, heads, queries, size of a value)"""
    (q, k, v), xp = qkv, library.xp
    rows = xp.reshape(q, (*k.shape[:2], -1, q.shape[-1]))  # the heads of one head of keys
    scores = xp.reshape(xp.matmul(rows, xp.permute_dims(k, (0, 1, 3, 2))), shape) * p["scale"]
    if p["softcap"]:
        scores = xp.tanh(scores / p["softcap"]) * p["softcap"]
    if biases is not None:
        scores = biases.add(scores, mask, True)
    weights = _soft_max(library, scores, sinks) if shape[3] else scores  # without keys the results are zeros
    values = xp.matmul(xp.reshape(weights, (*v.shape[:2], shape[1] // v.shape[1] * shape[2], shape[3])), v)
    return xp.reshape(values, (*shape[:3], v.shape[-1]))


def _is_simple(library: Library, node: Node, biases: Biases | None, shape: Shape) -> bool:
    """True if a fused function of the library computes it."""
    k, v = node.sources[1:3]
    if not library.can_fuse or node.params["softcap"] or 4 in node.slots or ne(k.shape)[1] != ne(v.shape)[1]:
        return False
    return prod(shape) > 0 and (biases is None or all(m in (1, n) for m, n in zip(biases.shape, shape, strict=True)))


def _fused(
    library: Library, p: dict[str, Any], shape: Shape, biases: Biases | None, qkv: Any, mask: Any, sinks: Any
) -> Any:
    mask = None if biases is None else biases.whole_mask(mask)
    q, k, v = qkv
    return library.attend(q, k, v, mask, p["scale"])


def _slopes(n_heads: int, bias: float) -> np.ndarray[Any, Any]:
    """The slopes of ALiBi, as on the CPU. Heads beyond the largest power of two use odd powers of
    the finer base."""
    floor = 1 << (n_heads.bit_length() - 1)
    heads = np.arange(n_heads)
    powers = np.where(heads < floor, (heads + 1) / floor, (2 * (heads - floor) + 1) / (2 * floor))
    return np.exp2(-bias * powers).astype(np.float32)
