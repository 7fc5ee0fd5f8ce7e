"""Shared by the attack harnesses: a small scene with one object of each kind, and a table of operations on it.

``Scene`` has schedulers, graphs, buffers, contexts, allocators and a file. ``OPERATIONS`` maps
names to functions of a scene, each of which leaves the scene usable. ``CLOSERS`` maps names to
functions that close a part of the scene. ``Scene.check`` computes with all remaining objects and
checks the results. After any attack it must succeed, from any thread.

All elements of ``x`` are 2 or 3, ``w`` is the identity, and ``a`` is 1 or 2. So each readable
result has few right values for any interleaving of threads, and `valid` finds wrong ones.

`supervise` runs a harness in its own process. If the process dies, it reports the cause and
restarts with another seed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ggml_backend as gb
import ggml_backend.profile._pictures.chrome
import ggml_backend.profile._pictures.traces
import ggml_backend.profile.profile
import ggml_backend.sched._costs
import ggml_backend.sched._fallbacks
import ggml_backend.sched.stats
import ggml_backend.sched.trace

N = 8
EYE = np.eye(N, dtype=np.float32)
SANITIZED = re.search("lib[at]san", os.environ.get("LD_PRELOAD", "")) is not None
VALUES = os.environ.get("GB_HARNESS_VALUES") != "0"
"""Whether results are checked. ``--no-values`` looks only for crashes, hangs and foreign
exceptions."""
PATIENCE = float(os.environ.get("GB_HARNESS_PATIENCE", "120" if SANITIZED else "40"))
"""Seconds after which an operation of milliseconds counts as a hang."""


class Wrong(Exception):
    """A result that is wrong for any order of the calls."""


def model_file() -> str:
    """A small model file, made once for all processes of a run."""
    path = os.environ.get("GB_HARNESS_MODEL")
    if path is None:
        directory = tempfile.mkdtemp(prefix="gb_harness_")
        path = os.environ["GB_HARNESS_MODEL"] = os.path.join(directory, "model.gguf")
        with gb.gguf.Writer(path) as writer:
            writer.add("general.architecture", "test")
            writer.add("numbers", [1, 2, 3])
            writer.add_tensor("w", EYE)
            writer.add_tensor("h", EYE.astype(np.float16))
    return path


def doubled(dst: np.ndarray[Any, Any], a: np.ndarray[Any, Any]) -> None:
    np.multiply(a, 2, out=dst)


def both(out: tuple[Any, Any], a: np.ndarray[Any, Any]) -> tuple[Any, None]:
    """Two results: one is returned, the other written."""
    out[1][...] = a.sum(1)
    return a / 2, None


def valid(what: str, array: np.ndarray[Any, Any], *values: float) -> None:
    """Raises Wrong unless all elements are among the values. Signal handlers call it, so it avoids
    slow or importing parts of NumPy."""
    if VALUES and not set(array.reshape(-1).tolist()) <= set(values):
        raise Wrong(f"{what}: {sorted(set(array.reshape(-1).tolist()))[:5]}, not of {values}")


class Hosted(gb.devices.Device):
    """A device written in Python, with host memory."""

    @gb.devices.op("add", "mul")
    def elements(self, node: gb.devices.Node, out: Any, a: Any, b: Any) -> None:
        (np.add if node.op == "add" else np.multiply)(a, b, out=out)


class Boxed(Hosted):
    """The same device with its own memory, and with a queue that runs during waits."""

    memory = "own"

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def allocate(self, nbytes: int) -> Any:
        return np.zeros(max(nbytes, 1), np.uint8)

    def submit(self, work: Callable[[], None]) -> None:
        self.jobs.append(work)

    def synchronize(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


gb.devices.register_device("WORLD_HOSTED", Hosted)
gb.devices.register_device("WORLD_BOXED", Boxed)


class Scene:
    """One object of each kind."""

    def __init__(self) -> None:
        self.path = model_file()
        self.cpu = gb.Backend("CPU", n_threads=2)
        self.sim = gb.Backend.simulated(mem="4M")
        self.weights = gb.Context()
        self.w, self.v = self.weights.tensor((N, N), name="w"), self.weights.tensor((N, N), name="v")
        self.buffer = self.weights.allocate(self.cpu, usage="weights")
        self.w.set(EYE)
        self.v.set(EYE)
        self.ctx = gb.Context()
        self.x = self.ctx.tensor((4, N), name="x")
        self.y = gb.ops.relu(self.x @ self.w.T) + 1.0
        self.graph = self.ctx.graph(self.y)
        self.z = gb.ops.scale(gb.ops.map_custom(doubled, self.x), 1.0)
        self.custom = self.ctx.graph(self.z)
        halved, self.sums = gb.ops.custom(both, self.x, shape=[(4, N), (4,)], dtype=["f32", "f64"])
        self.halved = gb.ops.scale(halved, 1.0)
        self.several = self.ctx.graph(self.halved, self.sums)
        self.own = gb.Context()
        self.a = self.own.tensor((4, N), name="a")
        self.b = gb.ops.relu(self.a) * 2.0
        self.own_graph = self.own.graph(self.b)
        self.own_buffer = self.own.allocate(self.cpu)
        self.a.set(1.0)
        self.own_graph.compute(self.cpu)
        self.loose = gb.Context(1 << 18, allocate=True)
        self.t = self.loose.tensor((4, N), name="t")
        self.t.set(3.0)
        self.sched = gb.Scheduler([self.sim, self.cpu])
        self.sched.set_backend(self.y, self.cpu)
        self.sched.allocate(self.graph)
        self.x.set(2.0)
        self.sched.compute(self.graph)
        self.hosted, self.boxed = gb.Backend("WORLD_HOSTED"), gb.Backend("WORLD_BOXED")
        self.python = gb.Context()
        self.p = self.python.tensor((4, N), name="p")
        self.q = gb.ops.relu(self.p + self.p) * self.p
        self.python_graph = self.python.graph(self.q)
        self.devices = gb.Scheduler([self.boxed, self.hosted, self.cpu])
        self.devices.set_backend(self.q, self.hosted)
        self.devices.allocate(self.python_graph)
        self.p.set(2.0)
        self.devices.compute(self.python_graph)
        self.event = gb.backend.Event(self.sim)
        self.galloc = gb.sched.GraphAllocator(self.cpu)
        self.talloc = gb.sched.TensorAllocator(self.cpu, 1 << 14)
        self.file = gb.gguf.open(self.path)
        self.pending: gb.sched.Pending | None = None
        with gb.Context() as gone:
            self.dead = gone.graph(gb.ops.relu(gone.tensor(1)))  # an unusable graph: its context is closed
        self.views: list[Any] = []

    def check(self) -> None:
        """Checks that everything works, with right results. Requires that nothing is closed."""
        self.sched.n_copies = 1
        self.sched.synchronize()
        self.sched.allocate(self.graph)
        self.x.set(3.0)
        self.w.set(EYE)
        must(self.sched.compute(self.graph), "Scheduler.compute")
        valid("y", self.y.numpy(copy=True), 4)
        must(self.sched.compute(self.graph, lambda t: t.numpy() is not None), "Scheduler.compute with a callback")
        must(self.sched.compute(self.custom), "Scheduler.compute of a custom operation")
        valid("z", self.z.numpy(copy=True), 6)
        must(self.sched.compute(self.several), "Scheduler.compute of an operation with several results")
        valid("halved", self.halved.numpy(copy=True), 1.5)
        valid("sums", self.sums.numpy(copy=True), 3.0 * N)
        valid("x", self.x.numpy(copy=True), 3)
        valid("y of compute_async", self.sched.compute_async(self.graph, [self.y]).results()[0], 4)
        self.a.set(2.0)
        must(self.own_graph.compute(self.cpu), "Graph.compute")
        valid("b", self.b.numpy(copy=True), 4)
        self.v.copy_from(self.w)
        self.t.copy_from(self.x)
        valid("t", self.t.numpy(copy=True), 3)
        valid("v", self.v.numpy(copy=True) - EYE, 0)
        self.cpu.synchronize()
        self.sim.synchronize()
        self.devices.synchronize()
        self.devices.allocate(self.python_graph)
        self.p.set(3.0)
        must(self.devices.compute(self.python_graph), "Scheduler.compute on devices written in Python")
        valid("q", self.q.numpy(copy=True), 18)
        self.event.record().synchronize()
        self.buffer.usage = "weights"
        self.sim.allocate(2 << 20).close()  # all memory of the device is free again
        valid("the file", self.file.tensors["w"].numpy() - EYE, 0)
        with gb.Context() as ctx, gb.Scheduler([self.sim, self.cpu]) as scheduler:
            t = ctx.tensor(5)
            graph = ctx.graph(t * 2.0)
            scheduler.allocate(graph)
            t.set(4.0)
            must(scheduler.compute(graph), "compute of something new")
            valid("something new", graph.outputs[0].numpy(copy=True), 8)

    def read_views(self) -> None:
        """Checks that earlier arrays are still valid memory after any close."""
        views, self.views = self.views, []
        for view in views:
            view.tobytes()

    def close(self) -> None:
        """All objects, in order of creation."""
        for closer in CLOSERS.values():
            closer(self)


def must(value: object, what: str) -> None:
    if value is not True:
        raise Wrong(f"{what}: {value!r}")


Act = Callable[[Scene], Any]
OPERATIONS: dict[str, Act] = {}
CLOSERS: dict[str, Act] = {}


def operation(name: str) -> Callable[[Act], Act]:
    def register(function: Act) -> Act:
        assert name not in OPERATIONS
        OPERATIONS[name] = function
        return function

    return register


def operations(**acts: Act) -> None:
    for name, act in acts.items():
        operation(name.replace("_", " "))(act)


# ------------------------------------------------------------------------------------------------------------ computing

operations(
    compute=lambda w: w.sched.compute(w.graph),
    compute_custom=lambda w: w.sched.compute(w.custom),
    compute_several=lambda w: w.sched.compute(w.several),
    compute_own=lambda w: w.own_graph.compute(w.cpu),
    compute_with_callback=lambda w: w.sched.compute(w.graph, lambda t: t.numpy() is not None),
    compute_wanted=lambda w: w.sched.compute(w.graph, lambda t: True, wanted=[w.y]),
    allocate=lambda w: w.sched.allocate(w.graph),
    allocate_custom=lambda w: w.sched.allocate(w.custom),
    reserve=lambda w: w.sched.reserve(w.graph),
    prepare=lambda w: w.sched.prepare(w.graph).memory,
    draft=lambda w: w.sched.prepare(w.custom, allocate=False).splits,
    synchronize=lambda w: w.sched.synchronize(),
    splits=lambda w: repr(w.sched.splits),
    stats=lambda w: repr(w.sched.stats),
    reset_stats=lambda w: w.sched.reset_stats(),
    explain=lambda w: w.sched.explain(w.y),
    set_backend=lambda w: w.sched.set_backend(w.y, w.cpu),
    get_backend=lambda w: w.sched.get_backend(w.y),
    memory=lambda w: (w.sched.memory(w.cpu), w.sched.buffer_nbytes(w.sim), w.sched.prediction),
    describe_scheduler=lambda w: (repr(w.sched), w.sched.n_splits, w.sched.backends, w.sched.n_copies),
)


operations(
    compute_on_python=lambda w: w.devices.compute(w.python_graph),
    allocate_on_python=lambda w: w.devices.allocate(w.python_graph),
    plan_on_python=lambda w: w.devices.prepare(w.python_graph).memory,
    explain_python=lambda w: w.devices.explain(w.q),
    set_p=lambda w: w.p.set(2.0),
    read_q=lambda w: valid("q", w.q.numpy(copy=True), 8, 18),
    read_p=lambda w: valid("p", w.p.numpy(copy=True), 2, 3),
    python_facts=lambda w: (
        repr(w.hosted),
        w.boxed.device.name,
        w.hosted.supports(w.q),
        w.boxed.alignment,
        w.cpu.device,
    ),
    python_refusal=lambda w: w.boxed.unsupported_reason(w.q.sources[0]),
)


@operation("compute async on python")
def _(w: Scene) -> None:
    w.devices.compute_async(w.python_graph)
    w.devices.synchronize()


@operation("reset python")
def _(w: Scene) -> None:
    w.devices.reset()
    w.devices.allocate(w.python_graph)
    w.p.set(2.0)


@operation("open python device")
def _(w: Scene) -> None:
    with gb.Context() as ctx, gb.Backend("WORLD_BOXED") as device, gb.Scheduler([device, w.cpu]) as scheduler:
        t = ctx.tensor((3, 4))
        y = gb.ops.relu(t + t)
        graph = ctx.graph(y)
        scheduler.allocate(graph)
        t.set(1.0)
        if scheduler.compute(graph):
            valid("open python device", y.numpy(copy=True), 2)


@operation("memory of a python device")
def _(w: Scene) -> None:
    with gb.Context() as ctx:
        t, u = ctx.tensor((3, 4)), ctx.tensor((3, 4))
        for device in (w.boxed, w.hosted):
            with device.allocate(512) as buffer:
                buffer.clear(0)
                buffer.place(t, 0)
                buffer.place(u, 256)
                t.set(4.0)
                u.copy_from(t)
                valid("memory of a python device", u.numpy(copy=True), 4)


@operation("reset")
def _(w: Scene) -> None:
    w.sched.reset()
    w.sched.allocate(w.graph)
    w.x.set(2.0)


@operation("compute async")
def _(w: Scene) -> None:
    w.pending = w.sched.compute_async(w.graph, [w.y])


@operation("results")
def _(w: Scene) -> None:
    valid("results", w.sched.compute_async(w.graph, [w.y]).results()[0], 3, 4)


@operation("compute a function async")
def _(w: Scene) -> None:
    w.pending = w.sched.compute_async(w.custom)


@operation("results of a function")
def _(w: Scene) -> None:
    valid("results of a function", w.sched.compute_async(w.custom, [w.z]).results()[0], 4, 6)


@operation("wait")
def _(w: Scene) -> None:
    pending = w.pending
    if pending is not None:
        for found in pending.results():
            valid("wait", found, 3, 4)


@operation("name the context of results")
def _(w: Scene) -> None:
    with w.own.as_default():
        gb.ops.relu(w.x)


@operation("n copies")
def _(w: Scene) -> None:
    w.sched.n_copies = 2
    w.sched.n_copies = 1


@operation("trace")
def _(w: Scene) -> None:
    try:
        with w.sched.trace() as trace:
            w.sched.compute(w.graph)
    except gb.errors.StateError as error:
        # by another thread, or by a call interrupted before its `with`
        if "recorded already" not in str(error):
            raise
    else:
        repr(trace.events), trace.running, trace.to_json(), trace.to_html(), trace.to_svg(), trace.to_png(scale=1)


@operation("profile")
def _(w: Scene) -> None:
    try:
        with w.sched.profile(max_records=100) as profile:
            w.sched.compute(w.graph)
    except gb.errors.StateError as error:
        # by another thread, or the scheduler was closed before the `with`
        if "recorded already" not in str(error) and "ended" not in str(error):
            raise
    else:
        str(profile.table(limits=False)), profile.running, profile.to_json(limits=False)


@operation("profile of the graph")
def _(w: Scene) -> None:
    try:
        with w.graph.profile(max_records=10) as profile:
            w.sched.compute(w.graph)
    except gb.errors.StateError as error:
        if "recorded already" not in str(error) and "ended" not in str(error):
            raise
    else:
        repr(profile), profile.dropped


@operation("eval callback")
def _(w: Scene) -> None:
    w.sched.set_eval_callback(lambda t: None)
    w.sched.compute(w.graph)
    w.sched.set_eval_callback(None)


@operation("abort callback")
def _(w: Scene) -> None:
    gb.sched.set_abort_callback(w.cpu, lambda: False)
    w.own_graph.compute(w.cpu)
    gb.sched.set_abort_callback(w.cpu, None)


@operation("compare")
def _(w: Scene) -> None:
    for node in w.own_graph.compare(w.cpu, w.sim):
        if node.max_abs:
            raise Wrong(f"compare: {node}")


@operation("function")
def _(w: Scene) -> None:
    ctx = gb.Context()
    x = ctx.tensor((4, N))
    function = ctx.graph(y := x * 2.0).function(w.cpu, x, y)
    result = np.empty((4, N), np.float32)
    if function(np.full((4, N), 2, np.float32), result):
        valid("function", result, 4)


@operation("copy graph")
def _(w: Scene) -> None:
    copy = w.own_graph.copy(w.cpu)
    copy.compute(w.cpu)
    valid("copy graph", copy.outputs[0].numpy(copy=True), 2, 4)


@operation("export graph")
def _(w: Scene) -> None:
    path = f"{w.path}.graph.{os.getpid()}.{threading.get_ident()}"
    try:
        w.own_graph.export(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


# -------------------------------------------------------------------------------------------------------------- tensors

operations(
    set_x=lambda w: w.x.set(2.0),
    set_x_array=lambda w: w.x.set(np.full((4, N), 3, np.float32)),
    set_part=lambda w: w.a.set(np.full(3, 2, np.float32), 5),
    set_w=lambda w: w.w.set(EYE),
    set_a=lambda w: w.a.set(1.0),
    read_x=lambda w: valid("x", w.x.numpy(copy=True), 2, 3),
    read_y=lambda w: valid("y", w.y.numpy(copy=True), 3, 4),
    read_z=lambda w: valid("z", w.z.numpy(copy=True), 4, 6),
    read_b=lambda w: valid("b", w.b.numpy(copy=True), 2, 4),
    read_w=lambda w: valid("w", w.w.numpy(copy=True) - EYE, 0),
    read_t=lambda w: valid("t", w.t.numpy(copy=True), 2, 3),
    fetch_y=lambda w: valid("y", np.asarray(w.y, np.float64), 3, 4),
    item_y=lambda w: w.y[0, 0].item(),
    view_y=lambda w: w.views.append(w.y.numpy()),
    view_w=lambda w: w.views.append(w.w.numpy()[1:]),
    view_t=lambda w: w.views.append(w.t.numpy()),
    dlpack=lambda w: w.views.append(np.from_dlpack(w.w)),
    dlpack_result=lambda w: w.views.append(np.from_dlpack(w.y)),
    dlpack_copy=lambda w: w.y.__dlpack__(copy=True, max_version=(1, 0)),
    read_views=lambda w: w.read_views(),
    copy_to_t=lambda w: w.t.copy_from(w.x),
    copy_to_v=lambda w: w.v.copy_from(w.w),
    copy_to_x=lambda w: w.x.copy_from(w.t),
    tensor_facts=lambda w: (
        w.x.shape,
        w.x.strides,
        w.x.ne,
        w.x.nb,
        w.x.dtype,
        w.x.size,
        w.x.nbytes,
        w.x.name,
        w.x.op,
        w.x.is_contiguous,
    ),
    tensor_flags=lambda w: (w.x.is_input, w.y.is_output, w.x.ndim, w.x.context, w.x.describe(), len(w.x)),
    tensor_places=lambda w: (
        w.x.is_placed,
        w.w.buffer,
        w.y.location,
        repr(w.y),
        w.w.is_host,
        w.y.sources,
        w.y.view_of,
        hash(w.y),
        w.y == w.x,
    ),
)


@operation("name")
def _(w: Scene) -> None:
    w.x.name = "x"
    w.x.named("x").set_input()
    w.y.set_output()


# -------------------------------------------------------------------------------------------------- contexts and graphs

operations(
    build=lambda w: gb.ops.soft_max(gb.ops.relu(w.y + w.x)),
    build_view=lambda w: w.y[1:, 2:].T.reshape(-1),
    build_orders=lambda w: (
        w.x.swapaxes(0, 1).contiguous(),
        w.x.transpose(1, 0),
        w.x[None].permute(2, 0, 1),
        w.x.astype(gb.float16),
    ),
    build_product=lambda w: w.x @ w.v.T,
    build_custom=lambda w: gb.ops.map_custom(doubled, w.x),
    build_several=lambda w: gb.ops.custom(both, w.x, w.y, shape=[(4, N), None], dtype=["f64", None]),
    tensor=lambda w: w.ctx.tensor((2, 3), gb.float16, name="new"),
    constant=lambda w: w.own.constant([1.0, 2.0]),
    tensors=lambda w: (len(w.ctx.tensors()), w.ctx.get("x"), w.ctx["x"], w.ctx.used_nbytes, repr(w.ctx)),
    graph_of=lambda w: w.ctx.graph(w.y),
    graph_facts=lambda w: (w.graph.n_nodes, w.graph.context),
    reordered=lambda w: w.own_graph.reordered(),
    nodes=lambda w: (
        w.graph.nodes,
        w.graph.leafs,
        len(w.graph),
        w.graph.outputs,
        w.graph.get("x"),
        w.graph["x"],
        repr(w.graph),
    ),
    pictures=lambda w: (w.graph.to_dot(), w.graph._repr_html_()),
    context_view=lambda w: w.ctx.view(w.w),
)


@operation("open context")
def _(w: Scene) -> None:
    with gb.Context() as ctx:
        t = ctx.tensor((3, 4))
        gb.ops.relu(t)


@operation("open and allocate")
def _(w: Scene) -> None:
    with gb.Context() as ctx:
        t = ctx.tensor((3, 4))
        buffer = ctx.allocate(w.cpu)
        t.set(1.0)
        valid("open and allocate", t.numpy(copy=True), 1)
        buffer.close()


@operation("open scheduler")
def _(w: Scene) -> None:
    with gb.Context() as ctx, gb.Scheduler([w.sim, w.cpu]) as scheduler:
        x = ctx.tensor((3, 4))
        y = x * 2.0
        graph = ctx.graph(y)
        scheduler.allocate(graph)
        x.set(1.0)
        if scheduler.compute(graph):
            valid("open scheduler", y.numpy(copy=True), 2)


@operation("drop scheduler")
def _(w: Scene) -> None:
    ctx = gb.Context()
    x = ctx.tensor((3, 4))
    graph = ctx.graph(x + 1.0)
    scheduler = gb.Scheduler([w.cpu])
    scheduler.allocate(graph)
    x.set(1.0)
    scheduler.compute_async(graph)


@operation("buffer from array")
def _(w: Scene) -> None:
    with (
        gb.Context() as ctx,
        gb.Buffer.from_array(EYE.copy()) as buffer,
        gb.backend.cpu_buffer_type().from_array(EYE.copy()),
    ):
        valid("buffer from array", buffer.place(ctx.tensor((N, N))).numpy(copy=True) - EYE, 0)


@operation("a constant in a buffer that is cleared")
def _(w: Scene) -> None:
    with gb.Context() as ctx, w.cpu.allocate(4096) as buffer:
        c = ctx.constant(EYE)
        other = ctx.tensor((N, N))
        buffer.place(other, 2048)
        buffer.place(c)
        buffer.clear(1)
        valid("constant", c.numpy(copy=True) - EYE, 0)
        must(bool((other.numpy(copy=True).view(np.uint8) == 1).all()), "cleared")


@operation("from numpy")
def _(w: Scene) -> None:
    with gb.Context() as ctx:
        t = ctx.from_numpy(np.ones((3, 4), np.float32))
        gb.ops.relu(t)
        valid("from numpy", t.numpy(copy=True), 1)


@operation("from dlpack")
def _(w: Scene) -> None:
    with gb.Context() as ctx:
        array = np.ones((6, 8), np.float32)
        t = ctx.from_dlpack(array[::2, 1::2])
        gb.ops.relu(t)
        valid("from dlpack", t.numpy(copy=True), 1)
        again = gb.from_dlpack(ctx.from_dlpack(array))
    valid("from dlpack", again.numpy(copy=True), 1)


@operation("from dlpack, of a result")
def _(w: Scene) -> None:
    with gb.Context() as ctx:
        w.views.append(ctx.from_dlpack(w.w, copy=None).numpy())


# ----------------------------------------------------------------------------------------- buffers, devices, allocators

operations(
    buffer_facts=lambda w: (
        w.buffer.name,
        w.buffer.nbytes,
        w.buffer.type,
        w.buffer.alignment,
        w.buffer.is_host,
        w.buffer.usage,
        w.buffer.readonly,
        repr(w.buffer),
    ),
    buffer_type=lambda w: (
        w.buffer.type.name,
        repr(w.cpu.buffer_type),
        w.cpu.buffer_type.supports(w.cpu),
        w.cpu.buffer_type.nbytes_for(w.x),
    ),
    place=lambda w: w.own_buffer.place(w.own.tensor(0)),
    backend_facts=lambda w: (
        repr(w.cpu),
        w.cpu.level,
        w.cpu.n_threads,
        w.sim.alignment,
        w.sim.max_nbytes,
        w.sim.name,
        w.cpu.is_cpu,
    ),
    supports=lambda w: (w.sim.supports(w.y), w.sim.unsupported_reason(w.z)),
    backend_synchronize=lambda w: (w.cpu.synchronize(), w.sim.synchronize()),
    stop=lambda w: w.cpu.stop(),
    record=lambda w: w.event.record(),
    event_wait=lambda w: w.event.wait(w.cpu),
    event_synchronize=lambda w: w.event.synchronize(),
    event_facts=lambda w: (w.event.backend, repr(w.event)),
    closed=lambda w: [t.closed for t in (w.ctx, w.sched, w.cpu, w.buffer, w.event, w.talloc, w.galloc, w.file)],
    measure=lambda w: w.galloc.measure(w.custom),
    allocator_facts=lambda w: (
        repr(w.galloc),
        w.galloc.nbytes,
        w.galloc.buffer,
        repr(w.talloc),
        w.talloc.is_measure,
        w.talloc.max_nbytes,
        w.talloc.buffer,
    ),
    registry=lambda w: (
        gb.backends(),
        gb.backend.cpu_levels(),
        gb.backend.load_report(),
        gb.backend.cpu_buffer_type().name,
    ),
)


@operation("threads")
def _(w: Scene) -> None:
    w.cpu.n_threads = 1
    w.cpu.n_threads = 2


@operation("usage")
def _(w: Scene) -> None:
    w.buffer.usage = "any"
    w.buffer.usage = "weights"


@operation("open buffer")
def _(w: Scene) -> None:
    with w.sim.allocate(1 << 16) as buffer:
        buffer.clear(1)
        buffer.changed()
    w.cpu.allocate(4096).close()


@operation("open backend")
def _(w: Scene) -> None:
    with gb.Backend("SIM", mem="1M") as sim, gb.Backend("CPU", n_threads=1) as cpu:
        gb.backend.Event(sim).record().wait(cpu)


@operation("tensor allocator")
def _(w: Scene) -> None:
    with gb.Context() as ctx:
        t = ctx.tensor(16)
        w.talloc.allocate(t)
        t.set(1.0)
        w.talloc.reset()


@operation("graph allocator")
def _(w: Scene) -> None:
    with gb.Context() as ctx:
        x = ctx.tensor((2, 3))
        y = gb.ops.relu(x) + 1.0
        graph = ctx.graph(y)
        w.galloc.set_order(None)
        w.galloc.allocate(graph)
        x.set(1.0)
        if graph.compute(w.cpu):
            valid("graph allocator", y.numpy(copy=True), 2)


# ---------------------------------------------------------------------------------------------------------------- files

operations(
    metadata=lambda w: (
        w.file.metadata["general.architecture"],
        dict(w.file.metadata),
        list(w.file.tensors),
        repr(w.file),
        w.file.nbytes,
        w.file.n_parts,
    ),
    file_tensor=lambda w: valid("file", w.file.tensors["w"].numpy() - EYE, 0),
    file_tensors=lambda w: [
        (t.name, t.shape, t.dtype, t.offset, t.nbytes, t.dequantize()) for t in w.file.tensors.values()
    ],
    file_view=lambda w: w.views.append(w.file.tensors["h"].data),
    quantize=lambda w: gb.dequantize(gb.quantize(np.ones((4, 64), np.float32), "q8_0"), "q8_0"),
    plan=lambda w: gb.planning.plan_memory([0, 1], [2, 3], [64, 64]),
)


@operation("open file")
def _(w: Scene) -> None:
    with gb.gguf.open(w.path) as file:
        w.views.append(file.tensors["w"].data)


@operation("load")
def _(w: Scene) -> None:
    with w.file.load(w.cpu) as weights:
        valid("load", weights["w"].numpy(copy=True) - EYE, 0)
        repr((weights, weights.buffers, weights.context, weights.in_place, weights.left_out))


@operation("load on the device")
def _(w: Scene) -> None:
    with w.file.load(w.sim) as weights:
        valid("load on the device", weights["w"].numpy(copy=True) - EYE, 0)


@operation("quantize into")
def _(w: Scene) -> None:
    with gb.Context() as ctx:
        t = ctx.tensor((4, 64), gb.dtypes.q8_0)
        ctx.allocate(w.cpu)
        t.set(np.ones((4, 64), np.float32), quantize=True)


@operation("write file")
def _(w: Scene) -> None:
    path = f"{w.path}.{os.getpid()}.{threading.get_ident()}"
    try:
        with gb.gguf.Writer(path) as writer:
            writer.add_tensor("w", EYE)
        gb.gguf.Writer(path).copy_from(w.file).discard()
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _drop_context(w: Scene) -> None:
    """Only pending work keeps the context alive."""
    w.ctx.close()
    w.graph = w.custom = w.several = w.dead
    w.pending = None


def _drop_own(w: Scene) -> None:
    w.own.close()
    w.own_graph = w.dead


CLOSERS.update({
    "close scheduler": lambda w: w.sched.close(), "close context": lambda w: w.ctx.close(),
    "drop context": _drop_context, "drop own": _drop_own, "close weights": lambda w: w.weights.close(),
    "close buffer": lambda w: w.buffer.close(), "close own buffer": lambda w: w.own_buffer.close(),
    "close own": lambda w: w.own.close(),
    "close loose": lambda w: w.loose.close(), "close cpu": lambda w: w.cpu.close(),
    "close sim": lambda w: w.sim.close(),
    "close event": lambda w: w.event.close(), "close graph allocator": lambda w: w.galloc.close(),
    "close allocator": lambda w: w.talloc.close(),
    "close file": lambda w: w.file.close(),
    "close devices": lambda w: w.devices.close(), "close hosted": lambda w: w.hosted.close(),
    "close boxed": lambda w: w.boxed.close(), "close python": lambda w: w.python.close(),
})  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- checks


def in_thread(act: Callable[[], Any]) -> None:
    """Runs a function on another thread, and raises its exception here."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


