"""Makes instances for the memory planner from a seed. A seed gives the same instance on any machine.

    python benchmarks/plan_instances.py --list
    python benchmarks/plan_instances.py NAME [--out FILE.csv]

Names are FAMILY-N or FAMILY-N-SEED, where N is approximately the number of buffers:

    transformer  a training step of a decoder: activations alive until the backward pass, short temporaries, gradients
                 of weights alive until the optimizer, at the end one short temporary per weight
    convnet      a training step of a residual network: activations that shrink from stage to stage, workspaces of
                 convolutions, weights that grow
    compiler     buffers of a compiler: nested blocks, sizes with a heavy tail, mostly short lifetimes
    sparse       lifetimes of at most 1 % of the time, uniform sizes
    medium       lifetimes of at most 10 % of the time, log-uniform sizes
    dense        lifetimes of any length, uniform sizes
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Instance = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class Recorder:
    """Records buffers by birth. ``t`` is the position in the order of execution."""

    def __init__(self) -> None:
        self.t = 0
        self.spans: list[list[int]] = []

    def new(self, size: int) -> int:
        """Adds a result of the next operation. ``use`` extends its lifetime."""
        self.spans.append([self.t, self.t + 1, size])
        return len(self.spans) - 1

    def op(self, size: int, *sources: int) -> int:
        """Adds an operation that reads these sources, so they are alive until then. Returns its result."""
        out = self.new(size)
        for s in sources:
            self.use(s)
        self.t += 1
        return out

    def use(self, buffer: int) -> None:
        self.spans[buffer][1] = max(self.spans[buffer][1], self.t + 1)

    def instance(self) -> Instance:
        lower, upper, size = np.array(self.spans, np.int64).T
        return lower, upper, size


def _layer_forward(r: Recorder, x: int, width: int, heads: int, tokens: int) -> tuple[int, dict[str, int]]:
    """A decoder block. ``keep`` has what the backward pass reads, by name."""
    keep = {"x": x}
    keep["norm1"] = r.op(2 * tokens * width, x)
    keep["stat1"] = r.op(8 * tokens, x)
    for part in "qkv":
        raw = r.op(2 * tokens * width, keep["norm1"])
        keep[part] = r.op(2 * tokens * width, raw)
    scores = r.op(2 * heads * tokens * tokens // 8, keep["q"], keep["k"])
    keep["soft"] = r.op(2 * heads * tokens * tokens // 8, scores)
    keep["mask1"] = r.op(heads * tokens * tokens // 64, keep["soft"])
    mixed = r.op(2 * tokens * width, keep["soft"], keep["v"])
    keep["mixed"] = r.op(2 * tokens * width, mixed)
    out = r.op(2 * tokens * width, keep["mixed"])
    keep["mask2"] = r.op(tokens * width // 8, out)
    keep["mid"] = r.op(2 * tokens * width, x, out)
    keep["norm2"] = r.op(2 * tokens * width, keep["mid"])
    keep["stat2"] = r.op(8 * tokens, keep["mid"])
    keep["up"] = r.op(8 * tokens * width, keep["norm2"])
    keep["act"] = r.op(8 * tokens * width, keep["up"])
    down = r.op(2 * tokens * width, keep["act"])
    keep["mask3"] = r.op(tokens * width // 8, down)
    return r.op(2 * tokens * width, keep["mid"], down), keep


def _layer_backward(r: Recorder, g: int, keep: dict[str, int], width: int, heads: int, tokens: int,
                    weights: list[int]) -> int:  # fmt: skip
    g_down = r.op(2 * tokens * width, g, keep["mask3"])
    weights.append(r.op(8 * width * width, g_down, keep["act"]))
    g_act = r.op(8 * tokens * width, g_down)
    g_up = r.op(8 * tokens * width, g_act, keep["up"])
    weights.append(r.op(8 * width * width, g_up, keep["norm2"]))
    g_norm = r.op(2 * tokens * width, g_up)
    weights.append(r.op(4 * width, g_norm, keep["stat2"]))
    g_mid = r.op(2 * tokens * width, g_norm, keep["mid"], keep["stat2"])
    g_sum = r.op(2 * tokens * width, g_mid, g)
    g_out = r.op(2 * tokens * width, g_sum, keep["mask2"])
    weights.append(r.op(2 * width * width, g_out, keep["mixed"]))
    g_mixed = r.op(2 * tokens * width, g_out)
    g_soft = r.op(2 * heads * tokens * tokens // 8, g_mixed, keep["v"], keep["mask1"])
    g_v = r.op(2 * tokens * width, g_mixed, keep["soft"])
    g_scores = r.op(2 * heads * tokens * tokens // 8, g_soft, keep["soft"])
    g_q = r.op(2 * tokens * width, g_scores, keep["k"])
    g_k = r.op(2 * tokens * width, g_scores, keep["q"])
    total = -1
    for part in (g_q, g_k, g_v):
        weights.append(r.op(2 * width * width, part, keep["norm1"]))
        share = r.op(2 * tokens * width, part)
        total = share if total < 0 else r.op(2 * tokens * width, share, total)
    weights.append(r.op(4 * width, total, keep["stat1"]))
    g_x = r.op(2 * tokens * width, total, keep["x"], keep["stat1"])
    return r.op(2 * tokens * width, g_x, g_sum)


def transformer(n: int, seed: int) -> Instance:
    """About 58 buffers per layer. The seed chooses the widths, and whether gradients live until the optimizer."""
    rng = np.random.default_rng([1, n, seed])
    width, heads = [(768, 12), (1024, 16), (2048, 16), (2560, 32)][int(rng.integers(4))]
    tokens = int(rng.choice([512, 1024, 2048]))
    wait = bool(rng.integers(4) > 0)
    r = Recorder()
    x = r.op(2 * tokens * width)
    kept = []
    for _ in range(max(1, n // 58)):
        x, keep = _layer_forward(r, x, width, heads, tokens)
        kept.append(keep)
    logits = r.op(4 * tokens * 32000, x)
    g_logits = r.op(4 * tokens * 32000, logits)
    weights = [r.op(2 * 32000 * width, g_logits, x)]
    g = r.op(2 * tokens * width, g_logits)
    for keep in reversed(kept):
        begin = len(weights)
        g = _layer_backward(r, g, keep, width, heads, tokens, weights)
        if not wait:
            for w in weights[begin:]:
                r.op(r.spans[w][2], w)
    if wait:
        r.op(4, *weights)  # the norm of all gradients
    for w in weights if wait else []:
        moment = r.op(2 * r.spans[w][2], w)
        r.op(r.spans[w][2], moment, w)
    return r.instance()


def _conv(r: Recorder, x: int, pixels: int, channels: int, rng: np.random.Generator) -> tuple[int, list[int]]:
    """A convolution with its workspace, a norm with its statistics, an activation."""
    work = r.op(int(rng.integers(1, 64)) << 16)
    y = r.op(4 * pixels * channels, x, work)
    stats = r.op(8 * channels, y)
    z = r.op(4 * pixels * channels, y, stats)
    out = r.op(4 * pixels * channels, z)
    return out, [x, y, stats, z, out]


def convnet(n: int, seed: int) -> Instance:
    """About 33 buffers per block of two convolutions, in four stages."""
    rng = np.random.default_rng([2, n, seed])
    batch, blocks = int(rng.choice([8, 16, 32])), max(4, n // 33)
    r = Recorder()
    x = r.op(4 * batch * 56 * 56 * 64)
    tape: list[tuple[int, int, list[int]]] = []
    for block in range(blocks):
        stage = 4 * block // blocks
        pixels, channels = batch * (56 >> stage) ** 2, 64 << stage
        start = x
        for _ in range(2):
            x, kept = _conv(r, x, pixels, channels, rng)
            tape.append((pixels, channels, kept))
        x = r.op(4 * pixels * channels, x, start)
    g = r.op(4 * batch * 49 * 512, x)
    weights = []
    for k, (pixels, channels, kept) in enumerate(reversed(tape)):
        skip = g
        g_z = r.op(4 * pixels * channels, g, kept[4])
        weights.append(r.op(8 * channels, g_z, kept[1], kept[2]))
        g_y = r.op(4 * pixels * channels, g_z, kept[1], kept[2])
        work = r.op(int(rng.integers(1, 64)) << 16)
        weights.append(r.op(36 * channels * channels, g_y, kept[0], work))
        work = r.op(int(rng.integers(1, 64)) << 16)
        g = r.op(4 * pixels * channels, g_y, work)
        if k % 2:
            g = r.op(4 * pixels * channels, g, skip)
    for w in weights:
        r.op(r.spans[w][2], w)
    return r.instance()


def compiler(n: int, seed: int) -> Instance:
    """Nested blocks: a buffer lives within the block in which it is born, mostly a small one."""
    rng = np.random.default_rng([3, n, seed])
    depth = rng.geometric(0.35, n)
    width = np.maximum(1, n / 4.0 ** np.maximum(0, np.log(n) / np.log(4) - depth + 1)).astype(np.int64)
    born = np.sort(rng.integers(0, n, n))
    block = np.minimum(born - born % width + width, n + 1)
    lower, upper = born, np.maximum(born + 1, born + ((block - born) * rng.beta(0.7, 1.0, n)).astype(np.int64))
    size = (64 * np.ceil(rng.pareto(0.9, n) + 1)).astype(np.int64)
    shapes = 64 * rng.integers(1, 1 << 12, 40)
    size = np.where(rng.random(n) < 0.6, shapes[rng.integers(0, 40, n)], np.minimum(size, 1 << 24))
    return lower.astype(np.int64), upper, size


def _random(n: int, seed: int, share: float, *, log: bool) -> Instance:
    rng = np.random.default_rng([4, n, seed, int(1000 * share)])
    lower = rng.integers(0, 2 * n, n)
    upper = lower + rng.integers(1, max(2, int(2 * n * share)), n)
    size = np.exp(rng.uniform(np.log(64), np.log(1 << 22), n)).astype(np.int64) if log else rng.integers(1, 1 << 20, n)
    return lower, upper, size


def sparse(n: int, seed: int) -> Instance:
    return _random(n, seed, 0.01, log=False)


def medium(n: int, seed: int) -> Instance:
    return _random(n, seed, 0.1, log=True)


def dense(n: int, seed: int) -> Instance:
    return _random(n, seed, 1.0, log=False)


FAMILIES: dict[str, Callable[[int, int], Instance]] = {
    f.__name__: f for f in (transformer, convnet, compiler, sparse, medium, dense)
}


def make(name: str) -> Instance:
    """Makes the instance with this name, FAMILY-N or FAMILY-N-SEED."""
    family, n, *seed = name.split("-")
    return FAMILIES[family](int(n), int(seed[0]) if seed else 0)


def write(instance: Instance, path: Path) -> None:
    rows = (f"{i},{lo},{up},{size}\n" for i, (lo, up, size) in enumerate(zip(*instance, strict=True)))
    path.write_text("id,lower,upper,size\n" + "".join(rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true", help="the families")
    options = parser.parse_args()
    if options.list or not options.name:
        print("\n".join(FAMILIES))
        return 0
    instance = make(options.name)
    if options.out:
        write(instance, options.out)
    print(f"{options.name}: {len(instance[0])} buffers, {int(instance[2].sum())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
