"""Triangles, diagonals and embeddings of time steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._nodes import Node
from ..device import op
from .family import FLOAT_NAMES, Family, then
from .layout import axes, ne
from .library import Step


def _is_triangle(node: Node) -> bool | str:
    return node.params["kind"] in ("upper_diag", "upper", "lower_diag", "lower") or "an unknown triangle"


@op("tri", in_place=True, dtypes=FLOAT_NAMES, when=_is_triangle, prepare=True)
def tri(device: Family, node: Node, out: Any, a: Any) -> Step:
    kind, (rows, n) = node.params["kind"], ne(node.shape)[2:]
    above = np.arange(n) - np.arange(rows)[:, None]
    outside = {"upper_diag": above < 0, "upper": above <= 0, "lower_diag": above > 0, "lower": above >= 0}[kind]
    dropped, where = device.library.constant(outside), device.library.where
    a, out = (axes(device.library, array, 4) for array in (a, out))
    return device.step_of(lambda x, out=None: where(dropped, 0.0, x, out), node, out, (a,))


@op("solve_tri", dtypes=FLOAT_NAMES, prepare=True)
def solve_tri(device: Family, node: Node, out: Any, a: Any, b: Any) -> Step:
    return device.value_of(device.library.solve_lower, node, out, (a, b))


@op("diag", dtypes="dense", prepare=True)
def diag(device: Family, node: Node, out: Any, a: Any) -> Step:
    """Zeros, and a row on the diagonal of each matrix."""
    library = device.library
    out, a = axes(library, out, 4), axes(library, a, 4)
    *outer, row, column = library.strides(out)
    diagonal = library.strided(out, (*out.shape[:2], out.shape[3]), (*outer, row + column))
    return then(library.clear(out), library.assign(diagonal, a[:, :, 0]))


@op("timestep_embedding", dtypes=FLOAT_NAMES, prepare=True)
def timestep_embedding(device: Family, node: Node, out: Any, t: Any) -> Step:
    """Cosines, then sines; a last column of zeros if the size is odd."""
    library, half = device.library, node.shape[-1] // 2
    read = device.floats_of(t, node.sources[0].dtype)
    frequencies = node.params["max_period"] ** (-np.arange(half) / max(half, 1))

    def embedded() -> Any:
        column = (t if read is None else read()).reshape(-1, 1)
        cosines, sines = (part[:, 0] for part in library.turns(column, frequencies[None], 1.0)())
        odd = library.xp.zeros_like(column)[:, : node.shape[-1] % 2]
        return library.xp.concat([cosines, sines, odd], axis=1).reshape(out.shape)

    return device.value_of(embedded, node, out, ())
