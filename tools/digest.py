#!/usr/bin/env python3
"""Hashes the results, placements and plans of the installed package, to compare builds. Equal hashes mean equal bits.

    PYTHONPATH=SITE python tools/digest.py [--json FILE] [--compare FILE] [--only PATTERN]

Each group has results. Each result has a part (a level with a number of threads, or a kind of result) and a label:

- ``op/NAME``: all calls of ``check_device`` to an operation. Parts: the bytes of the result by kernel level and number
  of threads, the nodes that CPU and SIM support, and the placement and memory plan of a scheduler with costs.
- ``quantize/TYPE``: blocks from floats, with and without importance, and floats from blocks.
- ``chain/NAME``: operators that the backend may fuse: products with what follows, attention, rotations into caches.
- ``sched/POLICY``: random graphs on the CPU and two simulated devices: results, plans, counters, and reasons in words.
- ``memory``: the memory planner on random lifetimes, orders of nodes, the allocators.
- ``gguf``: files with tensors of every type.

Compare digests of one machine, Python and NumPy only. ``--compare`` compares the results that both packages have. It
prints the parts that differ, each with the label of its first difference, and exits with 1 if any part differs.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":  # set before the package reads it, because caches of earlier runs must not count
    _caches = tempfile.TemporaryDirectory(prefix="digest-")
    os.environ["XDG_CACHE_HOME"] = _caches.name

import ggml_backend as gb
from ggml_backend.testing._inputs import In, values_of
from ggml_backend.testing._operators import Bench
from ggml_backend.testing._variants import all_variants

Array = np.ndarray[Any, Any]
Wanted = Callable[[str], bool]
DTYPES = sorted({d for d in vars(gb.dtypes).values() if isinstance(d, gb.dtypes.DType)}, key=lambda d: d.id)


class Digest:
    """Hashes by group, part and label."""

    def __init__(self) -> None:
        self.group = ""
        self.groups: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))

    def add(self, part: str, label: str, *results: Any) -> None:
        """Hashes the bits of arrays and bytes, and the text of anything else."""
        h = hashlib.sha256()
        for r in results:
            if isinstance(r, np.ndarray):
                h.update(f"{r.dtype}{r.shape}".encode())
                r = np.ascontiguousarray(r).tobytes()
            h.update(r if isinstance(r, bytes) else repr(r).encode())
        labels = self.groups[self.group][part]
        while label in labels:  # several results of one label
            label += "'"
        labels[label] = h.hexdigest()[:16]


def combined(found: Any) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def seeded(label: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(label.encode()))


def uniform(shape: tuple[int, ...], dtype: str, scale: float, rng: np.random.Generator) -> Array:
    """Random values up to ``scale``, for :meth:`Tensor.set`."""
    return values_of(In(shape, dtype, -scale, scale), rng)[0]


# ---- operators -------------------------------------------------------------------------------------------------------


def backends() -> dict[str, gb.Backend]:
    """The best and the scalar level with one and two threads, the others with one."""
    found = {f"default, {n} threads": gb.Backend("CPU", n_threads=n) for n in (1, 2)}
    best = found["default, 1 threads"].level
    for level, usable in gb.backend.cpu_levels().items():
        if usable and (level != best or level == "scalar"):
            for n in (1, 2) if level == "scalar" else (1,):
                found[f"{level}, {n} threads"] = gb.Backend("CPU", n_threads=n, level=level)
    return found


def price_list() -> gb.sched.Costs:
    """Costs that differ for each class of operators and for a few types."""
    ops = [gb.sched.OpCost("any", None, 1.5, 311.0, 997.0)]
    for i, kind in enumerate(("matmul", "rows", "elements", "moves", "windows"), 2):
        ops.append(gb.sched.OpCost(kind, None, 1.0 / i, 100.0 * i + 7.0, 1000.0 * i + 13.0))
        ops.append(gb.sched.OpCost(kind, "float16", 2.0 / i, 150.0 * i + 3.0, 1700.0 * i + 11.0))
    fast = tuple(
        gb.sched.OpCost(o.op_class, o.dtype, 2 * o.launch_us, 3 * o.bytes_per_us, 5 * o.flops_per_us) for o in ops
    )
    copy = gb.sched.CopyCost(3.0, 500.0)
    return gb.sched.Costs([gb.sched.DeviceCosts(fast, copy, copy), gb.sched.DeviceCosts(tuple(ops), host=True)])


def operators(digest: Digest, wanted: Wanted) -> None:
    every = backends()
    cpu, sim, costs = every["default, 1 threads"], gb.Backend("SIM:name=OPS,mem=64M"), price_list()
    for variant in all_variants(quick=False):
        digest.group, label = f"op/{variant.op}", variant.name
        if not wanted(digest.group):
            continue
        rng = seeded(label)
        try:
            bench = Bench(variant, [values_of(given, rng) for given in variant.inputs])
        except (gb.GgmlError, TypeError) as error:
            digest.add("refused", label, type(error).__name__)
            continue
        with bench.ctx:
            digest.add("supported", label, [(cpu.supports(t), sim.supports(t)) for t in bench.graph.nodes])
            with gb.Scheduler([sim, cpu], policy="cost", costs=costs) as sched:
                try:
                    plan = sched.prepare(bench.graph, allocate=False)
                    digest.add("planned", label, sched.prediction, plan.arenas, plan.splits, plan.copies)
                except gb.GgmlError as error:
                    digest.add("planned", label, type(error).__name__)
            if bench.refusal(cpu) is None:
                bench.place(cpu)
                for name, backend in every.items():
                    for source in bench.sources:
                        source.root.set(source.memory)
                    bench.compute(backend)
                    digest.add(name, label, bench.node.numpy())


# ---- quantized formats -----------------------------------------------------------------------------------------------


def formats(digest: Digest, wanted: Wanted) -> None:
    for dtype in DTYPES:
        digest.group = f"quantize/{dtype.name}"
        if not dtype.is_quantized or not wanted(digest.group):
            continue
        rng = seeded(digest.group)
        for kind, array in arrays_to_quantize(rng):
            for with_importance in (False, True):
                weights = rng.random(array.shape[-1]).astype(np.float32) + 0.1 if with_importance else None
                label = f"{kind} importance={with_importance}"
                for n in (1, 2):
                    try:
                        made = gb.quantize(array, dtype, weights, n_threads=n)
                    except gb.GgmlError as error:
                        digest.add("quantized", label, type(error).__name__)
                        continue
                    digest.add("quantized", label, made)
                    digest.add("dequantized", label, gb.dequantize(made, dtype, n_threads=n))
        bits = rng.integers(0, 256, (4, dtype.row_nbytes(512)), np.uint8)
        digest.add(
            "random blocks", dtype.name, np.isnan(gb.dequantize(bits, dtype)), finite(gb.dequantize(bits, dtype))
        )


def arrays_to_quantize(rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    yield "normal", rng.standard_normal((6, 1024), np.float32)
    yield "tiny", rng.standard_normal((2, 512), np.float32) * np.float32(1e-6)
    yield "one-sided", rng.random((2, 512), np.float32) + np.float32(3.0)
    yield "zeros", np.zeros((1, 512), np.float32)
    spiked = rng.standard_normal((2, 512)).astype(np.float32)
    spiked[:, ::97] *= 300
    yield "spiked", spiked


def finite(array: Array) -> Array:
    """Replaces NaN by zeros, because bits of NaN may differ."""
    return np.where(np.isnan(array), np.float32(0), array)


# ---- chains ----------------------------------------------------------------------------------------------------------


class Chain:
    """A graph under construction, with the values of its inputs and weights."""

    def __init__(self, label: str) -> None:
        self.rng = seeded(label)
        self.ctx = gb.Context()
        self.inputs: list[tuple[gb.Tensor, Array]] = []

    def tensor(self, *shape: int, dtype: str = "float32", values: Array | None = None, scale: float = 1.0) -> gb.Tensor:
        t = self.ctx.tensor(shape, dtype)
        self.inputs.append((t, uniform(shape, dtype, scale, self.rng) if values is None else values))
        return t

    def results(self, graph: gb.Graph, backend: gb.Backend) -> list[Array]:
        """The results of two runs. The second run finds the plan of the first."""
        with gb.Scheduler([backend]) as sched:
            sched.allocate(graph)
            found = []
            for _ in range(2):
                for t, array in self.inputs:
                    t.set(array)
                sched.compute(graph)
                found += [o.numpy(copy=True) for o in graph.outputs]
        return found


WEIGHTS = [d.name for d in DTYPES if d.is_quantized or d.name in ("float32", "float16", "bfloat16")]


def product(c: Chain, n: int, dtype: str, then: str) -> list[gb.Tensor]:
    x = c.tensor(n, 256)
    y = x @ c.tensor(67, 256, dtype=dtype).T
    if "bias" in then:
        y = y + c.tensor(67)
    for name in ("gelu", "gelu_erf", "relu", "silu", "scale"):
        if name in then.split("+"):
            y = gb.ops.scale(y, 0.3) if name == "scale" else getattr(gb.ops, name)(y)
    if "gate" in then:
        y = gb.ops.silu(x @ c.tensor(67, 256, dtype=dtype).T) * y
    if "residual" in then:
        y = y + c.tensor(n, 67)
    return [y]


def attention(c: Chain, tokens: int, dtype: str, then: str) -> list[gb.Tensor]:
    heads, keys, size = 3, tokens + 37, 64
    q = c.tensor(heads, tokens, size)
    k = c.tensor(heads, keys, size, dtype=dtype)
    v = c.tensor(heads, size, keys, dtype=dtype)
    scores = gb.ops.mul_mat(k, q)
    if "mask" in then:
        mask = np.where(c.rng.random((tokens, keys)) < 0.2, -np.inf, 0).astype(np.float32)
        mask[:, 0] = 0
        scores = gb.ops.soft_max(scores, c.tensor(tokens, keys, values=mask), 0.125)
    elif "causal" in then:
        scores = gb.ops.soft_max(gb.ops.diag_mask_inf(gb.ops.scale(scores, 0.125), keys - tokens))
    else:
        scores = gb.ops.soft_max(gb.ops.scale(scores, 0.125))
    mixed = gb.ops.mul_mat(v, scores)
    return [gb.ops.cont(mixed.transpose(1, 0, 2)) if "merged" in then else mixed]


def rotation(c: Chain, tokens: int, dtype: str, then: str) -> list[gb.Tensor]:
    x = c.tensor(tokens, 4, 64)
    at = c.tensor(tokens, dtype="int32", values=np.arange(tokens, dtype=np.int32) + 5)
    y = gb.ops.rope(x, at, mode="neox_exact" if "neox" in then else "normal_exact")
    cache = c.tensor(tokens + 20, 4, 64, dtype=dtype)
    return [gb.ops.cpy(y, cache[7 : 7 + tokens])]


def normalized(c: Chain, n: int, dtype: str, then: str) -> list[gb.Tensor]:
    x = c.tensor(n, 256)
    if "residual" in then:
        x = x + c.tensor(n, 256)
    y = (gb.ops.norm(x) if "layer" in then else gb.ops.rms_norm(x)) * c.tensor(256)
    if "bias" in then:
        y = y + c.tensor(256)
    return [gb.ops.mul_mat(c.tensor(40, 256, dtype=dtype), y), x]


CHAINS: list[tuple[Any, tuple[str, ...], list[str]]] = [
    (
        product,
        ("plain", "bias", "bias+gelu", "bias+gelu_erf", "relu", "scale", "bias+silu", "gate", "bias+residual"),
        WEIGHTS,
    ),
    (attention, ("plain", "mask", "causal", "mask+merged"), ["float32", "float16", "bfloat16"]),
    (rotation, ("normal", "neox"), ["float32", "float16", "bfloat16"]),
    (normalized, ("rms", "layer", "layer+bias", "rms+residual"), ["float32", "float16", "q8_0", "q4_k"]),
]


def chains(digest: Digest, wanted: Wanted) -> None:
    usable = [n for n, ok in gb.backend.cpu_levels().items() if ok]
    backends = [
        (f"{level}, {n} threads", gb.Backend("CPU", level=level, n_threads=n)) for level in usable for n in (1, 2)
    ]
    for build, ends, dtypes in CHAINS:
        digest.group = f"chain/{build.__name__}"
        for end, dtype, n in ((e, d, n) for e in ends for d in dtypes for n in (1, 4, 33)):
            if not wanted(digest.group):
                continue
            label = f"{end} {dtype} {n}"
            chain = Chain(label)
            with chain.ctx:
                results = build(chain, n, dtype, end)
                # The sources of the last node are never fused with it. So sum_rows reads each result and is last.
                graph = chain.ctx.graph(*results, *(gb.ops.sum_rows(r) for r in results))
                for name, backend in backends:
                    try:
                        digest.add(name, label, *chain.results(graph, backend))
                    except gb.GgmlError as error:
                        digest.add(name, label, type(error).__name__)


# ---- scenes ----------------------------------------------------------------------------------------------------------


class Scene:
    """A random graph over three devices: some have weights, some nodes are assigned, one device lacks operators."""

    WIDTH = 32

    def __init__(self, label: str, policy: str) -> None:
        self.rng = seeded(label)
        self.devices = [
            gb.Backend("SIM:name=A,mem=64M"),
            gb.Backend("SIM:name=B,mem=64M,noops=gelu+soft_max,copy_bw=4G"),
            gb.Backend("CPU", n_threads=1),
        ]
        self.ctx = gb.Context()
        self.stores = [gb.Context(usage="weights") for _ in self.devices]
        self.inputs: list[gb.Tensor] = []
        self.weights: list[gb.Tensor] = []
        self.nodes: list[gb.Tensor] = []
        self.make()
        options: dict[str, Any] = {"policy": policy, "n_copies": int(self.rng.choice([1, 1, 2, 3]))}
        options["keep_all"] = bool(self.rng.random() < 0.2)
        options["check"] = bool(self.rng.random() < 0.3)
        if policy == "cost":
            options["costs"] = self.prices()
        self.sched = gb.Scheduler(self.devices, **options)

    def prices(self) -> gb.sched.Costs:
        copy = gb.sched.CopyCost(2.0, 1000.0)
        rates = self.rng.integers(50, 3000, 3)
        ops = [
            (
                gb.sched.OpCost("any", None, 1.0, float(r), 10.0 * float(r)),
                gb.sched.OpCost("matmul", None, 1.5, float(r), 40.0),
            )
            for r in rates
        ]
        return gb.sched.Costs(
            [gb.sched.DeviceCosts(o, copy, copy, host=i == 2) for i, o in enumerate(ops)], split_us=3.0
        )

    def make(self) -> None:
        for i in range(int(self.rng.integers(1, 4))):
            self.inputs.append(
                self.ctx.tensor((int(self.rng.choice([4, 4, 8])), self.WIDTH), name=f"in{i}").set_input()
            )
        for i in range(int(self.rng.integers(1, 6))):
            store = self.stores[int(self.rng.integers(0, 3))]
            dtype = str(self.rng.choice(["float32", "q8_0", "float16"]))
            self.weights.append(store.tensor((self.WIDTH, self.WIDTH), dtype, name=f"w{i}"))
        self.state = self.stores[2].tensor((4, self.WIDTH), name="state")
        for i in range(int(self.rng.integers(4, 40))):
            self.nodes.append(self.node().named(f"n{i}"))
        self.nodes.append(gb.ops.cpy(self.nodes[0][:4], self.state).named("kept"))
        used = {id(s) for n in self.nodes for s in n.sources}
        self.outputs = [n for n in self.nodes if id(n) not in used or self.rng.random() < 0.1]
        self.graph = self.ctx.graph(*self.outputs)

    def pick(self) -> gb.Tensor:
        known = [*self.inputs, *self.nodes]
        return known[-1 - min(int(self.rng.exponential(2.5)), len(known) - 1)]

    def node(self) -> gb.Tensor:
        x = self.pick()
        kind = int(self.rng.integers(0, 9))
        if kind < 3:
            return x @ self.weights[int(self.rng.integers(0, len(self.weights)))].T
        if kind == 3:
            y = self.pick()
            return x + y if x.shape == y.shape else gb.ops.concat(x, y, axis=0)
        if kind == 4:
            return gb.ops.cont(x[: x.shape[0] // 2]) if x.shape[0] > 4 else gb.ops.scale(x, 0.9)
        if kind == 5:
            return gb.ops.mul(x, x, inplace=bool(self.rng.random() < 0.5)) if x in self.nodes else gb.ops.sqr(x)
        return gb.ops.gelu(x) if kind == 6 else gb.ops.rms_norm(x) if kind == 7 else gb.ops.soft_max(x)

    def place(self) -> None:
        for store, device in zip(self.stores, self.devices, strict=True):
            if store.tensors():
                store.allocate(device, usage="weights" if device is not self.devices[2] else "any")
        for w in [*self.weights, self.state]:
            w.set(uniform(w.shape, w.dtype.name, 0.3, self.rng))
        for n in self.nodes:
            if self.rng.random() < 0.1:
                device = self.devices[int(self.rng.integers(0, 3))]
                if device.supports(n):
                    self.sched.set_backend(n, device)

    def set_inputs(self) -> None:
        for t in (t for t in self.inputs if t.is_placed):  # inputs without memory are not in the graph
            t.set(self.rng.standard_normal(t.shape, np.float32))

    def read(self) -> list[Array]:
        return [n.numpy(copy=True) for n in self.outputs] + [self.state.numpy(copy=True)]

    def close(self) -> None:
        self.sched.close()
        for ctx in (self.ctx, *self.stores):
            ctx.close()


def counters(stats: gb.sched.SchedulerStats) -> list[Any]:
    """The counters that do not depend on time."""
    return [
        (f.name, getattr(stats, f.name)) for f in fields(stats) if not f.name.endswith("seconds") and f.name != "splits"
    ]


def run_scene(digest: Digest, label: str, policy: str) -> None:
    scene = Scene(label, policy)
    scene.place()
    try:
        plan = scene.sched.prepare(scene.graph)
    except gb.GgmlError as error:
        digest.add("plans", label, type(error).__name__)
        return
    digest.add("plans", label, plan.arenas, plan.splits, plan.copies, scene.sched.prediction)
    digest.add("reasons in words", label, [plan.explain(n) for n in scene.graph.nodes], plan.to_text(), plan.to_csv())
    for _ in range(3):
        scene.set_inputs()
        scene.sched.compute(scene.graph)
        digest.add("results", label, *scene.read())
    scene.set_inputs()
    pending = scene.sched.compute_async(scene.graph)
    pending.wait()
    digest.add("results", label, *scene.read())
    digest.add("counters", label, counters(scene.sched.stats))
    scene.close()


def scenes(digest: Digest, wanted: Wanted) -> None:
    # The garbage collector is off. If it freed objects of an earlier scene, the scheduler would look for a plan once
    # more, which changes its counters.
    gc.collect()
    gc.disable()
    try:
        for policy in ("weights", "sources", "cost"):
            digest.group = f"sched/{policy}"
            if wanted(digest.group):
                for seed in range(80):
                    run_scene(digest, f"world {seed}", policy)
    finally:
        gc.enable()


# ---- memory ----------------------------------------------------------------------------------------------------------


def memory(digest: Digest, wanted: Wanted) -> None:
    digest.group = "memory"
    if not wanted(digest.group):
        return
    for label, lower, upper, size in lifetimes():
        for alignment in (1, 32):
            plan = gb.planning.plan_memory(lower, upper, size, alignment)
            digest.add(
                "offsets", f"{label} {alignment}", plan.offsets, plan.peak, plan.lower_bound, plan.best_fit, plan.proved
            )
    cpu = gb.Backend("CPU", n_threads=1)
    for seed in range(40):
        label = f"order {seed}"
        scene = Scene(label, "weights")
        digest.add("orders", label, [n.name for n in scene.graph.reordered().nodes])
        for store in scene.stores:
            if store.tensors():
                store.allocate(cpu)
        for w in [*scene.weights, scene.state]:
            w.set(uniform(w.shape, w.dtype.name, 0.3, scene.rng))
        with gb.sched.GraphAllocator(cpu) as allocator:
            digest.add("graph allocator", label, allocator.measure(scene.graph))
            allocator.allocate(scene.graph)
            scene.set_inputs()
            scene.graph.compute(cpu)
            digest.add("graph allocator", label, *scene.read())
        scene.close()


def lifetimes() -> Iterator[tuple[str, Array, Array, Array]]:
    for seed in range(60):
        rng = seeded(f"lifetimes {seed}")
        n = int(rng.integers(1, 200))
        lower = rng.integers(0, 100, n)
        yield f"random {seed}", lower, lower + rng.integers(1, 20, n), rng.integers(0, 1000, n)
    rng = seeded("chain")
    lower = np.arange(120)
    yield "chain", lower, lower + rng.integers(1, 5, 120), rng.integers(1, 5, 120) * 64


# ---- files -----------------------------------------------------------------------------------------------------------


def files(digest: Digest, wanted: Wanted) -> None:
    digest.group = "gguf"
    if not wanted(digest.group):
        return
    rng = seeded("gguf")
    array = rng.standard_normal((4, 512), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            path = Path(folder) / f"{dtype.name}.gguf"
            try:
                with gb.gguf.Writer(path) as out:
                    out.add("general.architecture", "digest").add("numbers", [1, 2, 3]).add("x", 0.5)
                    out.add_tensor("w", array, dtype=dtype)
                    out.add_tensor("b", array[0])
                with gb.gguf.open(path) as file:
                    tensor = file.tensors["w"]
                    digest.add("read", dtype.name, tensor.ne, tensor.size, tensor.dequantize())
                digest.add("written", dtype.name, path.read_bytes())
            except (gb.GgmlError, TypeError) as error:
                digest.add("written", dtype.name, type(error).__name__)


# ---- running and comparing -------------------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """Facts that must be equal for two digests to be comparable."""
    levels = " ".join(n for n, usable in gb.backend.cpu_levels().items() if usable)
    return {"levels": levels, "python": platform.python_version(), "numpy": np.__version__}


def compare(now: dict[str, Any], before: dict[str, Any], wanted: Wanted) -> int:
    """Prints the differences. Returns 1 if there are any."""
    if now["machine"] != before["machine"]:
        print(f"not comparable: {before['machine']} then, {now['machine']} now")
        return 1
    different = alone = 0
    groups = sorted(g for g in now["groups"].keys() | before["groups"].keys() if wanted(g))
    for group in groups:
        new, old = ({(p, k): h for p, part in x["groups"].get(group, {}).items() for k, h in part.items()}
                    for x in (now, before))  # fmt: skip
        alone += len(new.keys() ^ old.keys())
        firsts: dict[str, str] = {}
        for part, label in new.keys() & old.keys():
            if new[part, label] != old[part, label]:
                firsts[part] = min(label, firsts.get(part, label))
        print(f"{'DIFFERENT' if firsts else 'equal'}  {group}")
        for part, label in sorted(firsts.items()):
            print(f"    {part}: {label}")
        different += bool(firsts)
    print(f"{len(groups) - different} of {len(groups)} groups are equal; only one package has {alone} results")
    return 1 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Hash the results and decisions of the installed package.")
    parser.add_argument("--json", type=Path, help="write the hashes to this file")
    parser.add_argument("--compare", type=Path, help="a file of --json; print the groups that differ from it")
    parser.add_argument("--only", default="*", help="pattern of groups, such as 'op/mul_mat*'")
    options = parser.parse_args()
    begin = time.monotonic()
    warnings.simplefilter("ignore", gb.errors.PerformanceWarning)
    digest = Digest()

    def wanted(group: str) -> bool:
        return fnmatch.fnmatch(group, options.only)

    for run in (operators, formats, chains, scenes, memory, files):
        run(digest, wanted)
    result: dict[str, Any] = {"machine": machine(), "groups": digest.groups}
    if not options.compare:
        for group, parts in sorted(digest.groups.items()):
            print(f"{combined(parts)} {group}")
    n = sum(len(labels) for parts in digest.groups.values() for labels in parts.values())
    print(f"{combined(digest.groups)} total: {n} results, {time.monotonic() - begin:.0f} s, {gb.__file__}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.compare:
        return compare(result, json.loads(options.compare.read_text()), wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
