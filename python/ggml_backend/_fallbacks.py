"""Heavy operations that run on a device of lower priority, because those of higher priority do not take them: said once for each plan, as a
:class:`PerformanceWarning`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._errors import PerformanceWarning
from ._ffi import ffi, lib
from ._handles import address
from ._pictures.data import size_text
from .buffer import text

__all__ = ["HEAVY_BYTES", "HEAVY_FLOPS", "Fallback", "fallbacks", "warn_of"]

HEAVY_FLOPS = 1 << 20
HEAVY_BYTES = 1 << 20
_SHOWN = 3

_VIEWS = {lib.GGML_OP_NONE, lib.GGML_OP_RESHAPE, lib.GGML_OP_VIEW, lib.GGML_OP_PERMUTE, lib.GGML_OP_TRANSPOSE}
_PRODUCTS = {lib.GGML_OP_MUL_MAT: 0, lib.GGML_OP_MUL_MAT_ID: 0, lib.GGML_OP_OUT_PROD: 1}  # the dimension of the first source that is summed


@dataclass(frozen=True)
class Fallback:
    """A heavy node, where it runs, and what each backend of higher priority says that does not take it."""

    name: str
    op: str
    flops: int
    bytes: int
    backend: str
    refusals: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        why = "; ".join(f"not on {name}: {reason}" for name, reason in self.refusals)
        amount = f"{self.flops / 1e6:,.0f} MFLOP" if self.flops >= HEAVY_FLOPS else size_text(self.bytes)
        return f"{self.op} {self.name!r} ({amount}) runs on {self.backend}, {why}"


def _work(node: Any) -> tuple[int, int]:
    """Operations of a matrix product, and bytes of results that the node reads and writes: what has to travel when it runs elsewhere."""
    flops = 0
    if node.op in _PRODUCTS:
        flops = 2 * lib.ggml_nelements(node) * node.src[0].ne[_PRODUCTS[node.op]]
    read = sum(lib.ggml_nbytes(s) for s in ffi.unpack(node.src, lib.GGML_MAX_SRC) if s and s.op != lib.GGML_OP_NONE)
    return flops, read + lib.ggml_nbytes(node)


_Backends = Sequence[tuple[Any, str, bool]]  # C backend, name, is it a CPU; in the scheduler's order


def _refusals(node: Any, above: _Backends) -> tuple[tuple[str, str], ...]:
    reasons = [(name, lib.ggml_backend_unsupported_reason(b, node)) for b, name, is_cpu in above if not is_cpu]
    return tuple((name, text(reason)) for name, reason in reasons if reason)


def fallbacks(sched: Any, graph: Any, backends: _Backends, chosen: Collection[int]) -> list[Fallback]:
    """Of the graph that a C scheduler planned last. ``chosen``: addresses of nodes whose backend the user chose."""
    index = {b: i for i, (b, _, _) in enumerate(backends)}
    found = []
    for node in ffi.unpack(graph.nodes, graph.n_nodes):
        i = index.get(lib.ggml_backend_sched_get_node_backend(sched, node), 0)
        if i == 0 or node.op in _VIEWS or address(node) in chosen:
            continue
        flops, moved = _work(node)
        if flops >= HEAVY_FLOPS or moved >= HEAVY_BYTES:
            refusals = _refusals(node, backends[:i])
            if refusals:
                found.append(Fallback(text(node.name), text(lib.ggml_op_desc(node)), flops, moved, backends[i][1], refusals))
    return found


def _stack_level() -> int:
    """Of the first frame outside of this package, for ``warnings.warn`` in the calling function."""
    folder, frame, level = str(Path(__file__).parent), sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(folder):
        frame, level = frame.f_back, level + 1
    return level


def warn_of(found: Sequence[Fallback]) -> None:
    """One warning for all of them, with the heaviest first."""
    if not found:
        return
    order = sorted(found, key=lambda f: (-f.flops, -f.bytes))
    lines = [f"  {f}" for f in order[:_SHOWN]]
    if len(order) > _SHOWN:
        lines.append(f"  and {len(order) - _SHOWN} more")
    count = "a heavy operation does" if len(order) == 1 else f"{len(order)} heavy operations do"
    message = "\n".join(
        [
            f"{count} not run on the device of the highest priority:",
            *lines,
            "  Use types and operations that the device takes, choose the place with Scheduler.set_backend (which silences this), or "
            "ignore ggml_backend.PerformanceWarning.",
        ]
    )
    warnings.warn(message, PerformanceWarning, stacklevel=_stack_level())
