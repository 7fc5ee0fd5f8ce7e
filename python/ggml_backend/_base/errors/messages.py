"""Clauses for error messages that say what the user probably meant. This code runs only after a failure."""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from .faults import Fault

__all__ = ["add_note", "close_matches", "hint_of", "kind_of", "made_by", "no_name", "reader_hint"]


def _repeats(a: Sequence[int], b: Sequence[int]) -> bool:
    """True if ggml can repeat b over a: each size of ``a`` is a multiple of that of ``b``."""
    if len(b) > len(a) and math.prod(b[: len(b) - len(a)]) != 1:
        return False
    return all(x % y == 0 if y else x == 0 for x, y in zip(reversed(a), reversed(b), strict=False))


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    """True if the shapes broadcast by NumPy's rules."""
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def hint_of(fault: Fault, shapes: Sequence[tuple[int, ...]]) -> str:
    """A clause to append to the message of a broken rule: what the caller probably meant, or ""."""
    kind, op, name = fault.kind, fault.operator, fault.operands[0] if fault.operands else ""
    if kind in ("NOT_CONTIGUOUS", "TRANSPOSED"):
        if op == "reshape":
            return f"; {name}.reshape(...) copies where it must"
        return f"; {name}.contiguous() makes a copy that is"
    if kind == "OTHER_TYPE" and fault.dtypes[0] == "int32":
        of_numpy = " (integers of NumPy are int64 by default)" if fault.dtypes[1] == "int64" else ""
        return f"; make {name} with dtype gb.int32{of_numpy}"
    if op in _SYMBOLS and len(shapes) == 2 and _broadcasts(*shapes):
        return f"; b repeats over a, not a over b: a {_SYMBOLS[op]} b broadcasts as NumPy does"
    if op == "mul_mat" and kind == "UNEQUAL" and fault.axes == (-1,):
        return "; mul_mat(a, b) multiplies rows by rows: it is b @ a.T"
    if op == "argmax" and fault.operands:
        return f"; gb.ops.argmax({name}, axis=-1) takes any number of axes"
    if op == "get_rows" and kind == "UNEQUAL_DIMS":
        return "; reshape b to one axis to pick rows of one matrix"
    return ""


