"""Architectures with random weights that `benchmarks.zoo` exports: functions that return a module and its inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers
from torch import nn

Case = tuple[nn.Module, dict[str, torch.Tensor]]
"""A module, and its inputs by name."""


def _image(size: int = 224) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, size, size)}


def _tokens(length: int) -> torch.Tensor:
    return torch.randint(0, 1000, (1, length))


def _masked_tokens(length: int) -> dict[str, torch.Tensor]:
    return {"input_ids": _tokens(length), "attention_mask": torch.ones(1, length, dtype=torch.long)}


def resnet50() -> Case:
    """50-layer residual network (He et al., 2015)."""
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)), _image()


def mobilenet_v2() -> Case:
    """MobileNetV2 (Sandler et al., 2018)."""
    return transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config(num_labels=1001)), _image()


def bert_base() -> Case:
    """BERT base, 128 tokens (Devlin et al., 2018)."""
    return transformers.BertModel(transformers.BertConfig(attn_implementation="eager")), _masked_tokens(128)


def vit_b16() -> Case:
    """Vision transformer, base, patches of 16 (Dosovitskiy et al., 2020)."""
    config = transformers.ViTConfig(num_labels=1000, attn_implementation="eager")
    return transformers.ViTForImageClassification(config), _image()


def gpt2() -> Case:
    """GPT-2 small, 64 tokens (Radford et al., 2019)."""
    config = transformers.GPT2Config(use_cache=False, attn_implementation="eager")
    return transformers.GPT2LMHeadModel(config), {"input_ids": _tokens(64)}


def segformer_b0() -> Case:
    """SegFormer B0, 512 x 512 (Xie et al., 2021)."""
    return transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(num_labels=150)), _image(512)


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5000, 128)
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(512, 32)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.tags(self.lstm(self.embedding(input_ids))[0])


def lstm_tagger() -> Case:
    """A two-layer bidirectional LSTM over 64 tokens."""
    return _Tagger(), {"input_ids": torch.randint(0, 5000, (1, 64))}


ZOO: tuple[Callable[[], Case], ...] = (resnet50, mobilenet_v2, bert_base, vit_b16, gpt2, segformer_b0, lstm_tagger)
"""The models of the main tables."""


def resnet18() -> Case:
    """18-layer residual network (He et al., 2015)."""
    config = transformers.ResNetConfig(
        num_labels=1000, layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2]
    )
    return transformers.ResNetForImageClassification(config), _image()


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, groups=32, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.shortcut = shortcut if channels != out or stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(x) + self.shortcut(x))


def resnext50() -> Case:
    """ResNeXt-50, 32 groups of 4 to 32 channels (Xie et al., 2016)."""
    channels = 64
    stem = (nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    layers: list[nn.Module] = [*stem]
    for blocks, width in ((3, 128), (4, 256), (6, 512), (3, 1024)):
        for block in range(blocks):
            layers.append(_Bottleneck(channels, width, 2 * width, 2 if block == 0 and width > 128 else 1))
            channels = 2 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)), _image()


def regnet_y() -> Case:
    """RegNetY of 4 GFLOPs, groups of 64 channels (Radosavovic et al., 2020)."""
    return transformers.RegNetForImageClassification(transformers.RegNetConfig(num_labels=1000)), _image()


def mobilenet_v1() -> Case:
    """MobileNet (Howard et al., 2017)."""
    return transformers.MobileNetV1ForImageClassification(transformers.MobileNetV1Config(num_labels=1001)), _image()


def efficientnet_b0() -> Case:
    """EfficientNet B0 (Tan and Le, 2019)."""
    config = transformers.EfficientNetConfig(
        num_labels=1000, width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280
    )
    return transformers.EfficientNetForImageClassification(config), _image()


def convnext_tiny() -> Case:
    """ConvNeXt tiny (Liu et al., 2022)."""
    return transformers.ConvNextForImageClassification(transformers.ConvNextConfig(num_labels=1000)), _image()


def poolformer_s12() -> Case:
    """PoolFormer S12 (Yu et al., 2021)."""
    return transformers.PoolFormerForImageClassification(transformers.PoolFormerConfig(num_labels=1000)), _image()


def levit_128() -> Case:
    """LeViT 128S (Graham et al., 2021)."""
    return transformers.LevitForImageClassification(transformers.LevitConfig(num_labels=1000)), _image()


def mobilevit_s() -> Case:
    """MobileViT S, 256 x 256 (Mehta and Rastegari, 2021)."""
    return transformers.MobileViTForImageClassification(transformers.MobileViTConfig(num_labels=1000)), _image(256)


def dinov2_s() -> Case:
    """DINOv2 S, 257 tokens (Oquab et al., 2023)."""
    config = transformers.Dinov2Config(
        hidden_size=384, num_attention_heads=6, num_labels=1000, attn_implementation="eager"
    )
    return transformers.Dinov2ForImageClassification(config), _image()


def yolos_tiny() -> Case:
    """YOLOS tiny, 256 x 256 (Fang et al., 2021)."""
    config = transformers.YolosConfig(
        hidden_size=192, num_attention_heads=3, intermediate_size=768, image_size=[256, 256],
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.YolosForObjectDetection(config), _image(256)


class _MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.across = nn.Sequential(nn.Linear(tokens, 256), nn.GELU(), nn.Linear(256, tokens))
        self.along = nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norms[1](x))


class _Mixer(nn.Module):
    def __init__(self, width: int = 512, tokens: int = 196) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*[_MixerBlock(tokens, width) for _ in range(8)], nn.LayerNorm(width))
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def mixer_s16() -> Case:
    """MLP-Mixer S/16 (Tolstikhin et al., 2021)."""
    return _Mixer(), _image()


class _UNet(nn.Module):
    def __init__(self, *widths: int, volumes: bool = False) -> None:
        super().__init__()
        transposed = nn.ConvTranspose3d if volumes else nn.ConvTranspose2d
        self.conv, self.norm = (nn.Conv3d, nn.BatchNorm3d) if volumes else (nn.Conv2d, nn.BatchNorm2d)
        self.pool = nn.MaxPool3d(2) if volumes else nn.MaxPool2d(2)
        below = (*widths, 2 * widths[-1])
        self.down = nn.ModuleList([self._block(a, b) for a, b in zip((3, *widths), below, strict=True)])
        self.wider = nn.ModuleList([transposed(2 * w, w, 2, 2) for w in widths])
        self.up = nn.ModuleList([self._block(2 * w, w) for w in widths])
        self.head = self.conv(widths[0], 2, 1)

    def _block(self, channels: int, out: int) -> nn.Module:
        layers = [self.conv(channels, out, 3, padding=1, bias=False), self.norm(out), nn.ReLU()]
        return nn.Sequential(*layers, self.conv(out, out, 3, padding=1, bias=False), self.norm(out), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped: list[torch.Tensor] = []
        for block in self.down[:-1]:
            skipped.append(block(x))
            x = self.pool(skipped[-1])
        x = self.down[-1](x)
        for wider, block, skip in zip(self.wider[::-1], self.up[::-1], skipped[::-1], strict=True):
            x = block(torch.cat([wider(x), skip], 1))
        return self.head(x)


def unet() -> Case:
    """U-Net, 256 x 256, 32 to 512 channels (Ronneberger et al., 2015)."""
    return _UNet(32, 64, 128, 256), _image(256)


def unet3d() -> Case:
    """3-D U-Net, 32 x 64 x 64, 16 to 64 channels (Cicek et al., 2016)."""
    return _UNet(16, 32, volumes=True), {"pixel_values": torch.randn(1, 3, 32, 64, 64)}


def swin2sr() -> Case:
    """Swin2SR, 64 x 64 to twice as much (Conde et al., 2022)."""
    config = transformers.Swin2SRConfig(embed_dim=60, depths=[6, 6], num_heads=[6, 6], image_size=64, upscale=2)
    return transformers.Swin2SRForImageSuperResolution(config), _image(64)


def distilbert() -> Case:
    """DistilBERT, 128 tokens (Sanh et al., 2019)."""
    config = transformers.DistilBertConfig(attn_implementation="eager")
    return transformers.DistilBertModel(config), _masked_tokens(128)


def minilm_l6() -> Case:
    """MiniLM, six layers of 384, 64 tokens (Wang et al., 2020)."""
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.BertModel(config), _masked_tokens(64)


def squeezebert() -> Case:
    """SqueezeBERT, 64 tokens: products in groups (Iandola et al., 2020)."""
    return transformers.SqueezeBertModel(transformers.SqueezeBertConfig()), _masked_tokens(64)


def clip_text() -> Case:
    """CLIP's text encoder, 77 tokens (Radford et al., 2021)."""
    config = transformers.CLIPTextConfig(attn_implementation="eager")
    return transformers.CLIPTextModel(config), {"input_ids": _tokens(77)}


