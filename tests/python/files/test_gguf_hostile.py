"""Broken GGUF files with one fault each: the reader refuses each and names the field and its
offset.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._ffi import ffi, lib
from ggml_backend.cli import main
from source_tree import in_tree, load_tool

TOOL = in_tree("tools/make_hostile_gguf.py")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    gb.set_log(lambda level, text: None)
    yield
    gb.set_log(None)


def test_every_hostile_file_is_refused() -> None:
    seen = {}
    for name, data, word in load_tool("make_hostile_gguf").hostile():
        assert name not in seen
        try:
            gb.gguf.open(data)
        except gb.errors.FileError as error:
            seen[name] = str(error)
            assert re.search(r"at offset \d+: \S", seen[name]), (name, seen[name])
            assert word in seen[name], (name, seen[name])
            assert int(re.search(r"at offset (\d+)", seen[name])[1]) <= max(len(data), 2**21)
        else:
            pytest.fail(f"{name} was accepted")
    assert len(seen) >= 300
    assert len(set(seen.values())) > 150


def test_hostile_files_on_disk_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for name, data, word in list(load_tool("make_hostile_gguf").hostile())[::10]:
        path.write_bytes(data)
        with pytest.raises(gb.errors.FileError, match=rf"a\.gguf: .*{re.escape(word)}"):
            gb.gguf.open(path)
        assert name


def read_all(file: gb.gguf.GGUFFile) -> None:
    """Reads every value and tensor; each is readable or raises an error."""
    assert len(dict(file.metadata)) == len(file.metadata)
    for tensor in file.tensors.values():
        assert tensor.data.nbytes == tensor.nbytes
        try:
            assert tensor.numpy().nbytes == tensor.nbytes
        except gb.errors.UnsupportedError as error:
            assert "no arrays of shape" in str(error)


def test_files_without_fault_are_accepted(cpu: gb.Backend, sim: gb.Backend, tmp_path: Path) -> None:
    """Valid files are loaded, and their copies have the same content."""
    for name, data in load_tool("make_hostile_gguf").valid():
        file = gb.gguf.open(data)
        read_all(file)
        loaded = [file.load(cpu), file.load(sim)]
        assert set(loaded[0]) | set(loaded[0].left_out) == set(file.tensors), name
        with gb.gguf.Writer(tmp_path / "again.gguf") as writer:
            writer.copy_from(file)
        again = gb.gguf.open(tmp_path / "again.gguf")
        assert list(again.metadata) == [k for k in file.metadata if not k.startswith("split.")], name
        assert list(again.tensors) == list(file.tensors), name
        for tensor in file.tensors.values():
            copy = again.tensors[tensor.name]
            assert (copy.shape, copy.dtype) == (tensor.shape, tensor.dtype), name
            assert copy.data[: tensor.nbytes].tobytes() == tensor.data.tobytes(), name
            for weights in loaded if tensor.name in loaded[0] else ():
                assert weights[tensor.name].shape == tensor.shape, name
                if tensor.size and tensor.dtype.numpy is not None:
                    got = np.ascontiguousarray(weights[tensor.name].numpy()).reshape(-1).view(np.uint8)
                    assert got.tobytes() == tensor.data.tobytes(), name


def c_function_refuses(path: Path) -> str:
    """Calls ``gguf_init_from_file`` as a C program does, with a context for tensors and data.
    Returns the message."""
    out = ffi.new("struct ggml_context **")
    lib.ggml_clear_error()
    got = lib.gguf_init_from_file(str(path).encode(), {"no_alloc": False, "ctx": out})
    assert got == ffi.NULL
    assert out[0] == ffi.NULL
    assert lib.ggml_last_status() == lib.GGML_STATUS_IO_ERROR
    return str(ffi.string(lib.ggml_last_error()).decode("utf-8", "replace"))


def test_the_c_functions_refuse_them(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for name, data, word in load_tool("make_hostile_gguf").hostile():
        path.write_bytes(data)
        message = c_function_refuses(path)
        assert re.search(r"at offset \d+: \S", message), (name, message)
        assert word in message, (name, message)


def test_the_command_line_refuses_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for i, (_, data, _) in enumerate(load_tool("make_hostile_gguf").hostile()):
        paths.append(tmp_path / f"{i}.gguf")
        paths[-1].write_bytes(data)
    assert main(["gguf", "check", *map(str, paths)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) >= len(paths)
    for path in paths:
        assert re.search(
            rf"^python -m ggml_backend gguf check: error: {re.escape(str(path))}: .*at offset \d+: \S",
            shown.err,
            re.MULTILINE,
        ), path
        for command in ("info", "dump"):
            assert path != paths[0] or main(["gguf", command, str(path)]) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.usefixtures("prompt_frees")
def test_memory_stays_small(script: Callable[..., str], tmp_path: Path) -> None:
    """Opening every file in each way needs less than 16 MB of extra memory at the peak."""
    source = """
import importlib.util, io, json, sys
from contextlib import redirect_stderr
import ggml_backend as gb
from ggml_backend._ffi import ffi, lib
from ggml_backend.cli import main
spec = importlib.util.spec_from_file_location("m", sys.argv[1])
m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m)
gb.set_log(lambda level, text: None)
def peak():
    with open("/proc/self/status") as f:
        return next(int(l.split()[1]) for l in f if l.startswith("VmHWM"))
files = list(m.hostile())
path = sys.argv[2]
peaks = [peak()]
for name, data, word in files:
    try:
        gb.gguf.open(data)
    except gb.errors.FileError:
        pass
peaks.append(peak())
for name, data, word in files:
    with open(path, "wb") as f:
        f.write(data)
    out = ffi.new("struct ggml_context **")
    assert lib.gguf_init_from_file(path.encode(), {"no_alloc": False, "ctx": out}) == ffi.NULL
peaks.append(peak())
for name, data, word in files[::4]:
    with open(path, "wb") as f:
        f.write(data)
    with redirect_stderr(io.StringIO()):
        assert main(["gguf", "check", path]) == 1
peaks.append(peak())
print(json.dumps([len(files), peaks]))
"""
    count, peaks = json.loads(script(source, str(TOOL), str(tmp_path / "a.gguf")))
    assert count >= 300
    assert peaks[-1] - peaks[0] < 16 * 1024, peaks  # KiB


def test_files_with_changed_bytes_are_refused_or_readable() -> None:
    """With one to three changed bytes a file is refused with FileError, or can be read completely."""
    rng = np.random.default_rng(3)
    seeds = [data for _, data in load_tool("make_hostile_gguf").valid()]
    refused = 0
    for seed in seeds:
        for _ in range(150):
            data = bytearray(seed)
            for _ in range(rng.integers(1, 4)):
                data[rng.integers(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)])
            try:
                file = gb.gguf.open(bytes(data))
            except gb.errors.FileError:
                refused += 1
                continue
            read_all(file)
    assert refused > 100
