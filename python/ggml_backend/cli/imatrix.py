"""``imatrix``: measures with a text which columns of each matrix matter."""

from __future__ import annotations

import argparse
import sys

from .._base.errors import InvalidArgumentError
from .._base.terminal import Bar
from .._base.text import count, line
from ..models.importance import Importances
from ._models import add_model, load_text, text_of, whole_number

EXAMPLE = "model-f16.gguf text.txt --out imatrix.gguf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("text", metavar="TEXT", help="a file with typical text for the model; -: the standard input")
    parser.add_argument(
        "--out", required=True, metavar="FILE.gguf", help="file to write, for quantize --imatrix FILE.gguf"
    )
    parser.add_argument(
        "--chunk",
        type=whole_number(2),
        default=512,
        metavar="N",
        help="tokens that are read together (default: 512)",
    )


def run(options: argparse.Namespace) -> int:
    text = text_of(options.text)
    if not text.strip():
        raise InvalidArgumentError(f"{options.text} has no text")
    found = Importances()
    with load_text(options) as model:
        found.read(model, text, options.chunk, Bar("imatrix", "tokens", 1))
    found.save(options.out, options.text, options.chunk)
    print(f"{count(len(found.sums), 'matrix', 'matrices')} in {line(options.out)}", file=sys.stderr)
    return 0
