"""Data exchange between NumPy and C tensors: views, copies, and checks of values and dtypes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from .._base.errors import GgmlError, InvalidArgumentError, StateError, check, raise_as, raise_last
from .._base.errors.faults import last_message, quoted, spoken
from .._base.errors.messages import host_hint, kind_of
from .._base.handles import fail
from .._base.mapped import check_file
from .._ffi import ffi, lib
from ..dtypes import DType, as_dtype, dtype_of_id
from ._blocks import Blocks, of_format

__all__ = [
    "CPU", "Exporter", "ask", "capsule_of", "described", "dtype_of_array", "elements_of",
    "elements_over", "empty", "gives_capsules", "is_elsewhere", "is_masked", "is_mutable", "refuse",
    "refuse_lazy", "seen", "take", "take_array",
]  # fmt: skip

CPU = (1, 0)
"""DLPack's device type for host memory."""

_VERSION = (1, 0)
"""The DLPack version that is requested."""
_MUTABLE = ("torch", "cupy", "numpy")  # writable arrays, although their old DLPack versions cannot say so
_array_type: Any = ffi.typeof("struct gbpy_array *")
_new = ffi.new
_take = lib.gbpy_dlpack_take
_export = lib.gbpy_dlpack_export
_bfloat16 = as_dtype("bfloat16")

_OF_BITS = (
    "; only the dtype marks bits as bfloat16: array.view(ml_dtypes.bfloat16) (pip install 'ggml_backend[bfloat16]'),"
    " or ctx.tensor(array.shape, 'bfloat16').set(array)"
)

Array = np.ndarray[Any, Any]


class Exporter:
    """An ``__array_interface__`` over an address, and the object that keeps its memory alive."""

    __slots__ = ("__array_interface__", "_pin")

    def __init__(self, interface: dict[str, Any], pin: object) -> None:
        self.__array_interface__ = interface
        self._pin = pin


def empty(shape: tuple[int, ...], dtype: DType) -> Array:
    """An array without elements. Raises if NumPy refuses the shape because its other sizes overflow."""
    try:
        return np.empty(shape, np.dtype(dtype.typestr))
    except ValueError:
        raise InvalidArgumentError(f"NumPy cannot show an empty tensor of shape {tuple(shape)}") from None


def dtype_of_array(array: Array, what: str) -> DType:
    try:
        return as_dtype(array.dtype)
    except TypeError:
        if array.dtype.kind not in "biufcV":
            raise InvalidArgumentError(f"{what}: takes an array of numbers, not of {array.dtype}") from None
        if not array.dtype.isnative:
            hint = "; array.astype(array.dtype.newbyteorder('=')) has the bytes in the order of this machine"
        else:
            hint = _remedy(array.dtype.name)
        raise InvalidArgumentError(f"{what}: {array.dtype} is not a dtype of tensors{hint}") from None


def _remedy(name: str) -> str:
    """The end of a message: the dtype to convert an array to."""
    if name == "uint16":
        return _OF_BITS
    if name == "uint8":
        return (
            "; array.astype(np.float32) converts numbers. Is it quantized data? Then name its format:"
            " ctx.constant(array, 'q4_k')"
        )
    if name.startswith("uint"):
        return "; array.astype(np.int32) converts it, or np.int64, or np.float32"
    if name == "bool" or name.startswith(("float", "longdouble")):
        return "; array.astype(np.float32) converts it"
    if name.startswith("complex"):
        return "; array.real and array.imag are two arrays of floats"
    return ""


# ---------------------------------------------------------------------------------------------------------- for C


def described(array: Array, element: DType, what: str) -> Any:
    """A NumPy array as a ``struct gbpy_array`` with elements of this dtype."""
    if array.ndim > lib.GGML_MAX_DIMS:
        raise InvalidArgumentError(f"{what}: the array has {array.ndim} axes, tensors have at most {lib.GGML_MAX_DIMS}")
    c = _new(_array_type)
    c.data = ffi.cast("void *", array.ctypes.data)
    c.type = element.id
    c.ndim = array.ndim
    c.shape[0 : array.ndim] = array.shape
    c.strides[0 : array.ndim] = array.strides
    c.readonly = not array.flags.writeable
    return c


