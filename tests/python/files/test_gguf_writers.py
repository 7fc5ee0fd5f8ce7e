"""GGUF files of third-party programs are opened, checked, loaded, copied and quantized.

Third-party programs also read our files. ``gguf_writers.py`` lists the programs.
``tools/check_long.sh`` installs them into the folder that ``GGML_TEST_WRITERS`` names. Without it
these tests are skipped.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cli import main
from gguf_writers import READERS, WRITERS, Program

FOLDER = os.environ.get("GGML_TEST_WRITERS")
needs_folder = pytest.mark.skipif(FOLDER is None, reason="GGML_TEST_WRITERS names no folder for programs of others")


def test_the_list_has_ten_writers() -> None:
    assert len(WRITERS) >= 10


def installed(name: str, program: Program) -> Path:
    """Installs the program and returns its folder. Skips the test if that fails."""
    assert FOLDER is not None
    folder = Path(FOLDER).resolve() / name.replace("/", "-").replace(" ", "-")
    failed = program.install(folder)
    if failed:
        pytest.skip(f"{name} cannot be installed here: {failed}")
    return folder


@pytest.fixture
def arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Tensors of each type, including unusual shapes."""
    return {
        "matrix": rng.standard_normal((4, 64), np.float32), "half": rng.standard_normal((2, 3)).astype(np.float16),
        "vector": rng.standard_normal(5, np.float32), "cube": rng.standard_normal((2, 3, 4), np.float32),
        "ids": np.arange(-3, 3, dtype=np.int32), "scalar": np.array(4.6052, np.float32),
        "empty": np.zeros(0, np.float32), "five": rng.standard_normal((1, 2, 1, 2, 3), np.float32),
    }  # fmt: skip


def write_ours(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with gb.gguf.Writer(path) as writer:
        writer.add("general.architecture", "test").add("n", 7).add("x", 1e-5).add("text", "Zürich")
        for name, array in arrays.items():
            writer.add_tensor(name, array)


@needs_folder
@pytest.mark.parametrize("name", WRITERS)
def test_files_of_third_party_writers_are_read(
    tmp_path: Path, arrays: dict[str, np.ndarray], cpu: gb.Backend, sim: gb.Backend, name: str
) -> None:
    program = WRITERS[name]
    folder = installed(name, program)
    chosen = {n: arrays[n] for n in program.names}
    np.savez(tmp_path / "arrays.npz", **chosen)
    write_ours(tmp_path / "ours.gguf", {n: a for n, a in chosen.items() if a.ndim < 5})
    path, copy = tmp_path / "theirs.gguf", tmp_path / "copy.gguf"
    program.run(folder, tmp_path / "arrays.npz", path, tmp_path / "ours.gguf", " ".join(chosen))
    for action in (["info"], ["dump", "--values"], ["check"]):
        assert main(["gguf", action[0], str(path), *action[1:]]) == 0
    with gb.gguf.open(path) as file, gb.gguf.Writer(copy) as writer:
        writer.copy_from(file)
    for source in (path, copy):
        with gb.gguf.open(source) as file:
            assert set(file.tensors) == set(chosen)
            assert file.metadata["n"] == 7
            assert file.metadata.get("text", "Zürich") == "Zürich"
            for tensor in file.tensors.values():
                array = chosen[tensor.name]
                assert tensor.shape == array.shape or (tensor.shape, array.shape) == ((1,), ())
                np.testing.assert_array_equal(tensor.numpy().reshape(array.shape), array)
            for backend in (cpu, sim):
                weights = file.load(backend)
                assert set(weights) | set(weights.left_out) == set(chosen)
                assert set(weights.left_out) == {"five"} & set(chosen)
                for loaded, tensor in weights.items():
                    np.testing.assert_array_equal(tensor.numpy().reshape(chosen[loaded].shape), chosen[loaded])
    assert main(["gguf", "quantize", str(path), str(copy), "--type", "q8_0"]) == 0
    with gb.gguf.open(copy) as file:
        np.testing.assert_array_equal(file.tensors["matrix"].numpy(), gb.quantize(chosen["matrix"], "q8_0"))


@needs_folder
@pytest.mark.parametrize("name", READERS)
def test_third_party_readers_read_our_files(tmp_path: Path, arrays: dict[str, np.ndarray], name: str) -> None:
    program, path = READERS[name], tmp_path / "ours.gguf"
    folder = installed(name, program)
    chosen = {n: a for n, a in arrays.items() if a.ndim < 5}
    write_ours(path, chosen)
    found = json.loads(program.run(folder, path))
    assert found["metadata"]["text"] == "Zürich"
    assert found["metadata"]["n"] == 7
    assert {t["name"]: tuple(t["shape"][::-1]) for t in found["tensors"]} == {n: a.shape for n, a in chosen.items()}
    offsets = {t["name"]: t["offset"] for t in found["tensors"]}
    file = gb.gguf.open(path)
    first = min(t.offset for t in file.tensors.values())
    assert offsets == {n: t.offset - first for n, t in file.tensors.items()}
