#!/usr/bin/env python3
"""Digests of what the installed package computes and decides. Equal digests mean equal bits.

    PYTHONPATH=SITE python tools/digest.py [--json FILE] [--compare FILE] [--only PATTERN] [--cases]

Each group has parts (a machine, or a kind of result), and each part has the sha256 of its results:

- ``op/NAME``: each public operator with several dtypes, shapes and layouts, in place and not. Parts: the bytes of the
  result by kernel level and number of threads, the nodes that CPU and SIM support, the calls that fail, and the
  placement and memory plan of a scheduler with costs.
- ``quantize/TYPE``: blocks from floats, with and without importance, and floats from blocks.
- ``chain/NAME``: operators that the backend may fuse: products with what follows, attention, rotations into caches.
- ``sched/POLICY``: random graphs on the CPU and two simulated devices: results, plans, counters, and reasons in words.
- ``memory``: the memory planner on random lifetimes, orders of nodes, the allocators.
- ``gguf``: files with tensors of every type.
- ``demo``: embeddings of examples/embed, if its model is installed.

Compare digests of one machine, Python and NumPy only. ``--compare`` prints the parts that differ, and exits with 1 if
any does. ``--cases`` prints one line per result. ``diff`` of two such lists finds the first case that differs. The
cases are in this file, and use the public interface only: packages of different versions must run the same cases.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import gc
import hashlib
import importlib
import inspect
import io
import json
import os
import platform
import re
import sys
import tempfile
import time
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":  # before the package reads the variable: caches of earlier runs must not count
    _caches = tempfile.TemporaryDirectory(prefix="digest-")
    os.environ["XDG_CACHE_HOME"] = _caches.name

import ggml_backend as gb

ROOT = Path(__file__).resolve().parent.parent
Array = np.ndarray[Any, Any]
Wanted = Callable[[str], bool]
FLOATS = ("float32", "float16", "bfloat16")
DTYPES = sorted({d for d in vars(gb.dtypes).values() if isinstance(d, gb.dtypes.DType)}, key=lambda d: d.id)
LAYOUTS = ("whole", "padded", "transposed", "permuted")


class Digest:
    """Hashes by group and part."""

    def __init__(self, show_cases: bool = False) -> None:
        self.show_cases = show_cases
        self.group = ""
        self.n = 0
        self._hashes: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(hashlib.sha256))

    def add(self, part: str, label: str, *results: Any) -> None:
        """Arrays and bytes count with all their bits, anything else by its text."""
        h = hashlib.sha256(label.encode())
        for r in results:
            if isinstance(r, np.ndarray):
                h.update(f"{r.dtype}{r.shape}".encode())
                r = np.ascontiguousarray(r).tobytes()
            h.update(r if isinstance(r, bytes) else repr(r).encode())
        self._hashes[self.group][part].update(h.digest())
        self.n += 1
        if self.show_cases:
            print(f"{h.hexdigest()[:16]} {self.group} [{part}] {label}")

    def result(self) -> dict[str, dict[str, str]]:
        return {g: {p: h.hexdigest() for p, h in sorted(parts.items())} for g, parts in sorted(self._hashes.items())}


def combined(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def seeded(label: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(label.encode()))


def without_pointers(text: str) -> str:
    """The same text for the same graph: addresses become numbers, in their order."""
    numbers: dict[str, str] = {}
    return re.sub(r"0x[0-9a-f]+", lambda m: numbers.setdefault(m.group(), f"@{len(numbers)}"), text)


@dataclass(frozen=True)
class In:
    """An input. dtype: "a" and "b": any, see above. low, high: of random values. values: instead of random ones."""

    shape: tuple[int, ...]
    dtype: str = "a"
    low: float = -2.0
    high: float = 2.0
    values: Array | None = None


@dataclass(frozen=True)
class Case:
    name: str  # of the function
    inputs: tuple[In, ...]
    call: Callable[..., Any]
    label: str = ""


def a(*shape: int, low: float = -2.0, high: float = 2.0) -> In:
    return In(shape, "a", low, high)


def b(*shape: int, low: float = -2.0, high: float = 2.0) -> In:
    return In(shape, "b", low, high)


def f32(*shape: int, low: float = -2.0, high: float = 2.0) -> In:
    return In(shape, "float32", low, high)


def f16(*shape: int) -> In:
    return In(shape, "float16", -1.0, 1.0)


def ints(values: Any) -> In:
    array = np.asarray(values, np.int32)
    return In(array.shape, "int32", values=array)


def call(name: str, *inputs: In, **options: Any) -> Case:
    label = " ".join(f"{k}={v}" for k, v in options.items())
    return Case(name, inputs, partial(getattr(gb.ops, name), **options), label)


# ---- cases of operators ----------------------------------------------------------------------------------------------


SHAPES = [(1,), (3, 5), (2, 33), (3, 64), (2, 256), (2, 3, 4, 130), (300, 17), (2, 1040)]
# Operators of one tensor. An alias has the name of another function. sqrt and log need positive values.
UNARY = ["argmax", "argsort", "cont", "leaky_relu", "mean", "norm", "rms_norm", "sum", "sum_rows"]
UNARY += [
    name
    for name in gb.ops.__all__
    if inspect.signature(getattr(gb.ops, name)).parameters.keys() == {"a", "inplace"}
    and getattr(gb.ops, name).__name__ == name
    and name not in ("sqrt", "log")
]


def one_input(shape: tuple[int, ...]) -> Iterator[Case]:
    n = shape[-1]
    for name in UNARY:
        yield call(name, a(*shape))
    for name in ("sqrt", "log"):
        yield call(name, a(*shape, low=0.1))
    yield call("unary", a(*shape), op="silu")
    yield call("leaky_relu", a(*shape), negative_slope=0.3)
    yield call("clamp", a(*shape), min=-0.5, max=1.0)
    yield call("scale", a(*shape), s=0.37)
    yield call("norm", a(*shape), eps=0.1)
    yield call("argsort", a(*shape), descending=True)
    yield call("top_k", a(*shape), k=min(3, n))
    yield call("cont", a(*shape), shape=(-1,))
    for dtype in DTYPES:
        yield call("cast", a(*shape), dtype=dtype.name)
    yield call("upscale", a(*shape), factor=2)
    yield call("pad", a(*shape), amounts=3)
    yield call("diag_mask_inf", a(*shape), n_past=1)
    yield call("diag_mask_zero", a(*shape), n_past=0)
    for mode in ("max", "avg"):
        yield call("pool_1d", a(*shape), op=mode, kernel=min(2, n))
    yield call("soft_max", a(*shape), scale=0.6)
    yield call("concat", a(*shape), b(*shape), axis=-1)
    yield call("concat", a(*shape), b(*shape), axis=0)
    yield call("diag", a(*shape[:-1][:2], 1, n))


def two_inputs(shape: tuple[int, ...]) -> Iterator[Case]:
    n = shape[-1]
    for name in ("add", "sub", "mul", "div"):
        yield call(name, a(*shape), b(*shape, low=0.5))
        yield call(name, a(*shape), b(n, low=0.5))
        yield call(name, a(*shape), b(*shape[:-1], 1, low=0.5))
        yield call(name, a(4, *shape[-3:]), b(2, *shape[-3:], low=0.5))
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        yield call(name, a(*shape), b(*shape))
    yield call("where", b(*shape), a(*shape), a(*shape))
    yield call("where", ints(np.arange(n) % 2), a(*shape), a(1))
    yield call("add1", a(*shape), b(1))
    for name in FLOATS:
        yield call("add_cast", a(*shape), b(*shape), dtype=name)
    for dtype in DTYPES:
        yield Case("cpy", (a(*shape), In(shape, dtype.name)), gb.ops.cpy, dtype.name)
    yield call("repeat", a(*shape), like=(2, *shape[-3:-1], 2 * n))
    yield call("repeat_back", a(4, *shape[-3:-1], 2 * n), like=(2, *shape[-3:-1], n))
    for name in ("silu_back", "rms_norm_back", "soft_max_back"):
        yield call(name, a(*shape), b(*shape))
    yield call("soft_max", a(*shape), b(*shape), scale=0.5)
    if len(shape) > 1:
        rows = shape[-2]
        ids = np.arange(5) * 7 % rows
        yield call("get_rows", a(*shape[-2:]), ints(ids))
        yield Case("get_rows_back", (b(5, n), ints(ids), a(rows, n)), gb.ops.get_rows_back)
        yield call("acc", a(rows + 1, n), b(rows, n), offset=4 * n)
        yield call("set", a(rows + 1, n), b(rows, n), offset=4 * n)
        yield Case("cross_entropy_loss", (a(*shape), f32(*shape, low=0.01, high=1.0)), gb.ops.cross_entropy_loss)
        yield Case(
            "cross_entropy_loss_back", (a(*shape), f32(*shape, low=0.01), f32(1)), gb.ops.cross_entropy_loss_back
        )
        yield call("soft_max", a(4, *shape[-2:]), b(rows, n), scale=0.5, max_bias=8.0)
        yield call("alibi", a(2, *shape[-2:]), n_past=0, n_head=2, bias_max=8.0)


def products() -> Iterator[Case]:
    """By rows of weights m, columns n and length k: vectors, few columns, tiles with rests, batches, repeats."""
    for m, n, k in (
        *((1, 1, 64), (7, 1, 256), (130, 1, 512), (5, 2, 64), (64, 3, 256), (33, 4, 512), (7, 5, 256), (40, 8, 512)),
        *((17, 9, 256), (64, 16, 512), (31, 33, 256), (130, 65, 256), (96, 70, 33), (48, 130, 7), (256, 40, 1280)),
    ):
        yield call("mul_mat", a(m, k, low=-1, high=1), b(n, k, low=-1, high=1))
        yield call("mul_mat", a(m, k), f32(n, k), prec="f32")
        yield Case("matmul", (f32(n, k), a(m, k)), lambda x, w: gb.ops.matmul(x, w.T, prec="f32"))
    for left, right in (((3,), (3,)), ((2,), (6,)), ((2, 1), (2, 3)), ((1, 2), (3, 4))):
        for m, n, k in ((5, 3, 64), (9, 1, 256), (40, 20, 256)):
            yield call("mul_mat", a(*left, m, k), b(*right, n, k))
    ids = np.array([[1, 0], [0, 2], [2, 1], [1, 1], [0, 0]])
    for m, n, k in ((5, 1, 64), (8, 5, 256), (33, 5, 512)):
        inputs = (a(m, k), a(m, k), a(m, k), ints(ids[:n]), f32(n, k))
        yield Case("mul_mat_id", inputs, lambda p, q, r, i, x: gb.ops.mul_mat_id([p, q, r], i, 1, x))
    for shape in ((3, 4), (64, 33), (2, 5, 256), (70, 512)):
        yield call("out_prod", a(*shape), b(*shape[:-1], 7))


def attention_cases() -> Iterator[Case]:
    for heads, tokens, keys, size in ((1, 1, 5, 8), (2, 3, 3, 16), (4, 33, 40, 64), (2, 70, 300, 32), (1, 1, 600, 128)):
        for masked in (False, True):
            inputs = (a(heads, tokens, size), b(heads, keys, size), b(heads, size, keys))
            yield call("flash_attn", *inputs, masked=masked)
            yield call("flash_attn_back", *inputs, b(heads, tokens, size), masked=masked)
    for rows, hidden, inner in ((3, 8, 6), (33, 64, 130)):
        yield call("flash_ff", f16(rows, hidden), f16(inner, hidden), b(inner), f16(hidden, inner), b(hidden))
    for tokens, heads, size in ((5, 2, 8), (1, 4, 64), (33, 3, 128)):
        x, at = a(tokens, heads, size), ints(np.arange(tokens) * 3)
        for mode in ("normal", "neox", "glm", "normal_exact", "neox_exact"):
            yield call("rope", x, at, mode=mode, n_ctx=64)
            yield call(
                "rope", x, at, mode=mode, n_dims=size // 2, freq_scale=0.5, n_ctx=64, ext_factor=0.7, n_orig_ctx=32
            )
            yield call("rope_back", x, at, mode=mode)
        yield call("rope", x, at, xpos_base=512.0, xpos_down=True, inplace=True)
    yield call("get_rel_pos", a(5, 4), qh=3, kh=3)
    yield call("add_rel_pos", a(1, 6, 9), b(1, 2, 3, 3), b(1, 2, 3, 3))
    yield call("win_part", a(4, 5, 2), window=3)
    yield Case("win_unpart", (a(4, 5, 2),), lambda x: gb.ops.win_unpart(gb.ops.win_part(x, 3), 5, 4, 3))
    yield call("group_norm", a(4, 3, 3), n_groups=2)
    yield call("group_norm", a(2, 6, 5, 7), n_groups=3)


def windows() -> Iterator[Case]:
    for channels, h, w in ((3, 8, 9), (1, 5, 5), (16, 12, 33)):
        image, line = b(2, channels, h, w), b(channels, w)
        for k in (1, 2, 3):
            yield call("im2col", a(6, channels, k, k), image)
            yield call("im2col", a(6, channels, k, k), image, stride=(2, 1), padding=(1, 0), dilation=1)
            yield call("conv_2d", a(6, channels, k, k), image, padding="half" if k % 2 else 0)
            yield call("conv_2d", a(6, channels, k, k), image, stride="kernel")
            yield call("conv_depthwise_2d", a(channels, 1, k, k), image, padding=1)
            yield call("conv_1d", a(6, channels, k), line, stride=2, padding=1)
            yield call("conv_1d", a(6, channels, k), line, dilation=2)
            yield call("conv_transpose_1d", a(channels, 6, k), line, stride=2)
            yield call("conv_transpose_2d", a(channels, 6, k, k), b(1, channels, h, w), stride=2)
        for mode in ("max", "avg"):
            yield call("pool_2d", a(channels, h, w), op=mode, kernel=(2, 3))
            yield call("pool_2d", a(channels, h, w), op=mode, kernel=3, stride=2, padding=1)


def views() -> Iterator[Case]:
    x = a(2, 3, 256)
    yield Case("reshape", (x,), lambda t: gb.ops.cont(gb.ops.reshape(t, (6, -1))))
    yield Case("view", (x,), lambda t: gb.ops.cont(gb.ops.view(t, (2, 256), offset=1024)))
    yield Case("permute_ggml", (x,), lambda t: gb.ops.cont(gb.ops.permute_ggml(t, 1, 2, 0, 3)))
    yield Case("transpose", (x,), lambda t: gb.ops.cont(gb.ops.transpose(t)))
    yield Case("empty_like", (x,), lambda t: gb.ops.cpy(t, gb.ops.empty_like(t)))
    for arity in (1, 2, 3):
        inputs = tuple(f32(3, 33) for _ in range(arity))
        yield Case("map_custom", inputs, partial(gb.ops.map_custom, lambda d, *s: sum(s[1:], 2 * s[0])))
        yield Case("custom", inputs, partial(gb.ops.custom, lambda d, *s: sum(s).sum(1), shape=3, dtype="f64"))


def cases() -> Iterator[Case]:
    for shape in SHAPES:
        yield from one_input(shape)
        yield from two_inputs(shape)
    yield from products()
    yield from attention_cases()
    yield from windows()
    yield from views()


# ---- variants --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A case with its dtypes, and how the first input lies in memory."""

    case: Case
    inputs: tuple[In, ...]
    layout: str = "whole"
    inplace: bool = False

    @property
    def label(self) -> str:
        c = self.case
        shapes = " ".join(f"{i.dtype}{list(i.shape)}" for i in self.inputs)
        return f"{c.name} {c.label} {shapes} {self.layout}{' inplace' if self.inplace else ''}"

    def build(self, tensors: Sequence[Any]) -> Any:
        return self.case.call(*tensors, inplace=True) if self.inplace else self.case.call(*tensors)


