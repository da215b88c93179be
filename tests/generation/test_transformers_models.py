"""Greedy tokens and beams of tiny transformers models are those of transformers' `generate`.

They are exported by torch, or written by onnxruntime-genai's builder.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relayc.generation import Generator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "onnxscript")),
        reason="exports models: pip install torch transformers onnxscript",
    ),
]

TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 128, **TOKENS,
}  # fmt: skip
DECODERS: dict[str, dict[str, Any]] = {
    "Llama": SMALL,
    "Qwen3": {**SMALL, "head_dim": 16},
    "Gemma2": {**SMALL, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "Phi3": {**SMALL, "original_max_position_embeddings": 128},
    "Phi": {**SMALL, "partial_rotary_factor": 0.5},
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 128, **TOKENS},
}
"""Configurations by the name of their class."""

PROMPTS = [[5, 9, 30, 22, 17, 101, 64], [7, 3], [33, 3, 3, 80, 21, 33, 12, 54, 90, 111]]
COUNT = 16


def _random(model: Any) -> Any:
    """The model with weights that make different tokens likely."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            offset = 1.0 if weight.ndim == 1 and "bias" not in name else 0.0
            weight.copy_(offset + 0.15 * torch.randn_like(weight))
    return model.eval()


def _decoder(name: str) -> Any:
    import transformers

    config = getattr(transformers, f"{name}Config")(**DECODERS[name])
    config._attn_implementation = "eager"
    return _random(transformers.AutoModelForCausalLM.from_config(config))


def _export(module: Any, inputs: dict[str, Any], dynamic: dict[str, Any], outputs: list[str], path: Path) -> None:
    import torch

    torch.onnx.export(
        module.eval(), (), path, kwargs=inputs, dynamic_shapes=dynamic, output_names=outputs, dynamo=True, verbose=False
    )


def _export_decoder(model: Any, path: Path) -> None:
    """Export with a DynamicCache of flattened keys and values."""
    import torch
    from transformers.cache_utils import DynamicCache

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, past_key_values: Any) -> Any:
            cache = DynamicCache()
            for layer, (key, value) in enumerate(past_key_values):
                cache.update(key, value, layer)
            found = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache,
                use_cache=True,
            )  # fmt: skip
            return found.logits, [(layer.keys, layer.values) for layer in found.past_key_values.layers]

    groups = getattr(model.config, "num_key_value_heads", None) or 4
    past = [tuple(torch.zeros(2, groups, 3, 16) for _ in range(2)) for _ in range(2)]
    inputs = {
        "input_ids": torch.ones(2, 5, dtype=torch.int64), "attention_mask": torch.ones(2, 8, dtype=torch.int64),
        "position_ids": torch.arange(5).repeat(2, 1), "past_key_values": past,
    }  # fmt: skip
    is_open = torch.export.Dim.DYNAMIC
    tokens, cache = {0: is_open, 1: is_open}, {0: is_open, 2: is_open}
    dynamic = {**dict.fromkeys(list(inputs)[:3], tokens), "past_key_values": [(cache, cache)] * 2}
    _export(Decoder(), inputs, dynamic, ["logits"], path)


def _expected(model: Any, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """What transformers generates, up to the end token."""
    import torch

    length = max(map(len, prompts))
    ids = torch.tensor([[0] * (length - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts])
    found = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=COUNT, **TOKENS, **options)
    return [_until_end(row[length:].tolist()) for row in found]


def _until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(2) + 1] if 2 in ids else ids


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_generate_what_transformers_does(name, tmp_path):
    model = _decoder(name)
    _export_decoder(model, tmp_path / "model.onnx")
    generator = Generator(tmp_path)
    assert generator._executor.has_caches and not generator._ports.caches
    for options in ({}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2}, {"num_beams": 3}):
        found = generator.generate(PROMPTS, max_new_tokens=COUNT, eos_token_id=2, **options)
        assert [result.ids for result in found] == _expected(model, PROMPTS, **options), options
    longer = [*PROMPTS[0], 4, 8, 15]
    generator.generate(PROMPTS[0], max_new_tokens=3)
    assert [generator.generate(longer, max_new_tokens=COUNT, eos_token_id=2).ids] == _expected(model, [longer])


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma2"])
def test_models_of_onnxruntime_genais_builder_generate_what_transformers_does(name, tmp_path):
    builder = pytest.importorskip("onnxruntime_genai.models.builder", reason="pip install onnxruntime-genai")
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = _decoder(name)
    model.save_pretrained(tmp_path / "source")
    words = {f"word{number}": number for number in range(128)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="word0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="word2").save_pretrained(tmp_path / "source")
    where = (None, str(tmp_path / "source"), str(tmp_path / "made"), "fp32", "cpu", str(tmp_path / "cache"))
    builder.create_model(*where, **builder.parse_extra_options(*where, None))
    generator = Generator(tmp_path / "made")
    assert generator._executor.has_caches
    for prompt in PROMPTS:
        found = generator.generate(prompt, max_new_tokens=COUNT, eos_token_id=2, do_sample=False)
        assert [found.ids] == _expected(model, [prompt])


def _seq2seq(name: str) -> tuple[Any, Any]:
    """A tiny model with an encoder, and what it encodes."""
    import transformers

    if name == "T5":
        config = transformers.T5Config(
            d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=128, decoder_start_token_id=0,
            eos_token_id=2, pad_token_id=0,
        )  # fmt: skip
        config._attn_implementation = "eager"
        return _random(transformers.T5ForConditionalGeneration(config)), [PROMPTS[0], PROMPTS[1]]
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=128, num_mel_bins=20, max_source_positions=30,
        max_target_positions=40, decoder_start_token_id=1, suppress_tokens=[5], begin_suppress_tokens=[7], **TOKENS,
    )  # fmt: skip
    config._attn_implementation = "eager"
    features = np.random.default_rng(0).standard_normal((2, 20, 60)).astype(np.float32)
    return _random(transformers.WhisperForConditionalGeneration(config)), features


