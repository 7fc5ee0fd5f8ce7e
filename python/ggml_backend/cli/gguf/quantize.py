"""``gguf quantize``: writes the same file with its matrices in another format."""

from __future__ import annotations

import argparse

from ...gguf import Writer
from ...gguf import open as open_gguf
from .conversion import Source, add_conversion_arguments, write
from .described import copied_keys
from .shards import refuse_same

EXAMPLE = "MODEL.gguf SMALLER.gguf --type q4_k"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help="the GGUF file to read")
    parser.add_argument("output", help="the GGUF file to write")
    add_conversion_arguments(parser)


def run(options: argparse.Namespace) -> int:
    if options.type is None and not options.tensor_type:
        options.parser.error("give --type or --tensor-type: without a new format nothing would change")
    with open_gguf(options.input) as file:
        inputs = [*(part.name for part in file._parts), *filter(None, (options.imatrix,))]
        refuse_same(options.output, inputs)
        writer = Writer(options.output).copy_from(file, keys=copied_keys(file), tensors=False)
        sources: list[Source] = [(t.name, t.shape, t.dtype, t) for t in file.tensors.values()]
        return write(options, writer, sources, file.nbytes, inputs, file)
