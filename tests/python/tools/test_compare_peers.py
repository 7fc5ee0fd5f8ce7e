"""benchmarks/compare_peers.py with tiny sizes: it runs the installed peers and names the missing
ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

from source_tree import in_tree

SCRIPT = [sys.executable, str(in_tree("benchmarks/compare_peers.py"))]
QUICK = ["--quick", "--threads", "1", "--rounds", "2", "--seconds", "0.001", "--pause", "0"]


def test_installed_peers_are_compared(tmp_path):
    file = tmp_path / "new" / "peers.json"
    words = ["products", "small", "ops", "attention", *QUICK, "--json", str(file)]
    out = subprocess.run([*SCRIPT, *words], capture_output=True, text=True, check=True).stdout
    data = json.loads(file.read_text())
    assert data["processor"] and data["level"] and data["openblas"]
    for peer in ("numpy", "torch", "onnxruntime"):
        assert (peer in data["versions"]) != (peer in data["absent"])
        assert (f"absent: {peer}" in out) == (peer in data["absent"])
        if find_spec(peer) is None:
            assert peer in data["absent"]
    assert "numpy" in data["versions"]
    add = data["cases"]["add, 16 KB"]
    assert add["unit"] == "GB/s" and len(add["rounds"]["ours"]) == len(add["rounds"]["numpy"]) == 2
    assert add["ratios"]["numpy"] > 0
    lines = out.splitlines()
    titles = next(i for i, line in enumerate(lines) if line.startswith("1 threads "))
    table = lines[titles + 1 : titles + 1 + len(data["cases"])]
    assert "numpy, ratio" in lines[titles]
    assert all(line.startswith(f"{name} ") for line, name in zip(table, data["cases"], strict=True))
    assert not [c for c in data["cases"].values() if "numpy" in c["left_out"]]  # every result of NumPy agreed


def test_bad_arguments():
    for words in (["nonsense"], ["--rounds", "0"], ["--sizes", "16k"], ["--sizes", "0K"]):
        run = subprocess.run([*SCRIPT, *words], capture_output=True, text=True, check=False)
        assert run.returncode == 2 and words[-1] in run.stderr
