"""GGUF model files: metadata, named tensors, and loading into the memory of backends.

For example::

    with gb.gguf.open("model.gguf") as file:
        print(file.metadata["general.name"], len(file.tensors))
        weights = file.load(cpu)                # in place: the file's own pages, nothing is copied
    y = x @ weights["blk.0.ffn_up.weight"].T    # weights on the right: they need not be float32

A file is mapped, not read. :func:`open` checks all metadata. Invalid metadata raises :class:`FileError`
with the field and its offset. Values and tensors become Python objects on access. Arrays and loaded
weights keep the mapping alive, also after ``close()``.

Do not change a file while it is open. If a file shrinks, calls of this package that read it raise
:class:`FileError`: loading, copying, converting, and computing with weights in place. NumPy code that reads
an array over the file is not protected. There the system ends the process (SIGBUS), as with any memory
map.
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
from .._base.errors.messages import UnknownKey, kind_of, no_name, reader_hint
from .._base.handles import Owner
from .._base.mapped import map_file
from .._base.renamed import load as _loaded
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

if TYPE_CHECKING:
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
"""Called with the bytes done and the total bytes."""
Target = Backend | BufferType

_CHUNK = 16 << 20  # bytes copied to a device at once
_NATURAL = 8  # bytes; alignment of a tensor's address that in-place use needs


class Metadata(Mapping[str, Any]):
    """The key-value pairs of a file.

    Scalars are ``int``, ``float``, ``bool`` and ``str``. Arrays of numbers are NumPy arrays of exactly
    their type. Arrays of strings are lists. Arrays of arrays are :class:`NestedArray`. Each access makes
    a new object.

    Bytes that are not UTF-8 become surrogates (``errors="surrogateescape"``). A :class:`Writer` restores them.
    """

    __slots__ = ("_file",)

    def __init__(self, file: GGUFFile) -> None:
        self._file = file

    def _live(self) -> Part:
        """The first part. It has the metadata of all parts."""
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
        """The type of a value in the file: ``"u32"``, ``"str"``, ..., ``"arr[f32]"``, or ``"arr[arr]"``."""
        return type_name(self._live(), self._id(key))

    def __repr__(self) -> str:
        return f"<Metadata of {count(len(self), 'key')}>"


class GGUFTensor:
    """A tensor in a file. Its data is read on first use.

    ``name``; ``shape`` in NumPy order; ``dtype``; ``nbytes``; ``offset`` in the file, in bytes

    A tensor without axes has the shape ``()`` and one element. A tensor of more than four axes can be read
    (``numpy()``) and copied; no backend can hold it.

    A tensor of a type that this version does not know has the dtype ``"type 41"`` (:class:`UnknownType`,
    with the number as ``id``). It extends to the next tensor or to the end of the file. You can only
    read its bytes (``numpy()``) and copy it (:class:`Writer`).
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
        """The sizes in ggml's order: fastest dimension first."""
        return self.shape[::-1]

    @property
    def data(self) -> Array:
        """The bytes of the tensor, in the file's memory. Read-only as :meth:`numpy`."""
        self._part.check()
        return self._part.data[self.offset : self.offset + self.nbytes]

    def numpy(self) -> Array:
        """A view of the file's memory, of shape ``shape``, read-only unless the file was opened with ``writable=True``.

        bfloat16 gives uint16 bits. Quantized formats give the bytes of their rows. An unknown type gives
        all bytes in one dimension.
        """
        if isinstance(self.dtype, UnknownType):
            return self.data
        shape = list(self.shape)
        if self.dtype.is_quantized:
            shape[-1] = self.dtype.row_nbytes(shape[-1])
        try:
            return np.ndarray(shape, self.dtype.numpy, self.data)
        except ValueError:  # too many axes, or sizes whose product overflows beside a 0
            raise UnsupportedError(f"tensor {self.name!r}: NumPy has no arrays of shape {self.shape}") from None

    def _why_opaque(self) -> str | None:
        """The reason why no backend can hold the tensor; None if backends can."""
        if isinstance(self.dtype, UnknownType):
            return str(self.dtype.refuse(f"tensor {self.name!r}"))
        if len(self.shape) > MAX_DIMS:
            return f"tensor {self.name!r} has {len(self.shape)} axes, a backend holds tensors of at most {MAX_DIMS}"
        return None

    def dequantize(self) -> Array:
        """A new float32 array of ``shape``. Raises :class:`UnsupportedError` for formats that are not floats."""
        if isinstance(self.dtype, UnknownType):
            raise self.dtype.refuse(f"dequantize: {self.name!r}")
        array = self.numpy()
        if array.ndim == 0:  # one element, in a format without blocks
            return dequantize(array.reshape(1), self.dtype).reshape(())
        return dequantize(array, self.dtype)

    def __repr__(self) -> str:
        return f"<GGUFTensor {self.name!r} {self.dtype.name} {self.shape}>"


