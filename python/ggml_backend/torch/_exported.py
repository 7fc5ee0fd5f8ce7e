"""Models of PyTorch as networks: the reader of :func:`ggml_backend.torch.compile`.

``torch.export`` gives a graph of ATen operators. Operators with a rule stay, and the others are decomposed into the
core of ATen. Nodes that depend on weights alone are computed here, once.

Axes that may vary have names. PyTorch then exports a graph for all sizes, with the conditions (guards) that it has
assumed. If such a graph cannot be expressed as a network, :func:`export` gives one for fixed sizes.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import InvalidArgumentError, UnsupportedError
from ..program.constants import MAKERS
from ..program.network import DTYPES, MOST_ELEMENTS, Argument, Condition, Network, Node, Ref, Value
from ..program.program import Fallback
from ..program.rules import RULES
from ..program.runs import Variant
from ..program.sizes import Formula, Size, identifier, largest, name_of, names_in, parsed, smallest
from ._fused import FUSED, operator_of

__all__ = ["Exported", "StateChange", "array_of", "export", "flattened", "operator_name"]

Array = np.ndarray[Any, Any]

_SHAPE_ONLY = {
    "full_like", "zeros_like", "ones_like", "new_zeros", "new_ones", "new_full", "empty_like", "new_empty",
}  # fmt: skip
"""Operators that read the shape of a value and not its elements."""

_IGNORED = (torch.layout, torch.device, torch.memory_format)


@dataclass(frozen=True)
class Exported(Variant):
    """A network, and what its nodes are in PyTorch. Inputs and results are those of the flattened call.

    structure: of the result
    targets: the operators of nodes by name
    strict: refuse nodes without a rule
    changed: positions of the arguments that the model changes. The first results are their new values.
    buffers: names of the buffers that the model changes, by the value of the network that is their state
    initial: their values, by the same names
    """

    structure: Any
    targets: dict[str, Any] = field(repr=False)
    strict: bool = False
    changed: tuple[int, ...] = ()
    buffers: Mapping[str, str] = field(default_factory=dict)
    initial: Mapping[str, Array] = field(default_factory=dict, repr=False)

    @property
    def fallback(self) -> Fallback | None:
        return None if self.strict else self.compute

    def compute(self, node: Node, arrays: Mapping[str, Array]) -> tuple[Array, ...]:
        """Computes a node of the model, or of a fusion, in PyTorch."""

        def given(argument: Any) -> Any:
            if isinstance(argument, Ref):
                tensor = torch.from_numpy(np.require(arrays[argument.name], requirements=["C", "W"]))
                value = self.network.values.get(argument.name)  # None: fusions have made it, as an array of its dtype
                return tensor if value is None else tensor.to(getattr(torch, value.dtype))
            if isinstance(argument, list):
                return [given(item) for item in argument]
            return argument

        named = {name: given(value) for name, value in node.arguments.items()}
        if node.op in FUSED:
            with torch.no_grad():
                return (array_of(FUSED[node.op](**named)),)
        target = self.targets.get(node.op) or operator_of(node.op)
        for parameter in target._schema.arguments:
            if isinstance(named.get(parameter.name), str) and "ScalarType" in str(parameter.real_type):
                named[parameter.name] = getattr(torch, named[parameter.name])
        positional = [p.name for p in target._schema.arguments if not p.kwarg_only]
        last = max((i for i, name in enumerate(positional) if name in named), default=-1)
        defaults = {p.name: p.default_value for p in target._schema.arguments}
        with torch.no_grad():
            made = target(
                *(named.get(name, defaults[name]) for name in positional[: last + 1]),
                **{name: value for name, value in named.items() if name not in positional},
            )
        results = made if isinstance(made, (tuple, list)) else (made,)
        return tuple(array_of(t) for t in results)


def array_of(tensor: torch.Tensor) -> Array:
    """The elements of a tensor. NumPy has no bfloat16, so these become float32."""
    tensor = tensor.detach()
    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy()
    return array


def operator_name(target: Any) -> str:
    """``relu`` of ``aten.relu.default``, ``add.Tensor`` of ``aten.add.Tensor``, and other libraries with their name."""
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__name__", str(target))
    library, name = target._schema.name.split("::")
    full = name if library == "aten" else f"{library}.{name}"
    return f"{full}.{target._schema.overload_name}" if target._schema.overload_name else full


def _is_random(node: Any) -> bool:
    """True if the node draws random numbers. Operators with a rule, such as attention, do so for dropout only."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    given = dict(zip((p.name for p in node.target._schema.arguments), node.args, strict=False)) | node.kwargs
    return operator_name(node.target) not in RULES or bool(given.get("dropout_p"))


