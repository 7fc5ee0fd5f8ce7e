"""``convert``: a model of another program as a GGUF file that ``chat``, ``embed`` and ``transcribe`` run.

It reads folders of Hugging Face's ``transformers``, folders of CTranslate2 (Whisper), and files of whisper.cpp.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._base.errors import FileError
from .._base.files import read_head, read_text
from .._base.text import count, line
from ..dtypes import dtypes
from ..gguf import Writer
from .gguf.checkpoint import open_models
from .gguf.common import fitting
from .gguf.conversion import Source, add_conversion_arguments, write
from .gguf.elements import Values, values_of
from .gguf.safetensors import json_object
from .gguf.shards import refuse_same
from .hugging_face.keys import factors_of, keys_of
from .hugging_face.names import family_of, translated
from .hugging_face.vocabulary import vocabulary_of
from .whisper_files import (
    MAGIC,
    Whisper,
    is_folder_of_ctranslate2,
    read_ctranslate2,
    read_whisper_cpp,
    write_whisper,
)

EXAMPLE = "all-MiniLM-L6-v2/ all-MiniLM-L6-v2.gguf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        help="a folder of transformers (config.json, tokenizer.json, *.safetensors); Whisper's, also a folder of"
        " CTranslate2 (model.bin, tokenizer.json) or a file of whisper.cpp (ggml-*.bin)",
    )
    parser.add_argument("output", metavar="MODEL.gguf", help="the file to write")
    parser.add_argument("--skip", action="append", default=[], metavar="PATTERN", help="leave these tensors out")
    add_conversion_arguments(parser)


def run(options: argparse.Namespace) -> int:
    folder = Path(options.input)
    whisper = _whisper(folder)
    if whisper is not None:
        refuse_same(options.output, [str(folder)])
        write_whisper(whisper, options.output, folder.resolve().stem)
        print(f"{line(options.output)}: {count(len(whisper.tensors), 'tensor')}")
        return 0
    config = _json(folder, "config.json")
    family = family_of(config)
    files = open_models([str(folder)])
    inputs = [*(file.path for file in files), *filter(None, (options.imatrix,))]
    refuse_same(options.output, inputs)
    of = {name: file for file in files for name in file.tensors}
    skipped = set(fitting(options.skip, list(of), "--skip"))
    values: dict[str, Values] = {}
    for name, file in of.items():
        if name not in skipped:
            stored = file.tensors[name]
            values[name] = values_of(stored.kind, stored.shape, file.bytes_of(name), f"{file.path}: tensor {name!r}")
    tensors = dict(translated(family, config, values))
    for name, x in factors_of(config).items():
        tensors[name] = Values(dtypes["float32"], x.shape, False, False, lambda x=x: x)  # type: ignore[misc]
    writer = Writer(options.output)
    for key, value in _keys(folder, config, tensors).items():
        writer.add(key, value)
    sources: list[Source] = [(name, v.shape, v.dtype, v) for name, v in tensors.items()]
    return write(options, writer, sources, sum(of[name].bytes_of(name).nbytes for name in values), inputs)


def _whisper(path: Path) -> Whisper | None:
    """The Whisper model of another program, if it is one."""
    if path.is_dir():
        return read_ctranslate2(path) if is_folder_of_ctranslate2(path) else None
    if read_head(path, len(MAGIC)) == MAGIC:
        return read_whisper_cpp(path)
    raise FileError(f"{path}: the input must be a folder, or a file of whisper.cpp; gguf convert reads single files")


def _keys(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Values]) -> dict[str, Any]:
    """All keys of the file."""
    family = family_of(config)
    name = str(config.get("_name_or_path") or folder.resolve().name).rstrip("/").rpartition("/")[2]
    keys: dict[str, Any] = {"general.architecture": family.architecture, "general.type": "model", "general.name": name}
    keys |= keys_of(family, config)
    if "token_embd.weight" not in tensors:
        raise FileError(f"{folder}: the model has no embedding of tokens")
    n_tokens = tensors["token_embd.weight"].shape[0]
    settings = _json(folder, "tokenizer_config.json", optional=True)
    template = settings.get("chat_template")
    if (folder / "chat_template.jinja").exists():
        template = read_text(folder / "chat_template.jinja")
    if isinstance(template, list):  # several by name
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    keys |= vocabulary_of(_json(folder, "tokenizer.json"), settings, n_tokens, template)
    pooling = _json(folder / "1_Pooling", "config.json", optional=True)
    for number, key in ((1, "pooling_mode_mean_tokens"), (2, "pooling_mode_cls_token"), (3, "pooling_mode_lasttoken")):
        if pooling.get(key):
            keys[f"{family.architecture}.pooling_type"] = np.uint32(number)
    return keys


def _json(folder: Path, name: str, optional: bool = False) -> dict[str, Any]:
    """A JSON object of the folder."""
    path = folder / name
    if not path.exists():
        if optional:
            return {}
        raise FileError(f"{os.fspath(folder)}: the folder has no {name}; a folder of transformers has one")
    return json_object(read_text(path), f"{path}: it")
