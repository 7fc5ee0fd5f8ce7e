"""``gguf convert`` on safetensors files, indexes and folders, against the packages safetensors,
gguf and ml_dtypes.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

import ggml_backend as gb
from ggml_backend.cli import main

Array = np.ndarray[Any, Any]


def encode(tensors: dict[str, tuple[str, tuple[int, ...], bytes]], **header: Any) -> bytes:
    """A safetensors file, written by the specification."""
    data, entries = b"", dict(header)
    for name, (kind, shape, content) in tensors.items():
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.fixture
def convert(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Converts inputs. Returns the tensors of the GGUF file and the output, or the error of the
    package."""
    monkeypatch.setenv("GGML_TRACEBACK", "1")

    def run(*arguments: object) -> Any:
        out = tmp_path / "converted.gguf"
        out.unlink(missing_ok=True)
        inputs = [str(a) for a in arguments if not str(a).startswith("--") and "=" not in str(a)]
        options = [str(a) for a in arguments if str(a) not in inputs]
        capsys.readouterr()
        assert main(["gguf", "convert", *inputs, str(out), *options]) == 0
        return gb.gguf.open(out).tensors, capsys.readouterr().out

    return run


def refused(convert: Callable[..., Any], *arguments: object) -> str:
    with pytest.raises((gb.GgmlError, OSError)) as error:
        convert(*arguments)
    assert len(str(error.value)) < 2000
    return str(error.value)


def assert_equal(tensor: gb.gguf.GGUFTensor, array: Array) -> None:
    found = tensor.numpy()
    if array.dtype.name == "bfloat16":
        found, array = found.view(np.uint16), array.view(np.uint16)
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()
    assert tuple(n for n in tensor.shape if n != 1) == tuple(n for n in array.shape if n != 1)


# ---------------------------------------------------------------------------------------------- models in several files


@pytest.fixture
def sharded(tmp_path: Path, rng: np.random.Generator) -> tuple[Path, dict[str, Array]]:
    """A model of three shards with an index, in a folder."""
    folder = tmp_path / "sharded"
    folder.mkdir()
    arrays = {f"blk.{i}.weight": rng.standard_normal((4, 8), np.float32) for i in range(5)}
    weight_map = {}
    for k, names in enumerate((["blk.0.weight", "blk.1.weight"], ["blk.2.weight", "blk.3.weight"], ["blk.4.weight"])):
        file = f"model-{k + 1:05d}-of-00003.safetensors"
        save_file({name: arrays[name] for name in names}, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": 640}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder, arrays


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def index_of(folder: Path) -> Path:
    return next(folder.glob("*.index.json"))


def change_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads(index_of(folder).read_text())
    change(index)
    index_of(folder).write_text(json.dumps(index))


def test_an_index_opens_the_whole_model(convert, sharded) -> None:
    folder, arrays = sharded
    for source in ([index_of(folder)], [folder], [f"{folder}/"], shards_of(folder), reversed(shards_of(folder))):
        tensors, _ = convert(*source)
        assert sorted(tensors) == sorted(arrays)
        for name, array in arrays.items():
            assert_equal(tensors[name], array)


def test_an_index_can_have_a_mark_and_be_in_the_current_folder(convert, sharded, monkeypatch) -> None:
    folder, arrays = sharded
    index_of(folder).write_bytes(b"\xef\xbb\xbf" + index_of(folder).read_bytes())
    monkeypatch.chdir(folder)
    for source in ("model.safetensors.index.json", "."):
        assert sorted(convert(source)[0]) == sorted(arrays)


def test_a_folder_without_an_index_can_hold_all_parts(convert, sharded) -> None:
    folder, arrays = sharded
    index_of(folder).unlink()
    for source in ([folder], shards_of(folder)):
        assert sorted(convert(*source)[0]) == sorted(arrays)
    shards_of(folder)[1].unlink()
    assert "part 1 of 3" in refused(convert, folder)


def test_a_folder_with_one_model_is_opened(convert, tmp_path: Path) -> None:
    one = {"a": np.ones(3, np.float32)}
    folder = tmp_path / "single"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert "no *.safetensors file" in refused(convert, folder)
    save_file(one, folder / "anything.safetensors")
    assert list(convert(folder)[0]) == ["a"]
    save_file({"b": np.zeros(3, np.float32)}, folder / "model.safetensors")
    assert list(convert(folder)[0]) == ["b"]
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    message = refused(convert, folder)
    assert "anything.safetensors, other.safetensors" in message


def test_a_folder_with_an_index_and_a_complete_file_is_ambiguous(convert, sharded) -> None:
    folder, _ = sharded
    save_file({"a": np.ones(3, np.float32)}, folder / "model.safetensors")
    message = refused(convert, folder)
    assert "model.safetensors.index.json" in message and "several models" in message


def test_a_folder_that_lacks_parts_names_them(convert, sharded) -> None:
    folder, _ = sharded
    index_of(folder).unlink()
    first, *_ = shards_of(folder)
    first.unlink()
    assert f"without {first.name};" in refused(convert, folder)


@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "second.safetensors", "MODEL.SAFETENSORS", "x"])
def test_one_shard_is_refused_under_any_name(convert, sharded, name: str) -> None:
    folder, _ = sharded
    source = shards_of(folder)[1].rename(folder / name)
    message = refused(convert, source)
    assert "model.safetensors.index.json" in message and "3 of the 5 tensors" in message


