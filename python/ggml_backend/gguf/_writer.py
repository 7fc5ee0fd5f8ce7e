"""Writes GGUF files.

Entries are only recorded. At the end everything is written, tensor by tensor, to a file beside the target,
which then replaces the target. So a model need not fit into memory, and a crash leaves the old file.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import (
    FileError,
    GgmlError,
    InvalidArgumentError,
    StateError,
    UnsupportedError,
    check,
    expect_function,
    expect_path,
    raise_last,
)
from .._base.errors.messages import kind_of
from .._base.files import Sink, replace_file
from .._base.handles import Owner
from .._base.mapped import check_file, reading, watch_of
from .._base.text import as_name, count, line
from .._ffi import ffi, lib
from ..dtypes import DType, DTypeLike, as_dtype
from ..tensor._arrays import seen, widened
from ..tensor._blocks import Blocks, of_format, rows_of
from ..tensor._quantize import FLOATS, OnInvalid, dequantize, quantize_part, weights_of
from ..tensor._shapes import ne_of, shape_tuple
from ..tensor.tensor import Tensor
from ._values import UnknownType, key_bytes, new_metadata, store

if TYPE_CHECKING:
    from . import GGUFFile

__all__ = ["Writer"]

Array = np.ndarray[Any, Any]
_CHUNK = 1 << 22  # elements converted at once
_WIDER = {"bool": "int8", "uint8": "int16", "uint16": "int32", "uint32": "int64", "float8_e4m3fn": "float16",
          "float8_e5m2": "float16", "float8_e4m3fnuz": "float16", "float8_e5m2fnuz": "float16"}  # fmt: skip
"""For NumPy types that GGUF lacks, a GGUF type that holds all their values."""


def _list(names: bool | str | Iterable[str]) -> Iterable[str]:
    return [names] if isinstance(names, str) else () if isinstance(names, bool) else names


def _nbytes(shape: tuple[int, ...], dtype: DType) -> int:
    return math.prod(shape[:-1]) * dtype.row_nbytes(shape[-1]) if shape else dtype.itemsize


class _Entry:
    """A tensor to write: its stored form and its data source."""

    __slots__ = ("dtype", "importance", "name", "nbytes", "on_invalid", "raw", "shape", "source")

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: DType,
        source: Callable[[], Any],
        raw: bool,
        importance: Any,
        nbytes: int | None = None,
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.source = source
        self.raw = raw  # the source yields the bytes of the rows, or elements of exactly the dtype
        self.importance = importance
        self.on_invalid: OnInvalid = "error"
        self.nbytes = _nbytes(shape, dtype) if nbytes is None else nbytes

    def chunks(self) -> Iterator[Array]:
        """The bytes, in pieces."""
        given = self.source()
        if isinstance(given, Tensor):
            given = given.numpy()
        pieces = [given] if isinstance(given, np.ndarray) else given
        row = 0
        for piece in pieces:
            array = np.asarray(piece)
            known = watch_of(array)
            yield from self._raw(array) if self.raw else self._converted(array, row)
            check_file(array, f"tensor {self.name!r}")
            del known
            row += array.size // max(1, array.shape[-1]) if array.ndim else 1

    def _raw(self, array: Array) -> Iterator[Array]:
        if array.dtype.name == "bfloat16":
            array = array.view(np.uint16)
        if array.dtype not in (self.dtype.numpy, np.uint8):
            raise InvalidArgumentError(f"tensor {self.name!r}: the data is {array.dtype}, not {self.dtype.name}")
        if array.flags.c_contiguous:
            yield array.reshape(-1).view(np.uint8)
        else:
            with reading(array, f"tensor {self.name!r}"):
                copy = np.ascontiguousarray(array)
            yield copy.reshape(-1).view(np.uint8)

    def _converted(self, array: Array, row: int) -> Iterator[Array]:
        if array.ndim == 0:
            array = array.reshape(1)
        n = array.shape[-1]
        if n != (self.shape[-1] if self.shape else 1):
            raise InvalidArgumentError(f"tensor {self.name!r}: rows of {n} elements, announced were {self.shape}")
        if array.size == 0:
            return
        rows = array.reshape(-1, n)
        what = f"tensor {self.name!r} as {self.dtype.name}"
        begin = 0
        while begin < len(rows):
            end, vector = self._same_matrix(row + begin, row + min(len(rows), begin + max(1, _CHUNK // n)))
            part = rows[begin : end - row]
            blocks = quantize_part(part, self.dtype, vector, self.on_invalid, None, what, row + begin)
            yield blocks.reshape(-1).view(np.uint8)
            begin = end - row

    def _same_matrix(self, begin: int, end: int) -> tuple[int, Array | None]:
        """The end of the rows of one matrix, and the importances of this matrix.

        Rows beyond the last matrix are an error, which counting them raises.
        """
        if self.importance is None or len(self.importance) == 0:
            return end, None
        height = max(1, self.shape[-2]) if len(self.shape) > 1 else 1
        matrix = min(begin // height, len(self.importance) - 1)
        return (min(end, (matrix + 1) * height) if matrix == begin // height else end), self.importance[matrix]


class Writer(Owner):
    """Writes a GGUF file.

        with gb.gguf.Writer("model.gguf") as writer:
            writer.add("general.architecture", "bert")
            writer.add_tensor("token_embd.weight", array, dtype=gb.dtypes.q8_0)

    :meth:`close`, at the end of the ``with`` block, writes the file. If the block raises, the file stays
    as it was. Data is read, converted and written one tensor after another. Arrays are not copied: do
    not change them before the file is written.
    """

    def __init__(self, path: str | os.PathLike[str], *, alignment: int | None = None) -> None:
        expect_path(path, "Writer: path")
        self.path: str = os.fsdecode(path)
        self._meta: Any = new_metadata()
        if not lib.gbpy_gguf_make(self._meta):
            raise_last("Writer")
        self._entries: list[_Entry] = []
        self._added: set[str] = set()  # keys set by add
        if alignment is not None:
            self.add("general.alignment", alignment)

    def _live(self) -> Any:
        if self._meta is None:
            raise StateError(f"the writer of {self.path} is closed")
        return self._meta

    def add(self, key: str, value: Any, type: str | None = None) -> Writer:
        """Adds a key. Returns the writer.

        A key that was copied from a file keeps its position and gets the new value. Adding a key twice is
        an error.

        value: a number, bool, str, or bytes (text in any encoding); a list or one-dimensional array of them;
            or a :class:`NestedArray` of a file
        type: ``"u8"`` ... ``"u64"``, ``"i8"`` ... ``"i64"``, ``"f32"``, ``"f64"``, ``"bool"``, ``"str"``. For an
            array: the type of its elements, also written ``"arr[f32]"``. By default, NumPy values keep
            their type (float16 becomes f32), a Python int becomes u32 (in lists i32) or the next type that
            holds it, and a float becomes f32.
        """
        meta = self._live()
        if isinstance(key, str) and key in self._added:
            raise InvalidArgumentError(f"Writer.add: key {line(repr(key), 100)} was added already: add each key once")
        try:
            store(meta, key, value, type)
        except (GgmlError, TypeError, OverflowError) as error:
            what = f"Writer.add: key {line(repr(key), 100)}"
            if isinstance(error, OverflowError):
                raise InvalidArgumentError(f"{what}: {error}") from None
            error.args = (f"{what}: {error}",)
            raise
        self._added.add(key)
        return self

    def copy_from(
        self, file: GGUFFile, *, keys: bool | Iterable[str] = True, tensors: bool | Iterable[str] = True
    ) -> Writer:
        """Copies keys and tensors of an open file with their exact types and bytes. Returns the writer.

        keys: True for all keys, or the keys to copy. True does not replace keys that were added before. The keys
            ``split.*`` are skipped, unless the file is one part that was opened alone.
        tensors: True for all, or their names
        """
        meta = self._live()
        if not hasattr(file, "metadata"):
            raise TypeError(
                f"Writer.copy_from: file must be a GGUFFile, not {kind_of(file)}; gb.gguf.open(path) makes one"
            )
        source = file._live()[0]
        copied = (k for k in file.metadata if k not in self._added and (file.is_part or not k.startswith("split.")))
        for key in copied if keys is True else _list(keys):
            if key in self._added:
                raise InvalidArgumentError(f"Writer.copy_from: key {key!r} was added already: leave it out of keys")
            check(lib.gbpy_gguf_copy_pair(meta.ptr, source.ptr, file.metadata._id(key)), "copy_from")
        for name in file.tensors if tensors is True else _list(tensors):
            self.add_tensor(name, file.tensors[name])
        return self

    def add_tensor(
        self,
        name: str,
        data: Any,
        dtype: DTypeLike | None = None,
        *,
        shape: int | Sequence[int] | None = None,
        importance: Any = None,
        on_invalid: OnInvalid = "error",
    ) -> Writer:
        """Adds a tensor. Returns the writer.

        data: an array of NumPy (also a memory map) or another library (with ``__dlpack__`` or ``__array__``), a
            list, a :class:`Tensor`, a tensor of an open file, or a function. The function is called when
            the data is written. It returns an array, or an iterable of arrays with consecutive rows of the
            tensor. A function needs ``shape`` and ``dtype``.
        dtype: stored format. Default: the format of the data. Floats are converted to any float format. For a
            quantized format, a uint8 array holds the bytes of its rows. For bfloat16, a uint16 array holds
            its bits.
        importance, on_invalid: see :func:`ggml_backend.quantize`. Importances are checked now, and the data when
            the file is written. Files with quantized tensors need the key ``general.quantization_version``
            (2 today).

        An array without axes is stored as one element. An array with an axis of 0 is stored as a tensor
        without data. A tensor of an open file with more than four axes, or of an unknown type, is copied
        unchanged.
        """
        meta = self._live()
        as_name(name, "Writer.add_tensor")
        element = None if dtype is None else as_dtype(dtype, "Writer.add_tensor")
        if not isinstance(data, (np.ndarray, Tensor)) and getattr(data, "_why_opaque", lambda: None)() is not None:
            return self._add_opaque(meta, name, data, element)
        if isinstance(element, UnknownType):
            raise element.refuse(f"tensor {name!r}")
        entry = self._entry(
            name, data, element, None if shape is None else shape_tuple(shape, "Writer: shape"), importance
        )
        if importance is not None and entry.shape and not entry.raw:
            entry.importance = weights_of(importance, entry.shape, entry.dtype, f"tensor {name!r}")
        ne = ne_of(entry.shape, f"tensor {name!r}")
        status = lib.gbpy_gguf_add_tensor(meta.ptr, key_bytes(name), entry.dtype.id, len(entry.shape), ne)
        check(status, f"tensor {name!r}")
        entry.on_invalid = on_invalid
        self._entries.append(entry)
        return self

    def _add_opaque(self, meta: Any, name: str, data: Any, element: DType | None) -> Writer:
        if element is not None and element != data.dtype:
            raise UnsupportedError(f"tensor {name!r} as {element.name}: {data._why_opaque()}: it can only be copied")
        part = data._part
        check(lib.gbpy_gguf_copy_tensor(meta.ptr, part.ptr, data._index, key_bytes(name)), f"tensor {name!r}")
        self._entries.append(_Entry(name, data.shape, data.dtype, lambda: data.data, True, None, data.nbytes))
        return self

    def _entry(
        self, name: str, data: Any, element: DType | None, shape: tuple[int, ...] | None, importance: Any
    ) -> _Entry:
        what = f"tensor {name!r}"
        if callable(data) and not isinstance(data, (np.ndarray, Tensor)):
            if shape is None or element is None:
                raise InvalidArgumentError(f"{what}: data from a function needs a shape and a dtype")
            floats = element.is_quantized or element in FLOATS
            return _Entry(name, shape, element, _Given(data, element, what) if floats else data, not floats, importance)
        stored: DType
        if isinstance(data, Tensor):
            stored, logical, source = data.dtype, data.shape, data
            if element in (None, stored):
                return _Entry(name, logical, stored, lambda: source, True, None)
            array: Any = data
        elif not isinstance(data, np.ndarray) and isinstance(getattr(data, "dtype", None), DType):  # from a file
            stored, logical = data.dtype, data.shape
            if element in (None, stored):
                return _Entry(name, logical, stored, lambda: data.data, True, None)
            array = data
        else:
            if isinstance(data, Blocks) and data.format is not None:
                data, element = of_format(data, element, what), data.format
            given, known = seen(data, what)
            if known is not None and element is None:  # bfloat16, whose bits NumPy holds
                element = known
            elif known is not None and element != known:
                given = widened(given)
            return self._array_entry(name, given, element, shape, importance)
        assert element is not None
        source_ok = stored in FLOATS or stored.name == "float64" or stored.is_quantized
        if not source_ok or not (element.is_quantized or element in FLOATS):
            raise InvalidArgumentError(f"{what}: {stored.name} cannot be stored as {element}")
        return _Entry(name, logical, element, lambda: _as_floats(array, stored, importance is None), False, importance)

    @staticmethod
    def _array_entry(
        name: str, array: Array, element: DType | None, shape: tuple[int, ...] | None, importance: Any
    ) -> _Entry:
        what = f"tensor {name!r}"
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        stored: DType | None = None
        with contextlib.suppress(TypeError):
            stored = as_dtype(array.dtype)
        element = element or stored
        if element is None:
            wider = _WIDER.get(array.dtype.name)
            hint = f"; array.astype(np.{wider}) has the same values" if wider else ""
            raise InvalidArgumentError(f"{what}: GGUF has no type for {array.dtype}{hint}")
        blocks = rows_of(array, element, what) if element.is_quantized else None
        if blocks is not None:
            logical, raw = blocks[2], True
        else:
            logical = array.shape
            raw = element == stored or (element.name == "bfloat16" and array.dtype == np.uint16)
        if shape is not None and math.prod(shape) != math.prod(logical):
            raise InvalidArgumentError(f"{what}: an array of shape {logical} cannot be stored as {shape}")
        floats = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
        if not raw and not (floats and (element.is_quantized or element in FLOATS)):
            raise InvalidArgumentError(f"{what}: an array of {array.dtype} cannot be stored as {element.name}")
        target = logical if shape is None else shape
        source = array if raw or shape is None else array.reshape(shape)
        return _Entry(name, target, element, lambda: source, raw, importance)

    # ---------------------------------------------------------------------------------------------------------- writing

    @property
    def nbytes(self) -> int:
        """Size of the file in bytes."""
        meta = self._live()
        lib.gbpy_gguf_layout(meta.ptr)
        alignment = lib.gguf_get_alignment(meta.ptr)
        size: int = lib.gguf_get_meta_size(meta.ptr)
        return size + sum(e.nbytes + -e.nbytes % int(alignment) for e in self._entries)

    def close(self, progress: Callable[[int, int], object] | None = None) -> None:
        """Writes the file. Closing twice is fine.

        progress: called with the bytes written and the total bytes
        """
        if self._meta is None:
            return
        if progress is not None:
            expect_function(progress, "Writer.close: progress")
        try:
            replace_file(self.path, lambda file: self._write(file, progress))
        except IsADirectoryError:
            raise FileError(f"{self.path}: a directory, not a regular file") from None
        finally:
            self.discard()

    def _write(self, file: Sink, progress: Callable[[int, int], object] | None) -> None:
        meta = self._meta
        total = self.nbytes
        head = bytearray(lib.gguf_get_meta_size(meta.ptr))
        check(lib.gguf_get_meta_data(meta.ptr, ffi.from_buffer(head)), "Writer")
        file.write(head)
        done = len(head)
        alignment = lib.gguf_get_alignment(meta.ptr)
        for entry in self._entries:
            written = 0
            for chunk in entry.chunks():
                written += chunk.nbytes
                if written > entry.nbytes:
                    break
                _put(file, chunk, f"tensor {entry.name!r}")
                if progress is not None:
                    progress(done + written, total)
            if written != entry.nbytes:
                raise InvalidArgumentError(
                    f"tensor {entry.name!r}: the data has {'more' if written > entry.nbytes else written} bytes, needed"
                    f" are {entry.nbytes}"
                )
            file.write(bytes(-written % alignment))
            done += written + -written % alignment
        if progress is not None:
            progress(total, total)

    def discard(self) -> None:
        """Ends the writer without writing anything."""
        self._meta = None
        self._entries = []

    def __enter__(self) -> Writer:
        self._live()
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __repr__(self) -> str:
        state = " closed" if self._meta is None else ""
        return f"<Writer of {self.path!r}: {count(len(self._entries), 'tensor')}{state}>"


def _put(file: Sink, chunk: Array, what: str) -> None:
    try:
        with reading(chunk, what):
            file.write(chunk.data)
    except OSError as error:
        if error.errno == errno.EFAULT:  # the system call hit a page past the end of a file that shrank
            raise FileError(f"{what}: the file with its data has shrunk") from None
        raise


class _Given:
    """Data from a user's function: floats to convert, or data that is already in the stored format."""

    def __init__(self, function: Callable[[], Any], element: DType, what: str) -> None:
        self.function = function
        self.element = element
        self.what = what

    def __call__(self) -> Iterator[Array]:
        given = self.function()
        for piece in [given] if isinstance(given, np.ndarray) else given:
            array = np.asarray(piece)
            if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
                raise InvalidArgumentError(f"{self.what}: the function gave {array.dtype}; it must give floats")
            yield array


def _as_floats(source: Any, stored: DType, in_pieces: bool) -> Array | Iterator[Array]:
    """The values as floats. Formats that NumPy cannot compute with are converted in pieces if possible."""
    array: Array = source.numpy()
    if not stored.is_quantized and stored.name != "bfloat16":
        return array
    if array.ndim == 0:
        return dequantize(array.reshape(1), stored)
    if not in_pieces or array.size == 0:
        return dequantize(array, stored)
    rows = array.reshape(-1, array.shape[-1])
    step = max(1, _CHUNK // source.shape[-1])
    return (dequantize(rows[i : i + step], stored) for i in range(0, len(rows), step))
