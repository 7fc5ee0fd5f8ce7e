"""Where the files lie that the build puts beside the Python part: the headers, modules of other backends.

An editable install leaves the Python part in the source tree, and puts what was built elsewhere. So nothing that was
built is looked for beside ``__file__`` of a Python file: :func:`built_file` decides.
"""

from __future__ import annotations

from pathlib import Path

from .. import _ffi

__all__ = ["built_file"]


def built_file(name: str) -> Path:
    """A file or folder that the build installs: beside the extension, wherever that is."""
    return Path(_ffi.__file__).parent / name
