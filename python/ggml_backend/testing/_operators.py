"""Checks one variant of an operator: the device and the CPU compute it in guarded memory.

All tensors of a graph are in one buffer, with gaps around them. The check fills the buffer with poison, writes
the sources, computes the graph, and reads the whole buffer. Sources must be unchanged, and gaps must still hold
poison. If the result is a view of a larger tensor, only its elements may have changed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .._base.errors import GgmlError
from .._base.terminal import reason
from ..backend.backend import Backend
from ..backend.buffer import Buffer
from ..dtypes import int8
from ..tensor._arrays import widened
from ..tensor._quantize import dequantize
from ..tensor.context import Context
from ..tensor.graph import Graph
from ..tensor.tensor import Tensor
from ._inputs import POISON, Array, In, Laid, in_bytes, laid, values_of
from ._tolerance import ABSOLUTE, UNIT, allowance, block_allowance, difference, worst
from ._variants import Variant

__all__ = ["Nothing", "Wrong", "check_refusal", "check_variant", "generator", "meaning"]

_NO_WORK = ("NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
_GAP = 64  # least number of bytes


class Wrong(Exception):
    """An error of the device. The message describes it."""


class Nothing(Exception):
    """Nothing could be checked. The message is the reason."""


def generator(seed: int, name: str) -> np.random.Generator:
    """The random numbers of one case. They do not depend on other cases."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def meaning(tensor: Tensor) -> Array:
    """The values of a tensor as float64."""
    array = tensor.numpy(copy=True)
    if tensor.dtype.name == "bfloat16":
        return widened(array).astype(np.float64)
    if tensor.dtype.is_quantized:
        return dequantize(array, tensor.dtype, n_threads=1).astype(np.float64) if array.size else array
    return array.astype(np.float64)