def llama_small() -> Case:
    """A Llama of eight layers of 512, two key-value heads for eight query heads, 64 tokens (Touvron et al., 2023)."""
    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
        vocab_size=8000, use_cache=False, attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), {"input_ids": _tokens(64)}


def whisper_tiny() -> Case:
    """Whisper tiny's encoder, 30 seconds of sound (Radford et al., 2022)."""
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, attn_implementation="eager"
    )
    return transformers.WhisperModel(config).encoder, {"input_features": torch.randn(1, 80, 3000)}


def wav2vec2_base() -> Case:
    """wav2vec 2.0 base, a second of sound (Baevski et al., 2020)."""
    config = transformers.Wav2Vec2Config(attn_implementation="eager")
    return transformers.Wav2Vec2Model(config), {"input_values": torch.randn(1, 16000)}


MORE: tuple[Callable[[], Case], ...] = (
    resnet18, resnext50, regnet_y, mobilenet_v1, efficientnet_b0, convnext_tiny, poolformer_s12, levit_128, mobilevit_s,
    dinov2_s, yolos_tiny, mixer_s16, unet, unet3d, swin2sr, distilbert, minilm_l6, squeezebert, clip_text, llama_small,
    whisper_tiny, wav2vec2_base,
)  # fmt: skip
"""Other architectures."""
