"""Each parameter of each public name gets values of many kinds. A call that fails raises an error of
this package, or a built-in one that names the parameter or the call.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
import small_models
import small_whisper
from public import LIBRARY, THINGS
from source_tree import in_tree


class Lies:
    """Raises when it is compared, hashed or converted to bool."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("truth value of a lie")

    __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __bool__ = __eq__  # type: ignore[assignment]


class Agrees:
    """Equals every object, and has its own hash."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7


VALUES: dict[str, Any] = {
    "None": None, "text": "wrong", "int": 3, "negative": -1, "huge": 2**70, "float": 1.5, "nan": float("nan"),
    "bytes": b"x", "empty": [],
    "list": [1, 2], "ragged": [[1], [2, 3]], "texts": ["a", "b"], "dict": {"a": 1}, "set": {1}, "object": object(),
    "function": len,
    "complex": 1j, "strings": np.array(["a", "b"]), "scalar": np.float32(2.5), "type": int, "NUL": "a\0b",
    "surrogate": "\udcff", "tuple": (1.5, None), "array": np.arange(3), "matrix": np.ones((2, 2), np.float32),
    "objects": np.array([None, "a"], object), "lies": Lies(), "agrees": Agrees(), "list of lies": [Lies()],
    "dict of arrays": {"a": np.arange(3)}, "empty array": np.zeros(0), "bool array": np.array([True, False]),
    "datetime": np.datetime64("2024-01-01"), "record": np.zeros(2, [("a", "i4")]), "range": range(2),
}  # fmt: skip

INSIDE = re.compile(
    r"cdata|\bffi\b|\bgbpy|\bggml_(?!backend)|'_\w+'|_live\b|initializer for ctype|NoneType: None|has no len\(\)|not"
    r" subscriptable|object is not"
    r"|unhashable|an integer is required|does not fit '|not supported between|unsupported operand|expected str|expected"
    r" string|Cannot interpret"
    r"|\) argument must be|inhomogeneous|__\w+__(?<!__init__)|has no attribute|truth value|invalid literal|could not"
    r" convert|embedded null|codec can't|lambda"
)
"""Texts that only internal errors contain."""

UNTRIED = {
    "UnknownType.__init__", "UnknownType.refuse", "GGUFFile.__init__", "GGUFTensor.__init__",
    "Function.__init__", "Weights.__init__", "DType.__init__", "Trace.__init__",
    "BackendList.__getitem__", "as_dtype.what", "as_dtype.value", "Costs.cached.options",
    "ArrayDevice.__init__", "Generation.__init__", "Tokenizer.__init__", "Tensor.__init__",
    "Pending.__init__", "Metadata.__init__", "Blocks.copy", "Blocks.partition", "Blocks.sort",
}  # fmt: skip
"""Names that only this package makes or calls, methods of Python's list and NumPy's array, and options that another
function checks."""


HOOKS = {"Device", "ArrayDevice"}
"""Classes whose methods a program overrides and only this package calls."""


class World:
    """One of everything, and a file with a tensor."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder
        self.sim, self.cpu = gb.Backend("SIM"), gb.Backend("CPU", n_threads=1)
        self.ctx = ctx = gb.Context()
        self.x = ctx.constant(np.ones((4, 4), np.float32), name="x")
        self.image = ctx.tensor((1, 4, 8, 8), name="image")
        self.ids = ctx.tensor(4, gb.int32, name="ids")
        self.node = gb.ops.relu(self.x).named("node")
        self.graph = ctx.graph(self.node)
        self.sched = gb.Scheduler([self.sim, self.cpu])
        self.plan = self.sched.prepare(self.graph)
        self.sched.compute(self.graph)
        path = folder / "m.gguf"
        with gb.gguf.Writer(path) as writer:
            writer.add("general.name", "m")
            writer.add_tensor("w", np.ones((2, 32), np.float32))
        self.path = str(path)
        self.file = gb.gguf.open(path)
        self.weights = self.file.load(self.cpu)
        trained = gb.Context()
        self.trained = trained.tensor((4,), name="trained")
        trained.allocate(self.cpu)
        self.trained.set(1)
        with ctx.as_default():
            self.loss = gb.ops.sum(gb.ops.sqr(self.trained))
        with self.sched.trace() as self.trace:
            self.sched.compute(self.graph)
        with self.sched.profile() as self.profile:
            self.sched.compute(self.graph)
        self.paths = {kind: str(folder / f"{kind}.gguf") for kind in ("TextModel", "EmbeddingModel", "SpeechModel")}
        small_models.write(self.paths["TextModel"], small_models.SMALL["llama"])
        small_models.write_encoder(self.paths["EmbeddingModel"])
        small_whisper.write_whisper(self.paths["SpeechModel"])
        self.models = {kind: gb.models.load(path) for kind, path in self.paths.items()}
        self.text: Any = self.models["TextModel"]

    def owners(self) -> dict[str, Callable[[], Any]]:
        """Functions that make or give an object of each class."""
        models: dict[str, Callable[[], Any]] = {kind: lambda m=m: m for kind, m in self.models.items()}
        return {
            "Context": gb.Context,
            "Tensor": lambda: gb.Context(allocate=True).tensor((4, 4)).set(1),
            "Graph": lambda: self.graph,
            "Backend": lambda: self.cpu,
            "BufferType": lambda: self.cpu.buffer_type,
            "Buffer": lambda: self.cpu.allocate(4096),
            "Scheduler": lambda: self.sched,
            "Event": lambda: gb.backend.Event(self.sim),
            "Plan": lambda: self.plan,
            "Trace": lambda: self.trace,
            "Profile": lambda: self.profile,
            "ProfileTable": lambda: self.profile.table(limits=False),
            "ProfileComparison": lambda: self.profile.compare(self.profile),
            "Function": lambda: self.graph.function(self.cpu),
            "TensorAllocator": lambda: gb.sched.TensorAllocator(self.cpu, 4096),
            "GraphAllocator": lambda: gb.sched.GraphAllocator(self.cpu),
            "DType": lambda: gb.dtypes.q4_0,
            "Pending": lambda: self.sched.compute_async(self.graph),
            "GGUFFile": lambda: self.file,
            "GGUFTensor": lambda: self.file.tensors["w"],
            "Metadata": lambda: self.file.metadata,
            "Weights": lambda: self.weights,
            "Writer": lambda: gb.gguf.Writer(self.folder / "w.gguf"),
            "Blocks": lambda: gb.quantize(np.ones((2, 32), np.float32), "q4_0"),
            "BackendList": gb.backends,
            "Costs": lambda: gb.sched.Costs([gb.sched.DeviceCosts(), gb.sched.DeviceCosts()]),
            **models,
            "Tokenizer": lambda: self.text.tokenizer,
            "ChatTemplate": lambda: gb.models.ChatTemplate("x"),
            "Sampling": lambda: gb.models.Sampling(temperature=0.5, repeat_penalty=1.5),
            "Stats": gb.models.Stats,
            "Transcript": lambda: gb.models.Transcript("x", (), "en"),
            "Generation": lambda: self.text.generate([40]),
            "MemoryPlan": lambda: gb.planning.plan_memory([0], [1], [2]),
            "SchedulerStats": lambda: self.sched.stats,
            "AdamW": lambda: gb.optim.AdamW(self.loss, [self.trained]),
            "SGD": lambda: gb.optim.SGD(self.loss, [self.trained]),
        }

    def value(self, name: str, parameter: inspect.Parameter) -> Any:
        """A valid value for a parameter without a default."""
        text = str(parameter.annotation)
        by_name = {
            "positions": self.ids, "ids": self.ids, "path": str(self.folder / "out"), "source": self.path,
            "where": self.cpu, "shape": (4, 4),
            "like": (4, 4), "axes": (1, 0), "array": np.ones((4, 32), np.float32), "value": 1.0, "key": "general.other",
            "op": "relu",
            "function": len, "lower": [0], "upper": [1], "size": 64, "names": "w",
            "matrices": [self.x],
            "dtype": "float32", "target": self.cpu, "devices": (), "name": "w", "tensors": [self.x],
            "callback": None, "loss": self.loss, "weights": [self.trained], "sched": self.sched,
            "text": "x", "messages": [{"role": "user", "content": "x"}], "prompt": [40, 41], "prompts": [[40], [41]],
            "texts": ["a cat"], "audio": np.zeros(1600, np.float32), "logits": np.arange(8.0), "before": [1, 2],
            "random": np.random.default_rng(0), "tokens": [40], "token": 40, "metadata": self.text.metadata,
        }  # fmt: skip
        special = {
            ("plan_memory", "size"): [64], ("Backend.__init__", "name"): "CPU", ("pool_1d", "op"): "max",
            ("pool_2d", "op"): "max",
            ("dequantize", "blocks"): np.zeros((2, 18), np.uint8), ("dequantize", "dtype"): "q4_0",
            ("Metadata.type", "key"): "general.name",
            ("Metadata.__getitem__", "key"): "general.name", ("set_log", "target"): None,
            ("from_dlpack", "x"): np.ones(4, np.float32), ("Context.from_dlpack", "x"): np.ones(4, np.float32),
            ("Writer.add_tensor", "data"): np.ones((2, 2), np.float32), ("get_rows", "b"): self.ids,
            ("Tensor.swapaxes", "a"): 0,
            ("Tensor.swapaxes", "b"): 1, ("fallback_dtype", "n"): 32, ("Writer.add_tensor", "name"): "new",
            ("Graph.get", "name"): "node", ("grad", "params"): [self.x], ("load", "path"): self.paths["TextModel"],
            ("load_program", "path"): str(in_tree("tests/data/programs/GPT2LMHeadModel.gguf")),
            ("ChatTemplate.__init__", "source"): "x",
            **{(f"{kind}.__init__", "path"): path for kind, path in self.paths.items()},
            ("Scheduler.__init__", "backends"): [self.cpu], ("Profile.compare", "before"): self.profile,
        }  # fmt: skip
        if (name, parameter.name) in special:
            return special[name, parameter.name]
        for kind, made in (("Graph", self.graph), ("Backend", self.cpu), ("Tensor", self.x), ("Callable", len)):
            if re.search(rf"\b{kind}\b", text) and parameter.name not in by_name:
                return made
        if parameter.name in by_name:
            return by_name[parameter.name]
        return {"int": 1, "float": 1.0, "str": "x", "bool": False}.get(
            text.split(" ")[0].strip("'"), self.x if "image" not in name else self.image
        )