def typed(case: Case, first: str, second: str) -> tuple[In, ...]:
    names = {"a": first, "b": second}
    return tuple(In(i.shape, names.get(i.dtype, i.dtype), i.low, i.high, i.values) for i in case.inputs)


def fits(inputs: Sequence[In]) -> bool:
    """Rows of whole blocks."""
    return all(i.shape[-1] % gb.dtypes.as_dtype(i.dtype).block_size == 0 for i in inputs)


def variants(case: Case) -> Iterator[Variant]:
    given = {i.dtype for i in case.inputs}
    firsts = [d.name for d in DTYPES] if "a" in given else ["float32"]
    for first in firsts:
        seconds = FLOATS if "b" in given and first in FLOATS else ("float32",)
        for second in seconds:
            inputs = typed(case, first, second)
            if fits(inputs):
                yield Variant(case, inputs)
    floats = typed(case, "float32", "float32")
    if len(floats[0].shape) > 1 and "a" in given:
        for layout in LAYOUTS[1:]:
            yield Variant(case, floats, layout)
            yield Variant(case, typed(case, "float16", "float32"), layout)
    options = case.call.keywords if isinstance(case.call, partial) else {}
    if "inplace" in inspect.signature(getattr(gb.ops, case.name)).parameters and "inplace" not in options:
        for first in FLOATS:
            if isinstance(case.call, partial):
                yield Variant(case, typed(case, first, "float32"), inplace=True)


