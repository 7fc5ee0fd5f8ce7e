"""The data of tensors: where it is, reading and writing it. The second of the classes that make up
:class:`ggml_backend.Tensor`."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from ._core.handles import new_handle, new_pin
from ._data.arrays import array_at, exact_array, layout, read_tensor, to_array
from ._data.quantize import OnInvalid, quantize
from ._errors import GgmlError, InvalidArgumentError, StateError, expect_bool, expect_int, raise_last
from ._errors.messages import kind_of
from ._ffi import ffi, lib
from ._files.mapped import reading
from ._tensor_base import TensorInfo, has_place
from .buffer import Buffer, BufferCore
from .dtypes import DType

_view_type: Any = ffi.typeof("struct gbpy_view *")
_new = ffi.new
_from_buffer = ffi.from_buffer
_look = lib.gbpy_look
_write = lib.gbpy_write
_write_all = lib.gbpy_write_all
_T = TypeVar("_T", bound="TensorData")


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(dtype)
        return found
    except (TypeError, ValueError, SyntaxError, AttributeError):
        raise TypeError(f"numpy: dtype must be a dtype of NumPy, such as np.float32, not {dtype!r:.60}") from None


class TensorData(TensorInfo):
    """A tensor's memory."""

    __slots__ = ()

    @property
    def is_placed(self) -> bool:
        """Does it have memory?"""
        p = self._live()
        return has_place(lib.gbpy_find_place(self._k, p))

    @property
    def is_host(self) -> bool:
        """Is its memory readable by NumPy without a copy?"""
        p = self._live()
        host = _new("bool *")
        status = lib.gbpy_is_on_host(self._k, p, host)
        if status:
            raise_last(self.describe(), status)
        return bool(host[0])

    @property
    def buffer(self) -> Buffer | None:
        """The buffer that it lies in; None if it has no memory or memory of a scheduler or context."""
        p = self._live()
        h = new_handle()
        found = has_place(lib.gbpy_find_owner(self._k, p, h)) and lib.gbpy_kind_of(h) == lib.GBPY_BUFFER
        return Buffer(BufferCore(h)) if found else None

    def numpy(self, dtype: Any = None, *, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The data as an array.

        Host memory: a view; it keeps the buffer alive, writing to it writes the tensor (a constant's is read-only), and
        the next computation overwrites what a scheduler placed. Device memory: a copy. Waits for a computation in
        progress.

        Raises :class:`StateError` for a result that is not there: it was not computed, an input was set since, or its
        memory was used again while the graph ran. ``ctx.graph(y, keep=[h])`` keeps a result in between,
        ``Scheduler(keep_all=True)`` all of them.

        dtype: convert to this NumPy dtype (a copy). Without it bfloat16 comes as uint16 bits, quantized formats as the
            bytes of their rows.
        copy: True: always a copy; False: raise :class:`StateError` rather than copy.
        """
        p = self._live()
        target = None if dtype is None else _numpy_dtype(dtype)
        if copy is not None:
            copy = expect_bool(copy, "numpy: copy")
        if copy or (copy is None and target is not None and target != self.dtype.numpy):
            array = read_tensor(self._k, p, self.describe)  # before anybody computes again
            return array if target is None else self._converted(array, target, copy)
        pin = new_pin()
        view = _new(_view_type)
        status = _look(pin, self._k, p, view, b"it")
        if status:
            raise_last(self.describe(), status)
        if view.host:
            array = array_at(p, view.data, pin, view.readonly)
        elif copy is False:
            raise StateError(f"numpy: {self.describe()} is in device memory, which takes a copy")
        else:
            array = read_tensor(self._k, p, self.describe)
        return array if target is None else self._converted(array, target, copy)

    def _converted(self, array: np.ndarray[Any, Any], dtype: np.dtype[Any], copy: bool | None) -> np.ndarray[Any, Any]:
        element = self.dtype
        if element.name == "bfloat16" and dtype != array.dtype and dtype.name != "bfloat16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        elif element.name == "bfloat16" and dtype.name == "bfloat16":
            return array.view(dtype)
        if element.is_quantized and dtype != array.dtype:
            hint = f"gb.dequantize(t.numpy(), {element.name!r}) makes float32 of them"
            raise InvalidArgumentError(f"numpy: {element.name} comes as bytes, not as {dtype}; {hint}")
        if copy is False and array.dtype != dtype:
            raise StateError(f"numpy: {element.name} as {dtype} takes a copy")
        return array.astype(dtype, copy=False)

    def set(
        self: _T, value: Any, offset: int | None = None, *, quantize: bool = False, on_invalid: OnInvalid = "error"
    ) -> _T:
        """Writes data. Returns the tensor.

        value: an array of exactly this tensor's shape and dtype; or a list, converted where nothing is lost; or a
        number, which
            fills the tensor; or ``...`` for zeros. bfloat16 takes ml_dtypes.bfloat16 or uint16 bits, quantized formats
            take the bytes of their rows.
        offset: write ``value``, of any shape, from this flat element index on, and leave the rest as it is.
        quantize: take floats of this tensor's shape and convert them to its dtype, with :func:`ggml_backend.quantize`.
        on_invalid: what :func:`ggml_backend.quantize` does with numbers that the dtype cannot hold.
        """
        dtype = self.dtype
        if quantize is not False and expect_bool(quantize, "set: quantize"):
            value = self._quantized(value, dtype, on_invalid)
        if value is ...:
            value = np.zeros(layout(self._live(), dtype)[0], dtype.numpy) if dtype.is_quantized else 0
        if type(value) is np.ndarray and value.dtype == dtype.numpy and value.dtype.isnative:
            array = value
        else:
            array = exact_array(
                value.numpy() if isinstance(value, TensorData) else value, dtype, f"set: {self.describe()}"
            )
        p = self._live()
        if offset is not None:
            self._write_flat(array, expect_int(offset, "set: offset"), dtype)
            return self
        shape, _ = layout(p, dtype)
        if array.shape != shape:
            if array.ndim or isinstance(value, np.ndarray):
                raise self._wrong_shape(array.shape, shape)
            array = np.broadcast_to(array, shape if 0 not in shape else 0)  # NumPy refuses some empty shapes
        if not array.flags.c_contiguous:
            with reading(array, "set"):
                array = np.ascontiguousarray(array)
        status = (
            _write_all(self._k, p, _from_buffer(array), array.nbytes, b"it")
            if array.nbytes
            else _write(self._k, p, b"", 0, 0, b"it")
        )
        if status:
            raise_last(f"set: {self.describe()}", status)
        return self

    def _wrong_shape(self, given: tuple[int, ...], shape: tuple[int, ...]) -> InvalidArgumentError:
        if self.dtype.is_quantized and shape != self.shape:
            hint = f"; the bytes of its rows have the shape {shape}"
        else:
            hint = "; array.T has its shape" if given[::-1] == shape else ""
        return InvalidArgumentError(f"set: {self.describe()} cannot take an array of shape {given}{hint}")

    def _quantized(self, value: Any, dtype: DType, on_invalid: OnInvalid) -> np.ndarray[Any, Any]:
        array = to_array(value.numpy() if isinstance(value, TensorData) else value, f"set: {self.describe()}")
        if array.shape != self.shape:
            raise self._wrong_shape(array.shape, self.shape)
        try:
            blocks = quantize(array, dtype, on_invalid=on_invalid)
        except GgmlError as error:
            raise type(error)(f"set: {self.describe()}: {error}") from None
        return blocks.view(np.uint16) if dtype.name == "bfloat16" else blocks

    def _write_flat(self, array: np.ndarray[Any, Any], offset: int, dtype: DType) -> None:
        if dtype.is_quantized or not lib.ggml_is_contiguous(self._p):
            raise InvalidArgumentError(
                f"set: an offset needs a contiguous tensor of a plain dtype, not {self.describe()}"
            )
        if offset < 0 or offset + array.size > self.size:
            raise InvalidArgumentError(
                f"set: elements {offset} to {offset + array.size} are outside of {self.describe()}, which has"
                f" {self.size}"
            )
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        p = self._live()
        status = _write(self._k, p, _from_buffer(data), offset * dtype.itemsize, data.nbytes, b"it")
        if status:
            raise_last(f"set: {self.describe()}", status)

    def copy_from(self: _T, source: TensorData) -> _T:
        """Copies the data of a tensor of the same dtype and layout, wherever the two are. Returns this tensor."""
        if not isinstance(source, TensorData):
            raise TypeError(f"copy_from: source must be a Tensor, not {kind_of(source)}; set(array) writes an array")
        to, of = self._live(), source._live()
        status = lib.gbpy_copy(self._k, to, source._k, of, b"it")
        if status and (source.dtype, source.ne, source.nb) != (self.dtype, self.ne, self.nb):
            shown = f"{source.describe()} and {self.describe()}"
            raise InvalidArgumentError(f"copy_from: dtype, shape and strides must be the same, not those of {shown}")
        if status:
            raise_last(f"copy_from: {source.describe()} to {self.describe()}", status)
        return self

    def item(self) -> Any:
        """The value of a tensor with one element."""
        if self.size != 1:
            raise InvalidArgumentError(f"item: {self.describe()} has {self.size} elements")
        dtype = np.float32 if self.dtype.name == "bfloat16" else None
        return self.numpy(dtype, copy=True).reshape(-1)[0].item()

    def tolist(self) -> Any:
        return self.numpy(np.float32 if self.dtype.name == "bfloat16" else None, copy=True).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        try:
            return self.numpy(dtype, copy=copy)
        except StateError as error:
            if copy is not False or "takes a copy" not in str(error):
                raise
            raise InvalidArgumentError(str(error)) from None  # a ValueError, as NumPy has it

    def __dlpack__(self, **options: Any) -> Any:
        if not self.is_host:
            raise BufferError(f"{self.describe()} is in device memory; use numpy() for a copy")
        if self.dtype.is_quantized or self.dtype.name == "bfloat16":
            raise BufferError(f"DLPack through NumPy has no {self.dtype.name}; numpy() has its bits")
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        if not self.is_host:
            raise BufferError(f"{self.describe()} is in device memory; use numpy() for a copy")
        return (1, 0)
