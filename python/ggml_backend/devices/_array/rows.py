"""Operators along rows: normalisation, softmax and masks, rotation, rows of a table."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..._base.errors import InvalidArgumentError
from .._nodes import Node
from ..device import op
from .family import FLOAT_NAMES, Family, then
from .layout import axes, cut, ne
from .library import F32, FLOATS, Step


def _one_source(node: Node) -> bool | str:
    return node.shape == node.sources[0].shape or "a result of another shape"


def _masks(node: Node) -> bool | str:
    if len(node.sources) == 1:
        return True
    if len(node.sources) > 2 or node.sources[1].dtype not in FLOATS:
        return "sinks"
    x, mask = ne(node.shape), ne(node.sources[1].shape)
    fits = mask[0] == mask[1] == 1 and mask[2] and x[2] % mask[2] == 0 and mask[3] == x[3]
    return bool(fits) or "a mask whose rows do not repeat to the rows of each matrix"


def _turns(node: Node) -> bool | str:
    p = node.params
    mode, size = p["mode"], node.shape[-1]
    if len(node.sources) > 2:
        return "factors of the frequencies"
    if p["offset"]:
        return "an offset"
    if mode not in ("normal", "neox", "normal_exact", "neox_exact"):
        return f"mode {mode}"
    if p["ext_factor"] != 0:
        return "YaRN (ext_factor)"
    if p["xpos_base"] is not None:
        return "xPos (xpos_base)"
    if not 0 < p["n_dims"] <= size or p["n_dims"] % 2 or size % 2:
        return "n_dims is odd or larger than a row"
    if mode == "neox" and p["freq_scale"] != 1:
        return "mode neox applies freq_scale twice: use mode neox_exact"
    return True


def _is_table(node: Node) -> bool | str:
    table = node.sources[0]
    if table.dtype.is_quantized or table.dtype.name in FLOAT_NAMES:
        return node.dtype.name in FLOAT_NAMES or f"rows of {table.dtype.name} as {node.dtype.name}"
    return (node.dtype == table.dtype and table.dtype.name == "int32") or f"rows of {table.dtype.name}"


@op("norm", "rms_norm", in_place=True, dtypes=FLOAT_NAMES, when=_one_source, prepare=True)
def norm(device: Family, node: Node, out: Any, a: Any) -> Step:
    compute, eps, centred = device.library.norm, node.params["eps"], node.op == "norm"
    return device.step_of(lambda x, out=None: compute(x, eps, centred, out), node, out, (a,))


@op("soft_max", in_place=True, dtypes=FLOAT_NAMES, when=_masks, prepare=True)
def soft_max(device: Family, node: Node, out: Any, a: Any, mask: Any = None) -> Step:
    library = device.library
    scale, bias = node.params["scale"], node.params["max_bias"]
    multiply, add, soft_max = library.functions["scale"], library.functions["add"], library.soft_max
    if mask is None:
        if scale == 1:
            return device.step_of(soft_max, node, out, (a,))
        return device.step_of(lambda x, out=None: soft_max(multiply(x, scale), out), node, out, (a,))
    a, out = (axes(library, array, 4) for array in (a, out))
    heads, rows, n = a.shape[1:]
    shared = mask.shape[-2] if len(mask.shape) > 1 else 1
    a, out = (cut(library, array, [[len(array)], [heads], [rows // shared, shared], [n]]) for array in (a, out))
    mask = axes(library, mask, 2)
    slopes = library.constant(_slopes(heads, bias)) if bias > 0 else None

    def masked(x: Any, m: Any, out: Any = None) -> Any:
        m = m if slopes is None else m * slopes
        return soft_max(add(x if scale == 1 else multiply(x, scale), m), out)

    return device.step_of(masked, node, out, (a, mask))


@op("diag_mask_inf", "diag_mask_zero", in_place=True, dtypes=FLOAT_NAMES, when=_one_source, prepare=True)
def diag_mask(device: Family, node: Node, out: Any, a: Any) -> Step:
    rows, n = ne(node.shape)[2:]
    later = np.arange(n) > node.params["n_past"] + np.arange(rows)[:, None]
    later = device.library.constant(later if len(node.shape) > 1 else later[0])
    fill, where = -np.inf if node.op == "diag_mask_inf" else 0.0, device.library.where
    return device.step_of(lambda x, out=None: where(later, fill, x, out), node, out, (a,))


@op("rope", dtypes=FLOAT_NAMES, when=_turns, prepare=True)
def rope(device: Family, node: Node, out: Any, a: Any, positions: Any) -> Step:
    """Rotates pairs of a head by angles that grow with the token's position, computed in double."""
    p, size = node.params, node.shape[-1]
    neox = p["mode"] in ("neox", "neox_exact")
    turned = size if p["mode"] == "normal" else p["n_dims"]
    frequency = p["freq_base"] ** (-2.0 * np.arange(turned // 2) / p["n_dims"]) * p["freq_scale"]
    turns = device.library.turns(positions, frequency, p["attn_factor"])
    rotate = device.library.rotate
    a, out = (axes(device.library, array, 4) for array in (a, out))
    return device.step_of(lambda x, out=None: rotate(x, turns(), turned, neox, out), node, out, (a,))


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

    def rows() -> None:
        try:
            for step in steps:
                step()
        except IndexError as error:
            raise InvalidArgumentError(f"{node}: {error}") from None

    return rows


def _writes(node: Node) -> bool | str:
    if node.dtype.name not in FLOAT_NAMES or node.sources[0].dtype.name not in FLOAT_NAMES:
        return f"rows of {node.sources[0].dtype.name} as {node.dtype.name}"
    return True


@op("set_rows", dtypes=FLOAT_NAMES, when=_writes, prepare=True)
def set_rows(device: Family, node: Node, out: Any, rows: Any, ids: Any, target: Any = None) -> Step:
    """Rows are converted apart, so they may overlap the result."""
    library, (source, *_) = device.library, node.sources
    rows, ids, out = axes(library, rows, 4), axes(library, ids, 3), axes(library, out, 4)
    steps: list[Step] = []
    for i in range(prod(rows.shape[:2]) if prod(rows.shape) else 0):
        at = divmod(i, rows.shape[1])
        places = ids[at[0] % ids.shape[0], at[1] % ids.shape[1]]
        written = library.empty(rows.shape[2:], node.dtype)
        convert = device.conversion(written, node.dtype, rows[at], source.dtype)
        steps.append(then(convert, library.put(out[at], places, written)))

    def write() -> None:
        try:
            for step in steps:
                step()
        except IndexError as error:
            raise InvalidArgumentError(f"{node}: {error}") from None

    return write


def _adds(node: Node) -> bool | str:
    return all(s.dtype.name in FLOAT_NAMES for s in (node, *node.sources[:2])) or "sources of other dtypes"


@op("add_id", in_place=True, dtypes=FLOAT_NAMES, when=_adds, prepare=True)
def add_id(device: Family, node: Node, out: Any, a: Any, b: Any, ids: Any) -> Step:
    library = device.library
    a, out, b, ids = axes(library, a, 3), axes(library, out, 3), axes(library, b, 2), axes(library, ids, 2)
    wide = library.empty((*ids.shape, b.shape[1]))
    floats = device.floats_of(b, node.sources[1].dtype)
    table = b if floats is None else library.empty(b.shape)
    pick = [library.take(table, ids[t], wide[t]) for t in range(ids.shape[0])]
    summed: Any = _Sum(node)
    add = device.step_of(library.functions["add"], summed, out, (a, wide))

    def run() -> None:
        try:
            if floats is not None:
                library.assign_from(table, floats)()
            for step in pick:
                step()
        except IndexError as error:
            raise InvalidArgumentError(f"{node}: {error}") from None
        add()

    return run


class _Sum:
    """The node and its sources after the rows were picked as float32, for ``step_of``."""

    def __init__(self, node: Node) -> None:
        self.dtype = node.dtype
        self.sources = (node.sources[0], _Float32())


class _Float32:
    dtype = F32


def _slopes(n_heads: int, bias: float) -> np.ndarray[Any, Any]:
    """The slopes of ALiBi, as on the CPU. Heads beyond the largest power of two use odd powers of
    the finer base."""
    floor = 1 << (n_heads.bit_length() - 1)
    heads = np.arange(n_heads)
    powers = np.where(heads < floor, (heads + 1) / floor, (2 * (heads - floor) + 1) / (2 * floor))
    return np.exp2(-bias * powers).astype(np.float32)[:, None, None, None]
