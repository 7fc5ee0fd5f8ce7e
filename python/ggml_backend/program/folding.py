"""Tensors of more than four axes as tensors of four.

Neighbouring axes that an operator treats alike are one axis to it: the elements stay where they are. So each operator
sees at most four axes, whatever the number of axes of the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["alike", "around", "moves"]

Shape = tuple[int, ...]
MAX_DIMS = 4


def around(shape: Sequence[int], axis: int) -> Shape:
    """``(before, n, behind)``: one axis, and all axes on both sides of it."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def alike(shapes: Sequence[Sequence[int]], result: Sequence[int]) -> list[Shape] | None:
    """The shapes of operands that broadcast to ``result``, with at most four axes. None if that takes more.

    Axes merge if each operand has all of them, or repeats along all of them. Missing axes count as 1.
    """
    n = len(result)
    full = [(1,) * (n - len(s)) + tuple(s) for s in shapes]
    groups: list[list[int]] = []
    for axis in range(n):
        if result[axis] == 1:
            continue
        if groups and all((s[axis] == 1) == (s[groups[-1][0]] == 1) for s in full):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if len(groups) > MAX_DIMS:
        return None
    return [tuple(math.prod(s[axis] for axis in group) for group in groups) for s in full]


def moves(shape: Sequence[int], order: Sequence[int]) -> list[tuple[Shape, Shape]]:
    """A permutation of any number of axes as steps of at most four.

    Each step is a shape, and an order of its axes. Axes that stay together count as one. A permutation of four or
    fewer is one step. Otherwise each step moves one axis to its place.
    """
    kept = [axis for axis in order if shape[axis] != 1]
    groups: list[list[int]] = []
    for axis in kept:
        between = range(groups[-1][-1] + 1, axis) if groups else range(0)
        if groups and axis > groups[-1][-1] and all(shape[i] == 1 for i in between):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    start = sorted(range(len(groups)), key=lambda i: groups[i][0])  # groups in the order of memory
    sizes = [math.prod(shape[axis] for axis in group) for group in groups]
    if start == [*range(len(groups))]:
        return []
    if len(groups) <= MAX_DIMS:
        return [(tuple(sizes[i] for i in start), tuple(start.index(i) for i in range(len(groups))))]
    steps: list[tuple[Shape, Shape]] = []
    now = start
    for place in range(len(groups)):
        at = now.index(place)
        if at != place:
            parts = now[:place], now[place:at], [place], now[at + 1 :]
            steps.append((tuple(math.prod(sizes[i] for i in part) for part in parts), (0, 2, 1, 3)))
            now = [*parts[0], place, *parts[1], *parts[3]]
    return steps
