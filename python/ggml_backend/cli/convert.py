"""``convert``: a model of another program as a GGUF file that ``chat``, ``embed`` and ``transcribe`` run.

It reads folders of Hugging Face's ``transformers``, folders of CTranslate2 (Whisper), and files of whisper.cpp.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .._base.errors import FileError, GgmlError
from .._base.files import read_head, read_text
from ..dtypes import dtypes
from ..gguf import Writer
from .gguf.checkpoint import open_models
from .gguf.common import fitting
from .gguf.conversion import Source, add_conversion_arguments, write
from .gguf.elements import Values, values_of
from .gguf.safetensors import json_object
from .gguf.shards import refuse_same
from .hugging_face.keys import factors_of, keys_of
from .hugging_face.names import Family, family_of, translated
from .hugging_face.vocabulary import vocabulary_of
from .whisper_files import (
    MAGIC,
    Whisper,
    is_folder_of_ctranslate2,
    keys_of_whisper,
    read_ctranslate2,
    read_transformers,
    read_whisper_cpp,
    sources_of_whisper,
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
    path = Path(options.input)
    whisper = _whisper(path)
    if whisper is None:
        keys, sources, before, inputs = _transformers(options, path)
    else:
        keys, sources = keys_of_whisper(whisper, path.resolve().stem), sources_of_whisper(whisper)
        skipped = set(fitting(options.skip, [source[0] for source in sources], "--skip"))
        sources = [source for source in sources if source[0] not in skipped]
        before, inputs = sum(source[3].nbytes for source in sources), [str(path)]
    inputs += filter(None, (options.imatrix,))
    refuse_same(options.output, inputs)
    writer = Writer(options.output)
    for key, value in keys.items():
        writer.add(key, value)
    return write(options, writer, sources, before, inputs)


def _whisper(path: Path) -> Whisper | None:
    """The Whisper model of another program, if it is one."""
    if not path.is_dir():
        if read_head(path, len(MAGIC)) == MAGIC:
            return read_whisper_cpp(path)
        raise FileError(
            f"{path}: the input must be a folder, or a file of whisper.cpp; gguf convert reads single files"
        )
    with _damage(f"{path}: the model"):
        if is_folder_of_ctranslate2(path):
            return read_ctranslate2(path)
        config = _json(path, "config.json")
        return read_transformers(path, config) if config.get("model_type") == "whisper" else None


def _transformers(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[Source], int, list[str]]:
    """Keys and tensors of a folder of transformers, the bytes of its tensors, and its files."""
    config = _json(folder, "config.json")
    family = family_of(config)
    files = open_models([str(folder)])
    of = {name: file for file in files for name in file.tensors}
    skipped = set(fitting(options.skip, list(of), "--skip"))
    values: dict[str, Values] = {}
    for name, file in of.items():
        if name not in skipped:
            stored = file.tensors[name]
            values[name] = values_of(stored.kind, stored.shape, file.bytes_of(name), f"{file.path}: tensor {name!r}")
    with _damage(f"{folder / 'config.json'}: it"):
        tensors = dict(translated(family, config, values))
        for name, x in factors_of(config).items():
            tensors[name] = Values(dtypes["float32"], x.shape, False, False, lambda x=x: x)  # type: ignore[misc]
        keys = _keys(family, folder, config)
    if "token_embd.weight" not in tensors:
        raise FileError(f"{folder}: the model has no embedding of tokens")
    with _damage(f"{folder}: its tokenizer"):
        keys |= _tokenizer(folder, tensors["token_embd.weight"].shape[0])
    sources: list[Source] = [(name, v.shape, v.dtype, v) for name, v in tensors.items()]
    return keys, sources, sum(of[name].bytes_of(name).nbytes for name in values), [file.path for file in files]


@contextmanager
def _damage(what: str) -> Iterator[None]:
    """A value that is missing or of another kind than expected becomes an error of the file."""
    try:
        yield
    except GgmlError:
        raise
    except KeyError as error:
        raise FileError(f"{what} has no {str(error.args[0])[:60]!r}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise FileError(f"{what} has a value of a wrong kind, or out of its limits") from error


def _keys(family: Family, folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the network."""
    name = str(config.get("_name_or_path") or folder.resolve().name).rstrip("/").rpartition("/")[2]
    keys: dict[str, Any] = {"general.architecture": family.architecture, "general.type": "model", "general.name": name}
    keys |= keys_of(family, config)
    pooling = _json(folder / "1_Pooling", "config.json", optional=True)
    for number, key in ((1, "pooling_mode_mean_tokens"), (2, "pooling_mode_cls_token"), (3, "pooling_mode_lasttoken")):
        if pooling.get(key):
            keys[f"{family.architecture}.pooling_type"] = np.uint32(number)
    return keys


def _tokenizer(folder: Path, n_tokens: int) -> dict[str, Any]:
    """The keys of the tokenizer and of the chat template. n_tokens: rows of the embedding"""
    settings = _json(folder, "tokenizer_config.json", optional=True)
    template = settings.get("chat_template")
    if (folder / "chat_template.jinja").exists():
        template = read_text(folder / "chat_template.jinja")
    if isinstance(template, list):  # several by name
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    return vocabulary_of(_json(folder, "tokenizer.json"), settings, n_tokens, template)


def _json(folder: Path, name: str, optional: bool = False) -> dict[str, Any]:
    """A JSON object of the folder."""
    path = folder / name
    if not path.exists():
        if optional:
            return {}
        raise FileError(f"{os.fspath(folder)}: the folder has no {name}; a folder of transformers has one")
    return json_object(read_text(path), f"{path}: it")
