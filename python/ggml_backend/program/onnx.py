"""Models of ONNX as programs: :func:`load_onnx`.

The reader expresses the operators of ONNX in those of ATen (``program.onnx_operators``), and computes what depends on
constants and sizes alone. Axes with a name (``dim_param``) stay named. If the graph needs their numbers, it is read
again for each size. The reader needs the package ``onnx`` for the file format only.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._base.errors import expect_int, expect_path
from .._base.errors.messages import kind_of
from .._base.text import nearest
from ..backend import Backend
from ..backend._priority import backends_of
from ..dtypes import as_dtype
from ..errors import FileError, InvalidArgumentError, UnsupportedError
from .formats import Formats, check_formats, chosen_formats
from .network import DTYPES, MOST_ELEMENTS, Argument, Network, Node, Ref, Value
from .onnx_values import NUMBERED, Attributes, Given, Known, NeedsNumbers, in_float32, integers, numbers, settled
from .program import Engine
from .runs import Variant
from .saved import Declared, Input, Program
from .simplify import simplify
from .sizes import Size, identifier, name_of

__all__ = ["Reader", "load_onnx"]

_OLDEST, _NEWEST = 7, 21  # operator sets
_MOST_STEPS = 4096  # of all loops of a model; the graph has the nodes of every step
_WITH_GRAPHS = ("If", "Loop")


class Reader:
    """One graph while it is read.

    opset: the version of the operators
    values: the values of the graph that were read so far, by name
    random: draws the random numbers of the model, or None
    """

    def __init__(self, model: _Model) -> None:
        self.network: Network = Network()
        self.opset: int = model.opset
        self.values: dict[str, Given] = dict(model.arrays)
        self._tensors = model.tensors
        self._weights = {id(array): name for name, array in model.arrays.items()}
        self._stored: dict[int, Ref] = {}
        self._kept: list[Known] = []  # so that no other array gets the id
        self._module = ""
        self._steps = 0  # of loops
        self._left_out: dict[str, str] = {}  # operators by results that programs do not compute
        self.random: np.random.Generator | None = None if model.seed is None else np.random.default_rng(model.seed)

    # --------------------------------------------------------------------------------------------- for the operators

    def shape(self, given: Given) -> tuple[Size, ...]:
        assert given is not None
        return given.shape if isinstance(given, np.ndarray) else self.network.values[given.name].sizes

    def dtype(self, given: Given) -> str:
        assert given is not None
        if isinstance(given, np.ndarray):
            return "int64" if given.dtype == object else given.dtype.name
        return self.network.values[given.name].dtype

    def emit(self, op: str, arguments: Mapping[str, Any], shape: Sequence[Size], dtype: str) -> Ref:
        """A node with one result."""
        return self.emit_all(op, arguments, [shape], dtype)[0]

    def emit_all(
        self, op: str, arguments: Mapping[str, Any], shapes: Sequence[Sequence[Size]], dtype: str
    ) -> list[Ref]:
        named: dict[str, Argument] = {k: self._argument(v) for k, v in arguments.items() if v is not None}
        results = []
        for shape in shapes:
            results.append(self._fresh(op.partition(".")[0]))
            self._value(results[-1], shape, dtype)
        self.network.nodes.append(Node(op, named, tuple(results), self._module))
        return [Ref(name) for name in results]

    def stacked(self, parts: Sequence[Given]) -> Given:
        """The results of all steps of a loop or a recurrent layer, along a new axis."""
        shape = self.shape(parts[0])
        if any(self.shape(part) != shape for part in parts):
            raise UnsupportedError("Loop whose steps give results of several shapes")
        arrays = [part for part in parts if isinstance(part, np.ndarray)]
        if len(arrays) == len(parts):
            return np.stack(arrays)
        return self.emit("stack", {"tensors": list(parts), "dim": 0}, (len(parts), *shape), self.dtype(parts[0]))

    def _fresh(self, base: str) -> str:
        n, name = len(self.network.values), f"{base}_{len(self.network.values)}"
        while name in self.network.values:
            n += 1
            name = f"{base}_{n}"
        return name

    def _value(self, name: str, shape: Sequence[Size], dtype: str) -> None:
        sizes: Any = tuple(n if not isinstance(n, (int, np.integer)) else int(n) for n in shape)
        self.network.values[name] = Value(sizes, dtype)

    def _argument(self, given: Any) -> Argument:
        if isinstance(given, np.ndarray):
            return self.ref(given)
        if isinstance(given, np.generic):
            plain: Argument = given.item()
            return plain
        if isinstance(given, (list, tuple)):
            return [self._argument(item) for item in given]
        argument: Argument = given
        return argument

    def ref(self, given: Given) -> Ref:
        """A value of the network. A known array becomes a weight or a constant."""
        if isinstance(given, Ref):
            return given
        assert given is not None
        if given.dtype == object:
            return self._of_sizes(given)
        if id(given) not in self._stored:
            name = self._weights.get(id(given), "")
            if not name or name in self.network.values or not name.isprintable():
                name = self._fresh("constant")
            self._value(name, given.shape, given.dtype.name)
            self.network.arrays[name] = given
            if id(given) in self._weights and given.dtype == np.float32 and given.size > 1:
                self.network.weights.add(name)
            self._stored[id(given)] = Ref(name)
            self._kept.append(given)
        return self._stored[id(given)]

    def _of_sizes(self, array: Known) -> Ref:
        """Named sizes as a value."""
        parts = [
            self.emit("full", {"size": [1], "fill_value": n}, (1,), "int64") for n in array.reshape(-1)
        ]  # fmt: skip
        flat = parts[0] if len(parts) == 1 else self.emit("cat", {"tensors": parts}, (len(parts),), "int64")
        return self.emit("view", {"self": flat, "size": list(array.shape)}, array.shape, "int64")

    # ------------------------------------------------------------------------------------------------------- reading

    def add_input(self, name: str, shape: Sequence[Size], dtype: str) -> None:
        self._value(name, shape, dtype)
        self.network.inputs.append(name)
        self.values[name] = Ref(name)

    def run(self, graph: Any) -> None:
        """Reads the nodes of a graph, and of the branches that it takes."""
        for tensor in graph.initializer:
            if tensor.name not in self.values:
                self.values[tensor.name] = self._tensors.array(tensor)
        for node in graph.node:
            self._module = node.name if node.name.isprintable() else ""
            attributes = {a.name: _attribute(a, self._tensors) for a in node.attribute}
            inputs = [self._known(name) if name else None for name in node.input]
            results: Sequence[Given]
            if node.op_type == "If":
                results = self._branch(node, inputs[0], attributes)
            elif node.op_type == "Loop":
                results = self._loop(node, inputs, attributes)
            else:
                attributes["_outputs"] = len(node.output)
                results = self._results(node, inputs, attributes)
            self.values.update({name: r for name, r in zip(node.output, results, strict=False) if name})
            self._left_out |= dict.fromkeys(node.output[len(results) :], node.op_type)

    def _known(self, name: str) -> Given:
        if name not in self.values and name in self._left_out:
            raise UnsupportedError(f"the model reads {name!r}, a result of {self._left_out[name]} without a rule")
        if name not in self.values:
            raise FileError(f"the model is damaged: it reads {name!r} before it is computed")
        return self.values[name]

    def _results(self, node: Any, inputs: list[Given], attributes: Attributes) -> Sequence[Given]:
        from .onnx_operators import OPERATORS, folded

        try:
            made = folded(node.op_type, inputs, attributes)
            if made is None:
                made = OPERATORS[node.op_type](self, inputs, attributes)
        except (NeedsNumbers, UnsupportedError):
            raise
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError) as error:
            if any(self.is_named(x) for x in inputs):
                raise NeedsNumbers(f"{node.op_type}: {error}") from None
            raise UnsupportedError(
                f"{node.op_type} ({node.name or 'without a name'}): {type(error).__name__}: {error}"
            ) from None  # fmt: skip
        results = made if isinstance(made, (list, tuple)) else [made]
        return [r if r is None or isinstance(r, Ref) else settled(r) for r in results]

    def is_named(self, given: Given) -> bool:
        """True if a value has named sizes."""
        if given is None:
            return False
        if isinstance(given, np.ndarray) and given.dtype == object:
            return True
        return any(not isinstance(n, int) for n in self.shape(given))

    def _branch(self, node: Any, condition: Given, attributes: Attributes) -> list[Given]:
        if not isinstance(condition, np.ndarray):
            raise UnsupportedError(f"If ({node.name or 'without a name'}) depends on the values of the inputs")
        branch = attributes.get("then_branch" if condition.size and condition.reshape(-1)[0] else "else_branch")
        if branch is None:
            raise FileError("the model is damaged: If has no branch")
        outer = dict(self.values)
        self.run(branch)
        results = [self._known(o.name) for o in branch.output]
        self.values = outer
        return results

    def _loop(self, node: Any, inputs: list[Given], attributes: Attributes) -> list[Given]:
        """Reads the body of a loop once for each step."""
        name, body = node.name or "without a name", attributes.get("body")
        if body is None or not 2 <= len(inputs) == len(body.input) or len(body.output) < len(inputs) - 1:
            raise FileError("the model is damaged: Loop has no body that fits its inputs")
        trips, more, *state = inputs
        if trips is not None and not isinstance(trips, np.ndarray):
            raise UnsupportedError(f"Loop ({name}): the number of steps depends on the values of the inputs")
        most = math.inf if trips is None else numbers(integers(trips), "Loop")[0]
        outer, scans = dict(self.values), [list[Given]() for _ in body.output[len(inputs) - 1 :]]
        step = 0
        while step < most and self._continues(more, name):
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise UnsupportedError(f"Loop ({name}): the loops of the model have more than {_MOST_STEPS} steps")
            given = [np.array(step, np.int64), np.array(True), *state]
            self.values = {**outer, **{i.name: x for i, x in zip(body.input, given, strict=True)}}
            self.run(body)
            more, *results = (self._known(o.name) for o in body.output)
            state = results[: len(state)]
            for scan, result in zip(scans, results[len(state) :], strict=True):
                scan.append(result)
            step += 1
        self.values = outer
        if scans and not step:
            raise UnsupportedError(f"Loop ({name}) has no step, so the shape of its result is unknown")
        return [*state, *(self.stacked(scan) for scan in scans)]

    @staticmethod
    def _continues(condition: Given, name: str) -> bool:
        if condition is None:
            return True
        if not isinstance(condition, np.ndarray):
            raise UnsupportedError(f"Loop ({name}): the end depends on the values of the inputs")
        return bool(condition.reshape(-1)[0])

    def finish(self, outputs: Sequence[str]) -> Network:
        """The network with these outputs."""
        self.network.outputs = [self.ref(self._known(name)).name for name in outputs]
        self.network.drop_unread()
        return self.network


class _Tensors:
    """The arrays of all tensors in a file, with floats as float32. Steps of loops and sizes share them."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Known]] = {}  # with the tensors, so that no other object gets their id

    def array(self, tensor: Any) -> Known:
        import onnx

        if id(tensor) not in self._made:
            try:
                array: Known = onnx.numpy_helper.to_array(tensor)
            except Exception as error:
                raise FileError(f"the tensor {tensor.name} is damaged: {error}") from None
            self._made[id(tensor)] = tensor, in_float32(array)
        return self._made[id(tensor)][1]


