"""The builders of C from Python: :func:`build`, through which every operation goes, and quicker forms of it for nodes
of one and two sources.

What is built are tensors, whose class stands above this module, because its operators build: it is handed over by
:func:`node_class`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .._errors import InvalidArgumentError, StateError, raise_as
from .._errors.messages import hint_of, kind_of, message_of, plain, reason_of, tensor_hint
from .._errors.parameters import parameter_error
from .._ffi import ffi, lib

if TYPE_CHECKING:
    from ..context import Context
    from ..tensor import Tensor

__all__ = [
    "OF_FIRST",
    "OF_MOST",
    "OF_PRODUCT",
    "OF_SECOND",
    "ZEROS",
    "Tensor",
    "attempt",
    "build",
    "build_1",
    "build_2",
    "describe",
    "newest",
    "node_class",
    "told_as",
]

_ndim = lib.gbpy_ndim
_settle = lib.gbpy_settle
_K = TypeVar("_K", bound=type)

# Instead of a number of dimensions, for `build_1` and `build_2`: as many as ...
OF_MOST: int = lib.GBPY_NDIM_MOST  # the source that has the most
OF_FIRST: int = lib.GBPY_NDIM_FIRST
OF_SECOND: int = lib.GBPY_NDIM_SECOND
OF_PRODUCT: int = lib.GBPY_NDIM_PRODUCT  # a product, where a vector times a matrix is a vector


def node_class(kind: _K) -> _K:
    """Decorates the class of nodes: from now on the functions here make objects of it."""
    globals()["Tensor"] = kind
    return kind


class _Told(threading.local):
    """What messages of this thread name instead of what is built: the operation, and its ``a``."""

    now: tuple[str, Any] | None = None


_told = _Told()


@contextlib.contextmanager
def told_as(op: str, a: Tensor) -> Iterator[None]:
    """Errors in this block are told of ``op`` and its tensor ``a``: the user's, of which something is made first."""
    before, _told.now = _told.now, (op, a)
    try:
        yield
    finally:
        _told.now = before


def describe(label: str, tensor: Tensor | None) -> str:
    return f"{label} None" if tensor is None else f"{label} {tensor.describe()}"


_LABELS = "abcdefgh"


def _refuse(
    op: str, tensors: Sequence[Tensor | None], labels: Sequence[str], error: Exception | None, args: Sequence[Any] = ()
) -> NoReturn:
    status, marked = lib.ggml_last_status(), message_of(lib.gbpy_last_reason())
    message = message_of(lib.ggml_last_error())
    if tensors:
        newest(op, tensors, labels)  # a context that cannot be built on is the better reason
    named = [(label, t) for label, t in zip(labels, tensors, strict=False) if t is not None]
    shown, told = named, _told.now
    if told is not None:
        op, shown = told[0], [(label, told[1] if label == "a" else t) for label, t in named]
    prefix = f"{op}: {', '.join([describe(label, t) for label, t in shown])}" if named else op
    if error is not None:
        hint = "; mul multiplies by a tensor" if op == "scale" and "Tensor" in str(error) else ""
        raise InvalidArgumentError(f"{prefix}: {parameter_error(error, args)}{hint}") from None
    if not marked:
        raise_as(status, plain(message), prefix)
    names = [label for label, _ in named]
    reason = reason_of(marked, op, names, [t.ndim for _, t in named])
    raise_as(status, reason + hint_of(op, marked, names, [t.shape for _, t in named]), prefix)


def newest(op: str, tensors: Sequence[Any], labels: Sequence[str] = _LABELS) -> Context:
    """The context that an operation on these tensors belongs to: the one made last. None is possible for "mask"
    only."""
    pool: Context | None = None
    serial = -1
    for i, t in enumerate(tensors):
        if not isinstance(t, Tensor):
            label = labels[i] if i < len(labels) else f"argument {i}"
            if t is None and label == "mask":
                continue
            raise TypeError(f"{op}: {label} must be a Tensor, not {kind_of(t)}{tensor_hint(t)}")
        core = t._ctx._core
        if core is None:
            raise StateError(f"{op}: the context of {labels[i] if i < len(labels) else 'a tensor'} is closed")
        if core.serial > serial:
            pool, serial = t._ctx, core.serial
    if pool is None:
        raise TypeError(f"{op}: needs a tensor")
    if not pool._writable:
        raise StateError(f"{op}: the copy of a graph cannot be built on")
    return pool


