"""CUDA from Python: devices that compute like the CPU, or a reason why there are none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ggml_backend as gb


def test_missing_says_why() -> None:
    names = gb.backends()
    assert names[0] == "CPU"
    assert ("CUDA0" in names) != ("CUDA" in names.missing)
    if "CUDA0" not in names:
        assert names.missing["CUDA"]
        with pytest.raises(gb.InvalidArgumentError) as caught:
            gb.Backend("CUDA0")
        assert names.missing["CUDA"] in str(caught.value)
        with pytest.raises(gb.InvalidArgumentError) as caught:
            gb.Backend("nothing")
        assert "CUDA:" not in str(caught.value)


def test_a_module_is_named_by_the_environment(script: Callable[..., str]) -> None:
    source = """
import os
os.environ["GGML_CUDA_MODULE"] = "/no/such/module.so"
import ggml_backend as gb
print(gb.backends().missing["CUDA"])
assert gb.load_report() == []
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
        w = ctx.tensor((64, 512), getattr(gb, type_))
        x = ctx.tensor((7, 512))
        graph = ctx.graph(gb.mul_mat(w, x))
        ctx.allocate(cpu)
        w.set(values, quantize=True)
        x.set(inputs)
        (result,) = graph.compare(cpu, gb.Backend("CUDA0"))
    assert result.nmse < 1e-4
