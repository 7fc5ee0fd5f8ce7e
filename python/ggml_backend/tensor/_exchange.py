"""Exchange of memory with arrays of other libraries by DLPack (``python/core/dlpack.h``)."""

from __future__ import annotations

from mmap import mmap
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .._base.errors import InvalidArgumentError, StateError, raise_as, raise_last
from .._base.errors.faults import last_message, spoken
from .._base.errors.messages import kind_of
from .._base.mapped import watch_of
from .._base.signals import INTERRUPTED, raise_interrupt
from .._ffi import ffi, lib
from ._arrays import (
    CPU,
    ask,
    described,
    elements_of,
    gives_capsules,
    is_elsewhere,
    is_masked,
    is_mutable,
    read_tensor,
    refuse,
    take_array,
)

if TYPE_CHECKING:
    from .tensor import Tensor

__all__ = ["buffer_of", "give", "not_shared", "share", "shortest_array"]

_NOT_ON_HOST: int = lib.GBPY_NOT_ON_HOST
_IS_READONLY: int = lib.GBPY_IS_READONLY
_FOR_NUMPY: int = lib.GBPY_FOR_NUMPY
_NOT_SHARED: int = lib.GBPY_NOT_SHARED
_found_type: Any = ffi.typeof("struct ggml_tensor *[1]")
_WHAT = ffi.new("char[]", b"from_dlpack")
_NULL = ffi.NULL
_new = ffi.new
_give = lib.gbpy_dlpack_give
_share = lib.gbpy_dlpack_share
_share_array = lib.gbpy_share_array


class _Given:
    """Holds a capsule for ``np.from_dlpack``."""

    __slots__ = ("_capsule",)

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule


_BY_CAPSULE = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # older versions make read-only arrays of capsules


def shortest_array(keeping: Any, pointer: Any) -> np.ndarray[Any, Any] | None:
    """The fast path to an array over a tensor's memory; None if another path is needed."""
    if not _BY_CAPSULE:
        return None
    found: list[Any] = []
    status = _give(keeping, pointer, _FOR_NUMPY, id(found), b"it")
    if status:
        if lib.gbpy_outcome(status) == INTERRUPTED:  # while waiting for a run; another path would report an error
            raise_interrupt()
        return None
    array: np.ndarray[Any, Any] = np.from_dlpack(_Given(found[0]))
    return array


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(v, (int, np.integer)) for v in value)


