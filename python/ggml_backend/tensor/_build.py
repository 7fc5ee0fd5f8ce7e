"""Calls the C builders from Python.

Every operation goes through :func:`build`. Faster forms exist for nodes with one and two sources. The
tensor class imports this module, so it registers itself with :func:`node_class`.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .._base.errors import InvalidArgumentError, StateError, raise_as
from .._base.errors.faults import broken_rule, last_message, spoken
from .._base.errors.messages import hint_of, kind_of, tensor_hint
from .._base.errors.parameters import all_plain, parameter_error, plain_numbers
from .._ffi import ffi, lib

if TYPE_CHECKING:
    from .context import Context
    from .tensor import Tensor

__all__ = [
    "OF_FIRST",
    "OF_MOST",
    "OF_PRODUCT",
    "OF_SECOND",
    "ZEROS",
    "DefaultContext",
    "attempt",
    "build",
    "build_1",
    "build_2",
    "context_of",
    "describe",
    "node_class",
    "reported_as",
    "tensor_class",
]

_ndim = lib.gbpy_ndim
_settle = lib.gbpy_settle
_K = TypeVar("_K", bound="type[Tensor]")

# Values of ``ndim`` for `build_1` and `build_2`: the result has the number of dimensions of ...
OF_MOST: int = lib.GBPY_NDIM_MOST  # the source with the most dimensions
OF_FIRST: int = lib.GBPY_NDIM_FIRST
OF_SECOND: int = lib.GBPY_NDIM_SECOND
OF_PRODUCT: int = lib.GBPY_NDIM_PRODUCT  # a product, where a vector times a matrix is a vector


tensor_class: type[Tensor]  # tensor.py imports this module, and sets it


def node_class(kind: _K) -> _K:
    """Decorator: makes the functions of this module return objects of this class."""
    global tensor_class
    tensor_class = kind
    return kind


class _Caller(threading.local):
    """The operation, and its ``a``, that messages of this thread name instead of the built node."""

    now: tuple[str, Any] | None = None


_caller = _Caller()


@contextlib.contextmanager
def reported_as(op: str, a: Tensor) -> Iterator[None]:
    """Errors in this block name ``op`` and its tensor ``a``, which the user passed, not an intermediate node."""
    before, _caller.now = _caller.now, (op, a)
    try:
        yield
    finally:
        _caller.now = before


def describe(label: str, tensor: Tensor | None) -> str:
    return f"{label} None" if tensor is None else f"{label} {tensor.describe()}"


def _listed(named: Sequence[tuple[str, Tensor | None]], labels: Sequence[str]) -> str:
    """Describes the operands in the caller's order, which an operator may have reversed."""
    ordered = sorted(named, key=lambda operand: operand[0]) if labels == "ba" else named
    return ", ".join([describe(label, t) for label, t in ordered])


_LABELS = "abcdefgh"


def _refuse(
    op: str, tensors: Sequence[Tensor | None], labels: Sequence[str], error: Exception | None, args: Sequence[Any] = ()
) -> NoReturn:
    named = [(label, t) for label, t in zip(labels, tensors, strict=False) if t is not None]
    status, message = lib.ggml_last_status(), last_message()
    broken = broken_rule(op, [label for label, _ in named], [lib.gbpy_ndim(t._p) for _, t in named])
    if tensors:
        context_of(op, tensors, labels)  # prefer the error of a context that cannot be built on
    shown, caller = named, _caller.now
    if caller is not None:
        op, shown = caller[0], [(label, caller[1] if label == "a" else t) for label, t in named]
    prefix = f"{op}: {_listed(shown, labels)}" if named else op
    if error is not None:
        hint = "; mul multiplies by a tensor" if op == "scale" and "Tensor" in str(error) else ""
        raise InvalidArgumentError(f"{prefix}: {parameter_error(error, args)}{hint}") from None
    if broken is None:
        raise_as(status, spoken(message), prefix)
    fault, reason = broken
    raise_as(status, reason + hint_of(fault, [t.shape for _, t in named]), prefix, fault)


# The active ``as_default`` blocks, innermost first, each linked to the enclosing ones. Only the ``with``
# statement keeps a block alive. A block that an interrupt ended on entry or exit has no effect.
_Chain = tuple["weakref.ref[DefaultContext]", Any]
_default: ContextVar[_Chain | None] = ContextVar("default context", default=None)
_blocks = _default.get


class DefaultContext:
    """All results that this thread or task builds in this block belong to ``context``."""

    __slots__ = ("__weakref__", "context")

    def __init__(self, context: Context) -> None:
        self.context = context

    def __enter__(self) -> Context:
        _default.set((weakref.ref(self), _blocks()))
        return self.context

    def __exit__(self, *error: object) -> None:
        blocks = _blocks()
        while blocks is not None and blocks[0]() is not self:
            blocks = blocks[1]
        if blocks is not None:
            _default.set(blocks[1])


def _named() -> Context | None:
    """The context of the innermost ``as_default`` block."""
    blocks = _blocks()
    while blocks is not None:
        block = blocks[0]()
        if block is not None:
            return block.context
        blocks = blocks[1]
    return None


