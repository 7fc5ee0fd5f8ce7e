"""What a tensor is, apart from its data: names, shapes, dtypes, where it comes from. The first of the classes that make
up
:class:`ggml_backend.Tensor`; :mod:`._tensor_data` is the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ._core.handles import Holders, Local
from ._errors import NOT_GIVEN, StateError, check, clear_error, raise_last
from ._errors.hints import made_by
from ._ffi import ffi, lib
from ._text.names import as_name
from .buffer import text
from .dtypes import DType, dtype_of_id

if TYPE_CHECKING:
    from .tensor import TensorPool

MAX_DIMS: int = lib.GGML_MAX_DIMS
MAX_NAME = 63  # bytes

_ndim = lib.gbpy_ndim
_unpack = ffi.unpack
_T = TypeVar("_T", bound="TensorInfo")


def has_place(status: int) -> bool:
    """What C says that looked for a tensor's memory; raises if it could not look."""
    if status == 0:
        return True
    if status != lib.GGML_STATUS_INVALID_STATE:
        raise_last("", status)
    clear_error()
    return False


class TensorInfo(Local):
    """A tensor's handle: the pool that it lives in, the C pointer, and what keeps the memory that it points to, also
    when the pool is closed."""

    __slots__ = ("__weakref__", "_ctx", "_k", "_p")

    def __init__(self, ctx: TensorPool = NOT_GIVEN, pointer: Any = None, keeping: Any = None) -> None:
        if pointer is None:
            made_by(pointer, ffi.CData, "Tensor", "ctx.tensor(shape), or of data ctx.constant(array),")
        self._ctx = ctx
        self._p = pointer
        if keeping is None:
            core = ctx._live()
            keeping = core.h
        self._k = keeping

    def _live(self) -> Any:
        if self._ctx._core is None:
            raise StateError("the context of the tensor is closed")
        return self._p

    @property
    def context(self) -> TensorPool:
        return self._ctx

    @property
    def name(self) -> str:
        """At most 63 bytes of UTF-8; longer names are cut between two characters. Bytes that are no UTF-8 come as
        surrogates, as in
        ``os.fsdecode``."""
        return str(ffi.string(lib.ggml_get_name(self._live())), "utf-8", "surrogateescape")

    @name.setter
    def name(self, name: str) -> None:
        lib.ggml_set_name(self._live(), as_name(name, "Tensor.name"))

    def named(self: _T, name: str) -> _T:
        """Sets the name and returns the tensor."""
        self.name = name
        return self

    @property
    def ndim(self) -> int:
        return int(_ndim(self._live()))

    @property
    def shape(self) -> tuple[int, ...]:
        p = self._live()
        return tuple(_unpack(p.ne, MAX_DIMS)[: _ndim(p)][::-1])

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes, in the order of ``shape``."""
        p = self._live()
        return tuple(_unpack(p.nb, MAX_DIMS)[: _ndim(p)][::-1])

    @property
    def ne(self) -> tuple[int, int, int, int]:
        """The four sizes in ggml's order: ``ne[0]`` is the fastest dimension, the last axis of ``shape``."""
        return tuple(_unpack(self._live().ne, MAX_DIMS))

    @property
    def nb(self) -> tuple[int, int, int, int]:
        """The four byte strides in ggml's order."""
        return tuple(_unpack(self._live().nb, MAX_DIMS))

    @property
    def dtype(self) -> DType:
        return dtype_of_id(self._live().type)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(lib.ggml_nelements(self._live()))

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element, gaps between strided elements included."""
        return int(lib.ggml_nbytes(self._live()))

    @property
    def is_contiguous(self) -> bool:
        return bool(lib.ggml_is_contiguous(self._live()))

    @property
    def op(self) -> str:
        """How it is computed: ``"NONE"``, ``"MUL_MAT"``, ... and for elementwise functions their name, ``"RELU"``."""
        p = self._live()
        return text(lib.ggml_op_name(p.op)) if p.op == lib.GGML_OP_NONE else text(lib.ggml_op_desc(p))

    @property
    def sources(self: _T) -> list[_T]:
        """The tensors that it is computed from."""
        holder = Holders(self._k)
        return [type(self)(self._ctx, s, holder(s)) for s in self._live().src if s]

    @property
    def view_of(self: _T) -> _T | None:
        """The tensor whose memory this one looks into; None if it has its own."""
        source = self._live().view_src
        return type(self)(self._ctx, source, Holders(self._k)(source)) if source else None

    def set_input(self: _T) -> _T:
        """Keeps its memory from the start of the graph, so that it can be set before the graph runs. Returns the
        tensor."""
        check(lib.ggml_set_input(self._live()), "set_input")
        return self

    def set_output(self: _T) -> _T:
        """Keeps its memory until the end of the graph, so that it can be read afterwards. Returns the tensor."""
        check(lib.ggml_set_output(self._live()), "set_output")
        return self

    @property
    def is_input(self) -> bool:
        return bool(lib.ggml_is_input(self._live()))

    @property
    def is_output(self) -> bool:
        return bool(lib.ggml_is_output(self._live()))

    @property
    def location(self) -> str:
        """Name of the buffer that it lies in, "" if none."""
        p = self._live()
        name = ffi.new("char[]", 256)
        return text(name) if has_place(lib.gbpy_location(self._k, p, name, 256)) else ""

    def __eq__(self, other: object) -> bool:
        """Is it the same tensor? (Not a comparison of elements.)"""
        return isinstance(other, TensorInfo) and bool(self._p == other._p)

    def __hash__(self) -> int:
        return hash(self._p)

    def describe(self) -> str:
        """``'w' float32 (64, 128)``, for messages."""
        if self._ctx._core is None:
            return "a tensor of a closed context"
        name = self.name
        return f"{name!r} {self.dtype.name} {self.shape}" if name else f"{self.dtype.name} {self.shape}"

    def __repr__(self) -> str:
        if self._ctx._core is None:
            return "<Tensor closed>"
        how = "" if self.op == "NONE" else f" = {self.op}"
        where = f" on {self.location}" if self.location else ""
        return f"<Tensor {self.describe()}{how}{where}>"
