"""CUDA devices compute the results of the CPU. Without a device, the package states the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.backend import backend as backend_module


def test_missing_has_the_reason() -> None:
    names = gb.backends()
    assert names[0] == "CPU"
    assert ("CUDA0" in names) != ("CUDA" in names.missing)
    if "CUDA0" not in names:
        assert names.missing["CUDA"]
        with pytest.raises(gb.errors.InvalidArgumentError) as caught:
            gb.Backend("CUDA0")
        assert names.missing["CUDA"] in str(caught.value)
        with pytest.raises(gb.errors.InvalidArgumentError) as caught:
            gb.Backend("nothing")
        assert "CUDA:" not in str(caught.value)


def test_a_module_is_named_by_the_environment(script: Callable[..., str]) -> None:
    source = """
import os
os.environ["GGML_CUDA_MODULE"] = "/no/such/module.so"
import ggml_backend as gb
from ggml_backend import backend as backend_module
print(gb.backends().missing["CUDA"])
assert gb.backend.load_report() == []
"""
    assert "/no/such/module.so" in script(source)


@pytest.mark.parametrize("type_", ["float32", "float16", "q8_0", "q4_k"])
def test_products_agree_with_the_cpu(type_: str) -> None:
    names = gb.backends()
    if "CUDA0" not in names:
        pytest.skip(f"CUDA: {names.missing['CUDA']}")
    rng = np.random.default_rng(1)
    values, inputs = rng.standard_normal((64, 512)).astype(np.float32), rng.standard_normal((7, 512)).astype(np.float32)
    cpu = gb.Backend("CPU")
    with gb.Context() as ctx:
        w = ctx.tensor((64, 512), getattr(gb.dtypes, type_))
        x = ctx.tensor((7, 512))
        graph = ctx.graph(gb.ops.mul_mat(w, x))
        ctx.allocate(cpu)
        w.set(values, quantize=True)
        x.set(inputs)
        (result,) = graph.compare(cpu, gb.Backend("CUDA0"))
    assert result.nmse < 1e-4


@pytest.mark.parametrize("module", ["none", "missing", "no library"])
def test_a_signal_handler_can_query_during_loading(module, monkeypatch, tmp_path):
    """A handler interrupts the first query, which loads the module, between any two
    instructions."""
    file = tmp_path / "libcuda_module.so"
    if module == "no library":
        file.write_bytes(b"rubbish")
    if module == "none":
        monkeypatch.delenv("GGML_CUDA_MODULE", raising=False)
    else:
        monkeypatch.setenv("GGML_CUDA_MODULE", str(file))
    load = backend_module._load_cuda
    monkeypatch.setattr(backend_module, "_cuda_outcome", None)
    expected = load()
    place = reached = 0
    found = []

    def at_instruction(frame, event, arg):
        nonlocal reached
        if event == "opcode":
            reached += 1
            if reached == place:
                found.append(load())
        return at_instruction

    def trace(frame, event, arg):
        if frame.f_code is load.__code__:
            frame.f_trace_opcodes = True
            return at_instruction
        return None

    while reached == place:
        place, reached = place + 1, 0
        backend_module._cuda_outcome = None
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            outcome = load()
        finally:
            sys.settrace(before)
        assert outcome == expected
        reached = min(reached, place)
    assert len(found) == place - 1 > 20
    assert set(found) == {expected}
