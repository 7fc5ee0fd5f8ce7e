"""GGUF model files: metadata, named tensors, and their way into the memory of backends.

For example::

    with gb.gguf.open("model.gguf") as file:
        print(file.metadata["general.name"], len(file.tensors))
        weights = file.load(cpu)                # in place: the file's own pages, nothing is copied
    y = x @ weights["blk.0.ffn_up.weight"].T    # weights on the right: they need not be float32

A file is mapped, not read. Its metadata is checked completely when it is opened (nothing in it is trusted: what is
wrong raises :class:`FileError`, naming the field and its offset); values and tensors become Python objects when they
are asked for. Arrays and loaded weights keep the mapping alive, also after ``close()``. Do not change a file while it
is open. One that becomes shorter meanwhile raises :class:`FileError` from whatever reads it here: loading, copying,
converting, and computing with weights in place. Reading an array over it with NumPy itself is beyond us: there the
system ends the process (SIGBUS), as with any memory map.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import (
    FileError,
    InvalidArgumentError,
    StateError,
    UnsupportedError,
    expect,
    expect_bool,
    expect_function,
    expect_list,
    expect_path,
    raise_last,
)
from .._base.errors.hints import no_name
from .._base.errors.messages import UnknownKey, kind_of, reader_hint
from .._base.handles import Owner
from .._base.mapped import map_file
from .._base.text import Patterns, count, nearest
from .._ffi import ffi, lib
from ..backend.backend import Backend
from ..backend.buffer import Buffer, BufferType, Usage, usage_id
from ..dtypes import DType
from ..tensor._quantize import dequantize, fallback_dtype
from ..tensor._shapes import MAX_DIMS
from ..tensor.context import Context
from ..tensor.tensor import Tensor
from ._parts import Part, is_one_of_several, parts_of
from ._values import NestedArray, UnknownType, any_dtype, decode, findable, type_name, value_at
from ._writer import Writer

__all__ = [
    "GGUFFile",
    "GGUFTensor",
    "Metadata",
    "NestedArray",
    "UnknownType",
    "Weights",
    "Writer",
    "fallback_dtype",
    "open",
]

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int], object]
"""Called with the bytes done and the bytes in all."""
Target = Backend | BufferType

_CHUNK = 16 << 20  # bytes copied to a device at once
_NATURAL = 8  # bytes; what the address of a tensor must be a multiple of to be computed with in place


class Metadata(Mapping[str, Any]):
    """The key-value pairs of a file. Scalars come as ``int``, ``float``, ``bool`` and ``str``, arrays of numbers as
    NumPy arrays of exactly their type, arrays of strings as lists, arrays of arrays as :class:`NestedArray`. Each
    access makes a new object.

    Bytes that are not UTF-8 come as surrogates (``errors="surrogateescape"``); a :class:`Writer` turns them back.
    """

    __slots__ = ("_file",)

    def __init__(self, file: GGUFFile) -> None:
        self._file = file

    def _live(self) -> Part:
        """The first part, which has the metadata of all."""
        return self._file._live()[0]

    def _find(self, key: str) -> int:
        name, part = findable(key), self._live()
        return -1 if name is None else int(lib.gguf_find_key(part.ptr, name))

    def _id(self, key: str) -> int:
        index = self._find(key) if isinstance(key, str) else -1
        if index < 0:
            raise UnknownKey(key, self)
        return index

    def __getitem__(self, key: str) -> Any:
        part = self._live()
        return value_at(part, self._id(key))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) >= 0

    def __iter__(self) -> Iterator[str]:
        part = self._live()
        for i in range(lib.gguf_get_n_kv(part.ptr)):
            yield decode(ffi.string(lib.gguf_get_key(part.ptr, i)))

    def __len__(self) -> int:
        part = self._live()
        return int(lib.gguf_get_n_kv(part.ptr))

    def type(self, key: str) -> str:
        """How the file stores a value: ``"u32"``, ``"str"``, ..., ``"arr[f32]"``, or ``"arr[arr]"``."""
        return type_name(self._live(), self._id(key))

    def __repr__(self) -> str:
        return f"<Metadata of {count(len(self), 'key')}>"


class GGUFTensor:
    """A tensor in a file. Nothing of its data is read before it is used.

    ``name``; ``shape`` in NumPy order; ``dtype``; ``nbytes``; ``offset`` in the file, in bytes

    A tensor without axes has the shape ``()`` and one element. A tensor of more than four axes can be read
    (``numpy()``) and copied; no backend can hold it.

    A type that this version does not know has the dtype ``"type 41"`` (:class:`UnknownType`, with the number as
    ``id``): such a tensor reaches to the next one or to the end of the file, its bytes can be read (``numpy()``) and
    copied (:class:`Writer`), nothing else.
    """

    __slots__ = ("_index", "_part", "dtype", "name", "nbytes", "offset", "shape")

    def __init__(self, part: Part, index: int) -> None:
        self._part = part
        self._index = index
        self.name: str = decode(ffi.string(lib.gguf_get_tensor_name(part.ptr, index)))
        self.dtype: DType = any_dtype(lib.gguf_get_tensor_type(part.ptr, index))
        ne = ffi.unpack(lib.gguf_get_tensor_ne(part.ptr, index), lib.gguf_get_tensor_n_dims(part.ptr, index))
        self.shape: tuple[int, ...] = tuple(ne[::-1])
        self.nbytes: int = lib.gguf_get_tensor_size(part.ptr, index)
        self.offset: int = part.data_offset + lib.gguf_get_tensor_offset(part.ptr, index)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def ne(self) -> tuple[int, ...]:
        """The sizes in ggml's order, the fastest dimension first."""
        return self.shape[::-1]

    @property
    def data(self) -> Array:
        """Its bytes, read-only, in the file's memory."""
        self._part.check()
        return self._part.data[self.offset : self.offset + self.nbytes]

    def numpy(self) -> Array:
        """A read-only view of the file's memory: of ``shape``, for bfloat16 of uint16 bits; for quantized formats the
        bytes of the rows; for an unknown type all bytes, one-dimensional."""
        if isinstance(self.dtype, UnknownType):
            return self.data
        shape = list(self.shape)
        if self.dtype.is_quantized:
            shape[-1] = self.dtype.row_nbytes(shape[-1])
        try:
            return np.ndarray(shape, self.dtype.numpy, self.data)
        except ValueError:  # too many axes, or beside a 0 a product that no address holds
            raise UnsupportedError(f"tensor {self.name!r}: NumPy has no arrays of shape {self.shape}") from None

    def _why_opaque(self) -> str | None:
        """The reason why no backend can hold the tensor; None: backends can."""
        if isinstance(self.dtype, UnknownType):
            return str(self.dtype.refuse(f"tensor {self.name!r}"))
        if len(self.shape) > MAX_DIMS:
            return f"tensor {self.name!r} has {len(self.shape)} axes, a backend holds tensors of at most {MAX_DIMS}"
        return None

    def dequantize(self) -> Array:
        """A new float32 array of ``shape``, for any format of floats. Raises :class:`UnsupportedError` for others."""
        if isinstance(self.dtype, UnknownType):
            raise self.dtype.refuse(f"dequantize: {self.name!r}")
        array = self.numpy()
        if array.ndim == 0:  # one element, of a format without blocks
            return dequantize(array.reshape(1), self.dtype).reshape(())
        return dequantize(array, self.dtype)

    def __repr__(self) -> str:
        return f"<GGUFTensor {self.name!r} {self.dtype.name} {self.shape}>"


