"""Operators that move elements: copies between dtypes and layouts, repetition, concatenation."""

from __future__ import annotations

from typing import Any

from ...dtypes import DType
from .._nodes import Node
from ..device import op
from .family import Family
from .layout import axes, ne, repeats, spread
from .library import FLOATS, Step


def _converts(to: DType, of: DType) -> bool:
    return of == to or (to in FLOATS and (of in FLOATS or of.is_quantized))


def _copies(node: Node) -> bool | str:
    source = node.sources[0]
    if node.dtype.is_quantized:
        return f"the result is {node.dtype.name}, and ARRAY cannot quantize"
    if not _converts(node.dtype, source.dtype):
        return f"{source.dtype.name} as {node.dtype.name}"
    return node.size == source.size or "shapes of different sizes"


def _repeats(node: Node) -> bool | str:
    source = node.sources[0]
    if node.dtype != source.dtype or node.dtype.is_quantized:
        return f"{source.dtype.name} as {node.dtype.name}"
    return repeats(source.shape, node.shape) or "a result whose sizes are no multiples of those of the source"


def _joins(node: Node) -> bool | str:
    same = all(s.dtype == node.dtype and not s.dtype.is_quantized for s in node.sources)
    return (same and len(node.sources) == 2) or "sources of different dtypes"


@op("cpy", "cont", "dup", dtypes="all", when=_copies, prepare=True)
def copy_elements(device: Family, node: Node, out: Any, source: Any, target: Any = None) -> Step:
    library, to, of = device.library, node.dtype, node.sources[0].dtype
    if ne(node.shape) == ne(node.sources[0].shape):
        n = max(len(out.shape), len(source.shape))
        return device.conversion(axes(library, out, n), to, axes(library, source, n), of)
    if of.is_quantized:
        return _copy_in_order(device, out, to, source, of)
    seen = library.reshaped(source, out.shape)
    if seen is not None:
        return device.conversion(out, to, seen, of)
    seen = library.reshaped(out, source.shape)
    if seen is not None:
        return device.conversion(seen, to, source, of)
    return _copy_in_order(device, out, to, source, of)


def _copy_in_order(device: Family, out: Any, to: DType, source: Any, of: DType) -> Step:
    """Copies between layouts that have no view of each other's shape."""
    library = device.library
    read, write = device.floats_of(source, of), library.writer(out, to)
    if of == to:
        return library.assign_from(out, lambda: library.copy_of(source).reshape(out.shape))
    floats = read or (lambda: source)
    if write is None:
        return library.assign_from(out, lambda: library.copy_of(floats()).reshape(out.shape))
    store = write
    return lambda: store(library.copy_of(floats()).reshape(out.shape))


@op("repeat", dtypes="dense", when=_repeats, prepare=True)
def repeat(device: Family, node: Node, out: Any, source: Any, like: Any = None) -> Step:
    library = device.library
    out, source = spread(library, (out,), source)
    return library.assign(out, source)


@op("concat", dtypes="dense", when=_joins, prepare=True)
def concat(device: Family, node: Node, out: Any, a: Any, b: Any) -> Step:
    """Concatenates along the axis before the last two."""
    library = device.library
    out, a, b = (axes(library, array, 4) for array in (out, a, b))
    n = a.shape[1]
    first, second = library.assign(out[:, :n], a), library.assign(out[:, n:], b)

    def both() -> None:
        first()
        second()

    return both
