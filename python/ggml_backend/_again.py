"""The package when it is imported a second time, because somebody has removed it from ``sys.modules``.

C is there once for a process: it knows the devices and callbacks of the first import, and objects of that import live
on. So a second import gives the same modules again.
"""

from __future__ import annotations

import sys
import types

from ._ffi import ffi, lib

__all__ = ["keep"]

_ROOT = __name__.rpartition(".")[0]


class _Package:
    """What a second import gives: the modules of the first one."""

    def __init__(self) -> None:
        self.root = sys.modules[_ROOT]
        self._first = {name: module for name, module in sys.modules.items() if name.startswith(f"{_ROOT}.")}

    def modules(self) -> dict[str, types.ModuleType]:
        """Those of the first moment, and what has been imported since, which is an attribute of its package."""
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
    """Puts the modules of an earlier import into ``sys.modules``, from where they are imported from now on. False:
    there was none."""
    handle = lib.gbpy_package()
    if not handle:
        return False
    package: _Package = ffi.from_handle(handle)
    if sys.modules.get(_ROOT) is not package.root:
        sys.modules.update(package.modules())
    return True


def keep() -> None:
    """Says that the package was imported without an error."""
    from ._signals import for_ever

    if not _bring_back():
        for_ever.append(ffi.new_handle(_Package()))
        lib.gbpy_keep_package(for_ever[-1])


_bring_back()