class Tensors(Mapping[str, GGUFTensor]):
    """The tensors of a file, or of all parts of a split one, in the order of the file."""

    __slots__ = ("_file", "_part_of")

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._part_of: dict[str, int] | None = None  # only of split files
        if len(file._parts) > 1:
            self._part_of = {}
            for i, part in enumerate(file._parts):
                for name in part.names():
                    if name in self._part_of:
                        raise FileError(
                            f"{part.name}: tensor {name!r} is also in {file._parts[self._part_of[name]].name}"
                        )
                    self._part_of[name] = i

    def _place(self, name: object) -> tuple[Part, int] | None:
        parts = self._file._live()
        wanted = findable(name) if isinstance(name, str) else None
        if wanted is None:
            return None
        at = 0 if self._part_of is None else self._part_of.get(str(name))
        if at is None:
            return None
        part = parts[at]
        index = lib.gguf_find_tensor(part.ptr, wanted)
        return None if index < 0 else (part, index)

    def __getitem__(self, name: str) -> GGUFTensor:
        place = self._place(name)
        if place is None:
            raise UnknownKey(name, self)
        return GGUFTensor(*place)

    def __contains__(self, name: object) -> bool:
        return self._place(name) is not None

    def __iter__(self) -> Iterator[str]:
        for part in self._file._live():
            yield from part.names()

    def __len__(self) -> int:
        return sum(len(part) for part in self._file._live())

    def __repr__(self) -> str:
        return f"<{count(len(self), 'tensor')}>"


