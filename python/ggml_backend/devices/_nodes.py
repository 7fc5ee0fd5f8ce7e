"""Graph nodes as devices see them, as Python objects without references to C."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .._base.handles import address
from .._ffi import ffi, lib
from ..dtypes import DType, as_dtype, dtype_of_id
from ..tensor._operators import (
    COMPARISONS,
    EPS_OF_2024,
    GLU_OPS,
    POOLS,
    PRECISIONS,
    PRECISIONS_OF_PRODUCTS,
    ROPE_MODES,
    TRIANGLES,
)
from ..tensor._shapes import MAX_DIMS

__all__ = [
    "Node", "OpFacts", "byte_layout", "node_at", "numpy_view", "op_facts", "operators",
    "read_bytes", "single", "sources_at", "write_bytes",
]  # fmt: skip

_ndim = lib.gbpy_ndim
_unpack = ffi.unpack
_string = ffi.string

Reader = Callable[[bytes], Any]  # reads a parameter from op_params
Params = tuple[tuple[str, Reader], ...]


def _int(i: int) -> Reader:
    return lambda raw: struct.unpack_from("=i", raw, 4 * i)[0]


def _float(i: int) -> Reader:
    return lambda raw: struct.unpack_from("=f", raw, 4 * i)[0]


def _bool(i: int) -> Reader:
    return lambda raw: bool(struct.unpack_from("=i", raw, 4 * i)[0])


def _choice(choices: Mapping[str, int], i: int) -> Reader:
    """Reads a word as its name, or as a number if it has none."""
    read, names = _int(i), {number: name for name, number in choices.items()}
    return lambda raw: names.get(read(raw), read(raw))


def _pair(i: int) -> Reader:
    """Reads two words, horizontal first, as (height, width)."""
    return lambda raw: struct.unpack_from("=2i", raw, 4 * i)[::-1]


def _triple(i: int) -> Reader:
    """Reads three words, horizontal first, as (depth, height, width)."""
    return lambda raw: struct.unpack_from("=3i", raw, 4 * i)[::-1]


def _pads(raw: bytes) -> Any:
    """Four pairs (before, behind), the first axis first."""
    words = struct.unpack_from("=8i", raw)
    return tuple((words[2 * d], words[2 * d + 1]) for d in (3, 2, 1, 0))


def _shifts(raw: bytes) -> Any:
    """Of four axes, the first one first."""
    return struct.unpack_from("=4i", raw)[::-1]


def _size_of_im2col(i: int) -> Reader:
    """Reads a pair for two axes, or a number for one axis."""
    one, both, is_2d = _int(i), _pair(i), _bool(6)
    return lambda raw: both(raw) if is_2d(raw) else one(raw)


def _eps_of_loss(raw: bytes) -> Any:
    return _float(1)(raw) if _bool(0)(raw) else EPS_OF_2024


def _xpos_base(raw: bytes) -> Any:
    return None if _sections(raw) else _float(11)(raw) or None


def _xpos_base_back(raw: bytes) -> Any:
    return 0.0 if _sections(raw) else _float(11)(raw)


def _sections(raw: bytes) -> Any:
    """The four sections of the modes that have them, else None."""
    exact, mode = lib.GGML_ROPE_EXACT, _int(2)(raw)
    return struct.unpack_from("=4i", raw, 44) if mode & exact and mode & lib.GGML_ROPE_TYPE_MROPE else None


def _rope_offset(raw: bytes) -> Any:
    return _int(15)(raw) if _int(2)(raw) & lib.GGML_ROPE_EXACT else 0


def _ints(names: str, first: int = 0) -> Params:
    return tuple((name, _int(i)) for i, name in enumerate(names.split(), first))


def _floats(names: str, first: int = 0) -> Params:
    return tuple((name, _float(i)) for i, name in enumerate(names.split(), first))


_CONV_2D: Params = (("stride", _pair(0)), ("padding", _pair(2)), ("dilation", _pair(4)))
_IM2COL: Params = (
    ("stride", _size_of_im2col(0)), ("padding", _size_of_im2col(2)), ("dilation", _size_of_im2col(4)),
    ("is_2d", _bool(6)),
)  # fmt: skip
_ROPE: Params = (
    *_ints("n_dims", 1),
    ("mode", _choice(ROPE_MODES, 2)),
    *_ints("n_ctx n_orig_ctx", 3),
    *_floats("freq_base freq_scale ext_factor attn_factor beta_fast beta_slow", 5),
    ("sections", _sections),
    ("offset", _rope_offset),
)

PARAMS: dict[str, Params] = {
    "acc": _ints("nb1 nb2 nb3 offset"),
    "set": _ints("nb1 nb2 nb3 offset"),
    "norm": _floats("eps"),
    "rms_norm": _floats("eps"),
    "rms_norm_back": _floats("eps"),
    "group_norm": (*_ints("n_groups"), ("eps", lambda raw: _float(1)(raw) or 1e-6)),
    "mul_mat": (("prec", _choice(PRECISIONS_OF_PRODUCTS, 0)),),
    "mul_mat_id": _ints("id"),
    "mul_mat_experts": (("prec", _choice(PRECISIONS_OF_PRODUCTS, 0)),),
    "scale": _floats("s"),
    "clamp": _floats("min max"),
    "glu": (("op", _choice(GLU_OPS, 0)), ("swapped", _bool(1)), *_floats("alpha limit", 2)),
    "xielu": _floats("n p beta eps"),
    "scale_bias": _floats("s bias"),
    "l2_norm": _floats("eps"),
    "tri": (("kind", _choice(TRIANGLES, 0)),),
    "fill": _floats("value"),
    "arange": _floats("start stop step"),
    "timestep_embedding": _ints("dim max_period"),
    "ssm_scan": _ints("n_states"),
    "gated_delta_net": _ints("n_states"),
    "gated_linear_attn": _floats("scale"),
    "interpolate": _ints("mode"),
    "pad_ext": (("amounts", _pads), ("circular", _bool(8))),
    "pad_reflect_1d": _ints("before behind"),
    "roll": (("shifts", _shifts),),
    "col2im_1d": _ints("stride channels padding"),
    "opt_step_adamw": _ints("part"),
    "im2col_3d": (
        ("stride", _triple(0)), ("padding", _triple(3)), ("dilation", _triple(6)), ("channels", _int(9)),
    ),
    "leaky_relu": _floats("negative_slope"),
    "soft_max": _floats("scale max_bias"),
    "diag_mask_inf": _ints("n_past"),
    "diag_mask_zero": _ints("n_past"),
    "alibi": (*_ints("n_past n_head"), ("bias_max", _float(2))),
    "rope": (*_ROPE, ("xpos_base", _xpos_base), ("xpos_down", _bool(12))),
    "rope_back": (*_ROPE, ("xpos_base", _xpos_base_back), ("xpos_down", _bool(12))),
    "im2col": _IM2COL,
    "im2col_back": _IM2COL,
    "conv_2d": (*_CONV_2D, ("groups", lambda raw: _int(6)(raw) or 1)),
    "conv_2d_dw": _CONV_2D,
    "conv_3d": (
        ("stride", _triple(0)), ("padding", _triple(3)), ("dilation", _triple(6)),
        ("channels", _int(9)), ("groups", lambda raw: _int(12)(raw) or 1),
    ),
    "conv_transpose_1d": _ints("stride padding dilation"),
    "conv_transpose_2d": _ints("stride"),
    "pool_1d": (("op", _choice(POOLS, 0)), *_ints("kernel stride padding", 1)),
    "pool_2d": (("op", _choice(POOLS, 0)), ("kernel", _pair(1)), ("stride", _pair(3)), ("padding", _pair(5))),
    "upscale": _ints("factor"),
    "compare": (("comparison", _choice(COMPARISONS, 0)),),
    "argsort": (("descending", _bool(0)),),
    "flash_attn": (("masked", _bool(0)),),
    "flash_attn_ext": (*_floats("scale max_bias softcap"), ("prec", _choice(PRECISIONS, 3))),
    "flash_attn_back": (("masked", _bool(0)),),
    "win_part": _ints("window", 2),
    "win_unpart": _ints("window"),
    "cross_entropy_loss": (("eps", _eps_of_loss),),
    "cross_entropy_loss_back": (("eps", _eps_of_loss),),
}  # fmt: skip
"""The parameters of each operator, each with the function that reads it from ``op_params``. Operators without
an entry have no parameters."""

_N_BYTES = 64

custom_of: list[Callable[[Any], Any]] = [lambda pointer: None]
"""Finds the Python function behind a C node. The module of these functions sets it."""


class Node:
    """A graph node, or a source of a node, as a device sees it. It is read-only and stays valid forever.

    op: operator in lower case, such as ``"mul_mat"`` or ``"rope"``. For elementwise functions their name, such
        as ``"relu"``. ``"none"`` for tensors without an operator
    name: name of the tensor; "" without one
    dtype, shape, strides: as in :class:`ggml_backend.Tensor`, in NumPy order, strides in bytes
    sources: the sources of a node. The sources themselves have no sources
    slots: the number of each source among the parameters of the operator. A gap is an omitted source: ``(0, 2)``
        for a ``soft_max`` with sinks and without a mask
    params: parameters of the operator by name, as its builder takes them: for ``"rope"`` those of ``gb.ops.rope``,
        such as ``mode="neox"``. ``{}`` without parameters. It omits parameters that follow from dtypes and
        shapes: the ``dtype`` of ``gb.ops.cast``, the ``amounts`` of ``gb.ops.pad``
    is_contiguous: True if the elements are adjacent in memory
    """

    __slots__ = ("_function", "_params", "_raw", "dtype", "is_contiguous", "name", "op", "shape", "slots", "sources",
                 "strides")  # fmt: skip
    op: str
    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sources: tuple[Node, ...]
    slots: tuple[int, ...]
    is_contiguous: bool
    _raw: bytes  # op_params
    _params: dict[str, Any] | None
    _function: weakref.ref[Any] | None  # function of gb.ops.custom or gb.ops.map_custom; the graph keeps it

    def __init__(self) -> None:
        raise TypeError("Node: the library makes nodes from the graphs of a device; you cannot make one")

    @property
    def params(self) -> dict[str, Any]:
        if self._params is None:
            self._params = {name: read(self._raw) for name, read in PARAMS.get(self.op, ())}
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
    """Shape and byte strides of the bytes of a quantized tensor."""
    shape, strides = node.shape or (1,), node.strides or (1,)
    dtype = node.dtype
    return (*shape[:-1], shape[-1] // dtype.block_size * dtype.itemsize), (*strides[:-1], 1)


def numpy_view(memory: np.ndarray[Any, Any], offset: int, node: Node, writable: bool) -> np.ndarray[Any, Any]:
    """A NumPy view of the tensor at an offset of ``memory``. Quantized rows are bytes. It keeps the memory alive."""
    shape, strides = byte_layout(node) if node.dtype.is_quantized else (node.shape, node.strides)
    view: np.ndarray[Any, Any] = np.ndarray(shape, node.dtype.numpy, memory, offset, strides)
    view.flags.writeable = writable
    return view


def write_bytes(memory: np.ndarray[Any, Any], offset: int, data: memoryview) -> None:
    memory[offset : offset + len(data)] = np.frombuffer(data, np.uint8)


def read_bytes(memory: np.ndarray[Any, Any], offset: int, data: memoryview) -> None:
    np.frombuffer(data, np.uint8)[:] = memory[offset : offset + len(data)]


def _shallow(pointer: Any) -> Node:
    node = Node.__new__(Node)
    n = _ndim(pointer)
    op = pointer.op
    name = lib.ggml_op_name(op) if op == 0 else lib.ggml_op_desc(pointer)
    node.op = _string(name).decode().lower()
    node.name = str(_string(pointer.name), "utf-8", "surrogateescape")
    node.dtype = dtype_of_id(pointer.type)
    node.shape = tuple(_unpack(pointer.ne, MAX_DIMS)[:n][::-1])
    node.strides = tuple(_unpack(pointer.nb, MAX_DIMS)[:n][::-1])
    node.is_contiguous = bool(lib.ggml_is_contiguous(pointer))
    node.sources = ()
    node.slots = ()
    node._raw = b""
    node._params = None
    node._function = None
    return node


def single() -> Node:
    """A tensor of one float32 without an operator, to find out the array type of a device."""
    node = Node.__new__(Node)
    node.op, node.name, node.dtype = "none", "", as_dtype("f32")
    node.shape, node.strides, node.sources, node.slots, node.is_contiguous = (1,), (4,), (), (), True
    node._raw, node._params, node._function = bytes(_N_BYTES), None, None
    return node


class OpFacts(NamedTuple):
    """The library's facts about an operator. in_place: the sources that the result may overwrite."""

    elementwise: bool
    in_place: tuple[int, ...]


