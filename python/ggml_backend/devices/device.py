"""Devices written in Python.

A class of devices says what it computes, on arrays over its memory; the scheduler, plans, traces and ``explain`` work
with it as with any other backend::

    class Elements(gb.Device):
        @gb.op("add", "mul")
        def elements(self, node, out, a, b):
            {"add": np.add, "mul": np.multiply}[node.op](a, b, out=out)

    gb.register_device("NP", Elements)
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
from ._program import Call, copied, overwritten_of, program_of, refreshed

__all__ = ["Call", "Device", "Node", "op", "register_device"]

_F = TypeVar("_F", bound=Callable[..., Any])
_D = TypeVar("_D", bound="type[Device]")

_BROADCAST = frozenset(("add", "sub", "mul", "div", "compare", "where"))
_INDICES = {"get_rows": 1, "get_rows_back": 1, "rope": 1, "rope_back": 1, "mul_mat_id": 0}
"""The source that is int32 whatever the others are."""
_MEANT = {
    "matmul": "mul_mat", "dot": "mul_mat", "negative": "neg", "absolute": "abs", "concatenate": "concat",
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), "compare"),
}  # fmt: skip
"""What NumPy calls operators."""
_COUNTS = frozenset(("argmax", "argsort"))  # whose result is int32


class _Entry:
    """One row of a class' table of operators."""

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
    """Marks a method of a :class:`Device` as what computes operators.

    The method is called as ``method(node, out, *sources)``: a :class:`Node`, and arrays over the memory of the result
    and of the sources, in NumPy order. It writes ``out``, or returns an array of the same shape, which is stored there.
    Sources are only read.

    names: of operators, in small letters, as ``Node.op`` has them
    dtypes: of the result and the sources, indices apart: one, several, ``"dense"`` for all that are not quantized, or
        ``"all"``. A source of a quantized dtype comes as the bytes of its rows
    when: asked of each node whose dtypes fit: True, or a reason in words why it is not computed, which ``explain``
        quotes, or False
    prepare: the method is called once for each plan, and returns a function without arguments that is called in each
        run. What depends on shapes alone is then decided once. The arrays stay the same in all runs
    in_place: may ``out`` lie on a source? Otherwise the method is given a copy of such a source, with the values of
        the run. Default: True for elementwise operators (``add``, ``relu``, ...), False for all others
    repeats: the method repeats operands as ggml does. Otherwise what array libraries do not repeat is refused: of
        ``add``, ``sub``, ``mul`` and ``div`` a second operand that is repeated along an axis where it has more than one
        element; of ``mul_mat`` matrices each of which is used for several of the other operand, and a vector in the
        place of a matrix
    """
    if not names or not all(isinstance(n, str) and n for n in names):
        raise TypeError('op: names of operators are texts: @gb.op("add", "mul")')
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
    """A place in a queue, as :meth:`Device.submit` describes it."""

    def record(self) -> object: ...
    def synchronize(self) -> object: ...
    def wait(self, device: Any) -> object: ...


