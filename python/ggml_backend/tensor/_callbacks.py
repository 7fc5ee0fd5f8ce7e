"""Python functions that C calls.

An exception cannot pass through C. So every function here catches what the user's function raises, keeps it in a
:class:`RunState`, and makes C stop. The caller that started the computation raises it again.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Union

import numpy as np

from .._base.errors import InvalidArgumentError, StateError, expect, expect_function
from .._base.errors.faults import message_of
from .._base.errors.messages import add_note, kind_of
from .._base.handles import ContextCore, Core, Holders, address, new_pin, use
from .._ffi import ffi, lib
from ..backend.backend import Backend, BackendCore
from ..dtypes import as_dtype, bfloat16, dtype_of_id
from ._arrays import array_at, describe_at
from ._blocks import as_blocks
from ._results import Result, apart, blank, expect_written, parts_of, returned, write
from .tensor import Tensor

if TYPE_CHECKING:
    import logging

    from .context import Context
    from .graph import Graph

__all__ = ["Wanted", "set_log"]


def raise_kept(kept: list[BaseException]) -> NoReturn:
    """Raises the exception in the list without leaving a frame that refers to it.

    Its traceback refers to the frames. The cycle would keep memory alive until garbage collection.
    """
    raise kept.pop()


class RunState:
    """The shared state of the callbacks of one computation.

    It holds their first exception, the backends to stop, and the reference that keeps memory alive.
    """

    __slots__ = ("__weakref__", "blanked", "c", "errors", "failures", "memory", "owner", "starter", "stops")
    errors: list[BaseException]
    failures: deque[RunState] | None
    memory: Any
    owner: weakref.ref[Run]
    starter: int

    def __init__(self, backends: Sequence[BackendCore], memory: Core, failures: deque[RunState] | None) -> None:
        self.errors = []
        self.failures = failures  # of the scheduler that started an asynchronous run; None: the caller waits
        self.stops: list[Any] = [b.stop for b in backends if b.is_cpu]
        self.memory = memory.h
        self.blanked: dict[tuple[int, int], int] = {}  # by function and memory: number of calls still to come
        self.starter = threading.get_ident()
        self.c: Any = ffi.new("struct gbpy_run *")

    def fail(self, error: BaseException) -> None:
        if not self.errors:
            self.errors.append(error)
        if self.failures is not None:
            self.failures.append(self)
        self.c.stopped = 1
        for stop in self.stops:
            stop.stop = 1

    def raise_unheard(self) -> None:
        """Raises what a callback raised, unless another thread holds the run and will raise it."""
        holder = self.owner()
        if holder is not None and self.starter != threading.get_ident():
            return
        kept = list(self.errors)
        if holder is None:
            self.errors.clear()
        if kept:
            raise_kept(kept[:1])


class Run:
    """One computation, held by its caller.

    C passes the handle to every thread of the computation, so that a callback finds its state. The handle
    lives as long as this object. A pending run keeps the object.
    """

    __slots__ = ("__weakref__", "c", "customs", "handle", "state")
    c: Any
    customs: Sequence[CustomOp]
    handle: Any
    state: RunState

    def __init__(
        self,
        backends: Sequence[BackendCore],
        memory: Core,
        customs: Sequence[CustomOp] = (),
        failures: deque[RunState] | None = None,
    ) -> None:
        self.state = state = RunState(backends, memory, failures)
        self.customs = customs
        self.handle = ffi.new_handle(state)
        self.c = state.c
        self.c.handle = self.handle
        state.owner = weakref.ref(self)

    def finish(self) -> None:
        """Raises the exception of a callback. Call it after C has reported the end of the computation."""
        state = self.state
        kept = [state.errors.pop(0) for _ in state.errors[:1]]
        if kept:
            if state.failures is not None:
                with contextlib.suppress(ValueError, IndexError):
                    state.failures.remove(state)
            raise_kept(kept)
        for op in self.customs:
            raise_first(op.lost)


_blanking = threading.Lock()  # guards ``RunState.blanked``, and the fill of a result that several calls write


def raise_first(lost: deque[BaseException]) -> None:
    """Raises the first exception of the queue, if there is one."""
    if not lost:  # nearly always
        return
    kept: list[BaseException] = []
    with contextlib.suppress(IndexError):
        kept.append(lost.popleft())
    if kept:
        raise_kept(kept)


def current_run() -> RunState | None:
    """The computation of this thread."""
    handle = lib.gbpy_run_handle()
    return ffi.from_handle(handle) if handle else None


def _failed(kind: Any, error: BaseException, traceback: Any) -> None:
    """Keeps an exception that a callback could not catch: from a signal handler, or out of memory."""
    run = current_run()
    if run is not None:
        run.fail(error)


# ---------------------------------------------------------------------------------------------------- custom operations


class CustomOp:
    """The Python function behind a MAP_CUSTOM or CUSTOM node.

    The context of the node, and graphs with the node or a copy of it, keep it alive.

    results: the results of a CUSTOM node; None for MAP_CUSTOM, whose result is like its first source
    several: True if ``out`` is a tuple. The node is then a row of bytes, and each result a part of it
    inplace: True if ``out`` holds the first source
    """

    __slots__ = (
        "__weakref__", "context", "function", "handle", "inplace", "lost", "n_tasks", "results", "several",
        "views",
    )  # fmt: skip
    known: ClassVar[weakref.WeakValueDictionary[int, CustomOp]] = weakref.WeakValueDictionary()

    def __init__(
        self,
        function: Callable[..., Any],
        n_tasks: int,
        results: Sequence[Result] | None = None,
        several: bool = False,
        inplace: bool = False,
    ) -> None:
        self.function = function
        self.n_tasks = n_tasks
        self.results = None if results is None else tuple(results)
        self.several = several
        self.inplace = inplace
        self.handle = ffi.new_handle(self)
        self.lost: deque[BaseException] = deque(maxlen=1)  # exceptions of calls for a computation without a run
        self.context: weakref.ref[ContextCore] | None = None  # of the C tensors that are views of several results
        self.views: tuple[Any, ...] = ()
        self.known[address(self.handle)] = self

    @classmethod
    def of_node(cls, node: Any) -> CustomOp | None:
        """The operation behind a C node; None for other nodes, and for nodes not made by Python."""
        userdata = lib.gbpy_custom_userdata(node)
        return cls.known.get(address(userdata)) if userdata else None

    @property
    def name(self) -> str:
        """The public function that made it: ``map_custom`` or ``custom``."""
        return "map_custom" if self.results is None else "custom"

    def compute(self, out: Any, sources: Sequence[Any], ith: int = 0, nth: int = 1) -> Any:
        """Calls the function on arrays of any library. Several results are a tuple.

        Returns the value that the function returned, with its shape checked and not yet written to
        ``out``. For several results it is a tuple. None, also in the tuple: the function has written
        ``out`` itself. Devices call this with their own arrays and write the returned values. Exceptions
        of the function pass through.
        """
        if not self.inplace:
            self._blank(out if self.several else [out], nth)
        if self.n_tasks == 1:
            value = self.function(out, *sources)
        else:
            value = self.function(out, *sources, ith, nth)
        if value is None or value is out:
            if self.n_tasks == 1 and not self.inplace:
                expect_written(out if self.several else [out], self.name)
            return None
        if self.results is None:
            return value if self.n_tasks == 1 else None
        if self.n_tasks != 1:
            raise InvalidArgumentError(
                "custom: with n_tasks other than 1 the function writes its share of out, and returns None"
            )
        if not self.several:
            return returned(value, self.results[0], "custom: the result")
        return self._several(out, value)

    def _blank(self, outs: Sequence[Any], nth: int) -> None:
        """Fills the arrays before the first of the ``nth`` calls that write them. The other calls wait."""
        run = current_run() if nth > 1 else None
        if run is None:
            for out in outs:
                blank(out)
            return
        key = (address(self.handle), outs[0].ctypes.data if outs else 0)
        with _blanking:
            left = run.blanked.pop(key, 0)
            if left == 0:
                for out in outs:
                    blank(out)
            if (left or nth) > 1:
                run.blanked[key] = (left or nth) - 1

    def _several(self, out: Sequence[Any], value: Any) -> tuple[Any, ...]:
        results: Any = self.results
        if not isinstance(value, (tuple, list)) or len(value) != len(results):
            given = f"{len(value)} of them" if isinstance(value, (tuple, list)) else kind_of(value)
            raise InvalidArgumentError(
                f"custom: the function must return a tuple of {len(results)} results, or None, not {given}"
            )
        expect_written([o for v, o in zip(value, out, strict=True) if v is None or v is o], self.name)
        return tuple(
            None if v is None or v is o else returned(v, r, f"custom: result {i}")
            for i, (v, o, r) in enumerate(zip(value, out, results, strict=True))
        )

    def call(self, dst: Any, sources: Sequence[Any], ith: int, nth: int) -> None:
        """Computes a node on the CPU."""
        run = current_run()
        if run is None:
            self.lost.append(
                StateError(
                    f"{self.name}: the backend called the function on a thread of its own, for no computation that is"
                    " known"
                )
            )
            return
        if run.errors:
            return
        try:
            out = self._array(run, dst, False)
            arrays = [self._array(run, s, True) for s in sources]
            self.fill(out, arrays, ith, nth)
        except BaseException as error:
            if isinstance(error, Exception):
                described = self._described(dst, sources)
                if isinstance(error, InvalidArgumentError) and str(error).startswith(f"{self.name}: "):
                    error.args = (f"{self.name}: {described}: {str(error).removeprefix(f'{self.name}: ')}",)
                add_note(error, f"raised in the function of {self.name} that computes {described}")
            run.fail(error)

    def fill(self, out: np.ndarray[Any, Any], arrays: Sequence[Any], ith: int = 0, nth: int = 1) -> None:
        """Calls the function on NumPy arrays and writes the value that it returns."""
        if self.results is not None:
            self._compute_strictly(out, arrays, ith, nth)
            return
        value = self.compute(out, arrays, ith, nth)
        if value is None:
            return
        dtype = bfloat16 if out.dtype == np.uint16 else as_dtype(out.dtype)  # uint16: the bits of bfloat16
        write(out, value, dtype, "map_custom: the result", broadcast=True)

    def _compute_strictly(self, memory: np.ndarray[Any, Any], arrays: Sequence[Any], ith: int, nth: int) -> None:
        results: Any = self.results
        if not self.several:
            value = self.compute(memory, arrays, ith, nth)
            if value is not None:
                write(memory, value, results[0].dtype, "custom: the result")
            return
        outs = parts_of(memory, results)
        values = self.compute(outs, arrays, ith, nth)
        if values is None:
            return
        # A returned array may be a view of another result, which is written first.
        values = [None if v is None else apart(v, memory, f"custom: result {i}") for i, v in enumerate(values)]
        for i, (out, value, result) in enumerate(zip(outs, values, results, strict=True)):
            if value is not None:
                write(out, value, result.dtype, f"custom: result {i}")

    def _described(self, dst: Any, sources: Sequence[Any]) -> str:
        """The results, for messages. For ``custom`` also the sources."""
        if self.results is None:
            return describe_at(dst)
        shown = [describe_at(dst)]
        if self.several:
            core = self.context() if self.context is not None else None  # keeps the tensors alive
            shown = [describe_at(v) for v in self.views] if core is not None else [str(r) for r in self.results]
        of = f" of {', '.join(describe_at(s) for s in sources)}" if sources else ""
        return f"{', '.join(shown)}{of}"

    def _array(self, run: RunState, pointer: Any, readonly: bool) -> np.ndarray[Any, Any]:
        """A C tensor as the array for the function. For ``custom``, quantized tensors come as blocks."""
        pin = new_pin()
        lib.gbpy_pin(pin, pointer, run.memory)
        array = array_at(pointer, pointer.data, pin, readonly)
        if self.results is not None:
            dtype = dtype_of_id(pointer.type)
            if dtype.is_quantized:
                return as_blocks(array, dtype)
        return array


def customs_of(graph: Any) -> list[CustomOp]:
    """The Python operations among the nodes of a C graph."""
    if not CustomOp.known:
        return []
    out = ffi.new("void *[]", max(1, graph.n_nodes))
    n = lib.gbpy_graph_customs(graph, out, graph.n_nodes)
    found = (CustomOp.known.get(address(out[i])) for i in range(n))
    return [op for op in found if op is not None]


@ffi.def_extern(onerror=_failed)  # type: ignore[untyped-decorator]
def gbpy_custom1(dst: Any, a: Any, ith: int, nth: int, userdata: Any) -> None:
    ffi.from_handle(userdata).call(dst, (a,), ith, nth)


@ffi.def_extern(onerror=_failed)  # type: ignore[untyped-decorator]
def gbpy_custom2(dst: Any, a: Any, b: Any, ith: int, nth: int, userdata: Any) -> None:
    ffi.from_handle(userdata).call(dst, (a, b), ith, nth)


@ffi.def_extern(onerror=_failed)  # type: ignore[untyped-decorator]
def gbpy_custom3(dst: Any, a: Any, b: Any, c: Any, ith: int, nth: int, userdata: Any) -> None:
    ffi.from_handle(userdata).call(dst, (a, b, c), ith, nth)


@ffi.def_extern(onerror=_failed)  # type: ignore[untyped-decorator]
def gbpy_custom(dst: Any, ith: int, nth: int, userdata: Any) -> None:
    ffi.from_handle(userdata).call(dst, [s for s in dst.src if s], ith, nth)


# ------------------------------------------------------------------------------------------------------ evaluated nodes

Wanted = Union[None, str, "Iterable[str | Tensor]", Callable[[Tensor], bool]]
"""Selects the results for a callback: all, a name pattern such as ``"layer.*.out"``, names and tensors, or a
function of the node."""


def wanted_function(wanted: Wanted, what: str, graph: Graph | None = None) -> Callable[[Tensor], bool]:
    """A predicate for the selected nodes. Raises if the selection matches nothing in the given graph."""
    if wanted is None:
        return lambda t: True
    if callable(wanted):
        return wanted
    if isinstance(wanted, str):
        pattern = wanted
        if graph is not None and not any(fnmatchcase(t.name, pattern) for t in graph.nodes):
            raise InvalidArgumentError(f"{what}: wanted: no node of the graph has a name like {pattern!r}")
        return lambda t: fnmatchcase(t.name, pattern)
    given: Any = wanted
    if isinstance(given, Tensor):
        wanted = (given,)
    elif not isinstance(given, Iterable):
        raise TypeError(f"{what}: wanted must be a pattern, names, tensors or a function, not {kind_of(given)}")
    wanted = tuple(wanted)
    for w in wanted:
        if not isinstance(w, (str, Tensor)):
            raise TypeError(f"{what}: wanted: each must be a name or a Tensor, not {kind_of(w)}")
        if graph is not None and isinstance(w, str) and graph.get(w) is None:
            raise InvalidArgumentError(f"{what}: wanted: no node of the graph is called {w!r}")
    names = {w for w in wanted if isinstance(w, str)}
    tensors = {w for w in wanted if isinstance(w, Tensor)}
    return lambda t: t in tensors or t.name in names


class Eval:
    """An eval callback during one computation."""

    __slots__ = ("function", "holder", "pool", "run", "stopped", "wanted")

    def __init__(
        self,
        function: Callable[[Tensor], bool | None],
        wanted: Callable[[Tensor], bool],
        run: RunState,
        pool: Context,
        keeping: Any,
    ) -> None:
        self.function = function
        self.wanted = wanted
        self.run = run
        self.pool = pool
        self.holder = Holders(keeping)
        self.stopped = False

    def call(self, pointer: Any, ask: bool) -> bool:
        run = self.run
        if run.errors or self.stopped:
            return ask  # after a failure: request the next result, to stop there
        try:
            tensor = Tensor(self.pool, pointer, self.holder(pointer))
            if ask:
                return bool(self.wanted(tensor))
            if self.function(tensor) is False:
                self.stopped = True
                run.c.stopped = 2
                return False
            return True
        except BaseException as error:
            run.fail(error)
            return ask


@ffi.def_extern(error=True, onerror=_failed)  # type: ignore[untyped-decorator]
def gbpy_eval(t: Any, ask: bool, user_data: Any) -> bool:
    state: Eval = ffi.from_handle(user_data)
    return state.call(t, ask)


class Compare:
    """State of a comparison of two backends."""

    __slots__ = ("error", "function")

    def __init__(self, function: Callable[[int, Any, Any], bool]) -> None:
        self.function = function
        self.error: list[BaseException] = []


@ffi.def_extern(error=False, onerror=_failed)  # type: ignore[untyped-decorator]
def gbpy_compare(node_index: int, t1: Any, t2: Any, user_data: Any) -> bool:
    state: Compare = ffi.from_handle(user_data)
    try:
        return state.function(node_index, t1, t2)
    except BaseException as error:
        state.error.append(error)
        return False


# ------------------------------------------------------------------------------------------------------------- stopping


class Abort:
    """The state that a CPU backend asks between nodes. Made once for a backend, so the handle that C holds
    stays valid while the function changes."""

    __slots__ = ("function", "lost")

    def __init__(self) -> None:
        self.function: Callable[[], bool] | None = None
        self.lost: deque[BaseException] = deque(maxlen=1)  # exceptions in a computation without a run


_not_caught: deque[BaseException] = deque(maxlen=1)  # exceptions that gbpy_ask could not catch, without a run


def _not_asked(kind: Any, error: BaseException, traceback: Any) -> None:
    run = current_run()
    if run is not None:
        run.fail(error)
    else:
        _not_caught.append(error)


@ffi.def_extern(error=True, onerror=_not_asked)  # type: ignore[untyped-decorator]
def gbpy_ask(handle: Any) -> bool:
    state: Abort = ffi.from_handle(handle)
    run = current_run()
    if run is not None and run.errors:
        return True
    function = state.function  # read once: another thread may remove it
    try:
        return function is not None and bool(function())
    except BaseException as error:
        if run is not None:
            run.fail(error)
        else:
            state.lost.append(error)
        return True


def set_abort_callback(backend: Backend, function: Callable[[], bool] | None) -> None:
    """Calls ``function()`` between the nodes of every computation of a CPU backend, and within long nodes.

    True ends the computation. Its ``compute`` then returns False. None removes the callback. The function
    may run on another thread. This call waits for a computation in progress.
    """
    expect(backend, Backend, "set_abort_callback: backend")
    if function is not None:
        expect_function(function, "set_abort_callback: function")
    core = backend._cpu()
    with use("set_abort_callback", core, nested=True):
        if core.asked is None:
            core.asked = ffi.new_handle(Abort())
        asked: Abort = ffi.from_handle(core.asked)
        if function is None:
            core.stop.handle = ffi.NULL
            asked.function = core.abort = None
        else:
            core.abort = asked
            asked.function = function
            core.stop.ask = lib.gbpy_ask
            core.stop.handle = core.asked


def raise_abort_errors(backends: Sequence[BackendCore]) -> None:
    """Raises exceptions of an abort callback in a computation without a run.

    This happens if the callback was set just as the computation began.
    """
    raise_first(_not_caught)
    for b in backends:
        if b.asked is not None:
            asked: Abort = ffi.from_handle(b.asked)
            raise_first(asked.lost)


# ------------------------------------------------------------------------------------------------------------------ log

_LEVELS = {
    lib.GGML_LOG_LEVEL_ERROR: 40,
    lib.GGML_LOG_LEVEL_WARN: 30,
    lib.GGML_LOG_LEVEL_INFO: 20,
    lib.GGML_LOG_LEVEL_DEBUG: 10,
}
"""As numbers of :mod:`logging`, which is imported on use."""
_log_target: Callable[[int, str], object] | None = None
_logging = threading.local()
_discard = ffi.addressof(lib, "ggml_log_discard")
_log = ffi.addressof(lib, "gbpy_log")


def _not_logged(kind: Any, error: BaseException, traceback: Any) -> None:
    lib.gbpy_raise_later(id(error))


@ffi.def_extern(onerror=_not_logged)  # type: ignore[untyped-decorator]
def gbpy_log_line(level: int, message: Any) -> None:
    target = _log_target
    if target is None or getattr(_logging, "active", False):
        return
    try:
        _logging.active = True
        target(_LEVELS.get(level, 20), message_of(message).rstrip("\n"))
    finally:
        _logging.active = False


def set_log(target: Callable[[int, str], object] | logging.Logger | None) -> None:
    """Sends the messages of the C library to a logger or function. By default the library is silent.

    target: a ``logging.Logger``; a function of the level (of the ``logging`` module) and the text; or None for
        silence. It is called on the thread of the message. Its exceptions are raised on the main thread,
        like those of a signal handler. If the main thread made the failing call, that call raises.
    """
    global _log_target
    if target is None:
        lib.ggml_log_set(_discard, ffi.NULL)
        _log_target = None
        return
    import logging

    if not isinstance(target, logging.Logger) and not callable(target):
        raise TypeError(f"set_log: target must be a Logger or a function, not {kind_of(target)}")
    if not isinstance(target, logging.Logger):
        try:
            inspect.signature(target).bind(logging.INFO, "")
        except ValueError:  # C functions without a signature
            pass
        except TypeError as error:
            raise TypeError(f"set_log: the function is called with a level and a text: {error}") from None
    _log_target = target.log if isinstance(target, logging.Logger) else target
    lib.ggml_log_set(_log, ffi.NULL)


set_log(None)


@atexit.register
def _end() -> None:
    """Ends all runs at exit. C must not call a finalized interpreter, nor devices compute in freed memory."""
    lib.gbpy_finish_all_runs()
    set_log(None)
    lib.gbpy_end()
