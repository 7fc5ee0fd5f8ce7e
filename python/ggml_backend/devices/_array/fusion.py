"""Fusion of neighbouring operators into one library call. Intermediate results are not stored.

Fusion omits only results without another reader (``Call.may_leave_out``). A group runs at the
position of its last call. So no call in between may write the group's sources. The result may
overwrite a source only if the group reads all sources first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._program import Call
from .layout import axes, ne
from .library import F32, Library, Step

Made = tuple[dict[int, Step], tuple[int, ...]]
"""Steps by the number of the call where each runs, and all calls that they replace."""


class Fusion:
    """The calls of a plan, with the queries that finding groups needs."""

    def __init__(self, library: Library, calls: Sequence[Call]) -> None:
        self.library = library
        self.calls = calls
        self._writes = [library.span(call.out) for call in calls]

    def inner(self, reader: int, k: int, *ops: str) -> int:
        """The call whose whole result is source ``k``, if that result need not be stored; else
        -1."""
        i = self.calls[reader].of[k]
        if i < 0 or not self.calls[i].may_leave_out or self.calls[i].node.op not in ops:
            return -1
        return i if self.calls[i].node.size == self.calls[reader].node.sources[k].size else -1

    def plain(self, i: int) -> bool:
        """True if all arrays are float32."""
        node = self.calls[i].node
        return all(t.dtype == F32 for t in (node, *node.sources))

    def whole(self, reader: int, k: int, i: int) -> bool:
        """True if a reader sees the result of a call unchanged, in the same shape."""
        seen, node = self.calls[reader].node.sources[k], self.calls[i].node
        return ne(seen.shape) == ne(node.shape) and seen.strides[::-1][: len(node.shape)] == node.strides[::-1]

    def is_safe(self, group: Sequence[int], *reads: tuple[int, Any], buffered: bool = False) -> bool:
        """True if the group can run at the position of its last call.

        reads: arrays, each with the first call of the group that reads it
        buffered: True if all arrays are read before the result is written
        """
        last = group[-1]
        for first, array in reads:
            begin, end = self.library.span(array)
            for i in range(first, last if buffered else last + 1):
                written, upto = self._writes[i]
                if (i == last or i not in group) and written < end and begin < upto:
                    return False
        return True

    def steps(self, step: Callable[[Call], Step]) -> list[tuple[Step, Call]]:
        """All steps: one for each group, and one for each other call."""
        taken: set[int] = set()
        made: dict[int, Step] = {}
        for find in (attention, linear, layer_norm):
            for i in range(len(self.calls)):
                found = None if i in taken else find(self, i)
                if found is not None and not taken.intersection(found[1]):
                    made.update(found[0])
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
    if ne(w.shape)[:2] != (1, 1) or ne(bias.shape) != (1, 1, 1, n) or not f.is_safe((p, i), (p, w), (p, x), (i, bias)):
        return None
    rows = f.library.reshaped(x, (-1, x.shape[-1]))
    out = f.library.reshaped(call.out, (-1, n))
    if rows is None or out is None:
        return None
    return {i: f.library.linear(rows, axes(f.library, w, 2), axes(f.library, bias, 1), out)}, (p, i)


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
    if ne(gain.shape) != row or ne(bias.shape) != row:
        return None
    group = (n, m, i)
    if not f.is_safe(group, (n, x), (m, gain), (i, bias), buffered=True):
        return None
    gain, bias = (axes(f.library, a, 1) for a in (gain, bias))
    return {i: f.library.layer_norm(x, gain, bias, f.calls[n].node.params["eps"], call.out)}, group


def attention(f: Fusion, i: int) -> Made | None:
    """MUL_MAT, SCALE, ADD of a mask, SOFT_MAX, MUL_MAT with values that a CONT has transposed. The
    fused step copies them as rows."""
    library, last = f.library, f.calls[i]
    s = f.inner(i, 1, "soft_max") if last.node.op == "mul_mat" and f.plain(i) else -1
    c = f.inner(i, 0, "cont") if s >= 0 else -1
    if c < 0 or not f.plain(c) or not f.plain(s) or len(f.calls[s].sources) > 1 or f.calls[s].node.params["scale"] != 1:
        return None
    found = _scores(f, s) if f.whole(i, 1, s) and f.whole(i, 0, c) else None
    if found is None:
        return None
    p, mask_at, mask, scale, inner = found
    columns, copied = (axes(library, a, 4) for a in (f.calls[c].sources[0], f.calls[c].out))
    k, q = (axes(library, a, 4) for a in f.calls[p].sources)
    rows = library.reshaped(copied, (*copied.shape[:2], copied.shape[3], copied.shape[2]))
    if columns.shape != copied.shape or rows is None or not q.shape[:2] == k.shape[:2] == rows.shape[:2]:
        return None
    reads = [(p, q), (p, k)]
    if mask is not None:
        mask = axes(library, mask, 4)
        reads.append((mask_at, mask))
        if any(m not in (1, n) for m, n in zip(mask.shape, (*q.shape[:3], k.shape[2]), strict=True)):
            return None
    group = tuple(sorted((c, *inner, s, i)))
    if not f.is_safe((*inner, s, i), *reads, buffered=True):
        return None
    attend = library.assign_from(axes(library, last.out, 4), lambda: library.attend(q, k, rows, mask, scale))
    return {c: library.assign(rows, columns.swapaxes(-1, -2)), i: attend}, group


def _scores(f: Fusion, s: int) -> tuple[int, int, Any, float, tuple[int, ...]] | None:
    """The inputs of a softmax: the product, the call that adds the mask, the mask (or None), the
    scale, all calls."""
    at, mask, scale, mask_at = s, None, 1.0, s
    inner: list[int] = []
    a = f.inner(at, 0, "add")
    if a >= 0 and f.plain(a) and f.whole(at, 0, a):
        at, mask, mask_at = a, f.calls[a].sources[1], a
        inner.append(a)
    c = f.inner(at, 0, "scale")
    if c >= 0 and f.plain(c) and f.whole(at, 0, c):
        at, scale = c, f.calls[c].node.params["s"]
        inner.append(c)
    p = f.inner(at, 0, "mul_mat")
    if p < 0 or not f.plain(p) or not f.whole(at, 0, p):
        return None
    return p, mask_at, mask, scale, (p, *reversed(inner))