class Device:
    """A device that computes with functions of Python. Subclasses are registered with :func:`register_device`; the
    library makes the objects, one for each ``gb.Backend(NAME)``, with the options that ``__init__`` takes.

    Only a table of operators (:func:`op`) is needed. Everything else has a default:

    - *What it computes*: :meth:`supports`, by default from the table.
    - *Functions*: with ``computes_custom = True`` those of :func:`custom` and :func:`map_custom` run on the device, on
      its own arrays; those with several results, or with quantized tensors, if these are NumPy's. With ``n_tasks``
      other than 1 a function is called once, with ``ith = 0, nth = 1``.
    - *How*: :meth:`compile`, by default a list of calls of the table's methods.
    - *Memory*: ``memory = "host"`` is memory of the host, in NumPy arrays, which the CPU reads and writes, too, so that
      nothing is copied between them. ``memory = "own"`` is the device's. Write :meth:`allocate` and :meth:`array`
      then. Without NumPy arrays, also write :meth:`write`, :meth:`read` and :meth:`fill`.
    - *A queue*: a class, or an object after ``__init__``, that has a :meth:`submit` of its own computes later;
      :meth:`synchronize` waits, and a method ``event`` may give marks in the queue.

    What a method raises is raised to whoever computes, with a note that names the device and the node, and the
    scheduler stays usable. docs/BACKENDS.md says on which threads methods are called ("What holds").
    """

    memory: str = "host"  #: ``"host"`` or ``"own"``
    alignment: int = 64  #: of tensors in its memory, in bytes: a power of two, with memory "host" at least 64
    max_nbytes: int | None = None  #: bytes of the largest buffer; None: no limit
    in_order: bool = False  #: :meth:`write`, :meth:`read`, :meth:`fill` and :meth:`copy` keep to the order of the queue
    computes_custom: bool = False  #: functions of ``gb.custom`` run on it
    name: str = ""  #: what plans and messages call it: the name it is registered with, unless ``__init__`` sets another

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
        """Why no such device can be used here, in words; None: it can. ``gb.backends().missing`` shows it."""
        return None

    def close(self) -> None:
        """Called when nothing needs the device any more."""

    # ------------------------------------------------------------------------------------------------ what it computes

    def supports(self, node: Node) -> bool | str:
        """Does it compute the node? True, or False or the reason, which ``explain`` quotes. It must be the truth, for
        every dtype, shape and stride. Views and empty tensors are not asked."""
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
        return answer if answer is not False else f"it computes {node.op}, but not this node, and says no reason"

    def _takes_function(self, node: Node) -> bool | str:
        """Of functions with several results, or with quantized sources, this package makes what they are called with,
        which it can of arrays of NumPy."""
        op = node._function() if node._function is not None else None
        if op is None or not (op.several or any(t.dtype.is_quantized for t in (node, *node.sources))):
            return True
        state = self._state
        if state.has_numpy_arrays is None:
            state.has_numpy_arrays = isinstance(self.array(self.allocate(64), 0, single(), False), np.ndarray)
        if state.has_numpy_arrays:
            return True
        return "functions of several results, or of quantized tensors, are for devices with arrays of NumPy"

    @staticmethod
    def _wrong_dtype(entry: _Entry, node: Node) -> str:
        index = _INDICES.get(node.op)
        for k, tensor in enumerate((node, *node.sources)):
            is_index = tensor.dtype == dtypes["int32"] and (k - 1 == index if k else node.op in _COUNTS)
            if tensor.dtype not in entry.dtypes and not is_index:
                what = "the result" if k == 0 else f"source {k - 1}"
                known = ", ".join(sorted(d.name for d in entry.dtypes))
                return f"{what} is {tensor.dtype.name}, and it computes {node.op} of {known}"
        return ""

    def compile(self, calls: Sequence[Call]) -> Callable[[], object]:
        """Makes a function that computes the nodes, in order. Called once for each plan, with arrays that stay the same
        for all its runs; the function is called in each run."""
        return program_of(self.name, [(self.step(call), call) for call in calls], self.store)

    def step(self, call: Call) -> Callable[[], Any]:
        """What computes one node: the table's method, with its arguments. An array that it returns is not stored yet:
        :meth:`store` does that, unless it is None or ``call.out``. Where the result lies on a source (``call.shared``)
        and the method may not find it there, it reads copies."""
        entry = self._table.get(call.node.op)
        if entry is None and call.node._function is not None:
            return partial(self._custom, call.node._function, call)
        if entry is None:
            raise UnsupportedError(
                f"{self.name}: {call.node}: supports says that it is computed, and no method is marked with"
                f" @gb.op({call.node.op!r})"
            )
        method = getattr(self, entry.method)
        overwritten = () if entry.in_place else overwritten_of(call)
        if not entry.prepare:
            return copied(method, call, overwritten, self.copy_of)
        copies = {k: self.copy_of(call.sources[k]) for k in overwritten}
        prepared = method(call.node, call.out, *[copies.get(k, a) for k, a in enumerate(call.sources)])
        if not callable(prepared):
            raise TypeError(
                f"{self.name}: {entry.method} is marked with prepare=True, and must return a function, not"
                f" {kind_of(prepared)}"
            )
        return refreshed(prepared, call, copies, self.store) if copies else prepared

    def _custom(self, function: Callable[[], CustomOp | None], call: Call) -> Any:
        op = function()
        if op is None:
            raise StateError(f"{self.name}: {call.node}: its function is gone with the graph")
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
        """Of an array of another library than NumPy: that its numbers become those of the result, as of NumPy's."""
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
        """Memory of ``nbytes`` bytes, 0 or more. It is given back when the last reference to it is gone. MemoryError:
        there is not so much; whoever asked is told so (:class:`AllocationError`), and may go on without.

        With ``memory = "host"``: a writable NumPy array of ``max(nbytes, 1)`` uint8 whose address is a multiple of
        ``alignment``. With ``memory = "own"``: whatever :meth:`array` and the methods that move bytes understand.
        """
        if self.memory != "host":
            raise NotImplementedError(f"{type(self).__name__}: a device with memory of its own has allocate(nbytes)")
        return aligned(nbytes, self.alignment)

    def array(self, memory: Any, offset: int, node: Node, writable: bool) -> Any:
        """An array over the memory of a tensor, ``offset`` bytes from the beginning of ``memory``, with the shape and
        the strides of ``node``; of a quantized tensor, its bytes, rows by rows.

        memory: what :meth:`allocate` returned
        writable: False for sources
        """
        if not isinstance(memory, np.ndarray):
            raise NotImplementedError(
                f"{type(self).__name__}: array(memory, offset, node, writable) is to be given where allocate returns no"
                " NumPy array"
            )
        return numpy_view(memory, offset, node, writable)

    def write(self, memory: Any, offset: int, data: memoryview) -> None:
        """Copies bytes from the host into ``memory``, ``offset`` bytes from its beginning. By default with the method
        ``write(offset, data)`` of what :meth:`allocate` returned, or into a NumPy array."""
        if hasattr(memory, "write"):
            memory.write(offset, data)
        else:
            write_bytes(self._bytes_of(memory, "write"), offset, data)

    def read(self, memory: Any, offset: int, data: memoryview) -> None:
        """Copies bytes of ``memory``, ``offset`` bytes from its beginning, into ``data``, which is on the host. By
        default with its method ``read(offset, data)``, or from a NumPy array."""
        if hasattr(memory, "read"):
            memory.read(offset, data)
        else:
            read_bytes(self._bytes_of(memory, "read"), offset, data)

    def _expect_memory(self, memory: Any, nbytes: int) -> None:
        """Checks memory that :meth:`allocate` returned: its size, if it has ``nbytes``, and that it can be written and
        read."""
        have = getattr(memory, "nbytes", None)
        if isinstance(have, int) and have < nbytes:
            raise DeviceError(f"allocate({nbytes}) returned {kind_of(memory)} of {have} bytes")
        kind = type(self)
        if not any(getattr(kind, n) is not getattr(Device, n) or hasattr(memory, n) for n in ("write", "read")):
            self._bytes_of(memory, "write")

    def _bytes_of(self, memory: Any, what: str) -> np.ndarray[Any, Any]:
        if not isinstance(memory, np.ndarray):
            raise NotImplementedError(
                f"{type(self).__name__}: allocate returned {kind_of(memory)}: then the class has"
                f" {what}(memory, offset, data), or what allocate returns has {what}(offset, data)"
            )
        return memory

    def fill(self, memory: Any, value: int) -> None:
        """Sets all bytes of ``memory``. By default with its method ``fill(value)``, or with ``memory[:] = value``."""
        if hasattr(memory, "fill"):
            memory.fill(value)
        else:
            memory[:] = value

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> bool:
        """Copies bytes from memory of this or another device written in Python. True: it is done. False: it cannot, and
        the library copies through the host. By default with the method ``copy_from(offset, source, source_offset,
        nbytes)`` of the target, which answers the same; without one False."""
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
        """A copy of an array, of which nobody else knows."""
        return array.clone() if hasattr(array, "clone") else array.copy()

    # ------------------------------------------------------------------------------------------------------------ queue

    def submit(self, work: Callable[[], None]) -> None:
        """Runs ``work()``, now or later, in the order in which it was submitted. A class that has a method of its own
        here has a queue, and :meth:`synchronize` and perhaps ``event``.

        ``work`` raises nothing: what fails in it is raised by whoever waits for it. ``event()`` returns an object with
        ``record()``: marks the end of what was submitted so far; ``synchronize()``: waits until that is done; and
        ``wait(device)``: what is submitted to ``device``, whose class has the same ``event``, from now on waits for it.

        Optional: ``transfer(to, to_offset, source, offset, nbytes)``, which queues a copy; ``timed_event()``, a mark
        that has ``time()``; ``fill_from_file``. docs/howto/device-memory.md has them.
        """
        work()

    def synchronize(self) -> None:
        """Waits until everything that was submitted is done."""

    if TYPE_CHECKING:  # a device that has none says so by not having the method

        def event(self) -> Mark: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


