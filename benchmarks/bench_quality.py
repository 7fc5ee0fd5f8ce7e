"""Measures the errors of quantized formats: round trips, and the answers of the embedding model. Prints Markdown.

    python benchmarks/bench_quality.py [--sentences N] [--types NAME ...]
    python benchmarks/bench_quality.py --small [--types NAME ...]
    python benchmarks/bench_quality.py --ones [--types NAME ...]

The error of a round trip is rms(quantized - x) / rms(x), on normal numbers and on the embedding model's matrices,
without and with importances of 1/16 to 16. With importances the error is weighted, too. Types marked with * need
importances, so their figures "without" have importances of one. Embeddings have the mean and the lowest cosine to those
of the float32 model.

--small: measure round trips of numbers whose scales half precision cannot hold well. A cell has our error, and that of
    the format's algorithm (the gguf package; for K formats tests/python/support/kquant_reference.py). The numbers are
    normal, heavy-tailed (Student's t, 2 degrees of freedom) or the model's matrices, with equal root mean squares.
--ones: compare quantizing without importances with importances of one: the error, and sum(x y) / sum(x x). The latter
    is 1 if products with the quantized numbers are neither too small nor too large.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import gguf
import numpy as np

import ggml_backend as gb
from examples.embed.model import Embedder, model_dir
from examples.embed.quantized import cached_file, is_matrix

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "python"))
import kquant_reference

TYPES = [
    "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "nvfp4", "mxfp4", "q3_k",
    "iq3_s", "iq3_xxs", "q2_k", "iq2_s", "iq2_xs", "iq2_xxs", "tq2_0", "tq1_0", "iq1_m", "iq1_s",
]  # fmt: skip
SMALL = [0.02, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7]
SMALL_TYPES = ["q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "q3_k", "q2_k"]
NEED_WEIGHTS = {"iq2_xs", "iq2_xxs", "iq1_s"}
SUBJECTS = [
    "the cat",
    "a bank",
    "our old car",
    "the river",
    "a new phone",
    "the orchestra",
    "my neighbour",
    "the satellite",
    "a doctor",
    "the recipe",
]
VERBS = ["crossed", "repaired", "ignored", "praised", "measured", "sold", "painted", "lost", "studied", "forgot"]
OBJECTS = [
    "the bridge at dawn",
    "three broken clocks",
    "every rule of the game",
    "a letter from Lisbon",
    "the last slice of bread",
]


def sentences(count: int) -> list[str]:
    texts = [f"{s} {v} {o}" for s in SUBJECTS for v in VERBS for o in OBJECTS]
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))[:count]]


def model_rows(row: int) -> np.ndarray:
    """The matrices of the model as rows of ``row`` elements."""
    data = np.memmap(model_dir() / "model.safetensors", np.uint8, "r")
    size = int.from_bytes(data[:8].tobytes(), "little")
    parts = []
    for name, info in json.loads(data[8 : 8 + size].tobytes()).items():
        if name != "__metadata__" and info["dtype"] == "F32" and is_matrix(name, tuple(info["shape"])):
            begin, end = (8 + size + o for o in info["data_offsets"])
            parts.append(np.frombuffer(data[begin:end].tobytes(), np.float32)[: 256 * 2000])
    flat = np.concatenate(parts)
    return flat[: flat.size // row * row].reshape(-1, row)


def error(x: np.ndarray, dtype: str, weights: np.ndarray | None, use: bool) -> float:
    ones = np.ones(x.shape[1], np.float32) if dtype in NEED_WEIGHTS else None
    y = gb.dequantize(gb.quantize(x, dtype, importance=weights if use else ones), dtype)
    w = np.ones(x.shape[1]) if weights is None else weights
    return float(np.sqrt((w * (y - x).astype(np.float64) ** 2).sum() / (w * x.astype(np.float64) ** 2).sum()))


def algorithm(x: np.ndarray, name: str) -> np.ndarray:
    if name not in kquant_reference.QUANTIZE:
        return np.asarray(gguf.quants.quantize(x, gguf.GGMLQuantizationType(gb.dtypes.as_dtype(name).id)))
    blocks = kquant_reference.QUANTIZE[name](x.reshape(-1, 256))
    return blocks.reshape(len(x), -1)


def sources(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "normal": rng.standard_normal((rows, 1024)),
        "heavy tails": rng.standard_t(2, (rows, 1024)),
        "model": model_rows(1024)[:rows],
    }


def ones(names: list[str]) -> None:
    print("| type | values | error | sum(x y) / sum(x x) |")
    print("| --- " * 4 + "|")
    for name in names:
        for label, values in sources(1000).items():
            x = values.astype(np.float32)
            exact = x.astype(np.float64)
            found = [gb.dequantize(gb.quantize(x, name, importance=w), name) for w in (None, np.ones(1024, np.float32))]
            errors = " / ".join(f"{np.sqrt(((y - exact) ** 2).sum() / (exact**2).sum()):.4f}" for y in found)
            slopes = " / ".join(f"{(y * exact).sum() / (exact**2).sum():.4f}" for y in found)
            print(f"| {name} | {label} | {errors} | {slopes} |", flush=True)


def small(names: list[str]) -> None:
    print("| type | values | " + " | ".join(f"{rms:g}" for rms in SMALL) + " | other blocks at 0.02 |")
    print("| --- " * (len(SMALL) + 3) + "|")
    for name in names:
        for label, values in sources(64).items():
            cells, other = [], 0.0
            for rms in SMALL:
                x = (values * (rms / np.sqrt((values.astype(np.float64) ** 2).mean()))).astype(np.float32)
                ours, theirs = gb.quantize(x, name), algorithm(x, name)
                norm = float(np.sqrt((x.astype(np.float64) ** 2).sum()))
                errors = [
                    float(np.sqrt(((gb.dequantize(b, name) - x).astype(np.float64) ** 2).sum())) / norm
                    for b in (ours, theirs)
                ]
                cells.append(f"{errors[0]:.4f} / {errors[1]:.4f}")
                if rms == SMALL[0]:
                    size = gb.dtypes.as_dtype(name).itemsize
                    other = float((ours.reshape(-1, size) != theirs.reshape(-1, size)).any(axis=1).mean())
            print(f"| {name} | {label} | {' | '.join(cells)} | {100 * other:.2f} % |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--types", nargs="*", default=TYPES)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--ones", action="store_true")
    args = parser.parse_args()
    if args.small:
        small([n for n in args.types if n in SMALL_TYPES])
        return
    if args.ones:
        ones([n for n in args.types if n not in NEED_WEIGHTS])
        return

    rng = np.random.default_rng(0)
    normal, real = rng.standard_normal((1000, 1024), dtype=np.float32), model_rows(1024)
    weights = np.exp2(rng.uniform(-4, 4, 1024)).astype(np.float32)
    print("| type | bits a weight | normal | model | model, weighted error | the same with importance |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in args.types:
        t = gb.dtypes.as_dtype(name)
        figures = [
            error(normal, name, None, False),
            error(real, name, None, False),
            error(real, name, weights, False),
            error(real, name, weights, True),
        ]
        cells = [f"{f:.4f}" for f in figures]
        print(
            f"| {t.name}{'*' if name in NEED_WEIGHTS else ''} | {8 * t.itemsize / t.block_size:.2f} |"
            f" {' | '.join(cells)} |",
            flush=True,
        )

    texts = sentences(args.sentences)
    exact = Embedder().embed(texts)
    print("\n| asked for | rows of 384 get | file, MiB | cosine, mean | lowest |")
    print("| --- | --- | --- | --- | --- |")
    for name in args.types:
        fallback = gb.gguf.fallback_dtype(name, 384)
        if name in NEED_WEIGHTS:
            print(f"| {name} | needs an importance matrix | | | |")
            continue
        path = cached_file(model_dir() / "model.safetensors", name, report=lambda line: None)
        cosine = (Embedder(dtype=name).embed(texts) * exact).sum(axis=1)
        print(
            f"| {name} | {fallback.name} | {path.stat().st_size / 2**20:.1f} | {cosine.mean():.5f} |"
            f" {cosine.min():.5f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
