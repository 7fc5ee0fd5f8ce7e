"""Unusual files that the format allows. Tensors have no axes, axes of 0, more than four axes, shared bytes, any order,
or unknown types. Metadata has arrays of arrays. The package ``gguf`` and bytes by hand are the oracles."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ggml_backend as gb
from ggml_backend.cli import main
from small_ggufs import finish

SHAPES: list[tuple[int, ...]] = [(), (0,), (0, 4), (4, 0), (2, 0, 3), (0, 0), (1,), (1, 1), (3, 1), (2, 3, 1, 5)]
PLAIN = [np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64]


def filled(shape: tuple[int, ...], dtype: Any, start: int = 1) -> np.ndarray:
    return np.asarray((np.arange(int(np.prod(shape)), dtype=np.int64) + start) % 100, dtype).reshape(shape)


def same(found: gb.gguf.GGUFTensor, array: np.ndarray) -> None:
    assert found.shape == array.shape
    assert found.nbytes == array.nbytes
    np.testing.assert_array_equal(found.numpy(), array)


def load_everywhere(file: gb.gguf.GGUFFile, arrays: dict[str, np.ndarray], cpu: gb.Backend, sim: gb.Backend) -> None:
    """Places: in place, copied to a device, and half of each."""
    half = {"*1*": sim} if any("1" in name for name in file.tensors) else {}  # each pattern must match a tensor
    for where in (cpu, sim, {**half, "*": cpu}):
        weights = file.load(where)
        for name, array in arrays.items():
            assert weights[name].shape == array.shape, name
            np.testing.assert_array_equal(weights[name].numpy(), array, err_msg=name)


# -------------------------------------------------------------------------------------------------- degenerate shapes


@pytest.mark.parametrize("dtype", PLAIN)
def test_degenerate_shapes_both_ways(tmp_path: Path, dtype: Any, cpu: gb.Backend, sim: gb.Backend) -> None:
    arrays = {f"t{i} {shape}": filled(shape, dtype, i) for i, shape in enumerate(SHAPES)}
    ours, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    with gb.gguf.Writer(ours) as writer:
        writer.add("general.architecture", "test")
        for name, array in arrays.items():
            writer.add_tensor(name, array)
        size = writer.nbytes
    assert ours.stat().st_size == size
    theirs = gguf.GGUFWriter(other, "test")
    for name, array in arrays.items():
        theirs.add_tensor(name, array)
    finish(theirs)
    assert ours.read_bytes() == other.read_bytes()
    for tensor in gguf.GGUFReader(ours).tensors:
        np.testing.assert_array_equal(np.asarray(tensor.data).reshape(arrays[tensor.name].shape), arrays[tensor.name])
    with gb.gguf.open(other) as file:
        for name, array in arrays.items():
            same(file.tensors[name], array)
            assert file.tensors[name].dtype == gb.dtypes.as_dtype(dtype)
            if np.issubdtype(dtype, np.floating) and dtype is not np.float64:
                np.testing.assert_array_equal(file.tensors[name].dequantize(), array.astype(np.float32))
        load_everywhere(file, arrays, cpu, sim)


@pytest.mark.parametrize("target", ["float32", "float16", "bfloat16", "q8_0", "q4_k", "iq4_nl"])
@pytest.mark.parametrize("source", [np.float32, np.float16, np.float64])
def test_degenerate_shapes_are_converted(tmp_path: Path, source: Any, target: str) -> None:
    """Conversion by the writer, from arrays and from an open file, and by the command line."""
    first, second, third = (tmp_path / f"{name}.gguf" for name in "abc")
    blocks = gb.dtypes.as_dtype(target).is_quantized
    shapes = [(0, 256), (2, 0, 512), (0,)] if blocks else [(), (0,), (3, 0), (0, 3), (1,)]
    arrays = {str(shape): filled(shape, source) for shape in shapes}
    with gb.gguf.Writer(first) as writer:
        for name, array in arrays.items():
            writer.add_tensor(name, array, dtype=target)
    with gb.gguf.Writer(second) as writer:
        for name, array in arrays.items():
            writer.add_tensor(name, array)
    with gb.gguf.open(second) as file, gb.gguf.Writer(third) as writer:
        for name, tensor in file.tensors.items():
            writer.add_tensor(name, tensor, dtype=target)
    assert first.read_bytes() == third.read_bytes()
    for name, tensor in gb.gguf.open(first).tensors.items():
        assert tensor.dtype == target
        assert tensor.shape == arrays[name].shape
        np.testing.assert_array_equal(tensor.dequantize(), arrays[name].astype(np.float32))
    assert main(["gguf", "quantize", str(second), str(third), "--type", target]) == 0
    after = gb.gguf.open(third).tensors
    assert {n: t.shape for n, t in after.items()} == {n: a.shape for n, a in arrays.items()}


def test_a_single_element_is_not_quantized(tmp_path: Path) -> None:
    writer = gb.gguf.Writer(tmp_path / "a.gguf")
    with pytest.raises(gb.errors.InvalidArgumentError, match="'s': rows of 1 elements do not divide into q8_0"):
        writer.add_tensor("s", np.float32(1), dtype="q8_0")


def test_tensors_of_backends_without_elements_are_written(tmp_path: Path, cpu: gb.Backend) -> None:
    path = tmp_path / "a.gguf"
    with gb.Context() as ctx, gb.gguf.Writer(path) as writer:
        for shape in SHAPES:
            array = filled(shape, np.float32)
            writer.add_tensor(str(shape), ctx.from_numpy(array) if array.size else ctx.tensor(shape))
        ctx.allocate(cpu)
        writer.close()
    file = gb.gguf.open(path)
    for shape in SHAPES:
        same(file.tensors[str(shape)], filled(shape, np.float32))


def test_the_empty_tensor_of_image_models_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Image models end with a tensor of shape (0,) as a mark for programs. Every command reads such
    a file."""
    path, out = tmp_path / "a.gguf", tmp_path / "b.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_tensor("w", filled((4, 64), np.float32))
    writer.add_tensor("logit_scale", np.array(4.6052, np.float32))
    writer.add_tensor("__index_timestep_zero__", np.zeros(0, np.float32))
    finish(writer)
    for arguments in (["info"], ["info", "--json"], ["dump", "--values"], ["check"]):
        assert main(["gguf", arguments[0], str(path), *arguments[1:]]) == 0
    assert "4.6052" in capsys.readouterr().out
    assert main(["gguf", "quantize", str(path), str(out), "--type", "q8_0", "--tensor-type", "logit*=f16"]) == 0
    tensors = gb.gguf.open(out).tensors
    assert {n: (t.dtype.name, t.shape) for n, t in tensors.items()} == {
        "w": ("q8_0", (4, 64)), "logit_scale": ("float32", ()), "__index_timestep_zero__": ("float32", (0,)),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- order and ties


def by_hand(tensors: list[tuple[str, tuple[int, ...], int, int]], data: bytes, pairs: tuple[bytes, ...] = ()) -> bytes:
    """A file with tensors of these names, shapes in NumPy order, types and offsets."""
    meta = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    for name, shape, kind, offset in tensors:
        meta += struct.pack("<Q", len(name)) + name.encode()
        meta += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset)
    return meta + bytes(-len(meta) % 32) + data


