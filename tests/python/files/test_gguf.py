"""GGUF files: reading and writing beside the package ``gguf``, loading on backends, and failed writes."""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cli import main
from small_ggufs import finish
from threads import run_threads

NUMBERS: dict[str, list[Any]] = {
    "u8": [0, 255], "i8": [-128, 127], "u16": [0, 65535], "i16": [-32768, 32767], "u32": [0, 2**32 - 1],
    "i32": [-(2**31), 2**31 - 1],
    "u64": [0, 2**64 - 1], "i64": [-(2**63), 2**63 - 1], "f32": [0.5, float("-inf")], "f64": [0.1, -1e300],
    "bool": [True, False],
}  # fmt: skip
THEIRS = {
    "u8": "UINT8", "i8": "INT8", "u16": "UINT16", "i16": "INT16", "u32": "UINT32", "i32": "INT32", "u64": "UINT64",
    "i64": "INT64",
    "f32": "FLOAT32", "f64": "FLOAT64", "bool": "BOOL", "str": "STRING",
}  # fmt: skip
TEXTS = ["", "plain", "Zürich 東京 🙂", "line\nline", "nul\0inside", "x" * 70000]


def their_writer(path: Path, **options: Any) -> gguf.GGUFWriter:
    return gguf.GGUFWriter(path, "test", **options)


def theirs(path: Path, key: str) -> tuple[list[str], Any]:
    field = gguf.GGUFReader(path).fields[key]
    return [t.name for t in field.types], field.contents()