def callables() -> list[tuple[str, Any]]:
    found: dict[str, Any] = {}
    for name, thing in LIBRARY.items():
        if inspect.isfunction(thing):
            found[name] = thing
        elif (
            inspect.isclass(thing)
            and thing.__module__.startswith("ggml_backend")
            and not issubclass(thing, BaseException)
        ):
            if "__init__" in vars(thing):
                found[f"{name}.__init__"] = thing.__init__
            for base in reversed(thing.__mro__):
                if base.__module__.startswith("ggml_backend"):
                    for attribute, member in vars(base).items():
                        if isinstance(member, (classmethod, staticmethod)):
                            member = member.__func__
                        if inspect.isfunction(member) and (not attribute.startswith("_") or attribute == "__getitem__"):
                            found[f"{name}.{attribute}"] = member
                        if isinstance(member, property) and member.fset is not None:
                            found[f"{name}.{attribute}="] = member.fset
    return sorted(found.items())


def cases() -> list[tuple[str, str]]:
    found = []
    for name, function in callables():
        parameters = list(inspect.signature(function).parameters.values())
        bound = "." in name
        for parameter in parameters[1 if bound else 0 :]:
            if name.partition(".")[0] in HOOKS or {name, f"{name}.{parameter.name}"} & UNTRIED:
                continue
            found.append((name, parameter.name))
    return found


