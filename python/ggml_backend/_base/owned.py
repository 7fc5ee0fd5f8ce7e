"""C objects that a Python object owns."""

from __future__ import annotations

from typing import Any

from .._ffi import ffi, lib

__all__ = ["owned"]

_gc = ffi.gc
_untrack = lib.gbpy_untrack


def owned(pointer: Any, destructor: Any) -> Any:
    """The pointer as an object that calls ``destructor``, a function of C, when its last reference is gone.

    The garbage collector does not look at it: it calls the finalizers of a cycle in any order, this one perhaps before
    others that use what is behind the pointer.
    """
    owner = _gc(pointer, destructor)
    _untrack(id(owner))
    return owner
