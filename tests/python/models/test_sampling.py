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


@pytest.mark.parametrize("seed", range(40))
def test_the_largest_logits_decide_as_all_do(seed):
    """Also with ties, penalties of most of them, and few tokens."""
    random = np.random.default_rng(seed)
    n = int(random.integers(3, 400))
    rules = Sampling(
        temperature=float(random.choice([0, 0.7])),
        top_k=int(random.integers(1, 30)),
        top_p=float(random.choice([0.5, 1.0])),
        min_p=float(random.choice([0, 0.1])),
        repeat_penalty=float(random.choice([1.0, 1.3, 3.0])),
        repeat_last=int(random.integers(0, 40)),
    )
    for round in range(10):
        logits = random.permutation(n).astype(np.float32) - 5  # no two are equal: which one counts is not defined
        if rules.temperature == 0:
            logits = np.floor(logits / 3)
        order = np.argsort(-logits, kind="stable").astype(np.int32)
        before = order[random.integers(0, min(n, 50), 60)].tolist()
        k = rules._n_best(n) or n
        both = [
            rules.choose(logits, before, np.random.default_rng(round)),
            rules._choose_of(order[:k], logits[order[:k]], before, np.random.default_rng(round)),
        ]
        assert both[0] == both[1], (rules, both)


def test_rules_that_need_all_logits_say_so():
    assert Sampling()._n_best(1000) == 1
    assert Sampling(0.5)._n_best(1000) == 40
    assert Sampling(0.5, top_k=7, repeat_penalty=1.1)._n_best(1000) == 71
    assert Sampling(repeat_penalty=1.1, repeat_last=5)._n_best(1000) == 6
    for rules in (Sampling(0.5, top_k=0), Sampling(repeat_penalty=0.9), Sampling(0.5, top_k=1000)):
        assert rules._n_best(1000) == 0
