"""The libraries that compare_peers.py measures. Import this before NumPy: it chooses the kernels
of NumPy's OpenBLAS. OpenBLAS chooses by the model of the processor, which hypervisors hide."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path


def processor() -> tuple[str, set[str]]:
    """Its name and its flags, from Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown", set()
    said = dict(re.findall(r"^(model name|flags|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    name = f"{said.get('model name', 'unknown')} (family {said.get('cpu family')}, model {said.get('model')})"
    return name, set(said.get("flags", "").split())


assert "numpy" not in sys.modules, "import peers before NumPy"
if "avx512vl" in processor()[1]:
    os.environ.setdefault("OPENBLAS_CORETYPE", "SKYLAKEX")  # the fastest of its kernels for float32 there
