"""Networks of other libraries as graphs, and programs that run them.

A reader makes a ``Network`` (``program.network``), data that depends on no library. Rules (``program.rules``)
translate each of its operators into operations of :mod:`ggml_backend.ops`. An ``Engine`` (``program.program``) runs the
graphs. Readers: that of ``ggml_backend.torch.compile``, that of ONNX (:func:`load_onnx`), and that of program files
(:func:`load_program`).
"""

from __future__ import annotations

from .onnx import load_onnx
from .program import Explanation, Missing
from .saved import Program, load_program

__all__ = ["Explanation", "Missing", "Program", "load_onnx", "load_program"]
