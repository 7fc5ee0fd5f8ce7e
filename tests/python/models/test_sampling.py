"""The choice of the next token."""

from __future__ import annotations

import numpy as np
import pytest

from ggml_backend.models import Sampling


def frequencies(rules, logits, before=(), n=4000):
    random = np.random.default_rng(0)
    found = np.bincount([rules.choose(logits, list(before), random) for _ in range(n)], minlength=len(logits))
    return found / n


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


LOGITS = np.array([1.0, 3.0, -2.0, 2.5, 0.0, 2.0], np.float32)


def test_temperature_0_takes_the_likeliest():
    assert Sampling().choose(LOGITS, [], np.random.default_rng(0)) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_those_of_the_softmax(temperature):
    rules = Sampling(temperature, top_k=0, top_p=1.0)
    np.testing.assert_allclose(frequencies(rules, LOGITS), softmax(LOGITS.astype(float) / temperature), atol=0.03)


def test_top_k_keeps_the_likeliest():
    found = frequencies(Sampling(1.0, top_k=2, top_p=1.0), LOGITS)
    assert set(np.flatnonzero(found)) == {1, 3}
    np.testing.assert_allclose(found[[1, 3]], softmax(np.array([3.0, 2.5])), atol=0.03)


@pytest.mark.parametrize("top_p", [0.1, 0.4, 0.41, 0.7, 0.9, 0.99, 1.0])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p):
    p, order = softmax(LOGITS.astype(float)), np.argsort(-LOGITS)
    kept = next(n for n in range(1, 7) if p[order[:n]].sum() >= top_p - 1e-12)
    found = frequencies(Sampling(1.0, top_k=0, top_p=top_p), LOGITS, n=8000)
    assert set(np.flatnonzero(found)) <= set(order[:kept].tolist())
    expected = p[order[:kept]] / p[order[:kept]].sum()
    np.testing.assert_allclose(found[order[:kept]], expected, atol=0.03)


def test_min_p_keeps_tokens_with_a_share_of_the_best():
    p = softmax(LOGITS.astype(float))
    found = frequencies(Sampling(1.0, top_k=0, top_p=1.0, min_p=0.3), LOGITS, n=8000)
    assert set(np.flatnonzero(found)) == set(np.flatnonzero(p >= 0.3 * p.max()).tolist())


def test_a_penalty_makes_recent_tokens_less_likely():
    rules = Sampling(repeat_penalty=2.0, repeat_last=3)
    assert rules.choose(LOGITS, [1], np.random.default_rng(0)) == 3
    assert rules.choose(LOGITS, [1, 0, 0, 0], np.random.default_rng(0)) == 1, "too long ago"
    negative = np.array([-1.0, -1.5], np.float32)
    assert rules.choose(negative, [0], np.random.default_rng(0)) == 1, "negative logits sink, too"
    assert LOGITS[1] == 3.0, "the caller's logits stay"


def test_extreme_logits_have_a_choice():
    for logits in ([np.inf, 0.0], [-np.inf, 0.0], [1e30, -1e30], [0.0]):
        found = Sampling(0.7, seed=1).choose(np.array(logits, np.float32), [], np.random.default_rng(0))
        assert 0 <= found < len(logits)
