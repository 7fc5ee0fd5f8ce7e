"""Writes messages about failures of the C library in the terms of the user.

C records a failure as a message and, for a broken rule of an operator, as values (``c/src/base/fault.h``). The message
of a rule is a row of ``fault.def`` with fields for the values. This module fills in the same row with names of
arguments, axes and dtypes. In other messages C encloses tensors and shapes in two bytes; this module
converts them to NumPy's notation. No Python code parses the words of C. This code runs only after a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..._ffi import ffi, lib

__all__ = ["Fault", "broken_rule", "last_message", "message_of", "node_refused", "quoted", "spoken"]

_DTYPES = {
    "f32": "float32", "f16": "float16", "f64": "float64", "bf16": "bfloat16", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64",
}  # fmt: skip

# Names of parameters in C, and in Python.
_PARAMETERS = {
    "s0": "stride", "s1": "stride", "p0": "padding", "p1": "padding", "d0": "dilation", "d1": "dilation",
    "s2": "stride", "p2": "padding", "d2": "dilation", "n_channels": "channels",
    "k0": "kernel", "k1": "kernel",
    "scale_factor": "factor", "w": "window", "w0": "width", "h0": "height", "n_as": "the number of matrices",
}  # fmt: skip

_BEGIN, _END = "\x0e", "\x0f"  # GB_QUOTE


class Fault(NamedTuple):
    """The values of a broken rule of an operator, in the order in which the message has them."""

    kind: str
    """The broken rule: a row of ``fault.def``, such as ``"UNEQUAL"``."""
    operator: str
    operands: tuple[str, ...] = ()
    """Names of the arguments that the rule is about."""
    axes: tuple[int, ...] = ()
    """Axes of the operands, counted from the last one: -1, -2, ..."""
    numbers: tuple[float, ...] = ()
    dtypes: tuple[str, ...] = ()
    parameter: str | None = None
    """The argument that is no tensor."""


def message_of(pointer: Any) -> str:
    """A printable C string, "" for NULL. Bytes that are not UTF-8 become ``\\xff``."""
    return ffi.string(pointer).decode("utf-8", "backslashreplace") if pointer else ""


def last_message() -> str:
    """The message of this thread's last failure, without the names of C functions, for :func:`spoken`."""
    return message_of(lib.gbpy_last_message())


def _dtype(c_name: str) -> str:
    return _DTYPES.get(c_name, c_name.lower())


# ------------------------------------------------------------------------------------------------- messages with quotes


def quoted(message: str) -> list[str]:
    """The values that C has enclosed in a message, in C's notation."""
    return [part.partition(_END)[0] for part in message.split(_BEGIN)[1:]]


def spoken(message: str) -> str:
    """A message with tensors, shapes and dtypes in NumPy's terms."""
    first, *rest = message.split(_BEGIN)
    for part in rest:
        value, end, behind = part.partition(_END)
        first += (_worded(value) if end else value) + behind
    return first


def _parts(value: str) -> tuple[str, str, tuple[int, ...]]:
    """Name in quotation marks, dtype of C and shape of ``'x' f32 [128, 16]``."""
    head, _, sizes = value.removesuffix("]").rpartition("[")
    name, _, dtype = head.rstrip().rpartition(" ")
    return name, dtype, tuple(int(n) for n in reversed(sizes.split(", ")) if n)


def _worded(value: str) -> str:
    if not value.endswith("]"):
        return value if " " in value else _dtype(value)
    name, dtype, shape = _parts(value)
    named = "" if name in ("", "''") else f"{name} "
    return f"{named}{_dtype(dtype)} {shape}" if dtype else str(shape)


# --------------------------------------------------------------------------------------------------------- broken rules


