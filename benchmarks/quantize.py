"""Quantise models of the zoo with onnxruntime's tools, for `benchmarks.models`.

    python -m benchmarks.quantize FOLDER [NAME ...]

writes FOLDER/NAME_qdq.onnx (static int8 with per-channel weight scales, calibrated with the model's inputs) and
FOLDER/NAME_dynamic.onnx (dynamically quantised activations) for FOLDER/NAME.onnx, and .npz files with the same inputs.
Time them by ``python -m benchmarks.models --zoo FOLDER --models NAME_qdq,NAME_dynamic``.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

IN_QDQ, DYNAMIC = ("resnet50", "mobilenet_v2", "segformer_b0", "vit_b16"), ("bert_base", "gpt2", "vit_b16")


class _Inputs(CalibrationDataReader):
    """One set of inputs."""

    def __init__(self, path: Path) -> None:
        self._sets = iter([dict(np.load(path))])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._sets, None)


def quantize(path: Path, form: str) -> Path:
    """Write a model beside `path`, quantised in a form, "qdq" or "dynamic"."""
    made, inputs = path.with_stem(f"{path.stem}_{form}"), path.with_suffix(".npz")
    if form == "dynamic":
        quantize_dynamic(path, made, weight_type=QuantType.QInt8)
    else:
        with tempfile.TemporaryDirectory() as folder:
            prepared = Path(folder) / path.name
            quant_pre_process(path, prepared, skip_symbolic_shape=True)
            quantize_static(
                prepared, made, _Inputs(inputs), quant_format=QuantFormat.QDQ, per_channel=True,
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            )  # fmt: skip
    shutil.copy(inputs, made.with_suffix(".npz"))
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    for form, usual in (("qdq", IN_QDQ), ("dynamic", DYNAMIC)):
        for name in options.names or usual:
            print(quantize(options.folder / f"{name}.onnx", form), flush=True)


if __name__ == "__main__":
    main()
