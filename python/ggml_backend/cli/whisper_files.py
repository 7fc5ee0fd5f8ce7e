"""Whisper models of other programs as GGUF files.

It reads folders of ``transformers`` and of CTranslate2, and files of whisper.cpp of early 2024.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._base.errors import FileError, UnsupportedError
from .._base.files import read_text
from .._base.mapped import map_file
from ..dtypes import dtypes
from ..models.tokens import _byte_characters
from .gguf.checkpoint import open_models
from .gguf.conversion import Source
from .gguf.elements import as_float, values_of
from .gguf.safetensors import json_object

__all__ = [
    "MAGIC",
    "is_folder_of_ctranslate2",
    "keys_of_whisper",
    "read_ctranslate2",
    "read_transformers",
    "read_whisper_cpp",
    "sources_of_whisper",
]

Array = np.ndarray[Any, Any]
MAGIC = b"lmgg"
"""The first bytes of a file of whisper.cpp."""

_LARGEST = 1 << 31
_MOST_TOKENS = 1 << 20


@dataclass
class Whisper:
    """A model: sizes by the keys of a GGUF file, tensors by OpenAI's names, and the text of each token."""

    sizes: dict[str, int]
    tensors: dict[str, tuple[Array, str]]  # the elements, or the blocks, and the dtype
    tokens: list[str]
    suppressed: list[int]


class _Reader:
    """Numbers and texts of a binary file, with its limits checked."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.at = path, np.frombuffer(map_file(path), np.uint8), 0

    def take(self, n: int, what: str) -> Array:
        if not 0 <= n <= len(self.data) - self.at:
            raise FileError(
                f"{self.path}: at offset {self.at}: {what} needs {n} bytes, {len(self.data) - self.at} are left"
            )
        found = self.data[self.at : self.at + n]
        self.at += n
        return found

    def number(self, form: str, what: str) -> int:
        return int(struct.unpack(f"<{form}", self.take(struct.calcsize(form), what).tobytes())[0])

    def text(self, n: int, what: str) -> bytes:
        return self.take(n, what).tobytes()

    @property
    def ended(self) -> bool:
        return self.at == len(self.data)


# ---- CTranslate2 -----------------------------------------------------------------------------------------------------

_CT2_TYPES = {0: "float32", 4: "float16"}
_CT2_BLOCK = {
    "self_attention/layer_norm": "attn_ln", "self_attention/linear_1": "attn.out",
    "attention/layer_norm": "cross_attn_ln", "attention/linear_0": "cross_attn.query",
    "attention/linear_2": "cross_attn.out", "ffn/layer_norm": "mlp_ln", "ffn/linear_0": "mlp.0",
    "ffn/linear_1": "mlp.2",
}  # fmt: skip
_CT2_WHOLE = {
    "encoder/conv1": "encoder.conv1", "encoder/conv2": "encoder.conv2", "encoder/layer_norm": "encoder.ln_post",
    "decoder/layer_norm": "decoder.ln", "decoder/embeddings": "decoder.token_embedding",
}  # fmt: skip
_CT2_KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def is_folder_of_ctranslate2(folder: Path) -> bool:
    """True if the folder holds a Whisper model of CTranslate2."""
    path = folder / "model.bin"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b"WhisperSpec" in file.read(64)


def read_ctranslate2(folder: Path) -> Whisper:
    """A folder with model.bin and tokenizer.json."""
    variables = dict(_variables(_Reader(folder / "model.bin")))
    tensors: dict[str, tuple[Array, str]] = {}
    for name, (x, dtype) in variables.items():
        if x.ndim:
            tensors.update({target: (part, dtype) for target, part in _ct2_names(name, x)})
    conv, table = variables["encoder/conv1/weight"][0], variables["decoder/embeddings/weight"][0]
    path = folder / "config.json"
    config = json_object(read_text(path), f"{path}: it") if path.exists() else {}
    layers = {half: len({n.split("/")[1] for n in variables if n.startswith(f"{half}/layer_") and n.count("/") > 2})
              for half in ("encoder", "decoder")}  # fmt: skip
    sizes = {
        "vocab_size": table.shape[0], "embedding_length": table.shape[1], "encoder.mel_count": conv.shape[1],
        "attention.head_count": int(variables["encoder/num_heads"][0]),
        "encoder.block_count": layers["encoder"], "decoder.block_count": layers["decoder"],
        "encoder.context_length": variables["encoder/position_encodings/encodings"][0].shape[0],
        "context_length": variables["decoder/position_encodings/encodings"][0].shape[0],
    }  # fmt: skip
    return Whisper(sizes, tensors, _tokens(folder), [int(t) for t in config.get("suppress_ids", [])])


def _variables(file: _Reader) -> Iterator[tuple[str, tuple[Array, str]]]:
    """The variables of a file of versions 5 and 6: arrays of floats, and numbers."""
    version = file.number("I", "the version")
    if version not in (5, 6):
        raise UnsupportedError(f"{file.path}: version {version} of CTranslate2's files is not known; 5 and 6 are")
    file.text(file.number("H", "a length"), "the name of the model")
    file.number("I", "the revision")
    for _ in range(file.number("I", "the number of variables")):
        name = file.text(file.number("H", "a length"), "a name").rstrip(b"\0").decode("utf-8", "replace")
        shape = tuple(file.number("I", "a size") for _ in range(file.number("B", "a rank")))
        code = file.number("B", "a dtype")
        raw = file.take(file.number("I", "a length"), name)
        if not shape:
            yield name, (np.array(int.from_bytes(raw.tobytes(), "little")), "int")
        elif code in _CT2_TYPES:
            x = raw.view(_CT2_TYPES[code])
            if x.size != int(np.prod(shape, dtype=object)):
                raise FileError(f"{file.path}: {name} has {x.size} elements, its shape {shape} more or fewer")
            yield name, (x.reshape(shape), _CT2_TYPES[code])
        elif "alignment" not in name:
            raise UnsupportedError(
                f"{file.path}: {name} has dtype {code}, and only float32 and float16 are read: convert the original"
                " model again with --quantization float16"
            )


def _ct2_names(name: str, x: Array) -> Iterator[tuple[str, Array]]:
    """OpenAI's names of a variable. Queries, keys and values of one matrix become three."""
    if name.endswith("position_encodings/encodings"):
        yield f"{name.split('/')[0]}.positional_embedding", x
        return
    stem, _, kind = name.rpartition("/")
    if kind not in _CT2_KINDS:
        return
    if stem in _CT2_WHOLE:
        yield f"{_CT2_WHOLE[stem]}.{_CT2_KINDS[kind]}", x
        return
    half, _, rest = stem.partition("/layer_")
    number, _, part = rest.partition("/")
    block = f"{half}.blocks.{number}"
    if part in _CT2_BLOCK:
        yield f"{block}.{_CT2_BLOCK[part]}.{_CT2_KINDS[kind]}", x
        return
    joined = {
        "self_attention/linear_0": ("attn", ("query", "key", "value")),
        "attention/linear_1": ("cross_attn", ("key", "value")),
    }
    if part in joined:
        attention, parts = joined[part]
        for one, piece in zip(parts, np.split(x, len(parts)), strict=True):
            if not (one == "key" and kind == "bias"):  # keys have no bias: it is 0 there
                yield f"{block}.{attention}.{one}.{kind}", piece


