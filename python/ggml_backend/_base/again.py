"""A second import of the package gets the modules of the first one, even if they were removed from
``sys.modules``.

A process has one copy of the C library. It knows the devices and callbacks of the first import, whose objects live on.
So a second import must not make new modules.
"""

from __future__ import annotations

import sys
import types

from .._ffi import ffi, lib

__all__ = ["keep"]

_ROOT = __name__.partition(".")[0]


class _Package:
    """The modules of the first import, for a second one."""

    def __init__(self) -> None:
        self.root = sys.modules[_ROOT]
        self._first = {name: module for name, module in sys.modules.items() if name.startswith(f"{_ROOT}.")}

    def modules(self) -> dict[str, types.ModuleType]:
        """The modules of the first import, and those imported since, which are attributes of their packages."""
        found = {_ROOT: self.root, **self._first}
        left = list(found.values())
        while left:
            for value in list(vars(left.pop()).values()):
                name = value.__name__ if isinstance(value, types.ModuleType) else ""
                if name.startswith(f"{_ROOT}.") and name not in found:
                    found[name] = value
                    left.append(value)
        return found


def _bring_back() -> bool:
    """Puts the modules of an earlier import back into ``sys.modules``. False if there was no earlier import."""
    handle = lib.gbpy_package()
    if not handle:
        return False
    package: _Package = ffi.from_handle(handle)
    if sys.modules.get(_ROOT) is not package.root:
        sys.modules.update(package.modules())
    return True


def keep() -> None:
    """Keeps the modules for a second import. Call it after a successful import of the package."""
    from .signals import for_ever

    if not _bring_back():
        for_ever.append(ffi.new_handle(_Package()))
        lib.gbpy_keep_package(for_ever[-1])


_bring_back()