def _export_seq2seq(model: Any, name: str, folder: Path) -> None:
    """Export encoder and decoder; the decoder keeps no caches for T5, and has passed ones for Whisper."""
    import torch
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache
    from transformers.modeling_outputs import BaseModelOutput

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = model.get_encoder()

        def forward(self, **inputs: Any) -> Any:
            return self.encoder(**inputs).last_hidden_state

    class TextEncoder(Encoder):
        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    class SoundEncoder(Encoder):
        def forward(self, input_features: Any) -> Any:
            return self.encoder(input_features).last_hidden_state

    class TextDecoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, encoder_hidden_states: Any, encoder_attention_mask: Any) -> Any:
            return self.model(
                encoder_outputs=BaseModelOutput(encoder_hidden_states), attention_mask=encoder_attention_mask,
                decoder_input_ids=input_ids, use_cache=False,
            ).logits  # fmt: skip

    class SoundDecoder(TextDecoder):
        def forward(self, input_ids: Any, encoder_hidden_states: Any, past_key_values: Any) -> Any:
            own = DynamicCache()
            for layer, (key, value) in enumerate(past_key_values):
                own.update(key, value, layer)
            found = self.model(
                encoder_outputs=BaseModelOutput(encoder_hidden_states), decoder_input_ids=input_ids,
                past_key_values=EncoderDecoderCache(own, DynamicCache()), use_cache=True,
            )  # fmt: skip
            layers = found.past_key_values.self_attention_cache.layers
            return found.logits, [(layer.keys, layer.values) for layer in layers]

    is_open = torch.export.Dim.DYNAMIC
    two, first = {0: is_open, 1: is_open}, {0: is_open}
    ids = torch.ones(2, 5, dtype=torch.int64)
    if name == "T5":
        inputs = {"input_ids": ids, "attention_mask": ids.clone()}
        _export(TextEncoder(), inputs, dict.fromkeys(inputs, two), ["last_hidden_state"], folder / "encoder_model.onnx")
        inputs = {
            "input_ids": torch.ones(2, 3, dtype=torch.int64), "encoder_hidden_states": torch.zeros(2, 5, 32),
            "encoder_attention_mask": ids.clone(),
        }  # fmt: skip
        _export(TextDecoder(), inputs, dict.fromkeys(inputs, two), ["logits"], folder / "decoder_model.onnx")
    else:
        inputs = {"input_features": torch.zeros(2, 20, 60)}
        _export(SoundEncoder(), inputs, {"input_features": first}, ["last_hidden_state"], folder / "encoder_model.onnx")
        past = [tuple(torch.zeros(2, 4, 3, 8) for _ in range(2)) for _ in range(2)]
        start = torch.ones(2, 2, dtype=torch.int64)
        inputs = {"input_ids": start, "encoder_hidden_states": torch.zeros(2, 30, 32), "past_key_values": past}
        dynamic = {
            "input_ids": two, "encoder_hidden_states": first,
            "past_key_values": [({0: is_open, 2: is_open},) * 2] * 2,
        }  # fmt: skip
        _export(SoundDecoder(), inputs, dynamic, ["logits"], folder / "decoder_model.onnx")


@pytest.mark.parametrize("name", ["T5", "Whisper"])
def test_encoders_and_decoders_generate_what_transformers_does(name, tmp_path):
    import torch
    from transformers import GenerationMixin

    model, source = _seq2seq(name)
    _export_seq2seq(model, name, tmp_path)
    model.generation_config.save_pretrained(tmp_path)
    model.config.save_pretrained(tmp_path)
    generator = Generator(tmp_path)
    start = [0] if name == "T5" else [1, 60, 61]
    for options in ({}, {"num_beams": 3}):
        found = generator.generate(source, decoder_ids=start, max_new_tokens=COUNT, **options)
        if name == "T5":
            length = max(map(len, source))
            ids = torch.tensor([p + [0] * (length - len(p)) for p in source])
            inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
        else:
            inputs = {"input_features": torch.tensor(source)}
        expected = GenerationMixin.generate(  # Whisper's own method also cuts and joins long recordings
            model, **inputs, decoder_input_ids=torch.tensor([start] * 2), max_new_tokens=COUNT, do_sample=False,
            **options,
        )  # fmt: skip
        assert [r.ids for r in found] == [_until_end(row[len(start) :].tolist()) for row in expected], options
