"""Broken GGUF files, one fault each: every one is refused with a message that names the field and its offset."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import ggml_backend as gb

TOOL = Path(__file__).parents[2] / "tools" / "make_hostile_gguf.py"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_hostile_gguf", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    gb.set_log(lambda level, text: None)
    yield
    gb.set_log(None)


def test_every_hostile_file_is_refused() -> None:
    seen = {}
    for name, data, word in load_tool().hostile():
        assert name not in seen
        try:
            gb.gguf.open(data)
        except gb.FileError as error:
            seen[name] = str(error)
            assert re.search(r"at offset \d+: \S", seen[name]), (name, seen[name])
            assert word in seen[name], (name, seen[name])
            assert int(re.search(r"at offset (\d+)", seen[name])[1]) <= max(len(data), 2**21)
        else:
            pytest.fail(f"{name} was accepted")
    assert len(seen) >= 300
    assert len(set(seen.values())) > 150


def test_the_same_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    for name, data, word in list(load_tool().hostile())[::10]:
        path.write_bytes(data)
        with pytest.raises(gb.FileError, match=rf"a\.gguf: .*{re.escape(word)}"):
            gb.gguf.open(path)
        assert name


def test_files_without_fault_are_accepted() -> None:
    for name, data in load_tool().valid():
        file = gb.gguf.open(data)
        assert len(dict(file.metadata)) == len(file.metadata), name
        for tensor in file.tensors.values():
            if not isinstance(tensor.dtype, gb.gguf.UnknownType):
                assert tensor.dequantize().shape == tensor.shape


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_memory_stays_small(script: Callable[..., str], tmp_path: Path) -> None:
    source = """
import importlib.util, json, sys
import ggml_backend as gb
spec = importlib.util.spec_from_file_location("m", sys.argv[1])
m = importlib.util.module_from_spec(spec); spec.loader.exec_module(m)
gb.set_log(lambda level, text: None)
def peak():
    with open("/proc/self/status") as f:
        return next(int(l.split()[1]) for l in f if l.startswith("VmHWM"))
files = list(m.hostile())
before = peak()
for name, data, word in files:
    try:
        gb.gguf.open(data)
    except gb.FileError:
        pass
print(json.dumps([before, peak()]))
"""
    before, after = json.loads(script(source, str(TOOL)))
    assert after - before < 16 * 1024  # KiB


def test_damaged_anywhere() -> None:
    """Single bytes changed: refused with FileError, or all of it can be read."""
    rng = np.random.default_rng(3)
    seeds = [data for _, data in load_tool().valid()]
    refused = 0
    for seed in seeds:
        for _ in range(150):
            data = bytearray(seed)
            for _ in range(rng.integers(1, 4)):
                data[rng.integers(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)])
            try:
                file = gb.gguf.open(bytes(data))
            except gb.FileError:
                refused += 1
                continue
            assert len(dict(file.metadata)) == len(file.metadata)
            for tensor in file.tensors.values():
                assert tensor.numpy().nbytes == tensor.nbytes
    assert refused > 100
