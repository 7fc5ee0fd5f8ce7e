"""Predicts and simulates the tokens per second of a large Llama on 2 to 64 described hosts, with three kinds of links.

    python benchmarks/bench_cluster_scaling.py [--json FILE] [--ranks N ...] [--type q4_k] [--context N] [--seed N]

The links are those of a data centre, of a campus and of the internet. The model has the shapes of Llama 2 70B, but 70
layers. Nothing is loaded or computed. A host reads weights at 200 GB/s, computes 2 TFLOP/s, takes 2 us for each node,
and has 64 GiB. Rank 0 is on the first host and takes 10 us to start a stage.

The tables show one sequence, as many sequences as hosts, and 64 sequences, the maximum of a scheduler. Each sequence
has one pending step. Layers are spread evenly over all hosts. The last table shows the choice of the planner if it may
leave hosts out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import ggml_backend as gb
from ggml_backend.cli.examples.layers import Passes, passes_of
from ggml_backend.cli.examples.models import DecoderFile
from ggml_backend.cluster import Description
from ggml_backend.cluster.planning.layers import Placement, Stage, place, predict
from ggml_backend.cluster.planning.simulate import Simulated, simulate
from ggml_backend.models import DECODERS
from ggml_backend.models._sizes import Rope, Sizes

LINKS: dict[str, dict[str, Any]] = {
    "data centre": {"latency": "5 us", "bandwidth": "25 GB/s"},
    "campus": {"latency": "200 us", "bandwidth": "1 GB/s"},
    "internet": {"latency": "40 ms", "bandwidth": "20 MB/s", "loss": 0.001, "retransmit": "280 ms"},
}
"""Latencies of one direction. A lost packet is sent again after a round trip of 80 ms and a timer of 200 ms."""
HOST = {"memory": "64 GiB", "bandwidth": "200 GB/s", "flops": "2 TFLOP/s", "launch": "2 us"}
STEPS = 12_000  # simulated steps in each case, of all sequences together
MOST = 64


def cluster_of(n: int, link: dict[str, Any]) -> Description:
    data = {
        "issue": "10 us", "devices": {"host": HOST}, "hosts": [{"name": "h", "count": n, "devices": ["host"]}],
        "links": [{"between": ["*", "*"], **link}],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"
        path.write_text(json.dumps(data))
        return Description.read(path)


def llama(layers: int, dtype: str, context: int) -> Passes:
    s = Sizes(
        vocab=32000, embd=8192, layers=layers, heads=64, kv_heads=8, head_k=128, head_v=128, ff=28672, context=context,
        eps=1e-5, rope=Rope(128, 1e4), scale=128**-0.5, softcap=0.0, final_softcap=0.0, window=0, experts=None,
    )  # fmt: skip
    file = DecoderFile.of_sizes(DECODERS["llama"], s, gb.dtypes.dtypes[dtype], min(512, context))
    return passes_of(file, f"a Llama of {layers} layers, {dtype}")


def evenly(passes: Passes, n: int, sequences: int) -> Placement:
    """Spreads the layers evenly. The embeddings go to the host of the first layers, the head to that of the last."""
    layers = passes.file.s.layers
    n = min(n, layers)
    borders = [0, *(1 + k * layers // n for k in range(1, n)), layers + 2]
    return Placement(tuple(Stage(k, a, b) for k, (a, b) in enumerate(itertools.pairwise(borders))), sequences)


def case(passes: Passes, n: int, link: str, seed: int) -> list[dict[str, Any]]:
    cluster = cluster_of(n, LINKS[link])
    rows = []
    for sequences in sorted({1, n, MOST}):
        placement = evenly(passes, n, sequences)
        predicted = predict(passes.step, placement, cluster)
        found: Simulated = simulate(
            passes.step, placement, cluster, sequences, passes=max(20, STEPS // max(n, 8) // sequences), seed=seed
        )
        rows.append({
            "link": link, "ranks": n, "sequences": sequences, "predicted": predicted.rate(sequences),
            "simulated": found.rate, "once_s": predicted.once, "links_s": sum(predicted.hops),
            "enough": predicted.enough, "limit": predicted.limit(sequences), "waits": found.waits,
        })  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]], link: str) -> str:
    lines = [
        f"| {link}: ranks | a step takes, ms | on links, ms | one sequence | as many as ranks | {MOST} sequences |"
        " enough sequences |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    mine = [r for r in rows if r["link"] == link]
    for n in sorted({r["ranks"] for r in mine}):
        by = {r["sequences"]: r for r in mine if r["ranks"] == n}
        cells = [f"{by[s]['predicted']:.3g} / {by[s]['simulated']:.3g}" for s in (1, n, MOST)]
        one = by[1]
        lines.append(
            f"| {n} | {one['once_s'] * 1e3:.1f} | {one['links_s'] * 1e3:.1f} | {' | '.join(cells)} | {one['enough']} |"
        )
    return "\n".join(lines)


def chosen(passes: Passes) -> tuple[list[dict[str, Any]], str]:
    """The number of hosts that the planner uses of 64, for each number of sequences."""
    rows = []
    for link in LINKS:
        cluster = cluster_of(64, LINKS[link])
        for sequences in (1, 8, MOST):
            placement = place(passes.step, cluster, sequences)
            predicted = predict(passes.step, placement, cluster)
            rows.append({"link": link, "sequences": sequences, "used": len(placement.stages),
                         "predicted": predicted.rate(sequences), "limit": predicted.limit(sequences)})  # fmt: skip
    lines = ["| link | sequences | hosts used | tokens/s | limit |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {r['link']} | {r['sequences']} | {r['used']} | {r['predicted']:.3g} | {r['limit']} |" for r in rows]
    return rows, "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 35, 64])
    parser.add_argument("--layers", type=int, default=70)
    parser.add_argument("--type", default="q4_k", help="type of the weights (q4_k)")
    parser.add_argument("--context", type=int, default=4096, help="positions of each cache, all of them filled (4096)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    passes = llama(options.layers, options.type, options.context)
    weights = sum(u.weights for u in passes.step.units)
    cache = sum(u.cache for u in passes.step.units)
    print(
        f"{passes.step.title}: weights {weights / 2**30:.1f} GiB, a cache {cache / 2**30:.2f} GiB for each sequence\n"
    )
    rows = []
    for link in LINKS:
        for n in options.ranks:
            rows += case(passes, n, link, options.seed)
        print(table(rows, link) + "\n", flush=True)
    planned, text = chosen(passes)
    print(text)
    if options.json:
        options.json.write_text(json.dumps({"rates": rows, "planned": planned}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
