"""A model in several files, ``NAME-00001-of-00003.gguf`` and so on, each of a limited size.

The first part has all keys. Each part says which one it is by ``split.no``, ``split.count`` and
``split.tensors.count``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Iterable, Sequence

from ..._base.errors import InvalidArgumentError
from ..._base.files import can_write
from ..._base.terminal import Bar
from ...gguf import Writer

__all__ = ["Shards", "refuse_same", "size_of", "sizes_of_parts"]

_HEAD = 4096  # bytes that the head of a part needs beside its tensors, about
_ENTRY = 256  # bytes that the head needs for each tensor, at most
_MOST = 99_999  # parts: a name has five digits


def size_of(word: str) -> int:
    """A size such as 2G, 500M or 1000000 bytes, for ``type=`` of an argument."""
    found = re.fullmatch(r"([0-9]{1,15})([KMG]?)B?", word.upper())
    if found is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{word!r} is no size such as 2G or 500M")
    return int(found[1]) * {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}[found[2]]


def sizes_of_parts(sizes: Sequence[int], most: int, head: int) -> list[int]:
    """The number of tensors in each part, in order. A tensor that is larger than a part gets one of its own.

    head: bytes of the keys, in the first part
    """
    counts, filled = [0], head
    for size in sizes:
        if counts[-1] and filled + size + _ENTRY > most:
            counts.append(0)
            filled = _HEAD
        counts[-1] += 1
        filled += size + _ENTRY
    return counts


class Shards:
    """The writers of all parts. One part alone is a plain file. OSError if a file cannot be written.

    writer: has the keys, and no tensors yet
    sizes: bytes of each tensor
    inputs: files that must not be overwritten
    """

    def __init__(self, writer: Writer, sizes: Sequence[int], most: int | None, inputs: Iterable[str]) -> None:
        counts = [len(sizes)] if most is None else sizes_of_parts(sizes, most, writer.nbytes)
        if len(counts) > _MOST:
            raise InvalidArgumentError(f"--max-shard: {len(counts)} parts are more than {_MOST}; give a larger size")
        self._writers = [writer]
        self._of = [part for part, n in enumerate(counts) for _ in range(n)]
        if len(counts) == 1:
            can_write(writer.path)
            return
        stem = re.sub(r"\.gguf$", "", writer.path, flags=re.IGNORECASE)
        paths = [f"{stem}-{i:05d}-of-{len(counts):05d}.gguf" for i in range(1, len(counts) + 1)]
        for path in paths:
            refuse_same(path, inputs)
            can_write(path)
        writer.path = paths[0]
        self._writers += [Writer(path) for path in paths[1:]]
        for i, part in enumerate(self._writers):
            part.add("split.no", i, "u16").add("split.count", len(counts), "u16")
            part.add("split.tensors.count", len(sizes), "i32")

    def __len__(self) -> int:
        return len(self._writers)

    def of(self, tensor: int) -> Writer:
        """The writer of the part that has this tensor."""
        return self._writers[self._of[tensor]]

    @property
    def paths(self) -> list[str]:
        """The files, in order."""
        return [writer.path for writer in self._writers]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(writer.nbytes for writer in self._writers)

    def close(self) -> None:
        """Writes all parts, the first one last. If one fails, those before it are deleted."""
        done: list[str] = []
        try:
            for writer in reversed(self._writers):
                writer.close(Bar("writing"))
                done.append(writer.path)
        except BaseException:
            for path in done:
                with contextlib.suppress(OSError):
                    os.remove(path)
            raise


def refuse_same(output: str, inputs: Iterable[str | None]) -> None:
    """Refuses to overwrite an input under any name: a mistyped name would lose the original."""
    if output == "-":
        raise InvalidArgumentError(
            "the output '-' is no file; a GGUF file is not written to a pipe (./- is a file of that name)"
        )
    for path in inputs:
        if path is not None and os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output):
            raise InvalidArgumentError(f"the output {output} is the input {path}: give the output another name")
