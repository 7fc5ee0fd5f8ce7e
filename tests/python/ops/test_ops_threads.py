"""Several threads compute the same bits as one thread: their shares cover the result and do not depend on each other.

The values are compared with NumPy in the other files. Some teams have more threads than an operator has rows.
"""

from __future__ import annotations

import itertools
import zlib

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.devices._nodes import operators
from ggml_backend.testing._inputs import values_of
from ggml_backend.testing._operators import Bench
from ggml_backend.testing._variants import Variant, large_variants

# Views compute nothing. Functions in Python are tested below.
NOT_HERE = {"reshape", "view", "permute_ggml", "transpose", "map_unary", "map_binary", "custom", "map_custom1",
            "map_custom2", "map_custom3", "map_custom1_f32", "map_custom2_f32", "map_custom3_f32"}  # fmt: skip


@pytest.fixture(scope="module")
def teams() -> list[gb.Backend]:
    return [gb.Backend("CPU", n_threads=n) for n in (2, 3, 5, 8)]


VARIANTS: dict[str, list[Variant]] = {}
for variant in large_variants():
    VARIANTS.setdefault(variant.op, []).append(variant)


def bench_of(variant: Variant) -> Bench | None:
    """Inputs for a call; None for functions without float32 inputs."""
    rng = np.random.default_rng(zlib.crc32(variant.name.encode()))
    try:
        return Bench(variant, [values_of(given, rng) for given in variant.inputs])
    except gb.errors.InvalidArgumentError:
        return None


@pytest.mark.parametrize("name", VARIANTS)
def test_threads_compute_the_same_bits(name, teams):
    alone = gb.Backend("CPU", n_threads=1)
    for bench in filter(None, map(bench_of, VARIANTS[name])):
        with bench.ctx:
            if bench.refusal(alone) is not None:
                assert name in ("cast", "cpy")
                continue
            memory = bench.ctx.allocate(alone)
            results = []
            for backend in (alone, *teams):
                memory.clear(0xA5)  # so that a share that no thread computes differs
                for source in bench.sources:
                    source.root.set(source.memory)
                bench.graph.compute(backend)
                results.append(bench.node.numpy(copy=True))
        for result in results[1:]:
            assert result.tobytes() == results[0].tobytes(), bench.variant.name


def test_every_operator_has_a_case():
    seen = set()
    for bench in filter(None, map(bench_of, itertools.chain(*VARIANTS.values()))):
        seen.update(t.op.lower() for t in bench.graph.nodes)
    assert operators() - NOT_HERE <= seen


def doubled_share(out, x, ith, nth):
    np.multiply(x[ith::nth], 2, out=out[ith::nth])


@pytest.mark.parametrize(
    "build",
    [lambda x: gb.ops.custom(doubled_share, x, n_tasks=-1), lambda x: gb.ops.map_custom(doubled_share, x, n_tasks=-1)],
)
def test_threads_share_functions_in_python(ctx, build, teams):
    x = ctx.tensor((130, 517))
    node = build(x)
    graph = ctx.graph(node)
    ctx.allocate(teams[0])
    values = np.arange(130 * 517, dtype=np.float32).reshape(x.shape)
    x.set(values)
    for team in teams:
        graph.compute(team)
        np.testing.assert_array_equal(node.numpy(), 2 * values)
