"""Compares packed weights in PyTorch with kept graphs of this package, and with PyTorch in float32 and dynamic int8.

    python benchmarks/bench_torch.py errors
    python benchmarks/bench_torch.py products [--threads N] [--rounds N]
    python benchmarks/bench_torch.py model FILE.gguf [--threads N] [--rounds N] [--tokens N]

errors: the error of a product in each format. products: the speed of single layers. model: the speed of a causal
language model. The sides run in turns, in one process. Times are processor times of the process, which other processes
hardly change. The program prints medians over the rounds, and medians of the ratios of each round. ``--json FILE``
stores the rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import ggml_backend as gb
import ggml_backend.torch as gbt
from ggml_backend.models import TextModel
from table import print_table
from timing import PROCESS, in_turns, median, per_call, ratio

FORMATS = ["bfloat16", "float16", "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl", "iq4_xs",
           "mxfp4", "q3_k", "q2_k", "tq2_0", "tq1_0"]  # fmt: skip
LAYERS = [(2048, 2048), (8192, 2048), (2048, 8192)]
ROWS = (1, 8, 128)

Sides = Mapping[str, Callable[[], float]]


def errors() -> tuple[list[str], list[list[Any]]]:
    """RMS of the error of ``linear``, relative to the RMS of the exact product of the same float32 weights."""
    torch.manual_seed(0)
    w, x = torch.randn(512, 2048), torch.randn(64, 2048)
    exact = x.double() @ w.double().T

    def error(y: torch.Tensor) -> float:
        return float((y.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())

    rows: list[list[Any]] = []
    for name in FORMATS:
        both = [error(gbt.linear(x, gbt.pack(w, name, precision=p))) for p in ("f32", "default")]
        bits = gbt.pack(w[:1], name).blocks.numel() * 8 / w.shape[1]
        rows.append([name, f"{bits:.2f}", *(f"{e:.4f}" for e in both)])
    layer = nn.Linear(2048, 512, bias=False)
    layer.weight = nn.Parameter(w, requires_grad=False)
    rows.append(["PyTorch, dynamic int8", "8.00", "", f"{error(int8(layer)(x)):.4f}"])
    return ["weights", "bits a weight", "activations in float32", "activations in 8 bits"], rows


def int8(module: nn.Module) -> nn.Module:
    """A copy of the module in PyTorch's dynamic int8."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found: nn.Module = torch.ao.quantization.quantize_dynamic(nn.Sequential(module), {nn.Linear}, dtype=torch.qint8)
    made: nn.Module = found[0]
    return made


def graph_of(weight: np.ndarray[Any, Any], x: np.ndarray[Any, Any], threads: int) -> Callable[[], Any]:
    """A kept graph of this package with the same product."""
    backend, ctx = gb.Backend("CPU", n_threads=threads), gb.Context()
    product = gb.ops.mul_mat(gb.Context(usage="weights").from_numpy(weight), ctx.from_numpy(x))
    gb.Buffer.from_array(np.empty(product.shape, np.float32)).place(product)
    graph = ctx.graph(product)
    return lambda: graph.compute(backend)


def sides_of(plain: nn.Linear, dynamic: nn.Module, x: torch.Tensor, name: str, threads: int) -> Sides:
    """Functions that measure the processor time of one layer, by side."""
    packed = nn.Linear(plain.in_features, plain.out_features, bias=False)
    packed.weight = plain.weight
    gbt.pack_(packed, {"*": name})
    kept = graph_of(gb.quantize(plain.weight.detach().numpy(), name), x.numpy(), threads)
    return {
        "packed": lambda: per_call(lambda: packed(x), 0.02, PROCESS),
        "graph": lambda: per_call(kept, 0.02, PROCESS),
        "float32": lambda: per_call(lambda: plain(x), 0.02, PROCESS),
        "int8": lambda: per_call(lambda: dynamic(x), 0.02, PROCESS),
    }


def products(threads: int, rounds: int) -> tuple[list[str], list[list[Any]]]:
    rows: list[list[Any]] = []
    for n, k in LAYERS:
        plain = nn.Linear(k, n, bias=False)
        dynamic = int8(plain)
        for count in ROWS:
            x = torch.randn(count, k)
            for name in ("q8_0", "q4_k"):
                with torch.inference_mode():
                    found = in_turns(sides_of(plain, dynamic, x, name, threads), rounds)
                rows.append([name, f"{n} x {k}", count, *ratios(found)])
                print(*rows[-1], flush=True)
    return ["weights", "layer", "rows", *COLUMNS], rows


COLUMNS = ["packed, us", "graph / packed", "float32 / packed", "int8 / packed"]


def ratios(found: Mapping[str, list[float]]) -> list[Any]:
    """The median time of the packed side, and the median ratio of each other side to it. Above 1: packed is faster."""
    packed = found["packed"]
    return [f"{median(packed) * 1e6:.0f}", *(f"{ratio(found[s], packed):.2f}" for s in ("graph", "float32", "int8"))]


def prompt(n: int, first: int) -> list[int]:
    return [first, *range(100, 99 + n)]


def model(path: Path, threads: int, rounds: int, tokens: int) -> tuple[list[str], list[list[Any]]]:
    packed, plain = gbt.from_gguf(path), gbt.from_gguf(path)
    for part in plain.modules():
        weight = part._parameters.get("weight")
        if isinstance(weight, gbt.PackedTensor):
            part._parameters["weight"] = nn.Parameter(weight.dequantize(), requires_grad=False)
    dynamic = int8(plain)
    own = TextModel(path, n_threads=threads, n_ctx=1024)
    own.tokenizer.stops = frozenset()
    rows: list[list[Any]] = []
    first = itertools.count(5)  # the first token differs each time, so no side can use earlier results
    for what, n_prompt, n in (("prompt of 128 tokens", 128, 1), (f"{tokens} tokens after 8", 8, tokens)):

        def torch_side(m: Any, n_prompt: int = n_prompt, n: int = n) -> float:
            ids = torch.tensor([prompt(n_prompt, next(first))])
            begin = PROCESS()
            with torch.inference_mode():
                m.generate(
                    ids, attention_mask=torch.ones_like(ids), min_new_tokens=n, max_new_tokens=n, do_sample=False
                )
            return PROCESS() - begin

        def own_side(n_prompt: int = n_prompt, n: int = n) -> float:
            begin = PROCESS()
            for _ in own.generate(prompt(n_prompt, next(first)), max_tokens=n):
                pass
            return PROCESS() - begin

        sides: Sides = {"packed": lambda: torch_side(packed), "graph": own_side, "float32": lambda: torch_side(plain),
                        "int8": lambda: torch_side(dynamic)}  # fmt: skip
        in_turns(sides, 1)
        rows.append([what, *ratios(in_turns(sides, rounds))])
        print(*rows[-1], flush=True)
    return ["work", *COLUMNS], rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["errors", "products", "model"])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.what == "errors":
        columns, rows = errors()
    elif args.what == "products":
        columns, rows = products(args.threads, args.rounds)
    elif args.file is None:
        parser.error("model needs a file")
    else:
        columns, rows = model(args.file, args.threads, args.rounds, args.tokens)
    print_table([columns, *([str(cell) for cell in row] for row in rows)])
    if args.json is not None:
        args.json.write_text(json.dumps({"columns": columns, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
