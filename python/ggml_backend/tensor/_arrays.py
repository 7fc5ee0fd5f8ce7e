"""Data between NumPy and C tensors: views, copies, and which values may become which elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._base.errors import GgmlError, InvalidArgumentError, StateError, check
from .._base.handles import fail
from .._base.mapped import check_file
from .._ffi import ffi, lib
from ..dtypes import DType, dtype_of_id
from ._blocks import Blocks, of_format
from ._foreign import Exporter, elements_of, empty, seen

_ndim = lib.gbpy_ndim
_unpack = ffi.unpack
_cast = ffi.cast
_nbytes = lib.ggml_nbytes
_read = lib.gbpy_read


def array_at(pointer: Any, data: Any, pin: object, readonly: bool) -> np.ndarray[Any, Any]:
    """A NumPy view of the host memory ``data`` of a ``ggml_tensor``: never more than its bytes. ``pin`` keeps that
    memory, wherever the tensor is placed next."""
    dtype = dtype_of_id(pointer.type)
    shape, strides = layout(pointer, dtype)
    interface = {
        "shape": shape,
        "strides": strides,
        "typestr": dtype.typestr,
        "data": (int(_cast("uintptr_t", data)), readonly),
        "version": 3,
    }
    nbytes = _nbytes(pointer)
    if not nbytes:
        return empty(shape, dtype)
    array: np.ndarray[Any, Any] = np.asarray(Exporter(interface, pin))
    if array.nbytes > nbytes:
        raise GgmlError(f"a tensor of {nbytes} bytes cannot have the shape {tuple(shape)}")
    check_file(array, "numpy")
    return array


def describe_at(pointer: Any) -> str:
    """``'y' float32 (16, 64)``: a C tensor, for messages."""
    name, n = ffi.string(pointer.name).decode("utf-8", "surrogateescape"), _ndim(pointer)
    shown = f"{dtype_of_id(pointer.type).name} {tuple(_unpack(pointer.ne, n)[::-1])}"
    return f"{name!r} {shown}" if name else shown


def layout(pointer: Any, dtype: DType) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and byte strides for NumPy; rows of quantized formats are bytes."""
    n = _ndim(pointer)
    shape = _unpack(pointer.ne, n)[::-1]
    strides = _unpack(pointer.nb, n)[::-1]
    if dtype.is_quantized:
        if n == 0:
            n, shape = 1, [1]
        shape[-1] = shape[-1] // dtype.block_size * dtype.itemsize
        strides[-1:] = [1]
    return tuple(shape), tuple(strides)


_PIECE = 1 << 24  # bytes that are copied between two looks at signals


