"""Networks of other libraries as graphs.

A reader makes a :class:`Network` of a model: data that depends on no library. Rules translate each of its operators
into operations of :mod:`ggml_backend.ops`. An :class:`Engine` runs the graphs. The first reader is that of
``ggml_backend.torch.compile``.
"""

from __future__ import annotations

from .network import Network, Node, Ref, Value
from .program import Engine, Explanation, Missing, Step, draft, explain, refuse
from .rules import RULES, matrices

__all__ = [
    "RULES", "Engine", "Explanation", "Missing", "Network", "Node", "Ref", "Step", "Value", "draft", "explain",
    "matrices", "refuse",
]  # fmt: skip
