"""``python -m ggml_backend gguf``: look at GGUF files, check them, quantize them, make them from safetensors files."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from .._data.quantize import dequantize
from .._errors import GgmlError, InvalidArgumentError
from .._files.safetensors import SafeTensors
from .._text.escape import line
from .._text.patterns import Patterns
from .._text.terminal import Bar, fail, print_json, reason
from ..dtypes import DType, as_dtype, dtypes
from ..gguf import GGUFFile, Writer, fallback_dtype
from ..gguf import open as open_gguf

__all__ = ["add_gguf_commands"]

_FLOATS = ("float32", "float16", "bfloat16")


def _plain(value: Any) -> Any:
    """A metadata value for JSON."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _short(value: Any) -> str:
    if isinstance(value, (list, np.ndarray)):
        head = ", ".join(repr(_plain(v)) for v in (value[:4].tolist() if isinstance(value, np.ndarray) else value[:4]))
        return f"[{head}{', ...' if len(value) > 4 else ''}] ({len(value)})"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}... ({len(value)} characters)"


def _count(n: int) -> str:
    return f"{n / 1e9:.2f} GB" if n >= 1e9 else f"{n / 1e6:.2f} MB" if n >= 1e5 else f"{n} bytes"


def _summary(file: GGUFFile) -> dict[str, Any]:
    by_type: dict[str, dict[str, int]] = {}
    for tensor in file.tensors.values():
        row = by_type.setdefault(tensor.dtype.name, {"tensors": 0, "elements": 0, "bytes": 0})
        row["tensors"] += 1
        row["elements"] += tensor.size
        row["bytes"] += tensor.nbytes
    return {
        "file": file.name, "version": file.version, "alignment": file.alignment, "parts": file.n_parts,
        "bytes": file.nbytes,
        "keys": len(file.metadata), "tensors": len(file.tensors), "types": by_type,
    }  # fmt: skip


def _info(options: argparse.Namespace) -> int:
    with open_gguf(options.file) as file:
        summary = _summary(file)
        if options.json:
            summary["metadata"] = {
                k: {"type": file.metadata.type(k), "value": _plain(v)} for k, v in file.metadata.items()
            }
            summary["tensor list"] = [
                {"name": t.name, "dtype": t.dtype.name, "shape": list(t.shape), "bytes": t.nbytes, "offset": t.offset}
                for t in file.tensors.values()
            ]
            print_json(summary)
            return 0
        sizes = f"{_count(file.nbytes)}, {len(file.metadata)} keys, {len(file.tensors)} tensors"
        print(f"{line(file.name)}: GGUF version {file.version}, {sizes}")
        for name, row in summary["types"].items():
            print(
                f"  {name:<10} {row['tensors']:>5} tensors {row['elements']:>14,} elements {_count(row['bytes']):>12}"
            )
        for key, value in file.metadata.items():
            print(f"{line(key)} ({file.metadata.type(key)}) = {_short(value)}")
    return 0


def _dump(options: argparse.Namespace) -> int:
    with open_gguf(options.file) as file:
        for name in _fitting(options.tensors, list(file.tensors), "PATTERN") if options.tensors else file.tensors:
            tensor = file.tensors[name]
            print(f"{line(tensor.name)} {tensor.dtype.name} {tensor.shape} {tensor.nbytes} bytes at {tensor.offset}")
            if options.values:
                values = (
                    tensor.dequantize() if tensor.dtype.is_quantized or tensor.dtype.name in _FLOATS else tensor.numpy()
                )
                print(np.array2string(values, threshold=options.values, edgeitems=3))
    return 0


def _fitting(patterns: list[str], names: list[str], what: str) -> list[str]:
    """The names that a pattern fits, in their order. Each pattern has to fit one."""
    known, chosen = Patterns(names), set[str]()
    for pattern in patterns:
        found = list(known.matching(pattern))
        if not found:
            raise InvalidArgumentError(f"{what} {pattern!r}: no tensor has such a name")
        chosen.update(found)
    return [name for name in names if name in chosen]