def give(t: Tensor, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """The result of ``Tensor.__dlpack__``. Raises BufferError if the tensor cannot be exported."""
    if max_version is not None and not _is_pair(max_version):
        raise TypeError(f"DLPack: max_version must be None or (major, minor), not {max_version!r:.60}")
    if dl_device is not None and not _is_pair(dl_device):
        raise TypeError(f"DLPack: dl_device must be None or (kind, number), not {dl_device!r:.60}")
    if copy is not None and not isinstance(copy, (bool, np.bool_)):
        raise TypeError(f"DLPack: copy must be None, True or False, not {copy!r:.60}")
    p = t._live()
    if stream is not None:
        raise InvalidArgumentError(f"DLPack: host memory has no streams: stream must be None, not {stream!r:.60}")
    if dl_device is not None and tuple(dl_device) != CPU:
        raise BufferError(f"{t.describe()} is given in host memory, (1, 0), not in {tuple(dl_device)}")
    versioned = max_version is not None and max_version[0] >= 1
    if copy:
        return _copy_of(t, versioned)
    found: list[Any] = []
    status = _give(t._k, p, versioned, id(found), b"it")
    if not status:
        return found[0]
    if status == _NOT_ON_HOST:
        if dl_device is not None and copy is None:
            return _copy_of(t, versioned)
        how = "copy=False cannot be" if copy is False else "numpy() and np.from_dlpack(t, device='cpu') make a copy"
        raise BufferError(f"{t.describe()} is in device memory: {how}")
    if status == _IS_READONLY:
        reason = "is read-only, which DLPack cannot say before its version 1.0; numpy(copy=True) is an array to write"
        raise BufferError(f"{t.describe()} {reason}")
    if status == _NOT_SHARED:
        raise _no_elements(t)
    raise_last(t.describe(), status)


def _no_elements(t: Tensor) -> BufferError:
    if t.dtype.is_quantized:
        return BufferError(f"DLPack has no {t.dtype.name}; numpy() has the bytes of {t.describe()}")
    return BufferError(f"DLPack cannot express the strides of {t.describe()}, {t.strides} bytes; numpy() can")


def _copy_of(t: Tensor, versioned: bool) -> Any:
    if t.dtype.is_quantized:
        raise _no_elements(t)
    array = read_tensor(t._k, t._live(), t.describe)
    found: list[Any] = []
    status = lib.gbpy_dlpack_give_copy(described(array, t.dtype, "DLPack"), versioned, id(array), id(found))
    if status:
        raise_last(t.describe(), status)
    return found[0]


_WRITABLE = 1  # inspect.BufferFlags.WRITABLE


def buffer_of(t: Tensor, flags: int) -> memoryview:
    """The result of ``Tensor.__buffer__``.

    NumPy tries it before ``__array__``. If it raises, NumPy uses ``__array__`` with the dtype that it
    needs.
    """
    dtype = t.dtype
    if dtype.is_quantized or dtype.name == "bfloat16":
        raise BufferError(f"a buffer has no {dtype.name}; memoryview(t.numpy()) has the bytes of {t.describe()}")
    try:
        array = t.numpy(copy=False)
    except StateError as error:
        raise BufferError(str(error)) from error
    if flags & _WRITABLE and not array.flags.writeable:
        raise BufferError(f"{t.describe()} is read-only")
    return array.data


def share(context: Any, x: Any, name: bytes | None, usage: int, copy: bool | None) -> Any:
    """A ``ggml_tensor`` over the memory of an array. ``context`` is a context handle.

    None if no tensor has the layout of the array (:func:`not_shared` raises the reason), or if the array
    is in device memory and ``copy`` is None.
    """
    found = _new(_found_type)
    label = _NULL if name is None else name
    is_numpys = isinstance(x, np.ndarray)
    watch = watch_of(x) if (x.base is not None if is_numpys else isinstance(x, (memoryview, mmap))) else None
    if is_masked(x):
        elements_of(x, "from_dlpack")  # raises the exact error
    if copy is False and not is_numpys and not (hasattr(x, "__dlpack__") or _has_memory(x)):
        take_array(x)  # may raise a more exact error
        raise InvalidArgumentError(f"from_dlpack: {kind_of(x)} has no memory to share; copy=None copies its values")
    also = 0 if watch is None else id(watch)
    by_capsule = gives_capsules(x)
    if copy is None and by_capsule and not is_numpys and is_elsewhere(x):
        return None
    if not by_capsule:
        array, owner = take_array(x)
        status = _share_array(context, array, id(owner), also, usage, label, found, _WHAT)
    else:
        capsule = ask(x, "from_dlpack")
        status = _share(context, id(capsule), is_mutable(x), also, usage, label, found, _WHAT)
    if not status:
        return found[0]
    if status == _NOT_SHARED or (status == _NOT_ON_HOST and copy is None):
        return None
    refuse(status, x)


def _has_memory(x: Any) -> bool:
    """True if an object without ``__dlpack__`` exposes its memory.

    A list, or an object that only has ``__array__``, does not.
    """
    if any(hasattr(x, name) for name in ("__array_interface__", "__array_struct__")):
        return True
    try:
        memoryview(x)
    except (TypeError, BufferError):
        return False
    return True


def not_shared() -> NoReturn:
    """Raises the reason for which :func:`share` returned None."""
    reason = spoken(last_message())
    raise_as(lib.GGML_STATUS_INVALID_ARGUMENT, f"{reason}; copy=True gives the tensor memory of its own")
