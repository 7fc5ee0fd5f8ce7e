"""Networks of other libraries as graphs.

A reader makes a :class:`Network`, data that no library is needed for. Rules translate each of its operators into
operations of :mod:`ggml_backend.ops`. An :class:`Engine` runs the graphs. The first reader is that of
``ggml_backend.torch.compile``.
"""

from __future__ import annotations

from .network import Network, Node, Ref, Value
from .program import Engine, Explanation, Missing, Step, draft, explain, refuse
from .rules import RULES, matrices
from .runs import Runs, Variant
from .saved import Program, load_program
from .simplify import simplify

__all__ = [
    "RULES", "Engine", "Explanation", "Missing", "Network", "Node", "Program", "Ref", "Runs", "Step", "Value",
    "Variant", "draft", "explain", "load_program", "matrices", "refuse", "simplify",
]  # fmt: skip
