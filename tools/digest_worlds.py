"""What tools/digest.py computes of graphs: chains that may be fused, random graphs on several devices, plans, files."""

from __future__ import annotations

import gc
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import ggml_backend as gb
from digest_ops import DTYPES, In, values_of

if TYPE_CHECKING:
    from digest import Digest

Array = np.ndarray[Any, Any]
Wanted = Callable[[str], bool]


def generator(label: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(label.encode()))


def without_pointers(text: str) -> str:
    """The same text for the same graph: addresses become numbers, in their order."""
    numbers: dict[str, str] = {}
    return re.sub(r"0x[0-9a-f]+", lambda m: numbers.setdefault(m.group(), f"@{len(numbers)}"), text)


# ---- chains ----------------------------------------------------------------------------------------------------------


class Chain:
    """A graph under construction, with what to write into its inputs and weights."""

    def __init__(self, label: str) -> None:
        self.rng = generator(label)
        self.ctx = gb.Context()
        self.inputs: list[tuple[gb.Tensor, Array]] = []

    def tensor(self, *shape: int, dtype: str = "float32", values: Array | None = None, scale: float = 1.0) -> gb.Tensor:
        given = In(shape, dtype, -scale, scale, values)
        t = self.ctx.tensor(shape, dtype)
        self.inputs.append((t, values_of(given, self.rng)))
        return t

    def results(self, graph: gb.Graph, backend: gb.Backend) -> list[Array]:
        """Two runs: the second one finds the plan of the first."""
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
            y = gb.scale(y, 0.3) if name == "scale" else getattr(gb, name)(y)
    if "gate" in then:
        y = gb.silu(x @ c.tensor(67, 256, dtype=dtype).T) * y
    if "residual" in then:
        y = y + c.tensor(n, 67)
    return [y]


def attention(c: Chain, tokens: int, dtype: str, then: str) -> list[gb.Tensor]:
    heads, keys, size = 3, tokens + 37, 64
    q = c.tensor(heads, tokens, size)
    k = c.tensor(heads, keys, size, dtype=dtype)
    v = c.tensor(heads, size, keys, dtype=dtype)
    scores = gb.mul_mat(k, q)
    if "mask" in then:
        mask = np.where(c.rng.random((tokens, keys)) < 0.2, -np.inf, 0).astype(np.float32)
        mask[:, 0] = 0
        scores = gb.soft_max(scores, c.tensor(tokens, keys, values=mask), 0.125)
    elif "causal" in then:
        scores = gb.soft_max(gb.diag_mask_inf(gb.scale(scores, 0.125), keys - tokens))
    else:
        scores = gb.soft_max(gb.scale(scores, 0.125))
    mixed = gb.mul_mat(v, scores)
    return [gb.cont(mixed.transpose(1, 0, 2)) if "merged" in then else mixed]


def rotation(c: Chain, tokens: int, dtype: str, then: str) -> list[gb.Tensor]:
    x = c.tensor(tokens, 4, 64)
    at = c.tensor(tokens, dtype="int32", values=np.arange(tokens, dtype=np.int32) + 5)
    y = gb.rope(x, at, mode="neox_exact" if "neox" in then else "normal_exact")
    cache = c.tensor(tokens + 20, 4, 64, dtype=dtype)
    return [gb.cpy(y, cache[7 : 7 + tokens])]


def normalized(c: Chain, n: int, dtype: str, then: str) -> list[gb.Tensor]:
    x = c.tensor(n, 256)
    if "residual" in then:
        x = x + c.tensor(n, 256)
    y = (gb.norm(x) if "layer" in then else gb.rms_norm(x)) * c.tensor(256)
    if "bias" in then:
        y = y + c.tensor(256)
    return [gb.mul_mat(c.tensor(40, 256, dtype=dtype), y), x]


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
    usable = [n for n, ok in gb.cpu_levels().items() if ok]
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
                # Something reads each result: what the last node of a graph reads is stored, and so not fused away.
                graph = chain.ctx.graph(*results, *(gb.sum_rows(r) for r in results))
                for name, backend in backends:
                    try:
                        digest.add(name, label, *chain.results(graph, backend))
                    except gb.GgmlError as error:
                        digest.add(name, label, type(error).__name__)


# ---- worlds ----------------------------------------------------------------------------------------------------------


