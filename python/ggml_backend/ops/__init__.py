"""The operations: one function for each, with ggml's semantics.

The functions compute nothing. Each adds a node to a graph and returns its tensor.

Shapes and axes are in NumPy order: a tensor of shape ``(rows, columns)`` has ``ne = (columns, rows,
1, 1)``. A "row" runs along the last axis. Leading dots stand for batch axes. Unless a docstring says
otherwise, tensors are float32 and the result is a new node. With ``inplace=True`` the result is a view
of the first tensor, and running the graph overwrites its memory.

"b repeats over a": every size of ``a`` is a multiple of the same size of ``b``. Missing axes count as
1. The result has the shape of ``a``. The operators ``+ - * /`` and comparisons follow NumPy's rules
instead.

A NaN element gives NaN in every result that depends on it. Comparisons differ, as their docstrings
say. At infinity, elementwise functions return their limits (``silu(-inf)`` is -0).

All functions raise :class:`InvalidArgumentError` (a ValueError) for shapes and dtypes that do not
fit. The message names the operation and the tensors. They raise TypeError for an argument that must be
a tensor and is not, and :class:`StateError` if the context is closed.

Each family of operations has its own file. The ``__all__`` of a file lists its public operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._base.errors.messages import no_name
from .._base.renamed import warn_of
from ..tensor.tensor import Tensor
from . import (
    _attention,
    _binary,
    _conv,
    _copies,
    _custom,
    _fill,
    _gates,
    _products,
    _recurrent,
    _reduce,
    _resample,
    _rope,
    _select,
    _soft_max,
    _unary,
)
from ._attention import *  # noqa: F403
from ._binary import *  # noqa: F403
from ._conv import *  # noqa: F403
from ._copies import *  # noqa: F403
from ._custom import *  # noqa: F403
from ._fill import *  # noqa: F403
from ._form import BUILDERS as BUILDERS
from ._form import IntPair as IntPair
from ._form import builds as builds
from ._gates import *  # noqa: F403
from ._products import *  # noqa: F403
from ._products import MAX_MATRICES as MAX_MATRICES
from ._recurrent import *  # noqa: F403
from ._reduce import *  # noqa: F403
from ._resample import *  # noqa: F403
from ._rope import *  # noqa: F403
from ._select import *  # noqa: F403
from ._soft_max import *  # noqa: F403
from ._unary import *  # noqa: F403

_FAMILIES = (
    _unary, _gates, _binary, _select, _reduce, _products, _copies, _fill, _soft_max, _rope, _conv, _resample,
    _attention, _recurrent, _custom,
)  # fmt: skip

__all__: list[str] = [name for family in _FAMILIES for name in family.__all__]

for _name in __all__:
    globals()[_name].__module__ = __name__  # where users find it

# Context.tensor (all sizes at once) and Context.constant call these builders.
for _name in ("", "_1d", "_2d", "_3d", "_4d"):
    BUILDERS[f"ggml_new_tensor{_name}"] = Tensor
BUILDERS["ggml_new_i32"] = BUILDERS["ggml_new_f32"] = Tensor

ALIASES = {
    "contiguous": "cont", "divide": "div", "multiply": "mul", "sign": "sgn", "softmax": "soft_max", "square": "sqr",
    "subtract": "sub",
}  # fmt: skip
"""Second names of operations, taken from NumPy or PyTorch."""

OPERATIONS: dict[str, Callable[..., Any]] = {
    name: globals()[name] for name in __all__ if name not in (*ALIASES, *_custom.__all__)
}
"""The public operations by ggml's names."""


def __getattr__(name: str) -> Any:
    if name == "permute":  # until the next release
        warn_of("gb.ops.permute", "gb.ops.permute_ggml")
        return OPERATIONS["permute_ggml"]
    return no_name(__name__, name, __all__)