@st.composite
def layouts(draw: st.DrawFn) -> tuple[bytes, dict[str, np.ndarray]]:
    """Tensors of several types in any order, with gaps and shared bytes, and their contents."""
    places = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))  # gaps before each, in units of 32 bytes
    shapes = [draw(st.sampled_from(SHAPES)) for _ in places]
    kinds = [draw(st.sampled_from([(0, np.float32), (1, np.float16), (24, np.int8), (27, np.int64)])) for _ in places]
    at, data, found = 0, b"", []
    for i, (gap, shape, (kind, dtype)) in enumerate(zip(places, shapes, kinds, strict=True)):
        array = filled(shape, dtype, 7 * i)
        data += bytes(32 * gap) + array.tobytes()
        data += bytes(-len(data) % 32)
        at += 32 * gap
        for k in range(draw(st.integers(1, 2))):
            found.append(((f"t{i}.{k}", shape, kind, at), array))
        at = len(data)
    mixed = draw(st.permutations(found))
    return by_hand([record for record, _ in mixed], data), {record[0]: array for record, array in mixed}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=layouts())
def test_tensor_data_can_have_any_order(
    tmp_path: Path, made: tuple[bytes, dict[str, np.ndarray]], cpu: gb.Backend, sim: gb.Backend
) -> None:
    data, arrays = made
    path, copy = tmp_path / "a.gguf", tmp_path / "b.gguf"
    path.write_bytes(data)
    with gb.gguf.open(path) as file:
        assert list(file.tensors) == list(arrays)
        load_everywhere(file, arrays, cpu, sim)
        with gb.gguf.Writer(copy) as writer:
            writer.copy_from(file)
    for source in (path, copy):
        for name, tensor in gb.gguf.open(source).tensors.items():
            same(tensor, arrays[name])
        for theirs in gguf.GGUFReader(source).tensors:
            shape = arrays[theirs.name].shape
            np.testing.assert_array_equal(np.asarray(theirs.data).reshape(shape), arrays[theirs.name])


