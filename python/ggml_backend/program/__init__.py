"""Networks of other libraries as graphs, and programs that run them.

A reader makes a ``Network`` (``program.network``), data that no library is needed for. Rules (``program.rules``)
translate each of its operators into operations of :mod:`ggml_backend.ops`. An ``Engine`` (``program.program``) runs the
graphs. The readers are those of ``ggml_backend.torch.compile``, of ONNX (:func:`load_onnx`), and of program files
(:func:`load_program`).
"""

from __future__ import annotations

from .onnx import load_onnx
from .program import Explanation, Missing
from .saved import Program, load_program

__all__ = ["Explanation", "Missing", "Program", "load_onnx", "load_program"]
