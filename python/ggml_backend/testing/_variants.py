"""Variants of cases: all dtypes, layouts and positions of results, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from ..dtypes import dtypes
from ._attention import of_attention
from ._cases import _UNPACKED, COMPARE, Case, Sizes, in_place_sources, of_elements, of_rows
from ._inputs import FLOATS, LAYOUTS, In, shown
from ._layers import of_layers
from ._products import of_products
from ._tolerance import EXACT
from ._windows import of_windows

__all__ = ["Variant", "all_cases", "all_variants", "large_variants", "special_variants"]

_SPECIAL = (
    *("abs", "sgn", "neg", "step", "relu", "tanh", "elu", "gelu", "gelu_erf", "gelu_quick", "silu", "hardswish"),
    *("hardsigmoid", "leaky_relu", "sqr", "sqrt", "log", "clamp", "scale", "add", "sub", "mul", "div", "dup", "cont"),
    *("exp", "sigmoid", "sin", "cos", "softplus", "less", "less_equal", "greater", "equal", "not_equal", "where"),
    *("soft_max", "sum_rows", "mean", "argmax", "argsort", "diag_mask_inf", "diag_mask_zero", "norm", "rms_norm"),
)
_QUANTIZED = [d.name for d in dtypes.values() if d.is_quantized]
_FEW = ("q4_0", "q8_0", "q4_k", "q6_k")  # formats of a quick run


@dataclass(frozen=True)
class Variant:
    """A case with its dtypes.

    moved, layout: the source that is a view, and its layout
    inplace: use the form that overwrites the first source
    on: the source whose memory the result gets, as in a scheduler's plan
    """

    case: Case
    inputs: tuple[In, ...]
    moved: int = 0
    layout: str = "whole"
    inplace: bool = False
    on: int | None = None

    @property
    def op(self) -> str:
        return self.case.name

    @property
    def dtype(self) -> str:
        return self.inputs[0].dtype

    @cached_property
    def name(self) -> str:
        """The name in reports."""
        parts = [self.op, ",".join(f"{i.dtype}:{shown(i.shape)}" for i in self.inputs)]
        parts += [self.case.label] if self.case.label else []
        parts += [f"{self.layout}-{self.moved}"] if self.layout != "whole" else []
        parts += ["inplace"] if self.inplace else []
        parts += [f"on-{self.on}"] if self.on is not None else []
        parts += ["special"] if self.inputs[0].special else []
        return "/".join(parts)

    @property
    def is_empty(self) -> bool:
        """True if the result has no elements."""
        return any(0 in i.shape for i in self.inputs)

    def build(self, tensors: Sequence[Any]) -> Any:
        return self.case.call(*tensors, inplace=True) if self.inplace else self.case.call(*tensors)


def _typed(case: Case, first: str, second: str) -> Variant | None:
    """The case with these dtypes. None if rows do not consist of whole blocks."""
    inputs = tuple(i.typed(first, second) for i in case.inputs)
    if not all(i.fits for i in inputs):
        return None
    quantized = any(i.element.is_quantized for i in inputs)
    exact = case.rule is _UNPACKED and not quantized
    return Variant(replace(case, rule=EXACT) if exact else case, inputs)


def _plain(case: Case, quick: bool) -> Iterator[Variant]:
    given = {i.dtype for i in case.inputs}
    firsts = ["float32"]
    if "a" in given:
        others = [d for d in dtypes if d not in _QUANTIZED and d not in FLOATS]
        firsts = [*FLOATS, *(["int32"] if quick else others), *(_FEW if quick else _QUANTIZED)]
    for first in firsts:
        many = "b" in given and first in FLOATS and not quick
        for second in FLOATS if many else ("float32",):
            found = _typed(case, first, second)
            if found is not None:
                yield found


def _views(case: Case, quick: bool) -> Iterator[Variant]:
    for dtype in ("float32",) if quick else ("float32", "float16", "q8_0"):
        found = _typed(case, dtype, "float32")
        for moved, given in enumerate(found.inputs if found else ()):
            if given.values is not None or not given.shape:
                continue
            n = len(given.shape)
            for layout in LAYOUTS:
                same = (layout != "offset" and n < 2) or (layout == "permuted" and n < 3)
                if found is not None and not same and not (given.element.is_quantized and layout == "transposed"):
                    yield replace(found, moved=moved, layout=layout)


def _placed(case: Case, quick: bool) -> Iterator[Variant]:
    """Variants whose result overwrites a source, by ``inplace=True`` or as in a scheduler's
    plan."""
    for dtype in FLOATS[: 1 if quick else 3]:
        found = _typed(case, dtype, dtype)
        if found is None:
            continue
        if case.inplace:
            yield replace(found, inplace=True)
        for source in in_place_sources(case.name):
            if _may_hold_result(found, source, dtype):
                yield replace(found, on=source)


def _may_hold_result(variant: Variant, source: int, dtype: str) -> bool:
    """True if the source has the shape and the dtype of the result."""
    if source >= len(variant.inputs) or (variant.op in COMPARE and dtype != "float32"):
        return False
    given = variant.inputs[source]
    like = variant.inputs[1 if variant.op == "where" else 0]
    return given.shape == like.shape and given.dtype == dtype


def all_cases(sizes: Sizes) -> Iterator[Case]:
    """All cases of operators."""
    for family in (of_elements, of_rows, of_products, of_windows, of_attention, of_layers):
        yield from family(sizes)


def _once(found: Iterable[Variant]) -> Iterator[Variant]:
    names = set()
    for variant in found:
        if variant.name not in names:
            names.add(variant.name)
            yield variant


@cache
def all_variants(quick: bool) -> tuple[Variant, ...]:
    """All variants. Names are unique."""

    def every() -> Iterator[Variant]:
        for case in all_cases(Sizes("quick" if quick else "all")):
            yield from _plain(case, quick)
            if case.layouts:
                yield from _views(case, quick)
            if case.inplace or in_place_sources(case.name):
                yield from _placed(case, quick)

    return tuple(_once(every()))


def large_variants() -> Iterator[Variant]:
    """Calls with floats and sizes for several threads, with each source contiguous and
    transposed."""
    for case in all_cases(Sizes("large")):
        found = _typed(case, "float32", "float32")
        if found is not None:
            yield found
            for moved in range(len(found.inputs) if case.layouts else 0):
                yield replace(found, moved=moved, layout="transposed")


@cache
def special_variants(quick: bool) -> tuple[Variant, ...]:
    """Operators whose results are defined for NaN, infinities and limits of floats."""

    def every() -> Iterator[Variant]:
        for case in all_cases(Sizes("quick" if quick else "all")):
            shape = case.inputs[0].shape
            if case.name not in _SPECIAL or case.label.startswith("eps") or not 3 <= shape[-1] <= 64:
                continue
            for dtype in FLOATS[: 1 if quick else 3]:
                found = _typed(case, dtype, "float32")
                if found is not None:
                    yield replace(found, inputs=tuple(replace(i, special=True) for i in found.inputs))

    return tuple(_once(every()))