def _check(options: argparse.Namespace) -> int:
    """Opening checks the structure; then every number of every tensor is looked at."""
    bad = 0
    for path in options.files:
        faults = []
        try:
            with open_gguf(path) as file:
                dict(file.metadata)
                bar, done, total = Bar("checking"), 0, sum(t.nbytes for t in file.tensors.values())
                for tensor in file.tensors.values():
                    fault = _not_finite(tensor)
                    faults += [fault] if fault else []
                    done += tensor.nbytes
                    bar(done, total)
        except (GgmlError, OSError) as error:
            faults = [reason(error)]
        for fault in faults:
            fail(options.parser.prog, f"{path}: {fault}" if str(path) not in fault else fault)
        if not faults:
            print(f"{line(path)}: ok")
        bad += bool(faults)
    return 1 if bad else 0


def _not_finite(tensor: Any) -> str | None:
    if tensor.dtype.name == "float64":
        count = int((~np.isfinite(tensor.numpy())).sum())
    elif tensor.dtype.is_quantized or tensor.dtype.name in _FLOATS:
        rows = tensor.numpy().reshape(-1, tensor.numpy().shape[-1])
        step = max(1, (1 << 22) // tensor.shape[-1])
        count = sum(
            int((~np.isfinite(dequantize(rows[i : i + step], tensor.dtype))).sum()) for i in range(0, len(rows), step)
        )
    else:
        return None
    return f"tensor {tensor.name!r} has {count} values that are infinite or no numbers" if count else None


class _Plan:
    """Which format each tensor gets."""

    def __init__(self, options: argparse.Namespace, names: list[str]) -> None:
        self.dtype: DType | None = None if options.type is None else as_dtype(options.type)
        if self.dtype is not None and not self.dtype.is_quantized and self.dtype.name not in _FLOATS:
            raise InvalidArgumentError(f"{self.dtype.name} is not a format of floats")
        self.requantize: bool = options.requantize
        rules = [rule.rpartition("=") for rule in options.tensor_type]
        for pattern, _, name in rules:
            if not pattern:
                raise InvalidArgumentError(f"--tensor-type {name!r}: needs PATTERN=TYPE")
            as_dtype(name)
        self.keep = set(_fitting(options.keep, names, "--keep"))
        self.special: dict[str, str] = {}
        for pattern, _, wanted in rules:
            for name in _fitting([pattern], names, "--tensor-type"):
                self.special.setdefault(name, wanted)
        self.importance = None if options.imatrix is None else open_gguf(options.imatrix)

    def choose(self, name: str, shape: tuple[int, ...], stored: DType) -> DType:
        """Matrices of floats are converted; vectors (biases, norms), what is kept, and everything else stay."""
        if not shape or not (stored.is_quantized or stored.name in (*_FLOATS, "float64")):
            return stored
        if name in self.special:
            chosen = fallback_dtype(self.special[name], shape[-1])
        elif self.dtype is None or len(shape) < 2 or name in self.keep:
            return stored
        else:
            chosen = fallback_dtype(self.dtype, shape[-1])
        if stored.is_quantized and chosen.is_quantized and chosen != stored and not self.requantize:
            raise InvalidArgumentError(
                f"tensor {name!r} is {stored.name} already: as {chosen.name} it would have the errors of both. Quantize"
                " the original file, or give --requantize"
            )
        return chosen

    def weights(self, name: str, shape: tuple[int, ...]) -> Any:
        """Importance of the columns, from the sums of squares that an imatrix file holds; None if it has none."""
        sums = None if self.importance is None else self.importance.tensors.get(f"{name}.in_sum2")
        if sums is None:
            return None
        counts = self.importance.tensors.get(f"{name}.counts") if self.importance is not None else None
        n = 1.0 if counts is None else np.maximum(counts.dequantize().reshape(-1, 1), 1.0)
        weights = sums.dequantize().reshape(-1, shape[-1]) / n
        return weights[0] if len(weights) == 1 else weights


Source = tuple[str, tuple[int, ...], DType, Any]


def _write(options: argparse.Namespace, writer: Writer, sources: list[Source], before: int) -> int:
    plan = _Plan(options, [source[0] for source in sources])
    for name, shape, stored, data in sources:
        chosen = plan.choose(name, shape, stored)
        weights = plan.weights(name, shape) if chosen.is_quantized and chosen != stored else None
        if chosen == stored:
            writer.add_tensor(name, data, stored)
        else:
            widened = isinstance(data, np.ndarray) and stored.name == "bfloat16"  # one at a time, when it is written
            source = partial(dequantize, data, stored) if widened else data
            shaped = shape if widened else None
            writer.add_tensor(name, source, chosen, shape=shaped, importance=weights, on_invalid=options.on_invalid)
        if not options.quiet:
            note = (
                f" (rows of {shape[-1]})"
                if plan.dtype and chosen.is_quantized and chosen not in (plan.dtype, stored)
                else ""
            )
            print(f"{line(name)}: {stored.name}" + (f" -> {chosen.name}{note}" if chosen != stored else ""))
    after = writer.nbytes
    start = time.monotonic()
    writer.close(Bar("writing"))
    print(
        f"{line(options.output)}: {_count(after)}, was {_count(before)} ({after / max(before, 1):.3f}),"
        f" {time.monotonic() - start:.1f} s"
    )
    return 0


def _refuse_same(output: str, inputs: Iterable[str | None]) -> None:
    """A file that is read is not written over, by whatever name: somebody who mistypes a name would lose the
    original."""
    if output == "-":
        raise InvalidArgumentError(
            "the output '-' is no file; a GGUF file is not written to a pipe (./- is a file of that name)"
        )
    for path in inputs:
        if path is not None and os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output):
            raise InvalidArgumentError(f"the output {output} is the file that is read, {path}: give it another name")


