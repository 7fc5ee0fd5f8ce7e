"""Rows of floats to blocks of a quantized format and back, on NumPy arrays, with several threads.

The functions have the shapes of those in the PyPI package ``gguf``: float32 ``(..., n)`` on one side, uint8 ``(..., bytes of a row)``
on the other. Blocks do not depend on each other, so the work is cut anywhere between them; only importance weights tie it to rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ._data import to_array
from ._errors import InvalidArgumentError, UnsupportedError, clear_error, raise_last
from ._ffi import ffi, lib
from .dtypes import DType, DTypeLike, as_dtype, dtypes

__all__ = ["dequantize", "fallback_dtype", "quantize"]

_TASK = 1 << 16  # elements: large enough to hide the cost of a task, small enough to share the work evenly

Array = np.ndarray[Any, Any]


def _run(work: Callable[[int, int], None], n: int, step: int, n_threads: int | None) -> None:
    """``work(begin, end)`` over [0, n) in steps, in threads when there is more than one step."""
    threads = lib.ggml_cpu_default_n_threads() if n_threads is None else operator.index(n_threads)
    if threads < 1:
        raise InvalidArgumentError(f"n_threads must be at least 1, not {threads}")
    spans = [(i, min(i + step, n)) for i in range(0, n, step)]
    if threads == 1 or len(spans) < 2:
        for begin, end in spans:
            work(begin, end)
        return
    with ThreadPoolExecutor(min(threads, len(spans))) as pool:
        for done in [pool.submit(work, *span) for span in spans]:
            done.result()


def _floats(array: Any, what: str) -> Array:
    """An array of floats with at least one dimension; the dtype is left alone."""
    source = np.asarray(to_array(array, what))
    if not isinstance(array, np.ndarray) and source.dtype.kind in "iub":
        source = source.astype(np.float32)
    if source.dtype.kind != "f" and source.dtype.name != "bfloat16":
        raise InvalidArgumentError(f"{what}: takes an array of floats, not of {source.dtype}")
    if source.ndim == 0:
        raise InvalidArgumentError(f"{what}: takes an array with rows, not a number")
    return source


def _weights(importance: Any, shape: tuple[int, ...], what: str) -> Array:
    """Importance weights, one vector of a row's length for each matrix: shape ``(matrices, n)``."""
    weights = np.asarray(importance, np.float32)
    target = (*shape[:-2], shape[-1])
    try:
        spread = np.broadcast_to(weights, target)
    except ValueError:
        raise InvalidArgumentError(
            f"{what}: importance of shape {weights.shape} does not fit an array of shape {shape}: it needs one weight a column, {target}"
        ) from None
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InvalidArgumentError(f"{what}: importance weights must be finite and not negative")
    return np.ascontiguousarray(spread).reshape(-1, shape[-1])


def quantize(array: Any, dtype: DTypeLike, importance: Any = None, *, n_threads: int | None = None) -> Array:
    """Floats ``(..., n)`` as blocks of a quantized format: uint8 ``(..., n // block_size * bytes of a block)``.

    dtype: a quantized format (``gb.q4_0`` or ``"q4_0"``) or bfloat16, whose rows come as bytes, too. float32 and float16 give arrays of
        that dtype.
    importance: how much each column counts when scales are chosen, float32 ``(n,)``, or one such vector a matrix, ``(..., n)`` without the
        axis of rows. Some formats of 1 to 3 bits do not work without.
    n_threads: default: as many as a CPU backend takes

    Raises :class:`InvalidArgumentError` (a ValueError) for rows that are not whole blocks, and when a format needs importance weights;
    :class:`UnsupportedError` for formats that cannot be written.
    """
    element = as_dtype(dtype)
    what = f"quantize to {element.name}"
    source = _floats(array, what)
    if element.name in ("float32", "float16"):
        return source.astype(element.numpy, copy=False)
    if not element.is_quantized and element.name != "bfloat16":
        raise InvalidArgumentError(f"{what}: not a format of floats")
    n = source.shape[-1]
    row = element.row_size(n)
    out = np.empty((*source.shape[:-1], row), np.uint8)
    if out.size == 0:
        return out
    weights = None if importance is None else _weights(importance, source.shape, what)
    if weights is None:
        _quantize_blocks(element, source, out, what, n_threads)
    else:
        _quantize_rows(element, source, weights, out, what, n_threads)
    return out


