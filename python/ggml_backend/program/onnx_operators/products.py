"""Matrix products and norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UnsupportedError
from ..network import Ref
from ..onnx_values import Attributes, Given, broadcast, numbers, product
from . import Inputs, at, binary, front, known, operator, reduced, unary, viewed

if TYPE_CHECKING:
    from ..onnx import Reader


@operator("MatMul")
def matmul(r: Reader, i: Inputs, a: Attributes) -> Any:
    p, q = r.shape(i[0]), r.shape(i[1])
    batch = broadcast([p[:-2], q[:-2]])
    shape = [*batch, *p[-2:-1], *(q[-1:] if len(q) > 1 else ())]
    return r.emit("matmul", {"self": i[0], "other": i[1]}, shape, "float32")


@operator("Gemm")
def gemm(r: Reader, i: Inputs, a: Attributes) -> Any:
    x, w, c = i[0], i[1], at(i, 2)
    if a.get("transA"):
        x = r.emit("t", {"self": x}, r.shape(x)[::-1], "float32")
    rows = r.shape(w)[0] if a.get("transB") else r.shape(w)[1]
    op, arguments = ("linear", {"input": x, "weight": w}) if a.get("transB") else ("mm", {"self": x, "mat2": w})
    alpha, beta = a.get("alpha", 1.0), a.get("beta", 1.0)
    if op == "linear" and c is not None and len(r.shape(c)) == 1 and (alpha, beta) == (1, 1):
        arguments["bias"], c = c, None
    y = r.emit(op, arguments, (r.shape(x)[0], rows), "float32")
    y = y if alpha == 1 else unary(r, "mul.Scalar", y, other=alpha)
    if c is None:
        return y
    return binary(r, "add.Tensor", y, c if beta == 1 else unary(r, "mul.Scalar", c, other=beta))


@operator("Einsum")
def einsum(r: Reader, i: Inputs, a: Attributes) -> Any:
    """One or several operands, from left to right. Each pair is a product of batches of matrices."""
    terms, result = _terms(a["equation"].replace(" ", ""), [len(r.shape(x)) for x in i])
    x, term = i[0], terms[0]
    for place, (y, other) in enumerate(zip(i[1:], terms[1:], strict=True)):
        wanted = {*result, *"".join(terms[place + 2 :])}
        x, term = _pair(r, (x, term), (y, other), wanted)
    x, term = _summed(r, x, term, {*result})
    return _turned(r, x, term, result)


def _terms(equation: str, axes: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result. Axes of an ellipsis get letters of their own."""
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    letters = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in equation]
    hidden = [n - len(term.replace("...", "")) for term, n in zip(terms, axes, strict=True) if "..." in term]
    if len({*hidden}) > 1:
        raise UnsupportedError(f"Einsum {equation} of operands whose ellipses have different axes")
    dots = "".join(letters[: hidden[0]]) if hidden else ""
    terms = [term.replace("...", dots) for term in terms]
    if any(len({*term}) < len(term) or len(term) != n for term, n in zip(terms, axes, strict=True)):
        raise UnsupportedError(f"Einsum {equation} of operands with {list(axes)} axes")
    if not arrow:
        every = "".join(terms)
        right = dots + "".join(sorted(c for c in {*every} if every.count(c) == 1 and c not in dots))
    result = right.replace("...", dots)
    if len({*result}) < len(result):
        raise UnsupportedError(f"Einsum {equation} with a letter twice in its result")
    return terms, result


def _summed(r: Reader, x: Given, term: str, wanted: set[str]) -> tuple[Given, str]:
    """The operand without the axes that nothing reads."""
    gone = [axis for axis, c in enumerate(term) if c not in wanted]
    if not gone:
        return x, term
    return reduced(r, "sum.dim_IntList", x, gone, False), "".join(c for c in term if c in wanted)


def _turned(r: Reader, x: Given, term: str, order: str) -> Any:
    """The operand with its axes in the order of these letters."""
    if term == order:
        return x
    own = r.shape(x)
    dims = [term.index(c) for c in order]
    return r.emit("permute", {"self": x, "dims": dims}, [own[n] for n in dims], r.dtype(x))


def _pair(r: Reader, first: tuple[Given, str], second: tuple[Given, str], wanted: set[str]) -> tuple[Given, str]:
    """The product of two operands. It keeps the axes whose letters something reads."""
    (x, p), (y, q) = _summed(r, *first, wanted | {*second[1]}), _summed(r, *second, wanted | {*first[1]})
    size = {**dict(zip(q, r.shape(y), strict=True)), **dict(zip(p, r.shape(x), strict=True))}
    if any(size[c] != n for c, n in zip(q, r.shape(y), strict=True)):
        numbers([*r.shape(x), *r.shape(y)], "Einsum")
        raise UnsupportedError("Einsum of operands that repeat along an axis")
    batch = "".join(c for c in p if c in q and c in wanted)
    inner = "".join(c for c in p if c in q and c not in wanted)
    rows, columns = ("".join(c for c in term if c not in other) for term, other in ((p, q), (q, p)))
    sizes = [product([size[c] for c in letters]) for letters in (batch, rows, inner, columns)]
    n, h, k, w = sizes
    left = viewed(r, _turned(r, x, p, batch + rows + inner), [n, h, k] if batch else [h, k])
    right = viewed(r, _turned(r, y, q, batch + inner + columns), [n, k, w] if batch else [k, w])
    made = r.emit("matmul", {"self": left, "other": right}, [n, h, w] if batch else [h, w], "float32")
    term = batch + rows + columns
    return viewed(r, made, [size[c] for c in term]), term


@operator("BatchNormalization")
def batch_norm(r: Reader, i: Inputs, a: Attributes) -> Any:
    if a.get("training_mode"):
        raise UnsupportedError("BatchNormalization in training")
    arguments = {"input": i[0], "weight": i[1], "bias": i[2], "running_mean": i[3], "running_var": i[4]}
    return r.emit("batch_norm", {**arguments, "eps": a.get("epsilon", 1e-5)}, r.shape(i[0]), "float32")


@operator("InstanceNormalization")
def instance_norm(r: Reader, i: Inputs, a: Attributes) -> Any:
    groups = numbers(r.shape(i[1]), "InstanceNormalization")[0]
    return _grouped(r, i, groups, a)


@operator("GroupNormalization")
def group_norm(r: Reader, i: Inputs, a: Attributes) -> Any:
    groups, channels = int(a["num_groups"]), numbers(r.shape(i[0])[1:2], "GroupNormalization")[0]
    scales: list[Given] = [i[0]]
    for given in i[1:3]:  # until opset 20 one for each group
        array = known(given, "a scale of GroupNormalization")
        scales.append(array if array.size == channels else np.repeat(array, channels // groups))
    return _grouped(r, scales, groups, a)


def _grouped(r: Reader, i: Inputs, groups: int, a: Attributes) -> Ref:
    arguments = {"input": i[0], "num_groups": groups, "weight": i[1], "bias": i[2], "eps": a.get("epsilon", 1e-5)}
    return r.emit("group_norm", arguments, r.shape(i[0]), "float32")


@operator("LayerNormalization")
def layer_norm(r: Reader, i: Inputs, a: Attributes) -> Any:
    own = r.shape(i[0])
    shape = list(own[front(int(a.get("axis", -1)), len(own)) :])
    arguments = {"input": i[0], "normalized_shape": shape, "weight": i[1], "bias": at(i, 2)}
    return r.emit("layer_norm", {**arguments, "eps": a.get("epsilon", 1e-5)}, own, "float32")
