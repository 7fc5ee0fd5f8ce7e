"""GGUF metadata values: conversion from C to Python, and the types for Python values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base.errors import InvalidArgumentError, UnsupportedError, check
from .._base.handles import owned
from .._base.text import as_name
from .._ffi import ffi, lib
from ..dtypes import DType, dtype_of_id, is_dtype_id
from ..tensor._arrays import cast

__all__ = [
    "ELEMENTS",
    "NestedArray",
    "UnknownType",
    "any_dtype",
    "decode",
    "encode",
    "findable",
    "key_bytes",
    "new_metadata",
    "store",
    "type_name",
    "value_at",
]

ELEMENTS: dict[str, tuple[int, np.dtype[Any]]] = {
    "u8": (lib.GGUF_TYPE_UINT8, np.dtype(np.uint8)), "i8": (lib.GGUF_TYPE_INT8, np.dtype(np.int8)),
    "u16": (lib.GGUF_TYPE_UINT16, np.dtype(np.uint16)), "i16": (lib.GGUF_TYPE_INT16, np.dtype(np.int16)),
    "u32": (lib.GGUF_TYPE_UINT32, np.dtype(np.uint32)), "i32": (lib.GGUF_TYPE_INT32, np.dtype(np.int32)),
    "f32": (lib.GGUF_TYPE_FLOAT32, np.dtype(np.float32)), "bool": (lib.GGUF_TYPE_BOOL, np.dtype(np.bool_)),
    "u64": (lib.GGUF_TYPE_UINT64, np.dtype(np.uint64)), "i64": (lib.GGUF_TYPE_INT64, np.dtype(np.int64)),
    "f64": (lib.GGUF_TYPE_FLOAT64, np.dtype(np.float64)),
}  # fmt: skip
"""Number types: the C constant and the NumPy dtype."""

_NAME = {number: name for name, (number, _) in ELEMENTS.items()} | {
    lib.GGUF_TYPE_STRING: "str",
    lib.GGUF_TYPE_ARRAY: "arr",
}
_BY_DTYPE = {dtype: name for name, (_, dtype) in ELEMENTS.items()}
_GET = {number: getattr(lib, f"gguf_get_val_{name}") for name, (number, _) in ELEMENTS.items()}
_SET = {name: getattr(lib, f"gguf_set_val_{name}") for name in ELEMENTS}


def decode(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def findable(name: str) -> bytes | None:
    """A name as bytes for a lookup; None if no file can have it."""
    try:
        return encode(name) if name and "\0" not in name else None
    except UnicodeEncodeError:
        return None


def key_bytes(key: str) -> bytes:
    return as_name(key, "GGUF", "a key")


def new_metadata() -> Any:
    """An empty metadata struct, which one C call fills. ``ptr`` is C's parsed file."""
    return owned(ffi.new("struct gbpy_metadata *"), lib.gbpy_gguf_free)


def type_name(meta: Any, index: int) -> str:
    number = lib.gguf_get_kv_type(meta.ptr, index)
    return f"arr[{_NAME[lib.gguf_get_arr_type(meta.ptr, index)]}]" if number == lib.GGUF_TYPE_ARRAY else _NAME[number]


class UnknownType(DType):
    """A tensor type of a file that this version does not know, by its number: ``name`` is ``"type 41"``.

    Its tensors are opaque bytes, which are copied unchanged.
    """

    __slots__ = ()
    name: str
    ggml_name: str
    numpy: np.dtype[Any]

    def __init__(self, type_id: int) -> None:
        self.id = type_id
        self.name = self.ggml_name = f"type {type_id}"
        self.block_size = self.itemsize = 0
        self.is_quantized = False
        self.typestr = "|u1"
        self.numpy = np.dtype(self.typestr)
        self._numpy = None

    def refuse(self, what: str) -> UnsupportedError:
        """Makes the error for a tensor of this type. ``what`` names the tensor."""
        return UnsupportedError(
            f"{what}: this version does not know tensor type {self.id}: it can only read and copy its bytes"
        )

    def row_nbytes(self, n: int) -> int:
        raise self.refuse("row_nbytes")

    def __repr__(self) -> str:
        return f"<unknown tensor type {self.id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (UnknownType, (self.id,))


def any_dtype(type_id: int) -> DType:
    """The dtype of a tensor in a file."""
    return dtype_of_id(type_id) if is_dtype_id(type_id) else UnknownType(type_id)