CASES = cases()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("wrong"))


def call(world: World, name: str, wanted: str, wrong: Any) -> None:
    owner, _, method = name.partition(".")
    thing = THINGS[owner]
    if not method or method == "__init__":
        function = thing
        parameters = list(inspect.signature(thing.__init__ if method else thing).parameters.values())[
            1 if method else 0 :
        ]
    elif method.endswith("="):
        setattr(world.owners()[owner](), method[:-1], wrong)
        return
    else:
        owners = world.owners()
        if owner not in owners:
            pytest.skip(f"no {owner} is made here")
        function = getattr(owners[owner](), method)
        parameters = list(inspect.signature(function).parameters.values())
    positional, named, skipped = [], {}, False
    for parameter in parameters:
        if parameter.name == wanted:
            value = wrong
        elif parameter.default is not parameter.empty or parameter.kind == parameter.VAR_KEYWORD:
            skipped = True
            continue
        else:
            value = world.value(name, parameter)
        if parameter.kind == parameter.VAR_KEYWORD:
            named["given"] = value
        elif parameter.kind == parameter.KEYWORD_ONLY or (
            (named or skipped) and parameter.kind == parameter.POSITIONAL_OR_KEYWORD
        ):
            named[parameter.name] = value
        else:
            positional.append(value)
            if parameter.name == wanted and parameter.kind == parameter.VAR_POSITIONAL:
                break
    function(*positional, **named)


