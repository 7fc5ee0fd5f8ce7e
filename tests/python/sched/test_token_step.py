"""Steps: one call sets the inputs of a graph, computes it, and finds the best results."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend import ops
from ggml_backend.sched._step import Step

ROWS, WIDTH, HALF = 3, 8, 250
WEIGHT = np.random.default_rng(1).standard_normal((HALF, WIDTH)).astype(np.float32)


class Made(NamedTuple):
    step: Step
    scheduler: gb.Scheduler
    result: gb.Tensor


def step_of(ctx, backends, bend=lambda y: y):
    """x W^T + b. W has each row twice, so each result has an equal one."""
    x, b = ctx.tensor((ROWS, WIDTH), name="x"), ctx.tensor((1,), name="b")
    result = bend(ops.mul_mat(ctx.constant(np.concatenate([WEIGHT, WEIGHT])), x) + b)
    scheduler = gb.Scheduler(backends)
    return Made(Step(scheduler, ctx.graph(result), [x, b], result), scheduler, result)


@pytest.fixture(params=[("CPU",), ("SIM", "CPU"), ("ARRAY", "CPU")], ids="-".join)
def made(request, ctx):
    made = step_of(ctx, [gb.Backend(name) for name in request.param])
    yield made
    made.scheduler.close()


def fill(step, rng):
    step.arrays[0][...] = rng.standard_normal((ROWS, WIDTH))
    step.arrays[1][...] = rng.standard_normal()


def test_results_are_those_of_separate_calls(made, rng):
    for k in (1, 2, 7, 40, 2 * HALF):
        fill(made.step, rng)
        ids, values = made.step.run(k)
        logits = made.result.numpy(copy=True)
        x, b = made.step.arrays
        np.testing.assert_allclose(logits, np.tile(x @ WEIGHT.T + b, (1, 2)), atol=1e-5)
        expected = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(ids, expected)
        np.testing.assert_array_equal(values, np.take_along_axis(logits, expected, 1))


def test_zero_results_leave_all_to_be_read(made, rng):
    fill(made.step, rng)
    ids, values = made.step.run(0)
    assert ids.size == values.size == 0
    np.testing.assert_allclose(
        made.result.numpy(), np.tile(made.step.arrays[0] @ WEIGHT.T, (1, 2)) + made.step.arrays[1], atol=1e-5
    )


def test_nan_is_the_worst(made):
    made.step.arrays[0][...] = 1
    made.step.arrays[0][1] = np.nan
    ids, values = made.step.run(3)
    assert np.isnan(values[1]).all() and ids[1].tolist() == [0, 1, 2]
    assert np.isfinite(values[[0, 2]]).all()


def test_too_many_results_are_an_error(made, rng):
    fill(made.step, rng)
    with pytest.raises(gb.errors.InvalidArgumentError, match="500"):
        made.step.run(2 * HALF + 1)


def test_closed_objects_are_an_error(ctx):
    made = step_of(ctx, [gb.Backend("CPU")])
    made.scheduler.close()
    with pytest.raises(gb.errors.StateError, match="scheduler is closed"):
        made.step.run(1)
    with gb.Scheduler([gb.Backend("CPU")]) as scheduler, gb.Context() as other:
        x = other.tensor((ROWS, WIDTH), name="x")
        y = ops.scale(x, 2.0)
        step = Step(scheduler, other.graph(y), [x], y)
        step.run(1)
        other.close()
        with pytest.raises(gb.errors.StateError, match="closed"):
            step.run(1)


def test_exceptions_of_callbacks_are_raised(ctx):
    def failing(to, x):
        raise ZeroDivisionError

    made = step_of(ctx, [gb.Backend("CPU")], lambda y: ops.map_custom(failing, y))
    with pytest.raises(ZeroDivisionError):
        made.step.run(1)
    made.scheduler.close()


def test_a_stopped_run_is_an_error(ctx):
    backend = gb.Backend("CPU")
    made = step_of(ctx, [backend])
    gb.sched.set_abort_callback(backend, lambda: True)
    with pytest.raises(gb.errors.StateError, match="stopped"):
        made.step.run(1)
    gb.sched.set_abort_callback(backend, None)
    assert made.step.run(1)[0].shape == (ROWS, 1)
    made.scheduler.close()
