"""``Backend.simulated``: each option has the effect of the text that ``Backend("SIM:...")`` takes."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import ggml_backend as gb


def computed(backend: gb.Backend) -> tuple[np.ndarray, list[str]]:
    """A product and a sum with the backend and the CPU, and who computed."""
    with gb.Scheduler([backend, gb.Backend("CPU", n_threads=1)]) as sched, gb.Context() as ctx:
        x = ctx.constant(np.arange(6, dtype=np.float32).reshape(2, 3))
        graph = ctx.graph(x @ x.T + 1.0)
        sched.compute(graph)
        return graph.nodes[-1].numpy(copy=True), [split.backend for split in sched.splits]


def test_names_sizes_and_alignment():
    backend = gb.Backend.simulated(name="MINE", mem="1M", max_nbytes=65536, align=64, n_threads=2)
    assert backend.name == "MINE"
    assert backend.max_nbytes == 65536
    assert backend.buffer_type.alignment == 64
    with pytest.raises(gb.errors.AllocationError, match=r"65536|64\.0 KiB"):
        backend.allocate(65537)
    full = [backend.allocate(65536) for _ in range(16)]
    with pytest.raises(gb.errors.AllocationError, match=r"1\.0 MiB"):
        backend.allocate(65536)
    assert len(full) == 16


def test_operators_are_chosen():
    want = np.arange(6, dtype=np.float32).reshape(2, 3)
    want = want @ want.T + 1.0
    for options, backends in (
        ({}, {"ALL"}),
        ({"ops": ["mul_mat"]}, {"ALL", "CPU"}),
        ({"noops": ("mul_mat", "add")}, {"CPU"}),
        ({"ops": ["mul_mat", "add"], "n_threads": 2}, {"ALL"}),
    ):
        result, used = computed(gb.Backend.simulated(name="ALL", **options))
        assert np.array_equal(result, want)
        assert set(used) == backends, options


def test_faults_happen():
    with pytest.raises(gb.errors.DeviceError, match="MUL_MAT"):
        computed(gb.Backend.simulated(fail_op="mul_mat"))
    backend = gb.Backend.simulated(fail_alloc_after=1)
    first = backend.allocate(16)
    with pytest.raises(gb.errors.AllocationError):
        backend.allocate(16)
    assert first.nbytes >= 16


@pytest.mark.parametrize("option", ["delay", "op_delay", "copy_delay"])
def test_times_are_seconds_or_text(option):
    """The longest time is an hour, so the limit shows the unit."""
    for value in (0.0, 3599.0, 3599, "3599s", "2.5ms"):
        assert gb.Backend.simulated(**{option: value}).name.startswith("SIM")
    for value in (3601.0, "3601s", "2"):
        with pytest.raises(gb.errors.InvalidArgumentError, match=option):
            gb.Backend.simulated(**{option: value})


@pytest.mark.parametrize("option", [p for p in inspect.signature(gb.Backend.simulated).parameters if p != "name"])
@pytest.mark.parametrize("value", [{}, "nonsense", -1.5])
def test_wrong_values_are_errors(option, value):
    with pytest.raises((TypeError, ValueError), match="Backend"):
        gb.Backend.simulated(**{option: value})


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="memory"):
        gb.Backend.simulated(memory="64M")
