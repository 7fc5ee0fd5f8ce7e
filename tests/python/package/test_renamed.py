"""Old public names: each works, and warns with the name to use."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._base.renamed import Renamed
from public import PATHS, THINGS

RENAMED = [
    (kind, old, value.new)
    for kind in THINGS.values()
    if isinstance(kind, type)
    for old, value in vars(kind).items()
    if isinstance(value, Renamed)
]


@pytest.mark.parametrize(("kind", "old", "new"), RENAMED, ids=[f"{k.__name__}.{o}" for k, o, _ in RENAMED])
def test_an_old_attribute_returns_the_new_one(kind, old, new):
    assert len(RENAMED) > 15
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    assert hasattr(kind, new) or new in fields
    assert old not in fields
    blank = type("Blank", (), {new: 7})()
    with pytest.warns(DeprecationWarning, match=rf"^{kind.__name__}\.{old} is deprecated; use {kind.__name__}\.{new}$"):
        assert vars(kind)[old].__get__(blank, kind) == 7


def test_old_methods_and_attributes_work(ctx, cpu):
    x = ctx.tensor(4, name="x")
    with pytest.warns(DeprecationWarning, match="Backend.alloc is deprecated; use Backend.allocate"):
        buffer = cpu.alloc(64)
    with pytest.warns(DeprecationWarning, match="Buffer.size is deprecated; use Buffer.nbytes"):
        assert buffer.size == buffer.nbytes >= 64
    buffer.place(x).set(2.0)
    with gb.Scheduler([cpu]) as sched:
        plan = sched.prepare(ctx.graph(x * 2.0))
        with pytest.warns(DeprecationWarning, match="Plan.run is deprecated; use Plan.compute"):
            assert plan.run() is True
    with pytest.warns(DeprecationWarning, match="DType.row_size is deprecated; use DType.row_nbytes"):
        assert gb.float32.row_size(4) == 16


@pytest.mark.parametrize("no_alloc", [True, False])
def test_the_old_keyword_of_contexts_works(no_alloc):
    with pytest.warns(DeprecationWarning, match="Context: no_alloc=False is deprecated; use allocate=True"):
        ctx = gb.Context(no_alloc=no_alloc)
    assert ctx.tensor(4).is_placed is not no_alloc


def test_old_functions_and_classes_work(ctx):
    x = ctx.tensor((2, 3, 4))
    for module in (gb, gb.ops):
        with pytest.warns(DeprecationWarning, match="use .*permute_ggml"):
            assert module.permute(x, 1, 0, 2, 3).shape == gb.ops.permute_ggml(x, 1, 0, 2, 3).shape
    with pytest.warns(DeprecationWarning, match="gb.SplitInfo is deprecated; use gb.sched.Split"):
        assert gb.SplitInfo is gb.sched.Split


@pytest.mark.parametrize(
    "old", ["relu", "q4_0", "StateError", "Event", "Plan", "Costs", "Device", "plan_memory", "Cluster"]
)
def test_old_places_work(old):
    path = PATHS[old]
    with pytest.warns(DeprecationWarning, match=rf"^gb\.{old} is deprecated; use {path}$") as caught:
        assert getattr(gb, old) is THINGS[old]
    assert caught[0].filename == __file__


def test_every_old_place_is_known():
    """Each name of a submodule was at the top level before, except newer names."""
    new = {"Fault", "UnknownKey", "ArrayDevice"}
    for module in (gb.ops, gb.dtypes, gb.errors, gb.backend, gb.sched, gb.tensor, gb.devices, gb.planning, gb.profile):
        for name in {*module.__all__} - {*gb.__all__} - new:
            with pytest.warns(DeprecationWarning, match=rf"; use {PATHS[name]}$"):
                assert getattr(gb, name) is getattr(module, name)


def test_old_names_of_counts_and_clusters_work():
    with pytest.warns(DeprecationWarning, match=r"Traffic\.bytes is deprecated; use Traffic\.nbytes"):
        assert gb.sched.Traffic(1, 7).bytes == 7
    with pytest.warns(DeprecationWarning, match="cluster: threads is deprecated; use n_threads"):
        cluster = gb.cluster.start(threads=1)
    assert cluster.n_ranks == 1
    cluster.close()
    simulated = gb.cluster.simulated(2, threads=1)
    with pytest.warns(DeprecationWarning, match="use n_threads"), simulated as cluster:
        assert cluster.n_ranks == 2


def test_a_device_with_the_old_hooks_works():
    class Memory:
        def __init__(self, nbytes: int) -> None:
            self.data = np.zeros(nbytes, np.uint8)

        def write(self, offset: int, data: memoryview) -> None:
            self.data[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

        def read(self, offset: int, data: memoryview) -> None:
            np.frombuffer(data, np.uint8)[:] = self.data[offset : offset + len(data)]

        def fill(self, value: int) -> None:
            self.data[:] = value

    class Old(gb.devices.Device):
        memory = "own"
        max_size = 4096

        def alloc(self, nbytes: int) -> Memory:
            return Memory(nbytes)

        def array(self, memory: Memory, offset: int, node: gb.devices.Node, writable: bool) -> np.ndarray:
            return super().array(memory.data, offset, node, writable)

        @gb.devices.op("relu")
        def relu(self, node: gb.devices.Node, out: np.ndarray, a: np.ndarray) -> None:
            np.maximum(a, 0, out=out)

    with pytest.warns(DeprecationWarning, match=r"^Old\.") as caught:
        gb.devices.register_device("OLD_HOOKS", Old)
    assert [str(w.message) for w in caught] == [
        "Old.alloc is deprecated; use allocate", "Old.max_size is deprecated; use max_nbytes"
    ]  # fmt: skip
    with gb.Context() as ctx, gb.Backend("OLD_HOOKS") as device, gb.Scheduler([device, gb.Backend("CPU")]) as sched:
        assert device.max_nbytes == 4096
        x = ctx.tensor(4, name="x")
        y = gb.ops.relu(x)
        graph = ctx.graph(y)
        sched.allocate(graph)
        x.set(np.array([-1, 2, -3, 4], np.float32))
        sched.compute(graph)
        assert y.numpy().tolist() == [0, 2, 0, 4]


def test_tensors_compare_by_identity_and_refuse_elements(ctx):
    x, y = ctx.tensor(4, name="x"), ctx.tensor(4, name="y")
    assert x == ctx["x"]
    assert x != y
    assert x in ctx.tensors()
    assert (x == None) is False  # noqa: E711
    for other in (0, 1.5, np.zeros(4, np.float32), np.float32(1)):
        with pytest.raises(TypeError, match=r"gb\.ops\.equal"):
            x == other  # noqa: B015