# ---- inputs ----------------------------------------------------------------------------------------------------------


def values_of(given: In, rng: np.random.Generator) -> Array:
    """An array as :meth:`Tensor.set` takes it, the same for each dtype but for rounding."""
    if given.values is not None:
        return given.values
    dtype = gb.dtypes.as_dtype(given.dtype)
    floats = (rng.random(given.shape) * (given.high - given.low) + given.low).astype(np.float32)
    if dtype.name == "bfloat16":
        return (floats.view(np.uint32) >> 16).astype(np.uint16)
    if dtype.is_quantized:
        return blocks(dtype, floats, rng)
    if dtype.numpy is not None and np.dtype(dtype.numpy).kind == "i":
        return (floats * 50).astype(dtype.numpy)
    return floats.astype(dtype.numpy)


def blocks(dtype: gb.dtypes.DType, floats: Array, rng: np.random.Generator) -> Array:
    """Quantized rows; of formats that cannot be written, zeros."""
    try:
        return gb.quantize(floats, dtype, rng.random(floats.shape[-1]).astype(np.float32) + 0.5)
    except gb.GgmlError:
        return np.zeros((*floats.shape[:-1], dtype.row_nbytes(floats.shape[-1])), np.uint8)


def laid(ctx: gb.Context, given: In, layout: str) -> tuple[gb.Tensor, gb.Tensor, Callable[[Array], Array]]:
    """The tensor that is the memory, the input cut out of it, and what makes the memory of the input's values."""
    shape = given.shape
    if layout == "padded":
        root = ctx.tensor((*shape[:-1], shape[-1] + 3), given.dtype)
        return root, root[..., : shape[-1]], lambda v: np.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, 3)])
    axes = list(range(len(shape)))
    if layout == "transposed":
        axes[-2:] = axes[:-3:-1]
    elif layout == "permuted":
        axes[:-1] = axes[-2::-1]
    root = ctx.tensor(tuple(shape[i] for i in axes), given.dtype)
    view = root if axes == sorted(axes) else root.transpose(axes)
    return root, view, lambda v: np.ascontiguousarray(v.transpose(axes))


