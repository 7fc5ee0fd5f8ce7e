"""Models of PyTorch: packed weights inside PyTorch, and whole models as programs::

    import ggml_backend.torch as gbt

    model = gbt.from_gguf("SmolLM2.gguf")          # a model of transformers; the weights stay in the mapped file
    gbt.pack_(module, {"*.weight": "q4_k"})        # any nn.Module, in place
    y = gbt.linear(x, gbt.pack(weight, "q8_0"))    # torch.ops.ggml_backend.linear
    program = gbt.compile(model, (x,))             # any model that torch.export takes, as graphs on our devices
    model = torch.compile(model, backend="ggml")   # a model with Python in between; graph by graph

A packed weight is a :class:`PackedTensor`: a parameter whose values are blocks of a quantized format. Products read the
blocks. They never make floats of the whole matrix.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"ggml_backend.torch needs PyTorch: pip install 'ggml_backend[torch]' ({error})") from None

from .cached import CachedModel, with_cache
from .compiled import Program, compile, explain
from .dynamo import CompiledGraph, compiled_graphs
from .packed import PackedTensor, embedding, linear, pack, pack_
from .pretrained import from_gguf
from .verified import Comparison, Verification, verify

__all__ = [
    "CachedModel", "Comparison", "CompiledGraph", "PackedTensor", "Program", "Verification", "compile",
    "compiled_graphs", "embedding", "explain", "from_gguf", "linear", "pack", "pack_", "verify", "with_cache",
]  # fmt: skip
