"""Two or so layers of many families of models of the transformers package, with random weights: see `benchmarks.zoo`.

They check the compiler on exporters' graphs for which it was not tuned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from benchmarks.architectures import Case

FEW = {"num_hidden_layers": 2}
"""Two layers: all layers of a model are alike."""
SMALL = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, **FEW}
SMALL_WITH_LOGITS = {**SMALL, "vocab_size": 8000}
GROUPED = {**SMALL_WITH_LOGITS, "num_key_value_heads": 2}


def _named(
    name: str, kind: str, config: str, inputs: Callable[[], dict[str, torch.Tensor]], **options: Any
) -> Callable[[], Case]:
    """A case of a model class of transformers, with these options of its configuration."""

    def case() -> Case:
        made = getattr(transformers, config)(**options)
        made.use_cache = False
        return getattr(transformers, kind)(made), inputs()

    case.__name__ = name
    return case


def _tokens(length: int, masked: bool = True) -> Callable[[], dict[str, torch.Tensor]]:
    def inputs() -> dict[str, torch.Tensor]:
        found = {"input_ids": torch.randint(5, 1000, (1, length))}
        if masked:
            found["attention_mask"] = torch.ones(1, length, dtype=torch.long)
            found["attention_mask"][0, -7:] = 0
        return found

    return inputs


def _translated() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(5, 1000, (1, 64)), "decoder_input_ids": torch.randint(5, 1000, (1, 16))}


def _values(name: str, *shape: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {name: torch.randn(*shape)}


TEXT, PLAIN = _tokens(64), _tokens(64, masked=False)
IMAGE, SOUND = _values("pixel_values", 1, 3, 224, 224), _values("input_values", 1, 16000)
IMAGE_256 = _values("pixel_values", 1, 3, 256, 256)

TEXTS: tuple[Callable[[], Case], ...] = (
    _named("roberta", "RobertaModel", "RobertaConfig", TEXT, **FEW),
    _named("deberta_v2", "DebertaV2Model", "DebertaV2Config", TEXT, **SMALL, relative_attention=True,
           position_buckets=64, pos_att_type=["p2c", "c2p"]),
    _named("albert", "AlbertModel", "AlbertConfig", TEXT, hidden_size=768, num_attention_heads=12,
           intermediate_size=3072, **FEW),
    _named("xlnet", "XLNetModel", "XLNetConfig", PLAIN, d_model=512, n_layer=2, n_head=8, d_inner=1024),
    _named("mpnet", "MPNetModel", "MPNetConfig", TEXT, **FEW),
    _named("mobilebert", "MobileBertModel", "MobileBertConfig", TEXT, num_hidden_layers=3),
    _named("convbert", "ConvBertModel", "ConvBertConfig", TEXT, **FEW),
    _named("fnet", "FNetModel", "FNetConfig", PLAIN, **FEW),
    _named("roformer", "RoFormerModel", "RoFormerConfig", TEXT, embedding_size=768, **FEW),
    _named("mistral", "MistralForCausalLM", "MistralConfig", TEXT, sliding_window=16, **GROUPED),
    _named("qwen2", "Qwen2ForCausalLM", "Qwen2Config", TEXT, tie_word_embeddings=True, **GROUPED),
    _named("gemma2", "Gemma2ForCausalLM", "Gemma2Config", TEXT, head_dim=64, **GROUPED),
    _named("phi", "PhiForCausalLM", "PhiConfig", TEXT, **SMALL_WITH_LOGITS),
    _named("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT, **SMALL_WITH_LOGITS),
    _named("gptj", "GPTJForCausalLM", "GPTJConfig", TEXT, n_embd=512, n_layer=2, n_head=8, rotary_dim=32,
           vocab_size=8000),
    _named("bloom", "BloomForCausalLM", "BloomConfig", TEXT, hidden_size=512, n_layer=2, n_head=8, vocab_size=8000),
    _named("opt", "OPTForCausalLM", "OPTConfig", TEXT, hidden_size=512, ffn_dim=1024, num_attention_heads=8,
           word_embed_proj_dim=512, vocab_size=8000, **FEW),
    _named("falcon", "FalconForCausalLM", "FalconConfig", TEXT, hidden_size=512, num_attention_heads=8,
           vocab_size=8000, **FEW),
    _named("mamba", "MambaForCausalLM", "MambaConfig", _tokens(16, masked=False), hidden_size=256, vocab_size=4000,
           **FEW),
    _named("t5", "T5Model", "T5Config", _translated, num_layers=2, num_decoder_layers=2, d_ff=1024),
    _named("bart", "BartModel", "BartConfig", _translated, d_model=512, encoder_layers=2, decoder_layers=2,
           encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=1024, decoder_ffn_dim=1024),
)  # fmt: skip

IMAGES: tuple[Callable[[], Case], ...] = (
    _named("swin", "SwinModel", "SwinConfig", IMAGE),
    _named("swinv2", "Swinv2Model", "Swinv2Config", IMAGE_256, image_size=256, depths=[2, 2, 2, 2]),
    _named("beit", "BeitModel", "BeitConfig", IMAGE, use_relative_position_bias=True, **FEW),
    _named("cvt", "CvtModel", "CvtConfig", IMAGE, depth=[1, 2, 3]),
    _named("focalnet", "FocalNetModel", "FocalNetConfig", IMAGE),
    _named("pvt_v2", "PvtV2Model", "PvtV2Config", IMAGE),
    _named("convnextv2", "ConvNextV2Model", "ConvNextV2Config", IMAGE, depths=[2, 2, 4, 2]),
    _named("siglip", "SiglipVisionModel", "SiglipVisionConfig", IMAGE, **FEW),
    _named("clip_image", "CLIPVisionModel", "CLIPVisionConfig", IMAGE, **FEW),
    _named("glpn", "GLPNForDepthEstimation", "GLPNConfig", IMAGE_256),
    _named("mobilenet_v2_seg", "MobileNetV2ForSemanticSegmentation", "MobileNetV2Config", IMAGE_256),
    _named("videomae", "VideoMAEModel", "VideoMAEConfig", _values("pixel_values", 1, 8, 3, 224, 224), num_frames=8,
           **FEW),
    _named("timesformer", "TimesformerModel", "TimesformerConfig", _values("pixel_values", 1, 4, 3, 224, 224),
           num_frames=4, **FEW),
    _named("rt_detr", "RTDetrForObjectDetection", "RTDetrConfig", _values("pixel_values", 1, 3, 320, 320)),
)  # fmt: skip

SERIES: tuple[Callable[[], Case], ...] = (
    _named("hubert", "HubertModel", "HubertConfig", SOUND, **FEW),
    _named("wavlm", "WavLMModel", "WavLMConfig", SOUND, **FEW),
    _named("sew", "SEWModel", "SEWConfig", SOUND, **FEW),
    _named("ast", "ASTModel", "ASTConfig", _values("input_values", 1, 256, 128), max_length=256, **FEW),
    _named("hifigan", "SpeechT5HifiGan", "SpeechT5HifiGanConfig", _values("spectrogram", 1, 40, 80)),
    _named("patchtst", "PatchTSTModel", "PatchTSTConfig", _values("past_values", 1, 336, 7), num_input_channels=7,
           context_length=336, patch_length=16, stride=8),
    _named("patchtsmixer", "PatchTSMixerModel", "PatchTSMixerConfig", _values("past_values", 1, 336, 7),
           num_input_channels=7, context_length=336, patch_length=16, patch_stride=8, d_model=64),
)  # fmt: skip

FAMILIES: tuple[Callable[[], Case], ...] = TEXTS + IMAGES + SERIES
