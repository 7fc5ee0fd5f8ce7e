"""Turns a graph into a device program: nodes with arrays over the device's memory, and a list of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from .._base.errors import DeviceError, InvalidArgumentError, UnsupportedError, expect_list
from .._base.errors.messages import add_note, kind_of
from .._base.handles import address, new_pin
from .._ffi import ffi, lib
from ..backend._state import Memory, State, object_of
from ..tensor._arrays import array_at
from ._nodes import Node, byte_layout, node_at, numpy_view, sources_at

__all__ = ["Call", "by_slot", "calls_of", "copied", "overwritten_of", "program_of", "refreshed", "refusal_of"]

_void: Any = ffi.typeof("void **")
_size: Any = ffi.typeof("size_t *")


class Call:
    """One node with its arrays.

    node: the node to compute
    out: array over the memory of the result
    sources: read-only arrays over the memory of the sources
    shared: numbers of the sources whose memory the result overwrites. The memory planner places, for example,
        the result of a sum on one of its operands.
    may_leave_out: True if the result need not be stored, provided that it is computed together with the only
        call that reads it
    of: for each source, the number of the call whose result (or a view of it) it is; -1 for other sources
    weights: for each source in a weight buffer, a function that returns a new number after each change of the
        weights; None for other sources
    """

    __slots__ = ("may_leave_out", "node", "of", "out", "shared", "sources", "weights")
    node: Node
    out: Any
    sources: tuple[Any, ...]
    shared: tuple[int, ...]
    may_leave_out: bool
    of: tuple[int, ...]
    weights: tuple[Callable[[], int] | None, ...]

    def __init__(self, node: Node, out: Any, sources: Sequence[Any], shared: Sequence[int]) -> None:
        sources = expect_list(sources, "Call: sources", "arrays")
        shared = expect_list(shared, "Call: shared", "numbers")
        self.node = node
        self.out = out
        self.sources = sources
        self.shared = shared
        self.may_leave_out = False
        self.of = (-1,) * len(sources)
        self.weights = (None,) * len(sources)

    def __repr__(self) -> str:
        return f"<Call {self.node!r}>"


def refusal_of(state: State, node: Node) -> str | None:
    """The reason why the device does not compute the node; None if it does."""
    answer = state.device.supports(node)
    if isinstance(answer, str):
        return answer or "not supported"
    if isinstance(answer, (bool, np.bool_)):
        return None if answer else "not supported"
    raise TypeError(
        f"{type(state.device).__name__}.supports must return True, False or a reason, not {kind_of(answer)}"
    )


def _bytes_of(pointer: Any) -> tuple[int, int]:
    begin = address(pointer.data)
    return begin, begin + int(lib.ggml_nbytes(pointer))


class Staging:
    """Copies of host tensors whose memory a plan must not keep alive.

    Such memory belongs to a scheduler, which keeps the plan: a reference back would be a cycle. The plan
    reads and writes these tensors through its own memory.
    """

    def __init__(self, tensors: Sequence[tuple[Any, Node]]) -> None:
        self._pieces: list[tuple[int, np.ndarray[Any, Any]]] = []  # (first address, bytes), in order
        self._written: list[tuple[Any, np.ndarray[Any, Any]]] = []
        spans = sorted(_bytes_of(p) for p, _ in tensors)
        while spans:  # overlapping tensors share a piece
            begin, end = spans.pop(0)
            while spans and spans[0][0] < end:
                end = max(end, spans.pop(0)[1])
            self._pieces.append((begin, np.empty(end - begin, np.uint8)))
        self._fetch()  # methods with prepare=True may read the values

    def array(self, pointer: Any, node: Node, writable: bool) -> np.ndarray[Any, Any]:
        at = address(pointer.data)
        begin, piece = next((b, p) for b, p in reversed(self._pieces) if b <= at)
        view = numpy_view(piece, at - begin, node, writable)
        if writable:
            self._written.append((pointer, view))
        return view

    def _fetch(self) -> None:
        for begin, piece in self._pieces:
            piece[:] = np.frombuffer(ffi.buffer(ffi.cast("char *", begin), piece.nbytes), np.uint8)

    def around(self, program: Callable[[], object]) -> Callable[[], object]:
        """The program with the copies before and after it."""
        if not self._pieces:
            return program

        def run() -> None:
            self._fetch()
            program()
            for pointer, array in self._written:
                np.copyto(array_at(pointer, pointer.data, None, False), array)

        return run


def _pinned(pointer: Any) -> Any:
    """The owner of a tensor's host memory; None if a plan must not keep it alive."""
    pin = new_pin()
    lib.gbpy_pin(pin, pointer, ffi.NULL)
    return pin if lib.gbpy_kind_of(pin) in (lib.GBPY_BUFFER, lib.GBPY_COPY) else None


