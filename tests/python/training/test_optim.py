"""Optimizers beside NumPy in double precision, and everything that can go wrong in a step."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from trained_net import CLASSES, ROWS, WIDE, Array, Net, batches


def by_hand(weights: list[Array], batch: tuple[Array, Array]) -> tuple[float, list[Array]]:
    """Loss and gradients in double precision, from the formulas on paper."""
    (w1, w2, b), (x, targets) = weights, (a.astype(np.float64) for a in batch)
    before = x @ w1.T
    hidden = np.maximum(before, 0)
    logits = hidden @ w2.T + b
    shifted = logits - logits.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    of_logits = (np.exp(logs) - targets) / len(x)
    of_before = (of_logits @ w2) * (before > 0)
    return -(targets * logs).sum() / len(x), [of_before.T @ x, of_logits.T @ hidden, of_logits.sum(axis=0)]


class ByHand:
    """The update rules in double precision, as the papers print them."""

    def __init__(self, weights: list[Array]) -> None:
        self.w = [w.astype(np.float64) for w in weights]
        self.m = [np.zeros_like(w) for w in self.w]
        self.v = [np.zeros_like(w) for w in self.w]
        self.t = 0

    def clipped(self, grads: list[Array], most: float | None) -> list[Array]:
        norm = math.sqrt(sum((g**2).sum() for g in grads))
        return grads if most is None or norm <= most else [g * (most / norm) for g in grads]

    def adamw(self, grads: list[Array], lr: float, betas: tuple[float, float], eps: float, decay: float) -> None:
        self.t += 1
        for w, m, v, g in zip(self.w, self.m, self.v, grads, strict=True):
            m[:] = betas[0] * m + (1 - betas[0]) * g
            v[:] = betas[1] * v + (1 - betas[1]) * g**2
            first, second = m / (1 - betas[0] ** self.t), v / (1 - betas[1] ** self.t)
            w[:] = w - lr * decay * w - lr * first / (np.sqrt(second) + eps)

    def sgd(self, grads: list[Array], lr: float, decay: float) -> None:
        for w, g in zip(self.w, grads, strict=True):
            w[:] = w - lr * decay * w - lr * g


def close(net: Net, hand: ByHand, rtol: float = 2e-5) -> None:
    for found, wanted in zip(net.copies(), hand.w, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=2e-6)


@pytest.fixture(params=["CPU", "SIM and CPU"])
def machine(request: pytest.FixtureRequest, cpu: gb.Backend) -> list[gb.Backend]:
    return [cpu] if request.param == "CPU" else [gb.Backend("SIM"), cpu]


@pytest.mark.parametrize("most", [None, 0.05])
@pytest.mark.parametrize("usage", ["any", "weights"])
def test_adamw_is_the_papers_formula(machine: list[gb.Backend], most: float | None, usage: str) -> None:
    net, sched = Net(*machine, usage=usage), gb.Scheduler(machine)
    hand, options = ByHand(net.values), {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    optimizer = gb.optim.AdamW(net.loss, net.weights, 0.02, max_norm=most, **options)  # type: ignore[arg-type]
    sched.allocate(optimizer.graph)
    for k, batch in enumerate(batches(8)):
        net.feed(batch)
        optimizer.lr = 0.02 / (k + 1)  # rates are inputs
        loss, grads = by_hand(hand.w, batch)
        assert optimizer.step(sched) == pytest.approx(loss, rel=1e-5)
        assert optimizer.norm == pytest.approx(math.sqrt(sum((g**2).sum() for g in grads)), rel=1e-4)
        hand.adamw(hand.clipped(grads, most), optimizer.lr, (0.8, 0.95), 1e-6, 0.1)
        close(net, hand)
    assert optimizer.n_steps == 8


def test_sgd_is_the_formula(machine: list[gb.Backend]) -> None:
    net, sched = Net(*machine), gb.Scheduler(machine)
    hand, optimizer = ByHand(net.values), gb.optim.SGD(net.loss, net.weights, 0.3, weight_decay=0.05, max_norm=0.1)
    sched.allocate(optimizer.graph)
    for batch in batches(8):
        net.feed(batch)
        _, grads = by_hand(hand.w, batch)
        optimizer.step(sched)
        hand.sgd(hand.clipped(grads, 0.1), 0.3, 0.05)
        close(net, hand)


def test_placements_do_not_change_bits(cpu: gb.Backend) -> None:
    sim = gb.Backend("SIM")
    found = []
    for places in ([cpu], [sim], [sim, cpu], [cpu, sim]):
        net, sched = Net(*places), gb.Scheduler([sim, cpu])
        optimizer = gb.optim.AdamW(net.loss, net.weights, 0.05, max_norm=0.1)
        sched.allocate(optimizer.graph)
        for batch in batches(4):
            net.feed(batch)
            optimizer.step(sched)
        found.append(net.copies())
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("usage", ["any", "weights"])
@pytest.mark.parametrize("device", ["CPU", "SIM"])
def test_other_graphs_read_the_new_weights(cpu: gb.Backend, device: str, usage: str) -> None:
    """Also on another device, where copies of weights are kept from run to run."""
    home = cpu if device == "CPU" else gb.Backend(device)
    net, sched = Net(home, usage=usage), gb.Scheduler([home, cpu] if device != "CPU" else [cpu])
    optimizer = gb.optim.AdamW(net.loss, net.weights, 0.1)
    validation = net.ctx.graph(net.loss, net.logits)
    sched.allocate(optimizer.graph)
    (first, second) = batches(2)
    for n in range(1, 4):
        sched.set_backend(net.logits, cpu)
        net.feed(first)
        optimizer.step(sched)
        net.feed(second)
        assert sched.compute(validation)
        wanted, _ = by_hand([w.astype(np.float64) for w in net.copies()], second)
        assert net.loss.item() == pytest.approx(wanted, rel=1e-5), n


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_added_batches_count_as_one_large_batch(machine: list[gb.Backend], kind: str) -> None:
    net, sched, hand = Net(*machine), gb.Scheduler(machine), ByHand(Net(*machine).values)
    optimizer: Any = getattr(gb.optim, kind)(net.loss, net.weights, 0.05, weight_decay=0.0, max_norm=0.2)
    sched.allocate(optimizer.graph)
    given = iter(batches(12))
    for n in (1, 3, 2, 1, 4):  # with and without added batches, in turns
        grads: list[list[Array]] = []
        for k in range(n):
            batch = next(given)
            net.feed(batch)
            loss, found = by_hand(hand.w, batch)
            grads.append(found)
            result = optimizer.step(sched) if k == n - 1 else optimizer.add(sched)
            assert result == pytest.approx(loss, rel=1e-4)
        mean = hand.clipped([np.mean(of_one, axis=0) for of_one in zip(*grads, strict=True)], 0.2)
        if kind == "SGD":
            hand.sgd(mean, 0.05, 0.0)
        else:
            hand.adamw(mean, 0.05, (0.9, 0.999), 1e-8, 0.0)
        close(net, hand, 1e-4)
    assert optimizer.n_steps == 5


def test_the_limit_of_the_norm_can_be_set_and_removed(cpu: gb.Backend) -> None:
    net, sched = Net(cpu), gb.Scheduler(cpu)
    hand, optimizer = ByHand(net.values), gb.optim.SGD(net.loss, net.weights, 0.5)
    for batch, most in zip(batches(4), (None, 0.01, 1e6, None), strict=True):
        optimizer.max_norm = most
        sched.allocate(optimizer.graph)
        net.feed(batch)
        _, grads = by_hand(hand.w, batch)
        optimizer.step(sched)
        hand.sgd(hand.clipped(grads, most), 0.5, 0.0)
        close(net, hand)


def test_gradients_of_zero_stay_zero_with_a_limit(cpu: gb.Backend) -> None:
    """Their norm is 0, by which the limit is divided."""
    net, sched = Net(cpu), gb.Scheduler(cpu)
    optimizer = gb.optim.SGD(net.loss, net.weights, 0.5, max_norm=1.0)
    sched.allocate(optimizer.graph)
    net.feed((np.ones((ROWS, WIDE), np.float32), np.zeros((ROWS, CLASSES), np.float32)))
    before = net.copies()
    optimizer.step(sched)
    assert optimizer.norm == 0
    for a, b in zip(before, net.copies(), strict=True):
        np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------------------------------------------ NaN, infinity


def unchanged(net: Net, optimizer: gb.optim.Optimizer, sched: gb.Scheduler, words: str, batch: Any) -> None:
    before, n = net.copies(), optimizer.n_steps
    net.feed(batch)
    for call in (optimizer.step, optimizer.add):
        with pytest.raises(gb.errors.NonFiniteError, match=words) as caught:
            call(sched)
        assert "nothing changed" in str(caught.value)
    for a, b in zip(before, net.copies(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert optimizer.n_steps == n


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_inputs_are_named_and_change_nothing(machine: list[gb.Backend], value: float) -> None:
    net, sched = Net(*machine), gb.Scheduler(machine)
    optimizer, hand = gb.optim.AdamW(net.loss, net.weights, 0.05), ByHand(net.values)
    sched.allocate(optimizer.graph)
    good, bad = batches(2)
    bad[0][3, 2] = value
    words = "the gradient of '(w1|w2|b)'.* has (NaN|infinity): it begins in .*" + (
        "the data of 'x'" if math.isnan(value) else ""
    )
    unchanged(net, optimizer, sched, words, bad)
    net.feed(good)
    optimizer.step(sched)  # goes on as if nothing had happened
    hand.adamw(by_hand(hand.w, good)[1], 0.05, (0.9, 0.999), 1e-8, 0.01)
    close(net, hand)


def deep(*places: gb.Backend) -> Net:
    """A network whose activations need more memory than its weights."""
    net, rng = Net(*places), np.random.default_rng(1)
    context = gb.Context()
    net.weights = [context.tensor((WIDE, WIDE), name=f"w{i}") for i in range(6)]
    context.allocate(places[0], "weights")
    for w in net.weights:
        w.set((rng.standard_normal(w.shape) / 2).astype(np.float32))
    with net.ctx.as_default():
        h = net.x
        for w in net.weights:
            h = gb.ops.silu(gb.ops.rms_norm(h) @ w.T) + h
        net.loss = gb.ops.sum(gb.ops.sqr(h)).named("loss")
    return net


def limited(net: Net, sched: gb.Scheduler, kind: str, most: float | None = None) -> tuple[gb.optim.Optimizer, int]:
    optimizer = getattr(gb.optim, kind)(net.loss, net.weights, 0.01, max_norm=most)
    arenas = sched.prepare(optimizer.graph, allocate=False).memory.values()
    return optimizer, sum(a.peak for a in arenas) * 7 // 10


@pytest.mark.parametrize("most", [None, 0.05])
@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_steps_within_a_memory_limit_give_the_same_bits(
    machine: list[gb.Backend], kind: str, most: float | None
) -> None:
    found = []
    for within in (False, True):
        net, sched = deep(*machine), gb.Scheduler(machine)
        optimizer, limit = limited(net, sched, kind, most)
        plan = optimizer.prepare(sched, max_bytes=limit if within else None)
        if within:
            again = plan.recomputation
            assert again is not None and again.nodes and again.peak <= limit < again.peak_before
        losses = []
        for k, batch in enumerate(batches(6)):
            net.x.set(batch[0])
            losses.append(optimizer.add(sched) if k % 3 == 1 else optimizer.step(sched))
        found.append((losses, optimizer.norm, [w.tobytes() for w in net.copies()]))
    assert found[0] == found[1]


def test_a_batch_with_nan_changes_nothing_within_a_memory_limit(cpu: gb.Backend) -> None:
    net, sched = deep(cpu), gb.Scheduler(cpu)
    optimizer, limit = limited(net, sched, "AdamW")
    optimizer.prepare(sched, max_bytes=limit)
    before = net.copies()
    net.x.set(np.full((ROWS, WIDE), np.nan, np.float32))
    with pytest.raises(gb.errors.NonFiniteError, match="the data of 'x'"):
        optimizer.step(sched)
    with pytest.raises(gb.errors.NonFiniteError, match="the data of 'x'"):
        optimizer.add(sched)
    net.x.set(batches(1)[0][0])
    optimizer.add(sched)
    net.x.set(np.full((ROWS, WIDE), np.nan, np.float32))
    with pytest.raises(gb.errors.NonFiniteError, match="the data of 'x'"):
        optimizer.step(sched)
    for kept, w in zip(before, net.copies(), strict=True):
        np.testing.assert_array_equal(kept, w)
    net.x.set(batches(1)[0][0])
    assert math.isfinite(optimizer.step(sched))


@pytest.mark.parametrize("most", [None, 0.05])
@pytest.mark.parametrize("kind", ["step", "add", "apply"])
def test_nodes_that_write_read_the_norm(cpu: gb.Backend, kind: str, most: float | None) -> None:
    """Otherwise another order of the nodes could write before the norm is known to be finite."""
    net = Net(cpu)
    optimizer = gb.optim.SGD(net.loss, net.weights, 0.01, max_norm=most)
    graph, norm = optimizer._graph(kind, in_order=True)
    readers = {norm}
    for node in graph.nodes:
        if readers.intersection(node.sources):
            readers.add(node)
    assert norm in graph.outputs
    written = [t for t in graph.outputs if t not in (net.loss, norm)]
    assert len(written) == len(net.weights) and readers.issuperset(written)


def test_each_scheduler_has_its_own_memory_limit(cpu: gb.Backend) -> None:
    net, schedulers = deep(cpu), [gb.Scheduler(cpu) for _ in range(3)]
    optimizer, limit = limited(net, schedulers[0], "SGD")
    small, large = limit // 128 * 128, (limit + 600) // 128 * 128  # buffers are padded
    free = optimizer.prepare(schedulers[1]).memory["CPU"].peak
    for sched, within in ((schedulers[0], small), (schedulers[1], None), (schedulers[2], large)):
        optimizer.prepare(sched, max_bytes=within)
    n_tensors = len(net.ctx.tensors())
    for sched in schedulers:
        net.x.set(batches(1)[0][0])
        optimizer.step(sched)
    peaks = [sched.buffer_nbytes(cpu) for sched in schedulers]
    assert peaks[0] <= small < peaks[2] <= large < free <= peaks[1]
    optimizer.prepare(schedulers[0], max_bytes=small)
    assert len(net.ctx.tensors()) == n_tensors  # the graph is made once


def test_a_memory_limit_that_cannot_be_met(cpu: gb.Backend) -> None:
    net, sched = deep(cpu), gb.Scheduler(cpu)
    optimizer, limit = limited(net, sched, "SGD")
    optimizer.prepare(sched, max_bytes=limit)
    with pytest.raises(gb.errors.AllocationError, match="max_bytes is 1 "):
        optimizer.prepare(sched, max_bytes=1)
    with pytest.raises(TypeError, match=r"SGD\.prepare: sched"):
        optimizer.prepare(limit)  # type: ignore[arg-type]
    net.x.set(batches(1)[0][0])
    optimizer.step(sched)  # within the limit before
    other = gb.Scheduler(cpu)  # without a limit
    other.allocate(optimizer.graph)
    net.x.set(batches(1)[0][0])
    optimizer.step(other)
    assert optimizer.n_steps == 2


def test_the_node_where_nan_begins_is_named(cpu: gb.Backend) -> None:
    ctx, weights = gb.Context(), gb.Context()
    w = weights.tensor((4,), name="w")
    weights.allocate(cpu)
    w.set([1.0, 2.0, -1.0, 3.0])
    root = gb.ops.sqrt(w * 2).named("root")  # of -2
    loss = gb.ops.sum(root * 3)
    optimizer, sched = gb.optim.SGD(loss, [w], 0.1), gb.Scheduler(cpu)
    with pytest.raises(gb.errors.NonFiniteError, match=r"it begins in node 'root' float32 \(4,\) \(SQRT\)"):
        optimizer.step(sched)
    w.set([1.0, 2.0, 0.0, 3.0])  # the slope at 0 is infinite
    with pytest.raises(gb.errors.NonFiniteError, match=r"has infinity: it begins in node .*\(DIV\)"):
        optimizer.step(sched)
    w.set([1.0, 2.0, 1.0, 3.0])
    assert math.isfinite(optimizer.step(sched))
    del ctx


def test_a_norm_beyond_float32_says_so(cpu: gb.Backend) -> None:
    weights = gb.Context()
    w = weights.tensor((4,), name="w")
    weights.allocate(cpu)
    w.set(1)
    optimizer = gb.optim.SGD(gb.ops.sum(gb.ops.scale(w, 1e30)), [w], 0.1)
    with pytest.raises(gb.errors.NonFiniteError, match="the norm of the gradients exceeds float32"):
        optimizer.step(gb.Scheduler(cpu))


def test_given_gradients_replace_those_of_the_loss(cpu: gb.Backend) -> None:
    """Halved gradients at twice the rate are the same steps."""
    (batch,) = batches(1)
    copies = []
    for factor, lr in ((1.0, 0.25), (0.5, 0.5)):
        net = Net(cpu)
        with net.ctx.as_default():
            grads = [g * factor for g in gb.grad(net.loss, net.weights)]
        optimizer = gb.optim.SGD(net.loss, net.weights, lr, grads=grads)
        sched = gb.Scheduler(cpu)
        sched.allocate(optimizer.graph)
        for _ in range(3):
            net.feed(batch)
            optimizer.step(sched)
        copies.append(net.copies())
    for one, other in zip(*copies, strict=True):
        np.testing.assert_array_equal(one, other)


# --------------------------------------------------------------------------------------------------------- wrong calls


def test_weights_that_cannot_be_trained(cpu: gb.Backend) -> None:
    net = Net(cpu)
    w1 = net.weights[0]
    bare = net.ctx.tensor((3,), name="bare")
    half = gb.Context()
    h = half.tensor((4,), gb.float16, name="half")
    half.allocate(cpu)
    array = np.ones(4, np.float32)
    array.flags.writeable = False
    fixed = gb.Context().from_numpy(array, "fixed")
    lent = net.ctx.tensor((4,), name="lent")
    sched = gb.Scheduler(cpu)
    sched.allocate(net.ctx.graph(gb.ops.relu(lent)))
    unused = gb.Context()
    u = unused.tensor((4,), name="unused")
    unused.allocate(cpu)
    E, S = gb.errors.InvalidArgumentError, gb.errors.StateError
    for loss, weights, kind, words in (
        (net.logits, [w1], E, r"loss float32 \(12, 4\) has 48 elements, and a loss has one"),
        (net.loss, [], E, "weights is empty"),
        (net.loss, w1, TypeError, "weights must be a list of tensors"),
        (net.loss, [w1, w1], E, "is weight 0 and weight 1: name each weight once"),
        (net.loss, [bare], S, r"weight 'bare' float32 \(3,\) has no memory: give it a buffer"),
        (net.loss, [lent], S, "lies in memory of a scheduler or of its context"),
        (net.loss, [h], E, "weight 'half' .* is not float32"),
        (net.loss, [fixed], S, "weight 'fixed' .* is in read-only memory"),
        (net.loss, [w1, u], ValueError, "unused"),
        ("loss", [w1], TypeError, "loss must be a Tensor"),
        (net.loss, [3], TypeError, "each weight must be a Tensor"),
    ):
        for make in (gb.optim.AdamW, gb.optim.SGD):
            with pytest.raises(kind, match=words):
                make(loss, weights)  # type: ignore[arg-type]
    good = net.ctx.tensor(w1.shape, name="good")
    for grads, kind, words in (
        ([], E, "grads has 0 tensors, for 1 weight"),
        ([good, good], E, "grads has 2 tensors, for 1 weight"),
        ([lent], E, r"grads\[0\] 'lent' float32 \(4,\) is not a float32 tensor of the shape of 'w1'"),
        ([1], TypeError, r"grads\[0\] must be a Tensor, not int"),
        (good, TypeError, "grads must be a list of tensors"),
    ):
        with pytest.raises(kind, match=words):
            gb.optim.SGD(net.loss, [w1], grads=grads)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"use gb\.optim\.AdamW or gb\.optim\.SGD"):
        gb.optim.Optimizer(net.loss, net.weights)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lr", -1, "lr is -1: it must be finite, and at least 0"),
        ("lr", math.nan, "lr is nan"),
        ("lr", 1e39, "lr is 1e\\+39"),
        ("lr", "fast", "lr must be a number, not str"),
        ("lr", True, "lr must be a number, not bool"),
        ("betas", 0.9, "betas must be a list of two numbers"),
        ("betas", (0.9,), "betas must be two numbers, not 1"),
        ("betas", (0.9, 1), r"betas\[1\] is 1: it must be from 0 to less than 1"),
        ("betas", (0.9, 1 - 1e-12), "in float32 they must be below 1"),
        ("eps", 0, "eps is 0"),
        ("weight_decay", math.inf, "weight_decay is inf"),
        ("max_norm", -0.5, "max_norm is -0.5"),
        ("max_norm", 0, "max_norm is 0"),  # 0 / 0 where the norm is 0
    ],
)
def test_wrong_numbers_are_refused_at_once_and_later(trained: Any, name: str, value: Any, words: str) -> None:
    net, sched, optimizer = trained
    with pytest.raises((gb.errors.InvalidArgumentError, TypeError), match=words):
        gb.optim.AdamW(net.loss, net.weights, **{name: value})
    before = net.copies()
    setattr(optimizer, name, value)
    with pytest.raises((gb.errors.InvalidArgumentError, TypeError), match=words):
        optimizer.step(sched)
    for a, b in zip(before, net.copies(), strict=True):
        np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------------------------------------- devices that fail


class Failing(gb.devices.Device):
    """Computes a few operations, and fails at the one that ``fails_at`` names."""

    fails_at = ""

    @gb.devices.op("scale", "sqrt")
    def plain(self, node: gb.devices.Node, out: Array, a: Array) -> None:
        self.may_fail(node)
        out[...] = a * node.params["s"] if node.op == "scale" else np.sqrt(a)

    @gb.devices.op("opt_step_sgd")
    def update(self, node: gb.devices.Node, out: Array, *sources: Array) -> None:
        self.may_fail(node)
        w, g, numbers = sources
        out[...] = w * (1 - numbers[0] * numbers[1]) - numbers[0] * g

    def may_fail(self, node: gb.devices.Node) -> None:
        if node.op == type(self).fails_at:
            raise OSError("the card fell off")


gb.devices.register_device("TRAINFAIL")(Failing)


@pytest.mark.parametrize("at", ["sqrt", "opt_step_sgd"])
def test_a_device_that_fails(cpu: gb.Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: str) -> None:
    """Before the first write nothing has changed. Afterwards a saved state repairs the weights."""
    net, sched = Net(cpu), gb.Scheduler([gb.Backend("TRAINFAIL"), cpu])
    optimizer = gb.optim.SGD(net.loss, net.weights, 0.1)
    sched.allocate(optimizer.graph)
    net.feed(batches(1)[0])
    optimizer.step(sched)
    optimizer.save(tmp_path / "s.gguf")
    before = net.copies()
    with monkeypatch.context() as patched:
        patched.setattr(Failing, "fails_at", at)
        with pytest.raises(OSError, match="the card fell off"):
            optimizer.step(sched)
    if at == "opt_step_sgd":
        for call in (optimizer.step, optimizer.add):
            with pytest.raises(gb.errors.StateError, match="the last run ended while it wrote"):
                call(sched)
        with pytest.raises(gb.errors.StateError, match="the last run ended while it wrote"):
            optimizer.save(tmp_path / "t.gguf")
        optimizer.load(tmp_path / "s.gguf")
    for a, b in zip(before, net.copies(), strict=True):
        np.testing.assert_array_equal(a, b)
    optimizer.step(sched)
    assert optimizer.n_steps == 2


def interrupted(call: Any, line: int) -> bool:
    """Calls, with a KeyboardInterrupt before this line of the optimizer's module. False: it had fewer lines."""
    seen = 0

    def tracer(frame: Any, event: str, argument: object) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.endswith("_optimizer.py"):
            return None
        if event == "line":
            seen += 1
            if seen == line:
                raise KeyboardInterrupt
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("name", ["step", "add"])
def test_ctrl_c_before_each_line_leaves_a_whole_step_none_or_a_note(cpu: gb.Backend, name: str) -> None:
    """The next calls train as if the interrupted call had not come, or as if it had ended, or say what is lost."""
    batch, n_lost, n_torn = batches(4), 0, 0

    def run(line: int | None, calls: str) -> tuple[list[bytes], int, bool]:
        nonlocal n_lost, n_torn
        net, sched = Net(cpu), gb.Scheduler(cpu)
        optimizer = gb.optim.AdamW(net.loss, net.weights, 0.05)
        sched.allocate(optimizer.graph)
        came = False
        for k, call in enumerate(calls):
            net.feed(batch[k])
            act = optimizer.add if call == "a" else optimizer.step
            if call != "-" and (line is None or k != 1):
                try:
                    act(sched)
                except gb.errors.StateError as error:
                    assert line is not None and k == 2
                    if re.search("1 added batch is lost|2 added batches are lost", str(error)) is None:
                        assert "the last run ended while it wrote" in str(error)
                        n_torn += 1
                        return [], -1, True
                    n_lost += 1
                    act(sched)
            elif call != "-":
                came = interrupted(lambda act=act, sched=sched: act(sched), line)
        return [w.tobytes() for w in net.copies()], optimizer.n_steps, came

    calls = {"step": "asas", "add": "aaas"}[name]
    wanted = [run(None, c)[:2] for c in (calls, calls[0] + "-" + calls[2:], "--" + calls[2:])]  # done; not; all lost
    line = 1
    while True:
        *found, came = run(line, calls)
        if not came:
            break
        assert found[1] == -1 or tuple(found) in wanted, line
        line += 1
    assert line > 30
    assert (n_lost > 0, n_torn > 0) == (name == "add", name == "step")


def test_an_optimizer_says_what_it_is(trained: Any) -> None:
    import copy
    import pickle

    _, _, optimizer = trained
    assert repr(optimizer) == "<AdamW of 3 weights, 3 steps>"
    assert copy.copy(optimizer) is optimizer
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(optimizer)
