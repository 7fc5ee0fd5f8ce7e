"""Programs of PyTorch models beside PyTorch itself: eager, and with ``torch.compile``.

    python benchmarks/bench_programs.py [NAME...] [--threads N] [--rounds N] [--compiled]

The networks have random weights and common sizes. The sides run in turns, in one process. Times are processor times of
the process, which other processes hardly change. Printed are medians over the rounds, and medians of the ratios of each
round. ``--compiled`` adds ``torch.compile``, which needs a C++ compiler. ``--json FILE`` stores the rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import ggml_backend.torch as gbt
from table import print_table
from timing import PROCESS, in_turns, median, per_call, ratio

PIXELS = {"pixel_values": (1, 3, 224, 224)}
IDS = {"input_ids": (1, 128)}
NETWORKS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "MiniLM, 128 tokens": ("BertModel", {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
                                         "intermediate_size": 1536}, IDS),
    "BERT base, 128 tokens": ("BertModel", {}, IDS),
    "GPT-2, 128 tokens": ("GPT2LMHeadModel", {"use_cache": False}, IDS),
    "Llama, 8 layers of 512": ("LlamaForCausalLM", {"hidden_size": 512, "num_hidden_layers": 8, "vocab_size": 8000,
                                                    "num_attention_heads": 8, "num_key_value_heads": 4,
                                                    "intermediate_size": 1408, "use_cache": False}, IDS),
    "ViT small, 224": ("ViTModel", {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}, PIXELS),
    "ResNet-50, 224": ("ResNetModel", {}, PIXELS),
    "MobileNetV2, 224": ("MobileNetV2Model", {}, PIXELS),
    "Swin tiny, 224": ("SwinModel", {}, PIXELS),
}  # fmt: skip
"""Class of ``transformers``, options of its configuration, and shapes of the inputs."""


def sides_of(name: str, compiled: bool) -> dict[str, Callable[[], float]]:
    """Processor times of one forward pass, by side."""
    kind, options, shapes = NETWORKS[name]
    torch.manual_seed(0)
    make: Any = getattr(transformers, kind)
    model = make(make.config_class(**options)).eval()
    inputs = {
        key: torch.randint(3, 1000, shape) if key == "input_ids" else torch.randn(shape)
        for key, shape in shapes.items()
    }
    begin = PROCESS()
    program = gbt.compile(model, kwargs=inputs)
    print(f"{name}: compiled in {PROCESS() - begin:.1f} s; {len(program.missing)} operators in PyTorch", flush=True)
    calls: dict[str, Callable[..., Any]] = {"program": program, "PyTorch": model}
    if shapes is IDS or "ViT" in kind or "Swin" in kind:  # the others have no matrices
        calls["Q8_0"] = gbt.compile(model, kwargs=inputs, weights="q8_0")
    if compiled:
        calls["torch.compile"] = torch.compile(model)

    def timed(call: Callable[..., Any]) -> Callable[[], float]:
        return lambda: per_call(lambda: call(**inputs), 0.1, PROCESS)

    return {side: timed(call) for side, call in calls.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"beginnings of {', '.join(NETWORKS)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    others = ["PyTorch", *(["torch.compile"] if args.compiled else [])]
    columns = ["network", "program, ms", *(f"{o} / program" for o in others), *(f"{o} / Q8_0" for o in others)]
    rows: list[list[str]] = []
    for name in NETWORKS:
        if args.names and not any(name.startswith(begin) for begin in args.names):
            continue
        sides = sides_of(name, args.compiled)
        with torch.inference_mode():
            in_turns(sides, 1)
            found = in_turns(sides, args.rounds)
        ratios = [
            f"{ratio(found[o], found[s]):.2f}" if s in found else "-" for s in ("program", "Q8_0") for o in others
        ]
        rows.append([name, f"{median(found['program']) * 1e3:.1f}", *ratios])
        print(*rows[-1], flush=True)
    print_table([columns, *rows], markdown=True)
    if args.json is not None:
        args.json.write_text(json.dumps({"columns": columns, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
