"""The operators of ONNX in those of ATen.

A function takes the reader, the inputs (a known array, a value, or None for one that is left out) and the attributes.
It returns one result or a list. Optional results that no model needs are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedError
from .network import Ref
from .onnx_values import (
    FOLDED,
    NUMBERED,
    OTHER_FLOATS,
    Attributes,
    Given,
    Known,
    NeedsNumbers,
    broadcast,
    in_float32,
    integers,
    numbers,
    product,
    rounded_up,
)
from .sizes import Formula, Size

if TYPE_CHECKING:
    from .onnx import Reader

__all__ = ["OPERATORS", "folded"]

Inputs = Sequence[Given]
Function = Callable[["Reader", Inputs, Attributes], Any]
OPERATORS: dict[str, Function] = {}
_FOLDED_ELEMENTS = 2**16  # larger constants are computed as weights are
_MOST_PLACES = 2**24  # of Range
_MOST_STEPS = 1024  # of a recurrent layer


def operator(*names: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        for name in names:
            OPERATORS[name] = function
        return function

    return register


def folded(name: str, inputs: Inputs, a: Attributes) -> Any:
    """The result if everything is known and small, or None."""
    known = [x for x in inputs if isinstance(x, np.ndarray)]
    if name not in FOLDED or len(known) != len(inputs) or any(x.size > _FOLDED_ELEMENTS for x in known):
        return None
    function = np.fmod if name == "Mod" and a.get("fmod") else FOLDED[name]
    return np.asarray(function(*known))


def at(inputs: Inputs, i: int) -> Given:
    return inputs[i] if i < len(inputs) else None


def known(given: Given, what: str) -> Known:
    if isinstance(given, np.ndarray):
        return given
    raise UnsupportedError(f"{what} depends on the values of the inputs")


def axes_of(r: Reader, inputs: Inputs, a: Attributes, i: int = 1) -> list[int] | None:
    """The axes of an operator: an attribute until opset 12, then an input."""
    given = at(inputs, i)
    if given is None:
        return [int(n) for n in a["axes"]] if "axes" in a else None
    return numbers(integers(given), "axes")


def front(axis: int, n: int) -> int:
    if not -n <= axis < max(n, 1):
        raise ValueError(f"axis {axis} of a value with {n} axes")
    return axis % max(n, 1)


# ------------------------------------------------------------------------------------------------- element by element

_UNARY = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Sin": "sin",
    "Cos": "cos", "Floor": "floor", "Ceil": "ceil", "Neg": "neg", "Abs": "abs", "Sign": "sign", "Erf": "erf",
    "Reciprocal": "reciprocal", "Softplus": "softplus", "HardSwish": "hardswish", "Mish": "mish",
}  # fmt: skip
_BINARY = {"Add": "add.Tensor", "Sub": "sub.Tensor", "Mul": "mul.Tensor"}
_COMPARED = {
    "Equal": "eq.Tensor", "Less": "lt.Tensor", "LessOrEqual": "le.Tensor", "Greater": "gt.Tensor",
    "GreaterOrEqual": "ge.Tensor", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
}  # fmt: skip


def unary(r: Reader, op: str, x: Given, to: str | None = None, **more: Any) -> Ref:
    return r.emit(op, {"self": x, **more}, r.shape(x), to or r.dtype(x))


def binary(r: Reader, op: str, x: Given, y: Given, to: str | None = None, **more: Any) -> Ref:
    shape = broadcast([r.shape(x), r.shape(y)])
    return r.emit(op, {"self": x, "other": y, **more}, shape, to or r.dtype(x))


for _name, _op in _UNARY.items():
    operator(_name)(lambda r, i, a, op=_op: unary(r, op, i[0]))  # type: ignore[misc]
for _name, _op in _BINARY.items():
    operator(_name)(lambda r, i, a, op=_op: binary(r, op, i[0], i[1]))  # type: ignore[misc]
for _name, _op in _COMPARED.items():
    operator(_name)(lambda r, i, a, op=_op: binary(r, op, i[0], i[1], "bool"))  # type: ignore[misc]


@operator("Not")
def negated(r: Reader, i: Inputs, a: Attributes) -> Any:
    return unary(r, "logical_not", i[0])


@operator("Div")
def divide(r: Reader, i: Inputs, a: Attributes) -> Any:
    if r.dtype(i[0]).startswith("float"):
        return binary(r, "div.Tensor", i[0], i[1])
    return binary(r, "div.Tensor_mode", i[0], i[1], rounding_mode="trunc")


@operator("Mod")
def modulo(r: Reader, i: Inputs, a: Attributes) -> Any:
    if a.get("fmod"):
        raise UnsupportedError("Mod with fmod=1")
    return binary(r, "remainder.Tensor", i[0], i[1])


@operator("Pow")
def power(r: Reader, i: Inputs, a: Attributes) -> Any:
    exponent = known(i[1], "the exponent of Pow")
    if exponent.size != 1:
        raise UnsupportedError("Pow with several exponents")
    return unary(r, "pow.Tensor_Scalar", i[0], exponent=float(exponent.reshape(-1)[0]))


def _several(op: str) -> Function:
    def joined(r: Reader, i: Inputs, a: Attributes) -> Any:
        total = i[0]
        for x in i[1:]:
            total = binary(r, op, total, x)
        return total

    return joined


OPERATORS |= {"Max": _several("maximum"), "Min": _several("minimum"), "Sum": _several("add.Tensor")}


@operator("Where")
def where(r: Reader, i: Inputs, a: Attributes) -> Any:
    shape = broadcast([r.shape(x) for x in i])
    return r.emit("where.self", {"condition": i[0], "self": i[1], "other": i[2]}, shape, r.dtype(i[1]))


@operator("Clip")
def clip(r: Reader, i: Inputs, a: Attributes) -> Any:
    low, high = a.get("min"), a.get("max")
    for place in (1, 2):
        given = at(i, place)
        if given is not None:
            number = float(known(given, "a limit of Clip").reshape(-1)[0])
            low, high = (number, high) if place == 1 else (low, number)
    if low is None and high is None:
        return i[0]
    return unary(r, "clamp", i[0], min=low, max=high)


@operator("LeakyRelu")
def leaky_relu(r: Reader, i: Inputs, a: Attributes) -> Any:
    return unary(r, "leaky_relu", i[0], negative_slope=a.get("alpha", 0.01))


@operator("Elu")
def elu(r: Reader, i: Inputs, a: Attributes) -> Any:
    return unary(r, "elu", i[0], alpha=a.get("alpha", 1.0))


@operator("Selu")
def selu(r: Reader, i: Inputs, a: Attributes) -> Any:
    alpha, gamma = a.get("alpha", 1.67326319217681884765625), a.get("gamma", 1.05070102214813232421875)
    return unary(r, "elu", i[0], alpha=alpha, scale=gamma)


@operator("Gelu")
def gelu(r: Reader, i: Inputs, a: Attributes) -> Any:
    return unary(r, "gelu", i[0], approximate=a.get("approximate", "none"))


@operator("HardSigmoid")
def hard_sigmoid(r: Reader, i: Inputs, a: Attributes) -> Any:
    alpha, beta = a.get("alpha", 0.2), a.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return unary(r, "hardsigmoid", i[0])
    scaled = unary(r, "add.Scalar", unary(r, "mul.Scalar", i[0], other=alpha), other=beta)
    return unary(r, "clamp", scaled, min=0.0, max=1.0)


@operator("PRelu")
def prelu(r: Reader, i: Inputs, a: Attributes) -> Any:
    below = binary(r, "mul.Tensor", unary(r, "clamp", i[0], max=0.0), i[1])
    return binary(r, "add.Tensor", unary(r, "relu", i[0]), below)


@operator("Softsign")
def softsign(r: Reader, i: Inputs, a: Attributes) -> Any:
    return binary(r, "div.Tensor", i[0], unary(r, "add.Scalar", unary(r, "abs", i[0]), other=1))


@operator("Identity", "Dropout")
def identity(r: Reader, i: Inputs, a: Attributes) -> Any:
    return i[0]


@operator("Cast", "CastLike")
def cast(r: Reader, i: Inputs, a: Attributes) -> Any:
    to = NUMBERED.get(int(a["to"])) if "to" in a else r.dtype(i[1])
    if to is None:
        raise UnsupportedError(f"a conversion to the type {a['to']}")
    to = "float32" if to in OTHER_FLOATS else to
    x = i[0]
    if isinstance(x, np.ndarray):
        if x.dtype == object and to not in ("int64", "int32"):
            raise NeedsNumbers("a size becomes a float")
        return x if x.dtype == object else x.astype(to)
    return x if r.dtype(x) == to else unary(r, "_to_copy", x, to, dtype=to)


# --------------------------------------------------------------------------------------------------------------- shapes


def viewed(r: Reader, x: Given, shape: Sequence[Size]) -> Any:
    if isinstance(x, np.ndarray) and all(isinstance(n, int) for n in shape):
        return x.reshape([int(n) for n in shape if isinstance(n, int)])
    return r.emit("view", {"self": x, "size": list(shape)}, shape, r.dtype(x))


@operator("Reshape")
def reshape(r: Reader, i: Inputs, a: Attributes) -> Any:
    own, given = r.shape(i[0]), integers(i[1]) if len(i) > 1 else [int(n) for n in a["shape"]]
    shape = [own[axis] if n == 0 and not a.get("allowzero") else n for axis, n in enumerate(given)]
    if -1 in shape:
        rest = product([n for n in shape if n != -1])
        shape[shape.index(-1)] = 0 if rest == 0 else product(own) // rest
    return viewed(r, i[0], shape)


@operator("Flatten")
def flatten(r: Reader, i: Inputs, a: Attributes) -> Any:
    own, axis = r.shape(i[0]), a.get("axis", 1)
    axis = axis if axis >= 0 else axis + len(own)
    return viewed(r, i[0], [product(own[:axis]), product(own[axis:])])


@operator("Squeeze")
def squeeze(r: Reader, i: Inputs, a: Attributes) -> Any:
    own, axes = r.shape(i[0]), axes_of(r, i, a)
    if axes is None:
        numbers(own, "Squeeze without axes")
        gone = {axis for axis, n in enumerate(own) if n == 1}
    else:
        gone = {front(axis, len(own)) for axis in axes}
    return viewed(r, i[0], [n for axis, n in enumerate(own) if axis not in gone])


@operator("Unsqueeze")
def unsqueeze(r: Reader, i: Inputs, a: Attributes) -> Any:
    own, axes = list(r.shape(i[0])), axes_of(r, i, a) or []
    for axis in sorted(front(axis, len(own) + len(axes)) for axis in axes):
        own.insert(axis, 1)
    return viewed(r, i[0], own)


@operator("Transpose")
def transpose(r: Reader, i: Inputs, a: Attributes) -> Any:
    own = r.shape(i[0])
    order = [int(n) for n in a.get("perm", range(len(own))[::-1])]
    if isinstance(i[0], np.ndarray) and i[0].dtype != np.float32:
        return i[0].transpose(order)
    return r.emit("permute", {"self": i[0], "dims": order}, [own[n] for n in order], r.dtype(i[0]))


@operator("Expand")
def expand(r: Reader, i: Inputs, a: Attributes) -> Any:
    shape = broadcast([r.shape(i[0]), integers(i[1])])
    if isinstance(i[0], np.ndarray) and _is_small(shape):
        return np.ascontiguousarray(np.broadcast_to(i[0], numbers(shape, "Expand")))
    return r.emit("expand", {"self": i[0], "size": list(shape)}, shape, r.dtype(i[0]))


@operator("Tile")
def tile(r: Reader, i: Inputs, a: Attributes) -> Any:
    own, repeats = r.shape(i[0]), integers(i[1])
    shape = [n * m for n, m in zip(own, repeats, strict=True)]
    return r.emit("repeat", {"self": i[0], "repeats": repeats}, shape, r.dtype(i[0]))


@operator("Concat")
def concat(r: Reader, i: Inputs, a: Attributes) -> Any:
    axis = front(int(a["axis"]), len(r.shape(i[0])))
    arrays = [x for x in i if isinstance(x, np.ndarray)]
    if len(arrays) == len(i):
        return np.concatenate(arrays, axis)
    shape = list(r.shape(i[0]))
    shape[axis] = 0
    for x in i:
        shape[axis] = shape[axis] + r.shape(x)[axis]
    return r.emit("cat", {"tensors": list(i), "dim": axis}, shape, r.dtype(i[0]))


@operator("Split")
def split(r: Reader, i: Inputs, a: Attributes) -> Any:
    own = r.shape(i[0])
    axis = front(int(a.get("axis", 0)), len(own))
    given = at(i, 1)
    if given is not None or "split" in a:
        sizes = integers(given) if given is not None else [int(n) for n in a["split"]]
    else:
        n = numbers([own[axis]], "Split")[0]
        parts = int(a["num_outputs"] if "num_outputs" in a else a["_outputs"])
        part = -(-n // parts)
        sizes = [min(part, n - at * part) for at in range(parts)]
    if isinstance(i[0], np.ndarray):
        return np.split(i[0], np.cumsum(numbers(sizes, "Split"))[:-1], axis)
    shapes = [[*own[:axis], n, *own[axis + 1 :]] for n in sizes]
    return r.emit_all("split_with_sizes", {"self": i[0], "split_sizes": sizes, "dim": axis}, shapes, r.dtype(i[0]))


def _bounds(n: Size, start: Size, stop: Size, step: int) -> tuple[Size, Size, Size]:
    """Begin, end and number of elements of a slice with a positive step."""
    if all(isinstance(x, int) for x in (n, start, stop)):
        begin, end, _ = slice(start, stop, step).indices(n)  # type: ignore[arg-type]
        return begin, end, max(0, -(-(end - begin) // step))
    if isinstance(start, int) and start < 0:
        start = n + start
    if isinstance(stop, int) and stop < 0:
        stop = n + stop
    if isinstance(stop, int) and stop >= 2**31 - 1:
        stop = n
    if start == 0 and (stop == n or isinstance(n, int)):  # a named end within a fixed axis, or the whole axis
        return start, stop, rounded_up(stop, step)
    if stop != n or isinstance(start, Formula):
        raise NeedsNumbers(f"a slice from {start} to {stop} of {n}")
    return start, stop, rounded_up(stop - start, step)


@operator("Slice")
def cut(r: Reader, i: Inputs, a: Attributes) -> Any:
    own = r.shape(i[0])
    starts, stops = (integers(i[1]), integers(i[2])) if len(i) > 1 else (a["starts"], a["ends"])
    given = integers(i[3]) if at(i, 3) is not None else a.get("axes", range(len(starts)))
    axes = [front(axis, len(own)) for axis in numbers(list(given), "Slice")]
    steps = numbers(integers(i[4]), "Slice") if at(i, 4) is not None else [1] * len(starts)
    x = i[0]
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        x = _cut(r, x, axis, start, stop, step)
    return x


def _slice(n: int, start: Size, stop: Size, step: int) -> slice:
    """A slice of an axis with n elements. A backward one may end before the first element."""
    first, last = numbers([start, stop], "Slice")
    return slice(first, None if step < 0 and last < -n else last, step)


def _cut(r: Reader, x: Given, axis: int, start: Size, stop: Size, step: int) -> Any:
    own = list(r.shape(x))
    if isinstance(x, np.ndarray) and not isinstance(start, Formula) and not isinstance(stop, Formula):
        whole: list[Any] = [slice(None)] * axis
        return x[(*whole, _slice(x.shape[axis], start, stop, step))]
    if step < 0:
        n = numbers([own[axis]], "Slice")[0]
        return _picked(r, x, axis, np.arange(n)[_slice(n, start, stop, step)])
    begin, end, count = _bounds(own[axis], start, stop, step)
    if (begin, end, step) == (0, own[axis], 1):
        return x
    if isinstance(end, Formula) and isinstance(own[axis], int):
        r.network.conditions.append((end, "<=", own[axis]))
    own[axis] = count
    return r.emit("slice.Tensor", {"self": x, "dim": axis, "start": begin, "end": end, "step": step}, own, r.dtype(x))


def _picked(r: Reader, x: Given, axis: int, places: Known) -> Ref:
    own = list(r.shape(x))
    own[axis] = len(places)
    return r.emit("index_select", {"self": x, "dim": axis, "index": places.astype(np.int64)}, own, r.dtype(x))


@operator("Gather")
def gather(r: Reader, i: Inputs, a: Attributes) -> Any:
    x, index = i[0], i[1]
    own = r.shape(x)
    axis = front(int(a.get("axis", 0)), len(own))
    if isinstance(x, np.ndarray) and isinstance(index, np.ndarray) and index.size <= _FOLDED_ELEMENTS:
        return np.take(x, np.array(numbers(integers(index), "Gather")).reshape(index.shape), axis)
    if isinstance(index, np.ndarray):
        if not index.shape:
            return r.emit("select.int", {"self": x, "dim": axis, "index": int(index)},
                          [*own[:axis], *own[axis + 1 :]], r.dtype(x))  # fmt: skip
        if isinstance(own[axis], int) and index.dtype != object:
            index = np.where(index < 0, index + own[axis], index)
    shape = [*own[:axis], *r.shape(index), *own[axis + 1 :]]
    if axis == 0 and len(own) == 2 and r.dtype(x) == "float32":
        return r.emit("embedding", {"weight": x, "indices": index}, shape, r.dtype(x))
    return r.emit("index.Tensor", {"self": x, "indices": [None] * axis + [index]}, shape, r.dtype(x))


@operator("GatherElements")
def gather_elements(r: Reader, i: Inputs, a: Attributes) -> Any:
    arguments = {"self": i[0], "dim": int(a.get("axis", 0)), "index": i[1]}
    return r.emit("gather", arguments, r.shape(i[1]), r.dtype(i[0]))


@operator("Shape")
def shape_of(r: Reader, i: Inputs, a: Attributes) -> Any:
    sizes = r.shape(i[0])[a.get("start", 0) : a.get("end")]
    return np.array(sizes, object)


@operator("Size")
def size_of(r: Reader, i: Inputs, a: Attributes) -> Any:
    return np.array(product(r.shape(i[0])), object)


@operator("Constant")
def constant(r: Reader, i: Inputs, a: Attributes) -> Any:
    ((kind, value),) = ((key, value) for key, value in a.items() if not key.startswith("_"))
    if kind not in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        raise UnsupportedError(f"a constant of the kind {kind}")
    array = value if kind == "value" else np.array(value, np.float32 if "float" in kind else np.int64)
    return in_float32(array)


def _is_small(shape: Sequence[Size]) -> bool:
    """True for a fixed shape of a constant that is worth to keep."""
    total = product(shape)
    return isinstance(total, int) and total <= _FOLDED_ELEMENTS and all(isinstance(n, int) for n in shape)


def filled(r: Reader, shape: Sequence[Size], number: Any, dtype: str) -> Any:
    if _is_small(shape):
        return np.full(numbers(shape, "a constant"), number, dtype)
    return r.emit("full", {"size": list(shape), "fill_value": number}, shape, dtype)


@operator("ConstantOfShape")
def constant_of_shape(r: Reader, i: Inputs, a: Attributes) -> Any:
    value = in_float32(a.get("value", np.zeros(1, np.float32)))
    return filled(r, integers(i[0]), value.reshape(-1)[0].item(), value.dtype.name)


@operator("Range")
def range_of(r: Reader, i: Inputs, a: Attributes) -> Any:
    start, limit, delta = (known(x, "a limit of Range").reshape(-1)[0] for x in i[:3])
    dtype = r.dtype(i[0])
    if all(not isinstance(n, Formula) for n in (start, limit, delta)):
        if delta == 0 or (limit - start) / delta > _MOST_PLACES:
            raise UnsupportedError(f"Range from {start} to {limit} by {delta}")
        return np.arange(start, limit, delta).astype(dtype)
    if isinstance(delta, Formula) or delta <= 0:
        raise NeedsNumbers("Range with a step that depends on sizes")
    n = rounded_up(limit - start, int(delta))
    return r.emit("arange.start_step", {"start": start, "end": limit, "step": int(delta)}, (n,), dtype)


@operator("Pad")
def pad(r: Reader, i: Inputs, a: Attributes) -> Any:
    n = len(r.shape(i[0]))
    amounts = numbers(integers(i[1]) if len(i) > 1 else list(a["pads"]), "Pad")
    axes = axes_of(r, i, {}, 3) or [*range(n)]
    pairs = [(0, 0)] * n
    for place, axis in enumerate(axes):
        pairs[front(axis, n)] = amounts[place], amounts[place + len(axes)]
    value = 0.0 if at(i, 2) is None else float(known(i[2], "the value of Pad").reshape(-1)[0])
    return padded(r, i[0], pairs, value or float(a.get("value", 0.0)), a.get("mode", "constant"))


def padded(r: Reader, x: Given, pairs: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant") -> Any:
    own = list(r.shape(x))
    if mode == "constant":
        last = list(pairs[::-1])
        while last and last[-1] == (0, 0):
            last.pop()
        if not last:
            return x
        shape = [n + p + q for n, (p, q) in zip(own, pairs, strict=True)]
        amounts = [n for pair in last for n in pair]
        return r.emit("constant_pad_nd", {"self": x, "pad": amounts, "value": value}, shape, r.dtype(x))
    if mode not in ("reflect", "edge", "wrap"):
        raise UnsupportedError(f"Pad with the mode {mode}")
    for axis, pair in enumerate(pairs):
        if pair != (0, 0):
            n = numbers([own[axis]], "Pad")[0]
            x = _picked(r, x, axis, np.pad(np.arange(n), pair, mode))  # type: ignore[call-overload]
    return x


@operator("DepthToSpace")
def depth_to_space(r: Reader, i: Inputs, a: Attributes) -> Any:
    n, c, h, w = r.shape(i[0])
    k, rest = int(a["blocksize"]), c // int(a["blocksize"]) ** 2
    first = a.get("mode", "DCR") == "DCR"
    split_up = viewed(r, i[0], [n, k, k, rest, h, w] if first else [n, rest, k, k, h, w])
    order = [0, 3, 4, 1, 5, 2] if first else [0, 1, 4, 2, 5, 3]
    own = r.shape(split_up)
    turned = r.emit("permute", {"self": split_up, "dims": order}, [own[j] for j in order], r.dtype(i[0]))
    return viewed(r, turned, [n, rest, h * k, w * k])


# ------------------------------------------------------------------------------------------------ sums, norms, products

_REDUCED = {
    "ReduceMean": "mean.dim", "ReduceSum": "sum.dim_IntList", "ReduceMax": "amax", "ReduceMin": "amin",
    "ReduceL2": "linalg_vector_norm",
}  # fmt: skip


def reduced(r: Reader, op: str, x: Given, axes: Sequence[int], keep: bool, **more: Any) -> Ref:
    own = r.shape(x)
    at = {front(axis, len(own)) for axis in axes}
    shape = [1 if axis in at else n for axis, n in enumerate(own) if keep or axis not in at]
    return r.emit(op, {"self": x, "dim": sorted(at), "keepdim": keep, **more}, shape, r.dtype(x))


def _reduced(op: str) -> Function:
    def function(r: Reader, i: Inputs, a: Attributes) -> Any:
        axes = axes_of(r, i, a)
        if not axes:
            if a.get("noop_with_empty_axes"):
                return i[0]
            axes = [*range(len(r.shape(i[0])))]
        return reduced(r, op, i[0], axes, bool(a.get("keepdims", 1)))

    return function


for _name, _op in _REDUCED.items():
    operator(_name)(_reduced(_op))


@operator("ReduceProd")
def reduce_prod(r: Reader, i: Inputs, a: Attributes) -> Any:
    x, axes = known(i[0], "ReduceProd"), axes_of(r, i, a)
    return np.prod(x, None if not axes else tuple(axes), keepdims=bool(a.get("keepdims", 1)))


def _place(op: str) -> Function:
    def function(r: Reader, i: Inputs, a: Attributes) -> Any:
        if a.get("select_last_index"):
            raise UnsupportedError(f"{op} of the last of equal elements")
        own, keep = r.shape(i[0]), bool(a.get("keepdims", 1))
        axis = front(int(a.get("axis", 0)), len(own))
        shape = [1 if j == axis else n for j, n in enumerate(own) if keep or j != axis]
        return r.emit(op, {"self": i[0], "dim": axis, "keepdim": keep}, shape, "int64")

    return function


OPERATORS |= {"ArgMax": _place("argmax"), "ArgMin": _place("argmin")}


@operator("CumSum")
def cumsum(r: Reader, i: Inputs, a: Attributes) -> Any:
    if a.get("exclusive") or a.get("reverse"):
        raise UnsupportedError("CumSum with exclusive or reverse")
    return unary(r, "cumsum", i[0], dim=int(known(i[1], "the axis of CumSum").reshape(-1)[0]))


def _softmax(op: str) -> Function:
    def function(r: Reader, i: Inputs, a: Attributes) -> Any:
        own = r.shape(i[0])
        axis = front(int(a.get("axis", -1 if r.opset >= 13 else 1)), len(own))
        if r.opset >= 13 or axis == len(own) - 1:
            return unary(r, op, i[0], dim=axis)
        flat = viewed(r, i[0], [product(own[:axis]), product(own[axis:])])  # one softmax over all axes behind
        return viewed(r, unary(r, op, flat, dim=1), own)

    return function


OPERATORS |= {"Softmax": _softmax("_softmax"), "LogSoftmax": _softmax("_log_softmax")}


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


# ----------------------------------------------------------------------------------------------- windows over the data


def _pads(
    a: Attributes, own: Sequence[Size], k: Sequence[int], s: Sequence[int], d: Sequence[int]
) -> list[tuple[int, int]]:
    """Zeros before and behind the data, along each axis of the window."""
    auto, n = a.get("auto_pad", "NOTSET"), len(k)
    if auto in ("NOTSET", ""):
        given = [int(m) for m in a.get("pads", [0] * 2 * n)]
        return list(zip(given[:n], given[n:], strict=True))
    if auto == "VALID":
        return [(0, 0)] * n
    found = []
    for size, window, step, gap in zip(numbers(own, "auto_pad"), k, s, d, strict=True):
        total = max((-(-size // step) - 1) * step + (window - 1) * gap + 1 - size, 0)
        found.append((total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2))
    return found


def _whole(a: Attributes, name: str, n: int) -> list[int]:
    return [int(m) for m in a.get(name, [1] * n)]


@operator("Conv")
def conv(r: Reader, i: Inputs, a: Attributes) -> Any:
    x, kernel = i[0], numbers(r.shape(i[1]), "a kernel")
    n, own = len(kernel) - 2, r.shape(x)
    s, d = _whole(a, "strides", n), _whole(a, "dilations", n)
    pads = _pads(a, own[2:], kernel[2:], s, d)
    if any(p != q for p, q in pads):
        x, pads = padded(r, x, [(0, 0), (0, 0), *pads]), [(0, 0)] * n
    shape: list[Size] = [own[0], kernel[0]]
    for m, (p, q), window, step, gap in zip(r.shape(x)[2:], pads, kernel[2:], s, d, strict=True):
        shape.append((m + p + q - (window - 1) * gap - 1) // step + 1)
    arguments = {
        "input": x, "weight": i[1], "bias": at(i, 2), "stride": s, "padding": [p for p, _ in pads], "dilation": d,
        "groups": int(a.get("group", 1)),
    }  # fmt: skip
    return r.emit("convolution", arguments, shape, "float32")


@operator("ConvTranspose")
def conv_transpose(r: Reader, i: Inputs, a: Attributes) -> Any:
    own, kernel = r.shape(i[0]), numbers(r.shape(i[1]), "a kernel")
    n = len(kernel) - 2
    s, d, more = _whole(a, "strides", n), _whole(a, "dilations", n), [int(m) for m in a.get("output_padding", [0] * n)]
    if "output_shape" in a or a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise UnsupportedError("ConvTranspose with output_shape or auto_pad")
    pads = _pads(a, own[2:], kernel[2:], s, d)
    if any(p != q for p, q in pads):
        raise UnsupportedError("ConvTranspose with pads that differ")
    groups = int(a.get("group", 1))
    shape: list[Size] = [own[0], kernel[1] * groups]
    for m, (p, q), window, step, gap, extra in zip(own[2:], pads, kernel[2:], s, d, more, strict=True):
        shape.append((m - 1) * step + (window - 1) * gap + 1 - p - q + extra)
    arguments = {
        "input": i[0], "weight": i[1], "bias": at(i, 2), "stride": s, "padding": [p for p, _ in pads], "dilation": d,
        "transposed": True, "output_padding": more, "groups": groups,
    }  # fmt: skip
    return r.emit("convolution", arguments, shape, "float32")


def _pooled(largest: bool) -> Function:
    def function(r: Reader, i: Inputs, a: Attributes) -> Any:
        x, k = i[0], [int(m) for m in a["kernel_shape"]]
        n, own = len(k), r.shape(x)
        if n > 2 or {*_whole(a, "dilations", n)} != {1}:
            raise UnsupportedError("pooling with dilations, or of volumes")
        s, up = _whole(a, "strides", n), int(a.get("ceil_mode", 0))
        pads, inside = _pads(a, own[2:], k, s, [1] * n), bool(a.get("count_include_pad", 0))
        if any(p != q for p, q in pads):
            if not largest and not inside:
                raise UnsupportedError("AveragePool with pads that differ")
            x, pads = padded(r, x, [(0, 0), (0, 0), *pads], -math.inf if largest else 0.0), [(0, 0)] * n
        shape = list(own[:2])
        for m, (p, q), window, step in zip(r.shape(x)[2:], pads, k, s, strict=True):
            whole = m + p + q - window
            shape.append((rounded_up(whole, step) if up else whole // step) + 1)
        if n == 1:  # a plane of one row
            x, k, s, pads = viewed(r, x, [*own[:2], 1, r.shape(x)[2]]), [1, *k], [1, *s], [(0, 0), *pads]
        arguments: dict[str, Any] = {"self": x, "kernel_size": k, "stride": s, "padding": [p for p, _ in pads]}
        more = {"ceil_mode": True} if up else {}
        if not largest:
            more["count_include_pad"] = inside
        planes = [*shape[:2], 1, shape[2]] if n == 1 else shape
        y = r.emit("max_pool2d" if largest else "avg_pool2d", {**arguments, **more}, planes, "float32")
        return viewed(r, y, shape) if n == 1 else y

    return function


OPERATORS |= {"MaxPool": _pooled(True), "AveragePool": _pooled(False)}


@operator("GlobalAveragePool")
def global_average(r: Reader, i: Inputs, a: Attributes) -> Any:
    return reduced(r, "mean.dim", i[0], range(2, len(r.shape(i[0]))), True)


@operator("GlobalMaxPool")
def global_max(r: Reader, i: Inputs, a: Attributes) -> Any:
    return reduced(r, "amax", i[0], range(2, len(r.shape(i[0]))), True)


@operator("Resize", "Upsample")
def resize(r: Reader, i: Inputs, a: Attributes) -> Any:
    own, mode = r.shape(i[0]), a.get("mode", "nearest")
    if len(own) != 4 or mode not in _RESIZED:
        raise UnsupportedError(f"Resize of {len(own)} axes, mode {mode}")
    if a.get("antialias") or a.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnsupportedError("Resize with antialias, or with a kept aspect ratio")
    if [*a.get("axes", range(4))] != [*range(4)]:
        raise UnsupportedError("Resize of some axes")
    rounded = False
    if at(i, 3) is not None:
        shape = integers(i[3])
    else:
        factors = known(i[1] if r.opset < 11 else at(i, 2), "the factors of Resize").reshape(-1)
        shape = []
        for n, factor in zip(own, factors.tolist(), strict=True):
            if isinstance(n, Formula):
                if factor != int(factor):
                    raise NeedsNumbers("Resize by a fraction")
                shape.append(n * int(factor))
            else:
                size = float(np.float32(n * factor))
                rounded = rounded or size != int(size)
                shape.append(int(size))
    if list(shape[:2]) != list(own[:2]):
        numbers(own[:2], "Resize")
        raise UnsupportedError("Resize of the batch or of channels")
    aligned = _alignment(r, a, mode, own, shape)
    if rounded and not aligned:  # the places follow from the factors, and PyTorch takes them from the sizes
        raise UnsupportedError("Resize by factors that do not give whole sizes")
    arguments = {"self": i[0], "output_size": list(shape[2:]), "align_corners": True if aligned else None}
    return r.emit(_RESIZED[mode], arguments, shape, "float32")


_RESIZED = {"nearest": "upsample_nearest2d", "linear": "upsample_bilinear2d", "cubic": "upsample_bicubic2d"}


def _alignment(r: Reader, a: Attributes, mode: str, own: Sequence[Size], shape: Sequence[Size]) -> bool:
    """True for aligned corners, False for PyTorch's places. UnsupportedError: other places"""
    places = a.get("coordinate_transformation_mode", "half_pixel" if r.opset >= 11 else "asymmetric")
    halves = places in ("half_pixel", "pytorch_half_pixel")
    if mode == "nearest":
        rounding = "floor" if r.opset < 11 else a.get("nearest_mode", "round_prefer_floor")
        if places == "asymmetric" and rounding == "floor":
            return False
        if halves and rounding.startswith("round") and all(m % n == 0 for n, m in zip(own, shape, strict=True)):
            return False  # a whole factor: the nearest element is that at the floor
    elif halves or places == "align_corners":
        if mode == "cubic" and (a.get("cubic_coeff_a", -0.75) != -0.75 or a.get("exclude_outside")):
            raise UnsupportedError("Resize with other cubic coefficients")
        return bool(places == "align_corners")
    raise UnsupportedError(f"Resize, mode {mode}, with the places {places}")


