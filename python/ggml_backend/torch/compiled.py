"""Models of PyTorch as programs: :func:`compile`, :func:`explain`, :class:`Program`."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from .._base.errors import expect, expect_bool, expect_path
from .._base.errors.messages import kind_of
from .._base.text import nearest
from ..backend import Backend
from ..backend._priority import backends_of
from ..errors import InvalidArgumentError, UnsupportedError
from ..program.formats import Formats, check_formats, chosen_formats
from ..program.network import Value
from ..program.program import Engine, Explanation, draft, refuse
from ..program.runs import Runs, Variant
from ..program.saved import Declared, Input, store
from ..program.simplify import simplify
from ..program.sizes import identifier, name_of
from ._exported import Exported, array_of, export, flattened
from ._operators import check_precision
from .packed import Precision

__all__ = ["Program", "compile", "compile_graph", "explain"]

Array = np.ndarray[Any, Any]
Dynamic = Mapping[str, "Mapping[int, str] | Sequence[int]"]
Policy = Literal["weights", "sources", "cost"]

_MOST_NARROW = 3  # named sizes of which a file has every combination of 1 and more


class Program(Runs):
    """A model for inputs of the compiled sizes. :func:`compile` makes programs.

    Call it as you call the model, with tensors of PyTorch or arrays of NumPy. The result has the structure of the
    model's result, with tensors if an input is a tensor, else with arrays. Several threads may call a program. They
    wait for each other.

    ``inputs``: shapes and dtypes by name. ``missing``: operators that PyTorch computes, with the reasons. ``plan``:
    memory, splits and copies. ``graph``, ``scheduler``: of the last size; nodes have the names of modules.
    """

    def __init__(
        self,
        model: nn.Module,
        engine: Engine,
        example: _Call,
        exported: Exported,
        dynamic: _Dynamic,
        strict: bool,
        weights: Formats,
        changing: bool = False,
    ) -> None:
        super().__init__(engine, [])
        self._strict, self._weights, self._changing = strict, weights, changing
        self._model: nn.Module | None = model if dynamic.axes else None
        self._signature = inspect.signature(model.forward)
        self._example, self._dynamic = example, dynamic
        self._call = example
        self._variants.append(self._add(exported))
        with engine.lock:
            self._prepare(example.shapes(), "compile")

    def _add(self, exported: Exported) -> Exported:
        """Prepares a network, and gives its weights their formats."""
        simplify(exported.network, self._engine.folded)
        self._engine.weights.formats.update(
            chosen_formats(self._weights, exported.network)
        )  # a size may read other weights
        self._engine.add_states(exported.initial)
        return replace(exported, strict=self._strict)

    def _made_for(self, shapes: Sequence[Sequence[int] | None]) -> Exported | None:
        if self._model is None:
            return None
        axes = [
            {axis: label for axis, label in named.items() if shape is not None and shape[axis] > 1}
            for named, shape in zip(self._dynamic.leaves(self._call), shapes, strict=True)
        ]
        return self._add(export(self._model, self._call.args, self._call.kwargs, "program", axes, self._changing))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = _Call.of(self._signature, args, kwargs, "program")
        call.check(self._example, self._dynamic)
        with self._engine.lock:
            self._call = call
            try:
                variant, step = self._prepare(call.shapes(), "program")
            finally:
                self._call = self._example  # keeps no arguments alive
        results = self._computed(variant, step, call.arrays())
        if call.of_torch:
            dtypes = [None if name is None else step.network.values[name].dtype for name, _ in variant.results]
            results = [
                array if dtype is None else torch.from_numpy(array).to(getattr(torch, dtype))
                for array, dtype in zip(results, dtypes, strict=True)
            ]
        assert isinstance(variant, Exported)
        for leaf, value in zip(variant.changed, results, strict=False):
            call.leaves[leaf].copy_(value)
        return pytree.tree_unflatten(results[len(variant.changed) :], variant.structure)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the program to a GGUF file. :func:`ggml_backend.load_program` reads it without PyTorch.

        The file holds the weights in their formats, and the network for all sizes that ``dynamic`` allows. It exports
        the model again for axes of size 1, which PyTorch treats apart. If the graph of the model depends on its
        sizes in a way that a file cannot hold, the file has the last sizes that were used.

        UnsupportedError: an operator has no rule, or the result has a type that no file can hold
        """
        expect_path(path, "save: path")
        if self._changes:
            raise UnsupportedError("save: the program changes its arguments, which no file can hold")
        with self._engine.lock:
            refuse([m for _, step in self._kept.values() for m in step.missing], "save")
            tensors = [isinstance(x, torch.Tensor) for x in self._example.leaves]
            variants = [
                replace(v, leaves=[name for name, kept in zip(v.leaves, tensors, strict=True) if kept])
                for v in self._for_file()
            ]
            declared = self._example.declared(self._dynamic, variants[0])
            store(path, variants, declared, self._engine, self._stored_graphs(declared.inputs))

    def _result_names(self, variant: Variant) -> list[str]:
        assert isinstance(variant, Exported)
        if variant.changed:
            raise UnsupportedError("export_graph: the program changes its arguments, which no file can hold")
        whole = pytree.tree_unflatten([0] * len(variant.results), variant.structure)
        paths, _ = pytree.tree_flatten_with_path(whole)
        keys = [[getattr(key, "idx", getattr(key, "key", key)) for key in path] for path, _ in paths]
        return [".".join(map(str, path)) or "output" for path in keys]

    def _for_file(self) -> list[Variant]:
        """The networks of a file: all that were used, and those for axes of size 1."""
        general = next((v for v in self._variants if v.network.sizes), None)
        if general is None or self._model is None:
            return list(self._variants)
        narrow = [label for label, (low, _) in general.network.sizes.items() if low > 1]
        axes = self._dynamic.leaves(self._example)
        for n in range(1, len(narrow) + 1 if len(narrow) <= _MOST_NARROW else 2):
            for ones in combinations(narrow, n):
                self._call = self._example.with_ones(axes, {*ones})
                with contextlib.suppress(UnsupportedError, InvalidArgumentError):  # the model has no such sizes
                    self._choose(self._call.shapes(), "save")
        return [general, *(v for v in self._variants if v is not general)]

    @property
    def _changes(self) -> bool:
        """True if a call writes to its arguments. Only graphs of ``torch.compile`` do."""
        return any(isinstance(v, Exported) and v.changed for v in self._variants)

    @property
    def inputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        network = self.network
        given = [name for name in network.inputs if name not in network.states]
        return {name: (network.values[name].shape, network.values[name].dtype) for name in given}

    def _state_names(self) -> Mapping[str, str]:
        return {name: buffer for v in self._variants if isinstance(v, Exported) for name, buffer in v.buffers.items()}

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name} {dtype} {shape}" for name, (shape, dtype) in self.inputs.items())
        return f"<Program {inputs}; on {', '.join(b.name for b in self._engine.backends)}>"


