"""The optimizers. A step computes the loss, its gradients, their norm and the new weights in one graph.

The norm is computed before anything is written. A callback reads it there. If it is not finite, the callback ends the
run, so weights and state keep their values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .. import ops
from .._base.errors import InvalidArgumentError, NonFiniteError, StateError, expect, expect_list
from .._base.errors.messages import kind_of
from .._base.errors.parameters import plain_numbers
from .._base.handles import Local
from .._base.text import count
from ..backend.buffer import Buffer, BufferType
from ..dtypes import float32
from ..sched.plan import Plan
from ..sched.scheduler import Scheduler
from ..tensor._grad import grad
from ..tensor.context import Context
from ..tensor.graph import Graph
from ..tensor.tensor import Tensor
from ._state import read_state, write_state
from ._trace import first_fault

__all__ = ["SGD", "AdamW", "Optimizer"]

_STEP, _ADD, _APPLY = "step", "add", "apply"
"""The graphs: a step of one batch; one that adds gradients; a step of one batch and what was added before."""


class _Limit(NamedTuple):
    """The limit of :meth:`Optimizer.prepare` for a scheduler, and plans that keep it, by kind and clipping."""

    max_bytes: int
    plans: dict[tuple[str, bool], Plan]


def _number(value: Any, what: str, least: float, most: float = math.inf) -> float:
    """A float in ``[least, most)``."""
    plain = plain_numbers((value,))[0]
    if isinstance(plain, bool) or not isinstance(plain, (int, float)):
        raise TypeError(f"{what} must be a number, not {kind_of(value)}")
    if not least <= plain < most or not plain <= float(np.finfo(np.float32).max):
        limit = f"from {least:g} to less than {most:g}" if most != math.inf else f"finite, and at least {least:g}"
        raise InvalidArgumentError(f"{what} is {plain}: it must be {limit}")
    return float(plain)


class _Zeros:
    """Tensors of the shapes of weights, filled with zeros, each in the kind of memory of its weight."""

    def __init__(self) -> None:
        self._contexts: dict[BufferType, Context] = {}
        self.buffers: list[Buffer] = []

    def like(self, weight: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
        assert weight.buffer is not None
        place = weight.buffer.type
        context = self._contexts.setdefault(place, Context())
        return context.tensor(shape, float32, name)

    def allocate(self) -> None:
        self.buffers = [context.allocate(place) for place, context in self._contexts.items()]
        self.clear()

    def clear(self) -> None:
        for buffer in self.buffers:
            buffer.clear()


def _check_weights(what: str, weights: Sequence[Any]) -> None:
    """Weights that a step can write."""
    seen: dict[Tensor, int] = {}
    for i, w in enumerate(weights):
        expect(w, Tensor, f"{what}: each weight")
        shown = f"{what}: weight {w.describe()}"
        if w in seen:
            raise InvalidArgumentError(f"{shown} is weight {seen[w]} and weight {i}: name each weight once")
        seen[w] = i
        if w.dtype != float32:
            raise InvalidArgumentError(f"{shown} is not float32: only float32 weights can be trained")
        if not w.size:
            raise InvalidArgumentError(f"{shown} has no elements")
        buffer = w.buffer
        if buffer is None:
            why = "lies in memory of a scheduler or of its context" if w.is_placed else "has no memory"
            raise StateError(f"{shown} {why}: give it a buffer with ctx.allocate(backend) before you make the graph")
        if buffer.readonly:
            raise StateError(f"{shown} is in read-only memory: a step writes weights")


def _norm(grads: Sequence[Tensor]) -> Tensor:
    """The length of all gradients as one vector. A product with itself sums the squares without memory for them."""
    total: Tensor | None = None
    for g in grads:
        row = g.reshape(1, g.size)
        square = ops.mul_mat(row, row, prec="f32").reshape(1)
        total = square if total is None else total + square
    assert total is not None
    return ops.sqrt(total).named("gradient norm")


class Optimizer(Local):
    """The common part of :class:`AdamW` and :class:`SGD`.

    ``graph`` is the graph of a step: allocate it, or call :meth:`prepare`, then set its inputs. ``n_steps`` counts
    the steps, and ``norm`` is the norm of the last gradients before clipping. You can change ``lr``, ``weight_decay``
    and the other numbers between two steps. Use an optimizer from one thread at a time.
    """

    __slots__ = ("_added", "_grads", "_graphs", "_hyper", "_limits", "_loss", "_lost", "_max_norm", "_more", "_share",
                 "_state", "_torn", "_weights", "_zeros", "lr", "max_norm", "n_steps", "norm",
                 "weight_decay")  # fmt: skip

    _moments: ClassVar[tuple[str, ...]] = ()  # names of the state tensors of each weight
    lr: float
    weight_decay: float
    max_norm: float | None
    n_steps: int
    norm: float

    def __init__(
        self,
        loss: Tensor,
        weights: Sequence[Tensor],
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        max_norm: float | None = None,
        grads: Sequence[Tensor] | None = None,
    ) -> None:
        what = type(self).__name__
        if type(self) is Optimizer:
            raise TypeError("Optimizer: use gb.optim.AdamW or gb.optim.SGD")
        self.lr, self.weight_decay, self.max_norm = lr, weight_decay, max_norm
        expect(loss, Tensor, f"{what}: loss")
        if isinstance(weights, Tensor):
            raise TypeError(f"{what}: weights must be a list of tensors, not one Tensor")
        weights = expect_list(weights, f"{what}: weights", "tensors")
        if not weights:
            raise InvalidArgumentError(f"{what}: weights is empty: there is nothing to train")
        if loss.size != 1:
            raise InvalidArgumentError(
                f"{what}: loss {loss.describe()} has {loss.size} elements, and a loss has one; gb.ops.mean(x, axis=...)"
                " and gb.ops.sum(x) reduce a tensor"
            )
        _check_weights(what, weights)
        self._numbers()
        self._loss, self._weights = loss, weights
        self._grads = self._gradients(what, grads)
        self.n_steps, self.norm = 0, math.nan
        self._added, self._torn = 0, False
        self._lost = 0  # batches that were added before a call of add() that ended while it wrote
        self._zeros = _Zeros()
        self._state: list[list[Tensor]] = [
            [self._zeros.like(w, w.shape, f"{name}.{w.name}") for name in self._moments] for w in weights
        ]
        self._hyper = self._zeros.like(weights[0], (len(self._values(1)),), "hyperparameters")
        self._share, self._max_norm = (self._zeros.like(weights[0], (1,), n) for n in ("share", "max norm"))
        self._zeros.allocate()
        self._more: tuple[_Zeros, list[Tensor]] | None = None  # sums of gradients
        self._graphs: dict[tuple[str, bool, bool], tuple[Graph, Tensor]] = {}
        self._limits: dict[Scheduler, _Limit] = {}
        self._graph(_STEP)

    def _gradients(self, what: str, given: Sequence[Tensor] | None) -> list[Tensor]:
        if given is None:
            with self._loss.context.as_default():
                return grad(self._loss, self._weights)
        if isinstance(given, Tensor):
            raise TypeError(f"{what}: grads must be a list of tensors, not one Tensor")
        grads: list[Tensor] = [*expect_list(given, f"{what}: grads", "tensors")]
        if len(grads) != len(self._weights):
            raise InvalidArgumentError(
                f"{what}: grads has {count(len(grads), 'tensor')}, for {count(len(self._weights), 'weight')}"
            )
        for i, (g, w) in enumerate(zip(grads, self._weights, strict=True)):
            expect(g, Tensor, f"{what}: grads[{i}]")
            if g.shape != w.shape or g.dtype != float32:
                raise InvalidArgumentError(
                    f"{what}: grads[{i}] {g.describe()} is not a float32 tensor of the shape of {w.describe()}"
                )
        return grads

    def _numbers(self) -> dict[str, float]:
        """The hyperparameters by name. Raises if one is not valid."""
        what = type(self).__name__
        found = {
            "lr": _number(self.lr, f"{what}: lr", 0),
            "weight_decay": _number(self.weight_decay, f"{what}: weight_decay", 0),
        }
        found["max_norm"] = math.inf if self.max_norm is None else _number(self.max_norm, f"{what}: max_norm", 1e-38)
        return found

    def _values(self, step: int) -> list[float]:
        """The elements of the operator's parameters."""
        raise NotImplementedError

    def _update(self, weight: Tensor, gradient: Tensor, state: Sequence[Tensor], hyper: Tensor) -> Tensor:
        """The node that writes a weight and its state. hyper: the elements of ``_values``"""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------------------------------- graphs

    @property
    def graph(self) -> Graph:
        """The graph of a step."""
        return self._graph(_STEP)[0]

    def prepare(self, sched: Scheduler, *, max_bytes: int | None = None) -> Plan:
        """Plans a step, and allocates its memory, as :meth:`Scheduler.prepare` does. Call it before you set inputs.

        max_bytes: the most bytes for the arenas of all backends together. Every later step and :meth:`add` with this
            scheduler keeps this limit: some results are computed again. Weights and loss have the same bits as without
            a limit. None: no limit

        Raises :class:`AllocationError`, with the least that was found, if no choice fits. The limit before then holds.
        :meth:`add`, and the step after it, compute other graphs. They are planned at their first use, and raise it
        then.
        """
        expect(sched, Scheduler, f"{type(self).__name__}.prepare: sched")
        if max_bytes is None:
            plan = sched.prepare(self.graph)
            self._limits.pop(sched, None)
            return plan
        limit = _Limit(max_bytes, {})
        plan = self._plan_within(sched, limit, _STEP, allocate=True)
        self._limits[sched] = limit
        return plan

    def _plan_within(self, sched: Scheduler, limit: _Limit, kind: str, allocate: bool = False) -> Plan:
        key = kind, self._clips(kind)
        if key not in limit.plans:
            graph, _ = self._graph(kind, in_order=True)
            limit.plans[key] = sched.prepare(graph, allocate=allocate, max_bytes=limit.max_bytes)
        return limit.plans[key]

    def _run_of(self, sched: Scheduler, kind: str) -> tuple[Graph, Tensor, Callable[[Tensor], Tensor]]:
        """The graph that a step computes, its node with the norm, and a function like :meth:`Plan.result`."""
        limit = self._limits.get(sched)
        graph, norm = self._graph(kind, in_order=limit is not None)
        if limit is None:
            return graph, norm, lambda t: t
        plan = self._plan_within(sched, limit, kind)
        return plan.graph, plan.result(norm), plan.result

    def _clips(self, kind: str) -> bool:
        return self.max_norm is not None and kind != _ADD

    def _graph(self, kind: str, in_order: bool = False) -> tuple[Graph, Tensor]:
        """A graph, and its node with the norm. The norm comes before all nodes that write.

        in_order: nodes that write read the norm, so no other order of nodes puts them before it
        """
        key = kind, self._clips(kind), in_order
        if key not in self._graphs:
            self._graphs[key] = self._make(*key)
        return self._graphs[key]

    def _make(self, kind: str, clips: bool, in_order: bool) -> tuple[Graph, Tensor]:
        context = self._loss.context
        with context.as_default():
            grads, hyper = self._grads, self._hyper
            if kind == _APPLY:
                grads = [a + g for a, g in zip(self._sums(), grads, strict=True)]
            norm = _norm(grads)
            if kind != _ADD:
                norm, grads = self._scaled(kind == _APPLY, clips, norm, grads)
            one = norm * 0.0 + 1.0 if in_order else None  # nothing is written if the norm is not finite
            if kind == _ADD:
                grads = grads if one is None else [g * one for g in grads]
                writes = [ops.add(a, g, inplace=True) for a, g in zip(self._sums(), grads, strict=True)]
            else:
                hyper = hyper if one is None else hyper * one
                rows = zip(self._weights, grads, self._state, strict=True)
                writes = [self._update(w, g, state, hyper) for w, g, state in rows]
        return context.graph(self._loss, norm, *writes), norm

    def _scaled(self, is_mean: bool, clips: bool, norm: Tensor, grads: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean of the added gradients, and its norm. Longer gradients are shortened to ``max_norm``."""
        factor: Tensor | None = None
        if is_mean:
            norm = (norm * self._share).named("gradient norm")
            factor = self._share
        if clips:
            short = ops.clamp(self._max_norm / norm, 0.0, 1.0)
            factor = short if factor is None else short * factor
        return norm, grads if factor is None else [g * factor for g in grads]

    def _sums(self) -> list[Tensor]:
        if self._more is None:
            zeros = _Zeros()
            sums = [zeros.like(w, w.shape, f"sum.{w.name}") for w in self._weights]
            zeros.allocate()
            self._more = zeros, sums
        return self._more[1]

    # ----------------------------------------------------------------------------------------------------------- steps

    def step(self, sched: Scheduler) -> float:
        """Computes the loss of the current inputs, and updates the weights. Returns the loss.

        After :meth:`add` it uses the mean of the added gradients and of this batch. The norm of this mean is limited
        by ``max_norm``.

        Raises :class:`NonFiniteError` if the norm is NaN or infinite. The message names the node, and weights and
        state keep their values.
        """
        return self._run(sched, _APPLY if self._added else _STEP)

    def add(self, sched: Scheduler) -> float:
        """Computes the loss of the current inputs, and adds its gradients to those of the next :meth:`step`.

        Returns the loss. So one step uses several batches, with the memory of one.
        """
        if not self._added and self._more is not None:
            self._more[0].clear()
        return self._run(sched, _ADD)

    def _run(self, sched: Scheduler, kind: str) -> float:
        what = f"{type(self).__name__}.{_ADD if kind == _ADD else _STEP}"
        expect(sched, Scheduler, f"{what}: sched")
        self._must_be_whole(what)
        self._must_know_of_losses(what)
        graph, norm, result = self._run_of(sched, kind)
        self._send(kind)
        self.norm = math.nan
        if not self._computes(sched, kind, graph, norm):
            if self._torn:
                raise StateError(f"{what}: the run was stopped while it wrote the weights: load() a saved state")
            if not math.isfinite(self.norm):
                named = [(w.describe(), result(g)) for w, g in zip(self._weights, self._grads, strict=True)]
                raise NonFiniteError(f"{what}: {first_fault(sched, graph, norm, named)}; nothing changed")
            self._must_know_of_losses(what)
            raise StateError(f"{what}: the run was stopped before it wrote; nothing changed")
        return float(result(self._loss).item())

    def _computes(self, sched: Scheduler, kind: str, graph: Graph, norm: Tensor) -> bool:
        """Runs a graph. Counts it, or notes what it left incomplete, if it ends early or raises.

        Ctrl-C may come before each line. A run that is not counted then leaves its note.
        """
        writes = done = False

        def may_write(tensor: Tensor) -> bool:
            nonlocal writes
            self.norm = tensor.item()
            writes = math.isfinite(self.norm)
            self._torn = writes and kind != _ADD
            return writes

        try:
            if sched.compute(graph, may_write, [norm]):
                if kind == _ADD:
                    self._added += 1
                else:
                    self.n_steps, self._added = self.n_steps + 1, 0
                done, self._torn = True, False
        finally:
            if kind == _ADD and writes and not done:  # only sums of gradients are incomplete
                self._added, self._lost = 0, self._added
        return done

    def _send(self, kind: str) -> None:
        """Checks the numbers, and writes those that the graph reads to the device."""
        numbers, values = self._numbers(), self._values(self.n_steps + 1)
        if kind == _ADD:
            return
        self._hyper.set(np.array(values, np.float32))
        if kind == _APPLY:
            self._share.set(np.array([1 / (self._added + 1)], np.float32))
        if self.max_norm is not None:
            self._max_norm.set(np.array([numbers["max_norm"]], np.float32))

    def _must_be_whole(self, what: str) -> None:
        if self._torn:
            raise StateError(
                f"{what}: the last run ended while it wrote, so weights and state do not belong together: load() a"
                " saved state"
            )

    def _must_know_of_losses(self, what: str) -> None:
        """Says once that gradients are lost."""
        if self._lost:
            lost, self._lost = count(self._lost, "added batch is", "added batches are"), 0
            raise StateError(
                f"{what}: the last add() ended while it wrote, so {lost} lost: add them again; weights and state are"
                " whole"
            )

    # ----------------------------------------------------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None) -> None:
        """Writes weights, state and numbers as one GGUF file. It replaces the old file when it is complete.

        metadata: more keys for the file, which :func:`ggml_backend.gguf.open` reads. They do not begin with
            ``optim.``

        The weights have their names in the file, so ``gb.gguf.open(path).load(cpu)`` gives the trained model. Two
        weights of one name are an error.
        """
        what = f"{type(self).__name__}.save"
        self._must_be_whole(what)
        if self._added:
            lost = count(self._added, "added batch", "added batches")
            raise StateError(f"{what}: {lost} would be lost: step() first")
        numbers = {**self._numbers(), "n_steps": self.n_steps}
        write_state(what, path, type(self).__name__, numbers, self._tensors(what), metadata)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads what :meth:`save` wrote, for the same weights. Added gradients are dropped.

        Raises :class:`FileError` if the file is damaged, or holds the state of other weights. Weights and state then
        keep their values.
        """
        what = f"{type(self).__name__}.load"
        tensors = self._tensors(what)
        numbers, arrays = read_state(what, path, type(self).__name__, [*self._numbers()], tensors)
        self._torn = True  # until all is written
        for name, tensor in tensors.items():
            tensor.set(arrays[name])
        self.n_steps = int(numbers["n_steps"])
        self._restore(numbers)
        self._added, self._lost, self._torn = 0, 0, False

    def _restore(self, numbers: Mapping[str, float]) -> None:
        """Takes the numbers of a file. They are checked before the next step."""
        self.lr, self.weight_decay, limit = (numbers[name] for name in ("lr", "weight_decay", "max_norm"))
        self.max_norm = None if limit == math.inf else limit

    def _tensors(self, what: str) -> dict[str, Tensor]:
        """Weights and state by their names in a file."""
        found: dict[str, Tensor] = {}
        for w, state in zip(self._weights, self._state, strict=True):
            if not w.name or w.name in found or w.name.startswith("optim."):
                why = "two weights have this name" if w.name in found else "it is no name for a file"
                raise InvalidArgumentError(f"{what}: weight {w.describe()}: {why}; set w.name")
            found[w.name] = w
            for name, tensor in zip(self._moments, state, strict=True):
                found[f"optim.{name}.{w.name}"] = tensor
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {count(len(self._weights), 'weight')}, {count(self.n_steps, 'step')}>"


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101).

    loss: a float32 tensor with one element
    weights: float32 tensors in buffers (``ctx.allocate(backend)``). Their state takes twice their memory.
    lr: the learning rate
    max_norm: shorten longer gradients to this norm, all weights together. None: never
    grads: the gradients of the weights, as nodes. None: those of ``gb.grad(loss, weights)``
    """

    __slots__ = ("betas", "eps")

    _moments = ("m", "v")
    betas: tuple[float, float]
    eps: float

    def __init__(
        self,
        loss: Tensor,
        weights: Sequence[Tensor],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        max_norm: float | None = None,
        grads: Sequence[Tensor] | None = None,
    ) -> None:
        self.betas, self.eps = betas, eps
        super().__init__(loss, weights, lr, weight_decay, max_norm, grads)

    def _numbers(self) -> dict[str, float]:
        betas = expect_list(self.betas, "AdamW: betas", "two numbers")
        if len(betas) != 2:
            raise InvalidArgumentError(f"AdamW: betas must be two numbers, not {len(betas)}")
        beta1, beta2 = (_number(b, f"AdamW: betas[{i}]", 0, 1) for i, b in enumerate(betas))
        return {**super()._numbers(), "beta1": beta1, "beta2": beta2, "eps": _number(self.eps, "AdamW: eps", 1e-38)}

    def _values(self, step: int) -> list[float]:
        n = self._numbers()
        # The operator sees betas in float32. The corrections use the same values.
        beta1, beta2 = (float(np.float32(n[name])) for name in ("beta1", "beta2"))
        if max(beta1, beta2) >= 1:
            raise InvalidArgumentError(f"AdamW: betas are {self.betas}: in float32 they must be below 1")
        return [n["lr"], beta1, beta2, n["eps"], n["weight_decay"], 1 / (1 - beta1**step), 1 / (1 - beta2**step)]

    def _restore(self, numbers: Mapping[str, float]) -> None:
        super()._restore(numbers)
        self.betas, self.eps = (numbers["beta1"], numbers["beta2"]), numbers["eps"]

    def _update(self, weight: Tensor, gradient: Tensor, state: Sequence[Tensor], hyper: Tensor) -> Tensor:
        m, v = state
        return ops.opt_step_adamw(weight, gradient, m, v, hyper)


class SGD(Optimizer):
    """Gradient descent: ``w = w (1 - lr weight_decay) - lr g``. It has no state.

    loss, weights, max_norm, grads: as for :class:`AdamW`
    """

    __slots__ = ()

    def __init__(
        self,
        loss: Tensor,
        weights: Sequence[Tensor],
        lr: float = 1e-2,
        *,
        weight_decay: float = 0.0,
        max_norm: float | None = None,
        grads: Sequence[Tensor] | None = None,
    ) -> None:
        super().__init__(loss, weights, lr, weight_decay, max_norm, grads)

    def _values(self, step: int) -> list[float]:
        n = self._numbers()
        return [n["lr"], n["weight_decay"]]

    def _update(self, weight: Tensor, gradient: Tensor, state: Sequence[Tensor], hyper: Tensor) -> Tensor:
        return ops.opt_step_sgd(weight, gradient, hyper)