class World:
    """A random graph over three devices: weights lie on some, some nodes are pinned, one device lacks operators."""

    WIDTH = 32

    def __init__(self, label: str, policy: str) -> None:
        self.rng = generator(label)
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

    def prices(self) -> gb.Costs:
        copy = gb.CopyCost(2.0, 1000.0)
        rates = self.rng.integers(50, 3000, 3)
        ops = [
            (gb.OpCost("any", None, 1.0, float(r), 10.0 * float(r)), gb.OpCost("matmul", None, 1.5, float(r), 40.0))
            for r in rates
        ]
        return gb.Costs([gb.DeviceCosts(o, copy, copy, host=i == 2) for i, o in enumerate(ops)], split_us=3.0)

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
        self.nodes.append(gb.cpy(self.nodes[0][:4], self.state).named("kept"))
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
            return x + y if x.shape == y.shape else gb.concat(x, y, axis=0)
        if kind == 4:
            return gb.cont(x[: x.shape[0] // 2]) if x.shape[0] > 4 else gb.scale(x, 0.9)
        if kind == 5:
            return gb.mul(x, x, inplace=bool(self.rng.random() < 0.5)) if x in self.nodes else gb.sqr(x)
        return gb.gelu(x) if kind == 6 else gb.rms_norm(x) if kind == 7 else gb.soft_max(x)

    def place(self) -> None:
        for store, device in zip(self.stores, self.devices, strict=True):
            if store.tensors():
                store.allocate(device, usage="weights" if device is not self.devices[2] else "any")
        for w in [*self.weights, self.state]:
            w.set(values_of(In(w.shape, w.dtype.name, -0.3, 0.3), self.rng))
        for n in self.nodes:
            if self.rng.random() < 0.1:
                device = self.devices[int(self.rng.integers(0, 3))]
                if device.supports(n):
                    self.sched.set_backend(n, device)

    def set_inputs(self) -> None:
        for t in (t for t in self.inputs if t.is_placed):  # the others are not in the graph
            t.set(self.rng.standard_normal(t.shape, np.float32))

    def read(self) -> list[Array]:
        return [n.numpy(copy=True) for n in self.outputs] + [self.state.numpy(copy=True)]

    def close(self) -> None:
        self.sched.close()
        for ctx in (self.ctx, *self.stores):
            ctx.close()


def counters(stats: gb.SchedulerStats) -> list[Any]:
    """What does not depend on time."""
    return [
        (f.name, getattr(stats, f.name)) for f in fields(stats) if not f.name.endswith("seconds") and f.name != "splits"
    ]


def run_world(digest: Digest, label: str, policy: str) -> None:
    world = World(label, policy)
    world.place()
    try:
        plan = world.sched.prepare(world.graph)
    except gb.GgmlError as error:
        digest.add("plans", label, type(error).__name__)
        return
    digest.add("plans", label, plan.arenas, plan.splits, plan.copies, world.sched.prediction)
    digest.add("reasons in words", label, [plan.explain(n) for n in world.graph.nodes], plan.to_text(), plan.to_csv())
    for _ in range(3):
        world.set_inputs()
        world.sched.compute(world.graph)
        digest.add("results", label, *world.read())
    world.set_inputs()
    pending = world.sched.compute_async(world.graph)
    pending.wait()
    digest.add("results", label, *world.read())
    digest.add("counters", label, counters(world.sched.stats))
    world.close()


def worlds(digest: Digest, wanted: Wanted) -> None:
    # Without automatic collections: an object of another world that is collected in the middle of this one makes the
    # scheduler look for a plan once more, which its counters tell.
    gc.collect()
    gc.disable()
    try:
        for policy in ("weights", "sources", "cost"):
            digest.group = f"sched/{policy}"
            if wanted(digest.group):
                for seed in range(80):
                    run_world(digest, f"world {seed}", policy)
    finally:
        gc.enable()


# ---- memory ----------------------------------------------------------------------------------------------------------


def memory(digest: Digest, wanted: Wanted) -> None:
    digest.group = "memory"
    if not wanted(digest.group):
        return
    for label, lower, upper, size in lifetimes():
        for alignment in (1, 32):
            plan = gb.plan_memory(lower, upper, size, alignment)
            digest.add(
                "offsets", f"{label} {alignment}", plan.offsets, plan.peak, plan.lower_bound, plan.best_fit, plan.proved
            )
    cpu = gb.Backend("CPU", n_threads=1)
    for seed in range(40):
        label = f"order {seed}"
        world = World(label, "weights")
        digest.add("orders", label, [n.name for n in world.graph.reordered().nodes])
        for store in world.stores:
            if store.tensors():
                store.allocate(cpu)
        for w in [*world.weights, world.state]:
            w.set(values_of(In(w.shape, w.dtype.name, -0.3, 0.3), world.rng))
        with gb.GraphAllocator(cpu) as allocator:
            digest.add("graph allocator", label, allocator.measure(world.graph))
            allocator.allocate(world.graph)
            world.set_inputs()
            world.graph.compute(cpu)
            digest.add("graph allocator", label, *world.read())
        world.close()


def lifetimes() -> Iterator[tuple[str, Array, Array, Array]]:
    for seed in range(60):
        rng = generator(f"lifetimes {seed}")
        n = int(rng.integers(1, 200))
        lower = rng.integers(0, 100, n)
        yield f"random {seed}", lower, lower + rng.integers(1, 20, n), rng.integers(0, 1000, n)
    rng = generator("chain")
    lower = np.arange(120)
    yield "chain", lower, lower + rng.integers(1, 5, 120), rng.integers(1, 5, 120) * 64


# ---- files -----------------------------------------------------------------------------------------------------------


def files(digest: Digest, wanted: Wanted) -> None:
    digest.group = "gguf"
    if not wanted(digest.group):
        return
    rng = generator("gguf")
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