class NestedArray:
    """An opaque array of arrays in the metadata of a file.

    ``len()`` is the number of arrays in it. ``data`` has their bytes as in the file. :meth:`Writer.add`
    and :meth:`Writer.copy_from` write it again.
    """

    __slots__ = ("_n", "data")

    def __init__(self, n: int, data: bytes) -> None:
        self._n = n
        self.data: bytes = data

    def __len__(self) -> int:
        return self._n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NestedArray) and (self._n, self.data) == (other._n, other.data)

    def __hash__(self) -> int:
        return hash((self._n, self.data))

    def __repr__(self) -> str:
        return f"<NestedArray: {self._n} arrays, {len(self.data)} bytes>"


def value_at(meta: Any, index: int) -> Any:
    """The value of a key."""
    number = lib.gguf_get_kv_type(meta.ptr, index)
    if number == lib.GGUF_TYPE_STRING:
        length = ffi.new("uint64_t *")
        pointer = lib.gbpy_gguf_str(meta.ptr, index, length)
        return decode(bytes(ffi.buffer(pointer, length[0])))
    if number != lib.GGUF_TYPE_ARRAY:
        return _GET[number](meta.ptr, index)
    n = lib.gguf_get_arr_n(meta.ptr, index)
    element = lib.gguf_get_arr_type(meta.ptr, index)
    if element == lib.GGUF_TYPE_STRING:
        return _strings(meta, index, n)
    if element == lib.GGUF_TYPE_ARRAY:
        size = ffi.new("uint64_t *")
        data = lib.gbpy_gguf_nested(meta.ptr, index, size)
        return NestedArray(n, bytes(ffi.buffer(data, size[0])))
    dtype = ELEMENTS[_NAME[element]][1]
    if n == 0:
        return np.empty(0, dtype)
    return np.frombuffer(ffi.buffer(lib.gguf_get_arr_data(meta.ptr, index), n * dtype.itemsize), dtype).copy()


def _strings(meta: Any, index: int, n: int) -> list[str]:
    pointer = ffi.new("uint64_t **")
    data = lib.gbpy_gguf_strs(meta.ptr, index, pointer)
    lengths = ffi.unpack(pointer[0], n) if n else []
    text = bytes(ffi.buffer(data, sum(lengths) + n)) if n else b""
    strings, at = [], 0
    for length in lengths:
        strings.append(decode(text[at : at + length]))
        at += length + 1
    return strings


# ---------------------------------------------------------------------------------------------------- to C


def _integer_type(low: int, high: int, smallest: str) -> str:
    """The smallest type, from ``smallest`` up, that holds low to high."""
    for name in (smallest, "i32", "u32", "i64", "u64"):
        info = np.iinfo(ELEMENTS[name][1])
        if info.min <= low and high <= info.max:
            return name
    if low < -(2**63) or high >= 2**64:
        raise InvalidArgumentError(f"{low if low < -(2**63) else high} does not fit into 64 bits")
    raise InvalidArgumentError(f"no integer type holds both {low} and {high}: i64 ends at 2**63 - 1, u64 begins at 0")


