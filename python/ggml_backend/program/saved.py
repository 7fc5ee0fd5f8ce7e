"""Programs in GGUF files, and programs of NumPy arrays.

A file of a program has these keys, beside its arrays as tensors:

- ``general.architecture``: ``"program"``
- ``program.version``: 1
- ``program.model``: JSON, a table of these:

  - ``inputs``: name, shape and dtype of each input; a size is an integer or a formula of named sizes
  - ``constants``: arguments with a fixed value
  - ``result``: the structure of the result: ``{"dict": [[key, part], ...]}``, ``{"list": [part, ...]}``, ``{"tuple":
    [part, ...]}``, or the number of a result
  - ``example``: a shape of each input, for which a graph is made when the file is loaded; or nothing
  - ``states``: the names of values that the program keeps from call to call, and the tensors with their first values
  - ``networks``: as :meth:`Network.to_json`, each with ``leaves`` (the value of each input), ``results`` (the value or
    the constant of each result) and ``tensors`` (the tensor of each array)

A file also has the graphs of the last sizes, for programs in C (``program/graphs.py``).

A file from elsewhere is not trusted: every name, size, dtype and operator is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import gguf
from .._base.errors import expect_path
from .._base.text import nearest
from ..backend import Backend
from ..backend._priority import backends_of
from ..dtypes import DTypeLike, as_dtype
from ..errors import FileError, InvalidArgumentError
from .graphs import PREFIX, STATES, StoredGraph, StoredGraphs, state_label
from .network import DTYPES, Network, _of, _plain_size, _text, value_of
from .packing import Packed, packed
from .program import Engine
from .runs import Input, Runs, Variant

__all__ = ["Declared", "Input", "Program", "load_program", "store"]

Array = np.ndarray[Any, Any]
Plain = bool | int | float | str | None

_VERSION = 1
_DEEPEST = 20  # lists and tables of a result within each other
_STORED = {"bool": "int8", "uint8": "int8"}
"""Dtypes of arrays whose bytes a file holds in another dtype."""


@dataclass(frozen=True)
class Declared:
    """What a program takes and returns.

    constants: arguments with a fixed value
    result: the number of a result, or ``{"dict": ...}``, ``{"list": ...}`` or ``{"tuple": ...}`` of such parts
    example: a shape of each input, or nothing
    """

    inputs: list[Input]
    constants: dict[str, Plain]
    result: Any
    example: list[tuple[int, ...]]


class Program(Runs):
    """A model that takes and returns arrays. :func:`load_program` makes programs.

    Call it with arrays by name or in the order of ``inputs``. Several threads may call a program. They wait for each
    other.

    ``inputs``: shapes and dtypes by name; a size is an integer, or the name of an axis that may vary. ``plan``: memory,
    splits and copies. ``graph``, ``network``, ``scheduler``: of the last size.
    """

    def __init__(self, engine: Engine, declared: Declared, variants: Sequence[Variant], what: str) -> None:
        super().__init__(engine, variants)
        self._declared = declared
        if len(declared.example) == len(declared.inputs):  # otherwise the first call makes the first graph
            with engine.lock:
                self._prepare(declared.example, what)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arrays = self._bound(args, kwargs)
        with self._engine.lock:
            variant, step = self._prepare([array.shape for array in arrays], "program")
        return _built(self._declared.result, self._computed(variant, step, arrays))

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Array]:
        """The inputs in order."""
        inputs, constants = self._declared.inputs, self._declared.constants
        names = [one.name for one in inputs]
        if len(args) > len(names):
            raise TypeError(f"program: takes {len(names)} inputs ({', '.join(names)}), not {len(args)}")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise TypeError(f"program: {name} was given twice")
            if name in constants:
                if type(value) is not type(constants[name]) or value != constants[name]:
                    raise InvalidArgumentError(f"program: {name} was {constants[name]!r} when the model was compiled")
                continue
            if name not in names:
                raise TypeError(f"program: there is no input {name!r}{nearest(name, names)}")
            given[name] = value
        lacking = [name for name in names if name not in given]
        if lacking:
            raise TypeError(f"program: the input {lacking[0]} is missing")
        return [_array(one, given[one.name]) for one in inputs]

    @property
    def inputs(self) -> dict[str, tuple[tuple[int | str, ...], str]]:
        return {
            one.name: (tuple(_plain_size(n) for n in one.value.sizes), one.value.dtype) for one in self._declared.inputs
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the program to a GGUF file, for :func:`ggml_backend.load_program`.

        The file holds the weights in their formats, and the network for all sizes that the program takes.
        """
        expect_path(path, "save: path")
        with self._engine.lock:
            shapes = next(reversed(self._kept), ())
            example = [tuple(shape) for shape in shapes if shape is not None]
            graphs = self._stored_graphs(self._declared.inputs)
            store(path, self._variants, replace(self._declared, example=example), self._engine, graphs)

    def _result_names(self, variant: Variant) -> list[str]:
        names: dict[int, str] = {}

        def walk(structure: Any, path: tuple[str, ...]) -> None:
            if isinstance(structure, int):
                names.setdefault(structure, ".".join(path) or "output")
                return
            ((kind, parts),) = structure.items()
            for key, part in parts if kind == "dict" else enumerate(parts):
                walk(part, (*path, str(key)))

        walk(self._declared.result, ())
        return [names.get(i, f"output.{i}") for i in range(len(variant.results))]

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name} {dtype} {_shown(shape)}" for name, (shape, dtype) in self.inputs.items())
        return f"<Program {inputs}; on {', '.join(b.name for b in self._engine.backends)}>"


