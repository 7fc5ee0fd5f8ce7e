"""``ARRAY``, a device that computes with NumPy, PyTorch or CuPy."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["missing"]


def missing() -> str | None:
    """The reason why ``ARRAY`` is unavailable; None if it is available."""
    if find_spec("array_api_compat") is None:
        return "needs the package array-api-compat: pip install ggml_backend[arrays]"
    return None
