"""Other shapes and orders of the same elements, and parts of values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..onnx_values import (
    Attributes,
    Given,
    NeedsNumbers,
    broadcast,
    integers,
    numbers,
    product,
    rounded_up,
)
from ..sizes import Formula, Size
from . import (
    Inputs,
    at,
    axes_of,
    front,
    is_small,
    known,
    operator,
    padded,
    picked,
    viewed,
)

if TYPE_CHECKING:
    from ..onnx import Reader


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
    own, axes = r.shape(i[0]), axes_of(i, a)
    if axes is None:
        numbers(own, "Squeeze without axes")
        gone = {axis for axis, n in enumerate(own) if n == 1}
    else:
        gone = {front(axis, len(own)) for axis in axes}
    return viewed(r, i[0], [n for axis, n in enumerate(own) if axis not in gone])


@operator("Unsqueeze")
def unsqueeze(r: Reader, i: Inputs, a: Attributes) -> Any:
    own, axes = list(r.shape(i[0])), axes_of(i, a) or []
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
    if isinstance(i[0], np.ndarray) and is_small(shape):
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
        return picked(r, x, axis, np.arange(n)[_slice(n, start, stop, step)])
    begin, end, count = _bounds(own[axis], start, stop, step)
    if (begin, end, step) == (0, own[axis], 1):
        return x
    if isinstance(end, Formula) and isinstance(own[axis], int):
        r.network.conditions.append((end, "<=", own[axis]))
    own[axis] = count
    return r.emit("slice.Tensor", {"self": x, "dim": axis, "start": begin, "end": end, "step": step}, own, r.dtype(x))


@operator("Shape")
def shape_of(r: Reader, i: Inputs, a: Attributes) -> Any:
    sizes = r.shape(i[0])[a.get("start", 0) : a.get("end")]
    return np.array(sizes, object)


@operator("Size")
def size_of(r: Reader, i: Inputs, a: Attributes) -> Any:
    return np.array(product(r.shape(i[0])), object)


@operator("Pad")
def pad(r: Reader, i: Inputs, a: Attributes) -> Any:
    n = len(r.shape(i[0]))
    amounts = numbers(integers(i[1]) if len(i) > 1 else list(a["pads"]), "Pad")
    axes = axes_of(i, {}, 3) or [*range(n)]
    pairs = [(0, 0)] * n
    for place, axis in enumerate(axes):
        pairs[front(axis, n)] = amounts[place], amounts[place + len(axes)]
    value = 0.0 if at(i, 2) is None else float(known(i[2], "the value of Pad").reshape(-1)[0])
    return padded(r, i[0], pairs, value or float(a.get("value", 0.0)), a.get("mode", "constant"))


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
