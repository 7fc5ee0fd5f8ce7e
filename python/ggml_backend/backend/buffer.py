"""Memory: buffer types, which allocate, and buffers, which are allocations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from .._base.errors import NOT_GIVEN, AllocationError, InvalidArgumentError, StateError, check, expect_int
from .._base.errors.messages import kind_of, made_by, maker_hint
from .._base.handles import Core, Handle, Local, address, fail, new_handle
from .._base.mapped import watch_of
from .._base.renamed import Renamed
from .._ffi import ffi, lib

if TYPE_CHECKING:
    from ..tensor.tensor import Tensor
    from .backend import Backend

__all__ = ["Buffer", "BufferType", "cpu_buffer_type"]

Usage = Literal["any", "weights"]

_USAGE: dict[Usage, int] = {"any": lib.GGML_BACKEND_BUFFER_USAGE_ANY, "weights": lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS}
_USAGE_NAME = {value: name for name, value in _USAGE.items()}


def usage_id(usage: Usage) -> int:
    try:
        number: int = _USAGE[usage]
        return number
    except (KeyError, TypeError):
        raise InvalidArgumentError(f"usage must be one of {', '.join(map(repr, _USAGE))}, not {usage!r}") from None


def text(pointer: Any) -> str:
    """A C string; "" for NULL. Bytes that are not UTF-8 become surrogates, as in ``Tensor.name``."""
    return ffi.string(pointer).decode("utf-8", "surrogateescape") if pointer else ""


def expect_tensor(value: object, what: str) -> None:
    """Raises TypeError unless the value is a tensor. The tensor module imports this one."""
    if not hasattr(value, "view_of"):
        raise TypeError(f"{what} must be a Tensor, not {kind_of(value)}{maker_hint('Tensor', value)}")


class BufferType(Local):
    """A kind of memory, for example that of one device.

    ``Backend.buffer_type`` and :func:`cpu_buffer_type` return buffer types.
    """

    __slots__ = ("_parent", "_ptr")

    def __init__(self, ptr: Any = None, parent: Core | None = None) -> None:
        made_by(ptr, ffi.CData, "BufferType", "backend.buffer_type, or gb.backend.cpu_buffer_type(),")
        self._ptr = ptr
        self._parent = parent

    @property
    def name(self) -> str:
        return text(lib.ggml_backend_buft_name(self._ptr))

    @property
    def alignment(self) -> int:
        """Bytes. The address of every tensor is a multiple of it."""
        return int(lib.ggml_backend_buft_get_alignment(self._ptr))

    @property
    def max_nbytes(self) -> int:
        """Bytes of the largest single allocation."""
        return int(lib.ggml_backend_buft_get_max_size(self._ptr))

    @property
    def is_host(self) -> bool:
        """True if NumPy can read this memory directly."""
        return bool(lib.ggml_backend_buft_is_host(self._ptr))

    def supports(self, backend: Backend) -> bool:
        """True if ``backend`` can compute on data in this kind of memory."""
        if not hasattr(backend, "unsupported_reason"):
            raise TypeError(
                "BufferType.supports: backend must be a Backend, not"
                f" {kind_of(backend)}{maker_hint('Backend', backend)}"
            )
        core = backend._live()
        return bool(lib.ggml_backend_buft_supports_backend(self._ptr, core.ptr))

    def nbytes_for(self, tensor: Tensor) -> int:
        """Bytes that ``tensor`` takes in this kind of memory."""
        expect_tensor(tensor, "BufferType.nbytes_for: tensor")
        return int(lib.ggml_backend_buft_get_alloc_size(self._ptr, tensor._live()))

    def allocate(self, size: int, usage: Usage = "any") -> Buffer:
        """Allocates ``size`` bytes. Raises :class:`AllocationError` (a MemoryError) on failure."""
        usage_number = usage_id(usage)
        size = expect_int(size, "BufferType.allocate: size")
        if size < 0:
            raise InvalidArgumentError(f"BufferType.allocate: size {size} is negative")
        if size >= 2**64:
            raise AllocationError(f"BufferType.allocate: {size} bytes exceed the address space")
        h, parent = new_handle(), self._parent
        status = lib.gbpy_open_buffer(h, self._ptr, size, usage_number, parent.h if parent is not None else ffi.NULL)
        if status:
            fail(status, f"BufferType.allocate({self.name}, {size})")
        return Buffer(BufferCore(h))

    alloc: ClassVar[Renamed] = Renamed("allocate")
    alloc_size: ClassVar[Renamed] = Renamed("nbytes_for")
    max_size: ClassVar[Renamed] = Renamed("max_nbytes")

    def from_array(self, array: Any, usage: Usage = "any") -> Buffer:
        """:meth:`Buffer.from_array`, for a host buffer type."""
        if not self.is_host:
            raise InvalidArgumentError(f"from_array: {self.name} is not host memory")
        return Buffer.from_array(array, usage)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BufferType) and bool(self._ptr == other._ptr)

    def __hash__(self) -> int:
        return hash(self._ptr)

    def __repr__(self) -> str:
        return f"<BufferType {self.name!r} alignment={self.alignment}{' host' if self.is_host else ''}>"


def cpu_buffer_type() -> BufferType:
    """Aligned host memory."""
    return BufferType(lib.ggml_backend_cpu_buffer_type(), None)


class BufferCore(Core):
    """Owns a ``ggml_backend_buffer``."""

    __slots__ = ()

    def __init__(self, h: Any) -> None:
        super().__init__(h, "struct ggml_backend_buffer *")


class Buffer(Handle):
    """One allocation.

    ``close()`` frees the memory. Its tensors then have no memory and raise :class:`StateError` when
    accessed. Arrays made by ``Tensor.numpy()``, and schedulers whose graph uses the buffer, keep the
    memory until they are gone.
    """

    __slots__ = ("__weakref__", "_core")

    def __init__(self, core: BufferCore = NOT_GIVEN) -> None:
        made_by(core, Core, "Buffer", "backend.allocate(size), ctx.allocate(backend) or gb.Buffer.from_array(array)")
        self._core: BufferCore | None = core

    @classmethod
    def from_array(cls, array: Any, usage: Usage = "any") -> Buffer:
        """A buffer over existing memory, without a copy: a NumPy array, ``mmap``, ``memoryview``, ``bytes``.

        The object must be contiguous. The buffer keeps it alive, and a ``mmap`` cannot be closed until
        the buffer is gone. Read-only memory gives a read-only buffer: its tensors can be computed with,
        and not written. Place tensors with :meth:`place`.
        """
        number = usage_id(usage)
        if isinstance(array, np.ndarray) and not array.flags.c_contiguous:
            raise InvalidArgumentError("Buffer.from_array: the array is not C-contiguous; use np.ascontiguousarray")
        if isinstance(array, np.ndarray) and array.dtype.hasobject:
            raise InvalidArgumentError(f"Buffer.from_array: an array of {array.dtype} holds Python objects")
        source: Any = array.reshape(-1).view(np.uint8) if isinstance(array, np.ndarray) else array
        try:
            view = memoryview(source)
            exporter = ffi.from_buffer(source)
        except (TypeError, ValueError, BufferError) as error:
            reason = (
                f"takes an array, mmap, memoryview or bytes, not {kind_of(array)}"
                if isinstance(error, TypeError)
                else str(error)
            )
            raise InvalidArgumentError(f"Buffer.from_array: {reason}") from None
        if view.nbytes == 0:
            raise InvalidArgumentError("Buffer.from_array: the array is empty")
        h = new_handle()
        kept = (exporter, array, watch_of(array))
        status = lib.gbpy_open_host_buffer(h, exporter, view.nbytes, number, view.readonly, id(kept))
        if status:
            fail(status, "Buffer.from_array")
        return cls(BufferCore(h))

    def _live(self) -> BufferCore:
        core = self._core
        if core is None or core.closed:
            raise StateError("the buffer is closed")
        return core

    @property
    def name(self) -> str:
        core = self._live()
        return text(lib.ggml_backend_buffer_name(core.ptr))

    @property
    def nbytes(self) -> int:
        """Bytes."""
        core = self._live()
        return int(lib.ggml_backend_buffer_get_size(core.ptr))

    size: ClassVar[Renamed] = Renamed("nbytes")

    @property
    def type(self) -> BufferType:
        core = self._live()
        return BufferType(lib.ggml_backend_buffer_get_type(core.ptr), core)

    @property
    def alignment(self) -> int:
        core = self._live()
        return int(lib.ggml_backend_buffer_get_alignment(core.ptr))

    @property
    def is_host(self) -> bool:
        core = self._live()
        return bool(lib.ggml_backend_buffer_is_host(core.ptr))

    @property
    def readonly(self) -> bool:
        core = self._live()
        return bool(lib.gbpy_buffer_is_readonly(core.h))

    @property
    def usage(self) -> Usage:
        """``"any"`` or ``"weights"``. A scheduler runs an operation on the device of its weights."""
        core = self._live()
        return _USAGE_NAME[lib.ggml_backend_buffer_get_usage(core.ptr)]

    @usage.setter
    def usage(self, usage: Usage) -> None:
        core = self._live()
        check(lib.ggml_backend_buffer_set_usage(core.ptr, usage_id(usage)), "Buffer.usage")

    def clear(self, value: int = 0) -> None:
        """Fills every byte with ``value``. Constants in the buffer keep their values.

        Inputs in it count as set. Results in it, and results of these inputs, must be computed again.
        """
        core = self._live()
        value = expect_int(value, "Buffer.clear: value")
        if not 0 <= value <= 255:
            raise InvalidArgumentError(f"Buffer.clear: value {value} is not a byte")
        status = lib.gbpy_clear(core.h, value)
        if status:
            fail(status)

    def changed(self) -> None:
        """Reports that weights in the buffer were written through arrays.

        The library cannot see writes such as ``w.numpy()[...] = ...``, or writes to the array that the
        buffer was made from. After this call it renews copies on devices, and data derived from them.
        :meth:`Tensor.set` reports its writes itself.
        """
        core = self._live()
        check(lib.ggml_backend_buffer_changed(core.ptr), "Buffer.changed")

    def place(self, tensor: Tensor, offset: int = 0) -> Tensor:
        """Places ``tensor`` at ``offset`` bytes from the start of the buffer. Returns the tensor.

        ``offset`` is a multiple of the element's alignment (4 for float32, at most 8). The tensor must
        have no memory yet, must not be a view, and must fit.
        """
        core = self._live()
        expect_tensor(tensor, "Buffer.place: tensor")
        pointer = tensor._live()
        size, offset = self.nbytes, expect_int(offset, "Buffer.place: offset")
        if not 0 <= offset <= size:
            raise InvalidArgumentError(f"Buffer.place: offset {offset} is outside of a buffer of {size} bytes")
        step = min(tensor.dtype.itemsize & -tensor.dtype.itemsize, 8)
        if offset % step:
            raise InvalidArgumentError(
                f"Buffer.place: {tensor.describe()} needs an offset that is a multiple of {step} bytes; {offset} is not"
            )
        if not lib.ggml_backend_buffer_get_base(core.ptr):
            raise InvalidArgumentError("Buffer.place: a buffer of several parts cannot hold a tensor directly")
        status = lib.gbpy_place(core.h, tensor._k, pointer, offset)
        if status:
            self._refuse(tensor, offset, size)
            fail(status, "Buffer.place")
        if lib.ggml_backend_buffer_get_usage(core.ptr) == lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS:
            tensor.context._live().weights.add(address(pointer))
        return tensor

    def _refuse(self, tensor: Tensor, offset: int, size: int) -> None:
        """Raises with the reason if the tensor cannot be placed for one of the usual reasons."""
        shown = tensor.describe()
        if tensor.view_of is not None:
            raise InvalidArgumentError(f"Buffer.place: {shown} is a view of {tensor.view_of.describe()}: place that")
        if tensor._p.data:
            raise StateError(f"Buffer.place: {shown} has memory already")
        need = self.type.nbytes_for(tensor)
        if offset + need > size:
            raise InvalidArgumentError(
                f"Buffer.place: {shown} takes {need} bytes; from offset {offset} on the buffer has {size - offset}"
            )

    def close(self) -> None:
        """Frees the memory (see the class). Closing twice is fine."""
        core = self._core
        if core is not None:
            lib.gbpy_close(core.h)
            self._core = None

    @property
    def closed(self) -> bool:
        return self._core is None or self._core.closed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Buffer) and self._core is not None and self._core == other._core

    def __hash__(self) -> int:
        return hash(self._core)

    def __len__(self) -> int:
        return self.nbytes

    def __repr__(self) -> str:
        try:
            self._live()
        except StateError:
            return "<Buffer closed>"
        flags = "".join([" host" if self.is_host else "", " read-only" if self.readonly else ""])
        return f"<Buffer {self.name!r} {self.nbytes} bytes usage={self.usage}{flags}>"