class Tensors(Mapping[str, GGUFTensor]):
    """The tensors of a file, or of all parts of a split file, in file order."""

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

    ``context``: the context of the tensors; ``buffers``: their memory; ``in_place``: bytes that were not
    copied; ``left_out``: name and reason for each tensor of the file that no backend can hold
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
        """Frees the memory. The tensors then have none."""
        for buffer in self.buffers:
            buffer.close()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Weights: {count(len(self), 'tensor')} in {count(len(self.buffers), 'buffer')}>"


class _Copy:
    """A tensor to copy, and its target."""

    __slots__ = ("keep", "offset", "source", "tensor")
    keep: tuple[Any, Any]  # memory that C reads

    def __init__(self, source: GGUFTensor, tensor: Tensor) -> None:
        self.source = source
        self.tensor = tensor
        self.offset = 0


class GGUFFile(Owner):
    """An open file; see :func:`open`.

    ``metadata`` and ``tensors`` are mappings. ``version``, ``alignment`` and ``nbytes`` are numbers.
    ``is_part`` is True for one part of a split model that was opened alone.
    """

    def __init__(self, parts: list[Part], name: str) -> None:
        self._parts = parts  # empty: closed
        self.name = name
        first = parts[0]
        self.version: int = lib.gguf_get_version(first.ptr)
        self.alignment: int = lib.gguf_get_alignment(first.ptr)
        self.is_part: bool = len(parts) == 1 and is_one_of_several(first)
        self.metadata: Metadata = Metadata(self)
        self.tensors: Tensors = Tensors(self)

    if not TYPE_CHECKING:  # hidden from type checkers

        def __getitem__(self, name):
            raise TypeError("a file is not indexed itself: file.tensors[name] is a tensor, file.metadata[key] a value")

        def __iter__(self):
            raise TypeError("a file is not iterable: file.tensors has its tensors, file.metadata its keys")

    def _live(self) -> list[Part]:
        parts = self._parts  # read once: another thread may close it
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
        """Makes tensors with the data of this file in the memory of backends.

        where: a backend or buffer type, or several with patterns of names: ``{"blk.[0-3].*": gpu, "*": cpu}``. The
            first matching pattern decides. Each pattern except ``"*"`` must match a tensor of the file, and stand
            before more general ones. If NumPy can read a backend's memory, the tensors lie in the mapped file itself.
            For other backends the data is copied in pieces.
        names: load only tensors with these names or patterns (as in a shell: ``*``, ``?``, ``[0-9]``)
        context: make the tensors in this context. Default: a new one
        progress: called with the bytes done and the total bytes during copies. An exception in it ends the loading.

        Tensors that no backend can hold (unknown types, more than four axes) are skipped. ``Weights.left_out`` has
        their names. If ``names`` has one without wildcards, that is an :class:`UnsupportedError`. KeyError: one of
        ``names`` matches nothing. :class:`InvalidArgumentError`: a pattern of ``where`` matches nothing or follows a
        more general one. :class:`AllocationError`: a backend has too little memory.
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
                    mapped[at].place(tensor, min(source.offset, part.data.nbytes))  # empty ones may lie past the end
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
        """The tensors to load, and the tensors that no backend can hold, each with the reason."""
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
                f"load: where: {hidden[0]!r} decides nothing: {hidden[1]!r} comes first and matches all of its"
                " tensors; give the special pattern first"
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
        # NumPy's __array_interface__ crashes if memory runs out.
        address = source._part.data.ctypes.data + source.offset
        return target.is_host and address % _NATURAL == 0

    def close(self) -> None:
        """Closes the file object. Arrays and loaded tensors keep the file's memory. Closing twice is fine."""
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
    """Places every tensor, in buffers within the device's largest single allocation."""
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


_AT_ONCE = 256 << 20  # bytes; most that devices read from files in one call


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
    """Makes devices that support it read the file themselves. Returns the C status of each item.

    The items hold the memory that C needs for this.
    """
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


def open(source: Any, *, part: bool = False, writable: bool = False) -> GGUFFile:
    """Opens a GGUF file.

    source: a path, or the bytes of a file (``bytes``, ``mmap``, an array). For a split model, the path of any
        part opens all parts as one file, with the metadata of the first. The keys ``split.no``,
        ``split.count`` and ``split.tensors.count`` mark a file as a part. File names,
        ``NAME-00001-of-00003.gguf``, locate the other parts.
    part: open only this part of a split model, for inspection. By default a missing part is an error.
    writable: arrays over a file that is given by its path can be written. The writes stay in the memory of this
        process: the file does not change.

    Raises :class:`FileError` for an invalid file, with the field and its offset. It also raises it for an
    incomplete file or model, and for a file of another kind (a Git LFS pointer, a web page, a
    checkpoint). Raises OSError if the file cannot be read.
    """
    expect_bool(part, "open: part")
    expect_bool(writable, "open: writable")
    if isinstance(source, (str, os.PathLike)):
        path = os.fsdecode(source)
        expect_path(path, "open: source")
        first = Part(map_file(path, writable=writable), path, path)
        return GGUFFile([first] if part else parts_of(first, path, writable), path)
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


if not TYPE_CHECKING:  # hidden from type checkers

    def __getattr__(name):
        found = _loaded(__name__, {"_writer": ("Writer",)}, name)
        return no_name("ggml_backend.gguf", name, __all__) if found is None else found
