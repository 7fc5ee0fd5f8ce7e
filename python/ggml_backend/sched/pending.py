"""Pending runs: ``Scheduler.compute_async`` returns a :class:`Pending`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import NOT_GIVEN, raise_last
from .._base.errors.messages import made_by
from .._base.handles import Core, Local
from .._ffi import ffi, lib
from ..tensor._arrays import array_of
from ..tensor._callbacks import Run, raise_abort_errors

if TYPE_CHECKING:
    from ..tensor.tensor import Tensor
    from .scheduler import SchedCore

__all__ = ["Fetch", "Pending"]


class Fetch:
    """A result that is being copied to the host. C writes into ``bytes`` until the run is complete."""

    __slots__ = ("array", "bytes", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        pointer = tensor._live()
        self.tensor: Tensor = tensor
        self.array: np.ndarray[Any, Any] | None = None
        self.bytes: np.ndarray[Any, Any] = np.empty(lib.ggml_nbytes(pointer), np.uint8)

    def finished(self) -> np.ndarray[Any, Any]:
        if self.array is None:
            self.array = array_of(self.tensor._p, self.bytes)
        return self.array


class Pending(Local):
    """A run that :meth:`Scheduler.compute_async` has started."""

    __slots__ = ("_core", "_fetches", "_outcome", "_run")

    def __init__(
        self,
        core: SchedCore = NOT_GIVEN,
        outcome: Any = None,
        fetches: list[Fetch] = NOT_GIVEN,
        run: Run | None = None,
    ) -> None:
        self._outcome = outcome
        made_by(core, Core, "Pending", "scheduler.compute_async(graph)")
        self._core = core
        self._fetches = fetches
        self._run = run

    def __del__(self) -> None:
        outcome = getattr(self, "_outcome", None)
        if outcome is not None:
            outcome.held = False  # from now on synchronize() reports its failure

    def wait(self) -> None:
        """Waits for this run, not for later ones. Raises its failure, on any thread."""
        core = self._core
        status = lib.gbpy_sched_wait(core.h, self._outcome)
        if self._run is not None:
            self._run.finish()
        raise_abort_errors(core.backends)
        if status:
            raise_last("Pending", status)

    def results(self) -> list[np.ndarray[Any, Any]]:
        """Waits, and returns copies of the results that were passed to ``compute_async``."""
        self.wait()
        return [f.finished() for f in self._fetches]

    def __repr__(self) -> str:
        state = lib.gbpy_run_state(self._outcome)
        return f"<Pending {'running' if state == 0 else 'done' if state > 0 else 'failed'}>"


def fetch_arrays(fetches: list[Fetch]) -> tuple[Any, Any]:
    """Arguments for C: the tensors, and addresses for their bytes."""
    tensors = ffi.new("struct ggml_tensor *[]", [f.tensor._p for f in fetches] or 1)
    where = ffi.new("void *[]", [ffi.cast("void *", f.bytes.ctypes.data) for f in fetches] or 1)
    return tensors, where
