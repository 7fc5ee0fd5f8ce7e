"""Files that are no models, or incomplete: the message names the kind of the file and what to do."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors.numpy

import ggml_backend as gb
from ggml_backend.cli import main
from small_ggufs import finish


def _zip() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("archive/data.pkl", b"x" * 100)
    return data.getvalue()


def _npy() -> bytes:
    data = io.BytesIO()
    np.save(data, np.ones(3))
    return data.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 98415040\n"
KINDS = {
    "a Git LFS pointer": (POINTER, "git lfs pull"),
    "a page": (b"<!DOCTYPE html><html><head><title>Log in</title>", "an HTML or XML page: download the file itself"),
    "a page with a byte order mark": (b"\xef\xbb\xbf\r\n<HTML lang=en>", "an HTML or XML page"),
    "an error in XML": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>", "an HTML or XML page"),
    "an error as text": (b"Entry not found", "text, which begins 'Entry not found'"),
    "an error in JSON": (b'{"error":"Repository not found"}', 'text, which begins \'{"error":"Repository'),
    "a checkpoint of PyTorch": (_zip(), "a ZIP file, perhaps a PyTorch checkpoint"),
    "an old checkpoint of PyTorch": (pickle.dumps([1, 2], 2), "a pickle, perhaps a PyTorch checkpoint"),
    "a pickle": (pickle.dumps([1, 2]), "a pickle"),
    "safetensors": (safetensors.numpy.save({"a": np.ones(2)}), "a safetensors file: .* gguf convert"),
    "gzip": (gzip.compress(b"GGUF" + bytes(100)), "a gzip file: unpack it first"),
    "an array of NumPy": (_npy(), "an array of NumPy"),
    "ggml": (struct.pack("<I", 0x67676D6C) + bytes(100), "a format older than GGUF"),
    "ggmf": (struct.pack("<I", 0x67676D66) + bytes(100), "a format older than GGUF"),
    "ggjt": (struct.pack("<I", 0x67676A74) + bytes(100), "a format older than GGUF"),
    "ggla": (struct.pack("<I", 0x67676C61) + bytes(100), "a format older than GGUF"),
    "zeros": (bytes(1000), "an unfinished download"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "other byte order.*gguf-convert-endian"),
    "nothing": (b"", "the file is empty. Download or copy it again"),
    "two letters": (b"GG", "the file is incomplete"),
    "other bytes": (b"\x01\x02\x03\x04\x05", "not a GGUF file: it begins with 01 02 03 04"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    data, message = KINDS[kind]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises(gb.errors.FileError, match=message):
            gb.gguf.open(source)
    for command in (["gguf", "info"], ["gguf", "check"], ["gguf", "dump"], ["plan"]):
        assert main([*command, str(path)]) == 1
        assert "Traceback" not in capsys.readouterr().err


def test_a_cut_file_is_incomplete(tmp_path: Path) -> None:
    """A file cut at any offset. Within the data, the message has the exact number of missing
    bytes."""
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("list", ["a", "bc"])
    writer.add_uint32("n", 5)
    for i in range(3):
        writer.add_tensor(f"t{i}", np.full(5 + i, i, np.float32))
    finish(writer)
    data = path.read_bytes()
    last = gb.gguf.open(path).tensors["t2"]
    whole = last.offset + last.nbytes
    assert whole <= len(data) < whole + 32
    assert len(gb.gguf.open(data[:whole]).tensors) == 3
    for n in range(1, whole):
        with pytest.raises(
            gb.errors.FileError, match=rf"the file is incomplete.* It has {n} bytes and needs "
        ) as caught:
            gb.gguf.open(data[:n])
        message = str(caught.value)
        assert "Download or copy it again" in message
        needed = int(message.split("and needs ")[1].removeprefix("at least ").split(".")[0])
        assert n < needed <= whole
        assert needed == whole or n < gb.gguf.open(path).tensors["t0"].offset