@pytest.mark.parametrize(
    "name",
    ["model-00001-of-00002.safetensors", "MODEL-00001-OF-00002.SAFETENSORS", "model-1-of-2.safetensors.part",
     "a_2_of_3", "model.fp16-00001-of-00002.safetensors", "model-00001-of-00002.fp16.safetensors",
     "m-00001-of-00002 (1).safetensors"],
)  # fmt: skip
def test_a_numbered_file_alone_is_refused(convert, tmp_path: Path, name: str) -> None:
    save_file({"a": np.ones(3, np.float32)}, tmp_path / name)
    message = refused(convert, tmp_path / name)
    assert "index" in message and re.search("part [12] of [23]", message)


@pytest.mark.parametrize("name", ["m-00001-of-00001.safetensors", "part-of-model.safetensors", "x-2of3.safetensors"])
def test_a_file_that_is_the_only_part_is_complete(convert, tmp_path: Path, name: str) -> None:
    save_file({"a": np.ones(3, np.float32)}, tmp_path / name)
    assert list(convert(tmp_path / name)[0]) == ["a"]


def test_a_blob_of_a_hub_cache_is_a_shard(convert, sharded, tmp_path: Path, monkeypatch) -> None:
    folder, arrays = sharded
    snapshot, blobs = tmp_path / "hub/snapshots/abc", tmp_path / "hub/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for k, path in enumerate([*shards_of(folder), index_of(folder)]):
        path.rename(blobs / f"{k:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{k:064x}")
    assert sorted(convert(snapshot)[0]) == sorted(arrays)
    assert "index.json" in refused(convert, blobs / f"{1:064x}")
    assert "JSON text" in refused(convert, blobs / f"{3:064x}")
    monkeypatch.chdir(blobs)
    assert "index.json" in refused(convert, f"{1:064x}")


def test_an_index_of_a_variant_is_an_index(convert, sharded) -> None:
    folder, arrays = sharded
    index = index_of(folder).rename(folder / "model.safetensors.index.fp16.json")
    for source in (folder, index):
        assert sorted(convert(source)[0]) == sorted(arrays)
    renamed = shards_of(folder)[0].rename(folder / "x")
    assert index.name in refused(convert, renamed)


def test_keys_of_all_shards_are_kept_once(convert, sharded) -> None:
    folder, _ = sharded
    save_file({"blk.4.weight": np.ones(3, np.float32)}, shards_of(folder)[2], metadata={"format": "np", "more": "x"})
    convert(
        folder, "--set", "safetensors.more=5", "--set", "a.b=1", "--set", "a.b=2", "--set", "general.architecture=x"
    )
    keys = dict(gb.gguf.open(folder.parent / "converted.gguf").metadata)
    assert keys == {"general.architecture": "x", "safetensors.format": "np", "safetensors.more": 5, "a.b": 2}


