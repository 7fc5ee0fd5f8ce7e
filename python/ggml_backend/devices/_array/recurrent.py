"""Recurrent layers. A step computes one token of all sequences and heads.

The result is one tensor: outputs, then states. All sources are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from .._nodes import Node
from ..device import op
from .family import Family, checked, stepwise
from .layout import axes, ne
from .library import Step

Token = Callable[[int, Any], "tuple[Any, Any]"]
"""A function of the number of a token and of the state before it. It returns the state after it, and the output."""


def _is_dense(node: Node) -> bool | str:
    return node.is_contiguous or "a result with gaps"


@op("ssm_conv", dtypes="float32", prepare=True)
def ssm_conv(device: Family, node: Node, out: Any, sx: Any, c: Any) -> Step:
    """A causal convolution of each channel."""
    library, (width, tokens) = device.library, (ne(node.sources[1].shape)[3], ne(node.shape)[2])
    sx, out, c = axes(library, sx, 3), axes(library, out, 3), axes(library, c, 2)

    def convolved(sx: Any, c: Any) -> Any:
        found = sum((sx[..., k : k + tokens] * c[:, k, None] for k in range(width)), start=0.0)
        return library.xp.permute_dims(found, (0, 2, 1))

    return device.value_of(convolved, node, out, (sx, c))


def _parts(device: Family, out: Any, outputs: tuple[int, ...], states: tuple[int, ...]) -> tuple[Any, Any]:
    """Views of the result: outputs (sequences, tokens, ...), and states (kept, sequences, ...)."""
    library, n = device.library, prod(outputs)
    flat = library.reshaped(out, (-1,))
    return library.reshaped(flat[:n], outputs), library.reshaped(flat[n : n + prod(states)], states)


def _run(token: Token, state: Any, outputs: Any, states: Any) -> None:
    """Computes all tokens, and keeps the states after the last ones, the latest first. If there are fewer tokens than
    kept states, the others are the first state."""
    tokens = outputs.shape[1]
    for k in range(tokens, states.shape[0]):
        states[k] = state
    for t in range(tokens):
        state, outputs[:, t] = token(t, state)
        if tokens - 1 - t < states.shape[0]:
            states[tokens - 1 - t] = state


@stepwise
@op("ssm_scan", dtypes="float32", when=_is_dense, prepare=True)
def ssm_scan(device: Family, node: Node, out: Any, s: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, ids: Any) -> Step:
    """Consecutive heads share a group of ``b`` and ``c``."""
    library, xp = device.library, device.library.xp
    s, x, b, c = (axes(library, array, 4) for array in (s, x, b, c))
    dt, a, ids = axes(library, dt, 3), axes(library, a, 2), axes(library, ids, 1)
    sequences, tokens, heads, width = x.shape
    n, groups = s.shape[3], b.shape[2]
    kept = (node.params["n_states"], sequences, heads, width, n)
    outputs, states = _parts(device, out, (sequences, tokens, heads, width), kept)
    first = library.empty((sequences, *s.shape[1:]))
    take, softplus = checked(node, [library.take(s, ids, first)]), library.functions["softplus"]

    def of_heads(array: Any) -> Any:
        wide = xp.broadcast_to(array[:, :, :, None], (sequences, tokens, groups, heads // groups, n))
        return xp.reshape(wide, (sequences, tokens, heads, n))

    def scan() -> None:
        take()
        steps, written, read = softplus(dt), of_heads(b), of_heads(c)

        def token(t: int, state: Any) -> tuple[Any, Any]:
            d = steps[:, t, :, None]
            state = state * xp.exp(d * a)[:, :, None] + (d * x[:, t])[..., None] * written[:, t, :, None]
            return state, xp.matmul(state, read[:, t, :, :, None])[..., 0]

        _run(token, first, outputs, states)

    return scan


@op("gated_delta_net", dtypes="float32", when=_is_dense, prepare=True)
def gated_delta_net(
    device: Family, node: Node, out: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any
) -> Step:
    """Head h uses the keys of head h modulo their number. Consecutive sequences share keys."""
    library, xp = device.library, device.library.xp
    q, k, v, g, beta, state = (axes(library, array, 4) for array in (q, k, v, g, beta, state))
    sequences, tokens, heads, size = v.shape
    kept = node.params["n_states"]
    outputs, states = _parts(device, out, tuple(v.shape), (kept, sequences, heads, size, size))

    def of_heads(array: Any) -> Any:
        b, _, h, _ = array.shape
        shape = (b, sequences // b, tokens, heads // h, h, size)
        return xp.reshape(xp.broadcast_to(array[:, None, :, None], shape), (sequences, tokens, heads, size))

    def net() -> None:
        keys, queries, decays = of_heads(k), of_heads(q) * size**-0.5, xp.exp(g)

        def token(t: int, state: Any) -> tuple[Any, Any]:
            state = state * decays[:, t, :, None]
            key = keys[:, t, :, :, None]
            error = beta[:, t] * (v[:, t] - xp.matmul(state, key)[..., 0])
            state = state + error[..., None] * keys[:, t, :, None]
            return state, xp.matmul(state, queries[:, t, :, :, None])[..., 0]

        _run(token, state, outputs, states)

    return net


def _sequences(device: Family, out: Any, state: Any, *tokens: Any) -> tuple[Any, Any, Any, list[Any]]:
    """The state (sequences, heads, size, size), outputs, states, and tokens (sequences, tokens, heads, size)."""
    library = device.library
    heads, size = tokens[0].shape[-2:]
    count = axes(library, state, 2).shape[0]
    square = (count, heads, size, size)
    shape = (count, axes(library, tokens[0], 3).shape[0] // max(count, 1), heads, size)
    outputs, states = _parts(device, out, shape, (1, *square))
    return library.reshaped(state, square), outputs, states, [library.reshaped(t, shape) for t in tokens]


def _is_packed(node: Node) -> bool | str:
    """Tokens of all sequences lie one behind the other."""
    dense = node.is_contiguous and all(s.is_contiguous for s in node.sources)
    tokens, sequences = ne(node.sources[0].shape)[1], ne(node.sources[-1].shape)[2]
    return (dense and sequences > 0 and tokens % sequences == 0) or "tensors with gaps, or tokens that do not divide"


@op("rwkv_wkv6", dtypes="float32", when=_is_packed, prepare=True)
def rwkv_wkv6(device: Family, node: Node, out: Any, k: Any, v: Any, r: Any, tf: Any, td: Any, state: Any) -> Step:
    """The state has a row for each element of a key."""
    matmul = device.library.xp.matmul
    tf = axes(device.library, tf, 2)[..., None]
    state, outputs, states, (k, v, r, td) = _sequences(device, out, state, k, v, r, td)

    def token(t: int, state: Any) -> tuple[Any, Any]:
        written = k[:, t, :, :, None] * v[:, t, :, None]
        y = matmul(r[:, t, :, None], tf * written + state)[:, :, 0]
        return td[:, t, :, :, None] * state + written, y

    return lambda: _run(token, state, outputs, states)


@op("gated_linear_attn", dtypes="float32", when=_is_packed, prepare=True)
def gated_linear_attn(device: Family, node: Node, out: Any, k: Any, v: Any, q: Any, g: Any, state: Any) -> Step:
    """The state has a row for each element of a key."""
    matmul, scale = device.library.xp.matmul, node.params["scale"]
    state, outputs, states, (k, v, q, g) = _sequences(device, out, state, k, v, q, g)

    def token(t: int, state: Any) -> tuple[Any, Any]:
        state = g[:, t, :, :, None] * state + k[:, t, :, :, None] * v[:, t, :, None]
        return state, matmul(q[:, t, :, None] * scale, state)[:, :, 0]

    return lambda: _run(token, state, outputs, states)


@op("rwkv_wkv7", dtypes="float32", when=_is_packed, prepare=True)
def rwkv_wkv7(device: Family, node: Node, out: Any, r: Any, w: Any, k: Any, v: Any, a: Any, b: Any, state: Any) -> Step:
    """The state has a row for each element of a value."""
    matmul = device.library.xp.matmul
    state, outputs, states, (r, w, k, v, a, b) = _sequences(device, out, state, r, w, k, v, a, b)

    def token(t: int, state: Any) -> tuple[Any, Any]:
        removed = matmul(state, a[:, t, :, :, None])
        state = state * w[:, t, :, None] + removed * b[:, t, :, None] + v[:, t, :, :, None] * k[:, t, :, None]
        return state, matmul(state, r[:, t, :, :, None])[..., 0]

    return lambda: _run(token, state, outputs, states)