_base[0] = Device
custom_of[0] = CustomOp.of_node


def kind_of_numbers(array: Any) -> np.dtype[Any] | None:
    """The dtype of an array of any library as NumPy's; bfloat16 as float32. None: NumPy has no such numbers."""
    name = str(getattr(array, "dtype", "")).rpartition(".")[2]
    try:
        return np.dtype("float32" if name == "bfloat16" else name)
    except TypeError:
        return None


def aligned(nbytes: int, alignment: int) -> np.ndarray[Any, Any]:
    """``max(nbytes, 1)`` bytes of the host at a multiple of ``alignment``."""
    n = max(nbytes, 1)
    try:
        whole: np.ndarray[Any, Any] = np.empty(n + alignment, np.uint8)
    except (MemoryError, ValueError):  # the latter for more than an address holds
        raise AllocationError(f"no memory for a buffer of {nbytes} bytes") from None
    return whole[-whole.ctypes.data % alignment :][:n]


def _repetition(node: Node) -> str:
    """What array libraries do not repeat, but ggml does; "" if they repeat all that this takes."""
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
        return "it neither repeats matrices of a product nor takes a vector for one"
    return "it does not repeat an operand along an axis where that has more than one element"


@overload
def register_device(name: str, cls: _D, *, replace: bool = False) -> _D: ...
@overload
def register_device(name: str, cls: None = None, *, replace: bool = False) -> Callable[[_D], _D]: ...
def register_device(name: str, cls: Any = None, *, replace: bool = False) -> Any:
    """Makes a class of devices known, so that ``gb.Backend(name)`` opens one, ``gb.backends()`` lists it, and texts
    such as ``"NP:threads=2"`` name it. Without ``cls`` it is a decorator of the class.

    name: a letter, then letters, digits or ``_``; compared without case
    replace: put it in the place of another class of that name, for devices that are opened from now on
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
