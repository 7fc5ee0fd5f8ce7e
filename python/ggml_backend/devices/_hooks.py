"""Python functions that serve as hooks of a backend (``python/core/devices.h``).

Each function catches every exception and keeps it for the caller of C."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from .._base.errors import AllocationError, DeviceError, FileError, GgmlError, InvalidArgumentError, keep_exception
from .._base.errors.messages import add_note, kind_of
from .._base.handles import address
from .._base.signals import keep_interrupt
from .._ffi import ffi, lib
from ..backend._registry import Kind
from ..backend._state import Mark, Memory, State, dropped, handle_of, has_queue, object_of, waits
from ._nodes import node_at
from ._options import options_of
from ._program import calls_of, refusal_of

_OK: int = lib.GGML_STATUS_SUCCESS
_MAX_TEXT = 700
_MAX_NAME = 63
_HOST_ALIGNMENT: int = lib.ggml_backend_buft_get_alignment(lib.ggml_backend_cpu_buffer_type())


def _failed(error: BaseException, where: str = "") -> int:
    """Keeps the exception, and gives C a status and a message."""
    if keep_interrupt(error):
        lib.gbpy_device_interrupted()
        return int(lib.GGML_STATUS_ABORTED)
    if isinstance(error, MemoryError):
        status = lib.GGML_STATUS_ALLOC_FAILED
    elif isinstance(error, GgmlError):
        status = error.status
    else:
        status = lib.GGML_STATUS_DEVICE_ERROR
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "(its text is unavailable)"
    text = where + (message if message and isinstance(error, GgmlError) else f"{type(error).__name__}: {message}")
    encoded = text.encode("utf-8", "replace")[:_MAX_TEXT].replace(b"\0", b"?")
    keep_exception(error, encoded.decode("utf-8", "ignore"))
    lib.gbpy_device_say(encoded.decode("utf-8", "ignore").encode())
    return int(status)


def _uncaught(kind: Any, error: BaseException, traceback: Any) -> None:
    """Keeps an exception that a hook could not catch: from a signal handler, or out of memory."""
    _failed(error)


def _dropped_anyway(kind: Any, error: BaseException, traceback: Any) -> None:
    """:func:`_uncaught` for hooks that release a handle."""
    handle = traceback.tb_frame.f_locals.get("handle") if traceback is not None else None
    if handle is not None:
        dropped(handle)
    _failed(error)


def _unraisable(error: BaseException, thing: object) -> None:
    """Reports an exception in closing and freeing, where no caller waits, as one in a finalizer."""

    class Finalized:
        def __del__(self) -> None:
            raise error

    Finalized.__qualname__ = f"{type(thing).__qualname__}.close"
    Finalized()


_hooks: dict[str, Any] = {}


def _hook(
    name: str, onerror: Callable[..., None] = _uncaught, **error: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        made = ffi.def_extern(name=f"gbpy_device_{name}", onerror=onerror, **error)(function)
        _hooks[name] = getattr(lib, f"gbpy_device_{name}")
        return made  # type: ignore[no-any-return]

    return register


_ERROR: int = lib.GGML_STATUS_DEVICE_ERROR


# -------------------------------------------------------------------------------------------------------------- devices


@_hook("open", error=_ERROR)
def _open(entry: Any, params: Any, info: Any, to: Any) -> int:
    kind = object_of(entry, Kind)
    try:
        device = _made(kind, options_of(kind, ffi.string(params).decode("utf-8", "replace")))
        state = State(device.name, device)
        device._state = state
        info.name = device.name.encode("utf-8", "replace")
        info.alignment = device.alignment
        info.host = state.host
        info.queue = state.queue
        info.events = state.queue and hasattr(device, "event")
        info.timed = info.events and hasattr(device, "timed_event")
        info.transfers = state.queue and hasattr(device, "transfer")
        info.files = not state.host and hasattr(device, "fill_from_file")
        info.work = hasattr(device, "work_size_at")
        info.ordered = getattr(device, "_ordered", False)
        info.bounded = getattr(device, "_bounded", False)
        if device.max_nbytes is not None:
            info.max_size = device.max_nbytes
        to[0] = handle = handle_of(state)
        state.handle = address(handle)
        return _OK
    except BaseException as error:
        return _failed(error)


def _made(kind: Kind, options: dict[str, Any]) -> Any:
    """Makes a device object, and checks the attributes that C relies on."""
    device: Any = object.__new__(kind.cls)
    device.name = kind.name
    device.__init__(**options)
    what = f"{kind.name}: {kind.cls.__qualname__}"
    if device.memory not in ("host", "own"):
        raise InvalidArgumentError(f"{what}.memory must be 'host' or 'own', not {device.memory!r}")
    n = device.alignment
    if not isinstance(n, int) or not 1 <= n <= 65536 or n & (n - 1):
        raise InvalidArgumentError(f"{what}.alignment must be a power of two, 1 to 65536, not {n!r}")
    if device.memory == "host" and n < _HOST_ALIGNMENT:
        raise InvalidArgumentError(
            f"{what}.alignment must be at least {_HOST_ALIGNMENT} with memory 'host', which the CPU uses, too, not {n}"
        )
    n = device.max_nbytes
    if n is not None and (not isinstance(n, int) or not 1 <= n < 2**63):
        raise InvalidArgumentError(f"{what}.max_nbytes must be a positive number of bytes or None, not {n!r}")
    if has_queue(device) and not waits(device):
        raise InvalidArgumentError(
            f"{what} overrides submit, so it must override synchronize to wait for the submitted work"
        )
    name = device.name
    if not isinstance(name, str) or not name or "\0" in name or len(name.encode("utf-8", "replace")) > _MAX_NAME:
        raise InvalidArgumentError(f"{what}.name must be a text of at most {_MAX_NAME} bytes, not {name!r:.80}")
    return device


@_hook("close", _dropped_anyway)
def _close(handle: Any) -> None:
    state = dropped(handle)
    if state is None:
        return
    try:
        state.device.close()
    except BaseException as error:
        _unraisable(error, state.device)
    finally:
        state.device._state = None  # breaks the reference cycle


@_hook("refuses", error=_ERROR)
def _refuses(handle: Any, pointer: Any, refuses: Any) -> int:
    state = object_of(handle, State)
    node: object = None
    try:
        node = node_at(pointer)
        asked = getattr(state.device, "refuses_at", None)
        reason = refusal_of(state, node) if asked is None else asked(pointer, node)
        refuses[0] = reason is not None
        if reason is not None:
            lib.gbpy_device_say(reason.encode("utf-8", "replace").replace(b"\0", b"?")[:_MAX_TEXT])
        return _OK
    except BaseException as error:
        if isinstance(error, Exception):
            add_note(error, f"raised by the device {state.name} when it was asked whether it supports {node!r}")
        return _failed(error, f"supports({node}): ")


# --------------------------------------------------------------------------------------------------------------- memory


@_hook("alloc", error=_ERROR)
def _alloc(handle: Any, size: int, info: Any, to: Any) -> int:
    state = object_of(handle, State)
    try:
        with state.noting(f"in allocate({size})"):
            try:
                content = state.device.allocate(size)
            except MemoryError as error:
                if isinstance(error, AllocationError):
                    raise
                raise AllocationError(f"{state.name}: no memory for a buffer of {size} bytes: {error}") from error
        if content is None:
            raise DeviceError(f"allocate({size}) returned None")
        if not state.host:
            state.device._expect_memory(content, size)
        at = _host_address(state, content, size) if state.host else 0
        info.base = ffi.cast("void *", at)
        number_of = getattr(state.device, "memory_number", None)
        info.number = 0 if number_of is None else number_of(content)
        to[0] = handle_of(Memory(state, content, at))
        return _OK
    except BaseException as error:
        return _failed(error, f"a buffer of {size} bytes: ")


def _host_address(state: State, content: Any, size: int) -> int:
    """The address of a NumPy array of bytes."""
    interface: Any = getattr(content, "__array_interface__", None)
    ok = (
        interface is not None
        and interface["typestr"] == "|u1"
        and interface.get("strides") is None
        and not interface["data"][1]
        and interface["shape"] == (max(size, 1),)
    )
    if not ok:
        raise DeviceError(
            f"allocate({size}) of a device with memory 'host' must return a writable NumPy array of"
            f" {max(size, 1)} uint8, not {kind_of(content)}"
        )
    return int(interface["data"][0])


@_hook("free", _dropped_anyway)
def _free(handle: Any) -> None:
    dropped(handle)


def _settled(state: State) -> None:
    """Waits before bytes are moved, because queued work may still use them. An in-order queue needs no wait."""
    if not state.device.in_order:
        state.wait()


@_hook("settle", error=_ERROR)
def _settle(handle: Any) -> int:
    try:
        object_of(handle, Memory).state.wait()
        return _OK
    except BaseException as error:
        return _failed(error)


@_hook("write", error=_ERROR)
def _write(handle: Any, offset: int, data: Any, size: int) -> int:
    memory = object_of(handle, Memory)
    try:
        _settled(memory.state)
        with memory.state.noting(f"while it wrote {size} bytes at {offset}"):
            memory.state.device.write(memory.content, offset, memoryview(ffi.buffer(data, size)).toreadonly())
        return _OK
    except BaseException as error:
        return _failed(error, f"writing {size} bytes at {offset}: ")


@_hook("read", error=_ERROR)
def _read(handle: Any, offset: int, data: Any, size: int) -> int:
    memory = object_of(handle, Memory)
    try:
        _settled(memory.state)
        with memory.state.noting(f"while it read {size} bytes at {offset}"):
            memory.state.device.read(memory.content, offset, memoryview(ffi.buffer(data, size)))
        return _OK
    except BaseException as error:
        return _failed(error, f"reading {size} bytes at {offset}: ")


@_hook("fill", error=_ERROR)
def _fill(handle: Any, value: int, size: int) -> int:
    memory = object_of(handle, Memory)
    try:
        _settled(memory.state)
        with memory.state.noting(f"while it filled {size} bytes"):
            memory.state.device.fill(memory.content, value)
        return _OK
    except BaseException as error:
        return _failed(error, f"filling {size} bytes: ")


@_hook("copy", error=_ERROR)
def _copy(to: Any, to_offset: int, source: Any, offset: int, size: int, done: Any) -> int:
    target, origin = object_of(to, Memory), object_of(source, Memory)
    try:
        _settled(origin.state)
        _settled(target.state)
        with target.state.noting(f"while it copied {size} bytes"):
            done[0] = bool(target.state.device.copy(target.content, to_offset, origin.content, offset, size))
        return _OK
    except BaseException as error:
        return _failed(error, f"copying {size} bytes: ")


class _Request:
    """A pending read of a file by a device: the function that waits for it, and the tensor's name."""

    __slots__ = ("name", "state", "wait")

    def __init__(self, state: State, wait: Callable[[], object], name: str) -> None:
        self.state = state
        self.wait = wait
        self.name = name


