"""``gguf quantize`` and ``gguf convert`` with importances, and the keys that describe formats."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

import ggml_backend as gb
from ggml_backend.cli import main

FORMATS = [
    name for name, dtype in gb.dtypes.dtypes.items() if dtype.is_quantized and name not in ("q8_1", "q8_k")
]  # fmt: skip
EXPERTS, ROWS, COLUMNS = 3, 4, 512


@pytest.fixture
def model(tmp_path: Path, rng: np.random.Generator) -> Path:
    path = tmp_path / "model.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add("general.architecture", "test")
        writer.add_tensor("experts", rng.standard_normal((EXPERTS, ROWS, COLUMNS), np.float32))
        writer.add_tensor("other", rng.standard_normal((ROWS, COLUMNS), np.float32))
    return path


def importances(path: Path, **tensors: np.ndarray) -> str:
    """An importance file, written with the package gguf. keys: ``name_sums`` and ``name_counts``"""
    writer = gguf.GGUFWriter(path, "imatrix")
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", ["wiki.train", "more"])
    writer.add_uint32("imatrix.chunk_count", 125)
    for key, array in tensors.items():
        kept = array.dtype.kind == "i" or array.dtype == np.float16
        made = array if kept else array.astype(np.float32)
        writer.add_tensor(key.replace("_sums", ".in_sum2").replace("_counts", ".counts"), made)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def quantize(source: Path, out: Path, *options: str) -> gb.gguf.GGUFFile:
    assert main(["gguf", "quantize", str(source), str(out), "--quiet", *options]) == 0
    return gb.gguf.open(out)


@pytest.mark.parametrize("name", FORMATS)
def test_an_expert_with_count_0_keeps_its_values(
    model: Path, tmp_path: Path, rng: np.random.Generator, name: str
) -> None:
    sums = np.exp(rng.standard_normal((EXPERTS, COLUMNS)))
    sums[1] = 0
    file = importances(tmp_path / "i.gguf", experts_sums=sums, experts_counts=np.array([[8], [0], [2]]))
    x = gb.gguf.open(model).tensors["experts"].numpy()
    got = quantize(model, tmp_path / "out.gguf", "--tensor-type", f"experts={name}", "--imatrix", file)
    blocks = got.tensors["experts"].numpy()
    needed = name in ("iq2_xxs", "iq2_xs", "iq1_s")
    np.testing.assert_array_equal(blocks[1], gb.quantize(x[1], name, np.ones(COLUMNS) if needed else None))
    for expert, count in ((0, 8), (2, 2)):
        weights = (sums[expert].astype(np.float32) / count).astype(np.float32)
        np.testing.assert_array_equal(blocks[expert], gb.quantize(x[expert], name, weights))


ONES = np.ones((EXPERTS, COLUMNS))


@pytest.mark.parametrize(
    ("tensors", "parts"),
    [
        ({"absent_sums": ONES}, ["no importances for any of the 2 tensors", "another model"]),
        ({}, ["not an importance matrix", "NAME.in_sum2"]),
        ({"other_sums": np.ones((1, 1024))}, ["'other.in_sum2' has shape (1, 1024)", "'other' of shape (4, 512)"]),
        ({"other_sums": np.ones(256)}, ["'other.in_sum2' has shape (256,)", "'other' of shape (4, 512)"]),
        ({"other_sums": np.ones((2, 256))}, ["'other.in_sum2' has shape (2, 256)", "it needs (1, 512)"]),
        ({"experts_sums": np.ones((5, COLUMNS))}, ["(5, 512)", "'experts' of shape (3, 4, 512)", "it needs (3, 512)"]),
        ({"experts_sums": np.ones((1, COLUMNS))}, ["(1, 512)", "'experts' of shape (3, 4, 512)"]),
        ({"experts_sums": np.ones((1, EXPERTS * COLUMNS))}, ["(1, 1536)", "'experts' of shape (3, 4, 512)"]),
        ({"experts_sums": ONES, "experts_counts": np.ones((2, 1))}, ["'experts.counts' has shape (2, 1)", "'experts'"]),
        ({"experts_sums": -ONES}, ["'experts.in_sum2'", "row 0, column 0 is -1", "at least 0"]),
        ({"experts_sums": ONES * np.inf}, ["'experts.in_sum2'", "is inf", "finite"]),
        ({"experts_sums": ONES, "experts_counts": np.full((3, 1), np.nan)}, ["'experts.counts'", "is nan"]),
    ],
)
def test_importances_that_do_not_fit_are_an_error(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tensors: dict[str, np.ndarray], parts: list[str]
) -> None:
    out = tmp_path / "out.gguf"
    path = importances(tmp_path / "i.gguf", **tensors) if tensors else str(model)
    assert main(["gguf", "quantize", str(model), str(out), "--type", "q4_k", "--imatrix", path]) == 1
    message = capsys.readouterr().err
    for part in [path, *parts]:
        assert part in message
    assert not out.exists()


def test_importances_can_have_any_number_type(model: Path, tmp_path: Path) -> None:
    sums, counts = np.arange(COLUMNS)[None], np.array([[3]])
    found = []
    for sum_type, count_type in (("f4", "f4"), ("f2", "i4"), ("i8", "i2"), ("i4", "i1")):
        other = {"other_sums": sums.astype(sum_type), "other_counts": counts.astype(count_type)}
        path = importances(tmp_path / "i.gguf", **other)
        file = quantize(model, tmp_path / "out.gguf", "--type", "q4_k", "--imatrix", path)
        found.append(file.tensors["other"].data.tobytes())
    assert len(set(found)) == 1


def test_old_importance_files_are_an_error(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of entries, then entries with name, number of calls and values: 32-bit integers,
    texts, floats."""
    old = tmp_path / "imatrix.dat"
    old.write_bytes(b"\1\0\0\0\5\0\0\0other\1\0\0\0\0\2\0\0" + np.ones(COLUMNS, np.float32).tobytes())
    out = str(tmp_path / "out.gguf")
    assert main(["gguf", "quantize", str(model), out, "--type", "q4_k", "--imatrix", str(old)]) == 1
    message = capsys.readouterr().err
    assert f"--imatrix {old}" in message and "llama-imatrix" in message


