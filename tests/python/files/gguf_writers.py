"""Third-party programs that write or read GGUF files, with versions that are known to work.

Each program is installed from PyPI or npm into its own folder, and runs in its own process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["READERS", "WRITERS", "Program"]


@dataclass(frozen=True)
class Program:
    """A Python program, or a Node.js program if its packages are from npm."""

    packages: tuple[str, ...]
    source: str
    names: tuple[str, ...] = ("matrix", "half", "vector", "cube")
    """The tensors of the test that the program can write."""
    npm: bool = False

    def install(self, folder: Path) -> str:
        """Installs the packages below the folder, once. Returns the error, or an empty text."""
        done = folder / ".installed"
        if done.exists() and done.read_text() == " ".join(self.packages):
            return ""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if self.npm:
            command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *self.packages]
        else:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps"]
            command = [*pip, "--only-binary", ":all:", "--target", str(folder), *self.packages]
        if shutil.which(command[0]) is None:
            return f"{command[0]} is not installed"
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode == 0:
            done.write_text(" ".join(self.packages))
            return ""
        return (made.stderr.strip().splitlines() or ["no message"])[-1]

    def run(self, folder: Path, *arguments: str | Path) -> str:
        """Runs the program and returns its output. CalledProcessError, with the end of the output, if it fails."""
        script = folder / ("program.mjs" if self.npm else "program.py")
        script.write_text(self.source)
        command = ["node" if self.npm else sys.executable, str(script), *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        made = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
        assert made.returncode == 0, made.stderr[-2000:]
        return made.stdout


_PACKAGE = """
import sys
import numpy as np
import {module} as gguf
arrays = np.load(sys.argv[1])
writer = gguf.GGUFWriter(sys.argv[2], "test")
writer.add_uint32("n", 7)
writer.add_float32("x", 1e-5)
writer.add_bool("yes", True)
writer.add_string("text", "Zürich")
writer.add_array("words", ["a", "bc"])
for name in sys.argv[4].split():
    writer.add_tensor(name, arrays[name])
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
"""

_MLX = """
import sys
import numpy as np
import mlx.core as mx
arrays = np.load(sys.argv[1])
metadata = {"n": mx.array(7, mx.uint32), "x": mx.array(1e-5), "text": "Zürich", "words": ["a", "bc"]}
mx.save_gguf(sys.argv[2], {name: mx.array(arrays[name]) for name in sys.argv[4].split()}, metadata)
"""

_CANDLE = """
import sys
import numpy as np
import candle
arrays = np.load(sys.argv[1])
tensors = {}
for name in sys.argv[4].split():
    tensor = candle.Tensor(arrays[name].astype(np.float32).reshape(-1).tolist()).reshape(arrays[name].shape)
    tensors[name] = tensor.quantize("f16" if arrays[name].dtype == np.float16 else "f32")
candle.utils.save_gguf(sys.argv[2], tensors, {"n": 7, "x": 1e-5, "text": "Zürich"})
"""

# Reads our file with the reference library, and writes it again tensor by tensor.
_REFERENCE = """
import ctypes, glob, os, sys
lib = ctypes.CDLL(glob.glob(os.path.join(os.environ["PYTHONPATH"], "LIBRARY"))[0])
pointer = ctypes.c_void_p
class Params(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.POINTER(pointer))]
for name, result, arguments in (
    ("gguf_init_from_file", pointer, [ctypes.c_char_p, Params]), ("gguf_init_empty", pointer, []),
    ("gguf_set_kv", None, [pointer, pointer]), ("gguf_add_tensor", None, [pointer, pointer]),
    ("gguf_write_to_file", ctypes.c_bool, [pointer, ctypes.c_char_p, ctypes.c_bool]),
    ("ggml_get_first_tensor", pointer, [pointer]), ("ggml_get_next_tensor", pointer, [pointer, pointer]),
    ("ggml_get_name", ctypes.c_char_p, [pointer]), ("gguf_find_tensor", ctypes.c_int64, [pointer, ctypes.c_char_p]),
):
    function = getattr(lib, name)
    function.restype, function.argtypes = result, arguments
