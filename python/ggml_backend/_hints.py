"""What is meant by names that are not here: those of NumPy and PyTorch, other spellings, modules called like classes. Nothing here runs
unless something is missing."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Any, NoReturn

from ._messages import close_matches

__all__ = ["made_by", "module_attribute", "refuse_calls"]

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
    **dict.fromkeys(["exp", "sin", "cos", "sigmoid", "where", "maximum", "minimum", "max", "min", "cumsum", "prod", "std", "var"], _CUSTOM),
    "dropout": "nothing is dropped where nothing is trained: leave it out",
    "linear": "x @ w.T + b",
    **dict.fromkeys(["attention", "scaled_dot_product_attention"], "gb.flash_attn(q, k, v), or products and gb.soft_max"),
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
}

# Modules that are called like classes.
_MODULES = {
    "backend": 'gb.Backend("CPU") makes a backend',
    "buffer": "backend.alloc(size) makes a buffer",
    "event": "gb.Event(backend) makes an event",
    "graph": "ctx.graph(tensor) makes a graph",
    "tensor": _DATA,
    "plan": "scheduler.prepare(graph) makes a plan",
    "trace": "scheduler.trace(path) begins one",
}


def _hinted(said: str, hint: str | None, name: str, known: Iterable[str]) -> str:
    return f"{said}; {hint}" if hint else said + close_matches(name, [k for k in known if not k.startswith("_")])


def module_attribute(name: str, known: Iterable[str]) -> NoReturn:
    """What the package raises for a name that it has not."""
    raise AttributeError(_hinted(f"ggml_backend has no {name!r}", _FUNCTIONS.get(name), name, known))


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