def test_a_complete_file_beside_an_index_is_complete(convert, sharded) -> None:
    folder, arrays = sharded
    save_file(arrays, folder / "consolidated.safetensors")
    save_file({"other": np.ones(3, np.float32)}, folder / "other.safetensors")
    assert len(convert(folder / "consolidated.safetensors")[0]) == 5
    assert len(convert(folder / "other.safetensors")[0]) == 1


def test_an_incomplete_checkpoint_is_refused(convert, sharded) -> None:
    folder, _ = sharded
    shards_of(folder)[2].unlink()
    for source in (folder, index_of(folder)):
        message = refused(convert, source)
        assert "incomplete" in message and "model-00003-of-00003.safetensors" in message
    assert "1 of the 5 tensors" in refused(convert, *shards_of(folder))


def test_shards_must_have_the_tensors_of_their_index(convert, sharded) -> None:
    folder, _ = sharded
    original = index_of(folder).read_text()

    def drop(index: dict[str, Any]) -> None:
        del index["weight_map"]["blk.3.weight"]

    def invent(index: dict[str, Any]) -> None:
        index["weight_map"]["new"] = "model-00001-of-00003.safetensors"

    def swap(index: dict[str, Any]) -> None:
        index["weight_map"]["blk.0.weight"] = "model-00002-of-00003.safetensors"

    for change, words in (
        (drop, ["'blk.3.weight'", "does not name"]),
        (invent, ["has no tensor 'new'"]),
        (swap, ["'blk.0.weight'"]),
    ):
        index_of(folder).write_text(original)
        change_index(folder, change)
        message = refused(convert, folder)
        assert all(word in message for word in words), message


def test_a_tensor_in_two_files_is_refused(convert, sharded, tmp_path: Path) -> None:
    folder, _ = sharded
    save_file({"blk.0.weight": np.ones(3, np.float32)}, tmp_path / "more.safetensors")
    assert "'blk.0.weight' occurs twice" in refused(convert, folder, tmp_path / "more.safetensors")
    assert "given twice" in refused(convert, folder, shards_of(folder)[0])


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"[]", "not a JSON object"), (b"{", "not JSON"), (b"", "not JSON"), (b"{}", "not a safetensors index"),
     (b'{"weight_map": []}', "not a safetensors index"), (b'{"weight_map": {"a": 5}}', "not a safetensors index"),
     (b'{"weight_map": {"a": "../x.safetensors"}}', "below the folder"),
     (b'{"weight_map": {"a": "/etc/passwd"}}', "below the folder"), (b'{"weight_map": {"a": "b\\\\..\\\\c"}}', "below"),
     (b'{"weight_map": {"a": "C:x"}}', "below the folder"), (b'{"weight_map": {"a": ""}}', "below the folder"),
     (b'{"weight_map": {"a": "x\\u0000"}}', "below the folder"), (b'{"weight_map": {"a": "gone"}}', "missing"),
     (b'{"weight_map": {"a": "x", "a": "y"}}', "twice"), (b"\xff\xfe{\0}\0", "UTF-16"), (b"{\0", "NUL"),
     (b"\xff", "text"),
     (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
     (b"<!DOCTYPE html><html>", "HTML page"), (b"\x93NUMPY\1", "NumPy file"), (b"nothing known", "not JSON"),
     (b"[" * 100000, "not JSON"), (b'{"weight_map": {"a": "."}}', ""), (b'{"weight_map": {"a": "i.json"}}', ""),
     (b'{"weight_map": {"a": "\\ud800"}}', "")],
)  # fmt: skip
def test_invalid_indexes_are_refused(convert, tmp_path: Path, content: bytes, word: str) -> None:
    (tmp_path / "i.json").write_bytes(content)
    message = refused(convert, tmp_path / "i.json")
    assert word in message and "i.json" in message


