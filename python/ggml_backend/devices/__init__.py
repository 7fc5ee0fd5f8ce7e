"""Devices in Python: the base class of yours, and ``ARRAY``.

A subclass of :class:`Device` is a device that the scheduler treats as any other backend. docs/BACKENDS.md builds one
step by step.

``ARRAY`` (:class:`ArrayDevice`) computes with an array library through the package ``array-api-compat``:
NumPy, PyTorch or CuPy. So it reaches every accelerator that these libraries support::

    gb.Backend("ARRAY", library="torch", device="cuda:0")
    gb.Backend("ARRAY:library=torch,device=cpu")

docs/howto/array-device.md describes its operators and options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._base.errors.messages import no_name
from .._base.renamed import load

if TYPE_CHECKING:
    from ._array.device import ArrayDevice
    from .device import Call, Device, Node, op, register_device
else:
    _LATER = {"_array.device": ("ArrayDevice",), "device": ("Call", "Device", "Node", "op", "register_device")}

    def __getattr__(name):
        found = load(__name__, _LATER, name)
        return no_name(__name__, name, __all__) if found is None else found


__all__ = ["ArrayDevice", "Call", "Device", "Node", "op", "register_device"]
