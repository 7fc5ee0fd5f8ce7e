"""What a device makes of a graph: its nodes with arrays over the device's memory, and the list of what is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from .._errors import InvalidArgumentError, UnsupportedError
from .._errors.messages import add_note, kind_of
from .._ffi import ffi, lib
from .nodes import Node, node_at, sources_at
from .state import Memory, State, object_of

__all__ = ["Call", "calls_of", "program_of", "refusal_of"]

_void: Any = ffi.typeof("void **")
_size: Any = ffi.typeof("size_t *")


class Call:
    """One node with its arrays.

    node: what is to be computed
    out: where, an array over the result's memory
    sources: arrays over what it is computed from, which are only read
    shared: numbers of the sources whose memory the result overwrites: the planner of memory puts the result of a
        sum, say, on one of its operands
    """

    __slots__ = ("node", "out", "shared", "sources")

    def __init__(self, node: Node, out: Any, sources: tuple[Any, ...], shared: tuple[int, ...]) -> None:
        self.node = node
        self.out = out
        self.sources = sources
        self.shared = shared

    def __repr__(self) -> str:
        return f"<Call {self.node!r}>"


def refusal_of(state: State, node: Node) -> str | None:
    """Why the device does not compute the node; None: it does."""
    answer = state.device.supports(node)
    if answer is True:
        return None
    if isinstance(answer, str):
        return answer or "not supported"
    if answer is False:
        return "not supported"
    raise TypeError(f"{type(state.device).__name__}.supports must return True, False or a reason, not {kind_of(answer)}")


def _array(state: State, pointer: Any, node: Node, writable: bool) -> tuple[Any, tuple[int, int]]:
    """The array over a tensor's memory, and the bytes of that memory."""
    handle, offset = ffi.new(_void), ffi.new(_size)
    if not lib.gbpy_device_place(pointer, handle, offset):
        raise InvalidArgumentError(
            f"{state.name}: {node} does not lie in memory of the device: allocate it there, or let a Scheduler copy it"
        )
    memory = object_of(handle[0], Memory)
    begin = memory.begin + int(offset[0])
    return memory.array(int(offset[0]), node, writable), (begin, begin + int(lib.ggml_nbytes(pointer)))


def calls_of(state: State, graph: Any) -> list[Call]:
    """The nodes of a graph of C that take work. UnsupportedError for one that the device refuses."""
    calls = []
    for i in range(graph.n_nodes):
        pointer = graph.nodes[i]
        if not lib.gbpy_computes(pointer):
            continue
        node = node_at(pointer)
        reason = refusal_of(state, node)
        if reason is not None:
            raise UnsupportedError(f"{state.name}: {node}: {reason}")
        if node.size == 0:
            continue
        out, (begin, end) = _array(state, pointer, node, True)
        arrays, shared = [], []
        for k, (source, of) in enumerate(zip(sources_at(pointer), node.sources, strict=True)):
            array, (first, last) = _array(state, source, of, False)
            arrays.append(array)
            if first < end and begin < last:
                shared.append(k)
        calls.append(Call(node, out, tuple(arrays), tuple(shared)))
    return calls


Step = tuple[Callable[[], Any], Call]


def program_of(name: str, steps: Iterable[Step], store: Callable[[Any, Any], None]) -> Callable[[], None]:
    """A function that takes the steps in order. What a step returns, unless it is None or the array of the result
    itself, is stored as the result."""
    todo: Sequence[tuple[Callable[[], Any], Any, Call]] = [(run, call.out, call) for run, call in steps]

    def program() -> None:
        call = None
        try:
            for run, out, call in todo:  # noqa: B007
                result = run()
                if result is not None and result is not out:
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


def copied(function: Callable[..., Any], head: tuple[Any, ...], call: Call, copy: Callable[[Any], Any]) -> Any:
    """A step whose function may not find its result on one of its sources: it reads copies of these."""

    def step() -> Any:
        sources = [copy(a) if k in call.shared else a for k, a in enumerate(call.sources)]
        return function(*head, *sources)

    return step if call.shared else partial(function, *head, *call.sources)