@_hook("file_begin", error=_ERROR)
def _file_begin(handle: Any, offset: int, part: Any, to: Any) -> int:
    memory = object_of(handle, Memory)
    try:
        _settled(memory.state)
        path = os.fsdecode(ffi.string(part.path))
        name = ffi.string(part.tensor.name).decode("utf-8", "surrogateescape")
        with memory.state.noting(f"while it was asked for {part.size} bytes of {path!r}"):
            wait = memory.state.device.fill_from_file(
                memory.content, offset, path, part.at, part.size, bytes(ffi.buffer(part.digest))
            )
        if wait is not None:
            to[0] = handle_of(_Request(memory.state, wait, name))
        return _OK
    except BaseException as error:
        return _failed(error, "reading a file: ")


@_hook("file_end", _dropped_anyway, error=_ERROR)
def _file_end(handle: Any, wanted: bool, found: Any) -> int:
    request = dropped(handle)
    try:
        if not wanted:
            if not request.state.device.in_order:  # the device might still write
                with contextlib.suppress(Exception):
                    request.wait()
            return _OK
        with request.state.noting("while it read a file"):
            found[0] = bool(request.wait())
        return _OK
    except FileError as error:
        return _failed(FileError(f"{request.name!r}: {error}"))
    except BaseException as error:
        return _failed(error, "reading a file: ")


