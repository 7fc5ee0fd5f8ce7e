"""Writes files atomically: readers of the path see the old content or the complete new content.

C makes the new file and renames it over the old one (c/src/base/file.h). After an error, a full
disk, a signal that ends the process, or an interrupt between any two instructions here, the target
is unchanged and no temporary file is left. A pipe, a terminal or ``/dev/stdout`` cannot be
replaced, so it is written directly.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from .. import _ffi
from .._ffi import ffi, lib
from .errors import FileError
from .handles import owned
from .text import line

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "HEAD", "Sink", "built_file", "can_write", "encoded", "file_kind", "naming", "open_regular",
    "read_head", "read_text", "replace_file", "without_mark", "write_bytes", "write_text",
]  # fmt: skip

HEAD = 512
"""Number of bytes from the start of a file that :func:`file_kind` needs."""

_LEGACY = (b"lmgg", b"fmgg", b"tjgg", b"algg", b"ggml", b"ggmf", b"ggjt", b"ggla")
_KINDS: tuple[tuple[tuple[bytes, ...], str], ...] = (
    ((b"GGUF",), "a GGUF file"),
    (_LEGACY, "a GGML file from before GGUF"),
    ((b"PK\x03\x04", b"PK\x05\x06"), "a ZIP file, as PyTorch and NumPy write (.pt, .pth, .bin, .npz)"),
    ((b"\x93NUMPY",), "a NumPy file (.npy)"),
    ((b"\x89HDF\r\n\x1a\n",), "an HDF5 file"),
    ((b"\x1f\x8b",), "a gzip file: unpack it first"),
    ((b"\x28\xb5\x2f\xfd",), "a Zstandard file: unpack it first"),
    ((b"\xfd7zXZ\x00",), "an XZ file: unpack it first"),
    ((b"BZh",), "a bzip2 file: unpack it first"),
    ((b"7z\xbc\xaf\x27\x1c",), "a 7-Zip file: unpack it first"),
    ((b"%PDF",), "a PDF file"),
    ((b"version https://git-lfs",), "a Git LFS pointer, not the file itself: download the file with `git lfs pull`"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_HTML = re.compile(rb"(<!--.*?-->\s*)*<(!doctype html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_JSON = re.compile(rb'(\{\s*["}]|\[\s*["{\[0-9\]-])')
_SAFETENSORS = re.compile(rb'.{5}\0{3}\s*\{\s*("|\})', re.DOTALL)  # the length of a header, and the header


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def file_kind(head: bytes) -> str | None:
    """The kind of a file that begins with these bytes, with an article; None if unknown."""
    if not head:
        return "empty"
    if _SAFETENSORS.match(head):  # first: the length may begin with the signature of another kind
        return "a safetensors file"
    for beginnings, kind in _KINDS:
        if head.startswith(beginnings):
            return kind
    if _PICKLE.match(head):
        return "a pickle of Python, as PyTorch writes"
    if _is_tar(head):
        return "a tar file: unpack it first"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _HTML.match(text):
        return "an HTML page: the download got a page of the site in place of the file"
    if text.startswith(b"<?xml"):
        return "an XML text: the download may have got an error in place of the file"
    if _JSON.match(text):
        return "JSON text"
    return "full of zeros: the download may be incomplete" if not any(head) else None


_Path = str | os.PathLike[str]
_PIECE = 8 << 20  # bytes written at once


class Sink(Protocol):
    """A target for writing."""

    def write(self, data: Any, /) -> object: ...


def encoded(text: str) -> bytes:
    """A text as UTF-8. Surrogates become the original bytes of the name."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _target(path: _Path) -> str | None:
    """The file to replace, with links resolved. None if the target is written directly."""
    name = os.fsdecode(path)
    if name.startswith(("/dev/", "/proc/")):  # also for a regular file, which another program may be writing
        return None
    try:
        info = os.stat(name)
    except FileNotFoundError:
        return os.path.realpath(name)
    return os.path.realpath(name) if stat.S_ISREG(info.st_mode) else None


class _Output:
    """A new file that replaces another one when it is complete. An incomplete file is deleted with
    this object at the latest."""

    __slots__ = ("_output", "_path")

    def __init__(self, path: _Path, target: str) -> None:
        self._path = os.fsdecode(path)
        self._output = owned(ffi.new("struct gbpy_output *"), lib.gbpy_output_abandon)
        try:
            self._check(lib.gbpy_output_open(self._output, os.fsencode(target)))
        except BaseException:  # the traceback would keep the object alive
            self.abandon()
            raise

    def _check(self, error: int) -> None:
        if error:
            raise OSError(error, os.strerror(error), self._path)

    def write(self, data: Any, /) -> None:
        with ffi.from_buffer(data) as buffer:
            for start in range(0, len(buffer), _PIECE):  # Python handles Ctrl-C between two pieces
                n = min(_PIECE, len(buffer) - start)
                self._check(lib.gbpy_output_write(self._output, buffer + start, n))

    def commit(self) -> None:
        self._check(lib.gbpy_output_commit(self._output))

    def abandon(self) -> None:
        lib.gbpy_output_abandon(self._output)


