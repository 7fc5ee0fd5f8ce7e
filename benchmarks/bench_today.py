"""Measures operators of today's models, each beside a limit of its speed.

    python benchmarks/bench_today.py [CASE ...] [--threads N] [--rounds N] [--json FILE]

experts    MUL_MAT_EXPERTS of Q4_K beside dense products with the same number of rows for each matrix
one        one token over a stack of experts, beside reading the bytes of the matrices that the token uses
attention  FLASH_ATTN_EXT beside the fused chain of products and a softmax
keys       one token over a cache of 32,768 positions: Q8_0 and Q4_0 beside F16
recurrent  GATED_DELTA_NET and SSM_SCAN beside the arithmetic of one pass at the peak rate of multiply-adds
resize     INTERPOLATE beside a copy of the same number of bytes
pad        PAD on all sides, circular and by reflection, and ROLL, beside a copy of the same number of bytes

The sides of a pair run alternately. Figures are processor time of all threads, so they count on a busy machine, too.
Memory-bound figures still depend on what other processes read.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ggml_backend as gb
from ggml_backend.profile._limits import measured_rate
from timing import PROCESS, in_turns, median, per_call, ratio

AT_LEAST = 0.3  # seconds of a figure
Side = Callable[[], float]
Result = dict[str, float | str]
Built = tuple[gb.Tensor, list[tuple[gb.Tensor, np.ndarray]]]  # the result, and the inputs with their values


class Graph:
    """A graph on the CPU, with its inputs set."""

    def __init__(self, backend: gb.Backend, build: Callable[[gb.Context], Built]) -> None:
        self.context = gb.Context()
        self.result, values = build(self.context)
        self.graph = self.context.graph(self.result)
        self.scheduler = gb.Scheduler([backend])
        self.scheduler.allocate(self.graph)
        for tensor, value in values:
            tensor.set(value)

    def seconds(self) -> float:
        return per_call(lambda: self.scheduler.compute(self.graph), AT_LEAST, PROCESS)


def noise(*shape: int) -> np.ndarray:
    """Normal numbers as float32."""
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def blocks_of(shape: tuple[int, ...], dtype: gb.dtypes.DType) -> np.ndarray:
    """Quantized random numbers. A few rows repeat."""
    some = noise(64, shape[-1])
    blocks = np.asarray(gb.quantize(some, dtype))
    rows = int(np.prod(shape[:-1]))
    return np.resize(blocks, (rows, blocks.shape[1])).reshape(*shape[:-1], blocks.shape[1])


def compare(name: str, sides: dict[str, Side], rounds: int) -> Result:
    """The median seconds of two sides, and the median of the ratios second / first. Above 1, the first is faster."""
    found = in_turns(sides, rounds)
    first, second = found
    result: Result = {"case": name, first: median(found[first]), second: median(found[second])}
    result["ratio"] = ratio(found[second], found[first])
    print(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else str(v) for k, v in result.items()), flush=True)
    return result


# ------------------------------------------------------------------------------------------------------------- experts

EXPERTS, USED, M, K = 128, 8, 768, 2048  # Qwen3-30B-A3B


def of_experts(backend: gb.Backend, weights: np.ndarray, dtype: gb.dtypes.DType, ids: np.ndarray) -> Graph:
    """Each token's row times the matrices that ``ids`` names."""
    tokens = ids.shape[0]

    def build(context: gb.Context) -> Built:
        w, x = context.tensor((EXPERTS, M, K), dtype), context.tensor((tokens, 1, K))
        at = context.tensor(ids.shape, "int32")
        return gb.ops.mul_mat_experts(w, x, at), [(w, weights), (x, noise(tokens, 1, K)), (at, ids)]

    return Graph(backend, build)


def of_product(backend: gb.Backend, weights: np.ndarray, dtype: gb.dtypes.DType, rows: int) -> Graph:
    """Each matrix times this number of rows."""

    def build(context: gb.Context) -> Built:
        n, m, _ = weights.shape
        w, x = context.tensor((n, m, K), dtype), context.tensor((n, rows, K))
        return gb.ops.mul_mat(w, x), [(w, weights), (x, noise(n, rows, K))]

    return Graph(backend, build)


