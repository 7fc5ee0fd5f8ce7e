"""CuPy: NumPy's functions on NVIDIA and AMD devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import array_api_compat.cupy as compat
import cupy
import numpy as np

from ..._base.errors import InvalidArgumentError
from .._nodes import Node, byte_layout
from .library import Mark, NumPyLike, Step


class CuPy(NumPyLike):
    """CuPy with memory of its pool and a private stream."""

    name = "cupy"
    host = False
    has_queue = True
    has_events = True

    def __init__(self, device: str | None, memory: str | None) -> None:
        super().__init__(cupy, compat)
        kind, _, number = (device or "cuda:0").partition(":")
        if kind != "cuda" or not (number or "0").isdigit():
            raise InvalidArgumentError(
                f"ARRAY: device of library='cupy' must be 'cuda:0', 'cuda:1', ..., not {device!r}"
            )
        if memory == "host":
            raise InvalidArgumentError(f"ARRAY: memory='host' needs device='cpu', not {device!r}")
        self.device = f"cuda:{number or 0}"
        self._device = cupy.cuda.Device(int(number or 0))
        with self._device:
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self._wrong = cupy.zeros((), bool)
        self._checks = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with self._device, self.stream:
            yield

    def allocate(self, nbytes: int) -> Any:
        with self.running():
            return cupy.empty(max(nbytes, 1), np.uint8)

    def view(self, memory: Any, offset: int, node: Node, writable: bool) -> Any:
        shape, strides = byte_layout(node) if node.dtype.is_quantized else (node.shape, node.strides)
        return cupy.ndarray(shape, node.dtype.numpy, memptr=memory.data + offset, strides=strides)

    @staticmethod
    def address(array: Any) -> int:
        memory = array.data
        return int(memory.ptr)

    def write(self, memory: Any, offset: int, data: memoryview) -> None:
        with self.running():
            memory[offset : offset + len(data)].set(np.frombuffer(data, np.uint8))
            self.stream.synchronize()  # the caller may change its bytes after this call

    def read(self, memory: Any, offset: int, data: memoryview) -> None:
        with self.running():
            np.frombuffer(data, np.uint8)[:] = memory[offset : offset + len(data)].get()

    def fill(self, memory: Any, value: int) -> None:
        with self.running():
            memory.fill(value)

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> bool:
        if not isinstance(source, cupy.ndarray):
            return False
        with self.running():
            to[to_offset : to_offset + nbytes] = source[offset : offset + nbytes]
        return True

    def take(self, table: Any, ids: Any, out: Any) -> Step:
        check, last = self.check_ids(ids, len(table)), max(len(table) - 1, 0)

        def rows() -> None:
            check()
            cupy.take(table, ids.clip(0, last), axis=0, out=out)

        return rows

    def put(self, table: Any, ids: Any, rows: Any) -> Step:
        check, last = self.check_ids(ids, len(table)), max(len(table) - 1, 0)

        def write() -> None:
            check()
            table[ids.clip(0, last)] = rows

        return write

    def check_ids(self, ids: Any, n: int) -> Step:
        """Records a wrong index on the device, without waiting. ``synchronize`` raises the
        error."""
        self._checks = True

        def check() -> None:
            cupy.logical_or(self._wrong, ((ids < 0) | (ids >= n)).any(), out=self._wrong)

        return check

    def submit(self, work: Callable[[], None]) -> None:
        with self.running():
            work()

    def synchronize(self) -> None:
        self.stream.synchronize()
        if self._checks and bool(self._wrong):
            with self.running():
                self._wrong.fill(False)
            raise InvalidArgumentError("GET_ROWS or SET_ROWS: an index is out of range")

    def event(self) -> Mark:
        with self._device:
            return Mark(self, cupy.cuda.Event(disable_timing=True))
