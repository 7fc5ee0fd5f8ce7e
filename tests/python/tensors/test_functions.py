"""Graphs as functions of arrays: ``Graph.function``."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.errors import FileError, InvalidArgumentError, StateError
from threads import run_threads

ROWS, K, N = 5, 64, 32


@pytest.fixture
def scene(ctx, cpu, rng):
    """y = x @ w.T with arrays for all three."""
    x, w = ctx.tensor((ROWS, K), name="x"), ctx.tensor((N, K), name="w")
    y = gb.ops.mul_mat(w, x).named("y")
    graph = ctx.graph(y)
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((ROWS, K), (N, K))] + [np.zeros((ROWS, N), np.float32)]
    return graph, graph.function(cpu, x, w, y), arrays


def check(arrays):
    x, w, y = arrays
    np.testing.assert_allclose(y, x.astype(np.float64) @ w.astype(np.float64).T, rtol=0, atol=1e-4)


def test_results_are_in_the_given_array(scene):
    _, function, arrays = scene
    assert function(*arrays) is True
    check(arrays)


def test_every_call_has_its_own_arrays(scene, rng):
    _, function, _ = scene
    for _ in range(20):
        arrays = [rng.normal(size=s).astype(np.float32) for s in ((ROWS, K), (N, K), (ROWS, N))]
        function(*arrays)
        check(arrays)
        gc.collect()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "q4_0", "q8_0"])
def test_weights_of_other_formats(ctx, cpu, rng, dtype):
    values = rng.normal(size=(N, K)).astype(np.float32)
    blocks = gb.quantize(values, dtype) if dtype != "float16" else values.astype(np.float16)
    if dtype == "bfloat16":
        blocks = np.asarray(blocks).view(np.uint16)
    x, w, bias = ctx.tensor((ROWS, K)), ctx.tensor((N, K), dtype), ctx.tensor((N,))
    product = gb.ops.mul_mat(w, x, prec="f32")
    function = ctx.graph(gb.ops.add(product, bias, inplace=True)).function(cpu, x, w, bias, product)
    given, b, result = rng.normal(size=(ROWS, K)).astype(np.float32), rng.normal(size=N).astype(np.float32), None
    for _ in range(2):
        result = np.full((ROWS, N), np.nan, np.float32)
        function(given, np.asarray(blocks), b, result)
        expected = given.astype(np.float64) @ gb.dequantize(blocks, dtype).astype(np.float64).T + b
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_other_tensors_keep_their_memory(cpu, rng):
    weights, ctx = gb.Context(usage="weights"), gb.Context()
    values = rng.normal(size=(N, K)).astype(np.float32)
    w, x = weights.from_numpy(values), ctx.tensor((ROWS, K))
    y = gb.ops.relu(x @ w.T * ctx.constant(2.0))
    graph = ctx.graph(y)
    function = graph.function(cpu, x, y)
    with pytest.raises(StateError, match="has no memory: allocate it, or let the function take an array for it"):
        function(np.ones((ROWS, K), np.float32), np.empty((ROWS, N), np.float32))
    for node in graph.nodes[:-1]:
        if node.view_of is None:
            cpu.allocate(node.nbytes).place(node)
    for leaf in graph.leafs:
        if not leaf.is_placed and leaf != x:
            cpu.allocate(64).place(leaf)
    given, result = rng.normal(size=(ROWS, K)).astype(np.float32), np.empty((ROWS, N), np.float32)
    function(given, result)
    np.testing.assert_allclose(result, np.maximum(given @ values.T * 2, 0), rtol=0, atol=1e-3)


def test_a_node_may_write_an_input(ctx, cpu):
    cache, new, at = ctx.tensor((8, 4), name="cache"), ctx.tensor((2, 4), name="new"), ctx.tensor((2,), gb.int32, "at")
    function = ctx.graph(gb.ops.set_rows(cache, new, at)).function(cpu, cache, new, at)
    stored = np.zeros((8, 4), np.float32)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    function(stored, rows, np.array([6, 1], np.int32))
    assert (stored[[6, 1]] == rows).all() and stored.sum() == rows.sum()
    frozen = stored.copy()
    frozen.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match=r"'cache' float32 .* is not writable"):
        function(frozen, rows, np.array([0, 1], np.int32))
    rows.flags.writeable = False
    function(stored, rows, np.array([0, 1], np.int32))


def test_tensors_have_no_memory_between_calls(scene, cpu):
    graph, function, arrays = scene
    for _ in range(2):
        function(*arrays)
        assert [t.is_placed for t in (*graph.leafs, *graph.nodes)] == [False] * 3
        with pytest.raises(StateError, match="has no memory"):
            graph.compute(cpu)
        with pytest.raises(StateError):
            graph.outputs[0].numpy()


def test_the_same_graph_runs_on_a_scheduler(scene, cpu):
    graph, function, arrays = scene
    function(*arrays)
    scheduler = gb.Scheduler(cpu)
    scheduler.allocate(graph)
    graph["x"].set(arrays[0])
    graph["w"].set(arrays[1])
    scheduler.compute(graph)
    assert np.array_equal(graph["y"].numpy(), arrays[2])
    with pytest.raises(StateError, match="'x' has its own memory"):
        function(*arrays)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda a: a[:2], TypeError, "takes 3 arrays, not 2"),
        (lambda a: [*a, a[0]], TypeError, "takes 3 arrays, not 4"),
        (lambda a: [a[0].tolist(), *a[1:]], TypeError, "'x' float32 .* takes a NumPy array, not list"),
        (lambda a: [a[0].astype(np.float64), *a[1:]], InvalidArgumentError, "of float32 and shape .* not of float64"),
        (lambda a: [a[0][:3], *a[1:]], InvalidArgumentError, r"shape \(5, 64\), not .* shape \(3, 64\)"),
        (lambda a: [np.asfortranarray(a[0]), *a[1:]], InvalidArgumentError, "'x' .*: the array is not C-contiguous"),
        (lambda a: [*a[:2], a[2].astype(np.float16)], InvalidArgumentError, "'y' .* not of float16"),
        (lambda a: [_unaligned(a[0]), *a[1:]], InvalidArgumentError, "'x' must be a multiple of 4 bytes"),
        (lambda a: [*a[:2], _unaligned(a[2])], InvalidArgumentError, "'y' .*: the array is not aligned"),
    ],
)
def test_wrong_arrays_are_refused(scene, change, kind, message):
    _, function, arrays = scene
    with pytest.raises(kind, match=message):
        function(*change(arrays))
    function(*arrays)
    check(arrays)


def _unaligned(array):
    memory = np.zeros(array.nbytes + 1, np.uint8)
    return np.frombuffer(memory.data, array.dtype, array.size, 1).reshape(array.shape)


def test_wrong_tensors_are_refused(ctx, cpu):
    x = ctx.tensor((4, 8), name="x")
    constant = ctx.constant(np.ones((4, 8), np.float32), name="one")
    view, other = x[:2], ctx.tensor((4, 8), name="other")
    graph = ctx.graph(y := (x + constant).named("y"), view)
    for tensors, message in (
        ((x, y, x), "'x' occurs twice"),
        ((view, y), "is a view: give the tensor that it views"),
        ((constant, y), "'one' is a constant"),
        ((other, y), "'other' is not in the graph"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            graph.function(cpu, *tensors)
    with pytest.raises(TypeError, match="each tensor must be a Tensor, not int"):
        graph.function(cpu, 3)
    with pytest.raises(InvalidArgumentError, match="is not a CPU backend"):
        graph.function(gb.Backend("SIM"), x, y)
    called = gb.ops.custom(lambda out, a: None, x)
    with pytest.raises(InvalidArgumentError, match="operation in Python"):
        ctx.graph(called).function(cpu, x, called)


def test_closed_objects_and_callbacks_are_refused(scene, cpu):
    graph, function, arrays = scene
    gb.sched.set_abort_callback(cpu, lambda: False)
    with pytest.raises(StateError, match="has an abort callback"):
        function(*arrays)
    gb.sched.set_abort_callback(cpu, None)
    function(*arrays)
    check(arrays)
    assert "'x' float32 (5, 64)" in repr(function)
    graph.context.close()
    assert repr(function) == "<Function closed>"
    with pytest.raises(StateError, match="closed"):
        function(*arrays)


def test_a_closed_backend_is_refused(ctx):
    x = ctx.tensor((4,))
    backend = gb.Backend("CPU", n_threads=1)
    function = ctx.graph(y := gb.ops.relu(x)).function(backend, x, y)
    backend.close()
    with pytest.raises(StateError, match="closed"):
        function(np.ones(4, np.float32), np.ones(4, np.float32))


def test_empty_tensors(ctx, cpu):
    x = ctx.tensor((0, 8))
    function = ctx.graph(y := gb.ops.relu(x)).function(cpu, x, y)
    assert function(np.empty((0, 8), np.float32), np.empty((0, 8), np.float32))


def test_threads_wait_for_each_other(scene):
    _, function, _ = scene

    def work(seed):
        own = np.random.default_rng(seed)
        for _ in range(200):
            arrays = [own.normal(size=s).astype(np.float32) for s in ((ROWS, K), (N, K), (ROWS, N))]
            function(*arrays)
            check(arrays)

    run_threads(4, work)


def test_a_file_that_shrinks_is_an_error(ctx, cpu, tmp_path):
    path = tmp_path / "model.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add_tensor("w", np.ones((4096, K), np.float32))
    x, w = ctx.tensor((1, K)), ctx.tensor((4096, K))
    function = ctx.graph(y := x @ w.T).function(cpu, x, w, y)
    with gb.gguf.open(path) as file:
        weight = file.tensors["w"].numpy()
    result = np.empty((1, 4096), np.float32)
    function(np.ones((1, K), np.float32), weight, result)
    assert (result == K).all()
    with open(path, "r+b") as f:
        f.truncate(8192)
    with pytest.raises(FileError):
        function(np.ones((1, K), np.float32), weight, result)


def test_a_writable_file_does_not_change(tmp_path):
    path = tmp_path / "model.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add_tensor("w", np.ones((4, 8), np.float32))
    before = path.read_bytes()
    with gb.gguf.open(path, writable=True) as file, gb.gguf.open(path) as other:
        file.tensors["w"].numpy()[:] = 7
        assert (file.tensors["w"].numpy() == 7).all() and (other.tensors["w"].numpy() == 1).all()
        with pytest.raises(ValueError, match="read-only"):
            other.tensors["w"].numpy()[:] = 7
    assert path.read_bytes() == before
