"""Quantizes the weights of the safetensors file once, keeps them in a GGUF file, and uses them there in place."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import ggml_backend as gb


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """True for large matrices, which are quantized. Norms, biases and small embeddings stay float32."""
    return len(shape) == 2 and ("dense" in name or "attention.self" in name or "word_embeddings" in name)


def cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "ggml_backend"


def is_whole(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """True if the file is a GGUF file with all tensors."""
    try:
        with gb.gguf.open(path) as file:
            return {name: t.shape for name, t in file.tensors.items()} == shapes
    except (OSError, gb.GgmlError):
        return False


def cached_file(source: Path, dtype: str, report: Callable[[str], None] = print) -> Path:
    """The GGUF file of ``source`` (safetensors) quantized to ``dtype``. A missing file is made, and ``report`` gets the
    choice for each tensor."""
    wanted = gb.dtypes.as_dtype(dtype)
    if not wanted.is_quantized and wanted.name not in ("float16", "bfloat16"):
        raise ValueError(f"type {wanted.name}: weights are f32, f16, bf16 or of a quantized type")
    path = cache_dir() / f"all-MiniLM-L6-v2-{wanted.name}.gguf"
    data = np.memmap(source, np.uint8, "r")
    header_size = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8 : 8 + header_size].tobytes())
    shapes = {
        name: tuple(info["shape"]) for name, info in header.items() if name != "__metadata__" and info["dtype"] == "F32"
    }
    if path.exists():
        if not path.is_file():
            raise ValueError(f"{path} is not a file, so the quantized weights cannot be written there")
        if path.stat().st_mtime >= source.stat().st_mtime and is_whole(path, shapes):
            return path
    path.parent.mkdir(parents=True, exist_ok=True)
    report(f"quantizing to {path}")
    with gb.gguf.Writer(path) as out:
        out.add("general.architecture", "bert")
        out.add("general.name", f"all-MiniLM-L6-v2 {wanted.name}")
        if wanted.is_quantized:
            out.add("general.quantization_version", 2)
        for name, info in header.items():
            if name == "__metadata__" or info["dtype"] != "F32":
                continue
            begin, end = (8 + header_size + o for o in info["data_offsets"])
            array = np.frombuffer(data[begin:end].tobytes(), np.float32).reshape(info["shape"])
            if is_matrix(name, array.shape):
                used = gb.gguf.fallback_dtype(wanted, array.shape[1])
                note = (
                    "" if used == wanted else f" (rows of {array.shape[1]} are not whole blocks of {wanted.block_size})"
                )
                report(f"  {name} {array.shape}: {used.name}{note}")
                # the writer quantizes; a number that the format cannot hold is an error
                out.add_tensor(name, array, dtype=used)
            else:
                out.add_tensor(name, array)
    return path
