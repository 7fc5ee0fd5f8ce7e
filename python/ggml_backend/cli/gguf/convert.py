"""``gguf convert``: a GGUF file from safetensors files, with the names of their tensors."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..._base.errors import UnsupportedError
from ..._base.text import Patterns, count, first_of, line
from ...gguf import Writer
from ...tensor._shapes import MAX_DIMS
from .checkpoint import open_models
from .common import byte_count, fitting
from .conversion import Source, add_conversion_arguments, write
from .elements import NoType, Values, values_of
from .safetensors import SafeTensors, quoted
from .shards import refuse_same

_LISTED = 100  # tensors that an error names
_SOME = 6  # tensors that a line of the output names

EXAMPLE = "MODEL.safetensors MODEL.gguf --type f16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="+", metavar="input",
        help="the safetensors files to read; for a model in several files, their index (model.safetensors.index.json)"
        " or their folder",
    )  # fmt: skip
    parser.add_argument("output", help="the GGUF file to write")
    parser.add_argument(
        "--arch", default="unknown", help="value of the key general.architecture (default: %(default)s)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="adds a key; the value is JSON or text",
    )
    parser.add_argument("--skip", action="append", default=[], metavar="PATTERN", help="leave these tensors out")
    add_conversion_arguments(parser)


def run(options: argparse.Namespace) -> int:
    refuse_same(options.output, [*options.inputs, options.imatrix])
    files = open_models(options.inputs)
    paths = [file.path for file in files]
    refuse_same(options.output, paths)
    of = {name: file for file in files for name in file.tensors}
    skipped = fitting(options.skip, list(of), "--skip")
    values = _values(of, set(skipped))
    writer = Writer(options.output)
    for key, value in _keys(options, files).items():
        writer.add(key, value)
    for note in _notes(of, values):
        print(line(note))
    sources: list[Source] = [(name, v.shape, v.dtype, v) for name, v in values.items()]
    status = write(options, writer, sources, sum(of[name].bytes_of(name).nbytes for name in values), paths)
    if skipped:
        total = byte_count(sum(of[name].bytes_of(name).nbytes for name in skipped))
        print(line(f"left out by --skip: {len(skipped)} of {len(of)} tensors, {total}: {first_of(skipped, _SOME)}"))
    return status


def _keys(options: argparse.Namespace, files: Iterable[SafeTensors]) -> dict[str, Any]:
    """The keys of the GGUF file. Later ones replace earlier ones."""
    keys: dict[str, Any] = {"general.architecture": options.arch}
    for file in files:
        keys.update((f"safetensors.{key}", text) for key, text in file.metadata.items())
    for pair in options.set:
        key, _, text = pair.partition("=")
        try:
            keys[key] = json.loads(text)
        except (ValueError, RecursionError):
            keys[key] = text
    return keys


def _values(of: Mapping[str, SafeTensors], skipped: set[str]) -> dict[str, Values]:
    """All tensors but the skipped ones. UnsupportedError names all that a GGUF file cannot hold."""
    found: dict[str, Values] = {}
    refused: dict[str, str] = {}
    for name, file in of.items():
        if name not in skipped:
            stored = file.tensors[name]
            try:
                found[name] = values_of(
                    stored.kind, stored.shape, file.bytes_of(name), f"{file.path}: tensor {quoted(name)}"
                )
            except NoType as reason:
                refused[name] = str(reason)
    if refused:
        paths = list(dict.fromkeys(of[name].path for name in refused))
        listed = first_of((f"{quoted(name)} ({reason})" for name, reason in refused.items()), _LISTED)
        patterns = " ".join(f"--skip {shlex.quote(pattern)}" for pattern in _patterns(refused, found))
        one = len(refused) == 1
        raise UnsupportedError(
            f"{paths[0]}: a GGUF file cannot hold {'a tensor' if one else f'{len(refused)} tensors'}: {listed}."
            f" {patterns} leaves {'it' if one else 'them'} out"
        )
    return found


def _patterns(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """Patterns that match these names and none of the others. One pattern covers all layers where
    that is possible."""
    names, kept = list(names), Patterns(others)
    found: dict[str, None] = {}
    alike = Counter(_of_any_layer(name) for name in names)
    for name in names:
        pattern = _of_any_layer(name)
        together = alike[pattern] > 1 and not re.search(r"[?\[\]]", pattern) and not kept.fitting(pattern)
        found[pattern if together else name] = None
    return list(found)


def _of_any_layer(name: str) -> str:
    return re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", name)


def _notes(of: Mapping[str, SafeTensors], values: Mapping[str, Values]) -> list[str]:
    """Lines about tensors whose dtype or shape differs from the safetensors file."""
    kinds = Counter((of[name].tensors[name].kind, v.dtype.name) for name, v in values.items() if v.widened)
    notes = [
        f"{kind} is stored as {dtype}, with the same values: {count(n, 'tensor')}" for (kind, dtype), n in kinds.items()
    ]
    folded = [f"{name} {of[name].tensors[name].shape} -> {v.shape}" for name, v in values.items() if v.folded]
    if folded:
        notes.append(f"more than {MAX_DIMS} axes, the first ones became one: {first_of(folded, _SOME)}")
    scales = {
        name.removesuffix("_inv").removesuffix("_scale") for name in of if name.endswith(("_scale", "_scale_inv"))
    }
    if scaled := [name for name, v in values.items() if v.widened and name in scales]:
        notes.append(f"weights are not multiplied by the scales beside them: {first_of(scaled, _SOME)}")
    return notes
