"""Gradients of a scalar, as tensors of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from .._base.errors import InvalidArgumentError, expect, raise_last
from .._base.errors.faults import last_message
from .._base.errors.messages import kind_of
from .._ffi import ffi, lib
from ._build import _refuse, context_of, describe
from .tensor import Tensor

__all__ = ["grad"]


@overload
def grad(loss: Tensor, params: Sequence[Tensor], *, allow_unused: Literal[False] = False) -> list[Tensor]: ...
@overload
def grad(loss: Tensor, params: Sequence[Tensor], *, allow_unused: bool) -> list[Tensor | None]: ...
def grad(loss: Tensor, params: Sequence[Tensor], *, allow_unused: bool = False) -> list[Tensor] | list[Tensor | None]:
    """Gradients of ``loss`` for each of ``params``, as new float32 tensors of their shapes.

    The gradients are nodes. They are computed with the graphs that have them, on any device::

        loss = gb.ops.cross_entropy_loss(x @ w.T, target)
        (dw,) = gb.grad(loss, [w])
        graph = ctx.graph(loss, dw)

    loss: a float32 tensor with one element
    params: tensors of float32, float16 or bfloat16 that ``loss`` depends on. They need not be leafs.
    allow_unused: for a parameter that ``loss`` does not depend on, the list has None. By default this is an error.

    Gradients can be derived again. A parameter that ``loss`` depends on only through comparisons, rounding or
    other functions with derivative 0 has a gradient of zeros.

    :class:`UnsupportedError`: a node between a parameter and ``loss`` has no derivative, or a node in place
    overwrites a tensor that the gradients need. The message names the node.
    """
    if isinstance(params, Tensor) or not isinstance(params, Sequence):
        hint = ": use [w]" if isinstance(params, Tensor) else ""
        raise TypeError(f"grad: params must be a sequence of tensors, not {kind_of(params)}{hint}")
    given = list(params)
    labels = ["loss", *(f"params[{i}]" for i in range(len(given)))]
    for label, t in zip(labels, (loss, *given), strict=True):
        expect(t, Tensor, f"grad: {label}")
    if not isinstance(allow_unused, bool):
        raise TypeError(f"grad: allow_unused must be True or False, not {kind_of(allow_unused)}")
    pool = context_of("grad", (loss, *given), labels)
    core = pool._live()
    for t in (loss, *given):
        other = t._ctx._live()
        if other is not core and other.serial not in core.adopted:
            core.adopt(other, "grad")
    found = ffi.new("struct ggml_tensor *[]", max(len(given), 1))
    if lib.ggml_grad(core.ptr, loss._p, [t._p for t in given], len(given), found) != lib.GGML_STATUS_SUCCESS:
        if last_message().startswith("ggml_grad:"):
            _refuse("grad", (loss,), ("loss",), None)
        raise_last("grad")  # the builder of a gradient failed, whose operands are not the caller's
    results: list[Tensor | None] = []
    for label, t, pointer in zip(labels[1:], given, found, strict=False):
        if not pointer and not allow_unused:
            raise InvalidArgumentError(
                f"grad: {describe('loss', loss)} does not depend on {describe(label, t)}: leave it out, or pass"
                " allow_unused=True"
            )
        if pointer:
            lib.gbpy_settle(pointer, t.ndim)
        results.append(Tensor(pool, pointer, core.h) if pointer else None)
    return results