def _module_name(path: str) -> str:
    """The name of a module. Dynamo writes ``L['self'].encoder._modules['0']`` for ``encoder.0``."""
    plain = re.sub(r"\.?_modules\[['\"]([^'\"]+)['\"]\]", r".\1", path)
    return re.sub(r"^[LG]\[['\"]\w+['\"]\]", "", plain).strip(".")


class StateChange(UnsupportedError):
    """The model changes values that a program does not keep.

    names: of its buffers, or of its arguments if it may not change them
    """

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names: list[str] = list(names)


Axes = Sequence[Mapping[int, str]]
"""Names of the axes that may vary, for each leaf of the arguments."""


def export(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    what: str,
    axes: Axes = (),
    changing: bool = False,
) -> Exported:
    """Exports a model for the sizes of these inputs, and for others if axes have names.

    what: the called function, for messages
    changing: the model may change its arguments. StateChange: it changes its buffers
    """
    if model.training:
        raise InvalidArgumentError(f"{what}: the model is in training mode; call model.eval() first")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu" or tensor.dtype in (torch.float16, torch.bfloat16, torch.float64):
            raise InvalidArgumentError(
                f"{what}: {name} is {tensor.dtype} on {tensor.device}; the weights of a model must be float32 on the"
                " CPU: model.float().cpu()"
            )
    if any(axes):
        try:
            return named(model, args, kwargs, what, axes, changing)
        except StateChange:
            raise
        except UnsupportedError:  # each size is exported when it is used
            pass
    return _exported(model, args, kwargs, what, changing=changing)


def named(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str, axes: Axes, changing: bool = False
) -> Exported:  # fmt: skip
    """Exports a model for axes that may vary. UnsupportedError: no network holds its graph for all sizes."""
    leaves, structure = flattened(args, kwargs)
    shapes = torch.export.ShapesCollection()
    sizes: dict[str, int] = {}
    for i, (leaf, named_axes) in enumerate(zip(leaves, axes, strict=True)):
        if not named_axes:
            continue
        shape = [
            sizes.setdefault(named_axes[axis], n if n > 1 else _EXAMPLE) if axis in named_axes else n
            for axis, n in enumerate(leaf.shape)
        ]
        leaves[i] = leaf.new_zeros(shape) if shape != [*leaf.shape] else leaf.view_as(leaf)
        shapes[leaves[i]] = dict.fromkeys(named_axes, torch.export.Dim.DYNAMIC)
    positional, by_name = pytree.tree_unflatten(leaves, structure)
    return _exported(model, positional, by_name, what, shapes, axes, changing)


def _exported(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    what: str,
    shapes: Any = None,
    axes: Axes = (),
    changing: bool = False,
) -> Exported:
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PyTorch about its own code
            dynamic = None if shapes is None else shapes.dynamic_shapes(model, args, dict(kwargs))
            program = torch.export.export(model, args, dict(kwargs), strict=False, dynamic_shapes=dynamic)
            guards = getattr(program, "_guards_code", None)
            table = torch.export.default_decompositions()
            for target in [t for t in table if operator_name(t) in RULES]:
                table.pop(target)
            program = program.run_decompositions(table)
            return _Reader(program, what, axes, guards, changing).read()
    except (UnsupportedError, InvalidArgumentError):
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            f"{what}: PyTorch cannot export this model: {type(error).__name__}: {reason[:300]}"
        ) from error


