"""Networks with random weights for benchmarks: some from ``transformers``, and EfficientNet-Lite0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

# Stages of EfficientNet-Lite0 (Tan and Le 2019; the Lite variant has neither squeeze-and-excitation nor swish):
# expansion, side of the kernel, stride of the first block, channels, blocks.
_STAGES = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
           (6, 3, 1, 320, 1)]  # fmt: skip


def _convolution(n_in: int, n_out: int, side: int, stride: int, *, groups: int = 1, relu: bool = True) -> nn.Sequential:
    convolution = nn.Conv2d(n_in, n_out, side, stride, side // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(n_out), *([nn.ReLU6()] if relu else []))


class _Block(nn.Module):
    """An inverted residual block (Sandler et al. 2018)."""

    def __init__(self, n_in: int, n_out: int, expansion: int, side: int, stride: int) -> None:
        super().__init__()
        n = n_in * expansion
        self.residual = stride == 1 and n_in == n_out
        self.layers = nn.Sequential(
            *([_convolution(n_in, n, 1, 1)] if expansion > 1 else []),
            _convolution(n, n, side, stride, groups=n),
            _convolution(n, n_out, 1, 1, relu=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return x + y if self.residual else y


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0 for images of 224 x 224 and 1,000 classes."""
    layers: list[nn.Module] = [_convolution(3, 32, 3, 2)]
    n_in = 32
    for expansion, side, stride, n_out, blocks in _STAGES:
        for i in range(blocks):
            layers.append(_Block(n_in, n_out, expansion, side, stride if i == 0 else 1))
            n_in = n_out
    last = [_convolution(n_in, 1280, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers, *last)


@dataclass(frozen=True)
class Network:
    """A network and its input."""

    make: Callable[[], nn.Module]
    input: str
    """Name of the parameter of ``forward``. ``input_ids`` are integers."""
    shape: tuple[int, ...]
    has_matrices: bool = True
    """Q8_0 can store the weights."""

    def inputs(self) -> dict[str, torch.Tensor]:
        made = torch.randint(3, 1000, self.shape) if self.input == "input_ids" else torch.randn(self.shape)
        return {self.input: made}


def _of_transformers(kind: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        network: Any = getattr(transformers, kind)
        model: nn.Module = network(network.config_class(**options))
        return model

    return make


def _text(kind: str, **options: Any) -> Network:
    return Network(_of_transformers(kind, **options), "input_ids", (1, 128))


def _image(
    make: Callable[[], nn.Module], batch: int = 1, name: str = "pixel_values", matrices: bool = False
) -> Network:
    return Network(make, name, (batch, 3, 224, 224), matrices)


_resnet18 = _of_transformers("ResNetModel", layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512])
_vit = _of_transformers("ViTModel", hidden_size=384, num_attention_heads=6, intermediate_size=1536)
_small_bert = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_small_llama = {"hidden_size": 512, "num_hidden_layers": 8, "vocab_size": 8000, "num_attention_heads": 8,
                "num_key_value_heads": 4, "intermediate_size": 1408, "use_cache": False}  # fmt: skip

NETWORKS = {
    "MiniLM, 128 tokens": _text("BertModel", **_small_bert),
    "BERT base, 128 tokens": _text("BertModel"),
    "GPT-2, 128 tokens": _text("GPT2LMHeadModel", use_cache=False),
    "Llama, 8 layers of 512": _text("LlamaForCausalLM", **_small_llama),
    "ViT small, 224": _image(_vit, matrices=True),
    "ResNet-18, 224": _image(_resnet18),
    "ResNet-18, 224, batch 8": _image(_resnet18, 8),
    "ResNet-50, 224": _image(_of_transformers("ResNetModel")),
    "MobileNetV2, 224": _image(_of_transformers("MobileNetV2Model")),
    "EfficientNet-Lite0, 224": _image(efficientnet_lite0, 1, "input"),
    "EfficientNet-Lite0, 224, batch 8": _image(efficientnet_lite0, 8, "input"),
    "Swin tiny, 224": _image(_of_transformers("SwinModel"), matrices=True),
}
