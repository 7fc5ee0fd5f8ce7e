"""Tensors, contexts and graphs, and the conversion of arrays to tensor elements."""

from __future__ import annotations

from ._blocks import Blocks
from ._callbacks import set_log
from ._quantize import dequantize, quantize
from .context import Context, from_dlpack
from .graph import Comparison, Function, Graph
from .tensor import Tensor

__all__ = [
    "Blocks", "Comparison", "Context", "Function", "Graph", "Tensor", "dequantize", "from_dlpack", "quantize",
    "set_log",
]  # fmt: skip
