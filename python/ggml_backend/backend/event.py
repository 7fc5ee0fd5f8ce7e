"""Events: marks in the work of a device, for other devices and the host to wait for."""

from __future__ import annotations

from .._base.errors import StateError, check, expect
from .._base.handles import Core, Handle, fail, new_handle, use
from .._ffi import lib
from .backend import Backend, BackendCore

__all__ = ["Event", "EventCore"]


class EventCore(Core):
    """Owns a ``ggml_backend_event``."""

    __slots__ = ("backend",)

    def __init__(self, backend: BackendCore) -> None:
        h = new_handle()
        status = lib.gbpy_open_event(h, backend.h)
        if status:
            fail(status, "Event")
        super().__init__(h, "struct ggml_backend_event *", (backend,))
        self.backend: BackendCore = backend

    def record(self) -> None:
        check(lib.ggml_backend_event_record(self.ptr), "Event.record")

    def synchronize(self) -> None:
        check(lib.ggml_backend_event_synchronize(self.ptr), "Event.synchronize")


class Event(Handle):
    """A mark in the queued work of a backend. ``Event(sim).record()`` places it after all work queued so far.

    Use it to wait for a part of the work that :meth:`Scheduler.compute_async` has started. An event that
    was never recorded is complete. A device without a queue, such as the CPU, has nothing to wait for.
    For a device with a queue and without events, a wait covers the whole queue. Events do not raise
    failures of the device: the scheduler's ``synchronize`` does, and you still have to call it.
    """

    __slots__ = ("_backend", "_core")

    def __init__(self, backend: Backend) -> None:
        self._core: EventCore | None = None
        expect(backend, Backend, "Event: backend")
        self._backend = backend
        self._core = EventCore(backend._live())

    def _live(self) -> EventCore:
        core = self._core  # read once: another thread may close it
        if core is None:
            raise StateError("the event is closed")
        return core

    @property
    def backend(self) -> Backend:
        return self._backend

    def record(self) -> Event:
        """Places the mark after all work that is queued on its backend now. Returns the event."""
        core = self._live()
        with use("Event.record", core.backend, beside_runs=True):
            core.record()
        return self

    def wait(self, backend: Backend) -> None:
        """Makes work queued on ``backend`` from now on wait for the mark.

        The host waits instead if the device cannot.
        """
        expect(backend, Backend, "Event.wait: backend")
        core, other = self._live(), backend._live()
        with use("Event.wait", core.backend, other, beside_runs=True):
            check(lib.ggml_backend_event_wait(other.ptr, core.ptr), "Event.wait")

    def synchronize(self) -> None:
        """Blocks the host until the mark is reached."""
        core = self._live()
        with use("Event.synchronize", core.backend, beside_runs=True):
            core.synchronize()

    def __repr__(self) -> str:
        return "<Event closed>" if self._core is None else f"<Event of {self._backend.name}>"
