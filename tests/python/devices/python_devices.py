"""Devices written in Python, for the tests of this folder."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb

FUNCTIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


class Host(gb.devices.Device):
    """Elementwise operators on host memory. ``odd`` names its fault."""

    def __init__(self, odd: str = "") -> None:
        self.odd = odd
        self.computed: list[str] = []

    @gb.devices.op("add", "sub", "mul", "div")
    def elements(self, node: gb.devices.Node, out: Any, a: Any, b: Any) -> Any:
        self.computed.append(node.name)
        if self.odd:
            return getattr(self, f"odd_{self.odd}")(out, a)
        FUNCTIONS[node.op](a, b, out=out)
        return None

    @gb.devices.op("scale")
    def scale(self, node: gb.devices.Node, out: Any, a: Any) -> None:
        np.multiply(a, np.float32(node.params["s"]), out=out)

    def odd_raise(self, out: Any, a: Any) -> None:
        raise ZeroDivisionError("on purpose")

    def odd_raise_quietly(self, out: Any, a: Any) -> None:
        raise KeyboardInterrupt

    def odd_shape(self, out: Any, a: Any) -> Any:
        return np.zeros((1,), np.float32)

    def odd_list(self, out: Any, a: Any) -> Any:
        return [1.0]

    def odd_complex(self, out: Any, a: Any) -> Any:
        return np.zeros(out.shape, np.complex128)

    def odd_write_source(self, out: Any, a: Any) -> None:
        a[...] = 0

    def odd_write_outside(self, out: Any, a: Any) -> None:
        out[10**9] = 1

    def odd_sleep(self, out: Any, a: Any) -> None:
        time.sleep(60)


class Box:
    """Private memory of a device, whose bytes the library moves."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = np.full(max(nbytes, 1), 0xFF, np.uint8)
        self.copied = 0

    def write(self, offset: int, data: memoryview) -> None:
        self.bytes[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def read(self, offset: int, data: memoryview) -> None:
        np.frombuffer(data, np.uint8)[:] = self.bytes[offset : offset + len(data)]

    def fill(self, value: int) -> None:
        self.bytes[:] = value

    def copy_from(self, offset: int, source: Any, at: int, nbytes: int) -> bool:
        if not isinstance(source, Box):
            return False
        self.copied += 1
        self.bytes[offset : offset + nbytes] = source.bytes[at : at + nbytes]
        return True


class Own(Host):
    """``Host`` with its own memory."""

    memory = "own"
    alignment = 32

    def __init__(self, odd: str = "", alloc: str = "") -> None:
        super().__init__(odd)
        self.odd_alloc = alloc
        self.boxes: list[Box] = []

    def allocate(self, nbytes: int) -> Any:
        if self.odd_alloc == "none":
            return None
        if self.odd_alloc == "full":
            raise MemoryError("the box is full")
        self.boxes.append(Box(nbytes))
        return self.boxes[-1]

    def array(self, memory: Any, offset: int, node: gb.devices.Node, writable: bool) -> Any:
        return super().array(memory.bytes, offset, node, writable)


class Mark:
    """An event in the queue of a device."""

    def __init__(self, device: Queued) -> None:
        self.device = device
        self.done = threading.Event()
        self.done.set()

    def record(self) -> None:
        self.done = done = threading.Event()
        self.device.submit(done.set)

    def wait(self, device: Queued) -> None:
        device.submit(self.done.wait)  # type: ignore[arg-type]

    def synchronize(self) -> None:
        self.done.wait()


class Queued(Own):
    """Computes on its own thread, with a delay that shows each missing wait."""

    def __init__(self, odd: str = "", delay: float = 0.001) -> None:
        super().__init__(odd)
        self.delay = delay
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            time.sleep(self.delay)
            job()

    def submit(self, work: Callable[[], None]) -> None:
        self.jobs.put(work)

    def synchronize(self) -> None:
        done = threading.Event()
        self.jobs.put(done.set)
        done.wait()

    def event(self) -> Mark:
        return Mark(self)

    def close(self) -> None:
        self.jobs.put(None)


class HostQueued(Queued):
    """``Queued`` with host memory, which the CPU reads directly."""

    memory = "host"
    alignment = 64

    def allocate(self, nbytes: int) -> Any:
        return gb.devices.Device.allocate(self, nbytes)

    def array(self, memory: Any, offset: int, node: gb.devices.Node, writable: bool) -> Any:
        return gb.devices.Device.array(self, memory, offset, node, writable)


def notes_of(error: BaseException) -> list[str]:
    """The notes of an exception. Skips the test on Python 3.10, which has no notes."""
    if sys.version_info < (3, 11):
        pytest.skip("exceptions have notes from Python 3.11 on")
    return list(error.__notes__)


for _name, _kind in {"PYHOST": Host, "PYOWN": Own, "PYQUEUE": Queued, "PYHOSTQUEUE": HostQueued}.items():
    gb.devices.register_device(_name, _kind, replace=True)

NAMES = ("PYHOST", "PYOWN", "PYQUEUE", "PYHOSTQUEUE")