def test_slices_of_tensors_are_refused(convert, tmp_path: Path) -> None:
    path = tmp_path / "slices.safetensors"
    save_file({"a": np.ones(3, np.float32)}, path, metadata={"DCP_SHARDING_INFO": "{}", "DCP_VERSION": "1.0"})
    assert "slices" in refused(convert, path)


def test_the_output_cannot_be_a_shard(convert, sharded) -> None:
    folder, _ = sharded
    before = shards_of(folder)[0].read_bytes()
    for source in (folder, index_of(folder)):
        with pytest.raises(gb.errors.InvalidArgumentError, match=": give the output another name"):
            main(["gguf", "convert", str(source), str(shards_of(folder)[0])])
    assert shards_of(folder)[0].read_bytes() == before


# ----------------------------------------------------------------------------------------------------- values of dtypes


SMALL_FLOATS = {
    "F8_E4M3": (ml_dtypes.float8_e4m3fn, np.float16), "F8_E5M2": (ml_dtypes.float8_e5m2, np.float16),
    "F8_E4M3FNUZ": (ml_dtypes.float8_e4m3fnuz, np.float16), "F8_E5M2FNUZ": (ml_dtypes.float8_e5m2fnuz, np.float16),
    "F8_E8M0": (ml_dtypes.float8_e8m0fnu, np.float32),
}  # fmt: skip


@pytest.mark.parametrize("kind", SMALL_FLOATS)
def test_floats_of_a_byte_keep_every_value(convert, tmp_path: Path, kind: str) -> None:
    small, wide = SMALL_FLOATS[kind]
    given = np.arange(256, dtype=np.uint8)
    source = tmp_path / "m.safetensors"
    content = {
        "all": (kind, (16, 16), given.tobytes()),
        "one": (kind, (), b"\x3c"),
        "row": (kind, (3,), b"\x3c\x3d\x3e"),
    }
    source.write_bytes(encode(content))
    tensors, shown = convert(source)
    expected = given.view(small).reshape(16, 16)
    np.testing.assert_array_equal(tensors["all"].numpy(), expected.astype(wide))
    np.testing.assert_array_equal(tensors["all"].numpy().astype(np.float64), expected.astype(np.float64))
    assert np.isnan(tensors["all"].numpy()).sum() == np.isnan(expected.astype(np.float64)).sum() > 0
    assert tensors["one"].numpy().reshape(()) == np.uint8(0x3C).view(small).astype(wide)
    np.testing.assert_array_equal(
        tensors["row"].numpy(), np.array([0x3C, 0x3D, 0x3E], np.uint8).view(small).astype(wide)
    )
    assert f"{kind} is stored as {np.dtype(wide)}, with the same values: 3 tensors" in shown


def test_float8_is_widened_to_the_requested_type(convert, tmp_path: Path, rng: np.random.Generator) -> None:
    small = rng.standard_normal((8, 64)).astype(ml_dtypes.float8_e4m3fn)
    source = tmp_path / "m.safetensors"
    source.write_bytes(encode({"w": ("F8_E4M3", (8, 64), small.tobytes()), "b": ("F8_E5M2", (5,), bytes(5))}))
    wide = small.astype(np.float32)
    for kind in ("f32", "f16", "bf16", "q8_0", "q4_0"):
        tensors, _ = convert(source, f"--type={kind}")
        dtype = gb.dtypes.as_dtype(kind)
        expected = gb.quantize(wide, dtype)
        np.testing.assert_array_equal(tensors["w"].numpy().view(np.uint8), np.asarray(expected).view(np.uint8))
        assert tensors["w"].dtype == dtype and tensors["b"].dtype.name == "float16"
    source.write_bytes(encode({"w": ("F8_E4M3", (1, 64), b"\x7f" * 64)}))
    assert "nan" in refused(convert, source, "--type=q8_0").lower()
    tensors, _ = convert(source, "--type=q8_0", "--on-invalid=clip")
    assert not tensors["w"].dequantize().any()


