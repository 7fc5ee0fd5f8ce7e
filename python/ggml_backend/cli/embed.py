"""``embed``: a vector for each line of a text file."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .._base.errors import InvalidArgumentError
from .._base.files import write_bytes
from .._base.terminal import Bar, say
from .._base.text import count, line
from ._models import add_model, load_embedding, text_of, whole_number
from .program import need_output, plain_warnings

EXAMPLE = "all-MiniLM-L6-v2.gguf sentences.txt --out vectors.npy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("texts", metavar="TEXTS", help="a file with one text in each line; -: the standard input")
    parser.add_argument("--out", metavar="FILE.npy", help="write the vectors to a file: float32 (lines, dimensions)")
    parser.add_argument(
        "--batch-size",
        type=whole_number(1, 4096),
        default=32,
        metavar="N",
        help="texts that are computed together (default: 32)",
    )
    parser.add_argument(
        "--pooling", choices=("mean", "cls", "last"), help="how tokens become one vector (default: as the model says)"
    )


def run(options: argparse.Namespace) -> int:
    if not options.out:
        need_output()
    texts = [text for text in text_of(options.texts).splitlines() if text.strip()]
    if not texts:
        raise InvalidArgumentError(f"{options.texts} has no text")
    bar = Bar("embed", "texts", 1)

    def progress(batches: Iterable[range]) -> Iterator[range]:
        done = 0
        for batch in batches:
            yield batch
            done += len(batch)
            bar(done, len(texts))

    with load_embedding(options) as model:
        if options.pooling:
            model.pooling = options.pooling
        with plain_warnings(options.parser.prog):
            vectors = model.embed(texts, options.batch_size, progress=progress)
    if options.out:
        _save(options.out, vectors)
        print(f"{count(len(texts), 'vector')} of {vectors.shape[1]} dimensions in {line(options.out)}", file=sys.stderr)
    else:
        _compare(texts, vectors)
    return 0


def _compare(texts: list[str], vectors: np.ndarray[Any, Any]) -> None:
    """The cosine similarity of each text to the first ones, as a table."""
    most = 8
    scores = vectors @ vectors[:most].T
    say("cosine similarity to the texts " + ", ".join(str(i + 1) for i in range(min(most, len(texts)))))
    for i, (text, row) in enumerate(zip(texts, scores, strict=True)):
        say(f"{i + 1:4}  {' '.join(f'{score:5.2f}' for score in row)}  {line(text, 60)}")


def _save(path: str, array: np.ndarray[Any, Any]) -> None:
    data = io.BytesIO()
    np.save(data, array)
    write_bytes(path, data.getvalue())
