"""Element formats.

``gb.float32`` and the other formats are :class:`DType` objects. Functions of this package that take a dtype
also accept NumPy dtypes (``np.float32``, ``"float32"``) and ggml's names (``"f32"``, ``"q4_0"``). Quantized
formats store blocks of elements. NumPy sees them as bytes.
"""

from __future__ import annotations

from typing import Any, ClassVar, Union

import numpy as np

from ._base.errors import InvalidArgumentError, expect_int
from ._base.errors.messages import close_matches
from ._base.renamed import Renamed
from ._ffi import ffi, lib

__all__ = [
    "DType", "DTypeLike", "as_dtype", "bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64",
    "iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "q1_0",
    "q2_0", "q2_k", "q3_k", "q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q6_k", "q8_0", "q8_1", "q8_k", "tq1_0",
    "tq2_0",
]  # fmt: skip


class DType:
    """An element format.

    ``name``; ``id`` (``enum ggml_type``); ``block_size``: elements in a block; ``itemsize``: bytes of a block
    """

    __slots__ = ("_numpy", "block_size", "ggml_name", "id", "is_quantized", "itemsize", "name", "numpy", "typestr")

    def __init__(self, name: str, type_id: int, numpy: str | None) -> None:
        self.name: str = name
        self.id: int = type_id
        self.ggml_name: str = ffi.string(lib.ggml_type_name(type_id)).decode() if lib.ggml_type_name(type_id) else name
        self.block_size: int = lib.ggml_blck_size(type_id)
        self.itemsize: int = lib.ggml_type_size(type_id)
        self.is_quantized: bool = self.block_size > 1
        self.typestr: str = numpy or "|u1"  # the NumPy type of the memory
        self.numpy: np.dtype[Any] = np.dtype(self.typestr)
        """The NumPy dtype of ``Tensor.numpy()``: uint16 bits for bfloat16, bytes for quantized formats."""
        self._numpy = np.dtype(numpy) if numpy and name != "bfloat16" else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype, so that ``np.dtype(gb.float32)`` works. AttributeError if NumPy has none."""
        if self._numpy is None:
            raise AttributeError(f"NumPy has no dtype for {self.name}")
        return self._numpy

    def row_nbytes(self, n: int) -> int:
        """Bytes of ``n`` elements; ``n`` must be a multiple of ``block_size``."""
        n = expect_int(n, "row_nbytes: n")
        if n < 0 or n % self.block_size:
            raise InvalidArgumentError(f"{self.name}: rows of {n} elements are not whole blocks of {self.block_size}")
        return n // self.block_size * self.itemsize

    row_size: ClassVar[Renamed] = Renamed("row_nbytes")

    def __repr__(self) -> str:
        return f"ggml_backend.dtypes.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self.id == other.id
        try:
            return self.id == as_dtype(other).id  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return (as_dtype, (self.name,))


DTypeLike = Union[DType, str, "type[Any]", "np.dtype[Any]"]

_NUMPY = {
    "float32": "<f4", "float16": "<f2", "float64": "<f8", "bfloat16": "<u2",
    "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8",
}  # fmt: skip
_LONG = {
    "F32": "float32", "F16": "float16", "F64": "float64", "BF16": "bfloat16",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
}  # fmt: skip


def _all() -> dict[str, DType]:
    prefix = "GGML_TYPE_"
    found = {}
    for constant in dir(lib):
        if constant.startswith(prefix) and constant != prefix + "COUNT":
            short = constant[len(prefix) :]
            name = _LONG.get(short, short.lower())
            found[name] = DType(name, getattr(lib, constant), _NUMPY.get(name))
    return dict(sorted(found.items(), key=lambda item: item[1].id))


dtypes: dict[str, DType] = _all()
"""All element formats by name."""

_by_id: dict[int, DType] = {d.id: d for d in dtypes.values()}
_by_alias: dict[str, DType] = {
    alias: d for d in dtypes.values() for alias in (d.name, d.ggml_name.lower(), d.ggml_name.lower().replace("-", "_"))
}
_by_numpy: dict[Any, DType] = {d._numpy: d for d in dtypes.values() if d._numpy is not None}


def dtype_of_id(type_id: int) -> DType:
    return _by_id[type_id]


def is_dtype_id(type_id: int) -> bool:
    return type_id in _by_id


_OTHERS = {  # names of other libraries, and ambiguous names
    "float": "it could be float32 or float16: say which", "int": "it could be int32 or int64: say which",
    "fp32": "it is called float32",
    "fp16": "it is called float16", "int4": "q4_0 and q4_k have 4 bits", "uint4": "q4_0 and q4_k have 4 bits",
    "fp4": "mxfp4 and nvfp4 have 4 bits",
}  # fmt: skip
_AMBIGUOUS = (float, int, "float", "int")  # NumPy reads them as float64 and int64
_NO_DTYPES = ("uint8", "uint16", "uint32", "uint64", "bool")  # NumPy dtypes without a similar tensor dtype


def as_dtype(value: DTypeLike, what: str = "") -> DType:
    """The DType for a DType, a name, or a NumPy dtype. Raises TypeError for anything else.

    what: the caller, for the message
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        found = _by_alias.get(value.lower())
        if found is not None:
            return found
    try:
        dtype = np.dtype(value)
    except (TypeError, ValueError, SyntaxError):  # NumPy's errors for text and lists that it cannot parse
        dtype = None
    if dtype is not None and value is not None:
        if dtype.name == "bfloat16":  # ml_dtypes
            return dtypes["bfloat16"]
        found = _by_numpy.get(dtype)
        if found is not None and not (isinstance(value, (str, type)) and value in _AMBIGUOUS):
            return found
    shown = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    if shown.lower() in _OTHERS:
        hint = f"; {_OTHERS[shown.lower()]}"
    else:
        near = close_matches(shown, dtypes) if shown not in _NO_DTYPES else ""
        hint = near or f"; there are {', '.join(_NUMPY)} and quantized ones, as in gb.dtypes.dtypes"
    raise TypeError(f"{what}{': ' if what else ''}there is no dtype {shown!r}{hint}")