@dataclass
class Built:
    """A variant as a graph without memory."""

    ctx: gb.Context
    variant: Variant
    roots: list[gb.Tensor] = field(default_factory=list)
    layouts: list[Callable[[Array], Array]] = field(default_factory=list)
    node: Any = None
    graph: Any = None

    def arrays(self, rng: np.random.Generator) -> list[Array]:
        """What to write into the roots."""
        return [lay(values_of(i, rng)) for i, lay in zip(self.variant.inputs, self.layouts, strict=True)]


def build(variant: Variant) -> Built:
    """Raises what the operator raises."""
    made = Built(gb.Context(), variant)
    tensors = []
    for i, given in enumerate(variant.inputs):
        root, tensor, layout = laid(made.ctx, given, variant.layout if i == 0 else "whole")
        made.roots.append(root)
        made.layouts.append(layout)
        tensors.append(tensor)
    made.node = variant.build(tensors)
    made.graph = made.ctx.graph(made.node)
    return made


# ---- operators -------------------------------------------------------------------------------------------------------


def machines() -> dict[str, gb.Backend]:
    """The best and the scalar level with one and two threads, the others with one."""
    found = {f"default, {n} threads": gb.Backend("CPU", n_threads=n) for n in (1, 2)}
    best = found["default, 1 threads"].level
    for level, usable in gb.backend.cpu_levels().items():
        if usable and (level != best or level == "scalar"):
            for n in (1, 2) if level == "scalar" else (1,):
                found[f"{level}, {n} threads"] = gb.Backend("CPU", n_threads=n, level=level)
    return found


def price_list() -> gb.sched.Costs:
    """Costs that differ for each class of operators and for a few types."""
    ops = [gb.sched.OpCost("any", None, 1.5, 311.0, 997.0)]
    for i, kind in enumerate(("matmul", "rows", "elements", "moves", "windows"), 2):
        ops.append(gb.sched.OpCost(kind, None, 1.0 / i, 100.0 * i + 7.0, 1000.0 * i + 13.0))
        ops.append(gb.sched.OpCost(kind, "float16", 2.0 / i, 150.0 * i + 3.0, 1700.0 * i + 11.0))
    fast = tuple(
        gb.sched.OpCost(o.op_class, o.dtype, 2 * o.launch_us, 3 * o.bytes_per_us, 5 * o.flops_per_us) for o in ops
    )
    copy = gb.sched.CopyCost(3.0, 500.0)
    return gb.sched.Costs([gb.sched.DeviceCosts(fast, copy, copy), gb.sched.DeviceCosts(tuple(ops), host=True)])


