"""Without PyTorch, importing ``ggml_backend.torch`` says what to install."""

from __future__ import annotations


def test_a_missing_pytorch_is_named(script):
    script("""
import sys
sys.modules["torch"] = None
try:
    import ggml_backend.torch
except ImportError as error:
    assert "ggml_backend.torch needs PyTorch: pip install 'ggml_backend[torch]'" in str(error), error
else:
    raise AssertionError("imported")
""")
