"""``gguf diff``: the differences between two files. The exit status is 1 if they differ."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._base.text import line
from ...gguf import GGUFFile, GGUFTensor
from ...gguf import open as open_gguf
from .common import has_floats

EXAMPLE = "MODEL.gguf OTHER.gguf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", help="a GGUF file")
    parser.add_argument("second", help="another GGUF file")


def run(options: argparse.Namespace) -> int:
    with open_gguf(options.first) as first, open_gguf(options.second) as second:
        found = [*_keys(first, second), *_tensors(first, second)]
    for text in found:
        print(line(text))
    return int(bool(found))


def _keys(first: GGUFFile, second: GGUFFile) -> Iterator[str]:
    a, b = first.metadata, second.metadata
    for key in [*a, *(k for k in b if k not in a)]:
        if key not in b:
            yield f"- {key} = {_short(a[key])}"
        elif key not in a:
            yield f"+ {key} = {_short(b[key])}"
        elif a.type(key) != b.type(key):
            yield f"! {key}: {a.type(key)} {_short(a[key])}, then {b.type(key)} {_short(b[key])}"
        elif not _equal(a[key], b[key]):
            yield f"! {key}: {_short(a[key])}, then {_short(b[key])}"


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    return bool(a == b or (a != a and b != b))


def _short(value: Any) -> str:
    if isinstance(value, (list, np.ndarray)):
        return f"{len(value)} values"
    return f"{value!r:.60}"


def _tensors(first: GGUFFile, second: GGUFFile) -> Iterator[str]:
    a, b = first.tensors, second.tensors
    for name in [*a, *(n for n in b if n not in a)]:
        if name not in b:
            yield f"- {name} {a[name].shape} {a[name].dtype}"
        elif name not in a:
            yield f"+ {name} {b[name].shape} {b[name].dtype}"
        else:
            text = _difference(a[name], b[name])
            if text:
                yield f"! {name}: {text}"


def _difference(a: GGUFTensor, b: GGUFTensor) -> str:
    """The differences between two tensors of one name; empty if they are equal."""
    if a.shape != b.shape:
        return f"shape {a.shape}, then {b.shape}"
    if a.dtype == b.dtype and np.array_equal(a.data, b.data):
        return ""
    kinds = f"{a.dtype}" if a.dtype == b.dtype else f"{a.dtype}, then {b.dtype}"
    if not (has_floats(a.dtype) and has_floats(b.dtype)) or not a.size:
        return f"{kinds}, other bytes"
    x, y = (t.dequantize().astype(np.float64) for t in (a, b))
    error, size = float(np.sqrt(np.mean((x - y) ** 2))), float(np.sqrt(np.mean(x**2)))
    return f"{kinds}, root mean square difference {error:.3g}" + (f" ({error / size:.2%})" if size else "")
