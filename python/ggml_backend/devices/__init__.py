"""Devices that come with the package, written in Python.

``ARRAY`` (:class:`ArrayDevice`) computes with an array library, through the package ``array-api-compat``: NumPy,
PyTorch or CuPy, and so with every accelerator that these reach::

    gb.Backend("ARRAY", library="torch", device="cuda:0")
    gb.Backend("ARRAY:library=torch,device=cpu")

docs/howto/array-device.md says what it computes, and what its options are for.
"""

from __future__ import annotations

from .arrays import ArrayDevice

__all__ = ["ArrayDevice"]
