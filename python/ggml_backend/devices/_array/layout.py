"""Views that bring the operands of an operator to shapes that an array library takes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from .._nodes import Node
from .library import Library

Shape = tuple[int, ...]


def is_aligned(node: Node) -> bool:
    """Can an array have its strides? They count elements; those of quantized tensors bytes, but for the last axis."""
    if node.dtype.is_quantized:
        return not node.strides or node.strides[-1] == node.dtype.itemsize
    return all(s % node.dtype.itemsize == 0 for s in node.strides)


def axes(library: Library, array: Any, n: int) -> Any:
    """With ``n`` axes: leading ones of size 1 are added or taken away."""
    shape, strides = tuple(array.shape), library.strides(array)
    if len(shape) == n:
        return array
    if len(shape) < n:
        missing = n - len(shape)
        return library.strided(array, (1,) * missing + shape, (0,) * missing + strides)
    return library.strided(array, shape[-n:] if n else (), strides[-n:] if n else ())


def ne(shape: Shape) -> Shape:
    """The sizes of four axes."""
    return (1,) * (4 - len(shape)) + tuple(shape)


def repeats(shape: Shape, of: Shape) -> bool:
    """Does an operand of a shape fill another one when it is repeated?"""
    return all(a == b or (b > 0 and a % b == 0) for a, b in zip(ne(of), ne(shape), strict=True))


def is_broadcast(shape: Shape, of: Shape) -> bool:
    """Is it repeated along axes of one element only, as array libraries do it themselves?"""
    return all(b in (1, a) for a, b in zip(ne(of), ne(shape), strict=True))


def spread(library: Library, whole: Sequence[Any], part: Any) -> list[Any]:
    """Views of arrays of one shape, and last of one that is repeated over them, that broadcast: each axis is cut into
    (times, size) where that one has several elements, but fewer."""
    sizes = list(zip(ne(whole[0].shape), ne(part.shape), strict=True))
    many = [1 < size < n for n, size in sizes]
    of_whole = [[n // size, size] if m else [n] for (n, size), m in zip(sizes, many, strict=True)]
    of_part = [[1, size] if m else [size] for (_, size), m in zip(sizes, many, strict=True)]
    found = [cut(library, axes(library, array, 4), of_whole) for array in whole]
    return [*found, cut(library, axes(library, part, 4), of_part)]


def cut(library: Library, array: Any, parts: Sequence[Sequence[int]]) -> Any:
    """Each axis as several ones, of the sizes given, the last one the fastest."""
    shape: list[int] = []
    strides: list[int] = []
    for sizes, stride in zip(parts, library.strides(array), strict=True):
        for i, size in enumerate(sizes):
            shape.append(size)
            strides.append(stride * prod(sizes[i + 1 :]))
    return library.strided(array, shape, strides)
