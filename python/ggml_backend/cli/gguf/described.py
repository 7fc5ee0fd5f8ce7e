"""Keys that describe how the tensors of a file are quantized. They follow from the new tensors, not from the source."""

from __future__ import annotations

import math
from collections import Counter

from ..._ffi import lib
from ...dtypes import DType
from ...gguf import GGUFFile, Writer

__all__ = ["Written", "copied_keys", "describe"]

FILE_TYPE, VERSION, IMATRIX = "general.file_type", "general.quantization_version", "quantize.imatrix."
CURRENT_VERSION = 2

FILE_TYPES: dict[str, tuple[int, ...]] = {
    "float32": (0,), "float16": (1,), "bfloat16": (32,), "q4_0": (2,), "q4_1": (3,), "q8_0": (7,), "q5_0": (8,),
    "q5_1": (9,), "q2_k": (10, 21), "q3_k": (11, 12, 13), "q4_k": (14, 15), "q5_k": (16, 17), "q6_k": (18,),
    "iq2_xxs": (19,), "iq2_xs": (20,), "iq3_xxs": (23, 22), "iq1_s": (24,), "iq4_nl": (25,), "iq3_s": (26, 27),
    "iq2_s": (28, 29), "iq4_xs": (30,), "iq1_m": (31,), "tq1_0": (36,), "tq2_0": (37,), "mxfp4": (38,), "nvfp4": (39,),
    "q1_0": (40,), "q2_0": (41,),
}  # fmt: skip
"""Numbers of general.file_type for each main format: first the number for files of this format alone, then those for
mixtures."""

Written = tuple[tuple[int, ...], DType, DType]  # the shape of a tensor, its format in the source and in the new file


def copied_keys(file: GGUFFile) -> list[str]:
    """Keys of a source that depend neither on formats nor on how the file was split."""
    return [key for key in file.metadata if key not in (FILE_TYPE, VERSION) and not key.startswith(("split.", IMATRIX))]


def describe(writer: Writer, tensors: list[Written], source: GGUFFile | None, mixture: int | None = None) -> None:
    """Adds general.file_type if one format has most elements of the matrices, and general.quantization_version if a
    tensor is quantized. A key that the user has set stays. mixture: the general.file_type of a named mixture"""
    kinds = [chosen for _, _, chosen in tensors]
    if any(chosen.is_quantized and chosen != stored for _, stored, chosen in tensors):
        _add(writer, VERSION, CURRENT_VERSION)
    elif source is not None and VERSION in source.metadata and any(kind.is_quantized for kind in kinds):
        writer.copy_from(source, keys=[VERSION], tensors=False)
    changed = any(chosen != stored for _, stored, chosen in tensors)
    given = None if source is None else source.metadata.get(FILE_TYPE)
    number = _file_type(tensors, given) if mixture is None else mixture
    if number is not None and (changed or given is not None):
        _add(writer, FILE_TYPE, number)


def _add(writer: Writer, key: str, value: int) -> None:
    meta = writer._live()
    if lib.gguf_find_key(meta.ptr, key.encode()) < 0:
        writer.add(key, value, "u32")


def _file_type(tensors: list[Written], given: object) -> int | None:
    """The number of the format of more than half of all elements of matrices. If a format has several numbers, the
    source's number stays, unless other tensors got that format now."""
    elements: Counter[DType] = Counter()
    for shape, _, chosen in tensors:
        elements[chosen] += math.prod(shape) if len(shape) > 1 else 0
    if not elements:
        return None
    most, n = elements.most_common(1)[0]
    numbers = FILE_TYPES.get(most.name)
    if numbers is None or 2 * n <= elements.total():
        return None
    joined = any(chosen == most != stored for _, stored, chosen in tensors)
    return given if isinstance(given, int) and given in numbers and not joined else numbers[0]
