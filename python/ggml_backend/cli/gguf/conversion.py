"""Shared by ``gguf quantize`` and ``gguf convert``: the format of each tensor, and writing the new
file."""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..._base.errors import InvalidArgumentError
from ..._base.errors.messages import close_matches
from ..._base.text import Patterns, count, line
from ..._ffi import lib
from ...dtypes import _OTHERS, DType, as_dtype, dtypes
from ...gguf import GGUFFile, Writer, fallback_dtype
from ...tensor._quantize import FLOATS
from ...tensor._shapes import MAX_DIMS
from .common import byte_count, fitting, has_floats
from .described import Written, describe
from .importance import Importance
from .mixtures import MIXTURES, Mixture, is_kept
from .shards import Shards, size_of

__all__ = ["Source", "add_conversion_arguments", "write"]


_ACTIVATIONS = ("q8_1", "q8_k")
"""Formats to which products round activations. No product takes them as weights."""

_FORMATS = [n for n, d in dtypes.items() if (d.is_quantized and n not in _ACTIVATIONS) or d in FLOATS]


def add_conversion_arguments(parser: argparse.ArgumentParser, type_option: bool = True) -> None:
    kinds = ", ".join(_FORMATS)
    if type_option:
        mixtures = ", ".join(MIXTURES)
        parser.add_argument("--type", metavar="TYPE", help=f"format of matrices: {kinds}; or a mixture: {mixtures}")
    parser.add_argument(
        "--keep", action="append", default=[], metavar="PATTERN", help="leave these tensors as they are"
    )
    parser.add_argument(
        "--tensor-type", action="append", default=[], metavar="PATTERN=TYPE", help="another format for these tensors"
    )
    parser.add_argument("--requantize", action="store_true", help="also convert from one quantized format to another")
    parser.add_argument(
        "--imatrix", metavar="FILE", help="importance of columns: a GGUF file with NAME.in_sum2 and NAME.counts"
    )
    parser.add_argument(
        "--on-invalid", choices=("error", "clip", "nan"), default="error",
        help="numbers that the format cannot hold (nan, infinities, too large ones): an error, or clip them and take 0 "
         "for nan, or make "
        "their blocks nan (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-shard", type=size_of, metavar="SIZE", help="split the model into files of at most this size, as 2G"
    )
    parser.add_argument("--quiet", action="store_true", help="do not list the tensors")


def _format(name: str, more: Iterable[str] = ()) -> DType:
    """The format of weights with this name. The error names similar ones, or all. more: other names for the error"""
    try:
        dtype = as_dtype(name)
    except TypeError:
        known = [*_FORMATS, *more]
        other = _OTHERS.get(name.lower())
        hint = f"; {other}" if other else close_matches(name, known) or f"; known are {', '.join(known)}"
        kind = "format or mixture" if more else "format"
        raise InvalidArgumentError(f"there is no {kind} {name!r}{hint}") from None
    if dtype.name in _ACTIVATIONS:
        raise InvalidArgumentError(f"{dtype.name} is a format for activations, not for weights; use q8_0")
    if dtype.name not in _FORMATS:
        raise InvalidArgumentError(f"{dtype.name} is not a format of floats")
    return dtype


