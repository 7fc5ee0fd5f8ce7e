"""ARRAY as a device: options, memory, weights, fused operators, its queue, and the nodes that it
refuses.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from array_devices import NO_TORCH, TEXTS, check_wrong_index
from conftest import unfused
from ggml_backend._ffi import lib
from ggml_backend.devices._array import device as arrays
from ggml_backend.devices._nodes import operators
from source_tree import in_tree

# ------------------------------------------------------------------------------------------------------------- opening


def test_array_is_listed_without_importing_libraries(script):
    script("""
import sys
import ggml_backend as gb
assert "ARRAY" in gb.backends() and "ARRAY" not in gb.backends().missing
assert "torch" not in sys.modules and "array_api_compat" not in sys.modules
assert gb.Backend("ARRAY").name == "ARRAY(numpy:cpu)"
assert "torch" not in sys.modules
""")


def test_the_table_of_options_is_that_of_the_class():
    text = in_tree("docs/howto/array-device.md").read_text()
    rows = text[text.index("| option | default |") :]
    table = dict(re.findall(r"^\| `([a-z]\w*)` \| ([^|]+) \|", rows, re.MULTILINE))
    parameters = inspect.signature(gb.devices.ArrayDevice).parameters
    assert list(table) == list(parameters)
    for name, default in table.items():
        given = parameters[name].default
        said = re.match(r"`([^`]*)`", default)
        assert given is None if name in ("device", "memory") else ast.literal_eval(said[1]) == given, name


def test_the_page_lists_the_operators_that_array_lacks():
    page = in_tree("docs/howto/array-device.md").read_text()
    listed = page[page.index("but not:") : page.index("These operators have limits")]
    computed = set(gb.devices.ArrayDevice._table)
    views = {"reshape", "view", "permute", "transpose"}  # are not computed
    functions = {"custom", *(name for name in operators() if name.startswith("map_"))}
    assert {name.lower() for name in re.findall("`([A-Z0-9_]+)`", listed)} == operators() - computed - views - functions


def test_array_is_missing_without_its_package(script):
    script("""
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "array_api_compat" else found(name, *rest)
import ggml_backend as gb
assert "array-api-compat" in gb.backends().missing["ARRAY"], gb.backends().missing
try:
    gb.Backend("ARRAY")
except gb.GgmlError as error:
    assert "pip install ggml_backend[arrays]" in str(error), error
else:
    raise AssertionError("it was opened")