context = pointer()
file = lib.gguf_init_from_file(sys.argv[3].encode(), Params(False, ctypes.pointer(context)))
assert file, "the reference refuses our file"
copy = lib.gguf_init_empty()
lib.gguf_set_kv(copy, file)
tensor = lib.ggml_get_first_tensor(context)
while tensor:
    if lib.gguf_find_tensor(file, lib.ggml_get_name(tensor)) >= 0:
        lib.gguf_add_tensor(copy, tensor)
    tensor = lib.ggml_get_next_tensor(context, tensor)
assert lib.gguf_write_to_file(copy, sys.argv[2].encode(), False)
"""

_EDITOR = """
import sys
from gguf_editor.gguf import parse_file, write_rebuilt
from gguf_editor import edits
parsed = parse_file(sys.argv[3])
tensors, plans = edits.compute_final_tensors(parsed, {})
write_rebuilt(sys.argv[2], edits.build_edited_header(parsed, {}, tensors), plans, parsed.alignment)
"""

ALL = ("matrix", "half", "vector", "cube", "ids", "scalar", "empty", "five")

WRITERS: dict[str, Program] = {
    "gguf 0.6.0": Program(("gguf==0.6.0",), _PACKAGE.format(module="gguf")),
    "gguf 0.9.1": Program(("gguf==0.9.1", "sentencepiece==0.2.1"), _PACKAGE.format(module="gguf"), (*ALL[:5],)),
    "gguf 0.10.0": Program(("gguf==0.10.0", "sentencepiece==0.2.1"), _PACKAGE.format(module="gguf"), ALL),
    "gguf 0.14.0": Program(("gguf==0.14.0", "sentencepiece==0.2.1"), _PACKAGE.format(module="gguf"), ALL),
    "gguf 0.16.3": Program(("gguf==0.16.3", "sentencepiece==0.2.1"), _PACKAGE.format(module="gguf"), ALL),
    "gguf 0.17.1": Program(("gguf==0.17.1",), _PACKAGE.format(module="gguf"), ALL),
    "gguf 0.18.0": Program(("gguf==0.18.0",), _PACKAGE.format(module="gguf"), ALL),
    "gguf 0.19.0": Program(("gguf==0.19.0",), _PACKAGE.format(module="gguf"), ALL),
    "nexa-gguf": Program(("nexa-gguf==0.11.0", "sentencepiece==0.2.1"), _PACKAGE.format(module="nexa_gguf"), ALL),
    "mlx": Program(("mlx==0.32.4", "mlx-cpu==0.32.4"), _MLX, (*ALL[:5], "scalar")),
    "candle": Program(("candle-nn==0.4.2",), _CANDLE),
    "ggml of whisper.cpp": Program(
        ("pywhispercpp==1.5.1",), _REFERENCE.replace("LIBRARY", "libggml-base.so.0"), (*ALL[:5], "scalar", "empty")
    ),
    "ggml of llama.cpp": Program(
        ("xllamacpp==2026.10.11549",),
        _REFERENCE.replace("LIBRARY", "xllamacpp/xllamacpp.abi3.so"),
        (*ALL[:5], "scalar", "empty"),
    ),
    "gguf-editor": Program(("gguf-editor==0.1.2",), _EDITOR, ALL[:-1]),
}
"""Programs that write. Arguments: an .npz file with the tensors, the output, our file with the
tensors, the names."""

_GGUF_JS = """
import { gguf } from "@huggingface/gguf";
const { metadata, tensorInfos } = await gguf(process.argv[2], { allowLocalFile: true });
const plain = (key, value) => (typeof value === "bigint" ? Number(value) : value);
console.log(JSON.stringify({ metadata, tensors: tensorInfos }, plain));
"""

READERS: dict[str, Program] = {
    "@huggingface/gguf": Program(("@huggingface/gguf@0.4.6",), _GGUF_JS, npm=True),
}
"""Programs that read. They print metadata, names and sizes of tensors in ggml's order as JSON.
Argument: a file."""
