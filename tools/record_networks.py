"""Writes small networks of PyTorch with their inputs and results into ``tests/data/networks``, and programs of PyTorch
and ONNX for several sizes into ``tests/data/programs``.

    PYTHONPATH=tests/python/support python tools/record_networks.py

``tests/python/models/test_networks.py`` and ``test_saved_programs.py`` run them, and so test the rules of programs
without PyTorch. This script needs PyTorch, ``transformers``, ``onnx`` and ``onnxruntime``. The networks are those of
``tests/python/pytorch/test_torch_architectures.py``.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ggml_backend as gb
import ggml_backend.torch as gbt
from ggml_backend.torch._exported import export

TREE = Path(__file__).resolve().parents[1]
NAMES = ("BertModel", "GPT2LMHeadModel", "LlamaForCausalLM", "ViTModel", "ResNetModel", "SwinModel")
PROGRAMS = ("BertModel", "GPT2LMHeadModel")
ONNX = ("small", "recurrent")  # of tests/python/models/test_onnx.py
SIZES = ((2, 11), (1, 1), (3, 5), (1, 8), (4, 1))


def main() -> None:
    sys.path.insert(0, str(TREE / "tests" / "python" / "pytorch"))
    known: Any = importlib.import_module("test_torch_architectures")
    record_networks(known)
    record_programs(known)
    sys.path.insert(0, str(TREE / "tests" / "python" / "models"))
    record_onnx(importlib.import_module("test_onnx"))


def record_networks(known: Any) -> None:
    folder = TREE / "tests" / "data" / "networks"
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        model = known.model_of(name, {**known.TEXT, **known.IMAGES}[name])
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.is_floating_point():  # so that half of the bits are zeros
                    tensor.copy_(tensor.bfloat16())
        inputs = known.inputs_of(name)
        exported = export(model, (), {**inputs, **known.options_of(name)}, "record")
        network = exported.network
        with torch.no_grad():
            theirs = dict(model(**inputs, **known.options_of(name)))
        arrays = {f"array/{key}": array for key, array in network.arrays.items()}
        arrays |= {f"input/{key}": tensor.numpy() for key, tensor in inputs.items()}
        arrays |= {f"output/{i}": tensor.numpy() for i, tensor in enumerate(theirs.values())}
        text = json.dumps(network.to_json(), separators=(",", ":"))
        np.savez_compressed(folder / f"{name}.npz", network=np.frombuffer(text.encode(), np.uint8), **arrays)


def record_programs(known: Any) -> None:
    """Records programs for all batches and numbers of tokens, with results of PyTorch for some sizes."""
    folder = TREE / "tests" / "data" / "programs"
    folder.mkdir(exist_ok=True)
    for name in PROGRAMS:
        model, options = known.model_of(name, known.TEXT[name]), known.options_of(name)
        inputs = known.inputs_of(name)
        axes = {key: {0: "batch", 1: "tokens"} for key in inputs}
        program = gbt.compile(model, kwargs={**inputs, **options}, dynamic=axes, strict=True)
        program.save(folder / f"{name}.gguf")
        arrays = {}
        for shape in SIZES:
            size = "x".join(map(str, shape))
            given = {
                key: torch.randint(0, 2, shape) if "mask" in key else torch.randint(3, 99, shape) for key in inputs
            }
            for key in given:
                if "mask" in key:
                    given[key][:, 0] = 1
            with torch.no_grad():
                theirs = dict(model(**given, **options))
            arrays |= {f"{size}/input/{key}": tensor.numpy() for key, tensor in given.items()}
            arrays |= {f"{size}/output/{key}": tensor.numpy() for key, tensor in theirs.items()}
        np.savez_compressed(folder / f"{name}.npz", **arrays)


def record_onnx(known: Any) -> None:
    """Records programs of ONNX models, with results of ONNX Runtime."""
    folder = TREE / "tests" / "data" / "programs"
    for name in ONNX:
        model, inputs = known.RECORDED[name]()
        program = gb.load_onnx(model)
        arrays = {}
        for i, given in enumerate(inputs):
            program(**given)
            results = zip((o.name for o in model.graph.output), known.expected(model, given), strict=True)
            arrays |= {f"{i}/input/{key}": array for key, array in given.items()}
            arrays |= {f"{i}/output/{key}": array for key, array in results}
        program.save(folder / f"onnx-{name}.gguf")
        np.savez_compressed(folder / f"onnx-{name}.npz", **arrays)


if __name__ == "__main__":
    main()