def _quantize(options: argparse.Namespace) -> int:
    if options.type is None and not options.tensor_type:
        options.parser.error(
            "--type says which format the matrices get; without it, and without --tensor-type, nothing would change"
        )
    with open_gguf(options.input) as file:
        _refuse_same(options.output, [*(part.name for part in file._parts), options.imatrix])
        writer = Writer(options.output).copy_from(file, tensors=False)
        sources: list[Source] = [(t.name, t.shape, t.dtype, t) for t in file.tensors.values()]
        return _write(options, writer, sources, file.nbytes)


def _convert(options: argparse.Namespace) -> int:
    _refuse_same(options.output, [*options.inputs, options.imatrix])
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
    return _write(options, writer, sources, total)


def _conversion(parser: argparse.ArgumentParser) -> None:
    kinds = ", ".join(n for n, d in dtypes.items() if d.is_quantized or n in _FLOATS)
    parser.add_argument("--type", metavar="TYPE", help=f"format of matrices: {kinds}")
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
    parser.add_argument("--quiet", action="store_true", help="do not list the tensors")


def add_gguf_commands(commands: Any) -> None:
    """The subcommands of ``gguf``. Each leaves its function, which takes the options, in ``options.run``."""
    parser = commands.add_parser("gguf", help="look at, check, quantize and make GGUF files")
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")

    def action(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
        made.set_defaults(run=function, parser=made)
        return made

    info = action("info", _info, "keys, values and a summary of the tensors")
    info.add_argument("file")
    info.add_argument("--json", action="store_true", help="everything but the data, as JSON")
    dump = action("dump", _dump, "the tensors, and their values")
    dump.add_argument("file")
    dump.add_argument("tensors", nargs="*", metavar="PATTERN", help="only these")
    dump.add_argument(
        "--values", type=int, nargs="?", const=20, default=0, metavar="N", help="show values; all of those with up to N"
    )
    check = action("check", _check, "is the file valid, and are all its numbers finite?")
    check.add_argument("files", nargs="+", metavar="file")
    quantize = action("quantize", _quantize, "the same file with its matrices in another format")
    quantize.add_argument("input")
    quantize.add_argument("output")
    _conversion(quantize)
    convert = action("convert", _convert, "a GGUF file from safetensors files, with the names of their tensors")
    convert.add_argument("inputs", nargs="+", metavar="input")
    convert.add_argument("output")
    convert.add_argument("--arch", default="unknown", help="general.architecture")
    convert.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key; the value is JSON, or text"
    )
    _conversion(convert)