def test_scales_of_float8_are_reported(convert, tmp_path: Path) -> None:
    source = tmp_path / "m.safetensors"
    scale = ("F32", (1,), bytes(4))
    source.write_bytes(encode({"w": ("F8_E4M3", (2,), b"12"), "w_scale_inv": scale, "v": ("F8_E4M3", (2,), b"12")}))
    assert "weights are not multiplied by the scales beside them: w\n" in convert(source)[1]


def test_notes_and_summaries_use_singular_and_plural(convert, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(encode({"a": ("BOOL", (2,), b"\1\0"), "b": ("U8", (1,), b"\1"), "c": ("U8", (1,), b"\2")}))
    printed = convert(path)[1]
    assert "BOOL is stored as int8, with the same values: 1 tensor\n" in printed
    assert "U8 is stored as int8, with the same values: 2 tensors\n" in printed
    assert "\n0 matrices\n" in printed


def test_float4_keeps_every_value(convert, tmp_path: Path) -> None:
    source = tmp_path / "m.safetensors"
    source.write_bytes(encode({"w": ("F4", (16, 32), bytes(range(256)))}))
    codes = np.arange(256, dtype=np.uint8)
    both = np.stack([codes & 15, codes >> 4], axis=-1).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    np.testing.assert_array_equal(convert(source)[0]["w"].numpy(), both.astype(np.float16).reshape(16, 32))


@pytest.mark.parametrize(
    ("array", "dtype"),
    [(np.array([[True, False], [False, True]]), "int8"), (np.array([0, 127], np.uint8), "int8"),
     (np.array([0, 128], np.uint8), "int16"), (np.array([0, 65535], np.uint16), "int32"),
     (np.array([3], np.uint16), "int16"), (np.array([2**31], np.uint32), "int64"), (np.array([7], np.uint32), "int32"),
     (np.array([2**63 - 1], np.uint64), "int64"), (np.array(True), "int8"), (np.array(200, np.uint8), "int16")],
)  # fmt: skip
def test_masks_and_unsigned_integers_keep_their_values(convert, tmp_path: Path, array: Array, dtype: str) -> None:
    save_file({"m": array}, tmp_path / "m.safetensors")
    tensors, shown = convert(tmp_path / "m.safetensors", "--type=q8_0")
    assert tensors["m"].dtype.name == dtype
    np.testing.assert_array_equal(tensors["m"].numpy().reshape(array.shape), array)
    assert f"is stored as {dtype}" in shown


def test_masks_of_other_bytes_are_true(convert, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(encode({"m": ("BOOL", (3,), b"\0\x02\xff")}))
    assert convert(tmp_path / "m.safetensors")[0]["m"].numpy().tolist() == [0, 1, 1]


@pytest.mark.parametrize("shape", [(2, 3, 4, 5, 32), (1, 1, 1, 1, 1), (2, 1, 3, 1, 2, 1, 32)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, ml_dtypes.bfloat16])
def test_tensors_of_more_than_four_axes_are_folded(convert, tmp_path: Path, rng, shape, dtype) -> None:
    array = (rng.standard_normal(shape) * 9).astype(dtype)
    save_file({"conv": array}, tmp_path / "m.safetensors")
    tensors, shown = convert(tmp_path / "m.safetensors")
    folded = (math.prod(shape[:-3]), *shape[-3:])
    assert_equal(tensors["conv"], array.astype(np.int8 if dtype is np.bool_ else dtype).reshape(folded))
    assert f"conv {shape} -> {folded}" in shown
    if dtype is np.float32 and shape[-1] == 32:
        tensors, _ = convert(tmp_path / "m.safetensors", "--type=q8_0")
        np.testing.assert_array_equal(tensors["conv"].numpy(), gb.quantize(array.reshape(folded), "q8_0"))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 4), (4, 0), (0, 0), (2, 0, 3), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "F64", "I8", "I64", "F8_E4M3", "F8_E8M0", "BOOL", "U8", "F4"])
