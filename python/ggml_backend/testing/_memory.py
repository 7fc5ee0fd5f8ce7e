"""Checks of device memory: data round trips, isolation of buffers, and freeing."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from .._ffi import ffi, lib
from ..backend.backend import Backend
from ..backend.buffer import Buffer
from ..dtypes import dtypes, int8
from ..tensor.context import Context
from ..tensor.tensor import Tensor
from ._inputs import Array, In, in_bytes, values_of
from ._operators import Wrong

__all__ = ["CHECKS"]

Check = Callable[[Backend, Backend, np.random.Generator], None]
_LARGE = 4 << 20
_OWN_MEMORY = ("RssAnon:", "RssShmem:", "VmSwap:")  # lines of /proc/self/status, in KiB


def _equal(got: Array, want: Array, what: str) -> None:
    a, b = (np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8) for x in (got, want))
    if a.size != b.size:
        raise Wrong(f"{what}: {in_bytes(a.size)} instead of {b.size}")
    wrong = np.flatnonzero(a != b)
    if wrong.size:
        i = int(wrong[0])
        raise Wrong(f"{what}: {wrong.size} of {in_bytes(a.size)} differ, the first at {i}: {a[i]} instead of {b[i]}")


def _bytes(ctx: Context, backend: Backend, n: int) -> tuple[Buffer, Tensor]:
    buffer = backend.allocate(n)
    return buffer, buffer.place(ctx.tensor((n,), int8))


def _random(rng: np.random.Generator, n: int) -> Array:
    return rng.integers(-128, 128, n).astype(np.int8)


def _sizes(backend: Backend, cpu: Backend, rng: np.random.Generator) -> None:
    """Buffers of 0 bytes, 1 byte, and odd sizes."""
    for n in (0, 1, backend.alignment - 1, backend.alignment, backend.alignment + 1, 4097):
        with Context() as ctx, backend.allocate(n) as buffer:
            if buffer.nbytes < n:
                raise Wrong(f"a buffer of {in_bytes(n)} has only {buffer.nbytes}")
            t = buffer.place(ctx.tensor((n,), int8))
            data = _random(rng, n)
            t.set(data)
            _equal(t.numpy(copy=True), data, f"a buffer of {in_bytes(n)}")


def _alignment(backend: Backend, cpu: Backend, rng: np.random.Generator) -> None:
    """Addresses are multiples of the reported alignment."""
    step = backend.alignment
    if step < 1 or step & (step - 1):
        raise Wrong(f"the alignment {step} is no power of two")
    held = []
    for n in (1, 3, 100, 4096, 1):
        buffer = backend.allocate(n)
        held.append(buffer)
        core = buffer._live()
        base = int(ffi.cast("uintptr_t", lib.ggml_backend_buffer_get_base(core.ptr)))
        if base % step:
            raise Wrong(f"a buffer of {in_bytes(n)} begins at {base:#x}, no multiple of {step}")


def _every_dtype(backend: Backend, cpu: Backend, rng: np.random.Generator) -> None:
    """Data written in any dtype is read back unchanged."""
    for element in dtypes.values():
        with Context() as ctx:
            t = ctx.tensor((3, 256), element)
            array, _ = values_of(In((3, 256), element.name), rng)
            ctx.allocate(backend)
            t.set(array)
            _equal(t.numpy(copy=True), array, element.name)


def _parts(backend: Backend, cpu: Backend, rng: np.random.Generator) -> None:
    """Parts of a tensor are written and read at any offset."""
    n = 1000
    with Context() as ctx:
        buffer, t = _bytes(ctx, backend, n)
        image = _random(rng, n)
        t.set(image)
        for _ in range(20):
            at = int(rng.integers(0, n))
            part = _random(rng, int(rng.integers(0, n - at + 1)))
            t.set(part, offset=at)
            image[at : at + part.size] = part
            low, high = sorted(int(i) for i in rng.integers(0, n + 1, 2))
            _equal(t[low:high].numpy(copy=True), image[low:high], f"bytes {low} to {high}")
        _equal(t.numpy(copy=True), image, "the whole tensor after writes of parts")
        del buffer


def _neighbours(backend: Backend, cpu: Backend, rng: np.random.Generator) -> None:
    """Tensors of one buffer do not touch each other."""
    step = backend.alignment
    with Context() as ctx, backend.allocate(64 * step) as buffer:
        tensors = [buffer.place(ctx.tensor((step,), int8), i * step) for i in range(64)]
        images = [_random(rng, step) for _ in tensors]
        for i in rng.permutation(64):
            tensors[i].set(images[i])
        for i in rng.permutation(64):
            _equal(tensors[i].numpy(copy=True), images[i], f"tensor {i} of 64 side by side")


def _clear(backend: Backend, cpu: Backend, rng: np.random.Generator) -> None:
    """``clear`` fills the whole buffer and no other buffer."""
    with Context() as ctx:
        other, kept = _bytes(ctx, backend, 777)
        image = _random(rng, 777)
        kept.set(image)
        buffer, t = _bytes(ctx, backend, 1001)
        for value in (0, 255, 0x5A, 1):
            buffer.clear(value)
            _equal(t.numpy(copy=True), np.full(1001, value, np.uint8), f"clear({value})")
        _equal(kept.numpy(copy=True), image, "another buffer after clear")
        del other


def _copies(backend: Backend, cpu: Backend, rng: np.random.Generator) -> None:
    """Copies of tensors to the device, on it and from it."""
    for n in (1, 300, 100_003):
        with Context() as ctx:
            held = [_bytes(ctx, b, n) for b in (cpu, backend, backend, cpu)]
            image = _random(rng, n)
            first, *others = (t for _, t in held)
            first.set(image)
            before, ways = first, ("to the device", "on the device", "from the device")
            for t, way in zip(others, ways, strict=True):
                t.copy_from(before)
                _equal(t.numpy(copy=True), image, f"{in_bytes(n)} copied {way}")
                _equal(before.numpy(copy=True), image, f"the source of {in_bytes(n)} copied {way}")
                before = t


def _too_large(backend: Backend, cpu: Backend, rng: np.random.Generator) -> None:
    """A buffer larger than the limit is an error."""
    largest = backend.max_nbytes
    size = largest + 1 if largest < 1 << 60 else 1 << 60
    try:
        buffer = backend.allocate(size)
    except MemoryError:  # AllocationError is one
        return
    buffer.close()
    raise Wrong(f"a buffer of {in_bytes(size)} was allocated; the limit is {largest}")


def _resident() -> int | None:
    """Bytes of private memory of this process, resident or swapped out. None if the system does not report it.

    Garbage and free heap memory return to the system first. Otherwise leaked memory could reuse
    them and stay hidden.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # only in glibc
    with suppress(OSError, ValueError, KeyError):
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        kib = {words[0]: int(words[1]) for words in lines if words and words[0] in _OWN_MEMORY}
        return sum(kib[name] for name in _OWN_MEMORY) << 10
    return None