@_hook("file_keep", error=_ERROR)
def _file_keep(handle: Any, offset: int, part: Any) -> int:
    memory = object_of(handle, Memory)
    keep = getattr(memory.state.device, "keep_file", None)
    try:
        if keep is not None:
            with memory.state.noting(f"in keep_file of {part.size} bytes"):
                keep(memory.content, offset, part.size, bytes(ffi.buffer(part.digest)))
        return _OK
    except BaseException as error:
        return _failed(error)


def _piece(piece: Any, size: int, readonly: bool) -> tuple[Any, int]:
    if piece.memory:
        return object_of(piece.memory, Memory).content, int(piece.offset)
    view = memoryview(ffi.buffer(piece.host, size))
    return (view.toreadonly() if readonly else view), 0


@_hook("transfer", error=_ERROR)
def _transfer(handle: Any, to: Any, source: Any, size: int, done: Any) -> int:
    state = object_of(handle, State)
    try:
        pieces = (*_piece(to, size, False), *_piece(source, size, True))
        done[0] = bool(state.device.transfer(*pieces, size))
        return _OK
    except BaseException as error:
        return _failed(error, f"copying {size} bytes: ")


# ------------------------------------------------------------------------------------------------------------ computing


class _Compiled:
    """The program that a device compiled from C nodes. The nodes outlive it.

    If compiling raises, the run raises the exception, and the next run compiles again.
    """

    __slots__ = ("error", "nodes", "program", "state")

    def __init__(self, state: State, nodes: list[Any]) -> None:
        self.state = state
        self.nodes = nodes
        self.program: Callable[[], object] | None = None
        self.error: BaseException | None = None
        try:
            self.compile()
        except BaseException as error:
            self.error = error

    def compile(self) -> Callable[[], object]:
        state = self.state
        try:
            shipped = getattr(state.device, "compile_at", None)
            if shipped is not None:
                self.program = whole = shipped(self.nodes)
                return whole  # type: ignore[no-any-return]
            calls, staging = calls_of(state, self.nodes)
            program = state.device.compile(calls)
            if not callable(program):
                raise TypeError(f"{state.name}: compile must return a function, not {kind_of(program)}")
        except Exception as error:
            n = len(self.nodes)
            last = node_at(self.nodes[-1]) if n else "nothing"
            add_note(error, f"raised by the device {state.name} while it prepared {n} nodes, the last {last!r}")
            raise
        self.program = made = staging.around(program)
        return made

    def run(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.state.run(self.program or self.compile())


@_hook("compile")
def _compile(handle: Any, graph: Any) -> Any:
    return handle_of(_Compiled(object_of(handle, State), list(graph.nodes[0 : graph.n_nodes]) if graph.n_nodes else []))


@_hook("work_size", error=_ERROR)
def _work_size(handle: Any, graph: Any, to: Any) -> int:
    state = object_of(handle, State)
    try:
        to[0] = state.device.work_size_at(list(graph.nodes[0 : graph.n_nodes]) if graph.n_nodes else [])
        return _OK
    except BaseException as error:
        return _failed(error, "scratch memory: ")


@_hook("run", error=_ERROR)
def _run(handle: Any) -> int:
    compiled = object_of(handle, _Compiled)
    try:
        compiled.run()
        return _OK
    except BaseException as error:
        return _failed(error)


@_hook("forget", _dropped_anyway)
def _forget(handle: Any) -> None:
    dropped(handle)


@_hook("synchronize", error=_ERROR)
def _synchronize(handle: Any) -> int:
    try:
        object_of(handle, State).settle()
        return _OK
    except BaseException as error:
        return _failed(error)


@_hook("event_new")
def _event_new(handle: Any, timed: bool) -> Any:
    state = object_of(handle, State)
    try:
        with state.noting("in event()"):
            return handle_of(Mark(state, state.device.timed_event() if timed else state.device.event()))
    except BaseException as error:
        _failed(error, "event: ")
        return ffi.NULL


@_hook("event_free", _dropped_anyway)
def _event_free(handle: Any) -> None:
    dropped(handle)


def _event(event: Any, what: str, *arguments: Any) -> int:
    mark = object_of(event, Mark)
    try:
        getattr(mark.content, what)(*arguments)
        return _OK
    except BaseException as error:
        if isinstance(error, Exception):
            add_note(error, f"raised by the device {mark.state.name} in {what}() of an event")
        return _failed(error, f"event.{what}: ")


@_hook("event_record", error=_ERROR)
def _event_record(event: Any) -> int:
    return _event(event, "record")


@_hook("event_wait", error=_ERROR)
def _event_wait(handle: Any, event: Any) -> int:
    """Makes a device wait for an event. For events of another kind the host waits before it submits more work."""
    waiting = object_of(handle, State).device
    if _makes_such_marks(waiting, object_of(event, Mark).state.device):
        return _event(event, "wait", waiting)
    return _event(event, "synchronize")


def _makes_such_marks(device: Any, other: Any) -> bool:
    """True if both classes are equal or inherit the same ``event``."""
    maker = getattr(type(device), "event", None)
    return type(device) is type(other) or (maker is not None and maker is getattr(type(other), "event", None))


@_hook("event_time", error=_ERROR)
def _event_time(event: Any, to: Any) -> int:
    try:
        to[0] = object_of(event, Mark).content.time()
        return _OK
    except BaseException as error:
        return _failed(error, "event.time: ")


@_hook("event_synchronize", error=_ERROR)
def _event_synchronize(event: Any) -> int:
    return _event(event, "synchronize")


_table: Any = ffi.new("struct gbpy_device_hooks *", _hooks)
lib.gbpy_set_device_hooks(_table)
