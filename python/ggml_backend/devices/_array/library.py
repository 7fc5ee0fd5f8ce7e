"""What array libraries do each in their own way: memory, dtypes, functions that write into a given array.

Operators (the other files of this package) are written once, over a :class:`Library` and the functions of the array
API that its ``xp`` has. A step of a plan is a function without arguments, often no more than the library's own function
with its arguments, so that a run costs little more than the library itself.
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
"""Of arrays, with ``out=``: an array for the result, or None."""

F32, F16, BF16 = dtypes["float32"], dtypes["float16"], dtypes["bfloat16"]
FLOATS = (F32, F16, BF16)


class Library:
    """An array library on one of its devices.

    functions: by name of the operator, of float32 arrays, elementwise; the last thing that each does is to write
        ``out``, element by element from the same places of its sources, so that ``out`` may be one of these
    has_queue: does it compute later? Then it has ``submit``, ``synchronize`` and, if it ``has_events``, ``event``
    stream: where it computes, if it has such a thing
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

    # ------------------------------------------------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> Any:
        """Memory of its own."""
        raise NotImplementedError

    def view(self, memory: Any, offset: int, node: Node, writable: bool) -> Any:
        """The array of a tensor in memory that ``allocate`` gave."""
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
        """An array of NumPy over memory of the host, as one of the library over the same memory."""
        return array

    # ------------------------------------------------------------------------------------------------------- arrays

    def empty(self, shape: Sequence[int], dtype: DType = F32) -> Any:
        raise NotImplementedError

    def constant(self, array: Any) -> Any:
        """The library's copy of an array of NumPy, on its device."""
        raise NotImplementedError

    def place(self, array: Any) -> tuple[Any, ...]:
        """Equal for arrays that are the same elements of the same memory."""
        raise NotImplementedError

    def strides(self, array: Any) -> tuple[int, ...]:
        """In elements."""
        raise NotImplementedError

    def strided(self, array: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """A view that begins where ``array`` does; strides in elements."""
        raise NotImplementedError

    def contiguous(self, array: Any) -> Any:
        """An array whose elements lie one after the other: itself, or a copy."""
        raise NotImplementedError

    def reshaped(self, array: Any, shape: Sequence[int]) -> Any:
        """A view of another shape; None: there is none."""
        raise NotImplementedError

    def reader(self, array: Any, dtype: DType) -> Step | None:
        """Gives the floats of an array as float32; None: they are."""
        raise NotImplementedError

    def writer(self, out: Any, dtype: DType) -> Callable[[Any], Any] | None:
        """Stores float32 into an array of floats of another dtype; None: it is float32."""
        raise NotImplementedError

    def assign(self, out: Any, source: Any) -> Step:
        """Copies an array into one of the same shape and dtype."""
        raise NotImplementedError

    def assign_from(self, out: Any, source: Step) -> Step:
        """The same with what a function returns."""
        raise NotImplementedError

    def copy_of(self, array: Any) -> Any:
        raise NotImplementedError

    def unpacker(self, rows: Any, dtype: DType) -> Step:
        """Gives quantized rows, bytes, as float32."""
        return partial(Unpacking(self, dtype), rows)

    # ---------------------------------------------------------------------------------------------------- functions

    def product(self, x: Any, w: Any, out: Any) -> Step:
        """``out = x @ w``, matrices or stacks of them, all float32."""
        raise NotImplementedError

    def take(self, table: Any, ids: Any, out: Any) -> Step:
        """``out = table[ids]`` by the first axis; IndexError for an index that is not in it."""
        raise NotImplementedError

    def put(self, table: Any, ids: Any, rows: Any) -> Step:
        """``table[ids] = rows`` by the first axis; IndexError for an index that is not in it."""
        raise NotImplementedError

    def check_ids(self, ids: Any, n: int) -> Step:
        """Raises IndexError, now or when somebody waits, where an index is not in ``range(n)``."""
        raise NotImplementedError

    def where(self, mask: Any, value: float, x: Any, out: Any) -> Any:
        """``x``, but where the mask is true the value."""
        raise NotImplementedError

    def turns(self, positions: Any, frequencies: Any, magnitude: float) -> Step:
        """Cosines and sines, float32 ``(tokens, 1, pairs)``, of positions times frequencies, times a magnitude."""
        raise NotImplementedError

    def rotate(self, x: Any, turns: tuple[Any, Any], size: int, halves: bool, out: Any) -> Any:
        """The first ``size`` elements of each row by turns: pairs of neighbours, or of the two halves. Never in
        place."""
        raise NotImplementedError

    def sum_rows(self, x: Any, times: float, out: Any) -> Any:
        """A multiple of the sum of each row, as a row of one element, added up in double."""
        raise NotImplementedError

    def soft_max(self, x: Any, out: Any = None) -> Any:
        """Of each row; a row that is -inf everywhere gives zeros."""
        raise NotImplementedError

    def norm(self, x: Any, eps: float, centred: bool, out: Any) -> Any:
        """Of each row, in the sense of NORM, or of RMS_NORM."""
        raise NotImplementedError

    # ------------------------------------------------------------------ groups of operators, of libraries that can_fuse

    def span(self, array: Any) -> tuple[int, int]:
        """The bytes of an array: of arrays that share memory they overlap."""
        raise NotImplementedError

    def linear(self, x: Any, w: Any, bias: Any, out: Any) -> Step:
        """``out = x @ w.T + bias``, matrices."""
        raise NotImplementedError

    def layer_norm(self, x: Any, gain: Any, bias: Any, eps: float, out: Any) -> Step:
        """NORM of each row, times a row, plus a row. All is read before ``out`` is written."""
        raise NotImplementedError

    def attention(self, q: Any, k: Any, v: Any, mask: Any, scale: float, out: Any) -> Step:
        """``out = softmax(scale q k^T + mask) v`` of stacks of matrices ``(.., .., n, size)``; mask: or None. All is
        read before ``out`` is written."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------------- programs

    def running(self) -> contextlib.AbstractContextManager[Any]:
        """The state of the library in which programs are made and run."""
        return contextlib.nullcontext()

    def program(self, run: Step, before: Sequence[Step]) -> Step:
        """The program of a plan, made from one that takes its steps in order; ``before`` is done first in each run."""
        running = self.running

        def program() -> None:
            with running():
                for step in before:
                    step()
                run()

        return program

    def compiled(self, calls: Sequence[Call], step: Callable[[Call], Step]) -> Step | None:
        """A program that the library has compiled from all calls of a plan; None: none is wanted, or possible."""
        return None

    def submit(self, work: Callable[[], None]) -> None:
        work()

    def synchronize(self) -> None:
        """Waits for what was submitted, and raises what only its end could tell."""

    def event(self) -> Mark:
        """A mark in the queue, as ``Device.submit`` says."""
        raise NotImplementedError

    def shares_events(self, other: Library) -> bool:
        """Can the stream of another device wait for an event of this one?"""
        return type(other) is type(self) and other.stream is not None


class Mark:
    """A place in the stream of a device. event: the library's"""

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


def pairs(size: int, halves: bool) -> tuple[slice, slice]:
    """The first and the second elements of the pairs that are rotated."""
    if halves:
        return slice(0, size // 2), slice(size // 2, size)
    return slice(0, size, 2), slice(1, size, 2)


# -------------------------------------------------------------------------------------------------- NumPy and its kin


class NumPyLike(Library):
    """NumPy, and CuPy, which has its functions. ``np``: the module."""

    def __init__(self, np: Any, xp: Any) -> None:
        self.np = np
        self.xp = xp
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
            bits = np.ascontiguousarray(value).view(np.uint32)
            # to the nearest, of equals to the even one; what is no number stays none
            rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
            np.copyto(out, np.where(np.isnan(value), (bits >> 16) | 0x40, rounded), casting="unsafe")

        return narrow

    def assign(self, out: Any, source: Any) -> Step:
        return partial(self.np.copyto, out, source)

    def assign_from(self, out: Any, source: Step) -> Step:
        copyto = self.np.copyto
        return lambda: copyto(out, source())

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

    def turns(self, positions: Any, frequencies: Any, magnitude: float) -> Step:
        np, frequencies = self.np, self.constant(frequencies)

        def turns() -> tuple[Any, Any]:
            angle = positions[:, None, None] * frequencies
            return (np.cos(angle) * magnitude).astype(np.float32), (np.sin(angle) * magnitude).astype(np.float32)

        return turns

    def rotate(self, x: Any, turns: tuple[Any, Any], size: int, halves: bool, out: Any) -> Any:
        out = self.np.empty(x.shape, self.np.float32) if out is None else out
        c, s = turns
        one, two = pairs(size, halves)
        out[..., one] = x[..., one] * c - x[..., two] * s
        out[..., two] = x[..., one] * s + x[..., two] * c
        if size < x.shape[-1]:
            out[..., size:] = x[..., size:]
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


class NumPy(NumPyLike):
    """On the host, in memory that the CPU uses, too, or in memory of its own, as other devices have it."""

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
    """Those of NumPy or CuPy. At infinity each has its limit, as on the CPU."""
    f32, low = np.float32, np.float32(-3e38)  # low: times 0 it is -0, where -inf would give nan

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
        "scale": lambda x, s, out=None: np.multiply(x, f32(s), out=out),
        "clamp": lambda x, least, most, out=None: np.clip(x, f32(least), f32(most), out=out),
        "leaky_relu": lambda x, slope, out=None: np.add(
            np.maximum(x, f32(0)), f32(slope) * np.minimum(x, f32(0)), out=out
        ),
    }  # fmt: skip


def _choices(np: Any) -> dict[str, Function]:
    """Comparisons, by their signs, and what is chosen by one."""

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


def _gelu_erf(np: Any) -> Function:
    """``x`` times the normal distribution's share below ``x``, which NumPy has no function for: by a table of it, and
    four terms of its series from the nearest place of the table."""
    f32, steps, first, last = np.float32, 128, -14, 9
    table: list[Any] = []

    def gelu_erf(x: Any, out: Any = None) -> Any:
        if not table:
            table.extend(np.asarray(column, f32) for column in _normal_shares(first, last, steps))
        bound = np.clip(x, f32(first), f32(last))  # beyond, the share is 0 or 1 to the last bit
        nearest = np.rint(bound * f32(steps))
        index = np.nan_to_num(nearest).astype(np.int32) - first * steps
        h = bound - nearest / f32(steps)
        share = np.take(table[3], index)
        for column in (2, 1, 0):
            share = share * h + np.take(table[column], index)
        return np.multiply(np.where(x > first, x, np.where(x <= first, f32(-0.0), x)), share, out=out)

    return gelu_erf


def _normal_shares(first: int, last: int, steps: int) -> list[list[float]]:
    """The share at each place, and its first three derivatives over their factorials."""
    from math import erfc, exp, pi, sqrt

    places = [first + i / steps for i in range((last - first) * steps + 1)]
    density = [exp(-x * x / 2) / sqrt(2 * pi) for x in places]
    return [
        [erfc(-x / sqrt(2)) / 2 for x in places],
        density,
        [-x * p / 2 for x, p in zip(places, density, strict=True)],
        [(x * x - 1) * p / 6 for x, p in zip(places, density, strict=True)],
    ]
