"""Sums and maxima over rows, groups and repetitions, and derivatives along rows."""

from __future__ import annotations

from math import prod
from typing import Any

from .._nodes import Node
from ..device import op
from .family import FLOAT_NAMES, Family
from .layout import axes, cut, ne
from .library import Step


@op("sum_rows", "mean", dtypes=FLOAT_NAMES, prepare=True)
def sum_rows(device: Family, node: Node, out: Any, a: Any) -> Step:
    total, times = device.library.sum_rows, 1.0 if node.op == "sum_rows" else 1 / a.shape[-1]
    return device.step_of(lambda x, out=None: total(x, times, out), node, out, (a,))


@op("sum", dtypes=FLOAT_NAMES, prepare=True)
def sum_all(device: Family, node: Node, out: Any, a: Any) -> Step:
    total, shape = device.library.sum_rows, tuple(out.shape)

    def summed(x: Any) -> Any:
        return total(x.reshape(1, -1), 1.0, None).reshape(shape)

    return device.value_of(summed, node, out, (a,))


@op("argmax", dtypes=FLOAT_NAMES, prepare=True)
def argmax(device: Family, node: Node, out: Any, a: Any) -> Step:
    """The last of equal maxima. NaN counts as the largest value."""
    xp, n, shape = device.library.xp, a.shape[-1], tuple(out.shape)

    def last(x: Any) -> Any:
        return (n - 1 - xp.argmax(xp.flip(x, axis=-1), axis=-1)).reshape(shape)

    return device.value_of(last, node, out, (a,))


@op("group_norm", in_place=True, dtypes=FLOAT_NAMES, prepare=True)
def group_norm(device: Family, node: Node, out: Any, a: Any) -> Step:
    """All channels of a group are one row. The last group may have fewer."""
    library, groups, eps = device.library, node.params["n_groups"], node.params["eps"]
    a, out = (axes(library, array, 4) for array in (a, out))
    channels = a.shape[1]
    size = -(-channels // groups)

    def normed(x: Any) -> Any:
        parts = [x[:, first : first + size] for first in range(0, channels, size)]
        rows = [library.norm(part.reshape(len(part), -1), eps, True, None) for part in parts]
        return library.xp.concat([r.reshape(p.shape) for r, p in zip(rows, parts, strict=True)], axis=1)

    return device.value_of(normed, node, out, (a,))


@op("soft_max_back", in_place=True, dtypes=FLOAT_NAMES, prepare=True)
def soft_max_back(device: Family, node: Node, out: Any, grad: Any, y: Any) -> Step:
    total = device.library.sum_rows
    return device.value_of(lambda g, y: y * (g - total(g * y, 1.0, None)), node, out, (grad, y))


@op("rms_norm_back", in_place=True, dtypes=FLOAT_NAMES, prepare=True)
def rms_norm_back(device: Family, node: Node, out: Any, a: Any, grad: Any) -> Step:
    library, eps, part = device.library, node.params["eps"], 1 / a.shape[-1]

    def back(x: Any, g: Any) -> Any:
        square = library.sum_rows(x * x, part, None) + eps
        return (g - x * library.sum_rows(x * g, part, None) / square) * square**-0.5

    return device.value_of(back, node, out, (a, grad))


def _folds(node: Node) -> bool | str:
    pairs = zip(ne(node.sources[0].shape), ne(node.shape), strict=True)
    return all(m and n % m == 0 for n, m in pairs) or "a result whose sizes do not divide those of the source"


@op("repeat_back", dtypes=FLOAT_NAMES, when=_folds, prepare=True)
def repeat_back(device: Family, node: Node, out: Any, a: Any) -> Step:
    """Adds the repetitions of each element."""
    library, shape = device.library, tuple(out.shape)
    parts = [[n // m, m] for n, m in zip(ne(node.sources[0].shape), ne(node.shape), strict=True)]
    a = cut(library, axes(library, a, 4), parts)
    times = prod(n for n, _ in parts)

    def folded(x: Any) -> Any:
        rows = library.xp.permute_dims(x, (1, 3, 5, 7, 0, 2, 4, 6)).reshape(-1, times)
        return library.sum_rows(rows, 1.0, None).reshape(shape)

    return device.value_of(folded, node, out, (a,))
