"""What is meant by names that are not here: those of NumPy and PyTorch, other spellings, modules called like classes.
Nothing here runs unless something is missing."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterable
from typing import Any, NoReturn

from .messages import close_matches

__all__ = ["made_by", "module_attribute", "no_name", "refuse_calls", "tell_missing", "without_missing"]

_DATA = "ctx.constant(array) makes a tensor of data, ctx.tensor(shape) one to be set"
_CUSTOM = "there is no such operation; gb.map_custom(function, x) runs a function of yours"
_COMPUTE = "scheduler.compute(graph) computes"
_NO_GRADIENTS = "gradients are not kept"

_OPERATIONS = {
    **dict.fromkeys(["matmul", "mm", "bmm", "dot"], "x @ w"),
    **dict.fromkeys(["softmax", "log_softmax"], "gb.soft_max(x), along the last axis"),
    **dict.fromkeys(["layer_norm", "LayerNorm"], "gb.norm(x) * weight + bias"),
    **dict.fromkeys(["cat", "concatenate", "hstack", "vstack"], "gb.concat([x, y], axis=0)"),
    "stack": "gb.concat([x[None], y[None]], axis=0)",
    **dict.fromkeys(["max", "min", "cumsum", "prod", "std", "var", "floor", "ceil", "round"], _CUSTOM),
    "maximum": "gb.where(a > b, a, b)",
    "minimum": "gb.where(a < b, a, b)",
    "dropout": "nothing is dropped where nothing is trained: leave it out",
    "linear": "x @ w.T + b",
    **dict.fromkeys(
        ["attention", "scaled_dot_product_attention"], "gb.flash_attn(q, k, v), or products and gb.soft_max"
    ),
    "pow": "x ** 2",
    "clip": "gb.clamp(x, low, high)",
}
_FUNCTIONS = {
    **_OPERATIONS,
    **dict.fromkeys(["zeros", "ones", "full", "empty", "rand", "randn", "arange"], _DATA),
    **dict.fromkeys(["array", "asarray", "from_numpy", "constant", "as_tensor"], _DATA),
    **dict.fromkeys(["load", "open", "load_gguf", "GGUFFile", "from_pretrained"], "gb.gguf.open(path)"),
    **dict.fromkeys(["save", "Writer"], "gb.gguf.Writer(path)"),
    **dict.fromkeys(["compute", "run", "eval"], _COMPUTE),
    **dict.fromkeys(["no_grad", "grad", "inference_mode"], _NO_GRADIENTS),
    **dict.fromkeys(["device", "cuda"], "gb.backends() lists what there is, gb.Backend(name) makes one"),
    **dict.fromkeys(["set_num_threads", "set_n_threads"], 'gb.Backend("CPU", n_threads=4)'),
    **dict.fromkeys(["float", "f32", "single"], "gb.float32"),
    **dict.fromkeys(["half", "f16"], "gb.float16"),
    **dict.fromkeys(["int", "i32", "long"], "gb.int32"),
    "bf16": "gb.bfloat16",
    "double": "nothing is computed with float64: gb.float32",
    **dict.fromkeys(
        ["bool", "uint8", "uint16", "uint32", "uint64"], "of integers tensors have int8, int16, int32 and int64"
    ),
    **dict.fromkeys(["nn", "Module", "Linear", "Parameter"], "a model is a function of tensors: gb.relu(x @ w.T + b)"),
    **dict.fromkeys(["optim", "autograd"], _NO_GRADIENTS),
}

# What objects have not, by class, and what is meant.
_LAST = "along the last axis"
_WHERE = (
    "a tensor is where its memory is: ctx.allocate(backend), backend.alloc(size).place(x), or where the scheduler"
    " puts it"
)
_RUN = "scheduler.compute(ctx.graph(x)) computes it, x.numpy() shows it"
_ATTRIBUTES: dict[str, dict[str, str]] = {
    "Tensor": {
        **_OPERATIONS,
        "sum": "gb.sum(x) adds all elements, gb.sum(x, axis=...) those along an axis",
        **{name: f"gb.{name}(x, axis=...)" for name in ("mean", "argmax", "argsort")},
        **dict.fromkeys(["softmax", "log_softmax"], f"gb.soft_max(x), {_LAST}"),
        **dict.fromkeys(["to", "cpu", "cuda"], _WHERE),
        "device": "x.location says where it is",
        "float": 'x.astype("float32")',
        "half": 'x.astype("float16")',
        "bfloat16": 'x.astype("bfloat16")',
        **dict.fromkeys(["int", "long"], 'x.astype("int32")'),
        "double": "nothing is computed with float64",
        **dict.fromkeys(["copy", "clone"], "gb.dup(x) is a node that copies, x.numpy(copy=True) an array"),
        **dict.fromkeys(["detach", "backward", "requires_grad", "requires_grad_", "grad"], _NO_GRADIENTS),
        "view": "x.reshape(shape)",
        **dict.fromkeys(["flatten", "ravel"], "x.reshape(-1)"),
        **dict.fromkeys(["unsqueeze", "expand_dims"], "x[None], x[:, None]"),
        "squeeze": "x[0], x[:, 0] or x.reshape(shape)",
        **dict.fromkeys(
            ["expand", "expand_as", "broadcast_to", "tile"], "operators broadcast, and gb.repeat(x, shape) repeats"
        ),
        "dim": "x.ndim",
        **dict.fromkeys(["numel", "nelement"], "x.size"),
        "t": "x.T",
        **dict.fromkeys(["mT", "H", "mH"], "x.swapaxes(-1, -2)"),
        **dict.fromkeys(["data", "value", "values", "array"], "x.numpy()"),
        **dict.fromkeys(["fill_", "fill", "copy_", "zero_"], "x.set(value)"),
        **dict.fromkeys(["compute", "eval", "run"], _RUN),
        **dict.fromkeys(["split", "chunk"], "slices are views: x[:2], x[2:]"),
    },
    "Context": {
        **dict.fromkeys(
            ["zeros", "ones", "full", "empty", "rand", "randn", "arange", "array", "asarray", "add_tensor"], _DATA
        ),
        **dict.fromkeys(["load", "open"], "gb.gguf.open(path).load(backend, context=ctx)"),
        **dict.fromkeys(["compute", "run"], "scheduler.compute(ctx.graph(x)) computes"),
    },
    "Graph": {
        **dict.fromkeys(["run", "forward", "eval"], "scheduler.compute(graph), or graph.compute(backend), runs it"),
        **dict.fromkeys(["inputs", "leaves"], "graph.leafs"),
        **dict.fromkeys(["tensors", "ops"], "graph.nodes, graph.leafs"),
        **dict.fromkeys(
            ["allocate", "plan", "explain"],
            "scheduler.allocate(graph), scheduler.prepare(graph), scheduler.explain(node)",
        ),
    },
    "Scheduler": {
        **dict.fromkeys(["run", "forward", "eval"], "scheduler.compute(graph)"),
        "plan": "scheduler.prepare(graph)",
        "set_callback": "scheduler.set_eval_callback(function)",
        **dict.fromkeys(["wait", "sync"], "scheduler.synchronize()"),
        **dict.fromkeys(["devices", "device"], "scheduler.backends"),
    },
    "Backend": {
        **dict.fromkeys(["compute", "run"], "graph.compute(backend), or scheduler.compute(graph)"),
        **dict.fromkeys(["memory", "free_memory"], "backend.max_size; scheduler.memory(backend) is what a graph needs"),
        **dict.fromkeys(["device", "type"], "backend.name"),
        **dict.fromkeys(
            ["tensor", "allocate"], "ctx.tensor(shape) makes a tensor, ctx.allocate(backend) gives it memory there"
        ),
        **dict.fromkeys(["threads", "num_threads"], "backend.n_threads"),
    },
    "Buffer": {
        **dict.fromkeys(["data", "numpy", "tobytes"], "a tensor shows what is in it: x.numpy()"),
        **dict.fromkeys(["free", "delete"], "buffer.close()"),
    },
    "Pending": {
        **dict.fromkeys(["result", "get"], "pending.results() is a list of arrays"),
        **dict.fromkeys(["synchronize", "join"], "pending.wait()"),
    },
    "Plan": {
        **dict.fromkeys(["peak", "size", "total"], 'plan.memory["CPU"].total'),
        **dict.fromkeys(["compute", "execute"], "plan.run()"),
        **dict.fromkeys(["save", "html", "show"], "plan.to_html(path)"),
    },
    "GGUFFile": {
        **dict.fromkeys(["keys", "fields", "kv"], "file.metadata"),
        **dict.fromkeys(["get_tensor", "tensor", "weights"], "file.tensors[name], or file.load(backend)"),
    },
    "gguf": {
        **dict.fromkeys(["load", "read", "Reader", "GGUFReader", "File"], "gb.gguf.open(path)"),
        **dict.fromkeys(["save", "write", "GGUFWriter"], "gb.gguf.Writer(path)"),
        "quantize": "gb.quantize",
    },
}

# Modules that are called like classes.
_MODULES = {
    "backend": 'gb.Backend("CPU") makes a backend',
    "buffer": "backend.alloc(size) makes a buffer",
    "context": "gb.Context() makes a context",
    "event": "gb.Event(backend) makes an event",
    "graph": "ctx.graph(tensor) makes a graph",
    "tensor": _DATA,
    "plan": "scheduler.prepare(graph) makes a plan",
    "trace": "scheduler.trace(path) begins one",
}


def _hinted(said: str, hint: str | None, name: str, known: Iterable[str]) -> str:
    return f"{said}; {hint}" if hint else said + close_matches(name, [k for k in known if not k.startswith("_")])


def _no_attribute(text: str, name: str) -> AttributeError:
    """Without the object, whose other names Python would look through for a hint of its own."""
    return AttributeError(text, name=name, obj=None)


def module_attribute(name: str, known: Iterable[str]) -> NoReturn:
    """What the package raises for a name that it has not."""
    raise _no_attribute(_hinted(f"ggml_backend has no {name!r}", _FUNCTIONS.get(name), name, known), name)


class _Missing:
    """Stands in a class for an attribute that it has not. (A ``__getattr__`` would make each look-up of those that it
    has slow.)"""

    __slots__ = ("hint", "name")

    def __init__(self, name: str, hint: str) -> None:
        self.name, self.hint = name, hint

    def __get__(self, thing: object, kind: type) -> NoReturn:
        raise _no_attribute(f"{kind.__name__!r} object has no attribute {self.name!r}; {self.hint}", self.name)


def without_missing(kind: type, names: Iterable[str]) -> list[str]:
    """Those of ``dir`` that are there."""
    return [name for name in names if not isinstance(inspect.getattr_static(kind, name, None), _Missing)]


def tell_missing(kind: type) -> None:
    """From now on objects of this class say what is meant by attributes that they have not."""
    hints = _ATTRIBUTES[kind.__name__]
    if kind.__name__ == "Tensor":
        hints = {
            **{name: f"gb.{name} is a function of tensors" for name in sys.modules["ggml_backend.ops"].__all__},
            **hints,
        }
    for name, hint in hints.items():
        if not hasattr(kind, name):
            setattr(kind, name, _Missing(name, hint))


def no_name(module: str, name: str, known: Iterable[str]) -> NoReturn:
    """What a module of the package raises for a name that it has not."""
    hint = _ATTRIBUTES[module].get(name)
    raise _no_attribute(_hinted(f"ggml_backend.{module} has no {name!r}", hint, name, known), name)


class _Uncallable(types.ModuleType):
    def __call__(self, *args: object, **options: object) -> NoReturn:
        name = self.__name__.rpartition(".")[2]
        raise TypeError(f"gb.{name} is a module; {_MODULES[name]}")


def refuse_calls() -> None:
    """``gb.backend("CPU")`` says what is meant."""
    for name in _MODULES:
        sys.modules[f"ggml_backend.{name}"].__class__ = _Uncallable


def made_by(core: Any, kind: type, what: str, how: str) -> None:
    """TypeError for who calls a class whose objects other calls make."""
    if not isinstance(core, kind):
        raise TypeError(f"{what}: objects of this class are not made by calling it; {how} makes one")
