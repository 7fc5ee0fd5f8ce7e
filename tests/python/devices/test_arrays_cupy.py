"""ARRAY with a fake CuPy made of NumPy. The tests check the calls for memory, streams and events,
and their order. They need no GPU, and check no results of CuPy.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ggml_backend as gb
from array_devices import check_wrong_index


class Pointer:
    """``cupy.cuda.MemoryPointer``"""

    def __init__(self, array: Any, offset: int) -> None:
        self.array, self.offset = array, offset

    @property
    def ptr(self) -> int:
        return int(self.array.__array_interface__["data"][0]) + self.offset

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.array, self.offset + offset)


class Array(np.ndarray):
    """``cupy.ndarray``"""

    def __new__(cls, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None) -> Array:
        if memptr is None:
            return super().__new__(cls, shape, dtype)
        return super().__new__(cls, shape, dtype, memptr.array.view(np.ndarray), memptr.offset, strides)

    @property
    def data(self) -> Any:
        return Pointer(self, 0)

    def get(self) -> Any:
        return np.array(self)

    def set(self, array: Any) -> None:
        self[...] = array


class Said(list[str]):
    """A log of calls of streams and events."""


def module(said: Said) -> types.ModuleType:
    class Device:
        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: Any) -> None:
            pass

    class Stream(Device):
        def __init__(self, non_blocking: bool) -> None:
            super().__init__(int(non_blocking))

        def synchronize(self) -> None:
            said.append("synchronize")

        def wait_event(self, event: Any) -> None:
            said.append("wait")

    class Event:
        def __init__(self, disable_timing: bool) -> None:
            pass

        def record(self, stream: Stream) -> None:
            said.append("record")

        def synchronize(self) -> None:
            said.append("wait here")

    cupy = types.ModuleType("cupy")
    vars(cupy).update({name: value for name, value in vars(np).items() if not name.startswith("__")})
    cupy.ndarray = Array
    cupy.empty = lambda shape, dtype=float: Array(shape, dtype)
    cupy.zeros = lambda shape, dtype=float: np.zeros(shape, dtype).view(Array)
    cupy.asarray = lambda array, dtype=None: np.array(array, dtype).view(Array)
    cupy.take = lambda a, indices, axis=None, out=None: np.take(a, indices, axis, out)  # CuPy's take has no `mode`
    cupy.cuda = types.SimpleNamespace(Device=Device, Stream=Stream, Event=Event)
    cupy.__spec__ = types.SimpleNamespace(name="cupy")
    return cupy


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    import array_api_compat.numpy

    said = Said()
    monkeypatch.setitem(sys.modules, "cupy", module(said))
    monkeypatch.setitem(sys.modules, "array_api_compat.cupy", array_api_compat.numpy)
    monkeypatch.delitem(sys.modules, "ggml_backend.devices._array.library_cupy", raising=False)
    yield said
    sys.modules.pop("ggml_backend.devices._array.library_cupy", None)


def computed(device: gb.Backend, rng: Any) -> list[np.ndarray]:
    """Results of some operators of each family, on the device and on the CPU."""
    with gb.Context() as ctx:
        x, w, b = (
            ctx.tensor((6, 64), name="x"),
            ctx.tensor((64, 64), gb.dtypes.q8_0, name="w"),
            ctx.tensor((64,), name="b"),
        )
        half = ctx.tensor((6, 64), gb.float16, name="half")
        ids, places = ctx.tensor((6,), gb.int32, name="ids"), ctx.tensor((6,), gb.int32, name="places")
        y = gb.ops.gelu_erf(gb.ops.norm(gb.ops.mul_mat(w, x) + b))
        z = gb.ops.rope(gb.ops.get_rows(w, ids).reshape(6, 4, 16), places, 16, "neox_exact")
        s = gb.ops.soft_max(gb.ops.diag_mask_inf(gb.ops.mul_mat(y, y), 1), scale=0.5)
        outs = [
            y,
            gb.ops.cont(z.transpose(1, 0, 2)),
            gb.ops.mul_mat(gb.ops.cont(y.T), s),
            gb.ops.cpy(y, half),
            gb.ops.repeat(b, (2, 64)),
        ]
        graph = ctx.graph(*outs)
        sched = gb.Scheduler([device])
        sched.allocate(graph)
        values = np.random.default_rng(7)
        for t in (x, b):
            t.set(values.standard_normal(t.shape).astype(np.float32))
        w.set(values.standard_normal(w.shape).astype(np.float32), quantize=True)
        ids.set(np.array([5, 0, 63, 5, 1, 2], np.int32))
        places.set(np.arange(6, dtype=np.int32))
        sched.compute(graph)
        return [t.numpy(copy=True) for t in outs]


@pytest.mark.parametrize("weights", ["packed", "widened"])
def test_all_families(said, rng, weights):
    device = gb.Backend("ARRAY", library="cupy", weights=weights)
    assert device.name == "ARRAY(cupy:cuda:0)" and not device.buffer_type.is_host
    for got, want in zip(computed(device, rng), computed(gb.Backend("CPU", n_threads=1), rng), strict=True):
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=0, atol=0.03)


def test_streams_and_events(said):
    device, other = (gb.Backend("ARRAY", library="cupy") for _ in range(2))
    event = gb.backend.Event(device)
    said.clear()
    event.record()
    event.wait(other)
    event.wait(gb.Backend("ARRAY:memory=own"))
    event.synchronize()
    marks = [word for word in said if word != "synchronize"]
    assert marks == ["record", "wait", "wait here", "wait here"]


def test_the_wait_raises_a_wrong_index(said):
    check_wrong_index(gb.Backend("ARRAY", library="cupy"))


@pytest.mark.parametrize("device", ["cpu", "cuda:x", "rocm:0"])
def test_missing_cuda_devices_are_refused(said, device):
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"'cuda:0', 'cuda:1'"):
        gb.Backend("ARRAY", library="cupy", device=device)
