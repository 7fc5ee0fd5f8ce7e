"""Writing files: whoever opens the path sees the old content or all of the new.

What is written goes to a file without a name in the folder of the target (``O_TMPFILE``; where a system has none, to one beside the
target), which takes the target's place at the end. An error, a full disk or a signal that ends the process leaves the target as it was, and
no remains. What is no regular file (a pipe, a terminal, ``/dev/stdout``) cannot be replaced: it is written to directly.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable
from typing import BinaryIO

from ._errors import FileError

__all__ = ["can_write", "encoded", "read_text", "replace_file", "write_text"]

_Path = str | os.PathLike[str]
_FLAGS = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_TMPFILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS}


def encoded(text: str) -> bytes:
    """UTF-8; bytes of names that were none (surrogates) as they were."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _target(path: _Path) -> tuple[str, os.stat_result | None] | None:
    """The file to replace, behind links, and what is there now; None: what is there is written to directly."""
    name = os.fsdecode(path)
    if name.startswith(("/dev/", "/proc/")):  # also where it stands for a regular file, to which somebody else writes
        return None
    try:
        info = os.stat(name)
    except FileNotFoundError:
        return os.path.realpath(name), None
    return (os.path.realpath(name), info) if stat.S_ISREG(info.st_mode) else None


class _Temporary:
    """A new file that can take a place in a folder."""

    def __init__(self, target: str, mode: int) -> None:
        self.folder = os.path.dirname(target) or "."
        self.beside = f"{target}.{secrets.token_hex(6)}.tmp"
        self.linked = False
        if hasattr(os, "O_TMPFILE"):
            try:
                self.descriptor = os.open(self.folder, _FLAGS | os.O_TMPFILE, mode)
                if os.path.exists(f"/proc/self/fd/{self.descriptor}"):  # by which it gets a name
                    return
                os.close(self.descriptor)
            except OSError as error:
                if error.errno not in _NO_TMPFILE:
                    raise
        self.descriptor = os.open(self.beside, _FLAGS | os.O_CREAT | os.O_EXCL, mode)
        self.linked = True

    def take_place(self, descriptor: int, target: str) -> None:
        if not self.linked:
            folder = os.open(self.folder, os.O_RDONLY)  # without a folder, Python would link the link
            try:
                os.link(f"/proc/self/fd/{descriptor}", self.beside, src_dir_fd=folder, follow_symlinks=True)
            finally:
                os.close(folder)
            self.linked = True
        os.replace(self.beside, target)
        self.linked = False

    def discard(self) -> None:
        if self.linked:
            with contextlib.suppress(FileNotFoundError):  # it has taken its place, and an interrupt came before that was noted
                os.unlink(self.beside)
            self.linked = False


def _open(path: _Path, target: str, info: os.stat_result | None) -> _Temporary:
    try:
        return _Temporary(target, 0o666 if info is None else stat.S_IMODE(info.st_mode))
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fsdecode(path)) from None


def _keep_rights(descriptor: int, info: os.stat_result | None) -> None:
    """Those of the file that is replaced, as far as this process may give them."""
    if info is not None and os.name == "posix":
        made = os.fstat(descriptor)
        if (made.st_uid, made.st_gid) != (info.st_uid, info.st_gid):
            with contextlib.suppress(OSError):
                os.fchown(descriptor, info.st_uid, info.st_gid)
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, stat.S_IMODE(info.st_mode))


def replace_file(path: _Path, write: Callable[[BinaryIO], object], *, durable: bool = False, regular: bool = False) -> None:
    """Calls ``write`` with a file, and puts what it wrote in the place of ``path``.

    durable: waits until it is on the disk
    regular: FileError for what is no regular file, instead of writing to it
    """
    found = _target(path)
    if found is None:
        if regular:
            raise FileError(f"{os.fsdecode(path)}: not a regular file")
        with open(path, "wb") as file:
            write(file)
        return
    target, info = found
    temporary = _open(path, target, info)
    try:
        with os.fdopen(temporary.descriptor, "wb", buffering=1 << 20) as file:
            write(file)
            file.flush()
            _keep_rights(file.fileno(), info)
            if durable:
                os.fsync(file.fileno())
            temporary.take_place(file.fileno(), target)
    except BaseException:
        temporary.discard()
        raise
    if durable and os.name == "posix":
        _flush_folder(temporary.folder)


def _flush_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot
            os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: _Path, text: str, *, regular: bool = False) -> None:
    """A text, in UTF-8, in the place of ``path``."""
    data = encoded(text)
    replace_file(path, lambda file: file.write(data), regular=regular)


def read_text(path: _Path, errors: str = "strict") -> str:
    """A text file in UTF-8. FileError for what is no regular file: nobody waits for the writer of a pipe."""
    name = os.fsdecode(path)
    descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "r", encoding="utf-8", errors=errors, newline="") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileError(f"{name}: not a regular file")
        return file.read()


def can_write(path: _Path) -> None:
    """Raises the OSError of a path that cannot be written to, before there is anything to write. Leaves it as it is."""
    found = _target(path)
    if found is None:
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
        return
    temporary = _open(path, *found)
    os.close(temporary.descriptor)
    temporary.discard()