# ------------------------------------------------------------------------------------------------------------- metadata


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_we_write(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.gguf"
    with gb.gguf.Writer(path) as writer:
        for i, value in enumerate(NUMBERS[kind]):
            writer.add(f"k{i}", value, kind)
        writer.add("list", NUMBERS[kind], kind).add("none", [], kind)
    file = gb.gguf.open(path)
    for i, value in enumerate(NUMBERS[kind]):
        types, content = theirs(path, f"k{i}")
        assert types == [THEIRS[kind]]
        assert content == value or kind == "f64"
        assert file.metadata[f"k{i}"] == value
        assert type(file.metadata[f"k{i}"]) is type(value)
        assert file.metadata.type(f"k{i}") == kind
    types, content = theirs(path, "list")
    assert types == ["ARRAY", THEIRS[kind]]
    assert list(content) == NUMBERS[kind]
    assert file.metadata["list"].tolist() == NUMBERS[kind]
    assert file.metadata.type("list") == f"arr[{kind}]"
    assert file.metadata["none"].size == 0


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_they_write(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.gguf"
    writer = their_writer(path)
    value_type = gguf.GGUFValueType[THEIRS[kind]]
    for i, value in enumerate(NUMBERS[kind]):
        writer.add_key_value(f"k{i}", value, value_type)
    writer.add_key_value("list", NUMBERS[kind] * 3, gguf.GGUFValueType.ARRAY, value_type)
    finish(writer)
    file = gb.gguf.open(path)
    assert [file.metadata[f"k{i}"] for i in range(2)] == NUMBERS[kind]
    assert file.metadata["list"].tolist() == NUMBERS[kind] * 3
    assert file.metadata.type("list") == f"arr[{kind}]"
    assert file.metadata["general.architecture"] == "test"


def test_texts(tmp_path: Path) -> None:
    ours, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    with gb.gguf.Writer(ours) as writer:
        for i, text in enumerate(TEXTS):
            writer.add(f"k{i}", text)
        writer.add("list", TEXTS).add("schlüssel 🗝", "x").add("none", [], "str")
    assert theirs(ours, "schlüssel 🗝") == (["STRING"], "x")
    assert theirs(ours, "list") == (["ARRAY", "STRING"], TEXTS)
    for i, text in enumerate(TEXTS):
        assert theirs(ours, f"k{i}")[1] == text
    file = gb.gguf.open(ours)
    assert file.metadata["list"] == TEXTS
    assert file.metadata["none"] == []
    assert [file.metadata[f"k{i}"] for i in range(len(TEXTS))] == TEXTS
    other_writer = their_writer(other)
    other_writer.add_array("list", [t for t in TEXTS if t])
    other_writer.add_string("long", TEXTS[-1])
    finish(other_writer)
    file = gb.gguf.open(other)
    assert file.metadata["list"] == TEXTS[1:]
    assert file.metadata["long"] == TEXTS[-1]


def test_bytes_that_are_not_text_are_kept(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.gguf", tmp_path / "b.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add("k", b"\xff\xfe\x00\x80").add("list", [b"\xff", "ok"])
    text = gb.gguf.open(path).metadata["k"]
    with gb.gguf.Writer(copy) as writer:
        writer.add("k", text).add("list", gb.gguf.open(path).metadata["list"])
    assert copy.read_bytes() == path.read_bytes()


def test_types_chosen_for_python_values(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    cases = {
        "u32": 7, "i32": -7, "u64": 2**32, "i64": -(2**40), "f32": 1.5, "bool": True, "u8": np.uint8(3),
        "f64": np.float64(0.1),
        "str": "s", "arr[i32]": [1, 2], "arr[f32]": [1, 2.5], "arr[bool]": [True], "arr[str]": ("a", "b"),
        "arr[u16]": np.array([1, 2], np.uint16), "arr[u32]": [0, 2**32 - 1], "arr[i64]": [-1, 2**40],
    }  # fmt: skip
    with gb.gguf.Writer(path) as writer:
        for kind, value in cases.items():
            writer.add(kind, value)
    file = gb.gguf.open(path)
    assert {k: file.metadata.type(k) for k in file.metadata} == {k: "i64" if k == "u64" else k for k in cases}
    assert list(file.metadata) == list(cases)
    assert len(file.metadata) == len(cases)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(300, "u8"), (-1, "u32"), (2**64, None), (1.5, "i32"), (2, "bool"), ("x", "i32"), (None, None), ([], None),
     ([1, "a"], None),
     ([[1], [2]], None), (np.zeros((2, 2)), None), (np.zeros(2, np.complex64), None), (5, "u128"), (5, "str"),
     (np.longdouble(1), None), ([-1, 2**63], None),
     ([300], "u8"), (1 + 2j, None)],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(tmp_path: Path, value: Any, kind: str | None) -> None:
    writer = gb.gguf.Writer(tmp_path / "a.gguf")
    with pytest.raises((gb.errors.InvalidArgumentError, TypeError), match=r"'some\.key'"):
        writer.add("some.key", value, kind)


def test_wrong_keys_are_refused(tmp_path: Path) -> None:
    writer = gb.gguf.Writer(tmp_path / "a.gguf")
    for key in ("", "a\0b", "x" * 65536):
        with pytest.raises(gb.errors.InvalidArgumentError):
            writer.add(key, 1)
    with pytest.raises(TypeError):
        writer.add(5, 1)  # type: ignore[arg-type]
    for alignment in (0, 3, 2**31):
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"general\.alignment"):
            writer.add("general.alignment", alignment)


def test_a_key_is_added_once(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with gb.gguf.Writer(path, alignment=64) as writer:
        writer.add("a", 1).add("b", 2)
        for key in ("a", "general.alignment"):
            with pytest.raises(gb.errors.InvalidArgumentError, match=rf"'{key}' was added already"):
                writer.add(key, 64)
        with pytest.raises(gb.errors.InvalidArgumentError, match="'c'"):
            writer.add("c", 5, "u128")
        writer.add("c", 3)  # the refused value was not added
    assert dict(gb.gguf.open(path).metadata) == {"general.alignment": 64, "a": 1, "b": 2, "c": 3}


def test_a_copied_key_can_be_replaced(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    with gb.gguf.Writer(first, alignment=64) as writer:
        writer.add("a", 1).add("b", 2).add("c", 3)
    with gb.gguf.Writer(second, alignment=128) as writer:
        writer.add("c", "mine").copy_from(gb.gguf.open(first)).add("a", "text")
        with pytest.raises(gb.errors.InvalidArgumentError, match="'c' was added already"):
            writer.copy_from(gb.gguf.open(first), keys=["b", "c"])
    file = gb.gguf.open(second)
    assert dict(file.metadata) == {"general.alignment": 128, "c": "mine", "a": "text", "b": 2}
    assert file.alignment == 128


HALVES = [np.float16(1.5), np.array(1.5, np.float16), np.array([1.5, -2], np.float16), [np.float16(1.5), 2]]


@pytest.mark.parametrize("value", HALVES)
def test_half_precision_metadata_becomes_float32(tmp_path: Path, value: Any) -> None:
    """GGUF has no values of float16. float32 holds them exactly."""
    path = tmp_path / "a.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add("k", value)
    types, content = theirs(path, "k")
    assert types[-1] == "FLOAT32"
    np.testing.assert_array_equal(content, np.asarray(value, np.float32))
    np.testing.assert_array_equal(gb.gguf.open(path).metadata["k"], np.asarray(value, np.float32))


@pytest.mark.parametrize("kind", [*NUMBERS, "bfloat16"])
def test_scalars_of_every_numpy_dtype(tmp_path: Path, kind: str) -> None:
    """Scalars, arrays without axes and arrays of one element, of every dtype that GGUF metadata
    has."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(ml_dtypes.bfloat16) if kind == "bfloat16" else gb.gguf._values.ELEMENTS[kind][1]
    scalar, path = np.ones(1, dtype)[0], tmp_path / "a.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add("scalar", scalar).add("no axes", np.array(scalar)).add("list", np.array([scalar]))
    metadata, stored = gb.gguf.open(path).metadata, "f32" if kind == "bfloat16" else kind
    assert [metadata.type(k) for k in metadata] == [stored, stored, f"arr[{stored}]"]
    assert [metadata["scalar"], metadata["no axes"], metadata["list"].tolist()] == [1, 1, [1]]


@pytest.mark.parametrize(
    ("values", "message"),
    [([-1, 2**63], "holds both -1 and 9223372036854775808"), ([0, 2**64], "18446744073709551616 does not fit"),
     ([-(2**63) - 1, 0], "-9223372036854775809 does not fit"), ([-1, 2**64], "18446744073709551616 does not fit")],
)  # fmt: skip
def test_integers_without_a_common_type_are_named(tmp_path: Path, values: list[int], message: str) -> None:
    with pytest.raises(gb.errors.InvalidArgumentError, match=message):
        gb.gguf.Writer(tmp_path / "a.gguf").add("k", values)


def test_metadata_is_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add("a", 1)
    file = gb.gguf.open(path)
    assert "a" in file.metadata
    assert "b" not in file.metadata
    assert 5 not in file.metadata
    assert "a\0b" not in file.metadata
    assert file.metadata.get("b", 9) == 9
    with pytest.raises(KeyError):
        file.metadata["b"]
    with pytest.raises(KeyError):
        file.metadata.type("")


# -------------------------------------------------------------------------------------------------------------- tensors

PLAIN = [np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64]


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (1, 1, 4), (2, 3, 1, 5)])
@pytest.mark.parametrize("dtype", PLAIN)
def test_plain_tensors_both_ways(tmp_path: Path, rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> None:
    ours, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    array = (rng.standard_normal(shape) * 50).astype(dtype)
    with gb.gguf.Writer(ours) as writer:
        writer.add("general.architecture", "test")
        writer.add_tensor("first", array).add_tensor("second", array[..., ::-1])
    reader = gguf.GGUFReader(ours)
    assert [t.name for t in reader.tensors] == ["first", "second"]
    np.testing.assert_array_equal(reader.tensors[0].data.reshape(shape), array)
    np.testing.assert_array_equal(reader.tensors[1].data.reshape(shape), array[..., ::-1])
    assert tuple(int(n) for n in reader.tensors[0].shape) == shape[::-1]
    other_writer = their_writer(other)
    other_writer.add_tensor("first", array)
    other_writer.add_tensor("second", np.ascontiguousarray(array[..., ::-1]))
    finish(other_writer)
    for path in (ours, other):
        tensor = gb.gguf.open(path).tensors["second"]
        assert tensor.shape == shape
        assert tensor.dtype == gb.dtypes.as_dtype(dtype)
        np.testing.assert_array_equal(tensor.numpy(), array[..., ::-1])
    assert ours.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "q4_0", "q8_0", "q6_k", "iq4_nl", "mxfp4", "nvfp4", "tq1_0"])
def test_quantized_tensors_both_ways(tmp_path: Path, rng: np.random.Generator, dtype: str) -> None:
    ours, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    element = gb.dtypes.as_dtype(dtype)
    kind = gguf.GGMLQuantizationType(element.id)
    array = rng.standard_normal((2, 3, 512), np.float32)
    blocks = gb.quantize(array, dtype)
    with gb.gguf.Writer(ours) as writer:
        writer.add("general.architecture", "test").add_tensor("w", array, dtype=dtype)
    found = gguf.GGUFReader(ours).tensors[0]
    assert found.tensor_type == kind
    np.testing.assert_array_equal(np.asarray(found.data).view(np.uint8).reshape(blocks.shape), blocks)
    other_writer = their_writer(other)
    other_writer.add_tensor("w", blocks, raw_dtype=kind)
    finish(other_writer)
    assert ours.read_bytes() == other.read_bytes()
    tensor = gb.gguf.open(other).tensors["w"]
    assert tensor.shape == array.shape
    assert tensor.nbytes == blocks.nbytes
    np.testing.assert_array_equal(tensor.data, blocks.reshape(-1))
    np.testing.assert_array_equal(tensor.dequantize(), gguf.quants.dequantize(blocks, kind))


@pytest.mark.parametrize("alignment", [1, 8, 32, 64, 4096, 2**20])
def test_alignments(tmp_path: Path, cpu: gb.Backend, alignment: int) -> None:
    path, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    arrays = {f"t{i}": np.arange(i * 3 + 1, dtype=np.float32) for i in range(3)}
    with gb.gguf.Writer(path, alignment=alignment) as writer:
        for name, array in arrays.items():
            writer.add_tensor(name, array)
        size = writer.nbytes
    assert path.stat().st_size == size
    file = gb.gguf.open(path)
    assert file.alignment == alignment
    if alignment >= 8:
        reader = gguf.GGUFReader(path)
        assert reader.alignment == alignment
        for tensor in reader.tensors:
            np.testing.assert_array_equal(tensor.data, arrays[tensor.name])
        other_writer = their_writer(other)
        other_writer.add_custom_alignment(alignment)
        for name, array in arrays.items():
            other_writer.add_tensor(name, array)
        finish(other_writer)
        np.testing.assert_array_equal(gb.gguf.open(other).tensors["t2"].numpy(), arrays["t2"])
    weights = file.load(cpu)
    for name, array in arrays.items():
        assert file.tensors[name].offset % alignment == 0
        np.testing.assert_array_equal(file.tensors[name].numpy(), array)
        np.testing.assert_array_equal(weights[name].numpy(), array)


def test_no_tensors_and_no_keys(tmp_path: Path, cpu: gb.Backend) -> None:
    path, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    with gb.gguf.Writer(path):
        pass
    file = gb.gguf.open(path)
    assert len(file.metadata) == len(file.tensors) == len(file.load(cpu)) == 0
    assert gguf.GGUFReader(path).tensors == []
    writer = their_writer(other)
    finish(writer)
    assert list(gb.gguf.open(other).metadata) == ["general.architecture"]


def test_arrays_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add_tensor("t", np.arange(1000, dtype=np.int32))
    with gb.gguf.open(path) as file:
        array = file.tensors["t"].numpy()
        metadata, tensors = file.metadata, file.tensors
    os.unlink(path)
    gc.collect()
    assert not array.flags.writeable
    assert array.sum() == 499500
    assert file.closed
    for call in (
        lambda: metadata["x"],
        lambda: list(tensors),
        lambda: file.load(gb.Backend("CPU")),
        lambda: file.nbytes,
    ):
        with pytest.raises(gb.errors.StateError, match="closed"):
            call()
    file.close()


def test_long_names(tmp_path: Path, cpu: gb.Backend) -> None:
    path = tmp_path / "a.gguf"
    names = ["n" * 200 + str(i) for i in range(3)] + ["ünïcode 🙂"]
    with gb.gguf.Writer(path) as writer:
        for i, name in enumerate(names):
            writer.add_tensor(name, np.full(4, i, np.float32))
    weights = gb.gguf.open(path).load(cpu)
    assert list(weights) == names
    assert [weights[n].numpy()[0] for n in names] == [0, 1, 2, 3]
    assert [t.name for t in gguf.GGUFReader(path).tensors] == names


# -------------------------------------------------------------------------------------------------------------- loading


@pytest.fixture
def model(tmp_path: Path, rng: np.random.Generator) -> tuple[Path, dict[str, np.ndarray]]:
    path = tmp_path / "model.gguf"
    arrays = {f"blk.{i}.{part}": rng.standard_normal((8, 64), np.float32) for i in range(6) for part in ("up", "down")}
    with gb.gguf.Writer(path) as writer:
        for i, (name, array) in enumerate(arrays.items()):
            writer.add_tensor(name, array, dtype=None if i % 2 else gb.dtypes.q8_0)
    arrays = {
        n: a if i % 2 else gb.dequantize(gb.quantize(a, "q8_0"), "q8_0") for i, (n, a) in enumerate(arrays.items())
    }
    return path, arrays


def content(tensor: gb.Tensor) -> np.ndarray:
    return gb.dequantize(tensor.numpy(), tensor.dtype)


def test_load_in_place(model: Any, cpu: gb.Backend) -> None:
    path, arrays = model
    file = gb.gguf.open(path)
    weights = file.load(cpu)
    assert weights.in_place == weights.nbytes == sum(t.nbytes for t in file.tensors.values())
    assert len(weights.buffers) == 1
    assert weights.buffers[0].usage == "weights"
    assert weights.buffers[0].readonly
    mapped = file.tensors["blk.2.down"].numpy()
    view = weights["blk.2.down"].numpy()
    assert view.__array_interface__["data"][0] == mapped.__array_interface__["data"][0]
    del file, mapped
    gc.collect()
    for name, array in arrays.items():
        np.testing.assert_array_equal(content(weights[name]), array)
    with pytest.raises(gb.errors.StateError, match="read-only"):
        weights["blk.2.down"].set(0.0)
    weights.close()
    with pytest.raises(gb.errors.StateError):
        weights["blk.2.down"].numpy()
    assert view.shape == (8, 64)
    assert np.isfinite(view).all()


def test_load_on_a_device(model: Any, sim: gb.Backend) -> None:
    path, arrays = model
    calls: list[tuple[int, int]] = []
    weights = gb.gguf.open(path).load(sim, progress=lambda done, total: calls.append((done, total)))
    assert weights.in_place == 0
    assert calls[-1] == (weights.nbytes, weights.nbytes)
    assert [c[0] for c in calls] == sorted(c[0] for c in calls)
    for name, array in arrays.items():
        assert not weights[name].is_host
        np.testing.assert_array_equal(content(weights[name]), array)


def test_load_by_patterns(model: Any, cpu: gb.Backend, sim: gb.Backend) -> None:
    path, arrays = model
    weights = gb.gguf.open(path).load({"blk.[0-2].*": sim, "*": cpu})
    for name, array in arrays.items():
        assert weights[name].is_host == (int(name[4]) > 2)
        np.testing.assert_array_equal(content(weights[name]), array)
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"'blk\.3\.up'"):
        gb.gguf.open(path).load({"blk.[0-2].*": sim})
    with pytest.raises(TypeError, match="not on str"):
        gb.gguf.open(path).load({"*": "CPU"})  # type: ignore[dict-item]


def test_a_pattern_of_load_without_a_match_is_an_error(model: Any, cpu: gb.Backend, sim: gb.Backend) -> None:
    """A typo would move a whole model to another device. A pattern whose tensors ``names`` excludes
    is not a typo."""
    file = gb.gguf.open(model[0])
    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"^load: where: no tensor of the file fits 'blk\.99\.\*'; .*'blk\."
    ):
        file.load({"blk.99.*": sim, "*": cpu})
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"fits 'blk\.0\.upp'; did you mean 'blk\.0\.up'"):
        file.load({"blk.0.upp": sim, "*": cpu})
    with pytest.raises(KeyError, match=r"no tensor fits 'blk\.0\.upp'; did you mean 'blk\.0\.up'"):
        file.load(cpu, ["blk.0.upp"])
    assert list(file.load({"blk.0.*": sim, "*": cpu}, "blk.1.up")) == ["blk.1.up"]
    assert len(file.load({"blk.?.*": sim, "*": cpu})) == len(file.tensors)


def test_a_pattern_of_load_without_effect_is_an_error(model: Any, cpu: gb.Backend, sim: gb.Backend) -> None:
    """The first matching pattern decides, so the special one would have no effect."""
    file = gb.gguf.open(model[0])
    behind: list[tuple[dict[str, gb.Backend], str, str]] = [
        ({"*": cpu, "blk.0.*": sim}, "blk.0.*", "*"),
        ({"blk.*": sim, "blk.0.up": cpu, "*": cpu}, "blk.0.up", "blk.*"),
    ]
    for where, special, general in behind:
        words = re.escape(f"{special!r} decides nothing: {general!r} comes first")
        with pytest.raises(gb.errors.InvalidArgumentError, match=words):
            file.load(where)
    for where in (
        {"blk.[0-9].*": sim, "*": cpu},  # the first pattern matches all tensors, too
        {"blk.[0-2].*": sim, "blk.[3-9].*": cpu, "blk.*": cpu},  # one pattern for each half, and one for the rest
        {"blk.0.up": sim, "blk.0.u?": cpu, "*": cpu},
    ):
        assert len(file.load(where)) == len(file.tensors)


def test_load_takes_names_and_patterns(model: Any, cpu: gb.Backend) -> None:
    file = gb.gguf.open(model[0])
    assert list(file.load(cpu, "blk.1.*")) == ["blk.1.up", "blk.1.down"]
    assert list(file.load(cpu, ["blk.4.down", "*.0.up"])) == ["blk.0.up", "blk.4.down"]
    with pytest.raises(KeyError, match="nothing"):
        file.load(cpu, ["nothing.*"])


def test_load_more_than_the_largest_buffer(model: Any) -> None:
    path, arrays = model
    device = gb.Backend("SIM", mem="64M", max="5K")
    weights = gb.gguf.open(path).load(device)
    assert len(weights.buffers) > 1
    assert all(b.nbytes <= 5 * 1024 for b in weights.buffers)
    for name, array in arrays.items():
        np.testing.assert_array_equal(content(weights[name]), array)


def test_load_without_enough_memory(model: Any) -> None:
    device = gb.Backend("SIM", mem="4K")
    with pytest.raises(gb.errors.AllocationError):
        gb.gguf.open(model[0]).load(device)
    assert gb.gguf.open(model[0]).load(device, "blk.0.down")["blk.0.down"].is_placed


def test_progress_can_cancel_loading(model: Any, sim: gb.Backend) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gb.gguf.open(model[0]).load(sim, progress=stop)
    assert len(gb.gguf.open(model[0]).load(sim)) == 12


def test_compute_with_loaded_weights(model: Any, cpu: gb.Backend, sim: gb.Backend, rng: np.random.Generator) -> None:
    path, arrays = model
    weights = gb.gguf.open(path).load({"*.up": sim, "*": cpu})
    x = rng.standard_normal((3, 64), np.float32)
    with gb.Context() as ctx:
        source = ctx.tensor(x.shape, gb.float32)
        a, b = source @ weights["blk.1.up"].T, source @ weights["blk.1.down"].T
        graph = ctx.graph(a, b)
        sched = gb.Scheduler([sim, cpu])
        sched.allocate(graph)
        source.set(x)
        sched.compute(graph)
        np.testing.assert_allclose(a.numpy(), x @ arrays["blk.1.up"].T, rtol=0, atol=0.15)
        np.testing.assert_allclose(b.numpy(), x @ arrays["blk.1.down"].T, rtol=1e-5, atol=1e-5)


def test_load_into_a_context(model: Any, cpu: gb.Backend, ctx: gb.Context) -> None:
    weights = gb.gguf.open(model[0]).load(cpu, context=ctx)
    assert weights.context is ctx
    assert ctx["blk.5.up"].name == "blk.5.up"


# -------------------------------------------------------------------------------------------------------------- sources


def test_open_bytes(model: Any, cpu: gb.Backend) -> None:
    path, arrays = model
    data = path.read_bytes()
    with path.open("rb") as f:
        mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    for file in (
        gb.gguf.open(data),
        gb.gguf.open(np.frombuffer(data, np.uint8)),
        gb.gguf.open(memoryview(data)),
        gb.gguf.open(mapped),
    ):
        np.testing.assert_array_equal(file.tensors["blk.0.down"].numpy(), arrays["blk.0.down"])
        np.testing.assert_array_equal(content(file.load(cpu)["blk.0.up"]), arrays["blk.0.up"])


def test_invalid_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        gb.gguf.open(tmp_path / "absent")
    with pytest.raises(gb.errors.FileError, match="a directory"):
        gb.gguf.open(tmp_path)
    with pytest.raises(TypeError, match="not bool"):
        gb.gguf.open(True)
    (tmp_path / "empty").touch()
    with pytest.raises(gb.errors.FileError, match=r"offset 0: the magic .* the file is empty"):
        gb.gguf.open(tmp_path / "empty")
    with pytest.raises(gb.errors.FileError, match="not a GGUF file"):
        gb.gguf.open(b"GGML" + bytes(100))
    with pytest.raises(gb.errors.FileError, match="other byte order"):
        gb.gguf.open(b"GGUF" + (3).to_bytes(4, "big") + bytes(100))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(gb.errors.FileError, match="regular file"):
        gb.gguf.open(tmp_path / "pipe")


def test_the_other_byte_order_of_the_package(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = their_writer(path, endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("t", np.ones(4, np.float32))
    finish(writer)
    with pytest.raises(gb.errors.FileError, match="offset 4: the file is in the other byte order"):
        gb.gguf.open(path)


# --------------------------------------------------------------------------------------------------------------- writer


def test_unknown_keys_and_types_are_kept(tmp_path: Path, rng: np.random.Generator) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    writer = their_writer(first)
    for kind, values in NUMBERS.items():
        writer.add_key_value(f"x.{kind}", values[1], gguf.GGUFValueType[THEIRS[kind]])
        writer.add_key_value(f"x.list.{kind}", values, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType[THEIRS[kind]])
    writer.add_array("x.texts", ["a", "ü"])
    for kind in ("Q3_K", "IQ1_S", "Q8_1"):
        size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
        writer.add_tensor(kind, rng.integers(0, 256, (4, size), np.uint8), raw_dtype=gguf.GGMLQuantizationType[kind])
    finish(writer)
    with gb.gguf.Writer(second) as copy:
        copy.copy_from(gb.gguf.open(first))
    assert second.read_bytes() == first.read_bytes()


def with_unknown_types(path: Path, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Tensors of unknown and known types. Unknown ones fill whole alignment steps, because only
    offsets give their sizes."""
    arrays: dict[str, np.ndarray] = {}
    infos, data = [], b""
    for name, kind, shape, size in [
        ("first", 43, (128, 3), 64),
        ("plain", 0, (8, 2), 64),
        ("retired", 4, (32, 2), 96),
        ("future", 777, (5,), 32),
    ]:
        arrays[name] = rng.integers(1, 256, size, np.uint8) if kind else np.arange(16, dtype=np.float32).view(np.uint8)
        infos.append((name.encode(), shape, kind, len(data)))
        data += arrays[name].tobytes()
    meta = b"GGUF" + struct.pack("<IQQ", 3, len(infos), 1)
    meta += struct.pack("<Q", 3) + b"key" + struct.pack("<II", 4, 99)
    for name_, ne, kind, offset in infos:
        meta += struct.pack("<Q", len(name_)) + name_ + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, offset)
    path.write_bytes(meta + bytes(-len(meta) % 32) + data)
    return arrays


def test_tensors_of_unknown_types(tmp_path: Path, rng: np.random.Generator, cpu: gb.Backend) -> None:
    path = tmp_path / "a.gguf"
    arrays = with_unknown_types(path, rng)
    file = gb.gguf.open(path)
    assert {n: (t.dtype.name, t.dtype.id, t.shape, t.nbytes) for n, t in file.tensors.items()} == {
        "first": ("type 43", 43, (3, 128), 64), "plain": ("float32", 0, (2, 8), 64),
        "retired": ("type 4", 4, (2, 32), 96),
        "future": ("type 777", 777, (5,), 32),
    }  # fmt: skip
    for name in ("first", "retired", "future"):
        tensor = file.tensors[name]
        assert isinstance(tensor.dtype, gb.gguf.UnknownType)
        assert tensor.dtype == pickle.loads(pickle.dumps(tensor.dtype))
        assert tensor.dtype not in list(gb.dtypes.dtypes.values())
        assert f"type {tensor.dtype.id}" in repr(tensor)
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])
        assert not tensor.numpy().flags.writeable
        for refused in (
            tensor.dequantize,
            lambda n=name: file.load(cpu, n),
            lambda n=name: file.load(cpu)[n],
            lambda t=tensor: t.dtype.row_nbytes(32),
        ):
            with pytest.raises(gb.errors.UnsupportedError, match=r"does not know tensor type \d+"):
                refused()
        with pytest.raises(gb.errors.UnsupportedError, match=f"does not know tensor type {tensor.dtype.id}"):
            gb.gguf.Writer(tmp_path / "x").add_tensor("t", tensor, dtype="q8_0")
        with pytest.raises(gb.errors.UnsupportedError, match=f"{tensor.dtype.id}"):
            gb.gguf.Writer(tmp_path / "x").add_tensor("t", np.zeros(32, np.uint8), dtype=tensor.dtype)
    for names in (None, "plain", ["*"], "*"):
        weights = file.load(cpu, names)
        assert list(weights) == ["plain"]
        assert sorted(weights.left_out) == ([] if names == "plain" else ["first", "future", "retired"])
        assert "first" not in weights


def test_unknown_types_are_copied_byte_for_byte(
    tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    path, copy = tmp_path / "a.gguf", tmp_path / "b.gguf"
    arrays = with_unknown_types(path, rng)
    with gb.gguf.Writer(copy) as writer:
        writer.copy_from(gb.gguf.open(path))
        assert writer.nbytes == path.stat().st_size
    assert copy.read_bytes() == path.read_bytes()
    copy.unlink()
    assert main(["gguf", "quantize", str(path), str(copy), "--type", "q8_0", "--keep", "plain"]) == 0
    assert copy.read_bytes() == path.read_bytes()
    assert main(["gguf", "info", str(path)]) == 0
    assert main(["gguf", "info", str(path), "--json"]) == 0
    assert main(["gguf", "dump", str(path), "--values"]) == 0
    assert "retired type 4 (2, 32) 96 bytes" in capsys.readouterr().out
    assert main(["gguf", "check", str(path)]) == 0
    assert "values of tensors of unknown types were not checked: first (type 43), " in capsys.readouterr().out
    with gb.gguf.Writer(copy) as writer:  # with other names, order and alignment
        writer.add("general.alignment", 64)
        file = gb.gguf.open(path)
        writer.add_tensor("new", file.tensors["future"]).add_tensor(
            "old", file.tensors["retired"], dtype=file.tensors["retired"].dtype
        )
        for name in ("", "x" * 65536):
            with pytest.raises(gb.errors.InvalidArgumentError, match="name"):
                writer.add_tensor(name, file.tensors["future"])
    again = gb.gguf.open(copy)
    assert list(again.tensors) == ["new", "old"]
    np.testing.assert_array_equal(again.tensors["new"].data[:32], arrays["future"])
    np.testing.assert_array_equal(again.tensors["old"].data[:96], arrays["retired"])


def test_all_types_of_the_package_are_copied(tmp_path: Path, rng: np.random.Generator) -> None:
    path, copy = tmp_path / "a.gguf", tmp_path / "b.gguf"
    writer = their_writer(path)
    blocks = {}
    for kind in gguf.GGMLQuantizationType:
        size = gguf.GGML_QUANT_SIZES[kind][1]
        blocks[kind.name] = rng.integers(0, 256, (5, 2 * size), np.uint8)
        if size > 8 or kind.name == "BF16":
            writer.add_tensor(kind.name, blocks[kind.name], raw_dtype=kind)
    finish(writer)
    with gb.gguf.Writer(copy) as ours:
        ours.copy_from(gb.gguf.open(path))
    assert copy.read_bytes() == path.read_bytes()
    assert gb.gguf.open(path).tensors["Q1_0"].dtype == gb.dtypes.q1_0
    for tensor in gguf.GGUFReader(copy).tensors:
        np.testing.assert_array_equal(np.asarray(tensor.data).view(np.uint8).reshape(5, -1), blocks[tensor.name])


def test_copy_from_takes_names(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "b.gguf"
    source = gb.gguf.open(model[0])
    with gb.gguf.Writer(path) as writer:
        writer.copy_from(source, keys=False, tensors=["blk.3.up"])
        writer.add_tensor("half", source.tensors["blk.0.up"], dtype=gb.float16)
        writer.add_tensor("again", source.tensors["blk.0.down"], dtype="q4_0")
    file = gb.gguf.open(path)
    assert list(file.tensors) == ["blk.3.up", "half", "again"]
    with gb.gguf.Writer(tmp_path / "c.gguf") as writer:
        writer.copy_from(file, keys=False, tensors="half")
    assert list(gb.gguf.open(tmp_path / "c.gguf").tensors) == ["half"]
    np.testing.assert_array_equal(file.tensors["half"].numpy(), model[1]["blk.0.up"].astype(np.float16))
    np.testing.assert_array_equal(file.tensors["again"].numpy(), gb.quantize(model[1]["blk.0.down"], "q4_0"))


def test_tensors_of_backends(tmp_path: Path, sim: gb.Backend, ctx: gb.Context, rng: np.random.Generator) -> None:
    path = tmp_path / "a.gguf"
    array = rng.standard_normal((4, 64), np.float32)
    tensors = [ctx.tensor(array.shape, gb.float32), ctx.tensor(array.shape, gb.dtypes.q8_0)]
    ctx.allocate(sim)
    tensors[0].set(array)
    tensors[1].set(array, quantize=True)
    with gb.gguf.Writer(path) as writer:
        writer.add_tensor("plain", tensors[0]).add_tensor("quantized", tensors[1])
        writer.add_tensor("converted", tensors[0], dtype=gb.dtypes.q8_0).add_tensor(
            "view", tensors[0].T, dtype=gb.float16
        )
    file = gb.gguf.open(path)
    np.testing.assert_array_equal(file.tensors["plain"].numpy(), array)
    np.testing.assert_array_equal(file.tensors["quantized"].numpy(), gb.quantize(array, "q8_0"))
    np.testing.assert_array_equal(file.tensors["converted"].numpy(), gb.quantize(array, "q8_0"))
    np.testing.assert_array_equal(file.tensors["view"].numpy(), array.T.astype(np.float16))


def test_data_in_pieces_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    alive: list[int] = []

    def rows() -> Any:
        for i in range(10):
            alive.append(i)
            yield np.full((100, 64), i, np.float32)

    with gb.gguf.Writer(path) as writer:
        writer.add_tensor("q", rows, gb.dtypes.q8_0, shape=(1000, 64))
        writer.add_tensor("f", rows, gb.float32, shape=(1000, 64))
        writer.add_tensor("i", lambda: np.arange(6, dtype=np.int32), gb.int32, shape=(2, 3))
        assert alive == []
    assert len(alive) == 20
    file = gb.gguf.open(path)
    expected = np.repeat(np.arange(10, dtype=np.float32), 100)
    np.testing.assert_array_equal(file.tensors["f"].numpy()[:, 5], expected)
    np.testing.assert_allclose(file.tensors["q"].dequantize()[:, 63], expected, rtol=1e-3)
    assert file.tensors["i"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("shape", [(999, 64), (1001, 64), (1000, 32)])
def test_missing_or_extra_pieces_are_errors(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"old")
    writer = gb.gguf.Writer(path)
    writer.add_tensor("q", lambda: np.zeros((1000, 64), np.float32), gb.dtypes.q8_0, shape=shape)
    with pytest.raises(gb.errors.InvalidArgumentError, match="'q'"):
        writer.close()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add("version", 1)

    def fail() -> Any:
        yield np.zeros((1, 32), np.float32)
        raise RuntimeError("no more")

    old = path.read_bytes()
    writer = gb.gguf.Writer(path)
    writer.add_tensor("t", fail, gb.float32, shape=(2, 32))
    with pytest.raises(RuntimeError, match="no more"):
        writer.close()
    with pytest.raises(ZeroDivisionError), gb.gguf.Writer(path) as writer:
        writer.add("version", 2 // 0)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(gb.errors.StateError):
        writer.add("x", 1)


LIMITED = """
import resource, signal, sys
import numpy as np
import ggml_backend as gb
path, how = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
if how.startswith("killed"):
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the signal ends the process in the middle of writing
data = np.ones((2048, 1024), np.float32)
try:
    if how.endswith("C"):
        from ggml_backend._ffi import ffi, lib
        g = lib.gguf_init_empty()
        ctx = gb.Context()
        tensor = ctx.tensor(data.shape, gb.float32, name="t")
        assert lib.gguf_add_tensor(g, tensor._live()) == 0
        assert lib.gguf_set_tensor_data(g, b"t", ffi.from_buffer(data), data.nbytes) == 0
        status = lib.gguf_write_to_file(g, path.encode(), False)
        print("refused", status == lib.GGML_STATUS_IO_ERROR)
    else:
        with gb.gguf.Writer(path) as writer:
            writer.add_tensor("t", data)
except OSError as error:
    print("refused", "large" in str(error))
"""


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
@pytest.mark.parametrize("writer", ["Python", "C"])
@pytest.mark.parametrize("how", ["refused", "killed"])
def test_a_crash_leaves_the_old_file(tmp_path: Path, writer: str, how: str) -> None:
    path = tmp_path / "a.gguf"
    with gb.gguf.Writer(path) as w:
        w.add("version", 1)
    old = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), f"{how} {writer}"], capture_output=True, text=True, check=False
    )
    if how == "killed":
        assert done.returncode == -signal.SIGXFSZ, done
    else:
        assert done.stdout == "refused True\n", done
        assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == old
    with gb.gguf.Writer(path) as w:  # files of the crash do not disturb
        w.add("version", 2)
    assert gb.gguf.open(path).metadata["version"] == 2


STREAMED = """
import sys
import numpy as np
import ggml_backend as gb
path, copy = sys.argv[1:]
def memory(field):
    with open("/proc/self/status") as f:
        return next(int(l.split()[1]) for l in f if l.startswith(field)) / 1024
rows = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
gb.quantize(rows, "q8_0")  # memory that conversion needs once
def pieces():
    for i in range(48):
        yield rows
before, most = memory("VmHWM"), 0.0
with gb.gguf.Writer(path) as writer:  # 192 MiB as floats, and half of it quantized
    writer.add_tensor("f", pieces, gb.float32, shape=(48 * 1024, 1024))
    writer.add_tensor("q", pieces, gb.dtypes.q8_0, shape=(48 * 1024, 1024))
print(memory("VmHWM") - before)
def watch(done, total):
    global most
    most = max(most, memory("RssAnon"))
before = memory("RssAnon")
file = gb.gguf.open(path)
writer = gb.gguf.Writer(copy).add_tensor("f", file.tensors["f"]).add_tensor("q", file.tensors["q"], gb.float16)
writer.add_tensor("g", file.tensors["f"], gb.dtypes.q4_0)
writer.close(watch)
print(most - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.usefixtures("prompt_frees")
def test_large_files_need_little_memory(tmp_path: Path, script: Callable[..., str]) -> None:
    """Hundreds of megabytes are written, converted and copied in pieces."""
    made, copied = script(STREAMED, str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf")).split()
    assert float(made) < 48
    assert float(copied) < 80
    file = gb.gguf.open(tmp_path / "b.gguf")
    assert file.nbytes > 300 << 20
    want = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
    for name, bound in (("f", 0), ("q", 0.03), ("g", 0.5)):
        tensor = file.tensors[name]
        last = gb.dequantize(tensor.numpy()[-1024:], tensor.dtype)
        assert np.abs(last - want).max() <= bound
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).unlink()


def test_replacing_an_open_file(model: Any, cpu: gb.Backend) -> None:
    path, arrays = model
    path.chmod(0o640)
    file = gb.gguf.open(path)
    weights = file.load(cpu)
    with gb.gguf.Writer(path) as writer:
        writer.copy_from(file, tensors=["blk.0.down"])
    np.testing.assert_array_equal(weights["blk.5.down"].numpy(), arrays["blk.5.down"])
    assert list(gb.gguf.open(path).tensors) == ["blk.0.down"]
    assert path.stat().st_mode & 0o777 == 0o640
    link = path.parent / "link.gguf"
    link.symlink_to(path)
    with gb.gguf.Writer(link) as writer:
        writer.add("through", "link")
    assert link.is_symlink()
    assert "through" in gb.gguf.open(path).metadata


def test_wrong_tensors_are_refused(tmp_path: Path) -> None:
    writer = gb.gguf.Writer(tmp_path / "a.gguf")
    writer.add_tensor("t", np.zeros(32, np.float32))
    bad: list[tuple[str, Any, Any]] = [
        ("t", np.zeros(32, np.float32), None), ("", np.zeros(3, np.float32), None),
        ("a\0b", np.zeros(3, np.float32), None),
        ("q", np.zeros(31, np.float32), gb.dtypes.q4_0), ("q", np.zeros(17, np.uint8), gb.dtypes.q4_0),
        ("q", np.zeros(32, np.int32), gb.dtypes.q4_0),
        ("c", np.zeros(3, np.complex64), None), ("s", np.float32(1), gb.dtypes.q8_0),
        ("d", np.zeros((1,) * 5, np.float32), None),
        ("i", np.zeros(3, np.float32), gb.int32), ("f", lambda: np.zeros(3), None),
    ]  # fmt: skip
    for name, array, dtype in bad:
        with pytest.raises((gb.errors.InvalidArgumentError, TypeError)):
            writer.add_tensor(name, array, dtype)
    writer.close()
    assert list(gb.gguf.open(tmp_path / "a.gguf").tensors) == ["t"]
    with pytest.raises(gb.errors.FileError, match="regular"):
        gb.gguf.Writer(tmp_path).close()
    with pytest.raises(FileNotFoundError, match=r"nowhere/a\.gguf'$"):
        gb.gguf.Writer(tmp_path / "nowhere" / "a.gguf").close()


class _Foreign:
    """An array of another library. Like PyTorch's arrays, it has attributes that tensors of files
    have, with other meanings."""

    dtype = "theirs"

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.shape = list(array.shape)

    def dequantize(self) -> Any:
        raise AssertionError("not a tensor of a file")

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array


def test_arrays_of_other_libraries_are_written(tmp_path: Path, rng: np.random.Generator) -> None:
    rows = rng.normal(size=(3, 32)).astype(np.float32)
    bits = gb.quantize(rows, "bfloat16").view(np.uint16)
    bfloat16 = gb.from_dlpack(rows).context.tensor((3, 32), "bfloat16")
    bfloat16.context.allocate(gb.Backend("CPU"))
    bfloat16.set(bits)

    class OnlyDlpack:
        """An array that NumPy cannot read."""

        def __dlpack__(self, **options: Any) -> Any:
            return bfloat16.__dlpack__(**options)

    path = tmp_path / "a.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add_tensor("as it is", _Foreign(rows)).add_tensor("smaller", _Foreign(rows), "q8_0")
        writer.add_tensor("bits", OnlyDlpack()).add_tensor("wider", OnlyDlpack(), "f32").add_tensor("list", [1.5, 2.5])
    found = gb.gguf.open(path).tensors
    assert {n: t.dtype.name for n, t in found.items()} == {
        "as it is": "float32", "smaller": "q8_0", "bits": "bfloat16", "wider": "float32", "list": "float64",
    }  # fmt: skip
    assert (found["as it is"].numpy() == rows).all() and (found["bits"].numpy() == bits).all()
    assert (found["wider"].numpy() == (bits.astype(np.uint32) << 16).view(np.float32)).all()
    assert (found["smaller"].numpy() == gb.quantize(rows, "q8_0")).all() and found["list"].numpy().tolist() == [
        1.5,
        2.5,
    ]


@pytest.mark.parametrize("data", [object(), "text", [[1.0], [1.0, 2.0]], None, {"a": 1.0}])
def test_objects_without_arrays_are_refused(tmp_path: Path, data: Any) -> None:
    with pytest.raises(gb.errors.InvalidArgumentError, match="tensor 't'"):
        gb.gguf.Writer(tmp_path / "a.gguf").add_tensor("t", data)


def test_threads_share_a_file(model: Any) -> None:
    path, arrays = model
    file = gb.gguf.open(path)

    def read(_: int) -> None:
        for _ in range(20):
            for name, array in arrays.items():
                np.testing.assert_array_equal(file.tensors[name].dequantize(), array)

    run_threads(4, read)


def test_many_keys_open_in_linear_time(tmp_path: Path) -> None:
    import time

    times = {}
    for n in (12_500, 200_000):
        path = tmp_path / f"{n}.gguf"
        with gb.gguf.Writer(path) as writer:
            for i in range(n):
                writer.add(f"some.key.{i}", i)
        best = 9.0
        for _ in range(3):
            start = time.perf_counter()
            file = gb.gguf.open(path)
            best = min(best, time.perf_counter() - start)
        times[n] = best
        assert file.metadata[f"some.key.{n - 1}"] == n - 1
        assert len(file.metadata) == n
    assert times[200_000] < 100 * times[12_500]  # a search for each key among all would take 256 times


def test_missing_keys_suggest_similar_ones(tmp_path, ctx):
    path = tmp_path / "near.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add("general.name", "x")
        writer.add_tensor("token_embd.weight", np.zeros((2, 2), np.float32))
        with pytest.raises(
            TypeError, match=r"Writer.copy_from: file must be a GGUFFile, not int; gb.gguf.open\(path\) makes one"
        ):
            writer.copy_from(3)
    ctx.tensor(3, name="weights")
    with gb.gguf.open(path) as file:
        for mapping, wrong, near in [
            (file.tensors, "tokn_embd.weight", "token_embd.weight"),
            (file.metadata, "general.nam", "general.name"),
            (ctx, "weigths", "weights"),
        ]:
            with pytest.raises(KeyError) as caught:
                mapping[wrong]
            assert caught.value.args == (wrong,)
            assert str(caught.value) == f"{wrong!r}; did you mean {near!r}?"
            with pytest.raises(KeyError) as caught:
                mapping["zzzzz"]
            assert str(caught.value) == f"'zzzzz'; there are {near!r}"
