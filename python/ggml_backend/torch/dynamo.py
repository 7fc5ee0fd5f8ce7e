"""The backend ``ggml`` of ``torch.compile``.

PyTorch's compiler (Dynamo) cuts a model into graphs without Python in between, and calls :func:`ggml` for each. A graph
becomes a program on its first call. The program has the weights as its own and shares their memory. It is built again
if a weight was replaced or written since.

Calls that a program cannot compute run in PyTorch, with the results that the model has without a compiler:

- calls that record gradients, because programs are for inference;
- graphs that ``torch.export`` refuses, such as those with weights in float16;
- graphs that change an argument which shares its memory with another.

A graph may return a view of an argument, or two views of one value. The program computes the value. The results are
then views of it, or of the argument, with the sizes and strides that PyTorch found for the graph.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from .._base.errors import expect_bool
from .._base.errors.messages import kind_of
from .._base.text import nearest
from ..backend import Backend
from ..backend._priority import backends_of
from ..dtypes import as_dtype
from ..errors import InvalidArgumentError, PerformanceWarning, UnsupportedError
from ..program.formats import Formats
from ..program.program import Missing
from ._exported import StateChange
from ._operators import check_precision
from .compiled import Policy, Program, compile_graph
from .packed import Precision

__all__ = ["CompiledGraph", "compiled_graphs", "ggml"]

_WHAT = "torch.compile"
_KEPT = 256  # programs of a graph, for as many sets of weights: PyTorch shares the graph of equal layers
_MOST_NUMBERS = 16  # sets of numbers for which a graph is built
_GRADIENTS = (
    "the call records gradients, and programs are for inference; call the model under torch.no_grad() or"
    " torch.inference_mode()"
)


@dataclass(frozen=True)
class _Options:
    """``torch.compile(model, backend="ggml", options={...})``: as for :func:`ggml_backend.torch.compile`."""

    weights: Formats = None
    devices: Sequence[str | Backend] = ("CPU",)
    strict: bool = False
    precision: Precision = "default"
    policy: Policy = "weights"

    @classmethod
    def of(cls, given: Any) -> _Options:
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise TypeError(f"{_WHAT}: options must be a dict, not {kind_of(given)}")
        known = [*cls.__dataclass_fields__]
        for name in given:
            if name not in known:
                raise InvalidArgumentError(
                    f"{_WHAT}: the backend ggml has no option {name!r}{nearest(str(name), known)}; its options are"
                    f" {', '.join(known)}"
                )
        made = cls(**given)
        expect_bool(made.strict, f"{_WHAT}: strict")
        check_precision(made.precision, _WHAT)
        for format in made.weights.values() if isinstance(made.weights, Mapping) else [made.weights]:
            if format is not None:
                as_dtype(format, f"{_WHAT}: weights")
        return made


def ggml(graph: fx.GraphModule, inputs: Sequence[Any], *, options: Any = None, **others: Any) -> CompiledGraph:
    """Compiles a graph of Dynamo: ``torch.compile(model, backend="ggml", options={"weights": "q8_0"})``.

    options: ``weights``, ``devices``, ``strict``, ``precision`` and ``policy`` of :func:`ggml_backend.torch.compile`
    """
    if others:
        raise InvalidArgumentError(f"{_WHAT}: the backend ggml takes options, and no {', '.join(others)}")
    checked = _Options.of(options)
    return CompiledGraph(graph, checked, backends_of(checked.devices, torch.get_num_threads()))


class CompiledGraph:
    """A graph that ``torch.compile`` gave to the backend ``ggml``. :func:`compiled_graphs` lists them.

    program: of the last call that a program computed, or None
    calls, calls_of_pytorch: how often the graph was called, and how often PyTorch computed all of it
    reason: why PyTorch computed the last of these calls, or ""
    """

    def __init__(self, graph: fx.GraphModule, options: _Options, backends: Sequence[Backend]) -> None:
        self.program: Program | None = None
        self.calls: int = 0
        self.calls_of_pytorch: int = 0
        self.reason: str = ""
        self._graph, self._options, self._backends = graph, options, list(backends)
        self._refused = ""  # why no program can compute the graph
        self._inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self._kinds: _Kinds | None = None  # known at the first call
        self._state: set[int] = set()  # positions of buffers that the graph changes
        self._kept: OrderedDict[tuple[Any, ...], _Kept] = OrderedDict()
        self._seen: set[tuple[Any, ...]] = set()
        self._lock = threading.RLock()
        try:
            for node in graph.graph.nodes:
                _check_kind(node)
            modes = [node.args[0] for node in graph.graph.nodes if node.target is torch._C._set_grad_enabled]
            if modes and modes[0]:
                raise UnsupportedError("the graph enables gradients, and programs are for inference")
            self._results = _Results.of(graph)
        except UnsupportedError as error:
            self._refused = str(error)
        _graphs.append(weakref.ref(self, _graphs.remove))

    @property
    def missing(self) -> list[Missing]:
        """Operators that PyTorch computes within the program, with the reasons."""
        return [] if self.program is None else self.program.missing

    def __repr__(self) -> str:
        operators = sum(node.op.startswith("call_") for node in self._graph.graph.nodes)
        where = f", {self.calls_of_pytorch} of them in PyTorch: {self.reason}" if self.calls_of_pytorch else ""
        return f"<CompiledGraph of {operators} operators, {self.calls} calls{where}>"

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        reason = self._refused or self._unfit(args)
        if not reason:
            try:
                return self._computed(args)
            except (UnsupportedError, InvalidArgumentError) as error:
                reason = str(error).removeprefix(f"{_WHAT}: ")
        if self._options.strict:
            raise UnsupportedError(f"{_WHAT}: {reason}")
        self.reason = reason
        self.calls_of_pytorch += 1
        return self._graph(*args)

    def _unfit(self, args: Sequence[Any]) -> str:
        """Why no program computes this call, or ""."""
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            if not self._options.strict:
                warnings.warn(f"{_WHAT}: PyTorch computes this: {_GRADIENTS}", PerformanceWarning, stacklevel=3)
            return _GRADIENTS
        if torch.is_autocast_enabled("cpu"):
            return "the call converts to a narrower dtype (autocast)"
        if torch.autograd.forward_ad._current_level >= 0:
            return "the call computes gradients in forward mode"
        for x in tensors:
            if x.device.type != "cpu" or x.layout != torch.strided:
                return f"an argument is {x.layout} on {x.device}"
        return ""

    def _computed(self, args: Sequence[Any]) -> tuple[Any, ...]:
        with self._lock:
            program, given = self._program(args)
        if program is None:
            values: Sequence[Any] = ()
        else:
            if program._changes and _share_memory(args):
                raise UnsupportedError("the graph changes an argument that shares its memory with another")
            values = program(*given)
        return self._results.made(values, args)

    # ---------------------------------------------------------------------------------------------------- the programs

    def _program(self, args: Sequence[Any]) -> tuple[Program | None, list[Any]]:
        """The program for these weights and numbers, and its arguments."""
        kinds = self._kinds
        if kinds is None:
            kinds = self._kinds = _Kinds.of(self._inputs, args, self._state)
        numbers = {i: args[i].item() if isinstance(args[i], torch.Tensor) else args[i] for i in kinds.numbers}
        weights = [args[i] for i in kinds.weights]
        constants = tuple((i, repr(number)) for i, number in numbers.items())  # 0.0 and -0.0 differ, NaN equals NaN
        key = (*map(id, weights), *constants)
        found = self._kept.get(key)
        if found is None or not found.is_for(weights):
            self._check_numbers(constants)
            self._drop_dead()
            try:
                found = _Kept.of(weights, self._built(kinds, args, numbers))
            except StateChange as change:
                positions = {path: i for i, path in kinds.weights.items()}
                if not positions.keys() >= {*change.names}:
                    raise
                self._state |= {positions[name] for name in change.names}
                self._kinds = None
                return self._program(args)
            self._kept[key] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        self.program = found.program
        return found.program, [args[i] for i in kinds.tensors]

    def _drop_dead(self) -> None:
        """Drops the programs of models that are gone, with their memory."""
        for key in [key for key, kept in self._kept.items() if any(weight() is None for weight in kept.weights)]:
            del self._kept[key]

    def _check_numbers(self, numbers: tuple[Any, ...]) -> None:
        self._seen.add(numbers)
        if len(self._seen) > _MOST_NUMBERS:
            self._refused = "the graph was called with many different numbers, and each of them needs a program"
            raise UnsupportedError(self._refused)

    def _built(self, kinds: _Kinds, args: Sequence[Any], numbers: Mapping[int, Any]) -> Program | None:
        given, dynamic = [], {}
        shared = _share_memory(args)  # torch.export refuses such arguments
        for i in kinds.tensors:
            name = str(self._inputs[i].target)
            given.append(args[i].clone() if shared else args[i])
            named = {
                axis: str(n) if str(n).isidentifier() else f"{name}_{axis}"
                for axis, n in enumerate(_value(self._inputs[i]).shape)
                if isinstance(n, torch.SymInt)
            }
            if named:
                dynamic[name] = named
        if not given and self._results.computed:
            raise UnsupportedError("the graph has no tensor among its arguments")
        if not given:
            return None
        module, options = self._bound(kinds, args, numbers), self._options
        with torch.inference_mode(False), torch.no_grad():
            return compile_graph(
                module, given, dynamic, self._backends, weights=options.weights, strict=options.strict,
                precision=options.precision, policy=options.policy,
            )  # fmt: skip

    def _bound(self, kinds: _Kinds, args: Sequence[Any], numbers: Mapping[int, Any]) -> fx.GraphModule:
        """The graph with its weights as attributes and its numbers as constants. It returns what is computed."""
        made, values, parts = fx.Graph(), dict[fx.Node, Any](), dict[str, Any]()
        for i, path in kinds.weights.items():
            parts[path] = args[i].detach()
            values[self._inputs[i]] = made.get_attr(path)
        for i in kinds.tensors:
            values[self._inputs[i]] = made.placeholder(self._inputs[i].target)
        values |= {self._inputs[i]: number for i, number in numbers.items()}
        for i, (source, axis) in kinds.sizes.items():
            values[self._inputs[i]] = made.call_method("size", (values[self._inputs[source]], axis))
        for node in self._graph.graph.nodes:
            if node in values or node.op == "output":
                continue
            if node.op in ("get_attr", "call_module"):
                parts[node.target] = functools.reduce(getattr, node.target.split("."), self._graph)
            read = values.get(node.args[0]) if node.op == "call_method" and node.target == "item" else None
            if read is None or isinstance(read, fx.Node):
                values[node] = made.node_copy(node, values.__getitem__)
            else:
                values[node] = read
        made.output(tuple(values[node] for node in self._results.computed))
        module = fx.GraphModule(parts, made)
        module.training = False  # the graph itself says what depends on the mode
        _keep_module_names(module)
        return module


def _keep_module_names(module: fx.GraphModule) -> None:
    """Makes a graph run node by node, so that ``torch.export`` copies the modules of its nodes."""
    signature, own = inspect.signature(module.forward), weakref.ref(module)  # no cycle keeps the weights alive

    def forward(*args: Any, **kwargs: Any) -> Any:
        graph = own()
        assert graph is not None
        return fx.Interpreter(graph).run(*signature.bind(*args, **kwargs).args)

    forward.__signature__ = signature  # type: ignore[attr-defined]
    module.forward = forward


@dataclass(frozen=True)
class _Kept:
    """A program, and the weights that it was built for with the address and the number of writes of each.

    program: None if the graph computes nothing
    """

    program: Program | None
    weights: list[weakref.ref[Any]]
    states: list[tuple[int, int]]

    @classmethod
    def of(cls, weights: Sequence[Any], program: Program | None) -> _Kept:
        return cls(program, [weakref.ref(x) for x in weights], [_state_of(x) for x in weights])

    def is_for(self, weights: Sequence[Any]) -> bool:
        """True if these are the weights, and nobody has written to them since."""
        same = all(kept() is x for kept, x in zip(self.weights, weights, strict=True))
        return same and self.states == [_state_of(x) for x in weights]


def _state_of(weight: torch.Tensor) -> tuple[int, int]:
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


@dataclass(frozen=True)
class _Kinds:
    """The arguments of a graph by kind and position.

    weights: with their names in the model
    tensors: arguments of the program
    sizes: with the argument and the axis that has the size
    numbers: other sizes, and numbers that PyTorch passes as tensors
    """

    weights: dict[int, str]
    tensors: list[int]
    sizes: dict[int, tuple[int, int]]
    numbers: list[int]

    @classmethod
    def of(cls, inputs: Sequence[fx.Node], args: Sequence[Any], state: set[int]) -> _Kinds:
        """state: positions of buffers that the graph changes, which are arguments of the program"""
        numbers = [i for i, node in enumerate(inputs) if _is_number(node)]
        weights = [i for i, x in enumerate(args) if _is_weight(x) and i not in state and i not in numbers]
        tensors = [i for i in range(len(args)) if i not in {*numbers, *weights}]
        if not tensors:
            tensors, weights = weights, []  # a program needs an argument
        symbols = {str(_value(inputs[i])): i for i in numbers if isinstance(_value(inputs[i]), torch.SymInt)}
        sizes: dict[int, tuple[int, int]] = {}
        for i in tensors:
            for axis, n in enumerate(_value(inputs[i]).shape):
                if str(n) in symbols:
                    sizes.setdefault(symbols[str(n)], (i, axis))
        paths: dict[int, str] = {}
        for i in weights:
            path = _path(inputs[i])
            if not path or any(
                f"{p}.".startswith(f"{path}.") or f"{path}.".startswith(f"{p}.") for p in paths.values()
            ):
                path = inputs[i].name
            paths[i] = path
        return cls(paths, tensors, sizes, [i for i in numbers if i not in sizes])


_graphs: list[weakref.ref[CompiledGraph]] = []


def compiled_graphs() -> list[CompiledGraph]:
    """The graphs that ``torch.compile`` gave to the backend ``ggml`` and still keeps, the oldest first."""
    return [graph for found in list(_graphs) if (graph := found()) is not None]


def _unlock() -> None:
    """In a forked child: another thread of the parent may have held a lock."""
    for graph in compiled_graphs():
        graph._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


# ---------------------------------------------------------------------------------------------------------- the graph


def _value(node: fx.Node) -> Any:
    """PyTorch's example of a node: a tensor without elements, a size, or a number."""
    return node.meta.get("example_value")


