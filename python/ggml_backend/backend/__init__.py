"""Backends, buffers and events."""

from __future__ import annotations

from .backend import Backend, BackendList, LoadRecord, backends, cpu_levels, get_include, load_backend, load_report
from .buffer import Buffer, BufferType, cpu_buffer_type
from .event import Event

__all__ = [
    "Backend", "BackendList", "Buffer", "BufferType", "Event", "LoadRecord", "backends", "cpu_buffer_type",
    "cpu_levels", "get_include", "load_backend", "load_report",
]  # fmt: skip