class Formats:
    """Chooses the format of each tensor."""

    def __init__(self, options: argparse.Namespace, names: list[str]) -> None:
        self.mixture: Mixture | None = MIXTURES.get(str(options.type).lower())
        self.names = names
        self.dtype: DType | None = None
        if options.type is not None:
            self.dtype = as_dtype(self.mixture.base) if self.mixture else _format(options.type, MIXTURES)
        self.requantize: bool = options.requantize
        rules = [rule.rpartition("=") for rule in options.tensor_type]
        for pattern, _, name in rules:
            if not pattern:
                raise InvalidArgumentError(f"--tensor-type {name!r}: needs PATTERN=TYPE")
            _format(name)
        self.keep: set[str] = set(fitting(options.keep, names, "--keep"))
        hidden = Patterns(names).hidden(pattern for pattern, _, _ in rules)
        if hidden is not None:
            raise InvalidArgumentError(
                f"--tensor-type {hidden[0]!r} decides nothing: {hidden[1]!r} comes first and matches"
                " all of its tensors; give the special pattern first"
            )
        self.special: dict[str, str] = {}
        for pattern, _, wanted in rules:
            for name in fitting([pattern], names, "--tensor-type"):
                self.special.setdefault(name, wanted)
        self.importance: Importance | None = None if options.imatrix is None else Importance(options.imatrix)
        self.fallbacks: dict[tuple[str, str], set[int]] = {}  # (format, format asked for): rows that do not fit
        self.reasons: Counter[str] = Counter()  # why a mixture chose another format than its base

    def choose(self, name: str, shape: tuple[int, ...], stored: DType) -> DType:
        """The new format of a tensor. Only matrices of floats change; vectors (biases, norms) and
        kept tensors stay."""
        if not shape or 0 in shape or not has_floats(stored):
            return stored
        stays = name in self.keep or not 2 <= len(shape) <= MAX_DIMS or (self.mixture is None and is_kept(name))
        if name not in self.special and (self.dtype is None or stays):
            return stored
        asked = self._asked(name)
        if asked is None:
            return stored
        chosen = fallback_dtype(asked, shape[-1])
        if stored.is_quantized and chosen.is_quantized and chosen != stored and not self.requantize:
            why = "" if chosen == asked else f", since rows of {shape[-1]} do not fit {asked.name}"
            raise InvalidArgumentError(
                f"tensor {name!r} is quantized already ({stored.name}). Converting it again (to {chosen.name}{why})"
                " loses precision twice. Quantize the original file, or give --requantize"
            )
        if chosen != asked:
            self.fallbacks.setdefault((chosen.name, asked.name), set()).add(shape[-1])
        return chosen

    def weights_of(self, name: str, shape: tuple[int, ...], stored: DType, chosen: DType) -> Any:
        """The importances of the columns of a tensor, or None."""
        if chosen == stored or not chosen.is_quantized:
            return None
        found = None if self.importance is None else self.importance.of(name, shape)
        if found is None and lib.ggml_quantize_requires_imatrix(chosen.id):
            if self.importance is None:
                hint = "give --imatrix FILE, which the command imatrix writes"
            else:
                hint = f"--imatrix {line(self.importance.path)} has none for it; --tensor-type gives it another format"
            raise InvalidArgumentError(f"tensor {name!r}: {chosen.name} needs importances of the columns: {hint}")
        return found

    def _asked(self, name: str) -> DType | None:
        """The format that was asked for, by pattern, by the mixture or for all. None: the mixture keeps the tensor."""
        if name in self.special:
            return as_dtype(self.special[name])
        if self.mixture is None:
            return self.dtype
        wanted, why = self.mixture.of(name, self.names)
        if why:
            self.reasons[why] += 1
        return None if wanted is None else as_dtype(wanted)

    def summary(self, tensors: list[Written]) -> str:
        """A line with the number of matrices of each format, and why some have another format than
        requested."""
        counts = Counter(chosen.name for shape, _, chosen in tensors if len(shape) > 1 and has_floats(chosen))
        parts = []
        for name, n in counts.most_common():
            why = [
                f"rows of {', '.join(map(str, sorted(rows)))} do not fit {asked}"
                for (chosen, asked), rows in self.fallbacks.items()
                if chosen == name
            ]
            parts.append(f"{n} {name}" + (f" ({'; '.join(why)})" if why else ""))
        text = count(counts.total(), "matrix", "matrices") + (f": {', '.join(parts)}" if parts else "")
        why = [f"{n} {reason}" for reason, n in self.reasons.items()]
        return text + (f"\nnot {self.dtype}: {'; '.join(why)}" if why and self.dtype else "")


Source = tuple[str, tuple[int, ...], DType, Any]


def write(
    options: argparse.Namespace,
    writer: Writer,
    sources: list[Source],
    before: int,
    inputs: Iterable[str],
    file: GGUFFile | None = None,
) -> int:
    """Writes the new file, or its parts. inputs: files that are read; file: the source of the keys, if that is a GGUF
    file"""
    plan = Formats(options, [source[0] for source in sources])
    tensors: list[Written] = [(shape, stored, plan.choose(name, shape, stored)) for name, shape, stored, _ in sources]
    weights = [plan.weights_of(source[0], *one) for source, one in zip(sources, tensors, strict=True)]
    shards = Shards(writer, [_nbytes(*one) for one in zip(sources, tensors, strict=True)], options.max_shard, inputs)
    for i, ((name, shape, stored, data), (_, _, chosen)) in enumerate(zip(sources, tensors, strict=True)):
        if chosen == stored:
            shards.of(i).add_tensor(name, data, stored)
        else:
            shards.of(i).add_tensor(name, data, chosen, importance=weights[i], on_invalid=options.on_invalid)
        if not options.quiet:
            note = (
                f" (rows of {shape[-1]})"
                if plan.dtype and chosen.is_quantized and chosen not in (plan.dtype, stored)
                else ""
            )
            print(f"{line(name)}: {stored.name}" + (f" -> {chosen.name}{note}" if chosen != stored else ""))
    print(plan.summary(tensors))
    describe(writer, tensors, file, None if plan.mixture is None else plan.mixture.file_type)
    if plan.importance is not None:
        missing = plan.importance.report()
        if missing is not None:
            print(missing)
        plan.importance.describe(writer)
    after, start = shards.nbytes, time.monotonic()
    shards.close()
    where = line(shards.paths[0]) + (f" and {len(shards) - 1} more parts" if len(shards) > 1 else "")
    print(
        f"{where}: {byte_count(after)}, was {byte_count(before)} ({after / max(before, 1):.3f}),"
        f" {time.monotonic() - start:.1f} s"
    )
    return 0


def _nbytes(source: Source, written: Written) -> int:
    """Bytes of a tensor in the new file."""
    (_, shape, _, data), (_, stored, chosen) = source, written
    if chosen == stored and hasattr(data, "nbytes"):
        return int(data.nbytes)
    return math.prod(shape[:-1]) * chosen.row_nbytes(shape[-1]) if shape else chosen.itemsize
