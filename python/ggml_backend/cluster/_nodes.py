"""Nodes as messages: what one rank wants computed, in a form that another one checks and makes its own graph of.

As in graph files (``c/src/tensor/graph_file.c``) tensors are numbered, name their sources by number, and hold no
addresses and no functions of a program. Where a file has the data of a leaf, a message says where its bytes are: a
number of a memory, and an offset there. ::

    u32 tensors   u32 nodes
    tensor    u32 type, op, flags; i32 dimensions, root; u64 offset in the root; 4 x i64 ne; 4 x u64 nb;
              u64 memory, offset; parameters; name; 10 x i32 sources
    node      u32 the number of its tensor, in the order of computing

Roots and sources come before those that name them. A tensor that is not among the nodes is a leaf. Flags say what is in
memory for weights, and which results need not be stored, so that the same nodes are computed together here and there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from .._core.handles import address
from .._ffi import ffi, lib
from ..dtypes import dtype_of_id
from ._messages import MessageError

__all__ = ["Place", "graph_of", "pack"]

MAX_TENSORS = 1 << 20
_WEIGHTS, _LEAVES_OUT = 1, 2
_HEAD = struct.Struct("<II")
_TENSOR = struct.Struct("<IIIiiQ4q4QQQ64s64s10i")
_NONE: int = lib.GGML_OP_NONE
_TYPE = "struct ggml_tensor"
_N_OPS: int = lib.GGML_OP_COUNT
_CUSTOM = frozenset((*range(lib.GGML_OP_MAP_UNARY, lib.GGML_OP_MAP_CUSTOM3 + 1), lib.GGML_OP_CUSTOM))
"""Operators whose parameters are addresses."""
_LIMIT = 1 << 46  # of a size, a stride and an extent: more than a memory has, and no sum overflows

Place = Callable[[Any], tuple[int, int]]
"""Where the bytes of a tensor of C are: the number of a memory and an offset."""


class _Packer:
    def __init__(self, place: Place | None, named: bool) -> None:
        self.place = place
        self.named = named
        self.numbers: dict[int, int] = {}
        self.records: list[bytes] = []

    def add(self, pointer: Any, computes: bool) -> int:
        """The number of a tensor; its root and, where it computes, its sources get theirs first."""
        key = address(pointer)
        known = self.numbers.get(key)
        if known is not None:
            return known
        root = self.add(pointer.view_src, False) if pointer.view_src else -1
        sources = [-1] * 10
        if computes:
            own = [i for i, s in enumerate(pointer.src) if s and address(s) == key]
            for i, source in enumerate(pointer.src):
                if source and i not in own:
                    sources[i] = self.add(source, False)
            for i in own:
                sources[i] = len(self.records)
        self.numbers[key] = number = len(self.records)
        self.records.append(self._record(pointer, computes, root, sources))
        return number

    def _record(self, pointer: Any, computes: bool, root: int, sources: list[int]) -> bytes:
        memory = offset = 0
        if self.place is not None and root < 0 and pointer.data:
            memory, offset = self.place(pointer)
        return _TENSOR.pack(
            pointer.type, pointer.op if computes else _NONE, self._flags(pointer, computes),
            lib.gbpy_ndim(pointer), root, pointer.view_offs if root >= 0 else 0,
            *ffi.unpack(pointer.ne, 4), *ffi.unpack(pointer.nb, 4), memory, offset,
            bytes(ffi.buffer(pointer.op_params, 64)) if computes else bytes(64),
            bytes(ffi.buffer(pointer.name, 64)) if self.named else bytes(64), *sources,
        )  # fmt: skip

    def _flags(self, pointer: Any, computes: bool) -> int:
        weights = _WEIGHTS if lib.gbpy_device_weights(pointer) else 0
        return weights | (_LEAVES_OUT if computes and lib.gbpy_device_may_leave_out(pointer) else 0)


def pack(nodes: Sequence[Any], place: Place | None) -> bytes:
    """The message of nodes of C. ``place``: None for a question about nodes, which have no memory then, and no
    names."""
    packer = _Packer(place, place is not None)
    order = [packer.add(node, True) for node in nodes]
    return b"".join(
        (_HEAD.pack(len(packer.records), len(order)), *packer.records, struct.pack(f"<{len(order)}I", *order))
    )


Base = Callable[[int, bool], tuple[Any, int, int]]
"""Of the number of a memory, and whether weights are in it: its buffer of C, the address where that begins, its bytes.
MessageError: there is none."""


class Graph:
    """A graph of C that a message described. ``keep``: what it is made of."""

    __slots__ = ("keep", "nodes", "ptr")

    def __init__(self, tensors: Any, order: Sequence[int], keep: Sequence[Any]) -> None:
        self.nodes = ffi.new("struct ggml_tensor *[]", [tensors + i for i in order] or 1)
        self.ptr = ffi.new("struct ggml_cgraph *")
        self.ptr.size = self.ptr.n_nodes = len(order)
        self.ptr.nodes = self.nodes
        self.keep = (tensors, *keep)


def graph_of(data: memoryview, base: Base | None) -> Graph:
    """The graph that a message describes. MessageError for what no builder could have made in these memories.

    base: None for a question about nodes, which have no memory then
    """
    if len(data) < _HEAD.size:
        raise MessageError("nodes: the message is too short")
    n_tensors, n_nodes = _HEAD.unpack_from(data)
    size = _HEAD.size + n_tensors * _TENSOR.size + n_nodes * 4
    if n_tensors > MAX_TENSORS or n_nodes > n_tensors or size != len(data):
        raise MessageError(f"nodes: {n_tensors} tensors and {n_nodes} nodes do not make {len(data)} bytes")
    tensors = ffi.new(f"{_TYPE}[]", max(n_tensors, 1))
    kept = []
    for i in range(n_tensors):
        kept.append(_read_tensor(tensors, i, _TENSOR.unpack_from(data, _HEAD.size + i * _TENSOR.size), base))
    order = struct.unpack_from(f"<{n_nodes}I", data, _HEAD.size + n_tensors * _TENSOR.size)
    if any(i >= n_tensors for i in order):
        raise MessageError("nodes: a number of no tensor")
    return Graph(tensors, order, kept)


def _read_tensor(tensors: Any, i: int, fields: tuple[Any, ...], base: Base | None) -> Any:
    kind, op, flags, ndim, root, view_offset = fields[:6]
    ne, nb, (memory, offset), (params, name), sources = (
        fields[6:10], fields[10:14], fields[14:16], fields[16:18], fields[18:]
    )  # fmt: skip
    t = tensors[i]
    _check_sizes(i, kind, op, ne, nb)
    t.type, t.op = kind, op
    t.ne, t.nb = ne, nb
    ffi.memmove(t.op_params, params, 64)
    ffi.memmove(t.name, name[:63], 63)
    lib.gbpy_set_ndim(tensors + i, ndim if 0 <= ndim <= 4 else 4)
    if flags & _LEAVES_OUT:
        lib.gbpy_device_let_leave_out(tensors + i)
    for k, s in enumerate(sources):
        if s < -1 or s > i or (s == i and (op != lib.GGML_OP_CPY or k == 0)):
            raise MessageError(f"nodes: source {k} of tensor {i} is number {s}")
        if s >= 0:
            t.src[k] = tensors + s
    nbytes = lib.ggml_nbytes(tensors + i)
    if not 0 <= nbytes < _LIMIT:
        raise MessageError(f"nodes: tensor {i} is too large")
    if root != -1:
        _look_into(tensors, i, root, view_offset, nbytes)
        return None
    if base is None or memory == 0:
        return None
    buffer, begin, size = base(memory, bool(flags & _WEIGHTS))
    if offset % min(dtype_of_id(kind).itemsize & -dtype_of_id(kind).itemsize, 8):
        raise MessageError(f"nodes: tensor {i} begins between two elements")
    if offset > size or nbytes > size - offset:
        raise MessageError(f"nodes: tensor {i} lies outside of a memory of {size} bytes")
    t.buffer = buffer
    t.data = ffi.cast("void *", begin + offset)
    return buffer


def _check_sizes(i: int, kind: int, op: int, ne: Sequence[int], nb: Sequence[int]) -> None:
    try:
        block = dtype_of_id(kind).block_size
    except (KeyError, ValueError, IndexError):
        raise MessageError(f"nodes: tensor {i} has the type {kind}, which is none") from None
    if op >= _N_OPS or op in _CUSTOM:
        raise MessageError(f"nodes: tensor {i} has the operator {op}, which is none that a message can hold")
    count, reach = 1, 0
    for n, stride in zip(ne, nb, strict=True):
        if not 0 <= n < _LIMIT or stride >= _LIMIT:
            raise MessageError(f"nodes: the shape of tensor {i} overflows")
        count *= n
        reach += max(n - 1, 0) * stride
    if count >= _LIMIT or reach >= _LIMIT or ne[0] % block:
        raise MessageError(f"nodes: the shape of tensor {i} overflows, or has no whole blocks")


def _look_into(tensors: Any, i: int, root: int, view_offset: int, nbytes: int) -> None:
    if not 0 <= root < i or tensors[root].view_src:
        raise MessageError(f"nodes: tensor {i} is a view of number {root}")
    have = lib.ggml_nbytes(tensors + root)
    if view_offset > have or nbytes > have - view_offset:
        raise MessageError(f"nodes: tensor {i} reaches past the {have} bytes of what it is a view of")
    t = tensors[i]
    t.view_src = tensors + root
    t.view_offs = view_offset
    if tensors[root].data:
        t.data = ffi.cast("void *", address(tensors[root].data) + view_offset)
        t.buffer = tensors[root].buffer
