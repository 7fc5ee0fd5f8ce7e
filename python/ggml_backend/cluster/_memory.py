"""Memory and graphs of a rank. Rank 0 numbers them. Every access is checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any

from .._base.errors import FileError, InvalidArgumentError, UnsupportedError, check
from .._base.errors.faults import message_of
from .._base.files import open_regular, replace_file
from .._base.handles import address
from .._ffi import ffi, lib
from ..backend.backend import Backend
from ..backend.buffer import Buffer
from ._messages import MessageError
from ._nodes import Graph

__all__ = ["Compiled", "Piece", "expect_supported", "fill_from_file", "keep"]

_PIECE = 16 << 20  # bytes read from a file at once


class Piece:
    """One allocation on a device of this rank."""

    __slots__ = (
        "_bytes", "_pointer", "_tensor", "backend", "base", "buffer", "host", "queue", "size", "spoilt", "weights",
    )  # fmt: skip

    def __init__(self, backend: Backend, queue: int, nbytes: int) -> None:
        self.backend = backend
        self.queue = queue  # the number of the device
        self.spoilt: Exception | None = None  # the reason why the contents are invalid, until the next read or write
        self.buffer: Buffer = backend.allocate(max(nbytes, 1))
        self.size = nbytes
        self.host = self.buffer.is_host
        self.weights = False
        core = self.buffer._live()
        self._pointer = core.ptr
        self.base = address(lib.ggml_backend_buffer_get_base(core.ptr))
        self._tensor = tensor = ffi.new("struct ggml_tensor *")
        tensor.type = lib.GGML_TYPE_I8
        tensor.ne = (max(nbytes, 1), 1, 1, 1)
        tensor.nb = (1, max(nbytes, 1), max(nbytes, 1), max(nbytes, 1))
        tensor.buffer, tensor.data = core.ptr, ffi.cast("void *", self.base)
        self._bytes = memoryview(ffi.buffer(tensor.data, max(nbytes, 1))) if self.host else memoryview(b"")

    @property
    def pointer(self) -> Any:
        return self._pointer

    def expect_inside(self, offset: int, nbytes: int) -> None:
        if offset > self.size or nbytes > self.size - offset:
            raise MessageError(f"{nbytes} bytes at {offset} are outside of a memory of {self.size} bytes")

    def mark_weights(self) -> None:
        if not self.weights:
            self.buffer.usage = "weights"
            self.weights = True

    def expect_whole(self) -> None:
        """Raises, once, the reason why the contents are invalid."""
        spoilt, self.spoilt = self.spoilt, None
        if spoilt is not None:
            raise spoilt

    def written(self, offset: int, nbytes: int) -> None:
        if offset == 0 and nbytes == self.size:
            self.spoilt = None

    def read(self, offset: int, nbytes: int) -> memoryview:
        """The memory itself on the host, else a copy."""
        self.expect_inside(offset, nbytes)
        if self.host:
            return self._bytes[offset : offset + nbytes]
        copy = bytearray(nbytes)
        check(lib.ggml_backend_tensor_get(self._tensor, ffi.from_buffer(copy), offset, nbytes))
        return memoryview(copy)

    def write(self, offset: int, data: memoryview) -> None:
        self.expect_inside(offset, len(data))
        if len(data):
            check(lib.ggml_backend_tensor_set(self._tensor, ffi.from_buffer(data), offset, len(data)))
            self.written(offset, len(data))

    def target(self, offset: int, nbytes: int) -> memoryview | None:
        """A host buffer that can receive bytes directly; None if they need a copy."""
        self.expect_inside(offset, nbytes)
        if not self.host:
            return None
        lib.ggml_backend_buffer_changed(self._pointer)
        return self._bytes[offset : offset + nbytes]

    def fill(self, value: int) -> None:
        self.buffer.clear(value)
        self.spoilt = None


def expect_supported(backend: Any, graph: Graph) -> list[Any]:
    """The nodes that need computation.

    Raises UnsupportedError for a node that the backend does not compute, or that no builder could have made.
    """
    found = [graph.nodes[i] for i in range(graph.ptr.n_nodes)]
    found = [node for node in found if lib.gbpy_computes(node) and lib.ggml_nelements(node)]
    for node in found:
        reason = lib.ggml_backend_unsupported_reason(backend, node)
        if reason:
            name = ffi.string(lib.ggml_op_desc(node)).decode()
            raise UnsupportedError(f"{name}: {message_of(reason)}")
    return found


class Compiled:
    """A graph that a device of this rank has prepared."""

    __slots__ = ("_backend", "_graph", "_plan", "_ptr", "_written", "queue")

    def __init__(self, backend: Backend, queue: int, graph: Graph) -> None:
        self._backend, self._graph = backend, graph
        self._written: list[tuple[int, int]] | None = None
        self.queue = queue  # the number of the device
        core = backend._live()
        self._ptr = core.ptr
        for node in expect_supported(core.ptr, graph):
            _expect_memory(node)
        self._plan = lib.ggml_backend_graph_plan_create(core.ptr, graph.ptr)

    def run(self) -> None:
        if self._plan:
            check(lib.ggml_backend_graph_plan_compute(self._ptr, self._plan))
        else:
            graph = self._graph
            lib.ggml_clear_error()
            if not lib.ggml_backend_graph_compute(self._ptr, graph.ptr):
                check(lib.ggml_last_status() or lib.GGML_STATUS_FAILED)
        check(lib.ggml_backend_synchronize(self._ptr))

    @property
    def written(self) -> list[tuple[int, int]]:
        """The address ranges that a run changes: results of nodes."""
        if self._written is None:
            graph = self._graph
            nodes = (graph.nodes[i] for i in range(graph.ptr.n_nodes))
            found = ((address(node.data), lib.ggml_nbytes(node)) for node in nodes if node.data)
            self._written = [(at, at + nbytes) for at, nbytes in found if nbytes]
        return self._written

    def close(self) -> None:
        plan, self._plan = self._plan, None
        if plan:
            lib.ggml_backend_graph_plan_free(self._ptr, plan)


def _expect_memory(node: Any) -> None:
    for tensor in (node, *(s for s in node.src if s)):
        if not tensor.data and lib.ggml_nbytes(tensor):
            raise MessageError("nodes: a source or result has no memory")


# --------------------------------------------------------------------------------------------------------------- files


def fill_from_file(piece: Piece, offset: int, nbytes: int, path: str, at: int, digest: bytes) -> None:
    """Reads bytes of a file into memory.

    Raises FileError if the file differs or cannot be read, and FileNotFoundError if it does not exist.
    """
    piece.expect_inside(offset, nbytes)
    if "\0" in path:
        raise InvalidArgumentError("a path holds NUL")
    found = hashlib.blake2b(digest_size=32)
    for data in _pieces_of(path, at, nbytes):
        found.update(data)
        piece.write(offset, memoryview(data))
        offset += len(data)
    if found.digest() != digest:
        raise FileError(f"{path}: {nbytes} bytes at {at} differ from those of rank 0: the files differ")


def _pieces_of(path: str, at: int, nbytes: int) -> Iterator[bytes]:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if at > size or nbytes > size - at:
                raise FileError(
                    f"{path}: the file has {size} bytes, rank 0 needs {nbytes} bytes at {at}: the files differ"
                )
            file.seek(at)
            while nbytes:
                data = file.read(min(nbytes, _PIECE))
                if not data:
                    raise FileError(f"{path}: the file was truncated while it was read")
                yield data
                nbytes -= len(data)
    except NotADirectoryError as error:  # a parent of the path is a file
        raise FileNotFoundError(str(error)) from None
    except (FileNotFoundError, FileError):
        raise
    except OSError as error:
        raise FileError(f"{path}: reading failed: {error.strerror or error}") from None


def keep(piece: Piece, offset: int, nbytes: int, folder: str, digest: bytes) -> None:
    """Stores bytes of memory in the cache under their hash."""
    data = piece.read(offset, nbytes)
    if hashlib.blake2b(data, digest_size=32).digest() != digest:
        raise FileError("the hash of the received bytes differs from that of the sent bytes")
    try:
        os.makedirs(folder, exist_ok=True)
        replace_file(os.path.join(folder, digest.hex()), lambda file: file.write(data))
    except OSError as error:
        raise FileError(
            f"the cache {folder} cannot keep {nbytes} bytes of weights: {error.strerror or error}: free some"
            " disk space, or give another folder or None in gb.cluster.start(cache=...)"
        ) from None
