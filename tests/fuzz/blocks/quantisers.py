"""Random networks quantised as onnxruntime's tools do: by calibration, at run time, or their weights in blocks."""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.fuzz.oracle import onnxruntime_outputs

__all__ = ["QUANTISERS", "quantised"]

Array = np.ndarray[Any, Any]
Runs = Sequence[Mapping[str, Array]]


class _Calibration:
    """The inputs of some runs, as onnxruntime's tools read them."""

    def __init__(self, runs: Runs) -> None:
        self.runs: Iterator[Mapping[str, Array]] = iter(runs)

    def get_next(self) -> Mapping[str, Array] | None:
        """The next inputs; None behind the last."""
        return next(self.runs, None)


def _static(runs: Runs, rng: random.Random, source: Path, to: Path) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    def chance(share: float) -> bool:
        return rng.random() < share

    unsigned, signed = QuantType.QUInt8, QuantType.QInt8
    activations, weights = rng.choice(((unsigned, signed), (unsigned, signed), (signed, signed), (unsigned, unsigned)))
    extra = {
        "ActivationSymmetric": activations == signed and chance(0.3), "WeightSymmetric": chance(0.7),
        "DedicatedQDQPair": chance(0.2), "AddQDQPairToWeight": chance(0.2),
    }  # fmt: skip
    some = {"op_types_to_quantize": ["MatMul", "Conv", "Gemm", "Add", "Mul"][: rng.choice((2, 3, 5))]}
    form = rng.choice((QuantFormat.QDQ, QuantFormat.QDQ, QuantFormat.QOperator))
    quantize_static(
        source, to, _Calibration(runs), quant_format=form, per_channel=chance(0.5),  # type: ignore[arg-type]
        activation_type=activations, weight_type=weights, extra_options=extra, **(some if chance(0.5) else {}),
    )  # fmt: skip


def _dynamic(runs: Runs, rng: random.Random, source: Path, to: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    extra = {"MatMulConstBOnly": rng.random() < 0.7, "WeightSymmetric": rng.random() < 0.7}
    weights = rng.choice((QuantType.QInt8, QuantType.QUInt8))
    quantize_dynamic(source, to, per_channel=rng.random() < 0.5, weight_type=weights, extra_options=extra)


def _nbits(runs: Runs, rng: random.Random, source: Path, to: Path) -> None:
    model = onnx.load(source)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    read = [name for node in model.graph.node for name in node.input]
    added: list[TensorProto] = []
    for node in model.graph.node:
        weight = tensors.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is not None and len(weight.dims) == 2 and weight.data_type == TensorProto.FLOAT:
            added += _in_blocks(node, numpy_helper.to_array(weight), rng)
            if read.count(weight.name) == 1:
                model.graph.initializer.remove(weight)
    model.graph.initializer.extend(added)
    onnx.save(model, to)


def _in_blocks(node: NodeProto, weight: Array, rng: random.Random) -> list[TensorProto]:
    """Turn a MatMul into MatMulNBits; its codes, scales, and perhaps zero points."""
    (depth, width), name = weight.shape, node.input[1]
    bits, size, symmetric = rng.choice((4, 4, 8)), rng.choice((16, 32, 64, 128, 256)), rng.random() < 0.5
    blocks = -(-depth // size)
    values = np.zeros((width, blocks * size), np.float32)
    values[:, :depth] = weight.T
    values = values.reshape(width, blocks, size)
    most = 2**bits - 1
    if symmetric:
        scale = np.abs(values).max(axis=2) / (most // 2)
        zero = np.full(scale.shape, 2 ** (bits - 1))
    else:
        low, high = np.minimum(values.min(axis=2), 0), np.maximum(values.max(axis=2), 0)
        scale = (high - low) / most
        zero = np.rint(-low / np.where(scale > 0, scale, 1)).astype(int)
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    codes = np.clip(np.rint(values / scale[..., None]) + zero[..., None], 0, most).astype(np.uint8)
    tensors = {f"{node.name}_codes": _packed(codes, bits), f"{node.name}_scales": scale.reshape(-1)}
    if not symmetric:
        tensors[f"{node.name}_zeros"] = _packed(zero.astype(np.uint8), bits).reshape(-1)
    inputs = [node.input[0], *tensors]
    attributes = {"K": depth, "N": width, "bits": bits, "block_size": size, "accuracy_level": rng.choice((0, 1, 4, 4))}
    changed = helper.make_node("MatMulNBits", inputs, list(node.output), f"{node.name}_{name}", domain="com.microsoft",
                               **attributes)  # fmt: skip
    node.CopyFrom(changed)
    return [numpy_helper.from_array(array, name) for name, array in tensors.items()]


def _packed(codes: Array, bits: int) -> Array:
    """Codes along the last axis, two in a byte if they have four bits, the first in the low half."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), np.uint8)], axis=-1)
    return codes[..., ::2] | codes[..., 1::2] << 4


QUANTISERS: dict[str, Callable[[Runs, random.Random, Path, Path], None]] = {
    "static": _static, "dynamic": _dynamic, "nbits": _nbits,
}  # fmt: skip


def quantised(model: ModelProto, runs: Runs, how: str, seed: int) -> ModelProto | None:
    """The model quantised in one of the ways, calibrated by inputs; None where onnxruntime's tools refuse it."""
    accepted = [inputs for inputs in runs if onnxruntime_outputs(model, inputs) is not None]
    with tempfile.TemporaryDirectory() as folder:
        source, to = Path(folder, "float.onnx"), Path(folder, "quantised.onnx")
        onnx.save(model, source)
        logging.disable(logging.WARNING)
        try:
            QUANTISERS[how](accepted, random.Random(seed), source, to)
        except Exception:  # noqa: BLE001 - its errors have no common class
            return None
        finally:
            logging.disable(logging.NOTSET)
        return onnx.load(to)