def _attribute(attribute: Any, tensors: _Tensors) -> Any:
    import onnx

    try:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            return tensors.array(value)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise FileError(f"the model is damaged: the attribute {attribute.name}: {error}") from None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (onnx.GraphProto, int, float)):
        return value
    return [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in value]


@dataclass
class _Model:
    """A model of ONNX. fixed: inputs that have one value; seed: of random numbers, or None"""

    graph: Any
    opset: int
    inputs: list[Input]
    outputs: list[str]
    fixed: dict[str, Known]
    tensors: _Tensors
    arrays: dict[str, Known] = field(default_factory=dict)
    seed: int | None = None

    @classmethod
    def of(
        cls, model: Any, sizes: Mapping[str, int], fixed: Mapping[str, Any], seed: int | None, what: str
    ) -> _Model:  # fmt: skip
        opsets = {o.domain: o.version for o in model.opset_import}
        version = opsets.get("", opsets.get("ai.onnx", 0))
        if not _OLDEST <= version <= _NEWEST:
            raise UnsupportedError(f"{what} has the operator set {version}; {_OLDEST} to {_NEWEST} are known")
        _check_operators(model, what)
        tensors = _Tensors()
        arrays = _arrays(model.graph, tensors, what)
        given = [i for i in model.graph.input if i.name not in arrays]
        _check_sizes([_input(i, {}, what) for i in given], sizes, what)
        inputs = [_input(i, sizes, what) for i in given]
        names = [one.name for one in inputs]
        found = {}
        for name, value in fixed.items():
            if name not in names:
                raise InvalidArgumentError(f"{what}: fixed: there is no input {name!r}{nearest(name, names)}")
            found[name] = np.asarray(value, inputs[names.index(name)].value.dtype)
        inputs = [one for one in inputs if one.name not in found]
        outputs = [o.name for o in model.graph.output]
        return cls(model.graph, version, inputs, outputs, found, tensors, {**arrays, **found}, seed)

    def read(self, shapes: Sequence[Sequence[Size]]) -> Network:
        """The network for inputs of these shapes. NeedsNumbers: these shapes must not have names"""
        reader = Reader(self)
        for one, shape in zip(self.inputs, shapes, strict=True):
            reader.add_input(one.name, shape, one.value.dtype)
        reader.run(self.graph)
        network = reader.finish(self.outputs)
        labels = {str(n) for shape in shapes for n in shape if not isinstance(n, int)}
        network.sizes = dict.fromkeys(sorted(labels), (1, MOST_ELEMENTS))
        network.check()
        return network


