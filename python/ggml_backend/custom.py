"""Operations written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._callbacks import CustomOp
from ._errors import InvalidArgumentError
from ._errors.messages import kind_of
from ._ffi import lib
from ._nodes.build import build, newest
from .ops._form import BUILDERS
from .tensor import Tensor

__all__ = ["map_custom"]

_BUILD = {
    (1, False): lib.ggml_map_custom1,
    (2, False): lib.ggml_map_custom2,
    (3, False): lib.ggml_map_custom3,
    (1, True): lib.ggml_map_custom1_inplace,
    (2, True): lib.ggml_map_custom2_inplace,
    (3, True): lib.ggml_map_custom3_inplace,
}
_CALL = {1: lib.gbpy_custom1, 2: lib.gbpy_custom2, 3: lib.gbpy_custom3}


def map_custom(function: Callable[..., Any], *tensors: Tensor, n_tasks: int = 1, inplace: bool = False) -> Tensor:
    """A node computed by a Python function on NumPy views; it has the shape and dtype of the first of one to three
    tensors.

    function: called as ``function(dst, a, ...)``; it writes ``dst``, or returns what is to be written. ``a, ...`` are
        read-only. With ``n_tasks`` other than 1 it is called ``nth`` times, as ``function(dst, a, ..., ith, nth)`` with
        ``ith = 0 .. nth - 1``, by the threads of the backend, and does its share each time.
    n_tasks: 1; or at most how many threads; or -1 for as many as the backend has

    The function runs on the CPU, on whatever thread computes the node. If it raises, the computation stops and the
    exception is raised to who called ``compute``. It must not use the backend or scheduler that is computing.
    """
    if not callable(function):
        raise TypeError(
            f"map_custom: the first argument must be a function, not {kind_of(function)}: map_custom(function, tensor,"
            " ...)"
        )
    if not 1 <= len(tensors) <= 3:
        raise InvalidArgumentError(f"map_custom: takes one to three tensors, not {len(tensors)}")
    op = CustomOp(function, n_tasks)
    n = len(tensors)
    context = newest("map_custom", tensors)._live()
    context.functions.append(op)  # before there is a node that refers to it
    return build("map_custom", _BUILD[n, inplace], tensors, _CALL[n], n_tasks, op.handle, ndim=_ndim(tensors[0]))


def _ndim(tensor: Any) -> int:
    return tensor.ndim if isinstance(tensor, Tensor) else 0


for _i in (1, 2, 3):
    BUILDERS[f"ggml_map_custom{_i}"] = BUILDERS[f"ggml_map_custom{_i}_inplace"] = map_custom