def _is_number(node: fx.Node) -> bool:
    """True for a size, and for a number that PyTorch passes as a tensor and reads with ``item``."""
    if not isinstance(_value(node), torch.Tensor):
        return True
    return bool(node.users) and all(user.op == "call_method" and user.target == "item" for user in node.users)


def _check_kind(node: fx.Node) -> None:
    """UnsupportedError: a tensor that no program has"""
    value = _value(node)
    if not isinstance(value, torch.Tensor) or _is_number(node):
        return
    if value.device.type != "cpu" or value.layout != torch.strided:
        raise UnsupportedError(f"the graph has a tensor of {value.layout} on {value.device}")
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        raise UnsupportedError("the graph transforms functions (torch.func)")
    if value.dtype == torch.float64:
        raise UnsupportedError("the graph computes in float64, and programs compute in float32")


def _is_weight(x: Any) -> bool:
    """True for parameters, and for buffers of modules, which PyTorch marks."""
    return isinstance(x, torch.nn.Parameter) or (
        isinstance(x, torch.Tensor) and getattr(x, "_dynamo_static_input_type", None) is not None
    )


def _path(node: fx.Node) -> str:
    """The name of a parameter or a buffer in its model, or ""."""
    source = getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", "")
    text = name() if callable(name) else str(name)
    return ".".join(re.findall(r"\._(?:modules|parameters|buffers)\['(\w+)'\]", text))


