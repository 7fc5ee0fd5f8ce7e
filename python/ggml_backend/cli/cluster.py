"""``mpiexec -n N python -m ggml_backend cluster``: shows the ranks of an MPI job and their links,
and runs scripts on rank 0."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import time
import traceback
from typing import Any

import numpy as np

from .._base.errors import InvalidArgumentError
from .._base.terminal import print_json, say, step_bar
from ..backend.backend import Backend
from ..cluster import Cluster, dismiss, rank_of_process, start
from ..sched._costs import to_json
from ..tensor.context import Context

_SIZE = 4 << 20  # bytes of the transfer that measures bandwidth


_ACTIONS = {
    "info": "show a table of the ranks",
    "ping": "show the ranks with the latency and the bandwidth to each",
    "calibrate": "measure devices and links, for the scheduling policy 'cost' and for descriptions of the cluster",
    "run": "rank 0 runs SCRIPT, which calls gb.cluster.start(), and the other ranks serve",
}
_EXAMPLES = {"info": "", "ping": "", "calibrate": "--out CLUSTER.toml", "run": "SCRIPT.py"}

EXAMPLE = "ping"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    for name, text in _ACTIONS.items():
        made = actions.add_parser(name, help=text, description=text)
        made.epilog = f"example: mpiexec -n 3 {made.prog} {_EXAMPLES[name]}".rstrip()
        made.set_defaults(parser=made)
        made.add_argument(
            "--deadline", type=float, default=30.0, help="seconds until a silent rank is lost (default: 30)"
        )
        made.add_argument(
            "--threads",
            type=int,
            help="threads of each rank's CPU (default: the cores of a host, divided among its ranks)",
        )
        made.add_argument("--cache", help="folder where ranks keep the weights that they received")
        if name == "calibrate":
            made.add_argument(
                "--size",
                type=int,
                default=768,
                metavar="N",
                help="rows and columns of the measured matrices (default: 768)",
            )
            made.add_argument(
                "--seconds",
                type=float,
                default=300.0,
                help="start no measurement of a link after this time (default: 300)",
            )
            made.add_argument("--force", action="store_true", help="measure again, even if costs are known")
            made.add_argument(
                "--out", metavar="FILE.toml", help="write a description of the cluster, for plan MODEL.gguf --cluster"
            )
        if name == "run":
            made.add_argument("script", help="a Python file")
            made.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
        else:
            made.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    how = {"deadline": options.deadline, "n_threads": options.threads, "cache": options.cache}
    if options.action == "run":
        if rank_of_process(options.deadline) != 0:
            start(**how)
        try:
            return _script(options.script, options.arguments)
        finally:
            dismiss()
    with start(**how) as found:
        if options.action == "calibrate":
            return _calibrate(found, options)
        return _show(found, options.action == "ping", options.json)


def _script(path: str, arguments: list[str]) -> int:
    """Runs a script as ``python SCRIPT`` does. Its errors look the same."""
    if not os.path.exists(path):
        raise InvalidArgumentError(f"there is no file {path}")
    sys.argv = [path, *arguments]
    sys.path[0:0] = [os.path.dirname(os.path.abspath(path))]
    try:
        runpy.run_path(path, run_name="__main__")
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _show(found: Cluster, measured: bool, as_json: bool) -> int:
    rows: list[dict[str, Any]] = []
    for rank in found.ranks:
        row: dict[str, Any] = {
            "rank": rank.number, "host": rank.host, "pid": rank.pid, "cores": rank.cores, "memory": rank.memory,
            "backends": list(rank.backends), "version": rank.version,
        }  # fmt: skip
        if measured and rank.number:
            row["round_trip_us"] = found.ping(rank.number) * 1e6
            row["to_rank_bytes_per_s"], row["from_rank_bytes_per_s"] = _bandwidth(rank.number)
        rows.append(row)
    if as_json:
        print_json(rows)
        return 0
    for row in rows:
        what = f"rank {row['rank']}: {row['host']}, {row['cores']} cores, {row['memory'] / 2**30:.1f} GiB,"
        what += f" {', '.join(row['backends'])}, version {row['version']}"
        if "round_trip_us" in row:
            what += f"; round trip {row['round_trip_us']:.1f} us, {row['to_rank_bytes_per_s'] / 1e9:.2f} GB/s to it,"
            what += f" {row['from_rank_bytes_per_s'] / 1e9:.2f} GB/s from it"
        say(what)
    return 0


def _calibrate(found: Cluster, options: argparse.Namespace) -> int:
    backends = [*found.backends(), Backend("CPU")]
    costs = found.calibrate(
        backends, size=options.size, seconds=options.seconds, force=options.force, progress=step_bar("cluster")
    )
    if options.out:
        found.describe(backends, costs).write(options.out)
    names = [*(b.name for b in backends[:-1]), "rank 0"]
    links = [(names[i], names[j], c) for (i, j), c in sorted(costs.copies.items())]
    for name, device in zip(names[:-1], costs.devices[:-1], strict=True):
        links += [("rank 0", name, device.from_host), (name, "rank 0", device.to_host)]
    if options.json:
        rows = [{"device": n, **to_json(d)} for n, d in zip(names, costs.devices, strict=True)]
        ways = [{"from": a, "to": b, "launch_us": c.launch_us, "bytes_per_us": c.bytes_per_us} for a, b, c in links]
        print_json({"devices": rows, "links": ways})
        return 0
    for name, device in zip(names, costs.devices, strict=True):
        products = [op for op in device.ops if op.op_class == "matmul"]
        rates = (f"{o.dtype} {o.bytes_per_us / 1e3:.1f} GB/s, {o.flops_per_us / 1e3:.0f} GFLOP/s" for o in products)
        say(f"{name}: products of {'; '.join(rates)}")
    for a, b, c in links:
        say(f"{a} to {b}: {c.launch_us:.1f} us, {c.bytes_per_us / 1e3:.3g} GB/s")
    return 0


def _bandwidth(rank: int) -> tuple[float, float]:
    """Bytes a second to the memory of a rank and back, the best of several transfers."""
    backend, data = Backend(f"MPI{rank}:CPU"), np.zeros(_SIZE // 4, np.float32)
    there, back = [], []
    with Context() as ctx:
        t = ctx.tensor(data.shape)
        ctx.allocate(backend)
        for _ in range(8):
            begin = time.perf_counter()
            t.set(data)
            backend.synchronize()
            middle = time.perf_counter()
            t.numpy()
            there.append(middle - begin)
            back.append(time.perf_counter() - middle)
    return _SIZE / min(there), _SIZE / min(back)
