"""Costs of work: :class:`Costs` for ``Scheduler(policy="cost")``, and the files that store them.

``$XDG_CACHE_HOME/ggml_backend`` (``~/.cache/ggml_backend``) has one file per device and version:
times of ops by class and type as launch + max(bytes / bandwidth, flops / rate), and of copies
between the device and the host as latency + bytes / bandwidth. Copies between other devices go
through the host and cost both ways.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import platform
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._base.errors import InvalidArgumentError, check, expect, expect_int, expect_list
from .._base.files import read_text, write_text
from .._base.text import count, line
from .._ffi import ffi, lib
from ..backend.backend import Backend
from ..backend.buffer import text
from ..dtypes import dtypes

__all__ = [
    "CopyCost",
    "Costs",
    "DeviceCosts",
    "OpCost",
    "Prediction",
    "cache_folder",
    "copy_of",
    "describe_device",
    "file_of",
    "kept_links",
    "processor_model",
    "read_costs",
    "to_json",
    "write_costs",
]

CLASSES = {"any": 0, "matmul": 1, "rows": 2, "elements": 3, "moves": 4, "windows": 5}
FORMAT = 1


@dataclass(frozen=True)
class OpCost:
    """An op of a class on arrays of a type takes ``launch_us + max(bytes / bytes_per_us, flops /
    flops_per_us)``."""

    op_class: str = "any"
    """``"any"``, ``"matmul"``, ``"rows"``, ``"elements"``, ``"moves"`` or ``"windows"``"""
    dtype: str | None = None
    """Type of the first source; None: any."""
    launch_us: float = 0.0
    bytes_per_us: float = math.inf
    flops_per_us: float = math.inf


@dataclass(frozen=True)
class CopyCost:
    """A copy takes ``launch_us + bytes / bytes_per_us``."""

    launch_us: float = 0.0
    bytes_per_us: float = math.inf


@dataclass(frozen=True)
class DeviceCosts:
    """Costs of one device. ``ops`` has at least one entry for any class and type."""

    ops: tuple[OpCost, ...] = (OpCost(),)
    from_host: CopyCost = CopyCost()
    to_host: CopyCost = CopyCost()
    host: bool = False
    """True if its memory is host memory, so copies from and to it are free."""


@dataclass(frozen=True)
class Prediction:
    """Predicted microseconds of a graph."""

    us: float
    weights_us: float
    """Microseconds of the placement by the policy "weights"."""
    bound_us: float
    """Lower bound: no placement is cheaper."""
    proved: bool

    @property
    def gap(self) -> float:
        """How far ``us`` may exceed the optimum, as a fraction."""
        return self.us / self.bound_us - 1 if self.bound_us > 0 else 0.0


@dataclass(frozen=True)
class Costs:
    """Costs for the backends of a scheduler, in its order.

    devices: one for each backend
    copies: between two backends, by their indices; default: through the host
    split_us: overhead of each change of backends
    weight_runs: number of runs that a copy of a weight serves. With more runs, weights are copied
        to a faster device sooner
    max_bytes: for each backend, the bytes that the scheduler may allocate there for a graph; 0: no
        limit
    """

    devices: Sequence[DeviceCosts]
    copies: dict[tuple[int, int], CopyCost] = field(default_factory=dict)
    split_us: float = 10.0
    weight_runs: float = 1.0
    max_bytes: Sequence[int] | None = None

    @classmethod
    def cached(cls, backends: Sequence[Backend], **options: Any) -> Costs | None:
        """Reads the files of :func:`calibrate`, and of :meth:`Cluster.calibrate` for links between
        ranks; None if a file is missing. ``options``: other fields."""
        given = (
            (backends,)
            if isinstance(backends, Backend)
            else expect_list(backends, "Costs.cached: backends", "backends")
        )
        for b in given:
            expect(b, Backend, "Costs.cached: each backend")
        found = [read_costs(b) for b in given]
        if any(d is None for d in found):
            return None
        options.setdefault("copies", kept_links(given))
        return cls([d for d in found if d is not None], **options)

    def copy(self, source: int, target: int) -> CopyCost:
        """The cost of a copy from one backend to another."""
        source, target = expect_int(source, "Costs.copy: source"), expect_int(target, "Costs.copy: target")
        if not (0 <= source < len(self.devices) and 0 <= target < len(self.devices)):
            raise InvalidArgumentError(f"Costs.copy: from backend {source} to {target}, of {len(self.devices)}")
        for cost in (*self.copies.values(), *(c for d in self.devices for c in (d.from_host, d.to_host))):
            if not cost.bytes_per_us > 0:
                raise InvalidArgumentError(f"Costs: bytes_per_us of a copy is {cost.bytes_per_us}, it must be above 0")
        given = self.copies.get((source, target))
        if given is not None:
            return given
        away, here = self.devices[source], self.devices[target]
        legs = [leg for d, leg in ((away, away.to_host), (here, here.from_host)) if not d.host]
        legs = legs or [away.to_host]  # from the host to the host
        return CopyCost(sum(leg.launch_us for leg in legs), 1 / max(sum(1 / leg.bytes_per_us for leg in legs), 1e-300))

    def _set(self, sched: Any, n_backends: int) -> None:
        """Passes the costs to a scheduler."""
        if not isinstance(self.devices, Sequence) or not all(isinstance(d, DeviceCosts) for d in self.devices):
            raise TypeError(f"Costs: devices must be DeviceCosts, one for each backend, not {self.devices!r:.60}")
        for d in self.devices:
            for op in d.ops:
                for name in ("launch_us", "bytes_per_us", "flops_per_us"):
                    if not isinstance(getattr(op, name), (int, float, np.floating, np.integer)):
                        raise TypeError(f"Costs: {name} of {op} must be a number")
        if len(self.devices) != n_backends:
            raise InvalidArgumentError(f"Costs: {len(self.devices)} devices, the scheduler has {n_backends} backends")
        if self.max_bytes is not None and len(self.max_bytes) != n_backends:
            raise InvalidArgumentError(
                f"Costs: max_bytes has {len(self.max_bytes)} entries, the scheduler has {n_backends} backends"
            )
        entries = [(b, op) for b, device in enumerate(self.devices) for op in device.ops]
        for _, op in entries:
            if op.op_class not in CLASSES or (op.dtype is not None and op.dtype not in dtypes):
                raise InvalidArgumentError(f"Costs: unknown class {op.op_class!r} or type {op.dtype!r}")
        c_ops = ffi.new("struct ggml_backend_op_cost[]", max(len(entries), 1))
        for entry, (b, op) in zip(c_ops, entries, strict=False):
            entry.backend, entry.op_class, entry.type = (
                b,
                CLASSES[op.op_class],
                -1 if op.dtype is None else dtypes[op.dtype].id,
            )
            entry.launch_us, entry.bytes_per_us, entry.flops_per_us = op.launch_us, op.bytes_per_us, op.flops_per_us
        pairs = list(itertools.permutations(range(n_backends), 2))
        c_copies = ffi.new("struct ggml_backend_copy_cost[]", max(len(pairs), 1))
        for entry, (a, b) in zip(c_copies, pairs, strict=False):
            entry.to, entry.launch_us, entry.bytes_per_us = b, self.copy(a, b).launch_us, self.copy(a, b).bytes_per_us
            setattr(entry, "from", a)
        limits = ffi.NULL if self.max_bytes is None else ffi.new("size_t[]", list(self.max_bytes))
        table = ffi.new("struct ggml_backend_cost_table *")
        table.ops, table.n_ops, table.copies, table.n_copies = c_ops, len(entries), c_copies, len(pairs)
        table.split_us, table.weight_runs, table.max_bytes = self.split_us, self.weight_runs, limits
        check(lib.ggml_backend_sched_set_costs(sched, table), "Scheduler")


for _public in (OpCost, CopyCost, DeviceCosts, Prediction, Costs):
    _public.__module__ = "ggml_backend.sched"  # the public location, also for pickles


# ------------------------------------------------------------------------------------------------------------ the cache


def processor_model() -> str:
    """The name of the processor of this host."""
    model = platform.processor()
    with contextlib.suppress(OSError):
        known = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^(?:model name|Hardware|Model)\s*:\s*(.+)$", known, re.MULTILINE)
        model = found.group(1).strip() if found else model
    return model or platform.machine()


def describe_device(backend: Backend) -> str:
    """A text that differs between devices with different costs."""
    if not backend.is_cpu:
        return (
            getattr(backend.device, "_cost_name", None) or backend.name
        )  # the number of a rank does not identify a device
    return f"CPU {processor_model()}, {count(backend.n_threads, 'thread')}, {backend.level}"


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ggml_backend"


def file_of(backend: Backend) -> Path:
    name, version = describe_device(backend), text(lib.gbpy_version())
    key = hashlib.sha256(f"{FORMAT}\n{version}\n{name}".encode()).hexdigest()[:16]
    stem = backend.name if backend.is_cpu else name.partition(",")[0]
    return cache_folder() / f"costs-{re.sub(r'[^A-Za-z0-9]+', '-', stem)[:60].strip('-')}-{key}.json"


def kept_links(backends: Sequence[Backend]) -> dict[tuple[int, int], CopyCost]:
    """Measured links between devices of a cluster, by the indices of the backends."""
    devices = [(i, b.device) for i, b in enumerate(backends) if hasattr(b.device, "_kept_links")]
    known = devices[0][1]._kept_links() if len(devices) > 1 else {}
    pairs = itertools.permutations(devices, 2) if known else ()
    return {(i, j): known[name] for (i, a), (j, b) in pairs if (name := a.link_name(b)) in known}


def to_json(device: DeviceCosts) -> dict[str, Any]:
    """JSON has no infinity: null stands for it."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return None if isinstance(value, float) and math.isinf(value) else value

    return {k: plain(v) for k, v in asdict(device).items()}


