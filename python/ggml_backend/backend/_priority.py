"""Backends in order of priority, from the names that users give."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.errors import InvalidArgumentError, expect_int, expect_list
from .._base.errors.messages import kind_of
from .backend import Backend

__all__ = ["backends_of", "holders_of", "with_cpu"]


def holders_of(devices: Sequence[str | Backend], n_threads: int | None) -> list[Backend]:
    """Backends in order of priority, for the weights of a model.

    n_threads: of a CPU among them
    """
    if isinstance(devices, (str, Backend)):
        devices = (devices,)
    devices = expect_list(devices, "devices", "names of devices or backends")
    if not devices:
        raise InvalidArgumentError("devices is empty: give at least 'CPU'")
    for device in devices:
        if not isinstance(device, (str, Backend)):
            raise TypeError(f"devices must be names or backends, not {kind_of(device)}")
    n_threads = None if n_threads is None else expect_int(n_threads, "n_threads")
    return [
        d if isinstance(d, Backend) else Backend(d, n_threads=(n_threads or None) if d.upper() == "CPU" else None)
        for d in devices
    ]


def with_cpu(holders: Sequence[Backend], n_threads: int | None) -> list[Backend]:
    """The backends, with a CPU at the end. It runs the operations that other devices do not support."""
    if holders[-1].name.startswith("CPU"):
        return list(holders)
    return [*holders, Backend("CPU", n_threads=n_threads or None)]


def backends_of(devices: Sequence[str | Backend], n_threads: int | None) -> list[Backend]:
    """Backends in order of priority. The last one is a CPU."""
    return with_cpu(holders_of(devices, n_threads), n_threads)
