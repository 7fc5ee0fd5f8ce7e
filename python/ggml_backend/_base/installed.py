"""Finds the files that the build installs beside the extension: headers, and modules of other backends.

An editable install leaves the Python files in the source tree, and puts the built files elsewhere. So never look for a
built file beside the ``__file__`` of a Python file; use :func:`built_file`.
"""

from __future__ import annotations

from pathlib import Path

from .. import _ffi

__all__ = ["built_file"]


def built_file(name: str) -> Path:
    """The path of a file or folder that the build installs beside the extension."""
    return Path(_ffi.__file__).parent / name