@contextlib.contextmanager
def watched(seconds: float = PATIENCE) -> Iterator[None]:
    """Ends the process with the stacks of all threads if the block takes longer."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def watched_by_alarm(seconds: float = PATIENCE) -> Iterator[None]:
    """The same without a thread, for a block that replaces Python's allocator. A starting thread
    could free memory with the removed allocator."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)  # the chained handler ends the process
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)


class Resources:
    """Resources of a process: descriptors, threads, memory."""

    def __init__(self) -> None:
        gc.collect()
        self.descriptors = [self._target(fd) for fd in os.listdir("/proc/self/fd")]
        self.threads = len(os.listdir("/proc/self/task"))
        with open("/proc/self/statm", encoding="ascii") as file:
            self.memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @staticmethod
    def _target(fd: str) -> str:
        try:
            return os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return "?"

    def leaked(self, before: Resources, megabytes: float) -> list[str]:
        """A text about growth beyond the tolerances of memory, descriptors and threads."""
        found = []
        if len(self.descriptors) > len(before.descriptors) + 3:
            new = Counter(self.descriptors) - Counter(before.descriptors)
            found.append(
                f"{len(self.descriptors) - len(before.descriptors)} descriptors: {', '.join(sorted(new))[:300]}"
            )
        if self.threads > before.threads + 3:
            found.append(f"{self.threads - before.threads} threads")
        if not SANITIZED and self.memory > before.memory + megabytes * 1e6:
            found.append(f"{(self.memory - before.memory) / 1e6:.0f} MB")
        return found