# ----------------------------------------------------------------------------------------------------- recurrent layers


@operator("LSTM")
def lstm(r: Reader, i: Inputs, a: Attributes) -> Any:
    """Step by step. The result of the layer, the last state, and the last cell."""
    activations = a.get("activations", [])
    if activations != ["Sigmoid", "Tanh", "Tanh"] * (len(activations) // 3) or a.get("clip") or a.get("layout"):
        raise UnsupportedError("LSTM with other activations, clip or layout")
    if at(i, 4) is not None or at(i, 7) is not None or a.get("input_forget"):
        raise UnsupportedError("LSTM with lengths, peepholes or input_forget")
    steps, batch, _ = r.shape(i[0])
    n, hidden, direction = numbers([steps], "LSTM")[0], int(a["hidden_size"]), a.get("direction", "forward")
    if n > _MOST_STEPS:
        raise UnsupportedError(f"LSTM of {n} steps")
    ways = 2 if direction == "bidirectional" else 1
    outputs, states, cells = [], [], []
    for way in range(ways):
        backwards = direction == "reverse" or way == 1
        w, u = (np.ascontiguousarray(known(i[j], "a weight of LSTM")[way]) for j in (1, 2))
        bias = None if at(i, 3) is None else known(i[3], "the bias of LSTM")[way].reshape(2, -1).sum(0)
        h, c = (_state(r, at(i, j), way, (batch, hidden)) for j in (5, 6))
        rows, h, c = _recurred(r, i[0], (w, u, bias), (h, c), [*range(n)][:: -1 if backwards else 1])
        outputs.append(rows[::-1] if backwards else rows)
        states.append(h)
        cells.append(c)
    shape = (n, ways, batch, hidden)
    parts = [viewed(r, way[t], (1, 1, batch, hidden)) for t in range(n) for way in outputs]
    whole = parts[0] if len(parts) == 1 else r.emit("cat", {"tensors": parts}, (n * ways, 1, batch, hidden), "float32")
    return [viewed(r, whole, shape), *(_stacked(r, s, (ways, batch, hidden)) for s in (states, cells))]


def _state(r: Reader, given: Given, way: int, shape: Sequence[Size]) -> Any:
    if given is None:
        return filled(r, shape, 0.0, "float32")
    return r.emit("select.int", {"self": given, "dim": 0, "index": way}, shape, "float32")


def _stacked(r: Reader, parts: Sequence[Given], shape: Sequence[Size]) -> Any:
    if len(parts) == 1:
        return viewed(r, parts[0], shape)
    return r.emit("stack", {"tensors": list(parts), "dim": 0}, shape, "float32")


def _recurred(r: Reader, x: Given, weights: Sequence[Any], state: Sequence[Any], order: Sequence[int]) -> Any:
    """The states after each step, in the order of computation, and the last state and cell."""
    (w, u, bias), (h, c) = weights, state
    steps, batch = r.shape(x)[:2]
    hidden = u.shape[1]
    inputs = r.emit("linear", {"input": x, "weight": w, "bias": bias}, (steps, batch, 4 * hidden), "float32")
    rows = []
    for t in order:
        own = r.emit("select.int", {"self": inputs, "dim": 0, "index": t}, (batch, 4 * hidden), "float32")
        gates = binary(
            r, "add.Tensor", own, r.emit("linear", {"input": h, "weight": u}, (batch, 4 * hidden), "float32")
        )
        shapes = [(batch, hidden)] * 4
        i, o, f, g = r.emit_all(
            "split_with_sizes", {"self": gates, "split_sizes": [hidden] * 4, "dim": 1}, shapes, "float32"
        )
        i, o, f, g = *(unary(r, "sigmoid", gate) for gate in (i, o, f)), unary(r, "tanh", g)
        c = binary(r, "add.Tensor", binary(r, "mul.Tensor", f, c), binary(r, "mul.Tensor", i, g))
        h = binary(r, "mul.Tensor", o, unary(r, "tanh", c))
        rows.append(h)
    return rows, h, c
