"""Devices written in Python.

A device class defines the operators that it computes, on arrays over its memory. The scheduler, plans,
traces and ``explain`` treat it as any other backend::

    class Elements(gb.devices.Device):
        @gb.devices.op("add", "mul")
        def elements(self, node, out, a, b):
            {"add": np.add, "mul": np.multiply}[node.op](a, b, out=out)

    gb.devices.register_device("NP", Elements)
    sched = gb.Scheduler([gb.Backend("NP"), gb.Backend("CPU")])

docs/BACKENDS.md builds one step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, overload

import numpy as np

from .._base.errors import (
    AllocationError,
    DeviceError,
    InvalidArgumentError,
    StateError,
    UnsupportedError,
    expect_bool,
    expect_list,
)
from .._base.errors.messages import close_matches, kind_of
from .._base.renamed import warn_of
from .._base.text import as_name
from ..backend import _registry as registry
from ..backend._state import _base
from ..dtypes import DType, DTypeLike, as_dtype, dtypes
from ..tensor._blocks import as_blocks
from ..tensor._callbacks import CustomOp
from ..tensor._results import expect_kind
from . import _hooks as _hooks
from ._nodes import Node, custom_of, numpy_view, op_facts, operators, read_bytes, single, write_bytes
from ._program import Call, by_slot, copied, overwritten_of, program_of, refreshed

__all__ = ["Call", "Device", "Node", "op", "register_device"]

_F = TypeVar("_F", bound=Callable[..., Any])
_D = TypeVar("_D", bound="type[Device]")

_BROADCAST = frozenset(("add", "sub", "mul", "div", "compare", "where"))
_INDICES = {
    "get_rows": 1, "get_rows_back": 1, "set_rows": 1, "rope": 1, "rope_back": 1, "mul_mat_id": 0, "mul_mat_experts": 2,
    "add_id": 2, "ssm_scan": 6,
}  # fmt: skip
"""The number of the source that is int32 (SET_ROWS: or int64), whatever the dtype of the others."""
_MEANT = {
    "matmul": "mul_mat", "dot": "mul_mat", "negative": "neg", "absolute": "abs", "concatenate": "concat",
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), "compare"),
}  # fmt: skip
"""NumPy names of operators."""
_COUNTS = frozenset(("argmax", "argsort", "top_k"))  # operators with int32 results


class _Entry:
    """One row of a class's table of operators."""

    __slots__ = ("dtypes", "in_place", "method", "prepare", "repeats", "when")

    def __init__(self, method: str, options: dict[str, Any], name: str) -> None:
        self.method = method
        self.dtypes: frozenset[DType] = options["dtypes"]
        given = options["in_place"]
        self.in_place: bool = op_facts()[name].elementwise if given is None else given
        self.prepare: bool = options["prepare"]
        self.repeats: bool = options["repeats"]
        self.when: Callable[[Node], bool | str] | None = options["when"]


def op(
    *names: str,
    dtypes: DTypeLike | Iterable[DTypeLike] = "f32",
    when: Callable[[Node], bool | str] | None = None,
    prepare: bool = False,
    in_place: bool | None = None,
    repeats: bool = False,
) -> Callable[[_F], _F]:
    """Marks a method of a :class:`Device` as the implementation of operators.

    The method is called as ``method(node, out, *sources)``: a :class:`Node`, and arrays over the memory of
    the result and of the sources, in NumPy order. It writes ``out``, or returns an array of the same
    shape, which is then stored in ``out``. Sources are read-only. A source that is omitted before another
    one is None, such as the mask of a ``soft_max`` with sinks alone.

    names: operators in lower case, as in ``Node.op``
    dtypes: allowed dtypes of the result and the sources, without indices: one, several, ``"dense"`` for all
        that are not quantized, or ``"all"``. A quantized source comes as the bytes of its rows
    when: called for each node whose dtypes fit. Returns True, False, or a text with the reason for a refusal,
        which ``explain`` quotes
    prepare: True: the method is called once for each plan and returns a function without arguments, which is
        called in each run. So decisions that depend on shapes are made once. The arrays stay the same in all
        runs.
    in_place: True if ``out`` may overlap a source. Otherwise the method gets a copy of such a source, renewed in
        each run. Default: True for elementwise operators (``add``, ``relu``, ...), False for others
    repeats: True if the method repeats operands as ggml does. Otherwise nodes are refused if array libraries
        cannot broadcast their operands. For ``add``, ``sub``, ``mul`` and ``div`` this is a second operand
        that is repeated along an axis where it has more than one element. For ``mul_mat`` it is a matrix that
        is shared by several matrices of the other operand, and a vector in the place of a matrix.
    """
    if not names or not all(isinstance(n, str) and n for n in names):
        raise TypeError('op: names of operators are texts: @gb.devices.op("add", "mul")')
    for name in names:
        if name.lower() not in operators():
            meant = close_matches(_MEANT.get(name.lower(), name), operators())
            raise InvalidArgumentError(f"op: there is no operator {name!r}{meant}")
    if when is not None and not callable(when):
        raise TypeError(f"op: when must be a function, not {kind_of(when)}")
    options = {
        "dtypes": _dtypes(dtypes),
        "when": when,
        "prepare": expect_bool(prepare, "op: prepare"),
        "in_place": in_place if in_place is None else expect_bool(in_place, "op: in_place"),
        "repeats": expect_bool(repeats, "op: repeats"),
    }

    def mark(method: _F) -> _F:
        if not callable(method):
            raise TypeError(f"op: marks a method, not {kind_of(method)}")
        marks = getattr(method, "_gb_ops", ())
        method._gb_ops = (*marks, *((name.lower(), options) for name in names))  # type: ignore[attr-defined]
        return method

    return mark


