"""Small networks of a dozen families of timm, with random weights and without downloads."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from family_checks import CHECKS
from torch import nn

try:
    import timm
    from timm.models._efficientnet_builder import decode_arch_def
    from timm.models.efficientnet import EfficientNet
    from timm.models.ghostnet import GhostNet
    from timm.models.mlp_mixer import MlpMixer
    from timm.models.mobilenetv3 import MobileNetV3
    from timm.models.regnet import RegNet, RegNetCfg
except Exception as error:  # a torchvision for another torch raises errors of several classes
    pytest.skip(f"timm cannot be imported: {error}", allow_module_level=True)

PIXELS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LARGE = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
CLASSES = {"num_classes": 3}


def model(name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return a function that builds the network of this name."""
    return lambda: timm.create_model(name, **options, **CLASSES)


def efficient(kind: Callable[..., nn.Module], *blocks: str, **options: Any) -> Callable[[], nn.Module]:
    """Return a function that builds a network of these blocks, in timm's notation."""
    return lambda: kind(decode_arch_def([[b] for b in blocks]), num_features=32, stem_size=8, **options, **CLASSES)


FAMILIES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "resnet": (model("resnet18", layers=(1, 1, 1, 1), channels=(8, 8, 16, 16)), PIXELS),
    "skresnet": (model("skresnet18", layers=(1, 1, 1, 1), channels=(8, 16, 16, 16)), PIXELS),
    "levit": (model("levit_128s", img_size=64, embed_dim=(16, 24, 32), num_heads=(2, 2, 2), key_dim=8,
                    depth=(1, 1, 1)), LARGE),
    "ghostnet": (lambda: GhostNet([[[3, 16, 16, 0, 1]], [[3, 48, 24, 0, 2]], [[5, 72, 40, 0.25, 2]]], width=0.5,
                                  **CLASSES), PIXELS),  # it calls F.dropout in its forward pass
    "convnext": (model("convnext_atto", dims=(8, 12, 16, 16), depths=(1, 1, 1, 1)), PIXELS),
    "vit": (model("vit_tiny_patch16_224", img_size=32, embed_dim=16, depth=2, num_heads=2), PIXELS),
    "mobilenetv4": (efficient(MobileNetV3, "cn_r1_k3_s2_e1_c8", "uir_r1_a3_k5_s2_e2_c16", "uir_r2_a0_k3_s1_e2_c16"),
                    PIXELS),
    "mixer": (lambda: MlpMixer(img_size=64, patch_size=16, num_blocks=2, embed_dim=16, **CLASSES), LARGE),
    "efficientnet": (efficient(EfficientNet, "ds_r1_k3_s1_e1_c8_se0.25", "ir_r2_k3_s2_e2_c16_se0.25",
                               "ir_r1_k5_s2_e2_c16_se0.25"), PIXELS),
    "regnet": (lambda: RegNet(RegNetCfg(w0=8, wa=8, wm=1.5, group_size=4, depth=6, se_ratio=0.25), **CLASSES), PIXELS),
    "densenet": (model("densenet121", growth_rate=4, block_config=(2, 2)), PIXELS),
    "swin": (model("swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=8, depths=(2, 1),
                   num_heads=(2, 2)), PIXELS),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # timm's own
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name: str, check: str):
    torch.manual_seed(0)
    build, example = FAMILIES[name]
    CHECKS[check](build(), example)