class Operators:
    """Runs each variant of each case on all machines."""

    def __init__(self) -> None:
        self.machines = machines()
        self.sim = gb.Backend("SIM:name=OPS,mem=64M")
        self.costs = price_list()
        self.shown: set[str] = set()

    def add(self, digest: Digest, variant: Variant) -> None:
        label = variant.label
        try:
            built = build(variant)
        except (gb.GgmlError, TypeError) as error:
            digest.add("refused", label, type(error).__name__)
            return
        with built.ctx:
            self.plan(digest, label, built)
            self.compute(digest, label, built)

    def plan(self, digest: Digest, label: str, built: Built) -> None:
        """What needs no memory. Without data, in a scheduler that puts the nodes' inputs where it likes."""
        cpu = self.machines["default, 1 threads"]
        digest.add("supported", label, [(cpu.supports(t), self.sim.supports(t)) for t in built.graph.nodes])
        shown = f"{built.node.op} {built.variant.case.label}"
        if shown not in self.shown:  # one picture each: a file is written for it
            self.shown.add(shown)
            digest.add("graph", label, without_pointers(built.graph.to_dot()))
        with gb.Scheduler([self.sim, cpu], policy="cost", costs=self.costs) as sched:
            try:
                plan = sched.prepare(built.graph, allocate=False)
            except gb.GgmlError as error:
                digest.add("planned", label, type(error).__name__)
                return
            digest.add("planned", label, sched.prediction, plan.arenas, plan.splits, plan.copies)

    def compute(self, digest: Digest, label: str, built: Built) -> None:
        cpu = self.machines["default, 1 threads"]
        if not all(cpu.supports(t) for t in built.graph.nodes):
            digest.add("refused", label, "unsupported")
            return
        built.ctx.allocate(cpu)
        arrays = built.arrays(seeded(label))
        for name, machine in self.machines.items():
            for root, array in zip(built.roots, arrays, strict=True):
                root.set(array)
            try:
                built.graph.compute(machine)
            except gb.GgmlError as error:
                digest.add(name, label, type(error).__name__)
                continue
            digest.add(name, label, built.node.numpy())


NO_EARLIER_BUILD = {
    "add_id", "arange", "col2im_1d", "conv_3d", "cumsum", "fill", "flash_attn_ext", "gated_delta_net",
    "gated_linear_attn", "geglu", "geglu_erf", "geglu_quick", "glu", "im2col_3d", "interpolate", "l2_norm",
    "mul_mat_experts", "reglu", "roll", "rwkv_wkv6", "rwkv_wkv7", "set_rows", "solve_tri", "ssm_conv", "ssm_scan",
    "swiglu", "swiglu_oai", "timestep_embedding", "tri", "tril", "triu", "xielu",
}  # fmt: skip
"""Operations without a case, because no release has results of them to compare with."""


def operators(digest: Digest, wanted: Wanted) -> None:
    runner = Operators()
    covered = set()
    for case in cases():
        covered.add(case.name)
        digest.group = f"op/{case.name}"
        if wanted(digest.group):
            for variant in variants(case):
                runner.add(digest, variant)
    functions = {getattr(gb.ops, name, None) for name in covered}  # an operation may have two names
    missing = {name for name in gb.ops.OPERATIONS if getattr(gb.ops, name) not in functions} - NO_EARLIER_BUILD
    if missing:
        raise SystemExit(f"digest: there is no case for {', '.join(sorted(missing))}: add a case")


# ---- quantized formats -----------------------------------------------------------------------------------------------


def formats(digest: Digest, wanted: Wanted) -> None:
    for dtype in DTYPES:
        digest.group = f"quantize/{dtype.name}"
        if not dtype.is_quantized or not wanted(digest.group):
            continue
        rng = seeded(digest.group)
        for kind, array in arrays_to_quantize(rng):
            for with_importance in (False, True):
                weights = rng.random(array.shape[-1]).astype(np.float32) + 0.1 if with_importance else None
                label = f"{kind} importance={with_importance}"
                for n in (1, 2):
                    try:
                        made = gb.quantize(array, dtype, weights, n_threads=n)
                    except gb.GgmlError as error:
                        digest.add("quantized", label, type(error).__name__)
                        continue
                    digest.add("quantized", label, made)
                    digest.add("dequantized", label, gb.dequantize(made, dtype, n_threads=n))
        bits = rng.integers(0, 256, (4, dtype.row_nbytes(512)), np.uint8)
        digest.add(
            "random blocks", dtype.name, np.isnan(gb.dequantize(bits, dtype)), finite(gb.dequantize(bits, dtype))
        )


