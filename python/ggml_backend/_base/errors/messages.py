"""What the C library says, in the words of this package, and hints for what is likely meant.

The library speaks of its own functions, of types by short names, and of shapes in its order of dimensions (``ne``).
Here that becomes argument names, dtypes, axes and shapes in NumPy order. Nothing here runs unless something has failed.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..._ffi import ffi

__all__ = ["add_note", "close_matches", "hint_of", "kind_of", "plain", "reader_hint", "reason_of"]

_DTYPES = {
    "f32": "float32", "f16": "float16", "f64": "float64", "bf16": "bfloat16", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64",
}  # fmt: skip

# What the parameters of C functions are called here.
_PARAMETERS = {
    "s0": "stride", "s1": "stride", "p0": "padding", "p1": "padding", "d0": "dilation", "d1": "dilation",
    "k0": "kernel", "k1": "kernel",
    "scale_factor": "factor", "w": "window", "w0": "width", "h0": "height", "n_as": "the number of matrices",
}  # fmt: skip


def _dtype(c_name: str) -> str:
    return _DTYPES.get(c_name, c_name.lower())


def _shape(ne: str) -> str:
    """``"128, 64"`` in C's order as ``"(64, 128)"``."""
    sizes = [int(n) for n in re.split(r",\s*", ne) if n]
    return str(tuple(reversed(sizes)))


# -------------------------------------------------------------------------------------------------- messages as a whole

_FUNCTION = re.compile(r"^(?:(?:ggml|gguf|gb)_\w+: )+")
_TENSOR = r"'[^']*' [a-z]\w* \[(?:\d+(?:, \d+)*)?\]"  # 'x' f32 [128, 16]
_DESCRIPTION = re.compile(r"('[^']*') ([a-z]\w*) \[((?:\d+(?:, \d+)*)?)\]")
_NODE = re.compile(rf"\b([A-Z]\w*) {_TENSOR} of ({_TENSOR}(?:, {_TENSOR})*)")
_SOURCE = re.compile(r"(?:type of )?src\[(\d+)\]")
_ARGUMENT = re.compile(r"^argument '(\w+)':? ")
_POSITION = re.compile(r"\bat \[(\d+(?:, ?\d+)*)\]")
# a name is left alone
_WORD = re.compile(rf"'[^']*'|\btype of (?=src\[|the result)|\bsrc\[(\d+)\]|\b({'|'.join(_DTYPES)})\b")


def _described(match: re.Match[str]) -> str:
    name, dtype, ne = match.groups()
    shown = f"{_dtype(dtype)} {_shape(ne)}"
    return shown if name == "''" else f"{name} {shown}"


def message_of(pointer: Any) -> str:
    """A C string that people read, "" for NULL: bytes that are no UTF-8 as ``\\xff``, so that it prints anywhere."""
    return ffi.string(pointer).decode("utf-8", "backslashreplace") if pointer else ""


def plain(message: str) -> str:
    """A message of C without the names of C functions, with tensors, dtypes and positions as Python describes them."""
    text = _ARGUMENT.sub(r"\1 ", _FUNCTION.sub("", message))
    node = _NODE.search(text)
    if node is not None:
        text = _with_names(text, node)
    text = _DESCRIPTION.sub(_described, text)
    text = _WORD.sub(_translated, text)
    return _POSITION.sub(lambda match: f"at {_shape(match[1])}", text)


def _translated(match: re.Match[str]) -> str:
    if match[0] == "type of ":
        return "dtype of "
    if match[1] is not None:
        return f"sources[{match[1]}]"
    return _dtype(match[2]) if match[2] is not None else match[0]


# --------------------------------------------------------------------------------------- a node that no backend can run


def _with_names(text: str, node: re.Match[str]) -> str:
    """What is said of ``src[1]`` behind the description of a node is said of that tensor, and what to do about its
    dtype."""
    sources = [match.groups() for match in _DESCRIPTION.finditer(node[2])]

    def named(match: re.Match[str]) -> str:
        at = int(match[1])
        if at >= len(sources) or sources[at][0] == "''":
            return match[0]
        name, dtype, _ = sources[at]
        return f"dtype of {name} ({dtype})" if match[0].startswith("type") else str(name)

    reasons = text[node.end() :]
    return text[: node.end()] + _SOURCE.sub(named, reasons) + _dtype_hint(node[1], sources, reasons)


