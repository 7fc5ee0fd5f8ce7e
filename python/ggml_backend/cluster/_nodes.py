"""Nodes as messages. The receiver checks them and makes its own graph.

C writes and reads the messages (``c/src/tensor/nodes.h``), with the code for graph files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._base.errors import InvalidArgumentError, check, raise_last
from .._base.handles import owned
from .._ffi import ffi, lib
from ._messages import MessageError

__all__ = ["Base", "Graph", "graph_of", "pack"]


def pack(nodes: Sequence[Any], device: Any) -> bytes:
    """The message of C nodes.

    device: handle of the device with the memory of the nodes. NULL for a question: its nodes have
        no memory and no names
    """
    made = owned(ffi.new("struct gbpy_bytes *"), lib.gbpy_bytes_free)
    check(lib.gbpy_nodes_write(device, ffi.new("struct ggml_tensor *[]", list(nodes) or 1), len(nodes), made))
    return bytes(ffi.buffer(made.data, made.size))


Base = Callable[[int, bool], tuple[Any, int, int]]
"""A function from the number of a memory, and whether it holds weights, to its C buffer, address
and size. MessageError for an unknown number."""


class Graph:
    """A C graph made from a message. ``keep``: the objects that it uses."""

    __slots__ = ("_made", "keep", "ptr")

    def __init__(self, made: Any) -> None:
        self._made = made
        self.ptr = lib.gbpy_nodes_graph(made)
        self.keep: tuple[Any, ...] = ()

    @property
    def nodes(self) -> Any:
        return self.ptr.nodes


def graph_of(data: memoryview, base: Base | None) -> Graph:
    """The graph that a message describes.

    Raises MessageError for nodes that no builder could have made in these memories.

    base: None for a question about nodes, which have no memory
    """
    made = lib.gbpy_nodes_read(ffi.from_buffer(data), len(data))
    try:
        if not made:
            raise_last()
        made = owned(made, lib.gbpy_nodes_free)
        weights = ffi.new("bool *")
        for i in range(lib.gbpy_nodes_n_memories(made) if base is not None else 0):
            number = lib.gbpy_nodes_memory(made, i, weights)
            buffer, begin, size = base(number, weights[0])  # type: ignore[misc]
            lib.gbpy_nodes_set_memory(made, i, buffer, ffi.cast("void *", begin), size)
        if base is not None:
            check(lib.gbpy_nodes_bind(made))
    except InvalidArgumentError as error:
        raise MessageError(str(error)) from None
    return Graph(made)
