"""Export the zoo: seven real architectures with random weights, opset 18, for benchmarks and end-to-end checks.

    pip install torch transformers onnxscript
    python -m benchmarks.zoo FOLDER [--batch N] [NAME ...]

writes FOLDER/NAME.onnx and FOLDER/NAME.npz (one set of inputs by name): about 1.4 GB in all. With a batch of N > 1 the
files are NAME_bN.onnx and NAME_bN.npz.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

Case = tuple[torch.nn.Module, dict[str, torch.Tensor]]


def _image(size: int = 224) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, size, size)}


def _tokens(length: int) -> torch.Tensor:
    return torch.randint(0, 1000, (1, length))


def resnet50() -> Case:
    """50-layer residual network (He et al., 2015)."""
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)), _image()


def mobilenet_v2() -> Case:
    """MobileNetV2 (Sandler et al., 2018)."""
    return transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config(num_labels=1001)), _image()


def bert_base() -> Case:
    """BERT base, 128 tokens (Devlin et al., 2018)."""
    inputs = {"input_ids": _tokens(128), "attention_mask": torch.ones(1, 128, dtype=torch.long)}
    return transformers.BertModel(transformers.BertConfig(attn_implementation="eager")), inputs


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


class _Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5000, 128)
        self.lstm = torch.nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)
        self.tags = torch.nn.Linear(512, 32)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.tags(self.lstm(self.embedding(input_ids))[0])


def lstm_tagger() -> Case:
    """A two-layer bidirectional LSTM over 64 tokens."""
    return _Tagger(), {"input_ids": torch.randint(0, 5000, (1, 64))}


ZOO: tuple[Callable[[], Case], ...] = (resnet50, mobilenet_v2, bert_base, vit_b16, gpt2, segformer_b0, lstm_tagger)


class Positional(torch.nn.Module):
    """A model called with positional tensors, giving its main output."""

    def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> Any:
        if not isinstance(self.model, transformers.PreTrainedModel):
            return self.model(*tensors)
        out = self.model(**dict(zip(self.names, tensors, strict=True)))
        return out.logits if hasattr(out, "logits") else out.last_hidden_state


def export(case: Callable[[], Case], folder: Path, batch: int = 1) -> None:
    """Write one model and its inputs."""
    torch.manual_seed(0)
    model, inputs = case()
    inputs = {name: torch.cat([x] * batch) for name, x in inputs.items()}
    path = folder / (case.__name__ if batch == 1 else f"{case.__name__}_b{batch}")
    torch.onnx.export(
        Positional(model.eval(), list(inputs)), tuple(inputs.values()), path.with_suffix(".onnx"),
        input_names=list(inputs), opset_version=18, dynamo=True, external_data=False, optimize=True,
    )  # fmt: skip
    np.savez(path.with_suffix(".npz"), **{name: x.numpy() for name, x in inputs.items()})


def main() -> None:
    """Export the models named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="models to export; default: all")
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for case in ZOO:
        if not options.names or case.__name__ in options.names:
            export(case, options.folder, options.batch)


if __name__ == "__main__":
    main()
