"""A Llama-shaped network beside llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ggml_backend as gb

from .sides import Run, Scope, Sides, Work


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


def llama(s: Sides, scope: Scope) -> Iterator[Work]:
    """A Llama shape of 1.1 billion parameters with random weights (bench_llama.py): a prompt at once, and one token
    after 64."""
    from bench_llama import VOCAB, write_model
    from examples.llama.model import Llama

    layers, prompt = (1, 32) if scope.quick else (22, 512)
    for kind in ("q4_0",) if scope.quick else ("f16", "q8_0", "q4_0", "q4_k"):
        dtype = gb.dtypes.as_dtype(kind)
        path = Path(f"build/bench/llama/{dtype.name}-{layers}-peers.gguf")
        if not path.exists():
            write_model(path, dtype, layers)
        ids = [int(i) for i in np.random.default_rng(0).integers(0, VOCAB, prompt)]
        net = Llama(path, n_threads=s.threads, context=prompt + 8)
        for name, tokens, after in ((f"a prompt of {prompt}", ids, 0), ("a token after 64", ids[:65], 64)):
            after = min(after, len(tokens) - 1)

            def ours(tokens: list[int] = tokens, after: int = after, net: Llama = net) -> Any:
                if net.cache.used < after:
                    net.reset()
                    net.logits(tokens[:after])
                net.cache.used = after
                return net.logits(tokens[after:])

            net.reset()
            peers = {"llama_cpp": lambda path=path, tokens=tokens, after=after: llama_cpp_run(s, path, tokens, after)}
            yield Work(f"llama 2048 x {layers}, {kind}: {name}", "tokens/s", len(tokens) - after, ours, peers, 0.05)
        del net, ours
