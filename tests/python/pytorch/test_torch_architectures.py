"""Networks of ``transformers`` with small random weights, as programs. The table of docs shows the results."""

from __future__ import annotations

import re

import pytest

from source_tree import in_tree

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_torch.sh installs it")
pytest.importorskip("transformers", reason="tools/check_torch.sh installs transformers")
import torch
import transformers

import ggml_backend.torch as gbt

PAGE = "docs/howto/architectures.md"
_TEXT = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 48, "max_position_embeddings": 64}  # fmt: skip
_DECODER = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
          "image_size": 32, "patch_size": 8}  # fmt: skip
_GPT = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip

TEXT = {
    "BertModel": _TEXT, "RobertaModel": _TEXT, "ElectraModel": _TEXT, "MPNetModel": _TEXT,
    "DistilBertModel": {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48,
                        "max_position_embeddings": 64},
    "AlbertModel": {**_TEXT, "embedding_size": 16},
    "ModernBertModel": {**_TEXT, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1,
                        "eos_token_id": 2},
    "DebertaV2Model": {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    "GPT2LMHeadModel": _GPT,
    "GPTNeoXForCausalLM": {**_TEXT, "bos_token_id": 1, "eos_token_id": 2},
    "OPTForCausalLM": {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                       "ffn_dim": 48, "max_position_embeddings": 64, "word_embed_proj_dim": 32},
    "LlamaForCausalLM": _DECODER, "MistralForCausalLM": _DECODER, "Qwen2ForCausalLM": _DECODER,
    "Qwen3ForCausalLM": _DECODER, "Phi3ForCausalLM": _DECODER, "GemmaForCausalLM": _DECODER,
    "Gemma2ForCausalLM": _DECODER, "Olmo2ForCausalLM": _DECODER, "StableLmForCausalLM": _DECODER,
    "Starcoder2ForCausalLM": _DECODER, "GraniteForCausalLM": _DECODER, "CohereForCausalLM": _DECODER,
}  # fmt: skip
"""Options of the configuration. Inputs are ids, and a mask for encoders."""

IMAGES = {
    "ViTModel": _IMAGE, "DeiTModel": _IMAGE, "Dinov2Model": {**_IMAGE, "image_size": 32}, "BeitModel": _IMAGE,
    "ResNetModel": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "basic"},
    "RegNetModel": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4},
    "MobileNetV1Model": {"depth_multiplier": 0.25}, "MobileNetV2Model": {"depth_multiplier": 0.25},
    "ConvNextModel": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "ConvNextV2Model": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "SwinModel": {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
                  "window_size": 4},
    "SegformerModel": {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32], "num_attention_heads": [1, 1, 2, 2],
                       "decoder_hidden_size": 16},
    "PoolFormerModel": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
    "EfficientNetModel": {"image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
}  # fmt: skip
"""Inputs are pictures of 32 x 32."""


def model_of(name, options):
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**options)).eval()
    for module in model.modules():  # statistics of a batch norm that is not fresh
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
            torch.nn.init.normal_(module.running_mean, std=0.1)
    return model


def inputs_of(name):
    if name in IMAGES:
        return {"pixel_values": torch.randn(2, 3, 32, 32)}
    inputs = {"input_ids": torch.randint(3, 99, (2, 11))}
    if not name.endswith(("LM", "HeadModel")):
        inputs["attention_mask"] = (torch.arange(11) < torch.tensor([[11], [7]])).long()
    return inputs


def options_of(name):
    return {"use_cache": False} if name.endswith(("LM", "HeadModel")) else {}


def listed():
    """The classes that the page lists."""
    text = in_tree(PAGE).read_text()
    return re.findall(r"`(\w+)`", text[text.index("## transformers") : text.index("## timm")])


@pytest.mark.parametrize("name", [*TEXT, *IMAGES])
def test_outputs_are_those_of_pytorch(name):
    model = model_of(name, {**TEXT, **IMAGES}[name])
    inputs = inputs_of(name)
    program = gbt.compile(model, kwargs={**inputs, **options_of(name)})
    ours = program(**inputs, **options_of(name))
    with torch.no_grad():
        theirs = model(**inputs, **options_of(name))
    assert type(ours) is type(theirs) and len(theirs) > 0
    real = inputs.get("attention_mask", torch.ones(1)).bool()
    for key, value in theirs.items():
        mine = ours[key]
        assert mine.shape == value.shape
        if "attention_mask" in inputs and value.ndim == 3:  # rows of padding have no meaning
            mine, value = mine[real], value[real]
        error = (mine - value).abs().max() / value.abs().max()
        assert error < 1e-4, f"{key}: {error}"
    assert not program.missing


def test_the_page_lists_every_architecture():
    assert listed() == [*TEXT, *IMAGES]