def build(
    op: str,
    function: Any,
    tensors: Sequence[Tensor | None],
    *args: Any,
    ndim: int | None = None,
    labels: Sequence[str] = _LABELS,
    array: bool = False,
    pool: Context | None = None,
) -> Tensor:
    """Calls a C builder and wraps its result.

    ndim: dimensions of the result as Python shows them; default: the most that a source has
    array: the first tensors are passed as the last argument's array (mul_mat_id passes its own pointers through
        ``args``)
    pool: the context that it belongs to, of all these the one made last; default: that of the tensors
    """
    if pool is None:
        pool = newest(op, tensors, labels)
    core = pool._live()
    pointers = []
    dims = 0
    for t in tensors:
        if t is None:
            pointers.append(ffi.NULL)
            continue
        other = t._ctx._core
        if other is not core:
            if other is None:
                raise StateError(f"{op}: the context of a tensor is closed")
            core.adopt(other)
        pointers.append(t._p)
        if ndim is None:
            dims = max(dims, _ndim(t._p))
    try:
        pointer = function(core.ptr, *args) if array else function(core.ptr, *pointers, *args)
    except (OverflowError, TypeError) as error:
        _refuse(op, tensors, labels, error, args)
    if not pointer:
        _refuse(op, tensors, labels, None)
    _settle(pointer, dims if ndim is None else ndim)
    return Tensor(pool, pointer, core.h)


def build_1(op: str, function: Any, a: Tensor, *args: Any, ndim: int = OF_MOST) -> Tensor:
    """:func:`build` for a node of one source, in half the time. ``function`` makes a node whose first source is
    ``a``."""
    if not isinstance(a, Tensor) or (core := a._ctx._core) is None:
        newest(op, (a,))  # says what is wrong
        raise StateError(f"{op}: the context of a tensor is closed")
    try:
        pointer = function(core.ptr, a._p, *args)
    except (OverflowError, TypeError) as error:
        _refuse(op, (a,), _LABELS, error, args)
    if not pointer:
        _refuse(op, (a,), _LABELS, None)
    _settle(pointer, ndim)
    return Tensor(a._ctx, pointer, core.h)


def build_2(
    op: str, function: Any, a: Tensor, b: Tensor, *args: Any, ndim: int = OF_MOST, labels: Sequence[str] = _LABELS
) -> Tensor:
    """:func:`build` for a node of two sources, in half the time. ``function`` makes a node whose first sources are
    ``a`` and ``b``."""
    core = a._ctx._core if isinstance(a, Tensor) else None
    other = b._ctx._core if isinstance(b, Tensor) else None
    if core is None or other is None:
        newest(op, (a, b), labels)  # says what is wrong
        raise StateError(f"{op}: the context of a tensor is closed")
    pool = a._ctx
    if core is not other:
        if other.serial > core.serial:
            pool, core, other = b._ctx, other, core
        if other.serial not in core.adopted:
            core.adopt(other)
    try:
        pointer = function(core.ptr, a._p, b._p, *args)
    except (OverflowError, TypeError) as error:
        _refuse(op, (a, b), labels, error, args)
    if not pointer:
        _refuse(op, (a, b), labels, None)
    _settle(pointer, ndim)
    return Tensor(pool, pointer, core.h)


ZEROS = ((0, 0, 0, 0), (0, 0, 0), (0, 0), (0,), ())
"""What makes n numbers the four that functions for :func:`attempt` take."""


def attempt(a: Tensor, function: Any, n: int, *args: Any) -> Tensor | None:
    """A view of ``a`` by one of the functions of ffi_build.h; None if the caller has to look closer."""
    core = a._ctx._core
    if core is None:
        raise StateError("the context of the tensor is closed")
    try:
        pointer = function(core.ptr, a._p, n, *args)
    except (OverflowError, TypeError):
        return None
    return Tensor(a._ctx, pointer, core.h) if pointer else None
