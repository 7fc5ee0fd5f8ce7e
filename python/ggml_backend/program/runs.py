"""Programs: networks of one model for several sizes, and the graphs of the last sizes."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base.errors import expect_path
from ..backend import Backend
from ..errors import InvalidArgumentError, StateError, UnsupportedError
from ..sched import Plan, Scheduler
from ..tensor import Graph
from .graphs import StoredGraph, state_label
from .network import Network, Value
from .program import Engine, Explanation, Fallback, Missing, Step, refuse
from .sizes import Formula, identifier, text_of

__all__ = ["Input", "Runs", "Variant"]

Array = np.ndarray[Any, Any]

_KEPT = 16  # sizes whose graphs a program keeps


@dataclass(frozen=True)
class Input:
    """name: as users call it; value: its shape, with named sizes, and dtype"""

    name: str
    value: Value


@dataclass(frozen=True)
class Variant:
    """A network, and which of its values are the inputs and results of a model.

    leaves: the name of the value of each input, or None for a constant
    results: the name of a value, or a constant
    """

    network: Network
    leaves: list[str | None]
    results: list[tuple[str | None, Any]]

    @property
    def fallback(self) -> Fallback | None:
        """Computes nodes without a rule. None refuses them."""
        return None

    def sizes(self, shapes: Sequence[Sequence[int] | None]) -> dict[str, int]:
        """The named sizes of inputs with these shapes. InvalidArgumentError: the network is for other shapes."""
        given = {name: s for name, s in zip(self.leaves, shapes, strict=True) if name is not None and s is not None}
        return self.network.named(given)


class Runs:
    """The common part of all programs: networks of a model, an engine, and graphs for the last sizes.

    ``inputs``: shapes and dtypes by name. ``missing``: operators that another library computes, with the reasons.
    ``plan``: memory, splits and copies. ``graph``, ``network``, ``scheduler``: of the last size; nodes have the names
    of modules.
    """

    def __init__(self, engine: Engine, variants: Sequence[Variant]) -> None:
        self._engine = engine
        self._variants = list(variants)
        self._kept: OrderedDict[Any, tuple[Variant, Step]] = OrderedDict()
        self._last_used: tuple[Variant, Step] | None = None

    def _made_for(self, shapes: Sequence[Sequence[int] | None]) -> Variant | None:
        """A variant for shapes that no other one is for, or None."""
        return None

    def _prepare(self, shapes: Sequence[Sequence[int] | None], what: str) -> tuple[Variant, Step]:
        """The graph for inputs of these shapes. The caller holds the lock of the engine."""
        key = tuple(None if s is None else tuple(s) for s in shapes)
        if key not in self._kept:
            variant, sizes = self._choose(shapes, what)
            self._kept[key] = variant, self._engine.step(variant.network.at(sizes), what, variant.fallback)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        self._last_used = self._kept[key]
        return self._last_used

    @property
    def _last(self) -> tuple[Variant, Step]:
        if self._last_used is None:
            raise StateError("program: there is no graph before the first call, because sizes are unknown")
        return self._last_used

    def _choose(self, shapes: Sequence[Sequence[int] | None], what: str) -> tuple[Variant, dict[str, int]]:
        reasons = []
        for variant in self._variants:
            try:
                return variant, variant.sizes(shapes)
            except InvalidArgumentError as error:
                reasons.append(str(error))
        made = self._made_for(shapes)
        if made is None:
            raise InvalidArgumentError(f"{what}: {reasons[0] if reasons else 'the shapes are not those of the inputs'}")
        self._variants.append(made)
        return made, made.sizes(shapes)

    def _computed(self, variant: Variant, step: Step, arrays: Sequence[Any]) -> list[Any]:
        """The results for these inputs: arrays and constants."""
        given = {name: array for name, array in zip(variant.leaves, arrays, strict=True) if name is not None}
        found = self._engine.run(step, given)
        return [constant if name is None else found[name] for name, constant in variant.results]

    def export_graph(self, path: str | os.PathLike[str]) -> list[str]:
        """Writes the graph of the last size with its weights to a file that a C program runs, and returns the names.

        The names are those of the results in the file. Inputs and weights keep their names. All inputs and results are
        float32. ``ggml_graph_import`` reads the file on a machine of the same byte order.

        UnsupportedError: PyTorch computes an operator, or a result is a constant; StateError: there is no graph yet
        """
        expect_path(path, "export_graph: path")
        with self._engine.lock:
            variant, step = self._last
            refuse(step.missing, "export_graph")
            labels = self._result_names(variant)
            tensors = [None if name is None else step.outputs[name].tensor for name, _ in variant.results]
            made = {label: t for label, t in zip(labels, tensors, strict=True) if t is not None}
            if step.graph is None or len({*made.values()}) < len(tensors):
                raise UnsupportedError("export_graph: a result of the program is a constant, or occurs twice")
            self._engine.scheduler.allocate(step.graph)
            before = {t: t.name for t in made.values()}
            try:
                for label, tensor in made.items():
                    tensor.name = label
                written = [tensor.name for tensor in made.values()]  # a name has at most 63 bytes
                others = [t.name for t in (*step.graph.leafs, *step.graph.nodes) if t not in before]
                twice = [name for i, name in enumerate(written) if name in others or name in written[:i]]
                if twice:
                    raise UnsupportedError(f"export_graph: a result has the name {twice[0]!r} of another tensor")
                step.graph.export(path)
            finally:
                for tensor, name in before.items():
                    tensor.name = name
            return written

    def _stored_graphs(self, inputs: Sequence[Input]) -> list[StoredGraph]:
        """The graphs of the last sizes for a file, the last one first. The caller holds the lock of the engine.

        Results that are constants are left out.
        """
        found = []
        for shapes, (variant, step) in reversed(self._kept.items()):
            if step.graph is None or step.missing:
                continue
            self._engine.scheduler.allocate(step.graph)  # gives constants memory
            values = [name for name, shape in zip(variant.leaves, shapes, strict=True) if shape is not None]
            given = {
                one.name: step.inputs[name] for one, name in zip(inputs, values, strict=True) if name in step.inputs
            }
            labels = self._result_names(variant)
            results = {
                label: step.outputs[name].tensor
                for label, (name, _) in zip(labels, variant.results, strict=True)
                if name is not None
            }
            sizes = {
                text_of(size): n
                for one, shape in zip(inputs, [s for s in shapes if s is not None], strict=True)
                for size, n in zip(one.value.sizes, shape, strict=True)
                if isinstance(size, Formula) and identifier(text_of(size)) == text_of(size)
            }
            made = {label: t for label, t in results.items() if t is not None}
            states = {state_label(name): t for name, t in step.states.items()}
            found.append(StoredGraph(step.graph, given, made, sizes, states))
        return found

    def reset(self) -> None:
        """Sets the states of the model, such as a cache of keys and values, to the values of the compiled model."""
        self._engine.reset()

    @property
    def states(self) -> dict[str, Array]:
        """Copies of the states: values that the model keeps from call to call, by the names of its buffers."""
        with self._engine.lock:
            labels = self._state_names()
            return {labels.get(name, name): self._engine.state(name) for name in self._engine.states}

    def _state_names(self) -> Mapping[str, str]:
        """Names of states for users, where these are not the names of values."""
        return {}

    def _result_names(self, variant: Variant) -> list[str]:
        """A name for each result."""
        return [f"output.{i}" for i in range(len(variant.results))]

    @property
    def missing(self) -> list[Missing]:
        return list(self._last[1].missing)

    @property
    def graph(self) -> Graph | None:
        return self._last[1].graph

    @property
    def network(self) -> Network:
        """The model as data, of the last size."""
        return self._last[1].network

    @property
    def scheduler(self) -> Scheduler:
        return self._engine.scheduler

    @property
    def backends(self) -> list[Backend]:
        return list(self._engine.backends)

    @property
    def plan(self) -> Plan:
        return self._engine.plan(self._last[1])

    def explain(self) -> Explanation:
        """Reports the operators of the program, those that another library computes, and the weights."""
        return self._engine.explained(self._last[1])
