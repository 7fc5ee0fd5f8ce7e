"""What work costs: :class:`Costs` for ``Scheduler(policy="cost")``, measured by :func:`calibrate` and kept on disk.

One file per device and version lies in ``$XDG_CACHE_HOME/ggml_backend`` (``~/.cache/ggml_backend``): times of ops by
class and type as launch + max(bytes / bandwidth, flops / rate), and of copies between the device and the host as
latency + bytes / bandwidth. Other pairs of devices go through the host, so their copies cost both ways together.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import os
import platform
import re
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import ops
from .._errors import (
    GgmlError,
    InvalidArgumentError,
    UnsupportedError,
    check,
    expect,
    expect_bool,
    expect_function,
    expect_int,
    expect_list,
)
from .._ffi import ffi, lib
from .._files import read_text, write_text
from .._text.escape import line
from .._text.terminal import print_json, say, step_bar
from ..backend import Backend
from ..buffer import text
from ..dtypes import dtypes
from ..graph import Context
from ..sched import Scheduler

__all__ = ["CopyCost", "Costs", "DeviceCosts", "OpCost", "Prediction", "add_calibrate_command", "calibrate"]

CLASSES = {"any": 0, "matmul": 1, "rows": 2, "elements": 3, "moves": 4, "windows": 5}
FORMAT = 1


@dataclass(frozen=True)
class OpCost:
    """An op of a class on arrays of a type takes ``launch_us + max(bytes / bytes_per_us, flops / flops_per_us)``."""

    op_class: str = "any"
    """``"any"``, ``"matmul"``, ``"rows"``, ``"elements"``, ``"moves"`` or ``"windows"``"""
    dtype: str | None = None
    """Of the first source; None: any."""
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
    """Costs of one device. ``ops`` holds at least one entry for any class and type."""

    ops: tuple[OpCost, ...] = (OpCost(),)
    from_host: CopyCost = CopyCost()
    to_host: CopyCost = CopyCost()
    host: bool = False
    """Its memory is the host's: copies from and to it cost nothing of its own."""


@dataclass(frozen=True)
class Prediction:
    """Microseconds that a graph takes by the costs."""

    us: float
    weights_us: float
    """As the policy "weights" would place it."""
    bound_us: float
    """Nothing is cheaper."""
    proved: bool

    @property
    def gap(self) -> float:
        """How far ``us`` can be above the optimum, as a part of it."""
        return self.us / self.bound_us - 1 if self.bound_us > 0 else 0.0


@dataclass(frozen=True)
class Costs:
    """Costs for the backends of a scheduler, in its order.

    devices: one for each backend
    copies: between two backends, by their indices; default: through the host
    split_us: each change of backends
    weight_runs: how many runs a copy of a weight serves; the more, the sooner weights are copied to a faster device
    max_bytes: for each backend, what the scheduler may allocate there for a graph; 0: no limit
    """

    devices: Sequence[DeviceCosts]
    copies: dict[tuple[int, int], CopyCost] = field(default_factory=dict)
    split_us: float = 10.0
    weight_runs: float = 1.0
    max_bytes: Sequence[int] | None = None

    @classmethod
    def cached(cls, backends: Sequence[Backend], **options: Any) -> Costs | None:
        """From the files of :func:`calibrate`; None if one is missing. ``options``: other fields."""
        given = (
            (backends,)
            if isinstance(backends, Backend)
            else expect_list(backends, "Costs.cached: backends", "backends")
        )
        for b in given:
            expect(b, Backend, "Costs.cached: each backend")
        found = [_read(b) for b in given]
        return None if any(d is None for d in found) else cls([d for d in found if d is not None], **options)

    def copy(self, source: int, target: int) -> CopyCost:
        """What a copy from one backend to another costs."""
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
        """Gives them to a scheduler."""
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
                raise InvalidArgumentError(f"Costs: there is no class {op.op_class!r}, or no type {op.dtype!r}")
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


# ----------------------------------------------------------------------------------------------------------------------
# the cache