def product_hint(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """The clause for ``a @ b`` whose inner sizes differ."""
    if len(b) > 1 and a[-1] == b[-1]:
        return f"; did you mean a @ {'b.T' if len(b) == 2 else 'b.swapaxes(-1, -2)'}?"
    if len(a) > 1 and len(b) > 1 and a[-2] == b[-2]:
        return f"; did you mean {'a.T' if len(a) == 2 else 'a.swapaxes(-1, -2)'} @ b?"
    return ""


def broadcast_reason(symbol: str, a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """The clause for ``a + b`` with shapes that NumPy does not broadcast."""
    axis, x, y = next(
        (-1 - i, x, y)
        for i, (x, y) in enumerate(zip(reversed(a), reversed(b), strict=False))
        if x != y and 1 not in (x, y)
    )
    names = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
    hint = f"; gb.ops.{names[symbol]}(a, b) repeats b over a" if symbol in names and _repeats(a, b) else ""
    return f"the shapes do not broadcast, axis {axis} has {x} and {y} elements{hint}"


def close_matches(wrong: str, known: Iterable[str], paths: Mapping[str, str] | None = None) -> str:
    """``"; did you mean 'q4_0'?"``, or "". ``paths``: the text to show for a name."""
    names = {name.lower(): (paths or {}).get(name, name) for name in known}
    begin = [name for name in names if len(wrong) > 1 and name.startswith(wrong.lower())]
    found = [repr(names[name]) for name in begin[:3] or difflib.get_close_matches(wrong.lower(), list(names), 3, 0.7)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


class UnknownKey(KeyError):
    """A KeyError that names similar keys. It searches them when it is shown, because most are caught."""

    def __init__(self, key: object, known: Any) -> None:
        super().__init__(key)
        self.known = known

    def __str__(self) -> str:
        key, near = self.args[0], ""
        with contextlib.suppress(Exception):  # of what is closed by now
            near = close_matches(key, self.known)
        if not isinstance(key, str):
            return f"{key!r:.60}; the keys are names"
        return repr(key) + (near or _some(self.known))


def _some(known: Any) -> str:
    """The first keys."""
    with contextlib.suppress(Exception):
        names = [repr(k) for _, k in zip(range(6), known, strict=False)]
        return f"; there are {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else ""
    return ""


def kind_of(value: object) -> str:
    """The type of a value, with the package that it comes from: ``torch.Tensor``, ``numpy.ndarray``, ``str``."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return (
        kind.__qualname__ if package in ("builtins", "ggml_backend", "__main__") else f"{package}.{kind.__qualname__}"
    )


def tensor_hint(value: object) -> str:
    """A hint on how to make a tensor of a value."""
    if kind_of(value).startswith("numpy.") or isinstance(value, (int, float, list, tuple)):
        return "; ctx.constant(value) makes one, and ctx.from_numpy(array) one over its memory"
    if any(hasattr(value, name) for name in ("__dlpack__", "__array__", "__array_interface__")):
        return "; ctx.from_dlpack(value) makes one over its memory, ctx.constant(value) one with a copy"
    return ""


_TO_HOST = {"torch": "t.cpu()", "jax": "jax.device_get(x)", "jaxlib": "jax.device_get(x)", "cupy": "cupy.asnumpy(x)"}


def host_hint(value: object) -> str:
    """A hint on how to copy an array of another library from a device."""
    how = _TO_HOST.get(type(value).__module__.partition(".")[0])
    return f"; {how} is a copy in the host's" if how else "; it must be copied to the host's"


def maker_hint(wanted: str, value: object) -> str:
    """A hint on how to make the wanted object from the given value, if there is a likely way."""
    if wanted == "Backend" and isinstance(value, str):
        return f"; gb.Backend({value!r}) makes one"
    if wanted == "Graph" and kind_of(value) in ("Tensor", "list", "tuple"):
        return "; ctx.graph(tensor) makes one"
    if wanted == "Tensor":
        return tensor_hint(value)
    return ""


def reader_hint(value: object) -> str:
    """A hint on how to open a value that is not a path."""
    if isinstance(value, int) or hasattr(value, "fileno"):
        file = "file" if hasattr(value, "fileno") else "descriptor"
        return (
            f"; give the path, or mmap.mmap({file}{'.fileno()' if file == 'file' else ''}, 0, access=mmap.ACCESS_READ)"
        )
    if isinstance(value, (list, tuple)):
        return "; of a split file, give the path of one part"
    return ""


def add_note(error: BaseException, note: str) -> None:
    """Adds a note to an exception of the user's code. Python 3.10 keeps notes but does not show them."""
    add: Callable[[str], Any] | None = getattr(error, "add_note", None)
    if add is not None:
        add(note)
    else:
        error.__dict__.setdefault("__notes__", []).append(note)


# Names of NumPy and PyTorch that the package does not have, and what to use.
_DATA = "ctx.constant(array) makes a tensor of data, ctx.tensor(shape) one to be set"
_MEANT = {
    **dict.fromkeys(["mm", "dot"], "use x @ w"),
    "log_softmax": "use gb.ops.log(gb.ops.softmax(x)), along the last axis",
    "argmin": "use gb.ops.argmax(-x, axis=-1)",
    "sort": "gb.ops.argsort(x) gives the order, and gb.ops.top_k(x, k) the largest",
    **dict.fromkeys(["take", "gather", "embedding"], "use gb.ops.get_rows(x, ids)"),
    **dict.fromkeys(["cat", "concatenate"], "use gb.ops.concat([x, y], axis=0)"),
    "stack": "use gb.ops.concat([x[None], y[None]], axis=0)",
    "layer_norm": "use gb.ops.norm(x) * weight + bias",
    "scaled_dot_product_attention": "use gb.ops.flash_attn(q, k, v), or products and gb.ops.softmax",
    "maximum": "use gb.ops.where(a > b, a, b)",
    "minimum": "use gb.ops.where(a < b, a, b)",
    "clip": "use gb.ops.clamp(gb.ops.dup(x), low, high); gb.ops.clamp alone overwrites its tensor",
    **dict.fromkeys(["array", "asarray", "zeros", "from_numpy"], _DATA),
    **dict.fromkeys(["load", "open"], "use gb.gguf.open(path)"),
    "compute": "use scheduler.compute(graph)",
    "cuda": "gb.backends() lists the devices, gb.Backend(name) makes one",
}


def no_name(module: str, name: str, known: Iterable[str], paths: Mapping[str, str] | None = None) -> NoReturn:
    """Raises AttributeError for a name that a module of the package does not have, and names close ones."""
    meant = _MEANT.get(name) if module in ("ggml_backend", "ggml_backend.ops") or name == "load" else None
    hint = f"; {meant}" if meant else close_matches(name, known, paths)
    # Without the object: Python would search its names, too.
    raise AttributeError(f"{module} has no {name!r}{hint}", name=name, obj=None)


def made_by(core: Any, kind: type, what: str, how: str) -> None:
    """Raises TypeError for a class whose objects other calls make."""
    if not isinstance(core, kind):
        raise TypeError(f"{what} objects are not made by calling the class: {how} makes one")
