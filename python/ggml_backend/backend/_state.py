"""Devices that are open, and their memory, as C refers to them."""

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
"""What C refers to: handles of cffi, and what they stand for."""


def handle_of(thing: object) -> Any:
    """A handle for C, which keeps the object until :func:`dropped`."""
    handle = ffi.new_handle(thing)
    _alive[address(handle)] = (handle, thing)
    return handle


def dropped(handle: Any) -> Any:
    """The object behind a handle that C gives back; None: it was given back before."""
    return _alive.pop(address(handle), (None, None))[1]


def object_of(handle: Any, kind: type[_T]) -> _T:
    found: _T = ffi.from_handle(handle)
    return found


class _Ticket:
    """Of work for a queue: whether it was done, whether its run has ended without it, and whether ``submit`` has not
    returned yet."""

    __slots__ = ("abandoned", "done", "submitting")

    def __init__(self) -> None:
        self.abandoned = self.done = False
        self.submitting = True


class State:
    """One open device: the object of its class, and what the library keeps beside it."""

    __slots__ = ("at_once", "device", "failures", "handle", "has_numpy_arrays", "host", "name", "queue", "queued")
    handle: int  # as C knows it

    def __init__(self, name: str, device: Any) -> None:
        self.name = name
        self.device = device
        self.host: bool = device.memory == "host"
        self.queue: bool = has_queue(device)
        self.at_once: bool = getattr(device, "_at_once", False)  # its submit calls the work, which queues it elsewhere
        self.has_numpy_arrays: bool | None = None  # None: nobody has looked
        # Of work in its queue, until somebody waits for that; and what nobody has waited for yet. No lock: an interrupt
        # between taking one and noting that would keep it for ever. What is done with them here is one step each.
        self.failures: deque[BaseException] = deque()
        self.queued: deque[_Ticket] = deque()

    def run(self, program: Callable[[], object]) -> None:
        """Computes now, or puts it into the device's queue."""
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
        with self.told("in submit(work)"):
            self.device.submit(self.guarded(program, ticket))
        ticket.submitting = False
        if not ticket.done:
            self.queued.append(ticket)  # an interrupt before this leaves out a check, and nothing else

    @contextlib.contextmanager
    def told(self, where: str) -> Iterator[None]:
        """Around a call of the device: what is raised gets a note that names the device and says where it was."""
        try:
            yield
        except Exception as error:
            add_note(error, f"raised by the device {self.name} {where}")
            raise

    def guarded(self, program: Callable[[], object], ticket: _Ticket) -> Callable[[], None]:
        """Work for a queue, whose thread shall not end by an exception: that is raised to who waits. After a failure
        nothing more is computed until then.

        A thread of the queue works for the run meanwhile. The main thread, if the device computes there, is left as it
        is: an interrupt could keep it from being put back.
        """
        run = lib.gbpy_device_current_run()

        def work() -> None:
            if ticket.abandoned:
                return  # its run has failed, and what belongs to that may be gone
            outer, tagged = lib.gbpy_device_current_run(), threading.current_thread() is not threading.main_thread()
            if tagged:
                lib.gbpy_device_set_current_run(run)
            try:
                if not self.failures:
                    program()
            except BaseException as error:
                if not tagged and not isinstance(error, Exception):  # an interrupt is heard now, by who is here
                    if not ticket.submitting:  # and is not the one who runs this
                        self.fail(DeviceError(f"{self.name}: interrupted while it computed"))
                    raise
                handle = lib.gbpy_run_handle()
                if handle:
                    ffi.from_handle(handle).fail(error)  # so the run raises it, whoever waits for the queue
                self.fail(error)
            finally:
                ticket.done = True
                if tagged:
                    lib.gbpy_device_set_current_run(outer)

        return work

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def _taken(self) -> list[_Ticket]:
        """What was queued and not waited for, which is the caller's to look at now."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.queued.popleft())
        return taken

    def wait(self) -> None:
        """Waits for the queue. What failed in it is not told here, to who only needs the memory: :meth:`settle` tells
        it to who waits for a run."""
        if not self.queue:
            return
        queued = self._taken()
        try:
            with self.told("in synchronize()"):
                self.device.synchronize()
        except Exception as error:
            self.fail(error)
            raise
        left = sum(not t.done for t in queued)
        if left > 0:
            for t in queued:
                t.abandoned = True
            unfinished = DeviceError(
                f"{self.name}: synchronize returned before work that was submitted had been done ({left} of"
                f" {len(queued)}): it must wait, and submit must run each work() once"
            )
            self.fail(unfinished)  # of the run, too, whoever asked
            raise unfinished

    def settle(self) -> None:
        """Waits for the queue and raises what failed in it."""
        try:
            self.wait()
        finally:
            failure = None
            with contextlib.suppress(IndexError):
                failure = self.failures.popleft()  # the first; others come of it
            self.failures.clear()
        if failure is not None:
            raise failure


_base: list[Any] = [None]
"""``Device``: a device that has another ``submit`` than this class, which computes at once, has a queue."""


def has_queue(device: Any) -> bool:
    return getattr(device.submit, "__func__", None) is not _base[0].submit


def waits(device: Any) -> bool:
    """Has it a ``synchronize`` of its own?"""
    return getattr(device.synchronize, "__func__", None) is not _base[0].synchronize


class Memory:
    """A buffer: what ``allocate`` of the device returned. ``begin`` tells buffers apart. It is the address on the host,
    and elsewhere a multiple of a number above all addresses and sizes."""

    __slots__ = ("begin", "content", "state")
    _numbers = itertools.count(1)

    def __init__(self, state: State, content: Any, address: int = 0) -> None:
        self.state = state
        self.content = content
        self.begin = address or next(Memory._numbers) << 64


class Mark:
    """An event: what the device's ``event`` gave."""

    __slots__ = ("content", "state")

    def __init__(self, state: State, content: Any) -> None:
        self.state = state
        self.content = content
