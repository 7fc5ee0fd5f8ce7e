"""Warnings about slow plans: heavy operations on a device of lower priority, because a faster one does
not support them, and weights that are copied because their buffer is not marked. Each plan warns
once, by a :class:`PerformanceWarning`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._base.errors import PerformanceWarning, check
from .._base.errors.faults import message_of
from .._base.text import count, size_text
from .._ffi import ffi, lib
from ..backend.buffer import text

__all__ = ["Fallback", "heavy_fallbacks", "unmarked_weights", "warn_of", "warn_of_weights"]

_SHOWN = 3
_HEAVY_WEIGHTS = 1 << 20
"""Bytes of a plan's copies."""


@dataclass(frozen=True)
class Fallback:
    """A node, its device, the device that does not support it, and the reason."""

    name: str
    op: str
    flops: float
    n_copies: int
    copied_bytes: int
    backend: str
    refused_by: str
    reason: str

    def __str__(self) -> str:
        tensors = count(self.n_copies, "tensor")
        copies = f"; that costs copies of {tensors}, {size_text(self.copied_bytes)}" if self.n_copies else ""
        amount = f" ({self.flops / 1e6:,.0f} MFLOP)" if self.flops >= 1e6 else ""
        return (
            f"{self.op} {self.name!r}{amount} runs on {self.backend}, not on {self.refused_by}: {self.reason}{copies}"
        )


def heavy_fallbacks(sched: Any, backends: Sequence[tuple[Any, str, bool]]) -> list[Fallback]:
    """Heavy fallbacks of the last plan of a C scheduler. ``backends``: C backend, name, True for a
    CPU. Fallbacks between CPUs do not count."""
    f = ffi.new("struct ggml_backend_sched_fallback *")
    found = []
    for i in range(lib.ggml_backend_sched_get_n_fallbacks(sched)):
        check(lib.ggml_backend_sched_get_fallback(sched, i, f), "Scheduler")
        (backend,) = (name for b, name, _ in backends if b == f.backend)
        ((refused_by, is_cpu),) = ((name, cpu) for b, name, cpu in backends if b == f.refused_by)
        if f.is_heavy and not is_cpu:
            work = (float(f.flops), int(f.n_copies), int(f.copied_bytes))
            found.append(
                Fallback(text(f.name), text(lib.ggml_op_name(f.op)), *work, backend, refused_by, message_of(f.reason))
            )
    return found


def _stack_level() -> int:
    """The level of the first frame outside of this package, for ``warnings.warn`` in the calling
    function."""
    folder, frame, level = str(Path(__file__).parents[1]), sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(folder):
        frame, level = frame.f_back, level + 1
    return level


def warn_of(found: Sequence[Fallback]) -> None:
    """One warning for all fallbacks, the heaviest first."""
    if not found:
        return
    order = sorted(found, key=lambda f: (-f.flops, -f.copied_bytes))
    lines = [f"  {f}" for f in order[:_SHOWN]]
    if len(order) > _SHOWN:
        lines.append(f"  and {len(order) - _SHOWN} more")
    count = "a heavy operation does" if len(order) == 1 else f"{len(order)} heavy operations do"
    message = "\n".join(
        [
            f"{count} not run on the device of the highest priority:",
            *lines,
            (
                "  Use types and operations that the device supports, assign nodes with Scheduler.set_backend"
                " (which silences this), or ignore ggml_backend.errors.PerformanceWarning."
            ),
        ]
    )
    warnings.warn(message, PerformanceWarning, stacklevel=_stack_level())


def unmarked_weights(sched: Any, names: dict[Any, str]) -> list[tuple[str, int, str, str, bool]]:
    """Unmarked weights of the last plan of a C scheduler: name, bytes, source, target, and if they are
    copied in each run."""
    t = ffi.new("struct ggml_backend_sched_transfer *")
    found = []
    for i in range(lib.ggml_backend_sched_get_n_transfers(sched)):
        check(lib.ggml_backend_sched_get_transfer(sched, i, t), "Scheduler")
        if t.is_unmarked:
            found.append((text(t.tensor.name), int(t.size), names[t.source], names[t.target], not t.is_kept))
    return found


def warn_of_weights(found: Sequence[tuple[str, int, str, str, bool]]) -> None:
    """One warning for all weights, the largest first."""
    total = sum(size for _, size, *_ in found)
    if total < _HEAVY_WEIGHTS:
        return
    order = sorted(found, key=lambda w: -w[1])
    lines = []
    for name, size, source, target, always in order[:_SHOWN]:
        lines.append(f"  {name!r} ({size_text(size)}) from {source} to {target}{', in each run' if always else ''}")
    if len(order) > _SHOWN:
        lines.append(f"  and {len(order) - _SHOWN} more")
    message = "\n".join(
        [
            (
                f"{size_text(total)} that look like weights are copied to another device, because their buffers"
                " have the usage 'any':"
            ),
            *lines,
            (
                "  Set usage='weights' (Backend.allocate, Context.allocate, Buffer.usage), so that their readers run"
                " on their device, or ignore ggml_backend.errors.PerformanceWarning."
            ),
        ]
    )
    warnings.warn(message, PerformanceWarning, stacklevel=_stack_level())