def _arrays(graph: Any, tensors: _Tensors, what: str) -> dict[str, Known]:
    """The weights of a model by name. Some models have them in nodes Constant."""
    nodes = [n for n in graph.node if n.op_type == "Constant" and len(n.output) == 1 and len(n.attribute) == 1]
    found = {n.output[0]: n.attribute[0].t for n in nodes if n.attribute[0].HasField("t")}
    found |= {tensor.name: tensor for tensor in graph.initializer}
    try:
        return {name: tensors.array(tensor) for name, tensor in found.items()}
    except FileError as error:
        raise FileError(f"{what}: {error}") from None


def _input(given: Any, sizes: Mapping[str, int], what: str) -> Input:
    kind = given.type.tensor_type
    dtype = NUMBERED.get(kind.elem_type)
    if dtype not in DTYPES or not given.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise UnsupportedError(f"{what}: the input {given.name} is no tensor with a shape and a known dtype")
    shape: Any = tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0
        else sizes.get(label := identifier(d.dim_param or f"{given.name}.{i}"), name_of(label))
        for i, d in enumerate(kind.shape.dim)
    )  # fmt: skip
    return Input(given.name, Value(shape, dtype))


def _check_sizes(inputs: Sequence[Input], sizes: Mapping[str, int], what: str) -> None:
    labels = {str(n) for one in inputs for n in one.value.sizes if not isinstance(n, int)}
    for name, n in sizes.items():
        if name not in labels:
            raise InvalidArgumentError(f"{what}: sizes: no axis is called {name!r}{nearest(name, sorted(labels))}")
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n < MOST_ELEMENTS:
            raise InvalidArgumentError(f"{what}: sizes: {name} must be a positive integer, not {n!r}")