class Weights(Mapping[str, Tensor]):
    """Tensors loaded from a file, by their names in the file (``Tensor.name`` has at most 63 bytes).

    ``context``: the context that they live in; ``buffers``: their memory; ``in_place``: bytes that were not copied;
    ``left_out``: names of opaque tensors of the file, which no backend can hold, with the reason
    """

    __slots__ = ("_tensors", "buffers", "context", "in_place", "left_out")

    def __init__(self, context: Context, left_out: dict[str, str]) -> None:
        self.context: Context = context
        self.buffers: list[Buffer] = []
        self.in_place: int = 0
        self.left_out: dict[str, str] = left_out
        self._tensors: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except (KeyError, TypeError):
            if isinstance(name, str) and name in self.left_out:
                raise UnsupportedError(f"{self.left_out[name]}: it was left out") from None
            raise UnknownKey(name, self._tensors) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self._tensors.values())

    def close(self) -> None:
        """Gives the memory back: the tensors lose their place."""
        for buffer in self.buffers:
            buffer.close()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Weights: {count(len(self), 'tensor')} in {count(len(self.buffers), 'buffer')}>"


class _Copy:
    """A tensor that has to be copied, and where to."""

    __slots__ = ("keep", "offset", "source", "tensor")
    keep: tuple[Any, Any]  # memory that C looks into

    def __init__(self, source: GGUFTensor, tensor: Tensor) -> None:
        self.source = source
        self.tensor = tensor
        self.offset = 0


