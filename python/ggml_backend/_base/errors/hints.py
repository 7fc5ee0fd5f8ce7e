"""Hints for names that are not here: those of NumPy and PyTorch, and other spellings. Nothing here runs unless
something is missing."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from .messages import close_matches

__all__ = ["made_by", "module_attribute", "no_name", "tell_missing", "without_missing"]

_DATA = "ctx.constant(array) makes a tensor of data, ctx.tensor(shape) one to be set"
_CUSTOM = "there is no such operation; gb.map_custom(function, x) runs a function of yours"
_COMPUTE = "use scheduler.compute(graph)"
_NO_GRADIENTS = "gradients are not kept"

_OPERATIONS = {
    **dict.fromkeys(["mm", "bmm", "dot"], "use x @ w, or gb.matmul(x, w)"),
    **dict.fromkeys(["log_softmax", "log_soft_max"], "use gb.log(gb.softmax(x)), along the last axis"),
    **dict.fromkeys(["log_sigmoid", "logsigmoid"], "use gb.log(gb.sigmoid(x))"),
    "argmin": "use gb.argmax(-x, axis=-1)",
    "sort": "gb.argsort(x) gives the order, and gb.top_k(x, k) the largest",
    **dict.fromkeys(["gather", "take", "embedding", "index_select"], "use gb.get_rows(x, ids)"),
    **dict.fromkeys(["flatten", "ravel"], "use x.reshape(-1)"),
    **dict.fromkeys(["unsqueeze", "expand_dims"], "use x[None] or x[:, None]"),
    "squeeze": "use x[0], x[:, 0] or x.reshape(shape)",
    **dict.fromkeys(
        ["expand", "expand_as", "broadcast_to", "tile"], "operators broadcast, and gb.repeat(x, shape) repeats"
    ),
    **dict.fromkeys(["split", "chunk"], "slices are views: x[:2], x[2:]"),
    "logsumexp": "use gb.log(gb.sum(gb.exp(x), axis=-1))",
    **dict.fromkeys(["layer_norm", "LayerNorm"], "use gb.norm(x) * weight + bias"),
    **dict.fromkeys(["cat", "concatenate", "hstack", "vstack"], "use gb.concat([x, y], axis=0)"),
    "stack": "use gb.concat([x[None], y[None]], axis=0)",
    **dict.fromkeys(["max", "min", "cumsum", "prod", "std", "var", "floor", "ceil", "round"], _CUSTOM),
    "maximum": "use gb.where(a > b, a, b)",
    "minimum": "use gb.where(a < b, a, b)",
    "dropout": "nothing is dropped where nothing is trained: leave it out",
    "linear": "use x @ w.T + b",
    **dict.fromkeys(
        ["attention", "scaled_dot_product_attention"], "use gb.flash_attn(q, k, v), or products and gb.soft_max"
    ),
    "pow": "use x ** 2, or x * x * x",
    "clip": "use gb.clamp(gb.dup(x), low, high); gb.clamp alone overwrites its tensor",
}
_FUNCTIONS = {
    **_OPERATIONS,
    **dict.fromkeys(["zeros", "ones", "full", "empty", "eye", "rand", "randn", "arange", "linspace"], _DATA),
    **dict.fromkeys(["zeros_like", "ones_like", "full_like", "empty_like"], _DATA),
    **dict.fromkeys(["array", "asarray", "from_numpy", "from_array", "constant", "as_tensor"], _DATA),
    **dict.fromkeys(["load", "open", "load_gguf", "GGUFFile", "from_pretrained"], "use gb.gguf.open(path)"),
    **dict.fromkeys(["save", "Writer"], "use gb.gguf.Writer(path)"),
    **dict.fromkeys(["compute", "run", "eval"], _COMPUTE),
    **dict.fromkeys(["no_grad", "grad", "inference_mode"], _NO_GRADIENTS),
    "cuda": "gb.backends() lists what there is, gb.Backend(name) makes one",
    **dict.fromkeys(["set_num_threads", "set_n_threads"], 'use gb.Backend("CPU", n_threads=4)'),
    **dict.fromkeys(["float", "f32", "single"], "use gb.float32"),
    **dict.fromkeys(["half", "f16"], "use gb.float16"),
    **dict.fromkeys(["int", "i32", "long"], "use gb.int32"),
    "bf16": "use gb.bfloat16",
    "double": "nothing is computed with float64; use gb.float32",
    **dict.fromkeys(
        ["bool", "bool_", "uint8", "uint16", "uint32", "uint64"],
        "the integers of tensors are int8, int16, int32 and int64",
    ),
    **dict.fromkeys(["nn", "Module", "Linear", "Parameter"], "a model is a function of tensors: gb.relu(x @ w.T + b)"),
    **dict.fromkeys(["optim", "autograd"], _NO_GRADIENTS),
}

# What objects have not, by class, and what is meant.
_WHERE = (
    "a tensor is where its memory is: ctx.allocate(backend), backend.allocate(size).place(x), or where the scheduler"
    " puts it"
)
_RUN = "scheduler.compute(ctx.graph(x)) computes it, x.numpy() shows it"
_ATTRIBUTES: dict[str, dict[str, str]] = {
    "Tensor": {
        **_OPERATIONS,
        "matmul": "use x @ w, or gb.matmul(x, w)",
        "sum": "gb.sum(x) adds all elements, gb.sum(x, axis=...) those along an axis",
        **{name: f"use gb.{name}(x, axis=...)" for name in ("mean", "argmax", "argsort")},
        **dict.fromkeys(["to", "cpu", "cuda"], _WHERE),
        "device": "x.location says where it is",
        "float": 'use x.astype("float32")',
        "half": 'use x.astype("float16")',
        "bfloat16": 'use x.astype("bfloat16")',
        **dict.fromkeys(["int", "long"], 'use x.astype("int32")'),
        "double": "nothing is computed with float64",
        **dict.fromkeys(["copy", "clone"], "gb.dup(x) is a node that copies, x.numpy(copy=True) an array"),
        **dict.fromkeys(["detach", "backward", "requires_grad", "requires_grad_", "grad"], _NO_GRADIENTS),
        "view": "use x.reshape(shape)",
        "dim": "use x.ndim",
        **dict.fromkeys(["numel", "nelement"], "use x.size"),
        "t": "use x.T",
        **dict.fromkeys(["mT", "H", "mH"], "use x.swapaxes(-1, -2)"),
        **dict.fromkeys(["data", "value", "values", "array"], "use x.numpy()"),
        **dict.fromkeys(["fill_", "fill", "copy_", "zero_"], "use x.set(value)"),
        **dict.fromkeys(["compute", "eval", "run"], _RUN),
    },
    "Context": {
        **dict.fromkeys(
            ["zeros", "ones", "full", "empty", "rand", "randn", "arange", "array", "asarray", "add_tensor"], _DATA
        ),
        **dict.fromkeys(["load", "open"], "use gb.gguf.open(path).load(backend, context=ctx)"),
        **dict.fromkeys(["compute", "run"], "use scheduler.compute(ctx.graph(x))"),
    },
    "Graph": {
        **dict.fromkeys(["run", "forward", "eval"], "use scheduler.compute(graph), or graph.compute(backend)"),
        **dict.fromkeys(["inputs", "leaves"], "use graph.leafs"),
        **dict.fromkeys(["tensors", "ops"], "use graph.nodes and graph.leafs"),
        "allocate": "use scheduler.allocate(graph)",
        "plan": "use scheduler.prepare(graph)",
        "explain": "use scheduler.explain(node)",
    },
    "Scheduler": {
        **dict.fromkeys(["run", "forward", "eval"], _COMPUTE),
        "plan": "use scheduler.prepare(graph)",
        "set_callback": "use scheduler.set_eval_callback(function)",
        **dict.fromkeys(["wait", "sync"], "use scheduler.synchronize()"),
        **dict.fromkeys(["devices", "device"], "use scheduler.backends"),
    },
    "Backend": {
        **dict.fromkeys(["compute", "run"], "use graph.compute(backend), or scheduler.compute(graph)"),
        **dict.fromkeys(["memory", "free_memory"], "backend.max_nbytes, or scheduler.memory(backend) for a graph"),
        **dict.fromkeys(["device", "type"], "use backend.name"),
        **dict.fromkeys(
            ["tensor", "allocate"], "ctx.tensor(shape) makes a tensor, ctx.allocate(backend) gives it memory there"
        ),
        **dict.fromkeys(["threads", "num_threads"], "use backend.n_threads"),
        **dict.fromkeys(["buffer", "malloc"], "use backend.allocate(size)"),
    },
    "Buffer": {
        **dict.fromkeys(["data", "numpy", "tobytes"], "a tensor shows what is in it: x.numpy()"),
        **dict.fromkeys(["free", "delete"], "use buffer.close()"),
    },
    "Pending": {
        **dict.fromkeys(["result", "get"], "pending.results() is a list of arrays"),
        **dict.fromkeys(["synchronize", "join"], "use pending.wait()"),
    },
    "Plan": {
        **dict.fromkeys(["peak", "size", "total"], 'use plan.memory["CPU"].total'),
        **dict.fromkeys(["compute", "execute"], "use plan.compute()"),
        **dict.fromkeys(["save", "html", "show"], "use plan.to_html(path)"),
    },
    "GGUFFile": {
        **dict.fromkeys(["keys", "fields", "kv"], "use file.metadata"),
        **dict.fromkeys(["get_tensor", "tensor", "weights"], "use file.tensors[name], or file.load(backend)"),
    },
    "gguf": {
        **dict.fromkeys(["load", "read", "Reader", "GGUFReader", "File"], "use gb.gguf.open(path)"),
        **dict.fromkeys(["save", "write", "GGUFWriter"], "use gb.gguf.Writer(path)"),
        "quantize": "use gb.quantize",
    },
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


def made_by(core: Any, kind: type, what: str, how: str) -> None:
    """TypeError for who calls a class whose objects other calls make."""
    if not isinstance(core, kind):
        raise TypeError(f"{what}: objects of this class are not made by calling it; {how} makes one")
