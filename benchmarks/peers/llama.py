"""A Llama-shaped network beside llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import ggml_backend as gb
from ggml_backend.models import TextModel

from .sides import Run, Scope, Sides, Work

EMBD, HEADS, KV_HEADS, FF, VOCAB = 2048, 32, 4, 5632, 32000


def llama_cpp_run(s: Sides, path: Path, ids: list[int], after: int) -> Run:
    """The logits after `ids`, of which the first `after` are in the cache already, as llama.cpp computes them (package
    llama-cpp-python)."""
    lib = s.modules["llama_cpp"]
    lib.llama_log_set(QUIET_LOG := lib.llama_log_callback(lambda *_: None), None)
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    if not model:
        raise RuntimeError("it cannot load the file")
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(len(ids) + 8, 64)
    params.n_threads = params.n_threads_batch = s.threads
    context = lib.llama_init_from_model(model, params)
    memory, vocab = lib.llama_get_memory(context), lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    def decode(part: list[int]) -> None:
        tokens = (lib.llama_token * len(part))(*part)
        if lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(part))) != 0:
            raise RuntimeError("llama_decode failed")

    if after:
        decode(ids[:after])

    def run(keep: Any = QUIET_LOG) -> Any:
        lib.llama_memory_seq_rm(memory, 0, after, -1)
        decode(ids[after:])
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (vocab,)).copy()

    return run


def write_model(path: Path, dtype: gb.dtypes.DType, layers: int) -> None:
    """A file of the shape of a Llama of 1.1 billion parameters (with 22 layers), with random blocks: the time of a
    product does not depend on the values."""
    kv = EMBD // HEADS * KV_HEADS
    matrices = {"token_embd.weight": (VOCAB, EMBD), "output.weight": (VOCAB, EMBD)}
    for i in range(layers):
        parts = {"attn_q": (EMBD, EMBD), "attn_k": (kv, EMBD), "attn_v": (kv, EMBD), "attn_output": (EMBD, EMBD)}
        parts |= {"ffn_gate": (FF, EMBD), "ffn_up": (FF, EMBD), "ffn_down": (EMBD, FF)}
        matrices |= {f"blk.{i}.{name}.weight": shape for name, shape in parts.items()}
    norms = ["output_norm.weight", *(f"blk.{i}.{n}.weight" for i in range(layers) for n in ("attn_norm", "ffn_norm"))]
    rng = np.random.default_rng(0)

    @cache
    def blocks(shape: tuple[int, int]) -> np.ndarray:
        rows = rng.standard_normal((256, shape[1]), dtype=np.float32) / np.float32(shape[1] ** 0.5)
        tile = gb.quantize(rows, dtype) if dtype.is_quantized else rows.astype(dtype.numpy)
        return np.resize(tile, (shape[0], tile.shape[1]))

    keys = {
        "general.architecture": "llama", "llama.context_length": 2048, "llama.block_count": layers,
        "llama.embedding_length": EMBD, "llama.feed_forward_length": FF, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": VOCAB, "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*(f"<0x{b:02X}>" for b in range(256)), *(f"t{i}" for i in range(VOCAB - 256))],
        "tokenizer.ggml.scores": np.zeros(VOCAB, np.float32),
        "tokenizer.ggml.token_type": np.array([6] * 256 + [1] * (VOCAB - 256), np.int32),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with gb.gguf.Writer(path) as out:
        for key, value in keys.items():
            out.add(key, value)
        for name, shape in matrices.items():
            out.add_tensor(name, blocks(shape), dtype=dtype)
        for name in norms:
            out.add_tensor(name, np.ones(EMBD, np.float32))


def llama(s: Sides, scope: Scope) -> Iterator[Work]:
    """A Llama shape with random weights: a prompt at once, and one token after 64."""
    layers, prompt = (1, 32) if scope.quick else (22, 512)
    for kind in ("q4_0",) if scope.quick else ("f16", "q8_0", "q4_0", "q4_k"):
        dtype = gb.dtypes.as_dtype(kind)
        path = Path(f"build/bench/llama/{dtype.name}-{layers}.gguf")
        if not path.exists():
            write_model(path, dtype, layers)
        ids = [int(i) for i in np.random.default_rng(0).integers(0, VOCAB, prompt)]
        net = TextModel(path, n_threads=s.threads, n_ctx=prompt + 8)
        for name, tokens, after in ((f"a prompt of {prompt}", ids, 0), ("a token after 64", ids[:65], 64)):
            after = min(after, len(tokens) - 1)

            def ours(tokens: list[int] = tokens, after: int = after, net: TextModel = net) -> Any:
                if not after:
                    net.cache.forget_idle()
                return net.logits(tokens)  # computes what the cache does not hold

            if after:
                net.logits(tokens[:after])
            peers = {"llama_cpp": lambda path=path, tokens=tokens, after=after: llama_cpp_run(s, path, tokens, after)}
            yield Work(f"llama 2048 x {layers}, {kind}: {name}", "tokens/s", len(tokens) - after, ours, peers, 0.05)
        del net, ours
