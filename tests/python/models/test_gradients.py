"""Gradients of whole models: against differences of the networks in NumPy and float64."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

import ggml_backend as gb
import small_models as sm
from ggml_backend.models import EmbeddingModel, TextModel

IDS = np.random.default_rng(1).integers(32, sm.VOCAB, 11).tolist()
LAST = 3  # positions whose logits count
UNDERIVED = "rope_freqs.weight"  # an operator reads it but does not derive it


def logit_weights(n):
    weights = np.random.default_rng(2).standard_normal((n, sm.VOCAB)).astype(np.float32)
    weights[: n - LAST] = 0
    return weights


@lru_cache
def expected_slopes(name):
    """The slope of the weighted sum along a random change of each weight, in float64."""
    reference, rng, n = sm.Reference(sm.SMALL[name]), np.random.default_rng(3), len(IDS)
    weights, slopes = logit_weights(n), {}
    for key, kept in reference.w.items():
        change, ends = rng.standard_normal(kept.shape), []
        for size in (1e-5, -1e-5):
            reference.w[key] = kept + size * change
            ends.append(sum(reference.logits(IDS[: i + 1]) @ weights[i] for i in range(n - LAST, n)))
        reference.w[key] = kept
        slopes[key] = change, (ends[0] - ends[1]) / 2e-5
    return slopes


def loss_of(model, n):
    """The graph of n tokens that see each other as text, and a weighted sum of logits."""
    step = model._step_of(n, 64, n)
    with step.context.as_default():
        return step, gb.ops.sum(step.logits * step.context.constant(logit_weights(n)))


def set_inputs(model, step, n):
    places = np.arange(n, dtype=np.int32)
    for t in (step.inputs.positions, step.inputs.rows, step.inputs.out):
        t.set(places)
    step.inputs.ids.set(np.array(IDS[:n], np.int32))
    ahead = places[:, None] - np.arange(64)
    for mask, window in ((step.inputs.mask, 64), (step.inputs.local_mask, model._s.window)):
        if mask is not None:
            mask.set(np.where((ahead < 0) | (ahead >= window), -np.inf, 0).astype(np.float16))


@pytest.mark.parametrize("devices", [("CPU",), ("SIM", "CPU"), ("ARRAY", "CPU")], ids=lambda d: d[0])
@pytest.mark.parametrize("name", sm.SMALL)
def test_gradients_of_decoders(name, devices, tmp_path):
    sm.write(tmp_path / "model.gguf", sm.SMALL[name])
    n = len(IDS)
    with TextModel(tmp_path / "model.gguf", devices, n_ctx=64, cache="float32", precision="f32") as model:
        step, loss = loss_of(model, n)
        names = [key for key in expected_slopes(name) if not key.endswith(UNDERIVED)]
        with step.context.as_default():
            found = gb.grad(loss, [model.weights[key] for key in names])
        graph, sched = step.context.graph(loss, *found), gb.Scheduler(model.backends)
        sched.allocate(graph)
        set_inputs(model, step, n)
        sched.compute(graph)
        for key, grad in zip(names, found, strict=True):
            change, expected = expected_slopes(name)[key]
            slope = grad.numpy()
            got = (slope * change).sum(dtype=np.float64)
            assert abs(got - expected) < 1e-4 * np.linalg.norm(slope) + 1e-4, f"{key}: {got} instead of {expected}"


def test_gradients_of_an_encoder(tmp_path):
    """Each operator of the encoder has a derivative, so most weights have a gradient. The values are not compared."""
    sm.write_encoder(tmp_path / "bert.gguf")
    with EmbeddingModel(tmp_path / "bert.gguf") as model:
        step = model._step_of(1, 6)
        with step.context.as_default():
            found = gb.grad(gb.ops.sum(step.out), list(model.weights.values()), allow_unused=True)
    assert sum(g is None for g in found) < len(found) // 4
