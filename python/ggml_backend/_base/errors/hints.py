"""Names that users of NumPy and PyTorch look for in the package, and what is called differently here. Nothing here runs
unless a name is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from .messages import close_matches

__all__ = ["made_by", "no_name"]

_DATA = "ctx.constant(array) makes a tensor of data, ctx.tensor(shape) one to be set"
_MEANT = {
    **dict.fromkeys(["mm", "dot"], "use x @ w"),
    "log_softmax": "use gb.log(gb.softmax(x)), along the last axis",
    "argmin": "use gb.argmax(-x, axis=-1)",
    "sort": "gb.argsort(x) gives the order, and gb.top_k(x, k) the largest",
    **dict.fromkeys(["take", "gather", "embedding"], "use gb.get_rows(x, ids)"),
    **dict.fromkeys(["cat", "concatenate"], "use gb.concat([x, y], axis=0)"),
    "stack": "use gb.concat([x[None], y[None]], axis=0)",
    "layer_norm": "use gb.norm(x) * weight + bias",
    "scaled_dot_product_attention": "use gb.flash_attn(q, k, v), or products and gb.softmax",
    "maximum": "use gb.where(a > b, a, b)",
    "minimum": "use gb.where(a < b, a, b)",
    "clip": "use gb.clamp(gb.dup(x), low, high); gb.clamp alone overwrites its tensor",
    **dict.fromkeys(["array", "asarray", "zeros", "from_numpy"], _DATA),
    **dict.fromkeys(["load", "open"], "use gb.gguf.open(path)"),
    "compute": "use scheduler.compute(graph)",
    "cuda": "gb.backends() lists the devices, gb.Backend(name) makes one",
}


def no_name(module: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raises AttributeError for a name that a module of the package does not have."""
    meant = _MEANT.get(name) if module == "ggml_backend" or name == "load" else None
    hint = f"; {meant}" if meant else close_matches(name, [k for k in known if not k.startswith("_")])
    # without the object, in which Python would look for close names again
    raise AttributeError(f"{module} has no {name!r}{hint}", name=name, obj=None)


def made_by(core: Any, kind: type, what: str, how: str) -> None:
    """TypeError for a class whose objects other calls make."""
    if not isinstance(core, kind):
        raise TypeError(f"{what} objects are not made by calling the class: {how} makes one")
