"""Memory of devices that is filled from files which the device reads itself, perhaps on another host."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from .._ffi import ffi, lib
from .state import Memory, object_of

__all__ = ["FileFill", "digest_of", "file_fill"]


def digest_of(data: Any) -> bytes:
    """What tells one content from another: 32 bytes."""
    return hashlib.blake2b(data, digest_size=32).digest()


class FileFill:
    """A device that was asked to read a file. ``wait()``: it has; False: there is no such file for it, and the bytes
    must be sent. ``keep()``: they were, and may be kept for the next time."""

    __slots__ = ("__weakref__", "keep", "wait")

    def __init__(self, wait: Callable[[], bool], keep: Callable[[], object]) -> None:
        self.wait = wait
        self.keep = keep


def file_fill(pointer: Any, path: str, at: int, data: Any) -> FileFill | None:
    """Asks the device of a tensor of C to fill it with the bytes of a file from ``at`` on, which are ``data``. None: it
    does not read files."""
    handle, offset = ffi.new("void **"), ffi.new("size_t *")
    if not lib.gbpy_device_place(pointer, handle, offset):
        return None
    memory = object_of(handle[0], Memory)
    ask = getattr(memory.state.device, "fill_from_file", None)
    if ask is None:
        return None
    fill: FileFill = ask(memory.content, int(offset[0]), path, at, len(data), digest_of(data))
    return fill
