"""Devices that come with the package, written in Python.

``ARRAY`` (:class:`ArrayDevice`) computes with an array library through the package ``array-api-compat``:
NumPy, PyTorch or CuPy. So it reaches every accelerator that these libraries support::

    gb.Backend("ARRAY", library="torch", device="cuda:0")
    gb.Backend("ARRAY:library=torch,device=cpu")

docs/howto/array-device.md describes its operators and options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._array.device import ArrayDevice
else:

    def __getattr__(name):
        if name != "ArrayDevice":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ._array.device import ArrayDevice

        return ArrayDevice


__all__ = ["ArrayDevice"]
