"""Compares compiled PyTorch models with PyTorch (eager, and ``torch.compile``) and ONNX Runtime.

    python benchmarks/bench_programs.py [NAME...] [--threads N] [--rounds N] [--compiled] [--onnx]

The networks have random weights and common sizes. The sides run in turns, in one process. Times are processor times of
the process, which other processes hardly change. The program prints medians over the rounds, and medians of the ratios
of each round. ``--compiled`` adds ``torch.compile``, which needs a C++ compiler. ``--onnx`` adds ONNX Runtime, which
needs the packages ``onnx``, ``onnxscript`` and ``onnxruntime``. ``--json FILE`` stores the rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ggml_backend.torch as gbt
from networks import NETWORKS
from table import print_table
from timing import PROCESS, in_turns, median, per_call, ratio


def _onnx_runtime(model: nn.Module, inputs: dict[str, torch.Tensor], threads: int) -> Callable[..., Any]:
    """The model in ONNX Runtime, as a function of its inputs."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(model, kwargs=inputs, f=file, dynamo=True, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda **given: session.run(None, {name: tensor.numpy() for name, tensor in given.items()})


def sides_of(name: str, threads: int, compiled: bool, onnx: bool) -> dict[str, Callable[[], float]]:
    """Functions that measure the processor time of one forward pass, by side."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    model, inputs = network.make().eval(), network.inputs()
    begin = PROCESS()
    program = gbt.compile(model, kwargs=inputs)
    print(f"{name}: compiled in {PROCESS() - begin:.1f} s; {len(program.missing)} operators in PyTorch", flush=True)
    calls: dict[str, Callable[..., Any]] = {"program": program, "PyTorch": model}
    if network.has_matrices:
        calls["Q8_0"] = gbt.compile(model, kwargs=inputs, weights="q8_0")
    if compiled:
        calls["torch.compile"] = torch.compile(model)
    if onnx:
        calls["ONNX Runtime"] = _onnx_runtime(model, inputs, threads)

    def timed(call: Callable[..., Any]) -> Callable[[], float]:
        return lambda: per_call(lambda: call(**inputs), 0.1, PROCESS)

    return {side: timed(call) for side, call in calls.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"beginnings of {', '.join(NETWORKS)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    others = ["PyTorch", *(["torch.compile"] if args.compiled else []), *(["ONNX Runtime"] if args.onnx else [])]
    columns = ["network", "program, ms", *(f"{o} / program" for o in others), *(f"{o} / Q8_0" for o in others)]
    rows: list[list[str]] = []
    for name in NETWORKS:
        if args.names and not any(name.startswith(begin) for begin in args.names):
            continue
        sides = sides_of(name, args.threads, args.compiled, args.onnx)
        with torch.inference_mode():
            in_turns(sides, 1)
            found = in_turns(sides, args.rounds)
        ratios = [
            f"{ratio(found[o], found[s]):.2f}" if s in found else "-" for s in ("program", "Q8_0") for o in others
        ]
        rows.append([name, f"{median(found['program']) * 1e3:.1f}", *ratios])
        print(*rows[-1], flush=True)
    print_table([columns, *rows])
    if args.json is not None:
        args.json.write_text(json.dumps({"columns": columns, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