def complaint(error: Exception, name: str, parameter: str) -> str | None:
    """What is wrong with an error, or None."""
    text = str(error)
    if INSIDE.search(text):
        return "it comes from inside"
    if isinstance(error, (gb.GgmlError, OSError)):
        return None
    if isinstance(error, (KeyError, IndexError)):
        says = type(error) not in (KeyError, IndexError) or (isinstance(error.args[0], str) and len(text.split()) > 2)
        return None if says else "it says only which key is missing"
    if not isinstance(error, (TypeError, ValueError)):
        return "it is no error of this package"
    said = [parameter, name.partition(".")[2].strip("=_"), name.partition(".")[0]]
    said.append(getattr(THINGS.get(name), "__name__", ""))  # the name of an alias's target
    return None if any(word and word in text for word in said) else "it names neither the argument nor what was called"


def strangers() -> dict[str, Any]:
    """New objects of the package, most of them of another kind than the parameter."""
    ctx, cpu = gb.Context(), gb.Backend("CPU", n_threads=1)
    x = ctx.tensor((4, 4), name="x")
    made = (x, ctx.graph(gb.ops.relu(x)), cpu, cpu.buffer_type, cpu.allocate(64), ctx, gb.Scheduler([cpu]))
    return {type(m).__name__: m for m in made}


def tried(world: World, name: str, parameter: str) -> list[str]:
    found = []
    for label, wrong in {**VALUES, **strangers()}.items():
        if name == "calibrate" and not (label == "object" or parameter == "size"):
            continue
        if label in ("type", "function") and parameter in ("callback", "wanted", "function", "progress"):
            continue  # a callable value is valid
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(world, name, parameter, wrong)
        except Exception as error:
            what = complaint(error, name, parameter)
            if what is not None:
                found.append(f"{name}({parameter}={label}): {type(error).__name__}: {error}: {what}")
    return found


@pytest.fixture
def quiet(tmp_path, monkeypatch):
    """Files with wrong names go into a temporary folder. Global state is restored."""
    monkeypatch.chdir(tmp_path)
    yield
    gb.set_log(None)


@pytest.mark.parametrize(("name", "parameter"), CASES, ids=[f"{n}:{p}" for n, p in CASES])
def test_errors_of_wrong_values_use_terms_of_the_caller(world, quiet, name, parameter):
    found = tried(world, name, parameter)
    assert not found, "\n".join(found)


def test_nearly_all_parameters_are_tested():
    assert len(CASES) > 350
    assert {
        ("relu", "a"),
        ("Scheduler.trace", "path"),
        ("Plan.to_text", "width"),
        ("Backend.n_threads=", "n"),
        ("open", "source"),
    } <= set(CASES)