def _tokens(folder: Path) -> list[str]:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise FileError(f"{folder}: the folder has no tokenizer.json; download that of the original model")
    table = json_object(read_text(path), f"{path}: it")
    vocab = {**table["model"]["vocab"], **{t["content"]: t["id"] for t in table["added_tokens"]}}
    if not all(type(i) is int and 0 <= i < _MOST_TOKENS for i in vocab.values()):
        raise FileError(f"{path}: the numbers of tokens must be whole numbers from 0 to {_MOST_TOKENS - 1}")
    found = [""] * (max(vocab.values()) + 1)
    for text, i in vocab.items():
        found[i] = text
    return found


# ---- whisper.cpp -----------------------------------------------------------------------------------------------------

_GGML_TYPES = {0: "float32", 1: "float16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0"}
_HPARAMS = (
    "vocab_size", "encoder.context_length", "embedding_length", "attention.head_count", "encoder.block_count",
    "context_length", "_text_state", "_text_heads", "decoder.block_count", "encoder.mel_count", "_ftype",
)  # fmt: skip


def read_whisper_cpp(path: Path) -> Whisper:
    """A file of whisper.cpp: sizes, mel filters, the bytes of all tokens, and tensors."""
    file = _Reader(path)
    if file.text(4, "the magic") != MAGIC:
        raise FileError(f"{path} is no file of whisper.cpp")
    sizes = {name: file.number("i", name) for name in _HPARAMS}
    if sizes["_text_state"] != sizes["embedding_length"] or not 0 < sizes["vocab_size"] < _MOST_TOKENS:
        raise FileError(f"{path}: the sizes of the network do not fit together: {sizes}")
    file.take(4 * file.number("I", "mel bands") * file.number("I", "bins"), "the mel filters")
    characters = _byte_characters()
    tokens = []
    for _ in range(file.number("I", "the number of tokens")):
        raw = file.text(file.number("I", "a length"), "a token")
        tokens.append("".join(characters[b] for b in raw))
    tensors: dict[str, tuple[Array, str]] = {}
    while not file.ended:
        n_dims, length, code = (file.number("i", "a tensor") for _ in range(3))
        if not 1 <= n_dims <= 4 or code not in _GGML_TYPES:
            raise FileError(f"{path}: at offset {file.at}: a tensor with {n_dims} axes of type {code}")
        shape = tuple(reversed([file.number("i", "a size") for _ in range(n_dims)]))
        name, dtype = file.text(length, "a name").decode("utf-8", "replace"), dtypes[_GGML_TYPES[code]]
        if any(not 0 < n < _LARGEST for n in shape) or shape[-1] % dtype.block_size:
            raise FileError(f"{path}: {name} has shape {shape}")
        data = file.take(int(np.prod(shape, dtype=object)) // dtype.block_size * dtype.itemsize, name)
        if name.startswith("encoder.conv") and name.endswith(".bias"):
            shape = shape[:1]  # stored as a column
        x = data.reshape(*shape[:-1], -1) if dtype.is_quantized else data.view(dtype.name).reshape(shape)
        tensors[name] = x, dtype.name
    return Whisper({k: v for k, v in sizes.items() if k[0] != "_"}, tensors, tokens, [])


# ---- transformers ----------------------------------------------------------------------------------------------------

_HF_SIZES = {
    "vocab_size": "vocab_size", "d_model": "embedding_length", "encoder_attention_heads": "attention.head_count",
    "encoder_layers": "encoder.block_count", "decoder_layers": "decoder.block_count",
    "num_mel_bins": "encoder.mel_count", "max_source_positions": "encoder.context_length",
    "max_target_positions": "context_length",
}  # fmt: skip
_HF_PARTS = {
    "self_attn.q_proj": "attn.query", "self_attn.k_proj": "attn.key", "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out", "self_attn_layer_norm": "attn_ln", "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key", "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out", "encoder_attn_layer_norm": "cross_attn_ln", "fc1": "mlp.0",
    "fc2": "mlp.2", "final_layer_norm": "mlp_ln",
}  # fmt: skip
_HF_WHOLE = {
    "encoder.conv1": "encoder.conv1", "encoder.conv2": "encoder.conv2", "encoder.layer_norm": "encoder.ln_post",
    "decoder.layer_norm": "decoder.ln", "decoder.embed_tokens": "decoder.token_embedding",
}  # fmt: skip


def read_transformers(folder: Path, config: Mapping[str, Any]) -> Whisper:
    """A folder with safetensors files and tokenizer.json. config: its config.json"""
    sizes = {target: config[source] for source, target in _HF_SIZES.items()}
    if not all(type(n) is int and 0 < n < _LARGEST for n in sizes.values()):
        raise FileError(f"{folder / 'config.json'}: the sizes of the network must be whole numbers")
    tensors: dict[str, tuple[Array, str]] = {}
    for file in open_models([str(folder)]):
        for name, stored in file.tensors.items():
            target = _hf_name(name)
            if target is None:
                continue
            x = values_of(stored.kind, stored.shape, file.bytes_of(name), f"{file.path}: tensor {name!r}")
            if x.dtype.name not in ("float32", "float16", "bfloat16"):
                raise UnsupportedError(f"{file.path}: tensor {name!r} has dtype {x.dtype}, and only floats are read")
            if x.dtype.name == "bfloat16":
                x = as_float(x)
            tensors[target] = x.numpy(), x.dtype.name
    path = folder / "generation_config.json"
    rules = json_object(read_text(path), f"{path}: it") if path.exists() else config
    return Whisper(sizes, tensors, _tokens(folder), [int(t) for t in rules.get("suppress_tokens") or []])


def _hf_name(name: str) -> str | None:
    """OpenAI's name of a tensor. None for the output matrix, which is that of the embedding."""
    plain = name.removeprefix("model.")
    if plain == "proj_out.weight":
        return None
    stem, _, kind = plain.rpartition(".")
    if stem.endswith(".embed_positions"):
        return f"{stem.removesuffix('.embed_positions')}.positional_embedding"
    if stem in _HF_WHOLE:
        return f"{_HF_WHOLE[stem]}.{kind}"
    half, _, rest = stem.partition(".layers.")
    number, _, part = rest.partition(".")
    if part not in _HF_PARTS:
        raise UnsupportedError(f"tensor {name!r} is not part of Whisper's network")
    return f"{half}.blocks.{number}.{_HF_PARTS[part]}.{kind}"


# ---- GGUF ------------------------------------------------------------------------------------------------------------


def keys_of_whisper(model: Whisper, name: str) -> dict[str, Any]:
    """All keys of the file."""
    keys: dict[str, Any] = {"general.architecture": "whisper", "general.name": name}
    keys |= {f"whisper.{key}": np.uint32(value) for key, value in model.sizes.items()}
    keys["tokenizer.ggml.model"] = "gpt2"
    keys["tokenizer.ggml.tokens"] = model.tokens[: model.sizes["vocab_size"]]
    if model.suppressed:
        keys["whisper.suppress_tokens"] = np.array(model.suppressed, np.int32)
    return keys


def sources_of_whisper(model: Whisper) -> list[Source]:
    """All tensors. Vectors and tables of positions become float32, which all kernels take."""
    found: list[Source] = []
    for name, (x, kind) in model.tensors.items():
        dtype, shape = dtypes[kind], x.shape
        if dtype.is_quantized:
            shape = (*shape[:-1], shape[-1] // dtype.itemsize * dtype.block_size)
        elif x.ndim == 1 or name.endswith("positional_embedding"):
            x, dtype = x.astype(np.float32), dtypes["float32"]
        found.append((name, shape, dtype, np.ascontiguousarray(x)))
    return found