def _share_memory(args: Sequence[Any]) -> bool:
    memory = [x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor) and x.numel()]
    return len({*memory}) < len(memory)


@dataclass(frozen=True)
class _View:
    """A result that shares the memory of an argument, or of a computed value.

    base: position of the argument or of the value
    of_argument: True for an argument
    like, root: the result and its base, as PyTorch knows them
    """

    base: int
    of_argument: bool
    like: Any
    root: Any


@dataclass
class _Results:
    """The results of a graph: computed values, views, arguments, sizes and constants.

    computed: nodes that the program returns
    parts: one for each result: the position of a computed value, a view, or a function of the arguments
    symbols: positions of arguments by the size that they are
    """

    computed: list[fx.Node] = field(default_factory=list)
    parts: list[int | _View | Callable[[Sequence[Any]], Any]] = field(default_factory=list)
    symbols: dict[Any, int] = field(default_factory=dict)

    @classmethod
    def of(cls, module: fx.GraphModule) -> _Results:
        made, first, inputs = cls(), dict[int, fx.Node](), list[fx.Node]()
        for node in module.graph.nodes:
            value = _value(node)
            if node.op == "placeholder":
                inputs.append(node)
                if isinstance(value, torch.SymInt):
                    made.symbols[value.node.expr] = len(inputs) - 1
            if isinstance(value, torch.Tensor):
                first.setdefault(_memory(value), node)
        (output,) = [n for n in module.graph.nodes if n.op == "output"]
        results = list(output.args[0])
        shared = [
            _memory(_value(n)) for n in {*results} if isinstance(n, fx.Node) and isinstance(_value(n), torch.Tensor)
        ]
        for result in results:
            made._add(result, inputs, first, shared)
        return made

    def _add(self, result: Any, inputs: list[fx.Node], first: Mapping[int, fx.Node], shared: list[int]) -> None:
        if not isinstance(result, fx.Node):
            self.parts.append(lambda args: result)
        elif result in inputs:
            place = inputs.index(result)
            self.parts.append(lambda args: args[place])
        elif isinstance(value := _value(result), torch.SymInt):
            self._check_sizes([value])
            self.parts.append(lambda args: self._size(value, args))
        elif not isinstance(value, torch.Tensor):
            raise UnsupportedError(f"the graph returns a {type(value).__name__}")
        else:
            root = first[_memory(value)]
            if root not in inputs and shared.count(_memory(value)) == 1:
                self.parts.append(self._computed(result))
                return
            if _value(root).dtype != value.dtype:
                raise UnsupportedError("the graph returns a view with another dtype")
            for tensor in (value, _value(root)):
                self._check_sizes([*tensor.shape, *tensor.stride(), tensor.storage_offset()])
            place = inputs.index(root) if root in inputs else self._computed(root)
            self.parts.append(_View(place, root in inputs, value, _value(root)))

    def _computed(self, node: fx.Node) -> int:
        if node not in self.computed:
            self.computed.append(node)
        return self.computed.index(node)

    def made(self, values: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
        """The results from the computed values and the arguments."""
        bases: dict[int, Any] = {}
        found = []
        for part in self.parts:
            if isinstance(part, int):
                found.append(values[part])
            elif not isinstance(part, _View):
                found.append(part(args))
            else:
                if not part.of_argument and part.base not in bases:
                    bases[part.base] = self._strided(values[part.base], part.root, args)
                base = args[part.base] if part.of_argument else bases[part.base]
                found.append(self._viewed(base, part, args))
        return tuple(found)

    def _strided(self, value: torch.Tensor, like: Any, args: Sequence[Any]) -> torch.Tensor:
        """The value with the strides that PyTorch gives it."""
        strides = [self._size(n, args) for n in like.stride()]
        if list(value.stride()) == strides:
            return value
        return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)

    def _viewed(self, base: torch.Tensor, part: _View, args: Sequence[Any]) -> torch.Tensor:
        moved = self._size(part.like.storage_offset(), args) - self._size(part.root.storage_offset(), args)
        sizes = [self._size(n, args) for n in part.like.shape]
        strides = [self._size(n, args) for n in part.like.stride()]
        return base.detach().as_strided(sizes, strides, base.storage_offset() + moved)

    def _check_sizes(self, sizes: Sequence[Any]) -> None:
        """UnsupportedError before a call changes its arguments: a size depends on values."""
        known = {symbol for size in self.symbols for symbol in size.free_symbols}
        for n in sizes:
            if isinstance(n, torch.SymInt) and not n.node.expr.free_symbols <= known:
                raise UnsupportedError(f"the graph returns a value of the size {n}, which no argument has")

    def _size(self, n: Any, args: Sequence[Any]) -> int:
        if not isinstance(n, torch.SymInt):
            return int(n)
        expression = n.node.expr
        known = {symbol: args[i] for symbol, i in self.symbols.items()}
        return int(expression.xreplace(known))


def _memory(value: Any) -> int:
    """Equal for tensors that share their memory."""
    key: int = value.untyped_storage()._cdata
    return key
