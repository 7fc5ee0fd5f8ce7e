"""Opens models of one or more safetensors files, given by file, index or folder. An incomplete model is an error.

Large models lie in several files, *shards*. An index beside them, ``model.safetensors.index.json``,
says which shard holds which tensor. A shard does not say that it is a shard. So a file that is
given alone is checked twice: an index nearby may name its tensors, and its name may have numbers,
as ``model-00001-of-00002.safetensors``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..._base.errors import FileError, GgmlError
from ..._base.files import read_text
from ..._base.text import first_of, line
from .safetensors import SafeTensors, json_object, quoted

__all__ = ["open_models"]

_INDEX = re.compile(r"\.safetensors\.index(\.[\w-]+)?\.json$", re.IGNORECASE)
_NUMBERED = re.compile(r"(?<![0-9])([0-9]+)([-_]of[-_])([0-9]+)(?![0-9])", re.IGNORECASE)
_SLICES = "DCP_SHARDING_INFO"  # metadata of files that torch.distributed.checkpoint writes


class Index(NamedTuple):
    """The contents of an index."""

    path: str
    shard_of: dict[str, str]  #: by tensor, the path of its shard


def read_index(path: str) -> Index:
    """Reads an index. FileError if it is malformed, or names files that are not below its folder."""
    name = line(path)
    table = json_object(read_text(path), f"{name}: it")
    weights = table.get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(file, str) for file in weights.values()):
        raise FileError(f"{name}: it is not a safetensors index: weight_map must map tensors to files")
    for file in weights.values():
        parts = re.split(r"[/\\]", file)
        if not all(parts) or ".." in parts or parts[-1] == "." or ":" in parts[0] or "\0" in file:
            raise FileError(f"{name}: {quoted(file)} does not name a file below the folder of the index")
    folder = os.path.dirname(path)
    return Index(path, {tensor: os.path.join(folder, file) for tensor, file in weights.items()})


def open_models(paths: Sequence[str]) -> list[SafeTensors]:
    """The files of all models that the paths name. FileError for an incomplete model, and for a tensor that occurs
    twice."""
    files: list[SafeTensors] = []
    alone: list[SafeTensors] = []
    for given in paths:
        chosen = _in_folder(given) if os.path.isdir(given) else [given]
        if chosen[0].lower().endswith(".json"):
            files += _shards(read_index(chosen[0]))
        else:
            opened = [SafeTensors(path) for path in chosen]
            files += opened
            alone += opened
    _expect_distinct(files)
    for file in files:
        if _SLICES in file.metadata:
            raise FileError(
                f"{file.path}: its tensors are slices of larger ones, by {_SLICES} of torch.distributed.checkpoint;"
                " consolidate the checkpoint first"
            )
    for file in alone:
        _expect_complete(file, files)
    return files


def _in_folder(folder: str) -> list[str]:
    """The index of a folder, or its files if they are one model."""
    names = sorted(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name)))
    indexes = [name for name in names if _INDEX.search(name)]
    files = [name for name in names if name.lower().endswith(".safetensors")]
    whole = [name for name in files if _NUMBERED.search(name) is None]
    if len(indexes) == 1 and not whole:
        chosen = indexes
    elif not indexes and (len(files) == 1 or (not whole and len({_NUMBERED.sub(r"*\2\3", n) for n in files}) == 1)):
        chosen = files
    elif "model.safetensors.index.json" in indexes and "model.safetensors" not in whole:
        chosen = ["model.safetensors.index.json"]
    elif not indexes and "model.safetensors" in whole:
        chosen = ["model.safetensors"]
    elif files:
        found = [*indexes, *files] if len(files) < 6 else [*indexes, *files[:6], f"... ({len(files)} files)"]
        raise FileError(f"{folder}: the folder has several models; name one of {', '.join(map(line, found))}")
    else:
        raise FileError(f"{folder}: the folder has no *.safetensors file" + (f", only {indexes[0]}" if indexes else ""))
    return [os.path.join(folder, name) for name in chosen]


def _listed(names: Iterable[str], most: int = 8) -> str:
    return first_of((line(name, 100) for name in names), most)


def _shards(index: Index) -> list[SafeTensors]:
    """All shards of an index. FileError unless each shard has exactly the tensors that the index
    names for it."""
    paths = list(dict.fromkeys(index.shard_of.values()))
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        raise FileError(
            f"{index.path}: the model is incomplete: {len(missing)} of {len(paths)} files are missing:"
            f" {_listed(map(os.path.basename, missing))}"
        )
    files = [SafeTensors(path) for path in paths]
    for file in files:
        named = {tensor for tensor, path in index.shard_of.items() if path == file.path}
        for less, more, what in (
            (file.tensors.keys(), named, f"has no tensor {{}}, which {line(index.path)} names"),
            (named, file.tensors.keys(), f"has tensor {{}}, which {line(index.path)} does not name there"),
        ):
            absent = [name for name in more if name not in less]
            if absent:
                raise FileError(f"{file.path}: the file {what.format(_listed(map(repr, absent)))}")
    return files


def _expect_distinct(files: Sequence[SafeTensors]) -> None:
    seen: dict[str, SafeTensors] = {}
    for file in files:
        for name in file.tensors:
            other = seen.setdefault(name, file)
            if other is not file:
                twice = (
                    "the file is given twice"
                    if os.path.samefile(other.path, file.path)
                    else f"{other.path} has it, too"
                )
                raise FileError(f"{file.path}: tensor {quoted(name)} occurs twice: {twice}")


def _indexes_around(path: str) -> list[Index]:
    """The readable indexes beside a file. A hub cache keeps files in ``blobs``, and their names in ``snapshots``."""
    folder = Path(os.path.dirname(path) or ".")
    cache = folder.resolve()
    places = [folder, *(cache.parent.glob("snapshots/*") if cache.name == "blobs" else ())]
    found = []
    for index in (str(index) for place in places for index in sorted(place.glob("*.json"))):
        if _INDEX.search(index):
            try:
                found.append(read_index(index))
            except (OSError, GgmlError):
                continue
    return found


def _expect_complete(file: SafeTensors, files: Sequence[SafeTensors]) -> None:
    """FileError if a file is a part of a model whose other parts were not given."""
    given = {name for one in files for name in one.tensors}
    listed = False
    for index in _indexes_around(file.path):
        if not file.tensors or not file.tensors.keys() <= index.shard_of.keys():
            continue
        absent = index.shard_of.keys() - given
        if absent:
            raise FileError(
                f"{file.path}: the file is a part of a model: {len(absent)} of the {len(index.shard_of)} tensors of"
                f" {index.path} lie in other files; give the index, or the folder, for the whole model"
            )
        listed = True
    numbers = _NUMBERED.search(os.path.basename(file.path))
    if listed or numbers is None or int(numbers[3]) < 2:
        return
    series = _NUMBERED.sub(r"*\2\3", file.path)
    parts = {m[1] for one in files if _NUMBERED.sub(r"*\2\3", one.path) == series and (m := _NUMBERED.search(one.path))}
    total = int(numbers[3])
    if len(parts) < total:
        first = 0 if 0 in map(int, parts) else 1
        every = (f"{n:0{len(numbers[1])}}" for n in range(first, first + min(total, 1000)))
        lacking = [_NUMBERED.sub(rf"{n}\2\3", os.path.basename(file.path)) for n in every if n not in parts]
        raise FileError(
            f"{file.path}: the file is part {int(numbers[1])} of {total} of a model by its name, without"
            f" {_listed(lacking, 3)}; give all parts, the folder, or the index (*.safetensors.index.json). Rename the"
            " file if it is the whole model"
        )
