"""Tensors.

A tensor has an element format, up to four dimensions and, once placed, memory. It is also a graph node:
operations on tensors compute nothing. They make new tensors that record how to compute them. Shapes are
in NumPy order. ``ne`` and ``nb`` are the same numbers in ggml's reversed order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, Union

import numpy as np

from .._base.errors import (
    NOT_GIVEN,
    AllocationError,
    GgmlError,
    InvalidArgumentError,
    StateError,
    check,
    clear_error,
    expect_bool,
    expect_int,
    raise_last,
)
from .._base.errors.messages import kind_of, made_by
from .._base.handles import Holders, Local, new_handle, new_pin
from .._base.mapped import check_file, reading
from .._base.text import as_name
from .._ffi import ffi, lib
from ..backend.buffer import Buffer, BufferCore, text
from ..dtypes import DType, DTypeLike, as_dtype, dtype_of_id
from ._arrays import CPU, array_at, contiguous, converted, exact_array, layout, numpy_dtype, read_tensor, to_array
from ._build import ZEROS, attempt, build, build_1, context_of, node_class
from ._exchange import buffer_of, give, shortest_array
from ._operators import binary, compared, indexed, matmul, numpy_function
from ._quantize import OnInvalid, quantize
from ._shapes import MAX_DIMS, ne_of, resolve_shape, shape_tuple

if TYPE_CHECKING:
    from .context import Context

__all__ = ["Tensor", "TensorLike"]

_view_type: Any = ffi.typeof("struct gbpy_view *")
_new = ffi.new
_from_buffer = ffi.from_buffer
_look = lib.gbpy_look
_any_mapped = lib.gbpy_mapped_any
_write = lib.gbpy_write
_write_all = lib.gbpy_write_all
_ndim = lib.gbpy_ndim
_unpack = ffi.unpack
_reshape = lib.gbpy_reshape
_transpose = lib.gbpy_transpose

TensorLike = Union["Tensor", int, float, "np.ndarray[Any, Any]", "np.generic"]


@node_class
class Tensor(Local):
    """A tensor, or node of a graph, in a context. ``Context.tensor`` and operations make tensors.

    Operators follow NumPy: ``+ - * / @``, unary ``-``, ``abs``, ``x[...]`` with slices. They compute
    nothing until the graph runs.
    """

    __slots__ = ("__weakref__", "_ctx", "_k", "_p")

    def __init__(self, ctx: Context = NOT_GIVEN, pointer: Any = None, keeping: Any = None) -> None:
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
    def context(self) -> Context:
        return self._ctx

    @property
    def name(self) -> str:
        """The name, at most 63 bytes of UTF-8. Longer names are cut between two characters.

        Bytes that are not UTF-8 become surrogates, as in ``os.fsdecode``.
        """
        return str(ffi.string(lib.ggml_get_name(self._live())), "utf-8", "surrogateescape")

    @name.setter
    def name(self, name: str) -> None:
        lib.ggml_set_name(self._live(), as_name(name, "Tensor.name"))

    def named(self, name: str) -> Tensor:
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
        """Byte strides in the order of ``shape``."""
        p = self._live()
        return tuple(_unpack(p.nb, MAX_DIMS)[: _ndim(p)][::-1])

    @property
    def ne(self) -> tuple[int, int, int, int]:
        """The four sizes in ggml's order. ``ne[0]`` is the fastest dimension, the last axis of ``shape``."""
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
        """The operation: ``"NONE"``, ``"MUL_MAT"``, ... For elementwise functions their name: ``"RELU"``."""
        p = self._live()
        return text(lib.ggml_op_name(p.op)) if p.op == lib.GGML_OP_NONE else text(lib.ggml_op_desc(p))

    @property
    def sources(self) -> list[Tensor]:
        """The operands of the operation."""
        holder = Holders(self._k)
        return [type(self)(self._ctx, s, holder(s)) for s in self._live().src if s]

    @property
    def view_of(self) -> Tensor | None:
        """The tensor whose memory this view uses; None if the tensor has its own."""
        source = self._live().view_src
        return type(self)(self._ctx, source, Holders(self._k)(source)) if source else None

    def set_input(self) -> Tensor:
        """Marks an input: it has its own memory from the start of the graph, so you can set it before a run.

        Returns the tensor.
        """
        check(lib.ggml_set_input(self._live()), "set_input")
        return self

    def set_output(self) -> Tensor:
        """Marks an output: its memory stays until the end of the run, so you can read it. Returns the tensor."""
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
        """Name of the buffer that holds the tensor; "" without memory."""
        p = self._live()
        name = ffi.new("char[]", 256)
        return text(name) if has_place(lib.gbpy_location(self._k, p, name, 256)) else ""

    # --------------------------------------------------------------------------------------------------------- the data

    @property
    def is_placed(self) -> bool:
        """True if the tensor has memory."""
        p = self._live()
        return has_place(lib.gbpy_find_place(self._k, p))

    @property
    def is_host(self) -> bool:
        """True if NumPy can read the memory without a copy."""
        p = self._live()
        host = _new("bool *")
        status = lib.gbpy_is_on_host(self._k, p, host)
        if status:
            raise_last(self.describe(), status)
        return bool(host[0])

    @property
    def buffer(self) -> Buffer | None:
        """The buffer that holds the tensor. None without memory, or in memory of a scheduler or context."""
        p = self._live()
        h = new_handle()
        found = has_place(lib.gbpy_find_owner(self._k, p, h)) and lib.gbpy_kind_of(h) == lib.GBPY_BUFFER
        return Buffer(BufferCore(h)) if found else None

    def numpy(self, dtype: Any = None, *, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The data as an array.

        For host memory it is a view. The view keeps the buffer alive, and writing to it writes the tensor.
        A constant's view is read-only. The next run overwrites tensors that a scheduler placed. For device
        memory it is a copy. The call waits for a computation in progress.

        A view of an unset input is zero-filled, and the input then counts as set: write to the view to set
        the input. A copy of an unset input raises :class:`StateError`. So do :meth:`item` and ``tolist``.

        Raises :class:`StateError` if the result does not exist: it was not computed, an input was set
        since, or its memory was reused during the run. ``ctx.graph(y, keep=[h])`` keeps an intermediate
        result. ``Scheduler(keep_all=True)`` keeps all of them.

        dtype: convert a copy to this NumPy dtype. By default bfloat16 comes as uint16 bits, and quantized
            formats as the bytes of their rows.
        copy: True: always copy. False: raise :class:`StateError` rather than copy.
        """
        p = self._live()
        target = None if dtype is None else numpy_dtype(dtype)
        if copy is not None:
            copy = expect_bool(copy, "numpy: copy")
        if copy or (copy is None and target is not None and target != self.dtype.numpy):
            array = read_tensor(self._k, p, self.describe)  # before another thread computes again
            return array if target is None else converted(array, self.dtype, target, copy)
        found = shortest_array(self._k, p)
        if found is not None:
            if _any_mapped():
                check_file(found, "numpy")
            return found if target is None else converted(found, self.dtype, target, copy)
        pin = new_pin()
        view = _new(_view_type)
        status = _look(pin, self._k, p, view, b"it")
        if status:
            raise_last(self.describe(), status)
        if view.host:
            array = array_at(p, view.data, pin, view.readonly)
        elif copy is False:
            raise StateError(f"numpy: {self.describe()} is in device memory, which takes a copy")
        else:
            array = read_tensor(self._k, p, self.describe)
        return array if target is None else converted(array, self.dtype, target, copy)

    def set(
        self, value: Any, offset: int | None = None, *, quantize: bool = False, on_invalid: OnInvalid = "error"
    ) -> Tensor:
        """Writes data. Returns the tensor.

        value: an array of exactly this tensor's shape and dtype, of NumPy or another library (with
            ``__dlpack__``, ``__array__`` or the buffer protocol). Or a list. Or a number, which fills the
            tensor. Or ``...`` for zeros. Numbers and lists are rounded to the dtype. A number that would
            become infinite is an error, and so are floats for integers. bfloat16 takes
            bfloat16 arrays of any library or uint16 bits. Quantized formats take the bytes of their rows.
        offset: write ``value``, of any shape, from this flat element index on. Other elements stay.
        quantize: take floats of this tensor's shape and convert them to its dtype, with :func:`ggml_backend.quantize`.
        on_invalid: what :func:`ggml_backend.quantize` does with numbers that the dtype cannot hold.
        """
        dtype = self.dtype
        if quantize is not False and expect_bool(quantize, "set: quantize"):
            value = _quantized(self, value, dtype, on_invalid)
        if value is ...:
            value = np.zeros(layout(self._live(), dtype)[0], dtype.numpy) if dtype.is_quantized else 0
        if type(value) is np.ndarray and value.dtype == dtype.numpy and value.dtype.isnative:
            array = value
        else:
            array = exact_array(value.numpy() if isinstance(value, Tensor) else value, dtype, f"set: {self.describe()}")
        p = self._live()
        if offset is not None:
            _write_flat(self, array, expect_int(offset, "set: offset"), dtype)
            return self
        shape, _ = layout(p, dtype)
        if array.shape != shape:
            if array.ndim or isinstance(value, np.ndarray):
                raise _wrong_shape(self, array.shape, shape)
            array = np.broadcast_to(array, shape if 0 not in shape else 0)  # NumPy refuses some empty shapes
        if not array.flags.c_contiguous:
            with reading(array, "set"):
                array = contiguous(array)
        status = (
            _write_all(self._k, p, _from_buffer(array), array.nbytes, b"it")
            if array.nbytes
            else _write(self._k, p, b"", 0, 0, b"it")
        )
        if status:
            raise_last(f"set: {self.describe()}", status)
        return self

    def copy_from(self, source: Tensor) -> Tensor:
        """Copies the data of a tensor of the same dtype and layout, between any devices. Returns this tensor."""
        if not isinstance(source, Tensor):
            raise TypeError(f"copy_from: source must be a Tensor, not {kind_of(source)}; set(array) writes an array")
        to, of = self._live(), source._live()
        status = lib.gbpy_copy(self._k, to, source._k, of, b"it")
        if status and (source.dtype, source.ne, source.nb) != (self.dtype, self.ne, self.nb):
            shown = f"{source.describe()} and {self.describe()}"
            raise InvalidArgumentError(f"copy_from: dtype, shape and strides must be the same, not those of {shown}")
        if status:
            raise_last(f"copy_from: {source.describe()} to {self.describe()}", status)
        return self

    def item(self) -> Any:
        """The value of a tensor with one element."""
        if self.size != 1:
            raise InvalidArgumentError(f"item: {self.describe()} has {self.size} elements")
        dtype = np.float32 if self.dtype.name == "bfloat16" else None
        return self.numpy(dtype, copy=True).reshape(-1)[0].item()

    def tolist(self) -> Any:
        """The values as nested lists, one level for each axis."""
        return self.numpy(np.float32 if self.dtype.name == "bfloat16" else None, copy=True).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        try:
            return self.numpy(dtype, copy=copy)
        except StateError as error:
            if copy is not False or "takes a copy" not in str(error):
                raise
            raise InvalidArgumentError(str(error)) from None  # a ValueError, as in NumPy

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Exports the data to ``from_dlpack`` of other libraries, without a copy.

        Every dtype without blocks works, bfloat16 included. The export keeps the memory alive, as an
        array of :meth:`numpy` does. It is marked read-only for read-only memory. PyTorch ignores the mark:
        do not write to its tensor of a constant or of a read-only file, or ask for a copy.

        stream: None, because host memory has no streams
        max_version: newest DLPack version of the caller. Before ``(1, 0)`` read-only memory raises BufferError.
        dl_device: None, or ``(1, 0)`` for the host, which copies device memory
        copy: True: always copy. False: raise BufferError rather than copy.

        Raises BufferError for device memory and quantized formats, and :class:`StateError` as :meth:`numpy`.
        """
        return give(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """``(1, 0)``, the host. Raises BufferError for device memory, which :meth:`numpy` copies."""
        if not self.is_host:
            raise BufferError(
                f"{self.describe()} is in device memory: numpy() and np.from_dlpack(t, device='cpu') make a copy"
            )
        return CPU

    if sys.version_info >= (3, 12):

        def __buffer__(self, flags: int, /) -> memoryview:
            """The data as a buffer, for ``memoryview(t)`` and similar, without a copy.

            Raises BufferError for device memory, and for bfloat16 and quantized formats, which buffers
            cannot express. ``memoryview(t.numpy())`` has their bits and bytes.
            """
            return buffer_of(self, flags)

    # -------------------------------------------------------------------------------------------- views, and copy nodes

    def reshape(self, *shape: SupportsIndex | Sequence[int]) -> Tensor:
        """The same elements in another shape: a view if contiguous, else a copy node. One size may be -1."""
        if (
            0 < len(shape) <= MAX_DIMS
            and (found := attempt(self, _reshape, len(shape), *shape, *ZEROS[len(shape)])) is not None
        ):
            return found
        new = shape_tuple(shape[0] if len(shape) == 1 else shape, "reshape: shape")
        new = resolve_shape(self, new)
        ne = ne_of(new, "reshape")
        function = lib.ggml_reshape_4d if self.is_contiguous else lib.ggml_cont_4d
        return build("reshape", function, (self,), *ne, ndim=len(new))

    def transpose(self, *axes: SupportsIndex | Sequence[int] | None) -> Tensor:
        """A view with the axes in another order: axis ``i`` of the result is axis ``axes[i]`` of this tensor.

        Without axes the order is reversed, as in NumPy. (:func:`ggml_backend.ops.permute_ggml` counts axes as ggml
        does.)
        """
        if (
            2 < len(axes) <= MAX_DIMS
            and (found := attempt(self, _transpose, len(axes), *axes, *ZEROS[len(axes)])) is not None
        ):
            return found
        n = self.ndim
        if not axes or axes[0] is None:
            order = tuple(range(n))[::-1]
        else:
            order = shape_tuple(axes[0] if len(axes) == 1 else axes, "transpose: axes")
        order = tuple(a + n if a < 0 else a for a in order)
        if sorted(order) != list(range(n)):
            raise InvalidArgumentError(f"transpose: {order} is no order of the {n} axes of {self.describe()}")
        if n == 2 and order == (1, 0):
            return context_of("transpose", (self,))._transposed(self)
        to = list(range(MAX_DIMS))
        for new, old in enumerate(order):
            to[n - 1 - old] = n - 1 - new
        return build("transpose", lib.ggml_permute, (self,), *to, ndim=n)

    permute = transpose

    def swapaxes(self, a: int, b: int) -> Tensor:
        """A view with two axes exchanged."""
        n = self.ndim
        order = list(range(n))
        a, b = expect_int(a, "swapaxes: a"), expect_int(b, "swapaxes: b")
        try:
            order[a], order[b] = order[b], order[a]
        except IndexError:
            raise InvalidArgumentError(f"swapaxes: {self.describe()} has no axes {a} and {b}") from None
        return self.transpose(order)

    @property
    def T(self) -> Tensor:
        """The tensor with its axes reversed, a view."""
        return self.transpose()

    def contiguous(self) -> Tensor:
        """The tensor itself if it is contiguous, else a contiguous copy node."""
        return self if self.is_contiguous else build_1("cont", lib.ggml_cont, self)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """A node that converts to another dtype."""
        element = as_dtype(dtype, "astype")
        return self if element.id == self.dtype.id else build_1("cast", lib.ggml_cast, self, element.id)

    def __getitem__(self, index: Any) -> Tensor:
        """A view by integers, slices, ``...`` and ``None``, as in NumPy.

        ggml has no view with a step or an integer on the last axis. There a copy node follows the view. For
        index arrays, use :func:`ggml_backend.ops.get_rows`.
        """
        return indexed(self, index)

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise TypeError("len() of a tensor without axes")
        return shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    # -------------------------------------------------------------------------------------------------------- operators

    def __add__(self, other: TensorLike) -> Tensor:
        return binary("a + b", lib.ggml_add, self, other, commutes=True)

    def __radd__(self, other: TensorLike) -> Tensor:
        return binary("a + b", lib.ggml_add, other, self, commutes=True)

    def __mul__(self, other: TensorLike) -> Tensor:
        if isinstance(other, (int, float)) and not isinstance(other, bool):
            return build_1("scale", lib.ggml_scale, self, other)
        return binary("a * b", lib.ggml_mul, self, other, commutes=True)

    def __rmul__(self, other: TensorLike) -> Tensor:
        if isinstance(other, (int, float)) and not isinstance(other, bool):
            return build_1("scale", lib.ggml_scale, self, other)
        return binary("a * b", lib.ggml_mul, other, self, commutes=True)

    def __sub__(self, other: TensorLike) -> Tensor:
        return binary("a - b", lib.ggml_sub, self, other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        if isinstance(other, (int, float)) and not isinstance(other, bool):
            return -self + other
        return binary("a - b", lib.ggml_sub, other, self)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return binary("a / b", lib.ggml_div, self, other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return binary("a / b", lib.ggml_div, other, self)

    def __neg__(self) -> Tensor:
        return build_1("neg", lib.ggml_neg, self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return build_1("abs", lib.ggml_abs, self)

    def __pow__(self, exponent: float) -> Tensor:
        """``a ** 2`` and ``a ** 0.5``; other exponents raise TypeError."""
        if isinstance(exponent, (int, float, np.integer, np.floating)):
            if exponent == 2:
                return build_1("sqr", lib.ggml_sqr, self)
            if exponent == 0.5:
                return build_1("sqrt", lib.ggml_sqrt, self)
            hint = "1 / a is a power of -1" if exponent == -1 else "a * a * a is a third power"
            raise TypeError(f"a ** b: the exponents 2 and 0.5 are possible, not {exponent}; {hint}")
        return NotImplemented

    def __matmul__(self, other: TensorLike) -> Tensor:
        """The matrix product, as in NumPy. ``x @ w.T`` is ``mul_mat(w, x)`` and transposes nothing.

        An operand that is not float32 and differs from the other's dtype, such as float16 or quantized
        weights, must stand on the right as ``w.T``. Write ``w @ x.T`` as ``(x @ w.T).T``.
        :func:`ggml_backend.ops.matmul` is the same product with ``prec=``.
        """
        return matmul(self, other)

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return matmul(other, self)

    def __lt__(self, other: TensorLike) -> Tensor:
        """A node for ``<``, ``<=``, ``>``, ``>=``: 1 where true, else 0 (:func:`ggml_backend.ops.less`).

        ``==`` makes no node. Use :func:`ggml_backend.ops.equal`.
        """
        return compared("<", self, other)

    def __le__(self, other: TensorLike) -> Tensor:
        return compared("<=", self, other)

    def __gt__(self, other: TensorLike) -> Tensor:
        return compared(">", self, other)

    def __ge__(self, other: TensorLike) -> Tensor:
        return compared(">=", self, other)

    def __bool__(self) -> bool:
        raise TypeError("a tensor has no truth value: its data is known only after its graph has run")

    if not TYPE_CHECKING:  # hidden from type checkers

        def __array_ufunc__(self, ufunc, method, *inputs, **options):
            """``array + tensor`` and ``np.exp(tensor)`` make nodes. Functions of NumPy that no operation computes raise
            TypeError."""
            return numpy_function(Tensor, ufunc, method, inputs, options)

        def __setitem__(self, index, value):
            raise TypeError(
                "x[...] = value: a tensor has no item assignment; x[...].set(value) writes its data, gb.ops.set(x, b)"
                " is a node"
            )

    def __eq__(self, other: object) -> bool:
        """True if both are the same tensor. Several Python objects may stand for one tensor.

        :func:`ggml_backend.ops.equal` compares elements. Raises TypeError for numbers and arrays, which
        can only be compared as elements.
        """
        if isinstance(other, Tensor):
            return bool(self._p == other._p)
        if isinstance(other, (int, float, complex, np.ndarray, np.generic)):
            raise TypeError("Tensor: == compares identities; gb.ops.equal(a, b) compares elements")
        return False

    def __hash__(self) -> int:
        return hash(self._p)

    def describe(self) -> str:
        """A description for messages: ``'w' float32 (64, 128)``."""
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


def has_place(status: int) -> bool:
    """True if C found memory for the tensor. Raises if the search failed."""
    if status == 0:
        return True
    if status != lib.GGML_STATUS_INVALID_STATE:
        raise_last("", status)
    clear_error()
    return False


def add_largest(error: AllocationError, tensors: Iterable[Tensor]) -> None:
    """Adds the largest tensor to the message, because its shape is probably wrong."""
    needing = [t for t in tensors if not t._p.data and not t._p.view_src]
    if needing:
        largest = max(needing, key=lambda t: t.nbytes)
        error.args = (f"{error}; the largest of its tensors is {largest.describe()}",)


def _wrong_shape(t: Tensor, given: tuple[int, ...], shape: tuple[int, ...]) -> InvalidArgumentError:
    if t.dtype.is_quantized and shape != t.shape:
        hint = f"; the bytes of its rows have the shape {shape}"
    else:
        hint = "; array.T has its shape" if len(shape) == 2 and given[::-1] == shape else ""
    return InvalidArgumentError(f"set: {t.describe()} cannot take an array of shape {given}{hint}")


def _quantized(t: Tensor, value: Any, dtype: DType, on_invalid: OnInvalid) -> np.ndarray[Any, Any]:
    array = to_array(value.numpy() if isinstance(value, Tensor) else value, f"set: {t.describe()}")
    if array.shape != t.shape:
        raise _wrong_shape(t, array.shape, t.shape)
    try:
        blocks = quantize(array, dtype, on_invalid=on_invalid)
    except GgmlError as error:
        raise type(error)(f"set: {t.describe()}: {error}") from None
    return blocks.view(np.uint16) if dtype.name == "bfloat16" else blocks


def _write_flat(t: Tensor, array: np.ndarray[Any, Any], offset: int, dtype: DType) -> None:
    if dtype.is_quantized or not lib.ggml_is_contiguous(t._p):
        raise InvalidArgumentError(f"set: an offset needs a contiguous tensor of a plain dtype, not {t.describe()}")
    if offset < 0 or offset + array.size > t.size:
        raise InvalidArgumentError(
            f"set: elements {offset} to {offset + array.size} are outside of {t.describe()}, which has {t.size}"
        )
    data = contiguous(array).reshape(-1).view(np.uint8)
    p = t._live()
    status = _write(t._k, p, _from_buffer(data), offset * dtype.itemsize, data.nbytes, b"it")
    if status:
        raise_last(f"set: {t.describe()}", status)
