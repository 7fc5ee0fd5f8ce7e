"""The base of all operator families: a device with an array library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ..._base.errors import InvalidArgumentError
from ...dtypes import DType
from .._nodes import Node
from ..device import Device
from .library import F32, FLOATS, Function, Library, Step

_F = TypeVar("_F", bound=Callable[..., Any])

FLOAT_NAMES = tuple(d.name for d in FLOATS)


class Widened:
    """Weights as float32, shared by all plans that read them. They are converted at the first use,
    and again after a change.

    version: returns the version of the weights, which differs between any two buffers and after
        each change
    """

    __slots__ = ("__weakref__", "_read", "_seen", "_store", "array", "version")

    def __init__(self, array: Any, read: Step, store: Callable[[Any, Any], object], version: Callable[[], int]) -> None:
        self.array = array
        self.version = version
        self._read, self._store = read, store
        self._seen = -1

    def refresh(self) -> None:
        now = self.version()
        if now != self._seen:
            self._store(self.array, self._read())
            self._seen = now


class Family(Device):
    """A device with an array library, for operators.

    Functions marked with ``op`` return a step: a function without arguments that computes the node."""

    library: Library
    widened: bool = False
    versions: Mapping[int, Callable[[], int]]  #: by ``id`` of an array of weights, while a plan is made
    before: list[Step]  #: while a plan is made: steps that each of its runs takes first
    _kept: WeakValueDictionary[tuple[Any, ...], Widened]

    def weights_of(self, array: Any, dtype: DType) -> tuple[Any, Step | None]:
        """Float32 weights and None, or other weights and a step that returns them as float32."""
        read = self.floats_of(array, dtype)
        version = self.versions.get(id(array)) if self.widened and read is not None else None
        if read is None or version is None:
            return array, read
        library = self.library
        key = (*library.place(array), dtype.id)
        kept = self._kept.get(key)
        if kept is None:
            shape = (*array.shape[:-1], array.shape[-1] // dtype.itemsize * dtype.block_size)
            wide = library.empty(shape if dtype.is_quantized else array.shape)
            kept = self._kept[key] = Widened(wide, read, lambda out, value: library.assign(out, value)(), version)
        kept.version = version
        self.before.append(kept.refresh)
        return kept.array, None

    def step_of(
        self, function: Function, node: Node, out: Any, sources: Sequence[Any], dtypes: Sequence[DType] | None = None
    ) -> Step:
        """A step that runs a float32 function on sources and a result of any float dtypes.

        Sources are converted to float32 before it. The result is rounded once, as on the CPU.

        dtypes: of the sources; default: those of the sources of the node
        """
        library = self.library
        readers = self._readers(node, sources, dtypes)
        writer = library.writer(out, node.dtype)
        if writer is None and not any(readers):
            return partial(function, *sources, out=out)
        given = _given(readers, sources)
        if writer is None:
            return lambda: function(*[read() for read in given], out=out)
        return lambda: writer(function(*[read() for read in given]))

    def value_of(
        self, function: Function, node: Node, out: Any, sources: Sequence[Any], dtypes: Sequence[DType] | None = None
    ) -> Step:
        """A step that stores what a function of float32 arrays returns, which has no ``out``. It may return
        integers for a result of integers.

        dtypes: as for :meth:`step_of`
        """
        given = _given(self._readers(node, sources, dtypes), sources)
        writer = self.library.writer(out, node.dtype) if node.dtype in FLOATS else None
        if writer is None:
            return self.library.assign_from(out, lambda: function(*[read() for read in given]))
        return lambda: writer(function(*[read() for read in given]))

    def _readers(self, node: Node, sources: Sequence[Any], dtypes: Sequence[DType] | None) -> list[Step | None]:
        found = dtypes or [s.dtype for s in node.sources[: len(sources)]]
        return [self.floats_of(s, d) if d.is_quantized or d in FLOATS else None
                for s, d in zip(sources, found, strict=True)]  # fmt: skip

    def floats_of(self, array: Any, dtype: DType) -> Step | None:
        """A step that converts floats, or bytes of quantized rows, to float32; None if they are float32."""
        if dtype.is_quantized:
            return self.library.unpacker(array, dtype)
        return self.library.reader(array, dtype)

    def conversion(self, out: Any, to: DType, source: Any, of: DType) -> Step:
        """Copies one array into another one of the same shape, from floats of any dtype to floats of any dtype."""
        if of == to:
            return self.library.assign(out, source)
        read, write = self.floats_of(source, of), self.library.writer(out, to)
        if write is None:
            assert read is not None
            return self.library.assign_from(out, read)
        store = write
        return partial(store, source) if read is None else lambda: store(read())

    def store_of(self, node: Node, out: Any) -> tuple[Any, Step | None]:
        """A float32 array for the result, and a step that stores it, or None if the array is the result."""
        if node.dtype == F32:
            return out, None
        writer = self.library.writer(out, node.dtype)
        assert writer is not None
        wide = self.library.empty(out.shape)
        return wide, partial(writer, wide)


def _same(array: Any) -> Any:
    return array


def _given(readers: Sequence[Step | None], sources: Sequence[Any]) -> list[Step]:
    """Steps that return the sources as float32."""
    return [r if r is not None else partial(_same, s) for r, s in zip(readers, sources, strict=True)]


def stepwise(method: _F) -> _F:
    """Marks a method whose plans ``torch.compile`` cannot compile.

    The method checks indices during a run, or writes only a part of its result.
    """
    method.is_stepwise = True  # type: ignore[attr-defined]
    return method


def checked(node: Node, steps: Sequence[Step]) -> Step:
    """A step that runs steps in order. An index out of range becomes an error that names the node."""

    def run() -> None:
        try:
            for step in steps:
                step()
        except IndexError as error:
            raise InvalidArgumentError(f"{node}: {error}") from None

    return run


def then(first: Step, second: Step | None) -> Step:
    """A step that runs both steps in order."""
    if second is None:
        return first

    def both() -> None:
        first()
        second()

    return both
