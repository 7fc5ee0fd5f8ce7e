"""Language models of transformers with their cache as states: the tokens of PyTorch at temperature 0."""

from __future__ import annotations

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.errors import GgmlError, UnsupportedError

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_torch.sh installs it")
pytest.importorskip("transformers", reason="tools/check_torch.sh installs transformers")
import torch
import transformers

import ggml_backend.torch as gbt

SMALL = {"vocab_size": 99, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
FAMILIES = {
    "LlamaForCausalLM": {"hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 2},
    "Qwen3ForCausalLM": {"hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8},
    "GPTNeoXForCausalLM": {"hidden_size": 32, "intermediate_size": 64},
}
PROMPT, N = torch.tensor([[5, 17, 42, 8, 61]]), 18


def model_of(name):
    torch.manual_seed(0)
    made = getattr(transformers, name)
    return made(made.config_class(**SMALL, **FAMILIES[name])).eval()


def expected(model):
    model.generation_config.eos_token_id = None
    found = model.generate(PROMPT, max_new_tokens=N, do_sample=False, pad_token_id=0)
    return found[0, PROMPT.shape[1] :].tolist()


def generated(program, prompt):
    """Greedy tokens: the prompt in one call, and then one token in each."""
    tokens, given = [], prompt
    for _ in range(N):
        tokens.append(int(np.asarray(program(given))[0, -1].argmax()))
        given = np.array([[tokens[-1]]])
    return tokens


@pytest.mark.parametrize("name", [*FAMILIES])
def test_tokens_are_those_of_pytorch(name, tmp_path):
    model = model_of(name)
    theirs = expected(model)
    decoder = gbt.with_cache(model, max_tokens=32)
    program = gbt.compile(decoder, (PROMPT,), dynamic={"input_ids": {1: "tokens"}}, strict=True)
    assert generated(program, PROMPT.numpy()) == theirs
    program.reset()
    assert generated(program, PROMPT.numpy()) == theirs
    caches = [t for t in program.graph.nodes if t.op == "SET_ROWS"]
    assert len(caches) == 4 and not [t for t in program.graph.nodes if t.op == "CPY" and t.size >= 32 * 16]
    program.save(tmp_path / "p.gguf")
    assert generated(gb.load_program(tmp_path / "p.gguf"), PROMPT.numpy()) == theirs


def test_a_text_beyond_the_cache_is_an_error():
    decoder = gbt.with_cache(model_of("LlamaForCausalLM"), max_tokens=4)
    program = gbt.compile(decoder, (PROMPT[:, :1],))
    for _ in range(4):
        program(PROMPT[:, :1])
    with pytest.raises(GgmlError, match="index"):
        program(PROMPT[:, :1])
    program.reset()
    program(PROMPT[:, :1])


def test_models_without_a_cache_of_all_tokens_are_refused():
    made = transformers.Gemma2ForCausalLM
    config = made.config_class(**SMALL, hidden_size=32, intermediate_size=64, num_key_value_heads=2, sliding_window=8)
    with pytest.raises(UnsupportedError, match="StaticSlidingWindowLayer, which is no cache of all tokens"):
        gbt.with_cache(made(config).eval(), 16)
    with pytest.raises(TypeError, match="with_cache: model must be"):
        gbt.with_cache(3, 16)
