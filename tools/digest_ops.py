"""What tools/digest.py computes of the operators: each public function, in all dtypes, shapes and layouts it takes.

A case is a call (name, options) with its inputs. ``a`` inputs take every dtype in turn, ``b`` inputs every float,
others have the dtype that is written. What an operator refuses is part of the digest as well, by the kind of error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import ggml_backend as gb

Array = np.ndarray[Any, Any]
FLOATS = ("float32", "float16", "bfloat16")
DTYPES = sorted({d for d in vars(gb).values() if isinstance(d, gb.DType)}, key=lambda d: d.id)
LAYOUTS = ("whole", "padded", "transposed", "permuted")


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
    return Case(name, inputs, partial(getattr(gb, name), **options), label)


# ---- cases -----------------------------------------------------------------------------------------------------------

SHAPES = [(1,), (3, 5), (2, 33), (3, 64), (2, 256), (2, 3, 4, 130), (300, 17), (2, 1040)]
UNARY = (
    *("abs", "sgn", "neg", "step", "tanh", "elu", "relu", "gelu", "gelu_erf", "gelu_quick", "silu", "hardswish"),
    *(
        "hardsigmoid",
        "leaky_relu",
        "sqr",
        "dup",
        "cont",
        "norm",
        "rms_norm",
        "sum",
        "sum_rows",
        "mean",
        "argmax",
        "argsort",
    ),
    *("exp", "sigmoid", "sin", "cos", "softplus"),
)


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
        yield Case("cpy", (a(*shape), In(shape, dtype.name)), gb.cpy, dtype.name)
    yield call("repeat", a(*shape), like=(2, *shape[-3:-1], 2 * n))
    yield call("repeat_back", a(4, *shape[-3:-1], 2 * n), like=(2, *shape[-3:-1], n))
    for name in ("silu_back", "rms_norm_back", "soft_max_back"):
        yield call(name, a(*shape), b(*shape))
    yield call("soft_max", a(*shape), b(*shape), scale=0.5)
    if len(shape) > 1:
        rows = shape[-2]
        ids = np.arange(5) * 7 % rows
        yield call("get_rows", a(*shape[-2:]), ints(ids))
        yield Case("get_rows_back", (b(5, n), ints(ids), a(rows, n)), gb.get_rows_back)
        yield call("acc", a(rows + 1, n), b(rows, n), offset=4 * n)
        yield call("set", a(rows + 1, n), b(rows, n), offset=4 * n)
        yield Case("cross_entropy_loss", (a(*shape), f32(*shape, low=0.01, high=1.0)), gb.cross_entropy_loss)
        yield Case("cross_entropy_loss_back", (a(*shape), f32(*shape, low=0.01), f32(1)), gb.cross_entropy_loss_back)
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
        yield Case("matmul", (f32(n, k), a(m, k)), lambda x, w: gb.matmul(x, w.T, prec="f32"))
    for left, right in (((3,), (3,)), ((2,), (6,)), ((2, 1), (2, 3)), ((1, 2), (3, 4))):
        for m, n, k in ((5, 3, 64), (9, 1, 256), (40, 20, 256)):
            yield call("mul_mat", a(*left, m, k), b(*right, n, k))
    ids = np.array([[1, 0], [0, 2], [2, 1], [1, 1], [0, 0]])
    for m, n, k in ((5, 1, 64), (8, 5, 256), (33, 5, 512)):
        inputs = (a(m, k), a(m, k), a(m, k), ints(ids[:n]), f32(n, k))
        yield Case("mul_mat_id", inputs, lambda p, q, r, i, x: gb.mul_mat_id([p, q, r], i, 1, x))
    for shape in ((3, 4), (64, 33), (2, 5, 256), (70, 512)):
        yield call("out_prod", a(*shape), b(*shape[:-1], 7))


def attention() -> Iterator[Case]:
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
    yield Case("win_unpart", (a(4, 5, 2),), lambda x: gb.win_unpart(gb.win_part(x, 3), 5, 4, 3))
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
    yield Case("reshape", (x,), lambda t: gb.cont(gb.reshape(t, (6, -1))))
    yield Case("view", (x,), lambda t: gb.cont(gb.view(t, (2, 256), offset=1024)))
    yield Case("permute", (x,), lambda t: gb.cont(gb.permute(t, 1, 2, 0, 3)))
    yield Case("transpose", (x,), lambda t: gb.cont(gb.transpose(t)))
    yield Case("empty_like", (x,), lambda t: gb.cpy(t, gb.empty_like(t)))
    for arity in (1, 2, 3):
        inputs = tuple(f32(3, 33) for _ in range(arity))
        yield Case("map_custom", inputs, partial(gb.map_custom, lambda d, *s: sum(s[1:], 2 * s[0])))
        yield Case("custom", inputs, partial(gb.custom, lambda d, *s: sum(s).sum(1), shape=3, dtype="f64"))


def cases() -> Iterator[Case]:
    for shape in SHAPES:
        yield from one_input(shape)
        yield from two_inputs(shape)
    yield from products()
    yield from attention()
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
    return all(i.shape[-1] % gb.as_dtype(i.dtype).block_size == 0 for i in inputs)


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
    if "inplace" in inspect.signature(getattr(gb, case.name)).parameters and "inplace" not in options:
        for first in FLOATS:
            if isinstance(case.call, partial):
                yield Variant(case, typed(case, first, "float32"), inplace=True)


# ---- inputs ----------------------------------------------------------------------------------------------------------


def values_of(given: In, rng: np.random.Generator) -> Array:
    """An array as :meth:`Tensor.set` takes it, the same for each dtype but for rounding."""
    if given.values is not None:
        return given.values
    dtype = gb.as_dtype(given.dtype)
    floats = (rng.random(given.shape) * (given.high - given.low) + given.low).astype(np.float32)
    if dtype.name == "bfloat16":
        return (floats.view(np.uint32) >> 16).astype(np.uint16)
    if dtype.is_quantized:
        return blocks(dtype, floats, rng)
    if dtype.numpy is not None and np.dtype(dtype.numpy).kind == "i":
        return (floats * 50).astype(dtype.numpy)
    return floats.astype(dtype.numpy)


def blocks(dtype: gb.DType, floats: Array, rng: np.random.Generator) -> Array:
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


def built(variant: Variant) -> Built:
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