# Written out for type checkers and editors. A test compares them with `dtypes`.
float32: DType = dtypes["float32"]
float16: DType = dtypes["float16"]
bfloat16: DType = dtypes["bfloat16"]
float64: DType = dtypes["float64"]
int8: DType = dtypes["int8"]
int16: DType = dtypes["int16"]
int32: DType = dtypes["int32"]
int64: DType = dtypes["int64"]
q4_0: DType = dtypes["q4_0"]
q4_1: DType = dtypes["q4_1"]
q5_0: DType = dtypes["q5_0"]
q5_1: DType = dtypes["q5_1"]
q8_0: DType = dtypes["q8_0"]
q8_1: DType = dtypes["q8_1"]
q2_k: DType = dtypes["q2_k"]
q3_k: DType = dtypes["q3_k"]
q4_k: DType = dtypes["q4_k"]
q5_k: DType = dtypes["q5_k"]
q6_k: DType = dtypes["q6_k"]
q8_k: DType = dtypes["q8_k"]
iq2_xxs: DType = dtypes["iq2_xxs"]
iq2_xs: DType = dtypes["iq2_xs"]
iq3_xxs: DType = dtypes["iq3_xxs"]
iq1_s: DType = dtypes["iq1_s"]
iq4_nl: DType = dtypes["iq4_nl"]
iq3_s: DType = dtypes["iq3_s"]
iq2_s: DType = dtypes["iq2_s"]
iq4_xs: DType = dtypes["iq4_xs"]
iq1_m: DType = dtypes["iq1_m"]
tq1_0: DType = dtypes["tq1_0"]
tq2_0: DType = dtypes["tq2_0"]
mxfp4: DType = dtypes["mxfp4"]
nvfp4: DType = dtypes["nvfp4"]
q1_0: DType = dtypes["q1_0"]
q2_0: DType = dtypes["q2_0"]