# ---------------------------------------------------------------------------------------------------------- supervision

_DONE = "harness: "


def report(counts: Counter[str]) -> None:
    """Prints the counts of a child for its parent. The last line counts."""
    print(_DONE + ";".join(f"{k}={v}" for k, v in sorted(counts.items())), flush=True)


def supervise(
    file: str, work: Callable[[float, int, argparse.Namespace], Counter[str]], *flags: tuple[str, dict[str, Any]]
) -> int:
    """The command line of a harness. ``work(seconds, seed, options)`` runs in its own process and
    returns counts, or raises an error, or dies. After a death another process continues with the
    next seed, up to ``--deaths`` times. The exit status is 0 if no process died."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deaths", type=int, default=1, help="how many failures until it gives up")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--no-values",
        action="store_true",
        help="accept all results: look for crashes, hangs and foreign exceptions only",
    )
    for flag, how in flags:
        parser.add_argument(flag, **how)
    options = parser.parse_args()
    if options.work:
        faulthandler.enable()
        sys.unraisablehook = _unraisable
        counts = work(options.seconds, options.seed, options)
        report(counts)
        sys.stdout.flush()
        return 0
    if options.no_values:
        os.environ["GB_HARNESS_VALUES"] = "0"
    mine = "GB_HARNESS_MODEL" not in os.environ  # a parent may have made one, and still uses it
    model_file()
    end, totals, kinds, deaths, seed = (
        time.monotonic() + options.seconds,
        Counter[str](),
        Counter[str](),
        0,
        options.seed,
    )
    extra = [a for flag, how in flags for a in _given(options, flag)]
    while True:
        left = max(1.0, end - time.monotonic())
        command = [sys.executable, file, "--work", "--seconds", str(left), "--seed", str(seed), *extra]
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            # freed and unwritten memory holds no valid result or pointer; large freed blocks are
            # unmapped
            environment = {**os.environ, "MALLOC_PERTURB_": "165", "MALLOC_MMAP_THRESHOLD_": "16384"}
            child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
            try:
                status: int | None = child.wait(None if getattr(options, "complete", False) else left + 4 * PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                status = None
            output.seek(0)
            printed = output.read()
        lines = [line for line in printed.splitlines() if line.startswith(_DONE)]
        if lines:
            for item in lines[-1].removeprefix(_DONE).split(";"):
                key, _, value = item.partition("=")
                if key:
                    totals[key] += int(value)
        if status != 0:
            deaths += 1
            kind = _kind(status, printed)
            kinds[kind] += 1
            if kinds[kind] == 1 and len(kinds) <= 4:
                print(f"---- seed {seed}: {kind}")
                print("\n".join(line for line in printed.splitlines()[-60:] if not line.startswith(_DONE)), flush=True)
        if deaths >= options.deaths or time.monotonic() >= end - 0.5:
            break
        seed += 1
    print("; ".join(f"{v} {k}" for k, v in sorted(totals.items())))
    for kind, n in kinds.most_common():
        print(f"{n} x {kind}")
    print(f"{deaths} failures")
    if mine:
        shutil.rmtree(Path(model_file()).parent, ignore_errors=True)
    return int(deaths > 0)


def _given(options: argparse.Namespace, flag: str) -> list[str]:
    value = getattr(options, flag.removeprefix("--").replace("-", "_"))
    return [] if value in (None, False) else [flag] if value is True else [flag, str(value)]


def _kind(status: int | None, printed: str) -> str:
    """One line for how a child died."""
    where = re.findall(r"^at: (.*)$", printed, re.M)
    place = f" at {re.sub(r' at place [0-9]+|, allocation [0-9]+', '', where[-1])}" if where else ""
    if status is None:
        return f"killed, since it did not end{place}"
    if "Timeout (" in printed:
        return f"hang{place}"
    sanitizer = re.search(r"(AddressSanitizer: [\w-]+|runtime error: .*|SUMMARY: ThreadSanitizer: .*)", printed)
    if sanitizer:
        return f"{sanitizer[1]}{place}"
    frame = re.search(r"^Current thread .*?\n  File \"(?:[^\"]*/)?([^\"/]+)\", line (\d+) in (\S+)", printed, re.M)
    if status < 0:
        return f"signal {-status}" + (f" in {frame[3]} of {frame[1]}:{frame[2]}" if frame else place)
    last = [line for line in printed.splitlines() if line.strip() and not line.startswith((_DONE, "at: "))]
    return (re.sub(r"\[.*\]", "[...]", last[-1]) if last else f"exit status {status}") + place


def out_of_memory(error: BaseException) -> bool:
    """True for an exception that Python, NumPy or cffi raises after a failed allocation."""
    text = str(error)
    return (
        isinstance(error, (MemoryError, SystemError))
        or (isinstance(error, RuntimeError) and "can't" in text)
        or (isinstance(error, ValueError) and text.startswith("Iterator operand was NULL"))  # numpy.ufunc.at
    )


def lost_by_python(error: SystemError) -> bool:
    """True for an error of Python 3.11.2 itself: two signals at once in ``os.path.realpath`` (fixed
    in 3.11.7)."""
    once = sys.version_info < (3, 11, 7) and isinstance(error.__cause__, KeyboardInterrupt)
    return once and "fire" in str(error) and "returned a result with an exception set" in str(error)


_ignored = Counter[str]()


def _unraisable(hook: Any) -> None:
    """Handles an exception in a finalizer. Interrupts and failed allocations are allowed there,
    others are failures."""
    if isinstance(hook.exc_value, (KeyboardInterrupt, MemoryError)):
        _ignored[type(hook.exc_value).__name__] += 1
        return
    sys.__unraisablehook__(hook)
    print("at: a finalizer", flush=True)
    os._exit(70)


def shuffled(names: list[str], chooser: random.Random) -> list[str]:
    names = list(names)
    chooser.shuffle(names)
    return names
