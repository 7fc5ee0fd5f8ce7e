"""Operators by elements and by rows, for working sets from the first-level cache to memory.

A small working set is computed many times in a row: in one graph of ours, one session of ONNX Runtime, and a loop over
calls of NumPy and PyTorch. If a result has the type and shape of its source, it is the input of the next call.
Otherwise all calls read the same values. ONNX Runtime merges equal calls, so it is not measured for these operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

import ggml_backend as gb

from .sides import COMPILED, Run, Scope, Sides, Work

LOOP_BYTES = 1 << 20  # of working sets that are computed in a row, about
LOOP_MOST = 32  # a longer chain of activations ends in subnormal numbers
COLUMNS, COLUMNS_SMALL = 4096, 1024  # columns of a row; 1024 if the working set has fewer than two rows of 4096


@dataclass
class Operator:
    name: str
    operands: str  # of a, b (arrays), w, c (rows)
    ours: Callable[..., gb.Tensor]
    numpy: Callable[..., Any] | None
    torch: Callable[..., Any] | None  # its first argument is the module
    onnx: Callable[[Sides, str, str], Any] | None  # a node from a to a name
    out_bytes: int = 4  # bytes of the result for each element of a
    tolerance: float = 1e-4
    chains: bool = True


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def row_norm(x: np.ndarray) -> np.ndarray:
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)


def unary(op: str, **attributes: Any) -> Callable[[Sides, str, str], Any]:
    return lambda s, x, y: s.node(op, [x], to_name=y, **attributes)


OPERATORS = [
    Operator(
        "add", "ab", lambda x, y: x + y, np.add, lambda t, x, y: x + y,
        lambda s, x, y: s.node("Add", [x, "b"], to_name=y),
    ),
    Operator("relu", "a", gb.ops.relu, lambda x: np.maximum(x, 0), lambda t, x: t.relu(x), unary("Relu")),
    Operator(
        "silu", "a", gb.ops.silu, lambda x: x / (1 + np.exp(-x)), lambda t, x: t.nn.functional.silu(x),
        unary("QuickGelu", alpha=1.0),
    ),
    Operator(
        "gelu (tanh)", "a", gb.ops.gelu, None, lambda t, x: t.nn.functional.gelu(x, approximate="tanh"),
        unary("Gelu", approximate="tanh"), tolerance=2e-3,
    ),
    Operator("gelu (erf)", "a", gb.ops.gelu_erf, None, lambda t, x: t.nn.functional.gelu(x), unary("Gelu")),
    Operator("tanh", "a", gb.ops.tanh, np.tanh, lambda t, x: t.tanh(x), unary("Tanh")),
    Operator(
        "norm, weight, bias", "awc",
        lambda x, g, h: gb.ops.norm(x, eps=1e-5) * g + h, lambda x, g, h: row_norm(x) * g + h,
        lambda t, x, g, h: t.nn.functional.layer_norm(x, x.shape[-1:], g, h, 1e-5),
        lambda s, x, y: s.node("LayerNormalization", [x, "w", "c"], epsilon=1e-5, to_name=y),
    ),
    Operator(
        "rms_norm, weight", "aw", lambda x, g: gb.ops.rms_norm(x, eps=1e-5) * g,
        lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g,
        lambda t, x, g: t.nn.functional.rms_norm(x, x.shape[-1:], g, 1e-5),
        lambda s, x, y: s.node("SimplifiedLayerNormalization", [x, "w"], epsilon=1e-5, to_name=y),
    ),
    Operator("soft_max", "a", gb.ops.soft_max, softmax, lambda t, x: t.softmax(x, -1), unary("Softmax")),
    Operator(
        "soft_max, scale, mask", "ab", lambda x, m: gb.ops.soft_max(x, m, 0.1),
        lambda x, m: softmax(x * np.float32(0.1) + m), lambda t, x, m: t.softmax(t.add(m, x, alpha=0.1), -1), None,
    ),
    Operator(
        "sum_rows", "a", gb.ops.sum_rows, lambda x: x.sum(-1, keepdims=True), lambda t, x: x.sum(-1, keepdim=True),
        lambda s, x, y: s.node("ReduceSum", [x, "last"], keepdims=1, to_name=y), 0, 1e-3, chains=False,
    ),
    Operator(
        "f32 to f16", "a", lambda x: gb.ops.cast(x, gb.float16), lambda x: x.astype(np.float16), lambda t, x: x.half(),
        unary("Cast", to=10), 2, 1e-3, chains=False,
    ),
    Operator(
        "f32 to bf16", "a", lambda x: gb.ops.cast(x, gb.bfloat16), None, lambda t, x: x.bfloat16(), None, 2, 1e-2,
        chains=False,
    ),
    Operator(
        "transposing copy", "a", lambda x: gb.ops.cont(x.T), lambda x: np.ascontiguousarray(x.T),
        lambda t, x: x.T.contiguous(), unary("Transpose"), chains=False,
    ),
]  # fmt: skip


@dataclass
class Values:
    """The arrays of one working set, and how often it is computed in a row."""

    operator: Operator
    size: int
    times: int = field(init=False)
    arrays: dict[str, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        each = 4 * sum(o in "ab" for o in self.operator.operands) + self.operator.out_bytes  # bytes of an element
        columns = COLUMNS if self.size >= 2 * COLUMNS * each else COLUMNS_SMALL
        rows = max(self.size // (columns * each), 1)
        rng = np.random.default_rng(0)
        shapes = {"a": (rows, columns), "b": (rows, columns), "w": (columns,), "c": (columns,)}
        self.arrays = {o: rng.standard_normal(shapes[o], dtype=np.float32) for o in self.operator.operands}
        if "w" in self.arrays:  # near 1: a chain of norms neither overflows nor ends in subnormal numbers
            self.arrays["w"] = 1 + self.arrays["w"] / 32
        self.times = min(max(LOOP_BYTES // self.size, 1), LOOP_MOST)
        self.bytes = float(each * rows * columns * self.times)

    def loop(self, compute: Callable[..., Any], first: Any, rest: list[Any]) -> Any:
        y = first
        for _ in range(self.times):
            y = compute(y if self.operator.chains else first, *rest)
        return y


def ours(s: Sides, v: Values) -> Run:
    def build(first: gb.Tensor, *rest: gb.Tensor) -> Any:
        if v.operator.chains:
            return v.loop(v.operator.ours, first, list(rest))
        return [v.operator.ours(first, *rest) for _ in range(v.times)]

    return s.graph(build, *((x.shape, gb.float32, x) for x in v.arrays.values()))


def numpy_run(v: Values, compute: Callable[..., Any]) -> Run:
    first, *rest = v.arrays.values()
    return lambda: v.loop(compute, first, rest)


def torch_run(s: Sides, v: Values, compute: Callable[..., Any], *, compiled: bool) -> Run:
    t = s.modules["torch"]
    first, *rest = (t.from_numpy(x) for x in v.arrays.values())

    def one(*operands: Any) -> Any:
        return compute(t, *operands)

    each = t.compile(one, dynamic=False) if compiled else one

    def run() -> Any:
        with t.inference_mode():
            return v.loop(each, first, rest)

    return run


def onnx_run(s: Sides, v: Values, node: Callable[[Sides, str, str], Any]) -> Run:
    if not v.operator.chains and v.times > 1:
        raise RuntimeError("it would compute it once")
    names = ["a", *(f"y{i}" for i in range(1, v.times)), "y"]
    nodes = [node(s, x, y) for x, y in pairwise(names)]
    fixed = {o: x for o, x in v.arrays.items() if o in "wc"}
    if any("last" in n.input for n in nodes):
        fixed["last"] = np.array([-1], np.int64)
    return s.onnx(nodes, {o: x for o, x in v.arrays.items() if o in "ab"}, fixed)


def spelled(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def operators(s: Sides, scope: Scope) -> Iterator[Work]:
    for operator in OPERATORS:
        for size in scope.sizes:
            v = Values(operator, size)
            peers: dict[str, Callable[[], Run]] = {}
            if operator.numpy is not None:
                peers["numpy"] = lambda v=v, f=operator.numpy: numpy_run(v, f)
            if operator.torch is not None:
                peers["torch"] = lambda v=v, f=operator.torch: torch_run(s, v, f, compiled=False)
                peers[COMPILED] = lambda v=v, f=operator.torch: torch_run(s, v, f, compiled=True)
            if operator.onnx is not None:
                peers["onnxruntime"] = lambda v=v, f=operator.onnx: onnx_run(s, v, f)
            name = f"{operator.name}, {spelled(size)}"
            yield Work(name, "GB/s", v.bytes, ours(s, v), peers, operator.tolerance)
