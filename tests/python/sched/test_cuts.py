"""A cut does not change which nodes a backend fuses, so results have the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from conftest import fusion

TOKENS, HEADS, HEAD = 24, 4, 32
EMBD = HEADS * HEAD


class Block:
    """Attention of ``x`` with a mask. The first device computes h, and the nodes up to the input that ``far`` names."""

    def __init__(self, ctx: gb.Context, far: str) -> None:
        self.x = ctx.tensor((TOKENS, EMBD), name="x")
        self.mask = ctx.tensor((TOKENS, TOKENS), name="mask")
        self.w = {n: ctx.tensor((EMBD, EMBD), name=n) for n in ("q", "k", "v", "o")}
        self.bias = ctx.tensor((EMBD,), name="bias")
        h = gb.ops.tanh(self.x).named("h")
        mask = gb.ops.scale(self.mask, 2.0).named("mask_scaled") if far == "mask" else self.mask

        def heads(name: str) -> gb.Tensor:
            return gb.ops.mul_mat(self.w[name], h).named(name + "h").reshape(TOKENS, HEADS, HEAD)

        keys, queries = heads("k").transpose(1, 0, 2), heads("q").transpose(1, 0, 2)
        scores = gb.ops.mul_mat(keys, queries).named("scores")
        weights = gb.ops.soft_max(scores, mask, scale=HEAD**-0.5).named("probs")
        mixed = gb.ops.mul_mat(gb.ops.cont(heads("v").transpose(1, 2, 0)).named("values"), weights).named("mixed")
        merged = gb.ops.cont(mixed.transpose(1, 0, 2)).named("merged").reshape(TOKENS, EMBD)
        out = gb.ops.relu((gb.ops.mul_mat(self.w["o"], merged).named("out") + self.bias).named("biased")).named("relu")
        self.y = (out + h).named("y")
        self.graph = ctx.graph(*([mask] if far == "mask" else []), self.y)  # computed before the scores
        names = {"x": ["h"], "mask": ["h", "mask_scaled"], "keys": ["h", "kh"], "values": ["h", "vh", "values"]}
        self.first = set(names[far])

    def run(self, devices: list[gb.Backend]) -> tuple[np.ndarray, list[str]]:
        rng = np.random.default_rng(5)
        with gb.Scheduler(devices) as sched:
            for node in self.graph.nodes:
                sched.set_backend(node, devices[0 if node.name in self.first else -1])
            sched.allocate(self.graph)
            for t in (self.x, self.mask, self.bias, *self.w.values()):
                t.set(rng.standard_normal(t.shape).astype(np.float32))
            assert sched.compute(self.graph)
            return self.y.numpy(copy=True), [s.backend for s in sched.splits]


@pytest.mark.parametrize("far", ["x", "mask", "keys", "values"])
@pytest.mark.parametrize("second", ["SIM:name=B", "CPU"])
def test_attention_behind_a_cut_is_fused(far: str, second: str) -> None:
    def computed(*names: str) -> tuple[np.ndarray, list[str]]:
        with gb.Context() as ctx:
            return Block(ctx, far).run([gb.Backend(n, n_threads=1) if n == "CPU" else gb.Backend(n) for n in names])

    wanted, _ = computed("CPU")
    with fusion(False):
        apart, _ = computed("CPU")
    assert (wanted != apart).any()  # otherwise the sums do not show whether it was one step
    found, splits = computed("SIM:name=A", second)
    assert len(splits) >= 2
    np.testing.assert_array_equal(found, wanted)
    with fusion(False):
        np.testing.assert_array_equal(computed("SIM:name=A", second)[0], apart)