def replace_file(path: _Path, write: Callable[[Sink], object], *, regular: bool = False) -> None:
    """Calls ``write`` with a new file, which then replaces ``path`` and is on the disk.

    regular: raise FileError if the target is not a regular file, instead of writing to it
    """
    target = _target(path)
    if target is None:
        if regular:
            raise FileError(f"{os.fsdecode(path)}: not a regular file")
        with naming(path), open(path, "wb") as file:  # errors of a full device lack the name
            write(file)
        return
    output = _Output(path, target)
    try:
        write(output)
        output.commit()
    except BaseException:
        output.abandon()
        raise


def write_text(path: _Path, text: str, *, regular: bool = False) -> None:
    """Replaces ``path`` with a text in UTF-8."""
    data = encoded(text)
    replace_file(path, lambda file: file.write(data), regular=regular)


def write_bytes(path: _Path, data: bytes) -> None:
    """Replaces ``path`` with bytes."""
    replace_file(path, lambda file: file.write(data))


def open_regular(path: _Path) -> io.FileIO:
    """Opens a file for reading. FileError unless it is a regular file, so that no call waits for
    the writer of a pipe."""
    name = os.fsdecode(path)
    try:
        # one C call from the descriptor to its owner, without a place for an interrupt
        file = io.FileIO(os.fsencode(name), "rb", opener=lib.gbpy_open_to_read)
    except IsADirectoryError:
        raise FileError(f"{name}: a directory, not a regular file") from None
    except ValueError:  # FileIO raises it for a negative descriptor
        error = ffi.errno
        if "\0" in name:
            raise
        raise OSError(error, os.strerror(error), name) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise FileError(f"{name}: not a regular file")
    return file


@contextlib.contextmanager
def naming(path: _Path) -> Iterator[None]:
    """Adds the name of the file to errors of the operating system in the block."""
    try:
        yield
    except OSError as error:  # errors of reads lack the name
        if error.filename is None and error.errno is not None:
            error.filename = path
        raise


_MARKS = ((codecs.BOM_UTF32_LE, "UTF-32"), (codecs.BOM_UTF32_BE, "UTF-32"), (codecs.BOM_UTF16_LE, "UTF-16"),
          (codecs.BOM_UTF16_BE, "UTF-16"))  # fmt: skip


def without_mark(text: str) -> str:
    """A text without a byte order mark."""
    return text.removeprefix("\ufeff")


def read_text(path: _Path, errors: str = "strict") -> str:
    """The text of a file in UTF-8, without a byte order mark. FileError for a file that is not
    regular, or not text. Line ends are unchanged."""
    with open_regular(path) as file, naming(path):
        data = file.readall()
    name = line(os.fsdecode(path))
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            raise FileError(f"{name}: the text is in {encoding}; save it in UTF-8")
    kind = file_kind(data[:HEAD])
    if kind is not None and data.removeprefix(codecs.BOM_UTF8).lstrip().startswith((b"<", b"version https://")):
        raise FileError(f"{name}: it is {kind}")
    known = None if kind in (None, "JSON text") else f"it is {kind}"
    nul = data.find(0)
    if nul >= 0:
        raise FileError(f"{name}: {known or f'it is not text: NUL at byte {nul}'}")
    try:
        return without_mark(data.decode("utf-8", errors if known is None else "strict"))
    except UnicodeDecodeError as error:
        why = known or f"it is not text: {error.reason} at byte {error.start}"
        raise FileError(f"{name}: {why}") from None


def read_head(path: _Path, nbytes: int) -> bytes:
    """The first bytes of a regular file, or all bytes if it is shorter."""
    with open_regular(path) as file, naming(path):
        return file.read(nbytes)


def can_write(path: _Path) -> None:
    """Raises OSError early if a path cannot be written. Does not change the path."""
    target = _target(path)
    if target is not None:
        _Output(path, target).abandon()
    elif os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))


def built_file(name: str) -> Path:
    """The path of a file or folder that the build installs beside the extension."""
    from pathlib import Path

    return Path(_ffi.__file__).parent / name