def experts(backend: gb.Backend, rounds: int) -> list[Result]:
    """512 tokens give 32 rows for each matrix. The dense side has 128 products of 32 rows."""
    tokens, dtype = 512, gb.dtypes.q4_k
    weights = blocks_of((EXPERTS, M, K), dtype)
    ids = np.argsort(np.random.default_rng(1).random((tokens, EXPERTS)), axis=1)[:, :USED].astype(np.int32)
    sides = {
        "experts": of_experts(backend, weights, dtype, ids).seconds,
        "dense": of_product(backend, weights, dtype, tokens * USED // EXPERTS).seconds,
    }
    return [compare("q4_k, 128 experts, 8 used, 512 tokens", sides, rounds)]


def one(backend: gb.Backend, rounds: int) -> list[Result]:
    """One token uses 8 of 128 experts, others in each run. The other side reads as many bytes of the stack's memory."""
    results = []
    sets = np.random.default_rng(2).permutation(EXPERTS).astype(np.int32).reshape(-1, 1, USED)
    for dtype in (gb.dtypes.q4_k, gb.dtypes.q8_0):
        weights = blocks_of((EXPERTS, M, K), dtype)
        run = of_experts(backend, weights, dtype, sets[0])
        at, turn = run.graph.leafs[-1], itertools.cycle(sets)

        def next_token(run: Graph = run, at: gb.Tensor = at, turn: itertools.cycle[np.ndarray] = turn) -> None:
            at.set(next(turn))
            run.scheduler.compute(run.graph)

        used = USED * M * K / dtype.block_size * dtype.itemsize
        sides = {
            "experts": lambda next_token=next_token: per_call(next_token, AT_LEAST, PROCESS),
            "read": at_peak(backend, "read", used, weights.nbytes),
        }
        results.append(compare(f"{dtype.name}, 1 token, 8 of 128 experts", sides, rounds))
    return results


# ----------------------------------------------------------------------------------------------------------- attention


def of_operator(backend: gb.Backend, q: np.ndarray, k: np.ndarray, v: np.ndarray, hidden: np.ndarray) -> Graph:
    """Attention as the operator FLASH_ATTN_EXT."""

    def build(context: gb.Context) -> Built:
        tensors = [context.constant(x) for x in (q[None], k[None], v[None], hidden.astype(np.float16))]
        return gb.ops.flash_attn_ext(*tensors), []

    return Graph(backend, build)


def of_chain(backend: gb.Backend, q: np.ndarray, k: np.ndarray, v: np.ndarray, hidden: np.ndarray) -> Graph:
    """Attention as products and a softmax, which the CPU fuses."""

    def build(context: gb.Context) -> Built:
        turned = np.ascontiguousarray(v.swapaxes(1, 2))
        q_, k_, v_, mask = (context.constant(x) for x in (q, k, turned, hidden))
        shares = gb.ops.soft_max(gb.ops.mul_mat(k_, q_), mask, scale=q.shape[-1] ** -0.5)
        return gb.ops.mul_mat(v_, shares), []

    return Graph(backend, build)


def attention(backend: gb.Backend, rounds: int) -> list[Result]:
    """The operator beside the chain, with float16 keys and values and a causal mask."""
    results = []
    for heads, tokens, keys, size in ((16, 512, 512, 64), (8, 256, 2048, 128), (16, 1, 4096, 128), (32, 32, 1024, 64)):
        k, v = (noise(heads, keys, size).astype(np.float16) for _ in range(2))
        hidden = np.triu(np.full((tokens, keys), -np.inf, np.float32), keys - tokens + 1)
        given = (noise(heads, tokens, size), k, v, hidden)
        sides = {"operator": of_operator(backend, *given).seconds, "chain": of_chain(backend, *given).seconds}
        results.append(compare(f"{heads} heads, {tokens} queries, {keys} keys of {size}", sides, rounds))
    return results


def of_cache(backend: gb.Backend, heads: int, shared: int, dtype: gb.dtypes.DType) -> Graph:
    """One token over 32,768 positions, with keys and values of this format."""
    n, size = 32768, 128
    cache = (
        blocks_of((1, shared, n, size), dtype) if dtype.is_quantized else noise(1, shared, n, size).astype(np.float16)
    )

    def build(context: gb.Context) -> Built:
        q = context.tensor((1, heads, 1, size))
        k, v = (context.tensor((1, shared, n, size), dtype) for _ in range(2))
        return gb.ops.flash_attn_ext(q, k, v), [(q, noise(1, heads, 1, size)), (k, cache), (v, cache)]

    return Graph(backend, build)


def keys(backend: gb.Backend, rounds: int) -> list[Result]:
    """Caches of each format beside F16. A head of keys serves one or four heads."""
    results = []
    for heads, shared in ((8, 8), (32, 8)):
        half = of_cache(backend, heads, shared, gb.float16)
        for dtype in (gb.dtypes.q8_0, gb.dtypes.q4_0):
            sides = {dtype.name: of_cache(backend, heads, shared, dtype).seconds, "float16": half.seconds}
            results.append(compare(f"{dtype.name}, {heads} heads on {shared}, 32768 positions", sides, rounds))
    return results


# --------------------------------------------------------------------------------------------- recurrent layers, images


def at_peak(backend: gb.Backend, kind: str, amount: float, size: int = 0) -> Side:
    """Seconds of ``amount`` operations or bytes at the limit of the backend's kernels, measured each time."""
    level = backend.level
    return lambda: amount / max(measured_rate(kind, level, max(size, 4096), 1, 0.02, True) for _ in range(5))


def of_delta(backend: gb.Backend, tokens: int, heads: int, size: int, gates: int) -> Graph:
    def build(context: gb.Context) -> Built:
        q, k, v = (context.tensor((1, tokens, heads, size)) for _ in range(3))
        g, beta = context.tensor((1, tokens, heads, gates)), context.tensor((1, tokens, heads, 1))
        state = context.tensor((1, heads, size, size))
        y, _ = gb.ops.gated_delta_net(q, k, v, g, beta, state)
        values = [(t, noise(*t.shape) * size**-0.5) for t in (q, k, v, state)]
        return y, [*values, (g, -np.abs(noise(*g.shape))), (beta, np.abs(noise(*beta.shape)) / 4)]

    return Graph(backend, build)


def of_scan(backend: gb.Backend, tokens: int, heads: int, width: int, size: int, factors: int) -> Graph:
    def build(context: gb.Context) -> Built:
        s, x = context.tensor((1, heads, width, size)), context.tensor((1, tokens, heads, width))
        dt, a = context.tensor((1, tokens, heads)), context.tensor((heads, factors))
        b, c = (context.tensor((1, tokens, 1, size)) for _ in range(2))
        ids = context.tensor((1,), "int32")
        y, _ = gb.ops.ssm_scan(s, x, dt, a, b, c, ids)
        values = [(t, noise(*t.shape)) for t in (s, x, dt, b, c)]
        return y, [*values, (a, -np.abs(noise(*a.shape))), (ids, np.zeros(1, np.int32))]

    return Graph(backend, build)


def of_exp(backend: gb.Backend) -> Side:
    """Seconds of EXP per element, with rows in the second-level cache."""
    n = 1 << 17

    def build(context: gb.Context) -> Built:
        x = context.tensor((n,))
        return gb.ops.exp(x), [(x, noise(n))]

    graph = Graph(backend, build)
    return lambda: graph.seconds() / n


def recurrent(backend: gb.Backend, rounds: int) -> list[Result]:
    """512 tokens. Per element of a state and token, the delta rule takes 7 operations, the scan takes 5. The scan of
    Mamba 1 also takes an exponential, at the rate of EXP."""
    results = []
    for heads, size, gates in ((16, 128, 1), (16, 128, 128)):
        sides = {
            "operator": of_delta(backend, 512, heads, size, gates).seconds,
            "limit": at_peak(backend, "f32", 7.0 * 512 * heads * size * size),
        }
        results.append(compare(f"gated_delta_net, {heads} heads of {size}, {gates} gates", sides, rounds))
    exp = of_exp(backend)
    for heads, width, size, factors in ((32, 64, 128, 1), (1536, 1, 16, 16)):
        elements = 512 * heads * width * size
        sums = at_peak(backend, "f32", 5.0 * elements)
        sides = {
            "operator": of_scan(backend, 512, heads, width, size, factors).seconds,
            "limit": lambda n=elements * (factors > 1), sums=sums: sums() + (n and n * exp()),
        }
        results.append(compare(f"ssm_scan, {heads} heads of {width} x {size}, {factors} decays", sides, rounds))
    return results


def resize(backend: gb.Backend, rounds: int) -> list[Result]:
    """Resizes three planes, which are larger than the second-level cache."""
    results = []
    for mode, antialias, before, after in (
        ("nearest", False, 512, 1024),
        ("bilinear", False, 512, 1024),
        ("bilinear", False, 640, 1000),
        ("bicubic", False, 512, 1024),
        ("bilinear", True, 1024, 512),
        ("nearest", False, 1024, 2048),
        ("bilinear", False, 1024, 2048),
        ("bicubic", False, 1024, 2048),
    ):

        def build(
            context: gb.Context, mode: str = mode, antialias: bool = antialias, before: int = before, after: int = after
        ) -> Built:
            x = context.tensor((3, before, before))
            return gb.ops.interpolate(x, after, mode, antialias=antialias), [(x, noise(3, before, before))]

        size = 3 * 4 * (before**2 + after**2)
        sides = {"operator": Graph(backend, build).seconds, "copy": at_peak(backend, "copy", size, size)}
        name = f"{mode}{', antialias' if antialias else ''}, {before}² to {after}²"
        results.append(compare(name, sides, rounds))
    return results


def pad(backend: gb.Backend, rounds: int) -> list[Result]:
    """Pads three planes of 1000 x 1000 by 12 on each side, and pads and rolls planes of 2048 x 2048."""
    results = []
    cases: dict[str, tuple[int, Callable[[gb.Tensor], gb.Tensor]]] = {
        "pad, 1000² by 12": (1000, lambda x: gb.ops.pad(x, ((0, 0), (12, 12), (12, 12)))),
        "circular pad, 1000² by 12": (1000, lambda x: gb.ops.pad(x, ((0, 0), (12, 12), (12, 12)), mode="wrap")),
        "reflected, 3000 rows of 1000 by 12": (1000, lambda x: gb.ops.pad(x, ((12, 12),), mode="reflect")),
        "roll, 1000²": (1000, lambda x: gb.ops.roll(x, (100, 7), (1, 2))),
        "pad, 2048² by 12": (2048, lambda x: gb.ops.pad(x, ((0, 0), (12, 12), (12, 12)))),
        "roll, 2048²": (2048, lambda x: gb.ops.roll(x, (100, 7), (1, 2))),
    }
    for name, (n, call) in cases.items():

        def build(context: gb.Context, n: int = n, call: Callable[[gb.Tensor], gb.Tensor] = call) -> Built:
            x = context.tensor((3, n, n))
            return call(x), [(x, noise(3, n, n))]

        graph = Graph(backend, build)
        size = 4 * (3 * n * n + int(np.prod(graph.result.shape)))
        sides = {"operator": graph.seconds, "copy": at_peak(backend, "copy", size, size)}
        results.append(compare(name, sides, rounds))
    return results


CASES = {
    "experts": experts, "one": one, "attention": attention, "keys": keys, "recurrent": recurrent, "resize": resize,
    "pad": pad,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    backend = gb.Backend("CPU", n_threads=args.threads)
    found = {name: CASES[name](backend, args.rounds) for name in args.cases or CASES}
    if args.json:
        args.json.write_text(json.dumps({"benchmark": "today", "threads": args.threads, "results": found}, indent=1))


if __name__ == "__main__":
    main()
