"""Open devices and their memory, as C refers to them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .._base.errors import DeviceError
from .._base.errors.messages import add_note
from .._base.handles import address
from .._ffi import ffi, lib

__all__ = ["Mark", "Memory", "State", "dropped", "handle_of", "has_queue", "object_of", "waits"]

_T = TypeVar("_T")

_alive: dict[int, tuple[Any, object]] = {}
"""The cffi handles that C holds, and their objects."""


def handle_of(thing: object) -> Any:
    """A handle for C. It keeps the object alive until :func:`dropped`."""
    handle = ffi.new_handle(thing)
    _alive[address(handle)] = (handle, thing)
    return handle


def dropped(handle: Any) -> Any:
    """The object behind a handle that C returns; None if C has returned it before."""
    return _alive.pop(address(handle), (None, None))[1]


def object_of(handle: Any, kind: type[_T]) -> _T:
    found: _T = ffi.from_handle(handle)
    return found


class _Ticket:
    """The state of submitted work: finished, abandoned because its run failed, or still inside ``submit``."""

    __slots__ = ("abandoned", "done", "submitting")

    def __init__(self) -> None:
        self.abandoned = self.done = False
        self.submitting = True


class State:
    """One open device: the object of its class, and the library's state for it."""

    __slots__ = (
        "at_once", "device", "failures", "handle", "has_numpy_arrays", "host", "name", "queue", "queued", "waiting"
    )  # fmt: skip
    handle: int  # the handle that C holds

    def __init__(self, name: str, device: Any) -> None:
        self.name = name
        self.device = device
        self.host: bool = device.memory == "host"
        self.queue: bool = has_queue(device)
        self.at_once: bool = getattr(
            device, "_at_once", False
        )  # submit calls the work at once, and the work itself only queues
        self.has_numpy_arrays: bool | None = None  # None: not checked yet
        # Failures and tickets of queued work that no caller has waited for yet. They have no lock: an interrupt
        # right after acquiring it would hold it forever. Each access is one atomic step.
        self.failures: deque[BaseException] = deque()
        self.queued: deque[_Ticket] = deque()
        self.waiting: set[int] = set()  # the waits in progress for queued work

    def run(self, program: Callable[[], object]) -> None:
        """Computes now, or submits to the device's queue."""
        if not self.queue:
            program()
            return
        if self.at_once:
            try:
                if not self.failures:
                    program()
            except Exception as error:
                self.fail(error)
            return
        ticket = _Ticket()
        with self.noting("in submit(work)"):
            self.device.submit(self.guarded(program, ticket))
        ticket.submitting = False
        if not ticket.done:
            self.queued.append(ticket)  # an interrupt before this only skips a check

    @contextlib.contextmanager
    def noting(self, where: str) -> Iterator[None]:
        """Adds a note with the device and ``where`` to exceptions of a device call."""
        try:
            yield
        except Exception as error:
            add_note(error, f"raised by the device {self.name} {where}")
            raise

    def guarded(self, program: Callable[[], object], ticket: _Ticket) -> Callable[[], None]:
        """Wraps work for a queue. An exception does not end the queue's thread: the waiting call raises it.

        After a failure, the queue skips all work until a caller has waited. A thread of the queue takes
        part in the run while it works. The main thread, if the device computes there, stays unmarked,
        because an interrupt could prevent the reset.
        """
        run = lib.gbpy_device_current_run()

        def work() -> None:
            if ticket.abandoned:
                return  # the run has failed, and its memory may be freed
            outer, tagged = lib.gbpy_device_current_run(), threading.current_thread() is not threading.main_thread()
            if tagged:
                lib.gbpy_device_set_current_run(run)
            try:
                if not self.failures:
                    program()
            except BaseException as error:
                if not tagged and not isinstance(error, Exception):  # an interrupt: this thread raises it now
                    if not ticket.submitting:  # the interrupted call is not the one that runs this work
                        self.fail(DeviceError(f"{self.name}: interrupted while it computed"))
                    raise
                handle = lib.gbpy_run_handle()
                if handle:
                    ffi.from_handle(handle).fail(error)  # so that the run raises it, even if another call waits
                self.fail(error)
            finally:
                ticket.done = True
                if tagged:
                    lib.gbpy_device_set_current_run(outer)

        return work

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def _taken(self) -> list[_Ticket]:
        """Takes the tickets of queued work that no caller has waited for."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.queued.popleft())
        return taken

    def wait(self) -> None:
        """Waits for the queue, for callers that only need the memory. Failed work does not raise here.

        :meth:`settle` raises its failure to the caller that waits for the run.
        """
        if not self.queue:
            return
        queued = self._taken()
        try:
            if queued:
                self.waiting.add(id(queued))
            with self.noting("in synchronize()"):
                self.device.synchronize()
        except Exception as error:
            if queued or self.waiting:  # the device may tell this caller what another one's work did
                self.fail(error)
            raise
        finally:
            self.waiting.discard(id(queued))
        left = sum(not t.done for t in queued)
        if left > 0:
            for t in queued:
                t.abandoned = True
            unfinished = DeviceError(
                f"{self.name}: synchronize returned before submitted work was done ({left} of"
                f" {len(queued)} left): it must wait, and submit must run each work() once"
            )
            self.fail(unfinished)  # also fails the run
            raise unfinished

    def settle(self) -> None:
        """Waits for the queue and raises its first failure."""
        try:
            self.wait()
        finally:
            failure = None
            with contextlib.suppress(IndexError):
                failure = self.failures.popleft()  # later failures follow from the first
            self.failures.clear()
        if failure is not None:
            raise failure


_base: list[Any] = [None]
"""``Device``, whose ``submit`` computes at once. A class that overrides ``submit`` has a queue."""


def has_queue(device: Any) -> bool:
    return getattr(device.submit, "__func__", None) is not _base[0].submit


def waits(device: Any) -> bool:
    """True if the device overrides ``synchronize``."""
    return getattr(device.synchronize, "__func__", None) is not _base[0].synchronize


class Memory:
    """A buffer: the result of the device's ``allocate``.

    ``begin`` is its unique address. On the host it is the real one. Elsewhere it is a multiple of a number
    above all addresses and sizes.
    """

    __slots__ = ("begin", "content", "state")
    _numbers = itertools.count(1)

    def __init__(self, state: State, content: Any, address: int = 0) -> None:
        self.state = state
        self.content = content
        self.begin = address or next(Memory._numbers) << 64


class Mark:
    """An event: the result of the device's ``event``."""

    __slots__ = ("content", "state")

    def __init__(self, state: State, content: Any) -> None:
        self.state = state
        self.content = content