def test_empty_tensors_and_scalars_are_converted(convert, tmp_path: Path, shape: tuple[int, ...], kind: str) -> None:
    bits = {"F4": 4, "BOOL": 8, "U8": 8, "I8": 8, "BF16": 16, "F8_E4M3": 8, "F8_E8M0": 8}.get(kind) or int(kind[1:])
    n = math.prod(shape)
    if kind == "F4" and n:
        shape, n = (*shape, 2), 2
    source = tmp_path / "m.safetensors"
    content = {"t": (kind, shape, b"\x01" * (n * bits // 8)), "after": ("F32", (2,), b"12345678")}
    source.write_bytes(encode(content))
    for options in ((), ("--type=q8_0",), ("--type=f16",)):
        tensors, _ = convert(source, *options)
        folded = shape if len(shape) < 5 else (0, *shape[-3:])
        assert tensors["t"].shape == folded
        assert tensors["t"].numpy().size == n
        assert tensors["after"].numpy().tobytes() == b"12345678"


# ---------------------------------------------------------------------------------------------------------- leaving out


def test_skipped_tensors_are_left_out_and_listed(convert, tmp_path: Path) -> None:
    arrays = {f"h.{i}.attn.{n}": np.ones((2, 2), np.float32) for i in range(3) for n in ("bias", "weight")}
    source = tmp_path / "m.safetensors"
    save_file(arrays, source)
    tensors, shown = convert(source, "--skip=h.*.bias")
    assert sorted(tensors) == [f"h.{i}.attn.weight" for i in range(3)]
    assert shown.splitlines()[-1].startswith(
        "left out by --skip: 3 of 6 tensors, 48 bytes: h.0.attn.bias, h.1.attn.bias"
    )
    tensors, shown = convert(source, "--skip=h.0.*", "--skip=h.1.attn.bias", "--quiet")
    assert len(tensors) == 3 and "left out by --skip: 3 of 6" in shown
    for pattern in ("nothing*", "h.9.*", "h"):
        assert repr(pattern) in refused(convert, source, "--skip=h.0.*", f"--skip={pattern}")


def test_names_with_wildcards_can_be_skipped(convert, tmp_path: Path) -> None:
    source = tmp_path / "m.safetensors"
    save_file({name: np.ones(2, np.float32) for name in ("a[0]", "a0", "b*", "bc", "c?")}, source)
    assert set(convert(source, "--skip=a[0]")[0]) == {"a0", "b*", "bc", "c?"}
    assert set(convert(source, "--skip=b*", "--skip=c?")[0]) == {"a[0]", "a0", "bc"}


def test_all_tensors_that_cannot_be_stored_are_named_at_once(convert, tmp_path: Path) -> None:
    complex_, large = ("C64", (1,), bytes(8)), ("U64", (1,), b"\xff" * 8)
    content = {f"h.{i}.attn.bias": complex_ for i in range(12)}
    content |= {"it's": large, "h.0.x": large, "h.1.x": ("F32", (1,), bytes(4)), "f6": ("F6_E2M3", (4,), bytes(3))}
    content |= {"x[0]": complex_, "x[1]": complex_, "good": ("F32", (1,), bytes(4))}
    source = tmp_path / "m.safetensors"
    source.write_bytes(encode(content))
    message = refused(convert, source)
    for name, (kind, *_) in content.items():
        assert (repr(name) in message) == (kind != "F32"), name
    words = [w for w in shlex.split(message[message.index(" --skip ") :]) if w not in ("leaves", "them", "out")]
    assert words.count("h.*.attn.bias") == 1
    tensors, _ = convert(source, *(f"--skip={w}" for w in words if w != "--skip"))
    assert sorted(tensors) == ["good", "h.1.x"]
    short = refused(convert, source, *(f"--skip={w}" for w in words if w not in ("--skip", "f6")))
    assert "a tensor: 'f6'" in short and "--skip f6 leaves it out" in short


# ---------------------------------------------------------------------------------------------------------- wrong files


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"", "empty"), (b"abc", "incomplete"),
     (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS"),
     (b"<!DOCTYPE html><html><body>Not found</body></html>", "HTML"), (b"\n <HTML lang='en'>", "HTML"),
     (b'{"error": "Repository not found"}', "JSON"),
     (b'\xef\xbb\xbf{\n  "metadata": {}}', "JSON"), (b'["a", 1]', "JSON"),
     (b"GGUF\3\0\0\0" + bytes(16), "GGUF"), (b"PK\3\4\x14\0\0\0" + bytes(90), "ZIP"),
     (b"\x80\x02}q\0(X\1\0\0\0a", "pickle"),
     (b"\x80\x04\x95\x1a" + bytes(30), "pickle"), (b"\x93NUMPY\1\0v\0{'descr'" + bytes(90), "NumPy"),
     (b"\x1f\x8b\x08\0" + bytes(90), "gzip"), (b"\x89HDF\r\n\x1a\n" + bytes(90), "HDF5"), (bytes(4096), "zeros"),
     (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML"), (b"tjgg" + bytes(90), "GGML"),
     (b"A" * 300, "not a safetensors file"), (bytes(257) + b"ustar" + bytes(250), "tar")],
)  # fmt: skip
def test_the_error_names_the_kind_of_another_file(convert, tmp_path: Path, content: bytes, word: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    message = refused(convert, path)
    assert word in message and "model.safetensors" in message
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(content)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "a.safetensors"}}')
    assert word in refused(convert, folder)


def test_every_length_of_a_header_is_read(convert, tmp_path: Path) -> None:
    """Includes lengths whose bytes look like the start of a pickle, ZIP or gzip file."""
    for length in (64, *range(0x80, 0x180), 0x280, 0x8B1F, 0x4B50):
        text = json.dumps({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode().ljust(length)
        (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
        assert list(convert(tmp_path / "m.safetensors")[0]) == ["t"]


def test_a_truncated_file_is_incomplete(convert, tmp_path: Path) -> None:
    whole = encode({"a": ("F32", (4,), bytes(16)), "b": ("I8", (3,), b"abc")})
    path = tmp_path / "m.safetensors"
    for n in range(1, len(whole)):
        path.write_bytes(whole[:n])
        assert "incomplete" in refused(convert, path), n
    path.write_bytes(whole + b"\0")
    assert "belong to no tensor" in refused(convert, path)


@pytest.mark.parametrize("metadata", [{"a": 1}, {"a": None}, {"a": {}}, {"a": "x", "b": [1]}, [], "text", 5, True])
def test_metadata_that_maps_to_no_text_is_refused(convert, tmp_path: Path, metadata: Any) -> None:
    content = encode({"t": ("F32", (1,), bytes(4))}, __metadata__=metadata)
    (tmp_path / "m.safetensors").write_bytes(content)
    assert "__metadata__" in refused(convert, tmp_path / "m.safetensors")
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(content)


def judged(content: bytes) -> bool:
    """True if the package safetensors accepts the file."""
    try:
        safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return False
    return True


OFFSETS = st.lists(st.integers(0, 12), min_size=2, max_size=2)
ENTRIES = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "I8", "F4", "U16", "F128"]), "shape": st.lists(st.integers(0, 3), max_size=3),
     "data_offsets": OFFSETS},
    optional={"more": st.none()},
)  # fmt: skip
QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)