def _check_operators(model: Any, what: str) -> None:
    """UnsupportedError lists every operator that has no rule."""
    import onnx

    from .onnx_operators import OPERATORS

    count: dict[str, int] = {}

    def walk(graph: Any) -> None:
        for node in graph.node:
            known = node.domain in ("", "ai.onnx") and (node.op_type in OPERATORS or node.op_type in _WITH_GRAPHS)
            if not known:
                name = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
                count[name] = count.get(name, 0) + 1
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    walk(attribute.g)

    walk(model.graph)
    if count:
        listed = ", ".join(f"{name} ({n} times)" for name, n in sorted(count.items()))
        raise UnsupportedError(f"{what}: operators without a rule: {listed}")


class _OnnxProgram(Program):
    """A program that reads its model again for sizes whose numbers the graph needs."""

    def __init__(self, engine: Engine, model: _Model, weights: Formats, what: str) -> None:
        self._model, self._weights = model, weights
        structure = {"dict": [(name, i) for i, name in enumerate(model.outputs)]}
        shapes = [one.value.sizes for one in model.inputs]
        example: Any = shapes if all(isinstance(n, int) for shape in shapes for n in shape) else []
        declared = Declared(model.inputs, {}, structure, example)
        variants = []
        self._engine = engine
        with contextlib.suppress(NeedsNumbers):
            variants.append(self._variant(shapes))
        super().__init__(engine, declared, variants, what)

    def _variant(self, shapes: Sequence[Sequence[Size]]) -> Variant:
        with _damage("load_onnx"):
            network = self._model.read(shapes)
        simplify(network, self._engine.folded)
        check_formats(self._weights, network, "load_onnx")
        self._engine.weights.formats.update(chosen_formats(self._weights, network))
        return Variant(network, [*network.inputs], [(name, None) for name in network.outputs])

    def _made_for(self, shapes: Sequence[Sequence[int] | None]) -> Variant | None:
        if any(v.network.sizes or not self._model.inputs for v in self._variants):
            return None
        given = [tuple(s) for s in shapes if s is not None]
        for one, shape in zip(self._model.inputs, given, strict=True):
            fits = len(shape) == len(one.value.shape)
            if not fits or any(isinstance(n, int) and n != m for n, m in zip(one.value.sizes, shape, strict=True)):
                return None
        try:
            return self._variant(given)
        except NeedsNumbers as error:
            raise UnsupportedError(f"program: {error}") from None