def is_mutable(value: Any) -> bool:
    """True if an array may be written although its old DLPack version cannot say so."""
    kind = type(value)
    return kind is np.ndarray or kind.__module__.partition(".")[0] in _MUTABLE


def refuse_lazy(value: Any, what: str) -> None:
    """Refuses PyTorch tensors with a pending negation or conjugation, which DLPack cannot express."""
    is_neg = getattr(value, "is_neg", None)
    if is_neg is None or not hasattr(value, "is_conj"):
        return
    for bit, asked, cure in (("is_neg", is_neg, "resolve_neg"), ("is_conj", value.is_conj, "resolve_conj")):
        if asked() and hasattr(value, cure):
            raise InvalidArgumentError(
                f"{what} cannot take this {kind_of(value)}: {bit}() is True; {cure}() computes it"
            )


def capsule_of(value: Any) -> Any:
    """The result of ``value.__dlpack__(max_version=_VERSION)``.

    The C functions of a type (DLPack 1.3, as in PyTorch) are much faster. They do not check for a
    gradient, so subclasses and arrays with a gradient take the method.
    """
    functions = type(value).__dict__.get("__dlpack_c_exchange_api__")
    if functions is not None and not getattr(value, "requires_grad", False):
        found: list[Any] = []
        if _export(id(functions), id(value), id(found)):
            return found[0]
    return value.__dlpack__(max_version=_VERSION)


def _asked(value: Any, copy: bool) -> Any:
    try:
        return value.__dlpack__(max_version=_VERSION, dl_device=CPU) if copy else capsule_of(value)
    except TypeError:  # DLPack before 1.0 has no options. NumPy retries, too.
        return value.__dlpack__()


def is_elsewhere(value: Any) -> bool:
    """True if ``__dlpack__`` reports device memory, so that only copies are possible."""
    try:
        where = value.__dlpack_device__()
    except BufferError:  # from tensors of this package in device memory
        return True
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    return isinstance(where, tuple) and len(where) == 2 and type(where[0]) is int and where[0] != CPU[0]


def ask(value: Any, what: str, *, copy: bool = False) -> Any:
    """The capsule of an object with ``__dlpack__``. ``copy`` is that of :func:`take`.

    Errors of the object become InvalidArgumentError, except RecursionError.
    """
    refuse_lazy(value, what)
    try:
        return _asked(value, copy)
    except RecursionError:
        raise
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"{what} cannot take this {kind_of(value)}: {_reason(value, error)}") from error


def take(value: Any, what: str, *, copy: bool = False) -> tuple[Any, Any]:
    """The array of an object with ``__dlpack__``, for C, and the object that keeps its memory alive.

    copy: also accept arrays in device memory, if their library copies them
    """
    capsule = ask(value, what, copy=copy)
    found: list[Any] = []
    c = _new(_array_type)
    status = _take(c, id(capsule), id(found), what.encode())
    if status:
        refuse(status, value)
    if c.unversioned and is_mutable(value):
        c.readonly = False
    return c, found[0]


def refuse(status: int, value: Any) -> NoReturn:
    """Raises the error that C reported for an array."""
    said = last_message()
    message = spoken(said)
    if status == lib.GBPY_NOT_ON_HOST:
        raise_as(lib.GGML_STATUS_INVALID_ARGUMENT, message + host_hint(value))
    if status == lib.GBPY_NO_DTYPE:
        dtype = quoted(said)[0]
        known = isinstance(value, np.ndarray) or dtype == "uint16"
        hint = _remedy(dtype) if known else ": convert the array where it was made"
        raise_as(lib.GGML_STATUS_INVALID_ARGUMENT, message + hint)
    raise_last("", status)


def gives_capsules(value: Any) -> bool:
    """True if a value is exchanged by DLPack. Old versions of NumPy cannot export all their arrays."""
    if isinstance(value, np.ndarray):
        return value.flags.writeable and value.dtype.kind in "iuf" and value.dtype.isnative
    return hasattr(value, "__dlpack__")


def take_array(value: Any, *, copy: bool = False) -> tuple[Any, Any]:
    """:func:`take` for any array given to ``from_dlpack``. An array that DLPack cannot exchange goes through NumPy."""
    if gives_capsules(value):
        return take(value, "from_dlpack", copy=copy)
    array, element = elements_of(value, "from_dlpack")
    dtype = dtype_of_array(array, "from_dlpack") if element is None else element
    return described(array, dtype, "from_dlpack"), array