@QUIET
@given(header=st.dictionaries(st.sampled_from("abc"), ENTRIES, max_size=3), size=st.integers(0, 12))
def test_headers_are_accepted_or_refused_as_by_the_package(
    convert, tmp_path: Path, header: dict[str, Any], size: int
) -> None:
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(size)
    (tmp_path / "m.safetensors").write_bytes(content)
    if judged(content):
        assert sorted(convert(tmp_path / "m.safetensors")[0]) == sorted(header)
    else:
        assert "m.safetensors" in refused(convert, tmp_path / "m.safetensors")


@QUIET
@given(data=st.data())
def test_damaged_files_raise_an_error_of_the_package(convert, sharded_once, data: st.DataObject) -> None:
    """Bytes of a shard or an index are changed, removed or doubled."""
    folder = sharded_once
    files = sorted(folder.iterdir())
    path = data.draw(st.sampled_from(files))
    original = path.read_bytes()
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(len(damaged) - 1, 400)))
        how = data.draw(st.sampled_from(["byte", "cut", "twice", "drop"]))
        if how == "byte":
            damaged[at] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del damaged[at + 1 :]
        elif how == "twice":
            damaged[at:at] = damaged[at : at + 9]
        else:
            del damaged[at : at + 9]
        damaged = damaged or bytearray(b"x")
    try:
        path.write_bytes(damaged)
        try:
            tensors, _ = convert(folder)
        except (gb.GgmlError, OSError) as error:
            assert len(str(error)) < 2000
        else:
            assert path.suffix == ".json" or judged(bytes(damaged))
            for tensor in tensors.values():
                tensor.numpy()
    finally:
        path.write_bytes(original)


