"""The context of a result follows from the sources, or the caller names it, or the call is an
error. The order of creation never matters.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import weakref

import numpy as np
import pytest

import ggml_backend as gb
from harness_interleave import Places, interrupt
from op_cases import CASES

CPU = gb.Backend("CPU", n_threads=1)
ROLES = ("inputs", "weights", "cache")
ORDERS = list(itertools.permutations(ROLES))
SEVERAL = [case for case in CASES if len(case[2]) > 1]


def made(order, **options):
    """Makes a context for each role in this order. options: options of the contexts by role"""
    return {role: gb.Context(**options.get(role, {})) for role in order}


def outcome(contexts, build):
    """The role of the context of a result, or "error"."""
    try:
        found = build().context
    except gb.errors.InvalidArgumentError as error:
        assert "different contexts" in str(error)
        assert "as_default" in str(error)
        return "error"
    return next(role for role, context in contexts.items() if context is found)


def by_usage(context):
    return context.tensor((4, 4), name="w")


def by_from_numpy(context):
    return context.from_numpy(np.ones((4, 4), np.float32), "w", usage="weights")


def by_from_dlpack(context):
    return context.from_dlpack(np.ones((4, 4), np.float32), "w", usage="weights")


def by_allocate(context):
    w = context.tensor((4, 4), name="w")
    context.allocate(CPU, usage="weights")
    return w


def by_place(context):
    return CPU.allocate(256, usage="weights").place(context.tensor((4, 4), name="w"))


WAYS = {
    "usage": (by_usage, {"usage": "weights"}),
    "from_numpy": (by_from_numpy, {}),
    "from_dlpack": (by_from_dlpack, {}),
    "allocate": (by_allocate, {}),
    "place": (by_place, {}),
}

RESULTS = {
    "inputs with weights": (lambda t: t["inputs"] @ t["weights"].T, "inputs"),
    "weights with inputs": (lambda t: t["weights"] + t["inputs"], "inputs"),
    "weights alone": (lambda t: t["weights"] + t["weights"], "weights"),
    "a view of weights": (lambda t: t["weights"].T[1:], "weights"),
    "weights with a number": (lambda t: 2 + t["weights"] * np.ones((4, 4), np.float32), "weights"),
    "inputs with cache": (lambda t: t["inputs"] * t["cache"], "error"),
    "all three": (lambda t: gb.ops.where(t["inputs"], t["weights"], t["cache"]), "error"),
    "a view of the cache": (lambda t: t["inputs"].context.view(t["cache"]) + t["inputs"], "inputs"),
    "a result with weights": (lambda t: gb.ops.relu(t["inputs"] @ t["weights"].T) + t["weights"], "inputs"),
}


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("way", WAYS)
def test_the_order_of_contexts_does_not_matter(way, result):
    weights_of, options = WAYS[way]
    build, expected = RESULTS[result]
    for order in ORDERS:
        contexts = made(order, weights=options)
        tensors = {role: contexts[role].tensor((4, 4), name=role) for role in ("inputs", "cache")}
        tensors["weights"] = weights_of(contexts["weights"])
        assert outcome(contexts, lambda t=tensors: build(t)) == expected, order


@pytest.mark.parametrize("result", RESULTS)
def test_without_weights_the_context_must_be_named(result):
    """No context is marked as weights, so the result could belong to either one."""
    build, expected = RESULTS[result]
    expected = "error" if "with" in result and expected == "inputs" else expected
    for order in ORDERS:
        contexts = made(order)
        tensors = {role: contexts[role].tensor((4, 4), name=role) for role in ROLES}
        assert outcome(contexts, lambda t=tensors: build(t)) == expected, order
        contexts = made(order)
        tensors = {role: contexts[role].tensor((4, 4), name=role) for role in ROLES}
        with contexts["inputs"].as_default():
            assert outcome(contexts, lambda t=tensors: build(t)) == "inputs", order


@pytest.mark.parametrize("case", SEVERAL, ids=lambda case: case[0])
@pytest.mark.parametrize("holds_weights", ["first", "last"])
def test_every_operation_follows_the_rule(case, holds_weights):
    _, build, inputs = case
    for order in itertools.permutations(("weights", "inputs")):
        contexts = made(order, weights={"usage": "weights"})
        at = 0 if holds_weights == "first" else len(inputs) - 1
        tensors = [contexts["weights" if i == at else "inputs"].tensor(v.shape, v.dtype) for i, v in enumerate(inputs)]
        assert build(*tensors).context is contexts["inputs"]


# The case of arange names the context of its tensor itself.
@pytest.mark.parametrize("case", [case for case in CASES if case[0] != "arange"], ids=lambda case: case[0])
def test_every_operation_accepts_a_context(case):
    _, build, inputs = case
    contexts = [gb.Context() for _ in inputs]
    named = gb.Context()
    with named.as_default():
        tensors = [c.tensor(v.shape, v.dtype) for c, v in zip(contexts, inputs, strict=True)]
        result = build(*tensors)
    assert result.context is named


def test_a_loaded_file_is_weights_in_any_order(tmp_path):
    with gb.gguf.Writer(tmp_path / "m.gguf") as writer:
        writer.add_tensor("w", np.ones((3, 4), np.float32))
    for first in (True, False):
        inputs = gb.Context() if first else None
        weights = gb.gguf.open(tmp_path / "m.gguf").load(CPU)
        inputs = inputs or gb.Context()
        assert (inputs.tensor((2, 4)) @ weights["w"].T).context is inputs


def test_weights_and_inputs_of_any_order_compute_in_planned_memory():
    """The intermediate results are planned by the scheduler, and are not allocated with the weights."""
    sizes = set()
    for order in itertools.permutations(("weights", "inputs")):
        contexts = made(order, weights={"usage": "weights"})
        w = [contexts["weights"].tensor((64, 64), name=f"w{i}") for i in range(4)]
        x = y = contexts["inputs"].tensor((8, 64), name="x")
        for v in w:
            y = gb.ops.relu(y @ v.T)
        buffer = contexts["weights"].allocate(CPU)
        scheduler = gb.Scheduler(CPU)
        graph = contexts["inputs"].graph(y)
        scheduler.allocate(graph)
        for v in w:
            v.set(np.eye(64, dtype=np.float32))
        x.set(np.full((8, 64), 2, np.float32))
        scheduler.compute(graph)
        assert (y.numpy() == 2).all()
        sizes.add((buffer.nbytes, scheduler.memory(CPU).allocated))
    assert len(sizes) == 1


def test_the_default_ends_with_its_block_also_by_an_error():
    a, b = gb.Context(), gb.Context()
    x = a.tensor((2, 2))
    with pytest.raises(ZeroDivisionError), b.as_default():
        1 / 0  # noqa: B018
    assert (x + 1).context is a
    with b.as_default(), a.as_default():
        assert (x + 1).context is a
    with b.as_default():
        assert (x + 1).context is b
        with a.as_default():
            assert (x + 1).context is a
        assert (x + 1).context is b


def test_constants_and_views_belong_to_the_default():
    a, b = gb.Context(), gb.Context()
    x = a.tensor((4, 4), name="x")
    before = len(a.tensors())
    with b.as_default():
        for y in (
            x[1:],
            x.reshape(2, 8),
            x.T,
            x.swapaxes(0, 1),
            x[:, 1],
            x.astype("f16"),
            -x,
            abs(x),
            x + np.ones(4)[0],
            x > 0,
            x * np.ones(4, np.float32),
            gb.ops.repeat(x, (8, 4)),
            gb.ops.custom(lambda o, v: v, x),
        ):
            assert y.context is b
    assert len(a.tensors()) == before


def test_a_default_belongs_to_one_thread_and_task():
    a, b = gb.Context(), gb.Context()
    x = a.tensor((2, 2))
    seen = []
    with b.as_default():
        thread = threading.Thread(target=lambda: seen.append((x + 1).context))
        thread.start()
        thread.join()
    assert seen == [a]

    async def builds(context):
        with context.as_default():
            await asyncio.sleep(0)
            return (x + 1).context

    async def both():
        return await asyncio.gather(builds(a), builds(b))

    assert asyncio.run(both()) == [a, b]


def test_a_closed_context_is_no_default():
    a, b = gb.Context(), gb.Context()
    x = a.tensor((2, 2))
    b.close()
    with pytest.raises(gb.errors.StateError, match="the context is closed"):
        b.as_default()
    c = gb.Context()
    with c.as_default():
        c.close()
        with pytest.raises(gb.errors.StateError, match="default context is closed"):
            x + 1
        with pytest.raises(gb.errors.StateError, match="default context is closed"):
            x @ x
        with pytest.raises(gb.errors.StateError, match="default context is closed"):
            x[1:]


def test_two_contexts_cannot_use_each_others_tensors():
    for first in (0, 1):
        pair = [gb.Context(), gb.Context()]
        a, b = pair[first], pair[1 - first]
        x, y = a.tensor((2, 2), name="x"), b.tensor((2, 2), name="y")
        with a.as_default():
            z = x + y
        with b.as_default(), pytest.raises(gb.errors.InvalidArgumentError, match="cannot use each other's tensors"):
            y + z
        with pytest.raises(gb.errors.InvalidArgumentError, match="cannot use each other's tensors"):
            b.view(z)
        assert (z + 1).context is a  # everything still works
        b.graph(z)  # a graph only lists them


def test_a_cycle_of_three_contexts_is_an_error():
    contexts = [gb.Context() for _ in range(3)]
    x = [c.tensor((2, 2)) for c in contexts]
    for i in (0, 1):
        with contexts[i].as_default():
            x[i] + x[i + 1]
    with (
        contexts[2].as_default(),
        pytest.raises(gb.errors.InvalidArgumentError, match="cannot use each other's tensors"),
    ):
        x[2] + x[0]


@pytest.mark.parametrize("first", ["weights", "inputs"])
def test_results_keep_the_contexts_of_their_sources(first):
    order = ("weights", "inputs") if first == "weights" else ("inputs", "weights")
    contexts = made(order, weights={"usage": "weights"})
    w, x = contexts["weights"].tensor((4, 4)), contexts["inputs"].tensor((2, 4))
    contexts["weights"].allocate(CPU)
    w.set(1)
    y = x @ w.T
    graph = contexts["inputs"].graph(y)
    del w, contexts["weights"]
    gc.collect()
    scheduler = gb.Scheduler(CPU)
    scheduler.allocate(graph)
    x.set(1)
    scheduler.compute(graph)
    assert (y.numpy() == 4).all()
    del x, y, graph, scheduler, contexts
    gc.collect()


def test_contexts_of_a_chain_are_freed():
    """Each step uses the previous result, in an older or newer context."""
    ring = [gb.Context() for _ in range(100)]
    watched = [weakref.ref(c) for c in ring]
    y = ring[0].tensor((2, 2))
    for context in ring[1::2] + ring[2::2][::-1]:
        with context.as_default():
            y = y + 1
    del y, context, ring
    gc.collect()
    assert all(w() is None for w in watched)


@pytest.mark.parametrize("instructions", [False, True], ids=["lines", "instructions"])
def test_an_interrupted_block_restores_the_default(instructions):
    """The interrupt comes at the start of the block, within it, or at its end."""
    a, b = gb.Context(), gb.Context()
    x, places = a.tensor(3), Places(instructions)

    def act():
        with b.as_default():
            gb.ops.relu(x)

    for k in itertools.count(1):
        try:
            more = places.run(act, k, interrupt)
        except KeyboardInterrupt:
            more = True
        if not more:
            break
        assert (x + x).context is a, places.where
    assert k > 10


def test_a_block_can_be_nested():
    a, b, c = gb.Context(), gb.Context(), gb.Context()
    x, block = a.tensor(3), b.as_default()
    with block, c.as_default():
        with block:
            assert gb.ops.relu(x).context is b
        assert gb.ops.relu(x).context is c
    assert gb.ops.relu(x).context is a
