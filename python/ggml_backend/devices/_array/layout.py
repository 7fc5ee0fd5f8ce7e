"""Views that give operands the shapes that an array library accepts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from .._nodes import Node
from .library import Library

Shape = tuple[int, ...]


def is_aligned(node: Node) -> bool:
    """True if an array can have the node's strides. Strides count elements. Those of quantized
    tensors count bytes, except for the last axis."""
    if node.dtype.is_quantized:
        return not node.strides or node.strides[-1] == node.dtype.itemsize
    return all(s % node.dtype.itemsize == 0 for s in node.strides)


def axes(library: Library, array: Any, n: int) -> Any:
    """A view with ``n`` axes: adds or removes leading axes of size 1."""
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
    """True if an operand of ``shape`` can be repeated to the shape ``of``."""
    return all(a == b or (b > 0 and a % b == 0) for a, b in zip(ne(of), ne(shape), strict=True))


def is_broadcast(shape: Shape, of: Shape) -> bool:
    """True if it repeats only along axes of one element, as array libraries broadcast."""
    return all(b in (1, a) for a, b in zip(ne(of), ne(shape), strict=True))


Sizes = list[list[int]]


def repetition(of: Shape, shape: Shape) -> tuple[Sizes, Sizes]:
    """How :func:`cut` splits four axes of an array of shape ``of``, and of one that repeats over it, so
    that they broadcast. Axes along which a part of several elements repeats become (times, size)."""
    sizes = list(zip(ne(of), ne(shape), strict=True))
    many = [1 < size < n for n, size in sizes]
    whole = [[n // size, size] if m else [n] for (n, size), m in zip(sizes, many, strict=True)]
    part = [[1, size] if m else [size] for (_, size), m in zip(sizes, many, strict=True)]
    return whole, part


def spread(library: Library, whole: Sequence[Any], part: Any) -> list[Any]:
    """Views that broadcast: of arrays of one shape, and last of an array that repeats over them."""
    of_whole, of_part = repetition(whole[0].shape, part.shape)
    found = [cut(library, axes(library, array, 4), of_whole) for array in whole]
    return [*found, cut(library, axes(library, part, 4), of_part)]


def cut(library: Library, array: Any, parts: Sequence[Sequence[int]]) -> Any:
    """A view that splits each axis into axes of the given sizes."""
    shape: list[int] = []
    strides: list[int] = []
    for sizes, stride in zip(parts, library.strides(array), strict=True):
        for i, size in enumerate(sizes):
            shape.append(size)
            strides.append(stride * prod(sizes[i + 1 :]))
    return library.strided(array, shape, strides)
