"""Command line of the embedding example: a similarity table, speed and memory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import ggml_backend as gb

from ..command import add_devices, count, plain, run, save_array
from .model import Embedder, FloatArray, model_dir
from .quantized import cached_file

SENTENCES = [
    "The cat sits on the windowsill and watches the birds.",
    "A kitten is looking at sparrows through the window.",
    "The central bank raised interest rates by half a point.",
    "Borrowing money has become more expensive this month.",
    "How do I sort a list of numbers in Python?",
    "Python's sorted() returns a new ordered list.",
]


def similarity_table(texts: list[str], vectors: FloatArray) -> str:
    similarity = vectors @ vectors.T
    width = min(56, max(len(t) for t in texts))
    head = " " * (width + 4) + "".join(f"{i + 1:>7}" for i in range(len(texts)))
    shown = [plain(t.replace("\n", " "))[:width] for t in texts]
    rows = [f"{i + 1:>2}  {t:<{width}}" + "".join(f"{s:7.3f}" for s in similarity[i]) for i, t in enumerate(shown)]
    return "\n".join([head, *rows])


def nearest_list(texts: list[str], vectors: FloatArray, shown: int = 10) -> str:
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -1)
    pairs = np.dstack(np.unravel_index(np.argsort(-np.triu(similarity, 1), axis=None), similarity.shape))[0][:shown]
    return "\n".join(f"{similarity[i, j]:.3f}  {texts[i][:60]!r} ~ {texts[j][:60]!r}" for i, j in pairs)


def mib(n: int) -> str:
    return f"{n / 2**20:.1f} MiB"


def compare_with_f32(texts: list[str], vectors: FloatArray, args: argparse.Namespace) -> str:
    """The size of the quantized weights, and the cosine to the float32 model's vectors of the same texts."""
    source = model_dir() / "model.safetensors"
    exact = Embedder(n_threads=args.threads).embed(texts, args.batch)
    cosine = (vectors * exact).sum(axis=1)
    size, full = cached_file(source, args.type).stat().st_size, source.stat().st_size
    return (
        f"weights {gb.dtypes.as_dtype(args.type).name}: {mib(size)} of {mib(full)} float32; cosine to float32: mean"
        f" {cosine.mean():.5f}, lowest {cosine.min():.5f}"
    )


def read_texts(args: argparse.Namespace) -> list[str]:
    texts = list(args.sentence)
    if args.file:
        texts += [line.strip() for line in Path(args.file).read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    # arguments may have bytes that are no text
    return [t.encode("utf-8", "replace").decode() for t in texts] or SENTENCES


def with_bar(batches: Iterable[range]) -> Iterable[range]:
    try:
        from tqdm import tqdm
    except ImportError:
        yield from batches
        return
    yield from tqdm(batches, unit="batch", disable=not sys.stderr.isatty())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.embed", description="Sentence embeddings with all-MiniLM-L6-v2."
    )
    parser.add_argument("sentence", nargs="*", help="texts to embed (default: a handful of examples)")
    parser.add_argument("--file", help="a text file with one sentence per line")
    add_devices(parser)
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="under mpiexec: layers are spread over the ranks, and several batches are pending at once",
    )
    parser.add_argument("--batch", type=count(), default=32, help="sentences a batch (default: %(default)s)")
    parser.add_argument("--threads", type=count(512), help="CPU threads (default: the usable cores)")
    parser.add_argument(
        "--type",
        default="f32",
        help="type of the weights: f32, f16, bf16, q8_0, q6_k, q4_k, ... (default: %(default)s)",
    )
    parser.add_argument("--out", help="write the vectors to this .npy file")
    args = parser.parse_args()
    if args.out and not Path(args.out).absolute().parent.is_dir():
        parser.error(f"--out {args.out}: there is no such folder")

    if not args.cluster:
        show(args, Embedder(args.devices, n_threads=args.threads, dtype=args.type))
        return
    with gb.cluster.start(n_threads=args.threads) as cluster:
        remote = [b.name for b in cluster.backends()]
        in_flight = 2 * len(remote) if remote else 1
        show(args, Embedder([*remote, "CPU"], args.threads, dtype=args.type, in_flight=in_flight))


def show(args: argparse.Namespace, embedder: Embedder) -> None:
    texts = read_texts(args)
    vectors = embedder.embed(texts, args.batch, with_bar)

    print(similarity_table(texts, vectors) if len(texts) <= 12 else nearest_list(texts, vectors))
    print()
    stats = embedder.stats
    print(f"backends: {', '.join(b.name for b in embedder.backends)}; ggml_backend {gb.__version__}")
    print(
        f"{stats.sentences} sentences, {stats.tokens} tokens in {stats.seconds:.3f} s: "
        f"{stats.sentences / stats.seconds:.1f} sentences/s, {stats.tokens / stats.seconds:.0f} tokens/s"
    )
    saved = 1 - stats.compute_bytes / stats.intermediate_bytes
    print(
        f"compute buffers at their peak: {mib(stats.compute_bytes)}; all intermediates: {mib(stats.intermediate_bytes)}"
        f" ({saved:.0%} saved)"
    )
    splits = embedder.scheduler.splits
    if len(embedder.backends) > 1:
        print(f"splits: {len(splits)}")
        for s in splits:
            names = ", ".join(s.inputs)
            print(
                f"  {s.index}: {s.backend}, {len(s.nodes)} nodes, copied in: {names or 'nothing'}"
                f" ({mib(s.input_nbytes)})"
            )
    if args.type not in ("f32", "float32"):
        print(compare_with_f32(texts, vectors, args))
    if args.out:
        save_array(Path(args.out), vectors)
        print(f"wrote {args.out}: {vectors.shape} float32")


if __name__ == "__main__":
    run(main, "python -m examples.embed")
