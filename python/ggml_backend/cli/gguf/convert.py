"""``gguf convert``: a GGUF file from safetensors files, with the names of their tensors."""

from __future__ import annotations

import argparse
import json

from ..._errors import InvalidArgumentError
from ...gguf import Writer
from .conversion import Source, add_conversion_arguments, refuse_same, write
from .safetensors import SafeTensors

EXAMPLE = "MODEL.safetensors MODEL.gguf --type f16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", nargs="+", metavar="input", help="the safetensors files to read")
    parser.add_argument("output", help="the GGUF file to write")
    parser.add_argument(
        "--arch", default="unknown", help="what the key general.architecture says (default: %(default)s)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another key of the file; the value is JSON, or text",
    )
    add_conversion_arguments(parser)


def run(options: argparse.Namespace) -> int:
    refuse_same(options.output, [*options.inputs, options.imatrix])
    writer = Writer(options.output)
    writer.add("general.architecture", options.arch)
    sources: list[Source] = []
    total = 0
    for path in options.inputs:
        file = SafeTensors(path)
        for key, text in file.metadata.items():
            writer.add(f"safetensors.{key}", text)
        for name in file:
            data, element, kind = file.get(name)
            if element is None:
                raise InvalidArgumentError(f"{path}: tensor {name!r}: GGUF has no type for {kind}")
            total += data.nbytes
            sources.append((name, data.shape, element, data))
    for pair in options.set:
        key, _, text = pair.partition("=")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        writer.add(key, value)
    return write(options, writer, sources, total)
