"""``python -m ggml_backend gguf ...``."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

import ggml_backend as gb
from ggml_backend.cli import main


@pytest.fixture
def model(tmp_path: Path, rng: np.random.Generator) -> Path:
    path = tmp_path / "model.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add("general.architecture", "test").add("list", np.arange(100, dtype=np.float32)).add(
            "infinite", float("inf")
        )
        writer.add_tensor("wide", rng.standard_normal((8, 512), np.float32))
        writer.add_tensor("narrow", rng.standard_normal((8, 96), np.float32))
        writer.add_tensor("odd", rng.standard_normal((8, 5), np.float32))
        writer.add_tensor("bias", rng.standard_normal(512, np.float32))
        writer.add_tensor("ids", np.arange(6).reshape(2, 3))
    return path


def test_info(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gguf", "info", str(model)]) == 0
    text = capsys.readouterr().out
    assert "5 tensors" in text
    assert re.search(r"float32 +4 tensors +[0-9,]+ elements", text)
    assert re.search(r"\w+ +1 tensor +[0-9,]+ elements", text)
    assert "general.architecture (str) = 'test'" in text
    assert "(100)" in text
    assert main(["gguf", "info", "--json", str(model)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["metadata"]["list"] == {"type": "arr[f32]", "value": list(range(100))}
    assert shown["types"]["float32"]["tensors"] == 4
    assert [t["shape"] for t in shown["tensor list"]] == [[8, 512], [8, 96], [8, 5], [512], [2, 3]]


def test_dump(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gguf", "dump", str(model), "i*", "--values"]) == 0
    text = capsys.readouterr().out
    assert "ids int64 (2, 3)" in text
    assert "[3 4 5]" in text
    assert "wide" not in text


def test_check(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gguf", "check", str(model)]) == 0
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:-40])
    nan = tmp_path / "nan.gguf"
    with gb.gguf.Writer(nan) as writer:
        writer.add_tensor("sick", np.array([1, np.nan, np.inf], np.float16))
    assert main(["gguf", "check", str(model), str(cut), str(nan), str(tmp_path / "absent")]) == 1
    shown = capsys.readouterr()
    assert "the data of tensor 'ids' (48 bytes) ends behind the end of the file: the file is incomplete" in shown.err
    assert "'sick' has 2 values" in shown.err
    assert "absent" in shown.err
    assert f"{model}: ok" in shown.out


def test_float32_values_are_printed_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.gguf"
    values = {"epsilon": 1e-5, "base": 1e5, "tenth": 0.1, "large": 1e30, "nan": float("nan")}
    with gb.gguf.Writer(path) as writer:
        for key, value in values.items():
            writer.add(key, value)
        writer.add("list", [0.1, 1e-5]).add("double", np.float64(9.999999747378752e-06))
    assert main(["gguf", "info", str(path)]) == 0
    text = capsys.readouterr().out
    for shown in ("epsilon (f32) = 1e-05\n", "base (f32) = 100000.0\n", "tenth (f32) = 0.1\n", "large (f32) = 1e+30\n",
                  "nan (f32) = nan\n", "list (arr[f32]) = [0.1, 1e-05] (2)\n",
                  "double (f64) = 9.999999747378752e-06\n"):  # fmt: skip
        assert shown in text
    assert main(["gguf", "info", "--json", str(path)]) == 0
    shown_json = json.loads(capsys.readouterr().out)["metadata"]
    assert shown_json["epsilon"]["value"] == 1e-5
    assert shown_json["list"]["value"] == [0.1, 1e-5]


def test_dump_continues_after_a_tensor_of_too_many_axes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tensor of 100 axes and one element comes before a tensor of one axis."""
    path = tmp_path / "axes.gguf"
    described = b"\1\0\0\0\0\0\0\0p" + struct.pack("<I100QIQ", 100, *[1] * 100, 0, 0)
    described += b"\1\0\0\0\0\0\0\0a" + struct.pack("<IQIQ", 1, 2, 0, 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + described
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(32) + np.array([5, 6], np.float32).tobytes())
    assert main(["gguf", "dump", str(path), "--values"]) == 0
    text = capsys.readouterr().out
    assert "no values: " in text and "[5. 6.]" in text


