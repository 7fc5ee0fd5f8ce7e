"""The kind of a file, by its first bytes, for messages about files of the wrong kind."""

from __future__ import annotations

import re

__all__ = ["HEAD", "file_kind"]

HEAD = 512
"""Bytes at the beginning of a file that are enough for :func:`file_kind`."""

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
    ((b"version https://git-lfs",), "a Git LFS pointer, not the file it stands for: download that with `git lfs pull`"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_HTML = re.compile(rb"(<!--.*?-->\s*)*<(!doctype html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_JSON = re.compile(rb'(\{\s*["}]|\[\s*["{\[0-9\]-])')
_SAFETENSORS = re.compile(rb'.{5}\0{3}\s*\{\s*("|\})', re.DOTALL)  # the length of a header, and the header


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def file_kind(head: bytes) -> str | None:
    """The kind of a file that begins with these bytes, with an article; None if they show none."""
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
