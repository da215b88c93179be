"""`ModelParts`: a model in memory whose weights are not in its message, made from a program that torch exports.

A message holds a copy of every weight, and 2 GiB at most. Exporters have the weights in memory as arrays already.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:  # not imported at run time: a model from the cache needs it no more
    from onnx import ModelProto, TensorProto

__all__ = ["ModelParts", "OnnxProgram", "model_parts"]


class OnnxProgram(Protocol):
    """What `torch.onnx.export` returns (`torch.onnx.ONNXProgram`): `model` is an `onnx_ir.Model`."""

    @property
    def model(self) -> Any: ...

    @property
    def model_proto(self) -> ModelProto: ...


class ModelParts(NamedTuple):
    """A message and its weights apart.

    For each of `weights` the main graph of `proto` has an initializer of its name, type and shape, with empty raw data.
    Only the bytes of the arrays count, elements in row-major order and, below 8 bits, packed as ONNX packs them. They
    are not copied before the model is built, and must not change until then.
    """

    proto: ModelProto
    weights: Mapping[str, np.ndarray]

    def data(self) -> dict[str, np.ndarray]:
        """The bytes of the weights (uint8) by name."""
        return {name: _bytes_of(values) for name, values in self.weights.items()}

    def digest(self) -> str:
        """A hash of all of the model, SHA-256 in hexadecimal digits."""
        found = hashlib.sha256(self.proto.SerializeToString(deterministic=True))
        for name in sorted(self.weights):
            found.update(f"\0{name}\0".encode())
            found.update(_bytes_of(self.weights[name]).data)
        return found.hexdigest()


def _bytes_of(values: np.ndarray) -> np.ndarray:
    """The bytes of an array: uint8[nbytes], without a copy if it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def model_parts(model: object) -> ModelParts | None:
    """The parts of a model that has them, of an `onnx_ir.Model`, and of a program that holds one; None for all else."""
    if isinstance(model, ModelParts):
        return model
    ir: Any = sys.modules.get("onnx_ir")  # imported already, if the model is one of its
    found: Any = getattr(model, "model", model)
    if ir is None or not isinstance(found, ir.Model):
        return None
    small = found.clone()
    values = {name: value.const_value for name, value in found.graph.initializers.items()}
    weights = {name: t for name, t in values.items() if t is not None and t.dtype != ir.DataType.STRING}
    for name, tensor in weights.items():
        elsewhere = ir.ExternalTensor("", 0, 0, tensor.dtype, shape=tensor.shape, name=name)
        small.graph.initializers[name].const_value = elsewhere
    proto = ir.to_proto(small)
    for initializer in proto.graph.initializer:
        if initializer.name in weights:
            _empty(initializer)
    return ModelParts(proto, {name: _packed(tensor) for name, tensor in weights.items()})


def _empty(initializer: TensorProto) -> None:
    """Make a reference to external data an initializer of empty raw data."""
    initializer.ClearField("external_data")
    initializer.ClearField("data_location")
    initializer.raw_data = b""


def _packed(tensor: Any) -> np.ndarray:
    """The bytes of an onnx_ir tensor as ONNX stores them; those of whole bytes are not copied."""
    return np.frombuffer(tensor.tobytes(), np.uint8) if tensor.dtype.bitwidth < 8 else tensor.numpy()