# -------------------------------------------------------------------------------------------------------- for NumPy


def elements_over(c: Any, keeper: Any) -> tuple[Array, DType]:
    """A NumPy array over a taken array, and its dtype. For bfloat16 the array holds uint16 bits."""
    dtype = dtype_of_id(c.type)
    shape = tuple(c.shape[0 : c.ndim])
    if 0 in shape:
        return empty(shape, dtype), dtype
    interface = {
        "shape": shape,
        "strides": tuple(c.strides[0 : c.ndim]),
        "typestr": dtype.typestr,
        "data": (int(ffi.cast("uintptr_t", c.data)), bool(c.readonly)),
        "version": 3,
    }
    array: Array = np.asarray(Exporter(interface, keeper))
    return array, dtype


def elements_of(value: Any, what: str) -> tuple[Array, DType | None]:
    """The value as an array, and its dtype if NumPy lacks it (else None). Raises if it is no array.

    bfloat16 comes as uint16 bits. This needs no other package.
    """
    array, element = seen(value, what)
    if element is None and array.dtype.name == "bfloat16":  # from ml_dtypes
        return array.view(np.uint16), _bfloat16
    return array, element


def is_masked(array: Any) -> bool:
    """True for masked arrays. It does not import ``numpy.ma``, which NumPy loads on first use."""
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(array, getattr(module, "MaskedArray", ()))


def seen(value: Any, what: str) -> tuple[Array, DType | None]:
    """:func:`elements_of`, but bfloat16 arrays of ml_dtypes stay as they are."""
    try:
        array: Array = np.asanyarray(value)
    except RecursionError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        if "bfloat16" in str(error).lower() and hasattr(value, "__dlpack__"):
            return elements_over(*take(value, what))
        raise InvalidArgumentError(f"{what} cannot take this {kind_of(value)}: {_reason(value, error)}") from None
    if is_masked(array):
        raise InvalidArgumentError(
            f"{what} cannot take a masked array, since tensors have no masks; array.filled(value)"
            " has a value in their place"
        )
    if array.dtype.kind == "O" and array.ndim == 0 and hasattr(value, "__dlpack__"):
        return elements_over(*take(value, what))
    return array, None


def _reason(value: Any, error: Exception) -> str:
    if isinstance(value, (list, tuple)):
        return "its lists have different lengths" if "inhomogeneous" in str(error) else str(error)
    if getattr(value, "requires_grad", None) is True and "grad" in str(error):
        return "it requires grad, which tensors here do not have; detach() is its data alone"
    if "bfloat16" in str(error).lower():
        bits = "t.view(torch.int16).numpy().view(np.uint16) has the bits, as tensors of bfloat16 take them"
        return f"NumPy has no bfloat16; t.float().numpy() is float32, {bits}"
    return str(error)


_ndim = lib.gbpy_ndim
_unpack = ffi.unpack
_cast = ffi.cast
_nbytes = lib.ggml_nbytes
_read = lib.gbpy_read


def array_at(pointer: Any, data: Any, pin: object, readonly: bool) -> np.ndarray[Any, Any]:
    """A NumPy view of the host memory ``data`` of a ``ggml_tensor``, within its bytes.

    ``pin`` keeps that memory alive, even after the tensor is placed elsewhere.
    """
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
    """Describes a C tensor for messages: ``'y' float32 (16, 64)``."""
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


_PIECE = 1 << 24  # bytes copied between two checks for signals


