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
"""Of the largest value of each result: the sums of a float32 model in another order."""

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}


def text_model(name: str, config: str, **settings: Any) -> tuple[Any, Callable[[int], tuple[Any, ...]]]:
    """A model that reads token numbers, and its arguments by size."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    return model, lambda size: (torch.randint(3, 99, (2, 5 + size)),)


def image_model(name: str, **settings: Any) -> tuple[Any, Callable[[int], tuple[Any, ...]]]:
    """A model that reads images, and its arguments by size, that of the batch."""
    try:
        models = pytest.importorskip("torchvision.models", reason="needs torchvision: pip install torchvision")
    except RuntimeError as error:  # it is there, and built for another torch
        pytest.skip(f"torchvision does not fit torch: {error}")
    model = getattr(models, name)(**settings)
    return model, lambda size: (torch.randn(1 + size, 3, 64, 64),)


MODELS = {
    "bert": lambda: text_model("BertModel", "BertConfig", **SIZES),
    "gpt2": lambda: text_model("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=2, vocab_size=99,
                               n_positions=64, use_cache=False),
    "llama": lambda: text_model("LlamaForCausalLM", "LlamaConfig", **SIZES, num_key_value_heads=1, use_cache=False),
    "t5": lambda: text_model("T5EncoderModel", "T5Config", d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
                             vocab_size=99),
    "resnet18": lambda: image_model("resnet18"),
    "mobilenet_v3_small": lambda: image_model("mobilenet_v3_small"),
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
        args = arguments(size)
        with torch.no_grad():
            ours, theirs = run(*args), model(*args)
        leaves = torch.utils._pytree.tree_leaves
        for a, b in zip(leaves(ours), leaves(theirs), strict=True):
            torch.testing.assert_close(a, b, atol=TOLERANCE * b.abs().max().item(), rtol=0)
    records = [record.getMessage() for record in caplog.records if record.name == "relayc.torch"]
    assert len(records) == 2 and all(text.startswith("compiled a graph") for text in records), records
