"""Networks of ``timm`` with small random weights, as programs. The page of docs has the table."""

from __future__ import annotations

import re

import pytest

from source_tree import in_tree

pytest.importorskip("torch", reason="PyTorch is not installed; tools/check_torch.sh installs it")
import torch
from torch.nn.modules.batchnorm import _BatchNorm

import ggml_backend.torch as gbt

PAGE = "docs/howto/architectures.md"
_SMALL = {"img_size": 64, "depth": 2}

NETWORKS = {
    "resnet18": {}, "resnext50_32x4d": {}, "seresnet18": {}, "res2net50_26w_4s": {}, "mobilenetv2_050": {},
    "mobilenetv3_small_050": {}, "mnasnet_small": {}, "mixnet_s": {}, "ghostnet_050": {}, "efficientnet_lite0": {},
    "efficientnet_b0": {}, "regnetx_002": {}, "repvgg_a0": {}, "densenet121": {"block_config": (2, 2, 2, 2)},
    "hrnet_w18_small": {}, "xception41": {}, "dla34": {}, "cspdarknet53": {}, "darknet53": {}, "nfnet_l0": {},
    "convnext_atto": {}, "edgenext_xx_small": {}, "poolformer_s12": {}, "vit_tiny_patch16_224": _SMALL,
    "deit_tiny_patch16_224": _SMALL, "cait_xxs24_224": _SMALL,
    "beit_base_patch16_224": {**_SMALL, "embed_dim": 48, "num_heads": 4},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "window_size": 4, "embed_dim": 24, "depths": (1, 1, 2, 1),
                                     "num_heads": (2, 2, 4, 4)},
    "levit_128s": {}, "pit_ti_224": {}, "crossvit_tiny_240": {}, "twins_svt_small": {"img_size": 64},
}  # fmt: skip
"""Options of ``timm.create_model``."""

SIZES = {"levit_128s": 224, "pit_ti_224": 224, "crossvit_tiny_240": 240}
"""Widths of pictures that a network needs. The others get 64 x 64."""


@pytest.fixture(scope="module")
def timm():
    """timm imports torchvision, whose wheels need CUDA. Without it, two of its operators have no declaration."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms") if not torch.cuda.is_available() else ():
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    yield pytest.importorskip("timm", reason="tools/check_torch.sh installs timm")
    library._destroy()


def model_of(timm, name, options):
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=10, **options).eval()
    for module in model.modules():  # statistics of a batch norm that is not fresh
        if isinstance(module, _BatchNorm):
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
            torch.nn.init.normal_(module.running_mean, std=0.1)
    return model


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_outputs_are_those_of_pytorch(timm, name):
    model, size = model_of(timm, name, NETWORKS[name]), SIZES.get(name, 64)
    x = torch.randn(2, 3, size, size)
    program = gbt.compile(model, (x,), strict=True)
    theirs = model(x)
    error = (program(x) - theirs).abs().max() / theirs.abs().max()
    assert error < 1e-4


def test_the_page_lists_every_architecture():
    text = in_tree(PAGE).read_text()
    assert re.findall(r"`(\w+)`", text[text.index("## timm") :]) == [*NETWORKS]
