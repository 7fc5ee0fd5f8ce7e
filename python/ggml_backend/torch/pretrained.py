"""Models of ``transformers`` whose weights stay in a mapped GGUF file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .. import gguf
from .._base.errors import FileError, UnsupportedError, expect_path
from ..cli.hugging_face.names import FAMILIES, Family, gguf_name
from ..gguf import GGUFTensor
from ..models._keys import Keys
from ..models._sizes import Sizes
from ..models.architectures import DECODERS, ENCODERS
from ..models.embedding import Sizes as EncoderSizes
from .packed import PackedTensor, Precision

__all__ = ["from_gguf"]

_MODELS = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3", "gemma2": "gemma2", "gemma3": "gemma3_text",
    "bert": "bert",
}  # fmt: skip
"""Model types of ``transformers`` by architecture of the file."""


class _WithoutMemory(TorchFunctionMode):
    """Within it ``torch.empty``, which makes parameters, allocates no memory, and ``nn.init`` skips these parameters.

    Buffers are computed as usual.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func is torch.empty:
            options["device"] = "meta"
        elif getattr(func, "__module__", None) == nn.init.__name__:
            first = args[0] if args else options.get("tensor")
            if isinstance(first, torch.Tensor) and first.is_meta:
                return first
        return func(*args, **options)


def from_gguf(path: str | os.PathLike[str], *, precision: Precision = "default") -> Any:
    """A model of ``transformers`` with the weights of a GGUF file, for inference on the CPU.

    Matrices stay packed in the mapped file, and are shared with other processes. Only those that the file stores in
    another order are copied: queries and keys of Llama. Everything else is float32. Writing to a weight does not
    change the file.

    precision: as for :func:`pack`

    Architectures: Llama (also Mistral, SmolLM), Qwen 2 and 3, Phi 3, Gemma 2 and 3, as models for causal language
    modelling, and BERT without its pooler. UnsupportedError: another architecture, a mixture of experts, or LongRoPE.
    FileError: the file is damaged. ImportError: ``transformers`` is not installed.
    """
    expect_path(path, "from_gguf: path")
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"from_gguf needs transformers: pip install 'transformers>=5' ({error})") from None
    with gguf.open(path, writable=True) as file:
        architecture = str(file.metadata.get("general.architecture", ""))
        if architecture not in _MODELS:
            raise UnsupportedError(
                f"from_gguf: {os.fspath(path)}: the architecture {architecture[:60]!r} is not known; known are"
                f" {', '.join(_MODELS)}"
            )
        family, tensors = FAMILIES[_MODELS[architecture]], dict(file.tensors)
        if architecture in DECODERS:
            config, factors = _decoder(file.metadata, architecture, tensors)
            model = _empty(transformers.AutoModelForCausalLM.from_config, config)
            if factors is not None:
                _divide_frequencies(model, factors)
        else:
            config = _encoder(file.metadata, tensors)
            model = _empty(transformers.BertModel, config, add_pooling_layer=False)
        _fill(model, family, config, tensors, precision)
    return model.eval().requires_grad_(False)


def _empty(make: Any, config: Any, **options: Any) -> Any:
    """A model whose parameters have no memory yet."""
    config.dtype = torch.float32
    with _WithoutMemory():
        return make(config, **options)


def _special(metadata: Mapping[str, Any]) -> dict[str, Any]:
    ids = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {option: metadata.get(f"tokenizer.ggml.{key}_token_id") for option, key in ids.items()}


