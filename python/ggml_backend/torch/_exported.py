"""Models of PyTorch as networks: the reader of :func:`ggml_backend.torch.compile`.

``torch.export`` gives a graph of ATen operators. Operators with a rule stay, and the others are decomposed into the
core of ATen. Nodes that depend on weights alone are computed here, once.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import InvalidArgumentError, UnsupportedError
from ..program import RULES, Network, Node, Ref, Value
from ..program.network import DTYPES, Argument

__all__ = ["Exported", "array_of", "export", "operator_name"]

Array = np.ndarray[Any, Any]

_SHAPE_ONLY = {
    "full_like", "zeros_like", "ones_like", "new_zeros", "new_ones", "new_full", "empty_like", "new_empty",
}  # fmt: skip
"""Operators that read the shape of a value and not its elements."""

_IGNORED = (torch.layout, torch.device, torch.memory_format)


@dataclass(frozen=True)
class Exported:
    """A network, and what its nodes are in PyTorch.

    leaves: the inputs as they stand in the flattened arguments: the name of a value, or None for a constant
    outputs: the flattened result: the name of a value, or a constant
    structure: of the result
    targets: the operators of nodes, by their first result
    """

    network: Network
    leaves: list[str | None]
    outputs: list[tuple[str | None, Any]]
    structure: Any
    targets: dict[str, Any]

    def compute(self, node: Node, arrays: Mapping[str, Array]) -> tuple[Array, ...]:
        """Computes a node in PyTorch."""

        def given(argument: Any) -> Any:
            if isinstance(argument, Ref):
                tensor = torch.from_numpy(np.require(arrays[argument.name], requirements=["C", "W"]))
                return tensor.to(getattr(torch, self.network.values[argument.name].dtype))
            if isinstance(argument, list):
                return [given(item) for item in argument]
            return argument

        target = self.targets[node.results[0]]
        named = {name: given(value) for name, value in node.arguments.items()}
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


def export(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> Exported:
    """Exports a model for the sizes of these inputs. what: the called function, for messages"""
    if model.training:
        raise InvalidArgumentError(f"{what}: the model is in training mode; call model.eval() first")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu" or tensor.dtype in (torch.float16, torch.bfloat16, torch.float64):
            raise InvalidArgumentError(
                f"{what}: {name} is {tensor.dtype} on {tensor.device}; the weights of a model must be float32 on the"
                " CPU: model.float().cpu()"
            )
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PyTorch about its own code
            program = torch.export.export(model, args, dict(kwargs), strict=False)
            table = torch.export.default_decompositions()
            for target in [t for t in table if operator_name(t) in RULES]:
                table.pop(target)
            program = program.run_decompositions(table)
            return _Reader(program, what).read()
    except (UnsupportedError, InvalidArgumentError):
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            f"{what}: PyTorch cannot export this model: {type(error).__name__}: {reason[:300]}"
        ) from error


class _Reader:
    def __init__(self, program: Any, what: str) -> None:
        self.program, self.what = program, what
        self.network = Network()
        self.constants: dict[Any, Any] = {}  # tensors, numbers, tuples of these, by node of fx
        self.names: dict[Any, str] = {}  # values by node of fx
        self.targets: dict[str, Any] = {}
        self.parameters: dict[Any, str] = {}  # names by memory
        self.storages: dict[int, str] = {}

    def read(self) -> Exported:
        program = self.program
        leaves, specs = [], program.graph_signature.input_specs
        for spec, node in zip(specs, [n for n in program.graph.nodes if n.op == "placeholder"], strict=True):
            kind = spec.kind.name
            if kind == "USER_INPUT":
                leaves.append(self._input(spec, node))
            elif kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
                self.constants[node] = self._weight(spec.target)
            else:
                raise UnsupportedError(f"{self.what}: the model has an input of kind {kind}")
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr":
                raise UnsupportedError(f"{self.what}: the model contains control flow ({node.target})")
        outputs = self._outputs()
        _drop_unread(self.network)
        self.network.check()
        return Exported(self.network, leaves, outputs, program.call_spec.out_spec, self.targets)

    def _input(self, spec: Any, node: Any) -> str | None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            self.constants[node] = getattr(spec.arg, "value", None)
            return None
        self.network.inputs.append(node.name)
        self._value(node.name, value)
        self.names[node] = node.name
        return str(node.name)

    def _weight(self, name: str) -> Any:
        program = self.program
        tensor = program.state_dict[name] if name in program.state_dict else program.constants[name]
        tensor = tensor.detach()
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        self.parameters.setdefault(key, name)
        self.storages.setdefault(tensor.untyped_storage().data_ptr(), name)
        return tensor

    def _value(self, name: str, tensor: Any) -> None:
        if not all(isinstance(n, int) for n in tensor.shape):
            raise UnsupportedError(f"{self.what}: the size of {name} depends on the values of the inputs")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise UnsupportedError(f"{self.what}: {name} is {dtype}, which programs do not have")
        self.network.values[name] = Value(tuple(int(n) for n in tensor.shape), dtype)

    def _call(self, node: Any) -> None:
        if node.target is operator.getitem:
            source, i = node.args
            if source in self.constants:
                self.constants[node] = self.constants[source][i]
            else:
                self.names[node] = f"{self.names[source]}.{i}"
            return
        inputs = node.all_input_nodes
        tags = getattr(node.target, "tags", ())
        name = operator_name(node.target)
        if name in _SHAPE_ONLY or (
            all(n in self.constants for n in inputs) and torch.Tag.nondeterministic_seeded not in tags
        ):
            self.constants[node] = node.target(
                *torch.fx.map_arg(node.args, self._computed), **torch.fx.map_arg(node.kwargs, self._computed)
            )
            return
        value = node.meta.get("val")
        if value is None or (isinstance(value, (tuple, list)) and not value):
            return  # an assertion
        self._add(node, name, value)

    def _computed(self, node: Any) -> Any:
        """A constant, or a tensor with the shape of a value."""
        if node in self.constants:
            return self.constants[node]
        value = node.meta["val"]
        return torch.empty(value.shape, dtype=value.dtype)

    def _add(self, node: Any, name: str, value: Any) -> None:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
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
        module = paths[-1] if paths else ""
        self.network.nodes.append(Node(name, arguments, tuple(names), module))
        self.targets[names[0]] = node.target

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
        if argument is None or isinstance(argument, (bool, int, float, str)):
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

    def _outputs(self) -> list[tuple[str | None, Any]]:
        outputs: list[tuple[str | None, Any]] = []
        (node,) = [n for n in self.program.graph.nodes if n.op == "output"]
        for spec, source in zip(self.program.graph_signature.output_specs, node.args[0], strict=True):
            if spec.kind.name != "USER_OUTPUT":
                raise UnsupportedError(
                    f"{self.what}: the model changes its state ({spec.target}), which programs do not keep"
                )
            if not isinstance(source, torch.fx.Node):
                outputs.append((None, source))
                continue
            constant = self.constants.get(source)
            if source in self.constants and not isinstance(constant, torch.Tensor):
                outputs.append((None, constant))
                continue
            name = self.names[source] if source in self.names else self._array(source.name, constant).name
            self.network.outputs.append(name)
            outputs.append((name, None))
        return outputs


def _drop_unread(network: Network) -> None:
    """Removes nodes whose results nothing reads, and values of theirs."""
    read, kept = {*network.outputs}, []
    for node in reversed(network.nodes):
        if read & {*node.results}:
            kept.append(node)
            read |= {*node.sources}
    network.nodes = kept[::-1]
    results = {name for node in network.nodes for name in node.results}
    network.arrays = {name: array for name, array in network.arrays.items() if name in read}
    network.weights &= {*network.arrays}
    known = {*network.inputs, *network.arrays, *results}
    network.values = {name: value for name, value in network.values.items() if name in known}


def flattened(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """The leaves of arguments, and their structure."""
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    return leaves, structure
