"""PyTorch, on the CPU or on any of its devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import array_api_compat.torch as compat
import numpy as np
import torch

from ..._base.errors import InvalidArgumentError, UnsupportedError
from ...dtypes import DType
from .._nodes import Node, byte_layout
from .._program import Call
from .library import BF16, F16, F32, Function, Library, Mark, Step, pairs

_DTYPES: dict[str, Any] = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64,
    "int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "int64": torch.int64,
}  # fmt: skip


def _dtype(dtype: DType) -> Any:
    return _DTYPES.get(dtype.name, torch.uint8)


class _Alias:
    """A writable alias of a NumPy array, because PyTorch warns about read-only memory. Sources are
    only read."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.__array_interface__ = {
            "version": 3, "shape": array.shape, "strides": array.strides, "typestr": array.dtype.str,
            "data": (array.__array_interface__["data"][0], False),
        }  # fmt: skip


class Torch(Library):
    """PyTorch tensors in host memory that the CPU shares. On other devices, in memory of PyTorch's
    allocator, with a private stream if the device has streams.

    compile: compile programs with ``torch.compile``
    graphs: record programs as CUDA graphs
    """

    name = "torch"
    xp = compat
    can_fuse = True

    def __init__(self, device: str | None, memory: str | None, compile: bool, graphs: bool) -> None:
        try:
            self.torch_device = torch.device(device or "cpu")
        except RuntimeError as error:
            raise InvalidArgumentError(f"ARRAY: device: {error}") from None
        kind = self.torch_device.type
        self.device = str(self.torch_device)
        if memory == "host" and kind != "cpu":
            raise InvalidArgumentError(f"ARRAY: memory='host' needs device='cpu', not '{self.device}'")
        if graphs and kind != "cuda":
            raise InvalidArgumentError(
                f"ARRAY: graphs=True records CUDA graphs and needs a CUDA device, not '{self.device}'"
            )
        self.host = kind == "cpu" and memory != "own"
        self.functions = _functions()
        self.double = torch.float32 if kind == "mps" else torch.float64  # Apple's GPUs lack float64
        self._compile, self._graphs = compile, graphs
        self._wrong: Any = None
        if kind != "cpu":
            try:
                module = torch.get_device_module(self.torch_device)
                torch.zeros(1, device=self.torch_device).item()
            except (RuntimeError, AssertionError, NotImplementedError) as error:
                raise UnsupportedError(f"ARRAY: device {self.device}: {error}") from None
            self.start_queue(module)

    def start_queue(self, module: Any) -> None:
        """Makes the private stream. module: the module of PyTorch with the device's streams, such
        as ``torch.cuda``"""
        self._module = module
        self.has_queue = True
        if hasattr(module, "Stream") and hasattr(module, "stream"):
            self.stream = module.Stream(self.torch_device)
            self.has_events = hasattr(module, "Event")

    # ------------------------------------------------------------------------------------------------------- memory

    def allocate(self, nbytes: int) -> Any:
        try:
            with self.running():
                return torch.empty(max(nbytes, 1), dtype=torch.uint8, device=self.torch_device)
        except RuntimeError as error:  # includes OutOfMemoryError
            raise MemoryError(str(error)) from None

    def view(self, memory: Any, offset: int, node: Node, writable: bool) -> Any:
        shape, strides = byte_layout(node) if node.dtype.is_quantized else (node.shape, node.strides)
        dtype = _dtype(node.dtype)
        n = dtype.itemsize
        whole = memory[: len(memory) // n * n].view(dtype)
        return whole.as_strided(shape, [s // n for s in strides], offset // n)

    def adopt(self, array: Any, dtype: DType) -> Any:
        if not isinstance(array, np.ndarray):
            return array
        if not array.flags.writeable:
            array = np.asarray(_Alias(array))
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if dtype == BF16 else tensor

    def write(self, memory: Any, offset: int, data: memoryview) -> None:
        source = np.asarray(_Alias(np.frombuffer(data, np.uint8)))
        with self.running():
            memory[offset : offset + len(data)].copy_(torch.from_numpy(source))

    def read(self, memory: Any, offset: int, data: memoryview) -> None:
        with self.running():
            torch.from_numpy(np.frombuffer(data, np.uint8)).copy_(memory[offset : offset + len(data)])

    def fill(self, memory: Any, value: int) -> None:
        with self.running():
            memory.fill_(value)

    def copy(self, to: Any, to_offset: int, source: Any, offset: int, nbytes: int) -> bool:
        if isinstance(source, np.ndarray):
            source = torch.from_numpy(source)
        if not isinstance(source, torch.Tensor):
            return False
        with self.running():
            to[to_offset : to_offset + nbytes].copy_(source[offset : offset + nbytes])
        return True

    # ------------------------------------------------------------------------------------------------------- arrays

    def empty(self, shape: Sequence[int], dtype: DType = F32) -> Any:
        return torch.empty(tuple(shape), dtype=_dtype(dtype), device=self.torch_device)

    def constant(self, array: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.torch_device, copy=True)

    def place(self, array: Any) -> tuple[Any, ...]:
        return (array.data_ptr(), array.shape, array.stride(), array.dtype)

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(array.stride())

    def strided(self, array: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
        return array.as_strided(tuple(shape), tuple(strides))

    def contiguous(self, array: Any) -> Any:
        return array.contiguous()

    def reshaped(self, array: Any, shape: Sequence[int]) -> Any:
        try:
            return array.view(tuple(shape))
        except RuntimeError:
            return None

    def reader(self, array: Any, dtype: DType) -> Step | None:
        return partial(torch.Tensor.to, array, torch.float32) if dtype in (F16, BF16) else None

    def writer(self, out: Any, dtype: DType) -> Callable[[Any], Any] | None:
        return partial(torch.Tensor.copy_, out) if dtype in (F16, BF16) else None

    def assign(self, out: Any, source: Any) -> Step:
        return partial(torch.Tensor.copy_, out, source)

    def assign_from(self, out: Any, source: Step) -> Step:
        return lambda: out.copy_(source())

    def clear(self, out: Any) -> Step:
        return partial(torch.Tensor.zero_, out)

    def copy_of(self, array: Any) -> Any:
        return array.clone(memory_format=torch.contiguous_format)

    # ---------------------------------------------------------------------------------------------------- functions

    def product(self, x: Any, w: Any, out: Any) -> Step:
        if x.dim() == 2:
            return partial(torch.mm, x, w, out=out)
        if x.dim() == 4:  # merge the axes of stacks
            flat = [_stack(a) for a in (x, w, out)]
            if all(a is not None for a in flat) and flat[0].shape[0] == flat[1].shape[0]:
                return partial(torch.bmm, flat[0], flat[1], out=flat[2])
        return partial(torch.matmul, x, w, out=out)

    def take(self, table: Any, ids: Any, out: Any) -> Step:
        if not self.has_queue:
            return partial(torch.index_select, table, 0, ids, out=out)
        check, last = self.check_ids(ids, len(table)), max(len(table) - 1, 0)

        def rows() -> None:
            check()
            torch.index_select(table, 0, ids.clamp(0, last), out=out)

        return rows

    def put(self, table: Any, ids: Any, rows: Any) -> Step:
        check, last = self.check_ids(ids, len(table)), max(len(table) - 1, 0)

        def write() -> None:
            check()
            table.index_copy_(0, ids.clamp(0, last).to(torch.int64), rows)

        return write

    def check_ids(self, ids: Any, n: int) -> Step:
        """An asynchronous device records a wrong index, without waiting. ``synchronize`` raises the
        error."""
        if self.has_queue and self._wrong is None:
            self._wrong = torch.zeros((), dtype=torch.bool, device=self.torch_device)

        def check() -> None:
            wrong = ((ids < 0) | (ids >= n)).any()
            if self.has_queue:
                self._wrong.logical_or_(wrong)
            elif wrong:
                raise IndexError(f"an index out of range 0..{n - 1}")

        return check

    def where(self, mask: Any, value: float, x: Any, out: Any) -> Any:
        return torch.masked_fill(x, mask, value) if out is None else out.copy_(x).masked_fill_(mask, value)

    def turns(self, positions: Any, frequencies: Any, magnitude: float, factors: Any = None) -> Step:
        frequency = torch.from_numpy(frequencies).to(self.torch_device, self.double)

        def turns() -> tuple[Any, Any]:
            each = frequency if factors is None else frequency / factors
            angle = (positions.to(self.double) @ each)[:, None]
            c, s = torch.cos(angle), torch.sin(angle)
            return (c * magnitude).to(torch.float32), (s * magnitude).to(torch.float32)

        return turns

    def rotate(self, x: Any, turns: tuple[Any, Any], first: int, size: int, halves: bool, out: Any) -> Any:
        out = torch.empty_like(x) if out is None else out
        c, s = turns
        one, two = pairs(first, size, halves)
        x1, x2 = x[..., one], x[..., two]
        torch.mul(x1, c, out=out[..., one]).addcmul_(x2, s, value=-1)
        torch.mul(x1, s, out=out[..., two]).addcmul_(x2, c)
        out[..., :first], out[..., first + size :] = x[..., :first], x[..., first + size :]
        return out

    def sum_rows(self, x: Any, times: float, out: Any) -> Any:
        total = torch.sum(x, -1, keepdim=True, dtype=self.double).mul_(times)
        return total.to(torch.float32) if out is None else out.copy_(total)

    def soft_max(self, x: Any, out: Any = None) -> Any:
        found = torch._safe_softmax(x, -1)
        return found if out is None else out.copy_(found)

    def norm(self, x: Any, eps: float, centred: bool, out: Any) -> Any:
        if centred:
            found = torch.layer_norm(x, x.shape[-1:], None, None, eps)
            return found if out is None else out.copy_(found)
        length = torch.linalg.vector_norm(x, 2, -1, True, dtype=self.double)
        return torch.mul(x, length.square_().div_(x.shape[-1]).add_(eps).rsqrt_().to(torch.float32), out=out)

    def length(self, x: Any) -> Any:
        return torch.linalg.vector_norm(x, 2, -1, True, dtype=self.double)

    def solve_lower(self, a: Any, b: Any) -> Any:
        return torch.linalg.solve_triangular(a, b, upper=False)

    def convolve(
        self, x: Any, w: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
    ) -> Any:
        functions = torch.nn.functional
        function: Function = (functions.conv1d, functions.conv2d, functions.conv3d)[len(stride) - 1]
        return function(x, w, None, stride, padding, dilation, groups)

    # ------------------------------------------------------------------------------------------------------- groups

    def span(self, array: Any) -> tuple[int, int]:
        begin = array.data_ptr()
        last = sum((n - 1) * s for n, s in zip(array.shape, array.stride(), strict=True))
        return begin, begin + (last + 1) * array.itemsize

    def linear(self, x: Any, w: Any, bias: Any, out: Any) -> Step:
        return partial(torch.addmm, bias, x, w.t(), out=out)

    def layer_norm(self, x: Any, gain: Any, bias: Any, eps: float, out: Any) -> Step:
        norm, shape = torch.layer_norm, x.shape[-1:]
        return lambda: out.copy_(norm(x, shape, gain, bias, eps))

    def attend(self, q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
        shared = q.shape[-3] != k.shape[-3]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=shared)

    # ----------------------------------------------------------------------------------------------------- programs

    def running(self) -> contextlib.AbstractContextManager[Any]:
        return self._on_stream() if self.stream is not None else torch.inference_mode()

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        with torch.inference_mode(), self._module.stream(self.stream):
            yield

    def program(self, run: Step, before: Sequence[Step]) -> Step:
        return super().program(_Recorded(run, self.stream) if self._graphs else run, before)

    def compiled(self, calls: Sequence[Call], step: Callable[[Call], Step]) -> Step | None:
        if not self._compile:
            return None
        from .compiled import compiled

        return compiled(self, calls, step)

    def synchronize(self) -> None:
        if not self.has_queue:
            return
        if self.stream is not None:
            self.stream.synchronize()
        else:
            self._module.synchronize()
        if self._wrong is not None and bool(self._wrong):
            with self.running():
                self._wrong.zero_()
            raise InvalidArgumentError("GET_ROWS or SET_ROWS: an index is out of range")

    def event(self) -> Mark:
        return Mark(self, self._module.Event())

    def shares_events(self, other: Library) -> bool:
        return super().shares_events(other) and other._module is self._module  # type: ignore[attr-defined]


class _Recorded:
    """A program as a CUDA graph. The first run takes the steps one by one, because libraries load
    lazily. The second run records the graph, and later runs launch it."""

    def __init__(self, run: Step, stream: Any) -> None:
        self._run = run
        self._stream = stream
        self._graph: Any = None
        self._runs = 0

    def __call__(self) -> None:
        self._runs += 1
        if self._runs == 1:
            self._run()
            return
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self._run()
            self._graph = graph
        self._graph.replay()


def _stack(array: Any) -> Any:
    """A view with three axes of four; None if there is no such view."""
    shape, (outer, inner) = array.shape, array.stride()[:2]
    if shape[0] == 1:
        return array[0]
    if shape[1] == 1:
        return array[:, 0]
    if outer != inner * shape[1]:
        return None
    return array.as_strided((shape[0] * shape[1], *shape[2:]), (inner, *array.stride()[2:]))


def _functions() -> dict[str, Function]:
    nn = torch._C._nn

    def sgn(x: Any, out: Any = None) -> Any:
        return torch.sub((x > 0).float(), (x < 0).float(), out=out)

    def step(x: Any, out: Any = None) -> Any:
        return torch.mul((x > 0).float(), 1, out=out)

    def elu(x: Any, out: Any = None) -> Any:
        return torch.add(torch.clamp_min(x, 0), torch.expm1(torch.clamp_max(x, 0)), out=out)

    def softplus(x: Any, out: Any = None) -> Any:  # torch's softplus returns x above 20
        return torch.add(torch.clamp_min(x, 0), torch.log1p(torch.exp(-torch.abs(x))), out=out)

    def compared(function: Any) -> Function:
        return lambda x, y, out=None: torch.mul(function(x, y).float(), 1, out=out)

    def where(cond: Any, x: Any, y: Any, out: Any = None) -> Any:
        chosen = torch.where(cond != 0, x, y)
        return chosen if out is None else out.copy_(chosen)

    def gelu_quick(x: Any, out: Any = None) -> Any:
        return torch.mul(torch.sigmoid(x * 1.702), x, out=out)

    def hardswish(x: Any, out: Any = None) -> Any:  # torch's overflows above a sixth of the largest number
        return torch.mul(torch.clamp_min(x, -3), nn.hardsigmoid(x), out=out)

    def rounded(x: Any, out: Any = None) -> Any:  # torch's rounds halves to even
        whole = torch.trunc(x)
        away = (torch.abs(x - whole) >= 0.5).float()
        return torch.add(whole, torch.copysign(away, x), out=out)

    def scale_bias(x: Any, s: float, bias: float, out: Any = None) -> Any:
        return torch.add(x * s, bias, out=out)

    def xielu(x: Any, n: float, p: float, beta: float, eps: float, out: Any = None) -> Any:
        below = (torch.expm1(torch.clamp_max(x, eps)) - x) * n + beta * x
        return torch.add(torch.where(x > 0, p * x * x + beta * x, below), 0, out=out)

    return {
        "expm1": torch.expm1, "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": rounded,
        "scale_bias": scale_bias, "xielu": xielu,
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
        "abs": torch.abs, "neg": torch.neg, "sqr": torch.square, "sqrt": torch.sqrt, "log": torch.log,
        "tanh": torch.tanh, "sgn": sgn, "step": step, "elu": elu,
        "relu": lambda x, out=None: torch.clamp_min(x, 0, out=out),
        "silu": nn.silu, "gelu": lambda x, out=None: nn.gelu(x, approximate="tanh", out=out),
        "gelu_quick": gelu_quick, "gelu_erf": nn.gelu, "hardsigmoid": nn.hardsigmoid, "hardswish": hardswish,
        "exp": torch.exp, "sin": torch.sin, "cos": torch.cos, "sigmoid": torch.sigmoid, "softplus": softplus,
        "where": where, "==": compared(torch.eq), "!=": compared(torch.ne), "<": compared(torch.lt),
        "<=": compared(torch.le), ">": compared(torch.gt), ">=": compared(torch.ge),
        "scale": torch.mul, "clamp": torch.clamp, "leaky_relu": nn.leaky_relu,
    }  # fmt: skip
