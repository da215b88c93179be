"""Export the zoo: seven real architectures with random weights, opset 18, for benchmarks and end-to-end checks.

    pip install torch transformers onnxscript
    python -m benchmarks.zoo FOLDER [--batch N] [--more | --families | --timm | --torchvision] [NAME ...]

writes FOLDER/NAME.onnx and FOLDER/NAME.npz (one set of inputs by name): about 1.4 GB in all; with ``--more`` other
architectures (`benchmarks/architectures.py`), with ``--families`` a few layers of many (`benchmarks/families.py`), with
``--timm`` or ``--torchvision`` the named models of these packages (``pip install timm torchvision``). With a batch of
N > 1 the files are NAME_bN.onnx and NAME_bN.npz.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from benchmarks.architectures import MORE, ZOO, Case
from benchmarks.families import FAMILIES


class Positional(nn.Module):
    """A model that is called with positional tensors and returns its main output."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> Any:
        if not isinstance(self.model, transformers.PreTrainedModel):
            return self.model(*tensors)
        out = self.model(**dict(zip(self.names, tensors, strict=True)))
        if isinstance(out, torch.Tensor):
            return out
        names = ("logits", "reconstruction", "predicted_depth", "last_hidden_state")
        return next(out[name] for name in names if name in out)


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


def of_timm(name: str) -> Callable[[], Case]:
    """An image classifier of the timm package, with random statistics in batch norms."""

    import timm  # optional: only these models need it

    def case() -> Case:
        model = with_random_statistics(timm.create_model(name, pretrained=False))
        return model, {"x": torch.randn(1, *model.default_cfg["input_size"])}

    case.__name__ = name
    return case


def of_torchvision(name: str) -> Callable[[], Case]:
    """A model of the torchvision package: images of 224 x 224, to segment of 256 x 256, video of 8 frames of 112 x 112.

    Batch norms have random statistics.
    """

    from torchvision import models  # optional: only these models need it

    def case() -> Case:
        if name in models.list_models(models.segmentation):
            made, shape = models.get_model(name, weights=None, weights_backbone=None), (1, 3, 256, 256)
        else:
            is_video = name in models.list_models(models.video)
            made, shape = models.get_model(name, weights=None), (1, 3, 8, 112, 112) if is_video else (1, 3, 224, 224)
        return with_random_statistics(made), {"x": torch.randn(*shape)}

    case.__name__ = name
    return case


def with_random_statistics(model: nn.Module) -> nn.Module:
    """The model with random statistics in batch norms, which would be 0 and 1 without training."""
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_mean is not None:
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
    return model


def main() -> None:
    """Export the models named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="models to export; default: all")
    parser.add_argument("--batch", type=int, default=1)
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--more", action="store_true", help="other architectures")
    others.add_argument("--families", action="store_true", help="a few layers of many model families")
    others.add_argument("--timm", action="store_true", help="the named models of the timm package")
    others.add_argument("--torchvision", action="store_true", help="the named models of the torchvision package")
    options = parser.parse_intermixed_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.timm or options.torchvision:
        cases = [(of_timm if options.timm else of_torchvision)(name) for name in options.names]
    else:
        every = MORE if options.more else FAMILIES if options.families else ZOO
        cases = [case for case in every if not options.names or case.__name__ in options.names]
    for case in cases:
        export(case, options.folder, options.batch)


if __name__ == "__main__":
    main()