class _Reader:
    def __init__(
        self, program: Any, what: str, axes: Axes = (), guards: list[str] | None = None, changing: bool = False
    ) -> None:
        self.program, self.what, self.axes, self.guards, self.changing = program, what, axes, guards, changing
        self.changed: list[int] = []
        self.buffers: dict[str, str] = {}
        self.initial: dict[str, Array] = {}
        self.labels: dict[str, Formula] = {}  # named sizes by the symbols of PyTorch
        self.network = Network()
        self.constants: dict[Any, Any] = {}  # tensors, numbers, tuples of these, by node of fx
        self.names: dict[Any, str] = {}  # values by node of fx
        self.targets: dict[str, Any] = {}
        self.parameters: dict[Any, str] = {}  # names by memory
        self.storages: dict[int, str] = {}

    def read(self) -> Exported:
        program = self.program
        leaves: list[str | None] = []
        specs = program.graph_signature.input_specs
        mutated = {*program.graph_signature.buffers_to_mutate.values()}
        for spec, node in zip(specs, [n for n in program.graph.nodes if n.op == "placeholder"], strict=True):
            kind = spec.kind.name
            if kind == "USER_INPUT":
                named_axes = self.axes[len(leaves)] if self.axes else {}
                leaves.append(self._input(spec, node, named_axes))
            elif kind == "BUFFER" and not self.changing and spec.target in mutated:
                self._state(node, spec.target)
            elif kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
                self.constants[node] = self._weight(spec.target)
            else:
                raise UnsupportedError(f"{self.what}: the model has an input of kind {kind}")
        if self.changing:
            self._check_random_numbers()
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr":
                raise UnsupportedError(f"{self.what}: the model contains control flow ({node.target})")
        outputs = self._outputs()
        self._conditions()
        self.network.drop_unread()
        self.network.check()
        return Exported(
            self.network, leaves, outputs, program.call_spec.out_spec, self.targets, changed=tuple(self.changed),
            buffers=self.buffers, initial=self.initial,
        )  # fmt: skip

    def _check_random_numbers(self) -> None:
        """UnsupportedError: the graph may run its nodes in another order, and so draw other numbers."""
        drawn = [n for n in self.program.graph.nodes if _is_random(n)]
        if len(drawn) > 1:
            raise UnsupportedError(f"{self.what}: the graph draws random numbers several times")

    def _input(self, spec: Any, node: Any, named_axes: Mapping[int, str]) -> str | None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            self.constants[node] = getattr(spec.arg, "value", None)
            return None
        for axis, label in named_axes.items():
            if isinstance(value.shape[axis], int):
                raise UnsupportedError(f"{self.what}: the model fixes the size of axis {axis} of {node.name}")
            self.labels[str(value.shape[axis].node.expr)] = name_of(identifier(label))
        self.network.inputs.append(node.name)
        self._value(node.name, value)
        self.names[node] = node.name
        return str(node.name)

    def _state(self, node: Any, name: str) -> None:
        """A buffer that the model changes."""
        program = self.program
        tensor = program.state_dict[name] if name in program.state_dict else program.constants[name]
        self.network.inputs.append(node.name)
        self._value(node.name, tensor)
        self.names[node] = node.name
        self.buffers[node.name] = name
        self.initial[node.name] = array_of(tensor).copy()

    def _weight(self, name: str) -> Any:
        program = self.program
        tensor = program.state_dict[name] if name in program.state_dict else program.constants[name]
        tensor = tensor.detach()
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        self.parameters.setdefault(key, name)
        self.storages.setdefault(tensor.untyped_storage().data_ptr(), name)
        return tensor

    def _value(self, name: str, tensor: Any) -> None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise UnsupportedError(f"{self.what}: {name} is {dtype}, which programs do not have")
        shape: Any = tuple(self._size(n, name) for n in tensor.shape)
        self.network.values[name] = Value(shape, dtype)

    def _size(self, n: Any, name: str) -> Size:
        """Converts a size of PyTorch. Its symbols become named sizes."""
        if isinstance(n, int):
            return int(n)
        try:
            return _formula(n.node.expr, self.labels)
        except KeyError:
            raise UnsupportedError(
                f"{self.what}: the size of {name} depends on the values of the inputs"
            ) from None  # fmt: skip

    def _conditions(self) -> None:
        """Adds the limits of named sizes, and the guards of PyTorch as conditions."""
        if not self.labels:
            return
        for symbol, limits in self.program.range_constraints.items():
            label = self.labels.get(str(symbol))
            if label is not None:
                low, high = (int(n) if n.is_Integer else MOST_ELEMENTS for n in (limits.lower, limits.upper))
                before = self.network.sizes.get(str(label), (low, high))
                self.network.sizes[str(label)] = max(before[0], low), min(before[1], high)
        if self.guards is None or len(self.network.sizes) != len({*self.labels.values()}):
            raise UnsupportedError(f"{self.what}: this version of PyTorch does not tell what it assumes about sizes")
        inputs = {f"L[{name!r}]": name for name in self.network.inputs}
        for guard in self.guards:
            condition = _condition(guard, inputs, self.network)
            if condition is not None:
                self.network.conditions.append(condition)

    def _call(self, node: Any) -> None:
        if node.target is operator.getitem:
            source, i = node.args
            if source in self.constants:
                self.constants[node] = self.constants[source][i]
            else:
                self.names[node] = f"{self.names[source]}.{i}"
            return
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            self.constants[node] = self._size(value, node.name)
            return
        inputs = node.all_input_nodes
        tags = getattr(node.target, "tags", ())
        name = operator_name(node.target)
        if self._depends_on_sizes(node):
            self._make(node, name, value)
            return
        if name in _SHAPE_ONLY or (
            all(n in self.constants for n in inputs) and torch.Tag.nondeterministic_seeded not in tags
        ):
            self.constants[node] = node.target(
                *torch.fx.map_arg(node.args, self._computed), **torch.fx.map_arg(node.kwargs, self._computed)
            )
            return
        if value is None or (isinstance(value, (tuple, list)) and not value):
            return  # an assertion
        self._add(node, name, value)

    def _depends_on_sizes(self, node: Any) -> bool:
        """True if the node reads named sizes, and the elements of no value."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return False
        known = [self.constants.get(n) for n in node.all_input_nodes]
        if operator_name(node.target) in _SHAPE_ONLY:
            return any(isinstance(n, torch.SymInt) for n in value.shape)
        return all(n in self.constants for n in node.all_input_nodes) and any(isinstance(n, Formula) for n in known)

    def _make(self, node: Any, name: str, value: Any) -> None:
        """Adds a node that computes a value from sizes alone: one of MAKERS, or an operator with a rule."""
        kind = name.partition(".")[0].removesuffix("_like").removeprefix("new_")
        fill = {"zeros": 0, "ones": 1, "empty": 0}.get(kind)
        if kind == "full":
            fill = node.args[1]
        elif kind == "scalar_tensor":
            fill = node.args[0]
        if fill is None:
            if name not in MAKERS and name not in RULES:
                raise UnsupportedError(f"{self.what}: {name} depends on sizes")
            self._add(node, name, value)
            return
        self._value(node.name, value)
        made: dict[str, Argument] = {"fill_value": self._argument(fill)}
        self.network.nodes.append(Node("full", made, (node.name,), ""))
        self.names[node] = node.name

    def _computed(self, node: Any) -> Any:
        """The constant of a node, or an empty tensor of the shape of its value."""
        if node in self.constants:
            return self.constants[node]
        value = node.meta["val"]
        return torch.empty(value.shape, dtype=value.dtype)

    def _add(self, node: Any, name: str, value: Any) -> None:
        schema = getattr(node.target, "_schema", None)
        if schema is None or isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise UnsupportedError(f"{self.what}: the model calls {name}, which is no operator of ATen")
        if name == "as_strided" and not node.args[0].meta["val"].is_contiguous():
            raise UnsupportedError(f"{self.what}: as_strided reads the memory of a value that is not contiguous")
        given = dict(zip((p.name for p in schema.arguments), node.args, strict=False)) | node.kwargs
        arguments: dict[str, Argument] = {}
        for parameter in schema.arguments:
            argument = given.get(parameter.name, parameter.default_value)
            if argument is None or isinstance(argument, _IGNORED) or parameter.name == "pin_memory":
                continue
            if parameter.name in given and (
                isinstance(argument, (torch.fx.Node, list, tuple)) or argument != parameter.default_value
            ):
                arguments[parameter.name] = self._argument(argument)
        results = [value] if isinstance(value, torch.Tensor) else list(value)
        self.names[node] = node.name
        names = (
            [str(node.name)] if isinstance(value, torch.Tensor) else [f"{node.name}.{i}" for i in range(len(results))]
        )
        for one, result in zip(names, results, strict=True):
            if not isinstance(result, torch.Tensor):
                raise UnsupportedError(f"{self.what}: {name} gives a {type(result).__name__}, not a tensor")
            self._value(one, result)
        stack = node.meta.get("nn_module_stack") or {}
        paths = [entry[0] for entry in stack.values()]
        module = _module_name(paths[-1]) if paths else ""
        self.network.nodes.append(Node(name, arguments, tuple(names), module))
        self.targets[name] = node.target

    def _argument(self, argument: Any) -> Argument:
        if isinstance(argument, torch.fx.Node):
            if argument in self.names:
                return Ref(self.names[argument])
            constant = self.constants[argument]
            return self._array(argument.name, constant) if isinstance(constant, torch.Tensor) else constant
        if isinstance(argument, (list, tuple)):
            return [self._argument(item) for item in argument]
        if isinstance(argument, torch.dtype):
            return str(argument).removeprefix("torch.")
        if argument is None or isinstance(argument, (bool, int, float, str, Formula)):
            return argument
        raise UnsupportedError(f"{self.what}: an operator has an argument of type {type(argument).__name__}")

    def _array(self, name: str, tensor: Any) -> Ref:
        """A weight or constant as an array."""
        tensor = tensor.detach()
        found = self.parameters.get((tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype))
        base = self.storages.get(tensor.untyped_storage().data_ptr())
        name = found or (name if base is None else f"{base} as {name}")
        if name not in self.network.arrays:
            if tensor.dtype == torch.bfloat16:
                raise UnsupportedError(f"{self.what}: {name} is {tensor.dtype}, which programs do not have")
            self._value(name, tensor)
            self.network.arrays[name] = tensor.numpy()
            if base is not None:
                self.network.weights.add(name)
        return Ref(name)

    def _check_changes(self) -> None:
        """Finds the arguments that the model changes. StateChange: it may change none, or changes its buffers."""
        signature = self.program.graph_signature
        inputs = [s.arg.name for s in signature.input_specs if s.kind.name == "USER_INPUT"]
        others = []
        for spec in signature.output_specs:
            if not self.changing and spec.kind.name == "BUFFER_MUTATION":
                continue
            if self.changing and spec.kind.name == "USER_INPUT_MUTATION":
                self.changed.append(inputs.index(spec.target))
            elif spec.kind.name != "USER_OUTPUT":
                others.append(str(spec.target))
        if others:
            raise StateChange(
                f"{self.what}: the model changes its state ({others[0]}), which programs do not keep", others
            )

    def _outputs(self) -> list[tuple[str | None, Any]]:
        outputs: list[tuple[str | None, Any]] = []
        (node,) = [n for n in self.program.graph.nodes if n.op == "output"]
        self._check_changes()
        states = {buffer: state for state, buffer in self.buffers.items()}
        for source, spec in zip(node.args[0], self.program.graph_signature.output_specs, strict=True):
            if spec.kind.name == "BUFFER_MUTATION" and not self.changing:
                self.network.states[states[spec.target]] = self._output(source)
                continue
            if not isinstance(source, torch.fx.Node):
                outputs.append((None, source))
                continue
            constant = self.constants.get(source)
            if source in self.constants and not isinstance(constant, torch.Tensor):
                if isinstance(constant, Formula):
                    raise UnsupportedError(f"{self.what}: the model returns a size")
                outputs.append((None, constant))
                continue
            outputs.append((self._output(source), None))
        return outputs

    def _output(self, source: Any) -> str:
        """Adds the value of a node to the outputs."""
        name = self.names[source] if source in self.names else self._array(source.name, self.constants[source]).name
        self.network.outputs.append(name)
        return name


_EXAMPLE = 4  # of a size that is 1 or 0 in the example inputs
_FUNCTIONS = {"FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv, "PythonMod": operator.mod,
              "Mod": operator.mod}  # fmt: skip


def _formula(expression: Any, labels: Mapping[str, Formula]) -> Size:
    """The size of an expression of SymPy. KeyError: an unknown symbol. UnsupportedError: an unknown function."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return labels[str(expression)]
    parts: list[Size] = [_formula(part, labels) for part in expression.args]
    function = type(expression).__name__
    if function in ("Max", "Min"):
        total = parts[0]
        for part in parts[1:]:
            total = (largest if function == "Max" else smallest)(total, part)
        return total
    if function in ("Add", "Mul"):
        total = parts[0]
        for part in parts[1:]:
            total = total + part if function == "Add" else total * part
        return total
    if function == "Pow" and isinstance(parts[1], int) and 0 < parts[1] < 9:
        total = parts[0]
        for _ in range(parts[1] - 1):
            total = total * parts[0]
        return total
    if function in _FUNCTIONS:
        made: Size = _FUNCTIONS[function](*parts)
        return made
    raise UnsupportedError(f"sizes depend on {function}")


def _condition(guard: str, inputs: Mapping[str, str], network: Network) -> Condition | None:
    """A guard of PyTorch as a condition, or None if it always holds.

    UnsupportedError: the guard reads more than sizes of inputs
    """

    def size(found: re.Match[str]) -> str:
        name, axis = inputs.get(found[1]), int(found[2])
        if name is None or axis >= len(network.values[name].sizes):
            raise UnsupportedError(f"the guard {guard}")
        return f"({network.values[name].sizes[axis]})"

    text = re.sub(r"(L\['\w+'\])\.size\(\)\[(\d+)\]", size, guard)
    sides = re.split(r"(==|!=|<=|>=|<|>)", text)
    try:
        left, compared, right = sides
        p, q = parsed(left), parsed(right)
    except (ValueError, ArithmeticError):
        raise UnsupportedError(f"the guard {guard}") from None
    if p == q and compared in ("==", "<=", ">="):
        return None
    if not (names_in(p) | names_in(q)) <= {*network.sizes}:
        raise UnsupportedError(f"the guard {guard}")
    return p, compared, q


def flattened(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """The leaves of arguments, and their structure."""
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    return leaves, structure