def test_list_is_dump(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gguf", "dump", str(model)]) == 0
    dumped = capsys.readouterr().out
    assert main(["gguf", "list", str(model)]) == 0
    assert capsys.readouterr().out == dumped != ""


def test_quantize(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "small.gguf"
    assert main(["gguf", "quantize", str(model), str(out), "--type", "q4_k"]) == 0
    before, after = gb.gguf.open(model), gb.gguf.open(out)
    assert {n: t.dtype.name for n, t in after.tensors.items()} == {
        "wide": "q4_k", "narrow": "q5_0", "odd": "float16", "bias": "float32", "ids": "int64",
    }  # fmt: skip
    assert {k: after.metadata.type(k) for k in after.metadata} == {
        **{k: before.metadata.type(k) for k in before.metadata},
        "general.quantization_version": "u32", "general.file_type": "u32",
    }  # fmt: skip
    np.testing.assert_array_equal(after.tensors["wide"].numpy(), gb.quantize(before.tensors["wide"].numpy(), "q4_k"))
    assert "narrow: float32 -> q5_0 (rows of 96)" in capsys.readouterr().out
    assert [t.name for t in gguf.GGUFReader(out).tensors] == list(before.tensors)
    assert (
        main(
            [
                "gguf",
                "quantize",
                str(model),
                str(out),
                "--type",
                "q8_0",
                "--keep",
                "n*",
                "--tensor-type",
                "bias=f16",
                "--quiet",
            ]
        )
        == 0
    )
    kinds = {n: t.dtype.name for n, t in gb.gguf.open(out).tensors.items()}
    assert (kinds["wide"], kinds["narrow"], kinds["bias"]) == ("q8_0", "float32", "float16")


def test_quantize_with_importance(model: Path, tmp_path: Path, rng: np.random.Generator) -> None:
    sums = np.exp(rng.standard_normal((1, 512))).astype(np.float32)
    with gb.gguf.Writer(tmp_path / "imatrix.gguf") as writer:
        writer.add_tensor("wide.in_sum2", sums).add_tensor("wide.counts", np.array([[4]], np.float32))
    out = tmp_path / "small.gguf"
    arguments = [
        "gguf",
        "quantize",
        str(model),
        str(out),
        "--tensor-type",
        "wide=iq2_xs",
        "--imatrix",
        str(tmp_path / "imatrix.gguf"),
    ]
    assert main(arguments) == 0
    expected = gb.quantize(gb.gguf.open(model).tensors["wide"].numpy(), "iq2_xs", sums[0] / 4)
    np.testing.assert_array_equal(gb.gguf.open(out).tensors["wide"].numpy(), expected)


def test_convert(tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    source, out = tmp_path / "m.safetensors", tmp_path / "m.gguf"
    arrays = {
        "a.weight": rng.standard_normal((4, 64), np.float32), "b.bias": rng.standard_normal(7).astype(np.float16),
        "c.half": rng.standard_normal((2, 256)).astype(ml_dtypes.bfloat16), "d.ids": np.arange(4),
        "e.scalar": np.array(3, np.float32),
    }  # fmt: skip
    save_file(arrays, source, metadata={"format": "np"})
    assert (
        main(
            [
                "gguf",
                "convert",
                str(source),
                str(out),
                "--arch",
                "bert",
                "--set",
                "a.n=5",
                "--set",
                "a.list=[1.5, 2]",
                "--set",
                "a.t=x y",
            ]
        )
        == 0
    )
    file = gb.gguf.open(out)
    assert {k: v if isinstance(v, (str, int)) else v.tolist() for k, v in file.metadata.items()} == {
        "general.architecture": "bert", "safetensors.format": "np", "a.n": 5, "a.list": [1.5, 2], "a.t": "x y",
    }  # fmt: skip
    for name, array in arrays.items():
        found = file.tensors[name].numpy()
        np.testing.assert_array_equal(found.reshape(array.shape), array.view(np.uint16) if "half" in name else array)
    assert main(["gguf", "convert", str(source), str(out), "--type", "q8_0"]) == 0
    file = gb.gguf.open(out)
    np.testing.assert_array_equal(file.tensors["c.half"].numpy(), gb.quantize(arrays["c.half"], "q8_0"))
    assert "c.half: bfloat16 -> q8_0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("header", "message"),
    [(b"{", "not JSON"), (b"[]", "not a JSON object"), (b'{"t": 5}', "needs dtype"),
     (b'{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "outside"),
     (b'{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,3]}}', "3 bytes are no"),
     (b'{"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', "shape"),
     (b'{"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}', "belong to no tensor"), (b"[" * 100000, "not JSON")],
)  # fmt: skip
def test_broken_safetensors(tmp_path: Path, capsys: pytest.CaptureFixture[str], header: bytes, message: str) -> None:
    source = tmp_path / "m.safetensors"
    source.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert main(["gguf", "convert", str(source), str(tmp_path / "out.gguf")]) == 1
    assert message in capsys.readouterr().err
    source.write_bytes((2**63).to_bytes(8, "little") + header)
    assert main(["gguf", "convert", str(source), str(tmp_path / "out.gguf")]) == 1
    assert "header's length" in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()


def test_a_tensor_type_without_effect_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(n for n, t in gb.gguf.open(model).tensors.items() if len(t.shape) == 2)
    command = ["gguf", "quantize", str(model), str(tmp_path / "out.gguf")]
    special, general = ["--tensor-type", f"{name}=float16"], ["--tensor-type", "*=bfloat16"]
    assert main([*command, *general, *special]) == 1
    assert f"{name!r} decides nothing: '*' comes first" in capsys.readouterr().err
    assert main([*command, *special, *general, "--requantize"]) == 0


def test_errors_are_messages(model: Path, tmp_path: Path) -> None:
    for arguments in (
        ["info", str(tmp_path / "absent")],
        ["info", str(tmp_path)],
        ["quantize", str(model), str(tmp_path / "o"), "--type", "q99"],
        ["quantize", str(model), str(tmp_path / "o"), "--type", "iq2_xs"],
        ["quantize", str(model), str(tmp_path / "o"), "--type", "i32"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ggml_backend", "gguf", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done
        assert done.stderr.splitlines()[-1].startswith(f"python -m ggml_backend gguf {arguments[0]}: error: ")
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()