""")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ARRAY:library=jax", "'numpy', 'torch' or 'cupy', not 'jax'"),
        ("ARRAY:weights=tiny", "'packed' or 'widened', not 'tiny'"),
        ("ARRAY:memory=yours", "'host' or 'own', not 'yours'"),
        ("ARRAY:device=cuda", "NumPy computes on the device 'cpu', not 'cuda'"),
        ("ARRAY:compile", "options of library='torch'"),
        ("ARRAY:libary=torch", "there is no option 'libary'"),
    ],
)
def test_wrong_options_of_array(text, words):
    with pytest.raises(gb.errors.InvalidArgumentError) as caught:
        gb.Backend(text)
    assert words in str(caught.value)


@NO_TORCH
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "sofa"}, "device"),
        ({"device": "meta", "memory": "host"}, "memory='host' needs device='cpu', not 'meta'"),
        ({"device": "meta"}, "device meta: "),
        ({"graphs": True}, "needs a CUDA device, not 'cpu'"),
        ({"device": "cuda:0"}, "cuda:0"),
    ],
)
def test_missing_pytorch_devices_are_refused(options, words):
    import torch

    if options.get("device") == "cuda:0" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(gb.GgmlError) as caught:
        gb.Backend("ARRAY", library="torch", **options)
    assert words in str(caught.value)


def test_missing_cupy_is_an_error():
    from importlib.util import find_spec

    if find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    with pytest.raises(gb.errors.UnsupportedError, match=r"pip install ggml_backend\[cupy\]"):
        gb.Backend("ARRAY", library="cupy")


# -------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("text", TEXTS)
def test_host_memory_is_shared_with_the_cpu_and_other_memory_is_copied(text, rng):
    device, cpu = gb.Backend(text), gb.Backend("CPU", n_threads=1)
    with gb.Context() as ctx:
        x = ctx.tensor((4, 8, 1), name="x")
        y = gb.ops.win_part(gb.ops.relu(x), 4)  # the CPU computes win_part
        graph = ctx.graph(y)
        sched = gb.Scheduler([device, cpu])
        sched.allocate(graph)
        x.set(rng.standard_normal((4, 8, 1)).astype(np.float32))
        sched.compute(graph)
        want = np.maximum(x.numpy(copy=True), 0).reshape(4, 2, 4, 1).swapaxes(0, 1)
        np.testing.assert_array_equal(y.numpy(), want)
        copied = sum(len(s.inputs) for s in sched.splits)
        assert (copied > 0) == ("own" in text)


@pytest.mark.parametrize("text", TEXTS)
def test_read_only_weights_are_only_read(text, rng):
    values = np.ascontiguousarray(rng.standard_normal((6, 8)), np.float32)
    values.flags.writeable = False
    device = gb.Backend(text)
    buffer = gb.Buffer.from_array(values.view(np.uint8).reshape(-1), usage="weights")
    with gb.Context() as ctx:
        w, x = ctx.tensor((6, 8), name="w"), ctx.tensor((2, 8), name="x")
        buffer.place(w, 0)
        y = gb.ops.mul_mat(w, x)
        graph = ctx.graph(y)
        sched = gb.Scheduler([device, gb.Backend("CPU", n_threads=1)])
        sched.allocate(graph)
        x.set(np.ones((2, 8), np.float32))
        sched.compute(graph)
        np.testing.assert_allclose(y.numpy()[0], values.sum(1), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", ["q4_0", "q6_k", "float16", "bfloat16"])
def test_widened_weights_follow_changes(text, dtype, rng):
    """Weights are widened once for all plans, and again after each change."""
    separator = "," if ":" in text else ":"
    device, element = gb.Backend(f"{text}{separator}weights=widened"), gb.dtypes.as_dtype(dtype)
    reads = []
    from ggml_backend.devices._array.family import Widened

    plain = Widened.refresh

    def counted(self: Any) -> None:
        before = self._seen
        plain(self)
        reads.append(self._seen != before)

    with gb.Context() as ctx, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Widened, "refresh", counted)
        w = ctx.tensor((5, 256), element, name="w")
        memory = ctx.allocate(device, usage="weights")
        results = []
        x = [ctx.tensor((n, 256), name=f"x{n}") for n in (1, 3)]
        graphs = [ctx.graph(gb.ops.mul_mat(w, v)) for v in x]
        inputs = ctx.allocate(device)
        sched = [gb.Scheduler([device]) for _ in graphs]
        for change in range(2):
            floats = (rng.standard_normal((5, 256)) + change).astype(np.float32)
            w.set(floats.astype(np.float16) if dtype == "float16" else floats, quantize=dtype != "float16")
            held = gb.dequantize(gb.quantize(floats, element), element).astype(np.float64)
            for v, graph, s in zip(x, graphs, sched, strict=True):
                values = rng.standard_normal(v.shape).astype(np.float32)
                v.set(values)
                for _ in range(3):
                    s.compute(graph)
                got = graph.nodes[-1].numpy(copy=True)
                np.testing.assert_allclose(got, values @ held.T, rtol=0, atol=3e-4)
                results.append(got)
        assert sum(reads) == 2 and len(reads) == 12  # one for each content
        del memory, inputs


# ------------------------------------------------------------------------------------------------------ fused operators


def bert_layer(ctx: gb.Context) -> tuple[Any, Any]:
    batch, tokens, heads, size = 2, 7, 3, 8
    width = heads * size
    given = {n: ctx.tensor(s, name=n) for n, s in {
        "x": (batch * tokens, width), "mask": (batch, 1, 1, tokens), **{f"w{i}": (width, width) for i in range(4)},
        **{f"b{i}": (width,) for i in range(4)}, "gain": (width,), "shift": (width,),
    }.items()}  # fmt: skip

    def linear(i: int, x: Any) -> Any:
        return x @ given[f"w{i}"].T + given[f"b{i}"]

    q, k, v = (linear(i, given["x"]).reshape(batch, tokens, heads, size).transpose(0, 2, 1, 3) for i in range(3))
    scores = (q @ k.transpose(0, 1, 3, 2)) * (1 / size**0.5) + given["mask"]
    mixed = gb.ops.cont((gb.ops.soft_max(scores) @ v).transpose(0, 2, 1, 3)).reshape(batch * tokens, width)
    y = gb.ops.norm(given["x"] + linear(3, mixed)) * given["gain"] + given["shift"]
    return given, y


@pytest.mark.parametrize("text", TEXTS)
def test_fused_groups_equal_their_operators(text):
    """A layer of BERT, with a mask row of -inf."""
    found = {}
    for on in (False, True):
        with unfused() if not on else contextlib.nullcontext(), gb.Context() as ctx:
            given, y = bert_layer(ctx)
            graph = ctx.graph(y)
            sched = gb.Scheduler([gb.Backend(text)])
            sched.allocate(graph)
            values = np.random.default_rng(3)
            for name, t in given.items():
                t.set(values.standard_normal(t.shape).astype(np.float32))
                if name == "mask":
                    mask = np.zeros(t.shape, np.float32)
                    mask[0, ..., 4:] = mask[1] = -np.inf
                    t.set(mask)
            for _ in range(2):
                sched.compute(graph)
            found[on] = y.numpy(copy=True)
    np.testing.assert_allclose(found[True], found[False], rtol=0, atol=2e-5)
    assert np.isfinite(found[True]).all()


@NO_TORCH
def test_results_with_other_readers_are_stored():
    """Makes each node of a group a result of the graph in turn. A result is stored, so it is not
    fused away."""
    import ggml_backend.devices._array.library_torch as torch_library

    grouped = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("linear", "layer_norm", "attend"):
            function = getattr(torch_library.Torch, name)
            patch.setattr(
                torch_library.Torch, name,
                lambda self, *a, name=name, function=function: (grouped.append(name), function(self, *a))[1],
            )  # fmt: skip
        with gb.Context() as ctx:
            given, y = bert_layer(ctx)
            names = [t.op for t in ctx.graph(y).nodes]
        assert names
        for i in range(-1, len(names)):
            with gb.Context() as ctx:
                given, y = bert_layer(ctx)
                inner = ctx.graph(y).nodes
                watched = [inner[i]] if i >= 0 else []
                graph = ctx.graph(*watched, y)
                results = {}
                for text in ("CPU", "ARRAY:library=torch"):
                    sched = gb.Scheduler([gb.Backend(text)])
                    grouped.clear()
                    sched.allocate(graph)
                    values = np.random.default_rng(3)
                    for t in given.values():
                        t.set(values.standard_normal(t.shape).astype(np.float32))
                    sched.compute(graph)
                    results[text] = [t.numpy(copy=True) for t in (*watched, y)]
                if i < 0:
                    assert sorted(grouped) == ["attend", "layer_norm", *["linear"] * 4]
                for a, b in zip(*results.values(), strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


# --------------------------------------------------------------------------------------------------------------- queue


class Streams:
    """A fake ``torch.cuda`` of a device that computes at once, with a record of its calls."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @property
    def Stream(self) -> Any:
        streams = self

        class Stream:
            def __init__(self, device: Any) -> None:
                pass

            def synchronize(self) -> None:
                streams.said.append("synchronize")

            def wait_event(self, event: Any) -> None:
                streams.said.append("wait")

        return Stream

    @property
    def Event(self) -> Any:
        streams = self

        class Event:
            def record(self, stream: Any) -> None:
                streams.said.append("record")

            def synchronize(self) -> None:
                streams.said.append("wait here")

        return Event

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Any:
        self.said.append("enter")
        yield


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Gives ARRAY:library=torch,memory=own a queue. The tests see the calls, not their overlap."""
    import ggml_backend.devices._array.library_torch as torch_library

    streams, plain = Streams(), torch_library.Torch.__init__

    def queued(self: Any, device: Any, memory: Any, compile: bool, graphs: bool) -> None:
        plain(self, device, memory, compile, graphs)
        self.start_queue(streams)

    monkeypatch.setattr(torch_library.Torch, "__init__", queued)
    return streams


@NO_TORCH
def test_a_queue_on_streams(streams, rng):
    device = gb.Backend("ARRAY:library=torch,memory=own")
    with gb.Context() as ctx:
        x = ctx.tensor((4, 8), name="x")
        y = gb.ops.argsort(gb.ops.relu(x))
        graph = ctx.graph(y)
        sched = gb.Scheduler([device, gb.Backend("CPU", n_threads=1)])
        sched.allocate(graph)
        x.set(rng.standard_normal((4, 8)).astype(np.float32))
        streams.said.clear()
        sched.compute(graph)
        np.testing.assert_array_equal(y.numpy(), np.argsort(np.maximum(x.numpy(copy=True), 0), -1, kind="stable"))
        assert "enter" in streams.said and "synchronize" in streams.said


@NO_TORCH
def test_a_single_device_waits_at_most_once(streams, rng):
    device = gb.Backend("ARRAY:library=torch,memory=own")
    with gb.Context() as ctx:
        x = ctx.tensor((4, 8), name="x")
        y = gb.ops.relu(gb.ops.scale(x, 2.0))
        graph = ctx.graph(y)
        memory = ctx.allocate(device)
        x.set(rng.standard_normal((4, 8)).astype(np.float32))
        streams.said.clear()
        graph.compute(device)
        assert streams.said.count("synchronize") <= 1
        del memory


@NO_TORCH
def test_events_are_those_of_the_streams(streams):
    device, other = gb.Backend("ARRAY:library=torch,memory=own"), gb.Backend("ARRAY:library=torch,memory=own")
    event = gb.backend.Event(device)
    streams.said.clear()
    event.record()
    assert streams.said == ["record"]
    event.wait(other)
    assert streams.said == ["record", "wait"]
    event.synchronize()
    assert streams.said[-1] == "wait here"


@NO_TORCH
def test_the_wait_raises_a_wrong_index(streams):
    check_wrong_index(gb.Backend("ARRAY:library=torch,memory=own"))


@NO_TORCH
def test_a_program_is_recorded_in_its_second_run(monkeypatch):
    import torch

    from ggml_backend.devices._array.library_torch import _Recorded

    said = []

    class Graph:
        def replay(self) -> None:
            said.append("launch")

    @contextlib.contextmanager
    def graph(graph: Graph, stream: Any) -> Any:
        said.append(f"record on {stream}")
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    program = _Recorded(lambda: said.append("run"), "a stream")
    for _ in range(3):
        program()
    assert said == ["run", "record on a stream", "run", "launch", "launch"]


@NO_TORCH
def test_compiled_programs_compute_the_same():
    """torch.compile needs a C++ compiler on the processor."""
    results = []
    for options in ({}, {"compile": True}):
        device = gb.Backend("ARRAY", library="torch", **options)
        with gb.Context() as ctx:
            given, y = bert_layer(ctx)
            graph = ctx.graph(y)
            sched = gb.Scheduler([device])
            sched.allocate(graph)
            values = np.random.default_rng(3)
            for t in given.values():
                t.set(values.standard_normal(t.shape).astype(np.float32))
            for _ in range(3):
                sched.compute(graph)
            results.append(y.numpy(copy=True))
    np.testing.assert_allclose(*results, rtol=0, atol=2e-5)


# ------------------------------------------------------------------------------------------------------------- refusal


@pytest.mark.parametrize("text", TEXTS)
def test_array_computes_all_supported_nodes(text):
    """It refuses no floats of an operator that it has."""
    report = gb.testing.check_device(text, quick=True)
    assert report.ok, str(report)
    floats = [c for c in report.refused if not re.search(r"int\d|q\d|fp4", c.name)]
    assert floats and all(c.message.startswith("not implemented") for c in floats), floats


def refused(build: Any, *tensors: Any) -> str:
    device = gb.Backend("ARRAY")
    with gb.Context() as ctx:
        return device.unsupported_reason(build(*[ctx.tensor(*t) for t in tensors])) or ""


@pytest.mark.parametrize(
    ("build", "tensors", "words"),
    [
        (lambda x: gb.ops.win_part(x, 2), [((4, 5, 3),)], "not implemented (the device has abs, add"),
        (lambda x, p: gb.ops.rope(x, p, 8, "glm", n_ctx=4), [((5, 2, 16),), ((5,), gb.int32)], "mode glm"),
        (lambda x, p: gb.ops.rope(x, p, xpos_base=512.0, inplace=True), [((5, 2, 8),), ((5,), gb.int32)], "xPos"),
        (lambda x: gb.ops.cast(x, gb.dtypes.q8_0), [((3, 32),)], "ARRAY cannot quantize"),
    ],
)
def test_refusals_of_array_have_a_reason(build, tensors, words):
    assert words in refused(build, *tensors)


@pytest.mark.parametrize("on", [True, False])
def test_fusion_of_array_follows_the_switch_of_the_cpu(on, ctx, monkeypatch):
    looked = []

    class Fusion:
        def __init__(self, library: Any, calls: Any) -> None:
            looked.append(len(calls))
            self.calls = calls

        def steps(self, step: Any) -> Any:
            return [(step(call), call) for call in self.calls]

    monkeypatch.setattr(arrays, "Fusion", Fusion)
    device = gb.Backend("ARRAY")
    device.device.library.can_fuse = True
    a = ctx.tensor((4,))
    y = gb.ops.sqr(a) + a
    graph = ctx.graph(y)
    ctx.allocate(device)
    a.set(2)
    assert lib.ggml_graph_get_fusion()
    with contextlib.nullcontext() if on else unfused():
        graph.compute(device)
    assert y.tolist() == [6] * 4
    assert looked == ([2] if on else [])