def context_of(op: str, tensors: Sequence[Any], labels: Sequence[str] = _LABELS) -> Context:
    """The context that the result of an operation on these tensors belongs to.

    1. The context that ``with ctx.as_default():`` names.
    2. If all sources share one context, that context.
    3. Weights do not count. If the other sources share one context, that context.
    4. Otherwise an error asks the caller to name a context.

    Weights are tensors of weight contexts, and tensors in weight buffers. The order in which contexts
    were made does not matter. Only "mask" and "factors" may be None.
    """
    found: list[Context] = []
    for i, t in enumerate(tensors):
        if not isinstance(t, tensor_class):
            label = labels[i] if i < len(labels) else f"argument {i}"
            if t is None and label in ("mask", "factors"):
                continue
            raise TypeError(f"{op}: {label} must be a Tensor, not {kind_of(t)}{tensor_hint(t)}")
        if t._ctx._core is None:
            raise StateError(f"{op}: the context of {labels[i] if i < len(labels) else 'a tensor'} is closed")
        if all(t._ctx._core is not c._core for c in found):
            found.append(t._ctx)
    if not found:
        raise TypeError(f"{op}: needs a tensor")
    named = _named()
    if named is not None:
        if named.closed:
            raise StateError(f"{op}: the default context is closed")
        found = [named]
    elif len(found) > 1:
        counting = {id(t._ctx._core) for t in tensors if t is not None and t._ctx._counts(t)}
        found = [c for c in found if id(c._core) in counting] or found
    if len(found) > 1:
        _refuse_contexts(op, tensors, labels, found)
    if not found[0]._writable:
        raise StateError(f"{op}: the copy of a graph cannot be built on")
    return found[0]


def _refuse_contexts(op: str, tensors: Sequence[Any], labels: Sequence[str], found: Sequence[Context]) -> NoReturn:
    """Raises an error: the sources have several contexts, and each could own the result."""
    first = [next((i, t) for i, t in enumerate(tensors) if t is not None and t._ctx._core is c._core) for c in found]
    shown = _listed([(labels[i] if i < len(labels) else f"argument {i}", t) for i, t in first], labels)
    raise InvalidArgumentError(
        f"{op}: {shown}: these belong to different contexts, so name the one of the result: 'with ctx.as_default():'. A"
        " context that holds weights, gb.Context(usage='weights'), needs no naming"
    )


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

    ndim: dimensions of the result in Python; default: those of the source with the most dimensions
    array: pass the first tensors as an array in the last argument (mul_mat_id passes its own pointers
        through ``args``)
    pool: the context of the result; default: the context of the tensors
    """
    if pool is None:
        pool = context_of(op, tensors, labels)
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
            if other.serial not in core.adopted:
                core.adopt(other, op)
        pointers.append(t._p)
        if ndim is None:
            dims = max(dims, _ndim(t._p))
    given = args if all_plain(map(type, args)) else plain_numbers(args)
    try:
        pointer = function(core.ptr, *given) if array else function(core.ptr, *pointers, *given)
    except (OverflowError, TypeError) as error:
        _refuse(op, tensors, labels, error, args)
    if not pointer:
        _refuse(op, tensors, labels, None)
    _settle(pointer, dims if ndim is None else ndim)
    return tensor_class(pool, pointer, core.h)


def build_1(op: str, function: Any, a: Tensor, *args: Any, ndim: int = OF_MOST) -> Tensor:
    """:func:`build` for a node of one source, in half the time. ``a`` is the node's first source."""
    if _blocks() is not None:
        return build(op, function, (a,), *args, ndim=ndim)
    if not isinstance(a, tensor_class) or (core := a._ctx._core) is None:
        context_of(op, (a,))  # raises the exact error
        raise StateError(f"{op}: the context of a tensor is closed")
    given = args if all_plain(map(type, args)) else plain_numbers(args)
    try:
        pointer = function(core.ptr, a._p, *given)
    except (OverflowError, TypeError) as error:
        _refuse(op, (a,), _LABELS, error, args)
    if not pointer:
        _refuse(op, (a,), _LABELS, None)
    _settle(pointer, ndim)
    return tensor_class(a._ctx, pointer, core.h)


def build_2(
    op: str, function: Any, a: Tensor, b: Tensor, *args: Any, ndim: int = OF_MOST, labels: Sequence[str] = _LABELS
) -> Tensor:
    """:func:`build` for a node of two sources, in half the time.

    ``function`` makes a node whose first sources are ``a`` and ``b``.
    """
    core = a._ctx._core if isinstance(a, tensor_class) else None
    other = b._ctx._core if isinstance(b, tensor_class) else None
    if core is None or other is None:
        context_of(op, (a, b), labels)  # raises the exact error
        raise StateError(f"{op}: the context of a tensor is closed")
    pool = a._ctx
    if core is not other or _blocks() is not None:
        pool = context_of(op, (a, b), labels)
        sources, core = (core, other), pool._live()
        for source in sources:
            if source is not core and source.serial not in core.adopted:
                core.adopt(source, op)
    given = args if all_plain(map(type, args)) else plain_numbers(args)
    try:
        pointer = function(core.ptr, a._p, b._p, *given)
    except (OverflowError, TypeError) as error:
        _refuse(op, (a, b), labels, error, args)
    if not pointer:
        _refuse(op, (a, b), labels, None)
    _settle(pointer, ndim)
    return tensor_class(pool, pointer, core.h)


ZEROS = ((0, 0, 0, 0), (0, 0, 0), (0, 0), (0,), ())
"""Pads n numbers to the four arguments of the functions for :func:`attempt`."""


def attempt(a: Tensor, function: Any, n: int, *args: Any) -> Tensor | None:
    """A view of ``a`` by a function of ffi_build.h. None if the fast path does not apply."""
    core, pool = a._ctx._core, a._ctx
    if core is None:
        raise StateError("the context of the tensor is closed")
    if _blocks() is not None:
        pool = context_of("view", (a,))
        source, core = core, pool._live()
        core.adopt(source, "view")
    given = args if all_plain(map(type, args)) else plain_numbers(args)
    try:
        pointer = function(core.ptr, a._p, n, *given)
    except (OverflowError, TypeError):
        return None
    return tensor_class(pool, pointer, core.h) if pointer else None
