"""Marks in the work of a device, which other devices and the host can wait for: ``Backend.event()``."""

from __future__ import annotations

from .._base.errors import StateError, check, expect
from .._base.handles import Core, Handle, fail, new_handle, use
from .._ffi import lib
from .backend import Backend, BackendCore

__all__ = ["Event", "EventCore"]


class EventCore(Core):
    """A ``ggml_backend_event``."""

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
    """A mark in the work that is queued on a backend. ``Event(sim).record()`` sets it behind everything queued so far.

    With it one waits for a part of what :meth:`Scheduler.compute_async` has started, instead of for all of it. An event
    that was never recorded is complete. A device without a queue, such as the CPU, has nothing to wait for; a device
    with a queue but without events is waited for as a whole. A failure of the device is reported by the scheduler,
    whose ``synchronize`` still has to be called.
    """

    __slots__ = ("_backend", "_core")

    def __init__(self, backend: Backend) -> None:
        self._core: EventCore | None = None
        expect(backend, Backend, "Event: backend")
        self._backend = backend
        self._core = EventCore(backend._live())

    def _live(self) -> EventCore:
        core = self._core  # once: another thread may close it meanwhile
        if core is None:
            raise StateError("the event is closed")
        return core

    @property
    def backend(self) -> Backend:
        return self._backend

    def record(self) -> Event:
        """Sets the mark behind what is queued on its backend now. Returns the event."""
        core = self._live()
        with use("Event.record", core.backend, beside_runs=True):
            core.record()
        return self

    def wait(self, backend: Backend) -> None:
        """What is queued on ``backend`` from now on waits for the mark. The host waits instead if that device
        cannot."""
        expect(backend, Backend, "Event.wait: backend")
        core, other = self._live(), backend._live()
        with use("Event.wait", core.backend, other, beside_runs=True):
            check(lib.ggml_backend_event_wait(other.ptr, core.ptr), "Event.wait")

    def synchronize(self) -> None:
        """The host waits for the mark."""
        core = self._live()
        with use("Event.synchronize", core.backend, beside_runs=True):
            core.synchronize()

    def __repr__(self) -> str:
        return "<Event closed>" if self._core is None else f"<Event of {self._backend.name}>"