@dataclass
class Bench:
    """The graph of a variant, without memory until :meth:`place`."""

    variant: Variant
    arrays: list[tuple[Array, Array]]
    ctx: Context = field(default_factory=Context)
    sources: list[Laid] = field(default_factory=list)
    node: Tensor = field(init=False)
    graph: Graph = field(init=False)
    buffer: Buffer = field(init=False)
    whole: Tensor = field(init=False)
    places: list[tuple[Tensor, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        v = self.variant
        for i, (given, (array, _)) in enumerate(zip(v.inputs, self.arrays, strict=True)):
            self.sources.append(laid(self.ctx, given, v.layout if i == v.moved else "whole", array))
        self.node = v.build([s.tensor for s in self.sources])
        self.graph = self.ctx.graph(self.node)

    @property
    def computed(self) -> list[Tensor]:
        return [t for t in self.graph.nodes if t.op not in _NO_WORK]

    def refusal(self, backend: Backend) -> str | None:
        """The reason why the backend does not compute it; None if it does."""
        for node in self.computed:
            if not backend.supports(node):
                return backend.unsupported_reason(node) or "it gives no reason"
        return None

    def place(self, backend: Backend) -> None:
        """Allocates memory for all tensors, fills it with poison, and writes the sources."""
        kind, step = backend.buffer_type, max(backend.alignment, _GAP)
        tensors = [s.root for s in self.sources] + [t for t in self.graph.nodes if t.view_of is None]
        over = self.variant.on
        at = step
        for t in tensors:
            if over is not None and t == self.node:
                self.places.append((t, self.places[over][1], self.places[over][2]))
                continue
            size = kind.nbytes_for(t)
            self.places.append((t, at, size))
            at += -(-(size + _GAP) // step) * step
        if at > backend.max_nbytes:
            raise Nothing(f"it takes a buffer of {at} bytes; the device's largest has {backend.max_nbytes}")
        self.whole = self.ctx.tensor((at,), int8)
        self.buffer = backend.allocate(at)
        self.buffer.clear(POISON)
        self.buffer.place(self.whole)
        for t, offset, _ in self.places:
            self.buffer.place(t, offset)
        for t in self.graph.nodes:
            if not t.is_placed:  # is_placed places views
                raise Wrong(f"{t.describe()} has no memory after its source was placed")
        for source in self.sources:
            source.root.set(source.memory)

    def expected(self) -> tuple[Array, Array]:
        """The expected bytes of the buffer without a computation, and a mask of the bytes that must not change."""
        image = np.full(self.whole.size, POISON, np.uint8)
        fixed = np.ones(image.size, bool)
        n = len(self.sources)
        for source, (root, offset, size) in zip(self.sources, self.places, strict=False):
            raw = np.frombuffer(source.memory.tobytes(), np.uint8)
            image[offset : offset + raw.size] = raw
            fixed[offset + root.nbytes : offset + size] = False  # padding of the device
        for _, offset, size in self.places[n:]:
            fixed[offset : offset + size] = False
        for t in self.graph.nodes:
            over = t.view_of
            if over is not None and t.op not in _NO_WORK:
                start = next(offset for r, offset, _ in self.places if r == over) + int(t._p.view_offs)
                fixed[_bytes_of(t, start)] = False
        return image, fixed

    def compute(self, backend: Backend) -> None:
        if not self.graph.compute(backend):
            raise Wrong("compute was aborted")
        backend.synchronize()

    def watch(self) -> None:
        """Raises if bytes outside the results changed."""
        image, fixed = self.expected()
        now = self.whole.numpy(copy=True).view(np.uint8)
        changed = np.flatnonzero(fixed & (now != image))
        if changed.size:
            raise Wrong(self._place_of(int(changed[0]), changed.size))

    def _place_of(self, at: int, n: int) -> str:
        for i, (t, offset, _) in enumerate(self.places):
            if offset <= at < offset + t.nbytes:
                what = f"source {i}" if i < len(self.sources) else "a result in between"
                return f"{in_bytes(n)} of {what} ({t.describe()}) were changed, the first at {at - offset}"
        gaps = [
            (at - offset - size, f"behind {t.describe()}") for t, offset, size in self.places if offset + size <= at
        ]
        gaps += [(offset - at, f"before {t.describe()}") for t, offset, _ in self.places if at < offset]
        bytes_away, where = min(gaps)
        return f"{in_bytes(n)} outside of the tensors were written, the first {bytes_away} {where}"


def _bytes_of(t: Tensor, start: int) -> Array:
    """The positions of the bytes of a tensor's elements."""
    element, shape = t.dtype.itemsize, list(t.shape)
    if shape and t.dtype.is_quantized:
        shape[-1] //= t.dtype.block_size
    at = np.arange(element, dtype=np.int64) + start
    for n, stride in zip(shape, t.strides, strict=True):
        at = (at[..., None, :] + (np.arange(n) * stride)[:, None]) if n else at[..., None, :][..., :0, :]
    return at.reshape(-1)


# ---- comparing -------------------------------------------------------------------------------------------------------


def _magnitude_run(variant: Variant, arrays: Sequence[tuple[Array, Array]], cpu: Backend) -> Array:
    """The operator on the magnitudes of its sources. Quantized sources become float32."""
    inputs, given = [], []
    for i, (array, means) in zip(variant.inputs, arrays, strict=True):
        if i.values is not None or i.element.numpy.kind == "i":
            inputs.append(i)
            given.append((array, means))
            continue
        dtype = i.dtype if i.dtype == "float16" else "float32"
        magnitude = np.nan_to_num(np.abs(means), nan=0.0, posinf=0.0).astype(dtype)
        inputs.append(In(i.shape, dtype))
        given.append((magnitude, magnitude))
    bench = Bench(replace(variant, inputs=tuple(inputs), layout="whole", inplace=False, on=None), given)
    bench.place(cpu)
    bench.compute(cpu)
    return meaning(bench.node)


def _grouped(variant: Variant, arrays: Sequence[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
    """The sources. Each value of the last one is replaced by the largest of its group of 32, unless it is an index."""
    found = list(arrays)
    at = max(i for i, given in enumerate(variant.inputs) if given.values is None)
    rows = np.abs(arrays[at][1])
    n = rows.shape[-1]
    starts = np.arange(0, n, 32)
    largest = np.maximum.reduceat(rows, starts, axis=-1) if n else rows
    spread = np.repeat(largest, 32, -1)[..., :n].astype(np.float32) if n else rows
    found[at] = (spread, spread)
    return found


def _allowed(bench: Bench, want: Array, cpu: Backend) -> Any:
    variant, arrays = bench.variant, bench.arrays
    rule, sources = variant.case.rule, [i.element for i in variant.inputs]
    dtype = bench.node.dtype
    if dtype.is_quantized:
        return block_allowance(want, dtype)
    if rule.magnitude == ABSOLUTE:
        magnitude: Any = _magnitude_run(variant, arrays, cpu)
    elif callable(rule.magnitude):
        with np.errstate(all="ignore"):
            magnitude = rule.magnitude(*[means for _, means in arrays], want)
    else:
        magnitude = np.abs(want)
    allowed = allowance(rule, want, magnitude, dtype, sources)
    if rule.in_bytes is not None and sources[1].is_quantized and "prec=f32" not in variant.case.label:
        allowed = allowed + 2 * rule.in_bytes(*[means for _, means in arrays], want)
    if rule.kind == "product" and sources[0].is_quantized:
        allowed = allowed + 4 * UNIT["float16"] * magnitude
        if "prec=f32" not in variant.case.label:
            allowed = allowed + 2 / 254 * _magnitude_run(variant, _grouped(variant, arrays), cpu)
    return allowed


def _compare(bench: Bench, reference: Bench, cpu: Backend, bit_identical: bool) -> None:
    got, want = meaning(bench.node), meaning(reference.node)
    if bit_identical and bench.node.dtype.numpy.kind != "i":
        allowed: Any = 0.0
    else:
        allowed = _allowed(bench, want, cpu)
    wrong = difference(got, want, allowed, bench.node.dtype)
    if wrong.any():
        raise Wrong(worst(got, want, allowed, wrong))


# ---- a variant -------------------------------------------------------------------------------------------------------


def _benches(variant: Variant, seed: int) -> tuple[Bench, Bench] | None:
    """The benches for the device and for the CPU. None if the operation refuses such arguments."""
    rng = generator(seed, variant.name)
    arrays = [values_of(i, rng) for i in variant.inputs]
    try:
        return Bench(variant, arrays), Bench(variant, arrays)
    except GgmlError:
        return None


def check_variant(
    variant: Variant, seed: int, backend: Backend, cpu: Backend, bit_identical: bool
) -> tuple[str, str] | None:
    """The outcome and its message.

    None if the operation refuses such arguments, ``"unknown"`` if neither backend computes it. Raises :class:`Wrong`,
    or the exception of the device.
    """
    made = _benches(variant, seed)
    if made is None:
        return None
    bench, reference = made
    why = bench.refusal(backend)
    if reference.refusal(cpu) is not None:
        return ("unknown" if why else "skipped"), "the CPU does not compute it: nothing to compare with"
    if why is not None:
        return "refused", why
    bench.place(backend)
    bench.compute(backend)
    bench.watch()
    reference.place(cpu)
    reference.compute(cpu)
    _compare(bench, reference, cpu, bit_identical)
    return "passed", ""


def check_refusal(variant: Variant, seed: int, backend: Backend) -> str:
    """Computes a node that the device refuses. It must raise an error and write nothing. Returns
    the message."""
    made = _benches(variant, seed)
    if made is None or made[0].refusal(backend) is None:
        return ""
    bench = made[0]
    bench.place(backend)
    try:
        bench.compute(backend)
    except Wrong:
        raise
    except Exception as error:
        bench.watch()
        return reason(error)
    raise Wrong("it raised no error for a node that it does not support")