class _Arrays:
    """Arrays over the tensors of a graph."""

    def __init__(self, state: State, tensors: Sequence[tuple[Any, Node]]) -> None:
        self._state = state
        self._own: dict[int, tuple[Memory, int]] = {}
        self._pins: dict[int, Any] = {}
        stays = []
        handle, offset = ffi.new(_void), ffi.new(_size)
        for pointer, node in tensors:
            key = address(pointer)
            if node.size == 0 or key in self._own or key in self._pins:
                continue
            if lib.gbpy_device_place(pointer, handle, offset):
                memory = object_of(handle[0], Memory)
                if memory.state is not state and not (memory.state.host and state.host):
                    raise self._elsewhere(node)
                self._own[key] = (memory, int(offset[0]))
            elif state.host and lib.gbpy_device_is_on_host(pointer):
                self._pins[key] = _pinned(pointer)
                if self._pins[key] is None:
                    stays.append((pointer, node))
            else:
                raise self._elsewhere(node)
        self.staging = Staging(stays)

    def _elsewhere(self, node: Node) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self._state.name}: {node} is not in memory of the device: allocate it there, or let a Scheduler copy it"
        )

    def array(self, pointer: Any, node: Node, writable: bool) -> tuple[Any, tuple[int, int]]:
        """The array over a tensor's memory, and its byte range. Ranges of tensors that share memory overlap."""
        if node.size == 0:
            return np.empty(node.shape, node.dtype.numpy), (0, 0)
        key = address(pointer)
        if key in self._own:
            memory, offset = self._own[key]
            begin = memory.begin + offset
            array = self._state.device.array(memory.content, offset, node, writable)
            shape = byte_layout(node)[0] if node.dtype.is_quantized else node.shape
            if tuple(getattr(array, "shape", ())) != shape:
                raise DeviceError(
                    f"{self._state.name}: array(memory, {offset}, {node}, {writable}) must return an array of shape"
                    f" {shape}, not {kind_of(array)} of {tuple(getattr(array, 'shape', ()))}"
                )
            return array, (begin, begin + int(lib.ggml_nbytes(pointer)))
        pin = self._pins[key]
        if pin is None:
            return self.staging.array(pointer, node, writable), _bytes_of(pointer)
        return array_at(pointer, pointer.data, pin, not writable), _bytes_of(pointer)


def _root(pointer: Any) -> int:
    return address(pointer.view_src or pointer)


def _version_of(pointer: Any) -> Callable[[], int] | None:
    buffer = lib.gbpy_device_weights(pointer)
    return partial(lib.gbpy_device_version, buffer) if buffer else None