@cache
def op_facts() -> dict[str, OpFacts]:
    """The facts by operator name, as in ``Node.op``."""
    facts = {}
    for i in range(lib.GGML_OP_COUNT):
        found = lib.gbpy_op_facts(i)
        sources = tuple(k for k in (0, 1) if found.inplace >> k & 1)
        facts[_string(lib.ggml_op_name(i)).decode().lower()] = OpFacts(found.elementwise, sources)
    of_unary = facts.pop("unary")
    for i in range(lib.GGML_UNARY_OP_COUNT):
        facts[_string(lib.ggml_unary_op_name(i)).decode().lower()] = of_unary
    del facts["none"]
    return facts


@cache
def operators() -> frozenset[str]:
    """All operator names that ``Node.op`` may have."""
    return frozenset(op_facts())


def sources_at(pointer: Any) -> list[Any]:
    """The sources of a C node, without the stand-in for its result (CAST)."""
    return [source for _, source in _slots_at(pointer)]


def _slots_at(pointer: Any) -> list[tuple[int, Any]]:
    me = address(pointer)
    return [(i, s) for i, s in enumerate(pointer.src) if s and address(s) != me]


def node_at(pointer: Any) -> Node:
    """A :class:`Node` from a C node. No other thread may be writing to the C node."""
    node = _shallow(pointer)
    found = _slots_at(pointer)
    node.sources, node.slots = tuple(_shallow(s) for _, s in found), tuple(i for i, _ in found)
    function = custom_of[0](pointer)
    node._function = weakref.ref(function) if function is not None else None
    node._raw = bytes(ffi.buffer(pointer.op_params, _N_BYTES))
    return node