def arrays_to_quantize(rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    yield "normal", rng.standard_normal((6, 1024), np.float32)
    yield "tiny", rng.standard_normal((2, 512), np.float32) * np.float32(1e-6)
    yield "one-sided", rng.random((2, 512), np.float32) + np.float32(3.0)
    yield "zeros", np.zeros((1, 512), np.float32)
    spiked = rng.standard_normal((2, 512)).astype(np.float32)
    spiked[:, ::97] *= 300
    yield "spiked", spiked


def finite(array: Array) -> Array:
    """Zeros for what is not a number: its bits mean nothing."""
    return np.where(np.isnan(array), np.float32(0), array)


# ---- chains ----------------------------------------------------------------------------------------------------------


class Chain:
    """A graph under construction, with what to write into its inputs and weights."""

    def __init__(self, label: str) -> None:
        self.rng = seeded(label)
        self.ctx = gb.Context()
        self.inputs: list[tuple[gb.Tensor, Array]] = []

    def tensor(self, *shape: int, dtype: str = "float32", values: Array | None = None, scale: float = 1.0) -> gb.Tensor:
        given = In(shape, dtype, -scale, scale, values)
        t = self.ctx.tensor(shape, dtype)
        self.inputs.append((t, values_of(given, self.rng)))
        return t

    def results(self, graph: gb.Graph, backend: gb.Backend) -> list[Array]:
        """Two runs: the second one finds the plan of the first."""
        with gb.Scheduler([backend]) as sched:
            sched.allocate(graph)
            found = []
            for _ in range(2):
                for t, array in self.inputs:
                    t.set(array)
                sched.compute(graph)
                found += [o.numpy(copy=True) for o in graph.outputs]
        return found


WEIGHTS = [d.name for d in DTYPES if d.is_quantized or d.name in ("float32", "float16", "bfloat16")]


def product(c: Chain, n: int, dtype: str, then: str) -> list[gb.Tensor]:
    x = c.tensor(n, 256)
    y = x @ c.tensor(67, 256, dtype=dtype).T
    if "bias" in then:
        y = y + c.tensor(67)
    for name in ("gelu", "gelu_erf", "relu", "silu", "scale"):
        if name in then.split("+"):
            y = gb.ops.scale(y, 0.3) if name == "scale" else getattr(gb.ops, name)(y)
    if "gate" in then:
        y = gb.ops.silu(x @ c.tensor(67, 256, dtype=dtype).T) * y
    if "residual" in then:
        y = y + c.tensor(n, 67)
    return [y]


def attention(c: Chain, tokens: int, dtype: str, then: str) -> list[gb.Tensor]:
    heads, keys, size = 3, tokens + 37, 64
    q = c.tensor(heads, tokens, size)
    k = c.tensor(heads, keys, size, dtype=dtype)
    v = c.tensor(heads, size, keys, dtype=dtype)
    scores = gb.ops.mul_mat(k, q)
    if "mask" in then:
        mask = np.where(c.rng.random((tokens, keys)) < 0.2, -np.inf, 0).astype(np.float32)
        mask[:, 0] = 0
        scores = gb.ops.soft_max(scores, c.tensor(tokens, keys, values=mask), 0.125)
    elif "causal" in then:
        scores = gb.ops.soft_max(gb.ops.diag_mask_inf(gb.ops.scale(scores, 0.125), keys - tokens))
    else:
        scores = gb.ops.soft_max(gb.ops.scale(scores, 0.125))
    mixed = gb.ops.mul_mat(v, scores)
    return [gb.ops.cont(mixed.transpose(1, 0, 2)) if "merged" in then else mixed]


def rotation(c: Chain, tokens: int, dtype: str, then: str) -> list[gb.Tensor]:
    x = c.tensor(tokens, 4, 64)
    at = c.tensor(tokens, dtype="int32", values=np.arange(tokens, dtype=np.int32) + 5)
    y = gb.ops.rope(x, at, mode="neox_exact" if "neox" in then else "normal_exact")
    cache = c.tensor(tokens + 20, 4, 64, dtype=dtype)
    return [gb.ops.cpy(y, cache[7 : 7 + tokens])]


def normalized(c: Chain, n: int, dtype: str, then: str) -> list[gb.Tensor]:
    x = c.tensor(n, 256)
    if "residual" in then:
        x = x + c.tensor(n, 256)
    y = (gb.ops.norm(x) if "layer" in then else gb.ops.rms_norm(x)) * c.tensor(256)
    if "bias" in then:
        y = y + c.tensor(256)
    return [gb.ops.mul_mat(c.tensor(40, 256, dtype=dtype), y), x]


CHAINS: list[tuple[Any, tuple[str, ...], list[str]]] = [
    (
        product,
        ("plain", "bias", "bias+gelu", "bias+gelu_erf", "relu", "scale", "bias+silu", "gate", "bias+residual"),
        WEIGHTS,
    ),
    (attention, ("plain", "mask", "causal", "mask+merged"), ["float32", "float16", "bfloat16"]),
    (rotation, ("normal", "neox"), ["float32", "float16", "bfloat16"]),
    (normalized, ("rms", "layer", "layer+bias", "rms+residual"), ["float32", "float16", "q8_0", "q4_k"]),
]


def chains(digest: Digest, wanted: Wanted) -> None:
    usable = [n for n, ok in gb.backend.cpu_levels().items() if ok]
    backends = [
        (f"{level}, {n} threads", gb.Backend("CPU", level=level, n_threads=n)) for level in usable for n in (1, 2)
    ]
    for build, ends, dtypes in CHAINS:
        digest.group = f"chain/{build.__name__}"
        for end, dtype, n in ((e, d, n) for e in ends for d in dtypes for n in (1, 4, 33)):
            if not wanted(digest.group):
                continue
            label = f"{end} {dtype} {n}"
            chain = Chain(label)
            with chain.ctx:
                results = build(chain, n, dtype, end)
                # Something reads each result: what the last node of a graph reads is stored, and so not fused away.
                graph = chain.ctx.graph(*results, *(gb.ops.sum_rows(r) for r in results))
                for name, backend in backends:
                    try:
                        digest.add(name, label, *chain.results(graph, backend))
                    except gb.GgmlError as error:
                        digest.add(name, label, type(error).__name__)


# ---- scenes ----------------------------------------------------------------------------------------------------------


class Scene:
    """A random graph over three devices: weights lie on some, some nodes are pinned, one device lacks operators."""

    WIDTH = 32

    def __init__(self, label: str, policy: str) -> None:
        self.rng = seeded(label)
        self.devices = [
            gb.Backend("SIM:name=A,mem=64M"),
            gb.Backend("SIM:name=B,mem=64M,noops=gelu+soft_max,copy_bw=4G"),
            gb.Backend("CPU", n_threads=1),
        ]
        self.ctx = gb.Context()
        self.stores = [gb.Context(usage="weights") for _ in self.devices]
        self.inputs: list[gb.Tensor] = []
        self.weights: list[gb.Tensor] = []
        self.nodes: list[gb.Tensor] = []
        self.make()
        options: dict[str, Any] = {"policy": policy, "n_copies": int(self.rng.choice([1, 1, 2, 3]))}
        options["keep_all"] = bool(self.rng.random() < 0.2)
        options["check"] = bool(self.rng.random() < 0.3)
        if policy == "cost":
            options["costs"] = self.prices()
        self.sched = gb.Scheduler(self.devices, **options)

    def prices(self) -> gb.sched.Costs:
        copy = gb.sched.CopyCost(2.0, 1000.0)
        rates = self.rng.integers(50, 3000, 3)
        ops = [
            (
                gb.sched.OpCost("any", None, 1.0, float(r), 10.0 * float(r)),
                gb.sched.OpCost("matmul", None, 1.5, float(r), 40.0),
            )
            for r in rates
        ]
        return gb.sched.Costs(
            [gb.sched.DeviceCosts(o, copy, copy, host=i == 2) for i, o in enumerate(ops)], split_us=3.0
        )

    def make(self) -> None:
        for i in range(int(self.rng.integers(1, 4))):
            self.inputs.append(
                self.ctx.tensor((int(self.rng.choice([4, 4, 8])), self.WIDTH), name=f"in{i}").set_input()
            )
        for i in range(int(self.rng.integers(1, 6))):
            store = self.stores[int(self.rng.integers(0, 3))]
            dtype = str(self.rng.choice(["float32", "q8_0", "float16"]))
            self.weights.append(store.tensor((self.WIDTH, self.WIDTH), dtype, name=f"w{i}"))
        self.state = self.stores[2].tensor((4, self.WIDTH), name="state")
        for i in range(int(self.rng.integers(4, 40))):
            self.nodes.append(self.node().named(f"n{i}"))
        self.nodes.append(gb.ops.cpy(self.nodes[0][:4], self.state).named("kept"))
        used = {id(s) for n in self.nodes for s in n.sources}
        self.outputs = [n for n in self.nodes if id(n) not in used or self.rng.random() < 0.1]
        self.graph = self.ctx.graph(*self.outputs)

    def pick(self) -> gb.Tensor:
        known = [*self.inputs, *self.nodes]
        return known[-1 - min(int(self.rng.exponential(2.5)), len(known) - 1)]

    def node(self) -> gb.Tensor:
        x = self.pick()
        kind = int(self.rng.integers(0, 9))
        if kind < 3:
            return x @ self.weights[int(self.rng.integers(0, len(self.weights)))].T
        if kind == 3:
            y = self.pick()
            return x + y if x.shape == y.shape else gb.ops.concat(x, y, axis=0)
        if kind == 4:
            return gb.ops.cont(x[: x.shape[0] // 2]) if x.shape[0] > 4 else gb.ops.scale(x, 0.9)
        if kind == 5:
            return gb.ops.mul(x, x, inplace=bool(self.rng.random() < 0.5)) if x in self.nodes else gb.ops.sqr(x)
        return gb.ops.gelu(x) if kind == 6 else gb.ops.rms_norm(x) if kind == 7 else gb.ops.soft_max(x)

    def place(self) -> None:
        for store, device in zip(self.stores, self.devices, strict=True):
            if store.tensors():
                store.allocate(device, usage="weights" if device is not self.devices[2] else "any")
        for w in [*self.weights, self.state]:
            w.set(values_of(In(w.shape, w.dtype.name, -0.3, 0.3), self.rng))
        for n in self.nodes:
            if self.rng.random() < 0.1:
                device = self.devices[int(self.rng.integers(0, 3))]
                if device.supports(n):
                    self.sched.set_backend(n, device)

    def set_inputs(self) -> None:
        for t in (t for t in self.inputs if t.is_placed):  # the others are not in the graph
            t.set(self.rng.standard_normal(t.shape, np.float32))

    def read(self) -> list[Array]:
        return [n.numpy(copy=True) for n in self.outputs] + [self.state.numpy(copy=True)]

    def close(self) -> None:
        self.sched.close()
        for ctx in (self.ctx, *self.stores):
            ctx.close()


def counters(stats: gb.sched.SchedulerStats) -> list[Any]:
    """What does not depend on time."""
    return [
        (f.name, getattr(stats, f.name)) for f in fields(stats) if not f.name.endswith("seconds") and f.name != "splits"
    ]


def run_scene(digest: Digest, label: str, policy: str) -> None:
    scene = Scene(label, policy)
    scene.place()
    try:
        plan = scene.sched.prepare(scene.graph)
    except gb.GgmlError as error:
        digest.add("plans", label, type(error).__name__)
        return
    digest.add("plans", label, plan.arenas, plan.splits, plan.copies, scene.sched.prediction)
    digest.add("reasons in words", label, [plan.explain(n) for n in scene.graph.nodes], plan.to_text(), plan.to_csv())
    for _ in range(3):
        scene.set_inputs()
        scene.sched.compute(scene.graph)
        digest.add("results", label, *scene.read())
    scene.set_inputs()
    pending = scene.sched.compute_async(scene.graph)
    pending.wait()
    digest.add("results", label, *scene.read())
    digest.add("counters", label, counters(scene.sched.stats))
    scene.close()


def scenes(digest: Digest, wanted: Wanted) -> None:
    # Without automatic collections: an object of another scene that is collected in the middle of this one makes the
    # scheduler look for a plan once more, which its counters tell.
    gc.collect()
    gc.disable()
    try:
        for policy in ("weights", "sources", "cost"):
            digest.group = f"sched/{policy}"
            if wanted(digest.group):
                for seed in range(80):
                    run_scene(digest, f"world {seed}", policy)
    finally:
        gc.enable()


# ---- memory ----------------------------------------------------------------------------------------------------------


def memory(digest: Digest, wanted: Wanted) -> None:
    digest.group = "memory"
    if not wanted(digest.group):
        return
    for label, lower, upper, size in lifetimes():
        for alignment in (1, 32):
            plan = gb.planning.plan_memory(lower, upper, size, alignment)
            digest.add(
                "offsets", f"{label} {alignment}", plan.offsets, plan.peak, plan.lower_bound, plan.best_fit, plan.proved
            )
    cpu = gb.Backend("CPU", n_threads=1)
    for seed in range(40):
        label = f"order {seed}"
        scene = Scene(label, "weights")
        digest.add("orders", label, [n.name for n in scene.graph.reordered().nodes])
        for store in scene.stores:
            if store.tensors():
                store.allocate(cpu)
        for w in [*scene.weights, scene.state]:
            w.set(values_of(In(w.shape, w.dtype.name, -0.3, 0.3), scene.rng))
        with gb.sched.GraphAllocator(cpu) as allocator:
            digest.add("graph allocator", label, allocator.measure(scene.graph))
            allocator.allocate(scene.graph)
            scene.set_inputs()
            scene.graph.compute(cpu)
            digest.add("graph allocator", label, *scene.read())
        scene.close()


def lifetimes() -> Iterator[tuple[str, Array, Array, Array]]:
    for seed in range(60):
        rng = seeded(f"lifetimes {seed}")
        n = int(rng.integers(1, 200))
        lower = rng.integers(0, 100, n)
        yield f"random {seed}", lower, lower + rng.integers(1, 20, n), rng.integers(0, 1000, n)
    rng = seeded("chain")
    lower = np.arange(120)
    yield "chain", lower, lower + rng.integers(1, 5, 120), rng.integers(1, 5, 120) * 64


# ---- files -----------------------------------------------------------------------------------------------------------


def files(digest: Digest, wanted: Wanted) -> None:
    digest.group = "gguf"
    if not wanted(digest.group):
        return
    rng = seeded("gguf")
    array = rng.standard_normal((4, 512), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            path = Path(folder) / f"{dtype.name}.gguf"
            try:
                with gb.gguf.Writer(path) as out:
                    out.add("general.architecture", "digest").add("numbers", [1, 2, 3]).add("x", 0.5)
                    out.add_tensor("w", array, dtype=dtype)
                    out.add_tensor("b", array[0])
                with gb.gguf.open(path) as file:
                    tensor = file.tensors["w"]
                    digest.add("read", dtype.name, tensor.ne, tensor.size, tensor.dequantize())
                digest.add("written", dtype.name, path.read_bytes())
            except (gb.GgmlError, TypeError) as error:
                digest.add("written", dtype.name, type(error).__name__)


# ---- demo ------------------------------------------------------------------------------------------------------------


def demo(digest: Digest, wanted: Wanted) -> str:
    """Says why it was skipped, if it was."""
    digest.group = "demo"
    if not wanted(digest.group):
        return ""
    sys.path.insert(0, str(ROOT))
    try:
        sentences = importlib.import_module("examples.embed.__main__").SENTENCES
        model = importlib.import_module("examples.embed.model")
        model.model_dir()
        importlib.import_module("tokenizers")
    except (ImportError, SystemExit) as error:
        return f"demo skipped: {error}"
    texts = [*sentences, *(" ".join(sentences[: i + 1]) for i in range(3))]
    for dtype in ("f32", "q8_0", "q4_k"):
        for devices in (("CPU",), ("SIM", "CPU")):
            for n in (1, 2):
                label = f"{dtype} {'+'.join(devices)} {n} threads"
                with contextlib.redirect_stdout(io.StringIO()):  # it tells what it quantizes
                    embedder = model.Embedder(devices, n_threads=n, dtype=dtype)
                digest.add(dtype, label, embedder.embed(texts, batch_size=4))
    for path in sorted(Path(os.environ["XDG_CACHE_HOME"]).rglob("*.gguf")):
        digest.add("files", path.name, path.read_bytes())
    return ""


# ---- running and comparing -------------------------------------------------------------------------------------------


def everything(digest: Digest, wanted: Wanted) -> list[str]:
    """All groups; what was skipped."""
    notes = []
    for run in (
        operators,
        formats,
        chains,
        scenes,
        memory,
        files,
    ):
        run(digest, wanted)
    note = demo(digest, wanted)
    if note:
        notes.append(note)
    return notes


def machine() -> dict[str, str]:
    """What must be the same for two digests to be comparable."""
    levels = " ".join(n for n, usable in gb.backend.cpu_levels().items() if usable)
    return {"levels": levels, "python": platform.python_version(), "numpy": np.__version__}


def compare(now: dict[str, Any], before: dict[str, Any], wanted: Wanted) -> int:
    """Prints what differs; 1 if anything does."""
    if now["machine"] != before["machine"]:
        print(f"not comparable: {before['machine']} then, {now['machine']} now")
        return 1
    different = 0
    groups = sorted(g for g in now["groups"].keys() | before["groups"].keys() if wanted(g))
    for group in groups:
        new, old = now["groups"].get(group, {}), before["groups"].get(group, {})
        parts = sorted(p for p in new.keys() | old.keys() if new.get(p) != old.get(p))
        print(f"{'equal' if not parts else 'DIFFERENT'}  {group}{': ' + '; '.join(parts) if parts else ''}")
        different += bool(parts)
    print(f"{len(groups) - different} of {len(groups)} groups are equal")
    return 1 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="A digest of what the installed package computes and decides.")
    parser.add_argument("--json", type=Path, help="write the hashes to this file")
    parser.add_argument("--compare", type=Path, help="a file that --json wrote: which groups are equal?")
    parser.add_argument("--only", default="*", help="pattern of the groups wanted: 'op/mul_mat*'")
    parser.add_argument("--cases", action="store_true", help="one line for each result")
    options = parser.parse_args()
    begin = time.monotonic()
    warnings.simplefilter("ignore", gb.errors.PerformanceWarning)
    digest = Digest(options.cases)

    def wanted(group: str) -> bool:
        return fnmatch.fnmatch(group, options.only)

    notes = everything(digest, wanted)
    result: dict[str, dict[str, Any]] = {"machine": machine(), "groups": digest.result()}
    if not options.cases and not options.compare:
        for group, parts in result["groups"].items():
            print(f"{combined(parts)} {group}")
    for note in notes:
        print(note)
    print(f"{combined(result['groups'])} total: {digest.n} results, {time.monotonic() - begin:.0f} s, {gb.__file__}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.compare:
        return compare(result, json.loads(options.compare.read_text()), wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