def calls_of(state: State, nodes: Sequence[Any]) -> tuple[list[Call], Staging]:
    """The C nodes that need computation, as calls. Raises UnsupportedError for a node that the device refuses."""
    todo = []
    for pointer in nodes:
        node = node_at(pointer) if lib.gbpy_computes(pointer) else None
        if node is not None:
            reason = refusal_of(state, node)
            if reason is not None:
                raise UnsupportedError(f"{state.name}: {node}: {reason}")
            if node.size:
                todo.append([(pointer, node), *zip(sources_at(pointer), node.sources, strict=True)])
    arrays = _Arrays(state, [t for group in todo for t in group])
    calls: list[Call] = []
    results: dict[int, int] = {}
    for (pointer, node), *sources in todo:
        out, (begin, end) = arrays.array(pointer, node, True)
        given = [arrays.array(p, n, False) for p, n in sources]
        shared = tuple(k for k, (_, (first, last)) in enumerate(given) if first < end and begin < last)
        call = Call(node, out, tuple(a for a, _ in given), shared)
        call.may_leave_out = lib.gbpy_device_may_leave_out(pointer)
        call.of = tuple(results.get(_root(p), -1) for p, _ in sources)
        call.weights = tuple(_version_of(p) for p, _ in sources)
        results[_root(pointer)] = len(calls) if not pointer.view_src else -1
        calls.append(call)
    return calls, arrays.staging


Step = tuple[Callable[[], Any], Call]


def program_of(name: str, steps: Iterable[Step], store: Callable[[Any, Any], None] | None) -> Callable[[], None]:
    """A function that runs the steps in order.

    The value that a step returns is stored as the result, unless it is None or the result array itself.
    store: None if each step stores its result itself
    """
    todo: Sequence[tuple[Callable[[], Any], Any, Call]] = [(run, call.out, call) for run, call in steps]

    def program() -> None:
        call = None
        try:
            for run, out, call in todo:
                result = run()
                if store is not None and result is not None and result is not out:
                    _expect_result(name, call, result)
                    store(out, result)
        except BaseException as error:
            if isinstance(error, Exception) and call is not None:
                add_note(error, f"raised by the device {name} while it computed {call.node!r}")
            raise

    return program


def _expect_result(name: str, call: Call, result: Any) -> None:
    shape, wanted = getattr(result, "shape", None), tuple(call.out.shape)
    if shape is None or tuple(shape) != wanted:
        what = kind_of(result) if shape is None else f"an array of shape {tuple(shape)}"
        raise InvalidArgumentError(f"{name}: {call.node} has shape {wanted}, and its function returned {what}")


_TARGETS = {"cpy": 1, "set_rows": 2}


def is_target(call: Call, k: int) -> bool:
    """True for the source that is the memory of the result. SET_ROWS keeps a part of it, and CPY nothing."""
    return _TARGETS.get(call.node.op) == k


def overwritten_of(call: Call) -> list[int]:
    """The sources that the result overwrites and the method reads. A method gets its target as ``out``."""
    return [k for k in call.shared if not is_target(call, k)]


def by_slot(node: Node, arrays: Sequence[Any]) -> list[Any]:
    """The arrays of the sources as arguments of a method: None for a source that is omitted before another one."""
    if len(arrays) <= 1 or node.slots[-1] == len(arrays) - 1:
        return list(arrays)
    found = dict(zip(node.slots, arrays, strict=True))
    return [found.get(slot) for slot in range(node.slots[-1] + 1)]


def copied(
    function: Callable[..., Any], call: Call, overwritten: Sequence[int], copy: Callable[[Any], Any]
) -> Callable[[], Any]:
    """A step that calls a function with the call's arrays. Overwritten sources are copied in each run."""
    node, out, sources = call.node, call.out, call.sources
    if not overwritten:
        return partial(function, node, out, *by_slot(node, sources))
    return lambda: function(
        node, out, *by_slot(node, [copy(a) if k in overwritten else a for k, a in enumerate(sources)])
    )


def refreshed(
    run: Callable[[], Any], call: Call, copies: Mapping[int, Any], store: Callable[[Any, Any], object]
) -> Callable[[], Any]:
    """A step over persistent copies of some sources, given by number. Each run first updates the copies."""
    pairs = [(copy, call.sources[k]) for k, copy in copies.items()]

    def step() -> Any:
        for copy, source in pairs:
            store(copy, source)
        return run()

    return step
