"""The data of tensors: where it is, reading and writing it. The second of the classes that make up :class:`ggml_backend.Tensor`."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

import numpy as np

from ._data import array_at, exact_array, layout, read_device, to_array, write, write_strided
from ._errors import InvalidArgumentError, StateError, check, raise_last
from ._ffi import lib
from ._handles import BufferCore, Core, OwnerCore, find_owner
from ._messages import kind_of
from ._quantize import quantize
from ._tensor_base import TensorInfo
from .buffer import Buffer
from .dtypes import DType

_buffer_of = lib.gbpy_buffer
_refresh = lib.gbpy_refresh
_T = TypeVar("_T", bound="TensorData")


class TensorData(TensorInfo):
    """A tensor's memory."""

    __slots__ = ()

    def _owner(self) -> Core:
        """Who owns the memory of this tensor. Raises StateError if it has none."""
        p = self._live()
        buffer = _buffer_of(p)
        if buffer:
            owner = find_owner(buffer)
            if owner is None or owner.closed:
                raise StateError(f"the memory of {self.describe()} was freed")
            return owner
        if p.data or (p.view_src and p.view_src.data):
            return self._ctx._live()
        if lib.gbpy_is_lost(p):
            raise StateError(f"the memory of {self.describe()} was freed")
        if p.op != lib.GGML_OP_NONE:
            raise StateError(f"{self.describe()} has no memory yet: Scheduler.compute(ctx.graph(...)) gives it some and computes it")
        raise StateError(f"{self.describe()} has no memory: give it some with Context.allocate, Buffer.place or Scheduler.allocate")

    def _lock(self, setting: bool = False) -> Core:
        """Locks the owner of the memory and makes sure that the data is there. Returns the owner; the caller releases its lock."""
        while True:
            owner = self._owner()
            if OwnerCore.working and isinstance(owner, OwnerCore):
                owner.wait_for_users(self._p, setting)
            owner.lock.acquire()
            try:
                if self._owner() is owner:  # not moved meanwhile
                    if isinstance(owner, OwnerCore):
                        if setting:
                            owner.before_set(self._p)
                        else:
                            owner.synchronize()
                        if not owner.has(self._p):
                            raise StateError(
                                f"the scheduler has used the memory of {self.describe()} for another graph, or was reset"
                            )
                    if not _refresh(self._p):
                        raise_last(f"{self.describe()}")
                    return owner
            except BaseException:
                owner.lock.release()
                raise
            owner.lock.release()

    def _is_host(self, owner: Core) -> bool:
        if not isinstance(owner, OwnerCore):
            return True
        return owner.is_host(_buffer_of(self._p))

    @property
    def is_placed(self) -> bool:
        """Does it have memory?"""
        self._live()
        try:
            self._lock().lock.release()
        except StateError:
            return False
        return True

    @property
    def is_host(self) -> bool:
        """Is its memory readable by NumPy without a copy?"""
        return self._is_host(self._owner())

    @property
    def buffer(self) -> Buffer | None:
        """The buffer that it lies in; None if it has no memory or memory of a scheduler or context."""
        p = self._live()
        buffer = _buffer_of(p)
        owner = find_owner(buffer) if buffer else None
        return Buffer(owner) if isinstance(owner, BufferCore) and not owner.closed else None

    def numpy(self, dtype: Any = None, *, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The data as an array.

        Host memory: a view; it keeps the buffer alive, writing to it writes the tensor, and the next computation overwrites what
        a scheduler placed. Device memory: a copy. Waits for a computation in progress.

        dtype: convert to this NumPy dtype (a copy). Without it bfloat16 comes as uint16 bits, quantized formats as the
            bytes of their rows.
        copy: True: always a copy; False: raise :class:`StateError` rather than copy.
        """
        try:
            wanted = None if dtype is None else np.dtype(dtype)
        except TypeError:
            raise TypeError(f"numpy: {dtype!r} is no dtype of NumPy") from None
        owner = self._lock()
        try:
            if self._is_host(owner):
                readonly = isinstance(owner, OwnerCore) and owner.readonly
                pin = owner.pin() if isinstance(owner, OwnerCore) else owner.token
                array = array_at(self._p, pin, readonly)
                if copy:
                    array = array.copy()
            else:
                if copy is False:
                    raise StateError(f"numpy: {self.describe()} is in device memory, which takes a copy")
                array = read_device(self._p)
        finally:
            owner.lock.release()
        if wanted is not None:
            array = self._converted(array, wanted, copy)
        return array

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

    def set(self: _T, value: Any, offset: int | None = None, *, quantize: bool = False) -> _T:
        """Writes data. Returns the tensor.

        value: an array of exactly this tensor's shape and dtype; or a list, converted where nothing is lost; or a number, which
            fills the tensor; or ``...`` for zeros. bfloat16 takes ml_dtypes.bfloat16 or uint16 bits, quantized formats
            take the bytes of their rows.
        offset: write ``value``, of any shape, from this flat element index on, and leave the rest as it is.
        quantize: take floats of this tensor's shape and convert them to its dtype, with :func:`ggml_backend.quantize`.
        """
        dtype = self.dtype
        if quantize:
            value = self._quantized(value, dtype)
        if value is ...:
            value = 0
        if type(value) is np.ndarray and value.dtype == dtype.numpy and value.dtype.isnative:
            array = value
        else:
            array = exact_array(value.numpy() if isinstance(value, TensorData) else value, dtype, f"set: {self.describe()}")
        shape, _ = layout(self._p, dtype)
        owner = self._lock(setting=True)
        try:
            if isinstance(owner, OwnerCore) and owner.readonly:
                raise StateError(f"set: {self.describe()} is in a read-only buffer")
            if offset is not None:
                self._write_flat(array, operator.index(offset), dtype)
                return self
            if array.shape != shape:
                if array.ndim or isinstance(value, np.ndarray):
                    raise self._wrong_shape(array.shape, shape)
                array = np.broadcast_to(array, shape)
            if self._is_host(owner) and not lib.ggml_is_contiguous(self._p):
                array_at(self._p, None, False)[...] = array
            elif lib.ggml_is_contiguous(self._p):
                write(self._p, np.ascontiguousarray(array), 0)
            else:
                write_strided(self._p, array)
        finally:
            owner.lock.release()
        return self

    def _wrong_shape(self, given: tuple[int, ...], shape: tuple[int, ...]) -> InvalidArgumentError:
        if self.dtype.is_quantized and shape != self.shape:
            hint = f"; the bytes of its rows have the shape {shape}"
        else:
            hint = "; array.T has its shape" if given[::-1] == shape else ""
        return InvalidArgumentError(f"set: {self.describe()} cannot take an array of shape {given}{hint}")

    def _quantized(self, value: Any, dtype: DType) -> np.ndarray[Any, Any]:
        array = to_array(value.numpy() if isinstance(value, TensorData) else value, f"set: {self.describe()}")
        if array.shape != self.shape:
            raise self._wrong_shape(array.shape, self.shape)
        blocks = quantize(array, dtype)
        return blocks.view(np.uint16) if dtype.name == "bfloat16" else blocks

    def _write_flat(self, array: np.ndarray[Any, Any], offset: int, dtype: DType) -> None:
        if dtype.is_quantized or not lib.ggml_is_contiguous(self._p):
            raise InvalidArgumentError(f"set: an offset needs a contiguous tensor of a plain dtype, not {self.describe()}")
        if offset < 0 or offset + array.size > self.size:
            raise InvalidArgumentError(
                f"set: elements {offset} to {offset + array.size} are outside of {self.describe()}, which has {self.size}"
            )
        write(self._p, np.ascontiguousarray(array), offset * dtype.itemsize)

    def copy_from(self: _T, source: TensorData) -> _T:
        """Copies the data of a tensor of the same dtype and layout, wherever the two are. Returns this tensor."""
        if not isinstance(source, TensorData):
            raise TypeError(f"copy_from: source must be a Tensor, not {kind_of(source)}; set(array) writes an array")
        pair: list[TensorData] = [self, source]
        first, second = sorted(pair, key=lambda t: id(t._owner()))
        locked: list[Core] = []
        try:
            locked += (first._lock(), second._lock())
            if any(o is self._owner() and isinstance(o, OwnerCore) and o.readonly for o in locked):
                raise StateError(f"copy_from: {self.describe()} is in a read-only buffer")
            status = lib.ggml_backend_tensor_copy(source._live(), self._live())
        finally:
            for o in locked:
                o.lock.release()
        if status != 0 and (source.dtype, source.ne, source.nb) != (self.dtype, self.ne, self.nb):
            pair_shown = f"{source.describe()} and {self.describe()}"
            raise InvalidArgumentError(f"copy_from: dtype, shape and strides must be the same, not those of {pair_shown}")
        check(status, f"copy_from: {source.describe()} to {self.describe()}")
        return self

    def item(self) -> Any:
        """The value of a tensor with one element."""
        if self.size != 1:
            raise InvalidArgumentError(f"item: {self.describe()} has {self.size} elements")
        dtype = np.float32 if self.dtype.name == "bfloat16" else None
        return self.numpy(dtype).reshape(-1)[0].item()

    def tolist(self) -> Any:
        return self.numpy(np.float32 if self.dtype.name == "bfloat16" else None).tolist()

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
