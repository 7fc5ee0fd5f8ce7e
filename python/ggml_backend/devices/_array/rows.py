"""Operators along rows: normalisation, causal masks, sums, order, rows of a table."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .._nodes import Node
from ..device import op
from .family import FLOAT_NAMES, Family, checked, stepwise, then
from .layout import axes, ne
from .library import F32, Step


def _one_source(node: Node) -> bool | str:
    return node.shape == node.sources[0].shape or "a result of another shape"


def _is_table(node: Node) -> bool | str:
    table = node.sources[0]
    if table.dtype.is_quantized or table.dtype.name in FLOAT_NAMES:
        return node.dtype.name in FLOAT_NAMES or f"rows of {table.dtype.name} as {node.dtype.name}"
    return (node.dtype == table.dtype and table.dtype.name == "int32") or f"rows of {table.dtype.name}"


@op("norm", "rms_norm", in_place=True, dtypes=FLOAT_NAMES, when=_one_source, prepare=True)
def norm(device: Family, node: Node, out: Any, a: Any) -> Step:
    compute, eps, centred = device.library.norm, node.params["eps"], node.op == "norm"
    return device.step_of(lambda x, out=None: compute(x, eps, centred, out), node, out, (a,))


@op("l2_norm", in_place=True, dtypes=FLOAT_NAMES, when=_one_source, prepare=True)
def l2_norm(device: Family, node: Node, out: Any, a: Any) -> Step:
    length, xp, eps = device.library.length, device.library.xp, node.params["eps"]

    def divided(x: Any) -> Any:
        return x / xp.clip(length(x), eps, None)

    return device.value_of(divided, node, out, (a,))


@op("cumsum", in_place=True, dtypes=FLOAT_NAMES, prepare=True)
def cumsum(device: Family, node: Node, out: Any, a: Any) -> Step:
    xp = device.library.xp
    return device.value_of(lambda x: xp.cumulative_sum(x, axis=-1), node, out, (a,))


@op("argsort", "top_k", dtypes=FLOAT_NAMES, prepare=True)
def order(device: Family, node: Node, out: Any, a: Any) -> Step:
    """Equal elements keep their order, and NaN is last. TOP_K keeps the first places of a falling order."""
    xp, k = device.library.xp, node.shape[-1]
    falling = node.op == "top_k" or node.params["descending"]
    return device.value_of(lambda x: xp.argsort(-x if falling else x, axis=-1)[..., :k], node, out, (a,))


@op("diag_mask_inf", "diag_mask_zero", in_place=True, dtypes=FLOAT_NAMES, when=_one_source, prepare=True)
def diag_mask(device: Family, node: Node, out: Any, a: Any) -> Step:
    rows, n = ne(node.shape)[2:]
    later = np.arange(n) > node.params["n_past"] + np.arange(rows)[:, None]
    later = device.library.constant(later if len(node.shape) > 1 else later[0])
    fill, where = -np.inf if node.op == "diag_mask_inf" else 0.0, device.library.where
    return device.step_of(lambda x, out=None: where(later, fill, x, out), node, out, (a,))


@op("get_rows", dtypes="all", when=_is_table, prepare=True)
def get_rows(device: Family, node: Node, out: Any, table: Any, ids: Any) -> Step:
    library, of = device.library, node.sources[0].dtype
    table, ids, out = axes(library, table, 4), axes(library, ids, 3), axes(library, out, 4)
    steps: list[Step] = []
    for i in range(prod(ids.shape[:2])):  # each matrix of the table has its own indices
        at = divmod(i, ids.shape[1])
        if of == node.dtype:
            steps.append(library.take(table[at], ids[at], out[at]))
        else:
            found = library.empty((ids.shape[2], table.shape[3]), of)
            take = library.take(table[at], ids[at], found)
            steps.append(then(take, device.conversion(out[at], node.dtype, found, of)))

    return checked(node, steps)


def _writes(node: Node) -> bool | str:
    if node.dtype.name not in FLOAT_NAMES or node.sources[0].dtype.name not in FLOAT_NAMES:
        return f"rows of {node.sources[0].dtype.name} as {node.dtype.name}"
    return True


@stepwise
@op("set_rows", dtypes=FLOAT_NAMES, when=_writes, prepare=True)
def set_rows(device: Family, node: Node, out: Any, rows: Any, ids: Any, target: Any = None) -> Step:
    """Rows are converted in memory of their own, so they may overlap the result."""
    library, (source, *_) = device.library, node.sources
    rows, ids, out = axes(library, rows, 4), axes(library, ids, 3), axes(library, out, 4)
    steps: list[Step] = []
    for i in range(prod(rows.shape[:2]) if prod(rows.shape) else 0):
        at = divmod(i, rows.shape[1])
        places = ids[at[0] % ids.shape[0], at[1] % ids.shape[1]]
        written = library.empty(rows.shape[2:], node.dtype)
        convert = device.conversion(written, node.dtype, rows[at], source.dtype)
        steps.append(then(convert, library.put(out[at], places, written)))

    return checked(node, steps)


def _adds(node: Node) -> bool | str:
    return all(s.dtype.name in FLOAT_NAMES for s in (node, *node.sources[:2])) or "sources of other dtypes"


@stepwise
@op("add_id", in_place=True, dtypes=FLOAT_NAMES, when=_adds, prepare=True)
def add_id(device: Family, node: Node, out: Any, a: Any, b: Any, ids: Any) -> Step:
    library = device.library
    a, out, b, ids = axes(library, a, 3), axes(library, out, 3), axes(library, b, 2), axes(library, ids, 2)
    wide = library.empty((*ids.shape, b.shape[1]))
    floats = device.floats_of(b, node.sources[1].dtype)
    table = b if floats is None else library.empty(b.shape)
    widen = [] if floats is None else [library.assign_from(table, floats)]
    pick = [library.take(table, ids[t], wide[t]) for t in range(ids.shape[0])]
    add = device.step_of(library.functions["add"], node, out, (a, wide), (node.sources[0].dtype, F32))
    return then(checked(node, [*widen, *pick]), add)