def _returned(backend: Backend, cpu: Backend, rng: np.random.Generator) -> None:
    """Closed buffers free their memory: allocates more than the device has, one buffer at a
    time."""
    size, count = min(_LARGE, backend.max_nbytes), 48
    before = _resident()
    for i in range(count):
        try:
            buffer = backend.allocate(size)
        except MemoryError as error:
            raise Wrong(f"buffer {i} of {count}, each of {size} bytes and closed before the next: {error}") from None
        buffer.clear(i)
        buffer.close()
    after = _resident()
    if before is not None and after is not None and after - before > size * count // 2:
        raise Wrong(f"{(after - before) >> 20} MiB are still allocated after {count} closed buffers of {size} bytes")


def _closed(backend: Backend, cpu: Backend, rng: np.random.Generator) -> None:
    """Buffers with tensors close in any order, and the other buffers keep their data."""
    with Context() as ctx:
        held = [_bytes(ctx, backend, 100 + i) for i in range(12)]
        images = [_random(rng, 100 + i) for i in range(12)]
        for (_, t), image in zip(held, images, strict=True):
            t.set(image)
        left = list(range(12))
        for i in rng.permutation(12)[:11]:
            held[i][0].close()
            left.remove(int(i))
            for k in left:
                _equal(held[k][1].numpy(copy=True), images[k], "a buffer after others were closed")


def _named() -> Iterator[tuple[str, Check]]:
    for check in (
        _sizes,
        _alignment,
        _every_dtype,
        _parts,
        _neighbours,
        _clear,
        _copies,
        _too_large,
        _returned,
        _closed,
    ):
        yield check.__name__.strip("_"), check


CHECKS: dict[str, Check] = dict(_named())
"""The checks by name. A check raises :class:`Wrong`."""
