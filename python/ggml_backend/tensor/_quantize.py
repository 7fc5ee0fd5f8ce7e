"""Conversion of rows of floats to blocks of a quantized format and back, on NumPy arrays, with threads.

The functions use the shapes of the PyPI package ``gguf``: float32 ``(..., n)`` on one side, uint8 ``(...,
bytes of a row)`` on the other. Blocks are independent, so the work can be split between any two blocks.
Importance weights require splits between rows.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any, Literal

import numpy as np

from .._base.errors import InvalidArgumentError, UnsupportedError, clear_error, expect_int, raise_last
from .._base.mapped import check_file, reading, watch_of
from .._ffi import ffi, lib
from ..dtypes import DType, DTypeLike, as_dtype, dtypes
from ._arrays import cast, to_array
from ._blocks import Blocks, as_rows, rows_of

__all__ = ["FLOATS", "OnInvalid", "dequantize", "fallback_dtype", "quantize"]

_TASK = 1 << 16  # elements; large enough to hide the cost of a task, small enough to share the work evenly

Array = np.ndarray[Any, Any]
OnInvalid = Literal["error", "clip", "nan"]
FLOATS = tuple(as_dtype(name) for name in ("float32", "float16", "bfloat16"))
"""Formats without blocks to which floats can be converted."""

_ON_INVALID = {"error": 0, "clip": 1, "nan": 2}  # enum ggml_on_invalid


def _run(work: Callable[[int, int], None], n: int, step: int, n_threads: int | None) -> None:
    """Runs ``work(begin, end)`` over [0, n) in steps. More than one step runs in threads."""
    threads = lib.ggml_cpu_default_n_threads() if n_threads is None else expect_int(n_threads, "n_threads")
    if threads < 1:
        raise InvalidArgumentError(f"n_threads must be at least 1, not {threads}")
    spans = [(i, min(i + step, n)) for i in range(0, n, step)]
    if threads == 1 or len(spans) < 2:
        for begin, end in spans:
            work(begin, end)
        return
    _spread(work, spans, min(threads, len(spans)))


def _spread(work: Callable[[int, int], None], spans: list[tuple[int, int]], threads: int) -> None:
    """Runs the work in threads. The caller takes part, so it completes even if no thread can start.

    An exception ends the work. The exception of the first part is raised, because parts start in order.
    """
    left = iter(spans)
    lock = Lock()
    failed: list[tuple[tuple[int, int], BaseException]] = []

    def run() -> None:
        while not failed:
            with lock:
                span = next(left, None)
            if span is None:
                return
            try:
                work(*span)
            except BaseException as error:
                failed.append((span, error))

    helpers = []
    try:
        for _ in range(threads - 1):
            helper = Thread(target=run, daemon=True)
            helper.start()
            helpers.append(helper)
    except RuntimeError:  # the system, or the exiting interpreter, starts no more threads
        pass
    try:
        run()
    except BaseException as error:  # Ctrl-C between two tasks
        failed.append(((-1, -1), error))
    for helper in helpers:
        helper.join()
    if failed:
        raise min(failed, key=lambda f: f[0])[1]


def _floats(array: Any, what: str) -> Array:
    """An array of floats with at least one dimension. Its dtype is unchanged."""
    source = np.asarray(to_array(array, what))
    if not isinstance(array, np.ndarray) and source.dtype.kind in "iub":
        source = source.astype(np.float32)
    if source.dtype.kind != "f" and source.dtype.name != "bfloat16":
        if isinstance(array, Blocks) and array.format is not None:
            given = f"blocks of {array.format.name}; gb.dequantize(blocks) makes floats of them"
        else:
            given = f"of {source.dtype}"
        raise InvalidArgumentError(f"{what}: takes an array of floats, not {given}")
    if source.ndim == 0:
        raise InvalidArgumentError(f"{what}: takes an array with rows, not a number")
    return source


def weights_of(importance: Any, shape: tuple[int, ...], element: DType, what: str) -> Array:
    """Importance weights for a format: shape ``(matrices, n)``, one vector of row length for each matrix."""
    try:
        weights = np.asarray(importance)
        if weights.dtype.kind in "SUMmc":
            raise TypeError
        weights = weights.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(f"{what}: importance must be numbers, not {importance!r:.60}") from None
    target = (*shape[:-2], shape[-1])
    try:
        spread = np.broadcast_to(weights, target)
    except ValueError:
        raise InvalidArgumentError(
            f"{what}: importance of shape {weights.shape} does not fit an array of shape {shape}: it needs one weight a"
            f" column, {target}"
        ) from None
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InvalidArgumentError(f"{what}: importance weights must be finite and not negative")
    return _narrow_ratios(np.ascontiguousarray(spread).reshape(-1, shape[-1]), element.block_size)


def _narrow_ratios(weights: Array, block: int) -> Array:
    """Importances as float32. Each block is scaled by a power of two to fit the range.

    Only ratios within a block matter.
    """
    blocks = weights.reshape(-1, block) if weights.shape[-1] % block == 0 else weights  # rows are checked later
    largest = blocks.max(axis=-1, keepdims=True, initial=0)
    narrow: Array = np.ldexp(blocks, -np.frexp(largest)[1]).astype(np.float32)
    return narrow.reshape(weights.shape)


class _Job:
    """The shared parameters of all parts of the work."""

    def __init__(
        self, element: DType, source: Array, on_invalid: str, what: str, n_threads: int | None, first_row: int
    ) -> None:
        if not isinstance(on_invalid, str) or on_invalid not in _ON_INVALID:
            raise InvalidArgumentError(f"{what}: on_invalid is 'error', 'clip' or 'nan', not {on_invalid!r}")
        self.element, self.source, self.what, self.n_threads = element, source, what, n_threads
        self.on_invalid = _ON_INVALID[on_invalid]
        self.first_row = first_row

    def floats(self, begin: int, part: Array) -> Array:
        if part.dtype == np.float32 and part.flags.c_contiguous:
            return part
        # float64 beyond the range of float32 is infinite, which C refuses in quantized formats
        floats = np.ascontiguousarray(cast(part, np.float32))
        if part.dtype.itemsize > 4 and not self.element.is_quantized and self.on_invalid != _ON_INVALID["nan"]:
            self.cut(begin, part, floats)
        return floats

    def cut(self, begin: int, part: Array, narrow: Array) -> None:
        """Finite numbers that became infinite: raises, or cuts them to the range of ``narrow``."""
        large = np.isinf(narrow) & np.isfinite(part)
        if large.any():
            if self.on_invalid == _ON_INVALID["error"]:
                raise self.refuse(begin + int(large.reshape(-1).argmax()))
            narrow[large] = np.copysign(np.finfo(narrow.dtype).max, narrow[large])

    def refuse(self, index: int) -> InvalidArgumentError:
        """The error for the element with this flat index."""
        place = np.unravel_index(index, self.source.shape)
        value = float(self.source[place])
        numbers = [int(i) for i in place]
        numbers[0] += self.first_row if len(numbers) > 1 else 0
        row = f"row {numbers[0]}, " if len(numbers) == 2 else f"row {tuple(numbers[:-1])}, " if len(numbers) > 2 else ""
        why = "is too large for" if np.isfinite(value) else "cannot be stored as"
        place_text = f"{row}column {numbers[-1]}"
        return InvalidArgumentError(
            f"{self.what}: {place_text}: {value:g} {why} {self.element.name}; on_invalid='clip' (--on-invalid clip)"
            " cuts numbers to its range, and nan to 0"
        )

    def convert(self, begin: int, part: Array, out: Array, n_rows: int, n_per_row: int, weights: Any) -> None:
        """Converts rows that begin at a flat index."""
        invalid = ffi.new("int64_t *")
        with reading(part, self.what):
            floats = self.floats(begin, part)
            clear_error()
            done = lib.ggml_quantize_rows(
                self.element.id, ffi.cast("float *", ffi.from_buffer(floats)), ffi.from_buffer(out), n_rows, n_per_row,
                weights,
                self.on_invalid, invalid,
            )  # fmt: skip
        if done != out.nbytes:
            if invalid[0] >= 0:
                clear_error()
                raise self.refuse(begin + invalid[0])
            raise_last(self.what)


def quantize(
    array: Any,
    dtype: DTypeLike,
    importance: Any = None,
    *,
    on_invalid: OnInvalid = "error",
    n_threads: int | None = None,
) -> Array:
    """Converts floats ``(..., n)`` to :class:`Blocks` of a quantized format.

    Blocks are a uint8 array that knows its format, of shape ``(..., n // block_size * bytes of a block)``.
    You can pass it to ``ctx.constant(blocks)``, ``ctx.from_numpy(blocks)``, ``tensor.set(blocks)``,
    ``writer.add_tensor(name, blocks)`` and :func:`dequantize`.

    dtype: a quantized format (``gb.dtypes.q4_0`` or ``"q4_0"``), or bfloat16, whose rows are also bytes. float32 and
        float16 give arrays of that dtype.
    importance: weight of each column in the choice of scales. float32 ``(n,)``, or one such vector for each
        matrix: ``(..., n)`` without the axis of rows. Some formats of 1 to 3 bits require it.
    on_invalid: how to treat a number that the format cannot hold: nan, an infinity, or a number too large for
        its scales. ``"error"`` raises with its row and column. ``"clip"`` replaces nan by 0 and other
        numbers by the largest number that any block of the format holds. ``"nan"`` makes the whole block
        nan, except in mxfp4 and nvfp4, which have no nan and are clipped. In float32, float16 and
        bfloat16 nan and infinities are valid. There only finite numbers that would become infinite are
        too large, and ``"nan"`` lets them become infinite.
    n_threads: default: as many as a CPU backend uses

    If half precision cannot hold the scale of a block because its values are too small, they become the
    nearest values that the format has. Their squared error is never larger than that of zeros.

    Raises :class:`InvalidArgumentError` (a ValueError) for rows that are not whole blocks, for numbers that
    the format cannot hold, and if a format needs importance weights. Raises :class:`UnsupportedError` for
    formats that cannot be written.
    """
    element = as_dtype(dtype, "quantize")
    return quantize_part(array, element, importance, on_invalid, n_threads, f"quantize to {element.name}")


def quantize_part(
    array: Any,
    element: DType,
    importance: Any,
    on_invalid: OnInvalid,
    n_threads: int | None,
    what: str,
    first_row: int = 0,
) -> Array:
    """:func:`quantize` for some rows of an array, from ``first_row`` on. ``what`` begins error messages."""
    source = _floats(array, what)
    job = _Job(element, source, on_invalid, what, n_threads, first_row)
    if element.name in ("float32", "float16"):
        return _narrow(job)
    if not element.is_quantized and element.name != "bfloat16":
        raise InvalidArgumentError(f"{what}: not a format of floats")
    return as_rows(_rows(job, importance), element)


def _rows(job: _Job, importance: Any) -> Array:
    """The bytes of the rows of a job."""
    source, element, what = job.source, job.element, job.what
    n = source.shape[-1]
    row = element.row_nbytes(n)
    out = np.empty((*source.shape[:-1], row), np.uint8)
    if out.size == 0:
        return out
    known = watch_of(source)
    weights = None if importance is None else weights_of(importance, source.shape, element, what)
    if weights is None:
        _quantize_blocks(job, out)
    else:
        _quantize_rows(job, weights, out)
    check_file(source, what)
    del known  # kept alive until here
    return out


def _narrow(job: _Job) -> Array:
    """Converts to float32 or float16."""
    source, target = job.source, job.element.numpy
    if source.dtype.itemsize <= target.itemsize and source.dtype.kind == "f":
        return source.astype(target, copy=False)
    with reading(source, job.what), np.errstate(over="ignore"):
        out = source.astype(target, copy=False)
    if job.on_invalid != _ON_INVALID["nan"] and out.dtype != source.dtype:
        job.cut(0, source, out)
    return out


def _quantize_blocks(job: _Job, out: Array) -> None:
    flat, to = job.source.reshape(-1), out.reshape(-1)
    size, nbytes = job.element.block_size, job.element.itemsize

    def work(begin: int, end: int) -> None:
        part = to[begin * nbytes : end * nbytes]
        job.convert(begin * size, flat[begin * size : end * size], part, 1, (end - begin) * size, ffi.NULL)

    _run(work, flat.size // size, max(1, _TASK // size), job.n_threads)


def _quantize_rows(job: _Job, weights: Array, out: Array) -> None:
    n = job.source.shape[-1]
    matrices, targets = job.source.reshape(len(weights), -1, n), out.reshape(len(weights), -1, out.shape[-1])
    size = matrices.shape[1] * n
    for index, (matrix, target, vector) in enumerate(zip(matrices, targets, weights, strict=True)):
        pointer = ffi.cast("float *", ffi.from_buffer(vector))

        def work(
            begin: int,
            end: int,
            at: int = index * size,
            matrix: Array = matrix,
            to: Array = target,
            pointer: Any = pointer,
        ) -> None:
            job.convert(at + begin * n, matrix[begin:end], to[begin:end], end - begin, n, pointer)

        _run(work, len(matrix), max(1, _TASK // n), job.n_threads)


def dequantize(blocks: Any, dtype: DTypeLike | None = None, *, n_threads: int | None = None) -> Array:
    """Converts blocks of a format to float32 ``(..., n)``.

    blocks: :class:`Blocks` from :func:`quantize`, or as an argument of functions of :func:`custom`; a
        :class:`Tensor` or a tensor of a GGUF file; or a uint8 array ``(..., bytes of a row)``, with its
        dtype. For float32, float16 and bfloat16 also an array of that dtype (bfloat16: of uint16 bits).
        Any bytes are valid blocks.
    dtype: the format. Required only for an array that does not know it.

    Raises :class:`InvalidArgumentError` if the format of the blocks differs from ``dtype``.
    """
    blocks, dtype = _known(blocks, dtype)
    element = as_dtype(dtype, "dequantize")
    what = f"dequantize {element.name}"
    try:
        source = np.asarray(blocks)
    except ValueError:
        raise InvalidArgumentError(
            f"{what}: takes the bytes of rows as an array of uint8, not lists of different lengths"
        ) from None
    if element.name == "bfloat16" and source.dtype.name == "bfloat16":
        source = source.view(np.uint16)
    if not lib.gbpy_can_dequantize(element.id):
        raise UnsupportedError(f"{what}: not a format of floats, or not implemented")
    if source.dtype not in (np.uint8, element.numpy) or source.ndim == 0:
        raise InvalidArgumentError(
            f"{what}: takes the bytes of rows as an array of uint8, not {source.dtype} of shape {source.shape}"
        )
    row = source.shape[-1] * source.itemsize
    if row % element.itemsize:
        raise InvalidArgumentError(f"{what}: rows of {row} bytes are not whole blocks of {element.itemsize}")
    size, nbytes = element.block_size, element.itemsize
    out = np.empty((*source.shape[:-1], row // nbytes * size), np.float32)
    if out.size == 0:
        return out
    known = watch_of(source)
    with reading(source, what):
        data = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
    to = out.reshape(-1)

    def work(begin: int, end: int) -> None:
        part = to[begin * size : end * size]
        lib.gbpy_dequantize(
            element.id,
            ffi.from_buffer(data[begin * nbytes : end * nbytes]),
            ffi.cast("float *", ffi.from_buffer(part)),
            part.size,
        )

    _run(work, to.size // size, max(1, 4 * _TASK // size), n_threads)
    check_file(data, what)
    del known
    return out


def _known(blocks: Any, dtype: DTypeLike | None) -> tuple[Any, DTypeLike]:
    """The data to dequantize, and its format."""
    own = getattr(blocks, "dtype", None)
    if isinstance(own, DType):  # a tensor
        if dtype is not None and as_dtype(dtype, "dequantize") != own:
            raise InvalidArgumentError(
                f"dequantize: the tensor is {own.name}, not {as_dtype(dtype).name}; leave dtype out"
            )
        return blocks.numpy(), own
    found = rows_of(blocks, dtype, "dequantize")
    if found is not None:
        return found[0], found[1]
    if dtype is None:
        raise TypeError(
            "dequantize: an array does not say which format its bytes have: give it, as in dequantize(array, 'q4_0')"
        )
    return blocks, dtype


_FALLBACK = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "q8_k": "q8_0"}


def fallback_dtype(dtype: DTypeLike, n: int) -> DType:
    """The format in which to store rows of ``n`` elements if ``dtype`` is requested.

    This is ``dtype`` if the rows are whole blocks of it. Otherwise it is the nearest format with blocks
    of 32 (Q4_K: Q5_0, Q5_K: Q5_1, Q6_K: Q8_0, smaller ones: IQ4_NL), or else float16.
    """
    element = as_dtype(dtype, "fallback_dtype")
    n = expect_int(n, "fallback_dtype: n")
    if n % element.block_size == 0:
        return element
    smaller = dtypes[_FALLBACK.get(element.name, "iq4_nl")]
    return smaller if n % smaller.block_size == 0 else dtypes["float16"]
