"""``gguf rename``: the same file with other names of tensors."""

from __future__ import annotations

import argparse

from ..._base.errors import InvalidArgumentError
from ..._base.terminal import Bar
from ..._base.text import line, nearest
from ...gguf import Writer
from ...gguf import open as open_gguf
from .common import byte_count
from .shards import refuse_same

EXAMPLE = "MODEL.gguf OTHER.gguf lm_head.weight=output.weight 'model.layers.*=blk.*'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help="the GGUF file to read")
    parser.add_argument("output", help="the GGUF file to write")
    parser.add_argument(
        "pairs", nargs="+", metavar="OLD=NEW", help="old and new name of a tensor; a * in both stands for the same text"
    )


def run(options: argparse.Namespace) -> int:
    with open_gguf(options.input) as file:
        refuse_same(options.output, [part.name for part in file._parts])
        names = _renamed(options.pairs, list(file.tensors))
        writer = Writer(options.output).copy_from(file, tensors=False)
        for name, tensor in file.tensors.items():
            writer.add_tensor(names[name], tensor)
        nbytes = writer.nbytes
        writer.close(Bar("writing"))
    n = sum(old != new for old, new in names.items())
    print(f"{line(options.output)}: {byte_count(nbytes)}, {n} of {len(names)} tensors renamed")
    return 0


def _renamed(pairs: list[str], names: list[str]) -> dict[str, str]:
    """The new name of each tensor. The first pair that fits decides."""
    found: dict[str, str] = {}
    for pair in pairs:
        old, sign, new = pair.partition("=")
        if not sign or not old or not new or old.count("*") != new.count("*") or old.count("*") > 1:
            raise InvalidArgumentError(f"{pair!r} is not OLD=NEW, with one * in both or in none")
        begin, _, end = old.partition("*")
        fitting = [n for n in names if n == old or ("*" in old and _fits(n, begin, end))]
        if not fitting:
            raise InvalidArgumentError(f"{pair!r}: no tensor has such a name{nearest(old, names)}")
        for name in fitting:
            middle = name[len(begin) : len(name) - len(end)]
            found.setdefault(name, new.replace("*", middle) if "*" in old else new)
    whole = {name: found.get(name, name) for name in names}
    by_new: dict[str, str] = {}
    for old, new in whole.items():
        if new in by_new:
            raise InvalidArgumentError(f"{old!r} and {by_new[new]!r} would both be {new!r}")
        by_new[new] = old
    return whole


def _fits(name: str, begin: str, end: str) -> bool:
    return len(name) >= len(begin) + len(end) and name.startswith(begin) and name.endswith(end)