def _dtype_hint(op: str, sources: Sequence[tuple[str | Any, ...]], reasons: str) -> str:
    """How the sources of a node get dtypes that backends compute with."""
    if "type" not in reasons:
        return ""
    for i, (name, dtype, _) in enumerate(sources[:1] if op == "CPY" else sources):  # the other one of CPY is the result
        if dtype in ("f64", "i8", "i16", "i64"):
            usual = ", the default of NumPy" if dtype in ("f64", "i64") else ""
            indices = "" if dtype == "f64" else ", or of array.astype(np.int32) for indices"
            return f"; nothing is computed with {dtype}{usual}: make {name} of array.astype(np.float32){indices}"
        if dtype == "i32" and ("the result must be f32" in reasons or f"src[{i}] must be f32" in reasons):
            return f"; {name} is i32: its astype('float32') is a node that converts"
    if op == "MUL_MAT" and "src[1] must be" in reasons and sources[1][1] != "i32":
        return (
            "; what is neither float32 nor of the same dtype stands on the right of a product: h @ x is (x.T @ h.T).T"
        )
    return ""


# --------------------------------------------------------------------------------------------------------- broken rules

_MARK = re.compile(r"\{([^}]*)\}")
_EXPERT = re.compile(r"as\[(\d)\]")


def _label(role: str, labels: Sequence[str]) -> str:
    """What Python calls the operand that C calls ``role``."""
    if role in labels:
        return role
    expert = _EXPERT.fullmatch(role)
    if expert:
        return f"matrices[{expert[1]}]"
    position = "abcdefgh".find(role) if len(role) == 1 else -1
    return labels[position] if 0 <= position < len(labels) else role


def reason_of(marked: str, op: str, labels: Sequence[str], ndims: Sequence[int]) -> str:
    """The reason of a broken rule in the words of Python. ``marked``: as c/src/tensor/rule.h says."""
    missing = False

    def axis(roles: list[str], dim: int, bare: bool) -> str:
        nonlocal missing
        names = [_label(role, labels) for role in roles]
        missing = missing or any(name in labels and dim >= ndims[list(labels).index(name)] for name in names)
        return f"axis {-1 - dim}" if bare else f"axis {-1 - dim} of {' and '.join(names)}"

    def said(match: re.Match[str]) -> str:
        mark = match[1]
        kind, rest = mark[:1], mark[1:]
        if kind == "!":
            return ""
        if kind == "#":
            return _dtype(rest)
        if kind == "@":
            return _shape(rest.strip("[]"))
        if kind == "$":
            return "amounts" if op == "pad" else _PARAMETERS.get(rest, rest)
        roles, dot, dim = (rest if kind == "~" else mark).partition(".")
        if not dot:
            return _label(roles, labels)
        return axis(roles.split(",") if roles else [], int(dim), kind == "~")

    text = _MARK.sub(said, marked)
    return f"{text}; missing axes count as 1" if missing else text


# ---------------------------------------------------------------------------------------------------------------- hints