def _describe(backend: Backend) -> str:
    """What tells devices apart that cost differently."""
    if not backend.is_cpu:
        return backend.name
    model = platform.processor()
    with contextlib.suppress(OSError):
        known = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^(?:model name|Hardware|Model)\s*:\s*(.+)$", known, re.MULTILINE)
        model = found.group(1).strip() if found else model
    return f"CPU {model or platform.machine()}, {backend.n_threads} threads, {backend.level}"


def _path(backend: Backend) -> Path:
    name, version = _describe(backend), text(lib.gbpy_version())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ggml_backend"
    key = hashlib.sha256(f"{FORMAT}\n{version}\n{name}".encode()).hexdigest()[:16]
    return base / f"costs-{re.sub(r'[^A-Za-z0-9]+', '-', backend.name).strip('-')}-{key}.json"


def _to_json(device: DeviceCosts) -> dict[str, Any]:
    """JSON has no infinity: null stands for it."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return None if isinstance(value, float) and math.isinf(value) else value

    return {k: plain(v) for k, v in asdict(device).items()}


class _Malformed(Exception):
    """What a file of costs has wrong."""


def _entry(value: Any, keys: set[str], what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != keys:
        raise _Malformed(f"{what} needs {', '.join(sorted(keys))}")
    return value


def _number(entry: dict[str, Any], key: str, what: str) -> float:
    """Microseconds, or a rate, which is infinite where there is null."""
    value = entry[key]
    if value is None and key != "launch_us":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e300:
        raise _Malformed(f"{what}: {key} is no number from 0 on")
    if value == 0 and key != "launch_us":
        raise _Malformed(f"{what}: {key} is 0")
    return float(value)


def _copy_of(value: Any, what: str) -> CopyCost:
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
        raise _Malformed(f"ops: there is no class {str(kind)[:40]!r}, or no type {str(dtype)[:40]!r}")
    return OpCost(kind, dtype, *(_number(entry, k, "ops") for k in ("launch_us", "bytes_per_us", "flops_per_us")))


def _costs_of(data: Any) -> DeviceCosts:
    costs = _entry(data.get("costs"), {"ops", "from_host", "to_host", "host"}, "costs")
    if not isinstance(costs["ops"], list) or not costs["ops"] or not isinstance(costs["host"], bool):
        raise _Malformed("costs: ops is no list with entries, or host is neither true nor false")
    to, back = _copy_of(costs["from_host"], "from_host"), _copy_of(costs["to_host"], "to_host")
    return DeviceCosts(tuple(_op_of(op) for op in costs["ops"]), to, back, costs["host"])


def _read(backend: Backend) -> DeviceCosts | None:
    """None: not measured yet, or by another version. What is not ours is ignored, with a warning."""
    path = _path(backend)
    try:
        data = json.loads(read_text(path))
        if not isinstance(data, dict):
            raise _Malformed("it is no object")
        if (data.get("format"), data.get("device"), data.get("version")) != (
            FORMAT,
            _describe(backend),
            text(lib.gbpy_version()),
        ):
            return None
        return _costs_of(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, _Malformed) as error:
        warnings.warn(
            f"{line(path)} is ignored, as if nothing had been measured: {line(error, 200)}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _write(backend: Backend, device: DeviceCosts) -> Path:
    path = _path(backend)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "format": FORMAT,
        "version": text(lib.gbpy_version()),
        "device": _describe(backend),
        "costs": _to_json(device),
    }
    write_text(path, json.dumps(data, indent=1), regular=True)
    return path


# ---------------------------------------------------------------------------------------------------------------------
# measuring


def _median_us(run: Callable[[], Any], repeats: int = 5, least_us: float = 200.0) -> float:
    """Warm-up twice, then the median of rounds that are long enough for the clock."""
    run()
    start = time.perf_counter()
    run()
    n = max(1, math.ceil(least_us * 1e-6 / max(time.perf_counter() - start, 1e-9)))
    rounds = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(n):
            run()
        rounds.append((time.perf_counter() - start) / n * 1e6)
    return statistics.median(rounds)


Build = Callable[[Context, Any, int], Callable[[], Any]]
_CHAIN = 8  # nodes of a graph: what a graph costs as a whole is not counted for each


def _time_op(backend: Backend, build: Build, dtype: str, n: int) -> float:
    """Microseconds for one node. ``build(ctx, dtype, n)`` makes arrays and gives a function that makes an op on
    them."""
    times = []
    for count in (1, _CHAIN + 1):
        with Context() as ctx, Scheduler([backend]) as sched:
            make = build(ctx, dtypes[dtype], n)
            graph = ctx.graph(*[make() for _ in range(count)])
            sched.allocate(graph)
            for leaf in graph.leafs:
                leaf.set(...)
            times.append(_median_us(lambda sched=sched, graph=graph: sched.compute(graph)))  # type: ignore[misc]
    return max((times[1] - times[0]) / _CHAIN, 1e-3)


def _matmul(ctx: Context, dtype: Any, n: int, rows: int) -> Callable[[], Any]:
    w, x = ctx.tensor((n, n), dtype), ctx.tensor((rows, n), dtypes["float32"])
    return lambda: x @ w.T


def _elements(ctx: Context, dtype: Any, n: int) -> Callable[[], Any]:
    a, b = ctx.tensor((n, n), dtype), ctx.tensor((n, n), dtype)
    return lambda: a + b


def _rows(ctx: Context, dtype: Any, n: int) -> Callable[[], Any]:
    a = ctx.tensor((n, n), dtype)
    return lambda: ops.soft_max(a)


def _moves(ctx: Context, dtype: Any, n: int) -> Callable[[], Any]:
    a = ctx.tensor((n, n), dtype)
    return lambda: ops.cont(ops.transpose(a))


def _fit(launch: float, us: float, work: float) -> float:
    """The rate at which `work` takes the time beyond the launch."""
    return work / max(us - launch, 1e-3)


def _jobs(backend: Backend, size: int) -> list[tuple[str, Callable[[], OpCost]]]:
    """What to measure, one after the other."""

    def matmul(dtype: str) -> OpCost:
        def product(rows: int, n: int) -> float:
            return _time_op(backend, lambda c, t, n: _matmul(c, t, n, rows), dtype, n)

        launch = product(1, 32)
        return OpCost(
            "matmul", dtype, launch, _fit(launch, product(1, size), float(size * dtypes[dtype].row_size(size))),
            _fit(launch, product(64, size), 2.0 * 64 * size * size),
        )  # fmt: skip

    def plain(op_class: str, build: Build, n_arrays: int) -> OpCost:
        launch = _time_op(backend, build, "float32", 32)
        return OpCost(
            op_class,
            None,
            launch,
            _fit(launch, _time_op(backend, build, "float32", size), 4.0 * n_arrays * size * size),
        )

    types = ("float32", "float16", "q8_0", "q4_0")
    jobs: list[tuple[str, Callable[[], OpCost]]] = [(f"matmul {t}", partial(matmul, t)) for t in types]
    others: list[tuple[str, Build, int]] = [("elements", _elements, 3), ("rows", _rows, 2), ("moves", _moves, 2)]
    return [*jobs, *((op_class, partial(plain, op_class, build, n)) for op_class, build, n in others)]


def _measure_copy(backend: Backend, *, read: bool) -> CopyCost:
    """Least squares over sizes from 4 KiB to 16 MiB, weighted so that each counts alike."""
    sizes, times = [1 << k for k in range(12, 25, 3)], []
    for size in sizes:
        with Context() as ctx:
            t = ctx.tensor((size,), dtypes["int8"])
            with backend.buffer_type.alloc(size + 4096) as buffer:
                buffer.place(t)
                data = np.zeros(size, np.int8)
                t.set(data)
                copy: Callable[[], object] = partial(t.numpy, copy=True) if read else partial(t.set, data)
                times.append(_median_us(copy, 3))
    weights = 1 / np.array(times)
    a = np.stack([np.ones(len(sizes)), np.array(sizes, float)], 1) * weights[:, None]
    launch, per_byte = np.linalg.lstsq(a, np.ones(len(sizes)), rcond=None)[0]
    return CopyCost(max(float(launch), 0.0), 1 / max(float(per_byte), 1e-9))


def _check_size(size: int) -> None:
    if expect_int(size, "calibrate: size") < 64 or size % 32:
        raise InvalidArgumentError(f"calibrate: size must be a multiple of 32, at least 64, not {size}")


def calibrate(
    backend: Backend, *, size: int = 768, write: bool = True, progress: Callable[[int, int, str], None] | None = None
) -> DeviceCosts:
    """Measures what work costs on a device, which should have nothing else to do, and keeps it on disk.

    size: matrices have ``size`` x ``size`` elements, a multiple of 32
    progress: called with the number of measurements done, their total, and what comes next
    """
    expect(backend, Backend, "calibrate: backend")
    _check_size(size)
    write = expect_bool(write, "calibrate: write")
    if progress is not None:
        expect_function(progress, "calibrate: progress")
    jobs = _jobs(backend, size)
    tell = progress or (lambda done, total, what: None)
    found: list[OpCost] = []
    for i, (what, job) in enumerate(jobs):
        tell(i, len(jobs) + 2, what)
        with contextlib.suppress(UnsupportedError):
            found.append(job())
    if not found:
        raise UnsupportedError(f"calibrate: {backend.name} runs none of the ops that are measured")
    # for what was not measured
    found.append(OpCost("any", None, max(op.launch_us for op in found), min(op.bytes_per_us for op in found)))
    tell(len(jobs), len(jobs) + 2, "copies to the device")
    from_host = _measure_copy(backend, read=False)
    tell(len(jobs) + 1, len(jobs) + 2, "copies from the device")
    device = DeviceCosts(tuple(found), from_host, _measure_copy(backend, read=True), backend.buffer_type.is_host)
    if write:
        _write(backend, device)
    tell(len(jobs) + 2, len(jobs) + 2, "")
    return device


# -------------------------------------------------------------------------------------------------------------------
# command line


def _calibrate(options: argparse.Namespace) -> int:
    _check_size(options.size)
    results = []
    for name in options.devices or ["CPU"]:
        try:
            backend = Backend(name)
            kept = None if options.force else _read(backend)
            device = kept or calibrate(backend, size=options.size, progress=step_bar(name))
        except GgmlError as error:
            if len(options.devices or ()) > 1 and name not in str(error):
                error.args = (f"{name}: {error}",)
            raise
        results.append(
            {"device": _describe(backend), "file": str(_path(backend)), "measured": kept is None, **_to_json(device)}
        )
    if options.json:
        print_json(results)
        return 0
    for r in results:
        say(f"{r['device']}: {'measured' if r['measured'] else 'known'}, {r['file']}")
        for op in r["ops"]:
            rates = "".join(
                f"{op[k] / 1e3:10.2f} {unit}"
                for k, unit in (("bytes_per_us", "GB/s"), ("flops_per_us", "GFLOP/s"))
                if op[k]
            )
            print(f"  {op['op_class']:9} {op['dtype'] or '':8} {op['launch_us']:9.2f} us{rates}")
        for what in ("from_host", "to_host"):
            print(f"  {what:18} {r[what]['launch_us']:9.2f} us {r[what]['bytes_per_us'] / 1e3:9.2f} GB/s")
    return 0


def add_calibrate_command(commands: Any) -> None:
    """Adds ``calibrate`` to the subparsers of the command line."""
    parser = commands.add_parser(
        "calibrate", help="measure what work costs on devices, for the scheduling policy 'cost'"
    )
    parser.add_argument("devices", nargs="*", metavar="DEVICE", help="as for Backend: CPU, SIM:name=A (CPU)")
    parser.add_argument(
        "--size", type=int, default=768, metavar="N", help="rows and columns of the matrices that are measured (768)"
    )
    parser.add_argument("--force", action="store_true", help="measure again what is known")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=_calibrate, parser=parser)
