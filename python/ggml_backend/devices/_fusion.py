"""Neighbouring operators in one call of the library: what lies between them is never stored.

Only results that nobody else reads are left out (``Call.may_leave_out``). A group of calls is computed where its last
one stands; so nothing between its calls may write what they read, and the last result may not lie on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._devices.program import Call
from ._layout import axes, ne
from ._library import F32, Library, Step

Made = tuple[Step, tuple[int, ...]]
"""A step, and the numbers of the calls that it takes the place of; the last one is where it stands."""


class Fusion:
    """The calls of a plan, with what is asked about them when groups are looked for."""

    def __init__(self, library: Library, calls: Sequence[Call]) -> None:
        self.library = library
        self.calls = calls
        self._writes = [library.span(call.out) for call in calls]

    def inner(self, reader: int, k: int, *ops: str) -> int:
        """The call that source ``k`` of a reader is the whole result of, if it need not be stored; else -1."""
        i = self.calls[reader].of[k]
        if i < 0 or not self.calls[i].may_leave_out or self.calls[i].node.op not in ops:
            return -1
        return i if self.calls[i].node.size == self.calls[reader].node.sources[k].size else -1

    def plain(self, i: int) -> bool:
        """Is all of it float32?"""
        node = self.calls[i].node
        return all(t.dtype == F32 for t in (node, *node.sources))

    def whole(self, reader: int, k: int, i: int) -> bool:
        """Does a reader see the result of a call as it is, in the same shape?"""
        seen, node = self.calls[reader].node.sources[k], self.calls[i].node
        return ne(seen.shape) == ne(node.shape) and seen.strides[::-1][: len(node.shape)] == node.strides[::-1]

    def is_safe(self, group: Sequence[int], reads: Iterable[Any]) -> bool:
        """Can the group be computed where its last call stands?"""
        spans = [self.library.span(array) for array in reads]
        others = [self._writes[i] for i in range(group[0], group[-1] + 1) if i not in group[:-1]]
        return not any(a < end and begin < b for a, b in others for begin, end in spans)

    def overlaps(self, i: int, array: Any) -> bool:
        """Does a call write what is in an array?"""
        (a, b), (begin, end) = self._writes[i], self.library.span(array)
        return bool(a < end and begin < b)

    def steps(self, step: Callable[[Call], Step]) -> list[tuple[Step, Call]]:
        """All steps: groups where there are any, else one for each call."""
        taken: set[int] = set()
        made: dict[int, Step] = {}
        for find in (attention, linear, layer_norm):
            for i in range(len(self.calls)):
                found = None if i in taken else find(self, i)
                if found is not None and not taken.intersection(found[1]):
                    made[found[1][-1]] = found[0]
                    taken.update(found[1])
        return [
            (made[i] if i in made else step(call), call)
            for i, call in enumerate(self.calls)
            if i in made or i not in taken
        ]


def linear(f: Fusion, i: int) -> Made | None:
    """MUL_MAT, ADD of one row: ``addmm``."""
    call = f.calls[i]
    if call.node.op != "add" or not f.plain(i):
        return None
    p = f.inner(i, 0, "mul_mat")
    if p < 0 or not f.plain(p) or not f.whole(i, 0, p):
        return None
    w, x = f.calls[p].sources
    bias, n = call.sources[1], w.shape[-2]
    if ne(w.shape)[:2] != (1, 1) or ne(bias.shape) != (1, 1, 1, n) or not f.is_safe((p, i), (w, x, bias)):
        return None
    rows = f.library.reshaped(x, (-1, x.shape[-1]))
    out = f.library.reshaped(call.out, (-1, n))
    if rows is None or out is None:
        return None
    return f.library.linear(rows, axes(f.library, w, 2), axes(f.library, bias, 1), out), (p, i)


def layer_norm(f: Fusion, i: int) -> Made | None:
    """NORM, MUL by one row, ADD of one row."""
    call = f.calls[i]
    if call.node.op != "add" or not f.plain(i):
        return None
    m = f.inner(i, 0, "mul")
    n = f.inner(m, 0, "norm") if m >= 0 and f.plain(m) and f.whole(i, 0, m) else -1
    if n < 0 or not f.plain(n) or not f.whole(m, 0, n):
        return None
    x, gain, bias = f.calls[n].sources[0], f.calls[m].sources[1], call.sources[1]
    row = (1, 1, 1, x.shape[-1])
    if ne(gain.shape) != row or ne(bias.shape) != row or not f.is_safe((n, m, i), (gain, bias)):
        return None
    if not f.is_safe((n, m), (x,)) or any(f.overlaps(j, x) for j in range(m + 1, i)):
        return None
    if f.overlaps(i, x) and f.library.place(x) != f.library.place(call.out):
        return None  # on the same place it is read before it is written
    gain, bias = (axes(f.library, a, 1) for a in (gain, bias))
    return f.library.layer_norm(x, gain, bias, f.calls[n].node.params["eps"], call.out), (n, m, i)


def attention(f: Fusion, i: int) -> Made | None:
    """MUL_MAT, SCALE, ADD of a mask, SOFT_MAX, MUL_MAT; with a copy of the values before, and one of the result after
    it."""
    last = f.calls[i]
    if last.node.op != "mul_mat" or not f.plain(i):
        return None
    s = f.inner(i, 1, "soft_max")
    if s < 0 or not f.plain(s) or len(f.calls[s].sources) > 1 or f.calls[s].node.params["scale"] != 1:
        return None
    at, group, mask, scale = s, [s, i], None, 1.0
    a = f.inner(at, 0, "add")
    if a >= 0 and f.plain(a) and f.whole(at, 0, a):
        at, mask = a, f.calls[a].sources[1]
        group.append(a)
    c = f.inner(at, 0, "scale")
    if c >= 0 and f.plain(c) and f.whole(at, 0, c):
        at, scale = c, f.calls[c].node.params["s"]
        group.append(c)
    p = f.inner(at, 0, "mul_mat")
    if p < 0 or not f.plain(p) or not f.whole(at, 0, p):
        return None
    group.append(p)
    k, q = f.calls[p].sources
    v = last.sources[0]  # with its last axes exchanged
    copied = f.inner(i, 0, "cont", "cpy")
    if copied >= 0 and f.plain(copied) and ne(f.calls[copied].node.shape) == ne(f.calls[copied].node.sources[0].shape):
        v = f.calls[copied].sources[0]
        group.append(copied)
    q, k, v = (axes(f.library, x, 4) for x in (q, k, v))
    if q.shape[:2] != k.shape[:2] or q.shape[:2] != v.shape[:2]:
        return None
    if mask is not None:
        mask = axes(f.library, mask, 4)
        if any(m not in (1, n) for m, n in zip(mask.shape, ne(f.calls[p].node.shape), strict=True)):
            return None
    reads = [array for array in (q, k, v, mask) if array is not None]
    group.sort()
    if not f.is_safe(group, reads):
        return None
    return f.library.attention(q, k, v.swapaxes(-1, -2), mask, scale, axes(f.library, last.out, 4)), tuple(group)