def _dtypes(given: Any) -> frozenset[DType]:
    if isinstance(given, str) and given in ("dense", "all"):
        return frozenset(d for d in dtypes.values() if given == "all" or not d.is_quantized)
    if isinstance(given, (str, DType, type, np.dtype)):
        given = (given,)
    found = frozenset(as_dtype(d, "op: dtypes") for d in expect_list(given, "op: dtypes", "dtypes"))
    if not found:
        raise InvalidArgumentError("op: dtypes is empty: no node fits")
    return found


class Mark(Protocol):
    """A mark in a queue, as described by :meth:`Device.submit`."""

    def record(self) -> object: ...
    def synchronize(self) -> object: ...
    def wait(self, device: Any) -> object: ...


class Device:
    """A device that computes with Python functions.

    Register a subclass with :func:`register_device`. The library makes one object for each
    ``gb.Backend(NAME)``, with the options that ``__init__`` takes.

    Only a table of operators (:func:`op`) is required. Everything else has a default:

    - *Supported nodes*: :meth:`supports`. Default: the table decides.
    - *Functions*: with ``computes_custom = True`` the functions of :func:`custom` and :func:`map_custom` run on
      the device, on its own arrays. With several results, or with quantized tensors, this needs NumPy
      arrays. If ``n_tasks`` is not 1, a function is called once, with ``ith = 0, nth = 1``.
    - *Execution*: :meth:`compile`. Default: a list of calls of the table's methods.
    - *Memory*: ``memory = "host"`` is host memory in NumPy arrays. The CPU uses it, too, so nothing is copied
      between them. ``memory = "own"`` is device memory. Then write :meth:`allocate` and :meth:`array`.
      Without NumPy arrays, also write :meth:`write`, :meth:`read` and :meth:`fill`.
    - *Queue*: a class, or an object after ``__init__``, with its own :meth:`submit` computes asynchronously.
      :meth:`synchronize` waits. An optional method ``event`` returns marks in the queue.

    The computing call raises the exceptions of methods, with a note that names the device and the node.
    The scheduler stays usable. docs/BACKENDS.md says on which threads methods are called ("What holds").
    """

    memory: str = "host"  #: ``"host"`` or ``"own"``
    alignment: int = 64  #: alignment of tensors in bytes: a power of two, at least 64 with memory "host"
    max_nbytes: int | None = None  #: bytes of the largest buffer; None: no limit
    in_order: bool = False  #: :meth:`write`, :meth:`read`, :meth:`fill` and :meth:`copy` follow the queue's order
    computes_custom: bool = False  #: the device runs functions of ``gb.ops.custom``
    name: str = ""  #: name in plans and messages: the registered name, unless ``__init__`` sets another

    _table: ClassVar[dict[str, _Entry]] = {}
    _state: Any

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        table: dict[str, _Entry] = {}
        for base in reversed(cls.__mro__):
            for attribute, method in vars(base).items():
                for name, options in getattr(method, "_gb_ops", ()):
                    table[name] = _Entry(attribute, options, name)
        cls._table = table

    @classmethod
    def missing(cls) -> str | None:
        """The reason why this kind of device is unavailable; None if it is available.

        ``gb.backends().missing`` shows the reason.
        """
        return None

    def close(self) -> None:
        """Called when the device is no longer needed."""

    # ------------------------------------------------------------------------------------------------ what it computes

    def supports(self, node: Node) -> bool | str:
        """True if the device computes the node, else False or the reason, which ``explain`` quotes.

        The answer must be correct for every dtype, shape and stride. It is not called for views and empty
        tensors.
        """
        entry = self._table.get(node.op)
        if entry is None and node._function is not None and self.computes_custom:
            return self._takes_function(node)
        if entry is None:
            return f"not implemented (the device has {', '.join(sorted(self._table)) or 'nothing'})"
        reason = self._wrong_dtype(entry, node)
        if reason:
            return reason
        reason = "" if entry.repeats else _repetition(node)
        if reason:
            return reason
        answer = True if entry.when is None else entry.when(node)
        return answer if answer is not False else f"it computes {node.op}, but refuses this node without a reason"

    def _takes_function(self, node: Node) -> bool | str:
        """Checks functions with several results or quantized sources. Their arguments need NumPy arrays."""
        op = node._function() if node._function is not None else None
        if op is None or not (op.several or any(t.dtype.is_quantized for t in (node, *node.sources))):
            return True
        state = self._state
        if state.has_numpy_arrays is None:
            state.has_numpy_arrays = isinstance(self.array(self.allocate(64), 0, single(), False), np.ndarray)
        if state.has_numpy_arrays:
            return True
        return "functions with several results or quantized tensors need a device with NumPy arrays"

    @staticmethod
    def _wrong_dtype(entry: _Entry, node: Node) -> str:
        index = _INDICES.get(node.op)
        for k, tensor in enumerate((node, *node.sources)):
            integers = ("int32", "int64") if node.op == "set_rows" else ("int32",)
            is_index = tensor.dtype.name in integers and (k - 1 == index if k else node.op in _COUNTS)
            if tensor.dtype not in entry.dtypes and not is_index:
                what = "the result" if k == 0 else f"source {k - 1}"
                known = ", ".join(sorted(d.name for d in entry.dtypes))
                return f"{what} is {tensor.dtype.name}; it computes {node.op} of {known}"
        return ""

    def compile(self, calls: Sequence[Call]) -> Callable[[], object]:
        """Returns a function that computes the nodes in order.

        It is called once for each plan. Each run calls the returned function. The arrays stay the same.
        """
        return program_of(self.name, [(self.step(call), call) for call in calls], self.store)

    def step(self, call: Call) -> Callable[[], Any]:
        """The function that computes one node: the table's method with its arguments.

        It does not store a returned array: :meth:`store` does, unless the value is None or ``call.out``. If
        the result overlaps a source (``call.shared``) and the method does not allow it, it reads copies.
        """
        entry = self._table.get(call.node.op)
        if entry is None and call.node._function is not None:
            return partial(self._custom, call.node._function, call)
        if entry is None:
            raise UnsupportedError(
                f"{self.name}: {call.node}: supports accepts it, but no method is marked with"
                f" @gb.devices.op({call.node.op!r})"
            )
        method = getattr(self, entry.method)
        overwritten = () if entry.in_place else overwritten_of(call)
        if not entry.prepare:
            return copied(method, call, overwritten, self.copy_of)
        copies = {k: self.copy_of(call.sources[k]) for k in overwritten}
        sources = by_slot(call.node, [copies.get(k, a) for k, a in enumerate(call.sources)])
        prepared = method(call.node, call.out, *sources)
        if not callable(prepared):
            raise TypeError(
                f"{self.name}: {entry.method} is marked with prepare=True, and must return a function, not"
                f" {kind_of(prepared)}"
            )
        return refreshed(prepared, call, copies, self.store) if copies else prepared

    def _custom(self, function: Callable[[], CustomOp | None], call: Call) -> Any:
        op = function()
        if op is None:
            raise StateError(f"{self.name}: {call.node}: its graph, which owns the function, no longer exists")
        if isinstance(call.out, np.ndarray):
            pairs = zip(call.sources, call.node.sources, strict=True)
            blocks = op.results is not None
            op.fill(call.out, [as_blocks(a, s.dtype) if blocks and s.dtype.is_quantized else a for a, s in pairs])
            return None
        result = op.compute(call.out, call.sources)
        if result is not None:
            self._expect_like(call, result)
        return result

    def _expect_like(self, call: Call, result: Any) -> None:
        """Raises if numbers of a returned array of another library cannot become those of the result."""
        kind, wanted = kind_of_numbers(result), call.node.dtype
        if type(result) is not type(call.out) or kind is None:
            raise InvalidArgumentError(
                f"{self.name}: {call.node}: the function must return an array of the device, {kind_of(call.out)}, not"
                f" {kind_of(result)}"
            )
        if not np.can_cast(kind, np.dtype(np.float32) if wanted.name == "bfloat16" else wanted.numpy, "same_kind"):
            raise InvalidArgumentError(
                f"{self.name}: {call.node}: the function must return {wanted.name}, not {kind.name}"
            )

    # ----------------------------------------------------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> Any:
        """Allocates ``nbytes`` bytes, 0 or more. The memory is freed with the last reference to it.

        Raise MemoryError if memory is insufficient. The caller gets :class:`AllocationError` and may
        continue.

        With ``memory = "host"``: returns a writable NumPy array of ``max(nbytes, 1)`` uint8. Its address is a
        multiple of ``alignment``. With ``memory = "own"``: returns any object that :meth:`array` and the
        methods that move bytes accept.
        """
        if self.memory != "host":
            raise NotImplementedError(f"{type(self).__name__}: a device with memory 'own' must have allocate(nbytes)")
        return aligned(nbytes, self.alignment)

    def array(self, memory: Any, offset: int, node: Node, writable: bool) -> Any:
        """An array over the memory of a tensor, ``offset`` bytes into ``memory``.

        It has the shape and strides of ``node``. For a quantized tensor it holds the bytes of its rows.

        memory: the object that :meth:`allocate` returned
        writable: False for sources
        """
        if not isinstance(memory, np.ndarray):
            raise NotImplementedError(
                f"{type(self).__name__}: array(memory, offset, node, writable) is required, because allocate returns no"
                " NumPy array"
            )
        return numpy_view(memory, offset, node, writable)

    def write(self, memory: Any, offset: int, data: memoryview) -> None:
        """Copies host bytes into ``memory``, ``offset`` bytes from its start.

        By default it calls ``memory.write(offset, data)``, or copies into a NumPy array.
        """
        if hasattr(memory, "write"):
            memory.write(offset, data)
        else:
            write_bytes(self._bytes_of(memory, "write"), offset, data)

    def read(self, memory: Any, offset: int, data: memoryview) -> None:
        """Copies bytes of ``memory``, ``offset`` bytes from its start, into ``data`` on the host.

        By default it calls ``memory.read(offset, data)``, or copies from a NumPy array.
        """
        if hasattr(memory, "read"):
            memory.read(offset, data)
        else:
            read_bytes(self._bytes_of(memory, "read"), offset, data)

    def _expect_memory(self, memory: Any, nbytes: int) -> None:
        """Checks memory that :meth:`allocate` returned: readable, writable, and of the right size if it has
        ``nbytes``."""
        have = getattr(memory, "nbytes", None)
        if isinstance(have, int) and have < nbytes:
            raise DeviceError(f"allocate({nbytes}) returned {kind_of(memory)} of {have} bytes")
        kind = type(self)
        if not any(getattr(kind, n) is not getattr(Device, n) or hasattr(memory, n) for n in ("write", "read")):
            self._bytes_of(memory, "write")

    def _bytes_of(self, memory: Any, what: str) -> np.ndarray[Any, Any]:
        if not isinstance(memory, np.ndarray):
            raise NotImplementedError(
                f"{type(self).__name__}: allocate returned {kind_of(memory)}, so the class needs"
                f" {what}(memory, offset, data), or that object needs {what}(offset, data)"
            )
        return memory

    def fill(self, memory: Any, value: int) -> None:
        """Sets all bytes of ``memory``. By default with ``memory.fill(value)``, or ``memory[:] = value``."""
        if hasattr(memory, "fill"):
            memory.fill(value)
        else:
            memory[:] = value

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> bool:
        """Copies bytes from memory of this or another device written in Python. Returns True when done.

        False: not supported, and the library copies through the host. By default it returns the result of
        ``to.copy_from(offset, source, source_offset, nbytes)``, or False without this method.
        """
        if hasattr(to, "copy_from"):
            return bool(to.copy_from(to_offset, source, offset, nbytes))
        return False

    def store(self, out: Any, result: Any) -> None:
        """Stores an array that a method returned, of the shape of ``out``, as the result."""
        if isinstance(out, np.ndarray):
            if result.dtype != out.dtype:
                expect_kind(np.asarray(result), out.dtype, "the result")
            np.copyto(out, result, casting="same_kind")
        else:
            out[...] = result

    def copy_of(self, array: Any) -> Any:
        """A private copy of an array."""
        return array.clone() if hasattr(array, "clone") else array.copy()

    # ------------------------------------------------------------------------------------------------------------ queue

    def submit(self, work: Callable[[], None]) -> None:
        """Runs ``work()``, now or later, in the order of submission.

        A class with its own ``submit`` has a queue. It also writes :meth:`synchronize`, and optionally
        ``event``.

        ``work`` raises nothing. The call that waits for it raises its failure. ``event()`` returns an object
        with three methods. ``record()`` marks the end of the work submitted so far. ``synchronize()`` waits
        until that work is done. ``wait(device)`` makes work that is submitted to ``device`` from now on wait
        for it. The class of ``device`` has the same ``event``.

        Optional: ``transfer(to, to_offset, source, offset, nbytes)``, which queues a copy; ``timed_event()``, a
        mark with ``time()``; ``fill_from_file``. See docs/howto/device-memory.md.
        """
        work()

    def synchronize(self) -> None:
        """Waits until all submitted work is done."""

    if TYPE_CHECKING:  # at run time, a device without events lacks the method

        def event(self) -> Mark: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