def _repeats(a: Sequence[int], b: Sequence[int]) -> bool:
    """Is every size of ``a`` a multiple of that of ``b``, as ggml repeats b over a?"""
    if len(b) > len(a) and math.prod(b[: len(b) - len(a)]) != 1:
        return False
    return all(x % y == 0 if y else x == 0 for x, y in zip(reversed(a), reversed(b), strict=False))


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    """By NumPy's rules."""
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def hint_of(op: str, marked: str, labels: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> str:
    """What is likely meant, as a clause to append; "" where nothing is likely."""
    role = re.match(r"\{(\w+)\} must (?:be contiguous|not be transposed)", marked)
    if role:
        name = _label(role[1], labels)
        if op == "reshape":
            return f"; {name}.reshape(...) copies where it must"
        return f"; {name}.contiguous() makes a copy that is"
    if marked.startswith("{b} must be {#i32}"):
        name = _label("b", labels)
        wrong = marked.rpartition("{#")[2]
        return (
            f"; make {name} with dtype"
            f" gb.int32{' (integers of NumPy are int64 by default)' if wrong.startswith('i64') else ''}"
        )
    if op in _SYMBOLS and len(shapes) == 2:
        a, b = shapes
        if _broadcasts(a, b):
            return f"; b repeats over a, not a over b: a {_SYMBOLS[op]} b broadcasts as NumPy does"
    if op == "mul_mat" and "{a,b.0} must be equal" in marked:
        return "; mul_mat(a, b) multiplies rows by rows: it is b @ a.T"
    if op == "argmax" and "{a}" in marked:
        return f"; gb.argmax({_label('a', labels)}, axis=-1) takes any number of axes"
    if op == "get_rows" and marked.startswith("{a.2}"):
        return "; reshape b to one axis to pick rows of one matrix"
    return ""


def product_hint(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """For ``a @ b`` whose inner sizes differ."""
    if len(b) > 1 and a[-1] == b[-1]:
        return f"; did you mean a @ {'b.T' if len(b) == 2 else 'b.swapaxes(-1, -2)'}?"
    if len(a) > 1 and len(b) > 1 and a[-2] == b[-2]:
        return f"; did you mean {'a.T' if len(a) == 2 else 'a.swapaxes(-1, -2)'} @ b?"
    return ""


def broadcast_reason(symbol: str, a: tuple[int, ...], b: tuple[int, ...]) -> str:
    """Why ``a + b`` is not possible, for shapes that NumPy does not broadcast."""
    axis, x, y = next(
        (-1 - i, x, y)
        for i, (x, y) in enumerate(zip(reversed(a), reversed(b), strict=False))
        if x != y and 1 not in (x, y)
    )
    names = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
    hint = f"; gb.{names[symbol]}(a, b) repeats b over a" if symbol in names and _repeats(a, b) else ""
    return f"the shapes do not broadcast, axis {axis} has {x} and {y} elements{hint}"


def close_matches(wrong: str, known: Iterable[str]) -> str:
    """``"; did you mean 'q4_0'?"``, or nothing."""
    names = {name.lower(): name for name in known}
    begin = [name for name in names if len(wrong) > 1 and name.startswith(wrong.lower())]
    found = [repr(names[name]) for name in begin[:3] or difflib.get_close_matches(wrong.lower(), list(names), 3, 0.7)]
    return f"; did you mean {' or '.join(found)}?" if found else ""


class UnknownKey(KeyError):
    """A KeyError that says which keys are near, when it is shown and not before: many are caught."""

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
    """The first of the keys that there are."""
    with contextlib.suppress(Exception):
        names = [repr(k) for _, k in zip(range(6), known, strict=False)]
        return f"; there are {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else ""
    return ""


UnknownKey.__module__ = "ggml_backend"


def kind_of(value: object) -> str:
    """The type of a value, with the package that it comes from: ``torch.Tensor``, ``numpy.ndarray``, ``str``."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return (
        kind.__qualname__ if package in ("builtins", "ggml_backend", "__main__") else f"{package}.{kind.__qualname__}"
    )


def tensor_hint(value: object) -> str:
    """How one makes a tensor of something that is none."""
    if kind_of(value).startswith("numpy.") or isinstance(value, (int, float, list, tuple)):
        return "; ctx.constant(value) makes one, and ctx.from_numpy(array) one over its memory"
    if any(hasattr(value, name) for name in ("__dlpack__", "__array__", "__array_interface__")):
        return "; ctx.from_dlpack(value) makes one over its memory, ctx.constant(value) one with a copy"
    return ""


_TO_HOST = {"torch": "t.cpu()", "jax": "jax.device_get(x)", "jaxlib": "jax.device_get(x)", "cupy": "cupy.asnumpy(x)"}


def host_hint(value: object) -> str:
    """How the array of another library comes out of a device's memory."""
    how = _TO_HOST.get(type(value).__module__.partition(".")[0])
    return f"; {how} is a copy in the host's" if how else "; it must be copied to the host's"


def maker_hint(wanted: str, value: object) -> str:
    """How one makes an object of this package of what was given instead, if that is likely meant."""
    if wanted == "Backend" and isinstance(value, str):
        return f"; gb.Backend({value!r}) makes one"
    if wanted == "Graph" and kind_of(value) in ("Tensor", "list", "tuple"):
        return "; ctx.graph(tensor) makes one"
    if wanted == "Tensor":
        return tensor_hint(value)
    return ""


def reader_hint(value: object) -> str:
    """How one opens what is no path."""
    if isinstance(value, int) or hasattr(value, "fileno"):
        file = "file" if hasattr(value, "fileno") else "descriptor"
        return (
            f"; give the path, or mmap.mmap({file}{'.fileno()' if file == 'file' else ''}, 0, access=mmap.ACCESS_READ)"
        )
    if isinstance(value, (list, tuple)):
        return "; of a split file, give the path of one part"
    return ""


def add_note(error: BaseException, note: str) -> None:
    """Tells more about an exception of the user's code. Python 3.10 does not show notes, but they are there."""
    add: Callable[[str], Any] | None = getattr(error, "add_note", None)
    if add is not None:
        add(note)
    else:
        error.__dict__.setdefault("__notes__", []).append(note)