class GGUFFile(Owner):
    """An open file; see :func:`open`. ``metadata`` and ``tensors`` are mappings, ``version``, ``alignment`` and
    ``nbytes`` numbers. ``is_part`` is true of one part of a split model that was opened alone."""

    def __init__(self, parts: list[Part], name: str) -> None:
        self._parts = parts  # none: it is closed
        self.name = name
        first = parts[0]
        self.version: int = lib.gguf_get_version(first.ptr)
        self.alignment: int = lib.gguf_get_alignment(first.ptr)
        self.is_part: bool = len(parts) == 1 and is_one_of_several(first)
        self.metadata: Metadata = Metadata(self)
        self.tensors: Tensors = Tensors(self)

    if not TYPE_CHECKING:  # for checkers there is no such thing

        def __getitem__(self, name):
            raise TypeError("a file is not indexed itself: file.tensors[name] is a tensor, file.metadata[key] a value")

        def __iter__(self):
            raise TypeError("a file is not gone through itself: file.tensors has its tensors, file.metadata its keys")

    def _live(self) -> list[Part]:
        parts = self._parts  # once: another thread may close it meanwhile
        if not parts:
            raise StateError(f"{self.name} is closed")
        return parts

    @property
    def nbytes(self) -> int:
        """Bytes of the file, or of all its parts."""
        return sum(part.data.nbytes for part in self._live())

    @property
    def n_parts(self) -> int:
        return len(self._live())

    def load(
        self,
        where: Target | Mapping[str, Target],
        names: str | Iterable[str] | None = None,
        *,
        context: Context | None = None,
        usage: Usage = "weights",
        progress: Progress | None = None,
    ) -> Weights:
        """Makes tensors with this file's data in the memory of backends.

        where: a backend or buffer type, or several by patterns of names, of which the first that fits decides:
            ``{"blk.[0-3].*": gpu, "*": cpu}``. Each pattern but ``"*"`` has to fit a tensor of the file, and a special
            pattern stands before a general one. If NumPy can read a backend's memory, the tensors lie in the mapped
            file itself. To other backends the data is copied, in pieces.
        names: load only the tensors of these names or patterns (as in a shell: ``*``, ``?``, ``[0-9]``)
        context: make the tensors here, instead of in a context of their own
        progress: called with bytes done and bytes in all while data is copied; what it raises ends the loading

        Opaque tensors (of unknown types, of more than four axes) are left out: ``Weights.left_out`` has their names.
        Raises KeyError if one of ``names`` fits nothing, :class:`InvalidArgumentError` if a pattern of ``where`` fits
        nothing or stands behind a more general one, :class:`AllocationError` if a backend has not enough memory, and
        :class:`UnsupportedError` if ``names`` has an opaque tensor without wildcards.
        """
        parts = self._live()
        if context is not None:
            expect(context, Context, "load: context")
        if progress is not None:
            expect_function(progress, "load: progress")
        usage_id(usage)
        chosen, left_out = self._select(names)
        groups = self._groups(where, chosen)
        weights = Weights(context if context is not None else Context(usage="weights"), left_out)
        copies: dict[int, list[_Copy]] = {}
        targets: dict[int, BufferType] = {}
        mapped: dict[int, Buffer] = {}
        try:
            for target, source in groups:
                tensor = weights.context.tensor(source.shape, source.dtype, name=source.name)
                weights._tensors[source.name] = tensor
                part = source._part
                if self._in_place(target, source):
                    at = parts.index(part)
                    if at not in mapped:
                        mapped[at] = Buffer.from_array(part.data, usage)
                        weights.buffers.append(mapped[at])
                    mapped[at].place(tensor, min(source.offset, part.data.nbytes))  # an empty one may lie behind
                    weights.in_place += source.nbytes
                else:
                    copies.setdefault(id(target), []).append(_Copy(source, tensor))
                    targets[id(target)] = target
            for key, items in copies.items():
                weights.buffers += _allocate(targets[key], items, usage)
            _upload([item for items in copies.values() for item in items], progress)
            for part in parts:
                part.check()
        except BaseException:
            weights.close()
            raise
        return weights

    def _select(self, names: str | Iterable[str] | None) -> tuple[list[str], dict[str, str]]:
        """The tensors to load, and those that no backend can hold, with the reason."""
        every = list(self.tensors)
        opaque = {t.name: why for t in self.tensors.values() if (why := t._why_opaque()) is not None}
        patterns: Iterable[str] = (names,) if isinstance(names, str) else ("*",)
        if names is not None and not isinstance(names, str):
            patterns = expect_list(names, "load: names", "names or patterns")
        elif names is None and not every:
            patterns = ()
        chosen: set[str] = set()
        left = Patterns(every)
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(f"load: names: each must be a str, not {kind_of(pattern)}")
            found = left.fitting(pattern)
            if not found:
                raise KeyError(f"{self.name}: no tensor fits {pattern!r}{nearest(pattern, self.tensors)}")
            if pattern in opaque:
                raise UnsupportedError(f"load: {opaque[pattern]}")
            chosen.update(found)
        left_out = {name: why for name, why in opaque.items() if name in chosen}
        return [n for n in every if n in chosen and n not in left_out], left_out

    def _groups(self, where: Target | Mapping[str, Target], names: list[str]) -> list[tuple[BufferType, GGUFTensor]]:
        rules: Mapping[str, Target] = where if isinstance(where, Mapping) else {"*": where}
        types: dict[str, BufferType] = {}
        for pattern, target in rules.items():
            if not isinstance(pattern, str):
                raise TypeError(f"load: where: each pattern must be a str, not {kind_of(pattern)}")
            if not isinstance(target, (Backend, BufferType)):
                raise TypeError(
                    f"load: a tensor is placed on a Backend or a BufferType, not on {type(target).__name__}"
                )
            types[pattern] = target.buffer_type if isinstance(target, Backend) else target
        every = Patterns(self.tensors)
        for pattern in types:
            if pattern != "*" and next(every.matching(pattern), None) is None:
                raise InvalidArgumentError(
                    f"load: where: no tensor of the file fits {pattern!r}{nearest(pattern, self.tensors)}"
                )
        hidden = every.hidden(types)
        if hidden is not None:
            raise InvalidArgumentError(
                f"load: where: {hidden[0]!r} decides nothing: {hidden[1]!r} stands before it and fits all of its"
                " tensors; put the special pattern first"
            )
        shared: dict[BufferType, BufferType] = {t: t for t in types.values()}  # one object for equal types
        groups = []
        chosen = Patterns(names).first(types)
        for name in names:
            found = chosen.get(name)
            if found is None:
                raise InvalidArgumentError(f"load: no pattern says where {name!r} goes; end with '*' for the rest")
            groups.append((shared[types[found]], self.tensors[name]))
        return groups

    @staticmethod
    def _in_place(target: BufferType, source: GGUFTensor) -> bool:
        # NumPy's __array_interface__ crashes when memory is out
        address = source._part.data.ctypes.data + source.offset
        return target.is_host and address % _NATURAL == 0

    def close(self) -> None:
        """Ends the use of this object. Arrays and loaded tensors keep the file's memory. Closing twice is fine."""
        self._parts = []

    @property
    def closed(self) -> bool:
        return not self._parts

    def __enter__(self) -> GGUFFile:
        self._live()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._parts:
            return f"<GGUFFile {self.name!r} closed>"
        return f"<GGUFFile {self.name!r}: {count(len(self.metadata), 'key')}, {count(len(self.tensors), 'tensor')}>"


