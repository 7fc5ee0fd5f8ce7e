"""``gguf set``: the same file with other keys."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..._base.errors import InvalidArgumentError
from ..._base.terminal import Bar
from ..._base.text import line, nearest
from ...gguf import Writer
from ...gguf import open as open_gguf
from .common import byte_count
from .shards import refuse_same

EXAMPLE = 'MODEL.gguf OTHER.gguf general.name="My model" tokenizer.ggml.add_bos_token=false'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help="the GGUF file to read")
    parser.add_argument("output", help="the GGUF file to write")
    parser.add_argument(
        "pairs", nargs="*", metavar="KEY=VALUE", help="a key and its new value, as JSON or text; a key keeps its type"
    )
    parser.add_argument("--remove", action="append", default=[], metavar="KEY", help="leave a key out")


def run(options: argparse.Namespace) -> int:
    if not options.pairs and not options.remove:
        options.parser.error("give KEY=VALUE, or --remove KEY")
    with open_gguf(options.input) as file:
        refuse_same(options.output, [part.name for part in file._parts])
        keys = list(file.metadata)
        for key in options.remove:
            if key not in file.metadata:
                raise InvalidArgumentError(f"--remove {key!r}: the file has no such key{nearest(key, keys)}")
        writer = Writer(options.output).copy_from(file, keys=[k for k in keys if k not in options.remove])
        for pair in options.pairs:
            key, sign, text = pair.partition("=")
            if not sign or not key:
                raise InvalidArgumentError(f"{pair!r} is not KEY=VALUE")
            kind = file.metadata.type(key) if key in file.metadata else None
            writer.add(key, _value(text, kind), kind)
        nbytes = writer.nbytes
        writer.close(Bar("writing"))
    print(f"{line(options.output)}: {byte_count(nbytes)}")
    return 0


def _value(text: str, kind: str | None) -> Any:
    """JSON, or the text itself."""
    if kind == "str":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
