"""State spaces and linear attention, token by token in NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ggml_backend as gb
from op_harness import Tolerance, array, check, covers, real, refuses, whole

# Each token adds a few roundings to the state, relative to its size. Errors of earlier tokens decay with the state.
CLOSE = Tolerance(terms=400)


def both(build, inputs, reference):
    """Compares outputs, then states."""
    for part in (0, 1):
        want = reference(*(i.exact for i in inputs))[part]
        size = 1.0 + np.abs(want).max(initial=0.0)
        check(
            lambda *t, part=part: build(*t)[part],
            inputs,
            lambda *x, want=want: want,
            CLOSE,
            magnitude=lambda *x, size=size, want=want: np.full(want.shape, size),
        )


@covers("SSM_CONV")
@pytest.mark.parametrize(
    ("k", "tokens", "channels", "sequences"), [(4, 1, 40, 2), (4, 70, 7, 1), (1, 5, 33, 3), (6, 3, 64, 1), (4, 0, 5, 1)]
)
def test_ssm_conv(k, tokens, channels, sequences):
    def conv(sx, c):
        if tokens == 0:
            return np.zeros((sequences, 0, channels))
        return np.einsum("sctk,ck->stc", np.lib.stride_tricks.sliding_window_view(sx, k, axis=2), c)

    for layout in ("whole", "offset"):
        x = real(sequences, channels, k - 1 + tokens, layout=layout)
        check(gb.ops.ssm_conv, [x, real(channels, k)], conv, Tolerance(terms=2, n=k), magnitude=conv)


def ssm_scan(n_states):
    def scan(s, x, dt, A, B, C, ids):
        sequences, tokens, heads, _ = x.shape
        group = np.arange(heads) // (heads // B.shape[2])
        y, states = np.zeros_like(x), np.broadcast_to(s[ids], (n_states, sequences, *s.shape[1:])).copy()
        for q in range(sequences):
            h = s[ids[q]]
            for t in range(tokens):
                d = np.logaddexp(0, dt[q, t])
                h = h * np.exp(d[:, None] * A)[:, None, :]
                h = h + (d[:, None] * x[q, t])[:, :, None] * B[q, t, group][:, None, :]
                y[q, t] = np.einsum("hpn,hn->hp", h, C[q, t, group])
                if tokens - 1 - t < n_states:
                    states[tokens - 1 - t, q] = h
        return y, states.reshape(-1, *s.shape[1:])

    return scan


# n, p, heads, groups, tokens, sequences, rows of s, factors of a head, states
SCANS = [
    (16, 1, 40, 1, 5, 2, 3, 16, 1), (16, 1, 7, 1, 1, 1, 1, 16, 1), (128, 64, 3, 1, 1, 1, 1, 1, 1),
    (128, 64, 4, 2, 9, 1, 2, 1, 3), (64, 5, 6, 3, 2, 2, 2, 1, 2), (5, 3, 4, 2, 6, 1, 1, 1, 1),
    (96, 40, 2, 1, 3, 2, 4, 96, 3), (8, 33, 2, 2, 20, 1, 1, 8, 1),
    (16, 40, 2, 1, 1, 2, 3, 1, 4), (3, 2, 2, 1, 2, 1, 1, 3, 5), (16, 64, 8, 2, 10, 1, 1, 1, 1),
]  # fmt: skip


@covers("SSM_SCAN")
@pytest.mark.parametrize(("n", "p", "heads", "groups", "tokens", "sequences", "rows", "factors", "n_states"), SCANS)
def test_ssm_scan(n, p, heads, groups, tokens, sequences, rows, factors, n_states):
    inputs = [
        real(rows, heads, p, n),
        real(sequences, tokens, heads, p, layout="offset"),
        real(sequences, tokens, heads, low=-4, high=2),
        real(heads, factors, low=-3, high=0),
        real(sequences, tokens, groups, n),
        real(sequences, tokens, groups, n, layout="offset"),
        whole(sequences, low=0, high=rows),
    ]
    both(lambda *t: gb.ops.ssm_scan(*t, n_states), inputs, ssm_scan(n_states))


def test_ssm_scan_names_an_index_out_of_range():
    shapes = [(2, 3, 4, 8), (1, 5, 3, 4), (1, 5, 3), (3, 1), (1, 5, 1, 8), (1, 5, 1, 8)]
    for wrong in (2, -1):
        inputs = [*(real(*shape) for shape in shapes), array([wrong], "int32")]
        refuses(lambda *t: gb.ops.ssm_scan(*t)[0], inputs, error=gb.errors.InvalidArgumentError)


def delta_net(n_states):
    def net(q, k, v, g, beta, state):
        sequences, tokens, heads, size = v.shape
        q, k = (np.repeat(t, sequences // t.shape[0], 0)[:, :, np.arange(heads) % t.shape[2]] for t in (q, k))
        y, states = np.zeros_like(v), np.broadcast_to(state, (n_states, *state.shape)).copy()
        for t in range(tokens):
            state = state * np.exp(g[:, t])[:, :, None, :]
            error = v[:, t] - np.einsum("bhij,bhj->bhi", state, k[:, t])
            state = state + (beta[:, t] * error)[..., None] * k[:, t, :, None, :]
            y[:, t] = np.einsum("bhij,bhj->bhi", state, q[:, t]) / np.sqrt(size)
            if tokens - 1 - t < n_states:
                states[tokens - 1 - t] = state
        return y, states.reshape(-1, *state.shape[1:])

    return net


# size, heads, key heads, tokens, sequences, sequences of keys, decays of a head, states
NETS = [
    (128, 2, 1, 1, 1, 1, 1, 1), (128, 4, 2, 9, 1, 1, 1, 1), (64, 3, 3, 3, 2, 1, 64, 2), (32, 2, 2, 70, 2, 2, 32, 1),
    (5, 4, 2, 6, 4, 2, 1, 3), (33, 2, 1, 4, 1, 1, 33, 4), (1, 2, 1, 5, 1, 1, 1, 1), (16, 6, 3, 2, 1, 1, 1, 2),
    (33, 2, 1, 1, 2, 1, 1, 3), (4, 2, 2, 2, 1, 1, 4, 5), (96, 8, 4, 7, 1, 1, 96, 2),
]  # fmt: skip


@covers("GATED_DELTA_NET")
@pytest.mark.parametrize(
    ("size", "heads", "key_heads", "tokens", "sequences", "key_sequences", "decays", "n_states"), NETS
)
def test_gated_delta_net(size, heads, key_heads, tokens, sequences, key_sequences, decays, n_states):
    def unit(*shape, layout):
        x = real(*shape, layout=layout)
        x.values[...] /= np.maximum(np.linalg.norm(x.values, axis=-1, keepdims=True), 0.1)
        return x

    for layout in ("whole", "stepped"):
        inputs = [
            unit(key_sequences, tokens, key_heads, size, layout=layout),
            unit(key_sequences, tokens, key_heads, size, layout=layout),
            real(sequences, tokens, heads, size, layout=layout),
            real(sequences, tokens, heads, decays, low=-2, high=0),
            real(sequences, tokens, heads, 1, low=0, high=1),
            real(sequences, heads, size, size),
        ]
        both(lambda *t: gb.ops.gated_delta_net(*t, n_states), inputs, delta_net(n_states))


@pytest.mark.parametrize("empty", [*"NPHRTSG", *itertools.combinations("NPHRTSG", 2)])
def test_ssm_scan_of_empty_tensors(cpu, empty):
    n, p, h, r, t, s, g = (0 if name in empty else 2 for name in "NPHRTSG")
    with gb.Context() as ctx:
        shapes = [(r, h, p, n), (s, t, h, p), (s, t, h), (h, 1), (s, t, g, n), (s, t, g, n)]
        tensors = [*(ctx.tensor(shape) for shape in shapes), ctx.tensor((s,), "int32")]
        try:
            y, states = gb.ops.ssm_scan(*tensors)
        except gb.errors.InvalidArgumentError:
            assert "G" in empty, "heads without a group"
            return
        scheduler, graph = gb.Scheduler(cpu), ctx.graph(y, states)
        scheduler.allocate(graph)
        for x in tensors:
            x.set(np.zeros(x.shape, x.dtype.numpy))
        try:
            scheduler.compute(graph)
        except gb.errors.InvalidArgumentError:
            assert "R" in empty, "an index out of range"
            return
        assert not y.numpy().any() and not states.numpy().any()


def test_without_tokens_the_states_stay(cpu):
    with gb.Context() as ctx:
        s, ids = real(3, 4, 6, 64), array([2, 1], "int32")
        sources = [s, real(2, 0, 4, 6), real(2, 0, 4), real(4, 1), real(2, 0, 2, 64), real(2, 0, 2, 64), ids]
        given = [ctx.constant(x.values.astype(np.int32 if x is ids else np.float32)) for x in sources]
        _, scanned = gb.ops.ssm_scan(*given, 2)
        state = real(2, 2, 5, 5)
        empty = [np.zeros((2, 0, 2, n), np.float32) for n in (5, 5, 5, 1, 1)]
        given = [ctx.constant(x) for x in empty]
        _, kept = gb.ops.gated_delta_net(*given, ctx.constant(state.values.astype(np.float32)), 2)
        graph, scheduler = ctx.graph(scanned, kept), gb.Scheduler(cpu)
        scheduler.allocate(graph)
        scheduler.compute(graph)
        np.testing.assert_array_equal(scanned.numpy(), np.tile(s.values[[2, 1]].astype(np.float32), (2, 1, 1, 1)))
        np.testing.assert_array_equal(kept.numpy(), np.tile(state.values.astype(np.float32), (2, 1, 1, 1)))


def of_sequences(x, n):
    return x.reshape(n, -1, *x.shape[1:])


def linear(kind, scale=1.0):
    def layer(*inputs):
        *tokens, state = inputs
        n = len(state)
        heads, size = tokens[0].shape[1:]
        state = state.reshape(n, heads, size, size)
        if kind == "wkv6":
            k, v, r, tf, td = tokens
            k, v, r, td = (of_sequences(x, n) for x in (k, v, r, td))
        else:
            tokens = [of_sequences(x, n) for x in tokens]
        y = np.zeros((n, len(inputs[0]) // n, heads, size))
        for t in range(y.shape[1]):
            if kind == "wkv6":
                kv = k[:, t, :, :, None] * v[:, t, :, None, :]
                y[:, t] = np.einsum("bhi,bhij->bhj", r[:, t], tf[None, :, :, None] * kv + state)
                state = td[:, t, :, :, None] * state + kv
            elif kind == "wkv7":
                r, w, k, v, a, b = (x[:, t] for x in tokens)
                removed = np.einsum("bhij,bhj->bhi", state, a)
                state = (
                    state * w[:, :, None, :] + removed[..., None] * b[:, :, None, :] + v[..., None] * k[:, :, None, :]
                )
                y[:, t] = np.einsum("bhij,bhj->bhi", state, r)
            else:
                k, v, q, g = (x[:, t] for x in tokens)
                state = g[..., None] * state + k[..., None] * v[:, :, None, :]
                y[:, t] = scale * np.einsum("bhi,bhij->bhj", q, state)
        return y.reshape(inputs[0].shape), state.reshape(inputs[-1].shape)

    return layer


HEADS = [(64, 2, 5, 1), (64, 3, 6, 3), (5, 4, 8, 2), (33, 2, 1, 1), (70, 1, 9, 1), (1, 3, 4, 2)]


@covers("RWKV_WKV6")
@pytest.mark.parametrize(("size", "heads", "tokens", "sequences"), HEADS)
def test_rwkv_wkv6(size, heads, tokens, sequences):
    k, v, r = (real(tokens, heads, size, low=-1, high=1) for _ in range(3))
    td, state = real(tokens, heads, size, low=0, high=1), real(sequences, heads * size * size)
    both(gb.ops.rwkv_wkv6, [k, v, r, real(heads, size), td, state], linear("wkv6"))


@covers("RWKV_WKV7")
@pytest.mark.parametrize(("size", "heads", "tokens", "sequences"), HEADS)
def test_rwkv_wkv7(size, heads, tokens, sequences):
    r, k, v = (real(tokens, heads, size, low=-1, high=1) for _ in range(3))
    w, a = real(tokens, heads, size, low=0, high=1), real(tokens, heads, size, low=-1 / size, high=0)
    b, state = real(tokens, heads, size, low=0, high=1), real(sequences, heads * size * size)
    both(gb.ops.rwkv_wkv7, [r, w, k, v, a, b, state], linear("wkv7"))


@covers("GATED_LINEAR_ATTN")
@pytest.mark.parametrize(("size", "heads", "tokens", "sequences"), HEADS)
def test_gated_linear_attn(size, heads, tokens, sequences):
    k, v, q = (real(tokens, heads, size, low=-1, high=1) for _ in range(3))
    g, state = real(tokens, heads, size, low=0, high=1), real(sequences, heads * size * size)
    both(lambda *t: gb.ops.gated_linear_attn(*t, 0.25), [k, v, q, g, state], linear("gla", 0.25))


def test_shapes_that_do_not_fit(ctx):
    t = ctx.tensor
    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"sequences of state \(2\) must divide the number of tokens \(5\)"
    ):
        gb.ops.rwkv_wkv6(t((5, 3, 8)), t((5, 3, 8)), t((5, 3, 8)), t((3, 8)), t((5, 3, 8)), t((2, 3 * 64)))
    with pytest.raises(
        gb.errors.InvalidArgumentError, match=r"axis -2 of B \(2\) must divide the number of heads \(3\)"
    ):
        gb.ops.ssm_scan(
            t((1, 3, 4, 8)),
            t((1, 5, 3, 4)),
            t((1, 5, 3)),
            t((3, 1)),
            t((1, 5, 2, 8)),
            t((1, 5, 2, 8)),
            t((1,), "int32"),
        )
    q, v, state = t((1, 5, 2, 8)), t((1, 5, 4, 8)), t((1, 4, 8, 8))
    with pytest.raises(gb.errors.InvalidArgumentError, match="axis -1 of g must be 1 or 8, is 3"):
        gb.ops.gated_delta_net(q, q, v, t((1, 5, 4, 3)), t((1, 5, 4, 1)), state)
    for n_states in (0, -1):
        with pytest.raises(gb.errors.InvalidArgumentError, match="n_states must be from 1"):
            gb.ops.gated_delta_net(q, q, v, t((1, 5, 4, 1)), t((1, 5, 4, 1)), state, n_states)
    with pytest.raises(gb.errors.InvalidArgumentError, match="must be float32"):
        gb.ops.ssm_conv(t((1, 4, 8), "float16"), t((4, 3)))
