"""Nodes as devices see them: what is to be computed, in words of Python, with nothing of C behind it."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .._core.handles import address
from .._data.shapes import MAX_DIMS
from .._ffi import ffi, lib
from ..dtypes import DType, as_dtype, dtype_of_id

__all__ = ["Node", "byte_layout", "node_at", "numpy_view", "operators", "single", "sources_at"]

_ndim = lib.gbpy_ndim
_unpack = ffi.unpack
_string = ffi.string

Params = tuple[tuple[str, str, int], ...]  # name, kind ("i", "f" or "b": a bool), index of the word


def _words(names: str, kind: str, first: int = 0) -> Params:
    return tuple((name, kind, first + i) for i, name in enumerate(names.split()))


_ROPE = (
    *_words("n_dims mode n_ctx n_orig_ctx", "i", 1),
    *_words("freq_base freq_scale ext_factor attn_factor beta_fast beta_slow xpos_base", "f", 5),
    ("xpos_down", "b", 12),
)

PARAMS: dict[str, Params] = {
    "acc": _words("nb1 nb2 nb3 offset", "i"),
    "set": _words("nb1 nb2 nb3 offset", "i"),
    "norm": _words("eps", "f"),
    "rms_norm": _words("eps", "f"),
    "rms_norm_back": _words("eps", "f"),
    "group_norm": _words("n_groups", "i"),
    "mul_mat": _words("prec", "i"),
    "mul_mat_id": _words("id n_matrices prec", "i"),
    "scale": _words("s", "f"),
    "clamp": _words("min max", "f"),
    "leaky_relu": _words("negative_slope", "f"),
    "soft_max": _words("scale max_bias", "f"),
    "diag_mask_inf": _words("n_past", "i"),
    "diag_mask_zero": _words("n_past", "i"),
    "alibi": (*_words("n_past n_head", "i"), ("bias_max", "f", 2)),
    "rope": _ROPE,
    "rope_back": _ROPE,
    "im2col": (*_words("stride0 stride1 padding0 padding1 dilation0 dilation1", "i"), ("is_2d", "b", 6)),
    "conv_transpose_1d": _words("stride padding dilation", "i"),
    "conv_transpose_2d": _words("stride", "i"),
    "pool_1d": _words("op kernel stride padding", "i"),
    "pool_2d": _words("op kernel0 kernel1 stride0 stride1 padding0 padding1", "i"),
    "upscale": _words("factor", "i"),
    "argsort": (("descending", "b", 0),),
    "flash_attn": (("masked", "b", 0),),
    "flash_attn_back": (("masked", "b", 0),),
    "win_part": _words("n_across n_down window", "i"),
    "win_unpart": _words("window", "i"),
    "cross_entropy_loss": (("has_eps", "b", 0), ("eps", "f", 1)),
    "cross_entropy_loss_back": (("has_eps", "b", 0), ("eps", "f", 1)),
}
"""The words of ``op_params`` by operator, called like the parameters of the functions that build it. An operator
without an entry has none."""

_READ: dict[str, Callable[[bytes, int], Any]] = {
    "i": lambda raw, i: struct.unpack_from("=i", raw, 4 * i)[0],
    "f": lambda raw, i: struct.unpack_from("=f", raw, 4 * i)[0],
    "b": lambda raw, i: bool(struct.unpack_from("=i", raw, 4 * i)[0]),
}
_N_BYTES = 64

custom_of: list[Callable[[Any], Any]] = [lambda pointer: None]
"""What finds the function of Python behind a node of C; set by who knows these functions."""


class Node:
    """A node of a graph, or a source of one, as a device sees it: read-only, and valid for ever.

    op: what computes it, in small letters: ``"mul_mat"``, ``"rope"``, and of elementwise functions their name,
        ``"relu"``; ``"none"`` for what no operator computes
    name: the tensor's; "" if it has none
    dtype, shape, strides: as those of :class:`ggml_backend.Tensor`, in NumPy order, strides in bytes
    sources: of a node, its sources, whose own sources are left out; of a source, empty
    params: the parameters of the operator by name, as the function that builds it takes them: those of ``gb.rope``
        for ``"rope"``; ``{}`` for operators without any
    is_contiguous: do its elements lie one after the other?
    """

    __slots__ = ("_function", "_params", "_raw", "dtype", "is_contiguous", "name", "op", "shape", "sources", "strides")
    op: str
    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sources: tuple[Node, ...]
    is_contiguous: bool
    _raw: bytes  # op_params
    _params: dict[str, Any] | None
    _function: weakref.ref[Any] | None  # of gb.custom and gb.map_custom; the graph keeps it

    @property
    def params(self) -> dict[str, Any]:
        if self._params is None:
            self._params = {name: _READ[kind](self._raw, i) for name, kind, i in PARAMS.get(self.op, ())}
        return dict(self._params)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        n = 1
        for s in self.shape:
            n *= s
        return n

    def __str__(self) -> str:
        shown = f"{self.op.upper()} {self.dtype.name} {self.shape}"
        return f"{self.name!r} {shown}" if self.name else shown

    def __repr__(self) -> str:
        of = ", ".join(f"{s.name!r} {s.dtype.name} {s.shape}" for s in self.sources)
        return f"<Node {self}{' of ' if of else ''}{of}>"


def byte_layout(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a quantized tensor as bytes."""
    shape, strides = node.shape or (1,), node.strides or (1,)
    dtype = node.dtype
    return (*shape[:-1], shape[-1] // dtype.block_size * dtype.itemsize), (*strides[:-1], 1)


def numpy_view(memory: np.ndarray[Any, Any], offset: int, node: Node, writable: bool) -> np.ndarray[Any, Any]:
    """A view of bytes as the tensor that begins there; of a quantized one, its rows as bytes. It keeps the memory."""
    shape, strides = byte_layout(node) if node.dtype.is_quantized else (node.shape, node.strides)
    view: np.ndarray[Any, Any] = np.ndarray(shape, node.dtype.numpy, memory, offset, strides)
    view.flags.writeable = writable
    return view


def _shallow(pointer: Any) -> Node:
    node = Node.__new__(Node)
    n = _ndim(pointer)
    op = pointer.op
    name = lib.ggml_op_name(op) if op == 0 else lib.ggml_op_desc(pointer)
    node.op = _string(name).decode().lower()
    node.name = str(_string(pointer.name), "utf-8", "replace")
    node.dtype = dtype_of_id(pointer.type)
    node.shape = tuple(_unpack(pointer.ne, MAX_DIMS)[:n][::-1])
    node.strides = tuple(_unpack(pointer.nb, MAX_DIMS)[:n][::-1])
    node.is_contiguous = bool(lib.ggml_is_contiguous(pointer))
    node.sources = ()
    node._raw = b""
    node._params = None
    node._function = None
    return node


def single() -> Node:
    """A tensor of one float32, such as nobody computes: to see what a device's arrays are."""
    node = Node.__new__(Node)
    node.op, node.name, node.dtype = "none", "", as_dtype("f32")
    node.shape, node.strides, node.sources, node.is_contiguous = (1,), (4,), (), True
    node._raw, node._params, node._function = bytes(_N_BYTES), None, None
    return node


@cache
def operators() -> frozenset[str]:
    """Whatever ``Node.op`` may be of a node."""
    named = [lib.ggml_op_name(i) for i in range(lib.GGML_OP_COUNT)]
    named += [lib.ggml_unary_op_name(i) for i in range(lib.GGML_UNARY_OP_COUNT)]
    return frozenset(_string(name).decode().lower() for name in named) - {"none", "unary"}


def sources_at(pointer: Any) -> list[Any]:
    """The sources of a node of C, without what stands for its result (CAST)."""
    me = address(pointer)
    return [s for s in pointer.src if s and address(s) != me]


def node_at(pointer: Any) -> Node:
    """What a node of C says, while nobody writes to its fields."""
    node = _shallow(pointer)
    node.sources = tuple(_shallow(s) for s in sources_at(pointer))
    function = custom_of[0](pointer)
    node._function = weakref.ref(function) if function is not None else None
    node._raw = bytes(ffi.buffer(pointer.op_params, _N_BYTES))
    return node