@settings(max_examples=100, deadline=None)
@given(first=st.tuples(st.integers(0, 6), st.integers(1, 60)), second=st.tuples(st.integers(0, 6), st.integers(1, 60)))
def test_tensors_share_all_bytes_or_none(first: tuple[int, int], second: tuple[int, int]) -> None:
    """Two tensors of int8 at multiples of 32. Sets of their bytes are the oracle."""
    data = by_hand([("one", (first[1],), 24, 32 * first[0]), ("two", (second[1],), 24, 32 * second[0])], bytes(256))
    a, b = ({32 * at + i for i in range(n)} for at, n in (first, second))
    if a == b or not a & b:
        assert len(gb.gguf.open(data).tensors) == 2
    else:
        with pytest.raises(gb.errors.FileError, match="overlaps tensor") as caught:
            gb.gguf.open(data)
        assert "'one'" in str(caught.value)
        assert "'two'" in str(caught.value)


def test_tied_tensors_share_memory_in_place(tmp_path: Path, cpu: gb.Backend) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(by_hand([("embed", (4, 2), 0, 0), ("output", (4, 2), 0, 0)], np.ones(8, np.float32).tobytes()))
    weights = gb.gguf.open(path).load(cpu)
    addresses = [weights[n].numpy().__array_interface__["data"][0] for n in ("embed", "output")]
    assert addresses[0] == addresses[1]
    with gb.Context() as ctx:
        x = ctx.from_numpy(np.ones((3, 2), np.float32))
        y = x @ weights["embed"].T + x @ weights["output"].T
        graph = ctx.graph(y)
        sched = gb.Scheduler(cpu)
        sched.allocate(graph)
        sched.compute(graph)
        np.testing.assert_array_equal(y.numpy(), np.full((3, 4), 4, np.float32))
    assert main(["gguf", "quantize", str(path), str(tmp_path / "b.gguf"), "--type", "f16"]) == 0
    for tensor in gb.gguf.open(tmp_path / "b.gguf").tensors.values():
        np.testing.assert_array_equal(tensor.numpy(), np.ones((4, 2), np.float16))


# --------------------------------------------------------------------------------------------------------------- opaque

FIVE = (3, 1, 2, 1, 4)


