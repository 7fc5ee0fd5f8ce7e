"""Recurrent layers: state spaces and linear attention. All tensors are float32."""

from __future__ import annotations

from .._ffi import lib
from ..tensor._build import build
from ..tensor.tensor import Tensor
from ._form import builds

__all__ = ["gated_delta_net", "gated_linear_attn", "rwkv_wkv6", "rwkv_wkv7", "ssm_conv", "ssm_scan"]


@builds("ggml_ssm_conv")
def ssm_conv(sx: Tensor, c: Tensor) -> Tensor:
    """A causal convolution of each channel: ``sx (s, channels, k - 1 + t)`` and ``c (channels, k)`` give
    ``(s, t, channels)``.

    ``sx`` has the ``k - 1`` samples before the first one, too.
    """
    return build("ssm_conv", lib.ggml_ssm_conv, (sx, c), ndim=3, labels=("sx", "c"))


@builds("ggml_ssm_scan")
def ssm_scan(
    s: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, ids: Tensor, n_states: int = 1
) -> tuple[Tensor, Tensor]:
    """The scan of a state space layer (Mamba, arXiv:2312.00752 and 2405.21060).

    For each token, with ``d = softplus(dt)``: ``state = state exp(d A) + d x B``, then ``y = state C``.

    s: states ``(r, heads, p, n)``. They are not changed.
    x: ``(sequences, tokens, heads, p)``
    dt: ``(sequences, tokens, heads)``
    A: ``(heads, 1)``, or ``(heads, n)``
    B, C: ``(sequences, tokens, groups, n)``; groups of neighbouring heads share them
    ids: int32 ``(sequences,)``: the row of ``s`` that a sequence starts from
    n_states: how many states to return: after the last token, one token earlier, ... States before
        the first token are the one that the sequence starts from.

    Returns ``y`` with the shape of ``x``, and states ``(n_states * sequences, heads, p, n)``. Both are views.
    """
    labels = ("s", "x", "dt", "A", "B", "C", "ids")
    packed = build("ssm_scan", lib.ggml_ssm_scan, (s, x, dt, A, B, C, ids), n_states, ndim=1, labels=labels)
    (p, heads, tokens, sequences), state = x.ne, s.ne
    n = p * heads * tokens * sequences
    states = packed[n:].reshape(n_states * sequences, heads, p, state[0])
    return packed[:n].reshape(sequences, tokens, heads, p), states


@builds("ggml_gated_delta_net")
def gated_delta_net(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, n_states: int = 1
) -> tuple[Tensor, Tensor]:
    """The gated delta rule (arXiv:2412.06464), with keys of any length.

    For each token: ``state = state exp(g)``, then ``state += beta (v - state k) k'``, then ``y = state q /
    sqrt(size)``.

    q, k: ``(b, tokens, key_heads, size)``. Head ``h`` uses key head ``h % key_heads``. ``b`` divides the number of
        sequences.
    v: ``(sequences, tokens, heads, size)``
    g: logarithms of decays, ``(sequences, tokens, heads, 1)``, or ``size`` for one of each key element
    beta: ``(sequences, tokens, heads, 1)``
    state: ``(sequences, heads, size, size)``: a row of keys for each value
    n_states: as for :func:`ssm_scan`

    Returns ``y`` with the shape of ``v``, and states ``(n_states * sequences, heads, size, size)``. Both are views.
    """
    labels = ("q", "k", "v", "g", "beta", "state")
    given = (q, k, v, g, beta, state)
    packed = build("gated_delta_net", lib.ggml_gated_delta_net, given, n_states, ndim=2, labels=labels)
    size, heads, tokens, sequences = v.ne
    rows = tokens * sequences
    states = packed[rows:].reshape(n_states * sequences, heads, size, size)
    return packed[:rows].reshape(sequences, tokens, heads, size), states


def _with_states(packed: Tensor, like: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return packed[: like.ne[2]].reshape(*like.shape), packed[like.ne[2] :].reshape(*state.shape)


@builds("ggml_rwkv_wkv6")
def rwkv_wkv6(k: Tensor, v: Tensor, r: Tensor, tf: Tensor, td: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The attention of RWKV 6: ``y = r (tf k v' + state)``, then ``state = td state + k v'``.

    k, v, r, td: contiguous ``(tokens, heads, size)``: the tokens of all sequences, one sequence after the other
    tf: ``(heads, size)``
    state: ``(sequences, heads * size * size)``: a row of values for each key

    Returns ``y`` with the shape of ``k``, and the new states. Both are views.
    """
    labels = ("k", "v", "r", "tf", "td", "state")
    packed = build("rwkv_wkv6", lib.ggml_rwkv_wkv6, (k, v, r, tf, td, state), ndim=2, labels=labels)
    return _with_states(packed, k, state)


@builds("ggml_rwkv_wkv7")
def rwkv_wkv7(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The attention of RWKV 7: ``state = state diag(w) + (state a) b' + v k'``, then ``y = state r``.

    All but ``state`` are contiguous ``(tokens, heads, size)``, as for :func:`rwkv_wkv6`.

    state: ``(sequences, heads * size * size)``: a row of keys for each value

    Returns ``y`` with the shape of ``r``, and the new states. Both are views.
    """
    labels = ("r", "w", "k", "v", "a", "b", "state")
    packed = build("rwkv_wkv7", lib.ggml_rwkv_wkv7, (r, w, k, v, a, b, state), ndim=2, labels=labels)
    return _with_states(packed, r, state)


@builds("ggml_gated_linear_attn")
def gated_linear_attn(k: Tensor, v: Tensor, q: Tensor, g: Tensor, state: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Gated linear attention (arXiv:2312.06635): ``state = g state + k v'``, then ``y = scale q state``.

    k, v, q, g: contiguous ``(tokens, heads, size)``, as for :func:`rwkv_wkv6`
    state: ``(sequences, heads * size * size)``: a row of values for each key

    Returns ``y`` with the shape of ``k``, and the new states. Both are views.
    """
    labels = ("k", "v", "q", "g", "state")
    packed = build("gated_linear_attn", lib.ggml_gated_linear_attn, (k, v, q, g, state), scale, ndim=2, labels=labels)
    return _with_states(packed, k, state)