def _widened(value: Any) -> Any:
    """Turns an array without axes into a NumPy scalar, and float16 and bfloat16 into float32.

    GGUF has no such values.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype.name in ("float16", "bfloat16"):
        value = value.astype(np.float32)
    if isinstance(value, (list, tuple)) and any(isinstance(v, np.generic) for v in value):
        value = [_widened(v) for v in value]
    return value


def _scalar_type(value: Any) -> str:
    if isinstance(value, np.generic) and value.dtype in _BY_DTYPE:
        return _BY_DTYPE[value.dtype]
    if isinstance(value, (bool, np.bool_)):
        return "bool"
    if isinstance(value, int):
        return _integer_type(value, value, "u32")
    if isinstance(value, float):
        return "f32"
    raise TypeError(f"no GGUF type for {type(value).__name__}")


def _list_type(values: Sequence[Any]) -> str:
    if not values:
        raise InvalidArgumentError("an empty list does not show its type: give one, such as 'arr[i32]'")
    if all(isinstance(v, (bool, np.bool_)) for v in values):
        return "bool"
    if all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in values):
        return _integer_type(int(min(values)), int(max(values)), "i32")
    if all(isinstance(v, (int, float, np.integer, np.floating)) and not isinstance(v, bool) for v in values):
        return "f32"
    raise TypeError("the values of a list must be all str, all bool, or all numbers")


def _exact(values: Any, name: str) -> np.ndarray[Any, Any]:
    """Values as an array of the type. Raises if an integer does not fit or a float would be truncated."""
    dtype = ELEMENTS[name][1]
    if isinstance(values, np.ndarray) or not all(type(v) is int for v in values):
        source = np.asarray(values)
    else:
        source = np.array(values, object)  # NumPy would turn integers around 2^63 into floats
    if (
        source.size
        and source.dtype.kind not in "biuf"
        and not (source.dtype == object and type(source[0]) is int and dtype.kind != "b")
    ):
        raise TypeError(f"cannot store {source.dtype} as {name}")
    if source.size and dtype.kind in "iu":
        if source.dtype.kind in "fb":
            raise TypeError(f"cannot store {source.dtype} as {name}")
        info = np.iinfo(dtype)
        low, high = int(source.min()), int(source.max())
        if low < info.min or high > info.max:
            raise InvalidArgumentError(f"{low if low < info.min else high} does not fit into {name}")
    if source.size and dtype.kind == "b" and source.dtype.kind != "b":
        raise TypeError(f"cannot store {source.dtype} as bool")
    return np.ascontiguousarray(cast(source, dtype))


def store(meta: Any, key: str, value: Any, kind: str | None) -> None:
    """Sets a key. kind: a name of ELEMENTS, "str" or "arr[...]"; None: chosen from the value."""
    if kind is not None and not isinstance(kind, str):
        raise TypeError(f"type must be a str, not {type(kind).__name__}")
    if isinstance(value, NestedArray):
        if kind not in (None, "arr[arr]"):
            raise TypeError(f"cannot store a NestedArray as {kind}")
        check(lib.gbpy_gguf_set_nested(meta.ptr, key_bytes(key), value.data, len(value.data), len(value)))
        return
    if kind is not None and kind.startswith("arr[") and kind.endswith("]"):
        kind = kind[4:-1]
        if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)):
            raise TypeError(f"an array takes a sequence, not {type(value).__name__}")
    if kind is not None and kind not in ELEMENTS and kind != "str":
        raise InvalidArgumentError(f"no type {kind!r}; there are {', '.join(ELEMENTS)}, str and arr[...]")
    name = key_bytes(key)
    value = _widened(value)
    if isinstance(value, (str, bytes)):
        if kind not in (None, "str"):
            raise TypeError(f"cannot store {type(value).__name__} as {kind}")
        text = _text_bytes(value)
        check(lib.gbpy_gguf_set_str(meta.ptr, name, text, len(text)))
    elif isinstance(value, np.ndarray) and value.ndim > 0:
        _store_array(meta, name, value, kind)
    elif isinstance(value, Sequence):
        if kind == "str" or (kind is None and value and all(isinstance(v, (str, bytes)) for v in value)):
            _store_strings(meta, name, value)
        else:
            _store_numbers(meta, name, _exact(value, kind or _list_type(value)), kind or _list_type(value))
    else:
        if key == "general.alignment" and kind is None:
            kind = "u32"
        element = kind or _scalar_type(value)
        if element == "str":
            raise TypeError(f"cannot store {type(value).__name__} as str")
        check(_SET[element](meta.ptr, name, _exact([value], element)[0].item()))


def _text_bytes(value: str | bytes) -> bytes:
    try:
        return encode(value) if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{value[:100]!r} has half of a surrogate pair") from None


def _store_array(meta: Any, name: bytes, value: np.ndarray[Any, Any], kind: str | None) -> None:
    if value.ndim != 1:
        raise InvalidArgumentError(f"an array of {value.ndim} dimensions: metadata has lists only")
    if value.dtype.kind in "UO" or kind == "str":
        _store_strings(meta, name, value.tolist())
        return
    element = kind or _BY_DTYPE.get(value.dtype.newbyteorder("="))
    if element is None:
        raise TypeError(f"no GGUF type for {value.dtype}")
    _store_numbers(meta, name, _exact(value, element), element)


def _store_numbers(meta: Any, name: bytes, values: np.ndarray[Any, Any], element: str) -> None:
    check(lib.gguf_set_arr_data(meta.ptr, name, ELEMENTS[element][0], ffi.from_buffer(values), values.size))


def _store_strings(meta: Any, name: bytes, values: Sequence[Any]) -> None:
    texts = []
    for v in values:
        if not isinstance(v, (str, bytes)):
            raise TypeError(f"cannot store {type(v).__name__} as str")
        texts.append(_text_bytes(v))
    lengths = np.fromiter(map(len, texts), np.uint64, len(texts))
    data = b"".join(t + b"\0" for t in texts)
    check(lib.gbpy_gguf_set_strs(meta.ptr, name, data, ffi.cast("uint64_t *", ffi.from_buffer(lengths)), len(texts)))
