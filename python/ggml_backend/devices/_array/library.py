"""The interface to an array library: memory, dtypes, functions that write into a given array.

Operators (in the other files of this folder) call a :class:`Library`, and functions of the array
API in its ``xp``. A step of a plan is a function without arguments. It is often the library's own
function with bound arguments, so that a run costs little more than the library itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...dtypes import DType, dtypes
from .._nodes import Node, numpy_view, read_bytes, write_bytes
from .._program import Call
from .formats import Unpacking

Step = Callable[[], Any]
Function = Callable[..., Any]
"""A function of arrays, with ``out=``: an array for the result, or None."""

F32, F16, BF16 = dtypes["float32"], dtypes["float16"], dtypes["bfloat16"]
FLOATS = (F32, F16, BF16)


class Library:
    """An array library on one of its devices.

    functions: elementwise functions of float32 arrays, by name of the operator. Each writes ``out``
        last, element by element from the same positions of its sources, so ``out`` may be one of
        the sources
    has_queue: True if it computes asynchronously. Then it has ``submit``, ``synchronize`` and, if
        it ``has_events``, ``event``
    stream: the stream in which it computes, if it has streams
    """

    name: str
    device: str
    xp: Any
    functions: Mapping[str, Function]
    host: bool = True
    has_queue: bool = False
    has_events: bool = False
    can_fuse: bool = False
    stream: Any = None
    double: Any  #: the dtype float64, or the widest float that the device has

    # ------------------------------------------------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> Any:
        """Allocates memory of the library."""
        raise NotImplementedError

    def view(self, memory: Any, offset: int, node: Node, writable: bool) -> Any:
        """The array of a tensor in memory from ``allocate``."""
        raise NotImplementedError

    def write(self, memory: Any, offset: int, data: memoryview) -> None:
        raise NotImplementedError

    def read(self, memory: Any, offset: int, data: memoryview) -> None:
        raise NotImplementedError

    def fill(self, memory: Any, value: int) -> None:
        raise NotImplementedError

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> bool:
        return False

    def adopt(self, array: Any, dtype: DType) -> Any:
        """A NumPy array in host memory as an array of the library, without a copy."""
        return array

    # ------------------------------------------------------------------------------------------------------- arrays

    def empty(self, shape: Sequence[int], dtype: DType = F32) -> Any:
        raise NotImplementedError

    def constant(self, array: Any) -> Any:
        """A copy of a NumPy array on the library's device."""
        raise NotImplementedError

    def place(self, array: Any) -> tuple[Any, ...]:
        """A key that is equal for arrays of the same elements of the same memory."""
        raise NotImplementedError

    def strides(self, array: Any) -> tuple[int, ...]:
        """Strides in elements."""
        raise NotImplementedError

    def strided(self, array: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """A view from the first element of ``array`` on. strides: in elements"""
        raise NotImplementedError

    def contiguous(self, array: Any) -> Any:
        """The array if it is contiguous, else a contiguous copy."""
        raise NotImplementedError

    def reshaped(self, array: Any, shape: Sequence[int]) -> Any:
        """A view of another shape; None if that needs a copy."""
        raise NotImplementedError

    def reader(self, array: Any, dtype: DType) -> Step | None:
        """A step that returns the floats of an array as float32; None if they are float32."""
        raise NotImplementedError

    def writer(self, out: Any, dtype: DType) -> Callable[[Any], Any] | None:
        """A function that stores float32 into an array of another float dtype; None if it is
        float32."""
        raise NotImplementedError

    def assign(self, out: Any, source: Any) -> Step:
        """A step that copies an array into another of the same shape and dtype."""
        raise NotImplementedError

    def assign_from(self, out: Any, source: Step) -> Step:
        """A step that copies the result of a function."""
        raise NotImplementedError

    def clear(self, out: Any) -> Step:
        """A step that stores zeros."""
        raise NotImplementedError

    def copy_of(self, array: Any) -> Any:
        raise NotImplementedError

    def unpacker(self, rows: Any, dtype: DType) -> Step:
        """A step that returns the bytes of quantized rows as float32."""
        return partial(Unpacking(self, dtype), rows)

    # ---------------------------------------------------------------------------------------------------- functions

    def product(self, x: Any, w: Any, out: Any) -> Step:
        """``out = x @ w``: float32 matrices, or stacks of matrices."""
        raise NotImplementedError

    def take(self, table: Any, ids: Any, out: Any) -> Step:
        """``out = table[ids]`` along the first axis. IndexError for an index out of range."""
        raise NotImplementedError

    def put(self, table: Any, ids: Any, rows: Any) -> Step:
        """``table[ids] = rows`` along the first axis. IndexError for an index out of range."""
        raise NotImplementedError

    def check_ids(self, ids: Any, n: int) -> Step:
        """A step that raises IndexError for an index outside ``range(n)``, at once or in
        ``synchronize``."""
        raise NotImplementedError

    def where(self, mask: Any, value: float, x: Any, out: Any) -> Any:
        """``value`` where the mask is true, else ``x``."""
        raise NotImplementedError

    def turns(self, positions: Any, frequencies: Any, magnitude: float, factors: Any = None) -> Step:
        """A step that returns cosines and sines of the matrix product of positions and frequencies,
        times a magnitude: float32 ``(tokens, 1, pairs)``.

        positions: (tokens, streams); frequencies: float64 (streams, pairs), of NumPy
        factors: float32 (pairs,), by which frequencies are divided
        """
        raise NotImplementedError

    def rotate(self, x: Any, turns: tuple[Any, Any], first: int, size: int, halves: bool, out: Any) -> Any:
        """Rotates pairs among ``size`` elements of each row, from ``first`` on. halves: pairs of the
        two halves, else of neighbours. Never in place."""
        raise NotImplementedError

    def sum_rows(self, x: Any, times: float, out: Any) -> Any:
        """``times`` the sum of each row, added up in double, as a row of one element."""
        raise NotImplementedError

    def soft_max(self, x: Any, out: Any = None) -> Any:
        """The softmax of each row. A row of -inf gives zeros."""
        raise NotImplementedError

    def norm(self, x: Any, eps: float, centred: bool, out: Any) -> Any:
        """NORM of each row, or without ``centred`` RMS_NORM."""
        raise NotImplementedError

    def length(self, x: Any) -> Any:
        """The Euclidean length of each row, added up in double, as a row of one element."""
        raise NotImplementedError

    def solve_lower(self, a: Any, b: Any) -> Any:
        """``a x = b`` of stacks of matrices by forward substitution. Only the lower triangle of ``a``
        is read."""
        xp = self.xp
        x = xp.zeros_like(b)
        for i in range(b.shape[-2]):
            known = xp.matmul(a[..., i : i + 1, :i], x[..., :i, :])
            x[..., i : i + 1, :] = (b[..., i : i + 1, :] - known) / a[..., i : i + 1, i : i + 1]
        return x

    def convolve(
        self, x: Any, w: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
    ) -> Any:
        """The cross-correlation of ``x (n, channels, ...)`` with ``w (kernels, channels / groups, ...)``;
        None if the library has none."""
        return None

    # --------------------------------------------------------------------- fused operators, for libraries that can_fuse

    def span(self, array: Any) -> tuple[int, int]:
        """The byte range of an array. The ranges of arrays that share memory overlap."""
        raise NotImplementedError

    def linear(self, x: Any, w: Any, bias: Any, out: Any) -> Step:
        """``out = x @ w.T + bias`` of matrices."""
        raise NotImplementedError

    def layer_norm(self, x: Any, gain: Any, bias: Any, eps: float, out: Any) -> Step:
        """NORM of each row, times ``gain``, plus ``bias``. Reads all arrays before it writes
        ``out``."""
        raise NotImplementedError

    def attend(self, q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
        """``softmax(scale q k^T + mask) v`` of stacks of matrices ``(.., heads, n, size)``. Consecutive
        heads of ``q`` may share one of ``k`` and ``v``. mask: may be None"""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------------- programs

    def running(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which programs are made and run."""
        return contextlib.nullcontext()

    def program(self, run: Step, before: Sequence[Step]) -> Step:
        """The program of a plan. run: takes the steps in order; before: steps that each run takes
        first"""
        running = self.running

        def program() -> None:
            with running():
                for step in before:
                    step()
                run()

        return program

    def compiled(self, calls: Sequence[Call], step: Callable[[Call], Step]) -> Step | None:
        """A program that the library compiles from all calls of a plan; None if that is disabled or
        impossible."""
        return None

    def submit(self, work: Callable[[], None]) -> None:
        work()

    def synchronize(self) -> None:
        """Waits for submitted work, and raises its deferred errors."""

    def event(self) -> Mark:
        """A mark in the queue, as ``Device.submit`` says."""
        raise NotImplementedError

    def shares_events(self, other: Library) -> bool:
        """True if the stream of another device can wait for an event of this one."""
        return type(other) is type(self) and other.stream is not None


class Mark:
    """A mark in the stream of a device. event: an event of the library"""

    def __init__(self, library: Library, event: Any) -> None:
        self._library = library
        self._event = event

    def record(self) -> None:
        self._event.record(self._library.stream)

    def synchronize(self) -> None:
        self._event.synchronize()

    def wait(self, device: Any) -> None:
        other = device.library
        if self._library.shares_events(other):
            other.stream.wait_event(self._event)
        else:
            self._event.synchronize()


def pairs(first: int, size: int, halves: bool) -> tuple[slice, slice]:
    """The first and the second elements of rotated pairs."""
    middle, end = first + size // 2, first + size
    if halves:
        return slice(first, middle), slice(middle, end)
    return slice(first, end, 2), slice(first + 1, end, 2)


# ------------------------------------------------------------------------------------------------------- NumPy and CuPy


class NumPyLike(Library):
    """NumPy, and CuPy, which has the same functions. np: the module"""

    def __init__(self, np: Any, xp: Any) -> None:
        self.np = np
        self.xp = xp
        self.double = np.float64
        self.functions = _functions(np)

    def view(self, memory: Any, offset: int, node: Node, writable: bool) -> Any:
        return numpy_view(memory, offset, node, writable)

    def empty(self, shape: Sequence[int], dtype: DType = F32) -> Any:
        return self.np.empty(tuple(shape), dtype.numpy)

    def constant(self, array: Any) -> Any:
        return self.np.asarray(array)

    def place(self, array: Any) -> tuple[Any, ...]:
        return (self.address(array), array.shape, array.strides, array.dtype)

    @staticmethod
    def address(array: Any) -> int:
        return int(array.__array_interface__["data"][0])

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(s // array.itemsize for s in array.strides)

    def strided(self, array: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
        return self.np.lib.stride_tricks.as_strided(array, tuple(shape), tuple(s * array.itemsize for s in strides))

    def contiguous(self, array: Any) -> Any:
        return self.np.ascontiguousarray(array)

    def reshaped(self, array: Any, shape: Sequence[int]) -> Any:
        found = array.reshape(tuple(shape))
        return found if self.np.may_share_memory(found, array) else None

    def reader(self, array: Any, dtype: DType) -> Step | None:
        if dtype == F32:
            return None
        if dtype == F16:
            return partial(array.astype, self.np.float32)
        np = self.np

        def widened() -> Any:
            return (array.astype(np.uint32) << 16).view(np.float32)

        return widened

    def writer(self, out: Any, dtype: DType) -> Callable[[Any], Any] | None:
        if dtype == F32:
            return None
        np = self.np
        if dtype == F16:
            return lambda value: np.copyto(out, value, casting="same_kind")

        def narrow(value: Any) -> None:
            bits = np.ascontiguousarray(value, np.float32).view(np.uint32)
            # round to nearest, ties to even; NaN stays NaN
            rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
            np.copyto(out, np.where(np.isnan(value), (bits >> 16) | 0x40, rounded), casting="unsafe")

        return narrow

    def assign(self, out: Any, source: Any) -> Step:
        return partial(self.np.copyto, out, source)

    def assign_from(self, out: Any, source: Step) -> Step:
        copyto = self.np.copyto
        return lambda: copyto(out, source(), casting="same_kind")

    def clear(self, out: Any) -> Step:
        return partial(self.np.copyto, out, 0)

    def copy_of(self, array: Any) -> Any:
        return array.copy()

    def product(self, x: Any, w: Any, out: Any) -> Step:
        np = self.np
        if x.strides[-1] == 4 and 4 in w.strides[-2:] and out.strides[-1] == 4:
            return partial(np.matmul, x, w, out=out)
        return lambda: np.matmul(np.ascontiguousarray(x), np.ascontiguousarray(w), out=out)

    def take(self, table: Any, ids: Any, out: Any) -> Step:
        np, check = self.np, self.check_ids(ids, table.shape[0])

        def rows() -> None:
            check()
            np.take(table, ids, axis=0, out=out, mode="clip")

        return rows

    def put(self, table: Any, ids: Any, rows: Any) -> Step:
        check = self.check_ids(ids, table.shape[0])

        def write() -> None:
            check()
            table[ids] = rows

        return write

    def check_ids(self, ids: Any, n: int) -> Step:
        def check() -> None:
            low, high = ids.min(), ids.max()
            if low < 0 or high >= n:
                raise IndexError(f"index {int(low if low < 0 else high)} out of range 0..{n - 1}")

        return check

    def where(self, mask: Any, value: float, x: Any, out: Any) -> Any:
        np = self.np
        if out is None:
            return np.where(mask, np.float32(value), x)
        np.copyto(out, x)
        np.copyto(out, np.float32(value), where=mask)
        return out

    def turns(self, positions: Any, frequencies: Any, magnitude: float, factors: Any = None) -> Step:
        np, frequencies = self.np, self.constant(frequencies)

        def turns() -> tuple[Any, Any]:
            each = frequencies if factors is None else frequencies / factors
            angle = (positions.astype(np.float64) @ each)[:, None]
            return (np.cos(angle) * magnitude).astype(np.float32), (np.sin(angle) * magnitude).astype(np.float32)

        return turns

    def rotate(self, x: Any, turns: tuple[Any, Any], first: int, size: int, halves: bool, out: Any) -> Any:
        out = self.np.empty(x.shape, self.np.float32) if out is None else out
        c, s = turns
        one, two = pairs(first, size, halves)
        out[..., one] = x[..., one] * c - x[..., two] * s
        out[..., two] = x[..., one] * s + x[..., two] * c
        out[..., :first], out[..., first + size :] = x[..., :first], x[..., first + size :]
        return out

    def sum_rows(self, x: Any, times: float, out: Any) -> Any:
        np = self.np
        total = x.sum(-1, keepdims=True, dtype=np.float64) * times
        return total.astype(np.float32) if out is None else np.copyto(out, total, casting="same_kind")

    def soft_max(self, x: Any, out: Any = None) -> Any:
        np = self.np
        most = x.max(-1, keepdims=True)
        np.copyto(most, 0, where=most == -np.inf)
        powers = np.subtract(x, most, out=out)
        np.exp(powers, out=powers)
        total = powers.sum(-1, keepdims=True)
        np.copyto(total, 1, where=total == 0)
        return np.divide(powers, total, out=powers)

    def norm(self, x: Any, eps: float, centred: bool, out: Any) -> Any:
        np = self.np
        out = np.empty(x.shape, np.float32) if out is None else out
        if centred:
            x = x - x.mean(-1, keepdims=True, dtype=np.float64)
        square = np.einsum("...i,...i->...", x, x, dtype=np.float64)[..., None] / x.shape[-1]
        return np.divide(x, np.sqrt(square + eps), out=out, casting="same_kind")

    def length(self, x: Any) -> Any:
        np = self.np
        return np.sqrt(np.einsum("...i,...i->...", x, x, dtype=np.float64)[..., None])


class NumPy(NumPyLike):
    """NumPy in host memory that the CPU shares, or with host=False in private memory, like other
    devices."""

    def __init__(self, xp: Any, host: bool) -> None:
        super().__init__(np, xp)
        self.name, self.device, self.host = "numpy", "cpu", host

    def allocate(self, nbytes: int) -> Any:
        return np.empty(max(nbytes, 1), np.uint8)

    def write(self, memory: Any, offset: int, data: memoryview) -> None:
        write_bytes(memory, offset, data)

    def read(self, memory: Any, offset: int, data: memoryview) -> None:
        read_bytes(memory, offset, data)

    def fill(self, memory: Any, value: int) -> None:
        memory[:] = value

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> bool:
        if not isinstance(source, np.ndarray):
            return False
        to[to_offset : to_offset + nbytes] = source[offset : offset + nbytes]
        return True

    def running(self) -> contextlib.AbstractContextManager[Any]:
        return np.errstate(all="ignore")


def _functions(np: Any) -> dict[str, Function]:
    """Elementwise functions of NumPy or CuPy. At infinity each has its limit, as on the CPU."""
    f32, low = np.float32, np.float32(-3e38)  # low: 0 * low is -0, but 0 * -inf is nan

    def sgn(x: Any, out: Any = None) -> Any:
        return np.subtract((x > 0).astype(f32), (x < 0).astype(f32), out=out)

    def step(x: Any, out: Any = None) -> Any:
        return np.multiply((x > 0).astype(f32), f32(1), out=out)

    def elu(x: Any, out: Any = None) -> Any:
        less = np.expm1(np.minimum(x, f32(0)))
        return np.add(np.maximum(x, f32(0)), less, out=out)

    def silu(x: Any, out: Any = None) -> Any:
        return np.divide(np.maximum(x, low), 1 + np.exp(-x), out=out)

    def sigmoid(x: Any, out: Any = None) -> Any:
        return np.divide(f32(1), 1 + np.exp(-x), out=out)

    def softplus(x: Any, out: Any = None) -> Any:
        return np.add(np.maximum(x, f32(0)), np.log1p(np.exp(-np.abs(x))), out=out)

    def gelu_quick(x: Any, out: Any = None) -> Any:
        return np.divide(np.maximum(x, low), 1 + np.exp(f32(-1.702) * x), out=out)

    def gelu(x: Any, out: Any = None) -> Any:
        bound = np.maximum(x, f32(-1e4))
        inner = f32(0.7978845608028654) * bound * (1 + f32(0.044715) * bound * bound)
        return np.multiply(f32(0.5) * bound, 1 + np.tanh(inner), out=out)

    def hardsigmoid(x: Any, out: Any = None) -> Any:
        return np.clip((x + 3) / f32(6), f32(0), f32(1), out=out)

    def hardswish(x: Any, out: Any = None) -> Any:
        return np.multiply(np.maximum(x, low), np.clip((x + 3) / f32(6), f32(0), f32(1)), out=out)

    return {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
        "abs": np.absolute, "neg": np.negative, "sqr": np.square, "sqrt": np.sqrt, "log": np.log, "tanh": np.tanh,
        "sgn": sgn, "step": step, "elu": elu, "relu": lambda x, out=None: np.maximum(x, f32(0), out=out),
        "silu": silu, "gelu": gelu, "gelu_quick": gelu_quick, "gelu_erf": _gelu_erf(np),
        "hardsigmoid": hardsigmoid, "hardswish": hardswish,
        "exp": np.exp, "sin": np.sin, "cos": np.cos, "sigmoid": sigmoid, "softplus": softplus,
        **_choices(np),
        "expm1": np.expm1, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": _round(np),
        "scale": lambda x, s, out=None: np.multiply(x, f32(s), out=out),
        "scale_bias": lambda x, s, bias, out=None: np.add(x * f32(s), f32(bias), out=out),
        "xielu": _xielu(np),
        "clamp": lambda x, least, most, out=None: np.clip(x, f32(least), f32(most), out=out),
        "leaky_relu": lambda x, slope, out=None: np.add(
            np.maximum(x, f32(0)), f32(slope) * np.minimum(x, f32(0)), out=out
        ),
    }  # fmt: skip


def _choices(np: Any) -> dict[str, Function]:
    """Comparisons, and the choice by a condition."""

    def compared(function: Function) -> Function:
        return lambda x, y, out=None: np.multiply(function(x, y).astype(np.float32), np.float32(1), out=out)

    def where(cond: Any, x: Any, y: Any, out: Any = None) -> Any:
        chosen = np.where(cond != 0, x, y)
        if out is None:
            return chosen
        out[...] = chosen
        return out

    return {
        "==": compared(np.equal), "!=": compared(np.not_equal), "<": compared(np.less),
        "<=": compared(np.less_equal), ">": compared(np.greater), ">=": compared(np.greater_equal), "where": where,
    }  # fmt: skip


def _round(np: Any) -> Function:
    """To the nearest integer, halves away from zero."""

    def rounded(x: Any, out: Any = None) -> Any:
        whole = np.trunc(x)
        away = (np.abs(x - whole) >= np.float32(0.5)).astype(np.float32)
        return np.add(whole, np.copysign(away, x), out=out)

    return rounded


def _xielu(np: Any) -> Function:
    f32 = np.float32

    def xielu(x: Any, n: float, p: float, beta: float, eps: float, out: Any = None) -> Any:
        above = f32(p) * x * x + f32(beta) * x
        below = (np.expm1(np.minimum(x, f32(eps))) - x) * f32(n) + f32(beta) * x
        return np.add(np.where(x > 0, above, below), f32(0), out=out)

    return xielu


def _gelu_erf(np: Any) -> Function:
    """``x`` times the normal distribution function of ``x``, which NumPy lacks. Uses a table, and
    four terms of the Taylor series at the nearest entry."""
    f32, steps, first, last = np.float32, 128, -14, 9
    table: list[Any] = []

    def gelu_erf(x: Any, out: Any = None) -> Any:
        if not table:
            table.extend(np.asarray(column, f32) for column in _normal_shares(first, last, steps))
        bound = np.clip(x, f32(first), f32(last))  # outside, the function is 0 or 1 in float32
        nearest = np.rint(bound * f32(steps))
        index = np.nan_to_num(nearest).astype(np.int32) - first * steps
        h = bound - nearest / f32(steps)
        share = np.take(table[3], index)
        for column in (2, 1, 0):
            share = share * h + np.take(table[column], index)
        return np.multiply(np.where(x > first, x, np.where(x <= first, f32(-0.0), x)), share, out=out)

    return gelu_erf


def _normal_shares(first: int, last: int, steps: int) -> list[list[float]]:
    """Taylor coefficients of the normal distribution function at each entry of the table."""
    from math import erfc, exp, pi, sqrt

    places = [first + i / steps for i in range((last - first) * steps + 1)]
    density = [exp(-x * x / 2) / sqrt(2 * pi) for x in places]
    return [
        [erfc(-x / sqrt(2)) / 2 for x in places],
        density,
        [-x * p / 2 for x, p in zip(places, density, strict=True)],
        [(x * x - 1) * p / 6 for x, p in zip(places, density, strict=True)],
    ]
