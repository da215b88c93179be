"""Quantise models of the zoo, or convert them to float16, with onnxruntime's tools, for `benchmarks.models`.

    python -m benchmarks.quantize FOLDER [NAME ...] [--forms qdq,dynamic]

writes FOLDER/NAME_FORM.onnx for FOLDER/NAME.onnx and each form, and .npz files with the same inputs. Forms: "qdq" and
"qoperator", static int8 calibrated with the model's inputs, and "dynamic", dynamically quantised activations. Scales of
weights are per channel in "qdq", "qoperator" and "dynamic_channel", per tensor in "qdq_tensor", "qoperator_tensor" and
"dynamic". "float16" has float16 weights and activations, and inputs and outputs as they were. Time them by ``python -m
benchmarks.models --zoo FOLDER --models NAME_qdq,NAME_dynamic``.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16

from benchmarks.models import ZOO_MODELS

USUAL = {
    "qdq": ("resnet50", "mobilenet_v2", "segformer_b0", "vit_b16"), "dynamic": ("bert_base", "gpt2", "vit_b16"),
    "qdq_tensor": (), "qoperator": (), "qoperator_tensor": (), "dynamic_channel": (), "float16": ZOO_MODELS,
}  # fmt: skip
"""Models that are quantised if none are named, by form."""


class _Inputs(CalibrationDataReader):
    """One set of inputs."""

    def __init__(self, path: Path) -> None:
        self._sets = iter([dict(np.load(path))])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._sets, None)


def quantize(path: Path, form: str) -> Path:
    """Write a model beside `path`, in a form of `USUAL`."""
    made, inputs = path.with_stem(f"{path.stem}_{form}"), path.with_suffix(".npz")
    kind, _, scales = form.partition("_")
    if kind == "float16":
        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), made)
    elif kind == "dynamic":
        quantize_dynamic(path, made, weight_type=QuantType.QInt8, per_channel=scales == "channel")
    else:
        with tempfile.TemporaryDirectory() as folder:
            prepared = Path(folder) / path.name
            quant_pre_process(path, prepared, skip_symbolic_shape=True)
            quantize_static(
                prepared, made, _Inputs(inputs), per_channel=scales != "tensor",
                quant_format=QuantFormat.QDQ if kind == "qdq" else QuantFormat.QOperator,
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            )  # fmt: skip
    shutil.copy(inputs, made.with_suffix(".npz"))
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--forms", default="qdq,dynamic", help=f"of {', '.join(USUAL)}")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    for form in options.forms.split(","):
        for name in options.names or USUAL[form]:
            print(quantize(options.folder / f"{name}.onnx", form), flush=True)


if __name__ == "__main__":
    main()
