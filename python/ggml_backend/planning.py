"""Static memory planning on plain numbers: from lifetimes and sizes to offsets.

plan = gb.planning.plan_memory(lower=[0, 1, 3], upper=[3, 4, 9], size=[100, 50, 100], alignment=32)
plan.offsets, plan.peak, plan.proved
"""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._base.errors import InvalidArgumentError, check, expect_bool, expect_int
from ._base.errors.messages import kind_of
from ._base.rows import BUFFER_COLUMNS, buffer_of, read_rows
from ._base.text import integer
from ._ffi import ffi, lib

__all__ = ["MemoryPlan", "plan_memory"]


@dataclass(frozen=True)
class MemoryPlan:
    """A plan: the offset of each buffer, and the quality of the plan. Sizes are bytes."""

    offsets: NDArray[np.uint64] = field(repr=False)  #: by buffer; multiples of the alignment
    peak: int  #: largest offset + size of all buffers, sizes rounded up to the alignment
    lower_bound: int  #: most bytes alive at once, or the largest size. No plan has a smaller peak.
    best_fit: int  #: the peak of in-order best fit, for comparison
    proved: bool  #: no plan has a smaller peak than this one
    milliseconds: float  #: wall time of the call
    bound: int  #: no plan has a smaller peak: the lower bound, or a larger value that the search has proved
    bound_by: str  #: what proves ``bound``: "load", the bytes alive at once, or "search"
    unfinished: bool  #: not proved, and a larger budget would probably give a smaller peak

    @property
    def gap(self) -> float:
        """Relative distance of the peak from the lower bound: 0.01 is 1 %."""
        return self.peak / self.lower_bound - 1.0 if self.lower_bound else 0.0


def _integers(values: ArrayLike, dtype: type[np.integer[Any]], name: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
        if array.dtype == np.float64 and not isinstance(values, np.ndarray):  # integers that no single dtype holds
            array = np.asarray(values, object)
    except ValueError:
        raise InvalidArgumentError(
            f"plan_memory: {name} must be integers, and its lists have different lengths"
        ) from None
    except TypeError:
        raise TypeError(f"plan_memory: {name} must be integers, not {kind_of(values)}") from None
    if array.ndim != 1:
        raise InvalidArgumentError(f"plan_memory: {name} must have one dimension, has {array.ndim}")
    whole = array.dtype == object and all(type(n) is int for n in array)
    if array.size and not whole and not np.issubdtype(array.dtype, np.integer):
        kind = "float64" if array.dtype == object and isinstance(array[0], float) else array.dtype
        raise InvalidArgumentError(f"plan_memory: {name} must be integers, is {kind}")
    limits = np.iinfo(dtype)
    if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
        at = int(array.argmin() if int(array.min()) < limits.min else array.argmax())
        raise InvalidArgumentError(
            f"plan_memory: {name}[{at}] is {integer(array[at])}, out of range for {limits.dtype}: {limits.min} to"
            f" {limits.max}"
        )
    return np.ascontiguousarray(array, dtype=dtype)


def plan_memory(
    lower: ArrayLike,
    upper: ArrayLike,
    size: ArrayLike,
    alignment: int = 1,
    capacity: int | None = None,
    budget_ms: int = 1000,
    n_threads: int = 1,
    reproducible: bool = False,
) -> MemoryPlan:
    """Finds offsets for buffers so that those alive at the same time do not overlap and the peak is small.

    Buffer ``i`` is alive from ``lower[i]`` up to, not including, ``upper[i]`` and has ``size[i]``
    bytes. A buffer that is never alive has offset 0 and may overlap others. No plan is worse than
    in-order best fit or, up to 100,000 buffers, first fit by size.

    alignment: a power of two.
    capacity: bytes. Any plan within it is good enough. If none is found, :class:`AllocationError` is raised.
    budget_ms: time of the search if heuristics miss the lower bound. 0: no search. The clock (the
        calling thread's processor time) ends the search, so the plan depends on the processor's
        speed.
    n_threads: threads that try orders in parallel.
    reproducible: only counted steps end the search. Equal inputs then give equal plans on any machine, for one version
        of the package. That usually takes longer than the budget (docs/PLANNING.md).
    """
    lowers, uppers = _integers(lower, np.int64, "lower"), _integers(upper, np.int64, "upper")
    sizes = _integers(size, np.uint64, "size")
    if not lowers.size == uppers.size == sizes.size:
        raise InvalidArgumentError(
            f"plan_memory: {lowers.size} lower, {uppers.size} upper, {sizes.size} sizes: the numbers must be equal"
        )
    for name, value in (
        ("alignment", alignment),
        ("capacity", 0 if capacity is None else capacity),
        ("budget_ms", budget_ms),
    ):
        if not 0 <= expect_int(value, f"plan_memory: {name}") < 2**63:
            raise InvalidArgumentError(f"plan_memory: {name} must not be negative or huge, is {integer(value)}")
    if not 1 <= expect_int(n_threads, "plan_memory: n_threads") < 2**31:
        raise InvalidArgumentError(f"plan_memory: n_threads must be at least 1 and not huge, is {integer(n_threads)}")
    reproducible = expect_bool(reproducible, "plan_memory: reproducible")
    if capacity == 0 and any(int(s) for s in sizes):
        raise InvalidArgumentError("plan_memory: capacity is 0: None means no limit")
    offsets = np.zeros(lowers.size, np.uint64)
    info = ffi.new("struct ggml_plan_info *")
    options = ffi.new("struct ggml_plan_options *", (capacity or 0, budget_ms, n_threads, reproducible))
    status = lib.ggml_plan_memory_with(
        lowers.size, ffi.from_buffer("int64_t[]", lowers), ffi.from_buffer("int64_t[]", uppers),
        ffi.from_buffer("size_t[]", sizes),
        alignment, options, ffi.from_buffer("size_t[]", offsets, require_writable=True), info,
    )  # fmt: skip
    check(status, "plan_memory")
    return MemoryPlan(
        offsets, int(info.peak), int(info.lower_bound), int(info.best_fit), bool(info.proved), float(info.milliseconds),
        int(info.bound), "search" if info.searched else "load", bool(info.unfinished),
    )  # fmt: skip


def read_instance(
    path: str | PathLike[str],
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """Reads ids, lower, upper, size from a CSV file with a heading of these four columns, in any order."""
    rows = [(row.text("id"), *buffer_of(row)) for row in read_rows(path, BUFFER_COLUMNS)]
    lower, upper, size = ([row[k] for row in rows] for k in (1, 2, 3))
    return [row[0] for row in rows], np.array(lower, np.int64), np.array(upper, np.int64), np.array(size, np.uint64)