class _Row:
    """A row of ``fault.def`` that is being filled in."""

    def __init__(self, c: Any, op: str, labels: Sequence[str], ndims: Sequence[int]) -> None:
        self.c, self.op, self.labels, self.ndims = c, op, labels, ndims
        self.operands: list[str] = []
        self.axes: list[int] = []
        self.numbers: list[float] = []
        self.dtypes: list[str] = []
        self.parameter: str | None = None
        self.missing = False

    def label(self, role: str) -> str:
        """Python's name of the operand that C calls ``role``."""
        position = "abcdefgh".find(role) if len(role) == 1 else -1
        if role in self.labels and list(self.labels) != ["b", "a"]:
            return role
        if role.startswith("as["):
            return f"matrices{role[2:]}"
        return self.labels[position] if 0 <= position < len(self.labels) else role

    def operand(self, pointer: Any) -> str:
        label = self.label(message_of(pointer))
        if label not in self.operands:
            self.operands.append(label)
        return label

    def axis(self, field: str) -> str:
        """Fills the fields ``a.``, ``b.``, ``ab.`` and ``.``."""
        dim = self.c.b_dim if field == "b." else self.c.a_dim
        given = [self.c.b if letter == "b" else self.c.a for letter in field.removesuffix(".") or "a"]
        names = [self.operand(pointer) for pointer in given if pointer]
        known = list(self.labels)
        self.missing = self.missing or any(n in known and dim >= self.ndims[known.index(n)] for n in names)
        self.axes.append(-1 - dim)
        return f"axis {-1 - dim}" if field == "." else f"axis {-1 - dim} of {' and '.join(names)}"

    def dtype(self, name: str) -> str:
        self.dtypes.append(_dtype(name))
        return self.dtypes[-1]

    def number(self, value: float) -> str:
        self.numbers.append(value)
        return f"{value:g}" if isinstance(value, float) else str(value)

    def field(self, field: str) -> str:
        c = self.c
        if field in "xyzwv":
            return self.number(c.number["xyzwv".index(field)])
        if field == "s":
            shape = tuple(reversed(list(c.number)[1:]))
            self.numbers.extend(shape)
            return str(shape)
        if field == "r":
            return self.number(c.real)
        if field in "tu":
            return self.dtype(message_of(c.t if field == "t" else c.u))
        if field == "n":
            name = message_of(c.name)
            self.parameter = "amounts" if self.op == "pad" else _PARAMETERS.get(name, name)
            return self.parameter
        if field.startswith("#"):
            return self.dtype(field[1:])
        return self.operand(c.a if field == "a" else c.b) if field in "ab" else self.axis(field)

    def text(self) -> str:
        first, *rest = message_of(self.c.message).split("{")
        for part in rest:
            field, _, behind = part.partition("}")
            first += self.field(field) + behind
        return f"{first}; missing axes count as 1" if self.missing else first

    def fault(self) -> Fault:
        return Fault(
            message_of(self.c.kind), self.op, tuple(self.operands), tuple(self.axes), tuple(self.numbers),
            tuple(self.dtypes), self.parameter,
        )  # fmt: skip


def _last_fault() -> Any:
    fault = ffi.new("struct gbpy_fault *")
    return fault if lib.gbpy_last_fault(fault) else None


def broken_rule(op: str, labels: Sequence[str], ndims: Sequence[int]) -> tuple[Fault, str] | None:
    """The rule that the last C call found broken, and its message for the caller of ``op``. None: no rule is broken.

    labels: the caller's names of the tensors, in C's order
    """
    c = _last_fault()
    if c is None or not message_of(c.message):
        return None
    row = _Row(c, op, labels, ndims)
    text = row.text()
    return row.fault(), text


# --------------------------------------------------------------------------------------- a node that no backend can run


def node_refused(message: str) -> tuple[Fault, str] | None:
    """The node that no backend can run, and a clause on what to do; None for other failures. ``message``: that of
    the failure, which describes the node and then its sources."""
    c = _last_fault()
    if c is None or message_of(c.kind) != "NODE_REFUSED":
        return None
    sources = [_parts(value) for value in quoted(message)[1:]]
    op = message_of(c.op)
    names, dtypes = tuple(s[0].strip("'") for s in sources), tuple(_dtype(s[1]) for s in sources)
    return Fault("NODE_REFUSED", op, names, dtypes=dtypes), _dtype_hint(op, [s[0] for s in sources], dtypes)


def _dtype_hint(op: str, names: Sequence[str], dtypes: Sequence[str]) -> str:
    """How the sources of a node get dtypes that backends compute with."""
    read = 1 if op in ("CPY", "SET_ROWS") else len(names)  # CPY writes its second source; that of SET_ROWS has indices
    elementwise = op in ("ADD", "SUB", "MUL", "DIV")
    for i, (name, dtype) in enumerate(zip(names[:read], dtypes, strict=False)):
        if dtype in ("float64", "int8", "int16", "int64"):
            usual = ", the default of NumPy" if dtype in ("float64", "int64") else ""
            indices = "" if dtype == "float64" else "; for indices from array.astype(np.int32)"
            return f"; nothing is computed with {dtype}{usual}: make {name} from array.astype(np.float32){indices}"
        if dtype == "int32" and (i == 0 or elementwise) and op != "MUL_MAT_ID":
            return f"; {name} is int32: its astype('float32') is a node that converts"
    if op == "MUL_MAT" and dtypes[1] not in ("float32", "int32", dtypes[0]):
        return (
            "; the left operand of a product must be float32 or have the dtype of the right one: h @ x is (x.T @ h.T).T"
        )
    return ""
