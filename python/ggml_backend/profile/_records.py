"""The records of a C profile as arrays and frozen objects, and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from .._base.errors import InvalidArgumentError
from .._base.renamed import Renamed
from .._ffi import ffi, lib
from ..dtypes import dtype_of_id

__all__ = ["FORM", "FORMAT", "RECORD", "RUN", "ProfileStep", "Recorded", "is_behind", "read_profile"]

FORMAT = 1
#: ``ggml_profile_record`` and ``ggml_profile_run`` as NumPy dtypes.
RECORD = np.dtype(
    [("step", "u4"), ("run", "u4"), ("start_ns", "i8"), ("end_ns", "i8"), ("waiting_ns", "i8"), ("flops", "f8"),
     ("bytes_read", "f8"), ("bytes_written", "f8"), ("threads", "i4"), ("tasks", "i4")]
)  # fmt: skip
RUN = np.dtype(
    {"names": ["start_ns", "end_ns", "thread", "complete"], "formats": ["i8", "i8", "u4", "?"],
     "offsets": [0, 8, 16, 20], "itemsize": 24}
)  # fmt: skip


@dataclass(frozen=True)
class ProfileStep:
    """A unit of work: an operator, several operators that the CPU backend fuses, or a whole split
    of a device without finer records."""

    device: str  #: name of the device in the scheduler
    names: tuple[str, ...]  #: names of the nodes; of a split the first eight
    ops: tuple[str, ...]  #: operators, such as ``"MUL_MAT"``; for elementwise functions their name, ``"GELU"``
    dtypes: tuple[str, ...]  #: dtypes of the results
    shapes: tuple[tuple[int, ...], ...]  #: shapes of the results in the first run of the step
    n_nodes: int
    fusion: str  #: ``"attention"``, ``"products"``, ``"product"``, ``"rope"``, ...; ``"split"``; ``""``: one operator
    algorithm: str  #: algorithm of a product or fused attention (``"blocked_f32"``); ``""``: there is only one
    level: str  #: level of the kernels; ``""`` on devices without levels
    source: str  #: name of the matrix of the first product; without a product, of the first source of the first node
    source_dtype: str

    way: ClassVar[Renamed] = Renamed("algorithm")

    @property
    def name(self) -> str:
        """All names, and the name of the matrix of a product."""
        more = self.n_nodes - len(self.names)
        text = " + ".join(self.names) + (f" + {more} more" if more > 0 else "")
        return f"{self.source}: {text}" if self.source and self.algorithm and self.fusion != "attention" else text

    @property
    def kind(self) -> str:
        """All operators, or ``"split"``."""
        return "split" if self.fusion == "split" else "+".join(self.ops)


@dataclass(frozen=True)
class Recorded:
    """The contents of a profile."""

    steps: tuple[ProfileStep, ...]
    records: np.ndarray[Any, Any]
    runs: np.ndarray[Any, Any]
    dropped: int

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT, "steps": [asdict(s) for s in self.steps], "dropped": self.dropped,
            **{what: {n: array[n].tolist() for n in array.dtype.names or ()}
               for what, array in (("records", self.records), ("runs", self.runs))},
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Any) -> Recorded:
        """Reads the result of :meth:`to_json`, which must have the form :data:`FORM`. InvalidArgumentError if its parts
        do not fit together."""
        steps = tuple(
            ProfileStep(
                **{
                    **step,
                    "shapes": tuple(map(tuple, step["shapes"])),
                    **{key: tuple(step[key]) for key in ("names", "ops", "dtypes")},
                }
            )
            for step in data["steps"]
        )
        records, runs = _columns(data["records"], RECORD, "records"), _columns(data["runs"], RUN, "runs")
        if records.size and (records["step"].max() >= len(steps) or records["run"].max() >= len(runs)):
            raise InvalidArgumentError("a record of the profile names a step or a run that does not exist")
        return cls(steps, records, runs, data["dropped"])


def _form_of(dtype: np.dtype[Any]) -> dict[str, list[type]]:
    kinds = {"b": bool, "f": float}
    return {name: [kinds.get(dtype[name].kind, int)] for name in dtype.names or ()}


#: The form of the result of :meth:`Recorded.to_json`.
FORM: dict[str, Any] = {
    "format": int,
    "steps": [
        {
            "device": str, "names": [str], "ops": [str], "dtypes": [str], "shapes": [[int]], "n_nodes": int,
            "fusion": str, "algorithm": str, "level": str, "source": str, "source_dtype": str,
        }
    ],
    "dropped": int, "records": _form_of(RECORD), "runs": _form_of(RUN),
}  # fmt: skip


def _columns(columns: dict[str, list[Any]], dtype: np.dtype[Any], what: str) -> np.ndarray[Any, Any]:
    names = dtype.names or ()
    found = np.zeros(len(columns[names[0]]), dtype)
    for name in names:
        column, kind = columns[name], dtype[name]
        if len(column) != len(found):
            raise InvalidArgumentError(f"{what}.{name} has {len(column)} values, {what}.{names[0]} {len(found)}")
        if kind.kind in "iu" and column:
            limits = np.iinfo(kind)
            if min(column) < limits.min or max(column) > limits.max:
                raise InvalidArgumentError(f"{what}.{name} must have values from {limits.min} to {limits.max}")
        found[name] = np.array(column, kind)
    return found


def _all(get: Callable[[Any, Any, int, int], int], profile: Any, kind: str) -> Any:
    """All current entries, as a C array."""
    n = get(profile, ffi.NULL, 0, 0)
    entries = ffi.new(f"{kind}[]", n)
    get(profile, entries, 0, n)
    return entries


def _array(entries: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytes(ffi.buffer(entries)), dtype) if len(entries) else np.zeros(0, dtype)


def _text(field: Any) -> str:
    return bytes(ffi.string(field)).decode("utf-8", "surrogateescape")


def _step(step: Any) -> ProfileStep:
    nodes = [step.nodes[i] for i in range(min(step.n_nodes, lib.GGML_PROFILE_MAX_NODES))]
    return ProfileStep(
        device=_text(step.device),
        names=tuple(_text(node.name) for node in nodes),
        ops=tuple(_text(node.op) for node in nodes),
        dtypes=tuple(dtype_of_id(node.type).name for node in nodes),
        shapes=tuple(tuple(int(n) for n in list(node.ne)[: node.ndim][::-1]) for node in nodes),
        n_nodes=int(step.n_nodes),
        fusion=_text(step.fusion),
        algorithm=_text(step.algorithm),
        level=_text(step.level),
        source=_text(step.source),
        source_dtype=dtype_of_id(step.source_type).name if step.source_type >= 0 else "",
    )


def read_profile(profile: Any) -> Recorded:
    """Reads a C profile. It reads records first, so that their steps and runs are in the result."""
    records = _array(_all(lib.ggml_profile_get_records, profile, "struct ggml_profile_record"), RECORD)
    runs = _array(_all(lib.ggml_profile_get_runs, profile, "struct ggml_profile_run"), RUN)
    steps = _all(lib.ggml_profile_get_steps, profile, "struct ggml_profile_step")
    return Recorded(tuple(map(_step, steps)), records, runs, int(lib.ggml_profile_n_dropped(profile)))


def is_behind(data: Recorded, profile: Any) -> bool:
    """True if the C profile has newer entries."""
    get = (lib.ggml_profile_get_records, lib.ggml_profile_get_runs, lib.ggml_profile_get_steps)
    counts = [n(profile, ffi.NULL, 0, 0) for n in get]
    known = [len(data.records), len(data.runs), len(data.steps)]
    unfinished = len(data.runs) and not data.runs["end_ns"].all()
    return counts != known or bool(unfinished) or data.dropped != lib.ggml_profile_n_dropped(profile)
