"""Architectures of transformers and torchvision, small and with random weights: equal to eager mode, at any size."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'relayc[torch]'")
pytest.importorskip("onnxscript", reason="needs torch's exporter: pip install 'relayc[torch]'")

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
"""Share of the largest value of each result: the sums of a float32 model in another order."""

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}


def text_model(name: str, config: str, **settings: Any) -> tuple[Any, Callable[[int], tuple[Any, ...]]]:
    """A model that reads token numbers, and its arguments by size."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    return model, lambda size: (torch.randint(3, 99, (2, 5 + size)),)


def pair_model(name: str, config: str, shape: Callable[[int], tuple[int, ...]], **settings: Any) -> Any:
    """A model with an encoder, of tokens or (three axes) of sound, and a decoder; its arguments by size."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    model = getattr(transformers, name)(getattr(transformers, config)(**settings, use_cache=False))

    def arguments(size: int) -> tuple[Any, ...]:
        sizes = shape(size)
        source = torch.randn(sizes) if len(sizes) == 3 else torch.randint(3, 99, sizes)
        return source, None, torch.randint(3, 99, (sizes[0], 3))

    return model, arguments


def image_model(name: str, **settings: Any) -> tuple[Any, Callable[[int], tuple[Any, ...]]]:
    """A model that reads images, and its arguments by size, that of the batch."""
    try:
        models = pytest.importorskip("torchvision.models", reason="needs torchvision: pip install torchvision")
    except RuntimeError as error:  # it is there, and built for another torch
        pytest.skip(f"torchvision does not fit torch: {error}")
    model = getattr(models, name)(**settings)
    return model, lambda size: (torch.randn(1 + size, 3, 64, 64),)


def compare(run: Callable[..., Any], model: Any, args: tuple[Any, ...]) -> None:
    """Call both and compare all tensors of the results."""
    with torch.no_grad():
        ours, theirs = run(*args), model(*args)
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip(leaves(ours), leaves(theirs), strict=True):
        scale = b.abs().max().item() if b.numel() else 0
        torch.testing.assert_close(a, b, atol=TOLERANCE * scale, rtol=0)


MODELS = {
    "bert": lambda: text_model("BertModel", "BertConfig", **SIZES),
    "gpt2": lambda: text_model("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=2, vocab_size=99,
                               n_positions=64, use_cache=False),
    "llama": lambda: text_model("LlamaForCausalLM", "LlamaConfig", **SIZES, num_key_value_heads=1, use_cache=False),
    "t5": lambda: text_model("T5EncoderModel", "T5Config", d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
                             vocab_size=99),
    "t5_with_decoder": lambda: pair_model("T5ForConditionalGeneration", "T5Config", lambda size: (2, 5 + size),
                                          d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=99),
    "whisper": lambda: pair_model("WhisperForConditionalGeneration", "WhisperConfig", lambda size: (1 + size, 20, 60),
                                  d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
                                  decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=99,
                                  num_mel_bins=20, max_source_positions=30, max_target_positions=40, pad_token_id=0,
                                  bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
    "resnet18": lambda: image_model("resnet18"),
    "mobilenet_v3_small": lambda: image_model("mobilenet_v3_small"),
    "swin": lambda: image_model("SwinTransformer", patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[1, 2],
                                window_size=[4, 4], num_classes=10),
    "vit": lambda: image_model("VisionTransformer", image_size=64, patch_size=16, num_layers=2, num_heads=2,
                               hidden_dim=32, mlp_dim=64, num_classes=10),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_an_architecture_is_compiled_for_all_sizes(name, caplog):
    torch._dynamo.reset()
    torch.manual_seed(0)
    caplog.set_level(logging.INFO, "relayc.torch")
    model, arguments = MODELS[name]()
    model.eval()
    run = torch.compile(model, backend="relayc")
    for size in (1, 2, 3):  # the first is compiled for its size, the second for all
        compare(run, model, arguments(size))
    records = [record.getMessage() for record in caplog.records if record.name == "relayc.torch"]
    assert len(records) == 2 and all(text.startswith("compiled a graph") for text in records), records


def test_a_detector_with_graph_breaks_is_not_compiled_for_each_size(caplog):
    """Faster R-CNN, whose boxes and loops over lists break its graph, of pictures of five sizes."""
    image_model("resnet18")  # skips where torchvision is not usable
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.rpn import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    torch._dynamo.reset()
    torch.manual_seed(0)
    caplog.set_level(logging.INFO, "relayc.torch")
    backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 8, 8), torch.nn.ReLU())
    backbone.out_channels = 8
    model = FasterRCNN(
        backbone, 3, min_size=64, max_size=96, rpn_anchor_generator=AnchorGenerator(((16, 32),), ((0.5, 1.0),)),
        rpn_post_nms_top_n_test=20, box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2), box_score_thresh=0.0,
    ).eval()  # fmt: skip
    run = torch.compile(model, backend="relayc")
    counts = []
    for size in range(5):
        compare(run, model, ([torch.rand(3, 64 + 6 * size, 64)],))
        counts.append(sum(record.getMessage().startswith("compiled a graph") for record in caplog.records))
    assert counts[0] > 3 and counts[-1] == counts[2], counts