def _allocate(target: BufferType, items: list[_Copy], usage: Usage) -> list[Buffer]:
    """Buffers for all items, in none more than the device can allocate at once, and every tensor placed."""
    alignment, limit = target.alignment, target.max_nbytes
    buffers: list[Buffer] = []
    group: list[_Copy] = []
    size = 0
    for item in [*items, None]:
        need = 0 if item is None else -(-target.nbytes_for(item.tensor) // alignment) * alignment
        if group and (item is None or size + need > limit):
            buffer = target.allocate(size, usage)
            buffers.append(buffer)
            for member in group:
                buffer.place(member.tensor, member.offset)
            group, size = [], 0
        if item is not None:
            item.offset = size
            group.append(item)
            size += need
    return buffers


_AT_ONCE = 256 << 20  # bytes that devices are asked to read from files in one call


def _upload(items: list[_Copy], progress: Progress | None) -> None:
    total, done = sum(item.source.nbytes for item in items), 0
    for group in _groups_of(items):
        fills = _from_files(group)
        for i, item in enumerate(group):
            if fills[i].filled:
                done += item.source.nbytes
                if progress is not None:
                    progress(done, total)
                continue
            done = _send(item, progress, done, total)
            if fills[i].asked and lib.gbpy_keep_file(item.tensor._k, fills + i, b"it"):
                raise_last(f"load: {item.source.name!r}")


def _groups_of(items: list[_Copy]) -> Iterator[list[_Copy]]:
    group: list[_Copy] = []
    size = 0
    for item in items:
        group.append(item)
        size += item.source.nbytes
        if size >= _AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _send(item: _Copy, progress: Progress | None, done: int, total: int) -> int:
    data, pointer = item.source.data, item.tensor._live()
    for start in range(0, data.nbytes, _CHUNK):
        piece = data[start : start + _CHUNK]
        status = lib.gbpy_write(item.tensor._k, pointer, ffi.from_buffer(piece), start, piece.nbytes, b"it")
        if status:
            raise_last(f"load: {item.source.name!r}", status)
        done += piece.nbytes
        if progress is not None:
            progress(done, total)
    return done


def _from_files(items: list[_Copy]) -> Any:
    """Lets devices that can do so read the file themselves. What became of each item, as C says; what has to stay for
    that belongs to the items."""
    fills = ffi.new("struct ggml_backend_file_fill[]", len(items))
    for fill, item in zip(fills, items, strict=True):
        source, data = item.source, item.source.data
        item.keep = (
            ffi.new("char[]", os.fsencode(source._part.path or "")),
            ffi.from_buffer(data) if len(data) else b"",
        )
        fill.tensor, fill.path, fill.at = item.tensor._live(), item.keep[0], source.offset
        if source._part.path is not None and len(data):
            fill.data, fill.size = item.keep[1], source.nbytes
    status = lib.gbpy_fill_from_files(items[0].tensor._k, fills, len(items), b"it")
    if status:
        try:
            raise_last("load", status)
        except FileError as error:
            raise FileError(f"load: {error}") from None
    return fills


def open(source: Any, *, part: bool = False) -> GGUFFile:
    """Opens a GGUF file.

    source: a path, or the bytes of a file (``bytes``, ``mmap``, an array). Of a split model the path of any part opens
        all parts as one file, with the metadata of the first. The keys ``split.no``, ``split.count`` and
        ``split.tensors.count`` say that a file is a part. The names of the files, ``NAME-00001-of-00003.gguf``, say
        where the other parts are.
    part: open one part of a split model alone, to look at it. Otherwise a part is an error if the other parts are not
        found.

    Raises :class:`FileError` for what is not a valid file, naming the field and its offset, for an incomplete file or
    model, and for a file of another kind (a Git LFS pointer, a web page, a checkpoint). Raises OSError when it cannot
    be read.
    """
    expect_bool(part, "open: part")
    if isinstance(source, (str, os.PathLike)):
        path = os.fsdecode(source)
        expect_path(path, "open: source")
        first = Part(map_file(path), path, path)
        return GGUFFile([first] if part else parts_of(first, path), path)
    if isinstance(source, np.ndarray):
        if not source.flags.c_contiguous or source.dtype.hasobject:
            raise InvalidArgumentError("open: the array must be C-contiguous, and hold bytes or numbers")
        source = source.reshape(-1).view(np.uint8)
    try:
        view = memoryview(source)
    except TypeError:
        raise TypeError(
            f"open: takes a path or the bytes of a file, not {kind_of(source)}{reader_hint(source)}"
        ) from None
    first = Part(view if view.nbytes else b"", "bytes")
    return GGUFFile([first] if part else parts_of(first, None), "bytes")


if not TYPE_CHECKING:  # for checkers there is no such thing

    def __getattr__(name):
        no_name("ggml_backend.gguf", name, __all__)