@dataclass
class _Call:
    """Arguments of a model: as they were bound, and their leaves. Tensors and arrays are inputs."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: list[str]
    leaves: list[Any]
    structure: Any
    of_torch: bool

    @classmethod
    def of(cls, signature: inspect.Signature, args: Any, kwargs: Mapping[str, Any], what: str) -> _Call:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{what}: {error}") from None
        given, of_torch = [], False
        for value in (bound.args, bound.kwargs):
            of_torch = of_torch or any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(value))
            given.append(pytree.tree_map(_as_tensor, value))
        positional, named = given
        leaves, structure = flattened(positional, named)
        paths, _ = pytree.tree_flatten_with_path((positional, named))
        parameters = _labels(bound)
        return cls(positional, named, [_name(path, parameters) for path, _ in paths], leaves, structure, of_torch)

    def shapes(self) -> list[tuple[int, ...] | None]:
        return [tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in self.leaves]

    def with_ones(self, axes: Sequence[Mapping[int, str]], ones: set[str]) -> _Call:
        """Arguments in which axes of these names have one element, and other named axes more."""
        leaves = [
            leaf.new_zeros([1 if named.get(i) in ones else max(n, 2 * (i in named)) for i, n in enumerate(leaf.shape)])
            if named
            else leaf
            for leaf, named in zip(self.leaves, axes, strict=True)
        ]
        positional, named = pytree.tree_unflatten(leaves, self.structure)
        return replace(self, args=positional, kwargs=named, leaves=leaves)

    def declared(self, dynamic: _Dynamic, variant: Variant) -> Declared:
        """The inputs and the result of a program for files."""
        inputs, constants, example = [], {}, []
        for name, leaf, axes in zip(self.names, self.leaves, dynamic.leaves(self), strict=True):
            if isinstance(leaf, torch.Tensor):
                shape: Any = tuple(name_of(axes[i]) if i in axes else n for i, n in enumerate(leaf.shape))
                inputs.append(Input(name, Value(shape, str(leaf.dtype).removeprefix("torch."))))
                example.append(tuple(leaf.shape))
            elif leaf is None or isinstance(leaf, (bool, int, float, str)):
                constants[name] = leaf
        assert isinstance(variant, Exported)
        marks = pytree.tree_unflatten([_Mark(i) for i in range(len(variant.results))], variant.structure)
        return Declared(inputs, constants, _plain_structure(marks), example)

    def arrays(self) -> list[Any]:
        return [array_of(x) if isinstance(x, torch.Tensor) else x for x in self.leaves]

    def check(self, example: _Call, dynamic: _Dynamic) -> None:
        """Raises unless a program of the example can compute this call."""
        if self.structure != example.structure:
            mine, other = set(self.names), set(example.names)
            extra = ", ".join(sorted(mine - other)) or "none"
            lacking = ", ".join(sorted(other - mine)) or "none"
            raise InvalidArgumentError(
                "program: the arguments must be those of the example inputs of compile. Not among these:"
                f" {extra}. Missing: {lacking}"
            )
        for name, mine, other in zip(self.names, self.leaves, example.leaves, strict=True):
            if not isinstance(other, torch.Tensor):
                if isinstance(mine, torch.Tensor) or mine != other:
                    raise InvalidArgumentError(f"program: {name} was {other!r} when the model was compiled")
                continue
            if not isinstance(mine, torch.Tensor):
                raise TypeError(f"program: {name} must be a tensor or an array, not {type(mine).__name__}")
            if mine.device.type != "cpu":
                raise InvalidArgumentError(f"program: {name} is on {mine.device}; x.cpu() is on the CPU")
            if _kind(mine.dtype) != _kind(other.dtype):
                raise InvalidArgumentError(f"program: {name} must be {other.dtype}, not {mine.dtype}")
        dynamic.check(self, example)


@dataclass(frozen=True)
class _Mark:
    """Stands for a result in the structure of results."""

    number: int


def _plain_structure(marks: Any) -> Any:
    """The structure of a result in a file."""
    if isinstance(marks, _Mark):
        return marks.number
    if isinstance(marks, Mapping):
        return {"dict": [[key, _plain_structure(value)] for key, value in marks.items()]}
    if isinstance(marks, (list, tuple)):
        return {"tuple" if isinstance(marks, tuple) else "list": [_plain_structure(value) for value in marks]}
    raise UnsupportedError(f"save: the result of the model has a {type(marks).__name__}, which a file cannot hold")


def _kind(dtype: torch.dtype) -> str:
    """Integers of all sizes are one kind."""
    return str(dtype) if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool else "integer"


def _as_tensor(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return torch.from_numpy(array if array.flags.writeable and min((0, *array.strides)) >= 0 else array.copy())
    return value


def _labels(bound: inspect.BoundArguments) -> list[str]:
    """Names of the positional arguments."""
    labels: list[str] = []
    for name, value in bound.arguments.items():
        several = bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        labels += [f"{name}.{i}" for i in range(len(value))] if several else [name]
    return labels


def _name(path: Any, parameters: list[str]) -> str:
    """The name of an argument, or of a part of it."""
    side, first, *rest = (getattr(key, "idx", getattr(key, "key", key)) for key in path)
    name = str(first) if side == 1 else parameters[first]
    return ".".join([name, *map(str, rest)])


class _Dynamic:
    """Axes of inputs that may vary, by name of the input. Axes of one name have one size."""

    def __init__(self, given: Dynamic | None, example: _Call) -> None:
        self.axes: dict[str, dict[int, str]] = {}
        if given is None:
            return
        if not isinstance(given, Mapping):
            raise TypeError("compile: dynamic must be a dict, such as {'input_ids': {0: 'batch', 1: 'tokens'}}")
        for name, axes in given.items():
            if name not in example.names:
                raise InvalidArgumentError(
                    f"compile: dynamic: no input is called {name!r}{nearest(name, example.names)}"
                )
            if not isinstance(axes, (Mapping, list, tuple, set)):
                raise TypeError(f"compile: dynamic: the axes of {name} must be a dict or a list, not {kind_of(axes)}")
            tensor = example.leaves[example.names.index(name)]
            named = dict(axes) if isinstance(axes, Mapping) else {axis: f"{name}.{axis}" for axis in axes}
            for axis in named:
                if not isinstance(tensor, torch.Tensor) or not isinstance(axis, int) or not 0 <= axis < tensor.ndim:
                    raise InvalidArgumentError(f"compile: dynamic: {name} has no axis {axis!r}")
            self.axes[name] = {axis: str(label) for axis, label in named.items()}
        self.check(example, example)

    def leaves(self, example: _Call) -> list[dict[int, str]]:
        """The named axes of each leaf, with names that formulas have."""
        return [
            {axis: identifier(label) for axis, label in self.axes.get(name, {}).items()} for name in example.names
        ]  # fmt: skip

    def check(self, call: _Call, example: _Call) -> None:
        sizes: dict[str, tuple[int, str]] = {}
        for name, mine, other in zip(call.names, call.leaves, example.leaves, strict=True):
            if not isinstance(other, torch.Tensor):
                continue
            if mine.ndim != other.ndim:
                raise InvalidArgumentError(f"program: {name} must have {other.ndim} axes, not {mine.ndim}")
            for axis, (n, m) in enumerate(zip(mine.shape, other.shape, strict=True)):
                label = self.axes.get(name, {}).get(axis)
                if label is None and n != m:
                    raise InvalidArgumentError(
                        f"program: axis {axis} of {name} must be {m}, not {n}; compile with dynamic={{{name!r}:"
                        f" {{{axis}: 'n'}}}} for other sizes"
                    )
                if label is not None and sizes.setdefault(label, (n, name))[0] != n:
                    size, first = sizes[label]
                    raise InvalidArgumentError(
                        f"program: {label} is {size} in {first}, and {n} in {name} (axis {axis}); both must be equal"
                    )


def _example(model: nn.Module, args: Any, kwargs: Mapping[str, Any] | None, what: str) -> _Call:
    expect(model, nn.Module, f"{what}: model")
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"{what}: example inputs are a tuple, such as ({type(args).__name__.lower()},)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"{what}: kwargs must be a dict of example inputs by name, not {kind_of(kwargs)}")
    call = _Call.of(inspect.signature(model.forward), args, kwargs or {}, what)
    if not any(isinstance(x, torch.Tensor) for x in call.leaves):
        raise InvalidArgumentError(f"{what}: give example inputs: compile(model, (x,))")
    return call


def compile(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    weights: Formats = None,
    devices: Sequence[str | Backend] = ("CPU",),
    dynamic: Dynamic | None = None,
    strict: bool = False,
    precision: Precision = "default",
    policy: Policy = "weights",
) -> Program:
    """A model as a program on our devices, for inference::

        program = gbt.compile(model.eval(), (ids,), weights="q8_0")
        out = program(ids)

    model: any module that ``torch.export`` can export, with weights of float32 on the CPU, in eval mode
    args, kwargs: example inputs. Their shapes and dtypes are those of the program.
    weights: None shares the weights of the model, without a copy. A format such as ``"q8_0"`` quantizes all matrices of
        linear layers and embeddings. A dict gives formats by patterns of parameter names, or None. The first match
        decides.
    devices: names or backends, fastest first. The first one holds the weights. The CPU is added if the last is another.
    dynamic: axes of inputs that may vary, with names: ``{"input_ids": {0: "batch", 1: "tokens"}}``. Axes of one name
        have one size. Each new size takes as long as building a graph. The graphs of the last 16 sizes are kept, and
        share their weights. If the graph of the model depends on a size, the first call with that size exports the
        model again, which takes seconds.
    strict: True raises :class:`UnsupportedError` with a list of all operators without a rule. Otherwise PyTorch
        computes these on the CPU, within the graph.
    precision: of products with quantized weights, as for :func:`pack`
    policy: of the scheduler (:class:`ggml_backend.Scheduler`)

    Weights that are shared change with the model. Compile again after you replace or retrain weights.

    Buffers that the model changes, such as a cache of keys and values, become states of the program: it keeps them in
    its own memory, and the graphs of all sizes write them there. ``program.reset()`` begins again.

    UnsupportedError: PyTorch cannot export the model
    """
    strict = expect_bool(strict, "compile: strict")
    check_precision(precision, "compile")
    call = _example(model, args, kwargs, "compile")
    axes = _Dynamic(dynamic, call)
    exported = export(model, call.args, call.kwargs, "compile", axes.leaves(call))
    backends = backends_of(devices, torch.get_num_threads())
    check_formats(weights, exported.network, "compile")
    engine = Engine(backends, {}, precision=precision, policy=policy)
    return Program(model, engine, call, exported, axes, strict, weights)


def compile_graph(
    graph: nn.Module, args: Sequence[Any], dynamic: Dynamic, backends: Sequence[Backend], *, weights: Formats,
    strict: bool, precision: Precision, policy: Policy,
) -> Program:  # fmt: skip
    """A graph of ``torch.compile`` as a program. It may change its arguments, and patterns may fit no weight.

    StateChange: the graph changes its buffers
    """
    call = _example(graph, args, None, "torch.compile")
    axes = _Dynamic(dynamic, call)
    exported = export(graph, call.args, call.kwargs, "torch.compile", axes.leaves(call), changing=True)
    engine = Engine(backends, {}, precision=precision, policy=policy)
    return Program(graph, engine, call, exported, axes, strict, weights, changing=True)


def explain(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    weights: Formats = None,
) -> Explanation:
    """Reports what :func:`compile` would make: operators, those without a rule with the reasons, and weights.

    It allocates no memory for the program and computes nothing. ``print`` shows a report.
    """
    call = _example(model, args, kwargs, "explain")
    exported = export(model, call.args, call.kwargs, "explain")
    check_formats(weights, exported.network, "explain")
    return draft(exported.network, chosen_formats(weights, exported.network))
