"""Runs on their way: ``Scheduler.compute_async`` returns a :class:`Pending`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._data import layout, read_device
from ._errors import InvalidArgumentError, StateError, check
from ._ffi import ffi, lib
from ._handles import Use
from .dtypes import dtype_of_id
from .event import EventCore

if TYPE_CHECKING:
    from ._sched_core import SchedCore
    from .tensor import Tensor

__all__ = ["Flight", "Pending"]


class _Fetch:
    """A result on its way to the host."""

    __slots__ = ("array", "backend", "bytes", "pointer")

    def __init__(self, pointer: Any, backend: Any) -> None:
        self.pointer = pointer
        self.backend = backend
        self.array: np.ndarray[Any, Any] | None = None
        self.bytes = np.empty(lib.ggml_nbytes(pointer), np.uint8)

    def queue(self) -> bool:
        """Behind the work of the backend that computes it; False if only the host can fetch it, when all is done."""
        backend = self.backend
        buffer = lib.gbpy_buffer(self.pointer)
        if not buffer or not lib.ggml_backend_buft_supports_backend(lib.ggml_backend_buffer_get_type(buffer), backend):
            return False
        data = ffi.from_buffer(self.bytes)
        check(lib.ggml_backend_tensor_get_async(backend, self.pointer, data, 0, self.bytes.nbytes), "Scheduler.compute_async")
        return True

    def finished(self) -> np.ndarray[Any, Any]:
        if self.array is None:
            dtype = dtype_of_id(self.pointer.type)
            shape, strides = layout(self.pointer, dtype)
            array: np.ndarray[Any, Any] = np.ndarray(shape, np.dtype(dtype.typestr), self.bytes.data, 0, strides)
            self.array = np.ascontiguousarray(array).reshape(shape)
        return self.array


class Flight:
    """One run: marks behind it in each device's queue, and the results that it fetches. Kept by the scheduler until it is complete, since
    queues write into it."""

    __slots__ = ("events", "fetches", "state")

    def __init__(self, core: SchedCore, results: Sequence[Tensor]) -> None:
        self.state: str = "running"  # "done", "failed"
        self.fetches: list[_Fetch] = [_Fetch(t._p, _computed_by(core, t)) for t in results]
        self.events: list[EventCore] = [EventCore(b) for b in core.backends if not b.is_cpu]

    def issued(self, core: SchedCore) -> None:
        """Its run was issued: results are fetched and marks set behind it."""
        queued = [f.queue() for f in self.fetches]
        if all(queued):
            for event in self.events:
                event.record()
            return
        core.synchronize()  # no queue can bring them
        for f in self.fetches:
            f.array = read_device(f.pointer)

    def wait(self, core: SchedCore) -> None:
        """Called while `core` is in use."""
        if self.state == "running":
            try:
                for event in self.events:
                    event.synchronize()
            except BaseException:
                self.state = "failed"
                core.synchronize()  # raises the same, and makes the scheduler usable again
                raise
            if self.state == "running":
                self.state = "done"

    def check(self) -> None:
        """Raises if the run was lost."""
        if self.state == "failed":
            raise StateError("Pending: the computation failed, or was stopped")


def _computed_by(core: SchedCore, t: Tensor) -> Any:
    """The C backend of a result that may be fetched: one whose memory is its own to the end of the graph."""
    p = t._live()
    backend = lib.ggml_backend_sched_get_node_backend(core.ptr, p)
    if not backend:
        raise InvalidArgumentError(f"compute_async: {t.describe()} is not in the graph")
    if not lib.ggml_is_output(p) and not (p.view_src and lib.ggml_is_output(p.view_src)):
        raise InvalidArgumentError(f"compute_async: {t.describe()} is no output of the graph; call set_output() on it before")
    return backend


class Pending:
    """A run that :meth:`Scheduler.compute_async` has started."""

    __slots__ = ("_core", "_flight")

    def __init__(self, core: SchedCore, flight: Flight) -> None:
        self._core: SchedCore | None = core  # until the run is complete
        self._flight = flight

    def wait(self) -> None:
        """Waits for this run, not for those that were started after it. Raises its failure."""
        core = self._core
        if core is not None:
            with Use("Pending.wait", core, *core.backends):
                try:
                    self._flight.wait(core)
                finally:
                    self._core = None
        self._flight.check()

    def results(self) -> list[np.ndarray[Any, Any]]:
        """Waits, and returns copies of the tensors that ``compute_async`` was asked for, as this run computed them."""
        self.wait()
        return [f.finished() for f in self._flight.fetches]

    def __repr__(self) -> str:
        return f"<Pending {self._flight.state}>"