def _decoder(metadata: Mapping[str, Any], name: str, tensors: Mapping[str, GGUFTensor]) -> tuple[Any, Any]:
    """The configuration, and the tensor that divides the frequencies of ROPE, or None."""
    import transformers

    s = Sizes.of(name, DECODERS[name], metadata, tensors, None)
    if s.experts is not None:
        raise UnsupportedError(f"from_gguf: {name} with experts is not supported; ggml_backend.models runs it")
    if s.rope.factors is not None and s.rope.factors != "rope_freqs.weight":
        raise UnsupportedError(f"from_gguf: {s.rope.factors} (LongRoPE) is not supported; ggml_backend.models runs it")
    if s.head_k != s.head_v:
        raise UnsupportedError(f"from_gguf: heads of keys ({s.head_k}) and values ({s.head_v}) must have one size")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": s.rope.base}
    if s.rope.ext_factor:
        rope |= {"rope_type": "yarn", "factor": 1 / s.rope.scale, "attention_factor": None,
                 "original_max_position_embeddings": s.rope.n_orig_ctx}  # fmt: skip
        if s.rope.attn_factor != 1.0:
            raise UnsupportedError(f"from_gguf: {name}.rope.scaling.attn_factor is not supported")
    elif s.rope.scale != 1.0:
        rope |= {"rope_type": "linear", "factor": 1 / s.rope.scale}
    if s.rope.dims != s.head_k:
        rope["partial_rotary_factor"] = s.rope.dims / s.head_k
    options: dict[str, Any] = {
        "vocab_size": s.vocab, "hidden_size": s.embd, "intermediate_size": s.ff, "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_k,
        "max_position_embeddings": s.context, "rms_norm_eps": s.eps, "rope_parameters": rope,
        "tie_word_embeddings": "output.weight" not in tensors, **_special(metadata),
    }  # fmt: skip
    local = DECODERS[name].local_rope_base
    if name.startswith("gemma"):
        options |= {"query_pre_attn_scalar": round(1 / s.scale**2), "sliding_window": s.window or None,
                    "attn_logit_softcapping": s.softcap or None,
                    "final_logit_softcapping": s.final_softcap or None}  # fmt: skip
    if local is not None:
        sliding = {"rope_type": "default", "rope_theta": local}
        options["rope_parameters"] = {"full_attention": rope, "sliding_attention": sliding}
    if name == "phi3":
        options["sliding_window"] = s.window or None
    if name == "llama":
        options |= {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}
    config = transformers.AutoConfig.for_model(_MODELS[name], **options)
    return config, None if s.rope.factors is None else tensors[s.rope.factors].dequantize()


def _encoder(metadata: Mapping[str, Any], tensors: Mapping[str, GGUFTensor]) -> Any:
    import transformers

    s = EncoderSizes.of("bert", metadata, tensors)
    s.check(ENCODERS["bert"], tensors)
    return transformers.BertConfig(
        vocab_size=s.vocab,
        type_vocab_size=tensors["token_types.weight"].shape[0] if "token_types.weight" in tensors else 1,
        hidden_size=s.embd,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        intermediate_size=Keys(metadata, "bert").count(".feed_forward_length"),
        max_position_embeddings=s.context,
        layer_norm_eps=s.eps,
        pad_token_id=metadata.get("tokenizer.ggml.padding_token_id", 0),
    )


def _divide_frequencies(model: Any, factors: np.ndarray[Any, Any]) -> None:
    """Llama 3 stores what divides the frequencies of ROPE as a tensor."""
    for part in model.modules():
        for name in ("inv_freq", "original_inv_freq"):
            if name in part._buffers:
                part._buffers[name] = part._buffers[name] / torch.from_numpy(factors)


def _fill(
    model: nn.Module, family: Family, config: Any, tensors: Mapping[str, GGUFTensor], precision: Precision
) -> None:
    """Gives every parameter its tensor. Parameters of one tensor are tied."""
    made: dict[str, nn.Parameter] = {}
    for part, leaf, name in _parameters(model):
        found = gguf_name(family, name)
        target = name if found is None else found[0]
        if target == "output.weight" and target not in tensors:
            target = "token_embd.weight"
        if target not in tensors:
            raise FileError(f"from_gguf: the file has no tensor {target}")
        if target not in made:
            value = _value(tensors[target], _rows(family, config, target), precision)
            if family.norm_plus_1 and "norm" in target:
                value = value - 1
            made[target] = nn.Parameter(value, requires_grad=False)
        shape = part._parameters[leaf].shape
        if made[target].shape != shape:
            raise FileError(
                f"from_gguf: {target} has the shape {tuple(made[target].shape)}, the network needs {tuple(shape)}"
            )
        part._parameters[leaf] = made[target]


def _parameters(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Modules with the names of their parameters, there and in the whole model."""
    for prefix, part in model.named_modules():
        for leaf, parameter in part._parameters.items():
            if parameter is not None:
                yield part, leaf, f"{prefix}.{leaf}" if prefix else leaf


def _rows(family: Family, config: Any, target: str) -> int:
    """The number of heads whose rows the file stores in another order: ROPE rotates neighbours there. 0: none."""
    stem = target.rpartition(".")[0].rpartition(".")[2]
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    return int(getattr(config, heads[stem])) if family.neighbours and stem in heads else 0


def _value(tensor: GGUFTensor, heads: int, precision: Precision) -> torch.Tensor:
    rows = tensor.numpy()
    if heads:  # neighbours become elements half a head apart
        n = rows.shape[0] // heads // 2
        rows = rows.reshape(heads, n, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    if tensor.dtype.name != "float32" and rows.ndim == 2:
        blocks = _shared(rows.view(np.uint8) if not tensor.dtype.is_quantized else rows)
        return PackedTensor(blocks, tensor.dtype.name, precision)
    return _shared(rows if tensor.dtype.name == "float32" else tensor.dequantize())


def _shared(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A tensor over the memory of an array."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a file that is not writable
        return torch.from_numpy(array)