def contiguous(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``np.ascontiguousarray``, in pieces if the array is large: Ctrl-C is heard between these."""
    if array.nbytes <= _PIECE or array.flags.c_contiguous:
        return np.ascontiguousarray(array)
    out = np.empty(array.shape, array.dtype)
    axis = int(np.argmax(array.shape))
    source, target = np.moveaxis(array, axis, 0), np.moveaxis(out, axis, 0)
    step = max(1, len(source) * _PIECE // array.nbytes)
    for i in range(0, len(source), step):
        target[i : i + step] = source[i : i + step]
    return out


def array_of(pointer: Any, content: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A contiguous array of what the bytes of a tensor say."""
    dtype = dtype_of_id(pointer.type)
    shape, strides = layout(pointer, dtype)
    if not content.nbytes:
        return empty(shape, dtype)
    array: np.ndarray[Any, Any] = np.ndarray(shape, np.dtype(dtype.typestr), content.data, 0, strides)
    return contiguous(array).reshape(shape)


def read_device(pointer: Any) -> np.ndarray[Any, Any]:
    """A contiguous copy of the data of a tensor that nobody else uses now."""
    staging = np.empty(_nbytes(pointer), np.uint8)
    if staging.nbytes:
        check(lib.ggml_backend_tensor_get(pointer, ffi.from_buffer(staging), 0, staging.nbytes), "numpy")
    return array_of(pointer, staging)


def read_tensor(keeping: Any, pointer: Any, describe: Callable[[], str]) -> np.ndarray[Any, Any]:
    """The same of a tensor that others may use: one call waits for them, checks that the data is there, and copies
    before they go on."""
    staging = np.empty(_nbytes(pointer), np.uint8)
    status = _read(keeping, pointer, ffi.from_buffer(staging), staging.nbytes, b"it")
    if status:
        fail(status, describe())
    return array_of(pointer, staging)


def to_array(value: Any, what: str) -> np.ndarray[Any, Any]:
    """``np.asanyarray`` of what a user gave, with an error that says what is wrong with it. bfloat16 that NumPy does
    not know comes as float32, which has all of its numbers."""
    array, element = seen(value, what)
    if element is None or element.name != "bfloat16":
        return array
    return widened(array)


def is_array(value: Any) -> bool:
    """Is it an array, of any library, and so has a dtype that somebody chose?"""
    if isinstance(value, (np.ndarray, np.generic)):
        return True
    return any(hasattr(value, name) for name in ("__array__", "__array_interface__", "__dlpack__"))


def exact_array(value: Any, dtype: DType, what: str) -> np.ndarray[Any, Any]:
    """``value`` as an array of exactly the dtype in which NumPy sees ``dtype``. Arrays are never converted."""
    if isinstance(value, Blocks) and value.format is not None:
        rows = of_format(value, dtype, what)
        return rows if dtype.is_quantized else rows.view(dtype.numpy)
    target = dtype.numpy
    array, element = elements_of(value, what)
    if element is not None and element.name == "bfloat16":
        if dtype.name != "bfloat16":
            raise InvalidArgumentError(
                f"{what} cannot take an array of bfloat16; {_conversion(dtype, widened(array), what)}"
            )
        return array
    if is_array(value):
        if array.dtype != target or not array.dtype.isnative:
            raise InvalidArgumentError(
                f"{what} cannot take an array of {array.dtype}; {_conversion(dtype, array, what)}"
            )
        return np.asarray(array)
    if array.dtype.kind not in "iubf":
        raise InvalidArgumentError(f"{what} cannot take {value!r:.60}")
    if dtype.is_quantized:
        raise InvalidArgumentError(
            f"{what} takes the bytes of its rows, as an array of uint8; set(value, quantize=True) converts floats"
        )
    if dtype.name == "bfloat16":
        with np.errstate(over="ignore"):
            bits = _round_to_bfloat16(np.asarray(array, np.float32))
        _expect_finite(array, widened(bits), dtype, what)
        return bits
    if target.kind == "i" and array.dtype.kind == "f" and array.size:
        raise InvalidArgumentError(f"{what} takes integers, not floats")
    try:
        with np.errstate(over="ignore"):
            made = np.asarray(value, target)
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{what}: {error}") from None
    _expect_finite(array, made, dtype, what)
    return made


def _expect_finite(given: np.ndarray[Any, Any], made: np.ndarray[Any, Any], dtype: DType, what: str) -> None:
    """Numbers that the dtype has not would be infinite in it."""
    if made.dtype.kind != "f" or np.isfinite(made).all():
        return
    lost = np.isinf(made) & np.isfinite(given)
    if lost.any():
        number = given[lost].reshape(-1)[0]
        raise InvalidArgumentError(
            f"{what}: {number} is too large for {dtype.name}; float('inf') is infinite in it, too"
        )


def _conversion(dtype: DType, array: np.ndarray[Any, Any], what: str) -> str:
    """How an array becomes one that a tensor of this dtype takes."""
    if array.dtype.kind != "f" or not (dtype.is_quantized or dtype.name == "bfloat16"):
        given = "uint8, the bytes of its rows" if dtype.is_quantized else dtype.numpy.name
        return f"it takes {given}" if dtype.is_quantized else f"array.astype(np.{given}) converts it"
    by_set = what.startswith("set: ")
    if dtype.is_quantized:
        made = f"gb.quantize(array, {dtype.name!r}) makes the blocks that it takes"
        return f"set(array, quantize=True) converts it, or {made}" if by_set else made
    how = "set(array, quantize=True)" if by_set else f"gb.quantize(array, {dtype.name!r})"
    return f"{how} rounds it, and so does array.astype(ml_dtypes.bfloat16) (pip install 'ggml_backend[bfloat16]')"


def _round_to_bfloat16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty(array.shape, np.uint16)
    source = np.ascontiguousarray(array)
    if array.size:
        lib.ggml_fp32_to_bf16_row(
            ffi.cast("float *", ffi.from_buffer(source)), ffi.cast("ggml_bf16_t *", ffi.from_buffer(out)), array.size
        )
    return out


def widened(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of bfloat16 (uint16) as float32, whose upper half they are."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype that ``Tensor.numpy`` was asked for."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
        return found
    except (TypeError, ValueError, SyntaxError, AttributeError):
        raise TypeError(f"numpy: dtype must be a dtype of NumPy, such as np.float32, not {dtype!r:.60}") from None


def converted(
    array: np.ndarray[Any, Any], element: DType, dtype: np.dtype[Any], copy: bool | None
) -> np.ndarray[Any, Any]:
    """What ``Tensor.numpy`` read of a tensor of ``element``, as another dtype of NumPy."""
    wide = element.name == "bfloat16" and dtype != array.dtype and dtype.name != "bfloat16"
    if wide and copy is not False:
        array = widened(array)
    elif element.name == "bfloat16" and dtype.name == "bfloat16":
        return array.view(dtype)
    if element.is_quantized and dtype != array.dtype:
        hint = f"gb.dequantize(t.numpy(), {element.name!r}) makes float32 of them"
        raise InvalidArgumentError(f"numpy: {element.name} comes as bytes, not as {dtype}; {hint}")
    if copy is False and (array.dtype != dtype or wide):
        raise StateError(f"numpy: {element.name} as {dtype} takes a copy")
    return array.astype(dtype, copy=False)
