"""Products of matrices, with weights of any dtype."""

from __future__ import annotations

from typing import Any

from .._nodes import Node
from ..device import op
from .family import FLOAT_NAMES, Family, checked, stepwise, then
from .layout import axes, cut, ne
from .library import F32, FLOATS, Library, Step


def _is_product(node: Node) -> bool | str:
    w, x = node.sources
    if x.dtype not in FLOATS:
        return f"source 1 is {x.dtype.name}; ARRAY multiplies floats"
    if w.dtype not in FLOATS and not w.dtype.is_quantized:
        return f"source 0 is {w.dtype.name}; ARRAY multiplies float or quantized weights"
    if node.dtype not in FLOATS:
        return f"the result is {node.dtype.name}; ARRAY computes floats"
    (w3, w2, _, k), (x3, x2, _, depth) = ne(w.shape), ne(x.shape)
    fits = k == depth and w3 and w2 and x3 % w3 == 0 and x2 % w2 == 0
    return bool(fits) or "shapes that do not fit"


@op("mul_mat", dtypes="all", when=_is_product, prepare=True, repeats=True)
def mul_mat(device: Family, node: Node, out: Any, w: Any, x: Any) -> Step:
    """``out (..., n, m) = x (..., n, k) @ w (..., m, k).T``; consecutive matrices of x share one of w."""
    library = device.library
    target, store = device.store_of(node, out)
    w, read_w = device.weights_of(w, node.sources[0].dtype)
    read_x = library.reader(x, node.sources[1].dtype)
    if read_w is None and read_x is None:
        return then(_product(library, target, w, x), store)

    def product() -> None:  # the arrays are new in each run
        _product(library, target, w if read_w is None else read_w(), x if read_x is None else read_x())()

    return then(product, store)


def _product(library: Library, out: Any, w: Any, x: Any) -> Step:
    out, w, x = (axes(library, array, 4) for array in (out, w, x))
    (w3, w2, m, k), (x3, x2, n, _) = w.shape, x.shape
    if w3 == w2 == 1:  # one matrix: multiply all rows of x at once
        rows, results = (library.reshaped(array, (x3 * x2 * n, size)) for array, size in ((x, k), (out, m)))
        if rows is not None and results is not None:
            return library.product(rows, w[0, 0].T, results)
    r3, r2 = x3 // w3, x2 // w2
    if r3 == r2 == 1:
        return library.product(x, w.swapaxes(-1, -2), out)
    if r3 == 1:  # multiply the rows of x that share a matrix at once
        rows, results = (library.reshaped(a, (x3, w2, r2 * n, size)) for a, size in ((x, k), (out, m)))
        if rows is not None and results is not None:
            return library.product(rows, w.swapaxes(-1, -2), results)
    x, out = (cut(library, a, [[w3, r3], [w2, r2], [n], [size]]) for a, size in ((x, k), (out, m)))
    w = cut(library, w, [[w3, 1], [w2, 1], [m], [k]])
    return library.product(x, w.swapaxes(-1, -2), out)


def _is_expert_product(node: Node) -> bool | str:
    w, x, ids = node.sources
    if x.dtype not in FLOATS or node.dtype != F32 or ids.dtype.name != "int32":
        return f"products of {x.dtype.name} with indices of {ids.dtype.name} as {node.dtype.name}"
    return w.dtype in FLOATS or w.dtype.is_quantized or f"weights of {w.dtype.name}"


@stepwise
@op("mul_mat_experts", dtypes="all", when=_is_expert_product, prepare=True)
def mul_mat_experts(device: Family, node: Node, out: Any, w: Any, x: Any, ids: Any) -> Step:
    """Gathers the matrices of one token after the other, and converts them to float32."""
    library, (weights, rows, _) = device.library, node.sources
    out, w, x, ids = axes(library, out, 3), axes(library, w, 3), axes(library, x, 3), axes(library, ids, 2)
    used, k = ids.shape[1], x.shape[2]
    gathered, wide = library.empty((used, *w.shape[1:]), weights.dtype), library.empty((used, 1, k))
    floats = device.floats_of(gathered, weights.dtype)
    steps: list[Step] = []
    for t in range(ids.shape[0]):
        steps.append(library.take(w, ids[t], gathered))
        for u in range(used):
            steps.append(device.conversion(wide[u], F32, x[t, u % x.shape[1] : u % x.shape[1] + 1], rows.dtype))
        steps.append(_multiplied(library, gathered, floats, wide, out[t, :, None]))

    return checked(node, steps)


def _multiplied(library: Library, w: Any, floats: Step | None, x: Any, out: Any) -> Step:
    """``out[u] = x[u] @ w[u].T``"""
    return lambda: library.product(x, (w if floats is None else floats()).swapaxes(-1, -2), out)()


def _is_choice(node: Node) -> bool | str:
    ids, x, *weights = node.sources
    if x.dtype not in FLOATS or node.dtype not in FLOATS or ids.dtype.name != "int32":
        return f"products of {x.dtype.name} with indices of {ids.dtype.name} as {node.dtype.name}"
    known = all(w.dtype in FLOATS or w.dtype.is_quantized for w in weights)
    return (known and ne(x.shape)[:2] == ne(weights[0].shape)[:2] == (1, 1)) or "weights that are no float matrices"


@stepwise
@op("mul_mat_id", dtypes="all", when=_is_choice, prepare=True)
def mul_mat_id(device: Family, node: Node, out: Any, ids: Any, x: Any, *weights: Any) -> Step:
    """Multiplies all rows with each matrix, and keeps the results that the indices choose."""
    library, xp = device.library, device.library.xp
    x, out, ids = axes(library, x, 2), axes(library, out, 2), axes(library, ids, 2)
    chosen = ids[:, node.params["id"] : node.params["id"] + 1]
    check = checked(node, [library.check_ids(chosen, len(weights))])

    def products(x: Any, *weights: Any) -> Any:
        check()
        found = xp.zeros_like(x[:, :1])
        for i, w in enumerate(weights):
            found = xp.where(chosen == i, xp.matmul(x, w.swapaxes(-1, -2)), found)
        return found

    given = [x, *(axes(library, w, 2) for w in weights)]
    return device.value_of(products, node, out, given, [s.dtype for s in node.sources[1:]])


def _outer(node: Node) -> bool | str:
    a, b = (ne(s.shape)[:2] for s in node.sources)
    return a == b or "operands of different numbers of matrices"


@op("out_prod", dtypes=FLOAT_NAMES, when=_outer, prepare=True)
def out_prod(device: Family, node: Node, out: Any, a: Any, b: Any) -> Step:
    library, matmul = device.library, device.library.xp.matmul
    a, b, out = (axes(library, array, 4) for array in (a, b, out))
    return device.value_of(lambda a, b: matmul(b.swapaxes(-1, -2), a), node, out, (a, b))
