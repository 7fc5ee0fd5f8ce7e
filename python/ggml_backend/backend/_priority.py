"""Backends in order of priority, from the names that users give."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.errors import InvalidArgumentError, expect_int, expect_list
from .._base.errors.messages import kind_of
from .backend import Backend

__all__ = ["backends_of", "holders_of"]


def backends_of(devices: Sequence[str | Backend], n_threads: int | None) -> list[Backend]:
    """Backends in order of priority. The CPU comes last: it runs the operations that other devices do not support."""
    if isinstance(devices, (str, Backend)):
        devices = (devices,)
    devices = expect_list(devices, "devices", "names of devices or backends")
    if not devices:
        raise InvalidArgumentError("devices is empty: give at least 'CPU'")
    for device in devices:
        if not isinstance(device, (str, Backend)):
            raise TypeError(f"devices must be names or backends, not {kind_of(device)}")
    n_threads = None if n_threads is None else expect_int(n_threads, "n_threads")
    made = [
        d if isinstance(d, Backend)
        else Backend(d, n_threads=n_threads) if n_threads and d.upper() == "CPU"
        else Backend(d)
        for d in devices
    ]  # fmt: skip
    if not made[-1].name.startswith("CPU"):
        made.append(Backend("CPU", n_threads=n_threads) if n_threads else Backend("CPU"))
    return made


def holders_of(backends: Sequence[Backend], devices: Sequence[str | Backend]) -> list[Backend]:
    """The backends that hold the weights of a model: without a CPU that :func:`backends_of` added to ``devices``."""
    return list(backends[: 1 if isinstance(devices, (str, Backend)) else len(devices)])
