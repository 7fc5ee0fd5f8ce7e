"""An interrupt at any instruction that opens, maps or writes files leaves no descriptor, mapping,
guard or file behind.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._base import files as _files
from ggml_backend._base import mapped
from ggml_backend._ffi import lib
from harness_interleave import Places, interrupt
from harness_scene import lost_by_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="descriptors and mappings are counted in /proc"),
]


class Everywhere(Places):
    """Interrupts at each instruction of the package."""

    def is_place(self, frame: FrameType, event: str) -> bool:
        return event == "opcode"


def held() -> tuple[list[str], bool]:
    """The descriptors of this process, and whether any mapped file is guarded (other tests may have left one)."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(f"{number}: {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:  # the descriptor of the folder itself
            continue
    return sorted(found), lib.gbpy_mapped_any()


def write_model(folder: Path) -> None:
    gb.gguf.Writer(folder / "new.gguf").add("name", "new").add_tensor("t", np.full(4000, 2, np.float32)).close()


def read_guarded(folder: Path) -> None:
    file = mapped.map_file(folder / "model.gguf")
    data = np.frombuffer(file, np.uint8)
    with mapped.reading(data):
        data.copy()


def refused(kind: type[Exception], read: Callable[[Path], object], path: Path) -> None:
    with contextlib.suppress(kind):
        read(path)
        raise AssertionError(f"{path} was read")


ACTS: dict[str, Callable[[Path], object]] = {
    "write a text": lambda folder: _files.write_text(folder / "text", "new" * 1000),
    "write a model": write_model,
    "read a text": lambda folder: _files.read_text(folder / "text"),
    "can it be written?": lambda folder: _files.can_write(folder / "text"),
    "map a file": lambda folder: mapped.map_file(folder / "model.gguf"),
    "read a mapped file": read_guarded,
    "open a model": lambda folder: gb.gguf.open(folder / "model.gguf").close(),
    "refuse a folder": lambda folder: refused(gb.errors.FileError, _files.read_text, folder),
    "refuse a pipe": lambda folder: refused(gb.errors.FileError, mapped.map_file, folder / "pipe"),
    "find no file": lambda folder: refused(FileNotFoundError, mapped.map_file, folder / "absent"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Disables callbacks of the garbage collector (hypothesis has one). Python ignores an interrupt
    in them, and pytest keeps their frames with open files."""
    (tmp_path / "text").write_text("old")
    os.mkfifo(tmp_path / "pipe")
    gb.gguf.Writer(tmp_path / "model.gguf").add("name", "x").add_tensor("w", np.ones(5000, np.float32)).close()
    gc.collect()
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield tmp_path
    gc.callbacks[:] = callbacks


def check(folder: Path, before: tuple[list[str], bool], where: str) -> None:
    if held() != before:
        gc.collect()  # a file and its metadata refer to each other
    assert held() == before, where
    assert str(folder) not in Path("/proc/self/maps").read_text(), where
    assert {f.name for f in folder.iterdir()} <= {"text", "model.gguf", "new.gguf", "pipe"}, where
    assert (folder / "text").read_text() in ("old", "new" * 1000), where
    if (folder / "new.gguf").exists():
        with gb.gguf.open(folder / "new.gguf") as file:
            assert (file.tensors["t"].numpy() == 2).all(), where


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="from 3.12 on Python does not trace the instructions of a call just entered"
)
@pytest.mark.parametrize("what", ACTS)
def test_an_interrupt_at_every_instruction(folder: Path, what: str) -> None:
    places, act, before = Everywhere(instructions=True), ACTS[what], held()
    act(folder)
    check(folder, before, "not interrupted")
    k = 1
    while True:
        try:
            reached = places.run(lambda: act(folder), k, interrupt)
        except KeyboardInterrupt:
            reached = True
        check(folder, before, f"instruction {k}, {places.where}")
        if not reached:
            break
        k += 1
    assert k > 20


def test_interrupts_at_random_times(folder: Path) -> None:
    chooser, before = random.Random(1), held()
    armed = False

    def fire(number: int, frame: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, fire)
    interrupted, end = 0, time.monotonic() + 1.5
    try:
        while time.monotonic() < end:
            act = ACTS[chooser.choice(list(ACTS))]
            try:
                try:
                    armed = True
                    signal.setitimer(signal.ITIMER_REAL, 10 ** chooser.uniform(-6, -3))
                    act(folder)
                finally:
                    armed = False
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            except SystemError as error:
                assert lost_by_python(error)
            check(folder, before, "at random")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert interrupted > 20