_base[0] = Device
custom_of[0] = CustomOp.of_node


def kind_of_numbers(array: Any) -> np.dtype[Any] | None:
    """The NumPy dtype of an array of any library, float32 for bfloat16. None if NumPy has no such numbers."""
    name = str(getattr(array, "dtype", "")).rpartition(".")[2]
    try:
        return np.dtype("float32" if name == "bfloat16" else name)
    except TypeError:
        return None


def aligned(nbytes: int, alignment: int) -> np.ndarray[Any, Any]:
    """``max(nbytes, 1)`` bytes of host memory at a multiple of ``alignment``."""
    n = max(nbytes, 1)
    try:
        whole: np.ndarray[Any, Any] = np.empty(n + alignment, np.uint8)
    except (MemoryError, ValueError):  # ValueError: larger than the address space
        raise AllocationError(f"no memory for a buffer of {nbytes} bytes") from None
    return whole[-whole.ctypes.data % alignment :][:n]


def _repetition(node: Node) -> str:
    """The repetition in a node that array libraries cannot broadcast; "" if they can."""
    if node.op not in _BROADCAST and node.op != "mul_mat":
        return ""
    a, b, *more = (s.shape for s in node.sources)
    try:
        if node.op != "mul_mat":
            shape = np.broadcast_shapes(a, b, *more)
        elif len(a) < 2:
            shape = None
        elif len(b) < 2:
            shape = (*a[:-2], a[-2])
        else:
            shape = (*np.broadcast_shapes(a[:-2], b[:-2]), b[-2], a[-2])
    except ValueError:
        shape = None
    if shape == node.shape:
        return ""
    if node.op == "mul_mat":
        return "it neither broadcasts matrices of a product nor accepts a vector"
    return "it cannot repeat an operand along an axis of more than one element"


