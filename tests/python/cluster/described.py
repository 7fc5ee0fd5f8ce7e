"""Descriptions of clusters and invented models of layers for tests."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ggml_backend as gb
from ggml_backend.cluster import Description
from ggml_backend.cluster.planning.layers import LayerModel, Node, Placement, Stage, Unit
from ggml_backend.models import DECODERS
from ggml_backend.models._sizes import Rope, Sizes

LINK = {"between": ["*", "*"], "latency": "5 us", "bandwidth": "25 GB/s"}


def table(n: int = 2, **changes: Any) -> dict[str, Any]:
    """The tables of a description: hosts with one server each and equal links."""
    return {
        "devices": {"server": {"memory": "64 GiB", "bandwidth": "200 GB/s", "flops": "2 TFLOP/s"}},
        "hosts": [{"name": "a", "count": n, "devices": ["server"]}],
        "links": [dict(LINK)],
        **changes,
    }


def description(folder: Path, data: dict[str, Any]) -> Description:
    path = folder / "cluster.json"
    path.write_text(json.dumps(data))
    return Description.read(path)


def pipeline(folder: Path, stages: list[float], latency: float, issue: float = 0.0) -> tuple[Any, ...]:
    """A model, a placement and a cluster with one stage on each host. Rank 0 has no stage. stages:
    seconds of each"""
    devices = {
        f"d{k}": {"memory": "1 GiB", "bandwidth": f"{1 / s!r} B/s", "flops": "1 PFLOP/s"} for k, s in enumerate(stages)
    }
    devices["none"] = {"memory": "1 B", "bandwidth": "1 B/s", "flops": "1 FLOP/s"}
    hosts = [{"name": f"h{k}", "devices": [f"d{k}"]} for k in range(len(stages))]
    hosts.append({"name": "home", "devices": ["none"]})
    link = {"between": ["*", "*"], "latency": f"{latency!r} s", "bandwidth": "1 TB/s"}
    data = {"rank0": "home", "issue": f"{issue!r} s", "devices": devices, "hosts": hosts, "links": [link]}
    units = tuple(Unit(f"u{k}", (Node("float32", 1.0, 0.0),), 0, 0, 16384) for k in range(len(stages)))
    model = LayerModel("model", units, 1, 0, 16384, 16384)
    return model, Placement(tuple(Stage(k, k, k + 1) for k in range(len(stages))), 1), description(folder, data)


def every_placement(n_units: int, n_devices: int) -> Iterator[tuple[Stage, ...]]:
    """All placements of units on devices."""
    for n in range(1, min(n_units, n_devices) + 1):
        for cuts in itertools.combinations(range(1, n_units), n - 1):
            borders = (0, *cuts, n_units)
            for devices in itertools.permutations(range(n_devices), n):
                yield tuple(Stage(d, a, b) for d, a, b in zip(devices, borders, borders[1:], strict=False))


def small_sizes(layers: int, context: int) -> Sizes:
    """Sizes of a small Llama."""
    return Sizes(
        vocab=96, embd=64, layers=layers, heads=4, kv_heads=2, head_k=16, head_v=16, ff=128, context=context, eps=1e-5,
        rope=Rope(16, 1e4), scale=0.25, softcap=0.0, final_softcap=0.0, window=0, experts=None,
    )  # fmt: skip


def write_llama(path: Path, layers: int = 4, context: int = 64) -> Sizes:
    """A small model file whose weights are zero."""
    s = small_sizes(layers, context)
    keys = {
        "embedding_length": s.embd, "block_count": layers, "feed_forward_length": s.ff, "context_length": context,
        "attention.head_count": s.heads, "attention.head_count_kv": s.kv_heads,
        "attention.layer_norm_rms_epsilon": s.eps,
    }  # fmt: skip
    with gb.gguf.Writer(path) as writer:
        writer.add("general.architecture", "llama")
        for key, value in keys.items():
            writer.add(f"llama.{key}", value)
        for name, shape in s.shapes(DECODERS["llama"], {"output.weight": np.empty(0)}):
            writer.add_tensor(name, np.zeros(shape, np.float32))
    return s
