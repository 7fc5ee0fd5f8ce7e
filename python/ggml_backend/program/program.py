"""Graphs of networks, and how they run."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from .._base.text import count, size_text
from ..backend import Backend
from ..dtypes import DTypeLike
from ..errors import InvalidArgumentError, StateError, UnsupportedError
from ..sched import Plan, Scheduler
from ..tensor import Context, Graph, Tensor
from .build import EXACT, MAX_DIMS, Build, NoRule, Val, Weights, as_floats
from .constants import constant_part, replace_constants
from .network import Network, Node, Ref
from .rules import INTEGERS, translate
from .simplify import Folded, simplify

__all__ = ["Engine", "Explanation", "Fallback", "Missing", "Step", "draft", "explain", "refuse"]

Array = np.ndarray[Any, Any]
Fallback = Callable[[Node, Mapping[str, Array]], "tuple[Array, ...]"]
"""Computes a node without a rule in another library, from the arrays of its sources."""

_NAME = 63  # bytes of a tensor's name
_MOST_SOURCES = 10  # of an operation in Python


class Missing(NamedTuple):
    """An operator without a rule."""

    operator: str
    module: str
    reason: str


class Explanation(NamedTuple):
    """What a program consists of. ``str()`` is a report.

    operators: how often each operator occurs
    missing: operators without a rule
    packed: quantized weights with their formats; quantized: their bytes
    shared, copied: bytes of other weights in the memory of the model, and of copies
    """

    operators: dict[str, int]
    missing: list[Missing]
    shared: int
    copied: int
    quantized: int
    packed: dict[str, str]

    def __str__(self) -> str:
        total = sum(self.operators.values())
        lines = [f"{count(total, 'operator')}, {count(len(self.missing), 'of them has', 'of them have')} no rule"]
        lines += [f"  {line}" for line in _listed(self.missing)]
        formats = sorted({*self.packed.values()})
        packed = f", {size_text(self.quantized)} as {', '.join(formats)}" if formats else ""
        shared, copied = size_text(self.shared), size_text(self.copied)
        lines.append(f"weights: {shared} shared with the model, {copied} copied{packed}")
        return "\n".join(lines)


def _listed(missing: Sequence[Missing]) -> list[str]:
    """One line for each operator and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in missing:
        groups.setdefault((one.operator, one.reason), []).append(one.module)
    return [
        f"{operator} ({len(modules)} times, first in {modules[0] or 'the model'}): {reason}"
        for (operator, reason), modules in groups.items()
    ]


def refuse(missing: Sequence[Missing], what: str) -> None:
    """Raises UnsupportedError with a list of all operators without a rule, if there are any."""
    if missing:
        raise UnsupportedError(f"{what}: operators without a rule: " + "; ".join(_listed(missing)))


