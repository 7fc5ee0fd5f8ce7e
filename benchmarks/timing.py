"""How the benchmarks measure: the package's own timing (``python/ggml_backend/_timing.py``), taken from this tree.

So all figures are taken alike, also where another version of the package is measured, or where there is none.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

_file = Path(__file__).resolve().parents[1] / "python" / "ggml_backend" / "_timing.py"
_spec = importlib.util.spec_from_file_location("_timing", _file)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

PROCESS, THREAD, WALL = _module.PROCESS, _module.THREAD, _module.WALL
in_turns, median, once, per_call = _module.in_turns, _module.median, _module.once, _module.per_call
ratio, series, shortest, timed = _module.ratio, _module.series, _module.shortest, _module.timed
