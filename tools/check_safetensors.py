"""Converts safetensors files that other programs wrote, and compares each value with the input of these programs.

    python tools/check_safetensors.py [NAME ...]       # all writers of WRITERS, or these

Each writer is installed from PyPI into its own virtual environment, ``build/writers/NAME``. A writer that cannot be
installed is named and left out. Fewer than five writers are an error.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import ggml_backend as gb
from ggml_backend.cli import main as ggml_backend_main

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "writers"
LEAST = 5


class Writer(NamedTuple):
    """A program that writes safetensors files."""

    packages: list[str]  #: from PyPI, with versions
    program: str  #: has `arrays` and the path `out` of a file, or of a folder for an index and its shards
    dtypes: str = "f4 f2 f8 i1 i2 i4 i8 ? u1 u2 u4 u8"  #: of the arrays that the writer gets
    axes: tuple[int, ...] = (0, 1, 2, 3, 4, 5)  #: numbers of axes that the writer can write
    empty: bool = True  #: the writer can write empty tensors


_NUMPY = "from {package}.numpy import save_file; save_file(arrays, out, metadata={{'format': 'np'}})"

WRITERS = {
    "safetensors-old": Writer(["safetensors==0.2.8", "numpy"], _NUMPY.format(package="safetensors")),
    "safetensors": Writer(
        ["safetensors>=0.8", "numpy", "ml_dtypes"],
        """
import ml_dtypes
bits = np.arange(256, dtype=np.uint8).reshape(16, 16)
for kind in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
    arrays[kind] = bits.view(getattr(ml_dtypes, kind))
arrays["bfloat16"] = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)
"""
        + _NUMPY.format(package="safetensors"),
    ),
    "cryptotensors": Writer(["cryptotensors", "numpy"], _NUMPY.format(package="cryptotensors")),
    "mlx": Writer(
        ["mlx[cpu]", "numpy"],
        """
import mlx.core as mx
mx.set_default_device(mx.cpu)
given = {name: mx.array(array) for name, array in arrays.items()}
given["bfloat16"] = mx.arange(12).reshape(3, 4).astype(mx.bfloat16)
mx.save_safetensors(out, given, {"format": "mlx"})
""",
        dtypes="f4 f2 i1 i2 i4 i8 ? u1 u2 u4 u8",
    ),
    "tinygrad": Writer(
        ["tinygrad", "numpy"],
        """
from tinygrad import Tensor
from tinygrad.nn.state import safe_save
safe_save({name: Tensor(array) for name, array in arrays.items()}, out, {"format": "tinygrad"})
""",
        empty=False,
    ),
    "candle": Writer(
        ["candle-nn", "numpy"],
        """
import candle
from candle.utils import save_safetensors
kinds = {"float32": candle.f32, "float16": candle.f16, "float64": candle.f64, "int64": candle.i64, "uint8": candle.u8,
         "uint32": candle.u32}
given = {}
for name, array in arrays.items():
    flat = candle.Tensor([float(v) for v in array.reshape(-1)]).to_dtype(kinds[array.dtype.name])
    given[name] = flat.reshape(array.shape)
given["bfloat16"] = candle.Tensor([float(i) for i in range(12)]).reshape((3, 4)).to_dtype(candle.bf16)
save_safetensors(out, given)
""",
        dtypes="f4 f2 f8 i8 u1 u4",
        axes=(1, 2, 3, 4, 5),
        empty=False,
    ),
    "huggingface_hub": Writer(
        ["huggingface_hub", "safetensors", "numpy"],
        """
import json, os
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.numpy import save_file
os.mkdir(out)
split = split_state_dict_into_shards_factory(
    arrays, get_storage_size=lambda a: a.nbytes, filename_pattern="model{suffix}.safetensors", max_shard_size=200)
assert split.is_sharded and len(split.filename_to_tensors) > 2
for file, names in split.filename_to_tensors.items():
    save_file({name: arrays[name] for name in names}, os.path.join(out, file), metadata={"format": "pt"})
with open(os.path.join(out, "model.safetensors.index.json"), "w") as file:
    json.dump({"metadata": split.metadata, "weight_map": split.tensor_to_filename}, file)
""",
    ),
}

_SHAPES = [(), (7,), (3, 5), (2, 3, 4), (1, 2, 3, 4), (2, 1, 2, 3, 2), (0,), (0, 4), (3, 0)]


def given_to(writer: Writer) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of small whole numbers, which include 0 and 1, of every dtype and shape that the writer can write."""
    rng = np.random.default_rng(0)
    found = {}
    for shape in _SHAPES:
        if len(shape) in writer.axes and (writer.empty or 0 not in shape):
            for dtype in writer.dtypes.split():
                array = rng.integers(0, 100, shape).astype(dtype)
                found[f"{np.dtype(dtype).name}.{'x'.join(map(str, shape)) or 'scalar'}"] = array
    return found


def extra() -> dict[str, np.ndarray[Any, Any]]:
    """Arrays that some programs add, of dtypes that NumPy does not have."""
    bits = np.arange(256, dtype=np.uint8).reshape(16, 16)
    kinds = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    found: dict[str, np.ndarray[Any, Any]] = {kind: bits.view(getattr(ml_dtypes, kind)) for kind in kinds}
    return {**found, "bfloat16": np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16)}


def write(name: str, writer: Writer) -> Path | None:
    """Runs a writer. Returns its file or folder, or None if the writer cannot be installed."""
    folder = FOLDER / name
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install", *writer.packages]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: skipped, cannot be installed: {done.stderr.strip().splitlines()[-1]}", flush=True)
            return None
        (folder / ".installed").touch()
    out = FOLDER / f"{name}.safetensors"
    if out.is_dir():
        shutil.rmtree(out)
    np.savez(FOLDER / f"{name}.npz", **given_to(writer))  # type: ignore[arg-type]
    start = f"import numpy as np\narrays = dict(np.load({str(FOLDER / f'{name}.npz')!r}))\nout = {str(out)!r}\n"
    subprocess.run([str(python), "-c", start + writer.program], check=True, cwd=FOLDER)
    return out


def compare(name: str, source: Path, given: dict[str, np.ndarray[Any, Any]]) -> None:
    """Raises AssertionError if a value of the converted file differs."""
    target = FOLDER / f"{name}.gguf"
    with contextlib.redirect_stdout(io.StringIO()):
        assert ggml_backend_main(["gguf", "convert", str(source), str(target), "--quiet"]) == 0, name
    with gb.gguf.open(target) as file:
        known = {**extra(), **given}
        assert set(given) <= set(file.tensors) <= set(known), name
        for key, tensor in file.tensors.items():
            floats = tensor.dtype.name == "bfloat16"
            found, expected = tensor.dequantize() if floats else tensor.numpy(), known[key]
            assert found.size == expected.size, f"{name}: {key}: shape {found.shape}, given was {expected.shape}"
            same = np.array_equal(
                found.reshape(expected.shape).astype(np.float64), expected.astype(np.float64), equal_nan=True
            )
            assert same, f"{name}: {key}: {found!r}, given was {expected!r}"
        print(f"{name}: {len(file.tensors)} tensors are equal", flush=True)


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WRITERS))
    names = parser.parse_args().names or list(WRITERS)
    FOLDER.mkdir(parents=True, exist_ok=True)
    compared = 0
    for name in names:
        source = write(name, WRITERS[name])
        if source is not None:
            compare(name, source, given_to(WRITERS[name]))
            compared += 1
    print(json.dumps({"writers": compared, "of": len(names)}))
    return int(compared < min(LEAST, len(names)))


if __name__ == "__main__":
    raise SystemExit(run())