class Step:
    """The graph of a network of fixed sizes.

    missing: nodes that another library computes; without_rule: their results
    values: all values by name; those of constants have no tensor
    states: tensors of the states by name, which the graph reads and writes. Without them, states are inputs.
    """

    def __init__(
        self, network: Network, weights: Weights, fallback: Fallback | None, states: Mapping[str, Tensor] | None = None
    ) -> None:
        self.network: Network = network
        self.missing: list[Missing] = []
        self.without_rule: set[str] = set()
        self.context: Context = Context()
        self._weights, self._fallback = weights, fallback
        self._seen: set[Any] = set()
        self.inputs: dict[str, Tensor] = {}
        self.values: dict[str, Val] = {}
        self.outputs: dict[str, Val] = {}
        self.states: dict[str, Tensor] = {name: states[name] for name in network.states} if states else {}
        with self.context.as_default():
            self._translate(network)

    def _translate(self, network: Network) -> None:
        build, values = Build(self.context, self._weights), self.values
        readers = network.readers()
        build.used = {name for name, n in readers.items() if n}
        build.replaced = {name: network.states[name] for name in self.states if readers[name] == 1}
        for name in network.inputs:
            value = network.values[name]
            tensor = self.states.get(name)
            if tensor is None:
                tensor = self.context.tensor(_folded(value.shape), name=name[-_NAME:])
            self._seen.add(tensor)
            values[name] = Val(value.shape, value.dtype, tensor, name=name)
        for name, array in network.arrays.items():
            value = network.values[name]
            values[name] = Val(value.shape, value.dtype, None, array, name, name in network.weights)
        for node in network.nodes:
            build.node, build.results = node, [network.values[name] for name in node.results]
            values.update(self._results(build, values))
        for name in network.results if self.states else network.outputs:
            found = values[name]
            if found.tensor is not None:
                fresh = found.tensor.op != "NONE" and not self.states  # it is no state, which a node may write
                tensor = (found.tensor if fresh else ops.cont(found.tensor)).contiguous()
                found = Val(found.shape, found.dtype, tensor, name=name)
                self._name(tensor, name)
            self.outputs[name] = found
        results = [v.tensor for v in self.outputs.values() if v.tensor is not None]
        results += self._written(build, values)
        self.graph: Graph | None = self.context.graph(results) if results else None
        read = {*self.graph.leafs} if self.graph is not None else set()
        tensors = {name: values[name].tensor for name in network.inputs if name not in self.states}
        self.inputs = {name: t for name, t in tensors.items() if t is not None and t in read}

    def _written(self, build: Build, values: Mapping[str, Val]) -> list[Tensor]:
        """The new values of states, and behind them nodes that write these into the states."""
        new = {name: build.dense(values[self.network.states[name]]) for name in self.states}
        found = [*new.values()]
        for name, tensor in self.states.items():
            if name not in build.written:
                found.append(ops.cpy(new[name].reshape(*tensor.shape), tensor))
                self._name(found[-1], name)
        return found

    def _results(self, build: Build, values: Mapping[str, Val]) -> dict[str, Val]:
        """The values of a node."""
        node = build.node
        if all(0 in r.shape for r in build.results):  # nothing to compute
            return {
                name: Val(
                    r.shape, r.dtype, None, np.zeros(r.shape, "float32" if r.dtype == "bfloat16" else r.dtype), name
                )
                for name, r in zip(node.results, build.results, strict=True)
            }
        arguments = {name: _resolved(value, values) for name, value in node.arguments.items()}
        written = set(build.written)
        try:
            try:
                made = translate(build, arguments)
            except UnsupportedError as error:  # a limit of the operation
                raise NoRule(str(error)) from None
            if len(made) != len(build.results) or any(t is None and build.wants(i) for i, t in enumerate(made)):
                raise NoRule("the rule does not compute all results")
        except NoRule as reason:
            build.written = written
            self.missing.append(Missing(node.op, node.module, str(reason)))
            self.without_rule |= {*node.results}
            made = self._computed_elsewhere(build, values)
        found = {}
        for name, value, tensor in zip(node.results, build.results, made, strict=True):
            if tensor is None:
                continue
            if tensor.size != math.prod(value.shape):
                raise UnsupportedError(f"the rule of {node.op} made {tensor.describe()} instead of {value.shape}")
            if len(value.shape) <= MAX_DIMS and tensor.shape != value.shape:
                tensor = tensor.reshape(value.shape)
            operator = node.op.removeprefix("ggml_backend.").partition(".")[0]
            self._name(tensor, f"{node.module or 'model'}/{operator}")
            found[name] = Val(value.shape, value.dtype, tensor, name=name)
        return found

    def _name(self, tensor: Tensor, name: str) -> None:
        """Names the tensors of a node: those that no earlier node has made."""
        new = [tensor]
        while new:
            t = new.pop()
            if t in self._seen:
                continue
            self._seen.add(t)
            if not t.name:
                t.name = name[-_NAME:]
            new += [s for s in t.sources if s not in self._seen]

    def _computed_elsewhere(self, build: Build, values: Mapping[str, Val]) -> tuple[Tensor, ...]:
        """Tensors of a node that another library computes. Without one: tensors that nothing computes."""
        node, shapes = build.node, [_folded(r.shape) for r in build.results]
        sources = {name: values[name] for name in dict.fromkeys(node.sources)}
        tensors = {name: v.tensor.contiguous() for name, v in sources.items() if v.tensor is not None}
        if self._fallback is None:
            return tuple(self.context.tensor(shape) for shape in shapes)
        limit = "one of its results is empty" if any(0 in shape for shape in shapes) else ""
        if len(tensors) > _MOST_SOURCES:
            limit = f"it has {len(tensors)} sources, and the limit is {_MOST_SOURCES}"
        if limit:
            reason = self.missing[-1].reason
            raise UnsupportedError(
                f"{node.op} has no rule ({reason}), and cannot be computed inside the graph, because {limit}"
            )
        fallback = self._fallback
        constants = {name: v.array for name, v in sources.items() if v.array is not None}

        def compute(out: Any, *arrays: Array) -> Any:
            given = {
                name: _typed(array, sources[name]) for name, array in zip(tensors, arrays, strict=True)
            }  # fmt: skip
            made = [
                as_floats(np.asarray(a), node.op).reshape(shape)
                for a, shape in zip(fallback(node, {**constants, **given}), shapes, strict=True)
            ]
            return tuple(made)

        made = ops.custom(
            compute, *tensors.values(), shape=shapes, dtype=["float32"] * len(shapes), context=self.context
        )
        return made if isinstance(made, tuple) else (made,)