def test_tensors_without_importances_are_counted(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = importances(tmp_path / "i.gguf", experts_sums=ONES, experts_counts=np.ones((3, 1)))
    quantize(model, tmp_path / "out.gguf", "--type", "q4_k", "--imatrix", path)
    assert "1 of 2 tensors have no importances" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        ([], "tensor 'experts': iq2_xxs needs importances of the columns: give --imatrix FILE"),
        ([ONES], "tensor 'other': iq2_xxs needs importances of the columns: --imatrix"),
    ],
)
def test_formats_that_need_importances_are_refused_at_once(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], sums: list[np.ndarray], words: str
) -> None:
    """No file of importances, or none of this tensor. The command fails before it prints a tensor."""
    given = ["--imatrix", importances(tmp_path / "i.gguf", experts_sums=sums[0])] if sums else []
    command = ["gguf", "quantize", str(model), str(tmp_path / "out.gguf"), "--type", "iq2_xxs", *given]
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out == "" and words in err
    assert not (tmp_path / "out.gguf").exists()


def test_keys_name_the_importances_of_this_run(model: Path, tmp_path: Path) -> None:
    path = importances(tmp_path / "i.gguf", experts_sums=ONES)
    first = quantize(model, tmp_path / "a.gguf", "--type", "q4_k", "--imatrix", path)
    keys = {k: v for k, v in first.metadata.items() if k.startswith("quantize.")}
    assert keys == {
        "quantize.imatrix.file": path, "quantize.imatrix.dataset": "wiki.train", "quantize.imatrix.entries_count": 1,
        "quantize.imatrix.chunks_count": 125,
    }  # fmt: skip
    again = quantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "--type", "q8_0", "--requantize")
    assert not [k for k in again.metadata if k.startswith("quantize.")]


NUMBERS = {
    name: int(number)
    for name, number in (
        (dtype, getattr(gguf.LlamaFileType, f"MOSTLY_{kind}", None))
        for dtype, kind in (
            [(n, n.upper() + ("_S" if n in ("q3_k", "q4_k", "q5_k") else "")) for n in FORMATS]
            + [("float16", "F16"), ("bfloat16", "BF16"), ("mxfp4", "MXFP4_MOE")]
        )
    )
    if number is not None
}


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_the_file_type_is_the_format_of_most_elements(model: Path, tmp_path: Path, name: str) -> None:
    path = importances(tmp_path / "i.gguf", experts_sums=ONES, other_sums=ONES[:1])
    file = quantize(model, tmp_path / "out.gguf", "--type", name, "--imatrix", path)
    assert file.metadata["general.file_type"] == NUMBERS[name]
    quantized = gb.dtypes.dtypes[name].is_quantized
    assert file.metadata.get("general.quantization_version") == (2 if quantized else None)


def with_keys(path: Path, dtype: str, **keys: int) -> Path:
    with gb.gguf.Writer(path) as writer:
        for key, value in keys.items():
            writer.add(f"general.{key}", value)
        writer.add_tensor("a", np.ones((4, 512), np.float32), dtype)
        writer.add_tensor("b", np.ones((1, 512), np.float32))
    return path