@contextlib.contextmanager
def _damage(what: str) -> Iterator[None]:
    """Raises FileError for what only a damaged file has, such as a name that is no text."""
    try:
        yield
    except (AttributeError, KeyError, IndexError, UnicodeError, AssertionError) as error:
        raise FileError(f"{what}: the model is damaged: {type(error).__name__}: {error}") from None


def _parsed(source: Any, what: str) -> tuple[Any, str]:
    """The model, and what messages call it."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(f"{what} needs the package onnx: pip install 'ggml_backend[onnx]' ({error})") from None
    if isinstance(source, onnx.ModelProto):
        return source, what
    if isinstance(source, (bytes, bytearray, memoryview)):
        name = what
    elif isinstance(source, (str, os.PathLike)):
        expect_path(source, f"{what}: source")
        name = os.fsdecode(source)
    else:
        raise TypeError(f"{what}: source must be a path, bytes or an onnx.ModelProto, not {kind_of(source)}")
    try:
        return (onnx.load_model_from_string(bytes(source)) if name == what else onnx.load(name)), name
    except OSError:
        raise
    except Exception as error:
        raise FileError(f"{name} is no ONNX file: {type(error).__name__}: {error}") from None


def _checked(seed: int | None) -> int | None:
    if seed is not None and expect_int(seed, "load_onnx: seed") < 0:
        raise InvalidArgumentError(f"load_onnx: seed must be at least 0, not {seed}")
    return seed


def load_onnx(
    source: Any, *, weights: Formats = None, devices: Sequence[str | Backend] = ("CPU",), n_threads: int | None = None,
    sizes: Mapping[str, int] | None = None, fixed: Mapping[str, Any] | None = None, seed: int | None = None,
    precision: Any = "default", policy: Any = "weights",
) -> Program:  # fmt: skip
    """Reads a model of ONNX as a program::

        program = gb.load_onnx("model.onnx", weights="q8_0")
        out = program(input_ids=ids, attention_mask=mask)["last_hidden_state"]

    The result of a call is a dict of arrays by the names of the model's outputs. Needs the package ``onnx``.
    ``program.save(path)`` writes a file that needs it no more.

    source: a path, the bytes of a file, or an ``onnx.ModelProto``, with operators of the sets 7 to 21
    weights: None keeps the weights as they are. A format such as ``"q8_0"`` quantizes all matrices of linear layers and
        embeddings. A dict gives formats by patterns of names, or None. The first match decides.
    devices: names or backends, fastest first. The first one holds the weights. A CPU is added if the last one is none.
    n_threads: of the CPU
    sizes: numbers for axes with a name, such as ``{"batch": 1}``. Other axes with a name may vary from call to call.
    fixed: values of inputs that never change, such as ``{"sr": 16000}``. They are no inputs of the program. An ``If``
        that depends on them alone takes its branch.
    seed: of a model that draws random numbers. They are drawn once for each size, when the graph is built: each call
        then has the same ones. Without a seed, such a model is refused.
    precision: of products with quantized weights, as for ``ggml_backend.torch.pack``
    policy: of the scheduler (:class:`ggml_backend.Scheduler`)

    Raises :class:`UnsupportedError` with a list of all operators that have no rule, before anything is built, and
    :class:`FileError` for a file that is damaged.
    """
    proto, name = _parsed(source, "load_onnx")
    for given, label in ((sizes, "sizes"), (fixed, "fixed")):
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"load_onnx: {label} must be a dict, not {kind_of(given)}")
    for wanted in weights.values() if isinstance(weights, Mapping) else [weights]:
        if wanted is not None:
            as_dtype(wanted, "load_onnx: weights")
    with _damage(name):
        model = _Model.of(proto, sizes or {}, fixed or {}, _checked(seed), name)
    engine = Engine(backends_of(devices, n_threads), {}, precision=precision, policy=policy)
    return _OnnxProgram(engine, model, weights, name)