@pytest.fixture(scope="module")
def sharded_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    weight_map = {}
    for k in range(2):
        name = f"model-{k + 1:05d}-of-00002.safetensors"
        save_file({f"t{k}": np.arange(6, dtype=np.float32).reshape(2, 3), f"u{k}": np.ones(2, np.uint8)}, folder / name)
        weight_map |= {f"t{k}": name, f"u{k}": name}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
DTYPES = st.sampled_from(
    [np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64, np.bool_, np.uint8]
)
ARRAYS = DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=3)))


@QUIET
@given(
    arrays=st.dictionaries(NAMES.filter(lambda n: n != "__metadata__"), ARRAYS, max_size=5),
    metadata=st.none() | st.dictionaries(NAMES, NAMES, min_size=1, max_size=3),  # the package writes no JSON for {}
)
def test_random_files_of_the_package_keep_their_values(convert, tmp_path: Path, arrays, metadata) -> None:
    source = tmp_path / "m.safetensors"
    save_file(arrays, source, metadata=metadata)
    tensors, _ = convert(source)
    assert set(tensors) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name].numpy().reshape(array.shape), array)
    if all(a.size and a.ndim for a in arrays.values()):
        read = {t.name: t for t in gguf.GGUFReader(tmp_path / "converted.gguf").tensors}
        for name, array in arrays.items():
            np.testing.assert_array_equal(np.asarray(read[name].data).reshape(array.shape), array)
    back = {name: tensor.numpy() for name, tensor in tensors.items()}  # the package reads the same
    save_file(back, tmp_path / "back.safetensors")
    again, _ = convert(tmp_path / "back.safetensors")
    for name, array in back.items():
        np.testing.assert_array_equal(again[name].numpy(), array)


def test_a_file_that_cannot_be_read_is_named(convert, tmp_path: Path) -> None:
    for name in ("absent.safetensors", "absent.json"):
        with pytest.raises(FileNotFoundError) as error:
            convert(tmp_path / name)
        assert error.value.filename == str(tmp_path / name)
    os.mkfifo(tmp_path / "pipe.json")
    assert "not a regular file" in refused(convert, tmp_path / "pipe.json")


def test_long_shapes_are_refused_quickly(convert, tmp_path: Path) -> None:
    """The product of such sizes has millions of digits."""
    for shape in ([2**63] * 200_000, [2**63] * 200_000 + [0], [0] + [2**63] * 200_000):
        entry = {"t": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
        text = json.dumps(entry).encode()
        (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
        assert "shape" in refused(convert, tmp_path / "m.safetensors")
    text = json.dumps({"t": {"dtype": "F32", "shape": [1] * 1000, "data_offsets": [0, 4]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    assert convert(tmp_path / "m.safetensors")[0]["t"].shape == (1, 1, 1, 1)