@pytest.fixture
def strange(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A file with a tensor of five axes, one of an unknown type, an array of arrays, and a matrix."""
    path, five = tmp_path / "strange.gguf", filled(FIVE, np.float32)
    nested = struct.pack("<Q", 6) + b"nested" + struct.pack("<IIQ", 9, 9, 2)
    nested += struct.pack("<IQ2H", 2, 2, 7, 8) + struct.pack("<IQQ", 8, 1, 2) + b"ab"
    data = five.tobytes() + b"unknown!" * 8 + filled((4, 64), np.float32).tobytes()
    records = [("five", FIVE, 0, 0), ("odd", (5, 7), 777, 96), ("w", (4, 64), 0, 160)]
    path.write_bytes(by_hand(records, data, (nested,)))
    return path, five


def test_known_parts_of_an_unusual_file_work(
    strange: tuple[Path, np.ndarray], tmp_path: Path, cpu: gb.Backend, sim: gb.Backend
) -> None:
    path, five = strange
    with gb.gguf.open(path) as file:
        load_everywhere(file, {"w": filled((4, 64), np.float32)}, cpu, sim)
        same(file.tensors["five"], five)
        np.testing.assert_array_equal(file.tensors["five"].dequantize(), five)
        for name, reason in (("five", "has 5 axes"), ("odd", "type 777")):
            for refused in (
                lambda n=name: file.load(cpu, n),
                lambda n=name: file.load(cpu)[n],
                lambda n=name: gb.gguf.Writer(tmp_path / "x").add_tensor(n, file.tensors[n], dtype="f16"),
            ):
                with pytest.raises(gb.errors.UnsupportedError, match=reason):
                    refused()
            assert name in file.load(cpu).left_out
    for arguments in (["info"], ["info", "--json"], ["dump", "--values"], ["check"]):
        assert main(["gguf", arguments[0], str(path), *arguments[1:]]) == 0


def test_unusual_files_are_copied_byte_for_byte(strange: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    path, five = strange
    with gb.gguf.Writer(tmp_path / "copy.gguf") as writer:
        writer.copy_from(gb.gguf.open(path))
    assert (tmp_path / "copy.gguf").read_bytes() == path.read_bytes()
    with gb.gguf.Writer(tmp_path / "renamed.gguf") as writer:
        file = gb.gguf.open(path)
        for key in file.metadata:
            writer.add(f"new.{key}", file.metadata[key], file.metadata.type(key))
        for name, tensor in file.tensors.items():
            writer.add_tensor(f"new.{name}", tensor)
    renamed = gb.gguf.open(tmp_path / "renamed.gguf")
    assert renamed.metadata["new.nested"] == file.metadata["nested"]
    same(renamed.tensors["new.five"], five)
    assert main(["gguf", "quantize", str(path), str(tmp_path / "q.gguf"), "--type", "q8_0"]) == 0
    assert main(["gguf", "quantize", str(path), str(tmp_path / "no.gguf"), "--tensor-type", "five=f16"]) == 1
    after = gb.gguf.open(tmp_path / "q.gguf")
    assert [t.dtype.name for t in after.tensors.values()] == ["float32", "type 777", "q8_0"]
    assert after.metadata["nested"] == file.metadata["nested"]
    for name in ("five", "odd"):
        np.testing.assert_array_equal(after.tensors[name].data, file.tensors[name].data)


def test_five_axes_of_the_package(tmp_path: Path) -> None:
    """Weights of video models have five axes."""
    path, array = tmp_path / "a.gguf", filled((2, 3, 1, 2, 2), np.float16)
    writer = gguf.GGUFWriter(path, "test")
    writer.add_tensor("conv3d", array)
    writer.add_tensor("w", filled((2, 2), np.float32))
    finish(writer)
    with gb.gguf.open(path) as file, gb.gguf.Writer(tmp_path / "b.gguf") as copy:
        same(file.tensors["conv3d"], array)
        copy.copy_from(file)
    assert (tmp_path / "b.gguf").read_bytes() == path.read_bytes()


def test_arrays_of_arrays_of_the_package(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("nested", [[1, 2], [3]])
    writer.add_uint32("after", 7)
    finish(writer)
    with gb.gguf.open(path) as file, gb.gguf.Writer(tmp_path / "b.gguf") as copy:
        value = file.metadata["nested"]
        assert isinstance(value, gb.gguf.NestedArray)
        assert len(value) == 2
        assert value == dict(file.metadata)["nested"]
        assert file.metadata.type("nested") == "arr[arr]"
        assert file.metadata["after"] == 7
        copy.copy_from(file)
    assert (tmp_path / "b.gguf").read_bytes() == path.read_bytes()


Nested = Any


def packed(value: Nested) -> bytes:
    """An array as the format stores it: of arrays, of texts or of bytes."""
    if value and isinstance(value[0], list):
        return struct.pack("<IQ", 9, len(value)) + b"".join(map(packed, value))
    if value and isinstance(value[0], str):
        texts = [text.encode() for text in value]
        return struct.pack("<IQ", 8, len(value)) + b"".join(struct.pack("<Q", len(t)) + t for t in texts)
    return struct.pack("<IQ", 0, len(value)) + bytes(value)


def lists() -> st.SearchStrategy[Nested]:
    flat = st.one_of(st.lists(st.integers(0, 255), max_size=4), st.lists(st.text(max_size=3), min_size=1, max_size=3))
    return st.recursive(flat, lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=20)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=lists(), change=st.tuples(st.integers(0, 10**6), st.integers(0, 255)))
def test_arrays_of_arrays_are_kept(tmp_path: Path, value: Nested, change: tuple[int, int]) -> None:
    """Arrays of any form. With one changed byte they are refused, or kept with the change."""
    pair = struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9) + packed([value])
    path = tmp_path / "a.gguf"
    for damaged in (False, True):
        data = bytearray(by_hand([], b"", (pair,)))
        if damaged:
            data[24 + 9 + 4 + change[0] % (len(pair) - 13)] = change[1]
        try:
            file = gb.gguf.open(bytes(data))
        except gb.errors.FileError:
            assert damaged
            continue
        with gb.gguf.Writer(path) as writer:
            writer.copy_from(file)
        if file.metadata.type("k") != "arr[bool]":  # of which any byte but 0 is 1
            assert bytes(data).startswith(path.read_bytes().rstrip(b"\0"))
        kept = file.metadata["k"]
        if isinstance(kept, gb.gguf.NestedArray):
            with gb.gguf.Writer(tmp_path / "b.gguf") as writer:
                writer.add("k", kept)
            assert (tmp_path / "b.gguf").read_bytes() == path.read_bytes()


def test_invalid_arrays_of_arrays_are_refused(tmp_path: Path) -> None:
    """The writer checks the bytes."""
    good = packed([1, 2]) * 2
    for n, data in ((1, good), (3, good), (2, good[:-1]), (2, good + b"\0"), (2**40, good), (1, b"")):
        with pytest.raises(gb.errors.InvalidArgumentError, match=r"are not .* arrays"):
            gb.gguf.Writer(tmp_path / "a.gguf").add("k", gb.gguf.NestedArray(n, data))
    with pytest.raises(TypeError, match="NestedArray as u8"):
        gb.gguf.Writer(tmp_path / "a.gguf").add("k", gb.gguf.NestedArray(2, good), "u8")