def test_the_file_type_of_the_source_is_not_copied(tmp_path: Path) -> None:
    source = with_keys(tmp_path / "s.gguf", "q4_k", file_type=15, quantization_version=2)
    changed = quantize(source, tmp_path / "o.gguf", "--type", "q8_0", "--requantize").metadata
    assert (changed["general.file_type"], changed["general.quantization_version"]) == (7, 2)
    kept = quantize(source, tmp_path / "o.gguf", "--tensor-type", "b=f16").metadata
    assert (kept["general.file_type"], kept["general.quantization_version"]) == (15, 2)
    half = quantize(source, tmp_path / "o.gguf", "--type", "f16").metadata
    assert half["general.file_type"] == 1
    assert "general.quantization_version" not in half


def test_a_file_without_a_main_format_has_no_file_type(tmp_path: Path) -> None:
    source = tmp_path / "s.gguf"
    with gb.gguf.Writer(source) as writer:
        writer.add("general.file_type", 0)
        writer.add_tensor("a", np.ones((4, 512), np.float32)).add_tensor("b", np.ones((4, 512), np.float32))
    file = quantize(source, tmp_path / "o.gguf", "--tensor-type", "a=q8_0")
    assert "general.file_type" not in file.metadata


def test_convert_names_the_version_and_the_file_type(tmp_path: Path) -> None:
    x = np.ones((4, 512), np.float32)
    save_file({"a": x}, tmp_path / "m.safetensors")
    out = tmp_path / "m.gguf"
    assert main(["gguf", "convert", str(tmp_path / "m.safetensors"), str(out), "--type", "q8_0", "--quiet"]) == 0
    assert gb.gguf.open(out).metadata["general.quantization_version"] == 2
    assert gb.gguf.open(out).metadata["general.file_type"] == 7
    own = ["--type", "q8_0", "--set", "general.file_type=1024"]
    assert main(["gguf", "convert", str(tmp_path / "m.safetensors"), str(out), "--quiet", *own]) == 0
    assert gb.gguf.open(out).metadata["general.file_type"] == 1024
    assert main(["gguf", "convert", str(tmp_path / "m.safetensors"), str(out), "--quiet"]) == 0
    assert not list(gb.gguf.open(out).metadata)[1:]


def test_a_second_quantization_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "s.gguf"
    with gb.gguf.Writer(source) as writer:
        writer.add_tensor("embd", np.ones((4, 576), np.float32), "q8_0")
        writer.add_tensor("wide", np.ones((4, 512), np.float32))
    assert main(["gguf", "quantize", str(source), str(tmp_path / "o.gguf"), "--type", "q4_k"]) == 1
    assert (
        "tensor 'embd' is quantized already (q8_0). Converting it again (to q5_0, since rows of 576 do not fit q4_k)"
        " loses precision twice. Quantize the original file, or give --requantize" in capsys.readouterr().err
    )
    quantize(source, tmp_path / "o.gguf", "--type", "q4_k", "--requantize")
    assert "2 matrices: 1 q5_0 (rows of 576 do not fit q4_k), 1 q4_k" in capsys.readouterr().out


def test_importances_of_experts_match_rows_in_pieces(tmp_path: Path, rng: np.random.Generator) -> None:
    x = rng.standard_normal((EXPERTS, ROWS, COLUMNS), np.float32)
    weights = np.exp(rng.standard_normal((EXPERTS, COLUMNS)))
    with gb.gguf.Writer(tmp_path / "o.gguf") as writer:
        pieces = np.split(x.reshape(-1, COLUMNS), [3, 5])
        writer.add_tensor("a", lambda: iter(pieces), "q4_k", shape=x.shape, importance=weights)
    got = gb.gguf.open(tmp_path / "o.gguf").tensors["a"].numpy()
    np.testing.assert_array_equal(got, gb.quantize(x, "q4_k", weights))


def test_extra_rows_are_an_error_with_importances(tmp_path: Path) -> None:
    writer = gb.gguf.Writer(tmp_path / "o.gguf")
    rows = np.ones((9, COLUMNS), np.float32)
    writer.add_tensor("a", lambda: iter([rows]), "q4_k", shape=(2, 4, COLUMNS), importance=np.ones((2, COLUMNS)))
    with pytest.raises(gb.errors.InvalidArgumentError, match="the data has more bytes"):
        writer.close()


def test_importances_of_the_wrong_shape_are_refused(tmp_path: Path) -> None:
    writer = gb.gguf.Writer(tmp_path / "o.gguf")
    with pytest.raises(gb.errors.InvalidArgumentError, match="tensor 'a': importance of shape"):
        writer.add_tensor("a", np.ones((3, 4, 512), np.float32), "q4_k", importance=np.ones((5, 512)))
    writer.discard()