def _convert(element: DType, source: Array, out: Array, n_rows: int, n_per_row: int, weights: Any, what: str) -> None:
    with np.errstate(over="ignore"):  # float64 beyond the range of float32 is infinite
        floats = np.ascontiguousarray(source, np.float32)
    clear_error()
    done = lib.ggml_quantize_chunk(
        element.id, ffi.cast("float *", ffi.from_buffer(floats)), ffi.from_buffer(out), 0, n_rows, n_per_row, ffi.NULL, weights
    )
    if done != out.nbytes:
        raise_last(what)


def _quantize_blocks(element: DType, source: Array, out: Array, what: str, n_threads: int | None) -> None:
    flat, to = source.reshape(-1), out.reshape(-1)
    size, nbytes = element.block_size, element.itemsize

    def work(begin: int, end: int) -> None:
        part = to[begin * nbytes : end * nbytes]
        _convert(element, flat[begin * size : end * size], part, 1, (end - begin) * size, ffi.NULL, what)

    _run(work, flat.size // size, max(1, _TASK // size), n_threads)


def _quantize_rows(element: DType, source: Array, weights: Array, out: Array, what: str, n_threads: int | None) -> None:
    n = source.shape[-1]
    matrices, targets = source.reshape(len(weights), -1, n), out.reshape(len(weights), -1, out.shape[-1])
    for matrix, target, vector in zip(matrices, targets, weights, strict=True):
        pointer = ffi.cast("float *", ffi.from_buffer(vector))

        def work(begin: int, end: int, matrix: Array = matrix, target: Array = target, pointer: Any = pointer) -> None:
            _convert(element, matrix[begin:end], target[begin:end], end - begin, n, pointer, what)

        _run(work, len(matrix), max(1, _TASK // n), n_threads)


def dequantize(blocks: Any, dtype: DTypeLike, *, n_threads: int | None = None) -> Array:
    """Blocks of a format, uint8 ``(..., bytes of a row)``, as float32 ``(..., n)``.

    For float32, float16 and bfloat16 also takes arrays of that dtype (bfloat16: of uint16 bits). Any bytes are valid blocks.
    """
    element = as_dtype(dtype)
    what = f"dequantize {element.name}"
    source = np.asarray(blocks)
    if element.name == "bfloat16" and source.dtype.name == "bfloat16":
        source = source.view(np.uint16)
    if not lib.gbpy_can_dequantize(element.id):
        raise UnsupportedError(f"{what}: not a format of floats, or not implemented")
    if source.dtype not in (np.uint8, element.numpy) or source.ndim == 0:
        raise InvalidArgumentError(f"{what}: takes the bytes of rows as an array of uint8, not {source.dtype} of shape {source.shape}")
    row = source.shape[-1] * source.itemsize
    if row % element.itemsize:
        raise InvalidArgumentError(f"{what}: rows of {row} bytes are not whole blocks of {element.itemsize}")
    size, nbytes = element.block_size, element.itemsize
    out = np.empty((*source.shape[:-1], row // nbytes * size), np.float32)
    if out.size == 0:
        return out
    data, to = np.ascontiguousarray(source).reshape(-1).view(np.uint8), out.reshape(-1)

    def work(begin: int, end: int) -> None:
        part = to[begin * size : end * size]
        lib.gbpy_dequantize(
            element.id, ffi.from_buffer(data[begin * nbytes : end * nbytes]), ffi.cast("float *", ffi.from_buffer(part)), part.size
        )

    _run(work, to.size // size, max(1, 4 * _TASK // size), n_threads)
    return out


_FALLBACK = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "q8_k": "q8_0"}


def fallback_dtype(dtype: DTypeLike, n: int) -> DType:
    """The format to store rows of ``n`` elements in when ``dtype`` is asked for: ``dtype`` if they are whole blocks of it, else the nearest
    format with blocks of 32 (Q4_K: Q5_0, Q5_K: Q5_1, Q6_K: Q8_0, smaller ones: IQ4_NL), else float16."""
    element = as_dtype(dtype)
    if n % element.block_size == 0:
        return element
    smaller = dtypes[_FALLBACK.get(element.name, "iq4_nl")]
    return smaller if n % smaller.block_size == 0 else dtypes["float16"]