def _folded(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of at most four axes for these elements."""
    return shape if len(shape) <= MAX_DIMS else (math.prod(shape[:-3]), *shape[-3:])


def _typed(array: Array, value: Val) -> Array:
    """Floats of a graph as an array of the value's shape and dtype. NumPy has no bfloat16, so that is float32.

    InvalidArgumentError: an integer that float32 may have rounded
    """
    shaped: Array = array.reshape(value.shape)
    if value.dtype == "bool":
        shaped = shaped != 0
    if value.dtype in INTEGERS and shaped.size and max(-shaped.min(), shaped.max()) > EXACT:
        raise InvalidArgumentError(
            f"program: {value.name} has integers from {shaped.min():.0f} to {shaped.max():.0f}; integers of a program"
            f" are at most {EXACT}"
        )
    return shaped.astype("float32" if value.dtype == "bfloat16" else value.dtype, copy=False)


def _resolved(argument: Any, values: Mapping[str, Val]) -> Any:
    if isinstance(argument, Ref):
        return values[argument.name]
    if isinstance(argument, list):
        return [_resolved(item, values) for item in argument]
    return argument


class Engine:
    """Backends, weights and a scheduler, for networks of one model. Several threads may use it."""

    def __init__(
        self,
        backends: Sequence[Backend],
        formats: Mapping[str, DTypeLike | None],
        *,
        precision: Any = "default",
        policy: Any = "weights",
    ) -> None:
        self.backends: list[Backend] = list(backends)
        self.scheduler: Scheduler = Scheduler(self.backends, policy=policy)
        self.weights: Weights = Weights(self.backends[0], formats, precision)
        self.folded: Folded = {}
        self.states: dict[str, Tensor] = {}
        self.initial: dict[str, Array] = {}
        """The values of the states before the first call."""
        self.lock: Any = threading.RLock()
        _engines.add(self)

    def step(self, network: Network, what: str, fallback: Fallback | None = None) -> Step:
        """The graph of a network of fixed sizes, with memory for its weights.

        what: begins the messages of errors
        fallback: computes nodes without a rule; None refuses them
        """
        with self.lock:
            simplify(network, self.folded)
            self._compute_constants(network)
            step = Step(network, self.weights, fallback, self.states)
            if fallback is None:
                refuse(step.missing, what)
            self.weights.place()
        return step

    def add_states(self, initial: Mapping[str, Array]) -> None:
        """Gives states that are new memory on the first backend, with these values."""
        new = {name: array for name, array in initial.items() if name not in self.states}
        if not new:
            return
        context = Context()
        made = {name: context.tensor(_folded(array.shape), name=name[-_NAME:]) for name, array in new.items()}
        context.allocate(self.backends[0])
        self.states.update(made)
        self.initial.update({name: as_floats(array, name).copy() for name, array in new.items()})
        self.reset(made)

    def reset(self, names: Iterable[str] | None = None) -> None:
        """Sets states to their first values. names: None for all."""
        with self.lock:
            for name in self.states if names is None else names:
                tensor = self.states[name]
                tensor.set(self.initial[name].reshape(tensor.shape))

    def state(self, name: str) -> Array:
        """A copy of a state."""
        return self.states[name].numpy(copy=True).reshape(self.initial[name].shape)

    def _compute_constants(self, network: Network) -> None:
        """Replaces nodes that depend on no input by arrays."""
        without: frozenset[str] = frozenset()
        while (part := constant_part(network, without)).nodes:
            step = Step(part, self.weights, None)
            if step.without_rule:
                without |= step.without_rule
                continue
            self.weights.place()
            with contextlib.suppress(InvalidArgumentError):  # float32 cannot hold an integer: these nodes stay
                replace_constants(network, part, self.run(step, {}))
            return

    def run(self, step: Step, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Computes the outputs from arrays of the inputs."""
        for name in step.inputs:
            shape = step.network.values[name].shape
            if name not in arrays or arrays[name].shape != shape:
                given = f"not {arrays[name].shape}" if name in arrays else "and is missing"
                raise InvalidArgumentError(f"program: {name} has the shape {shape}, {given}")
        with self.lock:
            if step.graph is not None:
                self.scheduler.allocate(step.graph)
                for name, tensor in step.inputs.items():
                    floats = np.ascontiguousarray(as_floats(arrays[name], name))
                    tensor.set(floats.reshape(tensor.shape))
                if not self.scheduler.compute(step.graph):
                    raise StateError("the program was stopped")
            return {
                name: np.array(v.array) if v.tensor is None else _typed(v.tensor.numpy(copy=True), v)
                for name, v in step.outputs.items()
            }

    def plan(self, step: Step) -> Plan:
        """The plan of a graph: memory, splits, copies."""
        if step.graph is None:
            raise StateError("program.plan: every output is a constant")
        with self.lock:
            return self.scheduler.prepare(step.graph)

    def explained(self, step: Step) -> Explanation:
        """What the graph consists of."""
        return explain(step, self.weights)


def explain(step: Step, weights: Weights) -> Explanation:
    operators: dict[str, int] = {}
    for node in step.network.nodes:
        operators[node.op] = operators.get(node.op, 0) + 1
    return Explanation(operators, step.missing, weights.shared, weights.copied, weights.quantized, dict(weights.packed))


def draft(network: Network, formats: Mapping[str, DTypeLike | None]) -> Explanation:
    """What a program of the network would consist of. It allocates and computes nothing."""
    weights = Weights(None, formats)
    simplify(network, {})
    return explain(Step(network, weights, None), weights)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _unlock() -> None:
    """In a forked child: another thread of the parent may have held a lock."""
    for engine in _engines:
        engine.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
