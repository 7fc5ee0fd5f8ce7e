"""Every operation as a function, with ggml's meaning.

Shapes and axes are in NumPy order in this module: a tensor of shape ``(rows, columns)`` has ``ne = (columns, rows, 1,
1)``; "row" means the last axis. Leading dots stand for batch axes. Unless said otherwise tensors are float32 and the
result is a new node. With ``inplace=True`` the result is a view of the first tensor, whose memory is overwritten when
the graph runs.

"b repeats over a": every size of ``a`` is a multiple of that of ``b`` (missing axes count as 1), the result has the
shape of ``a``. The operators ``+ - * /`` and comparisons follow NumPy's rules instead.

NaN in an element gives NaN in every result that depends on it, but for comparisons, which say so; elementwise functions
have their limits at infinity (``silu(-inf)`` is -0).

All functions raise :class:`InvalidArgumentError` (a ValueError) for shapes and dtypes that do not fit, naming the
operation and the tensors, TypeError for what is no tensor, and :class:`StateError` if the context is closed. Nothing is
computed here.

A file for each family, with the names of its operations in ``__all__``: what is there is an operation of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._base.renamed import warn_of
from ..tensor.tensor import Tensor
from . import (
    _attention,
    _binary,
    _conv,
    _copies,
    _norms,
    _products,
    _reduce,
    _rope,
    _select,
    _soft_max,
    _unary,
)
from ._attention import *  # noqa: F403
from ._binary import *  # noqa: F403
from ._conv import *  # noqa: F403
from ._copies import *  # noqa: F403
from ._form import BUILDERS as BUILDERS
from ._form import IntPair as IntPair
from ._form import builds as builds
from ._norms import *  # noqa: F403
from ._products import *  # noqa: F403
from ._products import MAX_MATRICES as MAX_MATRICES
from ._reduce import *  # noqa: F403
from ._rope import *  # noqa: F403
from ._select import *  # noqa: F403
from ._soft_max import *  # noqa: F403
from ._unary import *  # noqa: F403

# As type checkers understand it.
__all__: list[str] = []
__all__ += _unary.__all__
__all__ += _binary.__all__
__all__ += _select.__all__
__all__ += _reduce.__all__
__all__ += _norms.__all__
__all__ += _products.__all__
__all__ += _copies.__all__
__all__ += _soft_max.__all__
__all__ += _rope.__all__
__all__ += _conv.__all__
__all__ += _attention.__all__

for _name in __all__:
    globals()[_name].__module__ = __name__  # where users find it

# Made by Context.tensor (all sizes at once) and Context.constant.
for _name in ("", "_1d", "_2d", "_3d", "_4d"):
    BUILDERS[f"ggml_new_tensor{_name}"] = Tensor
BUILDERS["ggml_new_i32"] = BUILDERS["ggml_new_f32"] = Tensor

ALIASES = {
    "contiguous": "cont", "divide": "div", "multiply": "mul", "sign": "sgn", "softmax": "soft_max", "square": "sqr",
    "subtract": "sub",
}  # fmt: skip
"""Second names, those of NumPy or PyTorch."""

OPERATIONS: dict[str, Callable[..., Any]] = {name: globals()[name] for name in __all__ if name not in ALIASES}
"""The public operations by ggml's names."""


def __getattr__(name: str) -> Any:
    if name == "permute":  # until the next release
        warn_of("ops.permute", "ops.permute_ggml")
        return OPERATIONS["permute_ggml"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