@overload
def register_device(name: str, cls: _D, *, replace: bool = False) -> _D: ...
@overload
def register_device(name: str, cls: None = None, *, replace: bool = False) -> Callable[[_D], _D]: ...
def register_device(name: str, cls: Any = None, *, replace: bool = False) -> Any:
    """Registers a device class under a name. Without ``cls`` it is a class decorator.

    ``gb.Backend(name)`` then opens a device, ``gb.backends()`` lists it, and texts such as
    ``"NP:threads=2"`` name it.

    name: a letter, then letters, digits or ``_``. Case does not matter.
    replace: replace a class of the same name, for devices opened from now on
    """
    as_name(name, "register_device")
    replace = expect_bool(replace, "register_device: replace")
    if cls is None:
        return partial(_register, name, replace)
    return _register(name, replace, cls)


def _register(name: str, replace: bool, cls: Any) -> Any:
    if not (isinstance(cls, type) and issubclass(cls, Device)):
        hint = "; the class, not an object of it" if isinstance(cls, Device) else ""
        raise TypeError(f"register_device: cls must be a subclass of Device, not {kind_of(cls)}{hint}")
    if not callable(getattr(cls, "synchronize", None)):
        raise InvalidArgumentError(f"register_device: {cls.__name__}.synchronize must be a method")
    for old, new in (("alloc", "allocate"), ("max_size", "max_nbytes")):  # until the next release
        if hasattr(cls, old):
            warn_of(f"{cls.__name__}.{old}", new, stacklevel=4)
            setattr(cls, new, getattr(cls, old))
    registry.register(name, cls, replace)
    return cls