def _shown(shape: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _kind(dtype: str) -> str:
    """Integers of all sizes are one kind."""
    return "integers" if dtype.startswith(("int", "uint")) else dtype


def _array(one: Input, given: Any) -> Array:
    try:
        array = np.asarray(given)
    except Exception as error:
        raise TypeError(f"program: {one.name}: {error}") from None
    if _kind(array.dtype.name) != _kind(one.value.dtype):
        raise InvalidArgumentError(f"program: {one.name} must be {one.value.dtype}, not {array.dtype.name}")
    return array


def _built(structure: Any, results: Sequence[Any]) -> Any:
    if isinstance(structure, int):
        return results[structure]
    if "dict" in structure:
        return {key: _built(value, results) for key, value in structure["dict"]}
    if "tuple" in structure:
        return tuple(_built(value, results) for value in structure["tuple"])
    return [_built(value, results) for value in structure["list"]]


# -------------------------------------------------------------------------------------------------------------- writing


def store(
    path: str | os.PathLike[str],
    variants: Sequence[Variant],
    declared: Declared,
    engine: Engine,
    graphs: Sequence[StoredGraph],
) -> None:
    """Writes networks of one model to a file. graphs: for programs in C"""
    done, tensors = Packed(), _Tensors()
    networks = []
    for variant in variants:
        network = variant.network
        formats: Mapping[str, DTypeLike | None] = engine.weights.formats
        made = packed(network, formats, engine.weights.precision, done)
        networks.append(
            {
                **made.to_json(),
                "leaves": variant.leaves,
                "results": [[name, constant] for name, constant in variant.results],
                "tensors": {name: tensors.add(name, a, done.formats.get(name)) for name, a in made.arrays.items()},
            }
        )
    states = {name: state_label(name) for name in engine.initial}
    tensors.arrays.update({states[name]: (array, None) for name, array in engine.initial.items()})
    model = {
        "inputs": [
            {"name": one.name, "shape": [_plain_size(n) for n in one.value.sizes], "dtype": one.value.dtype}
            for one in declared.inputs
        ],
        "constants": declared.constants,
        "result": declared.result,
        "example": [list(shape) for shape in declared.example],
        "states": states,
        "networks": networks,
    }
    stored = StoredGraphs(graphs, tensors.arrays)
    with gguf.Writer(path) as writer:
        writer.add("general.architecture", "program")
        writer.add("general.quantization_version", 2)
        writer.add("program.version", _VERSION)
        writer.add("program.model", json.dumps(model, separators=(",", ":")))
        for key, value, kind in stored.keys:
            writer.add(key, value, kind)
        for name, (array, format) in tensors.arrays.items():
            if format is not None:
                writer.add_tensor(name, array.view(as_dtype(format).numpy), dtype=format)
            else:
                flat = array if array.ndim <= 4 else array.reshape(-1)
                writer.add_tensor(name, flat.view(_STORED.get(str(flat.dtype), flat.dtype)))
        for name, tensor in stored.tensors.items():
            writer.add_tensor(name, tensor)


class _Tensors:
    """The tensors of a file. Arrays with the same content are one tensor."""

    def __init__(self) -> None:
        self.arrays: dict[str, tuple[Array, str | None]] = {}
        self._known: dict[Any, str] = {}

    def add(self, name: str, array: Array, format: str | None) -> str:
        whole = np.ascontiguousarray(array)
        if not np.may_share_memory(whole, array) or array.nbytes < 2**20:
            key: Any = (array.shape, array.dtype.str, hashlib.blake2b(whole.tobytes()).digest())
        else:
            key = (array.__array_interface__["data"][0], array.shape, array.dtype.str)
        if key not in self._known:
            fits = len(name.encode()) <= 63 and name not in self.arrays and not name.startswith((PREFIX, STATES))
            short = name if fits else f"array.{len(self.arrays)}"
            self._known[key] = short
            self.arrays[short] = whole, format
        return self._known[key]


# -------------------------------------------------------------------------------------------------------------- reading


def load_program(
    path: str | os.PathLike[str], *, devices: Sequence[str | Backend] = ("CPU",), n_threads: int | None = None,
    policy: Any = "weights",
) -> Program:  # fmt: skip
    """Loads a program that ``program.save(path)`` wrote. It needs no PyTorch and no other library::

        program = gb.load_program("model.gguf")
        out = program(input_ids=ids, attention_mask=mask)

    devices: names or backends, fastest first. The first one holds the weights. A CPU uses the memory of the file
        itself: nothing is copied. A CPU is added if the last one is none.
    n_threads: of the CPU
    policy: of the scheduler (:class:`ggml_backend.Scheduler`)

    Raises :class:`FileError` for a file that is damaged or holds no program, with the reason, and
    :class:`UnsupportedError` for operators that this version does not have.
    """
    expect_path(path, "load_program: path")
    name = os.fsdecode(path)
    with gguf.open(path) as file:
        data, arrays = _model(file, name)
    try:
        declared, variants = _read(data, arrays)
        initial = _states(data, arrays, variants)
    except FileError as error:
        raise FileError(f"{name}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileError(f"{name}: the program is damaged: {type(error).__name__}: {error}") from None
    engine = Engine(backends_of(devices, n_threads), {}, policy=policy)
    engine.add_states(initial)
    return Program(engine, declared, variants, f"load_program: {name}")


def _model(file: gguf.GGUFFile, name: str) -> tuple[Any, dict[str, Array]]:
    version, text = file.metadata.get("program.version"), file.metadata.get("program.model")
    if version is None or not isinstance(text, str):
        raise FileError(f"{name} holds no program; program.save(path) writes such files")
    if version != _VERSION:
        raise FileError(f"{name} has version {version} of programs; this package reads version {_VERSION}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{name}: the program is damaged: {error}") from None
    return data, {tensor.name: tensor.data for tensor in file.tensors.values()}


def _read(data: Any, tensors: Mapping[str, Array]) -> tuple[Declared, list[Variant]]:
    inputs = [Input(_text(one["name"]), value_of(one["shape"], one["dtype"])) for one in _of(data["inputs"], list)]
    for one in inputs:
        if one.value.dtype not in DTYPES or any(isinstance(n, int) and n < 0 for n in one.value.sizes):
            raise FileError(f"the program is damaged: the input {one.name} is {one.value.dtype} {one.value.shape}")
    if len({one.name for one in inputs}) != len(inputs):
        raise FileError("the program is damaged: two inputs have one name")
    constants = {_text(name): _plain(value) for name, value in _of(data["constants"], dict).items()}
    example = [tuple(_of(n, int) for n in _of(shape, list)) for shape in _of(data["example"], list)]
    variants = [_variant(network, tensors, inputs) for network in _of(data["networks"], list)]
    if len(example) not in (0, len(inputs)) or not variants or len({len(v.results) for v in variants}) != 1:
        raise FileError("the program is damaged: it has no networks, or these do not fit its inputs")
    result = _structure(data["result"], len(variants[0].results))
    return Declared(inputs, constants, result, example), variants


def _states(data: Any, tensors: Mapping[str, Array], variants: Sequence[Variant]) -> dict[str, Array]:
    """The first values of the states."""
    names = {_text(name): _text(tensor) for name, tensor in _of(data.get("states", {}), dict).items()}
    found: dict[str, Array] = {}
    for variant in variants:
        for name in variant.network.states:
            value = variant.network.values[name]
            array = _typed(tensors[names[name]], list(value.shape), "float32", name)
            if found.setdefault(name, array).shape != array.shape:
                raise FileError(f"the program is damaged: the state {name!r} has two shapes")
    return found


def _variant(data: Any, tensors: Mapping[str, Array], inputs: Sequence[Input]) -> Variant:
    values = _of(data["values"], dict)
    arrays = {}
    for name, tensor in _of(data["tensors"], dict).items():
        shape, dtype = values[name]
        arrays[name] = _typed(tensors[tensor], shape, dtype, name)
    network = Network.from_json(data, arrays)
    leaves = [None if name is None else _text(name) for name in _of(data["leaves"], list)]
    results = [
        (None if name is None else _text(name), _plain(constant)) for name, constant in _of(data["results"], list)
    ]
    given = [name for name in network.inputs if name not in network.states]
    if [name for name in leaves if name is not None] != given or len(leaves) != len(inputs):
        raise FileError("the program is damaged: the inputs of a network are not those of the program")
    for name, one in zip(leaves, inputs, strict=True):
        value = one.value if name is None else network.values[name]
        if len(value.shape) != len(one.value.shape) or value.dtype != one.value.dtype:
            raise FileError(f"the program is damaged: the input {one.name} has another shape in a network")
    if [name for name, _ in results if name is not None] != network.results:
        raise FileError("the program is damaged: the results of a network are not those of the program")
    return Variant(network, leaves, results)


def _typed(data: Array, shape: Any, dtype: Any, name: str) -> Array:
    """The bytes of a tensor as an array."""
    sizes = tuple(_of(n, int) for n in _of(shape, list))
    if dtype not in DTYPES or dtype == "bfloat16" or any(n < 0 for n in sizes):
        raise FileError(f"the program is damaged: the array {name!r} is {dtype} {sizes}")
    kind = np.dtype(dtype)
    n = math.prod(sizes)
    if n * kind.itemsize != data.nbytes:
        raise FileError(
            f"the program is damaged: the array {name!r} has {data.nbytes} bytes instead of {n * kind.itemsize}"
        )
    array: Array = data != 0 if dtype == "bool" else data.view(kind)
    return array.reshape(sizes)


def _plain(data: Any) -> Plain:
    if data is not None and not isinstance(data, (bool, int, float, str)):
        raise TypeError(f"a {type(data).__name__} stands for a constant")
    return data


def _structure(data: Any, n: int, depth: int = 0) -> Any:
    """A checked structure of a result."""
    if isinstance(data, int) and not isinstance(data, bool):
        if not 0 <= data < n:
            raise ValueError(f"there is no result {data}")
        return data
    if depth > _DEEPEST or not isinstance(data, dict) or len(data) != 1:
        raise ValueError("the structure of the result")
    ((kind, parts),) = data.items()
    if kind == "dict":
        return {"dict": [(_plain(key), _structure(value, n, depth + 1)) for key, value in parts]}
    if kind not in ("list", "tuple"):
        raise ValueError(f"the structure of the result has {kind!r:.40}")
    return {kind: [_structure(value, n, depth + 1) for value in _of(parts, list)]}