class _Malformed(ValueError):
    """The error of a file of costs."""


def _entry(value: Any, keys: set[str], what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != keys:
        raise _Malformed(f"{what} needs {', '.join(sorted(keys))}")
    return value


def _number(entry: dict[str, Any], key: str, what: str) -> float:
    """Microseconds, or a rate; null means infinite."""
    value = entry[key]
    if value is None and key != "launch_us":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e300:
        raise _Malformed(f"{what}: {key} must be a number, 0 or more")
    if value == 0 and key != "launch_us":
        raise _Malformed(f"{what}: {key} is 0")
    return float(value)


def copy_of(value: Any, what: str) -> CopyCost:
    entry = _entry(value, {"launch_us", "bytes_per_us"}, what)
    return CopyCost(_number(entry, "launch_us", what), _number(entry, "bytes_per_us", what))


def _op_of(value: Any) -> OpCost:
    entry = _entry(value, {"op_class", "dtype", "launch_us", "bytes_per_us", "flops_per_us"}, "ops: each")
    kind, dtype = entry["op_class"], entry["dtype"]
    if (
        not isinstance(kind, str)
        or kind not in CLASSES
        or not (dtype is None or (isinstance(dtype, str) and dtype in dtypes))
    ):
        raise _Malformed(f"ops: unknown class {str(kind)[:40]!r} or type {str(dtype)[:40]!r}")
    return OpCost(kind, dtype, *(_number(entry, k, "ops") for k in ("launch_us", "bytes_per_us", "flops_per_us")))


def _costs_of(data: Any) -> DeviceCosts:
    costs = _entry(data.get("costs"), {"ops", "from_host", "to_host", "host"}, "costs")
    if not isinstance(costs["ops"], list) or not costs["ops"] or not isinstance(costs["host"], bool):
        raise _Malformed("costs: ops must be a list with entries, and host true or false")
    to, back = copy_of(costs["from_host"], "from_host"), copy_of(costs["to_host"], "to_host")
    return DeviceCosts(tuple(_op_of(op) for op in costs["ops"]), to, back, costs["host"])


def read_costs(backend: Backend) -> DeviceCosts | None:
    """The costs in a file. None if there is none for this version. Ignores invalid files with a
    warning."""
    path = file_of(backend)
    try:
        data = json.loads(read_text(path))
        if not isinstance(data, dict):
            raise _Malformed("it is no object")
        if (data.get("format"), data.get("device"), data.get("version")) != (
            FORMAT,
            describe_device(backend),
            text(lib.gbpy_version()),
        ):
            return None
        return _costs_of(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, _Malformed) as error:
        warnings.warn(
            f"{line(path)} is invalid and ignored: {line(error, 200)}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def write_costs(backend: Backend, device: DeviceCosts) -> Path:
    path = file_of(backend)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "format": FORMAT,
        "version": text(lib.gbpy_version()),
        "device": describe_device(backend),
        "costs": to_json(device),
    }
    write_text(path, json.dumps(data, indent=1), regular=True)
    return path