def contiguous(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``np.ascontiguousarray``. Copies large arrays in pieces, so that Ctrl-C can interrupt it."""
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
    """A contiguous array of the elements in the bytes of a tensor."""
    dtype = dtype_of_id(pointer.type)
    shape, strides = layout(pointer, dtype)
    if not content.nbytes:
        return empty(shape, dtype)
    array: np.ndarray[Any, Any] = np.ndarray(shape, np.dtype(dtype.typestr), content.data, 0, strides)
    return contiguous(array).reshape(shape)


def read_device(pointer: Any) -> np.ndarray[Any, Any]:
    """A contiguous copy of a tensor's data. No other thread may be using the tensor."""
    staging = np.empty(_nbytes(pointer), np.uint8)
    if staging.nbytes:
        check(lib.ggml_backend_tensor_get(pointer, ffi.from_buffer(staging), 0, staging.nbytes), "numpy")
    return array_of(pointer, staging)


def read_tensor(keeping: Any, pointer: Any, describe: Callable[[], str]) -> np.ndarray[Any, Any]:
    """A contiguous copy of the data of a tensor that other threads may use.

    One C call waits for them, checks that the data exists, and copies while holding the lock.
    """
    staging = np.empty(_nbytes(pointer), np.uint8)
    status = _read(keeping, pointer, ffi.from_buffer(staging), staging.nbytes, b"it")
    if status:
        fail(status, describe())
    return array_of(pointer, staging)


def to_array(value: Any, what: str) -> np.ndarray[Any, Any]:
    """The value as a NumPy array. Raises InvalidArgumentError if it is no array.

    bfloat16 that NumPy does not know becomes float32, which holds all its values.
    """
    array, element = seen(value, what)
    if element is None or element.name != "bfloat16":
        return array
    return widened(array)


def is_array(value: Any) -> bool:
    """True for an array of any library, whose dtype the user chose."""
    if isinstance(value, (np.ndarray, np.generic)):
        return True
    return any(hasattr(value, name) for name in ("__array__", "__array_interface__", "__dlpack__"))


def cast(array: np.ndarray[Any, Any], dtype: Any, value: Any = None) -> np.ndarray[Any, Any]:
    """``np.asarray(value, dtype)``, without a warning for numbers that become infinite. ``array`` is the value as NumPy
    sees it, and the default of ``value``.

    Only such numbers, and NaN, enter ``np.errstate``. In CPython 3.10 and 3.11 it can crash if a finalizer enters it as
    well, while it changes the context.
    """
    target, given = np.dtype(dtype), array if value is None else value
    if target.kind != "f" or array.dtype.kind == "b" or not array.size or array.dtype == target:
        return np.asarray(given, target)
    limit = float(np.finfo(target).max)
    if -limit <= float(array.min()) and float(array.max()) <= limit:
        return np.asarray(given, target)
    with np.errstate(over="ignore"):
        return np.asarray(given, target)


def exact_array(value: Any, dtype: DType, what: str) -> np.ndarray[Any, Any]:
    """``value`` as an array of exactly the NumPy dtype of ``dtype``. Arrays are never converted."""
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
        bits = _round_to_bfloat16(cast(array, np.float32))
        _expect_finite(array, widened(bits), dtype, what)
        return bits
    if target.kind == "i" and array.dtype.kind == "f" and array.size:
        raise InvalidArgumentError(f"{what} takes integers, not floats")
    try:
        made = cast(array, target, value)
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{what}: {error}") from None
    _expect_finite(array, made, dtype, what)
    return made


def _expect_finite(given: np.ndarray[Any, Any], made: np.ndarray[Any, Any], dtype: DType, what: str) -> None:
    """Raises if a finite number became infinite in the dtype."""
    if made.dtype.kind != "f" or np.isfinite(made).all():
        return
    lost = np.isinf(made) & np.isfinite(given)
    if lost.any():
        number = given[lost].reshape(-1)[0]
        raise InvalidArgumentError(f"{what}: {number} is too large for {dtype.name}; float('inf') is an infinity")


def _conversion(dtype: DType, array: np.ndarray[Any, Any], what: str) -> str:
    """For messages: the conversion that makes the array fit a tensor of this dtype."""
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
    """bfloat16 bits (uint16) as float32, whose upper half they are."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype argument of ``Tensor.numpy`` as a NumPy dtype."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
        return found
    except (TypeError, ValueError, SyntaxError, AttributeError):
        raise TypeError(f"numpy: dtype must be a dtype of NumPy, such as np.float32, not {dtype!r:.60}") from None


def converted(
    array: np.ndarray[Any, Any], element: DType, dtype: np.dtype[Any], copy: bool | None
) -> np.ndarray[Any, Any]:
    """The array that ``Tensor.numpy`` read from a tensor of ``element``, in another NumPy dtype."""
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
