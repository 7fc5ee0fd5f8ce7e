"""Split models. The keys of a file state that it is a part, and its name locates the others. The
reader never takes a part for the whole, under any name.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cli import main
from small_ggufs import finish


def split(tmp_path: Path, n: int, **keys: int) -> list[Path]:
    """The parts of a model of n parts, each with two tensors. keys: other values for the keys of all parts"""
    paths = []
    for i in range(n):
        path = tmp_path / f"m-{i + 1:05d}-of-{n:05d}.gguf"
        with gb.gguf.Writer(path) as writer:
            writer.add("split.no", np.uint16(keys.get("no", i))).add("split.count", np.uint16(keys.get("count", n)))
            writer.add("split.tensors.count", keys.get("tensors", 2 * n), "i32")
            if i == 0:
                writer.add("general.name", "whole")
            for j in range(2):
                writer.add_tensor(
                    f"t{2 * i + j}" if "same" not in keys else f"t{j}", np.full((2, 32), 2 * i + j, np.float32)
                )
        paths.append(path)
    return paths


def test_split_files(tmp_path: Path, cpu: gb.Backend, sim: gb.Backend) -> None:
    paths = split(tmp_path, 3)
    for path in paths:
        file = gb.gguf.open(path)
        assert file.n_parts == 3
        assert file.metadata["general.name"] == "whole"
        assert list(file.tensors) == [f"t{i}" for i in range(6)]
        for backend in (cpu, sim):
            weights = file.load(backend)
            assert [weights[f"t{i}"].numpy()[1, 31] for i in range(6)] == list(range(6))
    joined = tmp_path / "joined.gguf"
    with gb.gguf.Writer(joined) as writer:
        writer.copy_from(gb.gguf.open(paths[0]))
    file = gb.gguf.open(joined)
    assert list(file.metadata) == ["general.name"]
    assert [t.numpy()[0, 0] for t in file.tensors.values()] == list(range(6))


def test_split_files_of_the_package(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "test", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full(8, i, np.float32))
    finish(writer)
    paths = sorted(tmp_path.glob("m-*"))
    assert len(paths) == 3
    file = gb.gguf.open(paths[1])
    assert [file.tensors[f"t{i}"].numpy()[0] for i in range(5)] == list(range(5))


DISGUISES: dict[str, Callable[[list[Path]], Path]] = {
    "renamed": lambda parts: shutil.copy(parts[0], parts[0].parent / "model.gguf"),
    "a hash": lambda parts: shutil.copy(parts[0], parts[0].parent / "9f86d081884c7d659a2feaa0c55ad015"),
    "without an ending": lambda parts: shutil.copy(parts[1], parts[0].parent / "m-00002-of-00003"),
    "a download": lambda parts: shutil.copy(parts[0], f"{parts[0]}.part"),
    "another folder": lambda parts: shutil.copy(parts[2], _folder(parts) / parts[2].name),
    "capitals, alone": lambda parts: shutil.copy(parts[0], _folder(parts) / "M-00001-OF-00003.GGUF"),
    "joined by cat": lambda parts: _join(parts, parts[0].parent / "joined.gguf"),
    "joined under a part's name": lambda parts: _join(parts, _folder(parts) / parts[0].name),
    "another number": lambda parts: shutil.copy(parts[0], parts[0].parent / "x-00002-of-00003.gguf"),
    "another count": lambda parts: shutil.copy(parts[0], parts[0].parent / "x-00001-of-00002.gguf"),
    "five digits are missing": lambda parts: shutil.copy(parts[0], parts[0].parent / "m-1-of-3.gguf"),
}  # fmt: skip


def _folder(parts: list[Path]) -> Path:
    folder = parts[0].parent / "elsewhere"
    folder.mkdir(exist_ok=True)
    return folder


def _join(parts: list[Path], path: Path) -> Path:
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_part_is_not_accepted_as_a_whole_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cpu: gb.Backend, disguise: str
) -> None:
    path, out = Path(DISGUISES[disguise](split(tmp_path, 3))), tmp_path / "out.gguf"
    with pytest.raises(gb.errors.FileError, match=r"split\.(count|no)|of which .* is missing"):
        gb.gguf.open(path)
    for arguments in (
        ["gguf", "check", str(path)], ["gguf", "info", str(path)], ["gguf", "dump", str(path)],
        ["gguf", "quantize", str(path), str(out), "--type", "f16"],
    ):  # fmt: skip
        assert main(arguments) == 1
        assert "split" in capsys.readouterr().err
    assert not out.exists()
    assert main(["plan", str(path), "--devices", "CPU"]) != 0
    with gb.gguf.open(path, part=True) as file:  # explicitly as a part
        assert file.is_part
        assert file.n_parts == 1
        assert len(file.tensors) == len(file.load(cpu)) == 2
        assert file.metadata["split.count"] == 3
    for action in ("check", "info", "dump"):
        assert main(["gguf", action, str(path), "--part"]) == 0


def test_a_part_in_memory_is_an_error(tmp_path: Path) -> None:
    data = split(tmp_path, 2)[1].read_bytes()
    with pytest.raises(gb.errors.FileError, match=r"bytes: this is part 2 of the 2 parts .* with 2 tensors of 4"):
        gb.gguf.open(data)
    assert list(gb.gguf.open(data, part=True).tensors) == ["t2", "t3"]


def test_a_copy_of_a_part_is_a_part(tmp_path: Path) -> None:
    """A copy is refused like the original."""
    with gb.gguf.Writer(tmp_path / "copy.gguf") as writer:
        writer.copy_from(gb.gguf.open(split(tmp_path, 3)[1], part=True))
    with pytest.raises(gb.errors.FileError, match="part 2 of the 3 parts"):
        gb.gguf.open(tmp_path / "copy.gguf")


def test_parts_are_found_for_any_case_of_the_suffix(tmp_path: Path) -> None:
    for path in split(tmp_path, 3):
        path.rename(path.with_suffix(".GGUF"))
    assert len(gb.gguf.open(tmp_path / "m-00003-of-00003.GGUF").tensors) == 6


def test_parts_behind_links_are_found_by_the_names_of_the_links(tmp_path: Path) -> None:
    """The cache of a hub has files named by hashes, and links with their real names."""
    (tmp_path / "blobs").mkdir()
    for i, path in enumerate(split(tmp_path, 2)):
        path.rename(tmp_path / "blobs" / f"hash{i}")
        path.symlink_to(tmp_path / "blobs" / f"hash{i}")
    assert len(gb.gguf.open(tmp_path / "m-00001-of-00002.gguf").tensors) == 4


@pytest.mark.parametrize("keys", [{}, {"split.count": 1}, {"split.count": 0, "split.no": 0, "split.tensors.count": 1}])
@pytest.mark.parametrize("name", ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf", "x-00003-of-00002.gguf"])
def test_a_complete_file_can_have_any_name(tmp_path: Path, name: str, keys: dict[str, int]) -> None:
    """Keys left over from merging parts have no effect."""
    path = tmp_path / name
    with gb.gguf.Writer(path) as writer:
        for key, value in keys.items():
            writer.add(key, np.uint16(value))
        writer.add_tensor("t", np.ones(4, np.float32))
    with gb.gguf.open(path) as file:
        assert list(file.tensors) == ["t"]
        assert not file.is_part
    assert main(["gguf", "check", str(path)]) == 0


def test_a_file_without_all_its_tensors_is_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add("split.tensors.count", 5).add_tensor("t", np.ones(4, np.float32))
    with pytest.raises(gb.errors.FileError, match=r"incomplete: split\.tensors\.count is 5, the file has 1 tensors"):
        gb.gguf.open(path)


def test_broken_splits(tmp_path: Path) -> None:
    paths = split(tmp_path, 3)
    paths[1].unlink()
    with pytest.raises(gb.errors.FileError, match=r"m-00002-of-00003\.gguf is missing"):
        gb.gguf.open(paths[0])
    for keys, message in (
        ({"no": 5}, "split.no is 5"),
        ({"count": 9}, "split.count is 9"),
        ({"tensors": 7}, "7, the parts have 6"),
    ):
        with pytest.raises(gb.errors.FileError, match=message):
            gb.gguf.open(split(tmp_path, 3, **keys)[0])
    with pytest.raises(gb.errors.FileError, match="'t0' is also in"):
        gb.gguf.open(split(tmp_path, 3, same=1)[0])


@pytest.mark.parametrize("key", ["split.no", "split.count", "split.tensors.count"])
@pytest.mark.parametrize("wrong", [[3], [0], [2], np.array([1, 2]), "2", 2.0, True, [], -1])
def test_counts_of_split_files_are_numbers(tmp_path: Path, key: str, wrong: Any) -> None:
    """A list of one number is no number."""
    paths = [tmp_path / f"m-{i:05d}-of-00002.gguf" for i in (1, 2)]
    right: dict[str, Any] = {"split.count": 2, "split.tensors.count": 2}
    for i, path in enumerate(paths):
        with gb.gguf.Writer(path) as writer:
            for name, value in {**right, "split.no": i, key: wrong}.items():
                kind = None if not isinstance(value, list) else "arr[i32]"
                writer.add(name, value, kind)
            writer.add_tensor(f"t{i}", np.ones(4, np.float32))
    with pytest.raises(gb.errors.FileError, match=re.escape(key)):
        gb.gguf.open(paths[1])
