"""Writes small networks of PyTorch with their inputs and results into ``tests/data/networks``.

    PYTHONPATH=tests/python/support python tools/record_networks.py

``tests/python/models/test_networks.py`` runs them, so that the rules of programs are tested without PyTorch. Needs
PyTorch and ``transformers``. The networks are those of ``tests/python/pytorch/test_torch_architectures.py``.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ggml_backend.torch._exported import export

TREE = Path(__file__).resolve().parents[1]
NAMES = ("BertModel", "GPT2LMHeadModel", "LlamaForCausalLM", "ViTModel", "ResNetModel", "SwinModel")


def main() -> None:
    sys.path.insert(0, str(TREE / "tests" / "python" / "pytorch"))
    known: Any = importlib.import_module("test_torch_architectures")
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


if __name__ == "__main__":
    main()
